//! A drive in memory: the files of a node that is simulated without a directory. It has no links and no mounts, and gives no handles: nobody
//! opens its files but by name. Names in another case are the same names. Names, depth and content have limits, as on a disk.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{FileKind, MAX_DEPTH, Space, Usage, VolumeFile, too_deep};

/// Bytes of all files of a drive, and the same of what each file and directory takes by itself ([`OVERHEAD`]).
const MAX_BYTES: u64 = 64 << 20;
/// What a name and its entry count, so that empty files have a limit too.
const OVERHEAD: u64 = 128;
/// Bytes of a name, as on NTFS in characters and on Linux in bytes.
const MAX_NAME: usize = 255;

/// A drive, or a directory of one.
#[derive(Debug)]
pub(super) struct Root {
    tree: Arc<Mutex<Tree>>,
    /// Where this begins in the tree. No link can change where that is.
    top: Vec<String>,
    space: Space,
}

#[derive(Debug, Default)]
struct Tree {
    top: Directory,
    used: u64,
}

/// Sorted by name. Most directories hold one or two things: a list takes a fraction of what a map would.
#[derive(Debug, Default)]
struct Directory(Vec<(Box<str>, Entry)>);

#[derive(Debug)]
enum Entry {
    Directory(Directory),
    File(Box<[u8]>),
}

impl Entry {
    fn kind(&self) -> FileKind {
        match self {
            Self::Directory(_) => FileKind::Directory,
            Self::File(_) => FileKind::File,
        }
    }

    fn directory(&self) -> io::Result<&Directory> {
        match self {
            Self::Directory(directory) => Ok(directory),
            Self::File(_) => Err(ErrorKind::NotADirectory.into()),
        }
    }

    fn directory_mut(&mut self) -> io::Result<&mut Directory> {
        match self {
            Self::Directory(directory) => Ok(directory),
            Self::File(_) => Err(ErrorKind::NotADirectory.into()),
        }
    }

    /// What it takes of the drive's memory, with what is below it.
    fn weight(&self) -> u64 {
        OVERHEAD.saturating_add(match self {
            Self::File(bytes) => bytes.len() as u64,
            Self::Directory(directory) => directory.weight(),
        })
    }

    fn measure(&self, usage: &mut Usage) {
        usage.inodes += 1;
        match self {
            Self::File(bytes) => usage.bytes = usage.bytes.saturating_add(bytes.len() as u64),
            Self::Directory(Directory(entries)) => entries.iter().for_each(|(_, entry)| entry.measure(usage)),
        }
    }
}

impl Directory {
    fn weight(&self) -> u64 {
        self.0.iter().fold(0, |sum, (_, entry)| sum.saturating_add(entry.weight()))
    }

    /// Where a name is, or would be.
    fn place(&self, name: &str) -> Result<usize, usize> {
        let folded = |text: &str| text.bytes().map(|byte| byte.to_ascii_lowercase()).collect::<Vec<_>>();
        let name = folded(name);
        self.0.binary_search_by(|(other, _)| other.bytes().map(|byte| byte.to_ascii_lowercase()).cmp(name.iter().copied()))
    }

    fn get(&self, name: &str) -> io::Result<&Entry> {
        self.place(name).map(|index| &self.0[index].1).map_err(|_| ErrorKind::NotFound.into())
    }

    fn get_mut(&mut self, name: &str) -> io::Result<&mut Entry> {
        self.place(name).map(|index| &mut self.0[index].1).map_err(|_| ErrorKind::NotFound.into())
    }

    /// Puts an entry in the place of one with its name.
    fn put(&mut self, name: &str, entry: Entry) -> &mut Entry {
        let index = match self.place(name) {
            Ok(index) => {
                self.0[index].1 = entry;
                index
            }
            Err(index) => {
                self.0.reserve_exact(1);
                self.0.insert(index, (name.into(), entry));
                index
            }
        };
        &mut self.0[index].1
    }

    fn take(&mut self, name: &str) -> io::Result<Entry> {
        let index = self.place(name).map_err(|_| io::Error::from(ErrorKind::NotFound))?;
        let (_, entry) = self.0.remove(index);
        self.0.shrink_to_fit();
        Ok(entry)
    }

    fn below(&self, path: &[String]) -> io::Result<&Directory> {
        path.iter().try_fold(self, |directory, name| directory.get(name)?.directory())
    }

    fn below_mut(&mut self, path: &[String]) -> io::Result<&mut Directory> {
        path.iter().try_fold(self, |directory, name| directory.get_mut(name)?.directory_mut())
    }

