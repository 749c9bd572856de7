use super::*;
use serde_json::json;
use std::sync::Arc;

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}})
}

fn names(entries: &[(Arc<str>, Entry)]) -> Vec<String> {
    entries.iter().map(|(_, entry)| crate::object::name(&entry.value()).to_string()).collect()
}

fn revision_of(object: &Value) -> u64 {
    crate::object::resource_version(object).parse().unwrap()
}

#[tokio::test]
async fn writes_survive_a_restart_with_their_revisions() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let stored = store.put("core/pods/default/a", Expect::Absent, pod("a")).await.unwrap();
    let secret = json!({"metadata": {"name": "s"}, "data": {"password": "aHVudGVyMg=="}});
    store.put("core/secrets/default/s", Expect::Absent, secret).await.unwrap();
    let before = store.revision();
    store.close();
    drop(store);
    let raw = std::fs::read(dir.path().join("objects.redb")).unwrap();
    assert!(!raw.windows(12).any(|part| part == b"aHVudGVyMg=="), "the Secret lies on disk in the clear");

    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.get("core/pods/default/a").unwrap().revision, revision_of(&stored));
    assert_eq!(store.get("core/secrets/default/s").unwrap().value()["data"]["password"], "aHVudGVyMg==");
    assert!(store.revision() > before);
    assert_eq!(store.events("core/pods/", before, 10).unwrap_err().oldest, store.revision());
}

#[tokio::test]
async fn creation_and_replacement_check_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let first = store.put("core/pods/default/a", Expect::Absent, pod("a")).await.unwrap();
    assert_eq!(store.put("core/pods/default/a", Expect::Absent, pod("a")).await, Err(WriteError::Exists));
    let second = store.put("core/pods/default/a", Expect::Revision(revision_of(&first)), pod("a")).await.unwrap();
    assert_eq!(revision_of(&second), revision_of(&first) + 1);
    assert_eq!(store.put("core/pods/default/a", Expect::Revision(revision_of(&first)), pod("a")).await, Err(WriteError::Changed));
    assert_eq!(store.delete("core/pods/default/b", Expect::Revision(1), pod("b")).await, Err(WriteError::Changed));
    store.delete("core/pods/default/a", Expect::Revision(revision_of(&second)), pod("a")).await.unwrap();
    assert!(store.get("core/pods/default/a").is_none());
}

#[tokio::test]
async fn writes_together_are_all_made_or_none() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let create = |name: &str| Write { key: format!("core/pods/default/{name}"), expect: Expect::Absent, object: pod(name), removes: false };
    let made = store.write_all(vec![create("a"), create("b")]).await.unwrap();
    assert_eq!(revision_of(&made[1]), revision_of(&made[0]) + 1);
    let before = store.revision();
    assert_eq!(store.write_all(vec![create("c"), create("a")]).await.unwrap_err(), WriteError::Exists);
    assert_eq!((names(&store.list("core/pods/").1), store.revision()), (vec!["a".to_string(), "b".to_string()], before));
    let remove = Write { expect: Expect::Revision(revision_of(&made[0])), removes: true, ..create("a") };
    store.write_all(vec![create("c"), remove]).await.unwrap();
    store.close();
    drop(store);
    assert_eq!(names(&Store::open(dir.path()).unwrap().list("core/pods/").1), ["b", "c"]);
}

#[tokio::test]
async fn lists_of_the_past_undo_later_events() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let a = store.put("core/pods/default/a", Expect::Absent, pod("a")).await.unwrap();
    store.put("core/pods/default/b", Expect::Absent, pod("b")).await.unwrap();
    let (then, _) = store.list("core/pods/");
    store.delete("core/pods/default/a", Expect::Revision(revision_of(&a)), pod("a")).await.unwrap();
    store.put("core/pods/default/c", Expect::Absent, pod("c")).await.unwrap();
    store.put("core/nodes//c", Expect::Absent, pod("c")).await.unwrap();
    assert_eq!(names(&store.list("core/pods/").1), ["b", "c"]);
    assert_eq!(names(&store.list_at("core/pods/", then).unwrap()), ["a", "b"]);
    assert_eq!(names(&store.list_at("core/pods/", then - 1).unwrap()), ["a"]);
}

