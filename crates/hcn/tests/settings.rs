//! Golden text for every type of settings, for the older shape and for what the service says beside documents; and for each of them: any
//! JSON that can be read is written so that it reads the same.
//!
//! `UPDATE_GOLDEN=crates/hcn/tests/golden` (an absolute path) rewrites the golden texts.

use hcn::document::v1;
use hcn::document::*;
use hcn::{Guid, HResult};
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

fn id(number: u8) -> Guid {
    format!("00000000-0000-0000-0000-0000000000{number:02x}").parse().unwrap()
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

/// A struct with the named members and nothing else.
macro_rules! made {
    ($name:path { $($member:ident : $value:expr),* $(,)? }) => {{
        type T = $name;
        T { $($member: $value.into(),)* ..T::default() }
    }};
}

#[test]
fn settings_of_networks_match_their_golden_text() {
    let network = NetworkPolicy::new::<Value>;
    let policy = |policy_type, settings: Value| network(policy_type, &settings);
    let text = |settings: &dyn erased::Text| settings.value();
    let policies = vec![
        policy(NetworkPolicyType::SourceMacAddress, text(&made!(SourceMacAddress { source_mac_address: "00-15-5D-00-00-01" }))),
        NetworkPolicy::net_adapter_name("Ethernet"),
        policy(NetworkPolicyType::VSwitchExtension, text(&made!(VSwitchExtension { extension_id: id(9), enable: true }))),
        NetworkPolicy::provider_address([10, 0, 0, 4].into()),
        NetworkPolicy::dr_mac_address("00-15-5D-00-00-02"),
        policy(NetworkPolicyType::AutomaticDns, text(&made!(AutomaticDns { enable: true }))),
        policy(
            NetworkPolicyType::InterfaceConstraint,
            text(&made!(InterfaceConstraint {
                interface_guid: id(7),
                interface_luid: 1_689_399_632_855_040_u64,
                interface_index: 12_u32,
                interface_alias: "Ethernet"
            })),
        ),
        policy(NetworkPolicyType::VxlanPort, text(&made!(VxlanPort { port: 4789_u16 }))),
        policy(NetworkPolicyType::HostRoute, text(&NoSettings::default())),
        NetworkPolicy::set(&made!(SetPolicy { id: "pods", name: "pods", values: "10.0.0.1,10.0.0.2" })),
        NetworkPolicy::set(&made!(SetPolicy { id: "all", name: "all", policy_type: SetPolicyType::NestedIpSet, values: "pods" })),
        policy(
            NetworkPolicyType::L4Proxy,
            text(&made!(L4Proxy {
                port: Token::from("15001"),
                protocol: Protocol::TCP,
                exception_list: ["10.0.0.0/8".to_owned()],
                destination: "1.2.3.0/24",
                outbound_nat: true
            })),
        ),
        policy(NetworkPolicyType::LayerConstraint, text(&made!(LayerConstraint { layer_id: id(8) }))),
        policy(NetworkPolicyType::NetworkAcl, text(&made!(Acl { protocols: Token::from("17"), action: Action::Allow, rule_type: RuleType::Host }))),
        policy(
            NetworkPolicyType::NeighborDiscovery,
            text(&made!(NeighborDiscovery { target_ip_prefix: "fd00::/64", sender_ip_address: "fd00::1", sender_mac_address: "00-15-5D-00-00-03" })),
        ),
        policy(NetworkPolicyType::Vlan, text(&made!(Isolation { isolation_id: 7_u32 }))),
        policy(NetworkPolicyType::Vsid, text(&made!(Isolation { isolation_id: 4096_u32 }))),
    ];
    let subnet = Subnet {
        ip_subnets: vec![made!(IpSubnet { id: id(3), ip_address_prefix: "10.0.0.0/25", flags: IpSubnetFlags::ENABLE_BROADCAST })],
        flags: SubnetFlags::DO_NOT_RESERVE_GATEWAY_ADDRESS,
        ..Subnet::new("10.0.0.0/24".parse().unwrap(), [10, 0, 0, 1].into())
    };
    let health =
        Health { data: made!(HealthData { last_error_code: 0x803b_0017_u32, last_update_time: 133_000_000_000_000_000_u64 }), ..Health::default() };
    let mut network = HostComputeNetwork::new("every-policy", NetworkType::Overlay, subnet);
    network.policies = policies;
    network.health = Some(Box::new(health));
    network.additional_params = Some(Box::new(json!({"SwitchId": id(5)})));
    golden!("network-every-policy", network);
    assert_eq!(network.policies.iter().find_map(NetworkPolicy::as_vxlan_port), Some(4789));
    let sets: Vec<SetPolicy> = network.policies.iter().filter_map(NetworkPolicy::as_set).collect();
    assert_eq!(sets[0].members().collect::<Vec<_>>(), ["10.0.0.1", "10.0.0.2"]);
}

/// Settings as a value, whatever their type.
mod erased {
    pub trait Text {
        fn value(&self) -> serde_json::Value;
    }

    impl<T: serde::Serialize> Text for T {
        fn value(&self) -> serde_json::Value {
            serde_json::to_value(self).unwrap()
        }
    }
}

/// A transparent proxy with every member.
fn proxy() -> L4WfpProxy {
    let exceptions = made!(ProxyExceptions { ip_address_exceptions: ["10.0.0.1".to_owned()], port_exceptions: [Token::from("443")] });
    made!(L4WfpProxy {
        inbound_proxy_port: Token::from("15006"),
        outbound_proxy_port: Token::from("15001"),
        filter_tuple: made!(FilterTuple { protocols: Token::from("6"), priority: 1_u16 }),
        user_sid: "S-1-5-32-556",
        inbound_exceptions: exceptions.clone(),
        outbound_exceptions: exceptions
    })
}

#[test]
fn settings_of_endpoints_match_their_golden_text() {
    use EndpointPolicyType as Type;
    let new = |policy_type, settings: &dyn erased::Text| EndpointPolicy::new(policy_type, &settings.value());
    let rule = made!(TierAclRule {
        id: "r1",
        protocols: Token::from("6"),
        action: Action::Pass,
        remote_addresses: "pods",
        local_ports: Token::from("80,443"),
        priority: 100_u16
    });
    let method = made!(AuthenticationMethod { method_type: "PresharedKey", settings: json!({"Key": "secret"}) });
    let policies = vec![
        EndpointPolicy::port_mapping(&made!(PortMapping {
            protocol: Protocol::TCP,
            internal_port: 80_u16,
            external_port: 8080_u16,
            vip: "10.0.0.4",
            flags: NatFlags::LOCAL_ROUTED_VIP
        })),
        EndpointPolicy::acl(&made!(Acl {
            id: "a1",
            protocols: Token::from("6,17"),
            action: Action::Block,
            direction: Direction::Out,
            remote_addresses: "10.0.0.0/8",
            remote_ports: Token::from("1-1024"),
            priority: 200_u16
        })),
        new(Type::Qos, &made!(Qos { maximum_outgoing_bandwidth_in_bytes: 1_250_000_u64 })),
        new(Type::L2Driver, &NoSettings::default()),
        new(
            Type::OutBoundNat,
            &made!(OutBoundNat {
                virtual_ip: "10.0.0.4",
                exceptions: ["10.96.0.0/12".to_owned()],
                destinations: ["10.1.0.7/32".to_owned()],
                flags: NatFlags::IPV6,
                max_port_pool_usage: 64_u16
            }),
        ),
        new(
            Type::SdnRoute,
            &made!(SdnRoute { destination_prefix: "10.96.0.0/12", next_hop: "10.0.0.1", need_encap: true, automatic_endpoint_monitor: true }),
        ),
        new(Type::L4Proxy, &made!(L4Proxy { ip: "10.0.0.9", port: Token::from("8080") })),
        EndpointPolicy::provider_address([10, 0, 0, 5].into()),
        new(Type::PortName, &made!(PortName { name: "port1" })),
        new(Type::EncapOverhead, &made!(EncapOverhead { overhead: 50_u16 })),
        new(Type::InterfaceConstraint, &made!(InterfaceConstraint { interface_description: "Adapter #2", interface_media_type: 6_u32 })),
        new(
            Type::Encryption,
            &made!(Encryption {
                encryption_method_type: "Ipsec",
                authentication_methods: [method],
                name: "e1",
                endpoints1: ["10.0.0.1".to_owned()],
                endpoints2: ["10.0.0.2".to_owned()],
                protocol_type: Token::from("6"),
                endpoint1_ports: [Token::from("80")]
            }),
        ),
        new(Type::Vlan, &made!(Isolation { isolation_id: 7_u32 })),
        new(Type::InterfaceParameters, &made!(InterfaceParameters { mtu: 1450_u16 })),
        new(Type::L4WfpProxy, &proxy()),
        new(Type::Iov, &made!(Iov { iov_offload_weight: 100_u32, queue_pairs_requested: 2_u32, interrupt_moderation: Token::from("Adaptive") })),
        new(Type::TierAcl, &made!(TierAcl { name: "tier", direction: Direction::In, order: 1_u16, rules: [rule] })),
        new(Type::Firewall, &made!(Firewall { vm_creator_id: Token::from("wsl"), policy_flags: 1_u32 })),
    ];
    let endpoint = HostComputeEndpoint { policies, ..HostComputeEndpoint::default() };
    golden!("endpoint-every-policy", endpoint);
    let acl = endpoint.policies.iter().find_map(EndpointPolicy::as_acl).unwrap();
    assert_eq!(acl.protocol_numbers(), [6, 17]);
    assert_eq!(made!(Acl { protocols: Token::from("256") }).protocol_numbers(), [] as [u32; 0], "256 is any");
    assert_eq!(endpoint.policies.iter().find_map(EndpointPolicy::as_tier_acl).unwrap().rules[0].protocol_numbers(), [6]);
}

#[test]
fn requests_of_every_kind_match_their_golden_text() {
    let request = |resource: &str, settings: &dyn erased::Text| ModifyRequest::new(resource, RequestType::Add, &settings.value());
    let requests = vec![
        request(NetworkResource::Policy.as_str(), &made!(PolicySettings { policies: [json!({"Type": "HostRoute"})] })),
        request(NetworkResource::Dns.as_str(), &made!(Dns { domain: "cluster.local", search: ["a.b".to_owned()], options: ["ndots:5".to_owned()] })),
        request(NetworkResource::Extension.as_str(), &made!(ExtensionSettings { id: id(1), is_enabled: true })),
        request(
            NetworkResource::Subnet.as_str(),
            &made!(SubnetSettings { subnets: [Subnet::new("10.1.0.0/24".parse().unwrap(), [10, 1, 0, 1].into())] }),
        ),
        request(
            NetworkResource::IpSubnet.as_str(),
            &made!(IpSubnetSettings { subnet_id: id(2), ip_subnets: [made!(IpSubnet { ip_address_prefix: "10.1.0.0/25" })] }),
        ),
        request(EndpointResource::Port.as_str(), &made!(PortSettings { port_id: id(3), virtual_nic_name: "vm--endpoint", virtual_machine_id: "vm" })),
        request(NamespaceResourceType::Container.as_str(), &made!(ContainerSettings { container_id: "c1" })),
        request(NamespaceResourceType::Endpoint.as_str(), &made!(EndpointSettings { endpoint_id: id(4) })),
    ];
    golden!("modify-every-kind", requests);
}

#[test]
fn service_documents_match_their_golden_text() {
    golden!("error-record", made!(ErrorRecord { error: "Element not found. ", error_code: HResult::ELEMENT_NOT_FOUND.0 }));
    golden!("notification", made!(NotificationData { id: id(1), flags: 8_u32, data: json!({"CompartmentId": 2}) }));
    golden!("hns-response", made!(HnsResponse { success: true, output: json!({"Major": 13, "Minor": 3}) }));
    golden!("endpoint-stats", made!(EndpointStats { endpoint_id: id(1), instance_id: id(2), bytes_received: 10_u64, packets_sent: 3_u64 }));
    let mirrored = made!(MirroredInterface { endpoint_id: id(2), interface_guid: id(3), state: Token::from("Up") });
    golden!(
        "guest-network-service",
        made!(GuestNetworkService {
            id: id(1),
            virtual_machine_id: id(4),
            mirrored_interfaces: [mirrored],
            mirror_host_networking: true,
            flags: GuestNetworkServiceFlags::IS_FLOWSTEERED,
            state: GuestNetworkServiceState::Synchronized
        })
    );
    let list = made!(HostComputePolicyList { id: id(1), references: [format!("/endpoints/{}", id(2))], policies: [json!({"Type": "ELB"})] });
    assert_eq!(list.endpoints().collect::<Vec<_>>(), [id(2)]);
    golden!("policy-list", list);
    let resources = vec![NamespaceResource::container("c1"), NamespaceResource::endpoint(id(2))];
    golden!(
        "namespace-containers",
        HostComputeNamespace { resources, namespace_type: NamespaceType::HostDefault, is_default: true, ..HostComputeNamespace::default() }
    );
}

#[test]
fn older_shape_matches_its_golden_text_and_means_the_same() {
    let mut network = HostComputeNetwork::new("vxlan0", NetworkType::Overlay, Subnet::new("10.244.1.0/24".parse().unwrap(), [10, 244, 1, 1].into()))
        .with_policy(NetworkPolicy::net_adapter_name("Ethernet"))
        .with_policy(NetworkPolicy::provider_address([10, 0, 0, 4].into()))
        .with_policy(NetworkPolicy::dr_mac_address("00-15-5D-00-00-02"))
        .with_policy(NetworkPolicy::new(NetworkPolicyType::VxlanPort, &made!(VxlanPort { port: 4789_u16 })));
    network.id = id(1);
    network.ipams[0].subnets[0].policies = vec![NetworkPolicy::new(NetworkPolicyType::Vsid, &made!(Isolation { isolation_id: 4096_u32 }))];
    network.dns = made!(Dns { domain: "cluster.local", server_list: ["10.96.0.10".to_owned(), "10.96.0.11".to_owned()] });
    network.state = 1;
    let older = v1::Network::of(&network);
    golden!("v1-network", older);
    let again = older.to_v2();
    assert_eq!((again.subnets().next().unwrap().vsid(), again.subnets().next().unwrap().gateway()), (Some(4096), Some([10, 244, 1, 1].into())));
    assert_eq!(again, network, "nothing is lost on the way");

    let mut endpoint = HostComputeEndpoint::local("pod", "10.244.1.7/24".parse().unwrap(), Some([10, 244, 1, 1].into()))
        .with_policy(EndpointPolicy::outbound_nat(["10.96.0.0/12".parse().unwrap()]))
        .with_policy(EndpointPolicy::sdn_route("10.96.0.0/12".parse().unwrap()))
        .with_policy(EndpointPolicy::provider_address([10, 0, 0, 4].into()))
        .with_policy(EndpointPolicy::port_mapping(&made!(PortMapping { protocol: Protocol::TCP, internal_port: 80_u16, external_port: 8080_u16 })));
    (endpoint.id, endpoint.host_compute_network, endpoint.host_compute_namespace) = (id(2), id(1), id(3));
    endpoint.mac_address = "0E-2A-0A-F4-01-07".into();
    let older = v1::Endpoint::of(&endpoint, Some(&network));
    golden!("v1-endpoint", older);
    assert_eq!(older.to_v2(), endpoint, "nothing is lost on the way");
    let unnamed = v1::Endpoint::of(&HostComputeEndpoint::remote([10, 244, 2, 9].into()), Some(&network));
    assert_eq!((unnamed.name.as_str(), unnamed.gateway_address.as_str(), unnamed.is_remote_endpoint), ("Ethernet", "10.244.1.1", true));

    let namespace =
        HostComputeNamespace { id: id(3), namespace_id: 2, resources: vec![NamespaceResource::endpoint(id(2))], ..HostComputeNamespace::default() };
    golden!("v1-namespace", v1::Namespace::of(&namespace));
    let elb = json!({"Type": "ELB", "VIPs": ["10.96.0.1"], "InternalPort": 80, "ExternalPort": 80, "Protocol": 6});
    golden!(
        "v1-policy-list",
        serde_json::from_value::<v1::PolicyList>(json!({"ID": id(5), "References": [format!("/endpoints/{}", id(2))], "Policies": [elb]})).unwrap()
    );
}

#[test]
fn shape_is_recognised_by_schema_and_members() {
    let older = |text: &str| v1::is_v1(&serde_json::from_str(text).unwrap());
    for text in [r#"{"Name":"n","Subnets":[]}"#, r#"{"SchemaVersion":{"Major":1,"Minor":0},"Ipams":[]}"#, r#"{"schemaversion":{"major":1}}"#, "{}"] {
        assert!(older(text), "{text}");
    }
    for text in [
        r#"{"SchemaVersion":{"Major":2}}"#,
        r#"{"ipams":[]}"#,
        r#"{"HostComputeNetwork":"x"}"#,
        r#"{"SCHEMAVERSION":{"MAJOR":2,"MINOR":0},"Subnets":[]}"#,
    ] {
        assert!(!older(text), "{text}");
    }
    assert!(Query::asks_for_v1(None) && Query::asks_for_v1(Some(" ")) && Query::asks_for_v1(Some(r#"{"SchemaVersion":{"Major":1}}"#)));
    assert!(!Query::asks_for_v1(Some(r#"{"Filter":""}"#)) && !Query::asks_for_v1(Some(&to_text(&Query::default()))));
    // Microsoft's scripts write policies of the newer shape into documents of the older.
    let mixed = r#"{"Name":"n","Policies":[{"Type":"VSID","Settings":{"IsolationId":5000}},{"Type":"PA","PA":"10.0.0.4"}]}"#;
    let read = v1::network(mixed).unwrap();
    assert_eq!(read.policies[0].settings, json!({"IsolationId": 5000}));
    assert_eq!(read.policies[1].as_provider_address(), Some([10, 0, 0, 4].into()));
    assert!(v1::endpoint("[]").is_err() && v1::network("{").is_err());
    assert_eq!(
        v1::endpoint(r#"{"IPAddress":"10.0.0.7","Policies":[{"Type":"ROUTE","DestinationPrefix":"10.96.0.0/12","NeedEncap":true}]}"#)
            .unwrap()
            .policies[0]
            .as_sdn_route()
            .map(|route| route.need_encap),
        Some(true)
    );
}

/// Members that documents have, so that random objects are read as more than unknown members.
fn member() -> impl Strategy<Value = String> {
    let known = [
        "ID",
        "Id",
        "Name",
        "Type",
        "Settings",
        "Flags",
        "State",
        "Policies",
        "Health",
        "Data",
        "Extra",
        "Subnets",
        "Ipams",
        "IpSubnets",
        "Routes",
        "PolicyType",
        "Values",
        "Port",
        "Protocol",
        "Protocols",
        "Action",
        "Direction",
        "RuleType",
        "Priority",
        "TierAclRules",
        "Order",
        "Resources",
        "SchemaVersion",
        "Major",
        "Minor",
        "PortMappings",
        "DistributionType",
        "FilterTuple",
        "InboundExceptions",
        "IsolationId",
        "Namespace",
        "VirtualNetwork",
        "IPAddress",
        "IPv6Address",
        "PrefixLength",
        "GatewayAddress",
        "ManagementIP",
        "MacPools",
        "Error",
        "ErrorCode",
        "Output",
        "x",
    ];
    prop_oneof![4 => prop::sample::select(known.to_vec()).prop_map(str::to_owned), 1 => "[a-zA-Z]{1,5}"]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u16>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[ -~ä]{0,8}".prop_map(Value::from),
        prop::sample::select(vec!["ACL", "Block", "Allow", "IPSET", "Overlay", "6", "10.0.0.1", "00000000-0000-0000-0000-000000000001"])
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((member(), inner), 0..6).prop_map(|members| Value::Object(members.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// What can be read is written so that it reads the same; what cannot be read is an error, never a panic.
fn check<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: &Value) -> Result<(), TestCaseError> {
    let Ok(document) = serde_json::from_value::<T>(value.clone()) else { return Ok(()) };
    let text = to_text(&document);
    prop_assert_eq!(&serde_json::from_str::<T>(&text).unwrap(), &document, "{}", text);
    Ok(())
}

macro_rules! each {
    ($value:expr; $($document:ty),* $(,)?) => { $( check::<$document>($value)?; )* };
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn any_document_round_trips(value in value()) {
        each!(&value;
            HostComputeNetwork, HostComputeEndpoint, HostComputeNamespace, HostComputeLoadBalancer, HostComputeRoute, GuestNetworkService,
            HostComputePolicyList, ModifyRequest, Query, ErrorRecord, NotificationData, HnsResponse, EndpointStats, Health, Subnet, IpSubnet,
            SourceMacAddress, DrMacAddress, InterfaceConstraint, VSwitchExtension, AutomaticDns, VxlanPort, LayerConstraint, NeighborDiscovery,
            Isolation, SetPolicy, L4Proxy, L4WfpProxy, Qos, PortName, Encryption, Iov, TierAcl, Firewall, NoSettings, Acl, OutBoundNat, SdnRoute,
            PortMapping, RemoteSubnetRoute, EncapOverhead, InterfaceParameters, PolicySettings, ExtensionSettings, SubnetSettings,
            IpSubnetSettings, PortSettings, ContainerSettings, EndpointSettings,
            v1::Network, v1::Endpoint, v1::Namespace, v1::PolicyList, v1::Policy,
        );
        let text = value.to_string();
        if let Ok(network) = v1::network(&text) {
            let older = v1::Network::of(&network);
            prop_assert_eq!(v1::Network::of(&older.to_v2()), older, "the older shape of the newer of the older");
        }
        if let Ok(endpoint) = v1::endpoint(&text) {
            let _ = v1::Endpoint::of(&endpoint, None);
        }
    }
}
