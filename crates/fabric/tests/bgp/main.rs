//! The mode bgp in network namespaces: the whole fabric of our nodes, with BIRD and FRR as their peers, and packets.
#![cfg(target_os = "linux")]

mod api;
mod bird;
mod cases;
#[path = "../daemons/mod.rs"]
mod daemons;
mod frr;
mod frr_cases;
mod world;
