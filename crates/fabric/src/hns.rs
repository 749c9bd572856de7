//! Documents of the HNS network of a Windows node and of the host's own endpoint on it (pure).

use hcn::document::{Isolation, NetworkPolicyType, RemoteSubnetRoute, SubnetFlags};
use hcn::{Guid, HostComputeEndpoint, HostComputeNetwork, NetworkFlags, NetworkPolicy, NetworkType, Subnet, owned_id};
use ipnet::{IpNet, Ipv4Net};

use crate::nth;

/// The owner mark of what is made here.
pub const OWNER: &str = "mullion";

/// Subnets for the placeholder, in order; the first is that of the scripts.
const PLACEHOLDERS: [[u8; 4]; 4] = [[192, 168, 255, 0], [172, 31, 255, 252], [10, 255, 255, 252], [198, 18, 255, 252]];
/// Its segment where it is an overlay.
const PLACEHOLDER_VSID: u32 = 9999;

/// What the network must be.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired {
    /// The network's id: ours alone can have it.
    pub network_id: Guid,
    pub network: HostComputeNetwork,
    /// The host endpoint's id.
    pub endpoint_id: Guid,
    /// The network that keeps the adapter's switch while the pods' is made anew, and its id.
    pub placeholder: Option<(Guid, HostComputeNetwork)>,
    /// The host's endpoint, `NAME_ep`, at the third address of the subnet, of a transparent network at the second. An overlay has none.
    pub endpoint: Option<HostComputeEndpoint>,
}

impl Desired {
    /// An L2Bridge network `name` on `adapter` with this node's pod CIDR; `.1` is its gateway, which HNS keeps, and
    /// `.2` the host.
    pub fn new(cluster_uid: &str, name: &str, adapter: &str, pod_cidr: IpNet) -> Self {
        let subnet = Subnet::new(pod_cidr, nth(pod_cidr, 1));
        let mut network = HostComputeNetwork::new(name, NetworkType::L2Bridge, subnet).with_policy(NetworkPolicy::net_adapter_name(adapter));
        network.owner = OWNER.into();
        let endpoint_name = host_endpoint(name);
        let address = IpNet::new(nth(pod_cidr, 2), pod_cidr.prefix_len()).unwrap_or(pod_cidr);
        let mut endpoint = HostComputeEndpoint::local(endpoint_name.clone(), address, None);
        endpoint.owner = OWNER.into();
        Self {
            network_id: owned_id(cluster_uid, "network", name),
            network,
            endpoint_id: Self::endpoint_id(cluster_uid, name),
            endpoint: Some(endpoint),
            placeholder: None,
        }
    }

    /// The same with a second subnet, of the other address family, whose `2` the host has too.
    #[must_use]
    pub fn with_subnet(mut self, pod_cidr: IpNet) -> Self {
        let subnet = Subnet::new(pod_cidr, nth(pod_cidr, 1));
        match self.network.ipams.first_mut() {
            Some(ipam) => ipam.subnets.push(subnet),
            None => return self,
        }
        if let (Some(endpoint), Ok(address)) = (&mut self.endpoint, IpNet::new(nth(pod_cidr, 2), pod_cidr.prefix_len())) {
            endpoint.ip_configurations.extend(HostComputeEndpoint::local("", address, None).ip_configurations);
        }
        self
    }

    /// An overlay `name` on `adapter` with this node's pod CIDR in segment `vni`; `.1` is its distributed router, and the host
    /// reaches its own pods (`HostRoute`). HNS chooses the router's MAC.
    pub fn overlay(cluster_uid: &str, name: &str, adapter: &str, pod_cidr: IpNet, vni: u32) -> Self {
        let mut subnet = Subnet::new(pod_cidr, nth(pod_cidr, 1));
        let isolation = Isolation { isolation_id: vni, ..Isolation::default() };
        subnet.policies.push(NetworkPolicy::new(NetworkPolicyType::Vsid, &isolation));
        let network = HostComputeNetwork::new(name, NetworkType::Overlay, subnet)
            .with_policy(NetworkPolicy::net_adapter_name(adapter))
            .with_policy(NetworkPolicy::new(NetworkPolicyType::HostRoute, &serde_json::json!({})));
        let network = HostComputeNetwork { owner: OWNER.into(), ..network };
        let network_id = owned_id(cluster_uid, "network", name);
        Self { network_id, network, endpoint_id: Self::endpoint_id(cluster_uid, name), endpoint: None, placeholder: None }
    }

