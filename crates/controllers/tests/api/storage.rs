//! Claims and volumes against the real API server.

use k8s_openapi::api::{
    core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim, Pod, ServiceAccount},
    storage::v1::StorageClass,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::json;
use std::time::Instant;
use test_lab::until_async;

use crate::common::{Cluster, create, object};

fn claim(name: &str, class: Option<&str>) -> PersistentVolumeClaim {
    object(json!({
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": class},
    }))
}

fn pod(name: &str, claim: &str) -> Pod {
    object(json!({
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"kubernetes.io/os": "windows"},
            "containers": [{"name": "redis", "image": "redis:3.0-nanoserver", "volumeMounts": [{"name": "pv1", "mountPath": "C:/test-pd"}]}],
            "volumes": [{"name": "pv1", "persistentVolumeClaim": {"claimName": claim}}],
        },
    }))
}

async fn phase(cluster: &Cluster, name: &str) -> Option<String> {
    cluster.api::<PersistentVolumeClaim>().get(name).await.unwrap().status?.phase
}

async fn node(cluster: &Cluster, name: &str) -> Option<String> {
    cluster.api::<Pod>().get(name).await.unwrap().spec?.node_name
}

#[tokio::test]
async fn the_seeds_volume_waits_for_the_right_claim() {
    let mut cluster = Cluster::start().await;
    cluster.add_node("win01", "windows").await;
    let volumes: Api<PersistentVolume> = Api::all(cluster.admin());
    let volume: PersistentVolume = object(json!({
        "metadata": {"name": "gce-windows-pv"},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "D:/"}},
    }));
    create(&volumes, &volume).await;
    create(&cluster.api(), &claim("windows-pv-claim", None)).await;
    until_async("the claim is bound", async || phase(&cluster, "windows-pv-claim").await.as_deref() == Some("Bound")).await;
    let bound = cluster.api::<PersistentVolumeClaim>().get("windows-pv-claim").await.unwrap();
    assert_eq!(bound.spec.unwrap().volume_name.as_deref(), Some("gce-windows-pv"));
    assert_eq!(bound.status.unwrap().capacity.unwrap()["storage"].0, "1Gi");

    create(&cluster.api(), &pod("as-written", "task-pv-claim")).await;
    let missing = "FailedScheduling: 0/1 nodes are available: persistentvolumeclaim \"task-pv-claim\" not found. no new claims to deallocate, \
                   preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
    until_async("the event names the missing claim", async || cluster.events("default", "as-written").await.iter().any(|event| event == missing))
        .await;
    create(&cluster.api(), &pod("repaired", "windows-pv-claim")).await;
    until_async("the repaired pod has a node", async || node(&cluster, "repaired").await).await;

    // A claim in use stays, then goes, and leaves its volume released.
    let claims = cluster.api::<PersistentVolumeClaim>();
    claims.delete("windows-pv-claim", &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert!(claims.get_opt("windows-pv-claim").await.unwrap().is_some(), "a pod uses it");
    cluster.api::<Pod>().delete("repaired", &DeleteParams::default()).await.unwrap();
    until_async("the claim is gone", async || claims.get_opt("windows-pv-claim").await.unwrap().is_none()).await;
    until_async("its volume is released", async || {
        let phase = volumes.get("gce-windows-pv").await.unwrap().status.unwrap().phase;
        phase.as_deref() == Some("Released")
    })
    .await;
    create(&cluster.api(), &claim("second", None)).await;
    let none = "FailedBinding: no persistent volumes available for this claim and no storage class is set";
    until_async("a released volume suits nobody", async || cluster.events("default", "second").await.iter().any(|event| event == none)).await;
    assert_eq!(phase(&cluster, "second").await.as_deref(), Some("Pending"));
    cluster.stop().await;
}

