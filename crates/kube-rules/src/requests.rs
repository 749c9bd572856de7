//! Resource requests of pods, and whether they fit on a node
//! (upstream: `component-helpers/resource` `PodRequests`, scheduler plug-in NodeResourcesFit).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::quantity::Quantity;

/// Quantities by resource name.
pub type Amounts = BTreeMap<String, Quantity>;

/// Whole numbers by resource name, as scheduling counts them: cpu in thousandths, everything else in units, each rounded up.
pub type Resources = BTreeMap<String, i64>;

/// Quantities of an API object. The API server refuses quantities that cannot be parsed; one that gets here is left out.
pub fn amounts(quantities: &BTreeMap<String, ApiQuantity>) -> Amounts {
    quantities.iter().filter_map(|(name, quantity)| Some((name.clone(), Quantity::parse(&quantity.0).ok()?))).collect()
}

/// Counts an amount of a resource: cpu in thousandths, everything else in units, rounded up.
pub fn count(name: &str, quantity: Quantity) -> i64 {
    if name == "cpu" { quantity.milli_value() } else { quantity.value() }
}

pub fn counts(amounts: &Amounts) -> Resources {
    amounts.iter().map(|(name, quantity)| (name.clone(), count(name, *quantity))).collect()
}

/// What a container requests. A resource with a limit alone is requested up to its limit, as API defaulting has it.
pub fn container_requests(container: &Container) -> Amounts {
    let Some(resources) = &container.resources else { return Amounts::new() };
    let mut requests = resources.limits.as_ref().map(amounts).unwrap_or_default();
    requests.extend(resources.requests.as_ref().map(amounts).unwrap_or_default());
    requests
}

/// What a pod requests of its node: its containers together with its sidecars, or more while an init container needs more; pod-level
/// requests for cpu, memory and huge pages replace the sum; overhead comes on top.
pub fn pod_requests(spec: &PodSpec) -> Amounts {
    pod_requests_with(spec, &Amounts::new())
}

/// The same, where each container that says nothing about a resource of `missing` counts with that amount
/// (upstream: `PodResourcesOptions.NonMissingContainerRequests`).
pub fn pod_requests_with(spec: &PodSpec, missing: &Amounts) -> Amounts {
    let of = |container: &Container| {
        let mut requests = missing.clone();
        requests.extend(container_requests(container));
        requests
    };
    let mut total = aggregate(spec, of);
    let pod_level = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref()).map(amounts).unwrap_or_default();
    total.extend(pod_level.into_iter().filter(|(name, _)| is_pod_level(name)));
    add(&mut total, &spec.overhead.as_ref().map(amounts).unwrap_or_default());
    total
}

/// What a pod is limited to, by the same rules. Overhead comes on top of what has a limit.
pub fn pod_limits(spec: &PodSpec) -> Amounts {
    let of = |container: &Container| container.resources.as_ref().and_then(|resources| resources.limits.as_ref()).map(amounts).unwrap_or_default();
    let mut total = aggregate(spec, of);
    let pod_level = spec.resources.as_ref().and_then(|resources| resources.limits.as_ref()).map(amounts).unwrap_or_default();
    total.extend(pod_level.into_iter().filter(|(name, _)| is_pod_level(name)));
    let mut overhead = spec.overhead.as_ref().map(amounts).unwrap_or_default();
    overhead.retain(|name, _| total.get(name).is_some_and(|limit| !limit.is_zero()));
    add(&mut total, &overhead);
    total
}

/// The containers together with the sidecars, or more while an init container needs more.
fn aggregate(spec: &PodSpec, of: impl Fn(&Container) -> Amounts) -> Amounts {
    let mut total = Amounts::new();
    for container in &spec.containers {
        add(&mut total, &of(container));
    }
    let (mut sidecars, mut init) = (Amounts::new(), Amounts::new());
    for container in spec.init_containers.iter().flatten() {
        let mut requests = of(container);
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut total, &requests);
            add(&mut sidecars, &requests);
            raise(&mut init, &sidecars);
        } else {
            add(&mut requests, &sidecars);
            raise(&mut init, &requests);
        }
    }
    raise(&mut total, &init);
    total
}

/// Upstream: `IsSupportedPodLevelResource`.
fn is_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

fn add(total: &mut Amounts, more: &Amounts) {
    for (name, quantity) in more {
        let sum = total.get(name).map_or(*quantity, |present| *present + *quantity);
        total.insert(name.clone(), sum);
    }
}

