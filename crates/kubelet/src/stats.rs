//! `/stats/summary` and `/metrics`: what the runtime measures, and counts of our own.

pub(crate) mod networks;
mod node;
mod started;
mod summary;
pub(crate) mod usage;

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::agent::Agent;
pub(crate) use node::Rates;
pub(crate) use started::Started;
pub(crate) use summary::{Detail, container_stats, summary, summary_of};

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
        agent.starts.encode(&mut encoder)?;
        agent.counts.encode(&mut encoder)?;
        agent.records.encode(&mut encoder)?;
        agent.providers.counts().encode(&mut encoder)?;
        match &agent.health.borrow().host_network {
            Some(health) => crate::health::encode(&mut encoder, health),
            None => Ok(()),
        }
    }
}
