//! The embedded Kubernetes API server.

mod object;
mod store;
