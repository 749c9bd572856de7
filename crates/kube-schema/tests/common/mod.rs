//! The schema of the built-in kinds, for tests.

use kube_schema::facts;
use kube_schema::schema::Schema;
use serde_json::json;
use std::sync::OnceLock;

pub fn builtin() -> &'static Schema {
    static SCHEMA: OnceLock<Schema> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let protocol = |of| (of, "protocol", json!("TCP"));
        let defaults = ["io.k8s.api.core.v1.ContainerPort", "io.k8s.api.core.v1.ServicePort"].map(protocol);
        facts::schema(include_str!("../../../apiserver/src/schema/types.txt"), &defaults).unwrap()
    })
}
