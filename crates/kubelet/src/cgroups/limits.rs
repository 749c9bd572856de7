//! What a control group gives its processes (upstream cm/helpers_linux.go, node_container_manager_linux.go).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec};
use kube_rules::{Amounts, Quantity, pod_limits, pod_requests};

use crate::pod::resources::Kernel;

/// The least share of processors that a group has, and the most.
pub(crate) const LEAST_SHARES: u64 = 2;
const MOST_SHARES: u64 = 262_144;
/// The kernel's microseconds for which a quota of processor time is, and the least quota.
const PERIOD: u64 = 100_000;
const LEAST_QUOTA: i64 = 1000;
/// More huge pages than there are.
const UNBOUNDED: u64 = 1 << 62;
const HUGE_PAGES: &str = "hugepages-";

/// What is set in a control group; what is None stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Of processors, as version 1 counts them.
    pub shares: Option<u64>,
    /// Microseconds in each period; -1 for no bound.
    pub quota: Option<i64>,
    pub period: Option<u64>,
    /// Bytes.
    pub memory: Option<i64>,
    pub pids: Option<i64>,
    /// Processors, as `0-3,7`.
    pub cpus: Option<String>,
    /// Bytes of each size of huge pages; sizes that are not named have none.
    pub huge_pages: Option<BTreeMap<u64, u64>>,
}

/// Shares of so many thousandths of a processor.
pub(crate) fn shares(millis: i64) -> u64 {
    let shares = millis.max(0).unsigned_abs().saturating_mul(1024) / 1000;
    shares.clamp(LEAST_SHARES, MOST_SHARES)
}

fn quota(millis: i64, period: u64) -> i64 {
    if millis == 0 {
        return 0;
    }
    let period = i64::try_from(period).unwrap_or(i64::MAX);
    (millis.saturating_mul(period) / 1000).max(LEAST_QUOTA)
}

fn huge_pages(amounts: &Amounts) -> BTreeMap<u64, u64> {
    let mut all = BTreeMap::new();
    for (name, amount) in amounts {
        let size = name.strip_prefix(HUGE_PAGES).and_then(|size| Quantity::parse(size).ok());
        if let Some(size) = size.and_then(|size| u64::try_from(size.value()).ok()) {
            let bytes: &mut u64 = all.entry(size).or_default();
            *bytes = bytes.saturating_add(u64::try_from(amount.value()).unwrap_or(0));
        }
    }
    all
}

/// Whether each container is limited in a resource; an init container is with the sidecars before it.
fn all_limited(spec: &PodSpec, resource: &str) -> bool {
    let has = |c: &Container| {
        let limit = c.resources.as_ref().and_then(|resources| resources.limits.as_ref()?.get(resource));
        limit.and_then(|limit| Quantity::parse(&limit.0).ok()).is_some_and(|limit| !limit.is_zero())
    };
    let mut sidecars = false;
    let init = spec.init_containers.iter().flatten().all(|c| {
        let limited = has(c);
        sidecars |= limited && c.restart_policy.as_deref() == Some("Always");
        limited || sidecars
    });
    init && spec.containers.iter().all(has)
}

impl Limits {
    /// Of a pod (upstream `ResourceConfigForPod`).
    pub(crate) fn of_pod(spec: &PodSpec, kernel: &Kernel, pids: Option<i64>) -> Self {
        let (requests, limits) = (pod_requests(spec), pod_limits(spec));
        let pod_level = |resource: &str| {
            let limit = spec.resources.as_ref().and_then(|resources| resources.limits.as_ref()?.get(resource));
            limit.and_then(|limit| Quantity::parse(&limit.0).ok()).is_some_and(|limit| !limit.is_zero())
        };
        let class = kube_rules::qos_class(spec);
        let holds = |resource: &str| match class {
            "Guaranteed" => true,
            "Burstable" => all_limited(spec, resource) || pod_level(resource),
            _ => false,
        };
        let millis = |all: &Amounts| all.get("cpu").map_or(0, |amount| amount.milli_value());
        let period = u64::try_from(kernel.quota_period).ok().filter(|period| *period > 0).unwrap_or(PERIOD);
        let limited = holds("cpu");
        Limits {
            shares: Some(if class == "BestEffort" { LEAST_SHARES } else { shares(millis(&requests)) }),
            quota: limited.then(|| if kernel.no_quota { -1 } else { quota(millis(&limits), period) }),
            period: limited.then_some(period),
            memory: holds("memory").then(|| limits.get("memory").map_or(0, |amount| amount.value())),
            pids,
            cpus: None,
            huge_pages: Some(huge_pages(&requests)),
        }
    }

    /// Of what a node has for pods or keeps for others; with `compressible` only what a group may be short of for a while.
    pub(crate) fn of_amounts(amounts: &Amounts, compressible: bool) -> Self {
        let shares = amounts.get("cpu").map(|amount| shares(amount.milli_value()));
        if compressible {
            return Limits { shares, ..Self::default() };
        }
        let of = |name: &str| amounts.get(name).map(|amount| amount.value());
        Limits { shares, memory: of("memory"), pids: of("pid"), huge_pages: Some(huge_pages(amounts)), ..Self::default() }
    }

    /// Of a class of pods: each pod's group bounds its huge pages.
    pub(crate) fn of_class(shares: u64, memory: Option<i64>, sizes: &[u64]) -> Self {
        let huge_pages = sizes.iter().map(|size| (*size, UNBOUNDED)).collect();
        Limits { shares: Some(shares), memory, huge_pages: Some(huge_pages), ..Self::default() }
    }

    /// The least share alone: of what is about to end.
    pub(crate) fn least() -> Self {
        Limits { shares: Some(LEAST_SHARES), ..Self::default() }
    }
}

/// Memory that classes may use at most, of what a node has for pods, so that a part of what better classes request stays free
/// (upstream `setMemoryReserve`): (Burstable, BestEffort).
pub(crate) fn reserve(allocatable: i64, guaranteed: i64, burstable: i64, percent: i64) -> (i64, i64) {
    let part = |requests: i64| i64::try_from(i128::from(requests) * i128::from(percent) / 100).unwrap_or(i64::MAX);
    let of_burstable = allocatable.saturating_sub(part(guaranteed));
    (of_burstable, of_burstable.saturating_sub(part(burstable)))
}

#[cfg(test)]
mod tests;
