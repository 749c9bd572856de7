//! Settings of policies, by type. A policy's `Type` says which of these its `Settings` are.

use serde_json::Value;

use super::{Protocol, Token};
use crate::guid::Guid;

bits! {
    /// Switches of address translation.
    pub struct NatFlags {
        /// The host itself may use it.
        LOCAL_ROUTED_VIP = 1 "LocalRoutedVip",
        IPV6 = 2 "IPv6",
        /// The client reserved the port.
        EXTERNAL_PORT_RESERVED = 4 "ExternalPortReserved",
    }
}

named! {
    /// What an access rule does.
    pub enum Action {
        default Block;
        Allow = "Allow",
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
    /// Settings of `OutBoundNAT`.
    pub struct OutBoundNat {
        /// The source that destinations see; absent is the host's address.
        virtual_ip: String = "VirtualIP";
        /// Destinations that are not translated. V1 calls it `ExceptionList`.
        exceptions: Vec<String> = "Exceptions" | "ExceptionList";
        /// Where given, only these destinations are translated.
        destinations: Vec<String> = "Destinations";
        flags: NatFlags = "Flags";
        /// How many ports it may use.
        max_port_pool_usage: u16 = "MaxPortPoolUsage";
    }
}

document! {
    /// Settings of `SDNRoute`.
    pub struct SdnRoute {
        destination_prefix: String = "DestinationPrefix";
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
        flags: NatFlags = "Flags";
    }
}

named! {
    /// Where an access rule is enforced.
    pub enum RuleType {
        default Switch;
        /// In the compartment (WFP).
        Host = "Host",
        /// At the switch's port (VFP).
        Switch = "Switch",
    }
}

document! {
    /// Settings of `ACL` and `NetworkACL`.
    pub struct Acl {
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
        /// Where it is enforced.
        rule_type: RuleType = "RuleType", always;
        /// Lower wins.
        priority: u16 = "Priority";
    }
}

document! {
    /// Settings of a network's `RemoteSubnetRoute`.
    pub struct RemoteSubnetRoute {
        destination_prefix: String = "DestinationPrefix";
        /// The virtual network's number.
        isolation_id: u32 = "IsolationId";
        /// The host behind which the prefix is.
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

document! {
    /// Settings of `SourceMacAddress`.
    pub struct SourceMacAddress {
        source_mac_address: String = "SourceMacAddress";
    }
}

document! {
    /// Settings of `DrMacAddress`: the distributed router's MAC, which peers must know.
    pub struct DrMacAddress {
        address: String = "Address";
    }
}

document! {
    /// Settings of `InterfaceConstraint`, of networks and endpoints: the adapter by any of its names.
    pub struct InterfaceConstraint {
        interface_guid: Guid = "InterfaceGuid";
        /// Its locally unique identifier.
        interface_luid: u64 = "InterfaceLuid";
        interface_index: u32 = "InterfaceIndex";
        /// Its medium.
        interface_media_type: u32 = "InterfaceMediaType";
        /// Its alias, as `Ethernet`.
        interface_alias: String = "InterfaceAlias";
        interface_description: String = "InterfaceDescription";
    }
}

document! {
    /// Settings of `VSwitchExtension`.
    pub struct VSwitchExtension {
        extension_id: Guid = "ExtensionID";
        /// On or off.
        enable: bool = "Enable";
    }
}

document! {
    /// Settings of `AutomaticDNS`.
    pub struct AutomaticDns {
        /// On or off.
        enable: bool = "Enable";
    }
}

document! {
    /// Settings of `VxlanPort`.
    pub struct VxlanPort {
        /// The tunnel's UDP port; 4789 where the policy is absent.
        port: u16 = "Port";
    }
}

document! {
    /// Settings of `LayerConstraint`.
    pub struct LayerConstraint {
        /// The layer under the switch.
        layer_id: Guid = "LayerId";
    }
}

document! {
    /// Settings of `NeighborDiscovery`.
    pub struct NeighborDiscovery {
        /// The peer whose solicitations are answered.
        target_ip_prefix: String = "TargetIpPrefix";
        /// The answer's source address.
        sender_ip_address: String = "SenderIpAddress";
        /// The answer's MAC.
        sender_mac_address: String = "SenderMacAddress";
    }
}

document! {
    /// Settings of `VLAN` and `VSID`, of subnets (and `VLAN` of endpoints). An overlay's subnets need a VSID of 4096 or more.
    pub struct Isolation {
        /// The VLAN or virtual network number. V1 calls it `VLAN` and `VSID`.
        isolation_id: u32 = "IsolationId" | "VLAN" | "VSID", always;
    }
}

named! {
    /// What the values of a set are.
    pub enum SetPolicyType {
        default IpSet;
        /// Addresses and prefixes.
        IpSet = "IPSET",
        /// Ids of other sets.
        NestedIpSet = "NESTEDIPSET",
    }
}

document! {
    /// Settings of `SetPolicy`: addresses that ACLs name by the set's id.
    pub struct SetPolicy {
        /// Identifier, as ACLs name it.
        id: String = "Id";
        name: String = "Name";
        /// What the values are.
        policy_type: SetPolicyType = "PolicyType" | "Type", always;
        /// Joined by commas.
        values: String = "Values";
    }
}

impl SetPolicy {
    /// The values one by one.
    pub fn members(&self) -> impl Iterator<Item = &str> {
        list(&self.values)
    }
}

document! {
    /// Settings of `L4Proxy`, of networks and endpoints: redirection to a proxy by the switch. V1 calls the type `PROXY`.
    pub struct L4Proxy {
        ip: String = "IP";
        port: Token = "Port";
        /// TCP or another; none is all.
        protocol: Protocol = "Protocol";
        /// What is not redirected.
        exception_list: Vec<String> = "ExceptionList" | "Exceptions";
        /// What is redirected; empty is everything.
        destination: String = "Destination";
        /// Whether what is redirected is translated.
        outbound_nat: bool = "OutboundNat";
    }
}

document! {
    /// Settings of `QOS`.
    pub struct Qos {
        /// Bytes a second, outgoing only.
        maximum_outgoing_bandwidth_in_bytes: u64 = "MaximumOutgoingBandwidthInBytes";
    }
}

document! {
    /// Settings of `PortName`.
    pub struct PortName {
        /// The switch port's name.
        name: String = "Name";
    }
}

document! {
    /// What `L4WFPPROXY` redirects.
    pub struct FilterTuple {
        /// Protocol numbers joined by commas.
        protocols: Token = "Protocols";
        /// The endpoint's addresses.
        local_addresses: String = "LocalAddresses";
        /// The peer's addresses.
        remote_addresses: String = "RemoteAddresses";
        /// The endpoint's ports.
        local_ports: Token = "LocalPorts";
        /// The peer's ports.
        remote_ports: Token = "RemotePorts";
        /// Lower wins.
        priority: u16 = "Priority";
    }
}

document! {
    /// What `L4WFPPROXY` lets pass.
    pub struct ProxyExceptions {
        ip_address_exceptions: Vec<String> = "IpAddressExceptions";
        port_exceptions: Vec<Token> = "PortExceptions";
    }
}

document! {
    /// Settings of `L4WFPPROXY`: redirection inside the compartment.
    pub struct L4WfpProxy {
        /// The proxy's port for incoming connections.
        inbound_proxy_port: Token = "InboundProxyPort";
        /// The proxy's port for outgoing connections.
        outbound_proxy_port: Token = "OutboundProxyPort";
        /// What is redirected.
        filter_tuple: FilterTuple = "FilterTuple";
        /// The proxy's own user, whose connections pass.
        user_sid: String = "UserSID";
        /// What passes of incoming connections.
        inbound_exceptions: ProxyExceptions = "InboundExceptions";
        /// What passes of outgoing connections.
        outbound_exceptions: ProxyExceptions = "OutboundExceptions";
    }
}

document! {
    /// How peers of an `Encryption` policy authenticate.
    pub struct AuthenticationMethod {
        /// `PresharedKey` or `Certificate`.
        method_type: String = "Type";
        /// `Key` or `CertificateName`.
        settings: Value = "Settings";
    }
}

document! {
    /// Settings of `Encryption`.
    pub struct Encryption {
        /// `Ipsec`.
        encryption_method_type: String = "EncryptionMethodType";
        /// How peers authenticate.
        authentication_methods: Vec<AuthenticationMethod> = "AuthenticationMethods";
        name: String = "Name";
        /// One side's addresses.
        endpoints1: Vec<String> = "Endpoints1";
        /// The other side's.
        endpoints2: Vec<String> = "Endpoints2";
        protocol_type: Token = "ProtocolType";
        /// One side's ports.
        endpoint1_ports: Vec<Token> = "Endpoint1Ports";
        /// The other side's.
        endpoint2_ports: Vec<Token> = "Endpoint2Ports";
    }
}

document! {
    /// Settings of `Iov`.
    pub struct Iov {
        /// 100 is on.
        iov_offload_weight: u32 = "IovOffloadWeight";
        /// How many pairs of queues.
        queue_pairs_requested: u32 = "QueuePairsRequested";
        /// `Default`, `Adaptive`, `Off`, `Low`, `Medium`, `High`, or its number.
        interrupt_moderation: Token = "InterruptModeration";
    }
}

document! {
    /// One rule of a `TierAcl`.
    pub struct TierAclRule {
        id: String = "Id";
        /// Protocol numbers joined by commas; none or "256" is any.
        protocols: Token = "Protocols";
        /// What it does; `Pass` goes on with the next tier.
        action: Action = "TierAclRuleAction", always;
        /// The endpoint's addresses or sets, joined by commas.
        local_addresses: String = "LocalAddresses";
        /// The peer's addresses or sets, joined by commas.
        remote_addresses: String = "RemoteAddresses";
        /// The endpoint's ports, joined by commas.
        local_ports: Token = "LocalPorts";
        /// The peer's ports, joined by commas.
        remote_ports: Token = "RemotePorts";
        /// Lower wins within its tier.
        priority: u16 = "Priority";
    }
}

document! {
    /// Settings of `TierAcl`: a tier of rules.
    pub struct TierAcl {
        name: String = "Name";
        /// Which packets.
        direction: Direction = "Direction", always;
        /// The tier's place: lower comes first.
        order: u16 = "Order";
        rules: Vec<TierAclRule> = "TierAclRules";
    }
}

document! {
    /// Settings of `Firewall`. The schema and WSL name the members differently; both are read.
    pub struct Firewall {
        /// The component that made the virtual machine.
        vm_creator_id: Token = "VmCreatorId" | "VmType";
        /// 1 is a constrained interface.
        policy_flags: u32 = "PolicyFlags" | "FirewallPolicyFlags";
    }
}

document! {
    /// Settings of `HostRoute` and `L2Driver`: none.
    pub struct NoSettings {}
}

/// The entries of a comma list.
fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|entry| !entry.is_empty())
}

impl Acl {
    /// The protocol numbers it is for; empty is any.
    pub fn protocol_numbers(&self) -> Vec<u32> {
        protocol_numbers(&self.protocols)
    }
}

impl TierAclRule {
    /// The protocol numbers it is for; empty is any.
    pub fn protocol_numbers(&self) -> Vec<u32> {
        protocol_numbers(&self.protocols)
    }
}

/// Numbers of a comma list of protocols; 256, or no number at all, is any.
fn protocol_numbers(protocols: &Token) -> Vec<u32> {
    let numbers: Vec<u32> = list(protocols.as_str()).filter_map(|entry| entry.parse().ok()).collect();
    if numbers.contains(&256) { Vec::new() } else { numbers }
}
