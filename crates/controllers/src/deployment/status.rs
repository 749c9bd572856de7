//! A Deployment's status: pure (upstream: `sync.go` `calculateStatus`, `progress.go`).

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::apps::v1::{DeploymentCondition, DeploymentStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::rows::{DeploymentView, RsRow};

/// Input of the `Progressing` condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// Leave it as it is, pause apart.
    Keep,
    /// Compare with the last status; `created`: a ReplicaSet is being made.
    Compare { created: bool },
}

/// The whole status; `sets[new]` is the ReplicaSet of the present template.
pub(super) fn status(deployment: &DeploymentView, sets: &[RsRow], new: Option<usize>, progress: Progress, now: Timestamp) -> DeploymentStatus {
    let new = new.map(|new| &sets[new]);
    let sum = |count: fn(&RsRow) -> i32| sets.iter().map(count).sum::<i32>();
    let available = sum(|set| set.available);
    let mut status = DeploymentStatus {
        observed_generation: Some(deployment.generation),
        replicas: nonzero(sum(|set| set.actual)),
        updated_replicas: nonzero(new.map_or(0, |set| set.actual)),
        ready_replicas: nonzero(sum(|set| set.ready)),
        available_replicas: nonzero(available),
        unavailable_replicas: nonzero((sum(|set| set.replicas) - available).max(0)),
        terminating_replicas: nonzero(sum(|set| set.terminating)),
        collision_count: deployment.status.collision_count,
        conditions: deployment.status.conditions.clone(),
    };
    let enough = available >= deployment.replicas - deployment.max_unavailable();
    if enough {
        set(&mut status, "Available", "True", "MinimumReplicasAvailable", "Deployment has minimum availability.", now);
    } else {
        set(&mut status, "Available", "False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.", now);
    }
    if deployment.deadline_seconds.is_some() {
        pause(deployment, &mut status, now);
        if let Progress::Compare { created } = progress {
            compare(deployment, &mut status, new, created, now);
        }
    }
    if matches!(progress, Progress::Compare { .. }) {
        copy_failure(&mut status, sets, new);
    }
    status
}

fn pause(deployment: &DeploymentView, status: &mut DeploymentStatus, now: Timestamp) {
    let reason = condition(status, "Progressing").and_then(|one| one.reason.clone()).unwrap_or_default();
    match (deployment.paused, reason.as_str()) {
        (_, "ProgressDeadlineExceeded") | (true, "DeploymentPaused") => {}
        (true, _) => set(status, "Progressing", "Unknown", "DeploymentPaused", "Deployment is paused", now),
        (false, "DeploymentPaused") => set(status, "Progressing", "Unknown", "DeploymentResumed", "Deployment is resumed", now),
        (false, _) => {}
    }
}

fn compare(deployment: &DeploymentView, status: &mut DeploymentStatus, new: Option<&RsRow>, created: bool, now: Timestamp) {
    let current = condition(status, "Progressing").cloned();
    let name = match new {
        Some(set) => format!("ReplicaSet {:?}", set.name),
        None => format!("Deployment {:?}", deployment.name),
    };
    if let (true, Some(new)) = (created, new) {
        set(status, "Progressing", "True", "NewReplicaSetCreated", &format!("Created new replica set {:?}", new.name), now);
        return;
    }
    if let (None, Some(new)) = (&current, new) {
        set(status, "Progressing", "True", "FoundNewReplicaSet", &format!("Found new replica set {:?}", new.name), now);
    }
    let settled = status.replicas == status.updated_replicas && has_reason(current.as_ref(), "NewReplicaSetAvailable");
    if settled {
        return;
    }
    if is_complete(deployment, status) {
        set(status, "Progressing", "True", "NewReplicaSetAvailable", &format!("{name} has successfully progressed."), now);
    } else if has_progressed(&deployment.status, status) {
        progressing(status, &format!("{name} is progressing."), current.as_ref(), now);
    } else if has_timed_out(deployment, current.as_ref(), now) {
        set(status, "Progressing", "False", "ProgressDeadlineExceeded", &format!("{name} has timed out progressing."), now);
    }
}

/// Progress renews the condition's update time each time, which is what the deadline counts from.
fn progressing(status: &mut DeploymentStatus, message: &str, current: Option<&DeploymentCondition>, now: Timestamp) {
    if let Some(conditions) = &mut status.conditions {
        conditions.retain(|one| one.type_ != "Progressing");
    }
    set(status, "Progressing", "True", "ReplicaSetUpdated", message, now);
    let kept = current.filter(|one| one.status == "True").and_then(|one| one.last_transition_time.clone());
    let written = status.conditions.iter_mut().flatten().find(|one| one.type_ == "Progressing");
    if let (Some(written), Some(kept)) = (written, kept) {
        written.last_transition_time = Some(kept);
    }
}

