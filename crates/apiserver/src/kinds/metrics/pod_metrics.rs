//! What pods use, as metrics-server's tables show it.

use crate::kind::Kind;
use crate::table::text::{get, list};
use crate::table::{NAME, name, text};
use jiff::Timestamp;
use kube_rules::Quantity;
use serde_json::Value;

pub fn kind() -> Kind {
    Kind::new("metrics.k8s.io", "v1beta1", "PodMetrics", "pods", "io.k8s.metrics.v1beta1.PodMetrics")
        .singular("pod")
        .computed()
        .table([NAME, text("cpu"), text("memory"), text("Window")], cells)
}

fn cells(object: &Value, _: Timestamp) -> Vec<Value> {
    let sum = |pointer: &str| -> Quantity {
        list(object, "/containers").iter().filter_map(|container| Quantity::parse(get(container, pointer)).ok()).sum()
    };
    let memory: Value = format!("{}Ki", sum("/usage/memory").value() / 1024).into();
    vec![name(object), sum("/usage/cpu").to_string().into(), memory, get(object, "/window").into()]
}
