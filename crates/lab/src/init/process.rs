//! Supervised processes: started, watched for readiness, restarted each alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use linux_sys::ns::NetNs;
use linux_sys::signal::Signal;
use linux_sys::spawn::{Child, Spawn, Stdio};

use super::read_line;
use crate::notify;
use crate::protocol::{Backoff, Event, ProcessSpec, Readiness};

/// How often a socket is tried until it answers.
const TRY_SOCKET: Duration = Duration::from_millis(5);
/// A log that is longer is put aside when its process starts.
const LOG: u64 = 16 << 20;

/// The state of one process.
enum State {
    /// It was not started yet, because others are not ready.
    Waiting,
    /// It runs.
    Running { child: Child, since: Instant, notice: Option<Notice> },
    /// It is started again at that time.
    Resting { until: Instant },
}

/// The pipe on which a process reports that it is ready, and what was read from it so far.
type Notice = (File, Vec<u8>);

struct Process {
    spec: ProcessSpec,
    state: State,
    ready: bool,
    /// How often it was started again without a steady run between.
    restarts: u32,
    /// Its host is down, or goes down: it is not started.
    held: bool,
}

pub(super) struct Processes {
    all: Vec<Process>,
    hosts: BTreeMap<String, NetNs>,
    fds: BTreeMap<String, OwnedFd>,
    /// Names of those that were ready once.
    were_ready: BTreeSet<String>,
    next_try: Instant,
}

impl Processes {
    pub fn new(specs: Vec<ProcessSpec>, hosts: BTreeMap<String, NetNs>, fds: BTreeMap<String, OwnedFd>, now: Instant) -> Self {
        let all = specs.into_iter().map(|spec| Process { spec, state: State::Waiting, ready: false, restarts: 0, held: false }).collect();
        Self { all, hosts, fds, were_ready: BTreeSet::new(), next_try: now }
    }

    /// Starts what is due and looks for sockets that answer; what happened is returned.
    pub fn advance(&mut self, now: Instant) -> Vec<Event> {
        let mut events = Vec::new();
        self.next_try = now + TRY_SOCKET;
        // One that becomes ready lets others start, in this very pass.
        loop {
            let before = events.len();
            for i in 0..self.all.len() {
                if self.all[i].is_due(now, &self.were_ready) {
                    events.extend(self.start(i, now));
                }
                if self.all[i].answers() {
                    events.push(self.mark_ready(i, String::new()));
                }
            }
            if events.len() == before {
                return events;
            }
        }
    }

    fn mark_ready(&mut self, i: usize, detail: String) -> Event {
        let process = &mut self.all[i];
        process.ready = true;
        self.were_ready.insert(process.spec.name.clone());
        Event::Ready { name: process.spec.name.clone(), detail }
    }

    fn start(&mut self, i: usize, now: Instant) -> Vec<Event> {
        let process = &mut self.all[i];
        let name = process.spec.name.clone();
        match launch(&process.spec, &self.hosts, &self.fds) {
            Ok((child, notice)) => {
                let mut events = vec![Event::Started { name, pid: child.pid() }];
                process.state = State::Running { child, since: now, notice };
                if process.spec.readiness == Readiness::Started {
                    events.push(self.mark_ready(i, String::new()));
                }
                events
            }
            Err(e) => vec![process.rest(now, Duration::ZERO, e.to_string())],
        }
    }

    /// A child has ended; `None` for orphans, which are no process of ours.
    pub fn exited(&mut self, pid: u32, status: ExitStatus, now: Instant) -> Option<Event> {
        let process = self.all.iter_mut().find(|p| matches!(&p.state, State::Running { child, .. } if child.pid() == pid))?;
        let State::Running { since, .. } = &process.state else { return None };
        let ran = now.saturating_duration_since(*since);
        process.ready = false;
        Some(process.rest(now, ran, describe(status)))
    }

    /// Descriptors that become readable when a process says that it is ready.
    pub fn notices(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.all.iter().filter_map(|p| match &p.state {
            State::Running { notice: Some((pipe, _)), .. } => Some(pipe.as_fd()),
            _ => None,
        })
    }

    /// Reads the readiness pipes of processes.
    pub fn take_notices(&mut self) -> Vec<Event> {
        let mut reports = Vec::new();
        for (i, process) in self.all.iter_mut().enumerate() {
            let State::Running { notice, .. } = &mut process.state else { continue };
            let Some((pipe, line)) = notice else { continue };
            if !is_readable(pipe) {
                continue;
            }
            let before = line.len();
            match read_line(pipe, line) {
                Some(detail) => {
                    *notice = None;
                    reports.push((i, detail));
                }
                // Closed without a report: the process will not become ready.
                None if line.len() == before => *notice = None,
                None => {}
            }
        }
        reports.into_iter().map(|(i, detail)| self.mark_ready(i, detail)).collect()
    }

    /// When [`Self::advance`] is to be called next.
    pub fn next_timer(&self) -> Option<Instant> {
        let due = self.all.iter().filter_map(|p| match (&p.state, &p.spec.readiness) {
            (State::Resting { until }, _) if !p.held => Some(*until),
            (State::Running { .. }, Readiness::Socket(_)) if !p.ready => Some(self.next_try),
            _ => None,
        });
        due.min()
    }

    pub fn any_running(&self) -> bool {
        self.all.iter().any(|p| matches!(p.state, State::Running { .. }))
    }

    /// Starts none of a host's until it is released.
    pub fn hold(&mut self, host: &str) {
        self.all.iter_mut().filter(|process| process.spec.host == host).for_each(|process| process.held = true);
    }