fn raise(total: &mut Amounts, least: &Amounts) {
    for (name, quantity) in least {
        if total.get(name).is_none_or(|present| present < quantity) {
            total.insert(name.clone(), *quantity);
        }
    }
}

/// Whether a resource is one that a node may have beside Kubernetes' own: a name with a domain, and not Kubernetes' (upstream
/// `IsExtendedResourceName`).
pub fn is_extended_resource(name: &str) -> bool {
    let Some((domain, rest)) = name.split_once('/') else { return false };
    if name.contains("kubernetes.io/") || name.starts_with("requests.") {
        return false;
    }
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let ends = |text: &str| text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.ends_with(|c: char| c.is_ascii_alphanumeric());
    let label = |label: &str| label.len() <= 63 && ends(label) && label.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    // Quotas name it with `requests.` before it, which counts to the domain.
    domain.len() + "requests.".len() <= 253 && domain.split('.').all(label) && rest.len() <= 63 && ends(rest) && rest.chars().all(inner)
}

/// A resource of which a node has too little left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    /// The resource.
    pub name: String,
    /// What the pod requests.
    pub requested: i64,
    /// What other pods have requested.
    pub used: i64,
    /// What the node has for pods.
    pub allocatable: i64,
}

/// Resources of which a node has too little left for a pod, in upstream's order: cpu, memory, ephemeral-storage, then the others by name.
/// Requests of zero always fit.
pub fn shortages(requests: &Resources, used: &Resources, allocatable: &Resources) -> Vec<Shortage> {
    let of = |resources: &Resources, name: &str| resources.get(name).copied().unwrap_or_default();
    let mut lacking: Vec<Shortage> = requests
        .iter()
        .filter(|(_, requested)| **requested > 0)
        .map(|(name, requested)| Shortage { name: name.clone(), requested: *requested, used: of(used, name), allocatable: of(allocatable, name) })
        .filter(|one| one.used.saturating_add(one.requested) > one.allocatable)
        .collect();
    let rank = |name: &str| ["cpu", "memory", "ephemeral-storage"].iter().position(|one| *one == name).unwrap_or(usize::MAX);
    lacking.sort_by_key(|one| rank(&one.name));
    lacking
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn container(cpu: &str, memory: &str, sidecar: bool) -> Value {
        let mut container = json!({"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}});
        if sidecar {
            container["restartPolicy"] = "Always".into();
        }
        container
    }

    #[test]
    fn extended_resources_have_a_domain_of_their_own() {
        for name in ["nvidia.com/gpu", "example.com/A_b.c-1", "a/b"] {
            assert!(is_extended_resource(name), "{name}");
        }
        let long = format!("{}.com/x", "a".repeat(64));
        let names =
            ["", "gpu", "kubernetes.io/gpu", "x.kubernetes.io/gpu", "requests.example.com/a", "a.com/", "/a", "a.com/b/c", "A.com/b", "a.com/-b"];
        for name in names.into_iter().chain([long.as_str(), "a..com/b"]) {
            assert!(!is_extended_resource(name), "{name}");
        }
    }

    fn requests(spec: Value) -> Amounts {
        pod_requests(&serde_json::from_value(spec).unwrap())
    }

    #[test]
    fn requests_are_upstream_s_sums() {
        for (what, containers, init, expected) in [
            ("sum of the containers", vec![container("1", "1Gi", false), container("500m", "1Gi", false)], vec![], (1500, 2 << 30)),
            (
                "largest init container",
                vec![container("1", "1Gi", false)],
                vec![container("2", "1Mi", false), container("1", "3Gi", false)],
                (2000, 3 << 30),
            ),
            (
                "sidecars run beside both",
                vec![container("1", "1Gi", false)],
                vec![container("1", "1Gi", true), container("3", "1Mi", false)],
                (4000, 2 << 30),
            ),
            (
                "a sidecar after an init container does not count for it",
                vec![container("1", "1Gi", false)],
                vec![container("3", "1Mi", false), container("1", "1Gi", true)],
                (3000, 2 << 30),
            ),
        ] {
            let requests = counts(&requests(json!({"containers": containers, "initContainers": init})));
            assert_eq!((requests["cpu"], requests["memory"]), expected, "{what}");
        }
    }

    #[test]
    fn overhead_comes_on_top() {
        let total = requests(json!({"containers": [container("1", "1Gi", false)], "overhead": {"cpu": "250m"}}));
        assert_eq!(total["cpu"].to_string(), "1250m");
    }

    #[test]
    fn pod_level_requests_replace_the_sum() {
        // Even where the sum is larger: upstream sets, it does not raise. Other resources have no pod level.
        let total = requests(json!({"containers": [container("2", "1Gi", false)], "overhead": {"cpu": "100m"},
            "resources": {"requests": {"cpu": "1", "ephemeral-storage": "1Gi"}, "limits": {"memory": "8Gi"}}}));
        assert_eq!(total["cpu"].to_string(), "1100m");
        assert_eq!(total["memory"].to_string(), "1Gi", "pod-level limits are no requests here; API defaulting makes them such");
        assert!(!total.contains_key("ephemeral-storage"));
    }

    #[test]
    fn limits_are_upstream_s_sums() {
        let limited = |cpu: &str, memory: &str| json!({"name": "c", "resources": {"limits": {"cpu": cpu, "memory": memory}}});
        let limits = |spec: Value| counts(&pod_limits(&serde_json::from_value(spec).unwrap()));
        let mut sidecar = limited("1", "1Gi");
        sidecar["restartPolicy"] = "Always".into();
        for (what, spec, cpu, memory) in [
            ("sum of the containers", json!({"containers": [limited("1", "1Gi"), limited("500m", "1Gi")]}), Some(1500), Some(2 << 30)),
            ("a container without", json!({"containers": [limited("1", "1Gi"), {"name": "c"}]}), Some(1000), Some(1 << 30)),
            (
                "sidecars and init containers",
                json!({"containers": [limited("1", "1Gi")], "initContainers": [sidecar, limited("3", "1Mi")]}),
                Some(4000),
                Some(2 << 30),
            ),
            ("the pod's own", json!({"containers": [limited("2", "1Gi")], "resources": {"limits": {"cpu": "1"}}}), Some(1000), Some(1 << 30)),
            (
                "overhead of what is limited",
                json!({"containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}}}], "overhead": {"cpu": "250m", "memory": "1Gi"}}),
                Some(1250),
                None,
            ),
        ] {
            let limits = limits(spec);
            assert_eq!((limits.get("cpu").copied(), limits.get("memory").copied()), (cpu, memory), "{what}");
        }
    }

    #[test]
    fn requests_default_to_limits() {
        let total =
            requests(json!({"containers": [{"name": "c", "resources": {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}}]}));
        assert_eq!((total["cpu"].to_string(), total["memory"].to_string()), ("1".into(), "1Gi".into()));
    }

    #[test]
    fn containers_without_requests_count_with_the_default() {
        let missing = Amounts::from([("cpu".into(), Quantity::from_millis(100)), ("memory".into(), Quantity::from_bytes(200 << 20))]);
        let of = |spec: Value| counts(&pod_requests_with(&serde_json::from_value(spec).unwrap(), &missing));
        let total = of(json!({"containers": [{"name": "a"}, {"name": "b", "resources": {"requests": {"cpu": "1"}}}]}));
        assert_eq!((total["cpu"], total["memory"]), (1100, 400 << 20));
        let total = of(json!({"containers": [{"name": "a"}], "initContainers": [{"name": "i", "resources": {"requests": {"cpu": "3"}}}]}));
        assert_eq!((total["cpu"], total["memory"]), (3000, 200 << 20));
    }

    #[test]
    fn sums_are_rounded_once() {
        let half = |amount: &str| json!({"name": "c", "resources": {"requests": {"cpu": amount}}});
        assert_eq!(counts(&requests(json!({"containers": [half("500u"), half("500u")]})))["cpu"], 1);
    }

    #[test]
    fn shortages_are_in_upstream_s_order() {
        let all = |list: &[(&str, i64)]| list.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect::<Resources>();
        let names = |requests: &[(&str, i64)], used: &[(&str, i64)], allocatable: &[(&str, i64)]| -> Vec<String> {
            shortages(&all(requests), &all(used), &all(allocatable)).into_iter().map(|one| one.name).collect()
        };
        let node = [("cpu", 2000), ("memory", 100), ("ephemeral-storage", 100)];
        assert!(names(&[("cpu", 1500), ("memory", 100)], &[("cpu", 500)], &node).is_empty());
        assert_eq!(names(&[("cpu", 1501)], &[("cpu", 500)], &node), ["cpu"]);
        assert_eq!(
            names(&[("a/gpu", 1), ("cpu", 9000), ("ephemeral-storage", 101), ("memory", 101)], &[], &node),
            ["cpu", "memory", "ephemeral-storage", "a/gpu"]
        );
        assert!(names(&[("a/gpu", 0), ("cpu", 0)], &[("cpu", 9000)], &node).is_empty(), "requests of zero fit an overcommitted node");
    }
}
