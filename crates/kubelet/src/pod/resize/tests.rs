//! Table tests: the order of updates, restarts by policy, the order of waiting pods.

use super::*;

fn container(name: &str, resources: serde_json::Value) -> serde_json::Value {
    json!({"name": name, "image": "x", "resources": resources})
}

fn both(cpu: &str, memory: &str) -> serde_json::Value {
    json!({"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}})
}

fn pod(containers: Vec<serde_json::Value>) -> Arc<Pod> {
    Arc::new(serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {"containers": containers}})).unwrap())
}

/// All updates from one set of resources to another, as the runtime gets them.
fn updates(from: &Arc<Pod>, to: &Arc<Pod>) -> Vec<String> {
    let spec = to.spec.as_ref().unwrap();
    let runs: Vec<Container> =
        spec.containers.iter().map(|c| Container { id: format!("{}0", c.name), name: c.name.clone(), ..Default::default() }).collect();
    let mut record = Record { allocated: resources(to).into(), actuated: resources(from).into() };
    let mut out = Vec::new();
    while let Some(update) = next_update(&changes(spec, &record, |name| runs.iter().find(|c| c.name == name))) {
        Arc::make_mut(&mut record.actuated).insert(update.container.clone(), update.to.requirements());
        out.push(update.to_string());
        assert!(out.len() < 50, "{out:?} do not end");
    }
    assert!(!differ(&record.actuated, &record.allocated));
    out
}

#[test]
fn memory_comes_first_and_decreases_before_increases() {
    let before = pod(vec![container("c1", both("20m", "35M")), container("c2", both("22m", "37M")), container("c3", both("24m", "39M"))]);
    let after = pod(vec![container("c1", both("25m", "40M")), container("c2", both("17m", "42M")), container("c3", both("29m", "34M"))]);
    assert_eq!(
        updates(&before, &after),
        [
            "memory of c3: request 39000000 to 34000000, limit 39000000 to 34000000",
            "memory of c1: request 35000000 to 40000000, limit 35000000 to 40000000",
            "memory of c2: request 37000000 to 42000000, limit 37000000 to 42000000",
            "cpu of c2: request 22 to 17, limit 22 to 17",
            "cpu of c1: request 20 to 25, limit 20 to 25",
            "cpu of c3: request 24 to 29, limit 24 to 29",
        ]
    );
    assert!(updates(&after, &after).is_empty());
}

#[test]
fn limits_and_requests_can_be_added() {
    let before = pod(vec![container("c", json!({"requests": {"cpu": "20m"}}))]);
    let after = pod(vec![container("c", json!({"requests": {"cpu": "25m", "memory": "1M"}, "limits": {"cpu": "35m"}}))]);
    assert_eq!(updates(&before, &after), ["memory of c: request 0 to 1000000, limit 0 to 0", "cpu of c: request 20 to 25, limit 0 to 35"]);
}

#[test]
fn the_policy_of_the_resource_that_changes_decides_about_a_restart() {
    let policy = |cpu: &str, memory: &str| -> Spec {
        let policies = json!([{"resourceName": "cpu", "restartPolicy": cpu}, {"resourceName": "memory", "restartPolicy": memory}]);
        serde_json::from_value(json!({"name": "c", "resizePolicy": policies})).unwrap()
    };
    let old = Amounts { cpu_request: 10, cpu_limit: 20, memory_request: 100, memory_limit: 200 };
    let (cpu, memory) = (Amounts { cpu_request: 11, ..old }, Amounts { memory_request: 101, ..old });
    let (no, yes) = ("NotRequired", "RestartContainer");
    for (c, to, want) in [
        (policy(no, no), cpu, false),
        (policy(yes, no), cpu, true),
        (policy(yes, no), memory, false),
        (policy(no, yes), memory, true),
        (policy(yes, yes), old, false),
        (Spec::default(), memory, false),
    ] {
        assert_eq!(restarts(&c, old, to), want, "{:?} to {to:?}", c.resize_policy);
    }
}

