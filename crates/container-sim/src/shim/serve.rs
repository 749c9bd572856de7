//! Stage 2: pid 1 of the sandbox.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, PipeReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, anyhow, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::fs::OFlags;
use rustix::io::FdFlags;

use super::launch::drain_text;
use super::log::LogWriter;
use super::pump::Stream;
use super::{Exit, Message, Request, ShimSpec, StartSpec, Started, now, read_json, write_json};

/// Name of the socket in the sandbox's directory. It is bound and reached by short relative names, since a socket's
/// path may have 108 bytes only.
pub(super) const SOCKET: &str = "shim.sock";

pub(super) fn main(dir: &Path) -> Result<()> {
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
        listener,
        signals,
        connections: BTreeMap::new(),
        next_connection: 0,
        containers: BTreeMap::new(),
    };
    server.run()
}

struct Server {
    dir: PathBuf,
    spec: ShimSpec,
    own_pid_namespace: File,
    listener: UnixListener,
    signals: SignalFd,
    connections: BTreeMap<u64, Connection>,
    next_connection: u64,
    containers: BTreeMap<String, Container>,
}

struct Connection {
    stream: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
}

struct Container {
    pid: Pid,
    log: LogWriter,
    streams: Vec<Stream>,
    /// Held open so that a program which reads it waits instead of seeing the end.
    _stdin: Option<OwnedFd>,
    starting: Option<Starting>,
    exited: bool,
}

/// A container whose program has not yet been executed.
struct Starting {
    report: PipeReader,
    connection: u64,
}

/// What a descriptor that became ready belongs to.
#[derive(Clone)]
enum Source {
    Listener,
    Signals,
    Connection(u64),
    Report(String),
    Stream(String),
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
                        if self.converse(number) {
                            return Ok(());
                        }
                    }
                    Source::Report(id) => self.started(&id),
                    Source::Stream(id) => self.pump(&id),
                }
            }
            self.containers.retain(|_, container| !(container.exited && container.streams.is_empty()));
        }
    }

    fn wait(&self) -> Result<Vec<Source>> {
        let mut sources = vec![Source::Listener, Source::Signals];
        let mut polled = vec![PollFd::new(self.listener.as_fd(), PollFlags::POLLIN), PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        for (number, connection) in &self.connections {
            let mut flags = PollFlags::POLLIN;
            flags.set(PollFlags::POLLOUT, !connection.output.is_empty());
            sources.push(Source::Connection(*number));
            polled.push(PollFd::new(connection.stream.as_fd(), flags));
        }
        for (id, container) in &self.containers {
            if let Some(starting) = &container.starting {
                sources.push(Source::Report(id.clone()));
                polled.push(PollFd::new(starting.report.as_fd(), PollFlags::POLLIN));
            }
            for stream in &container.streams {
                sources.push(Source::Stream(id.clone()));
                polled.push(PollFd::new(stream.as_fd(), PollFlags::POLLIN));
            }
        }
        match poll(&mut polled, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno).context("cannot wait for events"),
        }
        let ready = sources.into_iter().zip(&polled).filter(|(_, polled)| polled.revents().is_some_and(|events| !events.is_empty()));
        Ok(ready.map(|(source, _)| source).collect())
    }

    fn accept(&mut self) {
        if let Ok((stream, _)) = self.listener.accept()
            && stream.set_nonblocking(true).is_ok()
        {
            self.next_connection += 1;
            self.connections.insert(self.next_connection, Connection { stream, input: Vec::new(), output: Vec::new() });
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
        let Some(id) = self.containers.iter().find(|(_, container)| container.pid == pid && !container.exited).map(|(id, _)| id.clone()) else {
            return; // an orphan of a container, adopted by pid 1
        };
        let exit = Exit { code, signal, at: now(), message: None };
        self.started(&id);
        self.pump(&id);
        // A container that never started has been answered as failed and is gone.
        let Some(container) = self.containers.get_mut(&id) else { return };
        container.exited = true;
        let path = self.container_dir(&id).join("exit.json");
        if let Err(error) = write_json(&path, &exit) {
            eprintln!("shim: {error:#}");
        }
        let numbers: Vec<u64> = self.connections.keys().copied().collect();
        for number in numbers {
            self.say(number, &Message::Exited { id: id.clone(), exit: exit.clone() });
        }
    }

    fn pump(&mut self, id: &str) {
        if let Some(container) = self.containers.get_mut(id) {
            let log = &mut container.log;
            container.streams.retain_mut(|stream| stream.pump(log));
        }
    }

    /// Looks whether a starting container has executed its program, or has said why not.
    fn started(&mut self, id: &str) {
        let Some(container) = self.containers.get_mut(id) else { return };
        let Some(mut starting) = container.starting.take() else { return };
        let reason = drain_text(&mut starting.report);
        let answer = if reason.is_empty() {
            let started = Started { pid: lab_pid(container.pid).unwrap_or(0), at: now() };
            match write_json(&self.container_dir(id).join("started.json"), &started) {
                Ok(()) => Message::Started(started),
                Err(error) => Message::Failed(format!("{error:#}")),
            }
        } else {
            self.containers.remove(id);
            Message::Failed(reason)
        };
        self.say(starting.connection, &answer);
    }

    /// Serves one connection. Returns whether the sandbox has to end.
    fn converse(&mut self, number: u64) -> bool {
        self.flush(number);
        let Some(connection) = self.connections.get_mut(&number) else { return false };
        let mut buffer = [0u8; 4096];
        loop {
            match connection.stream.read(&mut buffer) {
                Ok(0) => {
                    self.connections.remove(&number);
                    return false;
                }
                Ok(count) => connection.input.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    self.connections.remove(&number);
                    return false;
                }
            }
        }
        while let Some(connection) = self.connections.get_mut(&number) {
            let Some(end) = connection.input.iter().position(|b| *b == b'\n') else { break };
            let line: Vec<u8> = connection.input.drain(..=end).collect();
            let request = serde_json::from_slice::<Request>(&line);
            let answer = match request {
                Ok(Request::Start { id }) => match self.start(&id, number) {
                    Ok(()) => continue, // answered when the program runs
                    Err(error) => Message::Failed(format!("{error:#}")),
                },
                Ok(Request::Signal { id, signal }) => self.signal(&id, signal),
                Ok(Request::Reopen { id }) => self.reopen(&id),
                Ok(Request::Ping) => Message::Done,
                Ok(Request::Shutdown) => return true,
                Err(error) => Message::Failed(format!("request cannot be read: {error}")),
            };
            self.say(number, &answer);
        }
        false
    }

    fn signal(&self, id: &str, signal: i32) -> Message {
        let Some(container) = self.containers.get(id).filter(|container| !container.exited) else { return Message::Done };
        let sent = Signal::try_from(signal).and_then(|signal| kill(container.pid, signal));
        match sent {
            Ok(()) | Err(nix::errno::Errno::ESRCH) => Message::Done,
            Err(errno) => Message::Failed(format!("cannot send signal {signal}: {errno}")),
        }
    }

    fn reopen(&mut self, id: &str) -> Message {
        match self.containers.get_mut(id).map(|container| container.log.reopen()) {
            Some(Ok(())) => Message::Done,
            Some(Err(error)) => Message::Failed(format!("{:#}", anyhow!(error))),
            None => Message::Failed("the container is not running".to_owned()),
        }
    }

    fn say(&mut self, number: u64, message: &Message) {
        if let Some(connection) = self.connections.get_mut(&number)
            && let Ok(mut line) = serde_json::to_vec(message)
        {
            line.push(b'\n');
            connection.output.append(&mut line);
            self.flush(number);
        }
    }

    fn flush(&mut self, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        while !connection.output.is_empty() {
            match connection.stream.write(&connection.output) {
                Ok(count) => {
                    connection.output.drain(..count);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    self.connections.remove(&number);
                    return;
                }
            }
        }
    }

    fn container_dir(&self, id: &str) -> PathBuf {
        self.dir.join("containers").join(id)
    }

    fn start(&mut self, id: &str, connection: u64) -> Result<()> {
        if id.is_empty() || id.contains(['/', '.']) || self.containers.contains_key(id) {
            bail!("container {id:?} cannot be started twice");
        }
        let dir = self.container_dir(id);
        let start: StartSpec = read_json(&dir.join("start.json"))?;
        let place = match &start.log {
            Some(path) => {
                let root = self.spec.host.open(self.spec.os)?;
                let path = root.parse(path)?;
                Some((root, path))
            }
            None => None,
        };
        let log = LogWriter::open(place).context("cannot open the container's log")?;
        let (report, report_writer) = std::io::pipe()?;
        rustix::io::fcntl_setfd(&report_writer, FdFlags::empty())?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("mullion").args(["shim", "init"]).arg(&dir).env_clear();
        command.env("MULLION_SHIM_REPORT", report_writer.as_raw_fd().to_string());
        let (streams, stdin) = wire(&mut command, &start)?;
        if start.own_pid_namespace {
            unshare(CloneFlags::CLONE_NEWPID).context("cannot make a pid namespace")?;
        }
        let child = command.spawn();
        if start.own_pid_namespace {
            setns(&self.own_pid_namespace, CloneFlags::CLONE_NEWPID).context("cannot return to the sandbox's pid namespace")?;
        }
        let child = child.context("cannot start the container's first process")?;
        let pid = Pid::from_raw(i32::try_from(child.id())?);
        let starting = Some(Starting { report, connection });
        self.containers.insert(id.to_owned(), Container { pid, log, streams, _stdin: stdin, starting, exited: false });
        Ok(())
    }
}

