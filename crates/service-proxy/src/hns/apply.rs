//! Apply: from the steps of a VIP's plan to calls, and from their answers to the mirror.
//!
//! Nothing is concluded from an error: what a call did is then unknown and read again.

use std::collections::VecDeque;
use std::net::IpAddr;

use hcn::{Guid, HResult, HcnError, HostComputeEndpoint, HostComputeLoadBalancer, LoadBalancerFlags};

use super::calls::{Answer, Call, CallError};
use super::document::{Remote, Shape, is_orphaned};
use super::mirror::{BalancerState, Endpoint};
use super::plan::{Put, Step};
use super::view::View;
use super::vip_states::VipStates;
use crate::table::VipKey;

/// An item's work: the steps of its plan, and what came of them.
#[derive(Debug, Default)]
pub struct Work {
    pub steps: VecDeque<Step>,
    pub current: Option<Step>,
    /// The table or the mirror changed meanwhile: plan again.
    pub again: bool,
    /// HNS reports that the VIP is taken: its message.
    pub taken: Option<String>,
    /// It was read once already because the VIP was taken.
    was_taken: bool,
    pub failed: Option<String>,
    broken: Vec<Guid>,
    /// The endpoint that it deletes.
    pub removing: Option<Remote>,
    /// Local pods without an endpoint.
    pub missing_endpoints: Vec<IpAddr>,
    /// Endpoints that may turn out to be needed by nothing when it ends.
    pub doubtful: Vec<Guid>,
}

impl Work {
    /// Whether a load balancer that it is about to write names the endpoint.
    pub fn names(&self, id: &Guid) -> bool {
        let steps = self.current.iter().chain(&self.steps);
        steps.filter_map(|step| if let Step::Put { shape, .. } = step { Some(shape) } else { None }).any(|shape| shape.endpoints.contains(id))
    }

    fn give_up(&mut self, text: &str, error: &HcnError) {
        self.steps.clear();
        self.failed = Some(format!("cannot {text}: {error}"));
    }
}

/// Why a step makes no call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// HNS refuses a load balancer without endpoints.
    #[error("none of its endpoints could be created")]
    NoEndpoint,
}

/// What an answer asks of others.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Endpoints of ours that nothing names any more.
    pub unused: Vec<Guid>,
    /// A load balancer of ours was read: the last one that may name an endpoint, perhaps.
    pub was_read: bool,
    /// Endpoints differ from what was last known.
    pub enumerate_endpoints: bool,
    /// Load balancers differ from what was last known.
    pub enumerate_balancers: bool,
    /// An object was deleted.
    pub deleted: Option<Guid>,
}

impl Effects {
    /// Notes those of `ids` that are not needed now.
    fn free(&mut self, view: &View, ids: impl IntoIterator<Item = Guid>) {
        self.unused.extend(ids.into_iter().filter(|id| view.mirror.is_unused(id)));
    }
}

/// Whether and how load balancers can be changed in place, and how much was written.
#[derive(Debug)]
pub struct Applier {
    /// A modify was seen to work since the service started; a version that accepts it and does nothing exists.
    modify_works: bool,
    /// The configuration forbids it, or it was refused or did nothing: never again.
    modify_fails: bool,
    writes: u64,
}

impl Applier {
    /// An applier that changes load balancers in place where `modify` allows it.
    pub fn new(modify: bool) -> Self {
        Self { modify_works: false, modify_fails: !modify, writes: 0 }
    }

    /// How many writes succeeded.
    pub fn writes(&self) -> u64 {
        self.writes
    }

    /// Whether load balancers may be changed in place.
    pub fn may_modify(&self) -> bool {
        !self.modify_fails
    }

    /// The service went away: another version may come back.
    pub fn service_lost(&mut self) {
        self.modify_works = false;
    }

    fn stop_modifying(&mut self, view: &mut View) {
        (self.modify_fails, view.capabilities.modify) = (true, false);
    }

    /// The next call of a VIP; none when its steps are done.
    pub fn next_call(&self, view: &View, id: Guid, key: &VipKey, work: &mut Work) -> Option<Call> {
        while let Some(step) = work.steps.pop_front() {
            match self.call_for(view, id, key, &step, &work.broken) {
                Ok(call) => {
                    work.current = Some(step);
                    return Some(call);
                }
                Err(error) => work.failed = Some(error.to_string()),
            }
        }
        None
    }

