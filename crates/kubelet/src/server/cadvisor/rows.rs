//! Rows of `/metrics/cadvisor`: one for each control group, and for each container and sandbox whose group is not among those of pods.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use cri::labels::{CONTAINER_NAME, POD_NAME, POD_NAMESPACE, POD_UID};
use cri::v1;
use host::HostRoot;
use k8s_openapi::api::core::v1::Pod;

use super::families::{Disk, Row, write_labels};
use super::{Lists, Machine};
use crate::agent::Agent;
use crate::cgroups::tree::unescape;
use crate::pod::resources::{self, Kernel};
use crate::stats::networks;
use crate::stats::usage::{Bounds, Cpu, Group, Groups, Memory, Owner, Usage};

/// Bytes of a file of /proc that are read.
const LIMIT: u64 = 4 << 20;

/// Labels that every row has.
#[derive(Default)]
struct Labels<'a> {
    container: &'a str,
    id: &'a str,
    image: &'a str,
    name: &'a str,
    namespace: &'a str,
    pod: &'a str,
}

impl Labels<'_> {
    fn text(&self) -> String {
        let mut text = String::with_capacity(256);
        let all = [
            ("container", self.container),
            ("id", self.id),
            ("image", self.image),
            ("name", self.name),
            ("namespace", self.namespace),
            ("pod", self.pod),
        ];
        write_labels(&mut text, all);
        text
    }
}

/// What the runtime lists, by id.
struct Known<'a> {
    lists: &'a Lists,
    containers: HashMap<&'a str, &'a v1::Container>,
    sandboxes: HashMap<&'a str, &'a v1::PodSandbox>,
    stats: HashMap<&'a str, &'a v1::ContainerStats>,
    pods: BTreeMap<String, Arc<Pod>>,
}

impl<'a> Known<'a> {
    fn new(agent: &Agent, lists: &'a Lists) -> Self {
        let of = |stats: &'a v1::ContainerStats| Some((stats.attributes.as_ref()?.id.as_str(), stats));
        Known {
            lists,
            containers: lists.containers.iter().map(|own| (own.id.as_str(), own)).collect(),
            sandboxes: lists.sandboxes.iter().map(|own| (own.id.as_str(), own)).collect(),
            stats: lists.stats.iter().filter_map(of).collect(),
            pods: agent.all_pods().into_iter().filter_map(|pod| Some((pod.metadata.uid.clone()?, pod))).collect(),
        }
    }
}

fn label<'a>(labels: &'a HashMap<String, String>, name: &str) -> &'a str {
    labels.get(name).map_or("", String::as_str)
}

fn container_labels(container: &v1::Container, id: &str) -> String {
    let image = container.image.as_ref();
    let image = image.map_or("", |image| if image.user_specified_image.is_empty() { &image.image } else { &image.user_specified_image });
    let labels = Labels {
        container: label(&container.labels, CONTAINER_NAME),
        id,
        image: if image.is_empty() { &container.image_ref } else { image },
        name: &container.id,
        namespace: label(&container.labels, POD_NAMESPACE),
        pod: label(&container.labels, POD_NAME),
    };
    labels.text()
}

fn sandbox_labels(sandbox: &v1::PodSandbox, id: &str, image: &str) -> String {
    let labels = Labels {
        id,
        image,
        name: &sandbox.id,
        namespace: label(&sandbox.labels, POD_NAMESPACE),
        pod: label(&sandbox.labels, POD_NAME),
        ..Labels::default()
    };
    labels.text()
}

fn seconds(nanos: i64) -> Option<u64> {
    u64::try_from(nanos / 1_000_000_000).ok().filter(|seconds| *seconds > 0)
}

/// All rows.
pub(super) fn rows(agent: &Agent, lists: &Lists) -> Vec<Row> {
    let known = Known::new(agent, lists);
    let places = Places::read(&agent.root);
    let (mut rows, mut found) = (Vec::new(), Vec::new());
    if let Some(groups) = Groups::of_node(agent) {
        found = groups.all();
        let partitions = partitions(&agent.root);
        rows.extend(found.iter().filter_map(|group| of_group(agent, &known, &groups, &places, &partitions, group)));
    }
    let (containers, sandboxes) = without_group(lists, &found);
    rows.extend(containers.into_iter().map(|container| of_container(agent, &known, &places, container)));
    rows.extend(sandboxes.into_iter().map(|sandbox| of_sandbox(&known, sandbox)));
    rows
}

