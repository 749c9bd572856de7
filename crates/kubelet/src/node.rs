//! The Node object: registration, status, conditions, lease (upstream kubelet_node_status.go,
//! nodestatus/setters.go).

pub(crate) mod addresses;
pub(crate) mod pod_cidr;
mod runtime_version;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use backoff::Backoff;
use cluster::{EventRecorder, EventType, Informer, Key};
use cri::v1;
use host::HostFacts;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeStatus, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use kube_rules::{Amounts, Quantity, is_status_ready, requests};
use serde_json::{Value, json};
use thiserror_ext::AsReport;
use tokio::sync::watch;

use crate::config::{Capacity, Config, Registration};
use crate::cri_config::NodeSide;
use crate::devices::{Count, Devices};
use crate::eviction::{Eviction, Pressure, Signal};
use crate::health::{Handler, RuntimeHealth};
use crate::images::Images;
use crate::pod::features;
use crate::services;
use crate::stats::Timings;
use addresses::Addresses;

/// The annotation that the attach controller of the control plane attaches volumes.
const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

/// Resources of huge pages, before their size.
const HUGE_PAGES: &str = "hugepages-";

/// Why a Windows node is short of memory: its capacity says nothing of page files, so that the numbers seem not to fit.
const WINDOWS_MEMORY: &str = "kubelet has insufficient memory available: what may be committed counts, page files included, and a page file that \
                              grows adds to it";

/// What a node must have an amount of to be ready.
const REQUIRED: [&str; 4] = ["cpu", "memory", "pods", "ephemeral-storage"];

/// How long an agent that starts again leaves the Node as it is while the CSINode is not written: it most often is there, and the node would
/// be shown as not ready for a moment only.
const STORAGE_PATIENCE: Duration = Duration::from_secs(2);

/// What the Node says of itself; of these only the addresses change while the agent runs.
pub(crate) struct NodeFacts {
    pub side: NodeSide,
    pub facts: HostFacts,
    pub version: String,
    pub addresses: Addresses,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<k8s_openapi::api::core::v1::Taint>,
    pub port: u16,
    pub capacity: Amounts,
    pub allocatable: Amounts,
    pub registration: Registration,
}

impl NodeFacts {
    pub(crate) fn new(config: &Config, side: NodeSide, storage: u64) -> Self {
        let capacity = capacity(&config.capacity, &config.huge_pages, storage);
        let allocatable = allocatable(&capacity, &config.reserved, &config.eviction);
        NodeFacts {
            side,
            facts: config.facts.clone(),
            version: config.version.clone(),
            addresses: Addresses::new(config.node_ips.clone(), config.find_address.clone()),
            labels: config.labels.clone(),
            taints: config.taints.clone(),
            port: config.server.as_ref().and_then(|s| s.listener.local_addr().ok()).map_or(10250, |a| a.port()),
            capacity,
            allocatable,
            registration: config.registration.clone(),
        }
    }

    fn name(&self) -> &str {
        &self.side.node_name
    }

    /// Labels the agent asserts, whatever users do.
    fn asserted_labels(&self) -> BTreeMap<String, String> {
        let os = self.side.os.name().to_owned();
        let arch = self.facts.architecture.clone();
        let mut labels = BTreeMap::from([
            ("beta.kubernetes.io/arch".to_owned(), arch.clone()),
            ("beta.kubernetes.io/os".to_owned(), os.clone()),
            ("kubernetes.io/arch".to_owned(), arch),
            ("kubernetes.io/hostname".to_owned(), self.name().to_owned()),
            ("kubernetes.io/os".to_owned(), os),
        ]);
        if let Some(build) = self.side.os.windows_build_label() {
            labels.insert("node.kubernetes.io/windows-build".into(), build);
        }
        labels
    }

    /// The addresses that a cloud's controllers are told.
    fn provided_addresses(&self) -> Option<String> {
        addresses::provided(self.registration.addresses, &self.addresses.all())
    }

