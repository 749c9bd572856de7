use std::sync::Arc;

use cluster::Key;
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};

use super::*;
use crate::scheduler::memo::Memo;
use crate::scheduler::{cache::Cache, place::place, world::World};

fn pod(app: &str, rules: Value) -> PodRow {
    let mut spec = json!({"containers": []});
    spec.as_object_mut().unwrap().extend(rules.as_object().unwrap().clone());
    let pod = json!({"metadata": {"namespace": "shop", "name": app, "labels": {"app": app}}, "spec": spec});
    PodRow::new(&serde_json::from_value(pod).unwrap())
}

fn cluster(nodes: &[(&str, &str)]) -> Cache {
    let mut cache = Cache::default();
    for (name, zone) in nodes {
        let mut labels = json!({"kubernetes.io/hostname": name});
        if !zone.is_empty() {
            labels["zone"] = (*zone).into();
        }
        let node = json!({"metadata": {"labels": labels}, "status": {"allocatable": {"cpu": "8", "memory": "16Gi", "pods": "110"}}});
        let node: Node = serde_json::from_value(node).unwrap();
        cache.set_node(name, Some(Arc::new(NodeRow::new(&node))));
    }
    cache
}

/// Places pods one after the other; a refusal ends the list with its first reason.
fn places(cache: &mut Cache, pods: &[PodRow]) -> Vec<String> {
    let mut placed_on = Vec::new();
    for (index, pod) in pods.iter().enumerate() {
        match place(pod, &World::default(), cache.nodes(), &mut Memo::default()).map(|(node, _)| node) {
            Ok(node) => {
                cache.assume(&Key::new("shop", format!("p{}-{index}", placed_on.len())), pod, &node);
                placed_on.push(node);
            }
            Err(why) => placed_on.push(why.to_string().split(". no new").next().unwrap().to_owned()),
        }
    }
    placed_on
}

fn term(app: &str, key: &str) -> Value {
    json!([{"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}])
}

fn rule(kind: &str, app: &str, key: &str) -> Value {
    json!({"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": term(app, key)}}})
}

#[test]
fn anti_affinity_by_hostname_allows_one_pod_per_node() {
    let mut cache = cluster(&[("a", ""), ("b", "")]);
    let web = pod("web", rule("podAntiAffinity", "web", "kubernetes.io/hostname"));
    let placed_on = places(&mut cache, &[web.clone(), web.clone(), web]);
    assert_eq!(placed_on, ["a", "b", "0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules"]);
}

#[test]
fn placed_pods_keep_others_away() {
    let mut cache = cluster(&[("a", "")]);
    let placed_on = places(&mut cache, &[pod("shy", rule("podAntiAffinity", "web", "kubernetes.io/hostname")), pod("web", json!({}))]);
    assert_eq!(placed_on, ["a", "0/1 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules"]);
}

#[test]
fn affinity_follows_and_the_first_pod_satisfies_itself() {
    let mut cache = cluster(&[("a", "one"), ("b", "two"), ("c", "two")]);
    let lonely = pod("web", rule("podAffinity", "db", "zone"));
    assert_eq!(places(&mut cache, &[lonely]), ["0/3 nodes are available: 3 node(s) didn't match pod affinity rules"]);
    let mut cache = cluster(&[("a", "one"), ("b", "two"), ("c", "two")]);
    let db = json!({"nodeSelector": {"kubernetes.io/hostname": "c"}});
    let web = pod("web", rule("podAffinity", "db", "zone"));
    let placed_on = places(&mut cache, &[pod("db", db), web.clone(), web]);
    assert_eq!(placed_on[0], "c");
    assert!(placed_on[1..].iter().all(|node| node != "a"), "{placed_on:?}");
    let mut cache = cluster(&[("a", "one"), ("b", "two")]);
    let herd = pod("web", rule("podAffinity", "web", "kubernetes.io/hostname"));
    let placed_on = places(&mut cache, &[herd.clone(), herd.clone(), herd]);
    assert!(placed_on.iter().all(|node| *node == placed_on[0]), "{placed_on:?}");
}

#[test]
fn hard_spread_constraints() {
    let rule = |least: Option<i32>| {
        let mut constraint =
            json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "web"}}});
        if let Some(least) = least {
            constraint["minDomains"] = least.into();
        }
        json!({"topologySpreadConstraints": [constraint]})
    };
    let mut cache = cluster(&[("a", "one"), ("b", "one"), ("c", "two")]);
    let web = pod("web", rule(None));
    let placed_on = places(&mut cache, &[web.clone(), web.clone(), web.clone(), web]);
    assert_eq!(placed_on.iter().filter(|node| *node == "c").count(), 2, "{placed_on:?}");
    let mut cache = cluster(&[("a", "one"), ("b", "")]);
    let web = pod("web", rule(Some(2)));
    let placed_on = places(&mut cache, &[web.clone(), web]);
    assert_eq!(placed_on[0], "a");
    let why = "0/2 nodes are available: 1 node(s) didn't match pod topology spread constraints, \
               1 node(s) didn't match pod topology spread constraints (missing required label)";
    assert_eq!(placed_on[1], why);
    let mut cache = cluster(&[("a", "one"), ("b", "two")]);
    let soft = json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "none", "whenUnsatisfiable": "ScheduleAnyway"}]});
    assert_eq!(places(&mut cache, &[pod("web", soft)]), ["a"]);
}

