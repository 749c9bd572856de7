use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetUpdateStrategy, RollingUpdateDaemonSet},
        core::v1::{Node, Taint},
    },
    apimachinery::pkg::util::intstr::IntOrString,
};

use super::*;
use crate::{revisions::HASH_LABEL, testing::pod};

fn rolling(unavailable: i32, surge: i32) -> DaemonSetUpdateStrategy {
    let numbers = RollingUpdateDaemonSet { max_unavailable: Some(IntOrString::Int(unavailable)), max_surge: Some(IntOrString::Int(surge)) };
    DaemonSetUpdateStrategy { type_: None, rolling_update: Some(numbers) }
}

fn on_delete() -> DaemonSetUpdateStrategy {
    DaemonSetUpdateStrategy { type_: Some("OnDelete".into()), rolling_update: None }
}

/// A DaemonSet for Windows nodes.
fn view(strategy: DaemonSetUpdateStrategy) -> DaemonView {
    let mut spec = DaemonSetSpec { update_strategy: Some(strategy), ..Default::default() };
    spec.template.spec.get_or_insert_default().node_selector = Some([("kubernetes.io/os".to_owned(), "windows".to_owned())].into());
    DaemonView::new(&DaemonSet::default(), &spec)
}

fn node(name: &str, os: &str, taints: &[(&str, &str)]) -> (String, Arc<NodeRow>) {
    let mut row = NodeRow::new(&Node::default());
    row.labels.insert("kubernetes.io/os".into(), os.into());
    row.taints = taints.iter().map(|(key, effect)| Taint { key: (*key).into(), effect: (*effect).into(), ..Default::default() }).collect();
    (name.to_owned(), Arc::new(row))
}

fn windows(count: usize) -> Vec<(String, Arc<NodeRow>)> {
    (1..=count).map(|number| node(&format!("win{number}"), "windows", &[])).collect()
}

/// A pod `NODE-HASH` that is ready, or as `change` says.
fn on(node: &str, hash: &str, change: impl FnOnce(&mut PodRow)) -> (String, Arc<PodRow>) {
    pod(&format!("{node}-{hash}"), |row| {
        row.node = node.into();
        row.labels.insert(HASH_LABEL.into(), hash.into());
        row.ready = Some(Timestamp::UNIX_EPOCH);
        change(row);
    })
}

fn ready(_: &mut PodRow) {}
fn waiting(row: &mut PodRow) {
    row.ready = None;
}
fn failed(row: &mut PodRow) {
    row.ready = None;
    row.phase = "Failed".into();
}

struct Case {
    what: &'static str,
    strategy: DaemonSetUpdateStrategy,
    nodes: Vec<(String, Arc<NodeRow>)>,
    pods: Vec<(String, Arc<PodRow>)>,
    expected: &'static str,
}

fn check(cases: Vec<Case>) {
    for Case { what, strategy, nodes, pods, expected } in cases {
        let (view, observed, resting) = (view(strategy), Observed::default(), BTreeSet::from(["tired".to_owned()]));
        let now = Timestamp::from_second(100).unwrap();
        let input = Input { view: &view, hash: "new", nodes: &nodes, pods: &pods, observed: &observed, resting: &resting, now };
        let text = plan(&input).to_string();
        let (actions, _) = text.split_once(';').unwrap();
        assert_eq!(actions, expected, "{what}");
    }
}

