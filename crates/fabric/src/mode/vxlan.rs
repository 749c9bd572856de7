//! Mode `vxlan`: pods' packets travel between nodes in VXLAN, as flannel's vxlan backend has them.
//!
//! A node announces its tunnel in annotations; a peer gets, on Linux, a neighbour, a forwarding entry and a route through the
//! tunnel, on Windows a RemoteSubnetRoute of the HNS network. The destination MAC of an inner frame is that of the peer's tunnel
//! (Windows: the distributed router's): other frames are dropped there. Source: flannel's `pkg/backend/vxlan`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use hcn::document::RemoteSubnetRoute;
use hcn::owned_id;
use ipnet::IpNet;

use super::{Attachment, Desired, Hop, Inputs, Masquerade, Role, Through, Tunnel, Vtep};
use crate::flannel::{Announcement, Mac, announce_vxlan};
use crate::{conf, hns, nth};

/// The number of the segment: Windows has none below.
pub const VNI: u32 = 4096;
/// The port of VXLAN: Windows has no other.
pub const PORT: u16 = 4789;
/// Bytes of the outer Ethernet, IPv4, UDP and VXLAN headers.
const OVERHEAD: u32 = 50;

pub(super) fn decide(inputs: &Inputs<'_>, desired: &mut Desired) {
    if inputs.settings.role == Role::Router {
        return;
    }
    let vteps = vteps(inputs, desired);
    match &inputs.settings.role {
        Role::Node(_) => {
            let Some((pods, conf_inputs)) = inputs.own_pods() else { return };
            match &pods.attachment {
                Attachment::Windows { adapter, .. } => {
                    let routes = vteps.iter().map(|(cidr, vtep)| remote_subnet(*cidr, vtep));
                    let network = hns::Desired::overlay(&pods.cluster_uid, &pods.network_name, adapter, conf_inputs.pod_cidr, VNI);
                    desired.hns = Some(network.with_remote_subnets(routes));
                    desired.cni = Some(conf::windows_overlay(&conf_inputs));
                    if let Some(mac) = inputs.state.dr_mac {
                        desired.annotations = announce_vxlan(VNI, mac, conf_inputs.node_ip);
                    }
                }
                Attachment::Linux { bridge } => {
                    let mac = own_mac(&pods.cluster_uid, &inputs.settings.node_name);
                    let Some(tunnel) = tunnel(inputs, conf_inputs.node_ip, mac, Some(conf_inputs.pod_cidr)) else {
                        desired.problems.push(no_link(conf_inputs.node_ip));
                        return;
                    };
                    desired.masquerade = Some(Masquerade { pods: conf_inputs.pod_cidr, cluster: conf_inputs.cluster_cidr });
                    desired.cni = Some(conf::linux(&conf_inputs, bridge, Some(tunnel.mtu)));
                    desired.annotations = announce_vxlan(VNI, mac, conf_inputs.node_ip);
                    through(tunnel, vteps, desired);
                }
            }
        }
        // Nothing is sent to it in the tunnel: pods answer to its own address.
        Role::Host { address } => match tunnel(inputs, *address, own_mac("", &inputs.settings.node_name), None) {
            Some(tunnel) => through(tunnel, vteps, desired),
            None => desired.problems.push(no_link(*address)),
        },
        Role::Router => {}
    }
}

fn no_link(address: IpAddr) -> String {
    format!("no interface of this host is on the network of its address {address}, so it has no tunnel; give it one that is")
}

/// The same after every restart. The first byte says that it was given locally, to one host.
fn own_mac(cluster_uid: &str, node: &str) -> Mac {
    let id = owned_id(cluster_uid, "vtep", node).0.as_u128().to_be_bytes();
    Mac([0x02, id[1], id[2], id[3], id[4], id[5]])
}

/// The tunnel on the link that has `local`; none where no link has it.
fn tunnel(inputs: &Inputs<'_>, local: IpAddr, mac: Mac, pods: Option<IpNet>) -> Option<Tunnel> {
    let uplink = inputs.state.uplink?;
    Some(Tunnel {
        name: format!("flannel.{VNI}"),
        vni: VNI,
        port: PORT,
        local,
        device: uplink.index,
        mtu: uplink.mtu.saturating_sub(OVERHEAD),
        mac,
        address: pods.map(|pods| pods.network()),
    })
}

fn through(tunnel: Tunnel, vteps: BTreeMap<IpNet, Vtep>, desired: &mut Desired) {
    for (cidr, vtep) in &vteps {
        desired.routes.insert(*cidr, Hop { via: nth(*cidr, 0), node: vtep.node.clone(), through: Through::Tunnel });
    }
    desired.tunnel = Some(tunnel);
    desired.vteps = vteps;
}

fn remote_subnet(cidr: IpNet, vtep: &Vtep) -> RemoteSubnetRoute {
    RemoteSubnetRoute {
        destination_prefix: cidr.to_string(),
        isolation_id: VNI,
        provider_address: vtep.host.to_string(),
        distributed_router_mac_address: vtep.mac.dashed(),
        ..RemoteSubnetRoute::default()
    }
}

/// The tunnels of the other nodes by pod CIDR. Those that do not announce theirs yet are no problem: they will.
fn vteps(inputs: &Inputs<'_>, desired: &mut Desired) -> BTreeMap<IpNet, Vtep> {
    let mut vteps = BTreeMap::new();
    let mut holders: BTreeMap<Mac, &str> = BTreeMap::new();
    for peer in inputs.peers(desired) {
        let (node, cidr) = (peer.node, peer.cidr);
        if !cidr.addr().is_ipv4() {
            desired.problems.push(format!(
                "node {node}: pod CIDR {cidr} is not reached, because overlays of HNS have IPv4 alone; use host-gateway or l3 for IPv6"
            ));
            continue;
        }
        match &peer.row.announcement {
            Announcement::None | Announcement::Vxlan { mac: None, .. } => {}
            Announcement::Vxlan { vni, mac: Some(mac), public_ip } if *vni == VNI => {
                if let Some(other) = holders.insert(*mac, node).filter(|other| *other != node) {
                    holders.insert(*mac, other);
                    desired.problems.push(format!(
                        "node {node}: its tunnel has the MAC {mac} of node {other}, so its pods {cidr} are not reached; remove the annotation backend-data of the node whose machine was cloned, and restart its pod network"
                    ));
                    continue;
                }
                vteps.insert(cidr, Vtep { node: node.to_owned(), mac: *mac, host: public_ip.unwrap_or(peer.address) });
            }
            Announcement::Vxlan { vni, .. } => desired.problems.push(format!(
                "node {node}: its tunnel has VNI {vni}, not {VNI}, so its pods {cidr} are not reached; set \"VNI\": {VNI} and \"Port\": {PORT} in its net-conf.json (Windows has no VNI below 4096 and no other port)"
            )),
            Announcement::Other(backend) => desired.problems.push(format!(
                "node {node}: its flannel backend is {backend}, not vxlan, so its pods {cidr} are not reached; give all nodes one backend"
            )),
            Announcement::Bad(reason) => {
                desired.problems.push(format!("node {node}: {reason}, so its pods {cidr} are not reached; restart its pod network to write it anew"));
            }
        }
    }
    vteps
}