    fn make_below(&mut self, path: &[String]) -> io::Result<&mut Directory> {
        path.iter().try_fold(self, |directory, name| {
            if directory.place(name).is_err() {
                directory.put(name, Entry::Directory(Directory::default()));
            }
            directory.get_mut(name)?.directory_mut()
        })
    }

    /// Names and contents of all files in it and below it.
    fn files<'a>(&'a self, prefix: &str, found: &mut BTreeMap<String, &'a [u8]>) {
        for (name, entry) in &self.0 {
            let full = format!("{prefix}{name}");
            match entry {
                Entry::File(bytes) => drop(found.insert(full, bytes)),
                Entry::Directory(directory) => directory.files(&format!("{full}/"), found),
            }
        }
    }
}

/// The directory of a path, and its last name. The top itself is no entry of any.
fn split(path: &[String]) -> io::Result<(&[String], &str)> {
    let (name, parents) = path.split_last().ok_or(ErrorKind::ResourceBusy)?;
    Ok((parents, name))
}

/// Whether a path can be made.
fn check<'a>(path: impl IntoIterator<Item = &'a str>) -> io::Result<()> {
    let mut depth = 0;
    for name in path {
        depth += 1;
        if name.len() > MAX_NAME {
            return Err(ErrorKind::InvalidFilename.into());
        }
    }
    if depth > MAX_DEPTH { Err(too_deep()) } else { Ok(()) }
}

fn check_path(path: &[String]) -> io::Result<()> {
    check(path.iter().map(String::as_str))
}

/// The files of a volume as a directory, in the place of what is at `path`.
fn directory_of(path: &[String], files: &BTreeMap<String, VolumeFile>) -> io::Result<Directory> {
    let mut directory = Directory::default();
    for (name, file) in files {
        let names: Vec<String> = name.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        check(path.iter().chain(&names).map(String::as_str))?;
        let (parents, name) = split(&names).map_err(|_| ErrorKind::InvalidInput)?;
        let holder = directory.make_below(parents)?;
        if holder.get(name).is_ok_and(|entry| entry.kind() == FileKind::Directory) {
            return Err(ErrorKind::IsADirectory.into());
        }
        holder.put(name, Entry::File(file.bytes.as_slice().into()));
    }
    Ok(directory)
}

impl Tree {
    /// Takes so much of the drive's memory, in the place of what is given back; or nothing.
    fn take(&mut self, added: u64, given_back: u64) -> io::Result<()> {
        let used = self.used.saturating_sub(given_back).saturating_add(added);
        if used > MAX_BYTES {
            return Err(ErrorKind::StorageFull.into());
        }
        self.used = used;
        Ok(())
    }

    /// Makes a directory with its parents.
    fn make(&mut self, path: &[String]) -> io::Result<&mut Directory> {
        check_path(path)?;
        let mut there = Some(&self.top);
        let mut missing = 0_u64;
        for name in path {
            there = match there.map(|directory| directory.get(name)) {
                Some(Ok(entry)) => Some(entry.directory()?),
                Some(Err(_)) | None => {
                    missing += 1;
                    None
                }
            };
        }
        self.take(missing.saturating_mul(OVERHEAD), 0)?;
        self.top.make_below(path)
    }
}

impl Root {
    pub(super) fn new(space: Space) -> Self {
        Self { tree: Arc::default(), top: Vec::new(), space }
    }

