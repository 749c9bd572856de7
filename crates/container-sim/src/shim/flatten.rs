//! Copies what an overlay of layers would show, for file systems that cannot be part of an overlay.
//!
//! Layers carry overlayfs's own marks: a character device 0:0 is a whiteout, the attribute `user.overlay.opaque` makes a directory opaque.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode};

/// Attribute of a directory that hides those below it, in overlays mounted with `userxattr`.
const OPAQUE: &str = "user.overlay.opaque";

/// Whether a name in a layer hides that name in the layers below.
fn is_whiteout(stat: &rustix::fs::Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

/// Copies the directories `layers`, lowest first, into `target`.
///
/// # Errors
/// When a file cannot be copied.
pub(super) fn flatten(layers: &[PathBuf], target: &Path) -> io::Result<()> {
    for layer in layers {
        merge(layer, target)?;
    }
    Ok(())
}

fn merge(from: &Path, to: &Path) -> io::Result<()> {
    let opaque = rustix::fs::getxattr(from, OPAQUE, &mut [0u8; 4]).is_ok();
    if opaque {
        for entry in std::fs::read_dir(to)? {
            remove(&entry?.path())?;
        }
    }
    let mut entries: Vec<(OsString, PathBuf)> =
        std::fs::read_dir(from)?.map(|entry| entry.map(|entry| (entry.file_name(), entry.path()))).collect::<Result<_, _>>()?;
    entries.sort();
    for (name, source) in entries {
        let destination = to.join(&name);
        let stat = rustix::fs::lstat(&source)?;
        if is_whiteout(&stat) {
            remove(&destination)?;
            continue;
        }
        let existing = rustix::fs::lstat(&destination).ok().map(|stat| FileType::from_raw_mode(stat.st_mode));
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                if existing != Some(FileType::Directory) {
                    remove(&destination)?;
                    std::fs::create_dir(&destination)?;
                }
                merge(&source, &destination)?;
                std::fs::set_permissions(&destination, std::fs::metadata(&source)?.permissions())?;
            }
            FileType::Symlink => {
                remove(&destination)?;
                std::os::unix::fs::symlink(std::fs::read_link(&source)?, &destination)?;
            }
            FileType::RegularFile => {
                remove(&destination)?;
                std::fs::copy(&source, &destination)?;
            }
            FileType::Fifo => {
                remove(&destination)?;
                rustix::fs::mknodat(CWD, &destination, FileType::Fifo, Mode::from_raw_mode(stat.st_mode & 0o7777), 0)?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    let result = match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) => Err(error),
    };
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::XattrFlags;

    use super::*;

    #[test]
    fn whiteouts_and_opaque_directories_hide_what_is_below() {
        let (lower, upper, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for dir in [&lower, &upper] {
            std::fs::create_dir(dir.path().join("d")).unwrap();
        }
        for (dir, name) in [(&lower, "d/a"), (&lower, "gone"), (&lower, "kept"), (&upper, "d/b")] {
            std::fs::write(dir.path().join(name), name).unwrap();
        }
        rustix::fs::setxattr(upper.path().join("d"), OPAQUE, b"y", XattrFlags::empty()).unwrap();
        rustix::fs::mknodat(CWD, upper.path().join("gone"), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        std::os::unix::fs::symlink("kept", upper.path().join("link")).unwrap();
        flatten(&[lower.path().to_owned(), upper.path().to_owned()], target.path()).unwrap();
        let exists = |name: &str| target.path().join(name).exists();
        assert!(exists("kept") && exists("link") && exists("d/b") && !exists("d/a") && !exists("gone"));
    }
}
