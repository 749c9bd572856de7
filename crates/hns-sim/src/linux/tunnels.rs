//! What a tunnel takes in. VFP finds an endpoint by its address, whatever MAC the sender knows it by; Linux takes frames for a link's own MAC
//! alone. So frames for the MACs of local endpoints are taken for the host's, which routes them.

use std::io;

use nft::{Chain, Desired, Expr, Family, MetaKey, PayloadBase, Plan, Table, rule};

use super::LinuxKernel;
use super::rules::spec;

/// Tunnel and MAC.
pub(super) const MACS: &str = "tunnel-macs";

fn table() -> Table {
    Table::new(Family::Netdev, "hns")
}

/// The set of MACs, without elements. Chains of tunnels stay.
pub(super) fn macs() -> Desired {
    let mut part = Desired::new(table()).partial();
    part.set(spec(Family::Netdev, MACS));
    part
}

/// A tunnel's chain, and the set that it reads.
fn chain(name: &str) -> Desired {
    const TO_THIS_HOST: u8 = 0;
    let tunnel = Expr::Meta { key: MetaKey::IifName, reg: 0 };
    let destination = Expr::Payload { base: PayloadBase::Link, offset: 0, len: 6, reg: 4 };
    let take = rule().expr(tunnel).expr(destination).lookup(MACS, 0).load_value(0, [TO_THIS_HOST]);
    let mut part = Desired::new(table()).partial();
    part.chain(Chain::ingress(name, name), [take.expr(Expr::MetaSet { key: MetaKey::PktType, reg: 0 })]);
    part
}

impl LinuxKernel {
    pub(super) fn open_tunnel(&self, name: &str) -> io::Result<()> {
        let mut part = chain(name);
        part.set(spec(Family::Netdev, MACS)).unmanaged();
        Ok(self.engine.reconcile(vec![part]).map(drop)?)
    }

    pub(super) fn close_tunnel(&self, name: &str) -> io::Result<()> {
        if self.engine.nft().chains(&table())?.iter().any(|chain| chain.name == name) {
            self.engine.apply_at_once(Plan::between(vec![chain(name)], vec![]))?;
        }
        Ok(())
    }
}
