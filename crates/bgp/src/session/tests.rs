//! Tests of one session: events in, actions out.

use super::*;

const S: Duration = Duration::from_secs(1);

fn settings() -> Settings {
    Settings {
        asn: 64512,
        id: "10.0.0.2".parse().unwrap(),
        peer_asn: 64600,
        hold: 90,
        families: [Family::V4, Family::V6].into(),
        restart_time: Some(120),
    }
}

fn open(id: &str) -> Open {
    Open {
        asn: 64600,
        hold: 30,
        id: id.parse().unwrap(),
        four_octet: true,
        families: [Family::V4].into(),
        refresh: true,
        graceful: Some(Graceful { restarting: false, time: 60, families: [(Family::V4, true)].into() }),
    }
}

/// Actions as short words.
fn words(actions: &[Action]) -> Vec<String> {
    let word = |action: &Action| match action {
        Action::Send(side, Message::Notification(why)) => format!("send {side:?} {why}"),
        Action::Send(side, message) => format!("send {side:?} {}", message.name()),
        Action::Close(side) => format!("close {side:?}"),
        Action::Up(side, _) => format!("up {side:?}"),
        Action::Down { graceful, .. } => format!("down{}", if *graceful { " gracefully" } else { "" }),
        other => format!("{other:?}"),
    };
    actions.iter().map(word).collect()
}

struct Run(Session);

impl Run {
    fn step(&mut self, at: Duration, event: Event) -> Vec<String> {
        words(&self.0.handle(at, false, event))
    }

    fn hears(&mut self, at: Duration, side: Side, message: Message) -> Vec<String> {
        self.step(at, Event::Received(side, Ok(message)))
    }

    /// By our connection.
    fn established(settings: Settings, open: Open) -> Self {
        let mut run = Self(Session::new(settings));
        run.step(Duration::ZERO, Event::Start);
        assert_eq!(run.step(Duration::ZERO, Event::Tick), ["Dial"]);
        assert_eq!(run.step(S, Event::Dialed(true)), ["send Ours OPEN"]);
        assert_eq!(run.hears(S, Side::Ours, Message::Open(open)), ["send Ours KEEPALIVE"]);
        assert_eq!(run.hears(S, Side::Ours, Message::Keepalive), ["up Ours"]);
        assert_eq!(run.0.state(), State::Established);
        run
    }
}

#[test]
fn session_keeps_alive_and_ends_when_the_peer_is_silent() {
    let mut run = Run::established(settings(), open("10.0.0.9"));
    assert_eq!(run.0.deadline(), Some(S * 11), "a third of the smaller hold time");
    assert_eq!(run.step(S * 11, Event::Tick), ["send Ours KEEPALIVE"]);
    run.hears(S * 12, Side::Ours, Message::Keepalive);
    assert_eq!(run.step(S * 21, Event::Tick), ["send Ours KEEPALIVE"]);
    assert_eq!(run.step(S * 42, Event::Tick), ["down", "send Ours hold timer expired (4/0)", "close Ours"]);
    assert_eq!((run.0.state(), run.0.deadline()), (State::Active, Some(S * 47)), "it connects again");
    assert_eq!(run.step(S * 47, Event::Tick), ["Dial"]);
}

#[test]
fn hold_time_of_zero_needs_no_keepalives() {
    let run = Run::established(settings(), Open { hold: 0, ..open("10.0.0.9") });
    assert_eq!(run.0.deadline(), None);
}

#[test]
fn attempts_go_on_and_wait_longer_after_refusals() {
    let mut run = Run(Session::new(settings()));
    run.step(Duration::ZERO, Event::Start);
    run.step(Duration::ZERO, Event::Tick);
    assert_eq!(run.step(S, Event::Dialed(false)), [""; 0]);
    assert_eq!(run.0.deadline(), Some(S * 6));
    let mut now = S * 6;
    for wait in [5, 10, 15, 20, 25, 30, 30] {
        assert_eq!(run.step(now, Event::Tick), ["Dial"]);
        run.step(now, Event::Dialed(true));
        assert_eq!(run.hears(now, Side::Ours, Message::Notification(Notification::REJECTED)), ["close Ours"]);
        assert_eq!(run.0.deadline(), Some(now + S * wait));
        now += S * wait;
    }
    assert_eq!(run.0.trouble(), Some("the peer refuses the session: connection rejected (6/5)"));
}

