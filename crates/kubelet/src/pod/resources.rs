//! Resources of containers and sandboxes as the runtime takes them (upstream kuberuntime_container_linux.go, kuberuntime_sandbox_linux.go).

use std::collections::BTreeMap;

use k8s_cri::v1::{HugepageLimit, LinuxContainerResources, WindowsContainerResources};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kube_rules::{Quantity, pod_limits, pod_requests, static_pod};

/// What the kernel of a Linux node has for control groups of containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kernel {
    /// Control groups are those of version 2.
    pub unified: bool,
    /// All processes of a container end when its memory runs out, and not one of them.
    pub ends_whole: bool,
    /// Limits of `cpu` do not hold.
    pub no_quota: bool,
    /// Microseconds for which a quota of processor time is; 0 for the kernel's 100,000.
    pub quota_period: i64,
    /// Swap is counted.
    pub swap: bool,
    /// Bytes of swap that containers of Burstable pods share; 0 where no container swaps.
    pub shared_swap: u64,
    /// Sizes of its huge pages, in bytes.
    pub huge_pages: Vec<u64>,
}

/// The kernel's microseconds for which a quota of processor time is.
const PERIOD: i64 = 100_000;
/// The least quota, in microseconds.
const LEAST_QUOTA: i64 = 1000;

type List = BTreeMap<String, ApiQuantity>;

fn find(list: Option<&List>, name: &str) -> Option<Quantity> {
    Quantity::parse(&list?.get(name)?.0).ok()
}

fn limits(resources: Option<&ResourceRequirements>) -> Option<&List> {
    resources?.limits.as_ref()
}

fn requests(resources: Option<&ResourceRequirements>) -> Option<&List> {
    resources?.requests.as_ref()
}

/// A container's limit of `cpu` or `memory`; where it has none that of its pod.
fn limit(spec: &PodSpec, c: &Container, name: &str) -> Option<Quantity> {
    let own = find(limits(c.resources.as_ref()), name).filter(|limit| !limit.is_zero());
    own.or_else(|| find(limits(spec.resources.as_ref()), name)).filter(|limit| !limit.is_zero())
}

/// A container's request of memory in bytes.
fn memory_request(c: &Container) -> i64 {
    find(requests(c.resources.as_ref()), "memory").map_or(0, Quantity::value)
}

/// Shares, quota and memory limit (upstream `calculateLinuxResources`). Without a request the limit of `cpu` is one.
fn calculate(request: Option<Quantity>, limit: Option<Quantity>, memory: Option<Quantity>, kernel: &Kernel) -> LinuxContainerResources {
    let millis = request.or(limit).map_or(0, Quantity::milli_value);
    let period = if kernel.quota_period > 0 { kernel.quota_period } else { PERIOD };
    let quota = limit.map_or(0, Quantity::milli_value).saturating_mul(period) / 1000;
    let mut resources = LinuxContainerResources {
        cpu_shares: (millis.saturating_mul(1024) / 1000).clamp(2, 262_144),
        cpu_quota: if limit.is_none_or(Quantity::is_zero) || kernel.no_quota { 0 } else { quota.max(LEAST_QUOTA) },
        cpu_period: if kernel.no_quota { 0 } else { period },
        memory_limit_in_bytes: memory.map_or(0, Quantity::value),
        ..Default::default()
    };
    if kernel.unified && kernel.ends_whole {
        resources.unified.insert("memory.oom.group".to_owned(), "1".to_owned());
    }
    resources
}

/// Linux resources of a container: shares from requests, quota and memory from limits, swap where the node gives it.
pub(crate) fn linux(pod: &Pod, c: &Container, node_memory: u64, kernel: &Kernel) -> LinuxContainerResources {
    let none = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&none);
    let request = find(requests(c.resources.as_ref()), "cpu");
    let mut resources = calculate(request, limit(spec, c, "cpu"), limit(spec, c, "memory"), kernel);
    resources.oom_score_adj = oom_score_adj(pod, spec, c, node_memory);
    resources.hugepage_limits = huge_page_limits(spec, c, kernel);
    match (kernel.swap, kernel.unified) {
        (true, true) => {
            let swap = swap(pod, spec, c, node_memory, kernel.shared_swap);
            resources.unified.insert("memory.swap.max".to_owned(), swap.to_string());
        }
        (true, false) => resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes,
        (false, _) => {}
    }
    resources
}

