//! Requests of a pod and what they become at the runtime.

use std::collections::BTreeMap;

use k8s_cri::v1::{LinuxContainerResources, WindowsContainerResources};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kube_rules::Quantity;

/// Amounts by resource name.
pub(crate) type Amounts = BTreeMap<String, Quantity>;

fn amounts(map: Option<&BTreeMap<String, ApiQuantity>>) -> Amounts {
    map.into_iter().flatten().filter_map(|(k, q)| Some((k.clone(), Quantity::parse(&q.0).ok()?))).collect()
}

fn requests_of(r: Option<&ResourceRequirements>) -> Amounts {
    let mut out = amounts(r.and_then(|r| r.limits.as_ref()));
    out.extend(amounts(r.and_then(|r| r.requests.as_ref())));
    out
}

fn add(into: &mut Amounts, more: &Amounts) {
    for (name, q) in more {
        let sum = into.get(name).copied().unwrap_or(Quantity::ZERO) + *q;
        into.insert(name.clone(), sum);
    }
}

fn raise(into: &mut Amounts, other: &Amounts) {
    for (name, q) in other {
        if into.get(name).is_none_or(|have| have < q) {
            into.insert(name.clone(), *q);
        }
    }
}

/// What a pod asks of the node: containers and sidecars together, or the largest moment of the
/// init phase, and overhead (upstream component-helpers resource.PodRequests).
pub(crate) fn pod_requests(pod: &Pod) -> Amounts {
    let Some(spec) = &pod.spec else {
        return Amounts::new();
    };
    let mut total = Amounts::new();
    for c in &spec.containers {
        add(&mut total, &requests_of(c.resources.as_ref()));
    }
    let mut sidecars = Amounts::new();
    let mut peak = Amounts::new();
    for c in spec.init_containers.iter().flatten() {
        let mut moment = requests_of(c.resources.as_ref());
        if c.restart_policy.as_deref() == Some("Always") {
            add(&mut sidecars, &moment);
            add(&mut total, &moment);
            moment = sidecars.clone();
        } else {
            add(&mut moment, &sidecars);
        }
        raise(&mut peak, &moment);
    }
    raise(&mut total, &peak);
    raise(&mut total, &requests_of(spec.resources.as_ref()));
    add(&mut total, &amounts(spec.overhead.as_ref()));
    total
}

/// A container's limit or request of `cpu` or `memory`, None when absent or zero.
fn amount(c: &Container, limits: bool, name: &str) -> Option<Quantity> {
    let r = c.resources.as_ref()?;
    let map = if limits { r.limits.as_ref() } else { r.requests.as_ref() };
    let q = Quantity::parse(&map?.get(name)?.0).ok()?;
    (!q.is_zero()).then_some(q)
}

/// Linux resources: shares from requests, quota and memory from limits.
pub(crate) fn linux(spec: &PodSpec, c: &Container, node_memory: u64) -> LinuxContainerResources {
    let limit = amount(c, true, "cpu");
    let request = amount(c, false, "cpu").or(limit);
    let shares = request.map_or(2, |q| (q.milli_value() * 1024 / 1000).clamp(2, 262_144));
    let quota = limit.map_or(0, |q| (q.milli_value() * 100).max(1000));
    LinuxContainerResources {
        cpu_shares: shares,
        cpu_quota: quota,
        cpu_period: if quota > 0 { 100_000 } else { 0 },
        memory_limit_in_bytes: amount(c, true, "memory").map_or(0, Quantity::value),
        oom_score_adj: oom_score_adj(spec, c, node_memory),
        ..Default::default()
    }
}

fn oom_score_adj(spec: &PodSpec, c: &Container, node_memory: u64) -> i64 {
    if spec.priority.is_some_and(|p| p >= 2_000_000_000) {
        return -997;
    }
    match kube_rules::qos_class(spec) {
        "Guaranteed" => -997,
        "BestEffort" => 1000,
        _ => {
            let request = amount(c, false, "memory").map_or(0, Quantity::value);
            let share = 1000 * i128::from(request) / i128::from(node_memory.max(1));
            (1000 - share as i64).clamp(3, 999)
        }
    }
}

/// Windows resources: a CPU cap in ten-thousandths of the whole machine, and a memory limit.
/// Requests have no effect there.
pub(crate) fn windows(c: &Container, node_cpu_millis: i64) -> WindowsContainerResources {
    let cap = amount(c, true, "cpu").map_or(0, |q| (10_000 * q.milli_value() / node_cpu_millis.max(1)).clamp(1, 10_000));
    WindowsContainerResources { cpu_maximum: cap, memory_limit_in_bytes: amount(c, true, "memory").map_or(0, Quantity::value), ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(spec: serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap()
    }

    fn cpu(c: &str, always: bool) -> serde_json::Value {
        let mut v = json!({"name": "c", "resources": {"requests": {"cpu": c}}});
        if always {
            v["restartPolicy"] = "Always".into();
        }
        v
    }

    #[test]
    fn requests() {
        for (spec, want) in [
            (json!({"containers": [cpu("1", false), cpu("500m", false)]}), "1500m"),
            (json!({"containers": [cpu("1", false)], "initContainers": [cpu("3", false)]}), "3"),
            (json!({"containers": [cpu("1", false)], "initContainers": [cpu("2", true), cpu("3", false)]}), "5"),
            (json!({"containers": [cpu("1", false)], "initContainers": [cpu("3", false), cpu("1", true)]}), "3"),
            (json!({"containers": [cpu("1", false)], "overhead": {"cpu": "250m"}}), "1250m"),
        ] {
            assert_eq!(pod_requests(&pod(spec.clone()))["cpu"].to_string(), want, "{spec}");
        }
    }

    #[test]
    fn runtime_values() {
        let p = pod(json!({"containers": [{"name": "c", "resources": {
            "limits": {"cpu": "500m", "memory": "64Mi"}, "requests": {"cpu": "250m", "memory": "32Mi"}}}]}));
        let spec = p.spec.as_ref().unwrap();
        let l = linux(spec, &spec.containers[0], 16 << 30);
        assert_eq!((l.cpu_shares, l.cpu_quota, l.memory_limit_in_bytes), (256, 50_000, 64 << 20));
        assert_eq!(l.oom_score_adj, 999);
        let w = windows(&spec.containers[0], 8000);
        assert_eq!((w.cpu_maximum, w.memory_limit_in_bytes), (625, 64 << 20));
        let none = pod(json!({"containers": [{"name": "c"}]}));
        let spec = none.spec.as_ref().unwrap();
        assert_eq!(windows(&spec.containers[0], 8000).cpu_maximum, 0);
        assert_eq!(linux(spec, &spec.containers[0], 1).oom_score_adj, 1000);
    }
}
