//! Tests of the codec: what is written is read again, and bytes of other speakers are understood.

use proptest::prelude::*;

use super::*;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn update(frame: &[u8], four_octet: bool) -> Update {
    match decode(frame, four_octet) {
        Ok(Message::Update(update)) => update,
        other => panic!("{other:?}"),
    }
}

fn attributes() -> Attributes {
    Attributes {
        origin: 0,
        as_path: vec![Segment::Sequence(vec![64512, 4_200_000_000, 1]), Segment::Set(vec![2, 3])],
        med: Some(7),
        local_pref: Some(100),
        originator: "10.0.0.1".parse().ok(),
        clusters: vec!["10.0.0.2".parse().unwrap(), "10.0.0.3".parse().unwrap()],
        others: Vec::new(),
    }
}

#[test]
fn open_says_every_capability_and_is_read_again() {
    let open = Open {
        asn: 4_200_000_000,
        hold: 90,
        id: "10.240.0.11".parse().unwrap(),
        four_octet: true,
        families: [Family::V4, Family::V6].into(),
        refresh: true,
        graceful: Some(Graceful { restarting: true, time: 120, families: [(Family::V4, true), (Family::V6, false)].into() }),
    };
    let bytes = encode(&Message::Open(open.clone()));
    assert_eq!(bytes[20..22], AS_TRANS.to_be_bytes(), "who has two octets sees another number");
    assert_eq!(decode(&bytes, true), Ok(Message::Open(open.clone())));
    // Of a speaker of 1995: 4, AS 64512, 180 s, an id, no parameters.
    let mut old = vec![0xff; 16];
    old.extend([0, 29, 1, 4, 0xfc, 0, 0, 180, 10, 0, 0, 9, 0]);
    let read = Open {
        asn: 64512,
        hold: 180,
        id: "10.0.0.9".parse().unwrap(),
        four_octet: false,
        families: [Family::V4].into(),
        refresh: false,
        graceful: None,
    };
    assert_eq!(decode(&old, true), Ok(Message::Open(read)));
}

#[test]
fn short_messages_are_read_again() {
    for message in [
        Message::Keepalive,
        Message::Refresh(Some(Family::V4)),
        Message::Refresh(Some(Family::V6)),
        Message::Notification(Notification { data: vec![1, 2], ..Notification::HOLD_TIMER_EXPIRED }),
    ] {
        assert_eq!(decode(&encode(&message), true), Ok(message));
    }
}

#[test]
fn routes_are_read_again_whatever_octets_the_peer_has() {
    for four_octet in [true, false] {
        for (next_hop, prefixes) in
            [("10.240.0.11", ["192.168.0.0/24", "0.0.0.0/0", "10.1.2.3/32"]), ("fd00::11", ["fd00:1::/64", "::/0", "fd00::1/128"])]
        {
            let (next_hop, prefixes) = (next_hop.parse().unwrap(), prefixes.map(net).to_vec());
            let messages = announce(&attributes(), next_hop, &prefixes, four_octet);
            let [message] = &messages[..] else { panic!("{messages:?}") };
            let read = update(message, four_octet);
            assert_eq!((&read.attributes, &read.malformed), (&attributes(), &None));
            assert_eq!(read.announced, [Reach { next_hop, prefixes: prefixes.clone() }]);
            let family = Family::of(next_hop);
            let withdrawn = withdraw(family, &prefixes);
            assert_eq!(withdrawn.iter().map(|message| update(message, four_octet).withdrawn).collect::<Vec<_>>(), [prefixes]);
            assert_eq!(update(&end_of_rib(family), four_octet), Update { end_of_rib: Some(family), ..Update::default() });
        }
    }
}

#[test]
fn many_routes_are_told_in_full_messages() {
    let prefixes: Vec<IpNet> = (0..10_000u32).map(|n| IpNet::new(Ipv4Addr::from(0x0a00_0000 + (n << 8)).into(), 24).unwrap()).collect();
    let messages = announce(&attributes(), "10.240.0.11".parse().unwrap(), &prefixes, true);
    assert!(messages.iter().all(|message| message.len() <= LONGEST) && messages.len() < 14, "{} messages", messages.len());
    let read: Vec<IpNet> = messages.iter().flat_map(|message| update(message, true).announced.remove(0).prefixes).collect();
    assert_eq!(read, prefixes);
    let long = Attributes { clusters: vec!["10.0.0.1".parse().unwrap(); 1000], ..attributes() };
    assert!(announce(&long, "10.240.0.11".parse().unwrap(), &prefixes[..1], true).iter().all(|message| message.len() <= LONGEST));
}

