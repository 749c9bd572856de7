//! Nobody grants what they do not hold (pkg/registry/rbac: escalation and binding checks).

use crate::authz::{Attributes, Decision};
use crate::kind::Attributes as Write;
use crate::kinds::by_resource;
use crate::object;
use crate::status::ApiError;
use serde_json::{Value, json};

pub(super) fn check_create(write: &Write<'_>, object: &mut Value) -> Result<(), ApiError> {
    check(write, object)
}

pub(super) fn check_update(write: &Write<'_>, object: &mut Value) -> Result<(), ApiError> {
    if write.old.is_some_and(|old| only_collects_garbage(old, object)) { Ok(()) } else { check(write, object) }
}

fn check(write: &Write<'_>, object: &Value) -> Result<(), ApiError> {
    check_aggregation(write, object)?;
    let user = &write.context.user;
    let (name, namespace) = (object::name(object), object::namespace(object));
    let (rules, verb) = match write.kind.plural.as_str() {
        "roles" | "clusterroles" => (object::list(object, &["rules"]).to_vec(), "escalate"),
        _ if may(write, object, "bind") => return Ok(()),
        _ => (referenced_rules(write, object, namespace)?, "bind"),
    };
    if write.cluster.authorizer.covers(user, namespace, &rules) || may(write, object, verb) {
        return Ok(());
    }
    let groups: Vec<String> = user.groups.iter().map(|group| format!("{group:?}")).collect();
    let missing: Vec<String> =
        rules.iter().filter(|rule| !write.cluster.authorizer.covers(user, namespace, std::slice::from_ref(rule))).map(compact).collect();
    let why = format!(
        "user {:?} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
        user.name,
        groups.join(" "),
        missing.join("\n")
    );
    Err(ApiError::forbidden(write.kind, name, &why))
}

/// The author of an aggregated role must hold every right.
fn check_aggregation(write: &Write<'_>, object: &Value) -> Result<(), ApiError> {
    let everything = [json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}), json!({"nonResourceURLs": ["*"], "verbs": ["*"]})];
    let aggregates = object::lookup(object, &["aggregationRule"]).is_some();
    if !aggregates || write.cluster.authorizer.covers(&write.context.user, "", &everything) || may(write, object, "escalate") {
        return Ok(());
    }
    Err(ApiError::forbidden(write.kind, object::name(object), "must have cluster-admin privileges to use the aggregationRule"))
}

fn may(write: &Write<'_>, object: &Value, verb: &str) -> bool {
    let (resource, name) = if verb == "bind" {
        let resource = if object::text(object, &["roleRef", "kind"]) == "Role" { "roles" } else { "clusterroles" };
        (resource, object::text(object, &["roleRef", "name"]))
    } else {
        (write.kind.plural.as_str(), object::name(object))
    };
    let attributes = Attributes {
        user: write.context.user.clone(),
        verb: verb.into(),
        is_resource: true,
        group: write.kind.group.clone(),
        resource: resource.into(),
        namespace: object::namespace(object).into(),
        name: name.into(),
        ..Attributes::default()
    };
    matches!(write.cluster.authorizer.decide(&attributes), Decision::Allow(_))
}

/// The rules that a binding grants. A role that is not there yet could grant anything once it comes.
fn referenced_rules(write: &Write<'_>, binding: &Value, namespace: &str) -> Result<Vec<Value>, ApiError> {
    let name = object::text(binding, &["roleRef", "name"]);
    let (plural, namespace) = match object::text(binding, &["roleRef", "kind"]) {
        "Role" => ("roles", namespace),
        _ => ("clusterroles", ""),
    };
    let kind = by_resource("rbac.authorization.k8s.io", "v1", plural).ok_or_else(ApiError::no_such_resource)?;
    let stored = write.cluster.store.get(&kind.key(namespace, name));
    let role = stored.ok_or_else(|| ApiError::not_found(kind, name))?.value();
    Ok(object::list(&role, &["rules"]).to_vec())
}

/// Whether an update touches only what the garbage collector touches: then nothing is granted by it.
fn only_collects_garbage(old: &Value, new: &Value) -> bool {
    let rest = |object: &Value| {
        let mut object = object.clone();
        let metadata = object::metadata(&mut object);
        for member in ["ownerReferences", "finalizers", "managedFields", "resourceVersion"] {
            metadata.shift_remove(member);
        }
        object
    };
    rest(old) == rest(new)
}

/// pkg/apis/rbac/v1 `CompactString`.
fn compact(rule: &Value) -> String {
    let members = [
        ("APIGroups", "apiGroups"),
        ("Resources", "resources"),
        ("NonResourceURLs", "nonResourceURLs"),
        ("ResourceNames", "resourceNames"),
        ("Verbs", "verbs"),
    ];
    let part = |(label, member): (&str, &str)| {
        let texts: Vec<String> = object::list(rule, &[member]).iter().map(Value::to_string).collect();
        (!texts.is_empty()).then(|| format!("{label}:[{}]", texts.join(" ")))
    };
    format!("{{{}}}", members.into_iter().filter_map(part).collect::<Vec<_>>().join(", "))
}
