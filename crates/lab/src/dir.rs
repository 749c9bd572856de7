//! Files: DIR, which keeps a cluster, and RUN, which ends with it.
//!
//! ```text
//! DIR/lock           flock of the supervisor, with its process number
//! DIR/cluster.json   specification, addresses, format version
//! DIR/pki, DIR/store control plane
//! DIR/log/           lab.log, control-plane.log, …
//! DIR/hosts/NODE/    c, d (drives) or root; hns, cni, images, log
//! RUN/               sockets; RUN/ns is a tmpfs that only the lab sees
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Seek, Write};
use std::net::Ipv4Addr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use linux_sys::lock::FileLock;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::LabError;
use crate::owner;
use crate::plan::{AddressOptions, Plan};
use crate::shell;
use crate::spec::{NodeSpec, Os};

/// The format of `cluster.json` that this program writes, and the newest that it reads.
///
/// | format | differences |
/// | --- | --- |
/// | 1 | without name, port, kubeconfig, outside and stand-ins |
/// | 2 | keeps every option of `up` |
pub const FORMAT: u32 = 2;
/// How long a lab whose supervisor is gone has to end before its directory counts as in use.
const ORPHANS: Duration = Duration::from_secs(10);
/// Name of the lock among a lab's descriptors: init keeps it until its last process has ended.
pub const LOCK: &str = "lock";
/// A unix socket's path holds 107 bytes.
const SOCKET_PATH: usize = 107;
/// The longest that is put behind `RUN/NODE`.
const LONGEST_SUFFIX: &str = ".hcn-admin";

/// What of the environment decides about paths, read once by the caller.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Env {
    /// `XDG_STATE_HOME`.
    pub state_home: Option<PathBuf>,
    /// `XDG_CACHE_HOME`.
    pub cache_home: Option<PathBuf>,
    /// `XDG_RUNTIME_DIR`.
    pub runtime_dir: Option<PathBuf>,
    /// `HOME`.
    pub home: Option<PathBuf>,
    /// The user's number.
    pub uid: u32,
}

impl Env {
    /// This process's.
    pub fn of_process() -> Self {
        // XDG: relative paths are invalid and to be ignored.
        let dir = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
        Self {
            state_home: dir("XDG_STATE_HOME"),
            cache_home: dir("XDG_CACHE_HOME"),
            runtime_dir: dir("XDG_RUNTIME_DIR"),
            home: dir("HOME"),
            uid: nix::unistd::geteuid().as_raw(),
        }
    }

    /// DIR when none is given: `mullion` in the XDG state home.
    pub fn default_dir(&self) -> PathBuf {
        self.base(&self.state_home, ".local/state").join("mullion")
    }

    /// What clusters share: `mullion` in the XDG cache home.
    pub fn cache_dir(&self) -> PathBuf {
        self.base(&self.cache_home, ".cache").join("mullion")
    }

    fn base(&self, xdg: &Option<PathBuf>, below_home: &str) -> PathBuf {
        xdg.clone().unwrap_or_else(|| self.home.clone().unwrap_or_else(|| "/".into()).join(below_home))
    }

    fn run_base(&self) -> PathBuf {
        match &self.runtime_dir {
            Some(dir) if dir.is_dir() => dir.join("mullion"),
            _ => PathBuf::from(format!("/tmp/mullion-{}", self.uid)),
        }
    }
}

/// Paths of one cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dirs {
    /// DIR, absolute.
    pub dir: PathBuf,
    /// RUN.
    pub run: PathBuf,
}

impl Dirs {
    /// The paths of the cluster kept in `dir`. Makes nothing.
    ///
    /// # Errors
    /// When a relative `dir` cannot be made absolute.
    pub fn resolve(dir: &Path, env: &Env) -> Result<Self, LabError> {
        // One directory, one ID, by whatever links it is reached.
        let dir = match fs::canonicalize(dir) {
            Ok(dir) => dir,
            Err(_) => std::path::absolute(dir).map_err(LabError::file("find", dir))?,
        };
        let digest = Sha256::digest(dir.as_os_str().as_encoded_bytes());
        let id: String = digest.iter().take(4).map(|b| format!("{b:02x}")).collect();
        Ok(Self { run: env.run_base().join(id), dir })
    }