    fn lock(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The path in the tree.
    fn whole<'a>(&self, path: &'a [String]) -> Cow<'a, [String]> {
        if self.top.is_empty() { Cow::Borrowed(path) } else { Cow::Owned([self.top.as_slice(), path].concat()) }
    }

    /// A directory as a drive of its own, of the same memory.
    pub(super) fn beneath(&self, path: &[String]) -> io::Result<Self> {
        let top = self.whole(path).into_owned();
        self.lock().top.below(&top)?;
        Ok(Self { tree: self.tree.clone(), top, space: self.space })
    }

    pub(super) fn kind(&self, path: &[String]) -> io::Result<FileKind> {
        let path = self.whole(path);
        let Ok((parents, name)) = split(&path) else { return Ok(FileKind::Directory) };
        Ok(self.lock().top.below(parents)?.get(name)?.kind())
    }

    pub(super) fn create_dir_all(&self, path: &[String]) -> io::Result<()> {
        self.lock().make(&self.whole(path)).map(drop)
    }

    pub(super) fn create_shared_dir_all(&self, path: &[String]) -> io::Result<()> {
        self.create_dir_all(path)
    }

    pub(super) fn make_private(&self, path: &[String]) -> io::Result<()> {
        self.create_dir_all(path)
    }

    /// In a directory that is there. Whether it was missing.
    pub(super) fn make_dir(&self, path: &[String]) -> io::Result<bool> {
        let path = self.whole(path);
        let (parents, name) = split(&path)?;
        let mut tree = self.lock();
        match tree.top.below(parents)?.get(name) {
            Ok(entry) => entry.directory().map(|_| false),
            Err(_) => tree.make(&path).map(|_| true),
        }
    }

    pub(super) fn create_file(&self, path: &[String]) -> io::Result<()> {
        let path = self.whole(path);
        check_path(&path)?;
        let (parents, name) = split(&path)?;
        let mut tree = self.lock();
        if tree.top.below(parents)?.get(name).is_err() {
            tree.take(OVERHEAD, 0)?;
            tree.top.below_mut(parents)?.put(name, Entry::File(Box::default()));
        }
        Ok(())
    }

    pub(super) fn create_shared_file(&self, path: &[String]) -> io::Result<()> {
        self.create_file(path)
    }

    pub(super) fn read(&self, path: &[String], limit: u64) -> io::Result<Vec<u8>> {
        let path = self.whole(path);
        let (parents, name) = split(&path).map_err(|_| ErrorKind::IsADirectory)?;
        match self.lock().top.below(parents)?.get(name)? {
            Entry::File(bytes) => Ok(bytes[..bytes.len().min(usize::try_from(limit).unwrap_or(usize::MAX))].to_vec()),
            Entry::Directory(_) => Err(ErrorKind::IsADirectory.into()),
        }
    }

    pub(super) fn write_file(&self, path: &[String], bytes: &[u8]) -> io::Result<()> {
        let path = self.whole(path);
        check_path(&path)?;
        let (parents, name) = split(&path)?;
        let mut tree = self.lock();
        let before = match tree.top.below(parents)?.get(name) {
            Ok(Entry::Directory(_)) => return Err(ErrorKind::IsADirectory.into()),
            Ok(entry) => entry.weight(),
            Err(_) => 0,
        };
        let entry = Entry::File(bytes.into());
        tree.take(entry.weight(), before)?;
        tree.top.below_mut(parents)?.put(name, entry);
        Ok(())
    }

    /// Into a file that is there.
    pub(super) fn write_into(&self, path: &[String], bytes: &[u8]) -> io::Result<()> {
        match self.kind(path)? {
            FileKind::Directory => Err(ErrorKind::IsADirectory.into()),
            _ => self.write_file(path, bytes),
        }
    }

    /// To another name in the same directory.
    pub(super) fn rename(&self, path: &[String], to: &[String]) -> io::Result<()> {
        let (path, to) = (self.whole(path), self.whole(to));
        check_path(&to)?;
        let ((parents, name), (_, new)) = (split(&path)?, split(&to)?);
        let mut tree = self.lock();
        let directory = tree.top.below_mut(parents)?;
        let entry = directory.get(name)?;
        let other = directory.get(new).ok().filter(|_| directory.place(name) != directory.place(new));
        let replaced = match (entry, other) {
            (_, None) => 0,
            (Entry::File(_), Some(Entry::Directory(_))) => return Err(ErrorKind::IsADirectory.into()),
            (Entry::Directory(_), Some(Entry::File(_))) => return Err(ErrorKind::NotADirectory.into()),
            (_, Some(Entry::Directory(Directory(inside)))) if !inside.is_empty() => return Err(ErrorKind::DirectoryNotEmpty.into()),
            (_, Some(other)) => other.weight(),
        };
        let entry = directory.take(name)?;
        directory.put(new, entry);
        tree.take(0, replaced)
    }

    pub(super) fn read_dir(&self, path: &[String]) -> io::Result<Vec<(String, FileKind)>> {
        let path = self.whole(path);
        Ok(self.lock().top.below(&path)?.0.iter().map(|(name, entry)| (name.to_string(), entry.kind())).collect())
    }

    pub(super) fn remove_tree(&self, path: &[String]) -> io::Result<()> {
        let path = self.whole(path);
        let (parents, name) = split(&path)?;
        let mut tree = self.lock();
        let removed = tree.top.below_mut(parents)?.take(name)?.weight();
        tree.take(0, removed)
    }

    pub(super) fn remove_dir(&self, path: &[String]) -> io::Result<()> {
        let whole = self.whole(path);
        let (parents, name) = split(&whole)?;
        let mut tree = self.lock();
        let directory = tree.top.below_mut(parents)?;
        if !directory.get(name)?.directory()?.0.is_empty() {
            return Err(ErrorKind::DirectoryNotEmpty.into());
        }
        let removed = directory.take(name)?.weight();
        tree.take(0, removed)
    }

    /// At once: who reads sees the old files or the new ones.
    pub(super) fn write_volume(&self, path: &[String], files: &BTreeMap<String, VolumeFile>) -> io::Result<bool> {
        let path = self.whole(path);
        let mut tree = self.lock();
        let directory = tree.make(&path)?;
        let mut found = BTreeMap::new();
        directory.files("", &mut found);
        if found.iter().map(|(name, bytes)| (name.as_str(), *bytes)).eq(files.iter().map(|(name, file)| (name.as_str(), file.bytes.as_slice()))) {
            return Ok(false);
        }
        // Names that differ in their case alone are one file.
        let fresh = directory_of(&path, files)?;
        let mut wanted = BTreeMap::new();
        fresh.files("", &mut wanted);
        if found == wanted {
            return Ok(false);
        }
        let before = directory.weight();
        tree.take(fresh.weight(), before)?;
        *tree.top.below_mut(&path)? = fresh;
        Ok(true)
    }

    pub(super) fn space(&self, path: &[String]) -> io::Result<Space> {
        let path = self.whole(path);
        self.lock().top.below(&path)?;
        Ok(self.space)
    }

    pub(super) fn usage(&self, path: &[String]) -> io::Result<Usage> {
        let path = self.whole(path);
        let mut usage = Usage { bytes: 0, inodes: 1 };
        self.lock().top.below(&path)?.0.iter().for_each(|(_, entry)| entry.measure(&mut usage));
        Ok(usage)
    }

    pub(super) fn usage_of_file(&self, path: &[String]) -> io::Result<Usage> {
        let path = self.whole(path);
        let Ok((parents, name)) = split(&path) else { return Ok(Usage { bytes: 0, inodes: 1 }) };
        let tree = self.lock();
        let bytes = match tree.top.below(parents)?.get(name)? {
            Entry::File(bytes) => bytes.len() as u64,
            Entry::Directory(_) => 0,
        };
        Ok(Usage { bytes, inodes: 1 })
    }
}

