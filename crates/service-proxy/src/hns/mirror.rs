//! Mirror of the Host Networking Service by id: filled by cheap enumerations and single reads, kept by what
//! our own writes answered. Unknown is a state of its own and never counts as absent.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use hcn::{Guid, HostComputeEndpoint, HostComputeLoadBalancer};

use super::document::{Remote, Shape, vip_key};
use crate::table::{IpFamily, Protocol, VipAddress, VipKey};

/// The VIP of foreign load balancers that conflict with none of ours: no Service can have it.
const NOWHERE: VipKey = VipKey { address: VipAddress::Node(IpFamily::V4), protocol: Protocol::Sctp, port: 0 };

/// An endpoint of the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// It was enumerated and not read yet.
    Unread,
    /// A pod's on this node, with its addresses. CNI owns it.
    Local(Box<[IpAddr]>),
    /// We made it.
    Ours(Remote),
    /// A foreign remote endpoint: usable, never deleted.
    Foreign(Box<[IpAddr]>),
}

/// A load balancer of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BalancerState {
    /// It exists, or may; its content must be read. It may name these endpoints.
    Unread(Box<[Guid]>),
    /// It exists with this content.
    Known(Shape),
    /// It exists with this content, but names endpoints that are gone: it must be written in any case.
    Stale(Shape),
}

impl BalancerState {
    /// The endpoints that it names, or may name.
    pub fn endpoints(&self) -> &[Guid] {
        match self {
            Self::Unread(endpoints) => endpoints,
            Self::Known(shape) | Self::Stale(shape) => &shape.endpoints,
        }
    }
}

/// When something last changed by our own doing: the number of a call.
pub type Stamp = u64;

#[derive(Clone, Debug)]
struct Entry<T> {
    what: T,
    stamp: Stamp,
}

/// An endpoint, and how often it is named by what is ours.
#[derive(Clone, Debug)]
struct Named {
    what: Endpoint,
    stamp: Stamp,
    uses: u32,
}

/// The part of the service that concerns us. Trees, since they take no more memory than their entries need.
#[derive(Debug, Default)]
pub struct Mirror {
    endpoints: BTreeMap<Guid, Named>,
    unread: usize,
    by_address: BTreeMap<IpAddr, Vec<Guid>>,
    root: Option<Guid>,
    balancers: BTreeMap<VipKey, Entry<BalancerState>>,
    /// Load balancers of which nothing is known, not even what they name.
    blind: usize,
    keys: BTreeMap<Guid, VipKey>,
    /// Foreign load balancers; those not read yet have no VIP here.
    foreign_balancers: BTreeMap<Guid, Option<VipKey>>,
    unread_foreign: usize,
    service_vips: BTreeMap<VipKey, Guid>,
    /// How often endpoints are named that are not there.
    missed: BTreeMap<Guid, u32>,
}

/// What an enumeration showed that was not expected.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// These are gone.
    pub lost: Vec<Guid>,
    /// These are new, and nothing is known of them.
    pub found: Vec<Guid>,
}

impl Mirror {
    /// What is known of an endpoint.
    pub fn endpoint(&self, id: &Guid) -> Option<&Endpoint> {
        self.endpoints.get(id).map(|entry| &entry.what)
    }

    /// Whether endpoints wait to be read: one of them may be the one that is missed.
    pub fn is_reading(&self) -> bool {
        self.unread > 0
    }

    /// The pod's endpoint at `address`.
    pub fn local(&self, address: IpAddr) -> Option<Guid> {
        self.at(address, |endpoint| matches!(endpoint, Endpoint::Local(_)))
    }

    /// The foreign remote endpoint at `address`.
    pub fn foreign(&self, address: IpAddr) -> Option<Guid> {
        self.at(address, |endpoint| matches!(endpoint, Endpoint::Foreign(_)))
    }

    fn at(&self, address: IpAddr, is: impl Fn(&Endpoint) -> bool) -> Option<Guid> {
        self.by_address.get(&address)?.iter().find(|id| self.endpoint(id).is_some_and(&is)).copied()
    }

