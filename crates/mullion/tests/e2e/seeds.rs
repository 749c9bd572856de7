//! Manifests that people really wrote (`tests/seeds`): as they stand, then repaired where they are broken.
//!
//! Their nodes: two Windows hosts, one of build 16299, one of 20348, both with 3 CPUs and a drive D, and `HyperVContainer` on.

use serde_json::Value;

use crate::cluster::{self, Cluster, Output, PATIENCE, Step, until};
use crate::http::page;

/// The nodes of these steps.
const NODES: &str = "win01:windows:20348:cpu=3,drive=D,win16:windows:16299:cpu=3,drive=D";
/// Further options of `up`.
const OPTIONS: &[&str] = &["--feature-gates", "HyperVContainer=true"];

/// Steps on that cluster.
const STEPS: &[Step] = &[
    ("overview: a ConfigMap's value in the environment", overview_config_map),
    ("overview: host path and emptyDir, through a crash", overview_volumes),
    ("overview: a volume of drive D through a claim", overview_claim),
    ("beta: pod as JSON, ConfigMap and pod", beta_pods),
    ("beta: host path, two emptyDirs", beta_volumes),
    ("beta: Secret and pod", beta_secret),
    ("handbook: Deployment and Service", handbook_iis),
    ("handbook: DaemonSet, fault by fault", handbook_daemon_set),
    ("handbook: CPU and memory", handbook_capacity),
    ("handbook: Hyper-V isolation", handbook_hyper_v),
    ("handbook: pods of 1709", handbook_1709),
];

#[test]
fn published_manifests_run() {
    cluster::take(&Cluster::up_with(NODES, OPTIONS), STEPS);
}

/// A manifest of `tests/seeds`.
macro_rules! seed {
    ($name:literal) => {
        include_str!(concat!("../seeds/", $name))
    };
}

/// `kubectl delete -f -`, waited for.
#[track_caller]
fn delete(cluster: &Cluster, manifests: &[&str]) {
    for manifest in manifests {
        cluster.try_kubectl(&["delete", "-f", "-", "--timeout=30s"], manifest).ok("kubectl delete");
    }
}

/// Applies what must be refused, or taken in part only.
#[track_caller]
fn refused(cluster: &Cluster, manifest: &str) -> Output {
    let output = cluster.try_kubectl(&["apply", "-f", "-"], manifest);
    assert_eq!(output.code, Some(1), "{output:?}");
    output
}

/// The value of a variable in a Windows container, as its own shell prints it.
#[track_caller]
fn variable(cluster: &Cluster, pod: &str, name: &str) -> String {
    let text = cluster.kubectl(&["exec", pod, "--", "cmd", "/c", &format!("echo %{name}%")]);
    text.trim_end().to_owned()
}

fn overview_config_map(cluster: &Cluster) {
    cluster.kubectl(&["create", "configmap", "special-config", "--from-literal=special.how=very"]);
    cluster.apply(seed!("overview/configmap-env.yaml"));
    cluster.ready("pod/test-pd-hp3");
    assert_eq!(variable(cluster, "test-pd-hp3", "HOW_SPECIAL"), "very");
    delete(cluster, &[seed!("overview/configmap-env.yaml")]);
}

/// A file in a pod, seen by its shell.
#[track_caller]
fn shown(cluster: &Cluster, pod: &str, path: &str) -> String {
    cluster.kubectl(&["exec", pod, "--", "cmd", "/c", "type", path]).trim_end().to_owned()
}

#[track_caller]
fn written(cluster: &Cluster, pod: &str, path: &str, text: &str) {
    cluster.kubectl(&["exec", pod, "--", "cmd", "/c", &format!("echo {text}>{path}")]);
}

fn node_of(cluster: &Cluster, pod: &str) -> String {
    cluster.json(&["pod", pod])["spec"]["nodeName"].as_str().expect("a node").to_owned()
}

fn restarts(cluster: &Cluster, pod: &str) -> i64 {
    cluster.json(&["pod", pod])["status"]["containerStatuses"][0]["restartCount"].as_i64().unwrap_or(-1)
}

