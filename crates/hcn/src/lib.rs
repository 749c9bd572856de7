//! Host Compute Network: the JSON documents, error codes, the HostNetwork port and a client of it.
//!
//! Layers, from the wire up: [`document`] (what HNS reads and writes), [`port`] (the call surface of computenetwork.dll: JSON in, JSON
//! out, synchronous), [`remote`] (that surface over a socket), `windows` (that surface by the real DLL), [`blocking`] (typed calls over
//! the surface), [`client`] (the one way in which a process calls the service: bounded pool, deadline, cancellation, counts; async and
//! blocking) and [`watch`] (whether the service answers, and what changed). The crate `hcn-conformance` tests any service.

#[macro_use]
mod macros;

pub mod blocking;
pub mod client;
pub mod document;
pub mod error;
pub mod features;
pub mod guid;
#[cfg(any(windows, test))]
mod handles;
mod pool;
pub mod port;
pub mod remote;
pub mod table;
pub mod watch;
#[cfg(windows)]
pub mod windows;

pub use client::HcnClient;
pub use document::{
    Direction, Dns, EndpointFlags, EndpointPolicy, EndpointState, HostComputeEndpoint, HostComputeLoadBalancer, HostComputeNamespace,
    HostComputeNetwork, HostComputeRoute, IpConfiguration, Ipam, LoadBalancerFlags, LoadBalancerPortMapping, ModifyRequest, NamespaceResource,
    NamespaceType, NatFlags, NetworkFlags, NetworkPolicy, NetworkType, OutBoundNat, PortMappingFlags, Protocol, Query, RequestType, Route,
    SchemaVersion, SdnRoute, Subnet,
};
pub use error::{HResult, HcnError};
pub use features::{HnsVersion, SupportedFeatures};
pub use guid::{Guid, owned_id};
pub use port::{Args, Event, Function, Handle, HostNetwork, Kind, RawError, Reply, Subscription};
