//! Bytes to messages.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use ipnet::IpNet;
use netgauze_bgp_pkt::BgpMessage;
use netgauze_bgp_pkt::capabilities::BgpCapability;
use netgauze_bgp_pkt::notification::BgpNotificationMessage;
use netgauze_bgp_pkt::open::BgpOpenMessage;
use netgauze_bgp_pkt::path_attribute::{As4PathSegment, AsPath, AsPathSegmentType, MpReach, MpUnreach, PathAttribute, PathAttributeValue};
use netgauze_bgp_pkt::update::BgpUpdateMessage;
use netgauze_bgp_pkt::wire::deserializer::path_attribute::PathAttributeParsingError;
use netgauze_bgp_pkt::wire::deserializer::{BgpMessageParsingError, BgpParsingContext};
use netgauze_iana::address_family::AddressType;
use netgauze_parse_utils::WritablePdu as _;
use netgauze_parse_utils::reader::SliceReader;
use netgauze_parse_utils::traits::ParseFromWithOneInput as _;

use super::{Attributes, Family, Graceful, HEADER, LONGEST, Message, Notification, Open, Reach, Segment, Update};

const NOTIFICATION: u8 = 3;
const KEEPALIVE: u8 = 4;

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
        _ => {}
    }
    let mut context = BgpParsingContext::new(four_octet, HashMap::new(), HashMap::new(), false, false, false, false);
    match BgpMessage::parse(&mut SliceReader::new(frame), &mut context) {
        Ok(BgpMessage::Open(message)) => open(&message).map(Message::Open),
        Ok(BgpMessage::Update(message)) => {
            let errors = context.reset_parsing_errors();
            update(&message, errors.path_attr_errors()).map(Message::Update)
        }
        Ok(BgpMessage::RouteRefresh(message)) => Ok(Message::Refresh(family(message.address_type()))),
        Ok(BgpMessage::Notification(_) | BgpMessage::KeepAlive) => Err(Notification::new(1, 3)),
        // Of families that this codec does not know: nothing is to be sent again.
        Err(BgpMessageParsingError::BgpRouteRefreshMessageParsingError(_)) if length == HEADER + 4 => Ok(Message::Refresh(None)),
        Err(error) => Err(notification(error)),
    }
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
    Ok(Open { asn, hold: message.hold_time(), id: message.bgp_id(), four_octet, families, refresh, graceful })
}

fn update(message: &BgpUpdateMessage, errors: &[PathAttributeParsingError]) -> Result<Update, Notification> {
    // Which routes are meant cannot be read any more.
    if errors.iter().any(|error| matches!(error, PathAttributeParsingError::MpReachErrorError(_) | PathAttributeParsingError::MpUnreachErrorError(_)))
    {
        return Err(Notification::new(3, 9));
    }
    let mut read = Reading::default();
    message.path_attributes().iter().for_each(|attribute| read.attribute(attribute));
    let mut update = Update { end_of_rib: message.end_of_rib().and_then(family).filter(|_| errors.is_empty()), ..Update::default() };
    update.withdrawn = message.withdraw_routes().iter().map(|route| IpNet::V4(route.network().address().trunc())).collect();
    update.withdrawn.append(&mut read.withdrawn);
    let prefixes: Vec<IpNet> = message.nlri().iter().map(|route| IpNet::V4(route.network().address().trunc())).collect();
    let mut missing = None;
    if !prefixes.is_empty() {
        match read.next_hop {
            Some(next_hop) => read.announced.push(Reach { next_hop, prefixes }),
            None => {
                missing = Some("NEXT_HOP");
                update.withdrawn.extend(prefixes);
            }
        }
    }
    if !read.announced.is_empty() {
        missing = missing.or_else(|| [(read.origin, "ORIGIN"), (read.path, "AS_PATH")].into_iter().find(|(has, _)| !has).map(|(_, name)| name));
    }
    update.malformed = errors.first().map(ToString::to_string).or_else(|| missing.map(|name| format!("{name} is missing")));
    if update.malformed.is_some() {
        update.withdrawn.extend(read.announced.drain(..).flat_map(|reach| reach.prefixes));
    }
    update.announced = read.announced;
    update.attributes = read.attributes;
    Ok(update)
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
}

impl Reading {
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
                self.withdrawn.extend(nlri.iter().map(|route| IpNet::V4(route.network().address().trunc())));
            }
            PathAttributeValue::MpUnreach(MpUnreach::Ipv6Unicast { nlri }) => {
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
