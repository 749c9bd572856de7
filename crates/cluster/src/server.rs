//! One API server: its watches, whether it streams lists, and counts of failures.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
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
    fallbacks: Counts,
    failures: Counts,
    hub: Hub,
    silence: Duration,
    longest: Duration,
}

/// Counts by resource, such as `pods`.
type Counts = Family<Resource, Counter>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Resource {
    resource: String,
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
        let (refuses, fallbacks, failures) = (watch::Sender::new(false), Counts::default(), Counts::default());
        Self(Arc::new(State { refuses, fallbacks, failures, hub: Hub::default(), silence, longest }))
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

    /// Counts of a resource, such as `pods`.
    pub fn watches(&self, resource: &str) -> Watches {
        let resource = Resource { resource: resource.to_owned() };
        let count = |counts: &Counts| counts.get_or_create(&resource).get();
        Watches { fallbacks: count(&self.0.fallbacks), failures: count(&self.0.failures) }
    }

    /// Registers the counts of all resources as metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("mullion_watch_failures", "Lists and watches of the API server that failed", self.0.failures.clone());
        let help = "Lists that were read page by page because the API server does not stream them";
        registry.register("mullion_streaming_list_fallbacks", help, self.0.fallbacks.clone());
    }

    /// Remembers that the server does not stream lists. Logged once.
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
        // The sender is in `self`, so waiting cannot fail.
        let _ = self.0.refuses.subscribe().wait_for(|refuses| *refuses).await;
    }

    pub(crate) fn silence(&self) -> Duration {
        self.0.silence
    }

    pub(crate) fn longest(&self) -> Duration {
        self.0.longest
    }

    pub(crate) fn count_fallback(&self, resource: &str) {
        self.count(resource, &self.0.fallbacks);
    }

    pub(crate) fn count_failure(&self, resource: &str) {
        self.count(resource, &self.0.failures);
    }

    fn count(&self, resource: &str, counts: &Counts) {
        let resource = Resource { resource: resource.to_owned() };
        // Both are shown of a resource that has one.
        for counts in [&self.0.fallbacks, &self.0.failures] {
            drop(counts.get_or_create(&resource));
        }
        counts.get_or_create(&resource).inc();
    }
}
