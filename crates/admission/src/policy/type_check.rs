//! Warnings about expressions that cannot fit the objects they are for: `status.typeChecking` of a ValidatingAdmissionPolicy
//! (plugin/policy/validating/typechecking.go).

use crate::names::{Kind, Resource};
use crate::value::{list, text, texts};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// So many kinds of a policy are checked at most.
const MAX_KINDS: usize = 10;

/// The kinds that a policy's rules name without wildcards. `kinds` says which kinds a resource has.
pub fn types_to_check(policy: &Value, kinds: impl Fn(&Resource) -> Vec<Kind>) -> Vec<Kind> {
    let mut found = BTreeSet::new();
    for rule in list(policy, &["spec", "matchConstraints", "resourceRules"]) {
        let plain = |member: &str| {
            let mut all = texts(rule, &[member]);
            all.sort_unstable();
            if all.iter().any(|one| one.contains('*')) { Vec::new() } else { all }
        };
        let mut resources = texts(rule, &["resources"]);
        resources.retain(|resource| !resource.contains(['*', '/']));
        resources.sort_unstable();
        let mut count = 0;
        for group in plain("apiGroups") {
            for version in plain("apiVersions") {
                for resource in &resources {
                    for kind in kinds(&Resource::new(group, version, resource)) {
                        found.insert(kind);
                        count += 1;
                        if count == MAX_KINDS {
                            return found.into_iter().collect();
                        }
                    }
                }
            }
        }
    }
    found.into_iter().collect()
}

/// `expressionWarnings` of a policy. `check` says what is wrong with an expression when `object` is of a kind, in the compiler's words, such as
/// `ERROR: <input>:1:20: undefined field 'replicas'`.
pub fn type_check(policy: &Value, kinds: &[Kind], check: impl Fn(&Kind, &str) -> Result<(), String>) -> Vec<Value> {
    let mut warnings = Vec::new();
    for (index, validation) in list(policy, &["spec", "validations"]).iter().enumerate() {
        for member in ["expression", "messageExpression"] {
            let expression = text(validation, &[member]);
            if expression.is_empty() {
                continue;
            }
            let wrong: Vec<String> = kinds.iter().filter_map(|kind| check(kind, expression).err().map(|why| format!("{kind}: {why}\n"))).collect();
            if !wrong.is_empty() {
                warnings.push(json!({"fieldRef": format!("spec.validations[{index}].{member}"), "warning": wrong.join("\n")}));
            }
        }
    }
    warnings
}