#[tokio::test]
async fn a_local_volume_is_made_where_its_pod_goes_and_removed_with_its_claim() {
    let mut cluster = Cluster::start().await;
    let disks = tempfile::tempdir().unwrap();
    for (name, os) in [("lin01", "linux"), ("win01", "windows")] {
        cluster.add_node(name, os).await;
    }
    cluster.start_local_volumes(disks.path().to_owned());
    let classes: Api<StorageClass> = Api::all(cluster.admin());
    until_async("the default class", async || classes.get_opt("mullion-local").await.unwrap()).await;

    create(&cluster.api(), &claim("data", None)).await;
    let waits = "WaitForFirstConsumer: waiting for first consumer to be created before binding";
    until_async("nothing is made yet", async || cluster.events("default", "data").await.iter().any(|event| event == waits)).await;
    create(&cluster.api(), &pod("web", "data")).await;
    let began = Instant::now();
    let on = until_async("the pod has a node", async || node(&cluster, "web").await).await;
    let took = began.elapsed();
    println!("claim to bound pod: {took:?}");
    assert_eq!(on, "win01");
    assert_eq!(phase(&cluster, "data").await.as_deref(), Some("Bound"));
    let volumes: Api<PersistentVolume> = Api::all(cluster.admin());
    let made = volumes.list(&ListParams::default()).await.unwrap().items.remove(0);
    let name = made.name_any();
    assert_eq!(made.spec.unwrap().host_path.unwrap().path, format!(r"C:\var\lib\mullion\volumes\{name}"));
    let directory = disks.path().join("win01").join(&name);
    assert!(directory.is_dir());
    std::fs::write(directory.join("file"), "kept until the claim goes").unwrap();

    // A second pod of the claim goes where the volume is, whatever else is free.
    create(&cluster.api(), &pod("beside", "data")).await;
    let on = until_async("the second pod has a node", async || node(&cluster, "beside").await).await;
    assert_eq!(on, "win01");
    // A claim that a pod brings along goes with it.
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let cache = json!({"name": "cache", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}});
    let container = json!({"name": "web", "image": "microsoft/iis", "volumeMounts": [{"name": "cache", "mountPath": "C:/cache"}]});
    let alone: Pod = object(json!({"metadata": {"name": "alone"}, "spec": {"containers": [container], "volumes": [cache]}}));
    create(&cluster.api(), &alone).await;
    until_async("its own claim is bound", async || node(&cluster, "alone").await).await;
    assert_eq!(phase(&cluster, "alone-cache").await.as_deref(), Some("Bound"));
    cluster.api::<Pod>().delete("alone", &DeleteParams::default()).await.unwrap();
    until_async("one volume is left", async || volumes.list(&ListParams::default()).await.unwrap().items.len() == 1).await;

    for pod in ["web", "beside"] {
        cluster.api::<Pod>().delete(pod, &DeleteParams::default()).await.unwrap();
    }
    cluster.api::<PersistentVolumeClaim>().delete("data", &DeleteParams::default()).await.unwrap();
    until_async("volume and directory are gone", async || volumes.get_opt(&name).await.unwrap().is_none() && !directory.exists()).await;
    cluster.stop().await;
}

