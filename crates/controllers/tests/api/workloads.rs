//! Deployments, ReplicaSets, scheduling and EndpointSlices against the real API server.

use crate::common::{Cluster, create, deployment, object};
use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    core::v1::{ConfigMap, Endpoints, Node, Pod, Service, ServiceAccount},
    discovery::v1::EndpointSlice,
    scheduling::v1::PriorityClass,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::json;
use std::time::Instant;
use test_lab::until_async;

async fn available(cluster: &Cluster, name: &str, replicas: i32) -> Option<Deployment> {
    let found = cluster.api::<Deployment>().get(name).await.unwrap();
    let status = found.status.clone()?;
    let settled = status.observed_generation == found.metadata.generation
        && status.replicas.unwrap_or_default() == replicas
        && status.updated_replicas.unwrap_or_default() == replicas
        && status.available_replicas.unwrap_or_default() == replicas;
    settled.then_some(found)
}

async fn ready_endpoints(cluster: &Cluster, service: &str) -> usize {
    let of_service = ListParams::default().labels(&format!("kubernetes.io/service-name={service}"));
    let slices = cluster.api::<EndpointSlice>().list(&of_service).await.unwrap().items;
    let endpoints = slices.iter().flat_map(|slice| slice.endpoints.iter().flatten());
    endpoints.filter(|one| one.conditions.as_ref().and_then(|state| state.ready) == Some(true)).count()
}

