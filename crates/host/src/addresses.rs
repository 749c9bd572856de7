//! Addresses of one interface that are put there for a time, marked so that we only ever take away our own.

use std::io;
use std::net::IpAddr;

#[cfg(target_os = "linux")]
#[path = "addresses/linux.rs"]
mod imp;
#[cfg(windows)]
#[path = "addresses/windows.rs"]
mod imp;

#[cfg(target_os = "linux")]
pub use imp::LinuxAddresses;
#[cfg(windows)]
pub use imp::WindowsAddresses;

/// One address of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostAddress {
    pub ip: IpAddr,
    /// Whether we put it there, in this or in an earlier life.
    pub ours: bool,
}

/// An operation on addresses that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation}")]
pub struct AddressesError {
    /// What was tried, with address and interface.
    pub operation: String,
    #[source]
    pub source: io::Error,
}

/// The addresses of one interface.
pub trait Addresses: Send + Sync {
    /// Every address.
    fn list(&self) -> Result<Vec<HostAddress>, AddressesError>;
    /// Puts an address there, alone and with our mark; that the interface has it is fine.
    fn add(&self, ip: IpAddr) -> Result<(), AddressesError>;
    /// Takes away an address that we put there; missing is fine.
    fn delete(&self, ip: IpAddr) -> Result<(), AddressesError>;
}

fn failed(operation: impl Into<String>) -> impl FnOnce(io::Error) -> AddressesError {
    let operation = operation.into();
    move |source| AddressesError { operation, source }
}

fn missing(name: &str) -> AddressesError {
    failed(format!("find interface {name:?}; name one that this machine has"))(io::Error::from(io::ErrorKind::NotFound))
}
