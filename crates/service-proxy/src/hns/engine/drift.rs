//! Drift: what enumerations show, compared with the mirror.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use hcn::{Guid, HostComputeNetwork, SupportedFeatures};
use tokio::time::Instant;

use super::*;
use crate::hns::discovery::{Listed, Query};
use crate::hns::document::{NetworkContext, NetworkError};
use crate::hns::mirror::Drift;
use crate::table::VipAddress;

/// More new ids than this are identified by what the table predicts; fewer are simply read.
const FEW: usize = 32;

impl Turn<'_> {
    /// A question of discovery was answered; `since` is when it was asked.
    pub(super) fn discovered(&mut self, query: Query, since: Stamp, result: Result<Answer, CallError>, now: Instant) {
        let Engine { view, discovery, applier, .. } = &mut *self.engine;
        let lost = match result {
            Ok(Answer::Network(network, features)) => return self.found(network.as_deref(), &features, now),
            Ok(Answer::Ids(text)) if query == Query::Networks => discovery.listed_networks(&text, &view.network, now),
            Ok(Answer::Ids(text)) => return self.listed(query, &text, since, now),
            Ok(_) => false,
            Err(failure) => discovery.failed(query, &failure.error, now),
        };
        if lost {
            applier.service_lost();
        }
    }

    fn found(&mut self, network: Option<&HostComputeNetwork>, features: &SupportedFeatures, now: Instant) {
        let Engine { view, discovery, applier, settings, .. } = &mut *self.engine;
        let missing = || NetworkError::Missing(settings.network.clone());
        let network = match network.ok_or_else(missing).and_then(|network| NetworkContext::of(network, settings)) {
            Ok(network) => network,
            Err(error) => {
                if discovery.ask_later(now, error.to_string()) {
                    applier.service_lost();
                }
                return;
            }
        };
        view.capabilities = Capabilities::new(features, settings.dsr);
        view.capabilities.modify &= applier.may_modify();
        let other = network.id != view.network.id;
        let changed = network != view.network;
        view.network = network;
        if other {
            view.mirror.forget_endpoints();
        }
        if !discovery.found(other, now, || view.tick()) && changed {
            let table = self.table;
            table.iter().for_each(|(key, _)| self.touch(*key));
        }
    }

    fn listed(&mut self, query: Query, text: &str, since: Stamp, now: Instant) {
        let changed = self.engine.view.changed();
        let again = match self.engine.discovery.listed(query, text, since, now, changed) {
            Ok((Listed::Outdated, _)) => return,
            Ok((Listed::Same, again)) => again,
            Ok((Listed::Ids(ids), again)) => {
                match query {
                    Query::Endpoints => self.compare_endpoints(&ids, since),
                    _ => self.compare_balancers(&ids, since),
                }
                again
            }
            Err(error) => return self.engine.lose(now, error.to_string()),
        };
        // VIPs that waited for an enumeration have had it, unless it began before they asked.
        if query == Query::Endpoints && !again {
            let waited = self.engine.vips.end_enumeration();
            self.push_all(waited);
        }
        if self.engine.discovery.go_up() {
            self.begin_work(now);
        }
    }

    /// Everything was enumerated: work begins, or goes on.
    fn begin_work(&mut self, now: Instant) {
        self.engine.scheduler.wake_all();
        self.engine.vips.forget_waiting();
        self.engine.sweep_due = true;
        let balancers = || self.engine.view.mirror.load_balancers();
        let known: Vec<VipKey> = balancers().filter(|(_, state)| !matches!(state, BalancerState::Unread(_))).map(|(key, _)| *key).collect();
        let all: BTreeSet<VipKey> = self.table.iter().map(|(key, _)| *key).chain(balancers().map(|(key, _)| *key)).collect();
        for key in known {
            let lane = self.verify_lane(&key);
            self.engine.scheduler.push(Item::Verify(key), lane);
        }
        self.push_all(all);
        self.engine.sweep();
        self.engine.verification.restart(now, self.engine.view.mirror.len());
    }

    fn compare_endpoints(&mut self, listed: &HashSet<Guid>, since: Stamp) {
        let Drift { lost, found } = self.engine.view.mirror.endpoint_drift(listed, since);
        let lost: Vec<Guid> = lost.into_iter().filter(|id| !self.engine.scheduler.is_held(id)).collect();
        lost.iter().for_each(|id| self.endpoint_gone(id));
        let predicted = if found.len() > FEW { self.predicted_endpoints() } else { HashMap::new() };
        let Engine { view, scheduler, .. } = &mut *self.engine;
        for id in found {
            if scheduler.is_held(&id) || view.is_just_deleted(&id, since) {
                continue;
            }
            let stamp = view.write_stamp();
            match predicted.get(&id) {
                Some(remote) => view.mirror.put_endpoint(id, Endpoint::Ours(remote.clone()), stamp),
                None => {
                    view.mirror.put_endpoint(id, Endpoint::Unread, stamp);
                    scheduler.push(Item::Endpoint(id), Lane::Known);
                }
            }
        }
    }

    /// An endpoint is gone: load balancers that name it are written again, with its replacement.
    pub(super) fn endpoint_gone(&mut self, id: &Guid) {
        let view = &mut self.engine.view;
        view.write_stamp();
        let was = view.mirror.remove_endpoint(id);
        let invalidated = view.mirror.invalidate(id);
        if !invalidated.is_empty() {
            tracing::warn!(endpoint = %id, load_balancers = invalidated.len(), "an endpoint is gone that load balancers name: {was:?}");
        }
        self.push_all(invalidated);
        if was == Some(Endpoint::Unread) {
            self.end_reading();
        }
    }

    /// VIPs that waited for endpoints to be read go on once all are.
    pub(super) fn end_reading(&mut self) {
        if !self.engine.view.mirror.is_reading() {
            let waited = self.engine.vips.end_reading();
            self.push_all(waited);
        }
    }

    fn predicted_endpoints(&self) -> HashMap<Guid, Remote> {
        let view = &self.engine.view;
        let mut predicted = HashMap::new();
        let mut add = |remote: Remote| predicted.insert(remote.id(&view.cluster_uid, &view.network), remote);
        let mut addresses: HashSet<IpAddr> = HashSet::new();
        for (key, vip) in self.table.iter() {
            addresses.extend(vip.backends.iter().filter(|backend| !backend.local).map(|backend| backend.address));
            if let (true, VipAddress::Ip(ip)) = (view.network.overlay, key.address) {
                add(Remote::ServiceVip(ip));
            }
        }
        for remote in addresses.into_iter().map(Remote::Backend).chain(view.network.source_vip.map(Remote::SourceVip)) {
            add(remote);
        }
        predicted
    }

    fn compare_balancers(&mut self, listed: &HashSet<Guid>, since: Stamp) {
        let Drift { lost, found } = self.engine.view.mirror.balancer_drift(listed, since);
        let mut count = 0;
        for id in lost {
            let Engine { view, scheduler, .. } = &mut *self.engine;
            view.write_stamp();
            let key = match view.mirror.key_of(&id) {
                Some(key) if scheduler.is_busy(&Item::Vip(key)) => continue,
                Some(key) => {
                    count += 1;
                    let freed = view.mirror.remove(&id, &key);
                    self.engine.drop_unused(freed);
                    Some(key)
                }
                None => view.mirror.remove_foreign(&id),
            };
            self.push_all(key);
        }
        if count > 0 {
            tracing::warn!(count, "load balancers of ours are gone");
        }
        let in_work: HashSet<Guid> = self.engine.scheduler.busy_vips().map(|key| self.engine.id_of(key)).collect();
        let predicted: HashMap<Guid, VipKey> =
            if found.len() > FEW { self.table.iter().map(|(key, _)| (self.engine.id_of(key), *key)).collect() } else { HashMap::new() };
        for id in found.into_iter().filter(|id| !in_work.contains(id)) {
            let view = &mut self.engine.view;
            if view.is_just_deleted(&id, since) {
                continue;
            }
            let stamp = view.write_stamp();
            match predicted.get(&id) {
                Some(key) => {
                    view.mirror.put(id, *key, BalancerState::Unread(Box::default()), stamp);
                    self.push(*key);
                }
                None => {
                    view.mirror.put_foreign(id, None);
                    self.engine.sweep_due = true;
                    self.engine.scheduler.push(Item::ForeignBalancer(id), Lane::Known);
                }
            }
        }
    }
}
