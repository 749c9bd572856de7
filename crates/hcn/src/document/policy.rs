//! Policies of networks and endpoints: a type, and settings of that type.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Protocol, Token};

named! {
    /// The types of network policies.
    pub enum NetworkPolicyType {
        default SourceMacAddress;
        /// The MAC of outgoing frames.
        SourceMacAddress = "SourceMacAddress" / 0,
        /// The adapter under the switch.
        NetAdapterName = "NetAdapterName" / 1,
        /// A switch extension.
        VSwitchExtension = "VSwitchExtension" / 2,
        /// The host's address (ManagementIP).
        ProviderAddress = "ProviderAddress" / 3,
        /// The distributed router's MAC.
        DrMacAddress = "DrMacAddress" / 4,
        /// Name servers of the host.
        AutomaticDns = "AutomaticDNS" / 5,
        /// The adapter, by other names.
        InterfaceConstraint = "InterfaceConstraint" / 6,
        /// Where a prefix of an overlay lives.
        RemoteSubnetRoute = "RemoteSubnetRoute" / 7,
        /// The tunnel's UDP port.
        VxlanPort = "VxlanPort" / 8,
        /// Host to pod traffic on an overlay.
        HostRoute = "HostRoute" / 9,
        /// A set of addresses.
        SetPolicy = "SetPolicy" / 10,
        /// A proxy.
        L4Proxy = "L4Proxy" / 11,
        /// A layer.
        LayerConstraint = "LayerConstraint" / 12,
        /// An access rule of the network.
        NetworkAcl = "NetworkACL" / 13,
        /// A subnet's VLAN.
        Vlan = "VLAN",
        /// A subnet's virtual network number.
        Vsid = "VSID",
    }
}

named! {
    /// The types of endpoint policies.
    pub enum EndpointPolicyType {
        default PortMapping;
        /// A host port.
        PortMapping = "PortMapping" / 0,
        /// An access rule.
        Acl = "ACL" / 1,
        /// A rate limit.
        Qos = "QOS" / 2,
        /// The switch's own rewriting.
        L2Driver = "L2Driver" / 3,
        /// Source translation of outgoing traffic.
        OutBoundNat = "OutBoundNAT" / 4,
        /// A prefix that the host routes.
        SdnRoute = "SDNRoute" / 5,
        /// A proxy.
        L4Proxy = "L4Proxy" / 6,
        /// The host behind which the endpoint lives.
        ProviderAddress = "ProviderAddress" / 7,
        /// The switch port's name.
        PortName = "PortName" / 8,
        /// Bytes taken from the MTU.
        EncapOverhead = "EncapOverhead" / 9,
        /// The adapter.
        InterfaceConstraint = "InterfaceConstraint" / 10,
        /// IPsec.
        Encryption = "Encryption" / 11,
        /// A VLAN.
        Vlan = "VLAN" / 12,
        /// The interface's MTU.
        InterfaceParameters = "InterfaceParameters" / 13,
        /// A transparent proxy.
        L4WfpProxy = "L4WFPPROXY" / 14,
        /// SR-IOV.
        Iov = "Iov" / 15,
        /// Access rules in tiers.
        TierAcl = "TierAcl" / 16,
        /// The firewall.
        Firewall = "Firewall" / 18,
    }
}

bits! {
    /// Switches of address translation.
    pub struct NatFlags {
        /// The host itself may use it.
        LOCAL_ROUTED_VIP = 1 "LocalRoutedVip",
        /// IPv6.
        IPV6 = 2 "IPv6",
        /// The client reserved the port.
        EXTERNAL_PORT_RESERVED = 4 "ExternalPortReserved",
    }
}

named! {
    /// What an access rule does.
    pub enum Action {
        default Block;
        /// Passes.
        Allow = "Allow",
        /// Drops.
        Block = "Block",
        /// Goes on with the next tier.
        Pass = "Pass",
    }
}

named! {
    /// Seen from the endpoint.
    pub enum Direction {
        default In;
        /// To the endpoint.
        In = "In",
        /// From the endpoint.
        Out = "Out",
    }
}

document! {
    /// A policy of a network or a subnet.
    pub struct NetworkPolicy {
        /// What it is.
        policy_type: NetworkPolicyType = "Type", always;
        /// Its settings, as the type has them.
        settings: Value = "Settings";
    }
}

document! {
    /// A policy of an endpoint.
    pub struct EndpointPolicy {
        /// What it is.
        policy_type: EndpointPolicyType = "Type", always;
        /// Its settings, as the type has them.
        settings: Value = "Settings";
    }
}

