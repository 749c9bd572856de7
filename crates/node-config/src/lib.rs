//! The configuration of a node as types.

pub mod addresses;
pub mod node_spec;
