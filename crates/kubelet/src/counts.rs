//! Counts of what the node did to its pods, under upstream's names (pkg/kubelet/metrics).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

/// Evictions by signal, preemptions by resource, the last graceful shutdown, and hooks that were run over HTTP instead of HTTPS.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    evictions: Mutex<BTreeMap<String, u64>>,
    preemptions: Mutex<BTreeMap<String, u64>>,
    /// Seconds since 1970; 0 for never.
    shutdown_start: AtomicI64,
    shutdown_end: AtomicI64,
    http_fallbacks: AtomicU64,
}

fn count(counts: &Mutex<BTreeMap<String, u64>>, label: &str) {
    *counts.lock().unwrap_or_else(PoisonError::into_inner).entry(label.to_owned()).or_default() += 1;
}

impl Counts {
    pub(crate) fn eviction(&self, signal: &str) {
        count(&self.evictions, signal);
    }

    pub(crate) fn preemption(&self, resource: &str) {
        count(&self.preemptions, resource);
    }

    /// A hook's server was asked by HTTPS, but speaks HTTP.
    pub(crate) fn http_fallback(&self) {
        self.http_fallbacks.fetch_add(1, Ordering::Relaxed);
    }

    /// Begin and end of the last graceful shutdown, in seconds since 1970; 0 for not yet.
    pub(crate) fn shutdown(&self, start: i64, end: i64) {
        self.shutdown_start.store(start, Ordering::Relaxed);
        self.shutdown_end.store(end, Ordering::Relaxed);
    }

    /// Writes the metrics. Upstream's counters have no `_total`, with which a counter would be written: they are written as gauges.
    pub(crate) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, label, counts) in [
            ("kubelet_evictions", "Cumulative number of pod evictions by eviction signal", "eviction_signal", &self.evictions),
            ("kubelet_preemptions", "Cumulative number of pod preemptions by preemption resource", "preemption_signal", &self.preemptions),
        ] {
            let counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
            if counts.is_empty() {
                continue;
            }
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (value, number) in &*counts {
                family.encode_family(&[(label, value.as_str())])?.encode_gauge(number)?;
            }
        }
        for (name, help, value) in [
            ("kubelet_graceful_shutdown_start_time_seconds", "Last graceful shutdown start time since unix epoch in seconds", &self.shutdown_start),
            ("kubelet_graceful_shutdown_end_time_seconds", "Last graceful shutdown end time since unix epoch in seconds", &self.shutdown_end),
        ] {
            encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value.load(Ordering::Relaxed))?;
        }
        let help = "The number of times lifecycle handlers successfully fell back to http from https.";
        let mut fallbacks = encoder.encode_descriptor("kubelet_lifecycle_handler_http_fallbacks", help, None, MetricType::Counter)?;
        fallbacks.encode_counter::<NoLabelSet, _, u64>(&self.http_fallbacks.load(Ordering::Relaxed), None)
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::collector::Collector;
    use prometheus_client::registry::Registry;

    use super::*;

    #[derive(Debug)]
    struct Shown(Counts);

    impl Collector for Shown {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            self.0.encode(&mut encoder)
        }
    }

    #[test]
    fn the_names_are_upstreams() {
        let counts = Counts::default();
        counts.eviction("memory.available");
        counts.eviction("memory.available");
        counts.preemption("cpu");
        counts.shutdown(7, 0);
        counts.http_fallback();
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Shown(counts)));
        let text = exposition::encode(&registry, exposition::Format::Text);
        for line in [
            "kubelet_evictions{eviction_signal=\"memory.available\"} 2",
            "kubelet_preemptions{preemption_signal=\"cpu\"} 1",
            "kubelet_graceful_shutdown_start_time_seconds 7",
            "kubelet_graceful_shutdown_end_time_seconds 0",
            "kubelet_lifecycle_handler_http_fallbacks_total 1",
        ] {
            assert!(text.lines().any(|known| known == line), "{line} is missing in\n{text}");
        }
    }
}