#[test]
fn preferred_affinity_and_anti_affinity_are_scored() {
    let prefer = |kind: &str, app: &str| {
        let term = json!({"weight": 50, "podAffinityTerm": {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": "zone"}});
        json!({"affinity": {kind: {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}})
    };
    let on = |app: &str, node: &str| pod(app, json!({"nodeSelector": {"kubernetes.io/hostname": node}}));
    let nodes = [("a", "one"), ("b", "two"), ("c", "two")];
    let placed_on = places(&mut cluster(&nodes), &[on("db", "c"), pod("web", prefer("podAffinity", "db"))]);
    assert_eq!(placed_on, ["c", "b"], "the zone of its friend, and there the emptier node");
    let placed_on = places(&mut cluster(&nodes), &[on("noise", "a"), on("noise", "b"), pod("web", prefer("podAntiAffinity", "noise"))]);
    assert_eq!(placed_on[2], "c", "one noisy pod in each zone: the emptiest node");
    let placed_on = places(&mut cluster(&nodes), &[on("noise", "b"), pod("web", prefer("podAntiAffinity", "noise"))]);
    assert_eq!(placed_on[1], "a", "away from it");
    let shy = pod("shy", json!({"nodeSelector": {"kubernetes.io/hostname": "b"}, "affinity": prefer("podAntiAffinity", "web")["affinity"]}));
    assert_eq!(places(&mut cluster(&nodes), &[shy, pod("web", json!({}))])[1], "a", "it is wanted away");
}

#[test]
fn soft_spread_constraints() {
    let constraint =
        json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": {"app": "web"}}});
    let web = pod("web", json!({"topologySpreadConstraints": [constraint]}));
    let placed_on = places(&mut cluster(&[("a", "one"), ("b", "one"), ("c", "two")]), &[web.clone(), web.clone(), web.clone(), web]);
    assert_eq!(placed_on.iter().filter(|node| *node == "c").count(), 2, "{placed_on:?}");
}

#[test]
fn affinity_selects_namespaces_by_label() {
    let term = json!([{
        "labelSelector": {"matchLabels": {"app": "db"}}, "topologyKey": "kubernetes.io/hostname", "namespaceSelector": {"matchLabels": {"team": "data"}},
    }]);
    let web = pod("web", json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}}));
    let mut cache = cluster(&[("a", ""), ("b", "")]);
    let mut db = pod("db", json!({}));
    db.ns = "store".into();
    cache.assume(&Key::new("store", "db"), &db, "b");
    let mut world = World::default();
    let choice = |world: &World| place(&web, world, cache.nodes(), &mut Memo::default()).map(|(node, _)| node).map_err(|_| ());
    assert_eq!(choice(&world), Err(()));
    world.spaces.insert("store".into(), Arc::new(Labels::from([("team".into(), "data".into())])));
    assert_eq!(choice(&world), Ok("b".into()));
}

#[test]
fn spread_counts_nodes_by_its_inclusion_policies() {
    let web = |policies: Value| {
        let mut constraint =
            json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "web"}}});
        constraint.as_object_mut().unwrap().extend(policies.as_object().unwrap().clone());
        pod("web", json!({"topologySpreadConstraints": [constraint], "nodeSelector": {"zone": "one"}}))
    };
    let nodes = [("a", "one"), ("b", "two")];
    let asked = web(json!({}));
    assert_eq!(places(&mut cluster(&nodes), &[asked.clone(), asked]), ["a", "a"], "the other zone does not count");
    let all = web(json!({"nodeAffinityPolicy": "Ignore"}));
    assert_eq!(places(&mut cluster(&nodes), &[all.clone(), all])[1].split(": ").next(), Some("0/2 nodes are available"), "it does now");
}