#[test]
fn one_pod_on_each_node_that_suits() {
    let pending = |name: &str, target: &str| {
        pod(name, |row| {
            row.meant_for = Some(target.into());
            row.labels.insert(HASH_LABEL.into(), "new".into());
            row.phase = "Pending".into();
        })
    };
    let case = |what, nodes, pods, expected| Case { what, strategy: rolling(1, 0), nodes, pods, expected };
    check(vec![
        case("a pod for each", windows(2), vec![], "create on win1 win2, delete -"),
        case("not on other systems", vec![node("lin", "linux", &[])], vec![], "create on -, delete -"),
        case("a pod that waits for its node counts", windows(1), vec![pending("a", "win1")], "create on -, delete -"),
        case(
            "a cordon does not matter",
            vec![node("w", "windows", &[("node.kubernetes.io/unschedulable", "NoSchedule")])],
            vec![],
            "create on w, delete -",
        ),
        case("a taint of others does", vec![node("w", "windows", &[("gpu", "NoSchedule")])], vec![], "create on -, delete -"),
        case("what runs there stays", vec![node("w", "windows", &[("gpu", "NoSchedule")])], vec![on("w", "new", ready)], "create on -, delete -"),
        case("unless it must not", vec![node("w", "windows", &[("gpu", "NoExecute")])], vec![on("w", "new", ready)], "create on -, delete w-new"),
        case(
            "a silent node keeps its pod",
            vec![node("w", "windows", &[("node.kubernetes.io/unreachable", "NoExecute")])],
            vec![on("w", "new", waiting)],
            "create on -, delete -",
        ),
        case("a node that suits no longer", vec![node("l", "linux", &[])], vec![on("l", "new", ready)], "create on -, delete l-new"),
        case("a failed pod is replaced", windows(1), vec![on("win1", "new", failed)], "create on -, delete win1-new"),
        case("but not at once again", vec![node("tired", "windows", &[])], vec![on("tired", "new", failed)], "create on -, delete -"),
        case("a pod going does not make room", windows(1), vec![on("win1", "new", |row| row.deleting = true)], "create on -, delete -"),
        case(
            "one too many",
            windows(1),
            vec![on("win1", "new", ready), on("win1", "other", |row| row.created = Some(Timestamp::MAX))],
            "create on -, delete win1-other",
        ),
        case("the node it waits for is gone", windows(1), vec![on("win1", "new", ready), pending("a", "win9")], "create on -, delete a"),
    ]);
}

#[test]
fn updates() {
    let old = || vec![on("win1", "old", ready), on("win2", "old", ready), on("win3", "old", ready)];
    let two_nodes =
        |first: fn(&mut PodRow), second: fn(&mut PodRow)| vec![on("win1", "new", first), on("win2", "old", second), on("win3", "old", ready)];
    let case = |what, strategy, pods, expected| Case { what, strategy, nodes: windows(3), pods, expected };
    check(vec![
        case("one at a time", rolling(1, 0), old(), "create on -, delete win1-old"),
        case("two at a time", rolling(2, 0), old(), "create on -, delete win1-old win2-old"),
        case("not before the first is available", rolling(1, 0), two_nodes(waiting, ready), "create on -, delete -"),
        case("then the next", rolling(1, 0), two_nodes(ready, ready), "create on -, delete win2-old"),
        case("what does not work may go at once", rolling(1, 0), two_nodes(waiting, waiting), "create on -, delete win2-old"),
        case(
            "and counts as missing",
            rolling(1, 0),
            vec![on("win1", "old", waiting), on("win2", "old", ready), on("win3", "old", ready)],
            "create on -, delete win1-old",
        ),
        case(
            "but another may be missing beside it",
            rolling(2, 0),
            vec![on("win1", "old", waiting), on("win2", "old", ready), on("win3", "old", ready)],
            "create on -, delete win1-old win2-old",
        ),
        case("never by itself", on_delete(), old(), "create on -, delete -"),
        case("neither surge nor missing means one missing", rolling(0, 0), old(), "create on -, delete win1-old"),
        case("one beside the old", rolling(0, 1), old(), "create on win1, delete -"),
        case(
            "the old stays until the new is available",
            rolling(0, 1),
            vec![on("win1", "old", ready), on("win1", "new", waiting), on("win2", "old", ready), on("win3", "old", ready)],
            "create on -, delete -",
        ),
        case(
            "then it goes",
            rolling(0, 1),
            vec![on("win1", "old", ready), on("win1", "new", ready), on("win2", "old", ready), on("win3", "old", ready)],
            "create on -, delete win1-old",
        ),
        case(
            "an old pod that is not ready does not wait",
            rolling(0, 1),
            vec![on("win1", "old", waiting), on("win1", "new", waiting), on("win2", "old", ready), on("win3", "old", ready)],
            "create on -, delete win1-old",
        ),
    ]);
}

