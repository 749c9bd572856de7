//! Each rule with upstream's path and words: one valid object a kind, and what one change makes wrong.

use super::*;
use crate::kind::{Kind, Part};
use crate::kinds::by_resource;
use serde_json::{Value, json};
use std::sync::Arc;

fn info(group: &str, plural: &str) -> &'static Arc<Kind> {
    by_resource(group, "v1", plural).unwrap()
}

/// The object with these members set by JSON pointer (null removes), defaulted.
fn with(group: &str, plural: &str, mut object: Value, changes: &[(&str, Value)]) -> Value {
    let info = info(group, plural);
    object["metadata"]["name"] = object["metadata"].get("name").cloned().unwrap_or_else(|| "x".into());
    if info.namespaced {
        object["metadata"]["namespace"] = "default".into();
    }
    for (pointer, value) in changes {
        let (parent, member) = pointer.rsplit_once('/').unwrap();
        let parent = object.pointer_mut(parent).unwrap_or_else(|| panic!("{pointer}"));
        match (value, parent) {
            (Value::Null, Value::Object(members)) => drop(members.remove(member)),
            (value, parent) => parent[member] = value.clone(),
        }
    }
    info.apply_defaults(&mut object);
    object
}

pub fn problems(group: &str, plural: &str, object: Value, changes: &[(&str, Value)]) -> String {
    let object = with(group, plural, object, changes);
    texts(info(group, plural).errors_of_new(&object))
}

pub fn updated(group: &str, plural: &str, object: Value, changes: &[(&str, Value)]) -> String {
    let old = with(group, plural, object, &[]);
    let new = with(group, plural, old.clone(), changes);
    texts(info(group, plural).errors_of_update(Part::Main, &new, &old))
}

fn texts(errors: Vec<FieldError>) -> String {
    errors.iter().map(FieldError::to_string).collect::<Vec<_>>().join("\n")
}

fn pod() -> Value {
    json!({"spec": {"containers": [{"name": "a", "image": "i:1"}], "volumes": [{"name": "v", "emptyDir": {}}]}})
}

fn service() -> Value {
    json!({"spec": {"ports": [{"port": 80}], "selector": {"app": "iis"}}})
}

fn deployment() -> Value {
    json!({"spec": {
        "selector": {"matchLabels": {"app": "iis"}},
        "template": {"metadata": {"labels": {"app": "iis"}}, "spec": {"containers": [{"name": "a", "image": "i:1"}]}},
    }})
}