    fn call_for(&self, view: &View, id: Guid, key: &VipKey, step: &Step, broken: &[Guid]) -> Result<Call, StepError> {
        match step {
            Step::Read => Ok(Call::ReadBalancer(id)),
            Step::ReadEndpoint { id } => Ok(Call::ReadEndpoint(*id)),
            Step::CreateEndpoint { id, remote } => {
                let mut document = remote.document(&view.network);
                document.id = *id;
                Ok(Call::CreateEndpoint(view.network.id, Box::new(document)))
            }
            Step::Put { how, shape } => {
                let mut document = shape.document(id, key);
                document.host_compute_endpoints.retain(|id| !broken.contains(id));
                if document.host_compute_endpoints.is_empty() {
                    return Err(StepError::NoEndpoint);
                }
                let check = *how == Put::Modify && !self.modify_works;
                Ok(Call::Put { how: *how, document: Box::new(document), check })
            }
            Step::Delete => Ok(Call::DeleteBalancer(id)),
        }
    }

    /// The current step of a VIP was answered.
    pub fn answered(&mut self, view: &mut View, vips: &mut VipStates, work: &mut Work, key: VipKey, result: Result<Answer, CallError>) -> Effects {
        let mut effects = Effects::default();
        let Some(step) = work.current.take() else { return effects };
        let (text, id) = (step.display(&key), vips.id_of(&view.cluster_uid, &key));
        match (step, result) {
            (Step::Read, Ok(Answer::Balancer(document))) => self.balancer_read(view, work, (id, key), document.as_deref(), &mut effects),
            (Step::CreateEndpoint { id, remote }, Ok(_)) => {
                self.writes += 1;
                work.doubtful.push(id);
                let stamp = view.write_stamp();
                view.mirror.put_endpoint(id, Endpoint::Ours(remote), stamp);
            }
            (Step::ReadEndpoint { id }, Ok(Answer::Endpoint(document))) => endpoint_read(view, work, id, document.as_deref(), &mut effects),
            (Step::Put { shape, .. }, Ok(answer)) => self.put_done(view, work, (id, key), shape, answer, &mut effects),
            (Step::Delete, Ok(_)) => {
                self.writes += 1;
                effects.deleted = Some(id);
                let freed = view.mirror.remove(&id, &key);
                effects.free(view, freed);
            }
            (_, Ok(_)) => work.failed = Some(format!("cannot {text}: an answer to something else")),
            (Step::CreateEndpoint { id, .. }, Err(failure)) if failure.error.is_already_exists() => work.steps.push_front(Step::ReadEndpoint { id }),
            (Step::CreateEndpoint { id, .. } | Step::ReadEndpoint { id }, Err(failure)) => {
                work.broken.push(id);
                work.failed = Some(format!("cannot {text}: {}", failure.error));
            }
            (Step::Delete, Err(failure)) if is_orphaned(&failure.error) => {
                abandon(view, vips, key, vips.generation(&key) + 1, &mut effects);
            }
            (Step::Put { how: Put::Modify | Put::Replace, .. }, Err(failure)) if is_orphaned(&failure.error) && !failure.deleted => {
                abandon(view, vips, key, vips.generation(&key) + 1, &mut effects);
                work.again = true;
            }
            (Step::Put { how, shape }, Err(failure)) => {
                let refused = RefusedPut { how, shape: &shape, failure: &failure, text: &text };
                self.put_failed(view, work, (id, key), &refused, &mut effects);
            }
            (Step::Read, Err(failure)) => work.give_up(&text, &failure.error),
            (Step::Delete, Err(failure)) => {
                let stamp = view.write_stamp();
                view.mirror.doubt(id, key, &[], stamp);
                work.give_up(&text, &failure.error);
            }
        }
        effects
    }

