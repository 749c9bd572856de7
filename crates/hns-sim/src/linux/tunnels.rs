//! What a tunnel takes in. VFP finds an endpoint by its address, whatever MAC the sender knows it by; Linux takes frames for a link's own MAC
//! alone. So frames for the MACs of local endpoints are taken for the host's, which routes them.

use std::io;

use nft::{Batch, Chain, DataType, Expr, Family, MetaKey, PayloadBase, SetSpec, Table, rule};

use super::LinuxKernel;

/// Tunnel and MAC.
pub(super) const MACS: &str = "tunnel-macs";

fn table() -> Table {
    Table::new(Family::Netdev, "hns")
}

pub(super) fn add_sets(batch: &mut Batch) {
    batch.add_table(&table());
    batch.add_set(&table(), &SetSpec::set(MACS, [DataType::IfName, DataType::EtherAddr]));
}

/// Forgets every MAC.
pub(super) fn reset(batch: &mut Batch) {
    add_sets(batch);
    batch.flush_set(&table(), MACS);
}

impl LinuxKernel {
    pub(super) fn open_tunnel(&self, name: &str) -> io::Result<()> {
        const TO_THIS_HOST: u8 = 0;
        let mut batch = Batch::new();
        add_sets(&mut batch);
        batch.add_chain(&table(), &Chain::ingress(name, name)).flush_chain(&table(), name);
        let tunnel = Expr::Meta { key: MetaKey::IifName, reg: 0 };
        let destination = Expr::Payload { base: PayloadBase::Link, offset: 0, len: 6, reg: 4 };
        let take = rule().expr(tunnel).expr(destination).lookup(MACS, 0).load_value(0, [TO_THIS_HOST]);
        batch.add_rule(&table(), name, take.expr(Expr::MetaSet { key: MetaKey::PktType, reg: 0 }));
        Ok(self.nft.commit(&batch)?)
    }

    pub(super) fn close_tunnel(&self, name: &str) -> io::Result<()> {
        if self.nft.chains(&table())?.iter().any(|chain| chain.name == name) {
            let mut batch = Batch::new();
            batch.flush_chain(&table(), name).del_chain(&table(), name);
            self.nft.commit(&batch)?;
        }
        Ok(())
    }
}
