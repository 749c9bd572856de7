//! What operations answered.

use hcn::{EndpointPolicy, HResult, HcnError, HostComputeEndpoint, HostComputeLoadBalancer, LoadBalancerFlags};

use super::*;
use crate::hns::calls::{Answer, CallError};
use crate::hns::document::{Remote, Shape, generation, is_orphaned, vip_key};
use crate::hns::mirror::Endpoint;

/// Whether the service as a whole did not answer. A single call that takes too long says nothing of others.
fn is_away(error: &HcnError) -> bool {
    error.is_service_down() && !matches!(error, HcnError::Deadline { .. }) && error.hresult() != Some(HResult::TIMEOUT)
}

impl Engine {
    /// Takes the answer of an operation that [`Engine::next`] handed out.
    pub fn done(&mut self, token: Token, result: Result<Answer, CallError>, now: Instant, table: &Table) {
        if let Err(failure) = &result
            && is_away(&failure.error)
        {
            self.lose(now, failure.error.to_string());
        }
        if let Some((errand, since)) = self.errands.remove(&token) {
            match result {
                Ok(Answer::Network(network, features)) => self.found(network.as_deref(), &features, now, table),
                Ok(Answer::Ids(text)) if errand == Errand::Networks => self.listed_networks(&text, now),
                Ok(Answer::Ids(text)) => self.listed(errand, &text, since, now, table),
                Ok(_) => {}
                Err(failure) => self.errand_failed(errand, &failure.error, now),
            }
            return;
        }
        let Some(mut running) = self.running.remove(&token) else { return };
        match running.item {
            Item::Vip(key) => {
                if let Some(Step::CreateEndpoint { id, .. } | Step::ReadEndpoint { id }) = running.current {
                    self.release(&mut running, &id, table);
                }
                self.vip_answered(&mut running, key, result, now);
            }
            Item::Endpoint(id) => self.endpoint_read(&mut running, id, result, table),
            Item::ForeignBalancer(id) => self.foreign_read(&mut running, id, result, table),
            Item::Verify(key) => self.verified(key, token, result, table),
            Item::Unused(id) => self.unused_deleted(&mut running, id, result),
        }
        self.running.insert(token, running);
        self.continuing.push_back(token);
    }

    fn vip_answered(&mut self, running: &mut Running, key: VipKey, result: Result<Answer, CallError>, now: Instant) {
        let Some(step) = running.current.take() else { return };
        let text = step.display(&key);
        match (step, result) {
            (Step::Read, Ok(Answer::Balancer(document))) => self.balancer_read(running, key, document.as_deref()),
            (Step::CreateEndpoint { id, remote }, Ok(_)) => self.endpoint_made(running, id, remote),
            (Step::ReadEndpoint { id }, Ok(Answer::Endpoint(document))) => self.made_endpoint_read(running, id, document.as_deref()),
            (Step::Put { shape, .. }, Ok(answer)) => self.put_done(running, key, shape, answer),
            (Step::Delete, Ok(_)) => self.deleted(key),
            (_, Ok(_)) => running.failed = Some(format!("cannot {text}: an answer to something else")),
            (Step::CreateEndpoint { id, .. }, Err(failure)) if failure.error.is_already_exists() => {
                running.steps.push_front(Step::ReadEndpoint { id })
            }
            (Step::CreateEndpoint { id, .. }, Err(failure)) => {
                running.broken.push(id);
                running.failed = Some(format!("cannot {text}: {}", failure.error));
            }
            (Step::ReadEndpoint { id }, Err(failure)) => {
                running.broken.push(id);
                running.failed = Some(format!("cannot {text}: {}", failure.error));
            }
            (Step::Delete, Err(failure)) if is_orphaned(&failure.error) => self.leave_behind(key, self.generation_of(&key) + 1),
            (Step::Put { how: Put::Modify | Put::Replace, .. }, Err(failure)) if is_orphaned(&failure.error) && !failure.deleted => {
                self.leave_behind(key, self.generation_of(&key) + 1);
                running.again = true;
            }
            (Step::Put { how, shape }, Err(failure)) => self.put_failed(running, key, how, &shape, &failure, now, &text),
            (Step::Read, Err(failure)) => self.give_up(running, &text, &failure.error),
            (Step::Delete, Err(failure)) => {
                let (id, stamp) = (self.id_of(&key), self.write_stamp());
                self.mirror.doubt(id, key, &[], stamp);
                self.give_up(running, &text, &failure.error);
            }
        }
    }

