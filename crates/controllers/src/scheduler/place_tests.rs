use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, Toleration};

use super::*;
use crate::scheduler::memo::Memo;
use crate::scheduler::{cache::Cache, disks::Disk};
use cluster::Key;
use kube_rules::{HostPort, Labels, NodeTerm, Selector};
use std::sync::Arc;

fn pod(change: impl FnOnce(&mut PodRow)) -> PodRow {
    let mut row = PodRow::new(&Pod::default());
    row.weight = BTreeMap::from([("cpu".into(), 100), ("memory".into(), 200 << 20)]);
    change(&mut row);
    row
}

fn node(os: &str, change: impl FnOnce(&mut NodeRow)) -> NodeRow {
    let mut row = NodeRow::new(&Node::default());
    row.labels = Labels::from([("kubernetes.io/os".into(), os.into())]);
    row.allocatable = BTreeMap::from([("cpu".into(), 8000), ("memory".into(), 16 << 30), ("pods".into(), 110)]);
    change(&mut row);
    row
}

fn taint(key: &str, effect: &str) -> Taint {
    Taint { key: key.into(), effect: effect.into(), ..Default::default() }
}

fn cluster(nodes: Vec<(&str, NodeRow)>) -> Cache {
    let mut cache = Cache::default();
    for (name, row) in nodes {
        cache.set_node(name, Some(Arc::new(row)));
    }
    cache
}

fn three() -> Cache {
    cluster(vec![("lin01", node("linux", |_| {})), ("win01", node("windows", |_| {})), ("win02", node("windows", |_| {}))])
}

fn choose(pod: &PodRow, cache: &Cache) -> Result<String, Unfit> {
    place(pod, &World::default(), cache.nodes(), &mut Memo::default()).map(|(node, _)| node)
}

fn on(os: &str) -> Selector {
    Selector::from_labels(&Labels::from([("kubernetes.io/os".into(), os.into())]))
}

#[test]
fn refusals_are_reported_in_upstreams_words() {
    let windows = |row: &mut PodRow| row.node_affinity.selector = on("windows");
    let request = |name: &str, amount: i64| BTreeMap::from([(name.to_owned(), amount)]);
    let cases: Vec<(Cache, PodRow, &str)> = vec![
        (Cache::default(), pod(|_| {}), "no nodes available to schedule pods"),
        (
            three(),
            pod(|row| row.node_affinity.selector = on("plan9")),
            "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector. no new claims to deallocate, \
             preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.",
        ),
        (
            cluster(vec![
                ("lin01", node("linux", |_| {})),
                ("win01", node("windows", |row| row.taints.push(taint("node.kubernetes.io/not-ready", "NoSchedule")))),
                ("win02", node("windows", |row| row.unschedulable = true)),
            ]),
            pod(windows),
            "0/3 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 1 node(s) had untolerated taint(s), \
             1 node(s) were unschedulable. no new claims to deallocate, preemption: 0/3 nodes are available: \
             3 Preemption is not helpful for scheduling.",
        ),
        (
            three(),
            pod(|row| row.requests = request("cpu", 9000)),
            "0/3 nodes are available: 3 Insufficient cpu. no new claims to deallocate, preemption: 0/3 nodes are available: \
             3 Preemption is not helpful for scheduling.",
        ),
        (
            {
                let mut cache = cluster(vec![(
                    "win01",
                    node("windows", |row| {
                        row.allocatable.insert("pods".into(), 1);
                    }),
                )]);
                cache.assume(&Key::new("a", "b"), &pod(|row| row.requests = request("memory", 10 << 30)), "win01");
                cache
            },
            pod(|row| row.requests = request("memory", 10 << 30)),
            "0/1 nodes are available: 1 Insufficient memory, 1 Too many pods. no new claims to deallocate, preemption: \
             0/1 nodes are available: 1 No preemption victims found for incoming pod.",
        ),
        (
            {
                let mut cache = cluster(vec![("win01", node("windows", |_| {}))]);
                let port = HostPort::new("", "TCP", 80);
                cache.assume(&Key::new("a", "b"), &pod(|row| row.ports = vec![port]), "win01");
                cache
            },
            pod(|row| row.ports = vec![HostPort::new("10.0.0.1", "TCP", 80)]),
            "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports. no new claims to deallocate, \
             preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.",
        ),
        (
            {
                let mut cache = cluster(vec![("win01", node("windows", |_| {}))]);
                cache.assume(&Key::new("a", "b"), &pod(|row| row.disks = vec![Disk::Ebs { id: "vol-1".into() }]), "win01");
                cache
            },
            pod(|row| row.disks = vec![Disk::Ebs { id: "vol-1".into() }]),
            "0/1 nodes are available: 1 node(s) had no available disk. no new claims to deallocate, preemption: 0/1 nodes are available: \
             1 No preemption victims found for incoming pod.",
        ),
    ];
    let claimant = pod(|row| row.claims = vec![crate::view::PodClaim { name: "task-pv-claim".into(), ephemeral: false }]);
    assert_eq!(
        choose(&claimant, &three()).unwrap_err().to_string(),
        "0/3 nodes are available: persistentvolumeclaim \"task-pv-claim\" not found. no new claims to deallocate, \
         preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
    );
    for (cache, pod, expected) in cases {
        assert_eq!(choose(&pod, &cache).unwrap_err().to_string(), expected);
    }
}

