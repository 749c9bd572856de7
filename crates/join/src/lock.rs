//! One join, leave or reset at a time on a machine.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use crate::places::Places;

/// Why a command may not change the machine now.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("another mullion join, leave or reset works on this machine: wait until it has ended")]
    Busy,
    #[error("cannot lock {path:?} against other commands")]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Keeps others away until it is dropped, or the process ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Locks the machine: a file that only root opens, since whoever may open one may lock it for ever. Below another root, which is nobody's
    /// machine yet, the root itself, so that no file is made for it.
    ///
    /// # Errors
    /// [`LockError::Busy`] when another command has it.
    pub fn take(places: &Places) -> Result<Self, LockError> {
        let root = places.at("/");
        // A root that is made later: what it is made in.
        let root = root.ancestors().find(|path| path.exists()).unwrap_or(&root).to_owned();
        let is_file = cfg!(windows) || root == Path::new("/");
        let path = match root {
            _ if cfg!(windows) => places.at("/ProgramData/mullion-join.lock"),
            _ if is_file => PathBuf::from("/run/mullion-join.lock"),
            root => root,
        };
        let failed = |source| LockError::File { path: path.clone(), source };
        let file = if is_file { private(&path) } else { File::open(&path) }.map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(LockError::Busy),
            Err(TryLockError::Error(source)) => Err(failed(source)),
        }
    }
}

#[cfg(unix)]
fn private(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    File::options().create(true).append(true).mode(0o600).open(path)
}

#[cfg(not(unix))]
fn private(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).open(path)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn one_command_has_the_machine_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let places = Places::new(dir.path(), false);
        let first = Lock::take(&places).unwrap();
        assert!(matches!(Lock::take(&places), Err(LockError::Busy)));
        let elsewhere = tempfile::tempdir().unwrap();
        Lock::take(&Places::new(elsewhere.path(), false)).unwrap();
        drop(first);
        Lock::take(&places).unwrap();
        assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none());
        // A root that is not there yet is locked by what is to hold it.
        let later = Places::new(&dir.path().join("none/root"), false);
        let first = Lock::take(&later).unwrap();
        assert!(matches!(Lock::take(&later), Err(LockError::Busy)));
        drop(first);
    }
}