    /// The Node to be created.
    fn object(&self, status: &Value) -> Value {
        let mut labels = self.labels.clone();
        labels.extend(self.asserted_labels());
        let mut spec = json!({"taints": self.taints});
        if !self.registration.provider_id.is_empty() {
            spec["providerID"] = self.registration.provider_id.clone().into();
        }
        let mut annotations = BTreeMap::from([(MANAGED, "true".to_owned())]);
        annotations.extend(self.provided_addresses().map(|ips| (addresses::PROVIDED, ips)));
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name(), "labels": labels, "annotations": annotations},
            "spec": spec,
            "status": status,
        })
    }

    /// The merge patch that gives an existing Node our labels and annotations; None where it has them.
    fn reassertion(&self, node: &ObjectMeta) -> Option<Value> {
        let label = |name: &str| node.labels.as_ref().and_then(|all| all.get(name));
        let annotation = |name: &str| node.annotations.as_ref().and_then(|all| all.get(name));
        let mut labels = self.asserted_labels();
        labels.retain(|name, value| label(name) != Some(value));
        let mut annotations = serde_json::Map::new();
        if annotation(MANAGED).is_none() {
            annotations.insert(MANAGED.to_owned(), "true".into());
        }
        let provided = self.provided_addresses();
        if annotation(addresses::PROVIDED) != provided.as_ref() {
            annotations.insert(addresses::PROVIDED.to_owned(), provided.into());
        }
        let same = labels.is_empty() && annotations.is_empty();
        (!same).then(|| json!({"metadata": {"labels": labels, "annotations": annotations}}))
    }

    /// The agent's part of the status as it should read; times of conditions come from `old` where they still hold.
    pub(crate) fn status(
        &self,
        health: &RuntimeHealth,
        images: &[v1::Image],
        pressures: &BTreeSet<Pressure>,
        old: &NodeStatus,
        now: Timestamp,
    ) -> Value {
        let quantities = |a: &Amounts| -> BTreeMap<String, String> { a.iter().map(|(k, q)| (k.clone(), q.to_string())).collect() };
        let runtime = format!("{}://{}", health.name, runtime_version::shown(&health.version));
        let mut status = json!({
            "allocatable": quantities(&self.allocatable),
            "capacity": quantities(&self.capacity),
            "conditions": self.conditions(health, pressures, old, now),
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.port}},
            "images": image_list(images, self.registration.max_images),
            "nodeInfo": {
                "architecture": self.facts.architecture,
                "bootID": self.facts.boot_id,
                "containerRuntimeVersion": if health.name.is_empty() { String::new() } else { runtime },
                "kernelVersion": self.facts.kernel_version,
                "kubeProxyVersion": "",
                "kubeletVersion": self.version,
                "machineID": self.facts.machine_id,
                "operatingSystem": self.side.os.name(),
                "osImage": self.facts.os_image,
                "systemUUID": self.facts.system_uuid,
            },
            "runtimeHandlers": health.handlers.iter().map(handler).collect::<Vec<_>>(),
        });
        if let Some(addresses) = addresses::shown(self.registration.addresses, &self.addresses.all(), self.name(), old) {
            status["addresses"] = addresses.into();
        }
        status["declaredFeatures"] = json!(features::declared(self.side.os));
        if let Some(supported) = health.groups_policy {
            status["features"] = json!({"supplementalGroupsPolicy": supported});
        }
        status
    }

    fn conditions(&self, health: &RuntimeHealth, pressures: &BTreeSet<Pressure>, old: &NodeStatus, now: Timestamp) -> Vec<NodeCondition> {
        let missing = missing_capacity(&self.capacity);
        let ready = health.runtime_ready && health.network_ready && health.messages.is_empty() && missing.is_none();
        let reasons = || health.messages.iter().cloned().chain(missing).collect::<Vec<_>>().join(", ");
        let message = if ready { "kubelet is posting ready status".to_owned() } else { reasons() };
        let under = |pressure: Pressure, yes: [&'static str; 2], no: [&'static str; 2]| {
            let (status, [reason, message]) = if pressures.contains(&pressure) { ("True", yes) } else { ("False", no) };
            (status, reason, message.to_owned())
        };
        let insufficient = if self.side.os.is_windows() { WINDOWS_MEMORY } else { "kubelet has insufficient memory available" };
        let memory = under(
            Pressure::Memory,
            ["KubeletHasInsufficientMemory", insufficient],
            ["KubeletHasSufficientMemory", "kubelet has sufficient memory available"],
        );
        let disk = under(
            Pressure::Disk,
            ["KubeletHasDiskPressure", "kubelet has disk pressure"],
            ["KubeletHasNoDiskPressure", "kubelet has no disk pressure"],
        );
        let pid = under(
            Pressure::Pid,
            ["KubeletHasInsufficientPID", "kubelet has insufficient PID available"],
            ["KubeletHasSufficientPID", "kubelet has sufficient PID available"],
        );
        let mut list = vec![
            ("MemoryPressure", memory.0, memory.1, memory.2),
            ("DiskPressure", disk.0, disk.1, disk.2),
            ("PIDPressure", pid.0, pid.1, pid.2),
            ("Ready", if ready { "True" } else { "False" }, if ready { "KubeletReady" } else { "KubeletNotReady" }, message),
        ];
        list.extend(health.host_network_condition());
        let own = list.iter().map(|(type_, status, reason, message)| {
            let before = old.conditions.iter().flatten().find(|c| c.type_ == *type_ && c.status == *status);
            let since = before.and_then(|c| c.last_transition_time.clone()).unwrap_or_else(|| seconds(now));
            NodeCondition {
                type_: (*type_).to_owned(),
                status: (*status).to_owned(),
                reason: Some((*reason).to_owned()),
                message: Some(message.clone()),
                last_heartbeat_time: Some(seconds(now)),
                last_transition_time: Some(since),
            }
        });
        own.collect()
    }
}

