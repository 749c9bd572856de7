//! Unpacks one layer into a directory of its own.
//!
//! Every write goes through a handle of that directory (`openat2`), so links inside a layer cannot lead out: in layers of
//! Linux the directory is their root (`RESOLVE_IN_ROOT`, as containerd has it), in layers of Windows no member lies below
//! a link (`RESOLVE_NO_SYMLINKS`, as hcsshim has it). All files belong to the running user, since a single-uid map knows no other. Removals become what overlayfs
//! reads: a character device 0:0 for a whiteout, the attribute `user.overlay.opaque` for an opaque directory.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use thiserror::Error;

use super::tarball::{self, Kind, Limits, Member, TarError};

/// Why a layer could not be unpacked.
#[derive(Debug, Error)]
pub enum LayerError {
    #[error(transparent)]
    Tar(#[from] TarError),
    #[error("cannot {operation} {path:?}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// Path inside the layer.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A part of a Windows registry.
    #[error("cannot read the registry in {path:?}")]
    Hive {
        path: PathBuf,
        #[source]
        source: super::windows::hive::HiveError,
    },
    /// A member of a Windows layer whose path leads through a link, or a second name of a link.
    #[error("member {0:?} leads through a link of its layer, which no layer of Windows does")]
    Link(PathBuf),
    /// Not an error to users: unpacking ends here.
    #[error("the layer is a base of Windows itself")]
    Base,
}

/// Attribute by which overlayfs (mounted with `userxattr`) knows a directory that hides those below it.
pub const OPAQUE: &str = "user.overlay.opaque";

/// Unpacks the tar stream `reader` into the empty directory `target`.
///
/// # Errors
/// When the stream is hostile, damaged or too large, or a file cannot be written. `target` then holds a part.
pub fn unpack(reader: impl Read, target: &Path, limits: Limits) -> Result<(), LayerError> {
    unpack_with(reader, target, limits, Links::InRoot, |member, _| Ok(Some((member, None))))
}

/// What links in the paths of members mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Links {
    /// They are followed, with the layer as their root.
    InRoot,
    /// No member may lie below one.
    Refused,
}

/// A member, with its content if that is not the archive's.
pub(super) type Translated = (Member, Option<Vec<u8>>);

/// As [`unpack`], with each member as `translate` has it, or without it.
///
/// # Errors
/// As [`unpack`], and whatever `translate` returns.
pub(super) fn unpack_with(
    reader: impl Read,
    target: &Path,
    limits: Limits,
    links: Links,
    mut translate: impl FnMut(Member, &mut dyn Read) -> Result<Option<Translated>, LayerError>,
) -> Result<(), LayerError> {
    let root = rustix::fs::openat(CWD, target, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| io_error("open", target)(errno))?;
    let mut layer = Layer { root, links, parent: None, modes: Vec::new() };
    tarball::each(reader, limits, |member, content| match translate(member, content)? {
        Some((member, None)) => layer.add(&member, content),
        Some((member, Some(own))) => layer.add(&member, &mut own.as_slice()),
        None => Ok(()),
    })?;
    layer.finish()
}

struct Layer {
    root: OwnedFd,
    links: Links,
    /// The directory of the last member: archives list files directory by directory.
    parent: Option<(PathBuf, OwnedFd)>,
    /// Directory modes, set at the end so that a read-only directory can still be filled.
    modes: Vec<(PathBuf, u32)>,
}

