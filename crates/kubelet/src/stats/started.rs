//! Counts of starts of containers, under upstream's names (pkg/kubelet/metrics; counted as kuberuntime_manager.go counts).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

/// Numbers by kind of container, and by reason where a start failed.
type Numbers = BTreeMap<(&'static str, String), u64>;

/// Starts and failed starts since the agent began: of all containers, and of those that are HostProcess ones.
#[derive(Debug, Default)]
pub(crate) struct Started(Mutex<[Counts; 2]>);

#[derive(Debug, Default)]
struct Counts {
    begun: Numbers,
    failed: Numbers,
}

impl Started {
    /// Counts an attempt; `failed` is the reason when it failed. `kind`: `container`, `init_container` or `ephemeral_container`.
    pub(crate) fn count(&self, kind: &'static str, is_host_process: bool, failed: Option<&str>) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for counts in counts.iter_mut().take(1 + usize::from(is_host_process)) {
            *counts.begun.entry((kind, String::new())).or_default() += 1;
            if let Some(reason) = failed {
                *counts.failed.entry((kind, reason.to_owned())).or_default() += 1;
            }
        }
    }

    /// Writes the counters.
    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let [all, host_process] = &*counts;
        for (name, help, numbers) in [
            ("kubelet_started_containers", "Cumulative number of containers started.", &all.begun),
            ("kubelet_started_containers_errors", "Cumulative number of errors when starting containers.", &all.failed),
            ("kubelet_started_host_process_containers", "Cumulative number of HostProcess containers started.", &host_process.begun),
            (
                "kubelet_started_host_process_containers_errors",
                "Cumulative number of errors when starting HostProcess containers.",
                &host_process.failed,
            ),
        ] {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for ((kind, reason), number) in numbers {
                let labels = [("container_type", *kind), ("code", reason.as_str())];
                let labels = if reason.is_empty() { &labels[..1] } else { &labels[..] };
                family.encode_family(&labels)?.encode_counter::<prometheus_client::encoding::NoLabelSet, _, u64>(number, None)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::collector::Collector;
    use prometheus_client::registry::Registry;

    use super::*;

    #[derive(Debug)]
    struct Shown(Started);

    impl Collector for Shown {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            self.0.encode(&mut encoder)
        }
    }

    #[test]
    fn host_process_containers_count_twice_and_failures_by_reason() {
        let started = Started::default();
        started.count("container", false, None);
        started.count("container", true, Some("RunContainerError"));
        started.count("init_container", true, None);
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Shown(started)));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "kubelet_started_containers_total{container_type=\"container\"} 2",
            "kubelet_started_containers_errors_total{container_type=\"container\",code=\"RunContainerError\"} 1",
            "kubelet_started_host_process_containers_total{container_type=\"container\"} 1",
            "kubelet_started_host_process_containers_total{container_type=\"init_container\"} 1",
            "kubelet_started_host_process_containers_errors_total{container_type=\"container\",code=\"RunContainerError\"} 1",
        ] {
            assert!(text.lines().any(|known| known == line), "{line} is missing in\n{text}");
        }
    }
}
