//! Tests of `lab.rs` by subject.

pub mod confinement;
pub mod exec;
pub mod limits;
pub mod networks;
pub mod volumes;
pub mod windows;
