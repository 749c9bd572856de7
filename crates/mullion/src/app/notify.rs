//! Tells systemd how far the process is (sd_notify(3)): ready, alive, ending. Without systemd it does nothing.

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

/// How long a start may go on after each message that says so.
const EXTENSION: Duration = Duration::from_secs(30);
/// How often that is said, and how often health is looked at before the process is ready.
const EXTEND_EVERY: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long an answer about health may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The manager that has started this process.
#[derive(Clone, Debug, Default)]
pub struct Supervisor {
    #[cfg(target_os = "linux")]
    socket: Option<std::os::unix::net::SocketAddr>,
    /// How long it may go without a sign of life.
    watchdog: Option<Duration>,
}

impl Supervisor {
    /// The one that the environment names.
    pub fn from_env() -> Self {
        let variable = |name: &str| std::env::var(name).ok();
        let is_ours = variable("WATCHDOG_PID").is_none_or(|pid| pid == std::process::id().to_string());
        Self::new(variable("NOTIFY_SOCKET").as_deref(), variable("WATCHDOG_USEC").filter(|_| is_ours).as_deref())
    }

    fn new(socket: Option<&str>, watchdog: Option<&str>) -> Self {
        let watchdog = watchdog.and_then(|text| text.parse().ok()).filter(|micros| *micros > 0).map(Duration::from_micros);
        #[cfg(target_os = "linux")]
        {
            use std::os::linux::net::SocketAddrExt as _;
            use std::os::unix::net::SocketAddr;
            // Other forms, such as those of virtual machines, are not for processes of this machine.
            let socket = socket.and_then(|name| match name.strip_prefix('@') {
                Some(name) => SocketAddr::from_abstract_name(name).ok(),
                None if name.starts_with('/') => SocketAddr::from_pathname(name).ok(),
                None => None,
            });
            Self { socket, watchdog }
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = socket;
            Self { watchdog }
        }
    }

    #[cfg(target_os = "linux")]
    fn tell(&self, message: &str) {
        let Some(socket) = &self.socket else { return };
        let sent = std::os::unix::net::UnixDatagram::unbound().and_then(|sender| {
            // A manager that does not listen must not hold the agent up.
            sender.set_nonblocking(true)?;
            sender.send_to_addr(message.as_bytes(), socket)
        });
        if let Err(error) = sent {
            tracing::warn!(%error, message, "systemd was not told");
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn tell(&self, _message: &str) {}

    /// Does work that belongs to the start and may take longer than starts do: systemd waits while the event loop goes on.
    pub async fn starting<T>(&self, status: &str, work: impl Future<Output = T>) -> T {
        let extend = async {
            loop {
                self.tell(&format!("EXTEND_TIMEOUT_USEC={}\nSTATUS={status}", EXTENSION.as_micros()));
                tokio::time::sleep(EXTEND_EVERY).await;
            }
        };
        tokio::select! {
            done = work => done,
            never = extend => match never {},
        }
    }

    /// Says that the process is ready once `health` answers, `http://HOST:PORT/healthz`, and from then on that it lives while it does. Without
    /// a port for health it is enough that the event loop goes on.
    pub async fn keep(self, health: Option<String>) -> Infallible {
        let is_well = async || match &health {
            None => true,
            Some(url) => matches!(tokio::time::timeout(PATIENCE, join::health::ask(url)).await, Ok(Ok(()))),
        };
        let answers = async {
            while !is_well().await {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        self.starting("starting", answers).await;
        self.tell("READY=1\nSTATUS=running");
        let Some(watchdog) = self.watchdog else { return std::future::pending().await };
        loop {
            if is_well().await {
                self.tell("WATCHDOG=1");
            } else {
                tracing::warn!("the health check fails: systemd is not told that the agent lives");
            }
            tokio::time::sleep(watchdog / 3).await;
        }
    }

    /// Says that the process ends because it was asked to.
    pub fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=ending");
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    struct Manager {
        socket: UnixDatagram,
        dir: tempfile::TempDir,
    }

    impl Manager {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let socket = UnixDatagram::bind(dir.path().join("notify")).unwrap();
            socket.set_nonblocking(true).unwrap();
            Self { socket, dir }
        }

        fn supervisor(&self, watchdog: Option<&str>) -> Supervisor {
            Supervisor::new(self.dir.path().join("notify").to_str(), watchdog)
        }

        /// What it was told since it was asked last.
        fn told(&self) -> Vec<String> {
            let mut buffer = [0; 256];
            let next = || self.socket.recv(&mut buffer).ok().map(|length| String::from_utf8_lossy(&buffer[..length]).into_owned());
            std::iter::from_fn(next).collect()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_start_is_extended_and_life_is_shown_within_the_limit() {
        let manager = Manager::new();
        let supervisor = manager.supervisor(Some("60000000"));
        supervisor.starting("waiting", tokio::time::sleep(Duration::from_secs(25))).await;
        assert_eq!(manager.told(), ["EXTEND_TIMEOUT_USEC=30000000\nSTATUS=waiting"; 3]);
        let kept = tokio::spawn(supervisor.clone().keep(None));
        tokio::time::sleep(Duration::from_secs(50)).await;
        let told = manager.told();
        let place = told.iter().position(|message| message.starts_with("READY=1\n")).unwrap();
        assert_eq!(told[place + 1..], ["WATCHDOG=1"; 3], "{told:?}");
        supervisor.stopping();
        assert_eq!(manager.told(), ["STOPPING=1\nSTATUS=ending"]);
        kept.abort();
    }

    /// The health port is the agent's: what fails there is not told to be alive.
    #[tokio::test]
    async fn an_agent_is_ready_and_alive_as_far_as_its_health_check_says() {
        let manager = Manager::new();
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}/healthz", listener.local_addr().unwrap());
        let kept = tokio::spawn(manager.supervisor(Some("30000")).keep(Some(url)));
        let mut heard = Vec::new();
        for status in ["500", "200", "500", "500", "200"] {
            let (mut stream, _) = listener.accept().await.unwrap();
            heard.push(manager.told().iter().filter(|message| message.starts_with("READY") || message.starts_with("WATCHDOG")).count());
            assert_ne!(stream.read(&mut [0; 512]).await.unwrap(), 0, "a request");
            stream.write_all(format!("HTTP/1.1 {status} x\r\n\r\n").as_bytes()).await.unwrap();
        }
        // Ready after the first good answer; nothing after the bad ones.
        assert_eq!(heard, [0, 0, 1, 0, 0]);
        kept.abort();
    }

    #[test]
    fn without_a_manager_nothing_is_told() {
        for name in [None, Some(""), Some("vsock:2:1"), Some("relative")] {
            let supervisor = Supervisor::new(name, Some("0"));
            supervisor.tell("READY=1");
            assert!(supervisor.socket.is_none() && supervisor.watchdog.is_none(), "{name:?}");
        }
        assert!(Supervisor::new(Some("@abstract"), None).socket.is_some());
    }
}
