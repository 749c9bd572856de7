//! Messages, and their bytes by the codec of NetGauze.

mod decode;
mod encode;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use netgauze_bgp_pkt::path_attribute::{PathAttribute, PathAttributeValue};

pub use decode::{decode, frame_length};
pub use encode::{announce, encode, end_of_rib, withdraw};

/// Marker, length, type.
pub const HEADER: usize = 19;
/// The longest message (RFC 4271).
pub const LONGEST: usize = 4096;
/// Stands for an AS number of four octets where a speaker has two (RFC 6793).
pub const AS_TRANS: u16 = 23456;
/// Routes with this community stay inside the AS.
const NO_EXPORT: u32 = 0xFFFF_FF01;
/// Routes with this community are told to no one.
const NO_ADVERTISE: u32 = 0xFFFF_FF02;

/// Unicast routes of one kind of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    pub fn of_net(net: &IpNet) -> Self {
        Self::of(net.addr())
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::V4 { "IPv4" } else { "IPv6" })
    }
}

/// One message.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    Open(Open),
    Update(Update),
    Notification(Notification),
    Keepalive,
    /// Asks for all routes of a family again; none: of a family that we do not have.
    Refresh(Option<Family>),
}

impl Message {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Open(_) => "OPEN",
            Self::Update(_) => "UPDATE",
            Self::Notification(_) => "NOTIFICATION",
            Self::Keepalive => "KEEPALIVE",
            Self::Refresh(_) => "ROUTE-REFRESH",
        }
    }
}

/// What a speaker says of itself first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    pub asn: u32,
    /// Seconds; 0: the session needs no keepalives.
    pub hold: u16,
    pub id: Ipv4Addr,
    /// AS numbers have four octets in its messages.
    pub four_octet: bool,
    /// Without the capability: IPv4 alone.
    pub families: BTreeSet<Family>,
    pub refresh: bool,
    pub graceful: Option<Graceful>,
}

/// The capability of graceful restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graceful {
    /// The speaker has restarted, and waits for the others' routes before it says that it is done.
    pub restarting: bool,
    /// Seconds that its routes may stay while it is away.
    pub time: u16,
    /// Families, and whether packets were forwarded while it was away.
    pub families: BTreeMap<Family, bool>,
}

/// The reason why a speaker ends a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    pub code: u8,
    pub subcode: u8,
    pub data: Vec<u8>,
}

impl Notification {
    pub const BAD_PEER_AS: Self = Self::new(2, 2);
    pub const BAD_ID: Self = Self::new(2, 3);
    pub const HOLD_TIMER_EXPIRED: Self = Self::new(4, 0);
    pub const TOO_MANY_PREFIXES: Self = Self::new(6, 1);
    pub const DECONFIGURED: Self = Self::new(6, 3);
    pub const REJECTED: Self = Self::new(6, 5);
    pub const CONFIGURATION_CHANGED: Self = Self::new(6, 6);
    pub const COLLISION: Self = Self::new(6, 7);

    pub const fn new(code: u8, subcode: u8) -> Self {
        Self { code, subcode, data: Vec::new() }
    }

    /// RFC 6608: a message that its state does not allow. 1: OpenSent, 2: OpenConfirm, 3: Established.
    pub const fn unexpected(state: u8) -> Self {
        Self::new(5, state)
    }
}

impl fmt::Display for Notification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match (self.code, self.subcode) {
            (1, 1) => "connection not synchronized",
            (1, 2) => "bad message length",
            (1, 3) => "bad message type",
            (1, _) => "message header error",
            (2, 1) => "unsupported BGP version",
            (2, 2) => "bad peer AS",
            (2, 3) => "bad BGP identifier",
            (2, 6) => "unacceptable hold time",
            (2, 7) => "unsupported capability",
            (2, _) => "OPEN message error",
            (3, _) => "UPDATE message error",
            (4, _) => "hold timer expired",
            (5, _) => "unexpected message",
            (6, 1) => "maximum number of prefixes reached",
            (6, 2) => "administrative shutdown",
            (6, 3) => "peer de-configured",
            (6, 4) => "administrative reset",
            (6, 5) => "connection rejected",
            (6, 6) => "configuration changed",
            (6, 7) => "connection collision",
            (6, 8) => "out of resources",
            (6, _) => "cease",
            _ => "unknown error",
        };
        write!(f, "{text} ({}/{})", self.code, self.subcode)
    }
}

/// A part of an AS path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    Sequence(Vec<u32>),
    Set(Vec<u32>),
}

impl Segment {
    pub fn numbers(&self) -> &[u32] {
        let (Self::Sequence(numbers) | Self::Set(numbers)) = self;
        numbers
    }
}

/// What a route says beside its prefix and next hop.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attributes {
    /// 0 IGP, 1 EGP, 2 incomplete.
    pub origin: u8,
    pub as_path: Vec<Segment>,
    pub med: Option<u32>,
    pub local_pref: Option<u32>,
    pub originator: Option<Ipv4Addr>,
    /// The reflectors that it passed, newest first.
    pub clusters: Vec<Ipv4Addr>,
    /// Transitive attributes that no decision depends on, as they came.
    pub others: Vec<PathAttribute>,
}

impl Attributes {
    /// AS numbers on the way; a set counts as one.
    pub fn path_length(&self) -> usize {
        let of = |segment: &Segment| if let Segment::Sequence(numbers) = segment { numbers.len() } else { 1 };
        self.as_path.iter().map(of).sum()
    }

    /// How often an AS is on the way.
    pub fn times(&self, asn: u32) -> usize {
        self.as_path.iter().flat_map(Segment::numbers).filter(|number| **number == asn).count()
    }

    /// The AS that the route came from.
    pub fn neighbour(&self) -> Option<u32> {
        match self.as_path.first() {
            Some(Segment::Sequence(numbers)) => numbers.first().copied(),
            _ => None,
        }
    }

    /// The same, told by that AS to another one.
    pub fn prepend(&mut self, asn: u32) {
        match self.as_path.first_mut() {
            Some(Segment::Sequence(numbers)) if numbers.len() < usize::from(u8::MAX) => numbers.insert(0, asn),
            _ => self.as_path.insert(0, Segment::Sequence(vec![asn])),
        }
    }

    fn has_community(&self, community: u32) -> bool {
        let communities = self.others.iter().filter_map(|other| match other.value() {
            PathAttributeValue::Communities(communities) => Some(communities.communities()),
            _ => None,
        });
        communities.flatten().any(|held| held.value() == community)
    }

    /// Whether a peer may be told, by the well-known communities.
    pub fn may_tell(&self, external: bool) -> bool {
        !(self.has_community(NO_ADVERTISE) || external && self.has_community(NO_EXPORT))
    }
}

/// Prefixes that have one next hop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    pub next_hop: IpAddr,
    pub prefixes: Vec<IpNet>,
}

/// What changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Update {
    pub withdrawn: Vec<IpNet>,
    /// Of every announced prefix.
    pub attributes: Attributes,
    pub announced: Vec<Reach>,
    /// Every route of the family was told.
    pub end_of_rib: Option<Family>,
    /// Why announced routes were read as withdrawn (RFC 7606).
    pub malformed: Option<String>,
}

#[cfg(test)]
mod tests;
