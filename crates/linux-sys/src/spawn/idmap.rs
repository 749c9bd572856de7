//! Which users a new user namespace knows.

use std::fs;
use std::io;
use std::ops::Range;

use nix::unistd::{Uid, getegid, geteuid};

/// The users of this machine that stand for the users of a namespace which root makes: without rights, and the last of those that systemd
/// keeps for containers.
pub const UNPRIVILEGED: Range<u32> = 0x6FFF_0000..0x7000_0000;

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

/// Every user keeps their number if the caller is root, else as [`only_me`].
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

/// Whether a caller's user 0 is the machine's root, so far as this namespace can know.
pub fn is_machine_root() -> io::Result<bool> {
    if geteuid() != Uid::from_raw(0) {
        return Ok(false);
    }
    let map = fs::read_to_string("/proc/self/uid_map")?;
    let first = map.lines().next().unwrap_or_default();
    let numbers: Vec<u64> = first.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    // A namespace with one user does not show it; there it is mapped as everybody's is.
    Ok(matches!(numbers.as_slice(), [0, 0, count] if *count > 1))
}

/// Users 0 to 65,535 are [`UNPRIVILEGED`] if the caller is the machine's root, else as [`all_or_me`].
pub(super) fn unprivileged_or_me() -> io::Result<UserMaps> {
    if !is_machine_root()? {
        return all_or_me();
    }
    let map = format!("0 {} {}", UNPRIVILEGED.start, UNPRIVILEGED.len());
    Ok(UserMaps { uid: map.clone(), gid: map, deny_groups: false })
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
