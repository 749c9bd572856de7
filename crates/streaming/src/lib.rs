//! The wires of `exec`, `attach` and `port-forward`.
pub mod spdy;
