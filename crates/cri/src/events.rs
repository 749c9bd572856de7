//! Container events: a stream that reconnects, instead of polling.

use std::time::Duration;

use k8s_cri::v1;
use tokio::sync::mpsc;

use crate::{Client, Kind};

/// What [`Events::next`] brings.
#[derive(Debug)]
pub enum Notice {
    /// Something happened to a container or sandbox. The message carries the pod's state at that moment.
    Event(Box<v1::ContainerEventResponse>),
    /// Events begin (again): earlier events are lost. List now.
    Relist,
    /// Events stopped; they are tried again by themselves. List at intervals until the next [`Notice::Relist`].
    Lost { reason: String },
    /// The runtime has no events (containerd before 1.7 says so): list at intervals, for good.
    Unsupported {
        /// The runtime's message.
        reason: String,
    },
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

async fn follow(client: Client, sender: mpsc::Sender<Notice>) {
    let mut failures = 0;
    loop {
        // Go runtimes send headers with the first event, so waiting for them may take for ever: that is not an error.
        let reason = match client.open_events().await {
            Ok(mut stream) => {
                failures = 0;
                if sender.send(Notice::Relist).await.is_err() {
                    return;
                }
                loop {
                    match stream.message().await {
                        Ok(Some(event)) => {
                            if sender.send(Notice::Event(Box::new(event))).await.is_err() {
                                return;
                            }
                        }
                        Ok(None) => break "the runtime closed the event stream".to_owned(),
                        Err(status) => break status.message().to_owned(),
                    }
                }
            }
            Err(error) if error.kind() == Kind::Unimplemented => {
                let _ = sender.send(Notice::Unsupported { reason: error.message() }).await;
                return;
            }
            Err(error) => error.to_string(),
        };
        if sender.send(Notice::Lost { reason }).await.is_err() {
            return;
        }
        tokio::time::sleep(backoff::exponential(RETRY_MIN, RETRY_MAX, failures)).await;
        failures = failures.saturating_add(1);
    }
}
