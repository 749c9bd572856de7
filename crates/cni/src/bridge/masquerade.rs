//! `ipMasq`: pods leave their network with the node's address.

use std::net::Ipv4Addr;

use ipnet::{IpNet, Ipv4Net};
use nft::{Batch, Chain, ChainType, Family, Hook, Nft, NftError, Rule, Table, rule};

use crate::spec::{CniError, code};

/// Translates what pods of `subnet` send to other networks. One chain a network, which stays when its last pod goes.
pub(super) fn ensure(network: &str, subnet: IpNet) -> Result<(), CniError> {
    if subnet.addr().is_ipv6() {
        return Ok(());
    }
    let failed = |error: NftError| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        CniError::new(code::IO, format!("cannot masquerade network {network:?}: {error}{cause}"))
    };
    let nft = Nft::open().map_err(failed)?;
    let table = Table::new(Family::Ip, "mullion-cni");
    let name = format!("masquerade-{network}");
    let comment = subnet.to_string();
    let present = nft.rules(&table, &name).map_err(failed)?;
    if present.len() == 1 && present[0].comment.as_ref() == Some(&comment) {
        return Ok(());
    }
    let mut batch = Batch::new();
    batch.add_table(&table).add_chain(&table, &Chain::base(&name, ChainType::Nat, Hook::Postrouting, 100));
    batch.flush_chain(&table, &name).add_rule(&table, &name, leaving(subnet).comment(comment));
    nft.commit(&batch).map_err(failed)
}

fn leaving(subnet: IpNet) -> Rule {
    let multicast = Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 4);
    rule().ip_saddr(subnet).ip_daddr_not(subnet).ip_daddr_not(multicast).masquerade()
}
