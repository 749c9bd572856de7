//! What pods get, and which pods a node or the scheduler refuses.

use serde_json::Value;

use crate::cluster::{Cluster, PATIENCE, until};
use crate::http::{Answer, page, request};
use crate::manifests;

/// Whether a pod's condition Ready is True.
pub fn ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// 1, 5 and 0 replicas, each of them Ready and served, or gone.
pub fn scales(cluster: &Cluster) {
    cluster.apply(&manifests::web("many", "win01", "", "").replace("kubernetes.io/hostname: win01", "kubernetes.io/os: windows"));
    cluster.rolled_out("many");
    let port = cluster.node_port("many");
    let count = |desired: usize| {
        until(&format!("{desired} Ready pods"), PATIENCE, || {
            let pods = cluster.pods("many");
            let ready = pods.iter().filter(|pod| ready(pod)).count();
            if (pods.len(), ready) == (desired, desired) { Ok(pods) } else { Err(format!("{} pods, {ready} Ready", pods.len())) }
        })
    };
    count(1);
    cluster.kubectl(&["scale", "deployment/many", "--replicas=5"]);
    let pods = count(5);
    let nodes: std::collections::BTreeSet<_> = pods.iter().filter_map(|pod| pod["spec"]["nodeName"].as_str()).collect();
    assert_eq!(nodes.into_iter().collect::<Vec<_>>(), ["win01", "win02"], "five pods are spread over both nodes");
    let names: std::collections::BTreeSet<_> = pods.iter().filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned)).collect();
    let mut seen = std::collections::BTreeSet::new();
    until("an answer of each of five pods", PATIENCE, || {
        seen.insert(page(port, "/hostname").trim().to_owned());
        if seen.is_superset(&names) { Ok(()) } else { Err(format!("{seen:?} of {names:?}")) }
    });
    cluster.kubectl(&["scale", "deployment/many", "--replicas=0"]);
    count(0);
    let status = cluster.json(&["deployment", "many"]);
    assert_eq!(status["spec"]["replicas"], 0);
    until("no page without pods", PATIENCE, || match request("GET", port, "/", "") {
        Err(_) => Ok(()),
        Ok(answer) => Err(format!("{answer:?}")),
    });
    cluster.kubectl(&["delete", "deployment/many", "service/many"]);
}

