//! Locks that end with their holder.

use std::fs::File;
use std::io;
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};

/// A lock on a file, exclusive or shared; dropping it, or the death of the process, frees it.
#[derive(Debug)]
pub struct FileLock(Flock<File>);

impl FileLock {
    /// Locks `path`, which is created; `None` when somebody else holds it.
    ///
    /// # Errors
    /// When the file cannot be opened or the file system has no locks.
    pub fn try_acquire(path: &Path) -> io::Result<Option<Self>> {
        let named = |e: io::Error| io::Error::new(e.kind(), format!("lock {}: {e}", path.display()));
        let file = File::options().create(true).truncate(false).read(true).write(true).open(path).map_err(named)?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Some(Self(lock))),
            Err((_, nix::Error::EWOULDBLOCK)) => Ok(None),
            Err((_, e)) => Err(named(e.into())),
        }
    }

    /// Locks `path`, which exists, shared with other holders; `None` when a process holds it alone.
    ///
    /// # Errors
    /// When the file cannot be opened or the file system has no locks.
    pub fn try_share(path: &Path) -> io::Result<Option<Self>> {
        let named = |e: io::Error| io::Error::new(e.kind(), format!("lock {}: {e}", path.display()));
        match Flock::lock(File::open(path).map_err(named)?, FlockArg::LockSharedNonblock) {
            Ok(lock) => Ok(Some(Self(lock))),
            Err((_, nix::Error::EWOULDBLOCK)) => Ok(None),
            Err((_, e)) => Err(named(e.into())),
        }
    }

    /// The locked file, to write its holder into.
    pub fn file(&mut self) -> &mut File {
        &mut self.0
    }
}
