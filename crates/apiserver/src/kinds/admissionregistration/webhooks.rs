//! What the two webhook configurations share.

use super::expressions::match_conditions;
use super::rules::{self, FAILURE_POLICIES, MATCH_POLICIES};
use crate::defaults::{each, inner, set};
use crate::table;
use crate::validation::field::{Errors, Field};
use crate::validation::{meta, names};
use jiff::Timestamp;
use serde_json::{Map, Value};

const NO_EFFECTS: [&str; 2] = ["None", "NoneOnDryRun"];
const EFFECTS: [&str; 4] = ["None", "NoneOnDryRun", "Some", "Unknown"];
const REVIEWS: [&str; 2] = ["v1", "v1beta1"];

pub fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let count = object.get("webhooks").and_then(Value::as_array).map_or(0, Vec::len);
    vec![table::name(object), count.into(), table::age(object, now)]
}

pub fn defaults(object: &mut Map<String, Value>, mutating: bool) {
    for hook in each(object, "webhooks") {
        set(hook, "failurePolicy", || "Fail".into());
        rules::selector_defaults(hook);
        set(hook, "timeoutSeconds", || 10.into());
        rules::rule_defaults(hook, "rules");
        if mutating {
            set(hook, "reinvocationPolicy", || "Never".into());
        }
        if let Some(service) = inner(hook, "clientConfig").and_then(|config| inner(config, "service")) {
            set(service, "port", || 443.into());
        }
    }
}

/// What configurations that were stored before may keep.
struct Lenient {
    side_effects: bool,
    reviews: bool,
    names: bool,
    conditions: bool,
}

impl Lenient {
    fn of(new: &Field, old: Option<&Field>) -> Self {
        let Some(old) = old else { return Self { side_effects: false, reviews: false, names: false, conditions: false } };
        let (before, now) = (old.get("webhooks").items(), new.get("webhooks").items());
        let known = |hook: &Field| hook.get("admissionReviewVersions").items().iter().any(|version| REVIEWS.contains(&version.text()));
        let all: Vec<&str> = before.iter().map(|hook| hook.get("name").text()).collect();
        let same = |(a, b): (&Field, &Field)| a.get("matchConditions").value == b.get("matchConditions").value;
        Self {
            side_effects: before.iter().any(|hook| !NO_EFFECTS.contains(&hook.get("sideEffects").text())),
            reviews: before.iter().any(|hook| !hook.get("admissionReviewVersions").is_empty() && !known(hook)),
            names: all.iter().enumerate().any(|(index, name)| all[..index].contains(name)),
            conditions: before.len() == now.len() && before.iter().zip(&now).all(same),
        }
    }
}

pub fn validate(new: &Field, old: Option<&Field>, mutating: bool, errors: &mut Errors) {
    let lenient = Lenient::of(new, old);
    let mut seen = Vec::new();
    for hook in new.get("webhooks").items() {
        webhook(&hook, &lenient, mutating, errors);
        reviews(&hook.get("admissionReviewVersions"), lenient.reviews, errors);
        let name = hook.get("name");
        if !lenient.names && !name.text().is_empty() {
            if seen.contains(&name.text()) {
                errors.duplicate(&name, name.text());
            }
            seen.push(name.text());
        }
    }
}

fn webhook(hook: &Field, lenient: &Lenient, mutating: bool, errors: &mut Errors) {
    full_name(&hook.get("name"), errors);
    hook.get("rules").items().iter().for_each(|rule| rules::rule(rule, errors));
    for (member, known) in [("failurePolicy", &FAILURE_POLICIES), ("matchPolicy", &MATCH_POLICIES)] {
        let field = hook.get(member);
        if field.is_set() && !known.contains(&field.text()) {
            errors.not_supported(&field, known);
        }
    }
    let allowed: &[&str] = if lenient.side_effects { &EFFECTS } else { &NO_EFFECTS };
    let effects = hook.get("sideEffects");
    if !effects.is_set() {
        errors.required(&effects, &format!("must specify one of {}", allowed.join(", ")));
    } else if !allowed.contains(&effects.text()) {
        errors.not_supported(&effects, allowed);
    }
    let timeout = hook.get("timeoutSeconds");
    if timeout.number().is_some_and(|seconds| !(1..=30).contains(&seconds)) {
        errors.invalid(&timeout, "the timeout value must be between 1 and 30 seconds");
    }
    for side in ["namespaceSelector", "objectSelector"] {
        meta::selector(&hook.get(side), errors);
    }
    let again = hook.get("reinvocationPolicy");
    if mutating && again.is_set() && !["IfNeeded", "Never"].contains(&again.text()) {
        errors.not_supported(&again, &["IfNeeded", "Never"]);
    }
    client_config(&hook.get("clientConfig"), errors);
    if !lenient.conditions {
        match_conditions(&hook.get("matchConditions"), false, errors);
    }
}

