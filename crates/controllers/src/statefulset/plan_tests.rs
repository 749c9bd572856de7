use k8s_openapi::{api::apps::v1::StatefulSet, api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::OwnerReference};

use super::*;
use crate::{
    revisions::HASH_LABEL,
    statefulset::rows::{NAME_LABEL, Retention},
    view::controller_reference,
};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A pod of revision `old` or `new` that is ready since second 0.
fn pod(ordinal: i32, revision: &str, change: impl FnOnce(&mut SetPod)) -> Arc<SetPod> {
    let mut row = SetPod::new(&Pod::default()).unwrap();
    row.name = format!("web-{ordinal}");
    row.uid = format!("uid-{ordinal}");
    row.labels = [(HASH_LABEL.to_owned(), revision.to_owned()), (NAME_LABEL.to_owned(), row.name.clone())].into();
    (row.phase, row.ready) = ("Running".to_owned(), Some(at(0)));
    change(&mut row);
    Arc::new(row)
}

fn ready(ordinals: std::ops::Range<i32>, revision: &str) -> Vec<Arc<SetPod>> {
    ordinals.map(|ordinal| pod(ordinal, revision, |_| {})).collect()
}

fn pending(row: &mut SetPod) {
    (row.phase, row.ready) = ("Pending".to_owned(), None);
}

fn view(change: impl FnOnce(&mut SetView)) -> SetView {
    let mut view = SetView::new(&StatefulSet::default(), &Default::default());
    (view.name, view.uid, view.replicas) = ("web".into(), "set".into(), 3);
    change(&mut view);
    view
}

fn with_claims(view: &SetView, pods: &[Arc<SetPod>], claims: &[(&str, Vec<OwnerReference>)]) -> Plan {
    let row = |owners: &Vec<OwnerReference>| Arc::new(ClaimRow { owners: owners.clone(), deleting: false });
    let claims = claims.iter().map(|(name, owners)| ((*name).to_owned(), row(owners))).collect();
    let (current, update) = ("old", "new");
    plan(&Input { view, pods, claims: &claims, current, update, collisions: None, settled: true, now: at(100) })
}

fn steps(view: &SetView, pods: &[Arc<SetPod>]) -> String {
    with_claims(view, pods, &[]).to_string()
}

#[test]
fn pods_come_in_order() {
    let mixed = |change: fn(&mut SetPod)| vec![pod(0, "new", |_| {}), pod(1, "new", change)];
    for (what, view, pods, expected) in [
        ("the first", view(|_| {}), vec![], "create 0 of new"),
        ("the next", view(|_| {}), ready(0..1, "new"), "create 1 of new"),
        ("a gap", view(|_| {}), ready(1..3, "new"), "create 0 of new"),
        ("one is not ready", view(|_| {}), mixed(pending), "nothing"),
        ("one is not available", view(|v| v.min_ready_seconds = 30), mixed(|row| row.ready = Some(at(90))), "nothing"),
        ("one is going", view(|_| {}), mixed(|row| row.deleting = true), "nothing"),
        ("one has failed", view(|_| {}), mixed(|row| row.phase = "Failed".into()), "delete 1"),
        ("one has ended", view(|_| {}), mixed(|row| row.phase = "Succeeded".into()), "delete 1"),
        ("all at once", view(|v| v.parallel = true), vec![], "create 0 of new, create 1 of new, create 2 of new"),
        ("the others at once", view(|v| v.parallel = true), mixed(pending), "create 2 of new"),
        ("other ordinals", view(|v| v.start = 5), ready(5..7, "new"), "create 7 of new"),
        ("a wrong label", view(|_| {}), vec![pod(0, "new", |row| row.labels.retain(|key, _| key == HASH_LABEL))], "repair 0, create 1 of new"),
        ("all there", view(|_| {}), ready(0..3, "new"), "nothing"),
        ("being deleted", view(|v| v.deleting = true), vec![], "nothing"),
    ] {
        assert_eq!(steps(&view, &pods), expected, "{what}");
    }
}

#[test]
fn pods_go_in_order() {
    let with = |pods: Vec<Arc<SetPod>>, last: Arc<SetPod>| pods.into_iter().chain([last]).collect::<Vec<_>>();
    let one = || view(|v| v.replicas = 1);
    for (what, view, pods, expected) in [
        ("the highest first", one(), ready(0..3, "new"), "delete 2"),
        ("one is going", one(), with(ready(0..2, "new"), pod(2, "new", |row| row.deleting = true)), "nothing"),
        ("the first bad one may go", one(), with(ready(0..2, "new"), pod(2, "new", pending)), "delete 2"),
        ("not before another bad one", one(), vec![pod(0, "new", |_| {}), pod(1, "new", pending), pod(2, "new", pending)], "nothing"),
        ("all at once", view(|v| (v.replicas, v.parallel) = (1, true)), ready(0..3, "new"), "delete 2, delete 1"),
        ("below the first ordinal too", view(|v| (v.replicas, v.start) = (2, 1)), ready(0..3, "new"), "delete 0"),
    ] {
        assert_eq!(steps(&view, &pods), expected, "{what}");
    }
}

