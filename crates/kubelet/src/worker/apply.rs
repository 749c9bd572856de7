//! Carrying out the plan's actions. An action returns whether to look again at once; what failed
//! leaves a retry time in the memory.

use std::time::{Duration, Instant};

use cluster::EventType;
use cri::v1;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::Api;
use kube::api::{DeleteParams, Preconditions};
use thiserror_ext::AsReport as _;

use super::errors::{HookError, MountError, RuntimeClassError, SandboxError};
use super::{Note, Worker};
use crate::agent::key;
use crate::claims::{self, Claims};
use crate::cri_config;
use crate::env::Facts;
use crate::error::RuntimeError;
use crate::go_time::go_duration;
use crate::images::{self, ImageError, Policy, Ready};
use crate::pod::{Action, Failure, ImageState, Volumes, Why};
use crate::probes;
use crate::sources::{Fetched, Kind, SourceError};
use crate::volumes::{self, Content};

/// Waits after failures: (first, longest).
type Waits = (SignedDuration, SignedDuration);
const VOLUME_WAITS: Waits = (SignedDuration::from_millis(500), SignedDuration::from_secs(122));
const SANDBOX_WAITS: Waits = (SignedDuration::from_millis(500), SignedDuration::from_secs(10));
const PULL_WAITS: Waits = (SignedDuration::from_secs(10), SignedDuration::from_secs(300));
const MINIMUM_STOP: Duration = Duration::from_secs(2);
const STOP_RETRY: Duration = Duration::from_secs(1);
const API_RETRY: SignedDuration = SignedDuration::from_secs(1);

impl Worker {
    pub(super) async fn apply(&mut self, action: Action) -> bool {
        match action {
            Action::MountVolumes => self.mount_volumes().await,
            Action::CreateSandbox { attempt } => self.create_sandbox(attempt).await,
            Action::StopSandbox { id } => self.stop_sandbox(id).await,
            Action::EnsureImage { container } => self.ensure_image(container).await,
            Action::BackOffPull { container } => self.back_off_pull(&container),
            Action::Start { container, restarts } => self.start_container(&container, restarts).await,
            Action::Kill { id, container, grace, why } => self.kill(id, container, grace, why),
            Action::Remove { id } => self.remove(id).await,
            Action::TearDownVolumes => self.tear_down().await,
            Action::CleanUp => self.clean_up().await,
            Action::DeleteFromApi => self.delete_from_api().await,
        }
    }

    /// What the downward API needs beside the pod.
    pub(super) fn facts(&self) -> Facts {
        let on_host = crate::pod::is_host_network(&self.pod);
        Facts {
            pod_ips: if on_host { self.agent.host_ips.clone() } else { self.pod_ips.clone() },
            host_ips: self.agent.host_ips.clone(),
            allocatable: self.agent.allocatable.clone(),
        }
    }

    /// Reads the objects that are named, watching them from now on.
    pub(super) async fn fetch(&self, wanted: Vec<(Kind, String)>) -> Result<Fetched, SourceError> {
        let ns = self.pod.metadata.namespace.clone().unwrap_or_default();
        let mut out = Fetched::new();
        for (kind, name) in wanted {
            if out.contains_key(&(kind, name.clone())) {
                continue;
            }
            let data = self.agent.sources.get(&self.uid, kind, &ns, &name).await?;
            out.insert((kind, name), data);
        }
        Ok(out)
    }

    async fn set_up_volumes(&mut self) -> Result<(), MountError> {
        let (objects, tokens) = volumes::references(&self.pod);
        let sources = self.fetch(objects).await?;
        let tokens = self.agent.tokens.get(&self.pod, &tokens, Timestamp::now()).await?;
        let facts = self.facts();
        if self.claims.is_none() {
            let node = self.agent.node.get(cluster::Key::cluster(&self.agent.side.node_name));
            self.claims = Some(claims::resolve(&self.agent.client, &self.pod, node.as_deref()).await?);
        }
        let none = Claims::new();
        let claims = self.claims.as_ref().unwrap_or(&none);
        let content = Content { pod: &self.pod, sources: &sources, tokens: &tokens, facts: &facts, claims };
        self.places = volumes::set_up(&self.agent.root, &self.dirs, &self.pod, &content)?;
        Ok(())
    }