#[test]
fn valid_objects_have_no_problems() {
    let cases = [
        ("", "pods", pod()),
        ("", "services", service()),
        ("apps", "deployments", deployment()),
        ("apps", "replicasets", deployment()),
        ("", "secrets", json!({"data": {"a.b": "eA=="}})),
        ("", "configmaps", json!({"data": {"a": "b"}})),
        ("", "namespaces", json!({})),
        (
            "",
            "nodes",
            json!({"spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"], "taints": [{"key": "os", "value": "windows", "effect": "NoSchedule"}]}}),
        ),
        ("", "serviceaccounts", json!({})),
        ("", "events", json!({"involvedObject": {"kind": "Pod", "namespace": "default"}})),
        ("", "endpoints", json!({"subsets": [{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 80}]}]})),
        ("discovery.k8s.io", "endpointslices", json!({"addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"port": 80}]})),
        ("coordination.k8s.io", "leases", json!({"spec": {"leaseDurationSeconds": 40}})),
        (
            "rbac.authorization.k8s.io",
            "clusterroles",
            json!({"metadata": {"name": "system:node"}, "rules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}]}),
        ),
        ("rbac.authorization.k8s.io", "roles", json!({"rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]})),
        ("rbac.authorization.k8s.io", "rolebindings", json!({"roleRef": {"kind": "Role", "name": "r"}, "subjects": [{"kind": "User", "name": "u"}]})),
    ];
    for (group, plural, object) in cases {
        assert_eq!(problems(group, plural, object.clone(), &[]), "", "{plural}");
        assert_eq!(updated(group, plural, object, &[]), "", "{plural} unchanged");
    }
}

#[test]
fn metadata_is_checked() {
    let cases: [(&str, Value, &str); 8] = [
        (
            "/metadata/name",
            json!("Bad_Name"),
            "metadata.name: Invalid value: \"Bad_Name\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
             and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
        ),
        ("/metadata/name", json!(""), "metadata.name: Required value: name or generateName is required"),
        (
            "/metadata/labels",
            json!({"a b": "x"}),
            "metadata.labels: Invalid value: \"a b\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
             alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
        ),
        (
            "/metadata/labels",
            json!({"a": "-"}),
            "metadata.labels: Invalid value: \"-\": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
             start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is \
             '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')",
        ),
        ("/metadata/annotations", json!({"/a": ""}), "metadata.annotations: Invalid value: \"/a\": prefix part must be non-empty"),
        ("/metadata/annotations", json!({"a": "x".repeat(300_000)}), "metadata.annotations: Too long: may not be more than 262144 bytes"),
        (
            "/metadata/ownerReferences",
            json!([{"apiVersion": "v1", "kind": "Pod", "name": "p"}]),
            "metadata.ownerReferences.uid: Invalid value: \"\": must not be empty",
        ),
        ("/metadata/generateName", json!("ok-"), ""),
    ];
    for (pointer, value, expected) in cases {
        assert_eq!(problems("", "configmaps", json!({"metadata": {}}), &[(pointer, value)]), expected, "{pointer}");
    }
    let mut namespaced = json!({"metadata": {"name": "n", "namespace": "a"}});
    assert_eq!(texts(info("", "nodes").errors_of_new(&namespaced)), "metadata.namespace: Forbidden: not allowed on this type");
    namespaced["metadata"]["namespace"] = Value::Null;
    assert_eq!(texts(info("", "configmaps").errors_of_new(&namespaced)), "metadata.namespace: Required value");
}

#[test]
fn metadata_updates_are_checked() {
    assert_eq!(
        updated("", "configmaps", json!({"metadata": {"uid": "1"}}), &[("/metadata/uid", json!("2"))]),
        "metadata.uid: Invalid value: \"2\": field is immutable"
    );
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["a.b/c"]}});
    assert_eq!(
        updated("", "configmaps", deleted, &[("/metadata/finalizers", json!(["a.b/c", "x.y/z"]))]),
        "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{\"x.y/z\"}"
    );
}

#[test]
fn names_follow_their_kind() {
    assert_eq!(problems("", "services", service(), &[("/metadata/name", json!("1web"))]), "");
    assert_eq!(
        problems("", "services", service(), &[("/metadata/name", json!("a.b"))]),
        "metadata.name: Invalid value: \"a.b\": must not contain dots"
    );
    assert_eq!(
        problems("", "namespaces", json!({"metadata": {}}), &[("/metadata/name", json!("a.b"))]),
        "metadata.name: Invalid value: \"a.b\": must not contain dots"
    );
    assert_eq!(
        problems("rbac.authorization.k8s.io", "clusterroles", json!({"metadata": {}}), &[("/metadata/name", json!("a/b"))]),
        "metadata.name: Invalid value: \"a/b\": may not contain '/'"
    );
}

#[test]
fn containers_are_checked() {
    let c = "/spec/containers/0";
    let cases: Vec<(String, Value, &str)> = vec![
        ("/spec/containers".into(), json!([]), "spec.containers: Required value"),
        (format!("{c}/name"), json!(""), "spec.containers[0].name: Required value"),
        (
            format!("{c}/name"),
            json!("A"),
            "spec.containers[0].name: Invalid value: \"A\": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must \
             start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
        ),
        (format!("{c}/image"), json!(""), "spec.containers[0].image: Required value"),
        (format!("{c}/image"), json!(" i"), "spec.containers[0].image: Invalid value: \" i\": must not have leading or trailing whitespace"),
        (
            format!("{c}/imagePullPolicy"),
            json!("Sometimes"),
            "spec.containers[0].imagePullPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
        ),
        (
            format!("{c}/ports"),
            json!([{"containerPort": 70000}]),
            "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
        ),
        (format!("{c}/ports"), json!([{"name": "web"}]), "spec.containers[0].ports[0].containerPort: Required value"),
        (
            format!("{c}/ports"),
            json!([{"name": "a", "containerPort": 1}, {"name": "a", "containerPort": 2}]),
            "spec.containers[0].ports[1].name: Duplicate value: \"a\"",
        ),
        (
            format!("{c}/ports"),
            json!([{"containerPort": 1, "hostPort": 9}, {"containerPort": 2, "hostPort": 9}]),
            "spec.containers[0].ports[1].hostPort: Duplicate value: \"TCP//9\"",
        ),
        (
            format!("{c}/ports"),
            json!([{"containerPort": 1, "protocol": "QUIC"}]),
            "spec.containers[0].ports[0].protocol: Unsupported value: \"QUIC\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
        ),
        (format!("{c}/env"), json!([{"value": "x"}]), "spec.containers[0].env[0].name: Required value"),
        (
            format!("{c}/env"),
            json!([{"name": "a=b"}]),
            "spec.containers[0].env[0].name: Invalid value: \"a=b\": a valid environment variable name must consist only of printable ASCII characters other than '='",
        ),
        (
            format!("{c}/env"),
            json!([{"name": "a", "valueFrom": {"fieldRef": {"fieldPath": "spec.x"}}}]),
            "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Invalid value: \"spec.x\": error converting fieldPath: field label not supported: spec.x",
        ),
        (
            format!("{c}/env"),
            json!([{"name": "a", "valueFrom": {"secretKeyRef": {"name": "s"}}}]),
            "spec.containers[0].env[0].valueFrom.secretKeyRef.key: Required value",
        ),
        (
            format!("{c}/env"),
            json!([{"name": "a", "value": "1", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]),
            "spec.containers[0].env[0].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty",
        ),
    ];
    for (pointer, value, expected) in cases {
        assert_eq!(problems("", "pods", pod(), &[(&pointer, value.clone())]), expected, "{pointer} {value}");
    }
}

#[test]
fn mounts_resources_and_probes_are_checked() {
    let c = "/spec/containers/0";
    let cases: Vec<(String, Value, &str)> = vec![
        (format!("{c}/volumeMounts"), json!([{"name": "w", "mountPath": "/x"}]), "spec.containers[0].volumeMounts[0].name: Not found: \"w\""),
        (format!("{c}/volumeMounts"), json!([{"name": "v"}]), "spec.containers[0].volumeMounts[0].mountPath: Required value"),
        (
            format!("{c}/volumeMounts"),
            json!([{"name": "v", "mountPath": "C:\\x"}, {"name": "v", "mountPath": "C:\\x"}]),
            "spec.containers[0].volumeMounts[1].mountPath: Invalid value: \"C:\\\\x\": must be unique",
        ),
        (
            format!("{c}/volumeMounts"),
            json!([{"name": "v", "mountPath": "/x", "subPath": "../a"}]),
            "spec.containers[0].volumeMounts[0].subPath: Invalid value: \"../a\": must not contain '..'",
        ),
        (
            format!("{c}/resources"),
            json!({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}),
            "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
        ),
        (
            format!("{c}/resources"),
            json!({"limits": {"foo": "1"}}),
            "spec.containers[0].resources.limits[foo]: Invalid value: \"foo\": must be a standard resource for containers\n\
             spec.containers[0].resources.requests[foo]: Invalid value: \"foo\": must be a standard resource for containers",
        ),
        (
            format!("{c}/resources"),
            json!({"requests": {"memory": "-1"}}),
            "spec.containers[0].resources.requests[memory]: Invalid value: \"-1\": must be greater than or equal to 0",
        ),
        (format!("{c}/livenessProbe"), json!({}), "spec.containers[0].livenessProbe: Required value: must specify a handler type"),
        (
            format!("{c}/livenessProbe"),
            json!({"httpGet": {"port": 0}, "successThreshold": 2}),
            "spec.containers[0].livenessProbe.httpGet.port: Invalid value: 0: must be between 1 and 65535, inclusive\n\
             spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1",
        ),
        (
            format!("{c}/lifecycle"),
            json!({"preStop": {"exec": {"command": ["x"]}, "sleep": {"seconds": 1}}}),
            "spec.containers[0].lifecycle.preStop.sleep: Forbidden: may not specify more than 1 handler type",
        ),
        (
            format!("{c}/lifecycle"),
            json!({"stopSignal": "SIGTERM"}),
            "spec.containers[0].lifecycle.stopSignal: Forbidden: may not be set for containers with empty `spec.os.name`",
        ),
        (
            "/spec/initContainers".into(),
            json!([{"name": "a", "image": "i:1", "livenessProbe": {"exec": {"command": ["x"]}}}]),
            "spec.initContainers[0].name: Duplicate value: \"a\"\n\
             spec.initContainers[0].livenessProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
        ),
    ];
    for (pointer, value, expected) in cases {
        assert_eq!(problems("", "pods", pod(), &[(&pointer, value.clone())]), expected, "{pointer} {value}");
    }
}

#[test]
fn stop_signals_depend_on_the_system() {
    let windows = "supported values: \"SIGKILL\", \"SIGTERM\"";
    for (os, signal, problem) in [
        ("linux", "SIGUSR1", None),
        ("linux", "SIGRTMIN+3", None),
        ("windows", "SIGTERM", None),
        ("windows", "SIGKILL", None),
        ("linux", "SIGNONE", Some("supported values: \"SIGABRT\", \"SIGALRM\", ")),
        ("windows", "SIGUSR1", Some(windows)),
    ] {
        let hook = json!({"stopSignal": signal});
        let sidecar = json!([{"name": "s", "image": "i:1", "restartPolicy": "Always", "lifecycle": hook.clone(),
            "terminationMessagePolicy": "File", "imagePullPolicy": "Always"}]);
        let changes = [("/spec/os", json!({"name": os})), ("/spec/containers/0/lifecycle", hook), ("/spec/initContainers", sidecar)];
        let found = problems("", "pods", pod(), &changes);
        let Some(problem) = problem else {
            assert_eq!(found, "", "{os} {signal}");
            continue;
        };
        let lines: Vec<&str> = found.lines().filter(|line| line.contains("stopSignal")).collect();
        assert_eq!(lines.len(), 2, "{found}");
        for (line, list) in lines.into_iter().zip(["containers", "initContainers"]) {
            let begin = format!("spec.{list}[0].lifecycle.stopSignal: Unsupported value: \"{signal}\": {problem}");
            assert!(line.starts_with(&begin), "{line}");
        }
    }
}

#[test]
fn devices_of_claims_are_given_to_containers_once() {
    let claim = json!([{"name": "v", "emptyDir": {}}, {"name": "d", "persistentVolumeClaim": {"claimName": "c"}}]);
    let of = |devices: Value, mounts: Value| {
        let changes = [("/spec/volumes", claim.clone()), ("/spec/containers/0/volumeDevices", devices), ("/spec/containers/0/volumeMounts", mounts)];
        problems("", "pods", pod(), &changes)
    };
    let none = json!([]);
    let at = "spec.containers[0].volumeDevices";
    assert_eq!(of(json!([{"name": "d", "devicePath": "/dev/a"}]), none.clone()), "");
    let backed = format!("{at}[0].name: Invalid value: \"v\": can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode");
    assert_eq!(of(json!([{"name": "v", "devicePath": "/dev/a"}]), none.clone()), backed);
    assert_eq!(of(json!([{"name": "w", "devicePath": "/dev/a"}]), none.clone()), format!("{at}[0].name: Not found: \"w\""));
    assert_eq!(of(json!([{"name": "d"}]), none.clone()), format!("{at}[0].devicePath: Required value"));
    let up = format!("{at}[0].devicePath: Invalid value: \"/dev/../a\": can not contain backsteps ('..')");
    assert_eq!(of(json!([{"name": "d", "devicePath": "/dev/../a"}]), none), up);
    let twice = of(json!([{"name": "d", "devicePath": "/a"}, {"name": "d", "devicePath": "/a"}]), json!([]));
    assert_eq!(twice, format!("{at}[1].name: Invalid value: \"d\": must be unique\n{at}[1].devicePath: Invalid value: \"/a\": must be unique"));
    let both = of(json!([{"name": "d", "devicePath": "/a"}]), json!([{"name": "d", "mountPath": "/a"}]));
    let mount = "spec.containers[0].volumeMounts[0]";
    let wanted = [
        format!("{mount}.name: Invalid value: \"d\": must not already exist in volumeDevices"),
        format!("{mount}.mountPath: Invalid value: \"/a\": must not already exist as a path in volumeDevices"),
        format!("{at}[0].name: Invalid value: \"d\": must not already exist in volumeMounts"),
        format!("{at}[0].devicePath: Invalid value: \"/a\": must not already exist as a path in volumeMounts"),
    ];
    assert_eq!(both, wanted.join("\n"));
}

#[test]
fn trust_bundles_are_named_or_selected_and_no_path_is_used_twice() {
    let of = |sources: Value| problems("", "pods", pod(), &[("/spec/volumes", json!([{"name": "v", "projected": {"sources": sources}}]))]);
    let bundle = |value: Value| of(json!([{"clusterTrustBundle": value}]));
    let at = "spec.volumes[0].projected.sources[0].clusterTrustBundle";
    for fine in [
        json!({"name": "b", "path": "ca.pem"}),
        json!({"name": "example.com:signer:b", "path": "ca.pem", "optional": true}),
        json!({"signerName": "example.com/signer", "labelSelector": {"matchLabels": {"a": "b"}}, "path": "deep/ca.pem"}),
    ] {
        assert_eq!(bundle(fine.clone()), "", "{fine}");
    }
    assert_eq!(bundle(json!({"path": "a"})), format!("{at}: Required value: either name or signerName must be specified"));
    assert!(bundle(json!({"name": "b", "signerName": "e.com/s", "path": "a"})).contains("only one of name and signerName may be used"));
    let selected = bundle(json!({"name": "b", "labelSelector": {}, "path": "a"}));
    assert_eq!(selected, format!("{at}.labelSelector: Invalid value: {{}}: labelSelector must be unset if name is specified"));
    assert!(bundle(json!({"name": "a:B", "path": "a"})).contains("not a valid clustertrustbundlename: "));
    assert!(
        bundle(json!({"signerName": "signer", "path": "a"})).starts_with(&format!("{at}.signerName: Invalid value: \"signer\": must be a fully"))
    );
    assert_eq!(bundle(json!({"name": "b"})), format!("{at}.path: Required value"));
    for path in ["/a", "../a", "..a"] {
        assert!(bundle(json!({"name": "b", "path": path})).starts_with(&format!("{at}.path: Invalid value: ")), "{path}");
    }
    let twice = of(json!([{"secret": {"name": "s", "items": [{"key": "k", "path": "a"}]}}, {"clusterTrustBundle": {"name": "b", "path": "a"}}]));
    assert_eq!(twice, "spec.volumes[0].projected: Invalid value: \"a\": conflicting duplicate paths");
}

#[test]
fn windows_paths_are_mount_paths() {
    for path in ["C:\\etc\\foo", "c:/etc/foo", "/etc/foo", "D:\\x"] {
        assert_eq!(
            problems("", "pods", pod(), &[("/spec/containers/0/volumeMounts", json!([{"name": "v", "mountPath": path, "readOnly": true}]))]),
            "",
            "{path}"
        );
    }
    let host = json!([{"name": "v", "hostPath": {"path": "C:\\etc\\foo"}}]);
    assert_eq!(problems("", "pods", pod(), &[("/spec/volumes", host)]), "");
}

/// Each change of a valid pod brings this problem.
fn hold(cases: &[(&str, Value, &str)]) {
    for (pointer, value, expected) in cases {
        assert_eq!(problems("", "pods", pod(), &[(*pointer, value.clone())]), *expected, "{pointer} {value}");
    }
}

#[test]
fn pods_are_checked() {
    hold(&[
        (
            "/spec/restartPolicy",
            json!("Maybe"),
            "spec.restartPolicy: Unsupported value: \"Maybe\": supported values: \"Always\", \"OnFailure\", \"Never\"",
        ),
        (
            "/spec/dnsPolicy",
            json!("X"),
            "spec.dnsPolicy: Unsupported value: \"X\": supported values: \"ClusterFirstWithHostNet\", \"ClusterFirst\", \"Default\", \"None\"",
        ),
        ("/spec/dnsPolicy", json!("None"), "spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None"),
        ("/spec/activeDeadlineSeconds", json!(0), "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive"),
        ("/spec/hostname", json!("a.b"), "spec.hostname: Invalid value: \"a.b\": must not contain dots"),
        (
            "/spec/ephemeralContainers",
            json!([{"name": "e", "image": "i", "imagePullPolicy": "Always", "terminationMessagePolicy": "File"}]),
            "spec.ephemeralContainers: Forbidden: cannot be set on create",
        ),
        (
            "/spec/tolerations",
            json!([{"key": "a", "operator": "Exists", "value": "b"}]),
            "spec.tolerations[0].operator: Invalid value: {\"key\":\"a\",\"operator\":\"Exists\",\"value\":\"b\"}: value must be empty when `operator` is 'Exists'",
        ),
        (
            "/spec/tolerations",
            json!([{"operator": "Equal"}]),
            "spec.tolerations[0].operator: Invalid value: \"Equal\": operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
        ),
        (
            "/spec/tolerations",
            json!([{"key": "a", "effect": "NoRun"}]),
            "spec.tolerations[0].effect: Unsupported value: \"NoRun\": supported values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\"",
        ),
    ]);
}

#[test]
fn rules_of_pods_for_their_place_are_checked() {
    hold(&[
        (
            "/spec/affinity",
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}),
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: Required value: must have at least one node selector term",
        ),
        (
            "/spec/affinity",
            json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{
                "topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "a"}, "matchExpressions": [{"key": "app", "operator": "In", "values": ["a"]}]},
                "matchLabelKeys": ["app"],
            }]}}),
            "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0][0]: Invalid value: \"app\": exists in both matchLabelKeys and labelSelector",
        ),
        (
            "/spec/affinity",
            json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{
                "topologyKey": "zone", "labelSelector": {}, "matchLabelKeys": ["app"], "mismatchLabelKeys": ["app"],
            }]}}),
            "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].matchLabelKeys[0]: Invalid value: \"app\": exists in both matchLabelKeys and mismatchLabelKeys",
        ),
        (
            "/spec/topologySpreadConstraints",
            json!([{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "matchLabelKeys": ["app"]}]),
            "spec.topologySpreadConstraints[0].matchLabelKeys: Forbidden: must not be specified when labelSelector is not set",
        ),
        (
            "/spec/topologySpreadConstraints",
            json!([
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"},
                {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"},
            ]),
            "spec.topologySpreadConstraints[0].{topologyKey, whenUnsatisfiable}: Duplicate value: \"{zone, DoNotSchedule}\"",
        ),
        (
            "/spec/topologySpreadConstraints",
            json!([{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "minDomains": 2}]),
            "spec.topologySpreadConstraints[0].minDomains: Invalid value: 2: can only use minDomains if whenUnsatisfiable=DoNotSchedule, not ScheduleAnyway",
        ),
        (
            "/spec/topologySpreadConstraints",
            json!([{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "nodeTaintsPolicy": "Never"}]),
            "spec.topologySpreadConstraints[0].nodeTaintsPolicy: Unsupported value: \"Never\": supported values: \"Honor\", \"Ignore\"",
        ),
    ]);
}

