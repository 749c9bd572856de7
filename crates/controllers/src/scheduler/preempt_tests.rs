use k8s_openapi::api::core::v1::{Node, Pod};

use super::*;
use crate::scheduler::memo::Memo;
use crate::scheduler::place::place;
use kube_rules::HostPort;
use kube_rules::Labels;

fn pod(priority: i32, cpu: i64) -> PodRow {
    let mut row = PodRow::new(&Pod::default());
    row.ns = "a".into();
    row.priority = priority;
    row.requests.insert("cpu".into(), cpu);
    row
}

/// A pod's name, priority and cpus.
type Row<'a> = (&'a str, i32, i64);

/// Nodes with four cpus and these pods.
fn cluster(nodes: &[(&str, &[Row<'_>])]) -> Cache {
    let mut cache = Cache::default();
    for (name, pods) in nodes {
        let mut node = NodeRow::new(&Node::default());
        node.allocatable.extend([("cpu".to_owned(), 4), ("pods".to_owned(), 10)]);
        cache.set_node(name, Some(Arc::new(node)));
        for (pod_name, priority, cpu) in *pods {
            let mut row = pod(*priority, *cpu);
            row.node = (*name).into();
            row.labels = Labels::from([("app".into(), (*pod_name).into())]);
            cache.set_pod(&Key::new("a", *pod_name), Some(&Arc::new(row)));
        }
    }
    cache
}

fn victims_for(pod: &PodRow, cache: &Cache, budgets: &[Budget]) -> String {
    let storage = World::default();
    let unfit = place(pod, &storage, cache.nodes(), &mut Memo::default()).unwrap_err();
    sacrifice(pod, &storage, cache, budgets, &unfit).map_or("nobody".to_owned(), |found| {
        let victims: Vec<&str> = found.victims.iter().map(|key| key.name.as_str()).collect();
        format!("{} from {}", victims.join(" "), found.node)
    })
}

#[test]
fn pods_of_lowest_priority_make_room() {
    for (what, nodes, cpu, expected) in [
        ("one is enough", &[("n1", &[("low", 1, 2), ("mid", 5, 2)][..])][..], 2, "low from n1"),
        ("both are needed", &[("n1", &[("low", 1, 2), ("mid", 5, 2)])], 4, "mid low from n1"),
        ("equals do not make room", &[("n1", &[("same", 10, 4)])], 2, "nobody"),
        ("nobody helps", &[("n1", &[("low", 1, 2), ("high", 20, 2)])], 4, "nobody"),
        ("the node with the less important one", &[("n1", &[("mid", 5, 4)]), ("n2", &[("low", 1, 4)])], 4, "low from n2"),
        ("the node where fewer go", &[("n1", &[("a", 1, 2), ("b", 1, 2)]), ("n2", &[("c", 1, 4)])], 4, "c from n2"),
        ("only as many as needed", &[("n1", &[("a", 1, 1), ("b", 1, 1), ("c", 1, 2)])], 2, "c from n1"),
    ] {
        assert_eq!(victims_for(&pod(10, cpu), &cluster(nodes), &[]), expected, "{what}");
    }
}

#[test]
fn budgets_are_honoured_where_possible() {
    let budget = |app: &str, allowed| {
        let selector = Selector::from_labels(&Labels::from([("app".into(), app.into())]));
        Budget { ns: "a".into(), selector, allowed, disrupted: BTreeSet::new() }
    };
    let nodes = cluster(&[("n1", &[("guarded", 1, 4)]), ("n2", &[("free", 5, 4)])]);
    assert_eq!(victims_for(&pod(10, 4), &nodes, &[budget("guarded", 0)]), "free from n2");
    assert_eq!(victims_for(&pod(10, 4), &nodes, &[budget("guarded", 1)]), "guarded from n1", "it may spare one");
    let mut counted = budget("guarded", 0);
    counted.disrupted.insert("guarded".into());
    assert_eq!(victims_for(&pod(10, 4), &nodes, &[counted]), "guarded from n1", "its eviction is counted already");
    let one = cluster(&[("n1", &[("guarded", 1, 2), ("free", 5, 2)])]);
    assert_eq!(victims_for(&pod(10, 2), &one, &[budget("guarded", 0)]), "free from n1", "on one node as well");
}

#[test]
fn preemption_frees_a_host_port() {
    let port = HostPort::new("", "TCP", 80);
    let mut holder = pod(1, 1);
    holder.node = "n1".into();
    holder.ports = vec![port.clone()];
    let mut cache = cluster(&[("n1", &[])]);
    cache.set_pod(&Key::new("a", "holder"), Some(&Arc::new(holder)));
    let mut wants = pod(10, 1);
    wants.ports = vec![port];
    assert_eq!(victims_for(&wants, &cache, &[]), "holder from n1");
}

#[test]
fn refusals_say_why_preemption_does_not_help() {
    let cache = cluster(&[("n1", &[("low", 1, 2), ("high", 20, 2)]), ("n2", &[("equal", 10, 4)]), ("n3", &[("low", 1, 4)])]);
    let mut wants = pod(10, 4);
    wants.node_affinity.selector = Selector::from_labels(&Labels::from([("absent".into(), "yes".into())]));
    let world = World::default();
    let unfit = place(&wants, &world, cache.nodes(), &mut Memo::default()).unwrap_err();
    let attempts = sacrifice(&wants, &world, &cache, &[], &unfit).unwrap_err();
    assert!(unfit.despite_preemption(&attempts).ends_with("preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."));
    let cache = cluster(&[("n1", &[("low", 1, 2), ("high", 20, 2)]), ("n2", &[("equal", 10, 4)])]);
    let wants = pod(10, 4);
    let unfit = place(&wants, &world, cache.nodes(), &mut Memo::default()).unwrap_err();
    let attempts = sacrifice(&wants, &world, &cache, &[], &unfit).unwrap_err();
    assert_eq!(
        unfit.despite_preemption(&attempts),
        "0/2 nodes are available: 2 Insufficient cpu. no new claims to deallocate, preemption: 0/2 nodes are available: 1 Insufficient cpu, \
         1 No preemption victims found for incoming pod."
    );
}
