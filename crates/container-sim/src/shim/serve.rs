//! Stage 2: pid 1 of the sandbox, one poll loop over requests, output and exits.

mod memory;
mod sessions;
mod start;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use thiserror_ext::AsReport as _;

pub(crate) use memory::children;

use super::connection::{Connection, Gone, Purpose};
use super::log::LogWriter;
use super::pump::Stream;
use super::stage::Ends;
use super::windows::Watch;
use super::{Exit, Message, Request, ShimSpec, StartSpec, launch, now, program, read_json, report, write_json};

/// Name of the socket in the sandbox's directory. It is bound and reached by short relative names, since a socket's
/// path may have 108 bytes only.
pub(super) const SOCKET: &str = "shim.sock";

pub(super) fn main(dir: &Path) -> Result<()> {
    launch::return_home(dir)?;
    program::close_others(&[])?;
    std::env::set_current_dir(dir).with_context(|| format!("cannot enter {}", dir.display()))?;
    let spec: ShimSpec = read_json(&dir.join("shim.json"))?;
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGCHLD);
    signals.add(Signal::SIGTERM);
    signals.thread_block().context("cannot block signals")?;
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC).context("cannot receive signals")?;
    let _ = std::fs::remove_file(SOCKET);
    let listener = UnixListener::bind(SOCKET).with_context(|| format!("cannot listen on {}/{SOCKET}", dir.display()))?;
    listener.set_nonblocking(true)?;
    let own_pid_namespace = File::open("/proc/self/ns/pid").context("cannot open /proc/self/ns/pid")?;
    println!("ready");
    nix::unistd::dup2_stdout(File::options().write(true).open("/dev/null")?).context("cannot let go of standard output")?;
    let mut server = Server {
        dir: dir.to_owned(),
        spec,
        own_pid_namespace,
        pod: None,
        listener,
        signals,
        connections: BTreeMap::new(),
        next_connection: 0,
        containers: BTreeMap::new(),
        programs: BTreeMap::new(),
    };
    server.run()
}

struct Server {
    dir: PathBuf,
    spec: ShimSpec,
    own_pid_namespace: File,
    pod: Option<Pod>,
    listener: UnixListener,
    signals: SignalFd,
    connections: BTreeMap<u64, Connection>,
    next_connection: u64,
    containers: BTreeMap<String, Container>,
    /// Second programs, by the connections that they were asked for on.
    programs: BTreeMap<u64, SecondProgram>,
}

struct Container {
    pid: Pid,
    pidfd: OwnedFd,
    log: LogWriter,
    streams: Vec<Stream>,
    /// Held open so that a program which reads it waits instead of seeing the end.
    stdin: Option<OwnedFd>,
    /// The master of its terminal.
    terminal: Option<OwnedFd>,
    /// Whether it has an input at all.
    stdin_requested: bool,
    /// Whether the input ends with the first client.
    stdin_once: bool,
    starting: Option<Starting>,
    exited: bool,
    watch: Watch,
    /// Once a Windows program runs.
    memory: Option<memory::Memory>,
}

/// The pid namespace that containers share.
struct Pod {
    /// Its first process.
    pid: Pid,
    pidfd: OwnedFd,
    /// Mounts in which `/proc` is the namespace's.
    mounts: OwnedFd,
}

/// A container whose program has not yet been executed.
struct Starting {
    report: report::Reader,
    connection: u64,
}

struct SecondProgram {
    container: String,
    pid: Pid,
    watch: Watch,
    /// None once it runs.
    starting: Option<(report::Reader, Ends)>,
}

/// What a descriptor that became ready belongs to.
#[derive(Clone)]
enum Source {
    Listener,
    Signals,
    Connection(u64),
    Report(String),
    Stream(String),
    Program(u64),
}

impl Server {
    fn run(&mut self) -> Result<()> {
        loop {
            for source in self.wait()? {
                match source {
                    Source::Listener => self.accept(),
                    Source::Signals => {
                        if self.signalled()? {
                            return Ok(());
                        }
                    }
                    Source::Connection(number) => {
                        if self.serve_connection(number) {
                            return Ok(());
                        }
                    }
                    Source::Report(id) => self.started(&id),
                    Source::Stream(id) => self.pump(&id),
                    Source::Program(number) => self.program_started(number),
                }
            }
            for container in self.containers.values_mut().filter(|container| !container.exited) {
                container.memory.iter_mut().for_each(memory::Memory::tick);
            }
            self.containers.retain(|_, container| !(container.exited && container.streams.is_empty()));
        }
    }

