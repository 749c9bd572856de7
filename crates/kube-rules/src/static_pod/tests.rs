//! Tables of manifests: which pod each means, or which field is wrong.

use serde_json::{Value, json};

use super::*;

const FILE: Origin<'_> = Origin::File("/etc/kubernetes/manifests/web.yaml");
const URL: Origin<'_> = Origin::Url("http://boot/pods");

fn manifest(change: Value) -> Value {
    let mut all = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {"containers": [{"name": "c", "image": "img:1"}]}});
    merge(&mut all, change);
    all
}

fn merge(to: &mut Value, from: Value) {
    match (to, from) {
        (Value::Object(to), Value::Object(from)) => from.into_iter().for_each(|(name, value)| merge(to.entry(name).or_insert(Value::Null), value)),
        (to, from) => *to = from,
    }
}

#[test]
fn a_manifest_becomes_a_pod_of_the_node() {
    let pod = pods(&manifest(json!({})), FILE, "Node1").unwrap().remove(0);
    let meta = &pod.metadata;
    assert_eq!((meta.name.as_deref(), meta.namespace.as_deref()), (Some("web-node1"), Some("default")));
    let uid = meta.uid.clone().unwrap();
    assert!(uid.len() == 32 && uid.bytes().all(|b| b.is_ascii_hexdigit()), "{uid}");
    let annotations = meta.annotations.clone().unwrap();
    assert_eq!((annotations[HASH].as_str(), annotations[SOURCE].as_str()), (uid.as_str(), "file"));
    let spec = pod.spec.unwrap();
    assert_eq!(
        (spec.node_name.as_deref(), spec.restart_policy.as_deref(), spec.termination_grace_period_seconds),
        (Some("Node1"), Some("Always"), Some(30))
    );
    let tolerations = serde_json::to_value(spec.tolerations).unwrap();
    assert_eq!(tolerations, json!([{"operator": "Exists", "effect": "NoExecute"}]));
    let over_http = pods(&manifest(json!({})), URL, "Node1").unwrap().remove(0);
    assert_eq!(over_http.metadata.annotations.unwrap()[SOURCE], "http");
    assert_eq!(over_http.spec.unwrap().tolerations, None);
}

#[test]
fn the_uid_names_content_place_and_node() {
    let uid = |document: &Value, origin: Origin<'_>, node: &str| pods(document, origin, node).unwrap().remove(0).metadata.uid.unwrap();
    let first = uid(&manifest(json!({})), FILE, "n");
    assert_eq!(uid(&manifest(json!({})), FILE, "n"), first, "it outlives a restart of the agent");
    let others = [
        uid(&manifest(json!({"spec": {"hostNetwork": true}})), FILE, "n"),
        uid(&manifest(json!({})), Origin::File("/other.yaml"), "n"),
        uid(&manifest(json!({})), FILE, "m"),
        uid(&manifest(json!({})), URL, "n"),
    ];
    assert!(others.iter().all(|other| *other != first), "{others:?}");
    let reordered: Value = serde_json::from_str(
        r#"{"spec": {"containers": [{"image": "img:1", "name": "c"}]}, "metadata": {"name": "web"}, "kind": "Pod", "apiVersion": "v1"}"#,
    )
    .unwrap();
    assert_eq!(uid(&reordered, FILE, "n"), first, "the order of members means nothing");
    assert_eq!(uid(&manifest(json!({"metadata": {"uid": "given-1"}})), FILE, "n"), "given-1");
}

#[test]
fn what_is_left_out_gets_the_values_of_the_api_server() {
    let given = json!({"spec": {"hostNetwork": true, "containers": [{"name": "c", "image": "reg:5000/a",
        "ports": [{"containerPort": 80}], "livenessProbe": {"tcpSocket": {"port": 80}}, "resources": {"limits": {"cpu": "1"}}}]}});
    let pod = pods(&manifest(given), FILE, "n").unwrap().remove(0);
    let c = serde_json::to_value(&pod.spec.unwrap().containers[0]).unwrap();
    assert_eq!(c["imagePullPolicy"], "Always");
    assert_eq!(c["ports"][0], json!({"containerPort": 80, "hostPort": 80, "protocol": "TCP"}));
    assert_eq!((&c["livenessProbe"]["periodSeconds"], &c["livenessProbe"]["failureThreshold"]), (&json!(10), &json!(3)));
    assert_eq!(c["resources"]["requests"], json!({"cpu": "1"}));
    for (image, policy) in
        [("a", "Always"), ("a:latest", "Always"), ("a:1", "IfNotPresent"), ("a@sha256:0", "IfNotPresent"), ("h:5/a:2", "IfNotPresent")]
    {
        let given = json!({"spec": {"containers": [{"name": "c", "image": image}]}});
        let pod = pods(&manifest(given), FILE, "n").unwrap().remove(0);
        assert_eq!(pod.spec.unwrap().containers[0].image_pull_policy.as_deref(), Some(policy), "{image}");
    }
}

