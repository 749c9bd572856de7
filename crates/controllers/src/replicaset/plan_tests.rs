use super::*;
use crate::testing::{pod, replica_set};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn ready(name: &str, since: i64) -> (String, Arc<PodRow>) {
    pod(name, |row| {
        row.node = "win01".into();
        row.ready = Some(at(since));
    })
}

#[test]
fn the_number_of_pods() {
    let three = || vec![ready("a", 0), ready("b", 0), ready("c", 0)];
    let going = |uids: &[&str]| uids.iter().map(|uid| (*uid).to_owned()).collect::<Vec<_>>();
    for (what, wanted, pods, observed, expected) in [
        ("as many as asked for", 3, three(), Observed::default(), "keep 3 pods (3 ready, 3 available)"),
        ("too few", 5, three(), Observed::default(), "create 2 pods beside 3 (3 ready, 3 available)"),
        ("some on their way", 5, three(), Observed { coming: 1, going: vec![] }, "create 1 pods beside 3 (3 ready, 3 available)"),
        ("a deletion not seen yet", 3, three(), Observed { coming: 0, going: going(&["a"]) }, "create 1 pods beside 3 (3 ready, 3 available)"),
        ("too many", 1, three(), Observed::default(), "delete a, b of 3 pods (3 ready, 3 available)"),
        ("only coming ones too many", 0, vec![], Observed { coming: 2, going: vec![] }, "keep 0 pods (0 ready, 0 available)"),
        ("more than a burst", 900, vec![], Observed::default(), "create 500 pods beside 0 (0 ready, 0 available)"),
        (
            "ended pods do not count",
            1,
            vec![pod("x", |row| row.phase = "Failed".into()), pod("y", |row| row.deleting = true)],
            Observed::default(),
            "create 1 pods beside 0 (0 ready, 0 available)",
        ),
    ] {
        let set = replica_set("web", |set| set.replicas = wanted);
        assert_eq!(plan(&set, &pods, &observed, &[], at(100)).to_string(), expected, "{what}");
        assert_eq!(has_surplus(&set, &pods, &observed), what.contains("too many"), "{what}");
    }
    let leaving = replica_set("web", |set| {
        set.replicas = 5;
        set.deleting = true;
    });
    assert_eq!(plan(&leaving, &three(), &Observed::default(), &[], at(100)).scale, Scale::Keep);
}

#[test]
fn a_ready_pod_becomes_available_by_time() {
    let set = replica_set("web", |set| {
        set.replicas = 2;
        set.min_ready_seconds = 10;
    });
    let plan = plan(&set, &[ready("a", 85), ready("b", 97)], &Observed::default(), &[], at(100));
    assert_eq!(plan.to_string(), "keep 2 pods (2 ready, 1 available)");
    assert_eq!(plan.recheck, Some(Duration::from_secs(7)));
}

#[test]
fn pods_with_all_labels_of_the_template_are_counted() {
    let set = replica_set("web", |set| set.template_labels = [("app".to_owned(), "web".to_owned())].into());
    let labelled = |name: &str, key: &str, value: &str| pod(name, |row| row.labels = [(key.to_owned(), value.to_owned())].into());
    let pods = [labelled("a", "app", "web"), labelled("b", "app", "db"), labelled("c", "tier", "front")];
    let status = plan(&set, &pods, &Observed::default(), &[], at(100)).status_after(&set, None, at(100));
    assert_eq!((status.replicas, status.fully_labeled_replicas), (3, Some(1)));
}

#[test]
fn a_failure_stays_until_it_is_over() {
    let set = replica_set("web", |set| set.replicas = 1);
    let plan = plan(&set, &[], &Observed::default(), &[], at(100));
    let failed = plan.status_after(&set, Some(("FailedCreate", "quota")), at(100));
    let condition = &failed.conditions.as_ref().unwrap()[0];
    assert_eq!((condition.type_.as_str(), condition.reason.as_deref()), ("ReplicaFailure", Some("FailedCreate")));
    let failing = replica_set("web", |row| row.conditions = failed.conditions.clone().unwrap());
    let again = plan.status_after(&failing, Some(("FailedCreate", "other words")), at(200));
    assert_eq!(again.conditions, failed.conditions, "the first message stays");
    assert_eq!(plan.status_after(&failing, None, at(300)).conditions, None);
    assert!(!same_status(&set, &failed));
}
