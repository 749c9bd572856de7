//! The engine composes [`Discovery`], [`Scheduler`], [`VipStates`] and [`Applier`] over one [`View`] of the service (pure but for the clock
//! that it is given).
//!
//! [`Engine::next`] hands out one operation at a time, [`Engine::done`] takes its answer. Both, and [`Engine::touch`], work in a
//! [`Turn`]: the engine with the table and the time. Drift is in [`drift`].

mod drift;

use std::collections::BTreeMap;
use std::net::IpAddr;

use hcn::{EndpointPolicy, Event, Guid, HResult, HcnError, HostComputeEndpoint};
use tokio::time::Instant;

use super::Settings;
use super::apply::{Applier, Effects, abandon};
use super::calls::{Answer, Call, CallError};
use super::discovery::{Discovery, Verification};
use super::document::{Capabilities, Remote, Shape, generation, vip_key};
use super::gap::Gap;
use super::mirror::{BalancerState, Endpoint, Mirror, Stamp};
use super::plan::{Plan, Step, no_endpoint, plan};
use super::queue::{Item, Lane};
use super::scheduler::{Running, Scheduler};
use super::view::View;
use super::vip_states::VipStates;
use crate::table::{Kind, Table, Vip, VipAddress, VipKey};

/// Names an operation under way.
pub type Token = u64;

/// What keeps the service equal to the table.
#[derive(Debug)]
pub struct Engine {
    settings: Settings,
    view: View,
    discovery: Discovery,
    verification: Verification,
    scheduler: Scheduler,
    vips: VipStates,
    applier: Applier,
    /// The first pod's endpoint that was found without the loopback policy.
    without_loopback: Option<Guid>,
    /// Endpoints of ours that nothing names are to be removed once everything was read.
    sweep_due: bool,
    /// Every VIP was tried since the start.
    caught_up: bool,
    /// That was not reported yet.
    caught_up_now: bool,
}

impl Engine {
    /// An engine that knows nothing yet.
    pub fn new(cluster_uid: impl Into<String>, settings: Settings, now: Instant) -> Self {
        Self {
            view: View::new(cluster_uid.into(), &settings),
            discovery: Discovery::new(settings.network.clone(), settings.periods, now),
            verification: Verification::new(settings.periods, now),
            scheduler: Scheduler::default(),
            vips: VipStates::default(),
            applier: Applier::new(settings.modify),
            settings,
            without_loopback: None,
            sweep_due: true,
            caught_up: false,
            caught_up_now: false,
        }
    }

    /// Objects of HNS as last known.
    pub fn mirror(&self) -> &Mirror {
        &self.view.mirror
    }

    /// What the service can do; what it refused is off.
    pub fn capabilities(&self) -> Capabilities {
        self.view.capabilities
    }

    /// VIPs that are not what they should be, with the reason.
    pub fn failing(&self) -> &BTreeMap<VipKey, String> {
        self.vips.failing()
    }

    /// The first pod's endpoint that was found without the loopback policy: such pods do not reach themselves through their Services.
    pub fn without_loopback(&self) -> Option<Guid> {
        self.without_loopback
    }

    /// What the service cannot do, by VIP.
    pub fn gaps(&self) -> &BTreeMap<VipKey, Vec<Gap>> {
        self.vips.gaps()
    }

    /// Why nothing can be done at all.
    pub fn unavailable(&self) -> Option<&str> {
        self.discovery.unavailable()
    }

    /// Whether the service was read since it last went away.
    pub fn is_up(&self) -> bool {
        self.discovery.is_up()
    }

    /// Whether the network was found.
    pub fn is_found(&self) -> bool {
        self.discovery.is_found()
    }

    /// Whether every VIP was tried since the start.
    pub fn was_up_to_date(&self) -> bool {
        self.caught_up
    }

    /// Whether nothing goes on: what failed waits for its retry.
    pub fn is_only_waiting(&self) -> bool {
        let waits = self.view.mirror.is_reading() || self.vips.awaits_enumeration();
        self.is_up() && self.scheduler.is_at_rest() && !self.discovery.is_enumerating() && !waits
    }

    /// Whether nothing is left to do but to enumerate once in a while.
    pub fn is_idle(&self) -> bool {
        self.is_only_waiting() && self.scheduler.next_due().is_none()
    }

