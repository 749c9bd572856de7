//! The built-in kinds: `GROUP/KIND.rs` says all about one, and `GROUP/mod.rs` lists a group's.

mod admissionregistration;
mod apiextensions;
pub mod apps;
mod authentication;
mod authorization;
pub mod autoscaling;
pub mod batch;
pub mod certificates;
#[cfg(test)]
pub(crate) mod check;
mod coordination;
pub mod core;
mod discovery;
mod events;
mod metrics;
pub mod networking;
mod node;
mod policy;
mod rbac;
pub mod scheduling;
pub mod storage;
#[cfg(test)]
mod tests;

pub(crate) use apiextensions::custom_resource_definition;

use crate::kind::{Kind, Set};
use std::sync::{Arc, OnceLock};

/// Every built-in kind.
pub fn builtin() -> &'static Set {
    static BUILTIN: OnceLock<Set> = OnceLock::new();
    BUILTIN.get_or_init(|| {
        let groups = [
            core::kinds(),
            admissionregistration::kinds(),
            apps::kinds(),
            apiextensions::kinds(),
            authentication::kinds(),
            authorization::kinds(),
            autoscaling::kinds(),
            batch::kinds(),
            certificates::kinds(),
            coordination::kinds(),
            discovery::kinds(),
            events::kinds(),
            metrics::kinds(),
            networking::kinds(),
            node::kinds(),
            policy::kinds(),
            rbac::kinds(),
            scheduling::kinds(),
            storage::kinds(),
        ];
        Set::new(groups.into_iter().flatten().map(Arc::new), 0)
    })
}

/// A built-in kind whose objects are in the store: for what the server itself reads and writes. What clients ask for is found in the
/// server's own set ([`crate::kind::Kinds`]).
pub fn by_resource(group: &str, version: &str, plural: &str) -> Option<&'static Arc<Kind>> {
    builtin().find(group, version, plural).filter(|kind| kind.is_stored())
}
