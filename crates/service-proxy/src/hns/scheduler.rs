//! Scheduler: which item runs next, which run now, and which wait for an endpoint that another one makes or removes (pure).
//!
//! An item (a VIP, mostly) never runs twice at once. It holds the endpoints that it makes or removes; an item that needs one of them
//! waits until it is released.

use std::collections::{HashMap, VecDeque};

use hcn::Guid;
use tokio::time::Instant;

use super::apply::Work;
use super::engine::Token;
use super::queue::{Item, Lane, Queue};
use crate::table::VipKey;

/// An item under way.
#[derive(Debug)]
pub struct Running {
    pub item: Item,
    pub work: Work,
    /// Endpoints that it makes or removes.
    pub holds: Vec<Guid>,
    /// Items that wait for one of those.
    waiting: Vec<Item>,
}

impl Running {
    /// An item that holds nothing yet.
    pub fn new(item: Item) -> Self {
        Self { item, work: Work::default(), holds: Vec::new(), waiting: Vec::new() }
    }
}

/// The queue, and what runs.
#[derive(Debug, Default)]
pub struct Scheduler {
    queue: Queue,
    running: HashMap<Token, Running>,
    /// Running items whose next step can be handed out.
    continuing: VecDeque<Token>,
    busy: HashMap<Item, Token>,
    busy_endpoints: HashMap<Guid, Token>,
}

impl Scheduler {
    /// Queues an item, or moves it forward.
    pub fn push(&mut self, item: Item, lane: Lane) {
        self.queue.push(item, lane);
    }

    /// Has a running item plan again. False when it does not run.
    pub fn plan_again(&mut self, item: &Item) -> bool {
        let running = self.busy.get(item).and_then(|token| self.running.get_mut(token));
        if let Some(running) = running {
            running.work.again = true;
            return true;
        }
        false
    }

    /// The most important item that waits, after those that come back by `now`.
    pub fn pop(&mut self) -> Option<Item> {
        self.queue.pop()
    }

    /// Brings back what is due.
    pub fn wake(&mut self, now: Instant) {
        self.queue.wake(now);
    }

    /// Brings back everything that failed: the reason may be gone.
    pub fn wake_all(&mut self) {
        self.queue.wake_all();
    }

    /// When a failed item comes back.
    pub fn next_due(&self) -> Option<Instant> {
        self.queue.next_due()
    }

    /// Has a failed item come back after a while.
    pub fn retry(&mut self, item: Item, lane: Lane, now: Instant) {
        self.queue.retry(item, lane, now);
    }

    /// An item succeeded: its next failure is its first.
    pub fn settle(&mut self, item: &Item) {
        self.queue.settle(item);
    }

    /// Whether an item runs.
    pub fn is_busy(&self, item: &Item) -> bool {
        self.busy.contains_key(item)
    }

    /// Whether a running item makes or removes the endpoint.
    pub fn is_held(&self, endpoint: &Guid) -> bool {
        self.busy_endpoints.contains_key(endpoint)
    }

    /// The VIPs that run.
    pub fn busy_vips(&self) -> impl Iterator<Item = &VipKey> {
        self.busy.keys().filter_map(|item| if let Item::Vip(key) = item { Some(key) } else { None })
    }

    /// Whether an item waits, comes back or runs.
    pub fn has(&self, item: &Item) -> bool {
        self.queue.contains(item) || self.is_busy(item)
    }

    /// Whether nothing runs and nothing could run.
    pub fn is_at_rest(&self) -> bool {
        self.running.is_empty() && !self.queue.is_ready()
    }

    /// Whether nothing runs.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// How many VIPs wait, come back or run.
    pub fn vips(&self) -> usize {
        self.queue.vips() + self.running.values().filter(|running| matches!(running.item, Item::Vip(_))).count()
    }

    /// Has `item` wait when another one makes or removes one of `endpoints`. Whether it waits.
    pub fn wait_for(&mut self, endpoints: impl IntoIterator<Item = Guid>, item: Item) -> bool {
        let holder = endpoints.into_iter().find_map(|id| self.busy_endpoints.get(&id).copied());
        match holder.and_then(|token| self.running.get_mut(&token)) {
            Some(other) => {
                other.waiting.push(item);
                true
            }
            None => false,
        }
    }

