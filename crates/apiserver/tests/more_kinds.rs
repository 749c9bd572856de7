//! Kinds of certificates, networking and storage over HTTP: creation with defaults, parts, rights, updates.

mod common;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use common::TestServer;
use http::Request;
use http_body_util::{BodyExt, Full};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair};
use serde_json::{Value, json};
use tower::ServiceExt;

const MERGE: &str = "application/merge-patch+json";
const MASTERS: (&str, &[&str]) = ("admin", &["system:masters"]);

async fn ask_as(server: &TestServer, user: (&str, &[&str]), method: &str, path: &str, content_type: &str, body: &Value) -> (u16, Value) {
    let request = Request::builder().method(method).uri(path).header("content-type", content_type);
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = request.body(Full::new(bytes::Bytes::from(body))).unwrap();
    let (parts, body) = server.service(user.0, user.1).oneshot(request).await.unwrap().into_parts();
    (parts.status.as_u16(), serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap_or_default())
}

async fn ask(server: &TestServer, method: &str, path: &str, content_type: &str, body: &Value) -> (u16, Value) {
    ask_as(server, MASTERS, method, path, content_type, body).await
}

async fn made(server: &TestServer, path: &str, object: Value) -> Value {
    let (code, made) = ask(server, "POST", &format!("{path}?fieldValidation=Strict"), "application/json", &object).await;
    assert_eq!(code, 201, "{path}: {}", made["message"]);
    made
}

