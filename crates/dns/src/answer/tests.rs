use hickory_proto::op::Query;
use proptest::prelude::*;

use super::*;
use crate::rows::{Port, ServiceRow, Target};

const NOW: Moment = Moment { serial: 1, turn: 0 };

fn names() -> Names {
    let mut names = Names::new("cluster.local").unwrap();
    names.set_namespace("shop", true);
    let key = |name: &str| cluster::Key::new("shop", name);
    let web = ServiceRow {
        target: Target::Addresses(vec!["10.96.0.20".parse().unwrap()]),
        ports: vec![Port { name: "http".into(), protocol: "TCP".into(), number: 80 }],
    };
    names.set_service(&key("web"), Some(&web), &[]);
    for (name, target) in [
        ("old", "legacy.example.com"),
        ("near", "web.shop.svc.cluster.local"),
        ("loop", "loop.shop.svc.cluster.local"),
        ("lost", "gone.shop.svc.cluster.local"),
    ] {
        names.set_service(&key(name), Some(&ServiceRow { target: Target::Alias(target.into()), ports: vec![] }), &[]);
    }
    let many = (0..200).map(|last| IpAddr::from([10, 96, 1, last])).collect();
    names.set_service(&key("many"), Some(&ServiceRow { target: Target::Addresses(many), ports: vec![] }), &[]);
    names
}

fn ask(name: &str, kind: RecordType) -> Message {
    let mut request = Message::query();
    request.metadata.id = 77;
    request.metadata.recursion_desired = true;
    request.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    request
}

/// The answer as text: code, flags, and each section's records.
fn answer_text(request: &Message) -> String {
    let outcome = answer(&request.to_vec().unwrap(), &names(), NOW);
    let (mark, reply) = match outcome {
        Outcome::Reply(reply) => ("", reply),
        Outcome::Foreign(reply) => ("foreign ", reply),
        Outcome::Further(reply, question) => {
            assert_eq!(question.queries[0].name.to_string(), "legacy.example.com.");
            ("further ", reply)
        }
        Outcome::Silence => return "silence".into(),
    };
    assert_eq!(reply.metadata.id, request.metadata.id);
    let section = |records: &[Record]| records.iter().map(|record| format!(" {} {}", record.record_type(), record.data)).collect::<String>();
    let authority = if reply.authorities.is_empty() { "" } else { " +SOA" };
    let aa = if reply.metadata.authoritative { "aa" } else { "-" };
    let extra = if reply.additionals.is_empty() { String::new() } else { format!(" |{}", section(&reply.additionals)) };
    format!("{mark}{:?} {aa}{}{extra}{authority}", reply.metadata.response_code, section(&reply.answers))
}

#[test]
fn questions_get_their_answers() {
    for (name, kind, expected) in [
        ("web.shop.svc.cluster.local.", RecordType::A, "NoError aa A 10.96.0.20"),
        ("web.shop.svc.cluster.local.", RecordType::AAAA, "NoError aa +SOA"),
        ("web.shop.svc.cluster.local.", RecordType::SRV, "NoError aa SRV 0 100 80 web.shop.svc.cluster.local. | A 10.96.0.20"),
        ("_http._tcp.web.shop.svc.cluster.local.", RecordType::SRV, "NoError aa SRV 0 100 80 web.shop.svc.cluster.local. | A 10.96.0.20"),
        ("none.shop.svc.cluster.local.", RecordType::A, "NXDomain aa +SOA"),
        ("old.shop.svc.cluster.local.", RecordType::A, "further NoError aa CNAME legacy.example.com."),
        ("near.shop.svc.cluster.local.", RecordType::A, "NoError aa CNAME web.shop.svc.cluster.local. A 10.96.0.20"),
        ("near.shop.svc.cluster.local.", RecordType::CNAME, "NoError aa CNAME web.shop.svc.cluster.local."),
        ("lost.shop.svc.cluster.local.", RecordType::A, "NXDomain aa CNAME gone.shop.svc.cluster.local. +SOA"),
        ("20.0.96.10.in-addr.arpa.", RecordType::PTR, "NoError aa PTR web.shop.svc.cluster.local."),
        ("9.9.9.9.in-addr.arpa.", RecordType::PTR, "foreign NXDomain aa +SOA"),
        ("dns-version.cluster.local.", RecordType::TXT, "NoError aa TXT 1.1.0"),
        ("cluster.local.", RecordType::NS, "NoError aa NS ns.dns.cluster.local."),
        ("cluster.local.", RecordType::A, "NoError aa +SOA"),
        ("example.com.", RecordType::A, "foreign Refused -"),
    ] {
        assert_eq!(answer_text(&ask(name, kind)), expected, "{name} {kind}");
    }
    let soa = answer_text(&ask("Cluster.Local.", RecordType::SOA));
    assert!(soa.starts_with("NoError aa SOA ns.dns.cluster.local. hostmaster.cluster.local. 1 7200 1800 86400 5"), "{soa}");
    let circle = answer_text(&ask("loop.shop.svc.cluster.local.", RecordType::A));
    assert_eq!(circle.matches("CNAME").count(), ALIASES, "a circle of aliases ends: {circle}");
}