    async fn mount_volumes(&mut self) -> bool {
        match self.set_up_volumes().await {
            Ok(()) => self.memory.volumes = Volumes::Ready,
            Err(error) => {
                let message = error.to_report_string();
                self.event(None, EventType::Warning, error.reason(), message.clone());
                let before = match &self.memory.volumes {
                    Volumes::Failed(f) => Some(f),
                    _ => None,
                };
                let failure = Failure::next(before, error.reason(), message, Timestamp::now(), VOLUME_WAITS);
                self.memory.volumes = Volumes::Failed(failure);
            }
        }
        true
    }

    /// Brings the content of mounted volumes up to date; a failure leaves the old content.
    pub(super) async fn refresh_volumes(&mut self) {
        if let Err(error) = self.set_up_volumes().await {
            self.event(None, EventType::Warning, error.reason(), error.to_report_string());
        }
    }

    pub(super) async fn handler(&self) -> Result<String, RuntimeClassError> {
        let class = self.pod.spec.as_ref().and_then(|s| s.runtime_class_name.clone());
        let Some(class) = class.filter(|c| !c.is_empty()) else {
            return Ok(String::new());
        };
        let api: Api<RuntimeClass> = Api::all(self.agent.client.clone());
        match api.get_opt(&class).await {
            Ok(Some(found)) => Ok(found.handler),
            Ok(None) => Err(RuntimeClassError::Missing { class }),
            Err(error) => Err(RuntimeClassError::Read { class, source: error.into() }),
        }
    }

    async fn create_sandbox(&mut self, attempt: u32) -> bool {
        if attempt > 0 {
            self.event(None, EventType::Normal, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.");
        }
        let made = async {
            let runtime_handler = self.handler().await?;
            self.agent.root.create_dir_all(&self.dirs.logs, 0o755)?;
            let config = cri_config::sandbox(&self.agent.side, &self.pod, attempt, &self.dirs.logs);
            let request = v1::RunPodSandboxRequest { config: Some(config), runtime_handler };
            self.agent.cri.run_pod_sandbox(request).await.map_err(|error| SandboxError::Run(error.into()))
        };
        match made.await {
            Ok(_) => {
                self.memory.sandbox_failure = None;
                // Images are looked at again: a new sandbox starts everything anew.
                self.memory.images.retain(|_, s| matches!(s, ImageState::Pulling));
            }
            Err(error) => {
                let message = error.to_report_string();
                tracing::warn!(pod = %key(&self.pod), attempt, reason = error.reason(), "{message}");
                self.event(None, EventType::Warning, error.reason(), message.clone());
                let before = self.memory.sandbox_failure.as_ref();
                let failure = Failure::next(before, error.reason(), message, Timestamp::now(), SANDBOX_WAITS);
                self.memory.sandbox_failure = Some(failure);
            }
        }
        true
    }

    async fn stop_sandbox(&mut self, id: String) -> bool {
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: id.clone() };
        match self.agent.cri.stop_pod_sandbox(request).await {
            Err(e) if !e.is_not_found() => {
                let error = SandboxError::Stop(e.into());
                let message = error.to_report_string();
                tracing::warn!(pod = %key(&self.pod), sandbox = id, reason = error.reason(), "{message}");
                self.event(None, EventType::Warning, error.reason(), message);
                self.retry_at = Some(Timestamp::now() + API_RETRY);
                false
            }
            _ => {
                self.memory.stopped.insert(id);
                true
            }
        }
    }

    pub(super) fn spec_of(&self, name: &str) -> Option<Container> {
        let spec = self.pod.spec.as_ref()?;
        let own = crate::pod::containers(spec).map(|(_, c)| c).find(|c| c.name == name).cloned();
        own.or_else(|| crate::pod::ephemeral(&self.pod).into_iter().find(|c| c.name == name))
    }

    async fn ensure_image(&mut self, name: String) -> bool {
        let Some(spec) = self.spec_of(&name) else {
            return false;
        };
        let image = spec.image.clone().unwrap_or_default();
        let policy = Policy::of(spec.image_pull_policy.as_deref(), &image);
        match self.agent.images.present(&image, policy).await {
            Ok(Some(reference)) => {
                let message = format!("Container image {image:?} already present on machine");
                self.event(Some(&name), EventType::Normal, "Pulled", message);
                self.image_state(&name, ImageState::Present(reference));
            }
            Ok(None) => {
                self.event(Some(&name), EventType::Normal, "Pulling", format!("Pulling image {image:?}"));
                let auth = self.credentials(&image).await;
                let sandbox = cri_config::sandbox(&self.agent.side, &self.pod, 0, &self.dirs.logs);
                let (agent, tell, container) = (self.agent.clone(), self.tell.clone(), name.clone());
                let about = self.reference(Some(&name));
                let before = self.memory.images.get(&name).cloned();
                self.image_state(&name, ImageState::Pulling);
                if let Some(ImageState::Failed(f)) = before {
                    self.memory.pull_failures.insert(name, f);
                }
                tokio::spawn(async move {
                    let say = |message| agent.recorder.event(&about, EventType::Normal, "Pulling", None, message);
                    let result = agent.images.pull(&image, auth, sandbox, say).await;
                    let _ = tell.send(Note::Pulled(container, result));
                });
            }
            Err(error) => self.pull_failed(&name, &error),
        }
        true
    }

