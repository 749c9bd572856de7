use std::collections::BTreeMap;

use cluster::Key;
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use kube_rules::{Labels, Selector};
use proptest::prelude::*;

use super::*;
use crate::scheduler::{cache::Cache, place::place, rows::NodeRow, world::World};

/// What happens in a cluster.
#[derive(Debug, Clone)]
enum Event {
    /// A pod of this workload comes.
    Pod(u8),
    /// The pod of this number, as a share of all, ends, or is seen to be deleted.
    End(u8),
    Deleting(u8),
    /// A node comes or changes, or goes.
    Node(u8, u8),
    Gone(u8),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        6 => (0..4_u8).prop_map(Event::Pod),
        1 => any::<u8>().prop_map(Event::End),
        1 => any::<u8>().prop_map(Event::Deleting),
        2 => (0..8_u8, 0..6_u8).prop_map(|(node, variant)| Event::Node(node, variant)),
        1 => (0..8_u8).prop_map(Event::Gone),
    ];
    proptest::collection::vec(event, 1..80)
}

fn label(key: &str, value: impl ToString) -> Labels {
    Labels::from([(key.to_owned(), value.to_string())])
}

fn node(number: u8, variant: u8) -> NodeRow {
    let mut row = NodeRow::new(&Node::default());
    row.labels = label("kubernetes.io/hostname", number);
    if !variant.is_multiple_of(3) {
        row.labels.extend(label("topology.kubernetes.io/zone", variant % 3));
    }
    row.unschedulable = variant == 4;
    if variant == 5 {
        row.taints = vec![Taint { key: "busy".into(), effect: "PreferNoSchedule".into(), ..Taint::default() }];
    }
    row.allocatable = BTreeMap::from([("cpu".into(), 1000 * i64::from(variant + 1)), ("memory".into(), 8 << 30), ("pods".into(), 12)]);
    row
}

/// Workloads 0 and 1 spread by default; 2 asks for one zone, and 3 has no other requirement than much memory.
fn pod(workload: u8, uid: usize) -> PodRow {
    let mut row = PodRow::new(&Pod::default());
    row.ns = "shop".into();
    row.uid = uid.to_string();
    row.labels = label("app", workload);
    let memory = if workload == 3 { 3_i64 << 30 } else { 64 << 20 };
    row.requests = BTreeMap::from([("cpu".into(), 100), ("memory".into(), memory)]);
    row.weight = row.requests.clone();
    if workload == 2 {
        row.node_affinity.selector = Selector::from_labels(&label("topology.kubernetes.io/zone", 1));
    }
    row
}

proptest! {
    #[test]
    fn pods_get_the_nodes_that_they_get_without_it(events in events()) {
        let (mut cache, mut memo, profile) = (Cache::default(), Memo::default(), Arc::new(Profile::default()));
        let mut placed: Vec<(Key, PodRow)> = Vec::new();
        for (number, event) in events.into_iter().enumerate() {
            match event {
                Event::Node(name, variant) => cache.set_node(&format!("n{name}"), Some(Arc::new(node(name, variant)))),
                Event::Gone(name) => cache.set_node(&format!("n{name}"), None),
                Event::End(share) if !placed.is_empty() => {
                    let (key, _) = placed.remove(usize::from(share) % placed.len());
                    cache.set_pod(&key, None);
                }
                Event::Deleting(share) if !placed.is_empty() => {
                    let place = usize::from(share) % placed.len();
                    let (key, row) = &mut placed[place];
                    row.deleting = true;
                    cache.set_pod(key, Some(&Arc::new(row.clone())));
                }
                Event::End(_) | Event::Deleting(_) => {}
                Event::Pod(workload) => {
                    let row = pod(workload, number);
                    let siblings = if workload == 3 { Selector::default() } else { Selector::from_labels(&row.labels) };
                    let world = World { profile: profile.clone(), siblings, ..World::default() };
                    let with = place(&row, &world, cache.nodes(), &mut memo);
                    let without = place(&row, &world, cache.nodes(), &mut Memo::default());
                    prop_assert_eq!(with.as_ref().map(|(node, _)| node), without.as_ref().map(|(node, _)| node));
                    if let Ok((node, _)) = with {
                        let (key, row) = (Key::new("shop", number.to_string()), PodRow { node: node.clone(), ..row });
                        cache.assume(&key, &row, &node);
                        placed.push((key, row));
                    }
                }
            }
        }
    }
}

#[test]
fn only_changed_nodes_are_looked_at_again() {
    let (mut cache, mut memo, profile) = (Cache::default(), Memo::default(), Arc::new(Profile::default()));
    for number in 0..3 {
        cache.set_node(&format!("n{number}"), Some(Arc::new(node(number, 1))));
    }
    let first = memo.facts(&pod(0, 1), &profile, &[], cache.nodes()).to_vec();
    cache.assume(&Key::new("shop", "1"), &pod(0, 1), "n1");
    let second = memo.facts(&pod(0, 2), &profile, &[], cache.nodes()).to_vec();
    assert_eq!([0, 1, 2].map(|place| first[place] == second[place]), [true, false, true]);
    assert!(second[1].fit < first[1].fit, "the node with the pod is fuller");
    for workload in 0..2 * KINDS {
        memo.facts(&pod(u8::try_from(workload).unwrap(), 3), &profile, &[], cache.nodes());
    }
    assert_eq!(memo.kinds.len(), KINDS, "what is kept is bounded");
}
