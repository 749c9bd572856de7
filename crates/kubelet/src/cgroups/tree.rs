//! Which control groups a machine has, from its table of mounts.

use host::HostRoot;

/// Where version 2 has to be for programs that know only one place.
pub(crate) const UNIFIED: &str = "/sys/fs/cgroup";

/// Controllers of version 1 that the container runtime and the agent know.
const CONTROLLERS: [&str; 14] =
    ["cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "hugetlb", "net_cls", "net_prio", "perf_event", "rdma", "misc"];
/// systemd's own hierarchy of version 1, which has no controllers.
const SYSTEMD: &str = "name=systemd";

/// The control groups of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tree {
    /// Version 1: several hierarchies.
    Split(Vec<Hierarchy>),
    /// Version 2: one, with these controllers.
    Unified(Vec<String>),
}

/// One hierarchy of version 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hierarchy {
    pub mount: String,
    pub controllers: Vec<String>,
}

impl Tree {
    /// Those of a node, by its table of mounts; None without any that the agent can use.
    pub(crate) fn of(root: &HostRoot) -> Option<Self> {
        super::read_tree(root)
    }

    /// Where the files of a controller are, those of the root of version 2 among them, which offers it to no group below.
    pub(crate) fn place_of(&self, controller: &str) -> Option<&str> {
        match self {
            Tree::Split(_) => self.mount_of(controller),
            Tree::Unified(_) => Some(UNIFIED),
        }
    }

    /// Where each hierarchy is mounted.
    pub(crate) fn mounts(&self) -> Vec<&str> {
        match self {
            Tree::Split(all) => all.iter().map(|hierarchy| hierarchy.mount.as_str()).collect(),
            Tree::Unified(_) => vec![UNIFIED],
        }
    }

    /// Where the hierarchy with a controller is mounted.
    pub(crate) fn mount_of(&self, controller: &str) -> Option<&str> {
        let has = |all: &[String]| all.iter().any(|own| own == controller);
        match self {
            Tree::Split(all) => all.iter().find(|hierarchy| has(&hierarchy.controllers)).map(|hierarchy| hierarchy.mount.as_str()),
            Tree::Unified(all) => has(all).then_some(UNIFIED),
        }
    }
}

/// A mount.
#[derive(Debug, PartialEq, Eq)]
struct Mount<'a> {
    at: String,
    kind: &'a str,
    options: &'a str,
}

/// One line of mountinfo.
fn mount(line: &str) -> Option<Mount<'_>> {
    let (left, right) = line.split_once(" - ")?;
    let at = unescape(left.split(' ').nth(4)?)?;
    let mut right = right.split(' ');
    let kind = right.next()?;
    Some(Mount { at, kind, options: right.nth(1)? })
}

