//! StorageClasses.

use crate::defaults::set;
use crate::kind::Kind;
use crate::object;
use crate::table::text::{get, get_or};
use crate::table::{AGE, NAME, age, flag, text};
use crate::validation::field::{Errors, Field};
use crate::validation::names;
use jiff::Timestamp;
use k8s_openapi::api::storage;
use serde_json::{Map, Value};

const MOST_PARAMETERS: usize = 512;

const PARAMETERS_LIMIT: usize = 256 * 1024;

const DEFAULT: [&str; 2] = ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];

pub fn kind() -> Kind {
    Kind::new("storage.k8s.io", "v1", "StorageClass", "storageclasses", "io.k8s.api.storage.v1.StorageClass")
        .described_by::<storage::v1::StorageClass>()
        .cluster()
        .short(&["sc"])
        .defaults(defaults)
        .validate(validate)
        .table([NAME, text("Provisioner"), text("ReclaimPolicy"), text("VolumeBindingMode"), flag("AllowVolumeExpansion"), AGE], cells)
}

fn defaults(object: &mut Map<String, Value>) {
    set(object, "reclaimPolicy", || "Delete".into());
    set(object, "volumeBindingMode", || "Immediate".into());
}

/// A new or changed StorageClass.
fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let (provisioner, parameters) = (new.get("provisioner"), new.get("parameters"));
    let (policy, mode) = (new.get("reclaimPolicy"), new.get("volumeBindingMode"));
    if let Some(old) = old {
        for member in ["parameters", "provisioner", "reclaimPolicy"] {
            if new.get(member).value != old.get(member).value {
                errors.forbidden(&new.get(member), format!("updates to {member} are forbidden."));
            }
        }
        return errors.immutable(&mode, &old.get("volumeBindingMode"));
    }
    if provisioner.is_empty() {
        errors.required(&provisioner, "");
    } else {
        errors.invalid_each(&provisioner, names::qualified(&provisioner.text().to_lowercase()));
    }
    if parameters.members().count() > MOST_PARAMETERS {
        errors.too_long(&Field { path: "Provisioner Parameters Length".into(), value: parameters.value }, MOST_PARAMETERS);
    }
    let size: usize = parameters.members().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
    if size > PARAMETERS_LIMIT {
        errors.too_long(&parameters, PARAMETERS_LIMIT);
    }
    if parameters.members().any(|(key, _)| key.is_empty()) {
        errors.invalid_value(&parameters, "", "field can not be empty.");
    }
    errors.one_of_if_set(&policy, &["Delete", "Retain"]);
    errors.one_of(&mode, &["Immediate", "WaitForFirstConsumer"]);
}

/// Whether a StorageClass says that it is the default.
pub fn is_default(class: &Value) -> bool {
    DEFAULT.iter().any(|annotation| object::text(class, &["metadata", "annotations", annotation]) == "true")
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let default = if is_default(object) { " (default)" } else { "" };
    vec![
        format!("{}{default}", get(object, "/metadata/name")).into(),
        get(object, "/provisioner").into(),
        get_or(object, "/reclaimPolicy", "Delete").into(),
        get_or(object, "/volumeBindingMode", "Immediate").into(),
        object.get("allowVolumeExpansion").and_then(Value::as_bool).unwrap_or_default().into(),
        age(object, now),
    ]
}
