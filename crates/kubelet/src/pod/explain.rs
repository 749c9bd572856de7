//! Why a pod is not Ready, step by step: from what the machine knows and would do next. Pure, and printable.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container as Spec, ContainerStatus, PodSpec, PodStatus};
use serde::Serialize;

use super::{
    Attempt, Container, Health, Hook, ImageState, Kind, PodState, Retry, SandboxWork, State, Volumes, WaitingReason, containers, is_host_network,
    status,
};
use crate::go_time::go_duration;

/// How far a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Progress {
    Done,
    /// It is under way.
    Working,
    /// It waits for something that the detail names.
    Waiting,
    Failed,
    /// An earlier step is not done.
    NotYet,
}

/// One step on a pod's way to Ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Step {
    /// `admission`, `volumes`, `sandbox`, `network`, `image`, `start`, `probes`, `readiness-gate` or `end`.
    pub step: &'static str,
    /// The container that it is about, where it is about one; a gate's condition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    pub progress: Progress,
    /// What holds, what is waited for, or what failed and when it is tried again.
    pub detail: String,
}

/// Why a pod is not Ready, or that it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Explanation {
    pub phase: String,
    pub ready: bool,
    pub steps: Vec<Step>,
    /// When the agent looks again although nothing changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_look: Option<Timestamp>,
}

/// The newest warnings about a pod, by the container they are about (empty for the pod) and their reason.
pub(crate) type Warnings = BTreeMap<(String, String), String>;

/// Explains a pod from the state of its machine. `warnings` has the words of failures whose state has none.
pub(crate) fn explain(state: &PodState, warnings: &Warnings, now: Timestamp) -> Explanation {
    let (rendered, next_look) = state.outlook(now);
    let mut steps = Steps { state, warnings, rendered: &rendered, now, list: Vec::new(), blocked: false };
    if let Some(spec) = &state.pod.spec {
        steps.take(spec);
    }
    let list = steps.list;
    let ready = rendered.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
    Explanation { phase: rendered.phase.unwrap_or_else(|| "Pending".into()), ready, steps: list, next_look }
}

struct Steps<'a> {
    state: &'a PodState,
    warnings: &'a Warnings,
    /// The status that the machine would report now.
    rendered: &'a PodStatus,
    now: Timestamp,
    list: Vec<Step>,
    /// A step that the following ones need is not done.
    blocked: bool,
}

