//! The life of pods: order, restarts, probes, hooks, deadlines, images, manifests.

use std::sync::Arc;

use serde_json::json;

use crate::cluster::{Cluster, MANIFESTS, NODE, condition, container, kubectl};
use crate::image::IMAGE;

/// Appends a line to the pod's common file.
fn say(line: &str) -> String {
    format!("echo {line} >> /all/said")
}

pub async fn init_containers_and_sidecars_start_in_order_and_end_in_reverse(cluster: Arc<Cluster>) {
    let all = json!([{"name": "all", "mountPath": "/all"}]);
    // What ends says so when it is told to.
    let lasting =
        |name: &str| format!("trap '{}; exit 0' TERM; {}; while :; do sleep 0.1; done", say(&format!("{name} ends")), say(&format!("{name} starts")));
    let part = |name: &str, script: String| json!({"name": name, "command": ["sh", "-c", script], "volumeMounts": all});
    let sidecar = |name: &str| {
        let mut sidecar = part(name, lasting(name));
        sidecar["restartPolicy"] = json!("Always");
        sidecar["startupProbe"] = json!({"exec": {"command": ["grep", format!("{name} starts"), "/all/said"]}, "periodSeconds": 1});
        sidecar
    };
    let directory = "/var/lib/order";
    let spec = json!({
        "terminationGracePeriodSeconds": 20,
        "initContainers": [part("first", say("first runs")), sidecar("proxy"), part("second", say("second runs")), sidecar("logger")],
        "containers": [part("main", lasting("main"))],
        "volumes": [{"name": "all", "hostPath": {"path": directory, "type": "DirectoryOrCreate"}}],
    });
    cluster.pod("order", spec).await;
    let status = cluster.until_ready("order").await;
    assert_eq!(container(&status, "first")["state"]["terminated"]["reason"], "Completed");
    assert_eq!((container(&status, "proxy")["started"].as_bool(), container(&status, "proxy")["ready"].as_bool()), (Some(true), Some(true)));
    assert_eq!(condition(&status, "Initialized"), "True");
    cluster.delete("order").await;
    cluster.until_gone("order").await;
    let said = std::fs::read_to_string(format!("{directory}/said")).unwrap();
    let expected = ["first runs", "proxy starts", "second runs", "logger starts", "main starts", "main ends", "logger ends", "proxy ends"];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
}

pub async fn containers_restart_as_their_policy_says(cluster: Arc<Cluster>) {
    let exits = |code: i32| json!([{"name": "c", "command": ["sh", "-c", format!("exit {code}")]}]);
    cluster.pod("never", json!({"restartPolicy": "Never", "containers": exits(7)})).await;
    cluster.pod("done", json!({"restartPolicy": "OnFailure", "containers": exits(0)})).await;
    cluster.pod("again", json!({"restartPolicy": "Always", "containers": exits(3)})).await;
    let status = cluster.until_phase("never", "Failed").await;
    let ended = &container(&status, "c")["state"]["terminated"];
    assert_eq!((ended["exitCode"].as_i64(), ended["reason"].as_str()), (Some(7), Some("Error")));
    cluster.until_phase("done", "Succeeded").await;
    let backs_off = |status: &serde_json::Value| container(status, "c")["state"]["waiting"]["reason"] == "CrashLoopBackOff";
    let status = cluster.until_status("again", "CrashLoopBackOff", backs_off).await;
    let c = container(&status, "c");
    // On a slow machine it may have come to its second wait.
    assert!(c["restartCount"].as_i64() >= Some(1) && c["lastState"]["terminated"]["exitCode"] == 3, "{c}");
    // A container that is waited for can be stopped.
    cluster.delete("again").await;
    cluster.until_gone("again").await;
}

pub async fn termination_messages_come_from_files_and_logs(cluster: Arc<Cluster>) {
    let containers = json!([
        {"name": "file", "command": ["sh", "-c", "printf from-file > /dev/termination-log"]},
        {"name": "own", "command": ["sh", "-c", "printf own > /tmp/end"], "terminationMessagePath": "/tmp/end"},
        {"name": "log", "command": ["sh", "-c", "echo from-log; exit 1"], "terminationMessagePolicy": "FallbackToLogsOnError"},
        {"name": "success", "command": ["sh", "-c", "echo ignored"], "terminationMessagePolicy": "FallbackToLogsOnError"},
    ]);
    cluster.pod("messages", json!({"restartPolicy": "Never", "containers": containers})).await;
    let status = cluster.until_phase("messages", "Failed").await;
    let message = |name: &str| container(&status, name)["state"]["terminated"]["message"].as_str().unwrap_or_default().to_owned();
    assert_eq!(["file", "own", "log", "success"].map(message), ["from-file", "own", "from-log\n", ""]);
}

