//! Settings of the node.

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
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

#[tokio::test]
async fn a_clouds_addresses_stay_over_a_restart_of_the_agent() {
    let mut world = World::new().await;
    world.registration.addresses = kubelet::AddressSource::Cloud { given: true };
    world.start_agent();
    world.eventually("node Ready", async || world.node_is_ready().await).await;
    let addresses = async |world: &World| {
        let all = world.node().await.unwrap().status.unwrap().addresses.unwrap_or_default();
        all.into_iter().map(|address| format!("{} {}", address.type_, address.address)).collect::<Vec<_>>()
    };
    assert_eq!(addresses(&world).await, ["InternalIP 10.240.0.12", "Hostname win01"]);
    let annotations = world.node().await.unwrap().metadata.annotations.unwrap();
    assert_eq!(annotations["alpha.kubernetes.io/provided-node-ip"], "10.240.0.12");
    let of_cloud = json!({"status": {"addresses": [{"type": "ExternalIP", "address": "203.0.113.9"}, {"$patch": "replace"}]}});
    Api::<Node>::all(world.admin()).patch_status("win01", &PatchParams::default(), &Patch::Strategic(of_cloud)).await.unwrap();
    world.stop_agent().await;
    // The next agent has something else to write: its first statuses are sent.
    world.reboot();
    world.start_agent();
    let booted = async || world.node().await.unwrap().status.unwrap().node_info.unwrap().boot_id == "boot-1";
    world.eventually("the status of the next agent", booted).await;
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    assert_eq!(addresses(&world).await, ["ExternalIP 203.0.113.9"]);
}

#[tokio::test]
async fn the_runtime_learns_the_addresses_of_pods() {
    let mut world = World::new().await;
    world.runtime.state.lock().unwrap().refuses.insert("UpdateRuntimeConfig");
    world.start_agent();
    world.eventually("node Ready", async || world.node_is_ready().await).await;
    let told = || world.runtime.state.lock().unwrap().pod_cidrs.clone();
    assert_eq!(told(), [""; 0]);
    let cidr = json!({"spec": {"podCIDR": "10.244.3.0/24", "podCIDRs": ["10.244.3.0/24"]}});
    Api::<Node>::all(world.admin()).patch("win01", &PatchParams::default(), &Patch::Merge(cidr)).await.unwrap();
    world.eventually("a second try", async || told().len() >= 2).await;
    let label = json!({"metadata": {"labels": {"more": "1"}}});
    Api::<Node>::all(world.admin()).patch("win01", &PatchParams::default(), &Patch::Merge(label)).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert_eq!(told(), ["10.244.3.0/24"; 2], "told once more after a failure, and not again");
}

#[tokio::test]
async fn a_resolvers_file_beyond_the_limits_is_told_about_the_node() {
    let mut world = World::new().await;
    let text = format!("search {}", (0..30).map(|i| format!("d{i}")).collect::<Vec<_>>().join(" "));
    world.resolver = kubelet::Resolver { file: "/etc/resolv.conf".into(), ..kubelet::Resolver::parse(&text) };
    world.start_agent();
    world.until_event("CheckLimitsForResolvConf: Resolv.conf file '/etc/resolv.conf' contains search line consisting of more than 29 domains!").await;
}
