//! Layers of Windows images, unpacked so that they fit over Wine's template.
//!
//! `Files/X` becomes `drive_c/X`, spelled as the layers below spell it ([`spelling`]); `Hives/*_Delta` are kept as they
//! are in `hives/` and applied when a container starts ([`compose`]); `UtilityVM/` and whatever else Windows keeps
//! beside is left out. Layers of Microsoft's bases are not unpacked: the template stands for them.

pub mod hive;
pub mod registry;
mod spelling;

use std::io::Read;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::layer::{self, LayerError, Links, Translated};
use super::tarball::{Kind, Limits, Member, TarError};
use registry::{RegistryFile, Which};
use spelling::Spelling;
pub use wine::DRIVE;

/// Directory of a layer with its hives.
pub const HIVES: &str = "hives";

/// What a Windows layer turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unpacked {
    /// A layer over a base.
    Layer,
    /// A base of Windows itself, for which the template stands. The target holds a part of it.
    Base,
}

/// Unpacks the tar stream of a Windows layer into the empty directory `target`. `below` are the unpacked layers below it,
/// highest first, and last the template.
///
/// # Errors
/// As [`layer::unpack`], and when a hive is damaged.
pub fn unpack(reader: impl Read, target: &Path, below: &[PathBuf], limits: Limits) -> Result<Unpacked, LayerError> {
    let spelling = Spelling::new(below.iter().map(|dir| dir.join(DRIVE)));
    let mut translation = Translation { spelling };
    match layer::unpack_with(reader, target, limits, Links::Refused, |member, content| translation.member(member, content)) {
        Ok(()) => Ok(Unpacked::Layer),
        Err(LayerError::Base) => Ok(Unpacked::Base),
        Err(error) => Err(error),
    }
}

struct Translation {
    spelling: Spelling,
}

impl Translation {
    /// The member as it is unpacked; none if it is not.
    fn member(&mut self, member: Member, content: &mut dyn Read) -> Result<Option<Translated>, LayerError> {
        let mut parts = member.path.iter();
        let first = parts.next().unwrap_or_default();
        let rest = parts.as_path();
        if first.eq_ignore_ascii_case("hives") {
            return if member.kind == Kind::File { hive(member, content) } else { Ok(None) };
        }
        if !first.eq_ignore_ascii_case("files") {
            return Ok(None);
        }
        check(&member.path)?;
        // The drive itself: through a link in its place every file of the layer would go astray.
        if rest.as_os_str().is_empty() && member.kind != Kind::Directory {
            return Err(TarError::Unsupported { path: member.path, what: "drive C that is no directory" }.into());
        }
        // Names with a colon are alternate data streams, which no file system here has.
        if rest.as_os_str().as_bytes().contains(&b':') {
            return Ok(None);
        }
        let Some((path, plain)) = self.place(rest) else {
            // A whiteout of nothing, which `layer` refuses with its own message.
            return Ok(Some((Member { path: Path::new(DRIVE).join(rest), ..member }, None)));
        };
        let system = plain.iter().next().is_some_and(|part| part == "windows");
        if system && plain.as_os_str().eq_ignore_ascii_case("windows/system32/ntdll.dll") && member.kind == Kind::File && path == plain {
            return Err(LayerError::Base);
        }
        // Wine's own system files stay: Windows' would not run here.
        if system && member.kind != Kind::Directory && self.spelling.template_has_file(&plain) {
            return Ok(None);
        }
        let link = match (member.kind, &member.link) {
            (Kind::Symlink, Some(link)) => match self.target_of(rest, link) {
                Some(link) => Some(link),
                None => return Ok(None),
            },
            (Kind::HardLink, Some(link)) => {
                let mut parts = link.iter();
                let in_files = parts.next().is_some_and(|first| first.eq_ignore_ascii_case("files"));
                if !in_files {
                    return Err(TarError::Escapes(link.clone()).into());
                }
                Some(Path::new(DRIVE).join(self.spelling.fold(parts.as_path())))
            }
            _ => None,
        };
        // Modes in these layers say nothing but read-only.
        let mode = if member.read_only && member.kind == Kind::File { 0o555 } else { 0o755 };
        Ok(Some((Member { path: Path::new(DRIVE).join(path), link, mode, ..member }, None)))
    }

    /// Where a name goes, and which file it is about: they differ for whiteouts.
    fn place(&mut self, rest: &Path) -> Option<(PathBuf, PathBuf)> {
        let name = rest.file_name().unwrap_or_default();
        let parent = rest.parent().unwrap_or(Path::new(""));
        match name.as_bytes().strip_prefix(b".wh.") {
            Some(hidden) if hidden.starts_with(b".wh.") => {
                let parent = self.spelling.fold(parent);
                Some((parent.join(name), parent))
            }
            Some(b"" | b"." | b"..") => None,
            Some(hidden) => {
                let plain = self.spelling.fold(&parent.join(std::ffi::OsStr::from_bytes(hidden)));
                let mut marked = std::ffi::OsString::from(".wh.");
                marked.push(plain.file_name()?);
                Some((plain.with_file_name(marked), plain))
            }
            None => {
                let plain = self.spelling.fold(rest);
                Some((plain.clone(), plain))
            }
        }
    }

