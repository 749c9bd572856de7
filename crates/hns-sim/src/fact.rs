//! What must hold in the host's kernel, as small facts of four kinds; and plans, which are what to remove and what to add.
//!
//! Every object of the model compiles to some facts ([`crate::compile`]). A change of an object is the difference of its facts before and
//! after, so the cost of a change follows the change. [`order`] has the order in which facts are applied and removed.

mod access;
mod link;
pub mod order;
mod rule;
mod show;

pub use access::{Access, AccessList, AccessRule, Place, USUAL_PROTOCOLS};
pub use link::{Forwarding, Hop, Link, Port, bridge_name, port_name, stable_hash, tunnel_name, uplink_bridge};
pub use order::{Fact, Plan, Shared, Step};
pub use rule::{BALANCED, Distribution, NatClass, ONLY_DESTINATIONS, Rule, Seen, Selector, TO_FABRIC, Vip};
