//! Carrying out the machine's actions. Each returns its outcome, unless that comes later as a note.

use std::time::{Duration, Instant};

use cluster::EventType;
use cri::v1;
use k8s_openapi::api::core::v1::{LifecycleHandler, ObjectReference, Pod};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::Api;
use kube::api::{DeleteParams, Preconditions};
use thiserror_ext::AsReport as _;

use super::errors::{HookError, RuntimeClassError, SandboxError};
use super::site::Site;
use super::{Note, Worker, image};
use crate::agent::key;
use crate::cri_config;
use crate::env::Facts;
use crate::error::RuntimeError;
use crate::pod::{Action, Event, Kill, Outcome, Prepare, Why};
use crate::probes;
use crate::users::{self, UsersError};
use crate::volumes::log_mode;

const MINIMUM_STOP: Duration = Duration::from_secs(2);

/// Runs a preStop hook, for as long as the grace lasts.
async fn run_pre_stop(site: &Site, name: &str, handler: &LifecycleHandler, target: &probes::Target, grace: Duration) {
    match tokio::time::timeout(grace, probes::run_hook(handler, target)).await {
        Ok(Ok(plain)) => site.hook_done(plain),
        Ok(Err(error)) => site.hook_failed(name, &HookError::PreStop(error)),
        Err(_) => {}
    }
}

