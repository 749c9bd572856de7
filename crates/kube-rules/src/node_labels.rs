//! Labels of nodes that several parts of Mullion act on.

use std::collections::BTreeMap;

/// The node has an agent, but no kernel under it: its pods are said to run, and nothing reaches them.
pub const HOLLOW: &str = "mullion.io/hollow";

/// Whether a node's labels say that it is hollow.
pub fn is_hollow(labels: Option<&BTreeMap<String, String>>) -> bool {
    labels.and_then(|labels| labels.get(HOLLOW)).is_some_and(|value| value == "true")
}
