//! The child's side: from clone to exec with system calls only.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::ptr;

use super::idmap::UserMaps;
use super::step::{Op, errno};
use crate::ns::NetNs;

/// Everything that the child needs, made before it exists.
#[derive(Debug)]
pub(super) struct Prepared {
    pub name: String,
    pub program: Executable,
    pub argv: Vec<CString>,
    pub env: Vec<CString>,
    pub fds: Vec<(OwnedFd, RawFd)>,
    pub namespaces: u64,
    pub users: Option<UserMaps>,
    pub net: Option<NetNs>,
    pub new_session: bool,
    pub death_signal: Option<libc::c_int>,
    pub steps: Vec<Op>,
}

#[derive(Debug)]
pub(super) enum Executable {
    Paths(Vec<CString>),
    File(OwnedFd),
    Nothing,
}

/// What the child was at when it failed: steps count from [`FIRST_STEP`].
pub(super) const WAIT: u32 = 0;
pub(super) const SESSION: u32 = 1;
pub(super) const NAMESPACE: u32 = 2;
pub(super) const DESCRIPTORS: u32 = 3;
pub(super) const EXEC: u32 = 4;
pub(super) const FIRST_STEP: u32 = 5;

/// Arrays of pointers for exec and room for moving descriptors, made before clone.
pub(super) struct Tables {
    argv: Vec<*const libc::c_char>,
    env: Vec<*const libc::c_char>,
    moved: Vec<RawFd>,
}

impl Tables {
    pub fn new(prepared: &Prepared) -> Self {
        let pointers = |texts: &[CString]| texts.iter().map(|t| t.as_ptr()).chain([ptr::null()]).collect();
        Self { argv: pointers(&prepared.argv), env: pointers(&prepared.env), moved: vec![-1; prepared.fds.len()] }
    }
}

/// Never returns: execs, or writes the failure to `report` and ends.
///
/// # Safety
/// To be called in a process just cloned, which shares no memory with its parent.
pub(super) unsafe fn run(prepared: &Prepared, tables: &mut Tables, go: RawFd, report: RawFd) -> ! {
    // SAFETY: we are that process; descriptors and memory were prepared by the parent.
    unsafe {
        let mut report = report;
        let (at, errno) = match attempt(prepared, tables, go, &mut report) {
            Ok(never) => match never {},
            Err(failure) => failure,
        };
        let mut message = [0u8; 8];
        message[..4].copy_from_slice(&at.to_ne_bytes());
        message[4..].copy_from_slice(&errno.to_ne_bytes());
        libc::write(report, message.as_ptr().cast(), message.len());
        libc::_exit(127)
    }
}

enum Never {}

fn check(at: u32, result: libc::c_int) -> Result<libc::c_int, (u32, i32)> {
    if result < 0 { Err((at, errno())) } else { Ok(result) }
}

/// # Safety
/// As [`run`].
unsafe fn attempt(prepared: &Prepared, tables: &mut Tables, go: RawFd, report: &mut RawFd) -> Result<Never, (u32, i32)> {
    // SAFETY: as above; each call gets plain numbers or pointers to prepared memory.
    unsafe {
        let mut byte = 0u8;
        // The parent closes its end, without a byte, when it could not map users.
        loop {
            match libc::read(go, (&raw mut byte).cast(), 1) {
                1 => break,
                -1 if errno() == libc::EINTR => {}
                _ => return Err((WAIT, libc::ECANCELED)),
            }
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        if prepared.users.as_ref().is_some_and(|users| !users.deny_groups) {
            // Groups of the machine would still open its files.
            check(SESSION, libc::syscall(libc::SYS_setgroups, 0, ptr::null::<libc::gid_t>()) as libc::c_int)?;
        }
        if prepared.users.is_some() {
            // Root inside, for any user outside: files that we make need an owner that exists there.
            check(SESSION, libc::syscall(libc::SYS_setresgid, 0, 0, 0) as libc::c_int)?;
            check(SESSION, libc::syscall(libc::SYS_setresuid, 0, 0, 0) as libc::c_int)?;
        }
        if prepared.new_session {
            check(SESSION, libc::setsid())?;
        }
        if let Some(signal) = prepared.death_signal {
            check(SESSION, libc::prctl(libc::PR_SET_PDEATHSIG, signal as libc::c_ulong, 0, 0, 0))?;
        }
        if let Some(net) = &prepared.net {
            check(NAMESPACE, libc::setns(net.as_fd().as_raw_fd(), libc::CLONE_NEWNET))?;
        }
        for (at, op) in (FIRST_STEP..).zip(&prepared.steps) {
            op.run().map_err(|errno| (at, errno))?;
        }
        place_descriptors(prepared, &mut tables.moved, report)?;
        Err((EXEC, exec(prepared, tables)))
    }
}

/// Moves each descriptor to its number; first out of the way, so that none overwrites another.
///
/// # Safety
/// As [`run`].
unsafe fn place_descriptors(prepared: &Prepared, moved: &mut [RawFd], report: &mut RawFd) -> Result<(), (u32, i32)> {
    let above = prepared.fds.iter().map(|(_, number)| *number).max().unwrap_or(2).max(2) + 1;
    // SAFETY: numbers only; the process is ours alone.
    unsafe {
        *report = check(DESCRIPTORS, libc::fcntl(*report, libc::F_DUPFD_CLOEXEC, above))?;
        for ((fd, _), to) in prepared.fds.iter().zip(moved.iter_mut()) {
            *to = check(DESCRIPTORS, libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, above))?;
        }
        // Whatever some library opened without the flag stays here.
        libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
        for ((_, number), from) in prepared.fds.iter().zip(moved.iter()) {
            check(DESCRIPTORS, libc::dup2(*from, *number))?;
        }
    }
    Ok(())
}

/// Returns the reason when nothing could be executed.
///
/// # Safety
/// As [`run`].
unsafe fn exec(prepared: &Prepared, tables: &Tables) -> i32 {
    let (argv, env) = (tables.argv.as_ptr(), tables.env.as_ptr());
    // SAFETY: both arrays end with a null pointer and point to strings that `prepared` owns.
    unsafe {
        match &prepared.program {
            Executable::Nothing => libc::_exit(0),
            Executable::File(fd) => {
                libc::syscall(libc::SYS_execveat, fd.as_raw_fd(), c"".as_ptr(), argv, env, libc::AT_EMPTY_PATH);
                errno()
            }
            Executable::Paths(paths) => {
                let mut reason = libc::ENOENT;
                for path in paths {
                    libc::execve(path.as_ptr(), argv, env);
                    // Go on past what is not there, as execvp(3) does, and remember a refusal.
                    match errno() {
                        libc::ENOENT | libc::ENOTDIR => {}
                        libc::EACCES => reason = libc::EACCES,
                        e => return e,
                    }
                }
                reason
            }
        }
    }
}
