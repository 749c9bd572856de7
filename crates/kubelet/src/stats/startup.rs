//! How long the node takes from the agent's start until it is Ready (upstream pkg/kubelet/util/node_startup_latency_tracker.go). Upstream's two
//! figures since the machine's start, `kubelet_node_startup_duration_seconds` and `…_pre_kubelet_…`, are left out: a machine that has run for
//! long when its agent starts would show them as well.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

/// The steps of the start, each noted once.
#[derive(Debug)]
pub(crate) struct Startup {
    began: Instant,
    steps: Mutex<Steps>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Steps {
    /// The first attempt to make the Node.
    attempt: Option<Instant>,
    /// It was made anew: an existing Node has been Ready before.
    made: Option<Instant>,
    ready: Option<Instant>,
}

impl Startup {
    pub(super) fn new(began: Instant) -> Self {
        Startup { began, steps: Mutex::default() }
    }

    fn note(&self, change: impl FnOnce(&mut Steps)) {
        change(&mut self.steps.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn attempted(&self, now: Instant) {
        self.note(|steps| _ = steps.attempt.get_or_insert(now));
    }

    pub(crate) fn made(&self, now: Instant) {
        self.note(|steps| _ = steps.made.get_or_insert(now));
    }

    pub(crate) fn is_ready(&self, now: Instant) {
        self.note(|steps| {
            if steps.made.is_some() {
                steps.ready.get_or_insert(now);
            }
        });
    }

    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Steps { attempt, made, ready } = *self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let between = |from: Option<Instant>, to: Option<Instant>| Some(to?.saturating_duration_since(from?).as_secs_f64());
        for (name, help, seconds) in [
            (
                "kubelet_node_startup_pre_registration_duration_seconds",
                "Duration in seconds of node startup before registration.",
                between(Some(self.began), attempt.filter(|_| made.is_some())),
            ),
            (
                "kubelet_node_startup_registration_duration_seconds",
                "Duration in seconds of node startup during registration.",
                between(attempt, made),
            ),
            (
                "kubelet_node_startup_post_registration_duration_seconds",
                "Duration in seconds of node startup after registration.",
                between(made, ready),
            ),
        ] {
            encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&seconds.unwrap_or(0.0))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus_client::collector::Collector;
    use prometheus_client::registry::Registry;

    use super::*;

    #[derive(Debug)]
    struct Shown(Startup);

    impl Collector for Shown {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            self.0.encode(&mut encoder)
        }
    }

    #[test]
    fn only_a_node_that_is_new_has_a_start() {
        let values = |startup: Startup| {
            let mut registry = Registry::default();
            registry.register_collector(Box::new(Shown(startup)));
            let text = exposition::encode(&registry, exposition::Format::Text);
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).collect::<Vec<_>>()
        };
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let startup = Startup::new(began);
        [2, 3].into_iter().for_each(|second| startup.attempted(at(second)));
        startup.made(at(4));
        [7, 9].into_iter().for_each(|second| startup.is_ready(at(second)));
        assert_eq!(values(startup), [2.0, 2.0, 3.0]);
        let known = Startup::new(began);
        known.attempted(at(2));
        known.is_ready(at(3));
        assert_eq!(values(known), [0.0, 0.0, 0.0]);
    }
}
