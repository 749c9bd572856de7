//! Writing key material: atomically, with the right mode.

use std::path::Path;

use crate::Error;

/// Writes `text` to `path` with mode 0600 (keys, kubeconfigs), replacing what was there in one step.
pub fn write_private(path: &Path, text: &str) -> Result<(), Error> {
    write_mode(path, text, 0o600)
}

/// Writes `text` to `path` with mode 0644 (certificates), replacing what was there in one step.
pub fn write_public(path: &Path, text: &str) -> Result<(), Error> {
    write_mode(path, text, 0o644)
}

fn write_mode(path: &Path, text: &str, mode: u32) -> Result<(), Error> {
    let failed = |source| Error::File { operation: "writing", path: path.to_path_buf(), source };
    atomic_file::Options::new().mode(mode).synced().write(path, text).map_err(failed)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

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