#[test]
fn wrong_speakers_are_refused() {
    let mut run = Run(Session::new(settings()));
    run.step(Duration::ZERO, Event::Start);
    assert_eq!(run.step(Duration::ZERO, Event::Accepted), ["send Theirs OPEN"]);
    let other_system = Open { asn: 1, ..open("10.0.0.9") };
    assert_eq!(run.hears(S, Side::Theirs, Message::Open(other_system)), ["send Theirs bad peer AS (2/2)", "close Theirs"]);
    let mut inside = Run(Session::new(Settings { peer_asn: 64512, ..settings() }));
    inside.step(Duration::ZERO, Event::Start);
    inside.step(Duration::ZERO, Event::Accepted);
    let own_id = Open { asn: 64512, ..open("10.0.0.2") };
    assert_eq!(inside.hears(S, Side::Theirs, Message::Open(own_id)), ["send Theirs bad BGP identifier (2/3)", "close Theirs"]);
}

#[test]
fn messages_of_other_states_end_the_connection() {
    let mut run = Run(Session::new(settings()));
    run.step(Duration::ZERO, Event::Start);
    run.step(Duration::ZERO, Event::Accepted);
    assert_eq!(run.hears(S, Side::Theirs, Message::Keepalive), ["send Theirs unexpected message (5/1)", "close Theirs"]);
    let mut run = Run::established(settings(), open("10.0.0.9"));
    assert_eq!(run.hears(S, Side::Ours, Message::Open(open("10.0.0.9"))), ["down", "send Ours unexpected message (5/3)", "close Ours"]);
}

/// Both connect at once; our OPEN goes out on both.
fn collision(their_id: &str) -> (Run, Vec<String>) {
    let mut run = Run(Session::new(settings()));
    run.step(Duration::ZERO, Event::Start);
    run.step(Duration::ZERO, Event::Tick);
    run.step(Duration::ZERO, Event::Accepted);
    run.step(Duration::ZERO, Event::Dialed(true));
    assert_eq!(run.hears(S, Side::Ours, Message::Open(open(their_id))), ["send Ours KEEPALIVE"]);
    let seen = run.hears(S, Side::Theirs, Message::Open(open(their_id)));
    (run, seen)
}

#[test]
fn of_two_connections_that_of_the_greater_id_stays() {
    let (mut run, seen) = collision("10.0.0.9");
    assert_eq!(seen, ["send Ours connection collision (6/7)", "close Ours", "send Theirs KEEPALIVE"]);
    assert_eq!(run.hears(S, Side::Theirs, Message::Keepalive), ["up Theirs"]);
    let (mut run, seen) = collision("10.0.0.1");
    assert_eq!(seen, ["send Theirs connection collision (6/7)", "close Theirs"]);
    assert_eq!(run.hears(S, Side::Ours, Message::Keepalive), ["up Ours"]);
}

#[test]
fn established_session_is_replaced_only_by_a_peer_that_restarts_gracefully() {
    let mut run = Run::established(settings(), open("10.0.0.9"));
    assert_eq!(run.step(S, Event::Accepted), ["send Theirs OPEN"]);
    assert_eq!(run.hears(S, Side::Theirs, Message::Open(open("10.0.0.9"))), ["send Theirs KEEPALIVE"], "the older one goes on until then");
    let seen = run.hears(S, Side::Theirs, Message::Keepalive);
    assert_eq!(seen, ["down gracefully", "send Ours connection collision (6/7)", "close Ours", "up Theirs"]);

    let mut run = Run::established(settings(), Open { graceful: None, ..open("10.0.0.9") });
    run.step(S, Event::Accepted);
    let seen = run.hears(S, Side::Theirs, Message::Open(Open { graceful: None, ..open("10.0.0.9") }));
    assert_eq!(seen, ["send Theirs connection collision (6/7)", "close Theirs"]);
    assert_eq!(run.0.state(), State::Established);
}

#[test]
fn routes_stay_only_when_the_connection_just_ends() {
    let mut run = Run::established(settings(), open("10.0.0.9"));
    assert_eq!(run.step(S, Event::Closed(Side::Ours)), ["down gracefully"]);
    let mut run = Run::established(settings(), open("10.0.0.9"));
    assert_eq!(run.hears(S, Side::Ours, Message::Notification(Notification::new(6, 2))), ["down", "close Ours"]);
    let mut run = Run::established(Settings { restart_time: None, ..settings() }, open("10.0.0.9"));
    assert_eq!(run.step(S, Event::Closed(Side::Ours)), ["down"]);
    let mut run = Run::established(settings(), open("10.0.0.9"));
    assert_eq!(run.step(S, Event::Stop(Notification::DECONFIGURED)), ["down", "send Ours peer de-configured (6/3)", "close Ours"]);
    assert_eq!(run.0.deadline(), None);
    assert_eq!(run.step(S, Event::Accepted), ["close Theirs"]);
}
