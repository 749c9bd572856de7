//! Events go an hour after they were last written (`--event-ttl`).

use super::Registry;
use crate::object;
use crate::store::Expect;
use jiff::Timestamp;
use serde_json::Value;
use std::time::Duration;

const PREFIX: &str = "core/events/";
/// How long an Event stays.
pub const EVENT_SECONDS: i64 = 3600;
/// Time between sweeps.
pub const SWEEP_EVERY: Duration = Duration::from_secs(60);

impl Registry {
    /// Deletes the Events that are older than [`EVENT_SECONDS`] at `now`.
    pub async fn expire_events(&self, now: Timestamp) {
        for (key, entry) in self.store.list(PREFIX).1 {
            let event = entry.value();
            if last_written(&event).is_some_and(|at| now.as_second() - at.as_second() > EVENT_SECONDS)
                && let Err(error) = self.store.delete(&key, Expect::Revision(entry.revision), event).await
            {
                tracing::debug!(%key, %error, "an old event stays for now");
            }
        }
    }
}

/// The latest time that an Event names.
fn last_written(event: &Value) -> Option<Timestamp> {
    let paths: [&[&str]; 5] =
        [&["series", "lastObservedTime"], &["lastTimestamp"], &["eventTime"], &["firstTimestamp"], &["metadata", "creationTimestamp"]];
    paths.iter().filter_map(|path| object::text(event, path).parse().ok()).max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::Chain;
    use crate::alloc::Allocators;
    use crate::authz::Authorizer;
    use crate::kind::{Cluster, Kinds};
    use crate::store::Store;
    use serde_json::json;
    use std::sync::Arc;

    #[tokio::test]
    async fn only_old_events_go() {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(dir.path()).unwrap());
        let cluster = Cluster {
            allocators: Allocators::new("10.96.0.0/12".parse().unwrap(), 30000..=32767),
            authorizer: Arc::new(Authorizer::new(Arc::clone(&store))),
            store: Arc::clone(&store),
            kinds: Kinds::new([]),
        };
        let registry = Registry { cluster, admission: Chain::default() };
        let event = |created: &str, last: &str| json!({"metadata": {"creationTimestamp": created}, "lastTimestamp": last});
        store.put("core/events/a/old", Expect::Absent, event("2026-01-01T00:00:00Z", "2026-01-01T00:10:00Z")).await.unwrap();
        store.put("core/events/a/repeated", Expect::Absent, event("2026-01-01T00:00:00Z", "2026-01-01T00:50:00Z")).await.unwrap();
        store.put("core/configmaps/a/old", Expect::Absent, event("2026-01-01T00:00:00Z", "")).await.unwrap();
        registry.expire_events("2026-01-01T01:20:00Z".parse().unwrap()).await;
        assert!(store.get("core/events/a/old").is_none());
        assert!(store.get("core/events/a/repeated").is_some());
        assert!(store.get("core/configmaps/a/old").is_some());
    }
}
