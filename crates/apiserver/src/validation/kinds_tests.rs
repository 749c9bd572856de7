//! What is wrong with storage, classes, daemon sets and budgets, in upstream's words.

use super::tests::{problems, updated};
use serde_json::{Value, json};

fn changed(group: &str, plural: &str, old: &Value, pointer: &str, value: Value) -> String {
    updated(group, plural, old.clone(), &[(pointer, value)])
}

fn volume() -> Value {
    json!({"metadata": {"name": "v"}, "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
        "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": "D:/", "type": ""}}})
}

#[test]
fn volumes_are_checked() {
    let affinity =
        json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n"]}]}]}});
    let cases = [
        (vec![], ""),
        (vec![("/spec/accessModes", json!([]))], "spec.accessModes: Required value"),
        (
            vec![("/spec/accessModes", json!(["ReadWriteMost"]))],
            "spec.accessModes: Unsupported value: \"ReadWriteMost\": supported values: \"ReadOnlyMany\", \"ReadWriteMany\", \"ReadWriteOnce\", \
             \"ReadWriteOncePod\"",
        ),
        (vec![("/spec/capacity", json!({"storage": "0"}))], "spec.capacity[storage]: Invalid value: \"0\": must be greater than zero"),
        (vec![("/spec/hostPath", Value::Null)], "spec: Required value: must specify a volume type"),
        (vec![("/spec/local", json!({"path": "C:/x"}))], "spec.local: Forbidden: may not specify more than 1 volume type"),
        (
            vec![("/spec/hostPath", Value::Null), ("/spec/local", json!({"path": "C:/x"}))],
            "spec.nodeAffinity: Required value: Local volume requires node affinity",
        ),
        (vec![("/spec/hostPath", Value::Null), ("/spec/local", json!({"path": "C:/x"})), ("/spec/nodeAffinity", affinity)], ""),
        (vec![("/spec/nodeAffinity", json!({}))], "spec.nodeAffinity.required: Required value: must specify required node constraints"),
        (vec![("/spec/volumeMode", json!("Tape"))], "spec.volumeMode: Unsupported value: \"Tape\": supported values: \"Block\", \"Filesystem\""),
    ];
    for (changes, expected) in cases {
        assert_eq!(problems("", "persistentvolumes", volume(), &changes), expected, "{changes:?}");
    }
    let moved = changed("", "persistentvolumes", &volume(), "/spec/hostPath/path", json!("E:/"));
    assert!(moved.starts_with("spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation\n"), "{moved}");
    assert_eq!(changed("", "persistentvolumes", &volume(), "/spec/claimRef", json!({"name": "c", "namespace": "default"})), "");
}

