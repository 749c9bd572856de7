//! Resource usage of containers and sandboxes, as CRI reports it.

use std::collections::HashMap;
use std::path::Path;

use k8s_cri::v1;

use super::filter::{by_prefix, selected};
use super::record::ContainerRecord;
use super::usage::{self, Counter, Process};
use super::{Runtime, Sandbox};
use crate::shim::now;

/// The counters of containers by id.
pub(super) type Counters = HashMap<String, Counter>;

fn value(value: u64) -> Option<v1::UInt64Value> {
    Some(v1::UInt64Value { value })
}

impl Runtime {
    /// What runs in a container now.
    fn processes(&self, record: &ContainerRecord) -> Vec<Process> {
        match (&record.started, record.is_running()) {
            (Some(started), true) => usage::processes(self.shim_pid(&record.sandbox), started.pid),
            _ => Vec::new(),
        }
    }

    fn shim_pid(&self, sandbox: &str) -> i32 {
        self.state().sandboxes.get(sandbox).map_or(0, |sandbox| sandbox.record.shim_pid)
    }

    /// The processes that run in a container, for what has to reach each of them.
    pub(super) fn pids(&self, record: &ContainerRecord) -> Vec<i32> {
        self.processes(record).iter().map(|process| process.pid).collect()
    }

    fn count(&self, id: &str, at: i64, processes: &[Process]) -> usage::Reading {
        let mut counters = self.counters.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        counters.entry(id.to_owned()).or_default().read(at, processes)
    }

    pub(super) fn stats(&self, record: &ContainerRecord) -> v1::ContainerStats {
        let timestamp = now();
        let processes = self.processes(record);
        let cpu = self.count(&record.id, timestamp, &processes);
        let sum = |of: fn(&Process) -> u64| processes.iter().map(of).sum::<u64>();
        let private = sum(|process| process.private);
        let attributes = v1::ContainerAttributes {
            id: record.id.clone(),
            metadata: record.config.metadata.clone(),
            labels: record.config.labels.clone(),
            annotations: record.config.annotations.clone(),
        };
        let limit = self.system.amounts(&record.config, self.config.processors).memory;
        let dir = self.records.container_dir(&record.sandbox, &record.id);
        // Over layers, as a copy of them, or without any.
        let layer = ["upper", "flat", "root"].map(|name| dir.join(name)).into_iter().find(|path| path.is_dir()).unwrap_or(dir);
        let (bytes, files) = tree_size(&layer);
        v1::ContainerStats {
            attributes: Some(attributes),
            cpu: Some(v1::CpuUsage { timestamp, usage_core_nano_seconds: value(cpu.total_nanos), usage_nano_cores: value(cpu.nano_cores) }),
            memory: Some(v1::MemoryUsage {
                timestamp,
                working_set_bytes: value(private),
                available_bytes: limit.and_then(|limit| value(limit.saturating_sub(private))),
                usage_bytes: value(private),
                rss_bytes: value(sum(|process| process.resident)),
                page_faults: value(sum(|process| process.faults)),
                major_page_faults: value(sum(|process| process.major_faults)),
            }),
            writable_layer: Some(v1::FilesystemUsage {
                timestamp,
                fs_id: Some(v1::FilesystemIdentifier { mountpoint: layer.to_string_lossy().into_owned() }),
                used_bytes: value(bytes),
                inodes_used: value(files),
            }),
            swap: None,
        }
    }

    pub(super) fn list_stats(&self, filter: &v1::ContainerStatsFilter) -> Vec<v1::ContainerStats> {
        let selected: Vec<ContainerRecord> = {
            let state = self.state();
            let matches = |record: &&ContainerRecord| {
                record.is_running()
                    && record.id.starts_with(&filter.id)
                    && record.sandbox.starts_with(&filter.pod_sandbox_id)
                    && selected(&record.config.labels, &filter.label_selector)
            };
            state.containers.values().filter(matches).cloned().collect()
        };
        self.forget_counters();
        selected.iter().map(|record| self.stats(record)).collect()
    }

