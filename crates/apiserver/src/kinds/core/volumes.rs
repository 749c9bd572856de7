//! What volumes and claims have in common: protection, and the words of their tables.

use crate::object;
use crate::table::text::{get, list};
use serde_json::{Value, json};

/// Lets the controller that watches over use take its finalizer off again.
pub fn protect(object: &mut Value, finalizer: &str) {
    let finalizers = object::array_mut(object::metadata(object), "finalizers");
    if !finalizers.iter().any(|own| own == finalizer) {
        finalizers.push(json!(finalizer));
    }
}

/// In the order in which `kubectl` always names them.
pub fn modes(object: &Value, pointer: &str) -> String {
    const SHORT: [(&str, &str); 4] = [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];
    let modes = list(object, pointer);
    let short: Vec<&str> = SHORT.iter().filter(|(mode, _)| modes.iter().any(|own| own == mode)).map(|(_, short)| *short).collect();
    short.join(",")
}

pub fn class(object: &Value) -> &str {
    let old = object.pointer("/metadata/annotations/volume.beta.kubernetes.io~1storage-class").and_then(Value::as_str);
    old.unwrap_or_else(|| get(object, "/spec/storageClassName"))
}

pub fn phase(object: &Value) -> &str {
    if get(object, "/metadata/deletionTimestamp").is_empty() { get(object, "/status/phase") } else { "Terminating" }
}
