use std::{
    collections::BTreeMap,
    sync::{Mutex, atomic::AtomicUsize},
    time::Duration,
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{api::DynamicObject, core::PartialObjectMeta};
use serde_json::{Value, json};
use test_lab::api::{Reply, Seen, end_of_list, event, fake_client, fake_server};
use test_lab::{in_time, until_async};

use super::*;
use crate::{Feed, Informer, Keeper};

fn config_map(name: &str, app: &str) -> Value {
    let metadata = json!({"namespace": "a", "name": name, "resourceVersion": "1", "labels": {"app": app}});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"v": format!("{name}-{app}")}})
}

fn bookmark() -> Value {
    end_of_list("v1", "ConfigMap", "9")
}

/// A server with two objects, `x` of app `web` and `y` of app `db`, whose watches stay open, and the queries it has seen.
fn two_objects() -> (kube::Client, Arc<Mutex<Vec<String>>>) {
    let queries = Arc::new(Mutex::new(Vec::new()));
    let log = queries.clone();
    let client = fake_client(move |request: &Seen| {
        log.lock().unwrap().push(format!("{}?{}", request.path, request.query));
        let listed = [config_map("x", "web"), config_map("y", "db")];
        let selected = |object: &&Value| !request.query.contains("name%3Dx") || object["metadata"]["name"] == "x";
        let mut lines: Vec<Value> = listed.iter().filter(selected).map(|object| event("ADDED", object.clone())).collect();
        lines.push(bookmark());
        Reply::watch(lines, true)
    });
    (client, queries)
}

fn value(map: &ConfigMap) -> Option<String> {
    map.data.as_ref()?.get("v").cloned()
}

fn rows(informer: &Informer<String>) -> Vec<String> {
    informer.snapshot().into_iter().map(|(_, row)| row.to_string()).collect()
}

fn start(client: &kube::Client, selection: Selection) -> Informer<String> {
    Informer::start(Api::<ConfigMap>::all(client.clone()), selection, value)
}

async fn synced<R>(informer: &Informer<R>) {
    in_time("the first list", informer.synced()).await;
}

#[tokio::test]
async fn readers_of_one_kind_share_one_watch() {
    let (client, queries) = two_objects();
    let server = ApiServer::default();
    let first = start(&client, Selection::all().of(&server));
    let second = start(&client, Selection::all().of(&server));
    let named = start(&client, Selection::fields("metadata.name=x").of(&server));
    let labelled = start(&client, Selection::labels("app in (db)").of(&server));
    for informer in [&first, &second, &named, &labelled] {
        synced(informer).await;
    }
    assert_eq!(rows(&first), ["x-web", "y-db"]);
    assert_eq!(rows(&second), ["x-web", "y-db"]);
    assert_eq!(rows(&named), ["x-web"]);
    assert_eq!(rows(&labelled), ["y-db"]);
    assert_eq!(server.open_watches(), ["/api/v1/configmaps"]);
    assert_eq!(queries.lock().unwrap().len(), 1, "all joined before the watch began");
}

#[tokio::test]
async fn servers_and_selections_that_cannot_be_evaluated_have_watches_of_their_own() {
    let (client, _) = two_objects();
    let server = ApiServer::default();
    let _all = start(&client, Selection::all().of(&server));
    let _other = start(&client, Selection::fields("data.v=x").of(&server));
    let _namespaced = Informer::start(Api::<ConfigMap>::namespaced(client.clone(), "a"), Selection::all().of(&server), value);
    let _elsewhere = start(&client, Selection::all());
    assert_eq!(server.open_watches(), ["/api/v1/configmaps", "/api/v1/configmaps data.v=x", "/api/v1/namespaces/a/configmaps"]);
}

#[tokio::test]
async fn different_selections_are_not_widened() {
    let (client, _) = two_objects();
    let server = ApiServer::default();
    let _x = start(&client, Selection::fields("metadata.name=x").of(&server));
    let _again = start(&client, Selection::fields("metadata.name=x").of(&server));
    let _y = start(&client, Selection::fields("metadata.name=y").of(&server));
    assert_eq!(server.open_watches(), ["/api/v1/configmaps metadata.name=x", "/api/v1/configmaps metadata.name=y"]);
}

