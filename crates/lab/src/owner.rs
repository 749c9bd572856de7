//! Owners of a lab's files on the real host, and what the lab sees of them.
//!
//! An ordinary user's lab is that user outside, and everything stays as it is. The machine's root is nobody in a lab that root starts: its
//! users are 65,536 users without rights. They get the cluster's files, and find them where root has them, even below directories that
//! nobody but root may enter.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use linux_sys::mount::tree;
use linux_sys::spawn::{Step, UNPRIVILEGED, is_machine_root};
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::{Gid, Uid, fchownat};

use crate::error::LabError;

/// Gives `path`, and what is below it, to the users of this user's labs. No link at `path` or below it is followed.
///
/// # Errors
/// When something cannot be looked at or given away.
pub fn give(path: &Path) -> Result<(), LabError> {
    let root = is_machine_root().map_err(LabError::file("read", "/proc/self/uid_map"))?;
    if root { walk(path, give_away).map_err(|(path, error)| LabError::file("give to the cluster's users", path)(error)) } else { Ok(()) }
}

/// Gives a directory that processes of a lab write, and makes it first: below directories of root's they cannot. Of what is in it only
/// `entries` are given, with everything below them: other entries may be anybody's.
pub(crate) fn share(dir: &Path, entries: &[&str]) -> Result<(), LabError> {
    let root = is_machine_root().map_err(LabError::file("read", "/proc/self/uid_map"))?;
    if root {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(LabError::file("make", dir))?;
    }
    give_one(dir)?;
    entries.iter().try_for_each(|entry| give(&dir.join(entry)))
}

/// Gives `path` alone.
pub(crate) fn give_one(path: &Path) -> Result<(), LabError> {
    let root = is_machine_root().map_err(LabError::file("read", "/proc/self/uid_map"))?;
    if !root {
        return Ok(());
    }
    let given = open_plain(AT_FDCWD, path.as_os_str()).map_err(io::Error::from).and_then(|file| give_away(&file, &file.metadata()?));
    given.map_err(LabError::file("give to the cluster's users", path))
}

/// Whether what has this owner is this user's own.
pub(crate) fn is_own(meta: &Metadata) -> bool {
    let is_given = || meta.uid() == UNPRIVILEGED.start && is_machine_root().unwrap_or(false);
    meta.uid() == nix::unistd::geteuid().as_raw() || is_given()
}

/// Gives a file away by a handle from [`open_plain`].
fn give_away(file: &File, meta: &Metadata) -> io::Result<()> {
    if !UNPRIVILEGED.contains(&meta.uid()) || !UNPRIVILEGED.contains(&meta.gid()) {
        let (user, group) = (Uid::from_raw(given(meta.uid())), Gid::from_raw(given(meta.gid())));
        fchownat(file, "", Some(user), Some(group), AtFlags::AT_EMPTY_PATH)?;
        if meta.is_file() && meta.mode() & 0o6000 != 0 {
            // A change of owner clears these bits. fchmod refuses O_PATH handles; the magic link leads to the same file.
            fs::set_permissions(format!("/proc/self/fd/{}", file.as_raw_fd()), fs::Permissions::from_mode(meta.mode() & 0o7777))?;
        }
    }
    Ok(())
}

/// A handle of `name` in `dir` for looking at it and changing its owner; a link's handle is the link itself.
fn open_plain(dir: impl AsFd, name: &OsStr) -> nix::Result<File> {
    openat(dir, name, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty()).map(File::from)
}

/// A directory on the way of [`walk`], with the names that it has not visited.
struct Visited {
    dir: File,
    path: PathBuf,
    names: Vec<OsString>,
}

/// Calls `visit` with a handle of `path` and of everything below it, directories before their entries. Each name is looked up in the handle of
/// its directory, and links are not followed: renames and links made meanwhile do not lead out of the tree. What is gone meanwhile is skipped.
fn walk(path: &Path, mut visit: impl FnMut(&File, &Metadata) -> io::Result<()>) -> Result<(), (PathBuf, io::Error)> {
    let mut open: Vec<Visited> = Vec::new();
    open.extend(visit_one(AT_FDCWD, path.as_os_str(), path, &mut visit).map_err(|error| (path.to_owned(), error))?);
    while let Some(Visited { dir, path, names }) = open.last_mut() {
        let Some(name) = names.pop() else {
            open.pop();
            continue;
        };
        let path = path.join(&name);
        let entered = visit_one(&*dir, &name, &path, &mut visit).map_err(|error| (path, error))?;
        open.extend(entered);
    }
    Ok(())
}

