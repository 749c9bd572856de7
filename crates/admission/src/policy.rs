//! ValidatingAdmissionPolicy and MutatingAdmissionPolicy: whom they concern, with which parameters, and what they decide
//! (apiserver/pkg/admission/plugin/policy).

mod invocation;
mod mutating;
mod type_check;
mod validating;

pub use invocation::{Cluster, Environment, Policy, policies};
pub use mutating::mutate;
pub use type_check::{type_check, types_to_check};
pub use validating::validate;

#[cfg(test)]
mod tests;
