//! Secrets: `stringData` is encoded into `data`.

use super::data::{DATA_LIMIT, frozen, keys};
use crate::defaults::set;
use crate::kind::Kind;
use crate::kind::SelectableField;
use crate::object;
use crate::table::text::{count, get};
use crate::table::{AGE, NAME, age, name, number, text};
use crate::validation::field::{Errors, Field};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use k8s_openapi::api::core;
use serde_json::Value;

pub fn kind() -> Kind {
    Kind::new("", "v1", "Secret", "secrets", "io.k8s.api.core.v1.Secret")
        .described_by::<core::v1::Secret>()
        .defaults(|object| set(object, "type", || "Opaque".into())) // fn defaults
        .validate(validate)
        .prepare_create(merge_string_data)
        .prepare_update(|_, new| merge_string_data(new))
        .selectable(SelectableField::new("type"))
        .table([NAME, text("Type"), number("Data"), AGE], cells)
}

/// A new or changed Secret.
fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let data = new.get("data");
    let mut size = 0;
    for (key, value) in data.members() {
        keys(&data, key, errors);
        // Stored in base64: three bytes in four characters.
        size += value.as_str().map_or(0, |text| text.len() / 4 * 3);
    }
    if size > DATA_LIMIT {
        errors.too_long(&data, DATA_LIMIT);
    }
    let mut need = |key: &str| {
        if data.value.get(key).is_none() {
            errors.required(&data.key(key), "");
        }
    };
    match new.get("type").text() {
        "kubernetes.io/service-account-token" => {
            let name = new.get("metadata").get("annotations").key("kubernetes.io/service-account.name");
            if name.is_empty() {
                errors.required(&name, "");
            }
        }
        "kubernetes.io/dockercfg" => need(".dockercfg"),
        "kubernetes.io/dockerconfigjson" => need(".dockerconfigjson"),
        "kubernetes.io/basic-auth" if data.value.get("username").is_none() && data.value.get("password").is_none() => {
            need("username");
            need("password");
        }
        "kubernetes.io/ssh-auth" => need("ssh-privatekey"),
        "kubernetes.io/tls" => {
            need("tls.crt");
            need("tls.key");
        }
        _ => {}
    }
    if let Some(old) = old {
        errors.immutable(&new.get("type"), &old.get("type"));
        frozen(new, old, &["data"], errors);
    }
}

/// `stringData` is write-only: encoded into `data`.
fn merge_string_data(object: &mut Value) {
    let Some(Value::Object(plain)) = object.as_object_mut().and_then(|map| map.shift_remove("stringData")) else { return };
    let data = object::map_mut(object, "data");
    for (key, value) in plain {
        data.insert(key, STANDARD.encode(value.as_str().unwrap_or_default()).into());
    }
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), get(object, "/type").into(), count(object, "/data").into(), age(object, now)]
}