    /// Eight hexadecimal digits that stand for DIR.
    pub fn id(&self) -> String {
        self.run.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// A command for this cluster that can be pasted: `mullion COMMAND`, with `--dir` unless DIR is the default one.
    pub fn command(&self, command: &str) -> String {
        let is_default = Self::resolve(&Env::of_process().default_dir(), &Env::default()).is_ok_and(|default| default.dir == self.dir);
        if is_default { format!("mullion {command}") } else { command_in(&self.dir, command) }
    }

    /// The name of a cluster that was given none: its directory's.
    pub fn default_name(&self) -> String {
        let name = self.dir.file_name().unwrap_or_default().to_string_lossy();
        let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' }).take(63).collect();
        let name = name.trim_matches(['.', '-', '_']);
        if name.is_empty() { "mullion".to_owned() } else { name.to_owned() }
    }

    /// `DIR/hosts/NODE`.
    pub fn host(&self, node: &str) -> PathBuf {
        self.dir.join("hosts").join(node)
    }

    /// A socket in RUN: `RUN/NAME.SUFFIX`.
    pub fn socket(&self, name: &str, suffix: &str) -> PathBuf {
        self.run.join(format!("{name}.{suffix}"))
    }

    /// The network namespace of a host, visible inside the lab only.
    pub fn netns(&self, host: &str) -> PathBuf {
        self.run.join("ns").join(host)
    }

    /// Where a node keeps the namespaces of its pods, visible inside the lab only.
    pub fn pod_netns_dir(&self, host: &str) -> PathBuf {
        self.run.join("ns").join(format!("{host}.d"))
    }

    /// The supervisor's socket for `status` and `down`.
    pub fn control_socket(&self) -> PathBuf {
        self.run.join("lab.ctl")
    }

    /// The supervisor's socket for ports of the real host.
    pub fn ports_socket(&self) -> PathBuf {
        self.run.join("ports.ctl")
    }

    /// The log of a process: of a node's below its host, else in `DIR/log`.
    pub fn log(&self, host: Option<&str>, process: &str) -> PathBuf {
        host.map_or_else(|| self.dir.join("log"), |h| self.host(h).join("log")).join(format!("{process}.log"))
    }

    /// Makes RUN empty, for this user alone. Only for the holder of the lock.
    ///
    /// # Errors
    /// When it would be too long for sockets of these nodes, or somebody else owns it.
    pub fn make_run(&self, nodes: &[NodeSpec]) -> Result<(), LabError> {
        let longest = nodes.iter().map(|n| n.name.len()).max().unwrap_or(0).max("ports.ctl".len());
        let length = self.run.as_os_str().len() + 1 + longest + LONGEST_SUFFIX.len();
        let refuse = |reason: String| LabError::RunDir { path: self.run.clone(), reason };
        if length > SOCKET_PATH {
            return Err(refuse(format!("paths of {length} bytes exceed {SOCKET_PATH}: set a shorter XDG_RUNTIME_DIR or shorter node names")));
        }
        let base = self.run.parent().unwrap_or(Path::new("/tmp"));
        let private = |dir: &Path| fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(LabError::file("make", dir));
        private(base)?;
        let meta = fs::symlink_metadata(base).map_err(LabError::file("look at", base))?;
        if !meta.is_dir() || !owner::is_own(&meta) || meta.mode() & 0o022 != 0 {
            return Err(refuse(format!("{} is not this user's alone: remove it or set XDG_RUNTIME_DIR", base.display())));
        }
        self.remove_run()?;
        private(&self.run)?;
        private(&self.run.join("ns"))
    }

    /// Removes RUN, and its parent when it was the last.
    ///
    /// # Errors
    /// When something in it cannot be removed.
    pub fn remove_run(&self) -> Result<(), LabError> {
        match fs::remove_dir_all(&self.run) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(LabError::file("remove", &self.run)(e)),
            _ => {}
        }
        // Not empty when other clusters run: that is fine.
        if let Some(base) = self.run.parent() {
            let _ = fs::remove_dir(base);
        }
        Ok(())
    }

