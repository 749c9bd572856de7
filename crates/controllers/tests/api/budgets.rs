//! Disruption budgets, and Endpoints written by hand, against the real API server.

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Endpoints, Pod, Service},
    discovery::v1::EndpointSlice,
    policy::v1::PodDisruptionBudget,
};
use kube::{
    ResourceExt,
    api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams},
};
use serde_json::json;
use test_lab::until_async;

use crate::common::{Cluster, create, deployment, object};

#[tokio::test]
async fn a_budget_lets_pods_go_one_by_one() {
    let mut cluster = Cluster::start().await;
    cluster.add_node("win01", "windows").await;
    let spec = json!({"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}});
    let budgets = cluster.api::<PodDisruptionBudget>();
    create(&budgets, &object(json!({"metadata": {"name": "web"}, "spec": spec}))).await;
    create(&cluster.api(), &deployment("web", 3, "microsoft/iis")).await;
    let allowed = async |count: i32| {
        let status = budgets.get("web").await.unwrap().status?;
        (status.expected_pods == Some(3) && status.current_healthy == Some(3) && status.disruptions_allowed == Some(count)).then_some(status)
    };
    let status = until_async("one may go", async || allowed(1).await).await;
    assert_eq!(status.desired_healthy, Some(2));
    let pods = cluster.api::<Pod>();
    let names: Vec<String> = pods.list(&ListParams::default()).await.unwrap().items.iter().map(ResourceExt::name_any).collect();
    let params = EvictParams::default();
    let results = futures::future::join_all(names.iter().map(|name| pods.evict(name, &params))).await;
    let refused = results.iter().filter(|result| matches!(result, Err(kube::Error::Api(status)) if status.code == 429)).count();
    assert_eq!((refused, results.iter().filter(|result| result.is_ok()).count()), (2, 1));
    until_async("its replacement is there", async || allowed(1).await).await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_budget_knows_how_many_pods_a_stateful_set_wants() {
    let mut cluster = Cluster::start().await;
    cluster.add_node("win01", "windows").await;
    let budgets = cluster.api::<PodDisruptionBudget>();
    let spec = json!({"minAvailable": "50%", "selector": {"matchLabels": {"app": "db"}}});
    create(&budgets, &object(json!({"metadata": {"name": "db"}, "spec": spec}))).await;
    let template = json!({"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "db", "image": "db"}]}});
    let spec = json!({"replicas": 4, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}}, "template": template});
    create(&cluster.api::<StatefulSet>(), &object(json!({"metadata": {"name": "db"}, "spec": spec}))).await;
    let settled = async |expected: i32, allowed: i32| {
        let status = budgets.get("db").await.unwrap().status.unwrap_or_default();
        (status.expected_pods, status.disruptions_allowed) == (Some(expected), Some(allowed))
    };
    until_async("half of four may go", async || settled(4, 2).await).await;
    let two = Patch::Merge(json!({"spec": {"replicas": 2}}));
    cluster.api::<StatefulSet>().patch("db", &PatchParams::default(), &two).await.unwrap();
    until_async("half of two may go", async || settled(2, 1).await).await;
    cluster.stop().await;
}

#[tokio::test]
async fn endpoints_written_by_hand_have_slices() {
    let cluster = Cluster::start().await;
    create(&cluster.api::<Service>(), &object(json!({"metadata": {"name": "db"}, "spec": {"ports": [{"port": 1433}]}}))).await;
    let subsets = json!([{"addresses": [{"ip": "10.240.0.9"}], "ports": [{"port": 1433}]}]);
    create(&cluster.api::<Endpoints>(), &object(json!({"metadata": {"name": "db"}, "subsets": subsets}))).await;
    let of_service = ListParams::default().labels("kubernetes.io/service-name=db");
    let slices = async || cluster.api::<EndpointSlice>().list(&of_service).await.unwrap().items;
    let slice = until_async("a slice mirrors them", async || slices().await.pop()).await;
    assert_eq!(slice.labels()["endpointslice.kubernetes.io/managed-by"], "endpointslicemirroring-controller.k8s.io");
    assert_eq!(slice.endpoints.unwrap()[0].addresses, ["10.240.0.9"]);
    cluster.api::<Endpoints>().delete("db", &DeleteParams::default()).await.unwrap();
    until_async("it goes with them", async || slices().await.is_empty()).await;
    cluster.stop().await;
}