#[tokio::test]
async fn volumes_on_nodes_are_shared_out_by_where_pods_can_go() {
    let mut cluster = Cluster::start().await;
    for name in ["win01", "win02"] {
        cluster.add_node(name, "windows").await;
    }
    let classes: Api<StorageClass> = Api::all(cluster.admin());
    let class = json!({"metadata": {"name": "fixed"}, "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"});
    create(&classes, &object::<StorageClass>(class)).await;
    let volumes: Api<PersistentVolume> = Api::all(cluster.admin());
    for node in ["win01", "win02"] {
        let on = json!({"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]});
        let volume: PersistentVolume = object(json!({
            "metadata": {"name": format!("disk-{node}")},
            "spec": {
                "capacity": {"storage": "5Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "fixed",
                "local": {"path": "D:/data"}, "nodeAffinity": {"required": {"nodeSelectorTerms": [on]}},
            },
        }));
        create(&volumes, &volume).await;
    }
    for index in 0..3 {
        create(&cluster.api(), &claim(&format!("data-{index}"), Some("fixed"))).await;
        create(&cluster.api(), &pod(&format!("web-{index}"), &format!("data-{index}"))).await;
    }
    let placed = async || {
        let pods = cluster.api::<Pod>().list(&ListParams::default()).await.unwrap().items;
        let mut nodes: Vec<String> = pods.into_iter().filter_map(|pod| pod.spec?.node_name).collect();
        nodes.sort();
        nodes
    };
    until_async("a pod for each disk", async || placed().await == ["win01", "win02"]).await;
    let lonely = async || {
        let pods = cluster.api::<Pod>().list(&ListParams::default()).await.unwrap().items;
        pods.into_iter().find(|pod| pod.spec.as_ref().unwrap().node_name.is_none()).unwrap().name_any()
    };
    let name = lonely().await;
    let why = "FailedScheduling: 0/2 nodes are available: 2 node(s) didn't find available persistent volumes to bind. no new claims to deallocate, \
               preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.";
    until_async("the third is told why not", async || cluster.events("default", &name).await.iter().any(|event| event == why)).await;
    cluster.stop().await;
}

#[tokio::test]
async fn bindings_survive_the_death_of_whoever_makes_them() {
    let mut cluster = Cluster::start().await;
    let disks = tempfile::tempdir().unwrap();
    for name in ["win01", "win02"] {
        cluster.add_node(name, "windows").await;
    }
    cluster.start_local_volumes(disks.path().to_owned());
    let classes: Api<StorageClass> = Api::all(cluster.admin());
    until_async("the default class", async || classes.get_opt("mullion-local").await.unwrap()).await;
    for index in 0..12 {
        create(&cluster.api(), &claim(&format!("data-{index}"), None)).await;
        create(&cluster.api(), &pod(&format!("web-{index}"), &format!("data-{index}"))).await;
    }
    for round in 0u64..15 {
        tokio::time::sleep(std::time::Duration::from_millis(5 + round * 3)).await;
        cluster.kill_control().await;
        cluster.start_control();
        cluster.start_local_volumes(disks.path().to_owned());
    }
    let volumes: Api<PersistentVolume> = Api::all(cluster.admin());
    until_async("all are bound and placed", async || {
        for index in 0..12 {
            node(&cluster, &format!("web-{index}")).await?;
            (phase(&cluster, &format!("data-{index}")).await? == "Bound").then_some(())?;
        }
        Some(())
    })
    .await;
    let made = volumes.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(made.len(), 12, "one volume each");
    for volume in made {
        let node_of_volume = volume.annotations()["mullion.io/node"].clone();
        assert!(disks.path().join(&node_of_volume).join(volume.name_any()).is_dir());
        let claim = volume.spec.unwrap().claim_ref.unwrap().name.unwrap();
        let pod = claim.replace("data", "web");
        assert_eq!(node(&cluster, &pod).await.as_ref(), Some(&node_of_volume), "the pod is where its volume is");
    }
    cluster.stop().await;
}

#[tokio::test]
async fn a_namespace_takes_its_volumes_along() {
    let mut cluster = Cluster::start().await;
    let disks = tempfile::tempdir().unwrap();
    cluster.add_node("win01", "windows").await;
    cluster.start_local_volumes(disks.path().to_owned());
    let classes: Api<StorageClass> = Api::all(cluster.admin());
    until_async("the default class", async || classes.get_opt("mullion-local").await.unwrap()).await;
    let namespaces: Api<Namespace> = Api::all(cluster.admin());
    create(&namespaces, &object(json!({"metadata": {"name": "shop"}}))).await;
    let pods: Api<Pod> = Api::namespaced(cluster.admin(), "shop");
    create(&Api::namespaced(cluster.admin(), "shop"), &claim("data", None)).await;
    until_async("the ServiceAccount", async || Api::<ServiceAccount>::namespaced(cluster.admin(), "shop").get_opt("default").await.unwrap()).await;
    create(&pods, &pod("web", "data")).await;
    until_async("the pod runs", async || pods.get("web").await.unwrap().status?.pod_ip).await;
    let volumes: Api<PersistentVolume> = Api::all(cluster.admin());
    assert_eq!(volumes.list(&ListParams::default()).await.unwrap().items.len(), 1);
    namespaces.delete("shop", &DeleteParams::default()).await.unwrap();
    until_async("the namespace is gone", async || namespaces.get_opt("shop").await.unwrap().is_none()).await;
    until_async("so is the volume", async || volumes.list(&ListParams::default()).await.unwrap().items.is_empty()).await;
    assert_eq!(std::fs::read_dir(disks.path().join("win01")).unwrap().count(), 0, "and its directory");
    cluster.stop().await;
}

#[tokio::test]
async fn a_pod_whose_volume_is_on_its_way_says_where_it_is_going() {
    let mut cluster = Cluster::start().await;
    cluster.add_node("win01", "windows").await;
    let classes: Api<StorageClass> = Api::all(cluster.admin());
    let class = json!({"metadata": {"name": "outside"}, "provisioner": "disks.example.com", "volumeBindingMode": "WaitForFirstConsumer"});
    create(&classes, &object::<StorageClass>(class)).await;
    create(&cluster.api(), &claim("data", Some("outside"))).await;
    create(&cluster.api(), &pod("web", "data")).await;
    let nominated = async || cluster.api::<Pod>().get("web").await.unwrap().status.unwrap().nominated_node_name;
    until_async("the node that was chosen", async || nominated().await.as_deref() == Some("win01")).await;
    assert_eq!(node(&cluster, "web").await, None);

    // The provisioner makes the volume.
    let uid = cluster.api::<PersistentVolumeClaim>().get("data").await.unwrap().metadata.uid;
    let volume: PersistentVolume = object(json!({"metadata": {"name": "disk"}, "spec": {
        "capacity": {"storage": "5Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "outside",
        "hostPath": {"path": "C:/disk"}, "claimRef": {"namespace": "default", "name": "data", "uid": uid},
    }}));
    create(&Api::all(cluster.admin()), &volume).await;
    until_async("the pod has its node", async || node(&cluster, "web").await.as_deref() == Some("win01")).await;
    assert_eq!(nominated().await, None, "the hint goes with the binding");
    cluster.stop().await;
}
