//! Tests of `lab.rs` by subject.

pub mod exec;
