//! The service proxy: Services and EndpointSlices become one backend-neutral [`Table`], and a backend keeps the host
//! equal to it: load balancers of the Host Networking Service on Windows, nftables data maps on Linux, or this process
//! itself on any system.
//!
//! Flow: watches feed [`Inputs`], which keep the rows and remember what changed; [`vips`] derives a Service's VIPs (pure);
//! [`Table`] merges them and returns the differences; the [`backend`] plans against its mirror of the host (pure) and applies.
//! Guarantees: a change touches only its Service; failures are retried with back-off and never counted as done;
//! a periodic full pass compares with the host itself; what is not ours is never touched; nothing is wiped at start.

pub mod backend;
mod failures;
#[cfg(all(test, target_os = "linux"))]
mod flows;
mod health_check_node_port;
pub mod hns;
mod inputs;
mod metrics;
#[cfg(all(test, target_os = "linux"))]
mod modes;
#[cfg(target_os = "linux")]
pub mod nftables;
mod node_ports;
pub mod options;
mod rows;
mod run;
mod status_server;
mod table;
mod taint;
pub mod userspace;
mod vips;

pub use backend::{Failure, Outcome, Progress, Refusal};
pub use health_check_node_port::{HealthServers, Healthy};
pub use inputs::Inputs;
pub use metrics::Metrics;
pub use node_ports::NodePorts;
pub use rows::{EndpointRow, NodeHint, NodeRow, ServicePort, ServiceRow, SlicePort, SliceRow};
pub use run::{BackendConfig, Config, Status, run};
pub use status_server::{ListenError, StatusServer};
pub use table::{BackendAddress, Backends, Change, DesiredVips, HealthCheck, IpFamily, Kind, Protocol, Table, Unserved, Vip, VipAddress, VipKey};
pub use taint::{StartupTaint, TaintError};
pub use vips::{NodePolicy, desired_vips};
