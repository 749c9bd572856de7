//! Files of a real Windows node through std: every component is checked for reparse points
//! before use, and links are refused. Not handle-relative yet: a process that may write inside
//! the same directory could exchange a component between check and use.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use super::{FileKind, GroupOwner, MAX_DEPTH, Resolved, Socket, Space, Usage, VolumeFile, too_deep};

const DATA: &str = "..data";

/// The directory that stands for a drive.
#[derive(Debug)]
pub(super) struct Root {
    dir: PathBuf,
}

impl Root {
    pub(super) fn open(dir: PathBuf, _fold_case: bool) -> io::Result<Self> {
        fs::metadata(&dir)?;
        Ok(Root { dir })
    }

    /// The path, once no component of it that exists is a link.
    fn checked(&self, path: &[String]) -> io::Result<PathBuf> {
        let mut full = self.dir.clone();
        for name in path {
            full.push(name);
            match fs::symlink_metadata(&full) {
                Ok(m) if m.file_type().is_symlink() => {
                    return Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{} is a link", full.display())));
                }
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        Ok(full)
    }

    pub(super) fn resolve(&self, path: &[String]) -> io::Result<Resolved> {
        let path = self.checked(path)?;
        let kind = kind_of(fs::symlink_metadata(&path)?.file_type());
        Ok(Resolved { kind, handle: open_any(&path)?, path })
    }

    pub(super) fn create_dir_all(&self, path: &[String], _mode: u32) -> io::Result<()> {
        fs::create_dir_all(self.checked(path)?)
    }

    pub(super) fn create_file(&self, path: &[String], _mode: u32) -> io::Result<()> {
        OpenOptions::new().append(true).create(true).open(self.checked(path)?).map(drop)
    }

    pub(super) fn open_read(&self, path: &[String]) -> io::Result<File> {
        File::open(self.checked(path)?)
    }

    pub(super) fn open_append(&self, path: &[String], _mode: u32) -> io::Result<File> {
        OpenOptions::new().append(true).create(true).open(self.checked(path)?)
    }

    pub(super) fn write_file(&self, path: &[String], bytes: &[u8], _mode: u32) -> io::Result<()> {
        let target = self.checked(path)?;
        let mut temporary = target.clone().into_os_string();
        temporary.push(".new");
        fs::write(&temporary, bytes)?;
        fs::rename(&temporary, &target)
    }

    pub(super) fn rename(&self, path: &[String], to: &[String]) -> io::Result<()> {
        fs::rename(self.checked(path)?, self.checked(to)?)
    }

    pub(super) fn read_dir(&self, path: &[String]) -> io::Result<Vec<(String, FileKind)>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.checked(path)?)? {
            let entry = entry?;
            if let Ok(name) = entry.file_name().into_string() {
                names.push((name, kind_of(entry.file_type()?)));
            }
        }
        Ok(names)
    }

    pub(super) fn remove_tree(&self, path: &[String]) -> io::Result<()> {
        let (name, parents) = path.split_last().ok_or(io::ErrorKind::PermissionDenied)?;
        let target = self.checked(parents)?.join(name);
        let kind = fs::symlink_metadata(&target)?.file_type();
        if kind.is_symlink() {
            fs::remove_dir(&target).or_else(|_| fs::remove_file(&target))
        } else if kind.is_dir() {
            // std removes links themselves and opens directories without following.
            fs::remove_dir_all(&target)
        } else {
            fs::remove_file(&target)
        }
    }

    pub(super) fn remove_dir(&self, path: &[String]) -> io::Result<()> {
        fs::remove_dir(self.checked(path)?)
    }

    #[cfg(windows)]
    pub(super) fn connect(&self, path: &[String]) -> io::Result<Socket> {
        let address = socket2::SockAddr::unix(self.checked(path)?)?;
        let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
        socket.connect(&address)?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    }

    #[cfg(not(windows))]
    pub(super) fn connect(&self, path: &[String]) -> io::Result<Socket> {
        let socket = Socket::connect(self.checked(path)?)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    }

    pub(super) fn is_mount(&self, path: &[String]) -> io::Result<bool> {
        self.checked(path).map(|_| false)
    }

    pub(super) fn give_to_group(&self, path: &[String], _owner: GroupOwner) -> io::Result<()> {
        self.checked(path).map(drop)
    }

    pub(super) fn space(&self, path: &[String]) -> io::Result<Space> {
        super::super::facts::disk_space(&self.checked(path)?)
    }

    pub(super) fn usage(&self, path: &[String]) -> io::Result<Usage> {
        let mut usage = Usage { bytes: 0, inodes: 1 };
        measure(&self.checked(path)?, 0, &mut usage)?;
        Ok(usage)
    }

