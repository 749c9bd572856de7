//! Refusals and defaults of the service, a row each: version, call, object, document, code.

use std::sync::Arc;

use hcn::document::*;
use hcn::{Args, Function, Guid, HResult, Handle, HnsVersion, HostNetwork, Kind};
use hns_sim::Simulator;
use hns_sim::faults::RestartMode;
use hns_sim::kernel::NoKernel;
use hns_sim::switches::Switches;
use serde_json::{Value, json};

fn id(number: u8) -> Guid {
    format!("{number:02x}000000-0000-4000-8000-0000000000{number:02x}").parse().unwrap()
}

struct Service {
    simulator: Simulator,
    session: Arc<dyn HostNetwork>,
}

const L2BRIDGE: u8 = 1;
const OVERLAY: u8 = 2;
const NAT: u8 = 3;
const INTERNAL: u8 = 4;

fn subnet(prefix: &str, gateway: &str, policies: Value) -> Value {
    let destination = if prefix.contains(':') { "::/0" } else { "0.0.0.0/0" };
    json!({"IpAddressPrefix": prefix, "Policies": policies, "Routes": [{"NextHop": gateway, "DestinationPrefix": destination}]})
}

fn network(name: &str, network_type: &str, subnets: Value) -> Value {
    json!({"Name": name, "Type": network_type, "Ipams": [{"Type": "Static", "Subnets": subnets}], "SchemaVersion": {"Major": 2}})
}

fn vsid(number: u32) -> Value {
    json!([{"Type": "VSID", "Settings": {"IsolationId": number}}])
}

fn with(mut document: Value, members: Value) -> Value {
    document.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    document
}

fn policies(list: Value) -> Value {
    json!({"Policies": list, "SchemaVersion": {"Major": 2}})
}

fn policy(name: &str, settings: Value) -> Value {
    policies(json!([{"Type": name, "Settings": settings}]))
}

fn change(request: &str, list: Value) -> Value {
    json!({"ResourceType": "Policy", "RequestType": request, "Settings": {"Policies": list}})
}

fn balancer(members: Value) -> Value {
    let mapping = json!({"Protocol": 6, "InternalPort": 8080, "ExternalPort": 80});
    with(
        json!({"HostComputeEndpoints": [id(0x21)], "FrontendVIPs": ["10.96.0.7"], "PortMappings": [mapping], "SchemaVersion": {"Major": 2}}),
        members,
    )
}

impl Service {
    fn new(version: &str, setting: &str) -> Self {
        let version: HnsVersion = version.parse().unwrap();
        let mut switches = Switches::of(version);
        if !setting.is_empty() {
            switches.set(setting).unwrap();
        }
        let kernel = NoKernel { management: Some([10, 240, 0, 11].into()), survived: false };
        let simulator = Simulator::new(Box::new(kernel), switches, None).unwrap();
        let service = Self { session: simulator.session(), simulator };
        let bridge = subnet("192.168.1.0/24", "192.168.1.1", json!([]));
        for (number, document) in [
            (L2BRIDGE, network("bridge", "L2Bridge", json!([bridge]))),
            (OVERLAY, network("overlay", "Overlay", json!([subnet("10.1.0.0/24", "10.1.0.1", vsid(4096))]))),
            (NAT, network("nat", "NAT", json!([subnet("172.20.0.0/20", "172.20.0.1", json!([]))]))),
            (INTERNAL, network("internal", "Internal", json!([]))),
        ] {
            service.ok(Function::Create(Kind::Network), 0, number, document);
        }
        let mapping = |port: u16| json!([{"Type": "PortMapping", "Settings": {"Protocol": 6, "InternalPort": 80, "ExternalPort": port}}]);
        for (network, number, document) in [
            (
                L2BRIDGE,
                0x21,
                json!({"Name": "pod", "IpConfigurations": [{"IpAddress": "192.168.1.5"}], "MacAddress": "00-15-5d-00-00-05", "Policies": mapping(8080)}),
            ),
            (L2BRIDGE, 0x22, json!({"IpConfigurations": [{"IpAddress": "192.168.2.7"}], "Flags": 1})),
            (OVERLAY, 0x23, json!({"IpConfigurations": [{"IpAddress": "10.1.0.9"}]})),
            (NAT, 0x24, json!({"IpConfigurations": [{"IpAddress": "172.20.0.9"}], "Policies": mapping(8081)})),
        ] {
            service.ok(Function::Create(Kind::Endpoint), network, number, with(document, json!({"SchemaVersion": {"Major": 2}})));
        }
        service.ok(Function::Create(Kind::Namespace), 0, 0x31, json!({}));
        service.ok(Function::Create(Kind::LoadBalancer), 0, 0x41, balancer(json!({"FrontendVIPs": ["10.96.0.1"]})));
        service
    }

    fn open(&self, kind: Kind, number: u8) -> Option<Handle> {
        self.session.call(Function::Open(kind), Args { id: Some(id(number)), ..Args::default() }).ok()?.handle
    }

    /// Makes a call; a modify or query opens its object first, a create of an endpoint its network.
    fn call(&self, function: Function, network: u8, number: u8, document: &Value) -> Result<Option<String>, HResult> {
        let text = document.to_string();
        let mut args = Args { id: Some(id(number)), settings: Some(&text), query: Some(&text), ..Args::default() };
        match function {
            Function::Create(Kind::Endpoint) => args.network = self.open(Kind::Network, network),
            Function::Modify(kind) | Function::Query(kind) => args.handle = self.open(kind, number),
            _ => {}
        }
        self.session.call(function, args).map(|reply| reply.result).map_err(|error| error.hresult)
    }

    #[track_caller]
    fn ok(&self, function: Function, network: u8, number: u8, document: Value) {
        let outcome = self.call(function, network, number, &document);
        assert!(outcome.is_ok(), "{function} {document}: {outcome:?}");
    }

    fn document<T: serde::de::DeserializeOwned>(&self, kind: Kind, number: u8) -> T {
        let query = json!({"SchemaVersion": {"Major": 2}});
        serde_json::from_str(&self.call(Function::Query(kind), 0, number, &query).unwrap().unwrap()).unwrap()
    }
}

/// Version, switch, network, document, code.
type Row = (&'static str, &'static str, u8, Value, HResult);

/// Every row is tried on a service of its own; a refusal leaves the state as it was.
#[track_caller]
fn check(function: Function, number: u8, rows: Vec<Row>) {
    for (version, setting, network, document, code) in rows {
        let service = Service::new(version, setting);
        let before = service.simulator.state();
        let found = service.call(function, network, number, &document).err().unwrap_or(HResult::OK);
        assert_eq!(found, code, "HNS {version} {setting}: {function} on {network} {document}");
        assert_eq!(service.simulator.state() == before, code != HResult::OK, "{function} {document}");
    }
}

