//! `/stats/summary`, in the form of upstream's `k8s.io/kubelet/pkg/apis/stats/v1alpha1`: usage as the runtime measures it, and files as the
//! node holds them.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use cri::labels::{CONTAINER_NAME, POD_NAME, POD_NAMESPACE, POD_UID};
use cri::v1;
use futures::StreamExt as _;
use host::{HostError, Space, Usage};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Map, Value, json};
use thiserror_ext::AsReport as _;

use super::networks;
use super::node::{self, Machine, OfPods, Rates, whole};
use super::usage::Memory;
use crate::agent::Agent;
use crate::volumes::PodDirs;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// Processors and memory alone.
    Usage,
    /// Files and networks too.
    All,
}

/// What the files of a pod take on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Files {
    /// Logs by container.
    logs: BTreeMap<String, Usage>,
    /// Volumes by name, and whether each counts to the pod's local storage.
    volumes: BTreeMap<String, (Usage, bool)>,
    /// The agent's own files for the pod.
    own: Usage,
}

/// What a summary is made of.
struct Input<'a> {
    node: &'a str,
    started: Timestamp,
    /// When node and pods were measured, exactly.
    now: Timestamp,
    memory_capacity: u64,
    containers: &'a [v1::ContainerStats],
    sandboxes: Vec<v1::PodSandboxStats>,
    /// Pods that the agent knows, by UID.
    pods: BTreeMap<String, Arc<Pod>>,
    /// None: not asked for.
    files: Option<BTreeMap<String, Files>>,
    /// File system of the agent's directory, with logs and volumes.
    space: Option<Space>,
    /// What the runtime says of images, and their file system.
    images: Option<(v1::FilesystemUsage, Option<Space>)>,
    machine: Machine,
    /// Pods as their control groups measure them.
    groups: OfPods,
}

impl Input<'_> {
    /// The time of measurement as it is shown.
    fn shown(&self) -> String {
        whole(self.now).to_string()
    }
}

/// Node and pods. What cannot be measured is left out and logged, and the rest shown.
pub(crate) async fn summary(agent: &Arc<Agent>, detail: Detail) -> Value {
    let (containers, _) = container_stats(agent).await;
    summary_of(agent, detail, &containers).await
}

/// Node and pods with these containers.
pub(crate) async fn summary_of(agent: &Arc<Agent>, detail: Detail, containers: &[v1::ContainerStats]) -> Value {
    let all = detail == Detail::All;
    let uids: Vec<&str> = containers.iter().map(|stats| label(stats, POD_UID)).collect();
    let pods = agent.all_pods().into_iter().filter_map(|pod| Some((pod.metadata.uid.clone()?, pod)));
    let pods: BTreeMap<String, Arc<Pod>> = pods.filter(|(uid, _)| uids.contains(&uid.as_str())).collect();
    let (mut sandboxes, mut images) = (Vec::new(), None);
    if all {
        let info = agent.cri.image_fs_info(v1::ImageFsInfoRequest {});
        let (networks, info) = tokio::join!(networks::of_sandboxes(agent), info);
        sandboxes = networks;
        let info = info.inspect_err(|error| tracing::warn!(error = %error.as_report(), "the runtime does not say what images take"));
        images = info.ok().and_then(|info| info.image_filesystems.into_iter().next());
    }
    let (of, known) = (Arc::clone(agent), pods.clone());
    let place = images.as_ref().and_then(|images| images.fs_id.clone()).map(|id| id.mountpoint);
    let read = tokio::task::spawn_blocking(move || {
        let (now, machine, groups) = node::read(&of, all);
        let files = all.then(|| measure(&of, &known));
        let space = all.then(|| of.root.space(&of.dir).ok()).flatten();
        let images = place.and_then(|place| of.root.space(&of.root.parse(&place).ok()?).ok());
        (now, machine, groups, files, space, images)
    });
    let (now, machine, groups, files, space, images_space) = read.await.unwrap_or_else(|error| {
        tracing::error!(%error, "statistics are without node and files: reading them failed");
        (Timestamp::now(), Machine::default(), OfPods::new(), None, None, None)
    });
    let input = Input {
        node: &agent.side.node_name,
        started: machine.started.unwrap_or(agent.started),
        now,
        memory_capacity: agent.side.capacity.memory_bytes,
        containers,
        sandboxes,
        pods,
        files,
        space,
        images: images.map(|images| (images, images_space)),
        machine,
        groups,
    };
    let mut shown = document(&input, &mut agent.rates.lock().unwrap_or_else(PoisonError::into_inner));
    if all {
        add_volumes_of_drivers(agent, &mut shown).await;
    }
    shown
}