/// The scores of all nodes, as if the pod fitted everywhere.
fn spread_scores(pod: &PodRow, world: &World, cache: &Cache) -> Vec<i64> {
    let (neighbours, mut memo) = (Neighbours::of(pod, world, cache.nodes()), Memo::default());
    let judged: Vec<_> = cache.nodes().zip(memo.facts(pod, &world.profile, neighbours.soft(), cache.nodes())).collect();
    neighbours.spread_scores(judged.iter().copied(), &judged)
}

#[test]
fn default_constraints_spread_pods_by_host_and_zone() {
    let zone = "topology.kubernetes.io/zone";
    let mut cache = Cache::default();
    for (name, place) in [("a", "one"), ("b", "one"), ("c", "two")] {
        let labels = json!({"kubernetes.io/hostname": name, zone: place});
        let node = json!({"metadata": {"labels": labels}, "status": {"allocatable": {"cpu": "8", "memory": "16Gi", "pods": "110"}}});
        cache.set_node(name, Some(Arc::new(NodeRow::new(&serde_json::from_value::<Node>(node).unwrap()))));
    }
    let web = pod("web", json!({}));
    let world = World { siblings: Selector::from_labels(&web.labels), ..World::default() };
    for node in ["a", "a", "c"] {
        cache.assume(&Key::new("shop", format!("web-{node}-{}", cache.nodes().map(|(_, _, usage)| usage.pods).sum::<i64>())), &web, node);
    }
    let scores = spread_scores(&web, &world, &cache);
    // Hosts: 2, 0, 1 pods times ln 5, plus 2; zones: 2 and 1 pods times ln 4, plus 4: 12, 9, 9.
    assert_eq!(scores, [75, 100, 100]);
    let silent = spread_scores(&web, &World::default(), &cache);
    assert_eq!(silent, [0, 0, 0], "nothing selects the pod");
}

#[test]
fn nodes_without_a_label_of_the_constraints_have_no_spread_score() {
    let constraint = |key: &str| json!({"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": {"app": "web"}}});
    let web = pod("web", json!({"topologySpreadConstraints": [constraint("zone"), constraint("kubernetes.io/hostname")]}));
    let cache = cluster(&[("a", "one"), ("b", "")]);
    let scores = spread_scores(&web, &World::default(), &cache);
    assert_eq!(scores, [100, 0]);
}

#[test]
fn a_selector_of_everything_counts_nothing() {
    let constraint = json!({"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}});
    let web = pod("web", json!({"topologySpreadConstraints": [constraint], "nodeSelector": {"kubernetes.io/hostname": "a"}}));
    let placed_on = places(&mut cluster(&[("a", ""), ("b", "")]), &[web.clone(), web.clone(), web]);
    assert_eq!(placed_on, ["a", "a", "a"]);
}