#[test]
fn volumes_of_pods_are_checked() {
    hold(&[
        ("/spec/volumes", json!([{"name": "v"}, {"name": "v", "emptyDir": {}}]), "spec.volumes[1].name: Duplicate value: \"v\""),
        ("/spec/volumes", json!([{"name": "v", "secret": {}}]), "spec.volumes[0].secret.secretName: Required value"),
        (
            "/spec/volumes",
            json!([{"name": "v", "hostPath": {"path": "/a/../b"}}]),
            "spec.volumes[0].hostPath.path: Invalid value: \"/a/../b\": must not contain '..'",
        ),
        (
            "/spec/volumes",
            json!([{"name": "v", "emptyDir": {}, "configMap": {"name": "c"}}]),
            "spec.volumes[0].configMap: Forbidden: may not specify more than 1 volume type",
        ),
        (
            "/spec/volumes",
            json!([{"name": "v", "configMap": {"name": "c", "items": [{"key": "k", "path": "/abs"}]}}]),
            "spec.volumes[0].configMap.items[0].path: Invalid value: \"/abs\": must be a relative path",
        ),
        (
            "/spec/volumes",
            json!([{"name": "v", "configMap": {"name": "c", "defaultMode": 999}}]),
            "spec.volumes[0].configMap.defaultMode: Invalid value: 999: must be a number between 0 and 0777 (octal), both inclusive",
        ),
    ]);
}

