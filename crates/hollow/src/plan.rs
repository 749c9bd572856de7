//! Which hollow nodes there are: names, addresses and identities, which follow from a node's number. Pure.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use uuid::Uuid;

/// The addresses of hollow nodes: shared address space (RFC 6598), of which no host of a LAN has one.
pub const NODES: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(100, 64, 0, 0), 16);

/// The addresses of their pods, a /24 per node.
pub const PODS: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(100, 96, 0, 0), 12);

/// The most hollow nodes: as many as [`PODS`] has shares for.
pub const MOST: u32 = 4096;

/// The user whose certificate the pool of connections has. It may act as any hollow node, and nothing else.
pub const IDENTITY: &str = "mullion:hollow-nodes";

/// One hollow node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePlan {
    pub name: String,
    /// Its InternalIP.
    pub address: Ipv4Addr,
    pub machine_id: Uuid,
    /// Names this start of the node.
    pub boot_id: Uuid,
}

/// The names of the first `count` hollow nodes.
pub fn names(count: u32) -> impl Iterator<Item = String> {
    (1..=count.min(MOST)).map(|number| format!("hollow-{number:04}"))
}

/// The user that a node is.
pub fn user(node: &str) -> String {
    format!("system:node:{node}")
}

/// The first `count` hollow nodes of the cluster `identity`, in their start `boot`.
pub fn nodes(count: u32, identity: Uuid, boot: Uuid) -> Vec<NodePlan> {
    let of = |(name, number): (String, u32)| NodePlan {
        address: Ipv4Addr::from(u32::from(NODES.network()) + number),
        machine_id: Uuid::new_v5(&identity, name.as_bytes()),
        boot_id: Uuid::new_v5(&boot, name.as_bytes()),
        name,
    };
    names(count).zip(1..).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_follow_from_their_number() {
        let (identity, boot) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let all = nodes(1000, identity, boot);
        let text = |node: &NodePlan| format!("{} {}", node.name, node.address);
        assert_eq!([&all[0], &all[255], &all[999]].map(text), ["hollow-0001 100.64.0.1", "hollow-0256 100.64.1.0", "hollow-1000 100.64.3.232"]);
        assert_eq!(nodes(1001, identity, boot)[..1000], all, "a larger cluster has the same nodes, and more");
        let rebooted = nodes(1, identity, Uuid::from_u128(3)).remove(0);
        assert_eq!((rebooted.machine_id, rebooted.boot_id == all[0].boot_id), (all[0].machine_id, false));
    }

    #[test]
    fn there_are_no_more_nodes_than_shares_of_the_pods_network() {
        assert_eq!(PODS.subnets(24).unwrap().count(), MOST as usize);
        assert_eq!(names(u32::MAX).count(), MOST as usize);
        assert!(nodes(MOST, Uuid::nil(), Uuid::nil()).iter().all(|node| NODES.contains(&node.address) && !PODS.contains(&node.address)));
    }
}
