//! Services over HTTP: addresses of one and of two families, the IPAddresses and ServiceCIDRs behind them, ports, changes of type.

mod common;

use common::TestServer;
use http::Request;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use test_lab::until_async;
use tower::ServiceExt;

const MERGE: &str = "application/merge-patch+json";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";
const CIDRS: &str = "/apis/networking.k8s.io/v1/servicecidrs";
const DUAL: &str = "10.96.0.0/16,fd00:10:96::/112";

async fn ask(server: &TestServer, method: &str, path: &str, content_type: &str, body: &Value) -> (u16, Value) {
    let request = Request::builder().method(method).uri(path).header("content-type", content_type);
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = request.body(Full::new(bytes::Bytes::from(body))).unwrap();
    let (parts, body) = server.service("admin", &["system:masters"]).oneshot(request).await.unwrap().into_parts();
    (parts.status.as_u16(), serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap_or_default())
}

async fn get(server: &TestServer, path: &str) -> (u16, Value) {
    ask(server, "GET", path, "", &Value::Null).await
}

async fn post(server: &TestServer, path: &str, body: &Value) -> (u16, Value) {
    ask(server, "POST", path, "application/json", body).await
}

async fn patch(server: &TestServer, name: &str, body: Value) -> (u16, Value) {
    ask(server, "PATCH", &format!("{SERVICES}/{name}"), MERGE, &body).await
}

async fn delete(server: &TestServer, path: &str) -> u16 {
    ask(server, "DELETE", path, "application/json", &Value::Null).await.0
}

fn service(name: &str, spec: Value) -> Value {
    let mut service = json!({"metadata": {"name": name}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}});
    for (member, value) in spec.as_object().unwrap() {
        service["spec"][member] = value.clone();
    }
    service
}

async fn made(server: &TestServer, name: &str, spec: Value) -> Value {
    let (code, service) = post(server, SERVICES, &service(name, spec)).await;
    assert_eq!(code, 201, "{service}");
    service
}

/// The addresses of a Service, each of which has an IPAddress that names the Service.
async fn addresses(server: &TestServer, service: &Value) -> Vec<String> {
    let all: Vec<String> = service["spec"]["clusterIPs"].as_array().unwrap().iter().map(|ip| ip.as_str().unwrap().to_string()).collect();
    assert_eq!(service["spec"]["clusterIP"], all[0].as_str());
    for address in &all {
        let (code, found) = get(server, &format!("{ADDRESSES}/{address}")).await;
        assert_eq!(code, 200, "{address}: {found}");
        let family = if address.contains(':') { "IPv6" } else { "IPv4" };
        assert_eq!(
            found["metadata"]["labels"],
            json!({"ipaddress.kubernetes.io/ip-family": family, "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"})
        );
        let parent = json!({"namespace": "default", "resource": "services", "name": service["metadata"]["name"]});
        assert_eq!(found["spec"]["parentRef"], parent, "{address}");
    }
    all
}

async fn is_free(server: &TestServer, address: &str) -> bool {
    get(server, &format!("{ADDRESSES}/{address}")).await.0 == 404
}

