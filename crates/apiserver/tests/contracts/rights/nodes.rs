//! The Node authorizer: a node reaches what its own pods use.

use super::{answered, made, posted};
use crate::common::TestServer;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};

fn pod(name: &str, node: &str, spec: Value) -> Value {
    let mut pod = json!({"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [{"name": "c", "image": "microsoft/iis"}]}});
    pod["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    pod
}

fn container(part: Value) -> Value {
    let mut container = json!({"name": "c", "image": "microsoft/iis"});
    container.as_object_mut().unwrap().extend(part.as_object().unwrap().clone());
    json!({"containers": [container]})
}

/// Pods of node n1 that use Secrets and ConfigMaps in every way; each object is called as the way.
fn ways() -> Vec<(&'static str, Value)> {
    let volume = |source: Value| {
        let mut volume = json!({"name": "v"});
        volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        json!({"volumes": [volume]})
    };
    let key = |name: &str| json!({"name": name, "key": "k"});
    let init = json!({"initContainers": [{"name": "i", "image": "i", "env": [{"name": "E", "valueFrom": {"secretKeyRef": key("secret-init")}}]}]});
    vec![
        ("secret-env", container(json!({"env": [{"name": "E", "valueFrom": {"secretKeyRef": key("secret-env")}}]}))),
        ("secret-env-from", container(json!({"envFrom": [{"secretRef": {"name": "secret-env-from"}}]}))),
        ("secret-init", init),
        ("secret-volume", volume(json!({"secret": {"secretName": "secret-volume"}}))),
        ("secret-projected", volume(json!({"projected": {"sources": [{"secret": {"name": "secret-projected"}}]}}))),
        ("secret-pull", json!({"imagePullSecrets": [{"name": "secret-pull"}]})),
        ("secret-csi", volume(json!({"csi": {"driver": "d.io", "nodePublishSecretRef": {"name": "secret-csi"}}}))),
        ("secret-azure", volume(json!({"azureFile": {"secretName": "secret-azure", "shareName": "s"}}))),
        ("map-env", container(json!({"env": [{"name": "E", "valueFrom": {"configMapKeyRef": key("map-env")}}]}))),
        ("map-env-from", container(json!({"envFrom": [{"configMapRef": {"name": "map-env-from"}}]}))),
        ("map-volume", volume(json!({"configMap": {"name": "map-volume"}}))),
        ("map-projected", volume(json!({"projected": {"sources": [{"configMap": {"name": "map-projected"}}]}}))),
        ("claim", volume(json!({"persistentVolumeClaim": {"claimName": "claim"}}))),
    ]
}

async fn cluster() -> TestServer {
    let server = TestServer::start().await;
    let core = "/api/v1/namespaces/default";
    // What nodes have by RBAC for their proxy and routes is no part of this.
    let by_role = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/mullion:nodes";
    let request = Request::delete(by_role).body(Full::new("".into())).unwrap();
    assert_eq!(answered(&server, "admin", &["system:masters"], request).await.0, 200);
    for node in ["n1", "n2"] {
        made(&server, "/api/v1/nodes", &json!({"metadata": {"name": node}})).await;
        let attachment =
            json!({"metadata": {"name": node}, "spec": {"attacher": "d.io", "source": {"persistentVolumeName": "disk"}, "nodeName": node}});
        made(&server, "/apis/storage.k8s.io/v1/volumeattachments", &attachment).await;
    }
    made(&server, &format!("{core}/serviceaccounts"), &json!({"metadata": {"name": "robot"}, "imagePullSecrets": [{"name": "secret-account"}]}))
        .await;
    made(&server, &format!("{core}/serviceaccounts"), &json!({"metadata": {"name": "idle"}})).await;
    for (name, spec) in ways() {
        made(&server, &format!("{core}/pods"), &pod(name, "n1", spec)).await;
    }
    made(&server, &format!("{core}/pods"), &pod("robot", "n1", json!({"serviceAccountName": "robot"}))).await;
    let env = json!({"env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": "secret-other", "key": "k"}}}]});
    made(&server, &format!("{core}/pods"), &pod("other", "n2", container(env))).await;
    // A static pod as a node reports it, made by somebody who may: it gives the node nothing.
    let mut mirror = pod("mirror", "n1", json!({"volumes": [{"name": "v", "secret": {"secretName": "secret-mirror"}}]}));
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "hash"});
    made(&server, &format!("{core}/pods"), &mirror).await;
    let claim = |name: &str, volume: &str| json!({"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"], "volumeName": volume, "resources": {"requests": {"storage": "1Gi"}}}});
    made(&server, &format!("{core}/persistentvolumeclaims"), &claim("claim", "foreign")).await;
    made(&server, &format!("{core}/persistentvolumeclaims"), &claim("unused", "spare")).await;
    for (name, claim, secret) in [("disk", "claim", "secret-stage"), ("foreign", "unused", "secret-unused")] {
        let csi = json!({"driver": "d.io", "volumeHandle": name, "nodeStageSecretRef": {"namespace": "kube-system", "name": secret},
            "controllerExpandSecretRef": {"namespace": "kube-system", "name": "secret-controller"}});
        let spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "csi": csi,
            "claimRef": {"namespace": "default", "name": claim}});
        made(&server, "/api/v1/persistentvolumes", &json!({"metadata": {"name": name}, "spec": spec})).await;
    }
    server
}

