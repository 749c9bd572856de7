//! What one object uses (pkg/quota/v1/evaluator/core, apiserver/pkg/quota/v1/generic).

use crate::amounts::{Options, Side, add, has_pod_level, of_pod};
use crate::value::{amounts, list, lookup, text};
use crate::{Attributes, Operation};
use jiff::{SignedDuration, Timestamp};
use kube_rules::{Amounts, Quantity};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

const ONE: Quantity = Quantity::from_units(1);

const CLASS_SUFFIX: &str = ".storageclass.storage.k8s.io/";

/// What quotas count of pods beside huge pages and extended resources.
const POD_RESOURCES: [&str; 11] = [
    "count/pods",
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
];

/// A quota on one of these demands that every container says how much it needs.
const DEMANDED: [&str; 6] = ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];

const SERVICE_RESOURCES: [&str; 4] = ["count/services", "services", "services.nodeports", "services.loadbalancers"];

const CLAIM_RESOURCES: [&str; 2] = ["persistentvolumeclaims", "requests.storage"];

/// Resources that no quota counts, by group.
const IGNORED: [(&str, &str); 10] = [
    ("", "bindings"),
    ("", "componentstatuses"),
    ("", "events"),
    ("events.k8s.io", "events"),
    ("authentication.k8s.io", "tokenreviews"),
    ("authentication.k8s.io", "selfsubjectreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "localsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectrulesreviews"),
];

/// Whether no quota counts objects of this resource.
pub fn is_ignored(group: &str, resource: &str) -> bool {
    IGNORED.contains(&(group, resource))
}

/// Whether a name in `spec.hard` counts objects, such as `count/deployments.apps`.
pub fn is_countable(name: &str) -> bool {
    name.starts_with("count/")
}

/// `count/pods`, `count/deployments.apps`.
pub fn count_name(group: &str, resource: &str) -> String {
    if group.is_empty() { format!("count/{resource}") } else { format!("count/{resource}.{group}") }
}

/// How quotas measure objects of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evaluator {
    Pods,
    Services,
    Claims,
    /// Any other resource: objects are counted, under these names.
    Count(Vec<String>),
}

/// What an object of a resource uses. `now` decides whether a pod that is being deleted still counts.
pub fn usage(group: &str, resource: &str, object: &Value, now: Timestamp) -> Amounts {
    Evaluator::of(group, resource).usage(object, now)
}

impl Evaluator {
    /// The way to measure objects of a resource. Ask [`is_ignored`] first.
    pub fn of(group: &str, resource: &str) -> Self {
        match (group, resource) {
            ("", "pods") => Evaluator::Pods,
            ("", "services") => Evaluator::Services,
            ("", "persistentvolumeclaims") => Evaluator::Claims,
            ("", "configmaps" | "resourcequotas" | "replicationcontrollers" | "secrets") => {
                Evaluator::Count(vec![count_name(group, resource), resource.to_owned()])
            }
            _ => Evaluator::Count(vec![count_name(group, resource)]),
        }
    }

    /// Whether a request can change what is used.
    pub fn handles(&self, request: &Attributes<'_>) -> bool {
        let (create, update) = (request.operation == Operation::Create, request.operation == Operation::Update);
        let (new, old) = (request.object(), request.old_object());
        match (self, request.subresource) {
            (Evaluator::Pods, "") => create || (update && is_terminating(new) != is_terminating(old)),
            (Evaluator::Pods, "resize") => update,
            (Evaluator::Services | Evaluator::Claims, "") => create || update,
            (Evaluator::Claims, "status") => update && claim_may_free(new, old),
            (Evaluator::Count(_), "") => create,
            _ => false,
        }
    }

    /// Whether this evaluator measures the resource of a quota that has this name.
    pub fn measures(&self, name: &str) -> bool {
        match self {
            Evaluator::Pods => POD_RESOURCES.contains(&name) || is_huge_page(name) || name.starts_with("requests.hugepages-") || is_extended(name),
            Evaluator::Services => SERVICE_RESOURCES.contains(&name),
            Evaluator::Claims => {
                let of_class = |resource: &str| name.strip_suffix(resource).is_some_and(|class| class.ends_with(CLASS_SUFFIX));
                name == "count/persistentvolumeclaims" || CLAIM_RESOURCES.contains(&name) || CLAIM_RESOURCES.iter().any(|one| of_class(one))
            }
            Evaluator::Count(names) => names.iter().any(|one| one == name),
        }
    }

    /// What an object uses.
    pub fn usage(&self, object: &Value, now: Timestamp) -> Amounts {
        match self {
            Evaluator::Pods => of_pod_now(object, now),
            Evaluator::Services => of_service(object),
            Evaluator::Claims => of_claim(object),
            Evaluator::Count(names) => names.iter().map(|name| (name.clone(), ONE)).collect(),
        }
    }

    /// What an object lacks that quotas on these resources demand: upstream's sentence after `failed quota: NAME: `.
    pub(super) fn lacks<'a>(&self, measured: impl Iterator<Item = &'a str>, object: &Value) -> Option<String> {
        let spec = &object["spec"];
        if *self != Evaluator::Pods || has_pod_level(spec) {
            return None;
        }
        let demanded: Vec<&str> = measured.filter(|name| DEMANDED.contains(name)).collect();
        let mut missing = BTreeMap::<&str, BTreeSet<&str>>::new();
        for container in ["containers", "initContainers"].into_iter().flat_map(|member| list(spec, &[member])) {
            let has = compute(&Side::Requests.of(container), &Side::Limits.of(container));
            for name in demanded.iter().filter(|name| !has.contains_key(**name)) {
                missing.entry(name).or_default().insert(text(container, &["name"]));
            }
        }
        let parts: Vec<String> =
            missing.into_iter().map(|(name, who)| format!("{name} for: {}", who.into_iter().collect::<Vec<_>>().join(","))).collect();
        if parts.is_empty() { None } else { Some(format!("must specify {}", parts.join("; "))) }
    }
}