pub async fn probes_gate_restart_and_unready_containers(cluster: Arc<Cluster>) {
    let often = |probe: serde_json::Value, failures: u32| {
        let mut probe = probe;
        probe["periodSeconds"] = json!(1);
        probe["failureThreshold"] = json!(failures);
        probe
    };
    let served = "mkdir /tmp/www; echo hello > /tmp/www/page; exec httpd -f -p 8080 -h /tmp/www";
    let script = |script: &str| json!(["sh", "-c", script]);
    let containers = json!([
        {"name": "web", "command": script(served),
            "startupProbe": often(json!({"tcpSocket": {"port": 8080}}), 60),
            "readinessProbe": often(json!({"httpGet": {"path": "/page", "port": 8080}}), 1)},
        {"name": "sick", "command": script("touch /tmp/well; sleep 3; rm /tmp/well; sleep 1000"),
            "livenessProbe": often(json!({"exec": {"command": ["cat", "/tmp/well"]}}), 1)},
    ]);
    cluster.pod("probed", json!({"containers": containers})).await;
    let restarted = |status: &serde_json::Value| container(status, "sick")["restartCount"].as_i64() > Some(0);
    let status = cluster.until_status("probed", "a restart by the liveness probe", restarted).await;
    assert_eq!(container(&status, "web")["restartCount"], 0);
    cluster.until_event("probed", "Container sick failed liveness probe, will be restarted").await;
    cluster.until_status("probed", "readiness of the page", |status| container(status, "web")["ready"] == true).await;
    cluster.exec("probed", "web", "rm /tmp/www/page").await;
    let unready = cluster.until_status("probed", "no readiness", |status| container(status, "web")["ready"] == false).await;
    assert_eq!((condition(&unready, "Ready"), container(&unready, "web")["restartCount"].as_i64()), ("False", Some(0)));
    cluster.until_event("probed", "Readiness probe failed: HTTP probe failed with statuscode: 404").await;
}

pub async fn hooks_run_after_the_start_and_before_the_stop(cluster: Arc<Cluster>) {
    let directory = "/var/lib/hooks";
    let hook = |line: &str| json!({"exec": {"command": ["sh", "-c", say(line)]}});
    let spec = json!({
        "terminationGracePeriodSeconds": 10,
        "containers": [{"name": "c", "command": ["sh", "-c", format!("trap '{}; exit' TERM; while :; do sleep 0.1; done", say("stopped"))],
            "lifecycle": {"postStart": hook("after the start"), "preStop": hook("before the stop")},
            "volumeMounts": [{"name": "all", "mountPath": "/all"}]}],
        "volumes": [{"name": "all", "hostPath": {"path": directory, "type": "DirectoryOrCreate"}}],
    });
    cluster.pod("hooked", spec).await;
    cluster.until_ready("hooked").await;
    cluster.delete("hooked").await;
    cluster.until_gone("hooked").await;
    let said = std::fs::read_to_string(format!("{directory}/said")).unwrap();
    assert_eq!(said.lines().collect::<Vec<_>>(), ["after the start", "before the stop", "stopped"]);
    let fails = json!({"postStart": {"exec": {"command": ["false"]}}});
    cluster.pod("unhooked", json!({"containers": [{"name": "c", "command": ["sleep", "1000"], "lifecycle": fails}]})).await;
    cluster.until_event("unhooked", "FailedPostStartHook").await;
}

pub async fn deadlines_end_pods(cluster: Arc<Cluster>) {
    cluster.pod("late", json!({"activeDeadlineSeconds": 2, "containers": [{"name": "c", "command": ["sleep", "1000"]}]})).await;
    let status = cluster.until_phase("late", "Failed").await;
    assert_eq!(status["reason"], "DeadlineExceeded");
}

pub async fn images_are_pulled_or_named_in_the_status(cluster: Arc<Cluster>) {
    let waits = |name: &'static str, reason: &'static str| {
        let cluster = cluster.clone();
        async move {
            let is = |status: &serde_json::Value| container(status, "c")["state"]["waiting"]["reason"] == reason;
            let status = cluster.until_status(name, reason, is).await;
            container(&status, "c")["state"]["waiting"]["message"].as_str().unwrap_or_default().to_owned()
        }
    };
    let of = |image: &str, policy: &str| json!({"containers": [{"name": "c", "image": image, "imagePullPolicy": policy}]});
    // No registry is there.
    cluster.pod("absent", of("127.0.0.1:1/none:1", "IfNotPresent")).await;
    cluster.pod("forbidden", of("registry.test/none:1", "Never")).await;
    cluster.pod("misnamed", of("Not/An/Image", "IfNotPresent")).await;
    let message = waits("absent", "ImagePullBackOff").await;
    assert!(message.contains("127.0.0.1:1/none:1") && message.contains("connection refused"), "{message}");
    assert!(waits("forbidden", "ErrImageNeverPull").await.contains("registry.test/none:1"));
    waits("misnamed", "InvalidImageName").await;
    cluster
        .pod("present", json!({"restartPolicy": "Never", "containers": [{"name": "c", "imagePullPolicy": "IfNotPresent", "command": ["true"]}]}))
        .await;
    let status = cluster.until_phase("present", "Succeeded").await;
    let c = container(&status, "c");
    assert_eq!(c["image"], IMAGE);
    assert!(c["imageID"].as_str().is_some_and(|id| id.contains("sha256:")), "{c}");
    assert!(c["containerID"].as_str().is_some_and(|id| id.starts_with("containerd://")), "{c}");
}

pub async fn static_pods_run_and_have_mirrors(cluster: Arc<Cluster>) {
    let manifest = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "manifest"},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": IMAGE, "command": ["sleep", "1000"]}]}});
    std::fs::write(format!("{MANIFESTS}/pod.json"), manifest.to_string()).unwrap();
    let mirror = format!("manifest-{NODE}");
    cluster.until_ready(&mirror).await;
    assert_eq!(cluster.exec(&mirror, "c", "echo inside").await, "inside\n");
    std::fs::remove_file(format!("{MANIFESTS}/pod.json")).unwrap();
    cluster.until_gone(&mirror).await;
    let listed = kubectl(&["get", "pods", "--no-headers"]).await.unwrap();
    assert!(!listed.contains(&mirror), "{listed}");
}
