//! The table as text, for each case of Services and EndpointSlices.

use std::sync::Arc;

use cluster::Key;
use serde_json::{Value, json};

use crate::inputs::Inputs;
use crate::rows::{ServiceRow, SliceRow};
use crate::table::{Change, Table};
use crate::vips::{NodePolicy, desired_vips};

/// A load balancer of both policies, as most tests want it; `spec` and `status` go over it.
fn balancer(over: Value) -> Value {
    let mut doc = json!({"metadata": {"name": "web", "namespace": "default"},
        "spec": {"type": "LoadBalancer", "clusterIP": "10.96.0.7", "ports": [{"port": 80, "nodePort": 30080}]},
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}}});
    merge(&mut doc, over);
    doc
}

fn cluster_ip(over: Value) -> Value {
    let mut doc = json!({"metadata": {"name": "web", "namespace": "default"}, "spec": {"clusterIP": "10.96.0.7", "ports": [{"port": 80}]}});
    merge(&mut doc, over);
    doc
}

fn merge(into: &mut Value, over: Value) {
    match (into, over) {
        (Value::Object(into), Value::Object(over)) => over.into_iter().for_each(|(key, value)| merge(into.entry(key).or_insert(Value::Null), value)),
        (into, over) => *into = over,
    }
}

fn row(doc: &Value) -> Arc<ServiceRow> {
    Arc::new(ServiceRow::of(&serde_json::from_value(doc.clone()).unwrap()).unwrap())
}

/// Words: address, conditions as letters r(eady) s(erving) t(erminating), `here` or another node, `zone=` and `node=` hints.
fn endpoint(text: &str) -> Value {
    let mut words = text.split(' ');
    let address = words.next().unwrap();
    let flags = words.next().unwrap();
    let has = |flag: char| flags.contains(flag);
    let mut doc = json!({"addresses": [address], "conditions": {"ready": has('r'), "serving": has('s'), "terminating": has('t')}});
    let mut hints = json!({});
    for word in words {
        match word.split_once('=') {
            Some(("zone", zones)) => hints["forZones"] = zones.split(',').map(|name| json!({"name": name})).collect(),
            Some(("node", nodes)) => hints["forNodes"] = nodes.split(',').map(|name| json!({"name": name})).collect(),
            _ => doc["nodeName"] = json!(word),
        }
    }
    if hints != json!({}) {
        doc["hints"] = hints;
    }
    doc
}

fn slice_at(port: u16, endpoints: &[&str]) -> Arc<SliceRow> {
    slice_of(json!([{"port": port}]), endpoints)
}

