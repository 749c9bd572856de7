//! Cases of upstream's `horizontal_test.go`.

use super::*;

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

fn ago(seconds: i32) -> Timestamp {
    before(now(), seconds)
}

#[test]
fn bounds_without_behavior() {
    for (current, desired, min, max, expected) in [
        (5, 7, 3, 8, (7, "DesiredWithinRange")),
        (3, 1, 2, 8, (2, "TooFewReplicas")),
        (1, 0, 0, 10, (0, "DesiredWithinRange")),
        (20, 1000, 1, 10, (10, "TooManyReplicas")),
        (3, 1000, 1, 2000, (6, "ScaleUpLimit")),
        (1, 1000, 1, 2000, (4, "ScaleUpLimit")),
    ] {
        let (replicas, (reason, _)) = limit(Bounds { current, min, max }, desired);
        assert_eq!((replicas, reason), expected, "{current} {desired}");
    }
}

#[test]
fn the_highest_recent_recommendation_holds() {
    for (name, log, desired, expected, length) in [
        ("empty", &[][..], 5, 5, 1),
        ("higher ones", &[(4, 120), (5, 60)], 3, 5, 3),
        ("lower ones", &[(1, 120), (2, 60)], 3, 3, 3),
        ("old ones", &[(10, 600), (9, 540)], 3, 3, 1),
        ("old and higher ones", &[(10, 600), (4, 60), (5, 120), (9, 540)], 3, 5, 3),
    ] {
        let recommendations = log.iter().map(|(replicas, age)| (*replicas, ago(*age))).collect();
        let mut history = History { recommendations, ..History::default() };
        assert_eq!(history.stabilize(desired, now()), expected, "{name}");
        assert_eq!(history.recommendations.len(), length, "{name}: old ones are forgotten");
    }
}

/// Pods and their period, percent and its period; zero leaves a policy out.
type Policies = (i32, i32, i32, i32);

fn rules((pods, pods_period, percent, percent_period): Policies) -> HPAScalingRules {
    let all = [policy("Pods", pods, pods_period), policy("Percent", percent, percent_period)];
    HPAScalingRules { policies: Some(all.into_iter().filter(|policy| policy.value != 0).collect()), ..HPAScalingRules::default() }
}

fn behavior(up: Option<Policies>, down: Option<Policies>) -> HorizontalPodAutoscalerBehavior {
    HorizontalPodAutoscalerBehavior { scale_up: up.map(rules), scale_down: down.map(rules) }
}

