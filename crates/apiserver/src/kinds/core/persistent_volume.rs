//! PersistentVolumes (pkg/apis/core/validation `ValidatePersistentVolume`).

use super::volumes::{class, modes, phase, protect};
use crate::defaults::{inner, made, set};
use crate::kind::Kind;
use crate::object;
use crate::table::text::{get, get_or};
use crate::table::{AGE, NAME, age, name, text, wide};
use crate::validation::field::{Errors, Field};
use crate::validation::storage::{VOLUME_MODES, access_modes, class_name, positive};
use crate::validation::{pod_update, scheduling, volume, warnings};
use jiff::Timestamp;
use k8s_openapi::api::core;
use serde_json::{Map, Value, json};

/// A volume stays while a claim is bound to it.
const PROTECTION: &str = "kubernetes.io/pv-protection";
/// The members of a volume's specification that are not its source.
const NO_SOURCE: [&str; 9] = [
    "capacity",
    "accessModes",
    "claimRef",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "mountOptions",
    "volumeMode",
    "nodeAffinity",
    "volumeAttributesClassName",
];

pub fn kind() -> Kind {
    Kind::new("", "v1", "PersistentVolume", "persistentvolumes", "io.k8s.api.core.v1.PersistentVolume")
        .described_by::<core::v1::PersistentVolume>()
        .cluster()
        .short(&["pv"])
        .status()
        .metadata_with_status()
        .defaults(defaults)
        .validate(validate)
        .warnings(warnings)
        .prepare_create(prepare_create)
        .prepare_status(note_phase)
        .admit_create(|_, volume| {
            protect(volume, PROTECTION);
            Ok(())
        })
        .table(
            [
                NAME,
                text("Capacity"),
                text("Access Modes"),
                text("Reclaim Policy"),
                text("Status"),
                text("Claim"),
                text("StorageClass"),
                text("VolumeAttributesClass"),
                text("Reason"),
                AGE,
                wide(text("VolumeMode")),
            ],
            cells,
        )
}

fn defaults(object: &mut Map<String, Value>) {
    let Some(spec) = made(object, "spec") else { return };
    set(spec, "persistentVolumeReclaimPolicy", || "Retain".into());
    set(spec, "volumeMode", || "Filesystem".into());
    if let Some(path) = inner(spec, "hostPath")
        && path.get("type").is_none_or(Value::is_null)
    {
        path.insert("type".into(), "".into());
    }
}

/// A new or changed PersistentVolume.
fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let spec = new.get("spec");
    if old.is_some_and(|old| old.get("spec").value == spec.value) {
        return;
    }
    let modes = spec.get("accessModes");
    if modes.is_empty() {
        errors.required(&modes, "");
    }
    access_modes(&modes, errors);
    capacity(&spec.get("capacity"), errors);
    errors.one_of_if_set(&spec.get("persistentVolumeReclaimPolicy"), &["Delete", "Recycle", "Retain"]);
    let affinity = spec.get("nodeAffinity");
    if affinity.is_set() {
        let required = affinity.get("required");
        if required.is_set() {
            scheduling::node_selector(&required, errors);
        } else {
            errors.required(&required, "must specify required node constraints");
        }
    }
    source(&spec, errors);
    class_name(&spec.get("storageClassName"), errors);
    errors.one_of_if_set(&spec.get("volumeMode"), &VOLUME_MODES);
    let Some(before) = old.map(|old| old.get("spec")) else { return };
    if source_of(spec.value) != source_of(before.value) {
        let lines = pod_update::difference_of("", &source_of(before.value), &source_of(spec.value));
        let field = Field { path: format!("{}.persistentvolumesource", spec.path), value: &Value::Null };
        errors.forbidden(&field, format!("spec.persistentvolumesource is immutable after creation\n{lines}"));
    }
    errors.immutable(&spec.get("volumeMode"), &before.get("volumeMode"));
    if before.get("nodeAffinity").is_set() && affinity.value != before.get("nodeAffinity").value {
        errors.invalid(&affinity, "field is immutable, except for updating from beta label to GA");
    }
}