    /// The host's own endpoint on the network.
    pub fn root(&self) -> Option<Guid> {
        self.root
    }

    /// Every endpoint.
    pub fn endpoints(&self) -> impl Iterator<Item = (&Guid, &Endpoint)> {
        self.endpoints.iter().map(|(id, entry)| (id, &entry.what))
    }

    /// Notes an endpoint.
    pub fn put_endpoint(&mut self, id: Guid, what: Endpoint, stamp: Stamp) {
        self.remove_endpoint(&id);
        if let Endpoint::Local(addresses) | Endpoint::Foreign(addresses) = &what {
            for address in addresses {
                self.by_address.entry(*address).or_default().push(id);
            }
        }
        self.unread += usize::from(what == Endpoint::Unread);
        let uses = self.missed.remove(&id).unwrap_or(0);
        self.endpoints.insert(id, Named { what, stamp, uses });
    }

    /// Records a read endpoint. `root` is the name of the host's own.
    pub fn read_endpoint(&mut self, cluster_uid: &str, root: &str, document: &HostComputeEndpoint, stamp: Stamp) {
        let addresses: Box<[IpAddr]> = document.ip_configurations.iter().filter_map(|c| c.ip_address.parse().ok()).collect();
        let what = match Remote::of(cluster_uid, document) {
            Some(remote) => Endpoint::Ours(remote),
            None if document.is_remote() => Endpoint::Foreign(addresses),
            None => Endpoint::Local(addresses),
        };
        self.put_endpoint(document.id, what, stamp);
        if document.name == root {
            self.root = Some(document.id);
        }
    }

    /// Records that an endpoint is gone; returns what it was.
    pub fn remove_endpoint(&mut self, id: &Guid) -> Option<Endpoint> {
        let entry = self.endpoints.remove(id)?;
        if entry.uses > 0 {
            self.missed.insert(*id, entry.uses);
        }
        self.unread -= usize::from(entry.what == Endpoint::Unread);
        if let Endpoint::Local(addresses) | Endpoint::Foreign(addresses) = &entry.what {
            for address in addresses {
                if let Some(ids) = self.by_address.get_mut(address) {
                    ids.retain(|other| other != id);
                    if ids.is_empty() {
                        self.by_address.remove(address);
                    }
                }
            }
        }
        if self.root == Some(*id) {
            self.root = None;
        }
        Some(entry.what)
    }

    /// Forgets every endpoint: the network is another one.
    pub fn forget_endpoints(&mut self) {
        let named = std::mem::take(&mut self.endpoints).into_iter().filter(|(_, entry)| entry.uses > 0);
        self.missed.extend(named.map(|(id, entry)| (id, entry.uses)));
        self.by_address.clear();
        (self.unread, self.root) = (0, None);
    }

    /// Every load balancer of ours.
    pub fn load_balancers(&self) -> impl DoubleEndedIterator<Item = (&VipKey, &BalancerState)> {
        self.balancers.iter().map(|(key, entry)| (key, &entry.what))
    }

    /// How many load balancers are ours.
    pub fn len(&self) -> usize {
        self.balancers.len()
    }

    /// Our load balancer for `key`.
    pub fn balancer(&self, key: &VipKey) -> Option<&BalancerState> {
        self.balancers.get(key).map(|entry| &entry.what)
    }

    /// When our load balancer for `key` last changed here.
    pub fn stamp(&self, key: &VipKey) -> Stamp {
        self.balancers.get(key).map_or(0, |entry| entry.stamp)
    }

    /// The first load balancer of ours after `key`.
    pub fn after(&self, key: Option<VipKey>) -> Option<VipKey> {
        use std::ops::Bound::{Excluded, Unbounded};
        let start = key.map_or(Unbounded, Excluded);
        self.balancers.range((start, Unbounded)).next().map(|(key, _)| *key)
    }

