//! Order in which surplus pods are deleted (upstream: `controller_utils.go` `ActivePodsWithRanks`).

use std::{cmp::Reverse, collections::HashMap, sync::Arc};

use jiff::Timestamp;

use crate::view::PodRow;

/// Names of pods, the first to be deleted first: unassigned, pending, not ready, cheap, crowded, recently ready, often restarted, young.
pub(super) fn first_to_go(pods: &[&(String, Arc<PodRow>)], related: &[String], now: Timestamp) -> Vec<String> {
    let mut crowd: HashMap<&str, usize> = HashMap::new();
    for node in related {
        *crowd.entry(node).or_default() += 1;
    }
    let mut order: Vec<_> = pods.iter().map(|(name, pod)| (rank(pod, crowd.get(pod.node.as_str()).copied(), now), name.clone())).collect();
    order.sort();
    order.into_iter().map(|(_, name)| name).collect()
}

type Rank<'a> = (bool, u8, bool, i32, Reverse<usize>, u32, Reverse<i32>, u32, &'a str);

fn rank(pod: &PodRow, crowd: Option<usize>, now: Timestamp) -> Rank<'_> {
    let phase = match pod.phase.as_str() {
        "Pending" => 0,
        "Unknown" => 1,
        _ => 2,
    };
    (
        !pod.node.is_empty(),
        phase,
        pod.ready.is_some(),
        pod.deletion_cost,
        Reverse(crowd.unwrap_or_default()),
        pod.ready.map_or(0, |since| age(since, now)),
        Reverse(pod.restarts),
        pod.created.map_or(0, |created| age(created, now)),
        &pod.uid,
    )
}

/// Ages on a logarithmic scale, so that about equally old pods are chosen by uid, at random (upstream: `LogarithmicScaleDown`).
fn age(since: Timestamp, now: Timestamp) -> u32 {
    let nanoseconds = u128::try_from(now.duration_since(since).as_nanos()).unwrap_or_default();
    nanoseconds.checked_ilog2().map_or(0, |log| log + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pod;

    fn order(pods: Vec<(String, Arc<PodRow>)>, related: &[&str]) -> Vec<String> {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let related: Vec<String> = related.iter().map(|node| (*node).to_owned()).collect();
        first_to_go(&pods.iter().collect::<Vec<_>>(), &related, now)
    }

    #[test]
    fn surplus_pods_are_ranked_as_upstream() {
        let ready = |name: &str, node: &str, at: i64| {
            pod(name, |row| {
                row.node = node.into();
                row.ready = Some(Timestamp::from_second(at).unwrap());
                row.created = Some(Timestamp::from_second(1000).unwrap());
            })
        };
        let assigned = pod("assigned", |row| row.node = "n1".into());
        let pending = pod("pending", |row| {
            row.node = "n1".into();
            row.phase = "Pending".into();
        });
        let cheap = pod("cheap", |row| {
            *row = (*ready("cheap", "n1", 2000).1).clone();
            row.deletion_cost = -1;
        });
        let restarted = pod("restarted", |row| {
            *row = (*ready("restarted", "n1", 2000).1).clone();
            row.restarts = 3;
        });
        let pods = vec![
            ready("old", "n1", 2000),
            restarted,
            ready("fresh", "n1", 999_990),
            ready("crowded", "n2", 2000),
            cheap,
            assigned,
            pending,
            pod("unassigned", |_| {}),
        ];
        let names = order(pods, &["n1", "n2", "n2"]);
        assert_eq!(names, ["unassigned", "pending", "assigned", "cheap", "crowded", "fresh", "restarted", "old"]);
    }
}
