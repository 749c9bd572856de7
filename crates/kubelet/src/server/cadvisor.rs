//! `/metrics/cadvisor`: machine and containers under cAdvisor's names, which dashboards use.
//!
//! Inputs: the control groups and /proc of the node's root, where it has them; else what the runtime measures, so that the same names are
//! filled on Windows, and for containers whose groups are not where the agent makes them. Families that neither gives are taken from the
//! runtime's own metrics (CRI `ListPodSandboxMetrics`), where it has any.
//! Nothing is kept between two requests, and the answer is written family by family as the client reads it.

pub(super) mod families;
mod rows;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use cri::v1;
use exposition::Format;
use futures::StreamExt;
use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use jiff::Timestamp;
use thiserror_ext::AsReport as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::Body;
use crate::agent::Agent;
use crate::node::NodeFacts;
use crate::stats;
use families::{Kind, Row, head, sample, write_labels};

/// Bytes of an answer that are sent at once.
const CHUNK: usize = 32 << 10;

/// What the runtime says.
#[derive(Default)]
struct Lists {
    containers: Vec<v1::Container>,
    sandboxes: Vec<v1::PodSandbox>,
    stats: Vec<v1::ContainerStats>,
    /// Networks of sandboxes, for those without a control group.
    networks: Vec<v1::PodSandboxStats>,
    /// Where the runtime has its images.
    images: Option<String>,
    /// The image of sandboxes: the runtime has one for all of a kind.
    sandbox_image: String,
    failed: bool,
}

/// The runtime's own metrics.
#[derive(Default)]
struct Own {
    descriptors: Vec<v1::MetricDescriptor>,
    metrics: Vec<v1::PodSandboxMetrics>,
}

/// What is shown of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Machine {
    cores: u64,
    /// Cores and sockets of processors, where the kernel tells.
    physical: Option<(u64, u64)>,
    memory: u64,
    swap: Option<u64>,
}

/// The answer.
pub(super) async fn serve(agent: &Arc<Agent>, format: Format) -> Response<Body> {
    let (lists, own) = tokio::join!(lists(agent), own(agent));
    let mut failed = lists.failed;
    let of = Arc::clone(agent);
    let read = tokio::task::spawn_blocking(move || (rows::rows(&of, &lists), rows::machine(&of)));
    let (rows, machine) = read.await.unwrap_or_else(|error| {
        tracing::error!(%error, "/metrics/cadvisor is without machine and containers: reading them failed");
        failed = true;
        Default::default()
    });
    let (sender, receiver) = mpsc::channel::<Bytes>(2);
    let facts = Arc::clone(&agent.facts);
    tokio::spawn(async move {
        // A client that went away needs no more.
        let _ = write(&facts, &machine, &rows, &own, failed, format, &sender).await;
    });
    let frames = ReceiverStream::new(receiver).map(|bytes| Ok(Frame::data(bytes)));
    let mut answer = Response::new(BodyExt::boxed_unsync(StreamBody::new(frames)));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
    answer
}

/// What CRI tells of containers and sandboxes that run.
async fn lists(agent: &Agent) -> Lists {
    let running = v1::ContainerStateValue { state: v1::ContainerState::ContainerRunning as i32 };
    let containers = v1::ContainerFilter { state: Some(running), ..Default::default() };
    let ready = v1::PodSandboxStateValue { state: v1::PodSandboxState::SandboxReady as i32 };
    let sandboxes = v1::PodSandboxFilter { state: Some(ready), ..Default::default() };
    let asked = tokio::try_join!(
        agent.cri.list_containers(v1::ListContainersRequest { filter: Some(containers) }),
        agent.cri.list_pod_sandbox(v1::ListPodSandboxRequest { filter: Some(sandboxes) }),
    );
    let (containers, sandboxes) = match asked {
        Ok(lists) => lists,
        Err(error) => {
            tracing::warn!(error = %error.as_report(), "/metrics/cadvisor is without containers: the container runtime does not list them");
            return Lists { failed: true, ..Lists::default() };
        }
    };
    let ((stats, failed), networks, image, images) = tokio::join!(
        stats::container_stats(agent),
        stats::networks::of_sandboxes(agent),
        sandbox_image(agent, sandboxes.first()),
        agent.cri.image_fs_info(v1::ImageFsInfoRequest {}),
    );
    let images = images.ok().and_then(|info| info.image_filesystems.into_iter().next()?.fs_id).map(|id| id.mountpoint);
    Lists { containers, sandboxes, stats, networks, images, sandbox_image: image.unwrap_or_default(), failed }
}

