//! Host Compute Network: the JSON documents, error codes, the HostNetwork port and a typed client over it.
//!
//! Layers, from the wire up: [`document`] (what HNS reads and writes), [`port`] (the call surface of
//! computenetwork.dll: JSON in, JSON out, synchronous), [`remote`] (that surface over a socket),
//! `windows` (that surface by the real DLL), [`bounded`] (the surface with a time limit), [`blocking`] and
//! [`client`] (typed calls over the surface) and [`watch`] (whether the service answers, and what changed). What every service at the other side
//! must do is the crate `hcn-conformance`.

#[macro_use]
mod macros;

pub mod blocking;
pub mod bounded;
pub mod client;
pub mod document;
pub mod error;
pub mod features;
pub mod guid;
#[cfg(any(windows, test))]
mod handles;
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
