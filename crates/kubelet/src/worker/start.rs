//! Creating and starting a container.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cluster::EventType;
use cri::v1;
use host::{Hold, PodPath};
use k8s_openapi::api::core::v1::{Container, Pod, VolumeMount};
use kube_rules::expand;
use thiserror_ext::AsReport as _;

use super::errors::{ConfigError, HookError, StartError};
use super::{Note, Worker, hosts, image};
use crate::cri_config::{self, ContainerSide, ImageUse};
use crate::devices;
use crate::env::file::{self, Files};
use crate::env::{self, Input};
use crate::pod::{Event, Failed, Outcome, Start, State, WaitingReason, is_host_network, is_recursive};
use crate::probes;
use crate::services;
use crate::users;
use crate::volumes::{self, MountOf};

/// How long the network policies of a pod may take.
const POLICIES: Duration = Duration::from_secs(10);
const POLICIES_OF_STATIC: Duration = Duration::from_secs(2);
/// How long the first list of Services may take.
const FIRST_SERVICES: Duration = Duration::from_secs(5);
/// The hosts file of a Linux node and of its containers.
const NODE_HOSTS: &str = "/etc/hosts";
/// Bytes of a node's hosts file that are passed on.
const MAX_HOSTS: u64 = 1 << 20;

/// The kind of a container, as metrics name it.
fn kind(pod: &Pod, name: &str) -> &'static str {
    let spec = pod.spec.as_ref();
    if spec.is_some_and(|spec| spec.init_containers.iter().flatten().any(|own| own.name == name)) {
        "init_container"
    } else if spec.is_some_and(|spec| spec.ephemeral_containers.iter().flatten().any(|own| own.name == name)) {
        "ephemeral_container"
    } else {
        "container"
    }
}

/// What a container's request is made of, beside its spec.
struct Parts {
    /// By device plug-ins.
    given: devices::Options,
    env: Vec<(String, String)>,
    /// The images of its volumes.
    images: BTreeMap<String, v1::ImageSpec>,
    users: Option<v1::UserNamespace>,
}

impl Worker {
    pub(super) async fn start_container(&mut self, start: Start) -> Event {
        let container = start.container.clone();
        let Some(spec) = self.state.spec_of(&container) else {
            let message = "the pod has no such container any more".to_owned();
            return Event::Started { container, result: Err(Failed { reason: WaitingReason::CreateContainerError, message, image: None }) };
        };
        let mut failed: Option<String> = None;
        let result = self.create_and_start(&spec, start).await.map_err(|error| {
            let message = error.to_report_string();
            failed = Some(error.reason().to_string());
            self.event(Some(&container), EventType::Warning, "Failed", format!("Error: {message}"));
            Failed { reason: error.reason(), message, image: None }
        });
        let (kind, is_host_process) = (kind(&self.state.pod, &container), kube_rules::admission::is_host_process(&self.state.pod));
        self.agent.starts.count(kind, is_host_process, failed.as_deref());
        Event::Started { container, result }
    }

