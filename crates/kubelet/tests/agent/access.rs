//! Who may use the agent's server, whether it is healthy, and what it runs.

use http::Method;
use kubelet::Access;
use serde_json::{Value, json};

use crate::common::World;
use crate::{ready_world, started};

const ADMIN: Option<(&str, &str)> = Some(("admin", "system:masters"));

#[tokio::test]
async fn programs_run_in_containers_and_pods_are_shown_as_the_runtime_has_them() {
    let world = ready_world().await;
    world.pod("web", json!({})).await;
    world.until_running("web").await;
    let uid = world.pods().get("web").await.unwrap().metadata.uid.unwrap();
    let run = async |path: &str| world.send(Method::POST, &format!("/run/default/{path}"), ADMIN, None).await;
    assert_eq!(run("web/c?cmd=ls%20-l").await, (200, "ran ls -l".into()));
    assert_eq!(run(&format!("web/{uid}/c?cmd=ls")).await, (200, "ran ls".into()));
    assert_eq!(run("web/c?cmd=false").await, (500, "command 'false' exited with 1: ".into()));
    assert_eq!(run("web/other?cmd=ls").await, (500, "container not found (\"other\")".into()));
    assert_eq!(run("other/c?cmd=ls").await, (404, "pod does not exist".into()));
    assert_eq!(run("web/not-its-uid/c?cmd=ls").await.0, 404);
    // Reading is not enough, and what reads runs nothing.
    assert_eq!(world.send(Method::POST, "/run/default/web/c?cmd=ls", Some(("nobody", "nothing")), None).await.0, 403);
    assert_eq!(world.get("/run/default/web/c?cmd=ls", ADMIN, None).await.0, 404);
    assert_eq!(world.runtime.state.lock().unwrap().execs.len(), 3);

    let (status, pods) = world.get("/runningpods/", ADMIN, None).await;
    let pods: Value = serde_json::from_str(&pods).unwrap();
    assert_eq!((status, &pods["kind"], &pods["items"][0]["metadata"]["name"]), (200, &json!("PodList"), &json!("web")));
    assert_eq!(pods["items"][0]["spec"]["containers"][0]["name"], "c");

    let (status, checks) = world.get("/healthz?verbose", ADMIN, None).await;
    assert_eq!((status, checks.as_str()), (200, "[+]ping ok\n[+]log ok\n[+]syncloop ok\nhealthz check passed\n"));
    assert_eq!(world.get("/healthz/syncloop", ADMIN, None).await, (200, "ok".into()));
    assert_eq!(world.get("/healthz/other", ADMIN, None).await.0, 404);
}

#[tokio::test]
async fn tokens_and_strangers_count_as_configured() {
    let mut world = World::new().await;
    world.access = Access { tokens: false, ..Access::default() };
    let world = started(world).await;
    // A token that the API server would be asked for is refused, and it is not asked.
    assert_eq!(world.get("/pods", None, Some("some.token")).await, (401, "Unauthorized".into()));
    assert_eq!(world.get("/pods", None, None).await.0, 401);
    assert_eq!(world.get("/pods", ADMIN, None).await.0, 200);

    let mut world = World::new().await;
    world.access = Access { anonymous: true, ..Access::default() };
    let world = started(world).await;
    let (status, body) = world.get("/pods", None, None).await;
    assert_eq!(status, 403, "{body}");
    assert!(body.contains("user=system:anonymous"), "{body}");

    let mut world = World::new().await;
    world.access = Access { everything: true, ..Access::default() };
    let world = started(world).await;
    assert_eq!(world.get("/pods", Some(("nobody", "nothing")), None).await.0, 200);
    assert_eq!(world.get("/pods", None, None).await.0, 401);
}

/// CVE-2020-8551: a metric for each path that was asked for filled the agent's memory.
#[tokio::test]
async fn unknown_paths_leave_no_trace_in_the_metrics() {
    let world = ready_world().await;
    for n in 0..20 {
        for path in [format!("/unknown-{n}"), format!("/pods/unknown-{n}"), format!("/healthz/unknown-{n}"), format!("/logs/unknown-{n}")] {
            let (status, _) = world.get(&path, ADMIN, None).await;
            assert_eq!(status, 404, "{path}");
        }
    }
    for path in ["/metrics", "/metrics/probes", "/metrics/resource", "/metrics/cadvisor"] {
        let (status, text) = world.get(path, ADMIN, None).await;
        assert!(status == 200 && !text.contains("unknown-"), "{path}: {status} {text}");
    }
}

/// CVE-2024-5321: every user of a Windows node read the logs of containers.
#[tokio::test]
async fn logs_of_a_windows_node_are_for_its_administrators() {
    use std::os::unix::fs::PermissionsExt as _;
    for (world, is_windows) in [(ready_world().await, true), (World::linux().await, false)] {
        world.pod("web", json!({})).await;
        world.until_running("web").await;
        let logs = world.drive().join("var/log/pods");
        let of_pod = std::fs::read_dir(&logs).unwrap().next().unwrap().unwrap().path();
        for dir in [&logs, &of_pod, &of_pod.join("c")] {
            let mode = std::fs::metadata(dir).unwrap().permissions().mode();
            assert_eq!(mode & 0o007 == 0, is_windows, "{mode:o} {}", dir.display());
        }
    }
}