#[test]
fn a_surge_waits_until_the_new_pod_was_ready_for_long_enough() {
    let mut view = view(rolling(0, 1));
    view.min_ready_seconds = 50;
    let since = |second: i64| move |row: &mut PodRow| row.ready = Some(Timestamp::from_second(second).unwrap());
    let (nodes, observed, resting) = (windows(1), Observed::default(), BTreeSet::new());
    let now = Timestamp::from_second(100).unwrap();
    for (what, pods, expected) in [
        ("ready for 40 s", vec![on("win1", "old", ready), on("win1", "new", since(60))], &[][..]),
        ("ready for 50 s", vec![on("win1", "old", ready), on("win1", "new", since(50))], &["win1-old"]),
        ("the old one is ready no longer", vec![on("win1", "old", waiting), on("win1", "new", since(60))], &["win1-old"]),
        ("the old one is not available", vec![on("win1", "old", since(60)), on("win1", "new", since(60))], &[]),
    ] {
        let input = Input { view: &view, hash: "new", nodes: &nodes, pods: &pods, observed: &observed, resting: &resting, now };
        assert_eq!(plan(&input).delete, expected, "{what}");
    }
}

#[test]
fn a_surge_leaves_tainted_nodes_when_others_serve() {
    let tainted = |name: &str| node(name, "windows", &[("gpu", "NoSchedule")]);
    let nodes = || vec![tainted("win1"), node("win2", "windows", &[]), node("win3", "windows", &[])];
    let pods = |first: fn(&mut PodRow), second: (&str, fn(&mut PodRow)), third: &str| {
        vec![on("win1", "old", first), on("win2", second.0, second.1), on("win3", third, ready)]
    };
    let case = |what, pods, expected| Case { what, strategy: rolling(0, 1), nodes: nodes(), pods, expected };
    check(vec![
        case("three serve where two should", pods(ready, ("old", ready), "old"), "create on win2, delete win1-old"),
        case("none but enough serve", pods(ready, ("new", waiting), "new"), "create on -, delete -"),
        case("one that does not serve goes at once", pods(waiting, ("new", waiting), "new"), "create on -, delete win1-old"),
        case("the others are new", pods(ready, ("new", ready), "new"), "create on -, delete win1-old"),
    ]);
}

#[test]
fn the_status_counts_nodes() {
    let mut view = view(rolling(1, 0));
    view.min_ready_seconds = 60;
    let nodes = [windows(3), vec![node("lin", "linux", &[])]].concat();
    let fresh = |row: &mut PodRow| row.ready = Some(Timestamp::from_second(90).unwrap());
    let pods = vec![on("win1", "new", ready), on("win2", "old", fresh), on("lin", "new", ready)];
    let (observed, resting) = (Observed::default(), BTreeSet::new());
    let now = Timestamp::from_second(100).unwrap();
    let input = Input { view: &view, hash: "new", nodes: &nodes, pods: &pods, observed: &observed, resting: &resting, now };
    let plan = plan(&input);
    let expected = "create on win3, delete lin-new; 2 of 3 scheduled, 2 ready, 1 updated, 1 available, 1 misscheduled";
    assert_eq!(plan.to_string(), expected);
    assert_eq!(plan.status.number_unavailable, Some(2));
    assert_eq!(plan.recheck, Some(Duration::from_secs(50)));
    let beside = vec![on("win1", "old", ready), on("win1", "new", fresh)];
    let input = Input { pods: &beside, ..input };
    assert_eq!(super::plan(&input).recheck, Some(Duration::from_secs(50)), "a new pod beside the old one will be available");
}

#[test]
fn nothing_is_created_twice() {
    let (mut view, nodes, resting) = (view(rolling(1, 0)), windows(2), BTreeSet::new());
    (view.generation, view.status.observed_generation) = (4, Some(3));
    let observed = Observed { coming: 2, going: vec![] };
    let input = Input { view: &view, hash: "new", nodes: &nodes, pods: &[], observed: &observed, resting: &resting, now: Timestamp::UNIX_EPOCH };
    let plan = plan(&input);
    assert_eq!(plan.create, Vec::<String>::new(), "what was created is on its way");
    assert_eq!(plan.status.observed_generation, Some(3), "nothing was done for the present generation");
}
