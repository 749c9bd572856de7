//! Disruption budgets, and Endpoints written by hand, against the real API server.

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Endpoints, Pod, Service},
    discovery::v1::EndpointSlice,
    policy::v1::PodDisruptionBudget,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, EvictParams, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
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
async fn a_budget_asks_any_controller_that_can_be_scaled() {
    let mut cluster = Cluster::start().await;
    cluster.add_node("win01", "windows").await;
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let scale = json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"});
    let version = json!({
        "name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}, "subresources": {"scale": scale},
    });
    let names = json!({"plural": "databases", "singular": "database", "kind": "Database"});
    let definition = json!({"metadata": {"name": "databases.example.com"}, "spec": {
        "group": "example.com", "scope": "Namespaced", "names": names, "versions": [version],
    }});
    create(&Api::<CustomResourceDefinition>::all(cluster.admin()), &object(definition)).await;
    let kind = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("example.com", "v1", "Database"), "databases");
    let databases: Api<DynamicObject> = Api::namespaced_with(cluster.admin(), "default", &kind);
    let database: DynamicObject = object(json!({
        "apiVersion": "example.com/v1", "kind": "Database", "metadata": {"name": "db"}, "spec": {"replicas": 4},
    }));
    let made = until_async("the kind is served", async || databases.create(&PostParams::default(), &database).await.ok()).await;
    let owner = json!({"apiVersion": "example.com/v1", "kind": "Database", "name": "db", "uid": made.metadata.uid, "controller": true});
    for name in ["db-0", "db-1", "db-2"] {
        let metadata = json!({"name": name, "labels": {"app": "db"}, "ownerReferences": [owner]});
        create(&cluster.api::<Pod>(), &object(json!({"metadata": metadata, "spec": {"containers": [{"name": "db", "image": "db"}]}}))).await;
    }
    let spec = json!({"maxUnavailable": 2, "selector": {"matchLabels": {"app": "db"}}});
    let budgets = cluster.api::<PodDisruptionBudget>();
    create(&budgets, &object(json!({"metadata": {"name": "db"}, "spec": spec}))).await;
    until_async("one of three may go where four are wanted", async || {
        let status = budgets.get("db").await.unwrap().status.unwrap_or_default();
        (status.expected_pods, status.desired_healthy, status.disruptions_allowed) == (Some(4), Some(2), Some(1))
    })
    .await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_pod_that_was_to_be_disrupted_and_was_not_says_so() {
    let mut cluster = Cluster::start().await;
    cluster.add_node("win01", "windows").await;
    let pods = cluster.api::<Pod>();
    for (name, minutes) in [("stale", 3), ("fresh", 0)] {
        create(&pods, &object(json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "web", "image": "web"}]}}))).await;
        let at = jiff::Timestamp::now() - jiff::SignedDuration::from_mins(minutes);
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting",
            "lastTransitionTime": at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        });
        let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
        pods.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }
    let target = async |name: &str| {
        let conditions = pods.get(name).await.unwrap().status.unwrap().conditions.unwrap_or_default();
        conditions.into_iter().find(|one| one.type_ == "DisruptionTarget").map(|one| (one.status, one.reason))
    };
    until_async("the old one is taken back", async || target("stale").await == Some(("False".into(), None))).await;
    assert_eq!(target("fresh").await, Some(("True".into(), Some("EvictionByEvictionAPI".into()))));
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
