//! Plan for one ReplicaSet: pure.

use std::{fmt, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::apps::v1::{ReplicaSetCondition, ReplicaSetStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::rank;
use crate::{deployment::RsRow, pods::Observed, view::PodRow};

/// The most pods written in one pass (upstream: `BurstReplicas`).
const BURST: usize = 500;

/// How the number of pods should change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Scale {
    Keep,
    Create(usize),
    /// These pods, by name.
    Delete(Vec<String>),
}

/// Counts of the pods there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Counts {
    active: i32,
    labelled: i32,
    ready: i32,
    available: i32,
    terminating: i32,
}

/// Everything to do now.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plan {
    pub scale: Scale,
    counts: Counts,
    /// When the next ready pod becomes available by time alone.
    pub recheck: Option<Duration>,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { active, ready, available, .. } = self.counts;
        match &self.scale {
            Scale::Keep => write!(f, "keep {active} pods")?,
            Scale::Create(count) => write!(f, "create {count} pods beside {active}")?,
            Scale::Delete(names) => write!(f, "delete {} of {active} pods", names.join(", "))?,
        }
        write!(f, " ({ready} ready, {available} available)")
    }
}

fn active<'a>(pods: &'a [(String, Arc<PodRow>)], observed: &Observed) -> Vec<&'a (String, Arc<PodRow>)> {
    pods.iter().filter(|(_, pod)| pod.is_active() && !observed.going.contains(&pod.uid)).collect()
}

fn wanted(set: &RsRow) -> usize {
    usize::try_from(set.replicas).unwrap_or_default()
}

/// Whether there are more pods than the ReplicaSet asks for: then [`plan`] needs to know the related nodes.
pub(super) fn has_surplus(set: &RsRow, pods: &[(String, Arc<PodRow>)], observed: &Observed) -> bool {
    active(pods, observed).len() + observed.coming > wanted(set)
}

/// Compares the pods with what the ReplicaSet asks for; `related` are the nodes of active pods that serve the same purpose.
pub(super) fn plan(set: &RsRow, pods: &[(String, Arc<PodRow>)], observed: &Observed, related: &[String], now: Timestamp) -> Plan {
    let (active, wanted) = (active(pods, observed), wanted(set));
    let present = active.len() + observed.coming;
    let scale = if set.deleting || present == wanted {
        Scale::Keep
    } else if present < wanted {
        Scale::Create((wanted - present).min(BURST))
    } else {
        // Pods on their way cannot be deleted yet; the next pass will see them.
        let surplus = (present - wanted).min(BURST).min(active.len());
        let mut names = rank::first_to_go(&active, related, now);
        names.truncate(surplus);
        if names.is_empty() { Scale::Keep } else { Scale::Delete(names) }
    };
    let (counts, recheck) = count(set, pods, now);
    Plan { scale, counts, recheck }
}

fn count(set: &RsRow, pods: &[(String, Arc<PodRow>)], now: Timestamp) -> (Counts, Option<Duration>) {
    let mut counts = Counts::default();
    let mut recheck: Option<Duration> = None;
    for (_, pod) in pods {
        if pod.deleting && !pod.is_finished() {
            counts.terminating += 1;
        }
        if !pod.is_active() {
            continue;
        }
        counts.active += 1;
        // An adopted pod, or one of an earlier template, may match the selector alone.
        counts.labelled += i32::from(set.template_labels.iter().all(|(key, value)| pod.labels.get(key) == Some(value)));
        let Some(since) = pod.ready else { continue };
        counts.ready += 1;
        let left = (since + SignedDuration::from_secs(set.min_ready_seconds.into())).duration_since(now);
        match Duration::try_from(left) {
            Ok(left) if !left.is_zero() && set.min_ready_seconds > 0 => recheck = Some(recheck.map_or(left, |other| other.min(left))),
            _ => counts.available += 1,
        }
    }
    (counts, recheck)
}

impl Plan {
    /// The status to write after the pods were written; `failure` is why that went wrong, as reason and message.
    pub fn status_after(&self, set: &RsRow, failure: Option<(&str, &str)>, now: Timestamp) -> ReplicaSetStatus {
        let nonzero = |count: i32| (count != 0).then_some(count);
        let mut conditions = set.conditions.clone();
        let failing = conditions.iter().any(|one| one.type_ == "ReplicaFailure");
        match failure {
            Some((reason, message)) if !failing => conditions.push(ReplicaSetCondition {
                type_: "ReplicaFailure".to_owned(),
                status: "True".to_owned(),
                reason: Some(reason.to_owned()),
                message: Some(message.to_owned()),
                last_transition_time: Some(Time(Timestamp::from_second(now.as_second()).unwrap_or(now))),
            }),
            None => conditions.retain(|one| one.type_ != "ReplicaFailure"),
            Some(_) => {}
        }
        ReplicaSetStatus {
            replicas: self.counts.active,
            fully_labeled_replicas: nonzero(self.counts.labelled),
            ready_replicas: nonzero(self.counts.ready),
            available_replicas: nonzero(self.counts.available),
            terminating_replicas: nonzero(self.counts.terminating),
            observed_generation: Some(set.generation),
            conditions: (!conditions.is_empty()).then_some(conditions),
        }
    }
}

/// Whether the ReplicaSet says all that already.
pub(super) fn same_status(set: &RsRow, status: &ReplicaSetStatus) -> bool {
    set.actual == status.replicas
        && set.labelled == status.fully_labeled_replicas.unwrap_or_default()
        && set.ready == status.ready_replicas.unwrap_or_default()
        && set.available == status.available_replicas.unwrap_or_default()
        && set.terminating == status.terminating_replicas.unwrap_or_default()
        && Some(set.observed_generation) == status.observed_generation
        && set.conditions == status.conditions.as_deref().unwrap_or_default()
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