/// A message with those path attributes and a prefix, 192.168.1.0/24.
fn raw(attributes: &[u8]) -> Vec<u8> {
    let mut body = vec![0, 0];
    body.extend((attributes.len() as u16).to_be_bytes());
    body.extend(attributes);
    body.extend([24, 192, 168, 1]);
    let mut frame = vec![0xff; 16];
    frame.extend(((HEADER + body.len()) as u16).to_be_bytes());
    frame.push(2);
    frame.extend(body);
    frame
}

/// ORIGIN, AS_PATH and NEXT_HOP of a route.
const ORIGIN: &[u8] = &[0x40, 1, 1, 0];
const PATH: &[u8] = &[0x40, 2, 6, 2, 1, 0, 0, 0xfc, 0x58];
const HOP: &[u8] = &[0x40, 3, 4, 10, 0, 0, 1];
const REACH: &[u8] = &[0x80, 14, 30, 0, 2, 1, 16, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 64, 0xfd, 0, 0, 2, 0, 0, 0, 0];

#[test]
fn malformed_attributes_withdraw_the_routes() {
    let good = update(&raw(&[ORIGIN, PATH, HOP].concat()), true);
    assert_eq!((good.announced.len(), good.withdrawn.len(), good.malformed), (1, 0, None));
    // RFC 7606, section 7, and RFC 7607.
    let cases: [(&[&[u8]], &str); 19] = [
        (&[PATH, HOP], "ORIGIN is missing"),
        (&[ORIGIN, HOP], "AS_PATH is missing"),
        (&[ORIGIN, PATH], "NEXT_HOP is missing"),
        (&[&[0x40, 1, 1, 9], PATH, HOP], "ORIGIN"),
        (&[&[0x40, 1, 2, 0, 0], PATH, HOP], "ORIGIN"),
        (&[&[0xc0, 1, 1, 0], PATH, HOP], "ttribute"),
        (&[ORIGIN, &[0x40, 2, 5, 2, 1, 0, 0, 0xfc], HOP], "AS_PATH"),
        (&[ORIGIN, &[0x40, 2, 2, 2, 0], HOP], "AS_PATH"),
        (&[ORIGIN, &[0x40, 2, 6, 3, 1, 0, 0, 0xfc, 0x58], HOP], "AS_PATH"),
        (&[ORIGIN, &[0x40, 2, 6, 2, 1, 0, 0, 0, 0], HOP], "AS_PATH has the AS 0"),
        (&[ORIGIN, PATH, &[0x40, 3, 5, 10, 0, 0, 1, 0]], "NEXT_HOP"),
        (&[ORIGIN, PATH, HOP, &[0x80, 4, 3, 0, 0, 1]], "MULTI_EXIT_DISC"),
        (&[ORIGIN, PATH, HOP, &[0x40, 5, 5, 0, 0, 0, 1, 0]], "LOCAL_PREF"),
        (&[ORIGIN, PATH, HOP, &[0xc0, 8, 3, 0, 0, 1]], "ommunit"),
        (&[ORIGIN, PATH, HOP, &[0x80, 9, 3, 0, 0, 1]], "originator"),
        (&[ORIGIN, PATH, HOP, &[0x80, 10, 3, 0, 0, 1]], "in "),
        (&[ORIGIN, PATH, HOP, &[0xc0, 32, 11, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]], "arge"),
        (&[ORIGIN, PATH, HOP, &[0xc0, 8, 40, 0]], "longer than all"),
        (&[ORIGIN, PATH, HOP, &[0xc0]], "longer than all"),
    ];
    for (attributes, reason) in cases {
        let read = update(&raw(&attributes.concat()), true);
        assert_eq!((read.announced.len(), read.withdrawn), (0, vec![net("192.168.1.0/24")]), "{reason}");
        assert!(read.malformed.as_ref().is_some_and(|text| text.contains(reason)), "{reason}: {:?}", read.malformed);
    }
    // Of both families.
    let both = update(&raw(&[REACH, &[0x40, 1, 1, 9], PATH, HOP].concat()), true);
    assert_eq!(both.withdrawn, [net("fd00:2::/64"), net("192.168.1.0/24")]);
}

