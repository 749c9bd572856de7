//! What the admission policies and their bindings share.

use super::expressions::{compiles, is_identifier, match_conditions};
use super::rules::{self, FAILURE_POLICIES};
use crate::defaults::{inner, set};
use crate::object;
use crate::table;
use crate::validation::field::{Errors, Field};
use crate::validation::{meta, names};
use ::admission::cel::{Purpose, Scope, Variable};
use jiff::Timestamp;
use serde_json::{Map, Value};

const REASONS: [&str; 3] = ["Forbidden", "Invalid", "RequestEntityTooLarge"];
const MAX_ANNOTATIONS: usize = 20;
const MAX_ANNOTATION_EXPRESSION: usize = 5 * 1024;

pub fn cells(object: &Value, counted: &str, now: Timestamp) -> Vec<Value> {
    let count = object.pointer(counted).and_then(Value::as_array).map_or(0, Vec::len);
    let kind = match object.pointer("/spec/paramKind").filter(|kind| !kind.is_null()) {
        Some(kind) => format!("{}/{}", object::text(kind, &["apiVersion"]), object::text(kind, &["kind"])),
        None => "<unset>".to_string(),
    };
    vec![table::name(object), count.into(), kind.into(), table::age(object, now)]
}

pub fn binding_cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let text = |path: &[&str]| object::text(object, path);
    let params = match (text(&["spec", "paramRef", "name"]), text(&["spec", "paramRef", "namespace"])) {
        ("", _) => match object.pointer("/spec/paramRef/selector").filter(|selector| !selector.is_null()) {
            Some(selector) => selector.to_string(),
            None => "<unset>".to_string(),
        },
        (name, "") => format!("*/{name}"),
        (name, namespace) => format!("{namespace}/{name}"),
    };
    vec![table::name(object), text(&["spec", "policyName"]).into(), params.into(), table::age(object, now)]
}

pub fn defaults(object: &mut Map<String, Value>) {
    let Some(spec) = inner(object, "spec") else { return };
    set(spec, "failurePolicy", || "Fail".into());
    rules::match_defaults(spec, "matchConstraints");
}

pub fn binding_defaults(object: &mut Map<String, Value>) {
    if let Some(spec) = inner(object, "spec") {
        rules::match_defaults(spec, "matchResources");
    }
}

/// Parameters, constraints, conditions, variables; returns the variables.
fn common(new: &Field, old: Option<&Field>, mutating: bool, errors: &mut Errors) -> Vec<Variable> {
    let spec = new.get("spec");
    errors.one_of(&spec.get("failurePolicy"), &FAILURE_POLICIES);
    let (kind, constraints) = (spec.get("paramKind"), spec.get("matchConstraints"));
    if kind.is_set() {
        param_kind(&kind, errors);
    }
    if constraints.is_set() {
        rules::match_resources(&constraints, errors);
        if constraints.get("resourceRules").is_empty() {
            errors.required(&constraints.get("resourceRules"), "");
        }
        if mutating {
            rules::only_mutable(&constraints, errors);
        }
    } else {
        errors.required(&constraints, "");
    }
    let same = |old: &Field, member: &str| old.get("spec").get(member).value == spec.get(member).value;
    if !old.is_some_and(|old| same(old, "paramKind") && same(old, "matchConditions")) {
        match_conditions(&spec.get("matchConditions"), kind.is_set(), errors);
    }
    variables(&spec, errors)
}

fn variables(spec: &Field, errors: &mut Errors) -> Vec<Variable> {
    let params = spec.get("paramKind").is_set();
    let mut before = Vec::new();
    for variable in spec.get("variables").items() {
        let (name, expression) = (variable.get("name"), variable.get("expression"));
        if name.text().trim().is_empty() {
            errors.required(&name, "name is not specified");
        } else if !is_identifier(name.text()) {
            errors.invalid(&name, "must be a valid CEL identifier");
        }
        if expression.text().trim().is_empty() {
            errors.required(&expression, "expression is not specified");
            continue;
        }
        compiles(&expression, expression.text(), Purpose::Variable, Scope { params, variables: Some(&before) }, errors);
        before.push(Variable { name: name.text().to_string(), expression: expression.text().to_string() });
    }
    before
}

