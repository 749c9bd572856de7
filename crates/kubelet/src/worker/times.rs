//! How long a pod takes to start, and which of its containers have ended, each counted once (upstream
//! pkg/kubelet/util/pod_startup_latency_tracker.go, status/status_manager.go).

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus, Volume};
use kube_rules::static_pod::SEEN;

use crate::pod::is_host_network;
use crate::stats::Start;

/// Pulls of a pod's images, until its start was counted.
#[derive(Debug, Default)]
pub(super) struct Pulls(Mutex<Option<Vec<(Timestamp, Timestamp)>>>);

impl Pulls {
    fn begun() -> Self {
        Pulls(Mutex::new(Some(Vec::new())))
    }

    /// An image was pulled.
    pub(super) fn note(&self, from: Timestamp, to: Timestamp) {
        if let Some(pulls) = self.0.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            pulls.push((from, to));
        }
    }

    /// How long something was pulled, and no more is noted.
    fn finish(&self) -> SignedDuration {
        covered(self.0.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default())
    }
}

/// How much time these cover together.
fn covered(mut spans: Vec<(Timestamp, Timestamp)>) -> SignedDuration {
    spans.sort();
    let (mut sum, mut until) = (SignedDuration::ZERO, Timestamp::MIN);
    for (from, to) in spans {
        let from = from.max(until);
        if to > from {
            sum += to.duration_since(from);
            until = to;
        }
    }
    sum
}

/// What is to be counted of a pod yet.
pub(super) struct Times {
    /// When this agent first saw the pod, until it runs.
    seen: Option<Timestamp>,
    /// The API server has not shown yet that all containers started.
    starts: bool,
    pub pulls: Arc<Pulls>,
    /// Containers that have ended, by kind and name.
    ended: BTreeSet<(&'static str, String)>,
}

/// When a pod was first seen.
pub(super) fn first_seen(pod: &Pod) -> Option<Timestamp> {
    pod.metadata.annotations.as_ref()?.get(SEEN)?.parse().ok()
}

fn lists(status: &PodStatus) -> impl Iterator<Item = (&'static str, &ContainerStatus)> {
    [
        ("container", &status.container_statuses),
        ("init_container", &status.init_container_statuses),
        ("ephemeral_container", &status.ephemeral_container_statuses),
    ]
    .into_iter()
    .flat_map(|(kind, list)| list.iter().flatten().map(move |own| (kind, own)))
}

impl Times {
    /// A pod that an earlier agent started has no start, and its containers have ended before.
    pub(super) fn new(pod: &Pod) -> Self {
        let status = pod.status.as_ref();
        let is_new = status.is_none_or(|status| status.start_time.is_none());
        let mut times = Times { seen: first_seen(pod).filter(|_| is_new), starts: is_new, pulls: Arc::new(Pulls::default()), ended: BTreeSet::new() };
        if is_new {
            times.pulls = Arc::new(Pulls::begun());
        }
        status.into_iter().for_each(|status| drop(times.ended(status)));
        times
    }

    /// Seconds from when the pod was first seen until it runs, once.
    pub(super) fn runs(&mut self, status: &PodStatus, now: Timestamp) -> Option<f64> {
        if status.phase.as_deref() != Some("Running") {
            return None;
        }
        self.seen.take().map(|seen| seconds(now.duration_since(seen)))
    }

    /// The pod's start, once, when the API server shows `pod` with all containers started.
    pub(super) fn started(&mut self, pod: &Pod, now: Timestamp) -> Option<Start> {
        if !self.starts {
            return None;
        }
        let status = pod.status.as_ref()?;
        let all = status.container_statuses.as_deref().unwrap_or_default();
        let wanted = pod.spec.as_ref().map_or(0, |spec| spec.containers.len());
        let runs = |own: &ContainerStatus| own.state.as_ref().and_then(|state| state.running.as_ref()?.started_at.as_ref()).is_some();
        if all.len() < wanted || all.is_empty() || !all.iter().all(runs) {
            return None;
        }
        self.starts = false;
        let pulled = self.pulls.finish();
        let whole = now.duration_since(pod.metadata.creation_timestamp.as_ref()?.0);
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let is_stateful = volumes.into_iter().any(outlives);
        let own = (!is_stateful).then(|| seconds(whole - pulled - initialized(status)));
        Some(Start { whole: seconds(whole), own, has_network: !is_host_network(pod) })
    }

    /// The containers that have ended since the last status: kind, exit code and reason.
    pub(super) fn ended<'a>(&mut self, status: &'a PodStatus) -> Vec<(&'static str, i32, &'a str)> {
        let mut new = Vec::new();
        for (kind, own) in lists(status) {
            let key = (kind, own.name.clone());
            match own.state.as_ref().and_then(|state| state.terminated.as_ref()) {
                Some(end) if self.ended.insert(key) => new.push((kind, end.exit_code, end.reason.as_deref().unwrap_or_default())),
                Some(_) => {}
                None => drop(self.ended.remove(&(kind, own.name.clone()))),
            }
        }
        new
    }
}