#[cfg(test)]
mod tests {
    use kube_rules::{NodeOs, PodPath};

    use super::super::{HostRoot, Reader, VolumeFile};
    use super::*;

    const SPACE: Space = Space { capacity: 1 << 30, available: 1 << 29, inodes: 0, inodes_free: 0 };

    fn root() -> HostRoot {
        HostRoot::memory(NodeOs::Windows { build: 20348 }, SPACE)
    }

    fn path(text: &str) -> PodPath {
        root().parse(text).unwrap()
    }

    fn volume(files: &[(&str, &str)]) -> BTreeMap<String, VolumeFile> {
        files.iter().map(|(name, text)| ((*name).to_owned(), VolumeFile { bytes: text.as_bytes().to_vec(), mode: 0o644, group: None })).collect()
    }

    fn kind_of(error: &super::super::HostError) -> Option<ErrorKind> {
        match error {
            super::super::HostError::Io { source, .. } => Some(source.kind()),
            _ => None,
        }
    }

    #[test]
    fn files_are_found_by_their_names_in_whatever_case() {
        let root = root();
        assert_eq!(kind_of(&root.write_file(&path("/var/lib/a"), b"x", 0o600).unwrap_err()), Some(ErrorKind::NotFound), "its directory is not there");
        root.create_dir_all(&path(r"C:\Var\lib"), 0o755).unwrap();
        root.write_file(&path("/var/lib/a.txt"), b"hello", 0o600).unwrap();
        root.create_file(&path("/VAR/LIB/A.TXT"), 0o600).unwrap();
        assert_eq!(root.read(&path("/var/LIB/a.TXT"), 3).unwrap().unwrap(), b"hel", "what is there stays");
        root.write_file(&path("/var/lib/A.TXT"), b"bye", 0o600).unwrap();
        root.rename(&path("/var/lib/a.txt"), &path("/var/lib/b")).unwrap();
        assert_eq!(root.read_dir(&path("/var")).unwrap(), [("lib".to_owned(), FileKind::Directory)]);
        assert_eq!(root.read_dir(&path("/")).unwrap(), [("Var".to_owned(), FileKind::Directory)], "as it was first spelt");
        assert_eq!((root.read(&path("/var/lib/b"), 9).unwrap().unwrap(), root.read(&path("/var/lib/a.txt"), 9).unwrap()), (b"bye".to_vec(), None));
        assert_eq!((root.kind(&path("/var")).unwrap(), root.kind(&path("/none/at/all")).unwrap()), (Some(FileKind::Directory), None));
        let usage = root.usage(&path("/var")).unwrap();
        assert_eq!((usage.bytes, usage.inodes, root.space(&path("/var")).unwrap()), (3, 3, SPACE));
    }

