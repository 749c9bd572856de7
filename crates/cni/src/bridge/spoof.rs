//! `macspoofchk`: frames of a pod that claim another MAC are dropped where the bridge takes them.

use std::collections::BTreeSet;

use nft::{Chain, ChainType, Desired, Engine, Family, Hook, Nft, NftError, Table, rule};

use crate::spec::{CniError, code};

const CHAIN: &str = "macspoofchk";

fn table() -> Table {
    Table::new(Family::Bridge, "mullion-cni")
}

fn chain() -> Chain {
    Chain::base(CHAIN, ChainType::Filter, Hook::Prerouting, -300)
}

fn failed(error: NftError) -> CniError {
    let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
    CniError::new(code::IO, format!("cannot bind a pod to its MAC: {error}{cause}"))
}

/// What tells the rules of an attachment from others, at most 127 bytes.
pub(super) fn owner(container: &str, ifname: &str) -> String {
    let name = format!("{container}-{ifname}");
    if name.len() > 127 { crate::links::digest(&[&name], 64) } else { name }
}

/// Has the bridge take from `port` frames of `mac` alone.
pub(super) fn ensure(port: &str, mac: [u8; 6], owner: &str) -> Result<(), CniError> {
    let mut part: Desired = Desired::new(table()).shared();
    part.owned_rules(chain(), [owner.to_owned()], [rule().iifname(port).ether_saddr_not(mac).drop().comment(owner)]);
    Nft::open().and_then(|nft| Engine::new(nft).reconcile(vec![part])).map(drop).map_err(failed)
}

/// Removes the rules of the attachments that are chosen.
pub(super) fn forget(chosen: impl Fn(&str) -> bool) -> Result<(), CniError> {
    let engine = Engine::new(Nft::open().map_err(failed)?);
    let observed = engine.nft().observe(&table()).map_err(failed)?;
    let owners: BTreeSet<String> = observed.comments(CHAIN).filter(|owner| chosen(owner)).map(str::to_owned).collect();
    if owners.is_empty() {
        return Ok(());
    }
    let mut part: Desired = Desired::new(table()).shared();
    part.owned_rules(chain(), owners, []);
    engine.reconcile(vec![part]).map(drop).map_err(failed)
}
