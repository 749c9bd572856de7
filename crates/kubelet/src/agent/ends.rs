//! How far the ends of pods have come that the node itself ends, for those who wait for it.

use std::collections::BTreeMap;

use tokio::sync::watch;

use super::Agent;

/// How far the end of a pod has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    /// No container of it runs, and what it held of the node is free.
    Stopped,
    /// Its volumes are down, too.
    Down,
}

/// The ends by pod UID.
pub(crate) type Ends = watch::Sender<BTreeMap<String, End>>;

impl Agent {
    /// Notes how far a pod's end has come.
    pub(crate) fn note_end(&self, uid: &str, end: End) {
        self.ends.send_if_modified(|ends| ends.insert(uid.to_owned(), end) != Some(end));
    }

    /// The pod has no worker any more.
    pub(super) fn forget_end(&self, uid: &str) {
        self.ends.send_modify(|ends| {
            ends.remove(uid);
        });
    }

    /// Completes when the end of a pod has come so far, or the pod is gone.
    pub(crate) async fn reached(&self, uid: &str, end: End) {
        let mut ends = self.ends.subscribe();
        let there = |ends: &BTreeMap<String, End>| ends.get(uid).is_some_and(|now| *now >= end) || !self.workers.has(uid);
        // The sender lives as long as the agent.
        let _ = ends.wait_for(there).await;
    }
}