/// Containers that are asked for at once, where a list of all fails.
const AT_ONCE: usize = 8;

/// What containers use, and whether that of some could not be read. A runtime that cannot list them all because of one is asked for each.
pub(crate) async fn container_stats(agent: &Agent) -> (Vec<v1::ContainerStats>, bool) {
    let error = match agent.cri.list_container_stats(v1::ListContainerStatsRequest { filter: None }).await {
        Ok(stats) => return (stats, false),
        Err(error) => error,
    };
    tracing::warn!(error = %error.as_report(), "the runtime does not list the usage of containers; asking for each");
    let running = v1::ContainerStateValue { state: v1::ContainerState::ContainerRunning as i32 };
    let filter = v1::ContainerFilter { state: Some(running), ..Default::default() };
    let containers = match agent.cri.list_containers(v1::ListContainersRequest { filter: Some(filter) }).await {
        Ok(containers) => containers,
        Err(error) => {
            tracing::warn!(error = %error.as_report(), "statistics are without containers: the runtime does not list them");
            return (Vec::new(), true);
        }
    };
    let ask = |container: v1::Container| async move {
        let asked = agent.cri.container_stats(v1::ContainerStatsRequest { container_id: container.id.clone() }).await;
        let left_out = |error: &cri::Error| tracing::warn!(container = container.id, error = %error.as_report(), "a container's usage is left out");
        asked.inspect_err(left_out).ok()
    };
    let stats = futures::stream::iter(containers).map(ask).buffer_unordered(AT_ONCE).filter_map(std::future::ready).collect().await;
    (stats, true)
}

/// Adds what drivers say of the volumes of pods, all drivers asked at once.
async fn add_volumes_of_drivers(agent: &Agent, shown: &mut Value) {
    let Some(pods) = shown["pods"].as_array_mut() else { return };
    let text = |pod: &Value, member: &str| pod["podRef"][member].as_str().unwrap_or_default().to_owned();
    let works = pods.iter().map(|pod| {
        let (uid, namespace) = (text(pod, "uid"), text(pod, "namespace"));
        async move { agent.csi.usage(&uid, &namespace).await }
    });
    let volumes = futures::future::join_all(works).await;
    for (pod, volumes) in pods.iter_mut().zip(volumes).filter(|(_, volumes)| !volumes.is_empty()) {
        match pod["volume"].as_array_mut() {
            Some(known) => known.extend(volumes),
            None => pod["volume"] = volumes.into(),
        }
    }
}

fn measure(agent: &Agent, pods: &BTreeMap<String, Arc<Pod>>) -> BTreeMap<String, Files> {
    let mut all = BTreeMap::new();
    for (uid, pod) in pods {
        match files(agent, pod) {
            Ok(files) => _ = all.insert(uid.clone(), files),
            Err(error) => tracing::warn!(pod = %crate::agent::key(pod), error = %error.as_report(), "a pod's files cannot be measured"),
        }
    }
    all
}

fn files(agent: &Agent, pod: &Pod) -> Result<Files, HostError> {
    let (root, dirs) = (&*agent.root, PodDirs::new(&agent.dir, &agent.logs, pod)?);
    let mut files = Files { own: dirs.own_usage(root)?, ..Files::default() };
    for container in container_names(pod) {
        files.logs.insert(container.to_owned(), root.usage(&dirs.logs.join(container)?)?);
    }
    for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
        if let Some((path, is_local)) = dirs.measured(volume)? {
            files.volumes.insert(volume.name.clone(), (root.usage(&path)?, is_local));
        }
    }
    Ok(files)
}

fn container_names(pod: &Pod) -> impl Iterator<Item = &str> {
    let spec = pod.spec.as_ref();
    let all = spec.into_iter().flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()).map(|own| own.name.as_str()));
    all.chain(spec.into_iter().flat_map(|spec| spec.ephemeral_containers.iter().flatten().map(|own| own.name.as_str())))
}

/// Processors and memory of a container, a pod or the node.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    nano_cores: Option<u64>,
    core_nanos: u64,
    memory: Memory,
    available: Option<u64>,
}

