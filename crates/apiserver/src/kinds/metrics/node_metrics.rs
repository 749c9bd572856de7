//! What nodes use, as metrics-server's tables show it.

use crate::kind::Kind;
use crate::table::text::get;
use crate::table::{NAME, name, text};
use jiff::Timestamp;
use serde_json::Value;

pub fn kind() -> Kind {
    Kind::new("metrics.k8s.io", "v1beta1", "NodeMetrics", "nodes", "io.k8s.metrics.v1beta1.NodeMetrics")
        .cluster()
        .singular("node")
        .computed()
        .table([NAME, text("cpu"), text("memory"), text("Window")], cells)
}

fn cells(object: &Value, _: Timestamp) -> Vec<Value> {
    vec![name(object), get(object, "/usage/cpu").into(), get(object, "/usage/memory").into(), get(object, "/window").into()]
}
