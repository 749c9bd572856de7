//! Reads untrusted tar archives.
//!
//! Long names, PAX records, sizes and counts are bounded before anything is kept in memory, names never leave the
//! root, and forms that would need interpretation beyond that (sparse files, size overrides) are refused.

use std::ffi::OsStr;
use std::io::{self, Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use tar::{Archive, Entries, EntryType};
use thiserror::Error;

/// What an archive may hold at most.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of all files of one archive together, unpacked.
    pub bytes: u64,
    pub file_bytes: u64,
    pub members: u64,
}

impl Default for Limits {
    /// Room for the largest Windows base layers known (12 GiB) and for a million files.
    fn default() -> Self {
        Self { bytes: 32 << 30, file_bytes: 16 << 30, members: 1_000_000 }
    }
}

/// Longest name, link target or block of PAX records that is read.
const MAX_META: u64 = 64 * 1024;

/// Why an archive is refused.
#[derive(Debug, Error)]
pub enum TarError {
    /// A name contains `..`.
    #[error("member {0:?} points out of the archive's root")]
    Escapes(PathBuf),
    /// Too large, or too many members.
    #[error("archive holds more than {limit} {unit}: refused as a decompression bomb")]
    TooLarge {
        limit: u64,
        /// `bytes`, `bytes in one file` or `members`.
        unit: &'static str,
    },
    /// A form that is not read.
    #[error("member {path:?} is a {what}, which is not supported")]
    Unsupported {
        path: PathBuf,
        /// Its form.
        what: &'static str,
    },
    /// The archive ends early or is not a tar archive.
    #[error("archive is damaged or truncated")]
    Damaged(#[source] io::Error),
}

/// What a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Symlink,
    /// Another name for a file that came before.
    HardLink,
    Fifo,
    /// A block or character device.
    Device,
}

#[derive(Debug)]
pub struct Member {
    /// Relative to the root, without `.` and `..`. Empty for the root itself.
    pub path: PathBuf,
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    /// Seconds since 1970.
    pub mtime: u64,
    pub size: u64,
    /// Where the content begins in the archive.
    pub offset: u64,
    /// Target of a link: as written for symbolic links, cleaned like `path` for hard links.
    pub link: Option<PathBuf>,
    /// Windows' attribute of that name (`MSWINDOWS.fileattr`).
    pub read_only: bool,
}

/// What a visitor returns.
pub type Visit<E> = Result<(), E>;

/// The tar reader's error about a file that is no archive repeats the bytes that it found, which no terminal should get.
fn damaged(error: io::Error) -> TarError {
    let reason = match error.kind() {
        io::ErrorKind::UnexpectedEof => "it ends early",
        io::ErrorKind::Other if error.to_string().contains("failed to read entire block") => "it ends early",
        io::ErrorKind::Other | io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => "it has bytes that are no member of a tar archive",
        _ => return TarError::Damaged(error),
    };
    TarError::Damaged(io::Error::new(error.kind(), reason))
}

/// Calls `visit` for each member with a reader of its content.
///
/// # Errors
/// The archive's own faults, and whatever `visit` returns.
pub fn each<R: Read, E: From<TarError>>(reader: R, limits: Limits, visit: impl FnMut(Member, &mut dyn Read) -> Visit<E>) -> Visit<E> {
    let mut archive = Archive::new(reader);
    let entries = archive.entries().map_err(damaged)?;
    walk(entries, limits, visit)
}

/// As [`each`], skipping what is not read by seeking.
///
/// # Errors
/// As [`each`].
pub fn each_seek<R: Read + Seek, E: From<TarError>>(reader: R, limits: Limits, visit: impl FnMut(Member, &mut dyn Read) -> Visit<E>) -> Visit<E> {
    let mut archive = Archive::new(reader);
    let entries = archive.entries_with_seek().map_err(damaged)?;
    walk(entries, limits, visit)
}

