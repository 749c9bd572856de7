//! A CSI driver: volumes are directories of the node's own tree, or a device of this machine. It records each call, holds callers to the order that the specification
//! demands, and fails on demand.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::csi::registration::registration_server::{Registration, RegistrationServer};
use ::csi::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use ::csi::v1;
use ::csi::v1::node_server::{Node, NodeServer};
use ::csi::v1::node_service_capability::{Rpc, Type, rpc};
use ::csi::v1::volume_capability::AccessType;
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Code, Request, Response, Status};

/// What a driver is and can.
#[derive(Clone, Debug)]
pub struct Options {
    pub name: String,
    pub node_id: String,
    /// Volumes that the node holds at most; 0 for no limit.
    pub limit: i64,
    pub topology: BTreeMap<String, String>,
    pub versions: Vec<String>,
    pub kind: String,
    pub can: Vec<rpc::Type>,
}

impl Options {
    /// A driver that stages, measures and grows volumes.
    pub fn new(name: &str) -> Self {
        Options {
            name: name.into(),
            node_id: "node-1".into(),
            limit: 7,
            topology: BTreeMap::from([("topology.example.com/rack".into(), "r1".into())]),
            versions: vec!["1.0.0".into()],
            kind: "CSIPlugin".into(),
            can: vec![rpc::Type::StageUnstageVolume, rpc::Type::GetVolumeStats, rpc::Type::ExpandVolume],
        }
    }
}