#[tokio::test]
async fn services_have_addresses_of_both_families_when_they_ask() {
    let server = TestServer::start_with_service_cidrs(DUAL).await;
    let single = made(&server, "single", json!({})).await;
    assert_eq!((&single["spec"]["ipFamilyPolicy"], &single["spec"]["ipFamilies"]), (&json!("SingleStack"), &json!(["IPv4"])));
    assert!(addresses(&server, &single).await[0].starts_with("10.96."));
    let six = made(&server, "six", json!({"ipFamilies": ["IPv6"]})).await;
    assert!(addresses(&server, &six).await[0].starts_with("fd00:10:96::"));
    let both = made(&server, "both", json!({"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6"], "type": "NodePort"})).await;
    let held = addresses(&server, &both).await;
    assert_eq!(both["spec"]["ipFamilies"], json!(["IPv6", "IPv4"]));
    assert!(held.len() == 2 && held[0].starts_with("fd00") && held[1].starts_with("10.96."), "{held:?}");
    assert!(both["spec"]["ports"][0]["nodePort"].as_u64().unwrap() >= 30086, "beyond the ports that are left for users");
    let chosen = made(
        &server,
        "chosen",
        json!({"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7", "fd00:10:96::7"], "ipFamilyPolicy": "RequireDualStack"}),
    )
    .await;
    assert_eq!(addresses(&server, &chosen).await, ["10.96.0.7", "fd00:10:96::7"]);
    let (code, refused) = post(&server, SERVICES, &service("again", json!({"clusterIP": "10.96.0.7"}))).await;
    let message = "Service \"again\" is invalid: spec.clusterIPs: Invalid value: [\"10.96.0.7\"]: failed to allocate IP 10.96.0.7: provided IP is \
                   already allocated";
    assert_eq!((code, &refused["message"]), (422, &json!(message)));
    let (_, refused) = post(&server, SERVICES, &service("again", json!({"clusterIP": "192.168.0.1"}))).await;
    let message = "Service \"again\" is invalid: spec.clusterIPs: Invalid value: [\"192.168.0.1\"]: failed to allocate IP 192.168.0.1: the provided \
                   network does not match the current range";
    assert_eq!(refused["message"], message);
    assert_eq!(delete(&server, &format!("{SERVICES}/both")).await, 200);
    assert!(is_free(&server, &held[0]).await && is_free(&server, &held[1]).await);
    server.stop().await;
}

#[tokio::test]
async fn a_refused_half_gives_the_other_one_back() {
    let server = TestServer::start_with_service_cidrs(DUAL).await;
    made(&server, "first", json!({"clusterIP": "fd00:10:96::7"})).await;
    let both = json!({"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7", "fd00:10:96::7"], "ipFamilyPolicy": "RequireDualStack"});
    let (code, refused) = post(&server, SERVICES, &service("second", both)).await;
    assert!(code == 422 && refused["message"].as_str().unwrap().contains("failed to allocate IP fd00:10:96::7"), "{refused}");
    assert!(is_free(&server, "10.96.0.7").await);
    made(&server, "third", json!({"clusterIP": "10.96.0.7"})).await;
    let dry = format!("{SERVICES}?dryRun=All");
    let (code, tried) = post(&server, &dry, &service("dry", json!({"clusterIP": "10.96.0.8"}))).await;
    assert_eq!((code, &tried["spec"]["clusterIPs"]), (201, &json!(["10.96.0.8"])));
    assert!(is_free(&server, "10.96.0.8").await);
    server.stop().await;
}

#[tokio::test]
async fn services_change_their_families_and_types() {
    let server = TestServer::start_with_service_cidrs(DUAL).await;
    let single = made(&server, "web", json!({})).await;
    let first = addresses(&server, &single).await[0].clone();
    let (code, both) = patch(&server, "web", json!({"spec": {"ipFamilyPolicy": "RequireDualStack"}})).await;
    assert_eq!((code, &both["spec"]["ipFamilies"]), (200, &json!(["IPv4", "IPv6"])), "{both}");
    let held = addresses(&server, &both).await;
    assert_eq!(held[0], first);
    let (code, refused) = patch(&server, "web", json!({"spec": {"clusterIPs": [first]}})).await;
    let message = "Service \"web\" is invalid: spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": must be 'SingleStack' to release the secondary cluster IP";
    assert_eq!((code, &refused["message"]), (422, &json!(message)));
    let (_, single) = patch(&server, "web", json!({"spec": {"ipFamilyPolicy": "SingleStack"}})).await;
    assert_eq!((addresses(&server, &single).await, &single["spec"]["ipFamilies"]), (vec![first.clone()], &json!(["IPv4"])));
    assert!(is_free(&server, &held[1]).await);

    let (code, named) = patch(&server, "web", json!({"spec": {"type": "ExternalName", "externalName": "example.com"}})).await;
    assert_eq!((code, &named["spec"]["clusterIP"], &named["spec"]["ipFamilies"]), (200, &Value::Null, &Value::Null), "{named}");
    assert!(is_free(&server, &first).await);
    let (code, back) = patch(&server, "web", json!({"spec": {"type": "ClusterIP", "externalName": "", "ipFamilyPolicy": "PreferDualStack"}})).await;
    assert_eq!(code, 200, "{back}");
    assert_eq!(addresses(&server, &back).await.len(), 2);
    let (code, put) = ask(&server, "PUT", &format!("{SERVICES}/web"), "application/json", &service("web", json!({}))).await;
    assert_eq!((code, &put["spec"]["clusterIPs"]), (200, &back["spec"]["clusterIPs"]), "what is left out stays");
    server.stop().await;
}

