//! Discovery: when the service is asked what it has, and what the answers mean for whether work can go on (pure).
//!
//! The network is found by its name, then ids of endpoints and load balancers are enumerated every [`Periods::enumerate`], which is cheap;
//! [`Verification`] has every load balancer read once in a while.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash as _, Hasher as _};
use std::time::Duration;

use hcn::{Guid, HcnError};
use tokio::time::Instant;

use super::calls::Call;
use super::document::NetworkContext;
use super::engine::Token;
use super::mirror::{Mirror, Stamp};
use crate::table::VipKey;

/// An enumeration that a waiting pod asks for comes this long after the last one.
const SOON: Duration = Duration::from_millis(100);
/// A service that does not answer is called again after this, up to [`ASK_SLOWEST`].
const ASK_QUICKEST: Duration = Duration::from_millis(200);
const ASK_SLOWEST: Duration = Duration::from_secs(1);

/// How often the service is asked what it has, though nothing says that something changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Periods {
    /// Ids are enumerated: endpoints and load balancers, a call each.
    pub enumerate: Duration,
    /// The network is asked for.
    pub network: Duration,
    /// Every load balancer is read once, and there is at most `pause` between two.
    pub round: Duration,
    pub pause: Duration,
}

impl Default for Periods {
    fn default() -> Self {
        Self {
            enumerate: Duration::from_secs(3),
            network: Duration::from_secs(30),
            round: Duration::from_secs(9_000),
            pause: Duration::from_millis(4_500),
        }
    }
}

impl Periods {
    /// How long there is between two reads of a slow verify of `count` load balancers.
    pub fn between_reads(&self, count: usize) -> Duration {
        self.pause.min(self.round / u32::try_from(count.max(1)).unwrap_or(u32::MAX))
    }
}

/// A question to the service as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Query {
    /// The network, and the features of the service.
    Find,
    /// Whether the network is still there.
    Networks,
    /// The ids of endpoints.
    Endpoints,
    /// The ids of load balancers.
    Balancers,
}

/// Why an answer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DiscoveryError {
    /// HNS wrote something else than a list of ids.
    #[error("an enumeration cannot be read: {0}")]
    Enumeration(serde_json::Error),
}

/// What an enumeration brought.
#[derive(Debug)]
pub enum Listed {
    /// It was asked for before the service went away.
    Outdated,
    /// The same ids as before, and nothing changed meanwhile.
    Same,
    /// These ids.
    Ids(HashSet<Guid>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The service or the network is not there: it is asked for again at that time.
    Lost { again: Instant, attempts: u32 },
    /// The network is known; its objects are being enumerated.
    Listing,
    /// Work goes on.
    Up,
}

/// One kind of enumeration.
#[derive(Debug)]
struct Enumeration {
    due: Instant,
    running: bool,
    again: bool,
    /// When the last one began, and the hash of its text.
    last: Option<(Stamp, u64)>,
}

impl Enumeration {
    fn new(now: Instant) -> Self {
        Self { due: now, running: false, again: false, last: None }
    }

    fn began(&self) -> Stamp {
        self.last.map_or(0, |(since, _)| since)
    }
}

/// When the service is asked for what.
#[derive(Debug)]
pub struct Discovery {
    name: String,
    periods: Periods,
    phase: Phase,
    endpoints: Enumeration,
    balancers: Enumeration,
    network_due: Instant,
    last_endpoints: Instant,
    /// Enumerations that were asked for before this are of no use.
    since: Stamp,
    under_way: HashMap<Token, Query>,
    unavailable: Option<String>,
    /// Whether `unavailable` or the phase changed since it was last asked.
    changed: bool,
}

impl Discovery {
    /// Discovery of the network `name`, which begins now.
    pub fn new(name: impl Into<String>, periods: Periods, now: Instant) -> Self {
        Self {
            name: name.into(),
            periods,
            phase: Phase::Lost { again: now, attempts: 0 },
            endpoints: Enumeration::new(now),
            balancers: Enumeration::new(now),
            network_due: now,
            last_endpoints: now,
            since: 0,
            under_way: HashMap::new(),
            unavailable: None,
            changed: false,
        }
    }

    /// Whether the service was read since it last went away.
    pub fn is_up(&self) -> bool {
        self.phase == Phase::Up
    }

    /// Whether the network was found.
    pub fn is_found(&self) -> bool {
        !matches!(self.phase, Phase::Lost { .. })
    }

