//! Cases of upstream's `replica_calculator_test.go`.

use serde_json::{Value, json};

use super::*;

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

fn at(seconds: i64) -> Timestamp {
    now() + SignedDuration::from_secs(seconds)
}

fn pod_of(value: Value) -> Pod {
    serde_json::from_value(value).unwrap()
}

/// A pod of two containers, each requesting a thousand: `t` is ready, `f` never was, `h` (hot) has just started, `p` is pending, `x` failed,
/// `d` is being deleted.
fn pod(index: usize, state: char, request: &str) -> Pod {
    let started = if state == 'h' { at(-10) } else { at(-600) };
    let phase = match state {
        'p' => "Pending",
        'x' => "Failed",
        _ => "Running",
    };
    let ready = if matches!(state, 't' | 'h') { "True" } else { "False" };
    let container = |name: &str| json!({"name": name, "resources": {"requests": {"cpu": request}}});
    pod_of(json!({
        "metadata": {"name": format!("p{index}"), "deletionTimestamp": (state == 'd').then(now)},
        "spec": {"containers": [container("c1"), container("c2")]},
        "status": {"phase": phase, "startTime": started, "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": started}]},
    }))
}

fn pods(states: &str) -> Vec<Pod> {
    states.chars().enumerate().map(|(index, state)| pod(index, state, "1")).collect()
}

fn samples(values: &[i64]) -> Samples {
    let sample = |value: &i64| Sample { value: *value, at: now(), window: SignedDuration::from_mins(1) };
    values.iter().enumerate().map(|(index, value)| (format!("p{index}"), sample(value))).collect()
}

fn doubled(values: &[i64]) -> Samples {
    samples(&values.iter().map(|value| value * 2).collect::<Vec<_>>())
}

fn workload(current: i32, pods: &[Pod]) -> Workload<'_> {
    Workload { current, pods, tolerances: Tolerances::default(), now: now() }
}

#[test]
fn processor_time_as_a_share_of_requests() {
    for (name, current, states, levels, percent, expected) in [
        ("scale up", 3, "ttt", &[300, 500, 700][..], 30, (5, 50, 1000)),
        ("up, unready: less", 3, "ftt", &[300, 500, 700], 30, (4, 60, 1200)),
        ("up, hot: less", 3, "htt", &[300, 500, 700], 30, (4, 60, 1200)),
        ("up, unready: none", 3, "tff", &[400, 500, 700], 30, (3, 40, 800)),
        ("up, hot: none", 3, "thh", &[400, 500, 700], 30, (3, 40, 800)),
        ("up ignores failed pods", 2, "ttxx", &[500, 700], 30, (4, 60, 1200)),
        ("up ignores deleted pods", 2, "ttdd", &[500, 700], 30, (4, 60, 1200)),
        ("scale down", 5, "ttttt", &[100, 300, 500, 250, 250], 50, (3, 28, 560)),
        ("down excludes unready pods", 5, "tttff", &[100, 300, 500, 250, 250], 50, (2, 30, 600)),
        ("down excludes unscheduled pods", 5, "tpppp", &[100], 50, (1, 10, 200)),
        ("down ignores hot pods", 5, "ttthh", &[100, 300, 500, 250, 250], 50, (2, 30, 600)),
        ("down ignores failed pods", 5, "tttttxx", &[100, 300, 500, 250, 250], 50, (3, 28, 560)),
        ("superfluous metrics", 4, "tttt", &[4000, 9500, 3000, 7000, 3200, 2000], 100, (24, 587, 11750)),
        ("missing metrics", 4, "tttt", &[400, 95], 100, (3, 24, 495)),
        ("missing, no change, equal", 2, "tt", &[1000], 100, (2, 100, 2000)),
        ("missing, no change, more", 2, "tt", &[1900], 100, (2, 190, 3800)),
        ("missing, no change, less", 2, "tt", &[600], 100, (2, 60, 1200)),
        ("missing and unready, no change", 3, "ftt", &[100, 450], 50, (3, 45, 900)),
        ("missing and hot, no change", 3, "htt", &[100, 450], 50, (3, 45, 900)),
        ("missing and unready, up", 3, "ftt", &[100, 2000], 50, (4, 200, 4000)),
        ("missing and unready, down", 4, "fttt", &[100, 100, 100], 50, (3, 10, 200)),
        ("missing, target over 100", 4, "fttt", &[200, 100, 100], 300, (2, 6, 0)),
        ("rolling update with surge", 2, "ttt", &[100, 100], 50, (2, 10, 200)),
    ] {
        let pods: Vec<Pod> = if percent == 300 {
            // Upstream's case has other requests.
            ["1", "1", "2", "2"].iter().zip(states.chars()).enumerate().map(|(index, (request, state))| pod(index, state, request)).collect()
        } else {
            pods(states)
        };
        let goal = Goal::Utilization { percent, container: "" };
        let found = of_pods(&workload(current, &pods), goal, "cpu", doubled(levels)).unwrap();
        let (replicas, utilization, usage) = expected;
        assert_eq!((found.replicas, found.utilization), (replicas, Some(utilization)), "{name}");
        if usage != 0 {
            assert_eq!(found.usage, usage, "{name}");
        }
    }
}

