//! Objects in HNS's V1 schema: what queries without a 2.x query document, `HNSCall` and Microsoft's scripts read and write.
//!
//! Policies are flat here (`{"Type":"OutBoundNAT","ExceptionList":[…]}`), and a few have other names. [`Network::to_v2`] and
//! [`Endpoint::to_v2`] give the newer document, `of` the older one. Sources: hnslib's V1 schema, `Get-HnsNetwork`, hns.v2.psm1.

use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use super::{
    Dns, EndpointFlags, EndpointPolicy, EndpointPolicyType, Health, HostComputeEndpoint, HostComputeNamespace, HostComputeNetwork, IpConfiguration,
    Ipam, MacPool, MacRange, NetworkFlags, NetworkPolicy, NetworkPolicyType, NetworkType, Route, SchemaVersion, Token,
};
use crate::guid::Guid;

document! {
    /// A policy: its settings stand beside its type, in `extra`.
    pub struct Policy {
        policy_type: Token = "Type", always;
    }
}

/// Names that differ: type and member of the older shape, type and member of the newer.
const RENAMED: [(&str, &str, &str, &str); 8] = [
    ("OutBoundNAT", "ExceptionList", "OutBoundNAT", "Exceptions"),
    ("OutBoundNAT", "VIP", "OutBoundNAT", "VirtualIP"),
    ("ROUTE", "", "SDNRoute", ""),
    ("PA", "PA", "ProviderAddress", "ProviderAddress"),
    ("NAT", "", "PortMapping", ""),
    ("PROXY", "", "L4Proxy", ""),
    ("VLAN", "VLAN", "VLAN", "IsolationId"),
    ("VSID", "VSID", "VSID", "IsolationId"),
];

impl Policy {
    /// Type and settings as the newer shape has them.
    fn to_v2(&self) -> (String, Value) {
        let name = self.policy_type.as_str();
        let same = |other: &str| other.eq_ignore_ascii_case(name);
        let mut settings = self.extra.clone();
        // Some clients write a policy of the newer shape into a document of the older.
        if let (1, Some((key, Value::Object(nested)))) = (settings.len(), settings.iter().next())
            && key.eq_ignore_ascii_case("Settings")
        {
            settings = nested.clone();
        }
        for (_, old, _, new) in RENAMED.iter().filter(|row| same(row.0) && !row.1.is_empty()) {
            let key = settings.keys().find(|key| key.eq_ignore_ascii_case(old)).cloned();
            if let Some(value) = key.and_then(|key| settings.shift_remove(&key)) {
                settings.insert((*new).to_owned(), value);
            }
        }
        let name = RENAMED.iter().find(|row| same(row.0)).map_or(name, |row| row.2);
        let settings = if settings.is_empty() { Value::Null } else { Value::Object(settings) };
        (name.to_owned(), settings)
    }

    /// The older shape of a type and its settings.
    fn of(name: &str, settings: &Value) -> Self {
        let same = |other: &str| other.eq_ignore_ascii_case(name);
        let mut extra = settings.as_object().cloned().unwrap_or_default();
        for (_, old, _, new) in RENAMED.iter().filter(|row| same(row.2) && !row.1.is_empty()) {
            if let Some(value) = extra.shift_remove(*new) {
                extra.insert((*old).to_owned(), value);
            }
        }
        let name = RENAMED.iter().find(|row| same(row.2)).map_or(name, |row| row.0);
        Self { policy_type: name.into(), extra }
    }

    /// The network or subnet policy that it is.
    pub fn to_network_policy(&self) -> NetworkPolicy {
        let (name, settings) = self.to_v2();
        NetworkPolicy { policy_type: NetworkPolicyType::parse(&name), settings, ..NetworkPolicy::default() }
    }

    pub fn to_endpoint_policy(&self) -> EndpointPolicy {
        let (name, settings) = self.to_v2();
        EndpointPolicy { policy_type: EndpointPolicyType::parse(&name), settings, ..EndpointPolicy::default() }
    }
}

document! {
    pub struct Subnet {
        id: Guid = "ID";
        address_prefix: String = "AddressPrefix";
        gateway_address: String = "GatewayAddress";
        /// `VLAN` or `VSID`.
        policies: Vec<Policy> = "Policies";
        /// 5.
        object_type: u32 = "ObjectType";
        /// 1 is normal.
        state: u32 = "State";
    }
}

