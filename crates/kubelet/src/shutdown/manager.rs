//! The loop: takes announcements, and ends the node's pods.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cluster::EventType;
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};
use thiserror_ext::AsReport as _;
use tokio::sync::watch;

use super::plan::{self, Group};
use super::{Announcement, NOTED, Shutdown};
use crate::agent::Agent;
use crate::agent::ends::End;
use crate::pod::{Event, Evicted, Reason};
use crate::worker::Note;

/// What a pod's status says that ended with its node.
const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";
/// In the agent's directory, as upstream has it.
const STATE_FILE: &str = "graceful_node_shutdown_state";
const STATE_LIMIT: u64 = 4096;

/// Ends the node's pods before their machine goes down.
pub(crate) struct Manager {
    pub agent: Arc<Agent>,
    pub shutdown: Shutdown,
    /// Whether the machine goes down.
    pub goes_down: watch::Sender<bool>,
}

/// When the last shutdown began and ended; Go's zero time for neither.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Times {
    pub start_time: String,
    pub end_time: String,
}

const NEVER: &str = "0001-01-01T00:00:00Z";

/// Seconds since 1970; 0 for never.
pub(super) fn seconds(time: &str) -> i64 {
    time.parse::<Timestamp>().ok().filter(|_| time != NEVER).map_or(0, Timestamp::as_second)
}

impl Manager {
    /// Waits for shutdowns, for ever.
    pub(crate) async fn keep(mut self) {
        if let Some(times) = self.read() {
            self.agent.counts.shutdown(seconds(&times.start_time), seconds(&times.end_time));
        }
        let mut statics = BTreeSet::new();
        while let Some(announcement) = self.shutdown.announcements.recv().await {
            match announcement {
                Announcement::Begins { name, hold } => {
                    self.event(format!("Shutdown manager detected {name} event"));
                    statics.extend(self.end_pods().await);
                    tracing::info!("the pods have ended; the machine may go down");
                    drop(hold);
                }
                Announcement::Cancelled => {
                    self.event("Shutdown manager detected shutdown cancellation".to_owned());
                    self.goes_down.send_replace(false);
                    // Nobody makes other pods in their place.
                    self.agent.statics.again(&std::mem::take(&mut statics));
                }
            }
        }
        std::future::pending().await
    }

    /// Returns the UIDs of the static pods among them.
    async fn end_pods(&self) -> BTreeSet<String> {
        let begun = Timestamp::now().to_string();
        self.note(&Times { start_time: begun.clone(), end_time: NEVER.to_owned() });
        // A pod is either refused from here on or among those that end.
        self.goes_down.send_replace(true);
        let pods: Vec<(String, Arc<Pod>)> = self.agent.admitted().iter().map(|(uid, pod)| (uid.clone(), pod.clone())).collect();
        let statics = pods.iter().map(|(uid, _)| uid.clone()).filter(|uid| self.agent.statics.holds(uid)).collect();
        tracing::info!(pods = pods.len(), "the machine is about to go down; its pods end");
        let groups = plan::groups(&self.shutdown.periods, &pods);
        for group in &groups {
            self.end_group(group).await;
        }
        // Whatever group they are of: some may have taken all of their time.
        let ends = groups.iter().flat_map(|group| &group.pods).map(|pod| self.noted_end(&pod.uid));
        if tokio::time::timeout(NOTED, join_all(ends)).await.is_err() {
            tracing::warn!("the machine goes down before all pods have ended and the API knows of it");
        }
        self.note(&Times { start_time: begun, end_time: Timestamp::now().to_string() });
        statics
    }

    /// Ends pods, and waits until they have, at most for the group's period.
    async fn end_group(&self, group: &Group) {
        for pod in &group.pods {
            let evicted = Evicted { reason: Reason::Terminated, message: MESSAGE.to_owned(), grace: pod.grace, disruption: Some(MESSAGE.to_owned()) };
            self.agent.workers.tell(&pod.uid, Note::Done(Event::Evicted(evicted)));
        }
        let ends = group.pods.iter().map(|pod| self.noted_end(&pod.uid));
        if tokio::time::timeout(Duration::from_secs(group.seconds), join_all(ends)).await.is_err() {
            tracing::warn!(priority = group.priority, seconds = group.seconds, "pods did not end within their period of the shutdown");
        }
    }

    /// Waits until a pod's volumes are down and the API knows of its end.
    async fn noted_end(&self, uid: &str) {
        self.agent.reached(uid, End::Down).await;
        self.agent.statuses.flushed(uid).await;
    }

    fn event(&self, message: String) {
        self.agent.node_event(EventType::Normal, "NodeShutdown", message);
    }

    fn note(&self, times: &Times) {
        self.agent.counts.shutdown(seconds(&times.start_time), seconds(&times.end_time));
        let text = serde_json::to_vec(times).unwrap_or_default();
        let written = self.agent.dir.join(STATE_FILE).map_err(host::HostError::from).and_then(|file| self.agent.root.write_file(&file, &text, 0o644));
        if let Err(error) = written {
            tracing::warn!(error = %error.as_report(), "cannot keep when the shutdown began and ended");
        }
    }

    fn read(&self) -> Option<Times> {
        let file = self.agent.dir.join(STATE_FILE).ok()?;
        let text = self.agent.root.read(&file, STATE_LIMIT).ok()??;
        serde_json::from_slice(&text).inspect_err(|error| tracing::warn!(%error, "cannot read when the last shutdown was")).ok()
    }
}