#[test]
fn one_container_counts_alone() {
    let (three, goal) = (pods("ttt"), Goal::Utilization { percent: 30, container: "c2" });
    let found = of_pods(&workload(3, &three), goal, "cpu", samples(&[300, 500, 700])).unwrap();
    assert_eq!(found, Proposal { replicas: 5, utilization: Some(50), usage: 500 });
    let hot = pods("htt");
    let found = of_pods(&workload(3, &hot), goal, "cpu", samples(&[300, 500, 700])).unwrap();
    assert_eq!(found, Proposal { replicas: 4, utilization: Some(60), usage: 600 });
}

#[test]
fn metrics_of_pods() {
    for (name, current, states, levels, target, expected) in [
        ("up", 3, "ttt", &[20000, 10000, 30000][..], 15000, (4, 20000)),
        ("up, readiness does not matter", 3, "tth", &[50000, 10000, 30000], 15000, (6, 30000)),
        ("up, would scale down", 3, "hth", &[50000, 15000, 30000], 15000, (7, 31666)),
        ("down", 5, "ttttt", &[12000, 12000, 12000, 12000, 12000], 20000, (3, 12000)),
        ("tolerance", 3, "ttt", &[20000, 21000, 21000], 20000, (3, 20666)),
        ("missing, no change", 5, "ttttt", &[20000, 19000, 21000], 20000, (5, 20000)),
        ("rolling update with surge", 2, "ttt", &[10000, 10000], 17000, (2, 10000)),
    ] {
        let pods = pods(states);
        let found = of_pods(&workload(current, &pods), Goal::Average(target), "", samples(levels)).unwrap();
        assert_eq!((found.replicas, found.usage), expected, "{name}");
    }
}

#[test]
fn tolerances_can_be_chosen() {
    let pods: Vec<Pod> = ["900m", "1", "1100m"].iter().enumerate().map(|(index, request)| pod(index, 't', request)).collect();
    for (down, up, levels, replicas) in [
        (0.1, 0.1, [1010, 1030, 1020], 3),
        (0.0, 0.0, [909, 1010, 1111], 4),
        (0.1, 2.0, [1890, 1910, 1900], 3),
        (2.0, 0.08, [1100, 1080, 1090], 4),
        (0.36, 0.1, [660, 640, 650], 3),
        (0.34, 0.1, [660, 640, 650], 2),
    ] {
        let workload = Workload { tolerances: Tolerances { down, up }, ..workload(3, &pods) };
        let goal = Goal::Utilization { percent: 100, container: "" };
        assert_eq!(of_pods(&workload, goal, "cpu", doubled(&levels)).unwrap().replicas, replicas, "{down} {up}");
    }
}

#[test]
fn values_that_pods_share() {
    for (name, current, states, usage, target, replicas) in [
        ("up", 3, "ttt", 20000, 15000, 4),
        ("up ignores unready pods", 3, "ftf", 50000, 10000, 5),
        ("fewer than there are, as only one is ready", 3, "ftf", 8600, 4400, 2),
        ("down", 5, "ttttt", 12000, 20000, 3),
        ("down, external", 5, "ttttt", 8600, 14334, 3),
        ("tolerance", 3, "ttt", 20666, 20000, 3),
        ("from zero", 0, "", 8600, 4400, 2),
        ("zero stays", 0, "", 0, 4400, 0),
        ("overflow", 3, "ttt", i64::MAX, 1, i32::MAX),
        ("as much as can be", 3, "ttt", i64::MAX, i64::MAX, 3),
    ] {
        let pods = pods(states);
        let found = of_value(&workload(current, &pods), usage, target).unwrap();
        assert_eq!((found.replicas, found.usage), (replicas, usage), "{name}");
    }
    assert_eq!(
        of_value(&workload(1, &[]), 2, 1).unwrap_err(),
        "unable to calculate ready pods: no pods returned by selector while calculating replica count"
    );
}

#[test]
fn values_by_pod() {
    for (current, usage, target, expected) in [
        (3, 20000, 5000, (4, 6667)),
        (3, 8600, 2150, (4, 2867)),
        (5, 6000, 2000, (3, 1200)),
        (5, 8600, 2867, (3, 1720)),
        (4, 20166, 5000, (4, 5042)),
        (3, 8600, 2900, (3, 2867)),
        (1, i64::MAX, 1, (i32::MAX, i64::MAX)),
        (1, i64::MAX, i64::MAX, (1, i64::MAX)),
    ] {
        let found = of_value_per_pod(current, Tolerances::default(), usage, target);
        assert_eq!((found.replicas, found.usage), expected, "{current} {usage} {target}");
    }
    let narrow = Tolerances { up: 0.01, ..Tolerances::default() };
    assert_eq!(of_value_per_pod(3, narrow, 8600, 2800).replicas, 4);
}