/// A way in which the runtime runs pods.
fn handler(handler: &Handler) -> Value {
    let features = json!({"recursiveReadOnlyMounts": handler.recursive_read_only, "userNamespaces": handler.user_namespaces});
    json!({"name": handler.name, "features": features})
}

/// What the node has.
fn capacity(declared: &Capacity, huge_pages: &BTreeMap<u64, u64>, storage: u64) -> Amounts {
    let bytes = |amount: u64| Quantity::from_bytes(i64::try_from(amount).unwrap_or(i64::MAX));
    let mut all = Amounts::from([
        ("cpu".to_owned(), Quantity::from_millis(declared.cpu_millis)),
        ("memory".to_owned(), bytes(declared.memory_bytes)),
        ("pods".to_owned(), Quantity::from_units(declared.pods.into())),
        ("ephemeral-storage".to_owned(), bytes(storage)),
    ]);
    all.extend(huge_pages.iter().map(|(size, number)| (format!("{HUGE_PAGES}{}", bytes(*size)), bytes(size.saturating_mul(*number)))));
    all
}

/// Why a node without an amount of something is not ready. An amount of none is one that could not be read, but for pods, of which a node may
/// be told to run none.
fn missing_capacity(capacity: &Amounts) -> Option<String> {
    let is_there = |name: &str| capacity.get(name).is_some_and(|amount| name == "pods" || amount.milli_value() > 0);
    let missing: Vec<&str> = REQUIRED.into_iter().filter(|name| !is_there(name)).collect();
    (!missing.is_empty()).then(|| format!("missing node capacity for resources: {}", missing.join(", ")))
}

