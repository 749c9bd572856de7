//! The Container Network Interface: the specification's documents, the caller's side ([`runtime`]),
//! `host-local` address management, and the plug-ins `win-bridge`, `win-overlay`, `wincni`, `azure-vnet`, `flannel`, `bridge`, `ptp`, `loopback`,
//! `portmap`, `bandwidth`, `tuning` and `ovn_cni`.
//!
//! Plug-ins are entered by name through [`plugin_main`]; the same binary answers for all of them.
//! Supports specification 0.1.0 to 1.1.0. Source of behaviour: containernetworking/cni `SPEC.md`, `libcni`
//! and containernetworking/plugins.

#[cfg(target_os = "linux")]
pub mod bandwidth;
#[cfg(target_os = "linux")]
pub mod bridge;
pub mod flannel;
mod fold;
pub mod ipam;
#[cfg(target_os = "linux")]
mod links;
#[cfg(target_os = "linux")]
pub mod loopback;
#[cfg(target_os = "linux")]
pub mod ovn;
pub mod plugin;
#[cfg(target_os = "linux")]
pub mod portmap;
#[cfg(target_os = "linux")]
pub mod ptp;
pub mod runtime;
pub mod spec;
mod steps;
#[cfg(target_os = "linux")]
pub mod tuning;
#[cfg(target_os = "linux")]
mod upstream_rules;
pub mod win_bridge;

pub use plugin::{PLUGINS, is_own_plugin, plugin_main, program_main};