    /// A transparent network `name` on `adapter` with this node's pod CIDR; `.1`, the pods' gateway, is the host.
    pub fn transparent(cluster_uid: &str, name: &str, adapter: &str, pod_cidr: IpNet) -> Self {
        let gateway = nth(pod_cidr, 1);
        let mut subnet = Subnet::new(pod_cidr, gateway);
        subnet.flags = SubnetFlags::DO_NOT_RESERVE_GATEWAY_ADDRESS;
        let network = HostComputeNetwork::new(name, NetworkType::Transparent, subnet).with_policy(NetworkPolicy::net_adapter_name(adapter));
        let address = IpNet::new(gateway, pod_cidr.prefix_len()).unwrap_or(pod_cidr);
        let endpoint = HostComputeEndpoint { owner: OWNER.into(), ..HostComputeEndpoint::local(host_endpoint(name), address, None) };
        Self {
            network_id: owned_id(cluster_uid, "network", name),
            network: HostComputeNetwork { owner: OWNER.into(), ..network },
            endpoint_id: Self::endpoint_id(cluster_uid, name),
            endpoint: Some(endpoint),
            placeholder: None,
        }
    }

    /// The same with a network beside it that keeps the switch: without it, making the pods' network anew cuts the node off for seconds. Source:
    /// the network `External` of microsoft/SDN's scripts, flannel's and Calico's. `taken` are prefixes that its subnet must not overlap.
    #[must_use]
    pub fn with_placeholder(mut self, cluster_uid: &str, adapter: &str, taken: &[IpNet]) -> Self {
        let overlaps = |prefix: &IpNet| taken.iter().any(|net| net.contains(prefix) || prefix.contains(net));
        let candidates = PLACEHOLDERS.map(|octets| IpNet::V4(Ipv4Net::new_assert(octets.into(), 30)));
        let prefix = candidates.into_iter().find(|prefix| !overlaps(prefix)).unwrap_or(candidates[0]);
        let mut subnet = Subnet::new(prefix, nth(prefix, 1));
        if self.network.network_type == NetworkType::Overlay {
            let isolation = Isolation { isolation_id: PLACEHOLDER_VSID, ..Isolation::default() };
            subnet.policies.push(NetworkPolicy::new(NetworkPolicyType::Vsid, &isolation));
        }
        let name = format!("{}_uplink", self.network.name);
        let network = HostComputeNetwork::new(&name, self.network.network_type.clone(), subnet);
        let network = HostComputeNetwork { owner: OWNER.into(), ..network.with_policy(NetworkPolicy::net_adapter_name(adapter)) };
        self.placeholder = Some((owned_id(cluster_uid, "network", &name), network));
        // What HNS keeps of a network over a boot can be half of it. The placeholder is kept, and the pods' network made anew.
        self.network.flags = NetworkFlags::ENABLE_NON_PERSISTENT;
        self
    }

    /// The same with the prefixes of other nodes.
    #[must_use]
    pub fn with_remote_subnets(mut self, routes: impl IntoIterator<Item = RemoteSubnetRoute>) -> Self {
        self.network.policies.extend(routes.into_iter().map(|route| NetworkPolicy::remote_subnet_route(&route)));
        self
    }

    /// The id of the host's endpoint on network `name`.
    pub fn endpoint_id(cluster_uid: &str, name: &str) -> Guid {
        owned_id(cluster_uid, "endpoint", &host_endpoint(name))
    }
}

fn host_endpoint(network: &str) -> String {
    format!("{network}_ep")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_follow_win_bridges_conventions() {
        let desired = Desired::new("uid", "mullion", "Ethernet", "192.168.1.0/24".parse().unwrap());
        insta::assert_json_snapshot!("network", desired.network);
        insta::assert_json_snapshot!("endpoint", desired.endpoint.unwrap());
        let both = Desired::new("uid", "mullion", "Ethernet", "192.168.1.0/24".parse().unwrap()).with_subnet("fd00:1:0:1::/64".parse().unwrap());
        let subnets: Vec<_> =
            both.network.subnets().filter_map(|subnet| Some((subnet.prefix()?.to_string(), subnet.gateway()?.to_string()))).collect();
        assert_eq!(subnets, [("192.168.1.0/24", "192.168.1.1"), ("fd00:1:0:1::/64", "fd00:1:0:1::1")].map(|(a, b)| (a.to_owned(), b.to_owned())));
        let addresses: Vec<_> = both.endpoint.unwrap().ip_configurations.iter().map(|ip| format!("{}/{}", ip.ip_address, ip.prefix_length)).collect();
        assert_eq!(addresses, ["192.168.1.2/24", "fd00:1:0:1::2/64"]);
    }
}
