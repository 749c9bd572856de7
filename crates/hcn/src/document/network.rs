//! Networks: a switch, its subnets and its policies.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use super::{Dns, Health, Isolation, NetworkPolicy, NetworkPolicyType, Route, SchemaVersion};
use crate::guid::Guid;

named! {
    /// What kind of switch a network is. NAT is 0, so HNS may omit it.
    pub enum NetworkType {
        default Nat;
        /// Internal switch behind address translation.
        Nat = "NAT" / 0,
        /// Internet connection sharing: NAT with DHCP and DNS proxy.
        Ics = "ICS" / 1,
        /// Pods are hosts of the LAN.
        Transparent = "Transparent" / 2,
        /// Pods share the host's MAC on the LAN.
        L2Bridge = "L2Bridge" / 3,
        /// As L2Bridge, with all traffic passing the fabric.
        L2Tunnel = "L2Tunnel" / 4,
        Overlay = "Overlay" / 5,
        /// Isolated switch without a host port.
        Private = "Private" / 6,
        /// Isolated switch with a host port.
        Internal = "Internal" / 7,
        /// Flow steering for WSL.
        Mirrored = "Mirrored" / 8,
        /// RDMA fabric.
        Infiniband = "Infiniband" / 9,
        /// Constrained connection sharing.
        ConstrainedIcs = "ConstrainedICS" / 10,
    }
}

named! {
    /// The component that gives out addresses.
    pub enum IpamType {
        default Static;
        /// HNS or the client.
        Static = "Static" / 0,
        /// A DHCP server.
        Dhcp = "Dhcp" / 1,
    }
}

bits! {
    /// Switches of a network.
    pub struct NetworkFlags {
        /// HNS answers DNS on the gateway.
        ENABLE_DNS_PROXY = 1 "EnableDnsProxy",
        /// HNS answers DHCP.
        ENABLE_DHCP_SERVER = 2 "EnableDhcpServer",
        ENABLE_MIRRORING = 4 "EnableMirroring",
        /// The network does not survive a reboot.
        ENABLE_NON_PERSISTENT = 8 "EnableNonPersistent",
        /// The network survives a reboot.
        ENABLE_PERSISTENT = 16 "EnablePersistent",
        /// The switch is not shared.
        ISOLATE_VSWITCH = 32 "IsolateVSwitch",
        ENABLE_FLOW_STEERING = 64 "EnableFlowSteering",
        /// No endpoint sharing.
        DISABLE_SHARING = 128 "DisableSharing",
        ENABLE_FIREWALL = 256 "EnableFirewall",
        /// The switch's media state does not reach the host.
        SUPPRESS_MEDIA_DISCONNECT = 512 "SuppressMediaDisconnect",
        /// No host port (HNS 15.1).
        DISABLE_HOST_PORT = 1024 "DisableHostPort",
        /// The host takes packets for any of its addresses.
        WEAK_HOST_RECEIVE = 2048 "WeakHostReceive",
        /// The host sends from any of its addresses.
        WEAK_HOST_SEND = 4096 "WeakHostSend",
        ENABLE_IOV = 8192 "EnableIov",
    }
}

bits! {
    /// Switches of a subnet.
    pub struct SubnetFlags {
        /// The gateway's address is not reserved for HNS.
        DO_NOT_RESERVE_GATEWAY_ADDRESS = 1 "DoNotReserveGatewayAddress",
    }
}

bits! {
    /// Switches of a part of a subnet.
    pub struct IpSubnetFlags {
        /// The last address is for broadcasts.
        ENABLE_BROADCAST = 1 "EnableBroadcast",
        /// No endpoint gets the first address.
        RESERVE_NETWORK_ADDRESS = 2 "ReserveNetworkAddress",
    }
}

document! {
    /// A part of a subnet (schema 2.3).
    pub struct IpSubnet {
        id: Guid = "ID";
        /// The program that made it.
        owner: String = "Owner";
        name: String = "Name";
        /// The prefix, as `10.0.0.0/25`.
        ip_address_prefix: String = "IpAddressPrefix";
        flags: IpSubnetFlags = "Flags";
        /// What HNS last thought of it.
        health: Option<Box<Health>> = "Health";
        /// 1 is normal.
        state: u32 = "State";
    }
}