fn full_name(name: &Field, errors: &mut Errors) {
    let problems = names::dns_subdomain(name.text());
    if name.text().is_empty() {
        errors.required(name, "");
    } else if !problems.is_empty() {
        errors.invalid(name, problems.join(","));
    } else if name.text().split('.').count() < 3 {
        errors.invalid(name, "should be a domain with at least three segments separated by dots");
    }
}

fn reviews(versions: &Field, lenient: bool, errors: &mut Errors) {
    let items = versions.items();
    if items.is_empty() {
        errors.required(versions, "must specify one of v1, v1beta1");
        return;
    }
    let mut seen = Vec::new();
    for version in &items {
        if seen.contains(&version.text()) {
            errors.invalid(version, "duplicate version");
            continue;
        }
        seen.push(version.text());
        errors.invalid_each(version, names::dns_1035_label(version.text()));
    }
    if !lenient && !seen.iter().any(|version| REVIEWS.contains(version)) {
        errors.invalid(versions, "must include at least one of v1, v1beta1");
    }
}

fn client_config(config: &Field, errors: &mut Errors) {
    let (url, service) = (config.get("url"), config.get("service"));
    if url.is_set() == service.is_set() {
        errors.required(config, "exactly one of url or service is required");
    } else if url.is_set() {
        check_url(&url, errors);
    } else {
        check_service(&service, errors);
    }
}

fn check_url(url: &Field, errors: &mut Errors) {
    const FORM: &str = "; desired format: https://host[/path]";
    let (scheme, rest) = url.text().split_once("://").unwrap_or(("", url.text()));
    let rest = if scheme.is_empty() { "" } else { rest };
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = rest.split('/').next().unwrap_or_default();
    let (user, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
    if scheme != "https" {
        errors.invalid_value(url, scheme, format!("'https' is the only allowed URL scheme{FORM}"));
    }
    if host.is_empty() {
        errors.invalid_value(url, host, format!("host must be specified{FORM}"));
    }
    if let Some(user) = user {
        errors.invalid_value(url, user, "user information is not permitted in the URL");
    }
    if !fragment.is_empty() {
        errors.invalid_value(url, fragment, "fragments are not permitted in the URL");
    }
    if !query.is_empty() {
        errors.invalid_value(url, query, "query parameters are not permitted in the URL");
    }
}

fn check_service(service: &Field, errors: &mut Errors) {
    // Upstream takes one for the other where it says which is missing.
    for (missing, said) in [("namespace", "name"), ("name", "namespace")] {
        if service.get(missing).text().is_empty() {
            errors.required(&service.get(said), "");
        }
    }
    let port = service.get("port");
    let problems = names::port_number(port.number().unwrap_or_default());
    if !problems.is_empty() {
        errors.invalid(&port, format!("port is not valid: {}", problems.join(", ")));
    }
    let path = service.get("path");
    let text = path.text();
    match text {
        "" | "/" => return,
        "//" => return errors.invalid(&path, "segment[0] may not be empty"),
        _ => {}
    }
    let Some(below) = text.strip_prefix('/') else { return errors.invalid(&path, "must start with a '/'") };
    let below = below.strip_suffix('/').unwrap_or(below);
    for (index, segment) in below.split('/').enumerate() {
        if segment.is_empty() {
            errors.invalid(&path, format!("segment[{index}] may not be empty"));
            continue;
        }
        for problem in names::dns_subdomain(segment) {
            errors.invalid(&path, format!("segment[{index}]: {problem}"));
        }
    }
}
