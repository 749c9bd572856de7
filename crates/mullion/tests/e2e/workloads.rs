//! What people do to running workloads with kubectl: edit, debug, drain, watch their use, and replace them.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::busybox;
use crate::cluster::{Cluster, PATIENCE, until};
use crate::http::{page, request};
use crate::manifests;

const NANOSERVER: &str = "mcr.microsoft.com/windows/nanoserver:ltsc2022";

/// A program of Windows itself: its output, and an exit code that no Unix process can have.
pub fn windows_program(cluster: &Cluster) {
    cluster.apply(&format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: program, labels: {{app: program}}}}
spec:
  restartPolicy: Never
  nodeSelector: {{kubernetes.io/os: windows}}
  containers:
  - name: main
    image: {NANOSERVER}
    command: [cmd, /c]
    args: [\"echo %GREETING% from %COMPUTERNAME%& ver & exit 300\"]
    env: [{{name: Greeting, value: hello}}]
"
    ));
    let ended = until("the end of the program", PATIENCE, || {
        let status = cluster.json(&["pod", "program"])["status"]["containerStatuses"][0]["state"]["terminated"].clone();
        if status.is_object() { Ok(status) } else { Err(cluster.kubectl(&["get", "pod", "program", "-o", "wide"])) }
    });
    assert_eq!(ended["exitCode"], 300, "{ended}");
    let log = cluster.kubectl(&["logs", "program"]);
    assert!(log.contains("hello from PROGRAM") && log.contains("10.0.20348"), "{log:?}");
    cluster.kubectl(&["delete", "pod", "program"]);
}

/// What an editor leaves is what is stored.
pub fn edit(cluster: &Cluster) {
    cluster.apply(&manifests::web("edited", "win01", "", ""));
    cluster.rolled_out("edited");
    let mut command = cluster.command(&["edit", "deployment", "edited"]);
    command.env("KUBE_EDITOR", "sed -i 's/replicas: 1/replicas: 2/'");
    crate::cluster::run(&mut command, "").ok("kubectl edit");
    cluster.rolled_out("edited");
    assert_eq!(cluster.pods("edited").len(), 2);
    cluster.kubectl(&["delete", "deployment,service", "edited"]);
}

/// A Linux pod that does nothing.
fn idle(cluster: &Cluster) {
    busybox::load(cluster);
    cluster.apply(&manifests::script("idle", "sleep 100000", ""));
    cluster.ready("pod/idle");
}

/// Figures for every node and for pods of both systems.
pub fn top(cluster: &Cluster) {
    // All pods before the first question: its answer holds for 15 s.
    idle(cluster);
    crate::windows::usage(cluster);
    until("figures of every node", PATIENCE, || {
        let output = cluster.try_kubectl(&["top", "nodes", "--no-headers"], "");
        if ["lin01", "win01", "win02"].iter().all(|node| output.out.contains(node)) { Ok(()) } else { Err(format!("{output:?}")) }
    });
    until("figures of a pod", PATIENCE, || {
        let output = cluster.try_kubectl(&["top", "pod", "idle", "--containers", "--no-headers"], "");
        if output.out.contains("main") { Ok(()) } else { Err(format!("{output:?}")) }
    });
}

/// A container put into a running pod, which sees the processes of the one that is looked at.
pub fn debug(cluster: &Cluster) {
    idle(cluster);
    let image = format!("--image={}", busybox::IMAGE);
    let script = "busybox tr '\\0' ' ' < /proc/1/cmdline; echo; sleep 100000";
    cluster.kubectl(&["debug", "idle", &image, "--image-pull-policy=Never", "--target=main", "--container=look", "--", "sh", "-c", script]);
    until("the debugger's output", PATIENCE, || {
        let output = cluster.try_kubectl(&["logs", "idle", "-c", "look"], "");
        if output.out.contains("sleep 100000") { Ok(()) } else { Err(format!("{output:?}")) }
    });
    let status = cluster.json(&["pod", "idle"])["status"].clone();
    assert!(status["ephemeralContainerStatuses"][0]["state"]["running"].is_object(), "{status}");
    assert_eq!(status["containerStatuses"][0]["restartCount"], 0, "the container itself goes on");
    cluster.kubectl(&["delete", "pod", "idle", "--grace-period=0", "--force"]);
}

/// A volume that shows a ConfigMap shows its new value in the running container.
pub fn updated_in_place(cluster: &Cluster) {
    let map = |value: &str| format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: live}}, data: {{word: {value}}}}}\n");
    cluster.apply(&map("old"));
    cluster.apply(&format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: live, labels: {{app: live}}}}
