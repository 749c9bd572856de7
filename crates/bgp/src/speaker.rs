//! A speaker: the sessions of all peers over one set of tables. Inputs in, outputs out; the caller has the sockets and the clock.

mod config;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use crate::Time;
use crate::rib::{Limits, Rib, Rules, Source, Told, tell};
use crate::session::{Action, Agreed, Event, Session, Side, State};
use crate::wire::{self, Family, Message, Notification, Update};

pub use config::{Config, Connect, Peer, Secret};

/// A peer that is back has this time to tell its routes anew, before those of its earlier session go.
const RELEARN: Duration = Duration::from_secs(360);
/// The most routes of one peer.
const MOST_ROUTES: usize = 200_000;

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// The configuration, whether or not it changed.
    Configure(Config),
    /// The attempt to connect to a peer ended.
    Dialed(IpAddr, bool),
    /// A peer connected.
    Accepted(IpAddr),
    /// A whole message came.
    Frame(IpAddr, Side, Vec<u8>),
    /// Bytes came that begin no message.
    Broken(IpAddr, Side, Notification),
    /// A connection ended.
    Closed(IpAddr, Side),
    /// [`Speaker::deadline`] has passed.
    Tick,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Connect to a peer.
    Dial(IpAddr),
    Send(IpAddr, Side, Vec<u8>),
    /// Close a connection after what was sent on it.
    Close(IpAddr, Side),
    /// A line for the log.
    Note(String),
}

/// A route to install.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Learned {
    pub next_hop: IpAddr,
    /// The peer that told it.
    pub peer: IpAddr,
}

/// A peer, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    pub name: String,
    pub state: State,
    pub trouble: Option<String>,
    /// Routes that it told.
    pub received: usize,
    /// Routes that it was told.
    pub sent: usize,
    /// Its routes wait for its return.
    pub stale: bool,
}

#[derive(Debug)]
struct Held {
    config: Peer,
    session: Session,
    up: Option<(Side, Agreed)>,
    /// Prefixes that it was told.
    told: BTreeSet<IpNet>,
    /// Families of which it told everything.
    ended: BTreeSet<Family>,
    /// It was told that it knows everything.
    finished: bool,
}

impl Held {
    fn new(config: Peer, session: Session) -> Self {
        Self { config, session, up: None, told: BTreeSet::new(), ended: BTreeSet::new(), finished: false }
    }

    /// Whether a restarted speaker has to wait for it no longer before it says that it told everything. Of two that restart, neither waits.
    fn settled(&self) -> bool {
        self.told_all() || self.up.as_ref().and_then(|(_, agreed)| agreed.graceful.as_ref()).is_some_and(|graceful| graceful.restarting)
    }

    /// Whether it told everything, or will not say when it did.
    fn told_all(&self) -> bool {
        self.up.as_ref().is_some_and(|(_, agreed)| agreed.graceful.is_none() || agreed.families.is_subset(&self.ended))
    }
}

/// The speaker.
#[derive(Debug)]
pub struct Speaker {
    config: Config,
    peers: BTreeMap<IpAddr, Held>,
    rib: Rib,
    /// Until then, at most, it says that it restarts, and tells no peer that it told everything.
    restarting: Option<Time>,
    /// Until then, at most, the routes of before the restart stay. It may be longer: a peer that restarts too tells its routes only after it
    /// heard that it was told everything.
    partial: Option<Time>,
    changed: bool,
}

impl Speaker {
    /// `restarted`: routes of an earlier run are in use, and stay until the peers have told theirs again.
    pub fn new(now: Time, config: Config, restarted: bool) -> (Self, Vec<Output>) {
        let wait = Duration::from_secs(config.restart_time.unwrap_or(0).into());
        let restarting = (restarted && !wait.is_zero()).then_some(now + wait);
        let blank = Config { peers: BTreeMap::new(), announce: BTreeSet::new(), ..config.clone() };
        let mut speaker = Self { config: blank, peers: BTreeMap::new(), rib: Rib::default(), restarting, partial: restarting, changed: true };
        let outputs = speaker.handle(now, Input::Configure(config));
        (speaker, outputs)
    }

    /// The best routes that peers told, by prefix.
    pub fn routes(&self) -> BTreeMap<IpNet, Learned> {
        self.rib.best().iter().map(|(prefix, path)| (*prefix, Learned { next_hop: path.next_hop, peer: path.from })).collect()
    }