    /// Makes DIR and locks it; the lock ends with the process. A lab whose supervisor was killed holds the lock until its last
    /// process has ended: that end is waited for.
    ///
    /// # Errors
    /// [`LabError::Running`] when a supervisor holds it.
    pub fn lock(&self) -> Result<FileLock, LabError> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir).map_err(LabError::file("make", &self.dir))?;
        let path = self.dir.join("lock");
        let deadline = Instant::now() + ORPHANS;
        let mut lock = loop {
            if let Some(lock) = FileLock::try_acquire(&path).map_err(LabError::file("lock", &path))? {
                break lock;
            }
            let holder = self.holder();
            if holder.is_some_and(is_alive) || Instant::now() >= deadline {
                return Err(LabError::Running { dir: self.dir.clone(), pid: holder });
            }
            thread::sleep(Duration::from_millis(5));
        };
        let file = lock.file();
        let written = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
        written.map_err(LabError::file("write", &path))?;
        Ok(lock)
    }

    /// The process that wrote the lock last.
    pub fn holder(&self) -> Option<u32> {
        let mut text = String::new();
        fs::File::open(self.dir.join("lock")).ok()?.take(32).read_to_string(&mut text).ok()?;
        text.trim().parse().ok()
    }

    /// Makes the directories of the cluster and its nodes; those that are there stay as they are.
    ///
    /// # Errors
    /// When one cannot be made.
    pub fn make_layout(&self, nodes: &[NodeSpec]) -> Result<(), LabError> {
        let mut all: Vec<PathBuf> = ["pki", "store", "log"].iter().map(|d| self.dir.join(d)).collect();
        for node in nodes {
            let drives: &[&str] = match (node.os, node.drive) {
                (Os::Linux, _) => &["root"],
                (Os::Windows { .. }, None) => &["c", "hns"],
                (Os::Windows { .. }, Some(_)) => &["c", "d", "hns"],
            };
            all.extend(drives.iter().chain(&["cni", "images", "log"]).map(|d| self.host(&node.name).join(d)));
        }
        for dir in all {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(LabError::file("make", &dir))?;
        }
        Ok(())
    }
}

/// `mullion COMMAND --dir DIR`, to be pasted into a shell.
pub fn command_in(dir: &Path, command: &str) -> String {
    format!("mullion {command} --dir {}", shell::quote(dir))
}

/// Whether a process runs: it is there, and no zombie.
fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// What DIR remembers of its cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cluster {
    /// Version of this format.
    pub format: u32,
    /// Its name in kubeconfigs; empty in files of format 1.
    #[serde(default)]
    pub name: String,
    /// The nodes as specified.
    pub nodes: Vec<NodeSpec>,
    /// The network mode.
    pub network: String,
    /// Address options.
    pub addresses: AddressOptions,
    /// Switches of the node agents, as `HyperVContainer=true`.
    #[serde(default)]
    pub feature_gates: String,
    /// Where images are asked for first, as `docker.io=http://10.0.0.1:5000`.
    #[serde(default)]
    pub registry_mirrors: Vec<String>,
    /// Registries without TLS.
    #[serde(default)]
    pub insecure_registries: Vec<String>,
    /// Parts that the node agents leave out, as `proxy`.
    #[serde(default)]
    pub without: Vec<String>,
    /// The API server's port on 127.0.0.1; `None` before the first start, and in files of format 1.
    #[serde(default)]
    pub port: Option<u16>,
    /// A file that gets the administrator's kubeconfig too.
    #[serde(default)]
    pub kubeconfig: Option<PathBuf>,
    /// Whether pods reach what the machine reaches.
    #[serde(default)]
    pub outside: bool,
    /// Whether images that only a stand-in could answer for are refused.
    #[serde(default)]
    pub no_stand_ins: bool,
    /// The nodes' addresses on the LAN: they stay when the cluster is resumed.
    pub node_addresses: BTreeMap<String, Ipv4Addr>,
}

