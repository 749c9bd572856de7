//! `/stats/summary`, in the form of upstream's `k8s.io/kubelet/pkg/apis/stats/v1alpha1`: usage as the runtime measures it, and files as the
//! node holds them.

use std::collections::BTreeMap;
use std::sync::Arc;

use cri::labels::{CONTAINER_NAME, POD_NAME, POD_NAMESPACE, POD_UID};
use cri::v1;
use host::{HostError, HostRoot, PodPath, Space, Usage};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Map, Value, json};
use thiserror_ext::AsReport as _;

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
    /// Volumes emptyDir by name.
    empty_dirs: BTreeMap<String, Usage>,
    /// Those of them that are in memory.
    in_memory: Vec<String>,
    /// The agent's own files for the pod.
    own: Usage,
}

/// What a summary is made of.
struct Input<'a> {
    node: &'a str,
    started: Timestamp,
    now: Timestamp,
    memory_capacity: u64,
    containers: Vec<v1::ContainerStats>,
    sandboxes: Vec<v1::PodSandboxStats>,
    /// Pods that the agent knows, by UID.
    pods: BTreeMap<String, Arc<Pod>>,
    /// None: not asked for.
    files: Option<BTreeMap<String, Files>>,
    /// File system of the agent's directory, with logs and volumes.
    space: Option<Space>,
}

