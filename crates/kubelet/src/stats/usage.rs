//! Usage of control groups, as cAdvisor reads it (upstream vendor/github.com/google/cadvisor/container/libcontainer/handler.go,
//! container/common/helpers.go, opencontainers/cgroups): both versions, below `/sys/fs/cgroup` of the node's root.
//!
//! Guarantees: nothing is kept between two reads; a file that is missing or says something else leaves its value out; files and groups are
//! bounded, since containers may make groups of their own.

mod parse;

use host::{FileKind, HostRoot, PodPath};

use crate::agent::Agent;
use crate::cgroups::Name;
use crate::cgroups::tree::Tree;
use crate::config::Cgroups;

pub(crate) use parse::{Interface, Io, Pressure, Throttling};

/// Bytes of a file that are read.
const LIMIT: u64 = 256 << 10;
/// Most groups of one node that are looked at.
const MOST: usize = 10_000;
/// The bound of memory that stands for none.
const UNLIMITED: u64 = 1 << 62;

/// Nanoseconds of processor time; runtimes know the sum alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cpu {
    pub total: u64,
    pub user: Option<u64>,
    pub system: Option<u64>,
}

/// Bytes of memory, and counts; None where only the kernel would know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    pub usage: u64,
    pub most: Option<u64>,
    pub working_set: u64,
    pub cache: Option<u64>,
    pub rss: Option<u64>,
    pub swap: Option<u64>,
    pub kernel: Option<u64>,
    pub mapped: Option<u64>,
    pub active_file: Option<u64>,
    pub inactive_file: Option<u64>,
    pub faults: u64,
    pub major_faults: u64,
    /// How often the limit was reached.
    pub refused: Option<u64>,
    /// Processes that the kernel ended for want of memory.
    pub killed: Option<u64>,
}

/// What a group may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub shares: u64,
    pub period: u64,
    pub quota: Option<u64>,
    /// Bytes; 0 for as much as there is.
    pub memory: u64,
    pub swap: u64,
    pub reservation: u64,
}

/// What a group uses; None where the kernel does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub cpu: Option<Cpu>,
    pub throttling: Option<Throttling>,
    pub memory: Option<Memory>,
    pub threads: Option<u64>,
    pub threads_max: Option<u64>,
    pub processes: Option<u64>,
    /// By device.
    pub io: Vec<Io>,
    /// Of processors, memory and devices.
    pub pressure: [Option<Pressure>; 3],
    pub bounds: Bounds,
}

/// Whose a group is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The machine.
    Machine,
    /// All pods, or those of a class.
    Class,
    /// A pod, by UID.
    Pod(String),
    /// A container or a sandbox, by id.
    Container { pod: String, id: String },
}

/// A group by its name, such as `/kubepods/podUID`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub name: String,
    pub owner: Owner,
}

/// The control groups of a node.
pub(crate) struct Groups<'a> {
    root: &'a HostRoot,
    tree: Tree,
    pods: Option<&'a Name>,
    driver: Cgroups,
}

impl<'a> Groups<'a> {
    /// Those of the agent's node; None on nodes without control groups: those that are simulated, and Windows.
    pub(crate) fn of_node(agent: &'a Agent) -> Option<Self> {
        Self::of(&agent.root, agent.side.pod_groups.as_ref(), agent.side.driver())
    }

    /// With the group of all pods, where they have one, and the driver that names groups.
    fn of(root: &'a HostRoot, pods: Option<&'a Name>, driver: Cgroups) -> Option<Self> {
        if root.os().is_windows() {
            return None;
        }
        Some(Self { root, tree: Tree::of(root)?, pods, driver })
    }

    fn unified(&self) -> bool {
        matches!(self.tree, Tree::Unified(_))
    }

    fn path(&self, controller: &str, group: &str) -> Option<PodPath> {
        let path = format!("{}{}", self.tree.place_of(controller)?, group.trim_end_matches('/'));
        self.root.parse(&path).ok()
    }

    fn text(&self, controller: &str, group: &str, file: &str) -> Option<String> {
        let path = self.path(controller, group)?.join(file).ok()?;
        String::from_utf8(self.root.read(&path, LIMIT).ok()??).ok()
    }

