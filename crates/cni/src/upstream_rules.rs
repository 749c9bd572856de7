//! Rules that upstream's `portmap`, `bridge` and `ptp` left for a pod: iptables' chains in table `nat`, as iptables-nft keeps them. A pod that
//! upstream's plug-ins attached is detached by ours, so these go as well.
//!
//! Source: containernetworking/plugins `pkg/utils/utils.go` (names of chains), `pkg/ip/ipmasq_iptables_linux.go`, `plugins/meta/portmap`.

use nft::{Batch, Family, Nft, NftError, RuleInfo, Table};

use crate::links::digest;
use crate::plugin::Request;
use crate::spec::{CniError, code};

/// The length of upstream's names of chains.
const LEN: usize = 28;

/// A container's chain, named after network and container.
fn chain(prefix: &str, request: &Request) -> String {
    format!("{prefix}{}", digest(&[&request.config.name, &request.container_id], LEN - prefix.len()))
}

/// What masquerades the pod.
pub(crate) fn remove_masquerade(request: &Request) -> Result<(), CniError> {
    remove("POSTROUTING", &chain("CNI-", request))
}

/// What leads host ports to the pod.
pub(crate) fn remove_host_ports(request: &Request) -> Result<(), CniError> {
    remove("CNI-HOSTPORT-DNAT", &chain("CNI-DN-", request))
}

fn remove(from: &str, chain: &str) -> Result<(), CniError> {
    let failed = |error: NftError| CniError::new(code::IO, format!("cannot remove the chain {chain} that iptables made: {error}"));
    let nft = Nft::open().map_err(failed)?;
    [Family::Ip, Family::Ip6].into_iter().try_for_each(|family| remove_in(&nft, &Table::new(family, "nat"), from, chain)).map_err(failed)
}

fn remove_in(nft: &Nft, table: &Table, from: &str, chain: &str) -> Result<(), NftError> {
    let jumps: Vec<RuleInfo> = nft.rules(table, from)?.into_iter().filter(|rule| rule.leads_to.as_deref() == Some(chain)).collect();
    if jumps.is_empty() && nft.rules(table, chain)?.is_empty() {
        return Ok(());
    }
    let mut batch = Batch::new();
    for jump in jumps {
        batch.del_rule(table, from, jump.handle);
    }
    batch.flush_chain(table, chain).del_chain(table, chain);
    match nft.commit(&batch) {
        // Another one removed it meanwhile.
        Err(error) if error.is_not_found() => Ok(()),
        done => done,
    }
}
