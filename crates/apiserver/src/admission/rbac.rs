//! Nobody grants what they do not hold (pkg/registry/rbac: escalation and binding checks).

use crate::authz::{Attributes, Decision};
use crate::kinds::KindInfo;
use crate::object;
use crate::registry::{Registry, WriteContext};
use crate::status::ApiError;
use serde_json::Value;

pub(super) fn check_escalation(registry: &Registry, context: &WriteContext, kind: &KindInfo, object: &Value) -> Result<(), ApiError> {
    let user = &context.user;
    let (name, namespace) = (object::name(object), object::namespace(object));
    let (rules, verb) = match kind.plural {
        "roles" | "clusterroles" => (object::list(object, &["rules"]).to_vec(), "escalate"),
        _ => (referenced_rules(registry, object, namespace), "bind"),
    };
    if registry.authorizer.covers(user, namespace, &rules) || may(registry, context, kind, object, verb) {
        return Ok(());
    }
    let groups: Vec<String> = user.groups.iter().map(|group| format!("{group:?}")).collect();
    let missing: Vec<String> =
        rules.iter().filter(|rule| !registry.authorizer.covers(user, namespace, std::slice::from_ref(rule))).map(compact).collect();
    let why = format!(
        "user {:?} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
        user.name,
        groups.join(" "),
        missing.join("\n")
    );
    Err(ApiError::forbidden(kind, name, &why))
}

fn may(registry: &Registry, context: &WriteContext, kind: &KindInfo, object: &Value, verb: &str) -> bool {
    let (resource, name) = if verb == "bind" {
        let resource = if object::text(object, &["roleRef", "kind"]) == "Role" { "roles" } else { "clusterroles" };
        (resource, object::text(object, &["roleRef", "name"]))
    } else {
        (kind.plural, object::name(object))
    };
    let attributes = Attributes {
        user: context.user.clone(),
        verb: verb.into(),
        is_resource: true,
        group: kind.group.into(),
        resource: resource.into(),
        namespace: object::namespace(object).into(),
        name: name.into(),
        ..Attributes::default()
    };
    matches!(registry.authorizer.decide(&attributes), Decision::Allow(_))
}

fn referenced_rules(registry: &Registry, binding: &Value, namespace: &str) -> Vec<Value> {
    let name = object::text(binding, &["roleRef", "name"]);
    let key = match object::text(binding, &["roleRef", "kind"]) {
        "Role" => format!("rbac.authorization.k8s.io/roles/{namespace}/{name}"),
        _ => format!("rbac.authorization.k8s.io/clusterroles//{name}"),
    };
    let role = registry.store.get(&key).map(|entry| entry.value()).unwrap_or_default();
    object::list(&role, &["rules"]).to_vec()
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
