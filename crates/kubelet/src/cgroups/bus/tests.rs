//! Over D-Bus with a small systemd.

use std::sync::{Arc, Mutex};

use zbus::object_server::SignalEmitter;
use zbus::zvariant::OwnedValue;

use super::super::names::Name;
use super::super::systemd;
use super::*;

/// Notes calls, and ends each job with the answer it is told.
struct Systemd {
    calls: Arc<Mutex<Vec<String>>>,
    answer: &'static str,
}

type Aux = Vec<(String, Vec<(String, OwnedValue)>)>;

fn named(properties: &[(String, OwnedValue)]) -> String {
    properties.iter().map(|(name, value)| format!("{name}:{}", value.value_signature())).collect::<Vec<_>>().join(" ")
}

#[zbus::interface(name = "org.freedesktop.systemd1.Manager")]
impl Systemd {
    fn subscribe(&self) {}

    async fn start_transient_unit(
        &self,
        unit: &str,
        mode: &str,
        properties: Vec<(String, OwnedValue)>,
        aux: Aux,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
    ) -> zbus::fdo::Result<OwnedObjectPath> {
        self.calls.lock().unwrap().push(format!("start {unit} {mode} {} {}", named(&properties), aux.len()));
        Self::end(&emitter, unit, self.answer).await
    }

    async fn stop_unit(&self, unit: &str, mode: &str, #[zbus(signal_emitter)] emitter: SignalEmitter<'_>) -> zbus::fdo::Result<OwnedObjectPath> {
        self.calls.lock().unwrap().push(format!("stop {unit} {mode}"));
        Self::end(&emitter, unit, self.answer).await
    }

    fn set_unit_properties(&self, unit: &str, runtime: bool, properties: Vec<(String, OwnedValue)>) {
        self.calls.lock().unwrap().push(format!("set {unit} {runtime} {}", named(&properties)));
    }

    fn reset_failed_unit(&self, unit: &str) {
        self.calls.lock().unwrap().push(format!("reset {unit}"));
    }

    #[zbus(signal)]
    async fn job_removed(emitter: &SignalEmitter<'_>, id: u32, job: ObjectPath<'_>, unit: &str, result: &str) -> zbus::Result<()>;
}

impl Systemd {
    async fn end(emitter: &SignalEmitter<'_>, unit: &str, result: &str) -> zbus::fdo::Result<OwnedObjectPath> {
        let path = |id: u32| ObjectPath::try_from(format!("/org/freedesktop/systemd1/job/{id}")).unwrap();
        // Another job, then ours.
        Self::job_removed(emitter, 1, path(1), "other.slice", "failed").await?;
        Self::job_removed(emitter, 2, path(2), unit, result).await?;
        Ok(path(2).into())
    }
}

async fn bus(answer: &'static str) -> (Connection, Connection, Arc<Mutex<Vec<String>>>) {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let (ours, theirs) = tokio::net::UnixStream::pair().unwrap();
    let server = zbus::connection::Builder::unix_stream(theirs).server(zbus::Guid::generate()).unwrap().p2p();
    let server = server.serve_at(PATH, Systemd { calls: calls.clone(), answer }).unwrap();
    let client = zbus::connection::Builder::unix_stream(ours).p2p();
    let (server, client) = tokio::join!(server.build(), client.build());
    (server.unwrap(), client.unwrap(), calls)
}

#[tokio::test]
async fn slices_are_made_changed_and_removed() {
    let (_server, client, calls) = bus("done").await;
    let name = Name::parse("/kubepods/poda");
    let unit = name.unit();
    let mut limits = super::super::limits::Limits { shares: Some(2), cpus: Some("0".into()), ..Default::default() };
    let set = systemd::limits(&mut limits, true);
    for step in [
        Step::Start { unit: unit.clone(), properties: systemd::start(&name, true) },
        Step::Set { unit: unit.clone(), properties: set },
        Step::Stop { unit },
    ] {
        on(&client, &step).await.unwrap();
    }
    assert_eq!(
        *calls.lock().unwrap(),
        [
            "start kubepods-poda.slice replace Description:s Wants:as MemoryAccounting:b CPUAccounting:b IOAccounting:b TasksAccounting:b \
             DefaultDependencies:b 0",
            "set kubepods-poda.slice true CPUWeight:t AllowedCPUs:ay",
            "stop kubepods-poda.slice replace",
            "reset kubepods-poda.slice",
        ]
    );
}

#[tokio::test]
async fn a_job_that_fails_is_named() {
    let (_server, client, _) = bus("failed").await;
    let error = on(&client, &Step::Start { unit: "a.slice".into(), properties: vec![] }).await.unwrap_err();
    assert_eq!(error.to_string(), "systemd answered \"failed\"");
}