    fn number(&self, controller: &str, group: &str, file: &str) -> Option<u64> {
        parse::number(&self.text(controller, group, file)?)
    }

    fn below(&self, group: &str) -> Vec<String> {
        let Some(path) = self.path("memory", group) else { return Vec::new() };
        let entries = self.root.read_dir(&path).unwrap_or_default();
        entries.into_iter().filter(|(_, kind)| *kind == FileKind::Directory).map(|(name, _)| name).collect()
    }

    /// The group of all pods; None where they have none of their own.
    pub(crate) fn of_pods(&self) -> Option<String> {
        self.pods.map(|pods| pods.path(self.driver))
    }

    fn is_there(&self, group: &str) -> bool {
        self.path("memory", group).is_some_and(|path| self.root.kind(&path).is_ok_and(|kind| kind.is_some()))
    }

    /// The machine's own group, and those of pods and of their containers.
    pub(crate) fn all(&self) -> Vec<Group> {
        let mut all = vec![Group { name: "/".to_owned(), owner: Owner::Machine }];
        for class in self.pods.into_iter().flat_map(Name::classes) {
            let name = class.path(self.driver);
            if !self.is_there(&name) {
                continue;
            }
            for entry in self.below(&name) {
                if let Some(pod) = class.pod_of(self.driver, &entry) {
                    self.add_pod(&mut all, format!("{name}/{entry}"), pod);
                }
            }
            all.push(Group { name, owner: Owner::Class });
        }
        all.truncate(MOST);
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    fn add_pod(&self, all: &mut Vec<Group>, group: String, pod: String) {
        if all.len() >= MOST {
            return;
        }
        for name in self.below(&group) {
            if let Some(id) = parse::container(&name) {
                all.push(Group { name: format!("{group}/{name}"), owner: Owner::Container { pod: pod.clone(), id: id.to_owned() } });
            }
        }
        all.push(Group { name: group, owner: Owner::Pod(pod) });
    }

    /// What a group uses.
    pub(crate) fn usage(&self, group: &str) -> Usage {
        Usage {
            threads: self.number("pids", group, "pids.current"),
            threads_max: self.number("pids", group, "pids.max").map(|most| if most == u64::MAX { 0 } else { most }),
            processes: self.processes(group).map(|all| all.len() as u64),
            ..if self.unified() { self.second(group) } else { self.first(group) }
        }
    }

    /// Of processors and memory alone.
    pub(crate) fn cpu_and_memory(&self, group: &str) -> (Option<Cpu>, Option<Memory>) {
        match self.unified() {
            true => (self.text("", group, "cpu.stat").and_then(|stat| parse::cpu(&stat)), self.memory_of_second(group)),
            false => (self.cpu_of_first(group), self.memory_of_first(group)),
        }
    }

    fn first(&self, group: &str) -> Usage {
        let (cpu, memory) = self.cpu_and_memory(group);
        let bytes =
            ["bfq.io_service_bytes_recursive", "io_service_bytes_recursive", "throttle.io_service_bytes_recursive", "throttle.io_service_bytes"];
        let counts = ["bfq.io_serviced_recursive", "io_serviced_recursive", "throttle.io_serviced_recursive", "throttle.io_serviced"];
        // The first scheduler of devices that counted something.
        let read =
            |files: [&str; 4]| files.iter().filter_map(|file| self.text("blkio", group, &format!("blkio.{file}"))).find(|text| text.contains(':'));
        let quota = self.text("cpu", group, "cpu.cfs_quota_us").and_then(|text| text.trim().parse::<u64>().ok());
        let memory_bound = |file: &str| self.number("memory", group, file).map_or(0, bound);
        Usage {
            cpu,
            throttling: self.text("cpu", group, "cpu.stat").map(|stat| parse::throttling(&stat)),
            memory,
            io: parse::io_of_first(&read(bytes).unwrap_or_default(), &read(counts).unwrap_or_default()),
            bounds: Bounds {
                shares: self.number("cpu", group, "cpu.shares").unwrap_or(0),
                period: self.number("cpu", group, "cpu.cfs_period_us").unwrap_or(0),
                quota,
                memory: memory_bound("memory.limit_in_bytes"),
                swap: memory_bound("memory.memsw.limit_in_bytes"),
                reservation: memory_bound("memory.soft_limit_in_bytes"),
            },
            ..Usage::default()
        }
    }

    fn second(&self, group: &str) -> Usage {
        let stat = self.text("", group, "cpu.stat");
        let pressure = |of: &str| self.text("", group, &format!("{of}.pressure")).and_then(|text| parse::pressure(&text));
        let (quota, period) = self.text("", group, "cpu.max").map_or((None, 0), |text| parse::quota(&text));
        let memory_bound = |file: &str| self.number("", group, file).map_or(0, bound);
        Usage {
            cpu: stat.as_deref().and_then(parse::cpu),
            throttling: stat.as_deref().map(parse::throttling),
            memory: self.memory_of_second(group),
            io: self.text("", group, "io.stat").map(|text| parse::io_of_second(&text)).unwrap_or_default(),
            pressure: ["cpu", "memory", "io"].map(pressure),
            bounds: Bounds {
                shares: self.number("", group, "cpu.weight").map_or(0, parse::shares),
                period,
                quota,
                memory: memory_bound("memory.max"),
                swap: memory_bound("memory.swap.max"),
                reservation: memory_bound("memory.min"),
            },
            ..Usage::default()
        }
    }

    fn cpu_of_first(&self, group: &str) -> Option<Cpu> {
        let total = self.number("cpuacct", group, "cpuacct.usage")?;
        let (user, system) = self.text("cpuacct", group, "cpuacct.stat").map(|stat| parse::ticks(&stat)).unwrap_or_default();
        Some(Cpu { total, user, system })
    }

    fn memory_of_first(&self, group: &str) -> Option<Memory> {
        let usage = self.number("memory", group, "memory.usage_in_bytes")?;
        let stat = self.text("memory", group, "memory.stat").unwrap_or_default();
        let some = |name: &str| parse::field(&stat, name);
        let of = |name: &str| some(name).unwrap_or(0);
        let inactive_file = of("total_inactive_file");
        Some(Memory {
            usage,
            most: self.number("memory", group, "memory.max_usage_in_bytes"),
            working_set: usage.saturating_sub(inactive_file),
            cache: some("total_cache"),
            rss: some("total_rss"),
            swap: some("total_swap"),
            kernel: self.number("memory", group, "memory.kmem.usage_in_bytes"),
            mapped: some("total_mapped_file"),
            active_file: some("total_active_file"),
            inactive_file: Some(inactive_file),
            faults: of("pgfault"),
            major_faults: of("pgmajfault"),
            refused: self.number("memory", group, "memory.failcnt"),
            killed: self.text("memory", group, "memory.oom_control").and_then(|text| parse::field(&text, "oom_kill")),
        })
    }

    fn memory_of_second(&self, group: &str) -> Option<Memory> {
        let stat = self.text("", group, "memory.stat")?;
        let some = |name: &str| parse::field(&stat, name);
        let of = |name: &str| some(name).unwrap_or(0);
        // The machine's own group says nothing of its sum.
        let usage = self.number("", group, "memory.current").unwrap_or_else(|| of("anon").saturating_add(of("file")));
        let events = self.text("", group, "memory.events").unwrap_or_default();
        let inactive_file = of("inactive_file");
        Some(Memory {
            usage,
            most: self.number("", group, "memory.peak"),
            working_set: usage.saturating_sub(inactive_file),
            cache: some("file"),
            rss: some("anon"),
            swap: self.number("", group, "memory.swap.current"),
            kernel: some("kernel"),
            mapped: some("file_mapped"),
            active_file: some("active_file"),
            inactive_file: Some(inactive_file),
            faults: of("pgfault"),
            major_faults: of("pgmajfault"),
            refused: parse::field(&events, "max"),
            killed: parse::field(&events, "oom_kill"),
        })
    }

    /// The processes that are in a group itself.
    pub(crate) fn processes(&self, group: &str) -> Option<Vec<u32>> {
        let text = self.text("cpu", group, "cgroup.procs")?;
        // A process of another pid namespace has no number here.
        Some(text.lines().filter_map(|line| line.trim().parse().ok()).filter(|id| *id != 0).collect())
    }

    /// The interfaces that the processes of a group have; those of the machine for its own group.
    pub(crate) fn interfaces(&self, group: &str) -> Vec<Interface> {
        let process = if group == "/" { Some(1) } else { self.processes(group).and_then(|all| all.first().copied()) };
        let read = || {
            let path = self.root.parse(&format!("/proc/{}/net/dev", process?)).ok()?;
            String::from_utf8(self.root.read(&path, LIMIT).ok()??).ok()
        };
        read().map(|text| parse::interfaces(&text)).unwrap_or_default()
    }

    /// Bytes of swap that the machine has, and those that are free.
    pub(crate) fn swap_of_machine(&self) -> Option<(u64, u64)> {
        let text = String::from_utf8(self.root.read(&self.root.parse("/proc/meminfo").ok()?, LIMIT).ok()??).ok()?;
        Some((host::meminfo(&text, "SwapTotal")?, host::meminfo(&text, "SwapFree")?))
    }

    /// The group that a process is in.
    pub(crate) fn of_process(&self, id: u32) -> Option<String> {
        let path = self.root.parse(&format!("/proc/{id}/cgroup")).ok()?;
        parse::own_group(&String::from_utf8(self.root.read(&path, LIMIT).ok()??).ok()?, self.unified())
    }

    /// When a group was made, in seconds since 1970.
    pub(crate) fn made(&self, group: &str) -> Option<u64> {
        let found = self.root.resolve(&self.path("memory", group)?).ok()?;
        let made = found.handle.metadata().ok()?.modified().ok()?;
        Some(made.duration_since(std::time::UNIX_EPOCH).ok()?.as_secs())
    }
}

/// A bound of memory; the kernel writes a number near its largest for none.
fn bound(bytes: u64) -> u64 {
    if bytes > UNLIMITED { 0 } else { bytes }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// A node's root with these files below the mount of control groups: of version 2 where a file says so.
    fn node(files: &[(&str, &str)]) -> (tempfile::TempDir, HostRoot) {
        let dir = tempfile::tempdir().unwrap();
        let mount = |name: &str, kind: &str| format!("1 2 0:3 / /sys/fs/cgroup{name} rw - {kind} cgroup rw,{}\n", name.trim_start_matches('/'));
        let mounts = match files.iter().any(|(file, _)| *file == "cgroup.controllers") {
            true => mount("", "cgroup2"),
            false => ["/cpu", "/cpuacct", "/memory", "/pids", "/blkio"].map(|name| mount(name, "cgroup")).concat(),
        };
        let proc = dir.path().join(format!("proc/{}", std::process::id()));
        std::fs::create_dir_all(&proc).unwrap();
        std::fs::write(proc.join("mountinfo"), mounts).unwrap();
        for (file, text) in files {
            let path = dir.path().join("sys/fs/cgroup").join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let root = HostRoot::linux(dir.path()).unwrap();
        (dir, root)
    }

    #[test]
    fn groups_of_version_2_are_read_as_cadvisor_reads_them() {
        let own = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poda_b.slice/cri-containerd-c1.scope";
        let file = |name: &str| format!("{own}/{name}");
        let cpu = "usage_usec 3000\nuser_usec 2000\nsystem_usec 1000\nnr_periods 7\nnr_throttled 2\nthrottled_usec 5\nnr_bursts 1\nburst_usec 3\n";
        let memory = "anon 100\nfile 50\nkernel 9\nfile_mapped 8\ninactive_file 20\nactive_file 30\npgfault 4\npgmajfault 1\n";
        let files = [
            ("cgroup.controllers".to_owned(), "cpu memory\n"),
            ("memory.stat".to_owned(), memory),
            ("cpu.stat".to_owned(), cpu),
            (file("cpu.stat"), cpu),
            (file("cpu.weight"), "39\n"),
            (file("cpu.max"), "50000 100000\n"),
            (file("memory.stat"), memory),
            (file("memory.current"), "160\n"),
            (file("memory.peak"), "200\n"),
            (file("memory.max"), "max\n"),
            (file("memory.swap.max"), "0\n"),
            (file("memory.min"), "64\n"),
            (file("memory.events"), "low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\n"),
            (file("pids.current"), "5\n"),
            (file("pids.max"), "max\n"),
            (file("cgroup.procs"), "12\n13\n0\n"),
            (file("io.stat"), "8:0 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=0 dios=0\n"),
            (file("cpu.pressure"), "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=5\n"),
        ];
        let files: Vec<(&str, &str)> = files.iter().map(|(file, text)| (file.as_str(), *text)).collect();
        let (_dir, root) = node(&files);
        let pods = Name::parse("/kubepods");
        let groups = Groups::of(&root, Some(&pods), Cgroups::Systemd).unwrap();
        let all = groups.all();
        assert_eq!(
            all.iter().map(|group| &group.owner).collect::<Vec<_>>(),
            [&Owner::Machine, &Owner::Class, &Owner::Class, &Owner::Pod("a-b".into()), &Owner::Container { pod: "a-b".into(), id: "c1".into() },]
        );
        let usage = groups.usage(&all[4].name);
        assert_eq!(usage.cpu, Some(Cpu { total: 3_000_000, user: Some(2_000_000), system: Some(1_000_000) }));
        assert_eq!(usage.throttling, Some(Throttling { periods: 7, throttled: 2, nanos: 5000, bursts: 1, burst_nanos: 3000 }));
        let memory = usage.memory.unwrap();
        assert_eq!(
            (memory.usage, memory.most, memory.working_set, memory.rss, memory.cache, memory.kernel),
            (160, Some(200), 140, Some(100), Some(50), Some(9))
        );
        assert_eq!((memory.refused, memory.killed, memory.faults, memory.major_faults), (Some(3), Some(1), 4, 1));
        assert_eq!((usage.threads, usage.threads_max, usage.processes), (Some(5), Some(0), Some(2)));
        assert_eq!(usage.io, [Io { device: (8, 0), read_bytes: 10, write_bytes: 20, reads: 1, writes: 2 }]);
        assert_eq!(usage.pressure, [Some(Pressure { some: 7, full: 5 }), None, None]);
        let bounds = Bounds { shares: 998, period: 100_000, quota: Some(50_000), memory: 0, swap: 0, reservation: 64 };
        assert_eq!(usage.bounds, bounds);
        // The machine's own group has no sum of its own.
        assert_eq!(groups.cpu_and_memory("/").1.map(|memory| (memory.usage, memory.working_set)), Some((150, 130)));
    }

    #[test]
    fn groups_of_version_1_are_read_in_their_hierarchies() {
        let own = "kubepods/besteffort/podu1/c1";
        let stat = "cache 1\nrss 1\npgfault 6\npgmajfault 2\ntotal_cache 40\ntotal_rss 60\ntotal_swap 0\ntotal_mapped_file 3\n\
                    total_inactive_file 30\ntotal_active_file 10\n";
        let files = [
            (format!("cpuacct/{own}/cpuacct.usage"), "5000000000\n"),
            (format!("cpuacct/{own}/cpuacct.stat"), "user 300\nsystem 200\n"),
            (format!("cpu/{own}/cpu.stat"), "nr_periods 4\nnr_throttled 1\nthrottled_time 900\n"),
            (format!("cpu/{own}/cpu.shares"), "2\n"),
            (format!("cpu/{own}/cpu.cfs_period_us"), "100000\n"),
            (format!("cpu/{own}/cpu.cfs_quota_us"), "-1\n"),
            (format!("cpu/{own}/cgroup.procs"), "44\n"),
            (format!("memory/{own}/memory.usage_in_bytes"), "110\n"),
            (format!("memory/{own}/memory.limit_in_bytes"), "9223372036854771712\n"),
            (format!("memory/{own}/memory.stat"), stat),
            (format!("memory/{own}/memory.oom_control"), "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
            (format!("pids/{own}/pids.current"), "1\n"),
            (format!("blkio/{own}/blkio.bfq.io_service_bytes_recursive"), "Total 0\n"),
            (format!("blkio/{own}/blkio.throttle.io_service_bytes_recursive"), "8:16 Read 7\n8:16 Write 9\n8:16 Total 16\nTotal 16\n"),
            (format!("blkio/{own}/blkio.throttle.io_serviced_recursive"), "8:16 Read 1\n8:16 Write 2\nTotal 3\n"),
        ];
        let files: Vec<(&str, &str)> = files.iter().map(|(file, text)| (file.as_str(), *text)).collect();
        let (dir, root) = node(&files);
        let dev = "Inter-|   Receive |  Transmit\n face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier \
                   compressed\n    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  eth0: 10 2 3 4 0 0 0 0 50 6 7 8 0 0 0 0\n";
        std::fs::create_dir_all(dir.path().join("proc/44/net")).unwrap();
        std::fs::write(dir.path().join("proc/44/net/dev"), dev).unwrap();
        let pods = Name::parse("/kubepods");
        let groups = Groups::of(&root, Some(&pods), Cgroups::Files).unwrap();
        let all = groups.all();
        let container = all.last().unwrap();
        assert_eq!(container.owner, Owner::Container { pod: "u1".into(), id: "c1".into() });
        let usage = groups.usage(&container.name);
        assert_eq!(usage.cpu, Some(Cpu { total: 5_000_000_000, user: Some(3_000_000_000), system: Some(2_000_000_000) }));
        assert_eq!(usage.throttling.map(|own| (own.periods, own.throttled, own.nanos)), Some((4, 1, 900)));
        let memory = usage.memory.unwrap();
        assert_eq!((memory.usage, memory.working_set, memory.rss, memory.cache, memory.killed), (110, 80, Some(60), Some(40), Some(2)));
        assert_eq!(usage.io, [Io { device: (8, 16), read_bytes: 7, write_bytes: 9, reads: 1, writes: 2 }]);
        assert_eq!(usage.bounds, Bounds { shares: 2, period: 100_000, ..Bounds::default() });
        let eth0 = Interface { name: "eth0".into(), received: [10, 2, 3, 4].map(Some), sent: [50, 6, 7, 8].map(Some) };
        assert_eq!(groups.interfaces(&container.name), [eth0]);
        assert!(groups.made(&container.name).unwrap() > 1_600_000_000);
    }

    #[test]
    fn a_node_without_groups_has_none() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Groups::of(&HostRoot::linux(dir.path()).unwrap(), None, Cgroups::Files).is_none());
    }

    #[test]
    fn groups_of_pods_are_where_the_agent_makes_them() {
        let slices = "nodes.slice/nodes-kubepods.slice/nodes-kubepods-burstable.slice/nodes-kubepods-burstable-poda_b.slice";
        for (driver, pods, pod, class) in [
            (Cgroups::Files, "/nodes/kubepods", "nodes/kubepods/poda-b", "/nodes/kubepods"),
            (Cgroups::Systemd, "/nodes.slice/nodes-kubepods.slice", slices, slices.rsplit_once('/').unwrap().0),
        ] {
            // Pods of another agent are at the default place.
            let files = [format!("memory/{pod}/c1/cgroup.procs"), "memory/kubepods/poda-b/c1/cgroup.procs".to_owned()];
            let (_dir, root) = node(&[(files[0].as_str(), ""), (files[1].as_str(), "")]);
            let name = Name::parse("/nodes/kubepods");
            let groups = Groups::of(&root, Some(&name), driver).unwrap();
            assert_eq!(groups.of_pods().as_deref(), Some(pods));
            let all: BTreeMap<String, Owner> = groups.all().into_iter().map(|group| (group.name, group.owner)).collect();
            assert_eq!(all[&format!("/{pod}/c1")], Owner::Container { pod: "a-b".into(), id: "c1".into() });
            assert_eq!(all[&format!("/{pod}")], Owner::Pod("a-b".into()));
            assert_eq!(all[&format!("/{}", class.trim_start_matches('/'))], Owner::Class);
            assert!(!all.keys().any(|name| name.starts_with("/kubepods")), "{all:?}");
            // Where pods have no groups of their own there is the machine alone.
            let machine = Group { name: "/".into(), owner: Owner::Machine };
            assert_eq!(Groups::of(&root, None, driver).unwrap().all(), [machine]);
        }
    }
}