struct Case {
    up: Option<Policies>,
    down: Option<Policies>,
    ups: &'static [i32],
    downs: &'static [i32],
    bounds: (i32, i32, i32),
    desired: i32,
    expected: (i32, &'static str),
}

fn case(up: Option<Policies>, down: Option<Policies>, bounds: (i32, i32, i32), desired: i32, expected: (i32, &'static str)) -> Case {
    Case { up, down, ups: &[], downs: &[], bounds, desired, expected }
}

#[test]
fn policies_limit_how_fast_a_workload_changes() {
    const EVENTS: &[i32] = &[1, 5, 9];
    let (some, all) = (Some, (1, 1000));
    let at = |current: i32| (current, all.0, all.1);
    for case in [
        case(None, None, (5, 3, 8), 7, (7, "DesiredWithinRange")),
        case(None, None, (3, 2, 8), 1, (2, "TooFewReplicas")),
        case(None, None, (1, 0, 10), 0, (0, "DesiredWithinRange")),
        case(None, None, (20, 1, 10), 1000, (10, "TooManyReplicas")),
        case(None, None, (100, 100, 150), 1000, (150, "TooManyReplicas")),
        case(some((0, 0, 1, 60)), None, (3, 1, 2000), 1000, (4, "ScaleUpLimit")),
        case(None, some((20, 60, 0, 0)), (1000, 3, 2000), 3, (980, "ScaleDownLimit")),
        case(None, None, at(10), 50, (20, "ScaleUpLimit")),
        case(some((100, 60, 100, 60)), None, at(10), 500, (110, "ScaleUpLimit")),
        case(some((2, 60, 100, 60)), None, at(10), 500, (20, "ScaleUpLimit")),
        case(some((100, 60, 0, 0)), None, at(10), 50, (50, "DesiredWithinRange")),
        case(some((30, 60, 0, 0)), None, at(10), 50, (40, "ScaleUpLimit")),
        case(some((0, 0, 200, 60)), None, at(10), 50, (30, "ScaleUpLimit")),
        case(None, some((20, 60, 1, 60)), at(100), 2, (80, "ScaleDownLimit")),
        case(None, some((2, 60, 1, 60)), at(100), 2, (98, "ScaleDownLimit")),
        case(None, some((100, 60, 0, 0)), at(10), 0, (1, "TooFewReplicas")),
        case(None, some((0, 0, 100, 60)), (10, 5, 1000), 2, (5, "TooFewReplicas")),
        case(None, some((5, 60, 0, 0)), at(10), 2, (5, "ScaleDownLimit")),
        case(None, some((0, 0, 50, 60)), at(10), 5, (5, "DesiredWithinRange")),
        Case { ups: EVENTS, ..case(some((300, 60, 0, 0)), None, (100, 1, 200), 500, (200, "TooManyReplicas")) },
        Case { ups: EVENTS, ..case(some((0, 0, 10000, 60)), None, (100, 1, 200), 500, (200, "TooManyReplicas")) },
        Case { ups: EVENTS, ..case(some((5, 120, 0, 0)), None, at(100), 500, (100, "ScaleUpLimit")) },
        Case { ups: EVENTS, ..case(some((150, 120, 0, 0)), None, at(100), 500, (235, "ScaleUpLimit")) },
        Case { ups: EVENTS, ..case(some((0, 0, 200, 120)), None, at(100), 500, (255, "ScaleUpLimit")) },
        Case { ups: &[4], downs: &[2], ..case(some((0, 0, 300, 300)), None, at(6), 24, (16, "ScaleUpLimit")) },
        Case { downs: EVENTS, ..case(None, None, at(10), 5, (5, "DesiredWithinRange")) },
        Case { downs: EVENTS, ..case(None, some((115, 120, 0, 0)), at(100), 0, (1, "TooFewReplicas")) },
        Case { downs: EVENTS, ..case(None, some((5, 120, 0, 0)), at(100), 0, (100, "ScaleDownLimit")) },
        Case { downs: EVENTS, ..case(None, some((50, 120, 0, 0)), at(100), 0, (65, "ScaleDownLimit")) },
    ] {
        let spread = |changes: &[i32]| changes.iter().zip([20, 60, 100]).map(|(change, age)| (*change, ago(age))).collect();
        let history = History { ups: spread(case.ups), downs: spread(case.downs), ..History::default() };
        let behavior = behavior(case.up, case.down);
        let (current, min, max) = case.bounds;
        let (up, down) = (Rules::up(&behavior), Rules::down(&behavior));
        let (replicas, (reason, _)) = history.limit_by_rules(Bounds { current, min, max }, case.desired, (&up, &down), now());
        assert_eq!((replicas, reason), case.expected, "{current} -> {} with {:?} {:?}", case.desired, case.up, case.down);
    }
}

#[test]
fn a_policy_is_chosen() {
    let select = |policy: &str| HPAScalingRules { select_policy: Some(policy.to_owned()), ..rules((20, 60, 50, 60)) };
    let history = History::default();
    for (policy, up, down) in [("Max", 32, -8), ("Min", 18, 6), ("Disabled", 12, 12)] {
        let behavior = HorizontalPodAutoscalerBehavior { scale_up: Some(select(policy)), scale_down: Some(select(policy)) };
        let (up_rules, down_rules) = (Rules::up(&behavior), Rules::down(&behavior));
        let bounds = Bounds { current: 12, min: -100, max: 1000 };
        assert_eq!(history.limit_by_rules(bounds, 500, (&up_rules, &down_rules), now()).0, up, "{policy}");
        assert_eq!(history.limit_by_rules(bounds, -50, (&up_rules, &down_rules), now()).0, down, "{policy}");
    }
}

#[test]
fn windows_hold_a_workload_between_recent_recommendations() {
    let windows = |up: i32, down: i32| {
        let rules = |window| Some(HPAScalingRules { stabilization_window_seconds: Some(window), ..HPAScalingRules::default() });
        HorizontalPodAutoscalerBehavior { scale_up: rules(up), scale_down: rules(down) }
    };
    for (name, log, current, desired, (up, down), expected) in [
        ("nothing before", &[][..], 100, 5, (60, 0), 5),
        ("going down waits", &[(4, 120), (5, 60)], 100, 3, (0, 240), 5),
        ("going up waits", &[(4, 120), (5, 60)], 1, 10, (240, 0), 4),
        ("windows are over", &[(10, 600), (9, 540)], 100, 3, (60, 60), 3),
        ("between both", &[(10, 60), (2, 30)], 5, 7, (300, 300), 5),
    ] {
        let recommendations = log.iter().map(|(replicas, age)| (*replicas, ago(*age))).collect();
        let mut history = History { recommendations, ..History::default() };
        let behavior = windows(up, down);
        let (up, down) = (Rules::up(&behavior), Rules::down(&behavior));
        assert_eq!(history.stabilize_by_rules(current, desired, (&up, &down), now()), expected, "{name}");
    }
}

#[test]
fn a_change_counts_until_its_period_is_over() {
    let behavior = behavior(Some((3, 60, 0, 0)), None);
    let mut history = History::default();
    let bounds = |current| Bounds { current, min: 1, max: 100 };
    let normalize = |history: &mut History, current, now| history.normalize(Some(&behavior), bounds(current), 50, now).replicas;
    assert_eq!(normalize(&mut history, 1, now()), 4);
    history.scaled(Some(&behavior), 1, 4, now());
    let later = now() + SignedDuration::from_secs(30);
    assert_eq!(normalize(&mut history, 4, later), 4, "three were added within the minute");
    let later = now() + SignedDuration::from_secs(60);
    assert_eq!(normalize(&mut history, 4, later), 7);
    history.scaled(Some(&behavior), 4, 7, later);
    history.scaled(None, 7, 8, later);
    assert_eq!(history.ups.len(), 2, "without behavior nothing is noted");
}

#[test]
fn conditions_say_what_was_done() {
    let mut history = History::default();
    history.begin(10, now());
    let bounds = Bounds { current: 10, min: 1, max: 20 };
    let held = history.normalize(None, bounds, 4, now());
    assert_eq!((held.replicas, held.able, held.limited), (10, HIGHER, (false, WITHIN)));
    let up = history.normalize(None, bounds, 15, now());
    assert_eq!((up.replicas, up.able, up.limited), (15, READY, (false, WITHIN)));
    let more = history.normalize(None, bounds, 50, now());
    assert_eq!((more.replicas, more.able, more.limited), (20, READY, (true, TOO_MANY)));
}
