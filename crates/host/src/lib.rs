//! What differs between operating systems, behind small ports: files of a node's root by typed
//! pod paths ([`HostRoot`]), facts about the machine ([`HostFacts`]) and its routes ([`Routes`]).

mod facts;
mod root;
mod routes;

pub use facts::HostFacts;
pub use pod_rules::{NodeOs, PathError, PodPath};
pub use root::{FileKind, HostError, HostRoot, Resolved, Space, VolumeFile};
#[cfg(target_os = "linux")]
pub use routes::LinuxRoutes;
#[cfg(windows)]
pub use routes::WindowsRoutes;
pub use routes::{HostRoute, OUR_PROTOCOL, Routes, RoutesError};