/// Bytes that a container may swap: of the node's swap as much as it requests of the memory, where its pod is Burstable, nothing else depends
/// on it, and its limit is not its request (upstream `GetContainerSwapBehavior`, `calcSwapForBurstablePods`).
fn swap(pod: &Pod, spec: &PodSpec, c: &Container, node_memory: u64, shared: u64) -> u64 {
    let request = memory_request(c);
    let limit = find(limits(c.resources.as_ref()), "memory").map_or(0, Quantity::value);
    let burstable = kube_rules::qos_class(spec) == "Burstable" && !is_critical(pod, spec);
    match u64::try_from(request) {
        Ok(bytes) if burstable && request != limit && bytes <= node_memory && node_memory > 0 => {
            // As upstream, in floating point: other agents of the cluster give the same.
            (bytes as f64 / node_memory as f64 * shared as f64) as u64
        }
        _ => 0,
    }
}

/// Linux resources of a whole pod, which runtimes need that size a virtual machine for it (upstream `calculateSandboxResources`).
pub(crate) fn linux_sandbox(spec: &PodSpec, kernel: &Kernel) -> LinuxContainerResources {
    let spec = PodSpec { overhead: None, ..spec.clone() };
    let (requests, limits) = (pod_requests(&spec), pod_limits(&spec));
    calculate(requests.get("cpu").copied(), limits.get("cpu").copied(), limits.get("memory").copied(), kernel)
}

/// Of each amount the larger one; a limit of 0 is the largest.
pub(crate) fn larger(before: Option<&LinuxContainerResources>, now: LinuxContainerResources) -> LinuxContainerResources {
    let Some(before) = before else { return now };
    let limit = |a: i64, b: i64| if a == 0 || b == 0 { 0 } else { a.max(b) };
    LinuxContainerResources {
        cpu_shares: before.cpu_shares.max(now.cpu_shares),
        cpu_quota: limit(before.cpu_quota, now.cpu_quota),
        memory_limit_in_bytes: limit(before.memory_limit_in_bytes, now.memory_limit_in_bytes),
        ..now
    }
}

/// What the sandbox itself costs (upstream `convertOverheadToLinuxResources`).
pub(crate) fn linux_overhead(spec: &PodSpec, kernel: &Kernel) -> LinuxContainerResources {
    let Some(overhead) = &spec.overhead else { return LinuxContainerResources::default() };
    let of = |name: &str| Some(find(Some(overhead), name).unwrap_or(Quantity::from_units(0)));
    calculate(of("cpu"), of("cpu"), of("memory"), kernel)
}

/// What a container may have of each size of huge pages: nothing of those that neither it nor its pod names.
fn huge_page_limits(spec: &PodSpec, c: &Container, kernel: &Kernel) -> Vec<HugepageLimit> {
    let mut wanted = BTreeMap::new();
    for (name, amount) in limits(spec.resources.as_ref()).into_iter().chain(limits(c.resources.as_ref())).flatten() {
        let size = name.strip_prefix("hugepages-").and_then(|size| Quantity::parse(size).ok());
        if let (Some(size), Ok(amount)) = (size, Quantity::parse(&amount.0)) {
            wanted.insert(u64::try_from(size.value()).unwrap_or(0), u64::try_from(amount.value()).unwrap_or(0));
        }
    }
    let limit = |size: &u64| HugepageLimit { page_size: page_size(*size), limit: wanted.get(size).copied().unwrap_or(0) };
    kernel.huge_pages.iter().map(limit).collect()
}

/// `2MB`, as the kernel's control groups name a size.
pub(crate) fn page_size(bytes: u64) -> String {
    let (mut size, mut unit) = (bytes, 0);
    let units = ["B", "KB", "MB", "GB", "TB", "PB"];
    while size % 1024 == 0 && size > 0 && unit + 1 < units.len() {
        (size, unit) = (size / 1024, unit + 1);
    }
    format!("{size}{}", units[unit])
}

/// Whether a pod is critical for the cluster or of the node itself (upstream `IsCriticalPod`).
fn is_critical(pod: &Pod, spec: &PodSpec) -> bool {
    let source = pod.metadata.annotations.as_ref().and_then(|all| all.get(static_pod::SOURCE));
    spec.priority.is_some_and(|p| p >= 2_000_000_000) || source.is_some_and(|source| source != "api")
}