impl Sum {
    fn of(stats: &v1::ContainerStats, rates: &mut Rates) -> Self {
        let (cpu, memory) = (stats.cpu.unwrap_or_default(), stats.memory.unwrap_or_default());
        let optional = |value: &Option<v1::UInt64Value>| value.as_ref().map(|value| value.value);
        let (working_set, core_nanos) = (number(&memory.working_set_bytes), number(&cpu.usage_core_nano_seconds));
        let id = stats.attributes.as_ref().map_or("", |attributes| attributes.id.as_str());
        let measured = || rates.of(id, cpu.timestamp, core_nanos);
        Self {
            nano_cores: optional(&cpu.usage_nano_cores).or_else(measured),
            core_nanos,
            memory: Memory {
                usage: optional(&memory.usage_bytes).unwrap_or(working_set),
                working_set,
                rss: optional(&memory.rss_bytes),
                faults: number(&memory.page_faults),
                major_faults: number(&memory.major_page_faults),
                ..Memory::default()
            },
            available: optional(&memory.available_bytes).filter(|available| *available > 0),
        }
    }

    fn add(&mut self, other: Self) {
        let both = |one: Option<u64>, other: Option<u64>| match (one, other) {
            (None, other) => other,
            (one, None) => one,
            (Some(one), Some(other)) => Some(one.saturating_add(other)),
        };
        let (own, more) = (&mut self.memory, other.memory);
        own.working_set = own.working_set.saturating_add(more.working_set);
        own.usage = own.usage.saturating_add(more.usage);
        own.rss = both(own.rss, more.rss);
        own.faults = own.faults.saturating_add(more.faults);
        own.major_faults = own.major_faults.saturating_add(more.major_faults);
        self.nano_cores = both(self.nano_cores, other.nano_cores);
        self.core_nanos = self.core_nanos.saturating_add(other.core_nanos);
    }

    fn put(self, place: &mut Map<String, Value>, cpu: &str, memory: &str) {
        place.insert("cpu".into(), node::cpu(cpu, self.core_nanos, self.nano_cores));
        place.insert("memory".into(), node::memory(memory, &self.memory, self.available));
    }
}

/// A pod while its containers are added up.
#[derive(Default)]
struct PodSum {
    value: Map<String, Value>,
    containers: Vec<Value>,
    sum: Sum,
    layers: Usage,
    /// Bytes of swap that containers use, those that they may use yet, and when the last was measured.
    swap: Option<(u64, u64, i64)>,
}

fn document(input: &Input<'_>, rates: &mut Rates) -> Value {
    let at = i64::try_from(input.now.as_nanosecond()).unwrap_or_default();
    rates.sweep(at);
    let mut pods: Vec<(String, PodSum)> = Vec::new();
    let mut node = Sum::default();
    for stats in input.containers {
        let uid = label(stats, POD_UID).to_owned();
        let pod = input.pods.get(&uid);
        let own = Sum::of(stats, rates);
        node.add(own);
        let at = pods.iter().position(|(known, _)| *known == uid).unwrap_or_else(|| {
            let reference = json!({"name": label(stats, POD_NAME), "namespace": label(stats, POD_NAMESPACE), "uid": uid});
            let start = pod.and_then(|pod| pod.status.as_ref()?.start_time.clone());
            let value = Map::from_iter([("podRef".to_owned(), reference), ("startTime".to_owned(), json!(start))]);
            pods.push((uid.clone(), PodSum { value, ..PodSum::default() }));
            pods.len() - 1
        });
        let sums = &mut pods[at].1;
        sums.sum.add(own);
        let layer = stats.writable_layer.clone().unwrap_or_default();
        let layer = Usage { bytes: number(&layer.used_bytes), inodes: number(&layer.inodes_used) };
        sums.layers = both(sums.layers, layer);
        if let Some(swap) = &stats.swap {
            let (used, free, at) = sums.swap.unwrap_or_default();
            let sum = |one: u64, more: &Option<v1::UInt64Value>| one.saturating_add(number(more));
            sums.swap = Some((sum(used, &swap.swap_usage_bytes), sum(free, &swap.swap_available_bytes), at.max(swap.timestamp)));
        }
        sums.containers.push(container(input, stats, own, pod, layer));
    }
    for (uid, sums) in &mut pods {
        let Some(group) = input.groups.get(uid.as_str()) else { continue };
        // What the pod's own group counts has the sandbox in it, and containers that ended.
        if let Some(cpu) = group.cpu {
            (sums.sum.core_nanos, sums.sum.nano_cores) = (cpu.total, rates.of(uid, at, cpu.total).or(sums.sum.nano_cores));
        }
        sums.sum.memory = group.memory.unwrap_or(sums.sum.memory);
    }
    let pods: Vec<Value> = pods.into_iter().map(|(uid, sums)| finish(input, &uid, sums)).collect();
    json!({"node": node_document(input, node, rates), "pods": pods})
}

