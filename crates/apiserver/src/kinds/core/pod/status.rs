//! Pods: grace of a deletion, QoS class (pkg/registry/core/pod/strategy.go, pkg/apis/core/v1/helper/qos).

use crate::object;
use crate::validation::addresses::{self, Form};
use crate::validation::field::{Errors, Field};
use kube_rules::Quantity;
use kube_rules::qos::{RESOURCES, qos_class_of};
use serde_json::{Map, Value, json};

const DEFAULT_GRACE: i64 = 30;

/// How long a pod may take to stop: `podStrategy.CheckGracefulDelete`.
pub(super) fn grace(pod: &Value, asked: Option<i64>) -> i64 {
    let own = || object::integer(pod, &["spec", "terminationGracePeriodSeconds"]).unwrap_or(DEFAULT_GRACE);
    let grace = asked.unwrap_or_else(own);
    let unscheduled = object::text(pod, &["spec", "nodeName"]).is_empty();
    let over = matches!(object::text(pod, &["status", "phase"]), "Failed" | "Succeeded");
    if unscheduled || over {
        return 0;
    }
    // A negative period means "as short as can be".
    if grace < 0 { 1 } else { grace }
}

/// The status a new pod starts with.
pub(super) fn initial(pod: &Value) -> Value {
    let mut status = json!({"phase": "Pending", "qosClass": qos_class(pod)});
    if !object::list(pod, &["spec", "schedulingGates"]).is_empty() {
        // `applySchedulingGatedCondition`; the scheduler never looks at the pod meanwhile.
        status["conditions"] = json!([{
            "type": "PodScheduled", "status": "False", "lastProbeTime": null, "lastTransitionTime": object::now(),
            "reason": "SchedulingGated", "message": "Scheduling is blocked due to non-empty scheduling gates",
        }]);
    }
    status
}

/// What is wrong with the addresses of a pod and of its node (`validatePodIPs`, `validateHostIPs`).
pub(super) fn check_addresses(new: &Field, old: &Field, errors: &mut Errors) {
    let (status, before) = (new.get("status"), old.get("status"));
    for list in ["podIPs", "hostIPs"] {
        let all = status.get(list);
        let items = all.items();
        let (one, first) = (status.get("hostIP"), all.index(0).get("ip"));
        if list == "hostIPs" && !items.is_empty() && one.text() != first.text() {
            errors.invalid_value(&first, first.text(), "must be equal to `hostIP`");
        }
        let existing = before.get(list).items();
        for address in &items {
            let ip = address.get("ip");
            if !existing.iter().any(|old| old.get("ip").text() == ip.text()) {
                addresses::ip(ip.text(), Form::Any).into_iter().for_each(|problem| errors.invalid_value(address, ip.text(), problem));
            }
        }
        let texts: Vec<Field> = items.iter().map(|address| address.get("ip")).collect();
        if items.len() > 1 && (items.len() > 2 || !addresses::both_families(texts.iter().map(Field::text))) {
            // Upstream prints its internal struct, whose members have Go's names.
            let shown: Vec<Value> = texts.iter().map(|ip| json!({"IP": ip.text()})).collect();
            errors.invalid_value(&all, shown, "may specify no more than one IP for each IP family");
        }
    }
}

/// `podIP` and the first of `podIPs` are one; where they differ, the former counts, as older node agents write it alone.
pub(super) fn sync_addresses(pod: &mut Value) {
    let one = object::text(pod, &["status", "podIP"]).to_string();
    let first = object::list(pod, &["status", "podIPs"]).first().map(|first| object::text(first, &["ip"]).to_string());
    match first {
        Some(first) if one.is_empty() => object::map_mut(pod, "status").insert("podIP".into(), first.into()),
        Some(first) if first == one => return,
        None if one.is_empty() => return,
        _ => object::map_mut(pod, "status").insert("podIPs".into(), json!([{"ip": one}])),
    };
}