#[tokio::test]
async fn a_deployment_from_apply_to_endpoints_and_back() {
    let mut cluster = Cluster::start().await;
    for (name, os) in [("lin01", "linux"), ("win01", "windows"), ("win02", "windows")] {
        cluster.add_node(name, os).await;
    }
    // All four would be on the first of them.
    for node in ["win01", "win02"] {
        cluster.until_scheduled_to(node).await;
    }
    let service: Service =
        object(json!({"metadata": {"name": "iis"}, "spec": {"selector": {"app": "iis"}, "ports": [{"port": 80, "targetPort": "http"}]}}));
    create(&cluster.api(), &service).await;
    create(&cluster.api(), &deployment("iis", 4, "microsoft/iis")).await;
    let began = Instant::now();
    until_async("four ready endpoints", async || ready_endpoints(&cluster, "iis").await == 4).await;
    let took = began.elapsed();
    println!("apply to four ready endpoints: {took:?}");
    until_async("the Deployment is available", async || available(&cluster, "iis", 4).await).await;
    let pods = cluster.api::<Pod>().list(&ListParams::default()).await.unwrap().items;
    let on = |node: &str| pods.iter().filter(|pod| pod.spec.as_ref().unwrap().node_name.as_deref() == Some(node)).count();
    assert_eq!((on("win01"), on("win02")), (2, 2), "replicas are spread over the Windows nodes");
    until_async("the old Endpoints say the same", async || {
        let subsets = cluster.api::<Endpoints>().get("iis").await.unwrap().subsets?;
        (subsets[0].addresses.as_ref()?.len() == 4).then_some(())
    })
    .await;

    let scale = Patch::Merge(json!({"spec": {"replicas": 0}}));
    cluster.api::<Deployment>().patch("iis", &PatchParams::default(), &scale).await.unwrap();
    until_async("no pod is left", async || cluster.api::<Pod>().list(&ListParams::default()).await.unwrap().items.is_empty()).await;
    until_async("no endpoint is left", async || ready_endpoints(&cluster, "iis").await == 0).await;
    let set = cluster.api::<ReplicaSet>().list(&ListParams::default()).await.unwrap().items.remove(0).metadata.name.unwrap();
    for (way, from, to) in [("up", 0, 4), ("down", 4, 0)] {
        let expected = format!("ScalingReplicaSet: Scaled {way} replica set {set} from {from} to {to}");
        until_async(&expected, async || cluster.events("default", "iis").await.contains(&expected)).await;
    }
    cluster.api::<Service>().delete("iis", &DeleteParams::default()).await.unwrap();
    until_async("the old Endpoints go with the Service", async || cluster.api::<Endpoints>().get_opt("iis").await.unwrap().is_none()).await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_rolling_update_ends_with_the_new_template_alone() {
    let mut cluster = Cluster::start().await;
    cluster.add_node("win01", "windows").await;
    create(&cluster.api(), &deployment("web", 3, "microsoft/iis:1")).await;
    until_async("the first rollout", async || available(&cluster, "web", 3).await).await;
    let image = json!({"spec": {"template": {"spec": {"containers": [{"name": "web", "image": "microsoft/iis:2"}]}}}});
    cluster.api::<Deployment>().patch("web", &PatchParams::default(), &Patch::Strategic(image)).await.unwrap();
    let found = until_async("the second rollout", async || available(&cluster, "web", 3).await).await;
    assert_eq!(found.metadata.annotations.unwrap()["deployment.kubernetes.io/revision"], "2");
    let pods = until_async("the old pods are gone", async || {
        let pods = cluster.api::<Pod>().list(&ListParams::default()).await.unwrap().items;
        (pods.len() == 3).then_some(pods)
    })
    .await;
    assert!(pods.iter().all(|pod| pod.spec.as_ref().unwrap().containers[0].image.as_deref() == Some("microsoft/iis:2")));
    assert_eq!(cluster.api::<ReplicaSet>().list(&ListParams::default()).await.unwrap().items.len(), 2);
    cluster.stop().await;
}

#[tokio::test]
async fn orphans_are_adopted_and_strangers_released() {
    let mut cluster = Cluster::start().await;
    cluster.add_node("win01", "windows").await;
    create(&cluster.api(), &deployment("web", 2, "microsoft/iis")).await;
    until_async("two pods", async || available(&cluster, "web", 2).await).await;
    let pods = cluster.api::<Pod>();
    let name = pods.list(&ListParams::default()).await.unwrap().items[0].metadata.name.clone().unwrap();
    pods.patch(&name, &PatchParams::default(), &Patch::Merge(json!({"metadata": {"labels": {"app": "other"}}}))).await.unwrap();
    until_async("the stranger is released and replaced", async || {
        let all = pods.list(&ListParams::default()).await.unwrap().items;
        let free = all.iter().filter(|pod| pod.metadata.owner_references.as_deref().unwrap_or_default().is_empty()).count();
        all.len() == 3 && free == 1
    })
    .await;
    pods.patch(&name, &PatchParams::default(), &Patch::Merge(json!({"metadata": {"labels": {"app": "web"}}}))).await.unwrap();
    until_async("it is adopted again, and one pod goes", async || {
        let all = pods.list(&ListParams::default()).await.unwrap().items;
        all.len() == 2 && all.iter().all(|pod| pod.metadata.owner_references.is_some())
    })
    .await;
    cluster.stop().await;
}

#[tokio::test]
async fn an_impossible_pod_waits_and_says_why() {
    let mut cluster = Cluster::start().await;
    let pod: Pod =
        object(json!({"metadata": {"name": "lost"}, "spec": {"nodeSelector": {"gpu": "yes"}, "containers": [{"name": "web", "image": "iis"}]}}));
    let pods = cluster.api::<Pod>();
    until_async("the namespace is ready for pods", async || cluster.api::<ServiceAccount>().get_opt("default").await.unwrap()).await;
    create(&pods, &pod).await;
    cluster.add_node("win01", "windows").await;
    let why = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. no new claims to deallocate, \
               preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
    until_async("the reason is written", async || {
        let found = pods.get("lost").await.unwrap().status?.conditions?;
        found.into_iter().find(|one| one.type_ == "PodScheduled" && one.status == "False" && one.message.as_deref() == Some(why))
    })
    .await;
    until_async("the reason is an event", async || cluster.events("default", "lost").await.contains(&format!("FailedScheduling: {why}"))).await;
    let nodes: Api<Node> = Api::all(cluster.admin());
    nodes.patch("win01", &PatchParams::default(), &Patch::Merge(json!({"metadata": {"labels": {"gpu": "yes"}}}))).await.unwrap();
    until_async("it runs once a node fits", async || pods.get("lost").await.unwrap().spec.unwrap().node_name).await;
    let placed = "Scheduled: Successfully assigned default/lost to win01".to_owned();
    until_async("its place is an event", async || cluster.events("default", "lost").await.contains(&placed)).await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_hundred_pods_are_scheduled_in_well_under_a_second() {
    let mut cluster = Cluster::start().await;
    for name in ["win01", "win02", "win03"] {
        cluster.add_node(name, "windows").await;
    }
    create(&cluster.api(), &deployment("many", 100, "microsoft/iis")).await;
    let began = Instant::now();
    until_async("a hundred pods are bound", async || {
        let pods = cluster.api::<Pod>().list(&ListParams::default()).await.unwrap().items;
        pods.iter().filter(|pod| pod.spec.as_ref().unwrap().node_name.is_some()).count() == 100
    })
    .await;
    let took = began.elapsed();
    println!("a hundred pods bound: {took:?}");
    until_async("a hundred pods are available", async || available(&cluster, "many", 100).await).await;
    let made = cluster.api::<Pod>().list(&ListParams::default()).await.unwrap().items.len();
    assert_eq!(made, 100, "never one too many");
    cluster.stop().await;
}

#[tokio::test]
async fn nodes_get_ranges_and_namespaces_what_pods_need() {
    let mut cluster = Cluster::start().await;
    cluster.add_node("win01", "windows").await;
    cluster.add_node("win02", "windows").await;
    let nodes: Api<Node> = Api::all(cluster.admin());
    let ranges = until_async("both nodes have a range", async || {
        let all = nodes.list(&ListParams::default()).await.unwrap().items;
        let ranges: Vec<_> = all.into_iter().filter_map(|node| node.spec?.pod_cidr).collect();
        (ranges.len() == 2).then_some(ranges)
    })
    .await;
    assert_eq!(ranges, ["192.168.0.0/24", "192.168.1.0/24"]);
    until_async("the ServiceAccount", async || cluster.api::<ServiceAccount>().get_opt("default").await.unwrap()).await;
    let maps = cluster.api::<ConfigMap>();
    let map = until_async("the authority", async || maps.get_opt("kube-root-ca.crt").await.unwrap()).await;
    assert!(map.data.unwrap()["ca.crt"].starts_with("-----BEGIN"));
    maps.delete("kube-root-ca.crt", &DeleteParams::default()).await.unwrap();
    until_async("the authority again", async || maps.get_opt("kube-root-ca.crt").await.unwrap()).await;
    cluster.stop().await;
}

#[tokio::test]
async fn controllers_that_are_killed_again_and_again_still_get_it_right() {
    let mut cluster = Cluster::start().await;
    cluster.add_node("win01", "windows").await;
    cluster.add_node("win02", "windows").await;
    create(&cluster.api(), &deployment("web", 20, "microsoft/iis:1")).await;
    for round in 2..6 {
        // A different moment each time.
        tokio::time::sleep(std::time::Duration::from_millis(15 * round)).await;
        cluster.kill_control().await;
        // Those on their way out do not count, as upstream has it.
        let pods = cluster.api::<Pod>().list(&ListParams::default()).await.unwrap().items;
        let made = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).count();
        assert!(made <= 25, "never more pods than replicas and surge: {made}");
        let image = json!({"spec": {"template": {"spec": {"containers": [{"name": "web", "image": format!("microsoft/iis:{round}")}]}}}});
        cluster.api::<Deployment>().patch("web", &PatchParams::default(), &Patch::Strategic(image)).await.unwrap();
        cluster.start_control();
    }
    until_async("the last rollout", async || available(&cluster, "web", 20).await).await;
    let pods = until_async("the old pods are gone", async || {
        let pods = cluster.api::<Pod>().list(&ListParams::default()).await.unwrap().items;
        (pods.len() == 20).then_some(pods)
    })
    .await;
    assert!(pods.iter().all(|pod| pod.spec.as_ref().unwrap().containers[0].image.as_deref() == Some("microsoft/iis:5")));
    cluster.stop().await;
}

#[tokio::test]
async fn the_more_important_pod_gets_the_place() {
    let mut cluster = Cluster::start().await;
    cluster.add_node("win01", "windows").await;
    let classes: Api<PriorityClass> = Api::all(cluster.admin());
    create(&classes, &object(json!({"metadata": {"name": "urgent"}, "value": 1000}))).await;
    let pod = |name: &str, class: &str| -> Pod {
        let resources = json!({"requests": {"cpu": "4"}});
        let spec = json!({"containers": [{"name": "web", "image": "microsoft/iis", "resources": resources}], "priorityClassName": class});
        object(json!({"metadata": {"name": name}, "spec": spec}))
    };
    let pods = cluster.api::<Pod>();
    for name in ["one", "two"] {
        create(&pods, &pod(name, "")).await;
    }
    let placed = async |name: &str| pods.get_opt(name).await.unwrap()?.spec?.node_name;
    until_async("both have a place", async || placed("one").await.and(placed("two").await)).await;
    create(&pods, &pod("three", "")).await;
    let full = "FailedScheduling: 0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, \
                preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.";
    until_async("equals wait", async || cluster.events("default", "three").await.iter().any(|event| event == full)).await;
    create(&pods, &pod("first", "urgent")).await;
    until_async("the important one has a place", async || placed("first").await).await;
    let left = pods.list(&ListParams::default()).await.unwrap().items.len();
    assert_eq!(left, 3, "one made room");
    let uid = pods.get("first").await.unwrap().metadata.uid.unwrap();
    let told = format!("Preempted: Preempted by pod {uid} on node win01");
    until_async("the one that went was told why", async || {
        let events = [cluster.events("default", "one").await, cluster.events("default", "two").await].concat();
        events.contains(&told)
    })
    .await;
    assert_eq!(placed("three").await, None);
    cluster.stop().await;
}

#[tokio::test]
async fn a_gated_pod_waits_until_its_gates_are_gone() {
    let mut cluster = Cluster::start().await;
    cluster.add_node("win01", "windows").await;
    let zone = "topology.kubernetes.io/zone";
    let nodes: Api<Node> = Api::all(cluster.admin());
    nodes.patch("win01", &PatchParams::default(), &Patch::Merge(json!({"metadata": {"labels": {zone: "east"}}}))).await.unwrap();
    let pods = cluster.api::<Pod>();
    let spec = json!({"containers": [{"name": "web", "image": "microsoft/iis"}], "schedulingGates": [{"name": "example.com/wait"}]});
    create(&pods, &object(json!({"metadata": {"name": "gated"}, "spec": spec}))).await;
    let scheduled = async || {
        let pod = pods.get("gated").await.unwrap();
        let condition = pod.status?.conditions?.into_iter().find(|condition| condition.type_ == "PodScheduled")?;
        Some((condition.status, condition.reason.unwrap_or_default(), pod.spec?.node_name.unwrap_or_default()))
    };
    assert_eq!(scheduled().await, Some(("False".into(), "SchedulingGated".into(), String::new())));
    let other: Pod = object(json!({"metadata": {"name": "other"}, "spec": {"containers": [{"name": "web", "image": "microsoft/iis"}]}}));
    create(&pods, &other).await;
    until_async("a later pod has a node", async || pods.get("other").await.unwrap().spec.unwrap().node_name).await;
    assert_eq!(scheduled().await, Some(("False".into(), "SchedulingGated".into(), String::new())), "the gated one is left alone");
    assert!(cluster.events("default", "gated").await.is_empty());
    let open = Patch::Merge(json!({"spec": {"schedulingGates": null}}));
    pods.patch("gated", &PatchParams::default(), &open).await.unwrap();
    until_async("it has a node", async || scheduled().await.is_some_and(|(status, _, node)| status == "True" && node == "win01")).await;
    assert_eq!(pods.get("gated").await.unwrap().labels()[zone], "east", "a bound pod has its node's zone");
    cluster.stop().await;
}