document! {
    /// An extension of a network's switch.
    pub struct Extension {
        id: Guid = "Id";
        name: String = "Name";
        /// On or off.
        is_enabled: bool = "IsEnabled", always;
    }
}

document! {
    pub struct Network {
        id: Guid = "ID";
        name: String = "Name";
        /// Its type, spelt as it was given.
        network_type: Token = "Type";
        /// The program that made it.
        owner: String = "Owner";
        subnets: Vec<Subnet> = "Subnets";
        /// Where MAC addresses come from.
        mac_pools: Vec<MacRange> = "MacPools";
        policies: Vec<Policy> = "Policies";
        /// The physical adapter's alias.
        network_adapter_name: String = "NetworkAdapterName";
        /// The host's address.
        management_ip: String = "ManagementIP";
        /// The MAC of outgoing frames.
        source_mac: String = "SourceMac";
        /// The distributed router's MAC.
        dr_mac_address: String = "DrMacAddress";
        /// The connection's own suffix.
        dns_suffix: String = "DNSSuffix";
        /// Name servers, joined by commas.
        dns_server_list: String = "DNSServerList";
        /// 3.
        dns_server_compartment: u32 = "DNSServerCompartment";
        /// The layer under the switch.
        layered_on: Guid = "LayeredOn";
        switch_guid: Guid = "SwitchGuid";
        /// Endpoints now.
        current_endpoint_count: u32 = "CurrentEndpointCount";
        /// Endpoints ever.
        total_endpoints: u32 = "TotalEndpoints";
        /// Most endpoints at a time.
        max_concurrent_endpoints: u32 = "MaxConcurrentEndpoints";
        /// `NAT…` or `ICS…`.
        nat_name: String = "NatName";
        /// Whether it has IPv6.
        ipv6: bool = "IPv6";
        /// Extensions of its switch.
        extensions: Vec<Extension> = "Extensions";
        flags: NetworkFlags = "Flags";
        /// What HNS last thought of it.
        health: Option<Box<Health>> = "Health";
        /// What it is made of.
        resources: Value = "Resources";
        /// 1 is normal.
        state: u32 = "State";
        /// The last request that changed it.
        activity_id: Guid = "ActivityId";
        /// The HNS version that wrote it.
        version: u64 = "Version";
    }
}

document! {
    /// Where an endpoint is.
    pub struct NamespaceReference {
        id: Guid = "ID";
        compartment_id: u32 = "CompartmentId";
        compartment_guid: Guid = "CompartmentGuid";
        /// Whether it is the host's own.
        is_default: bool = "IsDefault";
    }
}

document! {
    pub struct Endpoint {
        id: Guid = "ID";
        name: String = "Name";
        virtual_network: Guid = "VirtualNetwork";
        virtual_network_name: String = "VirtualNetworkName";
        ip_address: String = "IPAddress";
        /// Its second address.
        ipv6_address: String = "IPv6Address";
        /// The length of its subnet's prefix.
        prefix_length: u8 = "PrefixLength";
        /// The length of its second subnet's prefix.
        ipv6_prefix_length: u8 = "IPv6PrefixLength";
        /// Its gateway, from the subnet where it was not sent.
        gateway_address: String = "GatewayAddress";
        /// The gateway of its second address.
        gateway_address_v6: String = "GatewayAddressV6";
        mac_address: String = "MacAddress";
        /// Name servers, joined by commas.
        dns_server_list: String = "DNSServerList";
        /// The connection's own suffix.
        dns_suffix: String = "DNSSuffix";
        /// Whether it is on another host.
        is_remote_endpoint: bool = "IsRemoteEndpoint";
        /// Whether HNS resolves names for it.
        enable_internal_dns: bool = "EnableInternalDNS";
        /// Whether its interface is preferred.
        enable_low_metric: bool = "EnableLowMetric";
        /// Containers that share it.
        shared_containers: Vec<String> = "SharedContainers";
        /// Where it is.
        namespace: Option<Box<NamespaceReference>> = "Namespace";
        policies: Vec<Policy> = "Policies";
        /// What HNS last thought of it.
        health: Option<Box<Health>> = "Health";
        /// What it is made of.
        resources: Value = "Resources";
        /// When it was made.
        create_processing_start_time: u64 = "CreateProcessingStartTime";
        /// See [`super::EndpointState`].
        state: u32 = "State";
        /// The HNS version that wrote it.
        version: u64 = "Version";
    }
}

