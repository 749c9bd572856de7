//! Device plug-ins of a node, and the API by which programs of the node ask which pod has which device.
//!
//! A caller hands in how to reach a socket, since only the node knows where its files are. Every call has a deadline.

mod client;

/// Messages between device plug-ins and the node agent.
#[allow(unused_qualifications, clippy::all, clippy::too_many_lines)]
pub mod v1beta1 {
    tonic::include_proto!("v1beta1");
}

/// Messages of the PodResources API.
#[allow(unused_qualifications, clippy::all, clippy::too_many_lines)]
pub mod pod_resources {
    tonic::include_proto!("v1");
}

pub use client::{Devices, Plugin};
/// A message of a plug-in, to be read from what a checkpoint keeps of it.
pub use prost::Message;

/// The version of the protocol that the node agent speaks.
pub const VERSION: &str = "v1beta1";
/// The health of a device that can be used; every other text means that it cannot.
pub const HEALTHY: &str = "Healthy";
