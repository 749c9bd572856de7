//! Static pods: pods that the node has from manifests, without the API server, and the mirror pods that show them there (upstream
//! pkg/kubelet/config, pkg/kubelet/pod, kubelet.go `tryReconcileMirrorPods`).
//!
//! Flow: [`source`] reads manifests → [`Table`] says which pod begins and which ends → the workers run them like all others;
//! [`mirror`] keeps one API object for each. Guarantees: a static pod needs no API server; of two manifests with one name one runs; a
//! changed manifest's pod begins when the old one has ended; a manifest that cannot be read leaves its pod as it was.

mod adoption;
pub(crate) mod mirror;
pub(crate) mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cluster::Key;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use tokio::sync::{Notify, mpsc, watch};

use crate::agent::{PodChange, uid};

/// Where manifests come from. The first has precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    File,
    Url,
}

/// What is to be done with a static pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    Begin(Arc<Pod>),
    End(Arc<Pod>),
}

/// A static pod that has a worker.
#[derive(Clone, Debug)]
struct Running {
    pod: Arc<Pod>,
    /// Its manifest is gone or says something else.
    ending: bool,
}

/// The node's static pods, purely.
#[derive(Debug, Default)]
struct Table {
    wanted: BTreeMap<Source, Vec<Arc<Pod>>>,
    running: BTreeMap<Key, Running>,
}

impl Table {
    /// The pods that should run: of several with one name the first.
    fn desired(&self) -> BTreeMap<Key, Arc<Pod>> {
        let mut all = BTreeMap::new();
        for pod in self.wanted.values().flatten() {
            all.entry(Key::of(&**pod)).or_insert_with(|| pod.clone());
        }
        all
    }

    fn set(&mut self, source: Source, pods: Vec<Arc<Pod>>) -> Vec<Step> {
        self.wanted.insert(source, pods);
        self.steps()
    }

    /// The worker of a pod has ended: nothing is left of it.
    fn ended(&mut self, ended: &str) -> Vec<Step> {
        self.running.retain(|_, r| uid(&r.pod) != ended);
        self.steps()
    }

    /// Ends these pods; each begins anew when it has ended.
    fn again(&mut self, uids: &BTreeSet<String>) -> Vec<Step> {
        let stays = self.running.values_mut().filter(|r| !r.ending && uids.contains(&uid(&r.pod)));
        stays
            .map(|r| {
                r.ending = true;
                Step::End(r.pod.clone())
            })
            .collect()
    }

    fn steps(&mut self) -> Vec<Step> {
        let desired = self.desired();
        let mut steps = Vec::new();
        for (key, running) in &mut self.running {
            let same = desired.get(key).is_some_and(|pod| uid(pod) == uid(&running.pod));
            if !same && !running.ending {
                running.ending = true;
                steps.push(Step::End(running.pod.clone()));
            }
        }
        for (key, pod) in desired {
            if let std::collections::btree_map::Entry::Vacant(place) = self.running.entry(key) {
                place.insert(Running { pod: pod.clone(), ending: false });
                steps.push(Step::Begin(pod));
            }
        }
        steps
    }
}

/// The node's static pods.
pub(crate) struct Statics {
    table: Mutex<Table>,
    /// Their statuses by UID, as last reported.
    statuses: Mutex<BTreeMap<String, PodStatus>>,
    /// The pods or their mirrors changed.
    pub changed: Notify,
    /// How many sources have not been read.
    unread: watch::Sender<usize>,
    /// To those who start and end workers.
    steps: mpsc::UnboundedSender<PodChange>,
}

