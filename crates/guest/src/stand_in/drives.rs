//! The drives of a container, seen from inside: `C:\x` is `/c/x`, letters in any case, names in any case.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why a path leads nowhere.
#[derive(Debug, Error)]
pub enum DriveError {
    /// Not of the form `C:/a/b`.
    #[error("{0:?} is not a path on a drive, such as C:/etc/foo")]
    NotAPath(String),
    /// The container has no such drive.
    #[error("there is no drive {0}:")]
    NoDrive(char),
}

/// Where the drives' directories are.
#[derive(Clone, Debug)]
pub struct Drives {
    root: PathBuf,
}

impl Drives {
    /// Drives below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The file a Windows path means. Parts that exist under another case are taken as they are spelt there.
    ///
    /// # Errors
    /// When the path is not on a drive that exists, or holds `..`.
    pub fn path(&self, text: &str) -> Result<PathBuf, DriveError> {
        let refuse = || DriveError::NotAPath(text.to_owned());
        let normal = text.replace('\\', "/");
        let (letter, rest) = normal.trim_start_matches('/').split_once(':').ok_or_else(refuse)?;
        let letter = match letter.chars().collect::<Vec<_>>().as_slice() {
            [letter] if letter.is_ascii_alphabetic() => letter.to_ascii_lowercase(),
            _ => return Err(refuse()),
        };
        let drive = self.root.join(letter.to_string());
        if !drive.is_dir() {
            return Err(DriveError::NoDrive(letter.to_ascii_uppercase()));
        }
        Self::below(drive, rest).ok_or_else(refuse)
    }

    /// The file that a Windows path means which begins at `dir`. Parts that exist under another case are taken as they are spelt there. None:
    /// it holds `..`, or what no name holds.
    pub fn below(dir: PathBuf, text: &str) -> Option<PathBuf> {
        let mut path = dir;
        for part in text.split(['/', '\\']).filter(|part| !part.is_empty() && *part != ".") {
            if part == ".." || part.contains(':') || part.contains('\0') {
                return None;
            }
            path.push(spelt(&path, part));
        }
        Some(path)
    }
}

/// The name of `part` as it exists in `dir`.
fn spelt(dir: &Path, part: &str) -> String {
    if dir.join(part).symlink_metadata().is_ok() {
        return part.to_owned();
    }
    let entries = std::fs::read_dir(dir).into_iter().flatten().filter_map(io::Result::ok);
    let mut names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.find(|name| name.to_lowercase() == part.to_lowercase()).unwrap_or_else(|| part.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_paths_lead_below_their_drive() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("c/Etc/foo")).unwrap();
        std::fs::create_dir_all(dir.path().join("d")).unwrap();
        let drives = Drives::new(dir.path());
        let rel = |text: &str| drives.path(text).map(|path| path.strip_prefix(dir.path()).unwrap().to_string_lossy().into_owned());
        assert_eq!(rel(r"C:\etc\FOO\x").unwrap(), "c/Etc/foo/x");
        assert_eq!(rel("/c:/new/File").unwrap(), "c/new/File");
        assert_eq!(rel("D:").unwrap(), "d");
        for wrong in ["x", "C:/../d/x", "CC:/x", "C:/a:b"] {
            assert!(matches!(rel(wrong), Err(DriveError::NotAPath(_))), "{wrong} was accepted");
        }
        assert!(matches!(rel("E:/x"), Err(DriveError::NoDrive('E'))));
    }
}
