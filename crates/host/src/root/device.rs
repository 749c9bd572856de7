//! Block devices of volumes, held by their handles.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{FileStat, fstat};
use nix::unistd::{UnlinkatFlags, symlinkat, unlinkat};

use super::{FileKind, Root, fd_path, kind_of, list};

/// The device that an open object is.
fn device_of(object: &OwnedFd) -> io::Result<Option<u64>> {
    let stat: FileStat = fstat(object)?;
    Ok((kind_of(stat.st_mode) == FileKind::BlockDevice).then_some(stat.st_rdev))
}

impl Root {
    /// See [`super::super::HostRoot::map_device`].
    pub(in super::super) fn map_device(&self, from: &Root, device: &[String], place: &[String]) -> io::Result<File> {
        let found = from.open_in(device, OFlag::O_PATH)?;
        let number = device_of(&found)?.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "it is no block device"))?;
        // The magic link of the open object leads to it, whatever has its name by now.
        let held = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(fd_path(&found))?;
        match self.open_in(place, OFlag::O_PATH | OFlag::O_NOFOLLOW).and_then(|there| device_of(&there)) {
            Ok(there) if there == Some(number) => return Ok(held),
            Ok(_) => self.unmount_below(place)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        self.create_dir_all(&place[..place.len().saturating_sub(1)], 0o750)?;
        self.create_file(place, 0o640)?;
        let target = self.open_in(place, OFlag::O_PATH | OFlag::O_NOFOLLOW)?;
        linux_sys::mount::bind(&fd_path(&found), &fd_path(&target))?;
        Ok(held)
    }

    /// See [`super::super::HostRoot::link`].
    pub(in super::super) fn link(&self, path: &[String], target: &str) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        match symlinkat(target, &dir, name.as_str()) {
            Err(Errno::EEXIST) if list(dir.try_clone()?)?.contains(&(name.clone(), FileKind::Link)) => {
                unlinkat(&dir, name.as_str(), UnlinkatFlags::NoRemoveDir)?;
                Ok(symlinkat(target, &dir, name.as_str())?)
            }
            other => Ok(other?),
        }
    }
}
