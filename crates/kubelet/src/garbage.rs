//! Dead containers and sandboxes: which go, and when (upstream kuberuntime/kuberuntime_gc.go).
//!
//! Flow: the runtime's lists → [`plan`] names what goes → it goes. A container's dead attempts are kept by their number, all dead containers
//! by theirs; those of pods that are gone, and under disk pressure those of pods that have ended, go whole. Sandboxes that are not ready and
//! hold no container go but for the newest of each pod. Log directories and control groups of pods that are gone go, and links to logs that are not there.
//! Guarantees: the newest attempt of a container of a pod that goes on stays whatever the numbers say, because the agent knows by it that the
//! container ran; nothing is taken for left over before the node knows all its pods.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use cri::labels::{CONTAINER_NAME, POD_UID};
use cri::v1;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use thiserror_ext::AsReport as _;

use crate::agent::{Agent, uid};
use crate::config::DeadContainers;
use crate::pod::is_terminal;

/// How often dead containers are looked for.
const INTERVAL: Duration = Duration::from_secs(60);

/// A container that does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Dead {
    id: String,
    pod: String,
    name: String,
    /// Of the runs of this container: larger is newer, whatever the clock was set to meanwhile.
    attempt: u32,
    created_at: i64,
    /// It may run: it is stopped first.
    unknown: bool,
}

/// A sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shell {
    id: String,
    pod: String,
    attempt: u32,
    created_at: i64,
    /// It is ready, or holds containers.
    active: bool,
}

/// Whose containers go whole.
#[derive(Clone, Debug, Default)]
struct Whole {
    /// The node knows which pods it has: nobody else's are taken for left ones before.
    complete: bool,
    /// Pods that the node has.
    known: BTreeSet<String>,
    /// Those of them that have ended and whose containers may go now.
    ended: BTreeSet<String>,
    /// Those of them whose logs may go, too: the node itself ended them for want of something.
    evicted: BTreeSet<String>,
    /// The newest attempts of containers of pods that go on, by id.
    needed: BTreeSet<String>,
}

impl Whole {
    fn takes(&self, pod: &str) -> bool {
        self.complete && (!self.known.contains(pod) || self.ended.contains(pod))
    }
}

/// The containers that go, in this order; none of those that were made in the time `young`.
fn containers(mut dead: Vec<Dead>, policy: &DeadContainers, whole: &Whole, young: &RangeInclusive<i64>) -> Vec<Dead> {
    dead.retain(|c| !young.contains(&c.created_at));
    let (mut gone, rest): (Vec<Dead>, Vec<Dead>) = dead.into_iter().partition(|c| whole.takes(&c.pod));
    let mut units: BTreeMap<(String, String), Vec<Dead>> = BTreeMap::new();
    for c in rest {
        units.entry((c.pod.clone(), c.name.clone())).or_default().push(c);
    }
    // The newest stay.
    units.values_mut().for_each(|unit| unit.sort_by_key(|c| std::cmp::Reverse((c.attempt, c.created_at))));
    let mut shorten = |units: &mut BTreeMap<_, Vec<Dead>>, most: usize| {
        units.values_mut().for_each(|unit| gone.extend(unit.split_off(most.min(unit.len())).into_iter().rev()));
    };
    if let Some(most) = policy.per_container {
        shorten(&mut units, most);
    }
    let count = |units: &BTreeMap<_, Vec<Dead>>| units.values().map(Vec::len).sum::<usize>();
    if let Some(most) = policy.total.filter(|most| count(&units) > *most) {
        let share = (most / units.len()).max(1);
        shorten(&mut units, share);
        let surplus = count(&units).saturating_sub(most);
        let mut all: Vec<Dead> = units.into_values().flatten().collect();
        all.sort_by_key(|c| c.created_at);
        gone.extend(all.into_iter().take(surplus));
    }
    gone.retain(|c| !whole.needed.contains(&c.id));
    gone
}

/// The sandboxes that go, the oldest first.
fn sandboxes(shells: Vec<Shell>, whole: &Whole) -> Vec<String> {
    let mut of_pods: BTreeMap<String, Vec<Shell>> = BTreeMap::new();
    for shell in shells {
        of_pods.entry(shell.pod.clone()).or_default().push(shell);
    }
    let mut gone = Vec::new();
    for (pod, mut shells) in of_pods {
        shells.sort_by_key(|s| std::cmp::Reverse((s.attempt, s.created_at)));
        let kept = usize::from(!whole.takes(&pod));
        gone.extend(shells.into_iter().skip(kept).filter(|s| !s.active).rev().map(|s| s.id));
    }
    gone
}

