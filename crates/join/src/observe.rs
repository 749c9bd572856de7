//! Facts about this machine: for preflight, and for the plan.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_cri::v1::VersionRequest;
use kubelet::certificates::bootstrap::Bootstrap;
use thiserror_ext::AsReport as _;

use crate::cluster_info;
use crate::discovery::Discovered;
use crate::journal::{self, Journal, JournalError, State};
use crate::pins::pins_of;
use crate::places::Places;
use crate::preflight::{Facts, ServiceFacts};
use crate::settings::{KNOWN_SOCKETS, Machine, Settings};
use install::control::{Service, ServiceState};

/// Port of the node agent's server.
const KUBELET_PORT: u16 = 10250;
/// How long the container runtime may take to answer.
const RUNTIME: Duration = Duration::from_secs(5);

/// What the machine says of itself.
#[must_use]
pub fn machine(host_name: Option<String>) -> Machine {
    let sockets = KNOWN_SOCKETS.iter().filter(|socket| cfg!(unix) && Path::new(socket).exists());
    Machine { host_name: host_name.unwrap_or_default(), sockets: sockets.map(|socket| (*socket).to_owned()).collect() }
}

/// Facts for preflight. What an unfinished join of this machine has made is no finding.
pub async fn facts<S: Service>(settings: &Settings, places: &Places, service: &S, journal: Option<&Journal>) -> Facts {
    let unfinished = journal.filter(|journal| journal.state == State::Joining);
    let written = [places.kubelet_conf(), places.bootstrap_conf(), places.at(&settings.ca_path)];
    let is_own = |path: &PathBuf| unfinished.is_some_and(|journal| journal.files.iter().any(|entry| entry.path == *path));
    // On Windows without the drive: the checks have the same names there.
    let shown = |path: &PathBuf| places.shown(path).replace('\\', "/").trim_start_matches("C:").to_owned();
    let files = written.iter().filter(|path| path.exists() && !is_own(path)).map(shown).collect();
    let state = match service.state().await {
        // One that the join makes is no finding.
        Ok(Some(ServiceState { exists: false, .. })) if service.can_install() => None,
        Ok(state) => state,
        Err(error) => {
            tracing::warn!(error = %error.as_report(), "the service kubelet cannot be looked at");
            Some(ServiceState::default())
        }
    };
    let own_agent_runs = unfinished.is_some() && state.is_some_and(|state| state.is_active);
    let (runtime, unresolved) = tokio::join!(runtime_problem(&settings.cri_socket), lookup_problem(&settings.node_name));
    Facts {
        is_privileged: is_privileged(),
        port_in_use: if own_agent_runs { None } else { port_problem(KUBELET_PORT) },
        files,
        has_manifests: std::fs::read_dir(places.manifests()).is_ok_and(|mut entries| entries.next().is_some()),
        has_swap: read("/proc/swaps").is_some_and(|text| text.lines().count() > 1),
        runtime,
        unresolved,
        service: state.map(|state| ServiceFacts { exists: state.exists, is_enabled: state.is_enabled }),
        forwards: read("/proc/sys/net/ipv4/ip_forward").map(|text| text.trim() == "1"),
        has_cgroup_v1: has_cgroup_v1(Path::new("/sys/fs/cgroup")),
    }
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// Whether this process is root's; none where nothing says so.
fn is_privileged() -> Option<bool> {
    effective_user(&read("/proc/self/status")?).map(|user| user == 0)
}

/// The effective user in `/proc/PID/status`.
fn effective_user(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().nth(1)?.parse().ok()
}

fn has_cgroup_v1(root: &Path) -> Option<bool> {
    root.exists().then(|| !root.join("cgroup.controllers").exists())
}

/// Why a port cannot be listened on, on all addresses.
fn port_problem(port: u16) -> Option<String> {
    let taken =
        |result: io::Result<TcpListener>| result.err().filter(|error| error.kind() == io::ErrorKind::AddrInUse).map(|error| error.to_string());
    taken(TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))).or_else(|| taken(TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))))
}

/// Why the container runtime does not answer.
async fn runtime_problem(endpoint: &str) -> Option<String> {
    let client = match cri::Client::connect(endpoint) {
        Ok(client) => client,
        Err(error) => return Some(error.to_report_string()),
    };
    match tokio::time::timeout(RUNTIME, client.version(VersionRequest::default())).await {
        Ok(Ok(_)) => None,
        Ok(Err(error)) => Some(error.to_report_string()),
        Err(_) => Some(format!("it did not answer within {}s", RUNTIME.as_secs())),
    }
}

/// Why a name cannot be looked up.
async fn lookup_problem(name: &str) -> Option<String> {
    tokio::net::lookup_host((name, 0)).await.err().map(|error| error.to_string())
}