#[test]
fn the_operating_system_rules_fields_out() {
    let windows = ("/spec/os", json!({"name": "windows"}));
    let refused = |pointer: &str, value: Value| problems("", "pods", pod(), &[windows.clone(), (pointer, value)]);
    assert_eq!(refused("/spec/resources", json!({"limits": {"cpu": "1"}})), "spec.resources: Forbidden: cannot be set for a windows pod");
    assert_eq!(refused("/spec/hostPID", json!(true)), "spec.hostPID: Forbidden: cannot be set for a windows pod");
    assert_eq!(
        refused("/spec/securityContext", json!({"runAsUser": 1})),
        "spec.securityContext.runAsUser: Forbidden: cannot be set for a windows pod"
    );
    assert_eq!(
        refused("/spec/containers/0/securityContext", json!({"capabilities": {}, "privileged": false})),
        "spec.containers[0].securityContext.capabilities: Forbidden: cannot be set for a windows pod\n\
         spec.containers[0].securityContext.privileged: Forbidden: cannot be set for a windows pod"
    );
    assert_eq!(refused("/spec/securityContext", json!({"windowsOptions": {"runAsUserName": "ContainerUser"}})), "");
    let linux = problems("", "pods", pod(), &[("/spec/os", json!({"name": "linux"})), ("/spec/securityContext", json!({"windowsOptions": {}}))]);
    assert_eq!(linux, "spec.securityContext.windowsOptions: Forbidden: windows options cannot be set for a linux pod");
    assert_eq!(
        problems("", "pods", pod(), &[("/spec/os", json!({"name": "plan9"}))]),
        "spec.os: Unsupported value: \"plan9\": supported values: \"linux\", \"windows\""
    );
    let hosted = problems("", "pods", pod(), &[("/spec/securityContext", json!({"windowsOptions": {"hostProcess": true}}))]);
    assert_eq!(hosted, "spec.hostNetwork: Invalid value: false: must be true if pod contains any hostProcess containers");
}

