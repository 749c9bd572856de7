//! The file tree of a node, reached by the paths pods use.
//!
//! A simulated Windows node keeps each drive in a directory; a real one has real drives. Paths
//! are parsed into components first ([`PodPath`]) and resolved below the drive's directory, so
//! that neither `..` nor a link can leave it. Every step is handle-relative: by openat2 on Linux, by
//! NtCreateFile on Windows, where links are refused.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::PathBuf;

use kube_rules::{NodeOs, PathError, PodPath};

use drive::Drive;

#[cfg(any(windows, test))]
mod acl;
#[cfg(all(test, target_os = "linux"))]
mod cve_tests;
mod drive;
#[cfg(target_os = "linux")]
#[path = "root/linux.rs"]
mod imp;
#[cfg(windows)]
#[path = "root/windows.rs"]
mod imp;
mod memory;
#[cfg(all(test, target_os = "linux"))]
mod tests;

/// A failed file operation on a node's root.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The path itself is refused.
    #[error(transparent)]
    Path(#[from] PathError),
    /// No such drive on this node.
    #[error("no drive {drive}: on this node; it has {present}")]
    NoDrive {
        /// What was asked for.
        drive: char,
        /// The drives there are.
        present: String,
    },
    /// The operating system refused it.
    #[error("cannot {operation} {path}")]
    Io {
        /// What was tried, as a verb.
        operation: &'static str,
        /// In the node's own form.
        path: String,
        #[source]
        source: io::Error,
    },
}

impl HostError {
    /// Whether the operating system did not permit it.
    pub fn is_denied(&self) -> bool {
        matches!(self, HostError::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
    }

    /// Whether something simply does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, HostError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// What a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    Directory,
    File,
    Socket,
    CharDevice,
    BlockDevice,
    /// A symbolic link or junction (only in listings, which do not follow).
    Link,
    /// Anything else.
    Other,
}

/// When content, name or attributes of a file changed last; None where the system does not say (Windows).
pub fn last_changed(metadata: &std::fs::Metadata) -> Option<std::time::SystemTime> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        let of = |seconds: i64, nanos: i64| {
            let since = std::time::Duration::new(u64::try_from(seconds).ok()?, u32::try_from(nanos).ok()?);
            std::time::UNIX_EPOCH.checked_add(since)
        };
        of(metadata.mtime(), metadata.mtime_nsec()).max(of(metadata.ctime(), metadata.ctime_nsec()))
    }
    #[cfg(not(unix))]
    {
        let _ = metadata;
        None
    }
}

/// An existing object of a node's root.
#[derive(Debug)]
pub struct Resolved {
    /// Where it is on the machine that runs us, links inside the root resolved.
    pub path: PathBuf,
    pub kind: FileKind,
    /// The object itself, held open (`O_PATH` on Linux): bind `/proc/self/fd/N` of this rather
    /// than `path`, which could be exchanged meanwhile.
    pub handle: File,
}

/// An open connection to a unix socket, for an asynchronous reactor (it does not block).
#[cfg(unix)]
pub type Socket = std::os::unix::net::UnixStream;
/// An open connection to a unix socket, for an asynchronous reactor (it does not block). std has no type for it on Windows, where it is a
/// socket as those of TCP are.
#[cfg(windows)]
pub type Socket = std::net::TcpStream;

/// A unix socket at which others connect.
#[derive(Debug)]
pub struct SocketListener {
    inner: Listener,
}

#[cfg(unix)]
type Listener = std::os::unix::net::UnixListener;
/// std's listener takes no address of this family.
#[cfg(windows)]
type Listener = socket2::Socket;

impl SocketListener {
    /// The next connection, for an asynchronous reactor (it does not block). Blocks until there is one.
    ///
    /// # Errors
    /// What the system says: one connection is lost, others may follow.
    pub fn accept(&self) -> io::Result<Socket> {
        let (socket, _) = self.inner.accept()?;
        socket.set_nonblocking(true)?;
        #[cfg(windows)]
        let socket = socket.into();
        Ok(socket)
    }

    /// For a reactor; connections do not block.
    ///
    /// # Errors
    /// When the system refuses.
    #[cfg(unix)]
    pub fn into_std(self) -> io::Result<std::os::unix::net::UnixListener> {
        self.inner.set_nonblocking(true)?;
        Ok(self.inner)
    }
}

/// What is somewhere below a directory, without a link on the way.
#[derive(Debug)]
pub enum Beneath {
    /// An ordinary file.
    File(File),
    /// Names and kinds.
    Directory(Vec<(String, FileKind)>),
    /// A socket, a device, a pipe.
    Other,
}

