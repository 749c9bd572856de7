//! The runtime's side of a shim's socket.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{mpsc, oneshot};

use super::serve::SOCKET;
use super::{Exit, Handed, Message, Request, Started};

/// A notice that a shim sends by itself.
#[derive(Debug)]
pub(crate) enum Notice {
    /// A container ended.
    Exited { sandbox: String, id: String, exit: Exit },
    /// The shim is gone, and with it all its containers.
    Gone { sandbox: String },
}

const GONE: &str = "the sandbox's shim is gone";

/// How long a shim may take for what costs it nothing.
const QUICK: Duration = Duration::from_secs(5);

type Waiting = Arc<Mutex<VecDeque<oneshot::Sender<Message>>>>;

/// A connection to one shim; clones share it. It is closed, and its reader ends, with the last of them.
#[derive(Clone, Debug)]
pub(crate) struct Shim {
    writer: Arc<tokio::sync::Mutex<OwnedWriteHalf>>,
    waiting: Waiting,
    _reader: Arc<AbortOnDrop>,
}

#[derive(Debug)]
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Shim {
    /// Connects to the shim of the sandbox in `dir`.
    ///
    /// # Errors
    /// When there is no listener: the shim is gone.
    pub(crate) async fn connect(dir: &Path, sandbox: &str, notices: mpsc::UnboundedSender<Notice>) -> Result<Self> {
        let (directory, path) = short(dir)?;
        let stream = UnixStream::connect(path).await.with_context(|| format!("no shim listens in {}", dir.display()))?;
        drop(directory);
        let (reader, writer) = stream.into_split();
        let waiting = Waiting::default();
        let answers = waiting.clone();
        let sandbox = sandbox.to_owned();
        let reader = tokio::spawn(async move {
            let mut lines = BufReader::with_capacity(1024, reader).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                match serde_json::from_str(&line) {
                    Ok(Message::Exited { id, exit }) => {
                        let _ = notices.send(Notice::Exited { sandbox: sandbox.clone(), id, exit });
                    }
                    Ok(answer) => {
                        if let Some(asker) = locked(&answers).pop_front() {
                            let _ = asker.send(answer);
                        }
                    }
                    Err(error) => tracing::warn!(sandbox, %error, "unknown message of a shim"),
                }
            }
            locked(&answers).clear();
            let _ = notices.send(Notice::Gone { sandbox });
        });
        let reader = Arc::new(AbortOnDrop(reader));
        Ok(Self { writer: Arc::new(tokio::sync::Mutex::new(writer)), waiting, _reader: reader })
    }

    async fn ask(&self, request: &Request) -> Result<Message> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        let (sender, answer) = oneshot::channel();
        {
            // Held over both steps: answers come in the order of the requests.
            let mut writer = self.writer.lock().await;
            locked(&self.waiting).push_back(sender);
            writer.write_all(&line).await.context(GONE)?;
        }
        match answer.await {
            Ok(Message::Failed(reason)) => Err(anyhow!(reason)),
            Ok(answer) => Ok(answer),
            Err(_) => Err(anyhow!(GONE)),
        }
    }

    /// A request that a living shim answers at once.
    async fn ask_quickly(&self, request: &Request) -> Result<Message> {
        tokio::time::timeout(QUICK, self.ask(request)).await.context("the sandbox's shim does not answer")?
    }

    /// Starts a container.
    pub(crate) async fn start(&self, id: &str) -> Result<Started> {
        match self.ask(&Request::Start { id: id.to_owned() }).await? {
            Message::Started(started) => Ok(started),
            other => Err(anyhow!("the sandbox's shim answered {other:?}")),
        }
    }

    /// Sends a signal to a container.
    pub(crate) async fn signal(&self, id: &str, signal: i32) -> Result<()> {
        self.ask_quickly(&Request::Signal { id: id.to_owned(), signal }).await.map(|_| ())
    }

    /// Makes the shim open a container's log again.
    pub(crate) async fn reopen(&self, id: &str) -> Result<()> {
        self.ask_quickly(&Request::Reopen { id: id.to_owned() }).await.map(|_| ())
    }

    /// Checks that the shim answers.
    pub(crate) async fn ping(&self) -> Result<()> {
        self.ask_quickly(&Request::Ping).await.map(|_| ())
    }

    /// Ends the shim and everything in it. It does not answer.
    pub(crate) async fn shutdown(&self) {
        let _ = self.ask_quickly(&Request::Shutdown).await;
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A connection that one session has for itself.
#[derive(Debug)]
pub(crate) struct Link {
    stream: UnixStream,
    input: Vec<u8>,
    exit: Option<Exit>,
}

impl Link {
    /// Begins a session with the shim of the sandbox in `dir`. The descriptors do not block.
    ///
    /// # Errors
    /// With the shim's reason why the session cannot be.
    pub(crate) async fn open(dir: &Path, request: &Request) -> Result<(Self, Vec<(Handed, OwnedFd)>)> {
        let (directory, path) = short(dir)?;
        let mut stream = UnixStream::connect(path).await.with_context(|| format!("no shim listens in {}", dir.display()))?;
        drop(directory);
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        stream.write_all(&line).await.context(GONE)?;
        let mut link = Self { stream, input: Vec::new(), exit: None };
        let mut fds = Vec::new();
        match link.message(&mut fds).await? {
            Message::Opened(kinds) if kinds.len() == fds.len() => Ok((link, kinds.into_iter().zip(fds).collect())),
            Message::Failed(reason) => Err(anyhow!(reason)),
            other => Err(anyhow!("the sandbox's shim answered {other:?} with {} descriptors", fds.len())),
        }
    }

    /// The next message; descriptors that came on the way are added to `fds`.
    async fn message(&mut self, fds: &mut Vec<OwnedFd>) -> Result<Message> {
        loop {
            if let Some(end) = self.input.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.input.drain(..=end).collect();
                return serde_json::from_slice(&line).context("unknown message of the sandbox's shim");
            }
            self.stream.readable().await.context(GONE)?;
            let mut buffer = [0u8; 4096];
            match self.stream.try_io(Interest::READABLE, || linux_sys::fdpass::receive(&self.stream, &mut buffer)) {
                Ok((0, _)) => return Err(anyhow!(GONE)),
                Ok((count, received)) => {
                    self.input.extend_from_slice(&buffer[..count]);
                    fds.extend(received);
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context(GONE),
            }
        }
    }

    /// The end of the session's program, or of the container that it is attached to.
    ///
    /// # Errors
    /// When the shim is gone.
    pub(crate) async fn exit(&mut self) -> Result<Exit> {
        while self.exit.is_none() {
            if let Message::Exited { exit, .. } = self.message(&mut Vec::new()).await? {
                self.exit = Some(exit);
            }
        }
        self.exit.clone().context(GONE)
    }

    /// Kills the session's program.
    pub(crate) fn kill(&self) {
        if let Ok(mut line) = serde_json::to_vec(&Request::Kill) {
            line.push(b'\n');
            // A few bytes on a connection that carries nothing else: there is room, or the shim is gone.
            let _ = self.stream.try_write(&line);
        }
    }
}

/// A name for the socket that is short whatever the directory's path: through an open descriptor of the directory.
fn short(dir: &Path) -> Result<(std::fs::File, PathBuf)> {
    use std::os::fd::AsRawFd as _;
    let file = std::fs::File::open(dir).with_context(|| format!("cannot open {}", dir.display()))?;
    let path = PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", file.as_raw_fd()));
    Ok((file, path))
}
