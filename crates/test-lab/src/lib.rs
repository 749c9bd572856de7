//! What tests of several crates need, and nothing that only one of them needs. Only dev-dependencies name this crate.
//!
//! | item | what it gives |
//! | --- | --- |
//! | [`until`], [`until_async`] | waiting for a cause, with a failure that says what was awaited and what was seen last |
//! | [`in_time`] | the same for a future |
//! | [`net`] (Linux) | links between namespaces, a LAN, small servers and clients |
//! | [`api`] (feature `api`) | fake API servers for clients of crate `kube` |
//! | [`csi`] (feature `csi`) | a CSI driver that records calls and fails on demand |
//! | [`device_plugin`] (feature `device-plugin`) | a device plug-in that records calls |
//! | [`ovn`] (Linux, feature `ovn`) | OVN's central programs, and hosts with Open vSwitch |
//! | [`server`] (feature `server`) | the keys and the configuration of an embedded API server |

#[cfg(feature = "api")]
pub mod api;
#[cfg(all(unix, feature = "csi"))]
pub mod csi;
#[cfg(all(unix, feature = "device-plugin"))]
pub mod device_plugin;
#[cfg(target_os = "linux")]
pub mod net;
#[cfg(all(target_os = "linux", feature = "ovn"))]
pub mod ovn;
#[cfg(feature = "server")]
pub mod server;
mod wait;

pub use wait::{Found, LIMIT, in_time, same, until, until_async};
