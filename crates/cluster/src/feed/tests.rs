use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};
use test_lab::api::{Reply, end_of_list, event, fake_client};
use test_lab::{in_time, until_async};

use super::*;

fn config_map(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "a", "name": name, "resourceVersion": "1"}, "data": {"v": value}})
}

fn bookmark() -> Value {
    end_of_list("v1", "ConfigMap", "9")
}

fn value(map: &ConfigMap) -> Option<String> {
    map.data.as_ref()?.get("v").cloned().filter(|value| value != "ignored")
}

/// Rows, and in which list each was last seen.
#[derive(Default)]
struct Shelf {
    rows: BTreeMap<String, (String, u32)>,
    list: u32,
    log: Vec<String>,
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Shelf>>);

impl Keeper<String> for Shared {
    fn begin(&self) {
        self.0.lock().unwrap().list += 1;
    }

    fn put(&self, key: Key, row: String) -> bool {
        let mut shelf = self.0.lock().unwrap();
        shelf.log.push(format!("{key}={row}"));
        let list = shelf.list;
        let old = shelf.rows.insert(key.to_string(), (row.clone(), list));
        old.is_none_or(|(old, _)| old != row)
    }

    fn remove(&self, key: &Key) -> bool {
        let mut shelf = self.0.lock().unwrap();
        shelf.log.push(format!("-{key}"));
        shelf.rows.remove(&key.to_string()).is_some()
    }

    fn end(&self) -> bool {
        let mut shelf = self.0.lock().unwrap();
        shelf.log.push("end".into());
        let (list, before) = (shelf.list, shelf.rows.len());
        shelf.rows.retain(|_, (_, seen)| *seen == list);
        before != shelf.rows.len()
    }
}

#[tokio::test]
async fn rows_go_to_their_keeper_and_only_differences_wake() {
    let client = fake_client(|_| {
        Reply::watch(
            vec![
                event("ADDED", config_map("x", "1")),
                event("ADDED", config_map("skipped", "ignored")),
                bookmark(),
                event("MODIFIED", config_map("x", "1")),
                event("MODIFIED", config_map("x", "2")),
                event("DELETED", config_map("nobody", "2")),
                event("MODIFIED", config_map("x", "ignored")),
            ],
            true,
        )
    });
    let shelf = Shared::default();
    let feed = Feed::start(Api::<ConfigMap>::all(client), Selection::all(), value, shelf.clone());
    in_time("the list", feed.synced()).await;
    let mut changed = feed.changed();
    in_time("the changes", changed.wait_for(|version| *version >= 3)).await.unwrap();
    assert_eq!(shelf.0.lock().unwrap().log, ["a/x=1", "end", "a/x=1", "a/x=2", "-a/nobody", "-a/x"]);
    assert_eq!(*changed.borrow(), 3, "the list, a change and a loss; an unchanged row and the deletion of an unknown one wake nobody");
}

#[tokio::test]
async fn rows_missing_in_a_later_list_are_removed_at_its_end() {
    let calls = AtomicUsize::new(0);
    let client = fake_client(move |_| match calls.fetch_add(1, Ordering::SeqCst) {
        0 => Reply::watch(
            vec![
                event("ADDED", config_map("gone", "1")),
                event("ADDED", config_map("kept", "2")),
                bookmark(),
                event("ERROR", json!({"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"})),
            ],
            false,
        ),
        1 => Reply::status(503, "restarting"),
        _ => Reply::watch(vec![event("ADDED", config_map("kept", "2")), event("ADDED", config_map("new", "3")), bookmark()], true),
    });
    let shelf = Shared::default();
    let feed = Feed::start(Api::<ConfigMap>::all(client), Selection::all(), value, shelf.clone());
    let mut changed = feed.changed();
    in_time("the changes", changed.wait_for(|version| *version >= 2)).await.unwrap();
    let shelf = shelf.0.lock().unwrap();
    assert!(shelf.rows.keys().eq(["a/kept", "a/new"]), "{:?}", shelf.rows);
    assert_eq!(shelf.log, ["a/gone=1", "a/kept=2", "end", "a/kept=2", "a/new=3", "end"], "nothing is removed while a list is under way");
}

#[tokio::test]
async fn the_watch_ends_with_its_feed() {
    let client = fake_client(|_| Reply::watch(vec![bookmark()], true));
    let feed = Feed::start(Api::<ConfigMap>::all(client), Selection::all(), value, Shared::default());
    feed.synced().await;
    let task = feed._attachment.task();
    drop(feed);
    until_async("the end of the watch", async || task.is_finished()).await;
}
