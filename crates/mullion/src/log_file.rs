//! The file of `--log-file`, within bounds: nobody rotates the log of a Windows service. What is no plain file (a link, a pipe, a device)
//! is only written to.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file that would become longer is put aside as `PATH.old`, in the place of the one before.
const LONGEST: u64 = 64 << 20;

/// A log that takes at most twice [`LONGEST`].
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    /// None after a failure: the next write tries again.
    file: Option<File>,
    length: u64,
    longest: u64,
}

impl LogFile {
    /// Opens the file to append to it.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: PathBuf) -> io::Result<Self> {
        let mut log = Self { path, file: None, length: 0, longest: LONGEST };
        log.open_file()?;
        Ok(log)
    }

    fn open_file(&mut self) -> io::Result<()> {
        let file = open_to_append(&self.path)?;
        self.length = file.metadata()?.len();
        self.file = Some(file);
        Ok(())
    }

    /// Puts the file aside. One that cannot be is emptied: the disk counts more.
    fn put_aside(&mut self) -> io::Result<()> {
        match std::fs::symlink_metadata(&self.path) {
            Ok(found) if found.is_file() => {
                let mut old = self.path.clone().into_os_string();
                old.push(".old");
                // On Windows a program that has it open may forbid that.
                if std::fs::rename(&self.path, old).is_err_and(|error| error.kind() != io::ErrorKind::NotFound)
                    && let Some(file) = &self.file
                {
                    let _ = file.set_len(0);
                }
            }
            Ok(_) => {
                // What others see by that name stays, and so does what they do with it.
                self.length = 0;
                return Ok(());
            }
            // Somebody put it aside.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        self.file = None;
        self.open_file()
    }
}

#[cfg(not(windows))]
fn open_to_append(path: &Path) -> io::Result<File> {
    File::options().append(true).create(true).open(path)
}

/// A handle that may only append could not empty the file.
#[cfg(windows)]
fn open_to_append(path: &Path) -> io::Result<File> {
    use std::os::windows::fs::OpenOptionsExt as _;
    const GENERIC_WRITE: u32 = 0x4000_0000;
    File::options().append(true).create(true).access_mode(GENERIC_WRITE).open(path)
}

#[cfg(not(windows))]
fn append(file: &mut File, bytes: &[u8]) -> io::Result<usize> {
    file.write(bytes)
}

/// The highest offset stands for the end of the file.
#[cfg(windows)]
fn append(file: &mut File, bytes: &[u8]) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_write(file, bytes, u64::MAX)
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.length > 0 && self.length.saturating_add(bytes.len() as u64) > self.longest {
            self.put_aside()?;
        }
        if self.file.is_none() {
            self.open_file()?;
        }
        let Some(file) = self.file.as_mut() else { return Ok(0) };
        let written = append(file, bytes)?;
        self.length += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), File::flush)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_takes_two_files_at_most() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubelet.log");
        std::fs::write(&path, "before\n").unwrap();
        let mut log = LogFile { longest: 20, ..LogFile::open(path.clone()).unwrap() };
        for number in 0..100 {
            log.write_all(format!("line {number:03}\n").as_bytes()).unwrap();
        }
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!((read("kubelet.log.old").as_str(), read("kubelet.log").as_str()), ("line 097\nline 098\n", "line 099\n"));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
        // One line that is longer than a file may be is written all the same.
        log.write_all(format!("{}\n", "x".repeat(40)).as_bytes()).unwrap();
        assert_eq!(read("kubelet.log").len(), 41);
        // What is in the way of the old file, and what was there when it was opened.
        drop(log);
        std::fs::remove_file(dir.path().join("kubelet.log.old")).unwrap();
        std::fs::create_dir(dir.path().join("kubelet.log.old")).unwrap();
        let mut log = LogFile { longest: 20, ..LogFile::open(path).unwrap() };
        log.write_all(b"next\n").unwrap();
        assert_eq!(read("kubelet.log"), "next\n");
    }

    #[test]
    fn a_file_that_somebody_removed_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubelet.log");
        let mut log = LogFile { longest: 20, ..LogFile::open(path.clone()).unwrap() };
        log.write_all(b"before the removal\n").unwrap();
        std::fs::remove_file(&path).unwrap();
        log.write_all(b"after it\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "after it\n");
        assert!(!dir.path().join("kubelet.log.old").exists());
        // With its directory: it is written again when there is one.
        std::fs::remove_dir_all(dir.path()).unwrap();
        assert!(log.write_all(b"too long for the file\n").is_err());
        std::fs::create_dir(dir.path()).unwrap();
        log.write_all(b"again\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "again\n");
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_file_stays_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let (path, target) = (dir.path().join("kubelet.log"), dir.path().join("target"));
        let line = "a line of 20 letters\n";
        let write = || {
            let mut log = LogFile { longest: 20, ..LogFile::open(path.clone()).unwrap() };
            (0..3).for_each(|_| log.write_all(line.as_bytes()).unwrap());
        };
        std::os::unix::fs::symlink(&target, &path).unwrap();
        write();
        assert_eq!(std::fs::read_to_string(&target).unwrap(), line.repeat(3));
        assert_eq!(std::fs::read_link(&path).unwrap(), target);
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        write();
        assert_eq!(std::fs::read_link(&path).unwrap(), Path::new("/dev/null"));
        std::fs::remove_file(&path).unwrap();
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut reader = File::options().read(true).write(true).open(&path).unwrap();
        write();
        let mut read = vec![0; 3 * line.len()];
        io::Read::read_exact(&mut reader, &mut read).unwrap();
        assert_eq!(String::from_utf8(read).unwrap(), line.repeat(3));
        assert!(std::os::unix::fs::FileTypeExt::is_fifo(&std::fs::symlink_metadata(&path).unwrap().file_type()));
        assert!(!dir.path().join("kubelet.log.old").exists());
    }
}
