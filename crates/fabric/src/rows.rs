//! Rows of Nodes: the fields that the fabric uses.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Node, NodeStatus};

use crate::calico::Announced;
use crate::flannel::Announcement;

/// A Node as far as its pods' reachability goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeRow {
    /// `spec.podCIDRs`; those that do not parse are left out.
    pub pod_cidrs: Vec<IpNet>,
    /// Its addresses of type `InternalIP`, in their order.
    pub addresses: Vec<IpAddr>,
    /// Whether it runs Windows.
    pub windows: bool,
    /// What it announces about its tunnel.
    pub announcement: Announcement,
    /// What its annotations say of BGP.
    pub calico: Announced,
    pub labels: BTreeMap<String, String>,
    /// When it was registered, in seconds; the older of two nodes keeps a pod CIDR that both have.
    pub created: i64,
    /// Its condition `NetworkUnavailable`.
    pub condition: Option<Condition>,
}

/// A Node's condition `NetworkUnavailable`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// Its status is `True`: pods of the node cannot reach others.
    pub unavailable: bool,
    pub reason: String,
    pub message: String,
}

impl Condition {
    pub const TYPE: &'static str = "NetworkUnavailable";
    /// The longest message that is kept.
    pub const LONGEST: usize = 1024;

    fn of(status: &NodeStatus) -> Option<Self> {
        let found = status.conditions.iter().flatten().find(|condition| condition.type_ == Self::TYPE)?;
        Some(Self {
            unavailable: found.status != "False",
            reason: found.reason.clone().unwrap_or_default(),
            message: found.message.iter().flat_map(|message| message.chars()).take(Self::LONGEST).collect(),
        })
    }
}

impl NodeRow {
    /// Reads a Node; one without addresses or CIDRs is a row too. A hollow node is none: no packet reaches its pods.
    pub fn of(node: &Node) -> Option<Self> {
        if kube_rules::node_labels::is_hollow(node.metadata.labels.as_ref()) {
            return None;
        }
        let spec = node.spec.as_ref();
        let listed = spec.and_then(|s| s.pod_cidrs.as_deref()).unwrap_or_default();
        let single = spec.and_then(|s| s.pod_cidr.as_ref());
        let mut pod_cidrs: Vec<IpNet> = Vec::new();
        for cidr in listed.iter().chain(single).filter_map(|text| text.parse::<IpNet>().ok()).map(|cidr| cidr.trunc()) {
            if !pod_cidrs.contains(&cidr) {
                pod_cidrs.push(cidr);
            }
        }
        let status = node.status.as_ref();
        let addresses = status.and_then(|s| s.addresses.as_deref()).unwrap_or_default();
        let addresses = addresses.iter().filter(|a| a.type_ == "InternalIP").filter_map(|a| a.address.parse().ok()).collect();
        let label = node.metadata.labels.as_ref().and_then(|labels| labels.get("kubernetes.io/os"));
        let reported = status.and_then(|s| s.node_info.as_ref()).map(|info| &info.operating_system);
        let announcement = node.metadata.annotations.as_ref().map(Announcement::read).unwrap_or_default();
        let calico = node.metadata.annotations.as_ref().map(Announced::read).unwrap_or_default();
        let labels = node.metadata.labels.clone().unwrap_or_default();
        let created = node.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second());
        let condition = status.and_then(Condition::of);
        let windows = label.or(reported).is_some_and(|os| os == "windows");
        Some(Self { pod_cidrs, addresses, windows, announcement, calico, labels, created, condition })
    }

    /// The pod CIDR of IPv4.
    pub fn pod_cidr(&self) -> Option<IpNet> {
        self.pod_cidrs.iter().copied().find(|cidr| cidr.addr().is_ipv4())
    }

    /// The first address of the family that `like` has.
    pub fn address(&self, like: IpNet) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|address| address.is_ipv4() == like.addr().is_ipv4())
    }
}
