//! The machine of one session: states and timers of RFC 4271, section 8, without I/O.
//!
//! A peer may have two connections for a moment: one that we opened and one that it opened. Each has its own state; RFC 4271
//! 6.8 decides which stays. Deadlines are values: [`Session::deadline`] says when [`Event::Tick`] is due.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use crate::Time;
use crate::wire::{Family, Graceful, Message, Notification, Open, Update};

/// Time between attempts to connect.
pub const CONNECT_RETRY: Duration = Duration::from_secs(5);
/// The longest time between attempts, after a peer refused us again and again.
pub const LONGEST_RETRY: Duration = Duration::from_secs(30);
/// For the first messages of a connection (RFC 4271: a large value).
const FIRST_HOLD: Duration = Duration::from_secs(60);
/// For a connection to be made.
const CONNECT_TIME: Duration = Duration::from_secs(15);

/// Which of a peer's two connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// We opened it.
    Ours,
    /// The peer opened it.
    Theirs,
}

impl Side {
    fn other(self) -> Self {
        if self == Self::Ours { Self::Theirs } else { Self::Ours }
    }
}

/// Configuration of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub asn: u32,
    pub id: Ipv4Addr,
    pub peer_asn: u32,
    /// Seconds without a message after which the peer is gone; 0 or at least 3.
    pub hold: u16,
    pub families: BTreeSet<Family>,
    /// Seconds that our routes may stay while we are away; none: no graceful restart.
    pub restart_time: Option<u16>,
}

/// What both speakers agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    pub families: BTreeSet<Family>,
    pub four_octet: bool,
    /// The peer sends its routes again when asked.
    pub refresh: bool,
    pub peer_id: Ipv4Addr,
    /// The peer's graceful restart, where we have it too.
    pub graceful: Option<Graceful>,
}

/// States of RFC 4271.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    Idle,
    Connect,
    Active,
    OpenSent,
    OpenConfirm,
    Established,
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The peer is configured.
    Start,
    /// The peer is configured no more; it is told why.
    Stop(Notification),
    /// Our attempt to connect ended.
    Dialed(bool),
    /// The peer connected.
    Accepted,
    Received(Side, Result<Message, Notification>),
    /// The connection ended.
    Closed(Side),
    /// A deadline may have passed.
    Tick,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Open a connection; its end is [`Event::Dialed`].
    Dial,
    Send(Side, Message),
    Close(Side),
    /// Routes may be exchanged by this connection.
    Up(Side, Agreed),
    /// No more. `graceful`: the peer's routes stay until it is back, or its time is over.
    Down {
        graceful: bool,
        reason: String,
    },
    Deliver(Update),
    /// The peer asks for all our routes of the family again.
    Resend(Family),
}

#[derive(Clone, Debug, PartialEq)]
struct Connection {
    state: State,
    /// Of the peer.
    open: Option<Open>,
    /// The peer has to be heard before; none: it need not.
    expires: Option<Time>,
    hold: Duration,
    /// When to send the next KEEPALIVE.
    keepalive: Option<Time>,
}

impl Connection {
    fn new(state: State, expires: Time) -> Self {
        Self { state, open: None, expires: Some(expires), hold: FIRST_HOLD, keepalive: None }
    }
}

/// One peer's session.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    settings: Settings,
    started: bool,
    connections: BTreeMap<Side, Connection>,
    /// When to connect next; none: not now.
    dial: Option<Time>,
    /// Sessions in a row that ended before routes were exchanged.
    failures: u32,
    /// Why it is not established.
    trouble: Option<String>,
}

impl Session {
    pub fn new(settings: Settings) -> Self {
        Self { settings, started: false, connections: BTreeMap::new(), dial: None, failures: 0, trouble: None }
    }

    pub fn state(&self) -> State {
        let furthest = self.connections.values().map(|connection| connection.state).max();
        furthest.unwrap_or(if self.started { State::Active } else { State::Idle })
    }

    /// Why the session is not established, as far as is known.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Whether the peer's messages on a connection have AS numbers of four octets.
    pub fn four_octet(&self, side: Side) -> bool {
        self.connections.get(&side).and_then(|connection| connection.open.as_ref()).is_none_or(|open| open.four_octet)
    }

    fn established(&self) -> Option<Side> {
        self.connections.iter().find(|(_, connection)| connection.state == State::Established).map(|(side, _)| *side)
    }

    /// When [`Event::Tick`] is due.
    pub fn deadline(&self) -> Option<Time> {
        let of = |connection: &Connection| [connection.expires, connection.keepalive];
        self.connections.values().flat_map(of).chain([self.dial]).flatten().min()
    }

