//! The plan of the pod machine: what is next, from what is known.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container as Spec, PodSpec, PodStatus};

use super::{
    Action, Attempt, Container, Content, Hook, ImageState, Input, Kill, Kind, PreStop, Prepare, Sandbox, SandboxWork, Start, State, Volumes,
    WaitingReason, Why, container_hash, containers, grace, is_deleted, is_host_network, resize, restart, status,
};
use crate::go_time::go_duration;

/// How long a failed pull is shown as ErrImagePull before it becomes ImagePullBackOff; upstream's
/// next look at the pod, which comes about then.
const BACK_OFF_NOTICE: SignedDuration = SignedDuration::from_secs(2);

/// What is next, and what the status says meanwhile.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Step {
    pub actions: Vec<Action>,
    pub status: PodStatus,
    pub wake: Option<Timestamp>,
}

/// Decides what happens next to one pod.
pub(super) fn step(input: &Input<'_>) -> Step {
    let mut plan = Plan { input, actions: Vec::new(), wake: None, waiting: Vec::new() };
    let ending = plan.drive();
    let status = status::render(input, &plan.waiting, ending);
    Step { actions: plan.actions, status, wake: plan.wake }
}

/// A container that waits.
pub(super) struct Waiting {
    pub name: String,
    pub reason: WaitingReason,
    pub message: String,
}

/// How far the pod's end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// It lives.
    No,
    /// Containers may still run.
    Stopping,
    /// Nothing runs and nothing will.
    Over,
}

/// Where a container runs.
#[derive(Clone, Copy)]
struct Place<'a> {
    sandbox: &'a Sandbox,
    sidecar: bool,
}

struct Plan<'a> {
    input: &'a Input<'a>,
    actions: Vec<Action>,
    wake: Option<Timestamp>,
    waiting: Vec<Waiting>,
}

