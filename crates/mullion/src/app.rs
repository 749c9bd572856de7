//! Wiring: one function each for a node, the control plane and `up`, in the order of their start.

pub mod config;
#[cfg(target_os = "linux")]
pub mod control_plane;
pub mod fabric;
pub mod install;
pub mod join;
pub mod kube_proxy;
pub mod kubelet;
mod machine;
pub mod node;
mod notify;
pub mod ovn;
pub mod policy;
#[cfg(any(windows, test))]
mod preshutdown;
#[cfg(target_os = "linux")]
mod rest;
#[cfg(windows)]
mod service;
mod shutdown;
#[cfg(target_os = "linux")]
pub mod up;

/// Cares for the process's memory beside an agent, for ever.
pub async fn at_rest() -> std::convert::Infallible {
    #[cfg(target_os = "linux")]
    rest::run().await;
    std::future::pending().await
}
