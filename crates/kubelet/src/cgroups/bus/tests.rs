//! Over D-Bus with a small systemd.

use std::sync::{Arc, Mutex};

use zbus::Message;
use zbus::names::OwnedErrorName;
use zbus::object_server::SignalEmitter;
use zbus::zvariant::{ObjectPath, OwnedValue};

use super::super::names::Name;
use super::super::systemd;
use super::*;

/// Notes calls, and ends each job with the answer it is told.
struct Systemd {
    calls: Arc<Mutex<Vec<String>>>,
    answer: &'static str,
    /// Jobs of others that end before it answers.
    others: u32,
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
        for id in 10..10 + self.others {
            let job = ObjectPath::try_from(format!("/org/freedesktop/systemd1/job/{id}")).unwrap();
            Self::job_removed(&emitter, id, job, "other.slice", "done").await?;
        }
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
    let calls = Arc::default();
    let (server, client) = connect(Systemd { calls: Arc::clone(&calls), answer, others: 0 }).await;
    (server, client, calls)
}

async fn connect(systemd: Systemd) -> (Connection, Connection) {
    let (ours, theirs) = tokio::net::UnixStream::pair().unwrap();
    let server = zbus::connection::Builder::unix_stream(theirs).server(zbus::Guid::generate()).unwrap().p2p();
    let server = server.serve_at(PATH, systemd).unwrap();
    let client = zbus::connection::Builder::unix_stream(ours).p2p();
    let (server, client) = tokio::join!(server.build(), client.build());
    (server.unwrap(), client.unwrap())
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

#[tokio::test]
async fn many_jobs_of_others_do_not_hold_up_the_answer() {
    let (_server, client) = connect(Systemd { calls: Arc::default(), answer: "done", others: 3 * u32::try_from(QUEUE).unwrap() }).await;
    let step = Step::Start { unit: "a.slice".into(), properties: vec![] };
    tokio::time::timeout(Duration::from_secs(20), on(&client, &step)).await.expect("no answer").unwrap();
}

#[tokio::test]
async fn a_lost_connection_is_made_again() {
    let calls = Arc::<Mutex<Vec<String>>>::default();
    let servers = tokio::sync::Mutex::new(Vec::new());
    let connect = || async {
        let (server, client) = connect(Systemd { calls: calls.clone(), answer: "done", others: 0 }).await;
        servers.lock().await.push(server);
        Ok(client)
    };
    let bus = Bus::default();
    let steps = [
        Step::Start { unit: "a.slice".into(), properties: vec![] },
        Step::Set { unit: "a.slice".into(), properties: vec![] },
        Step::Stop { unit: "a.slice".into() },
    ];
    for (number, step) in steps.iter().enumerate() {
        tokio::time::timeout(Duration::from_secs(20), through(&bus, &connect, step)).await.expect("no answer").unwrap();
        let server = servers.lock().await.pop();
        server.unwrap_or_else(|| panic!("step {number} made no connection")).close().await.unwrap();
    }
    assert_eq!(*calls.lock().unwrap(), ["start a.slice replace  0", "set a.slice true ", "stop a.slice replace", "reset a.slice"]);
    // One that cannot be made again is an error, not an endless loop.
    let refused = || async { Err(zbus::Error::from(io::Error::from(io::ErrorKind::ConnectionRefused))) };
    assert_eq!(through(&bus, refused, &steps[0]).await.unwrap_err().of_connection(), Some(io::ErrorKind::ConnectionRefused));
}

#[test]
fn answers_that_mean_denied() {
    for (name, denied) in [
        ("org.freedesktop.DBus.Error.AccessDenied", true),
        ("org.freedesktop.DBus.Error.InteractiveAuthorizationRequired", true),
        ("org.freedesktop.systemd1.NoSuchUnit", false),
    ] {
        let message = Message::method_call("/", "Call").unwrap().build(&()).unwrap();
        let source = BusError::Call(zbus::Error::MethodError(OwnedErrorName::try_from(name).unwrap(), None, message));
        let error = super::super::GroupError::Bus { step: "start a.slice".into(), source: Box::new(source) };
        assert_eq!(error.is_denied(), denied, "{name}");
    }
}
