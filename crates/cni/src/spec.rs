//! The documents of the CNI specification, in one internal form and every released version's shape.

mod config;
mod error;
mod result;
mod version;

pub use config::{Dns, NetworkList, PluginConfig, PortMapping, RuntimeConfig, RuntimeDns, valid_id};
pub use error::{CniError, code};
pub use result::{AddResult, Interface, IpConfig, Route};
pub use version::SpecVersion;
