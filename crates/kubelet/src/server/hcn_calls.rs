//! `/debug/hcn`: counts of the node's calls to the Host Networking Service, and those that hang.

use hcn::client::{Hung, Snapshot};
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
