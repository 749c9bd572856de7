//! The rules in the kernel: packets with chosen addresses go through a node, and what comes out is what passed.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd as _, OwnedFd};

use linux_sys::netlink::{Route, Rtnl};
use linux_sys::ns::{NetNs, in_lab};
use linux_sys::sysctl;
use nft::{Engine, Nft};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, recv, sendto, setsockopt, socket, sockopt};
use test_lab::net;

use super::cluster::{Cluster, packets};
use super::oracle;
use crate::nftables::{Nftables, Programmed};
use crate::{Packet, Protocol};

const CLUSTERS: u64 = 40;
const PACKETS: usize = 200;

/// The node: packets come in by `in0` and leave by `out0`.
struct Way {
    from: OwnedFd,
    to: OwnedFd,
    _spaces: [NetNs; 2],
}

fn raw(ns: &NetNs, family: AddressFamily, protocol: SockProtocol) -> OwnedFd {
    ns.run(move || socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)).unwrap().unwrap()
}

impl Way {
    fn new() -> Self {
        for (name, value) in [("ipv4.ip_forward", "1"), ("ipv4.conf.all.rp_filter", "0"), ("ipv4.conf.default.rp_filter", "0")] {
            sysctl::set(&format!("net.{name}"), value).unwrap();
        }
        let node = Rtnl::open().unwrap();
        let source = net::neighbour(("in0", &["10.254.0.1/30"]), ("eth0", &["10.254.0.2/30"]));
        let sink = net::neighbour(("out0", &["10.254.1.1/30"]), ("eth0", &["10.254.1.2/30"]));
        net::route(&Rtnl::open_in(&source).unwrap(), "0.0.0.0/0", "10.254.0.1");
        node.add_route(&Route::new("0.0.0.0/0".parse().unwrap()).via("10.254.1.2".parse().unwrap())).unwrap();
        for ns in [&source, &sink, &NetNs::current().unwrap()] {
            net::settle(ns);
        }
        let to = raw(&sink, AddressFamily::Packet, SockProtocol::EthAll);
        setsockopt(&to, sockopt::RcvBuf, &(1 << 22)).unwrap();
        setsockopt(&to, sockopt::ReceiveTimeout, &nix::sys::time::TimeVal::new(5, 0)).unwrap();
        Self { from: raw(&source, AddressFamily::Inet, SockProtocol::Raw), to, _spaces: [source, sink] }
    }

    /// Sends a packet with a number that no other one of this run has.
    fn send(&self, packet: &Packet, id: u16) {
        let (IpAddr::V4(source), IpAddr::V4(destination)) = (packet.source, packet.destination) else { panic!("IPv4 alone") };
        let (protocol, port) = packet.port.map_or((1, 0), |(protocol, port)| (protocol.number(), port));
        let mut bytes = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
        bytes.extend(source.octets());
        bytes.extend(destination.octets());
        bytes[4..6].copy_from_slice(&id.to_be_bytes());
        bytes.extend(payload(packet, id, port, [source, destination]));
        let to = SockaddrIn::from(SocketAddrV4::new(destination, 0));
        sendto(self.from.as_raw_fd(), &bytes, &to, MsgFlags::empty()).unwrap();
    }

    /// The numbers of the packets that came out, up to the last one's.
    fn arrived(&self, last: u16) -> BTreeSet<u16> {
        let mut ids = BTreeSet::new();
        let mut buffer = [0; 2048];
        loop {
            let length = recv(self.to.as_raw_fd(), &mut buffer, MsgFlags::empty()).expect("the last packet arrives");
            let frame = &buffer[..length];
            if frame.len() < 34 || frame[12..14] != [8, 0] {
                continue;
            }
            let id = u16::from_be_bytes([frame[18], frame[19]]);
            if id == last {
                return ids;
            }
            ids.insert(id);
        }
    }
}

fn sum(bytes: &[u8], start: u32) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])));
    let mut sum = words.fold(start, |sum, word| sum + word);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The first packet of a connection, from a source port that follows from the number.
fn payload(packet: &Packet, id: u16, port: u16, addresses: [Ipv4Addr; 2]) -> Vec<u8> {
    let mut bytes = Vec::new();
    match packet.port {
        None => bytes.extend([8, 0, 0, 0]),
        Some(_) => bytes.extend([id.to_be_bytes(), port.to_be_bytes()].concat()),
    }
    let at = match packet.port.map(|(protocol, _)| protocol) {
        None => {
            bytes.extend([id.to_be_bytes(), [0, 1]].concat());
            2
        }
        Some(Protocol::Udp) => {
            bytes.extend([0, 8, 0, 0]);
            6
        }
        Some(Protocol::Tcp) => {
            // SYN.
            bytes.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0]);
            16
        }
        Some(Protocol::Sctp) => {
            // INIT, with tag, window, streams and number; its CRC follows.
            bytes.extend([0; 8]);
            bytes.extend([1, 0, 0, 20, 0, 0, 0, 1, 0, 0, 0xff, 0xff, 0, 1, 0, 1, 0, 0, 0, 1]);
            let crc = crc32c(&bytes).to_le_bytes();
            bytes[8..12].copy_from_slice(&crc);
            return bytes;
        }
    };
    let pseudo = packet.port.map_or(0, |(protocol, _)| {
        let [a, b] = addresses.map(u32::from);
        [a >> 16, a & 0xffff, b >> 16, b & 0xffff, u32::from(protocol.number()), bytes.len() as u32].iter().sum()
    });
    let sum = sum(&bytes, pseudo).to_be_bytes();
    bytes[at..at + 2].copy_from_slice(&sum);
    bytes
}

fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    !crc
}

#[test]
fn the_kernel_lets_pass_what_a_plain_reading_lets_pass() {
    in_lab("model::kernel::the_kernel_lets_pass_what_a_plain_reading_lets_pass", || {
        let way = Way::new();
        let (mut backend, mut before, mut id) = (Nftables::new(), Cluster::default(), 0u16);
        let mut world = before.world(None);
        for seed in 0..CLUSTERS {
            let cluster = Cluster::random(seed);
            cluster.replace(&before, &mut world);
            let changes = world.take_changes();
            backend.sync(&world, &changes, false).unwrap();
            let plan = Engine::new(Nft::open().unwrap()).plan(vec![Programmed::default().whole(&world)]).unwrap();
            assert!(plan.is_empty(), "seed {seed}: {plan}");
            // What goes to the sender's own addresses does not leave; a pod's packets to itself do not come here either.
            let sent: Vec<Packet> = packets(&cluster, seed, PACKETS).into_iter().filter(|packet| packet.source != packet.destination).collect();
            let first = id + 1;
            for packet in &sent {
                id += 1;
                way.send(packet, id);
            }
            id += 1;
            let outside = |text: &str| text.parse().unwrap();
            way.send(&Packet { source: outside("192.0.2.1"), destination: outside("192.0.2.2"), port: Some((Protocol::Udp, 9)) }, id);
            let arrived = way.arrived(id);
            for (number, packet) in (first..).zip(&sent) {
                let (passed, expected) = (arrived.contains(&number), oracle::passes(&cluster, packet));
                assert_eq!(passed, expected, "seed {seed}: {packet:?} in {cluster:#}");
            }
            before = cluster;
        }
    });
}