    /// One step. `restarting`: we have restarted and still collect the others' routes.
    pub fn handle(&mut self, now: Time, restarting: bool, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Start => {
                self.started = true;
                self.dial = Some(now);
            }
            Event::Stop(why) => self.stop(&why, &mut actions),
            Event::Dialed(true) => self.opened(Side::Ours, now, restarting, &mut actions),
            Event::Dialed(false) => {
                self.connections.remove(&Side::Ours);
                self.trouble = Some("no connection to the peer".to_owned());
                self.retry(now);
            }
            Event::Accepted if !self.started => actions.push(Action::Close(Side::Theirs)),
            Event::Accepted => {
                // A newer connection means that the peer has forgotten the older.
                if self.connections.get(&Side::Theirs).is_some_and(|held| held.state != State::Established) {
                    self.connections.remove(&Side::Theirs);
                }
                if self.connections.contains_key(&Side::Theirs) {
                    self.down(Side::Theirs, true, "the peer connected anew", &mut actions);
                    self.connections.remove(&Side::Theirs);
                }
                self.opened(Side::Theirs, now, restarting, &mut actions);
            }
            Event::Received(side, message) => self.received(side, now, message, &mut actions),
            Event::Closed(side) => {
                self.down(side, true, "the connection ended", &mut actions);
                self.connections.remove(&side);
                self.retry(now);
            }
            Event::Tick => self.tick(now, &mut actions),
        }
        actions
    }

    fn stop(&mut self, why: &Notification, actions: &mut Vec<Action>) {
        for side in [Side::Ours, Side::Theirs] {
            self.down(side, false, &why.to_string(), actions);
            if let Some(connection) = self.connections.remove(&side) {
                if connection.state > State::Connect {
                    actions.push(Action::Send(side, Message::Notification(why.clone())));
                }
                actions.push(Action::Close(side));
            }
        }
        (self.started, self.dial) = (false, None);
    }

    /// A connection exists: we introduce ourselves.
    fn opened(&mut self, side: Side, now: Time, restarting: bool, actions: &mut Vec<Action>) {
        let Settings { asn, id, hold, families, restart_time, .. } = &self.settings;
        let graceful = restart_time.map(|time| Graceful { restarting, time, families: families.iter().map(|family| (*family, true)).collect() });
        let open = Open { asn: *asn, hold: *hold, id: *id, four_octet: true, families: families.clone(), refresh: true, graceful };
        self.connections.insert(side, Connection::new(State::OpenSent, now + FIRST_HOLD));
        actions.push(Action::Send(side, Message::Open(open)));
    }

    fn received(&mut self, side: Side, now: Time, message: Result<Message, Notification>, actions: &mut Vec<Action>) {
        let Some(connection) = self.connections.get_mut(&side) else { return };
        if connection.state >= State::OpenConfirm {
            connection.expires = (connection.hold != Duration::ZERO).then(|| now + connection.hold);
        }
        match (connection.state, message) {
            (_, Ok(Message::Notification(why))) => {
                self.down(side, false, &format!("the peer ended the session: {why}"), actions);
                self.trouble = Some(format!("the peer refuses the session: {why}"));
                self.connections.remove(&side);
                actions.push(Action::Close(side));
                self.failed(now);
            }
            (State::OpenSent, Ok(Message::Open(open))) => self.introduced(side, now, open, actions),
            (State::OpenConfirm, Ok(Message::Keepalive)) => self.confirmed(side, actions),
            (State::Established, Ok(Message::Keepalive)) => {}
            (State::Established, Ok(Message::Update(update))) => actions.push(Action::Deliver(update)),
            (State::Established, Ok(Message::Refresh(family))) => actions.extend(family.map(Action::Resend)),
            (_, Err(why)) => self.refuse(side, now, &why, actions),
            (state, Ok(_)) => {
                let number = match state {
                    State::OpenSent => 1,
                    State::OpenConfirm => 2,
                    _ => 3,
                };
                self.refuse(side, now, &Notification::unexpected(number), actions);
            }
        }
    }

    /// The peer introduced itself on a connection.
    fn introduced(&mut self, side: Side, now: Time, open: Open, actions: &mut Vec<Action>) {
        if open.asn != self.settings.peer_asn {
            self.refuse(side, now, &Notification::BAD_PEER_AS, actions);
            self.trouble = Some(format!("the peer's AS is {}, not {}", open.asn, self.settings.peer_asn));
            return;
        }
        if open.id == self.settings.id && open.asn == self.settings.asn {
            self.refuse(side, now, &Notification::BAD_ID, actions);
            self.trouble = Some(format!("the peer has our own router id {}", open.id));
            return;
        }
        match self.connections.get(&side.other()).map(|other| other.state) {
            Some(State::Established) if !self.graceful(side.other()) => return self.refuse(side, now, &Notification::COLLISION, actions),
            // The connection that the speaker with the greater id opened stays; of equal ids that of the greater AS (RFC 6286).
            Some(State::OpenConfirm) => {
                let ours = (self.settings.id, self.settings.asn) > (open.id, open.asn);
                let loser = if ours { Side::Theirs } else { Side::Ours };
                self.connections.remove(&loser);
                actions.push(Action::Send(loser, Message::Notification(Notification::COLLISION)));
                actions.push(Action::Close(loser));
                if loser == side {
                    return;
                }
            }
            _ => {}
        }
        let Some(connection) = self.connections.get_mut(&side) else { return };
        let hold = Duration::from_secs(self.settings.hold.min(open.hold).into());
        connection.state = State::OpenConfirm;
        connection.hold = hold;
        connection.expires = Some(now + if hold.is_zero() { FIRST_HOLD } else { hold });
        connection.keepalive = (!hold.is_zero()).then(|| now + hold / 3);
        connection.open = Some(open);
        actions.push(Action::Send(side, Message::Keepalive));
    }

    /// The peer has accepted what we said of ourselves.
    fn confirmed(&mut self, side: Side, actions: &mut Vec<Action>) {
        let other = side.other();
        // It has restarted, and we did not see the older connection end.
        self.down(other, true, "the peer connected anew", actions);
        if let Some(connection) = self.connections.remove(&other) {
            if connection.state > State::Connect {
                actions.push(Action::Send(other, Message::Notification(Notification::COLLISION)));
            }
            actions.push(Action::Close(other));
        }
        let agreed = self.agreed(side);
        let (Some(connection), Some(agreed)) = (self.connections.get_mut(&side), agreed) else { return };
        connection.state = State::Established;
        if connection.hold.is_zero() {
            connection.expires = None;
        }
        (self.failures, self.dial, self.trouble) = (0, None, None);
        actions.push(Action::Up(side, agreed));
    }

    fn agreed(&self, side: Side) -> Option<Agreed> {
        let open = self.connections.get(&side)?.open.as_ref()?;
        Some(Agreed {
            families: self.settings.families.intersection(&open.families).copied().collect(),
            four_octet: open.four_octet,
            refresh: open.refresh,
            peer_id: open.id,
            graceful: open.graceful.clone().filter(|_| self.settings.restart_time.is_some()),
        })
    }

    fn graceful(&self, side: Side) -> bool {
        self.agreed(side).and_then(|agreed| agreed.graceful).is_some_and(|graceful| !graceful.families.is_empty())
    }

    /// Says so where routes were exchanged by that connection.
    fn down(&mut self, side: Side, graceful: bool, reason: &str, actions: &mut Vec<Action>) {
        if self.established() == Some(side) {
            self.trouble = Some(reason.to_owned());
            actions.push(Action::Down { graceful: graceful && self.graceful(side), reason: reason.to_owned() });
        }
    }

    /// Ends a connection and says why.
    fn refuse(&mut self, side: Side, now: Time, why: &Notification, actions: &mut Vec<Action>) {
        self.down(side, false, &format!("we ended the session: {why}"), actions);
        self.trouble = Some(format!("the session was ended: {why}"));
        self.connections.remove(&side);
        actions.push(Action::Send(side, Message::Notification(why.clone())));
        actions.push(Action::Close(side));
        self.failed(now);
    }

    fn failed(&mut self, now: Time) {
        self.failures += 1;
        self.retry(now);
    }

    /// Connects again later, unless another connection is there.
    fn retry(&mut self, now: Time) {
        if self.started && self.connections.is_empty() {
            let wait = CONNECT_RETRY * self.failures.clamp(1, 6);
            self.dial = Some(now + wait.min(LONGEST_RETRY));
        }
    }

    fn tick(&mut self, now: Time, actions: &mut Vec<Action>) {
        for side in [Side::Ours, Side::Theirs] {
            let Some(connection) = self.connections.get_mut(&side) else { continue };
            if connection.expires.is_some_and(|at| at <= now) {
                if connection.state == State::Connect {
                    self.connections.remove(&side);
                    actions.push(Action::Close(side));
                    self.trouble = Some("no connection to the peer".to_owned());
                    self.retry(now);
                } else {
                    self.refuse(side, now, &Notification::HOLD_TIMER_EXPIRED, actions);
                }
            } else if connection.keepalive.is_some_and(|at| at <= now) {
                connection.keepalive = Some(now + connection.hold / 3);
                actions.push(Action::Send(side, Message::Keepalive));
            }
        }
        if self.dial.is_some_and(|at| at <= now) {
            self.dial = None;
            if self.connections.is_empty() {
                self.connections.insert(Side::Ours, Connection::new(State::Connect, now + CONNECT_TIME));
                actions.push(Action::Dial);
            }
        }
    }
}

#[cfg(test)]
mod tests;
