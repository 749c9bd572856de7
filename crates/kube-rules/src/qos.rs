//! Quality-of-service class of a pod (upstream pkg/apis/core/v1/helper/qos).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::quantity::Quantity;

/// `Guaranteed`, `Burstable` or `BestEffort`. Pod-level resources, where present, decide alone.
pub fn qos_class(spec: &PodSpec) -> &'static str {
    if let Some(r) = &spec.resources
        && (r.requests.is_some() || r.limits.is_some())
    {
        return classify([(r.requests.as_ref(), r.limits.as_ref())].into_iter());
    }
    let all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    classify(all.map(|c: &Container| {
        let r = c.resources.as_ref();
        (r.and_then(|r| r.requests.as_ref()), r.and_then(|r| r.limits.as_ref()))
    }))
}

type Amounts<'a> = Option<&'a BTreeMap<String, ApiQuantity>>;

fn classify<'a>(all: impl Iterator<Item = (Amounts<'a>, Amounts<'a>)>) -> &'static str {
    let mut anything = false;
    let mut guaranteed = true;
    for (requests, limits) in all {
        for name in ["cpu", "memory"] {
            let request = amount(requests, name);
            let limit = amount(limits, name);
            anything |= request.is_some() || limit.is_some();
            // Defaulting copies limits to missing requests, so equal or absent both pass.
            guaranteed &= limit.is_some() && request.is_none_or(|r| Some(r) == limit);
        }
    }
    match (anything, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

fn amount(map: Amounts<'_>, name: &str) -> Option<Quantity> {
    let q = Quantity::parse(&map?.get(name)?.0).ok()?;
    (!q.is_zero()).then_some(q)
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
    fn table() {
        let full = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1000m", "memory": "1024Mi"}});
        let limits = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
        let cpu = json!({"requests": {"cpu": "1"}});
        let zero = json!({"requests": {"cpu": "0"}});
        assert_eq!(class(&[json!({})]), "BestEffort");
        assert_eq!(class(&[zero]), "BestEffort");
        assert_eq!(class(std::slice::from_ref(&full)), "Guaranteed");
        assert_eq!(class(&[limits]), "Guaranteed");
        assert_eq!(class(&[cpu]), "Burstable");
        assert_eq!(class(&[full, json!({})]), "Burstable");
    }
}
