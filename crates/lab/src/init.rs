//! Init of the lab: pid 1 of its pid namespace. Makes the LAN, then keeps processes running.
//!
//! Single-threaded (but for a thread that only marks a namespace): one loop waits for signals, the supervisor, readiness and timers. Its life hangs
//! on the supervisor's socket: when that ends, for whatever reason, init ends everything.

mod kill;
mod network;
mod power;
mod process;

use std::fs;
use std::io::{self, Read};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use linux_sys::ns::NetNs;
use linux_sys::signal::{Signal, Signals, reap};
use linux_sys::{fdpass, mount, ns};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::dir::Dirs;
use crate::lan;
use crate::protocol::{Command, Event, InitConfig};
use power::Power;
use process::Processes;

/// The number under which init finds its socket to the supervisor.
pub(crate) const SOCKET: i32 = 3;
/// How long processes have to end after SIGTERM. A stop as a whole is to take less than a second.
const STOP: Duration = Duration::from_millis(600);

/// Runs init. The process was started by [`crate::supervisor::start`] with the path of its
/// configuration; call this first thing, before any thread exists.
pub fn main(config: &Path) -> ExitCode {
    let socket = match fdpass::inherited(SOCKET) {
        Ok(socket) => socket,
        Err(e) => {
            eprintln!("lab init is started by `mullion up` only: {e}");
            return ExitCode::FAILURE;
        }
    };
    let reason = match run(config, &socket) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(e) => e,
    };
    eprintln!("lab init: {reason}");
    let event = match reason {
        Failure::NoNftables(reason) => Event::NoNftables { reason },
        Failure::Io(reason) => Event::Failed { reason },
    };
    let _ = send(&socket, &event);
    ExitCode::FAILURE
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("nf_tables: {0}")]
    NoNftables(String),
    #[error("{0}")]
    Io(String),
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        Self::Io(e.to_string())
    }
}

fn send(socket: &OwnedFd, event: &Event) -> io::Result<()> {
    fdpass::send(socket, &serde_json::to_vec(event)?, &[])
}

fn run(config: &Path, socket: &OwnedFd) -> Result<(), Failure> {
    let signals = Signals::catch(&[Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT])?;
    let config: InitConfig = serde_json::from_slice(&fs::read(config)?).map_err(io::Error::from)?;
    // The descriptors for the processes come with the first message.
    let (length, fds) = fdpass::receive(socket, &mut [0; 16])?;
    if length == 0 || fds.len() != config.fds.len() {
        return Err(Failure::Io(format!("{} descriptors came, {} were announced", fds.len(), config.fds.len())));
    }
    let start = Instant::now();
    ns::inherit_for_tests()?;
    ns::reset_switches()?;
    try_nftables()?;
    let hosts = network::build(&config)?;
    let router_fd = hosts.get(lan::ROUTER).map_or(-1, |ns| ns.as_fd().as_raw_fd());
    if let (true, Some(router)) = (config.router_thread, hosts.get(lan::ROUTER)) {
        stay_in(router.clone())?;
    }
    send(socket, &Event::NetworkReady { micros: start.elapsed().as_micros() as u64, router_fd })?;
    let fds = config.fds.iter().cloned().zip(fds).collect();
    let mut power = Power::make(&Dirs { dir: config.dir, run: config.run.clone() }, &hosts)?;
    // Closed by the process's end alone: DIR's lock is among the descriptors, and to close all takes a while, in which this process would
    // still be there with the lock free.
    let mut processes = ManuallyDrop::new(Processes::new(config.processes, hosts, fds, Instant::now()));
    let ending = watch(socket, &signals, &mut processes, &mut power);
    end(socket, &signals, &mut processes, &config.run, ending);
    Ok(())
}

/// Leaves a thread in a namespace, where it does nothing.
fn stay_in(namespace: NetNs) -> Result<(), Failure> {
    let (entered, is_entered) = std::sync::mpsc::channel();
    let stay = move || -> io::Result<()> {
        namespace.run(|| {
            let _ = entered.send(());
            loop {
                std::thread::park();
            }
        })
    };
    std::thread::Builder::new().name("router".into()).spawn(stay)?;
    is_entered.recv().map_err(|_| Failure::Io("cannot enter the router's network namespace".into()))
}

