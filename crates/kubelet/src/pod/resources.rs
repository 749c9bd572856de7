//! Resources of containers as the runtime takes them.

use k8s_cri::v1::{LinuxContainerResources, WindowsContainerResources};
use k8s_openapi::api::core::v1::{Container, PodSpec};
use kube_rules::Quantity;

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
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    fn pod(spec: serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap()
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
