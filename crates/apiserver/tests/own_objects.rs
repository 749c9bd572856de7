//! Who owns the fields of what the control plane itself writes.

mod common;

use common::TestServer;
use http::Request;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tower::ServiceExt;

async fn get(server: &TestServer, path: &str) -> Value {
    let text = server.admin().request_text(Request::get(path).body(Vec::new()).unwrap()).await.unwrap();
    serde_json::from_str(&text).unwrap()
}

/// `MANAGER OPERATION`, with the fields.
fn owners(object: &Value) -> Vec<(String, Value)> {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let name = |entry: &Value| format!("{} {}", entry["manager"].as_str().unwrap(), entry["operation"].as_str().unwrap());
    entries.iter().map(|entry| (name(entry), entry["fieldsV1"].clone())).collect()
}

#[tokio::test]
async fn what_the_server_makes_is_owned_by_upstream_s_managers() {
    let server = TestServer::start().await;
    let namespace = get(&server, "/api/v1/namespaces/kube-system").await;
    assert_eq!(owners(&namespace).iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["kube-apiserver Update"]);
    let service = get(&server, "/api/v1/namespaces/default/services/kubernetes").await;
    assert_eq!(owners(&service)[0].0, "kube-apiserver Update");
    assert!(owners(&service)[0].1["f:spec"]["f:clusterIP"].is_object(), "{service}");
    let edit = get(&server, "/apis/rbac.authorization.k8s.io/v1/clusterroles/edit").await;
    let found = owners(&edit);
    let of = |name: &str| &found.iter().find(|(own, _)| own == name).unwrap_or_else(|| panic!("{name} in {found:?}")).1;
    assert_eq!(of("clusterrole-aggregation-controller Apply"), &json!({"f:rules": {}}));
    assert!(of("kube-apiserver Update")["f:aggregationRule"].is_object());
    let cidr = get(&server, "/apis/networking.k8s.io/v1/servicecidrs/kubernetes").await;
    assert!(owners(&cidr).iter().any(|(name, fields)| name == "kube-apiserver Update" && fields["f:status"].is_object()), "{cidr}");
    let server = server.restart().await;
    assert_eq!(get(&server, "/apis/rbac.authorization.k8s.io/v1/clusterroles/edit").await, edit, "a restart writes nothing anew");
    server.stop().await;
}

#[tokio::test]
async fn parts_of_the_control_plane_write_under_their_names() {
    let server = TestServer::start().await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let make = async |name: &str, agent: Option<&str>| {
        let mut request = Request::post(maps).header("content-type", "application/json");
        if let Some(agent) = agent {
            request = request.header("user-agent", agent);
        }
        let body = json!({"metadata": {"name": name}, "data": {"a": "b"}}).to_string();
        let service = server.service("system:kube-controller-manager", &["system:masters"]).named("kube-controller-manager");
        let response = service.oneshot(request.body(Full::new(bytes::Bytes::from(body))).unwrap()).await.unwrap();
        let made: Value = serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap();
        owners(&made)[0].0.clone()
    };
    assert_eq!(make("a", None).await, "kube-controller-manager Update");
    assert_eq!(make("b", Some("other/1.0 (x)")).await, "other Update", "a client that names itself keeps its name");
    server.stop().await;
}