    async fn create_and_start(&mut self, c: &Container, start: Start) -> Result<String, StartError> {
        self.wait_for_policies().await?;
        let restarts = self.restarts(c, &start);
        let start = Start { restarts, ..start };
        let image = c.image.clone().unwrap_or_default();
        let usage = self.agent.images.usage(&image, &start.image).await;
        let usage = usage.map_err(|error| StartError::InspectImage(error.into()))?;
        let images = self.volume_images(c).await?;
        let given = self.agent.devices.prepare(&self.state.pod, c).await?;
        let environment = self.environment(c).await?;
        if !environment.skipped.is_empty() {
            let message = format!("Keys {:?} were skipped since they are considered invalid environment variable names.", environment.skipped);
            self.event(Some(&c.name), EventType::Warning, "InvalidEnvironmentVariableNames", message);
        }
        // Only a namespace of its own asks what the pod's class is.
        let handler = if users::wants(&self.state.pod) { self.handler().await.map_err(ConfigError::from)? } else { String::new() };
        let users = self.users(&handler).map_err(ConfigError::from)?;
        let parts = Parts { given, env: environment.vars, images, users };
        let extras = cri::Extras { sub_paths: self.image_sub_paths(c, &parts)?, stop_signal: cri_config::stop_signal(c) };
        let (config, sandbox_config, holds) = self.configs(c, &start, &usage, parts)?;
        let request = v1::CreateContainerRequest { pod_sandbox_id: start.sandbox, config: Some(config), sandbox_config: Some(sandbox_config) };
        let id = self.agent.cri.create_container_with(request, &extras).await.map_err(|error| StartError::Create(error.into()))?;
        self.event(Some(&c.name), EventType::Normal, "Created", format!("Container created: {}", c.name));
        let request = v1::StartContainerRequest { container_id: id.clone() };
        self.agent.cri.start_container(request).await.map_err(|error| StartError::Start(error.into()))?;
        if let Ok(log) = self.dirs.logs.join(&c.name).and_then(|dir| dir.join(&format!("{restarts}.log"))) {
            self.agent.link_log(&self.state.pod, &c.name, &id, &log);
        }
        // Nobody exchanges a sub-path before the runtime has mounted it.
        drop(holds);
        self.event(Some(&c.name), EventType::Normal, "Started", format!("Container started: {}", c.name));
        Ok(id)
    }

    /// No program of a pod runs before the pod's network policies hold. Static pods have to run without an API server: they wait for a
    /// shorter time, and then start.
    async fn wait_for_policies(&self) -> Result<(), StartError> {
        let Some(gate) = self.agent.network_gate.as_ref().filter(|_| !is_host_network(&self.state.pod)) else { return Ok(()) };
        let ips = self.state.pod_ips().iter().filter_map(|ip| ip.parse().ok()).collect();
        let patience = if self.is_static { POLICIES_OF_STATIC } else { POLICIES };
        match tokio::time::timeout(patience, gate(cluster::Key::of(&*self.state.pod), ips)).await {
            Ok(()) => Ok(()),
            Err(_) if self.is_static => {
                tracing::warn!(pod = %cluster::Key::of(&*self.state.pod), "a static pod starts although its network policies are not in effect");
                Ok(())
            }
            Err(_) => Err(StartError::Policies(patience)),
        }
    }

    /// The requests' parts, with the files and directories they name.
    fn configs(
        &self,
        c: &Container,
        start: &Start,
        image: &ImageUse,
        parts: Parts,
    ) -> Result<(v1::ContainerConfig, v1::PodSandboxConfig, Vec<Hold>), ConfigError> {
        let restarts = start.restarts;
        let Parts { given, env, images, users } = parts;
        let (mounts, holds) = self.mounts(c, restarts, &env, &images)?;
        let logs = self.dirs.logs.join(&c.name)?;
        self.agent.root.create_dir_all(&logs, volumes::log_mode(self.agent.side.os))?;
        let devices = self.devices(c)?;
        let side = ContainerSide { image, restarts, env, mounts, devices, given, users: users.clone(), target: self.debugged(&c.name)? };
        let config = cri_config::container(&self.agent.side, &self.state.pod, c, side)?;
        let sandbox = cri_config::sandbox(&self.agent.side, &self.state.pod, start.attempt, &self.dirs.logs, users)?;
        Ok((config, sandbox, holds))
    }

    /// The running container whose processes an ephemeral container wants to see.
    fn debugged(&self, name: &str) -> Result<Option<String>, ConfigError> {
        let mut all = self.state.pod.spec.iter().flat_map(|s| s.ephemeral_containers.iter().flatten());
        let Some(target) = all.find(|e| e.name == name).and_then(|e| e.target_container_name.clone()).filter(|t| !t.is_empty()) else {
            return Ok(None);
        };
        let found = self.state.observed.newest(&target).filter(|c| c.state == State::Running);
        match found {
            Some(found) => Ok(Some(found.id.clone())),
            None => Err(ConfigError::TargetNotRunning { container: target }),
        }
    }

