//! Tables of thresholds, ranks and messages.

use std::sync::Arc;

use host::{Available, Load, Space};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::manager::{Measured, unmeasured};
use super::plan::{Observations, State, is_short, observe};
use super::rank::{Candidate, ContainerUse, PodUse, choose, over_limit, rank};
use super::*;

const MI: u64 = 1 << 20;

fn t(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn texts(list: &[(&str, &str)]) -> BTreeMap<String, String> {
    list.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn config(hard: &[(&str, &str)], soft: &[(&str, &str)], grace: u64, reclaim: &[(&str, &str)]) -> Eviction {
    let graces = soft.iter().map(|(signal, _)| ((*signal).to_owned(), Duration::from_secs(grace))).collect();
    Eviction { thresholds: Eviction::thresholds(&texts(hard), &texts(soft), &graces, &texts(reclaim)).unwrap(), ..Eviction::default() }
}

fn seen(list: &[(Signal, u64, u64)]) -> Observations {
    list.iter().map(|(signal, available, capacity)| (*signal, Available { available: *available, capacity: *capacity })).collect()
}

#[test]
fn thresholds_are_read_as_upstream_writes_them() {
    let all =
        config(&[("memory.available", "100Mi"), ("nodefs.available", "10%")], &[("memory.available", "1Gi")], 90, &[("memory.available", "50Mi")]);
    assert_eq!(all.thresholds.len(), 3);
    assert_eq!((all.kept_free(Signal::Memory, 8 << 30), all.kept_free(Signal::Nodefs, 1000)), (100 * MI, 100));
    assert_eq!(all.kept_free(Signal::Pids, 1000), 0);
    let soft = all.thresholds.iter().find(|t| t.grace.is_some()).unwrap();
    assert_eq!((soft.value, soft.reclaim), (Amount::Absolute(1 << 30), Some(Amount::Absolute(50 * MI))));
    let off = config(&[("nodefs.available", "0%"), ("imagefs.available", "100%"), ("memory.available", "0")], &[], 0, &[]);
    assert_eq!(off.thresholds, []);
    for (signal, amount) in [("disk", "1Gi"), ("nodefs.available", "120%"), ("nodefs.available", "x"), ("memory.available", "-1")] {
        assert!(amounts(&texts(&[(signal, amount)])).is_err(), "{signal} {amount} was accepted");
    }
    let error = Eviction::thresholds(&texts(&[]), &texts(&[("pid.available", "5%")]), &BTreeMap::new(), &texts(&[])).unwrap_err();
    assert_eq!(error, EvictionError::NoGrace("pid.available"));
}

#[test]
fn a_hard_threshold_drives_at_once_and_its_condition_outlives_it() {
    let config = config(&[("memory.available", "100Mi")], &[], 0, &[]);
    let mut state = State::default();
    let memory = |mi: u64| seen(&[(Signal::Memory, mi * MI, 1000 * MI)]);
    assert_eq!(observe(&config, &mut state, &memory(100), t(0)), [], "as much as that is enough");
    assert!(state.pressures.is_empty());
    assert_eq!(observe(&config, &mut state, &memory(99), t(10)), config.thresholds);
    assert_eq!(observe(&config, &mut state, &memory(500), t(20)), []);
    assert_eq!(state.pressures, BTreeSet::from([Pressure::Memory]), "for the transition period");
    observe(&config, &mut state, &memory(500), t(309));
    assert_eq!(state.pressures, BTreeSet::from([Pressure::Memory]));
    observe(&config, &mut state, &memory(500), t(310));
    assert!(state.pressures.is_empty());
    assert_eq!(observe(&config, &mut state, &Observations::new(), t(320)), [], "what is not observed meets nothing");
}

#[test]
fn a_soft_threshold_waits_for_its_grace_and_starts_anew_after_relief() {
    let config = config(&[], &[("memory.available", "30%")], 60, &[]);
    let mut state = State::default();
    let low = seen(&[(Signal::Memory, 299, 1000)]);
    let fine = seen(&[(Signal::Memory, 300, 1000)]);
    assert_eq!(observe(&config, &mut state, &low, t(0)), []);
    assert_eq!(state.pressures, BTreeSet::from([Pressure::Memory]), "the condition says so at once");
    assert_eq!(observe(&config, &mut state, &low, t(59)), []);
    assert_eq!(observe(&config, &mut state, &low, t(60)).len(), 1);
    assert_eq!(observe(&config, &mut state, &fine, t(70)), []);
    assert_eq!(observe(&config, &mut state, &low, t(80)), []);
    assert_eq!(observe(&config, &mut state, &low, t(140)).len(), 1);
}

#[test]
fn the_minimum_reclaim_has_to_be_there_before_it_is_enough() {
    let config = config(&[("nodefs.available", "10%")], &[], 0, &[("nodefs.available", "5%")]);
    let mut state = State::default();
    let disk = |available: u64| seen(&[(Signal::Nodefs, available, 1000)]);
    assert_eq!(observe(&config, &mut state, &disk(120), t(0)), [], "the reclaim alone is no threshold");
    assert_eq!(observe(&config, &mut state, &disk(99), t(10)).len(), 1);
    assert_eq!(observe(&config, &mut state, &disk(149), t(20)).len(), 1);
    assert!(is_short(&config, &disk(149)) && !is_short(&config, &disk(150)));
    assert_eq!(observe(&config, &mut state, &disk(150), t(30)), []);
    assert_eq!(observe(&config, &mut state, &disk(120), t(40)), []);
}

#[test]
fn memory_comes_first() {
    let config = config(&[("memory.available", "10%"), ("nodefs.available", "10%"), ("pid.available", "10%")], &[], 0, &[]);
    let mut state = State::default();
    let all = seen(&[(Signal::Nodefs, 1, 100), (Signal::Memory, 1, 100), (Signal::Pids, 1, 100)]);
    let due: Vec<_> = observe(&config, &mut state, &all, t(0)).iter().map(|t| t.signal).collect();
    assert_eq!(due, [Signal::Memory, Signal::Nodefs, Signal::Pids]);
    assert_eq!(state.pressures.len(), 3);
    let none = Eviction { transition: Duration::ZERO, ..config };
    observe(&none, &mut state, &all, t(10));
    assert_eq!(state.pressures.len(), 3, "what is observed now holds without a period");
    let now = t(10).checked_add(SignedDuration::from_secs(1)).unwrap();
    observe(&none, &mut state, &Observations::new(), now);
    assert!(state.pressures.is_empty());
}

fn pod(spec: Value) -> Arc<Pod> {
    let mut full = json!({"containers": [{"name": "c", "image": "i"}]});
    for (k, v) in spec.as_object().unwrap() {
        full[k] = v.clone();
    }
    Arc::new(serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": full})).unwrap())
}

fn requesting(memory: &str, priority: i32) -> Arc<Pod> {
    pod(json!({"priority": priority, "containers": [{"name": "c", "image": "i", "resources": {"requests": {"memory": memory}}}]}))
}

fn candidate(uid: &str, pod: Arc<Pod>, memory: Option<u64>) -> Candidate {
    let used =
        |mi: u64| PodUse { containers: vec![ContainerUse { name: "c".into(), memory: mi * MI, ..ContainerUse::default() }], ..PodUse::default() };
    Candidate { uid: uid.into(), pod, is_static: false, usage: memory.map(used) }
}

fn order(mut all: Vec<Candidate>, signal: Signal, dedicated: bool) -> Vec<String> {
    rank(&mut all, signal, dedicated);
    all.into_iter().map(|c| c.uid).collect()
}

#[test]
fn pods_rank_by_excess_then_priority_then_use() {
    let all = vec![
        candidate("within", requesting("500Mi", 0), Some(400)),
        candidate("important-over", requesting("100Mi", 1000), Some(900)),
        candidate("over", requesting("100Mi", 0), Some(200)),
        candidate("far-over", requesting("100Mi", 0), Some(600)),
        candidate("best-effort", pod(json!({})), Some(50)),
        candidate("unknown", requesting("1Gi", 1000), None),
        candidate("unknown-cheap", requesting("1Gi", 0), None),
    ];
    assert_eq!(order(all, Signal::Memory, false), ["unknown-cheap", "unknown", "far-over", "over", "best-effort", "important-over", "within"]);
}

#[test]
fn process_ids_rank_by_priority_and_number() {
    let of = |uid: &str, priority: i32, pids: u64| {
        let mut c = candidate(uid, requesting("1Mi", priority), Some(900));
        c.usage.as_mut().unwrap().pids = pids;
        c
    };
    assert_eq!(order(vec![of("few", 0, 5), of("many", 0, 500), of("important", 9, 9000)], Signal::Pids, false), ["many", "few", "important"]);
}

#[test]
fn disks_rank_by_what_is_on_them() {
    let of = |uid: &str, rootfs: u64, logs: u64, local: u64| {
        let mut c = candidate(uid, pod(json!({})), Some(1));
        let usage = c.usage.as_mut().unwrap();
        usage.local = local;
        (usage.containers[0].rootfs, usage.containers[0].logs) = (rootfs, logs);
        c
    };
    let all = || vec![of("layer", 50, 0, 0), of("logs", 0, 30, 0), of("volume", 10, 0, 35)];
    assert_eq!(order(all(), Signal::Nodefs, false), ["layer", "volume", "logs"]);
    assert_eq!(order(all(), Signal::Nodefs, true), ["volume", "logs", "layer"]);
    assert_eq!(order(all(), Signal::Imagefs, true), ["layer", "volume", "logs"]);
}

#[test]
fn the_first_pod_that_is_not_critical_ends_with_upstreams_words() {
    let all = config(&[("memory.available", "100Mi")], &[("memory.available", "200Mi")], 60, &[]);
    let all = Eviction { max_pod_grace: 10, ..all };
    let (hard, soft) = (all.thresholds[0], all.thresholds[1]);
    let observed = seen(&[(Signal::Memory, 50 * MI, 1000 * MI)]);
    let mut is_static = candidate("static", pod(json!({})), Some(900));
    is_static.is_static = true;
    let critical = candidate("critical", pod(json!({"priority": 2_000_001_000})), Some(900));
    let victim = candidate("victim", requesting("100Mi", 0), Some(300));
    let list = [is_static.clone(), critical.clone(), victim.clone()];
    let (uid, evicted) = choose(&list, &hard, &observed, &all).unwrap();
    assert_eq!((uid.as_str(), evicted.grace, evicted.disruption.is_some()), ("victim", 1, true));
    assert_eq!(
        evicted.message,
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. \
         Container c was using 300Mi, request is 100Mi, has larger consumption of memory. "
    );
    assert_eq!(choose(&list, &soft, &observed, &all).unwrap().1.grace, 10);
    assert_eq!(choose(&[is_static, critical], &hard, &observed, &all), None);
    let quick = candidate("quick", pod(json!({"terminationGracePeriodSeconds": 3})), None);
    let (_, evicted) = choose(&[quick], &soft, &observed, &all).unwrap();
    assert_eq!((evicted.grace, evicted.message.as_str()), (3, "The node was low on resource: memory. Threshold quantity: 200Mi, available: 50Mi. "));
}

#[test]
fn limits_of_local_storage_hold() {
    let container = |limit: Value| json!([{"name": "c", "image": "i", "resources": {"limits": limit}}, {"name": "d", "image": "i"}]);
    let volumes = json!([{"name": "v", "emptyDir": {"sizeLimit": "10Mi"}}, {"name": "w", "emptyDir": {}}]);
    let of = |spec: Value, usage: PodUse| {
        let c = Candidate { uid: "u".into(), pod: pod(spec), is_static: false, usage: Some(usage) };
        over_limit(&c, false).map(|(_, e)| (e.message, e.grace, e.disruption.is_some()))
    };
    let with = |v: u64, rootfs: u64, logs: u64| PodUse {
        containers: vec![ContainerUse { name: "c".into(), rootfs: rootfs * MI, logs: logs * MI, ..ContainerUse::default() }],
        empty_dirs: BTreeMap::from([("v".to_owned(), v * MI), ("w".to_owned(), 999 * MI)]),
        local: v * MI,
        ..PodUse::default()
    };
    let message = |text: &str| Some((text.to_owned(), 1, false));
    assert_eq!(of(json!({"volumes": volumes}), with(10, 0, 0)), None);
    assert_eq!(of(json!({"volumes": volumes}), with(11, 0, 0)), message("Usage of EmptyDir volume \"v\" exceeds the limit \"10Mi\". "));
    let limited = || json!({"containers": container(json!({"ephemeral-storage": "20Mi"}))});
    assert_eq!(of(limited(), with(0, 10, 10)), None);
    assert_eq!(of(limited(), with(5, 10, 10)), message("Pod ephemeral local storage usage exceeds the total limit of containers 20Mi. "));
    let both = json!({"containers": [{"name": "c", "image": "i", "resources": {"limits": {"ephemeral-storage": "20Mi"}}},
        {"name": "d", "image": "i", "resources": {"limits": {"ephemeral-storage": "50Mi"}}}]});
    assert_eq!(of(both, with(0, 15, 10)), message("Container c exceeded its local ephemeral storage limit \"20Mi\". "));
    assert_eq!(of(json!({"containers": container(json!({"cpu": "1"}))}), with(500, 500, 500)), None);
    let critical = json!({"priority": 2_000_000_000, "volumes": volumes});
    assert_eq!(of(critical, with(11, 0, 0)), None);
}

#[test]
fn what_was_measured_is_judged_whatever_was_not() {
    let space = Some(Space { capacity: 100, available: 5, inodes: 10, inodes_free: 1 });
    let pids = Some(Available { capacity: 1000, available: 10 });
    let memory = Available { capacity: 8000, available: 700 };
    let load = |pids| Some(Some(Load { memory, pids }));
    let whole = Measured { memory: 8000, reserved: 1000, used: Some(2000), load: load(pids), nodefs: space, imagefs: space };
    let disk = [(Signal::Nodefs, 5, 100), (Signal::NodefsInodes, 1, 10), (Signal::Imagefs, 5, 100), (Signal::ImagefsInodes, 1, 10)];
    let (nodefs, imagefs) = disk.split_at(2);
    let (of_pods, of_machine, of_pids) = ((Signal::AllocatableMemory, 5000, 7000), (Signal::Memory, 700, 8000), (Signal::Pids, 10, 1000));
    for (what, measured, wanted) in [
        ("all", whole, [&[of_pods, of_machine, of_pids], &disk[..]].concat()),
        ("no usage of containers", Measured { used: None, ..whole }, [&[of_machine, of_pids], &disk[..]].concat()),
        ("no load", Measured { load: Some(None), ..whole }, [&[of_pods], &disk[..]].concat()),
        ("Windows", Measured { load: load(None), ..whole }, [&[of_pods, of_machine], &disk[..]].concat()),
        ("a simulated node", Measured { load: None, ..whole }, [&[of_pods, (Signal::Memory, 6000, 8000)], &disk[..]].concat()),
        ("a simulated node, no usage", Measured { load: None, used: None, ..whole }, disk.to_vec()),
        ("no file system of images", Measured { imagefs: None, used: None, load: None, ..whole }, nodefs.to_vec()),
        ("no file system of the agent", Measured { nodefs: None, used: None, load: None, ..whole }, imagefs.to_vec()),
        ("nothing", Measured::default(), vec![]),
    ] {
        assert_eq!(measured.signals(), seen(&wanted), "{what}");
    }
    let config = config(&[("memory.available", "100"), ("nodefs.available", "10%"), ("pid.available", "5%")], &[], 0, &[]).with_allocatable_memory();
    let mut state = State::default();
    let due = observe(&config, &mut state, &Measured { used: None, ..whole }.signals(), t(0));
    assert_eq!(due.iter().map(|t| t.signal).collect::<Vec<_>>(), [Signal::Nodefs, Signal::Pids]);
    assert_eq!(state.pressures, BTreeSet::from([Pressure::Disk, Pressure::Pid]));
}

#[test]
fn a_pod_whose_usage_is_not_known_is_judged_by_the_files_that_the_agent_measures() {
    let limits = json!({"limits": {"ephemeral-storage": "20Mi"}});
    let pod = pod(json!({"initContainers": [{"name": "i", "image": "i"}], "containers": [{"name": "c", "image": "i", "resources": limits}]}));
    let mut usage = unmeasured(&pod);
    assert_eq!(usage.containers.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["i", "c"]);
    let over = |usage: &PodUse| over_limit(&Candidate { uid: "u".into(), pod: pod.clone(), is_static: false, usage: Some(usage.clone()) }, false);
    assert!(over(&usage).is_none());
    usage.containers[1].logs = 21 * MI;
    assert!(over(&usage).is_some());
}

#[test]
fn a_node_that_is_short_of_something_refuses_pods() {
    let of =
        |spec: Value, is_static: bool, pressures: &[Pressure]| admit(&pod(spec), is_static, &pressures.iter().copied().collect()).map(|r| r.message);
    let requested = || json!({"containers": [{"name": "c", "image": "i", "resources": {"requests": {"memory": "1Mi"}}}]});
    let tolerates = || json!({"tolerations": [{"key": "node.kubernetes.io/memory-pressure", "operator": "Exists"}]});
    let refused = |text: &str| Some(format!("The node had condition: [{text}]. "));
    assert_eq!(of(json!({}), false, &[]), None);
    assert_eq!(of(json!({}), false, &[Pressure::Memory]), refused("MemoryPressure"));
    assert_eq!(of(requested(), false, &[Pressure::Memory]), None);
    assert_eq!(of(tolerates(), false, &[Pressure::Memory]), None);
    assert_eq!(of(requested(), false, &[Pressure::Disk]), refused("DiskPressure"));
    assert_eq!(of(tolerates(), false, &[Pressure::Memory, Pressure::Pid]), refused("MemoryPressure PIDPressure"));
    assert_eq!(of(json!({}), true, &[Pressure::Disk]), None);
    assert_eq!(of(json!({"priority": 2_000_000_000}), false, &[Pressure::Disk]), None);
}

#[test]
fn what_pods_may_take_has_the_threshold_of_memory() {
    let of = |config: Eviction| {
        let config = config.with_allocatable_memory();
        let all = config.thresholds.iter().filter(|t| t.signal == Signal::AllocatableMemory);
        all.map(|t| (t.value, t.grace, t.reclaim)).collect::<Vec<_>>()
    };
    let given = config(&[("memory.available", "100Mi")], &[("memory.available", "1Gi")], 90, &[("memory.available", "50Mi")]);
    assert_eq!(of(given), [(Amount::Absolute(100 * MI), None, Some(Amount::Absolute(50 * MI)))]);
    let own = config(&[("memory.available", "100Mi"), ("allocatableMemory.available", "10%")], &[], 0, &[]);
    assert_eq!(of(own), [(Amount::Percent(10.0), None, None)]);
    assert_eq!(of(Eviction::default()), []);

    let config = config(&[("nodefs.available", "10%"), ("memory.available", "100Mi")], &[], 0, &[]).with_allocatable_memory();
    let mut state = State::default();
    let now = seen(&[(Signal::Nodefs, 1, 100), (Signal::Memory, 900 * MI, 1000 * MI), (Signal::AllocatableMemory, 99 * MI, 500 * MI)]);
    let due = observe(&config, &mut state, &now, t(0));
    assert_eq!(due.iter().map(|t| t.signal).collect::<Vec<_>>(), [Signal::AllocatableMemory, Signal::Nodefs], "memory first");
    assert_eq!(state.pressures, BTreeSet::from([Pressure::Memory, Pressure::Disk]));
}
