//! The configuration of a node as types: upstream's KubeletConfiguration and KubeProxyConfiguration, NodeConfiguration for what these have
//! no place for, and the options of `mullion up` that nodes are made from.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`document`] | reading and writing documents: defaults, zero values, ignored and unknown members |
//! | [`kubelet`] | KubeletConfiguration, `kubelet.config.k8s.io/v1beta1` |
//! | [`kube_proxy`] | KubeProxyConfiguration, `kubeproxy.config.k8s.io/v1alpha1`, and kube-proxy's flags |
//! | [`node`] | NodeConfiguration, `mullion.io/v1alpha1`, and the file of `mullion node --config` |
//! | [`node_spec`] | `NAME:OS[:BUILD][:key=value,…]` of `mullion up --nodes` |
//! | [`addresses`] | `--cluster-cidr` and the like of `mullion up` |
//! | [`port_range`] | `--service-node-port-range` of `mullion up` |
//! | [`duration`] | durations in Go's text form |
//!
//! A flag counts more than the file, the file more than the default. kube-proxy is the exception, as upstream: beside `--config` most flags
//! do not count.

pub mod addresses;
pub mod document;
pub mod duration;
mod flags;
pub mod kube_proxy;
pub mod kubelet;
pub mod node;
pub mod node_spec;
pub mod port_range;
#[cfg(test)]
mod tests;
mod values;

pub use document::{ConfigError, Document, Parsed};
pub use duration::GoDuration;
pub use kube_proxy::KubeProxyConfiguration;
pub use kubelet::KubeletConfiguration;
pub use node::{NodeConfig, NodeConfiguration};
pub use port_range::PortRange;
pub use values::{Families, ListenAddress, NetworkList, NetworkName, OfFamily, ValueError};