    /// Begins the postStart hook of a container.
    pub(super) fn post_start(&mut self, id: String, name: &str) -> Option<Event> {
        let spec = self.state.spec_of(name)?;
        let handler = spec.lifecycle.clone()?.post_start?;
        let target = self.target(&spec, &id);
        let (site, tell, name, of) = (self.site(), self.tell.clone(), name.to_owned(), id.clone());
        let task = tokio::spawn(async move {
            // It may last as long as it likes, as upstream.
            let outcome = match probes::run_hook(&handler, &target).await {
                Ok(plain) => {
                    site.hook_done(plain);
                    Outcome::Done
                }
                Err(error) => {
                    site.hook_failed(&name, &HookError::PostStart(error));
                    Outcome::Failed
                }
            };
            let _ = tell.send(Note::Done(Event::PostStarted { id: of, outcome }));
        });
        self.hooks.insert(id, task.abort_handle());
        None
    }

    async fn environment(&self, c: &Container) -> Result<env::Environment, ConfigError> {
        // Variables of Services need the first list of them, as upstream; static pods do not wait for the API server.
        if !self.is_static && tokio::time::timeout(FIRST_SERVICES, self.agent.services.synced()).await.is_err() {
            return Err(ConfigError::ServicesUnread);
        }
        let sources = self.site().fetch(env::references(c)).await?;
        let ns = self.state.pod.metadata.namespace.as_deref().unwrap_or_default();
        let links = self.state.pod.spec.as_ref().and_then(|s| s.enable_service_links).unwrap_or(true);
        let services = services::variables(&self.agent.services, ns, links);
        let facts = self.facts();
        let files = self.env_files(c).await;
        let input = Input { pod: &self.state.pod, container: c, sources: &sources, files: &files, services: &services, facts: &facts };
        Ok(env::environment(&input)?)
    }

    /// Reads the files that a container's variables name. They are written by containers: no link is followed, nothing but a file is read.
    async fn env_files(&self, c: &Container) -> Files {
        let wanted = file::wanted(c);
        if wanted.is_empty() {
            return Files::new();
        }
        let (root, places, pod) = (self.agent.root.clone(), self.places.clone(), cluster::Key::of(&*self.state.pod));
        let read = move || {
            file::read_all(&root, &places, wanted, |volume, path, error| {
                tracing::warn!(%pod, volume, path, error = %error.as_report(), "cannot read a file of variables");
            })
        };
        // Without an answer every file is missing.
        tokio::task::spawn_blocking(read).await.unwrap_or_default()
    }

    /// The images that a container mounts as volumes, by the volume's name: they are there since its own image is.
    async fn volume_images(&self, c: &Container) -> Result<BTreeMap<String, v1::ImageSpec>, StartError> {
        let mut all = BTreeMap::new();
        for (volume, source) in image::volumes_of(&self.state.pod, c) {
            let reference = source.reference.clone().unwrap_or_default();
            let found = self.agent.images.status(&reference).await.map_err(|error| StartError::InspectImage(error.into()))?;
            let Some(found) = found else { return Err(ConfigError::ImageMissing { volume: volume.to_owned(), image: reference }.into()) };
            let spec = v1::ImageSpec { image: found.id, user_specified_image: reference, ..Default::default() };
            all.insert(volume.to_owned(), spec);
        }
        Ok(all)
    }

    /// The parts of images that mounts show, by their path in the container.
    fn image_sub_paths(&self, c: &Container, parts: &Parts) -> Result<BTreeMap<String, String>, ConfigError> {
        let mut all = BTreeMap::new();
        for m in c.volume_mounts.iter().flatten().filter(|m| parts.images.contains_key(&m.name)) {
            let path = sub_path(m, &parts.env)?;
            if !path.is_empty() {
                all.insert(kube_rules::container_path(self.agent.side.os, &m.mount_path), path);
            }
        }
        Ok(all)
    }

