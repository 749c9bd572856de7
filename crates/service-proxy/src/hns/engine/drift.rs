//! What the service really has, compared with the mirror: by enumerating ids, which is cheap, and by reading one load
//! balancer after the other, slowly.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash as _, Hasher as _};

use hcn::{HcnError, HostComputeNetwork, SupportedFeatures};

use super::*;
use crate::hns::document::Remote;
use crate::hns::mirror::{Drift, Endpoint};
use crate::table::{Kind, VipAddress};

/// How often ids are enumerated: endpoints and load balancers, a call each.
pub const LOOK: Duration = Duration::from_secs(3);
/// How often the network is asked for.
const NETWORK: Duration = Duration::from_secs(30);
/// How long it takes to read every load balancer once, and how long there is at most between two.
const ROUND: Duration = Duration::from_secs(9_000);
const PAUSE: Duration = Duration::from_millis(4_500);
/// A look that a waiting pod asks for comes this long after the last one.
const SOON: Duration = Duration::from_millis(100);
/// More new ids than this are told apart by what the table predicts; fewer are simply read.
const FEW: usize = 32;

/// How long there is between two reads of a slow verify of `count` load balancers.
pub fn verify_pause(count: usize) -> Duration {
    PAUSE.min(ROUND / u32::try_from(count.max(1)).unwrap_or(u32::MAX))
}

/// One kind of enumeration.
#[derive(Debug)]
struct Look {
    due: Instant,
    running: bool,
    again: bool,
    /// When the last one began, and the hash of its text.
    last: Option<(Stamp, u64)>,
}

impl Look {
    fn new(now: Instant) -> Self {
        Self { due: now, running: false, again: false, last: None }
    }
}

/// When to look at what.
#[derive(Debug)]
pub struct Looks {
    endpoints: Look,
    balancers: Look,
    network_due: Instant,
    verify_due: Instant,
    verified: Option<VipKey>,
    round: usize,
    last_endpoints: Instant,
    /// Enumerations that were asked for before this are of no use.
    since: Stamp,
}

impl Looks {
    pub fn new(now: Instant) -> Self {
        Self {
            endpoints: Look::new(now),
            balancers: Look::new(now),
            network_due: now,
            verify_due: now,
            verified: None,
            round: 0,
            last_endpoints: now,
            since: 0,
        }
    }

    /// When the next look is due; `count` load balancers are verified.
    pub fn next(&self, count: usize) -> Instant {
        let verify = self.verify_due.min(self.network_due);
        let looks = [&self.endpoints, &self.balancers].into_iter().filter(|look| !look.running).map(|look| look.due).min();
        let verify = if count == 0 { self.network_due } else { verify };
        looks.map_or(verify, |due| due.min(verify))
    }

    /// Somebody waits for an endpoint.
    pub fn look_at_endpoints(&mut self) {
        if self.endpoints.running {
            self.endpoints.again = true;
        } else {
            self.endpoints.due = self.endpoints.due.min(self.last_endpoints + SOON);
        }
    }

    /// Somebody met a load balancer that was not expected.
    pub fn look_at_balancers(&mut self, now: Instant) {
        if self.balancers.running {
            self.balancers.again = true;
        } else {
            self.balancers.due = self.balancers.due.min(now);
        }
    }

    /// The network may be another one.
    pub fn look_at_network(&mut self, now: Instant) {
        self.network_due = now;
    }

    fn start(&mut self, now: Instant, since: Stamp) {
        self.since = since;
        (self.endpoints, self.balancers, self.network_due) = (Look::new(now), Look::new(now), now + NETWORK);
    }
}

