//! Tests of usage, scopes, checks, reservations and totals: upstream's cases.

use super::*;
use crate::amounts::print;
use crate::test_requests::{ready, request};
use crate::{Attributes, Refusal};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::sync::Mutex;

const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

fn used(resource: &str, object: &Value) -> String {
    print(&usage("", resource, object, NOW))
}

fn pod(requests: Value, limits: Value) -> Value {
    json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "resources": {"requests": requests, "limits": limits}}]}})
}

#[test]
fn pods_use_what_they_request() {
    for (object, expected) in [
        (pod(json!({}), json!({})), "count/pods=1,pods=1"),
        (
            pod(json!({"cpu": "1", "memory": "1Gi"}), json!({"cpu": "2"})),
            "count/pods=1,cpu=1,limits.cpu=2,memory=1Gi,pods=1,requests.cpu=1,requests.memory=1Gi",
        ),
        (
            pod(json!({"ephemeral-storage": "32Mi"}), json!({"ephemeral-storage": "64Mi"})),
            "count/pods=1,ephemeral-storage=32Mi,limits.ephemeral-storage=64Mi,pods=1,requests.ephemeral-storage=32Mi",
        ),
        (pod(json!({"hugepages-2Mi": "100Mi"}), json!({})), "count/pods=1,hugepages-2Mi=100Mi,pods=1,requests.hugepages-2Mi=100Mi"),
        (pod(json!({"example.com/dongle": "3"}), json!({"example.com/dongle": "3"})), "count/pods=1,pods=1,requests.example.com/dongle=3"),
        (
            json!({"spec": {"overhead": {"cpu": "1"}, "initContainers": [{"name": "a", "resources": {"requests": {"cpu": "3"}, "limits": {"cpu": "3"}}}],
                "containers": [{"name": "b", "resources": {"requests": {"cpu": "1"}}}, {"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}),
            "count/pods=1,cpu=4,limits.cpu=4,pods=1,requests.cpu=4",
        ),
        (
            json!({"spec": {"resources": {"requests": {"cpu": "100m"}}, "containers": [{"name": "b", "resources": {"requests": {"cpu": "1"}}}]}}),
            "count/pods=1,cpu=100m,pods=1,requests.cpu=100m",
        ),
        (json!({"spec": {}, "status": {"phase": "Succeeded"}}), "count/pods=1"),
        (json!({"metadata": {"deletionTimestamp": "2027-01-15T07:59:00Z", "deletionGracePeriodSeconds": 30}}), "count/pods=1"),
        (json!({"metadata": {"deletionTimestamp": "2027-01-15T07:59:45Z", "deletionGracePeriodSeconds": 30}}), "count/pods=1,pods=1"),
    ] {
        assert_eq!(used("pods", &object), expected, "{object}");
    }
}

#[test]
fn resizes_count_the_larger_side() {
    let resized = |reason: &str, running: &str| {
        let mut pod = pod(json!({"cpu": "100m"}), json!({"cpu": "200m"}));
        pod["status"] = json!({"conditions": [{"type": "PodResizePending", "reason": reason}],
            "containerStatuses": [{"name": "c", "allocatedResources": {"cpu": "120m"}, "resources": {"requests": {"cpu": running}, "limits": {"cpu": "150m"}}}]});
        let all = usage("", "pods", &pod, NOW);
        (all["cpu"].to_string(), all["limits.cpu"].to_string())
    };
    assert_eq!(resized("", "150m"), ("150m".into(), "200m".into()));
    assert_eq!(resized("Deferred", "50m"), ("120m".into(), "200m".into()));
    assert_eq!(resized("Infeasible", "50m"), ("120m".into(), "150m".into()), "what was asked for in vain does not count");
}

#[test]
fn services_use_ports_and_balancers() {
    let ports = json!([{"port": 1, "nodePort": 30001}, {"port": 2}]);
    for (spec, expected) in [
        (json!({"type": "ClusterIP", "ports": ports}), "count/services=1,services=1,services.loadbalancers=0,services.nodeports=0"),
        (json!({"type": "NodePort", "ports": ports}), "count/services=1,services=1,services.loadbalancers=0,services.nodeports=2"),
        (json!({"type": "LoadBalancer", "ports": ports}), "count/services=1,services=1,services.loadbalancers=1,services.nodeports=2"),
        (
            json!({"type": "LoadBalancer", "ports": ports, "allocateLoadBalancerNodePorts": false}),
            "count/services=1,services=1,services.loadbalancers=1,services.nodeports=1",
        ),
    ] {
        assert_eq!(used("services", &json!({"spec": spec})), expected);
    }
}

#[test]
fn claims_use_storage_of_their_class() {
    let claim = |class: Value, allocated: Value| {
        json!({"metadata": {}, "spec": {"storageClassName": class, "resources": {"requests": {"storage": "10Gi"}}},
            "status": {"allocatedResources": {"storage": allocated}}})
    };
    assert_eq!(
        used("persistentvolumeclaims", &claim(Value::Null, Value::Null)),
        "count/persistentvolumeclaims=1,persistentvolumeclaims=1,requests.storage=10Gi"
    );
    assert_eq!(
        used("persistentvolumeclaims", &claim("gold".into(), "20Gi".into())),
        "count/persistentvolumeclaims=1,gold.storageclass.storage.k8s.io/persistentvolumeclaims=1,gold.storageclass.storage.k8s.io/requests.storage=20Gi,persistentvolumeclaims=1,requests.storage=20Gi"
    );
    let mut fraction = claim(Value::Null, Value::Null);
    fraction["spec"]["resources"]["requests"]["storage"] = "1234500m".into();
    assert_eq!(usage("", "persistentvolumeclaims", &fraction, NOW)["requests.storage"].to_string(), "1235");
    fraction["metadata"]["annotations"] = json!({"volume.beta.kubernetes.io/storage-class": "old"});
    assert!(used("persistentvolumeclaims", &fraction).contains("old.storageclass.storage.k8s.io/persistentvolumeclaims=1"));
}

#[test]
fn other_objects_are_counted() {
    let count = |group, resource| print(&usage(group, resource, &json!({}), NOW));
    assert_eq!(count("apps", "deployments"), "count/deployments.apps=1");
    assert_eq!(count("", "configmaps"), "configmaps=1,count/configmaps=1");
    assert_eq!(count("example.com", "widgets"), "count/widgets.example.com=1");
    assert!(is_ignored("", "events") && is_ignored("events.k8s.io", "events") && !is_ignored("", "pods"));
}

#[test]
fn evaluators_measure_their_names() {
    for (resource, name, expected) in [
        ("pods", "requests.cpu", true),
        ("pods", "hugepages-1Gi", true),
        ("pods", "requests.hugepages-1Gi", true),
        ("pods", "requests.example.com/gpu", true),
        ("pods", "example.com/gpu", false),
        ("pods", "services", false),
        ("persistentvolumeclaims", "gold.storageclass.storage.k8s.io/requests.storage", true),
        ("persistentvolumeclaims", "gold.storageclass.storage.k8s.io/cpu", false),
        ("persistentvolumeclaims", "requests.storage", true),
        ("services", "services.nodeports", true),
        ("secrets", "secrets", true),
        ("secrets", "count/secrets", true),
        ("secrets", "count/configmaps", false),
    ] {
        assert_eq!(Evaluator::of("", resource).measures(name), expected, "{resource} {name}");
    }
}

#[test]
fn scopes_select_pods() {
    let selects = |quota: Value, spec: Value| matches_scopes(&json!({"spec": quota}), &Evaluator::Pods, &json!({"spec": spec}));
    let class = |operator: &str, values: Value| json!({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": operator, "values": values}]}});
    let high = || json!({"priorityClassName": "high"});
    let busy = || json!({"containers": [{"resources": {"requests": {"cpu": "1"}}}]});
    let elsewhere = || json!({"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"podAffinityTerm": {"namespaceSelector": {}}}]}}});
    for (quota, spec, expected) in [
        (json!({}), json!({}), true),
        (json!({"scopes": ["Terminating"]}), json!({"activeDeadlineSeconds": 0}), true),
        (json!({"scopes": ["NotTerminating"]}), json!({"activeDeadlineSeconds": 0}), false),
        (json!({"scopes": ["BestEffort"]}), json!({"containers": [{}]}), true),
        (json!({"scopes": ["BestEffort"]}), busy(), false),
        (json!({"scopes": ["NotBestEffort", "NotTerminating"]}), busy(), true),
        (json!({"scopes": ["PriorityClass"]}), json!({}), false),
        (class("Exists", Value::Null), high(), true),
        (class("DoesNotExist", Value::Null), high(), false),
        (class("DoesNotExist", Value::Null), json!({}), true),
        (class("In", json!(["high", "low"])), high(), true),
        (class("NotIn", json!(["low"])), high(), true),
        (class("In", json!(["low"])), high(), false),
        (json!({"scopes": ["CrossNamespacePodAffinity"]}), elsewhere(), true),
        (json!({"scopes": ["CrossNamespacePodAffinity"]}), json!({}), false),
        (json!({"scopes": ["VolumeAttributesClass"]}), json!({}), false),
    ] {
        assert_eq!(selects(quota.clone(), spec.clone()), expected, "{quota} {spec}");
    }
    let claim = json!({"spec": {"volumeAttributesClassName": "slow"}, "status": {"modifyVolumeStatus": {"targetVolumeAttributesClassName": "fast"}}});
    let of = |values: Value| {
        let quota =
            json!({"spec": {"scopeSelector": {"matchExpressions": [{"scopeName": "VolumeAttributesClass", "operator": "In", "values": values}]}}});
        matches_scopes(&quota, &Evaluator::Claims, &claim)
    };
    assert!(of(json!(["fast"])) && of(json!(["slow"])) && !of(json!(["other"])));
}

fn quota(hard: Value, used: Value) -> Value {
    json!({"metadata": {"name": "quota", "namespace": "test", "resourceVersion": "1"}, "spec": {"hard": hard}, "status": {"hard": hard, "used": used}})
}

/// What a quota counts after a request, or why it is refused.
fn after(quota: &Value, request: &Attributes<'_>) -> String {
    match check(std::slice::from_ref(quota), request, NOW) {
        Ok(changed) => changed.first().map(|quota| print(&crate::value::amounts(quota, &["status", "used"]))).unwrap_or_default(),
        Err(Refusal::Forbidden(why)) => why,
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn creations_are_charged_or_refused() {
    let small = pod(json!({"cpu": "100m", "memory": "2Gi"}), json!({}));
    let large = pod(json!({"cpu": "3", "memory": "2Gi"}), json!({}));
    let full = quota(
        json!({"cpu": "3", "memory": "100Gi", "pods": "5", "services": "1"}),
        json!({"cpu": "1", "memory": "50Gi", "pods": "3", "services": "0"}),
    );
    assert_eq!(after(&full, &request("pods", &small, None)), "cpu=1100m,memory=52Gi,pods=4,services=0");
    assert_eq!(after(&full, &request("pods", &large, None)), "exceeded quota: quota, requested: cpu=3, used: cpu=1, limited: cpu=3");
    assert_eq!(after(&full, &request("pods/binding", &large, None)), "");
    assert_eq!(after(&full, &request("events", &large, None)), "");
    let unlimited = pod(json!({}), json!({}));
    assert_eq!(after(&full, &request("pods", &unlimited, None)), "failed quota: quota: must specify cpu for: c; memory for: c");
    let mut own_level = unlimited.clone();
    own_level["spec"]["resources"] = json!({"requests": {"cpu": "1"}});
    assert_eq!(after(&full, &request("pods", &own_level, None)), "cpu=2,memory=50Gi,pods=4,services=0", "pod-level resources suffice");
    let unknown = quota(json!({"cpu": "3", "pods": "5"}), json!({"cpu": "1"}));
    assert_eq!(after(&unknown, &request("pods", &small, None)), "status unknown for quota: quota, resources: cpu,pods");
    let negative = pod(json!({"cpu": "-1", "memory": "1"}), json!({}));
    assert_eq!(after(&full, &request("pods", &negative, None)), "quota usage is negative for resource(s): cpu,requests.cpu");
    let count = quota(json!({"count/deployments.apps": "2"}), json!({"count/deployments.apps": "2"}));
    assert_eq!(
        after(&count, &request("deployments.apps", &small, None)),
        "exceeded quota: quota, requested: count/deployments.apps=1, used: count/deployments.apps=2, limited: count/deployments.apps=2"
    );
    let over = quota(json!({"services": "1", "pods": "10"}), json!({"services": "4", "pods": "1"}));
    assert_eq!(after(&over, &request("pods", &small, None)), "pods=2,services=4", "what is exceeded already and not asked for does not refuse");
}

#[test]
fn updates_are_charged_for_growth() {
    let service =
        |kind: &str, version: &str| json!({"metadata": {"name": "s", "resourceVersion": version}, "spec": {"type": kind, "ports": [{"port": 80}]}});
    let services = quota(
        json!({"services": "10", "services.loadbalancers": "10", "services.nodeports": "10"}),
        json!({"services": "1", "services.loadbalancers": "1", "services.nodeports": "0"}),
    );
    let (balancer, node_port, plain) = (service("LoadBalancer", "1"), service("NodePort", "1"), service("ClusterIP", "1"));
    assert_eq!(after(&services, &request("services", &node_port, Some(&plain))), "services=1,services.loadbalancers=1,services.nodeports=1");
    assert_eq!(after(&services, &request("services", &plain, Some(&balancer))), "", "what shrinks is the controller's");
    let created = service("NodePort", "");
    assert_eq!(after(&services, &request("services", &node_port, Some(&created))), "services=2,services.loadbalancers=1,services.nodeports=1");
    let mut ending = pod(json!({}), json!({}));
    ending["metadata"]["resourceVersion"] = "1".into();
    let running = ending.clone();
    ending["spec"]["activeDeadlineSeconds"] = 30.into();
    let mut terminating = quota(json!({"pods": "1"}), json!({"pods": "1"}));
    terminating["spec"]["scopes"] = json!(["Terminating"]);
    assert_eq!(
        after(&terminating, &request("pods", &ending, Some(&running))),
        "exceeded quota: quota, requested: pods=1, used: pods=1, limited: pods=1",
        "a pod that comes under a quota counts as a whole"
    );
    assert_eq!(after(&terminating, &request("pods", &running, Some(&running))), "");
    let claim = |size: &str| json!({"metadata": {"resourceVersion": "1"}, "spec": {"resources": {"requests": {"storage": size}}}});
    let storage = quota(json!({"requests.storage": "100Gi"}), json!({"requests.storage": "95Gi"}));
    assert_eq!(after(&storage, &request("persistentvolumeclaims", &claim("14Gi"), Some(&claim("10Gi")))), "requests.storage=99Gi");
    assert_eq!(
        after(&storage, &request("persistentvolumeclaims", &claim("16Gi"), Some(&claim("10Gi")))),
        "exceeded quota: quota, requested: requests.storage=6Gi, used: requests.storage=95Gi, limited: requests.storage=100Gi"
    );
}

/// Quotas of which somebody else writes the first some times.
struct Memory {
    quotas: Mutex<Vec<Value>>,
    races: Mutex<usize>,
}

impl Quotas for Memory {
    fn list(&self, _namespace: &str) -> Vec<Value> {
        self.quotas.lock().unwrap().clone()
    }

    async fn update_status(&self, quota: Value) -> Result<(), UpdateError> {
        let mut races = self.races.lock().unwrap();
        let mut quotas = self.quotas.lock().unwrap();
        let stored = quotas.iter_mut().find(|one| one["metadata"]["name"] == quota["metadata"]["name"]).ok_or(UpdateError::Gone)?;
        if *races > 0 {
            *races -= 1;
            return Err(UpdateError::Conflict);
        }
        *stored = quota;
        Ok(())
    }
}

#[test]
fn reservations_raise_usage_once_and_survive_races() {
    let small = pod(json!({}), json!({}));
    let pods =
        |used: &str, races: usize| Memory { quotas: Mutex::new(vec![quota(json!({"pods": "2"}), json!({"pods": used}))]), races: Mutex::new(races) };
    let reserve = |memory: &Memory, dry_run: bool| {
        let mut request = request("pods", &small, None);
        request.dry_run = dry_run;
        ready(Reservations::default().reserve(memory, &request, NOW))
    };
    let used = |memory: &Memory| memory.list("test")[0]["status"]["used"]["pods"].clone();
    let memory = pods("0", 3);
    assert_eq!((reserve(&memory, false), used(&memory)), (Ok(()), json!("1")));
    assert_eq!((reserve(&memory, true), used(&memory)), (Ok(()), json!("1")));
    assert_eq!((reserve(&memory, false), used(&memory)), (Ok(()), json!("2")));
    assert!(matches!(reserve(&memory, true), Err(Refusal::Forbidden(why)) if why.starts_with("exceeded quota: quota, ")));
    let unlucky = pods("0", 4);
    let lost = reserve(&unlucky, false).unwrap_err();
    assert_eq!(
        lost.to_string(),
        "Operation cannot be fulfilled on resourcequotas \"quota\": the object has been modified; please apply your changes to the latest version and try again"
    );
    assert_eq!(used(&unlucky), json!("0"));
}

#[test]
fn totals_count_all_objects() {
    let hard = json!({"pods": "10", "requests.cpu": "5", "secrets": "3", "count/deployments.apps": "1", "services": "1"});
    let quota = json!({"spec": {"hard": hard}});
    let (pods, secrets) = ([pod(json!({"cpu": "1"}), json!({})), pod(json!({"cpu": "500m"}), json!({}))], [json!({})]);
    let objects = [
        Objects { group: "", resource: "pods", items: &pods },
        Objects { group: "", resource: "secrets", items: &secrets },
        Objects { group: "apps", resource: "deployments", items: &[] },
    ];
    assert_eq!(print(&total(&quota, &objects, NOW)), "count/deployments.apps=0,pods=2,requests.cpu=1500m,secrets=1");
    let ending = json!({"spec": {"hard": {"pods": "1"}, "scopes": ["Terminating"]}});
    assert_eq!(print(&total(&ending, &objects, NOW)), "pods=0");
}

#[test]
fn updates_that_free_something_are_noticed() {
    let frees = |resource: &str, old: Value, new: Value| may_free("", resource, &old, &new, NOW);
    assert!(frees("pods", json!({}), json!({"status": {"phase": "Failed"}})));
    assert!(!frees("pods", json!({"status": {"phase": "Failed"}}), json!({"status": {"phase": "Failed"}})));
    assert!(frees("pods", json!({}), json!({"spec": {"activeDeadlineSeconds": 1}})));
    let status = |cpu: &str| json!({"status": {"containerStatuses": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}});
    assert!(frees("pods", status("2"), status("3")) && !frees("pods", status("2"), status("2")));
    assert!(frees("services", json!({"spec": {"type": "NodePort"}}), json!({"spec": {"type": "ClusterIP"}})));
    assert!(!frees("services", json!({"spec": {"type": "ExternalName"}}), json!({"spec": {"type": "ClusterIP"}})));
    assert!(frees("persistentvolumeclaims", json!({}), json!({"status": {"currentVolumeAttributesClassName": "a"}})));
    assert!(!frees("configmaps", json!({}), json!({"data": {"a": "b"}})));
}