spec:
  nodeSelector: {{kubernetes.io/os: windows}}
  volumes: [{{name: v, configMap: {{name: live}}}}]
  containers:
  - {{name: main, image: \"{NANOSERVER}\", stdin: true, tty: true, volumeMounts: [{{name: v, mountPath: 'C:\\live'}}]}}
"
    ));
    cluster.ready("pod/live");
    let word = || cluster.try_kubectl(&["exec", "live", "--", "cmd", "/c", "type", "C:\\live\\word"], "");
    assert_eq!(word().out.trim(), "old");
    cluster.apply(&map("new"));
    until("the new value", PATIENCE * 3, || match word() {
        output if output.out.trim() == "new" => Ok(()),
        output => Err(format!("{output:?}")),
    });
    cluster.kubectl(&["delete", "pod", "live", "--grace-period=0", "--force"]);
}

/// A claim of the default class becomes a directory of the node that the pod is on, and goes with the claim.
pub fn claimed(cluster: &Cluster) {
    cluster.apply(&format!(
        "apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: kept}}
spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Gi}}}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: keeper, labels: {{app: keeper}}}}
spec:
  nodeSelector: {{kubernetes.io/hostname: win01}}
  volumes: [{{name: v, persistentVolumeClaim: {{claimName: kept}}}}]
  containers:
  - name: main
    image: {NANOSERVER}
    command: [cmd, /c, 'echo kept> C:\\data\\file & ping -n 100000 127.0.0.1 > nul']
    volumeMounts: [{{name: v, mountPath: 'C:\\data'}}]
"
    ));
    cluster.ready("pod/keeper");
    let volume = cluster.json(&["pvc", "kept"])["spec"]["volumeName"].as_str().unwrap_or_default().to_owned();
    let directory = cluster.drive_c("win01").join("var/lib/mullion/volumes").join(&volume);
    until("the file on the node", PATIENCE, || {
        let text = std::fs::read_to_string(directory.join("file")).map_err(|error| format!("{}: {error}", directory.display()))?;
        if text.trim() == "kept" { Ok(()) } else { Err(text) }
    });
    cluster.kubectl(&["delete", "pod", "keeper", "--grace-period=0", "--force"]);
    cluster.kubectl(&["delete", "pvc", "kept"]);
    until("the end of the volume", PATIENCE, || if directory.exists() { Err("its directory is there".to_owned()) } else { Ok(()) });
}

/// New pods take over from old ones while somebody asks all the time.
pub fn rolling_update(cluster: &Cluster) {
    let container = "        lifecycle: {preStop: {sleep: {seconds: 2}}}\n        readinessProbe: {httpGet: {path: /, port: 80}, periodSeconds: 1}";
    let manifest = |word: &str| {
        let env = format!("{container}\n        env: [{{name: WORD, value: {word}}}]");
        manifests::web("rolled", "win01", "", &env)
    };
    cluster.apply(&manifest("one"));
    cluster.rolled_out("rolled");
    let port = cluster.node_port("rolled");
    assert!(page(port, "/env").contains("WORD=one"));
    let end = AtomicBool::new(false);
    let failed = std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut failed = Vec::new();
            while !end.load(Ordering::Relaxed) {
                failed.extend(request("GET", port, "/hostname", "").err());
            }
            failed
        });
        cluster.apply(&manifest("two"));
        cluster.rolled_out("rolled");
        until("the old pod's end", PATIENCE, || match cluster.pods("rolled").len() {
            1 => Ok(()),
            count => Err(format!("{count} pods")),
        });
        end.store(true, Ordering::Relaxed);
        asking.join().expect("a thread that asks")
    });
    assert!(failed.is_empty(), "{failed:?}");
    assert!(page(port, "/env").contains("WORD=two"));
    cluster.kubectl(&["delete", "deployment,service", "rolled"]);
}

/// A node is emptied and taken back: what ran there runs on the other.
pub fn drain(cluster: &Cluster) {
    let anywhere = manifests::web("moved", "win02", "", "").replace("kubernetes.io/hostname: win02", "kubernetes.io/os: windows");
    cluster.kubectl(&["cordon", "win01"]);
    cluster.apply(&anywhere);
    cluster.rolled_out("moved");
    assert_eq!(cluster.pods("moved")[0]["spec"]["nodeName"], "win02");
    cluster.kubectl(&["uncordon", "win01"]);
    cluster.kubectl(&["drain", "win02", "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=60s"]);
    cluster.rolled_out("moved");
    until("the pod on the other node", PATIENCE, || match cluster.pods("moved").as_slice() {
        [pod] if pod["spec"]["nodeName"] == "win01" => Ok(()),
        pods => Err(format!("{} pods", pods.len())),
    });
    cluster.kubectl(&["uncordon", "win02"]);
    cluster.kubectl(&["delete", "deployment,service", "moved"]);
}
