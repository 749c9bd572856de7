//! Informers against API servers of other ages and settings, over HTTP. Their answers are those of upstream's source
//! (apimachinery's ValidateListOptions, apiserver's cacher).

use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use serde_json::{Value, json};
use test_lab::api::{Reply, Seen, event, fake_server};
use test_lab::{LIMIT, in_time, until_async};

use super::*;
use crate::Informer;

/// The requests of each kind that a server saw.
#[derive(Default)]
struct Requests {
    streamed: AtomicUsize,
    listed: AtomicUsize,
    watched: AtomicUsize,
}

fn object(kind: &str, name: &str, version: u64) -> Value {
    json!({"apiVersion": "v1", "kind": kind, "metadata": {"namespace": "a", "name": name, "resourceVersion": version.to_string()}})
}

fn kind_of(request: &Seen) -> &'static str {
    if request.path.ends_with("/secrets") { "Secret" } else { "ConfigMap" }
}

/// A server that has two pages of objects and one change later on, and answers a streamed list with `streamed`.
async fn server(streamed: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> (kube::Client, Arc<Requests>) {
    let requests = Arc::new(Requests::default());
    let seen = requests.clone();
    let client = fake_server(move |request| {
        let kind = kind_of(request);
        if request.query.contains("sendInitialEvents=true") {
            seen.streamed.fetch_add(1, SeqCst);
            return streamed(request);
        }
        if request.query.contains("watch=true") {
            seen.watched.fetch_add(1, SeqCst);
            assert!(request.query.contains("resourceVersion=9"), "{}", request.query);
            assert!(!request.query.contains("resourceVersionMatch"), "servers before 1.27 refuse it: {}", request.query);
            return Reply::watch(vec![event("ADDED", object(kind, "later", 10))], true);
        }
        seen.listed.fetch_add(1, SeqCst);
        let (name, next) = if request.query.contains("continue=more") { ("two", "") } else { ("one", "more") };
        let metadata = json!({"resourceVersion": "9", "continue": next});
        Reply::json(200, json!({"apiVersion": "v1", "kind": format!("{kind}List"), "metadata": metadata, "items": [object(kind, name, 1)]}))
    })
    .await;
    (client, requests)
}

fn names<R>(informer: &Informer<R>) -> Vec<String> {
    informer.snapshot().into_iter().map(|(key, _)| key.name).collect()
}

/// Waits until the informer has the whole list and the change after it.
async fn followed<R>(informer: &Informer<R>) {
    let mut changed = informer.changed();
    in_time("the list and a change", changed.wait_for(|_| informer.len() == 3)).await.unwrap();
    assert_eq!(names(informer), ["later", "one", "two"]);
    assert!(informer.is_synced());
}

/// A server that refuses at once is asked once, whoever watches; `resource` finds it out, and the others list at once.
async fn one_informer_finds_out(streamed: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> ApiServer {
    let (client, requests) = server(streamed).await;
    let known = ApiServer::with_limits(Duration::from_millis(300), LIMIT);
    let first = Informer::start(Api::<ConfigMap>::all(client.clone()), Selection::all().of(&known), |_| Some(()));
    followed(&first).await;
    assert!(!known.streams_lists());
    let before = requests.streamed.load(SeqCst);
    let second = Informer::start(Api::<Secret>::all(client.clone()), Selection::all().of(&known), |_| Some(()));
    followed(&second).await;
    let third = Informer::start(Api::<ConfigMap>::namespaced(client, "a"), Selection::fields("metadata.name=x").of(&known), |_| Some(()));
    followed(&third).await;
    assert_eq!(requests.streamed.load(SeqCst), before, "one finds out for all of them");
    assert_eq!(requests.watched.load(SeqCst), 3);
    assert_eq!((known.watches("configmaps").fallbacks, known.watches("secrets").fallbacks), (2, 1));
    known
}

/// The server's metrics, as they are served.
fn metrics(known: &ApiServer) -> String {
    let (mut registry, mut text) = (prometheus_client::registry::Registry::default(), String::new());
    known.register(&mut registry);
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    text
}

fn invalid(message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": 422, "message": message,
        "details": {"group": "meta.k8s.io", "kind": "ListOptions"}})
}

#[tokio::test]
async fn server_with_the_gate_off_is_listed_and_watched() {
    let message = "ListOptions.meta.k8s.io \"\" is invalid: sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the \
                   WatchList feature gate is enabled";
    one_informer_finds_out(move |_| Reply::json(422, invalid(message))).await;
}

#[tokio::test]
async fn kubernetes_before_1_27_is_listed_and_watched() {
    let message = "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch";
    one_informer_finds_out(move |_| Reply::json(422, invalid(message))).await;
}

#[tokio::test]
async fn an_old_etcd_that_answers_within_the_watch_is_listed_and_watched() {
    let message = "a watch stream was requested by the client but the required storage feature RequestWatchProgress is disabled";
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
        "reason": "InternalError", "code": 500});
    let known = one_informer_finds_out(move |_| Reply::watch(vec![event("ERROR", status.clone())], false)).await;
    let metrics = metrics(&known);
    assert!(metrics.contains("mullion_streaming_list_fallbacks_total{resource=\"configmaps\"} 2\n"), "{metrics}");
    assert!(metrics.contains("mullion_watch_failures_total{resource=\"configmaps\"} "), "{metrics}");
}

#[tokio::test]
async fn refusal_within_the_watch_is_reported_as_refusal() {
    let message = "ConfigMap \"\" is invalid: sendInitialEvents: Forbidden: for watch is unsupported by an etcd cluster";
    one_informer_finds_out(move |_| Reply::watch(vec![event("ERROR", invalid(message))], false)).await;
}

