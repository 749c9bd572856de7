//! What pods leave behind: everything of the machine that they, the agent or the runtime add to.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use crate::cluster::Cluster;
use crate::machine::held;

/// Directories whose entries come and go with pods.
const DIRECTORIES: [&str; 6] =
    ["/var/lib/kubelet/pods", "/var/lib/kubelet/plugins", "/var/log/pods", "/var/log/containers", "/run/netns", "/var/run/netns"];

pub struct Left(BTreeSet<String>);

impl Left {
    pub fn now() -> Self {
        let mut found: BTreeSet<String> = held().into_iter().map(|id| format!("container {id}")).collect();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        // The first field is a number of its own in each.
        found.extend(mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(|at| format!("mount {at}")));
        for directory in DIRECTORIES {
            found.extend(entries(directory).map(|name| format!("file {directory}/{name}")));
        }
        found.extend(entries("/sys/class/net").map(|name| format!("link {name}")));
        found.extend(control_groups());
        for networks in ["/var/lib/cni/networks", "/run/cni/networks", "/var/lib/cni"] {
            reservations(Path::new(networks), &mut found);
        }
        Self(found)
    }

    /// Waits until only this is there.
    pub async fn is_all_there_is(&self, cluster: &Cluster) {
        cluster
            .until("the end of everything that pods left", async || {
                let more: Vec<String> = Self::now().0.difference(&self.0).cloned().collect();
                tokio::time::sleep(Duration::from_millis(500)).await;
                if more.is_empty() { Ok(()) } else { Err(format!("{} are left: {:#?}", more.len(), &more[..more.len().min(60)])) }
            })
            .await;
    }
}

fn entries(directory: &str) -> impl Iterator<Item = String> {
    std::fs::read_dir(directory).into_iter().flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok())
}

/// All control groups, but those that pods share.
pub fn control_groups() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for hierarchy in entries("/sys/fs/cgroup") {
        let directory = Path::new("/sys/fs/cgroup").join(hierarchy);
        // Controllers' own names are links to their hierarchies.
        if !directory.is_symlink() {
            groups(&directory, 0, &mut found);
        }
    }
    found
}

/// Control groups below a directory, but those that all pods share.
fn groups(directory: &Path, depth: u32, found: &mut BTreeSet<String>) {
    let below = std::fs::read_dir(directory).into_iter().flatten().flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    for entry in below.filter(|_| depth < 6) {
        let name = entry.file_name();
        if !["kubepods", "besteffort", "burstable"].iter().any(|shared| name == *shared) {
            found.insert(format!("cgroup {}", entry.path().display()));
        }
        groups(&entry.path(), depth + 1, found);
    }
}

/// Files below a directory of addresses whose names are addresses.
fn reservations(directory: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.parse::<std::net::IpAddr>().is_ok() {
            found.insert(format!("address {}", entry.path().display()));
        } else if entry.path().is_dir() {
            reservations(&entry.path(), found);
        } else if !name.starts_with("last_reserved_ip") && !name.contains("lock") {
            found.insert(format!("cni {}", entry.path().display()));
        }
    }
}

/// Open descriptors of the agent.
pub fn descriptors(cluster: &Cluster) -> usize {
    entries(&format!("/proc/{}/fd", cluster.node.pid().expect("the agent"))).count()
}