document! {
    /// A load balancer: a policy list whose policy is an `ELB`.
    pub struct PolicyList {
        id: Guid = "ID";
        /// Its backends, as `/endpoints/GUID`.
        references: Vec<String> = "References";
        /// One `ELB`: `VIPs`, `SourceVIP`, `Protocol`, `InternalPort`, `ExternalPort`, `ILB`.
        policies: Vec<Policy> = "Policies";
        /// What it is made of.
        resources: Value = "Resources";
        /// 1 is normal.
        state: u32 = "State";
        /// The HNS version that wrote it.
        version: u64 = "Version";
    }
}

document! {
    pub struct Namespace {
        id: Guid = "ID";
        compartment_id: u32 = "CompartmentId";
        compartment_guid: Guid = "CompartmentGuid";
        /// Whether it is the host's own.
        is_default: bool = "IsDefault", always;
        /// What it holds.
        resource_list: Vec<super::NamespaceResource> = "ResourceList";
        /// 1 is normal.
        state: u32 = "State";
        /// The HNS version that wrote it.
        version: u64 = "Version";
    }
}

/// Members that only the newer shape has.
const V2_ONLY: [&str; 10] = [
    "Ipams",
    "IpConfigurations",
    "HostComputeNetwork",
    "HostComputeNamespace",
    "HostComputeEndpoints",
    "MacPool",
    "Dns",
    "Routes",
    "NamespaceId",
    "PortMappings",
];

/// Whether a document that came with a create or an `HNSCall` is of the older shape: no schema of 2 or above, and no member of the newer.
pub fn is_v1(document: &Map<String, Value>) -> bool {
    let schema = document.iter().find(|(key, _)| key.eq_ignore_ascii_case("SchemaVersion"));
    if let Some(version) = schema.and_then(|(_, value)| SchemaVersion::deserialize(value).ok()) {
        return version.major < 2;
    }
    !document.keys().any(|key| V2_ONLY.iter().any(|name| name.eq_ignore_ascii_case(key)))
}

fn joined(names: &[String]) -> String {
    names.join(",")
}