    /// Notes a load balancer.
    pub fn put(&mut self, id: Guid, key: VipKey, held: BalancerState, stamp: Stamp) {
        self.take(&key);
        self.remove_foreign(&id);
        self.blind += usize::from(held == BalancerState::Unread(Box::default()));
        self.count(held.endpoints(), true);
        self.keys.insert(id, key);
        self.balancers.insert(key, Entry { what: held, stamp });
    }

    /// Notes that a load balancer is gone. Returns the endpoints that it named.
    pub fn remove(&mut self, id: &Guid, key: &VipKey) -> Box<[Guid]> {
        self.keys.remove(id);
        self.take(key)
    }

    fn take(&mut self, key: &VipKey) -> Box<[Guid]> {
        let Some(Entry { what, .. }) = self.balancers.remove(key) else { return Box::default() };
        self.blind -= usize::from(what == BalancerState::Unread(Box::default()));
        self.count(what.endpoints(), false);
        match what {
            BalancerState::Unread(endpoints) => endpoints,
            BalancerState::Known(shape) | BalancerState::Stale(shape) => shape.endpoints,
        }
    }

    /// The content of a load balancer is unknown: a call's effect is not known, or the service came back. It may name `also` now.
    pub fn doubt(&mut self, id: Guid, key: VipKey, also: &[Guid], stamp: Stamp) {
        let mut named: Vec<Guid> = self.balancer(&key).map(|held| held.endpoints().to_vec()).unwrap_or_default();
        named.extend_from_slice(also);
        named.sort_unstable();
        named.dedup();
        self.put(id, key, BalancerState::Unread(named.into()), stamp);
    }

    /// An endpoint is gone: every load balancer that names it must be written. Returns their VIPs.
    pub fn invalidate(&mut self, endpoint: &Guid) -> Vec<VipKey> {
        let mut invalidated = Vec::new();
        for (key, entry) in &mut self.balancers {
            if let BalancerState::Known(shape) = &entry.what
                && shape.endpoints.binary_search(endpoint).is_ok()
            {
                entry.what = BalancerState::Stale(shape.clone());
                invalidated.push(*key);
            }
        }
        invalidated.extend(self.service_vips.iter().filter(|(_, id)| *id == endpoint).map(|(key, _)| *key));
        invalidated
    }

    /// Records a load balancer whose owner is not known, and its VIP once it was read.
    pub fn put_foreign(&mut self, id: Guid, key: Option<VipKey>) {
        self.remove_foreign(&id);
        self.unread_foreign += usize::from(key.is_none());
        self.foreign_balancers.insert(id, key);
    }

    /// Whether load balancer `id` is foreign, or its owner not known yet.
    pub fn is_foreign(&self, id: &Guid) -> bool {
        self.foreign_balancers.contains_key(id)
    }

    /// Whether there are load balancers whose owner is not known yet.
    pub fn has_unread_foreign(&self) -> bool {
        self.unread_foreign > 0
    }

    /// Counts the load balancer `id`, if it was not read yet, as that of the VIP whose id it has.
    pub fn claim(&mut self, id: Guid, key: VipKey, stamp: Stamp) {
        if self.foreign_balancers.get(&id).is_some_and(Option::is_none) {
            self.remove_foreign(&id);
            self.put(id, key, BalancerState::Unread(Box::default()), stamp);
        }
    }

    /// The foreign load balancer that has this VIP.
    pub fn foreign_at(&self, key: &VipKey) -> Option<Guid> {
        self.foreign_balancers.iter().find(|(_, at)| at.as_ref() == Some(key)).map(|(id, _)| *id)
    }

    /// Records a load balancer that cannot be deleted.
    pub fn leave(&mut self, id: Guid) {
        self.put_foreign(id, Some(NOWHERE));
    }

    /// Records a read load balancer of unknown owner. Returns its VIP when it is ours after all, by `own`, the id that ours has.
    pub fn read_foreign(&mut self, own: Option<Guid>, document: &HostComputeLoadBalancer, stamp: Stamp) -> Option<VipKey> {
        let key = vip_key(document);
        if let Some(key) = key.filter(|_| own == Some(document.id)) {
            self.remove_foreign(&document.id);
            self.put(document.id, key, BalancerState::Known(Shape::of(document)), stamp);
            return Some(key);
        }
        // Any value keeps it from being read again.
        self.put_foreign(document.id, Some(key.unwrap_or(NOWHERE)));
        None
    }

