//! The node agent: keeps the pods that the API binds to one node running there, and tells the
//! API how they and the node are.
mod config;
mod cri_config;
mod env;
mod images;
mod pod;
mod runtime;
mod services;
mod sources;
mod volumes;
pub use config::{Capacity, Config, Resolver, ServerConfig};
