//! The documents: golden text for every type, what other programs write, and any document → text → same document.
//!
//! `UPDATE_GOLDEN=crates/hcn/tests/golden` (an absolute path) rewrites the golden texts. Otherwise nothing here touches the file system or a socket, so the same program runs on Windows and under Wine.

use std::net::IpAddr;

use hcn::document::*;
use hcn::{Guid, owned_id};
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

fn id(number: u8) -> Guid {
    format!("00000000-0000-0000-0000-0000000000{number:02x}").parse().unwrap()
}

fn net(text: &str) -> ipnet::IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The document writes exactly the golden text, and the golden text reads as the document.
#[track_caller]
fn golden<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(name: &str, text: &str, document: &T) {
    let written = serde_json::to_string_pretty(document).unwrap() + "\n";
    if let Some(directory) = std::env::var_os("UPDATE_GOLDEN") {
        std::fs::write(std::path::Path::new(&directory).join(format!("{name}.json")), &written).unwrap();
        return;
    }
    let text = text.replace("\r\n", "\n");
    assert_eq!(written, text, "{name} is written differently now; if that is right, this is the new text:\n{written}");
    assert_eq!(&serde_json::from_str::<T>(&text).unwrap(), document, "{name} reads as another document");
}

macro_rules! golden {
    ($name:literal, $document:expr) => {
        golden($name, include_str!(concat!("golden/", $name, ".json")), &$document)
    };
}

#[test]
fn networks_match_their_golden_text() {
    let subnet = Subnet::new(net("192.168.1.7/24"), ip("192.168.1.1"));
    let mut network = HostComputeNetwork::new("mullion", NetworkType::L2Bridge, subnet)
        .with_policy(NetworkPolicy::net_adapter_name("Ethernet"))
        .with_policy(NetworkPolicy::provider_address(ip("10.240.0.11")));
    network.id = id(1);
    golden!("network-l2bridge", network);

    let mut subnet = Subnet::new(net("10.244.1.0/24"), ip("10.244.1.1"));
    subnet.policies = vec![NetworkPolicy::new(NetworkPolicyType::Vsid, &json!({"IsolationId": 4096}))];
    let route = RemoteSubnetRoute {
        destination_prefix: "10.244.2.0/24".into(),
        isolation_id: 4096,
        provider_address: "10.240.0.12".into(),
        distributed_router_mac_address: "00-15-5D-01-02-03".into(),
        ..RemoteSubnetRoute::default()
    };
    let mut overlay = HostComputeNetwork::new("vxlan0", NetworkType::Overlay, subnet).with_policy(NetworkPolicy::remote_subnet_route(&route));
    overlay.flags = NetworkFlags::ENABLE_NON_PERSISTENT;
    overlay.mac_pool = MacPool {
        ranges: vec![MacRange { start_mac_address: "00-15-5D-52-C0-00".into(), end_mac_address: "00-15-5D-52-CF-FF".into(), ..MacRange::default() }],
        ..MacPool::default()
    };
    overlay.dns = Dns { domain: "cluster.local".into(), server_list: vec!["10.96.0.10".into()], ..Dns::default() };
    assert_eq!(overlay.policies[0].as_remote_subnet_route(), Some(route));
    golden!("network-overlay", overlay);
}

#[test]
fn endpoints_match_their_golden_text() {
    let mut endpoint = HostComputeEndpoint::local("4f1c_mullion", net("192.168.1.5/24"), Some(ip("192.168.1.1")))
        .with_policy(EndpointPolicy::outbound_nat([net("192.168.0.0/16"), net("10.96.0.0/12"), net("10.240.0.0/24")]))
        .with_policy(EndpointPolicy::sdn_route(net("10.96.0.0/12")))
        .with_policy(EndpointPolicy::provider_address(ip("10.240.0.11")))
        .with_policy(EndpointPolicy::port_mapping(&PortMapping {
            protocol: Protocol::TCP,
            internal_port: 80,
            external_port: 8080,
            ..PortMapping::default()
        }));
    endpoint.id = id(2);
    endpoint.host_compute_network = id(1);
    endpoint.host_compute_namespace = id(3);
    endpoint.mac_address = "00-15-5D-AA-BB-CC".into();
    endpoint.state = EndpointState::ATTACHED_SHARING;
    golden!("endpoint-local", endpoint);
    assert!(endpoint.policies[1].as_sdn_route().unwrap().need_encap);
    assert_eq!(endpoint.policies[0].as_outbound_nat().unwrap().exceptions.len(), 3);
    assert_eq!(endpoint.policies[0].as_sdn_route(), None, "a policy is read only as what it is");

    let mut remote = HostComputeEndpoint::remote(ip("192.168.2.9"));
    remote.id = id(4);
    remote.host_compute_network = id(1);
    golden!("endpoint-remote", remote);
}