    #[test]
    fn files_are_no_directories_and_full_directories_stay() {
        let root = root();
        root.create_dir_all(&path("/a/b"), 0o755).unwrap();
        root.write_file(&path("/a/f"), b"x", 0o600).unwrap();
        for (what, result, kind) in [
            ("a directory below a file", root.create_dir_all(&path("/a/f/g"), 0o755), ErrorKind::NotADirectory),
            ("a file in the place of a directory", root.write_file(&path("/a/b"), b"x", 0o600), ErrorKind::IsADirectory),
            ("a directory with something in it", root.remove_dir(&path("/a")), ErrorKind::DirectoryNotEmpty),
            ("the drive", root.remove_tree(&path("/")), ErrorKind::ResourceBusy),
            ("a link", root.link(&path("/a/l"), &path("/a/f")), ErrorKind::Unsupported),
            ("a handle", root.open_read(&path("/a/f")).map(drop), ErrorKind::Unsupported),
        ] {
            assert_eq!(kind_of(&result.unwrap_err()), Some(kind), "{what}");
        }
        root.remove_dir(&path("/a/b")).unwrap();
        root.remove_tree(&path("/a")).unwrap();
        root.remove_tree(&path("/a")).unwrap();
        assert_eq!(root.kind(&path("/a")).unwrap(), None);
    }

    #[test]
    fn a_volume_holds_exactly_its_files() {
        let root = root();
        let dir = path("/pods/u/volumes/s");
        let readers = std::collections::BTreeSet::from([Reader::Users]);
        assert!(root.write_volume(&dir, &volume(&[("a", "1"), ("d/b", "2")]), Some(&readers)).unwrap());
        assert!(!root.write_volume(&dir, &volume(&[("a", "1"), ("d/b", "2")]), None).unwrap(), "the same");
        assert!(root.write_volume(&dir, &volume(&[("d/b", "3")]), None).unwrap());
        let read = |name: &str| root.read(&dir.join(name).unwrap(), 9).unwrap();
        assert_eq!((read("a"), read("d/b")), (None, Some(b"3".to_vec())));
        assert!(root.write_volume(&dir, &volume(&[("../x", "")]), None).is_err());
        let (found, _hold) = root.sub_path(&dir, "d/new", &path("/none")).unwrap();
        assert_eq!((found.clone(), root.kind(&found).unwrap()), (dir.join("d/new").unwrap(), Some(FileKind::Directory)));
        assert_eq!((root.is_mount(&dir).unwrap(), root.mount_memory(&dir, None).is_ok(), root.unmount_below(&dir).is_ok()), (false, true, true));
        assert!(root.mount_huge_pages(&dir, 2 << 20).is_ok());
    }
    #[test]
    fn a_file_takes_the_place_of_a_file_alone() {
        let root = root();
        root.create_dir_all(&path("/d/full/x"), 0o755).unwrap();
        root.create_dir_all(&path("/d/empty"), 0o755).unwrap();
        for (name, text) in [("/d/a", "1"), ("/d/b", "22")] {
            root.write_file(&path(name), text.as_bytes(), 0o600).unwrap();
        }
        for (from, to, kind) in [
            ("/d/a", "/d/full", ErrorKind::IsADirectory),
            ("/d/full", "/d/a", ErrorKind::NotADirectory),
            ("/d/empty", "/d/full", ErrorKind::DirectoryNotEmpty),
            ("/d/none", "/d/a", ErrorKind::NotFound),
            ("/d/a", "/a", ErrorKind::CrossesDevices),
        ] {
            assert_eq!(kind_of(&root.rename(&path(from), &path(to)).unwrap_err()), Some(kind), "{from} to {to}");
        }
        root.rename(&path("/d/full"), &path("/d/empty")).unwrap();
        root.rename(&path("/d/a"), &path("/d/B")).unwrap();
        root.rename(&path("/d/b"), &path("/d/B")).unwrap();
        assert_eq!(root.read_dir(&path("/d")).unwrap(), [("B".to_owned(), FileKind::File), ("empty".to_owned(), FileKind::Directory)]);
        assert_eq!(root.kind(&path("/d/empty/x")).unwrap(), Some(FileKind::Directory));
        assert_eq!(root.usage_of_file(&path("/d/b")).unwrap(), Usage { bytes: 1, inodes: 1 });
        assert_eq!(root.usage_of_file(&path("/d/none")).unwrap(), Usage::default());
    }