fn slice_of(ports: Value, endpoints: &[&str]) -> Arc<SliceRow> {
    let list: Vec<Value> = endpoints.iter().map(|text| endpoint(text)).collect();
    let doc = json!({"metadata": {"name": "web-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "ports": ports, "endpoints": list});
    Arc::new(SliceRow::of(&serde_json::from_value(doc).unwrap(), "here").unwrap())
}

fn slice(endpoints: &[&str]) -> Arc<SliceRow> {
    slice_at(8080, endpoints)
}

fn policy() -> NodePolicy {
    NodePolicy { zone: Some("a".into()), node_ips: vec!["10.240.0.11".parse().unwrap()], forwarded_health_port: None }
}

fn set(table: &mut Table, name: &str, doc: &Value, slices: &[Arc<SliceRow>]) -> Vec<String> {
    let key = Key::new("default", name);
    let changes = table.set_service(&key, desired_vips(&key, &row(doc), slices, &policy()));
    changes.iter().map(Change::to_string).collect()
}

fn render(doc: Value, endpoints: &[&str]) -> String {
    render_all(doc, &[slice(endpoints)])
}

fn render_all(doc: Value, slices: &[Arc<SliceRow>]) -> String {
    let mut table = Table::default();
    set(&mut table, "web", &doc, slices);
    table.render()
}

const HERE: &str = "10.1.0.5 rs here";
const AWAY: &str = "10.1.1.5 rs there";

#[test]
fn external_policy_cluster_uses_all_endpoints_and_hides_the_client() {
    insta::assert_snapshot!(render(balancer(json!({})), &[HERE, AWAY]), @r"
    10.96.0.7:80/tcp default/web:80 (ClusterIp) -> 10.1.0.5:8080@here 10.1.1.5:8080
    192.0.2.7:80/tcp default/web:80 (LoadBalancer) -> 10.1.0.5:8080@here 10.1.1.5:8080
    node:30080/tcp default/web:80 (NodePort) -> 10.1.0.5:8080@here 10.1.1.5:8080
    ");
}

#[test]
fn external_policy_local_keeps_the_cluster_ip_and_adds_a_health_check() {
    let local = || balancer(json!({"spec": {"externalTrafficPolicy": "Local", "healthCheckNodePort": 32000}}));
    insta::assert_snapshot!(render(local(), &[HERE, AWAY]), @r"
    10.96.0.7:80/tcp default/web:80 (ClusterIp) -> 10.1.0.5:8080@here 10.1.1.5:8080
    192.0.2.7:80/tcp default/web:80 (LoadBalancer) -> 10.1.0.5:8080@here; inside -> 10.1.0.5:8080@here 10.1.1.5:8080; keeps client
    node:30080/tcp default/web:80 (NodePort) -> 10.1.0.5:8080@here; inside -> 10.1.0.5:8080@here 10.1.1.5:8080; keeps client
    health :32000 default/web 1 ready here
    ");
    insta::assert_snapshot!(render(local(), &[AWAY]), @r"
    10.96.0.7:80/tcp default/web:80 (ClusterIp) -> 10.1.1.5:8080
    192.0.2.7:80/tcp default/web:80 (LoadBalancer) -> drop; inside -> 10.1.1.5:8080; keeps client
    node:30080/tcp default/web:80 (NodePort) -> drop; inside -> 10.1.1.5:8080; keeps client
    health :32000 default/web 0 ready here
    ");
    insta::assert_snapshot!(render(local(), &["10.1.0.5 st here", "10.1.1.5  there"]), @r"
    10.96.0.7:80/tcp default/web:80 (ClusterIp) -> 10.1.0.5:8080@here
    192.0.2.7:80/tcp default/web:80 (LoadBalancer) -> 10.1.0.5:8080@here; inside -> 10.1.0.5:8080@here; keeps client
    node:30080/tcp default/web:80 (NodePort) -> 10.1.0.5:8080@here; inside -> 10.1.0.5:8080@here; keeps client
    health :32000 default/web 0 ready here
    ");
}

#[test]
fn external_policy_of_internal_services_is_ignored() {
    let doc = cluster_ip(json!({"spec": {"externalTrafficPolicy": "Local", "healthCheckNodePort": 32000}}));
    assert_eq!(render(doc, &[AWAY]), "10.96.0.7:80/tcp default/web:80 (ClusterIp) -> 10.1.1.5:8080\n");
    let doc = cluster_ip(json!({"spec": {"externalTrafficPolicy": "Local", "externalIPs": ["192.0.2.9"]}}));
    assert!(render(doc, &[AWAY]).contains("(ExternalIp) -> drop; inside -> 10.1.1.5:8080; keeps client"));
}

#[test]
fn internal_policy_local_follows_local_endpoints_alone() {
    let doc = cluster_ip(json!({"spec": {"internalTrafficPolicy": "Local"}}));
    let mut table = Table::default();
    let mut step = |endpoints: &[&str]| set(&mut table, "web", &doc, &[slice(endpoints)]);
    assert_eq!(step(&[HERE]), ["+ 10.96.0.7:80/tcp default/web:80 (ClusterIp) -> 10.1.0.5:8080@here"]);
    assert_eq!(step(&[HERE, "10.1.0.6 rs here"]), ["~ 10.96.0.7:80/tcp default/web:80 (ClusterIp) -> 10.1.0.5:8080@here 10.1.0.6:8080@here"]);
    assert_eq!(step(&[HERE, "10.1.0.6 rs here", AWAY]), [""; 0], "a remote endpoint is no change");
    assert_eq!(step(&[AWAY]), ["~ 10.96.0.7:80/tcp default/web:80 (ClusterIp) -> drop"]);
    assert_eq!(step(&[]), ["~ 10.96.0.7:80/tcp default/web:80 (ClusterIp) -> reject"]);
}

#[test]
fn both_policies_local_use_no_remote_endpoint() {
    let doc = balancer(json!({"spec": {"internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local"}}));
    let text = render(doc, &[HERE, AWAY]);
    assert!(text.contains("(ClusterIp) -> 10.1.0.5:8080@here\n") && text.contains("(NodePort) -> 10.1.0.5:8080@here; inside"), "{text}");
}

#[test]
fn serving_terminating_endpoints_answer_when_none_is_ready() {
    let doc = balancer(json!({"spec": {"externalIPs": ["192.0.2.9"]}}));
    let text = render(doc, &["10.1.0.5 st here", "10.1.1.5 st there", "10.1.1.6 t there", "10.1.1.7 s there"]);
    let all = "-> 10.1.0.5:8080@here 10.1.1.5:8080\n";
    assert_eq!(text.matches(all).count(), 4, "ClusterIP, external address, load balancer, node port: {text}");
}

#[test]
fn published_unready_endpoints_count_as_ready() {
    // What the control plane writes for `publishNotReadyAddresses`: ready, though nothing serves.
    assert!(render(cluster_ip(json!({})), &["10.1.0.5 r here"]).ends_with("-> 10.1.0.5:8080@here\n"));
    assert!(render(cluster_ip(json!({})), &["10.1.0.5 rt here"]).ends_with("-> 10.1.0.5:8080@here\n"), "terminating too");
}

#[test]
fn missing_conditions_mean_ready() {
    let doc = json!({"metadata": {"name": "x", "labels": {"kubernetes.io/service-name": "web"}}, "addressType": "IPv4",
        "ports": [{"port": 1}], "endpoints": [{"addresses": ["10.1.0.5"]}]});
    let row = SliceRow::of(&serde_json::from_value(doc).unwrap(), "here").unwrap();
    let e = row.endpoints[0];
    assert_eq!((e.ready, e.serving, e.terminating, e.local), (true, true, false, false));
}

#[test]
fn hints_keep_traffic_in_the_zone_or_on_the_node() {
    let text = |endpoints: &[&str]| render(cluster_ip(json!({})), endpoints).split_once("-> ").unwrap().1.trim().to_owned();
    let away = "10.1.1.5 rs there zone=b";
    for (endpoints, expected, why) in [
        (vec!["10.1.0.5 rs there zone=a", away], "10.1.0.5:8080", "the zone's own"),
        (vec!["10.1.0.5 rs there zone=c,a", away], "10.1.0.5:8080", "an endpoint may be for several zones"),
        (vec!["10.1.0.5 rs there zone=c", away], "10.1.0.5:8080 10.1.1.5:8080", "none for this zone"),
        (vec!["10.1.0.5 rs there zone=a", AWAY], "10.1.0.5:8080 10.1.1.5:8080", "one has no hint"),
        (vec!["10.1.0.5 rs there zone=a", away, "10.1.1.9  there"], "10.1.0.5:8080", "an endpoint that is not ready needs no hint"),
        (vec!["10.1.0.5 st there zone=a", away], "10.1.1.5:8080", "an endpoint that is not ready makes no zone served"),
        (vec!["10.1.0.5 rs here node=here zone=a", "10.1.1.5 rs there node=there zone=a"], "10.1.0.5:8080@here", "the node before the zone"),
        (vec!["10.1.0.5 rs there node=there zone=a", "10.1.1.5 rs there node=there zone=b"], "10.1.0.5:8080", "the zone when the node has none"),
        (vec!["10.1.0.5 st there zone=b", "10.1.1.5 st there zone=a"], "10.1.0.5:8080 10.1.1.5:8080", "the last resort ignores hints"),
    ] {
        assert_eq!(text(&endpoints), expected, "{why}");
    }
    let doc = balancer(json!({"spec": {"externalTrafficPolicy": "Local"}}));
    let both = render(doc, &["10.1.0.5 rs here zone=b", "10.1.1.5 rs there zone=a"]);
    assert!(both.contains("(NodePort) -> 10.1.0.5:8080@here; inside -> 10.1.1.5:8080"), "policy Local asks for no zone: {both}");
    // A node without a zone.
    let key = Key::new("default", "web");
    let slices = [slice(&["10.1.0.5 rs there zone=a", "10.1.1.5 rs there zone=b"])];
    let everywhere = desired_vips(&key, &row(&cluster_ip(json!({}))), &slices, &NodePolicy::default());
    assert_eq!(everywhere.vips[0].1.backends.len(), 2);
}

#[test]
fn families_do_not_mix() {
    let doc = balancer(json!({"spec": {"clusterIPs": ["10.96.0.7", "fd00:96::7"], "externalIPs": ["192.0.2.9", "2001:db8::9"],
        "externalTrafficPolicy": "Local", "healthCheckNodePort": 32000},
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}, {"ip": "2001:db8::7"}]}}}));
    let slices = [slice(&[HERE]), slice(&["fd00:1::5 rs here", "fd00:1::6 rs there"])];
    insta::assert_snapshot!(render_all(doc, &slices), @r"
    10.96.0.7:80/tcp default/web:80 (ClusterIp) -> 10.1.0.5:8080@here
    192.0.2.7:80/tcp default/web:80 (LoadBalancer) -> 10.1.0.5:8080@here; inside -> 10.1.0.5:8080@here; keeps client
    192.0.2.9:80/tcp default/web:80 (ExternalIp) -> 10.1.0.5:8080@here; inside -> 10.1.0.5:8080@here; keeps client
    [2001:db8::7]:80/tcp default/web:80 (LoadBalancer) -> [fd00:1::5]:8080@here; inside -> [fd00:1::5]:8080@here [fd00:1::6]:8080; keeps client
    [2001:db8::9]:80/tcp default/web:80 (ExternalIp) -> [fd00:1::5]:8080@here; inside -> [fd00:1::5]:8080@here [fd00:1::6]:8080; keeps client
    [fd00:96::7]:80/tcp default/web:80 (ClusterIp) -> [fd00:1::5]:8080@here [fd00:1::6]:8080
    node:30080/tcp default/web:80 (NodePort) -> 10.1.0.5:8080@here; inside -> 10.1.0.5:8080@here; keeps client
    [node]:30080/tcp default/web:80 (NodePort) -> [fd00:1::5]:8080@here; inside -> [fd00:1::5]:8080@here [fd00:1::6]:8080; keeps client
    health :32000 default/web 1 ready here
    ");
    let single = balancer(json!({"spec": {"externalIPs": ["2001:db8::9"]}}));
    assert!(!render(single, &["fd00:1::5 rs here"]).contains("fd00"), "a Service without an address of a family has nothing in it");
}

#[test]
fn source_ranges_guard_load_balancer_addresses_alone() {
    let ranges = |list: Value| render(balancer(json!({"spec": {"loadBalancerSourceRanges": list, "externalIPs": ["192.0.2.9"]}})), &[HERE]);
    let from = |text: String| {
        let guarded: Vec<&str> = text.lines().filter(|line| line.contains("; from ")).collect();
        assert!(guarded.iter().all(|line| line.contains("(LoadBalancer)")), "{text}");
        guarded.first().map(|line| line.split_once("; from ").unwrap().1.to_owned())
    };
    assert_eq!(from(ranges(json!(["203.0.113.0/24", " 198.51.100.7/24 "]))), Some("198.51.100.0/24 203.0.113.0/24".into()));
    assert_eq!(from(ranges(json!(["10.240.0.0/16"]))), Some("10.240.0.0/16 192.0.2.7/32".into()), "the node itself, which may have that address");
    assert_eq!(from(ranges(json!(["2001:db8::/32"]))), None, "ranges of the other family, as upstream");
    assert_eq!(from(ranges(json!(["nonsense"]))), Some(String::new()), "nobody rather than everybody");
    assert_eq!(from(ranges(json!([]))), None);
}

#[test]
fn forwarded_health_checks_exist_where_the_address_is_served() {
    let policy = NodePolicy { forwarded_health_port: Some(10256), ..policy() };
    let render = |over: Value, endpoints: &[&str]| {
        let (key, mut table) = (Key::new("default", "web"), Table::default());
        table.set_service(&key, desired_vips(&key, &row(&balancer(over)), &[slice(endpoints)], &policy));
        table.render().lines().filter(|line| line.contains("HealthCheck")).collect::<String>()
    };
    assert_eq!(render(json!({}), &[HERE]), "192.0.2.7:10256/tcp default/web:80 (HealthCheck) -> this node");
    let local = json!({"spec": {"externalTrafficPolicy": "Local", "healthCheckNodePort": 32000}});
    assert_eq!(render(local.clone(), &[HERE]), "192.0.2.7:32000/tcp default/web:80 (HealthCheck) -> this node");
    assert_eq!(render(local, &[AWAY]), "", "nothing is served, so nobody need ask");
    assert_eq!(render(json!({"spec": {"ports": [{"port": 10256}]}}), &[HERE]), "", "the Service's own port comes first");
}

#[test]
fn one_port_may_have_backends_at_several_target_ports() {
    let doc =
        cluster_ip(json!({"spec": {"ports": [{"name": "web", "port": 80, "targetPort": "http"}, {"name": "sctp", "port": 80, "protocol": "SCTP"}]}}));
    let port = |number: u16| {
        slice_of(json!([{"name": "web", "port": number}, {"name": "sctp", "port": 99, "protocol": "SCTP"}]), &[if number == 1 { HERE } else { AWAY }])
    };
    insta::assert_snapshot!(render_all(doc, &[port(1), port(2)]), @r"
    10.96.0.7:80/tcp default/web:web (ClusterIp) -> 10.1.0.5:1@here 10.1.1.5:2
    10.96.0.7:80/sctp default/web:sctp (ClusterIp) -> 10.1.0.5:99@here 10.1.1.5:99
    ");
}

#[test]
fn windows_annotation_and_affinity_reach_the_vips() {
    let doc = balancer(json!({"metadata": {"annotations": {"preserve-destination": "true"}},
        "spec": {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}}}}));
    insta::assert_snapshot!(render(doc, &[HERE]), @r"
    10.96.0.7:80/tcp default/web:80 (ClusterIp) -> 10.1.0.5:8080@here; sticky 60s
    192.0.2.7:80/tcp default/web:80 (LoadBalancer) -> 10.1.0.5:8080@here; keeps destination; sticky 60s
    node:30080/tcp default/web:80 (NodePort) -> 10.1.0.5:8080@here; keeps destination; sticky 60s
    ");
}

#[test]
fn foreign_slices_are_ignored() {
    let of = |labels: Value| {
        let doc = json!({"metadata": {"name": "x", "labels": labels}, "addressType": "IPv4", "ports": [{"port": 1}], "endpoints": []});
        SliceRow::of(&serde_json::from_value(doc).unwrap(), "here").is_some()
    };
    assert!(of(json!({"kubernetes.io/service-name": "web"})));
    assert!(!of(json!({})), "of no Service");
    assert!(!of(json!({"kubernetes.io/service-name": "web", "service.kubernetes.io/headless": ""})));
    assert!(!of(json!({"kubernetes.io/service-name": "web", "service.kubernetes.io/service-proxy-name": "other"})));
}

#[test]
fn one_address_may_be_local_for_one_service_and_remote_for_another() {
    let mut table = Table::default();
    set(&mut table, "a", &cluster_ip(json!({})), &[slice(&[HERE])]);
    set(&mut table, "b", &cluster_ip(json!({"spec": {"clusterIP": "10.96.0.8"}})), &[slice(&["10.1.0.5 rs there"])]);
    let before = table.render();
    assert_eq!(set(&mut table, "c", &cluster_ip(json!({"spec": {"clusterIP": "10.96.0.9"}})), &[slice(&[HERE])]).len(), 1);
    let changes = table.set_service(&Key::new("default", "c"), crate::DesiredVips::default());
    assert_eq!(changes.len(), 1, "only the VIP of the Service that went");
    assert_eq!(table.render(), before);
}

#[test]
fn a_change_of_a_service_touches_what_differs() {
    let mut table = Table::default();
    let doc = |node_port: u16| balancer(json!({"spec": {"ports": [{"port": 80, "nodePort": node_port}]}}));
    set(&mut table, "web", &doc(30080), &[slice(&[AWAY])]);
    assert_eq!(set(&mut table, "web", &doc(30080), &[slice(&[AWAY])]), [""; 0]);
    let wider = slice_of(json!([{"port": 8080}, {"name": "extra", "port": 9090}]), &[AWAY]);
    assert_eq!(
        set(&mut table, "web", &doc(30081), &[wider]),
        ["- node:30080/tcp default/web:80 (NodePort) -> 10.1.1.5:8080", "+ node:30081/tcp default/web:80 (NodePort) -> 10.1.1.5:8080"]
    );
}

#[test]
fn dns_and_the_api_server_are_urgent() {
    for (ns, name, urgent) in [("kube-system", "kube-dns", true), ("default", "kubernetes", true), ("default", "kube-dns", false)] {
        let key = Key::new(ns, name);
        assert_eq!(desired_vips(&key, &row(&cluster_ip(json!({}))), &[], &policy()).vips[0].1.urgent, urgent, "{key}");
    }
}

#[test]
fn node_row_has_zone_addresses_and_deletion() {
    let of = |doc: Value| crate::NodeRow::of(&serde_json::from_value(doc).unwrap());
    let row = of(json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "a"}}, "spec": {"podCIDRs": ["10.1.0.0/24", "fd00:1::/64"]},
        "status": {"addresses": [{"type": "ExternalIP", "address": "192.0.2.1"}, {"type": "Hostname", "address": "n"}, {"type": "InternalIP", "address": "10.0.0.5"}]}}));
    assert_eq!((row.zone.as_deref(), row.leaving, row.pod_cidrs.len()), (Some("a"), false, 2));
    assert_eq!(row.addresses, ["10.0.0.5".parse::<std::net::IpAddr>().unwrap(), "192.0.2.1".parse().unwrap()], "internal ones first");
    assert!(of(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})).leaving);
    assert!(of(json!({"spec": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]}})).leaving);
}

