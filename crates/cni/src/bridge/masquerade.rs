//! `ipMasq`: pods leave their network with the node's address.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use nft::{Chain, ChainType, Desired, Engine, Family, Hook, Nft, NftError, Rule, Table, rule};

use crate::spec::{CniError, code};

/// Translates what pods of `subnets`, one of each family at most, send to other networks. One chain a network and family, which stays when its
/// last pod goes.
pub(crate) fn ensure(network: &str, subnets: impl IntoIterator<Item = IpNet>) -> Result<(), CniError> {
    let failed = |error: NftError| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        CniError::new(code::IO, format!("cannot masquerade network {network:?}: {error}{cause}"))
    };
    let part = |subnet: IpNet| {
        let family = if subnet.addr().is_ipv4() { Family::Ip } else { Family::Ip6 };
        let mut part: Desired = Desired::new(Table::new(family, "mullion-cni")).shared();
        let chain = Chain::base(format!("masquerade-{network}"), ChainType::Nat, Hook::Postrouting, 100);
        part.chain(chain, [leaving(subnet).comment(subnet.to_string())]);
        part
    };
    let parts = subnets.into_iter().map(part).collect();
    Nft::open().and_then(|nft| Engine::new(nft).reconcile(parts)).map(drop).map_err(failed)
}

fn leaving(subnet: IpNet) -> Rule {
    let multicast = match subnet {
        IpNet::V4(_) => IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 4)),
        IpNet::V6(_) => IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8)),
    };
    rule().ip_saddr(subnet).ip_daddr_not(subnet).ip_daddr_not(multicast).masquerade()
}
