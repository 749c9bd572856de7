//! Which requests webhooks and policies are about: rules, selectors, equivalent resources, match conditions
//! (apiserver/pkg/admission/plugin/webhook/{generic,predicates,matchconditions}, plugin/policy/matching).

use crate::cel::{Engine, Fault, Input, MATCH_CONDITIONS_BUDGET, Purpose, Scope};
use crate::names::{Kind, Resource};
use crate::refusal::aggregate;
use crate::value::{list, lookup, members, text, texts};
use crate::{Attributes, Operation, Refusal};
use kube_rules::Selector;
use serde_json::{Value, json};
use std::future::Future;
use std::sync::Arc;

/// What webhooks and policies need of the API server.
pub trait Catalog: Sync {
    fn namespace(&self, name: &str) -> Option<Arc<Value>>;

    /// Resources through which clients reach the same objects, with the kind of the resource or subresource in each, such as `deployments` of
    /// two versions; the resource itself may be among them.
    fn equivalents(&self, resource: &Resource, subresource: &str) -> Vec<(Resource, Kind)>;

    /// The object in another version of its kind.
    fn convert(&self, object: &Value, kind: &Kind) -> impl Future<Output = Result<Value, String>> + Send;

    /// An object that was changed from outside, as a client's would be taken: without unknown fields, with defaults.
    fn decode(&self, kind: &Kind, object: Value) -> Result<Value, String>;
}

/// In which version a webhook or policy sees a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub resource: Resource,
    pub kind: Kind,
}

impl Target {
    /// The request as it came.
    pub fn of(request: &Attributes<'_>) -> Self {
        Self {
            resource: Resource::new(request.group, request.version, request.resource),
            kind: Kind::new(request.kind_group, request.kind_version, request.kind),
        }
    }
}

/// Whether neither webhooks nor policies see the request, because a mistake could not be mended otherwise.
pub fn is_exempt(request: &Attributes<'_>) -> bool {
    const KINDS: [&str; 6] = [
        "ValidatingWebhookConfiguration",
        "MutatingWebhookConfiguration",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "MutatingAdmissionPolicy",
        "MutatingAdmissionPolicyBinding",
    ];
    request.kind_group == "admissionregistration.k8s.io" && KINDS.contains(&request.kind)
}

/// A selector of a configuration. None matches nothing.
pub(crate) fn selector(value: Option<&Value>) -> Selector {
    let Some(value) = value else { return Selector::nothing() };
    let labels = members(value, &["matchLabels"]).filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)));
    let expressions = list(value, &["matchExpressions"]).iter().map(|one| {
        let values: Vec<String> = texts(one, &["values"]).into_iter().map(str::to_owned).collect();
        (text(one, &["key"]), text(one, &["operator"]), values)
    });
    Selector::from_parts(labels, expressions)
}

/// Whether labels of an object satisfy a selector.
pub(crate) fn selects(selector: &Selector, object: &Value) -> bool {
    selector.matches_by(|key| lookup(object, &["metadata", "labels", key]).and_then(Value::as_str))
}

fn namespace_matches(selector: &Selector, request: &Attributes<'_>, catalog: &impl Catalog) -> Result<bool, Refusal> {
    let is_namespace = request.resource == "namespaces";
    if (request.namespace.is_empty() && !is_namespace) || selector.is_empty() {
        return Ok(true);
    }
    let is_written = matches!(request.operation, Operation::Create | Operation::Update);
    if is_namespace && request.subresource.is_empty() && is_written {
        return Ok(selects(selector, request.object()));
    }
    let name = request.namespace;
    let Some(namespace) = catalog.namespace(name) else {
        let details = json!({"name": name, "kind": "namespaces"});
        let message = format!("namespaces {name:?} not found");
        return Err(Refusal::Status { code: 404, reason: "NotFound".into(), message, details: Some(details) });
    };
    Ok(selects(selector, &namespace))
}

fn object_matches(selector: &Selector, request: &Attributes<'_>) -> bool {
    let matches = |object: Option<&Value>| object.is_some_and(|object| selects(selector, object));
    selector.is_empty() || matches(request.object) || matches(request.old_object)
}

/// Whether `namespaceSelector` and `objectSelector` of a webhook or of match constraints select the request. An error counts only when the
/// rules match too.
fn selectors_match(owner: &Value, request: &Attributes<'_>, catalog: &impl Catalog) -> Result<bool, Refusal> {
    if !object_matches(&selector(lookup(owner, &["objectSelector"])), request) {
        return Ok(false);
    }
    namespace_matches(&selector(lookup(owner, &["namespaceSelector"])), request, catalog)
}

fn has(rule: &Value, member: &str, wanted: &str) -> bool {
    texts(rule, &[member]).into_iter().any(|one| one == "*" || one == wanted)
}

/// Whether a rule is about the request, had it come for this resource.
fn rule_matches(rule: &Value, request: &Attributes<'_>, resource: &Resource) -> bool {
    let is_cluster_wide = request.namespace.is_empty() || *resource == Resource::new("", "v1", "namespaces");
    let scope = match text(rule, &["scope"]) {
        "" | "*" => true,
        "Namespaced" => !is_cluster_wide,
        "Cluster" => is_cluster_wide,
        _ => false,
    };
    let names = |pattern: &str| {
        let (name, sub) = pattern.split_once('/').unwrap_or((pattern, ""));
        (name == "*" || name == resource.resource) && (sub == "*" || sub == request.subresource)
    };
    scope
        && has(rule, "operations", request.operation.text())
        && has(rule, "apiGroups", &resource.group)
        && has(rule, "apiVersions", &resource.version)
        && texts(rule, &["resources"]).into_iter().any(names)
}

