//! Tests of the inhibitor: over a double that notes every call, and over D-Bus with a small logind.

use std::collections::VecDeque;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use host::HostRoot;
use tokio::sync::mpsc;
use zbus::zvariant;

use super::{Announcement, Bus, Logind, LogindError, follow, raise};

const DROP_IN: &str = "etc/systemd/logind.conf.d/99-kubelet.conf";

fn root() -> (tempfile::TempDir, Arc<HostRoot>) {
    let dir = tempfile::tempdir().unwrap();
    let root = HostRoot::linux(dir.path()).unwrap();
    (dir, Arc::new(root))
}

/// Whether the other end of a lock is closed.
fn is_free(lock: &mut UnixStream) -> bool {
    lock.set_nonblocking(true).unwrap();
    matches!(lock.read(&mut [0]), Ok(0))
}

/// Notes every call; delays are answered one after the other, the last again and again.
struct Double {
    calls: Mutex<Vec<&'static str>>,
    delays: Mutex<VecDeque<u64>>,
    signals: Mutex<Option<mpsc::UnboundedReceiver<bool>>>,
    /// Our ends of the locks.
    locks: Mutex<Vec<UnixStream>>,
}

impl Double {
    fn new(delays: &[u64]) -> (Arc<Self>, mpsc::UnboundedSender<bool>) {
        let (sender, signals) = mpsc::unbounded_channel();
        let double = Self {
            calls: Mutex::default(),
            delays: Mutex::new(delays.iter().copied().collect()),
            signals: Mutex::new(Some(signals)),
            locks: Mutex::default(),
        };
        (Arc::new(double), sender)
    }

    fn called(&self, call: &'static str) {
        self.calls.lock().unwrap().push(call);
    }
}

#[async_trait]
impl Logind for Double {
    async fn inhibit_delay(&self) -> Result<Duration, LogindError> {
        self.called("delay");
        let mut delays = self.delays.lock().unwrap();
        let now = if delays.len() > 1 { delays.pop_front() } else { delays.front().copied() };
        Ok(Duration::from_secs(now.unwrap()))
    }

    async fn reload(&self) -> Result<(), LogindError> {
        self.called("reload");
        Ok(())
    }

    async fn inhibit(&self) -> Result<OwnedFd, LogindError> {
        self.called("inhibit");
        let (ours, theirs) = UnixStream::pair().unwrap();
        self.locks.lock().unwrap().push(ours);
        Ok(theirs.into())
    }

    async fn shutdowns(&self) -> Result<BoxStream<'static, bool>, LogindError> {
        self.called("shutdowns");
        let signals = self.signals.lock().unwrap().take().ok_or(LogindError::Closed)?;
        Ok(tokio_stream::wrappers::UnboundedReceiverStream::new(signals).boxed())
    }
}

#[tokio::test]
async fn the_delay_is_raised_only_where_it_is_too_short_and_waited_for() {
    let wanted = Duration::from_secs(30);
    let cases: [(&[u64], &[&str], bool); 3] =
        [(&[45], &["delay"], false), (&[5, 5, 30], &["delay", "reload", "delay", "delay"], true), (&[30], &["delay"], false)];
    for (delays, calls, written) in cases {
        let (dir, root) = root();
        let (double, _) = Double::new(delays);
        raise(&*double, &root, wanted).await.unwrap();
        assert_eq!(*double.calls.lock().unwrap(), calls, "{delays:?}");
        let drop_in = std::fs::read_to_string(dir.path().join(DROP_IN)).ok();
        assert_eq!(drop_in.map(|text| text.ends_with("\n[Login]\nInhibitDelayMaxSec=30\n")), written.then_some(true), "{delays:?}");
    }
}

#[tokio::test]
async fn a_delay_that_stays_too_short_is_named_with_the_way_out() {
    let (_dir, root) = root();
    let (double, _) = Double::new(&[5]);
    let error = raise(&*double, &root, Duration::from_secs(30)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "logind's InhibitDelayMaxSec is 5 s after a reload, and the periods of a shutdown take 30 s; look for another value in /etc/systemd/logind.conf.d"
    );
    assert_eq!(*double.calls.lock().unwrap(), ["delay", "reload", "delay", "delay", "delay", "delay", "delay"]);
}