/// What the user asked for; `None` takes what DIR remembers, or the default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// `--nodes`.
    pub nodes: Option<Vec<NodeSpec>>,
    /// `--network`.
    pub network: Option<String>,
    /// `--cluster-cidr` and the like.
    pub addresses: Option<AddressOptions>,
    /// `--feature-gates`.
    pub feature_gates: Option<String>,
    /// `--registry-mirror`; those given replace all that are remembered.
    pub registry_mirrors: Option<Vec<String>>,
    /// `--insecure-registry`, alike.
    pub insecure_registries: Option<Vec<String>>,
    /// `--without`, alike.
    pub without: Option<Vec<String>>,
    /// `--name`.
    pub name: Option<String>,
    /// `--kubeconfig`; an empty path forgets the one that is remembered.
    pub kubeconfig: Option<PathBuf>,
    /// `--outside`.
    pub outside: Option<bool>,
    /// `--no-stand-ins`.
    pub no_stand_ins: Option<bool>,
}

impl Cluster {
    /// What DIR remembers; `None` for a new one.
    ///
    /// # Errors
    /// [`LabError::NewerFormat`], [`LabError::Damaged`].
    pub fn load(dirs: &Dirs) -> Result<Option<Self>, LabError> {
        let path = dirs.dir.join("cluster.json");
        let text = match fs::read_to_string(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(LabError::file("read", &path))?,
        };
        let damaged = |e: serde_json::Error| LabError::Damaged { path: path.clone(), reason: e.to_string() };
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        // The format first: a newer one may have anything else in other places.
        let Format { format } = serde_json::from_str(&text).map_err(damaged)?;
        if format > FORMAT {
            return Err(LabError::NewerFormat { dir: dirs.dir.clone(), found: format, known: FORMAT });
        }
        serde_json::from_str(&text).map(Some).map_err(damaged)
    }

    /// What DIR remembers, checked against what is wanted now, with a plan of its addresses.
    ///
    /// # Errors
    /// [`LabError::OtherCluster`] when they differ; address errors.
    pub fn reconcile(known: Option<Self>, wanted: Wanted, default_nodes: &[NodeSpec], dirs: &Dirs) -> Result<(Self, Plan), LabError> {
        let list = |nodes: &[NodeSpec]| nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        if let Some(known) = &known {
            let refuse =
                |option, held: &dyn ToString, reason| Err(LabError::OtherCluster { dir: dirs.dir.clone(), option, held: held.to_string(), reason });
            if wanted.nodes.as_ref().is_some_and(|n| *n != known.nodes) {
                return refuse("--nodes", &list(&known.nodes), "its nodes' addresses, disks and keys are made for them");
            }
            if wanted.network.as_ref().is_some_and(|n| *n != known.network) {
                return refuse("--network", &known.network, "its nodes' routes are made for it");
            }
            let (held, asked) = (&known.addresses, wanted.addresses.as_ref().unwrap_or(&known.addresses));
            if asked.cluster_cidr != held.cluster_cidr {
                return refuse("--cluster-cidr", &held.cluster_cidr, "its nodes have their pod networks out of it");
            }
            if asked.node_mask != held.node_mask {
                return refuse("--node-mask", &held.node_mask, "its nodes have pod networks of that size");
            }
            if asked.service_cidr != held.service_cidr {
                return refuse("--service-cidr", &held.service_cidr, "its Services have their ClusterIPs out of it");
            }
            if asked.dns_ip != held.dns_ip {
                return refuse("--dns-ip", &held.dns_ip, "the Service kube-dns and its pods have that address");
            }
        }
        let mut cluster = known.unwrap_or_else(|| Self {
            format: FORMAT,
            nodes: wanted.nodes.unwrap_or_else(|| default_nodes.to_vec()),
            network: wanted.network.unwrap_or_else(|| "host-gateway".into()),
            addresses: wanted.addresses.unwrap_or_default(),
            feature_gates: String::new(),
            registry_mirrors: Vec::new(),
            insecure_registries: Vec::new(),
            without: Vec::new(),
            name: String::new(),
            port: None,
            kubeconfig: None,
            outside: false,
            no_stand_ins: false,
            node_addresses: BTreeMap::new(),
        });
        cluster.format = FORMAT;
        // They change how nodes behave, not what the cluster is: a resumed one may have others.
        cluster.feature_gates = wanted.feature_gates.unwrap_or(cluster.feature_gates);
        cluster.registry_mirrors = wanted.registry_mirrors.unwrap_or(cluster.registry_mirrors);
        cluster.insecure_registries = wanted.insecure_registries.unwrap_or(cluster.insecure_registries);
        cluster.without = wanted.without.unwrap_or(cluster.without);
        cluster.outside = wanted.outside.unwrap_or(cluster.outside);
        cluster.no_stand_ins = wanted.no_stand_ins.unwrap_or(cluster.no_stand_ins);
        cluster.kubeconfig = wanted.kubeconfig.or(cluster.kubeconfig).filter(|path| !path.as_os_str().is_empty());
        cluster.name = wanted.name.unwrap_or(cluster.name);
        if cluster.name.is_empty() {
            cluster.name = dirs.default_name();
        }
        let plan = Plan::new(&cluster.nodes, &cluster.addresses, &cluster.node_addresses)?;
        cluster.node_addresses = plan.hosts.iter().skip(1).map(|h| (h.name.clone(), h.address)).collect();
        Ok((cluster, plan))
    }