/// `ComputePodQOS`.
pub(super) fn qos_class(pod: &Value) -> &'static str {
    let amount = |resources: Option<&Value>, list: &str, name: &str| {
        let quantity = object::lookup(resources?, &[list, name])?;
        quantity.as_str().map_or_else(|| Quantity::parse(&quantity.to_string()), Quantity::parse).ok()
    };
    let bounds = |resources: Option<&Value>| RESOURCES.map(|name| (amount(resources, "requests", name), amount(resources, "limits", name)));
    let given = |resources: &&Value| ["requests", "limits"].iter().any(|list| object::lookup(resources, &[list]).is_some());
    if let Some(pod_level) = object::lookup(pod, &["spec", "resources"]).filter(given) {
        return qos_class_of([bounds(Some(pod_level))].into_iter());
    }
    let containers = object::list(pod, &["spec", "containers"]).iter().chain(object::list(pod, &["spec", "initContainers"]));
    qos_class_of(containers.map(|container| bounds(object::lookup(container, &["resources"]))))
}

/// Whether the generation rises: with the spec, but not when the pod is bound to a node, which nothing else can do to a stored pod.
pub(super) fn spec_changed(old: &Value, new: &Value) -> bool {
    const BOUND: &str = "nodeName";
    match (old.get("spec").and_then(Value::as_object), new.get("spec").and_then(Value::as_object)) {
        (Some(old), Some(new)) => {
            let rest = |spec: &Map<String, Value>| spec.len() - usize::from(spec.contains_key(BOUND));
            rest(old) != rest(new) || old.iter().any(|(name, value)| name != BOUND && new.get(name) != Some(value))
        }
        _ => old.get("spec").filter(|spec| !spec.is_null()) != new.get("spec").filter(|spec| !spec.is_null()),
    }
}

