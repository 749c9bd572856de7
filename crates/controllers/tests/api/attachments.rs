//! Attaching CSI volumes against the real API server; the driver's attacher is the test itself.

use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::VolumeAttachment,
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::json;
use test_lab::until_async;

use crate::common::{Cluster, create, object};

/// A bound claim of a CSI volume, and a pod that uses it on this node.
async fn volume_and_pod(cluster: &Cluster, node: &str) {
    let volume: PersistentVolume = object(json!({
        "metadata": {"name": "pv-1"},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "csi": {"driver": "csi.example", "volumeHandle": "vol-1"},
            "claimRef": {"namespace": "default", "name": "data"},
        },
    }));
    create(&Api::all(cluster.admin()), &volume).await;
    let claim: PersistentVolumeClaim = object(json!({
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "", "volumeName": "pv-1",
        },
    }));
    create(&cluster.api(), &claim).await;
    create(&cluster.api(), &pod("web", node)).await;
}

fn pod(name: &str, node: &str) -> Pod {
    object(json!({
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [{"name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}],
        },
    }))
}

async fn reported(cluster: &Cluster, node: &str) -> Vec<String> {
    let status = Api::<Node>::all(cluster.admin()).get(node).await.unwrap().status.unwrap();
    status.volumes_attached.into_iter().flatten().map(|one| one.name).collect()
}

async fn patch_node(cluster: &Cluster, node: &str, status: bool, patch: serde_json::Value) {
    let nodes: Api<Node> = Api::all(cluster.admin());
    let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
    match status {
        true => nodes.patch_status(node, &params, &patch).await.map(|_| ()).unwrap(),
        false => nodes.patch(node, &params, &patch).await.map(|_| ()).unwrap(),
    }
}

#[tokio::test]
async fn a_volume_is_attached_for_its_pod_and_detached_after_it_is_unmounted() {
    let mut cluster = Cluster::start().await;
    for name in ["n1", "n2"] {
        cluster.add_node(name, "linux").await;
        let managed = json!({"metadata": {"annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}}});
        patch_node(&cluster, name, false, managed).await;
    }
    volume_and_pod(&cluster, "n1").await;
    let attachments: Api<VolumeAttachment> = Api::all(cluster.admin());
    let all = async || attachments.list(&ListParams::default()).await.unwrap().items;
    let found = until_async("the attachment is there", async || all().await.pop()).await;
    let name = found.metadata.name.clone().unwrap();
    assert_eq!(name, "csi-c59aa9fdb6e704451dbd837db8aa988fe5ba4a80aaa589eb502c5a10c5b2b9c8");
    assert_eq!((found.spec.attacher.as_str(), found.spec.node_name.as_str()), ("csi.example", "n1"));
    assert!(reported(&cluster, "n1").await.is_empty(), "the driver has not attached it yet");

    let attached = Patch::Merge(json!({"status": {"attached": true}}));
    attachments.patch_status(&name, &PatchParams::default(), &attached).await.unwrap();
    let volume = "kubernetes.io/csi/csi.example^vol-1";
    until_async("the node says so", async || reported(&cluster, "n1").await == [volume]).await;
    let succeeded = "SuccessfulAttachVolume: AttachVolume.Attach succeeded for volume \"pv-1\" ";
    until_async("the pod is told", async || cluster.events("default", "web").await.iter().any(|event| event == succeeded)).await;

    patch_node(&cluster, "n1", true, json!({"status": {"volumesInUse": [volume]}})).await;
    create(&cluster.api(), &pod("second", "n2")).await;
    let refused = "FailedAttachVolume: Multi-Attach error for volume \"pv-1\" Volume is already used by pod(s) web";
    until_async("the second pod is told", async || cluster.events("default", "second").await.iter().any(|event| event == refused)).await;
    cluster.api::<Pod>().delete("web", &DeleteParams::default()).await.unwrap();
    until_async("the pod is gone", async || cluster.api::<Pod>().get_opt("web").await.unwrap().is_none()).await;
    let left = all().await;
    assert_eq!(left.len(), 1, "the volume is still mounted: {left:?}");
    assert_eq!(left[0].spec.node_name, "n1");

    patch_node(&cluster, "n1", true, json!({"status": {"volumesInUse": null}})).await;
    until_async("it goes to the second pod's node", async || {
        let all = all().await;
        all.len() == 1 && all[0].spec.node_name == "n2"
    })
    .await;
    assert!(reported(&cluster, "n1").await.is_empty());
    cluster.stop().await;
}