    async fn credentials(&self, image: &str) -> Vec<v1::AuthConfig> {
        let names = self.pod.spec.iter().flat_map(|s| s.image_pull_secrets.iter().flatten());
        let wanted: Vec<_> = names.map(|r| (Kind::Secret, r.name.clone())).collect();
        if wanted.is_empty() {
            return Vec::new();
        }
        // A missing pull secret is no error: the image may be public, or another secret serve it.
        let (mut fetched, mut lost) = (Fetched::new(), Vec::new());
        for (kind, name) in wanted {
            match self.fetch(vec![(kind, name.clone())]).await {
                Ok(found) if found.values().all(Option::is_some) => fetched.extend(found),
                _ => lost.push(name),
            }
        }
        if !lost.is_empty() {
            let message = format!("Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.", lost.join(", "));
            self.event(None, EventType::Warning, "FailedToRetrieveImagePullSecret", message);
        }
        let items: Vec<_> = fetched.values().flatten().map(|d| &d.items).collect();
        images::credentials(image, &items)
    }

    pub(super) fn pulled(&mut self, name: String, result: Result<Ready, ImageError>) {
        let image = self.spec_of(&name).and_then(|c| c.image).unwrap_or_default();
        match result {
            Ok(ready) => {
                self.memory.pull_failures.remove(&name);
                if let Some((own, whole)) = ready.pulled {
                    let message = format!(
                        "Successfully pulled image {image:?} in {} ({} including waiting). Image size: {} bytes.",
                        go_duration(own),
                        go_duration(whole),
                        ready.size
                    );
                    self.event(Some(&name), EventType::Normal, "Pulled", message);
                }
                self.image_state(&name, ImageState::Present(ready.reference));
            }
            Err(error) => self.pull_failed(&name, &error),
        }
    }

    fn pull_failed(&mut self, name: &str, error: &ImageError) {
        self.event(Some(name), EventType::Warning, error.event_reason(), error.to_report_string());
        self.event(Some(name), EventType::Warning, "Failed", format!("Error: {}", error.reason()));
        let before = match self.memory.images.get(name) {
            Some(ImageState::Failed(f)) => Some(f.clone()),
            _ => self.memory.pull_failures.remove(name),
        };
        let failure = Failure::next(before.as_ref(), error.reason(), error.message(), Timestamp::now(), PULL_WAITS);
        self.image_state(name, ImageState::Failed(failure));
    }

    /// A failed pull becomes a back-off, with what failed in its message.
    fn back_off_pull(&mut self, name: &str) -> bool {
        let image = self.spec_of(name).and_then(|c| c.image).unwrap_or_default();
        let Some(ImageState::Failed(failure)) = self.memory.images.get_mut(name) else {
            return false;
        };
        failure.reason = "ImagePullBackOff".into();
        failure.message = format!("Back-off pulling image {image:?}: ErrImagePull: {}", failure.message);
        self.event(Some(name), EventType::Normal, "BackOff", format!("Back-off pulling image {image:?}"));
        self.event(Some(name), EventType::Warning, "Failed", "Error: ImagePullBackOff");
        true
    }