fn is_huge_page(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// A name in a quota for an extended resource, such as `requests.example.com/gpu`.
fn is_extended(name: &str) -> bool {
    let foreign = name.contains('/') && !name.contains("kubernetes.io/");
    name.starts_with("requests.") && (foreign || name.starts_with("requests.deviceclass.resource.kubernetes.io/"))
}

/// Whether a pod ends by itself after a while.
pub(super) fn is_terminating(pod: &Value) -> bool {
    lookup(pod, &["spec", "activeDeadlineSeconds"]).and_then(Value::as_i64).is_some_and(|seconds| seconds >= 0)
}

/// Whether a pod still uses what it asked for: not after its end, nor long after it should have been gone.
pub(super) fn is_alive(pod: &Value, now: Timestamp) -> bool {
    if matches!(text(pod, &["status", "phase"]), "Failed" | "Succeeded") {
        return false;
    }
    let deletion = text(pod, &["metadata", "deletionTimestamp"]).parse::<Timestamp>().ok();
    let grace = lookup(pod, &["metadata", "deletionGracePeriodSeconds"]).and_then(Value::as_i64);
    let end = deletion.zip(grace).and_then(|(deletion, grace)| deletion.checked_add(SignedDuration::from_secs(grace)).ok());
    end.is_none_or(|end| now <= end)
}

/// Requests and limits under the names that quotas have for them.
fn compute(requests: &Amounts, limits: &Amounts) -> Amounts {
    let mut result = Amounts::from([("pods".to_owned(), ONE)]);
    for (name, quantity) in requests {
        let plain = matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") || is_huge_page(name);
        let extended = (name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests."))
            || name.starts_with("deviceclass.resource.kubernetes.io/");
        if plain {
            result.insert(name.clone(), *quantity);
        }
        if plain || extended {
            result.insert(format!("requests.{name}"), *quantity);
        }
    }
    let limited = limits.iter().filter(|(name, _)| matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage"));
    result.extend(limited.map(|(name, quantity)| (format!("limits.{name}"), *quantity)));
    result
}

fn of_pod_now(pod: &Value, now: Timestamp) -> Amounts {
    let mut result = Amounts::from([("count/pods".to_owned(), ONE)]);
    if is_alive(pod, now) {
        let of = |side| of_pod(pod, side, Options { statuses: true, overhead: true });
        add(&mut result, &compute(&of(Side::Requests), &of(Side::Limits)));
    }
    result
}

fn of_service(service: &Value) -> Amounts {
    let ports = list(service, &["spec", "ports"]);
    let all = ports.len();
    let given = ports.iter().filter(|port| lookup(port, &["nodePort"]).and_then(Value::as_i64).is_some_and(|port| port != 0)).count();
    let allocates = lookup(service, &["spec", "allocateLoadBalancerNodePorts"]) != Some(&Value::Bool(false));
    let (node_ports, balancers) = match text(service, &["spec", "type"]) {
        "NodePort" => (all, 0),
        "LoadBalancer" if allocates => (all, 1),
        "LoadBalancer" => (given, 1),
        _ => (0, 0),
    };
    let units = |count: usize| Quantity::from_units(i64::try_from(count).unwrap_or(i64::MAX));
    [("count/services", 1), ("services", 1), ("services.loadbalancers", balancers), ("services.nodeports", node_ports)]
        .map(|(name, count)| (name.to_owned(), units(count)))
        .into()
}

fn of_claim(claim: &Value) -> Amounts {
    let class = lookup(claim, &["metadata", "annotations", "volume.beta.kubernetes.io/storage-class"])
        .or(lookup(claim, &["spec", "storageClassName"]))
        .and_then(Value::as_str)
        .unwrap_or_default();
    let storage = |path: &[&str]| amounts(claim, path).get("storage").copied();
    let requested = storage(&["spec", "resources", "requests"]);
    let allocated = storage(&["status", "allocatedResources"]);
    // The larger of both counts while a claim grows; without a request nothing does.
    let size = requested.map(|requested| whole(allocated.map_or(requested, |allocated| allocated.max(requested))));
    let mut result = Amounts::from([("persistentvolumeclaims".to_owned(), ONE), ("count/persistentvolumeclaims".to_owned(), ONE)]);
    result.extend(size.map(|size| ("requests.storage".to_owned(), size)));
    if !class.is_empty() {
        result.insert(format!("{class}{CLASS_SUFFIX}persistentvolumeclaims"), ONE);
        result.extend(size.map(|size| (format!("{class}{CLASS_SUFFIX}requests.storage"), size)));
    }
    result
}

/// Rounded up to whole bytes.
fn whole(quantity: Quantity) -> Quantity {
    let rounded = Quantity::from_units(quantity.value());
    if rounded == quantity { quantity } else { rounded }
}

/// Whether an update of a claim's status changes what quotas count.
pub(super) fn claim_may_free(new: &Value, old: &Value) -> bool {
    let allocated = |claim: &Value| amounts(claim, &["status", "allocatedResources"]).get("storage").copied();
    allocated(new) != allocated(old) || super::scopes::attributes_classes(new) != super::scopes::attributes_classes(old)
}
