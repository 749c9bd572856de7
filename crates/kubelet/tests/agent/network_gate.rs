//! No program of a pod runs before the pod's network is as it has to be.

use std::sync::{Arc, Mutex};

use serde_json::json;
use tokio::sync::watch;

use crate::common::World;

#[tokio::test]
async fn containers_start_when_the_pods_network_policies_hold() {
    let mut world = World::new().await;
    let (open, opened) = watch::channel(false);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = asked.clone();
    world.network_gate = Some(Arc::new(move |pod, ips| {
        seen.lock().unwrap().push((pod.to_string(), ips));
        let mut opened = opened.clone();
        Box::pin(async move { drop(opened.wait_for(|open| *open).await) })
    }));
    world.start_agent();
    world.eventually("node Ready", async || world.node_is_ready().await).await;
    world.pod("closed", json!({})).await;
    world.eventually("the question", async || !asked.lock().unwrap().is_empty()).await;
    let ip = world.runtime.state.lock().unwrap().sandboxes.values().next().unwrap().ip.parse().unwrap();
    assert_eq!(asked.lock().unwrap()[0], ("default/closed".to_owned(), vec![ip]));
    assert!(world.runtime.state.lock().unwrap().containers.is_empty(), "no container before the answer");
    open.send_replace(true);
    world.until_running("closed").await;
    // Pods of the host's network have no policies.
    open.send_replace(false);
    let before = asked.lock().unwrap().len();
    world.pod("host", json!({"hostNetwork": true})).await;
    world.until_running("host").await;
    assert_eq!(asked.lock().unwrap().len(), before);
}