#[test]
fn updates_go_down_to_the_partition() {
    let rolling = |partition, unavailable| view(move |v| v.strategy = Strategy::Rolling { partition, unavailable });
    let mixed = |change: fn(&mut SetPod)| vec![pod(0, "old", |_| {}), pod(1, "old", |_| {}), pod(2, "new", change)];
    for (what, view, pods, expected) in [
        ("the highest first", rolling(0, None), ready(0..3, "old"), "delete 2"),
        ("then the next", rolling(0, None), mixed(|_| {}), "delete 1"),
        ("not below the partition", rolling(2, None), mixed(|_| {}), "nothing"),
        ("a new one below the partition is old", rolling(2, None), ready(0..1, "old"), "create 1 of old"),
        ("not at all", view(|v| v.strategy = Strategy::OnDelete), ready(0..3, "old"), "nothing"),
        ("on deletion", view(|v| v.strategy = Strategy::OnDelete), ready(0..2, "old"), "create 2 of new"),
        ("two at a time", rolling(0, Some(2)), ready(0..3, "old"), "delete 2, delete 1"),
        ("two at a time, above the partition", rolling(2, Some(2)), ready(0..3, "old"), "delete 2"),
        (
            "not behind one that waits",
            view(|v| (v.parallel, v.strategy) = (true, Strategy::Rolling { partition: 0, unavailable: None })),
            mixed(pending),
            "nothing",
        ),
        (
            "one waits, one may go",
            view(|v| (v.parallel, v.strategy) = (true, Strategy::Rolling { partition: 0, unavailable: Some(2) })),
            mixed(pending),
            "delete 1",
        ),
    ] {
        assert_eq!(steps(&view, &pods), expected, "{what}");
    }
}

#[test]
fn claims_come_before_pods() {
    let templates = |retention: Retention| view(move |v| (v.claims, v.retention) = (vec!["data".into()], retention));
    let with_volume = |ordinal: i32, change: fn(&mut SetPod)| {
        pod(ordinal, "new", |row| {
            row.volumes = [("data".to_owned(), format!("data-web-{ordinal}"))].into();
            change(row);
        })
    };
    let keep = templates(Retention::default());
    assert_eq!(with_claims(&keep, &[with_volume(0, pending)], &[]).to_string(), "claims of 0");
    assert_eq!(with_claims(&keep, &[with_volume(0, pending)], &[("data-web-0", vec![])]).to_string(), "nothing");
    assert_eq!(with_claims(&keep, &[pod(0, "new", |_| {})], &[]).to_string(), "repair 0, create 1 of new", "a volume is missing");
    let with_set = templates(Retention { delete_with_set: true, delete_with_pod: false });
    assert_eq!(with_claims(&with_set, &[with_volume(0, |_| {})], &[("data-web-0", vec![])]).to_string(), "repair 0, create 1 of new");
    let with_pod = templates(Retention { delete_with_set: false, delete_with_pod: true });
    let stale = controller_reference("v1", "Pod", "web-0", "earlier");
    assert_eq!(with_claims(&with_pod, &[], &[("data-web-0", vec![stale])]).to_string(), "nothing", "an earlier pod's claim goes first");
    let one = SetView { replicas: 1, ..with_pod };
    let claims = [("data-web-0", vec![]), ("data-web-1", vec![])];
    assert_eq!(with_claims(&one, &[with_volume(0, |_| {}), with_volume(1, |_| {})], &claims).to_string(), "owners of 1, delete 1");
}

#[test]
fn nothing_is_decided_while_a_created_pod_is_not_shown() {
    let (view, claims) = (view(|_| {}), BTreeMap::new());
    let input = Input { view: &view, pods: &[], claims: &claims, current: "new", update: "new", collisions: None, settled: false, now: at(0) };
    assert_eq!(plan(&input).to_string(), "nothing");
}

#[test]
fn status_counts_revisions() {
    let pods = [pod(0, "old", |_| {}), pod(1, "old", |row| row.ready = Some(at(95))), pod(2, "new", pending)];
    let plan = with_claims(&view(|v| v.min_ready_seconds = 10), &pods, &[]);
    let status = &plan.status;
    let numbers = [Some(status.replicas), status.ready_replicas, status.available_replicas, status.current_replicas, status.updated_replicas];
    assert_eq!(numbers, [3, 2, 1, 2, 1].map(Some));
    assert_eq!((status.current_revision.as_deref(), status.update_revision.as_deref()), (Some("old"), Some("new")));
    assert_eq!(plan.recheck, Some(Duration::from_secs(5)));
    assert!(!same_status(&StatefulSetStatus::default(), status) && same_status(status, status));

    let done = with_claims(&view(|_| {}), &ready(0..3, "new"), &[]).status;
    assert_eq!((done.current_revision.as_deref(), done.current_replicas), (Some("new"), Some(3)), "the update is over");
}