/// How soon the kernel ends a container when memory is short (upstream pkg/kubelet/qos).
fn oom_score_adj(pod: &Pod, spec: &PodSpec, c: &Container, node_memory: u64) -> i64 {
    if is_critical(pod, spec) && spec.priority_class_name.as_deref() == Some("system-node-critical") {
        return -997;
    }
    match kube_rules::qos_class(spec) {
        "Guaranteed" => return -997,
        "BestEffort" => return 1000,
        _ => {}
    }
    let score = |request: i64| {
        let share = 1000 * i128::from(request) / i128::from(node_memory.max(1));
        1000 - i64::try_from(share).unwrap_or(i64::MAX)
    };
    let more = of_no_container(spec);
    let mut adjust = score(memory_request(c).saturating_add(more));
    let sidecar = c.restart_policy.as_deref() == Some("Always") && spec.init_containers.iter().flatten().any(|init| init.name == c.name);
    if sidecar {
        // A sidecar outlives the containers that it serves.
        let least = spec.containers.iter().map(memory_request).min().unwrap_or(0);
        adjust = adjust.min(score(least.saturating_add(more)));
    }
    adjust.clamp(3, 999)
}

/// Each container's part of the pod's request of memory that no container requests.
fn of_no_container(spec: &PodSpec) -> i64 {
    let pod = find(requests(spec.resources.as_ref()), "memory").map_or(0, Quantity::value);
    if pod == 0 {
        return 0;
    }
    let containers = PodSpec { resources: None, overhead: None, ..spec.clone() };
    let requested = pod_requests(&containers).get("memory").map_or(0, |all| all.value());
    let count = spec.containers.len() + spec.init_containers.as_ref().map_or(0, Vec::len);
    pod.saturating_sub(requested) / i64::try_from(count.max(1)).unwrap_or(i64::MAX)
}

