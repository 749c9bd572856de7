//! The way out of the LAN, where the user allows it: pasta (package `passt`), attached to `gw` from the real host.
//!
//! pasta makes link [`LINK`] in `gw` and carries what leaves by it as the user's own connections; nothing of the real host's network
//! changes. `gw` masquerades. Addresses of the real host's loopback are out of reach (`--no-map-gw`).
//!
//! A keeper between supervisor and pasta ends pasta when the supervisor is gone, however it ended: pasta itself outlives a signal at
//! its parent's death, since it changes its credentials.

use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use linux_sys::fdpass;
use linux_sys::signal::Signal;
use linux_sys::spawn::{Child, Spawn, Stdio};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::dir::Dirs;
use crate::error::LabError;

/// The link in `gw`.
pub const LINK: &str = "outside0";
/// Questions to this address go to the real host's resolver.
pub const DNS: Ipv4Addr = Ipv4Addr::new(169, 254, 64, 3);
const ADDRESS: &str = "169.254.64.2";
const ROUTER: &str = "169.254.64.1";
const PREFIX: &str = "24";
/// As on the LAN.
const MTU: &str = "1500";

/// The number by which the keeper finds the pipe whose end is the supervisor's.
const PIPE: i32 = 3;
/// The number by which it keeps the lock, and does not use it.
const KEPT_LOCK: i32 = 4;
/// How long pasta has to be ready.
const READY: Duration = Duration::from_secs(5);
/// How long after its end pasta is started again.
const REST: Duration = Duration::from_secs(1);
/// How long the keeper has to end.
const STOP: Duration = Duration::from_millis(500);

/// What is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// pasta, from [`find`].
    pub pasta: PathBuf,
    /// Program and arguments that call [`keeper`]; its own arguments are added.
    pub keeper: Vec<String>,
}

/// Looks for pasta in the directories of `path`, and whether it may be used here.
///
/// # Errors
/// [`LabError::Outside`] with the package to install, or the device to open.
pub fn find(path: &std::ffi::OsStr) -> Result<PathBuf, LabError> {
    let found = std::env::split_paths(path).map(|dir| dir.join("pasta")).find(|file| file.is_file());
    let Some(pasta) = found else {
        let text = "pasta is not installed: install package passt (`sudo apt-get install passt`), or leave --outside out";
        return Err(LabError::Outside(text.into()));
    };
    match File::options().read(true).write(true).open("/dev/net/tun") {
        Ok(_) => Ok(pasta),
        Err(e) => Err(LabError::Outside(format!(
            "/dev/net/tun cannot be opened ({e}): let users open it (`sudo modprobe tun; sudo chmod a+rw /dev/net/tun`), or leave --outside out"
        ))),
    }
}

/// A running way out; it ends with the value.
#[derive(Debug)]
pub(crate) struct Outside {
    pipe: Option<OwnedFd>,
    keeper: Child,
    /// A directory for pasta alone.
    own: Option<PathBuf>,
}

impl Outside {
    /// Starts pasta for the namespace that is descriptor `router` of `init`; returns when it is ready. (Of init's: once inside the
    /// lab, pasta may look at processes of the lab alone.)
    ///
    /// The keeper has DIR's `lock` too, which is free only when pasta has ended.
    pub fn start(settings: &Settings, dirs: &Dirs, init: u32, router: i32, lock: Option<OwnedFd>) -> Result<Self, LabError> {
        let log = dirs.log(None, "outside");
        let own = own_dir(dirs)?;
        let pid_file = own.as_ref().unwrap_or(&dirs.run).join("pasta.pid");
        let failed = |e: io::Error| LabError::Outside(format!("pasta cannot be started: {e}"));
        let Some((program, args)) = settings.keeper.split_first() else {
            return Err(LabError::Outside("no program keeps pasta".into()));
        };
        let (theirs, ours) = io::pipe().map_err(failed)?;
        let mut spawn = Spawn::new(program).args(args);
        if let Some(lock) = lock {
            spawn = spawn.keep_fd(lock, KEPT_LOCK);
        }
        let keeper = spawn
            .arg(&settings.pasta)
            .arg(format!("/proc/{init}/ns/user"))
            .arg(router_namespace(init, router).map_err(failed)?)
            .arg(&pid_file)
            .arg(&log)
            .stdin(Stdio::Null)
            .stdout(Stdio::Null)
            .stderr(Stdio::Null)
            .keep_fd(theirs.into(), PIPE)
            .cwd("/")
            .new_session()
            .spawn()
            .map_err(failed)?;
        let outside = Self { pipe: Some(ours.into()), keeper, own };
        let end = Instant::now() + READY;
        // Bounded: only while starting.
        while fs::read(&pid_file).map_or(true, |text| text.is_empty()) {
            if outside.keeper.try_wait().map_err(failed)?.is_some() || Instant::now() > end {
                return Err(LabError::Outside(format!("pasta did not start: {}; see {}", last_message(&log), log.display())));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(outside)
    }
}

/// By what name pasta finds the router's namespace, once it is in the lab's user namespace. There root's pasta has no power over files, and
/// so none over init's descriptors; but each thread's namespaces may be looked at.
fn router_namespace(init: u32, router: i32) -> io::Result<String> {
    if !linux_sys::spawn::is_machine_root()? {
        return Ok(format!("/proc/{init}/fd/{router}"));
    }
    let own = fs::read_link(format!("/proc/{init}/ns/net"))?;
    for thread in fs::read_dir(format!("/proc/{init}/task"))?.flatten() {
        let path = thread.path().join("ns/net");
        if fs::read_link(&path).is_ok_and(|namespace| namespace != own) {
            return Ok(path.display().to_string());
        }
    }
    Err(io::Error::other("no thread of the cluster's first process is in the router's namespace"))
}

impl Drop for Outside {
    fn drop(&mut self) {
        self.pipe = None;
        if !self.keeper.pidfd().wait_end(STOP).unwrap_or(true) {
            let _ = self.keeper.kill(Signal::SIGKILL);
        }
        let _ = self.keeper.wait();
        if let Some(own) = &self.own {
            let _ = fs::remove_dir_all(own);
        }
    }
}

/// Where root's pasta leaves its number, beside RUN: that belongs to users whose files pasta, once in their namespace, may not touch.
fn own_dir(dirs: &Dirs) -> Result<Option<PathBuf>, LabError> {
    if !linux_sys::spawn::is_machine_root().map_err(LabError::file("read", "/proc/self/uid_map"))? {
        return Ok(None);
    }
    let base = dirs.run.parent().and_then(Path::parent).unwrap_or(Path::new("/tmp"));
    let dir = base.join(format!("mullion-pasta-{}", dirs.id()));
    match fs::DirBuilder::new().mode(0o700).create(&dir) {
        // Of a supervisor that was killed.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let meta = fs::symlink_metadata(&dir).map_err(LabError::file("look at", &dir))?;
            if !meta.is_dir() || meta.uid() != 0 || meta.mode() & 0o077 != 0 {
                return Err(LabError::Outside(format!("{} is not this user's alone: remove it", dir.display())));
            }
            let _ = fs::remove_file(dir.join("pasta.pid"));
        }
        made => made.map_err(LabError::file("make", &dir))?,
    }
    Ok(Some(dir))
}

/// The last message of pasta without those about a missing system logger, which come with every line.
fn last_message(log: &Path) -> String {
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("Failed to send"));
    lines.next_back().unwrap_or("it printed nothing").to_owned()
}

