//! Carrying out what a mode decided, part by part. Each part compares with the host first and changes what differs.

pub mod cni;
#[cfg(target_os = "linux")]
pub mod forwarding;
pub mod hns;
pub mod routes;
