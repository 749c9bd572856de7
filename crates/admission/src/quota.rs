//! ResourceQuota: what objects use, what quotas allow, and reservations (apiserver/pkg/admission/plugin/resourcequota, pkg/quota/v1).
//!
//! The quota controller uses [`total`] for `status.used` and [`may_free`] to learn when to count again; admission uses [`Reservations`].

mod check;
mod reserve;
mod scopes;
mod total;
mod usage;

pub use check::check;
pub use reserve::{Quotas, Reservations, UpdateError};
pub use scopes::matches_scopes;
pub use total::{Objects, may_free, total};
pub use usage::{Evaluator, count_name, is_countable, is_ignored, usage};

#[cfg(test)]
mod tests;
