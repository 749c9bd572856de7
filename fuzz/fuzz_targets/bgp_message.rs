//! What BGP peers send: any bytes after a session is established, and routes that are told on to another peer.

#![no_main]

use std::net::IpAddr;

use bgp::session::{Side, State};
use bgp::wire::{self, Family, Graceful, Message, Open};
use bgp::{Config, Connect, Input, Output, Peer, Speaker, Time};
use libfuzzer_sys::fuzz_target;

const PEERS: [[u8; 4]; 2] = [[10, 0, 0, 2], [10, 0, 0, 3]];

fn config() -> Config {
    let peer = |address: [u8; 4]| {
        let peer = Peer {
            name: "peer".into(),
            asn: 64512,
            connect: Connect { port: 179, local: [10, 0, 0, 1].into(), password: None },
            families: Family::ALL.into(),
            client: true,
            keep_next_hop: false,
            own_as_allowed: 0,
            longest_restart: 120,
        };
        (IpAddr::from(address), peer)
    };
    Config {
        asn: 64512,
        id: [10, 0, 0, 1].into(),
        hold: 90,
        restart_time: Some(120),
        cluster: Some([1, 1, 1, 1].into()),
        local_pref: 100,
        next_hop_v4: Some([10, 0, 0, 1].into()),
        next_hop_v6: "fd00::1".parse().ok(),
        forward: ["0.0.0.0/0", "::/0"].map(|net| net.parse().unwrap()).to_vec(),
        announce: ["192.168.1.0/24".parse().unwrap()].into(),
        peers: PEERS.map(peer).into(),
    }
}

/// Brings up the session of a peer, by the connection that it opens.
fn establish(speaker: &mut Speaker, address: [u8; 4], four_octet: bool) {
    let graceful = Graceful { restarting: false, time: 60, families: Family::ALL.map(|family| (family, true)).into() };
    let open = Open { asn: 64512, hold: 90, id: address.into(), four_octet, families: Family::ALL.into(), refresh: true, graceful: Some(graceful) };
    let peer = IpAddr::from(address);
    speaker.handle(Time::ZERO, Input::Accepted(peer));
    for message in [Message::Open(open), Message::Keepalive] {
        speaker.handle(Time::ZERO, Input::Frame(peer, Side::Theirs, wire::encode(&message)));
    }
    assert_eq!(speaker.status()[&peer].state, State::Established);
}

fuzz_target!(|data: &[u8]| {
    let Some((first, data)) = data.split_first() else { return };
    let (mut speaker, _) = Speaker::new(Time::ZERO, config(), false);
    establish(&mut speaker, PEERS[0], first & 1 == 0);
    establish(&mut speaker, PEERS[1], first & 2 == 0);
    let mut rest = data;
    while let Some((length, body)) = rest.split_first_chunk::<2>() {
        // A body of that length, with a right header before it where the first byte says so.
        let (body, next) = body.split_at(usize::from(u16::from_be_bytes(*length)).min(body.len()));
        rest = next;
        let mut frame = body.to_vec();
        if first & 4 == 0 && !frame.is_empty() {
            let length = (wire::HEADER + frame.len() - 1) as u16;
            frame.splice(0..0, [0xff; 16].into_iter().chain(length.to_be_bytes()));
        }
        let outputs = speaker.handle(Time::ZERO, Input::Frame(PEERS[0].into(), Side::Theirs, frame));
        for output in outputs {
            if let Output::Send(_, _, bytes) = output {
                // What is told on is a message that the other one reads.
                assert!(bytes.len() <= wire::LONGEST, "{} bytes", bytes.len());
                let read = wire::decode(&bytes, first & 2 == 0);
                assert!(read.is_ok(), "{read:?} of {bytes:?}");
            }
        }
    }
});
