//! Registration of drivers: sockets below `plugins_registry` (upstream pkg/kubelet/pluginmanager, csi_plugin.go `RegisterPlugin`).
//!
//! Inputs: the directory, looked at once a second. Outputs: the table of drivers, the CSINode. A socket that appears, or is another one than
//! before, is asked what it is; one that is gone takes its driver with it. A plug-in that fails is asked again, ever more seldom.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use backoff::Backoff;
use csi::registration::PluginInfo;
use host::{FileKind, HostRoot, PodPath};
use thiserror_ext::AsReport as _;
use tokio::task::JoinSet;

use super::Csi;
use super::node_info::NodeInfoError;
use crate::devices::{self, Devices};
use crate::sockets;

/// How often the directory is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Directories within each other that are looked into.
const DEPTH: usize = 3;
/// Sockets that are looked at.
const MAX_SOCKETS: usize = 256;
const WAITS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// The node is not ready while its CSINode is not written, so that is tried again soon.
const INITIAL_WAITS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(30));
/// The type of plug-ins that are drivers.
const DRIVER: &str = "CSIPlugin";
/// The type of device plug-ins.
const DEVICES: &str = "DevicePlugin";

/// A driver that is known.
pub(super) struct Registered {
    pub driver: csi::Driver,
    /// The socket by which it made itself known.
    socket: PodPath,
    version: (u64, u64, u64),
}

