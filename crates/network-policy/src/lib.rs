//! NetworkPolicies and ClusterNetworkPolicies: which packets the pods of a node may get and send.
//!
//! Keeps true: each endpoint of a local pod has exactly the rules that follow from the policies which select it; an endpoint that none
//! selects has none of ours.
//! Flow: Pods, Namespaces, Nodes and policies (compact [`rows`]) → [`World`] (pure, incremental) → a [`Profile`] for each endpoint and
//! direction, and [`Group`](world::Group)s of addresses that profiles name → a backend: `nftables` or [`hns`].
//! Guarantees: a change of one pod costs work that follows from the groups and endpoints which it is part of, not from the number of
//! pods; connections that were let in go on; other programs' rules stay as they are; a restart changes nothing that is right.
//! Does not: cut connections that were made before a policy forbade them; filter between a pod and its own node (upstream's rule).
//! Upstream: `staging/src/k8s.io/api/networking/v1/types.go`, `test/e2e/network/netpol`, and kubernetes-sigs/network-policy-api.

pub mod evaluate;
#[cfg(test)]
mod examples;
pub mod hns;
pub mod metrics;
#[cfg(test)]
mod model;
pub mod net;
#[cfg(target_os = "linux")]
pub mod nftables;
pub mod policy;
pub mod profile;
pub mod rows;
mod run;
pub mod status_server;
pub mod world;

pub use evaluate::{Decision, Packet, Verdict};
pub use policy::{Action, Direction, Policy, PolicyId, Protocol};
pub use profile::Profile;
pub use run::{Backend, Config, Gate, Gates, Status, find_cluster_policies, gate, run};
pub use world::World;