    fn balancer_read(
        &mut self,
        view: &mut View,
        work: &mut Work,
        (id, key): (Guid, VipKey),
        document: Option<&HostComputeLoadBalancer>,
        effects: &mut Effects,
    ) {
        let stamp = view.write_stamp();
        let before = match document {
            Some(document) => {
                view.mirror.put(id, key, BalancerState::Known(Shape::of(document)), stamp);
                Box::default()
            }
            None => view.mirror.remove(&id, &key),
        };
        effects.free(view, before);
        effects.was_read = true;
        match (work.taken.take(), document) {
            // It is ours that is in the way, and reading it once did not help: it is tried again after a while.
            (Some(reason), Some(_)) if work.was_taken => {
                work.steps.clear();
                work.failed = Some(reason);
            }
            // Nothing of ours is there, and yet the VIP is taken.
            (Some(reason), None) => {
                work.steps.clear();
                work.failed = Some(match view.mirror.foreign_at(&key) {
                    Some(other) => format!("load balancer {other} of another program has this VIP: delete it or change the Service's port"),
                    None => format!("{reason}; no load balancer that is known has this VIP, so another program may listen on the port"),
                });
            }
            (taken, _) => {
                work.was_taken |= taken.is_some();
                work.again = true;
            }
        }
    }

    fn put_done(&mut self, view: &mut View, work: &mut Work, (id, key): (Guid, VipKey), shape: Shape, answer: Answer, effects: &mut Effects) {
        let stamp = view.write_stamp();
        self.writes += 1;
        let left_out = work.broken.len();
        let mut written = Shape { endpoints: shape.endpoints.iter().filter(|id| !work.broken.contains(id)).copied().collect(), ..shape };
        if let Answer::Balancer(Some(now)) = answer {
            let now = Shape::of(&now);
            if written.is_met_by(&now) {
                self.modify_works = true;
            } else {
                tracing::warn!(vip = %key, "this version of HNS says that it modified a load balancer and did not: from now on they are replaced");
                self.stop_modifying(view);
                written = now;
                work.again = true;
            }
        }
        let before: Box<[Guid]> = view.mirror.balancer(&key).map(|state| state.endpoints().into()).unwrap_or_default();
        view.mirror.put(id, key, BalancerState::Known(written), stamp);
        effects.free(view, before);
        if left_out > 0 {
            let why = work.failed.take().unwrap_or_default();
            work.failed = Some(format!("{left_out} of its endpoints could not be created; it serves with the others: {why}"));
        }
    }

    fn put_failed(&mut self, view: &mut View, work: &mut Work, (id, key): (Guid, VipKey), refused: &RefusedPut<'_>, effects: &mut Effects) {
        let RefusedPut { how, shape, failure, text } = *refused;
        let error = &failure.error;
        let stamp = view.write_stamp();
        if failure.deleted {
            let freed = view.mirror.remove(&id, &key);
            effects.free(view, freed);
        }
        if how == Put::Modify && error.is_unsupported() {
            tracing::warn!("this version of HNS cannot modify load balancers: from now on they are replaced");
            self.stop_modifying(view);
            work.again = true;
        } else if how == Put::Modify && error.is_not_found() {
            // Another program deleted it.
            let freed = view.mirror.remove(&id, &key);
            effects.free(view, freed);
            work.again = true;
        } else if error.is_already_exists() {
            // By our own, that the service brought back, or by a foreign one.
            effects.enumerate_balancers = true;
            work.taken = Some(format!("cannot {text}: {error}"));
            work.steps = [Step::Read].into();
        } else {
            if how == Put::Modify || error.is_service_down() {
                view.mirror.doubt(id, key, &shape.endpoints, stamp);
            }
            effects.enumerate_endpoints |= error.hresult() == Some(HResult::INVALID_JSON_REFERENCE);
            work.give_up(text, error);
            if let Some(failed) = &mut work.failed
                && error.hresult() == Some(HResult::OUT_OF_MEMORY)
                && !shape.flags.contains(LoadBalancerFlags::DSR)
            {
                *failed += "; a load balancer without direct server return may take 64 of the host's ephemeral ports: start with --enable-dsr, \
                            or give the host more (netsh int ipv4 set dynamicport tcp)";
            }
        }
    }

