//! The start-up taint: on the Node until everything is programmed, with the remaining time as event.

use std::time::Duration;

use hns_sim::admin::Latency;
use k8s_openapi::api::core::v1::{Event, Node, Taint};
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::json;
use service_proxy::StartupTaint;
use test_lab::in_time;

use super::world::{NODE, World};

const TAINT: &str = "mullion.io/services";

/// But for those that say how the node is.
async fn taints(world: &World) -> Vec<String> {
    let node = Api::<Node>::all(world.admin()).get(NODE).await.unwrap();
    let of_others = |taint: &Taint| !taint.key.starts_with("node.kubernetes.io/");
    node.spec.and_then(|spec| spec.taints).into_iter().flatten().filter(of_others).map(|taint| format!("{}:{}", taint.key, taint.effect)).collect()
}

#[tokio::test]
async fn startup_taint_keeps_pods_away_until_everything_is_programmed() {
    let world = World::new().await;
    let node = json!({"metadata": {"name": NODE}, "spec": {"taints": [{"key": "other", "effect": "NoSchedule"}]}});
    Api::<Node>::all(world.admin()).create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    for n in 1..=30 {
        world.create(&format!("s{n:02}"), n).await;
    }
    world.simulator.controls().latency = Latency { write_us: 15_000, ..Latency::default() };
    let mut status = world.proxy();
    let taint: StartupTaint = format!("{TAINT}:NoSchedule").parse().unwrap();
    let held = tokio::spawn(taint.clone().hold(world.link.client(), NODE.to_owned(), status.clone()));
    world.until_true("the taint", async || taints(&world).await == ["other:NoSchedule", "mullion.io/services:NoSchedule"]).await;
    // Sixty writes of 15 ms: it is said that some of them are left, and for how long.
    let estimated = status.wait_for(|status| status.eta.is_some_and(|eta| !eta.is_zero()));
    let reported = in_time("an estimate", estimated).await.unwrap().clone();
    // The rest takes as long as this test wants.
    world.simulator.controls().latency = Latency { write_us: 1_000_000, ..Latency::default() };
    assert!(reported.missing() > 0 && reported.eta.unwrap() < Duration::from_secs(600), "{reported:?}");
    assert!(world.seen().await.len() < 30 && taints(&world).await.len() == 2);
    world.simulator.controls().latency = Latency::default();
    world.until_true("all of them", async || world.seen().await.len() == 30).await;
    in_time("the taint to be taken off", held).await.unwrap();
    assert!(status.borrow().is_converged());
    assert_eq!(taints(&world).await, ["other:NoSchedule"]);
    let reasons = async || {
        let events = Api::<Event>::all(world.admin()).list(&ListParams::default()).await.unwrap();
        let ours = events.items.into_iter().filter(|event| event.involved_object.name.as_deref() == Some(NODE));
        ours.filter_map(|event| event.reason).collect::<Vec<_>>()
    };
    world.until_true("the Node's events", async || reasons().await.len() == 2).await;
    // What fails later does not bring it back, nor does a start that finds everything right leave it there.
    in_time("the end of a second hold", taint.hold(world.link.client(), NODE.to_owned(), status)).await;
    assert_eq!(taints(&world).await, ["other:NoSchedule"]);
}
