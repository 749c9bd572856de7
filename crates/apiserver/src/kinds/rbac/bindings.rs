//! What RoleBindings and ClusterRoleBindings have in common (pkg/apis/rbac/validation).

use crate::defaults::{each, inner, is_text, set};
use crate::kind::Kind;
use crate::table::text::{get, list};
use crate::table::{AGE, NAME, age, name, text, wide};
use crate::validation::field::{Errors, Field};
use crate::validation::names;
use jiff::Timestamp;
use serde_json::{Map, Value};

const GROUP: &str = "rbac.authorization.k8s.io";

/// Defaults, table, and what all of the group have.
pub fn common(kind: Kind) -> Kind {
    super::common(kind)
        .defaults(defaults)
        .table([NAME, text("Role"), AGE, wide(text("Users")), wide(text("Groups")), wide(text("ServiceAccounts"))], cells)
}

fn defaults(object: &mut Map<String, Value>) {
    if let Some(role) = inner(object, "roleRef") {
        set(role, "apiGroup", || "rbac.authorization.k8s.io".into());
    }
    for subject in each(object, "subjects") {
        if is_text(subject, "kind", "User") || is_text(subject, "kind", "Group") {
            set(subject, "apiGroup", || "rbac.authorization.k8s.io".into());
        }
    }
}

/// A new or changed RoleBinding or ClusterRoleBinding.
pub fn validate(new: &Field, old: Option<&Field>, namespaced: bool, errors: &mut Errors) {
    let role = new.get("roleRef");
    if role.get("apiGroup").text() != GROUP {
        errors.not_supported(&role.get("apiGroup"), &[GROUP]);
    }
    let kinds: &[&str] = if namespaced { &["ClusterRole", "Role"] } else { &["ClusterRole"] };
    if !kinds.contains(&role.get("kind").text()) {
        errors.not_supported(&role.get("kind"), kinds);
    }
    let name = role.get("name");
    if name.is_empty() {
        errors.required(&name, "");
    } else {
        errors.invalid_each(&name, names::path_segment(name.text()));
    }
    for subject in new.get("subjects").items() {
        check_subject(&subject, namespaced, errors);
    }
    if let Some(old) = old
        && old.get("roleRef").value != role.value
    {
        errors.invalid(&role, "cannot change roleRef");
    }
}

fn check_subject(subject: &Field, namespaced: bool, errors: &mut Errors) {
    let (name, group, namespace) = (subject.get("name"), subject.get("apiGroup"), subject.get("namespace"));
    if name.is_empty() {
        errors.required(&name, "");
    }
    match subject.get("kind").text() {
        "ServiceAccount" => {
            if !name.is_empty() {
                errors.invalid_each(&name, names::dns_subdomain(name.text()));
            }
            if !group.is_empty() {
                errors.not_supported(&group, &[""]);
            }
            if !namespaced && namespace.is_empty() {
                errors.required(&namespace, "");
            }
        }
        "User" | "Group" => {
            if group.text() != GROUP {
                errors.not_supported(&group, &[GROUP]);
            }
        }
        _ => errors.not_supported(&subject.get("kind"), &["ServiceAccount", "User", "Group"]),
    }
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let subjects = |kind: &str| {
        let found = list(object, "/subjects").iter().filter(|subject| get(subject, "/kind") == kind);
        let names = found.map(|subject| match kind {
            "ServiceAccount" => format!("{}/{}", get(subject, "/namespace"), get(subject, "/name")),
            _ => get(subject, "/name").to_string(),
        });
        Value::from(names.collect::<Vec<_>>().join(", "))
    };
    vec![
        name(object),
        format!("{}/{}", get(object, "/roleRef/kind"), get(object, "/roleRef/name")).into(),
        age(object, now),
        subjects("User"),
        subjects("Group"),
        subjects("ServiceAccount"),
    ]
}
