//! From two readings of a kubelet's counters to what nodes and containers use: pure.

use super::exposition;
use jiff::Timestamp;
use kube_rules::Quantity;
use serde_json::{Value, json};
use std::collections::HashMap;

/// Namespace, pod, container.
pub type ContainerKey = (String, String, String);

/// A container's or node's counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    cpu_seconds: Option<f64>,
    memory_bytes: Option<f64>,
    at: i64,
    started: Option<f64>,
}

/// One reading of a kubelet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// Time of the latest sample.
    at: i64,
    node: Point,
    containers: HashMap<ContainerKey, Point>,
}

impl Reading {
    /// Reads `/metrics/resource`; lines without a time count as of `now` (milliseconds).
    pub fn parse(text: &str, now: i64) -> Self {
        let (mut reading, mut latest) = (Self::default(), 0);
        for line in exposition::lines(text) {
            let point = if line.name.starts_with("node_") {
                &mut reading.node
            } else if line.name.starts_with("container_") {
                let key = (line.label("namespace").to_string(), line.label("pod").to_string(), line.label("container").to_string());
                reading.containers.entry(key).or_default()
            } else {
                continue;
            };
            match line.name {
                "node_cpu_usage_seconds_total" | "container_cpu_usage_seconds_total" => {
                    point.cpu_seconds = Some(line.value);
                    point.at = line.at.unwrap_or(now);
                    latest = latest.max(point.at);
                }
                "node_memory_working_set_bytes" | "container_memory_working_set_bytes" => point.memory_bytes = Some(line.value),
                "container_start_time_seconds" => point.started = Some(line.value),
                _ => {}
            }
        }
        Self { at: latest, ..reading }
    }

    /// Whether the counters have moved on since `earlier`.
    pub fn is_newer_than(&self, earlier: &Reading) -> bool {
        self.at > earlier.at
    }
}

/// What something uses, over which time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    nanocores: u64,
    bytes: u64,
    at: i64,
    window: i64,
}

impl Usage {
    /// Between two points; nothing when a counter was reset or time stood still.
    fn between(before: &Point, after: &Point) -> Option<Self> {
        let window = after.at - before.at;
        let used = after.cpu_seconds? - before.cpu_seconds?;
        if window <= 0 || used < 0.0 {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "milliseconds between two readings")]
        let nanocores = used * 1e12 / window as f64;
        Some(Self { nanocores: whole(nanocores), bytes: whole(after.memory_bytes?), at: after.at, window })
    }

    /// `timestamp` and `window` of a metrics object.
    pub fn times(&self) -> (String, String) {
        let at = Timestamp::from_millisecond(self.at).unwrap_or_default();
        (at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(), duration(self.window))
    }

    /// `usage` of a metrics object.
    pub fn amounts(&self) -> Value {
        let cpu = Quantity::parse(&format!("{}n", self.nanocores)).map(|quantity| quantity.to_string()).unwrap_or_default();
        json!({"cpu": cpu, "memory": format!("{}Ki", self.bytes / 1024)})
    }
}

fn whole(number: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counters are finite and not negative here")]
    let whole = number.max(0.0).round() as u64;
    whole
}

/// Go's `time.Duration` in words: `15.02s`, `1m3.5s`.
fn duration(milliseconds: i64) -> String {
    let (minutes, rest) = (milliseconds / 60_000, milliseconds % 60_000);
    let mut seconds = format!("{}.{:03}", rest / 1000, rest % 1000);
    seconds.truncate(seconds.trim_end_matches('0').trim_end_matches('.').len());
    if minutes > 0 { format!("{minutes}m{seconds}s") } else { format!("{seconds}s") }
}

/// What the node uses.
pub fn of_node(before: &Reading, after: &Reading) -> Option<Usage> {
    Usage::between(&before.node, &after.node)
}