/// What the driver has seen and has.
#[derive(Debug, Default)]
pub struct State {
    /// Calls with their parameters, in order.
    pub calls: Vec<(&'static str, Value)>,
    /// Volumes that are staged.
    pub staged: BTreeSet<String>,
    /// (volume, target) of volumes that are published.
    pub published: BTreeSet<(String, String)>,
    /// Answers in place of the driver's own, by call: how often, with what.
    pub faults: BTreeMap<&'static str, (u32, Code, String)>,
    /// Calls that do not end until they are taken out.
    pub hanging: BTreeSet<&'static str>,
    /// What the agent said of the registration.
    pub registrations: Vec<(bool, String)>,
}

/// A driver that runs until it is dropped.
pub struct Driver {
    state: Arc<Mutex<State>>,
    /// Where its sockets are.
    sockets: [PathBuf; 2],
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

#[derive(Clone)]
struct Service {
    options: Options,
    /// The directory that stands for the node's root.
    root: PathBuf,
    state: Arc<Mutex<State>>,
}

impl Driver {
    /// Starts a driver on a Linux or simulated Windows node whose root (or drive C) is `root`, and whose agent's directory is
    /// `var/lib/kubelet`. `state` is that of an earlier run.
    ///
    /// Panics when its sockets cannot be made.
    pub fn start(root: &Path, options: Options, state: Arc<Mutex<State>>) -> Self {
        let agent = root.join("var/lib/kubelet");
        let endpoint = format!("/var/lib/kubelet/plugins/{}/csi.sock", options.name);
        let sockets = [agent.join(format!("plugins/{}/csi.sock", options.name)), agent.join(format!("plugins_registry/{}-reg.sock", options.name))];
        let listen = |path: &PathBuf| {
            std::fs::create_dir_all(path.parent().expect("a socket is in a directory")).expect("the directory can be made");
            let _ = std::fs::remove_file(path);
            UnixListenerStream::new(UnixListener::bind(path).expect("the socket can be made"))
        };
        let service = Service { options: options.clone(), root: root.to_owned(), state: state.clone() };
        let volumes = listen(&sockets[0]);
        let router = tonic::transport::Server::builder().add_service(NodeServer::new(service.clone()));
        let node = tokio::spawn(async move { router.serve_with_incoming(volumes).await.expect("the driver serves") });
        let registration = Registrar { service, endpoint };
        let incoming = listen(&sockets[1]);
        let router = tonic::transport::Server::builder().add_service(RegistrationServer::new(registration));
        let registrar = tokio::spawn(async move { router.serve_with_incoming(incoming).await.expect("the registration is served") });
        Driver { state, sockets, tasks: vec![node, registrar] }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it has seen and has, for the next run.
    pub fn shared(&self) -> Arc<Mutex<State>> {
        self.state.clone()
    }

    /// The parameters of the calls of one name, in order.
    pub fn calls(&self, name: &str) -> Vec<Value> {
        self.state().calls.iter().filter(|(call, _)| *call == name).map(|(_, value)| value.clone()).collect()
    }

    /// Fails the next `times` calls of a name.
    pub fn fail(&self, call: &'static str, times: u32, code: Code, message: &str) {
        self.state().faults.insert(call, (times, code, message.into()));
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
        for socket in &self.sockets {
            let _ = std::fs::remove_file(socket);
        }
    }
}

struct Registrar {
    service: Service,
    endpoint: String,
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        let Options { name, versions, kind, .. } = self.service.options.clone();
        Ok(Response::new(PluginInfo { r#type: kind, name, endpoint: self.endpoint.clone(), supported_versions: versions }))
    }

    async fn notify_registration_status(&self, request: Request<RegistrationStatus>) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        self.service.lock().registrations.push((status.plugin_registered, status.error));
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

impl Service {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a path of the node is on this machine.
    fn real(&self, path: &str) -> PathBuf {
        let below = path.strip_prefix("C:").unwrap_or(path).replace('\\', "/");
        self.root.join(below.trim_start_matches('/'))
    }

    /// Records a call; an error when it is to fail.
    async fn begin(&self, call: &'static str, parameters: Value) -> Result<(), Status> {
        self.lock().calls.push((call, parameters));
        while self.lock().hanging.contains(call) {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        let mut state = self.lock();
        match state.faults.get_mut(call) {
            Some((times, code, message)) if *times > 0 => {
                *times -= 1;
                Err(Status::new(*code, message.clone()))
            }
            _ => Ok(()),
        }
    }

    fn stages(&self) -> bool {
        self.options.can.contains(&rpc::Type::StageUnstageVolume)
    }
}

fn capability(of: Option<&v1::VolumeCapability>) -> Value {
    let Some(of) = of else { return Value::Null };
    let mode = of.access_mode.as_ref().map(|mode| mode.mode().as_str_name());
    match &of.access_type {
        Some(AccessType::Mount(mount)) => {
            json!({"mode": mode, "fsType": mount.fs_type, "options": mount.mount_flags, "group": mount.volume_mount_group})
        }
        Some(AccessType::Block(_)) => json!({"mode": mode, "block": true}),
        None => json!({"mode": mode}),
    }
}

/// A block device of this machine.
///
/// Panics when it has none.
#[cfg(target_os = "linux")]
pub fn block_device() -> PathBuf {
    use std::os::unix::fs::FileTypeExt as _;
    let all = std::fs::read_dir("/dev").expect("/dev can be listed").flatten().map(|entry| entry.path());
    let devices = all.filter(|path| std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device()));
    devices.min().expect("this test needs a block device in /dev, such as /dev/loop0")
}

/// Makes the device appear at a place that does not exist, as drivers do.
#[cfg(target_os = "linux")]
fn publish_device(target: &Path) -> std::io::Result<()> {
    if !target.try_exists()? {
        std::fs::write(target, "")?;
        linux_sys::mount::bind(&block_device(), target)?;
    }
    Ok(())
}

#[cfg(target_os = "linux")]
fn unpublish_device(target: &Path) -> std::io::Result<()> {
    linux_sys::mount::umount(target)?;
    std::fs::remove_file(target)
}

#[cfg(not(target_os = "linux"))]
fn publish_device(_target: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

#[cfg(not(target_os = "linux"))]
fn unpublish_device(_target: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

fn is_block(of: Option<&v1::VolumeCapability>) -> bool {
    of.is_some_and(|of| matches!(of.access_type, Some(AccessType::Block(_))))
}

fn failed(error: &std::io::Error) -> Status {
    Status::internal(error.to_string())
}

fn refuse(why: &str) -> Status {
    Status::failed_precondition(why)
}

#[tonic::async_trait]
impl Node for Service {
    async fn node_get_capabilities(&self, _: Request<v1::NodeGetCapabilitiesRequest>) -> Result<Response<v1::NodeGetCapabilitiesResponse>, Status> {
        let of = |kind: &rpc::Type| v1::NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: (*kind).into() })) };
        Ok(Response::new(v1::NodeGetCapabilitiesResponse { capabilities: self.options.can.iter().map(of).collect() }))
    }

    async fn node_get_info(&self, _: Request<v1::NodeGetInfoRequest>) -> Result<Response<v1::NodeGetInfoResponse>, Status> {
        self.begin("NodeGetInfo", Value::Null).await?;
        let topology = v1::Topology { segments: self.options.topology.clone() };
        Ok(Response::new(v1::NodeGetInfoResponse {
            node_id: self.options.node_id.clone(),
            max_volumes_per_node: self.options.limit,
            accessible_topology: Some(topology),
        }))
    }

    async fn node_stage_volume(&self, request: Request<v1::NodeStageVolumeRequest>) -> Result<Response<v1::NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        let parameters = json!({"volume": request.volume_id, "staging": request.staging_target_path, "context": request.volume_context,
            "published": request.publish_context, "secrets": request.secrets, "capability": capability(request.volume_capability.as_ref())});
        self.begin("NodeStageVolume", parameters).await?;
        let dir = self.real(&request.staging_target_path);
        if !dir.is_dir() {
            return Err(refuse("the staging path is no directory"));
        }
        if !is_block(request.volume_capability.as_ref()) {
            std::fs::write(dir.join("device"), &request.volume_id).map_err(|error| failed(&error))?;
        }
        self.lock().staged.insert(request.volume_id);
        Ok(Response::new(v1::NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(&self, request: Request<v1::NodeUnstageVolumeRequest>) -> Result<Response<v1::NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        self.begin("NodeUnstageVolume", json!({"volume": request.volume_id, "staging": request.staging_target_path})).await?;
        let mut state = self.lock();
        if state.published.iter().any(|(volume, _)| *volume == request.volume_id) {
            return Err(refuse("the volume is still published"));
        }
        let _ = std::fs::remove_file(self.real(&request.staging_target_path).join("device"));
        state.staged.remove(&request.volume_id);
        Ok(Response::new(v1::NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(&self, request: Request<v1::NodePublishVolumeRequest>) -> Result<Response<v1::NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let parameters = json!({"volume": request.volume_id, "target": request.target_path, "staging": request.staging_target_path,
            "context": request.volume_context, "published": request.publish_context, "secrets": request.secrets, "readonly": request.readonly,
            "capability": capability(request.volume_capability.as_ref())});
        self.begin("NodePublishVolume", parameters).await?;
        let ephemeral = request.volume_id.starts_with("csi-");
        if self.stages() && !ephemeral && (request.staging_target_path.is_empty() || !self.lock().staged.contains(&request.volume_id)) {
            return Err(refuse("the volume is not staged"));
        }
        let target = self.real(&request.target_path);
        if is_block(request.volume_capability.as_ref()) {
            publish_device(&target).map_err(|error| failed(&error))?;
        } else {
            match std::fs::create_dir(&target) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(failed(&error)),
                _ => {}
            }
            std::fs::write(target.join("volume"), &request.volume_id).map_err(|error| failed(&error))?;
        }
        self.lock().published.insert((request.volume_id, request.target_path));
        Ok(Response::new(v1::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<v1::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<v1::NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        self.begin("NodeUnpublishVolume", json!({"volume": request.volume_id, "target": request.target_path})).await?;
        let target = self.real(&request.target_path);
        let gone = match std::fs::symlink_metadata(&target) {
            Ok(there) if !there.is_dir() => unpublish_device(&target),
            _ => std::fs::remove_dir_all(&target),
        };
        match gone {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(&error)),
            _ => {}
        }
        self.lock().published.remove(&(request.volume_id, request.target_path));
        Ok(Response::new(v1::NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<v1::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<v1::NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        self.begin("NodeGetVolumeStats", json!({"volume": request.volume_id, "path": request.volume_path})).await?;
        let usage = |unit: v1::volume_usage::Unit, total| v1::VolumeUsage { available: total - 1, total, used: 1, unit: unit.into() };
        let usage = vec![usage(v1::volume_usage::Unit::Bytes, 1000), usage(v1::volume_usage::Unit::Inodes, 100)];
        Ok(Response::new(v1::NodeGetVolumeStatsResponse { usage, volume_condition: None }))
    }

    async fn node_expand_volume(&self, request: Request<v1::NodeExpandVolumeRequest>) -> Result<Response<v1::NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let bytes = request.capacity_range.map_or(0, |range| range.required_bytes);
        let parameters = json!({"volume": request.volume_id, "path": request.volume_path, "staging": request.staging_target_path,
            "bytes": bytes, "secrets": request.secrets, "capability": capability(request.volume_capability.as_ref())});
        self.begin("NodeExpandVolume", parameters).await?;
        Ok(Response::new(v1::NodeExpandVolumeResponse { capacity_bytes: bytes }))
    }
}
