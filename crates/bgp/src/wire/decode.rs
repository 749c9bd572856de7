//! Bytes to messages.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};
use netgauze_bgp_pkt::BgpMessage;
use netgauze_bgp_pkt::capabilities::BgpCapability;
use netgauze_bgp_pkt::notification::BgpNotificationMessage;
use netgauze_bgp_pkt::open::BgpOpenMessage;
use netgauze_bgp_pkt::path_attribute::{As4PathSegment, AsPath, AsPathSegmentType, MpReach, MpUnreach, PathAttribute, PathAttributeValue};
use netgauze_bgp_pkt::wire::deserializer::{BgpMessageParsingError, BgpParsingContext};
use netgauze_iana::address_family::AddressType;
use netgauze_parse_utils::WritablePdu as _;
use netgauze_parse_utils::reader::SliceReader;
use netgauze_parse_utils::traits::ParseFromWithOneInput as _;

use super::{Attributes, Family, Graceful, HEADER, LONGEST, Message, Notification, Open, Reach, Segment, Update};

const UPDATE: u8 = 2;
const NOTIFICATION: u8 = 3;
const KEEPALIVE: u8 = 4;

const MP_REACH_NLRI: u8 = 14;
const MP_UNREACH_NLRI: u8 = 15;
/// Attributes on which decisions depend: a route whose attribute cannot be read counts as withdrawn. ORIGIN, AS_PATH, NEXT_HOP, MULTI_EXIT_DISC,
/// LOCAL_PREF, COMMUNITIES, ORIGINATOR_ID, CLUSTER_LIST, EXTENDED COMMUNITIES (two kinds), LARGE_COMMUNITY, OTC. Others are left out then.
const NEEDED: [u8; 12] = [1, 2, 3, 4, 5, 8, 9, 10, 16, 25, 32, 35];

/// The length of a message, by its header.
///
/// # Errors
/// What the peer is told: the marker is wrong, or no message has that length.
pub fn frame_length(header: &[u8; HEADER]) -> Result<usize, Notification> {
    if header[..16] != [0xff; 16] {
        return Err(Notification::new(1, 1));
    }
    let length = usize::from(u16::from_be_bytes([header[16], header[17]]));
    if (HEADER..=LONGEST).contains(&length) { Ok(length) } else { Err(Notification { data: header[16..18].to_vec(), ..Notification::new(1, 2) }) }
}

/// Reads one whole message. `four_octet`: both speakers have AS numbers of four octets.
///
/// # Errors
/// What the peer is told before the session ends.
pub fn decode(frame: &[u8], four_octet: bool) -> Result<Message, Notification> {
    let header: &[u8; HEADER] = frame.first_chunk().ok_or(Notification::new(1, 2))?;
    let (length, kind) = (frame_length(header)?, header[18]);
    let bad_length = || Notification { data: header[16..18].to_vec(), ..Notification::new(1, 2) };
    if length != frame.len() {
        return Err(bad_length());
    }
    match kind {
        NOTIFICATION => {
            let [code, subcode, data @ ..] = &frame[HEADER..] else { return Err(bad_length()) };
            return Ok(Message::Notification(Notification { code: *code, subcode: *subcode, data: data.to_vec() }));
        }
        KEEPALIVE if length != HEADER => return Err(bad_length()),
        KEEPALIVE => return Ok(Message::Keepalive),
        UPDATE if length < HEADER + 4 => return Err(bad_length()),
        UPDATE => return update(&frame[HEADER..], four_octet).map(Message::Update),
        _ => {}
    }
    match BgpMessage::parse(&mut SliceReader::new(frame), &mut context(four_octet)) {
        Ok(BgpMessage::Open(message)) => open(&message).map(Message::Open),
        Ok(BgpMessage::RouteRefresh(message)) => Ok(Message::Refresh(family(message.address_type()))),
        Ok(BgpMessage::Update(_) | BgpMessage::Notification(_) | BgpMessage::KeepAlive) => Err(Notification::new(1, 3)),
        // Of families that this codec does not know: nothing is to be sent again.
        Err(BgpMessageParsingError::BgpRouteRefreshMessageParsingError(_)) if length == HEADER + 4 => Ok(Message::Refresh(None)),
        Err(error) => Err(notification(error)),
    }
}

