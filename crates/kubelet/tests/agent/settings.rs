//! Settings of the node.

use serde_json::json;

use crate::common::World;

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