/// A ReplicaSet that cannot make pods shows on its Deployment.
fn copy_failure(status: &mut DeploymentStatus, sets: &[RsRow], new: Option<&RsRow>) {
    let failure = |set: &RsRow| set.conditions.iter().find(|one| one.type_ == "ReplicaFailure").cloned();
    let failure = new.and_then(failure).or_else(|| sets.iter().find_map(failure));
    let conditions = status.conditions.get_or_insert_default();
    match failure {
        Some(one) => {
            let same = conditions.iter().any(|have| have.type_ == one.type_ && have.status == one.status && have.reason == one.reason);
            if !same {
                conditions.retain(|have| have.type_ != one.type_);
                conditions.push(DeploymentCondition {
                    type_: one.type_,
                    status: one.status,
                    reason: one.reason,
                    message: one.message,
                    last_update_time: one.last_transition_time.clone(),
                    last_transition_time: one.last_transition_time,
                });
            }
        }
        None => conditions.retain(|have| have.type_ != "ReplicaFailure"),
    }
}

/// Whether the rollout that `status` describes is finished.
pub(super) fn is_complete(deployment: &DeploymentView, status: &DeploymentStatus) -> bool {
    let wanted = deployment.replicas;
    [status.updated_replicas, status.replicas, status.available_replicas].iter().all(|count| count.unwrap_or_default() == wanted)
        && status.observed_generation.unwrap_or_default() >= deployment.generation
}

fn has_progressed(before: &DeploymentStatus, after: &DeploymentStatus) -> bool {
    let more = |count: fn(&DeploymentStatus) -> Option<i32>| count(after).unwrap_or_default() > count(before).unwrap_or_default();
    let old = |status: &DeploymentStatus| status.replicas.unwrap_or_default() - status.updated_replicas.unwrap_or_default();
    more(|status| status.updated_replicas)
        || old(after) < old(before)
        || more(|status| status.ready_replicas)
        || more(|status| status.available_replicas)
}

fn has_timed_out(deployment: &DeploymentView, current: Option<&DeploymentCondition>, now: Timestamp) -> bool {
    let (Some(current), Some(seconds)) = (current, deployment.deadline_seconds) else { return false };
    match current.reason.as_deref() {
        Some("ProgressDeadlineExceeded") => true,
        Some("NewReplicaSetAvailable") => false,
        _ => current.last_update_time.as_ref().is_some_and(|from| from.0 + SignedDuration::from_secs(seconds.into()) < now),
    }
}

/// When the progress deadline has to be looked at again.
pub(super) fn recheck(deployment: &DeploymentView, status: &DeploymentStatus, now: Timestamp) -> Option<Duration> {
    let seconds = deployment.deadline_seconds?;
    let current = condition(status, "Progressing")?;
    let waiting = !matches!(current.reason.as_deref(), Some("ProgressDeadlineExceeded" | "NewReplicaSetAvailable"));
    if !waiting || is_complete(deployment, status) {
        return None;
    }
    let from = current.last_update_time.as_ref()?.0;
    let left = (from + SignedDuration::from_secs(i64::from(seconds) + 1)).duration_since(now);
    Some(Duration::try_from(left).unwrap_or_default())
}

/// The condition of this type.
pub(super) fn condition<'a>(status: &'a DeploymentStatus, type_: &str) -> Option<&'a DeploymentCondition> {
    status.conditions.iter().flatten().find(|one| one.type_ == type_)
}

fn has_reason(condition: Option<&DeploymentCondition>, reason: &str) -> bool {
    condition.is_some_and(|one| one.reason.as_deref() == Some(reason))
}

/// Writes a condition unless one with this status and reason is there; the transition time follows the status.
pub(super) fn set(status: &mut DeploymentStatus, type_: &str, value: &str, reason: &str, message: &str, now: Timestamp) {
    let conditions = status.conditions.get_or_insert_default();
    let current = conditions.iter().find(|one| one.type_ == type_);
    if current.is_some_and(|one| one.status == value && one.reason.as_deref() == Some(reason)) {
        return;
    }
    let since = current.filter(|one| one.status == value).and_then(|one| one.last_transition_time.clone());
    conditions.retain(|one| one.type_ != type_);
    let now = whole_second(now);
    conditions.push(DeploymentCondition {
        type_: type_.to_owned(),
        status: value.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_update_time: Some(now.clone()),
        last_transition_time: Some(since.unwrap_or(now)),
    });
}

/// Times in conditions have whole seconds.
pub(super) fn whole_second(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

fn nonzero(count: i32) -> Option<i32> {
    (count != 0).then_some(count)
}