fn context(four_octet: bool) -> BgpParsingContext {
    BgpParsingContext::new(four_octet, HashMap::new(), HashMap::new(), false, false, false, false)
}

/// What the codec would say, by its own bytes.
fn notification(error: BgpMessageParsingError) -> Notification {
    let mut bytes = Vec::new();
    let written = BgpMessage::Notification(BgpNotificationMessage::from(error)).write(&mut bytes);
    match (written, bytes.get(HEADER..)) {
        (Ok(()), Some([code, subcode, data @ ..])) => Notification { code: *code, subcode: *subcode, data: data.to_vec() },
        _ => Notification::new(1, 0),
    }
}

fn family(address_type: AddressType) -> Option<Family> {
    match address_type {
        AddressType::Ipv4Unicast => Some(Family::V4),
        AddressType::Ipv6Unicast => Some(Family::V6),
        _ => None,
    }
}

fn open(message: &BgpOpenMessage) -> Result<Open, Notification> {
    let capabilities = message.capabilities();
    let mut families = BTreeSet::new();
    let (mut multi_protocol, mut four_octet, mut refresh, mut graceful) = (false, false, false, None);
    for capability in capabilities {
        match capability {
            BgpCapability::MultiProtocolExtensions(known) => {
                multi_protocol = true;
                families.extend(family(known.address_type()));
            }
            BgpCapability::FourOctetAs(_) => four_octet = true,
            BgpCapability::RouteRefresh | BgpCapability::EnhancedRouteRefresh => refresh = true,
            BgpCapability::GracefulRestartCapability(known) => {
                let families: BTreeMap<_, _> =
                    known.address_families().iter().filter_map(|held| Some((family(held.address_type())?, held.forwarding_state()))).collect();
                graceful = Some(Graceful { restarting: known.restart(), time: known.time(), families });
            }
            _ => {}
        }
    }
    if !multi_protocol {
        families.insert(Family::V4);
    }
    let asn = message.my_asn4();
    if asn == 0 {
        return Err(Notification::BAD_PEER_AS);
    }
    if message.bgp_id().is_unspecified() {
        return Err(Notification::BAD_ID);
    }
    Ok(Open { asn, hold: message.hold_time(), id: message.bgp_id(), four_octet, families, refresh, graceful })
}

/// Reads the body of an UPDATE. A fault in an attribute costs the routes of the message, or that attribute alone (RFC 7606); the session ends
/// only where it cannot be read which routes are meant. The codec reads one attribute at a time: the fault of one must not move the others.
fn update(body: &[u8], four_octet: bool) -> Result<Update, Notification> {
    let whole = counted(body).and_then(|(withdrawn, rest)| Some((withdrawn, counted(rest)?)));
    let (withdrawn, (attributes, nlri)) = whole.ok_or(Notification::new(3, 1))?;
    let mut read = Reading { withdrawn: prefixes(withdrawn)?, ..Reading::default() };
    let prefixes = prefixes(nlri)?;
    let empty = body.len() == 4;
    read.all(attributes, four_octet)?;
    if !prefixes.is_empty() {
        match read.next_hop {
            Some(next_hop) => read.announced.push(Reach { next_hop, prefixes }),
            None => {
                read.withdrawn.extend(prefixes);
                read.fault("NEXT_HOP is missing");
            }
        }
    }
    if !read.announced.is_empty() {
        let missing = [(read.origin, "ORIGIN is missing"), (read.path, "AS_PATH is missing")].into_iter().find(|(has, _)| !has);
        missing.into_iter().for_each(|(_, text)| read.fault(text));
        if read.attributes.times(0) > 0 {
            read.fault("AS_PATH has the AS 0");
        }
    }
    if read.malformed.is_some() {
        read.withdrawn.extend(read.announced.drain(..).flat_map(|reach| reach.prefixes));
    }
    let only_unreach = withdrawn.is_empty() && nlri.is_empty() && read.seen.len() == 1 && read.malformed.is_none();
    Ok(Update {
        end_of_rib: if empty { Some(Family::V4) } else { read.nothing_unreached.filter(|_| only_unreach) },
        withdrawn: read.withdrawn,
        attributes: read.attributes,
        announced: read.announced,
        malformed: read.malformed,
    })
}