/// The cases of upstream's TestValidateWindowsSecurityContextOptions, and its messages.
#[test]
fn user_names_of_windows_are_upstreams() {
    let named = |name: &str| {
        let said = problems("", "pods", pod(), &[("/spec/securityContext", json!({"windowsOptions": {"runAsUserName": name}}))]);
        let value = serde_json::to_string(name).unwrap();
        let begin = format!("spec.securityContext.windowsOptions.runAsUserName: Invalid value: {value}: runAsUserName");
        said.lines().map(|line| line.strip_prefix(&begin).unwrap_or(line).to_owned()).collect::<Vec<_>>()
    };
    for name in [
        "ContainerUser".to_owned(),
        r"NT AUTHORITY\SYSTEM".to_owned(),
        r"NT AUTHORITY\NETWORK SERVICE".to_owned(),
        r"NetBios\User".to_owned(),
        r"NetBios-Dash\User".to_owned(),
        r"fully.qualified.domain\User".to_owned(),
        r"a_b\User".to_owned(),
        format!(r"{}\User", "a".repeat(15)),
        format!(r"{}\User", ["a".repeat(63), "b".repeat(63)].join(".")),
        "é".repeat(52),
        ". user.".to_owned(),
    ] {
        assert!(named(&name).is_empty(), "{name}: {:?}", named(&name));
    }
    const FORMAT: &str = "'s Domain doesn't match the NetBios nor the DNS format";
    const LENGTH: &str = "'s Domain length must be under 256 characters";
    const CHARACTERS: &str = "'s User cannot contain the following characters: \"/\\:;|=,+*?<>@[]";
    for (name, wanted) in [
        (String::new(), &[" cannot be an empty string"][..]),
        ("has\tcontrol".to_owned(), &[" cannot contain control characters"]),
        (r"a\b\c".to_owned(), &[" cannot contain more than one backslash"]),
        (r"\User".to_owned(), &[FORMAT]),
        (r".dot\User".to_owned(), &[FORMAT]),
        (r"has blank in a long name\User".to_owned(), &[FORMAT]),
        (r"ends-in-dash-and-long-.com\User".to_owned(), &[FORMAT]),
        (format!(r"{}\User", "a".repeat(256)), &[LENGTH, FORMAT]),
        (r"NetBios\".to_owned(), &["'s User cannot be empty"]),
        ("a".repeat(105), &["'s User length must not be longer than 104 characters"]),
        ("... ".to_owned(), &["'s User cannot contain only periods or spaces"]),
        ("a@b".to_owned(), &[CHARACTERS]),
        ("a/b".to_owned(), &[CHARACTERS]),
    ] {
        assert_eq!(named(&name), wanted, "{name}");
    }
}

#[test]
fn pod_updates_are_narrow() {
    assert_eq!(updated("", "pods", pod(), &[("/spec/containers/0/image", json!("i:2"))]), "");
    assert_eq!(updated("", "pods", pod(), &[("/spec/activeDeadlineSeconds", json!(5))]), "");
    assert_eq!(updated("", "pods", pod(), &[("/spec/tolerations", json!([{"key": "a", "operator": "Exists"}]))]), "");
    assert_eq!(
        updated("", "pods", pod(), &[("/spec/containers", json!([]))]),
        "spec.containers: Required value\nspec.containers: Forbidden: pod updates may not add or remove containers"
    );
    assert_eq!(
        updated("", "pods", pod(), &[("/spec/dnsPolicy", json!("Default"))]),
        "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,\
         `spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be \
         set to 1 if it was previously negative)\n- \tspec.dnsPolicy: \"ClusterFirst\"\n+ \tspec.dnsPolicy: \"Default\"\n"
    );
    let tolerant = json!({"spec": {"containers": [{"name": "a", "image": "i:1"}], "tolerations": [{"key": "a", "operator": "Exists"}]}});
    assert_eq!(
        updated("", "pods", tolerant, &[("/spec/tolerations", json!([]))]),
        "spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"
    );
}

#[test]
fn deployments_are_checked() {
    let cases = [
        (
            "/spec/selector",
            Value::Null,
            "spec.selector: Required value\nspec.template.metadata.labels: Invalid value: {\"app\":\"iis\"}: `selector` does not match template \
             `labels`",
        ),
        ("/spec/selector", json!({}), "spec.selector: Invalid value: {}: empty selector is invalid for deployment"),
        (
            "/spec/selector/matchLabels",
            json!({"app": "other"}),
            "spec.template.metadata.labels: Invalid value: {\"app\":\"iis\"}: `selector` does not match template `labels`",
        ),
        ("/spec/replicas", json!(-1), "spec.replicas: Invalid value: -1: must be greater than or equal to 0"),
        (
            "/spec/template/spec/restartPolicy",
            json!("Never"),
            "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
        ),
        (
            "/spec/strategy",
            json!({"type": "Recreate", "rollingUpdate": {}}),
            "spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'",
        ),
        (
            "/spec/strategy",
            json!({"type": "BlueGreen"}),
            "spec.strategy.type: Unsupported value: \"BlueGreen\": supported values: \"Recreate\", \"RollingUpdate\"",
        ),
        (
            "/spec/strategy",
            json!({"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "0%"}}),
            "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"0%\": may not be 0 when `maxSurge` is 0",
        ),
        ("/spec/progressDeadlineSeconds", json!(0), "spec.progressDeadlineSeconds: Invalid value: 0: must be greater than minReadySeconds"),
        ("/spec/template/spec/containers", json!([]), "spec.template.spec.containers: Required value"),
    ];
    for (pointer, value, expected) in cases {
        assert_eq!(problems("apps", "deployments", deployment(), &[(pointer, value.clone())]), expected, "{pointer} {value}");
    }
    let labels = json!({"app": "b"});
    assert_eq!(
        updated("apps", "deployments", deployment(), &[("/spec/selector/matchLabels", labels.clone()), ("/spec/template/metadata/labels", labels)]),
        "spec.selector: Invalid value: {\"matchLabels\":{\"app\":\"b\"}}: field is immutable"
    );
}

#[test]
fn services_are_checked() {
    let cases = [
        ("/spec/ports", json!([]), "spec.ports: Required value"),
        ("/spec/ports", json!([{"port": 0, "targetPort": 1}]), "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive"),
        ("/spec/ports", json!([{"port": 1}, {"name": "b", "port": 2}]), "spec.ports[0].name: Required value"),
        (
            "/spec/ports",
            json!([{"name": "a", "port": 1}, {"name": "b", "port": 1}]),
            "spec.ports[1]: Duplicate value: {\"Name\":\"\",\"Protocol\":\"TCP\",\"AppProtocol\":null,\"Port\":1,\"TargetPort\":0,\"NodePort\":0}",
        ),
        ("/spec/ports", json!([{"port": 1, "nodePort": 30001}]), "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"),
        (
            "/spec/type",
            json!("X"),
            "spec.type: Unsupported value: \"X\": supported values: \"ClusterIP\", \"ExternalName\", \"LoadBalancer\", \"NodePort\"",
        ),
        ("/spec/type", json!("ExternalName"), "spec.externalName: Required value"),
        ("/spec/clusterIP", json!("10.96.0.5"), "spec.clusterIPs: Required value"),
        ("/spec/sessionAffinity", json!("Sticky"), "spec.sessionAffinity: Unsupported value: \"Sticky\": supported values: \"ClientIP\", \"None\""),
        (
            "/spec/externalTrafficPolicy",
            json!("Local"),
            "spec.externalTrafficPolicy: Invalid value: \"Local\": may only be set for externally-accessible services",
        ),
    ];
    for (pointer, value, expected) in cases {
        assert_eq!(problems("", "services", service(), &[(pointer, value.clone())]), expected, "{pointer} {value}");
    }
    let addressed = json!({"spec": {"ports": [{"port": 80}], "clusterIP": "10.96.0.5", "clusterIPs": ["10.96.0.5"]}});
    assert_eq!(
        updated("", "services", addressed, &[("/spec/clusterIP", json!("10.96.0.6")), ("/spec/clusterIPs", json!(["10.96.0.6"]))]),
        "spec.clusterIPs[0]: Invalid value: [\"10.96.0.6\"]: may not change once set"
    );
}

#[test]
fn configuration_is_checked() {
    assert!(problems("", "configmaps", json!({"data": {"a/b": ""}}), &[]).starts_with("data[a/b]: Invalid value: \"a/b\": a valid config key"));
    assert_eq!(problems("", "secrets", json!({"type": "kubernetes.io/tls", "data": {"tls.crt": ""}}), &[]), "data[tls.key]: Required value");
    assert_eq!(
        problems("", "secrets", json!({"type": "kubernetes.io/service-account-token"}), &[]),
        "metadata.annotations[kubernetes.io/service-account.name]: Required value"
    );
    assert_eq!(updated("", "secrets", json!({"type": "a"}), &[("/type", json!("b"))]), "type: Invalid value: \"b\": field is immutable");
    assert_eq!(
        updated("", "configmaps", json!({"immutable": true, "data": {"a": "1"}}), &[("/data/a", json!("2"))]),
        "data: Forbidden: field is immutable when `immutable` is set"
    );
    assert_eq!(
        updated("", "nodes", json!({"spec": {"podCIDRs": ["10.0.0.0/24"]}}), &[("/spec/podCIDRs", json!(["10.0.1.0/24"]))]),
        "spec.podCIDRs: Forbidden: node updates may not change podCIDR except from \"\" to valid"
    );
    assert_eq!(
        problems("", "events", json!({"involvedObject": {"namespace": "other"}}), &[]),
        "involvedObject.namespace: Invalid value: \"other\": does not match event.namespace"
    );
    assert_eq!(
        problems("coordination.k8s.io", "leases", json!({"spec": {"leaseDurationSeconds": 0}}), &[]),
        "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0"
    );
    assert_eq!(
        problems("discovery.k8s.io", "endpointslices", json!({"addressType": "MAC"}), &[]),
        "addressType: Unsupported value: \"MAC\": supported values: \"FQDN\", \"IPv4\", \"IPv6\""
    );
}

#[test]
fn access_is_checked() {
    let rbac = "rbac.authorization.k8s.io";
    assert_eq!(
        problems(rbac, "roles", json!({"rules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}]}), &[]),
        "rules[0].nonResourceURLs: Invalid value: [\"/x\"]: namespaced rules cannot apply to non-resource URLs"
    );
    assert_eq!(
        problems(rbac, "roles", json!({"rules": [{}]}), &[]),
        "rules[0].verbs: Required value: verbs must contain at least one value\n\
         rules[0].apiGroups: Required value: resource rules must supply at least one api group\n\
         rules[0].resources: Required value: resource rules must supply at least one resource"
    );
    let binding = json!({"roleRef": {"kind": "Role", "name": "r"}});
    assert_eq!(
        problems(rbac, "clusterrolebindings", binding.clone(), &[]),
        "roleRef.kind: Unsupported value: \"Role\": supported values: \"ClusterRole\""
    );
    assert_eq!(
        updated(rbac, "rolebindings", binding, &[("/roleRef/name", json!("s"))]),
        "roleRef: Invalid value: {\"kind\":\"Role\",\"name\":\"s\",\"apiGroup\":\"rbac.authorization.k8s.io\"}: cannot change roleRef"
    );
}

#[test]
fn errors_have_the_causes_of_upstream() {
    let error = FieldError::new(ErrorKind::Required, "spec.selector", Value::Null, "");
    assert_eq!((error.kind.reason(), error.body().as_str()), ("FieldValueRequired", "Required value"));
    let error = FieldError::invalid("a", json!(3), "b");
    assert_eq!((error.kind.reason(), error.body().as_str()), ("FieldValueInvalid", "Invalid value: 3: b"));
    assert_eq!(FieldError::internal("a", "b").to_string(), "a: Internal error: b");
}
