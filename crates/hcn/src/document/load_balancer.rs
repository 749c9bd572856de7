//! Load balancers and routing rules.

use std::net::IpAddr;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::{Health, Protocol, SchemaVersion, SdnRoute, Token};
use crate::guid::Guid;

bits! {
    /// Switches of a load balancer.
    pub struct LoadBalancerFlags {
        /// Direct server return: the backend sees the client's address.
        DSR = 1 "EnableDirectServerReturn",
        IPV6 = 2 "EnableIPv6",
    }
}

bits! {
    /// Switches of a load balancer's port mapping.
    pub struct PortMappingFlags {
        /// The address is valid only inside the network.
        INTERNAL = 1 "EnableInternalLoadBalancer",
        /// The host's own traffic is balanced too.
        LOCAL_ROUTED_VIP = 2 "LocalRoutedVip",
        /// Behind a multiplexer.
        USE_MUX = 4 "NotUsed",
        /// The packet keeps its destination.
        PRESERVE_DIP = 8 "EnablePreserveDip",
        /// The address is outside the cluster.
        VIP_EXTERNAL_IP = 16 "VipExternalIP",
    }
}

/// How a load balancer spreads connections. Travels as its number; names are read too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct DistributionType(pub u32);

impl DistributionType {
    /// Each connection by itself (the five-tuple).
    pub const PER_CONNECTION: Self = Self(0);
    /// By client address and protocol.
    pub const SOURCE_IP_PROTOCOL: Self = Self(1);
    /// By client address.
    pub const SOURCE_IP: Self = Self(2);
}

impl PartialEq<u32> for DistributionType {
    fn eq(&self, number: &u32) -> bool {
        self.0 == *number
    }
}

impl<'de> Deserialize<'de> for DistributionType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let token = Token::deserialize(deserializer)?;
        match token.as_str().to_ascii_lowercase().as_str() {
            "none" | "perconnection" => Ok(Self::PER_CONNECTION),
            "sourceipprotocol" => Ok(Self::SOURCE_IP_PROTOCOL),
            "sourceip" => Ok(Self::SOURCE_IP),
            number => number.parse().map(Self).map_err(|_| serde::de::Error::custom(format!("{number:?} is no distribution of load"))),
        }
    }
}

document! {
    /// What a load balancer listens on and where it sends.
    pub struct LoadBalancerPortMapping {
        /// TCP, UDP or SCTP.
        protocol: Protocol = "Protocol";
        /// The backends' port.
        internal_port: u16 = "InternalPort";
        /// The frontend's port.
        external_port: u16 = "ExternalPort";
        /// See [`DistributionType`].
        distribution_type: DistributionType = "DistributionType";
        flags: PortMappingFlags = "Flags";
    }
}

document! {
    /// A load balancer (`HostComputeLoadBalancer`).
    pub struct HostComputeLoadBalancer {
        id: Guid = "ID";
        /// The program that made it.
        owner: String = "Owner";
        name: String = "Name";
        /// The HNS version that wrote it.
        version: u64 = "Version";
        /// Its network (schema 2.5).
        host_compute_network: Guid = "HostComputeNetwork";
        /// Its backends.
        host_compute_endpoints: Vec<Guid> = "HostComputeEndpoints";
        /// The address that backends see, where DSR is off.
        source_vip: String = "SourceVIP";
        /// The frontend's addresses; none is a node port on any host address.
        frontend_vips: Vec<String> = "FrontendVIPs";
        port_mappings: Vec<LoadBalancerPortMapping> = "PortMappings";
        flags: LoadBalancerFlags = "Flags";
        /// What HNS last thought of it.
        health: Option<Box<Health>> = "Health";
        additional_params: Option<Box<Value>> = "AdditionalParams";
        /// 2 is normal.
        state: u32 = "State";
        /// The schema of this document.
        schema_version: SchemaVersion = "SchemaVersion", always;
    }
}

impl HostComputeLoadBalancer {
    /// A load balancer for one port of `vip`, or for a node port where there is none.
    pub fn new(vip: Option<IpAddr>, protocol: Protocol, external_port: u16, internal_port: u16, endpoints: Vec<Guid>) -> Self {
        let mapping = LoadBalancerPortMapping { protocol, internal_port, external_port, ..LoadBalancerPortMapping::default() };
        Self {
            host_compute_endpoints: endpoints,
            frontend_vips: vip.iter().map(IpAddr::to_string).collect(),
            port_mappings: vec![mapping],
            ..Self::default()
        }
    }
}

document! {
    /// A routing rule for endpoints (`HostComputeRoute`). hnslib writes the rules as `Setting`.
    pub struct HostComputeRoute {
        id: Guid = "ID";
        /// The program that made it.
        owner: String = "Owner";
        name: String = "Name";
        /// The HNS version that wrote it.
        version: u64 = "Version";
        /// Its network (schema 2.5).
        host_compute_network: Guid = "HostComputeNetwork";
        host_compute_endpoints: Vec<Guid> = "HostComputeEndpoints";
        /// Its rules.
        routes: Vec<SdnRoute> = "Routes" | "Setting";
        /// What HNS last thought of it.
        health: Option<Box<Health>> = "Health";
        additional_params: Option<Box<Value>> = "AdditionalParams";
        /// 1 is normal.
        state: u32 = "State";
        /// The schema of this document.
        schema_version: SchemaVersion = "SchemaVersion", always;
    }
}
