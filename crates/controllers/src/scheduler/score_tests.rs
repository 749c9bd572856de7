use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};

use super::*;
use crate::scheduler::cache::Cache;
use crate::scheduler::memo::Memo;
use cluster::Key;

fn pod(spec: Value) -> PodRow {
    PodRow::new(&serde_json::from_value::<Pod>(json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": spec})).unwrap())
}

fn asks(cpu: &str, memory: &str) -> Value {
    json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}}]})
}

fn cluster(nodes: &[(&str, Value)]) -> Cache {
    let mut cache = Cache::default();
    for (name, node) in nodes {
        let node: Node = serde_json::from_value(node.clone()).unwrap();
        cache.set_node(name, Some(Arc::new(NodeRow::new(&node))));
    }
    cache
}

fn sized(cpu: &str, memory: &str) -> Value {
    json!({"status": {"allocatable": {"cpu": cpu, "memory": memory, "pods": "110"}}})
}

/// The scores of one plug-in.
fn of(plugin: Plugin, change: impl FnOnce(&mut Profile), pod: &PodRow, cache: &Cache) -> Vec<i64> {
    let mut profile = Profile { weights: [(plugin, 1)].into(), ..Profile::default() };
    change(&mut profile);
    let world = World { profile: Arc::new(profile), ..World::default() };
    let (neighbours, mut memo) = (Neighbours::of(pod, &world, cache.nodes()), Memo::default());
    let judged: Vec<_> = cache.nodes().zip(memo.facts(pod, &world.profile, neighbours.soft(), cache.nodes())).collect();
    scores(pod, &world, &neighbours, judged.iter().copied(), &judged)
}

#[test]
fn resources_score_in_whole_numbers_as_upstream() {
    // The cases "nothing scheduled, resources requested, differently sized nodes" of upstream's tables.
    let cache = cluster(&[("a", sized("4000m", "10000")), ("b", sized("6000m", "10000"))]);
    let asking = pod(asks("3000m", "5000"));
    assert_eq!(of(Plugin::NodeResourcesFit, |_| {}, &asking, &cache), [37, 50]);
    assert_eq!(of(Plugin::NodeResourcesFit, |one| one.strategy = Strategy::MostAllocated, &asking, &cache), [62, 50]);
    let rising = |one: &mut Profile| one.strategy = Strategy::RequestedToCapacityRatio(vec![(0, 0), (100, 100)]);
    assert_eq!(of(Plugin::NodeResourcesFit, rising, &asking, &cache), [63, 50]);
    // A pod with requests of zero does not count as one without: only containers that say nothing get the default.
    let silent = pod(json!({"containers": [{"name": "c"}]}));
    let cache = cluster(&[("a", sized("1", "1000Mi"))]);
    assert_eq!(of(Plugin::NodeResourcesFit, |_| {}, &silent, &cache), [85], "100m of a processor and 200Mi of memory");
}

#[test]
fn balance_is_judged_by_what_the_pod_changes() {
    let cache = cluster(&[("a", sized("4000m", "10000")), ("b", sized("6000m", "10000"))]);
    // 3/4 and 1/2 deviate by 0.125: 87, against 100 of an empty node.
    assert_eq!(of(Plugin::NodeResourcesBalancedAllocation, |_| {}, &pod(asks("3000m", "5000")), &cache), [68, 75]);
    assert_eq!(of(Plugin::NodeResourcesBalancedAllocation, |_| {}, &pod(json!({"containers": [{"name": "c"}]})), &cache), [0, 0], "best effort");
    let mut used = cluster(&[("a", sized("10", "10000"))]);
    used.assume(&Key::new("shop", "x"), &pod(asks("5", "0")), "a");
    assert_eq!(of(Plugin::NodeResourcesBalancedAllocation, |_| {}, &pod(asks("0", "5000")), &used), [87], "it makes the node even");
}

#[test]
fn images_that_a_node_holds_count_by_size_and_spread() {
    let node = |images: Value| json!({"status": {"images": images, "allocatable": {"pods": "110"}}});
    let image = |name: &str, mb: i64| json!({"names": [format!("registry.example/{name}:latest")], "sizeBytes": mb << 20});
    let cache = cluster(&[
        ("a", node(json!([image("40", 40), image("300", 300)]))),
        ("b", node(json!([image("250", 250), image("10", 10)]))),
        ("c", node(json!([]))),
    ]);
    let with = |names: &[&str]| {
        let containers: Vec<Value> =
            names.iter().enumerate().map(|(index, name)| json!({"name": format!("c{index}"), "image": format!("registry.example/{name}")})).collect();
        pod(json!({"containers": containers}))
    };
    // Each image is on one of three nodes: a third of its size counts, from 23 MB to 1000 MB a container.
    assert_eq!(of(Plugin::ImageLocality, |_| {}, &with(&["40", "250"]), &cache), [0, 3, 0]);
    assert_eq!(of(Plugin::ImageLocality, |_| {}, &with(&["300"]), &cache), [7, 0, 0]);
    let everywhere = cluster(&[("a", node(json!([image("2000", 2000)]))), ("b", node(json!([image("2000", 2000)])))]);
    assert_eq!(of(Plugin::ImageLocality, |_| {}, &with(&["2000"]), &everywhere), [100, 100]);
    let volume =
        pod(json!({"containers": [{"name": "c", "image": "none"}], "volumes": [{"name": "v", "image": {"reference": "registry.example/2000"}}]}));
    assert_eq!(of(Plugin::ImageLocality, |_| {}, &volume, &everywhere), [100, 100], "images of volumes count too");
}

#[test]
fn taints_and_preferences_are_shares_of_the_largest() {
    let tainted = |count: usize| {
        let taints: Vec<Value> = (0..count).map(|index| json!({"key": format!("k{index}"), "effect": "PreferNoSchedule"})).collect();
        json!({"spec": {"taints": taints}, "metadata": {"labels": {"count": count.to_string()}}})
    };
    let cache = cluster(&[("a", tainted(0)), ("b", tainted(1)), ("c", tainted(3))]);
    assert_eq!(of(Plugin::TaintToleration, |_| {}, &pod(json!({"containers": []})), &cache), [100, 67, 0]);
    let prefers = |weight: i32, count: &str| json!({"weight": weight, "preference": {"matchExpressions": [{"key": "count", "operator": "In", "values": [count]}]}});
    let affinity = json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [prefers(2, "1"), prefers(3, "3")]}});
    assert_eq!(of(Plugin::NodeAffinity, |_| {}, &pod(json!({"containers": [], "affinity": affinity})), &cache), [0, 66, 100]);
}

#[test]
fn shapes_are_broken_lines() {
    let shape = [(10, 100), (20, 50), (80, 0)];
    for (used, expected) in [(0, 100), (10, 100), (15, 75), (20, 50), (50, 25), (80, 0), (100, 0)] {
        assert_eq!(shape_score(&shape, used), expected, "{used}");
    }
}