#[test]
fn other_objects_match_their_golden_text() {
    let mut namespace = HostComputeNamespace { id: id(3), namespace_id: 2, namespace_guid: id(3), state: 1, ..HostComputeNamespace::default() };
    namespace.resources = vec![NamespaceResource::endpoint(id(2))];
    golden!("namespace", namespace);
    assert_eq!(namespace.endpoints().collect::<Vec<_>>(), [id(2)]);

    let mut balancer = HostComputeLoadBalancer::new(Some(ip("10.96.0.1")), Protocol::TCP, 443, 6443, vec![id(2), id(4)]);
    balancer.id = id(5);
    balancer.flags = LoadBalancerFlags::DSR;
    balancer.port_mappings[0].distribution_type = DistributionType::SOURCE_IP;
    golden!("loadbalancer-clusterip", balancer);
    let mut node_port = HostComputeLoadBalancer::new(None, Protocol::UDP, 30053, 53, vec![id(2)]);
    node_port.port_mappings[0].flags = PortMappingFlags::LOCAL_ROUTED_VIP | PortMappingFlags::VIP_EXTERNAL_IP;
    golden!("loadbalancer-nodeport", node_port);

    let rule = SdnRoute { destination_prefix: "10.96.0.0/12".into(), next_hop: "192.168.1.2".into(), ..SdnRoute::default() };
    golden!("route", HostComputeRoute { id: id(6), host_compute_endpoints: vec![id(2)], routes: vec![rule], ..HostComputeRoute::default() });
}

#[test]
fn requests_match_their_golden_text() {
    golden!("modify-namespace", ModifyRequest::namespace_endpoint(RequestType::Add, id(2)));
    golden!("modify-endpoint", ModifyRequest::endpoint_policies(RequestType::Update, &[EndpointPolicy::sdn_route(net("10.96.0.0/12"))]));
    golden!("query", Query::by_name("mullion"));
    let acl = Acl { protocols: "6".into(), local_ports: "80".into(), priority: 200, ..Acl::default() };
    golden!("policy-acl", EndpointPolicy::new(EndpointPolicyType::Acl, &acl));
}

