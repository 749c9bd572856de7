//! What a cluster leaves on the real host: nothing, neither while it runs nor after it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;

use crate::cluster::{Cluster, PATIENCE, until};

/// Interfaces and routes of this test's network namespace.
pub fn host_network() -> String {
    let devices = fs::read_to_string("/proc/self/net/dev").expect("interfaces");
    let names: Vec<&str> = devices.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim()).collect();
    let routes = fs::read_to_string("/proc/self/net/route").expect("routes");
    format!("{names:?}\n{routes}")
}

/// No interface, no route.
pub fn host_network_is_untouched(cluster: &Cluster) {
    assert_eq!(host_network(), cluster.host_network);
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The namespaces of a process, as `net:[4026531840]`.
fn namespaces(pid: u32) -> BTreeSet<String> {
    let links = ["user", "mnt", "pid", "net", "ipc", "uts"].map(|kind| fs::read_link(format!("/proc/{pid}/ns/{kind}")));
    links.into_iter().flatten().map(|link| link.to_string_lossy().into_owned()).collect()
}

/// `root` and all processes below it.
pub fn family(root: u32) -> BTreeSet<u32> {
    let parent = |pid: u32| -> Option<u32> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let parents: BTreeMap<u32, u32> = processes().filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut family = BTreeSet::from([root]);
    loop {
        let more: Vec<u32> = parents.iter().filter(|(pid, parent)| family.contains(parent) && !family.contains(pid)).map(|(pid, _)| *pid).collect();
        if more.is_empty() {
            return family;
        }
        family.extend(more);
    }
}

/// Processes other than this one that name `path` on their command line.
pub fn naming(path: &Path) -> Vec<String> {
    let path = path.to_string_lossy();
    let command_line = |pid: u32| fs::read(format!("/proc/{pid}/cmdline")).map(|bytes| String::from_utf8_lossy(&bytes).replace('\0', " "));
    processes().filter(|pid| *pid != std::process::id()).filter_map(|pid| command_line(pid).ok()).filter(|line| line.contains(&*path)).collect()
}

/// Processes of a program with `part` on their command line.
pub fn running(program: &str, part: &str) -> Vec<String> {
    naming(Path::new(part))
        .into_iter()
        .filter(|line| line.split([' ', '/']).any(|word| word == program))
        .filter(|line| !line.contains("lab-outside"))
        .collect()
}

/// The processes and namespaces of a running cluster.
#[derive(Clone)]
pub struct Footprint {
    pub supervisor: u32,
    pub init: u32,
    processes: usize,
    user_namespaces: Arc<UserNamespaces>,
}

/// The user namespaces of a cluster, by number. They are held open: the kernel gives the number of a namespace that is gone to the
/// next one, which may be another test's.
struct UserNamespaces(BTreeMap<u64, File>);

impl UserNamespaces {
    fn of(pids: &BTreeSet<u32>) -> Self {
        let open = |pid: &u32| {
            let namespace = File::open(format!("/proc/{pid}/ns/user")).ok()?;
            Some((namespace.metadata().ok()?.ino(), namespace))
        };
        let ours = fs::metadata("/proc/self/ns/user").expect("this process has one").ino();
        Self(pids.iter().filter_map(open).filter(|(number, _)| *number != ours).collect())
    }

    fn has(&self, pid: u32) -> bool {
        fs::metadata(format!("/proc/{pid}/ns/user")).is_ok_and(|namespace| self.0.contains_key(&namespace.ino()))
    }
}

impl Footprint {
    /// As the cluster itself reports, and `/proc` shows.
    pub fn of(cluster: &Cluster) -> Self {
        let status: Value = serde_json::from_str(&cluster.place.mullion(&["status", "-o", "json"]).ok("mullion status")).expect("JSON");
        let number = |key: &str| status[key].as_u64().and_then(|pid| u32::try_from(pid).ok()).unwrap_or_else(|| panic!("no {key}: {status}"));
        let (supervisor, init) = (number("supervisor"), number("init"));
        let ours = namespaces(std::process::id());
        let pids = family(init);
        let namespaces: BTreeSet<String> = pids.iter().flat_map(|pid| namespaces(*pid)).filter(|namespace| !ours.contains(namespace)).collect();
        let hosts = status["nodes"].as_array().map_or(0, Vec::len) + 2;
        assert!(namespaces.len() >= hosts + 3, "user, mount and process namespace, and a network of each of {hosts} hosts: {namespaces:?}");
        Self { supervisor, init, processes: pids.len() + 1, user_namespaces: Arc::new(UserNamespaces::of(&pids)) }
    }

    fn processes(&self) -> impl Iterator<Item = u32> {
        processes().filter(|pid| *pid == self.supervisor || self.user_namespaces.has(*pid))
    }

    /// Processes that are left of it now. One that has begun to exit runs no more code and does not count: while the kernel takes its
    /// mounts apart it is not a zombie yet (PF_EXITING, 4, of the flags in proc_pid_stat(5)).
    pub fn left(&self, cluster: &Cluster) -> Vec<String> {
        let flags = |stat: &str| stat.rsplit_once(')')?.1.split_whitespace().nth(6)?.parse::<u32>().ok();
        let runs = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| flags(&stat).is_none_or(|flags| flags & 4 == 0));
        let shown = |pid: u32| {
            let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
            format!("{}: {}", read("stat").chars().take(60).collect::<String>(), read("cmdline").replace('\0', " "))
        };
        self.processes().filter(runs).map(shown).chain(naming(&cluster.place.dir())).collect()
    }

    /// Waits until none of it is left, nor a mount, nor the port.
    #[track_caller]
    pub fn is_gone(&self, cluster: &Cluster) {
        until("no process and no namespace is left", PATIENCE, || {
            let left: Vec<u32> = self.processes().collect();
            let named = naming(&cluster.place.dir());
            if left.is_empty() && named.is_empty() { Ok(()) } else { Err(format!("{left:?} {named:?}")) }
        });
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        assert!(!mounts.contains(&*cluster.place.path().to_string_lossy()), "a mount is left: {mounts}");
        assert_eq!(host_network(), cluster.host_network);
        std::net::TcpListener::bind(("127.0.0.1", cluster.port)).expect("the port is free again");
        assert!(cluster.place.dir().join("cluster.json").is_file(), "DIR keeps the cluster");
    }
}

/// `down` ends every process, mount and namespace, and frees the port; DIR stays.
pub fn down_leaves_nothing(cluster: &mut Cluster) {
    let footprint = Footprint::of(cluster);
    let begin = Instant::now();
    cluster.down().ok("mullion down");
    assert_eq!(footprint.left(cluster), Vec::<String>::new(), "`down` returns when all have ended");
    eprintln!("ok   down of {} processes ({:.2} s)", footprint.processes, begin.elapsed().as_secs_f64());
    footprint.is_gone(cluster);
    let run: Vec<_> = fs::read_dir(cluster.place.path().join("run")).expect("the runtime directory").flatten().map(|entry| entry.path()).collect();
    assert!(run.is_empty(), "left in the runtime directory: {run:?}");
    let output = cluster.down();
    assert_eq!(output.code, Some(74), "nothing runs any more: {output:?}");
    fs::remove_dir_all(cluster.place.dir()).expect("the user may remove DIR");
}
