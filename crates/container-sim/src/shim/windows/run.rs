//! Starts a Windows program and waits for its end.
//!
//! This process, which is pid 1 of the container for its first program, starts Wine with `mullion-init.exe`, which starts
//! the program and reports through a pipe: a Linux exit status has 8 bits, a Windows exit code 32. Orders go the other
//! way through a file that has no name. When pid 1 ends, the kernel ends whatever else Wine has started.

use std::fs::File;
use std::io::{PipeWriter, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, bail};
use guest::windows::wire::{self, Order, Report as InitReport};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::super::report::{self, Report};
use super::super::security::{self, User};
use super::super::{StartSpec, stage};
use super::PREFIX;
use thiserror_ext::AsReport as _;
use wine::{Account, Loader, command, drive, unfit};

/// Name of the variable with the descriptor by which the shim learns a whole exit code.
const RESULT: &str = "MULLION_SHIM_RESULT";

/// The shim's side of that descriptor.
#[derive(Debug)]
pub(in super::super) struct Watch(File);

impl Watch {
    /// A file without a name, to be inherited by `command`. The second descriptor is the process's.
    pub(in super::super) fn hand_down(command: &mut Command) -> Result<(Self, OwnedFd)> {
        let file = memfd_create(c"exit-code", MFdFlags::MFD_CLOEXEC).context("cannot make a file for the exit code")?;
        let theirs = file.try_clone()?;
        report::hand_down(command, RESULT, &theirs)?;
        Ok((Self(file.into()), theirs))
    }

    /// The exit code of a Windows program that has ended; none where Linux says it all.
    pub(in super::super) fn code(&self) -> Option<i32> {
        let mut bytes = [0; 4];
        self.0.read_exact_at(&mut bytes, 0).ok().map(|()| i32::from_le_bytes(bytes))
    }
}

/// What the shim handed to this process for it, before other descriptors are closed.
pub(in super::super) struct Place(File);

impl Place {
    pub(in super::super) fn inherited() -> Result<Self> {
        report::inherited(RESULT).map(|fd| Self(fd.into()))
    }

    pub(in super::super) fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

/// Runs a command line until it has ended. Called inside the container's root; privileges are gone afterwards.
pub(in super::super) fn line(spec: &StartSpec, line: &str, cwd: &str, report: Report, place: &Place) -> ExitCode {
    match Running::start(spec, line, cwd) {
        Ok(running) => running.watch(report, place),
        Err(error) => {
            report.failed(&error.to_report_string());
            ExitCode::from(126)
        }
    }
}

/// How often Wine is started at most, where it ends before the program began.
const ATTEMPTS: u32 = 3;

struct Running {
    wine: Child,
    /// Starts Wine again, on the container's streams; none once the program runs.
    command: Option<Command>,
    attempts: u32,
    is_stopped: bool,
    order: File,
    reports: File,
    signals: SignalFd,
    /// Kept open: Wine opens it by name, at a time of its own choosing.
    _theirs: PipeWriter,
    /// What has been read of a line.
    unread: Vec<u8>,
    line: String,
}

impl Running {
    fn start(spec: &StartSpec, line: &str, cwd: &str) -> Result<Self> {
        let loader = Loader::find().context("Wine is gone from this machine: install it again (Debian: apt-get install wine64)")?;
        let cwd = if cwd.is_empty() { r"C:\" } else { cwd };
        let path = spec.env.iter().find(|(name, _)| name.eq_ignore_ascii_case("path")).map_or("", |(_, value)| value);
        if let Some(reason) = unfit(&guest::Drives::new("/"), line, cwd, path) {
            bail!(reason);
        }
        let limited = Account::find(&spec.account)?.is_limited();
        let message = Order { command_line: command::for_cmd(line), cwd: cwd.replace('/', "\\"), env: spec.env.clone(), limited };
        let mut order = File::from(memfd_create(c"order", MFdFlags::MFD_CLOEXEC).context("cannot make a file for the order")?);
        order.write_all(&message.encode())?;
        let (reports, theirs) = std::io::pipe().context("cannot make a pipe")?;
        let mut signals = SigSet::empty();
        for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGQUIT] {
            signals.add(signal);
        }
        signals.thread_block().context("cannot block signals")?;
        let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC).context("cannot receive signals")?;
        security::drop_privileges(&spec.security, &User::find(&spec.security)?)?;
        // Wine opens the order and the pipe by this process's number. There is nothing of the node in it any more.
        security::set_dumpable(true)?;
        let mine = std::process::id();
        // Wine's own way to name files that are on no drive.
        let path = |number: i32| format!(r"\\?\unix\proc\{mine}\fd\{number}");
        let mut command = Command::new(loader.wine);
        command
            .arg(r"C:\windows\system32\mullion-init.exe")
            .args([path(order.as_raw_fd()), path(theirs.as_raw_fd())])
            .current_dir(drive(PREFIX.as_ref()))
            .env_clear()
            .envs([
                ("WINEPREFIX", PREFIX),
                ("WINESERVER", loader.server),
                ("WINEDEBUG", "-all"),
                ("WINEDLLOVERRIDES", &overrides()),
                // As the copies of Wine's modules call it.
                ("=INEDLLOVERRIDES", &overrides()),
                ("HOME", PREFIX),
                ("LC_ALL", "C.UTF-8"),
                ("PATH", "/usr/bin:/bin"),
            ])
            .stdin(own(std::io::stdin().as_fd())?)
            .stdout(own(std::io::stdout().as_fd())?)
            .stderr(own(std::io::stderr().as_fd())?);
        let wine = command.spawn().with_context(|| format!("cannot start {}", loader.wine))?;
        let reports = File::from(stage::nonblocking(reports.into())?);
        let null = File::options().read(true).write(true).open("/dev/null").context("cannot open /dev/null")?;
        // Only the program and its children hold the container's streams once it runs, so that their end is seen.
        nix::unistd::dup2_stdin(&null)?;
        nix::unistd::dup2_stdout(&null)?;
        nix::unistd::dup2_stderr(&null)?;
        let line = line.to_owned();
        Ok(Self { wine, command: Some(command), attempts: 1, is_stopped: false, order, reports, signals, _theirs: theirs, unread: Vec::new(), line })
    }

