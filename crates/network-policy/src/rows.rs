//! Rows of Pods, Namespaces and Nodes: the fields that policies ask for.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::policy::{Protocol, Selects};

/// Labels in the order of their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(Box<[(Box<str>, Box<str>)]>);

impl Labels {
    /// The labels of an object.
    pub fn of(meta: &ObjectMeta) -> Self {
        let pairs = meta.labels.iter().flatten().map(|(key, value)| (key.as_str().into(), value.as_str().into()));
        Self(pairs.collect())
    }

    /// Labels for keys that are in order.
    pub fn new(pairs: &[(&str, &str)]) -> Self {
        let mut pairs: Vec<_> = pairs.iter().map(|(key, value)| (Box::from(*key), Box::from(*value))).collect();
        pairs.sort();
        Self(pairs.into())
    }

    /// The value of a label.
    pub fn get(&self, key: &str) -> Option<&str> {
        let at = self.0.binary_search_by(|(have, _)| (**have).cmp(key)).ok()?;
        Some(&self.0[at].1)
    }

    /// Whether a selector selects them.
    pub fn satisfy(&self, selector: &Selects) -> bool {
        selector.matches(|key| self.get(key))
    }
}

/// A port of a container that has a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPort {
    pub name: Box<str>,
    pub protocol: Protocol,
    pub port: u16,
}

/// A pod with a network of its own. Pods of the host's network are no rows: upstream leaves them to the implementation, and here they
/// are the node, as they are almost everywhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRow {
    pub labels: Labels,
    /// `status.podIPs`; none before the node has reported them.
    pub ips: Box<[IpAddr]>,
    pub ports: Box<[NamedPort]>,
    /// The node that runs it.
    pub node: Box<str>,
}

impl PodRow {
    /// Reads a Pod; none for one that has ended, that no node runs, or that uses the host's network.
    pub fn of(pod: &Pod) -> Option<Self> {
        let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref());
        let ended = status.and_then(|status| status.phase.as_deref()).is_some_and(|phase| matches!(phase, "Succeeded" | "Failed"));
        if ended || spec.host_network == Some(true) {
            return None;
        }
        let listed = status.and_then(|status| status.pod_ips.as_deref()).unwrap_or_default().iter().map(|ip| &ip.ip);
        let single = status.and_then(|status| status.pod_ip.as_ref());
        let mut ips: Vec<IpAddr> = Vec::new();
        for ip in listed.chain(single).filter_map(|text| text.parse().ok()) {
            if !ips.contains(&ip) {
                ips.push(ip);
            }
        }
        // Sidecars may listen as well.
        let sidecars = spec.init_containers.iter().flatten().filter(|container| container.restart_policy.as_deref() == Some("Always"));
        let containers = spec.containers.iter().chain(sidecars);
        let ports = containers.flat_map(|container| container.ports.iter().flatten()).filter_map(|port| {
            Some(NamedPort {
                name: port.name.as_deref()?.into(),
                protocol: Protocol::read(port.protocol.as_deref())?,
                port: port.container_port.try_into().ok()?,
            })
        });
        Some(Self { labels: Labels::of(&pod.metadata), ips: ips.into(), ports: ports.collect(), node: spec.node_name.as_deref()?.into() })
    }
}

/// The labels of a Namespace. The API server gives each one `kubernetes.io/metadata.name`.
pub fn namespace_row(namespace: &Namespace) -> Option<Labels> {
    Some(Labels::of(&namespace.metadata))
}

/// A Node: what peers of ClusterNetworkPolicies select, and whose addresses are the host's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeRow {
    pub labels: Labels,
    /// Its addresses of every type.
    pub ips: Box<[IpAddr]>,
}

impl NodeRow {
    /// Reads a Node.
    pub fn of(node: &Node) -> Option<Self> {
        let addresses = node.status.as_ref().and_then(|status| status.addresses.as_deref()).unwrap_or_default();
        Some(Self { labels: Labels::of(&node.metadata), ips: addresses.iter().filter_map(|address| address.address.parse().ok()).collect() })
    }
}
