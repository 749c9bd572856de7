//! Statistics of the node itself (upstream pkg/kubelet/server/stats/summary.go, summary_sys_containers*.go): on Linux those of the root control
//! group, elsewhere what the machine counts. A simulated host has no machine of its own: there the sum of its pods stands for it.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use host::{Available, Counters, Load};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::usage::{Cpu, Group, Groups, Interface, Memory, Owner};
use crate::agent::Agent;

/// The shortest time over which a rate is measured, and how long an entry that nobody asks for stays.
const SHORTEST: i64 = 1_000_000_000;
const KEPT: i64 = 600_000_000_000;
/// Most entries.
const MOST: usize = 10_000;

/// Processor time of one thing when it was last looked at.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Nanoseconds since 1970.
    at: i64,
    total: u64,
    rate: Option<u64>,
}

/// Rates of processor time between two looks, for what only counts a sum. Things are kept by the hash of their name.
#[derive(Debug, Default)]
pub(crate) struct Rates(HashMap<u64, Sample>);

impl Rates {
    /// Nanoseconds of processor time in a second; None until something was looked at twice.
    pub(crate) fn of(&mut self, name: &str, at: i64, total: u64) -> Option<u64> {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let key = hasher.finish();
        let old = self.0.get(&key).copied();
        // One that counts anew has no rate yet.
        let Some(old) = old.filter(|old| old.total <= total && old.at <= at) else {
            if self.0.len() >= MOST {
                self.0.retain(|_, sample| at - sample.at < KEPT);
            }
            if self.0.len() < MOST {
                self.0.insert(key, Sample { at, total, rate: None });
            }
            return None;
        };
        if at - old.at < SHORTEST {
            return old.rate;
        }
        let rate = u128::from(total - old.total) * 1_000_000_000 / u128::from((at - old.at).unsigned_abs());
        let rate = u64::try_from(rate).ok();
        self.0.insert(key, Sample { at, total, rate });
        rate
    }

    /// Forgets what was not looked at for a while.
    pub(crate) fn sweep(&mut self, now: i64) {
        self.0.retain(|_, sample| now - sample.at < KEPT);
    }
}

/// Part of the node that is no pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct System {
    /// Upstream's: `kubelet`, `pods` or `windows-global-commit-memory`.
    pub name: &'static str,
    pub started: Option<Timestamp>,
    pub cpu: Option<Cpu>,
    pub memory: Option<Memory>,
    pub available: Option<u64>,
}

/// The node but for its pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Machine {
    pub started: Option<Timestamp>,
    pub cpu: Option<u64>,
    pub memory: Option<Memory>,
    /// Bytes of swap that are used, and those that are free.
    pub swap: Option<(u64, u64)>,
    pub interfaces: Vec<Interface>,
    pub pids: Option<Available>,
    pub system: Vec<System>,
}

/// What control groups say of pods, by UID.
#[derive(Clone, Debug, Default)]
pub(super) struct OfPod {
    pub cpu: Option<Cpu>,
    pub memory: Option<Memory>,
    pub interfaces: Vec<Interface>,
}

pub(super) type OfPods = BTreeMap<String, OfPod>;

fn second(seconds: u64) -> Option<Timestamp> {
    Timestamp::from_second(i64::try_from(seconds).ok()?).ok()
}

