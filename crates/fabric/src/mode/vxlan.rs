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

use super::{Attachment, Desired, Hop, Inputs, Masquerade, Role, Through, Tunnel, Vtep, Vxlan};
use crate::flannel::{Announcement, HOST_GATEWAY, Mac, announce_vxlan};
use crate::problem::{Kind, Problem};
use crate::{conf, hns, nth};

/// Bytes of the outer Ethernet, IPv4, UDP and VXLAN headers.
const OVERHEAD: u32 = 50;

pub(super) fn decide(inputs: &Inputs<'_>, desired: &mut Desired) {
    if inputs.settings.role == Role::Router {
        return;
    }
    let vteps = vteps(inputs, desired);
    let vni = inputs.settings.vxlan.vni;
    match &inputs.settings.role {
        Role::Node(_) => {
            let Some((pods, conf_inputs)) = inputs.own_pods() else { return };
            match &pods.attachment {
                Attachment::Windows { adapter, .. } => {
                    let routes = vteps.iter().map(|(cidr, vtep)| remote_subnet(*cidr, vtep, vni));
                    let network = hns::Desired::overlay(&pods.cluster_uid, &pods.network_name, adapter, conf_inputs.first.pod_cidr, vni);
                    let network = network.with_placeholder(&pods.cluster_uid, adapter, &inputs.taken(pods));
                    desired.hns = Some(network.with_remote_subnets(routes));
                    let most = inputs.state.uplink.map_or(super::USUAL_MTU, |uplink| uplink.mtu).saturating_sub(OVERHEAD);
                    let mtu = inputs.settings.vxlan.mtu.map_or(most, |mtu| mtu.min(most));
                    desired.mtu = Some(mtu);
                    desired.cni = Some(inputs.limited(conf::windows_overlay(&conf_inputs), desired.mtu, super::USUAL_MTU - OVERHEAD));
                    desired.subnet_env = inputs.subnet_env(pods, &conf_inputs, Some(mtu));
                    if let Some(mac) = inputs.state.dr_mac {
                        desired.annotations = announce_vxlan(vni, mac, conf_inputs.first.node_ip);
                    }
                }
                Attachment::Linux { bridge } => {
                    let mac = own_mac(&pods.cluster_uid, &inputs.settings.node_name);
                    let Some(tunnel) = tunnel(inputs, conf_inputs.first.node_ip, mac, Some(conf_inputs.first.pod_cidr)) else {
                        desired.problems.push(no_link(conf_inputs.first.node_ip));
                        return;
                    };
                    desired.masquerade = vec![Masquerade { pods: conf_inputs.first.pod_cidr, cluster: conf_inputs.first.cluster_cidr }];
                    desired.mtu = Some(tunnel.mtu);
                    desired.cni = Some(conf::linux(&conf_inputs, bridge, desired.mtu));
                    desired.subnet_env = inputs.subnet_env(pods, &conf_inputs, Some(tunnel.mtu));
                    desired.annotations = announce_vxlan(vni, mac, conf_inputs.first.node_ip);
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

fn no_link(address: IpAddr) -> Problem {
    Problem::failed(format!("no interface of this host is on the network of its address {address}, so it has no tunnel; give it one that is"))
}

/// The same after every restart. The first byte says that it was given locally, to one host.
fn own_mac(cluster_uid: &str, node: &str) -> Mac {
    let id = owned_id(cluster_uid, "vtep", node).0.as_u128().to_be_bytes();
    Mac([0x02, id[1], id[2], id[3], id[4], id[5]])
}

/// The tunnel on the link that has `local`; none where no link has it.
fn tunnel(inputs: &Inputs<'_>, local: IpAddr, mac: Mac, pods: Option<IpNet>) -> Option<Tunnel> {
    let uplink = inputs.state.uplink?;
    let Vxlan { vni, port, mtu } = inputs.settings.vxlan;
    let most = uplink.mtu.saturating_sub(OVERHEAD);
    Some(Tunnel {
        name: format!("flannel.{vni}"),
        vni,
        port,
        local,
        device: uplink.index,
        mtu: mtu.map_or(most, |mtu| mtu.min(most)),
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

fn remote_subnet(cidr: IpNet, vtep: &Vtep, vni: u32) -> RemoteSubnetRoute {
    RemoteSubnetRoute {
        destination_prefix: cidr.to_string(),
        isolation_id: vni,
        provider_address: vtep.host.to_string(),
        distributed_router_mac_address: vtep.mac.dashed(),
        ..RemoteSubnetRoute::default()
    }
}

/// The tunnels of the other nodes by pod CIDR. Those that do not announce theirs yet are no problem: they will.
fn vteps(inputs: &Inputs<'_>, desired: &mut Desired) -> BTreeMap<IpNet, Vtep> {
    let mut vteps = BTreeMap::new();
    let Vxlan { vni: own, port, .. } = inputs.settings.vxlan;
    let mut holders: BTreeMap<Mac, &str> = BTreeMap::new();
    for peer in inputs.peers(desired) {
        let (node, cidr) = (peer.node, peer.cidr);
        if !cidr.addr().is_ipv4() {
            // A node with both families says itself that its pods have one.
            if peer.row.pod_cidr().is_some() {
                continue;
            }
            let text =
                format!("node {node}: pod CIDR {cidr} is not reached, because overlays of HNS have IPv4 alone; use host-gateway, l3 or bgp for IPv6");
            desired.problems.push(Problem::of_node(Kind::FamilyNotReached, node, text));
            continue;
        }
        match &peer.row.announcement {
            Announcement::None | Announcement::Vxlan { mac: None, .. } => {}
            Announcement::Vxlan { vni, mac: Some(mac), public_ip } if *vni == own => {
                if let Some(other) = holders.insert(*mac, node).filter(|other| *other != node) {
                    holders.insert(*mac, other);
                    let text = format!(
                        "node {node}: its tunnel has the MAC {mac} of node {other}, so its pods {cidr} are not reached; remove the annotation backend-data of the node whose machine was cloned, and restart its pod network"
                    );
                    desired.problems.push(Problem::of_node(Kind::MacTaken, node, text));
                    continue;
                }
                vteps.insert(cidr, Vtep { node: node.to_owned(), mac: *mac, host: public_ip.unwrap_or(peer.address) });
            }
            Announcement::Vxlan { vni, .. } => {
                let text = format!(
                    "node {node}: its tunnel has VNI {vni}, not {own}, so its pods {cidr} are not reached; set \"VNI\": {own} and \"Port\": {port} in its net-conf.json (Windows has no VNI below 4096 and no other port)"
                );
                desired.problems.push(Problem::of_node(Kind::SegmentDiffers, node, text));
            }
            Announcement::HostGateway { .. } => desired.problems.push(other_backend(node, HOST_GATEWAY, cidr)),
            Announcement::Other(backend) => desired.problems.push(other_backend(node, backend, cidr)),
            Announcement::Bad(reason) => {
                let text = format!("node {node}: {reason}, so its pods {cidr} are not reached; restart its pod network to write it anew");
                desired.problems.push(Problem::of_node(Kind::AnnotationNotRead, node, text));
            }
        }
    }
    vteps
}

fn other_backend(node: &str, backend: &str, cidr: IpNet) -> Problem {
    let text = format!("node {node}: its flannel backend is {backend}, not vxlan, so its pods {cidr} are not reached; give all nodes one backend");
    Problem::of_node(Kind::BackendDiffers, node, text)
}
