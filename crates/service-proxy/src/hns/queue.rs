//! Work queue, ordered by priority: each item is in it once, and failed items come back after a delay.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hcn::Guid;
use tokio::time::Instant;

use crate::table::VipKey;

/// An item of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Item {
    /// Compares a VIP's load balancer with the table.
    Vip(VipKey),
    /// Reads an enumerated endpoint to find its owner.
    Endpoint(Guid),
    /// Deletes an endpoint of ours that nothing names.
    Unused(Guid),
    /// Reads an enumerated load balancer to find its owner.
    ForeignBalancer(Guid),
    /// Reads a load balancer of ours and compares it with the mirror.
    Verify(VipKey),
}

impl Item {
    /// How many VIPs it is.
    fn vips(&self) -> usize {
        usize::from(matches!(self, Self::Vip(_)))
    }
}

/// Priority of an item; the smallest comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// Cluster DNS and the API server.
    Urgent,
    /// Reads that other decisions wait for.
    Known,
    /// VIPs with backends on this node.
    Local,
    /// Other VIPs.
    Other,
    /// Load balancers that serve already, and are read to be sure.
    Adopt,
    /// Load balancers that must go.
    Gone,
    /// Endpoints that nothing names.
    Unused,
    /// Urgent load balancers that were right when last seen.
    VerifyUrgent,
    /// Load balancers that were right when last seen.
    Verify,
}

/// The first retry comes after this, each further one after twice the time, up to [`SLOWEST`].
const QUICKEST: Duration = Duration::from_millis(200);
const SLOWEST: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub struct Queue {
    ready: BTreeSet<(Lane, u64, Item)>,
    places: BTreeMap<Item, (Lane, u64)>,
    later: BTreeSet<(Instant, Item)>,
    due: BTreeMap<Item, (Instant, Lane)>,
    attempts: BTreeMap<Item, u32>,
    number: u64,
    /// How many VIPs are in `places` and `due`; none is in both.
    vips: usize,
}

impl Queue {
    /// Queues an item, or moves it forward when it is queued already.
    pub fn push(&mut self, item: Item, lane: Lane) {
        if let Some((due, _)) = self.take_due(&item) {
            self.later.remove(&(due, item));
        }
        match self.places.get(&item).copied() {
            Some((at, _)) if at <= lane => return,
            Some((at, number)) => drop(self.ready.remove(&(at, number, item))),
            None => self.vips += item.vips(),
        }
        self.number += 1;
        self.places.insert(item, (lane, self.number));
        self.ready.insert((lane, self.number, item));
    }

    /// Takes the most important item.
    pub fn pop(&mut self) -> Option<Item> {
        let (_, _, item) = self.ready.pop_first()?;
        self.places.remove(&item);
        self.vips -= item.vips();
        Some(item)
    }

    fn take_due(&mut self, item: &Item) -> Option<(Instant, Lane)> {
        let due = self.due.remove(item);
        self.vips -= due.map_or(0, |_| item.vips());
        due
    }

    /// Has an item come back after a delay, unless it is queued.
    pub fn retry(&mut self, item: Item, lane: Lane, now: Instant) {
        let attempts = self.attempts.entry(item).or_default();
        let delay = backoff::exponential(QUICKEST, SLOWEST, *attempts);
        *attempts = attempts.saturating_add(1);
        if !self.places.contains_key(&item) {
            let due = now + delay;
            match self.due.insert(item, (due, lane)) {
                Some((old, _)) => drop(self.later.remove(&(old, item))),
                None => self.vips += item.vips(),
            }
            self.later.insert((due, item));
        }
    }

    /// An item succeeded: its next failure counts as its first.
    pub fn settle(&mut self, item: &Item) {
        self.attempts.remove(item);
    }

    /// Brings back what is due.
    pub fn wake(&mut self, now: Instant) {
        while let Some((due, item)) = self.later.first().copied().filter(|(due, _)| *due <= now) {
            self.later.remove(&(due, item));
            if let Some((_, lane)) = self.take_due(&item) {
                self.push(item, lane);
            }
        }
    }

    /// Brings back everything now: the cause of its failure may be gone.
    pub fn wake_all(&mut self) {
        for (_, item) in std::mem::take(&mut self.later) {
            if let Some((_, lane)) = self.take_due(&item) {
                self.push(item, lane);
            }
        }
    }

    /// When the next failed item comes back.
    pub fn next_due(&self) -> Option<Instant> {
        self.later.first().map(|(due, _)| *due)
    }

    /// Whether an item can be taken now.
    pub fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether `item` is queued or comes back.
    pub fn contains(&self, item: &Item) -> bool {
        self.places.contains_key(item) || self.due.contains_key(item)
    }

    /// How many VIPs are queued or come back.
    pub fn vips(&self) -> usize {
        self.vips
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{IpFamily, Protocol, VipAddress};

    #[tokio::test(start_paused = true)]
    async fn vip_count_includes_ready_and_delayed_items() {
        let vip = |port| Item::Vip(VipKey { address: VipAddress::Node(IpFamily::V4), protocol: Protocol::Tcp, port });
        let mut queue = Queue::default();
        let now = Instant::now();
        queue.push(Item::Unused(Guid::random()), Lane::Unused);
        for _ in 0..2 {
            queue.push(vip(1), Lane::Other);
            queue.retry(vip(1), Lane::Other, now);
            queue.retry(vip(2), Lane::Other, now);
            assert_eq!(queue.vips(), 2, "one is in, one comes back");
        }
        queue.push(vip(1), Lane::Urgent);
        queue.push(vip(2), Lane::Gone);
        assert_eq!(queue.vips(), 2);
        assert_eq!((queue.pop(), queue.vips()), (Some(vip(1)), 1));
        queue.retry(vip(1), Lane::Other, now);
        queue.wake(now + SLOWEST);
        assert_eq!(queue.vips(), 2);
        queue.retry(vip(3), Lane::Other, now);
        queue.wake_all();
        while queue.pop().is_some() {}
        assert_eq!(queue.vips(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn queue_orders_by_lane_deduplicates_and_delays_failures() {
        let (a, b, c) = (Item::Unused(Guid::random()), Item::Unused(Guid::random()), Item::Unused(Guid::random()));
        let mut queue = Queue::default();
        queue.push(a, Lane::Other);
        queue.push(b, Lane::Urgent);
        queue.push(c, Lane::Other);
        queue.push(c, Lane::Local);
        queue.push(c, Lane::Verify);
        assert_eq!([queue.pop(), queue.pop(), queue.pop(), queue.pop()], [Some(b), Some(c), Some(a), None]);
        let now = Instant::now();
        for wait in [200, 400, 800] {
            queue.retry(a, Lane::Other, now);
            assert_eq!(queue.next_due(), Some(now + Duration::from_millis(wait)));
        }
        (0..40).for_each(|_| queue.retry(b, Lane::Other, now));
        assert_eq!(queue.due[&b].0, now + SLOWEST);
        queue.wake(now + Duration::from_secs(1));
        assert_eq!([queue.pop(), queue.pop()], [Some(a), None]);
        queue.settle(&a);
        queue.retry(a, Lane::Other, now);
        assert_eq!(queue.next_due(), Some(now + QUICKEST));
        queue.push(a, Lane::Other);
        assert_eq!((queue.pop(), queue.due.len()), (Some(a), 1), "an event does not wait for a retry");
        queue.wake_all();
        assert_eq!(queue.pop(), Some(b));
    }
}
