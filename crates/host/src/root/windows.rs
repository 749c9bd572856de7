//! Files of a real Windows node. Each path is walked by handles, one component after the other, below the drive's own handle: a link
//! (symbolic link, junction, mount point) is opened itself and refused, and what a component is exchanged for
//! afterwards changes nothing. Links are made only in directories that the agent alone writes to.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::windows::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use windows_sys::Wdk::Storage::FileSystem::{FILE_CREATE, FILE_NON_DIRECTORY_FILE, FILE_OPEN, FILE_OPEN_IF};
use windows_sys::Win32::Storage::FileSystem::{
    DELETE, FILE_APPEND_DATA, FILE_ATTRIBUTE_DIRECTORY, FILE_ATTRIBUTE_REPARSE_POINT, FILE_FLAG_BACKUP_SEMANTICS, FILE_GENERIC_WRITE,
    FILE_LIST_DIRECTORY, FILE_READ_ATTRIBUTES, FILE_READ_DATA, FILE_SHARE_DELETE, FILE_SHARE_READ, FILE_SHARE_WRITE, FILE_TRAVERSE, READ_CONTROL,
    WRITE_DAC,
};

use super::{Beneath, FileKind, GroupOwner, Hold, MAX_DEPTH, Reader, Resolved, Socket, Space, Usage, VolumeFile, acl, too_deep};
use nt::{Descriptor, Entry, How};

#[path = "windows/copies.rs"]
mod copies;
#[path = "windows/nt.rs"]
mod nt;
#[cfg(test)]
#[path = "windows/tests.rs"]
mod tests;

const DATA: &str = "..data";
/// The bits of what is the agent's alone.
const PRIVATE: u32 = 0o700;
/// Others may do with the object what they like.
const SHARED: u32 = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
/// Nobody may remove the object or give it another name.
const HELD: u32 = FILE_SHARE_READ | FILE_SHARE_WRITE;

/// Opens what is there.
const THERE: How<'static> = How { access: FILE_READ_ATTRIBUTES, share: SHARED, disposition: FILE_OPEN, options: 0, descriptor: None };
/// Opens a directory to walk on from.
const DIRECTORY: How<'static> = How { access: FILE_LIST_DIRECTORY | FILE_TRAVERSE | FILE_READ_ATTRIBUTES, ..THERE };

/// The directory that stands for a drive.
#[derive(Debug)]
pub(super) struct Root {
    dir: PathBuf,
    handle: File,
}

/// The bit of tags that stand for another name: of links of any kind and of mount points.
const SURROGATE: u32 = 0x2000_0000;
/// The tag of a unix socket.
const UNIX_SOCKET: u32 = 0x8000_0023;

/// Whether an object leads elsewhere; one that does not say what it is may.
fn is_link(entry: Entry) -> bool {
    entry.attributes & FILE_ATTRIBUTE_REPARSE_POINT != 0 && (entry.tag == 0 || entry.tag & SURROGATE != 0)
}

fn kind_of(entry: Entry) -> FileKind {
    match entry {
        _ if is_link(entry) => FileKind::Link,
        Entry { attributes, tag: UNIX_SOCKET } if attributes & FILE_ATTRIBUTE_REPARSE_POINT != 0 => FileKind::Socket,
        Entry { attributes, .. } if attributes & FILE_ATTRIBUTE_DIRECTORY != 0 => FileKind::Directory,
        _ => FileKind::File,
    }
}

/// Opens an entry of a directory that is no link.
fn open_plain(dir: &File, name: &str, how: How<'_>) -> io::Result<File> {
    let object = nt::open_at(dir, name, how)?;
    if is_link(nt::entry(&object)?) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{name} is a link")));
    }
    Ok(object)
}

fn make_dir(dir: &File, name: &str, descriptor: Option<&Descriptor>) -> io::Result<File> {
    open_plain(dir, name, How { disposition: FILE_OPEN_IF, descriptor, ..DIRECTORY.directory() })
}

pub(super) fn make_private_dir(path: &Path) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?.to_string_lossy().into_owned();
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Root::open(parent.to_owned(), true)?.make_private(&[name])
}

