//! What all objects of a Namespace use of a quota, for the quota controller (pkg/quota/v1, `CalculateUsage`).

use super::scopes::matches_scopes;
use super::usage::{Evaluator, claim_may_free, is_alive, is_terminating};
use crate::amounts::{add, mask};
use crate::value::{amounts, list, lookup, text};
use jiff::Timestamp;
use kube_rules::{Amounts, Quantity};
use serde_json::Value;

/// All objects of one resource in a quota's Namespace.
#[derive(Clone, Copy, Debug)]
pub struct Objects<'a> {
    pub group: &'a str,
    pub resource: &'a str,
    pub items: &'a [Value],
}

/// `status.used` of a quota: what the objects use of the resources in `spec.hard`. A resource that no objects are given for is left out,
/// because nothing is known of it; one that none of them uses is zero.
pub fn total(quota: &Value, objects: &[Objects<'_>], now: Timestamp) -> Amounts {
    let hard = amounts(quota, &["spec", "hard"]);
    let mut used = Amounts::new();
    for kind in objects {
        let evaluator = Evaluator::of(kind.group, kind.resource);
        let measured: Amounts = mask(&hard, |name| evaluator.measures(name)).into_keys().map(|name| (name, Quantity::ZERO)).collect();
        if measured.is_empty() {
            continue;
        }
        add(&mut used, &measured);
        for item in kind.items.iter().filter(|item| matches_scopes(quota, &evaluator, item)) {
            add(&mut used, &mask(&evaluator.usage(item, now), |name| measured.contains_key(name)));
        }
    }
    used
}

/// Whether an update of an object may change what quotas count, so that they are to be counted again before the next full pass.
pub fn may_free(group: &str, resource: &str, old: &Value, new: &Value, now: Timestamp) -> bool {
    match Evaluator::of(group, resource) {
        Evaluator::Pods => {
            let ends = is_alive(old, now) && !is_alive(new, now);
            ends || is_terminating(old) != is_terminating(new) || resources_change(old, new)
        }
        Evaluator::Services => {
            let kind = |service| Some(text(service, &["spec", "type"])).filter(|kind| matches!(*kind, "NodePort" | "LoadBalancer"));
            kind(old) != kind(new)
        }
        Evaluator::Claims => claim_may_free(new, old),
        Evaluator::Count(_) => false,
    }
}

/// Whether a container got other resources.
fn resources_change(old: &Value, new: &Value) -> bool {
    ["containerStatuses", "initContainerStatuses"].into_iter().any(|member| {
        list(old, &["status", member]).iter().any(|before| {
            let mut after = list(new, &["status", member]).iter().filter(|one| text(one, &["name"]) == text(before, &["name"]));
            after.next().is_some_and(|after| lookup(after, &["resources"]) != lookup(before, &["resources"]))
        })
    })
}