document! {
    /// Settings of `OutBoundNAT`.
    pub struct OutBoundNat {
        /// The source that destinations see; absent is the host's address.
        virtual_ip: String = "VirtualIP";
        /// Destinations that are not translated. V1 calls it `ExceptionList`.
        exceptions: Vec<String> = "Exceptions" | "ExceptionList";
        /// Where given, only these destinations are translated.
        destinations: Vec<String> = "Destinations";
        /// Its switches.
        flags: NatFlags = "Flags";
        /// How many ports it may use.
        max_port_pool_usage: u16 = "MaxPortPoolUsage";
    }
}

document! {
    /// Settings of `SDNRoute`.
    pub struct SdnRoute {
        /// The prefix.
        destination_prefix: String = "DestinationPrefix";
        /// The gateway.
        next_hop: String = "NextHop";
        /// The host routes the packet.
        need_encap: bool = "NeedEncap";
        /// HNS watches the endpoint.
        automatic_endpoint_monitor: bool = "AutomaticEndpointMonitor";
    }
}

document! {
    /// Settings of an endpoint's `PortMapping`.
    pub struct PortMapping {
        /// TCP, UDP or another.
        protocol: Protocol = "Protocol";
        /// The endpoint's port.
        internal_port: u16 = "InternalPort";
        /// The host's port.
        external_port: u16 = "ExternalPort";
        /// The host's address; absent is any.
        vip: String = "VIP";
        /// Its switches.
        flags: NatFlags = "Flags";
    }
}

document! {
    /// Settings of `ACL` and `NetworkACL`.
    pub struct Acl {
        /// Name of the rule.
        id: String = "Id";
        /// Protocol numbers joined by commas; none or "256" is any.
        protocols: Token = "Protocols";
        /// What it does.
        action: Action = "Action", always;
        /// Which packets.
        direction: Direction = "Direction", always;
        /// The endpoint's addresses or sets, joined by commas.
        local_addresses: String = "LocalAddresses";
        /// The peer's addresses or sets, joined by commas.
        remote_addresses: String = "RemoteAddresses";
        /// The endpoint's ports, joined by commas.
        local_ports: Token = "LocalPorts";
        /// The peer's ports, joined by commas.
        remote_ports: Token = "RemotePorts";
        /// `Host` or `Switch`.
        rule_type: String = "RuleType";
        /// Lower wins.
        priority: u16 = "Priority";
    }
}

document! {
    /// Settings of a network's `RemoteSubnetRoute`.
    pub struct RemoteSubnetRoute {
        /// The prefix.
        destination_prefix: String = "DestinationPrefix";
        /// The virtual network's number.
        isolation_id: u32 = "IsolationId";
        /// The host behind which the prefix lives.
        provider_address: String = "ProviderAddress";
        /// That host's distributed router.
        distributed_router_mac_address: String = "DistributedRouterMacAddress";
    }
}

document! {
    /// Settings of `ProviderAddress`.
    pub struct ProviderAddress {
        /// The host's address.
        provider_address: String = "ProviderAddress";
    }
}

document! {
    /// Settings of a network's `NetAdapterName`.
    pub struct NetAdapterName {
        /// The physical adapter's alias, as `Ethernet`.
        network_adapter_name: String = "NetworkAdapterName";
    }
}

document! {
    /// Settings of `InterfaceParameters`.
    pub struct InterfaceParameters {
        /// The interface's MTU in bytes.
        mtu: u16 = "Mtu";
    }
}

document! {
    /// Settings of `EncapOverhead`.
    pub struct EncapOverhead {
        /// Bytes taken from the MTU.
        overhead: u16 = "Overhead";
    }
}

/// Turns settings into the value a policy carries.
///
/// # Panics
/// Never: settings hold only strings, numbers, lists and maps with string keys.
fn value<T: Serialize>(settings: &T) -> Value {
    serde_json::to_value(settings).expect("settings always serialize")
}

impl NetworkPolicy {
    /// A policy of any type.
    pub fn new<T: Serialize>(policy_type: NetworkPolicyType, settings: &T) -> Self {
        Self { policy_type, settings: value(settings), ..Self::default() }
    }

    /// `NetAdapterName`: the adapter under the switch.
    pub fn net_adapter_name(alias: impl Into<String>) -> Self {
        let settings = NetAdapterName { network_adapter_name: alias.into(), ..NetAdapterName::default() };
        Self::new(NetworkPolicyType::NetAdapterName, &settings)
    }