impl Root {
    pub(super) fn open(dir: PathBuf, _fold_case: bool) -> io::Result<Self> {
        let access = FILE_LIST_DIRECTORY | FILE_TRAVERSE | FILE_READ_ATTRIBUTES;
        let handle = OpenOptions::new().access_mode(access).custom_flags(FILE_FLAG_BACKUP_SEMANTICS).open(&dir)?;
        Ok(Root { dir, handle })
    }

    /// Where a path is, as text.
    fn text(&self, path: &[String]) -> PathBuf {
        path.iter().fold(self.dir.clone(), |full, name| full.join(name))
    }

    /// Opens a directory.
    fn descend(&self, path: &[String]) -> io::Result<File> {
        path.iter().try_fold(self.handle.try_clone()?, |here, name| open_plain(&here, name, DIRECTORY.directory()))
    }

    /// The directory that holds a path, and the last name.
    fn parent<'a>(&self, path: &'a [String]) -> io::Result<(File, &'a str)> {
        let (name, parents) = path.split_last().ok_or(io::ErrorKind::PermissionDenied)?;
        Ok((self.descend(parents)?, name))
    }

    fn object(&self, path: &[String], how: How<'_>) -> io::Result<File> {
        if path.is_empty() {
            return self.handle.try_clone();
        }
        let (dir, name) = self.parent(path)?;
        open_plain(&dir, name, how)
    }

    /// No path passes a link here.
    pub(super) fn beneath(&self, dir: &[String], names: &[String]) -> io::Result<Root> {
        let path: Vec<String> = dir.iter().chain(names).cloned().collect();
        Ok(Root { dir: self.text(&path), handle: self.descend(&path)? })
    }

    pub(super) fn resolve(&self, path: &[String]) -> io::Result<Resolved> {
        let handle = self.object(path, How { access: FILE_READ_DATA | FILE_READ_ATTRIBUTES, ..THERE })?;
        Ok(Resolved { kind: kind_of(nt::entry(&handle)?), handle, path: self.text(path) })
    }

    pub(super) fn create_dir_all(&self, path: &[String], mode: u32) -> io::Result<()> {
        let descriptor = Descriptor::parse(&acl::of_mode(mode))?;
        path.iter().try_fold(self.handle.try_clone()?, |here, name| make_dir(&here, name, Some(&descriptor))).map(drop)
    }

    pub(super) fn create_shared_dir_all(&self, path: &[String], _mode: u32) -> io::Result<()> {
        path.iter().try_fold(self.handle.try_clone()?, |here, name| make_dir(&here, name, None)).map(drop)
    }

    pub(super) fn make_dir(&self, path: &[String], _mode: u32) -> io::Result<bool> {
        let (dir, name) = self.parent(path)?;
        match open_plain(&dir, name, How { disposition: FILE_CREATE, ..DIRECTORY.directory() }) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => open_plain(&dir, name, DIRECTORY.directory()).map(|_| false),
            Err(error) => Err(error),
        }
    }

    pub(super) fn write_into(&self, path: &[String], bytes: &[u8]) -> io::Result<()> {
        let access = FILE_GENERIC_WRITE | FILE_READ_ATTRIBUTES;
        self.object(path, How { access, options: FILE_NON_DIRECTORY_FILE, ..THERE })?.write_all(bytes)
    }

    pub(super) fn make_private(&self, path: &[String]) -> io::Result<()> {
        self.create_dir_all(path, PRIVATE)?;
        let (dir, name) = self.parent(path)?;
        let access = READ_CONTROL | WRITE_DAC | FILE_READ_ATTRIBUTES;
        let object = open_plain(&dir, name, How { access, ..THERE.directory() })?;
        if !nt::is_ours(&object)? {
            let words = "it belongs to another account, which may have put files there; remove it, or make Administrators its owner";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, words));
        }
        Descriptor::parse(&acl::of_mode(PRIVATE))?.protect(&object)
    }

    pub(super) fn create_shared_file(&self, path: &[String], _mode: u32) -> io::Result<()> {
        self.append(path, None).map(drop)
    }

    pub(super) fn create_file(&self, path: &[String], mode: u32) -> io::Result<()> {
        self.open_append(path, mode).map(drop)
    }

    pub(super) fn open_read(&self, path: &[String]) -> io::Result<File> {
        self.object(path, How { access: FILE_READ_DATA | FILE_READ_ATTRIBUTES, options: FILE_NON_DIRECTORY_FILE, ..THERE })
    }

    pub(super) fn open_append(&self, path: &[String], mode: u32) -> io::Result<File> {
        self.append(path, Some(&Descriptor::parse(&acl::of_mode(mode))?))
    }

    /// Opens a file for appending; one that is made gets the descriptor.
    fn append(&self, path: &[String], descriptor: Option<&Descriptor>) -> io::Result<File> {
        let access = FILE_APPEND_DATA | FILE_READ_ATTRIBUTES;
        self.object(path, How { access, disposition: FILE_OPEN_IF, options: FILE_NON_DIRECTORY_FILE, descriptor, ..THERE })
    }

    pub(super) fn write_file(&self, path: &[String], bytes: &[u8], mode: u32) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        let temporary = format!(".{name}.new");
        missing_is_fine(remove_entry(&dir, &temporary, 0))?;
        let file = write_new(&dir, &temporary, bytes, Some(&Descriptor::parse(&acl::of_mode(mode))?))?;
        nt::rename(&file, &dir, name)
    }

    pub(super) fn rename(&self, path: &[String], to: &[String]) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        let object = open_plain(&dir, name, How { access: DELETE | FILE_READ_ATTRIBUTES, ..THERE })?;
        nt::rename(&object, &dir, to.last().ok_or(io::ErrorKind::PermissionDenied)?)
    }

    pub(super) fn read_dir(&self, path: &[String]) -> io::Result<Vec<(String, FileKind)>> {
        Ok(nt::list(&self.descend(path)?)?.into_iter().map(|(name, entry)| (name, kind_of(entry))).collect())
    }

    pub(super) fn remove_tree(&self, path: &[String]) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        remove_entry(&dir, name, 0)
    }

    pub(super) fn remove_dir(&self, path: &[String]) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        nt::remove(&open_plain(&dir, name, How { access: DELETE | FILE_READ_ATTRIBUTES, ..THERE.directory() })?)
    }

    /// Windows knows sockets by their paths alone: the directory is held while the path is used.
    pub(super) fn connect(&self, path: &[String]) -> io::Result<Socket> {
        let _held = self.hold(&path[..path.len().saturating_sub(1)])?;
        let address = socket2::SockAddr::unix(self.text(path))?;
        let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
        socket.connect(&address)?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    }

    /// Every walk here refuses links.
    pub(super) fn open_beneath(&self, dir: &[String], names: &[String]) -> io::Result<Beneath> {
        let path: Vec<String> = dir.iter().chain(names).cloned().collect();
        Ok(match self.resolve(&path)?.kind {
            FileKind::Directory => Beneath::Directory(self.read_dir(&path)?),
            FileKind::File => Beneath::File(self.open_read(&path)?),
            _ => Beneath::Other,
        })
    }

    /// As [`Self::connect`].
    pub(super) fn listen(&self, path: &[String]) -> io::Result<socket2::Socket> {
        let _held = self.hold(&path[..path.len().saturating_sub(1)])?;
        let address = socket2::SockAddr::unix(self.text(path))?;
        let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
        socket.bind(&address)?;
        socket.listen(128)?;
        Ok(socket)
    }

    pub(super) fn is_mount(&self, path: &[String]) -> io::Result<bool> {
        self.object(path, THERE).map(|_| false)
    }

    pub(super) fn give_to_group(&self, path: &[String], _owner: GroupOwner) -> io::Result<()> {
        self.object(path, THERE).map(drop)
    }

    pub(super) fn space(&self, path: &[String]) -> io::Result<Space> {
        let _held = self.hold(path)?;
        super::super::facts::disk_space(&self.text(path))
    }

    pub(super) fn usage(&self, path: &[String]) -> io::Result<Usage> {
        let mut usage = Usage { bytes: 0, inodes: 1 };
        measure(&self.descend(path)?, 0, &mut usage)?;
        Ok(usage)
    }

    /// Opens every component of a path so that none can be removed or renamed as long as the answer lives.
    fn hold(&self, path: &[String]) -> io::Result<Hold> {
        let mut held = Vec::with_capacity(path.len());
        let mut here = self.handle.try_clone()?;
        for (depth, name) in path.iter().enumerate() {
            let how = How { access: FILE_READ_DATA | FILE_READ_ATTRIBUTES, share: HELD, ..THERE };
            let next = open_plain(&here, name, if depth + 1 < path.len() { how.directory() } else { how })?;
            held.push(std::mem::replace(&mut here, next));
        }
        held.push(here);
        Ok(Hold { _handles: held })
    }

    /// See [`super::HostRoot::sub_path`]: the runtime opens the path by its text, so it is held.
    pub(super) fn sub_path(&self, volume: &[String], sub: &[String], _place: &[String]) -> io::Result<Option<Hold>> {
        let full: Vec<String> = volume.iter().chain(sub).cloned().collect();
        let mut here = self.descend(volume)?;
        for name in sub {
            here = match open_plain(&here, name, DIRECTORY) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => make_dir(&here, name, None)?,
                other => other?,
            };
        }
        self.hold(&full).map(Some)
    }

    pub(super) fn map_device(&self, _from: &Root, _device: &[String], _place: &[String]) -> io::Result<File> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn link(&self, _path: &[String], _target: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn mount_memory(&self, path: &[String], _size: Option<u64>) -> io::Result<()> {
        self.descend(path).map(drop)
    }

    pub(super) fn mount_huge_pages(&self, _path: &[String], _page: u64) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "Windows has no file systems in huge pages"))
    }

    pub(super) fn unmount_below(&self, path: &[String]) -> io::Result<()> {
        self.object(path, THERE).map(drop)
    }

    /// Makes the directory of a volume that only these may read, or makes one that is there so.
    pub(super) fn restrict(&self, path: &[String], readers: &BTreeSet<Reader>) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        let descriptor = Descriptor::parse(&acl::sddl(readers))?;
        match nt::open_at(&dir, name, How { disposition: FILE_CREATE, descriptor: Some(&descriptor), ..DIRECTORY.directory() }) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let access = WRITE_DAC | FILE_READ_ATTRIBUTES;
                descriptor.protect(&open_plain(&dir, name, How { access, ..THERE.directory() })?)
            }
            other => other.map(drop),
        }
    }

    pub(super) fn write_volume(&self, path: &[String], files: &BTreeMap<String, VolumeFile>) -> io::Result<bool> {
        let held = self.hold(path)?;
        let (dir, text) = (self.descend(path)?, self.text(path));
        if let Some(old) = current(&dir)?
            && volume_is(&dir, &old, files)?
            && (is_linked(&dir)? || copies::are(&dir, files)?)
        {
            return Ok(false);
        }
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let fresh = format!("..{}.{:09}", now.as_secs(), now.subsec_nanos());
        let inner = nt::open_at(&dir, &fresh, How { disposition: FILE_CREATE, ..DIRECTORY.directory() })?;
        for (name, file) in files {
            let mut parts: Vec<&str> = name.split('/').filter(|part| !part.is_empty()).collect();
            let leaf = parts.pop().ok_or(io::ErrorKind::InvalidFilename)?;
            let holder = parts.iter().try_fold(inner.try_clone()?, |here, part| make_dir(&here, part, None))?;
            write_new(&holder, leaf, &file.bytes, None)?;
        }
        // Windows cannot rename over a directory link: readers may see nothing for a moment, as with upstream's kubelet.
        missing_is_fine(remove_entry(&dir, DATA, 0))?;
        std::os::windows::fs::symlink_dir(&fresh, text.join(DATA))?;
        if is_linked(&dir)? {
            link_names(&dir, &text, files)?;
        } else {
            copies::write(&dir, files)?;
        }
        for (name, _) in nt::list(&dir)? {
            if name.starts_with("..") && name != DATA && name != fresh {
                remove_entry(&dir, &name, 0)?;
            }
        }
        drop(held);
        Ok(true)
    }
}