    /// Writes `cluster.json`, whole or not at all.
    ///
    /// # Errors
    /// When the disk is full or DIR is not writable.
    pub fn save(&self, dirs: &Dirs) -> Result<(), LabError> {
        let (path, new) = (dirs.dir.join("cluster.json"), dirs.dir.join("cluster.json.new"));
        let text = serde_json::to_vec_pretty(self).map_err(|e| LabError::Damaged { path: path.clone(), reason: e.to_string() })?;
        let write = || {
            let mut file = fs::File::create(&new)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&new, &path)
        };
        write().map_err(LabError::file("write", &path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::parse_list;

    fn dirs(root: &Path) -> Dirs {
        Dirs { dir: root.join("dir"), run: root.join("run/0011aabb") }
    }

    #[test]
    fn paths_follow_the_environment() {
        let env = Env { home: Some("/home/u".into()), uid: 1000, ..Env::default() };
        assert_eq!(env.default_dir(), Path::new("/home/u/.local/state/mullion"));
        assert_eq!(env.cache_dir(), Path::new("/home/u/.cache/mullion"));
        let dirs = Dirs::resolve(Path::new("/no/such/dir"), &env).unwrap();
        assert_eq!(dirs.run.parent(), Some(Path::new("/tmp/mullion-1000")));
        assert!(dirs.id().len() == 8 && dirs.id().chars().all(|c| c.is_ascii_hexdigit()), "{}", dirs.id());
        let env = Env { runtime_dir: Some("/proc".into()), ..env };
        assert!(Dirs::resolve(Path::new("/no/such/dir"), &env).unwrap().run.starts_with("/proc/mullion"));
    }

    #[test]
    fn a_second_lock_names_the_first() {
        let root = tempfile::tempdir().unwrap();
        let dirs = dirs(root.path());
        let lock = dirs.lock().unwrap();
        let e = dirs.lock().unwrap_err();
        assert!(matches!(e, LabError::Running { pid: Some(pid), .. } if pid == std::process::id()), "{e}");
        assert_eq!(e.exit_code(), crate::error::ExitCode::Running);
        drop(lock);
        dirs.lock().unwrap();
    }

    #[test]
    fn run_is_made_empty_private_and_removed() {
        let root = tempfile::tempdir().unwrap();
        let dirs = dirs(root.path());
        let nodes = parse_list("a:linux").unwrap();
        fs::create_dir_all(dirs.run.join("left/over")).unwrap();
        dirs.make_run(&nodes).unwrap();
        assert_eq!(fs::read_dir(&dirs.run).unwrap().count(), 1, "only ns");
        assert_eq!(fs::metadata(&dirs.run).unwrap().mode() & 0o777, 0o700);
        dirs.remove_run().unwrap();
        dirs.remove_run().expect("that it is gone is fine");
        assert!(!dirs.run.parent().unwrap().exists());
        let long = Dirs { run: root.path().join("x".repeat(100)), ..dirs.clone() };
        assert!(long.make_run(&nodes).unwrap_err().to_string().contains("set a shorter XDG_RUNTIME_DIR"));
        fs::create_dir_all(dirs.run.parent().unwrap()).unwrap();
        fs::set_permissions(dirs.run.parent().unwrap(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        assert!(dirs.make_run(&nodes).unwrap_err().to_string().contains("not this user's alone"));
    }

    #[test]
    fn a_cluster_is_remembered_and_others_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let dirs = dirs(root.path());
        fs::create_dir_all(&dirs.dir).unwrap();
        let defaults = parse_list("lin01:linux,win01:windows").unwrap();
        assert_eq!(Cluster::load(&dirs).unwrap(), None);
        let (cluster, plan) = Cluster::reconcile(None, Wanted::default(), &defaults, &dirs).unwrap();
        cluster.save(&dirs).unwrap();
        let known = Cluster::load(&dirs).unwrap();
        assert_eq!(known.as_ref(), Some(&cluster));
        let again = Cluster::reconcile(known.clone(), Wanted::default(), &[], &dirs).unwrap();
        assert_eq!(again, (cluster, plan), "resumed without options");
        let mirrors = |list: &[&str]| Wanted { registry_mirrors: Some(list.iter().map(|m| (*m).to_owned()).collect()), ..Wanted::default() };
        let (mirrored, _) = Cluster::reconcile(known.clone(), mirrors(&["docker.io=http://a"]), &[], &dirs).unwrap();
        let (later, _) = Cluster::reconcile(Some(mirrored), Wanted::default(), &[], &dirs).unwrap();
        assert_eq!(later.registry_mirrors, ["docker.io=http://a"], "remembered");
        let (other, _) = Cluster::reconcile(Some(later), mirrors(&["docker.io=http://b"]), &[], &dirs).unwrap();
        assert_eq!(other.registry_mirrors, ["docker.io=http://b"], "replaced");
        let refused = |wanted| Cluster::reconcile(known.clone(), wanted, &[], &dirs).unwrap_err().to_string();
        let nodes = Wanted { nodes: Some(parse_list("b:linux").unwrap()), ..Wanted::default() };
        assert!(refused(nodes).contains("--nodes lin01:linux,win01:windows:20348; leave --nodes out to resume it, or choose another --dir"));
        let network = Wanted { network: Some("vxlan".into()), ..Wanted::default() };
        assert!(refused(network).contains("--network host-gateway"));
        let addresses = Wanted { addresses: Some(AddressOptions { node_mask: 26, ..AddressOptions::default() }), ..Wanted::default() };
        assert!(refused(addresses).contains("--node-mask 24"));
    }

    #[test]
    fn what_a_cluster_was_made_with_stays_until_it_is_changed() {
        let root = tempfile::tempdir().unwrap();
        let dirs = dirs(root.path());
        let defaults = parse_list("lin01:linux").unwrap();
        let made = Wanted {
            name: Some("ci".into()),
            kubeconfig: Some("/k".into()),
            outside: Some(true),
            no_stand_ins: Some(true),
            without: Some(vec!["proxy".into()]),
            feature_gates: Some("HyperVContainer=true".into()),
            ..Wanted::default()
        };
        let (made, _) = Cluster::reconcile(None, made, &defaults, &dirs).unwrap();
        let (resumed, _) = Cluster::reconcile(Some(made.clone()), Wanted::default(), &[], &dirs).unwrap();
        assert_eq!(resumed, made);
        assert_eq!((made.name.as_str(), made.kubeconfig.as_deref(), made.outside, made.no_stand_ins), ("ci", Some(Path::new("/k")), true, true));
        let back = Wanted {
            kubeconfig: Some("".into()),
            outside: Some(false),
            no_stand_ins: Some(false),
            without: Some(vec![]),
            feature_gates: Some(String::new()),
            name: Some("other".into()),
            ..Wanted::default()
        };
        let (back, _) = Cluster::reconcile(Some(made), back, &[], &dirs).unwrap();
        assert_eq!((back.name.as_str(), back.kubeconfig, back.outside, back.no_stand_ins), ("other", None, false, false));
        assert!(back.without.is_empty() && back.feature_gates.is_empty());
    }

    #[test]
    fn a_description_of_format_1_is_read_and_becomes_the_newest() {
        let root = tempfile::tempdir().unwrap();
        let dirs = dirs(root.path());
        fs::create_dir_all(&dirs.dir).unwrap();
        let old = r#"{"format": 1, "nodes": [{"name": "win01", "os": {"windows": {"build": 20348}}, "cpu": 8, "mem": 17179869184, "drive": null,
            "hns": null, "runtime": null}], "network": "host-gateway", "addresses": {"clusterCidr": "192.168.0.0/16", "nodeMask": 24,
            "serviceCidr": "10.96.0.0/12", "dnsIp": "10.96.0.10"}, "nodeAddresses": {"win01": "10.240.0.11"}}"#;
        fs::write(dirs.dir.join("cluster.json"), old).unwrap();
        let known = Cluster::load(&dirs).unwrap();
        let (cluster, _) = Cluster::reconcile(known, Wanted::default(), &[], &dirs).unwrap();
        assert_eq!((cluster.format, cluster.name.as_str(), cluster.port, cluster.outside), (FORMAT, "dir", None, false));
    }

