//! Deployments, ReplicaSets, DaemonSets and what belongs to them.

use super::core::{age, name};
use super::text::{get, integer, labels, list, selector, since};
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

pub const DAEMON_SET: Printer = Printer::new(
    &[
        NAME,
        number("Desired"),
        number("Current"),
        number("Ready"),
        number("Up-to-date"),
        number("Available"),
        text("Node Selector"),
        AGE,
        wide(text("Containers")),
        wide(text("Images")),
        wide(text("Selector")),
    ],
    |object, now| {
        let counts = ["desiredNumberScheduled", "currentNumberScheduled", "numberReady", "updatedNumberScheduled", "numberAvailable"];
        let mut cells = vec![name(object)];
        cells.extend(counts.map(|member| integer(object, &format!("/status/{member}")).into()));
        cells.push(labels(object, "/spec/template/spec/nodeSelector").into());
        cells.extend(tail(object, now));
        cells
    },
);

pub const CONTROLLER_REVISION: Printer = Printer::new(&[NAME, text("Controller"), text("Revision"), AGE], |object, now| {
    let owner = list(object, "/metadata/ownerReferences").iter().find(|owner| owner["controller"] == true);
    let controller = owner.map_or_else(
        || "<none>".into(),
        |owner| {
            let group = get(owner, "/apiVersion").split_once('/').map_or("", |(group, _)| group);
            let dot = if group.is_empty() { "" } else { "." };
            format!("{}{dot}{group}/{}", get(owner, "/kind").to_lowercase(), get(owner, "/name"))
        },
    );
    vec![name(object), controller.into(), integer(object, "/revision").into(), age(object, now)]
});

pub const DISRUPTION_BUDGET: Printer =
    Printer::new(&[NAME, text("Min Available"), text("Max Unavailable"), number("Allowed Disruptions"), AGE], |object, now| {
        let amount = |pointer: &str| match object.pointer(pointer) {
            Some(Value::String(percent)) => percent.clone(),
            Some(Value::Number(count)) => count.to_string(),
            _ => "N/A".into(),
        };
        vec![
            name(object),
            amount("/spec/minAvailable").into(),
            amount("/spec/maxUnavailable").into(),
            integer(object, "/status/disruptionsAllowed").into(),
            age(object, now),
        ]
    });

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
