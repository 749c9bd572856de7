//! What a Job's policies say about failed pods and succeeded indexes (upstream: `pod_failure_policy.go`, `success_policy.go`).

use k8s_openapi::api::batch::v1::{PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyRule};

use super::{
    intervals::Intervals,
    rows::{Exit, JobPod, JobView},
};

/// What the failure of a pod means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// No rule speaks of it, or one says so: it counts.
    Count,
    /// It does not count.
    Ignore,
    /// The pod's index has failed.
    FailIndex,
    /// The whole Job has failed, for this reason.
    FailJob(String),
}

/// What the first rule that fits says.
pub(super) fn judge(job: &JobView, pod: &JobPod) -> Failure {
    let rules = job.spec.pod_failure_policy.iter().flat_map(|policy| &policy.rules);
    for (place, rule) in rules.enumerate() {
        let Some(why) = fits(job, pod, rule, place) else { continue };
        match rule.action.as_str() {
            "Ignore" => return Failure::Ignore,
            "FailIndex" => return Failure::FailIndex,
            "Count" => return Failure::Count,
            "FailJob" => return Failure::FailJob(why),
            _ => {}
        }
    }
    Failure::Count
}

/// Why the rule fits, if it does.
fn fits(job: &JobView, pod: &JobPod, rule: &PodFailurePolicyRule, place: usize) -> Option<String> {
    let (ns, name, action) = (&job.ns, &pod.name, &rule.action);
    if let Some(wanted) = &rule.on_exit_codes {
        let Exit { container, code } = pod.exits.iter().find(|exit| exit.code != 0 && exit_fits(exit, wanted))?;
        return Some(format!("Container {container} for pod {ns}/{name} failed with exit code {code} matching {action} rule at index {place}"));
    }
    let patterns = rule.on_pod_conditions.as_ref()?;
    let state = |status: &Option<String>| status.clone().unwrap_or_else(|| "True".to_owned());
    let matches = |type_: &String, status: &String| patterns.iter().any(|one| one.type_ == *type_ && state(&one.status) == *status);
    let (type_, _) = pod.conditions.iter().find(|(type_, status)| matches(type_, status))?;
    Some(format!("Pod {ns}/{name} has condition {type_} matching {action} rule at index {place}"))
}

fn exit_fits(exit: &Exit, wanted: &PodFailurePolicyOnExitCodesRequirement) -> bool {
    let named = wanted.container_name.as_ref().is_none_or(|name| *name == exit.container);
    let listed = wanted.values.contains(&exit.code);
    named
        && match wanted.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        }
}

/// Whether the failure of a pod counts towards limits.
pub(super) fn counts(job: &JobView, pod: &JobPod) -> bool {
    judge(job, pod) != Failure::Ignore
}

/// Why enough indexes have succeeded, if they have.
pub(super) fn succeeds(job: &JobView, succeeded: &Intervals) -> Option<String> {
    if succeeded.total() == 0 {
        return None;
    }
    let rules = job.spec.success_policy.iter().flat_map(|policy| &policy.rules);
    let place = rules.into_iter().position(|rule| match &rule.succeeded_indexes {
        Some(indexes) => {
            let wanted = Intervals::parse(indexes, job.indexes());
            let there = wanted.shared(succeeded);
            wanted.total() > 0 && (there == wanted.total() || rule.succeeded_count.is_some_and(|count| there >= count))
        }
        None => rule.succeeded_count.is_some_and(|count| succeeded.total() >= count),
    })?;
    Some(format!("Matched rules at index {place}"))
}