    /// Lets those of a host start again.
    pub fn release(&mut self, host: &str) {
        self.all.iter_mut().filter(|process| process.spec.host == host).for_each(|process| process.held = false);
    }

    /// Tells those that want to know that their host goes down (that host, or all). Returns how long that may take.
    pub fn power_down(&self, host: Option<&str>) -> Duration {
        let told = self.all.iter().filter(|process| process.is_on(host)).filter_map(|process| match &process.state {
            State::Running { child, .. } if process.spec.power_ms > 0 => child.kill(Signal::SIGPWR).ok().map(|()| process.spec.power_ms),
            _ => None,
        });
        Duration::from_millis(told.max().unwrap_or(0))
    }

    /// Whether one of those that were told still runs.
    pub fn any_powering_down(&self, host: Option<&str>) -> bool {
        self.all.iter().any(|p| p.spec.power_ms > 0 && p.is_on(host) && matches!(p.state, State::Running { .. }))
    }

    /// Asks all to end.
    pub fn terminate(&self) {
        for process in &self.all {
            if let State::Running { child, .. } = &process.state {
                let _ = child.kill(Signal::SIGTERM);
            }
        }
    }
}

impl Process {
    fn is_on(&self, host: Option<&str>) -> bool {
        host.is_none_or(|host| host == self.spec.host)
    }

    fn is_due(&self, now: Instant, ready: &BTreeSet<String>) -> bool {
        if self.held {
            return false;
        }
        match self.state {
            State::Waiting => self.spec.after.iter().all(|name| ready.contains(name)),
            State::Resting { until } => until <= now,
            State::Running { .. } => false,
        }
    }

    /// Whether its socket answers for the first time.
    fn answers(&self) -> bool {
        match (&self.state, &self.spec.readiness) {
            (State::Running { .. }, Readiness::Socket(path)) if !self.ready => UnixStream::connect(path).is_ok(),
            _ => false,
        }
    }

    fn rest(&mut self, now: Instant, ran: Duration, status: String) -> Event {
        let rest = next_rest(self.spec.restart, &mut self.restarts, ran);
        self.state = State::Resting { until: now + rest };
        Event::Exited { name: self.spec.name.clone(), status, restart_ms: rest.as_millis() as u64 }
    }
}

/// How long to wait before the next start, after a run of that length.
fn next_rest(policy: Backoff, restarts: &mut u32, ran: Duration) -> Duration {
    if ran >= Duration::from_millis(policy.steady_ms) {
        *restarts = 0;
    }
    let first = Duration::from_millis(policy.first_ms);
    let rest = backoff::exponential(first, Duration::from_millis(policy.most_ms).max(first), *restarts);
    *restarts = restarts.saturating_add(1);
    rest
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal().and_then(|n| Signal::try_from(n).ok())) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        _ => status.to_string(),
    }
}

fn is_readable(pipe: &File) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut fds = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|n| n > 0)
}

fn launch(spec: &ProcessSpec, hosts: &BTreeMap<String, NetNs>, fds: &BTreeMap<String, OwnedFd>) -> io::Result<(Child, Option<Notice>)> {
    let missing = |what: &str, name: &str| io::Error::new(io::ErrorKind::NotFound, format!("there is no {what} {name:?}"));
    let (program, args) = spec.argv.split_first().ok_or_else(|| missing("program in", &spec.name))?;
    let host = hosts.get(&spec.host).ok_or_else(|| missing("host", &spec.host))?;
    if let Readiness::Socket(path) = &spec.readiness {
        // One of an earlier run would not answer, but could be in the way.
        let _ = fs::remove_file(path);
    }
    let log = OwnedFd::from(open_log(&spec.log)?);
    let mut spawn =
        Spawn::new(program).args(args).enter_net(host).new_session().stdin(Stdio::Null).stdout(Stdio::Fd(log.try_clone()?)).stderr(Stdio::Fd(log));
    for (key, value) in &spec.env {
        spawn = spawn.env(key, value);
    }
    for (name, number) in &spec.fds {
        spawn = spawn.keep_fd(fds.get(name).ok_or_else(|| missing("descriptor", name))?.try_clone()?, *number);
    }
    let mut notice = None;
    if spec.readiness == Readiness::Notify {
        let (read, write) = io::pipe()?;
        spawn = spawn.keep_fd(write.into(), notify::NUMBER).env(notify::VARIABLE, notify::NUMBER.to_string());
        notice = Some((File::from(OwnedFd::from(read)), Vec::new()));
    }
    Ok((spawn.spawn()?, notice))
}

fn open_log(path: &Path) -> io::Result<File> {
    let named = |e: io::Error| io::Error::new(e.kind(), format!("log {}: {e}", path.display()));
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(named)?;
    }
    if fs::metadata(path).is_ok_and(|m| m.len() > LOG) {
        fs::rename(path, path.with_extension("log.old")).map_err(named)?;
    }
    File::options().create(true).append(true).open(path).map_err(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_double_up_to_the_most_and_begin_anew_after_a_steady_run() {
        let policy = Backoff { first_ms: 100, most_ms: 1000, steady_ms: 5000 };
        let mut restarts = 0;
        let mut all = Vec::new();
        for ran in [0, 10, 10, 10, 10, 10, 5000, 10] {
            all.push(next_rest(policy, &mut restarts, Duration::from_millis(ran)).as_millis());
        }
        assert_eq!(all, [100, 200, 400, 800, 1000, 1000, 100, 200]);
    }

    #[test]
    fn ends_are_described() {
        assert_eq!(describe(ExitStatus::from_raw(3 << 8)), "exit code 3");
        assert_eq!(describe(ExitStatus::from_raw(9)), "signal SIGKILL");
    }
}
