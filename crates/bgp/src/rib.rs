//! Routing tables: what each peer told, the best of it, and what each peer is told.

mod export;
mod select;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ipnet::IpNet;

use crate::Time;
use crate::wire::{Attributes, Family, Update};

pub use export::{Rules, Told, tell};

/// A route that a peer told, without its prefix.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    pub attributes: Attributes,
    pub next_hop: IpAddr,
    /// The peer.
    pub from: IpAddr,
    pub from_id: Ipv4Addr,
    /// The peer has another AS than we.
    pub external: bool,
    /// The peer is a client of this reflector.
    pub client: bool,
}

#[derive(Clone, Debug)]
struct Held {
    path: Arc<Path>,
    /// Told by a session that ended; the peer is expected back.
    stale: bool,
}

/// What one peer told.
#[derive(Clone, Debug, Default)]
struct Table {
    routes: BTreeMap<IpNet, Held>,
    /// When stale routes go.
    stale_until: Option<Time>,
}

/// How routes of a peer are taken in.
#[derive(Clone, Debug)]
pub struct Source {
    pub peer: IpAddr,
    pub id: Ipv4Addr,
    pub external: bool,
    pub client: bool,
}

/// Which routes are refused.
#[derive(Clone, Debug)]
pub struct Limits {
    pub asn: u32,
    pub id: Ipv4Addr,
    pub cluster: Option<Ipv4Addr>,
    /// How often our own AS may be on the way.
    pub own_as_allowed: usize,
    /// Our own addresses: nothing is reached through ourselves.
    pub own_addresses: Vec<IpAddr>,
    pub families: BTreeSet<Family>,
    /// The most routes of one peer.
    pub most: usize,
}

/// A peer told more routes than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer told more than {0} routes")]
pub struct TooMany(pub usize);

/// The tables.
#[derive(Clone, Debug, Default)]
pub struct Rib {
    told: BTreeMap<IpAddr, Table>,
    /// Announced by ourselves: always the best.
    own: BTreeSet<IpNet>,
    best: BTreeMap<IpNet, Arc<Path>>,
}

impl Rib {
    /// The best routes that others told, by prefix.
    pub fn best(&self) -> &BTreeMap<IpNet, Arc<Path>> {
        &self.best
    }

    pub fn own(&self) -> &BTreeSet<IpNet> {
        &self.own
    }

    /// How many routes a peer told.
    pub fn count(&self, peer: IpAddr) -> usize {
        self.told.get(&peer).map_or(0, |told| told.routes.len())
    }

    /// Whether a peer's routes wait for its return.
    pub fn stale(&self, peer: IpAddr) -> bool {
        self.told.get(&peer).is_some_and(|told| told.stale_until.is_some())
    }

    /// Replaces what we announce; the prefixes that changed.
    pub fn set_own(&mut self, own: BTreeSet<IpNet>) -> BTreeSet<IpNet> {
        let changed: BTreeSet<IpNet> = self.own.symmetric_difference(&own).copied().collect();
        self.own = own;
        for prefix in &changed {
            self.select(*prefix);
        }
        changed
    }

    /// Takes in what a peer told; the prefixes whose best route changed.
    ///
    /// # Errors
    /// When the peer told more routes than it may: its session is to be ended.
    pub fn update(&mut self, source: &Source, limits: &Limits, mut update: Update) -> Result<BTreeSet<IpNet>, TooMany> {
        if source.external {
            // They are of the inside of an AS: another one's count for nothing (RFC 7606, sections 7.5, 7.9 and 7.10).
            (update.attributes.local_pref, update.attributes.originator) = (None, None);
            update.attributes.clusters.clear();
        }
        let told = self.told.entry(source.peer).or_default();
        let mut touched = Vec::new();
        for prefix in update.withdrawn {
            if told.routes.remove(&prefix).is_some() {
                touched.push(prefix);
            }
        }
        let looped = looped(&update.attributes, limits);
        for reach in update.announced {
            let path = Arc::new(Path {
                attributes: update.attributes.clone(),
                next_hop: reach.next_hop,
                from: source.peer,
                from_id: source.id,
                external: source.external,
                client: source.client,
            });
            let usable = !looped && !limits.own_addresses.contains(&reach.next_hop) && is_host(reach.next_hop);
            for prefix in reach.prefixes {
                let fits = limits.families.contains(&Family::of_net(&prefix)) && reach.next_hop.is_ipv4() == prefix.addr().is_ipv4();
                if usable && fits {
                    told.routes.insert(prefix, Held { path: path.clone(), stale: false });
                    touched.push(prefix);
                } else if told.routes.remove(&prefix).is_some() {
                    // What it told before is no longer true.
                    touched.push(prefix);
                }
            }
        }
        if told.routes.len() > limits.most {
            return Err(TooMany(limits.most));
        }
        let mut changed: BTreeSet<IpNet> = touched.into_iter().filter(|prefix| self.select(*prefix)).collect();
        if let Some(family) = update.end_of_rib {
            changed.extend(self.sweep(source.peer, |prefix| Family::of_net(prefix) == family));
        }
        Ok(changed)
    }