#[tokio::test]
async fn the_lock_goes_with_the_announcement_and_is_taken_again_after_a_cancellation() {
    let (_dir, root) = root();
    let (double, signals) = Double::new(&[60]);
    let (sender, mut announcements) = mpsc::unbounded_channel();
    let logind: Arc<dyn Logind> = double.clone();
    let task = tokio::spawn(follow(move || std::future::ready(Ok(logind.clone())), root, Duration::from_secs(30), sender));
    signals.send(true).unwrap();
    let Some(Announcement::Begins { name: "shutdown", hold }) = announcements.recv().await else { panic!("no announcement") };
    assert!(!is_free(&mut double.locks.lock().unwrap()[0]), "the pods have not ended");
    drop(hold);
    assert!(is_free(&mut double.locks.lock().unwrap()[0]));
    signals.send(false).unwrap();
    assert!(matches!(announcements.recv().await, Some(Announcement::Cancelled)));
    assert!(!is_free(&mut double.locks.lock().unwrap()[1]));
    assert_eq!(*double.calls.lock().unwrap(), ["delay", "shutdowns", "inhibit", "inhibit"]);
    drop(announcements);
    test_lab::in_time("the end, as nobody listens", task).await.unwrap();
    assert!(is_free(&mut double.locks.lock().unwrap()[1]));
}

/// What the small logind knows.
#[derive(Default)]
struct Known {
    micros: u64,
    locks: Vec<UnixStream>,
    asked: Vec<String>,
}

/// `org.freedesktop.login1.Manager`, as far as a delay inhibitor needs it.
struct LoginManager(Arc<Mutex<Known>>);

#[zbus::interface(name = "org.freedesktop.login1.Manager")]
impl LoginManager {
    fn inhibit(&self, what: &str, who: &str, why: &str, mode: &str) -> zvariant::OwnedFd {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut known = self.0.lock().unwrap();
        known.asked.push(format!("{what} {who} {mode}: {why}"));
        known.locks.push(ours);
        OwnedFd::from(theirs).into()
    }

    #[zbus(property(emits_changed_signal = "const"), name = "InhibitDelayMaxUSec")]
    fn inhibit_delay_max(&self) -> u64 {
        self.0.lock().unwrap().micros
    }

    #[zbus(signal)]
    async fn prepare_for_shutdown(emitter: &zbus::object_server::SignalEmitter<'_>, start: bool) -> zbus::Result<()>;
}

/// `org.freedesktop.systemd1.Manager`: a SIGHUP makes logind read its drop-in files.
struct Systemd(Arc<Mutex<Known>>, PathBuf);

#[zbus::interface(name = "org.freedesktop.systemd1.Manager")]
impl Systemd {
    fn kill_unit(&self, name: &str, whom: &str, signal: i32) {
        let text = std::fs::read_to_string(self.1.join(DROP_IN)).unwrap_or_default();
        let seconds = text.lines().find_map(|line| line.strip_prefix("InhibitDelayMaxSec=")?.parse::<u64>().ok());
        let mut known = self.0.lock().unwrap();
        known.asked.push(format!("kill {name} {whom} {signal}"));
        if let Some(seconds) = seconds {
            known.micros = seconds * 1_000_000;
        }
    }
}

#[tokio::test]
async fn logind_is_spoken_to_over_d_bus() {
    let (dir, root) = root();
    let known = Arc::new(Mutex::new(Known { micros: 5_000_000, ..Known::default() }));
    let (ours, theirs) = tokio::net::UnixStream::pair().unwrap();
    let server = zbus::connection::Builder::unix_stream(theirs)
        .server(zbus::Guid::generate())
        .unwrap()
        .p2p()
        .serve_at("/org/freedesktop/login1", LoginManager(known.clone()))
        .unwrap()
        .serve_at("/org/freedesktop/systemd1", Systemd(known.clone(), dir.path().into()))
        .unwrap();
    let client = zbus::connection::Builder::unix_stream(ours).p2p();
    let (server, client) = tokio::join!(server.build(), client.build());
    let (server, client) = (server.unwrap(), client.unwrap());
    let logind: Arc<dyn Logind> = Arc::new(Bus::new(client));
    let (sender, mut announcements) = mpsc::unbounded_channel();
    tokio::spawn(follow(move || std::future::ready(Ok(logind.clone())), root, Duration::from_secs(30), sender));
    test_lab::until_async("a lock", async || if known.lock().unwrap().locks.is_empty() { Err("none".to_owned()) } else { Ok(()) }).await;
    {
        let known = known.lock().unwrap();
        assert_eq!(known.asked, ["kill systemd-logind.service all 1", "shutdown kubelet delay: Kubelet needs time to handle node shutdown"]);
        assert_eq!(known.micros, 30_000_000);
    }
    let manager = server.object_server().interface::<_, LoginManager>("/org/freedesktop/login1").await.unwrap();
    LoginManager::prepare_for_shutdown(manager.signal_emitter(), true).await.unwrap();
    let Some(Announcement::Begins { hold, .. }) = announcements.recv().await else { panic!("no announcement") };
    assert!(!is_free(&mut known.lock().unwrap().locks[0]), "the machine waits");
    drop(hold);
    assert!(is_free(&mut known.lock().unwrap().locks[0]), "and goes down");
    LoginManager::prepare_for_shutdown(manager.signal_emitter(), false).await.unwrap();
    assert!(matches!(announcements.recv().await, Some(Announcement::Cancelled)));
    assert_eq!(known.lock().unwrap().locks.len(), 2);
}
