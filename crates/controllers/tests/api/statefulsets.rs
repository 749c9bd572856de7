//! StatefulSets against the real API server.

use k8s_openapi::api::{
    apps::v1::{ControllerRevision, StatefulSet},
    core::v1::{PersistentVolumeClaim, Pod},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use test_lab::until_async;

use crate::common::{Cluster, create, object};

/// A StatefulSet with these fields beside its template.
fn set(fields: Value) -> StatefulSet {
    let mut spec = json!({
        "serviceName": "db",
        "selector": {"matchLabels": {"app": "db"}},
        "template": {
            "metadata": {"labels": {"app": "db"}},
            "spec": {"nodeSelector": {"kubernetes.io/os": "windows"}, "containers": [{"name": "db", "image": "db:1"}]},
        },
    });
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    object(json!({"metadata": {"name": "db"}, "spec": spec}))
}

fn claims(class: &str) -> Value {
    let spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": class, "resources": {"requests": {"storage": "1Gi"}}});
    json!([{"metadata": {"name": "data"}, "spec": spec}])
}

async fn cluster() -> Cluster {
    let mut cluster = Cluster::start().await;
    cluster.add_node("win01", "windows").await;
    cluster
}

async fn pods(cluster: &Cluster) -> Vec<Pod> {
    let mut found = cluster.api::<Pod>().list(&ListParams::default()).await.unwrap().items;
    found.sort_by_key(ResourceExt::name_any);
    found
}

async fn names(cluster: &Cluster) -> Vec<String> {
    pods(cluster).await.iter().map(ResourceExt::name_any).collect()
}

async fn images(cluster: &Cluster) -> Vec<String> {
    pods(cluster).await.into_iter().map(|pod| pod.spec.unwrap().containers[0].image.clone().unwrap()).collect()
}

/// Waits until this many pods are all there are, and ready, and the status says so.
async fn settled(cluster: &Cluster, count: i32) -> StatefulSet {
    until_async(&format!("{count} pods are ready"), async || {
        let found = cluster.api::<StatefulSet>().get("db").await.unwrap();
        let status = found.status.clone().unwrap_or_default();
        let whole = status.replicas == count && status.ready_replicas.unwrap_or_default() == count;
        (whole && status.observed_generation == found.metadata.generation && names(cluster).await.len() == count as usize).then_some(found)
    })
    .await
}

async fn patch(cluster: &Cluster, patch: Value) {
    cluster.api::<StatefulSet>().patch("db", &PatchParams::default(), &Patch::Strategic(patch)).await.unwrap();
}

fn image(image: &str) -> Value {
    json!({"spec": {"template": {"spec": {"containers": [{"name": "db", "image": image}]}}}})
}

#[tokio::test]
async fn pods_have_names_and_come_and_go_in_order() {
    let cluster = cluster().await;
    create(&cluster.api(), &set(json!({"replicas": 3}))).await;
    let found = settled(&cluster, 3).await;
    let all = pods(&cluster).await;
    for (ordinal, pod) in all.iter().enumerate() {
        let name = format!("db-{ordinal}");
        let spec = pod.spec.as_ref().unwrap();
        assert_eq!((pod.name_any(), spec.hostname.clone(), spec.subdomain.clone()), (name.clone(), Some(name.clone()), Some("db".into())));
        let labels = ["statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index", "controller-revision-hash"];
        let revision = found.status.as_ref().unwrap().update_revision.clone().unwrap();
        assert_eq!(labels.map(|label| pod.labels()[label].clone()), [name, ordinal.to_string(), revision]);
    }
    let versions: Vec<u64> = all.iter().map(|pod| pod.metadata.creation_timestamp.as_ref().unwrap().0.as_second() as u64).collect();
    assert!(versions.is_sorted(), "one after the other");
    until_async("an event tells of the first", async || {
        cluster.events("default", "db").await.contains(&"SuccessfulCreate: Create Pod db-0 in StatefulSet db successful".to_owned())
    })
    .await;

    let uid = all[1].uid();
    cluster.api::<Pod>().delete("db-1", &DeleteParams::default()).await.unwrap();
    until_async("a deleted pod comes back by its name", async || pods(&cluster).await.iter().any(|pod| pod.name_any() == "db-1" && pod.uid() != uid))
        .await;
    settled(&cluster, 3).await;
    patch(&cluster, json!({"spec": {"replicas": 1}})).await;
    settled(&cluster, 1).await;
    assert_eq!(names(&cluster).await, ["db-0"]);
    cluster.stop().await;
}

#[tokio::test]
async fn an_update_goes_down_to_the_partition_and_can_be_undone() {
    let cluster = cluster().await;
    create(&cluster.api(), &set(json!({"replicas": 3, "podManagementPolicy": "Parallel", "ordinals": {"start": 5}}))).await;
    settled(&cluster, 3).await;
    assert_eq!(names(&cluster).await, ["db-5", "db-6", "db-7"]);
    patch(&cluster, json!({"spec": {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}}})).await;
    patch(&cluster, image("db:2")).await;
    until_async("the last pod is updated", async || images(&cluster).await == ["db:1", "db:1", "db:2"]).await;
    let part = settled(&cluster, 3).await.status.unwrap();
    assert_ne!(part.current_revision, part.update_revision);
    cluster.api::<Pod>().delete("db-5", &DeleteParams::default()).await.unwrap();
    until_async("a pod below the partition comes back as it was", async || images(&cluster).await == ["db:1", "db:1", "db:2"]).await;

    patch(&cluster, json!({"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}})).await;
    until_async("all are updated", async || images(&cluster).await == ["db:2", "db:2", "db:2"]).await;
    until_async("the update is over", async || {
        let status = cluster.api::<StatefulSet>().get("db").await.unwrap().status.unwrap_or_default();
        status.current_revision == status.update_revision && status.updated_replicas == Some(3)
    })
    .await;

    let revisions: Api<ControllerRevision> = cluster.api();
    let mut history = revisions.list(&ListParams::default()).await.unwrap().items;
    history.sort_by_key(|one| one.revision);
    assert_eq!(history.iter().map(|one| one.revision).collect::<Vec<_>>(), [1, 2]);
    // What kubectl's `rollout undo` does.
    patch(&cluster, history[0].data.clone().unwrap().0).await;
    until_async("back to the first", async || images(&cluster).await == ["db:1", "db:1", "db:1"]).await;
    until_async("which is the newest now", async || revisions.get(&history[0].name_any()).await.unwrap().revision == 3).await;
    cluster.stop().await;
}

#[tokio::test]
async fn claims_follow_the_retention_policy() {
    let mut cluster = cluster().await;
    let disks = tempfile::tempdir().unwrap();
    cluster.start_local_volumes(disks.path().to_owned());
    let policy = json!({"whenScaled": "Delete", "whenDeleted": "Retain"});
    let fields = json!({"replicas": 2, "volumeClaimTemplates": claims("mullion-local"), "persistentVolumeClaimRetentionPolicy": policy});
    create(&cluster.api(), &set(fields)).await;
    settled(&cluster, 2).await;
    let claims = async || {
        let mut found: Vec<String> =
            cluster.api::<PersistentVolumeClaim>().list(&ListParams::default()).await.unwrap().iter().map(ResourceExt::name_any).collect();
        found.sort();
        found
    };
    assert_eq!(claims().await, ["data-db-0", "data-db-1"]);
    let pod = cluster.api::<Pod>().get("db-1").await.unwrap();
    let volumes = pod.spec.unwrap().volumes.unwrap();
    assert!(volumes.iter().any(|one| one.persistent_volume_claim.as_ref().is_some_and(|claim| claim.claim_name == "data-db-1")));
    patch(&cluster, json!({"spec": {"replicas": 1}})).await;
    settled(&cluster, 1).await;
    until_async("the claim goes with its pod", async || claims().await == ["data-db-0"]).await;

    patch(&cluster, json!({"spec": {"persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete"}}})).await;
    until_async("the StatefulSet owns its claim", async || {
        let claim = cluster.api::<PersistentVolumeClaim>().get("data-db-0").await.unwrap();
        claim.owner_references().iter().any(|owner| owner.kind == "StatefulSet")
    })
    .await;
    cluster.api::<StatefulSet>().delete("db", &DeleteParams::background()).await.unwrap();
    until_async("all is gone", async || claims().await.is_empty() && names(&cluster).await.is_empty()).await;
    cluster.stop().await;
}

#[tokio::test]
async fn orphans_are_adopted_by_name() {
    let cluster = cluster().await;
    create(&cluster.api(), &set(json!({"replicas": 2}))).await;
    settled(&cluster, 2).await;
    let orphan = DeleteParams { propagation_policy: Some(kube::api::PropagationPolicy::Orphan), ..Default::default() };
    cluster.api::<StatefulSet>().delete("db", &orphan).await.unwrap();
    until_async("the StatefulSet is gone", async || cluster.api::<StatefulSet>().get_opt("db").await.unwrap().is_none()).await;
    let before: Vec<_> = pods(&cluster).await.iter().map(ResourceExt::uid).collect();
    until_async("the pods are alone", async || pods(&cluster).await.iter().all(|pod| pod.owner_references().is_empty())).await;
    create(&cluster.api(), &set(json!({"replicas": 2}))).await;
    until_async("the pods have an owner again", async || pods(&cluster).await.iter().all(|pod| pod.owner_references().len() == 1)).await;
    settled(&cluster, 2).await;
    assert_eq!(pods(&cluster).await.iter().map(ResourceExt::uid).collect::<Vec<_>>(), before);
    cluster.stop().await;
}
