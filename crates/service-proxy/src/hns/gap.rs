//! Features that the Host Networking Service does not have. Each is reported: by metric always, by event where the Service asks for it.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use super::document::Capabilities;
use crate::backend::Refusal;
use crate::table::{Kind, Vip};

/// The affinity timeout that the API fills in: the Service does not ask for it.
const DEFAULT_TIMEOUT: u32 = 10_800;

/// Something that the service cannot do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gap {
    /// A load balancer has one port for all its backends.
    Ports {
        /// The port that most have.
        port: u16,
        /// How many have another, and are left out.
        others: usize,
    },
    /// This version, or this network, has no IPv6.
    Ipv6,
    /// This version has no session affinity.
    Affinity,
    /// Session affinity has no timeout.
    AffinityTimeout,
    /// Everybody may come to a load balancer's address.
    SourceRanges,
    /// Without direct server return, backends do not see the client's address.
    ClientAddress,
    /// Without direct server return, backends do not see the address that the client dialled.
    Destination,
    /// Clients inside the cluster reach only the backends of this node.
    InsideClients,
    /// A pod of the host's own network is no endpoint.
    HostNetwork { address: IpAddr },
}

impl Gap {
    /// What `vip` asks for in vain.
    pub fn of_vip(vip: &Vip, capabilities: Capabilities) -> Vec<Self> {
        let mut gaps = Vec::new();
        match vip.affinity {
            Some(_) if !capabilities.affinity => gaps.push(Self::Affinity),
            Some(timeout) if timeout != DEFAULT_TIMEOUT => gaps.push(Self::AffinityTimeout),
            _ => {}
        }
        if vip.sources.is_some() {
            gaps.push(Self::SourceRanges);
        }
        if vip.keep_client && !capabilities.dsr {
            gaps.push(Self::ClientAddress);
        }
        if vip.preserve_destination && vip.kind == Kind::LoadBalancer && !capabilities.dsr {
            gaps.push(Self::Destination);
        }
        let outer = matches!(vip.kind, Kind::ExternalIp | Kind::LoadBalancer);
        if outer && vip.inside.as_ref().is_some_and(|inside| *inside != vip.backends) {
            gaps.push(Self::InsideClients);
        }
        gaps
    }

    /// Its name, for metrics and events.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ports { .. } => "SeveralTargetPorts",
            Self::Ipv6 => "NoIPv6",
            Self::Affinity => "NoSessionAffinity",
            Self::AffinityTimeout => "NoAffinityTimeout",
            Self::SourceRanges => "NoSourceRanges",
            Self::ClientAddress => "NoClientAddress",
            Self::Destination => "NoPreservedDestination",
            Self::InsideClients => "LocalBackendsOnly",
            Self::HostNetwork { .. } => "HostNetworkBackend",
        }
    }

    /// Whether the Service gets an event. What follows from the policy they chose, or from which node it is, is for metrics.
    pub fn is_asked_for(&self) -> bool {
        !matches!(self, Self::Ipv6 | Self::InsideClients | Self::HostNetwork { .. })
    }

    /// What is missing, with the way out.
    pub fn message(&self) -> Cow<'static, str> {
        match self {
            Self::Ports { port, others } => {
                format!("HNS has one port a load balancer, so {others} backends with another port than {port} are left out: give them one number")
                    .into()
            }
            Self::Ipv6 => {
                "HNS has IPv6 from Windows Server 2022 (build 20348) on, and never on overlays: clients on this node use the IPv4 address".into()
            }
            Self::Affinity => "this version of HNS has no session affinity: Windows Server 2022 has it".into(),
            Self::AffinityTimeout => "HNS has no timeout of session affinity: a client stays with its backend".into(),
            Self::SourceRanges => {
                "HNS cannot distinguish clients, so loadBalancerSourceRanges is not enforced on this node: let the load balancer do it".into()
            }
            Self::ClientAddress => "this version of HNS has no direct server return, so backends do not see their clients' addresses, as \
                                    externalTrafficPolicy Local wants it: update Windows"
                .into(),
            Self::Destination => "this version of HNS has no direct server return, so the annotation preserve-destination has no effect on this \
                                  node, and backends do not see their clients' addresses: update Windows"
                .into(),
            Self::InsideClients => "clients on this node reach only its own backends at this address: they should use the ClusterIP".into(),
            Self::HostNetwork { address } => format!("the pod at {address} uses this host's network, which HNS cannot balance to").into(),
        }
    }

    /// The gap in the words that every backend shares.
    pub fn refusal(&self) -> Refusal {
        Refusal { reason: self.name(), message: self.message(), is_event: self.is_asked_for() }
    }
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())
    }
}