/// Connects a container's standard streams. Returns what the shim reads, and the end of standard input it holds.
fn wire(command: &mut Command, start: &StartSpec) -> Result<(Vec<Stream>, Option<OwnedFd>)> {
    if start.tty {
        let pty = nix::pty::openpty(None, None).context("cannot make a terminal")?;
        rustix::io::fcntl_setfd(&pty.master, FdFlags::CLOEXEC)?;
        command.stdin(pty.slave.try_clone()?).stdout(pty.slave.try_clone()?).stderr(pty.slave);
        let reader = pty.master.try_clone()?;
        nonblocking(&reader)?;
        return Ok((vec![Stream::new(reader.into(), "stdout")], Some(pty.master)));
    }
    let (out, out_writer) = std::io::pipe()?;
    let (err, err_writer) = std::io::pipe()?;
    nonblocking(&out)?;
    nonblocking(&err)?;
    command.stdout(out_writer).stderr(err_writer);
    let stdin = if start.stdin {
        let (reader, writer) = std::io::pipe()?;
        command.stdin(reader);
        Some(writer.into())
    } else {
        command.stdin(Stdio::null());
        None
    };
    let stream = |reader: PipeReader, name| Stream::new(File::from(OwnedFd::from(reader)), name);
    Ok((vec![stream(out, "stdout"), stream(err, "stderr")], stdin))
}

fn nonblocking(fd: &impl AsFd) -> Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    Ok(rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)?)
}

/// A child's process id as the lab's `/proc` shows it. The kernel translates it for whoever holds a pidfd.
fn lab_pid(pid: Pid) -> Option<i32> {
    let pid = rustix::process::Pid::from_raw(pid.as_raw())?;
    let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()?;
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    info.lines().find_map(|line| line.strip_prefix("Pid:")).and_then(|pid| pid.trim().parse().ok())
}
