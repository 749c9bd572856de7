//! `/metrics/resource`: usage as metrics-server and Prometheus scrape it, with upstream's names
//! (pkg/kubelet/metrics/collectors/resource_metrics.go). Each value carries the time of its measurement in milliseconds.

use std::collections::BTreeMap;
use std::fmt::Write;

use cri::labels::{CONTAINER_NAME, POD_NAME, POD_NAMESPACE};
use cri::v1;
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
}

/// The document; a runtime that does not answer is told in it.
pub(super) async fn resource(server: &Server) -> String {
    let agent = &server.agent;
    let (all, summary) = tokio::join!(agent.cri.list_container_stats(v1::ListContainerStatsRequest { filter: None }), stats::summary(agent));
    let (Ok(all), Ok(summary)) = (all, summary) else { return render(&[], Usage::default(), true) };
    let mut rows: Vec<Row> = all.iter().map(|stats| row(stats, &summary)).collect();
    rows.sort_by(|a, b| (&a.namespace, &a.pod, &a.container).cmp(&(&b.namespace, &b.pod, &b.container)));
    let node = node(&rows, &summary, jiff::Timestamp::now().as_millisecond());
    render(&rows, node, false)
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
    Row { namespace, pod, container, usage: Usage { cpu, memory }, started }
}

/// When a container was started, in seconds since 1970, as the summary says.
fn start(summary: &Value, namespace: &str, pod: &str, container: &str) -> Option<f64> {
    let pods = summary["pods"].as_array()?;
    let pod = pods.iter().find(|own| own["podRef"]["namespace"] == namespace && own["podRef"]["name"] == pod)?;
    let own = pod["containers"].as_array()?.iter().find(|own| own["name"] == container)?;
    let time: jiff::Timestamp = own["startTime"].as_str()?.parse().ok()?;
    Some(time.as_millisecond() as f64 / 1e3)
}

/// The node's own usage, measured when its containers were.
fn node(rows: &[Row], summary: &Value, now: i64) -> Usage {
    let at = rows.iter().filter_map(|row| row.usage.cpu).map(|(_, at)| at).max().unwrap_or(now);
    let cpu = summary["node"]["cpu"]["usageCoreNanoSeconds"].as_u64();
    let memory = summary["node"]["memory"]["workingSetBytes"].as_u64();
    Usage { cpu: cpu.map(|nanos| (nanos as f64 / 1e9, at)), memory: memory.map(|bytes| (bytes, at)) }
}

fn render(rows: &[Row], node: Usage, failed: bool) -> String {
    let mut pods: BTreeMap<String, Usage> = BTreeMap::new();
    for row in rows {
        pods.entry(labels(&[("namespace", &row.namespace), ("pod", &row.pod)])).or_default().add(row.usage);
    }
    let of = |row: &Row| labels(&[("container", &row.container), ("namespace", &row.namespace), ("pod", &row.pod)]);
    let mut out = String::new();
    let cpu = |labels: String, usage: &Usage| usage.cpu.map(|(seconds, at)| format!("{labels} {seconds} {at}"));
    let memory = |labels: String, usage: &Usage| usage.memory.map(|(bytes, at)| format!("{labels} {bytes} {at}"));
    family(&mut out, "container_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed by the container in core-seconds", {
        rows.iter().filter_map(|row| cpu(of(row), &row.usage))
    });
    family(&mut out, "container_memory_working_set_bytes", "gauge", "Current working set of the container in bytes", {
        rows.iter().filter_map(|row| memory(of(row), &row.usage))
    });
    family(&mut out, "container_start_time_seconds", "gauge", "Start time of the container since unix epoch in seconds", {
        rows.iter().filter_map(|row| row.started.map(|started| format!("{} {started}", of(row))))
    });
    family(
        &mut out,
        "node_cpu_usage_seconds_total",
        "counter",
        "Cumulative cpu time consumed by the node in core-seconds",
        cpu(String::new(), &node),
    );
    family(&mut out, "node_memory_working_set_bytes", "gauge", "Current working set of the node in bytes", memory(String::new(), &node));
    family(&mut out, "pod_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed by the pod in core-seconds", {
        pods.iter().filter_map(|(labels, usage)| cpu(labels.clone(), usage))
    });
    family(&mut out, "pod_memory_working_set_bytes", "gauge", "Current working set of the pod in bytes", {
        pods.iter().filter_map(|(labels, usage)| memory(labels.clone(), usage))
    });
    let help = "1 if there was an error while getting container metrics, 0 otherwise";
    family(&mut out, "resource_scrape_error", "gauge", help, [format!(" {}", u8::from(failed))]);
    out
}

/// `{a="…",b="…"}`. Names of Kubernetes hold nothing that would have to be escaped.
fn labels(pairs: &[(&str, &str)]) -> String {
    let all: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
    format!("{{{}}}", all.join(","))
}

/// A metric with its samples; nothing without any.
fn family(out: &mut String, name: &str, kind: &str, help: &str, samples: impl IntoIterator<Item = String>) {
    let mut samples = samples.into_iter().peekable();
    if samples.peek().is_some() {
        let _ = writeln!(out, "# HELP {name} [STABLE] {help}\n# TYPE {name} {kind}");
    }
    for sample in samples {
        let _ = writeln!(out, "{name}{sample}");
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
        };
        let rows = [row("a", 0.5, 1000), row("b", 1.25, 1001)];
        let summary = json!({"node": {"cpu": {"usageCoreNanoSeconds": 1_750_000_000u64}, "memory": {"workingSetBytes": 4096}}});
        let text = render(&rows, node(&rows, &summary, 5), false);
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
    fn a_silent_runtime_is_an_error_of_the_scrape() {
        let text = render(&[], Usage::default(), true);
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