/// The ids of an enumeration.
fn ids(text: &str) -> Result<HashSet<Guid>, String> {
    if matches!(text, "" | "null") {
        return Ok(HashSet::new());
    }
    serde_json::from_str(text).map_err(|error| format!("an enumeration cannot be read: {error}"))
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

impl Engine {
    /// The next call of the engine's own.
    pub(super) fn errand(&mut self, now: Instant) -> Option<(Errand, Call)> {
        let finding = self.errands.values().any(|(errand, _)| matches!(errand, Errand::Find | Errand::Networks));
        if let Phase::Lost { again, .. } = self.phase {
            return (!finding && again <= now).then(|| (Errand::Find, Call::Find(self.settings.network.clone())));
        }
        if !self.looks.balancers.running && self.looks.balancers.due <= now {
            (self.looks.balancers.running, self.looks.balancers.due) = (true, now + LOOK);
            return Some((Errand::Balancers, Call::Balancers));
        }
        if !self.looks.endpoints.running && self.looks.endpoints.due <= now {
            (self.looks.endpoints.running, self.looks.endpoints.due, self.looks.last_endpoints) = (true, now + LOOK, now);
            return Some((Errand::Endpoints, Call::Endpoints(self.network.id)));
        }
        if !finding && self.looks.network_due <= now {
            self.looks.network_due = now + NETWORK;
            let name = self.settings.network.clone();
            // Only overlays say something about themselves that changes.
            return Some(if self.network.overlay { (Errand::Find, Call::Find(name)) } else { (Errand::Networks, Call::Networks(name)) });
        }
        None
    }

    /// The service does not answer, or the network is gone: nothing is concluded, everything is asked for again.
    pub(super) fn lose(&mut self, now: Instant, reason: String) {
        if self.unavailable.as_ref() != Some(&reason) {
            tracing::warn!("services cannot be programmed: {reason}; trying again");
            self.unavailable = Some(reason);
            self.news = true;
        }
        if !matches!(self.phase, Phase::Lost { .. }) {
            self.phase = Phase::Lost { again: now, attempts: 0 };
            self.modify_works = false;
        }
    }

    fn ask_later(&mut self, now: Instant, reason: String) {
        self.lose(now, reason);
        if let Phase::Lost { again, attempts } = &mut self.phase {
            *again = now + ASK_QUICKEST.saturating_mul(1 << (*attempts).min(8)).min(ASK_SLOWEST);
            *attempts += 1;
        }
    }

    pub(super) fn errand_failed(&mut self, errand: Errand, error: &HcnError, now: Instant) {
        match errand {
            Errand::Find => self.ask_later(now, error.to_string()),
            Errand::Networks => self.looks.network_due = now,
            Errand::Endpoints => self.looks.endpoints.running = false,
            Errand::Balancers => self.looks.balancers.running = false,
        }
        if errand != Errand::Find {
            self.lose(now, error.to_string());
        }
    }

    pub(super) fn found(&mut self, network: Option<&HostComputeNetwork>, features: &SupportedFeatures, now: Instant, table: &Table) {
        let network = match network {
            None => Err(format!("HNS network {:?} does not exist yet; the pod network creates it", self.settings.network)),
            Some(network) => NetworkContext::of(network, &self.settings),
        };
        let network = match network {
            Ok(network) => network,
            Err(reason) => return self.ask_later(now, reason),
        };
        self.rules = Rules::new(features, self.settings.dsr);
        self.rules.modify &= !self.modify_fails && self.settings.modify;
        let other = network.id != self.network.id;
        let changed = other || network != self.network;
        self.network = network;
        if other {
            self.mirror.forget_endpoints();
        }
        if matches!(self.phase, Phase::Lost { .. }) || other {
            self.phase = Phase::Listing;
            let since = self.tick();
            self.looks.start(now, since);
        } else if changed {
            self.touch(table.iter().map(|(key, _)| *key), table);
        }
    }

    pub(super) fn listed_networks(&mut self, text: &str, now: Instant) {
        let there = ids(text).is_ok_and(|ids| ids.contains(&self.network.id));
        if !there {
            self.lose(now, format!("HNS network {:?} is gone, or another one", self.settings.network));
        }
    }

    pub(super) fn listed(&mut self, errand: Errand, text: &str, since: Stamp, now: Instant, table: &Table) {
        let changed = self.changed;
        if since < self.looks.since {
            // Asked of the service before it went away.
            return;
        }
        let look = if errand == Errand::Endpoints { &mut self.looks.endpoints } else { &mut self.looks.balancers };
        look.running = false;
        let again = std::mem::take(&mut look.again);
        if again {
            look.due = now;
        }
        let hash = hash(text);
        let same = look.last.is_some_and(|(before, known)| known == hash && changed < before);
        look.last = Some((since, hash));
        if !same {
            match ids(text) {
                Ok(ids) if errand == Errand::Endpoints => self.compare_endpoints(&ids, since, table),
                Ok(ids) => self.compare_balancers(&ids, since, table),
                Err(reason) => return self.lose(now, reason),
            }
        }
        if errand == Errand::Endpoints {
            self.end_waiting_for_look(again, table);
        }
        if self.phase == Phase::Listing && self.looks.endpoints.last.is_some() && self.looks.balancers.last.is_some() {
            self.rise(now, table);
        }
    }

    /// VIPs that waited for a look have had it, unless it began before they asked.
    fn end_waiting_for_look(&mut self, again: bool, table: &Table) {
        if again {
            return;
        }
        for key in std::mem::take(&mut self.awaiting_look) {
            self.looked.insert(key);
            self.push_vip(key, table);
        }
    }

    /// Everything was enumerated: work begins, or goes on.
    fn rise(&mut self, now: Instant, table: &Table) {
        self.phase = Phase::Up;
        self.news = true;
        if self.unavailable.take().is_some() {
            tracing::info!("the Host Networking Service answers");
        }
        self.queue.wake_all();
        (self.reading, self.awaiting_look, self.sweep_due) = (BTreeSet::new(), BTreeSet::new(), true);
        let known: Vec<VipKey> =
            self.mirror.load_balancers().filter(|(_, held)| !matches!(held, BalancerState::Unread(_))).map(|(key, _)| *key).collect();
        for key in known {
            let urgent = table.get(&key).is_some_and(|vip| vip.urgent);
            self.queue.push(Item::Verify(key), if urgent { Lane::VerifyUrgent } else { Lane::Verify });
        }
        let all: BTreeSet<VipKey> = table.iter().map(|(key, _)| *key).chain(self.mirror.load_balancers().map(|(key, _)| *key)).collect();
        all.into_iter().for_each(|key| self.push_vip(key, table));
        self.sweep();
        self.looks.verify_due = now + verify_pause(self.mirror.len());
    }

    /// Every endpoint of ours that nothing names goes.
    pub(super) fn sweep(&mut self) {
        let unused: Vec<Guid> = self.mirror.endpoints().map(|(id, _)| *id).filter(|id| self.mirror.is_unused(id)).collect();
        self.drop_unused(unused);
    }

    /// The same, once after everything was read.
    pub(super) fn sweep_once(&mut self) {
        if self.sweep_due && !self.mirror.is_blind() {
            self.sweep_due = false;
            self.sweep();
        }
    }

    fn compare_endpoints(&mut self, listed: &HashSet<Guid>, since: Stamp, table: &Table) {
        let Drift { lost, found } = self.mirror.endpoint_drift(listed, since);
        for id in lost.into_iter().filter(|id| !self.busy_endpoints.contains_key(id)).collect::<Vec<_>>() {
            self.endpoint_gone(&id, table);
        }
        let predicted = if found.len() > FEW { self.predicted_endpoints(table) } else { HashMap::new() };
        for id in found.into_iter().filter(|id| !self.busy_endpoints.contains_key(id) && !self.is_just_deleted(id, since)).collect::<Vec<_>>() {
            let stamp = self.write_stamp();
            match predicted.get(&id) {
                Some(remote) => self.mirror.put_endpoint(id, Endpoint::Ours(remote.clone()), stamp),
                None => {
                    self.mirror.put_endpoint(id, Endpoint::Unread, stamp);
                    self.queue.push(Item::Endpoint(id), Lane::Known);
                }
            }
        }
    }

    /// An endpoint died: what names it is written anew, with the one that takes its place.
    pub(super) fn endpoint_gone(&mut self, id: &Guid, table: &Table) {
        self.write_stamp();
        let was = self.mirror.remove_endpoint(id);
        let invalidated = self.mirror.invalidate(id);
        if !invalidated.is_empty() {
            tracing::warn!(endpoint = %id, load_balancers = invalidated.len(), "an endpoint is gone that load balancers name: {was:?}");
        }
        invalidated.into_iter().for_each(|key| self.push_vip(key, table));
        if was == Some(Endpoint::Unread) {
            self.end_reading(table);
        }
    }

    /// VIPs that waited for endpoints to be read go on once all are.
    pub(super) fn end_reading(&mut self, table: &Table) {
        if !self.mirror.is_reading() {
            std::mem::take(&mut self.reading).into_iter().for_each(|key| self.push_vip(key, table));
        }
    }

    fn predicted_endpoints(&self, table: &Table) -> HashMap<Guid, Remote> {
        let mut predicted = HashMap::new();
        let mut add = |remote: Remote| predicted.insert(remote.id(&self.cluster_uid, &self.network), remote);
        let mut addresses: HashSet<IpAddr> = HashSet::new();
        for (key, vip) in table.iter() {
            addresses.extend(vip.backends.iter().filter(|backend| !backend.local).map(|backend| backend.address));
            if let (true, VipAddress::Ip(ip)) = (self.network.overlay, key.address) {
                add(Remote::ServiceVip(ip));
            }
        }
        for remote in addresses.into_iter().map(Remote::Backend).chain(self.network.source_vip.map(Remote::SourceVip)) {
            add(remote);
        }
        predicted
    }

    fn compare_balancers(&mut self, listed: &HashSet<Guid>, since: Stamp, table: &Table) {
        let Drift { lost, found } = self.mirror.balancer_drift(listed, since);
        let mut count = 0;
        for id in lost {
            self.write_stamp();
            let key = match self.mirror.key_of(&id) {
                Some(key) if self.busy.contains_key(&Item::Vip(key)) => continue,
                Some(key) => {
                    count += 1;
                    let freed = self.mirror.remove(&id, &key);
                    self.drop_unused(freed);
                    Some(key)
                }
                None => self.mirror.remove_foreign(&id),
            };
            key.into_iter().for_each(|key| self.push_vip(key, table));
        }
        if count > 0 {
            tracing::warn!(count, "load balancers of ours are gone");
        }
        let in_work: HashSet<Guid> =
            self.busy.keys().filter_map(|item| if let Item::Vip(key) = item { Some(self.id_of(key)) } else { None }).collect();
        let predicted: HashMap<Guid, VipKey> =
            if found.len() > FEW { table.iter().map(|(key, _)| (self.id_of(key), *key)).collect() } else { HashMap::new() };
        for id in found.into_iter().filter(|id| !in_work.contains(id)) {
            if self.is_just_deleted(&id, since) {
                continue;
            }
            let stamp = self.write_stamp();
            match predicted.get(&id) {
                Some(key) => {
                    self.mirror.put(id, *key, BalancerState::Unread(Box::default()), stamp);
                    self.push_vip(*key, table);
                }
                None => {
                    self.sweep_due = true;
                    self.mirror.put_foreign(id, None);
                    self.queue.push(Item::ForeignBalancer(id), Lane::Known);
                }
            }
        }
    }

    /// Notes that we deleted something; an enumeration that began before may still show it.
    pub(super) fn note_deleted(&mut self, id: Guid) {
        let stamp = self.write_stamp();
        let lasts = [&self.looks.endpoints, &self.looks.balancers].map(|look| look.last.map_or(0, |(since, _)| since));
        self.deleted.retain(|_, at| *at >= lasts[0].min(lasts[1]));
        self.deleted.insert(id, stamp);
    }

    fn is_just_deleted(&self, id: &Guid, since: Stamp) -> bool {
        self.deleted.get(id).is_some_and(|at| *at >= since)
    }

    /// The slow verify: one load balancer after the other, for ever.
    pub(super) fn verify_next(&mut self, now: Instant, table: &Table) {
        if self.looks.verify_due > now || self.mirror.len() == 0 {
            return;
        }
        let count = self.mirror.len();
        let pause = verify_pause(count);
        self.looks.verify_due = now + pause;
        let next = self.mirror.after(self.looks.verified);
        if next.is_none() {
            self.sweep();
        }
        let Some(key) = next.or_else(|| self.mirror.after(None)) else { return };
        self.looks.verified = Some(key);
        if self.looks.round.abs_diff(count) * 2 > self.looks.round {
            self.looks.round = count;
            let period = pause.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
            tracing::info!(
                load_balancers = count,
                ?period,
                "ids are compared every {LOOK:?}, and each load balancer is read again within the period"
            );
        }
        let urgent = table.get(&key).is_some_and(|vip| vip.urgent);
        self.queue.push(Item::Verify(key), if urgent { Lane::VerifyUrgent } else { Lane::Verify });
    }

    /// VIPs that may use the endpoint at one of these addresses.
    pub(super) fn touch_addresses(&mut self, addresses: &[IpAddr], table: &Table) {
        let names = |vip: &Vip| vip.backends.iter().any(|backend| addresses.contains(&backend.address));
        let address = |key: &VipKey| self.network.overlay && addresses.iter().any(|ip| key.address == VipAddress::Ip(*ip));
        let keys: Vec<VipKey> = table.iter().filter(|(key, vip)| names(vip) || address(key)).map(|(key, _)| *key).collect();
        keys.into_iter().for_each(|key| self.push_vip(key, table));
    }

    /// The host's own endpoint appeared: health checks wait for it.
    pub(super) fn touch_health_checks(&mut self, table: &Table) {
        let checks = table.iter().filter(|(_, vip)| vip.kind == Kind::HealthCheck);
        let keys: Vec<VipKey> = checks.map(|(key, _)| *key).collect();
        keys.into_iter().for_each(|key| self.push_vip(key, table));
    }
}