fn separate(names: &str) -> Vec<String> {
    names.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn default_route(gateway: &str) -> Option<Route> {
    let prefix = if gateway.contains(':') { "::/0" } else { "0.0.0.0/0" };
    (!gateway.is_empty()).then(|| Route { next_hop: gateway.to_owned(), destination_prefix: prefix.into(), ..Route::default() })
}

impl Subnet {
    fn to_v2(&self) -> super::Subnet {
        super::Subnet {
            id: self.id,
            ip_address_prefix: self.address_prefix.clone(),
            policies: self.policies.iter().map(Policy::to_network_policy).collect(),
            routes: default_route(&self.gateway_address).into_iter().collect(),
            state: self.state,
            extra: self.extra.clone(),
            ..super::Subnet::default()
        }
    }

    fn of(subnet: &super::Subnet) -> Self {
        Self {
            id: subnet.id,
            address_prefix: subnet.ip_address_prefix.clone(),
            gateway_address: subnet.gateway().map(|gateway| gateway.to_string()).unwrap_or_default(),
            policies: subnet.policies.iter().map(|policy| Policy::of(policy.policy_type.as_str(), &policy.settings)).collect(),
            object_type: 5,
            state: subnet.state,
            extra: subnet.extra.clone(),
        }
    }
}

/// Network policies that the older shape has members for instead.
fn has_member(policy: &NetworkPolicyType) -> bool {
    use NetworkPolicyType as Type;
    matches!(policy, Type::NetAdapterName | Type::ProviderAddress | Type::SourceMacAddress | Type::DrMacAddress)
}

impl Network {
    /// The newer document.
    pub fn to_v2(&self) -> HostComputeNetwork {
        let mut policies = Vec::new();
        if !self.network_adapter_name.is_empty() {
            policies.push(NetworkPolicy::net_adapter_name(self.network_adapter_name.clone()));
        }
        let settings = [
            (NetworkPolicyType::ProviderAddress, "ProviderAddress", &self.management_ip),
            (NetworkPolicyType::SourceMacAddress, "SourceMacAddress", &self.source_mac),
            (NetworkPolicyType::DrMacAddress, "Address", &self.dr_mac_address),
        ];
        let given = settings.into_iter().filter(|(_, _, text)| !text.is_empty());
        policies.extend(given.map(|(policy_type, member, text)| NetworkPolicy::new(policy_type, &json!({member: text}))));
        policies.extend(self.policies.iter().map(Policy::to_network_policy));
        let subnets: Vec<_> = self.subnets.iter().map(Subnet::to_v2).collect();
        HostComputeNetwork {
            id: self.id,
            owner: self.owner.clone(),
            name: self.name.clone(),
            version: self.version,
            network_type: NetworkType::parse(self.network_type.as_str()),
            policies,
            mac_pool: MacPool { ranges: self.mac_pools.clone(), ..MacPool::default() },
            dns: Dns { domain: self.dns_suffix.clone(), server_list: separate(&self.dns_server_list), ..Dns::default() },
            ipams: if subnets.is_empty() { Vec::new() } else { vec![Ipam { subnets, ..Ipam::default() }] },
            flags: self.flags,
            health: self.health.clone(),
            state: self.state,
            extra: self.extra.clone(),
            ..HostComputeNetwork::default()
        }
    }

    /// The older shape of a document. Counts, switch and extensions are the service's to fill in.
    pub fn of(network: &HostComputeNetwork) -> Self {
        let text = |policy_type: &NetworkPolicyType, member: &str| {
            let policy = network.policies.iter().find(|policy| policy.policy_type == *policy_type);
            policy.and_then(|policy| policy.settings.get(member)?.as_str()).unwrap_or_default().to_owned()
        };
        let plain = network.policies.iter().filter(|policy| !has_member(&policy.policy_type));
        Self {
            id: network.id,
            name: network.name.clone(),
            network_type: network.network_type.as_str().into(),
            owner: network.owner.clone(),
            subnets: network.subnets().map(Subnet::of).collect(),
            mac_pools: network.mac_pool.ranges.clone(),
            policies: plain.map(|policy| Policy::of(policy.policy_type.as_str(), &policy.settings)).collect(),
            network_adapter_name: text(&NetworkPolicyType::NetAdapterName, "NetworkAdapterName"),
            management_ip: text(&NetworkPolicyType::ProviderAddress, "ProviderAddress"),
            source_mac: text(&NetworkPolicyType::SourceMacAddress, "SourceMacAddress"),
            dr_mac_address: text(&NetworkPolicyType::DrMacAddress, "Address"),
            dns_suffix: network.dns.domain.clone(),
            dns_server_list: joined(&network.dns.server_list),
            flags: network.flags,
            health: network.health.clone(),
            state: network.state,
            version: network.version,
            extra: network.extra.clone(),
            ..Self::default()
        }
    }
}

impl Endpoint {
    /// The newer document.
    pub fn to_v2(&self) -> HostComputeEndpoint {
        let addresses = [(&self.ip_address, self.prefix_length), (&self.ipv6_address, self.ipv6_prefix_length)];
        let configuration =
            |(address, prefix_length): (&String, u8)| IpConfiguration { ip_address: address.clone(), prefix_length, ..IpConfiguration::default() };
        let mut flags = EndpointFlags::default();
        for (set, flag) in [(self.is_remote_endpoint, EndpointFlags::REMOTE), (self.enable_low_metric, EndpointFlags::ENABLE_LOW_INTERFACE_METRIC)] {
            flags = if set { flags | flag } else { flags };
        }
        HostComputeEndpoint {
            id: self.id,
            name: self.name.clone(),
            version: self.version,
            host_compute_network: self.virtual_network,
            host_compute_namespace: self.namespace.as_ref().map(|namespace| namespace.id).unwrap_or_default(),
            policies: self.policies.iter().map(Policy::to_endpoint_policy).collect(),
            ip_configurations: addresses.into_iter().filter(|(address, _)| !address.is_empty()).map(configuration).collect(),
            dns: Dns { domain: self.dns_suffix.clone(), server_list: separate(&self.dns_server_list), ..Dns::default() },
            routes: [&self.gateway_address, &self.gateway_address_v6].into_iter().filter_map(|gateway| default_route(gateway)).collect(),
            mac_address: self.mac_address.clone(),
            flags,
            health: self.health.clone(),
            state: self.state,
            extra: self.extra.clone(),
            ..HostComputeEndpoint::default()
        }
    }

    /// The older shape of a document; `network` is the endpoint's own, whose name and gateway it repeats.
    pub fn of(endpoint: &HostComputeEndpoint, network: Option<&HostComputeNetwork>) -> Self {
        let find = |v6: bool| endpoint.ip_configurations.iter().find(|ip| ip.ip_address.contains(':') == v6);
        let address = |v6| find(v6).map(|ip| (ip.ip_address.clone(), ip.prefix_length)).unwrap_or_default();
        let gateway = |v6: bool| {
            let own = endpoint.routes.iter().find(|route| route.destination_prefix == if v6 { "::/0" } else { "0.0.0.0/0" });
            let subnets = || network?.subnets().filter_map(super::Subnet::gateway).find(|gateway| gateway.is_ipv6() == v6);
            let inherited = || find(v6).and_then(|_| subnets()).map(|gateway| gateway.to_string());
            own.map(|route| route.next_hop.clone()).or_else(inherited).unwrap_or_default()
        };
        let ((ip_address, prefix_length), (ipv6_address, ipv6_prefix_length)) = (address(false), address(true));
        let namespace = NamespaceReference { id: endpoint.host_compute_namespace, ..NamespaceReference::default() };
        Self {
            id: endpoint.id,
            // What has no name is called as its interface will be.
            name: if endpoint.name.is_empty() { "Ethernet".into() } else { endpoint.name.clone() },
            virtual_network: endpoint.host_compute_network,
            virtual_network_name: network.map(|network| network.name.clone()).unwrap_or_default(),
            ip_address,
            ipv6_address,
            prefix_length,
            ipv6_prefix_length,
            gateway_address: gateway(false),
            gateway_address_v6: gateway(true),
            mac_address: endpoint.mac_address.clone(),
            dns_server_list: joined(&endpoint.dns.server_list),
            dns_suffix: endpoint.dns.domain.clone(),
            is_remote_endpoint: endpoint.is_remote(),
            enable_low_metric: endpoint.flags.contains(EndpointFlags::ENABLE_LOW_INTERFACE_METRIC),
            namespace: (!namespace.id.is_nil()).then(|| Box::new(namespace)),
            policies: endpoint.policies.iter().map(|policy| Policy::of(policy.policy_type.as_str(), &policy.settings)).collect(),
            health: endpoint.health.clone(),
            state: endpoint.state,
            version: endpoint.version,
            extra: endpoint.extra.clone(),
            ..Self::default()
        }
    }
}

impl Namespace {
    /// The older shape of a document.
    pub fn of(namespace: &HostComputeNamespace) -> Self {
        Self {
            id: namespace.id,
            compartment_id: namespace.namespace_id,
            compartment_guid: namespace.namespace_guid,
            is_default: namespace.is_default,
            resource_list: namespace.resources.clone(),
            state: namespace.state,
            version: namespace.version,
            extra: namespace.extra.clone(),
        }
    }
}

/// Reads a network of either shape.
pub fn network(text: &str) -> serde_json::Result<HostComputeNetwork> {
    let members: Map<String, Value> = serde_json::from_str(text)?;
    if is_v1(&members) { Ok(serde_json::from_str::<Network>(text)?.to_v2()) } else { serde_json::from_str(text) }
}

/// Reads an endpoint of either shape.
pub fn endpoint(text: &str) -> serde_json::Result<HostComputeEndpoint> {
    let members: Map<String, Value> = serde_json::from_str(text)?;
    if is_v1(&members) { Ok(serde_json::from_str::<Endpoint>(text)?.to_v2()) } else { serde_json::from_str(text) }
}