/// What pods may request: without what is reserved, what hard eviction keeps free, and of memory what huge pages hold (upstream
/// nodestatus/setters.go `MachineInfo`, cm/node_container_manager_linux.go).
fn allocatable(capacity: &Amounts, reserved: &Amounts, eviction: &Eviction) -> Amounts {
    let huge: i64 = capacity.iter().filter(|(name, _)| name.starts_with(HUGE_PAGES)).map(|(_, q)| q.value()).fold(0, i64::saturating_add);
    let of = |(name, whole): (&String, &Quantity)| {
        let whole_bytes = u64::try_from(whole.value()).unwrap_or(0);
        let kept = |signal| i64::try_from(eviction.kept_free(signal, whole_bytes)).unwrap_or(i64::MAX);
        let taken = reserved.get(name).copied().unwrap_or(Quantity::from_units(0));
        let left = match name.as_str() {
            "memory" => {
                let taken = taken.value().saturating_add(kept(Signal::Memory)).saturating_add(huge);
                Quantity::from_bytes(whole.value().saturating_sub(taken).max(0))
            }
            // Upstream writes this one in single bytes.
            "ephemeral-storage" => {
                let taken = taken.value().saturating_add(kept(Signal::Nodefs));
                Quantity::from_units(whole.value().saturating_sub(taken).max(0))
            }
            "cpu" => Quantity::from_millis(whole.milli_value().saturating_sub(taken.milli_value()).max(0)),
            _ => *whole,
        };
        (name.clone(), left)
    };
    capacity.iter().map(of).collect()
}

/// Adds the devices of plug-ins; those whose plug-in is gone for good are shown as none (upstream nodestatus/setters.go `MachineInfo`).
fn add_devices(status: &mut Value, counts: &BTreeMap<String, Count>) {
    for (name, count) in counts {
        status["capacity"][name] = count.capacity.to_string().into();
        status["allocatable"][name] = count.allocatable.to_string().into();
    }
}

/// Shows none of the extended resources that an existing Node has: its machine is another one, until plug-ins say more (upstream
/// `reconcileExtendedResource`).
fn clear_devices(status: &mut Value, old: &NodeStatus) {
    for name in old.capacity.iter().flatten().map(|(name, _)| name).filter(|name| requests::is_extended_resource(name)) {
        for list in ["capacity", "allocatable"] {
            if status[list].get(name).is_none() {
                status[list][name] = "0".into();
            }
        }
    }
}

fn seconds(t: Timestamp) -> Time {
    Time(Timestamp::from_second(t.as_second()).unwrap_or(t))
}

/// At most so many images, biggest first, at most 5 names each.
fn image_list(images: &[v1::Image], most: Option<usize>) -> Vec<Value> {
    let mut sorted: Vec<&v1::Image> = images.iter().collect();
    sorted.sort_by_key(|i| (std::cmp::Reverse(i.size), i.id.clone()));
    let entry = |i: &&v1::Image| {
        let names: Vec<&String> = i.repo_digests.iter().chain(&i.repo_tags).take(5).collect();
        (!names.is_empty()).then(|| json!({"names": names, "sizeBytes": i.size}))
    };
    sorted.iter().filter_map(entry).take(most.unwrap_or(usize::MAX)).collect()
}

/// Whether two statuses differ in more than heartbeats.
fn differs(a: &Value, b: &Value) -> bool {
    let still = |v: &Value| {
        let mut v = v.clone();
        for c in v["conditions"].as_array_mut().into_iter().flatten() {
            c["lastHeartbeatTime"] = Value::Null;
        }
        v
    };
    still(a) != still(b)
}

/// The strategic merge patch for the agent's status. Conditions merge by type, so that those of other writers stay, whatever they
/// wrote since the agent read the Node; addresses would merge by type too, and are replaced.
fn patch(status: &Value) -> Value {
    let mut status = status.clone();
    if let Some(addresses) = status.get_mut("addresses").and_then(Value::as_array_mut) {
        addresses.push(json!({"$patch": "replace"}));
    }
    json!({"status": status})
}

/// Lists that the node needs from the API server before it can run pods: pods get the addresses of services in their environment.
#[derive(Clone)]
pub(crate) struct FirstLists {
    pub pods: Informer<Pod>,
    pub services: Informer<services::Row>,
}