    fn kill(&mut self, id: String, name: String, grace: i64, why: Why) -> bool {
        let message = match why {
            Why::PodEnds | Why::SandboxGone => format!("Stopping container {name}"),
            Why::Changed => format!("Container {name} definition changed, will be restarted"),
            Why::Unhealthy => format!("Container {name} failed liveness probe, will be restarted"),
            Why::StartupFailed => {
                format!("Container {name} failed startup probe, will be restarted")
            }
        };
        self.event(Some(&name), EventType::Normal, "Killing", message);
        // A second stop with a shorter grace does not run the hook again.
        let first = self.memory.stopping.insert(id.clone(), grace).is_none();
        let (agent, tell) = (self.agent.clone(), self.tell.clone());
        let spec = self.spec_of(&name).filter(|_| first);
        let hook = spec.and_then(|c| Some((c.lifecycle.clone()?.pre_stop?, c)));
        let hook = hook.map(|(handler, c)| (handler, self.target(&c, &id)));
        let about = self.reference(Some(&name));
        tokio::spawn(async move {
            let grace = Duration::from_secs(grace.max(0) as u64);
            let mut left = grace;
            if let Some((handler, target)) = hook {
                let began = Instant::now();
                let run = tokio::time::timeout(grace, probes::run_hook(&handler, &target)).await;
                if let Ok(Err(error)) = run {
                    let error = HookError::PreStop(error);
                    agent.recorder.event(&about, EventType::Warning, error.reason(), None, error.to_report_string());
                }
                // At least two seconds remain for the stop signal, as upstream.
                left = grace.saturating_sub(began.elapsed()).max(MINIMUM_STOP.min(grace));
            }
            let result = match agent.cri.stop_container(&id, left).await {
                Err(e) if !e.is_not_found() => {
                    tokio::time::sleep(STOP_RETRY).await;
                    Err(e.into())
                }
                _ => Ok(()),
            };
            let _ = tell.send(Note::Stopped(id, result));
        });
        false
    }

    async fn remove(&mut self, id: String) -> bool {
        self.messages.remove(&id);
        if let Err(error) = self.agent.cri.remove_container(v1::RemoveContainerRequest { container_id: id.clone() }).await {
            tracing::warn!(pod = %key(&self.pod), container = id, error = %error.as_report(), "removing an old container failed");
        }
        false
    }

    async fn tear_down(&mut self) -> bool {
        let (root, dirs) = (self.agent.root.clone(), self.dirs.clone());
        let done = tokio::task::spawn_blocking(move || volumes::tear_down(&root, &dirs)).await;
        if let Ok(Err(error)) = done {
            tracing::warn!(pod = %key(&self.pod), error = %error.as_report(), "tearing down volumes failed; trying again");
            self.retry_at = Some(Timestamp::now() + API_RETRY);
            return false;
        }
        self.memory.volumes_down = true;
        false
    }

    async fn clean_up(&mut self) -> bool {
        // The final status first: afterwards there is nothing left to read it from.
        if !self.gone {
            self.agent.statuses.flushed(&self.uid).await;
        }
        if let Err(error) = self.remove_from_runtime().await {
            tracing::warn!(pod = %key(&self.pod), error = %error.as_report(), "removing a pod from the runtime failed; trying again");
            self.retry_at = Some(Timestamp::now() + API_RETRY);
            return false;
        }
        let (root, dirs) = (self.agent.root.clone(), self.dirs.clone());
        let done = tokio::task::spawn_blocking(move || volumes::remove_all(&root, &dirs)).await;
        if let Ok(Err(error)) = done {
            tracing::warn!(pod = %key(&self.pod), error = %error.as_report(), "removing a pod's directories failed; trying again");
            self.retry_at = Some(Timestamp::now() + API_RETRY);
            return false;
        }
        self.memory.cleaned = true;
        true
    }

    async fn remove_from_runtime(&self) -> Result<(), RuntimeError> {
        let observed = crate::runtime::observe(&self.agent.cri, &self.uid).await?;
        for c in observed.containers {
            let request = v1::RemoveContainerRequest { container_id: c.id };
            self.agent.cri.remove_container(request).await?;
        }
        for s in observed.sandboxes {
            let request = v1::RemovePodSandboxRequest { pod_sandbox_id: s.id };
            self.agent.cri.remove_pod_sandbox(request).await?;
        }
        Ok(())
    }

    async fn delete_from_api(&mut self) -> bool {
        let key = key(&self.pod);
        let api: Api<Pod> = Api::namespaced(self.agent.client.clone(), &key.ns);
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: Some(self.uid.clone()), resource_version: None }),
            ..Default::default()
        };
        match api.delete(&key.name, &params).await {
            // A conflict means another pod has the name by now.
            Err(e) if cluster::is_not_found(&e) || cluster::is_conflict(&e) => {
                self.gone = true;
                true
            }
            Err(error) => {
                tracing::warn!(pod = %key, error = %error.as_report(), "deleting an ended pod failed; trying again");
                self.retry_at = Some(Timestamp::now() + API_RETRY);
                false
            }
            Ok(_) => {
                self.gone = true;
                true
            }
        }
    }
}
