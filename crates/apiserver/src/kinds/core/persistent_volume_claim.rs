//! PersistentVolumeClaims: the default class, protection while in use, growth (pkg/apis/core/validation `ValidatePersistentVolumeClaim`, plugin/pkg/admission/storage).

use super::volumes::{class, modes, phase, protect};
use crate::defaults::{made, set};
use crate::kind::Kind;
use crate::kind::{Attributes, Cluster, Part};
use crate::kinds::storage::storage_class::is_default;
use crate::object;
use crate::status::ApiError;
use crate::table::text::{get, get_or};
use crate::table::{AGE, NAME, age, name, text, wide};
use crate::validation::field::{Errors, Field};
use crate::validation::storage::{claim_spec, storage};
use crate::validation::{pod_update, warnings};
use jiff::Timestamp;
use k8s_openapi::api::core;
use kube_rules::Quantity;
use serde_json::{Map, Value, json};

/// A claim stays while a pod uses it.
const PROTECTION: &str = "kubernetes.io/pvc-protection";
const OLD_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

pub fn kind() -> Kind {
    Kind::new("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", "io.k8s.api.core.v1.PersistentVolumeClaim")
        .described_by::<core::v1::PersistentVolumeClaim>()
        .short(&["pvc"])
        .status()
        .metadata_with_status()
        .defaults(defaults)
        .validate(validate)
        .warnings(warnings)
        .prepare_create(|claim| object::set(claim, "status", json!({"phase": "Pending"})))
        .admit_create(admit_create)
        .admit_update(check_growth)
        .table(
            [
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
            cells,
        )
}

fn defaults(object: &mut Map<String, Value>) {
    if let Some(spec) = made(object, "spec") {
        set(spec, "volumeMode", || "Filesystem".into());
    }
}

/// A new or changed PersistentVolumeClaim.
fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
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

fn warnings(object: &Field, found: &mut Vec<String>) {
    warnings::old_class(object, found);
    warnings::fraction(&object.get("spec").get("resources").get("requests").key("storage"), found);
}

fn admit_create(attributes: &Attributes<'_>, claim: &mut Value) -> Result<(), ApiError> {
    set_default_class(attributes.cluster, claim);
    protect(claim, PROTECTION);
    Ok(())
}

/// A claim that says nothing of its class gets the default one: the newest, if there are several.
fn set_default_class(cluster: &Cluster, claim: &mut Value) {
    let annotated = object::lookup(claim, &["metadata", "annotations", OLD_CLASS]).is_some();
    if annotated || object::lookup(claim, &["spec", "storageClassName"]).is_some() {
        return;
    }
    let (_, classes) = cluster.store.list("storage.k8s.io/storageclasses//");
    let mut defaults: Vec<Value> = classes.into_iter().map(|(_, entry)| entry.value()).filter(is_default).collect();
    let created = |class: &Value| object::text(class, &["metadata", "creationTimestamp"]).to_string();
    defaults.sort_by(|one, other| created(other).cmp(&created(one)).then_with(|| object::name(one).cmp(object::name(other))));
    if let Some(class) = defaults.first() {
        object::map_mut(claim, "spec").insert("storageClassName".into(), object::name(class).into());
    }
}

/// A claim grows only where its class allows it.
fn check_growth(attributes: &Attributes<'_>, new: &mut Value) -> Result<(), ApiError> {
    let Some(old) = attributes.old.filter(|_| attributes.part == Part::Main) else { return Ok(()) };
    let (cluster, kind, new) = (attributes.cluster, attributes.kind, &*new);
    let size = |claim: &Value| Quantity::parse(object::text(claim, &["spec", "resources", "requests", "storage"])).unwrap_or(Quantity::ZERO);
    if size(new) <= size(old) {
        return Ok(());
    }
    let refuse = |why: &str| Err(ApiError::forbidden(kind, object::name(new), why));
    if object::text(old, &["status", "phase"]) != "Bound" {
        return refuse("Only bound persistent volume claims can be expanded");
    }
    let class = object::text(old, &["spec", "storageClassName"]);
    let stored = cluster.store.get(&format!("storage.k8s.io/storageclasses//{class}")).map(|entry| entry.value()).unwrap_or_default();
    if class.is_empty() || object::lookup(&stored, &["allowVolumeExpansion"]) != Some(&Value::Bool(true)) {
        return refuse("only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize");
    }
    Ok(())
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let volume = get(object, "/spec/volumeName");
    let (capacity, modes) = match volume {
        "" => ("", String::new()),
        _ => (get_or(object, "/status/capacity/storage", "0"), modes(object, "/status/accessModes")),
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
}