fn walk<R: Read, E: From<TarError>>(entries: Entries<'_, R>, limits: Limits, mut visit: impl FnMut(Member, &mut dyn Read) -> Visit<E>) -> Visit<E> {
    let mut pending = Pending::default();
    let (mut members, mut bytes) = (0u64, 0u64);
    for entry in entries.raw(true) {
        let mut entry = entry.map_err(damaged)?;
        members += 1;
        if members > limits.members {
            return Err(TarError::TooLarge { limit: limits.members, unit: "members" }.into());
        }
        let kind = entry.header().entry_type();
        if pending.absorb(kind, entry.size(), &mut entry)? {
            continue;
        }
        let header = entry.header();
        let own = header.path_bytes().into_owned();
        let name = pending.path.take().unwrap_or(own);
        let link = pending.link.take().or_else(|| header.link_name_bytes().map(|bytes| bytes.into_owned()));
        let path = PathBuf::from(OsStr::from_bytes(&name));
        if pending.size.take().is_some_and(|size| size != entry.size()) || kind == EntryType::GNUSparse {
            return Err(TarError::Unsupported { path, what: "sparse file or a file of more than 8 GiB" }.into());
        }
        let kind = match kind {
            EntryType::Regular | EntryType::Continuous if name.ends_with(b"/") => Kind::Directory,
            EntryType::Regular | EntryType::Continuous => Kind::File,
            EntryType::Directory => Kind::Directory,
            EntryType::Symlink => Kind::Symlink,
            EntryType::Link => Kind::HardLink,
            EntryType::Fifo => Kind::Fifo,
            EntryType::Char | EntryType::Block => Kind::Device,
            _ => return Err(TarError::Unsupported { path, what: "member of unknown type" }.into()),
        };
        bytes = bytes.saturating_add(entry.size());
        if bytes > limits.bytes {
            return Err(TarError::TooLarge { limit: limits.bytes, unit: "bytes" }.into());
        }
        if entry.size() > limits.file_bytes {
            return Err(TarError::TooLarge { limit: limits.file_bytes, unit: "bytes in one file" }.into());
        }
        let link = link.map(|bytes| PathBuf::from(OsStr::from_bytes(&bytes)));
        let member = Member {
            path: clean(&path)?,
            kind,
            mode: header.mode().map_err(damaged)? & 0o7777,
            mtime: header.mtime().unwrap_or(0),
            size: entry.size(),
            offset: entry.raw_file_position(),
            link: match (kind, link) {
                (Kind::HardLink, Some(link)) => Some(clean(&link)?),
                (Kind::Symlink, link) => link,
                _ => None,
            },
            read_only: pending.attributes.take().is_some_and(|attributes| attributes & 1 != 0),
        };
        visit(member, &mut entry)?;
    }
    Ok(())
}

/// Contents of the extension headers before a member.
#[derive(Default)]
struct Pending {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    attributes: Option<u32>,
}

impl Pending {
    /// Whether the entry was an extension header, now remembered.
    fn absorb(&mut self, kind: EntryType, size: u64, content: &mut impl Read) -> Result<bool, TarError> {
        if !(kind.is_gnu_longname() || kind.is_gnu_longlink() || kind.is_pax_local_extensions() || kind.is_pax_global_extensions()) {
            return Ok(false);
        }
        if size > MAX_META {
            return Err(TarError::TooLarge { limit: MAX_META, unit: "bytes in one name" });
        }
        let mut data = Vec::new();
        content.take(MAX_META).read_to_end(&mut data).map_err(damaged)?;
        if kind.is_gnu_longname() || kind.is_gnu_longlink() {
            while data.last() == Some(&0) {
                data.pop();
            }
            *(if kind.is_gnu_longname() { &mut self.path } else { &mut self.link }) = Some(data);
        } else if kind.is_pax_local_extensions() {
            for record in tar::PaxExtensions::new(&data) {
                let record = record.map_err(damaged)?;
                match record.key_bytes() {
                    b"path" => self.path = Some(record.value_bytes().to_vec()),
                    b"linkpath" => self.link = Some(record.value_bytes().to_vec()),
                    b"MSWINDOWS.fileattr" => self.attributes = record.value().ok().and_then(|value| value.parse().ok()),
                    b"size" => self.size = record.value().ok().and_then(|value| value.parse().ok()),
                    key if key.starts_with(b"GNU.sparse") => self.size = Some(u64::MAX),
                    _ => {}
                }
            }
        }
        Ok(true)
    }
}

/// A name below the root: leading `/` and every `.` dropped, `..` refused.
///
/// # Errors
/// [`TarError::Escapes`].
pub fn clean(path: &Path) -> Result<PathBuf, TarError> {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(part) => out.push(part),
            Component::ParentDir => return Err(TarError::Escapes(path.to_owned())),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Ok(out)
}