fn node_document(input: &Input<'_>, sum: Sum, rates: &mut Rates) -> Map<String, Value> {
    let now = input.shown();
    let sum = (sum.core_nanos, sum.nano_cores.unwrap_or(0), sum.memory);
    let mut value = node::document(&input.machine, sum, input.memory_capacity, input.now, rates);
    value.insert("nodeName".into(), json!(input.node));
    value.insert("startTime".into(), json!(whole(input.started).to_string()));
    if let Some(space) = input.space {
        let used = Usage { bytes: space.capacity.saturating_sub(space.available), inodes: space.inodes.saturating_sub(space.inodes_free) };
        value.insert("fs".into(), fs(&now, input.space, used));
    }
    if let Some((images, space)) = &input.images {
        let used = Usage { bytes: number(&images.used_bytes), inodes: number(&images.inodes_used) };
        let images = fs(&now, *space, used);
        value.insert("runtime".into(), json!({"imageFs": images, "containerFs": images}));
    }
    value
}

fn container(input: &Input<'_>, stats: &v1::ContainerStats, sum: Sum, pod: Option<&Arc<Pod>>, layer: Usage) -> Value {
    let name = label(stats, CONTAINER_NAME);
    let status = pod.and_then(|pod| pod.status.as_ref());
    let mut value = Map::new();
    value.insert("name".into(), json!(name));
    value.insert("startTime".into(), json!(status.and_then(|status| container_start(status, name))));
    let times = [stats.cpu.map(|cpu| cpu.timestamp), stats.memory.map(|memory| memory.timestamp)].map(|nanos| time(nanos.unwrap_or_default()));
    sum.put(&mut value, &times[0], &times[1]);
    if let Some(swap) = &stats.swap {
        let (used, free) = (number(&swap.swap_usage_bytes), number(&swap.swap_available_bytes));
        value.insert("swap".into(), json!({"time": time(swap.timestamp), "swapUsageBytes": used, "swapAvailableBytes": free}));
    }
    let uid = label(stats, POD_UID);
    if let Some(files) = &input.files {
        let now = input.shown();
        value.insert("rootfs".into(), fs(&now, input.space, layer));
        let logs = files.get(uid).and_then(|files| files.logs.get(name).copied());
        value.insert("logs".into(), fs(&now, input.space, logs.unwrap_or_default()));
    }
    Value::Object(value)
}

fn finish(input: &Input<'_>, uid: &str, sums: PodSum) -> Value {
    let now = input.shown();
    let mut value = sums.value;
    value.insert("containers".into(), Value::Array(sums.containers));
    sums.sum.put(&mut value, &now, &now);
    if let Some((used, free, at)) = sums.swap {
        value.insert("swap".into(), json!({"time": time(at), "swapUsageBytes": used, "swapAvailableBytes": free}));
    }
    if let Some(files) = &input.files {
        let files = files.get(uid).cloned().unwrap_or_default();
        let volumes = files.volumes.iter().map(|(name, (used, _))| {
            let mut volume = fs(&now, input.space, *used);
            volume["name"] = json!(name);
            volume
        });
        value.insert("volume".into(), volumes.collect());
        let on_disk = files.volumes.values().filter(|(_, is_local)| *is_local).map(|(used, _)| *used);
        let local = on_disk.chain(files.logs.values().copied()).chain([files.own]).fold(sums.layers, both);
        value.insert("ephemeral-storage".into(), fs(&now, input.space, local));
    }
    let sandbox =
        input.sandboxes.iter().find(|stats| stats.attributes.as_ref().is_some_and(|own| own.labels.get(POD_UID).is_some_and(|own| own == uid)));
    let of_group = || {
        let interfaces = &input.groups.get(uid)?.interfaces;
        node::network(&now, node::default_of(interfaces), interfaces)
    };
    if let Some(network) = sandbox.and_then(network).or_else(of_group) {
        value.insert("network".into(), network);
    }
    if let Some(count) = sandbox.and_then(|stats| stats.linux.as_ref()?.process?.process_count) {
        value.insert("process_stats".into(), json!({"process_count": count.value}));
    }
    Value::Object(value)
}

/// The interfaces of a pod, the default one at the top.
fn network(stats: &v1::PodSandboxStats) -> Option<Value> {
    let (at, interfaces) = networks::of_sandbox(stats)?;
    node::network(&time(at), interfaces.first(), &interfaces)
}