    /// Until the program's end. The report ends when the program runs.
    fn watch(mut self, report: Report, place: &Place) -> ExitCode {
        let mut report = Some(report);
        loop {
            let gone = self.wait();
            // Messages from before its end are still to be read.
            for message in self.messages() {
                match message {
                    InitReport::Started => {
                        report = None;
                        self.command = None;
                    }
                    InitReport::Failed(code) => {
                        if let Some(report) = report.take() {
                            report.failed(&refused(&self.line, code));
                        }
                        return ExitCode::from(127);
                    }
                    InitReport::Exited(code) => {
                        let _ = place.0.write_all_at(&code.to_le_bytes(), 0);
                        return ExitCode::from(u8::try_from(code & 0xff).unwrap_or(u8::MAX));
                    }
                }
            }
            match gone.and_then(|status| if let Some(status) = status { self.again(status) } else { Ok(None) }) {
                Ok(None) => {}
                Ok(Some(status)) => {
                    if let Some(report) = report.take() {
                        report.failed(&ended_early(status, self.attempts));
                    }
                    return ExitCode::from(137);
                }
                Err(error) => {
                    if let Some(report) = report.take() {
                        report.failed(&error.to_report_string());
                    }
                    return ExitCode::FAILURE;
                }
            }
        }
    }

    /// Starts Wine again where it ended by itself before the program began: nothing of the program has run then. That was seen once in
    /// thousands of starts; its cause is not known. Returns how Wine ended where that is the end.
    fn again(&mut self, status: WaitStatus) -> Result<Option<WaitStatus>> {
        let may = is_worth_another(status, self.attempts, self.is_stopped);
        let Some(command) = self.command.as_mut().filter(|_| may) else { return Ok(Some(status)) };
        self.wine = command.spawn().context("cannot start Wine again")?;
        self.attempts += 1;
        Ok(None)
    }

    /// Waits for something to happen; returns how Wine's first process ended, if it has.
    fn wait(&mut self) -> Result<Option<WaitStatus>> {
        let mut polled = [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN), PollFd::new(self.reports.as_fd(), PollFlags::POLLIN)];
        match poll(&mut polled, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno).context("cannot wait for events"),
        }
        let first = Pid::from_raw(i32::try_from(self.wine.id())?);
        while let Ok(Some(signal)) = self.signals.read_signal() {
            if i32::try_from(signal.ssi_signo) != Ok(Signal::SIGCHLD as i32) {
                self.is_stopped = true;
                self.order.write_all_at(&[wire::STOP], 0).context("cannot pass the request to stop on")?;
                let _ = kill(first, Signal::SIGINT);
            }
        }
        // Besides Wine's first process there are those that have lost their parents.
        let mut ended = None;
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) | Err(nix::errno::Errno::ECHILD) => return Ok(ended),
                Ok(status) if status.pid() == Some(first) => ended = Some(status),
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(errno) => return Err(errno).context("cannot wait for children"),
            }
        }
    }

    fn messages(&mut self) -> Vec<InitReport> {
        let mut buffer = [0; 256];
        while let Ok(count @ 1..) = self.reports.read(&mut buffer) {
            self.unread.extend_from_slice(&buffer[..count]);
        }
        let mut messages = Vec::new();
        while let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.unread.drain(..=end).collect();
            messages.extend(std::str::from_utf8(&line).ok().and_then(|line| InitReport::decode(line.trim_end())));
        }
        messages
    }
}

