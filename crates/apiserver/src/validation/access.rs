//! Roles and their bindings (pkg/apis/rbac/validation).

use super::field::{Errors, Field};
use super::names;

const GROUP: &str = "rbac.authorization.k8s.io";

/// A Role or ClusterRole.
pub fn role(new: &Field, namespaced: bool, errors: &mut Errors) {
    for rule in new.get("rules").items() {
        let urls = rule.get("nonResourceURLs");
        if rule.get("verbs").is_empty() {
            errors.required(&rule.get("verbs"), "verbs must contain at least one value");
        }
        if !urls.is_empty() {
            if namespaced {
                errors.invalid(&urls, "namespaced rules cannot apply to non-resource URLs");
            }
            if ["apiGroups", "resources", "resourceNames"].iter().any(|member| !rule.get(member).is_empty()) {
                errors.invalid(&urls, "rules cannot apply to both regular resources and non-resource URLs");
            }
            continue;
        }
        if rule.get("apiGroups").is_empty() {
            errors.required(&rule.get("apiGroups"), "resource rules must supply at least one api group");
        }
        if rule.get("resources").is_empty() {
            errors.required(&rule.get("resources"), "resource rules must supply at least one resource");
        }
    }
}

/// A new or changed RoleBinding or ClusterRoleBinding.
pub fn binding(new: &Field, old: Option<&Field>, namespaced: bool, errors: &mut Errors) {
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