#[test]
fn network_documents_are_refused_or_completed() {
    use HResult as H;
    let one =
        |network_type: &str, prefix: &str, gateway: &str, policies: Value| network("new", network_type, json!([subnet(prefix, gateway, policies)]));
    let none = json!([]);
    let v6 = || one("L2Bridge", "fd00:1::/64", "fd00:1::1", json!([]));
    let good = || one("L2Bridge", "10.2.0.0/24", "10.2.0.1", json!([]));
    check(
        Function::Create(Kind::Network),
        0x11,
        vec![
            ("13.3", "", 0, good(), H::OK),
            ("13.3", "", 0, with(good(), json!({"Name": "BRIDGE"})), H::NETWORK_ALREADY_EXISTS),
            // Only networks that hide behind the host need prefixes of their own.
            ("13.3", "", 0, one("L2Bridge", "192.168.0.0/16", "192.168.0.1", none.clone()), H::OK),
            ("13.3", "", 0, one("L2Bridge", "172.20.8.0/24", "172.20.8.1", none.clone()), H::OK),
            ("13.3", "", 0, one("Overlay", "10.2.0.0/24", "10.2.0.1", vsid(4095)), H::INVALID_PARAMETER),
            ("13.3", "bad-isolation-id=0x803b0030", 0, one("Overlay", "10.2.0.0/24", "10.2.0.1", none.clone()), H::INVALID_PREFIX),
            ("13.3", "", 0, one("Overlay", "10.2.0.0/24", "10.2.0.1", vsid(5000)), H::OK),
            ("13.3", "", 0, one("Overlay", "fd00:1::/64", "fd00:1::1", vsid(5000)), H::INVALID_PARAMETER),
            ("13.3", "", 0, v6(), H::OK),
            ("11.9", "", 0, v6(), H::INVALID_PARAMETER),
            ("13.3", "ipv6=false", 0, v6(), H::ELEMENT_NOT_FOUND),
            ("13.3", "", 0, one("L2Bridge", "10.2.0.0/33", "10.2.0.1", none.clone()), H::INVALID_PREFIX),
            ("13.3", "", 0, one("L2Bridge", "10.2.0.0/24", "10.3.0.1", none.clone()), H::INVALID_SUBNET),
            ("13.3", "", 0, one("L2Bridge", "10.2.0.0/24", "10.2.0.255", none.clone()), H::INVALID_SUBNET),
            ("13.3", "", 0, network("new", "L2Bridge", json!([])), H::INVALID_NETWORK),
            ("13.3", "", 0, one("L2Tunnel", "10.2.0.0/24", "10.2.0.1", none.clone()), H::OK),
            ("13.3", "", 0, network("new", "Private", json!([])), H::OK),
            ("13.3", "", 0, one("NAT", "172.20.8.0/24", "172.20.8.1", none.clone()), H::DUPLICATE_NAME),
            ("13.3", "", 0, one("ICS", "172.20.0.0/16", "172.20.0.1", none.clone()), H::DUPLICATE_NAME),
            ("13.3", "", 0, network("new", "ICS", json!([])), H::OK),
            ("13.3", "connection-sharing=false", 0, network("new", "ICS", json!([])), H::ICS_DISABLED),
            ("13.3", "", 0, network("new", "ConstrainedICS", json!([])), H::OK),
            ("9.5", "", 0, network("new", "ConstrainedICS", json!([])), H::INVALID_NETWORK_TYPE),
            ("13.3", "", 0, network("new", "Mirrored", json!([])), H::INVALID_NETWORK_TYPE),
            ("13.3", "", 0, network("new", "Transparent", json!([])), H::INVALID_PARAMETER),
            ("13.3", "adapter-in-use=0x803b0006", 0, network("new", "Transparent", json!([])), H::ADAPTER_NOT_FOUND),
            ("15.0", "", 0, with(good(), json!({"Flags": 1024})), H::INVALID_PARAMETER),
            ("15.1", "", 0, with(good(), json!({"Flags": 1024})), H::OK),
            ("13.3", "", 0, with(good(), policy("Warp", json!({}))), H::INVALID_POLICY_TYPE),
            ("13.3", "", 0, with(good(), policy("NetAdapterName", json!({"NetworkAdapterName": "vEthernet (Ethernet)"}))), H::ADAPTER_NOT_FOUND),
            ("13.3", "", 0, with(good(), policy("InterfaceConstraint", json!({"InterfaceAlias": "Wi-Fi"}))), H::ADAPTER_NOT_FOUND),
            ("13.3", "", 0, with(good(), policy("VSwitchExtension", json!({"ExtensionID": id(9), "Enable": true}))), H::SWITCH_EXTENSION_NOT_FOUND),
            ("13.3", "", 0, with(good(), policy("DrMacAddress", json!({"Address": "here"}))), H::INVALID_POLICY),
            ("10.2", "", 0, with(good(), policy("VxlanPort", json!({"Port": 8472}))), H::INVALID_POLICY_TYPE),
            ("10.3", "", 0, with(good(), policy("VxlanPort", json!({"Port": 8472}))), H::OK),
            ("14.9", "", 0, with(good(), policy("NetworkACL", json!({"Action": "Block"}))), H::INVALID_POLICY_TYPE),
            ("15.0", "", 0, with(good(), policy("NetworkACL", json!({"Action": "Block"}))), H::OK),
            ("13.3", "", 0, json!({"ID": "x", "SchemaVersion": {"Major": 2}}), H::GUID_CONVERSION_FAILURE),
            ("13.3", "", 0, json!([]), H::INVALID_JSON),
            ("13.3", "", 0, with(good(), json!({"Anything": (0..70).fold(json!(1), |inner, _| json!([inner]))})), H::INVALID_JSON),
            ("13.3", "", 0, with(good(), json!({"Anything": (0..60).fold(json!("]}"), |inner, _| json!([inner]))})), H::OK),
        ],
    );
}

