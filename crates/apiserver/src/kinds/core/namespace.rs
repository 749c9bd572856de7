//! Namespaces: deleted in two steps (pkg/registry/core/namespace/storage/storage.go).

use crate::defaults::{inner, made, set};
use crate::kind::Kind;
use crate::kind::{Attributes, SelectableField};
use crate::object;
use crate::status::ApiError;
use crate::table::text::get;
use crate::table::{AGE, NAME, age, name, text};
use crate::validation::names::dns_label;
use jiff::Timestamp;
use k8s_openapi::api::core;
use serde_json::{Map, Value, json};

/// Namespaces that cannot be deleted.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

pub fn kind() -> Kind {
    Kind::new("", "v1", "Namespace", "namespaces", "io.k8s.api.core.v1.Namespace")
        .described_by::<core::v1::Namespace>()
        .cluster()
        .short(&["ns"])
        .verbs(&["create", "delete", "get", "list", "patch", "update", "watch"])
        .status()
        .metadata_with_status()
        .part("finalize", &["update"], prepare_finalize, None)
        .name_rule(dns_label)
        .defaults(defaults)
        .prepare_create(prepare_create)
        .prepare_update(prepare_update)
        .deleted_by(plan_deletion, |namespace| !object::list(namespace, &["spec", "finalizers"]).is_empty())
        .admit_delete(refuse_immortal)
        .selectable(SelectableField::new("status.phase"))
        .table([NAME, text("Status"), AGE], cells)
}

fn defaults(object: &mut Map<String, Value>) {
    let name = object.get("metadata").and_then(|metadata| metadata.get("name")).cloned();
    if let (Some(name), Some(metadata)) = (name, inner(object, "metadata"))
        && let Some(labels) = made(metadata, "labels")
    {
        labels.insert("kubernetes.io/metadata.name".into(), name);
    }
    if let Some(status) = made(object, "status") {
        set(status, "phase", || "Active".into());
    }
}

fn prepare_create(object: &mut Value) {
    let name = object::name(object).to_string();
    let labels = object::metadata(object).entry("labels").or_insert_with(|| json!({}));
    if let Some(labels) = labels.as_object_mut().filter(|_| !name.is_empty()) {
        labels.insert("kubernetes.io/metadata.name".into(), name.into());
    }
    let finalizers = object::map_mut(object, "spec").entry("finalizers").or_insert_with(|| json!([]));
    if let Some(finalizers) = finalizers.as_array_mut()
        && !finalizers.iter().any(|finalizer| finalizer == "kubernetes")
    {
        finalizers.push("kubernetes".into());
    }
    object::set(object, "status", json!({"phase": "Active"}));
}

/// Finalizers are the `finalize` subresource's.
fn prepare_update(old: &Value, new: &mut Value) {
    object::set(new, "spec", old.get("spec").cloned().unwrap_or_else(|| json!({})));
}

fn prepare_finalize(old: &Value, new: &mut Value) {
    let finalizers = object::lookup(new, &["spec", "finalizers"]).cloned().unwrap_or_else(|| json!([]));
    let mut kept = old.clone();
    object::map_mut(&mut kept, "spec").insert("finalizers".into(), finalizers);
    *new = kept;
}

/// The first DELETE marks a Namespace as terminating; once the namespace controller has emptied it and taken the `kubernetes` finalizer
/// off, it goes.
fn plan_deletion(mut namespace: Value) -> (Value, bool) {
    let held = !object::list(&namespace, &["spec", "finalizers"]).is_empty() || !object::finalizers(&namespace).is_empty();
    if !object::is_deleting(&namespace) {
        object::begin_deletion(&mut namespace, 0);
        object::metadata(&mut namespace).shift_remove("deletionGracePeriodSeconds");
        object::map_mut(&mut namespace, "status").insert("phase".into(), "Terminating".into());
    }
    (namespace, held)
}

fn refuse_immortal(attributes: &Attributes<'_>) -> Result<(), ApiError> {
    if IMMORTAL.contains(&attributes.name) {
        return Err(ApiError::forbidden(attributes.kind, attributes.name, "this namespace may not be deleted"));
    }
    Ok(())
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), get(object, "/status/phase").into(), age(object, now)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_terminates_before_it_goes() {
        let namespace = json!({"metadata": {"name": "a"}, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}});
        let (mut namespace, pending) = plan_deletion(namespace);
        assert!(pending);
        assert_eq!(namespace["status"]["phase"], "Terminating");
        namespace["spec"]["finalizers"] = json!([]);
        assert!(!plan_deletion(namespace).1);
    }
}
