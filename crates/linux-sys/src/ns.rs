//! Network namespaces as owned descriptors, pinned at paths, and [`in_lab`] for tests.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use nix::mount::{MntFlags, MsFlags};
use nix::sched::{CloneFlags, setns, unshare};

use crate::netlink::Rtnl;

pub use lab_test::in_lab;
pub use switches::{TEST_INHERIT, inherit_for_tests, reset_switches};

mod lab_test;
mod switches;

const HERE: &str = "/proc/thread-self/ns/net";

/// A network namespace; it lives at least as long as this value.
#[derive(Debug, Clone)]
pub struct NetNs(Arc<OwnedFd>);

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for NetNs {
    fn from(fd: OwnedFd) -> Self {
        Self(Arc::new(fd))
    }
}

impl NetNs {
    /// The namespace of the calling thread.
    pub fn current() -> io::Result<Self> {
        Self::open(Path::new(HERE))
    }

    /// The namespace pinned at `path` (or a `/proc/PID/ns/net`).
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = fs::File::open(path).map_err(|e| named(e, "open network namespace", path))?;
        Ok(OwnedFd::from(file).into())
    }

    /// The namespace pinned at `path`, which is made (with its loopback up, and switches as [`reset_switches`] gives them) when it is not
    /// there yet.
    pub fn create_at(path: &Path) -> io::Result<Self> {
        if is_pinned(path) {
            return Self::open(path);
        }
        fs::File::options().create(true).append(true).open(path).map_err(|e| named(e, "create", path))?;
        let made = fresh(|| {
            nix::mount::mount(Some(HERE), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)
                .map_err(|e| named(e.into(), "pin a network namespace at", path))
        });
        // A file that pins nothing would look like a namespace in a listing.
        made.inspect_err(|_| drop(fs::remove_file(path)))
    }

    /// A namespace without a name, its loopback up and its switches as [`reset_switches`] gives them; it ends with its last user.
    pub fn new_anonymous() -> io::Result<Self> {
        fresh(|| Ok(()))
    }

    /// Unpins the namespace at `path` and removes the file; that there is none is fine.
    pub fn remove_at(path: &Path) -> io::Result<()> {
        match nix::mount::umount2(path, MntFlags::MNT_DETACH) {
            Ok(()) | Err(nix::Error::EINVAL | nix::Error::ENOENT) => {}
            Err(e) => return Err(named(e.into(), "unpin network namespace", path)),
        }
        match fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(named(e, "remove", path)),
            _ => Ok(()),
        }
    }

    /// Runs `f` in this namespace, on a thread of its own: the caller's thread never moves. What `f`
    /// opens (sockets) stays in the namespace. A panic in `f` is passed on.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> io::Result<T> {
        on_thread(|| {
            setns(&*self.0, CloneFlags::CLONE_NEWNET)?;
            Ok(f())
        })
    }
}

/// Enters the user, mount and network namespaces of a process, which must be those of a user namespace of this user's. Only for a
/// process that has no threads yet; all paths mean what they mean there from now on.
///
/// # Errors
/// When the process is gone or somebody else's.
pub fn enter_process(pid: u32) -> io::Result<()> {
    let kinds = [("user", CloneFlags::CLONE_NEWUSER), ("mnt", CloneFlags::CLONE_NEWNS), ("net", CloneFlags::CLONE_NEWNET)];
    // All of them first: /proc is another one behind the second.
    let open = |(name, kind)| {
        let path = format!("/proc/{pid}/ns/{name}");
        fs::File::open(&path).map(|file| (file, kind)).map_err(|e| named(e, "open namespace", Path::new(&path)))
    };
    for (file, kind) in kinds.map(open).into_iter().collect::<io::Result<Vec<_>>>()? {
        setns(file, kind)?;
    }
    // Its root, if this user is nobody there.
    let (user, group) = (nix::unistd::Uid::from_raw(0), nix::unistd::Gid::from_raw(0));
    nix::unistd::setresgid(group, group, group)?;
    Ok(nix::unistd::setresuid(user, user, user)?)
}

/// Whether a namespace is bind-mounted at `path`.
fn is_pinned(path: &Path) -> bool {
    nix::sys::statfs::statfs(path).is_ok_and(|s| s.filesystem_type() == nix::sys::statfs::NSFS_MAGIC)
}

/// Makes a namespace and calls `pin` in it.
fn fresh(pin: impl FnOnce() -> io::Result<()> + Send) -> io::Result<NetNs> {
    on_thread(|| {
        unshare(CloneFlags::CLONE_NEWNET).map_err(|e| io::Error::new(io::Error::from(e).kind(), format!("make a network namespace: {e}")))?;
        inherit_for_tests()?;
        reset_switches()?;
        let rtnl = Rtnl::open()?;
        // The loopback is the first link of every namespace.
        rtnl.set_up(1)?;
        pin()?;
        NetNs::current()
    })
}

fn on_thread<T: Send>(f: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("netns".into()).stack_size(256 * 1024).spawn_scoped(scope, f)?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn named(e: io::Error, operation: &str, path: &Path) -> io::Error {
    io::Error::new(e.kind(), format!("{operation} {}: {e}", path.display()))
}