#[test]
fn endpoint_documents_are_refused_or_completed() {
    use HResult as H;
    let at = |address: &str| json!({"IpConfigurations": [{"IpAddress": address}], "SchemaVersion": {"Major": 2}});
    let both = |address: &str, members: Value| with(at(address), members);
    let mapping = |members: Value| policy("PortMapping", with(json!({"Protocol": 6, "InternalPort": 80, "ExternalPort": 9000}), members));
    let rule = |members: Value| policy("ACL", with(json!({"Action": "Block", "Direction": "In"}), members));
    check(
        Function::Create(Kind::Endpoint),
        0x2f,
        vec![
            ("13.3", "", 9, json!({}), H::INVALID_HANDLE),
            ("13.3", "", L2BRIDGE, at("192.168.1.5"), H::OBJECT_ALREADY_EXISTS),
            ("13.3", "duplicate-address=0x803b002f", L2BRIDGE, at("192.168.1.5"), H::ADDR_INVALID_OR_RESERVED),
            ("13.3", "", L2BRIDGE, both("192.168.1.5", json!({"Flags": 1})), H::OK),
            ("13.3", "local-and-remote-share-address=false", L2BRIDGE, both("192.168.1.5", json!({"Flags": 1})), H::OBJECT_ALREADY_EXISTS),
            ("13.3", "", L2BRIDGE, at("8.8.8.8"), H::INVALID_IP),
            ("13.3", "", L2BRIDGE, both("192.168.1.6", json!({"Name": "POD"})), H::OK),
            ("13.3", "", L2BRIDGE, both("8.8.8.8", json!({"Flags": 1})), H::OK),
            ("13.3", "", NAT, both("8.8.8.8", json!({"Flags": 1})), H::OK),
            ("13.3", "", OVERLAY, both("8.8.8.8", json!({"Flags": 1})), H::OK),
            ("13.3", "", L2BRIDGE, json!({"Flags": 1, "SchemaVersion": {"Major": 2}}), H::INVALID_IP),
            ("13.3", "", L2BRIDGE, at("192.168.1.1"), H::ADDR_INVALID_OR_RESERVED),
            ("13.3", "reserve-gateway=false", L2BRIDGE, at("192.168.1.1"), H::OK),
            ("13.3", "", L2BRIDGE, at("192.168.1.255"), H::ADDR_INVALID_OR_RESERVED),
            ("13.3", "", NAT, at("172.20.0.1"), H::ADDR_INVALID_OR_RESERVED),
            ("13.3", "", INTERNAL, at("10.77.0.1"), H::OK),
            ("13.3", "", L2BRIDGE, both("192.168.1.6", json!({"MacAddress": "00:15:5D:00:00:05"})), H::OBJECT_ALREADY_EXISTS),
            ("13.3", "", L2BRIDGE, both("192.168.1.6", json!({"MacAddress": "05"})), H::INVALID_ENDPOINT),
            ("13.3", "", L2BRIDGE, json!({"IpConfigurations": [{"IpAddress": "192.168.1.6", "PrefixLength": 33}]}), H::INVALID_PREFIX),
            ("10.3", "", L2BRIDGE, json!({"IpConfigurations": [{"IpAddress": "192.168.1.6", "PrefixLength": 32}]}), H::INVALID_PREFIX),
            ("10.4", "", L2BRIDGE, json!({"IpConfigurations": [{"IpAddress": "192.168.1.6", "PrefixLength": 32}]}), H::OK),
            ("13.3", "", L2BRIDGE, mapping(json!({})), H::OK),
            ("13.3", "", L2BRIDGE, mapping(json!({"InternalPort": 0})), H::INVALID_INTERNAL_PORT),
            ("13.3", "", L2BRIDGE, mapping(json!({"Protocol": 1})), H::MAPPING_NOT_SUPPORTED),
            ("13.3", "", INTERNAL, mapping(json!({})), H::MAPPING_NOT_SUPPORTED),
            ("13.3", "", L2BRIDGE, mapping(json!({"ExternalPort": 8080})), H::PORT_ALREADY_EXISTS),
            ("13.3", "", L2BRIDGE, mapping(json!({"ExternalPort": 8080, "Protocol": 17})), H::OK),
            ("13.3", "", L2BRIDGE, mapping(json!({"ExternalPort": 8080, "VIP": "10.240.0.11"})), H::OK),
            ("13.3", "", NAT, mapping(json!({"ExternalPort": 8081})), H::SHARING_VIOLATION),
            ("13.3", "port-exclusion-change=false", L2BRIDGE, mapping(json!({"ExternalPort": 50000})), H::PORT_ALREADY_EXISTS),
            ("13.3", "", L2BRIDGE, mapping(json!({"ExternalPort": 50000})), H::OK),
            ("13.3", "", L2BRIDGE, rule(json!({})), H::OK),
            ("13.3", "", L2BRIDGE, rule(json!({"Action": "Warn"})), H::INVALID_POLICY),
            ("13.3", "", L2BRIDGE, rule(json!({"Direction": "Up"})), H::INVALID_POLICY),
            ("13.3", "", L2BRIDGE, rule(json!({"Action": "Pass"})), H::OK),
            ("11.0", "", L2BRIDGE, rule(json!({"Action": "Pass"})), H::INVALID_POLICY),
            ("13.3", "", L2BRIDGE, rule(json!({"Priority": 65501})), H::INVALID_POLICY),
            ("13.3", "", L2BRIDGE, rule(json!({"RuleType": "Host", "Priority": 100})), H::INVALID_POLICY),
            ("13.3", "", L2BRIDGE, rule(json!({"RuleType": "Host"})), H::OK),
            ("13.3", "", L2BRIDGE, rule(json!({"Protocols": "6,17", "LocalPorts": "80,8000-9000"})), H::OK),
            ("13.3", "", L2BRIDGE, rule(json!({"Protocols": "tcp"})), H::INVALID_POLICY),
            ("10.4", "", L2BRIDGE, rule(json!({"Protocols": "252"})), H::INVALID_POLICY),
            ("13.3", "", L2BRIDGE, rule(json!({"LocalPorts": "90-80"})), H::INVALID_POLICY),
            ("13.3", "", L2BRIDGE, rule(json!({"RemoteAddresses": "10.0.0.0/8,nobody"})), H::INVALID_POLICY),
            ("13.3", "", L2BRIDGE, rule(json!({"RemoteAddresses": vec!["10.0.0.1"; 4001].join(",")})), H::INVALID_PARAMETER),
            ("13.3", "", L2BRIDGE, both("1.1.1.1", with(rule(json!({})), json!({"Flags": 1}))), H::INVALID_REMOTE_ENDPOINT_OPERATION),
            ("13.3", "", L2BRIDGE, policy("TierAcl", json!({"Name": "t", "Direction": "In"})), H::INVALID_POLICY_TYPE),
            ("14.0", "", L2BRIDGE, policy("TierAcl", json!({"Name": "t", "Direction": "In"})), H::OK),
            ("13.0", "", L2BRIDGE, policy("L4Proxy", json!({"Port": "15001", "Protocol": 6})), H::INVALID_POLICY_TYPE),
            ("13.1", "", L2BRIDGE, policy("L4Proxy", json!({"Port": "15001", "Protocol": 6})), H::OK),
            ("13.1", "", L2BRIDGE, policy("L4WFPPROXY", json!({"OutboundProxyPort": "15001"})), H::INVALID_POLICY_TYPE),
            ("13.2", "", L2BRIDGE, policy("L4WFPPROXY", json!({"OutboundProxyPort": "15001"})), H::OK),
            ("9.5", "", L2BRIDGE, policy("InterfaceParameters", json!({"Mtu": 1400})), H::INVALID_POLICY_TYPE),
            ("13.3", "", L2BRIDGE, policy("OutBoundNAT", json!({"Exceptions": ["ten"]})), H::INVALID_POLICY),
            ("13.3", "", L2BRIDGE, policy("OutBoundNAT", Value::Null), H::INVALID_POLICY),
            ("13.3", "", L2BRIDGE, policy("SDNRoute", json!({"DestinationPrefix": "10.96.0.0/12", "NeedEncap": true})), H::OK),
            ("13.3", "", L2BRIDGE, policy("ProviderAddress", json!({"ProviderAddress": "here"})), H::INVALID_POLICY),
            ("13.3", "", L2BRIDGE, policy("QOS", json!({"MaximumOutgoingBandwidthInBytes": "much"})), H::INVALID_POLICY),
        ],
    );
}

