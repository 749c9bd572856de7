//! Names of resources: which ones quotas and limits know (pkg/apis/core/helper).

use crate::validation::names;

/// What quotas count or add up.
const QUOTA: [&str; 19] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "persistentvolumeclaims",
    "configmaps",
    "services.nodeports",
    "services.loadbalancers",
];

fn huge_pages(name: &str) -> bool {
    name.starts_with("hugepages-") || name.starts_with("requests.hugepages-")
}

/// Whether quotas know the resource.
pub(super) fn is_quota(name: &str) -> bool {
    QUOTA.contains(&name) || huge_pages(name)
}

/// Whether the server knows the resource.
pub(super) fn is_standard(name: &str) -> bool {
    name == "storage" || is_quota(name)
}

/// Whether the resource comes in whole units.
pub(super) fn is_integer(name: &str) -> bool {
    let counted = !name.contains(['.', '-']) && !matches!(name, "cpu" | "memory");
    (QUOTA.contains(&name) && (counted || name.starts_with("services."))) || is_extended(name)
}

/// Whether the resource is one of somebody's own domain.
pub(super) fn is_extended(name: &str) -> bool {
    !is_native(name) && !name.starts_with("requests.") && names::qualified(&format!("requests.{name}")).is_empty()
}

pub(super) fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Whether limits may be above requests.
pub(super) fn may_overcommit(name: &str) -> bool {
    is_native(name) && !name.starts_with("hugepages-")
}