/// A list behind its length in bytes, and what follows.
fn counted(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(u16::from_be_bytes(*length).into())
}

/// Prefixes of IPv4.
fn prefixes(mut bytes: &[u8]) -> Result<Vec<IpNet>, Notification> {
    let mut nets = Vec::new();
    while let [length, rest @ ..] = bytes {
        let bad = || Notification::new(3, 10);
        let count = usize::from(length.div_ceil(8));
        let (head, tail) = rest.split_at_checked(count).filter(|_| *length <= 32).ok_or_else(bad)?;
        let mut octets = [0; 4];
        octets[..count].copy_from_slice(head);
        nets.push(IpNet::V4(Ipv4Net::new(octets.into(), *length).map_err(|_| bad())?.trunc()));
        bytes = tail;
    }
    Ok(nets)
}

/// The first attribute, by its number, and what follows.
fn first_attribute(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    const EXTENDED_LENGTH: u8 = 0x10;
    let (head, length) = match bytes {
        [flags, _, high, low, ..] if flags & EXTENDED_LENGTH != 0 => (4, u16::from_be_bytes([*high, *low])),
        [flags, _, length, ..] if flags & EXTENDED_LENGTH == 0 => (3, u16::from(*length)),
        _ => return None,
    };
    let (whole, rest) = bytes.split_at_checked(head + usize::from(length))?;
    Some((bytes[1], whole, rest))
}

/// Attributes so far.
#[derive(Default)]
struct Reading {
    attributes: Attributes,
    origin: bool,
    path: bool,
    next_hop: Option<IpAddr>,
    announced: Vec<Reach>,
    withdrawn: Vec<IpNet>,
    /// By their numbers.
    seen: BTreeSet<u8>,
    /// Of MP_UNREACH_NLRI without prefixes.
    nothing_unreached: Option<Family>,
    /// The first fault that costs the routes.
    malformed: Option<String>,
}

impl Reading {
    fn fault(&mut self, text: &str) {
        self.malformed.get_or_insert_with(|| text.to_owned());
    }

    fn all(&mut self, mut bytes: &[u8], four_octet: bool) -> Result<(), Notification> {
        let mut context = context(four_octet);
        while !bytes.is_empty() {
            let Some((number, whole, rest)) = first_attribute(bytes) else {
                self.fault("an attribute is longer than all of them");
                return Ok(());
            };
            bytes = rest;
            let of_routes = [MP_REACH_NLRI, MP_UNREACH_NLRI].contains(&number);
            if !self.seen.insert(number) {
                // The first one counts.
                if of_routes {
                    return Err(Notification::new(3, 1));
                }
                continue;
            }
            let mut reader = SliceReader::new(whole);
            let fault = match PathAttribute::parse(&mut reader, &mut context) {
                Ok(attribute) if reader.is_empty() => {
                    self.attribute(&attribute);
                    continue;
                }
                Ok(_) => format!("attribute {number} has bytes too many"),
                Err(error) => error.to_string(),
            };
            if of_routes {
                return Err(Notification::new(3, 9));
            }
            if NEEDED.contains(&number) {
                self.fault(&fault);
            }
        }
        Ok(())
    }