/// A stream of this process's, for Wine.
fn own(stream: BorrowedFd<'_>) -> Result<Stdio> {
    stream.try_clone_to_owned().map(Stdio::from).context("cannot copy a stream of the container's")
}

/// Whether Wine is started again that ended before the program began: not what a signal ended, nor what is to stop.
fn is_worth_another(status: WaitStatus, attempts: u32, is_stopped: bool) -> bool {
    matches!(status, WaitStatus::Exited(..)) && attempts < ATTEMPTS && !is_stopped
}

fn ended_early(status: WaitStatus, attempts: u32) -> String {
    let how = match status {
        WaitStatus::Exited(_, code) => format!("exit {code}"),
        WaitStatus::Signaled(_, signal, _) => signal.to_string(),
        other => format!("{other:?}"),
    };
    let times = if attempts == 1 { String::new() } else { format!(", {attempts} times") };
    format!("Wine ended before the program began ({how}{times}): its messages are in the container's log, or follow")
}

/// Wine prefers its own programs of system32 to the template's unless overrides forbid it.
fn overrides() -> String {
    let ours = guest::tools::INSTALLED.iter().filter(|name| !name.contains('/')).map(|name| format!(",{name}.exe"));
    format!("mscoree,mshtml=;explorer.exe{}=n", ours.collect::<String>())
}

/// Why a program could not be started, as hcsshim and Windows word it, and the way out.
fn refused(line: &str, code: u32) -> String {
    let program = command::program(line);
    let (text, hint) = match code {
        2 => ("The system cannot find the file specified.", "look whether the image has it, by its path or in a directory of Path"),
        3 => ("The system cannot find the path specified.", "look whether the image has it"),
        5 => ("Access is denied.", "it is a directory, or may not be executed"),
        11 | 193 => ("%1 is not a valid Win32 application.", "it is not a program for 64-bit Windows"),
        216 => ("This version of %1 is not compatible with the version of Windows you're running.", "it is for another kind of processor"),
        267 => ("The directory name is invalid.", "the working directory is not a directory"),
        _ => ("", ""),
    };
    let text = text.replace("%1", program);
    let reason = if text.is_empty() { format!("error {code}") } else { text };
    let hint = if hint.is_empty() { String::new() } else { format!(" (program {program:?}: {hint})") };
    format!("hcs::System::CreateProcess: failure in a Windows system call: {reason} ({code:#x}){hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_program_has_windows_message() {
        let message = refused(r#""C:\no such.exe" x"#, 2);
        assert!(
            message.starts_with("hcs::System::CreateProcess: failure in a Windows system call: The system cannot find the file specified. (0x2)"),
            "{message}"
        );
        assert!(message.contains(r#""C:\\no such.exe""#) && message.contains("Path"), "{message}");
        assert!(refused("a", 87).contains("error 87 (0x57)"));
    }

    #[test]
    fn wine_that_ends_before_the_program_begins_is_started_again() {
        let exited = WaitStatus::Exited(Pid::from_raw(2), 1);
        let killed = WaitStatus::Signaled(Pid::from_raw(2), Signal::SIGKILL, false);
        assert!(is_worth_another(exited, 1, false) && is_worth_another(exited, ATTEMPTS - 1, false));
        assert!(!is_worth_another(exited, ATTEMPTS, false), "not for ever");
        assert!(!is_worth_another(killed, 1, false), "somebody wanted its end");
        assert!(!is_worth_another(exited, 1, true), "the container is to stop");
        assert!(ended_early(exited, 3).contains("(exit 1, 3 times)") && ended_early(killed, 1).contains("(SIGKILL)"));
    }

    #[test]
    fn exit_codes_have_32_bits() {
        let mut command = Command::new("true");
        let (watch, theirs) = Watch::hand_down(&mut command).unwrap();
        assert_eq!(watch.code(), None);
        File::from(theirs).write_all_at(&0xC000_0005_u32.to_le_bytes(), 0).unwrap();
        assert_eq!(watch.code(), Some(-1_073_741_819));
    }
}
