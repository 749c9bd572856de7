//! `ipMasq`: pods leave their network with the node's address.

use std::net::Ipv4Addr;

use ipnet::{IpNet, Ipv4Net};
use nft::{Chain, ChainType, Desired, Engine, Family, Hook, Nft, NftError, Rule, Table, rule};

use crate::spec::{CniError, code};

/// Translates what pods of `subnet` send to other networks. One chain a network, which stays when its last pod goes.
pub(crate) fn ensure(network: &str, subnet: IpNet) -> Result<(), CniError> {
    if subnet.addr().is_ipv6() {
        return Ok(());
    }
    let failed = |error: NftError| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        CniError::new(code::IO, format!("cannot masquerade network {network:?}: {error}{cause}"))
    };
    let mut part: Desired = Desired::new(Table::new(Family::Ip, "mullion-cni")).shared();
    let chain = Chain::base(format!("masquerade-{network}"), ChainType::Nat, Hook::Postrouting, 100);
    part.chain(chain, [leaving(subnet).comment(subnet.to_string())]);
    Nft::open().and_then(|nft| Engine::new(nft).reconcile(vec![part])).map(drop).map_err(failed)
}

fn leaving(subnet: IpNet) -> Rule {
    let multicast = Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 4);
    rule().ip_saddr(subnet).ip_daddr_not(subnet).ip_daddr_not(multicast).masquerade()
}