impl FirstLists {
    /// What has not come yet, in the words of the Ready condition.
    fn missing(&self) -> Vec<String> {
        let pods = (!self.pods.is_synced()).then(|| ("this node's pods", self.pods.trouble()));
        let services = (!self.services.is_synced()).then(|| ("services", self.services.trouble()));
        let text = |(what, trouble): (&str, Option<String>)| match trouble {
            Some(trouble) => format!("waiting for the first list of {what} from the API server: {trouble}"),
            None => format!("waiting for the first list of {what} from the API server"),
        };
        pods.into_iter().chain(services).map(text).collect()
    }

    /// Completes when all have come.
    pub(crate) async fn complete(&self) {
        tokio::join!(self.pods.synced(), self.services.synced());
    }

    /// Completes when fewer than `missing` have not come.
    async fn fewer_than(&self, missing: usize) {
        match missing {
            0 => std::future::pending().await,
            1 => self.complete().await,
            _ => tokio::select! {
                () = self.pods.synced() => {}
                () = self.services.synced() => {}
            },
        }
    }
}

/// The loop that keeps the Node true.
pub(crate) struct NodeKeeper {
    pub client: kube::Client,
    pub facts: Arc<NodeFacts>,
    pub health: watch::Receiver<RuntimeHealth>,
    pub node: Informer<Node>,
    pub lists: FirstLists,
    pub images: Arc<Images>,
    pub recorder: EventRecorder,
    /// How often the status is computed.
    pub poll: Duration,
    /// How often it goes to the API at least.
    pub report: Duration,
    /// What the node is short of.
    pub pressures: watch::Receiver<BTreeSet<Pressure>>,
    /// Whether the machine is about to go down.
    pub goes_down: watch::Receiver<bool>,
    /// Volumes that must not be detached.
    pub in_use: watch::Receiver<BTreeSet<String>>,
    /// Why volumes of CSI drivers cannot be had yet.
    pub storage_trouble: watch::Receiver<Option<String>>,
    pub devices: Arc<Devices>,
    pub device_changes: watch::Receiver<()>,
    pub timings: Arc<Timings>,
}