#[test]
fn load_balancer_documents_are_refused_or_completed() {
    use HResult as H;
    let mapping = |members: Value| json!({"PortMappings": [with(json!({"Protocol": 6, "InternalPort": 8080, "ExternalPort": 80}), members)]});
    let overlay = |members: Value| balancer(with(json!({"HostComputeEndpoints": [id(0x23)]}), members));
    check(
        Function::Create(Kind::LoadBalancer),
        0x4f,
        vec![
            ("13.3", "", 0, balancer(json!({})), H::OK),
            ("13.3", "", 0, balancer(json!({"FrontendVIPs": ["10.96.0.1"]})), H::PORT_ALREADY_EXISTS),
            ("15.0", "", 0, balancer(json!({"FrontendVIPs": ["10.96.0.1"]})), H::ALREADY_EXISTS),
            ("13.3", "", 0, balancer(with(json!({"FrontendVIPs": ["10.96.0.1"]}), mapping(json!({"Protocol": 17})))), H::OK),
            ("13.3", "", 0, balancer(with(json!({"FrontendVIPs": ["10.96.0.1"]}), mapping(json!({"ExternalPort": 81})))), H::OK),
            ("13.3", "", 0, balancer(with(json!({"FrontendVIPs": []}), mapping(json!({"ExternalPort": 8080})))), H::PORT_ALREADY_EXISTS),
            ("13.3", "", 0, balancer(json!({"FrontendVIPs": []})), H::OK),
            ("13.3", "", 0, balancer(json!({"HostComputeEndpoints": []})), H::INVALID_JSON_REFERENCE),
            ("13.3", "load-balancer-without-endpoint=0x803b000d", 0, balancer(json!({"HostComputeEndpoints": []})), H::INVALID_POLICY),
            ("13.3", "", 0, balancer(json!({"HostComputeEndpoints": [id(0x21), id(0x99)]})), H::INVALID_JSON_REFERENCE),
            ("13.3", "", 0, balancer(json!({"HostComputeEndpoints": [id(0x21), id(0x23)]})), H::INVALID_JSON_REFERENCE),
            ("13.3", "", 0, balancer(json!({"HostComputeNetwork": id(L2BRIDGE)})), H::OK),
            ("13.3", "", 0, balancer(json!({"HostComputeNetwork": id(NAT)})), H::INVALID_JSON_REFERENCE),
            ("13.3", "", 0, balancer(json!({"HostComputeNetwork": id(0x99)})), H::NETWORK_NOT_FOUND),
            ("13.3", "", 0, balancer(json!({"PortMappings": []})), H::INVALID_POLICY),
            ("13.3", "", 0, balancer(mapping(json!({"InternalPort": 0}))), H::INVALID_INTERNAL_PORT),
            ("13.3", "", 0, balancer(mapping(json!({"ExternalPort": 0}))), H::INVALID_PARAMETER),
            ("13.3", "", 0, balancer(mapping(json!({"Protocol": 0}))), H::INVALID_PARAMETER),
            ("13.3", "", 0, balancer(mapping(json!({"Protocol": 132}))), H::OK),
            ("13.3", "", 0, balancer(mapping(json!({"DistributionType": 3}))), H::INVALID_PARAMETER),
            ("13.3", "", 0, balancer(mapping(json!({"Flags": 28}))), H::OK),
            ("13.3", "", 0, balancer(json!({"FrontendVIPs": ["ten"]})), H::INVALID_IP),
            ("13.3", "", 0, balancer(json!({"FrontendVIPs": ["fd00::1"]})), H::INVALID_IP),
            ("13.3", "", 0, balancer(json!({"FrontendVIPs": ["fd00::1"], "Flags": 2})), H::INVALID_JSON_REFERENCE),
            ("9.5", "", 0, balancer(json!({"FrontendVIPs": ["fd00::1"], "Flags": 2})), H::INVALID_PARAMETER),
            ("13.3", "", 0, balancer(json!({"SourceVIP": "10.0.0.1"})), H::OK),
            ("13.3", "", 0, balancer(json!({"SourceVIP": "here"})), H::INVALID_IP),
            ("13.3", "", 0, overlay(json!({"SourceVIP": "10.1.0.44"})), H::ADDR_INVALID_OR_RESERVED),
            ("13.3", "source-vip-must-exist=false", 0, overlay(json!({"SourceVIP": "10.1.0.44"})), H::OK),
            ("13.3", "", 0, overlay(json!({"SourceVIP": "10.1.0.44", "Flags": 1})), H::OK),
            ("13.3", "", 0, overlay(json!({"SourceVIP": "10.1.0.9"})), H::OK),
            ("13.3", "", 0, overlay(json!({"SourceVIP": "10.240.0.11"})), H::OK),
            ("9.5", "", 0, balancer(json!({"HostComputeEndpoints": vec![id(0x21); 65]})), H::INVALID_PARAMETER),
            ("13.3", "hns-lb-nat-dup-rule-change=false", 0, balancer(json!({"HostComputeEndpoints": [id(0x21), id(0x21)]})), H::ALREADY_EXISTS),
            (
                "13.3",
                "port-exclusion-change=false",
                0,
                balancer(with(json!({"FrontendVIPs": []}), mapping(json!({"ExternalPort": 49152})))),
                H::PORT_ALREADY_EXISTS,
            ),
            ("13.3", "port-exclusion-change=false", 0, balancer(with(json!({"FrontendVIPs": []}), mapping(json!({"ExternalPort": 49151})))), H::OK),
            ("13.3", "port-exclusion-change=false", 0, balancer(mapping(json!({"ExternalPort": 49152}))), H::OK),
            ("13.3", "", 0, balancer(json!({"HostComputeEndpoints": vec![id(0x21); 65]})), H::OK),
        ],
    );
    let modified = || balancer(json!({"HostComputeEndpoints": [id(0x22)]}));
    check(
        Function::Modify(Kind::LoadBalancer),
        0x41,
        vec![
            ("13.3", "", 0, modified(), H::NOT_IMPLEMENTED),
            ("15.3", "", 0, modified(), H::NOT_IMPLEMENTED),
            ("15.5", "", 0, modified(), H::OK),
            ("16.0", "", 0, modified(), H::OK),
            (
                "16.0",
                "",
                0,
                balancer(json!({"FrontendVIPs": [], "PortMappings": [{"Protocol": 6, "InternalPort": 1, "ExternalPort": 8080}]})),
                H::ALREADY_EXISTS,
            ),
        ],
    );
    let noop = Service::new("15.4", "");
    noop.ok(Function::Modify(Kind::LoadBalancer), 0, 0x41, modified());
    assert_eq!(
        noop.document::<HostComputeLoadBalancer>(Kind::LoadBalancer, 0x41).host_compute_endpoints,
        [id(0x21)],
        "15.4 says yes and does nothing"
    );
}

#[test]
fn route_documents_are_refused_or_completed() {
    use HResult as H;
    let route = |members: Value| {
        with(json!({"HostComputeEndpoints": [id(0x21)], "Setting": [{"DestinationPrefix": "10.9.0.0/16", "NeedEncap": true}]}), members)
    };
    check(
        Function::Create(Kind::SdnRoute),
        0x5f,
        vec![
            ("13.3", "", 0, route(json!({})), H::OK),
            ("13.3", "", 0, route(json!({"HostComputeEndpoints": []})), H::INVALID_JSON_REFERENCE),
            ("13.3", "", 0, route(json!({"HostComputeEndpoints": [id(0x99)]})), H::INVALID_JSON_REFERENCE),
            ("13.3", "", 0, route(json!({"Setting": [{"DestinationPrefix": "nowhere"}]})), H::INVALID_POLICY),
        ],
    );
}