fn overview_volumes(cluster: &Cluster) {
    for node in ["win01", "win16"] {
        let data = cluster.drive_c(node).join("data");
        std::fs::create_dir_all(&data).and_then(|()| std::fs::write(data.join("x.txt"), "of the host")).expect("a file on drive C");
    }
    cluster.apply(seed!("overview/hostpath.yaml"));
    cluster.apply(seed!("overview/empty.yaml"));
    cluster.ready("pod/test-pd-hp4");
    cluster.ready("pod/test-pd");
    assert_eq!(shown(cluster, "test-pd-hp4", "C:\\test-pd\\x.txt"), "of the host");
    written(cluster, "test-pd-hp4", "C:\\test-pd\\new.txt", "of the pod");
    let data = cluster.drive_c(&node_of(cluster, "test-pd-hp4")).join("data");
    assert_eq!(std::fs::read_to_string(data.join("new.txt")).expect("the pod's file").trim_end(), "of the pod");

    written(cluster, "test-pd", "C:\\cache\\kept.txt", "still here");
    cluster.crash("test-pd");
    until("one restart", PATIENCE, || match restarts(cluster, "test-pd") {
        1 => Ok(()),
        count => Err(format!("{count} restarts")),
    });
    cluster.ready("pod/test-pd");
    assert_eq!(shown(cluster, "test-pd", "C:\\cache\\kept.txt"), "still here");
    delete(cluster, &[seed!("overview/hostpath.yaml"), seed!("overview/empty.yaml")]);
}

/// The claim's name is wrong; then the claim would ask for the default class.
fn overview_claim(cluster: &Cluster) {
    for node in ["win01", "win16"] {
        std::fs::write(cluster.drive(node, "d").join("x.txt"), "on drive D").expect("a file on drive D");
    }
    for manifest in [seed!("overview/windows-pv.yaml"), seed!("overview/windows-pv-claim.yaml"), seed!("overview/redis-pvc.yaml")] {
        cluster.apply(manifest);
    }
    cluster.event("pod", "test-pd-hp5", "FailedScheduling", "persistentvolumeclaim \"task-pv-claim\" not found");
    assert_eq!(cluster.json(&["pod", "test-pd-hp5"])["status"]["phase"], "Pending");
    delete(cluster, &[seed!("overview/redis-pvc.yaml"), seed!("overview/windows-pv-claim.yaml")]);

    cluster.apply(seed!("overview/windows-pv-claim.repaired.yaml"));
    cluster.apply(seed!("overview/redis-pvc.repaired.yaml"));
    cluster.ready("pod/test-pd-hp5");
    assert_eq!(cluster.json(&["pvc", "windows-pv-claim"])["spec"]["volumeName"], "gce-windows-pv");
    assert_eq!(shown(cluster, "test-pd-hp5", "C:\\test-pd\\x.txt"), "on drive D");
    delete(
        cluster,
        &[seed!("overview/redis-pvc.repaired.yaml"), seed!("overview/windows-pv-claim.repaired.yaml"), seed!("overview/windows-pv.yaml")],
    );
}

fn beta_pods(cluster: &Cluster) {
    cluster.apply(seed!("beta/pod.json"));
    cluster.apply(seed!("beta/configmap.yaml"));
    cluster.ready("pod/iis");
    cluster.ready("pod/configmap-pod");
    assert_eq!(variable(cluster, "configmap-pod", "EXAMPLE_PROPERTY_1"), "hello");
    assert_eq!(variable(cluster, "configmap-pod", "EXAMPLE_PROPERTY_2"), "world");
    delete(cluster, &[seed!("beta/pod.json"), seed!("beta/configmap.yaml")]);
}

fn beta_volumes(cluster: &Cluster) {
    for node in ["win01", "win16"] {
        let dir = cluster.drive_c(node).join("etc").join("foo");
        std::fs::create_dir_all(&dir).and_then(|()| std::fs::write(dir.join("x.txt"), "of the host")).expect("a file on drive C");
    }
    cluster.apply(seed!("beta/hostpath.yaml"));
    cluster.apply(seed!("beta/empty-dir.yaml"));
    cluster.ready("pod/hostpath-volume-pod");
    cluster.ready("pod/empty-dir-pod");
    assert_eq!(shown(cluster, "hostpath-volume-pod", "C:\\etc\\foo\\x.txt"), "of the host");
    let write = ["exec", "hostpath-volume-pod", "--", "cmd", "/c", "echo mine>C:\\etc\\foo\\x.txt"];
    let output = cluster.try_kubectl(&write, "");
    let file = cluster.drive_c(&node_of(cluster, "hostpath-volume-pod")).join("etc").join("foo").join("x.txt");
    assert_eq!(std::fs::read_to_string(file).expect("the host's file"), "of the host", "it is mounted read-only: {output:?}");
    written(cluster, "empty-dir-pod", "C:\\cache\\x.txt", "cached");
    written(cluster, "empty-dir-pod", "C:\\scratch\\x.txt", "scratched");
    assert_eq!(shown(cluster, "empty-dir-pod", "C:\\cache\\x.txt"), "cached");
    assert_eq!(shown(cluster, "empty-dir-pod", "C:\\scratch\\x.txt"), "scratched");
    delete(cluster, &[seed!("beta/hostpath.yaml"), seed!("beta/empty-dir.yaml")]);
}

