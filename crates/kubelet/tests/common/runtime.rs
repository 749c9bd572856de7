//! A small container runtime in memory, spoken to over CRI on a unix socket.
//!
//! Models: sandboxes with addresses, containers whose program is named by their image (`serve`
//! runs until stopped, `exit-N` ends with N, and any program called `false` fails inside), images that are there or can be pulled, logs and
//! mounts in a directory that stands for drive C, events, a network that is ready or not, and a
//! host that reboots. Refuses what a runtime refuses: unknown ids, containers in a sandbox that
//! is not ready, mounts of things that do not exist, a start of something already started.
#![allow(clippy::result_large_err, reason = "tonic's own error type")]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cri::v1;
use cri::v1::image_service_server::{ImageService, ImageServiceServer};
use cri::v1::runtime_service_server::RuntimeService;
use tokio::sync::broadcast;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{BroadcastStream, UnixListenerStream};
use tonic::{Request, Response, Status};

type Answer<T> = Result<Response<T>, Status>;

#[derive(Clone)]
pub struct Sandbox {
    pub id: String,
    pub config: v1::PodSandboxConfig,
    pub ready: bool,
    pub created_at: i64,
    pub ip: String,
}

#[derive(Clone)]
pub struct Container {
    pub id: String,
    pub sandbox: String,
    pub config: v1::ContainerConfig,
    pub state: v1::ContainerState,
    pub created_at: i64,
    pub started_at: i64,
    pub finished_at: i64,
    pub exit_code: i32,
    /// The grace of the stop that ended it.
    pub stopped_with: Option<i64>,
    pub stop_signal: Option<cri::Signal>,
}

#[derive(Default)]
pub struct State {
    pub sandboxes: BTreeMap<String, Sandbox>,
    pub containers: BTreeMap<String, Container>,
    pub images: BTreeSet<String>,
    pub pulls: Vec<String>,
    /// The users of images that name one by its number.
    pub users: BTreeMap<String, i64>,
    /// Name and password with which an image is given away; others are given to everybody.
    pub logins: BTreeMap<String, (String, String)>,
    /// Image, name and password of each pull; no name of one without credentials.
    pub auths: Vec<(String, Option<(String, String)>)>,
    pub execs: Vec<String>,
    /// The addresses of pods that the runtime was told of.
    pub pod_cidrs: Vec<String>,
    pub network_ready: bool,
    /// Calls that are not answered while they are here.
    pub hangs: BTreeSet<&'static str>,
    /// Updates of resources, as the runtime got them: (container, memory limit, cpu quota).
    pub updates: Vec<(String, i64, i64)>,
    /// Calls that fail while they are here.
    pub refuses: BTreeSet<&'static str>,
    /// The file system that containers write to.
    pub mountpoint: String,
    /// Bytes that each container uses.
    pub memory_used: u64,
    /// How often the usage of all containers was asked for.
    pub stats_asked: usize,
    /// What each container has beside the generated messages.
    pub parts: Vec<cri::Extras>,
    /// What the runtime was told of resized pods as a whole: cpu quota, and memory limit.
    pub whole: Vec<(i64, i64)>,
    counter: u32,
    clock: i64,
}

impl State {
    fn next(&mut self, kind: &str) -> (String, i64) {
        self.counter += 1;
        self.clock = self.clock.max(now()) + 1;
        (format!("{kind}{}", self.counter), self.clock)
    }

    /// Containers called `name`, oldest first.
    pub fn named(&self, name: &str) -> Vec<Container> {
        let mut all: Vec<Container> =
            self.containers.values().filter(|c| c.config.metadata.as_ref().is_some_and(|m| m.name == name)).cloned().collect();
        all.sort_by_key(|c| c.created_at);
        all
    }