    /// The session ended: routes of `kept` stay until then, the others go.
    pub fn lost(&mut self, peer: IpAddr, kept: &BTreeSet<Family>, until: Time) -> BTreeSet<IpNet> {
        let Some(told) = self.told.get_mut(&peer) else { return BTreeSet::new() };
        let mut gone = Vec::new();
        told.routes.retain(|prefix, held| {
            // Twice stale: it did not finish in between.
            let stays = kept.contains(&Family::of_net(prefix)) && !held.stale;
            held.stale = true;
            if !stays {
                gone.push(*prefix);
            }
            stays
        });
        told.stale_until = (!told.routes.is_empty()).then_some(until);
        gone.into_iter().filter(|prefix| self.select(*prefix)).collect()
    }

    /// The peer is back: stale routes of `kept` wait for the end of its routes until then, the others go.
    pub fn returned(&mut self, peer: IpAddr, kept: &BTreeSet<Family>, until: Time) -> BTreeSet<IpNet> {
        let gone = self.sweep(peer, |prefix| !kept.contains(&Family::of_net(prefix)));
        if let Some(told) = self.told.get_mut(&peer).filter(|told| told.stale_until.is_some()) {
            told.stale_until = Some(until);
        }
        gone
    }

    /// Removes everything that a peer told.
    pub fn forget(&mut self, peer: IpAddr) -> BTreeSet<IpNet> {
        let routes = self.told.remove(&peer).map(|told| told.routes).unwrap_or_default();
        routes.into_keys().filter(|prefix| self.select(*prefix)).collect()
    }

    /// When [`Rib::expire`] is due.
    pub fn deadline(&self) -> Option<Time> {
        self.told.values().filter_map(|told| told.stale_until).min()
    }

    /// Removes stale routes whose time is over.
    pub fn expire(&mut self, now: Time) -> BTreeSet<IpNet> {
        let over: Vec<IpAddr> =
            self.told.iter().filter(|(_, told)| told.stale_until.is_some_and(|until| until <= now)).map(|(peer, _)| *peer).collect();
        over.into_iter().flat_map(|peer| self.sweep(peer, |_| true)).collect()
    }

    /// Removes a peer's stale routes that are selected.
    fn sweep(&mut self, peer: IpAddr, selected: impl Fn(&IpNet) -> bool) -> BTreeSet<IpNet> {
        let Some(told) = self.told.get_mut(&peer).filter(|told| told.stale_until.is_some()) else { return BTreeSet::new() };
        let gone: Vec<IpNet> = told.routes.iter().filter(|(prefix, held)| held.stale && selected(prefix)).map(|(prefix, _)| *prefix).collect();
        for prefix in &gone {
            told.routes.remove(prefix);
        }
        if !told.routes.values().any(|held| held.stale) {
            told.stale_until = None;
        }
        gone.into_iter().filter(|prefix| self.select(*prefix)).collect()
    }

    /// Chooses the best route to a prefix anew; whether another one is the best now.
    fn select(&mut self, prefix: IpNet) -> bool {
        let paths = self.told.values().filter_map(|told| told.routes.get(&prefix)).map(|held| &held.path);
        let best = if self.own.contains(&prefix) { None } else { select::best(paths) };
        let before = match &best {
            Some(path) => self.best.insert(prefix, path.clone()),
            None => self.best.remove(&prefix),
        };
        before != best
    }
}

/// The route passed us before.
fn looped(attributes: &Attributes, limits: &Limits) -> bool {
    attributes.times(limits.asn) > limits.own_as_allowed
        || attributes.originator == Some(limits.id)
        || limits.cluster.is_some_and(|own| attributes.clusters.contains(&own))
}

/// Something can be sent to it.
fn is_host(address: IpAddr) -> bool {
    !(address.is_unspecified() || address.is_multicast() || address.is_loopback()) && address != IpAddr::from([255; 4])
}

#[cfg(test)]
mod tests;
