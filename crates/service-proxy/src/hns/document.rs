//! VIPs and their backends as objects of the Host Networking Service, with the same values as upstream's proxy
//! (`pkg/proxy/winkernel`), and those objects back.

use std::collections::BTreeMap;
use std::net::IpAddr;

use hcn::document::DistributionType;
use hcn::{
    EndpointPolicy, Guid, HResult, HcnError, HostComputeEndpoint, HostComputeLoadBalancer, HostComputeNetwork, LoadBalancerFlags, NetworkType,
    PortMappingFlags, SupportedFeatures, owned_id,
};
use ipnet::IpNet;

use super::Settings;
use crate::table::{BackendAddress, IpFamily, Kind, Protocol, Vip, VipAddress, VipKey};

/// What this version of the service can do, as far as the configuration allows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// ClusterIP load balancers use direct server return.
    pub cluster_ip_dsr: bool,
    /// The service has direct server return, which external traffic policy `Local` needs.
    pub dsr: bool,
    /// The service has session affinity.
    pub affinity: bool,
    /// Load balancers can be modified in place.
    pub modify: bool,
    /// The service has IPv6, on networks other than overlays.
    pub ipv6: bool,
}

impl Capabilities {
    /// Those of a service with `features`; `dsr` says whether the configuration wants direct server return.
    pub fn new(features: &SupportedFeatures, dsr: bool) -> Self {
        Self {
            cluster_ip_dsr: dsr && features.dsr,
            dsr: features.dsr,
            affinity: features.session_affinity,
            modify: features.modify_load_balancer,
            ipv6: features.ipv6_dual_stack,
        }
    }
}

/// The network that the load balancers are for, as far as their documents depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkContext {
    pub id: Guid,
    /// It is an overlay: addresses carry their host's.
    pub overlay: bool,
    /// Addresses of this node.
    pub node_ips: Vec<IpAddr>,
    /// The address that backends see where direct server return is off; overlays have one.
    pub source_vip: Option<IpAddr>,
    /// The MAC of this node's adapter.
    pub host_mac: String,
    /// Which host each prefix of the overlay is behind; the last that fits counts.
    pub subnets: Vec<(IpNet, IpAddr)>,
}

/// Why the network cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// Nobody created it yet.
    #[error("HNS network {0:?} does not exist yet; the pod network creates it")]
    Missing(String),
    /// An overlay without a source VIP.
    #[error("HNS network {0:?} is an overlay, which needs a source VIP: give --source-vip")]
    SourceVip(String),
}

impl NetworkContext {
    /// Reads the network.
    ///
    /// # Errors
    /// When the settings miss something that this network needs.
    pub fn of(network: &HostComputeNetwork, settings: &Settings) -> Result<Self, NetworkError> {
        let overlay = network.network_type == NetworkType::Overlay;
        if overlay && settings.source_vip.is_none() {
            return Err(NetworkError::SourceVip(network.name.clone()));
        }
        let routes = network.policies.iter().filter_map(hcn::NetworkPolicy::as_remote_subnet_route);
        let node_ips = if settings.node_ips.is_empty() { network.management_ip().into_iter().collect() } else { settings.node_ips.clone() };
        Ok(Self {
            id: network.id,
            overlay,
            node_ips,
            source_vip: settings.source_vip.filter(|_| overlay),
            host_mac: settings.host_mac.clone().unwrap_or_default(),
            subnets: routes.filter_map(|r| Some((r.destination_prefix.parse().ok()?, r.provider_address.parse().ok()?))).collect(),
        })
    }

    /// The host that `address` is behind, where the overlay says so.
    pub fn provider(&self, address: IpAddr) -> Option<IpAddr> {
        if self.subnets.iter().any(|(_, provider)| *provider == address) {
            return Some(address);
        }
        self.subnets.iter().rev().find(|(prefix, _)| prefix.contains(&address)).map(|(_, provider)| *provider)
    }

    /// This node's address of that family.
    pub fn node_ip(&self, family: IpFamily) -> Option<IpAddr> {
        self.node_ips.iter().copied().find(|ip| IpFamily::of(*ip) == family)
    }

    /// The address that backends see. One that is a node, or outside of the cluster, can only answer the node's own.
    fn source_for(&self, remotes: impl IntoIterator<Item = IpAddr>) -> Option<IpAddr> {
        let source = self.source_vip?;
        let outside = remotes.into_iter().any(|address| self.provider(address).is_none_or(|provider| provider == address));
        if outside { self.node_ip(IpFamily::of(source)) } else { Some(source) }
    }
}

/// The id of the load balancer for `key`: the same after every restart, so that ours are recognised.
pub fn load_balancer_id(cluster_uid: &str, key: &VipKey) -> Guid {
    successor_id(cluster_uid, key, 0)
}

/// The id of the load balancer that takes the place of `generation` earlier ones, which could not be deleted.
pub fn successor_id(cluster_uid: &str, key: &VipKey, generation: u32) -> Guid {
    let name = if generation == 0 { key.to_string() } else { format!("{key} {generation}") };
    owned_id(cluster_uid, "loadbalancer", &name)
}