/// Random events, one at a time, against a table computed from scratch.
mod model {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;
    use crate::table::{HealthCheck, Vip, VipKey};

    /// What the API holds.
    #[derive(Default)]
    struct World {
        services: BTreeMap<Key, Arc<ServiceRow>>,
        slices: BTreeMap<Key, Arc<SliceRow>>,
    }

    #[derive(Clone, Debug)]
    enum Event {
        Service(u8, Option<Value>),
        Slice(u8, u8, Option<Vec<&'static str>>),
    }

    fn event() -> impl Strategy<Value = Event> {
        let service = (0..3u8, prop::option::weighted(0.8, (0..3u8, any::<(bool, bool, bool)>(), 0..3u16))).prop_map(|(name, doc)| {
            let doc = doc.map(|(ip, (internal, external, sticky), port)| {
                let local = |yes: bool| if yes { "Local" } else { "Cluster" };
                balancer(json!({"spec": {"clusterIPs": [format!("10.96.0.{ip}"), format!("fd00::{ip}")], "clusterIP": format!("10.96.0.{ip}"),
                    "internalTrafficPolicy": local(internal), "externalTrafficPolicy": local(external),
                    "sessionAffinity": if sticky { "ClientIP" } else { "None" }, "healthCheckNodePort": 32000 + i32::from(name),
                    "ports": [{"port": 80 + port, "nodePort": 30080 + port}]}}))
            });
            Event::Service(name, doc)
        });
        let words = [
            "10.1.0.5 rs here",
            "10.1.1.5 rs there",
            "10.1.0.6 st here",
            "10.1.1.6 st there zone=a",
            "10.1.1.7 rs there zone=a",
            "fd00:1::5 rs here",
            "10.1.1.8 rs there zone=b",
        ];
        let endpoints = prop::sample::subsequence(words.to_vec(), 0..5);
        let slice = (0..3u8, 0..2u8, prop::option::weighted(0.8, endpoints)).prop_map(|(service, n, list)| Event::Slice(service, n, list));
        prop_oneof![service, slice]
    }

