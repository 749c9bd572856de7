//! VolumeAttachments (pkg/apis/storage/validation, pkg/registry/storage/volumeattachment).

#[cfg(test)]
mod tests;

use super::driver_name;
use crate::kind::Kind;
use crate::object;
use crate::table::text::get;
use crate::table::{AGE, Column, NAME, age, flag, name, text};
use crate::validation::field::{Errors, Field};
use crate::validation::{names, storage as volumes};
use jiff::Timestamp;
use k8s_openapi::api::storage;
use serde_json::{Value, json};

const METADATA_LIMIT: usize = 256 * 1024;
const LONGEST_MESSAGE: usize = 1024;
const INLINE: &str = "may not be specified in the context of inline volumes";

pub fn kind() -> Kind {
    Kind::new("storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", "io.k8s.api.storage.v1.VolumeAttachment")
        .described_by::<storage::v1::VolumeAttachment>()
        .cluster()
        .status()
        .validate(validate)
        .validate_status(|new, _, errors| check(new, errors))
        .prepare_create(|attachment| object::set(attachment, "status", json!({"attached": false})))
        .table([NAME, Column::new("Attacher", "string", "name"), text("PV"), text("Node"), flag("Attached"), AGE], cells)
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        name(object),
        get(object, "/spec/attacher").into(),
        get(object, "/spec/source/persistentVolumeName").into(),
        get(object, "/spec/nodeName").into(),
        object::lookup(object, &["status", "attached"]).and_then(Value::as_bool).unwrap_or_default().into(),
        age(object, now),
    ]
}

fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    check(new, errors);
    if let Some(old) = old {
        errors.immutable(&new.get("spec"), &old.get("spec"));
    }
}

fn check(attachment: &Field, errors: &mut Errors) {
    let (spec, status) = (attachment.get("spec"), attachment.get("status"));
    driver_name(&spec.get("attacher"), errors);
    check_source(&spec.get("source"), errors);
    let node = spec.get("nodeName");
    for problem in names::dns_subdomain(node.text()) {
        errors.invalid_value(&node, node.text(), problem);
    }
    let metadata = status.get("attachmentMetadata");
    let size: usize = metadata.members().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
    if size > METADATA_LIMIT {
        errors.too_long(&metadata, METADATA_LIMIT);
    }
    for member in ["attachError", "detachError"] {
        let error = status.get(member);
        let (message, code) = (error.get("message"), error.get("errorCode"));
        if message.text().len() > LONGEST_MESSAGE {
            // Upstream names the other limit.
            errors.too_long(&message, METADATA_LIMIT);
        }
        if code.number().is_some_and(|code| code < 0) {
            errors.invalid(&code, "must be between 0 and 2147483647, inclusive");
        }
    }
    let volume = spec.get("source").get("persistentVolumeName");
    if volume.is_set() {
        errors.invalid_each(&volume, names::dns_subdomain(volume.text()));
    }
}

fn check_source(source: &Field, errors: &mut Errors) {
    let (inline, volume) = (source.get("inlineVolumeSpec"), source.get("persistentVolumeName"));
    let one = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    match (inline.is_set(), volume.is_set()) {
        (false, false) => errors.required(source, one),
        (true, true) => errors.forbidden(source, one),
        (false, true) if volume.is_empty() => errors.required(&volume, "must specify non empty persistentVolumeName"),
        (false, true) => {}
        (true, false) => check_inline(&inline, errors),
    }
}

/// The volume of a pod of an old in-tree plug-in, as its CSI driver sees it.
fn check_inline(inline: &Field, errors: &mut Errors) {
    let (claim, capacity, csi) = (inline.get("claimRef"), inline.get("capacity"), inline.get("csi"));
    if claim.is_set() {
        errors.forbidden(&claim, INLINE);
    }
    if !capacity.is_empty() {
        errors.forbidden(&capacity, INLINE);
    }
    let modes = inline.get("accessModes");
    if csi.is_set() {
        driver_name(&csi.get("driver"), errors);
        if csi.get("volumeHandle").is_empty() {
            errors.required(&csi.get("volumeHandle"), "");
        }
    } else {
        errors.required(&csi, "has to be specified in the context of inline volumes");
    }
    if modes.is_empty() {
        errors.required(&modes, "");
    }
    volumes::access_modes(&modes, errors);
    let policy = inline.get("persistentVolumeReclaimPolicy");
    if !policy.is_empty() && policy.text() != "Retain" {
        errors.forbidden(&policy, "may only be Retain in the context of inline volumes");
    }
}
