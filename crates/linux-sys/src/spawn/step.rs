//! What a child does between clone and exec, prepared so that the child only makes system calls.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::ptr;

use super::cstring;

/// Something to do in the child before its program starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Mounts of this namespace and of others stop reaching each other. First, wherever mounts follow.
    MakePrivate,
    /// A directory; that it exists is fine. Its parent must exist.
    Mkdir(PathBuf),
    /// An empty file (as a mount point); that it exists is fine.
    Touch(PathBuf),
    /// A symbolic link at `path`; that something is there is fine.
    Symlink {
        /// Where it points to.
        target: PathBuf,
        /// Where it is.
        path: PathBuf,
    },
    /// Writes into an existing file, as those below /proc.
    WriteFile {
        path: PathBuf,
        /// What is written, in one call.
        content: Vec<u8>,
    },
    /// Makes `src` (with what is mounted below it) visible at `dst`.
    BindMount {
        src: PathBuf,
        /// Where; it must exist and be of the same kind.
        dst: PathBuf,
        /// Not writable there.
        readonly: bool,
    },
    /// Mounts a tree of [`crate::mount::tree`], which the parent holds open until the child runs.
    Attach {
        /// Its number in the parent.
        tree: RawFd,
        target: PathBuf,
    },
    /// A memory file system.
    Tmpfs {
        target: PathBuf,
        /// As `mode=0755,size=16m`.
        options: String,
    },
    /// The process file system of the child's pid namespace.
    Proc(PathBuf),
    /// A read-only view of the kernel's devices, of the child's network namespace.
    Sysfs(PathBuf),
    /// A private set of terminals.
    Devpts(PathBuf),
    /// An overlay, `lower` from top to bottom, with `userxattr`.
    Overlay {
        /// Read-only layers.
        lower: Vec<PathBuf>,
        /// The writable layer.
        upper: PathBuf,
        /// Scratch directory beside `upper`.
        work: PathBuf,
        target: PathBuf,
    },
    /// What is mounted there becomes read-only.
    ReadOnly(PathBuf),
    /// Takes the mount there away, lazily.
    Umount(PathBuf),
    /// The directory becomes the root of the mount namespace; the old root is out of reach.
    PivotRoot(PathBuf),
    /// The directory becomes the root of this process.
    Chroot(PathBuf),
    /// Changes directory.
    Chdir(PathBuf),
    /// Sets the host name (in a UTS namespace of one's own).
    SetHostname(String),
    /// Switches the loopback on (in a network namespace of one's own).
    LoopbackUp,
    /// Sets group and user.
    SetUser {
        /// User number.
        uid: u32,
        /// Group number.
        gid: u32,
    },
    /// Keeps only these capabilities (numbers of linux/capability.h) for the program and what it starts.
    KeepCaps(Vec<u8>),
    /// Programs with set-uid bits give nothing any more.
    NoNewPrivileges,
    /// A limit of resources (`libc::RLIMIT_*`), soft and hard.
    Limit {
        resource: u32,
        /// Soft and hard limit.
        value: u64,
    },
}

/// One system call's worth of a step.
#[derive(Debug, Clone)]
pub(super) struct Op {
    /// How it is named when it fails.
    pub name: String,
    /// May fail with this number.
    tolerate: Option<i32>,
    call: Call,
}

#[derive(Debug, Clone)]
enum Call {
    Mount { src: CString, dst: CString, kind: Option<CString>, flags: libc::c_ulong, data: Option<CString> },
    Remount { dst: CString },
    Attach(RawFd, CString),
    Umount(CString),
    Mkdir(CString),
    Touch(CString),
    Symlink(CString, CString),
    Write(CString, Vec<u8>),
    Pivot,
    Chroot(CString),
    Chdir(CString),
    Hostname(CString),
    Loopback,
    User(u32, u32),
    Caps(Vec<u8>),
    NoNewPrivileges,
    Limit(u32, u64),
}