    /// Why nothing can be done at all.
    pub fn unavailable(&self) -> Option<&str> {
        self.unavailable.as_deref()
    }

    /// Whether an enumeration is under way.
    pub fn is_enumerating(&self) -> bool {
        self.under_way.values().any(|query| matches!(query, Query::Endpoints | Query::Balancers))
    }

    /// Whether availability changed since this was last asked.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// When the oldest enumeration that counts began.
    pub fn oldest(&self) -> Stamp {
        self.endpoints.began().min(self.balancers.began())
    }

    /// When [`Discovery::next`] has something, although no answer comes. While it is up that is the next enumeration.
    pub fn wake(&self) -> Option<Instant> {
        match self.phase {
            Phase::Lost { again, .. } => (!self.under_way.values().any(|query| *query == Query::Find)).then_some(again),
            Phase::Listing => None,
            Phase::Up => {
                let enumerations =
                    [&self.endpoints, &self.balancers].into_iter().filter(|enumeration| !enumeration.running).map(|enumeration| enumeration.due);
                Some(enumerations.fold(self.network_due, Instant::min))
            }
        }
    }

    /// The next question that is due.
    pub fn next(&mut self, now: Instant, network: &NetworkContext) -> Option<(Query, Call)> {
        let finding = self.under_way.values().any(|query| matches!(query, Query::Find | Query::Networks));
        if let Phase::Lost { again, .. } = self.phase {
            return (!finding && again <= now).then(|| (Query::Find, Call::Find(self.name.clone())));
        }
        if !self.balancers.running && self.balancers.due <= now {
            (self.balancers.running, self.balancers.due) = (true, now + self.periods.enumerate);
            return Some((Query::Balancers, Call::Balancers));
        }
        if !self.endpoints.running && self.endpoints.due <= now {
            (self.endpoints.running, self.endpoints.due, self.last_endpoints) = (true, now + self.periods.enumerate, now);
            return Some((Query::Endpoints, Call::Endpoints(network.id)));
        }
        if !finding && self.network_due <= now {
            self.network_due = now + self.periods.network;
            let name = self.name.clone();
            // Only overlays say something about themselves that changes.
            return Some(if network.overlay { (Query::Find, Call::Find(name)) } else { (Query::Networks, Call::Networks(name)) });
        }
        None
    }

    /// A question is under way as `token`.
    pub fn asked(&mut self, token: Token, query: Query) {
        self.under_way.insert(token, query);
    }

    /// The question that `token` names, which is answered.
    pub fn answered(&mut self, token: Token) -> Option<Query> {
        self.under_way.remove(&token)
    }

    /// A pod waits for its endpoint.
    pub fn enumerate_endpoints(&mut self) {
        if self.endpoints.running {
            self.endpoints.again = true;
        } else {
            self.endpoints.due = self.endpoints.due.min(self.last_endpoints + SOON);
        }
    }

    /// There is a load balancer that was not expected.
    pub fn enumerate_balancers(&mut self, now: Instant) {
        if self.balancers.running {
            self.balancers.again = true;
        } else {
            self.balancers.due = self.balancers.due.min(now);
        }
    }

    /// A network was created or deleted: it may be ours.
    pub fn network_changed(&mut self, now: Instant) {
        if let Phase::Lost { again, .. } = &mut self.phase {
            *again = now;
        }
        self.network_due = now;
    }

    /// The service does not answer, or the network is gone: nothing is concluded, everything is asked for again. Whether work ends here.
    pub fn lose(&mut self, now: Instant, reason: String) -> bool {
        if self.unavailable.as_ref() != Some(&reason) {
            tracing::warn!("services cannot be programmed: {reason}; trying again");
            self.unavailable = Some(reason);
            self.changed = true;
        }
        let ends = self.is_found();
        if ends {
            self.phase = Phase::Lost { again: now, attempts: 0 };
        }
        ends
    }

    /// The same, and it is asked for again after a while.
    pub fn ask_later(&mut self, now: Instant, reason: String) -> bool {
        let ends = self.lose(now, reason);
        if let Phase::Lost { again, attempts } = &mut self.phase {
            *again = now + backoff::exponential(ASK_QUICKEST, ASK_SLOWEST, *attempts);
            *attempts = attempts.saturating_add(1);
        }
        ends
    }

    /// A question failed. Whether work ends here.
    pub fn failed(&mut self, query: Query, error: &HcnError, now: Instant) -> bool {
        match query {
            Query::Find => return self.ask_later(now, error.to_string()),
            Query::Networks => self.network_due = now,
            Query::Endpoints => self.endpoints.running = false,
            Query::Balancers => self.balancers.running = false,
        }
        self.lose(now, error.to_string())
    }