impl Steps<'_> {
    fn take(&mut self, spec: &PodSpec) {
        if !self.admission() {
            return;
        }
        self.end();
        self.volumes(spec);
        self.sandbox();
        self.network();
        for (kind, c) in containers(spec) {
            self.container(kind, c);
        }
        for gate in spec.readiness_gates.iter().flatten() {
            self.gate(&gate.condition_type);
        }
    }

    fn push(&mut self, step: &'static str, of: Option<&str>, progress: Progress, detail: impl Into<String>) {
        self.list.push(Step { step, of: of.map(str::to_owned), progress, detail: detail.into() });
    }

    /// Adds a step that those after it need.
    fn need(&mut self, step: &'static str, of: Option<&str>, progress: Progress, detail: impl Into<String>) {
        let progress = if self.blocked && progress != Progress::Done && progress != Progress::Failed { Progress::NotYet } else { progress };
        let detail = if progress == Progress::NotYet { String::new() } else { detail.into() };
        self.push(step, of, progress, detail);
        self.blocked |= progress != Progress::Done;
    }

    fn warning(&self, of: &str, reason: &str) -> Option<String> {
        self.warnings.get(&(of.to_owned(), reason.to_owned())).cloned()
    }

    /// Whether the node has taken the pod.
    fn admission(&mut self) -> bool {
        if !self.state.is_admitted() {
            self.push("admission", None, Progress::Working, "the node looks whether it can take the pod");
            return false;
        }
        if let Some(refusal) = &self.state.memory.refused {
            self.push("admission", None, Progress::Failed, format!("{}: {}; this is final", refusal.reason, refusal.message));
            return false;
        }
        self.push("admission", None, Progress::Done, "the node took the pod");
        true
    }

    fn end(&mut self) {
        if let Some(evicted) = &self.state.memory.evicted {
            self.push("end", None, Progress::Working, format!("{}: {}", evicted.reason, evicted.message));
        } else if self.state.is_ending() {
            let running = self.state.observed.containers.iter().filter(|c| c.state == State::Running).count();
            let failed = match self.state.memory.ending {
                Some(Attempt::RetryAt(at)) => format!("; its last step failed, and is tried again {}", self.until(at)),
                _ => String::new(),
            };
            self.push("end", None, Progress::Working, format!("the pod is deleted; {running} containers still run{failed}"));
        } else if status::is_terminal(&self.state.pod) {
            self.push("end", None, Progress::Done, "the pod has ended, and does not start again");
        }
    }

    fn volumes(&mut self, spec: &PodSpec) {
        let count = spec.volumes.as_ref().map_or(0, Vec::len);
        let why = self.warning("", "FailedMount");
        match self.state.memory.volumes {
            Volumes::Ready => self.need("volumes", None, Progress::Done, format!("{count} mounted")),
            Volumes::NotReady => self.need("volumes", None, Progress::Working, format!("{count} are mounted next")),
            Volumes::Mounting(before) => {
                let again = before.map(|retry| format!(" after {} failures", retry.count)).unwrap_or_default();
                let last = why.filter(|_| before.is_some()).map(|why| format!("; the last one: {why}")).unwrap_or_default();
                self.need("volumes", None, Progress::Working, format!("{count} are being mounted{again}{last}"));
            }
            Volumes::Failed(retry) => {
                let detail = self.failed(why.unwrap_or_else(|| "they cannot be mounted".into()), retry);
                self.need("volumes", None, Progress::Failed, detail);
            }
        }
    }

    fn sandbox(&mut self) {
        let newest = self.state.observed.sandboxes.first();
        let why = self.warning("", "FailedCreatePodSandBox");
        match (&self.state.memory.sandbox, newest) {
            (SandboxWork::Creating(None), _) => self.need("sandbox", None, Progress::Working, "it is being made, with its network"),
            (SandboxWork::Creating(Some(retry)), _) => {
                let last = why.map(|why| format!("; the last one: {why}")).unwrap_or_default();
                self.need("sandbox", None, Progress::Working, format!("it is being made after {} failures{last}", retry.count));
            }
            (_, Some(s)) if s.ready => {
                let age = s.created_at.map(|at| format!(", made {} ago", rounded(self.now.duration_since(at)))).unwrap_or_default();
                self.need("sandbox", None, Progress::Done, format!("{}, attempt {}{age}", short(&s.id), s.attempt));
            }
            (SandboxWork::Failed(retry), _) => {
                let detail = self.failed(why.unwrap_or_else(|| "it cannot be made".into()), *retry);
                self.need("sandbox", None, Progress::Failed, detail);
            }
            _ if !self.state.node.network_ready && !is_host_network(&self.state.pod) => {
                self.need("sandbox", None, Progress::Waiting, "the network of the node is not ready: look at the conditions of the Node");
            }
            (SandboxWork::Idle, Some(s)) => self.need("sandbox", None, Progress::Working, format!("{} is lost, and is replaced", short(&s.id))),
            (SandboxWork::Idle, None) => self.need("sandbox", None, Progress::Working, "it is made next"),
        }
    }

    fn network(&mut self) {
        if is_host_network(&self.state.pod) {
            return self.need("network", None, Progress::Done, "the node's own");
        }
        match self.state.observed.sandboxes.first() {
            Some(s) if s.problem.is_some() => self.need("network", None, Progress::Failed, s.problem.clone().unwrap_or_default()),
            Some(s) if s.ready && !s.ips.is_empty() => self.need("network", None, Progress::Done, s.ips.join(", ")),
            _ => self.need("network", None, Progress::Waiting, "the sandbox has no address"),
        }
    }

    fn container(&mut self, kind: Kind, c: &Spec) {
        let run = self.state.observed.newest(&c.name);
        let shown = self.shown(&c.name);
        let runs = run.filter(|run| matches!(run.state, State::Running));
        if kind == Kind::Init && run.is_some_and(|run| run.state == State::Exited && run.exit_code == 0) {
            return self.push("start", Some(&c.name), Progress::Done, "the init container succeeded");
        }
        self.image(c, run);
        let before = self.blocked;
        self.start(c, run, shown.as_ref());
        match (kind, runs) {
            // What stands after it waits for its end.
            (Kind::Init, Some(_)) => self.blocked = true,
            (_, Some(run)) => self.probes(c, run),
            _ => {}
        }
        // Main containers do not wait for each other.
        if kind == Kind::Main {
            self.blocked = before;
        }
    }

    fn shown(&self, name: &str) -> Option<ContainerStatus> {
        let all = [&self.rendered.init_container_statuses, &self.rendered.container_statuses];
        all.into_iter().flatten().flatten().find(|s| s.name == name).cloned()
    }

    fn image(&mut self, c: &Spec, run: Option<&Container>) {
        let image = c.image.as_deref().unwrap_or_default();
        let of = Some(c.name.as_str());
        match self.state.memory.images.get(&c.name) {
            _ if run.is_some_and(|run| run.state == State::Running) => self.push("image", of, Progress::Done, image),
            Some(ImageState::Getting(None)) => self.need("image", of, Progress::Working, format!("{image} is looked for and pulled")),
            Some(ImageState::Getting(Some(f))) => {
                self.need(
                    "image",
                    of,
                    Progress::Working,
                    format!("{image} is pulled again after {} failures; the last one: {}", f.retry.count, f.message),
                );
            }
            Some(ImageState::Failed(f)) => {
                let detail = self.failed(format!("{}: {}", f.reason, f.message), f.retry);
                self.need("image", of, Progress::Failed, detail);
            }
            Some(ImageState::Present(_)) => self.need("image", of, Progress::Done, image),
            None if run.is_some() => self.push("image", of, Progress::Done, image),
            None => self.need("image", of, Progress::Working, format!("{image} is looked for next")),
        }
    }

    fn start(&mut self, c: &Spec, run: Option<&Container>, shown: Option<&ContainerStatus>) {
        let of = Some(c.name.as_str());
        let waiting = shown.and_then(|s| s.state.as_ref()?.waiting.as_ref());
        let said = waiting.map(|w| (w.reason.clone().unwrap_or_default(), w.message.clone().unwrap_or_default()));
        if self.state.memory.starting.contains(&c.name) {
            return self.need("start", of, Progress::Working, "it is being created and started");
        }
        if let Some(f) = self.state.memory.failures.get(&c.name) {
            let detail = self.failed(format!("{}: {}", f.reason, f.message), f.retry);
            return self.need("start", of, Progress::Failed, detail);
        }
        let Some(run) = run else { return self.need("start", of, Progress::Working, "it is started next") };
        match run.state {
            State::Running => {
                let age = run.started_at.map(|at| format!(" for {}", rounded(self.now.duration_since(at)))).unwrap_or_default();
                let restarts = if run.restarts == 1 { "1 restart".to_owned() } else { format!("{} restarts", run.restarts) };
                self.push("start", of, Progress::Done, format!("it runs{age}, {restarts}"));
            }
            State::Exited => {
                let why = if run.reason.is_empty() { String::new() } else { format!(" ({})", run.reason) };
                let ended = format!("it ended with exit code {}{why}", run.exit_code);
                let (progress, next) = match said {
                    Some((reason, message)) if reason == WaitingReason::CrashLoopBackOff.to_string() => {
                        (Progress::Failed, format!("; {reason}: {message}{}", self.back_off_ends(c, run)))
                    }
                    Some((reason, message)) if !message.is_empty() => (Progress::Failed, format!("; {reason}: {message}")),
                    _ => (Progress::Waiting, String::new()),
                };
                self.need("start", of, progress, format!("{ended}{next}"));
            }
            State::Created => self.need("start", of, Progress::Working, "it is created and not started"),
            State::Unknown => self.need("start", of, Progress::Waiting, "the runtime does not know its state"),
        }
    }

    fn back_off_ends(&self, c: &Spec, run: &Container) -> String {
        let key = format!("{}/{}", c.name, super::container_hash(c));
        let held = self.state.memory.restarts.holding(&key, self.state.memory.ended_at(run).unwrap_or(self.now), self.now);
        held.map(|(_, until)| format!("; it starts again {}", self.until(until))).unwrap_or_default()
    }

    fn probes(&mut self, c: &Spec, run: &Container) {
        let of = Some(c.name.as_str());
        if let Some(hook) = self.state.memory.hooks.get(&run.id) {
            let (progress, detail) = match hook {
                Hook::Running => {
                    let lasts = run.started_at.map(|at| format!(" for {}", rounded(self.now.duration_since(at)))).unwrap_or_default();
                    (Progress::Working, format!("the postStart hook runs{lasts}"))
                }
                Hook::Failed => {
                    (Progress::Failed, self.warning(&c.name, "FailedPostStartHook").unwrap_or_else(|| "the postStart hook failed".into()))
                }
            };
            return self.push("probes", of, progress, detail);
        }
        let Some(Health { started, ready, alive }) = self.state.memory.health.get(&run.id).copied() else { return };
        let kinds = [
            ("startup", c.startup_probe.is_some(), started),
            ("readiness", c.readiness_probe.is_some(), ready),
            ("liveness", c.liveness_probe.is_some(), alive),
        ];
        // Until the startup probe succeeded, the others do not run.
        let running = kinds.iter().filter(|(kind, has, _)| *has && (*kind == "startup" || started));
        let failing: Vec<&str> = running.filter(|(_, _, ok)| !ok).map(|(kind, ..)| *kind).collect();
        if failing.is_empty() {
            return self.push("probes", of, Progress::Done, "all succeed");
        }
        let last = self.warning(&c.name, "Unhealthy").map(|why| format!("; the last failure: {why}")).unwrap_or_default();
        let progress = if last.is_empty() { Progress::Waiting } else { Progress::Failed };
        self.push("probes", of, progress, format!("the {} probe has not succeeded{last}", failing.join(" and the ")));
    }

    fn gate(&mut self, condition: &str) {
        let held = self.rendered.conditions.iter().flatten().find(|c| c.type_ == condition);
        let (progress, detail) = match held {
            Some(c) if c.status == "True" => (Progress::Done, "True".to_owned()),
            Some(c) => (Progress::Waiting, format!("the condition is {}: {}", c.status, c.message.clone().unwrap_or_default())),
            None => (Progress::Waiting, "no one has set the condition".to_owned()),
        };
        self.push("readiness-gate", Some(condition), progress, detail);
    }

    fn failed(&self, why: String, retry: Retry) -> String {
        let count = if retry.count == 1 { "1 failure".to_owned() } else { format!("{} failures", retry.count) };
        format!("{}; tried again {} ({count})", why.trim_end(), self.until(retry.at))
    }

    fn until(&self, at: Timestamp) -> String {
        if at <= self.now { "now".to_owned() } else { format!("in {}", rounded(at.duration_since(self.now))) }
    }
}

/// A duration in whole seconds, as Go prints it.
fn rounded(duration: SignedDuration) -> String {
    go_duration(SignedDuration::from_secs(duration.as_secs().max(0)).unsigned_abs())
}

/// The first characters of an id: what `crictl` prints.
fn short(id: &str) -> &str {
    id.get(..13).unwrap_or(id)
}

#[cfg(test)]
mod tests;
