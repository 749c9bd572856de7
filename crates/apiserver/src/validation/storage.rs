//! PersistentVolumes and their claims (pkg/apis/core/validation: ValidatePersistentVolume, ValidatePersistentVolumeClaim).

use super::field::{Errors, Field};
use super::{meta, names, pod_update, scheduling, volume};
use kube_rules::Quantity;
use serde_json::Value;

const ACCESS_MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];
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

/// A new or changed PersistentVolume.
pub fn persistent_volume(new: &Field, old: Option<&Field>, errors: &mut Errors) {
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

fn access_modes(modes: &Field, errors: &mut Errors) {
    for mode in modes.items() {
        if !ACCESS_MODES.contains(&mode.text()) {
            errors.not_supported(&Field { path: modes.path.clone(), value: mode.value }, &ACCESS_MODES);
        }
    }
    let single = modes.items().iter().any(|mode| mode.text() == "ReadWriteOncePod");
    if single && modes.items().iter().any(|mode| mode.text() != "ReadWriteOncePod") {
        errors.forbidden(modes, "may not use ReadWriteOncePod with other access modes");
    }
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

fn positive(quantity: &Field, errors: &mut Errors) {
    if Quantity::parse(quantity.text()).is_ok_and(|amount| amount <= Quantity::ZERO) {
        errors.invalid(quantity, "must be greater than zero");
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

fn class_name(class: &Field, errors: &mut Errors) {
    if !class.is_empty() {
        errors.invalid_each(class, names::dns_subdomain(class.text()));
    }
}

/// A new or changed PersistentVolumeClaim.
pub fn claim(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let spec = new.get("spec");
    let Some(old) = old else { return claim_spec(&spec, errors) };
    let before = old.get("spec");
    if before.value == spec.value {
        return;
    }
    claim_spec(&spec, errors);
    // The binder names the volume, once; a late default class may be filled in; a bound claim may ask for more.
    let (mut wanted, mut was) = (spec.value.clone(), before.value.clone());
    if before.get("volumeName").is_empty() {
        drop_member(&mut wanted, "volumeName");
        drop_member(&mut was, "volumeName");
        if !before.get("storageClassName").is_set() {
            drop_member(&mut wanted, "storageClassName");
        }
    }
    let bound = new.get("status").get("phase").text() == "Bound";
    let (size, had) = (storage(&spec), storage(&before));
    if bound && let Some(requests) = wanted.pointer_mut("/resources/requests").and_then(Value::as_object_mut) {
        requests.insert("storage".into(), had.value.clone());
    }
    if wanted != was {
        let lines = pod_update::difference_of("spec", &was, &wanted);
        let why = format!("spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n{lines}");
        return errors.forbidden(&spec, why);
    }
    let quantity = |field: &Field| Quantity::parse(field.text()).unwrap_or(Quantity::ZERO);
    let granted = old.get("status").get("capacity").key("storage");
    if quantity(&size) < quantity(&had) && quantity(&size) <= quantity(&granted) {
        let field = Field { path: format!("{}.resources.requests.storage", spec.path), value: size.value };
        errors.forbidden(&field, "field can not be less than status.capacity");
    }
}

fn drop_member(value: &mut Value, member: &str) {
    if let Some(members) = value.as_object_mut() {
        members.shift_remove(member);
    }
}

fn storage<'a>(spec: &Field<'a>) -> Field<'a> {
    spec.get("resources").get("requests").key("storage")
}

/// The specification of a claim, also of one that a pod brings along.
pub fn claim_spec(spec: &Field, errors: &mut Errors) {
    let modes = spec.get("accessModes");
    if modes.is_empty() {
        errors.required(&modes, "at least 1 access mode is required");
    }
    meta::selector(&spec.get("selector"), errors);
    access_modes(&modes, errors);
    let size = storage(spec);
    let shown = Field { path: format!("{}[storage]", spec.get("resources").path), value: size.value };
    if size.is_set() {
        positive(&shown, errors);
    } else {
        errors.required(&shown, "");
    }
    class_name(&spec.get("storageClassName"), errors);
    errors.one_of_if_set(&spec.get("volumeMode"), &VOLUME_MODES);
}
