//! Rules and match resources of webhooks and policies.

use crate::defaults::{each, inner, set};
use crate::validation::field::{Errors, Field};
use crate::validation::{meta, names};
use serde_json::{Map, Value, json};

pub const MATCH_POLICIES: [&str; 2] = ["Equivalent", "Exact"];
pub const FAILURE_POLICIES: [&str; 2] = ["Fail", "Ignore"];
const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
pub const MUTABLE: [&str; 4] = ["*", "CONNECT", "CREATE", "UPDATE"];

/// Selectors that select everything, and the match policy.
pub fn selector_defaults(object: &mut Map<String, Value>) {
    set(object, "matchPolicy", || "Equivalent".into());
    set(object, "namespaceSelector", || json!({}));
    set(object, "objectSelector", || json!({}));
}

pub fn rule_defaults(object: &mut Map<String, Value>, member: &str) {
    each(object, member).for_each(|rule| set(rule, "scope", || "*".into()));
}

/// Defaults of `matchConstraints` or `matchResources`.
pub fn match_defaults(spec: &mut Map<String, Value>, member: &str) {
    let Some(resources) = inner(spec, member) else { return };
    selector_defaults(resources);
    rule_defaults(resources, "resourceRules");
    rule_defaults(resources, "excludeResourceRules");
}

fn wildcard(list: &Field, what: &str, errors: &mut Errors) {
    let items = list.items();
    if items.len() > 1 && items.iter().any(|item| item.text() == "*") {
        errors.invalid(list, format!("if '*' is present, must not specify other {what}"));
    }
}

pub fn rule(rule: &Field, errors: &mut Errors) {
    let operations = rule.get("operations");
    if operations.is_empty() {
        errors.required(&operations, "");
    }
    wildcard(&operations, "operations", errors);
    for operation in operations.items() {
        if !OPERATIONS.contains(&operation.text()) {
            errors.not_supported(&operation, &OPERATIONS);
        }
    }
    let (groups, versions) = (rule.get("apiGroups"), rule.get("apiVersions"));
    if groups.is_empty() {
        errors.required(&groups, "");
    }
    wildcard(&groups, "API groups", errors);
    if versions.is_empty() {
        errors.required(&versions, "");
    }
    wildcard(&versions, "API versions", errors);
    for version in versions.items().iter().filter(|version| version.text().is_empty()) {
        errors.required(version, "");
    }
    resources(&rule.get("resources"), errors);
    let scope = rule.get("scope");
    if scope.is_set() && !["*", "Cluster", "Namespaced"].contains(&scope.text()) {
        errors.not_supported(&scope, &["*", "Cluster", "Namespaced"]);
    }
}

fn resources(list: &Field, errors: &mut Errors) {
    if list.is_empty() {
        errors.required(list, "");
    }
    let (mut all_of, mut below_all) = (Vec::new(), Vec::new());
    let (mut double, mut single, mut plain) = (false, false, false);
    let items = list.items();
    for item in &items {
        let text = item.text();
        if text.is_empty() {
            errors.required(item, "");
            continue;
        }
        double |= text == "*/*";
        single |= text == "*";
        let Some((resource, sub)) = text.split_once('/') else {
            plain = text != "*";
            continue;
        };
        if all_of.contains(&resource) {
            errors.invalid(item, format!("if '{resource}/*' is present, must not specify {text}"));
        }
        if below_all.contains(&sub) {
            errors.invalid(item, format!("if '*/{sub}' is present, must not specify {text}"));
        }
        if sub == "*" {
            all_of.push(resource);
        }
        if resource == "*" {
            below_all.push(sub);
        }
    }
    if items.len() > 1 && double {
        errors.invalid(list, "if '*/*' is present, must not specify other resources");
    }
    if single && plain {
        errors.invalid(list, "if '*' is present, must not specify other resources without subresources");
    }
}

/// `matchConstraints` or `matchResources`.
pub fn match_resources(resources: &Field, errors: &mut Errors) {
    if !resources.is_set() {
        return;
    }
    errors.one_of(&resources.get("matchPolicy"), &MATCH_POLICIES);
    for side in ["namespaceSelector", "objectSelector"] {
        let selector = resources.get(side);
        if selector.is_set() {
            meta::selector(&selector, errors);
        } else {
            errors.required(&selector, "");
        }
    }
    for member in ["resourceRules", "excludeResourceRules"] {
        for one in resources.get(member).items() {
            let mut seen = Vec::new();
            for name in one.get("resourceNames").items() {
                errors.invalid_each(&name, names::path_segment(name.text()));
                if seen.contains(&name.text()) {
                    errors.duplicate(&name, name.text());
                }
                seen.push(name.text());
            }
            rule(&one, errors);
        }
    }
}

/// There is nothing to change in a deletion.
pub fn only_mutable(resources: &Field, errors: &mut Errors) {
    for one in resources.get("resourceRules").items() {
        for operation in one.get("operations").items().iter().filter(|operation| !MUTABLE.contains(&operation.text())) {
            let at = Field { path: format!("{}.resourceRules.operations", resources.path), value: operation.value };
            errors.not_supported(&at, &MUTABLE);
        }
    }
}
