//! The reducer of the pod machine: an event changes the state, and the plan's actions begin.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container as Spec, Pod, PodStatus};
use kube_rules::Refusal;

use super::memory;
use super::plan::{self, Step};
use super::resize::{self, Resources};
use super::{
    Action, Attempt, Backoffs, Container, Content, Evicted, Failure, Health, Hook, ImageState, Input, Kill, Memory, NodeInfo, Observed, Output,
    Pending, PreStop, Prepare, Reason, Record, Removal, Retry, SandboxWork, Start, State, Stop, Update, Volumes, WaitingReason, container_hash,
    containers, is_deleted, restart, status,
};
use crate::probes;

mod resizing;

/// Waits after failures: (first, longest).
type Waits = (SignedDuration, SignedDuration);
const VOLUME_WAITS: Waits = (SignedDuration::from_millis(500), SignedDuration::from_secs(122));
const SANDBOX_WAITS: Waits = (SignedDuration::from_millis(500), SignedDuration::from_secs(10));
const REMOVAL_WAITS: Waits = (SignedDuration::from_secs(1), SignedDuration::from_secs(10));
const PULL_WAITS: Waits = (SignedDuration::from_secs(10), SignedDuration::from_secs(300));
/// After a call to the runtime or to the API server failed.
const CALL_RETRY: SignedDuration = SignedDuration::from_secs(1);

/// How an action ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    Failed,
}

/// Why a container has no image or did not start.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failed {
    pub reason: WaitingReason,
    pub message: String,
    /// The image that is missing, where it is not the container's own but that of a volume.
    pub image: Option<String>,
}

/// What happened to a pod.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// The pod as the API has it now.
    Pod(Arc<Pod>),
    /// The API has it no more.
    Gone,
    /// The node as it is now.
    Node(NodeInfo),
    Admitted(Result<(), Refusal>),
    /// The node ends the pod.
    Evicted(Evicted),
    ResourcesSaved(Outcome),
    /// What the node says to resources that were asked for.
    ResizeDecided {
        wanted: Resources,
        verdict: Result<(), Pending>,
    },
    /// The resources of a running container were changed, or why not.
    Updated {
        update: Update,
        result: Result<(), String>,
    },
    /// Something at the runtime changed.
    RuntimeChanged,
    /// A look at the runtime that began at [`PodState::version`] `as_of`; None when it did not answer.
    Observed {
        as_of: u64,
        seen: Option<Observed>,
    },
    /// A Secret or ConfigMap that the pod uses changed.
    SourcesChanged,
    /// Time to look again at what changes without an event.
    Resync,
    /// The wall clock was set to a time that is so much later, or earlier.
    ClockMoved(SignedDuration),
    /// Time passed.
    Tick,
    VolumesMounted(Outcome),
    VolumesRefreshed(Outcome),
    SandboxCreated(Outcome),
    SandboxStopped {
        id: String,
        outcome: Outcome,
    },
    /// The reference of a container's image.
    Image {
        container: String,
        result: Result<String, Failed>,
    },
    /// The id of a container that runs now.
    Started {
        container: String,
        result: Result<String, Failed>,
    },
    PostStarted {
        id: String,
        outcome: Outcome,
    },
    Probed {
        id: String,
        health: Health,
    },
    /// The preStop hook of a container that ends later is over.
    StopPrepared {
        id: String,
    },
    Killed {
        id: String,
        outcome: Outcome,
    },
    Removed {
        id: String,
        outcome: Outcome,
    },
    TornDown(Outcome),
    CleanedUp(Outcome),
    Deleted(Outcome),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    Open,
    Asked,
    Decided,
}

/// Everything the machine knows of one pod.
#[derive(Clone, Debug)]
pub(crate) struct PodState {
    /// The pod with the resources that are allocated to it.
    pub pod: Arc<Pod>,
    /// The pod as the API has it, which may ask for others.
    asked: Arc<Pod>,
    pub record: Record,
    /// The record on disk.
    saved: Option<Record>,
    /// The API does not know the pod any more.
    pub gone: bool,
    pub node: NodeInfo,
    /// What the runtime held at the last look.
    pub observed: Observed,
    pub memory: Memory,
    /// How long a container that could not be created or started waits.
    failed_start: SignedDuration,
    admission: Admission,
    /// Counts what changes the runtime's objects.
    version: u64,
    /// `version` at the last look.
    seen: Option<u64>,
    observing: bool,
    observe_at: Option<Timestamp>,
    /// The last problem of a sandbox's network that was reported: (sandbox, reason).
    reported: Option<(String, String)>,
}