/// What is used of a file system, and what it has.
fn fs(now: &str, space: Option<Space>, used: Usage) -> Value {
    let mut value = json!({"time": now, "usedBytes": used.bytes, "inodesUsed": used.inodes});
    if let Some(space) = space {
        value["availableBytes"] = json!(space.available);
        value["capacityBytes"] = json!(space.capacity);
        value["inodes"] = json!(space.inodes);
        value["inodesFree"] = json!(space.inodes_free);
    }
    value
}

fn both(one: Usage, other: Usage) -> Usage {
    Usage { bytes: one.bytes.saturating_add(other.bytes), inodes: one.inodes.saturating_add(other.inodes) }
}

fn time(nanos: i64) -> String {
    whole(Timestamp::from_nanosecond(nanos.into()).unwrap_or_default()).to_string()
}

fn number(value: &Option<v1::UInt64Value>) -> u64 {
    value.as_ref().map_or(0, |value| value.value)
}

fn label<'a>(stats: &'a v1::ContainerStats, name: &str) -> &'a str {
    let labels = stats.attributes.as_ref().map(|a| &a.labels);
    labels.and_then(|l| l.get(name)).map_or("", String::as_str)
}

/// When a container that runs now was started.
fn container_start(status: &PodStatus, name: &str) -> Option<Time> {
    let all = status.container_statuses.iter().flatten();
    let mut all = all.chain(status.init_container_statuses.iter().flatten());
    let state = all.find(|c| c.name == name)?.state.as_ref()?;
    state.running.as_ref()?.started_at.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(pod: &str, name: &str, core_nanos: u64, working_set: u64) -> v1::ContainerStats {
        let labels = [(POD_UID, pod), (POD_NAME, pod), (POD_NAMESPACE, "ns"), (CONTAINER_NAME, name)];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().collect();
        let value = |value| Some(v1::UInt64Value { value });
        v1::ContainerStats {
            attributes: Some(v1::ContainerAttributes { labels, ..Default::default() }),
            cpu: Some(v1::CpuUsage { timestamp: 5_000_000_000, usage_core_nano_seconds: value(core_nanos), usage_nano_cores: value(7) }),
            memory: Some(v1::MemoryUsage { timestamp: 5_000_000_000, working_set_bytes: value(working_set), ..Default::default() }),
            writable_layer: Some(v1::FilesystemUsage { used_bytes: value(1000), inodes_used: value(3), ..Default::default() }),
            ..Default::default()
        }
    }

    fn containers() -> [v1::ContainerStats; 3] {
        [stats("a", "one", 100, 10), stats("b", "one", 1, 1), stats("a", "two", 50, 5)]
    }

    fn input(containers: &[v1::ContainerStats], files: Option<BTreeMap<String, Files>>) -> Input<'_> {
        let second = |second| Timestamp::from_second(second).unwrap();
        let labels = [(POD_UID.to_owned(), "a".to_owned())].into_iter().collect();
        let interface = v1::WindowsNetworkInterfaceUsage { name: "eth0".into(), rx_bytes: Some(v1::UInt64Value { value: 9 }), ..Default::default() };
        let network = v1::WindowsNetworkUsage { timestamp: 5_000_000_000, default_interface: Some(interface), interfaces: Vec::new() };
        let sandbox = v1::PodSandboxStats {
            attributes: Some(v1::PodSandboxAttributes { labels, ..Default::default() }),
            windows: Some(v1::WindowsPodSandboxStats { network: Some(network), ..Default::default() }),
            ..Default::default()
        };
        Input {
            node: "win01",
            started: second(1),
            now: second(5),
            memory_capacity: 1 << 30,
            containers,
            sandboxes: vec![sandbox],
            pods: BTreeMap::new(),
            files,
            space: Some(Space { capacity: 5000, available: 4000, inodes: 100, inodes_free: 90 }),
            images: Some((v1::FilesystemUsage { used_bytes: Some(v1::UInt64Value { value: 77 }), ..Default::default() }, None)),
            machine: Machine::default(),
            groups: OfPods::new(),
        }
    }

    #[test]
    fn pods_are_the_sum_of_their_containers_and_the_node_of_its_pods() {
        let of = |bytes| Usage { bytes, inodes: 1 };
        let files = Files {
            logs: [("one".to_owned(), of(70))].into(),
            volumes: [("disk".to_owned(), (of(200), true)), ("memory".to_owned(), (of(300), false))].into(),
            own: of(4),
        };
        let document = document(&input(&containers(), Some([("a".to_owned(), files)].into())), &mut Rates::default());
        let pod = &document["pods"][0];
        assert_eq!((&pod["cpu"]["usageCoreNanoSeconds"], &pod["cpu"]["usageNanoCores"]), (&json!(150), &json!(14)));
        assert_eq!((&pod["memory"]["workingSetBytes"], &pod["memory"]["usageBytes"]), (&json!(15), &json!(15)));
        assert_eq!(
            document["node"]["memory"],
            json!({"time": "1970-01-01T00:00:05Z", "workingSetBytes": 16, "usageBytes": 16, "availableBytes": (1 << 30) - 16})
        );
        assert_eq!(document["node"]["fs"]["usedBytes"], json!(1000));
        assert_eq!(document["node"]["runtime"]["imageFs"]["usedBytes"], json!(77));
        assert_eq!(document["node"]["systemContainers"][0]["memory"]["workingSetBytes"], json!(16));
        let logs = json!({"time": "1970-01-01T00:00:05Z", "usedBytes": 70, "inodesUsed": 1, "availableBytes": 4000, "capacityBytes": 5000,
                          "inodes": 100, "inodesFree": 90});
        assert_eq!(pod["containers"][0]["logs"], logs);
        assert_eq!((&pod["containers"][1]["logs"]["usedBytes"], &pod["containers"][1]["rootfs"]["usedBytes"]), (&json!(0), &json!(1000)));
        // Two layers, the logs, the volume on the disk and the agent's own files.
        assert_eq!((&pod["ephemeral-storage"]["usedBytes"], &pod["ephemeral-storage"]["inodesUsed"]), (&json!(2274), &json!(9)));
        assert_eq!((&pod["volume"][1]["name"], &pod["volume"][1]["usedBytes"]), (&json!("memory"), &json!(300)));
        assert_eq!((&pod["network"]["rxBytes"], &pod["network"]["interfaces"][0]["name"]), (&json!(9), &json!("eth0")));
        assert_eq!(document["pods"][1]["network"], Value::Null);
    }

    #[test]
    fn a_pod_is_what_its_control_group_counts() {
        let containers = containers();
        let mut input = input(&containers, None);
        let of = |usage| Some(Memory { usage, working_set: usage / 2, rss: Some(3), ..Memory::default() });
        let group = node::OfPod {
            cpu: Some(crate::stats::usage::Cpu { total: 500, user: None, system: None }),
            memory: of(90),
            interfaces: vec![crate::stats::usage::Interface { name: "eth0".into(), received: [8, 0, 0, 0].map(Some), sent: [None; 4] }],
        };
        let earlier = node::OfPod { cpu: Some(crate::stats::usage::Cpu { total: 380, user: None, system: None }), ..group.clone() };
        let mut rates = Rates::default();
        input.groups.insert("b".to_owned(), earlier);
        input.now = Timestamp::from_millisecond(5900).unwrap();
        document(&input, &mut rates);
        input.groups.insert("b".to_owned(), group);
        input.now = Timestamp::from_millisecond(7100).unwrap();
        let document = document(&input, &mut rates);
        let pod = &document["pods"][1];
        assert_eq!(pod["podRef"]["uid"], "b");
        assert_eq!((&pod["cpu"]["usageNanoCores"], &pod["cpu"]["time"]), (&json!(100), &json!("1970-01-01T00:00:07Z")));
        assert_eq!(
            (&pod["cpu"]["usageCoreNanoSeconds"], &pod["memory"]["usageBytes"], &pod["memory"]["rssBytes"]),
            (&json!(500), &json!(90), &json!(3))
        );
        assert_eq!((&pod["network"]["rxBytes"], &pod["containers"][0]["memory"]["usageBytes"]), (&json!(8), &json!(1)));
        assert_eq!(document["pods"][0]["memory"]["usageBytes"], json!(15), "one without a group is the sum of its containers");
    }

    #[test]
    fn files_are_left_out_where_they_are_not_asked_for() {
        let document = document(&input(&containers(), None), &mut Rates::default());
        let pod = &document["pods"][0];
        for missing in [&pod["volume"], &pod["ephemeral-storage"], &pod["containers"][0]["logs"], &pod["containers"][0]["rootfs"]] {
            assert_eq!(missing, &Value::Null);
        }
        assert_eq!(pod["cpu"]["usageCoreNanoSeconds"], json!(150));
    }
}
