//! The CNI configuration of this node (pure).

use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use serde_json::{Value, json};

use crate::nth;

/// Name of the file in the configuration directory; it sorts before what others usually write.
pub const FILE: &str = "10-mullion.conflist";

/// This node's pods in one address family.
#[derive(Clone, Debug)]
pub struct Family {
    /// This node's pod CIDR.
    pub pod_cidr: IpNet,
    /// This node's address.
    pub node_ip: IpAddr,
    /// Every pod's address lies here.
    pub cluster_cidr: IpNet,
    /// Every ClusterIP lies here, where Services have the family.
    pub service_cidr: Option<IpNet>,
    /// The network of the nodes, where it is known.
    pub lan: Option<IpNet>,
}

/// What a configuration is made from.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Name of the network: the HNS network on Windows.
    pub name: String,
    /// Of the primary address family.
    pub first: Family,
    /// Of the other one, where pods have both.
    pub second: Option<Family>,
    /// Cluster DNS.
    pub dns_ip: IpAddr,
    /// For example `cluster.local`.
    pub domain: String,
    /// Where host-local keeps reservations; absent means its default.
    pub ipam_dir: Option<PathBuf>,
    /// Pods of a Windows node reach themselves through their Services.
    pub loopback_dsr: bool,
}

impl Inputs {
    /// The primary one first.
    pub fn families(&self) -> impl Iterator<Item = &Family> {
        [&self.first].into_iter().chain(&self.second)
    }

    /// That of IPv6, or of IPv4.
    pub fn of(&self, ipv6: bool) -> Option<&Family> {
        self.families().find(|family| family.node_ip.is_ipv6() == ipv6)
    }
}

/// host-local with one range for each family, which `range` completes.
fn ipam(inputs: &Inputs, range: impl Fn(IpNet) -> Value) -> Value {
    let ranges = inputs.families().map(|family| {
        let mut range = range(family.pod_cidr);
        range["subnet"] = json!(family.pod_cidr);
        json!([range])
    });
    let routes = inputs.families().map(|family| json!({"dst": if family.node_ip.is_ipv6() { "::/0" } else { "0.0.0.0/0" }}));
    let mut ipam = json!({"type": "host-local", "ranges": ranges.collect::<Vec<_>>(), "routes": routes.collect::<Vec<_>>()});
    if let Some(dir) = &inputs.ipam_dir {
        ipam["dataDir"] = json!(dir);
    }
    ipam
}

/// Runtimes that know 1.1.0 choose it from the list and can ask for garbage collection; others read `cniVersion`.
fn list(name: &str, plugins: &[Value]) -> Value {
    json!({"cniVersion": "1.0.0", "cniVersions": ["1.0.0", "1.1.0"], "name": name, "plugins": plugins})
}

/// For a Windows node: `win-bridge`. Addresses begin with `.3`, since HNS has `.1` and the host `.2`. Pods leave with
/// the node's address except towards pods, Services and nodes (`OutBoundNAT`); the host routes what they send to
/// Services and to their own node (`SDNRoute` with `NeedEncap`), where its load balancers are. As upstream's sample does it
/// (containernetworking/plugins, `win-bridge/sample-v2.conf`), `loopbackDSR` included.
pub fn windows(inputs: &Inputs) -> Value {
    let policy = |value: Value| json!({"name": "EndpointPolicy", "value": value});
    let route = |prefix: IpNet| policy(json!({"Type": "SDNRoute", "Settings": {"DestinationPrefix": prefix, "NeedEncap": true}}));
    let exceptions = inputs.families().flat_map(|family| [Some(family.cluster_cidr), family.service_cidr, family.lan]).flatten();
    let mut policies = vec![policy(json!({"Type": "OutBoundNAT", "Settings": {"Exceptions": exceptions.collect::<Vec<_>>()}}))];
    policies.extend(inputs.families().flat_map(|family| [family.service_cidr, Some(family.node_ip.into())]).flatten().map(route));
    let mut plugin = json!({
        "type": "win-bridge",
        "apiVersion": 2,
        "capabilities": {"portMappings": true, "dns": true},
        "ipam": ipam(inputs, |pods| json!({"rangeStart": nth(pods, 3)})),
        "dns": {"nameservers": [inputs.dns_ip], "search": [format!("svc.{}", inputs.domain), inputs.domain]},
        "policies": policies,
    });
    if inputs.loopback_dsr {
        plugin["loopbackDSR"] = json!(true);
    }
    list(&inputs.name, &[plugin])
}

/// For a Windows node on an overlay: `win-overlay`. Addresses begin with `.3`, since HNS has `.1` and load balancers `.2`
/// ([`source_vip`]). Towards nodes pods have their node's address: the overlay does not lead there.
pub fn windows_overlay(inputs: &Inputs) -> Value {
    let policy = |value: Value| json!({"name": "EndpointPolicy", "value": value});
    let exceptions: Vec<IpNet> = inputs.families().flat_map(|family| [Some(family.cluster_cidr), family.service_cidr]).flatten().collect();
    let mut plugin = json!({
        "type": "win-overlay",
        "apiVersion": 2,
        "capabilities": {"portMappings": true, "dns": true},
        "ipam": ipam(inputs, |pods| json!({"rangeStart": nth(pods, 3)})),
        "dns": {"nameservers": [inputs.dns_ip], "search": [format!("svc.{}", inputs.domain), inputs.domain]},
        "policies": [policy(json!({"Type": "OutBoundNAT", "Settings": {"Exceptions": exceptions}}))],
    });
    if inputs.loopback_dsr {
        plugin["loopbackDSR"] = json!(true);
    }
    list(&inputs.name, &[plugin])
}