    fn mounts(
        &self,
        c: &Container,
        restarts: u32,
        vars: &[(String, String)],
        images: &BTreeMap<String, v1::ImageSpec>,
    ) -> Result<(Vec<v1::Mount>, Vec<Hold>), ConfigError> {
        let os = self.agent.side.os;
        let offered = self.state.node.is_recursive(&self.state.pod, &self.state.observed);
        let all = self.state.pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
        let (mut out, mut holds) = (Vec::new(), Vec::new());
        for (index, m) in c.volume_mounts.iter().flatten().enumerate() {
            let recursive = is_recursive(m, offered)?;
            if let Some(image) = images.get(&m.name) {
                out.push(v1::Mount { recursive_read_only: recursive, ..cri_config::image_mount(os, &m.mount_path, image) });
                continue;
            }
            let volume = all.clone().find(|v| v.name == m.name);
            let place = self.places.get(&m.name);
            let (Some(volume), Some(place)) = (volume, place) else {
                return Err(ConfigError::VolumeMissing { volume: m.name.clone() });
            };
            let sub_path = sub_path(m, vars)?;
            let mount = MountOf { volume, path: place, container: &c.name, index };
            let (source, hold) = volumes::mount_source(&self.agent.root, &self.dirs, &mount, &sub_path)?;
            holds.push(hold);
            let ours = volume.secret.is_some() || volume.config_map.is_some() || volume.projected.is_some() || volume.downward_api.is_some();
            let claimed_read_only = volume.persistent_volume_claim.as_ref().and_then(|c| c.read_only) == Some(true);
            let mut shown = cri_config::mount(os, &m.mount_path, &source, ours || claimed_read_only || m.read_only == Some(true));
            shown.recursive_read_only = recursive;
            shown.selinux_relabel =
                self.agent.side.modules.selinux && cri_config::relabels(volume, self.claims.as_ref().and_then(|all| all.get(&m.name)));
            shown.propagation = cri_config::propagation(os, m.mount_propagation.as_deref()).into();
            out.push(shown);
        }
        self.own_mounts(c, restarts, &mut out)?;
        Ok((out, holds))
    }

    /// The devices of volumes that the container is given (upstream: `makeBlockVolumes`).
    fn devices(&self, c: &Container) -> Result<Vec<v1::Device>, ConfigError> {
        let volumes = || self.state.pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let mut out = Vec::new();
        for device in c.volume_devices.iter().flatten() {
            if !device.device_path.starts_with('/') {
                return Err(ConfigError::RelativeDevice(device.device_path.clone()));
            }
            let Some(place) = self.places.get(&device.name) else {
                return Err(ConfigError::DeviceMissing { volume: device.name.clone(), container: c.name.clone() });
            };
            let claim = volumes().find(|volume| volume.name == device.name).and_then(|volume| volume.persistent_volume_claim.as_ref());
            let permissions = if claim.and_then(|claim| claim.read_only) == Some(true) { "r" } else { "mrw" };
            let (host_path, container_path) = (place.to_string(), device.device_path.clone());
            out.push(v1::Device { container_path, host_path, permissions: permissions.to_owned() });
        }
        Ok(out)
    }

    /// Adds the files the agent gives every container: hosts and the termination message.
    fn own_mounts(&self, c: &Container, restarts: u32, out: &mut Vec<v1::Mount>) -> Result<(), ConfigError> {
        let os = self.agent.side.os;
        let mounted = |path: &str, out: &[v1::Mount]| {
            let path = kube_rules::container_path(os, path);
            out.iter().any(|m| m.container_path == path)
        };
        let host_process = kube_rules::admission::is_host_process(&self.state.pod);
        let hosts = if os.is_windows() { r"C:\Windows\System32\drivers\etc\hosts" } else { NODE_HOSTS };
        // Processes on a Windows host see its files.
        let sees_host = os.is_windows() && (is_host_network(&self.state.pod) || host_process);
        if !sees_host && !mounted(hosts, out) {
            let file = self.write_hosts()?;
            out.push(self.labelled(cri_config::mount(os, hosts, &file, false)));
        }
        let message = c.termination_message_path.as_deref().filter(|p| !p.is_empty()).unwrap_or("/dev/termination-log");
        if !mounted(message, out) {
            let file = self.message_file(&c.name, restarts)?;
            let dir = file.parent().unwrap_or_else(|| file.clone());
            self.agent.root.create_dir_all(&dir, 0o750)?;
            self.agent.root.create_file(&file, 0o666)?;
            out.push(self.labelled(cri_config::mount(os, message, &file, false)));
        }
        Ok(())
    }