    /// An endpoint that nothing names was deleted, or not.
    pub fn unused_deleted(&mut self, view: &mut View, work: &mut Work, id: Guid, result: Result<Answer, CallError>) -> Effects {
        let mut effects = Effects::default();
        match result {
            Ok(_) => {
                self.writes += 1;
                effects.deleted = Some(id);
            }
            // It may exist or not: the next enumeration shows it.
            Err(failure) => {
                let stamp = view.write_stamp();
                if let Some(remote) = work.removing.take() {
                    view.mirror.put_endpoint(id, Endpoint::Ours(remote), stamp);
                }
                work.failed = Some(failure.error.to_string());
            }
        }
        effects
    }
}

/// A load balancer that could not be written.
struct RefusedPut<'a> {
    how: Put,
    shape: &'a Shape,
    failure: &'a CallError,
    /// The step as text.
    text: &'a str,
}

/// HNS reported that the endpoint exists: so it does, or another one with its address does.
fn endpoint_read(view: &mut View, work: &mut Work, id: Guid, document: Option<&HostComputeEndpoint>, effects: &mut Effects) {
    match document {
        Some(document) => {
            let stamp = view.write_stamp();
            view.mirror.read_endpoint(&view.cluster_uid, &view.root_endpoint, document, stamp);
        }
        None => {
            work.broken.push(id);
            work.failed = Some(format!("endpoint {id} cannot be created: HNS says that it, or its address, exists already, and it does not"));
            effects.enumerate_endpoints = true;
        }
    }
}

/// The load balancer of a VIP cannot be deleted: it counts as foreign, and one of another id takes its place.
pub fn abandon(view: &mut View, vips: &mut VipStates, key: VipKey, generation: u32, effects: &mut Effects) {
    let id = vips.id_of(&view.cluster_uid, &key);
    view.write_stamp();
    let is_held = view.mirror.key_of(&id).is_some();
    let freed = view.mirror.remove(&id, &key);
    if is_held {
        view.mirror.leave(id);
    }
    let first = !vips.has_generations();
    vips.set_generation(key, generation);
    if first {
        tracing::warn!(
            vip = %key,
            "a load balancer cannot be deleted since its network is gone: it stays until the Host Networking Service restarts, and another one \
             takes its place"
        );
    }
    effects.free(view, freed);
}

#[cfg(test)]
mod tests {
    use hcn::{Function, Kind, RawError};

    use super::*;
    use crate::hns::Settings;
    use crate::table::{IpFamily, Protocol, VipAddress};

    fn key() -> VipKey {
        VipKey { address: VipAddress::Node(IpFamily::V4), protocol: Protocol::Tcp, port: 80 }
    }

    fn failure(hresult: HResult) -> CallError {
        HcnError::call(Function::Modify(Kind::LoadBalancer), "x", RawError { hresult, record: None }).into()
    }

    fn shape(endpoints: &[Guid]) -> Shape {
        Shape { endpoints: endpoints.into(), ..Shape::default() }
    }

    /// The parts, and a load balancer of ours that names one endpoint of ours.
    struct Parts {
        view: View,
        vips: VipStates,
        applier: Applier,
        work: Work,
        endpoint: Guid,
    }

    impl Parts {
        fn new() -> Self {
            let mut view = View::new("uid".into(), &Settings::new("pods"));
            view.capabilities.modify = true;
            let (vips, endpoint) = (VipStates::default(), Guid::random());
            view.mirror.put_endpoint(endpoint, Endpoint::Ours(Remote::Backend([192, 168, 2, 3].into())), 1);
            view.mirror.put(vips.id_of("uid", &key()), key(), BalancerState::Known(shape(&[endpoint])), 1);
            Self { view, vips, applier: Applier::new(true), work: Work::default(), endpoint }
        }

        fn call(&mut self, step: Step) -> Option<Call> {
            self.work.steps.push_back(step);
            let id = self.vips.id_of("uid", &key());
            self.applier.next_call(&self.view, id, &key(), &mut self.work)
        }

        fn answer(&mut self, result: Result<Answer, CallError>) -> Effects {
            self.applier.answered(&mut self.view, &mut self.vips, &mut self.work, key(), result)
        }
    }

