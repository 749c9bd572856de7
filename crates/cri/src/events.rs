//! Container events: a stream that reconnects, instead of polling.

use std::time::Duration;

use k8s_cri::v1;
use tokio::sync::mpsc;
use tonic::Status;
use tonic::codegen::tokio_stream::{Stream, StreamExt as _};

use crate::{Client, Kind};

/// What [`Events::next`] brings.
#[derive(Debug)]
pub enum Notice {
    /// Something happened to a container or sandbox. The message carries the pod's state at that moment.
    Event(Box<v1::ContainerEventResponse>),
    /// A container or sandbox began or ended, as containerd's own events say. CRI shows it a moment later: list until it does.
    Task { container: String, change: TaskChange },
    /// Events begin (again): earlier events are lost. List now.
    Relist,
    /// Events stopped; they are tried again by themselves. List at intervals until the next [`Notice::Relist`].
    Lost { reason: String },
    /// The runtime has no events, neither those of CRI nor containerd's own: list at intervals, for good.
    Unsupported {
        /// The runtime's message.
        reason: String,
    },
}

/// What became of the task of a container or sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskChange {
    Started,
    /// Its process ended. containerd then has the shim delete the task, which takes tens of milliseconds; CRI still shows that it runs.
    Ended,
    /// The task is gone: CRI shows the end at once.
    Deleted,
}

/// A subscription to one runtime's events; dropped, it ends.
#[derive(Debug)]
pub struct Events {
    notices: mpsc::Receiver<Notice>,
    task: tokio::task::JoinHandle<()>,
}

/// Shortest pause between two attempts to subscribe; it doubles with each.
const RETRY_MIN: Duration = Duration::from_millis(50);
/// Longest pause between two attempts to subscribe.
const RETRY_MAX: Duration = Duration::from_secs(5);

impl Events {
    pub(crate) fn start(client: Client) -> Self {
        let (sender, notices) = mpsc::channel(64);
        let task = tokio::spawn(follow(client, sender));
        Self { notices, task }
    }

    /// The next notice; `None` once events are known to be unsupported and that was reported.
    pub async fn next(&mut self) -> Option<Notice> {
        self.notices.recv().await
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Where events come from.
#[derive(Clone, Copy)]
enum Source {
    Cri,
    Containerd,
}

/// The receiver of the notices is gone.
struct Deaf;

async fn follow(client: Client, sender: mpsc::Sender<Notice>) {
    let (mut failures, mut source) = (0, Source::Cri);
    loop {
        let ended = match source {
            // Go runtimes send headers with the first event, so waiting for them may take for ever: that is not an error.
            Source::Cri => match client.open_events().await {
                Ok(stream) => Ok(pass(stream, &sender, |event| Some(Notice::Event(Box::new(event)))).await),
                Err(error) => Err(error),
            },
            Source::Containerd => match client.open_containerd_events().await {
                Ok(stream) => Ok(pass(stream, &sender, |event| event.change().map(task)).await),
                Err(error) => Err(error),
            },
        };
        let reason = match (ended, source) {
            (Ok(Err(Deaf)), _) => return,
            (Ok(Ok(reason)), _) => {
                failures = 0;
                reason
            }
            (Err(error), Source::Cri) if error.kind() == Kind::Unimplemented => {
                source = Source::Containerd;
                continue;
            }
            (Err(error), Source::Containerd) if error.kind() == Kind::Unimplemented => {
                let _ = sender.send(Notice::Unsupported { reason: error.message() }).await;
                return;
            }
            (Err(error), _) => error.to_string(),
        };
        if sender.send(Notice::Lost { reason }).await.is_err() {
            return;
        }
        tokio::time::sleep(backoff::exponential(RETRY_MIN, RETRY_MAX, failures)).await;
        failures = failures.saturating_add(1);
    }
}

fn task((container, change): (String, TaskChange)) -> Notice {
    Notice::Task { container, change }
}

/// Passes a stream's events on until it ends; returns why.
async fn pass<T>(
    mut stream: impl Stream<Item = Result<T, Status>> + Unpin,
    sender: &mpsc::Sender<Notice>,
    notice: impl Fn(T) -> Option<Notice>,
) -> Result<String, Deaf> {
    sender.send(Notice::Relist).await.map_err(|_| Deaf)?;
    loop {
        match stream.next().await {
            Some(Ok(event)) => {
                if let Some(notice) = notice(event) {
                    sender.send(notice).await.map_err(|_| Deaf)?;
                }
            }
            None => return Ok("the runtime closed the event stream".to_owned()),
            Some(Err(status)) => return Ok(status.message().to_owned()),
        }
    }
}
