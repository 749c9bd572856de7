//! The log: lines go through a bounded queue to a thread that writes them.
//!
//! | mode | a request | when the queue is full or the file cannot be written |
//! | --- | --- | --- |
//! | `blocking` | waits until its line is written | it waits for room; a failure is reported, and the request goes on |
//! | `blocking-strict` | the same | the same; without its first line the request is refused |
//! | `batch` | waits for nothing | the line is dropped, and the number of dropped lines is reported |

mod file;

use crate::tally::Tally;
use file::Rotated;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Bytes of lines that wait. A line that is larger waits alone.
const QUEUE: u32 = 16 << 20;

/// What a request waits for (`--audit-log-mode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    Batch,
    #[default]
    Blocking,
    BlockingStrict,
}

/// Where lines go, and what is kept of them. Defaults are upstream's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// A file that is appended to; `-` is the standard output.
    pub path: PathBuf,
    /// A file that would grow above this many MiB is set aside; with 0 none is.
    pub max_size: u64,
    /// Files that were set aside so many days ago are removed; 0 keeps them.
    pub max_age: u64,
    /// So many files that were set aside are kept; 0 keeps all.
    pub max_backups: usize,
    pub mode: Mode,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { path: PathBuf::new(), max_size: 100, max_age: 366, max_backups: 100, mode: Mode::default() }
    }
}

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("cannot open the audit log {path}; name a file in a directory that can be written")]
    Open {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot start the writer of the audit log")]
    Writer(#[source] io::Error),
}

/// A line was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot write a line of the audit log")]
pub struct NotWritten;

struct Line {
    bytes: Vec<u8>,
    /// Room in the queue, of lines that wait for it.
    _room: Option<OwnedSemaphorePermit>,
    written: Option<oneshot::Sender<bool>>,
}

/// An open log.
pub struct Log {
    mode: Mode,
    /// None once the log is closed.
    lines: Mutex<Option<Sender<Line>>>,
    room: Arc<Semaphore>,
    writer: Mutex<Option<JoinHandle<()>>>,
    dropped: Tally,
}

impl Log {
    /// Opens the file and starts the writer.
    pub fn open(config: &LogConfig) -> Result<Self, LogError> {
        let file = Rotated::open(config).map_err(|source| LogError::Open { path: config.path.clone(), source })?;
        Self::over(file, config.mode)
    }

    fn over(mut file: impl Write + 'static, mode: Mode) -> Result<Self, LogError> {
        let (sender, receiver) = channel();
        let writer = std::thread::Builder::new().name("audit-log".into()).spawn(move || write_all(&receiver, &mut file));
        Ok(Self {
            mode,
            lines: Mutex::new(Some(sender)),
            room: Arc::new(Semaphore::new(QUEUE as usize)),
            writer: Mutex::new(Some(writer.map_err(LogError::Writer)?)),
            dropped: Tally::default(),
        })
    }

    /// Whether a request without its first line is refused.
    pub fn is_strict(&self) -> bool {
        self.mode == Mode::BlockingStrict
    }

    /// Writes a line as the mode says.
    pub async fn write(&self, bytes: Vec<u8>) -> Result<(), NotWritten> {
        let size = size_of(&bytes);
        if self.mode == Mode::Batch {
            return match Arc::clone(&self.room).try_acquire_many_owned(size) {
                Ok(room) => self.send(Line { bytes, _room: Some(room), written: None }),
                Err(_) => {
                    self.drop_one();
                    Err(NotWritten)
                }
            };
        }
        let room = Arc::clone(&self.room).acquire_many_owned(size).await.map_err(|_| NotWritten)?;
        let (written, done) = oneshot::channel();
        self.send(Line { bytes, _room: Some(room), written: Some(written) })?;
        if done.await.unwrap_or(false) { Ok(()) } else { Err(NotWritten) }
    }

    /// Writes a line and waits for it, whatever the mode and the room, for the end of a process. Not for tasks.
    pub fn write_blocking(&self, bytes: Vec<u8>) -> Result<(), NotWritten> {
        let (written, done) = oneshot::channel();
        self.send(Line { bytes, _room: None, written: Some(written) })?;
        if done.blocking_recv().unwrap_or(false) { Ok(()) } else { Err(NotWritten) }
    }

    fn send(&self, line: Line) -> Result<(), NotWritten> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.as_ref().ok_or(NotWritten)?.send(line).map_err(|_| NotWritten)
    }

    fn drop_one(&self) {
        if let Some(dropped) = self.dropped.add(1) {
            tracing::warn!(dropped, "the audit log is slower than requests: lines were dropped; `--audit-log-mode blocking` drops none");
        }
    }

    /// Lines that were dropped so far.
    pub fn dropped(&self) -> u64 {
        self.dropped.count()
    }

    /// Takes no more lines, and returns when all that it has taken are written.
    pub fn close(&self) {
        drop(self.lines.lock().unwrap_or_else(PoisonError::into_inner).take());
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if writer.is_some_and(|writer| writer.join().is_err()) {
            tracing::error!("the writer of the audit log has panicked");
        }
    }
}

