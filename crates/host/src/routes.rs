//! Routes of the host, marked so that we only ever touch our own.

use std::io;
use std::net::IpAddr;

use ipnet::IpNet;

#[cfg(target_os = "linux")]
#[path = "routes/linux.rs"]
mod imp;
#[cfg(windows)]
#[path = "routes/windows.rs"]
mod imp;

#[cfg(target_os = "linux")]
pub use imp::LinuxRoutes;
#[cfg(windows)]
pub use imp::WindowsRoutes;
#[cfg(windows)]
pub(crate) use imp::{address_in, address_out, check};

/// Our mark on Linux: the routing protocol number of every route we add.
pub const OUR_PROTOCOL: u8 = 0x4d;

/// One route of the main table.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostRoute {
    /// Destination.
    pub dst: IpNet,
    /// Next hop; None for a directly connected destination.
    pub via: Option<IpAddr>,
    /// Index of the outgoing interface; 0 lets Linux find it from the next hop.
    pub oif: u32,
    /// The next hop is on that interface even if no address says so. On Linux alone.
    pub on_link: bool,
    /// Priority; 0 is the default of the system.
    pub metric: u32,
    /// Whether we added it. `add` always marks; `list` reports.
    pub ours: bool,
}

/// A route operation that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation}")]
pub struct RoutesError {
    /// What was tried, with the route.
    pub operation: String,
    #[source]
    pub source: io::Error,
}

/// The host's routing table.
pub trait Routes: Send + Sync {
    /// Unicast routes of the main table.
    fn list(&self) -> Result<Vec<HostRoute>, RoutesError>;
    /// Adds a route with our mark; replacing an equal one of ours is fine.
    fn add(&self, route: &HostRoute) -> Result<(), RoutesError>;
    /// Removes a route; missing is fine. Routes without our mark are refused.
    fn delete(&self, route: &HostRoute) -> Result<(), RoutesError>;
    /// Makes what was added and deleted since `list` take effect, in a table that takes changes together; others did so at once.
    fn commit(&self) -> Result<(), RoutesError> {
        Ok(())
    }
    /// Adds a route of someone else again, without our mark; that it is there is fine.
    fn restore(&self, route: &HostRoute) -> Result<(), RoutesError>;
    /// Index of the interface called `name`.
    fn interface(&self, name: &str) -> Result<Option<u32>, RoutesError>;
    /// Largest packet of the interface with that index, in bytes; none where there is no such interface.
    fn mtu(&self, interface: u32) -> Result<Option<u32>, RoutesError>;
}

fn failed(operation: &str, route: Option<&HostRoute>) -> impl FnOnce(io::Error) -> RoutesError {
    let operation = match route {
        Some(r) => format!("{operation} route to {} via {:?} on interface {}", r.dst, r.via, r.oif),
        None => operation.to_owned(),
    };
    move |source| RoutesError { operation, source }
}

fn refuse_foreign(route: &HostRoute) -> Result<(), RoutesError> {
    if route.ours {
        return Ok(());
    }
    let why = io::Error::new(io::ErrorKind::PermissionDenied, "it is not marked as ours");
    Err(failed("delete", Some(route))(why))
}