#[tokio::test]
async fn events_come_in_order_for_one_prefix() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let start = store.revision();
    let a = store.put("core/pods/default/a", Expect::Absent, pod("a")).await.unwrap();
    store.put("core/nodes//n", Expect::Absent, pod("n")).await.unwrap();
    store.delete("core/pods/default/a", Expect::Revision(revision_of(&a)), pod("a")).await.unwrap();
    let (events, cursor) = store.events("core/pods/", start, 10).unwrap();
    assert_eq!(events.iter().map(|event| event.change).collect::<Vec<_>>(), [Change::Added, Change::Deleted]);
    assert_eq!(events[1].previous.as_ref().unwrap().revision, revision_of(&a));
    assert_eq!(cursor, store.revision());
    let (first, cursor) = store.events("core/pods/", start, 1).unwrap();
    assert_eq!((first.len(), cursor), (1, revision_of(&a)));
    assert_eq!(store.last_change("core/nodes/"), revision_of(&a) + 1);
}

#[tokio::test]
async fn what_the_disk_refuses_is_undone() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    store.put("core/pods/default/a", Expect::Absent, pod("a")).await.unwrap();
    let published = store.revision();
    let mut state = store.shared.lock();
    let entry = Entry { revision: published + 1, bytes: b"{}"[..].into() };
    state.index.insert("core/pods/default/b".into(), entry.clone());
    state.revision = published + 1;
    let event = Event { revision: published + 1, key: "core/pods/default/b".into(), change: Change::Added, object: entry.bytes, previous: None };
    state.window.push(Arc::new(event), std::time::Instant::now());
    state.roll_back(published);
    drop(state);
    assert_eq!(store.revision(), published);
    assert!(store.get("core/pods/default/b").is_none());
    assert!(store.events("core/pods/", published, 10).unwrap().0.is_empty());
}

#[tokio::test]
async fn many_writers_share_commits() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::open(dir.path()).unwrap());
    let start = store.revision();
    let writers: Vec<_> = (0..200)
        .map(|number| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                store.put(&format!("core/pods/default/p{number}"), Expect::Absent, pod("p")).await.unwrap();
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(store.revision(), start + 200);
    assert_eq!(store.list("core/pods/default/").1.len(), 200);
}

#[tokio::test]
async fn a_topic_that_was_quiet_misses_nothing_while_the_window_moves_on() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let bound = |name: &str, node: &str| {
        let mut pod = pod(name);
        pod["spec"] = json!({"nodeName": node});
        pod
    };
    let (mine, start) = (Topic::PodsOf("n1".into()), store.revision());
    let mut woken = store.follow(&mine);
    // More than the window holds, and none of it this node's.
    for number in 0..10 {
        let other = bound(&format!("other-{number}"), "n2");
        store.put(&format!("core/pods/default/other-{number}"), Expect::Absent, other).await.unwrap();
    }
    store.shared.lock().window.move_on();
    assert!(store.events("core/pods/", start, 10).is_err(), "the window has moved on");
    assert!(!woken.has_changed().unwrap(), "nobody is woken for others");
    let own = store.put("core/pods/default/own", Expect::Absent, bound("own", "n1")).await.unwrap();
    assert_eq!(*woken.borrow_and_update(), revision_of(&own));
    let (events, cursor) = store.events_of(&mine, "core/pods/", start, 10).unwrap();
    assert_eq!((events.len(), events[0].revision, cursor), (1, revision_of(&own), store.revision()));
    assert_eq!(names(&store.list_of(&mine, "core/pods/").1), ["own"]);
    // It leaves the node that it was on, and the watch of that node has to say so.
    let gone = store.delete("core/pods/default/own", Expect::Revision(revision_of(&own)), bound("own", "n1")).await.unwrap();
    assert_eq!(*woken.borrow_and_update(), revision_of(&gone));
    let (events, _) = store.events_of(&mine, "core/pods/", cursor, 10).unwrap();
    assert_eq!(events[0].change, Change::Deleted);
    assert!(store.list_of(&mine, "core/pods/").1.is_empty());
    drop(store);
    assert_eq!(Store::open(dir.path()).unwrap().list_of(&Topic::PodsOf("n2".into()), "core/pods/").1.len(), 10, "after a restart too");
}
