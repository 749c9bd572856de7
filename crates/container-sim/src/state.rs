//! Atomic replacement of files.

use std::io::{self, Write};
use std::path::Path;

/// Replaces a file: readers see the old or the new content, never a part of either. Not flushed to disk: a machine
/// that crashes loses its pods anyway.
///
/// # Errors
/// When the directory cannot be written.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(content)?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}
