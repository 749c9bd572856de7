//! One task per pod UID: hands events to the pod machine, carries out its actions, and hands their
//! outcomes back.
//!
//! Inputs: the pod from the API, wake-ups that carry no data, outcomes of background work (pulls,
//! stops, hooks, probes). The worker alone changes the pod's state. It ends when the pod is gone
//! from the API and from the node.

mod admission;
mod apply;
mod clock;
mod errors;
mod files;
mod hosts;
mod image;
mod mount;
mod resize;
mod restarts;
mod site;
mod start;
mod times;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cluster::EventType;
use cri::v1;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod, PodStatus};
use thiserror_ext::AsReport as _;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use crate::agent::ends::End;
use crate::agent::{Agent, key, uid};
use crate::claims::Claims;
use crate::pod::explain::{Explanation, Warnings, explain};
use crate::pod::{Action, Event, Health, NodeInfo, Output, PodState, Reason, State, on};
use crate::probes::counts::Probed;
use crate::probes::{self, News, Prober};
use crate::volumes::{Places, PodDirs};
use clock::Clock;
use site::Site;
use times::{Times, first_seen};

/// Messages to a worker.
#[derive(Debug)]
pub(crate) enum Note {
    /// Something at the runtime changed.
    Wake,
    /// The node's runtime or its network changed.
    Node,
    /// A Secret or ConfigMap the pod uses changed.
    Sources,
    /// The pod as the API has it now.
    Pod(Arc<Pod>),
    /// The API has it no more.
    Gone,
    /// The outcome of an action.
    Done(Event),
    /// A result of a container probe.
    Probe(String, News),
    /// The health of the pod's devices changed.
    Devices,
    /// Somebody asks why the pod is not Ready.
    Explain(oneshot::Sender<Explanation>),
    /// The outcome of work on the pod's volumes.
    Mounted(Box<mount::Mounted>),
}

/// The state of one worker.
pub(crate) struct Worker {
    agent: Arc<Agent>,
    uid: String,
    /// It comes from a manifest, and the API server may not even be there.
    is_static: bool,
    state: PodState,
    dirs: PodDirs,
    tell: mpsc::UnboundedSender<Note>,
    notes: mpsc::UnboundedReceiver<Note>,
    probers: BTreeMap<String, Prober>,
    /// postStart hooks that run, by container id.
    hooks: BTreeMap<String, AbortHandle>,
    /// Termination messages by container id.
    messages: BTreeMap<String, String>,
    /// Places of the volumes, once ready.
    places: Places,
    /// What the pod's claims are bound to, once all are.
    claims: Option<Claims>,
    /// Ends the waiting of work on volumes.
    mounting: CancellationToken,
    /// Events to be taken in, oldest first.
    events: VecDeque<Event>,
    /// The newest warnings about the pod, which its explanation quotes.
    warnings: Arc<Mutex<Warnings>>,
    work: Arc<Work>,
    clock: Clock,
    times: Times,
    /// What the runtime was told last of the pod as a whole: the sandbox, and its resources.
    told: Option<Box<(String, v1::LinuxContainerResources)>>,
}

/// The action that a worker carries out, and since when: what holds it up is named though it does not answer meanwhile.
#[derive(Default)]
pub(crate) struct Work(Mutex<Option<(String, Instant)>>);

impl Work {
    fn set(&self, action: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = action.map(|action| (action, Instant::now()));
    }

    /// The action, and how long it has taken.
    pub(crate) fn now(&self) -> Option<(String, Duration)> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.as_ref().map(|(action, since)| (action.clone(), since.elapsed()))
    }
}

