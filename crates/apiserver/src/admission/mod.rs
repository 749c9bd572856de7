//! Admission: what is filled in and what is refused between a request and validation
//! (plugin/pkg/admission, apiserver/pkg/admission/plugin/namespace/lifecycle).

mod node;
mod pod;
pub mod priority;
mod rbac;
mod runtime_class;
pub mod storage;

use crate::kinds::{self, KindInfo};
use crate::object;
use crate::registry::{Part, Registry, WriteContext, storage_key};
use crate::status::ApiError;
use serde_json::Value;

/// Namespaces that cannot be deleted.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

fn is(kind: &KindInfo, group: &str, plural: &str) -> bool {
    kind.group == group && kind.plural == plural
}

/// Before a creation.
pub async fn create(registry: &Registry, context: &WriteContext, kind: &KindInfo, object: &mut Value) -> Result<(), ApiError> {
    namespace_lifecycle(registry, kind, object)?;
    if let Some(node) = context.user.node_name() {
        restrict(registry, node, kind, |restriction| restriction.create(object))?;
    }
    match (kind.group, kind.plural) {
        ("", "pods") => pod::create(registry, kind, object).await,
        ("", "nodes") => {
            node::taint_not_ready(object);
            Ok(())
        }
        ("", "persistentvolumeclaims") => {
            storage::set_default_class(registry, object);
            storage::protect(object, storage::CLAIM_PROTECTION);
            Ok(())
        }
        ("", "persistentvolumes") => {
            storage::protect(object, storage::VOLUME_PROTECTION);
            Ok(())
        }
        ("scheduling.k8s.io", "priorityclasses") => priority::check_class(registry, kind, object),
        ("rbac.authorization.k8s.io", _) => rbac::check_escalation(registry, context, kind, object),
        _ => Ok(()),
    }
}

/// Before an update of a part.
pub fn update(registry: &Registry, context: &WriteContext, kind: &KindInfo, part: Part, old: &Value, new: &mut Value) -> Result<(), ApiError> {
    if let Some(node) = context.user.node_name() {
        restrict(registry, node, kind, |restriction| restriction.update(part, old, new))?;
    }
    match (kind.group, kind.plural) {
        ("", "persistentvolumeclaims") if part == Part::Main => storage::check_growth(registry, kind, old, new)?,
        ("scheduling.k8s.io", "priorityclasses") => priority::check_class(registry, kind, new)?,
        _ => {}
    }
    if kind.group == "rbac.authorization.k8s.io" && !rbac::only_collects_garbage(old, new) {
        rbac::check_escalation(registry, context, kind, new)?;
    }
    Ok(())
}

/// Before a deletion.
pub fn delete(registry: &Registry, context: &WriteContext, kind: &KindInfo, namespace: &str, name: &str) -> Result<(), ApiError> {
    if is(kind, "", "namespaces") && IMMORTAL.contains(&name) {
        return Err(ApiError::forbidden(kind, name, "this namespace may not be deleted"));
    }
    if is(kind, "scheduling.k8s.io", "priorityclasses") {
        priority::check_deletion(kind, name)?;
    }
    let Some(node) = context.user.node_name() else { return Ok(()) };
    let stored = registry.store.get(&storage_key(kind, namespace, name)).map(|entry| entry.value()).unwrap_or_default();
    restrict(registry, node, kind, |restriction| restriction.delete(name, namespace, &stored))
}

/// Before an eviction.
pub fn evict(registry: &Registry, context: &WriteContext, kind: &KindInfo, namespace: &str, name: &str) -> Result<(), ApiError> {
    let Some(node) = context.user.node_name() else { return Ok(()) };
    let stored = registry.store.get(&storage_key(kind, namespace, name)).map(|entry| entry.value()).unwrap_or_default();
    restrict(registry, node, kind, |restriction| restriction.evict(name, &stored))
}

fn restrict(
    registry: &Registry,
    node: &str,
    kind: &KindInfo,
    check: impl FnOnce(&node::Restriction<'_>) -> Result<(), ApiError>,
) -> Result<(), ApiError> {
    let is_pod = is(kind, "", "pods");
    let own = if is_pod { registry.store.get(&format!("core/nodes//{node}")).map(|entry| entry.value()) } else { None };
    check(&node::Restriction { node, kind, own: own.as_ref() })
}

/// A namespaced object needs a Namespace that is there and stays.
fn namespace_lifecycle(registry: &Registry, kind: &KindInfo, object: &Value) -> Result<(), ApiError> {
    if !kind.namespaced {
        return Ok(());
    }
    let namespaces = kinds::by_resource("", "v1", "namespaces").ok_or_else(|| ApiError::internal("namespaces are not served"))?;
    let name = object::namespace(object);
    let stored = registry.store.get(&storage_key(namespaces, "", name)).ok_or_else(|| ApiError::not_found(namespaces, name))?;
    if !object::is_deleting(&stored.value()) {
        return Ok(());
    }
    let why = format!("unable to create new content in namespace {name} because it is being terminated");
    let mut error = ApiError::forbidden(kind, object::name(object), &why);
    if let Some(details) = error.details.as_mut() {
        let message = format!("namespace {name} is being terminated");
        details["causes"] = serde_json::json!([{"reason": "NamespaceTerminating", "message": message, "field": "metadata.namespace"}]);
    }
    Err(error)
}