    /// The network was found, `other` than before: its objects are enumerated from `since` on. Whether that begins now.
    pub fn found(&mut self, other: bool, now: Instant, since: impl FnOnce() -> Stamp) -> bool {
        let begins = other || !self.is_found();
        if begins {
            self.phase = Phase::Listing;
            self.since = since();
            (self.endpoints, self.balancers, self.network_due) = (Enumeration::new(now), Enumeration::new(now), now + self.periods.network);
        }
        begins
    }

    /// The ids of networks of our name were listed. Whether work ends here.
    pub fn listed_networks(&mut self, text: &str, network: &NetworkContext, now: Instant) -> bool {
        let there = ids(text).is_ok_and(|ids| ids.contains(&network.id));
        !there && self.lose(now, format!("HNS network {:?} is gone, or another one", self.name))
    }

    /// An enumeration that was asked for at `since` answered; the mirror last changed at `changed`. The flag says that another one of
    /// the same kind was asked for meanwhile.
    ///
    /// # Errors
    /// The text holds no ids.
    pub fn listed(&mut self, query: Query, text: &str, since: Stamp, now: Instant, changed: Stamp) -> Result<(Listed, bool), DiscoveryError> {
        if since < self.since {
            return Ok((Listed::Outdated, false));
        }
        let enumeration = if query == Query::Endpoints { &mut self.endpoints } else { &mut self.balancers };
        enumeration.running = false;
        let again = std::mem::take(&mut enumeration.again);
        if again {
            enumeration.due = now;
        }
        let hash = hash(text);
        let same = enumeration.last.is_some_and(|(before, known)| known == hash && changed < before);
        enumeration.last = Some((since, hash));
        Ok((if same { Listed::Same } else { Listed::Ids(ids(text)?) }, again))
    }

    /// Goes up once everything was enumerated. Whether that happened now.
    pub fn go_up(&mut self) -> bool {
        let complete = self.phase == Phase::Listing && self.endpoints.last.is_some() && self.balancers.last.is_some();
        if complete {
            (self.phase, self.changed) = (Phase::Up, true);
            if self.unavailable.take().is_some() {
                tracing::info!("the Host Networking Service answers");
            }
        }
        complete
    }
}

/// The ids of an enumeration.
fn ids(text: &str) -> Result<HashSet<Guid>, DiscoveryError> {
    if matches!(text, "" | "null") {
        return Ok(HashSet::new());
    }
    serde_json::from_str(text).map_err(DiscoveryError::Enumeration)
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// The slow verify: one load balancer after the other, for ever.
#[derive(Debug)]
pub struct Verification {
    periods: Periods,
    due: Instant,
    last: Option<VipKey>,
    /// How many load balancers there were when the period was last logged.
    logged: usize,
}

/// The next load balancer to verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verify {
    pub key: VipKey,
    /// Every load balancer was verified once since this last held.
    pub round_ended: bool,
}

impl Verification {
    /// A verify that begins now.
    pub fn new(periods: Periods, now: Instant) -> Self {
        Self { periods, due: now, last: None, logged: 0 }
    }

    /// Waits a whole pause from now on.
    pub fn restart(&mut self, now: Instant, count: usize) {
        self.due = now + self.periods.between_reads(count);
    }

    /// When the next one is due; none without load balancers.
    pub fn wake(&self, count: usize) -> Option<Instant> {
        (count > 0).then_some(self.due)
    }