/// A path of a table of mounts with its octal escapes resolved; None where it is no text.
pub(crate) fn unescape(text: &str) -> Option<String> {
    let (mut out, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((&first, more)) = rest.split_first() {
        match more.get(..3).filter(|_| first == b'\\').and_then(|octal| u8::from_str_radix(std::str::from_utf8(octal).ok()?, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &more[3..];
            }
            None => {
                out.push(first);
                rest = more;
            }
        }
    }
    String::from_utf8(out).ok()
}

/// Whether the machine has version 2 alone, by its table of mounts.
pub(crate) fn is_unified(mountinfo: &str) -> bool {
    // The last mount at a place is the one that is seen.
    mountinfo.lines().rev().filter_map(mount).find(|mount| mount.at == UNIFIED).is_some_and(|mount| mount.kind == "cgroup2")
}

/// The control groups by the table of mounts and, of version 2, the file cgroup.controllers of the root. None where the agent can use none.
pub(crate) fn read(mountinfo: &str, controllers: &str) -> Option<Tree> {
    if is_unified(mountinfo) {
        return Some(Tree::Unified(controllers.split_whitespace().map(str::to_owned).collect()));
    }
    let mut all: Vec<Hierarchy> = Vec::new();
    for mount in mountinfo.lines().filter_map(mount).filter(|mount| mount.kind == "cgroup") {
        let is_known = |option: &&str| *option == SYSTEMD || CONTROLLERS.contains(option);
        let mut own: Vec<String> = mount.options.split(',').filter(is_known).map(str::to_owned).collect();
        own.sort();
        if own.is_empty() {
            continue;
        }
        // Of several mounts of a hierarchy the shortest path counts, as upstream.
        match all.iter_mut().find(|other| other.controllers == own) {
            Some(other) if mount.at.len() < other.mount.len() => other.mount = mount.at,
            Some(_) => {}
            None => all.push(Hierarchy { mount: mount.at, controllers: own }),
        }
    }
    all.iter().any(|hierarchy| hierarchy.controllers != [SYSTEMD]).then_some(Tree::Split(all))
}

/// Reads any table, for fuzzing.
pub(crate) fn check(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Some(tree) = read(&text, &text) {
        assert!(!tree.mounts().is_empty());
        let _ = tree.mount_of("memory");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(all: &[(&str, &[&str])]) -> Option<Tree> {
        let hierarchy = |(mount, controllers): &(&str, &[&str])| Hierarchy {
            mount: (*mount).into(),
            controllers: controllers.iter().map(|c| (*c).into()).collect(),
        };
        Some(Tree::Split(all.iter().map(hierarchy).collect()))
    }

    #[test]
    fn control_groups_are_found_in_the_table_of_mounts() {
        let line = |at: &str, kind: &str, options: &str| format!("31 23 0:28 / {at} rw,relatime shared:1 - {kind} cgroup {options}\n");
        let root = line("/sys/fs/cgroup", "tmpfs", "rw,mode=755");
        let (memory, cpu) = (line("/sys/fs/cgroup/memory", "cgroup", "rw,memory"), line("/sys/fs/cgroup/cpu,cpuacct", "cgroup", "rw,cpuacct,cpu"));
        let (systemd, hybrid) = (line("/sys/fs/cgroup/systemd", "cgroup", "rw,xattr,name=systemd"), line("/sys/fs/cgroup/unified", "cgroup2", "rw"));
        let unified = line("/sys/fs/cgroup", "cgroup2", "rw,nsdelegate");
        for (what, table, wanted) in [
            ("nothing", root.clone(), None),
            ("no controllers", root.clone() + &systemd + &hybrid, None),
            (
                "version 1",
                root.clone() + &memory + &cpu + &systemd,
                split(&[
                    ("/sys/fs/cgroup/memory", &["memory"]),
                    ("/sys/fs/cgroup/cpu,cpuacct", &["cpu", "cpuacct"]),
                    ("/sys/fs/cgroup/systemd", &["name=systemd"]),
                ]),
            ),
            ("a hybrid", root.clone() + &memory + &hybrid, split(&[("/sys/fs/cgroup/memory", &["memory"])])),
            (
                "mounted twice",
                line("/var/lib/chroot/cgroup/memory", "cgroup", "rw,memory") + &memory,
                split(&[("/sys/fs/cgroup/memory", &["memory"])]),
            ),
            ("a blank in a path", line(r"/a\040b", "cgroup", "rw,pids"), split(&[("/a b", &["pids"])])),
            ("an unknown controller", line("/x", "cgroup", "rw,debug"), None),
            ("version 2", root.clone() + &unified, Some(Tree::Unified(vec!["cpu".into(), "memory".into()]))),
            ("hidden version 2", unified + &root + &memory, split(&[("/sys/fs/cgroup/memory", &["memory"])])),
            ("broken lines", "\n - \n1 2 3 - cgroup\n1 2 3 4 5 6 - cgroup cgroup\n".to_owned(), None),
        ] {
            assert_eq!(read(&table, "cpu memory\n"), wanted, "{what}");
        }
    }
}
