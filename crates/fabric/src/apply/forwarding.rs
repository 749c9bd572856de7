//! Pod network of a Linux node beside its bridge: forwarding and masquerading.

use std::io;

use ipnet::IpNet;
use linux_sys::sysctl;
use nft::{Chain, ChainType, Desired, Engine, Family, Hook, Nft, NftError, Table, rule};

use crate::mode::Masquerade;

const TABLE: &str = "mullion-fabric";
const CHAIN: &str = "masquerade";

/// The node could not be prepared.
#[derive(Debug, thiserror::Error)]
pub enum LinuxError {
    /// The kernel does not forward.
    #[error("cannot make the node forward packets between pods and other nodes")]
    Forwarding(#[source] io::Error),
    /// The kernel does not translate.
    #[error("cannot program nftables table {TABLE}; pods need it to reach what is outside the cluster")]
    Masquerade(#[source] NftError),
}

/// Makes the node forward, and makes its pods leave with the node's address for everything outside the cluster. Changes
/// nothing that is right.
pub fn ensure(desired: Masquerade) -> Result<(), LinuxError> {
    if !sysctl::get("net.ipv4.ip_forward").is_ok_and(|value| value == "1") {
        sysctl::set("net.ipv4.ip_forward", "1").map_err(LinuxError::Forwarding)?;
    }
    masquerade(desired.pods, desired.cluster).map_err(LinuxError::Masquerade)
}

fn masquerade(pod_cidr: IpNet, cluster_cidr: IpNet) -> Result<(), NftError> {
    let mut desired: Desired = Desired::new(Table::new(Family::Ip, TABLE));
    let leaving = rule().ip_saddr(pod_cidr).ip_daddr_not(cluster_cidr).masquerade();
    desired.chain(Chain::base(CHAIN, ChainType::Nat, Hook::Postrouting, 100), [leaving.comment(format!("{pod_cidr} leaves {cluster_cidr}"))]);
    Engine::new(Nft::open()?).reconcile(vec![desired]).map(drop)
}

#[cfg(test)]
mod tests {
    use linux_sys::ns::in_lab;
    use nft::Batch;

    use super::*;

    #[test]
    fn bridge_is_created_once_and_recreated_when_it_changes_or_vanishes() {
        in_lab("apply::forwarding::tests::bridge_is_created_once_and_recreated_when_it_changes_or_vanishes", || {
            let desired = Masquerade { pods: "192.168.1.0/24".parse().unwrap(), cluster: "192.168.0.0/16".parse().unwrap() };
            let table = Table::new(Family::Ip, TABLE);
            let nft = Nft::open().unwrap();
            let handles = || nft.rules(&table, CHAIN).unwrap().iter().map(|rule| rule.handle).collect::<Vec<_>>();
            ensure(desired).unwrap();
            let first = handles();
            ensure(desired).unwrap();
            assert_eq!((handles(), first.len()), (first.clone(), 1));
            assert_eq!(sysctl::get("net.ipv4.ip_forward").unwrap(), "1");
            ensure(Masquerade { pods: "192.168.7.0/24".parse().unwrap(), ..desired }).unwrap();
            assert!(handles().len() == 1 && handles() != first);
            let mut batch = Batch::new();
            batch.del_table(&table);
            nft.commit(&batch).unwrap();
            ensure(desired).unwrap();
            assert_eq!(handles().len(), 1);
        });
    }
}
