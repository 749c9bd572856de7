//! One task per pod UID: observe, step, apply, report, wait.
//!
//! Inputs: the pod from the API, wake-ups that carry no data, results of background work (pulls,
//! stops, probes). The worker alone changes its [`Memory`], so nothing runs twice at once for one
//! pod. It ends when the pod is gone from the API and from the node.

mod apply;
mod errors;
mod files;
mod start;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cluster::EventType;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ObjectReference, Pod};
use thiserror_ext::AsReport as _;
use tokio::sync::mpsc;

use crate::agent::{Agent, key, uid};
use crate::claims::Claims;
use crate::error::RuntimeError;
use crate::images::{ImageError, Ready};
use crate::pod::admit::{NodeView, admit};
use crate::pod::{Action, ImageState, Input, Memory, NodeInfo, Observed, Output, State, Volumes, step};
use crate::probes::{self, News, Prober};
use crate::volumes::PodDirs;

/// After the runtime could not be asked.
const RETRY: Duration = Duration::from_secs(1);

/// Messages to a worker.
#[derive(Debug)]
pub(crate) enum Note {
    /// Something at the runtime changed.
    Wake,
    /// A Secret or ConfigMap the pod uses changed.
    Sources,
    /// The pod as the API has it now.
    Pod(Arc<Pod>),
    /// The API has it no more.
    Gone,
    /// A pull ended.
    Pulled(String, Result<Ready, ImageError>),
    /// A stop ended; after a failure this comes when it is time to try again.
    Stopped(String, Result<(), RuntimeError>),
    /// A result of a container probe.
    Probe(String, News),
}

/// The state of one worker.
pub(crate) struct Worker {
    agent: Arc<Agent>,
    uid: String,
    pod: Arc<Pod>,
    gone: bool,
    dirs: PodDirs,
    memory: Memory,
    tell: mpsc::UnboundedSender<Note>,
    notes: mpsc::UnboundedReceiver<Note>,
    probers: BTreeMap<String, Prober>,
    /// Termination messages by container id.
    messages: BTreeMap<String, String>,
    /// Places of the volumes, once ready.
    places: BTreeMap<String, host::PodPath>,
    /// What the pod's claims are bound to, once all are.
    claims: Option<Claims>,
    /// Volume content may have changed.
    stale_volumes: bool,
    /// The last action did not touch the pod at the runtime: no need to ask again.
    unchanged: bool,
    /// What the runtime held at the last look.
    observed: Observed,
    /// The last problem of a sandbox's network that was reported: (sandbox, reason).
    reported_problem: Option<(String, String)>,
    /// Addresses of the current sandbox.
    pod_ips: Vec<String>,
    /// An action asked to be tried again at this time.
    retry_at: Option<Timestamp>,
}

/// Works for one pod until nothing of it is left.
pub(crate) async fn run(agent: Arc<Agent>, pod: Arc<Pod>, tell: mpsc::UnboundedSender<Note>, notes: mpsc::UnboundedReceiver<Note>) {
    let dirs = match PodDirs::new(&agent.root, &agent.dir, &pod) {
        Ok(dirs) => dirs,
        Err(error) => {
            tracing::error!(pod = %key(&pod), error = %error.as_report(), "the pod's names make no path; it is not run");
            return;
        }
    };
    let mut worker = Worker {
        uid: uid(&pod),
        agent,
        pod,
        gone: false,
        dirs,
        memory: Memory::default(),
        tell,
        notes,
        probers: BTreeMap::new(),
        messages: BTreeMap::new(),
        places: BTreeMap::new(),
        claims: None,
        stale_volumes: false,
        unchanged: false,
        observed: Observed::default(),
        reported_problem: None,
        pod_ips: Vec::new(),
        retry_at: None,
    };
    worker.admit().await;
    worker.work().await;
    worker.agent.sources.release(&worker.uid);
    worker.agent.tokens.release(&worker.uid);
}

impl Worker {
    /// Decides once whether the node takes the pod. A pod that has run here is not asked again.
    async fn admit(&mut self) {
        let agent = self.agent.clone();
        // A class that cannot be read is reported when the sandbox is made.
        let handler = self.handler().await.unwrap_or_default();
        let isolated = agent.side.isolates(&self.pod) || (agent.side.os.is_windows() && handler.contains("hypervisor"));
        let mut admitted = agent.admitted();
        let status = self.pod.status.as_ref();
        let phase = status.and_then(|s| s.phase.as_deref());
        if matches!(phase, Some("Succeeded" | "Failed")) {
            return;
        }
        let ran = status.and_then(|s| s.container_statuses.as_ref()).is_some_and(|l| !l.is_empty());
        if !ran && !self.ending() {
            let node = agent.node.get(cluster::Key::cluster(&agent.side.node_name));
            let view = NodeView { os: agent.side.os, node: node.as_deref(), allocatable: &agent.allocatable, isolated };
            let verdict = admit(&self.pod, &view, admitted.values().map(|p| &**p));
            if let Err(refusal) = verdict {
                self.event(None, EventType::Warning, refusal.reason, refusal.message.clone());
                self.memory.refused = Some(refusal);
                return;
            }
        }
        admitted.insert(self.uid.clone(), self.pod.clone());
    }