    fn name(n: u8) -> Key {
        Key::new("default", format!("s{n}"))
    }

    impl World {
        /// Processes the event and passes it to `inputs` as an informer would.
        fn take(&mut self, event: &Event, inputs: &mut Inputs) {
            match event {
                Event::Service(n, doc) => {
                    let (key, new) = (name(*n), doc.as_ref().map(row));
                    match &new {
                        Some(row) => drop(self.services.insert(key.clone(), row.clone())),
                        None => drop(self.services.remove(&key)),
                    }
                    inputs.service(&key, new.map(|row| (*row).clone()));
                }
                Event::Slice(service, n, endpoints) => {
                    // A slice's name stays while its Service may be another.
                    let key = Key::new("default", format!("slice{n}"));
                    let new = endpoints.as_ref().map(|list| Arc::new(SliceRow { service: name(*service).name, ..(*slice(list)).clone() }));
                    match &new {
                        Some(row) => drop(self.slices.insert(key.clone(), row.clone())),
                        None => drop(self.slices.remove(&key)),
                    }
                    inputs.slice(&key, new.map(|row| (*row).clone()));
                }
            }
        }

        /// Every Service from the beginning; of several claims the first by name holds.
        fn naive(&self) -> (BTreeMap<VipKey, Vip>, BTreeMap<Key, HealthCheck>) {
            let (mut vips, mut checks) = (BTreeMap::new(), BTreeMap::new());
            for (key, row) in &self.services {
                let slices: Vec<_> = self.slices.values().filter(|slice| slice.service == key.name).cloned().collect();
                let desired = desired_vips(key, row, &slices, &policy());
                for (key, vip) in desired.vips {
                    vips.entry(key).or_insert(vip);
                }
                checks.extend(desired.health_check.map(|check| (key.clone(), check)));
            }
            (vips, checks)
        }
    }