/// What the containers of a pod use, by name. A container that started in between counts from its start. As with metrics-server nothing is
/// said of a pod unless every container has a figure: a sum of some would look like a pod that does little.
pub fn of_pod<'a>(before: &Reading, after: &'a Reading, namespace: &str, pod: &str) -> Vec<(&'a str, Usage)> {
    let own = after.containers.iter().filter(|((of_namespace, of_pod, _), _)| of_namespace == namespace && of_pod == pod);
    let found: Option<Vec<(&str, Usage)>> = own
        .map(|(key, point)| {
            let earlier = before.containers.get(key).filter(|earlier| earlier.started == point.started).copied();
            let start = || {
                #[expect(clippy::cast_possible_truncation, reason = "seconds since 1970")]
                let at = (point.started? * 1000.0) as i64;
                (at > before.at).then_some(Point { cpu_seconds: Some(0.0), at, ..Point::default() })
            };
            Some((key.2.as_str(), Usage::between(&earlier.or_else(start)?, point)?))
        })
        .collect();
    let mut found = found.unwrap_or_default();
    found.sort_by_key(|(name, _)| *name);
    found
}

/// The time of what several containers use: that of the oldest figure.
pub fn oldest(containers: &[(&str, Usage)]) -> Option<Usage> {
    containers.iter().map(|(_, usage)| *usage).min_by_key(|usage| usage.at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "node_cpu_usage_seconds_total 100 1700000000000
node_memory_working_set_bytes 1048576 1700000000000
container_cpu_usage_seconds_total{container=\"c\",namespace=\"n\",pod=\"p\"} 5 1700000000000
container_memory_working_set_bytes{container=\"c\",namespace=\"n\",pod=\"p\"} 4096 1700000000000
container_start_time_seconds{container=\"c\",namespace=\"n\",pod=\"p\"} 1699999000
";
    const SECOND: &str = "node_cpu_usage_seconds_total 103 1700000015020
node_memory_working_set_bytes 2097152 1700000015020
container_cpu_usage_seconds_total{container=\"c\",namespace=\"n\",pod=\"p\"} 6.5 1700000010000
container_memory_working_set_bytes{container=\"c\",namespace=\"n\",pod=\"p\"} 8192 1700000010000
container_start_time_seconds{container=\"c\",namespace=\"n\",pod=\"p\"} 1699999000
container_cpu_usage_seconds_total{container=\"new\",namespace=\"n\",pod=\"p\"} 1 1700000010000
container_memory_working_set_bytes{container=\"new\",namespace=\"n\",pod=\"p\"} 4096 1700000010000
container_start_time_seconds{container=\"new\",namespace=\"n\",pod=\"p\"} 1700000005
";

    #[test]
    fn use_is_what_the_counters_gained() {
        let (before, after) = (Reading::parse(FIRST, 0), Reading::parse(SECOND, 0));
        assert!(after.is_newer_than(&before) && !before.is_newer_than(&before));
        let node = of_node(&before, &after).unwrap();
        assert_eq!(node.amounts(), json!({"cpu": "199733688n", "memory": "2048Ki"}));
        assert_eq!(node.times(), ("2023-11-14T22:13:35Z".to_string(), "15.02s".to_string()));
        let containers = of_pod(&before, &after, "n", "p");
        let shown: Vec<(&str, Value)> = containers.iter().map(|(name, usage)| (*name, usage.amounts()["cpu"].clone())).collect();
        assert_eq!(shown, [("c", json!("150m")), ("new", json!("200m"))]);
        assert!(of_pod(&before, &after, "n", "other").is_empty());
        let later = SECOND.replace("pod=\"p\"} 6.5 1700000010000", "pod=\"p\"} 6.5 1700000012000");
        let later = Reading::parse(&later, 0);
        let oldest = oldest(&of_pod(&before, &later, "n", "p")).unwrap();
        assert_eq!(oldest.times(), ("2023-11-14T22:13:30Z".to_string(), "5s".to_string()), "a pod is as old as its oldest figure");
    }

    #[test]
    fn restarts_and_standstill_give_nothing() {
        let before = Reading::parse(FIRST, 0);
        assert!(of_node(&before, &before).is_none());
        let restarted = Reading::parse(&SECOND.replace("1699999000", "1699999500"), 0);
        assert!(of_pod(&before, &restarted, "n", "p").is_empty(), "a pod of which one container says nothing");
    }

    #[test]
    fn durations_read_as_go_s() {
        assert_eq!([duration(15_000), duration(15_020), duration(63_500), duration(900)].join(" "), "15s 15.02s 1m3.5s 0.9s");
    }
}
