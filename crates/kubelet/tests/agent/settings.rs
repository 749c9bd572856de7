//! Settings of the node.

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use crate::common::World;

#[tokio::test]
async fn a_node_that_somebody_else_makes_is_waited_for() {
    let mut world = World::new().await;
    world.registration.make = false;
    world.start_agent();
    world.eventually("the runtime is asked", async || world.runtime.state.lock().unwrap().network_ready).await;
    tokio::time::sleep(std::time::Duration::from_millis(700)).await;
    assert!(world.node().await.is_none());
    let node = serde_json::from_value(json!({"metadata": {"name": "win01", "labels": {"made": "by-hand"}}})).unwrap();
    Api::<Node>::all(world.admin()).create(&PostParams::default(), &node).await.unwrap();
    world.eventually("node Ready", async || world.node_is_ready().await).await;
    assert_eq!(world.node().await.unwrap().metadata.labels.unwrap()["made"], "by-hand");
}

#[tokio::test]
async fn the_server_of_a_node_without_debugging_shows_its_pods_and_nothing_inside_them() {
    let mut world = World::new().await;
    world.debugging = false;
    world.registration.provider_id = "cloud://zone/7".into();
    world.start_agent();
    world.eventually("node Ready", async || world.node_is_ready().await).await;
    assert_eq!(world.node().await.unwrap().spec.unwrap().provider_id.as_deref(), Some("cloud://zone/7"));
    world.pod("web", json!({})).await;
    world.until_running("web").await;
    let get = async |path: &str| world.get(path, Some(("admin", "system:masters")), None).await;
    for path in ["/containerLogs/default/web/c", "/exec/default/web/c?command=ls", "/logs/", "/configz"] {
        assert_eq!(get(path).await, (405, "Debug endpoints are disabled.\n".to_owned()), "{path}");
    }
    let (code, pods) = get("/pods").await;
    assert!(code == 200 && pods.contains("web"), "{code} {pods}");
    assert_eq!(world.get("/exec/default/web/c", None, None).await.0, 401, "who it is comes first");
}