fn io_error(operation: &'static str, path: &Path) -> impl Fn(Errno) -> LayerError {
    let path = path.to_owned();
    move |errno| LayerError::Io { operation, path: path.clone(), source: errno.into() }
}

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl Layer {
    fn add(&mut self, member: &Member, content: &mut dyn Read) -> Result<(), LayerError> {
        let path = &member.path;
        let Some(name) = path.file_name() else {
            self.modes.push((PathBuf::new(), member.mode));
            return Ok(());
        };
        let parent = path.parent().unwrap_or(Path::new(""));
        if let Some(hidden) = name.as_bytes().strip_prefix(b".wh.") {
            return self.whiteout(parent, hidden);
        }
        match member.kind {
            Kind::Directory => {
                self.directory(parent, name)?;
                self.modes.push((path.clone(), member.mode));
                Ok(())
            }
            Kind::File => self.file(parent, name, member, content),
            Kind::Symlink => {
                let link = member.link.as_deref().unwrap_or(Path::new(""));
                let at = self.vacant(parent, name)?;
                rustix::fs::symlinkat(link, at, name).map_err(io_error("link", path))
            }
            Kind::HardLink => self.hard_link(parent, name, member),
            Kind::Fifo => {
                let at = self.vacant(parent, name)?;
                rustix::fs::mknodat(at, name, FileType::Fifo, Mode::from_raw_mode(member.mode), 0).map_err(io_error("make pipe", path))
            }
            // Containers get their devices from the runtime; an ordinary user could not make these.
            Kind::Device => Ok(()),
        }
    }

    fn file(&mut self, parent: &Path, name: &OsStr, member: &Member, content: &mut dyn Read) -> Result<(), LayerError> {
        let path = &member.path;
        let at = self.vacant(parent, name)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(at, name, flags, Mode::RUSR | Mode::WUSR).map_err(io_error("create", path))?;
        let mut file = File::from(fd);
        let copied = io::copy(&mut content.take(member.size), &mut file).map_err(|source| LayerError::Io {
            operation: "write",
            path: path.clone(),
            source,
        })?;
        if copied != member.size {
            return Err(TarError::Damaged(io::ErrorKind::UnexpectedEof.into()).into());
        }
        let mode = Mode::from_raw_mode(member.mode | 0o400);
        rustix::fs::fchmod(&file, mode).map_err(io_error("set mode of", path))?;
        let time = Timespec { tv_sec: i64::try_from(member.mtime).unwrap_or(0), tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::futimens(&file, &times).map_err(io_error("set time of", path))
    }

    fn hard_link(&mut self, parent: &Path, name: &OsStr, member: &Member) -> Result<(), LayerError> {
        let path = &member.path;
        let link = member.link.clone().unwrap_or_default();
        let source_parent = self.open_parent(link.parent().unwrap_or(Path::new("")))?.try_clone().map_err(|source| LayerError::Io {
            operation: "open",
            path: link.clone(),
            source,
        })?;
        let source = link.file_name().unwrap_or_default();
        // A link of a Windows layer leads to the right place from its own directory only.
        let stat = rustix::fs::statat(&source_parent, source, AtFlags::SYMLINK_NOFOLLOW);
        if self.links == Links::Refused && stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink) {
            return Err(LayerError::Link(path.clone()));
        }
        let at = self.vacant(parent, name)?;
        rustix::fs::linkat(source_parent, source, at, name, AtFlags::empty()).map_err(io_error("hard-link", path))
    }

    fn directory(&mut self, parent: &Path, name: &OsStr) -> Result<(), LayerError> {
        let path = parent.join(name);
        let at = self.open_parent(parent)?;
        match rustix::fs::mkdirat(at, name, Mode::RWXU) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) if is_directory(at, name) => Ok(()),
            Err(Errno::EXIST) => {
                rustix::fs::unlinkat(at, name, AtFlags::empty()).map_err(io_error("replace", &path))?;
                rustix::fs::mkdirat(at, name, Mode::RWXU).map_err(io_error("make directory", &path))
            }
            Err(errno) => Err(io_error("make directory", &path)(errno)),
        }
    }

    fn whiteout(&mut self, parent: &Path, hidden: &[u8]) -> Result<(), LayerError> {
        let name = OsStr::from_bytes(hidden);
        if hidden == b".wh..opq" {
            let at = self.open_parent(parent)?;
            // The directory is open as a path only; its attributes need a real descriptor.
            let dir =
                rustix::fs::openat(at, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).map_err(io_error("open", parent))?;
            return rustix::fs::fsetxattr(dir, OPAQUE, b"y", XattrFlags::empty()).map_err(io_error("mark opaque", parent));
        }
        if hidden.is_empty() || hidden == b"." || hidden == b".." {
            return Err(TarError::Escapes(parent.join(name)).into());
        }
        if hidden.starts_with(b".wh.") {
            return Ok(()); // aufs' own bookkeeping
        }
        let at = self.vacant(parent, name)?;
        rustix::fs::mknodat(at, name, FileType::CharacterDevice, Mode::empty(), 0).map_err(io_error("make whiteout", &parent.join(name)))
    }

    /// The directory for a new member whose name is free, or was made free.
    fn vacant(&mut self, parent: &Path, name: &OsStr) -> Result<&OwnedFd, LayerError> {
        let at = self.open_parent(parent)?;
        match rustix::fs::unlinkat(at, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ISDIR) => {
                rustix::fs::unlinkat(at, name, AtFlags::REMOVEDIR).map_err(io_error("replace directory", &parent.join(name)))?;
            }
            Err(errno) => return Err(io_error("replace", &parent.join(name))(errno)),
        }
        Ok(at)
    }

    /// Opens a directory of the layer, making what is missing.
    fn open_parent(&mut self, path: &Path) -> Result<&OwnedFd, LayerError> {
        if self.parent.as_ref().is_none_or(|(open, _)| open != path) {
            let fd = match self.open_in_root(path) {
                Err(Errno::NOENT) => {
                    let mut sofar = PathBuf::new();
                    for part in path {
                        let at = self.open_in_root(&sofar).map_err(|errno| self.not_opened(&sofar, errno))?;
                        sofar.push(part);
                        match rustix::fs::mkdirat(at, part, Mode::from_raw_mode(0o755)) {
                            Ok(()) | Err(Errno::EXIST) => {}
                            Err(errno) => return Err(io_error("make directory", &sofar)(errno)),
                        }
                    }
                    self.open_in_root(path)
                }
                other => other,
            };
            self.parent = Some((path.to_owned(), fd.map_err(|errno| self.not_opened(path, errno))?));
        }
        match &self.parent {
            Some((_, fd)) => Ok(fd),
            None => Ok(&self.root),
        }
    }

    fn open_in_root(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let resolve = match self.links {
            Links::InRoot => ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
            Links::Refused => ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
        };
        rustix::fs::openat2(&self.root, path, DIRECTORY, Mode::empty(), resolve)
    }

    fn not_opened(&self, path: &Path, errno: Errno) -> LayerError {
        match (self.links, errno) {
            (Links::Refused, Errno::LOOP) => LayerError::Link(path.to_owned()),
            _ => io_error("open", path)(errno),
        }
    }

    /// Sets the modes of directories, innermost first. The owner keeps every right: the cache must stay removable.
    fn finish(mut self) -> Result<(), LayerError> {
        self.parent = None;
        while let Some((path, mode)) = self.modes.pop() {
            let at = match self.open_in_root(&path) {
                Ok(at) => at,
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                Err(errno) => return Err(io_error("open", &path)(errno)),
            };
            let mode = Mode::from_raw_mode(mode | 0o700);
            rustix::fs::chmodat(&at, ".", mode, AtFlags::empty()).map_err(io_error("set mode of", &path))?;
        }
        Ok(())
    }
}

fn is_directory(at: &OwnedFd, name: &OsStr) -> bool {
    rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}