/// A time as it is shown, in whole seconds. Rates need the exact one.
pub(crate) fn whole(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// Reads node and pods, and says when; networks only where `all` is asked for. Nothing of hosts that are simulated.
pub(super) fn read(agent: &Agent, all: bool) -> (Timestamp, Machine, OfPods) {
    let now = Timestamp::now();
    let (machine, pods) = read_now(agent, all);
    (now, machine, pods)
}

fn read_now(agent: &Agent, all: bool) -> (Machine, OfPods) {
    if !agent.is_machine {
        return (Machine::default(), OfPods::new());
    }
    let counters = Counters::read().inspect_err(|error| tracing::warn!(%error, "the machine's own counts cannot be read")).ok();
    let mut machine = Machine { started: counters.as_ref().and_then(|own| second(own.started)), ..Machine::default() };
    let load = Load::read().ok();
    if all {
        machine.pids = load.and_then(|load| load.pids);
    }
    if let Some(groups) = Groups::of_node(agent) {
        let found = groups.all();
        of_groups(agent, &groups, &found, all, &mut machine);
        return (machine, of_pods(&groups, &found, all));
    }
    if let Some(counters) = counters {
        machine.cpu = Some(counters.cpu_nanos);
        let (usage, working_set) = match load {
            // What is committed, as upstream has it.
            Some(load) if agent.side.os.is_windows() => (load.memory.capacity.saturating_sub(load.memory.available), counters.working_set),
            _ => (counters.working_set, counters.working_set),
        };
        machine.memory = Some(Memory { usage, working_set, ..Memory::default() });
        if all {
            machine.interfaces = counters.interfaces.into_iter().map(Interface::from).collect();
        }
    }
    if let Some(load) = load.filter(|_| agent.side.os.is_windows()) {
        let usage = load.memory.capacity.saturating_sub(load.memory.available);
        let memory = Memory { usage, ..Memory::default() };
        machine.system.push(System {
            name: "windows-global-commit-memory",
            started: None,
            cpu: None,
            memory: Some(memory),
            available: Some(load.memory.available),
        });
    }
    (machine, OfPods::new())
}

fn of_groups(agent: &Agent, groups: &Groups<'_>, found: &[Group], all: bool, machine: &mut Machine) {
    let (cpu, memory) = groups.cpu_and_memory("/");
    (machine.cpu, machine.memory) = (cpu.map(|cpu| cpu.total), memory);
    if all {
        machine.interfaces = groups.interfaces("/");
    }
    machine.swap = groups.swap_of_machine().map(|(total, free)| (total.saturating_sub(free), free));
    let own = groups.of_process(std::process::id()).filter(|own| own != "/").map(|own| ("kubelet", own, Some(agent.started)));
    let pods = groups.of_pods().filter(|pods| found.iter().any(|group| group.name == *pods));
    let pods = pods.map(|name| ("pods", name.clone(), groups.made(&name).and_then(second)));
    for (name, group, started) in own.into_iter().chain(pods) {
        let (cpu, memory) = groups.cpu_and_memory(&group);
        machine.system.push(System { name, started, cpu, memory, available: None });
    }
}

fn of_pods(groups: &Groups<'_>, found: &[Group], all: bool) -> OfPods {
    let mut pods = OfPods::new();
    for group in found {
        match &group.owner {
            Owner::Pod(uid) => {
                let own = pods.entry(uid.clone()).or_default();
                (own.cpu, own.memory) = groups.cpu_and_memory(&group.name);
            }
            Owner::Container { pod, .. } if all => {
                let own = pods.entry(pod.clone()).or_default();
                if own.interfaces.is_empty() {
                    own.interfaces = groups.interfaces(&group.name);
                }
            }
            Owner::Container { .. } | Owner::Machine | Owner::Class => {}
        }
    }
    pods
}

/// Processor time as the API has it.
pub(super) fn cpu(time: &str, total: u64, rate: Option<u64>) -> Value {
    let mut value = json!({"time": time, "usageCoreNanoSeconds": total});
    if let Some(rate) = rate {
        value["usageNanoCores"] = json!(rate);
    }
    value
}

/// Memory as the API has it.
pub(super) fn memory(time: &str, memory: &Memory, available: Option<u64>) -> Value {
    let mut value = Map::from_iter([
        ("time".to_owned(), json!(time)),
        ("usageBytes".to_owned(), json!(memory.usage)),
        ("workingSetBytes".to_owned(), json!(memory.working_set)),
    ]);
    let faults = (memory.faults > 0).then_some(memory.faults);
    let major = faults.map(|_| memory.major_faults);
    for (name, known) in [("availableBytes", available), ("rssBytes", memory.rss), ("pageFaults", faults), ("majorPageFaults", major)] {
        if let Some(known) = known {
            value.insert(name.to_owned(), json!(known));
        }
    }
    Value::Object(value)
}

/// Interfaces as the API has them, the default one at the top; nothing without any.
pub(super) fn network(time: &str, default: Option<&Interface>, interfaces: &[Interface]) -> Option<Value> {
    let of = |own: &Interface| {
        let mut value = json!({"name": own.name});
        let all = [("rxBytes", own.received[0]), ("rxErrors", own.received[2]), ("txBytes", own.sent[0]), ("txErrors", own.sent[2])];
        for (name, known) in all {
            if let Some(known) = known {
                value[name] = json!(known);
            }
        }
        value
    };
    let all: Vec<Value> = interfaces.iter().map(of).collect();
    let mut value = default.map_or_else(|| json!({"name": ""}), of);
    value["time"] = json!(time);
    (!all.is_empty()).then(|| {
        value["interfaces"] = Value::Array(all);
        value
    })
}

/// The default interface where nobody names one: upstream's is called eth0.
pub(super) fn default_of(interfaces: &[Interface]) -> Option<&Interface> {
    interfaces.iter().find(|own| own.name == "eth0")
}

/// The node's part of the document. `now` is the exact time of measurement. `sum` is what its pods use together, which stands for hosts that
/// are simulated.
pub(super) fn document(machine: &Machine, sum: (u64, u64, Memory), capacity: u64, now: Timestamp, rates: &mut Rates) -> Map<String, Value> {
    let (time, at) = (whole(now).to_string(), i64::try_from(now.as_nanosecond()).unwrap_or_default());
    let (sum_total, sum_rate, sum_memory) = sum;
    let mut value = Map::new();
    let of_machine = machine.cpu.map(|total| cpu(&time, total, rates.of("/", at, total)));
    value.insert("cpu".into(), of_machine.unwrap_or_else(|| cpu(&time, sum_total, Some(sum_rate))));
    let used = machine.memory.unwrap_or(sum_memory);
    value.insert("memory".into(), memory(&time, &used, Some(capacity.saturating_sub(used.working_set))));
    if let Some((used, free)) = machine.swap {
        value.insert("swap".into(), json!({"time": time, "swapUsageBytes": used, "swapAvailableBytes": free}));
    }
    if let Some(network) = network(&time, default_of(&machine.interfaces), &machine.interfaces) {
        value.insert("network".into(), network);
    }
    if let Some(pids) = machine.pids {
        let running = pids.capacity.saturating_sub(pids.available);
        value.insert("rlimit".into(), json!({"time": time, "maxpid": pids.capacity, "curproc": running}));
    }
    let mut system: Vec<Value> = machine.system.iter().map(|own| of_system(own, &time, at, rates)).collect();
    if !machine.system.iter().any(|own| own.name == "pods") {
        // As upstream on Windows: what pods use together.
        let pods =
            json!({"name": "pods", "startTime": time, "cpu": cpu(&time, sum_total, Some(sum_rate)), "memory": memory(&time, &sum_memory, None)});
        system.push(pods);
    }
    value.insert("systemContainers".into(), Value::Array(system));
    value
}

fn of_system(own: &System, time: &str, at: i64, rates: &mut Rates) -> Value {
    let mut value = json!({"name": own.name, "startTime": own.started.map_or_else(|| time.to_owned(), |started| whole(started).to_string())});
    if let Some(used) = own.cpu {
        value["cpu"] = cpu(time, used.total, rates.of(own.name, at, used.total));
    }
    if let Some(used) = &own.memory {
        value["memory"] = memory(time, used, own.available);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_needs_two_looks() {
        let mut rates = Rates::default();
        let second = 1_000_000_000;
        assert_eq!(rates.of("a", 0, 100), None);
        assert_eq!(rates.of("a", second / 2, 600), None, "too early");
        assert_eq!(rates.of("a", 2 * second, 2100), Some(1000));
        assert_eq!(rates.of("a", 2 * second + 1, 9000), Some(1000), "the last one");
        assert_eq!(rates.of("b", 2 * second, 1), None);
        assert_eq!(rates.of("a", 4 * second, 50), None, "counted anew");
        assert_eq!(rates.of("a", 5 * second, 70), Some(20));
        rates.sweep(5 * second + KEPT);
        assert!(rates.0.is_empty());
    }

    #[test]
    fn rates_are_of_the_exact_time_though_whole_seconds_are_shown() {
        let mut rates = Rates::default();
        let mut at = |millis: i64, total: u64| {
            let kubelet = System {
                name: "kubelet",
                started: Timestamp::from_millisecond(1900).ok(),
                cpu: Some(Cpu { total, user: None, system: None }),
                memory: None,
                available: None,
            };
            let machine = Machine { cpu: Some(total), system: vec![kubelet], ..Machine::default() };
            Value::Object(document(&machine, (0, 0, Memory::default()), 100, Timestamp::from_millisecond(millis).unwrap(), &mut rates))
        };
        at(5900, 1000);
        let shown = at(7100, 2200);
        let cpu = json!({"time": "1970-01-01T00:00:07Z", "usageCoreNanoSeconds": 2200, "usageNanoCores": 1000});
        assert_eq!((&shown["cpu"], &shown["systemContainers"][0]["cpu"]), (&cpu, &cpu));
        assert_eq!(shown["systemContainers"][0]["startTime"], "1970-01-01T00:00:01Z");
    }

    #[test]
    fn the_node_is_the_machine_and_else_its_pods() {
        let now = Timestamp::from_second(5).unwrap();
        let sum = (70, 7, Memory { usage: 30, working_set: 20, ..Memory::default() });
        let mut rates = Rates::default();
        let simulated = Value::Object(document(&Machine::default(), sum, 100, now, &mut rates));
        let time = "1970-01-01T00:00:05Z";
        assert_eq!(simulated["cpu"], json!({"time": time, "usageCoreNanoSeconds": 70, "usageNanoCores": 7}));
        assert_eq!(simulated["memory"], json!({"time": time, "usageBytes": 30, "workingSetBytes": 20, "availableBytes": 80}));
        assert_eq!(simulated["systemContainers"][0]["name"], "pods");
        assert_eq!((&simulated["rlimit"], &simulated["network"], &simulated["swap"]), (&Value::Null, &Value::Null, &Value::Null));

        let interface = |name: &str| Interface { name: name.into(), received: [1, 2, 3, 4].map(Some), sent: [Some(5), None, None, None] };
        let kubelet = System {
            name: "kubelet",
            started: Timestamp::from_second(1).ok(),
            cpu: Some(Cpu { total: 9, user: None, system: None }),
            memory: Some(Memory { usage: 4, working_set: 3, rss: Some(2), faults: 8, major_faults: 1, ..Memory::default() }),
            available: None,
        };
        let machine = Machine {
            started: Timestamp::from_second(2).ok(),
            cpu: Some(1000),
            memory: Some(Memory { usage: 60, working_set: 40, ..Memory::default() }),
            swap: Some((3, 4)),
            interfaces: vec![interface("ens1"), interface("eth0")],
            pids: Some(Available { capacity: 100, available: 90 }),
            system: vec![kubelet, System { name: "pods", started: None, cpu: None, memory: None, available: None }],
        };
        let shown = Value::Object(document(&machine, sum, 100, now, &mut rates));
        assert_eq!(shown["cpu"], json!({"time": time, "usageCoreNanoSeconds": 1000}));
        assert_eq!(shown["memory"]["availableBytes"], 60);
        assert_eq!(shown["swap"], json!({"time": time, "swapUsageBytes": 3, "swapAvailableBytes": 4}));
        assert_eq!(shown["rlimit"], json!({"time": time, "maxpid": 100, "curproc": 10}));
        let eth0 = json!({"name": "eth0", "rxBytes": 1, "rxErrors": 3, "txBytes": 5});
        assert_eq!((&shown["network"]["name"], &shown["network"]["rxBytes"], &shown["network"]["interfaces"][1]), (&json!("eth0"), &json!(1), &eth0));
        let system = shown["systemContainers"].as_array().unwrap();
        assert_eq!(system.len(), 2, "{system:?}");
        assert_eq!(
            system[0],
            json!({"name": "kubelet", "startTime": "1970-01-01T00:00:01Z", "cpu": {"time": time, "usageCoreNanoSeconds": 9},
                   "memory": {"time": time, "usageBytes": 4, "workingSetBytes": 3, "rssBytes": 2, "pageFaults": 8, "majorPageFaults": 1}})
        );
    }
}
