//! Whether quotas allow a request, and what they count after it (resourcequota/controller.go, `CheckRequest`).

use super::scopes::matches_scopes;
use super::usage::{Evaluator, is_ignored};
use crate::amounts::{add, growth, mask, print};
use crate::value::{amounts, map_mut, name, text};
use crate::{Attributes, Operation, Refusal};
use jiff::Timestamp;
use kube_rules::{Amounts, Quantity};
use serde_json::Value;

/// Quotas of the request's Namespace that count more after the request, with the new `status.used`; refuses a request that exceeds one.
pub fn check(quotas: &[Value], request: &Attributes<'_>, now: Timestamp) -> Result<Vec<Value>, Refusal> {
    let is_namespace = request.is("", "namespaces") && request.operation == Operation::Create;
    if request.namespace.is_empty() || is_namespace || is_ignored(request.group, request.resource) {
        return Ok(Vec::new());
    }
    let evaluator = Evaluator::of(request.group, request.resource);
    if !evaluator.handles(request) {
        return Ok(Vec::new());
    }
    let object = request.object();
    let mut concerned = Vec::new();
    for quota in quotas {
        let hard = amounts(quota, &["status", "hard"]);
        let measured: Vec<&str> = hard.keys().map(String::as_str).filter(|name| evaluator.measures(name)).collect();
        if measured.is_empty() || !matches_scopes(quota, &evaluator, object) {
            continue;
        }
        if let Some(lack) = evaluator.lacks(measured.iter().copied(), object) {
            return Err(Refusal::Forbidden(format!("failed quota: {}: {lack}", name(quota))));
        }
        let used = amounts(quota, &["status", "used"]);
        if measured.iter().any(|name| !used.contains_key(*name)) {
            return Err(Refusal::Forbidden(format!("status unknown for quota: {}, resources: {}", name(quota), measured.join(","))));
        }
        concerned.push(Concerned { quota, hard, used });
    }
    let usage = evaluator.usage(object, now);
    let negative: Vec<&str> = usage.iter().filter(|(_, quantity)| **quantity < Quantity::ZERO).map(|(name, _)| name.as_str()).collect();
    if !negative.is_empty() {
        return Err(Refusal::Forbidden(format!("quota usage is negative for resource(s): {}", negative.join(","))));
    }
    let mut changed = Vec::new();
    for one in concerned {
        changed.extend(one.charge(&added(&evaluator, one.quota, &usage, request, now), request.subresource != "status")?);
    }
    Ok(changed)
}

/// What the request adds to a quota: all of an object that comes under it, else the growth.
fn added(evaluator: &Evaluator, quota: &Value, usage: &Amounts, request: &Attributes<'_>, now: Timestamp) -> Amounts {
    let old = request.old_object();
    let is_stored = request.operation == Operation::Update && !text(old, &["metadata", "resourceVersion"]).is_empty();
    let delta = if is_stored && matches_scopes(quota, evaluator, old) { growth(usage, &evaluator.usage(old, now)) } else { usage.clone() };
    delta.into_iter().filter(|(_, quantity)| !quantity.is_zero()).collect()
}

/// A quota that is about the object.
struct Concerned<'a> {
    quota: &'a Value,
    hard: Amounts,
    used: Amounts,
}

impl Concerned<'_> {
    /// The quota with the new usage; none when nothing changes.
    fn charge(&self, added: &Amounts, enforce: bool) -> Result<Option<Value>, Refusal> {
        let requested = mask(added, |name| self.hard.contains_key(name));
        if requested.is_empty() {
            return Ok(None);
        }
        let mut after = self.used.clone();
        add(&mut after, &requested);
        let exceeded = |name: &str| requested.contains_key(name) && after.get(name) > self.hard.get(name);
        let too_much = mask(&requested, exceeded);
        if enforce && !too_much.is_empty() {
            let (used, limited) = (mask(&self.used, exceeded), mask(&self.hard, exceeded));
            let name = name(self.quota);
            let (requested, used, limited) = (print(&too_much), print(&used), print(&limited));
            return Err(Refusal::Forbidden(format!("exceeded quota: {name}, requested: {requested}, used: {used}, limited: {limited}")));
        }
        let mut quota = self.quota.clone();
        let used = map_mut(&mut quota, &["status", "used"]);
        for name in requested.keys() {
            used.insert(name.clone(), after[name].to_string().into());
        }
        Ok(Some(quota))
    }
}