/// Windows resources: a CPU cap in ten-thousandths of the whole machine, and a memory limit.
/// Requests have no effect there.
pub(crate) fn windows(c: &Container, node_cpu_millis: i64) -> WindowsContainerResources {
    let limit = |name: &str| find(limits(c.resources.as_ref()), name).filter(|limit| !limit.is_zero());
    let cap = limit("cpu").map_or(0, |q| (10_000 * q.milli_value() / node_cpu_millis.max(1)).clamp(1, 10_000));
    WindowsContainerResources { cpu_maximum: cap, memory_limit_in_bytes: limit("memory").map_or(0, Quantity::value), ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const GI: u64 = 1 << 30;

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap()
    }

    fn container(resources: Value) -> Value {
        json!({"name": "c", "resources": resources})
    }

    /// The first container of a pod.
    fn of(spec: Value, kernel: &Kernel) -> LinuxContainerResources {
        let pod = pod(spec);
        linux(&pod, &pod.spec.as_ref().unwrap().containers[0], 16 * GI, kernel)
    }

    #[test]
    fn processor_time_and_memory() {
        let both = json!({"limits": {"cpu": "500m", "memory": "64Mi"}, "requests": {"cpu": "250m", "memory": "32Mi"}});
        let limits = json!({"limits": {"cpu": "1", "memory": "2Gi"}});
        for (what, spec, want) in [
            ("nothing", json!({"containers": [container(json!({}))]}), (2, 0, 0)),
            ("requests and limits", json!({"containers": [container(both.clone())]}), (256, 50_000, 64 << 20)),
            ("a limit is a request too", json!({"containers": [container(limits.clone())]}), (1024, 100_000, 2 << 30)),
            (
                "but not where the request is 0",
                json!({"containers": [container(json!({"limits": {"cpu": "1"}, "requests": {"cpu": "0"}}))]}),
                (2, 100_000, 0),
            ),
            ("the least quota", json!({"containers": [container(json!({"limits": {"cpu": "1m"}, "requests": {"cpu": "1m"}}))]}), (2, 1000, 0)),
            ("the pod's limits", json!({"containers": [container(json!({}))], "resources": limits}), (1024, 100_000, 2 << 30)),
            ("the container's count more", json!({"containers": [container(both)], "resources": limits}), (256, 50_000, 64 << 20)),
        ] {
            let l = of(spec, &Kernel::default());
            assert_eq!((l.cpu_shares, l.cpu_quota, l.memory_limit_in_bytes), want, "{what}");
            assert_eq!((l.cpu_period, l.memory_swap_limit_in_bytes, l.unified.len(), l.hugepage_limits.len()), (100_000, 0, 0, 0), "{what}");
        }
    }

    #[test]
    fn a_container_gets_no_swap_and_ends_as_a_whole() {
        let spec = json!({"containers": [container(json!({"limits": {"memory": "64Mi"}}))]});
        for (unified, ends_whole, swap, limit, want) in [
            (false, true, false, 0, json!({})),
            (false, true, true, 64 << 20, json!({})),
            (true, true, false, 0, json!({"memory.oom.group": "1"})),
            (true, false, false, 0, json!({})),
            (true, true, true, 0, json!({"memory.oom.group": "1", "memory.swap.max": "0"})),
        ] {
            let l = of(spec.clone(), &Kernel { unified, ends_whole, swap, ..Kernel::default() });
            assert_eq!((l.memory_swap_limit_in_bytes, json!(l.unified)), (limit, want), "{unified} {ends_whole} {swap}");
        }
    }

    #[test]
    fn quotas_can_be_switched_off() {
        let spec = json!({"containers": [container(json!({"limits": {"cpu": "500m"}}))]});
        let l = of(spec, &Kernel { no_quota: true, ..Kernel::default() });
        assert_eq!((l.cpu_shares, l.cpu_quota, l.cpu_period), (512, 0, 0));
    }

    #[test]
    fn quotas_are_for_the_period_of_the_node() {
        let spec = |cpu: &str| json!({"containers": [container(json!({"limits": {"cpu": cpu}}))]});
        for (cpu, quota_period, want) in
            [("500m", 0, (50_000, 100_000)), ("500m", 20_000, (10_000, 20_000)), ("1m", 1000, (1000, 1000)), ("0", 5000, (0, 5000))]
        {
            let l = of(spec(cpu), &Kernel { quota_period, ..Kernel::default() });
            assert_eq!((l.cpu_quota, l.cpu_period), want, "{cpu} {quota_period}");
        }
    }

    #[test]
    fn burstable_containers_swap_in_proportion_to_their_request() {
        let of_memory =
            |request: &str, limit: &str| json!({"name": "c", "resources": {"requests": {"memory": request}, "limits": {"memory": limit}}});
        let requests = container(json!({"requests": {"memory": "4Gi"}}));
        for (what, spec, want) in [
            ("a quarter of the memory", json!({"containers": [requests.clone()]}), 2 * GI),
            ("below its limit", json!({"containers": [of_memory("2Gi", "4Gi")]}), GI),
            ("as much as its limit", json!({"containers": [of_memory("2Gi", "2Gi"), {"name": "other"}]}), 0),
            ("no request", json!({"containers": [{"name": "c"}, requests.clone()]}), 0),
            ("BestEffort", json!({"containers": [{"name": "c"}]}), 0),
            ("more than the node has", json!({"containers": [container(json!({"requests": {"memory": "17Gi"}}))]}), 0),
            ("critical", json!({"containers": [requests.clone()], "priority": 2_000_000_000}), 0),
        ] {
            let kernel = Kernel { unified: true, swap: true, shared_swap: 8 * GI, ..Kernel::default() };
            assert_eq!(of(spec.clone(), &kernel).unified["memory.swap.max"], want.to_string(), "{what}");
            let first = Kernel { unified: false, ..kernel };
            assert!(of(spec, &first).unified.is_empty(), "{what}: not with control groups of version 1");
        }
    }

    #[test]
    fn huge_pages_that_nobody_asked_for_are_not_had() {
        let kernel = Kernel { huge_pages: vec![64 << 10, 2 << 20, GI], ..Kernel::default() };
        let shown =
            |spec: Value| -> Vec<String> { of(spec, &kernel).hugepage_limits.iter().map(|l| format!("{} {}", l.page_size, l.limit)).collect() };
        let pages = |amount: &str| json!({"limits": {"hugepages-2Mi": amount, "hugepages-16Mi": "1Gi"}});
        assert_eq!(shown(json!({"containers": [container(json!({}))]})), ["64KB 0", "2MB 0", "1GB 0"]);
        assert_eq!(shown(json!({"containers": [container(pages("4Mi"))]})), ["64KB 0", "2MB 4194304", "1GB 0"]);
        let both = json!({"containers": [container(pages("4Mi"))], "resources": {"limits": {"hugepages-1Gi": "3Gi", "hugepages-2Mi": "8Mi"}}});
        assert_eq!(shown(both), ["64KB 0", "2MB 4194304", "1GB 3221225472"]);
    }

    /// Values of upstream's pkg/kubelet/qos.
    #[test]
    fn who_ends_first_when_memory_is_short() {
        let memory = |amount: &str| container(json!({"requests": {"memory": amount}}));
        let full = container(json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}}));
        for (what, spec, want) in [
            ("BestEffort", json!({"containers": [container(json!({}))]}), 1000),
            ("Guaranteed", json!({"containers": [full]}), -997),
            ("Burstable", json!({"containers": [memory("4Gi")]}), 750),
            ("Burstable without memory", json!({"containers": [container(json!({"requests": {"cpu": "1"}}))]}), 999),
            ("all of it", json!({"containers": [memory("16Gi")]}), 3),
            (
                "critical for the node",
                json!({"containers": [memory("4Gi")], "priority": 2_000_001_000, "priorityClassName": "system-node-critical"}),
                -997,
            ),
            (
                "critical for the cluster",
                json!({"containers": [memory("4Gi")], "priority": 2_000_000_000, "priorityClassName": "system-cluster-critical"}),
                750,
            ),
            ("by name alone", json!({"containers": [memory("4Gi")], "priorityClassName": "system-node-critical"}), 750),
            ("a part of the pod's", json!({"containers": [memory("1Gi"), memory("1Gi")], "resources": {"requests": {"memory": "4Gi"}}}), 875),
        ] {
            assert_eq!(of(spec.clone(), &Kernel::default()).oom_score_adj, want, "{what}: {spec}");
        }
        let sidecar = json!({"name": "s", "restartPolicy": "Always", "resources": {"requests": {"memory": "1Gi"}}});
        let pod = pod(json!({"containers": [memory("4Gi"), memory("8Gi")], "initContainers": [sidecar]}));
        let sidecar = &pod.spec.as_ref().unwrap().init_containers.as_ref().unwrap()[0];
        assert_eq!(linux(&pod, sidecar, 16 * GI, &Kernel::default()).oom_score_adj, 750, "as the least of those that it serves");
    }

    #[test]
    fn sandboxes_have_the_sum_and_their_overhead() {
        let one = |cpu: &str, memory: &str| container(json!({"limits": {"cpu": cpu, "memory": memory}, "requests": {"cpu": "100m"}}));
        let with = pod(json!({"containers": [one("1", "1Gi"), one("500m", "1Gi")], "overhead": {"cpu": "250m", "memory": "128Mi"}}));
        let spec = with.spec.as_ref().unwrap();
        let (sum, overhead) = (linux_sandbox(spec, &Kernel::default()), linux_overhead(spec, &Kernel::default()));
        assert_eq!((sum.cpu_shares, sum.cpu_quota, sum.cpu_period, sum.memory_limit_in_bytes), (204, 150_000, 100_000, 2 << 30));
        assert_eq!((overhead.cpu_shares, overhead.cpu_quota, overhead.memory_limit_in_bytes), (256, 25_000, 128 << 20));
        let without = pod(json!({"containers": [container(json!({}))]}));
        let spec = without.spec.as_ref().unwrap();
        assert_eq!(linux_overhead(spec, &Kernel { unified: true, ..Kernel::default() }), LinuxContainerResources::default());
        let sum = linux_sandbox(spec, &Kernel { unified: true, ends_whole: true, swap: true, huge_pages: vec![GI], ..Kernel::default() });
        assert_eq!((sum.cpu_shares, sum.cpu_quota, json!(sum.unified)), (2, 0, json!({"memory.oom.group": "1"})));
        assert!(sum.hugepage_limits.is_empty());
    }

    #[test]
    fn a_pod_has_more_before_it_has_less() {
        let of = |shares, quota, memory| LinuxContainerResources {
            cpu_shares: shares,
            cpu_quota: quota,
            memory_limit_in_bytes: memory,
            ..LinuxContainerResources::default()
        };
        assert_eq!(larger(None, of(2, 0, 5)), of(2, 0, 5));
        assert_eq!(larger(Some(&of(4, 10, 5)), of(2, 20, 7)), of(4, 20, 7));
        assert_eq!(larger(Some(&of(2, 0, 5)), of(4, 20, 0)), of(4, 0, 0), "no limit is the largest");
    }

    #[test]
    fn windows_counts_limits_alone() {
        let p = pod(json!({"containers": [container(json!({"limits": {"cpu": "500m", "memory": "64Mi"}, "requests": {"cpu": "250m"}}))]}));
        let w = windows(&p.spec.as_ref().unwrap().containers[0], 8000);
        assert_eq!((w.cpu_maximum, w.memory_limit_in_bytes), (625, 64 << 20));
        let none = pod(json!({"containers": [{"name": "c"}]}));
        assert_eq!(windows(&none.spec.as_ref().unwrap().containers[0], 8000).cpu_maximum, 0);
    }
}
