//! LimitRanger: defaults for containers, bounds of containers, pods and claims (plugin/pkg/admission/limitranger).

use crate::amounts::{Options, Side, of_pod};
use crate::refusal::aggregate;
use crate::value::{amounts, is_deleting, list, map_mut, text};
use crate::{Attributes, Operation, Refusal};
use kube_rules::{Amounts, Quantity};
use serde_json::Value;

const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// Values above are compared in units, others in thousandths.
const MAX_MILLI: i64 = i64::MAX / 1000;

/// Whether LimitRanges concern the request.
pub fn concerns(request: &Attributes<'_>) -> bool {
    let supported = match (request.group, request.resource, request.subresource) {
        ("", "pods", "resize") => request.operation == Operation::Update,
        ("", "pods", "") => request.operation == Operation::Create,
        ("", "persistentvolumeclaims", "") => matches!(request.operation, Operation::Create | Operation::Update),
        _ => false,
    };
    supported && !is_deleting(request.old_object())
}

/// Sets what containers leave open to the defaults of LimitRanges, and says so in an annotation. Only for pods that [`concerns`] takes.
pub fn set_defaults<'a>(ranges: impl IntoIterator<Item = &'a Value>, pod: &mut Value) {
    for range in ranges {
        let (mut requests, mut limits) = (Amounts::new(), Amounts::new());
        for limit in limits_of(range, "Container") {
            requests.extend(amounts(limit, &["defaultRequest"]));
            limits.extend(amounts(limit, &["default"]));
        }
        let mut said = Vec::new();
        for (member, what) in [("containers", "container"), ("initContainers", "init container")] {
            let containers = pod.get_mut("spec").and_then(|spec| spec.get_mut(member)).and_then(Value::as_array_mut);
            for container in containers.into_iter().flatten().filter(|container| container.is_object()) {
                let name = text(container, &["name"]).to_owned();
                let set_limits = fill(container, "limits", &limits);
                let set_requests = fill(container, "requests", &requests);
                for (names, side) in [(set_requests, "request"), (set_limits, "limit")] {
                    if !names.is_empty() {
                        said.push(format!("{} {side} for {what} {name}", names.join(", ")));
                    }
                }
            }
        }
        if !said.is_empty() {
            let value = format!("LimitRanger plugin set: {}", said.join("; "));
            map_mut(pod, &["metadata", "annotations"]).insert(ANNOTATION.into(), value.into());
        }
    }
}

/// Sets the amounts that are not there; returns their names in order.
fn fill(container: &mut Value, side: &str, defaults: &Amounts) -> Vec<String> {
    let missing: Vec<(&String, &Quantity)> =
        defaults.iter().filter(|(name, _)| container.pointer(&format!("/resources/{side}")).is_none_or(|map| map.get(*name).is_none())).collect();
    if missing.is_empty() {
        return Vec::new();
    }
    let map = map_mut(container, &["resources", side]);
    missing
        .into_iter()
        .map(|(name, quantity)| {
            map.insert(name.clone(), quantity.to_string().into());
            name.clone()
        })
        .collect()
}

fn limits_of<'a>(range: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    list(range, &["spec", "limits"]).iter().filter(move |limit| text(limit, &["type"]) == kind)
}

/// Checks an object that [`concerns`] takes against the bounds of LimitRanges; the first LimitRange that is violated refuses.
pub fn validate<'a>(ranges: impl IntoIterator<Item = &'a Value>, request: &Attributes<'_>) -> Result<(), Refusal> {
    let object = request.object();
    for range in ranges {
        let mut errors = Vec::new();
        if request.resource == "pods" {
            pod_errors(range, object, &mut errors);
        } else {
            claim_errors(range, object, &mut errors);
        }
        if !errors.is_empty() {
            return Err(Refusal::Forbidden(aggregate(&errors)));
        }
    }
    Ok(())
}

fn pod_errors(range: &Value, pod: &Value, errors: &mut Vec<String>) {
    for limit in list(range, &["spec", "limits"]) {
        match text(limit, &["type"]) {
            "Container" => {
                let containers = ["containers", "initContainers"].into_iter().flat_map(|member| list(pod, &["spec", member]));
                for container in containers {
                    Bounds { kind: "Container", requests: Side::Requests.of(container), limits: Side::Limits.of(container) }.check(limit, errors);
                }
            }
            "Pod" => {
                let of = |side| of_pod(pod, side, Options { statuses: false, overhead: false });
                Bounds { kind: "Pod", requests: of(Side::Requests), limits: of(Side::Limits) }.check(limit, errors);
            }
            _ => {}
        }
    }
}