    fn wait(&self) -> Result<Vec<Source>> {
        let mut sources = vec![Source::Listener, Source::Signals];
        let mut polled = vec![PollFd::new(self.listener.as_fd(), PollFlags::POLLIN), PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        for (number, connection) in &self.connections {
            let mut flags = PollFlags::POLLIN;
            flags.set(PollFlags::POLLOUT, connection.wants_to_write());
            sources.push(Source::Connection(*number));
            polled.push(PollFd::new(connection.as_fd(), flags));
        }
        for (id, container) in &self.containers {
            if let Some(starting) = &container.starting {
                sources.push(Source::Report(id.clone()));
                polled.push(PollFd::new(starting.report.as_fd(), PollFlags::POLLIN));
            }
            for stream in &container.streams {
                let (input, outputs) = stream.sources();
                let waits =
                    input.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).into_iter().chain(outputs.map(|fd| PollFd::new(fd, PollFlags::POLLOUT)));
                for wait in waits {
                    sources.push(Source::Stream(id.clone()));
                    polled.push(wait);
                }
            }
        }
        for (number, program) in &self.programs {
            if let Some((report, _)) = &program.starting {
                sources.push(Source::Program(*number));
                polled.push(PollFd::new(report.as_fd(), PollFlags::POLLIN));
            }
        }
        match poll(&mut polled, self.longest_wait()) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno).context("cannot wait for events"),
        }
        let ready = sources.into_iter().zip(&polled).filter(|(_, polled)| polled.revents().is_some_and(|events| !events.is_empty()));
        Ok(ready.map(|(source, _)| source).collect())
    }

    /// Longest wait for events: limits on sums are checked in between.
    fn longest_wait(&self) -> PollTimeout {
        let limited = |container: &Container| !container.exited && container.memory.as_ref().is_some_and(memory::Memory::is_limited);
        if self.containers.values().any(limited) { PollTimeout::try_from(memory::INTERVAL).unwrap_or(PollTimeout::NONE) } else { PollTimeout::NONE }
    }

    fn accept(&mut self) {
        if let Ok((stream, _)) = self.listener.accept()
            && stream.set_nonblocking(true).is_ok()
        {
            self.next_connection += 1;
            self.connections.insert(self.next_connection, Connection::new(stream));
        }
    }

    /// Reads signals. Returns whether the sandbox has to end.
    fn signalled(&mut self) -> Result<bool> {
        while let Ok(Some(signal)) = self.signals.read_signal() {
            if i32::try_from(signal.ssi_signo) == Ok(Signal::SIGTERM as i32) {
                return Ok(true);
            }
        }
        loop {
            let status = waitpid(None, Some(WaitPidFlag::WNOHANG));
            match status {
                Ok(WaitStatus::Exited(pid, code)) => self.exited(pid, code, None),
                Ok(WaitStatus::Signaled(pid, signal, _)) => self.exited(pid, 128 + signal as i32, Some(signal as i32)),
                Ok(WaitStatus::StillAlive) | Err(nix::errno::Errno::ECHILD) => return Ok(false),
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(errno) => return Err(errno).context("cannot wait for children"),
            }
        }
    }

    fn exited(&mut self, pid: Pid, code: i32, signal: Option<i32>) {
        let mut exit = Exit { code, signal, at: now(), oom: false, message: None };
        if self.pod.as_ref().is_some_and(|pod| pod.pid == pid) {
            // The kernel has ended all containers that were in it.
            self.pod = None;
            return;
        }
        self.read_reports();
        if let Some(number) = self.programs.iter().find(|(_, program)| program.pid == pid).map(|(number, _)| *number) {
            if let Some(program) = self.programs.remove(&number) {
                exit.code = program.watch.code().unwrap_or(exit.code);
                self.send(number, &Message::Exited { id: program.container, exit });
            }
            return;
        }
        let Some(id) = self.containers.iter().find(|(_, container)| container.pid == pid && !container.exited).map(|(id, _)| id.clone()) else {
            return; // an orphan of a container, adopted by pid 1
        };
        self.pump(&id);
        // A container that never started has been answered as failed and is gone.
        let Some(container) = self.containers.get_mut(&id) else { return };
        container.exited = true;
        container.stdin = None;
        exit.code = container.watch.code().unwrap_or(exit.code);
        for program in self.programs.values().filter(|program| program.container == id) {
            // Where the kernel does not end them with their namespace.
            let _ = killpg(program.pid, Signal::SIGKILL);
        }
        // Read anew: limits may have changed since the start.
        let spec = read_json::<StartSpec>(&self.container_dir(&id).join("start.json"));
        exit.oom = spec.is_ok_and(|spec| spec.limits.ran_out_of_memory());
        let path = self.container_dir(&id).join("exit.json");
        if let Err(error) = write_json(&path, &exit) {
            eprintln!("shim: {error:#}");
        }
        let is_notified = |connection: &Connection| match &connection.purpose {
            Purpose::Runtime => true,
            Purpose::Attached(container) => *container == id,
            Purpose::Program => false,
        };
        let numbers: Vec<u64> = self.connections.iter().filter(|(_, connection)| is_notified(connection)).map(|(number, _)| *number).collect();
        for number in numbers {
            self.send(number, &Message::Exited { id: id.clone(), exit: exit.clone() });
        }
    }

    /// Reads the reports of starting programs: as which process they go on, that they run, or why not.
    fn read_reports(&mut self) {
        let starting = self.containers.iter().filter(|(_, container)| container.starting.is_some());
        for id in starting.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            self.started(&id);
        }
        let starting = self.programs.iter().filter(|(_, program)| program.starting.is_some());
        for number in starting.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.program_started(number);
        }
    }

    fn pump(&mut self, id: &str) {
        if let Some(container) = self.containers.get_mut(id) {
            let log = &mut container.log;
            container.streams.retain_mut(|stream| stream.pump(log));
        }
    }

    /// Serves one connection. Returns whether the sandbox has to end.
    fn serve_connection(&mut self, number: u64) -> bool {
        let Some(connection) = self.connections.get_mut(&number) else { return false };
        let open = connection.flush().is_ok() && connection.read().is_ok();
        while let Some(line) = self.connections.get_mut(&number).and_then(Connection::line) {
            let request = serde_json::from_slice::<Request>(&line);
            let answered = match request {
                // These are answered when the program runs.
                Ok(Request::Start { id }) => self.start(&id, number).map(|()| None),
                Ok(Request::Exec(request)) => self.exec(request, number).map(|()| None),
                Ok(Request::Attach(request)) => self.attach(&request, number).map(|()| None),
                Ok(Request::Signal { id, signal }) => self.signal(&id, signal).map(Some),
                Ok(Request::Reopen { id }) => self.reopen(&id).map(Some),
                Ok(Request::Kill) => {
                    self.kill(number);
                    Ok(None)
                }
                Ok(Request::Ping) => Ok(Some(Message::Done)),
                Ok(Request::Shutdown) => return true,
                Err(error) => Err(anyhow!("request cannot be read: {error}")),
            };
            match answered {
                Ok(None) => {}
                Ok(Some(answer)) => self.send(number, &answer),
                Err(error) => self.send(number, &Message::Failed(error.to_report_string())),
            }
        }
        if !open {
            self.hang_up(number);
        }
        false
    }

    /// Forgets a connection and what it was for.
    fn hang_up(&mut self, number: u64) {
        self.connections.remove(&number);
        for stream in self.containers.values_mut().flat_map(|container| &mut container.streams) {
            stream.detach(number);
        }
        // A program that runs goes on, as with upstream's runtimes; one that no client waits for any more does not begin.
        if self.programs.get(&number).is_some_and(|program| program.starting.is_some()) {
            self.kill(number);
        }
    }

    fn signal(&self, id: &str, signal: i32) -> Result<Message> {
        let Some(container) = self.containers.get(id).filter(|container| !container.exited) else { return Ok(Message::Done) };
        let sent = Signal::try_from(signal).and_then(|signal| kill(container.pid, signal));
        match sent {
            Ok(()) | Err(nix::errno::Errno::ESRCH) => Ok(Message::Done),
            Err(errno) => Err(anyhow!("cannot send signal {signal}: {errno}")),
        }
    }

    fn reopen(&mut self, id: &str) -> Result<Message> {
        let container = self.containers.get_mut(id).context("the container is not running")?;
        container.log.reopen()?;
        Ok(Message::Done)
    }

    fn send(&mut self, number: u64, message: &Message) {
        if let Some(connection) = self.connections.get_mut(&number)
            && let Err(Gone) = connection.send(message)
        {
            self.hang_up(number);
        }
    }

    fn container_dir(&self, id: &str) -> PathBuf {
        self.dir.join("containers").join(id)
    }
}
