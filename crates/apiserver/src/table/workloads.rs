//! Deployments and ReplicaSets.

use super::text::{get, integer, list, selector, since};
use super::{AGE, NAME, Printer, number, text, wide};
use jiff::Timestamp;
use serde_json::Value;

pub const DEPLOYMENT: Printer = Printer::new(
    &[NAME, text("Ready"), text("Up-to-date"), text("Available"), AGE, wide(text("Containers")), wide(text("Images")), wide(text("Selector"))],
    |object, now| {
        let ready = format!("{}/{}", integer(object, "/status/readyReplicas"), integer(object, "/spec/replicas"));
        let mut cells = vec![
            get(object, "/metadata/name").into(),
            ready.into(),
            integer(object, "/status/updatedReplicas").into(),
            integer(object, "/status/availableReplicas").into(),
        ];
        cells.extend(tail(object, now));
        cells
    },
);

pub const REPLICA_SET: Printer = Printer::new(
    &[NAME, number("Desired"), number("Current"), number("Ready"), AGE, wide(text("Containers")), wide(text("Images")), wide(text("Selector"))],
    |object, now| {
        let mut cells = vec![
            get(object, "/metadata/name").into(),
            integer(object, "/spec/replicas").into(),
            integer(object, "/status/replicas").into(),
            integer(object, "/status/readyReplicas").into(),
        ];
        cells.extend(tail(object, now));
        cells
    },
);

/// Age, containers, images, selector.
fn tail(object: &Value, now: Timestamp) -> [Value; 4] {
    let containers = list(object, "/spec/template/spec/containers");
    let joined = |member: &str| containers.iter().map(|container| get(container, member)).collect::<Vec<_>>().join(",");
    [
        since(object, "/metadata/creationTimestamp", now).into(),
        joined("/name").into(),
        joined("/image").into(),
        selector(object, "/spec/selector").into(),
    ]
}
