//! Links and their bounds, addresses, routes, rules, neighbours and forwarding entries of one network namespace.
//!
//! An [`Rtnl`] acts on the namespace in which it was opened, whatever namespace its user is in
//! later. Calls are synchronous: the kernel answers within the call.

mod address;
mod link;
mod neighbour;
mod rate;
mod route;
pub mod socket;
pub mod wire;

use std::io;
use std::sync::{Mutex, PoisonError};

use nix::sys::socket::SockProtocol;

pub use link::{BridgePort, Link, LinkChange, LinkStats, Veth, Vxlan};
pub use neighbour::{FdbEntry, Neighbour};
pub use rate::Rate;
pub use route::{Route, RouteKind, Rule};

use crate::ns::NetNs;
use socket::Socket;
use wire::Writer;

/// Why an exchange with the kernel failed.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The socket could not be had.
    #[error("{what} a netlink socket")]
    Socket {
        /// The step that failed.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The request could not be sent or its answer not be read.
    #[error("{operation}: no exchange with the kernel")]
    Exchange {
        /// What was asked, with its object.
        operation: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The kernel refused.
    #[error("{operation}{}", .detail.as_ref().map(|d| format!(" (kernel: {d})")).unwrap_or_default())]
    Refused {
        /// What was asked, with its object.
        operation: String,
        /// The kernel's own message (extended acknowledgement), when it has one.
        detail: Option<String>,
        source: io::Error,
    },
}

impl NetlinkError {
    /// The kernel refused `operation` with `errno`.
    pub fn refused(operation: &str, errno: i32, detail: Option<String>) -> Self {
        Self::Refused { operation: operation.to_owned(), detail, source: io::Error::from_raw_os_error(errno) }
    }

    /// The system's error number, when there is one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Socket { source, .. } | Self::Exchange { source, .. } | Self::Refused { source, .. } => source.raw_os_error(),
        }
    }

    /// The object is there already.
    pub fn is_exists(&self) -> bool {
        self.errno() == Some(libc::EEXIST)
    }

    /// The object (link, address, route, neighbour, namespace) is not there.
    pub fn is_not_found(&self) -> bool {
        matches!(self.errno(), Some(libc::ENODEV | libc::ENOENT | libc::ESRCH | libc::EADDRNOTAVAIL))
    }
}

impl From<NetlinkError> for io::Error {
    fn from(e: NetlinkError) -> Self {
        let kind = e.errno().map_or(io::ErrorKind::Other, |n| io::Error::from_raw_os_error(n).kind());
        io::Error::new(kind, e)
    }
}

/// Result of a netlink call.
pub type Result<T> = std::result::Result<T, NetlinkError>;

/// rtnetlink of one network namespace.
#[derive(Debug)]
pub struct Rtnl {
    socket: Mutex<Socket>,
}

const ACK: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
const CREATE: u16 = ACK | (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
const REPLACE: u16 = ACK | (libc::NLM_F_CREATE | libc::NLM_F_REPLACE) as u16;
const APPEND: u16 = ACK | (libc::NLM_F_CREATE | libc::NLM_F_APPEND) as u16;
const DUMP: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;

impl Rtnl {
    /// Acts on the current namespace of the calling thread.
    pub fn open() -> Result<Self> {
        Ok(Self { socket: Mutex::new(Socket::open(SockProtocol::NetlinkRoute)?) })
    }

    /// Acts on `ns`.
    pub fn open_in(ns: &NetNs) -> Result<Self> {
        ns.run(Self::open).map_err(|source| NetlinkError::Socket { what: "enter the namespace for", source })?
    }

    fn request(&self, operation: &str, kind: u16, flags: u16, fixed: &[u8], body: impl FnOnce(&mut Writer)) -> Result<Vec<Vec<u8>>> {
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        socket.request(operation, |w, seq| w.message(kind, flags, seq, fixed, body))
    }

    fn change(&self, operation: &str, kind: u16, flags: u16, fixed: &[u8], body: impl FnOnce(&mut Writer)) -> Result<()> {
        self.request(operation, kind, flags, fixed, body).map(drop)
    }

    fn dump<T>(&self, operation: &str, kind: u16, fixed: &[u8], read: impl Fn(&[u8]) -> Option<T>) -> Result<Vec<T>> {
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        socket.dump(operation, |w, seq| w.message(kind, DUMP, seq, fixed, |_| {}), |rows, _, payload| rows.extend(read(payload)))
    }
}

/// The address bytes of an IP address, 4 or 16.
pub fn ip_bytes(ip: std::net::IpAddr) -> Vec<u8> {
    match ip {
        std::net::IpAddr::V4(v4) => v4.octets().to_vec(),
        std::net::IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn read_ip(bytes: &[u8]) -> Option<std::net::IpAddr> {
    match bytes.len() {
        4 => Some(<[u8; 4]>::try_from(bytes).ok()?.into()),
        16 => Some(<[u8; 16]>::try_from(bytes).ok()?.into()),
        _ => None,
    }
}

fn family(ip: std::net::IpAddr) -> u8 {
    if ip.is_ipv4() { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 }
}
