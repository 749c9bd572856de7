//! `/metrics/resource`: usage as metrics-server and Prometheus scrape it, with upstream's names
//! (pkg/kubelet/metrics/collectors/resource_metrics.go). Each value carries the time of its measurement in milliseconds.

use std::collections::BTreeMap;
use std::fmt;

use cri::labels::{CONTAINER_NAME, POD_NAME, POD_NAMESPACE};
use cri::v1;
use exposition::{At, Format};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use serde_json::Value;

use super::Server;
use crate::stats;

/// A counter of CPU time and a gauge of memory, each with its time in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Usage {
    cpu: Option<(f64, i64)>,
    memory: Option<(u64, i64)>,
}

impl Usage {
    /// Both together, as of the later one.
    fn add(&mut self, other: Usage) {
        if let Some((seconds, at)) = other.cpu {
            let (sum, since) = self.cpu.unwrap_or_default();
            self.cpu = Some((sum + seconds, since.max(at)));
        }
        if let Some((bytes, at)) = other.memory {
            let (sum, since) = self.memory.unwrap_or_default();
            self.memory = Some((sum + bytes, since.max(at)));
        }
    }
}

/// What is shown of one container.
#[derive(Clone, Debug, Default, PartialEq)]
struct Row {
    namespace: String,
    pod: String,
    container: String,
    usage: Usage,
    started: Option<f64>,
    swap: Option<Swap>,
}

/// What is used of swap, and how much may be, each where the runtime says it, with their time in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Swap {
    used: Option<u64>,
    limit: Option<u64>,
    at: i64,
}

impl Swap {
    fn of(stats: &v1::SwapUsage) -> Self {
        let (used, free) = (stats.swap_usage_bytes.map(|own| own.value), stats.swap_available_bytes.map(|own| own.value));
        Swap { used, limit: free.map(|free| free.saturating_add(used.unwrap_or(0))), at: millis(stats.timestamp) }
    }
}

impl Row {
    fn labels(&self) -> Labels<'_> {
        vec![("container", &self.container), ("namespace", &self.namespace), ("pod", &self.pod)]
    }
}

/// The document; it reports a runtime that does not answer.
pub(super) async fn resource(server: &Server, format: Format) -> String {
    let agent = &server.agent;
    let (all, failed) = stats::container_stats(agent).await;
    let summary = stats::summary_of(agent, stats::Detail::Usage, &all).await;
    let mut rows: Vec<Row> = all.iter().map(|stats| row(stats, &summary)).collect();
    rows.sort_by(|a, b| (&a.namespace, &a.pod, &a.container).cmp(&(&b.namespace, &b.pod, &b.container)));
    let now = jiff::Timestamp::now().as_millisecond();
    // The sum of pods stands for a simulated host: without them it would fall to nothing.
    let is_known = agent.is_machine || !failed;
    let node = if is_known { node(&summary, now) } else { Usage::default() };
    let swap = summary["node"]["swap"]["swapUsageBytes"].as_u64().map(|bytes| (bytes, now));
    Document { rows, node, swap, failed, format }.render()
}

fn millis(nanos: i64) -> i64 {
    nanos / 1_000_000
}

fn row(stats: &v1::ContainerStats, summary: &Value) -> Row {
    let label = |name: &str| stats.attributes.as_ref().and_then(|a| a.labels.get(name)).cloned().unwrap_or_default();
    let cpu = stats.cpu.as_ref().and_then(|cpu| Some((cpu.usage_core_nano_seconds?.value as f64 / 1e9, millis(cpu.timestamp))));
    let memory = stats.memory.as_ref().and_then(|memory| Some((memory.working_set_bytes?.value, millis(memory.timestamp))));
    let (namespace, pod, container) = (label(POD_NAMESPACE), label(POD_NAME), label(CONTAINER_NAME));
    let started = start(summary, &namespace, &pod, &container);
    let swap = stats.swap.as_ref().map(Swap::of);
    Row { namespace, pod, container, usage: Usage { cpu, memory }, started, swap }
}

/// When a container was started, in seconds since 1970, as the summary says.
fn start(summary: &Value, namespace: &str, pod: &str, container: &str) -> Option<f64> {
    let pods = summary["pods"].as_array()?;
    let pod = pods.iter().find(|own| own["podRef"]["namespace"] == namespace && own["podRef"]["name"] == pod)?;
    let own = pod["containers"].as_array()?.iter().find(|own| own["name"] == container)?;
    let time: jiff::Timestamp = own["startTime"].as_str()?.parse().ok()?;
    Some(time.as_millisecond() as f64 / 1e3)
}

/// The node's own usage.
fn node(summary: &Value, at: i64) -> Usage {
    let cpu = summary["node"]["cpu"]["usageCoreNanoSeconds"].as_u64();
    let memory = summary["node"]["memory"]["workingSetBytes"].as_u64();
    Usage { cpu: cpu.map(|nanos| (nanos as f64 / 1e9, at)), memory: memory.map(|bytes| (bytes, at)) }
}

