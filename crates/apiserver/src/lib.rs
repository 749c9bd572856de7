//! The embedded Kubernetes API server: upstream's API, errors and semantics for the kinds a cluster on one machine needs, over a durable
//! store in one file.
//!
//! A request passes authentication ([`authn`]), authorization ([`authz`]), admission, the kind's strategy ([`registry`]), validation, and
//! the [`store`]; a watch reads the store's event window. Objects are plain JSON values; a [`kind::Kind`] says all that is
//! special about the objects of one kind, and a server's set of kinds says what is served.
//!
//! Two things are not stored objects: what leads to a node (logs, exec, proxies: `connect`), and what nodes and pods use (`metrics`, read
//! from the kubelets when somebody asks).
//!
//! Not here: controllers, the scheduler, protobuf answers.

mod admission;
mod alloc;
mod audit;
mod authn;
mod authz;
mod backends;
mod bootstrap;
mod connect;
mod fields;
mod health;
mod http;
mod metrics;
mod object;
mod outgoing;
mod protobuf;
mod registry;
mod scale;
mod selectors;
mod server;
mod start;
mod status;
mod store;
mod subresources;
mod type_check;
mod watch;

// Pure functions over JSON values: what is served, and what its objects look like.
mod defaults;
pub mod kind;
pub mod kinds;
mod names;
mod patch;
mod schema;
mod table;
mod validation;

pub use self::alloc::ranges::{RangesError, ServiceRanges};
pub use self::audit::{AuditConfig, AuditLog, AuditWebhook, write_panic};
pub use self::connect::kubelet::NodeNetworks;
pub use self::http::respond::Body;
pub use ::audit::{Batch, LogConfig, Mode as AuditMode, Policy as AuditPolicy, Post, Throttle, Truncate, WebhookConfig};
pub use listen::Limits;
pub use start::{Config, Identity, InProcess, Server, StartError, start};
pub use store::{OpenError, YOUNG as WATCH_HISTORY};
