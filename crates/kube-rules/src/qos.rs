//! Quality-of-service class of a pod (upstream pkg/apis/core/v1/helper/qos).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::quantity::Quantity;

/// The resources that decide the class.
pub const RESOURCES: [&str; 2] = ["cpu", "memory"];

/// Request and limit of each of [`RESOURCES`], of a container or of a pod as a whole.
pub type Bounds = [(Option<Quantity>, Option<Quantity>); 2];

/// `Guaranteed`, `Burstable` or `BestEffort`. Pod-level resources, where present, decide alone.
pub fn qos_class(spec: &PodSpec) -> &'static str {
    let bounds = |resources: Option<&ResourceRequirements>| {
        RESOURCES.map(|name| {
            let amount = |map: Option<&BTreeMap<String, ApiQuantity>>| Quantity::parse(&map?.get(name)?.0).ok();
            (amount(resources.and_then(|all| all.requests.as_ref())), amount(resources.and_then(|all| all.limits.as_ref())))
        })
    };
    let pod_level = spec.resources.as_ref().filter(|all| all.requests.is_some() || all.limits.is_some());
    if let Some(resources) = pod_level {
        return qos_class_of([bounds(Some(resources))].into_iter());
    }
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    qos_class_of(containers.map(|container| bounds(container.resources.as_ref())))
}

/// The class of a pod with these bounds: of all its containers and init containers, or of the pod as a whole where it has pod-level
/// resources. Amounts of zero count as missing.
pub fn qos_class_of(all: impl Iterator<Item = Bounds>) -> &'static str {
    let mut requests: [Option<Quantity>; 2] = [None; 2];
    let mut limits = requests;
    let mut guaranteed = true;
    let add = |sum: &mut Option<Quantity>, amount: Option<Quantity>| {
        if let Some(amount) = amount {
            *sum = Some(sum.map_or(amount, |sum| sum + amount));
        }
    };
    for bounds in all {
        for (index, (request, limit)) in bounds.into_iter().enumerate() {
            let given = |amount: Option<Quantity>| amount.filter(|amount| !amount.is_zero());
            guaranteed &= given(limit).is_some();
            add(&mut requests[index], given(request));
            add(&mut limits[index], given(limit));
        }
    }
    match (requests == [None; 2] && limits == [None; 2], guaranteed && requests == limits) {
        (true, _) => "BestEffort",
        (_, true) => "Guaranteed",
        _ => "Burstable",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn class(resources: &[serde_json::Value]) -> &'static str {
        let containers: Vec<_> = resources.iter().map(|r| json!({"name": "c", "resources": r})).collect();
        qos_class(&serde_json::from_value(json!({ "containers": containers })).unwrap())
    }

    #[test]
    fn qos_classes_follow_the_table() {
        let full = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1000m", "memory": "1024Mi"}});
        let limits = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
        let cpu = json!({"requests": {"cpu": "1"}});
        let zero = json!({"requests": {"cpu": "0"}});
        assert_eq!(class(&[json!({})]), "BestEffort");
        assert_eq!(class(&[zero]), "BestEffort");
        assert_eq!(class(std::slice::from_ref(&full)), "Guaranteed");
        // As upstream: API defaulting has made requests of limits where there are none, and only equal sums are guaranteed.
        assert_eq!(class(&[limits]), "Burstable");
        assert_eq!(class(&[json!({"requests": {"cpu": "1"}, "limits": {"cpu": "1", "memory": "1Gi"}})]), "Burstable");
        assert_eq!(class(&[cpu]), "Burstable");
        assert_eq!(class(&[full, json!({})]), "Burstable");
    }

    #[test]
    fn pod_level_resources_decide_alone() {
        let full = json!({"cpu": "1", "memory": "1Gi"});
        let pod = |resources: serde_json::Value| {
            qos_class(&serde_json::from_value(json!({"containers": [{"name": "c"}], "resources": resources})).unwrap())
        };
        assert_eq!(pod(json!({"requests": full, "limits": full})), "Guaranteed");
        assert_eq!(pod(json!({"requests": full})), "Burstable");
        assert_eq!(pod(json!({})), "BestEffort");
    }
}