/// Works for one pod until nothing of it is left.
pub(crate) async fn run(agent: Arc<Agent>, pod: Arc<Pod>, tell: mpsc::UnboundedSender<Note>, notes: mpsc::UnboundedReceiver<Note>, work: Arc<Work>) {
    let dirs = match PodDirs::new(&agent.dir, &agent.logs, &pod) {
        Ok(dirs) => dirs,
        Err(error) => {
            tracing::error!(pod = %key(&pod), error = %error.as_report(), "the pod's names make no path; it is not run");
            return;
        }
    };
    let is_static = agent.statics.holds(&uid(&pod));
    let pod = if is_static { with_mirrored_status(&agent, pod) } else { pod };
    let failed_start = SignedDuration::try_from(agent.polls.failed_start).unwrap_or(SignedDuration::ZERO);
    let containers = pod.spec.as_ref().map_or(0, |spec| spec.containers.len());
    agent.timings.worker_begins(first_seen(&pod), Timestamp::now(), containers);
    let mut worker = Worker {
        times: Times::new(&pod),
        uid: uid(&pod),
        is_static,
        state: PodState::new(pod, node_info(&agent), failed_start, resize::load(&agent, &dirs)).with_restarts(agent.polls.restart),
        agent,
        dirs,
        tell,
        notes,
        probers: BTreeMap::new(),
        hooks: BTreeMap::new(),
        messages: BTreeMap::new(),
        places: BTreeMap::new(),
        claims: None,
        mounting: CancellationToken::new(),
        events: VecDeque::from([Event::Tick]),
        warnings: Arc::default(),
        work,
        clock: Clock::new(Timestamp::now(), Instant::now()),
        told: None,
    };
    worker.work().await;
    worker.agent.sources.release(&worker.uid);
    worker.agent.bundles.release(&worker.uid);
    worker.agent.tokens.release(&worker.uid);
    worker.probers.clear();
    worker.agent.probes.release(&worker.uid);
}

/// A static pod as an earlier run of the agent left it, where its mirror says so. One that ended with its machine runs again with it: nobody
/// makes another one in its place.
fn with_mirrored_status(agent: &Agent, pod: Arc<Pod>) -> Arc<Pod> {
    let mirror = agent.pods.get(key(&pod)).filter(|mirror| kube_rules::static_pod::mirrored(mirror) == pod.metadata.uid.as_deref());
    let ended_with_machine =
        |status: &PodStatus| status.phase.as_deref() == Some("Failed") && status.reason.as_deref() == Some(Reason::Terminated.to_string().as_str());
    match mirror.and_then(|mirror| mirror.status.clone()).filter(|status| !ended_with_machine(status)) {
        Some(status) => Arc::new(Pod { status: Some(status), ..(*pod).clone() }),
        None => pod,
    }
}

/// Upstream's name of what an event asks of a worker.
fn operation_of(event: &Event) -> &'static str {
    match event {
        Event::Pod(_) => "update",
        Event::Gone | Event::Evicted(_) => "kill",
        _ => "sync",
    }
}

fn node_info(agent: &Agent) -> NodeInfo {
    let health = agent.health.borrow();
    let resizes = !agent.side.os.is_windows();
    NodeInfo {
        network_ready: health.connects,
        host_ips: agent.host_ips(),
        runtime: health.name.clone(),
        dead_kept: agent.dead_kept,
        recursive: health.handlers.iter().filter(|handler| handler.recursive_read_only).map(|handler| handler.name.clone()).collect(),
        resizes,
    }
}

impl Worker {
    async fn work(&mut self) {
        let mut wake = None;
        let mut look = false;
        let mut operation = "create";
        loop {
            let mut began = Instant::now();
            let event = match self.events.pop_front() {
                Some(event) => event,
                // One look serves all events that asked for it.
                None if std::mem::take(&mut look) => Box::pin(self.observe()).await,
                None => {
                    let event = self.wait(wake).await;
                    began = Instant::now();
                    event
                }
            };
            if operation.is_empty() {
                operation = operation_of(&event);
            }
            let now = Timestamp::now();
            let event = match self.clock.moved(now, Instant::now()) {
                Some(by) => {
                    self.events.push_front(event);
                    Event::ClockMoved(by)
                }
                None => event,
            };
            let is_object = matches!(event, Event::Pod(_));
            let out = on(event, &mut self.state, now);
            if is_object {
                self.agent.renew(&self.uid, &self.state.pod);
            }
            self.report(&out);
            if self.state.ends() {
                self.mounting.cancel();
            }
            if out.finished {
                self.agent.timings.worked("terminated", began.elapsed());
                return;
            }
            wake = out.wake;
            for action in out.actions {
                tracing::debug!(pod = %key(&self.state.pod), "{action}");
                if action == Action::Observe {
                    look = true;
                    continue;
                }
                self.work.set(Some(action.to_string()));
                // On the heap: what an action holds meanwhile is a multiple of what an idle pod needs.
                let outcome = Box::pin(self.apply(action)).await;
                self.work.set(None);
                self.events.extend(outcome);
            }
            self.agent.timings.worked(std::mem::take(&mut operation), began.elapsed());
            self.drain();
        }
    }