#[test]
fn modify_requests_change_networks_and_endpoints() {
    use HResult as H;
    let set = |set: &str, kind: &str, values: &str| json!([{"Type": "SetPolicy", "Settings": {"Id": set, "Name": set, "PolicyType": kind, "Values": values}}]);
    let subnets = |request: &str, list: Value| json!({"ResourceType": "Subnet", "RequestType": request, "Settings": {"Subnets": list}});
    let vfp = "e9b59cfa-2be1-4b21-828f-b6fbdbddc017";
    let extension = |id: &str| json!({"ResourceType": "Extension", "RequestType": "Update", "Settings": {"Id": id, "IsEnabled": true}});
    let second = || json!([subnet("192.168.9.0/24", "192.168.9.1", json!([]))]);
    check(
        Function::Modify(Kind::Network),
        L2BRIDGE,
        vec![
            ("13.3", "", 0, change("Add", set("s", "IPSET", "10.0.0.1,10.1.0.0/16")), H::OK),
            ("12.9", "", 0, change("Add", set("s", "IPSET", "10.0.0.1")), H::INVALID_POLICY_TYPE),
            ("13.3", "", 0, change("Add", set("s", "IPSET", "ten")), H::INVALID_POLICY),
            ("13.3", "", 0, change("Add", set("s", "IPSET", &vec!["10.0.0.1"; 4001].join(","))), H::OK),
            ("13.3", "patched=false", 0, change("Add", set("s", "IPSET", &vec!["10.0.0.1"; 4001].join(","))), H::INVALID_PARAMETER),
            ("13.3", "patched=false", 0, change("Add", set("s", "IPSET", &vec!["10.0.0.1"; 4000].join(","))), H::OK),
            ("13.3", "", 0, change("Add", set("s", "NESTEDIPSET", "")), H::INVALID_POLICY),
            ("15.0", "", 0, change("Add", set("s", "NESTEDIPSET", "t")), H::INVALID_JSON_REFERENCE),
            ("13.3", "", 0, change("Remove", set("s", "IPSET", "")), H::POLICY_NOT_FOUND),
            ("13.3", "", 0, change("Warp", set("s", "IPSET", "")), H::REQUEST_UNSUPPORTED),
            ("13.3", "", 0, json!({"ResourceType": "Warp", "Settings": {}}), H::REQUEST_UNSUPPORTED),
            ("13.3", "", 0, json!({"ResourceType": "Policy", "Settings": {}}), H::INVALID_POLICY),
            ("13.3", "", 0, json!({"ResourceType": "DNS", "RequestType": "Update", "Settings": {"Domain": "x"}}), H::OK),
            ("13.3", "", 0, extension("00000000-0000-0000-0000-000000000001"), H::SWITCH_EXTENSION_NOT_FOUND),
            ("13.3", "", 0, extension(vfp), H::SHARED_SWITCH_MODIFICATION),
            ("13.3", "", 0, subnets("Add", second()), H::OK),
            ("10.5", "", 0, subnets("Add", second()), H::REQUEST_UNSUPPORTED),
            ("13.3", "", 0, subnets("Add", json!([subnet("192.168.1.0/24", "192.168.1.1", json!([]))])), H::OBJECT_ALREADY_EXISTS),
            ("13.3", "", 0, subnets("Remove", json!([{"IpAddressPrefix": "192.168.1.0/24"}])), H::ENTITY_HAS_REFERENCES),
            ("13.3", "", 0, subnets("Remove", json!([{"IpAddressPrefix": "192.168.7.0/24"}])), H::SUBNET_NOT_FOUND),
            ("13.3", "", 0, json!({"ResourceType": "IPSubnet", "Settings": {"SubnetId": id(0x99)}}), H::SUBNET_NOT_FOUND),
        ],
    );
    let nat = || json!([{"Type": "OutBoundNAT", "Settings": {"Exceptions": ["10.0.0.0/8"]}}]);
    let mtu = || json!([{"Type": "InterfaceParameters", "Settings": {"Mtu": 1400}}]);
    check(
        Function::Modify(Kind::Endpoint),
        0x21,
        vec![
            ("13.3", "", 0, change("Add", nat()), H::OK),
            ("13.3", "", 0, change("Add", json!([nat()[0], nat()[0]])), H::OK),
            ("13.3", "", 0, change("Remove", nat()), H::POLICY_NOT_FOUND),
            ("13.3", "", 0, change("Add", json!([mtu()[0], nat()[0]])), H::OK),
            ("13.3", "", 0, change("Add", json!([{"Type": "Warp"}])), H::INVALID_POLICY_TYPE),
            ("13.3", "", 0, change("Warp", nat()), H::REQUEST_UNSUPPORTED),
            ("13.3", "", 0, json!({"ResourceType": "Port", "Settings": {}}), H::REQUEST_UNSUPPORTED),
            (
                "13.3",
                "",
                0,
                change("Add", json!([{"Type": "PortMapping", "Settings": {"Protocol": 6, "InternalPort": 1, "ExternalPort": 8081}}])),
                H::PORT_ALREADY_EXISTS,
            ),
        ],
    );
    let rule = || json!([{"Type": "ACL", "Settings": {"Action": "Block", "Direction": "In"}}]);
    for (setting, left) in [("", 0), ("hns-acl-update-change=false", 1)] {
        let service = Service::new("13.3", setting);
        service.ok(Function::Modify(Kind::Endpoint), 0, 0x21, change("Add", rule()));
        service.ok(Function::Modify(Kind::Endpoint), 0, 0x21, change("Remove", rule()));
        let endpoint: HostComputeEndpoint = service.document(Kind::Endpoint, 0x21);
        assert_eq!(endpoint.policies.iter().filter_map(EndpointPolicy::as_acl).count(), left, "{setting}");
    }
    let tolerant = Service::new("13.3", "removing-absent-policy-fails=false");
    tolerant.ok(Function::Modify(Kind::Endpoint), 0, 0x21, change("Remove", nat()));
    let once = Service::new("13.3", "");
    once.ok(Function::Modify(Kind::Endpoint), 0, 0x21, change("Add", mtu()));
    assert_eq!(once.call(Function::Modify(Kind::Endpoint), 0, 0x21, &change("Add", mtu())), Err(H::INTERFACEPARAMETERS_ALREADY_APPLIED));
}

#[test]
fn sets_are_replaced_by_id_and_held_by_what_names_them() {
    let service = Service::new("15.5", "");
    let set = |values: &str| json!([{"Type": "SetPolicy", "Settings": {"Id": "s", "Name": "s", "PolicyType": "IPSET", "Values": values}}]);
    let modify = |kind, number, document: Value| service.call(Function::Modify(kind), 0, number, &document);
    modify(Kind::Network, L2BRIDGE, change("Update", set("10.0.0.1"))).unwrap();
    let sets = || -> Vec<String> {
        let network: HostComputeNetwork = service.document(Kind::Network, L2BRIDGE);
        network.policies.iter().filter_map(NetworkPolicy::as_set).map(|set| set.values).collect()
    };
    assert!(sets().is_empty(), "updating an unknown set does nothing");
    modify(Kind::Network, L2BRIDGE, change("Add", set("10.0.0.1"))).unwrap();
    assert_eq!(modify(Kind::Network, L2BRIDGE, change("Add", set("10.0.0.2"))), Err(HResult::POLICY_ALREADY_EXISTS));
    modify(Kind::Network, L2BRIDGE, change("Update", set("10.0.0.2"))).unwrap();
    assert_eq!(sets(), ["10.0.0.2"]);
    let rule = json!([{"Type": "ACL", "Settings": {"Action": "Block", "Direction": "In", "RemoteAddresses": "S"}}]);
    modify(Kind::Endpoint, 0x21, change("Add", rule)).unwrap();
    assert_eq!(modify(Kind::Network, L2BRIDGE, change("Remove", set(""))), Err(HResult::ENTITY_HAS_REFERENCES));
    service.ok(Function::Delete(Kind::Endpoint), 0, 0x21, json!({}));
    // A set of sets holds its members, and goes before them.
    let outer = || json!([{"Type": "SetPolicy", "Settings": {"Id": "t", "Name": "t", "PolicyType": "NESTEDIPSET", "Values": "s"}}]);
    modify(Kind::Network, L2BRIDGE, change("Add", outer())).unwrap();
    assert_eq!(modify(Kind::Network, L2BRIDGE, change("Remove", set(""))), Err(HResult::ENTITY_HAS_REFERENCES));
    modify(Kind::Network, L2BRIDGE, change("Remove", outer())).unwrap();
    modify(Kind::Network, L2BRIDGE, change("Remove", set(""))).unwrap();
    assert!(sets().is_empty());
}

