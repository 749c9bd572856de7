//! The power switch of each host: what a program on it may ask of its machine.
//!
//! `RUN/power/HOST/request` is a pipe that takes lines: `stop SECONDS`, `restart SECONDS`, `abort`. A host that is to go down first tells its
//! processes that want to know ([`super::ProcessSpec::power_ms`]) by SIGPWR, and waits for their end. Then all that runs in its network
//! namespace is killed, pods too. After `restart` its processes start again; after `stop` they stay away until the next `up`.
//! `RUN/power/HOST/pending` is there while a request waits for its time.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use linux_sys::ns::NetNs;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::Pid;

use super::process::Processes;

/// The pipe for requests.
pub const REQUEST: &str = "request";
/// The file that is there while a request waits for its time.
pub const PENDING: &str = "pending";
/// A longer line is none of ours.
const LINE: usize = 64;
/// As long as Windows may wait: ten years.
const LONGEST: u64 = 315_360_000;

/// What a host is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Off { after: Duration, restart: bool },
    Abort,
}

fn parse(line: &str) -> Option<Asked> {
    let (word, seconds) = line.split_once(' ').map_or((line, None), |(word, rest)| (word, Some(rest)));
    match (word, seconds) {
        ("abort", None) => Some(Asked::Abort),
        ("stop" | "restart", Some(seconds)) => {
            let seconds = seconds.parse::<u64>().ok().filter(|seconds| *seconds <= LONGEST)?;
            Some(Asked::Off { after: Duration::from_secs(seconds), restart: word == "restart" })
        }
        _ => None,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    On,
    /// It goes down at that time.
    Pending {
        at: Instant,
        restart: bool,
    },
    /// Its processes were told, and have until then.
    Ending {
        until: Instant,
        restart: bool,
    },
    Off,
}

impl State {
    /// A machine that goes down already takes no request.
    fn on(self, asked: Asked, now: Instant) -> Self {
        match (self, asked) {
            (Self::On, Asked::Off { after, restart }) => Self::Pending { at: now + after, restart },
            (Self::Pending { .. }, Asked::Abort) => Self::On,
            (other, _) => other,
        }
    }

    fn timer(self) -> Option<Instant> {
        match self {
            Self::Pending { at, .. } => Some(at),
            Self::Ending { until, .. } => Some(until),
            Self::On | Self::Off => None,
        }
    }
}

struct Switch {
    dir: PathBuf,
    requests: File,
    unread: Vec<u8>,
    namespace: NetNs,
    state: State,
}

/// The switches of all hosts.
pub(super) struct Power(BTreeMap<String, Switch>);

impl Power {
    /// Makes the directories and pipes in RUN.
    pub(super) fn make(run: &Path, hosts: &BTreeMap<String, NetNs>) -> io::Result<Self> {
        let make = |(host, namespace): (&String, &NetNs)| -> io::Result<(String, Switch)> {
            let dir = run.join("power").join(host);
            fs::create_dir_all(&dir)?;
            let path = dir.join(REQUEST);
            nix::unistd::mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR)?;
            // Open for writing too, so that it never ends.
            let requests = File::options().read(true).write(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
            Ok((host.clone(), Switch { dir, requests, unread: Vec::new(), namespace: namespace.clone(), state: State::On }))
        };
        hosts.iter().map(make).collect::<io::Result<_>>().map(Self)
    }

    /// Descriptors that become readable when a host is asked something.
    pub(super) fn requests(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.values().map(|switch| switch.requests.as_fd())
    }

    /// When [`Self::advance`] is to be called next.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        self.0.values().filter_map(|switch| switch.state.timer()).min()
    }

    /// Takes requests, and does what is due.
    pub(super) fn advance(&mut self, processes: &mut Processes, now: Instant) {
        for (host, switch) in &mut self.0 {
            for asked in switch.read() {
                let before = switch.state;
                switch.state = before.on(asked, now);
                if switch.state != before {
                    eprintln!("lab init: {host} is asked by a program on it: {asked:?}");
                    switch.mark();
                }
            }
            match switch.state {
                State::Pending { at, restart } if at <= now => {
                    eprintln!("lab init: {host} goes down{}", if restart { ", and starts again" } else { "" });
                    processes.hold(host);
                    switch.state = State::Ending { until: now + processes.power_down(Some(host)), restart };
                }
                State::Ending { until, restart } if until <= now || !processes.any_powering_down(Some(host)) => {
                    switch.kill_all();
                    if restart {
                        processes.release(host);
                    }
                    switch.state = if restart { State::On } else { State::Off };
                    switch.mark();
                }
                _ => {}
            }
        }
    }
}

impl Switch {
    /// What has been asked since the last time.
    fn read(&mut self) -> Vec<Asked> {
        let mut buffer = [0; 512];
        let mut asked = Vec::new();
        let Ok(length @ 1..) = self.requests.read(&mut buffer) else { return asked };
        for byte in &buffer[..length] {
            if *byte == b'\n' {
                asked.extend(std::str::from_utf8(&self.unread).ok().and_then(parse));
                self.unread.clear();
            } else if self.unread.len() < LINE {
                self.unread.push(*byte);
            }
        }
        asked
    }

    /// Shows programs on the host whether a request is pending.
    fn mark(&self) {
        let path = self.dir.join(PENDING);
        let is_pending = matches!(self.state, State::Pending { .. } | State::Ending { .. });
        let _ = if is_pending { fs::write(path, "") } else { fs::remove_file(path) };
    }

    /// Kills all that runs on the host. With a sandbox's first process end those in the namespaces below it.
    fn kill_all(&self) {
        let Ok(own) = nix::sys::stat::fstat(&self.namespace) else { return };
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
            let is_there = fs::metadata(entry.path().join("ns/net")).is_ok_and(|net| (net.dev(), net.ino()) == (own.st_dev, own.st_ino));
            if pid > 1 && is_there {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_lines() {
        let off = |seconds, restart| Some(Asked::Off { after: Duration::from_secs(seconds), restart });
        for (line, asked) in [
            ("restart 60", off(60, true)),
            ("stop 0", off(0, false)),
            ("abort", Some(Asked::Abort)),
            ("abort 5", None),
            ("stop", None),
            ("stop -1", None),
            ("stop 315360001", None),
            ("restart 1 2", None),
            ("", None),
        ] {
            assert_eq!(parse(line), asked, "{line:?}");
        }
    }

    #[test]
    fn a_request_holds_until_it_is_aborted_or_due() {
        let now = Instant::now();
        let restart = Asked::Off { after: Duration::from_secs(60), restart: true };
        let pending = State::On.on(restart, now);
        assert_eq!(
            (pending, pending.timer()),
            (State::Pending { at: now + Duration::from_secs(60), restart: true }, Some(now + Duration::from_secs(60)))
        );
        assert_eq!(pending.on(Asked::Off { after: Duration::ZERO, restart: false }, now), pending, "the first one holds");
        assert_eq!(pending.on(Asked::Abort, now), State::On);
        let ending = State::Ending { until: now, restart: true };
        assert_eq!((ending.on(Asked::Abort, now), State::Off.on(restart, now), State::On.on(Asked::Abort, now)), (ending, State::Off, State::On));
    }
}
