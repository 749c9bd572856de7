use super::*;
use crate::http::query::Query;
use crate::kinds;
use crate::store::Expect;
use futures::StreamExt;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

struct Fixture {
    store: Arc<Store>,
    shutdown: CancellationToken,
    _dir: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { store: Arc::new(Store::open(dir.path()).unwrap()), shutdown: CancellationToken::new(), _dir: dir }
    }

    async fn put(&self, name: &str, label: &str, expect: Expect) -> u64 {
        let map = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name, "namespace": "a", "labels": {"on": label}}});
        let stored = self.store.put(&format!("core/configmaps/a/{name}"), expect, map).await.unwrap();
        object::resource_version(&stored).parse().unwrap()
    }

    fn request(start: Start, query: &str) -> Request {
        let kind = kinds::by_resource("", "v1", "configmaps").unwrap();
        Request {
            kind: Arc::clone(kind),
            namespace: "a".into(),
            selection: Selection::parse(kind, &Query::parse(query)).unwrap(),
            start,
            bookmarks: true,
            timeout: Duration::from_millis(50),
            transform: Transform::None,
            include_object: String::new(),
            registry: None,
        }
    }

    /// All events until the watch times out, as (type, name, revision).
    async fn run(&self, request: Request) -> Vec<(String, String, String)> {
        let watch = Watch::start(Arc::clone(&self.store), request, self.shutdown.clone()).unwrap();
        let chunks: Vec<Bytes> = watch.into_stream().map(|chunk| chunk.unwrap()).collect().await;
        let lines = String::from_utf8(chunks.concat()).unwrap();
        let parse = |line: &str| {
            let event: Value = serde_json::from_str(line).unwrap();
            let object = &event["object"];
            (event["type"].as_str().unwrap().to_string(), object::name(object).to_string(), object::resource_version(object).to_string())
        };
        lines.lines().map(parse).collect()
    }
}

fn event(kind: &str, name: &str, revision: u64) -> (String, String, String) {
    (kind.to_string(), name.to_string(), revision.to_string())
}

#[tokio::test]
async fn leaving_a_selection_shows_the_last_state_inside() {
    let fixture = Fixture::new();
    let start = fixture.store.revision();
    let first = fixture.put("x", "yes", Expect::Absent).await;
    let second = fixture.put("x", "no", Expect::Revision(first)).await;
    fixture.put("other", "no", Expect::Absent).await;
    let events = fixture.run(Fixture::request(Start::After(start), "labelSelector=on%3Dyes")).await;
    assert_eq!(events, [event("ADDED", "x", first), event("DELETED", "x", second)]);
}

#[tokio::test]
async fn initial_events_end_with_a_bookmark() {
    let fixture = Fixture::new();
    let first = fixture.put("x", "yes", Expect::Absent).await;
    let events = fixture.run(Fixture::request(Start::StateThenBookmark, "")).await;
    assert_eq!(events, [event("ADDED", "x", first), event("BOOKMARK", "", first)]);
}

#[tokio::test]
async fn a_watch_from_before_the_window_is_told_so() {
    let fixture = Fixture::new();
    let watch = fixture.run(Fixture::request(Start::After(0), "")).await;
    assert_eq!(watch.len(), 1);
    assert_eq!(watch[0].0, "ERROR");
}

#[tokio::test]
async fn a_version_that_has_not_come_is_refused() {
    let fixture = Fixture::new();
    let request = Fixture::request(Start::After(fixture.store.revision() + 1), "");
    let error = Watch::start(Arc::clone(&fixture.store), request, fixture.shutdown.clone()).err().unwrap();
    assert_eq!(error.code, 504);
}

#[tokio::test]
async fn many_events_arrive_in_order_through_small_batches() {
    let fixture = Fixture::new();
    let start = fixture.store.revision();
    for number in 0..(3 * BATCH) {
        fixture.put(&format!("m{number:04}"), "yes", Expect::Absent).await;
    }
    let events = fixture.run(Fixture::request(Start::After(start), "")).await;
    let revisions: Vec<u64> = events.iter().map(|(_, _, revision)| revision.parse().unwrap()).collect();
    assert_eq!(revisions, (start + 1..=start + 3 * BATCH as u64).collect::<Vec<_>>());
}

#[tokio::test]
async fn shutdown_ends_a_watch() {
    let fixture = Fixture::new();
    let request = Request { timeout: Duration::from_secs(3600), ..Fixture::request(Start::State, "") };
    fixture.shutdown.cancel();
    assert!(fixture.run(request).await.is_empty());
}

/// What a client that lists and then watches believes must be what is stored, whatever happens in between.
#[tokio::test]
async fn list_and_watch_add_up_to_the_stored_state() {
    let fixture = Arc::new(Fixture::new());
    let writers: Vec<_> = (0..4_u32)
        .map(|writer| {
            let fixture = Arc::clone(&fixture);
            tokio::spawn(async move {
                for round in 0..60_u32 {
                    let key = format!("core/configmaps/a/m{}", (writer * 7 + round * 3) % 10);
                    let name = key.rsplit('/').next().unwrap_or_default().to_string();
                    let label = if round % 2 == 0 { "yes" } else { "no" };
                    let map = json!({"kind": "ConfigMap", "metadata": {"name": name, "labels": {"on": label}}});
                    // Lost races are part of the game.
                    let _ = match fixture.store.get(&key) {
                        Some(entry) if round % 5 == 0 => fixture.store.delete(&key, Expect::Revision(entry.revision), map).await,
                        Some(entry) => fixture.store.put(&key, Expect::Revision(entry.revision), map).await,
                        None => fixture.store.put(&key, Expect::Absent, map).await,
                    };
                }
            })
        })
        .collect();
    tokio::task::yield_now().await;
    let request = Request { timeout: Duration::from_secs(5), bookmarks: false, ..Fixture::request(Start::State, "labelSelector=on%3Dyes") };
    let events = fixture.run(request).await;
    for writer in writers {
        writer.await.unwrap();
    }
    let mut believed = std::collections::BTreeMap::new();
    for (kind, name, revision) in events {
        match kind.as_str() {
            "ADDED" => assert!(believed.insert(name.clone(), revision).is_none(), "{name} was added twice"),
            "MODIFIED" => assert!(believed.insert(name.clone(), revision).is_some(), "{name} was modified before it was added"),
            "DELETED" => assert!(believed.remove(&name).is_some(), "{name} was deleted before it was added"),
            other => panic!("{other}"),
        }
    }
    let (_, rows) = fixture.store.list("core/configmaps/a/");
    let selection = Fixture::request(Start::State, "labelSelector=on%3Dyes").selection;
    let stored: std::collections::BTreeMap<String, String> = rows
        .iter()
        .map(|(_, entry)| entry.value())
        .filter(|object| selection.matches(object))
        .map(|object| (object::name(&object).to_string(), object::resource_version(&object).to_string()))
        .collect();
    assert!(!stored.is_empty());
    assert_eq!(believed, stored);
}