/// Node and pods with the usage that the runtime reports; the node's own is the sum of its pods, since its start is the agent's.
pub(crate) async fn summary(agent: &Agent, detail: Detail) -> Result<Value, cri::Error> {
    let containers = agent.cri.list_container_stats(v1::ListContainerStatsRequest { filter: None }).await?;
    let uids: Vec<&str> = containers.iter().map(|stats| label(stats, POD_UID)).collect();
    let pods = agent.all_pods().into_iter().filter_map(|pod| Some((pod.metadata.uid.clone()?, pod)));
    let pods: BTreeMap<String, Arc<Pod>> = pods.filter(|(uid, _)| uids.contains(&uid.as_str())).collect();
    let (mut sandboxes, mut files, mut space) = (Vec::new(), None, None);
    if detail == Detail::All {
        // Runtimes before containerd 1.6 have none.
        sandboxes = agent.cri.list_pod_sandbox_stats(v1::ListPodSandboxStatsRequest { filter: None }).await.unwrap_or_default();
        let (root, dir, of) = (agent.root.clone(), agent.dir.clone(), pods.clone());
        (files, space) = tokio::task::spawn_blocking(move || (Some(measure(&root, &dir, &of)), root.space(&dir).ok())).await.unwrap_or_default();
    }
    let mut shown = document(&Input {
        node: &agent.side.node_name,
        started: agent.started,
        now: whole(Timestamp::now()),
        memory_capacity: agent.side.capacity.memory_bytes,
        containers,
        sandboxes,
        pods,
        files,
        space,
    });
    if detail == Detail::All {
        add_volumes_of_drivers(agent, &mut shown).await;
    }
    Ok(shown)
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

fn measure(root: &HostRoot, agent_dir: &PodPath, pods: &BTreeMap<String, Arc<Pod>>) -> BTreeMap<String, Files> {
    let mut all = BTreeMap::new();
    for (uid, pod) in pods {
        match files(root, agent_dir, pod) {
            Ok(files) => _ = all.insert(uid.clone(), files),
            Err(error) => tracing::warn!(pod = %crate::agent::key(pod), error = %error.as_report(), "a pod's files cannot be measured"),
        }
    }
    all
}

fn files(root: &HostRoot, agent_dir: &PodPath, pod: &Pod) -> Result<Files, HostError> {
    let dirs = PodDirs::new(root, agent_dir, pod)?;
    let mut files = Files { own: root.usage(&dirs.pod.join("containers")?)?, ..Files::default() };
    for container in container_names(pod) {
        files.logs.insert(container.to_owned(), root.usage(&dirs.logs.join(container)?)?);
    }
    for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
        let Some(source) = &volume.empty_dir else { continue };
        files.empty_dirs.insert(volume.name.clone(), root.usage(&dirs.empty_dir(&volume.name)?)?);
        if source.medium.as_deref().is_some_and(|medium| !medium.is_empty()) {
            files.in_memory.push(volume.name.clone());
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
    nano_cores: u64,
    core_nanos: u64,
    working_set: u64,
    usage: u64,
}

impl Sum {
    fn of(stats: &v1::ContainerStats) -> Self {
        let (cpu, memory) = (stats.cpu.unwrap_or_default(), stats.memory.unwrap_or_default());
        let working_set = number(&memory.working_set_bytes);
        Self {
            nano_cores: number(&cpu.usage_nano_cores),
            core_nanos: number(&cpu.usage_core_nano_seconds),
            working_set,
            usage: memory.usage_bytes.map_or(working_set, |bytes| bytes.value),
        }
    }

    fn add(&mut self, other: Self) {
        self.nano_cores = self.nano_cores.saturating_add(other.nano_cores);
        self.core_nanos = self.core_nanos.saturating_add(other.core_nanos);
        self.working_set = self.working_set.saturating_add(other.working_set);
        self.usage = self.usage.saturating_add(other.usage);
    }

    fn put(self, place: &mut Map<String, Value>, cpu: &str, memory: &str) {
        place.insert("cpu".into(), json!({"time": cpu, "usageNanoCores": self.nano_cores, "usageCoreNanoSeconds": self.core_nanos}));
        place.insert("memory".into(), json!({"time": memory, "workingSetBytes": self.working_set, "usageBytes": self.usage}));
    }
}

/// A pod while its containers are added up.
#[derive(Default)]
struct PodSum {
    value: Map<String, Value>,
    containers: Vec<Value>,
    sum: Sum,
    layers: Usage,
}

fn document(input: &Input<'_>) -> Value {
    let now = input.now.to_string();
    let mut pods: Vec<(String, PodSum)> = Vec::new();
    let mut node = Sum::default();
    for stats in &input.containers {
        let uid = label(stats, POD_UID).to_owned();
        let pod = input.pods.get(&uid);
        let own = Sum::of(stats);
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
        sums.containers.push(container(input, stats, pod, layer));
    }
    let pods: Vec<Value> = pods.into_iter().map(|(uid, sums)| finish(input, &uid, sums)).collect();
    let mut value = Map::new();
    value.insert("nodeName".into(), json!(input.node));
    value.insert("startTime".into(), json!(input.started.to_string()));
    node.put(&mut value, &now, &now);
    value["memory"]["availableBytes"] = json!(input.memory_capacity.saturating_sub(node.working_set));
    if let Some(space) = input.space {
        let used = Usage { bytes: space.capacity.saturating_sub(space.available), inodes: space.inodes.saturating_sub(space.inodes_free) };
        value.insert("fs".into(), fs(&now, input.space, used));
    }
    json!({"node": value, "pods": pods})
}

fn container(input: &Input<'_>, stats: &v1::ContainerStats, pod: Option<&Arc<Pod>>, layer: Usage) -> Value {
    let name = label(stats, CONTAINER_NAME);
    let status = pod.and_then(|pod| pod.status.as_ref());
    let mut value = Map::new();
    value.insert("name".into(), json!(name));
    value.insert("startTime".into(), json!(status.and_then(|status| container_start(status, name))));
    let times = [stats.cpu.map(|cpu| cpu.timestamp), stats.memory.map(|memory| memory.timestamp)].map(|nanos| time(nanos.unwrap_or_default()));
    Sum::of(stats).put(&mut value, &times[0], &times[1]);
    let uid = label(stats, POD_UID);
    if let Some(files) = &input.files {
        let now = input.now.to_string();
        value.insert("rootfs".into(), fs(&now, input.space, layer));
        let logs = files.get(uid).and_then(|files| files.logs.get(name).copied());
        value.insert("logs".into(), fs(&now, input.space, logs.unwrap_or_default()));
    }
    Value::Object(value)
}

fn finish(input: &Input<'_>, uid: &str, sums: PodSum) -> Value {
    let now = input.now.to_string();
    let mut value = sums.value;
    value.insert("containers".into(), Value::Array(sums.containers));
    sums.sum.put(&mut value, &now, &now);
    if let Some(files) = &input.files {
        let files = files.get(uid).cloned().unwrap_or_default();
        let volumes = files.empty_dirs.iter().map(|(name, used)| {
            let mut volume = fs(&now, input.space, *used);
            volume["name"] = json!(name);
            volume
        });
        value.insert("volume".into(), volumes.collect());
        let on_disk = files.empty_dirs.iter().filter(|(name, _)| !files.in_memory.contains(name)).map(|(_, used)| *used);
        let local = on_disk.chain(files.logs.values().copied()).chain([files.own]).fold(sums.layers, both);
        value.insert("ephemeral-storage".into(), fs(&now, input.space, local));
    }
    let sandbox =
        input.sandboxes.iter().find(|stats| stats.attributes.as_ref().is_some_and(|own| own.labels.get(POD_UID).is_some_and(|own| own == uid)));
    if let Some(network) = sandbox.and_then(network) {
        value.insert("network".into(), network);
    }
    if let Some(count) = sandbox.and_then(|stats| stats.linux.as_ref()?.process?.process_count) {
        value.insert("process_stats".into(), json!({"process_count": count.value}));
    }
    Value::Object(value)
}

/// The interfaces of a pod, the default one at the top.
fn network(stats: &v1::PodSandboxStats) -> Option<Value> {
    let (at, interfaces) = match (&stats.linux, &stats.windows) {
        (Some(linux), _) => {
            let network = linux.network.as_ref()?;
            let all = network.default_interface.iter().chain(&network.interfaces);
            let rows = all.map(|own| {
                json!({"name": own.name, "rxBytes": number(&own.rx_bytes), "rxErrors": number(&own.rx_errors),
                       "txBytes": number(&own.tx_bytes), "txErrors": number(&own.tx_errors)})
            });
            (network.timestamp, rows.collect::<Vec<_>>())
        }
        (None, Some(windows)) => {
            let network = windows.network.as_ref()?;
            let all = network.default_interface.iter().chain(&network.interfaces);
            let rows = all.map(|own| json!({"name": own.name, "rxBytes": number(&own.rx_bytes), "txBytes": number(&own.tx_bytes)}));
            (network.timestamp, rows.collect())
        }
        (None, None) => return None,
    };
    let mut value = interfaces.first()?.clone();
    value["time"] = json!(time(at));
    value["interfaces"] = Value::Array(interfaces);
    Some(value)
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

fn whole(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
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

    fn input(files: Option<BTreeMap<String, Files>>) -> Input<'static> {
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
            containers: vec![stats("a", "one", 100, 10), stats("b", "one", 1, 1), stats("a", "two", 50, 5)],
            sandboxes: vec![sandbox],
            pods: BTreeMap::new(),
            files,
            space: Some(Space { capacity: 5000, available: 4000, inodes: 100, inodes_free: 90 }),
        }
    }

    #[test]
    fn pods_are_the_sum_of_their_containers_and_the_node_of_its_pods() {
        let of = |bytes| Usage { bytes, inodes: 1 };
        let files = Files {
            logs: [("one".to_owned(), of(70))].into(),
            empty_dirs: [("disk".to_owned(), of(200)), ("memory".to_owned(), of(300))].into(),
            in_memory: vec!["memory".to_owned()],
            own: of(4),
        };
        let document = document(&input(Some([("a".to_owned(), files)].into())));
        let pod = &document["pods"][0];
        assert_eq!((&pod["cpu"]["usageCoreNanoSeconds"], &pod["cpu"]["usageNanoCores"]), (&json!(150), &json!(14)));
        assert_eq!((&pod["memory"]["workingSetBytes"], &pod["memory"]["usageBytes"]), (&json!(15), &json!(15)));
        assert_eq!(
            document["node"]["memory"],
            json!({"time": "1970-01-01T00:00:05Z", "workingSetBytes": 16, "usageBytes": 16, "availableBytes": (1 << 30) - 16})
        );
        assert_eq!(document["node"]["fs"]["usedBytes"], json!(1000));
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
    fn files_are_left_out_where_they_are_not_asked_for() {
        let document = document(&input(None));
        let pod = &document["pods"][0];
        for missing in [&pod["volume"], &pod["ephemeral-storage"], &pod["containers"][0]["logs"], &pod["containers"][0]["rootfs"]] {
            assert_eq!(missing, &Value::Null);
        }
        assert_eq!(pod["cpu"]["usageCoreNanoSeconds"], json!(150));
    }
}
