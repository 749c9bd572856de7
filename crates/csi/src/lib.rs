//! Container Storage Interface: client of the drivers on a node, and of the sockets by which they make themselves known.
//!
//! A caller hands in how to reach a socket, since only the node knows where its files are. Every call has a deadline; an error says whether
//! the driver may still be at work ([`Error::is_final`]).

mod capability;
mod client;
mod data;
mod error;
pub mod grpc;

/// Messages of the Container Storage Interface 1.x.
#[allow(unused_qualifications, clippy::all, clippy::too_many_lines)]
pub mod v1 {
    tonic::include_proto!("csi.v1");
}

/// Messages of the registration of plug-ins.
#[allow(unused_qualifications, clippy::all, clippy::too_many_lines)]
pub mod registration {
    tonic::include_proto!("pluginregistration");
}

pub use capability::{Access, Capabilities, access_mode, volume_capability};
pub use client::{Driver, Registrar};
pub use data::{DataError, FILE as DATA_FILE, MAX_FILE as MAX_DATA_FILE, VolumeData};
pub use error::Error;
pub use grpc::Stream;
