use super::*;
use serde_json::{Value, json};

fn spec(value: Value) -> PodSpec {
    serde_json::from_value(value).unwrap()
}

fn container(resources: Value) -> Value {
    json!({"name": "c", "resources": resources})
}

/// The cases of upstream's TestResourceConfigForPod, as (shares, quota, period, memory).
#[test]
fn pods_have_what_upstream_gives_them() {
    let (cpu, both) = (|cpu: &str| json!({"cpu": cpu}), |cpu: &str, memory: &str| json!({"cpu": cpu, "memory": memory}));
    let (request, limits) = (both("100m", "100Mi"), both("200m", "200Mi"));
    let full = container(json!({"requests": request, "limits": limits}));
    let guaranteed = container(json!({"requests": both("100m", "100Mi"), "limits": both("100m", "100Mi")}));
    const MI: i64 = 1 << 20;
    let kernel = Kernel::default();
    let no_quota = Kernel { no_quota: true, ..Kernel::default() };
    let short = Kernel { quota_period: 5000, ..Kernel::default() };
    for (what, pod, kernel, wanted) in [
        ("besteffort", json!({"containers": [container(json!({}))]}), &kernel, (2, None, None, None)),
        ("burstable without limits", json!({"containers": [container(json!({"requests": request}))]}), &kernel, (102, None, None, None)),
        ("burstable", json!({"containers": [full]}), &kernel, (102, Some(20_000), Some(100_000), Some(200 * MI))),
        ("burstable without quota", json!({"containers": [full]}), &no_quota, (102, Some(-1), Some(100_000), Some(200 * MI))),
        ("another period", json!({"containers": [full]}), &short, (102, Some(1000), Some(5000), Some(200 * MI))),
        ("a container without limits", json!({"containers": [full, container(json!({"requests": request}))]}), &kernel, (204, None, None, None)),
        (
            "a container without a limit of memory",
            json!({"containers": [full, container(json!({"requests": request, "limits": cpu("200m")}))]}),
            &kernel,
            (204, Some(40_000), Some(100_000), None),
        ),
        ("guaranteed", json!({"containers": [guaranteed]}), &kernel, (102, Some(10_000), Some(100_000), Some(100 * MI))),
        ("guaranteed without quota", json!({"containers": [guaranteed]}), &no_quota, (102, Some(-1), Some(100_000), Some(100 * MI))),
        (
            "an init container that needs more",
            json!({"initContainers": [container(json!({"requests": both("300m", "300Mi"), "limits": both("300m", "300Mi")}))], "containers": [guaranteed]}),
            &kernel,
            (307, Some(30_000), Some(100_000), Some(300 * MI)),
        ),
        (
            "an init container without limits after a sidecar with some",
            json!({"initContainers": [{"name": "s", "restartPolicy": "Always", "resources": {"limits": limits}}, {"name": "i"}], "containers": [full]}),
            &kernel,
            (307, Some(40_000), Some(100_000), Some(400 * MI)),
        ),
        (
            "limits of the pod, and a container without any",
            json!({"resources": {"requests": request, "limits": limits}, "containers": [container(json!({}))]}),
            &kernel,
            (102, Some(20_000), Some(100_000), Some(200 * MI)),
        ),
        ("overhead", json!({"overhead": both("50m", "50Mi"), "containers": [full]}), &kernel, (153, Some(25_000), Some(100_000), Some(250 * MI))),
        ("little", json!({"containers": [container(json!({"limits": cpu("5m")}))]}), &kernel, (5, Some(1000), Some(100_000), None)),
    ] {
        let got = Limits::of_pod(&spec(pod), kernel, Some(7));
        assert_eq!((got.shares, got.quota, got.period, got.memory), (Some(wanted.0), wanted.1, wanted.2, wanted.3), "{what}");
        assert_eq!((got.pids, got.huge_pages), (Some(7), Some(BTreeMap::new())), "{what}");
    }
}

#[test]
fn huge_pages_are_bounded_by_the_pod_and_not_by_its_class() {
    let pod = spec(json!({"containers": [container(json!({"limits": {"hugepages-2Mi": "4Mi", "cpu": "1"}, "requests": {"hugepages-2Mi": "4Mi"}}))]}));
    assert_eq!(Limits::of_pod(&pod, &Kernel::default(), None).huge_pages, Some(BTreeMap::from([(2 << 20, 4 << 20)])));
    let class = Limits::of_class(2, None, &[2 << 20, 1 << 30]);
    assert_eq!(class.huge_pages, Some(BTreeMap::from([(2 << 20, 1 << 62), (1 << 30, 1 << 62)])));
}

#[test]
fn shares_are_bounded() {
    for (millis, wanted) in [(0, 2), (1, 2), (2, 2), (100, 102), (1000, 1024), (256_000, 262_144), (1_000_000, 262_144), (-5, 2)] {
        assert_eq!(shares(millis), wanted, "{millis}");
    }
}

#[test]
fn nodes_give_what_is_not_reserved() {
    let quantity = |text: &str| Quantity::parse(text).unwrap();
    let amounts = Amounts::from(["cpu", "memory", "pid", "hugepages-1Gi", "pods"].map(|name| {
        let amount = match name {
            "cpu" => "1500m",
            "memory" => "2Gi",
            "pid" => "1000",
            "hugepages-1Gi" => "1Gi",
            _ => "110",
        };
        (name.to_owned(), quantity(amount))
    }));
    let all = Limits::of_amounts(&amounts, false);
    let wanted = Limits {
        shares: Some(1536),
        memory: Some(2 << 30),
        pids: Some(1000),
        huge_pages: Some(BTreeMap::from([(1 << 30, 1 << 30)])),
        ..Limits::default()
    };
    assert_eq!(all, wanted);
    assert_eq!(Limits::of_amounts(&amounts, true), Limits { shares: Some(1536), ..Limits::default() });
}

#[test]
fn memory_is_kept_for_better_classes() {
    // Upstream's arithmetic: of 1000 bytes, with 200 guaranteed and 100 burstable.
    assert_eq!(reserve(1000, 200, 100, 100), (800, 700));
    assert_eq!(reserve(1000, 200, 100, 50), (900, 850));
    assert_eq!(reserve(1000, 200, 100, 0), (1000, 1000));
}