    #[test]
    fn a_directory_of_it_is_a_root_of_its_own() {
        let root = root();
        root.make_private(&path("/var/log/pods")).unwrap();
        assert!(root.make_dir(&path("/var/log/pods/p"), 0o755).unwrap());
        assert!(!root.make_dir(&path("/var/log/pods/p"), 0o755).unwrap());
        assert!(root.make_dir(&path("/none/p"), 0o755).is_err_and(|error| error.is_not_found()));
        root.write_file(&path("/var/log/pods/p/0.log"), b"x", 0o600).unwrap();
        let (inner, top) = root.beneath(&path("/var/log/pods"), &["p".to_owned()]).unwrap();
        assert_eq!(inner.read(&top.join("0.log").unwrap(), 9).unwrap(), Some(b"x".to_vec()));
        inner.write_into(&top.join("0.log").unwrap(), b"y").unwrap();
        assert!(inner.write_into(&top.join("1.log").unwrap(), b"y").is_err_and(|error| error.is_not_found()));
        assert_eq!(root.read(&path("/var/log/pods/p/0.log"), 9).unwrap(), Some(b"y".to_vec()));
        assert!(root.beneath(&path("/var/log/pods"), &["q".to_owned()]).is_err_and(|error| error.is_not_found()));
        assert!(root.open_beneath(&path("/var"), &["none".to_owned()]).is_err_and(|error| error.is_not_found()));
        let super::super::Beneath::Directory(listed) = root.open_beneath(&path("/var"), &["log".to_owned()]).unwrap() else { panic!("a directory") };
        assert_eq!(listed, [("pods".to_owned(), FileKind::Directory)]);
    }

    #[test]
    fn names_depth_and_content_have_limits() {
        let root = root();
        let deep = |levels: usize| "/d".repeat(levels);
        assert!(root.create_dir_all(&path(&deep(MAX_DEPTH)), 0o755).is_ok());
        assert!(root.create_dir_all(&path(&deep(MAX_DEPTH + 1)), 0o755).is_err());
        assert!(root.write_volume(&path("/v"), &volume(&[(&deep(MAX_DEPTH)[1..], "")]), None).is_err());
        assert_eq!(kind_of(&root.create_file(&path(&format!("/{}", "n".repeat(256))), 0o600).unwrap_err()), Some(ErrorKind::InvalidFilename));
        root.remove_tree(&path("/d")).unwrap();
        root.remove_tree(&path("/v")).unwrap();

        let half = vec![0; 40 << 20];
        root.write_file(&path("/a"), &half, 0o600).unwrap();
        root.write_file(&path("/a"), &half, 0o600).expect("it takes the place of the old one");
        assert_eq!(kind_of(&root.write_file(&path("/b"), &half, 0o600).unwrap_err()), Some(ErrorKind::StorageFull));
        assert_eq!(root.kind(&path("/b")).unwrap(), None);
        root.rename(&path("/a"), &path("/c")).unwrap();
        root.remove_tree(&path("/c")).unwrap();
        let files = BTreeMap::from([("k".to_owned(), VolumeFile { bytes: half, mode: 0o644, group: None })]);
        assert!(root.write_volume(&path("/v"), &files, None).unwrap());
        assert_eq!(kind_of(&root.write_volume(&path("/w"), &files, None).unwrap_err()), Some(ErrorKind::StorageFull));
        assert!(root.write_volume(&path("/v"), &volume(&[("k", "1"), ("K", "2")]), None).unwrap(), "names that are the same here");
        assert!(!root.write_volume(&path("/v"), &volume(&[("k", "1"), ("K", "2")]), None).unwrap());
        root.remove_tree(&path("/v")).unwrap();
        root.remove_tree(&path("/w")).unwrap();
        let used = match root.root(&path("/")).unwrap() {
            super::super::Drive::Memory(memory) => memory.lock().used,
            super::super::Drive::Disk(_) => panic!("it is in memory"),
        };
        assert_eq!(used, 0);
    }
}
