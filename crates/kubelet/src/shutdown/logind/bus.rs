//! logind and systemd over D-Bus.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use serde::Serialize;
use zbus::message::{Message, Type};
use zbus::zvariant::{self, DynamicType, OwnedValue};
use zbus::{Connection, MatchRule, MessageStream};

use super::{Logind, LogindError};

const LOGIN: Object = Object { service: "org.freedesktop.login1", path: "/org/freedesktop/login1", interface: "org.freedesktop.login1.Manager" };
const SYSTEMD: Object =
    Object { service: "org.freedesktop.systemd1", path: "/org/freedesktop/systemd1", interface: "org.freedesktop.systemd1.Manager" };
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
const SIGNAL: &str = "PrepareForShutdown";
const SIGHUP: i32 = 1;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(25);
/// Announcements that wait to be read.
const QUEUE: usize = 16;

struct Object {
    service: &'static str,
    path: &'static str,
    interface: &'static str,
}

/// A connection to the bus on which logind and systemd are.
pub struct Bus(Connection);

impl Bus {
    /// The machine's bus.
    ///
    /// # Errors
    /// [`LogindError::Connect`].
    pub async fn system() -> Result<Arc<dyn Logind>, LogindError> {
        let builder = zbus::connection::Builder::system().map_err(LogindError::Connect)?.method_timeout(PATIENCE);
        Ok(Arc::new(Self::new(builder.build().await.map_err(LogindError::Connect)?)))
    }

    pub fn new(connection: Connection) -> Self {
        Self(connection)
    }

    async fn call<B>(&self, object: &Object, interface: &str, method: &'static str, body: &B) -> zbus::Result<Message>
    where
        B: Serialize + DynamicType + Sync,
    {
        self.0.call_method(Some(object.service), object.path, Some(interface), method, body).await
    }
}

fn failed(operation: &'static str) -> impl Fn(zbus::Error) -> LogindError {
    move |source| LogindError::Call { operation, source }
}

#[async_trait]
impl Logind for Bus {
    async fn inhibit_delay(&self) -> Result<Duration, LogindError> {
        let failed = failed("read InhibitDelayMaxUSec of logind");
        let answer = self.call(&LOGIN, PROPERTIES, "Get", &(LOGIN.interface, "InhibitDelayMaxUSec")).await.map_err(&failed)?;
        let value: OwnedValue = answer.body().deserialize().map_err(&failed)?;
        let micros = u64::try_from(value).map_err(|error: zvariant::Error| failed(error.into()))?;
        Ok(Duration::from_micros(micros))
    }

    async fn reload(&self) -> Result<(), LogindError> {
        let body = ("systemd-logind.service", "all", SIGHUP);
        let answer = self.call(&SYSTEMD, SYSTEMD.interface, "KillUnit", &body).await;
        answer.map(drop).map_err(failed("have logind read its configuration again"))
    }

    async fn inhibit(&self) -> Result<OwnedFd, LogindError> {
        let failed = failed("take a lock that delays a shutdown");
        let body = ("shutdown", "kubelet", "Kubelet needs time to handle node shutdown", "delay");
        let answer = self.call(&LOGIN, LOGIN.interface, "Inhibit", &body).await.map_err(&failed)?;
        let lock: zvariant::OwnedFd = answer.body().deserialize().map_err(&failed)?;
        Ok(lock.into())
    }

    async fn shutdowns(&self) -> Result<BoxStream<'static, bool>, LogindError> {
        let failed = failed("listen to PrepareForShutdown of logind");
        let rule = || -> zbus::Result<MatchRule<'static>> {
            Ok(MatchRule::builder().msg_type(Type::Signal).interface(LOGIN.interface)?.member(SIGNAL)?.path(LOGIN.path)?.build())
        };
        let rule = rule().map_err(&failed)?;
        let signals = MessageStream::for_match_rule(rule, &self.0, Some(QUEUE)).await.map_err(&failed)?;
        let begins = |signal: zbus::Result<Message>| async move {
            let body = signal.and_then(|signal| signal.body().deserialize::<bool>());
            body.inspect_err(|error| tracing::warn!(%error, "a PrepareForShutdown of logind cannot be read")).ok()
        };
        Ok(signals.filter_map(begins).boxed())
    }
}
