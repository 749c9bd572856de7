//! Spelling of names: Windows takes `FOO` and `foo` for the same file, overlayfs does not. A layer's names are folded
//! to the spelling that the layers below it use, and within a layer to the first that comes.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags};

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The names that a layer's are folded to.
#[derive(Debug)]
pub(super) struct Spelling {
    /// The drives below, highest first; the last is Wine's template.
    lowers: Vec<OwnedFd>,
    /// Directory in lower case → lower-case name → name.
    known: HashMap<PathBuf, HashMap<OsString, OsString>>,
}

fn lower(name: &std::ffi::OsStr) -> OsString {
    match name.to_str() {
        Some(text) => text.to_lowercase().into(),
        None => name.to_ascii_lowercase(),
    }
}

impl Spelling {
    /// Over these drives, highest first. Those that do not exist have no names.
    pub(super) fn new(drives: impl Iterator<Item = PathBuf>) -> Self {
        let open = |path: PathBuf| rustix::fs::openat(CWD, &path, DIRECTORY | OFlags::NOFOLLOW, Mode::empty()).ok();
        Self { lowers: drives.filter_map(open).collect(), known: HashMap::new() }
    }

    /// The path as it is spelled below, where it exists there. Names that are new keep their spelling from now on.
    pub(super) fn fold(&mut self, path: &Path) -> PathBuf {
        let (mut folded, mut key) = (PathBuf::new(), PathBuf::new());
        for name in path {
            if !self.known.contains_key(&key) {
                let names = self.names(&folded);
                self.known.insert(key.clone(), names);
            }
            let small = lower(name);
            let names = self.known.entry(key.clone()).or_default();
            folded.push(names.entry(small.clone()).or_insert_with(|| name.to_owned()));
            key.push(small);
        }
        folded
    }

    /// What the drives below have in a directory.
    fn names(&self, dir: &Path) -> HashMap<OsString, OsString> {
        let mut names = HashMap::new();
        for lower_dir in &self.lowers {
            let path = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
            let Ok(fd) = rustix::fs::openat2(lower_dir, path, DIRECTORY, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS) else {
                continue;
            };
            for entry in Dir::read_from(fd).into_iter().flatten().flatten() {
                let name = std::ffi::OsStr::from_bytes(entry.file_name().to_bytes());
                if name != "." && name != ".." {
                    names.entry(lower(name)).or_insert_with(|| name.to_owned());
                }
            }
        }
        names
    }

    /// Whether the lowest drive has a file of this name (already folded).
    pub(super) fn template_has_file(&self, path: &Path) -> bool {
        let Some(template) = self.lowers.last() else { return false };
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let (Ok(dir), Some(name)) =
            (rustix::fs::openat2(template, parent, DIRECTORY, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS), path.file_name())
        else {
            return false;
        };
        let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
        stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_layers_below_and_the_first_of_the_layer() {
        let dir = tempfile::tempdir().unwrap();
        let (top, template) = (dir.path().join("top"), dir.path().join("template"));
        std::fs::create_dir_all(top.join("App/Data")).unwrap();
        std::fs::create_dir_all(template.join("windows/system32")).unwrap();
        std::fs::write(template.join("windows/system32/ntdll.dll"), "").unwrap();
        let mut spelling = Spelling::new([top, template].into_iter());
        for (name, folded) in [
            (r"Windows/System32/NTDLL.dll", "windows/system32/ntdll.dll"),
            ("APP/data/New.txt", "App/Data/New.txt"),
            ("app/DATA/NEW.TXT", "App/Data/New.txt"),
            ("Füße/A", "Füße/A"),
            ("FÜßE/a", "Füße/A"),
        ] {
            assert_eq!(spelling.fold(Path::new(name)), Path::new(folded));
        }
        assert!(spelling.template_has_file(Path::new("windows/system32/ntdll.dll")));
        assert!(!spelling.template_has_file(Path::new("windows/system32")) && !spelling.template_has_file(Path::new("App/Data")));
    }
}