#[tokio::test]
async fn late_reader_gets_the_present_state_and_wakes_no_others() {
    let (client, queries) = two_objects();
    let server = ApiServer::default();
    let first = start(&client, Selection::all().of(&server));
    synced(&first).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    first.subscribe(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
    });
    let before = (calls.load(Ordering::SeqCst), *first.changed().borrow());
    let late = start(&client, Selection::fields("metadata.name=y").of(&server));
    synced(&late).await;
    assert_eq!(rows(&late), ["y-db"]);
    assert_eq!(rows(&first), ["x-web", "y-db"]);
    assert_eq!((calls.load(Ordering::SeqCst), *first.changed().borrow()), before, "an unchanged list is not reported");
    assert_eq!((server.open_watches().len(), queries.lock().unwrap().len()), (1, 2), "it listed again");
}

#[tokio::test]
async fn wider_watch_takes_over_the_readers_of_a_narrow_one() {
    let (client, queries) = two_objects();
    let server = ApiServer::default();
    let named = start(&client, Selection::fields("metadata.name=x").of(&server));
    synced(&named).await;
    let (task, version) = (named.attachment.task(), *named.changed().borrow());
    let all = start(&client, Selection::all().of(&server));
    synced(&all).await;
    assert_eq!(server.open_watches(), ["/api/v1/configmaps"]);
    assert_eq!((rows(&named), rows(&all).len()), (vec!["x-web".to_owned()], 2));
    assert_eq!(*named.changed().borrow(), version, "what it selects is the same");
    until_async("the end of the narrow watch", async || task.is_finished()).await;
    assert_eq!(queries.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn changes_reach_each_reader_in_its_own_selection() {
    let opened = Arc::new(AtomicUsize::new(0));
    let count = opened.clone();
    let client = fake_client(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        Reply::watch(
            vec![
                event("ADDED", config_map("x", "web")),
                bookmark(),
                event("MODIFIED", config_map("x", "db")),
                event("ADDED", config_map("z", "web")),
                event("DELETED", config_map("z", "web")),
                event("ADDED", config_map("end", "end")),
            ],
            true,
        )
    });
    let server = ApiServer::default();
    let all = start(&client, Selection::all().of(&server));
    let log = Arc::new(Mutex::new(Vec::new()));
    let lines = log.clone();
    let web = Informer::start_with_handler(Api::<ConfigMap>::all(client), Selection::labels("app=web").of(&server), value, move |change| {
        lines.lock().unwrap().push(format!("{} {:?}->{:?}", change.key, change.old, change.new));
    });
    let mut changed = all.changed();
    in_time("the last change", changed.wait_for(|_| all.len() == 2)).await.unwrap();
    assert_eq!(rows(&all), ["end-end", "x-db"]);
    assert!(web.is_empty());
    let expected = ["a/x None->Some(\"x-web\")", "a/x Some(\"x-web\")->None", "a/z None->Some(\"z-web\")", "a/z Some(\"z-web\")->None"];
    assert_eq!(*log.lock().unwrap(), expected, "an object that is no longer selected is gone");
    assert_eq!(opened.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn readers_of_metadata_share_the_watch_of_whole_objects() {
    let (client, _) = two_objects();
    let server = ApiServer::default();
    let api = || Api::<PartialObjectMeta<DynamicObject>>::all_with(client.clone(), &kube::api::ApiResource::erase::<ConfigMap>(&()));
    let names = Informer::start_metadata(api(), Selection::all().of(&server), |meta| meta.name.clone(), |_| {});
    synced(&names).await;
    assert_eq!((rows(&names), server.open_watches().len()), (vec!["x".to_owned(), "y".to_owned()], 1), "alone, it decodes metadata");
    let named = start(&client, Selection::fields("metadata.name=x").of(&server));
    synced(&named).await;
    assert_eq!(rows(&named), ["x-web"], "of metadata and of some whole objects: one watch of all whole objects");
    assert_eq!((rows(&names), server.open_watches()), (vec!["x".to_owned(), "y".to_owned()], vec!["/api/v1/configmaps".to_owned()]));
    let more = Informer::start_metadata(api(), Selection::all().of(&server), |meta| meta.name.clone(), |_| {});
    synced(&more).await;
    assert_eq!((more.len(), server.open_watches().len()), (2, 1));
}

#[tokio::test]
async fn last_reader_ends_the_watch() {
    let (client, _) = two_objects();
    let server = ApiServer::default();
    let first = start(&client, Selection::all().of(&server));
    let second = start(&client, Selection::fields("metadata.name=x").of(&server));
    synced(&second).await;
    let task = second.attachment.task();
    drop(first);
    assert_eq!((server.open_watches().len(), task.is_finished()), (1, false));
    drop(second);
    assert!(server.open_watches().is_empty());
    until_async("the end of the watch", async || task.is_finished()).await;
}

/// Rows of a feed, by the list they came with.
#[derive(Clone, Default)]
struct Shelf(Arc<Mutex<BTreeMap<String, bool>>>);

impl Keeper<String> for Shelf {
    fn begin(&self) {
        self.0.lock().unwrap().values_mut().for_each(|seen| *seen = false);
    }

    fn put(&self, _: Key, row: String) -> bool {
        self.0.lock().unwrap().insert(row, true).is_none()
    }

    fn remove(&self, _: &Key) -> bool {
        false
    }

    fn end(&self) -> bool {
        let mut rows = self.0.lock().unwrap();
        let before = rows.len();
        rows.retain(|_, seen| *seen);
        rows.len() != before
    }
}

#[tokio::test]
async fn feeds_and_informers_share_a_watch_and_a_reader_that_does_not_read_holds_up_nobody() {
    let (client, _) = two_objects();
    let server = ApiServer::default();
    let shelf = Shelf::default();
    let feed = Feed::start(Api::<ConfigMap>::all(client.clone()), Selection::labels("app").of(&server), value, shelf.clone());
    // Nobody looks at this one, nor at its wake-ups.
    let idle = start(&client, Selection::all().of(&server));
    let _wake_up = idle.changed();
    for _ in 0..5 {
        let late = start(&client, Selection::all().of(&server));
        synced(&late).await;
        assert_eq!(rows(&late), ["x-web", "y-db"]);
    }
    in_time("the feed's list", feed.synced()).await;
    assert!(shelf.0.lock().unwrap().keys().eq(["x-web", "y-db"]));
    assert_eq!(*feed.changed().borrow(), 1, "lists for others are not reported");
    assert_eq!(server.open_watches().len(), 1);
}

#[tokio::test]
async fn reader_that_joins_while_the_server_fails_is_served_when_it_recovers() {
    let failures = AtomicUsize::new(0);
    let client = fake_server(move |_| match failures.fetch_add(1, Ordering::SeqCst) {
        0..3 => Reply::status(503, "restarting"),
        _ => Reply::watch(vec![event("ADDED", config_map("x", "web")), bookmark()], true),
    })
    .await;
    let server = ApiServer::default();
    let first = start(&client, Selection::all().of(&server));
    tokio::time::sleep(Duration::from_millis(20)).await;
    let second = start(&client, Selection::all().of(&server));
    synced(&second).await;
    synced(&first).await;
    assert_eq!((rows(&first), rows(&second)), (vec!["x-web".to_owned()], vec!["x-web".to_owned()]));
    assert_eq!((first.trouble(), second.trouble()), (None, None));
}

/// The readers of `mullion node`: agent, proxy and fabric, which start one after the other.
#[tokio::test]
async fn node_process_has_one_watch_per_kind() {
    use k8s_openapi::api::{
        core::v1::{Node, Pod, Service},
        discovery::v1::EndpointSlice,
    };
    let client = fake_client(move |request| {
        let kind = [("nodes", "Node"), ("services", "Service"), ("pods", "Pod")].into_iter().find(|(path, _)| request.path.ends_with(path));
        let bookmark = kind.map_or_else(|| end_of_list("discovery.k8s.io/v1", "EndpointSlice", "9"), |(_, kind)| end_of_list("v1", kind, "9"));
        Reply::watch(vec![bookmark], true)
    });
    let server = ApiServer::default();
    let (this, proxied) = (|| Selection::fields("metadata.name=win01").of(&server), "!service.kubernetes.io/service-proxy-name");
    let nodes = |selection| Informer::start(Api::<Node>::all(client.clone()), selection, |_| Some(()));
    let services = |selection| Informer::start(Api::<Service>::all(client.clone()), selection, |_| Some(()));
    let agent = (nodes(this()), services(Selection::all().of(&server)));
    let pods = Informer::start(Api::<Pod>::all(client.clone()), Selection::fields("spec.nodeName=win01").of(&server), |_| Some(()));
    tokio::join!(synced(&agent.0), synced(&agent.1), synced(&pods));
    let proxy = (nodes(this()), services(Selection::labels(proxied).of(&server)));
    let slices = Informer::start(Api::<EndpointSlice>::all(client.clone()), Selection::labels(proxied).of(&server), |_| Some(()));
    let fabric = nodes(Selection::all().of(&server));
    tokio::join!(synced(&proxy.0), synced(&proxy.1), synced(&slices), synced(&fabric));
    let mut open = server.open_watches();
    open.sort();
    let slices = format!("/apis/discovery.k8s.io/v1/endpointslices {proxied}");
    assert_eq!(open, ["/api/v1/nodes", "/api/v1/pods spec.nodeName=win01", "/api/v1/services", slices.as_str()]);
}
