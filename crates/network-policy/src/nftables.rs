//! The backend for Linux: one nftables table, of sets and data maps.
//!
//! ```text
//! forward: established? → passes
//!          source·destination in own?                      → passes (a pod with itself)
//!          source in egress-pods?      → its profile's chain: drops, or returns
//!          destination in ingress-pods? → its profile's chain: drops, or returns
//! ```
//! No chain belongs to a pod: maps say which profile an address has, a profile has a chain, and its rules look groups up in sets. So a
//! pod's change is a few elements in one transaction, whatever the number of pods. Packets are seen after load balancers translated
//! their destination, and before their source is translated. What the node itself sends and receives is on other hooks: pods and their own
//! node reach each other whatever policies say. A profile goes from map to chain as the packet's priority, as the service proxy does it:
//! nft(8) cannot show rules that look up in one map what another one gave, and marks belong to others.

mod layout;
mod state;

use nft::{Engine, Nft, NftError, Plan};
use thiserror_ext::AsReport as _;

use crate::world::{Changes, World};
pub use layout::table;
pub use state::Programmed;

/// A transaction of about this many bytes is committed before more is put in, so that memory stays bounded.
const PART: usize = 1 << 20;

/// Keeps the kernel's table equal to the world's rules, in the network namespace of the thread that first passes.
#[derive(Debug, Default)]
pub struct Nftables {
    kernel: Option<(Engine, Programmed)>,
}

/// Removes the table; true when there was one.
///
/// # Errors
/// The kernel refused it.
pub fn cleanup() -> Result<bool, NftError> {
    let engine = Engine::new(Nft::open()?);
    let there = engine.nft().tables()?.contains(&table());
    engine.delete([table()])?;
    Ok(there)
}

impl Nftables {
    /// A backend that has not touched anything yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the rules what `world` says: those of `changes`, or with `full` all after comparing with the kernel. A change that the kernel
    /// refuses is tried once more against what is really there. Returns how many elements changed.
    ///
    /// # Errors
    /// The kernel refused that, too.
    pub fn sync(&mut self, world: &World, changes: &Changes, full: bool) -> Result<usize, NftError> {
        if full && !self.is_undisturbed()? {
            self.kernel = None;
        }
        if let Some((engine, programmed)) = &mut self.kernel {
            let (before, after) = programmed.change(world, changes);
            match engine.apply(Plan::between(vec![before], vec![after])) {
                Ok(report) => return Ok(report.elements),
                Err(error) => tracing::warn!(error = %error.as_report(), "the policies' table is not what it was left as; comparing all of it"),
            }
        }
        self.kernel = None;
        let engine = Engine::new(Nft::open()?).in_parts_of(PART);
        let mut programmed = Programmed::default();
        let desired = programmed.whole(world);
        let report = engine.reconcile(vec![desired])?;
        self.kernel = Some((engine, programmed));
        Ok(report.elements)
    }

    fn is_undisturbed(&self) -> Result<bool, NftError> {
        self.kernel.as_ref().map_or(Ok(false), |(engine, _)| engine.is_undisturbed())
    }
}

#[cfg(test)]
mod tests;