    /// How many VIPs were processed to the end.
    pub fn finished(&self) -> u64 {
        self.vips.finished()
    }

    /// Whether the service has what the table says of this VIP.
    pub fn is_settled(&self, key: &VipKey) -> bool {
        let waits = self.scheduler.has(&Item::Vip(*key)) || self.vips.is_waiting(key);
        !waits && !self.failing().contains_key(key) && !matches!(self.view.mirror.balancer(key), Some(BalancerState::Unread(_)))
    }

    /// How many writes succeeded.
    pub fn writes(&self) -> u64 {
        self.applier.writes()
    }

    /// How many VIPs wait or are under way.
    pub fn pending(&self) -> usize {
        self.scheduler.vips() + self.vips.waiting()
    }

    /// Whether something that is reported changed since this was last asked.
    pub fn take_changed(&mut self) -> bool {
        let caught_up = std::mem::take(&mut self.caught_up_now);
        // Each part is asked, so that each forgets.
        self.vips.take_changed() | self.discovery.take_changed() | caught_up
    }

    /// When [`Engine::next`] should be asked again although nothing was answered.
    pub fn wake(&self) -> Option<Instant> {
        let discovery = self.discovery.wake()?;
        if !self.is_up() {
            return Some(discovery);
        }
        let others = [self.verification.wake(self.view.mirror.len()), self.scheduler.next_due()];
        Some(others.into_iter().flatten().fold(discovery, Instant::min))
    }

    /// These VIPs changed in the table.
    pub fn touch(&mut self, keys: impl IntoIterator<Item = VipKey>, table: &Table) {
        let mut turn = Turn { engine: self, table };
        keys.into_iter().for_each(|key| turn.touch(key));
    }

    /// The next operation, when there is one to begin now.
    pub fn next(&mut self, now: Instant, table: &Table) -> Option<(Token, Call)> {
        if let Some((query, call)) = self.discovery.next(now, &self.view.network) {
            let token = self.view.tick();
            self.discovery.asked(token, query);
            return Some((token, call));
        }
        if !self.is_up() {
            return None;
        }
        let mut turn = Turn { engine: self, table };
        let call = turn.next(now);
        if call.is_none() && !self.caught_up && self.scheduler.is_idle() {
            (self.caught_up, self.caught_up_now) = (true, true);
        }
        call
    }

    /// Takes the answer of an operation that [`Engine::next`] handed out.
    pub fn done(&mut self, token: Token, result: Result<Answer, CallError>, now: Instant, table: &Table) {
        if let Err(failure) = &result
            && is_away(&failure.error)
        {
            self.lose(now, failure.error.to_string());
        }
        let query = self.discovery.answered(token);
        let mut turn = Turn { engine: self, table };
        match query {
            Some(query) => turn.discovered(query, token, result, now),
            None => turn.answered(token, result, now),
        }
    }

    /// The service sent a notification.
    pub fn event(&mut self, event: &Event, now: Instant) {
        match event.event_type {
            Event::SERVICE_DISCONNECT => self.lose(now, "the Host Networking Service restarts".into()),
            Event::NETWORK_CREATE | Event::NETWORK_DELETE => self.discovery.network_changed(now),
            Event::ENDPOINT_ATTACHED | Event::ENDPOINT_DETACHED => self.discovery.enumerate_endpoints(),
            _ => {}
        }
    }

    fn lose(&mut self, now: Instant, reason: String) {
        if self.discovery.lose(now, reason) {
            self.applier.service_lost();
        }
    }

    fn id_of(&self, key: &VipKey) -> Guid {
        self.vips.id_of(&self.view.cluster_uid, key)
    }

    /// Queues those of these endpoints that are not needed.
    fn drop_unused(&mut self, ids: impl IntoIterator<Item = Guid>) {
        for id in ids {
            if self.view.mirror.is_unused(&id) {
                self.scheduler.push(Item::Unused(id), Lane::Unused);
            }
        }
    }

    /// Queues every endpoint of ours that nothing names.
    fn sweep(&mut self) {
        let unused: Vec<Guid> = self.view.mirror.endpoints().map(|(id, _)| *id).filter(|id| self.view.mirror.is_unused(id)).collect();
        self.drop_unused(unused);
    }

