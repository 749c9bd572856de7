//! The gate: pods wait here until their rules are in effect.

use std::net::IpAddr;

use cluster::Key;
use tokio::sync::{mpsc, oneshot};

/// Where a pod asks. Clones ask at the same place.
#[derive(Clone, Debug)]
pub struct Gate(mpsc::UnboundedSender<Waiting>);

/// Where the questions arrive.
#[derive(Debug)]
pub struct Gates(mpsc::UnboundedReceiver<Waiting>);

/// A pod that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    pub pod: Key,
    pub ips: Vec<IpAddr>,
    answer: oneshot::Sender<()>,
}

/// A gate, and the end that [`super::Config`] takes.
pub fn gate() -> (Gate, Gates) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Gate(sender), Gates(receiver))
}

impl Gate {
    /// Completes when the rules of a local pod that has these addresses are in effect; never where nobody puts rules into effect.
    pub async fn opened(self, pod: Key, ips: Vec<IpAddr>) {
        let (answer, opened) = oneshot::channel();
        let asked = self.0.send(Waiting { pod, ips, answer }).is_ok();
        if !asked || opened.await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Waiting {
    /// Whether the pod still waits.
    pub fn is_wanted(&self) -> bool {
        !self.answer.is_closed()
    }

    pub fn open(self) {
        // Who no longer waits needs no answer.
        let _ = self.answer.send(());
    }
}

/// The next pod that asks.
pub(super) async fn next(gates: &mut Option<Gates>) -> Option<Waiting> {
    match gates {
        Some(gates) => gates.0.recv().await,
        None => std::future::pending().await,
    }
}
