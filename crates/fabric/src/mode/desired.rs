//! What must hold on one host.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use super::bgp::Speaker;
use crate::flannel::Mac;
use crate::problem::Problem;
use crate::{conf, hns};

/// What leads to a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Through {
    /// The nodes' network.
    Network,
    /// The tunnel of this host.
    Tunnel,
}

/// The way to a node's pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    pub via: IpAddr,
    pub through: Through,
    /// The node whose pods are there.
    pub node: String,
}

/// The VXLAN tunnel of a Linux host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    pub name: String,
    pub vni: u32,
    /// UDP port.
    pub port: u16,
    /// Source of the outer packets.
    pub local: IpAddr,
    /// Number of the link that they leave by.
    pub device: u32,
    /// Largest inner packet in bytes.
    pub mtu: u32,
    pub mac: Mac,
    /// Its own address, which has no prefix.
    pub address: Option<IpAddr>,
}

/// The tunnel of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vtep {
    pub node: String,
    pub mac: Mac,
    /// Where outer packets go.
    pub host: IpAddr,
}

/// Pods that leave the cluster with their node's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Masquerade {
    pub pods: IpNet,
    /// Towards these they keep their own.
    pub cluster: IpNet,
}

/// What must hold on one host. Its text is what logs, `--dry-run` and tests show.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Desired {
    /// Routes in the main table, with our mark. Others with our mark go.
    pub routes: BTreeMap<IpNet, Hop>,
    /// The tunnel of a Linux host.
    pub tunnel: Option<Tunnel>,
    /// The other nodes' tunnels by pod CIDR, which a Linux host's tunnel knows.
    pub vteps: BTreeMap<IpNet, Vtep>,
    /// The BGP speaker of this host.
    pub speaker: Option<Speaker>,
    /// The HNS network of a Windows node, and the host's endpoint on it.
    pub hns: Option<hns::Desired>,
    /// Forwarding and translation on a Linux node.
    pub masquerade: Vec<Masquerade>,
    /// Largest packet of pods, in bytes, where it is known.
    pub mtu: Option<u32>,
    /// flannel's `subnet.env`, for plug-ins that read it.
    pub subnet_env: Option<String>,
    /// The CNI configuration, written when the rest is done.
    pub cni: Option<Value>,
    /// Annotations of this node's own Node.
    pub annotations: BTreeMap<String, String>,
    /// For logs, Events and status.
    pub problems: Vec<Problem>,
}

impl fmt::Display for Desired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Tunnel { name, vni, port, local, mtu, mac, address, .. }) = &self.tunnel {
            let address = address.map(|address| format!(" address {address}")).unwrap_or_default();
            writeln!(f, "tunnel {name} vni {vni} port {port} local {local} mtu {mtu} mac {mac}{address}")?;
        }
        for (cidr, Vtep { node, mac, host }) in &self.vteps {
            writeln!(f, "vtep {cidr} mac {mac} at {host} ({node})")?;
        }
        if let Some(Speaker { config, listen }) = &self.speaker {
            let cluster = config.cluster.map(|cluster| format!(" reflector of {cluster}")).unwrap_or_default();
            let announced = config.announce.iter().map(|net| format!(" {net}")).collect::<String>();
            let listen = listen.iter().map(|(address, port)| format!(" {address} port {port}")).collect::<Vec<_>>().join(",");
            writeln!(f, "speaker AS {} id {}{cluster} at{listen} announces{announced}", config.asn, config.id)?;
            for (address, peer) in &config.peers {
                let families = peer.families.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
                let client = if peer.client { " client" } else { "" };
                let password = if peer.connect.password.is_some() { " password" } else { "" };
                writeln!(f, "peer {address} port {} AS {} {families}{client}{password} ({})", peer.connect.port, peer.asn, peer.name)?;
            }
        }
        for (dst, Hop { via, through, node }) in &self.routes {
            let through = if *through == Through::Tunnel { " through the tunnel" } else { "" };
            writeln!(f, "route {dst} via {via}{through} ({node})")?;
        }
        if let Some(hns) = &self.hns {
            let subnets: Vec<&str> = hns.network.subnets().map(|subnet| subnet.ip_address_prefix.as_str()).collect();
            writeln!(f, "hns-network {} {} {}", hns.network.name, hns.network.network_type, subnets.join(" "))?;
            if let Some((_, placeholder)) = &hns.placeholder {
                let subnets: Vec<&str> = placeholder.subnets().map(|subnet| subnet.ip_address_prefix.as_str()).collect();
                writeln!(f, "hns-placeholder {} {} {}", placeholder.name, placeholder.network_type, subnets.join(" "))?;
            }
            for route in hns.network.policies.iter().filter_map(hcn::NetworkPolicy::as_remote_subnet_route) {
                let (prefix, mac) = (route.destination_prefix, route.distributed_router_mac_address);
                writeln!(f, "hns-remote-subnet {prefix} vni {} mac {mac} at {}", route.isolation_id, route.provider_address)?;
            }
            if let Some(endpoint) = &hns.endpoint {
                let addresses: Vec<&str> = endpoint.ip_configurations.iter().map(|ip| ip.ip_address.as_str()).collect();
                writeln!(f, "hns-endpoint {} {} on the host", endpoint.name, addresses.join(" "))?;
            }
        }
        for Masquerade { pods, cluster } in &self.masquerade {
            writeln!(f, "masquerade {pods} outside {cluster}")?;
        }
        if let Some(text) = &self.subnet_env {
            writeln!(f, "subnet.env {}", text.split_whitespace().collect::<Vec<_>>().join(" "))?;
        }
        if let Some(cni) = &self.cni {
            let plugins = cni["plugins"].as_array().map(Vec::as_slice).unwrap_or_default();
            let types: Vec<&str> = plugins.iter().filter_map(|plugin| plugin["type"].as_str()).collect();
            let mtu = self.mtu.map(|mtu| format!(" mtu {mtu}")).unwrap_or_default();
            writeln!(f, "cni {} {}{mtu}", conf::FILE, types.join(" "))?;
        }
        self.annotations.iter().try_for_each(|(name, value)| writeln!(f, "annotation {name}={value}"))?;
        self.problems.iter().try_for_each(|problem| writeln!(f, "! {problem}"))
    }
}
