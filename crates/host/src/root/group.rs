//! A volume's files are given to a group (upstream pkg/volume/volume_linux.go).

use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{FileStat, fstat, fstatat};
use nix::unistd::{Gid, fchownat};

use super::{FileKind, GroupOwner, MAX_DEPTH, kind_of, list, too_deep};

const READ_WRITE: u32 = 0o660;
const READ_ONLY: u32 = 0o440;
const ENTER: u32 = 0o110;
/// What is made in a directory belongs to the directory's group.
const INHERIT: u32 = 0o2000;

/// The permission bits that are added.
fn mask(kind: FileKind, owner: GroupOwner) -> u32 {
    let mask = if owner.writable { READ_WRITE } else { READ_ONLY };
    if kind == FileKind::Directory { mask | ENTER | INHERIT } else { mask }
}

/// Whether an object is as it should be.
fn is_given(stat: &FileStat, owner: GroupOwner) -> bool {
    let wanted = mask(kind_of(stat.st_mode), owner);
    stat.st_gid == owner.group && stat.st_mode & wanted == wanted
}

pub(super) fn give(dir: &OwnedFd, owner: GroupOwner) -> io::Result<()> {
    if owner.only_on_mismatch && is_given(&fstat(dir)?, owner) {
        return Ok(());
    }
    // What is below comes first: the directory itself says that all is done.
    give_below(dir, owner, 0)?;
    give_one(dir, owner)
}

fn give_below(dir: &OwnedFd, owner: GroupOwner, depth: usize) -> io::Result<()> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    for (name, kind) in list(dir.try_clone()?)? {
        let flags = if kind == FileKind::Directory { OFlag::O_RDONLY | OFlag::O_DIRECTORY } else { OFlag::O_PATH | OFlag::O_NOFOLLOW };
        let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        let entry = match openat2(dir, name.as_str(), how) {
            Ok(entry) => entry,
            // It went away, or is something else by now.
            Err(Errno::ENOENT | Errno::ELOOP | Errno::ENOTDIR) => continue,
            Err(error) => return Err(error.into()),
        };
        if kind == FileKind::Directory {
            give_below(&entry, owner, depth + 1)?;
        }
        give_one(&entry, owner)?;
    }
    Ok(())
}

/// Gives one open object: the group always, the permissions of anything but a link.
fn give_one(object: &OwnedFd, owner: GroupOwner) -> io::Result<()> {
    let stat = fstatat(object, "", AtFlags::AT_EMPTY_PATH)?;
    match fchownat(object.as_fd(), "", None, Some(Gid::from_raw(owner.group)), AtFlags::AT_EMPTY_PATH) {
        // Ordinary users have one group in their namespace.
        Ok(()) | Err(Errno::EINVAL) => {}
        Err(error) => return Err(error.into()),
    }
    let kind = kind_of(stat.st_mode);
    if kind == FileKind::Link {
        return Ok(());
    }
    // The magic link of an open object leads to that object, whatever has its name by now.
    let mode = (stat.st_mode & 0o7777) | mask(kind, owner);
    std::fs::set_permissions(format!("/proc/self/fd/{}", object.as_raw_fd()), Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn mode(path: &std::path::Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn files_and_directories_are_opened_to_the_group_and_links_are_left() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        std::fs::write(&outside, "x").unwrap();
        std::fs::set_permissions(&outside, Permissions::from_mode(0o600)).unwrap();
        let volume = dir.path().join("volume");
        std::fs::create_dir_all(volume.join("deep")).unwrap();
        std::fs::write(volume.join("deep/file"), "x").unwrap();
        for (path, mode) in [("deep/file", 0o600), ("deep", 0o700), ("", 0o700)] {
            std::fs::set_permissions(volume.join(path), Permissions::from_mode(mode)).unwrap();
        }
        std::os::unix::fs::symlink(&outside, volume.join("link")).unwrap();
        let group = nix::unistd::getgid().as_raw();
        let open = || OwnedFd::from(File::open(&volume).unwrap());
        give(&open(), GroupOwner { group, writable: true, only_on_mismatch: false }).unwrap();
        assert_eq!((mode(&volume), mode(&volume.join("deep")), mode(&volume.join("deep/file"))), (0o2770, 0o2770, 0o660));
        assert_eq!(mode(&outside), 0o600, "a link leads nowhere");
        // A directory that is right already says that its files are.
        std::fs::set_permissions(volume.join("deep/file"), Permissions::from_mode(0o600)).unwrap();
        give(&open(), GroupOwner { group, writable: true, only_on_mismatch: true }).unwrap();
        assert_eq!(mode(&volume.join("deep/file")), 0o600);
        std::fs::set_permissions(&volume, Permissions::from_mode(0o700)).unwrap();
        give(&open(), GroupOwner { group, writable: false, only_on_mismatch: true }).unwrap();
        assert_eq!((mode(&volume), mode(&volume.join("deep/file"))), (0o2750, 0o640));
    }
}
