//! The schema tree of the built-in kinds: the table of types as apply and strategic merge patches need it.

use super::types::TEXT;
use kube_schema::facts;
use kube_schema::schema::Schema;
use serde_json::json;
use std::sync::OnceLock;

/// The types of the table.
pub fn tree() -> &'static Schema {
    static TREE: OnceLock<Schema> = OnceLock::new();
    TREE.get_or_init(|| {
        // Upstream's `+default` of members that identify items of lists.
        let protocol = |of| (of, "protocol", json!("TCP"));
        let defaults = ["io.k8s.api.core.v1.ContainerPort", "io.k8s.api.core.v1.ServicePort"].map(protocol);
        facts::schema(TEXT, &defaults).unwrap_or_else(|error| {
            tracing::error!(%error, "the table of types is broken");
            Schema::deduced()
        })
    })
}
