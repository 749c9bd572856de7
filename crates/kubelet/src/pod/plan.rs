//! One step of the pod machine.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container as Spec, PodSpec};

use super::{
    Action, Container, ImageState, Input, Kind, Output, Sandbox, State, Volumes, Why, container_hash, containers, grace, is_deleted, is_host_network,
    status,
};
use crate::go_time::go_duration;

/// How long a failed pull is shown as ErrImagePull before it becomes ImagePullBackOff; upstream's
/// next look at the pod, which comes about then.
const BACK_OFF_NOTICE: SignedDuration = SignedDuration::from_secs(2);

/// Decides what happens next to one pod.
pub(crate) fn step(input: &Input<'_>) -> Output {
    let mut plan = Plan { input, actions: Vec::new(), wake: None, waiting: Vec::new() };
    let ending = plan.drive();
    let status = status::render(input, &plan.waiting, ending);
    let finished = (input.gone && input.memory.cleaned) || (input.memory.refused.is_some() && input.gone && plan.actions.is_empty());
    Output { actions: plan.actions, status, wake: plan.wake, finished }
}

/// A container that waits: (name, reason, message).
pub(super) struct Waiting {
    pub name: String,
    pub reason: String,
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
        if i.gone || is_deleted(i.pod) || terminal || late || i.memory.refused.is_some() || self.done(spec) {
            return self.terminate(spec);
        }
        self.sync(spec);
        Ending::No
    }

    /// Every main container ended and none will run again, or an init container failed for good.
    fn done(&self, spec: &PodSpec) -> bool {
        let policy = spec.restart_policy.as_deref().unwrap_or("Always");
        let newest = |c: &Spec| self.input.observed.newest(&c.name);
        let ended = |c: &Spec| newest(c).filter(|c| c.state == State::Exited).map(|c| c.exit_code);
        if policy == "Always" {
            return false;
        }
        let init_failed = policy == "Never" && containers(spec).any(|(kind, c)| kind == Kind::Init && ended(c).is_some_and(|code| code != 0));
        init_failed || spec.containers.iter().all(|c| ended(c).is_some_and(|code| policy == "Never" || code == 0))
    }

    fn sync(&mut self, spec: &PodSpec) {
        let i = self.input;
        let network = i.network_ready || is_host_network(i.pod);
        let sandbox = i.observed.sandboxes.first();
        let usable = sandbox.filter(|s| s.ready && (is_host_network(i.pod) || !s.ips.is_empty()));
        self.volumes();
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
        match &i.memory.volumes {
            Volumes::Ready => {}
            Volumes::NotReady => self.actions.push(Action::MountVolumes),
            Volumes::Failed(f) if f.retry_at <= i.now => self.actions.push(Action::MountVolumes),
            Volumes::Failed(f) => self.wake_at(f.retry_at),
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
        if busy {
            return;
        }
        if let Some(old) = old
            && !i.memory.stopped.contains(&old.id)
        {
            self.actions.push(Action::StopSandbox { id: old.id.clone() });
            return;
        }
        // A pod that must not restart stays down once its sandbox is lost.
        let never = spec.restart_policy.as_deref() == Some("Never");
        if never && old.is_some() && !i.observed.containers.is_empty() {
            return;
        }
        match &i.memory.sandbox_failure {
            Some(f) if f.retry_at > i.now => self.wake_at(f.retry_at),
            _ => self.actions.push(Action::CreateSandbox { attempt: old.map_or(0, |s| s.attempt + 1) }),
        }
    }

    fn containers(&mut self, spec: &PodSpec, sandbox: &Sandbox) {
        let i = self.input;
        // They start once, whatever the others do, and never again.
        for c in i.ephemeral.iter().filter(|c| i.observed.newest(&c.name).is_none_or(|o| o.state == State::Created)) {
            self.start(c);
        }
        let initialized = spec.containers.iter().any(|c| i.observed.newest_in(&c.name, &sandbox.id).is_some());
        for (kind, c) in containers(spec) {
            let here = i.observed.newest_in(&c.name, &sandbox.id);
            match kind {
                Kind::Init if initialized => {}
                Kind::Init => {
                    if !self.init(spec, c, here) {
                        return;
                    }
                }
                Kind::Sidecar => {
                    let started = self.main(spec, c, here, true);
                    if !started && !initialized {
                        return;
                    }
                }
                Kind::Main => {
                    self.main(spec, c, here, false);
                }
            }
        }
        self.remove_old(spec);
    }

    /// Returns whether the next container may start.
    fn init(&mut self, spec: &PodSpec, c: &Spec, here: Option<&Container>) -> bool {
        match here {
            Some(h) if h.state == State::Exited && h.exit_code == 0 => return true,
            Some(h) if h.state == State::Running => {}
            Some(h) if h.state == State::Exited && spec.restart_policy.as_deref() == Some("Never") => {}
            Some(h) if h.state == State::Unknown => self.kill(h, grace(self.input.pod), Why::SandboxGone),
            _ => self.start(c),
        }
        false
    }

    /// Keeps a main container or a sidecar as it should be. Returns whether it counts as started.
    fn main(&mut self, spec: &PodSpec, c: &Spec, here: Option<&Container>, sidecar: bool) -> bool {
        let i = self.input;
        let policy = if sidecar { "Always" } else { spec.restart_policy.as_deref().unwrap_or("Always") };
        match here {
            Some(h) if h.state == State::Running => {
                let health = i.memory.health.get(&h.id);
                if h.hash != container_hash(c) {
                    self.kill(h, grace(i.pod), Why::Changed);
                } else if health.is_some_and(|p| !p.alive) {
                    let why = if health.is_some_and(|p| p.started) { Why::Unhealthy } else { Why::StartupFailed };
                    self.kill(h, probe_grace(i, c, why), why);
                }
                return status::started(i, c, h);
            }
            Some(h) if h.state == State::Unknown => self.kill(h, grace(i.pod), Why::SandboxGone),
            Some(h) if h.state == State::Exited => {
                let again = match policy {
                    "Always" => true,
                    "OnFailure" => h.exit_code != 0,
                    _ => h.hash != container_hash(c) && i.memory.stopping.contains_key(&h.id),
                };
                if again {
                    self.start(c);
                }
            }
            _ => {
                // Another sandbox's run may have finished the job already.
                let before = i.observed.newest(&c.name);
                let done = before.is_some_and(|b| b.state == State::Exited && policy == "OnFailure" && b.exit_code == 0);
                if !done {
                    self.start(c);
                }
            }
        }
        false
    }

    /// Gets the image, then starts the container, unless a back-off holds.
    fn start(&mut self, c: &Spec) {
        let i = self.input;
        if let Some(b) = i.observed.ended(&c.name, i.memory) {
            let key = format!("{}/{}", c.name, container_hash(c));
            let since = b.finished_at.unwrap_or(i.now);
            if let Some((wait, until)) = i.memory.restarts.holding(&key, since, i.now) {
                let meta = &i.pod.metadata;
                let message = format!(
                    "back-off {} restarting failed container={} pod={}_{}({})",
                    go_duration(wait.unsigned_abs()),
                    c.name,
                    meta.name.as_deref().unwrap_or_default(),
                    meta.namespace.as_deref().unwrap_or_default(),
                    meta.uid.as_deref().unwrap_or_default(),
                );
                self.wait(c, "CrashLoopBackOff", message);
                self.wake_at(until);
                return;
            }
        }
        if let Some(f) = i.memory.failures.get(&c.name) {
            self.wait(c, &f.reason, f.message.clone());
            if f.retry_at > i.now {
                self.wake_at(f.retry_at);
                return;
            }
        }
        match i.memory.images.get(&c.name) {
            Some(ImageState::Present(_)) => {
                let restarts = status::next_restart(i, c);
                self.actions.push(Action::Start { container: c.name.clone(), restarts });
            }
            Some(ImageState::Pulling) => {}
            Some(ImageState::Failed(f)) => {
                self.wait(c, &f.reason, f.message.clone());
                let notice = f.failed_at + BACK_OFF_NOTICE;
                if f.retry_at > i.now {
                    self.wake_at(f.retry_at);
                    if f.reason == "ErrImagePull" && notice > i.now {
                        self.wake_at(notice);
                    } else if f.reason == "ErrImagePull" {
                        self.actions.push(Action::BackOffPull { container: c.name.clone() });
                    }
                } else {
                    self.actions.push(Action::EnsureImage { container: c.name.clone() });
                }
            }
            None => self.actions.push(Action::EnsureImage { container: c.name.clone() }),
        }
    }

    /// Old attempts go, but the newest dead one stays for its logs and last state.
    fn remove_old(&mut self, spec: &PodSpec) {
        for (_, c) in containers(spec) {
            let dead = self.input.observed.containers.iter().filter(|o| o.name == c.name).skip(1).filter(|o| o.state == State::Exited).skip(1);
            for old in dead {
                self.actions.push(Action::Remove { id: old.id.clone() });
            }
        }
    }

    fn terminate(&mut self, spec: &PodSpec) -> Ending {
        let i = self.input;
        let running: Vec<&Container> = i.observed.containers.iter().filter(|c| matches!(c.state, State::Running | State::Unknown)).collect();
        let is = |c: &Container, kind: Kind| containers(spec).any(|(k, s)| k == kind && s.name == c.name);
        let others: Vec<&Container> = running.iter().copied().filter(|c| !is(c, Kind::Sidecar)).collect();
        if !others.is_empty() {
            for c in others {
                self.kill(c, grace(i.pod), Why::PodEnds);
            }
            return Ending::Stopping;
        }
        if !running.is_empty() {
            // Sidecars end after the rest, the last one declared first.
            let last = containers(spec).rev().find_map(|(_, s)| running.iter().find(|c| c.name == s.name));
            for c in last.map_or(running.clone(), |c| vec![*c]) {
                self.kill(c, grace(i.pod), Why::PodEnds);
            }
            return Ending::Stopping;
        }
        for s in i.observed.sandboxes.iter().filter(|s| !i.memory.stopped.contains(&s.id)) {
            self.actions.push(Action::StopSandbox { id: s.id.clone() });
        }
        if !self.actions.is_empty() {
            return Ending::Over;
        }
        if i.gone || is_deleted(i.pod) {
            if !i.memory.cleaned {
                self.actions.push(Action::CleanUp);
            } else if !i.gone {
                self.actions.push(Action::DeleteFromApi);
            }
        } else if !i.memory.volumes_down {
            self.actions.push(Action::TearDownVolumes);
        }
        Ending::Over
    }

    /// Stops a container unless that is under way with no longer a grace.
    fn kill(&mut self, c: &Container, grace: i64, why: Why) {
        if self.input.memory.stopping.get(&c.id).is_some_and(|g| *g <= grace) {
            return;
        }
        self.actions.push(Action::Kill { id: c.id.clone(), container: c.name.clone(), grace, why });
    }

    fn wait(&mut self, c: &Spec, reason: &str, message: String) {
        self.waiting.push(Waiting { name: c.name.clone(), reason: reason.to_owned(), message });
    }

    fn wake_at(&mut self, at: Timestamp) {
        self.wake = Some(self.wake.map_or(at, |w| w.min(at)));
    }
}

/// Grace of a kill by probe: the probe's own, else the pod's.
fn probe_grace(i: &Input<'_>, c: &Spec, why: Why) -> i64 {
    let probe = if why == Why::StartupFailed { &c.startup_probe } else { &c.liveness_probe };
    let own = probe.as_ref().and_then(|p| p.termination_grace_period_seconds);
    let spec = i.pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds);
    own.or(spec).unwrap_or(30).max(1)
}
