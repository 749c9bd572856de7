//! Volumes where the system makes no links (Wine 8): each file is replaced by itself, so that readers see the old or the new content of each,
//! not always those of one time. The newest generation stays beside the copies, as the record of what was written.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;

use super::{DIRECTORY, MAX_DEPTH};
use super::{FileKind, VolumeFile, holds, kind_of, make_dir, missing_is_fine, nt, open_plain, remove_entry, too_deep, write_new};

/// Makes a volume hold these files, and no others of its own.
pub(super) fn write(dir: &File, files: &BTreeMap<String, VolumeFile>) -> io::Result<()> {
    prune(dir, "", files, 0)?;
    for (name, file) in files {
        let mut parts: Vec<&str> = name.split('/').filter(|part| !part.is_empty()).collect();
        let leaf = parts.pop().ok_or(io::ErrorKind::InvalidFilename)?;
        let holder = parts.iter().try_fold(dir.try_clone()?, |here, part| make_dir(&here, part, None))?;
        // No key begins so.
        let temporary = format!("..{leaf}.new");
        missing_is_fine(remove_entry(&holder, &temporary, 0))?;
        let fresh = write_new(&holder, &temporary, &file.bytes, None)?;
        nt::rename(&fresh, &holder, leaf)?;
    }
    Ok(())
}

/// Whether a volume holds these files, and no others of its own.
pub(super) fn are(dir: &File, files: &BTreeMap<String, VolumeFile>) -> io::Result<bool> {
    Ok(holds(dir, files) && nt::list(dir)?.iter().filter(|(name, _)| !name.starts_with("..")).all(|(name, _)| is_wanted(name, files)))
}

/// Whether a path is a file's, or one of a directory with files in it.
fn is_wanted(path: &str, files: &BTreeMap<String, VolumeFile>) -> bool {
    files.contains_key(path) || has_files(path, files)
}

fn has_files(path: &str, files: &BTreeMap<String, VolumeFile>) -> bool {
    files.keys().any(|name| name.strip_prefix(path).is_some_and(|rest| rest.starts_with('/')))
}

/// Removes what is no longer wanted.
fn prune(dir: &File, above: &str, files: &BTreeMap<String, VolumeFile>, depth: usize) -> io::Result<()> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    for (name, entry) in nt::list(dir)? {
        let path = if above.is_empty() { name.clone() } else { format!("{above}/{name}") };
        if above.is_empty() && name.starts_with("..") {
            continue;
        }
        match kind_of(entry) {
            FileKind::Directory if has_files(&path, files) => prune(&open_plain(dir, &name, DIRECTORY.directory())?, &path, files, depth + 1)?,
            FileKind::File if files.contains_key(&path) => {}
            _ => remove_entry(dir, &name, 0)?,
        }
    }
    Ok(())
}
