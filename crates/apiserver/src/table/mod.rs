//! Objects as tables, the form in which kubectl asks for them (pkg/printers/internalversion/printers.go). Columns of priority 1 are shown
//! with `-o wide`; every row has them all.

mod core;
mod metrics;
mod pod;
mod storage;
#[cfg(test)]
mod tests;
mod text;
mod workloads;

use crate::kinds::KindInfo;
use jiff::Timestamp;
use serde_json::{Value, json};

/// One column: name, type, format, priority.
type Column = (&'static str, &'static str, &'static str, i32);

const NAME: Column = ("Name", "string", "name", 0);
const AGE: Column = ("Age", "string", "", 0);

const fn text(name: &'static str) -> Column {
    (name, "string", "", 0)
}

const fn number(name: &'static str) -> Column {
    (name, "integer", "", 0)
}

const fn wide(column: Column) -> Column {
    (column.0, column.1, column.2, 1)
}

/// How a kind's table is made.
struct Printer {
    columns: &'static [Column],
    cells: fn(&Value, Timestamp) -> Vec<Value>,
    conditions: fn(&Value) -> Option<Value>,
}

impl Printer {
    const fn new(columns: &'static [Column], cells: fn(&Value, Timestamp) -> Vec<Value>) -> Self {
        Printer { columns, cells, conditions: |_| None }
    }
}

/// `columnDefinitions` and `rows` of a `meta.k8s.io/v1` Table; the caller adds each row's object. Ages count to `now`.
pub fn render(info: &KindInfo, items: &[Value], now: Timestamp) -> Value {
    let printer = printer(info);
    let columns: Vec<Value> = printer.columns.iter().map(|column| definition(info, column)).collect();
    let rows: Vec<Value> = items
        .iter()
        .map(|item| {
            let mut row = json!({"cells": (printer.cells)(item, now)});
            if let Some(conditions) = (printer.conditions)(item) {
                row["conditions"] = json!([conditions]);
            }
            row
        })
        .collect();
    json!({"columnDefinitions": columns, "rows": rows})
}

fn definition(info: &KindInfo, (name, kind, format, priority): &Column) -> Value {
    let description = match *name {
        "Name" => format!("Name must be unique within {}.", if info.namespaced { "a namespace" } else { "the cluster" }),
        "Age" | "Created At" => "The time since the object was created on the server.".to_string(),
        other => format!("{other} of the {}.", info.kind),
    };
    json!({"name": name, "type": kind, "format": format, "description": description, "priority": priority})
}

fn printer(info: &KindInfo) -> Printer {
    match (info.group, info.kind) {
        ("", "Pod") => pod::PRINTER,
        ("", "Service") => core::SERVICE,
        ("", "Node") => core::NODE,
        ("", "Namespace") => core::NAMESPACE,
        ("", "Secret") => core::SECRET,
        ("", "ConfigMap") => core::CONFIG_MAP,
        ("", "ServiceAccount") => core::SERVICE_ACCOUNT,
        ("" | "events.k8s.io", "Event") => core::EVENT,
        ("", "Endpoints") => core::ENDPOINTS,
        ("discovery.k8s.io", "EndpointSlice") => core::ENDPOINT_SLICE,
        ("apps", "Deployment") => workloads::DEPLOYMENT,
        ("apps", "ReplicaSet") => workloads::REPLICA_SET,
        ("apps", "DaemonSet") => workloads::DAEMON_SET,
        ("apps", "ControllerRevision") => workloads::CONTROLLER_REVISION,
        ("policy", "PodDisruptionBudget") => workloads::DISRUPTION_BUDGET,
        ("", "PersistentVolume") => storage::PERSISTENT_VOLUME,
        ("", "PersistentVolumeClaim") => storage::PERSISTENT_VOLUME_CLAIM,
        ("storage.k8s.io", "StorageClass") => storage::STORAGE_CLASS,
        ("node.k8s.io", "RuntimeClass") => storage::RUNTIME_CLASS,
        ("scheduling.k8s.io", "PriorityClass") => storage::PRIORITY_CLASS,
        ("metrics.k8s.io", "NodeMetrics") => metrics::NODE,
        ("metrics.k8s.io", _) => metrics::POD,
        ("coordination.k8s.io", "Lease") => core::LEASE,
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => core::BINDING,
        _ => DEFAULT,
    }
}

const DEFAULT: Printer = Printer::new(&[NAME, ("Created At", "date", "", 0)], |object, _| {
    vec![text::get(object, "/metadata/name").into(), text::get(object, "/metadata/creationTimestamp").into()]
});
