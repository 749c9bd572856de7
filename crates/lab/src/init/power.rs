//! The power switch of each host: what a program on it may ask of its machine.
//!
//! `RUN/power/HOST/request` is a pipe that takes lines: `stop SECONDS`, `restart SECONDS`, `abort`. A host that is to go down first tells its
//! processes that want to know ([`super::ProcessSpec::power_ms`]) by SIGPWR, and waits for their end. Then all that runs on it is killed, pods
//! too ([`super::kill`]). After `restart` its processes start again; after `stop` they stay away until the next `up`.
//! `RUN/power/HOST/pending` is there while a request waits for its time.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use linux_sys::ns::NetNs;
use nix::sys::stat::Mode;

use super::kill::kill_all;
use super::process::Processes;
use crate::dir::Dirs;

/// The pipe for requests.
pub const REQUEST: &str = "request";
/// The file that is there while a request waits for its time.
pub const PENDING: &str = "pending";
/// A longer line is none of ours.
const LINE: usize = 64;
/// Lines of a host that are taken within [`WINDOW`], and reads of its pipe: a program that writes for ever costs no more, and no more lines of
/// the log.
const MOST: usize = 8;
const WINDOW: Duration = Duration::from_secs(1);
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

/// What was written to the pipe, as lines.
#[derive(Debug, Default)]
struct Lines {
    unread: Vec<u8>,
    is_overlong: bool,
    whole: VecDeque<String>,
}

impl Lines {
    fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                b'\n' => {
                    let line = std::mem::take(&mut self.unread);
                    if !std::mem::take(&mut self.is_overlong) && !line.is_empty() {
                        self.whole.extend(String::from_utf8(line));
                    }
                }
                _ if self.unread.len() < LINE => self.unread.push(*byte),
                _ => self.is_overlong = true,
            }
        }
    }
}

struct Switch {
    dir: PathBuf,
    /// With the state of its sandboxes.
    host_dir: PathBuf,
    requests: File,
    lines: Lines,
    /// Since when `taken` counts.
    window: Instant,
    taken: usize,
    namespace: NetNs,
    state: State,
}

/// The switches of all hosts.
pub(super) struct Power(BTreeMap<String, Switch>);

impl Power {
    /// Makes the directories and pipes in RUN.
    pub(super) fn make(dirs: &Dirs, hosts: &BTreeMap<String, NetNs>) -> io::Result<Self> {
        let make = |(host, namespace): (&String, &NetNs)| -> io::Result<(String, Switch)> {
            let dir = dirs.power_dir(host);
            fs::create_dir_all(&dir)?;
            let path = dir.join(REQUEST);
            nix::unistd::mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR)?;
            // Open for writing too, so that it never ends.
            let requests = File::options().read(true).write(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
            Ok((host.clone(), Switch::new(dir, dirs.host(host), requests, namespace.clone())))
        };
        hosts.iter().map(make).collect::<io::Result<_>>().map(Self)
    }

    /// Descriptors that become readable when a host is asked something, but for those of hosts that were asked too often.
    pub(super) fn requests(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.values().filter(|switch| switch.resumes().is_none()).map(|switch| switch.requests.as_fd())
    }

    /// When [`Self::advance`] is to be called next.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        self.0.values().flat_map(|switch| [switch.state.timer(), switch.resumes()]).flatten().min()
    }

    /// Takes requests, and does what is due.
    pub(super) fn advance(&mut self, processes: &mut Processes, now: Instant) {
        for (host, switch) in &mut self.0 {
            while let Some(asked) = switch.next(now) {
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
                    kill_all(&switch.namespace, &switch.host_dir);
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
    fn new(dir: PathBuf, host_dir: PathBuf, requests: File, namespace: NetNs) -> Self {
        Self { dir, host_dir, requests, lines: Lines::default(), window: Instant::now(), taken: 0, namespace, state: State::On }
    }

    /// What has been asked next.
    fn next(&mut self, now: Instant) -> Option<Asked> {
        if self.window + WINDOW <= now {
            (self.window, self.taken) = (now, 0);
        }
        while self.taken < MOST {
            if let Some(line) = self.lines.whole.pop_front() {
                self.taken += 1;
                match parse(&line) {
                    None => continue,
                    asked => return asked,
                }
            }
            let mut buffer = [0; LINE];
            let Ok(length @ 1..) = self.requests.read(&mut buffer) else { return None };
            self.taken += 1;
            self.lines.push(&buffer[..length]);
        }
        None
    }

    /// When requests are taken again, of a host that was asked too often.
    fn resumes(&self) -> Option<Instant> {
        (self.taken >= MOST).then(|| self.window + WINDOW)
    }

    /// Shows programs on the host whether a request is pending.
    fn mark(&self) {
        let path = self.dir.join(PENDING);
        let is_pending = matches!(self.state, State::Pending { .. } | State::Ending { .. });
        let _ = if is_pending { fs::write(path, "") } else { fs::remove_file(path) };
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

    #[test]
    fn a_line_that_is_too_long_is_no_request() {
        let mut lines = Lines::default();
        lines.push(b"\nstop 5\nabo");
        lines.push(b"rt\n");
        assert_eq!(Vec::from(std::mem::take(&mut lines.whole)), ["stop 5", "abort"]);
        // Cut off it would be one.
        lines.push(format!("stop {}9\n{}\nabort\n", "0".repeat(59), "x".repeat(64)).as_bytes());
        assert_eq!(Vec::from(lines.whole), ["x".repeat(64).as_str(), "abort"]);
    }

    #[test]
    fn requests_are_taken_so_many_a_second() {
        let (read, mut write) = io::pipe().unwrap();
        let mut requests = File::from(std::os::fd::OwnedFd::from(read));
        nix::fcntl::fcntl(&requests, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
        for _ in 0..100 {
            io::Write::write_all(&mut write, b"abort\n").unwrap();
        }
        let here = NetNs::current().unwrap();
        let mut switch = Switch::new(PathBuf::new(), PathBuf::new(), requests.try_clone().unwrap(), here);
        let start = switch.window;
        let mut taken = |at: Duration| {
            let count = std::iter::from_fn(|| switch.next(start + at)).count();
            (count, switch.resumes().map(|until| until - start))
        };
        assert_eq!(taken(Duration::ZERO), (MOST - 1, Some(WINDOW)));
        assert_eq!(taken(WINDOW / 2), (0, Some(WINDOW)));
        assert_eq!(taken(WINDOW), (MOST - 1, Some(2 * WINDOW)), "none is lost");
        let mut rest = Vec::new();
        requests.read_to_end(&mut rest).unwrap_err();
        assert_eq!(rest.len(), 600 - 2 * LINE, "the pipe holds what is not taken");
        assert_eq!(taken(2 * WINDOW), (MOST - 1, None));
    }

    #[test]
    fn programs_on_hosts_ask_as_hosts_are_asked() {
        assert_eq!((guest::tools::REQUEST, guest::tools::PENDING, guest::tools::LONGEST), (REQUEST, PENDING, LONGEST));
        let dirs = Dirs { dir: "/d".into(), run: "/r".into() };
        assert_eq!(dirs.power_dir("n1"), dirs.run.join(guest::tools::POWER).join("n1"));
    }
}