/// To whom files of a volume are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupOwner {
    pub group: u32,
    /// Its members may write.
    pub writable: bool,
    /// Files are left as they are where the directory itself is as it should be (`fsGroupChangePolicy: OnRootMismatch`).
    pub only_on_mismatch: bool,
}

/// Space on the file system that holds a path, in bytes and files (0 where unknown).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Size.
    pub capacity: u64,
    /// Free for ordinary users.
    pub available: u64,
    pub inodes: u64,
    pub inodes_free: u64,
}

/// What a directory and everything below it take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes on the disk (on Windows, of the files).
    pub bytes: u64,
    /// Files, directories and links.
    pub inodes: u64,
}

/// Who may read a volume on Windows, beside its owner, SYSTEM and administrators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reader {
    ContainerAdministrator,
    ContainerUser,
    LocalService,
    NetworkService,
    /// IIS' workers: the group IIS_IUSRS.
    WebServer,
    /// Every user of the machine and of containers.
    Users,
}

/// Keeps what a path leads to, and what is above it, from being removed or renamed, as long as it lives. Only Windows needs it: elsewhere a
/// mount holds what it shows.
#[derive(Debug, Default)]
pub struct Hold {
    _handles: Vec<File>,
}

/// One file of a Secret, ConfigMap, downward API or projected volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeFile {
    /// Content.
    pub bytes: Vec<u8>,
    /// Permission bits (no effect on Windows).
    pub mode: u32,
    /// The group that owns the file, in place of the writer's (no effect on Windows, and where the user namespace has no such group).
    pub group: Option<u32>,
}

/// A node's root: one directory on Linux, one per drive on Windows; or memory.
#[derive(Debug)]
pub struct HostRoot {
    os: NodeOs,
    drives: BTreeMap<Option<char>, Drive>,
}

impl HostRoot {
    /// The root of a Linux node: `/`, or the directory of a simulated node.
    pub fn linux(dir: impl Into<PathBuf>) -> Result<Self, HostError> {
        let root = open_root(None, dir.into())?;
        Ok(HostRoot { os: NodeOs::Linux, drives: BTreeMap::from([(None, root)]) })
    }

    /// The drives of a Windows node of `os`: letter → directory (`C` → `C:\` on a real one).
    pub fn windows(os: NodeOs, drives: impl IntoIterator<Item = (char, PathBuf)>) -> Result<Self, HostError> {
        let mut map = BTreeMap::new();
        for (letter, dir) in drives {
            let letter = letter.to_ascii_uppercase();
            map.insert(Some(letter), open_root(Some(letter), dir)?);
        }
        Ok(HostRoot { os, drives: map })
    }

    /// Drive C of a simulated Windows node of `os`, in memory: it ends with this value. It reports `space`, and holds at most 64 MiB whatever
    /// that says. Its files are read and written by name alone: nothing in it can be opened, and there are no links.
    pub fn memory(os: NodeOs, space: Space) -> Self {
        HostRoot { os, drives: BTreeMap::from([(Some('C'), Drive::Memory(memory::Root::new(space)))]) }
    }

    /// The operating system whose path forms apply.
    pub fn os(&self) -> NodeOs {
        self.os
    }

