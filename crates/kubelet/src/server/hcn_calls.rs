//! Counts of the node's calls to the Host Networking Service: the document `/debug/hcn`, which names those that hang, and metrics.

use std::fmt;

use hcn::HcnClient;
use hcn::client::{Hung, Snapshot};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use serde_json::{Value, json};

/// The document. Calls are of functions, everything else counts operations, of which each makes several calls.
pub(super) fn document(snapshot: &Snapshot) -> Value {
    let total = snapshot.total();
    let hung = |one: &Hung| json!({"call": one.call.map(|call| call.to_string()), "seconds": one.age.as_secs()});
    json!({
        "calls": total.calls,
        "failed": total.failed,
        "places": snapshot.places,
        "running": snapshot.running,
        "waiting": snapshot.waiting,
        "timedOut": snapshot.timed_out,
        "cancelled": snapshot.cancelled,
        "refused": snapshot.refused,
        "hung": snapshot.hung.iter().map(hung).collect::<Vec<_>>(),
    })
}

/// The counts as metrics. Those of calls are called as the service proxy's, whose endpoint shows its own calls alone.
pub(super) struct Metrics(pub HcnClient);

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let snapshot = self.0.snapshot();
        let by_function = || snapshot.functions.iter().map(|(function, tally)| ([("function", function.to_string())], tally));
        let calls = by_function().map(|(labels, tally)| (labels, tally.calls));
        exposition::counters(&mut encoder, "mullion_hns_calls", "Calls of the Host Networking Service", calls)?;
        let failed = by_function().map(|(labels, tally)| (labels, tally.failed));
        exposition::counters(&mut encoder, "mullion_hns_calls_failed", "Calls that failed", failed)?;
        let seconds = by_function().map(|(labels, tally)| (labels, tally.time.as_secs_f64()));
        exposition::counters(&mut encoder, "mullion_hns_call_seconds", "How long calls took together", seconds)?;
        let given_up = [("timed_out", snapshot.timed_out), ("cancelled", snapshot.cancelled), ("refused", snapshot.refused)];
        let given_up = given_up.map(|(reason, count)| ([("reason", reason)], count));
        exposition::counters(&mut encoder, "mullion_hns_operations_given_up", "Operations that ended without a result", given_up)?;
        let help = "Operations that run, wait for a place, or hang past their deadline";
        let mut now = encoder.encode_descriptor("mullion_hns_operations", help, None, MetricType::Gauge)?;
        for (state, count) in [("running", snapshot.running), ("waiting", snapshot.waiting), ("hung", snapshot.hung.len())] {
            now.encode_family(&[("state", state)])?.encode_gauge(&count)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hcn::client::{Called, Tally};
    use hcn::{Function, Kind};

    use super::*;

    #[test]
    fn document_has_the_counts_and_the_calls_that_hang() {
        let (open, create) = (Function::Open(Kind::Network), Function::Create(Kind::Endpoint));
        let tally = |calls, failed| Tally { calls, failed, ..Tally::default() };
        let snapshot = Snapshot {
            functions: [(open, tally(5, 1)), (create, tally(2, 1))].into(),
            timed_out: 3,
            cancelled: 4,
            refused: 6,
            places: 16,
            running: 2,
            waiting: 1,
            hung: vec![Hung { call: Some(Called::Function(create)), age: Duration::from_millis(63_500) }, Hung { call: None, age: Duration::ZERO }],
        };
        let expected = json!({
            "calls": 7, "failed": 2, "places": 16, "running": 2, "waiting": 1, "timedOut": 3, "cancelled": 4, "refused": 6,
            "hung": [{"call": create.to_string(), "seconds": 63}, {"call": null, "seconds": 0}],
        });
        assert_eq!(document(&snapshot), expected);
    }
}
