//! The CNI configuration of this node (pure).

use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use serde_json::{Value, json};

use crate::nth;

/// Name of the file in the configuration directory; it sorts before what others usually write.
pub const FILE: &str = "10-mullion.conflist";

/// What a configuration is made from.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Name of the network: the HNS network on Windows.
    pub name: String,
    /// This node's pod CIDR.
    pub pod_cidr: IpNet,
    /// This node's address.
    pub node_ip: IpAddr,
    /// Every pod's address lies here.
    pub cluster_cidr: IpNet,
    /// Every ClusterIP lies here.
    pub service_cidr: IpNet,
    /// The network of the nodes.
    pub lan: IpNet,
    /// Cluster DNS.
    pub dns_ip: IpAddr,
    /// For example `cluster.local`.
    pub domain: String,
    /// Where host-local keeps reservations; absent means its default.
    pub ipam_dir: Option<PathBuf>,
    /// Pods of a Windows node reach themselves through their Services.
    pub loopback_dsr: bool,
}

fn ipam(inputs: &Inputs, mut range: Value) -> Value {
    range["subnet"] = json!(inputs.pod_cidr);
    let mut ipam = json!({"type": "host-local", "ranges": [[range]], "routes": [{"dst": "0.0.0.0/0"}]});
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
    let exceptions = [inputs.cluster_cidr, inputs.service_cidr, inputs.lan];
    let mut plugin = json!({
        "type": "win-bridge",
        "apiVersion": 2,
        "capabilities": {"portMappings": true, "dns": true},
        "ipam": ipam(inputs, json!({"rangeStart": nth(inputs.pod_cidr, 3)})),
        "dns": {"nameservers": [inputs.dns_ip], "search": [format!("svc.{}", inputs.domain), inputs.domain]},
        "policies": [
            policy(json!({"Type": "OutBoundNAT", "Settings": {"Exceptions": exceptions}})),
            route(inputs.service_cidr),
            route(IpNet::from(inputs.node_ip)),
        ],
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
    let exceptions = [inputs.cluster_cidr, inputs.service_cidr];
    let mut plugin = json!({
        "type": "win-overlay",
        "apiVersion": 2,
        "capabilities": {"portMappings": true, "dns": true},
        "ipam": ipam(inputs, json!({"rangeStart": nth(inputs.pod_cidr, 3)})),
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

/// The uplink's largest packet where it is not known.
const USUAL_MTU: u32 = 1500;

/// flannel's `subnet.env`: what its CNI plug-in makes the configuration of a node's pods from. Source: flannel's `pkg/subnet/subnet.go`.
pub fn subnet_env(inputs: &Inputs, mtu: Option<u32>) -> String {
    let subnet = IpNet::new(nth(inputs.pod_cidr, 1), inputs.pod_cidr.prefix_len()).unwrap_or(inputs.pod_cidr);
    let mtu = mtu.unwrap_or(USUAL_MTU);
    format!("FLANNEL_NETWORK={}\nFLANNEL_SUBNET={subnet}\nFLANNEL_MTU={mtu}\nFLANNEL_IPMASQ=true\n", inputs.cluster_cidr)
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
        "ipam": ipam(inputs, json!({"gateway": nth(inputs.pod_cidr, 1)})),
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
        "ipam": ipam(inputs, json!({})),
    });
    if let Some(mtu) = mtu {
        plugin["mtu"] = json!(mtu);
    }
    list(&inputs.name, &[plugin, json!({"type": "portmap", "capabilities": {"portMappings": true}, "snat": true})])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs() -> Inputs {
        Inputs {
            name: "mullion".into(),
            pod_cidr: "192.168.1.0/24".parse().unwrap(),
            node_ip: "10.240.0.12".parse().unwrap(),
            cluster_cidr: "192.168.0.0/16".parse().unwrap(),
            service_cidr: "10.96.0.0/12".parse().unwrap(),
            lan: "10.240.0.0/24".parse().unwrap(),
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
    }

    #[test]
    fn subnet_env_is_flannels() {
        let golden = "FLANNEL_NETWORK=192.168.0.0/16\nFLANNEL_SUBNET=192.168.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
        assert_eq!(subnet_env(&inputs(), Some(1450)), golden);
    }

    #[test]
    fn loopback_dsr_is_written_only_where_it_is_set() {
        let written = |loopback_dsr| windows(&Inputs { loopback_dsr, ..inputs() })["plugins"][0].get("loopbackDSR").cloned();
        assert_eq!((written(true), written(false)), (Some(json!(true)), None));
    }
}