    fn attribute(&mut self, attribute: &PathAttribute) {
        match attribute.value() {
            PathAttributeValue::Origin(origin) => {
                self.origin = true;
                self.attributes.origin = u8::from(*origin);
            }
            PathAttributeValue::AsPath(path) => {
                self.path = true;
                let whole = std::mem::take(&mut self.attributes.as_path);
                self.attributes.as_path = merge(segments(path), whole);
            }
            // A speaker of two octets passed it on.
            PathAttributeValue::As4Path(path) => {
                let short = std::mem::take(&mut self.attributes.as_path);
                self.attributes.as_path = merge(short, path.segments().iter().map(segment).collect());
            }
            PathAttributeValue::NextHop(hop) => self.next_hop = Some(hop.next_hop().into()),
            PathAttributeValue::MultiExitDiscriminator(med) => self.attributes.med = Some(med.metric()),
            PathAttributeValue::LocalPreference(preference) => self.attributes.local_pref = Some(preference.metric()),
            PathAttributeValue::Originator(id) => self.attributes.originator = Some(id.id()),
            PathAttributeValue::ClusterList(list) => self.attributes.clusters = list.cluster_list().iter().map(|cluster| cluster.id()).collect(),
            PathAttributeValue::MpReach(MpReach::Ipv4Unicast { next_hop, nlri, .. }) => {
                let prefixes = nlri.iter().map(|route| IpNet::V4(route.network().address().trunc())).collect();
                self.announced.push(Reach { next_hop: *next_hop, prefixes });
            }
            PathAttributeValue::MpReach(MpReach::Ipv6Unicast { next_hop_global, nlri, .. }) => {
                let prefixes = nlri.iter().map(|route| IpNet::V6(route.network().address().trunc())).collect();
                self.announced.push(Reach { next_hop: (*next_hop_global).into(), prefixes });
            }
            PathAttributeValue::MpUnreach(MpUnreach::Ipv4Unicast { nlri }) => {
                self.nothing_unreached = nlri.is_empty().then_some(Family::V4);
                self.withdrawn.extend(nlri.iter().map(|route| IpNet::V4(route.network().address().trunc())));
            }
            PathAttributeValue::MpUnreach(MpUnreach::Ipv6Unicast { nlri }) => {
                self.nothing_unreached = nlri.is_empty().then_some(Family::V6);
                self.withdrawn.extend(nlri.iter().map(|route| IpNet::V6(route.network().address().trunc())));
            }
            PathAttributeValue::MpReach(_) | PathAttributeValue::MpUnreach(_) => {}
            _ if attribute.transitive() => self.attributes.others.push(attribute.clone()),
            _ => {}
        }
    }
}

fn segment(segment: &As4PathSegment) -> Segment {
    let numbers = segment.as_numbers().to_vec();
    if segment.segment_type() == AsPathSegmentType::AsSet { Segment::Set(numbers) } else { Segment::Sequence(numbers) }
}

fn segments(path: &AsPath) -> Vec<Segment> {
    match path {
        AsPath::As4PathSegments(all) => all.iter().map(segment).collect(),
        AsPath::As2PathSegments(all) => {
            let long = |short: &[u16]| short.iter().copied().map(u32::from).collect();
            let read = all.iter().map(|held| match held.segment_type() {
                AsPathSegmentType::AsSet => Segment::Set(long(held.as_numbers())),
                AsPathSegmentType::AsSequence => Segment::Sequence(long(held.as_numbers())),
            });
            read.collect()
        }
    }
}

/// AS_PATH with the numbers of AS4_PATH at its end (RFC 6793 4.2.3).
fn merge(short: Vec<Segment>, whole: Vec<Segment>) -> Vec<Segment> {
    if whole.is_empty() {
        return short;
    }
    let count = |path: &[Segment]| path.iter().map(|segment| segment.numbers().len()).sum::<usize>();
    let Some(mut keep) = count(&short).checked_sub(count(&whole)) else { return short };
    let mut merged = Vec::new();
    for segment in short {
        if keep == 0 {
            break;
        }
        let taken: Vec<u32> = segment.numbers().iter().copied().take(keep).collect();
        keep -= taken.len();
        merged.push(if matches!(segment, Segment::Set(_)) { Segment::Set(taken) } else { Segment::Sequence(taken) });
    }
    match (merged.last_mut(), whole.first()) {
        (Some(Segment::Sequence(last)), Some(Segment::Sequence(first))) if last.len() + first.len() <= usize::from(u8::MAX) => {
            last.extend(first);
            merged.extend(whole.into_iter().skip(1));
        }
        _ => merged.extend(whole),
    }
    merged
}
