//! Frames on a wire, and pings.
#![allow(dead_code, reason = "each suite uses its part")]

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use linux_sys::ns::NetNs;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, recv, sendto, setsockopt, socket, sockopt::ReceiveTimeout,
};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_millis(300);

fn open(ns: &NetNs, family: AddressFamily, protocol: SockProtocol) -> OwnedFd {
    let fd = ns.run(move || socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)).unwrap().unwrap();
    setsockopt(&fd, ReceiveTimeout, &nix::sys::time::TimeVal::new(0, 50_000)).unwrap();
    fd
}

/// Every frame that crosses a namespace.
pub struct Wire(OwnedFd);

/// A frame of IPv4.
#[derive(Clone, Debug)]
pub struct Frame {
    pub from: [u8; 6],
    pub to: [u8; 6],
    pub source: Ipv4Addr,
    pub destination: Ipv4Addr,
    pub protocol: u8,
    /// What is behind the IPv4 header.
    pub rest: Vec<u8>,
}

impl Frame {
    fn read(bytes: &[u8]) -> Option<Self> {
        let (head, packet) = bytes.split_at_checked(14)?;
        if head[12..14] != [8, 0] || packet.len() < 20 {
            return None;
        }
        let address = |at: usize| Ipv4Addr::new(packet[at], packet[at + 1], packet[at + 2], packet[at + 3]);
        Some(Self {
            to: head[..6].try_into().ok()?,
            from: head[6..12].try_into().ok()?,
            source: address(12),
            destination: address(16),
            protocol: packet[9],
            rest: packet[20..].to_vec(),
        })
    }

    /// The segment and the frame in VXLAN.
    pub fn inner(&self) -> Option<(u32, Frame)> {
        const UDP: u8 = 17;
        let port = u16::from_be_bytes([*self.rest.get(2)?, *self.rest.get(3)?]);
        if self.protocol != UDP || port != 4789 {
            return None;
        }
        let header = self.rest.get(8..16)?;
        let segment = u32::from_be_bytes([0, header[4], header[5], header[6]]);
        Some((segment, Self::read(self.rest.get(16..)?)?))
    }
}

impl Wire {
    pub fn tap(ns: &NetNs) -> Self {
        Self(open(ns, AddressFamily::Packet, SockProtocol::EthAll))
    }

    /// Every frame that has come since the last look.
    pub fn frames(&self) -> Vec<Frame> {
        let mut buffer = [0; 2048];
        let mut frames = Vec::new();
        while let Ok(length) = recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
            frames.extend(Frame::read(&buffer[..length]));
        }
        frames
    }
}

/// Sends an empty packet of that protocol, or finds that the own host's rules do not let it out.
pub fn send(ns: &NetNs, to: &str, protocol: u8) {
    let to: Ipv4Addr = to.parse().unwrap();
    let fd = open(ns, AddressFamily::Inet, SockProtocol::Raw);
    // The kernel fills in the rest of the header.
    let mut packet = [0x45, 0, 0, 20, 0, 0, 0, 0, 64, protocol, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    packet[16..].copy_from_slice(&to.octets());
    let sent = sendto(fd.as_raw_fd(), &packet, &SockaddrIn::from(SocketAddrV4::new(to, 0)), MsgFlags::empty());
    assert!(matches!(sent, Ok(_) | Err(nix::errno::Errno::EPERM)), "{sent:?}");
}

/// Whether an address answers a ping.
pub fn answers_ping(ns: &NetNs, address: &str) -> bool {
    let Ok(IpAddr::V4(address)) = address.parse() else { panic!("{address} is not of IPv4") };
    let fd = open(ns, AddressFamily::Inet, SockProtocol::Icmp);
    // Echo request, number 0x4d75; the sum of all words is 0xffff.
    let request = [8, 0, 0xaa, 0x8a, 0x4d, 0x75, 0, 0];
    if sendto(fd.as_raw_fd(), &request, &SockaddrIn::from(SocketAddrV4::new(address, 0)), MsgFlags::empty()).is_err() {
        return false;
    }
    let until = Instant::now() + PATIENCE;
    let mut buffer = [0; 256];
    while Instant::now() < until {
        if let Ok(length) = recv(fd.as_raw_fd(), &mut buffer, MsgFlags::empty())
            && buffer[12..16] == address.octets()
            && length >= 28
            && buffer[20] == 0
        {
            return true;
        }
    }
    false
}
