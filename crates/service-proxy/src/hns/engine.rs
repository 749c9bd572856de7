//! What to call next (pure but for the clock that it is told): the queue of VIPs, what runs, and what was learnt.
//!
//! [`Engine::next`] hands out one operation at a time, [`Engine::done`] takes its answer. An item (a VIP, mostly) never
//! runs twice at once, and an endpoint that one item makes or removes keeps those that need it waiting. Nothing is concluded
//! from an error: what a call did is then unknown and read again. Drift is in [`drift`], answers are in [`answers`].

mod answers;
mod drift;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use hcn::{Event, Guid};
use tokio::time::Instant;

use super::Settings;
use super::calls::Call;
use super::document::{NetworkContext, Remote, Rules, successor_id};
use super::gap::Gap;
use super::mirror::{BalancerState, Endpoint, Mirror, Stamp};
use super::plan::{Context, Plan, Put, Step, no_endpoint, plan};
use super::queue::{Item, Lane, Queue};
use crate::table::{Table, Vip, VipAddress, VipKey};
use drift::Looks;
pub use drift::{LOOK, verify_pause};

/// Names an operation under way.
pub type Token = u64;

/// How far the engine is with the service itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The service or the network is not there: it is asked for again at that time.
    Lost { again: Instant, attempts: u32 },
    /// The network is known; what there is in it is being enumerated.
    Listing,
    /// Work goes on.
    Up,
}

/// An item under way.
#[derive(Debug)]
struct Running {
    item: Item,
    steps: VecDeque<Step>,
    current: Option<Step>,
    /// The table or the mirror changed meanwhile: plan again.
    again: bool,
    /// The service said that the VIP is taken: by whom?
    taken: Option<String>,
    /// It was read once already because the VIP was taken.
    was_taken: bool,
    failed: Option<String>,
    broken: Vec<Guid>,
    /// The endpoint that it deletes.
    removing: Option<Remote>,
    missing_endpoints: Vec<IpAddr>,
    /// Endpoints that may turn out to be needed by nobody when it ends.
    doubtful: Vec<Guid>,
    /// Endpoints that it makes or removes.
    holds: Vec<Guid>,
    waiting: Vec<Item>,
}

impl Running {
    fn new(item: Item) -> Self {
        Self {
            item,
            steps: VecDeque::new(),
            current: None,
            again: false,
            taken: None,
            was_taken: false,
            failed: None,
            broken: Vec::new(),
            removing: None,
            missing_endpoints: Vec::new(),
            doubtful: Vec::new(),
            holds: Vec::new(),
            waiting: Vec::new(),
        }
    }

    /// Whether a load balancer that it is about to write names the endpoint.
    fn names(&self, id: &Guid) -> bool {
        let steps = self.current.iter().chain(&self.steps);
        steps.filter_map(|step| if let Step::Put { shape, .. } = step { Some(shape) } else { None }).any(|shape| shape.endpoints.contains(id))
    }
}

/// A call of the engine's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Errand {
    Find,
    Networks,
    Endpoints,
    Balancers,
}

