//! Upstream's validation (pkg/apis/*/validation), with its field paths and words: what several kinds share. Objects are valid by type and
//! defaulted before they come here.

pub mod addresses;
pub mod container;
pub mod field;
#[cfg(test)]
mod kinds_tests;
pub mod meta;
pub mod names;
pub mod pod;
pub mod pod_update;
pub mod scheduling;
pub mod signers;
pub mod storage;
#[cfg(test)]
mod tests;
pub mod volume;
pub mod warnings;
mod windows;
pub mod workload;

pub use kube_rules::{ErrorKind, FieldError};