impl Agent {
    /// Looks for dead containers again and again, for ever.
    pub(crate) async fn keep_dead_containers(self: Arc<Self>, policy: DeadContainers) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            if let Err(error) = Box::pin(self.collect_dead(&policy, false)).await {
                tracing::warn!(error = %error.as_report(), "cannot remove dead containers; trying again");
            }
        }
    }

    /// Removes dead containers and sandboxes; with `also_of_ended` all of pods that have ended, too.
    pub(crate) async fn collect_dead(&self, policy: &DeadContainers, also_of_ended: bool) -> Result<(), cri::Error> {
        let all = self.cri.list_containers(v1::ListContainersRequest::default()).await?;
        let shells = self.cri.list_pod_sandbox(v1::ListPodSandboxRequest::default()).await?;
        let (logs, groups) = (self.log_directories(), self.pod_groups().await);
        // After the lists: a pod that comes in between is known.
        let whole = self.whole(&all, also_of_ended);
        let min_age = SignedDuration::try_from(policy.min_age).unwrap_or(SignedDuration::MAX);
        let nanos = |at: Timestamp| i64::try_from(at.as_nanosecond()).unwrap_or(i64::MAX);
        let now = Timestamp::now();
        // What comes from the future is not young: the clock was set back.
        let young = now.checked_sub(min_age).map_or(0, nanos).saturating_add(1)..=nanos(now);
        let dead = all.into_iter().filter_map(dead).collect();
        for container in containers(dead, policy, &whole, &young) {
            self.remove_dead(&container).await;
        }
        let left = self.cri.list_containers(v1::ListContainersRequest::default()).await?;
        let held: BTreeSet<&String> = left.iter().map(|c| &c.pod_sandbox_id).collect();
        let shell = |s: v1::PodSandbox| {
            let ready = s.state == v1::PodSandboxState::SandboxReady as i32;
            let attempt = s.metadata.as_ref().map_or(0, |m| m.attempt);
            Some(Shell { pod: s.labels.get(POD_UID)?.clone(), attempt, active: ready || held.contains(&s.id), created_at: s.created_at, id: s.id })
        };
        for id in sandboxes(shells.into_iter().filter_map(shell).collect(), &whole) {
            self.remove_shell(id).await;
        }
        if whole.complete {
            self.remove_orphaned_logs(logs, |pod| whole.known.contains(pod) && !whole.evicted.contains(pod));
            self.remove_groups(groups, |pod| whole.known.contains(pod)).await;
        }
        self.remove_dangling_links(&left.into_iter().map(|c| c.id).collect());
        Ok(())
    }

    fn whole(&self, all: &[v1::Container], also_of_ended: bool) -> Whole {
        let complete = self.pods.is_synced() && self.statics.is_read();
        let pods = self.all_pods();
        // A worker may remove what it looks at, but makes nothing more of a pod that has ended.
        let known = self.known_pods();
        let holds = self.admitted();
        let over: Vec<_> = pods.iter().filter(|pod| is_terminal(pod) && !holds.contains_key(&uid(pod))).collect();
        let is_evicted = |pod: &Pod| matches!(pod.status.as_ref().and_then(|s| s.reason.as_deref()), Some("Evicted" | "Preempting"));
        let evicted: BTreeSet<String> = over.iter().filter(|pod| is_evicted(pod)).map(|pod| uid(pod)).collect();
        let terminal: BTreeSet<String> = over.into_iter().map(|pod| uid(pod)).collect();
        let mut newest: BTreeMap<(&String, &String), &v1::Container> = BTreeMap::new();
        for c in all {
            let Some(unit) = c.labels.get(POD_UID).zip(c.labels.get(CONTAINER_NAME)) else { continue };
            let known = newest.entry(unit).or_insert(c);
            if (attempt(c), c.created_at) > (attempt(known), known.created_at) {
                *known = c;
            }
        }
        let needed = newest.into_iter().filter(|((pod, _), _)| !terminal.contains(*pod) && known.contains(*pod)).map(|(_, c)| c.id.clone());
        let needed = needed.collect();
        Whole { complete, known, ended: if also_of_ended { terminal } else { evicted.clone() }, evicted, needed }
    }

    async fn remove_dead(&self, container: &Dead) {
        let removed = async {
            if container.unknown {
                self.cri.stop_container(&container.id, Duration::from_secs(2)).await?;
            }
            self.remove_container(&container.id).await
        };
        match removed.await {
            Err(error) if !error.is_not_found() => {
                tracing::warn!(pod = container.pod, container = container.id, error = %error.as_report(), "removing a dead container failed");
            }
            _ => tracing::debug!(pod = container.pod, container = container.id, "removed a dead container"),
        }
    }

    async fn remove_shell(&self, id: String) {
        let removed = async {
            self.cri.stop_pod_sandbox(v1::StopPodSandboxRequest { pod_sandbox_id: id.clone() }).await?;
            self.cri.remove_pod_sandbox(v1::RemovePodSandboxRequest { pod_sandbox_id: id.clone() }).await
        };
        if let Err(error) = removed.await
            && !error.is_not_found()
        {
            tracing::warn!(sandbox = id, error = %error.as_report(), "removing a dead sandbox failed");
        }
    }
}

