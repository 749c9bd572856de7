//! Messages to bytes.

use std::net::IpAddr;

use ipnet::IpNet;
use netgauze_bgp_pkt::BgpMessage;
use netgauze_bgp_pkt::capabilities::{
    BgpCapability, FourOctetAsCapability, GracefulRestartAddressFamily, GracefulRestartCapability, MultiProtocolExtensionsCapability,
};
use netgauze_bgp_pkt::iana::RouteRefreshSubcode;
use netgauze_bgp_pkt::nlri::{Ipv4Unicast, Ipv4UnicastAddress, Ipv6Unicast, Ipv6UnicastAddress};
use netgauze_bgp_pkt::open::{BgpOpenMessage, BgpOpenMessageParameter};
use netgauze_bgp_pkt::path_attribute::{
    As2PathSegment, As4Path, As4PathSegment, AsPath, AsPathSegmentType, ClusterId, ClusterList, LocalPreference, MpReach, MpUnreach,
    MultiExitDiscriminator, NextHop, Origin, Originator, PathAttribute, PathAttributeValue,
};
use netgauze_bgp_pkt::route_refresh::BgpRouteRefreshMessage;
use netgauze_bgp_pkt::update::BgpUpdateMessage;
use netgauze_iana::address_family::AddressType;
use netgauze_parse_utils::WritablePdu as _;

use super::{AS_TRANS, Attributes, Family, HEADER, LONGEST, Message, Notification, Open, Segment};

const OPTIONAL: (bool, bool) = (true, false);
const WELL_KNOWN: (bool, bool) = (false, true);
const OPTIONAL_TRANSITIVE: (bool, bool) = (true, true);

/// The bytes of a message that says nothing of routes. Those that do come from [`announce`], [`withdraw`] and [`end_of_rib`].
pub fn encode(message: &Message) -> Vec<u8> {
    match message {
        Message::Open(open) => write(&BgpMessage::Open(self::open(open))),
        Message::Keepalive => write(&BgpMessage::KeepAlive),
        Message::Refresh(family) => {
            let address_type = address_type(family.unwrap_or(Family::V4));
            write(&BgpMessage::RouteRefresh(BgpRouteRefreshMessage::new(address_type, RouteRefreshSubcode::NormalRequest)))
        }
        Message::Notification(notification) => self::notification(notification),
        Message::Update(_) => Vec::new(),
    }
}

/// Writing into memory fails for no message of ours; one that does becomes no bytes at all.
fn write(message: &BgpMessage) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(message.len());
    if message.write(&mut bytes).is_ok() { bytes } else { Vec::new() }
}

fn notification(notification: &Notification) -> Vec<u8> {
    let data = &notification.data[..notification.data.len().min(LONGEST - HEADER - 2)];
    let length = (HEADER + 2 + data.len()) as u16;
    let mut bytes = vec![0xff; 16];
    bytes.extend(length.to_be_bytes());
    bytes.extend([3, notification.code, notification.subcode]);
    bytes.extend(data);
    bytes
}

fn address_type(family: Family) -> AddressType {
    match family {
        Family::V4 => AddressType::Ipv4Unicast,
        Family::V6 => AddressType::Ipv6Unicast,
    }
}

fn open(open: &Open) -> BgpOpenMessage {
    let mut capabilities: Vec<BgpCapability> = open
        .families
        .iter()
        .map(|family| BgpCapability::MultiProtocolExtensions(MultiProtocolExtensionsCapability::new(address_type(*family))))
        .collect();
    if open.refresh {
        capabilities.push(BgpCapability::RouteRefresh);
    }
    if let Some(graceful) = &open.graceful {
        let families: Vec<_> =
            graceful.families.iter().map(|(family, kept)| GracefulRestartAddressFamily::new(*kept, address_type(*family))).collect();
        // The time has twelve bits.
        let time = graceful.time.min(0x0fff);
        capabilities.push(BgpCapability::GracefulRestartCapability(GracefulRestartCapability::new(graceful.restarting, false, time, families)));
    }
    if open.four_octet {
        capabilities.push(BgpCapability::FourOctetAs(FourOctetAsCapability::new(open.asn)));
    }
    let short = u16::try_from(open.asn).unwrap_or(AS_TRANS);
    BgpOpenMessage::new(short, open.hold, open.id, vec![BgpOpenMessageParameter::new_capabilities(capabilities)])
}