const NODEV_NOSUID: libc::c_ulong = libc::MS_NODEV | libc::MS_NOSUID;

pub(super) fn prepare(step: Step) -> io::Result<Vec<Op>> {
    let path = |p: &Path| cstring(p.as_os_str());
    let text = |s: &str| cstring(s.as_ref());
    let fs = |kind: &str, target: &Path, flags, options: Option<&str>| -> io::Result<Vec<Op>> {
        let call = Call::Mount { src: text(kind)?, dst: path(target)?, kind: Some(text(kind)?), flags, data: options.map(text).transpose()? };
        Ok(vec![op(format!("mount {kind} at {}", target.display()), call)])
    };
    Ok(match step {
        Step::MakePrivate => {
            let call = Call::Mount { src: text("none")?, dst: text("/")?, kind: None, flags: libc::MS_REC | libc::MS_PRIVATE, data: None };
            vec![op("make mounts private".into(), call)]
        }
        Step::Mkdir(p) => vec![op(format!("make directory {}", p.display()), Call::Mkdir(path(&p)?)).tolerate(libc::EEXIST)],
        Step::Touch(p) => vec![op(format!("make file {}", p.display()), Call::Touch(path(&p)?))],
        Step::Symlink { target, path: p } => {
            vec![op(format!("make link {}", p.display()), Call::Symlink(path(&target)?, path(&p)?)).tolerate(libc::EEXIST)]
        }
        Step::WriteFile { path: p, content } => vec![op(format!("write {}", p.display()), Call::Write(path(&p)?, content))],
        Step::BindMount { src, dst, readonly } => {
            let flags = libc::MS_BIND | libc::MS_REC;
            let call = Call::Mount { src: path(&src)?, dst: path(&dst)?, kind: None, flags, data: None };
            let mut ops = vec![op(format!("bind-mount {} at {}", src.display(), dst.display()), call)];
            if readonly {
                ops.extend(prepare(Step::ReadOnly(dst))?);
            }
            ops
        }
        Step::Attach { tree, target } => vec![op(format!("mount a tree at {}", target.display()), Call::Attach(tree, path(&target)?))],
        Step::Tmpfs { target, options } => fs("tmpfs", &target, NODEV_NOSUID, Some(&options))?,
        Step::Proc(target) => fs("proc", &target, NODEV_NOSUID | libc::MS_NOEXEC, None)?,
        Step::Sysfs(target) => fs("sysfs", &target, NODEV_NOSUID | libc::MS_NOEXEC | libc::MS_RDONLY, None)?,
        Step::Devpts(target) => fs("devpts", &target, libc::MS_NOSUID | libc::MS_NOEXEC, Some("newinstance,ptmxmode=0666,mode=0620"))?,
        Step::Overlay { lower, upper, work, target } => {
            let options = crate::mount::overlay_options(&lower, &upper, &work)?;
            let call =
                Call::Mount { src: text("overlay")?, dst: path(&target)?, kind: Some(text("overlay")?), flags: 0, data: Some(path(&options)?) };
            vec![op(format!("mount overlay at {}", target.display()), call)]
        }
        Step::ReadOnly(p) => vec![op(format!("make {} read-only", p.display()), Call::Remount { dst: path(&p)? })],
        Step::Umount(p) => vec![op(format!("unmount {}", p.display()), Call::Umount(path(&p)?))],
        Step::PivotRoot(p) => {
            let call = Call::Mount { src: path(&p)?, dst: path(&p)?, kind: None, flags: libc::MS_BIND | libc::MS_REC, data: None };
            vec![
                op(format!("make a mount point of {}", p.display()), call),
                op(format!("enter {}", p.display()), Call::Chdir(path(&p)?)),
                op(format!("make {} the root", p.display()), Call::Pivot),
                op("enter the new root".into(), Call::Chdir(text("/")?)),
            ]
        }
        Step::Chroot(p) => {
            vec![op(format!("make {} the root", p.display()), Call::Chroot(path(&p)?)), op("enter the new root".into(), Call::Chdir(text("/")?))]
        }
        Step::Chdir(p) => vec![op(format!("enter directory {}", p.display()), Call::Chdir(path(&p)?))],
        Step::SetHostname(name) => vec![op(format!("set host name {name}"), Call::Hostname(text(&name)?))],
        Step::LoopbackUp => vec![op("switch the loopback on".into(), Call::Loopback)],
        Step::SetUser { uid, gid } => vec![op(format!("become user {uid}:{gid}"), Call::User(uid, gid))],
        Step::KeepCaps(keep) => vec![op("give capabilities up".into(), Call::Caps(keep))],
        Step::NoNewPrivileges => vec![op("refuse new privileges".into(), Call::NoNewPrivileges)],
        Step::Limit { resource, value } => vec![op(format!("limit resource {resource} to {value}"), Call::Limit(resource, value))],
    })
}

