//! `/stats/summary` and `/metrics`: what the runtime measures, and counts of our own.

pub(crate) mod networks;
mod node;
mod own;
mod requests;
mod started;
mod startup;
mod summary;
mod timings;
pub(crate) mod usage;

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;

use crate::agent::Agent;
pub(crate) use node::{Rates, whole};
pub(crate) use started::Started;
pub(crate) use summary::{Detail, container_stats, summary, summary_of};
pub(crate) use timings::{Start, Timings};

/// The agent's own metrics, and those of its watches.
pub(crate) fn registry(agent: &Arc<Agent>) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Own(Arc::clone(agent))));
    agent.timings.register(&mut registry);
    agent.requests.register(&mut registry);
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
        own::identity(agent, &mut encoder)?;
        own::pods(agent, &mut encoder)?;
        own::operations(&agent.cri, &mut encoder)?;
        own::process(&mut encoder)?;
        agent.timings.encode(&mut encoder)?;
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
