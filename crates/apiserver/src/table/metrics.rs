//! What nodes and pods use, as metrics-server's tables show it.

use super::core::name;
use super::text::{get, list};
use super::{NAME, Printer, text};
use kube_rules::Quantity;
use serde_json::Value;

pub const NODE: Printer = Printer::new(&[NAME, text("cpu"), text("memory"), text("Window")], |object, _| {
    vec![name(object), get(object, "/usage/cpu").into(), get(object, "/usage/memory").into(), get(object, "/window").into()]
});

pub const POD: Printer = Printer::new(&[NAME, text("cpu"), text("memory"), text("Window")], |object, _| {
    let sum = |pointer: &str| -> Quantity {
        list(object, "/containers").iter().filter_map(|container| Quantity::parse(get(container, pointer)).ok()).sum()
    };
    let memory: Value = format!("{}Ki", sum("/usage/memory").value() / 1024).into();
    vec![name(object), sum("/usage/cpu").to_string().into(), memory, get(object, "/window").into()]
});
