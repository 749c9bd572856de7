//! Files the worker reads back: termination messages.

use std::io::{self, Read, Seek, SeekFrom};

use host::{HostError, PodPath};

use super::Worker;
use crate::logs;
use crate::pod::{Container, Observed, State};

/// Bytes of a termination message at most.
const MESSAGE: u64 = 4096;
/// Fallback from the log: bytes and lines.
const FALLBACK: (usize, usize) = (2048, 80);

/// The reason of a container that was never begun, and has no log.
const NEVER_RAN: &str = "ContainerCannotRun";

/// The last bytes of a file.
fn tail(mut file: impl Read + Seek, bytes: u64) -> io::Result<Vec<u8>> {
    let size = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(size.saturating_sub(bytes)))?;
    let mut tail = Vec::new();
    file.take(bytes).read_to_end(&mut tail)?;
    Ok(tail)
}

/// What the runtime says of a container's end, and then what the container said itself.
fn joined(runtime: &str, own: &str) -> String {
    [runtime, own].iter().filter(|text| !text.is_empty()).copied().collect::<Vec<_>>().join(": ")
}

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
        self.messages.retain(|id, _| observed.containers.iter().any(|c| c.id == *id));
        for c in observed.containers.iter_mut().filter(|c| c.state == State::Exited) {
            if let Some(known) = self.messages.get(&c.id) {
                c.message.clone_from(known);
                continue;
            }
            let spec = self.state.spec_of(&c.name);
            let policy = spec.and_then(|s| s.termination_message_policy).unwrap_or_default();
            let file = self.written_message(c).and_then(|path| self.agent.root.open_read(&path));
            let bytes = file.ok().and_then(|file| tail(file, MESSAGE).ok()).unwrap_or_default();
            let mut message = String::from_utf8_lossy(&bytes).into_owned();
            if message.is_empty() && policy == "FallbackToLogsOnError" && c.exit_code != 0 && c.reason != NEVER_RAN {
                let pod = self.dirs.logs.name().unwrap_or_default().to_owned();
                let log = logs::open(&self.agent.root, &self.agent.logs, &[pod, c.name.clone(), format!("{}.log", c.restarts)]);
                message = log.ok().map(|f| logs::tail_text(f, FALLBACK.0, FALLBACK.1)).unwrap_or_default();
            }
            let message = joined(&c.message, &message);
            self.messages.insert(c.id.clone(), message.clone());
            c.message = message;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn the_end_of_a_message_counts_and_follows_what_the_runtime_says() {
        for (text, want) in [("", ""), ("abc", "abc"), ("abcd", "abcd"), ("abcdef", "cdef")] {
            assert_eq!(tail(Cursor::new(text.as_bytes()), 4).unwrap(), want.as_bytes());
        }
        for (runtime, own, want) in [("", "", ""), ("oom", "", "oom"), ("", "bye", "bye"), ("oom", "bye", "oom: bye")] {
            assert_eq!(joined(runtime, own), want);
        }
    }
}