    fn event(&self, container: &str, what: v1::ContainerEventType) -> Option<v1::ContainerEventResponse> {
        let c = self.containers.get(container)?;
        let s = self.sandboxes.get(&c.sandbox)?;
        Some(v1::ContainerEventResponse {
            container_id: container.to_owned(),
            container_event_type: what as i32,
            created_at: now(),
            pod_sandbox_status: Some(sandbox_status(s)),
            containers_statuses: Vec::new(),
        })
    }
}

fn now() -> i64 {
    jiff::Timestamp::now().as_nanosecond() as i64
}

/// The runtime; clones share it.
#[derive(Clone)]
pub struct Runtime {
    pub state: Arc<Mutex<State>>,
    events: broadcast::Sender<v1::ContainerEventResponse>,
    drive: PathBuf,
}

impl Runtime {
    /// Serves on `socket`; `drive` holds the node's drive C.
    pub fn start(socket: PathBuf, drive: PathBuf) -> Self {
        let runtime = Runtime { state: Arc::default(), events: broadcast::channel(256).0, drive };
        let listener = tokio::net::UnixListener::bind(socket).unwrap();
        let server = tonic::transport::Server::builder()
            .add_service(cri::RuntimeServer::new(runtime.clone()).with_updates(take_update(runtime.state.clone())))
            .add_service(ImageServiceServer::new(runtime.clone()))
            .serve_with_incoming(UnixListenerStream::new(listener));
        tokio::spawn(server);
        runtime
    }