fn op(name: String, call: Call) -> Op {
    Op { name, tolerate: None, call }
}

impl Op {
    fn tolerate(mut self, errno: i32) -> Self {
        self.tolerate = Some(errno);
        self
    }

    /// Runs in the child: system calls only, no memory is taken.
    pub(super) fn run(&self) -> Result<(), i32> {
        // SAFETY: every pointer below is to memory that `self` owns and that lives across the call.
        let result = unsafe { self.call.run() };
        if result >= 0 {
            return Ok(());
        }
        match errno() {
            e if Some(e) == self.tolerate => Ok(()),
            e => Err(e),
        }
    }
}

/// The number of the last error of this thread.
pub(super) fn errno() -> i32 {
    // SAFETY: the location is always valid.
    unsafe { *libc::__errno_location() }
}

impl Call {
    /// # Safety
    /// Only for the child between clone and exec: it changes the whole process.
    unsafe fn run(&self) -> libc::c_int {
        let or_null = |text: &Option<CString>| text.as_ref().map_or(ptr::null(), |t| t.as_ptr());
        // SAFETY: strings are NUL-terminated and outlive the calls; numbers are plain values.
        unsafe {
            match self {
                Self::Mount { src, dst, kind, flags, data } => libc::mount(src.as_ptr(), dst.as_ptr(), or_null(kind), *flags, or_null(data).cast()),
                Self::Remount { dst } => remount_readonly(dst),
                Self::Attach(tree, p) => {
                    const FROM_DESCRIPTOR: libc::c_uint = 0x4; // MOVE_MOUNT_F_EMPTY_PATH
                    libc::syscall(libc::SYS_move_mount, *tree, c"".as_ptr(), libc::AT_FDCWD, p.as_ptr(), FROM_DESCRIPTOR) as libc::c_int
                }
                Self::Umount(p) => libc::umount2(p.as_ptr(), libc::MNT_DETACH),
                Self::Mkdir(p) => libc::mkdir(p.as_ptr(), 0o755),
                Self::Touch(p) => write(p, &[], libc::O_CREAT),
                Self::Symlink(target, p) => libc::symlink(target.as_ptr(), p.as_ptr()),
                Self::Write(p, content) => write(p, content, 0),
                Self::Pivot => {
                    let dot = c".".as_ptr();
                    match libc::syscall(libc::SYS_pivot_root, dot, dot) {
                        0 => libc::umount2(dot, libc::MNT_DETACH),
                        _ => -1,
                    }
                }
                Self::Chroot(p) => libc::chroot(p.as_ptr()),
                Self::Chdir(p) => libc::chdir(p.as_ptr()),
                Self::Hostname(name) => libc::sethostname(name.as_ptr(), name.as_bytes().len()),
                Self::Loopback => loopback_up(),
                Self::User(uid, gid) => set_user(*uid, *gid),
                Self::Caps(keep) => keep_caps(keep),
                Self::NoNewPrivileges => libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
                Self::Limit(resource, value) => {
                    let limit = libc::rlimit { rlim_cur: *value, rlim_max: *value };
                    libc::setrlimit(*resource, &raw const limit)
                }
            }
        }
    }
}