impl NodeKeeper {
    fn api(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    fn reference(&self, uid: &str) -> ObjectReference {
        ObjectReference {
            kind: Some("Node".into()),
            name: Some(self.facts.name().to_owned()),
            // Upstream names the Node by its name here, and kubectl describe looks for that.
            uid: Some(if uid.is_empty() { self.facts.name() } else { uid }.to_owned()),
            ..Default::default()
        }
    }

    fn event(&self, type_: EventType, reason: &str, message: String) {
        self.recorder.event(&self.reference(""), type_, reason, None, message);
    }

    async fn compute(&self, old: &NodeStatus) -> Value {
        let mut health = self.health.borrow().clone();
        health.messages.extend(self.lists.missing());
        health.messages.extend(self.storage_trouble.borrow().clone());
        if *self.goes_down.borrow() {
            health.messages.push("node is shutting down".to_owned());
        }
        let images = if health.runtime_ready { self.images.list().await.unwrap_or_default() } else { Vec::new() };
        let mut status = self.facts.status(&health, &images, &self.pressures.borrow().clone(), old, Timestamp::now());
        let in_use = self.in_use.borrow();
        if !in_use.is_empty() {
            status["volumesInUse"] = json!(*in_use);
        } else if old.volumes_in_use.as_ref().is_some_and(|all| !all.is_empty()) {
            status["volumesInUse"] = Value::Null;
        }
        add_devices(&mut status, &self.devices.counts());
        status
    }

    /// Creates the Node, or reconciles the one that is there; retries for ever. The control plane
    /// may be starting beside us, so the pauses stay short.
    /// Returns it.
    pub(crate) async fn register(&self) -> Node {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
        loop {
            match self.try_register().await {
                Ok(node) => return node,
                Err(error) => {
                    tracing::warn!(node = self.facts.name(), error = %error.as_report(), "registering the node failed; trying again");
                    tokio::time::sleep(backoff.next_delay()).await;
                }
            }
        }
    }

    async fn try_register(&self) -> kube::Result<Node> {
        let api = self.api();
        if !self.facts.registration.make {
            return self.found().await;
        }
        let status = self.compute(&NodeStatus::default()).await;
        let object: Node = serde_json::from_value(self.facts.object(&status)).map_err(kube::Error::SerdeError)?;
        self.timings.startup.attempted(Instant::now());
        let existing = match api.create(&PostParams::default(), &object).await {
            Ok(node) => {
                self.timings.startup.made(Instant::now());
                self.event(EventType::Normal, "Starting", "Starting kubelet.".into());
                self.announce(&status, &mut false);
                return Ok(node);
            }
            Err(error) => match api.get_opt(self.facts.name()).await? {
                Some(node) => node,
                None => return Err(error),
            },
        };
        self.event(EventType::Normal, "Starting", "Starting kubelet.".into());
        let old_boot = existing.status.as_ref().and_then(|s| s.node_info.as_ref()).map(|i| i.boot_id.clone());
        if old_boot.as_ref().is_some_and(|b| !b.is_empty() && *b != self.facts.facts.boot_id) {
            let message = format!("Node {} has been rebooted, boot id: {}", self.facts.name(), self.facts.facts.boot_id);
            self.event(EventType::Warning, "Rebooted", message);
        }
        self.reassert(&existing).await?;
        self.storage_or_patience().await;
        let old = existing.status.clone().unwrap_or_default();
        let mut status = self.compute(&old).await;
        if self.devices.is_first() {
            clear_devices(&mut status, &old);
        }
        self.patch_status(&status).await
    }

    /// The Node that somebody else makes: waits for it.
    async fn found(&self) -> kube::Result<Node> {
        let mut nodes = self.node.changed();
        let mut told = false;
        let node = loop {
            if let Some(node) = self.node.get(Key::cluster(self.facts.name())) {
                break node;
            }
            if !std::mem::replace(&mut told, true) && self.node.is_synced() {
                tracing::info!(node = self.facts.name(), "waiting for the Node object: registerNode is off, so that somebody else has to make it");
            }
            // The informer lives as long as the agent.
            let _ = tokio::time::timeout(self.poll, nodes.changed()).await;
        };
        self.event(EventType::Normal, "Starting", "Starting kubelet.".into());
        self.storage_or_patience().await;
        let status = self.compute(&node.status.clone().unwrap_or_default()).await;
        self.patch_status(&status).await
    }

    /// Completes when the CSINode is written, or has not been for [`STORAGE_PATIENCE`].
    async fn storage_or_patience(&self) {
        let mut trouble = self.storage_trouble.clone();
        let _ = tokio::time::timeout(STORAGE_PATIENCE, trouble.wait_for(Option::is_none)).await;
    }

    /// Puts our labels and annotations back where a user changed them.
    async fn reassert(&self, node: &Node) -> kube::Result<()> {
        match self.facts.reassertion(&node.metadata) {
            Some(patch) => self.api().patch(self.facts.name(), &PatchParams::default(), &Patch::Merge(patch)).await.map(drop),
            None => Ok(()),
        }
    }

    async fn patch_status(&self, status: &Value) -> kube::Result<Node> {
        let patch = patch(status);
        self.api().patch_status(self.facts.name(), &PatchParams::default(), &Patch::Strategic(patch)).await
    }

    /// Keeps status and labels true, for ever. `registered` is the Node as [`Self::register`] saw it.
    pub(crate) async fn keep(mut self, registered: Node) {
        // What the Node said last: the informer may not have it yet, and what others wrote there must not be taken for missing.
        let mut old = registered.status.unwrap_or_default();
        let mut last = serde_json::to_value(&old).unwrap_or_default();
        let mut reported = tokio::time::Instant::now();
        let mut was_ready = is_status_ready(&last);
        let mut host_network = self.health.borrow().host_network.clone();
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(7));
        loop {
            let node = self.node.get(Key::cluster(self.facts.name()));
            if let Some(status) = node.as_ref().and_then(|node| node.status.clone()) {
                old = status;
            }
            let missing = self.lists.missing().len();
            self.facts.addresses.refresh().await;
            let now = Box::pin(self.compute(&old)).await;
            // The life-cycle controller writes Unknown when the lease has not been renewed for long.
            let overruled = node.is_some() && is_status_ready(&serde_json::to_value(&old).unwrap_or_default()) != is_status_ready(&last);
            if overruled || differs(&now, &last) || reported.elapsed() >= self.report {
                match Box::pin(self.patch_status(&now)).await {
                    Ok(_) => {
                        backoff.reset();
                        reported = tokio::time::Instant::now();
                        self.announce(&now, &mut was_ready);
                        self.announce_host_network(&mut host_network);
                        self.announce_pressures(&last, &now);
                        last = now;
                    }
                    Err(error) if cluster::is_not_found(&error) => {
                        tracing::warn!("the Node object is gone; registering again");
                        old = Box::pin(self.register()).await.status.unwrap_or_default();
                        last = serde_json::to_value(&old).unwrap_or_default();
                    }
                    Err(error) => {
                        tracing::warn!(node = self.facts.name(), error = %error.as_report(), "updating the node's status failed; trying again");
                        tokio::time::sleep(backoff.next_delay()).await;
                        continue;
                    }
                }
            }
            if let Some(node) = node
                && let Err(error) = Box::pin(self.reassert(&node)).await
            {
                tracing::warn!(node = self.facts.name(), error = %error.as_report(), "restoring the node's labels failed");
            }
            tokio::select! {
                _ = self.health.changed() => {}
                Ok(()) = self.pressures.changed() => {}
                Ok(()) = self.in_use.changed() => {}
                Ok(()) = self.storage_trouble.changed() => {}
                Ok(()) = self.goes_down.changed() => {}
                Ok(()) = self.device_changes.changed() => {}
                () = self.lists.fewer_than(missing) => {}
                () = tokio::time::sleep(self.poll) => {}
            }
        }
    }

