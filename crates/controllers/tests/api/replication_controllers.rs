//! ReplicationControllers against the real API server.

use k8s_openapi::api::core::v1::{Pod, ReplicationController};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::json;
use test_lab::until_async;

use crate::common::{Cluster, create, object};

#[tokio::test]
async fn the_number_of_pods_is_kept() {
    let mut cluster = Cluster::start().await;
    cluster.add_node("win01", "windows").await;
    let controller: ReplicationController = object(json!({
        "metadata": {"name": "old"},
        "spec": {
            "replicas": 2,
            "selector": {"app": "old"},
            "template": {"metadata": {"labels": {"app": "old"}}, "spec": {"containers": [{"name": "web", "image": "iis"}]}},
        },
    }));
    create(&cluster.api(), &controller).await;
    let ready = async |count: i32| {
        let status = cluster.api::<ReplicationController>().get("old").await.unwrap().status.unwrap_or_default();
        status.replicas == count && status.available_replicas.unwrap_or_default() == count
    };
    until_async("two pods", async || ready(2).await).await;
    let pods = async || cluster.api::<Pod>().list(&ListParams::default()).await.unwrap().items;
    let owner = pods().await[0].owner_references()[0].clone();
    assert_eq!((owner.api_version.as_str(), owner.kind.as_str(), owner.controller), ("v1", "ReplicationController", Some(true)));
    let lost = pods().await[0].name_any();
    cluster.api::<Pod>().delete(&lost, &DeleteParams::default()).await.unwrap();
    until_async("a lost pod is replaced", async || {
        let pods = pods().await;
        pods.len() == 2 && pods.iter().all(|pod| pod.name_any() != lost)
    })
    .await;
    let none = Patch::Merge(json!({"spec": {"replicas": 0}}));
    cluster.api::<ReplicationController>().patch("old", &PatchParams::default(), &none).await.unwrap();
    until_async("no pod is left", async || pods().await.is_empty() && ready(0).await).await;
    cluster.stop().await;
}