fn param_kind(kind: &Field, errors: &mut Errors) {
    let (version, name) = (kind.get("apiVersion"), kind.get("kind"));
    let text = version.text();
    if text.is_empty() {
        errors.required(&version, "");
    } else if text.matches('/').count() > 1 {
        errors.invalid(&version, format!("unexpected GroupVersion string: {text}"));
    } else {
        let (group, short) = if text == "/" { ("", "") } else { text.split_once('/').unwrap_or(("", text)) };
        let problems = names::dns_subdomain(group);
        if !group.is_empty() && !problems.is_empty() {
            errors.invalid_value(&version, group, problems.join(","));
        }
        let problems = names::dns_1035_label(short);
        if short.is_empty() {
            errors.invalid(&version, "version must be specified");
        } else if !problems.is_empty() {
            errors.invalid_value(&version, short, problems.join(","));
        }
    }
    let problems = names::dns_1035_label(&name.text().to_lowercase());
    if name.text().is_empty() {
        errors.required(&name, "");
    } else if !problems.is_empty() {
        errors.invalid(&name, format!("may have mixed case, but should otherwise match: {}", problems.join(",")));
    }
}

pub fn validating(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let variables = common(new, old, false, errors);
    let spec = new.get("spec");
    let scope = Scope { params: spec.get("paramKind").is_set(), variables: Some(&variables) };
    let (validations, annotations) = (spec.get("validations"), spec.get("auditAnnotations"));
    if validations.is_empty() && annotations.is_empty() {
        for field in [&validations, &annotations] {
            errors.required(field, "validations or auditAnnotations must contain at least one item");
        }
        return;
    }
    validations.items().iter().for_each(|one| validation(one, scope, errors));
    let items = annotations.items();
    if items.len() > MAX_ANNOTATIONS {
        errors.invalid(&annotations, format!("must not have more than {MAX_ANNOTATIONS} auditAnnotations"));
    }
    let mut seen = Vec::new();
    for one in items {
        annotation(&one, object::name(new.value), scope, errors);
        let key = one.get("key");
        if seen.contains(&key.text()) {
            errors.duplicate(&key, key.text());
        }
        seen.push(key.text());
    }
}

fn validation(one: &Field, scope: Scope<'_>, errors: &mut Errors) {
    let (expression, made, message, reason) = (one.get("expression"), one.get("messageExpression"), one.get("message"), one.get("reason"));
    if expression.text().trim().is_empty() {
        errors.required(&expression, "expression is not specified");
    } else {
        compiles(&expression, expression.text(), Purpose::Validation, scope, errors);
    }
    if !made.text().is_empty() {
        match made.text().trim() {
            "" => errors.invalid(&made, "must be non-empty if specified"),
            _ => compiles(&made, made.text(), Purpose::Message, scope, errors),
        }
    }
    if !message.text().is_empty() && message.text().trim().is_empty() {
        errors.invalid(&message, "must be non-empty if specified");
    } else if message.text().trim().contains(['\n', '\r']) {
        errors.invalid(&message, "must not contain line breaks");
    }
    if reason.is_set() && !REASONS.contains(&reason.text()) {
        errors.not_supported(&reason, &REASONS);
    }
}

fn annotation(one: &Field, policy: &str, scope: Scope<'_>, errors: &mut Errors) {
    let (key, expression) = (one.get("key"), one.get("valueExpression"));
    if policy.is_empty() {
        errors.invalid(&key, "requires metadata.name be non-empty");
    } else {
        let whole = format!("{policy}/{}", key.text());
        for problem in names::qualified(&whole) {
            errors.invalid_value(&key, whole.as_str(), problem);
        }
    }
    match expression.text().trim() {
        "" => errors.required(&expression, "valueExpression is not specified"),
        text if text.len() > MAX_ANNOTATION_EXPRESSION => {
            errors.required(&expression, &format!("must not exceed {MAX_ANNOTATION_EXPRESSION} bytes in length"));
        }
        text => compiles(&expression, text, Purpose::AuditAnnotation, scope, errors),
    }
}