    fn announce(&self, status: &Value, was_ready: &mut bool) {
        let is = is_status_ready(status);
        if is == *was_ready {
            return;
        }
        *was_ready = is;
        if is {
            self.timings.startup.is_ready(Instant::now());
        }
        let reason = if is { "NodeReady" } else { "NodeNotReady" };
        let message = format!("Node {} status is now: {reason}", self.facts.name());
        self.event(EventType::Normal, reason, message);
    }
}

impl NodeKeeper {
    /// Writes an event for each pressure that came or went.
    fn announce_pressures(&self, before: &Value, now: &Value) {
        let of = |status: &Value, type_: &str| {
            let all = status["conditions"].as_array().into_iter().flatten();
            all.filter(|c| c["type"] == type_).map(|c| c["status"].clone()).next()
        };
        for (type_, yes, no) in [
            ("MemoryPressure", "NodeHasInsufficientMemory", "NodeHasSufficientMemory"),
            ("DiskPressure", "NodeHasDiskPressure", "NodeHasNoDiskPressure"),
            ("PIDPressure", "NodeHasInsufficientPID", "NodeHasSufficientPID"),
        ] {
            let is = of(now, type_);
            if of(before, type_) != is {
                let reason = if is.is_some_and(|is| is == "True") { yes } else { no };
                self.event(EventType::Normal, reason, format!("Node {} status is now: {reason}", self.facts.name()));
            }
        }
    }

    /// Writes an event when the Host Networking Service becomes slow, goes down, or answers again.
    fn announce_host_network(&self, announced: &mut Option<hcn::watch::Health>) {
        let now = self.health.borrow().clone();
        let before = std::mem::replace(announced, now.host_network.clone());
        let reason = |health: Option<&hcn::watch::Health>| health.and_then(|h| Some(crate::health::condition(h)?.2));
        if let Some((_, status, reason_now, message)) = now.host_network_condition()
            && reason(before.as_ref()).is_some_and(|before| before != reason_now)
        {
            let type_ = if status == "False" { EventType::Normal } else { EventType::Warning };
            self.event(type_, reason_now, message);
        }
    }
}