    /// Records that a foreign load balancer is gone; returns the VIP that it had.
    pub fn remove_foreign(&mut self, id: &Guid) -> Option<VipKey> {
        let key = self.foreign_balancers.remove(id)?;
        self.unread_foreign -= usize::from(key.is_none());
        key
    }

    /// The endpoint that makes the address of `key` known on an overlay.
    pub fn service_vip(&self, key: &VipKey) -> Option<Guid> {
        self.service_vips.get(key).copied()
    }

    /// Notes which endpoint makes the address of `key` known; returns the one that did.
    pub fn set_service_vip(&mut self, key: VipKey, id: Option<Guid>) -> Option<Guid> {
        if self.service_vip(&key) == id {
            return None;
        }
        let old = match id {
            Some(id) => self.service_vips.insert(key, id),
            None => self.service_vips.remove(&key),
        };
        self.count(id.as_slice(), true);
        self.count(old.as_slice(), false);
        old
    }

    /// How often endpoint `id` is named by what is ours.
    pub fn uses(&self, id: &Guid) -> u32 {
        self.endpoints.get(id).map_or_else(|| self.missed.get(id).copied().unwrap_or(0), |entry| entry.uses)
    }

    /// Whether there are load balancers that may name endpoints and were not read.
    pub fn is_blind(&self) -> bool {
        self.blind > 0 || self.unread_foreign > 0
    }

    /// Whether endpoint `id` can go: it is ours, nothing names it, and nothing that was not read may.
    pub fn is_unused(&self, id: &Guid) -> bool {
        let ours = matches!(self.endpoint(id), Some(Endpoint::Ours(Remote::Backend(_) | Remote::ServiceVip(_))));
        ours && self.uses(id) == 0 && !self.is_blind()
    }

    /// Compares with an enumeration of the network's endpoints, whose call began at `since`.
    pub fn endpoint_drift(&self, listed: &HashSet<Guid>, since: Stamp) -> Drift {
        let lost = self.endpoints.iter().filter(|(id, entry)| entry.stamp < since && !listed.contains(*id)).map(|(id, _)| *id);
        Drift { lost: lost.collect(), found: listed.iter().filter(|id| !self.endpoints.contains_key(*id)).copied().collect() }
    }

    /// Compares with an enumeration of all load balancers, whose call began at `since`.
    pub fn balancer_drift(&self, listed: &HashSet<Guid>, since: Stamp) -> Drift {
        let stamped = |key: &VipKey| self.balancers.get(key).is_some_and(|entry| entry.stamp < since);
        let ours = self.keys.iter().filter(|(id, key)| !listed.contains(*id) && stamped(key)).map(|(id, _)| *id);
        let theirs = self.foreign_balancers.keys().filter(|id| !listed.contains(*id)).copied();
        let found = listed.iter().filter(|id| !self.keys.contains_key(*id) && !self.foreign_balancers.contains_key(*id));
        Drift { lost: ours.chain(theirs).collect(), found: found.copied().collect() }
    }

    /// The VIP of the load balancer of that id, when it is ours.
    pub fn key_of(&self, id: &Guid) -> Option<VipKey> {
        self.keys.get(id).copied()
    }

    /// Endpoints are named once more, or once less.
    fn count(&mut self, ids: &[Guid], up: bool) {
        let change = |uses: &mut u32| *uses = if up { *uses + 1 } else { *uses - 1 };
        for id in ids {
            if let Some(entry) = self.endpoints.get_mut(id) {
                change(&mut entry.uses);
                continue;
            }
            let uses = self.missed.entry(*id).or_default();
            change(uses);
            if *uses == 0 {
                self.missed.remove(id);
            }
        }
    }
}