/// How many earlier ones an id is recognised behind.
const GENERATIONS: u32 = 64;

/// How many earlier ones the load balancer has, if it is ours.
pub fn generation(cluster_uid: &str, document: &HostComputeLoadBalancer) -> Option<(VipKey, u32)> {
    let key = vip_key(document)?;
    (0..GENERATIONS).find(|generation| successor_id(cluster_uid, &key, *generation) == document.id).map(|generation| (key, generation))
}

/// Whether deleting or changing a load balancer failed because its network is gone: it can never be deleted then, only the service's restart
/// takes it away (moby/libnetwork#2524, Azure/aks-engine#3956).
pub fn is_orphaned(error: &HcnError) -> bool {
    error.hresult() == Some(HResult::NETWORK_NOT_FOUND)
}

/// An endpoint that the proxy makes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Remote {
    /// A backend on another host.
    Backend(IpAddr),
    /// A ClusterIP of an overlay: pods reach it only when it exists.
    ServiceVip(IpAddr),
    /// The source of translated traffic of an overlay; it is on this host.
    SourceVip(IpAddr),
}

impl Remote {
    pub fn address(&self) -> IpAddr {
        match self {
            Self::Backend(address) | Self::ServiceVip(address) | Self::SourceVip(address) => *address,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Backend(_) => "remote-endpoint",
            Self::ServiceVip(_) => "service-vip",
            Self::SourceVip(_) => "source-vip",
        }
    }

    /// The host it is behind, on an overlay.
    fn provider(&self, network: &NetworkContext) -> Option<IpAddr> {
        let node = || network.node_ip(IpFamily::of(self.address()));
        match self {
            Self::Backend(address) if network.overlay => network.provider(*address).or_else(node),
            Self::ServiceVip(_) if network.overlay => node(),
            _ => None,
        }
    }

    /// Its id. An address that moves behind another host, or a recreated network, makes another endpoint.
    pub fn id(&self, cluster_uid: &str, network: &NetworkContext) -> Guid {
        owned(cluster_uid, self, &network.id, self.provider(network))
    }

    pub fn document(&self, network: &NetworkContext) -> HostComputeEndpoint {
        let mut document = HostComputeEndpoint::remote(self.address());
        if let IpAddr::V6(ip) = self.address() {
            let [.., a, b, c, d] = ip.octets();
            document.mac_address = format!("02-11-{d:02X}-{c:02X}-{b:02X}-{a:02X}");
        }
        if !matches!(self, Self::Backend(_)) {
            document.mac_address.clone_from(&network.host_mac);
        }
        if matches!(self, Self::SourceVip(_)) {
            document.flags = hcn::EndpointFlags::default();
        }
        match self.provider(network) {
            Some(provider) => document.with_policy(EndpointPolicy::provider_address(provider)),
            None => document,
        }
    }

    /// What `document` is, when a proxy of this cluster made it.
    pub fn of(cluster_uid: &str, document: &HostComputeEndpoint) -> Option<Self> {
        let address = document.ip()?;
        let provider = document.policies.iter().find_map(EndpointPolicy::as_provider_address);
        let network = &document.host_compute_network;
        [Self::Backend(address), Self::ServiceVip(address), Self::SourceVip(address)]
            .into_iter()
            .find(|remote| owned(cluster_uid, remote, network, provider) == document.id)
    }
}

fn owned(cluster_uid: &str, remote: &Remote, network: &Guid, provider: Option<IpAddr>) -> Guid {
    let behind = provider.map(|ip| format!(" behind {ip}")).unwrap_or_default();
    owned_id(cluster_uid, remote.kind(), &format!("{}{behind} on {network}", remote.address()))
}

/// Which VIP a load balancer is for, as far as the document says.
pub fn vip_key(document: &HostComputeLoadBalancer) -> Option<VipKey> {
    let mapping = document.port_mappings.first()?;
    let protocol = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(|p| u32::from(p.number()) == mapping.protocol.0)?;
    let address = match document.frontend_vips.first() {
        Some(text) => VipAddress::Ip(text.parse().ok()?),
        None if document.flags.contains(LoadBalancerFlags::IPV6) => VipAddress::Node(IpFamily::V6),
        None => VipAddress::Node(IpFamily::V4),
    };
    Some(VipKey { address, protocol, port: mapping.external_port })
}

/// What a load balancer does, beside its VIP. Two are the same exactly when their shapes are equal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Its backends' endpoints, sorted, each once.
    pub endpoints: Box<[Guid]>,
    pub internal_port: u16,
    /// How connections spread.
    pub distribution: DistributionType,
    /// Switches of the port mapping.
    pub port_flags: PortMappingFlags,
    pub flags: LoadBalancerFlags,
    /// The address that backends see; absent leaves it to the service.
    pub source_vip: Option<IpAddr>,
}

fn sorted(mut ids: Vec<Guid>) -> Box<[Guid]> {
    ids.sort_unstable();
    ids.dedup();
    ids.into()
}