    /// Waits while a call hangs.
    async fn hang(&self, call: &str) {
        while self.state.lock().unwrap().hangs.contains(call) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Where a path of the node is on this machine.
    pub fn path(&self, path: &str) -> PathBuf {
        let rest = path.strip_prefix(r"C:\").or(path.strip_prefix('/')).unwrap_or_else(|| panic!("{path} is not on drive C"));
        self.drive.join(rest.replace('\\', "/"))
    }

    /// Ends a container as its program would.
    pub fn exit(&self, id: &str, code: i32) {
        let mut state = self.state.lock().unwrap();
        let (_, at) = state.next("t");
        if let Some(c) = state.containers.get_mut(id) {
            c.state = v1::ContainerState::ContainerExited;
            c.exit_code = code;
            c.finished_at = at;
        }
        let event = state.event(id, v1::ContainerEventType::ContainerStoppedEvent);
        drop(state);
        event.map(|e| self.events.send(e));
    }

    /// Changes every sandbox, and says so.
    pub fn change_sandboxes(&self, change: impl Fn(&mut Sandbox)) {
        let mut state = self.state.lock().unwrap();
        state.sandboxes.values_mut().for_each(change);
        let containers: Vec<String> = state.containers.keys().cloned().collect();
        let events: Vec<_> = containers.iter().filter_map(|id| state.event(id, v1::ContainerEventType::ContainerStoppedEvent)).collect();
        drop(state);
        events.into_iter().for_each(|event| drop(self.events.send(event)));
    }

    /// What a reboot leaves: nothing runs, everything is still listed.
    pub fn reboot(&self) {
        let mut state = self.state.lock().unwrap();
        let (_, at) = state.next("t");
        state.sandboxes.values_mut().for_each(|s| s.ready = false);
        for c in state.containers.values_mut().filter(|c| c.state == v1::ContainerState::ContainerRunning) {
            c.state = v1::ContainerState::ContainerExited;
            c.exit_code = 255;
            c.finished_at = at;
        }
    }
}

/// Answers `UpdatePodSandboxResources`.
fn take_update(state: Arc<Mutex<State>>) -> impl Fn(cri::UpdateSandboxRequest) -> Result<(), Status> + Send + Sync + 'static {
    move |request| {
        let mut state = state.lock().unwrap();
        if state.refuses.contains("UpdatePodSandboxResources") {
            // In the words of containerd 2.2.
            return Err(Status::unknown("not implemented yet"));
        }
        if !state.sandboxes.contains_key(&request.pod_sandbox_id) {
            return Err(no("sandbox", &request.pod_sandbox_id));
        }
        let resources = request.resources.unwrap_or_default();
        state.whole.push((resources.cpu_quota, resources.memory_limit_in_bytes));
        Ok(())
    }
}

fn sandbox_status(s: &Sandbox) -> v1::PodSandboxStatus {
    let state = if s.ready { v1::PodSandboxState::SandboxReady } else { v1::PodSandboxState::SandboxNotready };
    v1::PodSandboxStatus {
        id: s.id.clone(),
        metadata: s.config.metadata.clone(),
        state: state as i32,
        created_at: s.created_at,
        network: Some(v1::PodSandboxNetworkStatus { ip: s.ip.clone(), additional_ips: vec![] }),
        labels: s.config.labels.clone(),
        annotations: s.config.annotations.clone(),
        ..Default::default()
    }
}

/// Where a container's log is, as the node writes it.
fn log_path(state: &State, c: &Container) -> String {
    format!("{}/{}", state.sandboxes[&c.sandbox].config.log_directory, c.config.log_path)
}

fn container_status(c: &Container) -> v1::ContainerStatus {
    v1::ContainerStatus {
        id: c.id.clone(),
        metadata: c.config.metadata.clone(),
        state: c.state as i32,
        created_at: c.created_at,
        started_at: c.started_at,
        finished_at: c.finished_at,
        exit_code: c.exit_code,
        image: c.config.image.clone(),
        image_ref: c.config.image.as_ref().map(|i| i.image.clone()).unwrap_or_default(),
        labels: c.config.labels.clone(),
        annotations: c.config.annotations.clone(),
        mounts: c.config.mounts.clone(),
        resources: Some(v1::ContainerResources { linux: c.config.linux.as_ref().and_then(|l| l.resources.clone()), windows: None }),
        ..Default::default()
    }
}

fn matches(selector: &HashMap<String, String>, labels: &HashMap<String, String>) -> bool {
    selector.iter().all(|(k, v)| labels.get(k) == Some(v))
}

fn no(what: &str, id: &str) -> Status {
    Status::not_found(format!("no {what} {id}"))
}

cri::serve! { RuntimeService for Runtime {
    async fn version(&self, _: Request<v1::VersionRequest>) -> Answer<v1::VersionResponse> {
        Ok(Response::new(v1::VersionResponse {
            version: "v1".into(),
            runtime_name: "fake".into(),
            runtime_version: "1.0".into(),
            runtime_api_version: "v1".into(),
        }))
    }

    async fn status(&self, _: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        let condition = |type_: &str, status| v1::RuntimeCondition {
            r#type: type_.into(),
            status,
            reason: if status { String::new() } else { "NetworkPluginNotReady".into() },
            message: if status { String::new() } else { "cni plugin not initialized".into() },
        };
        self.hang("Status").await;
        let network = self.state.lock().unwrap().network_ready;
        let conditions = vec![condition("RuntimeReady", true), condition("NetworkReady", network)];
        let status = Some(v1::RuntimeStatus { conditions });
        let features = v1::RuntimeHandlerFeatures { user_namespaces: true, ..Default::default() };
        let runtime_handlers = vec![v1::RuntimeHandler { name: String::new(), features: Some(features) }];
        Ok(Response::new(v1::StatusResponse { status, runtime_handlers, ..Default::default() }))
    }

    async fn run_pod_sandbox(&self, r: Request<v1::RunPodSandboxRequest>) -> Answer<v1::RunPodSandboxResponse> {
        self.hang("RunPodSandbox").await;
        let config = r.into_inner().config.ok_or_else(|| Status::invalid_argument("no config"))?;
        if !self.path(&config.log_directory).is_dir() {
            return Err(Status::failed_precondition("no log directory"));
        }
        let mut state = self.state.lock().unwrap();
        if !state.network_ready {
            return Err(Status::internal("network is not ready"));
        }
        let (id, created_at) = state.next("sandbox");
        let ip = format!("192.168.1.{}", 10 + state.sandboxes.len());
        state.sandboxes.insert(id.clone(), Sandbox { id: id.clone(), config, ready: true, created_at, ip });
        Ok(Response::new(v1::RunPodSandboxResponse { pod_sandbox_id: id }))
    }

    async fn stop_pod_sandbox(&self, r: Request<v1::StopPodSandboxRequest>) -> Answer<v1::StopPodSandboxResponse> {
        let id = r.into_inner().pod_sandbox_id;
        let mut state = self.state.lock().unwrap();
        if let Some(s) = state.sandboxes.get_mut(&id) {
            s.ready = false;
        }
        Ok(Response::new(v1::StopPodSandboxResponse {}))
    }

    async fn remove_pod_sandbox(&self, r: Request<v1::RemovePodSandboxRequest>) -> Answer<v1::RemovePodSandboxResponse> {
        let id = r.into_inner().pod_sandbox_id;
        let mut state = self.state.lock().unwrap();
        if state.sandboxes.get(&id).is_some_and(|s| s.ready) {
            return Err(Status::failed_precondition("sandbox is not stopped"));
        }
        state.sandboxes.remove(&id);
        state.containers.retain(|_, c| c.sandbox != id);
        Ok(Response::new(v1::RemovePodSandboxResponse {}))
    }

    async fn pod_sandbox_status(&self, r: Request<v1::PodSandboxStatusRequest>) -> Answer<v1::PodSandboxStatusResponse> {
        let id = r.into_inner().pod_sandbox_id;
        let state = self.state.lock().unwrap();
        let s = state.sandboxes.get(&id).ok_or_else(|| no("sandbox", &id))?;
        Ok(Response::new(v1::PodSandboxStatusResponse { status: Some(sandbox_status(s)), ..Default::default() }))
    }

    async fn list_pod_sandbox(&self, r: Request<v1::ListPodSandboxRequest>) -> Answer<v1::ListPodSandboxResponse> {
        let filter = r.into_inner().filter.unwrap_or_default();
        let state = self.state.lock().unwrap();
        let items = state.sandboxes.values().filter(|s| matches(&filter.label_selector, &s.config.labels));
        let items = items.map(|s| {
            let status = sandbox_status(s);
            v1::PodSandbox {
                id: status.id,
                metadata: status.metadata,
                state: status.state,
                created_at: s.created_at,
                labels: status.labels,
                annotations: s.config.annotations.clone(),
                ..Default::default()
            }
        });
        Ok(Response::new(v1::ListPodSandboxResponse { items: items.collect() }))
    }

    async fn create_container(&self, r: Request<v1::CreateContainerRequest>) -> Answer<v1::CreateContainerResponse> {
        let parts = r.extensions().get::<cri::Extras>().cloned().unwrap_or_default();
        let r = r.into_inner();
        let config = r.config.ok_or_else(|| Status::invalid_argument("no config"))?;
        for m in &config.mounts {
            if let Some(image) = &m.image {
                if !self.state.lock().unwrap().images.contains(&image.image) {
                    return Err(no("image", &image.image));
                }
                continue;
            }
            if !self.path(&m.host_path).exists() {
                return Err(Status::invalid_argument(format!("mount source {} does not exist", m.host_path)));
            }
        }
        let image = config.image.clone().unwrap_or_default().image;
        let mut state = self.state.lock().unwrap();
        if !state.images.contains(&image) {
            return Err(no("image", &image));
        }
        if !state.sandboxes.get(&r.pod_sandbox_id).is_some_and(|s| s.ready) {
            return Err(Status::failed_precondition("sandbox is not ready"));
        }
        let (id, created_at) = state.next("container");
        let container = Container {
            id: id.clone(),
            sandbox: r.pod_sandbox_id,
            config,
            state: v1::ContainerState::ContainerCreated,
            created_at,
            started_at: 0,
            finished_at: 0,
            exit_code: 0,
            stopped_with: None,
            stop_signal: parts.stop_signal,
        };
        state.containers.insert(id.clone(), container);
        state.parts.push(parts);
        Ok(Response::new(v1::CreateContainerResponse { container_id: id }))
    }

    async fn start_container(&self, r: Request<v1::StartContainerRequest>) -> Answer<v1::StartContainerResponse> {
        let id = r.into_inner().container_id;
        let (image, event) = {
            let mut state = self.state.lock().unwrap();
            let (_, at) = state.next("t");
            let dirs: HashMap<_, _> = state.sandboxes.iter().map(|(id, sandbox)| (id.clone(), self.path(&sandbox.config.log_directory))).collect();
            let c = state.containers.get_mut(&id).ok_or_else(|| no("container", &id))?;
            if c.state != v1::ContainerState::ContainerCreated {
                return Err(Status::failed_precondition("container is not in created state"));
            }
            // Who sees the container run finds its log.
            let log = dirs[&c.sandbox].join(&c.config.log_path);
            std::fs::write(log, format!("{} stdout F {id} says hello\n", jiff::Timestamp::now())).map_err(|e| Status::internal(e.to_string()))?;
            c.state = v1::ContainerState::ContainerRunning;
            c.started_at = at;
            let image = c.config.image.clone().unwrap_or_default().image;
            (image, state.event(&id, v1::ContainerEventType::ContainerStartedEvent))
        };
        event.map(|e| self.events.send(e));
        if let Some(code) = image.strip_prefix("exit-").and_then(|r| r.split(':').next()) {
            self.exit(&id, code.parse().unwrap());
        }
        Ok(Response::new(v1::StartContainerResponse {}))
    }

    async fn stop_container(&self, r: Request<v1::StopContainerRequest>) -> Answer<v1::StopContainerResponse> {
        let r = r.into_inner();
        let slow = {
            let mut state = self.state.lock().unwrap();
            let c = state.containers.get_mut(&r.container_id).ok_or_else(|| no("container", &r.container_id))?;
            c.stopped_with = Some(r.timeout);
            c.config.image.as_ref().is_some_and(|i| i.image.starts_with("stubborn"))
        };
        // A stubborn program has to be killed when its time is up.
        if slow {
            tokio::time::sleep(Duration::from_secs(r.timeout as u64)).await;
        }
        self.exit(&r.container_id, if slow { 137 } else { 0 });
        Ok(Response::new(v1::StopContainerResponse {}))
    }

    async fn exec_sync(&self, r: Request<v1::ExecSyncRequest>) -> Answer<v1::ExecSyncResponse> {
        let r = r.into_inner();
        let mut state = self.state.lock().unwrap();
        let c = state.containers.get(&r.container_id).ok_or_else(|| no("container", &r.container_id))?;
        if c.state != v1::ContainerState::ContainerRunning {
            return Err(Status::failed_precondition("container is not running"));
        }
        state.execs.push(r.cmd.join(" "));
        match r.cmd.first().map(String::as_str) {
            Some("nosuch") => return Err(Status::unknown("executable file not found in $PATH")),
            // The runtime ends it.
            Some("hang") => return Err(Status::deadline_exceeded(format!("timeout {} s exceeded", r.timeout))),
            _ => {}
        }
        let exit_code = i32::from(r.cmd.first().is_some_and(|c| c == "false"));
        let output = format!("ran {}", r.cmd.join(" "));
        Ok(Response::new(v1::ExecSyncResponse { stdout: output.into_bytes(), stderr: vec![], exit_code }))
    }

    async fn remove_container(&self, r: Request<v1::RemoveContainerRequest>) -> Answer<v1::RemoveContainerResponse> {
        self.state.lock().unwrap().containers.remove(&r.into_inner().container_id);
        Ok(Response::new(v1::RemoveContainerResponse {}))
    }

    async fn list_containers(&self, r: Request<v1::ListContainersRequest>) -> Answer<v1::ListContainersResponse> {
        let filter = r.into_inner().filter.unwrap_or_default();
        let state = self.state.lock().unwrap();
        let found = state.containers.values().filter(|c| {
            matches(&filter.label_selector, &c.config.labels)
                && (filter.pod_sandbox_id.is_empty() || filter.pod_sandbox_id == c.sandbox)
        });
        let containers = found.map(|c| v1::Container {
            id: c.id.clone(),
            pod_sandbox_id: c.sandbox.clone(),
            metadata: c.config.metadata.clone(),
            state: c.state as i32,
            image_ref: c.config.image.clone().unwrap_or_default().image,
            created_at: c.created_at,
            labels: c.config.labels.clone(),
            annotations: c.config.annotations.clone(),
            ..Default::default()
        });
        Ok(Response::new(v1::ListContainersResponse { containers: containers.collect() }))
    }

    async fn reopen_container_log(&self, r: Request<v1::ReopenContainerLogRequest>) -> Answer<v1::ReopenContainerLogResponse> {
        let id = r.into_inner().container_id;
        let state = self.state.lock().unwrap();
        let c = state.containers.get(&id).ok_or_else(|| no("container", &id))?;
        std::fs::write(self.path(&log_path(&state, c)), "").map_err(|e| Status::internal(e.to_string()))?;
        Ok(Response::new(v1::ReopenContainerLogResponse {}))
    }

    async fn container_status(&self, r: Request<v1::ContainerStatusRequest>) -> Answer<v1::ContainerStatusResponse> {
        let id = r.into_inner().container_id;
        let state = self.state.lock().unwrap();
        let c = state.containers.get(&id).ok_or_else(|| no("container", &id))?;
        let status = v1::ContainerStatus { log_path: log_path(&state, c), ..container_status(c) };
        let mut answer = Response::new(v1::ContainerStatusResponse { status: Some(status), ..Default::default() });
        c.stop_signal.map(|signal| answer.extensions_mut().insert(signal));
        Ok(answer)
    }

    async fn update_container_resources(&self, r: Request<v1::UpdateContainerResourcesRequest>) -> Answer<v1::UpdateContainerResourcesResponse> {
        let r = r.into_inner();
        let mut state = self.state.lock().unwrap();
        let c = state.containers.get_mut(&r.container_id).ok_or_else(|| no("container", &r.container_id))?;
        let linux = r.linux.ok_or_else(|| Status::invalid_argument("no resources"))?;
        let update = (c.config.metadata.clone().unwrap_or_default().name, linux.memory_limit_in_bytes, linux.cpu_quota);
        c.config.linux.get_or_insert_default().resources = Some(linux);
        state.updates.push(update);
        Ok(Response::new(v1::UpdateContainerResourcesResponse {}))
    }

    async fn container_stats(&self, r: Request<v1::ContainerStatsRequest>) -> Answer<v1::ContainerStatsResponse> {
        let id = r.into_inner().container_id;
        let state = self.state.lock().unwrap();
        if state.refuses.contains("ContainerStats") {
            return Err(Status::internal("statistics are broken"));
        }
        let labels = state.containers.get(&id).ok_or_else(|| no("container", &id))?.config.labels.clone();
        let used = Some(v1::UInt64Value { value: state.memory_used });
        let attributes = Some(v1::ContainerAttributes { id, labels, ..Default::default() });
        let memory = Some(v1::MemoryUsage { usage_bytes: used, working_set_bytes: used, ..Default::default() });
        Ok(Response::new(v1::ContainerStatsResponse { stats: Some(v1::ContainerStats { attributes, memory, ..Default::default() }) }))
    }

    async fn list_container_stats(&self, _: Request<v1::ListContainerStatsRequest>) -> Answer<v1::ListContainerStatsResponse> {
        let mut state = self.state.lock().unwrap();
        state.stats_asked += 1;
        let used = Some(v1::UInt64Value { value: state.memory_used });
        if state.refuses.contains("ListContainerStats") {
            return Err(Status::internal("statistics are broken"));
        }
        let value = |value| Some(v1::UInt64Value { value });
        let fs_id = Some(v1::FilesystemIdentifier { mountpoint: state.mountpoint.clone() });
        let of = |c: &Container| v1::ContainerStats {
            attributes: Some(v1::ContainerAttributes { id: c.id.clone(), labels: c.config.labels.clone(), ..Default::default() }),
            cpu: Some(v1::CpuUsage { timestamp: now(), usage_core_nano_seconds: value(1_500_000_000), ..Default::default() }),
            memory: Some(v1::MemoryUsage { timestamp: now(), working_set_bytes: used, usage_bytes: used, ..Default::default() }),
            writable_layer: Some(v1::FilesystemUsage { fs_id: fs_id.clone(), used_bytes: value(4096), ..Default::default() }),
            ..Default::default()
        };
        let running = state.containers.values().filter(|c| c.state == v1::ContainerState::ContainerRunning);
        Ok(Response::new(v1::ListContainerStatsResponse { stats: running.map(of).collect() }))
    }

    async fn list_pod_sandbox_stats(&self, _: Request<v1::ListPodSandboxStatsRequest>) -> Answer<v1::ListPodSandboxStatsResponse> {
        let state = self.state.lock().unwrap();
        if state.refuses.contains("ListPodSandboxStats") {
            return Err(Status::internal("statistics are broken"));
        }
        let value = |value| Some(v1::UInt64Value { value });
        let interface = v1::WindowsNetworkInterfaceUsage { name: "eth0".into(), rx_bytes: value(300), tx_bytes: value(40), ..Default::default() };
        let network = v1::WindowsNetworkUsage { timestamp: now(), default_interface: Some(interface), ..Default::default() };
        let of = |s: &Sandbox| v1::PodSandboxStats {
            attributes: Some(v1::PodSandboxAttributes { id: s.id.clone(), labels: s.config.labels.clone(), ..Default::default() }),
            windows: Some(v1::WindowsPodSandboxStats { network: Some(network.clone()), ..Default::default() }),
            ..Default::default()
        };
        Ok(Response::new(v1::ListPodSandboxStatsResponse { stats: state.sandboxes.values().filter(|s| s.ready).map(of).collect() }))
    }

    async fn update_runtime_config(&self, r: Request<v1::UpdateRuntimeConfigRequest>) -> Answer<v1::UpdateRuntimeConfigResponse> {
        let mut state = self.state.lock().unwrap();
        let network = r.into_inner().runtime_config.and_then(|config| config.network_config).unwrap_or_default();
        state.pod_cidrs.push(network.pod_cidr);
        // The next one succeeds.
        match state.refuses.remove("UpdateRuntimeConfig") {
            true => Err(Status::unavailable("not yet")),
            false => Ok(Response::new(v1::UpdateRuntimeConfigResponse {})),
        }
    }

    async fn list_metric_descriptors(&self, _: Request<v1::ListMetricDescriptorsRequest>) -> Answer<v1::ListMetricDescriptorsResponse> {
        let of = |name: &str| v1::MetricDescriptor { name: name.into(), help: "Of the runtime.".into(), label_keys: vec!["id".into()] };
        let descriptors = ["container_memory_working_set_bytes", "container_sockets"].map(of).to_vec();
        Ok(Response::new(v1::ListMetricDescriptorsResponse { descriptors }))
    }

    async fn list_pod_sandbox_metrics(&self, _: Request<v1::ListPodSandboxMetricsRequest>) -> Answer<v1::ListPodSandboxMetricsResponse> {
        let of = |name: &str| v1::Metric {
            name: name.into(),
            metric_type: v1::MetricType::Gauge as i32,
            label_values: vec!["/own".into()],
            value: Some(v1::UInt64Value { value: 9 }),
            ..Default::default()
        };
        let metrics = ["container_memory_working_set_bytes", "container_sockets"].map(of).to_vec();
        let pod_metrics = vec![v1::PodSandboxMetrics { metrics, ..Default::default() }];
        Ok(Response::new(v1::ListPodSandboxMetricsResponse { pod_metrics }))
    }

    type GetContainerEventsStream = std::pin::Pin<Box<dyn tokio_stream::Stream<Item = Result<v1::ContainerEventResponse, Status>> + Send>>;

    async fn get_container_events(&self, _: Request<v1::GetEventsRequest>) -> Answer<Self::GetContainerEventsStream> {
        let events = BroadcastStream::new(self.events.subscribe());
        Ok(Response::new(Box::pin(events.filter_map(|e| e.ok().map(Ok)))))
    }
} rest {
    exec(ExecRequest) -> ExecResponse;
    attach(AttachRequest) -> AttachResponse;
    port_forward(PortForwardRequest) -> PortForwardResponse;
    pod_sandbox_stats(PodSandboxStatsRequest) -> PodSandboxStatsResponse;
    checkpoint_container(CheckpointContainerRequest) -> CheckpointContainerResponse;
    runtime_config(RuntimeConfigRequest) -> RuntimeConfigResponse;
} }

cri::serve! { ImageService for Runtime {
    async fn list_images(&self, _: Request<v1::ListImagesRequest>) -> Answer<v1::ListImagesResponse> {
        let state = self.state.lock().unwrap();
        let image = |i: &String| v1::Image { id: i.clone(), repo_tags: vec![i.clone()], size: 5, ..Default::default() };
        Ok(Response::new(v1::ListImagesResponse { images: state.images.iter().map(image).collect() }))
    }

    async fn image_status(&self, r: Request<v1::ImageStatusRequest>) -> Answer<v1::ImageStatusResponse> {
        let name = r.into_inner().image.unwrap_or_default().image;
        let state = self.state.lock().unwrap();
        let uid = state.users.get(&name).map(|value| v1::Int64Value { value: *value });
        let there = state.images.contains(&name);
        let image = there.then(|| v1::Image { id: name.clone(), repo_tags: vec![name], size: 5, uid, ..Default::default() });
        Ok(Response::new(v1::ImageStatusResponse { image, ..Default::default() }))
    }

    async fn pull_image(&self, r: Request<v1::PullImageRequest>) -> Answer<v1::PullImageResponse> {
        let request = r.into_inner();
        let name = request.image.unwrap_or_default().image;
        let auth = request.auth.map(|auth| (auth.username, auth.password));
        let mut state = self.state.lock().unwrap();
        state.pulls.push(name.clone());
        state.auths.push((name.clone(), auth.clone()));
        if state.logins.get(&name).is_some_and(|login| auth.as_ref() != Some(login)) {
            let who = auth.map_or("nobody".to_owned(), |(name, _)| name);
            return Err(Status::permission_denied(format!("{who} may not pull {name:?}")));
        }
        if name.starts_with("missing") {
            return Err(Status::not_found(format!("failed to resolve reference {name:?}: not found")));
        }
        state.images.insert(name.clone());
        Ok(Response::new(v1::PullImageResponse { image_ref: name }))
    }

    async fn remove_image(&self, r: Request<v1::RemoveImageRequest>) -> Answer<v1::RemoveImageResponse> {
        self.state.lock().unwrap().images.remove(&r.into_inner().image.unwrap_or_default().image);
        Ok(Response::new(v1::RemoveImageResponse {}))
    }

    async fn image_fs_info(&self, _: Request<v1::ImageFsInfoRequest>) -> Answer<v1::ImageFsInfoResponse> {
        let fs_id = Some(v1::FilesystemIdentifier { mountpoint: "/".into() });
        let usage = v1::FilesystemUsage { fs_id, ..Default::default() };
        Ok(Response::new(v1::ImageFsInfoResponse { image_filesystems: vec![usage], ..Default::default() }))
    }
} rest {} }
