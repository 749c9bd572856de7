//! Replacement of whole files: readers see the old content or the new.
//!
//! A file is written under a temporary name in the directory of its path, and then renamed. What holds:
//!
//! - Atomic for readers: a reader of the path gets the whole old content or the whole new content. Of several writers, the last one wins.
//! - A failure leaves the old file as it was, and no temporary file. A process that is killed may leave one (`.NAME.*.tmp`,
//!   [`is_temporary`]).
//! - Nobody can prepare the temporary file: its name cannot be foreseen, and a file or link that is there is not written to. The path's last
//!   component is replaced even if it is a link. Links in its directory are followed.
//! - Durable only with [`Options::synced`]: after a crash of the machine, the path has the old content or the new. Without it, the file may
//!   be empty then. Neither promises that the new name is on the disk on return.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// How a file is written.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    mode: u32,
    synced: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl Options {
    /// Mode 0666 as [`std::fs::write`], and not synced.
    #[must_use]
    pub const fn new() -> Self {
        Self { mode: 0o666, synced: false }
    }

    /// The mode of the new file, less the process' umask. On Windows the directory's access list decides.
    #[must_use]
    pub const fn mode(self, mode: u32) -> Self {
        Self { mode, ..self }
    }

    /// Flushes the content to the disk before the file gets its name.
    #[must_use]
    pub const fn synced(self) -> Self {
        Self { synced: true, ..self }
    }

    /// Replaces the file by one with that content.
    ///
    /// # Errors
    /// When the directory cannot be written, or the disk is full. The old file stays then.
    pub fn write(self, path: &Path, content: impl AsRef<[u8]>) -> io::Result<()> {
        self.write_with(path, |file| file.write_all(content.as_ref()))
    }

    /// Replaces the file by one with the content that `fill` writes.
    ///
    /// # Errors
    /// As [`Self::write`], and those of `fill`.
    pub fn write_with<T>(self, path: &Path, fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<T>) -> io::Result<T> {
        let name = path.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"))?;
        let temporary = path.with_file_name(temporary_name(name));
        let file = self.create(&temporary)?;
        let written = self.fill(file, fill).and_then(|value| fs::rename(&temporary, path).map(|()| value));
        written.inspect_err(|_| {
            // The first error counts.
            let _ = fs::remove_file(&temporary);
        })
    }

    fn create(self, temporary: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, self.mode);
        #[cfg(not(unix))]
        let _ = self.mode;
        options.open(temporary)
    }

    /// Closes the file: Windows renames only closed ones.
    fn fill<T>(self, file: File, fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<T>) -> io::Result<T> {
        let mut writer = BufWriter::new(&file);
        let value = fill(&mut writer)?;
        writer.flush()?;
        drop(writer);
        if self.synced {
            file.sync_all()?;
        }
        Ok(value)
    }
}

/// Replaces a file with [`Options::new`]: mode 0666 less the umask, not synced.
///
/// # Errors
/// As [`Options::write`].
pub fn write(path: &Path, content: impl AsRef<[u8]>) -> io::Result<()> {
    Options::new().write(path, content)
}

/// Whether a file of that name is a temporary file that a writer of the file `of` left when it was killed.
#[must_use]
pub fn is_temporary(name: &str, of: &str) -> bool {
    let random = name.strip_prefix('.').and_then(|name| name.strip_prefix(of)).and_then(|rest| rest.strip_prefix('.')?.strip_suffix(".tmp"));
    random.is_some_and(|random| random.len() == 16 && random.bytes().all(|digit| digit.is_ascii_hexdigit()))
}

fn temporary_name(name: &OsStr) -> std::ffi::OsString {
    // The keys come from the operating system's random numbers.
    let random = RandomState::new().hash_one(0u8);
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{random:016x}.tmp"));
    temporary
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn file_is_replaced_and_nothing_else_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        write(&path, "a long first content").unwrap();
        Options::new().synced().write(&path, "second").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "second");
        assert_eq!(names(dir.path()), ["state.json"]);
    }

    #[test]
    fn open_file_keeps_the_old_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        write(&path, "old").unwrap();
        let open = File::open(&path).unwrap();
        write(&path, "new").unwrap();
        assert_eq!(io::read_to_string(open).unwrap(), "old");
    }

    #[test]
    fn failed_write_leaves_the_old_file_and_no_temporary_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        write(&path, "old").unwrap();
        let failed = Options::new().write_with(&path, |file| {
            file.write_all(b"half of")?;
            Err::<(), _>(io::Error::other("disk full"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "disk full");
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), names(dir.path())), ("old", vec!["state.json".to_owned()]));
        fs::create_dir_all(dir.path().join("directory/full")).unwrap();
        write(&dir.path().join("directory"), "x").unwrap_err();
        assert_eq!(names(dir.path()).len(), 2, "the rename failed; the temporary file is gone");
    }

    #[test]
    fn temporary_file_is_recognized_by_its_name() {
        let name = temporary_name(OsStr::new("cluster.json")).into_string().unwrap();
        assert!(is_temporary(&name, "cluster.json"), "{name}");
        assert!(!is_temporary(&name, "cluster"), "{name}");
        assert!(!is_temporary("cluster.json", "cluster.json"));
        assert!(!is_temporary(".cluster.json.notes.tmp", "cluster.json"));
        assert_ne!(name, temporary_name(OsStr::new("cluster.json")).into_string().unwrap(), "the name cannot be foreseen");
    }

    #[test]
    fn missing_directory_is_an_error_that_keeps_its_kind() {
        let error = write(Path::new("/nonexistent/state.json"), "").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn prepared_temporary_file_is_not_written_to() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "").unwrap();
        assert_eq!(Options::new().create(&file).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(dir.path().join("elsewhere"), &link).unwrap();
            assert_eq!(Options::new().create(&link).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        }
        assert!(!dir.path().join("elsewhere").exists(), "{} was followed", link.display());
    }

    #[cfg(unix)]
    #[test]
    fn mode_holds_from_the_first_byte() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.key");
        write(&path, "old").unwrap();
        let while_written = Options::new().mode(0o600).write_with(&path, |file| {
            file.write_all(b"secret")?;
            Ok(file.get_ref().metadata()?.permissions().mode())
        });
        assert_eq!(while_written.unwrap() & 0o777, 0o600);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[cfg(unix)]
    #[test]
    fn link_is_replaced_and_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, elsewhere) = (dir.path().join("admin.conf"), dir.path().join("elsewhere"));
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        write(&path, "secret").unwrap();
        assert!(!elsewhere.exists(), "the link was followed");
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
    }
}
