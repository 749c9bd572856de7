//! Stage 1: enters the pod's namespaces and starts stage 2; and how the runtime starts it.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use nix::sched::{CloneFlags, setns, unshare};

use super::{ShimSpec, read_json, report};

/// A shim that is ready for requests.
#[derive(Debug)]
pub(crate) struct Launched {
    /// Its process id as the runtime sees it.
    pub pid: i32,
}

/// Starts a shim for the sandbox directory `dir`, which holds `shim.json`, and waits until it listens.
///
/// # Errors
/// With the last line of the shim's log.
pub(crate) async fn start(dir: &Path) -> Result<Launched> {
    let log = dir.join("shim.log");
    let stderr = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut child = tokio::process::Command::new("/proc/self/exe")
        .arg0("mullion")
        .args(["shim", "launch"])
        .arg(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn()
        .context("cannot start the sandbox's shim")?;
    let mut output = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        // Ends when `launch` and `serve` have both let go of it.
        tokio::io::AsyncReadExt::read_to_string(&mut stdout, &mut output).await.context("cannot read from the sandbox's shim")?;
    }
    child.wait().await.context("cannot wait for the sandbox's shim")?;
    let pid = output.lines().find_map(|line| line.strip_prefix("pid ")).and_then(|pid| pid.parse().ok());
    match pid {
        Some(pid) if output.lines().any(|line| line == "ready") => Ok(Launched { pid }),
        _ => {
            let reason = std::fs::read_to_string(&log).unwrap_or_default();
            let reason = reason.lines().last().unwrap_or("it printed nothing");
            bail!("the sandbox's shim did not start: {reason}")
        }
    }
}

/// Stage 1.
pub(super) fn main(dir: &Path) -> Result<()> {
    let spec: ShimSpec = read_json(&dir.join("shim.json"))?;
    nix::unistd::setsid().context("cannot begin a session")?;
    if let Some(path) = &spec.netns {
        let name = || match spec.os.is_windows() {
            true => format!("the pod's compartment (HNS namespace {})", path.file_name().unwrap_or_default().to_string_lossy()),
            false => format!("network namespace {}", path.display()),
        };
        let netns = File::open(path).with_context(|| format!("cannot open {}", name()))?;
        setns(netns, CloneFlags::CLONE_NEWNET).with_context(|| format!("cannot enter {}", name()))?;
    }
    let mut flags = CloneFlags::CLONE_NEWPID;
    if !spec.host_ipc {
        flags |= CloneFlags::CLONE_NEWIPC;
    }
    if spec.hostname.is_some() {
        flags |= CloneFlags::CLONE_NEWUTS;
    }
    unshare(flags).context("cannot make the sandbox's namespaces")?;
    if let Some(hostname) = &spec.hostname {
        nix::unistd::sethostname(hostname).with_context(|| format!("cannot set the host name {hostname:?}"))?;
    }
    for (name, value) in &spec.sysctls {
        // The runtime has looked whether it is one of the namespaces that were just entered.
        linux_sys::sysctl::set(name, value).context("cannot make the sandbox's kernel settings")?;
    }
    let (program, home) = protect_program(dir)?;
    let mut command = Command::new(program);
    command.arg0("mullion").args(["shim", "serve"]).arg(dir).env_clear();
    report::hand_down(&mut command, HOME, &home)?;
    let child = command.spawn().context("cannot start the sandbox's first process")?;
    println!("pid {}", child.id());
    Ok(())
}

/// Name of the variable with the descriptor of the node's mount namespace.
const HOME: &str = "MULLION_SHIM_HOME";

/// Mounts this program read-only in a private mount namespace, and returns its path there and the way back.
///
/// Processes in containers can reach the file of a program that runs beside them (`/proc/PID/exe`), and so far as users go
/// it may be theirs to write: it belongs to the user who started the lab. Through this mount it cannot be written.
fn protect_program(dir: &Path) -> Result<(PathBuf, OwnedFd)> {
    let home = OwnedFd::from(File::open("/proc/self/ns/mnt").context("cannot open the mount namespace")?);
    let program = std::fs::read_link(SELF).context("cannot find this program")?;
    unshare(CloneFlags::CLONE_NEWNS).context("cannot make a mount namespace")?;
    linux_sys::mount::make_rprivate()?;
    let place = dir.join(PROGRAM);
    let same = |path: &Path| std::fs::metadata(path).map(|file| (file.dev(), file.ino()));
    let protected = if same(&program).ok() == same(Path::new(SELF)).ok() {
        File::create(&place).with_context(|| format!("cannot make {}", place.display()))?;
        linux_sys::mount::bind_ro(&program, &place)
    } else {
        // The file was replaced while this program runs, and what has no name cannot be mounted.
        std::fs::copy(SELF, &place).with_context(|| format!("cannot copy this program to {}", place.display()))?;
        linux_sys::mount::bind_ro(&place, &place)
    };
    protected.context("cannot protect this program from containers")?;
    Ok((place, home))
}

const SELF: &str = "/proc/self/exe";

/// Where this program is mounted, in the sandbox's directory.
const PROGRAM: &str = "program";

/// What comes of it in the next stage: back to the node's mounts, on a program that cannot be written.
pub(super) fn return_home(dir: &Path) -> Result<()> {
    let home = report::inherited(HOME)?;
    setns(home, CloneFlags::CLONE_NEWNS).context("cannot return to the node's mount namespace")?;
    // Held by this process from now on; a name is not needed any more.
    std::fs::remove_file(dir.join(PROGRAM)).context("cannot remove the program's place")
}
