//! Static pods: they run without an API server, and mirror pods show them in one.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::api::DeleteParams;
use kubelet::StaticPods;
use serde_json::{Value, json};

use crate::common::World;

const MIRROR: &str = "kubernetes.io/config.mirror";

fn manifest(image: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {"terminationGracePeriodSeconds": 3,
        "containers": [{"name": "c", "image": image}]}})
}

fn manifests(world: &World) -> PathBuf {
    world.drive().join("etc/kubernetes/manifests")
}

fn write(world: &World, name: &str, manifest: &Value) {
    // As tools do: a whole file in one step.
    let hidden = manifests(world).join(format!(".{name}"));
    std::fs::write(&hidden, manifest.to_string()).unwrap();
    std::fs::rename(hidden, manifests(world).join(name)).unwrap();
}

async fn world() -> World {
    let mut world = World::new().await;
    std::fs::create_dir_all(manifests(&world)).unwrap();
    let often = Duration::from_millis(50);
    world.static_pods = StaticPods { path: "/etc/kubernetes/manifests".into(), file_check: often, http_check: often, ..StaticPods::default() };
    world
}

/// Images of running containers.
fn running(world: &World) -> Vec<String> {
    let state = world.runtime.state.lock().unwrap();
    let all = state.containers.values().filter(|c| c.state == cri::v1::ContainerState::ContainerRunning);
    all.map(|c| c.config.image.clone().unwrap_or_default().user_specified_image).collect()
}

/// Which run of container `c` is the newest, and its log.
fn last_log(world: &World) -> (u32, PathBuf) {
    let state = world.runtime.state.lock().unwrap();
    let container = state.named("c").pop().unwrap();
    let dir = world.runtime.path(&state.sandboxes[&container.sandbox].config.log_directory);
    (container.config.metadata.unwrap().attempt, dir.join(container.config.log_path))
}

async fn mirror(world: &World) -> Value {
    let pod = world.pods().get_opt("web-win01").await.unwrap();
    pod.map(|pod| serde_json::to_value(pod).unwrap()).unwrap_or_default()
}

async fn until_shown(world: &World, image: &str) -> Value {
    world
        .eventually("a mirror that is Running", async || {
            let pod = mirror(world).await;
            pod["spec"]["containers"][0]["image"] == image
                && pod["status"]["phase"] == "Running"
                && pod["status"]["containerStatuses"][0]["ready"] == true
        })
        .await;
    mirror(world).await
}

#[tokio::test]
async fn a_static_pod_runs_without_an_api_server_and_is_shown_when_there_is_one() {
    let mut world = world().await;
    write(&world, "web.yaml", &manifest("serve:1"));
    world.link.cut(true);
    world.start_agent();
    world.eventually("the container", async || running(&world) == ["serve:1"]).await;
    assert!(world.node().await.is_none());
    world.link.cut(false);
    let shown = until_shown(&world, "serve:1").await;
    let meta = &shown["metadata"];
    let node = world.node().await.unwrap().metadata.uid.unwrap();
    assert_eq!(meta["ownerReferences"], json!([{"apiVersion": "v1", "kind": "Node", "name": "win01", "uid": node, "controller": true}]));
    assert_eq!(
        (&meta["annotations"][MIRROR], &meta["annotations"]["kubernetes.io/config.source"]),
        (&meta["annotations"]["kubernetes.io/config.hash"], &json!("file"))
    );
    assert_eq!(shown["status"]["podIP"], "192.168.1.10");
    assert_eq!(running(&world), ["serve:1"], "the mirror is no pod of its own");

    // Deleting the mirror does nothing to the pod.
    let before = meta["uid"].clone();
    world.pods().delete("web-win01", &DeleteParams::default()).await.unwrap();
    world.eventually("another mirror", async || !mirror(&world).await.is_null() && mirror(&world).await["metadata"]["uid"] != before).await;
    let again = until_shown(&world, "serve:1").await;
    assert_eq!(again["status"]["containerStatuses"][0]["containerID"], shown["status"]["containerStatuses"][0]["containerID"]);

    // The log and the list of the node's pods are those of the static pod.
    let get = async |path: &str| world.get(path, Some(("admin", "system:masters")), None).await;
    let (code, log) = get("/containerLogs/default/web-win01/c").await;
    assert_eq!(code, 200, "{log}");
    let (_, pods) = get("/pods").await;
    let pods: Value = serde_json::from_str(&pods).unwrap();
    assert_eq!(pods["items"].as_array().unwrap().len(), 1);
    assert_eq!((&pods["items"][0]["metadata"]["uid"], &pods["items"][0]["status"]["phase"]), (&meta["annotations"][MIRROR], &json!("Running")));

    // A restarted agent adopts it.
    world.stop_agent().await;
    world.start_agent();
    world.eventually("node Ready", async || world.node_is_ready().await).await;
    let adopted = until_shown(&world, "serve:1").await;
    assert_eq!(adopted["metadata"]["uid"], again["metadata"]["uid"]);
    assert_eq!(adopted["status"]["startTime"], again["status"]["startTime"]);
    assert_eq!(world.runtime.state.lock().unwrap().containers.len(), 1);
}

