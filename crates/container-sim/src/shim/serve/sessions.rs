//! Sessions: second programs, and clients attached to containers.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill, killpg};
use thiserror_ext::AsReport as _;

use super::{Container, SecondProgram, Server};
use crate::shim::connection::{Gone, Purpose};
use crate::shim::stage::{self, PidNamespace, Place, Streams, nonblocking};
use crate::shim::{AttachRequest, ExecRequest, Handed, Message};

/// How much of a failed program's messages is passed on.
const MESSAGES: usize = 4096;

impl Server {
    /// Begins to start a second program; the answer follows when it runs or has failed to.
    pub(super) fn exec(&mut self, request: ExecRequest, number: u64) -> Result<()> {
        self.take_connection(number, Purpose::Program)?;
        let dir = self.container_dir(&request.id);
        let container = self.running(&request.id)?;
        if request.argv.is_empty() {
            bail!("no command specified");
        }
        let streams = if request.tty { Streams::default() } else { Streams { stdin: request.stdin, stdout: request.stdout, stderr: request.stderr } };
        let mut args = vec![if request.tty { "tty" } else { "pipes" }];
        args.extend(request.argv.iter().map(String::as_str));
        let pids = PidNamespace::Of(Place::of(&container.pidfd)?);
        let launched = stage::launch("exec", &dir, &args, streams, pids, &self.own_pid_namespace)?;
        let program = SecondProgram {
            container: request.id.clone(),
            pid: launched.pid,
            watch: launched.watch,
            starting: Some((launched.report, launched.ends)),
        };
        self.programs.insert(number, program);
        Ok(())
    }

    /// Reads the report of a second program: it runs, or why not.
    pub(super) fn program_started(&mut self, number: u64) {
        let Some(program) = self.programs.get_mut(&number) else { return };
        let Some((report, ends)) = &mut program.starting else { return };
        let outcome = report.read();
        program.pid = report.moved().unwrap_or(program.pid);
        let Some(outcome) = outcome else { return };
        let ends = std::mem::take(ends);
        program.starting = None;
        if let Some(reason) = outcome.reason {
            // It stays known until it has ended, without a connection.
            self.send(number, &Message::Failed(with_output(reason, ends.stderr)));
            self.connections.remove(&number);
            return;
        }
        let mut handed = Vec::new();
        let parts = [(Handed::Stdin, ends.stdin), (Handed::Stdout, ends.stdout), (Handed::Stderr, ends.stderr)];
        handed.extend(parts.into_iter().filter_map(|(kind, fd)| fd.map(|fd| (kind, fd))));
        match outcome.terminal.map(nonblocking) {
            Some(Ok(terminal)) => handed.push((Handed::Terminal, terminal)),
            Some(Err(error)) => return self.send(number, &Message::Failed(error.to_report_string())),
            None => {}
        }
        self.hand_over(number, handed);
    }

    /// Attaches a client to a running container's streams.
    pub(super) fn attach(&mut self, request: &AttachRequest, number: u64) -> Result<()> {
        self.take_connection(number, Purpose::Attached(request.id.clone()))?;
        self.running(&request.id)?;
        let Some(container) = self.containers.get_mut(&request.id) else { bail!("the container is gone") };
        let mut handed = Vec::new();
        if request.stdin
            && let Some(input) = container.input()?
        {
            handed.push((Handed::Stdin, input));
        }
        for stream in &mut container.streams {
            let (kind, requested) = if stream.name == "stderr" { (Handed::Stderr, request.stderr) } else { (Handed::Stdout, request.stdout) };
            if requested {
                let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
                stream.attach(number, nonblocking(writer.into())?);
                handed.push((kind, nonblocking(reader.into())?));
            }
        }
        if let Some(terminal) = &container.terminal {
            handed.push((Handed::Terminal, terminal.try_clone().context("cannot copy the terminal's descriptor")?));
        }
        self.hand_over(number, handed);
        Ok(())
    }

    /// Kills the program that a connection asked for, and its session.
    pub(super) fn kill(&mut self, number: u64) {
        if let Some(program) = self.programs.get(&number) {
            let _ = kill(program.pid, Signal::SIGKILL);
            let _ = killpg(program.pid, Signal::SIGKILL);
        }
    }

    /// A connection serves one session at most, and nothing else besides.
    fn take_connection(&mut self, number: u64, purpose: Purpose) -> Result<()> {
        match self.connections.get_mut(&number) {
            Some(connection) if matches!(connection.purpose, Purpose::Runtime) => connection.purpose = purpose,
            _ => bail!("a connection serves one session only"),
        }
        Ok(())
    }

    pub(super) fn running(&self, id: &str) -> Result<&Container> {
        let container = self.containers.get(id).context("the container is not running")?;
        if container.exited || container.starting.is_some() {
            bail!("the container is not running");
        }
        Ok(container)
    }

    fn hand_over(&mut self, number: u64, what: Vec<(Handed, OwnedFd)>) {
        if let Some(connection) = self.connections.get_mut(&number)
            && let Err(Gone) = connection.hand_over(what)
        {
            self.hang_up(number);
        }
    }
}

/// A reason with what was written to the program's error stream before it (Wine's messages): nobody else reads that.
fn with_output(reason: String, stderr: Option<OwnedFd>) -> String {
    let mut text = vec![0; MESSAGES];
    let length = stderr.and_then(|stderr| File::from(stderr).read(&mut text).ok()).unwrap_or(0);
    match String::from_utf8_lossy(&text[..length]).trim() {
        "" => reason,
        text => format!("{reason}: {}", text.replace("\r\n", "\n")),
    }
}

impl Container {
    /// A descriptor of the container's input: the only one where the first client takes it (`stdinOnce`), none where
    /// the container has no input.
    fn input(&mut self) -> Result<Option<OwnedFd>> {
        let copied = "cannot copy the input's descriptor";
        if let Some(terminal) = &self.terminal {
            return if self.stdin_requested { terminal.try_clone().map(Some).context(copied) } else { Ok(None) };
        }
        if self.stdin_once {
            return Ok(self.stdin.take());
        }
        self.stdin.as_ref().map(OwnedFd::try_clone).transpose().context(copied)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_failed_start_has_the_messages_that_were_written() {
        let failed = |written: &str| {
            let (reader, mut writer) = std::io::pipe().unwrap();
            writer.write_all(written.as_bytes()).unwrap();
            with_output("no program".to_owned(), Some(nonblocking(reader.into()).unwrap()))
        };
        assert_eq!(failed("mullion-init: no order\r\n"), "no program: mullion-init: no order");
        assert_eq!(failed(""), "no program", "whether its writer still lives or not");
        assert_eq!(with_output("no program".to_owned(), None), "no program");
    }
}