fn beta_secret(cluster: &Cluster) {
    let output = refused(cluster, seed!("beta/secret.yaml"));
    assert_eq!(
        output.err.trim(),
        "error: error parsing STDIN: error converting YAML to JSON: yaml: line 2: mapping values are not allowed in this context"
    );
    cluster.apply(seed!("beta/secret.repaired.yaml"));
    cluster.ready("pod/mypod-secret");
    assert_eq!(variable(cluster, "mypod-secret", "USERNAME"), "admin");
    assert_eq!(variable(cluster, "mypod-secret", "PASSWORD"), "1f2d1e2e67df");
    delete(cluster, &[seed!("beta/secret.repaired.yaml")]);
}

/// The Service is taken, the Deployment is not; without a selector neither is good.
fn handbook_iis(cluster: &Cluster) {
    let gone = "no matches for kind \"Deployment\" in version \"extensions/v1beta1\"";
    let output = refused(cluster, seed!("handbook/iis.yaml"));
    assert!(output.err.contains(gone) && output.out.contains("service/iis created"), "{output:?}");
    let output = refused(cluster, seed!("handbook/iis.apps-v1.yaml"));
    for part in ["The Deployment \"iis\" is invalid", "spec.selector: Required value"] {
        assert!(output.err.contains(part), "{part} is missing: {}", output.err);
    }
    cluster.apply(seed!("handbook/iis.repaired.yaml"));
    cluster.rolled_out("iis");
    let start = page(cluster.node_port("iis"), "/");
    assert!(start.contains("IIS Windows Server (Mullion stand-in)"), "{start}");
    delete(cluster, &[seed!("handbook/iis.repaired.yaml")]);
    cluster.gone("pods", "app=iis");
}

/// API group, name, selector, and a shell that ends at once.
fn handbook_daemon_set(cluster: &Cluster) {
    let output = refused(cluster, seed!("handbook/daemonset.yaml"));
    assert!(output.err.contains("no matches for kind \"DaemonSet\" in version \"extensions/v1beta1\""), "{output:?}");
    let output = refused(cluster, seed!("handbook/daemonset.1-group.yaml"));
    assert!(output.err.contains("metadata.name: Invalid value: \"my-DaemonSet\": a lowercase RFC 1123 subdomain must consist of"), "{output:?}");
    let output = refused(cluster, seed!("handbook/daemonset.2-name.yaml"));
    assert!(
        output.err.contains("spec.template.metadata.labels: Invalid value: {\"app\":\"foo\"}: `selector` does not match template `labels`"),
        "{output:?}"
    );
    assert!(!output.err.contains("metadata.name"), "{output:?}");

    cluster.apply(seed!("handbook/daemonset.3-selector.yaml"));
    let pods = until("a refused pod and one whose shell ends", PATIENCE, || {
        let pods = cluster.pods("foo");
        let on = |node: &str| pods.iter().find(|pod| pod["spec"]["nodeName"] == node).map(|pod| pod["status"].clone()).unwrap_or_default();
        let (new, old) = (on("win01"), on("win16"));
        let ended = &old["containerStatuses"][0];
        if new["reason"] == "ImageBuildMismatch" && ended["restartCount"].as_i64() >= Some(1) { Ok((new, old)) } else { Err(format!("{new} {old}")) }
    });
    let message = pods.0["message"].as_str().unwrap_or_default();
    assert!(message.contains("16299") && message.contains("20348"), "{message}");
    let ended = &pods.1["containerStatuses"][0];
    let last = if ended["state"]["terminated"].is_object() { &ended["state"]["terminated"] } else { &ended["lastState"]["terminated"] };
    assert_eq!((&last["exitCode"], &last["reason"]), (&Value::from(0), &Value::from("Completed")), "without standard input cmd.exe ends: {ended}");
    delete(cluster, &[seed!("handbook/daemonset.3-selector.yaml")]);
    cluster.gone("pods", "app=foo");

    cluster.apply(seed!("handbook/daemonset.repaired.yaml"));
    cluster.kubectl(&["rollout", "status", "daemonset/my-daemonset", "--timeout=30s"]);
    let status = cluster.json(&["daemonset", "my-daemonset"])["status"].clone();
    assert_eq!((&status["desiredNumberScheduled"], &status["numberReady"]), (&Value::from(2), &Value::from(2)), "{status}");
    delete(cluster, &[seed!("handbook/daemonset.repaired.yaml")]);
    cluster.gone("pods", "app=foo");
}

