//! SPDY/3.1, as far as Kubernetes uses it.

pub mod frame;
mod headers;

pub use headers::{HeaderError, Headers};