/// What keeps the service equal to the table.
#[derive(Debug)]
pub struct Engine {
    cluster_uid: String,
    settings: Settings,
    mirror: Mirror,
    /// How many load balancers of a VIP could not be deleted, where any.
    generations: HashMap<VipKey, u32>,
    network: NetworkContext,
    rules: Rules,
    /// A modify was seen to work since the service started; a version that accepts it and does nothing exists.
    modify_works: bool,
    /// A modify was refused or did nothing: never again.
    modify_fails: bool,
    phase: Phase,
    queue: Queue,
    running: HashMap<Token, Running>,
    errands: HashMap<Token, (Errand, Stamp)>,
    /// Running items whose next step can be handed out.
    continuing: VecDeque<Token>,
    busy: HashMap<Item, Token>,
    busy_endpoints: HashMap<Guid, Token>,
    /// VIPs that wait until every endpoint was read.
    reading: BTreeSet<VipKey>,
    /// VIPs that wait for a new look at endpoints; those that had it.
    awaiting_look: BTreeSet<VipKey>,
    looked: BTreeSet<VipKey>,
    looks: Looks,
    /// What we deleted lately.
    deleted: HashMap<Guid, Stamp>,
    /// Endpoints of ours that nothing names are to be looked for once everything was read.
    sweep_due: bool,
    failing: BTreeMap<VipKey, String>,
    gaps: BTreeMap<VipKey, Vec<Gap>>,
    without_loopback: Option<Guid>,
    unavailable: Option<String>,
    stamp: Stamp,
    changed: Stamp,
    /// How many load balancers and endpoints were written.
    writes: u64,
    finished: u64,
    /// Every VIP was tried since the start.
    caught_up: bool,
    /// Something that people may see changed.
    news: bool,
}

impl Engine {
    /// An engine that knows nothing yet.
    pub fn new(cluster_uid: impl Into<String>, settings: Settings, now: Instant) -> Self {
        Self {
            cluster_uid: cluster_uid.into(),
            settings,
            mirror: Mirror::default(),
            generations: HashMap::new(),
            network: NetworkContext::default(),
            rules: Rules::default(),
            modify_works: false,
            modify_fails: false,
            phase: Phase::Lost { again: now, attempts: 0 },
            queue: Queue::default(),
            running: HashMap::new(),
            errands: HashMap::new(),
            continuing: VecDeque::new(),
            busy: HashMap::new(),
            busy_endpoints: HashMap::new(),
            reading: BTreeSet::new(),
            awaiting_look: BTreeSet::new(),
            looked: BTreeSet::new(),
            looks: Looks::new(now),
            deleted: HashMap::new(),
            sweep_due: true,
            failing: BTreeMap::new(),
            gaps: BTreeMap::new(),
            without_loopback: None,
            unavailable: None,
            stamp: 0,
            changed: 0,
            writes: 0,
            finished: 0,
            caught_up: false,
            news: false,
        }
    }

    /// What is believed of the service.
    pub fn mirror(&self) -> &Mirror {
        &self.mirror
    }

    /// What the service can do; what it refused is off.
    pub fn rules(&self) -> Rules {
        self.rules
    }

    /// VIPs that are not what they should be, with the reason.
    pub fn failing(&self) -> &BTreeMap<VipKey, String> {
        &self.failing
    }

    /// The first pod's endpoint that was found without the loopback policy: such pods do not reach themselves through their Services.
    pub fn without_loopback(&self) -> Option<Guid> {
        self.without_loopback
    }

    /// What the service cannot do, by VIP.
    pub fn gaps(&self) -> &BTreeMap<VipKey, Vec<Gap>> {
        &self.gaps
    }

    /// Why nothing can be done at all.
    pub fn unavailable(&self) -> Option<&str> {
        self.unavailable.as_deref()
    }

    /// Whether the service was read since it last went away.
    pub fn is_up(&self) -> bool {
        self.phase == Phase::Up
    }

    /// Whether the network was found.
    pub fn is_found(&self) -> bool {
        !matches!(self.phase, Phase::Lost { .. })
    }

    /// Whether every VIP was tried since the start.
    pub fn was_up_to_date(&self) -> bool {
        self.caught_up
    }

    /// Whether nothing goes on: what failed waits for its retry.
    pub fn is_only_waiting(&self) -> bool {
        let looking = self.errands.values().any(|(errand, _)| matches!(errand, Errand::Endpoints | Errand::Balancers));
        let waits = self.mirror.is_reading() || !self.awaiting_look.is_empty();
        self.phase == Phase::Up && self.running.is_empty() && !self.queue.is_ready() && !looking && !waits
    }

    /// Whether nothing is left to do but to look now and then.
    pub fn is_idle(&self) -> bool {
        self.is_only_waiting() && self.queue.next_due().is_none()
    }