/// Two CPUs each: the nodes have three, so the third pod waits.
fn handbook_capacity(cluster: &Cluster) {
    let output = refused(cluster, seed!("handbook/cpu-memory.yaml"));
    assert!(output.err.contains("spec.selector: Required value"), "{output:?}");
    cluster.apply(seed!("handbook/cpu-memory.repaired.yaml"));
    let waiting = until("two Ready pods and one that waits", PATIENCE, || {
        let pods = cluster.pods("iis");
        let ready = pods.iter().filter(|pod| crate::pods::ready(pod)).count();
        let waiting = pods.iter().find(|pod| pod["spec"]["nodeName"].is_null());
        match waiting {
            Some(pod) if (pods.len(), ready) == (3, 2) => Ok(pod.clone()),
            _ => Err(format!("{} pods, {ready} Ready", pods.len())),
        }
    });
    let name = waiting["metadata"]["name"].as_str().expect("a name");
    assert_eq!(waiting["status"]["phase"], "Pending");
    cluster.event("pod", name, "FailedScheduling", "0/2 nodes are available: 2 Insufficient cpu.");
    let mut nodes: Vec<_> = cluster.pods("iis").iter().filter_map(|pod| pod["spec"]["nodeName"].as_str().map(str::to_owned)).collect();
    nodes.sort();
    assert_eq!(nodes, ["win01", "win16"], "one on each node");
    delete(cluster, &[seed!("handbook/cpu-memory.repaired.yaml")]);
    cluster.gone("pods", "app=iis");
}

/// An image of build 16299 on a host of build 20348.
fn handbook_hyper_v(cluster: &Cluster) {
    let output = refused(cluster, seed!("handbook/hyperv.yaml"));
    assert!(output.err.contains("spec.selector: Required value"), "{output:?}");
    cluster.kubectl(&["cordon", "win16"]);
    let repaired = seed!("handbook/hyperv.repaired.yaml");
    cluster.apply(&repaired.replace("experimental.windows.kubernetes.io/isolation-type: hyperv", "note: no-isolation"));
    until("a refusal without isolation", PATIENCE, || {
        let pods = cluster.pods("iis");
        let refused = pods.iter().filter(|pod| pod["status"]["reason"] == "ImageBuildMismatch").count();
        let ready = pods.iter().filter(|pod| crate::pods::ready(pod)).count();
        if refused >= 3 && ready == 0 { Ok(()) } else { Err(format!("{refused} refused, {ready} Ready of {}", pods.len())) }
    });
    delete(cluster, &[repaired]);
    cluster.gone("pods", "app=iis");
    cluster.apply(repaired);
    cluster.rolled_out("iis");
    assert!(cluster.pods("iis").iter().all(|pod| pod["spec"]["nodeName"] == "win01"));
    delete(cluster, &[repaired]);
    cluster.gone("pods", "app=iis");
    cluster.kubectl(&["uncordon", "win16"]);
}

/// Refused on 20348 with the way out, Ready on 16299.
fn handbook_1709(cluster: &Cluster) {
    let manifests = [seed!("handbook/hostpath.yaml"), seed!("handbook/empty-dir.yaml")];
    cluster.kubectl(&["cordon", "win16"]);
    for manifest in manifests {
        cluster.apply(manifest);
    }
    for pod in ["hostpath-pod", "empty-dir-pod"] {
        let status = until("a refusal", PATIENCE, || {
            let status = cluster.json(&["pod", pod])["status"].clone();
            if status["reason"] == "ImageBuildMismatch" { Ok(status) } else { Err(status.to_string()) }
        });
        let message = status["message"].as_str().unwrap_or_default();
        for part in ["16299", "20348", "ltsc2022"] {
            assert!(message.contains(part), "{part} is missing: {message}");
        }
    }
    delete(cluster, &manifests);
    cluster.kubectl(&["uncordon", "win16"]);
    cluster.kubectl(&["cordon", "win01"]);
    let dir = cluster.drive_c("win16").join("AzureData");
    std::fs::create_dir_all(&dir).and_then(|()| std::fs::write(dir.join("x.txt"), "of the host")).expect("a file on drive C");
    for manifest in manifests {
        cluster.apply(manifest);
    }
    cluster.ready("pod/hostpath-pod");
    cluster.ready("pod/empty-dir-pod");
    assert_eq!(shown(cluster, "hostpath-pod", "C:\\etc\\foo\\x.txt"), "of the host");
    written(cluster, "empty-dir-pod", "C:\\cache\\x.txt", "cached");
    assert_eq!(shown(cluster, "empty-dir-pod", "C:\\cache\\x.txt"), "cached");
    delete(cluster, &manifests);
    cluster.kubectl(&["uncordon", "win01"]);
}