    /// The drive letters; empty on Linux.
    pub fn drives(&self) -> impl Iterator<Item = char> + '_ {
        self.drives.keys().filter_map(|d| *d)
    }

    /// Reads a path in the node's form.
    pub fn parse(&self, text: &str) -> Result<PodPath, HostError> {
        Ok(PodPath::parse(self.os, text)?)
    }

    /// Finds an existing object, following links that stay inside the root.
    pub fn resolve(&self, path: &PodPath) -> Result<Resolved, HostError> {
        self.root(path)?.resolve(path.components()).map_err(error("open", path))
    }

    /// What a path leads to, following links inside the root; None when nothing is there.
    pub fn kind(&self, path: &PodPath) -> Result<Option<FileKind>, HostError> {
        match self.root(path)?.kind(path.components()).map_err(error("open", path)) {
            Ok(kind) => Ok(Some(kind)),
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Makes a directory and its parents. Those it makes get `mode`; existing ones stay as they
    /// are. On Windows the bits for others decide whether users of the node and of containers may read and write there, as in upstream's
    /// MkdirAll; SYSTEM and administrators may do all, and nothing is inherited.
    pub fn create_dir_all(&self, path: &PodPath, mode: u32) -> Result<(), HostError> {
        self.root(path)?.create_dir_all(path.components(), mode).map_err(error("create directory", path))
    }

    /// Makes a directory in one that is there, through no link. Returns whether it was missing.
    pub fn make_dir(&self, path: &PodPath, mode: u32) -> Result<bool, HostError> {
        self.root(path)?.make_dir(path.components(), mode).map_err(error("create directory", path))
    }

    /// Writes into a file that is there, through no link, and in one piece: for files in which the kernel takes settings.
    pub fn write_into(&self, path: &PodPath, bytes: &[u8]) -> Result<(), HostError> {
        self.root(path)?.write_into(path.components(), bytes).map_err(error("write", path))
    }

    /// The same for a place of the node's users: on Windows directories that it makes have the access list that the one above hands down,
    /// where those of [`Self::create_dir_all`] have one of their own.
    pub fn create_shared_dir_all(&self, path: &PodPath, mode: u32) -> Result<(), HostError> {
        self.root(path)?.create_shared_dir_all(path.components(), mode).map_err(error("create directory", path))
    }

    /// Makes a directory of the agent's own, with its parents, or takes over one that is there. On Windows nobody but SYSTEM and administrators
    /// gets into it; one that belongs to another account is refused, because that account may have put something there.
    pub fn make_private(&self, path: &PodPath) -> Result<(), HostError> {
        self.root(path)?.make_private(path.components()).map_err(error("restrict", path))
    }

    /// Makes an empty file unless something is there already. For a place of the node's users, as [`Self::create_shared_dir_all`].
    pub fn create_shared_file(&self, path: &PodPath, mode: u32) -> Result<(), HostError> {
        self.root(path)?.create_shared_file(path.components(), mode).map_err(error("create", path))
    }

    /// Makes an empty file unless something is there already.
    pub fn create_file(&self, path: &PodPath, mode: u32) -> Result<(), HostError> {
        self.root(path)?.create_file(path.components(), mode).map_err(error("create", path))
    }

    /// Opens a file for reading (deletion and renaming stay possible on Windows too).
    pub fn open_read(&self, path: &PodPath) -> Result<File, HostError> {
        self.root(path)?.open_read(path.components()).map_err(error("read", path))
    }

    /// Opens a file for appending, making it with `mode` if needed.
    pub fn open_append(&self, path: &PodPath, mode: u32) -> Result<File, HostError> {
        self.root(path)?.open_append(path.components(), mode).map_err(error("write", path))
    }

    /// At most `limit` bytes of a file; None when it does not exist.
    pub fn read(&self, path: &PodPath, limit: u64) -> Result<Option<Vec<u8>>, HostError> {
        match self.root(path)?.read(path.components(), limit).map_err(error("read", path)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Replaces a file: readers see the old or the new content, never a part.
    pub fn write_file(&self, path: &PodPath, bytes: &[u8], mode: u32) -> Result<(), HostError> {
        self.root(path)?.write_file(path.components(), bytes, mode).map_err(error("write", path))
    }

    /// Gives a file another name in its directory, over what has that name.
    pub fn rename(&self, path: &PodPath, to: &PodPath) -> Result<(), HostError> {
        if path.drive() != to.drive() || path.parent() != to.parent() {
            return Err(error("rename", path)(io::ErrorKind::CrossesDevices.into()));
        }
        self.root(path)?.rename(path.components(), to.components()).map_err(error("rename", path))
    }

    /// Names and kinds in a directory, sorted; links are not followed. Empty when it does not
    /// exist.
    pub fn read_dir(&self, path: &PodPath) -> Result<Vec<(String, FileKind)>, HostError> {
        match self.root(path)?.read_dir(path.components()) {
            Ok(mut names) => {
                names.sort_by(|a, b| a.0.cmp(&b.0));
                Ok(names)
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(e) => Err(error("list", path)(e)),
        }
    }

    /// Removes a file, a link (never its target) or a whole directory. Never crosses into
    /// another mount: such a tree is left and reported. Missing is fine.
    pub fn remove_tree(&self, path: &PodPath) -> Result<(), HostError> {
        match self.root(path)?.remove_tree(path.components()) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(error("remove", path)(e)),
            _ => Ok(()),
        }
    }

    /// Removes an empty directory. Missing is fine; one that holds something, or is mounted upon, is left and reported.
    pub fn remove_dir(&self, path: &PodPath) -> Result<(), HostError> {
        match self.root(path)?.remove_dir(path.components()) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(error("remove directory", path)(e)),
            _ => Ok(()),
        }
    }

    /// Connects to a unix socket. Blocks as long as its backlog is full.
    pub fn connect(&self, path: &PodPath) -> Result<Socket, HostError> {
        self.root(path)?.connect(path.components()).map_err(error("connect to", path))
    }

    /// Opens what is below `dir` at these names, through no link at all: whoever may write there can lead nobody elsewhere.
    pub fn open_beneath(&self, dir: &PodPath, names: &[String]) -> Result<Beneath, HostError> {
        let full = names.iter().try_fold(dir.clone(), |path, name| path.join(name))?;
        self.root(dir)?.open_beneath(dir.components(), names).map_err(error("open", &full))
    }

    /// The directory below `dir` at these names as a root of its own, with the path that it has there. It is reached through no link at all:
    /// whoever may write above it can lead nobody elsewhere, then or later.
    pub fn beneath(&self, dir: &PodPath, names: &[String]) -> Result<(HostRoot, PodPath), HostError> {
        let full = names.iter().try_fold(dir.clone(), |path, name| path.join(name))?;
        let root = self.root(dir)?.beneath(dir.components(), names).map_err(error("open directory", &full))?;
        let top = std::iter::successors(Some(dir.clone()), PodPath::parent).last().unwrap_or_else(|| dir.clone());
        Ok((HostRoot { os: self.os, drives: BTreeMap::from([(dir.drive(), root)]) }, top))
    }

    /// Listens at a unix socket of its own: one that is left there is replaced, anything else refused.
    pub fn listen(&self, path: &PodPath) -> Result<SocketListener, HostError> {
        if self.kind(path)? == Some(FileKind::Socket) {
            self.remove_tree(path)?;
        }
        let inner = self.root(path)?.listen(path.components()).map_err(error("listen at", path))?;
        Ok(SocketListener { inner })
    }

    /// Whether something is mounted at `path` (never on Windows: a link there stands for a mount).
    pub fn is_mount(&self, path: &PodPath) -> Result<bool, HostError> {
        match self.root(path)?.is_mount(path.components()) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            other => other.map_err(error("look for a mount at", path)),
        }
    }

    /// Gives a volume to a group as upstream does (pkg/volume/volume_linux.go): each file belongs to the group and can be read by it, each
    /// directory entered, and what is made in them belongs to the group too. Links are not followed. No effect on Windows, and where the
    /// user namespace has no such group.
    pub fn give_to_group(&self, path: &PodPath, owner: GroupOwner) -> Result<(), HostError> {
        self.root(path)?.give_to_group(path.components(), owner).map_err(error("give to the pod's group", path))
    }

    /// Makes `dir` hold exactly `files` (relative paths with `/`), the way the kubelet's atomic
    /// writer does: a new time-stamped directory, then one rename of the `..data` link, so that
    /// readers see all old or all new files. On Windows only `readers` may read it, where they are given. Returns whether anything changed.
    pub fn write_volume(&self, dir: &PodPath, files: &BTreeMap<String, VolumeFile>, readers: Option<&BTreeSet<Reader>>) -> Result<bool, HostError> {
        let plain = |name: &String| match PodPath::root(dir.drive()).join(name)?.components() {
            [] => Err(PathError::Backsteps(name.clone())),
            [first, ..] if first.starts_with("..") => Err(PathError::Backsteps(name.clone())),
            parts => Ok(parts.join("/")),
        };
        // Windows has two separators.
        let names = files.keys().map(plain).collect::<Result<Vec<_>, _>>()?;
        let same = names.iter().eq(files.keys());
        let files = if same { Cow::Borrowed(files) } else { Cow::Owned(names.into_iter().zip(files.values().cloned()).collect()) };
        match (readers, dir.parent()) {
            (Some(readers), Some(parent)) => {
                self.create_dir_all(&parent, 0o755)?;
                self.root(dir)?.restrict(dir.components(), readers).map_err(error("restrict", dir))?;
            }
            _ => self.create_dir_all(dir, 0o755)?,
        }
        self.root(dir)?.write_volume(dir.components(), &files).map_err(error("update volume", dir))
    }

    /// What a container mounts for a sub-path of a volume: missing directories are made, and no
    /// component may be a link. On Linux the object found is bind-mounted at `place` from its
    /// open handle and `place` is the answer, so that nothing a pod does to the volume afterwards
    /// can change what is mounted. On Windows the answer is the path itself, which nothing can change as long as the hold lives: until the
    /// container has started.
    pub fn sub_path(&self, volume: &PodPath, sub: &str, place: &PodPath) -> Result<(PodPath, Hold), HostError> {
        let full = volume.join(sub)?;
        let relative = &full.components()[volume.components().len()..];
        let bound = self.root(volume)?.sub_path(volume.components(), relative, place.components());
        match bound.map_err(error("use the sub-path", &full))? {
            None => Ok((place.clone(), Hold::default())),
            Some(hold) => Ok((full, hold)),
        }
    }

    /// Makes a block device appear at `place` too. Links to the device are followed inside the root, as names of devices often are links; what
    /// is bound is the open device, so that nothing that happens to its names afterwards changes what is there. As long as the answer is
    /// open, no other device gets the device's number. Only Linux has such devices.
    pub fn map_device(&self, device: &PodPath, place: &PodPath) -> Result<File, HostError> {
        self.root(place)?.map_device(self.root(device)?, device.components(), place.components()).map_err(error("map the device", device))
    }

    /// Makes a link in an existing directory, in the place of one that has the name. Only Linux needs any.
    pub fn link(&self, path: &PodPath, target: &PodPath) -> Result<(), HostError> {
        self.root(path)?.link(path.components(), &target.to_string()).map_err(error("make the link", path))
    }

    /// Makes `path` a memory file system of at most `size` bytes, unless it is one already.
    /// Only Linux has them; elsewhere the directory stays what it is, as with upstream.
    pub fn mount_memory(&self, path: &PodPath, size: Option<u64>) -> Result<(), HostError> {
        self.root(path)?.mount_memory(path.components(), size).map_err(error("mount a memory file system at", path))
    }

    /// Makes `path` a file system in huge pages of `page` bytes, unless it is one already. Only Linux has them; elsewhere this is refused.
    pub fn mount_huge_pages(&self, path: &PodPath, page: u64) -> Result<(), HostError> {
        self.root(path)?.mount_huge_pages(path.components(), page).map_err(error("mount a file system in huge pages at", path))
    }

    /// Takes away every mount at and below `path`. None, or nothing there, is fine.
    pub fn unmount_below(&self, path: &PodPath) -> Result<(), HostError> {
        match self.root(path)?.unmount_below(path.components()) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(error("unmount", path)(e)),
            _ => Ok(()),
        }
    }

    /// Space on the file system that holds `path`.
    pub fn space(&self, path: &PodPath) -> Result<Space, HostError> {
        self.root(path)?.space(path.components()).map_err(error("measure", path))
    }

    /// What a file takes on its file system, links inside the root followed. Nothing there takes nothing.
    pub fn usage_of_file(&self, path: &PodPath) -> Result<Usage, HostError> {
        match self.root(path)?.usage_of_file(path.components()) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Usage::default()),
            other => other.map_err(error("measure", path)),
        }
    }

    /// What a directory and everything below it take on its own file system. Links are not followed, and mounts below it do not count.
    /// Nothing there takes nothing.
    pub fn usage(&self, path: &PodPath) -> Result<Usage, HostError> {
        match self.root(path)?.usage(path.components()) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Usage::default()),
            other => other.map_err(error("measure", path)),
        }
    }

    fn root(&self, path: &PodPath) -> Result<&Drive, HostError> {
        if path.is_remote() {
            return Err(PathError::NotLocal(path.to_string()).into());
        }
        self.drives.get(&path.drive()).ok_or_else(|| HostError::NoDrive {
            drive: path.drive().unwrap_or('/'),
            present: self.drives().map(String::from).collect::<Vec<_>>().join(", "),
        })
    }
}

/// Makes a directory of this machine's for keys and the like, with its parents. On Windows as [`HostRoot::make_private`].
///
/// # Errors
/// What the system says.
pub fn make_private_dir(path: &std::path::Path) -> io::Result<()> {
    std::fs::create_dir_all(path.parent().unwrap_or(path))?;
    imp::make_private_dir(path)
}

/// Directories within each other that a measurement enters: each holds a descriptor.
const MAX_DEPTH: usize = 256;

fn too_deep() -> io::Error {
    io::Error::other(format!("it has more than {MAX_DEPTH} directories within each other"))
}

fn open_root(letter: Option<char>, dir: PathBuf) -> Result<Drive, HostError> {
    let shown = dir.display().to_string();
    imp::Root::open(dir, letter.is_some()).map(Drive::Disk).map_err(|source| HostError::Io { operation: "open the node's root", path: shown, source })
}

fn error(operation: &'static str, path: &PodPath) -> impl FnOnce(io::Error) -> HostError {
    let path = path.to_string();
    move |source| HostError::Io { operation, path, source }
}
