//! Answers to DNS packets: pure. Names outside the cluster are left to the caller.

use std::net::IpAddr;

use hickory_proto::{
    op::{Edns, Message, MessageType, OpCode, ResponseCode},
    rr::{
        DNSClass, Name, RData, Record, RecordType,
        rdata::{A, AAAA, CNAME, NS, PTR, SOA, SRV, TXT},
    },
};

use crate::names::{self, Data, Lookup, Names};

/// CoreDNS's `kubernetes` plug-in's default.
const TTL: u32 = 5;
/// Aliases followed within the cluster for one question.
const ALIASES: usize = 8;
/// The largest UDP answer we give whatever the client says: what passes without fragments everywhere.
const LARGEST_UDP: u16 = 1232;

/// Actions for a packet.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Send this.
    Reply(Box<Message>),
    /// Ask the upstream server; the message is the answer if there is none.
    Foreign(Box<Message>),
    /// An alias leads out of the cluster: the second message asks the upstream server for its target. The first is the answer if there is none.
    Further(Box<Message>, Box<Message>),
    /// Say nothing.
    Silence,
}

/// Per-question settings besides the packet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    /// The zone's serial number.
    pub serial: u32,
    /// Counts questions: addresses take turns at the first place, so that clients spread.
    pub turn: usize,
}

/// Decides about one packet.
pub(crate) fn answer(packet: &[u8], names: &Names, moment: Moment) -> Outcome {
    let request = match Message::from_vec(packet) {
        Ok(request) => request,
        Err(_) => return malformed(packet),
    };
    if request.metadata.message_type == MessageType::Response {
        return Outcome::Silence;
    }
    let mut reply = reply_to(&request);
    let problem = problem(&request);
    if let Some(code) = problem {
        reply.metadata.response_code = code;
        return Outcome::Reply(Box::new(reply));
    }
    let [question] = &request.queries[..] else { return Outcome::Silence };
    if matches!(names.lookup(&question.name), Lookup::Foreign) {
        reply.metadata.response_code = ResponseCode::Refused;
        reply.metadata.authoritative = false;
        return Outcome::Foreign(Box::new(reply));
    }
    if let Some(outside) = resolve(&mut reply, question.name.clone(), question.query_type, names, moment) {
        let further = Message::clone(&request);
        return Outcome::Further(Box::new(reply), Box::new(asking(further, outside)));
    }
    let reverse = names::is_for_an_address(&question.name) && reply.metadata.response_code == ResponseCode::NXDomain;
    // Addresses of the outside have names that are not ours to deny (CoreDNS: `fallthrough in-addr.arpa ip6.arpa`).
    if reverse { Outcome::Foreign(Box::new(reply)) } else { Outcome::Reply(Box::new(reply)) }
}

/// The same question about another name.
fn asking(mut request: Message, name: Name) -> Message {
    for query in &mut request.queries {
        query.name = name.clone();
    }
    request.metadata.recursion_desired = true;
    request
}

/// The whole answer about an alias, from the part that is ours and what was found outside.
pub(crate) fn join(mut reply: Message, outside: Message) -> Message {
    reply.metadata.response_code = outside.metadata.response_code;
    reply.metadata.truncation = outside.metadata.truncation;
    reply.metadata.authoritative = false;
    reply.add_answers(outside.answers);
    reply
}

/// The bytes of a reply, cut to what the client takes over UDP.
pub(crate) fn encode(reply: &Message, udp: bool) -> Vec<u8> {
    let bytes = reply.to_vec().unwrap_or_default();
    let limit = reply.edns.as_ref().map_or(512, |edns| edns.max_payload().clamp(512, LARGEST_UDP));
    match udp && bytes.len() > usize::from(limit) {
        true => reply.truncate().to_vec().unwrap_or_default(),
        false => bytes,
    }
}

/// A packet that cannot be read: a client whose packet has a header gets FORMERR.
fn malformed(packet: &[u8]) -> Outcome {
    let [first, second, flags, ..] = packet else { return Outcome::Silence };
    let is_query = packet.len() >= 12 && flags & 0x80 == 0;
    if !is_query {
        return Outcome::Silence;
    }
    let id = u16::from_be_bytes([*first, *second]);
    Outcome::Reply(Box::new(Message::error_msg(id, OpCode::Query, ResponseCode::FormErr)))
}

fn reply_to(request: &Message) -> Message {
    let mut reply = Message::response(request.metadata.id, request.metadata.op_code);
    reply.metadata.recursion_desired = request.metadata.recursion_desired;
    reply.metadata.recursion_available = true;
    reply.metadata.authoritative = true;
    reply.add_queries(request.queries.iter().cloned());
    if let Some(asked) = &request.edns {
        let mut edns = Edns::new();
        // The client's limit travels with the reply until it is encoded.
        edns.set_max_payload(asked.max_payload().clamp(512, LARGEST_UDP));
        edns.set_version(0);
        reply.set_edns(edns);
    }
    reply
}

