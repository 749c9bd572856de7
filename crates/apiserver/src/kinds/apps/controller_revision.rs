//! ControllerRevisions.

use crate::kind::Kind;
use crate::table::text::{get, integer, list};
use crate::table::{AGE, NAME, age, name, text};
use crate::validation::field::{Errors, Field};
use jiff::Timestamp;
use k8s_openapi::api::apps;
use serde_json::Value;

pub fn kind() -> Kind {
    Kind::new("apps", "v1", "ControllerRevision", "controllerrevisions", "io.k8s.api.apps.v1.ControllerRevision")
        .described_by::<apps::v1::ControllerRevision>()
        .validate(validate)
        .table([NAME, text("Controller"), text("Revision"), AGE], cells)
}

/// A new or changed ControllerRevision.
fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let data = new.get("data");
    if !data.is_set() {
        errors.required(&data, "data is mandatory");
    }
    errors.not_negative(&new.get("revision"));
    if let Some(old) = old {
        errors.immutable(&data, &old.get("data"));
    }
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
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
}