    /// Looks at what the runtime holds of the pod.
    async fn observe(&mut self) -> Event {
        let as_of = self.state.version();
        let seen = match crate::runtime::observe(&self.agent.cri, &self.uid).await {
            Ok(mut observed) => {
                self.add_messages(&mut observed);
                Some(observed)
            }
            Err(error) => {
                tracing::warn!(pod = %key(&self.state.pod), error = %error.as_report(), "asking the runtime about a pod failed; trying again");
                None
            }
        };
        Event::Observed { as_of, seen }
    }

    /// Hands on what the machine says of the pod.
    fn report(&mut self, out: &Output) {
        let known = &self.state.memory.health;
        self.probers.retain(|id, _| known.contains_key(id));
        if self.state.is_ending() {
            self.probers.values().for_each(Prober::end);
        }
        let Some(status) = &out.status else { return };
        if let Some(seconds) = self.times.runs(status, Timestamp::now()) {
            self.agent.timings.pod_runs(seconds);
        }
        for (kind, exit_code, reason) in self.times.ended(status) {
            self.agent.timings.container_ended(kind, exit_code, reason);
        }
        if !self.state.memory.cleaned && !self.state.gone {
            let mut status = status.clone();
            self.agent.devices.add_health(&self.uid, &mut status);
            self.agent.statuses.report(&self.uid, key(&self.state.pod), self.is_static, &status);
        }
        if self.is_static {
            self.agent.statics.note(&self.uid, status);
            self.state.keep_status(status);
        }
        let ended = self.state.observed.containers.iter().all(|c| c.state == State::Exited);
        if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) && ended {
            self.agent.release(&self.uid);
            if self.state.ends() {
                let down = self.state.memory.volumes_down || self.state.memory.cleaned;
                self.agent.note_end(&self.uid, if down { End::Down } else { End::Stopped });
            }
        }
        if self.state.has_decided_resize() {
            self.agent.forget_deferred(&self.uid);
        }
    }

    /// Waits for news, at most until `wake`.
    async fn wait(&mut self, wake: Option<Timestamp>) -> Event {
        let resync = self.agent.polls.pod;
        let until = wake.map(|at| Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default());
        let (until, then) = match until {
            Some(left) if left < resync => (left, Event::Tick),
            _ => (resync, Event::Resync),
        };
        // Notes that only have to be told to people, such as failed probes, do not put it off.
        let until = tokio::time::Instant::now() + until;
        loop {
            match tokio::time::timeout_at(until, self.notes.recv()).await {
                Ok(Some(note)) => {
                    if let Some(event) = self.event_of(note) {
                        return event;
                    }
                }
                Ok(None) => return Event::Gone,
                Err(_) => return then,
            }
        }
    }

    fn drain(&mut self) {
        while let Ok(note) = self.notes.try_recv() {
            let event = self.event_of(note);
            self.events.extend(event);
        }
    }

    /// The event that a note stands for; None when it only has to be told to people.
    fn event_of(&mut self, note: Note) -> Option<Event> {
        Some(match note {
            Note::Wake => Event::RuntimeChanged,
            Note::Node => Event::Node(node_info(&self.agent)),
            Note::Sources => Event::SourcesChanged,
            Note::Devices => Event::Tick,
            Note::Pod(pod) => {
                if let Some(start) = self.times.started(&pod, Timestamp::now()) {
                    self.agent.timings.pod_started(start);
                }
                Event::Pod(pod)
            }
            Note::Gone => Event::Gone,
            Note::Mounted(mounted) => {
                self.places = mounted.places;
                self.claims = mounted.claims;
                mounted.event
            }
            Note::Done(event) => {
                if let Event::PostStarted { id, .. } = &event {
                    self.hooks.remove(id);
                }
                event
            }
            Note::Probe(id, News::Health(health)) => Event::Probed { id, health },
            Note::Explain(asker) => {
                let warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
                // Who no longer waits needs no answer.
                let _ = asker.send(explain(&self.state, &warnings, Timestamp::now()));
                return None;
            }
            Note::Probe(id, News::Warned(which, message)) => {
                self.about_probe(&id, "ProbeWarning", format!("{} probe warning: {message}", which.name()));
                return None;
            }
            Note::Probe(id, News::Failed(which, why)) => {
                self.about_probe(&id, "Unhealthy", format!("{} probe failed: {}", which.name(), why.to_report_string().trim_end()));
                return None;
            }
            Note::Probe(id, News::Errored(which, why)) => {
                self.about_probe(
                    &id,
                    "Unhealthy",
                    format!("{} probe errored and resulted in unknown state: {}", which.name(), why.to_report_string().trim_end()),
                );
                return None;
            }
        })
    }

    /// The event about a container's probe.
    fn about_probe(&self, id: &str, reason: &str, message: String) {
        let name = self.state.observed.containers.iter().find(|c| c.id == id).map(|c| c.name.clone());
        self.event(name.as_deref(), EventType::Warning, reason, message);
    }

    /// Begins to probe a container whose state is `health`.
    fn probe(&mut self, id: String, name: &str, health: Health) {
        let Some(spec) = self.state.spec_of(name) else { return };
        let target = self.target(&spec, &id);
        let run = self.state.observed.containers.iter().find(|c| c.id == id);
        let started = run.and_then(|c| c.started_at);
        let ago = |at: Timestamp| Duration::try_from(Timestamp::now().duration_since(at)).unwrap_or_default();
        let adopted = started.is_some_and(|at| at < self.agent.started);
        let since = probes::Since { start: started.map(ago).unwrap_or_default(), adoption: adopted.then(|| ago(self.agent.started)) };
        let (tell, of) = (self.tell.clone(), id.clone());
        let prober = probes::start(spec, target, health, since, move |news| {
            let _ = tell.send(Note::Probe(of.clone(), news));
        });
        if self.state.is_ending() {
            prober.end();
        }
        self.probers.insert(id, prober);
    }

    /// How probes and hooks reach a container.
    fn target(&self, spec: &Container, id: &str) -> probes::Target {
        let on_host = crate::pod::is_host_network(&self.state.pod);
        let ips = if on_host { self.agent.host_ips() } else { self.state.pod_ips() };
        let meta = &self.state.pod.metadata;
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let of = Probed { namespace: text(&meta.namespace), pod: text(&meta.name), uid: self.uid.clone(), container: spec.name.clone() };
        probes::Target {
            pod_ip: ips.first().cloned().unwrap_or_default(),
            container: spec.clone(),
            id: id.to_owned(),
            cri: self.agent.cri.clone(),
            of,
            counts: self.agent.probes.clone(),
        }
    }

    /// What background work needs of the pod.
    fn site(&self) -> Site {
        Site {
            agent: self.agent.clone(),
            pod: self.state.pod.clone(),
            uid: self.uid.clone(),
            warnings: self.warnings.clone(),
            pulls: self.times.pulls.clone(),
        }
    }

    /// Writes an event about the pod or one of its containers.
    fn event(&self, container: Option<&str>, type_: EventType, reason: &str, message: impl Into<String>) {
        self.site().event(container, type_, reason, message);
    }
}
