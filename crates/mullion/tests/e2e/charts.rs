//! Charts, by unmodified helm 4 (server-side apply): its own starter chart, and one with an object of every kind that charts hold.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use crate::busybox;
use crate::cluster::{Cluster, PATIENCE, until};

/// Values for Windows pods: the stand-in of IIS, on nodes with the taint that keeps Linux pods away.
const WINDOWS: &str = "image: {repository: mcr.microsoft.com/windows/servercore/iis, tag: windowsservercore-ltsc2022}
nodeSelector: {kubernetes.io/os: windows}
tolerations: [{key: os, operator: Equal, value: windows, effect: NoSchedule}]
";
const TAINT: &str = "os=windows:NoSchedule";

/// The files of a chart.
macro_rules! chart {
    ($($file:literal),* $(,)?) => { &[$(($file, include_str!(concat!("charts/every-kind/", $file)))),*] };
}
const EVERY_KIND: &[(&str, &str)] = chart![
    "Chart.yaml",
    "values.yaml",
    "crds/gauges.yaml",
    "templates/_helpers.tpl",
    "templates/access.yaml",
    "templates/admission.yaml",
    "templates/core.yaml",
    "templates/network.yaml",
    "templates/storage.yaml",
    "templates/workloads.yaml",
];

/// helm with the common limit of waits.
#[track_caller]
fn helm(cluster: &Cluster, args: &[&str]) -> String {
    let limit = format!("--timeout={}s", PATIENCE.as_secs());
    let waits = matches!(args[0], "install" | "upgrade" | "rollback" | "uninstall");
    let options: &[&str] = if waits { &["--wait", &limit] } else { &[] };
    cluster.helm(&[args, options].concat()).ok(&format!("helm {}", args.join(" ")))
}

fn text(cluster: &Cluster, name: &str, content: &str) -> String {
    let path = cluster.place.path().join(name);
    fs::create_dir_all(path.parent().expect("a directory")).and_then(|()| fs::write(&path, content)).expect("a file");
    path.to_string_lossy().into_owned()
}

/// `REVISION STATUS` of each revision of a release.
fn history(cluster: &Cluster, release: &str) -> Vec<String> {
    let revisions: serde_json::Value = serde_json::from_str(&helm(cluster, &["history", release, "-o", "json"])).expect("JSON");
    let line = |one: &serde_json::Value| format!("{} {}", one["revision"], one["status"].as_str().unwrap_or_default());
    revisions.as_array().expect("revisions").iter().map(line).collect()
}

/// `helm create`, with its tests' image from an archive; then the life of a release, and other writers' fields.
pub fn starter(cluster: &Cluster) {
    cluster.kubectl(&["taint", "nodes", "-l", "kubernetes.io/os=windows", "--overwrite", TAINT]);
    busybox::load(cluster);
    helm(cluster, &["create", "web"]);
    let chart: PathBuf = cluster.place.path().join("web");
    let test = chart.join("templates/tests/test-connection.yaml");
    let unchanged = fs::read_to_string(&test).expect("the chart's test");
    assert!(unchanged.contains("image: busybox\n"), "{unchanged}");
    fs::write(&test, unchanged.replace("image: busybox\n", &format!("image: {}\n", busybox::IMAGE))).expect("a file");
    let values = text(cluster, "windows.yaml", WINDOWS);

    helm(cluster, &["install", "web", "./web", "-f", &values]);
    let test = helm(cluster, &["test", "web", &format!("--timeout={}s", PATIENCE.as_secs())]);
    assert!(test.contains("Phase:          Succeeded"), "{test}");
    helm(cluster, &["upgrade", "web", "./web", "-f", &values, "--set", "replicaCount=2,podLabels.round=two"]);
    let replicas = || cluster.json(&["deployment", "web"])["status"]["readyReplicas"].clone();
    let round = || cluster.json(&["deployment", "web"])["spec"]["template"]["metadata"]["labels"]["round"].clone();
    assert_eq!((replicas(), round()), (2.into(), "two".into()));
    helm(cluster, &["rollback", "web", "1"]);
    assert_eq!((replicas(), round()), (1.into(), serde_json::Value::Null));
    assert_eq!(history(cluster, "web"), ["1 superseded", "2 superseded", "3 deployed"]);

    cluster.kubectl(&["scale", "deployment", "web", "--replicas=3"]);
    let refused = cluster.helm(&["upgrade", "web", "./web", "-f", &values]);
    let conflict = "conflict with \"kubectl\" with subresource \"scale\" using apps/v1: .spec.replicas";
    assert!(refused.code == Some(1) && refused.err.contains(conflict), "{refused:?}");
    helm(cluster, &["upgrade", "web", "./web", "-f", &values, "--force-conflicts"]);
    assert_eq!(replicas(), 1);
    // As helm 3 writes, and back.
    helm(cluster, &["upgrade", "web", "./web", "-f", &values, "--set", "podLabels.round=three", "--server-side=false"]);
    helm(cluster, &["upgrade", "web", "./web", "-f", &values, "--server-side=true"]);
    assert_eq!(round(), serde_json::Value::Null, "what is no longer in the chart is removed");

    helm(cluster, &["uninstall", "web"]);
    let left = cluster.kubectl(&["get", "all,secrets,serviceaccounts,endpoints", "-l", "app.kubernetes.io/instance=web", "-o", "name"]);
    let left: Vec<&str> = left.lines().filter(|name| !name.contains("test-connection") && !name.starts_with("pod/")).collect();
    assert!(left.is_empty(), "{left:?}");
    cluster.kubectl(&["delete", "pods", "-l", "app.kubernetes.io/instance=web", "--grace-period=1"]);
}

