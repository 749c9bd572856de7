//! systemd over D-Bus: makes, changes and removes slices.

use std::collections::HashMap;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use tokio::sync::Mutex;
use zbus::message::Type;
use zbus::zvariant::{OwnedObjectPath, Value as Variant};
use zbus::{Connection, MatchRule, MessageStream};

use super::plan::Step;
use super::systemd::{Property, Value};

const SERVICE: &str = "org.freedesktop.systemd1";
const PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
/// How long an answer may take, and a job.
const PATIENCE: Duration = Duration::from_secs(30);
/// Ends of jobs that wait to be read.
const QUEUE: usize = 64;

/// Why a slice is not as it should be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BusError {
    #[error("cannot reach systemd on the system bus; start dbus, or use the driver cgroupfs for the agent and the container runtime")]
    Call(#[from] zbus::Error),
    #[error("systemd answered {0:?}")]
    Job(String),
    #[error("systemd did not end the job within 30 s")]
    Late,
}

impl BusError {
    /// Whether systemd or the bus says that the agent may not do this.
    pub(super) fn is_denied(&self) -> bool {
        let BusError::Call(zbus::Error::MethodError(name, ..)) = self else { return false };
        [".AccessDenied", ".InteractiveAuthorizationRequired"].iter().any(|end| name.as_str().ends_with(end))
    }

    /// What went wrong with the connection itself.
    fn of_connection(&self) -> Option<io::ErrorKind> {
        match self {
            BusError::Call(zbus::Error::InputOutput(error)) => Some(error.kind()),
            _ => None,
        }
    }
}

fn closed() -> BusError {
    let error = io::Error::new(io::ErrorKind::BrokenPipe, "the bus closed the connection");
    BusError::Call(zbus::Error::InputOutput(Arc::new(error)))
}

/// The connection to a bus: one for all, made at the first use and again after it is lost.
type Bus = Mutex<Option<Arc<Connection>>>;

static BUS: Bus = Mutex::const_new(None);

/// Carries out a step that is systemd's.
pub(super) async fn call(step: &Step) -> Result<(), BusError> {
    through(&BUS, || async { zbus::connection::Builder::system()?.method_timeout(PATIENCE).build().await }, step).await
}

/// Carries out a step, a second time over a new connection where the first one is lost (libcontainer's `retryOnDisconnect`).
async fn through<F>(bus: &Bus, connect: impl Fn() -> F, step: &Step) -> Result<(), BusError>
where
    F: Future<Output = zbus::Result<Connection>>,
{
    let mut is_first = true;
    loop {
        let connection = {
            let mut bus = bus.lock().await;
            match &*bus {
                Some(connection) => connection.clone(),
                None => bus.insert(Arc::new(connect().await?)).clone(),
            }
        };
        let result = on(&connection, step).await;
        let Some(kind) = result.as_ref().err().and_then(BusError::of_connection) else { return result };
        let mut bus = bus.lock().await;
        // Somebody else may have a new one already.
        bus.take_if(|other| Arc::ptr_eq(other, &connection));
        // What got no answer in time may still be under way.
        if !is_first || kind == io::ErrorKind::TimedOut {
            return result;
        }
        is_first = false;
    }
}

async fn on(bus: &Connection, step: &Step) -> Result<(), BusError> {
    match step {
        Step::Start { unit, properties } => {
            let none: [(&str, &[(&str, Variant<'_>)]); 0] = [];
            match job(bus, "StartTransientUnit", &(unit, "replace", variants(properties), none.as_slice())).await {
                // It is there: what it has is set after this.
                Err(BusError::Call(zbus::Error::MethodError(name, ..))) if name.as_str() == "org.freedesktop.systemd1.UnitExists" => Ok(()),
                other => other,
            }
        }
        Step::Set { unit, properties } => {
            let body = (unit, true, variants(properties));
            Ok(bus.call_method(Some(SERVICE), PATH, Some(MANAGER), "SetUnitProperties", &body).await.map(drop)?)
        }
        Step::Stop { unit } => {
            let stopped = match job(bus, "StopUnit", &(unit, "replace")).await {
                Err(BusError::Call(zbus::Error::MethodError(name, ..))) if name.as_str() == "org.freedesktop.systemd1.NoSuchUnit" => Ok(()),
                other => other,
            };
            // A unit that failed stays until it is reset; the others have gone, and it fails.
            let _ = bus.call_method(Some(SERVICE), PATH, Some(MANAGER), "ResetFailedUnit", &(unit,)).await;
            stopped
        }
        _ => Ok(()),
    }
}

fn variants(properties: &[Property]) -> Vec<(&'static str, Variant<'_>)> {
    properties.iter().map(|property| (property.name, variant(&property.value))).collect()
}

fn variant(value: &Value) -> Variant<'_> {
    match value {
        Value::Flag(flag) => Variant::from(*flag),
        Value::Number(number) => Variant::from(*number),
        Value::Text(text) => Variant::from(text.as_str()),
        Value::List(list) => Variant::from(list.clone()),
        Value::Bytes(bytes) => Variant::from(bytes.clone()),
    }
}

/// Calls a method that begins a job, and waits for the job's end.
async fn job<B>(bus: &Connection, method: &'static str, body: &B) -> Result<(), BusError>
where
    B: serde::Serialize + zbus::zvariant::DynamicType + Sync,
{
    let rule = MatchRule::builder().msg_type(Type::Signal).interface(MANAGER)?.member("JobRemoved")?.path(PATH)?.build();
    let mut ends = MessageStream::for_match_rule(rule, bus, Some(QUEUE)).await?;
    let mut call = pin!(async {
        // Without it systemd sends no signals; a second time is refused, and fine.
        let _ = bus.call_method(Some(SERVICE), PATH, Some(MANAGER), "Subscribe", &()).await;
        let answer = bus.call_method(Some(SERVICE), PATH, Some(MANAGER), method, body).await?;
        Ok::<OwnedObjectPath, BusError>(answer.body().deserialize()?)
    });
    // A full queue blocks the connection, and with it the answer: signals are read meanwhile.
    let mut early = HashMap::new();
    let begun = loop {
        tokio::select! {
            begun = &mut call => break begun?,
            end = next_end(&mut ends) => early.extend([end?]),
        }
    };
    let ended = async {
        if let Some(result) = early.remove(&begun) {
            return Ok(result);
        }
        loop {
            let (job, result) = next_end(&mut ends).await?;
            if job == begun {
                return Ok(result);
            }
        }
    };
    match tokio::time::timeout(PATIENCE, ended).await.unwrap_or(Err(BusError::Late))? {
        done if done == "done" => Ok(()),
        other => Err(BusError::Job(other)),
    }
}

/// The next job that ends, and its result.
async fn next_end(ends: &mut MessageStream) -> Result<(OwnedObjectPath, String), BusError> {
    let signal = ends.next().await.ok_or_else(closed)??;
    let (_, job, _, result): (u32, OwnedObjectPath, String, String) = signal.body().deserialize()?;
    Ok((job, result))
}

#[cfg(test)]
mod tests;