/// Containers and sandboxes that have none of the groups that were found: there are none on Windows, and those of pods may be elsewhere
/// (`cgroupsPerQOS: false`).
fn without_group<'a>(lists: &'a Lists, found: &[Group]) -> (Vec<&'a v1::Container>, Vec<&'a v1::PodSandbox>) {
    let ids = found.iter().filter_map(|group| match &group.owner {
        Owner::Container { id, .. } => Some(id.as_str()),
        Owner::Machine | Owner::Class | Owner::Pod(_) => None,
    });
    let covered: HashSet<&str> = ids.collect();
    let containers = lists.containers.iter().filter(|own| !covered.contains(own.id.as_str()));
    let sandboxes = lists.sandboxes.iter().filter(|own| !covered.contains(own.id.as_str()));
    (containers.collect(), sandboxes.collect())
}

fn of_group(agent: &Agent, known: &Known<'_>, groups: &Groups<'_>, places: &Places, partitions: &Partitions, group: &Group) -> Option<Row> {
    let name = group.name.as_str();
    let mut row = Row { started: groups.made(name), bounded: true, ..Row::default() };
    match &group.owner {
        Owner::Machine => {
            row.labels = Labels { id: name, ..Labels::default() }.text();
            row.interfaces = groups.interfaces(name);
            row.disks = machine_disks(agent, known.lists, places);
        }
        Owner::Class => row.labels = Labels { id: name, ..Labels::default() }.text(),
        Owner::Pod(uid) => {
            let meta = known.pods.get(uid).map(|pod| &pod.metadata);
            let text = |value: Option<&Option<String>>| value.and_then(|value| value.as_deref()).unwrap_or_default().to_owned();
            let (namespace, pod) = (text(meta.map(|meta| &meta.namespace)), text(meta.map(|meta| &meta.name)));
            row.labels = Labels { id: name, namespace: &namespace, pod: &pod, ..Labels::default() }.text();
        }
        Owner::Container { id, .. } => {
            if let Some(container) = known.containers.get(id.as_str()) {
                row.labels = container_labels(container, name);
                row.started = seconds(container.created_at);
                row.disks = known.stats.get(id.as_str()).and_then(|stats| layer(agent, places, stats)).into_iter().collect();
            } else {
                let sandbox = known.sandboxes.get(id.as_str())?;
                row.labels = sandbox_labels(sandbox, name, &known.lists.sandbox_image);
                row.started = seconds(sandbox.created_at);
                row.interfaces = groups.interfaces(name);
            }
        }
    }
    row.usage = groups.usage(name);
    let device = |(major, minor): (u32, u32)| partitions.get(&(major, minor)).cloned().unwrap_or_else(|| format!("{major}:{minor}"));
    row.devices = row.usage.io.iter().map(|io| device(io.device)).collect();
    Some(row)
}

/// A container as the runtime measures it, with the bounds of its pod's specification.
fn of_container(agent: &Agent, known: &Known<'_>, places: &Places, container: &v1::Container) -> Row {
    let stats = known.stats.get(container.id.as_str()).copied();
    let uid = label(&container.labels, POD_UID);
    let bounds = known.pods.get(uid).and_then(|pod| bounds(agent, pod, label(&container.labels, CONTAINER_NAME)));
    Row {
        labels: container_labels(container, &format!("/{}", container.id)),
        started: seconds(container.created_at),
        bounded: bounds.is_some(),
        usage: Usage { bounds: bounds.unwrap_or_default(), ..stats.map(measured).unwrap_or_default() },
        disks: stats.and_then(|stats| layer(agent, places, stats)).into_iter().collect(),
        ..Row::default()
    }
}

fn bounds(agent: &Agent, pod: &Pod, name: &str) -> Option<Bounds> {
    let container = crate::pod::containers(pod.spec.as_ref()?).map(|(_, own)| own).find(|own| own.name == name)?;
    let limits = resources::linux(pod, container, agent.side.capacity.memory_bytes, &Kernel::default());
    let number = |value: i64| u64::try_from(value).unwrap_or(0);
    Some(Bounds {
        shares: number(limits.cpu_shares),
        period: number(limits.cpu_period),
        quota: Some(number(limits.cpu_quota)).filter(|quota| *quota > 0),
        memory: number(limits.memory_limit_in_bytes),
        swap: 0,
        reservation: 0,
    })
}

/// What the runtime measures of a container.
fn measured(stats: &v1::ContainerStats) -> Usage {
    let number = |value: &Option<v1::UInt64Value>| value.as_ref().map(|value| value.value);
    let cpu = stats.cpu.as_ref().and_then(|cpu| number(&cpu.usage_core_nano_seconds)).map(|total| Cpu { total, user: None, system: None });
    let memory = stats.memory.as_ref().and_then(|memory| {
        let working_set = number(&memory.working_set_bytes)?;
        Some(Memory {
            usage: number(&memory.usage_bytes).unwrap_or(working_set),
            working_set,
            rss: number(&memory.rss_bytes),
            swap: stats.swap.as_ref().and_then(|swap| number(&swap.swap_usage_bytes)),
            faults: number(&memory.page_faults).unwrap_or(0),
            major_faults: number(&memory.major_page_faults).unwrap_or(0),
            ..Memory::default()
        })
    });
    Usage { cpu, memory, ..Usage::default() }
}