/// Every kind's least object comes back by GET, and an empty patch changes nothing.
#[tokio::test]
async fn least_objects_are_accepted_and_kept() {
    let server = TestServer::start().await;
    let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
    let parent = json!({"resource": "services", "namespace": "default", "name": "web"});
    let kinds = [
        ("/apis/networking.k8s.io/v1/namespaces/default/ingresses", "x", json!({"spec": {"defaultBackend": backend}})),
        ("/apis/networking.k8s.io/v1/ingressclasses", "x", json!({"spec": {"controller": "example.com/c"}})),
        ("/apis/networking.k8s.io/v1/namespaces/default/networkpolicies", "x", json!({"spec": {"podSelector": {}}})),
        ("/apis/networking.k8s.io/v1/servicecidrs", "x", json!({"spec": {"cidrs": ["10.9.0.0/16"]}})),
        ("/apis/networking.k8s.io/v1/ipaddresses", "10.9.0.1", json!({"spec": {"parentRef": parent}})),
        ("/apis/storage.k8s.io/v1/csidrivers", "d.io", json!({"spec": {}})),
        ("/apis/storage.k8s.io/v1/csinodes", "n", json!({"spec": {"drivers": [{"name": "d.io", "nodeID": "n-1"}]}})),
        ("/apis/storage.k8s.io/v1/namespaces/default/csistoragecapacities", "x", json!({"storageClassName": "fast", "capacity": "1Gi"})),
        (
            "/apis/storage.k8s.io/v1/volumeattachments",
            "x",
            json!({"spec": {"attacher": "d.io", "source": {"persistentVolumeName": "v"}, "nodeName": "n"}}),
        ),
        ("/apis/storage.k8s.io/v1/volumeattributesclasses", "x", json!({"driverName": "d.io", "parameters": {"iops": "1"}})),
    ];
    for (path, name, mut object) in kinds {
        object["metadata"] = json!({"name": name});
        let made = made(&server, path, object).await;
        let (_, found) = ask(&server, "GET", &format!("{path}/{name}"), "", &Value::Null).await;
        assert_eq!(found, made, "{path}");
        let again = ask(&server, "PATCH", &format!("{path}/{name}"), "application/strategic-merge-patch+json", &json!({})).await;
        assert_eq!(again, (200, found.clone()), "an empty patch of {path} changes nothing");
        let put = ask(&server, "PUT", &format!("{path}/{name}"), "application/json", &found).await;
        assert_eq!(put, (200, found), "a PUT of the same to {path} changes nothing");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_cluster_says_where_its_service_addresses_come_from() {
    let server = TestServer::start().await;
    let (code, cidr) = ask(&server, "GET", "/apis/networking.k8s.io/v1/servicecidrs/kubernetes/status", "", &Value::Null).await;
    assert_eq!((code, &cidr["status"]["conditions"][0]["type"]), (200, &json!("Ready")), "{cidr}");
    let (_, service) = ask(&server, "GET", "/api/v1/namespaces/default/services/kubernetes", "", &Value::Null).await;
    let network: ipnet::IpNet = cidr["spec"]["cidrs"][0].as_str().unwrap().parse().unwrap();
    let address: std::net::IpAddr = service["spec"]["clusterIP"].as_str().unwrap().parse().unwrap();
    assert!(network.contains(&address));
    server.stop().await;
}

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

fn request(name: &str, signer: &str, organization: &str) -> Value {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::OrganizationName, organization);
    let pem = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
    json!({"metadata": {"name": name}, "spec": {"request": STANDARD.encode(pem), "usages": ["client auth"], "signerName": signer,
        "username": "somebody else"}, "status": {"conditions": [{"type": "Approved", "status": "True"}]}})
}

#[tokio::test]
async fn a_request_says_who_asks_and_waits() {
    let server = TestServer::start().await;
    let made = made(&server, REQUESTS, request("r", "example.com/signer", "org")).await;
    assert_eq!((&made["spec"]["username"], &made["status"]), (&json!("admin"), &json!({})));
    assert!(made["spec"]["groups"].as_array().unwrap().contains(&json!("system:masters")));
    let approved = json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "Ok"}]}, "spec": {"username": "other"},
        "metadata": {"annotations": {"patched": "yes"}}});
    let (code, refused) = ask(&server, "PATCH", &format!("{REQUESTS}/r/status"), MERGE, &approved).await;
    assert!(code == 422 && refused["message"].as_str().unwrap().contains("updates may not add a condition of type \"Approved\""), "{refused}");
    let (code, decided) = ask(&server, "PATCH", &format!("{REQUESTS}/r/approval"), MERGE, &approved).await;
    assert_eq!((code, &decided["spec"]), (200, &made["spec"]), "{decided}");
    assert!(decided["status"]["conditions"][0]["lastUpdateTime"].is_string());
    assert_eq!(decided["metadata"]["annotations"]["patched"], "yes");
    let certificate = CertificateParams::new(Vec::new()).unwrap().self_signed(&KeyPair::generate().unwrap()).unwrap();
    let issued = json!({"status": {"certificate": STANDARD.encode(certificate.pem())}});
    let (code, signed) = ask(&server, "PATCH", &format!("{REQUESTS}/r/status"), MERGE, &issued).await;
    assert_eq!((code, &signed["status"]["conditions"]), (200, &decided["status"]["conditions"]), "{signed}");
    let (_, found) = ask(&server, "GET", &format!("{REQUESTS}?fieldSelector=spec.signerName%3Dexample.com%2Fsigner"), "", &Value::Null).await;
    assert_eq!(found["items"].as_array().unwrap().len(), 1);
    server.stop().await;
}

fn rule(resource: &str, verbs: &[&str], names: &[&str]) -> Value {
    json!({"apiGroups": ["certificates.k8s.io"], "resources": [resource], "verbs": verbs, "resourceNames": names})
}

/// Lets a user do what a rule says.
async fn grant(server: &TestServer, user: &str, role: &str, rule: &Value) {
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    made(server, &format!("{rbac}/clusterroles"), json!({"metadata": {"name": role}, "rules": [rule]})).await;
    let binding = json!({"metadata": {"name": role}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}]});
    made(server, &format!("{rbac}/clusterrolebindings"), binding).await;
}

