//! Messages between supervisor and init, and the document of `status`: JSON, one value per message.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::lan::Host;

/// Everything that init needs, sent to it first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InitConfig {
    /// RUN; `RUN/ns` is mounted by then.
    pub run: PathBuf,
    /// DIR, with the directories of hosts.
    pub dir: PathBuf,
    /// Hosts on the LAN.
    pub hosts: Vec<Host>,
    /// Hosts with a second adapter, without an address, on a network of its own.
    #[serde(default)]
    pub two_adapters: Vec<String>,
    /// The router's address.
    pub gateway: Ipv4Addr,
    /// Prefix length of the LAN.
    pub prefix: u8,
    /// Further networks and the hosts that know the way there, for the router.
    pub routes: Vec<(IpNet, IpAddr)>,
    /// Whether hosts have IPv6 too, [`crate::lan::ipv6`].
    #[serde(default)]
    pub ipv6: bool,
    /// Whether the router is to translate what leaves by [`crate::outside::LINK`].
    pub outside: bool,
    /// Whether a thread of init's stays in the router's namespace, for a pasta that may not look at init's descriptors.
    #[serde(default)]
    pub router_thread: bool,
    /// What runs.
    pub processes: Vec<ProcessSpec>,
    /// Names of the descriptors that come with this message, in order.
    pub fds: Vec<String>,
}

/// A supervised process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessSpec {
    /// Its name in status and logs: `win01/hns-sim`.
    pub name: String,
    /// The host whose network namespace it runs in.
    pub host: String,
    /// Program and arguments; `/proc/self/exe` is this program.
    pub argv: Vec<String>,
    /// Environment beside PATH, HOME and MULLION_LOG of the supervisor.
    pub env: Vec<(String, String)>,
    /// Descriptors of the lab ([`InitConfig::fds`]) by name, and the number that each gets.
    pub fds: Vec<(String, i32)>,
    /// Where its output goes, appended.
    pub log: PathBuf,
    /// When it counts as ready.
    pub readiness: Readiness,
    /// It starts once these are ready (the first time only).
    pub after: Vec<String>,
    pub restart: Backoff,
    /// How long an orderly stop waits for its end after SIGPWR, before the other processes get SIGTERM, in milliseconds; 0 for no such signal.
    #[serde(default)]
    pub power_ms: u64,
}

impl ProcessSpec {
    /// A process that is ready once started, with the usual restarts.
    pub fn new(name: impl Into<String>, host: impl Into<String>, argv: impl IntoIterator<Item = impl Into<String>>, log: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            host: host.into(),
            argv: argv.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            fds: Vec::new(),
            log: log.into(),
            readiness: Readiness::Started,
            after: Vec::new(),
            restart: Backoff::default(),
            power_ms: 0,
        }
    }
}

/// When a process counts as ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Readiness {
    /// Once started.
    Started,
    /// Once this unix socket accepts connections.
    Socket(PathBuf),
    /// Once it says so ([`crate::notify::ready`]).
    Notify,
}

/// How long to wait before a process is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backoff {
    /// After the first exit, in milliseconds; doubled each time.
    pub first_ms: u64,
    /// At most, in milliseconds.
    pub most_ms: u64,
    /// A process that ran for so long begins anew with the first, in milliseconds.
    pub steady_ms: u64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first_ms: 100, most_ms: 10_000, steady_ms: 10_000 }
    }
}

/// An event of init.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// Namespaces and LAN are there.
    NetworkReady {
        /// How long it took, in microseconds.
        micros: u64,
        /// The router's network namespace, by the number of a descriptor of init's.
        router_fd: i32,
    },
    /// nf_tables cannot be used in the lab.
    NoNftables {
        /// The kernel's reason.
        reason: String,
    },
    /// The lab cannot be set up.
    Failed {
        /// What and why, in one line.
        reason: String,
    },
    /// A process runs.
    Started {
        name: String,
        /// Its number inside the lab.
        pid: u32,
    },
    /// A process is ready.
    Ready {
        name: String,
        /// Its report of readiness, if it has a text.
        detail: String,
    },
    /// A process has ended, or could not be started.
    Exited {
        name: String,
        status: String,
        /// When it is started again, in milliseconds.
        restart_ms: u64,
    },
    /// `mullion down` (or Ctrl-C's sender) wants the lab to stop. From the supervisor's own socket.
    DownRequested,
    /// Init is gone, and everything with it. From the supervisor.
    Ended { status: String },
}

/// What the supervisor asks of init.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Command {
    /// End the processes in order, then everything.
    Stop,
}

/// What the control socket is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// One [`Status`] line is answered.
    Status,
    /// The connection closes when the lab is gone.
    Down,
}

/// A process in [`Status`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessStatus {
    pub name: String,
    pub host: String,
    /// Its number inside the lab while it runs.
    pub pid: Option<u32>,
    pub ready: bool,
    /// How often it was started again.
    pub restarts: u32,
    /// How it ended last.
    pub last_exit: Option<String>,
    pub log: PathBuf,
}

/// What runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The supervisor's process on the real host.
    pub supervisor: u32,
    /// The lab's init on the real host, to enter the lab by.
    pub init: u32,
    /// DIR.
    pub dir: PathBuf,
    /// Processes in the order of their specification.
    pub processes: Vec<ProcessStatus>,
    /// Ports of the real host.
    pub ports: Vec<PortStatus>,
    /// What the caller adds (the API server's address, nodes).
    pub extra: serde_json::Map<String, serde_json::Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Transport {
    Tcp,
    Udp,
}

/// A port of the real host, at 127.0.0.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HostPort {
    pub protocol: Transport,
    pub port: u16,
}

impl std::fmt::Display for HostPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.port, if self.protocol == Transport::Tcp { "TCP" } else { "UDP" })
    }
}

/// Whether a port of the real host could be had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortStatus {
    #[serde(flatten)]
    pub port: HostPort,
    /// Why not, if not.
    pub error: Option<String>,
}
