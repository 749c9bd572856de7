//! A CRI v1 runtime for simulated hosts.

pub mod images;
mod state;