#[tokio::test]
async fn clusters_get_a_second_family_later() {
    let server = TestServer::start_with_service_cidrs("10.96.0.0/16").await;
    let prefers = made(&server, "prefers", json!({"ipFamilyPolicy": "PreferDualStack"})).await;
    assert_eq!(addresses(&server, &prefers).await.len(), 1);
    let (code, refused) = post(&server, SERVICES, &service("both", json!({"ipFamilyPolicy": "RequireDualStack"}))).await;
    let message = "Service \"both\" is invalid: spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services";
    assert_eq!((code, &refused["message"]), (422, &json!(message)));
    let server = server.restart_with_service_cidrs(DUAL.parse().unwrap()).await;
    let (_, cidr) = get(&server, &format!("{CIDRS}/kubernetes")).await;
    assert_eq!(cidr["spec"]["cidrs"], json!(["10.96.0.0/16", "fd00:10:96::/112"]));
    let (_, same) = patch(&server, "prefers", json!({"metadata": {"labels": {"a": "b"}}})).await;
    assert_eq!(same["spec"]["clusterIPs"], prefers["spec"]["clusterIPs"], "a Service keeps its families when the cluster's change");
    let (_, more) = patch(&server, "prefers", json!({"spec": {"ipFamilyPolicy": "RequireDualStack"}})).await;
    assert_eq!(addresses(&server, &more).await.len(), 2);
    let (_, kubernetes) = get(&server, &format!("{SERVICES}/kubernetes")).await;
    assert_eq!(addresses(&server, &kubernetes).await, ["10.96.0.1"]);
    server.stop().await;
}

#[tokio::test]
async fn more_addresses_come_from_more_service_cidrs() {
    let server = TestServer::start_with_service_cidrs("10.96.0.0/30").await;
    made(&server, "a", json!({})).await;
    let (code, full) = post(&server, SERVICES, &service("b", json!({}))).await;
    let message = "Internal error occurred: failed to allocate a serviceIP for Service \"b\": range is full";
    assert_eq!((code, &full["message"]), (500, &json!(message)));
    let more = json!({"metadata": {"name": "more"}, "spec": {"cidrs": ["203.0.113.0/24"]}});
    assert_eq!(post(&server, CIDRS, &more).await.0, 201);
    let given = made(&server, "b", json!({})).await;
    assert!(addresses(&server, &given).await[0].starts_with("203.0.113."));
    let not_ready = json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    assert_eq!(ask(&server, "PATCH", &format!("{CIDRS}/more/status"), MERGE, &not_ready).await.0, 200);
    let (code, refused) = post(&server, SERVICES, &service("c", json!({"clusterIP": "203.0.113.10"}))).await;
    assert!(code == 422 && refused["message"].as_str().unwrap().contains("does not match the current range"), "{refused}");
    server.stop().await;
}