/// # Safety
/// As [`Call::run`].
unsafe fn write(path: &CString, content: &[u8], flags: libc::c_int) -> libc::c_int {
    // SAFETY: `path` is NUL-terminated, `content` is readable for its length, the descriptor is ours.
    unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC | flags, 0o644);
        if fd < 0 {
            return -1;
        }
        let written = if content.is_empty() { 0 } else { libc::write(fd, content.as_ptr().cast(), content.len()) };
        let error = errno();
        libc::close(fd);
        *libc::__errno_location() = error;
        if written == content.len() as isize { 0 } else { -1 }
    }
}

/// A remount must repeat the flags which the mount has from a more privileged namespace.
///
/// # Safety
/// As [`Call::run`].
unsafe fn remount_readonly(dst: &CString) -> libc::c_int {
    // SAFETY: `stat` is plain data that the call fills; `dst` is NUL-terminated.
    unsafe {
        let mut stat: libc::statvfs = std::mem::zeroed();
        if libc::statvfs(dst.as_ptr(), &raw mut stat) < 0 {
            return -1;
        }
        // ST_* and MS_* of these flags have the same numbers, but for relatime.
        let same = libc::ST_NOSUID | libc::ST_NODEV | libc::ST_NOEXEC | libc::ST_NOATIME | libc::ST_NODIRATIME;
        let relatime = if stat.f_flag & libc::ST_RELATIME != 0 { libc::MS_RELATIME } else { 0 };
        let flags = libc::MS_BIND | libc::MS_REMOUNT | libc::MS_RDONLY | (stat.f_flag & same) | relatime;
        libc::mount(ptr::null(), dst.as_ptr(), ptr::null(), flags, ptr::null())
    }
}

/// # Safety
/// As [`Call::run`].
unsafe fn loopback_up() -> libc::c_int {
    // SAFETY: `request` is plain data of the size which these requests read and write.
    unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return -1;
        }
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        let result = libc::ioctl(fd, libc::SIOCSIFFLAGS as _, &raw mut request);
        libc::close(fd);
        result
    }
}

/// # Safety
/// As [`Call::run`].
unsafe fn set_user(uid: u32, gid: u32) -> libc::c_int {
    // SAFETY: system calls with plain numbers; raw ones, since libc's wrappers want all threads.
    unsafe {
        // Where a namespace forbids groups there are none to give up.
        if libc::syscall(libc::SYS_setgroups, 0usize, ptr::null::<u32>()) < 0 && errno() != libc::EPERM {
            return -1;
        }
        if libc::syscall(libc::SYS_setresgid, gid, gid, gid) < 0 {
            return -1;
        }
        libc::syscall(libc::SYS_setresuid, uid, uid, uid) as libc::c_int
    }
}

/// # Safety
/// As [`Call::run`].
unsafe fn keep_caps(keep: &[u8]) -> libc::c_int {
    const LAST: u8 = 63;
    // SAFETY: system calls with plain numbers and two local structures of the kernel's layout.
    unsafe {
        for cap in 0..=LAST {
            if !keep.contains(&cap) && libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(cap), 0, 0, 0) < 0 {
                if errno() == libc::EINVAL {
                    break; // beyond the kernel's last capability
                }
                return -1;
            }
        }
        let mask = keep.iter().fold(0u64, |m, cap| m | 1 << u64::from(*cap & LAST));
        let (low, high) = (mask as u32, (mask >> 32) as u32);
        // version 3; per 32 capabilities: effective, permitted, inheritable
        let header: [u32; 2] = [0x2008_0522, 0];
        let mut now = [0u32; 6];
        if libc::syscall(libc::SYS_capget, header.as_ptr(), now.as_mut_ptr()) < 0 {
            return -1;
        }
        let sets = [now[0] & low, now[1] & low, 0, now[3] & high, now[4] & high, 0];
        libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) as libc::c_int
    }
}