/// Adds the largest packet of pods to a configuration of a Windows node (HNS' schema 2.4). It is that of the interface: HNS takes nothing off.
pub fn limit_packets(document: &mut Value, mtu: u32) {
    let policy = json!({"name": "EndpointPolicy", "value": {"Type": "InterfaceParameters", "Settings": {"Mtu": mtu}}});
    if let Some(policies) = document["plugins"][0]["policies"].as_array_mut() {
        policies.push(policy);
    }
}

/// Adds the id of the HNS network to a configuration of a Windows node. Our plug-ins then need not look for its name, nor ask HNS for its version.
pub fn name_network(document: &mut Value, id: hcn::Guid) {
    document["plugins"][0]["hnsNetwork"] = json!(id.to_string());
}

/// The uplink's largest packet where it is not known.
const USUAL_MTU: u32 = 1500;

/// flannel's `subnet.env`: what its CNI plug-in makes the configuration of a node's pods from. Source: flannel's `pkg/subnet/subnet.go`.
pub fn subnet_env(inputs: &Inputs, mtu: Option<u32>) -> String {
    let mut text = String::new();
    for (ipv6, prefix) in [(false, "FLANNEL"), (true, "FLANNEL_IPV6")] {
        if let Some(Family { pod_cidr, cluster_cidr, .. }) = inputs.of(ipv6) {
            let subnet = IpNet::new(nth(*pod_cidr, 1), pod_cidr.prefix_len()).unwrap_or(*pod_cidr);
            text.push_str(&format!("{prefix}_NETWORK={cluster_cidr}\n{prefix}_SUBNET={subnet}\n"));
        }
    }
    format!("{text}FLANNEL_MTU={}\nFLANNEL_IPMASQ=true\n", mtu.unwrap_or(USUAL_MTU))
}

/// The address of a pod CIDR that load balancers of an overlay give to translated traffic.
pub fn source_vip(pod_cidr: IpNet) -> IpAddr {
    nth(pod_cidr, 2)
}

/// For a Windows node with a transparent network: `wincni`, since win-bridge serves no such network. The host is the gateway, `.1`. There is
/// no VFP, so no policies and no host ports.
pub fn windows_transparent(inputs: &Inputs) -> Value {
    let plugin = json!({
        "type": "wincni",
        "capabilities": {"dns": true},
        "ipam": ipam(inputs, |pods| json!({"gateway": nth(pods, 1)})),
        "dns": {"nameservers": [inputs.dns_ip], "search": [format!("svc.{}", inputs.domain), inputs.domain]},
    });
    list(&inputs.name, &[plugin])
}

/// For a Linux node: `bridge`, and `portmap` for host ports. The bridge's ports are isolated and the node routes between them, so that Services and policies
/// apply between pods of one node without bridge netfilter. Without `mtu`, pods have the bridge's.
pub fn linux(inputs: &Inputs, bridge: &str, mtu: Option<u32>) -> Value {
    let mut plugin = json!({
        "type": "bridge",
        "bridge": bridge,
        "isGateway": true,
        "ipMasq": false,
        "routed": true,
        "ipam": ipam(inputs, |_| json!({})),
    });
    if let Some(mtu) = mtu {
        plugin["mtu"] = json!(mtu);
    }
    list(&inputs.name, &[plugin, json!({"type": "portmap", "capabilities": {"portMappings": true}, "snat": true})])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn family([pods, node, cluster, services, lan]: [&str; 5]) -> Family {
        Family {
            pod_cidr: pods.parse().unwrap(),
            node_ip: node.parse().unwrap(),
            cluster_cidr: cluster.parse().unwrap(),
            service_cidr: services.parse().ok(),
            lan: lan.parse().ok(),
        }
    }

    fn both() -> Inputs {
        let second = family(["fd00:1:0:1::/64", "fd00:10:240::12", "fd00:1::/48", "fd00:2::/112", "fd00:10:240::/64"]);
        Inputs { second: Some(second), ..inputs() }
    }

    fn inputs() -> Inputs {
        Inputs {
            name: "mullion".into(),
            first: family(["192.168.1.0/24", "10.240.0.12", "192.168.0.0/16", "10.96.0.0/12", "10.240.0.0/24"]),
            second: None,
            dns_ip: "10.96.0.10".parse().unwrap(),
            domain: "cluster.local".into(),
            ipam_dir: Some("/var/lib/mullion/cni".into()),
            loopback_dsr: true,
        }
    }

    #[test]
    fn golden_configurations() {
        insta::assert_json_snapshot!("windows", windows(&inputs()));
        insta::assert_json_snapshot!("linux", linux(&inputs(), "mullion0", None));
        insta::assert_json_snapshot!("windows_of_both_families", windows(&both()));
        insta::assert_json_snapshot!("linux_of_both_families", linux(&both(), "mullion0", None));
    }

    #[test]
    fn subnet_env_is_flannels() {
        let golden = "FLANNEL_NETWORK=192.168.0.0/16\nFLANNEL_SUBNET=192.168.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
        assert_eq!(subnet_env(&inputs(), Some(1450)), golden);
        let ipv6 = "FLANNEL_IPV6_NETWORK=fd00:1::/48\nFLANNEL_IPV6_SUBNET=fd00:1:0:1::1/64\nFLANNEL_MTU=1450\n";
        assert!(subnet_env(&both(), Some(1450)).contains(ipv6));
    }

    #[test]
    fn loopback_dsr_is_written_only_where_it_is_set() {
        let written = |loopback_dsr| windows(&Inputs { loopback_dsr, ..inputs() })["plugins"][0].get("loopbackDSR").cloned();
        assert_eq!((written(true), written(false)), (Some(json!(true)), None));
    }
}