    #[test]
    fn clusters_are_named_after_their_directories() {
        let name = |dir: &str| Dirs { dir: dir.into(), run: "/r".into() }.default_name();
        let cases =
            [("/home/u/.local/state/mullion", "mullion"), ("/tmp/my cluster", "my-cluster"), ("/tmp/.x", "x"), ("/", "mullion"), ("/ä", "mullion")];
        for (dir, expected) in cases {
            assert_eq!(name(dir), expected, "{dir}");
        }
    }

    #[test]
    fn newer_and_damaged_descriptions_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let dirs = dirs(root.path());
        fs::create_dir_all(&dirs.dir).unwrap();
        fs::write(dirs.dir.join("cluster.json"), r#"{"format": 9, "elsewhere": {}}"#).unwrap();
        let e = Cluster::load(&dirs).unwrap_err();
        assert!(e.to_string().contains("is of format 9, this mullion reads up to 2"), "{e}");
        fs::write(dirs.dir.join("cluster.json"), r#"{"format": 1, "nod"#).unwrap();
        let e = Cluster::load(&dirs).unwrap_err();
        assert!(matches!(e, LabError::Damaged { .. }) && e.exit_code() as u8 == 65, "{e}");
    }

    #[test]
    fn each_kind_of_node_has_its_directories() {
        let root = tempfile::tempdir().unwrap();
        let dirs = dirs(root.path());
        dirs.make_layout(&parse_list("l:linux,w:windows,v:windows:drive=D").unwrap()).unwrap();
        for there in ["pki", "store", "log", "hosts/l/root", "hosts/l/images", "hosts/w/c", "hosts/w/hns", "hosts/v/d"] {
            assert!(dirs.dir.join(there).is_dir(), "{there}");
        }
        assert!(!dirs.dir.join("hosts/w/d").exists() && !dirs.dir.join("hosts/l/c").exists());
    }
}
