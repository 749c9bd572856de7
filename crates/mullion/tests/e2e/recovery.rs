//! How clusters and their processes end, and what is there again afterwards.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::busybox;
use crate::cluster::{Cluster, PATIENCE, mullion, until};
use crate::footprint::Footprint;
use crate::http::page;
use crate::manifests;

/// Small, to be quick.
const NODES: &str = "win01:windows:20348";

/// Sends a signal as a user does.
#[track_caller]
pub fn kill(signal: &str, pid: u32) {
    let status = Command::new("kill").args([signal, &pid.to_string()]).status().expect("kill");
    assert!(status.success(), "kill {signal} {pid}: {status}");
}

/// `kill -9` of the supervisor.
pub fn kill_supervisor(cluster: &Cluster) {
    kill("-9", Footprint::of(cluster).supervisor);
}

/// Kills what runs in a container, as a crash would; returns how many processes that were.
pub fn kill_container(cluster: &Cluster, id: &str) -> usize {
    let command_line = |pid: u32| std::fs::read(format!("/proc/{pid}/cmdline")).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let is_its = |pid: &u32| command_line(*pid).is_ok_and(|line| line.contains(&format!("containers/{id}")));
    let pids: Vec<u32> = crate::footprint::family(Footprint::of(cluster).init).into_iter().filter(is_its).collect();
    pids.iter().for_each(|pid| kill("-9", *pid));
    pids.len()
}

/// What must be the same after a reboot of every host, and what must not.
struct Kept {
    node_port: u16,
    cluster_ip: Value,
    pod: Value,
    pod_uid: Value,
    pod_cidr: Value,
    node_uid: Value,
    boot: Value,
    restarts: i64,
}

impl Kept {
    fn of(cluster: &Cluster) -> Self {
        let service = cluster.json(&["service", "iis"]);
        let node = cluster.json(&["node", "win01"]);
        let pods = cluster.pods("iis");
        assert_eq!(pods.len(), 1, "{pods:?}");
        Self {
            node_port: cluster.node_port("iis"),
            cluster_ip: service["spec"]["clusterIP"].clone(),
            pod: pods[0]["metadata"]["name"].clone(),
            pod_uid: pods[0]["metadata"]["uid"].clone(),
            pod_cidr: node["spec"]["podCIDR"].clone(),
            node_uid: node["metadata"]["uid"].clone(),
            boot: node["status"]["nodeInfo"]["bootID"].clone(),
            restarts: pods[0]["status"]["containerStatuses"][0]["restartCount"].as_i64().unwrap_or(-1),
        }
    }
}

/// A Windows pod with a claim: it leaves a file there, and says whether it found one.
const KEEPER: &str = r"apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: kept}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: keeper}
spec:
  nodeSelector: {kubernetes.io/os: windows}
  volumes: [{name: v, persistentVolumeClaim: {claimName: kept}}]
  containers:
  - name: main
    image: mcr.microsoft.com/windows/nanoserver:ltsc2022
    command: [cmd, /c, 'if exist C:\data\file (type C:\data\file) else (echo kept> C:\data\file) & ping -n 100000 127.0.0.1 > nul']
    volumeMounts: [{name: v, mountPath: 'C:\data'}]
";

/// `kill -9` of the supervisor, then `up` on the same directory.
#[test]
fn a_killed_supervisor_takes_everything_with_it_and_up_resumes() {
    let mut cluster = Cluster::up(NODES);
    cluster.apply(KEEPER);
    cluster.apply(manifests::IIS);
    cluster.ready("pod/keeper");
    cluster.rolled_out("iis");
    page(cluster.node_port("iis"), "/");
    let before = Kept::of(&cluster);
    let footprint = Footprint::of(&cluster);
    kill("-9", footprint.supervisor);
    footprint.is_gone(&cluster);
    cluster.start("");
    page(before.node_port, "/");
    until("one restart", PATIENCE, || match Kept::of(&cluster).restarts {
        count if count == before.restarts + 1 => Ok(()),
        count => Err(format!("{count} restarts")),
    });
    let after = Kept::of(&cluster);
    assert_eq!((after.node_port, &after.cluster_ip, &after.pod_cidr), (before.node_port, &before.cluster_ip, &before.pod_cidr));
    assert_eq!((&after.pod, &after.pod_uid, &after.node_uid), (&before.pod, &before.pod_uid, &before.node_uid), "the very same objects");
    assert_ne!(after.boot, before.boot, "a reboot");
    until("the claimed volume's old content", PATIENCE, || match cluster.try_kubectl(&["logs", "keeper"], "") {
        output if output.out.trim() == "kept" => Ok(()),
        output => Err(format!("{output:?}")),
    });
    let footprint = Footprint::of(&cluster);
    cluster.down().ok("mullion down");
    footprint.is_gone(&cluster);
}