fn attribute((optional, transitive): (bool, bool), value: PathAttributeValue) -> Option<PathAttribute> {
    let short = PathAttribute::from(optional, transitive, false, false, value).ok()?;
    // Flags, type, and one byte for the length.
    if short.len() <= 3 + usize::from(u8::MAX) {
        return Some(short);
    }
    PathAttribute::from(optional, transitive, false, true, short.value().clone()).ok()
}

/// Attributes stand in the order of their numbers.
fn number(attribute: &PathAttribute) -> u8 {
    attribute.path_attribute_type().map_or_else(|unknown| unknown, u8::from)
}

/// All but next hop and prefixes.
fn attributes(attributes: &Attributes, four_octet: bool) -> Vec<PathAttribute> {
    let origin = Origin::try_from(attributes.origin).unwrap_or(Origin::Incomplete);
    let mut written = vec![attribute(WELL_KNOWN, PathAttributeValue::Origin(origin))];
    written.extend(as_path(&attributes.as_path, four_octet));
    if let Some(med) = attributes.med {
        written.push(attribute(OPTIONAL, PathAttributeValue::MultiExitDiscriminator(MultiExitDiscriminator::new(med))));
    }
    if let Some(preference) = attributes.local_pref {
        written.push(attribute(WELL_KNOWN, PathAttributeValue::LocalPreference(LocalPreference::new(preference))));
    }
    if let Some(id) = attributes.originator {
        written.push(attribute(OPTIONAL, PathAttributeValue::Originator(Originator::new(id))));
    }
    if !attributes.clusters.is_empty() {
        let list: Vec<ClusterId> = attributes.clusters.iter().copied().map(ClusterId::new).collect();
        written.push(attribute(OPTIONAL, PathAttributeValue::ClusterList(ClusterList::new(list))));
    }
    // An aggregator's AS number has as many octets as the session's, and what it says is of no use without.
    let others = attributes.others.iter().filter(|other| four_octet || !matches!(other.value(), PathAttributeValue::Aggregator(_)));
    written.into_iter().flatten().chain(others.cloned()).collect()
}

fn as_path(path: &[Segment], four_octet: bool) -> Vec<Option<PathAttribute>> {
    let kind = |segment: &Segment| if matches!(segment, Segment::Set(_)) { AsPathSegmentType::AsSet } else { AsPathSegmentType::AsSequence };
    let long: Vec<As4PathSegment> = path.iter().map(|segment| As4PathSegment::new(kind(segment), segment.numbers().to_vec())).collect();
    if four_octet {
        return vec![attribute(WELL_KNOWN, PathAttributeValue::AsPath(AsPath::as4_path_segments(long)))];
    }
    let short = |number: &u32| u16::try_from(*number).unwrap_or(AS_TRANS);
    let segments: Vec<As2PathSegment> =
        path.iter().map(|segment| As2PathSegment::new(kind(segment), segment.numbers().iter().map(short).collect::<Vec<_>>())).collect();
    let mut written = vec![attribute(WELL_KNOWN, PathAttributeValue::AsPath(AsPath::as2_path_segments(segments)))];
    if path.iter().flat_map(Segment::numbers).any(|number| *number > u32::from(u16::MAX)) {
        written.push(attribute(OPTIONAL_TRANSITIVE, PathAttributeValue::As4Path(As4Path::new(long))));
    }
    written
}