/// A key of each, and a whole ConfigMap.
pub fn environment(cluster: &Cluster) {
    cluster.kubectl(&["create", "secret", "generic", "login", "--from-literal=password=s3cret=!"]);
    cluster.kubectl(&["create", "configmap", "settings", "--from-literal=MODE=dark", "--from-literal=LEVEL=7"]);
    let env = "        env:
        - {name: PASSWORD, valueFrom: {secretKeyRef: {name: login, key: password}}}
        - {name: LEVEL_OF_LOGS, valueFrom: {configMapKeyRef: {name: settings, key: LEVEL}}}
        - {name: MY_NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
        - {name: BOTH, value: \"$(LEVEL_OF_LOGS)-$(MY_NODE)\"}
        envFrom: [{configMapRef: {name: settings}}]";
    cluster.apply(&manifests::web("env", "win01", "", env));
    cluster.rolled_out("env");
    let seen = page(cluster.node_port("env"), "/env");
    for expected in ["PASSWORD=s3cret=!", "LEVEL_OF_LOGS=7", "MY_NODE=win01", "BOTH=7-win01", "MODE=dark", "LEVEL=7"] {
        assert!(seen.lines().any(|line| line == expected), "{expected} is missing: {seen}");
    }
    let secret = cluster.kubectl(&["describe", "secret", "login"]);
    assert!(secret.contains("password:  8 bytes") && !secret.contains("s3cret"), "{secret}");
    cluster.kubectl(&["delete", "deployment/env", "service/env"]);
}

/// ConfigMap, Secret, emptyDir and the ServiceAccount's token, at Windows paths; a changed ConfigMap arrives.
pub fn volumes(cluster: &Cluster) {
    cluster.kubectl(&["create", "configmap", "pages", "--from-literal=index.html=my own page"]);
    cluster.kubectl(&["create", "secret", "generic", "key", "--from-literal=pem=s3cret"]);
    let volumes = "      volumes:
      - {name: site, configMap: {name: pages}}
      - {name: key, secret: {secretName: key}}
      - {name: scratch, emptyDir: {}}";
    let mounts = "        volumeMounts:
        - {name: site, mountPath: 'C:\\inetpub\\wwwroot'}
        - {name: key, mountPath: 'C:\\keys', readOnly: true}
        - {name: scratch, mountPath: 'C:\\scratch'}";
    cluster.apply(&manifests::web("volumes", "win02", volumes, mounts));
    cluster.rolled_out("volumes");
    let port = cluster.node_port("volumes");
    assert_eq!(page(port, "/"), "my own page");
    assert_eq!(page(port, "/files/C:/keys/pem"), "s3cret");
    assert_eq!(page(port, "/files/C:/var/run/secrets/kubernetes.io/serviceaccount/namespace"), "default");
    assert!(page(port, "/files/C:/var/run/secrets/kubernetes.io/serviceaccount/ca.crt").starts_with("-----BEGIN CERTIFICATE-----"));
    assert_eq!(request("PUT", port, "/files/C:/scratch/x", "mine").map(|answer| answer.status), Ok(201));
    assert_eq!(page(port, "/files/C:/scratch/x"), "mine");
    for path in ["/files/C:/keys/pem", "/files/C:/inetpub/wwwroot/index.html"] {
        assert_eq!(request("PUT", port, path, "mine").map(|answer| answer.status), Ok(403), "PUT {path}");
    }
    cluster.kubectl(&["delete", "deployment/volumes", "service/volumes", "configmap/pages", "secret/key"]);
}

/// The examples beside `iis.yaml`, as they are.
pub fn examples(cluster: &Cluster) {
    cluster.apply(manifests::ENV);
    cluster.apply(manifests::HOST_PATH);
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/env", "pod/host-path", "--timeout=30s"]);
    let seen = page(cluster.node_port("env"), "/env");
    for expected in ["USERNAME_OF_SECRET=admin", "SPECIAL_LEVEL_KEY=very", "POD_NAME=env"] {
        assert!(seen.lines().any(|line| line == expected), "{expected} is missing: {seen}");
    }
    let node = cluster.json(&["pod", "host-path"])["spec"]["nodeName"].as_str().expect("a node").to_owned();
    assert!(cluster.drive_c(&node).join("data").is_dir(), "the directory was made");
    for manifest in [manifests::ENV, manifests::HOST_PATH] {
        cluster.try_kubectl(&["delete", "-f", "-"], manifest).ok("kubectl delete");
    }
}

/// All that is in a namespace goes with it.
pub fn namespace_ends(cluster: &Cluster) {
    cluster.kubectl(&["create", "namespace", "short"]);
    cluster.try_kubectl(&["-n", "short", "apply", "-f", "-"], &manifests::web("inside", "win01", "", "")).ok("kubectl apply");
    cluster.kubectl(&["-n", "short", "rollout", "status", "deployment/inside", "--timeout=30s"]);
    cluster.kubectl(&["delete", "namespace", "short", "--timeout=30s"]);
    for kind in ["namespaces", "pods", "services", "endpointslices", "serviceaccounts"] {
        let left = cluster.kubectl(&["get", kind, "-A", "-o", "jsonpath={.items[*].metadata}"]);
        assert!(!left.contains("\"short\""), "{kind}: {left}");
    }
}

/// A directory of the node's drive C, seen but not written in the pod.
pub fn host_path(cluster: &Cluster) {
    let dir = cluster.drive_c("win01").join("AzureData");
    std::fs::create_dir_all(&dir).and_then(|()| std::fs::write(dir.join("x"), "from the host")).expect("a file on drive C");
    let volume = "      volumes:\n      - {name: foo, hostPath: {path: 'C:\\AzureData'}}";
    let mount = "        volumeMounts:\n        - {name: foo, mountPath: 'C:\\etc\\foo', readOnly: true}";
    cluster.apply(&manifests::web("files", "win01", volume, mount));
    cluster.rolled_out("files");
    let port = cluster.node_port("files");
    assert_eq!(page(port, "/files/C:/etc/foo/x"), "from the host");
    std::fs::write(dir.join("x"), "changed").expect("a file on drive C");
    assert_eq!(page(port, "/files/C:/etc/foo/x"), "changed");
    for path in ["/files/C:/etc/foo/x", "/files/C:/etc/foo/new"] {
        let Answer { status, body } = request("PUT", port, path, "from the pod").expect("an answer");
        assert_eq!(status, 403, "PUT {path}: {body}");
    }
    assert_eq!(request("PUT", port, "/files/C:/scratch.txt", "mine").map(|answer| answer.status), Ok(201), "the container's own drive is writable");
    assert_eq!(std::fs::read_to_string(dir.join("x")).expect("a file on drive C"), "changed");
    assert!(!dir.join("new").exists());
    cluster.kubectl(&["delete", "deployment/files", "service/files"]);
}

/// The node says which builds do not fit, and what would.
pub fn wrong_build(cluster: &Cluster) {
    cluster.apply(&manifests::windows_pod("old", "microsoft/iis:windowsservercore-1709", ""));
    let status = until("a refusal", PATIENCE, || {
        let status = cluster.json(&["pod", "old"])["status"].clone();
        if status["phase"] == "Failed" { Ok(status) } else { Err(status.to_string()) }
    });
    assert_eq!(status["reason"], "ImageBuildMismatch", "{status}");
    let message = status["message"].as_str().unwrap_or_default();
    for part in ["16299", "20348", "ltsc2022"] {
        assert!(message.contains(part), "{part} is missing: {message}");
    }
    until("its Event", PATIENCE, || {
        let text = cluster.kubectl(&["describe", "pod", "old"]);
        if text.contains("Warning  ImageBuildMismatch") { Ok(()) } else { Err(text) }
    });
    cluster.kubectl(&["delete", "pod", "old"]);
}

/// No node has the label: Pending, with the scheduler's reason.
pub fn impossible_selector(cluster: &Cluster) {
    cluster.apply(&manifests::windows_pod("nowhere", "microsoft/iis", ", disk: golden"));
    let text = until("the scheduler's reason", PATIENCE, || {
        let text = cluster.kubectl(&["describe", "pod", "nowhere"]);
        if text.contains("FailedScheduling") { Ok(text) } else { Err(text) }
    });
    assert!(text.contains("0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."), "{text}");
    let pod = cluster.json(&["pod", "nowhere"]);
    assert_eq!(pod["status"]["phase"], "Pending");
    let condition = pod["status"]["conditions"].as_array().into_iter().flatten().find(|condition| condition["type"] == "PodScheduled").cloned();
    assert_eq!(condition.map(|condition| condition["reason"].clone()), Some(Value::from("Unschedulable")), "{}", pod["status"]);
    cluster.kubectl(&["label", "node", "win02", "disk=golden"]);
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/nowhere", "--timeout=30s"]);
    cluster.kubectl(&["delete", "pod", "nowhere"]);
    cluster.kubectl(&["label", "node", "win02", "disk-"]);
}
