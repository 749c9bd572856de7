//! Storage: the default class of a claim, finalizers of what is in use, growth of claims
//! (plugin/pkg/admission/storage/{storageclass/setdefault,storageobjectinuseprotection,persistentvolume/resize}).

use crate::kinds::KindInfo;
use crate::object;
use crate::registry::Registry;
use crate::status::ApiError;
use kube_rules::Quantity;
use serde_json::{Value, json};

/// A claim stays while a pod uses it.
pub(super) const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";
/// A volume stays while a claim is bound to it.
pub(super) const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";
const OLD_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const DEFAULT: [&str; 2] = ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];

/// Lets the controller that watches over use take its finalizer off again.
pub(super) fn protect(object: &mut Value, finalizer: &str) {
    let finalizers = object::array_mut(object::metadata(object), "finalizers");
    if !finalizers.iter().any(|own| own == finalizer) {
        finalizers.push(json!(finalizer));
    }
}

/// A claim that says nothing of its class gets the default one: the newest, if there are several.
pub(super) fn set_default_class(registry: &Registry, claim: &mut Value) {
    let annotated = object::lookup(claim, &["metadata", "annotations", OLD_CLASS]).is_some();
    if annotated || object::lookup(claim, &["spec", "storageClassName"]).is_some() {
        return;
    }
    let (_, classes) = registry.store.list("storage.k8s.io/storageclasses//");
    let mut defaults: Vec<Value> = classes.into_iter().map(|(_, entry)| entry.value()).filter(is_default).collect();
    let created = |class: &Value| object::text(class, &["metadata", "creationTimestamp"]).to_string();
    defaults.sort_by(|one, other| created(other).cmp(&created(one)).then_with(|| object::name(one).cmp(object::name(other))));
    if let Some(class) = defaults.first() {
        object::map_mut(claim, "spec").insert("storageClassName".into(), object::name(class).into());
    }
}

/// Whether a StorageClass says that it is the default.
pub fn is_default(class: &Value) -> bool {
    DEFAULT.iter().any(|annotation| object::text(class, &["metadata", "annotations", annotation]) == "true")
}

/// A claim grows only where its class allows it.
pub(super) fn check_growth(registry: &Registry, kind: &KindInfo, old: &Value, new: &Value) -> Result<(), ApiError> {
    let size = |claim: &Value| Quantity::parse(object::text(claim, &["spec", "resources", "requests", "storage"])).unwrap_or(Quantity::ZERO);
    if size(new) <= size(old) {
        return Ok(());
    }
    let refuse = |why: &str| Err(ApiError::forbidden(kind, object::name(new), why));
    if object::text(old, &["status", "phase"]) != "Bound" {
        return refuse("Only bound persistent volume claims can be expanded");
    }
    let class = object::text(old, &["spec", "storageClassName"]);
    let stored = registry.store.get(&format!("storage.k8s.io/storageclasses//{class}")).map(|entry| entry.value()).unwrap_or_default();
    if class.is_empty() || object::lookup(&stored, &["allowVolumeExpansion"]) != Some(&Value::Bool(true)) {
        return refuse("only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize");
    }
    Ok(())
}