fn claim_errors(range: &Value, claim: &Value, errors: &mut Vec<String>) {
    for limit in limits_of(range, "PersistentVolumeClaim") {
        let requests = amounts(claim, &["spec", "resources", "requests"]);
        let bounds = Bounds { kind: "PersistentVolumeClaim", requests, limits: Amounts::new() };
        errors.extend(amounts(limit, &["min"]).iter().filter_map(|(name, least)| bounds.below(name, *least)));
        errors.extend(amounts(limit, &["max"]).iter().filter_map(|(name, most)| bounds.request_above(name, *most)));
    }
}

/// What a container, pod or claim requests and may use.
struct Bounds {
    kind: &'static str,
    requests: Amounts,
    limits: Amounts,
}

/// Request, limit and bound in a precision that holds all three.
fn comparable(request: Quantity, limit: Quantity, bound: Quantity) -> (i64, i64, i64) {
    if [request, limit, bound].iter().all(|one| one.value() <= MAX_MILLI) {
        (request.milli_value(), limit.milli_value(), bound.milli_value())
    } else {
        (request.value(), limit.value(), bound.value())
    }
}

impl Bounds {
    fn check(&self, limit: &Value, errors: &mut Vec<String>) {
        errors.extend(amounts(limit, &["min"]).iter().filter_map(|(name, least)| self.below(name, *least)));
        errors.extend(amounts(limit, &["max"]).iter().filter_map(|(name, most)| self.above(name, *most)));
        errors.extend(amounts(limit, &["maxLimitRequestRatio"]).iter().filter_map(|(name, most)| self.ratio_above(name, *most)));
    }

    fn below(&self, name: &str, least: Quantity) -> Option<String> {
        let text = format!("minimum {name} usage per {} is {least}", self.kind);
        let Some(request) = self.requests.get(name) else { return Some(format!("{text}.  No request is specified")) };
        let limit = self.limits.get(name);
        let (requested, limited, bound) = comparable(*request, limit.copied().unwrap_or(Quantity::ZERO), least);
        if requested < bound {
            return Some(format!("{text}, but request is {request}"));
        }
        limit.filter(|_| limited < bound).map(|limit| format!("{text}, but limit is {limit}"))
    }

    fn above(&self, name: &str, most: Quantity) -> Option<String> {
        let text = format!("maximum {name} usage per {} is {most}", self.kind);
        let Some(limit) = self.limits.get(name) else { return Some(format!("{text}.  No limit is specified")) };
        let request = self.requests.get(name);
        let (requested, limited, bound) = comparable(request.copied().unwrap_or(Quantity::ZERO), *limit, most);
        if limited > bound {
            return Some(format!("{text}, but limit is {limit}"));
        }
        request.filter(|_| requested > bound).map(|request| format!("{text}, but request is {request}"))
    }

    fn request_above(&self, name: &str, most: Quantity) -> Option<String> {
        let text = format!("maximum {name} usage per {} is {most}", self.kind);
        let Some(request) = self.requests.get(name) else { return Some(format!("{text}.  No request is specified")) };
        let (requested, _, bound) = comparable(*request, Quantity::ZERO, most);
        if requested > bound { Some(format!("{text}, but request is {request}")) } else { None }
    }

    fn ratio_above(&self, name: &str, most: Quantity) -> Option<String> {
        let text = format!("{name} max limit to request ratio per {} is {most}", self.kind);
        let of = |amounts: &Amounts| amounts.get(name).copied().unwrap_or(Quantity::ZERO);
        let (requested, limited, _) = comparable(of(&self.requests), of(&self.limits), most);
        if requested == 0 {
            return Some(format!("{text}, but no request is specified or request is 0"));
        }
        if limited == 0 {
            return Some(format!("{text}, but no limit is specified or limit is 0"));
        }
        let ratio = limited as f64 / requested as f64;
        let exceeded = if most.value() <= MAX_MILLI { ratio * 1000.0 > most.milli_value() as f64 } else { ratio > most.value() as f64 };
        if exceeded { Some(format!("{text}, but provided ratio is {ratio:.6}")) } else { None }
    }
}

#[cfg(test)]
mod tests;