/// The keeper: `PASTA USERNS NETNS PIDFILE LOG`. Call it first thing, before any thread exists.
pub fn keeper(args: impl IntoIterator<Item = String>) -> ExitCode {
    let args: Vec<String> = args.into_iter().collect();
    let [pasta, user, net, pid_file, log] = args.as_slice() else { return ExitCode::FAILURE };
    let Ok(supervisor) = fdpass::inherited(PIPE) else { return ExitCode::FAILURE };
    loop {
        let Ok(child) = launch(pasta, [user, net, pid_file], log) else { return ExitCode::FAILURE };
        if wait(&supervisor, Some(&child), PollTimeout::NONE) {
            let _ = child.kill(Signal::SIGKILL);
            let _ = child.wait();
            return ExitCode::SUCCESS;
        }
        let _ = child.wait();
        // Never ready: the supervisor says why.
        if fs::read(pid_file).map_or(true, |text| text.is_empty()) {
            return ExitCode::FAILURE;
        }
        if wait(&supervisor, None, PollTimeout::try_from(REST).unwrap_or(PollTimeout::ZERO)) {
            return ExitCode::SUCCESS;
        }
    }
}

/// Waits for the supervisor's end (true) or the child's, or for `limit`.
fn wait(supervisor: &OwnedFd, child: Option<&Child>, limit: PollTimeout) -> bool {
    loop {
        let mut fds = vec![PollFd::new(supervisor.as_fd(), PollFlags::POLLIN)];
        fds.extend(child.map(|child| PollFd::new(child.pidfd().as_fd(), PollFlags::POLLIN)));
        if poll(&mut fds, limit).is_ok() {
            return fds[0].any().unwrap_or(false);
        }
    }
}

fn launch(pasta: &str, [user, net, pid_file]: [&String; 3], log: &str) -> io::Result<Child> {
    let log = OwnedFd::from(File::options().create(true).append(true).open(log)?);
    let mut spawn = Spawn::new(pasta).args(["--foreground", "--quiet", "--ipv4-only", "--config-net", "--no-map-gw", "--no-dhcp", "--no-netns-quit"]);
    spawn = spawn.args(["--userns", user, "--netns", net, "--pid", pid_file, "--ns-ifname", LINK, "--address", ADDRESS, "--netmask", PREFIX]);
    spawn = spawn.args(["--gateway", ROUTER, "--mtu", MTU, "--dns-forward", &DNS.to_string()]);
    // Nothing outside reaches the lab, and nothing inside reaches the real host's loopback.
    spawn = spawn.args(["--tcp-ports", "none", "--udp-ports", "none", "--tcp-ns", "none", "--udp-ns", "none"]);
    if nix::unistd::geteuid().is_root() {
        // It would become `nobody`, which may not enter the lab.
        spawn = spawn.args(["--runas", "0:0"]);
    }
    spawn.stdin(Stdio::Null).stdout(Stdio::Fd(log.try_clone()?)).stderr(Stdio::Fd(log)).cwd("/").spawn()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_pasta_is_named_with_its_package() {
        let error = find("/nonexistent:/also-not".as_ref()).unwrap_err();
        assert!(error.to_string().contains("install package passt"), "{error}");
        assert!(matches!(error, LabError::Outside(_)));
    }

    #[test]
    fn pasta_failure_reports_its_last_message() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "No external routable interface for IPv4\nFailed to send 40 bytes to syslog\n\n").unwrap();
        assert_eq!(last_message(file.path()), "No external routable interface for IPv4");
        assert_eq!(last_message(Path::new("/nonexistent")), "it printed nothing");
    }
}