#[test]
fn attributes_that_decide_nothing_are_left_out_when_malformed_or_told_twice() {
    let cases: [&[&[u8]]; 6] = [
        &[ORIGIN, PATH, HOP, &[0x40, 6, 1, 0]],
        &[ORIGIN, PATH, HOP, &[0xc0, 7, 3, 0, 0, 1]],
        &[ORIGIN, PATH, HOP, &[0xc0, 17, 5, 2, 1, 0, 0, 1]],
        &[ORIGIN, PATH, HOP, ORIGIN],
        &[ORIGIN, PATH, HOP, &[0x40, 1, 1, 2], &[0x40, 3, 4, 10, 0, 0, 2]],
        &[ORIGIN, PATH, &[0x40, 2, 0], HOP],
    ];
    for attributes in cases {
        let read = update(&raw(&attributes.concat()), true);
        let expected = Attributes { as_path: vec![Segment::Sequence(vec![64600])], ..Attributes::default() };
        let reach = Reach { next_hop: "10.0.0.1".parse().unwrap(), prefixes: vec![net("192.168.1.0/24")] };
        assert_eq!((read.attributes, read.announced, read.malformed), (expected, vec![reach], None), "{attributes:?}");
    }
}

#[test]
fn routes_that_cannot_be_read_end_the_session() {
    let told = |frame: &[u8]| decode(frame, true).unwrap_err();
    let twice = told(&raw(&[REACH, ORIGIN, PATH, HOP, REACH].concat()));
    assert_eq!((twice.code, twice.subcode), (3, 1), "MP_REACH_NLRI twice");
    let mut reach = REACH.to_vec();
    reach[24] = 200;
    let unread = told(&raw(&[&reach, ORIGIN, PATH, HOP].concat()));
    assert_eq!((unread.code, unread.subcode), (3, 9), "a prefix of 200 bits");
    let mut long = raw(&[ORIGIN, PATH, HOP].concat());
    let at = long.len() - 4;
    long[at] = 33;
    assert_eq!((told(&long).code, told(&long).subcode), (3, 10), "a prefix of 33 bits");
    let mut cut = raw(&[ORIGIN, PATH, HOP].concat());
    cut.pop();
    cut[17] -= 1;
    assert_eq!((told(&cut).code, told(&cut).subcode), (3, 10), "a prefix that is cut off");
    for (hold, id, fault) in [(1u16, [10, 0, 0, 9], (2, 6)), (2, [10, 0, 0, 9], (2, 6)), (90, [0; 4], (2, 3))] {
        let mut open = vec![0xff; 16];
        open.extend([0, 29, 1, 4, 0xfc, 0]);
        open.extend(hold.to_be_bytes().into_iter().chain(id).chain([0]));
        assert_eq!((told(&open).code, told(&open).subcode), fault, "hold time {hold}, id {id:?}");
    }
}

#[test]
fn bad_messages_are_answered_with_their_fault() {
    let told = |frame: &[u8]| decode(frame, true).unwrap_err();
    let keepalive = encode(&Message::Keepalive);
    let with = |at: usize, byte: u8| {
        let mut frame = keepalive.clone();
        frame[at] = byte;
        frame
    };
    assert_eq!(told(&with(3, 0)).to_string(), "connection not synchronized (1/1)");
    assert_eq!(told(&with(17, 18)).to_string(), "bad message length (1/2)");
    assert_eq!(told(&with(16, 0x40)).to_string(), "bad message length (1/2)");
    assert_eq!(told(&with(18, 9)).to_string(), "bad message type (1/3)");
    assert_eq!(told(&[]).to_string(), "bad message length (1/2)");
    let mut version = encode(&Message::Open(Open {
        asn: 1,
        hold: 90,
        id: "10.0.0.1".parse().unwrap(),
        four_octet: true,
        families: [Family::V4].into(),
        refresh: true,
        graceful: None,
    }));
    version[HEADER] = 3;
    assert_eq!((told(&version).code, told(&version).subcode), (2, 1));
    // Lengths that reach beyond the message.
    let mut beyond = raw(&[]);
    beyond[HEADER + 1] = 200;
    assert_eq!(told(&beyond).code, 3);
}

#[test]
fn paths_of_two_octets_are_completed() {
    // AS_PATH 23456 64512, AS4_PATH 4200000000 64512.
    let mut attributes = vec![0x40, 1, 1, 0, 0x40, 2, 6, 2, 2, 0x5b, 0xa0, 0xfc, 0, 0x40, 3, 4, 10, 0, 0, 1];
    attributes.extend([0xc0, 17, 10, 2, 2]);
    attributes.extend(4_200_000_000u32.to_be_bytes());
    attributes.extend(64512u32.to_be_bytes());
    assert_eq!(update(&raw(&attributes), false).attributes.as_path, [Segment::Sequence(vec![4_200_000_000, 64512])]);
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_harm(mut bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 1u8..6, whole: bool, four_octet: bool) {
        if whole {
            let length = (HEADER + bytes.len()) as u16;
            bytes.splice(0..0, [0xff; 16].into_iter().chain(length.to_be_bytes()).chain([kind]));
        }
        let _ = decode(&bytes, four_octet);
    }
}