fn seconds(duration: SignedDuration) -> f64 {
    duration.as_secs_f64().max(0.0)
}

/// Whether a volume may hold something when the pod begins, as the definition of the start's indicator has it.
fn outlives(volume: &Volume) -> bool {
    let made =
        [volume.secret.is_some(), volume.config_map.is_some(), volume.downward_api.is_some(), volume.empty_dir.is_some(), volume.projected.is_some()];
    !made.contains(&true)
}

/// How long init containers ran that have ended.
fn initialized(status: &PodStatus) -> SignedDuration {
    let ends = status.init_container_statuses.iter().flatten().filter_map(|own| own.state.as_ref()?.terminated.as_ref());
    let spans = ends.filter_map(|end| Some((end.started_at.as_ref()?.0, end.finished_at.as_ref()?.0)));
    covered(spans.collect())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn pod(status: Value, volumes: Value) -> Pod {
        let annotations = json!({"kubernetes.io/config.seen": "1970-01-01T00:00:10Z"});
        let meta = json!({"creationTimestamp": "1970-01-01T00:00:08Z", "annotations": annotations});
        serde_json::from_value(
            json!({"metadata": meta, "spec": {"containers": [{"name": "a"}, {"name": "b"}], "volumes": volumes}, "status": status}),
        )
        .unwrap()
    }

    fn container(name: &str, state: Value) -> Value {
        json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state})
    }

    fn running(name: &str) -> Value {
        container(name, json!({"running": {"startedAt": "1970-01-01T00:00:20Z"}}))
    }

    #[test]
    fn spans_that_overlap_count_once() {
        for (spans, sum) in [(vec![], 0), (vec![(1, 3)], 2), (vec![(5, 6), (1, 3)], 3), (vec![(1, 4), (2, 3), (3, 6)], 5), (vec![(4, 1)], 0)] {
            let spans = spans.into_iter().map(|(from, to)| (at(from), at(to))).collect();
            assert_eq!(covered(spans).as_secs(), sum);
        }
    }

    #[test]
    fn a_start_is_counted_once_without_pulls_and_init_containers() {
        let new = pod(json!({"phase": "Pending"}), json!([{"name": "v", "emptyDir": {}}]));
        let mut times = Times::new(&new);
        times.pulls.note(at(11), at(13));
        let status = |phase: &str| serde_json::from_value(json!({"phase": phase})).unwrap();
        assert_eq!(times.runs(&status("Pending"), at(15)), None);
        assert_eq!(times.runs(&status("Running"), at(21)), Some(11.0));
        assert_eq!(times.runs(&status("Running"), at(22)), None);
        let init = container("i", json!({"terminated": {"exitCode": 0, "startedAt": "1970-01-01T00:00:14Z", "finishedAt": "1970-01-01T00:00:17Z"}}));
        let shown = |all: Value, volumes: Value| pod(json!({"containerStatuses": all, "initContainerStatuses": [init]}), volumes);
        assert_eq!(times.started(&shown(json!([running("a")]), json!([])), at(22)), None, "one is missing");
        let waits = container("b", json!({"waiting": {}}));
        assert_eq!(times.started(&shown(json!([running("a"), waits]), json!([])), at(22)), None);
        let both = json!([running("a"), running("b")]);
        let start = times.started(&shown(both.clone(), json!([])), at(23)).unwrap();
        assert_eq!(start, Start { whole: 15.0, own: Some(10.0), has_network: true });
        assert_eq!(times.started(&shown(both.clone(), json!([])), at(24)), None);
        times.pulls.note(at(30), at(31));
        assert!(times.pulls.0.lock().unwrap().is_none(), "later pulls are not kept");
        // The indicator is of pods without state.
        let claim = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
        assert_eq!(Times::new(&new).started(&shown(both, claim), at(23)).unwrap().own, None);
    }

    #[test]
    fn an_adopted_pod_has_no_start() {
        let old = pod(json!({"phase": "Pending", "startTime": "1970-01-01T00:00:09Z"}), json!([]));
        let mut times = Times::new(&old);
        let status: PodStatus = serde_json::from_value(json!({"phase": "Running"})).unwrap();
        assert_eq!(times.runs(&status, at(30)), None);
        let shown = pod(json!({"containerStatuses": [running("a"), running("b")]}), json!([]));
        assert_eq!(times.started(&shown, at(30)), None);
    }

    #[test]
    fn each_end_of_a_container_counts_once() {
        let end = |code: i32| container("a", json!({"terminated": {"exitCode": code, "reason": "Error"}}));
        let status = |all: Value| -> PodStatus { serde_json::from_value(json!({"containerStatuses": all})).unwrap() };
        let mut times = Times::new(&pod(json!({"containerStatuses": [end(1)]}), json!([])));
        assert_eq!(times.ended(&status(json!([end(1)]))), [], "it ended before this agent began");
        assert_eq!(times.ended(&status(json!([running("a")]))), []);
        assert_eq!(times.ended(&status(json!([end(3)]))), [("container", 3, "Error")]);
        assert_eq!(times.ended(&status(json!([end(3)]))), []);
    }
}