#[test]
fn documents_of_other_programs_are_read() {
    // containerd posts a nearly empty namespace; Go programs disagree about the case of ID.
    let namespace: HostComputeNamespace =
        serde_json::from_str(r#"{"Id":"{0000000A-0000-0000-0000-00000000000B}","Type":0,"Resources":null,"SchemaVersion":{"Major":2,"Minor":0}}"#)
            .unwrap();
    assert_eq!(namespace.id, "0000000a-0000-0000-0000-00000000000b".parse().unwrap());
    assert_eq!(namespace.namespace_type, NamespaceType::Host);
    // A NAT network may come back without its type; numbers and strings of any case name it.
    assert_eq!(serde_json::from_str::<HostComputeNetwork>("{}").unwrap().network_type, NetworkType::Nat);
    for text in [r#"{"type":"overlay"}"#, r#"{"TYPE":5}"#, r#"{"Type":"5"}"#] {
        assert_eq!(serde_json::from_str::<HostComputeNetwork>(text).unwrap().network_type, NetworkType::Overlay, "{text}");
    }
    assert_eq!(serde_json::from_str::<HostComputeNetwork>(r#"{"Type":"Warp"}"#).unwrap().network_type, NetworkType::Other("Warp".into()));
    // Flags by number or by name.
    for text in [r#"{"Flags":1}"#, r#"{"Flags":"RemoteEndpoint"}"#, r#"{"flags":"1"}"#] {
        assert!(serde_json::from_str::<HostComputeEndpoint>(text).unwrap().is_remote(), "{text}");
    }
    assert!(serde_json::from_str::<HostComputeEndpoint>(r#"{"Flags":"Sideways"}"#).is_err());
    // V1 calls the exceptions a list; hnslib calls the rules of a route Setting.
    let nat: EndpointPolicy = serde_json::from_str(r#"{"Type":"outboundnat","Settings":{"ExceptionList":["10.0.0.0/8"]}}"#).unwrap();
    assert_eq!(nat.as_outbound_nat().unwrap().exceptions, ["10.0.0.0/8"]);
    assert_eq!(serde_json::from_str::<HostComputeRoute>(r#"{"Setting":[{"NeedEncap":true}]}"#).unwrap().routes.len(), 1);
    assert_eq!(serde_json::from_str::<LoadBalancerPortMapping>(r#"{"Protocol":"TCP"}"#).unwrap().protocol, Protocol::TCP);
    // What is not known survives a round trip.
    let text = r#"{"ID":"00000000-0000-0000-0000-000000000001","Frobnicate":{"a":[1,null]}}"#;
    let document: HostComputeNetwork = serde_json::from_str(text).unwrap();
    assert_eq!(serde_json::to_value(&document).unwrap()["Frobnicate"], json!({"a": [1, null]}));
}

#[test]
fn filter_is_a_string_that_holds_an_object() {
    let query = Query::by_network(&id(1));
    assert_eq!(serde_json::to_value(&query).unwrap()["Filter"], json!(r#"{"VirtualNetwork":"00000000-0000-0000-0000-000000000001"}"#));
    assert_eq!(query.tests().unwrap()["VirtualNetwork"], json!(id(1)));
    assert!(Query { filter: "[".into(), ..Query::default() }.tests().is_err());
}

fn text() -> impl Strategy<Value = String> {
    "[ -~äλ]{0,12}"
}

fn guid() -> impl Strategy<Value = Guid> {
    prop_oneof![Just(Guid::NIL), "[a-z]{1,4}".prop_map(|key| owned_id("cluster", "any", &key))]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![any::<bool>().prop_map(Value::from), any::<i32>().prop_map(Value::from), text().prop_map(Value::from)];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-z]{1,3}", inner, 0..3).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Members no document knows.
fn extra() -> impl Strategy<Value = Map<String, Value>> {
    prop::collection::btree_map("x-[a-z]{1,4}", value(), 0..3).prop_map(|map| map.into_iter().collect())
}

fn health() -> impl Strategy<Value = Option<Box<Health>>> {
    let health = (any::<u32>(), any::<u64>(), value()).prop_map(|(last_error_code, last_update_time, details)| Health {
        data: HealthData { last_error_code, last_update_time, ..HealthData::default() },
        details: (!details.is_null()).then(|| Box::new(details)),
        ..Health::default()
    });
    prop::option::of(health.prop_map(Box::new))
}

fn strings() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(text(), 0..3)
}

fn routes() -> impl Strategy<Value = Vec<Route>> {
    let route = (text(), text(), any::<u16>(), extra()).prop_map(|(next_hop, destination_prefix, metric, extra)| Route {
        next_hop,
        destination_prefix,
        metric,
        extra,
    });
    prop::collection::vec(route, 0..3)
}

fn network_policies() -> impl Strategy<Value = Vec<NetworkPolicy>> {
    let kind = prop_oneof!["VLAN", "drmacaddress", "HostRoute", "Unheard[A-Z]{1,3}"].prop_map(|name| NetworkPolicyType::parse(&name));
    let policy = (kind, value(), extra()).prop_map(|(policy_type, settings, extra)| NetworkPolicy { policy_type, settings, extra });
    prop::collection::vec(policy, 0..3)
}

fn endpoint_policies() -> impl Strategy<Value = Vec<EndpointPolicy>> {
    let kind = prop_oneof!["OutBoundNAT", "ACL", "sdnroute", "Unheard[A-Z]{1,3}"].prop_map(|name| EndpointPolicyType::parse(&name));
    let policy = (kind, value(), extra()).prop_map(|(policy_type, settings, extra)| EndpointPolicy { policy_type, settings, extra });
    prop::collection::vec(policy, 0..3)
}

prop_compose! {
    fn dns()(domain in text(), search in strings(), server_list in strings(), options in strings(), extra in extra()) -> Dns {
        Dns { domain, search, server_list, options, extra }
    }
}

prop_compose! {
    fn subnet()(id in guid(), ip_address_prefix in text(), policies in network_policies(), routes in routes(), flags in any::<u32>(), extra in extra()) -> Subnet {
        Subnet { id, ip_address_prefix, policies, routes, flags: SubnetFlags(flags), extra, ..Subnet::default() }
    }
}

prop_compose! {
    fn network()(
        (id, owner, name, version) in (guid(), text(), text(), any::<u64>()),
        kind in "[A-Za-z0-9]{0,9}", policies in network_policies(), dns in dns(),
        subnets in prop::collection::vec(subnet(), 0..3), flags in any::<u32>(), minor in 0u32..20, extra in extra(),
    ) -> HostComputeNetwork {
        HostComputeNetwork {
            id, owner, name, version, policies, dns, flags: NetworkFlags(flags), extra,
            network_type: NetworkType::parse(&kind),
            ipams: vec![Ipam { subnets, ..Ipam::default() }],
            schema_version: SchemaVersion { major: 2, minor },
            ..HostComputeNetwork::default()
        }
    }
}

prop_compose! {
    fn endpoint()(
        (id, host_compute_network, host_compute_namespace) in (guid(), guid(), guid()), name in text(), policies in endpoint_policies(),
        addresses in prop::collection::vec((text(), any::<u8>()), 0..3), dns in dns(), routes in routes(), flags in any::<u32>(),
        state in any::<u32>(), health in health(), additional in value(), extra in extra(),
    ) -> HostComputeEndpoint {
        let ip_configurations = addresses.into_iter().map(|(ip_address, prefix_length)| IpConfiguration { ip_address, prefix_length, ..IpConfiguration::default() });
        HostComputeEndpoint {
            id, host_compute_network, host_compute_namespace, name, policies, dns, routes, state, health, extra, additional_params: (!additional.is_null()).then(|| Box::new(additional)),
            ip_configurations: ip_configurations.collect(), flags: EndpointFlags(flags), ..HostComputeEndpoint::default()
        }
    }
}

prop_compose! {
    fn load_balancer()(
        id in guid(), host_compute_endpoints in prop::collection::vec(guid(), 0..4), frontend_vips in strings(), source_vip in text(),
        ports in prop::collection::vec((any::<u32>(), any::<u16>(), any::<u16>(), any::<u32>(), any::<u32>(), extra()), 0..3),
        flags in any::<u32>(), extra in extra(),
    ) -> HostComputeLoadBalancer {
        let port_mappings = ports.into_iter().map(|(protocol, internal_port, external_port, distribution_type, flags, extra)| LoadBalancerPortMapping {
            protocol: Protocol(protocol), internal_port, external_port, distribution_type: DistributionType(distribution_type), flags: PortMappingFlags(flags), extra,
        });
        HostComputeLoadBalancer {
            id, host_compute_endpoints, frontend_vips, source_vip, extra,
            port_mappings: port_mappings.collect(), flags: LoadBalancerFlags(flags), ..HostComputeLoadBalancer::default()
        }
    }
}

prop_compose! {
    fn namespace()(id in guid(), namespace_id in any::<u32>(), kind in "[A-Za-z]{1,5}", resources in prop::collection::vec((any::<bool>(), text(), extra()), 0..3), create in any::<bool>(), extra in extra()) -> HostComputeNamespace {
        let resources = resources.into_iter().map(|(endpoint, id, extra)| NamespaceResource {
            resource_type: if endpoint { NamespaceResourceType::Endpoint } else { NamespaceResourceType::Container },
            data: NamespaceResourceData { id, ..NamespaceResourceData::default() }, extra,
        });
        HostComputeNamespace {
            id, namespace_id, namespace_type: NamespaceType::parse(&kind), resources: resources.collect(), create_with_compartment: create, extra,
            ..HostComputeNamespace::default()
        }
    }
}

prop_compose! {
    fn request()(resource in text(), kind in "[A-Za-z]{1,6}", settings in value(), extra in extra()) -> ModifyRequest {
        ModifyRequest { resource_type: resource.as_str().into(), request_type: RequestType::parse(&kind), settings, extra, ..ModifyRequest::default() }
    }
}

/// The same text with every member's name in upper case, where documents ignore case.
fn shout(value: &Value) -> Value {
    match value {
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| match key.as_str() {
                "Settings" | "Health" => (key.to_uppercase(), value.clone()),
                unknown if unknown.starts_with("x-") => (key.clone(), value.clone()),
                _ => (key.to_uppercase(), shout(value)),
            })
            .collect(),
        Value::Array(items) => items.iter().map(shout).collect(),
        other => other.clone(),
    }
}

fn same<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(document: &T) -> Result<(), TestCaseError> {
    let text = to_text(document);
    prop_assert_eq!(&serde_json::from_str::<T>(&text).unwrap(), document);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn any_network_round_trips(document in network()) { same(&document)?; }

    #[test]
    fn any_endpoint_round_trips(document in endpoint()) { same(&document)?; }

    #[test]
    fn any_load_balancer_round_trips(document in load_balancer()) { same(&document)?; }

    #[test]
    fn any_namespace_round_trips(document in namespace()) { same(&document)?; }

    #[test]
    fn any_request_round_trips(document in request()) { same(&document)?; }

    #[test]
    fn member_names_are_case_insensitive(document in load_balancer()) {
        let loud = shout(&serde_json::to_value(&document).unwrap());
        prop_assert_eq!(serde_json::from_value::<HostComputeLoadBalancer>(loud).unwrap(), document);
    }

    #[test]
    fn any_json_is_read_without_panic(value in value()) {
        let text = value.to_string();
        let _ = serde_json::from_str::<HostComputeNetwork>(&text);
        let _ = serde_json::from_str::<HostComputeEndpoint>(&text);
        let _ = serde_json::from_str::<ModifyRequest>(&text);
    }
}
