//! What a pod's status says of its containers together: resources (upstream kubelet_pods.go `convertToAPIPodLevelResourcesStatus`), and how
//! much of their messages it has room for.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container as Spec, PodSpec, PodStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kube_rules::{Amounts, Quantity, pod_limits, pod_requests};

use super::super::resize::Resources;

type List = BTreeMap<String, ApiQuantity>;

/// The largest request and limit of `cpu`, in thousandths, that a control group cannot tell from none.
const LEAST_SHARES: i64 = 2;
const LEAST_LIMIT: i64 = 10;

fn list(amounts: Amounts) -> List {
    let shown = |name: &str, amount: Quantity| match name {
        "cpu" => Quantity::from_millis(amount.milli_value()),
        _ => Quantity::from_bytes(amount.value()),
    };
    amounts.into_iter().map(|(name, amount)| (name.clone(), ApiQuantity(shown(&name, amount).to_string()))).collect()
}

fn some(list: List) -> Option<List> {
    (!list.is_empty()).then_some(list)
}

/// What the pod has of its node as a whole.
pub(super) fn allocated(spec: &PodSpec) -> Option<List> {
    some(list(pod_requests(spec)))
}

/// What holds for the pod as a whole: what is allocated, and once the API shows it running what its control group would say. `actuated` is
/// what the runtime was told of its containers.
pub(super) fn resources(spec: &PodSpec, is_running: bool, is_linux: bool, actuated: &Resources) -> ResourceRequirements {
    let own = spec.resources.clone().unwrap_or_default();
    if !is_running {
        return ResourceRequirements { claims: own.claims, requests: allocated(spec), limits: some(list(pod_limits(spec))) };
    }
    let told = with(spec, actuated);
    let (mut requested, mut limited) = (pod_requests(&told), pod_limits(&told));
    requested.retain(|name, _| matches!(name.as_str(), "cpu" | "memory"));
    limited.retain(|name, _| matches!(name.as_str(), "cpu" | "memory"));
    if is_linux {
        let shows = |name: &str, amount: &Quantity, least: i64| name != "cpu" || amount.milli_value() > least;
        requested.retain(|name, amount| shows(name, amount, LEAST_SHARES));
        limited.retain(|name, amount| is_limited(&told, name) && shows(name, amount, LEAST_LIMIT));
    }
    let over = |own: Option<List>, more: Amounts| {
        let mut all = own.unwrap_or_default();
        all.extend(list(more));
        some(all)
    };
    ResourceRequirements { claims: own.claims, requests: over(own.requests, requested), limits: over(own.limits, limited) }
}

fn with(spec: &PodSpec, resources: &Resources) -> PodSpec {
    let mut spec = spec.clone();
    for c in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        if let Some(told) = resources.get(&c.name) {
            c.resources = Some(told.clone());
        }
    }
    spec
}

/// Whether the control group of a pod limits a resource: the pod does, or each of its containers.
fn is_limited(spec: &PodSpec, name: &str) -> bool {
    let positive = |limits: Option<&List>| limits.and_then(|all| Quantity::parse(&all.get(name)?.0).ok()).is_some_and(|limit| !limit.is_zero());
    let own = |c: &Spec| positive(c.resources.as_ref().and_then(|resources| resources.limits.as_ref()));
    let mut sidecars = false;
    // Upstream counts an init container with the sidecars that run beside it.
    let mut inits = spec.init_containers.iter().flatten().map(|c| {
        sidecars |= c.restart_policy.as_deref() == Some("Always") && own(c);
        sidecars || own(c)
    });
    positive(spec.resources.as_ref().and_then(|resources| resources.limits.as_ref())) || (spec.containers.iter().all(own) && inits.all(|has| has))
}

/// Bytes that the termination messages of one pod have together.
const MESSAGES: usize = 12 << 10;