    pub(super) fn id_of(&self, key: &VipKey) -> Guid {
        successor_id(&self.cluster_uid, key, self.generation_of(key))
    }

    fn generation_of(&self, key: &VipKey) -> u32 {
        self.generations.get(key).copied().unwrap_or(0)
    }

    /// The load balancer of a VIP cannot be deleted: it counts as nobody's, and one of another id takes its place.
    fn leave_behind(&mut self, key: VipKey, generation: u32) {
        if self.generations.is_empty() {
            tracing::warn!(
                vip = %key,
                "a load balancer cannot be deleted since its network is gone: it stays until the Host Networking Service restarts, and another one \
                 takes its place"
            );
        }
        let id = self.id_of(&key);
        self.write_stamp();
        let is_held = self.mirror.key_of(&id).is_some();
        let freed = self.mirror.remove(&id, &key);
        if is_held {
            self.mirror.leave(id);
        }
        self.generations.insert(key, generation);
        self.drop_unused(freed);
    }

    fn give_up(&mut self, running: &mut Running, text: &str, error: &HcnError) {
        running.steps.clear();
        running.failed = Some(format!("cannot {text}: {error}"));
    }

    fn balancer_read(&mut self, running: &mut Running, key: VipKey, document: Option<&HostComputeLoadBalancer>) {
        let (id, stamp) = (self.id_of(&key), self.write_stamp());
        let before = match document {
            Some(document) => {
                self.mirror.put(id, key, BalancerState::Known(Shape::of(document)), stamp);
                Box::default()
            }
            None => self.mirror.remove(&id, &key),
        };
        self.drop_unused(before);
        self.sweep_once();
        match (running.taken.take(), document) {
            // It is ours that is in the way, and reading it once did not help: it is tried again after a while.
            (Some(reason), Some(_)) if running.was_taken => {
                running.steps.clear();
                running.failed = Some(reason);
            }
            // Nothing of ours is there, and yet the VIP is taken.
            (Some(reason), None) => {
                running.steps.clear();
                running.failed = Some(match self.mirror.foreign_at(&key) {
                    Some(other) => format!("load balancer {other} of another program has this VIP: delete it or change the Service's port"),
                    None => format!("{reason}; no load balancer that is known has this VIP, so another program may listen on the port"),
                });
            }
            (taken, _) => {
                running.was_taken |= taken.is_some();
                running.again = true;
            }
        }
    }

    fn endpoint_made(&mut self, running: &mut Running, id: Guid, remote: Remote) {
        self.writes += 1;
        running.doubtful.push(id);
        let stamp = self.write_stamp();
        self.mirror.put_endpoint(id, Endpoint::Ours(remote), stamp);
    }

    /// The service said that the endpoint exists: so it does, or something else of its address does.
    fn made_endpoint_read(&mut self, running: &mut Running, id: Guid, document: Option<&HostComputeEndpoint>) {
        match document {
            Some(document) => {
                let stamp = self.write_stamp();
                self.mirror.read_endpoint(&self.cluster_uid, &self.settings.root_endpoint, document, stamp);
            }
            None => {
                running.broken.push(id);
                running.failed = Some(format!("endpoint {id} cannot be created: HNS says that it, or its address, exists already, and it does not"));
                self.looks.look_at_endpoints();
            }
        }
    }