impl Shape {
    /// Reads a document. One that no proxy makes (half created, several ports) has a shape that equals no other.
    pub fn of(document: &HostComputeLoadBalancer) -> Self {
        let endpoints = sorted(document.host_compute_endpoints.clone());
        let [mapping] = document.port_mappings.as_slice() else { return Self { endpoints, ..Self::default() } };
        if document.frontend_vips.len() > 1 {
            return Self { endpoints, ..Self::default() };
        }
        Self {
            endpoints,
            internal_port: mapping.internal_port,
            distribution: mapping.distribution_type,
            port_flags: mapping.flags,
            flags: document.flags,
            source_vip: document.source_vip.parse().ok(),
        }
    }

    /// What `vip` should be. `endpoints` are its backends' ids, `remotes` the addresses of those on other hosts.
    pub fn desired(
        key: &VipKey,
        vip: &Vip,
        internal_port: u16,
        endpoints: Vec<Guid>,
        remotes: &[IpAddr],
        capabilities: Capabilities,
        network: &NetworkContext,
    ) -> Self {
        let local_dsr = capabilities.dsr && (vip.keep_client || keeps_destination(vip, capabilities));
        let (dsr, mut port_flags) = match vip.kind {
            Kind::ClusterIp => (capabilities.cluster_ip_dsr, PortMappingFlags::default()),
            Kind::NodePort => (vip.keep_client && capabilities.dsr, PortMappingFlags::LOCAL_ROUTED_VIP | PortMappingFlags::VIP_EXTERNAL_IP),
            Kind::ExternalIp => (vip.keep_client && capabilities.dsr, PortMappingFlags::VIP_EXTERNAL_IP),
            Kind::LoadBalancer => (local_dsr, PortMappingFlags::VIP_EXTERNAL_IP),
            Kind::HealthCheck => (false, PortMappingFlags::default()),
        };
        if matches!(vip.kind, Kind::LoadBalancer | Kind::HealthCheck) && keeps_destination(vip, capabilities) {
            port_flags = port_flags | PortMappingFlags::USE_MUX | PortMappingFlags::PRESERVE_DIP;
        }
        let sticky = vip.affinity.is_some() && capabilities.affinity && vip.kind != Kind::HealthCheck;
        let mut flags = LoadBalancerFlags::default();
        if dsr {
            flags = flags | LoadBalancerFlags::DSR;
        }
        if key.family() == IpFamily::V6 {
            flags = flags | LoadBalancerFlags::IPV6;
        }
        Self {
            endpoints: sorted(endpoints),
            internal_port,
            distribution: if sticky { DistributionType::SOURCE_IP } else { DistributionType::PER_CONNECTION },
            port_flags,
            flags,
            source_vip: network.source_for(remotes.iter().copied()),
        }
    }

    /// The document of this shape.
    pub fn document(&self, id: Guid, key: &VipKey) -> HostComputeLoadBalancer {
        let address = match key.address {
            VipAddress::Ip(ip) => Some(ip),
            VipAddress::Node(_) => None,
        };
        let protocol = hcn::Protocol(key.protocol.number().into());
        let mut document = HostComputeLoadBalancer::new(address, protocol, key.port, self.internal_port, self.endpoints.to_vec());
        document.id = id;
        document.flags = self.flags;
        document.source_vip = self.source_vip.map(|ip| ip.to_string()).unwrap_or_default();
        document.port_mappings[0].flags = self.port_flags;
        document.port_mappings[0].distribution_type = self.distribution;
        document
    }

    /// Whether `actual`, as the service reports it, does what this says. What this leaves open is the service's own.
    pub fn is_met_by(&self, actual: &Self) -> bool {
        self.differs_in_endpoints_at_most(actual) && self.endpoints == actual.endpoints
    }

    /// Whether nothing but the backends differs: all that a change in place is known to be good for.
    pub fn differs_in_endpoints_at_most(&self, actual: &Self) -> bool {
        let open =
            |shape: &Self| Self { endpoints: Box::default(), source_vip: shape.source_vip.filter(|_| self.source_vip.is_some()), ..shape.clone() };
        open(self) == open(actual)
    }

    /// Whether its connections reach backends without passing through this node's translation.
    pub fn is_dsr(&self) -> bool {
        self.flags.contains(LoadBalancerFlags::DSR)
    }
}

/// Whether backends are to see the VIP's own address, and the service can do that.
pub fn keeps_destination(vip: &Vip, capabilities: Capabilities) -> bool {
    vip.preserve_destination && capabilities.dsr
}

/// A load balancer has one port for all its backends: the one that most have, the lowest among equals.
/// Returns it with the backends that have it.
pub fn backends_of_one_port(backends: &[BackendAddress]) -> Option<(u16, Vec<BackendAddress>)> {
    let mut counts: BTreeMap<u16, usize> = BTreeMap::new();
    for backend in backends {
        *counts.entry(backend.port).or_default() += 1;
    }
    let (port, _) = counts.into_iter().rev().max_by_key(|(_, count)| *count)?;
    Some((port, backends.iter().filter(|b| b.port == port).copied().collect()))
}