#[test]
fn nothing_is_proposed_without_knowledge() {
    let goal = Goal::Utilization { percent: 100, container: "" };
    let one = pods("t");
    let older = Samples::from([("older".to_owned(), Sample { value: 100, at: now(), window: SignedDuration::ZERO })]);
    let failed = |pods: &[Pod], goal, samples| of_pods(&workload(1, pods), goal, "cpu", samples).unwrap_err();
    assert_eq!(failed(&one, goal, older), "no metrics returned matched known pods");
    assert_eq!(failed(&[], goal, samples(&[1])), "no pods returned by selector while calculating replica count");
    assert_eq!(failed(&pods("p"), goal, samples(&[1])), "did not receive metrics for targeted pods (pods might be unready)");
    let named = Goal::Utilization { percent: 100, container: "c3" };
    assert_eq!(failed(&one, named, samples(&[1])), "container c3 not found in Pod p0");
    let bare = [pod_of(json!({"metadata": {"name": "p0"}, "spec": {"containers": [{"name": "c1"}]}, "status": one[0].status}))];
    assert_eq!(failed(&bare, goal, samples(&[1])), "missing request for cpu in container c1 of Pod p0");
}

#[test]
fn requests_of_pods_and_sidecars() {
    let container = |name: &str, cpu: &str| json!({"name": name, "resources": {"requests": {"cpu": cpu}}});
    let make = |more: Value| {
        let mut spec = json!({"containers": [container("c1", "100m"), container("c2", "50m")]});
        spec.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        pod_of(json!({"metadata": {"name": "p"}, "spec": spec}))
    };
    let mut sidecar = container("s", "25m");
    sidecar["restartPolicy"] = "Always".into();
    for (more, name, expected) in [
        (json!({}), "", Ok(150)),
        (json!({}), "c1", Ok(100)),
        (json!({"resources": {"requests": {"cpu": "800m"}}}), "", Ok(800)),
        (json!({"resources": {"requests": {"cpu": "800m"}}}), "c2", Ok(50)),
        (json!({"initContainers": [sidecar, container("init", "1")]}), "", Ok(175)),
        (json!({"initContainers": [sidecar]}), "s", Ok(25)),
        (json!({"initContainers": [container("init", "1")]}), "init", Err("container init not found in Pod p".to_owned())),
    ] {
        assert_eq!(request(&make(more.clone()), name, "cpu"), expected, "{more} {name}");
    }
}

#[test]
fn pods_are_grouped_by_what_is_known_of_them() {
    let pod = |phase: &str, started: Option<i64>, ready: Option<(&str, i64)>| {
        let conditions: Vec<Value> =
            ready.iter().map(|(status, changed)| json!({"type": "Ready", "status": status, "lastTransitionTime": at(*changed)})).collect();
        [pod_of(json!({"metadata": {"name": "p"}, "status": {"phase": phase, "startTime": started.map(at), "conditions": conditions}}))]
    };
    let sample =
        |age: i64, window: i64| Samples::from([("p".to_owned(), Sample { value: 1, at: at(-age), window: SignedDuration::from_secs(window) })]);
    for (name, pods, samples, resource, expected) in [
        ("no sample", pod("Running", Some(-600), Some(("True", -600))), Samples::new(), "cpu", "missing"),
        ("memory of a pod that starts", pod("Running", Some(-10), Some(("False", -10))), sample(0, 60), "memory", "ready"),
        ("no condition", pod("Running", Some(-600), None), sample(0, 60), "cpu", "unready"),
        ("no start", pod("Running", None, Some(("True", -600))), sample(0, 60), "cpu", "unready"),
        ("starts, unready", pod("Running", Some(-60), Some(("False", -50))), sample(0, 30), "cpu", "unready"),
        ("starts, sample covers its start", pod("Running", Some(-60), Some(("True", -30))), sample(0, 60), "cpu", "unready"),
        ("starts, a whole window since ready", pod("Running", Some(-120), Some(("True", -60))), sample(0, 60), "cpu", "ready"),
        ("never ready", pod("Running", Some(-600), Some(("False", -590))), sample(0, 60), "cpu", "unready"),
        ("was ready once", pod("Running", Some(-600), Some(("False", -300))), sample(0, 60), "cpu", "ready"),
    ] {
        let groups = group(&pods, &samples, resource, now());
        let found = match groups {
            Groups { ready: 1, .. } => "ready",
            groups if !groups.unready.is_empty() => "unready",
            groups if !groups.missing.is_empty() => "missing",
            _ => "ignored",
        };
        assert_eq!(found, expected, "{name}");
    }
}