fn source_of(spec: &Value) -> Value {
    let mut source = spec.clone();
    if let Some(members) = source.as_object_mut() {
        members.retain(|member, value| !NO_SOURCE.contains(&member.as_str()) && !value.is_null());
    }
    source
}

fn capacity(capacity: &Field, errors: &mut Errors) {
    if capacity.is_empty() {
        errors.required(capacity, "");
    }
    if capacity.key("storage").is_empty() || capacity.members().count() > 1 {
        errors.not_supported(capacity, &["storage"]);
    }
    for (name, _) in capacity.members() {
        positive(&capacity.key(name), errors);
    }
}

fn source(spec: &Field, errors: &mut Errors) {
    let sources: Vec<&String> =
        spec.members().filter(|(name, value)| !NO_SOURCE.contains(&name.as_str()) && !value.is_null()).map(|(name, _)| name).collect();
    let Some((first, others)) = sources.split_first() else {
        return errors.required(spec, "must specify a volume type");
    };
    for other in others {
        errors.forbidden(&spec.get(other), "may not specify more than 1 volume type");
    }
    let source = spec.get(first);
    match first.as_str() {
        "hostPath" => {
            volume::host_path(&source, errors);
            let policy = spec.get("persistentVolumeReclaimPolicy");
            let root = source.get("path").text().split('/').all(|part| matches!(part, "" | "."));
            if root && !source.get("path").is_empty() && policy.text() == "Recycle" {
                errors.forbidden(&policy, "may not be 'recycle' for a hostPath mount of '/'");
            }
        }
        "local" => {
            let path = source.get("path");
            if path.is_empty() {
                errors.required(&path, "");
            }
            volume::no_backsteps(&path, errors);
            if !spec.get("nodeAffinity").is_set() {
                errors.required(&spec.get("nodeAffinity"), "Local volume requires node affinity");
            }
        }
        "csi" => {
            for member in ["driver", "volumeHandle"] {
                if source.get(member).is_empty() {
                    errors.required(&source.get(member), "");
                }
            }
        }
        "nfs" => {
            for member in ["server", "path"] {
                if source.get(member).is_empty() {
                    errors.required(&source.get(member), "");
                }
            }
        }
        _ => {}
    }
}

fn warnings(object: &Field, found: &mut Vec<String>) {
    warnings::old_class(object, found);
    let spec = object.get("spec");
    warnings::terms(&spec.get("nodeAffinity").get("required").get("nodeSelectorTerms"), found);
    let policy = spec.get("persistentVolumeReclaimPolicy");
    if policy.text() == "Recycle" {
        let advice = "The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.";
        found.push(format!("{}: {advice}", policy.path));
    }
    warnings::fraction(&spec.get("capacity").key("storage"), found);
}

fn prepare_create(object: &mut Value) {
    object::set(object, "status", json!({"phase": "Pending", "lastPhaseTransitionTime": object::now()}));
}

/// A volume says when its phase changed.
fn note_phase(old: &Value, new: &mut Value) {
    let phase = |object: &Value| object::text(object, &["status", "phase"]).to_string();
    let status = object::map_mut(new, "status");
    let unnoted = status.get("lastPhaseTransitionTime") == object::lookup(old, &["status", "lastPhaseTransitionTime"]);
    if unnoted && phase(old) != status.get("phase").and_then(Value::as_str).unwrap_or_default() {
        status.insert("lastPhaseTransitionTime".into(), object::now().into());
    }
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let claim = match get(object, "/spec/claimRef/name") {
        "" => String::new(),
        name => format!("{}/{name}", get(object, "/spec/claimRef/namespace")),
    };
    vec![
        name(object),
        get_or(object, "/spec/capacity/storage", "0").into(),
        modes(object, "/spec/accessModes").into(),
        get(object, "/spec/persistentVolumeReclaimPolicy").into(),
        phase(object).into(),
        claim.into(),
        class(object).into(),
        get_or(object, "/spec/volumeAttributesClassName", "<unset>").into(),
        get(object, "/status/reason").into(),
        age(object, now),
        get_or(object, "/spec/volumeMode", "<unset>").into(),
    ]
}
