//! Files: DIR, which stays, and RUN, which ends with the supervisor. What else is in DIR is its owner's business.
//!
//! ```text
//! DIR/lock           flock of the supervisor, with its process number
//! DIR/cluster.json   specification, addresses, format version
//! DIR/pki, DIR/store control plane
//! DIR/log/           lab.log, control-plane.log, …
//! DIR/hosts/HOST/    files of a host; its log/ holds the logs of its processes
//! RUN/               sockets; RUN/ns is a tmpfs that only the lab sees; RUN/power has the hosts' power switches
//! ```

use std::fs;
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use linux_sys::lock::FileLock;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::LabError;
use crate::owner;
use crate::shell;

/// How long a lab whose supervisor is gone has to end before its directory counts as in use.
const ORPHANS: Duration = Duration::from_secs(10);
/// Name of the lock among a lab's descriptors: init keeps it until its last process has ended.
pub const LOCK: &str = "lock";
/// What a cluster keeps in DIR, in the order of deletion. The description goes last but one: while it is there, a deletion that broke off
/// can be repeated.
pub const PARTS: [&str; 6] = ["hosts", "store", "pki", "log", DESCRIPTION, "lock"];
/// The file that makes a directory a cluster's.
pub const DESCRIPTION: &str = "cluster.json";
/// A unix socket's path holds 107 bytes.
const SOCKET_PATH: usize = 107;
/// The longest that is put behind `RUN/NODE`.
const LONGEST_SUFFIX: &str = ".hcn-admin";

/// What of the environment decides about paths, read once by the caller.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Env {
    /// `XDG_STATE_HOME`.
    pub state_home: Option<PathBuf>,
    /// `XDG_CACHE_HOME`.
    pub cache_home: Option<PathBuf>,
    /// `XDG_RUNTIME_DIR`.
    pub runtime_dir: Option<PathBuf>,
    /// `HOME`.
    pub home: Option<PathBuf>,
    /// The user's number.
    pub uid: u32,
}

impl Env {
    /// This process's.
    pub fn of_process() -> Self {
        // XDG: relative paths are invalid and to be ignored.
        let dir = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
        Self {
            state_home: dir("XDG_STATE_HOME"),
            cache_home: dir("XDG_CACHE_HOME"),
            runtime_dir: dir("XDG_RUNTIME_DIR"),
            home: dir("HOME"),
            uid: nix::unistd::geteuid().as_raw(),
        }
    }

    /// DIR when none is given: `mullion` in the XDG state home.
    pub fn default_dir(&self) -> PathBuf {
        self.base(&self.state_home, ".local/state").join("mullion")
    }

    /// What clusters share: `mullion` in the XDG cache home.
    pub fn cache_dir(&self) -> PathBuf {
        self.base(&self.cache_home, ".cache").join("mullion")
    }

    fn base(&self, xdg: &Option<PathBuf>, below_home: &str) -> PathBuf {
        xdg.clone().unwrap_or_else(|| self.home.clone().unwrap_or_else(|| "/".into()).join(below_home))
    }

    fn run_base(&self) -> PathBuf {
        match &self.runtime_dir {
            Some(dir) if dir.is_dir() => dir.join("mullion"),
            _ => PathBuf::from(format!("/tmp/mullion-{}", self.uid)),
        }
    }
}

/// Paths of one cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dirs {
    /// DIR, absolute.
    pub dir: PathBuf,
    /// RUN.
    pub run: PathBuf,
}

impl Dirs {
    /// The paths of the cluster kept in `dir`. Makes nothing.
    ///
    /// # Errors
    /// When a relative `dir` cannot be made absolute.
    pub fn resolve(dir: &Path, env: &Env) -> Result<Self, LabError> {
        // One directory, one ID, by whatever links it is reached.
        let dir = match fs::canonicalize(dir) {
            Ok(dir) => dir,
            Err(_) => std::path::absolute(dir).map_err(LabError::file("find", dir))?,
        };
        let digest = Sha256::digest(dir.as_os_str().as_encoded_bytes());
        let id: String = digest.iter().take(4).map(|b| format!("{b:02x}")).collect();
        Ok(Self { run: env.run_base().join(id), dir })
    }

