//! Brings pod statuses to the API (upstream pkg/kubelet/status): only changes, in order per pod,
//! tried again until they arrive or the pod is gone.
//!
//! Guarantees: conditions that are not ours survive; a status never lands on another pod of the
//! same name (UID in the patch); only the newest status of a pod is sent.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cluster::{Informer, Key, unread};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::Api;
use kube::api::Patch;
use prometheus_client::metrics::histogram::Histogram;
use serde_json::{Value, json};
use thiserror_ext::AsReport;
use tokio::sync::{Notify, watch};

use crate::pod::status::{DISRUPTION_TARGET, OWN_CONDITIONS};

/// Status fields the agent writes beside conditions; the others belong to someone else. The start time is written once.
const OWN_FIELDS: [&str; 15] = [
    "allocatedResources",
    "containerStatuses",
    "ephemeralContainerStatuses",
    "hostIP",
    "hostIPs",
    "initContainerStatuses",
    "message",
    "observedGeneration",
    "phase",
    "podIP",
    "podIPs",
    "qosClass",
    "reason",
    "resources",
    "startTime",
];

struct Entry {
    key: Key,
    /// The UID is that of a static pod: the status belongs to its mirror.
    mirrored: bool,
    /// As JSON: a tree of values takes ten times as much, for as long as the pod lives.
    status: Arc<str>,
    dirty: bool,
    /// Since when it is.
    since: Instant,
    failures: u32,
    retry_at: Option<Instant>,
}

/// After a failed update; doubles up to 128 times that.
const FIRST_RETRY: Duration = Duration::from_millis(80);
const LONGEST_RETRY: Duration = Duration::from_millis(80 << 7);
/// How long an ending pod waits for its last status to arrive.
const LAST_WORD: Duration = Duration::from_secs(10);

/// The newest status of each pod.
pub(crate) struct Statuses {
    client: kube::Client,
    pods: Informer<Pod>,
    entries: Mutex<BTreeMap<String, Entry>>,
    work: Notify,
    sent: watch::Sender<u64>,
    /// How long a change takes until it has arrived.
    took: Histogram,
}

impl Statuses {
    pub(crate) fn new(client: kube::Client, pods: Informer<Pod>, took: Histogram) -> Arc<Self> {
        Arc::new(Statuses { client, pods, entries: Mutex::default(), work: Notify::new(), sent: watch::Sender::new(0), took })
    }

