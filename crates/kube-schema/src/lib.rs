//! Schemas of Kubernetes objects as one tree, and what follows from them: server-side apply and strategic merge patches.
//!
//! [`schema`] is the tree. It is built from the table of upstream's Go types ([`facts`]) or from a custom resource definition
//! ([`openapi`]). [`manager`] keeps `metadata.managedFields` and applies configurations; [`strategic`] applies strategic merge patches.
//! All functions are pure: the caller gives the time.

pub mod conflict;
pub mod facts;
pub mod managed;
pub mod manager;
pub mod openapi;
pub mod path;
pub mod scale;
pub mod schema;
pub mod set;
pub mod strategic;
pub mod typed;
pub mod value;

mod last_applied;
mod update;

/// Most levels of an object or a set of fields: what recursion goes through.
pub(crate) const DEEPEST: usize = 128;