    /// Eight hexadecimal digits that stand for DIR.
    pub fn id(&self) -> String {
        self.run.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// A command for this cluster that can be pasted: `mullion COMMAND`, with `--dir` unless DIR is the default one.
    pub fn command(&self, command: &str) -> String {
        let is_default = Self::resolve(&Env::of_process().default_dir(), &Env::default()).is_ok_and(|default| default.dir == self.dir);
        if is_default { format!("mullion {command}") } else { command_in(&self.dir, command) }
    }

    /// The name of a cluster that was given none: its directory's.
    pub fn default_name(&self) -> String {
        let name = self.dir.file_name().unwrap_or_default().to_string_lossy();
        let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' }).take(63).collect();
        let name = name.trim_matches(['.', '-', '_']);
        if name.is_empty() { "mullion".to_owned() } else { name.to_owned() }
    }

    /// `DIR/hosts/NODE`.
    pub fn host(&self, node: &str) -> PathBuf {
        self.dir.join("hosts").join(node)
    }

    /// A socket in RUN: `RUN/NAME.SUFFIX`.
    pub fn socket(&self, name: &str, suffix: &str) -> PathBuf {
        self.run.join(format!("{name}.{suffix}"))
    }

    /// The network namespace of a host, visible inside the lab only.
    pub fn netns(&self, host: &str) -> PathBuf {
        self.run.join("ns").join(host)
    }

    /// Where a node keeps the namespaces of its pods, visible inside the lab only.
    pub fn pod_netns_dir(&self, host: &str) -> PathBuf {
        self.run.join("ns").join(format!("{host}.d"))
    }

    /// The supervisor's socket for `status` and `down`.
    pub fn control_socket(&self) -> PathBuf {
        self.run.join("lab.ctl")
    }

    /// The power switch of a host: a directory with the pipe `request` for `stop SECONDS`, `restart SECONDS` and `abort`, and, while one of the
    /// first two waits for its time, the file `pending`.
    pub fn power_dir(&self, host: &str) -> PathBuf {
        self.run.join("power").join(host)
    }

    /// The supervisor's socket for ports of the real host.
    pub fn ports_socket(&self) -> PathBuf {
        self.run.join("ports.ctl")
    }

    /// The log of a process: of a node's below its host, else in `DIR/log`.
    pub fn log(&self, host: Option<&str>, process: &str) -> PathBuf {
        host.map_or_else(|| self.dir.join("log"), |h| self.host(h).join("log")).join(format!("{process}.log"))
    }

    /// Makes RUN empty, for this user alone. Only for the holder of the lock.
    ///
    /// # Errors
    /// When it would be too long for sockets of these hosts, or somebody else owns it.
    pub fn make_run<'a>(&self, hosts: impl IntoIterator<Item = &'a str>) -> Result<(), LabError> {
        let longest = hosts.into_iter().map(str::len).max().unwrap_or(0).max("ports.ctl".len());
        let length = self.run.as_os_str().len() + 1 + longest + LONGEST_SUFFIX.len();
        let refuse = |reason: String| LabError::RunDir { path: self.run.clone(), reason };
        if length > SOCKET_PATH {
            return Err(refuse(format!("paths of {length} bytes exceed {SOCKET_PATH}: set a shorter XDG_RUNTIME_DIR or shorter node names")));
        }
        let base = self.run.parent().unwrap_or(Path::new("/tmp"));
        let private = |dir: &Path| fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(LabError::file("make", dir));
        private(base)?;
        let meta = fs::symlink_metadata(base).map_err(LabError::file("look at", base))?;
        if !meta.is_dir() || !owner::is_own(&meta) || meta.mode() & 0o022 != 0 {
            return Err(refuse(format!("{} is not this user's alone: remove it or set XDG_RUNTIME_DIR", base.display())));
        }
        self.remove_run()?;
        private(&self.run)?;
        private(&self.run.join("ns"))
    }

