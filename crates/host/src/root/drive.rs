//! What stands for a drive or for `/`: a directory of the machine, or memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read as _};

use super::{Beneath, FileKind, GroupOwner, Hold, Reader, Resolved, Socket, Space, Usage, VolumeFile, imp, memory};

#[derive(Debug)]
pub(super) enum Drive {
    Disk(imp::Root),
    Memory(memory::Root),
}

/// What only files of the machine have.
fn no_handle<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "the node's files are in memory, where nothing can be opened"))
}

/// Methods that a drive in memory has too, without the arguments in brackets.
macro_rules! both {
    ($($method:ident($($argument:ident: $type:ty),* $([$($more:ident: $of:ty),*])?) -> $answer:ty;)*) => {
        impl Drive {
            $(pub(super) fn $method(&self, path: &[String] $(, $argument: $type)* $($(, $more: $of)*)?) -> io::Result<$answer> {
                match self {
                    Self::Disk(root) => root.$method(path $(, $argument)* $($(, $more)*)?),
                    Self::Memory(root) => root.$method(path $(, $argument)*),
                }
            })*
        }
    };
}

both! {
    create_dir_all([mode: u32]) -> ();
    create_shared_dir_all([mode: u32]) -> ();
    make_dir([mode: u32]) -> bool;
    make_private() -> ();
    create_file([mode: u32]) -> ();
    create_shared_file([mode: u32]) -> ();
    write_into(bytes: &[u8]) -> ();
    write_file(bytes: &[u8] [mode: u32]) -> ();
    rename(to: &[String]) -> ();
    read_dir() -> Vec<(String, FileKind)>;
    remove_tree() -> ();
    remove_dir() -> ();
    write_volume(files: &BTreeMap<String, VolumeFile>) -> bool;
    usage() -> Usage;
    space() -> Space;
}

/// Methods whose answer is a handle of what is there.
macro_rules! handles {
    ($($method:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {
        impl Drive {
            $(pub(super) fn $method(&self, path: &[String] $(, $argument: $type)*) -> io::Result<$answer> {
                match self {
                    Self::Disk(root) => root.$method(path $(, $argument)*),
                    Self::Memory(root) => root.kind(path).and_then(|_| no_handle()),
                }
            })*
        }
    };
}

handles! {
    resolve() -> Resolved;
    open_read() -> File;
    connect() -> Socket;
}

impl Drive {
    pub(super) fn kind(&self, path: &[String]) -> io::Result<FileKind> {
        match self {
            Self::Disk(root) => root.resolve(path).map(|found| found.kind),
            Self::Memory(root) => root.kind(path),
        }
    }

    pub(super) fn read(&self, path: &[String], limit: u64) -> io::Result<Vec<u8>> {
        match self {
            Self::Disk(root) => {
                let mut bytes = Vec::new();
                root.open_read(path)?.take(limit).read_to_end(&mut bytes)?;
                Ok(bytes)
            }
            Self::Memory(root) => root.read(path, limit),
        }
    }

    pub(super) fn open_append(&self, path: &[String], mode: u32) -> io::Result<File> {
        match self {
            Self::Disk(root) => root.open_append(path, mode),
            Self::Memory(_) => no_handle(),
        }
    }

    pub(super) fn open_beneath(&self, dir: &[String], names: &[String]) -> io::Result<Beneath> {
        match self {
            Self::Disk(root) => root.open_beneath(dir, names),
            Self::Memory(root) => {
                let path = [dir, names].concat();
                if root.kind(&path)? == FileKind::Directory { root.read_dir(&path).map(Beneath::Directory) } else { no_handle() }
            }
        }
    }

    pub(super) fn beneath(&self, dir: &[String], names: &[String]) -> io::Result<Self> {
        match self {
            Self::Disk(root) => root.beneath(dir, names).map(Self::Disk),
            Self::Memory(root) => root.beneath(&[dir, names].concat()).map(Self::Memory),
        }
    }

    pub(super) fn listen(&self, path: &[String]) -> io::Result<super::Listener> {
        match self {
            Self::Disk(root) => root.listen(path),
            Self::Memory(_) => no_handle(),
        }
    }

    pub(super) fn link(&self, path: &[String], target: &str) -> io::Result<()> {
        match self {
            Self::Disk(root) => root.link(path, target),
            Self::Memory(_) => Err(io::Error::new(io::ErrorKind::Unsupported, "the node's files are in memory, where there are no links")),
        }
    }

    pub(super) fn usage_of_file(&self, path: &[String]) -> io::Result<Usage> {
        match self {
            Self::Disk(root) => {
                let metadata = root.resolve(path)?.handle.metadata()?;
                #[cfg(unix)]
                let bytes = std::os::unix::fs::MetadataExt::blocks(&metadata).saturating_mul(512);
                #[cfg(not(unix))]
                let bytes = metadata.len();
                Ok(Usage { bytes, inodes: 1 })
            }
            Self::Memory(root) => root.usage_of_file(path),
        }
    }

    pub(super) fn is_mount(&self, path: &[String]) -> io::Result<bool> {
        match self {
            Self::Disk(root) => root.is_mount(path),
            Self::Memory(root) => root.kind(path).map(|_| false),
        }
    }

    pub(super) fn give_to_group(&self, path: &[String], owner: GroupOwner) -> io::Result<()> {
        match self {
            Self::Disk(root) => root.give_to_group(path, owner),
            Self::Memory(root) => root.kind(path).map(drop),
        }
    }

    pub(super) fn restrict(&self, path: &[String], readers: &BTreeSet<Reader>) -> io::Result<()> {
        match self {
            Self::Disk(root) => root.restrict(path, readers),
            Self::Memory(root) => root.create_dir_all(path),
        }
    }

    pub(super) fn sub_path(&self, volume: &[String], sub: &[String], place: &[String]) -> io::Result<Option<Hold>> {
        match self {
            Self::Disk(root) => root.sub_path(volume, sub, place),
            Self::Memory(root) => {
                let full = [volume, sub].concat();
                root.kind(volume)?;
                match root.kind(&full) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => root.create_dir_all(&full)?,
                    other => drop(other?),
                }
                Ok(Some(Hold::default()))
            }
        }
    }

    pub(super) fn map_device(&self, of: &Self, device: &[String], place: &[String]) -> io::Result<File> {
        match (self, of) {
            (Self::Disk(root), Self::Disk(of)) => root.map_device(of, device, place),
            _ => no_handle(),
        }
    }

    pub(super) fn mount_memory(&self, path: &[String], size: Option<u64>) -> io::Result<()> {
        match self {
            Self::Disk(root) => root.mount_memory(path, size),
            Self::Memory(root) => root.kind(path).map(drop),
        }
    }

    pub(super) fn mount_huge_pages(&self, path: &[String], page: u64) -> io::Result<()> {
        match self {
            Self::Disk(root) => root.mount_huge_pages(path, page),
            Self::Memory(root) => root.kind(path).map(drop),
        }
    }

    pub(super) fn unmount_below(&self, path: &[String]) -> io::Result<()> {
        match self {
            Self::Disk(root) => root.unmount_below(path),
            Self::Memory(_) => Ok(()),
        }
    }
}