    /// A mount that gets the container's label, where there are any.
    fn labelled(&self, mount: v1::Mount) -> v1::Mount {
        v1::Mount { selinux_relabel: self.agent.side.modules.selinux, ..mount }
    }

    /// The pod's hosts file: itself or, in its node's network, what the node's file says; and its aliases.
    fn write_hosts(&self) -> Result<PodPath, ConfigError> {
        let path = self.dirs.hosts()?;
        let names = cri_config::Names::of(&self.agent.side, &self.state.pod);
        let spec = self.state.pod.spec.clone().unwrap_or_default();
        let aliases = spec.host_aliases.unwrap_or_default();
        let text = if is_host_network(&self.state.pod) {
            let node = self.agent.root.read(&PodPath::parse(self.agent.side.os, NODE_HOSTS)?, MAX_HOSTS)?;
            hosts::text(&hosts::Base::Node(&node.unwrap_or_default()), &aliases)
        } else {
            hosts::text(&hosts::Base::Pod { addresses: &self.state.pod_ips(), name: &names.host, domain: names.domain }, &aliases)
        };
        self.agent.root.create_dir_all(&self.dirs.pod, 0o750)?;
        self.agent.root.write_file(&path, &text, 0o644)?;
        Ok(path)
    }
}

/// The part of a volume that is mounted. The API server has checked its text, but not what variables make of it.
fn sub_path(mount: &VolumeMount, vars: &[(String, String)]) -> Result<String, ConfigError> {
    let path = match (&mount.sub_path, &mount.sub_path_expr) {
        (_, Some(expression)) if !expression.is_empty() => expand_strictly(expression, vars)?,
        (Some(path), _) => path.clone(),
        _ => String::new(),
    };
    if path.starts_with(['/', '\\']) {
        return Err(ConfigError::AbsoluteSubPath(path));
    }
    if path.split(['/', '\\']).any(|name| name == "..") { Err(ConfigError::SubPathUp(path)) } else { Ok(path) }
}

/// subPathExpr: every variable must have a value (upstream `ExpandContainerVolumeMounts`).
fn expand_strictly(text: &str, vars: &[(String, String)]) -> Result<String, ConfigError> {
    let missing = std::cell::RefCell::new(BTreeSet::new());
    let out = expand(text, |name| {
        let found = vars.iter().find(|(n, value)| n == name && !value.is_empty()).map(|(_, v)| v.clone());
        if found.is_none() {
            missing.borrow_mut().insert(name.to_owned());
        }
        found
    });
    let missing: Vec<String> = missing.into_inner().into_iter().collect();
    if missing.is_empty() { Ok(out) } else { Err(ConfigError::SubPathExpression(missing.join(", "))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sub_paths_stay_below_their_volume() {
        let vars = [("EMPTY".to_owned(), String::new()), ("POD".to_owned(), "a".to_owned()), ("UP".to_owned(), "..".to_owned())];
        let mount = |expression: &str| VolumeMount { sub_path_expr: Some(expression.to_owned()), ..VolumeMount::default() };
        assert_eq!(sub_path(&mount("$(POD)/$(POD)"), &vars).unwrap(), "a/a");
        assert_eq!(sub_path(&VolumeMount { sub_path: Some("b".to_owned()), ..VolumeMount::default() }, &vars).unwrap(), "b");
        assert_eq!(sub_path(&VolumeMount::default(), &vars).unwrap(), "");
        for (expression, message) in [
            ("$(EMPTY)/$(POD)/$(MISSING)", "missing value for EMPTY, MISSING"),
            ("/$(POD)", "error SubPath `/a` must not be an absolute path"),
            ("$(POD)/$(UP)/x", "unable to provision SubPath `a/../x`: must not contain '..'"),
        ] {
            assert_eq!(sub_path(&mount(expression), &vars).unwrap_err().to_string(), message);
        }
    }
}