#[test]
fn updates_replace_or_merge_by_switch() {
    let types = |setting: &str| -> Vec<String> {
        let service = Service::new("13.3", setting);
        let nat = json!([{"Type": "OutBoundNAT", "Settings": {"Exceptions": ["10.0.0.0/8"]}}]);
        service.ok(Function::Modify(Kind::Endpoint), 0, 0x21, change("Update", nat));
        let endpoint: HostComputeEndpoint = service.document(Kind::Endpoint, 0x21);
        endpoint.policies.iter().map(|policy| policy.policy_type.to_string()).collect()
    };
    assert_eq!(types(""), ["L2Driver", "OutBoundNAT"]);
    assert_eq!(types("update-replaces-policies=false"), ["PortMapping", "L2Driver", "OutBoundNAT"]);
}

#[test]
fn missing_members_get_defaults() {
    let service = Service::new("13.3", "implicit-acls=true");
    let overlay: HostComputeNetwork = service.document(Kind::Network, OVERLAY);
    let range = &overlay.mac_pool.ranges[0];
    assert!(range.start_mac_address.starts_with("00-15-5D-") && range.start_mac_address.ends_with("0-00"), "{range:?}");
    assert!(overlay.policies.iter().any(|policy| policy.as_dr_mac_address().is_some()));
    assert_eq!(overlay.management_ip(), Some([10, 240, 0, 11].into()));
    service.ok(Function::Create(Kind::Network), 0, 0x11, json!({"Name": "docker", "SchemaVersion": {"Major": 2}}));
    let chosen: HostComputeNetwork = service.document(Kind::Network, 0x11);
    let prefix = chosen.subnets().next().unwrap().prefix().unwrap();
    assert!("172.16.0.0/12".parse::<ipnet::IpNet>().unwrap().contains(&prefix) && prefix.prefix_len() == 20, "{prefix}");
    let pool = json!({"Ranges": [{"StartMacAddress": "02-00-00-00-00-01", "EndMacAddress": "02-00-00-00-00-02"}]});
    let small = with(network_of("small"), json!({"MacPool": pool, "Dns": {"Domain": "d", "ServerList": ["10.0.0.10"]}}));
    service.ok(Function::Create(Kind::Network), 0, 0x12, small);
    for number in [0x71, 0x72] {
        service.ok(Function::Create(Kind::Endpoint), 0x12, number, json!({"SchemaVersion": {"Major": 2}}));
        let endpoint: HostComputeEndpoint = service.document(Kind::Endpoint, number);
        assert!(endpoint.mac_address.starts_with("02-00-00-00-00-0"), "{endpoint:?}");
        assert_eq!(endpoint.dns.domain, "d");
        let acls = endpoint.policies.iter().filter_map(EndpointPolicy::as_acl).filter(|acl| acl.priority == 65500);
        assert_eq!(acls.count(), 2);
    }
    let used_up = service.call(Function::Create(Kind::Endpoint), 0x12, 0x73, &json!({"SchemaVersion": {"Major": 2}}));
    assert_eq!(used_up, Err(HResult::INVALID_ENDPOINT));
    let open_gateway = with(subnet("10.8.0.0/24", "10.8.0.1", json!([])), json!({"Flags": 1}));
    service.ok(Function::Create(Kind::Network), 0, 0x14, network("open", "L2Bridge", json!([open_gateway])));
    let gateway = json!({"IpConfigurations": [{"IpAddress": "10.8.0.1"}], "SchemaVersion": {"Major": 2}});
    service.ok(Function::Create(Kind::Endpoint), 0x14, 0x75, gateway);
    let dual = json!([subnet("10.7.0.0/24", "10.7.0.1", json!([])), subnet("fd00:7::/64", "fd00:7::1", json!([]))]);
    service.ok(Function::Create(Kind::Network), 0, 0x13, network("dual", "L2Bridge", dual));
    let both = json!({"IpConfigurations": [{"IpAddress": "10.7.0.9"}, {"IpAddress": "fd00:7::9"}], "SchemaVersion": {"Major": 2}});
    service.ok(Function::Create(Kind::Endpoint), 0x13, 0x74, both);
    let endpoint: HostComputeEndpoint = service.document(Kind::Endpoint, 0x74);
    assert_eq!(endpoint.routes.iter().map(|route| route.next_hop.as_str()).collect::<Vec<_>>(), ["10.7.0.1", "fd00:7::1"]);
    assert_eq!(endpoint.ip_configurations.iter().map(|ip| ip.prefix_length).collect::<Vec<_>>(), [24, 64]);
    let v6 = balancer(json!({"HostComputeEndpoints": [id(0x74)], "FrontendVIPs": ["fd00:96::1"], "Flags": 2}));
    service.ok(Function::Create(Kind::LoadBalancer), 0, 0x42, v6);
    let state = service.simulator.state();
    assert_eq!(*state.balancers[&id(0x42)].backends, ["fd00:7::9".parse::<std::net::IpAddr>().unwrap()]);
}

#[test]
fn router_mac_stays_with_its_network() {
    let service = Service::new("13.3", "");
    let router = || {
        let overlay: HostComputeNetwork = service.document(Kind::Network, OVERLAY);
        overlay.policies.iter().find_map(NetworkPolicy::as_dr_mac_address).unwrap()
    };
    let first = router();
    service.simulator.restart(hns_sim::admin::Restart { mode: RestartMode::Reboot, ..Default::default() }).unwrap();
    assert_eq!(router(), first);
    // NAT networks are their owner's to make again.
    assert!(service.open(Kind::Network, NAT).is_none() && service.open(Kind::Network, L2BRIDGE).is_some());
    service.ok(Function::Delete(Kind::Network), 0, OVERLAY, json!({}));
    service.ok(Function::Create(Kind::Network), 0, OVERLAY, network("overlay", "Overlay", json!([subnet("10.1.0.0/24", "10.1.0.1", vsid(4096))])));
    assert_ne!(router(), first, "a network that is made again gets another one");
}

#[test]
fn older_route_of_a_prefix_counts_until_removed() {
    let service = Service::new("13.3", "");
    let way = |host: &str, mac: u8| {
        let mac = format!("00-15-5D-00-00-{mac:02}");
        json!([{"Type": "RemoteSubnetRoute", "Settings":
            {"DestinationPrefix": "10.2.0.0/24", "IsolationId": 4096, "ProviderAddress": host, "DistributedRouterMacAddress": mac}}])
    };
    let modify = |request: &str, list: Value| service.ok(Function::Modify(Kind::Network), 0, OVERLAY, change(request, list));
    let hosts = || -> Vec<String> {
        let peers = service.simulator.facts().into_iter().map(|fact| fact.to_string()).filter(|text| text.contains(" is at "));
        peers.map(|text| text.rsplit(' ').next().unwrap().to_owned()).collect()
    };
    modify("Add", way("10.240.0.12", 1));
    modify("Add", way("10.240.0.13", 2));
    assert_eq!(hosts(), ["10.240.0.12"]);
    let with_other_settings = change("Remove", way("10.240.0.12", 3));
    assert_eq!(service.call(Function::Modify(Kind::Network), 0, OVERLAY, &with_other_settings), Err(HResult::POLICY_NOT_FOUND));
    modify("Remove", way("10.240.0.12", 1));
    assert_eq!(hosts(), ["10.240.0.13"]);
}