    /// How many VIPs were looked at to the end.
    pub fn finished(&self) -> u64 {
        self.finished
    }

    /// Whether the service has what the table says of this VIP.
    pub fn is_settled(&self, key: &VipKey) -> bool {
        let item = Item::Vip(*key);
        let waits = self.queue.contains(&item) || self.busy.contains_key(&item) || self.reading.contains(key) || self.awaiting_look.contains(key);
        !waits && !self.failing.contains_key(key) && !matches!(self.mirror.balancer(key), Some(BalancerState::Unread(_)))
    }

    /// How many writes succeeded.
    pub fn writes(&self) -> u64 {
        self.writes
    }

    /// How many VIPs wait or are under way.
    pub fn pending(&self) -> usize {
        let running = self.running.values().filter(|running| matches!(running.item, Item::Vip(_))).count();
        self.queue.vips() + running + self.reading.len() + self.awaiting_look.len()
    }

    /// Whether something that people may see changed since this was last asked.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    fn tick(&mut self) -> Stamp {
        self.stamp += 1;
        self.stamp
    }

    /// The stamp of a change of the mirror.
    fn write_stamp(&mut self) -> Stamp {
        self.changed = self.tick();
        self.changed
    }

    /// These VIPs changed in the table.
    pub fn touch(&mut self, keys: impl IntoIterator<Item = VipKey>, table: &Table) {
        for key in keys {
            self.reading.remove(&key);
            self.awaiting_look.remove(&key);
            self.looked.remove(&key);
            self.push_vip(key, table);
        }
    }

    fn push_vip(&mut self, key: VipKey, table: &Table) {
        if let Some(running) = self.busy.get(&Item::Vip(key)).and_then(|token| self.running.get_mut(token)) {
            running.again = true;
            return;
        }
        let lane = self.lane(&key, table);
        self.queue.push(Item::Vip(key), lane);
    }

    fn lane(&self, key: &VipKey, table: &Table) -> Lane {
        match table.get(key) {
            None => Lane::Gone,
            Some(vip) if vip.urgent => Lane::Urgent,
            Some(_) if matches!(self.mirror.balancer(key), Some(BalancerState::Unread(_))) => Lane::Adopt,
            Some(vip) if vip.backends.iter().any(|backend| backend.local) => Lane::Local,
            Some(_) => Lane::Other,
        }
    }

    /// When [`Engine::next`] should be asked again although nothing was answered.
    pub fn wake(&self) -> Option<Instant> {
        match self.phase {
            Phase::Lost { again, .. } => (!self.errands.values().any(|(errand, _)| *errand == Errand::Find)).then_some(again),
            Phase::Listing => None,
            Phase::Up => {
                let looks = self.looks.next(self.mirror.len());
                Some(self.queue.next_due().map_or(looks, |due| due.min(looks)))
            }
        }
    }

    /// The next operation, when there is one to begin now.
    pub fn next(&mut self, now: Instant, table: &Table) -> Option<(Token, Call)> {
        if let Some((errand, call)) = self.errand(now) {
            let token = self.tick();
            self.errands.insert(token, (errand, token));
            return Some((token, call));
        }
        if self.phase != Phase::Up {
            return None;
        }
        while let Some(token) = self.continuing.pop_front() {
            if let Some(call) = self.continue_with(token, now, table) {
                return Some((token, call));
            }
        }
        self.queue.wake(now);
        self.verify_next(now, table);
        while let Some(item) = self.queue.pop() {
            if let Some((token, call)) = self.start(item, now, table) {
                return Some((token, call));
            }
        }
        if !self.caught_up && self.running.is_empty() {
            (self.caught_up, self.news) = (true, true);
        }
        None
    }

    fn context(&self) -> Context<'_> {
        Context { cluster_uid: &self.cluster_uid, mirror: &self.mirror, network: &self.network, rules: self.rules }
    }

    fn start(&mut self, item: Item, now: Instant, table: &Table) -> Option<(Token, Call)> {
        if let Some(running) = self.busy.get(&item).and_then(|token| self.running.get_mut(token)) {
            running.again = true;
            return None;
        }
        let mut running = Running::new(item);
        let call = match item {
            Item::Vip(key) => return self.start_vip(key, running, now, table),
            Item::Endpoint(id) => Call::ReadEndpoint(id),
            Item::ForeignBalancer(id) if !self.mirror.is_foreign(&id) => return None,
            Item::ForeignBalancer(id) => Call::ReadBalancer(id),
            Item::Verify(key) => {
                // One that is written or doubted is read anyhow.
                let known = matches!(self.mirror.balancer(&key), Some(BalancerState::Known(_) | BalancerState::Stale(_)));
                if !known || self.busy.contains_key(&Item::Vip(key)) {
                    return None;
                }
                Call::ReadBalancer(self.id_of(&key))
            }
            Item::Unused(id) => {
                // After a restart VIPs that wait for something to be read do not name theirs yet.
                let is_desired = |ip| table.has_cluster_ip(ip);
                let desired = matches!(self.mirror.endpoint(&id), Some(Endpoint::Ours(Remote::ServiceVip(ip))) if is_desired(*ip));
                if desired || !self.mirror.is_unused(&id) || self.busy_endpoints.contains_key(&id) {
                    return None;
                }
                if let Some(other) = self.running.values_mut().find(|other| other.names(&id)) {
                    other.doubtful.push(id);
                    return None;
                }
                // Whoever needs it from now on waits, and makes it anew.
                if let Some(Endpoint::Ours(remote)) = self.mirror.remove_endpoint(&id) {
                    running.removing = Some(remote);
                }
                running.holds.push(id);
                Call::DeleteEndpoint(id)
            }
        };
        Some((self.admit(running), call))
    }

    /// Marks an item and what it holds as busy.
    fn admit(&mut self, running: Running) -> Token {
        let token = self.tick();
        self.busy.insert(running.item, token);
        for id in &running.holds {
            self.busy_endpoints.insert(*id, token);
        }
        self.running.insert(token, running);
        token
    }

    fn start_vip(&mut self, key: VipKey, mut running: Running, now: Instant, table: &Table) -> Option<(Token, Call)> {
        let plan = self.plan(&key, table)?;
        let holder = plan.steps.iter().filter_map(made).find_map(|id| self.busy_endpoints.get(&id).copied());
        if let Some(other) = holder.and_then(|token| self.running.get_mut(&token)) {
            other.waiting.push(Item::Vip(key));
            return None;
        }
        self.load(&mut running, plan, &key);
        if running.steps.is_empty() {
            self.finish(running, now, table);
            return None;
        }
        let token = self.admit(running);
        self.continue_with(token, now, table).map(|call| (token, call))
    }

    /// Plans for a VIP; none when it has to wait for something to be known.
    fn plan(&mut self, key: &VipKey, table: &Table) -> Option<Plan> {
        // What has the id of a VIP is ours: it is read, and nothing is created in its place.
        if self.mirror.has_unread_foreign() {
            let (id, stamp) = (self.id_of(key), self.write_stamp());
            self.mirror.claim(id, *key, stamp);
        }
        let vip = table.get(key).map(|vip| &**vip);
        let plan = plan(&self.context(), key, vip);
        self.note_gaps(key, &plan.gaps, vip);
        if plan.wait {
            self.reading.insert(*key);
            return None;
        }
        if !plan.missing_endpoints.is_empty() && !self.looked.contains(key) {
            self.awaiting_look.insert(*key);
            self.looks.look_at_endpoints();
            return None;
        }
        if !plan.steps.is_empty() {
            tracing::debug!("plan for HNS:\n{}", plan.display(key));
        }
        Some(plan)
    }

    fn note_gaps(&mut self, key: &VipKey, gaps: &[Gap], vip: Option<&Vip>) {
        let same = self.gaps.get(key).map_or(gaps.is_empty(), |known| known == gaps);
        if same {
            return;
        }
        self.news = true;
        if let Some(vip) = vip {
            gaps.iter().for_each(|gap| tracing::warn!(service = %vip.service, vip = %key, "{gap}"));
        }
        if gaps.is_empty() {
            self.gaps.remove(key);
        } else {
            self.gaps.insert(*key, gaps.to_vec());
        }
    }

    /// Puts a plan into a running item.
    fn load(&mut self, running: &mut Running, plan: Plan, key: &VipKey) {
        let old = self.mirror.set_service_vip(*key, plan.service_vip);
        // A VIP that went before it named its address leaves that behind, too.
        let left = || match key.address {
            VipAddress::Ip(ip) if self.network.overlay && plan.service_vip.is_none() => {
                Some(Remote::ServiceVip(ip).id(&self.cluster_uid, &self.network))
            }
            _ => None,
        };
        let left = old.or_else(left);
        self.drop_unused(left);
        running.holds.extend(plan.steps.iter().filter_map(made));
        running.missing_endpoints = plan.missing_endpoints;
        running.steps = plan.steps.into();
        running.again = false;
    }

    /// The next call of a running item; when nothing is left it is finished.
    fn continue_with(&mut self, token: Token, now: Instant, table: &Table) -> Option<Call> {
        let mut running = self.running.remove(&token)?;
        let Item::Vip(key) = running.item else {
            self.finish(running, now, table);
            return None;
        };
        if running.again && running.failed.is_none() && running.taken.is_none() {
            self.let_go(&running);
            running.holds.clear();
            return self.replan(token, key, running, now, table);
        }
        while let Some(step) = running.steps.pop_front() {
            match self.call_for(&key, &step, &running.broken) {
                Ok(call) => {
                    running.current = Some(step);
                    self.running.insert(token, running);
                    return Some(call);
                }
                Err(reason) => running.failed = Some(reason),
            }
        }
        self.finish(running, now, table);
        None
    }

    fn replan(&mut self, token: Token, key: VipKey, mut running: Running, now: Instant, table: &Table) -> Option<Call> {
        let Some(plan) = self.plan(&key, table) else {
            self.leave(running, table);
            return None;
        };
        let holder = plan.steps.iter().filter_map(made).find_map(|id| self.busy_endpoints.get(&id).copied());
        if let Some(other) = holder.and_then(|other| self.running.get_mut(&other)) {
            other.waiting.push(Item::Vip(key));
            self.leave(running, table);
            return None;
        }
        self.load(&mut running, plan, &key);
        self.busy_endpoints.extend(running.holds.iter().map(|id| (*id, token)));
        self.running.insert(token, running);
        self.continue_with(token, now, table)
    }

    fn call_for(&self, key: &VipKey, step: &Step, broken: &[Guid]) -> Result<Call, String> {
        let id = self.id_of(key);
        match step {
            Step::Read => Ok(Call::ReadBalancer(id)),
            Step::ReadEndpoint { id } => Ok(Call::ReadEndpoint(*id)),
            Step::CreateEndpoint { id, remote } => {
                let mut document = remote.document(&self.network);
                document.id = *id;
                Ok(Call::CreateEndpoint(self.network.id, Box::new(document)))
            }
            Step::Put { how, shape } => {
                let mut document = shape.document(id, key);
                document.host_compute_endpoints.retain(|id| !broken.contains(id));
                if document.host_compute_endpoints.is_empty() {
                    return Err("none of its endpoints could be created".into());
                }
                let check = *how == Put::Modify && !self.modify_works;
                Ok(Call::Put { how: *how, document: Box::new(document), check })
            }
            Step::Delete => Ok(Call::DeleteBalancer(id)),
        }
    }

    /// One endpoint is made, or is not: whoever waits for it looks again.
    fn release(&mut self, running: &mut Running, id: &Guid, table: &Table) {
        running.holds.retain(|held| held != id);
        self.busy_endpoints.remove(id);
        self.wake_waiting(std::mem::take(&mut running.waiting), table);
    }

    fn wake_waiting(&mut self, waiting: Vec<Item>, table: &Table) {
        for item in waiting {
            match item {
                Item::Vip(key) => self.push_vip(key, table),
                other => self.queue.push(other, Lane::Known),
            }
        }
    }

    /// Frees the endpoints that an item held.
    fn let_go(&mut self, running: &Running) {
        for id in &running.holds {
            self.busy_endpoints.remove(id);
        }
    }

    /// An item ends without being done: something brings it back.
    fn leave(&mut self, running: Running, table: &Table) {
        self.busy.remove(&running.item);
        self.let_go(&running);
        self.drop_unused(running.doubtful.iter().copied());
        self.wake_waiting(running.waiting, table);
    }

    /// An item ends; what failed comes back after a while.
    fn finish(&mut self, mut running: Running, now: Instant, table: &Table) {
        let (item, again) = (running.item, running.again);
        let failed = running.failed.take().or(running.taken.take());
        if let Item::Vip(key) = item {
            self.finished += 1;
            self.looked.remove(&key);
            let missing_endpoints = running.missing_endpoints.first().map(|address| no_endpoint(*address));
            self.note_failing(key, failed.clone().or(missing_endpoints));
        }
        self.leave(running, table);
        match (&failed, item) {
            (Some(_), Item::Vip(key)) if again => self.push_vip(key, table),
            (Some(_), Item::Vip(key)) => self.queue.retry(item, self.lane(&key, table), now),
            (Some(_), Item::Unused(_)) => self.queue.retry(item, Lane::Unused, now),
            (Some(_), _) => self.queue.retry(item, Lane::Known, now),
            (None, Item::Vip(key)) => {
                self.queue.settle(&item);
                if again {
                    self.push_vip(key, table);
                }
            }
            (None, _) => self.queue.settle(&item),
        }
    }

    fn note_failing(&mut self, key: VipKey, reason: Option<String>) {
        let same = self.failing.get(&key) == reason.as_ref();
        if same {
            return;
        }
        self.news = true;
        match reason {
            Some(reason) => {
                tracing::warn!(vip = %key, "{reason}; trying again");
                self.failing.insert(key, reason);
            }
            None => drop(self.failing.remove(&key)),
        }
    }

    /// Looks whether endpoints can go.
    fn drop_unused(&mut self, ids: impl IntoIterator<Item = Guid>) {
        for id in ids {
            if self.mirror.is_unused(&id) {
                self.queue.push(Item::Unused(id), Lane::Unused);
            }
        }
    }

    /// The service told something.
    pub fn event(&mut self, event: &Event, now: Instant) {
        match event.event_type {
            Event::SERVICE_DISCONNECT => self.lose(now, "the Host Networking Service restarts".into()),
            Event::NETWORK_CREATE | Event::NETWORK_DELETE => {
                if let Phase::Lost { again, .. } = &mut self.phase {
                    *again = now;
                }
                self.looks.look_at_network(now);
            }
            Event::ENDPOINT_ATTACHED | Event::ENDPOINT_DETACHED => self.looks.look_at_endpoints(),
            _ => {}
        }
    }
}

/// The endpoint that a step makes.
fn made(step: &Step) -> Option<Guid> {
    match step {
        Step::CreateEndpoint { id, .. } => Some(*id),
        _ => None,
    }
}

/// The service is asked for again after this, up to [`ASK_SLOWEST`].
const ASK_QUICKEST: Duration = Duration::from_millis(200);
const ASK_SLOWEST: Duration = Duration::from_secs(1);
