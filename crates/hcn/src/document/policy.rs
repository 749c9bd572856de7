//! Policies of networks and endpoints: a type, and settings of that type.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    Acl, DrMacAddress, NetAdapterName, OutBoundNat, PortMapping, ProviderAddress, RemoteSubnetRoute, SdnRoute, SetPolicy, TierAcl, VxlanPort,
};

named! {
    pub enum NetworkPolicyType {
        default SourceMacAddress;
        /// The MAC of outgoing frames.
        SourceMacAddress = "SourceMacAddress" / 0,
        /// The adapter under the switch.
        NetAdapterName = "NetAdapterName" / 1,
        VSwitchExtension = "VSwitchExtension" / 2,
        /// The host's address (ManagementIP).
        ProviderAddress = "ProviderAddress" / 3,
        /// The distributed router's MAC.
        DrMacAddress = "DrMacAddress" / 4,
        /// Name servers of the host.
        AutomaticDns = "AutomaticDNS" / 5,
        /// The adapter, by other names.
        InterfaceConstraint = "InterfaceConstraint" / 6,
        /// The host of a prefix of an overlay.
        RemoteSubnetRoute = "RemoteSubnetRoute" / 7,
        /// The tunnel's UDP port.
        VxlanPort = "VxlanPort" / 8,
        /// Host to pod traffic on an overlay.
        HostRoute = "HostRoute" / 9,
        /// A set of addresses.
        SetPolicy = "SetPolicy" / 10,
        L4Proxy = "L4Proxy" / 11,
        LayerConstraint = "LayerConstraint" / 12,
        /// An access rule of the network.
        NetworkAcl = "NetworkACL" / 13,
        /// An answered neighbour solicitation (Microsoft's scripts alone know it).
        NeighborDiscovery = "NeighborDiscovery",
        /// A subnet's VLAN.
        Vlan = "VLAN",
        /// A subnet's virtual network number.
        Vsid = "VSID",
    }
}

named! {
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
        L4Proxy = "L4Proxy" / 6,
        /// The host behind which the endpoint is.
        ProviderAddress = "ProviderAddress" / 7,
        /// The switch port's name.
        PortName = "PortName" / 8,
        /// Bytes taken from the MTU.
        EncapOverhead = "EncapOverhead" / 9,
        /// The adapter.
        InterfaceConstraint = "InterfaceConstraint" / 10,
        /// IPsec.
        Encryption = "Encryption" / 11,
        Vlan = "VLAN" / 12,
        /// The interface's MTU.
        InterfaceParameters = "InterfaceParameters" / 13,
        /// A transparent proxy.
        L4WfpProxy = "L4WFPPROXY" / 14,
        Iov = "Iov" / 15,
        /// Access rules in tiers.
        TierAcl = "TierAcl" / 16,
        Firewall = "Firewall" / 18,
    }
}

document! {
    /// A policy of a network or a subnet.
    pub struct NetworkPolicy {
        policy_type: NetworkPolicyType = "Type", always;
        /// Its settings, as the type has them.
        settings: Value = "Settings";
    }
}

document! {
    pub struct EndpointPolicy {
        policy_type: EndpointPolicyType = "Type", always;
        /// Its settings, as the type has them.
        settings: Value = "Settings";
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

    /// `SetPolicy`.
    pub fn set(settings: &SetPolicy) -> Self {
        Self::new(NetworkPolicyType::SetPolicy, settings)
    }

    /// `DrMacAddress`: the distributed router's MAC.
    pub fn dr_mac_address(mac: impl Into<String>) -> Self {
        Self::new(NetworkPolicyType::DrMacAddress, &DrMacAddress { address: mac.into(), ..DrMacAddress::default() })
    }

    /// Reads `SetPolicy`.
    pub fn as_set(&self) -> Option<SetPolicy> {
        self.settings_as(&NetworkPolicyType::SetPolicy)
    }

    /// Reads `DrMacAddress`.
    pub fn as_dr_mac_address(&self) -> Option<String> {
        Some(self.settings_as::<DrMacAddress>(&NetworkPolicyType::DrMacAddress)?.address)
    }

    /// Reads `VxlanPort`.
    pub fn as_vxlan_port(&self) -> Option<u16> {
        Some(self.settings_as::<VxlanPort>(&NetworkPolicyType::VxlanPort)?.port)
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

    /// `ProviderAddress`: the host behind which the endpoint is.
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

    /// `ACL`: an access rule.
    pub fn acl(settings: &Acl) -> Self {
        Self::new(EndpointPolicyType::Acl, settings)
    }

    /// Reads `ACL`.
    pub fn as_acl(&self) -> Option<Acl> {
        self.settings_as(&EndpointPolicyType::Acl)
    }

    /// Reads `TierAcl`.
    pub fn as_tier_acl(&self) -> Option<TierAcl> {
        self.settings_as(&EndpointPolicyType::TierAcl)
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
