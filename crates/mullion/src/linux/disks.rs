//! Directories of local volumes: on the nodes' disks, which on one machine are directories of DIR.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use controllers::LocalVolumes;
use host::{HostRoot, NodeOs, PodPath};

/// `DIR/hosts`, and the nodes that have no disk there: the directories of hollow nodes are in the memory of their agents, which make them when
/// a pod uses them.
pub struct Disks {
    hosts: PathBuf,
    hollow: BTreeSet<String>,
}

impl Disks {
    /// The disks of the hosts below `hosts`, beside so many hollow nodes.
    pub fn new(hosts: PathBuf, hollow: u32) -> Self {
        Self { hosts, hollow: hollow::names(hollow).collect() }
    }

    /// The disks of a node and a path on them, in the node's own form. A Windows host is known by its drives.
    fn find(&self, node: &str, path: &str) -> io::Result<(HostRoot, PodPath)> {
        let host = self.hosts.join(node);
        let root = if host.join("root").is_dir() {
            HostRoot::linux(host.join("root"))
        } else {
            HostRoot::windows(NodeOs::Windows { build: node_config::node_spec::DEFAULT_BUILD }, [('C', host.join("c"))])
        };
        let root = root.map_err(io::Error::other)?;
        let path = root.parse(path).map_err(io::Error::other)?;
        Ok((root, path))
    }
}

impl LocalVolumes for Disks {
    fn create(&self, node: &str, path: &str) -> io::Result<()> {
        if self.hollow.contains(node) {
            return Ok(());
        }
        let (root, path) = self.find(node, path)?;
        root.create_dir_all(&path, 0o777).map_err(io::Error::other)
    }

    fn remove(&self, node: &str, path: &str) -> io::Result<()> {
        if self.hollow.contains(node) {
            return Ok(());
        }
        let (root, path) = self.find(node, path)?;
        root.remove_tree(&path).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_made_and_removed_on_either_system() {
        let dir = tempfile::tempdir().unwrap();
        for made in ["lin/root", "win/c"] {
            std::fs::create_dir_all(dir.path().join(made)).unwrap();
        }
        let disks = Disks::new(dir.path().to_owned(), 1);
        for (node, path, place) in [("lin", "/var/lib/v/pv", "lin/root/var/lib/v/pv"), ("win", "C:\\var\\lib\\v\\pv", "win/c/var/lib/v/pv")] {
            disks.create(node, path).unwrap();
            disks.create(node, path).expect("that it is there is fine");
            let place = dir.path().join(place);
            std::fs::write(place.join("x"), "x").unwrap();
            disks.remove(node, path).unwrap();
            disks.remove(node, path).expect("that it is gone is fine");
            assert!(!place.exists() && place.parent().unwrap().is_dir());
        }
        assert!(disks.create("nobody", "/x").is_err());
        disks.create("hollow-0001", "C:\\x").expect("its agent makes it");
        disks.remove("hollow-0001", "C:\\x").expect("it has none");
        assert!(disks.create("hollow-0002", "C:\\x").is_err(), "there is one hollow node");
    }
}
