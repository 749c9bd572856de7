use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};

use super::*;
use crate::rows::Id;

fn service(name: &str, spec: Value) -> (Key, Arc<ServiceRow>) {
    let object: Service = serde_json::from_value(json!({"spec": spec})).unwrap();
    (Key::new("default", name), Arc::new(ServiceRow::of(&object).unwrap()))
}

fn slice(name: &str, service: &str, ports: Value, addresses: &[(&str, Option<bool>)]) -> (Key, Arc<SliceRow>) {
    let endpoints: Vec<Value> = addresses.iter().map(|(ip, ready)| json!({"addresses": [ip], "conditions": {"ready": ready}})).collect();
    let family = if addresses[0].0.contains(':') { "IPv6" } else { "IPv4" };
    let object = json!({
        "metadata": {"labels": {"kubernetes.io/service-name": service}}, "addressType": family, "endpoints": endpoints, "ports": ports
    });
    let object: EndpointSlice = serde_json::from_value(object).unwrap();
    (Key::new("default", name), Arc::new(SliceRow::of(&object).unwrap()))
}

/// A replica with two gateways, of which the second is the first gateway.
fn with_gateways() -> Replica {
    crate::rows::tests::replica(&json!({"Logical_Router": {
        "00000000-0000-0000-0000-000000000001": {"name": "GR_gw1", "external_ids": ["map", [["physical_ip", "192.0.2.1"], ["first_gateway", "no"]]]},
        "00000000-0000-0000-0000-000000000002": {"name": "GR_gw2", "external_ids": ["map", [["physical_ip", "192.0.2.2"], ["first_gateway", "yes"]]]},
        "00000000-0000-0000-0000-000000000003": {"name": "master", "external_ids": ["map", [["k8s-cluster-router", "yes"]]]},
    }}))
}

fn printed(wants: &[Want]) -> Vec<String> {
    let vips = |want: &Want| match &want.at.id {
        Id::External(key, value) => format!("{key}={value} {}", want.columns["vips"]),
        other => panic!("{other}"),
    };
    wants.iter().map(vips).collect()
}

#[test]
fn cluster_addresses_node_ports_and_external_addresses_go_to_their_load_balancers() {
    let web = json!({"clusterIPs": ["10.96.0.10"], "externalIPs": ["203.0.113.5"], "ports": [{"name": "http", "port": 80, "nodePort": 30080}]});
    let dns =
        json!({"clusterIP": "10.96.0.53", "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "x", "port": 9, "protocol": "SCTP"}]});
    let services = [service("web", web), service("dns", dns)];
    let port = json!([{"name": "http", "port": 8080}]);
    // A named target port has another number in another slice; what is not ready gets nothing.
    let slices = [
        slice("web-1", "web", port, &[("10.1.1.3", None), ("10.1.1.4", Some(false))]),
        slice("web-2", "web", json!([{"name": "http", "port": 8081}, {"name": "other", "port": 1}]), &[("10.1.2.3", Some(true))]),
        slice("dns-1", "dns", json!([{"name": "dns", "port": 5353, "protocol": "UDP"}]), &[("10.1.1.9", None)]),
    ];
    let both = "\"10.1.1.3:8080,10.1.2.3:8081\"";
    let expected = [
        format!("k8s-cluster-lb-tcp=yes {{10.96.0.10:80={both}}}"),
        "k8s-cluster-lb-udp=yes {10.96.0.53:53=10.1.1.9:5353}".to_owned(),
        format!("TCP_lb_gateway_router=GR_gw1 {{192.0.2.1:30080={both}}}"),
        "UDP_lb_gateway_router=GR_gw1 {}".to_owned(),
        format!("TCP_lb_gateway_router=GR_gw2 {{192.0.2.2:30080={both}, 203.0.113.5:80={both}}}"),
        "UDP_lb_gateway_router=GR_gw2 {}".to_owned(),
    ];
    assert_eq!(printed(&balancers(&with_gateways(), &services, &slices)), expected);
    // Without a backend there is no address.
    assert_eq!(printed(&balancers(&Replica::default(), &services, &[])), ["k8s-cluster-lb-tcp=yes {}", "k8s-cluster-lb-udp=yes {}"]);
}

#[test]
fn backends_are_of_the_addresss_family() {
    let services = [service("web", json!({"clusterIPs": ["10.96.0.10", "fd00::10"], "ports": [{"port": 80}]}))];
    let slices =
        [slice("v4", "web", json!([{"port": 8080}]), &[("10.1.1.3", None)]), slice("v6", "web", json!([{"port": 8080}]), &[("fd01::3", None)])];
    let vips = printed(&balancers(&Replica::default(), &services, &slices));
    assert_eq!(vips[0], "k8s-cluster-lb-tcp=yes {10.96.0.10:80=10.1.1.3:8080, \"[fd00::10]:80\"=\"[fd01::3]:8080\"}");
}

#[test]
fn headless_services_have_no_address() {
    let headless: Service = serde_json::from_value(json!({"spec": {"clusterIP": "None", "clusterIPs": ["None"]}})).unwrap();
    assert_eq!(ServiceRow::of(&headless), None);
}

#[test]
fn external_addresses_take_nothing_that_another_service_has() {
    let port = |number: u16| json!([{"name": "http", "port": number}]);
    let own = json!({"clusterIP": "10.96.0.10", "externalIPs": ["203.0.113.5"], "ports": [{"name": "http", "port": 80, "nodePort": 30080}]});
    let other = json!({"clusterIP": "10.96.0.11", "externalIPs": ["192.0.2.2", "203.0.113.5"],
        "ports": [{"name": "http", "port": 30080}, {"name": "again", "port": 80}]});
    let services = [service("a", own), service("z", other)];
    let again = json!([{"name": "http", "port": 1}, {"name": "again", "port": 2}]);
    let slices = [slice("a-1", "a", port(8080), &[("10.1.1.3", None)]), slice("z-1", "z", again, &[("10.1.1.9", None)])];
    let printed = printed(&balancers(&with_gateways(), &services, &slices));
    let first = printed.iter().find(|line| line.starts_with("TCP_lb_gateway_router=GR_gw2 ")).unwrap();
    assert_eq!(first, "TCP_lb_gateway_router=GR_gw2 {192.0.2.2:30080=10.1.1.3:8080, 203.0.113.5:30080=10.1.1.9:1, 203.0.113.5:80=10.1.1.3:8080}");
}
