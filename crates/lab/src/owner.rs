//! Owners of a lab's files on the real host, and what the lab sees of them.
//!
//! An ordinary user's lab is that user outside, and everything stays as it is. The machine's root is nobody in a lab that root starts: its
//! users are 65,536 users without rights. They get the cluster's files, and find them where root has them, even below directories that
//! nobody but root may enter.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use linux_sys::mount::tree;
use linux_sys::spawn::{Step, UNPRIVILEGED, is_machine_root};

use crate::error::LabError;

/// Gives `path`, and what is below it, to the users of this user's labs. No link is followed. For files that no pod can change meanwhile.
///
/// # Errors
/// When something cannot be looked at or given away.
pub fn give(path: &Path) -> Result<(), LabError> {
    let root = is_machine_root().map_err(LabError::file("read", "/proc/self/uid_map"))?;
    if root { give_tree(path).map_err(|(path, error)| LabError::file("give to the cluster's users", path)(error)) } else { Ok(()) }
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
    let given = fs::symlink_metadata(path).and_then(|meta| give_away(path, &meta));
    given.map_err(LabError::file("give to the cluster's users", path))
}

/// Whether what has this owner is this user's own.
pub(crate) fn is_own(meta: &Metadata) -> bool {
    let is_given = || meta.uid() == UNPRIVILEGED.start && is_machine_root().unwrap_or(false);
    meta.uid() == nix::unistd::geteuid().as_raw() || is_given()
}

fn give_away(path: &Path, meta: &Metadata) -> io::Result<()> {
    if !UNPRIVILEGED.contains(&meta.uid()) || !UNPRIVILEGED.contains(&meta.gid()) {
        std::os::unix::fs::lchown(path, Some(given(meta.uid())), Some(given(meta.gid())))?;
        if meta.is_file() && meta.mode() & 0o6000 != 0 {
            // A change of owner takes these bits away.
            fs::set_permissions(path, fs::Permissions::from_mode(meta.mode() & 0o7777))?;
        }
    }
    Ok(())
}

fn give_tree(path: &Path) -> Result<(), (PathBuf, io::Error)> {
    let named = |error| (path.to_owned(), error);
    let meta = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(named)?,
    };
    give_away(path, &meta).map_err(named)?;
    if meta.is_dir() {
        for entry in fs::read_dir(path).map_err(named)? {
            give_tree(&entry.map_err(named)?.path())?;
        }
    }
    Ok(())
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
