//! One API server: its watches, whether it streams lists, and counts of failures.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::watch;

use crate::hub::Hub;

/// How long a server may send nothing while it streams a list. client-go warns after the same time.
const SILENCE: Duration = Duration::from_secs(10);
/// How long a streamed list may take. A server that takes `sendInitialEvents` for nothing sends changes, and never the list's end.
const LONGEST: Duration = Duration::from_secs(60);

/// One API server, with the watches that this process has there. Clones are the same server. Give each informer and feed of a server the
/// same value ([`Selection::of`](crate::Selection::of)): they share watches, and what one finds out spares the others the attempt. A
/// watch is opened with the client of one of its readers, so their clients must be allowed to read the same objects.
#[derive(Clone, Debug)]
pub struct ApiServer(Arc<State>);

#[derive(Debug)]
struct State {
    refuses: watch::Sender<bool>,
    watches: Mutex<BTreeMap<String, Watches>>,
    hub: Hub,
    silence: Duration,
    longest: Duration,
}

/// Counts of the watches of one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watches {
    /// Lists that were read page by page because the server does not stream them.
    pub fallbacks: u64,
    /// Lists and watches that failed, each attempt.
    pub failures: u64,
}

impl Default for ApiServer {
    fn default() -> Self {
        Self::with_limits(SILENCE, LONGEST)
    }
}

impl PartialEq for ApiServer {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ApiServer {}

impl ApiServer {
    pub(crate) fn with_limits(silence: Duration, longest: Duration) -> Self {
        Self(Arc::new(State { refuses: watch::Sender::new(false), watches: Mutex::default(), hub: Hub::default(), silence, longest }))
    }

    /// Whether lists are streamed: it was not found yet that the server refuses.
    pub fn streams_lists(&self) -> bool {
        !*self.0.refuses.borrow()
    }

    /// Path and selection of each open watch, such as `/api/v1/nodes metadata.name=win01`.
    pub fn open_watches(&self) -> Vec<String> {
        self.0.hub.open()
    }

    pub(crate) fn hub(&self) -> &Hub {
        &self.0.hub
    }

    /// Counts by resource, such as `pods`.
    pub fn watches(&self) -> BTreeMap<String, Watches> {
        self.lock().clone()
    }

    /// The counts as text for Prometheus.
    pub fn metrics(&self) -> String {
        let watches = self.watches();
        let mut text = String::new();
        let mut family = |name: &str, help: &str, count: fn(&Watches) -> u64| {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter");
            for (resource, counts) in &watches {
                let _ = writeln!(text, "{name}{{resource={resource:?}}} {}", count(counts));
            }
        };
        family("mullion_watch_failures_total", "Lists and watches of the API server that failed.", |counts| counts.failures);
        family(
            "mullion_streaming_list_fallbacks_total",
            "Lists that were read page by page because the API server does not stream them.",
            |counts| counts.fallbacks,
        );
        text
    }

    /// Remembers that the server does not stream lists. Said once.
    pub(crate) fn refuse(&self, resource: &str, reason: &str) {
        if self.0.refuses.send_replace(true) {
            return;
        }
        tracing::warn!(
            resource,
            "cannot stream lists from the API server: {reason}; listing page by page and watching instead, which costs the server more. \
             Kubernetes with the feature gate WatchList on etcd 3.4.31, 3.5.13 or newer streams lists"
        );
    }

    /// Completes when it is known that the server does not stream lists.
    pub(crate) async fn refused(&self) {
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.0.refuses.subscribe().wait_for(|refuses| *refuses).await;
    }

    pub(crate) fn silence(&self) -> Duration {
        self.0.silence
    }

    pub(crate) fn longest(&self) -> Duration {
        self.0.longest
    }

    pub(crate) fn count_fallback(&self, resource: &str) {
        self.lock().entry(resource.to_owned()).or_default().fallbacks += 1;
    }

    pub(crate) fn count_failure(&self, resource: &str) {
        self.lock().entry(resource.to_owned()).or_default().failures += 1;
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Watches>> {
        self.0.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