    /// The load balancer to verify now.
    pub fn next(&mut self, now: Instant, mirror: &Mirror) -> Option<Verify> {
        let count = mirror.len();
        if self.due > now || count == 0 {
            return None;
        }
        let pause = self.periods.between_reads(count);
        self.due = now + pause;
        let next = mirror.after(self.last);
        let key = next.or_else(|| mirror.after(None))?;
        self.last = Some(key);
        if self.logged.abs_diff(count) * 2 > self.logged {
            self.logged = count;
            let period = pause.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
            tracing::info!(
                load_balancers = count,
                ?period,
                "ids are compared every {:?}, and each load balancer is read again within the period",
                self.periods.enumerate
            );
        }
        Some(Verify { key, round_ended: next.is_none() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hns::mirror::BalancerState;
    use crate::table::{IpFamily, Protocol, VipAddress};

    fn up(now: Instant) -> Discovery {
        let mut discovery = Discovery::new("pods", Periods::default(), now);
        assert!(discovery.found(true, now, || 1));
        for query in [Query::Balancers, Query::Endpoints] {
            assert_eq!(discovery.next(now, &NetworkContext::default()).map(|(query, _)| query), Some(query));
            assert!(matches!(discovery.listed(query, "[]", 2, now, 0), Ok((Listed::Ids(ids), false)) if ids.is_empty()));
        }
        assert!(discovery.go_up() && !discovery.go_up());
        discovery
    }

    #[tokio::test(start_paused = true)]
    async fn lost_service_is_asked_for_once_at_a_time_with_backoff() {
        let (now, network) = (Instant::now(), NetworkContext::default());
        let mut discovery = Discovery::new("pods", Periods::default(), now);
        assert_eq!(discovery.next(now, &network), Some((Query::Find, Call::Find("pods".into()))));
        discovery.asked(7, Query::Find);
        assert_eq!((discovery.next(now, &network), discovery.wake()), (None, None), "one question at a time");
        assert_eq!((discovery.answered(7), discovery.answered(7)), (Some(Query::Find), None));
        for milliseconds in [200, 400, 800, 1_000, 1_000] {
            assert!(!discovery.ask_later(now, "away".into()), "no work ends that never began");
            assert_eq!(discovery.wake(), Some(now + Duration::from_millis(milliseconds)));
        }
        assert_eq!(discovery.unavailable(), Some("away"));
        assert_eq!((discovery.take_changed(), discovery.take_changed()), (true, false));
        discovery.network_changed(now);
        assert_eq!(discovery.wake(), Some(now), "a new network is asked for at once");
    }

    #[tokio::test(start_paused = true)]
    async fn enumerations_follow_their_period_and_requests_shorten_it() {
        let now = Instant::now();
        let (mut discovery, network) = (up(now), NetworkContext::default());
        assert_eq!((discovery.next(now, &network), discovery.wake()), (None, Some(now + Periods::default().enumerate)));
        discovery.enumerate_endpoints();
        assert_eq!(discovery.wake(), Some(now + SOON));
        assert_eq!(discovery.next(now + SOON, &network), Some((Query::Endpoints, Call::Endpoints(network.id))));
        discovery.enumerate_endpoints();
        let later = now + SOON * 2;
        assert!(matches!(discovery.listed(Query::Endpoints, "[]", 3, later, 9), Ok((_, true))), "asked for while one was under way");
        assert_eq!(discovery.wake(), Some(later));
        assert!(discovery.lose(later, "gone".into()) && !discovery.lose(later, "gone".into()), "work ends once");
        assert!(discovery.found(false, later, || 20));
        assert!(matches!(discovery.listed(Query::Endpoints, "[]", 19, later, 9), Ok((Listed::Outdated, false))));
    }

    #[tokio::test(start_paused = true)]
    async fn unchanged_enumeration_is_not_compared_unless_the_mirror_changed() {
        let now = Instant::now();
        let mut discovery = up(now);
        assert!(matches!(discovery.listed(Query::Balancers, "[]", 5, now, 1), Ok((Listed::Same, _))));
        assert!(matches!(discovery.listed(Query::Balancers, "[]", 6, now, 5), Ok((Listed::Ids(_), _))), "we wrote meanwhile");
        assert!(matches!(discovery.listed(Query::Balancers, "{", 7, now, 1), Err(DiscoveryError::Enumeration(_))));
        assert_eq!(discovery.oldest(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn verification_reads_each_load_balancer_in_turn() {
        let (now, mut mirror) = (Instant::now(), Mirror::default());
        let mut verification = Verification::new(Periods::default(), now);
        assert_eq!((verification.next(now, &mirror), verification.wake(0)), (None, None));
        let key = |port| VipKey { address: VipAddress::Node(IpFamily::V4), protocol: Protocol::Tcp, port };
        for port in [1, 2] {
            mirror.put(Guid::random(), key(port), BalancerState::Unread([].into()), 1);
        }
        let mut at = now;
        for (port, round_ended) in [(1, false), (2, false), (1, true), (2, false)] {
            assert_eq!(verification.next(at, &mirror), Some(Verify { key: key(port), round_ended }));
            assert_eq!(verification.next(at, &mirror), None, "not before its pause is over");
            at += Periods::default().between_reads(2);
        }
        let pauses = [1, 20_000].map(|count| Periods::default().between_reads(count));
        assert_eq!(pauses, [4_500, 450].map(Duration::from_millis));
    }
}