#[test]
fn pods_go_to_the_best_node() {
    let term = |key: &str, operator: &str, value: &str| {
        NodeTerm::new(&NodeSelectorTerm {
            match_expressions: Some(vec![NodeSelectorRequirement { key: key.into(), operator: operator.into(), values: Some(vec![value.into()]) }]),
            match_fields: None,
        })
    };
    let cases: Vec<(&str, Cache, PodRow, &str)> = vec![
        ("the node of its system", three(), pod(|row| row.node_affinity.selector = on("linux")), "lin01"),
        ("a required term", three(), pod(|row| row.node_affinity.required = Some(vec![term("kubernetes.io/os", "NotIn", "linux")].into())), "win01"),
        ("a preferred term", three(), pod(|row| row.preferred = vec![(10, term("kubernetes.io/os", "In", "windows"))]), "win01"),
        (
            "the emptier node",
            {
                let mut cache = three();
                cache.assume(&Key::new("a", "x"), &pod(|_| {}), "win01");
                cache
            },
            pod(|row| row.node_affinity.selector = on("windows")),
            "win02",
        ),
        (
            "a node without an unwelcoming taint",
            cluster(vec![("a", node("linux", |row| row.taints.push(taint("slow", "PreferNoSchedule")))), ("b", node("linux", |_| {}))]),
            pod(|_| {}),
            "b",
        ),
        (
            "a tainted node it tolerates",
            cluster(vec![("a", node("linux", |row| row.taints.push(taint("gpu", "NoSchedule"))))]),
            pod(|row| row.tolerations = vec![Toleration { operator: Some("Exists".into()), ..Default::default() }]),
            "a",
        ),
    ];
    for (what, cache, pod, expected) in cases {
        assert_eq!(choose(&pod, &cache).as_deref(), Ok(expected), "{what}");
    }
}

#[test]
fn siblings_are_spread_even_over_unequal_nodes() {
    let host = |name: &str, cpu: i64, memory: i64| {
        node("windows", |row| {
            row.labels.insert("kubernetes.io/hostname".into(), name.into());
            row.allocatable.extend([("cpu".into(), cpu), ("memory".into(), memory)]);
        })
    };
    let mut cache = cluster(vec![("big", host("big", 64_000, 256 << 30)), ("small", host("small", 8000, 16 << 30))]);
    let web = pod(|row| row.labels = Labels::from([("app".into(), "web".into())]));
    let world = World { siblings: Selector::from_labels(&web.labels), ..World::default() };
    for index in 0..6 {
        let (node, _) = place(&web, &world, cache.nodes(), &mut Memo::default()).unwrap();
        cache.assume(&Key::new("a", format!("web-{index}")), &web, &node);
    }
    assert_eq!(cache.nodes().map(|(_, _, usage)| usage.pods).collect::<Vec<_>>(), [3, 3]);
}

#[test]
fn affinity_for_named_nodes_is_judged_as_upstream() {
    let named = |names: &[&str]| {
        let fields = names.iter().map(|name| NodeSelectorRequirement {
            key: "metadata.name".into(),
            operator: "In".into(),
            values: Some(vec![(*name).into()]),
        });
        let term = NodeTerm::new(&NodeSelectorTerm { match_expressions: None, match_fields: Some(fields.collect()) });
        pod(|row| {
            row.node_affinity.required = Some(vec![term].into());
            row.requests = BTreeMap::from([("cpu".into(), 9000)]);
        })
    };
    assert_eq!(
        choose(&named(&["win01"]), &three()).unwrap_err().to_string(),
        "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't satisfy plugin(s) [NodeAffinity]. no new claims to deallocate, \
         preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
    );
    assert_eq!(
        choose(&named(&["win01", "win02"]), &three()).unwrap_err().to_string(),
        "0/3 nodes are available: pod affinity terms conflict. no new claims to deallocate, \
         preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
    );
}

#[test]
fn a_nominated_node_that_fits_is_taken() {
    let waiting = pod(|row| row.nominated = Some("win02".into()));
    assert_eq!(choose(&waiting, &three()).as_deref(), Ok("win02"));
    let elsewhere = pod(|row| {
        row.nominated = Some("win02".into());
        row.node_affinity.selector = on("linux");
    });
    assert_eq!(choose(&elsewhere, &three()).as_deref(), Ok("lin01"));
}

#[test]
fn profiles_leave_out_plug_ins() {
    let cache = cluster(vec![("a", node("linux", |row| row.taints.push(taint("gpu", "NoSchedule"))))]);
    let without = |plugin: Plugin| {
        let mut profile = Profile::default();
        profile.filters.remove(&plugin);
        World { profile: Arc::new(profile), ..World::default() }
    };
    assert!(place(&pod(|_| {}), &without(Plugin::NodePorts), cache.nodes(), &mut Memo::default()).is_err());
    assert!(place(&pod(|_| {}), &without(Plugin::TaintToleration), cache.nodes(), &mut Memo::default()).is_ok());
    let large = pod(|row| row.requests = BTreeMap::from([("example.com/gpu".into(), 1)]));
    let plain = cluster(vec![("a", node("linux", |_| {}))]);
    let ignoring = |profile: Profile| World { profile: Arc::new(profile), ..World::default() };
    assert!(place(&large, &World::default(), plain.nodes(), &mut Memo::default()).is_err());
    let by_group = Profile { ignored_groups: ["example.com".to_owned()].into(), ..Profile::default() };
    assert!(place(&large, &ignoring(by_group), plain.nodes(), &mut Memo::default()).is_ok());
    let enforced = Profile {
        added_affinity: Some(
            vec![NodeTerm::new(&NodeSelectorTerm {
                match_expressions: Some(vec![NodeSelectorRequirement { key: "tenant".into(), operator: "Exists".into(), values: None }]),
                match_fields: None,
            })]
            .into(),
        ),
        ..Profile::default()
    };
    let why = place(&pod(|_| {}), &ignoring(enforced), plain.nodes(), &mut Memo::default()).unwrap_err().reasons();
    assert_eq!(why, "0/1 nodes are available: 1 node(s) didn't match scheduler-enforced node affinity.");
}