    proptest! {
        #[test]
        fn any_sequence_of_events_equals_a_fresh_start(events in prop::collection::vec(event(), 1..40), batch in 1usize..4) {
            let (mut world, mut inputs, mut table) = (World::default(), Inputs::default(), Table::default());
            let mut mirror: BTreeMap<VipKey, Vip> = BTreeMap::new();
            for chunk in events.chunks(batch) {
                chunk.iter().for_each(|event| world.take(event, &mut inputs));
                let touched: BTreeSet<Key> = inputs.take_dirty();
                for service in &touched {
                    let rows = inputs.rows(service);
                    let desired = rows.map(|(row, slices)| desired_vips(service, &row, &slices, &policy())).unwrap_or_default();
                    for change in table.set_service(service, desired) {
                        // What a backend does with changes alone.
                        prop_assert_eq!(mirror.get(&change.key), change.old.as_deref());
                        match change.new {
                            Some(vip) => drop(mirror.insert(change.key, (*vip).clone())),
                            None => drop(mirror.remove(&change.key)),
                        }
                    }
                }
                let (vips, checks) = world.naive();
                prop_assert_eq!(&mirror, &vips);
                prop_assert!(table.iter().map(|(key, vip)| (key, &**vip)).eq(&vips));
                prop_assert!(table.health_checks().eq(checks.iter().map(|(key, check)| (key, *check))));
            }
        }
    }
}