/// Why a plug-in is not registered.
#[derive(Debug, thiserror::Error)]
enum RegisterError {
    #[error("no handler registered for plugin type: {kind} at socket {socket}")]
    Kind { kind: String, socket: PodPath },
    #[error("{0:?} is no name of a CSI driver: at most 63 letters, digits, dashes and dots")]
    Name(String),
    #[error("CSI driver {name:?} supports the versions {versions:?}; this node agent speaks 1.x")]
    Version { name: String, versions: Vec<String> },
    #[error("CSI driver {name:?} is registered already, by {socket}, with a version that is no lower")]
    Twice { name: String, socket: PodPath },
    #[error("the endpoint {endpoint:?} is no path of this node")]
    Endpoint { endpoint: String, source: host::HostError },
    #[error(transparent)]
    Call(#[from] csi::Error),
    #[error(transparent)]
    Node(#[from] NodeInfoError),
    #[error(transparent)]
    Devices(#[from] devices::RegisterError),
}

/// When a socket was made: another one of the same name has another stamp.
type Stamp = (SystemTime, u64);

enum State {
    Asking,
    /// It is registered.
    Known,
    /// It is no plug-in that we know, or a failed one; when to ask again.
    Failed {
        again: Instant,
        backoff: Backoff,
    },
}

struct Socket {
    stamp: Stamp,
    state: State,
    /// What it brought.
    plugin: Option<Brought>,
}

/// A plug-in by its name.
#[derive(Clone, Debug, PartialEq)]
enum Brought {
    Driver(String),
    /// A device plug-in, by its resource.
    Devices(String),
}

/// What is to be done about the sockets, in order.
#[derive(Debug, PartialEq)]
enum Step {
    Ask(PodPath),
    Forget(PodPath),
}

/// Compares what is known with what is there: pure.
fn plan(known: &BTreeMap<PodPath, Socket>, there: &BTreeMap<PodPath, Stamp>, now: Instant) -> Vec<Step> {
    let gone = known.iter().filter(|(path, socket)| there.get(*path).is_none() && !matches!(socket.state, State::Asking));
    let asked = there.iter().filter(|(path, stamp)| match known.get(*path) {
        None => true,
        Some(Socket { state: State::Asking, .. }) => false,
        Some(socket) if socket.stamp != **stamp => true,
        Some(Socket { state: State::Failed { again, .. }, .. }) => *again <= now,
        Some(_) => false,
    });
    gone.map(|(path, _)| Step::Forget(path.clone())).chain(asked.map(|(path, _)| Step::Ask(path.clone()))).collect()
}

/// Keeps the table of drivers, for ever. `news` is called when a driver came.
pub(crate) async fn keep(csi: Arc<Csi>, news: impl Fn()) {
    let Ok(dir) = csi.dir.join("plugins_registry") else { return };
    csi.initialize().await;
    if let Err(error) = csi.root.create_dir_all(&dir, 0o750) {
        tracing::error!(%dir, error = %error.as_report(), "making the directory of plug-ins failed; no CSI driver can register");
    }
    let mut known: BTreeMap<PodPath, Socket> = BTreeMap::new();
    let mut asking = JoinSet::new();
    let mut node = csi.own_node().await.metadata.uid.clone();
    loop {
        // A Node that was deleted takes its CSINode along: the drivers are asked again for the new one.
        if let Some(new) = csi.node_uid().filter(|new| node.as_ref() != Some(new)) {
            tracing::info!(node = csi.node_name, "the Node was made again; registering the CSI drivers again");
            node = Some(new);
            ask_again(&mut known);
        }
        let there = sockets(&csi.root, &dir);
        for step in plan(&known, &there, Instant::now()) {
            match step {
                Step::Forget(path) => {
                    if let Some(plugin) = known.remove(&path).and_then(|socket| socket.plugin) {
                        Box::pin(csi.deregister(&plugin, &path)).await;
                    }
                }
                Step::Ask(path) => {
                    let stamp = there[&path];
                    let (backoff, plugin) = match known.remove(&path) {
                        Some(Socket { state: State::Failed { backoff, .. }, plugin, .. }) => (backoff, plugin),
                        before => (Backoff::new(WAITS.0, WAITS.1), before.and_then(|socket| socket.plugin)),
                    };
                    known.insert(path.clone(), Socket { stamp, state: State::Asking, plugin });
                    let csi = csi.clone();
                    asking.spawn(async move {
                        let answer = csi.register(&path).await;
                        (path, answer, backoff)
                    });
                }
            }
        }
        tokio::select! {
            Some(done) = asking.join_next() => {
                let (path, answer, backoff) = done.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
                if let Ok(plugin) = &answer
                    && let Some(former) = known.get(&path).and_then(|socket| socket.plugin.clone()).filter(|former| former != plugin)
                {
                    csi.deregister(&former, &path).await;
                }
                if settle(&mut known, path, answer, backoff) {
                    news();
                }
            }
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

/// Lets each driver register again.
fn ask_again(known: &mut BTreeMap<PodPath, Socket>) {
    for socket in known.values_mut().filter(|socket| matches!(socket.plugin, Some(Brought::Driver(_))) && matches!(socket.state, State::Known)) {
        socket.state = State::Failed { again: Instant::now(), backoff: Backoff::new(WAITS.0, WAITS.1) };
    }
}

/// Notes what became of a socket that was asked. Returns whether a driver came.
fn settle(known: &mut BTreeMap<PodPath, Socket>, path: PodPath, answer: Result<Brought, RegisterError>, mut backoff: Backoff) -> bool {
    let Some(socket) = known.get_mut(&path) else { return false };
    match answer {
        Ok(plugin) => {
            if let Brought::Driver(name) = &plugin {
                tracing::info!(driver = name, socket = %path, "a CSI driver registered");
            }
            socket.state = State::Known;
            socket.plugin = Some(plugin);
            true
        }
        Err(error) => {
            tracing::warn!(socket = %path, error = %error.as_report(), "a plug-in was not registered; asking it again later");
            socket.state = State::Failed { again: Instant::now() + backoff.next_delay(), backoff };
            false
        }
    }
}

/// The sockets in a directory.
fn sockets(root: &HostRoot, dir: &PodPath) -> BTreeMap<PodPath, Stamp> {
    let mut found = BTreeMap::new();
    collect(root, dir, 0, &mut found);
    found
}

fn collect(root: &HostRoot, dir: &PodPath, depth: usize, found: &mut BTreeMap<PodPath, Stamp>) {
    for (name, kind) in root.read_dir(dir).unwrap_or_default() {
        let Ok(path) = dir.join(&name) else { continue };
        // Windows shows a socket as a file of no kind.
        let is_socket = kind == FileKind::Socket || root.os().is_windows() && kind == FileKind::File && name.ends_with(".sock");
        if kind == FileKind::Directory && depth < DEPTH && !name.starts_with('.') {
            collect(root, &path, depth + 1, found);
        } else if is_socket
            && !name.starts_with('.')
            && found.len() < MAX_SOCKETS
            && let Some(stamp) = stamp(root, &path)
        {
            found.insert(path, stamp);
        }
    }
}

fn stamp(root: &HostRoot, path: &PodPath) -> Option<Stamp> {
    let metadata = root.resolve(path).ok()?.handle.metadata().ok()?;
    #[cfg(unix)]
    let number = std::os::unix::fs::MetadataExt::ino(&metadata);
    #[cfg(not(unix))]
    let number = 0;
    Some((metadata.modified().ok()?, number))
}

/// The highest version that the agent speaks.
fn version(versions: &[String]) -> Option<(u64, u64, u64)> {
    let parse = |text: &String| {
        let mut parts = text.trim_start_matches('v').split('.').map(|part| part.parse::<u64>());
        let version = (parts.next()?.ok()?, parts.next().unwrap_or(Ok(0)).ok()?, parts.next().unwrap_or(Ok(0)).ok()?);
        (version.0 == 1 && parts.next().is_none()).then_some(version)
    };
    versions.iter().filter_map(parse).max()
}

fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    name.len() <= 63 && name.chars().all(plain) && ends(name.chars().next()) && ends(name.chars().last())
}

impl Csi {
    /// Writes the node's CSINode; until that is done the node is not ready, and says why (upstream csi_plugin.go `initializeCSINode`).
    async fn initialize(&self) {
        let mut waits = Backoff::new(INITIAL_WAITS.0, INITIAL_WAITS.1);
        while let Err(error) = Box::pin(self.ensure_csi_node()).await {
            let error = error.to_report_string();
            tracing::warn!(node = self.node_name, error, "making the node's CSINode failed; trying again");
            self.trouble.send_replace(Some(format!("failed to initialize CSINode: {error}")));
            tokio::time::sleep(waits.next_delay()).await;
        }
        self.trouble.send_replace(None);
    }

    /// Asks a socket what it is, and takes its plug-in in.
    async fn register(&self, socket: &PodPath) -> Result<Brought, RegisterError> {
        let registrar = csi::Registrar::new(sockets::connector(&self.root, socket));
        let info = registrar.info().await?;
        let taken = self.take(&info, socket).await;
        let refusal = taken.as_ref().err().map(|error| error.to_report_string());
        if let Err(error) = registrar.notify(refusal).await {
            tracing::warn!(socket = %socket, %error, "telling a plug-in what became of its registration failed");
        }
        taken
    }

    async fn take(&self, info: &PluginInfo, socket: &PodPath) -> Result<Brought, RegisterError> {
        let endpoint = match info.endpoint.strip_prefix("unix://").unwrap_or(&info.endpoint) {
            "" => socket.clone(),
            path => self.root.parse(path).map_err(|source| RegisterError::Endpoint { endpoint: path.to_owned(), source })?,
        };
        match info.r#type.as_str() {
            DRIVER => self.take_driver(info, socket, &endpoint).await.map(|()| Brought::Driver(info.name.clone())),
            DEVICES => {
                Devices::validate(&info.name, &info.supported_versions)?;
                self.device_plugins.connect(&info.name, endpoint).await?;
                Ok(Brought::Devices(info.name.clone()))
            }
            kind => Err(RegisterError::Kind { kind: kind.to_owned(), socket: socket.clone() }),
        }
    }

    async fn take_driver(&self, info: &PluginInfo, socket: &PodPath, endpoint: &PodPath) -> Result<(), RegisterError> {
        let name = &info.name;
        if !is_name(name) {
            return Err(RegisterError::Name(name.chars().take(63).collect()));
        }
        let found = version(&info.supported_versions);
        let versions = || info.supported_versions.iter().take(8).cloned().collect();
        let version = found.ok_or_else(|| RegisterError::Version { name: name.clone(), versions: versions() })?;
        let driver = csi::Driver::new(sockets::connector(&self.root, endpoint));
        if let Some(other) = self.registered().get(name).filter(|other| other.socket != *socket && other.version >= version) {
            return Err(RegisterError::Twice { name: name.clone(), socket: other.socket.clone() });
        }
        let about = driver.info().await?;
        self.install(name, &about).await?;
        self.registered().insert(name.clone(), Registered { driver, socket: socket.clone(), version });
        Ok(())
    }

    async fn deregister(&self, plugin: &Brought, socket: &PodPath) {
        let name = match plugin {
            Brought::Devices(resource) => return self.device_plugins.disconnect(resource),
            Brought::Driver(name) => name,
        };
        {
            let mut registered = self.registered();
            // Another socket may have taken the name over.
            if registered.get(name).is_none_or(|known| known.socket != *socket) {
                return;
            }
            registered.remove(name);
        }
        tracing::info!(driver = name, %socket, "the socket of a CSI driver is gone");
        if let Err(error) = self.uninstall(name).await {
            tracing::warn!(driver = name, error = %error.as_report(), "taking a CSI driver out of the node's CSINode failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use host::NodeOs;

    use super::*;

    fn path(name: &str) -> PodPath {
        PodPath::parse(NodeOs::Linux, &format!("/r/{name}")).unwrap()
    }

    #[test]
    fn a_socket_is_asked_when_it_is_new_or_another_or_failed() {
        let now = Instant::now();
        let at = |seconds: u64| (SystemTime::UNIX_EPOCH + Duration::from_secs(seconds), 1);
        let failed = |again| State::Failed { again, backoff: Backoff::new(WAITS.0, WAITS.1) };
        let states = [
            ("gone", State::Known),
            ("same", State::Known),
            ("other", State::Known),
            ("late", failed(now + LOOK)),
            ("due", failed(now)),
            ("busy", State::Asking),
            ("busy-gone", State::Asking),
        ];
        let known = states.into_iter().map(|(name, state)| (path(name), Socket { stamp: at(1), state, plugin: None })).collect();
        let there = ["same", "other", "late", "due", "busy", "new"].map(|name| (path(name), at(if name == "other" { 2 } else { 1 })));
        let steps = plan(&known, &there.into(), now);
        let ask = |name| Step::Ask(path(name));
        assert_eq!(steps, [Step::Forget(path("gone")), ask("due"), ask("new"), ask("other")]);
    }

    #[test]
    fn versions_and_names_are_checked() {
        let of = |list: &[&str]| version(&list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&["1.0.0", "1.10.0", "1.9.0", "2.0.0"]), Some((1, 10, 0)));
        assert_eq!(of(&["v1.2"]), Some((1, 2, 0)));
        for none in [&["0.3.0"][..], &["2.0"], &["1.x"], &[""], &[], &["1.0.0.0"]] {
            assert_eq!(of(none), None, "{none:?}");
        }
        assert!(is_name("disk.csi.azure.com") && is_name("A-1"));
        for wrong in ["", "a/b", "..", ".a", "a.", "ä", &"a".repeat(64)] {
            assert!(!is_name(wrong), "{wrong}");
        }
    }
}
