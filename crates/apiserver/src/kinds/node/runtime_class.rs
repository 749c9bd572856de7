//! RuntimeClasses.

use crate::kind::Kind;
use crate::table::text::get;
use crate::table::{AGE, NAME, age, name, text};
use crate::validation::field::{Errors, Field};
use crate::validation::{container, meta, names, scheduling, warnings};
use jiff::Timestamp;
use k8s_openapi::api::node;
use serde_json::Value;

pub fn kind() -> Kind {
    Kind::new("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", "io.k8s.api.node.v1.RuntimeClass")
        .described_by::<node::v1::RuntimeClass>()
        .cluster()
        .validate(validate)
        .warnings(|class, found| warnings::labels(&class.get("scheduling").get("nodeSelector"), found))
        .table([NAME, text("Handler"), AGE], cells)
}

/// A new or changed RuntimeClass.
fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let handler = new.get("handler");
    if let Some(old) = old {
        return errors.immutable(&handler, &old.get("handler"));
    }
    errors.invalid_each(&handler, names::dns_label(handler.text()));
    let overhead = new.get("overhead").get("podFixed");
    container::quantities(&overhead, errors);
    let placement = new.get("scheduling");
    meta::labels(&placement.get("nodeSelector"), errors);
    let tolerations = placement.get("tolerations");
    scheduling::tolerations(&tolerations, errors);
    let items = tolerations.items();
    for (index, toleration) in items.iter().enumerate() {
        if items[..index].iter().any(|other| other.value == toleration.value) {
            errors.duplicate(toleration, toleration.value.clone());
        }
    }
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), get(object, "/handler").into(), age(object, now)]
}