    pub(super) fn sub_path(&self, volume: &[String], sub: &[String], _place: &[String]) -> io::Result<bool> {
        let full: Vec<String> = volume.iter().chain(sub).cloned().collect();
        let path = self.checked(&full)?;
        if fs::symlink_metadata(&path).is_err() {
            fs::create_dir_all(path)?;
        }
        Ok(false)
    }

    pub(super) fn mount_memory(&self, path: &[String], _size: Option<u64>) -> io::Result<()> {
        self.checked(path).map(drop)
    }

    pub(super) fn unmount_below(&self, path: &[String]) -> io::Result<()> {
        self.checked(path).map(drop)
    }

    pub(super) fn write_volume(&self, path: &[String], files: &BTreeMap<String, VolumeFile>) -> io::Result<bool> {
        let dir = self.checked(path)?;
        let data = dir.join(DATA);
        let unchanged = fs::symlink_metadata(&data).is_ok()
            && files.iter().all(|(n, f)| fs::read(data.join(n)).is_ok_and(|b| b == f.bytes))
            && count_files(&data).is_ok_and(|n| n == files.len());
        if unchanged {
            return Ok(false);
        }
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let fresh = format!("..{}.{:09}", now.as_secs(), now.subsec_nanos());
        for (name, file) in files {
            let target = dir.join(&fresh).join(name);
            fs::create_dir_all(target.parent().unwrap_or(&dir))?;
            fs::write(target, &file.bytes)?;
        }
        fs::create_dir_all(dir.join(&fresh))?;
        // Windows cannot rename over a directory link: readers may see nothing for a moment,
        // as with upstream's kubelet.
        let _ = fs::remove_dir(&data);
        link_dir(Path::new(&fresh), &data)?;
        link_names(&dir, files)?;
        for entry in fs::read_dir(&dir)? {
            let name = entry?.file_name().into_string().unwrap_or_default();
            if name.starts_with("..") && name != DATA && name != fresh {
                fs::remove_dir_all(dir.join(name))?;
            }
        }
        Ok(true)
    }
}

fn link_names(dir: &Path, files: &BTreeMap<String, VolumeFile>) -> io::Result<()> {
    let desired: BTreeSet<&str> = files.keys().filter_map(|n| n.split('/').find(|p| !p.is_empty())).collect();
    for name in &desired {
        let link = dir.join(name);
        if fs::symlink_metadata(&link).is_ok() {
            continue;
        }
        let target = Path::new(DATA).join(name);
        if dir.join(&target).is_dir() { link_dir(&target, &link)? } else { link_file(&target, &link)? }
    }
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().into_string().unwrap_or_default();
        if entry.file_type()?.is_symlink() && !name.starts_with("..") && !desired.contains(name.as_str()) {
            let link = dir.join(name);
            fs::remove_file(&link).or_else(|_| fs::remove_dir(&link))?;
        }
    }
    Ok(())
}

/// Adds what is in a directory. Links and what vanishes meanwhile do not count.
fn measure(dir: &Path, depth: usize, usage: &mut Usage) -> io::Result<()> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let Ok(metadata) = fs::symlink_metadata(entry.path()) else { continue };
        usage.inodes += 1;
        if metadata.is_file() {
            usage.bytes = usage.bytes.saturating_add(metadata.len());
        } else if metadata.is_dir() {
            measure(&entry.path(), depth + 1, usage)?;
        }
    }
    Ok(())
}

fn count_files(dir: &Path) -> io::Result<usize> {
    let mut total = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        total += if entry.file_type()?.is_dir() { count_files(&entry.path())? } else { 1 };
    }
    Ok(total)
}

#[cfg(windows)]
fn open_any(path: &Path) -> io::Result<File> {
    use std::os::windows::fs::OpenOptionsExt;
    // FILE_FLAG_BACKUP_SEMANTICS opens directories, FILE_FLAG_OPEN_REPARSE_POINT no link.
    OpenOptions::new().read(true).custom_flags(0x0200_0000 | 0x0020_0000).open(path)
}

#[cfg(not(windows))]
fn open_any(path: &Path) -> io::Result<File> {
    File::open(path)
}

#[cfg(windows)]
fn link_dir(target: &Path, link: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_dir(target, link)
}

#[cfg(windows)]
fn link_file(target: &Path, link: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target, link)
}

#[cfg(not(windows))]
fn link_dir(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(not(windows))]
fn link_file(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

fn kind_of(kind: fs::FileType) -> FileKind {
    if kind.is_symlink() {
        FileKind::Link
    } else if kind.is_dir() {
        FileKind::Directory
    } else if kind.is_file() {
        FileKind::File
    } else {
        FileKind::Other
    }
}