    fn entries(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a pod's status; returns at once.
    pub(crate) fn report(&self, uid: &str, key: Key, mirrored: bool, status: &PodStatus) {
        let status = serde_json::to_string(status).unwrap_or_default();
        let mut entries = self.entries();
        let before = entries.get(uid);
        if before.is_some_and(|e| *e.status == *status) {
            return;
        }
        let (failures, retry_at) = before.map_or((0, None), |e| (e.failures, e.retry_at));
        let since = before.filter(|e| e.dirty).map_or_else(Instant::now, |e| e.since);
        let entry = Entry { key, mirrored, status: status.into(), dirty: true, since, failures, retry_at };
        entries.insert(uid.to_owned(), entry);
        self.work.notify_one();
    }

    /// Compares a pod's status with the API once more.
    pub(crate) fn resend(&self, uid: &str) {
        if let Some(entry) = self.entries().get_mut(uid) {
            if !std::mem::replace(&mut entry.dirty, true) {
                entry.since = Instant::now();
            }
            self.work.notify_one();
        }
    }

    /// Waits until what was reported of a pod has arrived at the API, or the pod is gone there,
    /// but not for ever: a status that is refused must not keep the pod.
    pub(crate) async fn flushed(&self, uid: &str) {
        let mut sent = self.sent.subscribe();
        let arrived = async {
            while self.entries().get(uid).is_some_and(|e| e.dirty) {
                if sent.changed().await.is_err() {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(LAST_WORD, arrived).await;
    }

    pub(crate) fn forget(&self, uid: &str) {
        self.entries().remove(uid);
    }

    /// Sends what is new, for ever. A status that the API refuses waits alone.
    pub(crate) async fn run(&self) {
        loop {
            let now = Instant::now();
            let due: Vec<(String, Key, bool, Arc<str>)> = self
                .entries()
                .iter()
                .filter(|(_, e)| e.dirty && e.retry_at.is_none_or(|at| at <= now))
                .map(|(uid, e)| (uid.clone(), e.key.clone(), e.mirrored, e.status.clone()))
                .collect();
            for (uid, key, mirrored, status) in due {
                let wanted = serde_json::from_str(&status).unwrap_or_default();
                let result = Box::pin(self.send(&uid, &key, mirrored, &wanted)).await;
                self.settle(&uid, &status, result);
            }
            self.rest().await;
        }
    }

    fn settle(&self, uid: &str, status: &str, result: kube::Result<()>) {
        let mut entries = self.entries();
        let Some(entry) = entries.get_mut(uid) else {
            return;
        };
        match result {
            Ok(()) => {
                self.took.observe(entry.since.elapsed().as_secs_f64());
                (entry.dirty, entry.since) = (*entry.status != *status, Instant::now());
                entry.failures = 0;
                entry.retry_at = None;
                self.sent.send_modify(|n| *n += 1);
            }
            Err(error) => {
                let wait = backoff::exponential(FIRST_RETRY, LONGEST_RETRY, entry.failures);
                entry.failures += 1;
                entry.retry_at = Some(Instant::now() + wait);
                tracing::warn!(pod = %entry.key, error = %error.as_report(), ?wait, "updating a pod's status failed; trying again");
            }
        }
    }

    /// Waits for a report or for the next retry.
    async fn rest(&self) {
        let next = {
            let entries = self.entries();
            let dirty = entries.values().filter(|e| e.dirty);
            dirty.map(|e| e.retry_at).min()
        };
        match next {
            None => self.work.notified().await,
            Some(None) => {}
            Some(Some(at)) => {
                let wait = at.saturating_duration_since(Instant::now());
                let _ = tokio::time::timeout(wait, self.work.notified()).await;
            }
        }
    }

    async fn send(&self, uid: &str, key: &Key, mirrored: bool, status: &Value) -> kube::Result<()> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.ns);
        let mut current = match self.pods.get(key) {
            Some(pod) => pod,
            None => match self.fetch(&api, key).await? {
                Some(pod) => Arc::new(pod),
                None => return Ok(()),
            },
        };
        for _ in 0..5 {
            let Some(target) = target(&current, uid, mirrored) else { return Ok(()) };
            let Some(patch) = patch(&current, &target, status) else {
                return Ok(());
            };
            match unread::patch_status(&api, &key.name, &Patch::Merge(patch)).await {
                Ok(()) => return Ok(()),
                Err(e) if cluster::is_not_found(&e) => return Ok(()),
                Err(e) if cluster::is_conflict(&e) => match self.fetch(&api, key).await? {
                    Some(pod) => current = Arc::new(pod),
                    None => return Ok(()),
                },
                Err(e) => return Err(e),
            }
        }
        let Some(last) = target(&current, uid, mirrored).and_then(|target| patch(&current, &target, status)) else { return Ok(()) };
        unread::patch_status(&api, &key.name, &Patch::Merge(last)).await
    }

    /// The pod as the API has it; None when it is gone there.
    async fn fetch(&self, api: &Api<Pod>, key: &Key) -> kube::Result<Option<Pod>> {
        match api.get_opt(&key.name).await {
            // A node may read the pods that are bound to it: it is told of one that is gone what it is told of another node's.
            Err(error) if cluster::is_forbidden(&error) && self.pods.is_synced() && self.pods.get(key).is_none() => Ok(None),
            answer => answer,
        }
    }
}

/// The UID of the API object that shows the pod: its own, or that of the mirror of its manifest.
fn target(current: &Pod, uid: &str, mirrored: bool) -> Option<String> {
    let own = current.metadata.uid.clone()?;
    let shows = if mirrored { kube_rules::static_pod::mirrored(current) == Some(uid) } else { own == uid };
    shows.then_some(own)
}

/// The merge patch that brings `current` to `status`; None when nothing differs.
fn patch(current: &Pod, uid: &str, status: &Value) -> Option<Value> {
    let old = current.status.as_ref().map_or(Value::Null, |old| serde_json::to_value(old).unwrap_or_default());
    let of_old = conditions(&old);
    // Foreign conditions as the API has them now.
    let foreign = |c: &&Value| !OWN_CONDITIONS.iter().any(|own| c["type"] == *own);
    // Of a shared condition the agent writes its own reason alone.
    let shared = |c: &&Value| c["type"] == DISRUPTION_TARGET && c["reason"] == "TerminationByKubelet";
    let ours = |c: &&Value| OWN_CONDITIONS.iter().any(|own| c["type"] == *own) || shared(c);
    let mut wanted: Vec<Value> = conditions(status).iter().filter(ours).cloned().collect();
    let replaced = |c: &&Value| wanted.iter().any(|own| own["type"] == c["type"]);
    let theirs: Vec<Value> = of_old.iter().filter(foreign).filter(|c| !replaced(c)).cloned().collect();
    for c in &mut wanted {
        // A transition time that the API has already stays as it is.
        if let Some(before) = of_old.iter().find(|o| o["type"] == c["type"] && o["status"] == c["status"]) {
            c["lastTransitionTime"] = before["lastTransitionTime"].clone();
        }
    }
    wanted.extend(theirs);
    let wanted = sorted(wanted);
    let mut change = serde_json::Map::new();
    if wanted != sorted(of_old.to_vec()) {
        change.insert("conditions".to_owned(), Value::Array(wanted));
    }
    for field in OWN_FIELDS {
        let (before, after) = (old.get(field), status.get(field));
        if before == after || (field == "startTime" && before.is_some()) {
            continue;
        }
        change.insert(field.to_owned(), over(before, after.cloned().unwrap_or(Value::Null)));
    }
    if change.is_empty() {
        return None;
    }
    let version = current.metadata.resource_version.clone();
    Some(json!({"metadata": {"uid": uid, "resourceVersion": version}, "status": change}))
}

/// The conditions of a status.
fn conditions(status: &Value) -> &[Value] {
    status.get("conditions").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// A value that a merge patch puts in the place of another: members of an object that are gone are null in it.
fn over(before: Option<&Value>, mut after: Value) -> Value {
    if let (Some(Value::Object(before)), Value::Object(after)) = (before, &mut after) {
        for (name, old) in before {
            let new = after.remove(name).map_or(Value::Null, |new| over(Some(old), new));
            after.insert(name.clone(), new);
        }
    }
    after
}

fn sorted(mut conditions: Vec<Value>) -> Vec<Value> {
    conditions.sort_by_key(|c| c["type"].as_str().unwrap_or_default().to_owned());
    conditions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_lands_on_its_pod_or_on_the_mirror_of_its_manifest() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"uid": "u", "annotations": {"kubernetes.io/config.mirror": "h"}}})).unwrap();
        for (uid, mirrored, want) in [("u", false, Some("u")), ("h", true, Some("u")), ("h", false, None), ("u", true, None), ("x", true, None)] {
            assert_eq!(target(&pod, uid, mirrored).as_deref(), want, "{uid} {mirrored}");
        }
    }

    #[test]
    fn an_evicted_pods_condition_takes_the_place_of_another_writers() {
        let disruption = |status: &str, reason: &str| json!({"type": "DisruptionTarget", "status": status, "reason": reason});
        let pod: Pod = serde_json::from_value(json!({"metadata": {"uid": "u"}, "status": {"conditions": [disruption("False", "Other")]}})).unwrap();
        let of = |reason: &str| patch(&pod, "u", &json!({"conditions": [disruption("True", reason)]})).map(|p| p["status"]["conditions"].clone());
        assert_eq!(of("TerminationByKubelet"), Some(json!([disruption("True", "TerminationByKubelet")])));
        assert_eq!(of("EvictionByEvictionAPI"), None, "that is another's to write");
    }

    /// An API server that lists `pods` and answers every request about one pod with `code`.
    fn server(pods: Value, code: u16) -> kube::Client {
        let answer = move |request: http::Request<kube::client::Body>| {
            let (path, query) = (request.uri().path().to_owned(), request.uri().query().unwrap_or_default().to_owned());
            let reason = if code == 404 { "NotFound" } else { "" };
            let status = |code: u16| (code, json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}));
            let (code, body) = match path.as_str() {
                "/api/v1/pods" if query.contains("sendInitialEvents") => status(400),
                "/api/v1/pods" => (200, json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": pods})),
                _ => status(code),
            };
            async move {
                if query.contains("watch=") && code == 200 {
                    std::future::pending::<()>().await;
                }
                http::Response::builder().status(code).body(kube::client::Body::from(body.to_string().into_bytes()))
            }
        };
        kube::Client::new(tower::service_fn(answer), "ns")
    }

    #[tokio::test]
    async fn a_pod_that_the_node_may_not_read_any_more_is_gone_once_the_nodes_pods_are_known() {
        let informer =
            |client: &kube::Client| Informer::start(Api::<Pod>::all(client.clone()), cluster::Selection::all(), |pod: &Pod| Some(pod.clone()));
        let known = json!([{"metadata": {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "1"}}]);
        for (what, pods, code, gone) in [
            ("it was deleted at once", json!([]), 403, true),
            ("it was deleted, and another authorizer says so", json!([]), 404, true),
            ("the node's rights are gone", known, 403, false),
            ("the server is in trouble", json!([]), 500, false),
        ] {
            let client = server(pods, code);
            let pods = informer(&client);
            pods.synced().await;
            let statuses = Statuses::new(client, pods, Histogram::new([1.0]));
            let sent = statuses.send("u", &Key::new("ns", "p"), false, &json!({"phase": "Failed"})).await;
            assert_eq!(sent.is_ok(), gone, "{what}: {sent:?}");
        }
    }

    #[test]
    fn what_is_gone_from_a_list_of_resources_is_taken_out_of_it() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"uid": "u"}, "status": {"allocatedResources": {"cpu": "1", "memory": "1Gi"},
            "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2"}}}}))
        .unwrap();
        let of = |status: Value| patch(&pod, "u", &status).map(|p| p["status"].clone());
        let same = json!({"allocatedResources": {"cpu": "1", "memory": "1Gi"}, "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2"}}});
        assert_eq!(of(same), None);
        assert_eq!(
            of(json!({"allocatedResources": {"cpu": "2"}, "resources": {"requests": {"cpu": "2"}}})),
            Some(
                json!({"allocatedResources": {"cpu": "2", "memory": null}, "resources": {"requests": {"cpu": "2", "memory": null}, "limits": null}})
            )
        );
    }

    #[test]
    fn only_changes_and_only_ours() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"uid": "u", "resourceVersion": "5"}, "status": {
            "phase": "Pending", "podIP": "1.2.3.4", "resize": "Deferred",
            "conditions": [{"type": "x.io/y", "status": "True"}, {"type": "Ready", "status": "False", "lastTransitionTime": "2024-01-01T00:00:00Z"}]}}))
        .unwrap();
        let status = json!({"phase": "Running", "conditions": [
            {"type": "Ready", "status": "False", "lastTransitionTime": "2025-01-01T00:00:00Z"}, {"type": "x.io/y", "status": "False"}]});
        assert_eq!(
            patch(&pod, "u", &status).unwrap(),
            json!({"metadata": {"uid": "u", "resourceVersion": "5"}, "status": {"phase": "Running", "podIP": null}}),
            "an equal condition keeps its time, a foreign one its value, a lost field becomes null"
        );
        let same = json!({"phase": "Pending", "podIP": "1.2.3.4", "conditions": [{"type": "Ready", "status": "False"}]});
        assert_eq!(patch(&pod, "u", &same), None);
    }
}