impl Statics {
    /// `sources` of them will be read; what is to be done goes to `steps`.
    pub(crate) fn new(sources: usize, steps: mpsc::UnboundedSender<PodChange>) -> Self {
        Statics { table: Mutex::default(), statuses: Mutex::default(), changed: Notify::new(), unread: watch::Sender::new(sources), steps }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn statuses(&self) -> MutexGuard<'_, BTreeMap<String, PodStatus>> {
        self.statuses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the pods of a source.
    pub(crate) fn set(&self, source: Source, pods: Vec<Arc<Pod>>) {
        let (first, steps) = {
            let mut table = self.table();
            (!table.wanted.contains_key(&source), table.set(source, pods))
        };
        self.carry_out(steps);
        if first {
            self.unread.send_modify(|left| *left = left.saturating_sub(1));
        }
    }

    /// A worker has ended.
    pub(crate) fn ended(&self, uid: &str) {
        if self.holds(uid) {
            self.statuses().remove(uid);
            let steps = self.table().ended(uid);
            self.carry_out(steps);
        }
    }

    /// Runs pods again that ended although their manifests are there.
    pub(crate) fn again(&self, uids: &BTreeSet<String>) {
        let steps = self.table().again(uids);
        self.carry_out(steps);
    }

    fn carry_out(&self, steps: Vec<Step>) {
        for step in steps {
            let _ = self.steps.send(match step {
                Step::Begin(pod) => (None, Some(pod)),
                Step::End(pod) => (Some(pod), None),
            });
        }
        self.changed.notify_one();
    }

    /// Completes when every source has been read once: until then nobody knows which pods belong to none.
    pub(crate) async fn read(&self) {
        // The sender is here, so that waiting cannot fail.
        let _ = self.unread.subscribe().wait_for(|left| *left == 0).await;
    }

    /// Whether every source has been read once.
    pub(crate) fn is_read(&self) -> bool {
        *self.unread.borrow() == 0
    }

    /// Whether a UID is that of a static pod. The annotations of a pod from the API prove nothing.
    pub(crate) fn holds(&self, of: &str) -> bool {
        self.table().running.values().any(|r| uid(&r.pod) == of)
    }

    /// Notes the status of a static pod, which no API object carries while there is no mirror.
    pub(crate) fn note(&self, uid: &str, status: &PodStatus) {
        self.statuses().insert(uid.to_owned(), status.clone());
    }

    /// The static pod of a name, with its status.
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Pod>> {
        let pod = self.table().running.get(key).map(|r| r.pod.clone())?;
        let status = self.statuses().get(&uid(&pod)).cloned();
        Some(if status.is_some() { Arc::new(Pod { status, ..(*pod).clone() }) } else { pod })
    }

    /// All static pods that run or end.
    pub(crate) fn all(&self) -> Vec<Arc<Pod>> {
        let keys: Vec<Key> = self.table().running.keys().cloned().collect();
        keys.iter().filter_map(|key| self.get(key)).collect()
    }

    /// The static pods, and whether each is to stay.
    fn shown(&self) -> Vec<(Key, Arc<Pod>, bool)> {
        self.table().running.iter().map(|(key, r)| (key.clone(), r.pod.clone(), !r.ending)).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, uid: &str) -> Arc<Pod> {
        Arc::new(serde_json::from_value(json!({"metadata": {"name": name, "namespace": "ns", "uid": uid}})).unwrap())
    }

    fn show(steps: Vec<Step>) -> Vec<String> {
        let text = |step| match step {
            Step::Begin(pod) => format!("begin {}", uid(&pod)),
            Step::End(pod) => format!("end {}", uid(&pod)),
        };
        steps.into_iter().map(text).collect()
    }

    #[test]
    fn a_changed_manifest_begins_when_its_old_pod_has_ended() {
        let mut t = Table::default();
        assert_eq!(show(t.set(Source::File, vec![pod("a", "a1"), pod("b", "b1")])), ["begin a1", "begin b1"]);
        assert_eq!(show(t.set(Source::File, vec![pod("a", "a1"), pod("b", "b1")])), [""; 0], "the same again");
        assert_eq!(show(t.set(Source::File, vec![pod("a", "a2"), pod("b", "b1")])), ["end a1"]);
        assert_eq!(show(t.set(Source::File, vec![pod("a", "a3"), pod("b", "b1")])), [""; 0], "it ends already");
        assert_eq!(show(t.ended("a1")), ["begin a3"], "the newest one begins");
        assert_eq!(show(t.set(Source::File, vec![pod("b", "b1")])), ["end a3"]);
        assert_eq!(show(t.set(Source::File, vec![pod("a", "a3"), pod("b", "b1")])), [""; 0], "it comes back while it ends");
        assert_eq!(show(t.ended("a3")), ["begin a3"]);
        assert_eq!(show(t.ended("b1")), ["begin b1"], "a worker that failed is replaced");
    }

    #[test]
    fn a_pod_that_ended_with_its_manifest_there_runs_again() {
        let mut t = Table::default();
        t.set(Source::File, vec![pod("a", "a1"), pod("b", "b1"), pod("c", "c1")]);
        t.set(Source::File, vec![pod("a", "a1"), pod("b", "b1")]);
        let uids = ["a1", "c1", "x"].map(str::to_owned).into();
        assert_eq!(show(t.again(&uids)), ["end a1"], "c ends for good");
        assert_eq!(show(t.again(&uids)), [""; 0]);
        assert_eq!(show(t.set(Source::File, vec![pod("a", "a1"), pod("b", "b1")])), [""; 0]);
        assert_eq!(show(t.ended("a1")), ["begin a1"]);
        assert_eq!(show(t.ended("c1")), [""; 0]);
    }

    #[test]
    fn sources_are_apart_and_files_come_first() {
        let mut t = Table::default();
        assert_eq!(show(t.set(Source::Url, vec![pod("a", "u")])), ["begin u"]);
        assert_eq!(show(t.set(Source::File, vec![pod("a", "f"), pod("b", "g")])), ["end u", "begin g"]);
        assert_eq!(show(t.ended("u")), ["begin f"]);
        assert_eq!(show(t.set(Source::Url, vec![])), [""; 0]);
        assert_eq!(show(t.set(Source::Url, vec![pod("a", "u")])), [""; 0]);
        assert_eq!(show(t.set(Source::File, vec![])), ["end f", "end g"]);
        assert_eq!(show(t.ended("f")), ["begin u"]);
    }
}