/// The objects of the release by kind and name, each with its label `round`.
fn objects(cluster: &Cluster) -> BTreeMap<String, String> {
    let kinds = cluster.kubectl(&["api-resources", "--verbs=list", "-o", "name"]);
    let kinds: Vec<&str> = kinds.lines().filter(|kind| !kind.ends_with(".metrics.k8s.io")).collect();
    let columns = "custom-columns=KIND:.kind,NAME:.metadata.name,ROUND:.metadata.labels.round";
    let table = cluster.kubectl(&["get", &kinds.join(","), "-A", "-l", "app.kubernetes.io/instance=every", "-o", columns, "--no-headers"]);
    let row = |line: &str| {
        let cells: Vec<&str> = line.split_whitespace().collect();
        (format!("{}/{}", cells[0], cells[1]), cells[2].to_owned())
    };
    table.lines().map(row).collect()
}

/// Every object is made, changed, changed back and removed; what an object is for, it does.
pub fn every_kind(cluster: &Cluster) {
    for (file, content) in EVERY_KIND {
        text(cluster, &format!("every-kind/{file}"), content);
    }
    let release = ["every", "./every-kind", "-n", "charts"];
    let written = helm(cluster, &[&["template"][..], &release].concat()).lines().filter(|line| line.starts_with("kind: ")).count();
    assert!(written > 45, "{written} objects");
    let count = |round: &str| objects(cluster).values().filter(|found| *found == round).count();

    helm(cluster, &[&["install"][..], &release, &["--create-namespace"]].concat());
    // The controllers label two Endpoints and two EndpointSlices as their Services are.
    assert_eq!(count("one"), written + 4, "{:#?}", objects(cluster));
    let gauge = || cluster.json(&["gauge", "every-gauge", "-n", "charts"]);
    assert_eq!(gauge()["spec"]["unit"], "litre", "as the definition has it");
    let config = || cluster.kubectl(&["exec", "-n", "charts", "every-pod", "--", "cmd", "/c", "type", "C:\\config\\round"]);
    assert_eq!(config(), "one");

    helm(cluster, &[&["upgrade"][..], &release, &["--set", "round=two,replicas=2"]].concat());
    assert_eq!((count("one"), count("two")), (0, written + 4), "{:#?}", objects(cluster));
    let updated = gauge();
    assert_eq!(updated["spec"]["marks"][0]["text"], "two");
    // Both policies hold by now: they may follow their creation a moment later.
    assert_eq!(updated["metadata"]["annotations"]["seen"], "by the policy");
    let bad = updated.to_string().replace("\"high\":10", "\"high\":1001").replace("every-gauge", "bad-gauge");
    let refused = cluster.try_kubectl(&["create", "-f", "-"], &bad);
    assert!(refused.err.contains("ValidatingAdmissionPolicy 'every-validation'") && refused.err.contains("high must not exceed 1000"), "{refused:?}");
    until("the pod sees the new ConfigMap", PATIENCE, || if config() == "two" { Ok(()) } else { Err(config()) });
    let set = cluster.json(&["statefulset", "every-set", "-n", "charts"])["status"]["readyReplicas"].clone();
    assert_eq!(set, 2);

    helm(cluster, &["rollback", "every", "1", "-n", "charts"]);
    assert_eq!((count("one"), count("two")), (written + 4, 0), "{:#?}", objects(cluster));

    helm(cluster, &["uninstall", "every", "-n", "charts"]);
    until("nothing is left of the release", PATIENCE, || match objects(cluster) {
        left if left.is_empty() => Ok(()),
        left => Err(format!("{left:?}")),
    });
    until("nothing is left that its objects made", PATIENCE, || match cluster.kubectl(&["get", "all,pvc,endpoints", "-n", "charts", "-o", "name"]) {
        left if left.is_empty() => Ok(()),
        left => Err(left),
    });
    // helm leaves definitions of custom resources alone.
    cluster.kubectl(&["delete", "crd", "gauges.charts.example.org"]);
    let group = cluster.try_kubectl(&["get", "--raw", "/apis/charts.example.org"], "");
    assert!(group.err.contains("NotFound"), "{group:?}");
    cluster.kubectl(&["delete", "namespace", "charts"]);
    cluster.kubectl(&["taint", "nodes", "-l", "kubernetes.io/os=windows", &format!("{TAINT}-")]);
}
