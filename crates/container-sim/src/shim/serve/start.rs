//! Starting containers.

use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use thiserror_ext::AsReport as _;

use super::memory::Memory;
use super::{Container, Pod, Server, Starting};
use crate::shim::log::LogWriter;
use crate::shim::pump::Stream;
use crate::shim::stage::{self, Launched, PidNamespace, Place, Streams, nonblocking};
use crate::shim::{Message, Pids, StartSpec, Started, now, read_json, write_json};

impl Server {
    /// Begins to start a container; the answer follows when its program runs or has failed to.
    pub(super) fn start(&mut self, id: &str, connection: u64) -> Result<()> {
        if id.is_empty() || id.contains(['/', '.']) || self.containers.contains_key(id) {
            bail!("container {id:?} cannot be started twice");
        }
        let dir = self.container_dir(id);
        let spec: StartSpec = read_json(&dir.join("start.json"))?;
        let place = match &spec.log {
            Some(path) => {
                let root = self.spec.host.open(self.spec.os)?;
                let path = root.parse(path)?;
                Some((root, path))
            }
            None => None,
        };
        let log = LogWriter::open(place).context("cannot open the container's log")?;
        let streams = Streams { stdin: spec.stdin && !spec.tty, stdout: !spec.tty, stderr: !spec.tty };
        let pids = match &spec.pids {
            Pids::Own => PidNamespace::Own,
            Pids::Pod if spec.root.runs_programs() => PidNamespace::Of(self.pod()?),
            // A stand-in where there are no programs but ours.
            Pids::Pod => PidNamespace::Shim,
            Pids::Container(target) => {
                let target = self.running(target).with_context(|| format!("cannot share the processes of container {target:?}"))?;
                PidNamespace::Of(Place::of(&target.pidfd)?)
            }
        };
        let Launched { pid, pidfd, report, ends, watch } = stage::launch("init", &dir, &[], streams, pids, &self.own_pid_namespace)?;
        let outputs = [(ends.stdout, "stdout"), (ends.stderr, "stderr")];
        let streams = outputs.into_iter().filter_map(|(fd, name)| fd.map(|fd| Stream::new(fd, name))).collect();
        let container = Container {
            pid,
            pidfd,
            log,
            streams,
            stdin: ends.stdin,
            terminal: None,
            stdin_requested: spec.stdin,
            stdin_once: spec.stdin_once,
            starting: Some(Starting { report, connection }),
            exited: false,
            watch,
            memory: None,
        };
        self.containers.insert(id.to_owned(), container);
        Ok(())
    }

    /// The pid namespace that containers share, made when the first one asks for it.
    fn pod(&mut self) -> Result<Place> {
        if self.pod.is_none() {
            self.pod = Some(Pod::start(&self.own_pid_namespace).context("cannot make the pod's pid namespace")?);
        }
        let pod = self.pod.as_ref().context("the pod's pid namespace has ended")?;
        Place::copy(&pod.pidfd, &pod.mounts)
    }

    /// Reads the report of a starting container: its program runs, or why not.
    pub(super) fn started(&mut self, id: &str) {
        let dir = self.container_dir(id);
        let Some(container) = self.containers.get_mut(id) else { return };
        let Some(starting) = &mut container.starting else { return };
        let outcome = starting.report.read();
        if let Some(pid) = starting.report.moved() {
            match stage::hold(pid) {
                Ok(pidfd) => (container.pid, container.pidfd) = (pid, pidfd),
                Err(error) => eprintln!("shim: {}", error.as_report()),
            }
        }
        let Some(outcome) = outcome else { return };
        let connection = starting.connection;
        container.starting = None;
        let started = match (outcome.reason, outcome.terminal) {
            (Some(reason), _) => Err(reason),
            (None, Some(terminal)) => container.show(terminal).map_err(|error| error.to_report_string()),
            (None, None) => Ok(()),
        };
        let answer = match started {
            Ok(()) => {
                let spec = read_json::<StartSpec>(&dir.join("start.json"));
                container.memory = spec.ok().and_then(|spec| Memory::of(&dir, &spec, &container.pidfd));
                let started = Started { pid: lab_pid(&container.pidfd).unwrap_or(0), at: now(), user: outcome.user };
                match write_json(&dir.join("started.json"), &started) {
                    Ok(()) => Message::Started(started),
                    Err(error) => Message::Failed(error.to_report_string()),
                }
            }
            Err(reason) => {
                self.containers.remove(id);
                Message::Failed(reason)
            }
        };
        self.send(connection, &answer);
    }
}

impl Pod {
    fn start(home: &File) -> Result<Self> {
        let Launched { pid, pidfd, mut report, .. } = stage::launch("hold", Path::new("/"), &[], Streams::default(), PidNamespace::Own, home)?;
        let outcome = loop {
            if let Some(outcome) = report.read() {
                break outcome;
            }
            let _ = poll(&mut [PollFd::new(report.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE);
        };
        match (outcome.reason, outcome.mounts) {
            (None, Some(mounts)) => Ok(Self { pid, pidfd, mounts }),
            (reason, _) => bail!(reason.unwrap_or_else(|| "its first process ended".to_owned())),
        }
    }
}

impl Container {
    /// Takes the container's terminal over.
    fn show(&mut self, terminal: OwnedFd) -> Result<()> {
        let terminal = nonblocking(terminal)?;
        self.streams.push(Stream::new(terminal.try_clone().context("cannot copy the terminal's descriptor")?, "stdout"));
        self.terminal = Some(terminal);
        Ok(())
    }
}

/// A process's id as the lab's `/proc` shows it. The kernel translates it for the holder of a pidfd.
pub(super) fn lab_pid(pidfd: &OwnedFd) -> Option<i32> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).ok()?;
    info.lines().find_map(|line| line.strip_prefix("Pid:")).and_then(|pid| pid.trim().parse().ok())
}