/// What is shown of the containers, their pods and the node.
#[derive(Debug)]
struct Document {
    rows: Vec<Row>,
    node: Usage,
    /// Bytes of the node's swap that are used, and when.
    swap: Option<(u64, i64)>,
    failed: bool,
    format: Format,
}

/// Labels of a sample, in the order of the alphabet.
type Labels<'a> = Vec<(&'static str, &'a str)>;

impl Document {
    fn render(self) -> String {
        let (mut registry, format) = (Registry::default(), self.format);
        registry.register_collector(Box::new(self));
        exposition::encode(&registry, format)
    }

    /// A family of CPU times; nothing without any.
    fn cpu(&self, encoder: &mut DescriptorEncoder<'_>, name: &str, what: &str, usages: &[(Labels<'_>, Usage)]) -> fmt::Result {
        let help = format!("[STABLE] Cumulative cpu time consumed by the {what} in core-seconds");
        let samples: Vec<_> = usages.iter().filter_map(|(labels, usage)| Some((labels, usage.cpu?))).collect();
        if samples.is_empty() {
            return Ok(());
        }
        let mut family = encoder.encode_descriptor(name, &help, None, MetricType::Counter)?;
        for (labels, (value, millis)) in samples {
            let at = At { value, millis, format: self.format };
            match labels.is_empty() {
                true => family.encode_counter::<NoLabelSet, _, f64>(&at, None)?,
                false => family.encode_family(labels)?.encode_counter::<NoLabelSet, _, f64>(&at, None)?,
            }
        }
        Ok(())
    }

    /// Swap of containers and pods.
    fn swap(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let at = |value, millis| At { value, millis, format: self.format };
        let labels: Vec<Labels<'_>> = self.rows.iter().map(Row::labels).collect();
        let all = || self.rows.iter().zip(&labels).filter_map(|(row, labels)| Some((row, labels, row.swap?)));
        let used: Vec<_> = all().filter_map(|(_, labels, swap)| Some((labels, at(swap.used?, swap.at)))).collect();
        let limits: Vec<_> = all().filter_map(|(_, labels, swap)| Some((labels, at(swap.limit?, swap.at)))).collect();
        let mut pods: BTreeMap<(&str, &str), (u64, i64)> = BTreeMap::new();
        for (row, _, swap) in all() {
            let Some(used) = swap.used else { continue };
            let sum = pods.entry((&row.namespace, &row.pod)).or_default();
            *sum = (sum.0.saturating_add(used), sum.1.max(swap.at));
        }
        let pods: Vec<(Labels<'_>, _)> =
            pods.into_iter().map(|((namespace, pod), (used, time))| (vec![("namespace", namespace), ("pod", pod)], at(used, time))).collect();
        let pods: Vec<_> = pods.iter().map(|(labels, used)| (labels, *used)).collect();
        let help = |what| format!("[ALPHA] Current {what} in bytes. Reported only on non-windows systems");
        gauges(encoder, "container_swap_limit_bytes", &help("amount of the container swap limit"), &limits)?;
        gauges(encoder, "container_swap_usage_bytes", &help("amount of the container swap usage"), &used)?;
        gauges(encoder, "pod_swap_usage_bytes", &help("amount of the pod swap usage"), &pods)
    }

    /// A family of working sets; nothing without any.
    fn memory(&self, encoder: &mut DescriptorEncoder<'_>, name: &str, what: &str, usages: &[(Labels<'_>, Usage)]) -> fmt::Result {
        let samples: Vec<_> = usages
            .iter()
            .filter_map(|(labels, usage)| usage.memory.map(|(value, millis)| (labels, At { value, millis, format: self.format })))
            .collect();
        gauges(encoder, name, &format!("[STABLE] Current working set of the {what} in bytes"), &samples)
    }
}