#[test]
fn a_pod_with_allocated_resources_is_the_same_but_for_them() {
    let asked = pod(vec![container("c1", both("2", "1G")), container("c2", both("1", "1G"))]);
    assert!(Arc::ptr_eq(&with_resources(&asked, &resources(&asked)), &asked));
    let allocated = Resources::from([("c1".to_owned(), serde_json::from_value(both("1", "1G")).unwrap())]);
    let effective = with_resources(&asked, &allocated);
    assert_eq!(resources(&effective)["c1"], allocated["c1"]);
    assert_eq!(resources(&effective)["c2"], resources(&asked)["c2"]);
    assert!(differ(&resources(&asked), &resources(&effective)));
    // The same amounts in other words.
    let milli = pod(vec![container("c1", both("2000m", "1000M")), container("c2", both("1", "1G"))]);
    assert!(!differ(&resources(&asked), &resources(&milli)));
}

#[test]
fn waiting_pods_are_served_by_priority_class_and_age() {
    let t = |s: i64| Timestamp::from_second(s).unwrap();
    let of = |cpu: &str, priority: i32, guaranteed: bool| {
        let mut resources = json!({"requests": {"cpu": cpu}});
        if guaranteed {
            resources = both(cpu, "1M");
        }
        let mut pod = (*pod(vec![container("c", resources)])).clone();
        pod.spec.as_mut().unwrap().priority = Some(priority);
        pod
    };
    let allocated = of("1", 0, false);
    let all = [
        ("shrinks", rank(&of("500m", -5, false), &allocated, t(9))),
        ("important", rank(&of("2", 10, false), &allocated, t(9))),
        ("guaranteed", rank(&of("2", 0, true), &allocated, t(9))),
        ("older", rank(&of("2", 0, false), &allocated, t(1))),
        ("younger", rank(&of("2", 0, false), &allocated, t(2))),
    ];
    for pair in all.windows(2) {
        assert!(pair[0].1 < pair[1].1, "{} before {}", pair[0].0, pair[1].0);
    }
}

#[test]
fn events_carry_the_resources() {
    let pod = pod(vec![container("c0", both("100m", "100"))]);
    assert_eq!(
        message("Pod resize started", &pod, 3, None),
        r#"Pod resize started: {"containers":[{"name":"c0","resources":{"limits":{"cpu":"100m","memory":"100"},"requests":{"cpu":"100m","memory":"100"}}}],"generation":3}"#
    );
    assert!(message("Pod resize error", &pod, 3, Some("no")).ends_with(r#","generation":3,"error":"no"}"#));
}

#[test]
fn containers_without_limits_of_their_own_follow_those_of_their_pod() {
    let of = |limit: &str| -> Arc<Pod> {
        let containers = [container("a", json!({"requests": {"cpu": "10m"}})), container("b", both("20m", "32M"))];
        let whole = json!({"requests": {"cpu": "50m"}, "limits": {"cpu": limit, "memory": "64M"}});
        Arc::new(serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {"resources": whole, "containers": containers}})).unwrap())
    };
    let (before, after) = (of("100m"), of("200m"));
    let (was, is) = (resources(&before), resources(&after));
    assert!(differ(&was, &is) && !differ(&is, &is));
    assert_eq!(with_resources(&after, &was), before, "until it is granted");
    let spec = after.spec.as_ref().unwrap();
    let runs = ["a", "b"].map(|name| Container { id: format!("{name}0"), name: name.into(), ..Default::default() });
    let mut record = Record { allocated: is.into(), ..Record::of(was) };
    let changed = changes(spec, &record, |name| runs.iter().find(|run| run.name == name));
    let shown: Vec<_> = changed.iter().map(|(_, c, _, from, to)| (c.name.as_str(), from.cpu_limit, to.cpu_limit, to.memory_limit)).collect();
    assert_eq!(shown, [("a", 100, 200, 64_000_000)]);
    record.actuate("a");
    assert!(changes(spec, &record, |name| runs.iter().find(|run| run.name == name)).is_empty());
    // A pod that has none at all, and one whose record is older.
    let none = pod(vec![container("c", json!({}))]);
    assert_eq!(with_resources(&none, &resources(&none)), none);
    let containers: Resources = record.allocated.iter().filter(|(name, _)| *name != POD).map(|(name, c)| (name.clone(), c.clone())).collect();
    let shared = Arc::new(containers);
    let old = completed(Record { allocated: shared.clone(), actuated: shared }, &record.allocated);
    assert_eq!(old.allocated.get(POD), record.allocated.get(POD));
    assert!(changes(spec, &old, |name| runs.iter().find(|run| run.name == name)).is_empty(), "an upgrade of the agent changes no container");
}
