//! Connections that the kernel remembers (conntrack): listed, and forgotten.
//!
//! A UDP client that goes on sending keeps its first translation alive for ever; whoever changes translations of UDP makes the
//! kernel forget those that no longer hold.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};

use nix::sys::socket::SockProtocol;

use crate::netlink::NetlinkError;
use crate::netlink::socket::Socket;
use crate::netlink::wire::{Writer, attr};
use crate::ns::NetNs;

/// NFNL_SUBSYS_CTNETLINK, in the high byte of a message's type.
const SUBSYSTEM: u16 = 1 << 8;
const GET: u16 = SUBSYSTEM | 1;
const DELETE: u16 = SUBSYSTEM | 2;
const DUMP: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
const ASK: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
/// `struct nfgenmsg` of any IP version; what names a connection needs its own.
const HEADER: [u8; 4] = [libc::AF_UNSPEC as u8, 0, 0, 0];
/// CTA_TUPLE_ORIG and CTA_TUPLE_REPLY.
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;

/// Number of UDP.
pub const UDP: u8 = 17;
/// Number of TCP.
pub const TCP: u8 = 6;

/// A connection. The reply's source differs from the original's destination where that was translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Number of the transport protocol.
    pub protocol: u8,
    /// The client, which began it.
    pub source: SocketAddr,
    /// The destination, as the client sees it.
    pub destination: SocketAddr,
    /// The source of answers, before translation back.
    pub reply_source: SocketAddr,
    /// The destination of answers, as the answering side sees it.
    pub reply_destination: SocketAddr,
}

/// Conntrack of one network namespace.
#[derive(Debug)]
pub struct Conntrack {
    socket: Mutex<Socket>,
}

impl Conntrack {
    /// Acts on the current namespace of the calling thread.
    ///
    /// # Errors
    /// When the kernel has no netfilter netlink.
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { socket: Mutex::new(Socket::open(SockProtocol::NetlinkNetFilter)?) })
    }

    /// Acts on `ns`.
    ///
    /// # Errors
    /// As [`Self::open`], or when the namespace cannot be entered.
    pub fn open_in(ns: &NetNs) -> Result<Self, NetlinkError> {
        ns.run(Self::open).map_err(|source| NetlinkError::Socket { what: "enter the namespace for", source })?
    }

    /// Connections of a protocol that has ports.
    ///
    /// # Errors
    /// When the kernel has no conntrack or forbids it.
    pub fn flows(&self, protocol: u8) -> Result<Vec<Flow>, NetlinkError> {
        let request = |w: &mut Writer, seq| w.message(GET, DUMP, seq, &HEADER, |_| {});
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        socket.dump("list connections", request, |rows, _, payload| rows.extend(read(payload).filter(|flow| flow.protocol == protocol)))
    }

    /// Forgets a connection; that it is gone already is fine. Its next packet is translated anew.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn forget(&self, flow: &Flow) -> Result<(), NetlinkError> {
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let family = if flow.source.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let header = [family as u8, 0, 0, 0];
        match socket.request("forget a connection", |w, seq| w.message(DELETE, ASK, seq, &header, |w| write(w, flow))) {
            Err(error) if error.errno() == Some(libc::ENOENT) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Forgets every connection of `protocol` that `stale` selects; returns their number.
    ///
    /// # Errors
    /// As [`Self::flows`] and [`Self::forget`].
    pub fn forget_where(&self, protocol: u8, stale: impl Fn(&Flow) -> bool) -> Result<usize, NetlinkError> {
        let flows = self.flows(protocol)?;
        let mut count = 0;
        for flow in flows.iter().filter(|flow| stale(flow)) {
            self.forget(flow)?;
            count += 1;
        }
        Ok(count)
    }
}

/// CTA_TUPLE_IP (1): source and destination in IPv4 (1, 2) or IPv6 (3, 4); CTA_TUPLE_PROTO (2): number (1), source port (2),
/// destination port (3).
fn write(w: &mut Writer, flow: &Flow) {
    w.nest(ORIGINAL, |w| {
        w.nest(1, |w| {
            for (kind, end) in [(1, flow.source), (2, flow.destination)] {
                match end.ip() {
                    IpAddr::V4(ip) => w.attr(kind, &ip.octets()),
                    IpAddr::V6(ip) => w.attr(kind + 2, &ip.octets()),
                }
            }
        });
        w.nest(2, |w| {
            w.attr_u8(1, flow.protocol);
            w.attr(2, &flow.source.port().to_be_bytes());
            w.attr(3, &flow.destination.port().to_be_bytes());
        });
    });
}

fn read(payload: &[u8]) -> Option<Flow> {
    let body = payload.get(4..)?;
    let (protocol, source, destination) = tuple(attr(body, ORIGINAL)?)?;
    let (_, reply_source, reply_destination) = tuple(attr(body, REPLY)?)?;
    Some(Flow { protocol, source, destination, reply_source, reply_destination })
}

fn tuple(body: &[u8]) -> Option<(u8, SocketAddr, SocketAddr)> {
    let (ip, proto) = (attr(body, 1)?, attr(body, 2)?);
    let v4 = |kind| Some(IpAddr::from(<[u8; 4]>::try_from(attr(ip, kind)?.get(..4)?).ok()?));
    let v6 = |kind| Some(IpAddr::from(<[u8; 16]>::try_from(attr(ip, kind + 2)?.get(..16)?).ok()?));
    let address = |kind| v4(kind).or_else(|| v6(kind));
    let port = |kind| Some(u16::from_be_bytes(attr(proto, kind)?.get(..2)?.try_into().ok()?));
    let end = |ip_kind, port_kind| Some(SocketAddr::from((address(ip_kind)?, port(port_kind)?)));
    Some((*attr(proto, 1)?.first()?, end(1, 2)?, end(2, 3)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_messages_read_back() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        for (client, service) in [("192.168.1.3:4000", "10.96.0.10:53"), ("[fd00::3]:4000", "[fd00:96::a]:53")] {
            let (source, destination) = (at(client), at(service));
            let flow = Flow { protocol: UDP, source, destination, reply_source: destination, reply_destination: source };
            let mut w = Writer::default();
            write(&mut w, &flow);
            let original = attr(w.as_bytes(), ORIGINAL).unwrap();
            assert_eq!(tuple(original), Some((UDP, flow.source, flow.destination)));
        }
    }
}