/// `resourceNames` of a policy's rule; webhooks have none.
fn names_match(rule: &Value, request: &Attributes<'_>) -> bool {
    let names = texts(rule, &["resourceNames"]);
    names.is_empty() || names.contains(&request.name)
}

/// In which version the rules are about the request: as it came, or with the policy Equivalent as one of the equivalents.
fn rules_match(rules: &[Value], policy: &str, request: &Attributes<'_>, catalog: &impl Catalog) -> Option<Target> {
    let own = Target::of(request);
    let matches = |rule: &Value, resource: &Resource| rule_matches(rule, request, resource) && names_match(rule, request);
    if rules.iter().any(|rule| matches(rule, &own.resource)) {
        return Some(own);
    }
    if policy != "Equivalent" {
        return None;
    }
    let others: Vec<(Resource, Kind)> =
        catalog.equivalents(&own.resource, request.subresource).into_iter().filter(|(resource, _)| *resource != own.resource).collect();
    let pairs = rules.iter().flat_map(|rule| others.iter().map(move |other| (rule, other)));
    let mut found = pairs.filter(|(rule, (resource, _))| matches(rule, resource));
    found.next().map(|(_, (resource, kind))| Target { resource: resource.clone(), kind: kind.clone() })
}

/// In which version a webhook is to see the request; none when it is not. Match conditions come after this.
pub(crate) fn webhook_target(hook: &Value, request: &Attributes<'_>, catalog: &impl Catalog) -> Result<Option<Target>, Refusal> {
    let selected = selectors_match(hook, request, catalog);
    if selected == Ok(false) {
        return Ok(None);
    }
    match rules_match(list(hook, &["rules"]), text(hook, &["matchPolicy"]), request, catalog) {
        None => Ok(None),
        target => selected.map(|_| target),
    }
}

/// In which version match constraints of a policy or a binding take the request; none when they do not.
pub(crate) fn constraints_target(constraints: &Value, request: &Attributes<'_>, catalog: &impl Catalog) -> Result<Option<Target>, Refusal> {
    let selected = selectors_match(constraints, request, catalog);
    if selected == Ok(false) {
        return Ok(None);
    }
    let policy = text(constraints, &["matchPolicy"]);
    if rules_match(list(constraints, &["excludeResourceRules"]), policy, request, catalog).is_some() {
        return Ok(None);
    }
    let rules = list(constraints, &["resourceRules"]);
    let target = if rules.is_empty() { Some(Target::of(request)) } else { rules_match(rules, policy, request, catalog) };
    match target {
        None => Ok(None),
        target => selected.map(|_| target),
    }
}

/// Whether all match conditions of a webhook or policy hold. A condition that is false decides, whatever the others do; failures of others
/// count as no match with the failure policy Ignore, and are an error with Fail.
pub(crate) fn conditions_hold(owner: &Value, scope: Scope<'_>, input: &Input<'_>, engine: &impl Engine) -> Result<bool, String> {
    let ignore = text(owner, &["failurePolicy"]) == "Ignore";
    let mut budget = MATCH_CONDITIONS_BUDGET;
    let mut errors = Vec::new();
    let mut results = Vec::new();
    for condition in list(owner, &["matchConditions"]) {
        let expression = text(condition, &["expression"]);
        match engine.evaluate(expression, Purpose::MatchCondition, scope, input, &mut budget) {
            Err(fault @ Fault::OutOfBudget) => return if ignore { Ok(false) } else { Err(fault.text(expression)) },
            Err(fault) => errors.push(fault.text(expression)),
            Ok(value) => results.push(value),
        }
    }
    if results.contains(&Value::Bool(false)) {
        return Ok(false);
    }
    match errors.is_empty() {
        true => Ok(true),
        false if ignore => Ok(false),
        false => Err(aggregate(&errors)),
    }
}

/// The `AdmissionRequest` of a request, as reviews and expressions have it, without uid and objects.
pub(crate) fn admission_request(request: &Attributes<'_>, target: &Target) -> Value {
    let own = Target::of(request);
    let mut value = json!({"kind": target.kind.to_value(), "resource": target.resource.to_value()});
    let set = |value: &mut Value, name: &str, text: &str| {
        if !text.is_empty() {
            value[name] = text.into();
        }
    };
    set(&mut value, "subResource", request.subresource);
    value["requestKind"] = own.kind.to_value();
    value["requestResource"] = own.resource.to_value();
    set(&mut value, "requestSubResource", request.subresource);
    set(&mut value, "name", request.name);
    set(&mut value, "namespace", request.namespace);
    set(&mut value, "operation", request.operation.text());
    value["userInfo"] = user_info(request);
    value["dryRun"] = request.dry_run.into();
    value["options"] = request.options.clone();
    value
}

fn user_info(request: &Attributes<'_>) -> Value {
    let user = request.user;
    let mut value = json!({});
    if !user.name.is_empty() {
        value["username"] = user.name.as_str().into();
    }
    if !user.uid.is_empty() {
        value["uid"] = user.uid.as_str().into();
    }
    if !user.groups.is_empty() {
        value["groups"] = json!(user.groups);
    }
    if !user.extra.is_empty() {
        value["extra"] = json!(user.extra);
    }
    value
}

#[cfg(test)]
mod tests;