/// The image of a sandbox, which runtimes tell in words of their own alone.
async fn sandbox_image(agent: &Agent, sandbox: Option<&v1::PodSandbox>) -> Option<String> {
    let request = v1::PodSandboxStatusRequest { pod_sandbox_id: sandbox?.id.clone(), verbose: true };
    let status = agent.cri.pod_sandbox_status(request).await.ok()?;
    let info: serde_json::Value = serde_json::from_str(status.info.get("info")?).ok()?;
    Some(info["image"].as_str()?.to_owned())
}

/// The runtime's own metrics; nothing of one that has none.
async fn own(agent: &Agent) -> Own {
    let Ok(descriptors) = agent.cri.list_metric_descriptors(v1::ListMetricDescriptorsRequest {}).await else { return Own::default() };
    if descriptors.is_empty() {
        return Own::default();
    }
    match agent.cri.list_pod_sandbox_metrics(v1::ListPodSandboxMetricsRequest {}).await {
        Ok(metrics) => Own { descriptors, metrics },
        Err(error) => {
            tracing::debug!(error = %error.as_report(), "the container runtime does not tell its metrics");
            Own::default()
        }
    }
}

/// Writes the document.
async fn write(
    facts: &NodeFacts,
    machine: &Machine,
    rows: &[Row],
    own: &Own,
    failed: bool,
    format: Format,
    out: &mpsc::Sender<Bytes>,
) -> Result<(), mpsc::error::SendError<Bytes>> {
    let mut text = String::new();
    let now = Timestamp::now();
    let mut shown = BTreeSet::new();
    write_machine(&mut text, facts, machine, failed, format, &mut shown);
    // Whole seconds, without a time of its own that could differ.
    let (name, help) = ("container_last_seen", "Last time a container was seen by the exporter");
    write_each(&mut text, name, help, rows, now.as_second() as f64, now.as_millisecond(), format);
    shown.insert(name);
    for family in families::all() {
        if family.write(&mut text, rows, now.as_millisecond(), format) {
            shown.insert(family.name);
        }
        if text.len() >= CHUNK {
            out.send(std::mem::take(&mut text).into()).await?;
        }
    }
    write_own(&mut text, own, &shown, format);
    if format == Format::OpenMetrics {
        text.push_str("# EOF\n");
    }
    out.send(text.into()).await
}

fn write_each(text: &mut String, name: &str, help: &str, rows: &[Row], value: f64, millis: i64, format: Format) {
    if rows.is_empty() {
        return;
    }
    head(text, name, help, Kind::Gauge, format);
    rows.iter().for_each(|row| sample(text, name, &row.labels, &[], value, Some(millis), format));
}

/// The machine, and whether reading containers failed; adds the names to those that are shown.
fn write_machine(text: &mut String, facts: &NodeFacts, machine: &Machine, failed: bool, format: Format, shown: &mut BTreeSet<&'static str>) {
    let mut put = |name: &'static str, help: &str, labels: &[(&str, &str)], value: u64| {
        shown.insert(name);
        head(text, name, help, Kind::Gauge, format);
        sample(text, name, "", labels, value as f64, None, format);
    };
    let of = &facts.facts;
    let version = [
        ("cadvisorRevision", ""),
        ("cadvisorVersion", ""),
        ("dockerVersion", ""),
        ("kernelVersion", &of.kernel_version),
        ("osVersion", &of.os_image),
    ];
    let help = "A metric with a constant '1' value labeled by kernel version, OS version, docker version, cadvisor version & cadvisor revision.";
    put("cadvisor_version_info", help, &version, 1);
    let help = "1 if there was an error while getting container metrics, 0 otherwise";
    put("container_scrape_error", help, &[], u64::from(failed));
    let labels = [("boot_id", of.boot_id.as_str()), ("machine_id", &of.machine_id), ("system_uuid", &of.system_uuid)];
    put("machine_cpu_cores", "Number of logical CPU cores.", &labels, machine.cores);
    if let Some((cores, sockets)) = machine.physical {
        put("machine_cpu_physical_cores", "Number of physical CPU cores.", &labels, cores);
        put("machine_cpu_sockets", "Number of CPU sockets.", &labels, sockets);
    }
    put("machine_memory_bytes", "Amount of memory installed on the machine.", &labels, machine.memory);
    if let Some(swap) = machine.swap {
        put("machine_swap_bytes", "Amount of swap memory available on the machine.", &labels, swap);
    }
    put("machine_scrape_error", "1 if there was an error while getting machine metrics, 0 otherwise.", &[], 0);
}