/// A family of gauges; nothing without any.
fn gauges(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, samples: &[(&Labels<'_>, impl EncodeGaugeValue)]) -> fmt::Result {
    if samples.is_empty() {
        return Ok(());
    }
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in samples {
        match labels.is_empty() {
            true => family.encode_gauge(value)?,
            false => family.encode_family(*labels)?.encode_gauge(value)?,
        }
    }
    Ok(())
}

impl Collector for Document {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let mut pods: BTreeMap<(&str, &str), Usage> = BTreeMap::new();
        for row in &self.rows {
            pods.entry((&row.namespace, &row.pod)).or_default().add(row.usage);
        }
        let containers: Vec<(Labels<'_>, Usage)> = self.rows.iter().map(|row| (row.labels(), row.usage)).collect();
        let pods: Vec<_> = pods.into_iter().map(|((namespace, pod), usage)| (vec![("namespace", namespace), ("pod", pod)], usage)).collect();
        let node = [(Labels::new(), self.node)];
        self.cpu(encoder, "container_cpu_usage_seconds", "container", &containers)?;
        self.memory(encoder, "container_memory_working_set_bytes", "container", &containers)?;
        let starts: Vec<_> = self.rows.iter().zip(&containers).filter_map(|(row, (labels, _))| Some((labels, row.started?))).collect();
        let help = "[STABLE] Start time of the container since unix epoch in seconds";
        gauges(encoder, "container_start_time_seconds", help, &starts)?;
        self.cpu(encoder, "node_cpu_usage_seconds", "node", &node)?;
        self.memory(encoder, "node_memory_working_set_bytes", "node", &node)?;
        if let Some((value, millis)) = self.swap {
            let help = "[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems";
            gauges(encoder, "node_swap_usage_bytes", help, &[(&Labels::new(), At { value, millis, format: self.format })])?;
        }
        self.cpu(encoder, "pod_cpu_usage_seconds", "pod", &pods)?;
        self.memory(encoder, "pod_memory_working_set_bytes", "pod", &pods)?;
        self.swap(encoder)?;
        let help = "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise";
        gauges(encoder, "resource_scrape_error", help, &[(&Labels::new(), u64::from(self.failed))])
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_document_is_upstreams() {
        let row = |container: &str, seconds: f64, at: i64| Row {
            namespace: "ns".into(),
            pod: "p".into(),
            container: container.into(),
            usage: Usage { cpu: Some((seconds, at)), memory: Some((1024, at)) },
            started: (container == "a").then_some(12.5),
            swap: None,
        };
        let rows = [row("a", 0.5, 1000), row("b", 1.25, 1001)];
        let summary = json!({"node": {"cpu": {"usageCoreNanoSeconds": 1_750_000_000u64}, "memory": {"workingSetBytes": 4096}}});
        let node = node(&summary, 1001);
        let text = Document { rows: rows.into(), node, swap: Some((5, 1001)), failed: false, format: Format::Text }.render();
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            samples,
            [
                r#"container_cpu_usage_seconds_total{container="a",namespace="ns",pod="p"} 0.5 1000"#,
                r#"container_cpu_usage_seconds_total{container="b",namespace="ns",pod="p"} 1.25 1001"#,
                r#"container_memory_working_set_bytes{container="a",namespace="ns",pod="p"} 1024 1000"#,
                r#"container_memory_working_set_bytes{container="b",namespace="ns",pod="p"} 1024 1001"#,
                r#"container_start_time_seconds{container="a",namespace="ns",pod="p"} 12.5"#,
                "node_cpu_usage_seconds_total 1.75 1001",
                "node_memory_working_set_bytes 4096 1001",
                "node_swap_usage_bytes 5 1001",
                r#"pod_cpu_usage_seconds_total{namespace="ns",pod="p"} 1.75 1001"#,
                r#"pod_memory_working_set_bytes{namespace="ns",pod="p"} 2048 1001"#,
                "resource_scrape_error 0",
            ]
        );
        assert!(text.starts_with(
            "# HELP container_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the container in core-seconds\n\
             # TYPE container_cpu_usage_seconds_total counter\n"
        ));
    }

    #[test]
    fn swap_is_shown_of_containers_that_have_it_and_of_their_pods() {
        let swap = |used: Option<u64>, free: Option<u64>, nanos: i64| {
            let value = |value: Option<u64>| value.map(|value| v1::UInt64Value { value });
            Some(Swap::of(&v1::SwapUsage { timestamp: nanos, swap_usage_bytes: value(used), swap_available_bytes: value(free) }))
        };
        let row = |container: &str, swap| Row { namespace: "ns".into(), pod: "p".into(), container: container.into(), swap, ..Row::default() };
        let rows = [row("a", swap(Some(5), Some(7), 1_000_000)), row("b", swap(Some(3), None, 2_000_000)), row("c", None)];
        let text = Document { rows: rows.into(), node: Usage::default(), swap: None, failed: false, format: Format::Text }.render();
        let samples: Vec<&str> = text.lines().filter(|line| line.contains("_swap_") && !line.starts_with('#')).collect();
        assert_eq!(
            samples,
            [
                r#"container_swap_limit_bytes{container="a",namespace="ns",pod="p"} 12 1"#,
                r#"container_swap_usage_bytes{container="a",namespace="ns",pod="p"} 5 1"#,
                r#"container_swap_usage_bytes{container="b",namespace="ns",pod="p"} 3 2"#,
                r#"pod_swap_usage_bytes{namespace="ns",pod="p"} 8 2"#,
            ]
        );
    }

    #[test]
    fn a_silent_runtime_is_an_error_of_the_scrape() {
        let text = Document { rows: Vec::new(), node: Usage::default(), swap: None, failed: true, format: Format::Text }.render();
        assert_eq!(text.lines().last(), Some("resource_scrape_error 1"));
        assert!(!text.contains("node_cpu"));
    }

    #[test]
    fn starts_are_the_summarys() {
        let summary =
            json!({"pods": [{"podRef": {"name": "p", "namespace": "n"}, "containers": [{"name": "c", "startTime": "1970-01-01T00:00:09Z"}]}]});
        assert_eq!(start(&summary, "n", "p", "c"), Some(9.0));
        assert_eq!(start(&summary, "n", "q", "c"), None);
    }
}
