//! Which pods end together, and within how long; pure.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::ShutdownPeriod;

/// Pods that end together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub priority: i32,
    /// The next group ends that much later at most.
    pub seconds: u64,
    pub pods: Vec<Ending>,
}

/// A pod that ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ending {
    pub uid: String,
    /// Seconds that its containers get.
    pub grace: i64,
}

/// The groups that have pods, the least important first. A pod belongs to the highest period at or below its priority; one below all
/// periods, to the lowest.
pub(super) fn groups(periods: &[ShutdownPeriod], pods: &[(String, Arc<Pod>)]) -> Vec<Group> {
    let mut periods = periods.to_vec();
    periods.sort_by_key(|period| period.priority);
    let mut groups: Vec<Group> = periods.iter().map(|p| Group { priority: p.priority, seconds: p.seconds, pods: Vec::new() }).collect();
    for (uid, pod) in pods {
        let spec = pod.spec.as_ref();
        let priority = spec.and_then(|spec| spec.priority).unwrap_or(0);
        // The first of several periods with the pod's own priority, as upstream's search finds it.
        let above = groups.partition_point(|group| group.priority < priority);
        let own = groups.get(above).is_some_and(|group| group.priority == priority);
        let Some(group) = groups.get_mut(if own { above } else { above.saturating_sub(1) }) else { continue };
        let most = i64::try_from(group.seconds).unwrap_or(i64::MAX);
        let grace = spec.and_then(|spec| spec.termination_grace_period_seconds).map_or(most, |own| own.min(most));
        group.pods.push(Ending { uid: uid.clone(), grace: grace.max(1) });
    }
    groups.retain(|group| !group.pods.is_empty());
    groups
}