#[test]
fn what_is_wrong_is_named_by_its_field() {
    let container = |change: Value| {
        let mut c = json!({"name": "c", "image": "img:1"});
        merge(&mut c, change);
        json!({"spec": {"containers": [c]}})
    };
    let volume = |source: Value| json!({"spec": {"volumes": [source]}});
    for (change, want) in [
        (json!({"kind": "Deployment"}), r#"apiVersion and kind are "v1" and "Deployment": write v1 and Pod"#),
        (json!({"metadata": {"name": ""}}), "metadata.name: a name is needed"),
        (json!({"metadata": {"name": "We b"}}), "metadata.name: \"We b\" with the node's name is no DNS subdomain of at most 253 characters"),
        (json!({"metadata": {"namespace": "../etc"}}), "metadata.namespace: \"../etc\" is no DNS label"),
        (json!({"metadata": {"uid": "../../x"}}), "metadata.uid: at most 63 letters, digits and hyphens are allowed"),
        (json!({"spec": {"containers": []}}), "spec.containers: at least one container is needed"),
        (json!({"spec": {"restartPolicy": "Sometimes"}}), "spec.restartPolicy: write Always, OnFailure or Never"),
        (json!({"spec": {"hostUsers": false, "hostNetwork": true}}), "spec.hostNetwork: forbidden when `hostUsers` is false"),
        (json!({"spec": {"hostUsers": false, "hostPID": true}}), "spec.hostPID: forbidden when `hostUsers` is false"),
        (json!({"spec": {"hostUsers": false, "hostIPC": true, "hostPID": false}}), "spec.hostIPC: forbidden when `hostUsers` is false"),
        (container(json!({"image": ""})), "spec.containers[0].image: an image is needed"),
        (container(json!({"name": "C"})), "spec.containers[0].name: \"C\" is no DNS label"),
        (json!({"spec": {"initContainers": [{"name": "c", "image": "i"}]}}), "spec.containers[0].name: \"c\" is there twice"),
        (container(json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]})), "spec.containers[0].volumeMounts[0].name: there is no volume \"v\""),
        (container(json!({"resources": {"limits": {"cpu": "much"}}})), "spec.containers[0].resources.limits[cpu]: \"much\" is no quantity"),
        (json!({"spec": {"serviceAccountName": "sa"}}), "spec.serviceAccountName: static pods may not reference serviceaccounts"),
        (json!({"spec": {"imagePullSecrets": [{"name": "s"}]}}), "spec.imagePullSecrets: static pods may not reference secrets"),
        (container(json!({"envFrom": [{"configMapRef": {"name": "m"}}]})), "spec.containers[0].envFrom[0]: static pods may not reference configmaps"),
        (
            container(json!({"env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]})),
            "spec.containers[0].env[1].valueFrom: static pods may not reference secrets",
        ),
        (
            volume(json!({"name": "v", "secret": {"secretName": "s"}})),
            "spec.volumes[0].secret: static pods may not reference secrets (via secret volumes)",
        ),
        (
            volume(json!({"name": "v", "projected": {"sources": [{"downwardAPI": {}}, {"serviceAccountToken": {"path": "t"}}]}})),
            "spec.volumes[0].projected: static pods may not reference serviceaccounts (via projected volumes)",
        ),
        (
            volume(json!({"name": "v", "persistentVolumeClaim": {"claimName": "p"}})),
            "spec.volumes[0].persistentVolumeClaim: static pods may not reference persistentvolumeclaims",
        ),
    ] {
        let error = pods(&manifest(change), FILE, "n").unwrap_err();
        assert_eq!(error.to_string(), want);
    }
}

#[test]
fn a_member_of_another_type_is_found() {
    for (change, field) in [
        (json!({"spec": {"terminationGracePeriodSeconds": "soon"}}), "spec.terminationGracePeriodSeconds"),
        (json!({"spec": {"containers": [{"name": "c", "image": "i"}, {"name": 5, "image": "i"}]}}), "spec.containers[1].name"),
        (
            json!({"spec": {"containers": [{"name": "c", "ports": [{"containerPort": 1}, {"containerPort": "http"}]}]}}),
            "spec.containers[0].ports[1].containerPort",
        ),
        (json!({"metadata": {"labels": {"a/b": 7}}}), "metadata.labels.a/b"),
        (json!({"spec": "none"}), "spec"),
    ] {
        match pods(&manifest(change), FILE, "n").unwrap_err() {
            ManifestError::Field { field: found, .. } => assert_eq!(found, field),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_web_server_may_send_a_list() {
    let item = |name: &str| manifest(json!({"metadata": {"name": name}}));
    let list = |items: Vec<Value>| json!({"apiVersion": "v1", "kind": "PodList", "items": items});
    let both = pods(&list(vec![item("a"), item("b")]), URL, "n").unwrap();
    let names: Vec<_> = both.iter().map(|pod| pod.metadata.name.as_deref().unwrap()).collect();
    assert_eq!(names, ["a-n", "b-n"]);
    let error = pods(&list(vec![item("a"), item("")]), URL, "n").unwrap_err();
    assert_eq!(error.to_string(), "items[1].metadata.name: a name is needed");
    assert!(pods(&list(vec![item("a")]), FILE, "n").is_err(), "a file holds one pod, as upstream");
}