    /// Says once, by the first pod found so, that pods do not reach themselves through load balancers that return directly.
    fn note_loopback(&mut self, document: &HostComputeEndpoint) {
        // The host's own endpoint has no route: its packets take the host's.
        let is_pod = !document.is_remote() && !document.host_compute_namespace.is_nil() && !document.routes.is_empty();
        if self.without_loopback.is_some() || !is_pod || !self.rules.cluster_ip_dsr || loops_back(document) {
            return;
        }
        self.without_loopback = Some(document.id);
        tracing::warn!(
            endpoint = document.name,
            "with direct server return (--enable-dsr, winkernel.enableDSR) a pod does not reach itself through its Service, and pods of this node \
             have no loopback policy: put \"loopbackDSR\": true into the CNI configuration, or start with --enable-dsr=false"
        );
    }

    fn put_done(&mut self, running: &mut Running, key: VipKey, shape: Shape, answer: Answer) {
        let (id, stamp) = (self.id_of(&key), self.write_stamp());
        self.writes += 1;
        let left_out = running.broken.len();
        let mut written = Shape { endpoints: shape.endpoints.iter().filter(|id| !running.broken.contains(id)).copied().collect(), ..shape };
        if let Answer::Balancer(Some(now)) = answer {
            let now = Shape::of(&now);
            if written.is_met_by(&now) {
                self.modify_works = true;
            } else {
                tracing::warn!(vip = %key, "this version of HNS says that it modified a load balancer and did not: from now on they are replaced");
                (self.modify_fails, self.rules.modify) = (true, false);
                written = now;
                running.again = true;
            }
        }
        let before: Box<[Guid]> = self.mirror.balancer(&key).map(|held| held.endpoints().into()).unwrap_or_default();
        self.mirror.put(id, key, BalancerState::Known(written), stamp);
        self.drop_unused(before);
        if left_out > 0 {
            let why = running.failed.take().unwrap_or_default();
            running.failed = Some(format!("{left_out} of its endpoints could not be created; it serves with the others: {why}"));
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what was tried, and how it ended")]
    fn put_failed(&mut self, running: &mut Running, key: VipKey, how: Put, shape: &Shape, failure: &CallError, now: Instant, text: &str) {
        let error = &failure.error;
        let (id, stamp) = (self.id_of(&key), self.write_stamp());
        if failure.deleted {
            let freed = self.mirror.remove(&id, &key);
            self.drop_unused(freed);
        }
        if how == Put::Modify && error.is_unsupported() {
            tracing::warn!("this version of HNS cannot modify load balancers: from now on they are replaced");
            (self.modify_fails, self.rules.modify, running.again) = (true, false, true);
        } else if how == Put::Modify && error.is_not_found() {
            // Somebody deleted it.
            let freed = self.mirror.remove(&id, &key);
            self.drop_unused(freed);
            running.again = true;
        } else if error.is_already_exists() {
            // By our own, that the service brought back, or by somebody else's.
            self.looks.look_at_balancers(now);
            running.taken = Some(format!("cannot {text}: {error}"));
            running.steps = [Step::Read].into();
        } else {
            if how == Put::Modify || error.is_service_down() {
                self.mirror.doubt(id, key, &shape.endpoints, stamp);
            }
            if error.hresult() == Some(HResult::INVALID_JSON_REFERENCE) {
                self.looks.look_at_endpoints();
            }
            self.give_up(running, text, error);
            if let Some(failed) = &mut running.failed
                && error.hresult() == Some(HResult::OUT_OF_MEMORY)
                && !shape.flags.contains(LoadBalancerFlags::DSR)
            {
                *failed += "; a load balancer without direct server return may take 64 of the host's ephemeral ports: start with --enable-dsr, \
                            or give the host more (netsh int ipv4 set dynamicport tcp)";
            }
        }
    }

    fn deleted(&mut self, key: VipKey) {
        self.writes += 1;
        let id = self.id_of(&key);
        self.note_deleted(id);
        let freed = self.mirror.remove(&id, &key);
        self.drop_unused(freed);
    }

    fn endpoint_read(&mut self, running: &mut Running, id: Guid, result: Result<Answer, CallError>, table: &Table) {
        match result {
            Ok(Answer::Endpoint(Some(document))) => {
                let stamp = self.write_stamp();
                let had_root = self.mirror.root();
                self.mirror.read_endpoint(&self.cluster_uid, &self.settings.root_endpoint, &document, stamp);
                self.note_loopback(&document);
                match self.mirror.endpoint(&id).cloned() {
                    Some(Endpoint::Local(addresses) | Endpoint::Foreign(addresses)) => self.touch_addresses(&addresses, table),
                    _ => self.drop_unused([id]),
                }
                if self.mirror.root() != had_root {
                    self.touch_health_checks(table);
                }
            }
            Ok(_) => self.endpoint_gone(&id, table),
            Err(failure) => running.failed = Some(failure.error.to_string()),
        }
        self.end_reading(table);
    }

    fn foreign_read(&mut self, running: &mut Running, id: Guid, result: Result<Answer, CallError>, table: &Table) {
        if !self.mirror.is_foreign(&id) {
            return;
        }
        match result {
            Ok(Answer::Balancer(Some(document))) => {
                if let Some((key, generation)) = generation(&self.cluster_uid, &document).filter(|(key, later)| *later > self.generation_of(key)) {
                    if self.busy.contains_key(&Item::Vip(key)) {
                        running.failed = Some("its VIP is being written".to_owned());
                        return;
                    }
                    self.leave_behind(key, generation);
                }
                let own = vip_key(&document).map(|key| self.id_of(&key));
                let stamp = self.write_stamp();
                if let Some(key) = self.mirror.read_foreign(own, &document, stamp) {
                    self.push_vip(key, table);
                }
            }
            Ok(_) => drop(self.mirror.remove_foreign(&id)),
            Err(failure) => running.failed = Some(failure.error.to_string()),
        }
        self.sweep_once();
    }

    fn verified(&mut self, key: VipKey, since: Stamp, result: Result<Answer, CallError>, table: &Table) {
        // What was written meanwhile is newer than the answer.
        if self.busy.contains_key(&Item::Vip(key)) || self.mirror.stamp(&key) > since {
            return;
        }
        let Some(BalancerState::Known(known)) = self.mirror.balancer(&key) else { return };
        let id = self.id_of(&key);
        match result {
            Ok(Answer::Balancer(Some(document))) => {
                let now = Shape::of(&document);
                if !known.is_met_by(&now) {
                    tracing::warn!(vip = %key, "its load balancer was changed by somebody else");
                    let stamp = self.write_stamp();
                    self.mirror.put(id, key, BalancerState::Known(now), stamp);
                    self.push_vip(key, table);
                }
            }
            Ok(_) => {
                self.write_stamp();
                let freed = self.mirror.remove(&id, &key);
                self.drop_unused(freed);
                self.push_vip(key, table);
            }
            Err(_) => {}
        }
    }

    fn unused_deleted(&mut self, running: &mut Running, id: Guid, result: Result<Answer, CallError>) {
        match result {
            Ok(_) => {
                self.writes += 1;
                self.note_deleted(id);
            }
            // It may be there or not: the next look tells.
            Err(failure) => {
                let stamp = self.write_stamp();
                if let Some(remote) = running.removing.take() {
                    self.mirror.put_endpoint(id, Endpoint::Ours(remote), stamp);
                }
                running.failed = Some(failure.error.to_string());
            }
        }
    }
}

/// Whether a policy translates what the endpoint sends to itself.
fn loops_back(document: &HostComputeEndpoint) -> bool {
    let Some(own) = document.ip() else { return true };
    let covers = |text: &String| text.parse() == Ok(own) || text.parse::<ipnet::IpNet>().is_ok_and(|net| net.contains(&own));
    document.policies.iter().filter_map(EndpointPolicy::as_outbound_nat).any(|nat| nat.destinations.iter().any(covers))
}