/// (verb, path below `/api/v1` or from `/apis`, whether n1 may, whether n2 may, the reason of a refusal).
type Case = (&'static str, &'static str, bool, bool, &'static str);

const UNRELATED: &str = "no relationship found between node 'NODE' and this object";

fn cases() -> Vec<Case> {
    let (secret, map) = ("/namespaces/default/secrets", "/namespaces/default/configmaps");
    let below = |path: &str, name: &str| -> &'static str { format!("{path}/{name}").leak() };
    let mut cases: Vec<Case> =
        ways().iter().filter(|(name, _)| name.starts_with("secret")).map(|(name, _)| ("GET", below(secret, name), true, false, UNRELATED)).collect();
    cases.extend(
        ways().iter().filter(|(name, _)| name.starts_with("map")).map(|(name, _)| -> Case { ("GET", below(map, name), true, false, UNRELATED) }),
    );
    cases.extend([
        ("GET", "/namespaces/default/secrets/secret-account", true, false, UNRELATED),
        ("GET", "/namespaces/default/secrets/secret-other", false, true, UNRELATED),
        ("GET", "/namespaces/default/secrets/secret-mirror", false, false, UNRELATED),
        ("GET", "/namespaces/kube-system/secrets/secret-env", false, false, UNRELATED),
        ("GET", "/namespaces/kube-system/secrets/secret-stage", true, false, UNRELATED),
        ("GET", "/namespaces/kube-system/secrets/secret-controller", false, false, UNRELATED),
        ("GET", "/namespaces/kube-system/secrets/secret-unused", false, false, UNRELATED),
        ("GET", "/namespaces/default/secrets", false, false, "No Object name found"),
        ("GET", "/secrets", false, false, "can only read namespaced object of this type"),
        ("DELETE", "/namespaces/default/secrets/secret-env", false, false, "can only read resources of this type"),
        ("PATCH", "/namespaces/default/configmaps/map-env", false, false, "can only read resources of this type"),
        ("GET", "/namespaces/default/persistentvolumeclaims/claim", true, false, UNRELATED),
        ("GET", "/namespaces/default/persistentvolumeclaims/unused", false, false, UNRELATED),
        ("GET", "/namespaces/default/persistentvolumeclaims", false, false, "can only get individual resources of this type"),
        ("PATCH", "/namespaces/default/persistentvolumeclaims/claim/status", true, false, UNRELATED),
        ("PATCH", "/namespaces/default/persistentvolumeclaims/claim", false, false, "can only get individual resources of this type"),
        ("GET", "/persistentvolumes/disk", true, false, UNRELATED),
        ("GET", "/persistentvolumes/foreign", false, false, UNRELATED),
        ("GET", "/persistentvolumes/disk/status", false, false, "cannot get subresource"),
        ("GET", "/persistentvolumes", false, false, "can only get individual resources of this type"),
        ("GET", "/apis/storage.k8s.io/v1/volumeattachments/n1", true, false, UNRELATED),
        ("GET", "/apis/storage.k8s.io/v1/volumeattachments/n2", false, true, UNRELATED),
        ("GET", "/apis/storage.k8s.io/v1/volumeattachments", false, false, "can only get individual resources of this type"),
        ("GET", "/namespaces/default/serviceaccounts/robot", true, false, UNRELATED),
        ("GET", "/namespaces/default/serviceaccounts/idle", false, false, UNRELATED),
        ("POST", "/namespaces/default/serviceaccounts/robot/token", true, false, UNRELATED),
        ("POST", "/namespaces/default/serviceaccounts/idle/token", false, false, UNRELATED),
        ("GET", "/namespaces/default/serviceaccounts", false, false, "can only create tokens for individual service accounts"),
        ("GET", "/namespaces/default/pods/robot", true, false, UNRELATED),
        ("GET", "/namespaces/default/pods/other", false, true, UNRELATED),
        ("GET", "/pods?fieldSelector=spec.nodeName%3Dn1", true, false, "can only list/watch pods with spec.nodeName field selector"),
        ("GET", "/pods", false, false, "can only list/watch pods with spec.nodeName field selector"),
        ("GET", "/nodes/n1", true, false, "node 'NODE' cannot read 'n1', only its own Node object"),
        ("GET", "/nodes", false, false, "node 'NODE' cannot read all nodes, only its own Node object"),
        ("GET", "/services", true, true, ""),
        ("GET", "/namespaces/default/endpoints/web", true, true, ""),
        ("GET", "/namespaces/default/endpoints", false, false, ""),
        ("GET", "/namespaces", false, false, ""),
        ("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles", false, false, ""),
        ("GET", "/apis/storage.k8s.io/v1/csidrivers", true, true, ""),
        ("GET", "/apis/node.k8s.io/v1/runtimeclasses", true, true, ""),
        ("GET", "/apis/certificates.k8s.io/v1beta1/clustertrustbundles", true, true, ""),
        (
            "GET",
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1",
            true,
            false,
            "can only access node lease with the same name as the requesting node",
        ),
        (
            "GET",
            "/apis/coordination.k8s.io/v1/namespaces/default/leases/n1",
            false,
            false,
            "can only access leases in the \"kube-node-lease\" system namespace",
        ),
        ("GET", "/apis/storage.k8s.io/v1/csinodes/n1", true, false, "can only access CSINode with the same name as the requesting node"),
    ]);
    cases
}

#[tokio::test]
async fn a_node_reaches_what_its_own_pods_use() {
    let server = cluster().await;
    for (method, path, first, second, why) in cases() {
        for (node, allowed) in [("n1", first), ("n2", second)] {
            let path = if path.starts_with("/apis") { path.to_string() } else { format!("/api/v1{path}") };
            let content = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
            let request = Request::builder().method(method).uri(&path).header("content-type", content);
            let body = if method == "GET" { "" } else { "{}" };
            let user = format!("system:node:{node}");
            let (code, answer) = answered(&server, &user, &["system:nodes"], request.body(Full::new(body.into())).unwrap()).await;
            let message = answer["message"].as_str().unwrap_or_default();
            // Admission may refuse what is allowed.
            let let_in = code != 403 || !message.contains("\" cannot ");
            assert_eq!(let_in, allowed, "{node} {method} {path}: {code} {message}");
            if !allowed {
                let end = why.replace("NODE", node);
                assert!(message.contains(&format!("User \"{user}\" cannot ")) && message.ends_with(&end), "{node} {method} {path}: {message}");
            }
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn a_node_asks_for_audiences_of_its_pods_and_of_its_roles() {
    let server = cluster().await;
    let path = "/api/v1/namespaces/default/serviceaccounts/robot/token";
    let get = Request::get("/api/v1/namespaces/default/pods/robot").body(Full::new("".into())).unwrap();
    let pod = answered(&server, "admin", &["system:masters"], get).await.1;
    let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": "robot", "uid": pod["metadata"]["uid"]});
    let ask = async |audiences: Value| {
        let body = json!({"spec": {"audiences": audiences, "boundObjectRef": bound}});
        let (code, answer) = posted(&server, "system:node:n1", &["system:nodes"], path, &body).await;
        (code, answer["message"].as_str().unwrap_or_default().to_owned())
    };
    let refused = "serviceaccounts \"robot\" is forbidden: audience \"registry.example\" not found in pod spec volume, \
        system:node:n1 is not authorized to request tokens for this audience";
    assert_eq!(ask(json!(["registry.example"])).await, (403, refused.to_owned()));
    let (code, message) = ask(json!(["registry.example", "other"])).await;
    assert!(code == 403 && message.ends_with("node may only request 0 or 1 audiences"), "{message}");
    // What an image credential provider needs (upstream's ServiceAccountNodeAudienceRestriction), for one account.
    let rules = json!([{"apiGroups": [""], "resources": ["registry.example"], "verbs": ["request-serviceaccounts-token-audience"],
        "resourceNames": ["robot"]}]);
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    made(&server, &format!("{rbac}/clusterroles"), &json!({"metadata": {"name": "audience"}, "rules": rules})).await;
    let binding = json!({"metadata": {"name": "audience"}, "subjects": [{"kind": "Group", "name": "system:nodes", "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"kind": "ClusterRole", "name": "audience", "apiGroup": "rbac.authorization.k8s.io"}});
    made(&server, &format!("{rbac}/clusterrolebindings"), &binding).await;
    assert_eq!(ask(json!(["registry.example"])).await.0, 201);
    assert_eq!(ask(json!(["other.example"])).await.0, 403, "another audience");
    server.stop().await;
}
