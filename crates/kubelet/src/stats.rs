//! `/stats/summary` and `/metrics`: what the runtime measures, and counts of our own.

use std::fmt;
use std::sync::Arc;

use cri::labels::{CONTAINER_NAME, POD_NAME, POD_NAMESPACE, POD_UID};
use cri::v1;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

use crate::agent::Agent;

fn time(nanos: i64) -> String {
    let t = Timestamp::from_nanosecond(nanos.into()).unwrap_or_default();
    Timestamp::from_second(t.as_second()).unwrap_or(t).to_string()
}

fn value(v: &Option<v1::UInt64Value>) -> Option<u64> {
    v.as_ref().map(|v| v.value)
}

async fn container_stats(agent: &Agent) -> Result<Vec<v1::ContainerStats>, cri::Error> {
    agent.cri.list_container_stats(v1::ListContainerStatsRequest { filter: None }).await
}

fn label<'a>(stats: &'a v1::ContainerStats, name: &str) -> &'a str {
    let labels = stats.attributes.as_ref().map(|a| &a.labels);
    labels.and_then(|l| l.get(name)).map_or("", String::as_str)
}

/// When a container that runs now was started.
fn container_start(status: &PodStatus, name: &str) -> Option<Time> {
    let all = status.container_statuses.iter().flatten();
    let mut all = all.chain(status.init_container_statuses.iter().flatten());
    let state = all.find(|c| c.name == name)?.state.as_ref()?;
    state.running.as_ref()?.started_at.clone()
}

/// Node and pods with the usage that the runtime reports; the node's own is the sum of its pods,
/// since its start is the agent's.
pub(crate) async fn summary(agent: &Agent) -> Result<Value, cri::Error> {
    let all = container_stats(agent).await?;
    let now = Timestamp::now();
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now).to_string();
    let mut pods: Vec<(String, Value)> = Vec::new();
    let (mut cores, mut total, mut memory) = (0, 0, 0);
    for s in &all {
        let cpu = s.cpu.unwrap_or_default();
        let mem = s.memory.unwrap_or_default();
        let (c, t, m) = (value(&cpu.usage_nano_cores), value(&cpu.usage_core_nano_seconds), value(&mem.working_set_bytes));
        cores += c.unwrap_or(0);
        total += t.unwrap_or(0);
        memory += m.unwrap_or(0);
        let pod = agent.pod(&cluster::Key::new(label(s, POD_NAMESPACE), label(s, POD_NAME)));
        let status = pod.as_ref().and_then(|p| p.status.as_ref());
        let name = label(s, CONTAINER_NAME);
        let container = json!({
            "name": name,
            "startTime": status.and_then(|s| container_start(s, name)),
            "cpu": {"time": time(cpu.timestamp), "usageNanoCores": c.unwrap_or(0), "usageCoreNanoSeconds": t.unwrap_or(0)},
            "memory": {"time": time(mem.timestamp), "workingSetBytes": m.unwrap_or(0), "usageBytes": value(&mem.usage_bytes).or(m).unwrap_or(0)},
        });
        let uid = label(s, POD_UID).to_owned();
        match pods.iter_mut().find(|(u, _)| *u == uid) {
            Some((_, pod)) => {
                if let Some(list) = pod["containers"].as_array_mut() {
                    list.push(container);
                }
            }
            None => {
                let reference = json!({"name": label(s, POD_NAME), "namespace": label(s, POD_NAMESPACE), "uid": uid});
                pods.push((uid, json!({"podRef": reference, "startTime": status.and_then(|s| s.start_time.clone()), "containers": [container]})));
            }
        }
    }
    let capacity = agent.side.capacity.memory_bytes;
    let pods: Vec<Value> = pods.into_iter().map(|(_, pod)| pod).collect();
    Ok(json!({
        "node": {
            "nodeName": agent.side.node_name,
            "startTime": agent.started.to_string(),
            "cpu": {"time": now, "usageNanoCores": cores, "usageCoreNanoSeconds": total},
            "memory": {"time": now, "workingSetBytes": memory, "usageBytes": memory, "availableBytes": capacity.saturating_sub(memory)},
        },
        "pods": pods,
    }))
}

/// The agent's own metrics, and those of its watches.
pub(crate) fn registry(agent: &Arc<Agent>) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Own(Arc::clone(agent))));
    agent.api.register(&mut registry);
    registry
}

/// The agent's own metrics.
struct Own(Arc<Agent>);

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Own")
    }
}

impl Collector for Own {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let agent = &self.0;
        let mut name = encoder.encode_descriptor("kubelet_node_name", "The node's name. The count is always 1.", None, MetricType::Gauge)?;
        name.encode_family(&[("node", agent.side.node_name.as_str())])?.encode_gauge(&1_u64)?;
        let pods = agent.all_pods();
        let running = pods.iter().filter(|p| p.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running")).count();
        for (name, help, value) in [
            ("kubelet_running_pods", "Number of pods in phase Running.", running),
            ("kubelet_working_pods", "Number of pods of the node.", pods.len()),
        ] {
            encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)?;
        }
        match &agent.health.borrow().host_network {
            Some(health) => crate::health::encode(&mut encoder, health),
            None => Ok(()),
        }
    }
}