fn missing_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn write_new(dir: &File, name: &str, bytes: &[u8], descriptor: Option<&Descriptor>) -> io::Result<File> {
    let access = FILE_GENERIC_WRITE | DELETE;
    let how = How { access, disposition: FILE_CREATE, options: FILE_NON_DIRECTORY_FILE, descriptor, ..THERE };
    let mut file = nt::open_at(dir, name, how)?;
    file.write_all(bytes)?;
    Ok(file)
}

/// Removes one entry and what is below it, by handles, following nothing.
fn remove_entry(dir: &File, name: &str, depth: usize) -> io::Result<()> {
    if depth > 2 * MAX_DEPTH {
        return Err(too_deep());
    }
    let object = nt::open_at(dir, name, How { access: DELETE | FILE_LIST_DIRECTORY | FILE_READ_ATTRIBUTES, ..THERE })?;
    if kind_of(nt::entry(&object)?) == FileKind::Directory {
        for (child, _) in nt::list(&object)? {
            missing_is_fine(remove_entry(&object, &child, depth + 1))?;
        }
    }
    nt::remove(&object)
}

/// Whether the system made the link to the newest generation. Wine 8 says that it did, and makes nothing.
fn is_linked(dir: &File) -> io::Result<bool> {
    Ok(nt::list(dir)?.iter().any(|(name, _)| name == DATA))
}