    fn ending(&self) -> bool {
        self.gone || crate::pod::is_deleted(&self.pod)
    }

    async fn work(&mut self) {
        loop {
            let out = match self.look().await {
                Ok(out) => out,
                Err(error) => {
                    tracing::warn!(pod = %key(&self.pod), error = %error.as_report(), "asking the runtime about a pod failed; trying again");
                    self.wait(Some(Timestamp::now() + RETRY)).await;
                    continue;
                }
            };
            if out.finished {
                return;
            }
            let mut again = false;
            self.unchanged = !out.actions.is_empty();
            for action in out.actions {
                self.unchanged &= matches!(action, Action::MountVolumes | Action::EnsureImage { .. });
                tracing::debug!(pod = %key(&self.pod), "{action}");
                again |= self.apply(action).await;
                self.drain();
            }
            if !again {
                let wake = [out.wake, self.retry_at].into_iter().flatten().min();
                self.wait(wake).await;
            }
        }
    }

    /// Observes and steps; reports the status.
    async fn look(&mut self) -> Result<Output, cri::Error> {
        let mut observed = if std::mem::take(&mut self.unchanged) {
            std::mem::take(&mut self.observed)
        } else {
            crate::runtime::observe(&self.agent.cri, &self.uid).await?
        };
        self.pod_ips = observed.sandboxes.first().map(|s| s.ips.clone()).unwrap_or_default();
        self.tell_problem(&observed);
        self.add_messages(&mut observed);
        self.probe(&observed);
        if self.stale_volumes && self.memory.volumes == Volumes::Ready && !self.ending() {
            self.stale_volumes = false;
            self.refresh_volumes().await;
        }
        let health = self.agent.health.borrow().clone();
        let node = NodeInfo { host_ips: self.agent.host_ips.clone(), runtime: health.name };
        let ephemeral = crate::pod::ephemeral(&self.pod);
        let input = Input {
            ephemeral: &ephemeral,
            pod: &self.pod,
            observed: &observed,
            memory: &self.memory,
            network_ready: health.connects,
            gone: self.gone,
            now: Timestamp::now(),
            node: &node,
        };
        let out = step(&input);
        if !self.memory.cleaned && !self.gone {
            self.agent.statuses.report(&self.uid, key(&self.pod), &out.status);
        }
        if matches!(out.status.phase.as_deref(), Some("Succeeded" | "Failed")) && observed.containers.iter().all(|c| c.state == State::Exited) {
            self.agent.admitted().remove(&self.uid);
        }
        self.observed = observed;
        Ok(out)
    }

    /// Says once why the network of the pod's sandbox does not work.
    fn tell_problem(&mut self, observed: &Observed) {
        let problem = observed.sandboxes.first().and_then(|s| Some((s.id.clone(), s.problem.clone()?)));
        if problem == self.reported_problem {
            return;
        }
        if let Some((sandbox, reason)) = problem.as_ref().filter(|_| !self.ending()) {
            tracing::warn!(pod = %key(&self.pod), sandbox, reason, "the network of a pod's sandbox does not work");
            self.event(None, EventType::Warning, "NetworkNotReady", format!("network is not ready: {reason}"));
        }
        self.reported_problem = problem;
    }

    /// Waits for news, at most until `wake`.
    async fn wait(&mut self, wake: Option<Timestamp>) {
        let resync = self.agent.polls.pod;
        let until = wake.map_or(resync, |at| {
            let left = at.duration_since(Timestamp::now());
            Duration::try_from(left).unwrap_or_default().min(resync)
        });
        self.unchanged = false;
        match tokio::time::timeout(until, self.notes.recv()).await {
            Ok(Some(note)) => self.absorb(note),
            Ok(None) => self.gone = true,
            Err(_) => {
                // Tokens age and downward values change without an event.
                self.stale_volumes |= until == resync;
                if self.retry_at.is_some_and(|at| at <= Timestamp::now()) {
                    self.retry_at = None;
                }
            }
        }
        self.drain();
    }

    fn drain(&mut self) {
        while let Ok(note) = self.notes.try_recv() {
            self.absorb(note);
        }
    }