fn size_of(line: &[u8]) -> u32 {
    u32::try_from(line.len()).unwrap_or(QUEUE).min(QUEUE)
}

/// What lines are written to.
trait Write: Send {
    fn write(&mut self, line: &[u8]) -> io::Result<()>;
}

/// Writes until the log is closed.
fn write_all(lines: &Receiver<Line>, file: &mut impl Write) {
    let failed = Tally::default();
    for line in lines {
        let result = file.write(&line.bytes);
        if let Err(error) = &result
            && let Some(lines) = failed.add(1)
        {
            tracing::error!(%error, lines, "lines of the audit log cannot be written");
        }
        // Who does not wait any more needs no answer.
        let _ = line.written.map(|written| written.send(result.is_ok()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Writes when it is let, and fails for lines that say so.
    struct Gate {
        open: Receiver<()>,
        seen: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Gate {
        fn write(&mut self, line: &[u8]) -> io::Result<()> {
            self.open.recv().map_err(io::Error::other)?;
            self.seen.lock().unwrap().extend_from_slice(line.get(..4).unwrap_or(line));
            if line == b"fail" { Err(io::Error::other("full")) } else { Ok(()) }
        }
    }

    fn gated(mode: Mode) -> (Arc<Log>, Sender<()>, Arc<Mutex<Vec<u8>>>) {
        let (sender, open) = channel();
        let seen = Arc::new(Mutex::default());
        (Arc::new(Log::over(Gate { open, seen: Arc::clone(&seen) }, mode).unwrap()), sender, seen)
    }

    #[tokio::test]
    async fn blocking_requests_wait_for_their_line() {
        let (log, gate, seen) = gated(Mode::Blocking);
        let own = Arc::clone(&log);
        let mut writing = tokio::spawn(async move { own.write(b"line".to_vec()).await });
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut writing).await.is_err(), "nothing is written yet");
        gate.send(()).unwrap();
        assert_eq!(writing.await.unwrap(), Ok(()));
        assert_eq!(*seen.lock().unwrap(), b"line");
        gate.send(()).unwrap();
        assert_eq!(log.write(b"fail".to_vec()).await, Err(NotWritten));
        log.close();
        assert_eq!(log.write(b"late".to_vec()).await, Err(NotWritten), "a closed log takes nothing");
    }

    #[tokio::test]
    async fn batches_wait_for_nothing_and_drop_what_has_no_room() {
        let (log, gate, seen) = gated(Mode::Batch);
        assert_eq!(log.write(vec![b'a'; QUEUE as usize + 1]).await, Ok(()), "a line larger than the queue waits alone");
        assert_eq!(log.write(b"more".to_vec()).await, Err(NotWritten));
        assert_eq!(log.dropped(), 1);
        gate.send(()).unwrap();
        while log.room.available_permits() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(log.write(b"next".to_vec()).await, Ok(()));
        gate.send(()).unwrap();
        log.close();
        assert_eq!(*seen.lock().unwrap(), b"aaaanext", "closing waits for what was taken");
    }
}
