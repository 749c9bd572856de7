//! The servers that are measured: `mullion control-plane` alone, and upstream's API server with its etcd.
//!
//! Each is a process of a file of its own, so that no other process shares its pages, with a directory of its own, over the loopback of a
//! network namespace.

use std::fs::File;
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use ipnet::IpNet;
use linux_sys::netlink::Rtnl;
use pki::service_account::SigningKey;
use pki::{Ca, CertRequest};
use rustix::io::{FdFlags, fcntl_setfd};

use super::load::Access;
use crate::process::Running;

/// The control plane's address on the LAN of a cluster.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 240, 0, 2);
const PORT: u16 = 6443;
const UPSTREAM_PORT: u16 = 7443;
const ETCD: &str = "http://127.0.0.1:2379";
const SERVICES: &str = "10.96.0.0/12";
/// How long a server may take before its start counts as failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Gives the namespace's loopback the addresses that the servers use.
pub fn add_addresses() -> Result<()> {
    let rtnl = Rtnl::open()?;
    rtnl.add_addr(1, IpNet::new(IpAddr::V4(ADDRESS), 24)?)?;
    rtnl.set_up(1)?;
    Ok(())
}

/// The servers' directory, with their keys.
pub struct Site {
    directory: tempfile::TempDir,
    ca: Ca,
}

/// How long a server took from its start.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// Until `/readyz` was answered with 200 over TLS.
    pub answered: Duration,
    /// Until it said that it is ready; upstream's says nothing.
    pub notified: Duration,
}

impl Start {
    /// Both.
    pub fn ready(self) -> Duration {
        self.answered.max(self.notified)
    }
}

/// A server that runs.
pub struct Server {
    /// The server, and its store where that is another process.
    processes: Vec<(Running, PathBuf)>,
    at: SocketAddr,
    pub start: Start,
}

impl Server {
    /// Asks its processes to end, and waits for that.
    pub fn end(self) -> Result<()> {
        for (mut process, file) in self.processes {
            process.interrupt()?;
            let status = process.0.wait()?;
            ensure!(status.success(), "{} ended with {status}", file.display());
        }
        Ok(())
    }

    /// Where it answers.
    pub fn url(&self) -> String {
        format!("https://{}", self.at)
    }

    /// Its processes' time on processors so far.
    pub fn cpu(&self) -> Result<Duration> {
        self.processes.iter().map(|(process, _)| process.cpu()).sum()
    }

    /// What its processes hold, in bytes, and how much of it is pages of their program files.
    pub fn memory(&self) -> Result<(u64, u64)> {
        let (mut all, mut program) = (0, 0);
        for (process, file) in &self.processes {
            let memory = process.memory(file)?;
            all += memory.all;
            program += memory.program;
        }
        Ok((all, program))
    }
}