/// A status that does not say which generation it is of says what the old one said (`preserveOldObservedGeneration`).
pub(super) fn keep_observed(old: &Value, new: &mut Value) {
    const MEMBER: &str = "observedGeneration";
    let unset = |value: &Value| object::integer(value, &[MEMBER]).unwrap_or_default() == 0;
    let Some(status) = new.get_mut("status").filter(|status| status.is_object()) else { return };
    if let Some(before) = object::lookup(old, &["status", MEMBER]).filter(|_| unset(status)) {
        object::set(status, MEMBER, before.clone());
    }
    // Several conditions may have one type.
    let mut before: Vec<&Value> = object::list(old, &["status", "conditions"]).iter().collect();
    for condition in status.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(place) = before.iter().position(|own| own["type"] == condition["type"]) else { continue };
        let generation = before.remove(place).get(MEMBER);
        if let Some(generation) = generation.filter(|_| condition.is_object() && unset(condition)) {
            object::set(condition, MEMBER, generation.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::check::status_change;

    #[test]
    fn a_gated_pod_says_so_from_the_start() {
        let condition = |gates: Value| initial(&json!({"spec": {"schedulingGates": gates}})).pointer("/conditions/0").cloned().unwrap_or_default();
        let gated = condition(json!([{"name": "example.com/wait"}]));
        let said = ["type", "status", "reason", "message"].map(|member| gated[member].as_str().unwrap_or_default());
        assert_eq!(said, ["PodScheduled", "False", "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates"]);
        assert_eq!(condition(json!([])), Value::Null);
    }

    fn pod(resources: Value) -> Value {
        json!({"spec": {"containers": [{"name": "a", "resources": resources}]}})
    }

    #[test]
    fn qos_classes_are_upstream_s() {
        assert_eq!(qos_class(&pod(json!({}))), "BestEffort");
        assert_eq!(qos_class(&pod(json!({"requests": {"cpu": "0"}}))), "BestEffort");
        assert_eq!(qos_class(&pod(json!({"requests": {"cpu": "1"}}))), "Burstable");
        let full = json!({"cpu": "1", "memory": "1Gi"});
        assert_eq!(qos_class(&pod(json!({"requests": full, "limits": full}))), "Guaranteed");
        assert_eq!(qos_class(&pod(json!({"requests": {"cpu": "1"}, "limits": full}))), "Burstable");
        let pod_level = json!({"spec": {"resources": {"requests": full, "limits": full}, "containers": [{"name": "a"}]}});
        assert_eq!(qos_class(&pod_level), "Guaranteed", "pod-level resources decide alone");
        let equal = json!({"requests": {"cpu": "1000m", "memory": "1024Mi"}, "limits": full});
        assert_eq!(qos_class(&pod(equal)), "Guaranteed", "quantities are compared, not their texts");
    }

    #[test]
    fn a_binding_is_no_new_generation() {
        let pod = |spec: Value| json!({"spec": spec});
        let new = pod(json!({"containers": []}));
        assert!(!spec_changed(&new, &pod(json!({"containers": [], "nodeName": "n"}))));
        assert!(spec_changed(&new, &pod(json!({"containers": [], "activeDeadlineSeconds": 1}))));
    }

    #[test]
    fn a_status_keeps_the_generations_that_it_does_not_name() {
        let condition = |generation: Value| json!({"type": "Ready", "observedGeneration": generation});
        let old = json!({"status": {"observedGeneration": 3, "conditions": [condition(json!(3)), condition(json!(2))]}});
        let mut new = json!({"status": {"conditions": [{"type": "Ready"}, {"type": "Other"}, condition(json!(0)), {"type": "Ready"}]}});
        keep_observed(&old, &mut new);
        assert_eq!(new["status"]["observedGeneration"], 3);
        assert_eq!(new["status"]["conditions"], json!([condition(json!(3)), {"type": "Other"}, condition(json!(2)), {"type": "Ready"}]));
        let mut newer = json!({"status": {"observedGeneration": 4, "conditions": [condition(json!(4))]}});
        keep_observed(&old, &mut newer);
        assert_eq!(newer, json!({"status": {"observedGeneration": 4, "conditions": [condition(json!(4))]}}));
    }

    #[test]
    fn pods_have_one_address_of_each_family() {
        let of = |list: &str, ips: &[&str]| {
            let ips: Vec<Value> = ips.iter().map(|ip| json!({"ip": ip})).collect();
            let new = json!({"status": {list: ips, "hostIP": "10.0.0.1"}});
            status_change(check_addresses, &json!({"status": {list: [{"ip": "old"}]}}), &new)
        };
        for list in ["podIPs", "hostIPs"] {
            assert_eq!((of(list, &["10.0.0.1"]), of(list, &["10.0.0.1", "fd00::1"])), (String::new(), String::new()));
            assert_eq!(
                of(list, &["10.0.0.1", "10.0.0.2"]),
                format!(
                    "status.{list}: Invalid value: [{{\"IP\":\"10.0.0.1\"}},{{\"IP\":\"10.0.0.2\"}}]: may specify no more than one IP for each IP family"
                )
            );
            let malformed = of(list, &["10.0.0.1", "fd00::1", "x"]);
            assert!(malformed.contains(&format!("status.{list}[2]: Invalid value: \"x\": must be a valid IP address")), "{malformed}");
        }
        assert_eq!(of("podIPs", &["old"]), "", "what was there before may stay");
        assert_eq!(of("hostIPs", &["10.0.0.2"]), "status.hostIPs[0].ip: Invalid value: \"10.0.0.2\": must be equal to `hostIP`");
        let mut pod = json!({"status": {"podIP": "10.0.0.9", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}});
        sync_addresses(&mut pod);
        assert_eq!(pod["status"]["podIPs"], json!([{"ip": "10.0.0.9"}]));
        let mut pod = json!({"status": {"podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}});
        sync_addresses(&mut pod);
        assert_eq!(pod["status"]["podIP"], "10.0.0.1");
    }

    #[test]
    fn finished_and_unscheduled_pods_need_no_grace() {
        let running = json!({"spec": {"nodeName": "n"}, "status": {"phase": "Running"}});
        assert_eq!(grace(&running, None), 30);
        assert_eq!(grace(&running, Some(2)), 2);
        assert_eq!(grace(&running, Some(-1)), 1);
        assert_eq!(grace(&json!({"spec": {}}), Some(5)), 0);
        assert_eq!(grace(&json!({"spec": {"nodeName": "n"}, "status": {"phase": "Succeeded"}}), None), 0);
    }
}
