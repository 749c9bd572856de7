//! Which pods of a Job go first (upstream: `activePodsForRemoval`).

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use jiff::Timestamp;

use super::rows::{JobPod, JobView};

type Rank<'a> = (bool, u8, bool, Reverse<Option<Timestamp>>, Reverse<i32>, Reverse<Option<Timestamp>>, &'a str);

/// Unassigned, pending, not ready, just ready, often restarted and young pods first.
fn rank(pod: &JobPod) -> Rank<'_> {
    let phase = match pod.phase.as_str() {
        "Pending" => 0,
        "Unknown" => 1,
        _ => 2,
    };
    (!pod.node.is_empty(), phase, pod.ready.is_some(), Reverse(pod.ready), Reverse(pod.restarts), Reverse(pod.created), &pod.uid)
}

/// All active pods that have no place (a second one of an index, one of no index), and others until there are `surplus`.
pub(super) fn first_to_go(job: &JobView, active: &[&Arc<JobPod>], surplus: usize) -> Vec<Arc<JobPod>> {
    let mut order: Vec<&Arc<JobPod>> = active.to_vec();
    order.sort_by(|one, two| rank(one).cmp(&rank(two)));
    let mut last: BTreeMap<i32, &str> = BTreeMap::new();
    for pod in &order {
        if let Some(index) = job.index_of(pod) {
            last.insert(index, &pod.uid);
        }
    }
    let in_place = |pod: &JobPod| !job.is_indexed() || job.index_of(pod).is_some_and(|index| last.get(&index) == Some(&pod.uid.as_str()));
    let (left, gone): (Vec<_>, Vec<_>) = order.into_iter().partition(|pod| in_place(pod));
    let more = surplus.saturating_sub(gone.len());
    gone.into_iter().chain(left.into_iter().take(more)).cloned().collect()
}
