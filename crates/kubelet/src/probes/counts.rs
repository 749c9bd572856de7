//! `/metrics/probes`: how often probes succeeded, failed or could not be made, and how long they took, with upstream's names
//! (pkg/kubelet/prober/prober.go).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::{Verdict, Which};

/// Upper bounds of durations, in seconds: those of Prometheus' libraries.
const BOUNDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const RESULTS: [&str; 3] = ["successful", "failed", "unknown"];

/// A container that is probed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Probed {
    pub namespace: String,
    pub pod: String,
    pub uid: String,
    pub container: String,
}

type Labels = Vec<(&'static str, String)>;

impl Probed {
    fn tries(&self, which: Which, result: &str) -> Labels {
        vec![
            ("probe_type", which.name().to_owned()),
            ("result", result.to_owned()),
            ("container", self.container.clone()),
            ("pod", self.pod.clone()),
            ("namespace", self.namespace.clone()),
            ("pod_uid", self.uid.clone()),
        ]
    }

    fn durations(&self, which: Which) -> Labels {
        let text = [("container", &self.container), ("pod", &self.pod), ("namespace", &self.namespace)];
        let text = text.map(|(name, value)| (name, value.clone()));
        [("probe_type", which.name().to_owned())].into_iter().chain(text).collect()
    }
}

/// The counts of one node.
pub(crate) struct Counts {
    tries: Family<Labels, Counter>,
    durations: Family<Labels, Histogram, fn() -> Histogram>,
    /// What has counts, by the pod's UID.
    known: Mutex<BTreeMap<String, BTreeSet<Probed>>>,
    pub registry: Registry,
}

impl fmt::Debug for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Counts")
    }
}

impl Default for Counts {
    fn default() -> Self {
        let (tries, durations) = (Family::default(), Family::new_with_constructor((|| Histogram::new(BOUNDS)) as fn() -> Histogram));
        let mut registry = Registry::default();
        let help = "Cumulative number of a liveness, readiness or startup probe for a container by result";
        registry.register("prober_probe", help, Family::clone(&tries));
        registry.register("prober_probe_duration_seconds", "Duration in seconds for a probe response", Family::clone(&durations));
        Self { tries, durations, known: Mutex::default(), registry }
    }
}

impl Counts {
    /// Counts one try.
    pub(super) fn note(&self, of: &Probed, which: Which, verdict: &Verdict, took: Duration) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).entry(of.uid.clone()).or_default().insert(of.clone());
        let result = match verdict {
            Verdict::Success | Verdict::Warning(_) => "successful",
            Verdict::Failure(_) => "failed",
            Verdict::Unknown(_) => "unknown",
        };
        self.tries.get_or_create(&of.tries(which, result)).inc();
        self.durations.get_or_create(&of.durations(which)).observe(took.as_secs_f64());
    }

    /// Forgets a pod that is gone.
    pub(crate) fn release(&self, uid: &str) {
        let gone = self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
        for of in gone.into_iter().flatten() {
            for which in [Which::Startup, Which::Liveness, Which::Readiness] {
                for result in RESULTS {
                    self.tries.remove(&of.tries(which, result));
                }
                self.durations.remove(&of.durations(which));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_are_counted_by_result_until_their_pod_is_gone() {
        let counts = Counts::default();
        let of = Probed { namespace: "ns".into(), pod: "p".into(), uid: "u".into(), container: "c".into() };
        let took = Duration::from_millis(30);
        counts.note(&of, Which::Liveness, &Verdict::Success, took);
        counts.note(&of, Which::Liveness, &Verdict::Success, took);
        counts.note(&of, Which::Readiness, &Verdict::Unknown(super::super::ProbeError::NoPort), took);
        let text = exposition::encode(&counts.registry, exposition::Format::Text);
        for line in [
            r#"prober_probe_total{probe_type="Liveness",result="successful",container="c",pod="p",namespace="ns",pod_uid="u"} 2"#,
            r#"prober_probe_total{probe_type="Readiness",result="unknown",container="c",pod="p",namespace="ns",pod_uid="u"} 1"#,
            r#"prober_probe_duration_seconds_count{probe_type="Liveness",container="c",pod="p",namespace="ns"} 2"#,
        ] {
            assert!(text.contains(line), "no {line} in {text}");
        }
        counts.release("u");
        let text = exposition::encode(&counts.registry, exposition::Format::Text);
        assert!(!text.contains("pod=\"p\""), "{text}");
    }
}