#[tokio::test]
async fn who_writes_a_signer_s_bundle_attests_for_it() {
    const BUNDLES: &str = "/apis/certificates.k8s.io/v1beta1/clustertrustbundles";
    let server = TestServer::start().await;
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem();
    let bundle = |name: &str, signer: Value| json!({"metadata": {"name": name}, "spec": {"signerName": signer, "trustBundle": authority}});
    let eve = ("eve", &[][..]);
    grant(&server, "eve", "writer", &rule("clustertrustbundles", &["create", "patch", "get", "list"], &[])).await;
    let create = async |object: &Value| ask_as(&server, eve, "POST", BUNDLES, "application/json", object).await;
    let signed = bundle("example.com:signer:b", json!("example.com/signer"));
    let (code, refused) = create(&signed).await;
    let why = "clustertrustbundles.certificates.k8s.io \"example.com:signer:b\" is forbidden: user not permitted to attest for signerName \"example.com/signer\"";
    assert_eq!((code, refused["message"].as_str().unwrap()), (403, why));
    // A bundle of no signer attests nothing.
    assert_eq!(create(&bundle("free", Value::Null)).await.0, 201);
    made(&server, BUNDLES, signed.clone()).await;
    let path = format!("{BUNDLES}/example.com:signer:b");
    let patch = async |change: Value| ask_as(&server, eve, "PATCH", &path, MERGE, &change).await;
    assert_eq!(patch(json!({"metadata": {"labels": {"a": "b"}}})).await.0, 403);
    let (code, kept) = patch(json!({"metadata": {"finalizers": ["example.com/f"]}})).await;
    assert_eq!(code, 200, "what garbage collection writes says nothing new: {kept}");
    grant(&server, "eve", "attester", &rule("signers", &["attest"], &["example.com/*"])).await;
    assert_eq!(patch(json!({"metadata": {"labels": {"a": "b"}}})).await.0, 200);
    let (code, refused) = patch(json!({"spec": {"trustBundle": "none"}})).await;
    assert!(code == 422 && refused["message"].as_str().unwrap().contains("at least one trust anchor must be provided"), "{refused}");
    let selected = format!("{BUNDLES}?fieldSelector=spec.signerName%3Dexample.com%2Fsigner");
    assert_eq!(ask_as(&server, eve, "GET", &selected, "", &Value::Null).await.1["items"].as_array().unwrap().len(), 1);
    server.stop().await;
}

#[tokio::test]
async fn signers_have_their_own_approvers() {
    let server = TestServer::start().await;
    made(&server, REQUESTS, request("r", "example.com/signer", "org")).await;
    grant(&server, "eve", "approver", &rule("certificatesigningrequests/approval", &["update", "patch"], &[])).await;
    let approved = json!({"status": {"conditions": [{"type": "Approved", "status": "True"}]}});
    let eve = ("eve", &[][..]);
    let (code, refused) = ask_as(&server, eve, "PATCH", &format!("{REQUESTS}/r/approval"), MERGE, &approved).await;
    assert_eq!(code, 403);
    let why = "user not permitted to approve requests with signerName \"example.com/signer\"";
    assert_eq!(refused["message"], format!("certificatesigningrequests.certificates.k8s.io \"r\" is forbidden: {why}"));
    grant(&server, "eve", "signer", &rule("signers", &["approve"], &["example.com/*"])).await;
    let (code, decided) = ask_as(&server, eve, "PATCH", &format!("{REQUESTS}/r/approval"), MERGE, &approved).await;
    assert_eq!(code, 200, "{decided}");
    server.stop().await;
}

#[tokio::test]
async fn nobody_becomes_a_master_by_a_certificate() {
    let server = TestServer::start().await;
    let body = request("r", "kubernetes.io/kube-apiserver-client", "system:masters");
    let (code, refused) = ask(&server, "POST", REQUESTS, "application/json", &body).await;
    assert_eq!(code, 403);
    let why = "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed";
    assert_eq!(refused["message"], format!("certificatesigningrequests.certificates.k8s.io \"r\" is forbidden: {why}"));
    server.stop().await;
}
