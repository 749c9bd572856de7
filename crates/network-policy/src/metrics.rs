//! Metrics of the policies of a node.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use exposition::{Format, register};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::run::Status;

/// The metrics. Clones share their values.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Mutex<Registry>,
    /// From a change to its rules in effect.
    effect: Histogram,
    failures: Counter,
    writes: Counter,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let (effect, failures, writes) = (Histogram::new((0..15).map(|n| 0.001 * f64::from(1 << n))), Counter::default(), Counter::default());
        let mut registry = Registry::default();
        register(&mut registry, "mullion_network_policy_effect_seconds", "From a change to its rules in effect on this node", effect.clone());
        register(&mut registry, "mullion_network_policy_failures", "Passes that the host refused", failures.clone());
        register(&mut registry, "mullion_network_policy_writes", "Elements and endpoints that were written", writes.clone());
        Self(Arc::new(Inner { registry: Mutex::new(registry), effect, failures, writes }))
    }
}

impl Metrics {
    pub(crate) fn report(&self, status: watch::Receiver<Status>) {
        self.registry().register_collector(Box::new(Progress(status)));
    }

    pub(crate) fn in_effect(&self, after: Duration) {
        self.0.effect.observe(after.as_secs_f64());
    }

    pub(crate) fn wrote(&self, elements: usize) {
        self.0.writes.inc_by(elements as u64);
    }

    pub(crate) fn failed(&self) {
        self.0.failures.inc();
    }

    /// Everything, in a format of Prometheus.
    pub fn encode(&self, format: Format) -> String {
        exposition::encode(&self.registry(), format)
    }

    fn registry(&self) -> std::sync::MutexGuard<'_, Registry> {
        self.0.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Progress(watch::Receiver<Status>);

impl Collector for Progress {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let status = self.0.borrow();
        let counts = [
            ("mullion_network_policy_ready", "Whether all rules were in effect once", usize::from(status.ready)),
            ("mullion_network_policy_endpoints", "Pods of this node that have an address", status.endpoints),
            ("mullion_network_policy_isolated_endpoints", "Pods of this node with rules", status.isolated),
            ("mullion_network_policy_problems", "What of the policies cannot be put into effect here", status.problems.len()),
        ];
        for (name, help, value) in counts {
            encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)?;
        }
        let (name, help) = ("mullion_network_policy_effective_timestamp_seconds", "Since when a policy is in effect on this node as it is now");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (policy, state) in &status.policies {
            let since = state.effective.duration_since(std::time::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
            family.encode_family(&[("policy", policy.to_string())])?.encode_gauge(&since)?;
        }
        Ok(())
    }
}
