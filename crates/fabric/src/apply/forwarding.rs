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

/// Makes the node forward, and makes its pods leave with the node's address for everything outside the cluster, in the families that they
/// have. Changes nothing that is right.
pub fn ensure(desired: &[Masquerade]) -> Result<(), LinuxError> {
    for Masquerade { pods, .. } in desired {
        let switch = if pods.addr().is_ipv4() { "net.ipv4.ip_forward" } else { "net.ipv6.conf.all.forwarding" };
        if !sysctl::get(switch).is_ok_and(|value| value == "1") {
            sysctl::set(switch, "1").map_err(LinuxError::Forwarding)?;
        }
    }
    let tables = desired.iter().map(|masquerade| table(masquerade.pods, masquerade.cluster)).collect();
    Nft::open().and_then(|nft| Engine::new(nft).reconcile(tables)).map(drop).map_err(LinuxError::Masquerade)
}

/// Removes the tables of both families.
///
/// # Errors
/// The kernel refused it.
pub fn cleanup() -> Result<(), NftError> {
    Engine::new(Nft::open()?).delete([Family::Ip, Family::Ip6].map(|family| Table::new(family, TABLE)))
}

/// The table of one family.
fn table(pods: IpNet, cluster: IpNet) -> Desired {
    let family = if pods.addr().is_ipv4() { Family::Ip } else { Family::Ip6 };
    let mut desired = Desired::new(Table::new(family, TABLE));
    let leaving = rule().ip_saddr(pods).ip_daddr_not(cluster).masquerade().comment(format!("{pods} leaves {cluster}"));
    desired.chain(Chain::base(CHAIN, ChainType::Nat, Hook::Postrouting, 100), [leaving]);
    desired
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
            ensure(&[desired]).unwrap();
            let first = handles();
            ensure(&[desired]).unwrap();
            assert_eq!((handles(), first.len()), (first.clone(), 1));
            assert_eq!(sysctl::get("net.ipv4.ip_forward").unwrap(), "1");
            ensure(&[Masquerade { pods: "192.168.7.0/24".parse().unwrap(), ..desired }]).unwrap();
            assert!(handles().len() == 1 && handles() != first);
            let ipv6 = Masquerade { pods: "fd00:1:0:1::/64".parse().unwrap(), cluster: "fd00:1::/48".parse().unwrap() };
            ensure(&[desired, ipv6]).unwrap();
            assert_eq!(nft.rules(&Table::new(Family::Ip6, TABLE), CHAIN).unwrap().len(), 1);
            assert_eq!(sysctl::get("net.ipv6.conf.all.forwarding").unwrap(), "1");
            let mut batch = Batch::new();
            batch.del_table(&table);
            nft.commit(&batch).unwrap();
            ensure(&[desired]).unwrap();
            assert_eq!(handles().len(), 1);
        });
    }
}