/// Takes one event in: changes the state and returns what is to be done.
pub(crate) fn on(event: Event, state: &mut PodState, now: Timestamp) -> Output {
    let mut actions = state.absorb(event, now);
    if state.admission != Admission::Decided {
        if state.admission == Admission::Open {
            state.admission = Admission::Asked;
            actions.push(Action::Admit);
        }
        return Output { actions, status: None, wake: None, finished: false };
    }
    actions.extend(state.save(now));
    if state.seen != Some(state.version) {
        let due = state.observe_at.is_none_or(|at| at <= now);
        if !state.observing && due {
            state.observing = true;
            actions.push(Action::Observe);
        }
        return Output { actions, status: None, wake: state.observe_at.filter(|_| !due), finished: false };
    }
    if let Some(wanted) = state.wants() {
        // The status waits for the decision: with the new generation it would say that nothing is pending.
        actions.extend(wanted);
        return Output { actions, status: None, wake: None, finished: false };
    }
    actions.extend(state.progress());
    actions.extend(state.probes());
    let step = loop {
        let mut step = state.plan(now);
        step.actions.iter().for_each(|action| state.begin(action, now));
        // A pull's back-off shows in the status.
        let again = step.actions.iter().any(|a| matches!(a, Action::BackOffPull { .. }));
        actions.append(&mut step.actions);
        if !again {
            break step;
        }
    };
    let save = match state.memory.saving {
        Some(Attempt::RetryAt(at)) if state.saves() => Some(at),
        _ => None,
    };
    let wake = [step.wake, save].into_iter().flatten().min();
    Output { actions, status: Some(step.status), wake, finished: state.gone && state.memory.cleaned }
}

impl PodState {
    /// The state of a pod of which nothing is known but its object: for a new pod, and after the agent's start.
    /// `record` is what an earlier run of the agent kept.
    pub(crate) fn new(pod: Arc<Pod>, node: NodeInfo, failed_start: SignedDuration, record: Option<Record>) -> Self {
        let asked = resize::resources(&pod);
        // A pod that another agent left was given what it asked for, as far as anyone knows.
        let saved = record.clone();
        let record = match record {
            Some(record) => resize::completed(record, &asked),
            None => Record::of(asked),
        };
        PodState {
            pod: resize::with_resources(&pod, &record.allocated),
            asked: pod,
            record,
            saved,
            gone: false,
            node,
            observed: Observed::default(),
            memory: Memory::default(),
            failed_start,
            admission: Admission::Open,
            version: 0,
            seen: None,
            observing: false,
            observe_at: None,
            reported: None,
        }
    }

