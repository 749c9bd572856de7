//! systemd over D-Bus: makes, changes and removes slices.

use std::time::Duration;

use futures::StreamExt as _;
use tokio::sync::OnceCell;
use zbus::message::Type;
use zbus::zvariant::{ObjectPath, OwnedObjectPath, Value as Variant};
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

/// The machine's bus: one connection for all.
static BUS: OnceCell<Connection> = OnceCell::const_new();

/// Carries out a step that is systemd's.
pub(super) async fn call(step: &Step) -> Result<(), BusError> {
    let bus = BUS.get_or_try_init(|| async { zbus::connection::Builder::system()?.method_timeout(PATIENCE).build().await }).await?;
    on(bus, step).await
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
    // Without it systemd sends no signals; a second time is refused, and fine.
    let _ = bus.call_method(Some(SERVICE), PATH, Some(MANAGER), "Subscribe", &()).await;
    let answer = bus.call_method(Some(SERVICE), PATH, Some(MANAGER), method, body).await?;
    let begun: OwnedObjectPath = answer.body().deserialize()?;
    let ended = async {
        while let Some(signal) = ends.next().await {
            let signal = signal?;
            let body = signal.body();
            let (_, path, _, result): (u32, ObjectPath<'_>, String, String) = body.deserialize()?;
            if path.as_str() == begun.as_str() {
                return if result == "done" { Ok(()) } else { Err(BusError::Job(result)) };
            }
        }
        Err(BusError::Job("connection closed".to_owned()))
    };
    tokio::time::timeout(PATIENCE, ended).await.unwrap_or(Err(BusError::Late))
}

#[cfg(test)]
mod tests;
