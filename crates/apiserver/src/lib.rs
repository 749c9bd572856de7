//! The embedded Kubernetes API server: upstream's API, errors and semantics for the kinds a cluster on one machine needs, over a durable
//! store in one file.
//!
//! A request passes authentication ([`authn`]), authorization ([`authz`]), admission, the kind's strategy ([`registry`]), validation, and
//! the [`store`]; a watch reads the store's event window. Objects are plain JSON values; the kinds table says what is served.
//!
//! Two things are not stored objects: what leads to a node (logs, exec, proxies: `connect`), and what nodes and pods use (`metrics`, read
//! from the kubelets when somebody asks).
//!
//! Not here: controllers, the scheduler, custom resources, server-side apply, protobuf answers.

mod admission;
mod alloc;
mod authn;
mod authz;
mod bootstrap;
mod connect;
mod http;
mod metrics;
mod object;
mod protobuf;
mod registry;
mod selectors;
mod server;
mod status;
mod store;
mod subresources;
mod watch;

// Pure functions over JSON values: what is served, and what its objects look like.
mod defaults;
pub mod kinds;
mod patch;
mod schema;
mod table;
mod validation;

pub use self::connect::kubelet::NodeNetworks;
pub use self::http::respond::Body;
pub use listen::Limits;
pub use server::{Config, Identity, InProcess, Server, StartError, start};
pub use store::OpenError;