/// The newest generation in a volume of the agent's own.
fn current(dir: &File) -> io::Result<Option<String>> {
    let generations = nt::list(dir)?.into_iter().filter(|(name, entry)| name.starts_with("..") && kind_of(*entry) == FileKind::Directory);
    Ok(generations.map(|(name, _)| name).max())
}

/// Whether the generation `old` holds exactly `files`.
fn volume_is(dir: &File, old: &str, files: &BTreeMap<String, VolumeFile>) -> io::Result<bool> {
    let inner = open_plain(dir, old, DIRECTORY.directory())?;
    Ok(holds(&inner, files) && count_files(&inner, 0)? == files.len())
}

/// Whether the files are in a directory as they should be.
fn holds(inner: &File, files: &BTreeMap<String, VolumeFile>) -> bool {
    let same = |(name, file): (&String, &VolumeFile)| -> io::Result<bool> {
        let mut parts: Vec<&str> = name.split('/').filter(|part| !part.is_empty()).collect();
        let Some(leaf) = parts.pop() else { return Ok(false) };
        let holder = parts.iter().try_fold(inner.try_clone()?, |here, part| open_plain(&here, part, DIRECTORY.directory()))?;
        let how = How { access: FILE_READ_DATA | FILE_READ_ATTRIBUTES, options: FILE_NON_DIRECTORY_FILE, ..THERE };
        let mut bytes = Vec::new();
        open_plain(&holder, leaf, how)?.take(file.bytes.len() as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes == file.bytes)
    };
    files.iter().all(|entry| same(entry).unwrap_or(false))
}

