//! Handle-relative files through openat2: each path is resolved by the kernel below the root's
//! descriptor, so a link can never lead out of it, whatever changes meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2, readlinkat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, fstatat, mkdirat};
use nix::unistd::{Gid, UnlinkatFlags, fchown, symlinkat, unlinkat};

use super::{Beneath, FileKind, GroupOwner, Hold, MAX_DEPTH, Reader, Resolved, Socket, Space, Usage, VolumeFile, too_deep};

mod device;
mod group;

const DATA: &str = "..data";
const DATA_NEW: &str = "..data_tmp";

/// The directory that stands for a drive or for `/`.
#[derive(Debug)]
pub(super) struct Root {
    fd: OwnedFd,
    /// Windows names: same letters in another case are the same name.
    fold_case: bool,
}

pub(super) fn make_private_dir(path: &std::path::Path) -> io::Result<()> {
    std::fs::create_dir_all(path)
}

impl Root {
    pub(super) fn open(dir: PathBuf, fold_case: bool) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Root { fd: nix::fcntl::open(&dir, flags, Mode::empty())?, fold_case })
    }

    /// Opens `path` below the root. Links are followed inside the root only.
    fn open_in(&self, path: &[String], flags: OFlag) -> io::Result<OwnedFd> {
        match self.open_exact(path, flags) {
            Err(e) if self.fold_case && e.kind() == io::ErrorKind::NotFound => self.open_exact(&self.fold(path)?, flags),
            other => other,
        }
    }

    fn open_exact(&self, path: &[String], flags: OFlag) -> io::Result<OwnedFd> {
        let text = if path.is_empty() { ".".to_owned() } else { path.join("/") };
        let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        Ok(openat2(&self.fd, text.as_str(), how)?)
    }

    /// The path with each name as it is really spelt, where it exists under another case.
    fn fold(&self, path: &[String]) -> io::Result<Vec<String>> {
        let mut real: Vec<String> = Vec::with_capacity(path.len());
        for name in path {
            real.push(name.clone());
            if self.open_exact(&real, OFlag::O_PATH | OFlag::O_NOFOLLOW).is_ok() {
                continue;
            }
            real.pop();
            let parent = match self.open_exact(&real, OFlag::O_RDONLY | OFlag::O_DIRECTORY) {
                Ok(parent) => parent,
                Err(_) => {
                    real.push(name.clone());
                    continue;
                }
            };
            let same = list(parent)?.into_iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
            real.push(same.map_or_else(|| name.clone(), |(n, _)| n));
        }
        Ok(real)
    }

    /// The directory that holds `path`, and the last name as it is spelt there.
    fn parent(&self, path: &[String]) -> io::Result<(OwnedFd, String)> {
        let (name, parents) = path.split_last().ok_or(Errno::EBUSY)?;
        let dir = self.open_in(parents, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
        let exists = fstatat(&dir, name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW).is_ok();
        if !exists && self.fold_case {
            let copy = dir.try_clone()?;
            if let Some((real, _)) = list(copy)?.into_iter().find(|(n, _)| n.eq_ignore_ascii_case(name)) {
                return Ok((dir, real));
            }
        }
        Ok((dir, name.clone()))
    }

    pub(super) fn resolve(&self, path: &[String]) -> io::Result<Resolved> {
        let fd = self.open_in(path, OFlag::O_PATH)?;
        let kind = kind_of(fstat(&fd)?.st_mode);
        let path = std::fs::read_link(fd_path(&fd))?;
        Ok(Resolved { path, kind, handle: File::from(fd) })
    }

    pub(super) fn create_dir_all(&self, path: &[String], mode: u32) -> io::Result<()> {
        if self.open_in(path, OFlag::O_PATH | OFlag::O_DIRECTORY).is_ok() {
            return Ok(());
        }
        let mut dir = self.open_in(&[], OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
        for depth in 1..=path.len() {
            let prefix = &path[..depth];
            dir = match self.open_in(prefix, OFlag::O_RDONLY | OFlag::O_DIRECTORY) {
                Ok(next) => next,
                Err(e) if e.kind() == io::ErrorKind::NotFound => make_dir(dir.as_fd(), &path[depth - 1], mode)?,
                Err(e) => return Err(e),
            };
        }
        Ok(())
    }

    /// Opens `path` below the root, through no link.
    fn open_straight(&self, path: &[String], flags: OFlag) -> io::Result<OwnedFd> {
        let text = if path.is_empty() { ".".to_owned() } else { path.join("/") };
        let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        Ok(openat2(&self.fd, text.as_str(), OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(resolve))?)
    }

    pub(super) fn make_dir(&self, path: &[String], mode: u32) -> io::Result<bool> {
        let (name, parents) = path.split_last().ok_or(Errno::EBUSY)?;
        let dir = self.open_straight(parents, OFlag::O_PATH | OFlag::O_DIRECTORY)?;
        match mkdirat(&dir, name.as_str(), Mode::from_bits_truncate(mode)) {
            Ok(()) => Ok(true),
            Err(Errno::EEXIST) => self.open_straight(path, OFlag::O_PATH | OFlag::O_DIRECTORY).map(|_| false),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn write_into(&self, path: &[String], bytes: &[u8]) -> io::Result<()> {
        let written = nix::unistd::write(self.open_straight(path, OFlag::O_WRONLY)?, bytes)?;
        if written == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    pub(super) fn create_shared_dir_all(&self, path: &[String], mode: u32) -> io::Result<()> {
        self.create_dir_all(path, mode)
    }

    pub(super) fn make_private(&self, path: &[String]) -> io::Result<()> {
        self.create_dir_all(path, 0o750)
    }

    pub(super) fn create_shared_file(&self, path: &[String], mode: u32) -> io::Result<()> {
        self.create_file(path, mode)
    }

    pub(super) fn create_file(&self, path: &[String], mode: u32) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        let flags = OFlag::O_CREAT | OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        match openat(&dir, name.as_str(), flags | OFlag::O_EXCL, Mode::from_bits_truncate(mode)) {
            Ok(fd) => Ok(fchmod(&fd, Mode::from_bits_truncate(mode))?),
            Err(Errno::EEXIST) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    pub(super) fn open_read(&self, path: &[String]) -> io::Result<File> {
        Ok(File::from(self.open_in(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK)?))
    }

    pub(super) fn beneath(&self, dir: &[String], names: &[String]) -> io::Result<Root> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY;
        let dir = self.open_in(dir, flags)?;
        let text = if names.is_empty() { ".".to_owned() } else { names.join("/") };
        let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        let fd = openat2(&dir, text.as_str(), OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(resolve))?;
        Ok(Root { fd, fold_case: self.fold_case })
    }

    pub(super) fn open_beneath(&self, dir: &[String], names: &[String]) -> io::Result<Beneath> {
        let dir = self.open_in(dir, OFlag::O_PATH | OFlag::O_DIRECTORY)?;
        let text = if names.is_empty() { ".".to_owned() } else { names.join("/") };
        let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        let open = |flags: OFlag| openat2(&dir, text.as_str(), OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(resolve));
        // To open a pipe or a device may do something: it is looked at first.
        Ok(match kind_of(fstat(&open(OFlag::O_PATH)?)?.st_mode) {
            FileKind::Directory => Beneath::Directory(list(open(OFlag::O_RDONLY | OFlag::O_DIRECTORY)?)?),
            FileKind::File => {
                let file = open(OFlag::O_RDONLY | OFlag::O_NONBLOCK)?;
                if kind_of(fstat(&file)?.st_mode) == FileKind::File { Beneath::File(File::from(file)) } else { Beneath::Other }
            }
            _ => Beneath::Other,
        })
    }

    pub(super) fn open_append(&self, path: &[String], mode: u32) -> io::Result<File> {
        let (dir, name) = self.parent(path)?;
        let flags = OFlag::O_CREAT | OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        Ok(File::from(openat(&dir, name.as_str(), flags, Mode::from_bits_truncate(mode))?))
    }

    pub(super) fn write_file(&self, path: &[String], bytes: &[u8], mode: u32) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        let temporary = format!(".{name}.new");
        ignore_missing(unlinkat(&dir, temporary.as_str(), UnlinkatFlags::NoRemoveDir))?;
        write_new(dir.as_fd(), &temporary, bytes, mode, None)?;
        Ok(renameat(&dir, temporary.as_str(), &dir, name.as_str())?)
    }

    pub(super) fn rename(&self, path: &[String], to: &[String]) -> io::Result<()> {
        let ((dir, name), (target, new)) = (self.parent(path)?, self.parent(to)?);
        Ok(renameat(&dir, name.as_str(), &target, new.as_str())?)
    }

    pub(super) fn read_dir(&self, path: &[String]) -> io::Result<Vec<(String, FileKind)>> {
        list(self.open_in(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?)
    }

    pub(super) fn remove_tree(&self, path: &[String]) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        remove_entry(dir.as_fd(), &name)
    }

    pub(super) fn remove_dir(&self, path: &[String]) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        Ok(unlinkat(&dir, name.as_str(), UnlinkatFlags::RemoveDir)?)
    }

    /// Through the open object: its own path may be longer than a socket's address may be.
    pub(super) fn connect(&self, path: &[String]) -> io::Result<Socket> {
        let found = self.open_in(path, OFlag::O_PATH)?;
        let socket = Socket::connect(fd_path(&found))?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    }

    /// Through the open directory: the socket's own path may be longer than its address may be.
    pub(super) fn listen(&self, path: &[String]) -> io::Result<std::os::unix::net::UnixListener> {
        let (dir, name) = self.parent(path)?;
        std::os::unix::net::UnixListener::bind(fd_path(&dir).join(name))
    }

    pub(super) fn is_mount(&self, path: &[String]) -> io::Result<bool> {
        let real = self.resolve(path)?.path;
        Ok(linux_sys::mount::mounts_below(&real)?.contains(&real))
    }

    pub(super) fn give_to_group(&self, path: &[String], owner: GroupOwner) -> io::Result<()> {
        group::give(&self.open_in(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?, owner)
    }

    pub(super) fn space(&self, path: &[String]) -> io::Result<Space> {
        let fd = self.open_in(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
        let s = nix::sys::statvfs::fstatvfs(&fd)?;
        Ok(Space {
            capacity: s.blocks() * s.fragment_size(),
            available: s.blocks_available() * s.fragment_size(),
            inodes: s.files(),
            inodes_free: s.files_available(),
        })
    }

    pub(super) fn usage(&self, path: &[String]) -> io::Result<Usage> {
        let dir = self.open_in(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
        let own = fstat(&dir)?;
        let mut usage = Usage { bytes: blocks(&own), inodes: 1 };
        let mut linked = BTreeSet::new();
        measure(&dir, own.st_dev, 0, &mut linked, &mut usage)?;
        Ok(usage)
    }

    /// Binds what `sub` names in `volume` at `place`; see [`super::HostRoot::sub_path`].
    pub(super) fn sub_path(&self, volume: &[String], sub: &[String], place: &[String]) -> io::Result<Option<Hold>> {
        let mut here = self.open_in(volume, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
        // What is made is as open as the volume, as upstream: pods write there as whatever user they have.
        let mode = fstat(&here)?.st_mode & 0o7777;
        for name in sub {
            let name = self.spelt(&here, name)?;
            here = match open_plain(here.as_fd(), &name) {
                Err(Errno::ENOENT) => make_dir(here.as_fd(), &name, mode)?,
                Err(Errno::ELOOP) => {
                    return Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{name} is a link")));
                }
                other => other?,
            };
        }
        self.unmount_below(place).or_else(missing_is_fine)?;
        let parents = &place[..place.len().saturating_sub(1)];
        self.create_dir_all(parents, 0o750)?;
        if kind_of(fstat(&here)?.st_mode) == FileKind::Directory {
            self.create_dir_all(place, 0o750)?;
        } else {
            self.create_file(place, 0o640)?;
        }
        let target = self.open_in(place, OFlag::O_PATH | OFlag::O_NOFOLLOW)?;
        linux_sys::mount::bind(&fd_path(&here), &fd_path(&target))?;
        Ok(None)
    }

    /// The name as it is spelt in the directory, where case does not matter.
    fn spelt(&self, dir: &OwnedFd, name: &str) -> io::Result<String> {
        if !self.fold_case || fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok() {
            return Ok(name.to_owned());
        }
        let same = list(dir.try_clone()?)?.into_iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
        Ok(same.map_or_else(|| name.to_owned(), |(n, _)| n))
    }

    pub(super) fn mount_memory(&self, path: &[String], size: Option<u64>) -> io::Result<()> {
        let target = self.open_in(path, OFlag::O_PATH | OFlag::O_DIRECTORY)?;
        let real = std::fs::read_link(fd_path(&target))?;
        if linux_sys::mount::mounts_below(&real)?.contains(&real) {
            return Ok(());
        }
        let size = size.map(|s| format!(",size={s}")).unwrap_or_default();
        linux_sys::mount::tmpfs(&fd_path(&target), &format!("mode=1777{size}"))
    }

    pub(super) fn mount_huge_pages(&self, path: &[String], page: u64) -> io::Result<()> {
        let target = self.open_in(path, OFlag::O_PATH | OFlag::O_DIRECTORY)?;
        let real = std::fs::read_link(fd_path(&target))?;
        if !linux_sys::mount::mounts_below(&real)?.contains(&real) {
            return linux_sys::mount::hugetlbfs(&fd_path(&target), page);
        }
        match linux_sys::mount::huge_page_size(&fd_path(&target))? {
            Some(mounted) if mounted == page => Ok(()),
            Some(mounted) => Err(io::Error::other(format!("its pages have {mounted} bytes, not {page}: delete the pod and create it again"))),
            None => Err(io::Error::other("a file system of another kind is mounted there: unmount it")),
        }
    }

    pub(super) fn unmount_below(&self, path: &[String]) -> io::Result<()> {
        let real = self.resolve(path)?.path;
        for mount in linux_sys::mount::mounts_below(&real)?.iter().rev() {
            linux_sys::mount::umount(mount)?;
        }
        Ok(())
    }

    /// Modes say who may read a volume here.
    pub(super) fn restrict(&self, path: &[String], _readers: &BTreeSet<Reader>) -> io::Result<()> {
        self.create_dir_all(path, 0o755)
    }

    pub(super) fn write_volume(&self, path: &[String], files: &BTreeMap<String, VolumeFile>) -> io::Result<bool> {
        let dir = self.open_in(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
        let old = readlinkat(&dir, DATA).ok().and_then(|t| t.into_string().ok());
        if let Some(old) = &old
            && volume_is(dir.as_fd(), old, files)
        {
            return Ok(false);
        }
        let fresh = fresh_name();
        let inner = make_dir(dir.as_fd(), &fresh, 0o755)?;
        for (name, file) in files {
            let mut holder = inner.try_clone()?;
            let mut parts: Vec<&str> = name.split('/').filter(|p| !p.is_empty()).collect();
            let leaf = parts.pop().ok_or(Errno::EINVAL)?;
            for part in parts {
                holder = make_dir(holder.as_fd(), part, 0o755)?;
            }
            write_new(holder.as_fd(), leaf, &file.bytes, file.mode, file.group)?;
        }
        ignore_missing(unlinkat(&dir, DATA_NEW, UnlinkatFlags::NoRemoveDir))?;
        symlinkat(fresh.as_str(), &dir, DATA_NEW)?;
        renameat(&dir, DATA_NEW, &dir, DATA)?;
        link_names(&dir, files)?;
        for (name, _) in list(dir.try_clone()?)? {
            if name.starts_with("..") && name != DATA && name != fresh {
                remove_entry(dir.as_fd(), &name)?;
            }
        }
        Ok(true)
    }
}

/// Makes the names users see (`key` → `..data/key`), and removes those that are gone.
fn link_names(dir: &OwnedFd, files: &BTreeMap<String, VolumeFile>) -> io::Result<()> {
    let desired: BTreeSet<&str> = files.keys().filter_map(|n| n.split('/').find(|p| !p.is_empty())).collect();
    for name in &desired {
        match symlinkat(format!("{DATA}/{name}").as_str(), dir, *name) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(e) => return Err(e.into()),
        }
    }
    for (name, kind) in list(dir.try_clone()?)? {
        if kind == FileKind::Link && !name.starts_with("..") && !desired.contains(name.as_str()) {
            unlinkat(dir, name.as_str(), UnlinkatFlags::NoRemoveDir)?;
        }
    }
    Ok(())
}

/// Whether the generation `old` holds exactly `files`.
fn volume_is(dir: BorrowedFd<'_>, old: &str, files: &BTreeMap<String, VolumeFile>) -> bool {
    let same = |(name, file): (&String, &VolumeFile)| {
        let how = OpenHow::new().flags(OFlag::O_RDONLY | OFlag::O_CLOEXEC).resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
        let Ok(fd) = openat2(dir, format!("{old}/{name}").as_str(), how) else {
            return false;
        };
        let mode = fstat(&fd).map(|s| s.st_mode & 0o7777).unwrap_or(0);
        let mut bytes = Vec::new();
        let limit = file.bytes.len() as u64 + 1;
        mode == file.mode && File::from(fd).take(limit).read_to_end(&mut bytes).is_ok() && bytes == file.bytes
    };
    let count = |dir: BorrowedFd<'_>| count_files(dir, old);
    files.iter().all(same) && count(dir).is_ok_and(|n| n == files.len())
}

fn count_files(dir: BorrowedFd<'_>, name: &str) -> io::Result<usize> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let fd = openat(dir, name, flags, Mode::empty())?;
    let mut total = 0;
    for (name, kind) in list(fd.try_clone()?)? {
        total += if kind == FileKind::Directory { count_files(fd.as_fd(), &name)? } else { 1 };
    }
    Ok(total)
}

/// `..2026_11_21_04_55_00.123456789`, as the atomic writer names its generations.
fn fresh_name() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    format!("..{}.{:09}", now.as_secs(), now.subsec_nanos())
}

/// The magic link of an open object, to mount from or at.
fn fd_path(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// Opens one entry of a directory, never through a link.
fn open_plain(dir: BorrowedFd<'_>, name: &str) -> nix::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    openat2(dir, name, how)
}

fn missing_is_fine(e: io::Error) -> io::Result<()> {
    if e.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(e) }
}

fn make_dir(dir: BorrowedFd<'_>, name: &str, mode: u32) -> io::Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    match mkdirat(dir, name, Mode::from_bits_truncate(mode)) {
        Ok(()) => {
            let fd = openat(dir, name, flags, Mode::empty())?;
            // mkdir's mode passes through the umask.
            fchmod(&fd, Mode::from_bits_truncate(mode))?;
            Ok(fd)
        }
        Err(Errno::EEXIST) => Ok(openat(dir, name, flags, Mode::empty())?),
        Err(e) => Err(e.into()),
    }
}

fn write_new(dir: BorrowedFd<'_>, name: &str, bytes: &[u8], mode: u32, group: Option<u32>) -> io::Result<()> {
    let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let fd = openat(dir, name, flags, Mode::from_bits_truncate(0o600))?;
    let mut file = File::from(fd);
    file.write_all(bytes)?;
    match group.map_or(Ok(()), |group| fchown(&file, None, Some(Gid::from_raw(group)))) {
        // Ordinary users have one group in their namespace.
        Ok(()) | Err(Errno::EINVAL) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(fchmod(&file, Mode::from_bits_truncate(mode))?)
}

/// Removes one entry and what is below it, by handles, following nothing and staying on one
/// mount.
fn remove_entry(dir: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let stat = fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
    if kind_of(stat.st_mode) != FileKind::Directory {
        return Ok(ignore_missing(unlinkat(dir, name, UnlinkatFlags::NoRemoveDir))?);
    }
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV);
    let inner = openat2(dir, name, how)?;
    for (child, _) in list(inner.try_clone()?)? {
        match remove_entry(inner.as_fd(), &child) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    Ok(ignore_missing(unlinkat(dir, name, UnlinkatFlags::RemoveDir))?)
}

fn blocks(stat: &FileStat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512)
}

/// Adds what is in a directory, by handles. A file with several names counts once; what vanishes meanwhile does not count.
fn measure(dir: &OwnedFd, device: u64, depth: usize, linked: &mut BTreeSet<u64>, usage: &mut Usage) -> io::Result<()> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    for (name, kind) in list(dir.try_clone()?)? {
        let Ok(stat) = fstatat(dir, name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW) else { continue };
        if stat.st_dev != device || (stat.st_nlink > 1 && kind != FileKind::Directory && !linked.insert(stat.st_ino)) {
            continue;
        }
        usage.bytes = usage.bytes.saturating_add(blocks(&stat));
        usage.inodes += 1;
        if kind != FileKind::Directory {
            continue;
        }
        let how = OpenHow::new()
            .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV);
        if let Ok(inner) = openat2(dir, name.as_str(), how) {
            measure(&inner, device, depth + 1, linked, usage)?;
        }
    }
    Ok(())
}

fn ignore_missing(result: nix::Result<()>) -> nix::Result<()> {
    match result {
        Err(Errno::ENOENT) => Ok(()),
        other => other,
    }
}

fn list(dir: OwnedFd) -> io::Result<Vec<(String, FileKind)>> {
    // A fresh description: reading one shared with another descriptor would move its position.
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let own = openat(&dir, ".", flags, Mode::empty())?;
    let mut entries = Dir::from_fd(own)?;
    let mut names = Vec::new();
    for entry in entries.iter() {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else {
            continue;
        };
        if name == "." || name == ".." {
            continue;
        }
        let stat = match fstatat(&dir, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::ENOENT) => continue,
            Err(e) => return Err(e.into()),
        };
        names.push((name.to_owned(), kind_of(stat.st_mode)));
    }
    Ok(names)
}

fn kind_of(mode: u32) -> FileKind {
    match SFlag::from_bits_truncate(mode & SFlag::S_IFMT.bits()) {
        SFlag::S_IFDIR => FileKind::Directory,
        SFlag::S_IFREG => FileKind::File,
        SFlag::S_IFLNK => FileKind::Link,
        SFlag::S_IFSOCK => FileKind::Socket,
        SFlag::S_IFCHR => FileKind::CharDevice,
        SFlag::S_IFBLK => FileKind::BlockDevice,
        _ => FileKind::Other,
    }
}
