//! The files that appear when the network is ready: the CNI configuration, and flannel's `subnet.env`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::conf::FILE;

/// A file that could not be written or removed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {path}")]
pub struct ConfError {
    what: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// Writes the configuration in one step unless it is there already; true when it was written.
pub fn write(dir: &Path, document: &Value) -> Result<bool, ConfError> {
    write_text("write the CNI configuration", &dir.join(FILE), &format!("{document:#}\n"))
}

/// Writes flannel's `subnet.env` in one step unless it is there already; true when it was written.
pub fn write_subnet_env(path: &Path, text: &str) -> Result<bool, ConfError> {
    write_text("write flannel's file", path, text)
}

fn write_text(what: &'static str, path: &Path, text: &str) -> Result<bool, ConfError> {
    if fs::read_to_string(path).is_ok_and(|present| present == text) {
        return Ok(false);
    }
    let dir = path.parent().unwrap_or(Path::new(""));
    let written = fs::create_dir_all(dir).and_then(|()| atomic_file::write(path, text));
    written.map(|()| true).map_err(|source| ConfError { what, path: path.to_owned(), source })
}

/// Removes the configuration, so that no pod starts on a network that is not there.
pub fn remove(dir: &Path) -> Result<(), ConfError> {
    let path = dir.join(FILE);
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(ConfError { what: "remove the CNI configuration", path, source }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn configuration_is_written_once_and_whole() {
        let dir = tempfile::tempdir().unwrap();
        let sub = dir.path().join("net.d");
        assert!(write(&sub, &json!({"name": "a"})).unwrap());
        assert!(!write(&sub, &json!({"name": "a"})).unwrap(), "the same again writes nothing");
        assert!(write(&sub, &json!({"name": "b"})).unwrap());
        let names: Vec<_> = fs::read_dir(&sub).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, [FILE]);
        let whole = fs::read(sub.join(FILE)).unwrap();
        let utf16: Vec<u8> = String::from_utf8_lossy(&whole).encode_utf16().flat_map(u16::to_le_bytes).collect();
        for other in (0..whole.len()).map(|cut| &whole[..cut]).chain([&utf16[..]]) {
            fs::write(sub.join(FILE), other).unwrap();
            assert!(write(&sub, &json!({"name": "b"})).unwrap(), "what a crash or somebody else left is written anew: {other:?}");
            assert_eq!(fs::read(sub.join(FILE)).unwrap(), whole);
        }
        remove(&sub).unwrap();
        remove(&sub).unwrap();
        assert!(!sub.join(FILE).exists());
    }
}
