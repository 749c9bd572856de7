//! What goes with time: Events an hour after they were last written (`--event-ttl`), lists of earlier revisions after five minutes
//! (`--etcd-compaction-interval`).

use super::Registry;
use crate::object;
use crate::store::Expect;
use jiff::Timestamp;
use serde_json::Value;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

const PREFIX: &str = "core/events/";
/// How long an Event stays.
pub const EVENT_SECONDS: i64 = 3600;
/// Time between sweeps.
pub const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// How long a list can be continued as it was.
pub const KEEP_REVISIONS: Duration = Duration::from_secs(300);

/// The revisions that were the latest at the last sweeps, oldest first.
#[derive(Default)]
pub struct Revisions(VecDeque<(Instant, u64)>);

impl Revisions {
    /// Notes the latest revision. Answers with the latest one that is older than [`KEEP_REVISIONS`].
    pub fn note(&mut self, now: Instant, revision: u64) -> Option<u64> {
        self.0.push_back((now, revision));
        let old = self.0.partition_point(|(at, _)| now.duration_since(*at) >= KEEP_REVISIONS);
        self.0.drain(..old).next_back().map(|(_, revision)| revision)
    }
}

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
    use crate::http::query::Query;
    use crate::kind::{Cluster, Kinds};
    use crate::registry::read::Selection;
    use crate::store::Store;
    use serde_json::json;
    use std::sync::Arc;

    #[test]
    fn revisions_are_kept_for_five_minutes() {
        let (start, mut revisions) = (Instant::now(), Revisions::default());
        let mut note = |seconds, revision| revisions.note(start + Duration::from_secs(seconds), revision);
        assert_eq!((note(0, 1), note(60, 5), note(299, 6)), (None, None, None));
        assert_eq!(note(361, 9), Some(5));
        assert_eq!(note(362, 9), None);
        assert_eq!(note(3600, 9), Some(9));
    }

    fn registry(store: &Arc<Store>) -> Registry {
        let cluster = Cluster {
            allocators: Allocators::new("10.96.0.0/12".parse().unwrap(), 30000..=32767),
            authorizer: Arc::new(Authorizer::new(Arc::clone(store))),
            store: Arc::clone(store),
            kinds: Kinds::new([]),
            webhooks: Default::default(),
        };
        Registry { cluster, admission: Chain::default() }
    }

    #[tokio::test]
    async fn a_list_goes_on_after_its_revision_has_gone() {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(dir.path()).unwrap());
        let (registry, kind) = (registry(&store), crate::kinds::by_resource("", "v1", "configmaps").unwrap());
        let add = async |name: &str| store.put(&format!("core/configmaps/a/{name}"), Expect::Absent, json!({"metadata": {"name": name}})).await;
        for name in ["a", "b"] {
            add(name).await.unwrap();
        }
        let list = async |query: &str| {
            let query = Query::parse(query);
            registry.list(kind, "a", &Selection::parse(kind, &query)?, &query).await
        };
        let first = list("limit=1").await.unwrap();
        add("c").await.unwrap();
        let second = list(&format!("limit=1&continue={}", first.next)).await.unwrap();
        assert_eq!((second.entries.len(), &*second.next, second.revision), (1, "", first.revision), "the list that was begun");
        store.compact(store.revision());
        let error = list(&format!("limit=1&continue={}", first.next)).await.err().unwrap().to_value();
        assert_eq!((&error["code"], &error["reason"], error.get("details")), (&json!(410), &json!("Expired"), None));
        let token = error["metadata"]["continue"].as_str().unwrap();
        let second = list(&format!("limit=1&continue={token}")).await.unwrap();
        assert_eq!((second.entries.len(), second.next.is_empty(), second.revision), (1, false, store.revision()), "as it is now");
        assert!(list(&format!("resourceVersion={}&resourceVersionMatch=Exact", first.revision)).await.is_err());
    }

    #[tokio::test]
    async fn only_old_events_go() {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(dir.path()).unwrap());
        let registry = registry(&store);
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