pub fn mutating(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let variables = common(new, old, true, errors);
    let spec = new.get("spec");
    let scope = Scope { params: spec.get("paramKind").is_set(), variables: Some(&variables) };
    let mutations = spec.get("mutations");
    if mutations.is_empty() {
        errors.required(&mutations, "mutations must contain at least one item");
    }
    mutations.items().iter().for_each(|one| mutation(one, scope, errors));
    errors.one_of(&spec.get("reinvocationPolicy"), &["IfNeeded", "Never"]);
}

fn mutation(one: &Field, scope: Scope<'_>, errors: &mut Errors) {
    let kind = one.get("patchType");
    let (wanted, other, purpose) = match kind.text() {
        "" => return errors.required(&kind, ""),
        "JSONPatch" => ("jsonPatch", "applyConfiguration", Purpose::JsonPatch),
        "ApplyConfiguration" => ("applyConfiguration", "jsonPatch", Purpose::ApplyConfiguration),
        _ => return errors.not_supported(&kind, &["ApplyConfiguration", "JSONPatch"]),
    };
    let (given, expression) = (one.get(wanted), one.get(wanted).get("expression"));
    if !given.is_set() {
        errors.required(&given, &format!("must be specified when patchType is {}", kind.text()));
    } else if expression.text().trim().is_empty() {
        errors.required(&expression, "");
    } else {
        compiles(&expression, expression.text().trim(), purpose, scope, errors);
    }
    if one.get(other).is_set() {
        errors.invalid_value(&one.get(other), format!("{{{other}}}"), format!("must not be specified when patchType is {}", kind.text()));
    }
}

fn binding(spec: &Field, errors: &mut Errors) {
    let policy = spec.get("policyName");
    if policy.text().is_empty() {
        errors.required(&policy, "");
    } else {
        errors.invalid_each(&policy, names::dns_subdomain(policy.text()));
    }
    param_ref(&spec.get("paramRef"), errors);
    rules::match_resources(&spec.get("matchResources"), errors);
}

pub fn validating_binding(spec: &Field, errors: &mut Errors) {
    const ACTIONS: [&str; 3] = ["Audit", "Deny", "Warn"];
    binding(spec, errors);
    let actions = spec.get("validationActions");
    let mut seen = Vec::new();
    for action in actions.items() {
        if !ACTIONS.contains(&action.text()) {
            errors.not_supported(&action, &ACTIONS);
        }
        if seen.contains(&action.text()) {
            errors.duplicate(&action, action.text());
        }
        seen.push(action.text());
    }
    if seen.contains(&"Deny") && seen.contains(&"Warn") {
        let why = "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers \
                   serves no purpose)";
        errors.invalid(&actions, why);
    }
    if seen.is_empty() {
        errors.required(&actions, "at least one validation action is required");
    }
}

pub fn mutating_binding(spec: &Field, errors: &mut Errors) {
    binding(spec, errors);
    rules::only_mutable(&spec.get("matchResources"), errors);
}

fn param_ref(reference: &Field, errors: &mut Errors) {
    if !reference.is_set() {
        return;
    }
    let (name, selector) = (reference.get("name"), reference.get("selector"));
    if !name.text().is_empty() {
        errors.invalid_each(&name, names::path_segment(name.text()));
        if selector.is_set() {
            errors.forbidden(&name, "name and selector are mutually exclusive");
        }
    }
    if selector.is_set() {
        meta::selector(&selector, errors);
        if !name.text().is_empty() {
            errors.forbidden(&selector, "name and selector are mutually exclusive");
        }
    }
    if name.text().is_empty() && !selector.is_set() {
        errors.required(reference, "one of name or selector must be specified");
    }
    let action = reference.get("parameterNotFoundAction");
    if action.text().is_empty() {
        errors.required(&action, "");
    } else if !["Deny", "Allow"].contains(&action.text()) {
        errors.not_supported(&action, &["Deny", "Allow"]);
    }
}
