//! The Node object: registration, status, conditions, lease (upstream kubelet_node_status.go,
//! nodestatus/setters.go).

mod addresses;
pub(crate) mod pod_cidr;
mod runtime_version;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

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
use crate::services;

/// The annotation that the attach controller of the control plane attaches volumes.
const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

/// Resources of huge pages, before their size.
const HUGE_PAGES: &str = "hugepages-";

/// Everything the Node says that does not change while the agent runs.
pub(crate) struct NodeFacts {
    pub side: NodeSide,
    pub facts: HostFacts,
    pub version: String,
    pub addresses: Vec<String>,
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
            addresses: config.node_ips.iter().map(ToString::to_string).collect(),
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
        addresses::provided(self.registration.addresses, &self.addresses)
    }

    /// What scheduler and API server may count on, in upstream's names (component-helpers/nodedeclaredfeatures), sorted. Of those that
    /// upstream 1.36 declares the agent has no RestartAllContainersOnContainerExits, no InPlacePodLevelResourcesVerticalScaling and no
    /// ExtendWebSocketsToKubelet. No pod is resized on Windows.
    fn declared_features(&self) -> &'static [&'static str] {
        if self.side.os.is_windows() { &[] } else { &["InPlacePodVerticalScalingInitContainers"] }
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
        if let Some(addresses) = addresses::shown(self.registration.addresses, &self.addresses, self.name(), old) {
            status["addresses"] = addresses.into();
        }
        let declared = self.declared_features();
        if !declared.is_empty() {
            status["declaredFeatures"] = json!(declared);
        }
        if let Some(supported) = health.groups_policy {
            status["features"] = json!({"supplementalGroupsPolicy": supported});
        }
        status
    }

    fn conditions(&self, health: &RuntimeHealth, pressures: &BTreeSet<Pressure>, old: &NodeStatus, now: Timestamp) -> Vec<NodeCondition> {
        let ready = health.runtime_ready && health.network_ready && health.messages.is_empty();
        let message = if ready { "kubelet is posting ready status".to_owned() } else { health.messages.join(", ") };
        let under = |pressure: Pressure, yes: [&'static str; 2], no: [&'static str; 2]| {
            let (status, [reason, message]) = if pressures.contains(&pressure) { ("True", yes) } else { ("False", no) };
            (status, reason, message.to_owned())
        };
        let memory = under(
            Pressure::Memory,
            ["KubeletHasInsufficientMemory", "kubelet has insufficient memory available"],
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
    if let Some(addresses) = status["addresses"].as_array_mut() {
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
    pub devices: Arc<Devices>,
    pub device_changes: watch::Receiver<()>,
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
        let existing = match api.create(&PostParams::default(), &object).await {
            Ok(node) => {
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
        let status = self.compute(&node.status.clone().unwrap_or_default()).await;
        self.patch_status(&status).await
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
        let mut last = serde_json::to_value(registered.status.unwrap_or_default()).unwrap_or_default();
        let mut reported = tokio::time::Instant::now();
        let mut was_ready = is_status_ready(&last);
        let mut host_network = self.health.borrow().host_network.clone();
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(7));
        loop {
            let node = self.node.get(Key::cluster(self.facts.name()));
            let old = node.as_ref().and_then(|n| n.status.clone()).unwrap_or_default();
            let missing = self.lists.missing().len();
            let now = self.compute(&old).await;
            // The life-cycle controller writes Unknown when the lease has not been renewed for long.
            let overruled = node.is_some() && is_status_ready(&serde_json::to_value(&old).unwrap_or_default()) != is_status_ready(&last);
            if overruled || differs(&now, &last) || reported.elapsed() >= self.report {
                match self.patch_status(&now).await {
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
                        self.register().await;
                    }
                    Err(error) => {
                        tracing::warn!(node = self.facts.name(), error = %error.as_report(), "updating the node's status failed; trying again");
                        tokio::time::sleep(backoff.next_delay()).await;
                        continue;
                    }
                }
            }
            if let Some(node) = node
                && let Err(error) = self.reassert(&node).await
            {
                tracing::warn!(node = self.facts.name(), error = %error.as_report(), "restoring the node's labels failed");
            }
            tokio::select! {
                _ = self.health.changed() => {}
                Ok(()) = self.pressures.changed() => {}
                Ok(()) = self.in_use.changed() => {}
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::AddressSource;
    use crate::config::{Capacity, Resolver};
    use host::NodeOs;

    fn facts() -> NodeFacts {
        let capacity = Capacity { cpu_millis: 8000, memory_bytes: 16 << 30, pods: 110, ephemeral_storage_bytes: 0 };
        let os = NodeOs::Windows { build: 20348 };
        NodeFacts {
            side: NodeSide {
                os,
                node_name: "win01".into(),
                capacity,
                hyper_v_container: false,
                cluster_dns: vec![],
                cluster_domain: String::new(),
                resolver: Resolver::default(),
                kernel: Default::default(),
                pod_groups: None,
                cgroups: Default::default(),
                runtime_cgroups: Default::default(),
                seccomp_default: false,
                seccomp_dir: String::new(),
                modules: Default::default(),
                unsafe_sysctls: vec![],
            },
            facts: HostFacts::simulated(os, "m", "b"),
            version: "v1.36.2+mullion.0.1.0".into(),
            addresses: vec!["10.240.0.12".into()],
            labels: BTreeMap::new(),
            taints: vec![],
            port: 10250,
            capacity: Amounts::from([("cpu".to_owned(), Quantity::from_millis(8000))]),
            allocatable: Amounts::new(),
            registration: Registration::default(),
        }
    }

    fn health(network: bool) -> RuntimeHealth {
        RuntimeHealth {
            name: "sim".into(),
            version: "0.1.0".into(),
            runtime_ready: true,
            network_ready: network,
            connects: network,
            host_network: None,
            messages: if network { vec![] } else { vec!["container runtime network not ready: x".into()] },
            handlers: vec![],
            groups_policy: Some(true),
        }
    }

    #[test]
    fn labels_and_info() {
        let f = facts();
        let labels = f.asserted_labels();
        assert_eq!(labels["node.kubernetes.io/windows-build"], "10.0.20348");
        assert_eq!(labels["beta.kubernetes.io/os"], "windows");
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let s = f.status(&health(true), &[], &BTreeSet::new(), &NodeStatus::default(), now);
        assert_eq!(s["nodeInfo"]["osImage"], "Windows Server 2022 Datacenter");
        assert_eq!(s["nodeInfo"]["containerRuntimeVersion"], "sim://0.1.0");
        assert_eq!(s["capacity"]["cpu"], "8");
        let types: Vec<&str> = s["conditions"].as_array().unwrap().iter().map(|c| c["type"].as_str().unwrap()).collect();
        assert_eq!(types, ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]);
        serde_json::from_value::<Node>(f.object(&s)).unwrap();
    }

    #[test]
    fn a_node_says_what_it_and_its_runtime_can() {
        let mut f = facts();
        let offers = |name: &str, user_namespaces, recursive_read_only| Handler { name: name.into(), user_namespaces, recursive_read_only };
        let health = |handlers, groups_policy| RuntimeHealth { handlers, groups_policy, ..health(true) };
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let status = |f: &NodeFacts, health| f.status(&health, &[], &BTreeSet::new(), &NodeStatus::default(), now);
        let s = status(&f, health(vec![offers("", true, false), offers("kata", false, true)], Some(false)));
        let of = |users: bool, recursive: bool| json!({"recursiveReadOnlyMounts": recursive, "userNamespaces": users});
        assert_eq!(s["runtimeHandlers"], json!([{"name": "", "features": of(true, false)}, {"name": "kata", "features": of(false, true)}]));
        assert_eq!(s["features"], json!({"supplementalGroupsPolicy": false}));
        assert_eq!(s["declaredFeatures"], Value::Null, "nothing is resized on Windows");
        f.side.os = NodeOs::Linux;
        let s = status(&f, health(vec![], None));
        assert_eq!((s["runtimeHandlers"].clone(), s["features"].clone()), (json!([]), Value::Null), "an old runtime says nothing");
        assert_eq!(s["declaredFeatures"], json!(["InPlacePodVerticalScalingInitContainers"]));
        serde_json::from_value::<NodeStatus>(s).unwrap();
    }

    #[test]
    fn pods_get_what_is_not_reserved_and_not_kept_free() {
        let declared = Capacity { cpu_millis: 4000, memory_bytes: 8 << 30, pods: 110, ephemeral_storage_bytes: 0 };
        let huge = BTreeMap::from([(2 << 20, 512), (1 << 30, 0)]);
        let whole = capacity(&declared, &huge, 100 << 30);
        let text = |amounts: &Amounts| amounts.iter().map(|(name, q)| format!("{name}={q}")).collect::<Vec<_>>();
        assert_eq!(text(&whole), ["cpu=4", "ephemeral-storage=100Gi", "hugepages-1Gi=0", "hugepages-2Mi=1Gi", "memory=8Gi", "pods=110"]);
        let list = |list: &[(&str, &str)]| list.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<BTreeMap<_, _>>();
        let hard = list(&[("memory.available", "512Mi"), ("nodefs.available", "10%"), ("pid.available", "5%")]);
        let soft = list(&[("memory.available", "2Gi")]);
        let graces = BTreeMap::from([("memory.available".to_owned(), Duration::from_secs(90))]);
        let thresholds = Eviction::thresholds(&hard, &soft, &graces, &BTreeMap::new()).unwrap();
        let eviction = Eviction { thresholds, ..Eviction::default() };
        let quantity = |text: &str| Quantity::parse(text).unwrap();
        let reserved = |list: &[(&str, &str)]| list.iter().map(|(k, v)| ((*k).to_owned(), quantity(v))).collect::<Amounts>();
        let left = allocatable(&whole, &reserved(&[("cpu", "250m"), ("memory", "1Gi"), ("ephemeral-storage", "10Gi"), ("pid", "100")]), &eviction);
        assert_eq!(text(&left), ["cpu=3750m", "ephemeral-storage=85899345920", "hugepages-1Gi=0", "hugepages-2Mi=1Gi", "memory=5632Mi", "pods=110"]);
        let left = allocatable(&whole, &reserved(&[("cpu", "5"), ("memory", "9Gi"), ("ephemeral-storage", "1Ti")]), &eviction);
        assert_eq!(text(&left), ["cpu=0", "ephemeral-storage=0", "hugepages-1Gi=0", "hugepages-2Mi=1Gi", "memory=0", "pods=110"], "never below zero");
    }

    #[test]
    fn pressures_are_conditions() {
        let (f, now) = (facts(), Timestamp::from_second(1_700_000_000).unwrap());
        let shown = |pressures: &[Pressure]| {
            let status = f.status(&health(true), &[], &pressures.iter().copied().collect(), &NodeStatus::default(), now);
            let of = |c: &Value| format!("{}={} {}", c["type"].as_str().unwrap(), c["status"].as_str().unwrap(), c["reason"].as_str().unwrap());
            status["conditions"].as_array().unwrap()[..3].iter().map(of).collect::<Vec<_>>()
        };
        let none = [
            "MemoryPressure=False KubeletHasSufficientMemory",
            "DiskPressure=False KubeletHasNoDiskPressure",
            "PIDPressure=False KubeletHasSufficientPID",
        ];
        assert_eq!(shown(&[]), none);
        let all = [
            "MemoryPressure=True KubeletHasInsufficientMemory",
            "DiskPressure=True KubeletHasDiskPressure",
            "PIDPressure=True KubeletHasInsufficientPID",
        ];
        assert_eq!(shown(&[Pressure::Memory, Pressure::Disk, Pressure::Pid]), all);
    }

    #[test]
    fn readiness_keeps_its_times_and_leaves_foreign_conditions_alone() {
        let f = facts();
        let at = |s: i64| Timestamp::from_second(1_700_000_000 + s).unwrap();
        let first = f.status(&health(false), &[], &BTreeSet::new(), &NodeStatus::default(), at(0));
        assert!(!is_status_ready(&first));
        let mut old: NodeStatus = serde_json::from_value(first.clone()).unwrap();
        old.conditions.as_mut().unwrap().push(NodeCondition { type_: "NetworkUnavailable".into(), status: "False".into(), ..Default::default() });
        let again = f.status(&health(false), &[], &BTreeSet::new(), &old, at(5));
        let ready_of = |s: &Value| s["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "Ready").unwrap().clone();
        assert_eq!(ready_of(&again)["lastTransitionTime"], ready_of(&first)["lastTransitionTime"]);
        assert_eq!(ready_of(&again)["message"], "container runtime network not ready: x");
        let sent = patch(&again)["status"].clone();
        assert!(sent["conditions"].as_array().unwrap().iter().all(|c| c["type"] != "NetworkUnavailable"), "it belongs to others");
        assert_eq!(sent["addresses"].as_array().unwrap().last(), Some(&json!({"$patch": "replace"})));
        let later = f.status(&health(true), &[], &BTreeSet::new(), &old, at(9));
        assert!(is_status_ready(&later) && differs(&later, &again));
        assert_eq!(ready_of(&later)["lastTransitionTime"], "2023-11-14T22:13:29Z");
        let beat = f.status(&health(true), &[], &BTreeSet::new(), &serde_json::from_value(later.clone()).unwrap(), at(19));
        assert!(!differs(&beat, &later), "a heartbeat alone is no change");
    }

    #[test]
    fn a_node_says_which_machine_of_a_cloud_it_is() {
        let mut facts = facts();
        assert_eq!(facts.object(&json!({}))["spec"], json!({"taints": []}));
        facts.registration.provider_id = "cloud://zone/7".into();
        assert_eq!(facts.object(&json!({}))["spec"]["providerID"], "cloud://zone/7");
    }

    #[test]
    fn labels_and_annotations_are_put_back() {
        let mut facts = facts();
        let made: Node = serde_json::from_value(facts.object(&json!({}))).unwrap();
        assert_eq!(facts.reassertion(&made.metadata), None);
        let mut changed = made.metadata.clone();
        changed.labels.as_mut().unwrap().insert("kubernetes.io/os".into(), "plan9".into());
        changed.annotations = Some(BTreeMap::from([("mine".into(), "1".into())]));
        let wanted = json!({"labels": {"kubernetes.io/os": "windows"}, "annotations": {MANAGED: "true"}});
        assert_eq!(facts.reassertion(&changed), Some(json!({"metadata": wanted})), "and nothing of others");
        facts.registration.addresses = AddressSource::Cloud { given: true };
        let tells = facts.reassertion(&made.metadata).unwrap();
        assert_eq!(tells["metadata"], json!({"labels": {}, "annotations": {"alpha.kubernetes.io/provided-node-ip": "10.240.0.12"}}));
        let told: Node = serde_json::from_value(facts.object(&json!({}))).unwrap();
        assert_eq!(facts.reassertion(&told.metadata), None);
        facts.registration.addresses = AddressSource::Cloud { given: false };
        let stale = facts.reassertion(&told.metadata).unwrap();
        assert_eq!(stale["metadata"]["annotations"], json!({"alpha.kubernetes.io/provided-node-ip": null}));
    }

    #[test]
    fn images_are_bounded() {
        let image = |n: u64| v1::Image { id: format!("i{n}"), repo_tags: vec![format!("t{n}"); 9], size: n, ..Default::default() };
        let images: Vec<_> = (0..70).map(image).collect();
        for (most, length) in [(Some(50), 50), (Some(0), 0), (Some(80), 70), (None, 70)] {
            assert_eq!(image_list(&images, most).len(), length);
        }
        let list = image_list(&images, Some(50));
        assert_eq!(list[0]["sizeBytes"], 69);
        assert_eq!(list[0]["names"].as_array().unwrap().len(), 5);
    }
}
