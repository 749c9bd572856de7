//! One join, leave or reset at a time on a machine.

use std::fs::{File, TryLockError};
use std::io;
use std::path::PathBuf;

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
    /// Locks the machine: its root on Linux, so that no file is made for it; a file among those of all programs on Windows.
    ///
    /// # Errors
    /// [`LockError::Busy`] when another command has it.
    pub fn take(places: &Places) -> Result<Self, LockError> {
        let root = places.at("/");
        // A root that is made later: what it is made in.
        let root = root.ancestors().find(|path| path.exists()).unwrap_or(&root);
        let path = if cfg!(windows) { places.at("/ProgramData/mullion-join.lock") } else { root.to_owned() };
        let failed = |source| LockError::File { path: path.clone(), source };
        let opened = if cfg!(windows) { File::options().create(true).append(true).open(&path) } else { File::open(&path) };
        let file = opened.map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(LockError::Busy),
            Err(TryLockError::Error(source)) => Err(failed(source)),
        }
    }
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
