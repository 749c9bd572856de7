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

/// Upstream's conformance case "should complete a service status lifecycle".
#[tokio::test]
async fn statuses_are_patched_and_updated() {
    let server = TestServer::start().await;
    let spec = json!({"type": "LoadBalancer", "loadBalancerClass": "example.com/internal-vip"});
    made(&server, "web", spec).await;
    let status = format!("{SERVICES}/web/status");
    let body = json!({"metadata": {"annotations": {"patchedstatus": "true"}}, "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]}},
        "spec": {"externalName": "no"}});
    let (code, patched) = ask(&server, "PATCH", &status, MERGE, &body).await;
    assert_eq!((code, &patched["metadata"]["annotations"]["patchedstatus"]), (200, &json!("true")), "{patched}");
    assert_eq!(patched["status"]["loadBalancer"]["ingress"], json!([{"ip": "203.0.113.1", "ipMode": "VIP"}]));
    assert_eq!(patched["spec"]["externalName"], Value::Null, "a status is not a spec");
    let mut updated = patched.clone();
    updated["status"]["conditions"] =
        json!([{"type": "StatusUpdate", "status": "True", "reason": "E2E", "message": "Set from e2e test", "lastTransitionTime": null}]);
    let (code, updated) = ask(&server, "PUT", &status, "application/json", &updated).await;
    assert_eq!((code, &updated["status"]["conditions"][0]["reason"]), (200, &json!("E2E")), "{updated}");
    let wrong = json!({"status": {"loadBalancer": {"ingress": [{"ip": "web"}]}}});
    let (code, refused) = ask(&server, "PATCH", &status, MERGE, &wrong).await;
    assert!(code == 422 && refused["message"].as_str().unwrap().contains("status.loadBalancer.ingress[0].ip: Invalid value: \"web\""), "{refused}");
    let (_, inside) = patch(&server, "web", json!({"spec": {"type": "ClusterIP", "loadBalancerClass": null}})).await;
    assert_eq!(inside["status"]["loadBalancer"], json!({}), "a Service of another type has no load balancer");
    server.stop().await;
}

/// Upstream's conformance case "should delete a collection of services", and that what they held is free.
#[tokio::test]
async fn a_collection_of_services_is_deleted() {
    let server = TestServer::start().await;
    let mut held = Vec::new();
    for name in ["a", "b", "c"] {
        let mut service = service(name, json!({}));
        let label = if name == "c" { "out-of-test" } else { "true" };
        service["metadata"]["labels"] = json!({"e2e-test-service": label});
        let (code, service) = post(&server, SERVICES, &service).await;
        assert_eq!(code, 201);
        held.push(addresses(&server, &service).await.remove(0));
    }
    assert_eq!(delete(&server, &format!("{SERVICES}?labelSelector=e2e-test-service%3Dtrue")).await, 200);
    let (_, left) = get(&server, SERVICES).await;
    let names: Vec<&str> = left["items"].as_array().unwrap().iter().map(|service| service["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["c", "kubernetes"]);
    assert_eq!((is_free(&server, &held[0]).await, is_free(&server, &held[1]).await, is_free(&server, &held[2]).await), (true, true, false));
    server.stop().await;
}

/// Upstream's conformance cases "should be able to change the type from … to …": whole objects are read, changed and sent back.
#[tokio::test]
async fn services_change_their_type_by_whole_objects() {
    let server = TestServer::start().await;
    let update = async |name: &str, changes: Value| {
        let (_, mut service) = get(&server, &format!("{SERVICES}/{name}")).await;
        for (member, value) in changes.as_object().unwrap() {
            service["spec"][member] = value.clone();
        }
        let (code, updated) = ask(&server, "PUT", &format!("{SERVICES}/{name}"), "application/json", &service).await;
        assert_eq!(code, 200, "{changes}: {updated}");
        updated
    };
    made(&server, "nodeport", json!({"type": "NodePort", "sessionAffinity": "ClientIP"})).await;
    let named = update("nodeport", json!({"type": "ExternalName", "externalName": "external.example"})).await;
    assert_eq!((&named["spec"]["clusterIP"], &named["spec"]["ports"][0]["nodePort"]), (&Value::Null, &Value::Null), "{named}");
    let port = json!([{"name": "http", "port": 80, "targetPort": 9376, "protocol": "TCP"}]);
    let back = update("nodeport", json!({"type": "NodePort", "externalName": "", "ports": port})).await;
    assert!(back["spec"]["ports"][0]["nodePort"].is_u64() && back["spec"]["clusterIP"].is_string(), "{back}");
    assert_eq!(back["spec"]["externalTrafficPolicy"], "Cluster");
    let both = json!([{"name": "http", "port": 80, "protocol": "TCP"}, {"name": "udp", "port": 80, "protocol": "UDP"}]);
    let both = update("nodeport", json!({"ports": both})).await;
    assert_eq!(both["spec"]["ports"][0]["nodePort"], back["spec"]["ports"][0]["nodePort"], "by name");
    assert!(both["spec"]["ports"][1]["nodePort"].is_u64());
    let plain = update("nodeport", json!({"sessionAffinity": "None"})).await;
    assert_eq!(plain["spec"]["sessionAffinityConfig"], Value::Null);
    let sticky = update("nodeport", json!({"sessionAffinity": "ClientIP"})).await;
    assert_eq!(sticky["spec"]["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"], 10800);
    server.stop().await;
}

/// Upstream's case "should implement NodePort and HealthCheckNodePort correctly when ExternalTrafficPolicy changes".
#[tokio::test]
async fn health_check_ports_come_and_go_with_the_traffic_policy() {
    let server = TestServer::start().await;
    let spec = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30011, "loadBalancerClass": "example.com/x"});
    let local = made(&server, "web", spec).await;
    assert_eq!(local["spec"]["healthCheckNodePort"], 30011);
    let (code, refused) = patch(&server, "web", json!({"spec": {"healthCheckNodePort": 30012}})).await;
    assert!(code == 422 && refused["message"].as_str().unwrap().ends_with("spec.healthCheckNodePort: Forbidden: field is immutable"), "{refused}");
    let taken = service("other", json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30011}]}));
    assert_eq!(post(&server, SERVICES, &taken).await.0, 422);
    let (code, cluster) = patch(&server, "web", json!({"spec": {"externalTrafficPolicy": "Cluster"}})).await;
    assert_eq!((code, &cluster["spec"]["healthCheckNodePort"]), (200, &Value::Null), "{cluster}");
    assert_eq!(post(&server, SERVICES, &taken).await.0, 201, "the port is free again");
    let (_, local) = patch(&server, "web", json!({"spec": {"externalTrafficPolicy": "Local"}})).await;
    assert!(local["spec"]["healthCheckNodePort"].as_u64().unwrap() >= 30086, "{local}");
    server.stop().await;
}