    /// A link's target relative to its place; none if it leads to another drive.
    fn target_of(&mut self, link: &Path, target: &Path) -> Option<PathBuf> {
        let text = target.to_str()?.replace('\\', "/");
        let text = text.strip_prefix("//?/").or(text.strip_prefix("/??/")).unwrap_or(&text);
        let parent = link.parent().unwrap_or(Path::new(""));
        let mut path = match text.as_bytes() {
            [b'c' | b'C', b':', b'/', ..] => {
                let mut path = PathBuf::new();
                append(&mut path, &text[3..]).then_some(path)?
            }
            [b'/', b'/', ..] => return None,
            [b'/', ..] => {
                let mut path = PathBuf::new();
                append(&mut path, text).then_some(path)?
            }
            _ if text.contains(':') || text.starts_with("Volume{") => return None,
            _ => {
                let mut path = parent.to_owned();
                append(&mut path, text).then_some(path)?
            }
        };
        path = self.spelling.fold(&path);
        let mut relative: PathBuf = std::iter::repeat_n(Component::ParentDir, parent.iter().count()).collect();
        relative.push(path);
        Some(if relative.as_os_str().is_empty() { ".".into() } else { relative })
    }
}

/// A hive of use as it is kept, written like every member of the layer.
fn hive(member: Member, content: &mut dyn Read) -> Result<Option<Translated>, LayerError> {
    let name: PathBuf = member.path.iter().skip(1).collect();
    let Some(which) = name.to_str().and_then(Which::of) else { return Ok(None) };
    let limit = hive::MAX_HIVE;
    if member.size > limit {
        return Err(TarError::TooLarge { limit, unit: "bytes in one hive" }.into());
    }
    let mut bytes = Vec::new();
    content.take(limit).read_to_end(&mut bytes).map_err(TarError::Damaged)?;
    let root = hive::parse(&bytes).map_err(|source| LayerError::Hive { path: member.path.clone(), source })?;
    if root.keys.is_empty() && root.values.is_empty() {
        return Ok(None);
    }
    let size = bytes.len() as u64;
    Ok(Some((Member { path: Path::new(HIVES).join(which.file()), mode: 0o644, size, ..member }, Some(bytes))))
}

/// Appends `/`-separated names; false when that leads out.
fn append(path: &mut PathBuf, text: &str) -> bool {
    text.split('/').all(|part| match part {
        "" | "." => true,
        ".." => path.pop(),
        part => {
            path.push(part);
            true
        }
    })
}

/// Refuses what no file on Windows is called.
fn check(path: &Path) -> Result<(), LayerError> {
    if path.as_os_str().as_bytes().iter().any(|byte| *byte == b'\\' || *byte < b' ') {
        return Err(TarError::Unsupported { path: path.to_owned(), what: "file with a name that Windows does not have" }.into());
    }
    Ok(())
}

/// Applies the hives of unpacked layers, lowest first, to the registry files of the prefix below them. Returns the files
/// that changed, by name.
///
/// # Errors
/// When a file cannot be read, or a hive is damaged.
pub fn compose(below: &dyn Fn(&str) -> std::io::Result<String>, layers: &[PathBuf]) -> std::io::Result<Vec<(&'static str, String)>> {
    let mut changed = Vec::new();
    for (name, hives) in [("system.reg", &[Which::Software, Which::System][..]), ("user.reg", &[Which::User])] {
        let mut file: Option<RegistryFile> = None;
        for layer in layers {
            for which in hives {
                let Some(bytes) = kept(layer, *which)? else { continue };
                let root = hive::parse(&bytes).map_err(|error| std::io::Error::new(std::io::ErrorKind::InvalidData, error))?;
                let file = match &mut file {
                    Some(file) => file,
                    none => none.insert(RegistryFile::parse(&below(name)?)),
                };
                file.apply(*which, &root);
            }
        }
        changed.extend(file.map(|file| (name, file.render())));
    }
    Ok(changed)
}

/// A hive that an unpacked layer keeps, read as it was written: through no link.
fn kept(layer: &Path, which: Which) -> std::io::Result<Option<Vec<u8>>> {
    let layer = rustix::fs::openat(CWD, layer, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let path = Path::new(HIVES).join(which.file());
    match rustix::fs::openat2(layer, &path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty(), resolve) {
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
        Ok(fd) => {
            let mut bytes = Vec::new();
            std::fs::File::from(fd).take(hive::MAX_HIVE).read_to_end(&mut bytes)?;
            Ok(Some(bytes))
        }
    }
}