    /// `ProviderAddress`: the host's own address.
    pub fn provider_address(address: IpAddr) -> Self {
        let settings = ProviderAddress { provider_address: address.to_string(), ..ProviderAddress::default() };
        Self::new(NetworkPolicyType::ProviderAddress, &settings)
    }

    /// `RemoteSubnetRoute`.
    pub fn remote_subnet_route(settings: &RemoteSubnetRoute) -> Self {
        Self::new(NetworkPolicyType::RemoteSubnetRoute, settings)
    }

    /// The settings, where the policy is of `policy_type` and they can be read.
    pub fn settings_as<T: DeserializeOwned>(&self, policy_type: &NetworkPolicyType) -> Option<T> {
        (self.policy_type == *policy_type).then(|| serde_json::from_value(self.settings.clone()).ok()).flatten()
    }

    /// Reads `ProviderAddress`.
    pub fn as_provider_address(&self) -> Option<IpAddr> {
        self.settings_as::<ProviderAddress>(&NetworkPolicyType::ProviderAddress)?.provider_address.parse().ok()
    }

    /// Reads `NetAdapterName`.
    pub fn as_net_adapter_name(&self) -> Option<String> {
        Some(self.settings_as::<NetAdapterName>(&NetworkPolicyType::NetAdapterName)?.network_adapter_name)
    }

    /// Reads `RemoteSubnetRoute`.
    pub fn as_remote_subnet_route(&self) -> Option<RemoteSubnetRoute> {
        self.settings_as(&NetworkPolicyType::RemoteSubnetRoute)
    }
}

impl EndpointPolicy {
    /// A policy of any type.
    pub fn new<T: Serialize>(policy_type: EndpointPolicyType, settings: &T) -> Self {
        Self { policy_type, settings: value(settings), ..Self::default() }
    }

    /// `OutBoundNAT` for every destination but `exceptions`.
    pub fn outbound_nat(exceptions: impl IntoIterator<Item = IpNet>) -> Self {
        let exceptions = exceptions.into_iter().map(|net| net.to_string()).collect();
        Self::new(EndpointPolicyType::OutBoundNat, &OutBoundNat { exceptions, ..OutBoundNat::default() })
    }

    /// `OutBoundNAT` for `destinations` alone.
    pub fn outbound_nat_to(destinations: impl IntoIterator<Item = IpNet>) -> Self {
        let destinations = destinations.into_iter().map(|net| net.to_string()).collect();
        Self::new(EndpointPolicyType::OutBoundNat, &OutBoundNat { destinations, ..OutBoundNat::default() })
    }

    /// `SDNRoute` with `NeedEncap`: the host routes what goes to `prefix`.
    pub fn sdn_route(prefix: IpNet) -> Self {
        let settings = SdnRoute { destination_prefix: prefix.to_string(), need_encap: true, ..SdnRoute::default() };
        Self::new(EndpointPolicyType::SdnRoute, &settings)
    }

    /// `ProviderAddress`: the host behind which the endpoint lives.
    pub fn provider_address(address: IpAddr) -> Self {
        let settings = ProviderAddress { provider_address: address.to_string(), ..ProviderAddress::default() };
        Self::new(EndpointPolicyType::ProviderAddress, &settings)
    }

    /// `PortMapping`: a host port.
    pub fn port_mapping(settings: &PortMapping) -> Self {
        Self::new(EndpointPolicyType::PortMapping, settings)
    }

    /// The settings, where the policy is of `policy_type` and they can be read.
    pub fn settings_as<T: DeserializeOwned>(&self, policy_type: &EndpointPolicyType) -> Option<T> {
        (self.policy_type == *policy_type).then(|| serde_json::from_value(self.settings.clone()).ok()).flatten()
    }

    /// Reads `OutBoundNAT`.
    pub fn as_outbound_nat(&self) -> Option<OutBoundNat> {
        self.settings_as(&EndpointPolicyType::OutBoundNat)
    }

    /// Reads `SDNRoute`.
    pub fn as_sdn_route(&self) -> Option<SdnRoute> {
        self.settings_as(&EndpointPolicyType::SdnRoute)
    }

    /// Reads `PortMapping`.
    pub fn as_port_mapping(&self) -> Option<PortMapping> {
        self.settings_as(&EndpointPolicyType::PortMapping)
    }

    /// Reads `ProviderAddress`.
    pub fn as_provider_address(&self) -> Option<IpAddr> {
        self.settings_as::<ProviderAddress>(&EndpointPolicyType::ProviderAddress)?.provider_address.parse().ok()
    }
}