#[tokio::test]
async fn a_static_pod_of_which_only_logs_are_left_writes_into_none_of_them() {
    let mut world = world().await;
    write(&world, "web.yaml", &manifest("serve:1"));
    world.link.cut(true);
    world.start_agent();
    world.eventually("the container", async || running(&world) == ["serve:1"]).await;
    let (attempt, first) = last_log(&world);
    assert!(attempt == 0 && first.ends_with("c/0.log"), "{}", first.display());
    std::fs::write(&first, "first").unwrap();
    world.stop_agent().await;
    {
        let mut state = world.runtime.state.lock().unwrap();
        state.containers.clear();
        state.sandboxes.clear();
    }
    world.start_agent();
    world.eventually("the container", async || running(&world) == ["serve:1"]).await;
    let (attempt, second) = last_log(&world);
    assert_eq!((attempt, second), (1, first.with_file_name("1.log")));
    assert_eq!(std::fs::read_to_string(&first).unwrap(), "first");
}

#[tokio::test]
async fn pods_follow_their_manifests() {
    let mut world = world().await;
    world.start_agent();
    write(&world, "web.yaml", &manifest("serve:1"));
    let first = until_shown(&world, "serve:1").await;
    write(&world, "web.yaml", &manifest("serve:2"));
    let second = until_shown(&world, "serve:2").await;
    assert_ne!(first["metadata"]["annotations"][MIRROR], second["metadata"]["annotations"][MIRROR]);
    world.eventually("the old pod gone", async || running(&world) == ["serve:2"]).await;
    assert_eq!(world.runtime.state.lock().unwrap().sandboxes.len(), 1);

    // What cannot be read changes nothing, and is named.
    write(&world, "other.yaml", &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "o"}, "spec": {"containers": [{"name": "c"}]}}));
    write(
        &world,
        "web.yaml",
        &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {"containers": [], "serviceAccountName": 5}}),
    );
    world.until_event(r"InvalidStaticPod: C:\etc\kubernetes\manifests\other.yaml: spec.containers[0].image: an image is needed").await;
    world
        .eventually("the event", async || {
            world
                .events()
                .await
                .iter()
                .any(|e| e.starts_with(r"InvalidStaticPod: C:\etc\kubernetes\manifests\web.yaml: spec.serviceAccountName: invalid type"))
        })
        .await;
    assert_eq!(running(&world), ["serve:2"]);

    std::fs::remove_file(manifests(&world).join("web.yaml")).unwrap();
    world.eventually("the mirror gone", async || mirror(&world).await.is_null()).await;
    assert!(world.runtime.state.lock().unwrap().sandboxes.is_empty(), "it goes when the pod has ended");
    world.until_event("Killing: Stopping container c").await;
}

#[tokio::test]
async fn a_web_server_gives_static_pods() {
    let mut world = world().await;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    world.static_pods = StaticPods {
        url: format!("http://{}/pods?node=win01", listener.local_addr().unwrap()),
        headers: vec![("X-Place".into(), "rack 7".into())],
        path: String::new(),
        ..world.static_pods.clone()
    };
    let answer = Arc::new(Mutex::new((200, manifest("serve:1").to_string())));
    let asked = Arc::new(Mutex::new(String::new()));
    let (given, seen) = (answer.clone(), asked.clone());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = [0; 4096];
            let length = stream.read(&mut request).unwrap();
            *seen.lock().unwrap() = String::from_utf8_lossy(&request[..length]).into_owned();
            let (code, body) = given.lock().unwrap().clone();
            let _ = write!(stream, "HTTP/1.1 {code} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
        }
    });
    world.start_agent();
    let shown = until_shown(&world, "serve:1").await;
    assert_eq!(shown["metadata"]["annotations"]["kubernetes.io/config.source"], "http");
    let request = asked.lock().unwrap().to_lowercase();
    assert!(request.starts_with("get /pods?node=win01 http/1.1\r\n") && request.contains("x-place: rack 7\r\n"), "{request}");

    // A server in trouble changes nothing.
    *answer.lock().unwrap() = (500, String::new());
    world.eventually("the event", async || world.events().await.iter().any(|e| e.contains("the web server answered 500"))).await;
    assert_eq!(running(&world), ["serve:1"]);
    *answer.lock().unwrap() = (200, json!({"apiVersion": "v1", "kind": "PodList", "items": []}).to_string());
    world.eventually("the mirror gone", async || mirror(&world).await.is_null() && running(&world).is_empty()).await;
}

#[tokio::test]
async fn a_static_pod_that_ended_with_its_machine_runs_again_with_it() {
    let mut world = world().await;
    world.shutdown = kubelet::ShutdownPeriod::of(Duration::from_secs(20), Duration::from_secs(10));
    write(&world, "web.json", &manifest("serve:1"));
    world.start_agent();
    until_shown(&world, "serve:1").await;
    let released = crate::shutdown::announce(&world, "shutdown");
    assert!(test_lab::in_time("the machine is let go", released).await.is_err());
    assert_eq!(running(&world), [""; 0]);
    world.eventually("a mirror that says so", async || mirror(&world).await["status"]["reason"] == "Terminated").await;
    world.stop_agent().await;
    world.reboot();
    world.start_agent();
    until_shown(&world, "serve:1").await;
    assert_eq!(running(&world), ["serve:1"]);
}
