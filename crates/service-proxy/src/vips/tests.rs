use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};

use super::*;
use crate::table::{Protocol, Table};

fn service(spec: Value) -> Service {
    serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "default"}, "spec": spec})).unwrap()
}

fn row(spec: Value) -> Option<ServiceRow> {
    ServiceRow::of(&service(spec))
}

/// `endpoints`: address, node, conditions as letters r(eady) s(erving) t(erminating).
fn slice(ports: Value, endpoints: &[(&str, &str, &str)]) -> Arc<SliceRow> {
    let list: Vec<Value> = endpoints
        .iter()
        .map(|(address, node, flags)| {
            let has = |flag: char| flags.contains(flag);
            json!({"addresses": [address], "nodeName": node, "conditions": {"ready": has('r'), "serving": has('s'), "terminating": has('t')}})
        })
        .collect();
    let doc: EndpointSlice = serde_json::from_value(json!({
        "metadata": {"name": "web-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "ports": ports, "endpoints": list,
    }))
    .unwrap();
    Arc::new(SliceRow::of(&doc, "here").unwrap())
}

fn render(spec: Value, slices: &[Arc<SliceRow>]) -> String {
    let key = Key::new("default", "web");
    let mut table = Table::default();
    table.set_service(&key, desired_vips(&key, &row(spec).unwrap(), slices, &NodePolicy::default()));
    table.render()
}

fn http() -> Value {
    json!([{"port": 8080}])
}

#[test]
fn service_has_a_vip_for_every_address_and_node_port() {
    let spec = json!({"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7", "fd00::7"], "type": "LoadBalancer", "externalIPs": ["192.0.2.9"],
        "sessionAffinity": "ClientIP", "ports": [{"name": "", "port": 80, "targetPort": 8080, "nodePort": 30080}]});
    let text = render(spec, &[slice(http(), &[("10.1.0.5", "here", "rs"), ("10.1.1.5", "there", "rs")])]);
    insta::assert_snapshot!(text, @r"
    10.96.0.7:80/tcp default/web:80 (ClusterIp) -> 10.1.0.5:8080@here 10.1.1.5:8080; sticky 10800s
    192.0.2.9:80/tcp default/web:80 (ExternalIp) -> 10.1.0.5:8080@here 10.1.1.5:8080; sticky 10800s
    [fd00::7]:80/tcp default/web:80 (ClusterIp) -> reject; sticky 10800s
    node:30080/tcp default/web:80 (NodePort) -> 10.1.0.5:8080@here 10.1.1.5:8080; sticky 10800s
    [node]:30080/tcp default/web:80 (NodePort) -> reject; sticky 10800s
    ");
}

#[test]
fn traffic_policies_select_backends() {
    let spec = json!({"clusterIP": "10.96.0.7", "type": "NodePort", "internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local",
        "ports": [{"port": 80, "nodePort": 30080}]});
    let both = slice(http(), &[("10.1.0.5", "here", "rs"), ("10.1.1.5", "there", "rs")]);
    insta::assert_snapshot!(render(spec.clone(), &[both]), @r"
    10.96.0.7:80/tcp default/web:80 (ClusterIp) -> 10.1.0.5:8080@here
    node:30080/tcp default/web:80 (NodePort) -> 10.1.0.5:8080@here; inside -> 10.1.0.5:8080@here 10.1.1.5:8080; keeps client
    ");
    let away = slice(http(), &[("10.1.1.5", "there", "rs")]);
    insta::assert_snapshot!(render(spec.clone(), &[away]), @r"
    10.96.0.7:80/tcp default/web:80 (ClusterIp) -> drop
    node:30080/tcp default/web:80 (NodePort) -> drop; inside -> 10.1.1.5:8080; keeps client
    ");
    insta::assert_snapshot!(render(spec, &[]), @r"
    10.96.0.7:80/tcp default/web:80 (ClusterIp) -> reject
    node:30080/tcp default/web:80 (NodePort) -> reject; inside -> ; keeps client
    ");
}

#[test]
fn terminating_endpoints_serve_only_when_nobody_is_ready() {
    let spec = json!({"clusterIP": "10.96.0.7", "ports": [{"port": 80}]});
    for (first, second, expected) in [
        ("rs", "st", "10.1.0.1:8080@here"),
        ("", "st", "10.1.0.2:8080@here"),
        ("t", "s", "reject"),
        ("rst", "", "10.1.0.1:8080@here"),
        ("", "", "reject"),
    ] {
        let text = render(spec.clone(), &[slice(http(), &[("10.1.0.1", "here", first), ("10.1.0.2", "here", second)])]);
        assert_eq!(text, format!("10.96.0.7:80/tcp default/web:80 (ClusterIp) -> {expected}\n"), "{first} {second}");
    }
}

#[test]
fn local_policy_falls_back_to_local_terminating_endpoints() {
    let spec = json!({"clusterIP": "10.96.0.7", "internalTrafficPolicy": "Local", "ports": [{"port": 80}]});
    let text = render(spec, &[slice(http(), &[("10.1.0.5", "here", "st"), ("10.1.1.5", "there", "rs")])]);
    assert!(text.ends_with("-> 10.1.0.5:8080@here\n"), "{text}");
}

#[test]
fn ports_match_by_name_and_protocol() {
    let spec = json!({"clusterIP": "10.96.0.10", "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53}]});
    let slices = [
        slice(json!([{"name": "dns", "port": 5353, "protocol": "UDP"}, {"name": "dns-tcp", "port": 5354}]), &[("10.1.0.5", "here", "rs")]),
        slice(json!([{"name": "dns-tcp", "port": 53, "protocol": "UDP"}, {"name": "other", "port": 1}]), &[("10.1.0.6", "here", "rs")]),
        slice(json!([{"name": "dns", "protocol": "UDP"}]), &[("10.1.0.7", "here", "rs")]),
    ];
    insta::assert_snapshot!(render(spec, &slices), @r"
    10.96.0.10:53/tcp default/web:dns-tcp (ClusterIp) -> 10.1.0.5:5354@here
    10.96.0.10:53/udp default/web:dns (ClusterIp) -> 10.1.0.5:5353@here
    ");
}

#[test]
fn services_without_a_cluster_ip_have_no_vips() {
    for spec in [
        json!({"clusterIP": "None", "ports": [{"port": 80}]}),
        json!({"type": "ExternalName", "externalName": "example.org", "ports": [{"port": 80}]}),
        json!({"clusterIP": "10.96.0.7"}),
        json!({"clusterIP": "10.96.0.7", "ports": []}),
        json!({"clusterIP": "", "ports": [{"port": 80}]}),
        json!({"clusterIP": "not an address", "ports": [{"port": 80}]}),
        json!({"clusterIP": "10.96.0.7", "ports": [{"port": 0}]}),
        json!({"clusterIP": "10.96.0.7", "ports": [{"port": -7}, {"port": 70000}]}),
        json!({"clusterIP": "10.96.0.7", "ports": [{"port": 80, "protocol": "ICMP"}]}),
    ] {
        assert_eq!(row(spec.clone()), None, "{spec}");
    }
    assert_eq!(ServiceRow::of(&Service::default()), None);
    let mut foreign = service(json!({"clusterIP": "10.96.0.7", "ports": [{"port": 80}]}));
    foreign.metadata.labels = Some([("service.kubernetes.io/service-proxy-name".to_owned(), "other".to_owned())].into());
    assert_eq!(ServiceRow::of(&foreign), None);
}

#[test]
fn load_balancer_address_with_proxy_mode_has_no_vip() {
    let mut doc = service(json!({"clusterIP": "10.96.0.7", "ports": [{"port": 80}]}));
    doc.status = serde_json::from_value(
        json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1", "ipMode": "Proxy"}, {"ip": "192.0.2.2"}, {"hostname": "x"}]}}),
    )
    .unwrap();
    assert_eq!(ServiceRow::of(&doc).unwrap().load_balancer_ips, ["192.0.2.2".parse::<IpAddr>().unwrap()]);
}

/// CVE-2021-25736: on Windows such a service led to whatever listens on its port on the node.
#[test]
fn a_load_balancer_without_an_address_has_no_vip_of_its_own() {
    for ingress in [json!(null), json!([]), json!([{}]), json!([{"ip": ""}]), json!([{"ip": "pending"}]), json!([{"hostname": "lb.example"}])] {
        let mut doc = service(json!({"type": "LoadBalancer", "clusterIP": "10.96.0.7", "ports": [{"port": 80}]}));
        doc.status = serde_json::from_value(json!({"loadBalancer": {"ingress": ingress}})).unwrap();
        let row = ServiceRow::of(&doc).unwrap();
        assert_eq!(row.load_balancer_ips, [] as [IpAddr; 0], "{ingress}");
        let vips = desired_vips(&Key::new("default", "web"), &row, &[], &NodePolicy::default()).vips;
        let addresses: Vec<_> = vips.iter().map(|(key, _)| key.address).collect();
        assert_eq!(addresses, [VipAddress::Ip("10.96.0.7".parse().unwrap())], "{ingress}");
    }
}

#[test]
fn an_endpoint_in_two_slices_counts_once() {
    let spec = json!({"clusterIP": "10.96.0.7", "ports": [{"port": 80}]});
    let slices = [slice(http(), &[("10.1.0.5", "here", "")]), slice(http(), &[("10.1.0.5", "here", "rs")])];
    assert!(render(spec, &slices).ends_with("-> 10.1.0.5:8080@here\n"));
}

#[test]
fn first_service_keeps_a_claimed_vip_until_it_releases_it() {
    let spec = json!({"clusterIP": "10.96.0.7", "ports": [{"port": 80}]});
    let (a, b) = (Key::new("default", "a"), Key::new("default", "b"));
    let of = |key: &Key| desired_vips(key, &row(spec.clone()).unwrap(), &[], &NodePolicy::default());
    let mut table = Table::default();
    assert_eq!(table.set_service(&b, of(&b)).len(), 1);
    let taken = table.set_service(&a, of(&a));
    assert_eq!(taken[0].to_string(), "~ 10.96.0.7:80/tcp default/a:80 (ClusterIp) -> reject");
    assert_eq!(table.set_service(&b, of(&b)), [], "no change, no work");
    let given_up = table.set_service(&a, DesiredVips::default());
    assert_eq!(&*given_up[0].new.as_ref().unwrap().service, "default/b:80");
    table.set_service(&b, DesiredVips::default());
    assert!(table.is_empty());
}

#[test]
fn inputs_report_changed_services() {
    use crate::inputs::Inputs;
    let mut inputs = Inputs::default();
    let web = row(json!({"clusterIP": "10.96.0.7", "ports": [{"port": 80}]})).unwrap();
    let slice = slice(http(), &[("10.1.0.5", "here", "rs")]);
    let (service_key, slice_key) = (Key::new("default", "web"), Key::new("default", "web-1"));
    inputs.slice(&slice_key, Some((*slice).clone()));
    inputs.service(&service_key, Some(web.clone()));
    assert!(inputs.take_dirty().iter().eq([&service_key]));
    assert_eq!(inputs.rows(&service_key).unwrap().1.len(), 1);
    let mut moved = (*slice).clone();
    moved.service = "other".into();
    inputs.slice(&slice_key, Some(moved));
    assert_eq!(inputs.take_dirty().len(), 2, "both the old and the new Service");
    assert!(inputs.rows(&service_key).unwrap().1.is_empty());
    inputs.service(&service_key, None);
    assert!(inputs.rows(&service_key).is_none());
    assert_eq!(web.ports[0].protocol, Protocol::Tcp);
}

mod any_input {
    use k8s_openapi::api::core::v1::{ServicePort, ServiceSpec};
    use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use proptest::prelude::*;

    use super::*;

    fn text() -> impl Strategy<Value = Option<String>> {
        let words = ["", "None", "TCP", "UDP", "udp", "10.96.0.1", "fd00::1", "999.1.1.1", "Local", "ClientIP", "ExternalName", "a"];
        prop::option::of(prop::sample::select(words.to_vec()).prop_map(str::to_owned))
    }

    fn number() -> impl Strategy<Value = i32> {
        prop_oneof![Just(80), Just(0), Just(-1), Just(65_536), any::<i32>()]
    }

    prop_compose! {
        fn a_service()(t in prop::collection::vec(text(), 8), ports in prop::option::of(prop::collection::vec((text(), text(), number(), prop::option::of(number())), 0..4))) -> Service {
            let spec = ServiceSpec {
                cluster_ip: t[0].clone(),
                cluster_ips: t[1].clone().map(|ip| vec![ip.clone(), ip]),
                external_ips: t[2].clone().map(|ip| vec![ip]),
                type_: t[3].clone(),
                session_affinity: t[4].clone(),
                internal_traffic_policy: t[5].clone(),
                external_traffic_policy: t[6].clone(),
                ports: ports.map(|list| list.into_iter().map(|(name, protocol, port, node_port)| ServicePort { name, protocol, port, node_port, ..Default::default() }).collect()),
                ..Default::default()
            };
            Service { spec: t[7].clone().map(|_| spec), ..Default::default() }
        }
    }

    prop_compose! {
        fn a_slice()(kind in text(), ports in prop::collection::vec((text(), text(), prop::option::of(number())), 0..4), addresses in prop::collection::vec((text(), text()), 0..4)) -> EndpointSlice {
            let labels = [("kubernetes.io/service-name".to_owned(), "web".to_owned())].into();
            EndpointSlice {
                address_type: kind.unwrap_or_default(),
                metadata: ObjectMeta { labels: Some(labels), ..Default::default() },
                ports: Some(ports.into_iter().map(|(name, protocol, port)| EndpointPort { name, protocol, port, ..Default::default() }).collect()),
                endpoints: Some(addresses.into_iter().map(|(ip, node_name)| Endpoint { addresses: ip.into_iter().collect(), node_name, ..Default::default() }).collect()),
            }
        }
    }

    proptest! {
        #[test]
        fn odd_objects_never_panic_and_never_listen_on_port_zero(service in a_service(), slices in prop::collection::vec(a_slice(), 0..3)) {
            let rows: Vec<_> = slices.iter().filter_map(|slice| SliceRow::of(slice, "here")).map(Arc::new).collect();
            if let Some(row) = ServiceRow::of(&service) {
                for (key, vip) in desired_vips(&Key::new("default", "web"), &row, &rows, &NodePolicy::default()).vips {
                    prop_assert!(key.port != 0 && vip.backends.iter().all(|b| b.port != 0 && IpFamily::of(b.address) == key.family()));
                }
            }
        }
    }
}