#[tokio::test]
async fn server_that_ignores_the_parameter_is_listed_and_watched() {
    // A plain watch from 0: what there is, changes, bookmarks; the list's end never comes.
    let plain = |request: &Seen| {
        let kind = kind_of(request);
        let bookmark = json!({"apiVersion": "v1", "kind": kind, "metadata": {"resourceVersion": "9"}});
        Reply::watch(vec![event("ADDED", object(kind, "one", 1)), event("ADDED", object(kind, "two", 1)), event("BOOKMARK", bookmark)], true)
    };
    one_informer_finds_out(plain).await;
}

#[tokio::test]
async fn informers_that_wait_for_the_end_of_a_list_learn_from_the_first_refusal() {
    let refused = Arc::new(Mutex::new(false));
    let turn = refused.clone();
    let (client, requests) = server(move |request| match kind_of(request) {
        "Secret" => Reply::watch(vec![], true),
        _ => {
            *turn.lock().unwrap() = true;
            Reply::json(422, invalid("no"))
        }
    })
    .await;
    // Patient enough that only the refusal can end the wait.
    let known = ApiServer::with_limits(LIMIT * 10, LIMIT * 10);
    let waiting = Informer::start(Api::<Secret>::all(client.clone()), Selection::all().of(&known), |_| Some(()));
    until_async("the streamed list", async || requests.streamed.load(SeqCst) > 0).await;
    let second = Informer::start(Api::<ConfigMap>::all(client), Selection::all().of(&known), |_| Some(()));
    followed(&second).await;
    followed(&waiting).await;
    assert!(*refused.lock().unwrap());
}

#[tokio::test]
async fn transient_errors_lead_to_a_list_but_are_not_remembered() {
    let status = json!({"kind": "Status", "status": "Failure", "message": "etcdserver: leader changed", "reason": "InternalError", "code": 500});
    let (client, requests) = server(move |_| Reply::watch(vec![event("ERROR", status.clone())], false)).await;
    let known = ApiServer::default();
    let informer = Informer::start(Api::<ConfigMap>::all(client), Selection::all().of(&known), |_| Some(()));
    followed(&informer).await;
    assert!(known.streams_lists());
    assert_eq!(requests.streamed.load(SeqCst), 3);
    assert_eq!(known.watches("configmaps"), crate::Watches { fallbacks: 1, failures: 3 });
}

#[tokio::test]
async fn failing_watch_that_stays_open_is_closed() {
    let status = json!({"kind": "Status", "status": "Failure", "message": "no leader", "reason": "InternalError", "code": 500});
    let (client, _) = server(move |_| Reply::watch(vec![event("ERROR", status.clone())], true)).await;
    let known = ApiServer::with_limits(Duration::from_secs(2), LIMIT);
    let informer = Informer::start(Api::<ConfigMap>::all(client), Selection::all().of(&known), |_| Some(()));
    followed(&informer).await;
    assert!(known.streams_lists());
}

#[tokio::test]
async fn watch_that_ends_before_its_list_is_retried_a_few_times() {
    let (client, requests) = server(|request| Reply::watch(vec![event("ADDED", object(kind_of(request), "one", 1))], false)).await;
    let informer = Informer::start(Api::<ConfigMap>::all(client), Selection::all(), |_| Some(()));
    followed(&informer).await;
    assert!(requests.streamed.load(SeqCst) <= 4, "{:?}", requests.streamed);
}

#[tokio::test]
async fn failures_are_counted_and_reported_as_trouble() {
    let forbidden = Arc::new(Mutex::new(true));
    let now = forbidden.clone();
    let client = fake_server(move |request| {
        if *now.lock().unwrap() {
            return Reply::status(403, "configmaps is forbidden: User \"system:node:win01\" cannot list resource \"configmaps\"");
        }
        assert!(request.query.contains("sendInitialEvents=true"), "a refusal of the whole is no refusal to stream: {}", request.query);
        let end = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"resourceVersion": "9",
            "annotations": {"k8s.io/initial-events-end": "true"}}});
        Reply::watch(vec![event("ADDED", object("ConfigMap", "one", 1)), event("BOOKMARK", end)], true)
    })
    .await;
    let known = ApiServer::default();
    let informer = Informer::start(Api::<ConfigMap>::all(client), Selection::all().of(&known), |_| Some(()));
    let reported = async {
        while informer.trouble().is_none() || known.watches("configmaps").failures < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    in_time("two failures", reported).await;
    assert!(informer.trouble().unwrap().contains("system:node:win01"), "{:?}", informer.trouble());
    assert!(!informer.is_synced());
    *forbidden.lock().unwrap() = false;
    in_time("the list", informer.synced()).await;
    assert_eq!((informer.trouble(), known.streams_lists(), known.watches("configmaps").fallbacks), (None, true, 0));
    let metrics = metrics(&known);
    assert!(metrics.contains("mullion_watch_failures_total{resource=\"configmaps\"} "), "{metrics}");
}

#[test]
fn lasting_failure_is_warned_about_periodically() {
    let start = Instant::now();
    let mut trouble = Trouble::default();
    let mut at = |seconds: u64, refused: bool| trouble.failed(start + Duration::from_secs(seconds), refused).map(|since| since.as_secs());
    assert_eq!([at(0, false), at(1, false), at(3, false), at(10, false), at(62, false), at(64, false)], [None, None, Some(3), None, None, Some(64)]);
    assert!(trouble.over());
    assert!(!trouble.over());
    assert_eq!(trouble.failed(start, true).map(|since| since.as_secs()), Some(0), "a lasting error is reported at once");
}
