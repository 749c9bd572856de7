//! Messages of Windows nodes: replaces paths of the machine by paths of the node.
//!
//! The files of a node lie in directories of the machine that runs the lab; a reader of a pod's events knows the node's drives only.

use std::path::Path;
use std::sync::{PoisonError, RwLock};

use crate::Config;
use crate::shim::HostDirs;

/// Directories of this machine, longest first, and their names on the nodes.
static KNOWN: RwLock<Vec<(String, String)>> = RwLock::new(Vec::new());

/// Registers the directories of a node. Paths of Linux nodes are not replaced.
pub(super) fn register(config: &Config) {
    if !config.os.is_windows() {
        return;
    }
    let mut dirs = vec![
        (config.netns_dir.as_path(), "compartment".to_owned()),
        (config.cni.conf_dir.as_path(), "the directory of CNI configurations".to_owned()),
        (config.cni.bin_dir.as_path(), "the directory of CNI plug-ins".to_owned()),
        (config.state_dir.as_path(), "the runtime's state".to_owned()),
        (config.cache_dir.as_path(), "the cache of images".to_owned()),
    ];
    if let HostDirs::Drives(drives) = &config.host {
        dirs.extend(drives.iter().map(|(letter, dir)| (dir.as_path(), format!("{letter}:"))));
    }
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    for (dir, name) in dirs.into_iter().filter(|(dir, _)| *dir != Path::new("/")) {
        let dir = dir.to_string_lossy().into_owned();
        if !known.iter().any(|(other, _)| *other == dir) {
            known.push((dir, name));
        }
    }
    known.sort_by_key(|(dir, _)| std::cmp::Reverse(dir.len()));
}

/// The text with the node's names of registered directories.
pub(super) fn replace(text: String) -> String {
    translate(text, &KNOWN.read().unwrap_or_else(PoisonError::into_inner))
}

fn translate(mut text: String, known: &[(String, String)]) -> String {
    for (dir, name) in known {
        let mut from = 0;
        while let Some(start) = text.get(from..).and_then(|rest| rest.find(dir.as_str())).map(|at| from + at) {
            let rest = &text[start + dir.len()..];
            // Where the name goes on, it is another directory's.
            if rest.starts_with(|next: char| next.is_alphanumeric() || matches!(next, '-' | '_' | '.')) {
                from = start + dir.len();
                continue;
            }
            let below = rest.find([' ', '"', '\'', ':', ',', ';', ')', '\n']).map_or(rest, |end| &rest[..end]);
            let end = start + dir.len() + below.len();
            let named = match below.strip_prefix('/') {
                Some(guid) if name == "compartment" => format!("{name} {guid}"),
                _ => format!("{name}{}", below.replace('/', "\\")),
            };
            text.replace_range(start..end, &named);
            from = start + named.len();
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_machine_become_those_of_the_node() {
        let known = [
            ("/tmp/c/hosts/win01/cni/conf", "the directory of CNI configurations"),
            ("/run/m/ns/win01.d", "compartment"),
            ("/tmp/c/hosts/win01/c", "C:"),
            ("/tmp/c/hosts/win01", "the runtime's state"),
        ]
        .map(|(dir, name)| (dir.to_owned(), name.to_owned()));
        for (text, expected) in [
            ("cannot make /tmp/c/hosts/win01/c/var/log/pods/x: File exists", r"cannot make C:\var\log\pods\x: File exists"),
            (
                "no network configuration in /tmp/c/hosts/win01/cni/conf: none",
                "no network configuration in the directory of CNI configurations: none",
            ),
            ("cannot open \"/run/m/ns/win01.d/0a-1\", twice: /run/m/ns/win01.d/0a-2", "cannot open \"compartment 0a-1\", twice: compartment 0a-2"),
            ("cannot read /tmp/c/hosts/win01/cri/a/shim.json", r"cannot read the runtime's state\cri\a\shim.json"),
            ("of another node: /tmp/c/hosts/win012/c", "of another node: /tmp/c/hosts/win012/c"),
        ] {
            assert_eq!(translate(text.to_owned(), &known), expected);
        }
    }
}
