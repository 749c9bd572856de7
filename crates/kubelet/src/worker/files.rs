//! Files the worker reads back: termination messages.

use host::{HostError, PodPath};

use super::Worker;
use crate::logs;
use crate::pod::{Container, Observed, State};

/// Bytes of a termination message at most.
const MESSAGE: u64 = 4096;
/// Fallback from the log: bytes and lines.
const FALLBACK: (usize, usize) = (2048, 80);

impl Worker {
    /// Where a run of a container writes its termination message.
    pub(super) fn message_file(&self, container: &str, restarts: u32) -> Result<PodPath, HostError> {
        let dir = self.dirs.pod.join("containers")?.join(container)?;
        Ok(dir.join(&format!("message-{restarts}"))?)
    }

    /// Where a run of a container wrote its termination message. A container that upstream's kubelet made has a file of another name, in the
    /// same directory. What lies elsewhere is a volume of the pod, whose links the agent does not follow.
    fn written_message(&self, c: &Container) -> Result<PodPath, HostError> {
        let own = self.message_file(&c.name, c.restarts)?;
        let told = c.message_file.as_deref().and_then(|path| self.agent.root.parse(path).ok());
        Ok(told.filter(|told| told.parent() == own.parent()).unwrap_or(own))
    }

    /// Fills in the messages of ended containers, each read once.
    pub(super) fn add_messages(&mut self, observed: &mut Observed) {
        for c in observed.containers.iter_mut().filter(|c| c.state == State::Exited) {
            if let Some(known) = self.messages.get(&c.id) {
                c.message.clone_from(known);
                continue;
            }
            let spec = self.state.spec_of(&c.name);
            let policy = spec.and_then(|s| s.termination_message_policy).unwrap_or_default();
            let file = self.written_message(c);
            let bytes = file.and_then(|f| self.agent.root.read(&f, MESSAGE)).ok().flatten().unwrap_or_default();
            let mut message = String::from_utf8_lossy(&bytes).into_owned();
            if message.is_empty() && policy == "FallbackToLogsOnError" && c.exit_code != 0 {
                let pod = self.dirs.logs.name().unwrap_or_default().to_owned();
                let log = logs::open(&self.agent.root, &[pod, c.name.clone(), format!("{}.log", c.restarts)]);
                message = log.ok().map(|f| logs::tail_text(f, FALLBACK.0, FALLBACK.1)).unwrap_or_default();
            }
            if message.is_empty() {
                message.clone_from(&c.message);
            }
            self.messages.insert(c.id.clone(), message.clone());
            c.message = message;
        }
    }
}