/// What a plan needs to know of the files.
pub struct Observed {
    /// Content of files that a join writes.
    pub there: BTreeMap<PathBuf, String>,
    /// Whether the node's kubeconfig has a good certificate of this node, in this cluster.
    pub has_certificate: bool,
}

/// Looks at the files that a join writes.
///
/// # Errors
/// When one cannot be read.
pub async fn observe(settings: &Settings, places: &Places, discovered: &Discovered) -> Result<Observed, JournalError> {
    let mut there = BTreeMap::new();
    let files = [places.at(&settings.ca_path), places.bootstrap_conf(), places.instance_config(), places.config(), places.flags_env()];
    for path in files {
        if let Some(previous) = journal::content(&path)? {
            there.insert(path, previous.text);
        }
    }
    let has_certificate = is_of_cluster(&places.kubelet_conf(), &discovered.ca_pem) && has_good_certificate(settings, places).await;
    Ok(Observed { there, has_certificate })
}

async fn has_good_certificate(settings: &Settings, places: &Places) -> bool {
    let bootstrap = Bootstrap {
        kubeconfig: places.kubelet_conf(),
        bootstrap_kubeconfig: places.bootstrap_conf(),
        cert_dir: places.cert_dir(),
        node_name: settings.node_name.clone(),
    };
    bootstrap.is_needed().await.is_ok_and(|needed| !needed)
}

/// Whether a kubeconfig trusts the authority of the cluster.
fn is_of_cluster(kubeconfig: &Path, ca_pem: &str) -> bool {
    let Ok(Some(text)) = journal::content(kubeconfig) else { return false };
    // The client's key is not needed for this.
    let described = cluster_info::parse(&text.text, true, |path| std::fs::read_to_string(path));
    let theirs = described.ok().and_then(|described| described.ca_pem).and_then(|ca_pem| pins_of(&ca_pem).ok());
    theirs.is_some_and(|theirs| pins_of(ca_pem).is_ok_and(|ours| ours == theirs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_effective_user_counts() {
        assert_eq!(effective_user("Name:\tx\nUid:\t1000\t0\t0\t0\nGid:\t1\t1\t1\t1\n"), Some(0));
        assert_eq!(effective_user("Uid:\t1000\t1000\t1000\t1000\n"), Some(1000));
        assert_eq!(effective_user(""), None);
    }

    #[test]
    fn a_port_that_somebody_listens_on_is_in_use() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(port_problem(port).is_some());
        drop(listener);
        assert_eq!(port_problem(port), None);
    }

    #[test]
    fn the_version_of_control_groups_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(has_cgroup_v1(&dir.path().join("none")), None);
        assert_eq!(has_cgroup_v1(dir.path()), Some(true));
        std::fs::write(dir.path().join("cgroup.controllers"), "cpu").unwrap();
        assert_eq!(has_cgroup_v1(dir.path()), Some(false));
    }

    /// The rest of the facts is of the machine that runs the test.
    #[tokio::test]
    async fn files_of_another_join_are_found_and_those_of_an_unfinished_one_are_not() {
        use crate::config::JoinConfiguration;
        use crate::journal::Entry;
        use crate::settings::Flags;
        use install::control::Unmanaged;
        let dir = tempfile::tempdir().unwrap();
        let flags = Flags { discovery_file: Some("a".into()), cri_socket: Some("unix:///none".into()), ..Flags::default() };
        let machine = Machine { host_name: "localhost".into(), ..Machine::default() };
        let settings = Settings::new(flags.merged_into(JoinConfiguration::default()), &machine).unwrap();
        for is_windows in [false, true] {
            let places = Places::new(dir.path(), is_windows);
            std::fs::create_dir_all(places.manifests()).unwrap();
            for path in [places.kubelet_conf(), places.manifests().join("a.yaml")] {
                std::fs::write(path, "x").unwrap();
            }
            let seen = facts(&settings, &places, &Unmanaged, None).await;
            assert_eq!(seen.files.iter().collect::<Vec<_>>(), ["/etc/kubernetes/kubelet.conf"]);
            assert!(seen.has_manifests && seen.runtime.is_some() && seen.service.is_none());
            let mut journal = Journal::new("https://a", Vec::new(), "localhost");
            journal.files.push(Entry { path: places.kubelet_conf(), previous: None });
            assert!(facts(&settings, &places, &Unmanaged, Some(&journal)).await.files.is_empty());
            assert_eq!(facts(&settings, &places, &Unmanaged, Some(&journal.finished())).await.files.len(), 1);
        }
    }

    #[tokio::test]
    async fn a_runtime_that_is_not_there_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let problem = runtime_problem(&format!("unix://{}/none.sock", dir.path().display())).await;
        assert!(problem.is_some());
        assert!(lookup_problem("127.0.0.1").await.is_none());
    }
}