impl Plan<'_> {
    fn drive(&mut self) -> Ending {
        let i = self.input;
        let Some(spec) = &i.pod.spec else {
            return Ending::Over;
        };
        let terminal = i.pod.status.as_ref().and_then(|s| s.phase.as_deref()).is_some_and(|p| p == "Succeeded" || p == "Failed");
        let late = status::deadline(i).is_some_and(|at| {
            if at > i.now {
                self.wake_at(at);
            }
            at <= i.now
        });
        if i.gone || is_deleted(i.pod) || terminal || late || i.memory.refused.is_some() || i.memory.evicted.is_some() || self.done(spec) {
            return self.terminate(spec);
        }
        self.sync(spec);
        Ending::No
    }

    /// Every main container ended and none will run again, or an init container failed for good.
    fn done(&self, spec: &PodSpec) -> bool {
        let i = self.input;
        let last = |kind: Kind, c: &Spec| {
            let run = i.observed.newest(&c.name).filter(|run| run.state == State::Exited);
            run.filter(|run| !restart::follows(i, spec, kind, c, run))
        };
        let init_failed = containers(spec).any(|(kind, c)| kind == Kind::Init && last(kind, c).is_some_and(|run| run.exit_code != 0));
        init_failed || spec.containers.iter().all(|c| last(Kind::Main, c).is_some())
    }

    fn sync(&mut self, spec: &PodSpec) {
        let i = self.input;
        let network = i.node.network_ready || is_host_network(i.pod);
        let sandbox = i.observed.sandboxes.first();
        let usable = sandbox.filter(|s| s.ready && (is_host_network(i.pod) || !s.ips.is_empty()));
        self.volumes();
        if matches!(i.memory.sandbox, SandboxWork::Creating(_)) {
            return;
        }
        if let Some(sandbox) = usable {
            // Volumes of an adopted pod are looked at again, but its containers are not held up.
            if i.memory.volumes == Volumes::Ready {
                self.containers(spec, sandbox);
            }
            return;
        }
        if !network || i.memory.volumes != Volumes::Ready {
            return;
        }
        self.replace_sandbox(spec, sandbox);
    }

    fn volumes(&mut self) {
        let i = self.input;
        match (&i.memory.volumes, &i.memory.content) {
            (Volumes::NotReady, _) => self.actions.push(Action::MountVolumes),
            (Volumes::Failed(retry), _) if retry.at <= i.now => self.actions.push(Action::MountVolumes),
            (Volumes::Failed(retry), _) => self.wake_at(retry.at),
            (Volumes::Ready, Content::Stale { failed: Some(retry) }) if retry.at > i.now => self.wake_at(retry.at),
            (Volumes::Ready, Content::Stale { .. }) => self.actions.push(Action::RefreshVolumes),
            _ => {}
        }
    }

    fn replace_sandbox(&mut self, spec: &PodSpec, old: Option<&Sandbox>) {
        let i = self.input;
        let running = |c: &&Container| matches!(c.state, State::Running | State::Unknown);
        let mut busy = false;
        for c in i.observed.containers.iter().filter(running) {
            busy = true;
            self.kill(c, grace(i.pod), Why::SandboxGone);
        }
        if busy || !i.memory.starting.is_empty() {
            return;
        }
        if old.is_some_and(|old| !self.stop_sandbox(&old.id)) {
            return;
        }
        // A pod that must not restart stays down once its sandbox is lost.
        let never = spec.restart_policy.as_deref() == Some("Never");
        if never && old.is_some() && !i.observed.containers.is_empty() {
            return;
        }
        match &i.memory.sandbox {
            SandboxWork::Failed(retry) if retry.at > i.now => self.wake_at(retry.at),
            _ => self.actions.push(Action::CreateSandbox { attempt: old.map_or(0, |s| s.attempt + 1) }),
        }
    }

    /// Has a sandbox stopped. Returns whether it is.
    fn stop_sandbox(&mut self, id: &str) -> bool {
        let attempt = self.input.memory.sandbox_stops.get(id).copied();
        if self.is_due(attempt) {
            self.actions.push(Action::StopSandbox { id: id.to_owned() });
        }
        attempt == Some(Attempt::Done)
    }

    /// Whether work is to be begun, for the first time or again.
    fn is_due(&mut self, attempt: Option<Attempt>) -> bool {
        match attempt {
            None => true,
            Some(Attempt::RetryAt(at)) if at <= self.input.now => true,
            Some(Attempt::RetryAt(at)) => {
                self.wake_at(at);
                false
            }
            Some(Attempt::UnderWay | Attempt::Done) => false,
        }
    }

    fn containers(&mut self, spec: &PodSpec, sandbox: &Sandbox) {
        let i = self.input;
        if restart::all_restart(i.observed, spec) {
            self.reset(spec);
            return;
        }
        // They start once, whatever the others do, and never again.
        for c in i.ephemeral.iter().filter(|c| i.observed.newest(&c.name).is_none_or(|o| o.state == State::Created)) {
            self.start(c, sandbox);
        }
        let initialized = spec.containers.iter().any(|c| i.observed.newest_in(&c.name, &sandbox.id).is_some());
        for (kind, c) in containers(spec) {
            let here = i.observed.newest_in(&c.name, &sandbox.id);
            match kind {
                Kind::Init if initialized => {}
                Kind::Init => {
                    if !self.init(spec, c, here, sandbox) {
                        return;
                    }
                }
                Kind::Sidecar => {
                    let started = self.main(spec, c, here, Place { sandbox, sidecar: true });
                    if !started && !initialized {
                        return;
                    }
                }
                Kind::Main => {
                    self.main(spec, c, here, Place { sandbox, sidecar: false });
                }
            }
        }
        self.remove_old(spec);
        self.resize(spec, sandbox);
    }

    /// Stops and removes every container, so that all begin again (upstream `getContainersToReset`). Those that ended with the rule go last: an
    /// agent that stops meanwhile goes on there.
    fn reset(&mut self, spec: &PodSpec) {
        let i = self.input;
        let own = i.observed.containers.iter().filter(|run| containers(spec).any(|(_, c)| c.name == run.name));
        let (sources, others): (Vec<&Container>, Vec<&Container>) = own.partition(|run| restart::asks_for_all(spec, run));
        for run in &others {
            match run.state {
                State::Running | State::Unknown => self.kill(run, MINIMUM_GRACE, Why::AllRestart),
                // It is started just now, and stopped then.
                State::Created if i.memory.starting.contains(&run.name) => {}
                State::Created | State::Exited => self.remove(&run.id),
            }
        }
        if others.is_empty() && i.memory.starting.is_empty() {
            for run in sources {
                self.remove(&run.id);
            }
        }
    }

    /// Brings the resources of running containers to what is allocated, one change after the other.
    fn resize(&mut self, spec: &PodSpec, sandbox: &Sandbox) {
        let i = self.input;
        if !i.node.resizes || i.memory.resize.updating.is_some() {
            return;
        }
        let running = |name: &str| i.observed.newest_in(name, &sandbox.id).filter(|c| c.state == State::Running);
        let mut changes = resize::changes(spec, i.record, running);
        // What restarts gets its resources then.
        changes.retain(|(_, c, run, from, to)| !resize::restarts(c, *from, *to) && !i.memory.stops.contains_key(&run.id));
        let Some(update) = resize::next_update(&changes) else { return };
        if self.is_due(i.memory.resize.retry_at.map(Attempt::RetryAt)) {
            self.actions.push(Action::Update(update));
        }
    }

    /// Whether a running container has to restart for its resources.
    fn resize_restarts(&self, c: &Spec) -> bool {
        let whole = self.input.pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
        let to = resize::Amounts::of_container(&c.resources.clone().unwrap_or_default(), whole);
        let from = self.input.record.actuated.get(&c.name).map(resize::Amounts::of);
        self.input.node.resizes && from.is_some_and(|from| resize::restarts(c, from, to))
    }

    /// Returns whether the next container may start.
    fn init(&mut self, spec: &PodSpec, c: &Spec, here: Option<&Container>, sandbox: &Sandbox) -> bool {
        match here {
            Some(h) if h.state == State::Exited && h.exit_code == 0 => return true,
            Some(h) if h.state == State::Running && self.resize_restarts(c) => self.kill(h, grace(self.input.pod), Why::Resized),
            Some(h) if h.state == State::Running => {}
            Some(h) if h.state == State::Exited && !restart::follows(self.input, spec, Kind::Init, c, h) => {}
            Some(h) if h.state == State::Unknown => self.kill(h, grace(self.input.pod), Why::SandboxGone),
            _ => self.start(c, sandbox),
        }
        false
    }

    /// Keeps a main container or a sidecar as it should be. Returns whether it counts as started.
    fn main(&mut self, spec: &PodSpec, c: &Spec, here: Option<&Container>, place: Place<'_>) -> bool {
        let i = self.input;
        let kind = if place.sidecar { Kind::Sidecar } else { Kind::Main };
        match here {
            Some(h) if h.state == State::Running => {
                let health = i.memory.health.get(&h.id);
                if h.hash != container_hash(c) {
                    self.kill(h, grace(i.pod), Why::Changed);
                } else if self.resize_restarts(c) {
                    self.kill(h, grace(i.pod), Why::Resized);
                } else if i.memory.hooks.get(&h.id) == Some(&Hook::Failed) {
                    self.kill(h, grace(i.pod), Why::PostStartFailed);
                } else if health.is_some_and(|p| !p.alive) {
                    let why = if health.is_some_and(|p| p.started) { Why::Unhealthy } else { Why::StartupFailed };
                    self.kill(h, probe_grace(i, c, why), why);
                }
                return status::started(i, c, h);
            }
            Some(h) if h.state == State::Unknown => self.kill(h, grace(i.pod), Why::SandboxGone),
            Some(h) if h.state == State::Exited => {
                if restart::follows(i, spec, kind, c, h) {
                    self.start(c, place.sandbox);
                }
            }
            _ => {
                // Another sandbox's run may have finished the job already.
                let before = i.observed.newest(&c.name);
                let done = before.is_some_and(|b| b.state == State::Exited && b.exit_code == 0) && restart::runs_once(spec, kind, c);
                if !done {
                    self.start(c, place.sandbox);
                }
            }
        }
        false
    }

    /// Whether starts wait for a postStart hook: upstream starts a pod's containers one after the other.
    fn is_held(&self) -> bool {
        let memory = &self.input.memory;
        let planned = self.actions.iter().filter_map(|a| match a {
            Action::Start(start) => Some(&start.container),
            _ => None,
        });
        let hooked = |name: &String| {
            let all = self.input.pod.spec.iter().flat_map(containers).map(|(_, c)| c);
            all.filter(|c| c.name == *name).any(|c| c.lifecycle.as_ref().is_some_and(|l| l.post_start.is_some()))
        };
        memory.hooks.values().any(|h| *h == Hook::Running) || memory.starting.iter().chain(planned).any(hooked)
    }

    /// Gets the image, then starts the container, unless a back-off holds.
    fn start(&mut self, c: &Spec, sandbox: &Sandbox) {
        let i = self.input;
        if i.memory.starting.contains(&c.name) {
            return;
        }
        if self.crashed(c) || self.failed(c) {
            return;
        }
        if let Some(made) = i.observed.newest(&c.name).filter(|o| o.state == State::Created) {
            // The agent stopped, or the start failed, between its creation and its start: it never ran. A runtime that still tries to start
            // it refuses, until it has: what runs then is kept.
            self.remove(&made.id);
        }
        match i.memory.images.get(&c.name) {
            Some(ImageState::Present(_)) if self.is_held() => {}
            Some(ImageState::Present(reference)) => {
                if i.observed.newest(&c.name).is_some_and(|o| o.state == State::Created) {
                    return;
                }
                self.actions.push(Action::Start(Start {
                    container: c.name.clone(),
                    restarts: status::next_restart(i, c),
                    image: reference.clone(),
                    sandbox: sandbox.id.clone(),
                    attempt: sandbox.attempt,
                }));
            }
            Some(ImageState::Getting(_)) => {}
            Some(ImageState::Failed(f)) => {
                self.wait(c, f.reason, f.message.clone());
                let notice = f.failed_at + BACK_OFF_NOTICE;
                if f.retry.at > i.now {
                    self.wake_at(f.retry.at);
                    if f.reason.is_failed_pull() && notice > i.now {
                        self.wake_at(notice);
                    } else if f.reason.is_failed_pull() {
                        self.actions.push(Action::BackOffPull { container: c.name.clone(), image: f.image.clone() });
                    }
                } else {
                    self.actions.push(Action::EnsureImage { container: c.name.clone() });
                }
            }
            None => self.actions.push(Action::EnsureImage { container: c.name.clone() }),
        }
    }

    /// Whether the restart back-off of a container holds.
    fn crashed(&mut self, c: &Spec) -> bool {
        let i = self.input;
        let Some(run) = i.observed.ended(&c.name, i.memory) else { return false };
        let key = format!("{}/{}", c.name, container_hash(c));
        let Some((wait, until)) = i.memory.restarts.holding(&key, i.memory.ended_at(run).unwrap_or(i.now), i.now) else {
            return false;
        };
        let meta = &i.pod.metadata;
        let message = format!(
            "back-off {} restarting failed container={} pod={}_{}({})",
            go_duration(wait.unsigned_abs()),
            c.name,
            meta.name.as_deref().unwrap_or_default(),
            meta.namespace.as_deref().unwrap_or_default(),
            meta.uid.as_deref().unwrap_or_default(),
        );
        self.wait(c, WaitingReason::CrashLoopBackOff, message);
        if !i.memory.announced.contains(&run.id) {
            self.actions.push(Action::BackOffRestart { container: c.name.clone(), id: run.id.clone() });
        }
        self.wake_at(until);
        true
    }

    /// Whether a failed start is not tried again yet.
    fn failed(&mut self, c: &Spec) -> bool {
        let i = self.input;
        let Some(f) = i.memory.failures.get(&c.name) else { return false };
        self.wait(c, f.reason, f.message.clone());
        let held = f.retry.at > i.now;
        if held {
            self.wake_at(f.retry.at);
        }
        held
    }

    fn remove(&mut self, id: &str) {
        if self.is_due(self.input.memory.removals.get(id).map(|removal| removal.attempt)) {
            self.actions.push(Action::Remove { id: id.to_owned() });
        }
    }

    /// Old attempts go, but the newest dead ones stay for their logs and the last state.
    fn remove_old(&mut self, spec: &PodSpec) {
        let Some(kept) = self.input.node.dead_kept else { return };
        for (_, c) in containers(spec) {
            let dead = self.input.observed.containers.iter().filter(|o| o.name == c.name).skip(1).filter(|o| o.state == State::Exited).skip(kept);
            for old in dead {
                self.remove(&old.id);
            }
        }
    }

    fn terminate(&mut self, spec: &PodSpec) -> Ending {
        let i = self.input;
        let grace = i.memory.evicted.as_ref().map_or(grace(i.pod), |evicted| grace(i.pod).min(evicted.grace));
        let running: Vec<&Container> = i.observed.containers.iter().filter(|c| matches!(c.state, State::Running | State::Unknown)).collect();
        let is = |c: &Container, kind: Kind| containers(spec).any(|(k, s)| k == kind && s.name == c.name);
        let (sidecars, others): (Vec<&Container>, Vec<&Container>) = running.iter().partition(|c| is(c, Kind::Sidecar));
        for c in &others {
            self.kill(c, grace, Why::PodEnds);
        }
        self.stop_sidecars(spec, &sidecars, others.is_empty(), grace);
        if !running.is_empty() {
            return Ending::Stopping;
        }
        // What is being made is stopped once it is there.
        if !i.memory.starting.is_empty() || matches!(i.memory.sandbox, SandboxWork::Creating(_)) {
            return Ending::Stopping;
        }
        let mut stopped = true;
        for s in &i.observed.sandboxes {
            stopped &= self.stop_sandbox(&s.id);
        }
        let busy = matches!(i.memory.volumes, Volumes::Mounting(_)) || matches!(i.memory.content, Content::Refreshing { .. });
        let next = if i.gone || is_deleted(i.pod) {
            if !i.memory.cleaned { Some(Action::CleanUp) } else { (!i.gone).then_some(Action::DeleteFromApi) }
        } else {
            (!i.memory.volumes_down).then_some(Action::TearDownVolumes)
        };
        if let Some(next) = next.filter(|_| stopped && !busy)
            && self.is_due(i.memory.ending)
        {
            self.actions.push(next);
        }
        Ending::Over
    }

    /// Sidecars are asked to end after the rest, the last one declared first, or when the pod's grace is over. Their preStop hooks run from the
    /// start (upstream: `killContainer` and `terminationOrdering`).
    fn stop_sidecars(&mut self, spec: &PodSpec, sidecars: &[&Container], alone: bool, grace: i64) {
        let i = self.input;
        let last = containers(spec).rev().find_map(|(_, s)| sidecars.iter().find(|c| c.name == s.name)).filter(|_| alone);
        let over = i.memory.ends_since.unwrap_or(i.now).saturating_add(SignedDuration::from_secs(grace)).unwrap_or(Timestamp::MAX);
        for c in sidecars {
            let hook = i.memory.prepared.get(&c.id);
            let is_last = last.is_some_and(|last| last.id == c.id);
            if over <= i.now || (is_last && hook != Some(&PreStop::Running)) {
                let begun = i.memory.stops.contains_key(&c.id);
                self.kill(c, if begun { grace } else { self.left(grace) }, Why::PodEnds);
                continue;
            }
            // A stop that is under way for another reason has run it already, or has no time for it.
            if hook.is_none() && !i.memory.stops.contains_key(&c.id) {
                self.actions.push(Action::PrepareStop(Prepare { id: c.id.clone(), container: c.name.clone(), grace }));
            }
            self.wake_at(over);
        }
    }

    /// What is left of the pod's grace, or the least that upstream leaves (`minimumGracePeriodInSeconds` of
    /// `pkg/kubelet/kuberuntime/kuberuntime_manager.go`).
    fn left(&self, grace: i64) -> i64 {
        let gone = self.input.memory.ends_since.map_or(0, |since| self.input.now.duration_since(since).as_secs().max(0));
        grace.saturating_sub(gone).max(MINIMUM_GRACE.min(grace))
    }

    /// Stops a container unless that is under way with no longer a grace.
    fn kill(&mut self, c: &Container, grace: i64, why: Why) {
        let stop = self.input.memory.stops.get(&c.id);
        let under_way = stop.filter(|s| s.attempt == Attempt::UnderWay);
        let due = match under_way {
            Some(s) => s.grace > grace,
            None => self.is_due(stop.map(|s| s.attempt)),
        };
        if due {
            let (again, prepared) = (under_way.is_some(), self.input.memory.prepared.contains_key(&c.id));
            self.actions.push(Action::Kill(Kill { id: c.id.clone(), container: c.name.clone(), grace, why, again, prepared }));
        }
    }

    fn wait(&mut self, c: &Spec, reason: WaitingReason, message: String) {
        self.waiting.push(Waiting { name: c.name.clone(), reason, message });
    }

    fn wake_at(&mut self, at: Timestamp) {
        self.wake = Some(self.wake.map_or(at, |w| w.min(at)));
    }
}

/// Seconds.
const MINIMUM_GRACE: i64 = 2;

/// Grace of a kill by probe: the probe's own, else the pod's.
fn probe_grace(i: &Input<'_>, c: &Spec, why: Why) -> i64 {
    let probe = if why == Why::StartupFailed { &c.startup_probe } else { &c.liveness_probe };
    let own = probe.as_ref().and_then(|p| p.termination_grace_period_seconds);
    let spec = i.pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds);
    own.or(spec).unwrap_or(30).max(1)
}