/// How often the container had been restarted before.
fn attempt(c: &v1::Container) -> u32 {
    c.metadata.as_ref().map_or(0, |m| m.attempt)
}

/// A container of a pod, unless it runs.
fn dead(c: v1::Container) -> Option<Dead> {
    let running = c.state == v1::ContainerState::ContainerRunning as i32;
    let (pod, name) = (c.labels.get(POD_UID)?.clone(), c.labels.get(CONTAINER_NAME)?.clone());
    let unknown = c.state == v1::ContainerState::ContainerUnknown as i32;
    let attempt = attempt(&c);
    (!running).then_some(Dead { id: c.id, pod, name, attempt, created_at: c.created_at, unknown })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `POD/NAME@TIME`, perhaps with `#ATTEMPT`.
    fn dead(texts: &[&str]) -> Vec<Dead> {
        let one = |text: &&str| {
            let (pod, rest) = text.split_once('/').unwrap();
            let (name, rest) = rest.split_once('@').unwrap();
            let (at, attempt) = rest.split_once('#').unwrap_or((rest, "0"));
            let (created_at, attempt) = (at.parse().unwrap(), attempt.parse().unwrap());
            Dead { id: (*text).to_owned(), pod: pod.to_owned(), name: name.to_owned(), attempt, created_at, unknown: false }
        };
        texts.iter().map(one).collect()
    }

    fn gone(texts: &[&str], per_container: Option<usize>, total: Option<usize>, whole: &Whole) -> Vec<String> {
        let policy = DeadContainers { min_age: Duration::ZERO, per_container, total };
        containers(dead(texts), &policy, whole, &(1001..=3000)).into_iter().map(|c| c.id).collect()
    }

    fn whole(known: &[&str], ended: &[&str]) -> Whole {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Whole { complete: true, known: set(known), ended: set(ended), ..Whole::default() }
    }

    #[test]
    fn dead_attempts_are_kept_by_number_the_newest_ones() {
        let all = ["a/c@3", "a/c@1", "a/c@2", "a/d@5", "b/c@4", "b/c@2000"];
        let known = whole(&["a", "b"], &[]);
        assert_eq!(gone(&all, Some(1), None, &known), ["a/c@1", "a/c@2"], "one that is too young does not count");
        assert_eq!(gone(&all, Some(0), None, &known), ["a/c@1", "a/c@2", "a/c@3", "a/d@5", "b/c@4"]);
        assert_eq!(gone(&all, None, None, &known), [""; 0]);
        // Upstream: an equal number of each, at least one, then the oldest.
        assert_eq!(gone(&all, None, Some(4), &known), ["a/c@1", "a/c@2"]);
        assert_eq!(gone(&all, Some(2), Some(2), &known), ["a/c@1", "a/c@2", "a/c@3"]);
        assert_eq!(gone(&all, None, Some(0), &known), ["a/c@1", "a/c@2", "a/c@3", "b/c@4", "a/d@5"]);
        assert_eq!(gone(&[], None, Some(0), &known), [""; 0]);
        let set_back = ["a/c@5000#0", "a/c@10#1", "a/c@20#2"];
        assert_eq!(gone(&set_back, Some(1), None, &known), ["a/c@5000#0", "a/c@10#1"], "the clock was set back after the first");
        let needed = Whole { needed: ["a/c@3".to_owned()].into(), ..known };
        assert_eq!(gone(&all, Some(0), None, &needed), ["a/c@1", "a/c@2", "a/d@5", "b/c@4"], "the agent knows by it that it ran");
    }

    #[test]
    fn pods_that_are_gone_or_have_ended_lose_all_once_all_pods_are_known() {
        let all = ["a/c@1", "b/c@2", "gone/c@3"];
        assert_eq!(gone(&all, Some(1), None, &whole(&["a", "b"], &["b"])), ["b/c@2", "gone/c@3"]);
        let early = Whole { complete: false, ..whole(&["a", "b"], &["b"]) };
        assert_eq!(gone(&all, Some(1), None, &early), [""; 0]);
    }

    #[test]
    fn the_newest_sandbox_of_a_pod_stays() {
        let shell = |pod: &str, at: i64, active: bool| Shell { id: format!("{pod}{at}"), pod: pod.to_owned(), attempt: 0, created_at: at, active };
        let set_back = vec![shell("a", 7, false), Shell { attempt: 1, ..shell("a", 1, false) }];
        assert_eq!(sandboxes(set_back, &whole(&["a"], &[])), ["a7"]);
        let all =
            vec![shell("a", 1, false), shell("a", 3, true), shell("a", 2, true), shell("b", 1, false), shell("b", 2, false), shell("z", 1, false)];
        assert_eq!(sandboxes(all.clone(), &whole(&["a", "b"], &[])), ["a1", "b1", "z1"]);
        assert_eq!(sandboxes(all, &whole(&["a", "b"], &["b"])), ["a1", "b1", "b2", "z1"]);
    }
}