/// Visits one entry; a directory is returned with its entries.
fn visit_one(dir: impl AsFd, name: &OsStr, path: &Path, visit: &mut impl FnMut(&File, &Metadata) -> io::Result<()>) -> io::Result<Option<Visited>> {
    let file = match open_plain(dir, name) {
        Err(Errno::ENOENT) => return Ok(None),
        other => other?,
    };
    let meta = file.metadata()?;
    visit(&file, &meta)?;
    if !meta.is_dir() {
        return Ok(None);
    }
    let mut names = Vec::new();
    for entry in Dir::openat(&file, ".", OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?.iter() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    Ok(Some(Visited { dir: file, path: path.to_owned(), names }))
}

/// The user of the machine that stands for one of a lab which knew the machine's users by their own numbers.
fn given(id: u32) -> u32 {
    let last = UNPRIVILEGED.end - UNPRIVILEGED.start - 1;
    if UNPRIVILEGED.contains(&id) { id } else { UNPRIVILEGED.start + id.min(last) }
}

/// What has to be done in a lab's mounts for its users to reach `paths`; the descriptors have to stay open until it is done.
pub(crate) fn reach(paths: &[&Path]) -> io::Result<(Vec<OwnedFd>, Vec<Step>)> {
    if !is_machine_root()? {
        return Ok((Vec::new(), Vec::new()));
    }
    let mut hidden: BTreeMap<PathBuf, Vec<PathBuf>> = BTreeMap::new();
    for path in paths {
        let path = fs::canonicalize(path).map_err(|error| io::Error::new(error.kind(), format!("look for {}: {error}", path.display())))?;
        if let Some(closed) = closed(&path) {
            hidden.entry(closed).or_default().push(path);
        }
    }
    let (mut trees, mut steps) = (Vec::new(), Vec::new());
    for (closed, mut paths) in hidden {
        paths.sort();
        steps.push(Step::Tmpfs { target: closed.clone(), options: "mode=0755,size=1m".into() });
        for path in paths {
            let tree = tree(&path)?;
            let way: Vec<&Path> = path.ancestors().take_while(|dir| *dir != closed).collect();
            steps.extend(way.into_iter().rev().map(|dir| Step::Mkdir(dir.to_owned())));
            steps.push(Step::Attach { tree: tree.as_raw_fd(), target: path });
            trees.push(tree);
        }
    }
    Ok((trees, steps))
}

/// The uppermost directory above `path` that users without rights may not enter.
fn closed(path: &Path) -> Option<PathBuf> {
    let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
    above.reverse();
    let is_open = |meta: Metadata| meta.mode() & 0o001 != 0 || (meta.uid() == UNPRIVILEGED.start && meta.mode() & 0o100 != 0);
    above.into_iter().find(|dir| !fs::metadata(dir).is_ok_and(is_open)).map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_moved_once() {
        assert_eq!([given(0), given(1000), given(65_535), given(4_000_000)], [0x6FFF_0000, 0x6FFF_03E8, 0x6FFF_FFFF, 0x6FFF_FFFF]);
        assert_eq!(given(given(7)), given(7));
    }

    /// Only root gives anything away; nobody gives foreign files away.
    #[test]
    fn foreign_files_keep_their_owner() {
        let root = tempfile::tempdir().unwrap();
        let (dir, outside) = (root.path().join("dir"), root.path().join("outside"));
        fs::create_dir_all(dir.join("hosts/lin01/root")).unwrap();
        fs::create_dir_all(dir.join("photos/2026")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(dir.join("notes.txt"), "mine").unwrap();
        std::os::unix::fs::symlink(&outside, dir.join("hosts/link")).unwrap();
        std::os::unix::fs::symlink(&outside, dir.join("store")).unwrap();
        share(&dir, &["hosts", "store", "pki"]).unwrap();
        let owner = |path: &str| fs::symlink_metadata(root.path().join(path)).unwrap().uid();
        let own = nix::unistd::geteuid().as_raw();
        for path in ["outside", "dir/photos", "dir/photos/2026", "dir/notes.txt"] {
            assert_eq!(owner(path), own, "{path}");
        }
        let given_to = if is_machine_root().unwrap() { given(own) } else { own };
        for path in ["dir", "dir/hosts", "dir/hosts/lin01/root", "dir/hosts/link", "dir/store"] {
            assert_eq!(owner(path), given_to, "{path}");
        }
    }

    #[test]
    fn links_planted_during_a_walk_are_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let (hosts, moved, outside) = (root.path().join("dir/hosts"), root.path().join("moved"), root.path().join("outside"));
        fs::create_dir_all(hosts.join("lin01")).unwrap();
        fs::create_dir(&outside).unwrap();
        for file in [hosts.join("lin01/own"), outside.join("foreign")] {
            fs::write(file, "").unwrap();
        }
        let inode = |path: PathBuf| fs::symlink_metadata(path).unwrap().ino();
        let planted_at = inode(hosts.clone());
        let mut visited = Vec::new();
        let plant = |_: &File, meta: &Metadata| -> io::Result<()> {
            visited.push(meta.ino());
            if meta.ino() == planted_at {
                fs::rename(&hosts, &moved)?;
                std::os::unix::fs::symlink(&outside, &hosts)?;
            }
            Ok(())
        };
        walk(&root.path().join("dir"), plant).unwrap();
        let expected = [root.path().join("dir"), moved.clone(), moved.join("lin01"), moved.join("lin01/own")];
        assert_eq!(visited, expected.map(inode));
    }

    #[test]
    fn files_that_are_gone_are_skipped() {
        let root = tempfile::tempdir().unwrap();
        walk(&root.path().join("none"), |_, _| panic!("nothing is there")).unwrap();
        let files = [root.path().join("a"), root.path().join("b")];
        files.iter().for_each(|file| fs::write(file, "").unwrap());
        let mut visits = 0;
        let remove_both = |_: &File, meta: &Metadata| {
            visits += 1;
            if meta.is_file() { files.iter().try_for_each(fs::remove_file) } else { Ok(()) }
        };
        walk(root.path(), remove_both).unwrap();
        assert_eq!(visits, 2, "the directory and one file");
    }

    #[test]
    fn the_first_closed_directory_counts() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("a/b/c");
        fs::create_dir_all(&deep).unwrap();
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        mode(&root.path().join("a/b"), 0o700);
        mode(root.path(), 0o755);
        assert_eq!(closed(&deep), Some(root.path().join("a/b")));
        mode(root.path(), 0o700);
        assert_eq!(closed(&deep).as_deref(), Some(root.path()));
        mode(root.path(), 0o711);
        mode(&root.path().join("a/b"), 0o711);
        assert_eq!(closed(&deep), None);
    }
}
