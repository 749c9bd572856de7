//! Volumes, claims, the classes.

use super::core::{age, name};
use super::text::{get, get_or, list};
use super::{AGE, Column, NAME, Printer, number, text, wide};
use serde_json::Value;

const fn flag(name: &'static str) -> Column {
    (name, "boolean", "", 0)
}

/// In the order in which `kubectl` always names them.
fn access_modes(object: &Value, pointer: &str) -> String {
    const SHORT: [(&str, &str); 4] = [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];
    let modes = list(object, pointer);
    let short: Vec<&str> = SHORT.iter().filter(|(mode, _)| modes.iter().any(|own| own == mode)).map(|(_, short)| *short).collect();
    short.join(",")
}

fn class(object: &Value) -> &str {
    let old = object.pointer("/metadata/annotations/volume.beta.kubernetes.io~1storage-class").and_then(Value::as_str);
    old.unwrap_or_else(|| get(object, "/spec/storageClassName"))
}

fn phase(object: &Value) -> &str {
    if get(object, "/metadata/deletionTimestamp").is_empty() { get(object, "/status/phase") } else { "Terminating" }
}

pub const PERSISTENT_VOLUME: Printer = Printer::new(
    &[
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
    |object, now| {
        let claim = match get(object, "/spec/claimRef/name") {
            "" => String::new(),
            name => format!("{}/{name}", get(object, "/spec/claimRef/namespace")),
        };
        vec![
            name(object),
            get_or(object, "/spec/capacity/storage", "0").into(),
            access_modes(object, "/spec/accessModes").into(),
            get(object, "/spec/persistentVolumeReclaimPolicy").into(),
            phase(object).into(),
            claim.into(),
            class(object).into(),
            get_or(object, "/spec/volumeAttributesClassName", "<unset>").into(),
            get(object, "/status/reason").into(),
            age(object, now),
            get_or(object, "/spec/volumeMode", "<unset>").into(),
        ]
    },
);

pub const PERSISTENT_VOLUME_CLAIM: Printer = Printer::new(
    &[
        NAME,
        text("Status"),
        text("Volume"),
        text("Capacity"),
        text("Access Modes"),
        text("StorageClass"),
        text("VolumeAttributesClass"),
        AGE,
        wide(text("VolumeMode")),
    ],
    |object, now| {
        let volume = get(object, "/spec/volumeName");
        let (capacity, modes) = match volume {
            "" => ("", String::new()),
            _ => (get_or(object, "/status/capacity/storage", "0"), access_modes(object, "/status/accessModes")),
        };
        vec![
            name(object),
            phase(object).into(),
            volume.into(),
            capacity.into(),
            modes.into(),
            class(object).into(),
            get_or(object, "/spec/volumeAttributesClassName", "<unset>").into(),
            age(object, now),
            get_or(object, "/spec/volumeMode", "<unset>").into(),
        ]
    },
);

pub const STORAGE_CLASS: Printer =
    Printer::new(&[NAME, text("Provisioner"), text("ReclaimPolicy"), text("VolumeBindingMode"), flag("AllowVolumeExpansion"), AGE], |object, now| {
        let default = if crate::admission::storage::is_default(object) { " (default)" } else { "" };
        vec![
            format!("{}{default}", get(object, "/metadata/name")).into(),
            get(object, "/provisioner").into(),
            get_or(object, "/reclaimPolicy", "Delete").into(),
            get_or(object, "/volumeBindingMode", "Immediate").into(),
            object.get("allowVolumeExpansion").and_then(Value::as_bool).unwrap_or_default().into(),
            age(object, now),
        ]
    });

pub const RUNTIME_CLASS: Printer =
    Printer::new(&[NAME, text("Handler"), AGE], |object, now| vec![name(object), get(object, "/handler").into(), age(object, now)]);

pub const PRIORITY_CLASS: Printer = Printer::new(&[NAME, number("Value"), flag("Global-Default"), AGE, text("PreemptionPolicy")], |object, now| {
    vec![
        name(object),
        object.get("value").and_then(Value::as_i64).unwrap_or_default().into(),
        object.get("globalDefault").and_then(Value::as_bool).unwrap_or_default().into(),
        age(object, now),
        get(object, "/preemptionPolicy").into(),
    ]
});
