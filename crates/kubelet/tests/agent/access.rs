//! Who may use the agent's server, whether it is healthy, and what it runs.

use std::collections::BTreeSet;

use http::Method;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::Api;
use kube::api::PostParams;
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

/// The verb, the fine-grained subresource of `nodes` where there is one, and whether `nodes/proxy` is enough too.
type Right = (&'static str, Option<&'static str>, bool);

/// Each endpoint, with the right that it takes (upstream pkg/kubelet/server/auth.go, but for GET on streams, which is `create` here).
const ENDPOINTS: [(Method, &str, Right); 26] = [
    (Method::GET, "/containerLogs/default/web/c", ("get", None, true)),
    (Method::GET, "/pods", ("get", Some("pods"), true)),
    (Method::GET, "/pods/", ("get", Some("pods"), true)),
    (Method::GET, "/runningpods/", ("get", Some("pods"), true)),
    (Method::GET, "/healthz", ("get", Some("healthz"), true)),
    (Method::GET, "/healthz/syncloop", ("get", Some("healthz"), true)),
    (Method::GET, "/configz", ("get", Some("configz"), true)),
    (Method::GET, "/stats/summary", ("get", Some("stats"), false)),
    (Method::GET, "/metrics", ("get", Some("metrics"), false)),
    (Method::GET, "/metrics/cadvisor", ("get", Some("metrics"), false)),
    (Method::GET, "/metrics/probes", ("get", Some("metrics"), false)),
    (Method::GET, "/metrics/resource", ("get", Some("metrics"), false)),
    (Method::GET, "/logs/", ("get", Some("log"), false)),
    (Method::GET, "/logs/?query=kubelet", ("get", Some("log"), false)),
    (Method::POST, "/checkpoint/default/web/c", ("create", Some("checkpoint"), false)),
    (Method::POST, "/run/default/web/c?cmd=ls", ("create", None, true)),
    (Method::GET, "/exec/default/web/c?command=ls&output=1", ("create", None, true)),
    (Method::POST, "/exec/default/web/c?command=ls&output=1", ("create", None, true)),
    (Method::GET, "/attach/default/web/c?output=1", ("create", None, true)),
    (Method::POST, "/attach/default/web/c?output=1", ("create", None, true)),
    (Method::GET, "/portForward/default/web", ("create", None, true)),
    (Method::POST, "/portForward/default/web", ("create", None, true)),
    (Method::GET, "/spec/", ("get", None, true)),
    (Method::GET, "/debug/pprof/", ("get", None, true)),
    (Method::GET, "/explain/default/web", ("get", None, true)),
    (Method::PUT, "/pods", ("update", Some("pods"), true)),
];

/// Gives each right to a user of its own, who is called as it.
async fn grant(world: &World, rights: &BTreeSet<(&'static str, &'static str)>) {
    let client = world.admin();
    for (verb, subresource) in rights {
        let name = format!("{verb}-{subresource}");
        let rules = json!([{"apiGroups": [""], "resources": [format!("nodes/{subresource}")], "verbs": [verb]}]);
        let role: ClusterRole = serde_json::from_value(json!({"metadata": {"name": name}, "rules": rules})).unwrap();
        let group = "rbac.authorization.k8s.io";
        let binding = json!({"metadata": {"name": name}, "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "User", "name": name, "apiGroup": group}]});
        Api::all(client.clone()).create(&PostParams::default(), &role).await.unwrap();
        let binding: ClusterRoleBinding = serde_json::from_value(binding).unwrap();
        Api::all(client.clone()).create(&PostParams::default(), &binding).await.unwrap();
    }
}

#[tokio::test]
async fn each_endpoint_takes_its_own_right() {
    let world = ready_world().await;
    world.pod("web", json!({})).await;
    world.until_running("web").await;
    let verbs = ["get", "create", "update"];
    let fine = ENDPOINTS.iter().filter_map(|(_, _, (verb, fine, _))| Some((*verb, (*fine)?)));
    let rights: BTreeSet<(&str, &str)> = fine.chain(verbs.map(|verb| (verb, "proxy"))).collect();
    grant(&world, &rights).await;
    let refused = |status: u16| status == 401 || status == 403;
    for (method, path, (verb, own, by_proxy)) in &ENDPOINTS {
        let ask = async |identity: Option<(&str, &str)>| world.send(method.clone(), path, identity, None).await.0;
        assert_eq!(ask(None).await, 401, "{method} {path} without credentials");
        assert_eq!(ask(Some(("nobody", "nothing"))).await, 403, "{method} {path} without rights");
        assert!(!refused(ask(ADMIN).await), "{method} {path} with all rights");
        for (has, subresource) in &rights {
            let suffices = has == verb && (*own == Some(*subresource) || *by_proxy && *subresource == "proxy");
            let status = ask(Some((&format!("{has}-{subresource}"), "nothing"))).await;
            assert_eq!(!refused(status), suffices, "{method} {path} with {has} nodes/{subresource}: {status}");
        }
    }
    // Over WebSocket, which has no method but GET, as without it.
    let upgrade = [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("Sec-WebSocket-Protocol", "v4.channel.k8s.io"),
    ];
    for path in ["/exec/default/web/c?command=ls&output=1", "/attach/default/web/c?output=1", "/portForward/default/web"] {
        for (user, passes) in [("get-proxy", false), ("update-proxy", false), ("create-proxy", true)] {
            let (status, _) = world.send_with(Method::GET, path, Some((user, "nothing")), &upgrade).await;
            assert_eq!(!refused(status), passes, "{path} over WebSocket as {user}: {status}");
        }
    }
    let ran = world.runtime.state.lock().unwrap().execs.clone();
    assert_eq!(ran, ["ls", "ls"], "as the administrator and as `create-proxy`");
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