/// Uses nf_tables, with the NAT that services need, in init's own network namespace.
fn try_nftables() -> Result<(), Failure> {
    let table = nft::Table::new(nft::Family::Ip, "probe");
    // A batch, not the engine: one transaction makes and deletes the table, so that the probe leaves nothing.
    let mut batch = nft::Batch::new();
    batch.add_table(&table).add_chain(&table, &nft::Chain::base("nat", nft::ChainType::Nat, nft::Hook::Prerouting, -100));
    batch.add_set(&table, &nft::SetSpec::map("map", [nft::DataType::Ipv4Addr], [nft::DataType::Ipv4Addr]));
    batch.del_table(&table);
    let tried = nft::Nft::open().and_then(|nft| nft.commit(&batch));
    tried.map_err(|e| {
        let source = std::error::Error::source(&e).map(|s| format!(": {s}")).unwrap_or_default();
        Failure::NoNftables(format!("{e}{source}"))
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// Asked for.
    Orderly,
    /// The supervisor is gone.
    Orphaned,
}

/// Keeps processes running until the end is asked for, or the supervisor is gone.
fn watch(socket: &OwnedFd, signals: &Signals, processes: &mut Processes, power: &mut Power) -> Ending {
    let mut buffer = [0; 256];
    loop {
        // What is ready now lets others start: first look, then start.
        power.advance(processes, Instant::now());
        let mut events = processes.take_notices();
        events.extend(processes.advance(Instant::now()));
        if events.iter().any(|event| send(socket, event).is_err()) {
            return Ending::Orphaned;
        }
        let (from_supervisor, from_signals) = {
            let mut fds = vec![PollFd::new(socket.as_fd(), PollFlags::POLLIN), PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
            fds.extend(processes.notices().map(|fd: BorrowedFd<'_>| PollFd::new(fd, PollFlags::POLLIN)));
            fds.extend(power.requests().map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
            let limit = processes
                .next_timer()
                .into_iter()
                .chain(power.next_timer())
                .min()
                .map(|at| at.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
            let limit = limit.map_or(PollTimeout::NONE, |t| PollTimeout::try_from(t).unwrap_or(PollTimeout::MAX));
            if poll(&mut fds, limit).is_err() {
                continue; // interrupted
            }
            (fds[0].any().unwrap_or(false), fds[1].any().unwrap_or(false))
        };
        while let (true, Ok(Some(signal))) = (from_signals, signals.next()) {
            if signal != Signal::SIGCHLD {
                return Ending::Orderly;
            }
        }
        let now = Instant::now();
        for (pid, status) in reap() {
            if let Some(event) = processes.exited(pid, status, now)
                && send(socket, &event).is_err()
            {
                return Ending::Orphaned;
            }
        }
        if from_supervisor {
            match fdpass::receive(socket, &mut buffer) {
                Ok((length, _)) if length > 0 => match serde_json::from_slice(&buffer[..length]) {
                    Ok(Command::Stop) => return Ending::Orderly,
                    Err(e) => eprintln!("lab init: unknown command from the supervisor: {e}"),
                },
                _ => return Ending::Orphaned,
            }
        }
    }
}

/// Ends everything: in order when there is time for it, then for certain.
fn end(socket: &OwnedFd, signals: &Signals, processes: &mut Processes, run: &Path, mut ending: Ending) {
    if ending == Ending::Orderly {
        // What they need for that still runs: the control plane, runtimes.
        let limit = processes.power_down(None);
        ending = wait_end(socket, signals, processes, limit, |processes| processes.any_powering_down(None));
        processes.terminate();
        if ending == Ending::Orderly {
            ending = wait_end(socket, signals, processes, STOP, Processes::any_running);
        }
    }
    // All that are left: pods, shims, processes that ignored the signal.
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(-1), Signal::SIGKILL);
    // This process holds DIR's lock, and its end frees it: no other process may be left by then.
    while !matches!(nix::sys::wait::wait(), Err(nix::Error::ECHILD)) {}
    let _ = mount::umount(&run.join("ns"));
    if ending == Ending::Orphaned {
        let _ = fs::remove_dir_all(run);
    }
}

/// Waits until none of these runs, at most so long, and no longer than the supervisor is there.
fn wait_end(socket: &OwnedFd, signals: &Signals, processes: &mut Processes, limit: Duration, any: impl Fn(&Processes) -> bool) -> Ending {
    let deadline = Instant::now() + limit;
    while any(processes) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN), PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX));
        if fds[1].any().unwrap_or(false) && !matches!(fdpass::receive(socket, &mut [0; 256]), Ok((1.., _))) {
            return Ending::Orphaned;
        }
        while let Ok(Some(_)) = signals.next() {}
        for (pid, status) in reap() {
            processes.exited(pid, status, Instant::now());
        }
    }
    Ending::Orderly
}

/// What a process wrote to its readiness pipe: a line once it is whole.
fn read_line(pipe: &mut fs::File, line: &mut Vec<u8>) -> Option<String> {
    let mut buffer = [0; 512];
    match pipe.read(&mut buffer) {
        Ok(0) => None,
        Ok(n) => {
            line.extend_from_slice(&buffer[..n]);
            let end = line.iter().position(|b| *b == b'\n')?;
            Some(String::from_utf8_lossy(&line[..end]).into_owned())
        }
        Err(_) => None,
    }
}