/// Families of the runtime that are not shown yet.
fn write_own(text: &mut String, own: &Own, shown: &BTreeSet<&str>, format: Format) {
    let mut by_name: BTreeMap<&str, Vec<&v1::Metric>> = BTreeMap::new();
    let all = own.metrics.iter().flat_map(|pod| pod.metrics.iter().chain(pod.container_metrics.iter().flat_map(|own| &own.metrics)));
    all.for_each(|metric| by_name.entry(&metric.name).or_default().push(metric));
    for descriptor in own.descriptors.iter().filter(|own| !shown.contains(own.name.as_str()) && is_name(&own.name)) {
        let Some(metrics) = by_name.remove(descriptor.name.as_str()) else { continue };
        let is_counter = metrics.first().is_some_and(|metric| metric.metric_type == v1::MetricType::Counter as i32);
        head(text, &descriptor.name, &descriptor.help, if is_counter { Kind::Counter } else { Kind::Gauge }, format);
        for metric in metrics.iter().filter(|metric| metric.label_values.len() == descriptor.label_keys.len()) {
            let mut labels = String::new();
            let keys = descriptor.label_keys.iter().map(String::as_str);
            write_labels(&mut labels, keys.zip(metric.label_values.iter().map(String::as_str)).filter(|(key, _)| is_name(key)));
            let time = (metric.timestamp != 0).then_some(metric.timestamp / 1_000_000);
            sample(text, &descriptor.name, &labels, &[], metric.value.map_or(0, |value| value.value) as f64, time, format);
        }
    }
}

/// Whether a runtime's word can be the name of a family or of a label.
fn is_name(name: &str) -> bool {
    !name.starts_with(|first: char| first.is_ascii_digit()) && !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_of_the_runtime_fill_what_is_missing() {
        let descriptor = |name: &str| v1::MetricDescriptor { name: name.into(), help: "Help".into(), label_keys: vec!["id".into(), "name".into()] };
        let metric = |name: &str, labels: &[&str]| v1::Metric {
            name: name.into(),
            timestamp: 5_000_000,
            metric_type: v1::MetricType::Counter as i32,
            label_values: labels.iter().map(|label| (*label).to_owned()).collect(),
            value: Some(v1::UInt64Value { value: 7 }),
        };
        let container = v1::ContainerMetrics {
            container_id: "c".into(),
            metrics: vec![metric("known_total", &["/a", "c"]), metric("more_total", &["/a", "c"]), metric("more_total", &["too few"])],
        };
        let own = Own {
            descriptors: vec![descriptor("known_total"), descriptor("more_total"), descriptor("bad name"), descriptor("unused")],
            metrics: vec![v1::PodSandboxMetrics {
                pod_sandbox_id: "s".into(),
                metrics: vec![metric("bad name", &["/a", "c"]), metric("without a descriptor", &[])],
                container_metrics: vec![container],
            }],
        };
        let mut text = String::new();
        write_own(&mut text, &own, &BTreeSet::from(["known_total"]), Format::Text);
        assert_eq!(text, "# HELP more_total Help\n# TYPE more_total counter\nmore_total{id=\"/a\",name=\"c\"} 7 5\n");
    }
}
