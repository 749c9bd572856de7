//! The file of `--log-file`, within bounds: nobody rotates the log of a Windows service.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

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
        let file = File::options().append(true).create(true).open(&self.path)?;
        self.length = file.metadata()?.len();
        self.file = Some(file);
        Ok(())
    }

    /// Puts the file aside. One that cannot be is emptied: the disk counts more.
    fn put_aside(&mut self) -> io::Result<()> {
        let mut old = self.path.clone().into_os_string();
        old.push(".old");
        // Windows renames no file that is open.
        self.file = None;
        if std::fs::rename(&self.path, old).is_err() {
            File::options().write(true).open(&self.path)?.set_len(0)?;
        }
        self.open_file()
    }
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
        let written = file.write(bytes)?;
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
}
