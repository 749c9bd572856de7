//! The pod network on OVN: rows of OVN's northbound database and of the local Open vSwitch, kept as the cluster's objects want them.
//!
//! Flow: cluster rows and settings → [`topology`], [`pods`], [`services`], [`policies`] (pure) → [`rows::Want`]s → [`rows::plan`] (pure,
//! printable) → [`apply`]: one transaction, guarded by waits.
//! Guarantees: rows of other owners are never changed; what is ours and no longer wanted is swept; at rest nothing is written.
//! Does not do: flows and tunnels, which `ovn-northd` and `ovn-controller` make of the rows; but for those of [`helper`], of a gateway's bridge.
//! Why no mode of crate `fabric`: a mode there turns Nodes into routes and tunnels of one host, by the host's own drivers; here one program
//! for the whole cluster writes a database, and the hosts' drivers are OVN's.
//! Upstream: ovn-kubernetes' `ovn-k8s-overlay` and `ovn-k8s-watcher` of 2017, whose names of rows it keeps.

pub mod apply;
pub mod chassis;
mod cluster_rows;
pub mod encapsulation;
pub mod helper;
pub mod init;
pub mod pods;
pub mod policies;
mod policy_feed;
pub mod rows;
pub mod schema;
pub mod services;
pub mod topology;
pub mod watcher;

pub use cluster_rows::{PodRow, Protocol, ServicePort, ServiceRow, SlicePort, SliceRow};
