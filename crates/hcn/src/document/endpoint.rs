//! Endpoints: a port of a network, or a forwarding entry for an address elsewhere.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use super::{Dns, EndpointPolicy, Health, Route, SchemaVersion};
use crate::guid::Guid;

bits! {
    /// Switches of an endpoint.
    pub struct EndpointFlags {
        /// Remote: on another host, only a forwarding entry here.
        REMOTE = 1 "RemoteEndpoint",
        /// No traffic between compute systems.
        DISABLE_INTER_COMPUTE_COMMUNICATION = 2 "DisableInterComputeCommunication",
        ENABLE_MIRRORING = 4 "EnableMirroring",
        /// Prefer this interface.
        ENABLE_LOW_INTERFACE_METRIC = 8 "EnableLowInterfaceMetric",
        /// Ask this interface's name servers first.
        OVERRIDE_DNS_SERVER_ORDER = 16 "OverrideDNSServerOrder",
        /// Address by DHCP.
        ENABLE_DHCP = 32 "EnableDhcp",
    }
}

/// Values of an endpoint's `State`.
pub struct EndpointState;

impl EndpointState {
    /// Being made.
    pub const UNINITIALISED: u32 = 0;
    /// Exists, attached to nothing (remote endpoints stay here).
    pub const CREATED: u32 = 1;
    /// Attached to one compartment.
    pub const ATTACHED: u32 = 2;
    /// Attached to a pod's compartment, which its containers share.
    pub const ATTACHED_SHARING: u32 = 3;
    /// Was attached.
    pub const DETACHED: u32 = 4;
    /// Something of it failed.
    pub const DEGRADED: u32 = 5;
    /// Being removed.
    pub const DESTROYED: u32 = 6;
}

document! {
    /// An address of an endpoint.
    pub struct IpConfiguration {
        ip_address: String = "IpAddress";
        /// The length of its subnet's prefix.
        prefix_length: u8 = "PrefixLength";
        /// The part of the subnet it belongs to.
        ip_subnet_id: Guid = "IpSubnetId";
    }
}

document! {
    /// An endpoint (`HostComputeEndpoint`).
    pub struct HostComputeEndpoint {
        id: Guid = "ID";
        /// The program that made it.
        owner: String = "Owner";
        /// Its name; not unique.
        name: String = "Name";
        /// The HNS version that wrote it.
        version: u64 = "Version";
        host_compute_network: Guid = "HostComputeNetwork";
        /// Output only: the namespace it is in; all-zero or absent when in none.
        host_compute_namespace: Guid = "HostComputeNamespace";
        policies: Vec<EndpointPolicy> = "Policies";
        /// Its addresses; none lets HNS choose.
        ip_configurations: Vec<IpConfiguration> = "IpConfigurations";
        /// Name resolution.
        dns: Dns = "Dns";
        routes: Vec<Route> = "Routes";
        /// Its MAC, as `00-15-5D-AA-BB-CC`; colons are read too.
        mac_address: String = "MacAddress";
        flags: EndpointFlags = "Flags";
        /// What HNS last thought of it.
        health: Option<Box<Health>> = "Health";
        additional_params: Option<Box<Value>> = "AdditionalParams";
        /// See [`EndpointState`].
        state: u32 = "State";
        /// The schema of this document.
        schema_version: SchemaVersion = "SchemaVersion", always;
    }
}

impl HostComputeEndpoint {
    /// An endpoint on this host with one address; its default route goes by `gateway`.
    pub fn local(name: impl Into<String>, address: IpNet, gateway: Option<IpAddr>) -> Self {
        let route = gateway.map(|via| Route {
            next_hop: via.to_string(),
            destination_prefix: if via.is_ipv4() { "0.0.0.0/0".into() } else { "::/0".into() },
            ..Route::default()
        });
        Self {
            name: name.into(),
            ip_configurations: vec![IpConfiguration {
                ip_address: address.addr().to_string(),
                prefix_length: address.prefix_len(),
                ..IpConfiguration::default()
            }],
            routes: route.into_iter().collect(),
            ..Self::default()
        }
    }

    /// An address on another host, as a load balancer's backend. The MAC is the one kube-proxy gives: `02-11` and the address.
    pub fn remote(address: IpAddr) -> Self {
        let mac_address = match address {
            IpAddr::V4(v4) => {
                let [a, b, c, d] = v4.octets();
                format!("02-11-{a:02X}-{b:02X}-{c:02X}-{d:02X}")
            }
            IpAddr::V6(_) => String::new(),
        };
        Self {
            ip_configurations: vec![IpConfiguration { ip_address: address.to_string(), ..IpConfiguration::default() }],
            mac_address,
            flags: EndpointFlags::REMOTE,
            ..Self::default()
        }
    }

    #[must_use]
    pub fn with_policy(mut self, policy: EndpointPolicy) -> Self {
        self.policies.push(policy);
        self
    }

    /// Whether it is on another host.
    pub fn is_remote(&self) -> bool {
        self.flags.contains(EndpointFlags::REMOTE)
    }

    /// Its first address.
    pub fn ip(&self) -> Option<IpAddr> {
        self.ip_configurations.first()?.ip_address.parse().ok()
    }
}