    /// A running item whose load balancer will name the endpoint: it looks at its end whether the endpoint is still needed.
    pub fn leave_to_user(&mut self, endpoint: Guid) -> bool {
        match self.running.values_mut().find(|other| other.work.names(&endpoint)) {
            Some(other) => {
                other.work.doubtful.push(endpoint);
                true
            }
            None => false,
        }
    }

    /// An item begins, or goes on with a new plan, and holds its endpoints.
    pub fn run(&mut self, token: Token, running: Running) {
        self.busy.insert(running.item, token);
        self.busy_endpoints.extend(running.holds.iter().map(|id| (*id, token)));
        self.running.insert(token, running);
    }

    /// Takes a running item out for a moment; it stays busy.
    pub fn take(&mut self, token: Token) -> Option<Running> {
        self.running.remove(&token)
    }

    /// Puts it back: its call is under way.
    pub fn put_back(&mut self, token: Token, running: Running) {
        self.running.insert(token, running);
    }

    /// Puts it back: its call was answered, so that its next step can be handed out.
    pub fn answered(&mut self, token: Token, running: Running) {
        self.running.insert(token, running);
        self.continuing.push_back(token);
    }

    /// A running item whose next step can be handed out.
    pub fn next_continuing(&mut self) -> Option<Token> {
        self.continuing.pop_front()
    }

    /// One endpoint is made, or is not. Returns the items that waited.
    pub fn release(&mut self, running: &mut Running, endpoint: &Guid) -> Vec<Item> {
        running.holds.retain(|held| held != endpoint);
        self.busy_endpoints.remove(endpoint);
        std::mem::take(&mut running.waiting)
    }

    /// Frees the endpoints that an item holds.
    pub fn release_all(&mut self, running: &mut Running) {
        for id in running.holds.drain(..) {
            self.busy_endpoints.remove(&id);
        }
    }

    /// An item no longer runs. Returns the items that waited for it.
    pub fn end(&mut self, running: &mut Running) -> Vec<Item> {
        self.busy.remove(&running.item);
        self.release_all(running);
        std::mem::take(&mut running.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{IpFamily, Protocol, VipAddress};

    fn vip(port: u16) -> Item {
        Item::Vip(VipKey { address: VipAddress::Node(IpFamily::V4), protocol: Protocol::Tcp, port })
    }

    fn holding(item: Item, endpoint: Guid) -> Running {
        Running { holds: vec![endpoint], ..Running::new(item) }
    }

    #[test]
    fn items_wait_for_an_endpoint_until_it_is_released() {
        let (mut scheduler, endpoint) = (Scheduler::default(), Guid::random());
        assert!(!scheduler.wait_for([endpoint], vip(2)), "nobody holds it");
        scheduler.run(1, holding(vip(1), endpoint));
        assert!(scheduler.is_held(&endpoint) && scheduler.wait_for([Guid::random(), endpoint], vip(2)));
        let mut running = scheduler.take(1).unwrap();
        assert_eq!(scheduler.release(&mut running, &endpoint), [vip(2)]);
        assert!(!scheduler.is_held(&endpoint) && running.holds.is_empty());
        assert_eq!(scheduler.end(&mut running), [], "each waits once");
    }

    #[test]
    fn running_item_is_planned_again_instead_of_started_twice() {
        let mut scheduler = Scheduler::default();
        assert!(!scheduler.plan_again(&vip(1)));
        scheduler.run(1, Running::new(vip(1)));
        assert!(scheduler.plan_again(&vip(1)) && scheduler.has(&vip(1)));
        let mut running = scheduler.take(1).unwrap();
        assert!(running.work.again && scheduler.is_busy(&vip(1)), "it stays busy while it is looked at");
        scheduler.answered(1, Running::new(vip(1)));
        assert_eq!((scheduler.next_continuing(), scheduler.next_continuing()), (Some(1), None));
        scheduler.take(1).unwrap();
        scheduler.end(&mut running);
        assert!(!scheduler.has(&vip(1)) && scheduler.is_at_rest());
    }

    #[test]
    fn pending_vips_include_running_and_queued_ones() {
        let mut scheduler = Scheduler::default();
        scheduler.run(1, Running::new(vip(1)));
        scheduler.run(2, Running::new(Item::Endpoint(Guid::random())));
        scheduler.push(vip(2), Lane::Other);
        scheduler.push(Item::Unused(Guid::random()), Lane::Unused);
        assert_eq!((scheduler.vips(), scheduler.busy_vips().count()), (2, 1));
        assert!(!scheduler.is_at_rest() && !scheduler.is_idle());
    }
}