/// Gives each container its share of what a pod's messages may have (upstream: `normalizeStatus`).
pub(super) fn limit_messages(status: &mut PodStatus, containers: usize) {
    let share = MESSAGES / containers.max(1);
    let lists = [&mut status.init_container_statuses, &mut status.container_statuses, &mut status.ephemeral_container_statuses];
    let states = lists.into_iter().flatten().flatten().flat_map(|container| [&mut container.state, &mut container.last_state]);
    for message in states.flatten().filter_map(|state| state.terminated.as_mut()?.message.as_mut()) {
        message.truncate(message.floor_char_boundary(share));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_pod_says_what_it_has_as_a_whole() {
        let of = |requests: Value, limits: Value| json!({"name": "c", "image": "i", "resources": {"requests": requests, "limits": limits}});
        let full = of(json!({"cpu": "100m", "memory": "1Gi"}), json!({"cpu": "1", "memory": "2Gi"}));
        let small = of(json!({"cpu": "1m"}), json!({"cpu": "5m"}));
        let part = of(json!({"cpu": "100m", "ephemeral-storage": "1Gi"}), json!({"memory": "1Gi"}));
        for (what, spec, pending, running) in [
            ("nothing", json!({"containers": [{"name": "c"}]}), json!({}), json!({})),
            (
                "a sum, with overhead",
                json!({"containers": [full, full], "overhead": {"cpu": "50m"}}),
                json!({"requests": {"cpu": "250m", "memory": "2Gi"}, "limits": {"cpu": "2050m", "memory": "4Gi"}}),
                json!({"requests": {"cpu": "250m", "memory": "2Gi"}, "limits": {"cpu": "2050m", "memory": "4Gi"}}),
            ),
            (
                "limits that not every container has hold for none",
                json!({"containers": [full, part]}),
                json!({"requests": {"cpu": "200m", "ephemeral-storage": "1Gi", "memory": "2Gi"}, "limits": {"cpu": "1", "memory": "3Gi"}}),
                json!({"requests": {"cpu": "200m", "memory": "2Gi"}, "limits": {"memory": "3Gi"}}),
            ),
            (
                "the pod's own",
                json!({"containers": [{"name": "c"}], "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi", "hugepages-2Mi": "4Mi"}}}),
                json!({"requests": {"cpu": "1"}, "limits": {"hugepages-2Mi": "4Mi", "memory": "1Gi"}}),
                json!({"requests": {"cpu": "1"}, "limits": {"hugepages-2Mi": "4Mi", "memory": "1Gi"}}),
            ),
            (
                "too little for a control group",
                json!({"containers": [small]}),
                json!({"requests": {"cpu": "1m"}, "limits": {"cpu": "5m"}}),
                json!({}),
            ),
        ] {
            let spec: PodSpec = serde_json::from_value(spec).unwrap();
            assert_eq!(json!(resources(&spec, false, true, &Resources::new())), pending, "{what}, pending");
            assert_eq!(json!(resources(&spec, true, true, &Resources::new())), running, "{what}, running");
        }
    }

    #[test]
    fn a_resize_shows_when_the_runtime_knows_of_it() {
        let spec: PodSpec =
            serde_json::from_value(json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}}]})).unwrap();
        let before: Resources = serde_json::from_value(json!({"c": {"requests": {"cpu": "500m"}, "limits": {"cpu": "1"}}})).unwrap();
        let shown = |is_linux| json!(resources(&spec, true, is_linux, &before));
        let want = json!({"requests": {"cpu": "500m"}, "limits": {"cpu": "1"}});
        assert_eq!((shown(true), shown(false)), (want.clone(), want));
        assert_eq!(allocated(&spec).map(|all| json!(all)), Some(json!({"cpu": "1"})));
    }

    #[test]
    fn containers_share_the_room_for_messages() {
        let ended = |message: &str| {
            json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 1, "message": message}}, "lastState": {"terminated": {"exitCode": 1, "message": message}}})
        };
        let lengths = |message: &str, containers: usize| {
            let all = json!({"containerStatuses": [ended(message)], "initContainerStatuses": [ended(message)],
                "ephemeralContainerStatuses": [ended(message)]});
            let mut status: PodStatus = serde_json::from_value(all).unwrap();
            limit_messages(&mut status, containers);
            let lists = [status.container_statuses, status.init_container_statuses, status.ephemeral_container_statuses];
            let containers = lists.into_iter().flatten().flatten();
            let states = containers.flat_map(|c| [c.state.unwrap(), c.last_state.unwrap()]);
            states.map(|state| state.terminated.unwrap().message.unwrap().len()).collect::<Vec<_>>()
        };
        assert_eq!(lengths(&"x".repeat(4096), 3), [4096; 6]);
        assert_eq!(lengths(&"x".repeat(4096), 4), [3072; 6]);
        assert_eq!(lengths(&"ä".repeat(2048), 11), [1116; 6], "no letter is cut in two: the share is 1,117 bytes");
    }
}