#[test]
fn question_is_repeated_unchanged() {
    let request = ask("WeB.sHop.svc.cluster.local.", RecordType::A);
    let Outcome::Reply(reply) = answer(&request.to_vec().unwrap(), &names(), NOW) else { panic!("no reply") };
    assert!(reply.queries[0].name.eq_case(&request.queries[0].name));
    assert!(reply.answers[0].name.eq_case(&request.queries[0].name));
    assert!(reply.metadata.recursion_desired);
}

#[test]
fn addresses_rotate() {
    let request = ask("many.shop.svc.cluster.local.", RecordType::A).to_vec().unwrap();
    let first = |turn| {
        let Outcome::Reply(reply) = answer(&request, &names(), Moment { turn, ..NOW }) else { panic!("no reply") };
        assert_eq!(reply.answers.len(), 200);
        reply.answers[0].data.to_string()
    };
    assert_eq!([first(0), first(1), first(201)], ["10.96.1.0", "10.96.1.1", "10.96.1.1"]);
}

#[test]
fn malformed_questions_are_refused() {
    let mut old = ask("web.shop.svc.cluster.local.", RecordType::A);
    let mut edns = Edns::new();
    edns.set_version(1);
    old.set_edns(edns);
    assert!(answer_text(&old).starts_with("BADVERS"));
    let mut status = ask("web.shop.svc.cluster.local.", RecordType::A);
    status.metadata.op_code = OpCode::Status;
    assert!(answer_text(&status).starts_with("NotImp"));
    let mut two = ask("web.shop.svc.cluster.local.", RecordType::A);
    two.add_query(two.queries[0].clone());
    assert!(answer_text(&two).starts_with("FormErr"));
    let mut chaos = ask("version.bind.", RecordType::TXT);
    chaos.queries[0].query_class = DNSClass::CH;
    assert!(answer_text(&chaos).starts_with("Refused"));
    let mut response = ask("web.shop.svc.cluster.local.", RecordType::A);
    response.metadata.message_type = MessageType::Response;
    assert_eq!(answer_text(&response), "silence");
    let Outcome::Reply(reply) = answer(&[0, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 63], &names(), NOW) else { panic!("no reply") };
    assert_eq!((reply.metadata.id, reply.metadata.response_code), (9, ResponseCode::FormErr));
    assert!(matches!(answer(&[0, 9, 1], &names(), NOW), Outcome::Silence));
}

#[test]
fn answers_too_long_for_udp_are_truncated() {
    let mut request = ask("many.shop.svc.cluster.local.", RecordType::A);
    for (payload, largest) in [(None, 512), (Some(700), 700), (Some(9000), 1232)] {
        if let Some(payload) = payload {
            request.set_edns(Edns::new().set_max_payload(payload).clone());
        }
        let Outcome::Reply(reply) = answer(&request.to_vec().unwrap(), &names(), NOW) else { panic!("no reply") };
        let short = encode(&reply, true);
        assert!(short.len() <= largest, "{} for {payload:?}", short.len());
        let read = Message::from_vec(&short).unwrap();
        assert!(read.metadata.truncation && read.answers.is_empty());
        assert_eq!(read.edns.is_some(), payload.is_some());
        let whole = Message::from_vec(&encode(&reply, false)).unwrap();
        assert_eq!((whole.answers.len(), whole.metadata.truncation), (200, false));
    }
}

proptest! {
    #[test]
    fn any_packet_is_answered_without_panic(packet in proptest::collection::vec(any::<u8>(), 0..600)) {
        if let Outcome::Reply(reply) | Outcome::Foreign(reply) | Outcome::Further(reply, _) = answer(&packet, &names(), NOW) {
            prop_assert!(encode(&reply, true).len() <= usize::from(LARGEST_UDP));
        }
    }

    #[test]
    fn altered_questions_are_answered_without_panic(at in 0usize..60, value in any::<u8>(), cut in 0usize..60) {
        let mut packet = ask("_http._tcp.web.shop.svc.cluster.local.", RecordType::SRV).to_vec().unwrap();
        let length = packet.len();
        packet[at % length] = value;
        packet.truncate(length - cut % length);
        if let Outcome::Reply(reply) | Outcome::Foreign(reply) | Outcome::Further(reply, _) = answer(&packet, &names(), NOW) {
            prop_assert!(Message::from_vec(&encode(&reply, true)).is_ok());
        }
    }
}