    /// Removes RUN, and its parent when it was the last.
    ///
    /// # Errors
    /// When something in it cannot be removed.
    pub fn remove_run(&self) -> Result<(), LabError> {
        match fs::remove_dir_all(&self.run) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(LabError::file("remove", &self.run)(e)),
            _ => {}
        }
        // Not empty when other clusters run: that is fine.
        if let Some(base) = self.run.parent() {
            let _ = fs::remove_dir(base);
        }
        Ok(())
    }

    /// Makes DIR and locks it; the lock ends with the process. A lab whose supervisor was killed holds the lock until its last
    /// process has ended: that end is waited for.
    ///
    /// # Errors
    /// [`LabError::Running`] when a supervisor holds it.
    pub fn lock(&self) -> Result<FileLock, LabError> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir).map_err(LabError::file("make", &self.dir))?;
        let path = self.dir.join("lock");
        let deadline = Instant::now() + ORPHANS;
        let mut lock = loop {
            if let Some(lock) = FileLock::try_acquire(&path).map_err(LabError::file("lock", &path))? {
                break lock;
            }
            let holder = self.holder();
            if holder.is_some_and(is_alive) || Instant::now() >= deadline {
                return Err(LabError::Running { dir: self.dir.clone(), pid: holder });
            }
            thread::sleep(Duration::from_millis(5));
        };
        let file = lock.file();
        let written = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
        written.map_err(LabError::file("write", &path))?;
        Ok(lock)
    }

    /// Refuses a DIR that is no cluster's and holds foreign files. A first `up` that broke off before it wrote `cluster.json` leaves a lock
    /// and a part of the description, and a file system of its own may have `lost+found`: these are not foreign.
    ///
    /// # Errors
    /// [`LabError::ForeignFiles`]; when DIR cannot be listed.
    pub fn check_foreign(&self) -> Result<(), LabError> {
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(LabError::file("list", &self.dir))?,
        };
        let mut is_foreign = false;
        for entry in entries {
            is_foreign |= !is_unfinished(&entry.map_err(LabError::file("list", &self.dir))?);
        }
        // Looked for last: another `up` may have written it meanwhile, and other files after it.
        if is_foreign && !self.dir.join(DESCRIPTION).is_file() { Err(LabError::ForeignFiles(self.dir.clone())) } else { Ok(()) }
    }

    /// The process that wrote the lock last.
    pub fn holder(&self) -> Option<u32> {
        let mut text = String::new();
        fs::File::open(self.dir.join("lock")).ok()?.take(32).read_to_string(&mut text).ok()?;
        text.trim().parse().ok()
    }
}

/// Whether an entry of DIR is what a first `up` leaves that broke off, or the file system's own. The lock holds a process number.
fn is_unfinished(entry: &fs::DirEntry) -> bool {
    let Ok(kind) = entry.file_type() else { return false };
    let is_short = || entry.metadata().is_ok_and(|meta| meta.len() <= 32);
    let is_number = || fs::read_to_string(entry.path()).is_ok_and(|text| text.trim().chars().all(|c| c.is_ascii_digit()));
    match entry.file_name().to_str() {
        Some("lock") => kind.is_file() && is_short() && is_number(),
        Some("lost+found") => kind.is_dir(),
        Some(name) if atomic_file::is_temporary(name, DESCRIPTION) => kind.is_file(),
        _ => false,
    }
}

/// `mullion COMMAND --dir DIR`, to be pasted into a shell.
pub fn command_in(dir: &Path, command: &str) -> String {
    format!("mullion {command} --dir {}", shell::quote(dir))
}