    fn absorb(&mut self, note: Note) {
        match note {
            Note::Wake => self.unchanged = false,
            Note::Sources => {
                self.stale_volumes = true;
                // What failed for want of a key may succeed now.
                self.memory.failures.clear();
                if let Volumes::Failed(f) = &mut self.memory.volumes {
                    f.retry_at = Timestamp::now();
                }
            }
            Note::Pod(pod) => {
                self.stale_volumes |= pod.metadata.labels != self.pod.metadata.labels || pod.metadata.annotations != self.pod.metadata.annotations;
                self.pod = pod;
            }
            Note::Gone => self.gone = true,
            Note::Pulled(container, result) => self.pulled(container, result),
            Note::Stopped(id, result) => {
                self.memory.stopping.remove(&id);
                if let Err(error) = result {
                    tracing::warn!(pod = %key(&self.pod), container = id, error = %error.as_report(), "stopping a container failed; trying again");
                }
            }
            Note::Probe(id, news) => self.probed(id, news),
        }
    }

    fn probed(&mut self, id: String, news: News) {
        match news {
            News::Health(health) => {
                self.memory.health.insert(id, health);
            }
            News::Failed(which, why) => self.unhealthy(&id, format!("{} probe failed: {}", which.name(), why.to_report_string().trim_end())),
            News::Errored(which, why) => {
                self.unhealthy(&id, format!("{} probe errored and resulted in unknown state: {}", which.name(), why.to_report_string().trim_end()));
            }
        }
    }

    /// The event about a container's probe.
    fn unhealthy(&self, id: &str, message: String) {
        let name = self.observed.containers.iter().find(|c| c.id == id).map(|c| c.name.clone());
        self.event(name.as_deref(), EventType::Warning, "Unhealthy", message);
    }

    /// Starts probers of running containers and ends the others.
    fn probe(&mut self, observed: &Observed) {
        let ending = self.ending();
        let running = |id: &str| observed.containers.iter().any(|c| c.id == id && c.state == State::Running);
        self.probers.retain(|id, _| running(id) && !ending);
        self.memory.health.retain(|id, _| running(id));
        let Some(spec) = &self.pod.spec else { return };
        for c in observed.containers.iter().filter(|c| c.state == State::Running && !ending) {
            let spec = crate::pod::containers(spec).map(|(_, s)| s).find(|s| s.name == c.name);
            let Some(spec) = spec.filter(|s| probes::has_probes(s)) else {
                continue;
            };
            if self.probers.contains_key(&c.id) {
                continue;
            }
            let target = self.target(spec, &c.id);
            let ran = c.started_at.map(|at| Timestamp::now().duration_since(at));
            let since = ran.and_then(|d| Duration::try_from(d).ok()).unwrap_or_default();
            let health = probes::first_health(spec, &c.id, crate::pod::status::old(&self.pod, &c.name));
            self.memory.health.insert(c.id.clone(), health);
            let (tell, id) = (self.tell.clone(), c.id.clone());
            let prober = probes::start(spec.clone(), target, health, since, move |news| {
                let _ = tell.send(Note::Probe(id.clone(), news));
            });
            self.probers.insert(c.id.clone(), prober);
        }
    }

    /// How probes and hooks reach a container.
    fn target(&self, spec: &Container, id: &str) -> probes::Target {
        let on_host = crate::pod::is_host_network(&self.pod);
        let ips = if on_host { &self.agent.host_ips } else { &self.pod_ips };
        probes::Target { pod_ip: ips.first().cloned().unwrap_or_default(), container: spec.clone(), id: id.to_owned(), cri: self.agent.cri.clone() }
    }

    /// The pod or one of its containers, as events name it.
    fn reference(&self, container: Option<&str>) -> ObjectReference {
        let m = &self.pod.metadata;
        let field = container.map(|name| {
            let spec = self.pod.spec.as_ref();
            let init = spec.is_some_and(|s| s.init_containers.iter().flatten().any(|c| c.name == name));
            let ephemeral = spec.is_some_and(|s| s.ephemeral_containers.iter().flatten().any(|c| c.name == name));
            let list = match (init, ephemeral) {
                (true, _) => "initContainers",
                (_, true) => "ephemeralContainers",
                _ => "containers",
            };
            format!("spec.{list}{{{name}}}")
        });
        ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            name: m.name.clone(),
            namespace: m.namespace.clone(),
            uid: m.uid.clone(),
            resource_version: m.resource_version.clone(),
            field_path: field,
        }
    }

    /// Writes an event about the pod or one of its containers.
    fn event(&self, container: Option<&str>, type_: EventType, reason: &str, message: impl Into<String>) {
        let about = self.reference(container);
        self.agent.recorder.event(&about, type_, reason, None, message);
    }

    fn image_state(&mut self, container: &str, state: ImageState) {
        self.memory.images.insert(container.to_owned(), state);
    }
}