    /// Whether the routes are whole: false shortly after a restart, when those of before still have to stay.
    pub fn is_whole(&self) -> bool {
        self.partial.is_none()
    }

    /// Whether routes or their wholeness changed since the last question.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    pub fn status(&self) -> BTreeMap<IpAddr, PeerStatus> {
        let of = |(address, held): (&IpAddr, &Held)| {
            let status = PeerStatus {
                name: held.config.name.clone(),
                state: held.session.state(),
                trouble: held.session.trouble().map(str::to_owned),
                received: self.rib.count(*address),
                sent: held.told.len(),
                stale: self.rib.stale(*address),
            };
            (*address, status)
        };
        self.peers.iter().map(of).collect()
    }

    /// When [`Input::Tick`] is due.
    pub fn deadline(&self) -> Option<Time> {
        let sessions = self.peers.values().filter_map(|held| held.session.deadline());
        sessions.chain(self.rib.deadline()).chain(self.restarting).chain(self.partial).min()
    }

    /// One step.
    pub fn handle(&mut self, now: Time, input: Input) -> Vec<Output> {
        let mut outputs = Vec::new();
        match input {
            Input::Configure(config) => self.configure(now, config, &mut outputs),
            Input::Dialed(peer, made) => self.session(now, peer, Event::Dialed(made), &mut outputs),
            Input::Accepted(peer) => self.session(now, peer, Event::Accepted, &mut outputs),
            Input::Frame(peer, side, frame) => {
                let four_octet = self.peers.get(&peer).is_none_or(|held| held.session.four_octet(side));
                self.session(now, peer, Event::Received(side, wire::decode(&frame, four_octet)), &mut outputs);
            }
            Input::Broken(peer, side, why) => self.session(now, peer, Event::Received(side, Err(why)), &mut outputs),
            Input::Closed(peer, side) => self.session(now, peer, Event::Closed(side), &mut outputs),
            Input::Tick => {
                let due = |held: &Held| held.session.deadline().is_some_and(|at| at <= now);
                let due: Vec<IpAddr> = self.peers.iter().filter(|(_, held)| due(held)).map(|(peer, _)| *peer).collect();
                due.into_iter().for_each(|peer| self.session(now, peer, Event::Tick, &mut outputs));
                let changed = self.rib.expire(now);
                self.spread(&changed, &mut outputs);
            }
        }
        self.finish(now, &mut outputs);
        outputs
    }

    fn configure(&mut self, now: Time, config: Config, outputs: &mut Vec<Output>) {
        let all_anew = !self.config.speaks_as(&config);
        let changed = self.rib.set_own(config.announce.clone());
        let gone: Vec<IpAddr> = self.peers.keys().filter(|peer| !config.peers.contains_key(peer)).copied().collect();
        for peer in gone {
            self.session(now, peer, Event::Stop(Notification::DECONFIGURED), outputs);
            self.peers.remove(&peer);
            let changed = self.rib.forget(peer);
            self.spread(&changed, outputs);
        }
        let anew = |held: &Held, peer: &Peer| all_anew || !held.config.connects_as(peer);
        for (address, peer) in &config.peers {
            if self.peers.get(address).is_some_and(|held| anew(held, peer)) {
                self.session(now, *address, Event::Stop(Notification::CONFIGURATION_CHANGED), outputs);
                self.peers.remove(address);
            }
        }
        self.config = config;
        for (address, peer) in self.config.peers.clone() {
            match self.peers.get_mut(&address) {
                None => {
                    let session = Session::new(self.config.session(&peer));
                    self.peers.insert(address, Held::new(peer, session));
                    self.session(now, address, Event::Start, outputs);
                }
                Some(held) => {
                    let refused = held.config.own_as_allowed != peer.own_as_allowed;
                    held.config = peer;
                    if refused {
                        self.ask_again(now, address, outputs);
                    }
                }
            }
        }
        self.spread(&changed, outputs);
    }

    /// Which routes of a peer are refused has changed: it tells all of them again, or its session begins anew.
    fn ask_again(&mut self, now: Time, address: IpAddr, outputs: &mut Vec<Output>) {
        match self.peers.get(&address).and_then(|held| held.up.clone()) {
            Some((side, agreed)) if agreed.refresh => {
                let ask = |family| Output::Send(address, side, wire::encode(&Message::Refresh(Some(family))));
                outputs.extend(agreed.families.into_iter().map(ask));
            }
            Some(_) => {
                self.session(now, address, Event::Stop(Notification::CONFIGURATION_CHANGED), outputs);
                self.session(now, address, Event::Start, outputs);
            }
            None => {}
        }
    }

    fn session(&mut self, now: Time, peer: IpAddr, event: Event, outputs: &mut Vec<Output>) {
        let restarting = self.restarting.is_some();
        let Some(held) = self.peers.get_mut(&peer) else {
            if event == Event::Accepted {
                outputs.push(Output::Close(peer, Side::Theirs));
            }
            return;
        };
        let actions = held.session.handle(now, restarting, event);
        for action in actions {
            match action {
                Action::Dial => outputs.push(Output::Dial(peer)),
                Action::Send(side, message) => outputs.push(Output::Send(peer, side, wire::encode(&message))),
                Action::Close(side) => outputs.push(Output::Close(peer, side)),
                Action::Up(side, agreed) => self.up(now, peer, side, agreed, outputs),
                Action::Down { graceful, reason } => self.down(now, peer, graceful, &reason, outputs),
                Action::Deliver(update) => self.deliver(now, peer, update, outputs),
                Action::Resend(family) => {
                    if let Some(held) = self.peers.get_mut(&peer) {
                        let again: Vec<IpNet> = held.told.iter().filter(|prefix| Family::of_net(prefix) == family).copied().collect();
                        outputs.extend(self.tell(peer, again));
                        outputs.push(Output::Note(format!("{}: told all routes of {family} again", self.name(peer))));
                    }
                }
            }
        }
    }

    fn name(&self, peer: IpAddr) -> String {
        self.peers.get(&peer).map_or_else(|| peer.to_string(), |held| format!("{} ({peer})", held.config.name))
    }

    fn up(&mut self, now: Time, peer: IpAddr, side: Side, agreed: Agreed, outputs: &mut Vec<Output>) {
        let kept = agreed.graceful.iter().flat_map(|graceful| &graceful.families).filter(|(_, kept)| **kept).map(|(family, _)| *family).collect();
        let changed = self.rib.returned(peer, &kept, now + RELEARN);
        if let Some(held) = self.peers.get_mut(&peer) {
            held.told.clear();
            held.ended.clear();
            held.finished = false;
            held.up = Some((side, agreed));
        }
        outputs.push(Output::Note(format!("{}: session established", self.name(peer))));
        self.spread(&changed, outputs);
        let all: Vec<IpNet> = self.rib.own().iter().chain(self.rib.best().keys()).copied().collect();
        outputs.extend(self.tell(peer, all));
    }

    fn down(&mut self, now: Time, peer: IpAddr, graceful: bool, reason: &str, outputs: &mut Vec<Output>) {
        let Some(held) = self.peers.get_mut(&peer) else { return };
        let Some((_, agreed)) = held.up.take() else { return };
        held.told.clear();
        let (kept, time) = match agreed.graceful.filter(|_| graceful) {
            Some(graceful) => (graceful.families.into_keys().collect(), graceful.time.min(held.config.longest_restart)),
            None => (BTreeSet::new(), 0),
        };
        let changed = self.rib.lost(peer, &kept, now + Duration::from_secs(time.into()));
        let stay = if self.rib.stale(peer) { format!("; its routes stay for {time} s") } else { String::new() };
        outputs.push(Output::Note(format!("{}: session lost: {reason}{stay}", self.name(peer))));
        self.spread(&changed, outputs);
    }

    fn deliver(&mut self, now: Time, peer: IpAddr, update: Update, outputs: &mut Vec<Output>) {
        let Some(held) = self.peers.get_mut(&peer) else { return };
        let Some((_, agreed)) = &held.up else { return };
        held.ended.extend(update.end_of_rib);
        let config = &self.config;
        let source = Source { peer, id: agreed.peer_id, external: held.config.asn != config.asn, client: held.config.client };
        let limits = Limits {
            asn: config.asn,
            id: config.id,
            cluster: config.cluster,
            own_as_allowed: held.config.own_as_allowed.into(),
            own_addresses: [Some(held.config.connect.local), config.next_hop_v4, config.next_hop_v6].into_iter().flatten().collect(),
            families: agreed.families.clone(),
            most: MOST_ROUTES,
        };
        if let Some(why) = &update.malformed {
            outputs.push(Output::Note(format!("{}: routes with malformed attributes count as withdrawn: {why}", self.name(peer))));
        }
        match self.rib.update(&source, &limits, update) {
            Ok(changed) => self.spread(&changed, outputs),
            Err(error) => {
                outputs.push(Output::Note(format!("{}: {error}; its session is ended", self.name(peer))));
                self.session(now, peer, Event::Stop(Notification::TOO_MANY_PREFIXES), outputs);
                let changed = self.rib.forget(peer);
                self.spread(&changed, outputs);
            }
        }
    }

    /// Tells every peer what changed.
    fn spread(&mut self, changed: &BTreeSet<IpNet>, outputs: &mut Vec<Output>) {
        if changed.is_empty() {
            return;
        }
        self.changed = true;
        let up: Vec<IpAddr> = self.peers.iter().filter(|(_, held)| held.up.is_some()).map(|(peer, _)| *peer).collect();
        for peer in up {
            outputs.extend(self.tell(peer, changed.iter().copied()));
        }
    }

    /// The messages that say to a peer what holds for prefixes now.
    fn tell(&mut self, peer: IpAddr, prefixes: impl IntoIterator<Item = IpNet>) -> Vec<Output> {
        let Some(held) = self.peers.get_mut(&peer) else { return Vec::new() };
        let Some((side, agreed)) = &held.up else { return Vec::new() };
        let rules = self.config.rules(&held.config, peer, agreed);
        let mut groups: Vec<(Option<Told>, Vec<IpNet>)> = Vec::new();
        let mut known: HashMap<(usize, Family), usize> = HashMap::new();
        let mut withdrawn: BTreeMap<Family, Vec<IpNet>> = BTreeMap::new();
        for prefix in prefixes {
            let family = Family::of_net(&prefix);
            if !agreed.families.contains(&family) {
                continue;
            }
            let group = self.rib.group(&rules, &prefix).map(|(key, make)| {
                *known.entry((key, family)).or_insert_with(|| {
                    groups.push((make(), Vec::new()));
                    groups.len() - 1
                })
            });
            match group.and_then(|group| groups.get_mut(group)).filter(|(told, _)| told.is_some()) {
                Some((_, members)) => {
                    members.push(prefix);
                    held.told.insert(prefix);
                }
                None if held.told.remove(&prefix) => withdrawn.entry(family).or_default().push(prefix),
                None => {}
            }
        }
        let withdrawals = withdrawn.iter().flat_map(|(family, prefixes)| wire::withdraw(*family, prefixes));
        let announced = groups.iter().filter_map(|(told, prefixes)| Some((told.as_ref()?, prefixes)));
        let announcements = announced.flat_map(|(told, prefixes)| wire::announce(&told.attributes, told.next_hop, prefixes, agreed.four_octet));
        withdrawals.chain(announcements).map(|bytes| Output::Send(peer, *side, bytes)).collect()
    }

    /// Ends the time after a restart when every peer told its routes, and says to peers that they know everything.
    fn finish(&mut self, now: Time, outputs: &mut Vec<Output>) {
        if self.restarting.is_some_and(|until| until > now) && !self.peers.values().all(Held::settled) {
            return;
        }
        self.restarting = None;
        if self.partial.is_some_and(|until| until <= now || self.peers.values().all(Held::told_all)) {
            (self.partial, self.changed) = (None, true);
            outputs.push(Output::Note("the routes of before the restart are settled".to_owned()));
        }
        for (peer, held) in self.peers.iter_mut().filter(|(_, held)| !held.finished) {
            let Some((side, agreed)) = &held.up else { continue };
            held.finished = true;
            outputs.extend(agreed.families.iter().map(|family| Output::Send(*peer, *side, wire::end_of_rib(*family))));
        }
    }
}

/// Makes what is told of a group of prefixes.
type Make<'a> = Box<dyn FnOnce() -> Option<Told> + 'a>;

impl Rib {
    /// Which routes a prefix is told together with, and how to make what is told. None: it is not told.
    fn group<'a>(&'a self, rules: &'a Rules, prefix: &'a IpNet) -> Option<(usize, Make<'a>)> {
        if self.own().contains(prefix) {
            return Some((0, Box::new(|| rules.own(prefix))));
        }
        let path = self.best().get(prefix).filter(|_| rules.forwards(prefix))?;
        Some((Arc::as_ptr(path) as usize, Box::new(|| tell(rules, prefix, path))))
    }
}

#[cfg(test)]
mod tests;