/// A sandbox with its network and its processes, as the runtime measures them.
fn of_sandbox(known: &Known<'_>, sandbox: &v1::PodSandbox) -> Row {
    let stats = known.lists.networks.iter().find(|stats| stats.attributes.as_ref().is_some_and(|own| own.id == sandbox.id));
    Row {
        labels: sandbox_labels(sandbox, &format!("/{}", sandbox.id), &known.lists.sandbox_image),
        started: seconds(sandbox.created_at),
        interfaces: stats.and_then(networks::of_sandbox).map(|(_, interfaces)| interfaces).unwrap_or_default(),
        usage: Usage { processes: stats.and_then(processes), ..Usage::default() },
        ..Row::default()
    }
}

fn processes(stats: &v1::PodSandboxStats) -> Option<u64> {
    let linux = stats.linux.as_ref().and_then(|own| own.process.as_ref()?.process_count);
    let windows = || stats.windows.as_ref().and_then(|own| own.process.as_ref()?.process_count);
    linux.or_else(windows).map(|count| count.value)
}

/// What a container wrote, and the file system that it is on.
fn layer(agent: &Agent, places: &Places, stats: &v1::ContainerStats) -> Option<Disk> {
    let layer = stats.writable_layer.as_ref()?;
    let mut disk = disk(agent, places, &layer.fs_id.as_ref()?.mountpoint)?;
    disk.used = layer.used_bytes.map_or(0, |bytes| bytes.value);
    Some(disk)
}

/// The file systems of the agent's directory and of images.
fn machine_disks(agent: &Agent, lists: &Lists, places: &Places) -> Vec<Disk> {
    let own = agent.dir.to_string();
    let all = [Some(own.as_str()), lists.images.as_deref()].into_iter().flatten().filter_map(|path| disk(agent, places, path));
    let mut disks: Vec<Disk> = all.collect();
    disks.dedup_by(|second, first| second.device == first.device);
    disks
}

fn disk(agent: &Agent, places: &Places, path: &str) -> Option<Disk> {
    let space = agent.root.space(&agent.root.parse(path).ok()?).ok().filter(|space| space.capacity > 0)?;
    Some(Disk {
        device: places.device(path),
        used: space.capacity.saturating_sub(space.available),
        capacity: space.capacity,
        inodes: space.inodes,
        inodes_free: space.inodes_free,
    })
}

/// Where which device is mounted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Places(Vec<(String, String)>);

impl Places {
    fn read(root: &HostRoot) -> Self {
        Self::parse(&text(root, "/proc/self/mounts").unwrap_or_default())
    }

    /// Of the form of /proc/self/mounts: device, place, type and options.
    fn parse(text: &str) -> Self {
        let of = |line: &str| {
            let mut words = line.split(' ');
            let (device, place) = (unescape(words.next()?)?, unescape(words.next()?)?);
            Some((place.trim_end_matches('/').to_owned(), device))
        };
        Self(text.lines().filter_map(of).collect())
    }

    /// The device that a path is on: of the innermost place, the last that was mounted there. A drive of Windows is its own.
    fn device(&self, path: &str) -> String {
        let is_above = |place: &str| path.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let found = self.0.iter().filter(|(place, _)| is_above(place)).max_by_key(|(place, _)| place.len());
        match found {
            Some((_, device)) => device.clone(),
            None => path.split_inclusive(':').next().filter(|drive| drive.ends_with(':')).unwrap_or_default().to_owned(),
        }
    }
}

type Partitions = HashMap<(u32, u32), String>;

fn partitions(root: &HostRoot) -> Partitions {
    let text = text(root, "/proc/partitions").unwrap_or_default();
    let of = |line: &str| {
        let mut words = line.split_whitespace();
        let (major, minor) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(((major, minor), format!("/dev/{}", words.nth(1)?)))
    };
    text.lines().filter_map(of).collect()
}

fn text(root: &HostRoot, path: &str) -> Option<String> {
    if root.os().is_windows() {
        return None;
    }
    String::from_utf8(root.read(&root.parse(path).ok()?, LIMIT).ok()??).ok()
}

