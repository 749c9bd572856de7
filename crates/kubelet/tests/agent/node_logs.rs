//! Logs of the node, and checkpoints, over the agent's server.

use serde_json::json;

use crate::common::World;
use crate::started;

const ADMIN: Option<(&str, &str)> = Some(("admin", "system:masters"));

fn write_logs(world: &World) {
    let log = world.drive().join("var/log");
    std::fs::create_dir_all(log.join("kube proxy")).unwrap();
    std::fs::write(log.join("syslog"), "one\ntwo\n").unwrap();
    std::fs::write(log.join("kube proxy/a<b.log"), "three\n").unwrap();
    std::fs::create_dir(log.join("docker")).unwrap();
    std::fs::write(log.join("docker/docker.log"), "four\n").unwrap();
    std::fs::write(world.drive().join("secret"), "s").unwrap();
    std::os::unix::fs::symlink("../../secret", log.join("link")).unwrap();
}

#[tokio::test]
async fn files_are_served_beneath_the_directory_of_logs_and_through_no_link() {
    let mut world = World::new().await;
    world.system_logs.queries = false;
    world.os = host::NodeOs::Linux;
    std::fs::create_dir_all(world.drive().join("etc")).unwrap();
    let world = started(world).await;
    write_logs(&world);
    let get = async |path: &str| world.get(path, ADMIN, None).await;
    assert_eq!(get("/logs/syslog").await, (200, "one\ntwo\n".into()));
    assert_eq!(get("/logs/syslog?query=docker").await, (200, "one\ntwo\n".into()), "queries are off");
    assert_eq!(get("/logs/kube%20proxy/a%3Cb.log").await, (200, "three\n".into()));
    let (code, page) = get("/logs/").await;
    assert!(
        code == 200 && page.contains("<a href=\"kube%20proxy/\">kube proxy/</a>\n") && page.contains("<a href=\"syslog\">syslog</a>\n"),
        "{page}"
    );
    assert!(get("/logs/kube%20proxy/").await.1.contains(">a&lt;b.log</a>"));
    assert_eq!((get("/logs/docker").await.0, get("/logs/syslog/").await.0), (301, 301));
    for wrong in ["/logs/link", "/logs/none", "/logs/../../secret", "/logs/%2e%2e/%2e%2e/secret", "/logs/docker/../../../secret"] {
        assert_eq!(get(wrong).await.0, 404, "{wrong}");
    }
    let (code, _) = world.get("/logs/syslog", Some(("somebody", "system:authenticated")), None).await;
    assert_eq!(code, 403);
}

#[tokio::test]
async fn services_without_a_log_of_the_system_have_files() {
    let world = started(World::new().await).await;
    write_logs(&world);
    let get = async |path: &str| world.get(path, ADMIN, None).await;
    assert_eq!(get("/logs/?query=docker").await, (200, "four\n".into()));
    assert_eq!(get("/logs/?query=docker&query=none&query=syslog").await, (200, "four\n\nlog not found for none\none\ntwo\n".into()));
    assert_eq!(get("/logs/?query=/syslog").await, (200, "one\ntwo\n".into()));
    assert_eq!(get("/logs/?query=link").await.1.lines().last().unwrap().split(':').next(), Some("error getting log for link"));
    let why = "\noptions present and query resolved to log files for [docker]\ntry without specifying options\n";
    assert_eq!(get("/logs/?query=docker&tailLines=1").await, (200, why.into()));
    assert_eq!(get("/logs/?query=docker&boot=0").await, (406, "boot: Invalid value: 0: not supported on Windows\n".into()));
    assert_eq!(get("/logs/?query=docker&tailLines=x").await.0, 400);
    assert_eq!(get("/logs/syslog").await, (200, "one\ntwo\n".into()));
}

#[tokio::test]
async fn logs_can_be_switched_off() {
    let mut world = World::new().await;
    world.system_logs.files = false;
    let world = started(world).await;
    assert_eq!(world.get("/logs/syslog", ADMIN, None).await, (405, "logs endpoint is disabled.\n".into()));
}

#[tokio::test]
async fn checkpoints_are_refused_with_the_reason() {
    let world = started(World::new().await).await;
    world.pod("one", json!({})).await;
    world.until_running("one").await;
    let post = async |path: &str| world.send(http::Method::POST, path, ADMIN, None).await;
    let why =
        "checkpointing of default/one/c failed (this node agent makes no checkpoints, as upstream's without the feature gate ContainerCheckpoint)";
    assert_eq!(post("/checkpoint/default/one/c").await, (404, why.into()));
    assert_eq!(post("/checkpoint/default/one/x").await, (404, "container x does not exist".into()));
    assert_eq!(post("/checkpoint/default/two/c").await, (404, "pod does not exist".into()));
    assert_eq!(post("/checkpoint/default/one").await.0, 404);
    let refused = world.send(http::Method::POST, "/checkpoint/default/one/c", Some(("somebody", "system:authenticated")), None).await;
    assert_eq!(refused.0, 403);
}
