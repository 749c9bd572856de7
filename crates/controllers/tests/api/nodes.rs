//! Nodes that fall silent and come back.

use std::time::{Duration, Instant};

use controllers::Timing;
use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::EndpointSlice,
};
use kube::{Api, api::ListParams};
use serde_json::json;
use test_lab::until_async;

use crate::common::{Cluster, create, deployment, object};

fn taints(node: &Node) -> Vec<String> {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let mut taints: Vec<String> = taints.map(|taint| format!("{}:{}", taint.key, taint.effect)).collect();
    taints.sort();
    taints
}

async fn ready_endpoints(slices: &Api<EndpointSlice>) -> usize {
    let slices = slices.list(&ListParams::default().labels("kubernetes.io/service-name=web")).await.unwrap().items;
    let endpoints = slices.iter().flat_map(|slice| slice.endpoints.iter().flatten());
    endpoints.filter(|one| one.conditions.as_ref().and_then(|state| state.ready) == Some(true)).count()
}

#[tokio::test]
async fn a_silent_node_is_unknown_tainted_and_without_endpoints_until_it_speaks() {
    let mut cluster = Cluster::start_with(Timing { node_grace: Duration::from_millis(2500) }).await;
    // Before the node speaks for the last time.
    let began = Instant::now();
    cluster.add_node("win01", "windows").await;
    cluster.add_node("win02", "windows").await;
    create(&cluster.api::<Service>(), &object(json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}})))
        .await;
    create(&cluster.api(), &deployment("web", 2, "microsoft/iis")).await;
    let slices = cluster.api::<EndpointSlice>();
    until_async("both pods are endpoints", async || ready_endpoints(&slices).await == 2).await;
    let nodes: Api<Node> = Api::all(cluster.admin());
    let lost = ["node.kubernetes.io/unreachable:NoExecute", "node.kubernetes.io/unreachable:NoSchedule"];
    let node = until_async("the silent node is tainted", async || {
        cluster.heartbeat("win02").await;
        let node = nodes.get("win01").await.unwrap();
        (taints(&node) == lost).then_some(node)
    })
    .await;
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(2500), "not before its grace is over: {took:?}");
    let conditions = node.status.unwrap().conditions.unwrap();
    let ready = conditions.iter().find(|one| one.type_ == "Ready").unwrap();
    assert_eq!((ready.status.as_str(), ready.reason.as_deref()), ("Unknown", Some("NodeStatusUnknown")));
    assert_eq!(taints(&nodes.get("win02").await.unwrap()), Vec::<String>::new(), "the other one speaks");
    until_async("its pod is no endpoint any more", async || ready_endpoints(&slices).await == 1).await;
    cluster.heartbeat("win01").await;
    until_async("it speaks again", async || taints(&nodes.get("win01").await.unwrap()).is_empty()).await;
    let told = cluster.events("default", "win01").await;
    assert!(told.contains(&"NodeNotReady: Node win01 status is now: NodeNotReady".to_owned()), "{told:?}");
    cluster.stop().await;
}

#[tokio::test]
async fn the_lease_alone_keeps_a_node_alive() {
    let mut cluster = Cluster::start_with(Timing { node_grace: Duration::from_millis(2500) }).await;
    cluster.add_node("win01", "windows").await;
    let nodes: Api<Node> = Api::all(cluster.admin());
    let uid = nodes.get("win01").await.unwrap().metadata.uid.unwrap();
    let client = cluster.admin();
    // A lease every second: a keeper that starts anew renews at once.
    let keeper = tokio::spawn(async move {
        loop {
            let _ = tokio::time::timeout(Duration::from_secs(1), cluster::keep_node_lease(client.clone(), "win01", &uid)).await;
        }
    });
    tokio::time::sleep(Duration::from_millis(3500)).await;
    assert_eq!(taints(&nodes.get("win01").await.unwrap()), Vec::<String>::new());
    keeper.abort();
    until_async("without it the node is lost", async || !taints(&nodes.get("win01").await.unwrap()).is_empty()).await;
    let alone = taints(&nodes.get("win01").await.unwrap());
    assert_eq!(alone, ["node.kubernetes.io/unreachable:NoSchedule"], "the last node drives nobody out");
    cluster.stop().await;
}