/// What somebody deletes or leaves behind is mended, and told in an Event.
#[tokio::test]
async fn ip_addresses_are_repaired() {
    let server = TestServer::start().await;
    let web = made(&server, "web", json!({})).await;
    let address = addresses(&server, &web).await[0].clone();
    assert_eq!(delete(&server, &format!("{ADDRESSES}/{address}")).await, 200);
    until_async("the IPAddress is back", async || !is_free(&server, &address).await).await;
    addresses(&server, &web).await;
    until_async("an Event tells it", async || {
        let (_, events) = get(&server, "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dweb").await;
        events["items"].as_array().unwrap().iter().any(|event| event["reason"] == "ClusterIPNotAllocated")
    })
    .await;
    let leaked = json!({
        "metadata": {"name": "10.96.9.9", "labels": {"ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io", "ipaddress.kubernetes.io/ip-family": "IPv4"}},
        "spec": {"parentRef": {"resource": "gateways", "group": "g.io", "name": "gone"}},
    });
    assert_eq!(post(&server, ADDRESSES, &leaked).await.0, 201);
    until_async("the leaked IPAddress is gone", async || is_free(&server, "10.96.9.9").await).await;
    let mut own = leaked.clone();
    own["metadata"]["labels"] = json!({});
    assert_eq!(post(&server, ADDRESSES, &own).await.0, 201);
    let (code, refused) = post(&server, SERVICES, &service("other", json!({"clusterIP": "10.96.9.9"}))).await;
    assert!(code == 422 && refused["message"].as_str().unwrap().contains("provided IP is already allocated"), "{refused}");
    server.stop().await;
}

#[tokio::test]
async fn the_kubernetes_service_comes_back() {
    let server = TestServer::start().await;
    assert_eq!(delete(&server, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes").await, 200);
    assert_eq!(delete(&server, &format!("{SERVICES}/kubernetes")).await, 200);
    assert_eq!(get(&server, "/api/v1/namespaces/default/endpoints/kubernetes").await.0, 404, "Endpoints go with their Service");
    assert!(is_free(&server, "10.96.0.1").await);
    until_async("the Service, its Endpoints and its EndpointSlice are back", async || {
        let all = [
            "/api/v1/namespaces/default/services",
            "/api/v1/namespaces/default/endpoints",
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
        ];
        let mut found = 0;
        for path in all {
            found += u32::from(get(&server, &format!("{path}/kubernetes")).await.0 == 200);
        }
        found == 3
    })
    .await;
    let (_, service) = get(&server, &format!("{SERVICES}/kubernetes")).await;
    addresses(&server, &service).await;
    server.stop().await;
}

#[tokio::test]
async fn ports_of_one_number_share_a_node_port() {
    let server = TestServer::start().await;
    let ports = json!([{"name": "t", "port": 53, "protocol": "TCP"}, {"name": "u", "port": 53, "protocol": "UDP"}, {"name": "w", "port": 80}]);
    let dns = made(&server, "dns", json!({"type": "NodePort", "ports": ports})).await;
    let port = |service: &Value, index: usize| service["spec"]["ports"][index]["nodePort"].as_u64().unwrap_or_default();
    assert!(port(&dns, 0) == port(&dns, 1) && port(&dns, 0) != port(&dns, 2), "{dns}");
    let taken = port(&dns, 2);
    let (code, refused) = post(&server, SERVICES, &service("b", json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": taken}]}))).await;
    assert!(code == 422 && refused["message"].as_str().unwrap().contains("provided port is already allocated"), "{refused}");
    let (_, inside) = patch(&server, "dns", json!({"spec": {"type": "ClusterIP"}})).await;
    assert_eq!(port(&inside, 2), 0);
    made(&server, "b", json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": taken}]})).await;
    let none = json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false, "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81, "nodePort": 30007}]});
    let balancer = made(&server, "lb", none).await;
    assert_eq!((port(&balancer, 0), port(&balancer, 1)), (0, 30007), "only what was asked for");
    let (code, put) = ask(&server, "PUT", &format!("{SERVICES}/new"), "application/json", &service("new", json!({}))).await;
    assert_eq!(code, 201, "{put}");
    server.stop().await;
}
