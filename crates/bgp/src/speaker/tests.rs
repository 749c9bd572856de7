//! Tests of speakers that talk to each other, with a clock and connections of the test's.

use std::collections::VecDeque;

use super::*;

const S: Duration = Duration::from_secs(1);

fn ip(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn peer(asn: u32, own: u8, other: u8) -> Peer {
    Peer {
        name: format!("p{other}"),
        asn,
        connect: Connect { port: 179, local: ip(own), password: None },
        families: [Family::V4].into(),
        client: false,
        keep_next_hop: false,
        own_as_allowed: 0,
        longest_restart: 120,
    }
}

/// A speaker of AS 64512 that announces 192.168.N.0/24 and has those peers.
fn config(own: u8, peers: &[(u8, u32)]) -> Config {
    Config {
        asn: 64512,
        id: [10, 0, 0, own].into(),
        hold: 90,
        restart_time: Some(120),
        cluster: None,
        local_pref: 100,
        next_hop_v4: Some(ip(own)),
        next_hop_v6: None,
        forward: vec![net("192.168.0.0/16")],
        announce: [net(&format!("192.168.{own}.0/24"))].into(),
        peers: peers.iter().map(|(other, asn)| (ip(*other), peer(*asn, own, *other))).collect(),
    }
}

/// A connection: who opened it, who was asked.
type Pair = (IpAddr, IpAddr);

/// A connection by its ends and its number.
type Numbered = (Pair, u64);

#[derive(Default)]
struct World {
    now: Time,
    speakers: BTreeMap<IpAddr, Speaker>,
    connections: BTreeMap<Pair, u64>,
    numbers: u64,
    /// For whom, of which connection, what.
    queue: VecDeque<(IpAddr, Option<Numbered>, Input)>,
    notes: Vec<String>,
    /// Messages that announce or withdraw routes.
    updates: usize,
    /// How often a speaker had no routes, and said that this is all.
    gaps: usize,
}

impl World {
    fn of(configs: &[Config]) -> Self {
        let mut world = Self::default();
        for config in configs {
            world.start(config.clone(), false);
        }
        world.settle();
        world
    }

    fn start(&mut self, config: Config, restarted: bool) {
        let address = IpAddr::V4(config.id);
        let (speaker, outputs) = Speaker::new(self.now, config, restarted);
        self.speakers.insert(address, speaker);
        self.carry_out(address, outputs);
    }

    fn carry_out(&mut self, own: IpAddr, outputs: Vec<Output>) {
        let pair = |peer: IpAddr, side: Side| if side == Side::Ours { (own, peer) } else { (peer, own) };
        let flipped = |side: Side| if side == Side::Ours { Side::Theirs } else { Side::Ours };
        for output in outputs {
            match output {
                Output::Dial(peer) if self.speakers.contains_key(&peer) => {
                    self.numbers += 1;
                    self.connections.insert((own, peer), self.numbers);
                    self.queue.push_back((own, None, Input::Dialed(peer, true)));
                    self.queue.push_back((peer, None, Input::Accepted(own)));
                }
                Output::Dial(peer) => self.queue.push_back((own, None, Input::Dialed(peer, false))),
                Output::Send(peer, side, bytes) => {
                    self.updates += usize::from(bytes[18] == 2 && bytes.len() > 23);
                    let key = pair(peer, side);
                    if let Some(number) = self.connections.get(&key) {
                        self.queue.push_back((peer, Some((key, *number)), Input::Frame(own, flipped(side), bytes)));
                    }
                }
                Output::Close(peer, side) => {
                    let key = pair(peer, side);
                    if let Some(number) = self.connections.get(&key).copied() {
                        self.queue.push_back((peer, Some((key, number)), Input::Closed(own, flipped(side))));
                    }
                }
                Output::Note(text) => self.notes.push(format!("{own}: {text}")),
            }
        }
    }

    fn input(&mut self, own: IpAddr, input: Input) {
        let Some(speaker) = self.speakers.get_mut(&own) else { return };
        let outputs = speaker.handle(self.now, input);
        self.gaps += usize::from(speaker.is_whole() && speaker.routes().is_empty());
        self.carry_out(own, outputs);
    }

    /// Everything that happens without the clock.
    fn settle(&mut self) {
        loop {
            while let Some((own, connection, input)) = self.queue.pop_front() {
                if let Some((pair, number)) = connection {
                    if self.connections.get(&pair) != Some(&number) {
                        continue;
                    }
                    if matches!(input, Input::Closed(..)) {
                        self.connections.remove(&pair);
                    }
                }
                self.input(own, input);
            }
            let due: Vec<IpAddr> =
                self.speakers.iter().filter(|(_, speaker)| speaker.deadline().is_some_and(|at| at <= self.now)).map(|(own, _)| *own).collect();
            if due.is_empty() {
                return;
            }
            due.into_iter().for_each(|own| self.input(own, Input::Tick));
        }
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(next) = self.speakers.values().filter_map(Speaker::deadline).min().filter(|at| *at <= end) {
            self.now = self.now.max(next);
            self.settle();
        }
        self.now = end;
        self.settle();
    }

    /// Ends as a program does that is killed: its connections end, and nobody is told why.
    fn kill(&mut self, last: u8) {
        self.speakers.remove(&ip(last));
        let gone: Vec<(Pair, u64)> =
            self.connections.iter().filter(|((a, b), _)| [*a, *b].contains(&ip(last))).map(|(pair, n)| (*pair, *n)).collect();
        for ((opener, asked), number) in gone {
            let (other, side) = if opener == ip(last) { (asked, Side::Theirs) } else { (opener, Side::Ours) };
            self.queue.push_back((other, Some(((opener, asked), number)), Input::Closed(ip(last), side)));
        }
        self.settle();
    }

    fn routes(&self, last: u8) -> Vec<String> {
        self.speakers[&ip(last)].routes().iter().map(|(prefix, learned)| format!("{prefix} via {}", learned.next_hop)).collect()
    }

    fn state(&self, own: u8, other: u8) -> State {
        self.speakers[&ip(own)].status()[&ip(other)].state
    }
}

fn mesh() -> World {
    World::of(&[config(1, &[(2, 64512), (3, 64512)]), config(2, &[(1, 64512), (3, 64512)]), config(3, &[(1, 64512), (2, 64512)])])
}

#[test]
fn mesh_learns_every_route_from_its_owner() {
    let mut world = mesh();
    assert_eq!(world.routes(1), ["192.168.2.0/24 via 10.0.0.2", "192.168.3.0/24 via 10.0.0.3"]);
    assert_eq!(world.routes(3), ["192.168.1.0/24 via 10.0.0.1", "192.168.2.0/24 via 10.0.0.2"]);
    let updates = world.updates;
    world.pass(S * 1000);
    assert_eq!((world.updates, world.state(1, 2)), (updates, State::Established), "keepalives alone pass");
    let more = Config { announce: [net("192.168.1.0/24"), net("192.168.77.0/24")].into(), ..config(1, &[(2, 64512), (3, 64512)]) };
    world.input(ip(1), Input::Configure(more));
    world.settle();
    assert_eq!(world.updates, updates + 2, "each peer is told what changed");
    assert!(world.routes(2).contains(&"192.168.77.0/24 via 10.0.0.1".to_owned()));
    world.input(ip(1), Input::Configure(config(1, &[(2, 64512), (3, 64512)])));
    world.settle();
    assert_eq!(world.routes(2), ["192.168.1.0/24 via 10.0.0.1", "192.168.3.0/24 via 10.0.0.3"]);
}

#[test]
fn routes_of_a_killed_peer_stay_until_its_time_is_over() {
    let mut world = mesh();
    world.kill(2);
    assert!(world.speakers[&ip(1)].status()[&ip(2)].stale);
    world.pass(S * 119);
    assert_eq!(world.routes(1).len(), 2);
    world.pass(S * 2);
    assert_eq!(world.routes(1), ["192.168.3.0/24 via 10.0.0.3"]);
}

#[test]
fn restart_goes_by_without_a_change_of_routes() {
    let mut world = mesh();
    world.kill(2);
    for speaker in world.speakers.values_mut() {
        speaker.take_changed();
    }
    world.pass(S * 3);
    world.start(config(2, &[(1, 64512), (3, 64512)]), true);
    assert!(!world.speakers[&ip(2)].is_whole(), "routes of before still have to stay");
    world.pass(S * 10);
    assert!(world.speakers[&ip(2)].is_whole());
    assert_eq!(world.routes(2), ["192.168.1.0/24 via 10.0.0.1", "192.168.3.0/24 via 10.0.0.3"]);
    for other in [1, 3] {
        assert!(!world.speakers.get_mut(&ip(other)).unwrap().take_changed(), "nothing changed for packets");
        assert!(!world.speakers[&ip(other)].status()[&ip(2)].stale);
    }
}

#[test]
fn restarted_speaker_waits_for_a_dead_peer_no_longer_than_its_time() {
    let mut world = mesh();
    world.kill(2);
    world.kill(3);
    world.start(config(2, &[(1, 64512), (3, 64512)]), true);
    world.pass(S * 119);
    assert!(!world.speakers[&ip(2)].is_whole());
    world.pass(S * 2);
    assert!(world.speakers[&ip(2)].is_whole());
}

#[test]
fn two_that_restart_at_once_do_not_wait_for_each_other() {
    let mut world = World::of(&[config(1, &[(2, 64512)]), config(2, &[(1, 64512)])]);
    world.kill(1);
    world.kill(2);
    world.start(config(1, &[(2, 64512)]), true);
    world.start(config(2, &[(1, 64512)]), true);
    world.gaps = 0;
    world.pass(S * 20);
    assert!(world.speakers[&ip(1)].is_whole() && world.speakers[&ip(2)].is_whole());
    assert_eq!(world.gaps, 0, "the routes of before stay until the others are there");
}

#[test]
fn removed_peer_is_told_and_forgotten_at_once() {
    let mut world = mesh();
    world.input(ip(1), Input::Configure(config(1, &[(3, 64512)])));
    world.settle();
    assert_eq!(world.routes(1), ["192.168.3.0/24 via 10.0.0.3"]);
    assert_eq!(world.routes(2), ["192.168.3.0/24 via 10.0.0.3"]);
    let trouble = world.speakers[&ip(2)].status()[&ip(1)].trouble.clone();
    assert_eq!(trouble.as_deref(), Some("the peer refuses the session: peer de-configured (6/3)"));
}

#[test]
fn reflector_joins_clients_that_have_no_session() {
    let mut reflector = config(1, &[(2, 64512), (3, 64512)]);
    reflector.cluster = "1.1.1.1".parse().ok();
    reflector.peers.values_mut().for_each(|peer| peer.client = true);
    let world = World::of(&[reflector, config(2, &[(1, 64512)]), config(3, &[(1, 64512)])]);
    assert_eq!(world.routes(2), ["192.168.1.0/24 via 10.0.0.1", "192.168.3.0/24 via 10.0.0.3"], "packets do not pass the reflector");
    let without = World::of(&[config(1, &[(2, 64512), (3, 64512)]), config(2, &[(1, 64512)]), config(3, &[(1, 64512)])]);
    assert_eq!(without.routes(2), ["192.168.1.0/24 via 10.0.0.1"]);
}

#[test]
fn nodes_with_ases_of_their_own_learn_through_their_router() {
    let own = |last: u8, asn| Config { asn, ..config(last, &[(9, 64600)]) };
    let router = Config { asn: 64600, announce: BTreeSet::new(), ..config(9, &[(1, 4_200_000_001), (2, 4_200_000_002)]) };
    let world = World::of(&[own(1, 4_200_000_001), own(2, 4_200_000_002), router.clone()]);
    assert_eq!(world.routes(1), ["192.168.2.0/24 via 10.0.0.9"]);
    let one_as = Config { peers: config(9, &[(1, 64512), (2, 64512)]).peers, ..router };
    let mut world = World::of(&[config(1, &[(9, 64600)]), config(2, &[(9, 64600)]), one_as]);
    assert!(world.routes(1).is_empty(), "the own AS is on the way");
    let mut allowed = config(1, &[(9, 64600)]);
    allowed.peers.values_mut().for_each(|peer| peer.own_as_allowed = 1);
    world.input(ip(1), Input::Configure(allowed));
    world.settle();
    assert_eq!(world.routes(1), ["192.168.2.0/24 via 10.0.0.9"], "the router was asked for its routes again");
    assert!(world.notes.iter().any(|note| note.contains("told all routes of IPv4 again")), "{:?}", world.notes);
}

#[test]
fn session_of_another_configuration_begins_anew() {
    let mut world = World::of(&[config(1, &[(2, 64512)]), config(2, &[(1, 64512)])]);
    let mut other = config(1, &[(2, 64512)]);
    other.peers.get_mut(&ip(2)).unwrap().connect.password = Some(Secret::new("s3cret"));
    assert!(!format!("{other:?}").contains("s3cret"));
    world.input(ip(1), Input::Configure(other.clone()));
    world.pass(S * 40);
    assert_eq!(world.routes(1), ["192.168.2.0/24 via 10.0.0.2"]);
    let before = world.notes.len();
    world.input(ip(1), Input::Configure(other));
    world.settle();
    assert_eq!(world.notes.len(), before, "the same configuration changes nothing");
}

#[test]
fn ten_thousand_routes_pass_in_few_messages() {
    let many = Config {
        announce: (0..10_000u32).map(|n| IpNet::new(IpAddr::from((0xc0a8_0000 + (n << 4)).to_be_bytes()), 28).unwrap()).collect(),
        ..config(1, &[(2, 64512)])
    };
    let world = World::of(&[many, config(2, &[(1, 64512)])]);
    assert_eq!(world.routes(2).len(), 10_000);
    assert!(world.updates < 20, "{} messages", world.updates);
}

/// An UPDATE with what a peer may say: attributes of both families, with some bytes changed.
fn mutated(changes: &[(usize, u8)], cut: Option<usize>) -> Vec<u8> {
    let attributes: [&[u8]; 9] = [
        &[0x80, 14, 30, 0, 2, 1, 16, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 64, 0xfd, 0, 0, 2, 0, 0, 0, 0],
        &[0x40, 1, 1, 0],
        &[0x40, 2, 6, 2, 1, 0, 0, 0xfc, 0x58],
        &[0x40, 3, 4, 10, 0, 0, 9],
        &[0x80, 4, 4, 0, 0, 0, 7],
        &[0x40, 5, 4, 0, 0, 0, 100],
        &[0xc0, 7, 8, 0, 0, 0xfc, 0x58, 10, 0, 0, 9],
        &[0xc0, 8, 4, 0xfc, 0x58, 0, 1],
        &[0xe0, 99, 3, 1, 2, 3],
    ];
    let attributes = attributes.concat();
    let mut body = vec![2, 0, 0];
    body.extend((attributes.len() as u16).to_be_bytes());
    body.extend(attributes);
    body.extend([24, 192, 168, 77, 16, 192, 168]);
    for (at, byte) in changes {
        let at = at % body.len();
        body[at] ^= byte;
    }
    body.truncate(cut.unwrap_or(usize::MAX).max(1));
    let mut frame = vec![0xff; 16];
    frame.extend(((18 + body.len()) as u16).to_be_bytes());
    frame.extend(body);
    frame
}

proptest::proptest! {
    #[test]
    fn what_is_told_on_can_be_read_whatever_came(
        changes in proptest::collection::vec((proptest::prelude::any::<usize>(), 0u8..), 0..4), cut in proptest::option::of(0usize..140), two_octets: bool,
    ) {
        let mut own = config(1, &[(2, 64512), (3, 64512)]);
        (own.cluster, own.next_hop_v6) = ("1.1.1.1".parse().ok(), "fd00::1".parse().ok());
        own.forward = vec![net("0.0.0.0/0"), net("::/0")];
        own.peers.values_mut().for_each(|peer| (peer.client, peer.families) = (true, Family::ALL.into()));
        let (mut speaker, _) = Speaker::new(S, own, false);
        for (last, four_octet) in [(2, true), (3, !two_octets)] {
            let open = wire::Open { asn: 64512, hold: 90, id: [10, 0, 0, last].into(), four_octet, families: Family::ALL.into(), refresh: true, graceful: None };
            speaker.handle(S, Input::Accepted(ip(last)));
            for message in [Message::Open(open), Message::Keepalive] {
                speaker.handle(S, Input::Frame(ip(last), Side::Theirs, wire::encode(&message)));
            }
        }
        for output in speaker.handle(S, Input::Frame(ip(2), Side::Theirs, mutated(&changes, cut))) {
            if let Output::Send(_, _, bytes) = output {
                let read = wire::decode(&bytes, !two_octets);
                proptest::prop_assert!(read.is_ok() && bytes.len() <= wire::LONGEST, "{read:?} of {bytes:?}");
                if let Ok(Message::Update(update)) = read {
                    proptest::prop_assert_eq!(update.malformed, None);
                }
            }
        }
    }
}
