use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};
use test_lab::api::{Reply, end_of_list, event, fake_client};
use test_lab::until_async;

use super::*;

fn config_map(name: &str, version: u64, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "a", "name": name, "resourceVersion": version.to_string()}, "data": {"v": value}})
}

fn bookmark(version: u64) -> Value {
    end_of_list("v1", "ConfigMap", &version.to_string())
}

fn value(map: &ConfigMap) -> Option<String> {
    map.data.as_ref()?.get("v").cloned().filter(|value| value != "ignored")
}

fn rows(informer: &Informer<String>) -> Vec<String> {
    informer.snapshot().iter().map(|(key, row)| format!("{key}={row}")).collect()
}

#[tokio::test]
async fn informer_reads_a_streamed_list_and_then_changes() {
    let client = fake_client(|request| {
        assert!(request.query.contains("watch=true"), "{}", request.query);
        Reply::watch(
            vec![
                event("ADDED", config_map("x", 1, "1")),
                event("ADDED", config_map("skipped", 2, "ignored")),
                bookmark(3),
                event("ADDED", config_map("y", 4, "2")),
                event("MODIFIED", config_map("x", 5, "3")),
                event("DELETED", config_map("y", 6, "2")),
                event("MODIFIED", config_map("x", 7, "3")),
            ],
            true,
        )
    });
    let log = Arc::new(Mutex::new(Vec::new()));
    let changes = log.clone();
    let informer = Informer::start_with_handler(Api::<ConfigMap>::all(client), Selection::all(), value, move |change| {
        changes.lock().unwrap().push(format!("{} {:?}->{:?}", change.key, change.old, change.new));
    });
    let mut changed = informer.changed();
    informer.synced().await;
    changed.wait_for(|version| *version >= 4).await.unwrap();
    assert_eq!(rows(&informer), ["a/x=3"]);
    assert_eq!(informer.get(Key::new("a", "x")).as_deref().map(String::as_str), Some("3"));
    assert_eq!(informer.in_namespace("a").len(), 1);
    assert!(informer.in_namespace("b").is_empty());
    let expected = ["a/x None->Some(\"1\")", "a/y None->Some(\"2\")", "a/x Some(\"1\")->Some(\"3\")", "a/y Some(\"2\")->None"];
    assert_eq!(*log.lock().unwrap(), expected, "an unchanged row is not reported");
}

#[tokio::test]
async fn a_server_that_does_not_stream_is_listed_in_pages() {
    let client = fake_client(|request| {
        if request.query.contains("sendInitialEvents") {
            return Reply::status(422, "sendInitialEvents is forbidden");
        }
        if request.query.contains("watch=true") {
            assert!(request.query.contains("resourceVersion=9"), "{}", request.query);
            return Reply::watch(vec![], true);
        }
        let (item, next) = if request.query.contains("continue=more") { ("two", "") } else { ("one", "more") };
        Reply::json(
            200,
            json!({"apiVersion": "v1", "kind": "ConfigMapList", "metadata": {"resourceVersion": "9", "continue": next}, "items": [config_map(item, 1, "v")]}),
        )
    });
    let informer = Informer::start(Api::<ConfigMap>::all(client), Selection::all(), value);
    informer.synced().await;
    assert_eq!(rows(&informer), ["a/one=v", "a/two=v"]);
    let late = Arc::new(Mutex::new(Vec::new()));
    let log = late.clone();
    informer.subscribe(move |change| log.lock().unwrap().push(change.key.to_string()));
    assert_eq!(*late.lock().unwrap(), ["a/one", "a/two"], "a late subscriber hears of the rows there are");
}

#[tokio::test]
async fn after_410_the_list_is_compared() {
    let calls = AtomicUsize::new(0);
    let client = fake_client(move |_| match calls.fetch_add(1, Ordering::SeqCst) {
        0 => Reply::watch(
            vec![
                event("ADDED", config_map("gone", 1, "1")),
                event("ADDED", config_map("kept", 2, "2")),
                bookmark(3),
                event("ERROR", json!({"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"})),
            ],
            false,
        ),
        1 => Reply::status(503, "restarting"),
        _ => Reply::watch(vec![event("ADDED", config_map("kept", 2, "2")), event("ADDED", config_map("new", 9, "3")), bookmark(9)], true),
    });
    let log = Arc::new(Mutex::new(Vec::new()));
    let changes = log.clone();
    let informer = Informer::start_with_handler(Api::<ConfigMap>::all(client), Selection::all(), value, move |change| {
        changes.lock().unwrap().push(format!("{} {:?}->{:?}", change.key, change.old, change.new));
    });
    let mut changed = informer.changed();
    changed.wait_for(|version| *version >= 2).await.unwrap();
    assert_eq!(rows(&informer), ["a/kept=2", "a/new=3"]);
    let log = log.lock().unwrap();
    assert_eq!(log[2..], ["a/new None->Some(\"3\")", "a/gone Some(\"1\")->None"], "{log:?}");
}

#[tokio::test]
async fn dropping_the_last_clone_ends_the_watch() {
    let client = fake_client(|_| Reply::watch(vec![bookmark(1)], true));
    let informer = Informer::start(Api::<ConfigMap>::all(client), Selection::all(), value);
    informer.synced().await;
    let task = informer.attachment.task();
    let clone = informer.clone();
    drop(informer);
    tokio::task::yield_now().await;
    assert!(!task.is_finished());
    drop(clone);
    until_async("the end of the watch", async || task.is_finished()).await;
}