    #[test]
    fn refused_modify_is_never_tried_again() {
        let mut parts = Parts::new();
        let put = Step::Put { how: Put::Modify, shape: shape(&[parts.endpoint]) };
        assert!(matches!(parts.call(put), Some(Call::Put { check: true, .. })), "the first modify is read back");
        assert_eq!(parts.answer(Err(failure(HResult::NOT_IMPLEMENTED))), Effects::default());
        assert!(parts.work.again && parts.work.failed.is_none() && !parts.applier.may_modify() && !parts.view.capabilities.modify);
        assert_eq!(parts.applier.writes(), 0);
    }

    #[test]
    fn deleted_load_balancer_frees_its_endpoints() {
        let mut parts = Parts::new();
        let id = parts.vips.id_of("uid", &key());
        assert_eq!(parts.call(Step::Delete), Some(Call::DeleteBalancer(id)));
        let effects = parts.answer(Ok(Answer::Done));
        assert_eq!(effects, Effects { unused: vec![parts.endpoint], deleted: Some(id), ..Effects::default() });
        assert_eq!((parts.applier.writes(), parts.view.mirror.len()), (1, 0));
    }

    #[test]
    fn failed_delete_leaves_the_load_balancer_to_be_read() {
        let mut parts = Parts::new();
        parts.call(Step::Delete);
        assert_eq!(parts.answer(Err(failure(HResult::TIMEOUT))), Effects::default());
        assert!(matches!(parts.view.mirror.balancer(&key()), Some(BalancerState::Unread(named)) if **named == [parts.endpoint]));
        assert!(parts.work.failed.as_ref().is_some_and(|text| text.starts_with("cannot delete load balancer")), "{:?}", parts.work.failed);
    }

    #[test]
    fn load_balancer_of_a_lost_network_is_left_behind_and_gets_a_successor() {
        let mut parts = Parts::new();
        let id = parts.vips.id_of("uid", &key());
        parts.call(Step::Delete);
        let effects = parts.answer(Err(failure(HResult::NETWORK_NOT_FOUND)));
        assert_eq!((effects.unused, effects.deleted), (vec![parts.endpoint], None));
        assert!(parts.view.mirror.is_foreign(&id) && parts.vips.id_of("uid", &key()) != id && parts.work.failed.is_none());
    }

    #[test]
    fn taken_vip_is_read_and_reported_when_nothing_of_ours_is_there() {
        let mut parts = Parts::new();
        parts.view.mirror.remove(&parts.vips.id_of("uid", &key()), &key());
        parts.call(Step::Put { how: Put::Create, shape: shape(&[parts.endpoint]) });
        assert!(parts.answer(Err(failure(HResult::PORT_ALREADY_EXISTS))).enumerate_balancers);
        assert_eq!(parts.work.steps, [Step::Read]);
        let step = parts.work.steps.pop_front().unwrap();
        parts.call(step);
        assert!(parts.answer(Ok(Answer::Balancer(None))).was_read);
        assert!(parts.work.failed.as_ref().is_some_and(|text| text.ends_with("another program may listen on the port")), "{:?}", parts.work.failed);
    }

    #[test]
    fn load_balancer_is_written_with_the_endpoints_that_were_created() {
        let mut parts = Parts::new();
        let (remote, broken) = (Remote::Backend([192, 168, 2, 4].into()), Guid::random());
        parts.call(Step::CreateEndpoint { id: broken, remote });
        parts.answer(Err(failure(HResult::INVALID_JSON_REFERENCE)));
        let put = Step::Put { how: Put::Create, shape: shape(&[parts.endpoint, broken]) };
        let Some(Call::Put { document, .. }) = parts.call(put) else { panic!("a load balancer is written") };
        assert_eq!(document.host_compute_endpoints, [parts.endpoint]);
        parts.answer(Ok(Answer::Done));
        assert!(parts.work.failed.as_ref().is_some_and(|text| text.starts_with("1 of its endpoints")), "{:?}", parts.work.failed);
        assert_eq!(parts.call(Step::Put { how: Put::Create, shape: shape(&[broken]) }), None);
        assert_eq!(parts.work.failed, Some(StepError::NoEndpoint.to_string()));
    }
}