impl Site {
    /// A directory below `parent`, with keys.
    pub fn new(parent: &Path) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("mullion-bench-").tempdir_in(parent)?;
        let ca = Ca::generate("bench", Duration::from_secs(86_400))?;
        let site = Self { directory, ca };
        let pki = site.path("pki");
        for made in [&pki, &site.path("hosts")] {
            std::fs::create_dir(made)?;
        }
        pki::write_public(&pki.join("ca.crt"), site.ca.cert_pem())?;
        pki::write_private(&pki.join("ca.key"), &site.ca.key_pem())?;
        pki::write_private(&pki.join("sa.key"), SigningKey::generate()?.pem())?;
        let request = CertRequest { days: 1, ..CertRequest::default() };
        let ips = vec![IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V4(ADDRESS)];
        let serving = CertRequest { cn: "kube-apiserver".into(), ips, server: true, ..request.clone() };
        let kubelets = CertRequest { cn: "kube-apiserver-kubelet-client".into(), client: true, ..request };
        for (name, request) in [("apiserver", serving), ("apiserver-kubelet-client", kubelets)] {
            let pair = site.ca.issue(&request)?;
            pki::write_public(&pki.join(format!("{name}.crt")), &pair.cert_pem)?;
            pki::write_private(&pki.join(format!("{name}.key")), &pair.key_pem)?;
        }
        Ok(site)
    }

    /// A path in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The authority of all certificates.
    pub fn ca(&self) -> &Ca {
        &self.ca
    }

    /// Access of `user` in `group`.
    pub fn access(&self, server: &Server, user: &str, group: &str) -> Result<Access> {
        Access::new(&self.ca, server.at, user, group)
    }

    /// The administrator's.
    pub fn admin(&self, server: &Server) -> Result<Access> {
        self.access(server, "bench", "system:masters")
    }

    /// A copy of a program, which no other process maps.
    pub fn copy(&self, program: &Path, name: &str) -> Result<PathBuf> {
        let to = self.path(name);
        if !to.exists() {
            std::fs::copy(program, &to).with_context(|| format!("copying {} failed", program.display()))?;
            std::fs::set_permissions(&to, std::fs::Permissions::from_mode(0o755))?;
            // As an installed program's, its pages are on the disk: the kernel could not let go of others.
            File::open(&to)?.sync_all()?;
        }
        Ok(to)
    }

    /// Runs a program, which says what it has to say in `NAME.log`.
    pub fn spawn(&self, program: &Path, name: &str, arguments: &[String], notify: Option<i32>) -> Result<Running> {
        let log = File::options().create(true).append(true).open(self.path(&format!("{name}.log")))?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).env_remove("MULLION_LOG");
        if let Some(number) = notify {
            command.env(lab::notify::VARIABLE, number.to_string());
        }
        command.spawn().map(Running).with_context(|| format!("starting {} failed", program.display()))
    }

    /// The last lines that a program said.
    pub fn log(&self, name: &str) -> String {
        let text = std::fs::read_to_string(self.path(&format!("{name}.log"))).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }

    fn own_arguments(&self, listener: i32) -> Vec<String> {
        let path = |name: &str| self.path(name).display().to_string();
        let options = [
            ("pki-dir", path("pki")),
            ("store-dir", path("store")),
            ("hosts-dir", path("hosts")),
            ("ports-socket", path("ports.sock")),
            ("listen-fd", listener.to_string()),
            ("address", ADDRESS.to_string()),
            ("port", PORT.to_string()),
            ("cluster-cidr", "192.168.0.0/16".to_owned()),
            ("node-mask", "24".to_owned()),
            ("service-cidr", SERVICES.to_owned()),
            ("dns-ip", "10.96.0.10".to_owned()),
            ("service-node-port-range", "30000-32767".to_owned()),
        ];
        std::iter::once("control-plane".to_owned()).chain(options.iter().map(|(name, value)| format!("--{name}={value}"))).collect()
    }

    /// Starts ours on the store of the directory.
    pub async fn start(&self, mullion: &Path) -> Result<Server> {
        self.run(self.copy(mullion, "mullion")?, &[]).await
    }

    /// Starts ours as the last argument of another program.
    pub async fn start_below(&self, program: &Path, arguments: &[String], mullion: &Path) -> Result<Server> {
        let arguments: Vec<String> = arguments.iter().cloned().chain([mullion.display().to_string()]).collect();
        self.run(program.to_owned(), &arguments).await
    }

    /// Runs a program with the control plane's arguments behind its own. The listener is there before the process, as in a cluster: the first
    /// request waits in it.
    async fn run(&self, program: PathBuf, own: &[String]) -> Result<Server> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let at = listener.local_addr()?;
        let (mut said, say) = std::io::pipe()?;
        for descriptor in [listener.as_raw_fd(), say.as_raw_fd()] {
            ensure!(descriptor > 2, "descriptor {descriptor} is a standard one");
        }
        fcntl_setfd(&listener, FdFlags::empty())?;
        fcntl_setfd(&say, FdFlags::empty())?;
        let arguments = [own, &self.own_arguments(listener.as_raw_fd())].concat();
        let access = Access::new(&self.ca, at, "bench", "system:masters")?;
        let begun = Instant::now();
        let process = self.spawn(&program, "control-plane", &arguments, Some(say.as_raw_fd()))?;
        drop((listener, say));
        let notified = tokio::task::spawn_blocking(move || {
            let mut text = String::new();
            said.read_to_string(&mut text).map(|_| (begun.elapsed(), text))
        });
        let answer = async {
            let mut connection = access.connect().await?;
            connection.get("/readyz").await?;
            anyhow::Ok(begun.elapsed())
        };
        let answered = tokio::time::timeout(PATIENCE, answer).await;
        let answered =
            answered.ok().and_then(Result::ok).with_context(|| format!("the control plane does not answer:\n{}", self.log("control-plane")))?;
        let (notified, text) = notified.await??;
        ensure!(!text.is_empty(), "the control plane ended:\n{}", self.log("control-plane"));
        Ok(Server { processes: vec![(process, program)], at, start: Start { answered, notified } })
    }

    /// Starts upstream's API server over an etcd of its own.
    pub async fn start_upstream(&self, server: &Path, etcd: &Path) -> Result<Server> {
        let option = |name: &str, value: &str| format!("--{name}={value}");
        let path = |name: &str| self.path(name).display().to_string();
        let etcd_arguments = [
            option("data-dir", &path("etcd-data")),
            option("listen-client-urls", ETCD),
            option("advertise-client-urls", ETCD),
            option("listen-peer-urls", "http://127.0.0.1:2380"),
            option("log-level", "error"),
        ];
        let store = self.spawn(etcd, "etcd", &etcd_arguments, None)?;
        // Upstream wants a public key to check tokens with, and takes a certificate for one.
        let request = CertRequest { cn: "service-accounts".into(), days: 1, ..CertRequest::default() };
        let signer = self.ca.issue(&request)?;
        let (certificate, key) = (self.path("pki/tokens.crt"), self.path("pki/tokens.key"));
        pki::write_public(&certificate, &signer.cert_pem)?;
        pki::write_private(&key, &signer.key_pem)?;
        let arguments = [
            option("etcd-servers", ETCD),
            option("bind-address", "127.0.0.1"),
            option("secure-port", &UPSTREAM_PORT.to_string()),
            option("advertise-address", &ADDRESS.to_string()),
            option("client-ca-file", &path("pki/ca.crt")),
            option("tls-cert-file", &path("pki/apiserver.crt")),
            option("tls-private-key-file", &path("pki/apiserver.key")),
            option("service-account-key-file", &certificate.display().to_string()),
            option("service-account-signing-key-file", &key.display().to_string()),
            option("service-account-issuer", "https://kubernetes.default.svc.cluster.local"),
            option("authorization-mode", "Node,RBAC"),
            option("service-cluster-ip-range", SERVICES),
            // The defaults of 400 and 200 would refuse some of the clients.
            option("max-requests-inflight", "2000"),
            option("max-mutating-requests-inflight", "1000"),
        ];
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, UPSTREAM_PORT));
        let access = Access::new(&self.ca, at, "bench", "system:masters")?;
        let begun = Instant::now();
        let process = self.spawn(server, "kube-apiserver", &arguments, None)?;
        while !is_ready(&access).await {
            if begun.elapsed() > PATIENCE {
                bail!("upstream's API server does not answer:\n{}\n{}", self.log("kube-apiserver"), self.log("etcd"));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let answered = begun.elapsed();
        let start = Start { answered, notified: answered };
        Ok(Server { processes: vec![(process, server.to_owned()), (store, etcd.to_owned())], at, start })
    }
}

async fn is_ready(access: &Access) -> bool {
    let Ok(mut connection) = access.connect().await else { return false };
    connection.get("/readyz").await.is_ok()
}

/// How long the disk below a directory takes to keep 4 KiB (fdatasync): the median and the slowest of a hundred of `times`.
pub fn fsync(directory: &Path, times: usize) -> Result<(Duration, Duration)> {
    use std::io::{Seek as _, SeekFrom, Write as _};
    let mut file = tempfile::tempfile_in(directory)?;
    let block = [7; 4096];
    let mut took = Vec::with_capacity(times);
    for _ in 0..times {
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&block)?;
        let begun = Instant::now();
        file.sync_data()?;
        took.push(begun.elapsed());
    }
    took.sort_unstable();
    Ok((took[times / 2], took[times * 99 / 100]))
}