    fn forget_counters(&self) {
        let state = self.state();
        let mut counters = self.counters.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        counters.retain(|id, _| state.containers.contains_key(id));
    }

    pub(super) fn sandbox_stats(&self, id: &str) -> Option<v1::PodSandboxStats> {
        let (attributes, shim_pid, containers) = {
            let state = self.state();
            let sandbox = by_prefix(&state.sandboxes, id)?;
            let containers = state.containers.values().filter(|record| record.sandbox == sandbox.record.id && record.is_running());
            (attributes(sandbox), sandbox.record.shim_pid, containers.cloned().collect::<Vec<_>>())
        };
        let stats: Vec<v1::ContainerStats> = containers.iter().map(|record| self.stats(record)).collect();
        let timestamp = now();
        let interfaces = interfaces(&std::fs::read_to_string(format!("/proc/{shim_pid}/net/dev")).unwrap_or_default());
        let processes = containers.iter().map(|record| self.processes(record).len() as u64).sum();
        let mut answer = v1::PodSandboxStats { attributes: Some(attributes), ..Default::default() };
        self.system.report(&mut answer, SandboxUsage { timestamp, containers: stats, interfaces, processes });
        Some(answer)
    }

    pub(super) fn list_sandbox_stats(&self, filter: &v1::PodSandboxStatsFilter) -> Vec<v1::PodSandboxStats> {
        let ids: Vec<String> = {
            let state = self.state();
            let matches = |sandbox: &&Sandbox| {
                sandbox.is_ready() && sandbox.record.id.starts_with(&filter.id) && selected(&sandbox.record.config.labels, &filter.label_selector)
            };
            state.sandboxes.values().filter(matches).map(|sandbox| sandbox.record.id.clone()).collect()
        };
        ids.iter().filter_map(|id| self.sandbox_stats(id)).collect()
    }
}

fn attributes(sandbox: &Sandbox) -> v1::PodSandboxAttributes {
    v1::PodSandboxAttributes {
        id: sandbox.record.id.clone(),
        metadata: sandbox.record.config.metadata.clone(),
        labels: sandbox.record.config.labels.clone(),
        annotations: sandbox.record.config.annotations.clone(),
    }
}

fn sum(stats: &[v1::ContainerStats], of: impl Fn(&v1::ContainerStats) -> Option<u64>) -> Option<v1::UInt64Value> {
    value(stats.iter().filter_map(of).sum())
}

/// Resource usage of a sandbox.
pub(super) struct SandboxUsage {
    timestamp: i64,
    containers: Vec<v1::ContainerStats>,
    interfaces: Vec<Interface>,
    processes: u64,
}

impl SandboxUsage {
    /// In CRI's message for Linux.
    pub(super) fn linux(self) -> v1::LinuxPodSandboxStats {
        let Self { timestamp, containers: stats, interfaces, processes } = self;
        let usage = |interface: Interface| v1::NetworkInterfaceUsage {
            name: interface.name,
            rx_bytes: value(interface.received[0]),
            rx_errors: value(interface.received[2]),
            tx_bytes: value(interface.sent[0]),
            tx_errors: value(interface.sent[2]),
        };
        let mut interfaces = interfaces.into_iter().map(usage);
        v1::LinuxPodSandboxStats {
            cpu: Some(v1::CpuUsage {
                timestamp,
                usage_core_nano_seconds: sum(&stats, |stats| Some(stats.cpu?.usage_core_nano_seconds?.value)),
                usage_nano_cores: sum(&stats, |stats| Some(stats.cpu?.usage_nano_cores?.value)),
            }),
            memory: Some(v1::MemoryUsage {
                timestamp,
                working_set_bytes: sum(&stats, |stats| Some(stats.memory?.working_set_bytes?.value)),
                usage_bytes: sum(&stats, |stats| Some(stats.memory?.usage_bytes?.value)),
                rss_bytes: sum(&stats, |stats| Some(stats.memory?.rss_bytes?.value)),
                ..Default::default()
            }),
            network: Some(v1::NetworkUsage { timestamp, default_interface: interfaces.next(), interfaces: interfaces.collect() }),
            process: Some(v1::ProcessUsage { timestamp, process_count: value(processes) }),
            containers: stats,
        }
    }

