//! CSIDrivers (pkg/apis/storage, pkg/registry/storage/csidriver).

#[cfg(test)]
mod tests;

use crate::defaults::{made, set};
use crate::kind::Kind;
use crate::object;
use crate::table::text::{get, list, or_none};
use crate::table::{AGE, NAME, age, flag, name, text};
use crate::validation::field::{Errors, Field};
use jiff::Timestamp;
use k8s_openapi::api::storage;
use serde_json::{Map, Value, json};

const SHORTEST_TOKEN: i64 = 600;
const LONGEST_TOKEN: i64 = 1 << 32;
const SHORTEST_PERIOD: i64 = 10;

pub fn kind() -> Kind {
    Kind::new("storage.k8s.io", "v1", "CSIDriver", "csidrivers", "io.k8s.api.storage.v1.CSIDriver")
        .described_by::<storage::v1::CSIDriver>()
        .cluster()
        .defaults(defaults)
        .validate(validate)
        .prepare_create(drop_scheduling)
        .prepare_update(prepare_update)
        .table(
            [
                NAME,
                flag("AttachRequired"),
                flag("PodInfoOnMount"),
                flag("StorageCapacity"),
                text("TokenRequests"),
                flag("RequiresRepublish"),
                text("Modes"),
                AGE,
            ],
            cells,
        )
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let is = |member: &str, missing: bool| object::lookup(object, &["spec", member]).and_then(Value::as_bool).unwrap_or(missing);
    let audiences: Vec<&str> = list(object, "/spec/tokenRequests").iter().map(|request| get(request, "/audience")).collect();
    let requested = object::lookup(object, &["spec", "tokenRequests"]).is_some();
    let modes: Vec<&str> = list(object, "/spec/volumeLifecycleModes").iter().filter_map(Value::as_str).collect();
    vec![
        name(object),
        is("attachRequired", true).into(),
        is("podInfoOnMount", false).into(),
        is("storageCapacity", false).into(),
        if requested { audiences.join(",") } else { "<unset>".into() }.into(),
        is("requiresRepublish", false).into(),
        or_none(modes.join(",")).into(),
        age(object, now),
    ]
}

fn defaults(object: &mut Map<String, Value>) {
    let Some(spec) = made(object, "spec") else { return };
    set(spec, "attachRequired", || true.into());
    for member in ["podInfoOnMount", "storageCapacity", "requiresRepublish", "seLinuxMount"] {
        set(spec, member, || false.into());
    }
    set(spec, "fsGroupPolicy", || "ReadWriteOnceWithFSType".into());
    if spec.get("volumeLifecycleModes").and_then(Value::as_array).is_none_or(Vec::is_empty) {
        spec.insert("volumeLifecycleModes".into(), json!(["Persistent"]));
    }
}

/// Upstream has this feature off (VolumeLimitScaling); only objects that have the field keep it.
fn drop_scheduling(driver: &mut Value) {
    object::map_mut(driver, "spec").shift_remove("preventPodSchedulingIfMissing");
}

/// A change of the specification counts, though creation starts no count.
fn prepare_update(old: &Value, new: &mut Value) {
    if object::lookup(old, &["spec", "preventPodSchedulingIfMissing"]).is_none() {
        drop_scheduling(new);
    }
    if old.get("spec") != new.get("spec") {
        let generation = object::integer(old, &["metadata", "generation"]).unwrap_or_default();
        object::metadata(new).insert("generation".into(), (generation + 1).into());
    }
}

fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let spec = new.get("spec");
    if old.is_some_and(|old| old.get("spec").value == spec.value) {
        return;
    }
    // Upstream's path says attachedRequired.
    let attach = |spec: &Field<'_>| spec.value.get("attachRequired").cloned().unwrap_or_default();
    let attached = attach(&spec);
    let attach_field = Field { path: format!("{}.attachedRequired", spec.path), value: &attached };
    for field in [&attach_field, &spec.get("podInfoOnMount"), &spec.get("storageCapacity")] {
        if !field.is_set() {
            errors.required(field, "");
        }
    }
    let policy = spec.get("fsGroupPolicy");
    let policies = ["File", "None", "ReadWriteOnceWithFSType"];
    if policy.is_set() && !policies.contains(&policy.text()) {
        errors.not_supported(&policy, &policies);
    }
    let tokens = spec.get("tokenRequests");
    check_tokens(&tokens, errors);
    let modes = spec.get("volumeLifecycleModes");
    for mode in modes.items().into_iter().filter(|mode| !["Persistent", "Ephemeral"].contains(&mode.text())) {
        errors.not_supported(&Field { path: modes.path.clone(), value: mode.value }, &["Persistent", "Ephemeral"]);
    }
    if !spec.get("seLinuxMount").is_set() {
        errors.required(&spec.get("seLinuxMount"), "");
    }
    let period = spec.get("nodeAllocatableUpdatePeriodSeconds");
    if period.number().is_some_and(|seconds| seconds < SHORTEST_PERIOD) {
        errors.invalid(&period, "must be greater than or equal to 10 seconds");
    }
    let in_secrets = spec.get("serviceAccountTokenInSecrets");
    if in_secrets.is_set() && tokens.is_empty() {
        errors.invalid(&in_secrets, "serviceAccountTokenInSecrets is set but no tokenRequests are specified");
    }
    if let Some(old) = old {
        let before = attach(&old.get("spec"));
        errors.immutable(&attach_field, &Field { path: String::new(), value: &before });
        errors.immutable(&modes, &old.get("spec").get("volumeLifecycleModes"));
    }
}

fn check_tokens(requests: &Field, errors: &mut Errors) {
    let mut seen = Vec::new();
    for request in requests.items() {
        let (audience, seconds) = (request.get("audience"), request.get("expirationSeconds"));
        if seen.contains(&audience.text()) {
            errors.duplicate(&audience, audience.text());
            continue;
        }
        seen.push(audience.text());
        match seconds.number() {
            Some(number) if number < SHORTEST_TOKEN => errors.invalid(&seconds, "may not specify a duration less than 10 minutes"),
            Some(number) if number > LONGEST_TOKEN => errors.invalid(&seconds, "may not specify a duration larger than 2^32 seconds"),
            _ => {}
        }
    }
}