document! {
    /// Addresses of a subnet.
    pub struct Subnet {
        id: Guid = "ID";
        /// The program that made it.
        owner: String = "Owner";
        name: String = "Name";
        /// The prefix, as `10.0.0.0/24`.
        ip_address_prefix: String = "IpAddressPrefix";
        /// `VLAN` or `VSID`.
        policies: Vec<NetworkPolicy> = "Policies";
        /// The default route's next hop is the gateway.
        routes: Vec<Route> = "Routes";
        /// Parts of the subnet.
        ip_subnets: Vec<IpSubnet> = "IpSubnets";
        /// Its switches (schema 2.7).
        flags: SubnetFlags = "Flags";
        /// What HNS last thought of it.
        health: Option<Box<Health>> = "Health";
        /// 1 is normal.
        state: u32 = "State";
    }
}

impl Subnet {
    /// A subnet with its default gateway.
    pub fn new(prefix: IpNet, gateway: IpAddr) -> Self {
        let destination = if prefix.addr().is_ipv4() { "0.0.0.0/0" } else { "::/0" };
        let route = Route { next_hop: gateway.to_string(), destination_prefix: destination.into(), ..Route::default() };
        Self { ip_address_prefix: prefix.trunc().to_string(), routes: vec![route], ..Self::default() }
    }

    /// The prefix, where it can be read.
    pub fn prefix(&self) -> Option<IpNet> {
        self.ip_address_prefix.parse::<IpNet>().ok()
    }

    /// The gateway: the next hop of the default route.
    pub fn gateway(&self) -> Option<IpAddr> {
        let default = |route: &&Route| matches!(route.destination_prefix.as_str(), "0.0.0.0/0" | "::/0");
        self.routes.iter().find(default)?.next_hop.parse().ok()
    }
}

document! {
    /// One way addresses are given out.
    pub struct Ipam {
        /// The component that gives them out.
        ipam_type: IpamType = "Type", always;
        /// From where.
        subnets: Vec<Subnet> = "Subnets";
    }
}

document! {
    /// First and last address of a range.
    pub struct MacRange {
        /// First.
        start_mac_address: String = "StartMacAddress";
        /// Last.
        end_mac_address: String = "EndMacAddress";
    }
}

document! {
    /// Where HNS takes MAC addresses from.
    pub struct MacPool {
        ranges: Vec<MacRange> = "Ranges";
    }
}

document! {
    /// A network (`HostComputeNetwork`).
    pub struct HostComputeNetwork {
        id: Guid = "ID";
        /// The program that made it.
        owner: String = "Owner";
        /// Its name, unique on the host.
        name: String = "Name";
        /// The HNS version that wrote it: major in the high 32 bits.
        version: u64 = "Version";
        /// What kind of switch it is.
        network_type: NetworkType = "Type", always;
        policies: Vec<NetworkPolicy> = "Policies";
        /// Where MAC addresses come from.
        mac_pool: MacPool = "MacPool";
        /// Name resolution.
        dns: Dns = "Dns";
        /// Its addresses.
        ipams: Vec<Ipam> = "Ipams";
        flags: NetworkFlags = "Flags";
        /// What HNS last thought of it.
        health: Option<Box<Health>> = "Health";
        additional_params: Option<Box<Value>> = "AdditionalParams";
        /// 1 is normal.
        state: u32 = "State";
        /// The schema of this document.
        schema_version: SchemaVersion = "SchemaVersion", always;
    }
}

impl Subnet {
    /// The number of its virtual network (`VSID`).
    pub fn vsid(&self) -> Option<u32> {
        self.isolation(&NetworkPolicyType::Vsid)
    }

    pub fn vlan(&self) -> Option<u32> {
        self.isolation(&NetworkPolicyType::Vlan)
    }

    fn isolation(&self, policy_type: &NetworkPolicyType) -> Option<u32> {
        self.policies.iter().find_map(|policy| policy.settings_as::<Isolation>(policy_type)).map(|settings| settings.isolation_id)
    }
}

impl HostComputeNetwork {
    /// A network of `network_type` with one static subnet.
    pub fn new(name: impl Into<String>, network_type: NetworkType, subnet: Subnet) -> Self {
        let ipam = Ipam { subnets: vec![subnet], ..Ipam::default() };
        Self { name: name.into(), network_type, ipams: vec![ipam], ..Self::default() }
    }

    #[must_use]
    pub fn with_policy(mut self, policy: NetworkPolicy) -> Self {
        self.policies.push(policy);
        self
    }

    /// Every subnet of every IPAM.
    pub fn subnets(&self) -> impl Iterator<Item = &Subnet> {
        self.ipams.iter().flat_map(|ipam| &ipam.subnets)
    }

    /// The ManagementIP: the host's own address on this network, as the `ProviderAddress` policy carries it.
    /// It appears some time after the create on a real host.
    pub fn management_ip(&self) -> Option<IpAddr> {
        self.policies.iter().find_map(NetworkPolicy::as_provider_address)
    }
}