    /// The same, once after everything was read.
    fn sweep_once(&mut self) {
        if self.sweep_due && !self.view.mirror.is_blind() {
            self.sweep_due = false;
            self.sweep();
        }
    }

    /// Does what an answer asks for.
    fn take_effects(&mut self, effects: Effects, now: Instant) {
        for id in effects.unused {
            self.scheduler.push(Item::Unused(id), Lane::Unused);
        }
        if let Some(id) = effects.deleted {
            self.view.note_deleted(id, self.discovery.oldest());
        }
        if effects.was_read {
            self.sweep_once();
        }
        if effects.enumerate_endpoints {
            self.discovery.enumerate_endpoints();
        }
        if effects.enumerate_balancers {
            self.discovery.enumerate_balancers(now);
        }
    }

    /// Reports once, by the first pod found so, that pods do not reach themselves through load balancers that return directly.
    fn note_loopback(&mut self, document: &HostComputeEndpoint) {
        // The host's own endpoint has no route: its packets take the host's.
        let is_pod = !document.is_remote() && !document.host_compute_namespace.is_nil() && !document.routes.is_empty();
        if self.without_loopback.is_some() || !is_pod || !self.view.capabilities.cluster_ip_dsr || loops_back(document) {
            return;
        }
        self.without_loopback = Some(document.id);
        tracing::warn!(
            endpoint = document.name,
            "with direct server return (--enable-dsr, winkernel.enableDSR) a pod does not reach itself through its Service, and pods of this node \
             have no loopback policy: put \"loopbackDSR\": true into the CNI configuration, or start with --enable-dsr=false"
        );
    }
}

/// Whether the service as a whole did not answer. A single call that takes too long says nothing of others.
fn is_away(error: &HcnError) -> bool {
    error.is_service_down() && !matches!(error, HcnError::Deadline { .. }) && error.hresult() != Some(HResult::TIMEOUT)
}

/// Whether a policy translates what the endpoint sends to itself.
fn loops_back(document: &HostComputeEndpoint) -> bool {
    let Some(own) = document.ip() else { return true };
    let covers = |text: &String| text.parse() == Ok(own) || text.parse::<ipnet::IpNet>().is_ok_and(|net| net.contains(&own));
    document.policies.iter().filter_map(EndpointPolicy::as_outbound_nat).any(|nat| nat.destinations.iter().any(covers))
}

/// The engine at work, with the table that it works towards.
struct Turn<'a> {
    engine: &'a mut Engine,
    table: &'a Table,
}

