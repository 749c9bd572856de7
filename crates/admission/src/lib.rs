//! Admission plug-ins of the API server as pure rules behind small traits: Pod Security, PodResizeValidator, LimitRanger, ResourceQuota, webhooks, policies.
//!
//! A plug-in sees a request as [`Attributes`], refuses it with a [`Refusal`], and leaves warnings and audit annotations in [`Notes`]. What it
//! needs of the cluster comes through a trait of its module. Nothing here knows of HTTP or of the store.

mod amounts;
pub mod attributes;
pub mod cel;
pub mod json_patch;
pub mod limit_ranger;
pub mod matching;
pub mod names;
pub mod pod_resize;
pub mod pod_security;
pub mod policy;
pub mod quota;
pub mod refusal;
pub mod reinvocation;
#[cfg(test)]
mod test_requests;
mod value;
pub mod webhook;

pub use attributes::{Attributes, Operation, UserInfo};
pub use kube_rules::{ErrorKind, FieldError};
pub use refusal::{Notes, Refusal};
pub use reinvocation::Reinvocation;