/// Ctrl-C where `up` runs in the foreground.
#[test]
fn an_interrupt_ends_a_cluster_in_the_foreground() {
    let mut cluster = Cluster::up(NODES);
    cluster.down().ok("mullion down");
    let mut command = cluster.place.command(mullion());
    command.args(["up", "--port", &cluster.port.to_string(), "--dir"]).arg(cluster.place.dir());
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("mullion up");
    until("a cluster that is up", PATIENCE, || {
        let output = cluster.place.mullion(&["status", "-o", "json"]);
        let status: Value = serde_json::from_str(&output.out).map_err(|_| format!("{output:?}"))?;
        // Printed once all nodes are Ready; the objects alone may be those of the boot before.
        if status["kubeconfig"].is_string() { Ok(()) } else { Err(output.out) }
    });
    let footprint = Footprint::of(&cluster);
    assert_eq!(footprint.supervisor, child.id(), "what the user started is the supervisor");
    kill("-INT", child.id());
    let status = until("the end of `up`", PATIENCE, || child.try_wait().expect("a child").ok_or_else(|| "it runs".to_owned()));
    assert_eq!(status.code(), Some(0), "{status}");
    footprint.is_gone(&cluster);
}

/// What the Linux pod runs: one connection, and a request on it every half second.
const CALLER: &str = r#"
while sleep 0.5; do printf 'GET /hostname HTTP/1.1\r\nHost: iis\r\n\r\n'; done | nc "$1" 80
echo closed
"#;

/// Each process alone is killed; it comes back, the pod with its container stays, and so does a connection to it.
#[test]
fn a_killed_process_is_restarted_and_pods_survive() {
    let cluster = Cluster::up(&format!("{NODES},lin01:linux"));
    busybox::load(&cluster);
    cluster.apply(manifests::IIS);
    cluster.rolled_out("iis");
    let port = cluster.node_port("iis");
    page(port, "/");
    let before = Kept::of(&cluster);
    let container = |cluster: &Cluster| cluster.pods("iis")[0]["status"]["containerStatuses"][0]["containerID"].clone();
    let running = container(&cluster);
    let service = cluster.json(&["service", "iis"]);
    cluster.apply(&manifests::script("caller", CALLER, service["spec"]["clusterIP"].as_str().unwrap_or_default()));
    let answers = || cluster.kubectl(&["logs", "caller"]).matches("HTTP/1.1 200").count();
    cluster.ready("pod/caller");
    until("a first answer", PATIENCE, || if answers() > 0 { Ok(()) } else { Err("none".to_owned()) });
    let names: Vec<String> = processes(&cluster).iter().map(|process| process["name"].as_str().unwrap_or_default().to_owned()).collect();
    assert!(names.len() >= 4, "control plane, network service, runtime, node: {names:?}");
    for name in &names {
        kill_process(&cluster, name);
        until(&format!("{name} again"), PATIENCE, || {
            let process = process(&cluster, name);
            if process["restarts"].as_u64() >= Some(1) && process["ready"] == true { Ok(()) } else { Err(process.to_string()) }
        });
        page(port, "/");
    }
    let heard = answers();
    until("further answers on the same connection", PATIENCE, || match (answers(), cluster.kubectl(&["logs", "caller"])) {
        (count, log) if count > heard && !log.contains("closed") => Ok(()),
        (count, log) => Err(format!("{count} answers, {heard} before: {log}")),
    });
    // A change that needs every one of them.
    cluster.apply(&manifests::web("after", "win01", "", ""));
    cluster.rolled_out("after");
    page(cluster.node_port("after"), "/");
    let after = Kept::of(&cluster);
    assert_eq!((after.restarts, &after.pod_uid, &container(&cluster)), (before.restarts, &before.pod_uid, &running), "the pod did not notice");
}

fn processes(cluster: &Cluster) -> Vec<Value> {
    let status: Value = serde_json::from_str(&cluster.place.mullion(&["status", "-o", "json"]).ok("mullion status")).expect("JSON");
    status["processes"].as_array().cloned().unwrap_or_default()
}

/// Kills a process of the lab by its name in `mullion status`.
#[track_caller]
pub fn kill_process(cluster: &Cluster, name: &str) {
    let init = Footprint::of(cluster).init;
    let inside = process(cluster, name)["pid"].as_u64().expect("a process number");
    kill("-9", outside(init, inside).unwrap_or_else(|| panic!("{name} is not process {inside} of the lab")));
}

pub fn process(cluster: &Cluster, name: &str) -> Value {
    processes(cluster).into_iter().find(|process| process["name"] == name).unwrap_or_default()
}

/// The number on the real host of process `inside` of the lab whose init is `init`.
fn outside(init: u32, inside: u64) -> Option<u32> {
    let last = |pid: &u32| -> Option<(usize, u64)> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let numbers: Vec<u64> =
            status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        Some((numbers.len(), *numbers.last()?))
    };
    let depth = last(&init)?.0;
    crate::footprint::family(init).into_iter().find(|pid| last(pid) == Some((depth, inside)))
}
