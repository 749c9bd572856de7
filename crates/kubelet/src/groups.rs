//! Control groups of pods: the runtime makes them, and nobody else removes them (upstream cm/pod_container_manager_linux.go, kubelet_pods.go
//! `cleanupOrphanedPodCgroups`).
//!
//! Guarantees: a group goes only when it is empty, and only one that is named for a pod, below `kubepods`. Those that systemd keeps as slices
//! are not touched.

use host::{FileKind, HostRoot, PodPath};
use thiserror_ext::AsReport as _;

const MOUNT: &str = "/sys/fs/cgroup";
/// Where pods have theirs, by class.
const CLASSES: [&[&str]; 3] = [&["kubepods"], &["kubepods", "besteffort"], &["kubepods", "burstable"]];

/// The groups of pods, with the UIDs of the pods; of version 1 one in each hierarchy.
pub(crate) fn of_pods(root: &HostRoot) -> Vec<(String, PodPath)> {
    let Ok(mount) = root.parse(MOUNT) else { return Vec::new() };
    let unified = directories(root, &mount).iter().any(|(name, _)| name == "kubepods");
    let hierarchies = if unified { vec![mount] } else { directories(root, &mount).into_iter().map(|(_, path)| path).collect() };
    let classes = hierarchies
        .iter()
        .flat_map(|hierarchy| CLASSES.iter().filter_map(|names| names.iter().try_fold(hierarchy.clone(), |path, name| path.join(name)).ok()));
    let groups = classes.flat_map(|class| directories(root, &class));
    groups.filter_map(|(name, path)| Some((name.strip_prefix("pod")?.to_owned(), path))).collect()
}

/// Removes a group and those below it, as far as they are empty.
pub(crate) fn remove(root: &HostRoot, group: &PodPath) {
    for (_, below) in directories(root, group) {
        remove(root, &below);
    }
    if let Err(error) = root.remove_dir(group) {
        tracing::debug!(group = %group, error = %error.as_report(), "a control group of a pod stays for now");
    }
}

fn directories(root: &HostRoot, at: &PodPath) -> Vec<(String, PodPath)> {
    let entries = root.read_dir(at).unwrap_or_default();
    let directories = entries.into_iter().filter(|(_, kind)| *kind == FileKind::Directory);
    directories.filter_map(|(name, _)| at.join(&name).ok().map(|path| (name, path))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_pods_are_found_in_both_versions_and_removed_with_those_below() {
        for hierarchies in [&[""][..], &["memory", "pids"]] {
            let dir = tempfile::tempdir().unwrap();
            let root = HostRoot::linux(dir.path()).unwrap();
            let at = |hierarchy: &str, group: &str| dir.path().join("sys/fs/cgroup").join(hierarchy).join(group);
            for hierarchy in hierarchies {
                for group in ["kubepods/poda/c1", "kubepods/burstable/podb", "kubepods/besteffort/podc", "kubepods/besteffort/other", "system/podx"] {
                    std::fs::create_dir_all(at(hierarchy, group)).unwrap();
                }
                // A group with processes is as little removed as a directory with a file.
                std::fs::write(at(hierarchy, "kubepods/burstable/podb/busy"), "").unwrap();
            }
            let found = of_pods(&root);
            let mut uids: Vec<&str> = found.iter().map(|(uid, _)| uid.as_str()).collect();
            uids.sort_unstable();
            uids.dedup();
            assert_eq!(uids, ["a", "b", "c"]);
            assert_eq!(found.len(), 3 * hierarchies.len());
            found.iter().for_each(|(_, group)| remove(&root, group));
            for hierarchy in hierarchies {
                let left = ["kubepods/poda", "kubepods/burstable/podb", "kubepods/besteffort/podc", "kubepods/besteffort/other", "system/podx"];
                assert_eq!(left.map(|group| at(hierarchy, group).exists()), [false, true, false, true, true]);
            }
        }
    }
}