impl Turn<'_> {
    fn touch(&mut self, key: VipKey) {
        self.engine.vips.touch(&key);
        self.push(key);
    }

    /// Queues a VIP, or has it planned again when it runs.
    fn push(&mut self, key: VipKey) {
        if !self.engine.scheduler.plan_again(&Item::Vip(key)) {
            let lane = self.lane(&key);
            self.engine.scheduler.push(Item::Vip(key), lane);
        }
    }

    fn push_all(&mut self, keys: impl IntoIterator<Item = VipKey>) {
        keys.into_iter().for_each(|key| self.push(key));
    }

    fn lane(&self, key: &VipKey) -> Lane {
        match self.table.get(key) {
            None => Lane::Gone,
            Some(vip) if vip.urgent => Lane::Urgent,
            Some(_) if matches!(self.engine.view.mirror.balancer(key), Some(BalancerState::Unread(_))) => Lane::Adopt,
            Some(vip) if vip.backends.iter().any(|backend| backend.local) => Lane::Local,
            Some(_) => Lane::Other,
        }
    }

    fn verify_lane(&self, key: &VipKey) -> Lane {
        if self.table.get(key).is_some_and(|vip| vip.urgent) { Lane::VerifyUrgent } else { Lane::Verify }
    }

    fn next(&mut self, now: Instant) -> Option<(Token, Call)> {
        while let Some(token) = self.engine.scheduler.next_continuing() {
            if let Some(call) = self.go_on(token, now) {
                return Some((token, call));
            }
        }
        self.engine.scheduler.wake(now);
        self.verify_next(now);
        while let Some(item) = self.engine.scheduler.pop() {
            if let Some((token, call)) = self.start(item, now) {
                return Some((token, call));
            }
        }
        None
    }

    /// The slow verify: one load balancer after the other.
    fn verify_next(&mut self, now: Instant) {
        let Some(next) = self.engine.verification.next(now, &self.engine.view.mirror) else { return };
        if next.round_ended {
            self.engine.sweep();
        }
        let lane = self.verify_lane(&next.key);
        self.engine.scheduler.push(Item::Verify(next.key), lane);
    }

    fn start(&mut self, item: Item, now: Instant) -> Option<(Token, Call)> {
        if self.engine.scheduler.plan_again(&item) {
            return None;
        }
        let Engine { view, scheduler, .. } = &mut *self.engine;
        let mut running = Running::new(item);
        let call = match item {
            Item::Vip(key) => return self.start_vip(key, running, now),
            Item::Endpoint(id) => Call::ReadEndpoint(id),
            Item::ForeignBalancer(id) if !view.mirror.is_foreign(&id) => return None,
            Item::ForeignBalancer(id) => Call::ReadBalancer(id),
            Item::Verify(key) => {
                // One that is written or doubted is read anyhow.
                let known = matches!(view.mirror.balancer(&key), Some(BalancerState::Known(_) | BalancerState::Stale(_)));
                if !known || scheduler.is_busy(&Item::Vip(key)) {
                    return None;
                }
                Call::ReadBalancer(self.engine.id_of(&key))
            }
            Item::Unused(id) => {
                // After a restart VIPs that wait for something to be read do not name theirs yet.
                let needed = matches!(view.mirror.endpoint(&id), Some(Endpoint::Ours(Remote::ServiceVip(ip))) if self.table.has_cluster_ip(*ip));
                if needed || !view.mirror.is_unused(&id) || scheduler.is_held(&id) || scheduler.leave_to_user(id) {
                    return None;
                }
                // An item that needs it from now on waits, and creates it again.
                if let Some(Endpoint::Ours(remote)) = view.mirror.remove_endpoint(&id) {
                    running.work.removing = Some(remote);
                }
                running.holds.push(id);
                Call::DeleteEndpoint(id)
            }
        };
        let token = self.engine.view.tick();
        self.engine.scheduler.run(token, running);
        Some((token, call))
    }

    fn start_vip(&mut self, key: VipKey, mut running: Running, now: Instant) -> Option<(Token, Call)> {
        let plan = self.plan(&key)?;
        if self.engine.scheduler.wait_for(made(&plan), Item::Vip(key)) {
            return None;
        }
        self.load(&mut running, plan, &key);
        if running.work.steps.is_empty() {
            self.finish(running, now);
            return None;
        }
        let token = self.engine.view.tick();
        self.engine.scheduler.run(token, running);
        self.go_on(token, now).map(|call| (token, call))
    }

    /// Plans for a VIP; none when it has to wait for something to be known.
    fn plan(&mut self, key: &VipKey) -> Option<Plan> {
        let Engine { view, vips, discovery, .. } = &mut *self.engine;
        // What has the id of a VIP is ours: it is read, and nothing is created in its place.
        if view.mirror.has_unread_foreign() {
            let (id, stamp) = (vips.id_of(&view.cluster_uid, key), view.write_stamp());
            view.mirror.claim(id, *key, stamp);
        }
        let vip: Option<&Vip> = self.table.get(key).map(|vip| &**vip);
        let plan = plan(&view.context(), key, vip);
        vips.note_gaps(key, &plan.gaps, vip);
        if plan.wait {
            vips.wait_for_reading(*key);
            return None;
        }
        if !plan.missing_endpoints.is_empty() && vips.wait_for_enumeration(*key) {
            discovery.enumerate_endpoints();
            return None;
        }
        if !plan.steps.is_empty() {
            tracing::debug!("plan for HNS:\n{}", plan.display(key));
        }
        Some(plan)
    }

    /// Puts a plan into a running item.
    fn load(&mut self, running: &mut Running, plan: Plan, key: &VipKey) {
        let view = &mut self.engine.view;
        let old = view.mirror.set_service_vip(*key, plan.service_vip);
        // A VIP that went before it named its address leaves that behind, too.
        let left = old.or_else(|| if plan.service_vip.is_none() { view.service_vip_endpoint(key) } else { None });
        self.engine.drop_unused(left);
        running.holds.extend(made(&plan));
        running.work.missing_endpoints = plan.missing_endpoints;
        running.work.steps = plan.steps.into();
        running.work.again = false;
    }

    /// The next call of a running item; when nothing is left it is finished.
    fn go_on(&mut self, token: Token, now: Instant) -> Option<Call> {
        let mut running = self.engine.scheduler.take(token)?;
        let Item::Vip(key) = running.item else {
            self.finish(running, now);
            return None;
        };
        if running.work.again && running.work.failed.is_none() && running.work.taken.is_none() {
            self.engine.scheduler.release_all(&mut running);
            return self.replan(token, key, running, now);
        }
        let Engine { view, vips, applier, scheduler, .. } = &mut *self.engine;
        let id = vips.id_of(&view.cluster_uid, &key);
        if let Some(call) = applier.next_call(view, id, &key, &mut running.work) {
            scheduler.put_back(token, running);
            return Some(call);
        }
        self.finish(running, now);
        None
    }

    fn replan(&mut self, token: Token, key: VipKey, mut running: Running, now: Instant) -> Option<Call> {
        let Some(plan) = self.plan(&key) else {
            self.leave(running);
            return None;
        };
        if self.engine.scheduler.wait_for(made(&plan), Item::Vip(key)) {
            self.leave(running);
            return None;
        }
        self.load(&mut running, plan, &key);
        self.engine.scheduler.run(token, running);
        self.go_on(token, now)
    }

    fn wake_waiting(&mut self, waiting: Vec<Item>) {
        for item in waiting {
            match item {
                Item::Vip(key) => self.push(key),
                other => self.engine.scheduler.push(other, Lane::Known),
            }
        }
    }

    /// An item ends without being done: something brings it back.
    fn leave(&mut self, mut running: Running) {
        let waiting = self.engine.scheduler.end(&mut running);
        self.engine.drop_unused(running.work.doubtful);
        self.wake_waiting(waiting);
    }

    /// An item ends; what failed comes back after a while.
    fn finish(&mut self, mut running: Running, now: Instant) {
        let (item, again) = (running.item, running.work.again);
        let failed = running.work.failed.take().or(running.work.taken.take());
        let is_failed = failed.is_some();
        if let Item::Vip(key) = item {
            let missing = running.work.missing_endpoints.first().map(|address| no_endpoint(*address));
            self.engine.vips.record_result(key, failed.or(missing));
        }
        self.leave(running);
        match (is_failed, item) {
            (true, Item::Vip(key)) if again => self.push(key),
            (true, Item::Vip(key)) => {
                let lane = self.lane(&key);
                self.engine.scheduler.retry(item, lane, now);
            }
            (true, Item::Unused(_)) => self.engine.scheduler.retry(item, Lane::Unused, now),
            (true, _) => self.engine.scheduler.retry(item, Lane::Known, now),
            (false, Item::Vip(key)) => {
                self.engine.scheduler.settle(&item);
                if again {
                    self.push(key);
                }
            }
            (false, _) => self.engine.scheduler.settle(&item),
        }
    }

    /// A running item's call was answered.
    fn answered(&mut self, token: Token, result: Result<Answer, CallError>, now: Instant) {
        let Some(mut running) = self.engine.scheduler.take(token) else { return };
        match running.item {
            Item::Vip(key) => {
                if let Some(Step::CreateEndpoint { id, .. } | Step::ReadEndpoint { id }) = running.work.current {
                    let waiting = self.engine.scheduler.release(&mut running, &id);
                    self.wake_waiting(waiting);
                }
                let Engine { view, vips, applier, .. } = &mut *self.engine;
                let effects = applier.answered(view, vips, &mut running.work, key, result);
                self.engine.take_effects(effects, now);
            }
            Item::Endpoint(id) => self.endpoint_read(&mut running, id, result),
            Item::ForeignBalancer(id) => self.foreign_read(&mut running, id, result, now),
            Item::Verify(key) => self.verified(key, token, result),
            Item::Unused(id) => {
                let Engine { view, applier, .. } = &mut *self.engine;
                let effects = applier.unused_deleted(view, &mut running.work, id, result);
                self.engine.take_effects(effects, now);
            }
        }
        self.engine.scheduler.answered(token, running);
    }

    fn endpoint_read(&mut self, running: &mut Running, id: Guid, result: Result<Answer, CallError>) {
        match result {
            Ok(Answer::Endpoint(Some(document))) => {
                let view = &mut self.engine.view;
                let (stamp, had_root) = (view.write_stamp(), view.mirror.root());
                view.mirror.read_endpoint(&view.cluster_uid, &view.root_endpoint, &document, stamp);
                self.engine.note_loopback(&document);
                match self.engine.view.mirror.endpoint(&id).cloned() {
                    Some(Endpoint::Local(addresses) | Endpoint::Foreign(addresses)) => self.touch_addresses(&addresses),
                    _ => self.engine.drop_unused([id]),
                }
                if self.engine.view.mirror.root() != had_root {
                    self.touch_health_checks();
                }
            }
            Ok(_) => self.endpoint_gone(&id),
            Err(failure) => running.work.failed = Some(failure.error.to_string()),
        }
        self.end_reading();
    }

    fn foreign_read(&mut self, running: &mut Running, id: Guid, result: Result<Answer, CallError>, now: Instant) {
        let Engine { view, vips, scheduler, .. } = &mut *self.engine;
        if !view.mirror.is_foreign(&id) {
            return;
        }
        match result {
            Ok(Answer::Balancer(Some(document))) => {
                if let Some((key, later)) = generation(&view.cluster_uid, &document).filter(|(key, later)| *later > vips.generation(key)) {
                    if scheduler.is_busy(&Item::Vip(key)) {
                        running.work.failed = Some("its VIP is being written".to_owned());
                        return;
                    }
                    let mut effects = Effects::default();
                    abandon(view, vips, key, later, &mut effects);
                    self.engine.take_effects(effects, now);
                }
                let own = vip_key(&document).map(|key| self.engine.id_of(&key));
                let stamp = self.engine.view.write_stamp();
                if let Some(key) = self.engine.view.mirror.read_foreign(own, &document, stamp) {
                    self.push(key);
                }
            }
            Ok(_) => drop(view.mirror.remove_foreign(&id)),
            Err(failure) => running.work.failed = Some(failure.error.to_string()),
        }
        self.engine.sweep_once();
    }

    fn verified(&mut self, key: VipKey, since: Stamp, result: Result<Answer, CallError>) {
        let id = self.engine.id_of(&key);
        let Engine { view, scheduler, .. } = &mut *self.engine;
        // What was written meanwhile is newer than the answer.
        if scheduler.is_busy(&Item::Vip(key)) || view.mirror.stamp(&key) > since {
            return;
        }
        let Some(BalancerState::Known(known)) = view.mirror.balancer(&key) else { return };
        match result {
            Ok(Answer::Balancer(Some(document))) => {
                let now = Shape::of(&document);
                if !known.is_met_by(&now) {
                    tracing::warn!(vip = %key, "its load balancer was changed by another program");
                    let stamp = view.write_stamp();
                    view.mirror.put(id, key, BalancerState::Known(now), stamp);
                    self.push(key);
                }
            }
            Ok(_) => {
                view.write_stamp();
                let freed = view.mirror.remove(&id, &key);
                self.engine.drop_unused(freed);
                self.push(key);
            }
            Err(_) => {}
        }
    }

    /// VIPs that may use the endpoint at one of these addresses.
    fn touch_addresses(&mut self, addresses: &[IpAddr]) {
        let overlay = self.engine.view.network.overlay;
        let names = |vip: &Vip| vip.backends.iter().any(|backend| addresses.contains(&backend.address));
        let is = |key: &VipKey| overlay && addresses.iter().any(|ip| key.address == VipAddress::Ip(*ip));
        let keys: Vec<VipKey> = self.table.iter().filter(|(key, vip)| names(vip) || is(key)).map(|(key, _)| *key).collect();
        self.push_all(keys);
    }

    /// The host's own endpoint appeared: health checks wait for it.
    fn touch_health_checks(&mut self) {
        let checks = self.table.iter().filter(|(_, vip)| vip.kind == Kind::HealthCheck);
        let keys: Vec<VipKey> = checks.map(|(key, _)| *key).collect();
        self.push_all(keys);
    }
}

/// The endpoints that a plan makes.
fn made(plan: &Plan) -> impl Iterator<Item = Guid> {
    plan.steps.iter().filter_map(|step| if let Step::CreateEndpoint { id, .. } = step { Some(*id) } else { None })
}