fn claim() -> Value {
    json!({"metadata": {"name": "c", "namespace": "default"}, "status": {"phase": "Bound", "capacity": {"storage": "2Gi"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "volumeName": "v", "storageClassName": "s", "resources": {"requests": {"storage": "2Gi"}}}})
}

#[test]
fn claims_are_checked() {
    let cases = [
        ("/spec/accessModes", json!([]), "spec.accessModes: Required value: at least 1 access mode is required"),
        ("/spec/resources", json!({}), "spec.resources[storage]: Required value"),
        (
            "/spec/accessModes",
            json!(["ReadWriteOnce", "ReadWriteOncePod"]),
            "spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes",
        ),
    ];
    for (pointer, value, expected) in cases {
        assert_eq!(problems("", "persistentvolumeclaims", claim(), &[(pointer, value.clone())]), expected, "{pointer} {value}");
    }
    let of = |pointer: &str, value: Value| changed("", "persistentvolumeclaims", &claim(), pointer, value);
    assert_eq!(of("/spec/resources/requests/storage", json!("3Gi")), "", "a bound claim may grow");
    assert_eq!(
        of("/spec/resources/requests/storage", json!("1Gi")),
        "spec.resources.requests.storage: Forbidden: field can not be less than status.capacity"
    );
    assert!(of("/spec/storageClassName", json!("t")).starts_with("spec: Forbidden: spec is immutable after creation except resources.requests and"));
    let mut fresh = claim();
    fresh["spec"].as_object_mut().unwrap().retain(|member, _| !matches!(member.as_str(), "volumeName" | "storageClassName"));
    fresh["status"] = json!({"phase": "Pending"});
    assert_eq!(changed("", "persistentvolumeclaims", &fresh, "/spec/volumeName", json!("v")), "");
    assert_eq!(changed("", "persistentvolumeclaims", &fresh, "/spec/storageClassName", json!("s")), "", "a late default class");
}

#[test]
fn classes_are_checked() {
    let storage = json!({"metadata": {"name": "s"}, "provisioner": "mullion.io/local", "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"});
    assert_eq!(problems("storage.k8s.io", "storageclasses", storage.clone(), &[]), "");
    assert_eq!(problems("storage.k8s.io", "storageclasses", storage.clone(), &[("/provisioner", json!(""))]), "provisioner: Required value");
    assert_eq!(
        changed("storage.k8s.io", "storageclasses", &storage, "/provisioner", json!("other")),
        "provisioner: Forbidden: updates to provisioner are forbidden."
    );
    assert_eq!(
        changed("storage.k8s.io", "storageclasses", &storage, "/volumeBindingMode", json!("WaitForFirstConsumer")),
        "volumeBindingMode: Invalid value: \"WaitForFirstConsumer\": field is immutable"
    );
    let priority = json!({"metadata": {"name": "p"}, "value": 10, "preemptionPolicy": "Never"});
    assert_eq!(
        problems("scheduling.k8s.io", "priorityclasses", priority.clone(), &[("/value", json!(1_000_000_001))]),
        "value: Forbidden: maximum allowed value of a user defined priority is 1000000000"
    );
    assert_eq!(
        problems("scheduling.k8s.io", "priorityclasses", priority.clone(), &[("/metadata/name", json!("system-x"))]),
        "metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error: system-x is not a known system \
         priority class"
    );
    assert_eq!(changed("scheduling.k8s.io", "priorityclasses", &priority, "/value", json!(11)), "value: Forbidden: may not be changed in an update.");
    let runtime = json!({"metadata": {"name": "r"}, "handler": "runhcs-wcow-hypervisor"});
    assert_eq!(problems("node.k8s.io", "runtimeclasses", runtime.clone(), &[]), "");
    assert!(problems("node.k8s.io", "runtimeclasses", runtime.clone(), &[("/handler", json!("a.b"))]).contains("must not contain dots"));
    assert_eq!(
        changed("node.k8s.io", "runtimeclasses", &runtime, "/handler", json!("other")),
        "handler: Invalid value: \"other\": field is immutable"
    );
}

#[test]
fn daemon_sets_and_budgets_are_checked() {
    let mut set = json!({"metadata": {"name": "d", "namespace": "default"}, "spec": {"selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    crate::kinds::by_resource("apps", "v1", "daemonsets").unwrap().apply_defaults(&mut set);
    assert_eq!(set["spec"]["updateStrategy"], json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}));
    let cases = [
        ("/spec/selector", json!({}), "spec.selector: Invalid value: {}: empty selector is invalid for daemonset"),
        (
            "/spec/updateStrategy/rollingUpdate/maxSurge",
            json!(1),
            "spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: 1: may not be set when maxUnavailable is non-zero",
        ),
        (
            "/spec/updateStrategy/rollingUpdate/maxUnavailable",
            json!(0),
            "spec.updateStrategy.rollingUpdate.maxUnavailable: Required value: cannot be 0 when maxSurge is 0",
        ),
        (
            "/spec/template/spec/restartPolicy",
            json!("Never"),
            "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
        ),
    ];
    for (pointer, value, expected) in cases {
        assert_eq!(problems("apps", "daemonsets", set.clone(), &[(pointer, value.clone())]), expected, "{pointer} {value}");
    }
    assert!(changed("apps", "daemonsets", &set, "/spec/selector/matchLabels", json!({"a": "c"})).contains("spec.selector: Invalid value"));
    let budget = json!({"metadata": {"name": "b", "namespace": "default"}, "spec": {"minAvailable": 1}});
    assert_eq!(problems("policy", "poddisruptionbudgets", budget.clone(), &[]), "");
    assert!(
        problems("policy", "poddisruptionbudgets", budget.clone(), &[("/spec/maxUnavailable", json!("10%"))])
            .ends_with("minAvailable and maxUnavailable cannot be both set")
    );
    assert_eq!(
        problems("policy", "poddisruptionbudgets", budget, &[("/spec/minAvailable", json!("101%"))]),
        "spec.minAvailable: Invalid value: \"101%\": must not be greater than 100%"
    );
    let revision = json!({"metadata": {"name": "r", "namespace": "default"}, "data": {"a": 1}, "revision": 1});
    assert_eq!(changed("apps", "controllerrevisions", &revision, "/data", json!({"a": 2})), "data: Invalid value: {\"a\":2}: field is immutable");
}
