//! How fast the nodes of a zone may lose their pods: pure (upstream: `ComputeZoneState`, `ReducedQPSFunc`, `RateLimitedTimedQueue`).

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use kube_rules::Labels;

/// The time between two nodes of a zone whose pods are evicted (upstream: `--node-eviction-rate` 0.1 a second).
const PACE: Duration = Duration::from_secs(10);
/// The same where many nodes of a large zone are not ready (`--secondary-node-eviction-rate` 0.01).
const SLOW_PACE: Duration = Duration::from_secs(100);
/// Zones with more nodes are large (`--large-cluster-size-threshold`).
const LARGE: usize = 50;
/// From this part of nodes that are not ready on, the fault may be the zone's (`--unhealthy-zone-threshold` 0.55), in hundredths.
const UNHEALTHY: usize = 55;

/// The zone of a node, by its labels; empty for nodes without such labels.
pub(super) fn zone(labels: &Labels) -> String {
    let label = |names: [&str; 2]| names.into_iter().find_map(|name| labels.get(name)).cloned().unwrap_or_default();
    let zone = label(["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"]);
    let region = label(["topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"]);
    if zone.is_empty() && region.is_empty() { String::new() } else { format!("{region}/{zone}") }
}

/// The time between two evictions in a zone of so many nodes; none stops them.
pub(super) fn pace(ready: usize, unready: usize) -> Option<Duration> {
    // A zone that is down as a whole is taken for lost.
    let partial = ready > 0 && unready > 2 && unready * 100 >= UNHEALTHY * (ready + unready);
    match partial {
        false => Some(PACE),
        true if ready + unready > LARGE => Some(SLOW_PACE),
        true => None,
    }
}

/// Whether the pods of a node may be evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    Now,
    /// Another node of the zone was evicted a short while ago.
    In(Duration),
    /// Too many nodes of the zone are not ready.
    Stopped,
}

/// When the last node of each zone was evicted.
#[derive(Debug, Default)]
pub(super) struct Zones {
    last: HashMap<String, Instant>,
}

impl Zones {
    /// Asks for an eviction in a zone of so many nodes.
    pub fn turn(&mut self, zone: &str, ready: usize, unready: usize, now: Instant) -> Turn {
        let Some(pace) = pace(ready, unready) else { return Turn::Stopped };
        let left = self.last.get(zone).map_or(Duration::ZERO, |last| pace.saturating_sub(now.saturating_duration_since(*last)));
        if !left.is_zero() {
            return Turn::In(left);
        }
        self.last.insert(zone.to_owned(), now);
        Turn::Now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_slow_down_when_many_nodes_are_lost() {
        for (ready, unready, expected) in
            [(9, 1, Some(PACE)), (1, 2, Some(PACE)), (2, 3, None), (3, 3, Some(PACE)), (0, 5, Some(PACE)), (20, 40, Some(SLOW_PACE)), (10, 40, None)]
        {
            assert_eq!(pace(ready, unready), expected, "{ready} ready, {unready} not");
        }
    }

    #[test]
    fn nodes_of_a_zone_take_turns() {
        let (mut zones, start) = (Zones::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(zones.turn("a", 9, 1, at(0)), Turn::Now);
        assert_eq!(zones.turn("a", 9, 1, at(4)), Turn::In(Duration::from_secs(6)));
        assert_eq!(zones.turn("b", 9, 1, at(4)), Turn::Now, "another zone");
        assert_eq!(zones.turn("a", 9, 1, at(10)), Turn::Now);
        assert_eq!(zones.turn("a", 2, 3, at(60)), Turn::Stopped);
    }

    #[test]
    fn zones_are_found_by_labels() {
        let labels = |pairs: &[(&str, &str)]| pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<Labels>();
        assert_eq!(zone(&labels(&[])), "");
        assert_eq!(zone(&labels(&[("topology.kubernetes.io/zone", "z"), ("topology.kubernetes.io/region", "r")])), "r/z");
        assert_eq!(zone(&labels(&[("failure-domain.beta.kubernetes.io/zone", "z")])), "/z");
    }
}