impl Worker {
    pub(super) async fn apply(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Admit => Some(Event::Admitted(self.admit().await)),
            Action::SaveResources(record) => Some(Event::ResourcesSaved(self.save_resources(&record))),
            Action::DecideResize { wanted } => Some(self.decide_resize(wanted)),
            Action::ReportResize(news) => {
                self.report_resize(&news);
                self.resize_whole(&news).await;
                None
            }
            Action::Update(update) => Some(self.update(update).await),
            Action::Observe => Some(self.observe().await),
            Action::MountVolumes => {
                self.mount_volumes(Event::VolumesMounted);
                None
            }
            Action::RefreshVolumes => {
                self.mount_volumes(Event::VolumesRefreshed);
                None
            }
            Action::CreateSandbox { attempt } => Some(Event::SandboxCreated(self.create_sandbox(attempt).await)),
            Action::StopSandbox { id } => Some(self.stop_sandbox(id).await),
            Action::ReportNetwork { sandbox, problem } => {
                tracing::warn!(pod = %key(&self.state.pod), sandbox, reason = problem, "the network of a pod's sandbox does not work");
                self.event(None, EventType::Warning, "NetworkNotReady", format!("network is not ready: {problem}"));
                None
            }
            Action::ReportEviction { reason, message } => {
                self.event(None, EventType::Warning, &reason.to_string(), message);
                None
            }
            Action::EnsureImage { container } => self.ensure_image(container),
            Action::BackOffPull { container, image } => {
                image::back_off(&self.site(), &container, image);
                None
            }
            Action::BackOffRestart { container, .. } => {
                let meta = &self.state.pod.metadata;
                let text = |part: &Option<String>| part.clone().unwrap_or_default();
                let pod = format!("{}_{}({})", text(&meta.name), text(&meta.namespace), text(&meta.uid));
                let message = format!("Back-off restarting failed container {container} in pod {pod}");
                self.event(Some(&container), EventType::Warning, "BackOff", message);
                None
            }
            Action::Start(start) => Some(self.start_container(start).await),
            Action::PostStart { id, container } => self.post_start(id, &container),
            Action::Probe { id, container, health } => {
                self.probe(id, &container, health);
                None
            }
            Action::PrepareStop(prepare) => self.prepare_stop(prepare),
            Action::Kill(kill) => {
                self.kill(kill);
                None
            }
            Action::Remove { id } => Some(self.remove(id).await),
            Action::TearDownVolumes => Some(Event::TornDown(self.tear_down().await)),
            Action::CleanUp => Some(Event::CleanedUp(self.clean_up().await)),
            Action::DeleteFromApi => Some(Event::Deleted(self.delete_from_api().await)),
        }
    }

    /// What the downward API needs beside the pod.
    pub(super) fn facts(&self) -> Facts {
        let on_host = crate::pod::is_host_network(&self.state.pod);
        Facts {
            pod_ips: if on_host { self.agent.host_ips() } else { self.state.pod_ips() },
            host_ips: self.agent.host_ips(),
            allocatable: self.agent.allocatable.clone(),
        }
    }

    pub(super) async fn handler(&self) -> Result<String, RuntimeClassError> {
        let class = self.state.pod.spec.as_ref().and_then(|s| s.runtime_class_name.clone());
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

    /// Whose users the pod has, by the runtime handler that runs it.
    pub(super) fn users(&self, handler: &str) -> Result<Option<v1::UserNamespace>, UsersError> {
        let handlers = self.agent.health.borrow().handlers.clone();
        self.agent.users.of(&self.state.pod, handler, &handlers)
    }

    async fn create_sandbox(&mut self, attempt: u32) -> Outcome {
        if attempt > 0 {
            self.event(None, EventType::Normal, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.");
        }
        self.report_dns();
        let made = async {
            let runtime_handler = self.handler().await?;
            if let Some(groups) = &self.agent.groups {
                groups.ensure(&self.state.pod).await?;
            }
            self.agent.root.create_dir_all(&self.dirs.logs, log_mode(self.agent.side.os))?;
            let config = cri_config::sandbox(&self.agent.side, &self.state.pod, attempt, &self.dirs.logs, self.users(&runtime_handler)?)?;
            let request = v1::RunPodSandboxRequest { config: Some(config), runtime_handler };
            let (handler, began) = (request.runtime_handler.clone(), Instant::now());
            let made = self.agent.cri.run_pod_sandbox(request).await;
            self.agent.timings.sandbox(&handler, began.elapsed(), made.is_err());
            made.map_err(|error| SandboxError::Run(error.into()))
        };
        let made = made.await;
        self.agent.timings.started_pod(users::wants(&self.state.pod), made.is_err());
        match made {
            Ok(_) => Outcome::Done,
            Err(error) => {
                let message = error.to_report_string();
                tracing::warn!(pod = %key(&self.state.pod), attempt, reason = error.reason(), "{message}");
                self.event(None, EventType::Warning, error.reason(), message);
                Outcome::Failed
            }
        }
    }

    /// Says where the pod does not get the resolver settings that it asks for.
    fn report_dns(&self) {
        let dns = cri_config::dns(&self.agent.side, &self.state.pod);
        for message in dns.cut {
            self.event(None, EventType::Warning, "DNSConfigForming", message);
        }
        if let Some(message) = dns.missing {
            let meta = &self.state.pod.metadata;
            let text = |part: &Option<String>| part.clone().unwrap_or_default();
            let pod = format!("{}_{}({})", text(&meta.name), text(&meta.namespace), text(&meta.uid));
            self.event(None, EventType::Warning, "MissingClusterDNS", format!("pod: {pod:?}. {message}"));
            let node = Some(self.agent.side.node_name.clone());
            let about = ObjectReference { kind: Some("Node".into()), name: node.clone(), uid: node, ..Default::default() };
            self.agent.recorder.event(&about, EventType::Warning, "MissingClusterDNS", None, message.to_owned());
        }
    }

    async fn stop_sandbox(&mut self, id: String) -> Event {
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: id.clone() };
        let outcome = match self.agent.cri.stop_pod_sandbox(request).await {
            Err(e) if !e.is_not_found() => {
                let error = SandboxError::Stop(e.into());
                let message = error.to_report_string();
                tracing::warn!(pod = %key(&self.state.pod), sandbox = id, reason = error.reason(), "{message}");
                self.event(None, EventType::Warning, error.reason(), message);
                Outcome::Failed
            }
            _ => Outcome::Done,
        };
        Event::SandboxStopped { id, outcome }
    }

    /// Begins to find or pull an image.
    fn ensure_image(&mut self, container: String) -> Option<Event> {
        let spec = self.state.spec_of(&container)?;
        // A pod whose name makes no sandbox has none to pull for.
        let sandbox = cri_config::sandbox(&self.agent.side, &self.state.pod, 0, &self.dirs.logs, None).ok()?;
        let (site, tell) = (self.site(), self.tell.clone());
        tokio::spawn(async move {
            let result = image::ensure(&site, &spec, sandbox).await;
            let _ = tell.send(Note::Done(Event::Image { container, result }));
        });
        None
    }

    /// The preStop hook of a container, and how it is reached.
    fn pre_stop(&self, name: &str, id: &str) -> Option<(LifecycleHandler, probes::Target)> {
        let spec = self.state.spec_of(name)?;
        let handler = spec.lifecycle.clone()?.pre_stop?;
        Some((handler, self.target(&spec, id)))
    }

    /// Announces the end of a container whose turn comes later, and begins its preStop hook.
    fn prepare_stop(&mut self, Prepare { id, container: name, grace }: Prepare) -> Option<Event> {
        self.event(Some(&name), EventType::Normal, "Killing", self.why(&name, Why::PodEnds));
        if let Some(hook) = self.hooks.remove(&id) {
            hook.abort();
        }
        let Some((handler, target)) = self.pre_stop(&name, &id) else {
            return Some(Event::StopPrepared { id });
        };
        let (site, tell) = (self.site(), self.tell.clone());
        tokio::spawn(async move {
            run_pre_stop(&site, &name, &handler, &target, Duration::from_secs(grace.max(0) as u64)).await;
            let _ = tell.send(Note::Done(Event::StopPrepared { id }));
        });
        None
    }

    fn kill(&mut self, kill: Kill) {
        let Kill { id, container: name, grace, why, again, prepared } = kill;
        if !prepared {
            self.event(Some(&name), EventType::Normal, "Killing", self.why(&name, why));
        }
        if let Some(hook) = self.hooks.remove(&id) {
            hook.abort();
        }
        let (site, tell) = (self.site(), self.tell.clone());
        // A second stop with a shorter grace does not run the hook again; where all containers start again there is no time for it, as upstream.
        let hook = self.pre_stop(&name, &id).filter(|_| !again && !prepared && why != Why::AllRestart);
        tokio::spawn(async move {
            let grace = Duration::from_secs(grace.max(0) as u64);
            let mut left = grace;
            if let Some((handler, target)) = hook {
                let began = Instant::now();
                run_pre_stop(&site, &name, &handler, &target, grace).await;
                // At least two seconds remain for the stop signal, as upstream.
                left = grace.saturating_sub(began.elapsed()).max(MINIMUM_STOP.min(grace));
            }
            let outcome = match site.agent.cri.stop_container(&id, left).await {
                Err(error) if !error.is_not_found() => {
                    tracing::warn!(pod = %key(&site.pod), container = id, error = %error.as_report(), "stopping a container failed; trying again");
                    Outcome::Failed
                }
                _ => Outcome::Done,
            };
            let _ = tell.send(Note::Done(Event::Killed { id, outcome }));
        });
    }

    /// The message of a Killing event.
    fn why(&self, name: &str, why: Why) -> String {
        let never = self.state.pod.spec.as_ref().and_then(|s| s.restart_policy.as_deref()) == Some("Never");
        let restarts = if never { "" } else { ", will be restarted" };
        match why {
            Why::PodEnds | Why::SandboxGone => format!("Stopping container {name}"),
            Why::Changed => format!("Container {name} definition changed, will be restarted"),
            Why::Unhealthy => format!("Container {name} failed liveness probe{restarts}"),
            Why::StartupFailed => format!("Container {name} failed startup probe{restarts}"),
            Why::PostStartFailed => "FailedPostStartHook".to_owned(),
            Why::Resized => format!("Container {name} resize requires restart"),
            Why::AllRestart => "killing".to_owned(),
        }
    }

    async fn remove(&mut self, id: String) -> Event {
        self.messages.remove(&id);
        let outcome = match self.agent.remove_container(&id).await {
            Err(error) if !error.is_not_found() => {
                tracing::warn!(pod = %key(&self.state.pod), container = id, error = %error.as_report(), "removing an old container failed; trying again");
                Outcome::Failed
            }
            _ => Outcome::Done,
        };
        Event::Removed { id, outcome }
    }

    async fn tear_down(&mut self) -> Outcome {
        if let Err(error) = self.agent.volumes.tear_down(&self.dirs).await {
            tracing::warn!(pod = %key(&self.state.pod), error = %error.as_report(), "tearing down volumes failed; trying again");
            return Outcome::Failed;
        }
        self.places.clear();
        self.remove_group().await
    }

    /// Removes the pod's control group: nothing of the pod runs any more.
    async fn remove_group(&self) -> Outcome {
        let Some(groups) = &self.agent.groups else { return Outcome::Done };
        match groups.remove(&self.state.pod).await {
            Ok(()) => Outcome::Done,
            Err(error) => {
                tracing::warn!(pod = %key(&self.state.pod), error = %error.as_report(), "removing a pod's control group failed; trying again");
                Outcome::Failed
            }
        }
    }

    async fn clean_up(&mut self) -> Outcome {
        // The final status first: afterwards there is nothing left to read it from.
        if !self.state.gone {
            self.agent.statuses.flushed(&self.uid).await;
        }
        if let Err(error) = self.remove_from_runtime().await {
            tracing::warn!(pod = %key(&self.state.pod), error = %error.as_report(), "removing a pod from the runtime failed; trying again");
            return Outcome::Failed;
        }
        if let Err(error) = self.agent.volumes.remove_all(&self.dirs).await {
            tracing::warn!(pod = %key(&self.state.pod), error = %error.as_report(), "removing a pod's directories failed; trying again");
            return Outcome::Failed;
        }
        self.remove_group().await
    }

    async fn remove_from_runtime(&self) -> Result<(), RuntimeError> {
        let observed = crate::runtime::observe(&self.agent.cri, &self.uid).await?;
        for c in observed.containers {
            self.agent.remove_container(&c.id).await?;
        }
        for s in observed.sandboxes {
            let request = v1::RemovePodSandboxRequest { pod_sandbox_id: s.id };
            self.agent.cri.remove_pod_sandbox(request).await?;
        }
        Ok(())
    }

    async fn delete_from_api(&mut self) -> Outcome {
        let key = key(&self.state.pod);
        let api: Api<Pod> = Api::namespaced(self.agent.client.clone(), &key.ns);
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: Some(self.uid.clone()), resource_version: None }),
            ..Default::default()
        };
        match api.delete(&key.name, &params).await {
            // A conflict means another pod has the name by now.
            Err(error) if !cluster::is_not_found(&error) && !cluster::is_conflict(&error) => {
                tracing::warn!(pod = %key, error = %error.as_report(), "deleting an ended pod failed; trying again");
                Outcome::Failed
            }
            _ => Outcome::Done,
        }
    }
}