/// Prefixes that fit beside `rest` bytes of one message.
fn chunks(prefixes: &[IpNet], rest: usize) -> impl Iterator<Item = &[IpNet]> {
    let length = if prefixes.iter().any(|prefix| prefix.addr().is_ipv6()) { 17 } else { 5 };
    prefixes.chunks((LONGEST.saturating_sub(rest) / length).max(1))
}

fn v4(prefixes: &[IpNet]) -> Vec<Ipv4UnicastAddress> {
    let nets = prefixes.iter().filter_map(|prefix| if let IpNet::V4(net) = prefix { Some(*net) } else { None });
    nets.filter_map(|net| Ipv4Unicast::from_net(net).ok()).map(Ipv4UnicastAddress::new_no_path_id).collect()
}

fn v6(prefixes: &[IpNet]) -> Vec<Ipv6UnicastAddress> {
    let nets = prefixes.iter().filter_map(|prefix| if let IpNet::V6(net) = prefix { Some(*net) } else { None });
    nets.filter_map(|net| Ipv6Unicast::from_net(net).ok()).map(|net| Ipv6UnicastAddress::new(None, net)).collect()
}

/// The messages that announce prefixes of one family with the same attributes and next hop; as few as there can be.
pub fn announce(attributes: &Attributes, next_hop: IpAddr, prefixes: &[IpNet], four_octet: bool) -> Vec<Vec<u8>> {
    let common = self::attributes(attributes, four_octet);
    // Header, two lengths, next hop, and the head of MP_REACH_NLRI.
    let rest = HEADER + 4 + 40 + common.iter().map(|attribute| attribute.len()).sum::<usize>();
    if rest + 17 > LONGEST {
        return Vec::new();
    }
    let message = |prefixes: &[IpNet]| {
        let mut attributes = common.clone();
        let nlri = match next_hop {
            IpAddr::V4(next_hop) => {
                attributes.extend(attribute(WELL_KNOWN, PathAttributeValue::NextHop(NextHop::new(next_hop))));
                attributes.sort_by_key(number);
                v4(prefixes)
            }
            IpAddr::V6(next_hop_global) => {
                let reach = MpReach::Ipv6Unicast { next_hop_global, next_hop_local: None, nlri: v6(prefixes).into() };
                attributes.sort_by_key(number);
                // First, as RFC 7606 has it: whoever finds a later one malformed knows which routes it is about.
                attributes.insert(0, attribute(OPTIONAL, PathAttributeValue::MpReach(reach))?);
                Vec::new()
            }
        };
        Some(write(&BgpMessage::Update(BgpUpdateMessage::new(Vec::new(), attributes, nlri))))
    };
    chunks(prefixes, rest).filter_map(message).collect()
}

/// The messages that withdraw prefixes of one family.
pub fn withdraw(family: Family, prefixes: &[IpNet]) -> Vec<Vec<u8>> {
    let message = |prefixes: &[IpNet]| match family {
        Family::V4 => Some(write(&BgpMessage::Update(BgpUpdateMessage::new(v4(prefixes), Vec::new(), Vec::new())))),
        Family::V6 => Some(unreach(v6(prefixes))),
    };
    chunks(prefixes, HEADER + 4 + 10).filter_map(message).collect()
}

fn unreach(nlri: Vec<Ipv6UnicastAddress>) -> Vec<u8> {
    let value = PathAttributeValue::MpUnreach(MpUnreach::Ipv6Unicast { nlri: nlri.into() });
    let attributes: Vec<PathAttribute> = attribute(OPTIONAL, value).into_iter().collect();
    write(&BgpMessage::Update(BgpUpdateMessage::new(Vec::new(), attributes, Vec::new())))
}

/// The message that says that every route of a family was told.
pub fn end_of_rib(family: Family) -> Vec<u8> {
    match family {
        Family::V4 => write(&BgpMessage::Update(BgpUpdateMessage::new(Vec::new(), Vec::new(), Vec::new()))),
        Family::V6 => unreach(Vec::new()),
    }
}
