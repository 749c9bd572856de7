//! Writing key material: atomically, with the right mode.

use crate::Error;
use ring::rand::SystemRandom;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

/// Writes `text` to `path` with mode 0600 (keys, kubeconfigs), replacing what was there in one step.
pub fn write_private(path: &Path, text: &str) -> Result<(), Error> {
    write_mode(path, text, 0o600)
}

/// Writes `text` to `path` with mode 0644 (certificates), replacing what was there in one step.
pub fn write_public(path: &Path, text: &str) -> Result<(), Error> {
    write_mode(path, text, 0o644)
}

fn write_mode(path: &Path, text: &str, mode: u32) -> Result<(), Error> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    // Nobody can foresee the name, and nothing that stands there is written to: the directory may be everybody's.
    let failed = |source| Error::File { operation: "writing", path: path.to_path_buf(), source };
    let random: [u8; 8] = ring::rand::generate(&SystemRandom::new()).map_err(|_| failed(std::io::Error::other("no random numbers")))?.expose();
    name.push(format!(".{:016x}.tmp", u64::from_ne_bytes(random)));
    let temporary = path.with_file_name(name);
    let result = write_new(&temporary, text, mode).and_then(|()| std::fs::rename(&temporary, path));
    result.map_err(|source| {
        // The temporary file is of no use to anyone; the error that counts is the first one.
        let _ = std::fs::remove_file(&temporary);
        failed(source)
    })
}

fn write_new(path: &Path, text: &str, mode: u32) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(mode);
    }
    #[cfg(not(unix))]
    let _ = mode; // Windows: the directory's access list decides.
    let mut file = options.open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// What somebody left for us under the name that we would have used: a link that leads elsewhere, or a file that everybody reads.
    #[test]
    fn nobody_prepares_the_file_that_a_key_is_written_to() {
        let dir = tempfile::tempdir().unwrap();
        let (path, elsewhere) = (dir.path().join("admin.conf"), dir.path().join("elsewhere"));
        let foreseen = format!("admin.conf.{}.tmp", std::process::id());
        std::os::unix::fs::symlink(&elsewhere, dir.path().join(foreseen)).unwrap();
        write_private(&path, "secret").unwrap();
        assert!(!elsewhere.exists(), "the link was followed");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "secret");
        assert!(write_new(&path, "x", 0o600).is_err(), "what is there is not written to");
    }

    #[test]
    fn private_files_are_0600_and_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.key");
        write_private(&path, "one").unwrap();
        write_private(&path, "two").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "the temporary file is gone");
    }

    #[test]
    fn a_missing_directory_is_named_in_the_error() {
        let error = write_private(Path::new("/nonexistent/x.key"), "").unwrap_err();
        assert_eq!(error.to_string(), "writing \"/nonexistent/x.key\" failed");
    }
}