    /// The same with other waits before restarts: at first, and at most.
    pub(crate) fn with_restarts(mut self, (first, longest): (Duration, Duration)) -> Self {
        let signed = |wait: Duration| SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX);
        self.memory.restarts = Backoffs::new(signed(first), signed(longest));
        self
    }

    /// Whether the node has decided about the pod.
    pub(crate) fn is_admitted(&self) -> bool {
        self.admission == Admission::Decided
    }

    /// The status as it would be reported now, and when to look again though nothing changes.
    pub(crate) fn outlook(&self, now: Timestamp) -> (PodStatus, Option<Timestamp>) {
        let step = self.plan(now);
        (step.status, step.wake)
    }

    /// Counts what changed the runtime's objects: what a look that begins now is a look at.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Whether the pod's end was asked for.
    pub(crate) fn is_ending(&self) -> bool {
        self.gone || is_deleted(&self.pod)
    }

    /// Whether the pod ends, whoever ends it.
    pub(crate) fn ends(&self) -> bool {
        self.is_ending() || self.memory.evicted.is_some() || self.memory.refused.is_some()
    }

    /// Addresses of the current sandbox.
    pub(crate) fn pod_ips(&self) -> Vec<String> {
        self.observed.sandboxes.first().map(|s| s.ips.clone()).unwrap_or_default()
    }

    /// Remembers what the status said, for a pod that no API object of its own shows.
    pub(crate) fn keep_status(&mut self, status: &PodStatus) {
        if self.pod.status.as_ref() != Some(status) {
            for pod in [&mut self.pod, &mut self.asked] {
                Arc::make_mut(pod).status = Some(status.clone());
            }
        }
    }

    /// A container of the pod, of whatever kind.
    pub(crate) fn spec_of(&self, name: &str) -> Option<Spec> {
        super::spec_of(&self.pod, name)
    }

    fn plan(&self, now: Timestamp) -> Step {
        let ephemeral = super::ephemeral(&self.pod);
        plan::step(&Input {
            pod: &self.pod,
            observed: &self.observed,
            memory: &self.memory,
            gone: self.gone,
            ephemeral: &ephemeral,
            now,
            node: &self.node,
            record: &self.record,
        })
    }

    fn absorb(&mut self, event: Event, now: Timestamp) -> Vec<Action> {
        let retry = |outcome| if outcome == Outcome::Done { Attempt::Done } else { Attempt::RetryAt(now + CALL_RETRY) };
        match event {
            Event::Pod(pod) => {
                let (old, new) = (&self.pod.metadata, &pod.metadata);
                if old.labels != new.labels || old.annotations != new.annotations {
                    self.content_changed();
                }
                self.pod = resize::with_resources(&pod, &self.record.allocated);
                self.asked = pod;
            }
            Event::ResourcesSaved(outcome) => {
                self.memory.saving = (outcome == Outcome::Failed).then_some(retry(outcome));
                if outcome == Outcome::Failed {
                    self.saved = None;
                }
            }
            Event::ResizeDecided { wanted, verdict } => return self.decided(wanted, verdict),
            Event::Updated { update, result } => return self.updated(&update, result, now),
            Event::Gone => self.gone = true,
            Event::Node(node) => self.node_changed(node),
            Event::Admitted(verdict) => {
                self.admission = Admission::Decided;
                self.memory.refused = verdict.err();
            }
            Event::Evicted(evicted) => return self.evict(evicted),
            Event::RuntimeChanged => self.version += 1,
            Event::Observed { as_of, seen } => return self.observed(as_of, seen, now),
            Event::SourcesChanged => self.sources_changed(now),
            Event::Resync => {
                // Tokens age and downward values change without an event.
                self.content_changed();
                self.version += 1;
            }
            Event::ClockMoved(by) => self.clock_moved(by),
            Event::Tick => {}
            Event::VolumesMounted(outcome) => self.mounted(outcome, now),
            Event::VolumesRefreshed(outcome) => self.refreshed(outcome, now),
            Event::SandboxCreated(outcome) => self.sandbox_created(outcome, now),
            Event::SandboxStopped { id, outcome } => {
                self.memory.sandbox_stops.insert(id, retry(outcome));
                self.version += 1;
            }
            Event::Image { container, result } => self.image(container, result, now),
            Event::Started { container, result } => return self.started(container, result, now),
            Event::PostStarted { id, outcome } => {
                // A hook of a container that is stopped counts no more.
                if self.memory.hooks.remove(&id).is_some() && outcome == Outcome::Failed {
                    self.memory.hooks.insert(id, Hook::Failed);
                }
            }
            Event::Probed { id, health } => {
                if let Some(known) = self.memory.health.get_mut(&id) {
                    *known = health;
                }
            }
            Event::StopPrepared { id } => self.stop_prepared(&id),
            Event::Killed { id, outcome } => {
                if let Some(stop) = self.memory.stops.get_mut(&id) {
                    stop.attempt = retry(outcome);
                }
                self.version += 1;
            }
            Event::Removed { id, outcome } => {
                self.removed(id, outcome, now);
                self.version += 1;
            }
            Event::TornDown(outcome) => {
                self.memory.volumes_down = outcome == Outcome::Done;
                self.memory.ending = (outcome == Outcome::Failed).then_some(retry(outcome));
            }
            Event::CleanedUp(outcome) => {
                self.memory.cleaned = outcome == Outcome::Done;
                self.memory.ending = (outcome == Outcome::Failed).then_some(retry(outcome));
                self.version += 1;
            }
            Event::Deleted(outcome) => {
                self.gone |= outcome == Outcome::Done;
                self.memory.ending = (outcome == Outcome::Failed).then_some(retry(outcome));
            }
        }
        Vec::new()
    }

    /// The first eviction counts, and none of a pod that ends anyway. A shutdown cuts the grace of every pod short, and is no event of theirs.
    fn evict(&mut self, evicted: Evicted) -> Vec<Action> {
        let goes_down = evicted.reason == Reason::Terminated;
        if status::is_terminal(&self.pod) || self.memory.refused.is_some() || (self.is_ending() && !goes_down) {
            return Vec::new();
        }
        if let Some(before) = &mut self.memory.evicted {
            before.grace = if goes_down { before.grace.min(evicted.grace) } else { before.grace };
            return Vec::new();
        }
        let (reason, message) = (evicted.reason, evicted.message.clone());
        self.memory.evicted = Some(evicted);
        if goes_down { Vec::new() } else { vec![Action::ReportEviction { reason, message }] }
    }

    /// A runtime that is away has no name; ids of its containers keep theirs.
    fn node_changed(&mut self, mut node: NodeInfo) {
        if node.runtime.is_empty() {
            node.runtime = std::mem::take(&mut self.node.runtime);
        }
        self.node = node;
    }

    fn clock_moved(&mut self, by: SignedDuration) {
        self.memory.clock_moved(by);
        self.observe_at = self.observe_at.map(|at| memory::moved(at, by));
        for ended in self.observed.containers.iter().filter(|c| c.state == State::Exited) {
            let sum = self.memory.moved.entry(ended.id.clone()).or_default();
            *sum = sum.saturating_add(by);
        }
    }

    fn content_changed(&mut self) {
        match &mut self.memory.content {
            Content::Refreshing { changed_again, .. } => *changed_again = true,
            content => *content = Content::Stale { failed: None },
        }
    }

    /// What failed for want of an object or of a key may succeed now.
    fn sources_changed(&mut self, now: Timestamp) {
        self.content_changed();
        self.memory.failures.clear();
        if let Volumes::Failed(retry) = &mut self.memory.volumes {
            retry.at = now;
        }
    }

    fn mounted(&mut self, outcome: Outcome, now: Timestamp) {
        let before = match self.memory.volumes {
            Volumes::Mounting(before) => before,
            _ => None,
        };
        self.memory.volumes = match outcome {
            Outcome::Done => Volumes::Ready,
            Outcome::Failed => {
                let retry = Retry::after(before, now, VOLUME_WAITS);
                // What is mounted changed meanwhile.
                let at = if self.memory.content == Content::Current { retry.at } else { now };
                Volumes::Failed(Retry { at, ..retry })
            }
        };
    }

    fn refreshed(&mut self, outcome: Outcome, now: Timestamp) {
        let Content::Refreshing { failed, changed_again } = self.memory.content else { return };
        self.memory.content = match outcome {
            _ if changed_again => Content::Stale { failed: None },
            Outcome::Done => Content::Current,
            Outcome::Failed => Content::Stale { failed: Some(Retry::after(failed, now, VOLUME_WAITS)) },
        };
    }

    fn sandbox_created(&mut self, outcome: Outcome, now: Timestamp) {
        let before = match self.memory.sandbox {
            SandboxWork::Creating(before) => before,
            _ => None,
        };
        self.memory.sandbox = match outcome {
            Outcome::Done => SandboxWork::Idle,
            Outcome::Failed => SandboxWork::Failed(Retry::after(before, now, SANDBOX_WAITS)),
        };
        // Images are looked at again: a new sandbox starts everything anew.
        self.memory.images.retain(|_, s| matches!(s, ImageState::Getting(_)));
        self.version += 1;
    }

    fn image(&mut self, container: String, result: Result<String, Failed>, now: Timestamp) {
        let before = match self.memory.images.remove(&container) {
            Some(ImageState::Getting(before)) => before.map(|f| f.retry),
            _ => None,
        };
        let state = match result {
            Ok(reference) => ImageState::Present(reference),
            Err(Failed { reason, message, image }) => {
                ImageState::Failed(Failure { reason, message, image, failed_at: now, retry: Retry::after(before, now, PULL_WAITS) })
            }
        };
        self.memory.images.insert(container, state);
    }

    fn started(&mut self, container: String, result: Result<String, Failed>, now: Timestamp) -> Vec<Action> {
        self.memory.starting.remove(&container);
        self.version += 1;
        let before = self.memory.failures.remove(&container).map(|f| f.retry);
        match result {
            Ok(id) => {
                let spec = self.spec_of(&container);
                if self.is_ending() || spec.and_then(|c| c.lifecycle?.post_start).is_none() {
                    return Vec::new();
                }
                self.memory.hooks.insert(id.clone(), Hook::Running);
                vec![Action::PostStart { id, container }]
            }
            Err(Failed { reason, message, image }) => {
                let retry = Retry::after(before, now, (self.failed_start, self.failed_start));
                self.memory.failures.insert(container, Failure { reason, message, image, failed_at: now, retry });
                Vec::new()
            }
        }
    }

    fn stop_prepared(&mut self, id: &str) {
        if let Some(hook) = self.memory.prepared.get_mut(id) {
            *hook = PreStop::Over;
        }
    }

    /// A runtime that is still busy with a container refuses to remove it, for as long as its machine is overloaded.
    fn removed(&mut self, id: String, outcome: Outcome, now: Timestamp) {
        let before = self.memory.removals.get(&id).and_then(|removal| removal.failed);
        let failed = (outcome == Outcome::Failed).then(|| Retry::after(before, now, REMOVAL_WAITS));
        let attempt = failed.map_or(Attempt::Done, |retry| Attempt::RetryAt(retry.at));
        self.memory.removals.insert(id, Removal { attempt, failed });
    }

    fn observed(&mut self, as_of: u64, seen: Option<Observed>, now: Timestamp) -> Vec<Action> {
        self.observing = false;
        self.observe_at = seen.is_none().then(|| now + CALL_RETRY);
        let Some(mut observed) = seen else { return Vec::new() };
        self.seen = Some(as_of);
        self.keep_addresses(&mut observed);
        self.observed = observed;
        self.prune(now);
        let problem = self.observed.sandboxes.first().and_then(|s| Some((s.id.clone(), s.problem.clone()?)));
        if problem == self.reported {
            return Vec::new();
        }
        self.reported = problem.clone();
        let told = problem.filter(|_| !self.is_ending());
        told.map(|(sandbox, problem)| Action::ReportNetwork { sandbox, problem }).into_iter().collect()
    }

    /// A stopped sandbox has no addresses any more in some runtimes; the status of its pod keeps those it had.
    fn keep_addresses(&self, observed: &mut Observed) {
        for sandbox in observed.sandboxes.iter_mut().filter(|sandbox| !sandbox.ready && sandbox.ips.is_empty()) {
            if let Some(before) = self.observed.sandboxes.iter().find(|before| before.id == sandbox.id) {
                sandbox.ips.clone_from(&before.ips);
            }
        }
    }

    /// Forgets what is known of objects that the runtime holds no more.
    fn prune(&mut self, now: Timestamp) {
        let (observed, memory) = (&self.observed, &mut self.memory);
        let held: BTreeSet<&String> = observed.containers.iter().map(|c| &c.id).collect();
        let runs = |id: &String| observed.containers.iter().any(|c| c.id == *id && c.state == State::Running);
        memory.stops.retain(|id, _| held.contains(id));
        memory.prepared.retain(|id, _| held.contains(id));
        memory.removals.retain(|id, _| held.contains(id));
        memory.reset.retain(|name, restarts| observed.newest(name).is_none_or(|run| run.restarts <= *restarts));
        memory.announced.retain(|id| held.contains(id));
        memory.moved.retain(|id, _| held.contains(id));
        memory.sandbox_stops.retain(|id, _| observed.sandboxes.iter().any(|s| s.id == *id));
        memory.hooks.retain(|id, _| runs(id));
        for (_, stop) in memory.stops.iter_mut().filter(|(id, stop)| runs(id) && stop.attempt == Attempt::Done) {
            stop.attempt = Attempt::RetryAt(now + CALL_RETRY);
        }
        for removal in memory.removals.values_mut().filter(|removal| removal.attempt == Attempt::Done) {
            removal.attempt = Attempt::RetryAt(now + CALL_RETRY);
        }
        // A start that was given up as too late succeeded after all.
        memory.failures.retain(|name, _| observed.newest(name).is_none_or(|c| c.state != State::Running));
    }

    /// Begins to probe containers that run, and forgets the others. When the pod ends, the readiness of its containers is probed on.
    fn probes(&mut self) -> Vec<Action> {
        let ending = self.is_ending();
        let running: Vec<&Container> = self.observed.containers.iter().filter(|c| c.state == State::Running).collect();
        self.memory.health.retain(|id, _| running.iter().any(|c| c.id == *id));
        let Some(spec) = &self.pod.spec else { return Vec::new() };
        let mut actions = Vec::new();
        for run in running {
            let known = self.memory.health.contains_key(&run.id);
            let probed = containers(spec)
                .map(|(_, c)| c)
                .find(|c| c.name == run.name)
                .filter(|c| !known && if ending { c.readiness_probe.is_some() } else { probes::has_probes(c) });
            if let Some(c) = probed {
                let health = probes::first_health(c, &run.id, status::old(&self.pod, &run.name));
                self.memory.health.insert(run.id.clone(), health);
                actions.push(Action::Probe { id: run.id.clone(), container: run.name.clone(), health });
            }
        }
        actions
    }

    /// Notes that an action is under way.
    fn begin(&mut self, action: &Action, now: Timestamp) {
        match action {
            Action::MountVolumes => {
                let before = match self.memory.volumes {
                    Volumes::Failed(retry) => Some(retry),
                    _ => None,
                };
                self.memory.volumes = Volumes::Mounting(before);
                self.memory.content = Content::Current;
            }
            Action::RefreshVolumes => {
                let failed = match self.memory.content {
                    Content::Stale { failed } => failed,
                    _ => None,
                };
                self.memory.content = Content::Refreshing { failed, changed_again: false };
            }
            Action::CreateSandbox { .. } => {
                let before = match self.memory.sandbox {
                    SandboxWork::Failed(retry) => Some(retry),
                    _ => None,
                };
                self.memory.sandbox = SandboxWork::Creating(before);
            }
            Action::StopSandbox { id } => drop(self.memory.sandbox_stops.insert(id.clone(), Attempt::UnderWay)),
            Action::EnsureImage { container } => {
                let before = match self.memory.images.remove(container) {
                    Some(ImageState::Failed(failure)) => Some(failure),
                    _ => None,
                };
                self.memory.images.insert(container.clone(), ImageState::Getting(before));
            }
            Action::BackOffPull { container, .. } => self.back_off_pull(container),
            Action::BackOffRestart { id, .. } => drop(self.memory.announced.insert(id.clone())),
            Action::Update(update) => {
                self.memory.resize.updating = Some(update.id.clone());
                self.memory.resize.retry_at = None;
            }
            Action::Start(start) => self.begin_start(start, now),
            Action::PrepareStop(Prepare { id, .. }) => {
                self.memory.hooks.remove(id);
                self.memory.ends_since.get_or_insert(now);
                self.memory.prepared.insert(id.clone(), PreStop::Running);
            }
            Action::Kill(Kill { id, grace, why, .. }) => {
                self.memory.hooks.remove(id);
                if *why == super::Why::PodEnds {
                    self.memory.ends_since.get_or_insert(now);
                }
                let why = self.memory.stops.get(id).map_or(*why, |s| s.why);
                self.memory.stops.insert(id.clone(), Stop { grace: *grace, why, attempt: Attempt::UnderWay });
            }
            Action::Remove { id } => {
                if let Some(spec) = &self.pod.spec {
                    restart::note_removal(&mut self.memory, &self.observed, spec, id);
                }
                let failed = self.memory.removals.get(id).and_then(|removal| removal.failed);
                self.memory.removals.insert(id.clone(), Removal { attempt: Attempt::UnderWay, failed });
            }
            Action::TearDownVolumes | Action::CleanUp | Action::DeleteFromApi => self.memory.ending = Some(Attempt::UnderWay),
            Action::Admit
            | Action::SaveResources(_)
            | Action::DecideResize { .. }
            | Action::ReportResize(_)
            | Action::Observe
            | Action::ReportNetwork { .. }
            | Action::ReportEviction { .. }
            | Action::PostStart { .. }
            | Action::Probe { .. } => {}
        }
    }

    /// A failed pull becomes a back-off, with what failed in its message.
    fn back_off_pull(&mut self, container: &str) {
        let own = self.spec_of(container).and_then(|c| c.image).unwrap_or_default();
        if let Some(ImageState::Failed(failure)) = self.memory.images.get_mut(container) {
            let image = failure.image.as_ref().unwrap_or(&own);
            failure.message = format!("Back-off pulling image {image:?}: {}: {}", failure.reason, failure.message);
            failure.reason = WaitingReason::ImagePullBackOff;
        }
    }

    /// Counts a restart into the back-off. The image was checked for this start; the next one checks again.
    fn begin_start(&mut self, start: &Start, now: Timestamp) {
        self.memory.starting.insert(start.container.clone());
        self.memory.images.remove(&start.container);
        self.record.actuate(&start.container);
        let hash = self.spec_of(&start.container).map(|c| container_hash(&c)).unwrap_or_default();
        if let Some(before) = self.observed.ended(&start.container, &self.memory) {
            let ended = self.memory.ended_at(before).unwrap_or(now);
            self.memory.restarts.tried(&format!("{}/{hash}", start.container), ended, now);
        }
    }
}

#[cfg(test)]
mod tests;