/// Whether a process runs: it is there, and no zombie.
fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dirs(root: &Path) -> Dirs {
        Dirs { dir: root.join("dir"), run: root.join("run/0011aabb") }
    }

    #[test]
    fn paths_follow_the_environment() {
        let env = Env { home: Some("/home/u".into()), uid: 1000, ..Env::default() };
        assert_eq!(env.default_dir(), Path::new("/home/u/.local/state/mullion"));
        assert_eq!(env.cache_dir(), Path::new("/home/u/.cache/mullion"));
        let dirs = Dirs::resolve(Path::new("/no/such/dir"), &env).unwrap();
        assert_eq!(dirs.run.parent(), Some(Path::new("/tmp/mullion-1000")));
        assert!(dirs.id().len() == 8 && dirs.id().chars().all(|c| c.is_ascii_hexdigit()), "{}", dirs.id());
        let env = Env { runtime_dir: Some("/proc".into()), ..env };
        assert!(Dirs::resolve(Path::new("/no/such/dir"), &env).unwrap().run.starts_with("/proc/mullion"));
    }

    #[test]
    fn a_second_lock_names_the_first() {
        let root = tempfile::tempdir().unwrap();
        let dirs = dirs(root.path());
        let lock = dirs.lock().unwrap();
        let e = dirs.lock().unwrap_err();
        assert!(matches!(e, LabError::Running { pid: Some(pid), .. } if pid == std::process::id()), "{e}");
        drop(lock);
        dirs.lock().unwrap();
    }

    #[test]
    fn run_is_made_empty_private_and_removed() {
        let root = tempfile::tempdir().unwrap();
        let dirs = dirs(root.path());
        let nodes = ["a"];
        fs::create_dir_all(dirs.run.join("left/over")).unwrap();
        dirs.make_run(nodes).unwrap();
        assert_eq!(fs::read_dir(&dirs.run).unwrap().count(), 1, "only ns");
        assert_eq!(fs::metadata(&dirs.run).unwrap().mode() & 0o777, 0o700);
        dirs.remove_run().unwrap();
        dirs.remove_run().expect("that it is gone is fine");
        assert!(!dirs.run.parent().unwrap().exists());
        let long = Dirs { run: root.path().join("x".repeat(100)), ..dirs.clone() };
        assert!(long.make_run(nodes).unwrap_err().to_string().contains("set a shorter XDG_RUNTIME_DIR"));
        fs::create_dir_all(dirs.run.parent().unwrap()).unwrap();
        fs::set_permissions(dirs.run.parent().unwrap(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        assert!(dirs.make_run(nodes).unwrap_err().to_string().contains("not this user's alone"));
    }

    #[test]
    fn directories_with_foreign_files_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let dirs = dirs(root.path());
        dirs.check_foreign().expect("a new directory");
        fs::create_dir(&dirs.dir).unwrap();
        dirs.check_foreign().expect("an empty directory");
        let at = |name: &str| dirs.dir.join(name);
        let refused = |what: &str| {
            let e = dirs.check_foreign().expect_err(what);
            let expected =
                format!("cannot make a cluster in {}: it holds other files; choose an empty or new directory with --dir", dirs.dir.display());
            assert!(matches!(&e, LabError::ForeignFiles(_)) && e.to_string() == expected, "{what}: {e}");
        };
        for name in ["notes.txt", ".bashrc", "hosts", "pki", "log"] {
            fs::create_dir(at(name)).unwrap();
            refused(name);
            fs::remove_dir(at(name)).unwrap();
        }
        fs::write(at("lock"), "a lock of another program").unwrap();
        refused("a foreign lock");
        fs::remove_file(at("lock")).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", at("lock")).unwrap();
        refused("a link");
        fs::remove_file(at("lock")).unwrap();
        drop(dirs.lock().unwrap());
        fs::write(at(".cluster.json.0123456789abcdef.tmp"), "{\"form").unwrap();
        fs::create_dir(at("lost+found")).unwrap();
        dirs.check_foreign().expect("a first up that broke off");
        fs::write(at("notes.txt"), "").unwrap();
        refused("a file beside it");
        fs::write(at("cluster.json"), "{}").unwrap();
        dirs.check_foreign().expect("a cluster's directory");
    }

    #[test]
    fn clusters_are_named_after_their_directories() {
        let name = |dir: &str| Dirs { dir: dir.into(), run: "/r".into() }.default_name();
        let cases =
            [("/home/u/.local/state/mullion", "mullion"), ("/tmp/my cluster", "my-cluster"), ("/tmp/.x", "x"), ("/", "mullion"), ("/ä", "mullion")];
        for (dir, expected) in cases {
            assert_eq!(name(dir), expected, "{dir}");
        }
    }
}