/// Upstream's conformance cases of the IPAddress API, and of Endpoints and EndpointSlices whose addresses are malformed.
#[tokio::test]
async fn addresses_are_checked_over_http() {
    let server = TestServer::start().await;
    let parent = json!({"group": "mygroup", "resource": "myresources", "namespace": "foo", "name": "bar"});
    for (name, label) in [("255.255.255.255", "broadcast"), ("fe80::42:1dff:fe84:f9e2", "link-local")] {
        let ip = json!({"metadata": {"name": name, "labels": {"type": label}}, "spec": {"parentRef": parent}});
        let (code, made) = post(&server, ADDRESSES, &ip).await;
        assert_eq!(code, 201, "{made}");
    }
    let change = json!({"metadata": {"annotations": {"patched": "true"}}});
    let (code, patched) = ask(&server, "PATCH", &format!("{ADDRESSES}/255.255.255.255"), MERGE, &change).await;
    assert_eq!((code, &patched["metadata"]["annotations"]["patched"]), (200, &json!("true")));
    assert_eq!(ask(&server, "PUT", &format!("{ADDRESSES}/255.255.255.255"), "application/json", &patched).await.0, 200);
    let moved = json!({"spec": {"parentRef": {"name": "other"}}});
    assert_eq!(ask(&server, "PATCH", &format!("{ADDRESSES}/255.255.255.255"), MERGE, &moved).await.0, 422);
    assert_eq!(delete(&server, &format!("{ADDRESSES}?labelSelector=type%3Dlink-local")).await, 200);
    let (_, left) = get(&server, &format!("{ADDRESSES}?labelSelector=type")).await;
    assert_eq!(left["items"].as_array().unwrap().len(), 1);

    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let slice = json!({"metadata": {"name": "s"}, "addressType": "IPv6", "endpoints": [{"addresses": ["10.0.0.1"]}], "ports": []});
    let (code, refused) = post(&server, slices, &slice).await;
    let message = "EndpointSlice.discovery.k8s.io \"s\" is invalid: endpoints[0].addresses: Invalid value: \"10.0.0.1\": must be an IPv6 address";
    assert_eq!((code, &refused["message"]), (422, &json!(message)));
    let endpoints = json!({"metadata": {"name": "e"}, "subsets": [{"addresses": [{"ip": "127.0.0.1"}], "ports": [{"port": 80}]}]});
    let (code, refused) = post(&server, "/api/v1/namespaces/default/endpoints", &endpoints).await;
    let message = "Endpoints \"e\" is invalid: subsets[0].addresses[0].ip: Invalid value: \"127.0.0.1\": may not be in the loopback range \
                   (127.0.0.0/8, ::1/128)";
    assert_eq!((code, &refused["message"]), (422, &json!(message)));
    let (code, node) = post(&server, "/api/v1/nodes", &json!({"metadata": {"name": "n"}, "spec": {"podCIDRs": ["10.0.0.0/24", "fd00::/64"]}})).await;
    assert_eq!((code, &node["spec"]["podCIDR"]), (201, &json!("10.0.0.0/24")), "{node}");
    server.stop().await;
}
