//! Node agents without a kernel under them, thousands in one process, for runs at scale.
//!
//! Each hollow node is the real agent (crate `kubelet`): its pod machine, its writers of statuses, its lease, its watches. In the places of
//! what a kernel gives stand a container runtime that keeps its containers in memory ([`Runtime`]), and a network that is an address out of
//! the node's pod CIDR. The node has a directory of its own, in which the agent writes volumes as always.
//! Tasks: those of each agent, and one per node that hands its pod CIDR to the runtime. All nodes share a pool of HTTP/2 connections
//! ([`Pool`]), over which each acts as itself.
//! Not there: processes, packets, logs, exec, a server on :10250, probes other than those of commands. What a hollow pod's containers would
//! do is not done: they run until they are stopped.

mod plan;
mod pool;
mod run;
mod runtime;

pub use plan::{IDENTITY, MOST, NODES, NodePlan, PODS, names, nodes, user};
pub use pool::{Pool, PoolError};
pub use run::{Config, HollowError, run};
pub use runtime::Runtime;
