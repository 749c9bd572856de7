//! The rules of Roles and ClusterRoles (pkg/apis/rbac/validation).

use crate::validation::field::{Errors, Field};

/// A Role or ClusterRole.
pub fn validate(new: &Field, namespaced: bool, errors: &mut Errors) {
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