/// The size of the machine, or what it declares.
pub(super) fn machine(agent: &Agent) -> Machine {
    Machine {
        cores: u64::try_from(agent.side.capacity.cpu_millis / 1000).unwrap_or(0),
        physical: text(&agent.root, "/proc/cpuinfo").as_deref().and_then(physical),
        memory: agent.side.capacity.memory_bytes,
        swap: text(&agent.root, "/proc/meminfo").and_then(|text| host::meminfo(&text, "SwapTotal")),
    }
}

/// Cores and sockets in /proc/cpuinfo; None where the processors do not say.
fn physical(cpuinfo: &str) -> Option<(u64, u64)> {
    let (mut cores, mut sockets) = (std::collections::BTreeSet::new(), std::collections::BTreeSet::new());
    let mut socket = "";
    for (name, value) in cpuinfo.lines().filter_map(|line| line.split_once(':')) {
        match name.trim() {
            "physical id" => {
                socket = value.trim();
                sockets.insert(socket);
            }
            "core id" => _ = cores.insert((socket, value.trim())),
            _ => {}
        }
    }
    (!cores.is_empty() && !sockets.is_empty()).then_some((cores.len() as u64, sockets.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_of_a_path_is_that_of_the_innermost_mount() {
        let places =
            Places::parse("/dev/sda1 / ext4 rw 0 0\ntmpfs /var tmpfs rw 0 0\n/dev/sdb /var/lib xfs rw 0 0\n/dev/sdc /var/lib xfs rw 0 0\nbad\n");
        for (path, device) in [("/etc", "/dev/sda1"), ("/var/log", "tmpfs"), ("/var/lib/kubelet", "/dev/sdc"), ("/var/library", "tmpfs")] {
            assert_eq!(places.device(path), device, "{path}");
        }
        assert_eq!(Places::parse("/dev/sdd\\0401 /a\\040b ext4 rw 0 0\n").device("/a b/c"), "/dev/sdd 1");
        assert_eq!(Places::default().device(r"C:\var\lib"), "C:");
        assert_eq!(Places::default().device("/var/lib"), "");
    }

    #[test]
    fn containers_whose_group_is_elsewhere_have_a_row_too() {
        let container = |id: &str| v1::Container { id: id.into(), ..Default::default() };
        let sandbox = |id: &str| v1::PodSandbox { id: id.into(), ..Default::default() };
        let lists = Lists { containers: vec![container("a"), container("b")], sandboxes: vec![sandbox("s"), sandbox("t")], ..Lists::default() };
        let group = |id: &str| Group { name: format!("/kubepods/podu/{id}"), owner: Owner::Container { pod: "u".into(), id: id.into() } };
        let machine = Group { name: "/".into(), owner: Owner::Machine };
        for (found, containers, sandboxes) in [
            (vec![machine.clone()], &["a", "b"][..], &["s", "t"][..]),
            (vec![machine.clone(), group("a"), group("t"), group("gone")], &["b"], &["s"]),
            (vec![group("a"), group("b"), group("s"), group("t")], &[], &[]),
        ] {
            let (own, others) = without_group(&lists, &found);
            assert_eq!(own.iter().map(|own| own.id.as_str()).collect::<Vec<_>>(), containers);
            assert_eq!(others.iter().map(|own| own.id.as_str()).collect::<Vec<_>>(), sandboxes);
        }
    }

    #[test]
    fn cores_and_sockets_are_counted() {
        let one = |socket: u32, core: u32| format!("processor\t: 0\nphysical id\t: {socket}\ncore id\t\t: {core}\n\n");
        let text: String = [(0, 0), (0, 1), (0, 0), (1, 0)].map(|(socket, core)| one(socket, core)).concat();
        assert_eq!(physical(&text), Some((3, 2)));
        assert_eq!(physical("processor : 0\n"), None);
    }

    #[test]
    fn what_the_runtime_measures_has_the_names_of_groups() {
        let value = |value| Some(v1::UInt64Value { value });
        let stats = v1::ContainerStats {
            cpu: Some(v1::CpuUsage { timestamp: 1, usage_core_nano_seconds: value(9), ..Default::default() }),
            memory: Some(v1::MemoryUsage { working_set_bytes: value(5), ..Default::default() }),
            ..Default::default()
        };
        let usage = measured(&stats);
        assert_eq!(usage.cpu, Some(Cpu { total: 9, user: None, system: None }));
        assert_eq!(usage.memory, Some(Memory { usage: 5, working_set: 5, ..Memory::default() }));
        let process = v1::WindowsProcessUsage { process_count: value(4), ..Default::default() };
        let windows = v1::WindowsPodSandboxStats { process: Some(process), ..Default::default() };
        let stats = v1::PodSandboxStats { windows: Some(windows), ..Default::default() };
        assert_eq!(processes(&stats), Some(4));
    }
}