    /// In CRI's message for Windows.
    pub(super) fn windows(self) -> v1::WindowsPodSandboxStats {
        let Self { timestamp, containers: stats, interfaces, processes } = self;
        let usage = |interface: Interface| v1::WindowsNetworkInterfaceUsage {
            name: interface.name,
            rx_bytes: value(interface.received[0]),
            rx_packets_dropped: value(interface.received[3]),
            tx_bytes: value(interface.sent[0]),
            tx_packets_dropped: value(interface.sent[3]),
        };
        let mut interfaces = interfaces.into_iter().map(usage);
        let cpu = |cpu: Option<v1::CpuUsage>| {
            cpu.map(|cpu| v1::WindowsCpuUsage {
                timestamp: cpu.timestamp,
                usage_core_nano_seconds: cpu.usage_core_nano_seconds,
                usage_nano_cores: cpu.usage_nano_cores,
            })
        };
        let memory = |memory: Option<v1::MemoryUsage>| {
            memory.map(|memory| v1::WindowsMemoryUsage {
                timestamp: memory.timestamp,
                working_set_bytes: memory.working_set_bytes,
                available_bytes: memory.available_bytes,
                page_faults: memory.page_faults,
                commit_memory_bytes: memory.usage_bytes,
            })
        };
        let linux = Self { timestamp, containers: stats, interfaces: Vec::new(), processes }.linux();
        let containers = linux.containers.into_iter().map(|stats| v1::WindowsContainerStats {
            attributes: stats.attributes,
            cpu: cpu(stats.cpu),
            memory: memory(stats.memory),
            writable_layer: stats.writable_layer.map(|layer| v1::WindowsFilesystemUsage {
                timestamp: layer.timestamp,
                fs_id: layer.fs_id,
                used_bytes: layer.used_bytes,
            }),
        });
        v1::WindowsPodSandboxStats {
            cpu: cpu(linux.cpu),
            memory: memory(linux.memory),
            network: Some(v1::WindowsNetworkUsage { timestamp, default_interface: interfaces.next(), interfaces: interfaces.collect() }),
            process: Some(v1::WindowsProcessUsage { timestamp, process_count: value(processes) }),
            containers: containers.collect(),
        }
    }
}

/// One line of `/proc/PID/net/dev`: bytes, packets, errors, drops, both ways.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Interface {
    name: String,
    received: [u64; 4],
    sent: [u64; 4],
}

/// The interfaces of a namespace but the loopback, in order: the first is the pod's own.
fn interfaces(dev: &str) -> Vec<Interface> {
    let line = |line: &str| {
        let (name, numbers) = line.split_once(':')?;
        let numbers: Vec<u64> = numbers.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        let part = |at: usize| numbers.get(at..at + 4).and_then(|part| part.try_into().ok());
        Some(Interface { name: name.trim().to_owned(), received: part(0)?, sent: part(8)? })
    };
    dev.lines().filter_map(line).filter(|interface| interface.name != "lo").collect()
}

/// Bytes and number of files below a directory, links not followed.
fn tree_size(dir: &Path) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt as _;
    let mut total = (0, 0);
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().filter_map(Result::ok) {
            let Ok(meta) = entry.metadata() else { continue };
            total = (total.0 + meta.blocks() * 512, total.1 + 1);
            if meta.is_dir() {
                open.push(entry.path());
            }
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_read_in_order() {
        let dev = "Inter-|   Receive\n face |bytes\n    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  eth0: 10 2 3 4 0 0 0 0 50 6 7 8 0 0 0 0\n";
        assert_eq!(interfaces(dev), [Interface { name: "eth0".into(), received: [10, 2, 3, 4], sent: [50, 6, 7, 8] }]);
    }
}