/// What a version brings: the last version without it, the first with it, and where fixes of older versions brought it, those too.
#[test]
fn versions_gate_types_and_policies() {
    type Brings = (Function, u8, u8, Value, &'static [(&'static str, &'static str)]);
    let (create, modify) = (Function::Create(Kind::Endpoint), Function::Modify(Kind::Network));
    let rule = |members: Value| policy("ACL", with(json!({"Action": "Block", "Direction": "In"}), members));
    let proxy = || policy("L4Proxy", json!({"Port": "15001", "Protocol": 6}));
    let proxies: &[(&str, &str)] = &[("9.4", "9.5"), ("10.4", "10.5"), ("11.10", "11.11"), ("12.0", "12.1"), ("13.0", "13.1")];
    let whole = json!({"IpConfigurations": [{"IpAddress": "192.168.1.6", "PrefixLength": 32}]});
    let set = |kind: &str| change("Add", json!([{"Type": "SetPolicy", "Settings": {"Id": "s", "PolicyType": kind, "Values": ""}}]));
    let network = |policy_type: &str, settings: Value| change("Add", json!([{"Type": policy_type, "Settings": settings}]));
    let subnets =
        json!({"ResourceType": "Subnet", "RequestType": "Add", "Settings": {"Subnets": [subnet("192.168.9.0/24", "192.168.9.1", json!([]))]}});
    let dual = json!({"ResourceType": "Subnet", "RequestType": "Add", "Settings": {"Subnets": [subnet("fd00:1::/64", "fd00:1::1", json!([]))]}});
    let rows: [Brings; 17] = [
        (create, L2BRIDGE, 0x2f, whole, &[("9.2", "9.3"), ("10.3", "10.4")]),
        (create, L2BRIDGE, 0x2f, rule(json!({"Protocols": "252"})), &[("10.5", "11.0")]),
        (create, L2BRIDGE, 0x2f, rule(json!({"Action": "Pass"})), &[("12.9", "13.0")]),
        (create, L2BRIDGE, 0x2f, proxy(), proxies),
        (create, L2BRIDGE, 0x2f, policy("L4WFPPROXY", json!({"OutboundProxyPort": "15001"})), &[("13.1", "13.2")]),
        (create, L2BRIDGE, 0x2f, policy("TierAcl", json!({"Name": "t", "Direction": "In"})), &[("13.9", "14.0")]),
        (create, L2BRIDGE, 0x2f, policy("InterfaceParameters", json!({"Mtu": 1400})), &[("9.5", "10.0")]),
        (create, L2BRIDGE, 0x2f, policy("VLAN", json!({"IsolationId": 7})), &[("9.5", "10.0")]),
        (create, L2BRIDGE, 0x2f, policy("Encryption", json!({"KeyId": "k"})), &[("9.5", "10.0")]),
        (create, L2BRIDGE, 0x2f, policy("Iov", json!({"IovOffloadWeight": 1})), &[("12.9", "13.0")]),
        (create, L2BRIDGE, 0x2f, policy("Firewall", json!({})), &[("14.9", "15.0")]),
        (modify, 0, L2BRIDGE, network("VxlanPort", json!({"Port": 8472})), &[("10.2", "10.3")]),
        (modify, 0, L2BRIDGE, network("NetworkACL", json!({"Action": "Block"})), &[("14.9", "15.0")]),
        (modify, 0, L2BRIDGE, set("IPSET"), &[("12.9", "13.0")]),
        (modify, 0, L2BRIDGE, set("NESTEDIPSET"), &[("14.9", "15.0")]),
        (modify, 0, L2BRIDGE, subnets, &[("10.5", "11.0")]),
        (modify, 0, L2BRIDGE, dual, &[("11.9", "11.10")]),
    ];
    for (function, network, number, document, borders) in rows {
        for (without, with) in borders {
            let call = |version| Service::new(version, "").call(function, network, number, &document);
            assert!(call(without).is_err() && call(with).is_ok(), "{without} {with}: {document}: {:?} {:?}", call(without), call(with));
        }
    }
    // What stays in the document without an effect before its version.
    let facts = |version: &str, members: Value| {
        let service = Service::new(version, "direct-server-return=true");
        service.ok(Function::Create(Kind::LoadBalancer), 0, 0x4f, balancer(members));
        service.simulator.facts().into_iter().map(|fact| fact.to_string()).filter(|text| text.starts_with("selector ")).collect::<Vec<_>>().join(" ")
    };
    let sticky = || json!({"PortMappings": [{"Protocol": 6, "InternalPort": 8080, "ExternalPort": 80, "DistributionType": 2}]});
    for (members, without, with) in [(json!({"Flags": 1}), "10.1", "10.2"), (json!({"Flags": 1}), "9.2", "9.3"), (sticky(), "11.11", "12.0")] {
        assert_eq!(facts(without, members.clone()), facts(without, json!({})), "{members} before {with}");
        assert_ne!(facts(with, members.clone()), facts(with, json!({})), "{members} from {with} on");
    }
    for (version, outcome) in [("15.3", Some(HResult::REQUEST_UNSUPPORTED)), ("15.4", None)] {
        let client = hcn::blocking::Client::new(Service::new(version, "").session);
        assert_eq!(client.hns_call("GET", "/accelnet/enabled", "").err().and_then(|error| error.hresult()), outcome, "{version}");
    }
}

fn network_of(name: &str) -> Value {
    network(name, "L2Bridge", json!([subnet("10.5.0.0/24", "10.5.0.1", json!([]))]))
}

#[test]
fn calls_on_missing_objects_fail() {
    let missing = |setting: &str, kind| Service::new("13.3", setting).call(Function::Delete(kind), 0, 0x99, &json!({})).unwrap_err();
    for (kind, code) in [
        (Kind::Network, HResult::NETWORK_NOT_FOUND),
        (Kind::Endpoint, HResult::ENDPOINT_NOT_FOUND),
        (Kind::Namespace, HResult::ELEMENT_NOT_FOUND),
        (Kind::LoadBalancer, HResult::ELEMENT_NOT_FOUND),
        (Kind::GuestNetworkService, HResult::NOT_SUPPORTED),
    ] {
        assert_eq!(missing("", kind), code, "{kind:?}");
    }
    assert_eq!(missing("missing-is-element-not-found=true", Kind::Network), HResult::ELEMENT_NOT_FOUND);
    // A load balancer whose network is gone stays, cannot be deleted, and lets another have its port.
    let service = Service::new("13.3", "");
    service.ok(Function::Delete(Kind::Network), 0, L2BRIDGE, json!({}));
    assert_eq!(service.call(Function::Delete(Kind::LoadBalancer), 0, 0x41, &json!({})), Err(HResult::NETWORK_NOT_FOUND));
    let again = balancer(json!({"HostComputeEndpoints": [id(0x23)], "FrontendVIPs": ["10.96.0.1"]}));
    service.ok(Function::Create(Kind::LoadBalancer), 0, 0x42, again);
    for (version, setting) in [("9.2", ""), ("13.3", "orphaned-load-balancer-deletable=true")] {
        let service = Service::new(version, setting);
        service.ok(Function::Delete(Kind::Network), 0, L2BRIDGE, json!({}));
        service.ok(Function::Delete(Kind::LoadBalancer), 0, 0x41, json!({}));
    }
}

#[test]
fn unpatched_service_runs_out_of_ports() {
    let service = Service::new("13.3", "hns-preallocate-port-range=false");
    let create = |number: u16, members: Value| {
        let [high, low] = number.to_be_bytes();
        let document = balancer(with(json!({"FrontendVIPs": [format!("10.97.{high}.{low}")]}), members));
        let args = Args { settings: Some(&document.to_string()), ..Args::default() };
        service.session.call(Function::Create(Kind::LoadBalancer), args).map(drop).map_err(|error| error.hresult)
    };
    // One of 256 is there.
    (1..256).for_each(|number| create(number, json!({})).unwrap());
    assert_eq!(create(256, json!({})), Err(HResult::OUT_OF_MEMORY));
    create(256, json!({"Flags": 1})).unwrap();
    service.ok(Function::Delete(Kind::LoadBalancer), 0, 0x41, json!({}));
    create(257, json!({})).unwrap();
}

#[test]
fn compartment_waits_for_the_first_container_by_switch() {
    let service = Service::new("13.3", "enable-compartment-namespace=false");
    let compartment = |number| service.document::<HostComputeNamespace>(Kind::Namespace, number).namespace_id;
    service.ok(Function::Create(Kind::Namespace), 0, 0x32, json!({"CreateWithCompartment": true}));
    assert_eq!([compartment(0x31), compartment(0x32)], [0, 2]);
    let container = |request: &str| json!({"ResourceType": "Container", "RequestType": request, "Settings": {"ContainerId": "c"}});
    let add = json!({"ResourceType": "Endpoint", "RequestType": "Add", "Settings": {"EndpointId": id(0x21)}});
    service.ok(Function::Modify(Kind::Namespace), 0, 0x31, add);
    let ports = || service.simulator.facts().iter().filter(|fact| fact.to_string().starts_with("port ")).count();
    service.ok(Function::Modify(Kind::Namespace), 0, 0x31, container("Remove"));
    assert_eq!((compartment(0x31), ports()), (0, 0));
    service.ok(Function::Modify(Kind::Namespace), 0, 0x31, container("Add"));
    assert_eq!((compartment(0x31), ports()), (3, 1));
}

#[test]
fn namespaces_of_every_type() {
    let service = Service::new("13.3", "");
    let create = |number, name: &str| service.call(Function::Create(Kind::Namespace), 0, number, &json!({"Type": name, "NamespaceId": 7}));
    for (number, name, compartment) in [(0x32, "HostDefault", 1), (0x33, "Guest", 7), (0x34, "Host", 3), (0x35, "HostDefault", 1)] {
        create(number, name).unwrap();
        let namespace: HostComputeNamespace = service.document(Kind::Namespace, number);
        assert_eq!((namespace.namespace_id, namespace.is_default), (compartment, name == "HostDefault"), "{name}");
    }
    assert_eq!(create(0x36, "Warp"), Err(HResult::INVALID_PARAMETER));
    // What is in the host's own compartment is attached to the host.
    let add = json!({"ResourceType": "Endpoint", "RequestType": "Add", "Settings": {"EndpointId": id(0x21)}});
    service.ok(Function::Modify(Kind::Namespace), 0, 0x32, add);
    assert!(service.simulator.state().endpoints[&id(0x21)].on_host);
    let strict = Service::new("13.3", "second-default-namespace-refused=true");
    let second = json!({"Type": "HostDefault"});
    strict.ok(Function::Create(Kind::Namespace), 0, 0x32, second.clone());
    assert_eq!(strict.call(Function::Create(Kind::Namespace), 0, 0x33, &second), Err(HResult::GCN_DEFAULTNAMESPACE_EXISTS));
    let natural = Service::new("13.3", "removing-detached=0x803b0034");
    let remove = json!({"ResourceType": "Endpoint", "RequestType": "Remove", "Settings": {"EndpointId": id(0x21)}});
    assert_eq!(natural.call(Function::Modify(Kind::Namespace), 0, 0x31, &remove), Err(HResult::ENDPOINT_NOT_ATTACHED));
}

#[test]
fn the_older_interface_makes_lists_and_deletes() {
    let service = Service::new("13.3", "");
    let client = hcn::blocking::Client::new(service.session.clone());
    let call = |method: &str, path: &str, body: Value| client.hns_call(method, path, &body.to_string());
    let made = call(
        "POST",
        "/networks",
        json!({"Name": "v1", "Type": "nat", "Subnets": [{"AddressPrefix": "172.30.0.0/16", "GatewayAddress": "172.30.0.1"}]}),
    )
    .unwrap();
    let network = made["ID"].as_str().unwrap().to_owned();
    assert_eq!((&made["Type"], &made["Subnets"][0]["GatewayAddress"]), (&json!("NAT"), &json!("172.30.0.1")), "{made}");
    let made = call("POST", "/endpoints", json!({"VirtualNetwork": network, "Policies": [{"Type": "OutBoundNAT", "ExceptionList": ["10.0.0.0/8"]}]}))
        .unwrap();
    let endpoint = made["ID"].as_str().unwrap().to_owned();
    assert!(made["IPAddress"].as_str().unwrap().starts_with("172.30."), "{made}");
    let updated =
        call("POST", &format!("/endpoints/{endpoint}"), json!({"Policies": [{"Type": "OutBoundNAT", "ExceptionList": ["10.96.0.0/12"]}]})).unwrap();
    assert_eq!(updated["Policies"], json!([{"Type": "OutBoundNAT", "ExceptionList": ["10.96.0.0/12"]}]), "{updated}");
    let references = json!([format!("/endpoints/{endpoint}")]);
    let elb = json!({"Type": "ELB", "VIPs": ["10.96.0.5"], "Protocol": 6, "InternalPort": 80, "ExternalPort": 80, "ILB": true});
    let list = call("POST", "/policylists", json!({"References": references, "Policies": [elb]})).unwrap();
    assert_eq!(list["Policies"][0]["VIPs"], json!(["10.96.0.5"]), "{list}");
    let route = json!({"Type": "ROUTE", "DestinationPrefix": "10.9.0.0/16", "EncapEnabled": true});
    call("POST", "/policylists", json!({"References": references, "Policies": [route]})).unwrap();
    assert_eq!(call("GET", "/policylists", json!({})).unwrap().as_array().unwrap().len(), 3);
    let stats = call("GET", &format!("/endpointstats/{endpoint}"), json!({})).unwrap();
    assert_eq!(stats["BytesReceived"], 0);
    let resource = |verb: &str| call("POST", &format!("/namespaces/{}/{verb}", id(0x31)), json!({"Type": "Endpoint", "Data": {"Id": endpoint}}));
    resource("addresource").unwrap();
    let shown = call("GET", &format!("/endpoints/{endpoint}"), json!({})).unwrap();
    assert_eq!(shown["Namespace"]["CompartmentId"], 2, "{shown}");
    resource("removeresource").unwrap();
    call("DELETE", &format!("/policylists/{}", list["ID"].as_str().unwrap()), json!({})).unwrap();
    call("DELETE", &format!("/networks/{network}"), json!({})).unwrap();
    for (method, path, code) in [
        ("GET", format!("/networks/{network}"), HResult::NETWORK_NOT_FOUND),
        ("GET", "/networks/x".to_owned(), HResult::GUID_CONVERSION_FAILURE),
        ("GET", "/warp".to_owned(), HResult::REQUEST_UNSUPPORTED),
        ("GET", "/accelnet".to_owned(), HResult::REQUEST_UNSUPPORTED),
        ("POST", "/policylists".to_owned(), HResult::INVALID_POLICY),
    ] {
        assert_eq!(call(method, &path, json!({})).unwrap_err().hresult(), Some(code), "{method} {path}");
    }
}