fn count_files(dir: &File, depth: usize) -> io::Result<usize> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    nt::list(dir)?.into_iter().try_fold(0, |total, (name, entry)| {
        let inner = kind_of(entry) == FileKind::Directory;
        Ok(total + if inner { count_files(&open_plain(dir, &name, DIRECTORY.directory())?, depth + 1)? } else { 1 })
    })
}

/// The first part of a file's path, and whether there are more.
fn first(path: &str) -> Option<(&str, bool)> {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    let name = parts.next()?;
    Some((name, parts.next().is_some()))
}

fn link_names(dir: &File, text: &Path, files: &BTreeMap<String, VolumeFile>) -> io::Result<()> {
    // Names of files, and of directories with files in them.
    let desired: BTreeMap<&str, bool> = files.keys().filter_map(|name| first(name)).collect();
    let there = nt::list(dir)?;
    for (name, is_dir) in desired.iter().filter(|(name, _)| !there.iter().any(|(known, _)| known == *name)) {
        let target = Path::new(DATA).join(name);
        let link = text.join(name);
        if *is_dir { std::os::windows::fs::symlink_dir(&target, &link)? } else { std::os::windows::fs::symlink_file(&target, &link)? }
    }
    for (name, entry) in there {
        if is_link(entry) && !name.starts_with("..") && !desired.contains_key(name.as_str()) {
            remove_entry(dir, &name, 0)?;
        }
    }
    Ok(())
}

/// Adds what is in a directory. Links and what vanishes meanwhile do not count.
fn measure(dir: &File, depth: usize, usage: &mut Usage) -> io::Result<()> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    for (name, entry) in nt::list(dir)? {
        let Ok(object) = nt::open_at(dir, &name, THERE) else { continue };
        usage.inodes += 1;
        match kind_of(entry) {
            FileKind::Directory => {
                if let Ok(inner) = open_plain(dir, &name, DIRECTORY.directory()) {
                    measure(&inner, depth + 1, usage)?;
                }
            }
            FileKind::File => usage.bytes = usage.bytes.saturating_add(object.metadata().map_or(0, |metadata| metadata.len())),
            _ => {}
        }
    }
    Ok(())
}