fn problem(request: &Message) -> Option<ResponseCode> {
    if request.edns.as_ref().is_some_and(|edns| edns.version() > 0) {
        Some(ResponseCode::BADVERS)
    } else if request.metadata.op_code != OpCode::Query {
        Some(ResponseCode::NotImp)
    } else if request.queries.len() != 1 {
        Some(ResponseCode::FormErr)
    } else if request.queries[0].query_class != DNSClass::IN {
        Some(ResponseCode::Refused)
    } else {
        None
    }
}

/// Fills the reply; answers with the name where an alias leaves the cluster.
fn resolve(reply: &mut Message, mut name: Name, kind: RecordType, names: &Names, moment: Moment) -> Option<Name> {
    for _ in 0..ALIASES {
        let records = match names.lookup(&name) {
            Lookup::Records(records) => records,
            Lookup::Absent => {
                reply.metadata.response_code = ResponseCode::NXDomain;
                break;
            }
            Lookup::Foreign => return Some(name),
        };
        if let (Some(target), false) = (alias(&records), matches!(kind, RecordType::CNAME | RecordType::ANY)) {
            reply.add_answer(Record::from_rdata(name, TTL, RData::CNAME(CNAME(target.clone()))));
            name = target;
            continue;
        }
        let mut answers: Vec<Record> = records.iter().filter(|data| is_of(data, kind)).map(|data| record(&name, data)).collect();
        if matches!(kind, RecordType::SOA | RecordType::ANY) && name.to_lowercase() == *names.domain() {
            answers.push(authority(names, moment.serial));
        }
        if !answers.is_empty() {
            let first = moment.turn % answers.len();
            answers.rotate_left(first);
        }
        add_addresses(reply, &answers, names);
        reply.add_answers(answers);
        break;
    }
    if reply.answers.is_empty() || reply.metadata.response_code == ResponseCode::NXDomain {
        reply.add_authority(authority(names, moment.serial));
    }
    None
}

fn alias(records: &[Data]) -> Option<Name> {
    records.iter().find_map(|data| match data {
        Data::Alias(target) => Some(target.clone()),
        _ => None,
    })
}

fn is_of(data: &Data, kind: RecordType) -> bool {
    kind == RecordType::ANY
        || kind
            == match data {
                Data::Address(IpAddr::V4(_)) => RecordType::A,
                Data::Address(IpAddr::V6(_)) => RecordType::AAAA,
                Data::Service { .. } => RecordType::SRV,
                Data::Alias(_) => RecordType::CNAME,
                Data::Text(_) => RecordType::TXT,
                Data::Pointer(_) => RecordType::PTR,
                Data::Server(_) => RecordType::NS,
            }
}

fn record(name: &Name, data: &Data) -> Record {
    let data = match data {
        Data::Address(IpAddr::V4(address)) => RData::A(A(*address)),
        Data::Address(IpAddr::V6(address)) => RData::AAAA(AAAA(*address)),
        Data::Service { port, weight, target } => RData::SRV(SRV::new(0, *weight, *port, target.clone())),
        Data::Alias(target) => RData::CNAME(CNAME(target.clone())),
        Data::Text(text) => RData::TXT(TXT::new(vec![(*text).to_owned()])),
        Data::Pointer(target) => RData::PTR(PTR(target.clone())),
        Data::Server(server) => RData::NS(NS(server.clone())),
    };
    Record::from_rdata(name.clone(), TTL, data)
}

/// The addresses of SRV targets, so that the client need not ask again.
fn add_addresses(reply: &mut Message, answers: &[Record], names: &Names) {
    let mut done: Vec<&Name> = Vec::new();
    for target in answers.iter().filter_map(|record| if let RData::SRV(service) = &record.data { Some(&service.target) } else { None }) {
        if done.contains(&target) {
            continue;
        }
        done.push(target);
        if let Lookup::Records(records) = names.lookup(target) {
            let addresses = records.iter().filter(|data| matches!(data, Data::Address(_)));
            reply.add_additionals(addresses.map(|data| record(target, data)));
        }
    }
}

/// The zone's SOA, as CoreDNS writes it.
fn authority(names: &Names, serial: u32) -> Record {
    let zone = names.domain().clone();
    let mailbox = Name::from_ascii("hostmaster").and_then(|name| name.append_domain(&zone)).unwrap_or_else(|_| zone.clone());
    Record::from_rdata(zone, TTL, RData::SOA(SOA::new(names.server(), mailbox, serial, 7200, 1800, 86400, TTL)))
}

#[cfg(test)]
mod tests;
