//! What must hold on one host.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use crate::{conf, hns};

/// The way to a node's pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    pub via: IpAddr,
    /// The node whose pods are there.
    pub node: String,
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
    /// The HNS network of a Windows node, and the host's endpoint on it.
    pub hns: Option<hns::Desired>,
    /// Forwarding and translation on a Linux node.
    pub masquerade: Option<Masquerade>,
    /// The CNI configuration, written when the rest is done.
    pub cni: Option<Value>,
    /// Sentences for logs and status: which node, why, and the way out.
    pub problems: Vec<String>,
}

impl fmt::Display for Desired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (dst, hop) in &self.routes {
            writeln!(f, "route {dst} via {} ({})", hop.via, hop.node)?;
        }
        if let Some(hns) = &self.hns {
            let subnets: Vec<&str> = hns.network.subnets().map(|subnet| subnet.ip_address_prefix.as_str()).collect();
            writeln!(f, "hns-network {} {} {}", hns.network.name, hns.network.network_type, subnets.join(" "))?;
            let address = hns.endpoint.ip().map(|ip| ip.to_string()).unwrap_or_default();
            writeln!(f, "hns-endpoint {} {address} on the host", hns.endpoint.name)?;
        }
        if let Some(Masquerade { pods, cluster }) = &self.masquerade {
            writeln!(f, "masquerade {pods} outside {cluster}")?;
        }
        if let Some(cni) = &self.cni {
            let plugins = cni["plugins"].as_array().map(Vec::as_slice).unwrap_or_default();
            let types: Vec<&str> = plugins.iter().filter_map(|plugin| plugin["type"].as_str()).collect();
            writeln!(f, "cni {} {}", conf::FILE, types.join(" "))?;
        }
        self.problems.iter().try_for_each(|problem| writeln!(f, "! {problem}"))
    }
}
