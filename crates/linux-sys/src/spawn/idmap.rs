//! Which users a new user namespace knows.

use std::fs;
use std::io;

use nix::unistd::{Uid, getegid, geteuid};

/// What is written into a new process's `uid_map` and `gid_map`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UserMaps {
    pub uid: String,
    pub gid: String,
    /// A caller without privilege must forbid groups first.
    pub deny_groups: bool,
}

/// Root inside is the caller, and nobody else exists.
pub(super) fn only_me() -> UserMaps {
    UserMaps { uid: format!("0 {} 1", geteuid()), gid: format!("0 {} 1", getegid()), deny_groups: true }
}

/// Everybody stays who they are if the caller is root, else as [`only_me`].
pub(super) fn all_or_me() -> io::Result<UserMaps> {
    if geteuid() != Uid::from_raw(0) {
        return Ok(only_me());
    }
    let uid = identity(&fs::read_to_string("/proc/self/uid_map")?);
    let gid = identity(&fs::read_to_string("/proc/self/gid_map")?);
    let single = |map: &str| map.lines().all(|line| line.ends_with(" 1"));
    // Root of a namespace that knows only itself may not map more than that, and groups are forbidden there.
    if single(&uid) {
        return Ok(only_me());
    }
    Ok(UserMaps { uid, gid, deny_groups: false })
}

/// A map in which each number of this namespace stays itself.
fn identity(map: &str) -> String {
    let lines = map.lines().filter_map(|line| {
        let mut numbers = line.split_whitespace();
        let (inside, _, count) = (numbers.next()?, numbers.next()?, numbers.next()?);
        Some(format!("{inside} {inside} {count}"))
    });
    lines.collect::<Vec<_>>().join("\n")
}

impl UserMaps {
    /// Writes the maps for process `pid`, which waits for it.
    pub(super) fn apply(&self, pid: u32) -> io::Result<()> {
        let write = |file: &str, content: &str| {
            let path = format!("/proc/{pid}/{file}");
            fs::write(&path, content).map_err(|e| io::Error::new(e.kind(), format!("write {file} of a new user namespace: {e}")))
        };
        if self.deny_groups {
            write("setgroups", "deny")?;
        }
        write("uid_map", &self.uid)?;
        write("gid_map", &self.gid)
    }
}

#[cfg(test)]
mod tests {
    use super::identity;

    #[test]
    fn ranges_are_kept_with_their_own_numbers() {
        assert_eq!(identity("         0     100000      65536\n     65536   1000   1\n"), "0 0 65536\n65536 65536 1");
    }
}
