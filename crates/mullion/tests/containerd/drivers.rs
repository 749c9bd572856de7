//! What other programs of the node give to pods: volumes of a CSI driver, devices of a plug-in. Both are doubles that run in this process and
//! have the node's own root.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use test_lab::csi::{Driver, Options};
use test_lab::device_plugin::{Plugin, register};

use crate::cluster::{Cluster, NODE, container, kubectl};

const DRIVER: &str = "disk.example.com";
const DEVICE: &str = "example.com/gpu";
const AGENT: &str = "/var/lib/kubelet";

/// A volume of the driver, and a claim that controllers bind to it.
async fn create_claim(cluster: &Cluster) {
    let driver = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER},
        "spec": {"attachRequired": false, "podInfoOnMount": true}});
    let shared = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeMode": "Filesystem"});
    let with = |more: Value| {
        let mut spec = shared.clone();
        more.as_object().unwrap().iter().for_each(|(key, value)| spec[key] = value.clone());
        spec
    };
    let source = json!({"driver": DRIVER, "volumeHandle": "handle", "fsType": "ext4", "volumeAttributes": {"tier": "fast"}});
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk"}, "spec": with(json!({"capacity": {"storage": "1Gi"},
        "csi": source, "claimRef": {"namespace": "default", "name": "disk"}}))});
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "disk"},
        "spec": with(json!({"volumeName": "disk", "resources": {"requests": {"storage": "1Gi"}}}))});
    for object in [driver, volume, claim] {
        cluster.create_whole(object).await;
    }
}

pub async fn a_csi_volume_is_staged_published_and_taken_back(cluster: Arc<Cluster>) {
    let driver = Driver::start(Path::new("/"), Options { node_id: "id-of-node".into(), ..Options::new(DRIVER) }, Arc::default());
    create_claim(&cluster).await;
    let listed = async |wanted: Option<&str>| {
        let path = format!("jsonpath={{.spec.drivers[?(@.name==\"{DRIVER}\")].nodeID}}");
        let found = kubectl(&["get", "csinode", NODE, "-o", &path]).await?;
        if found == wanted.unwrap_or_default() { Ok(()) } else { Err(found) }
    };
    cluster.until("the driver in the CSINode", async || listed(Some("id-of-node")).await).await;
    let spec = json!({
        "securityContext": {"fsGroup": 4321},
        "containers": [{"name": "c", "command": ["sleep", "1000"], "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "disk"}}],
    });
    cluster.pod("disk-user", spec).await;
    cluster.until_ready("disk-user").await;
    let seen = cluster.exec("disk-user", "c", "cat /data/volume; echo; stat -c %g /data/volume; echo pod > /data/by-pod").await;
    assert_eq!(seen, "handle\n4321\n");
    let published = driver.calls("NodePublishVolume")[0].clone();
    let target = published["target"].as_str().unwrap().to_owned();
    assert_eq!(std::fs::read_to_string(format!("{target}/by-pod")).unwrap(), "pod\n");
    let context = &published["context"];
    assert_eq!((context["tier"].as_str(), context["csi.storage.k8s.io/pod.name"].as_str()), (Some("fast"), Some("disk-user")));
    assert_eq!(published["capability"]["mode"], "SINGLE_NODE_WRITER");
    let staging = driver.calls("NodeStageVolume")[0]["staging"].clone();
    cluster.delete("disk-user").await;
    cluster.until_gone("disk-user").await;
    cluster
        .until("the end of the volume on the node", async || {
            let state = driver.state();
            if state.staged.is_empty() && state.published.is_empty() { Ok(()) } else { Err(format!("{state:?}")) }
        })
        .await;
    let steps = ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"];
    let calls: Vec<_> = driver.state().calls.iter().map(|(call, _)| *call).filter(|call| steps.contains(call)).collect();
    assert_eq!(calls, steps);
    assert_eq!(driver.calls("NodeUnstageVolume")[0]["staging"], staging);
    assert!(!Path::new(&target).exists());
    drop(driver);
    cluster.until("no driver in the CSINode", async || listed(None).await).await;
}

pub async fn a_plug_ins_device_is_in_its_container(cluster: Arc<Cluster>) {
    let plugin = Plugin::serve(&Path::new(AGENT).join("device-plugins"), "gpu.sock", &["g1", "g2"]);
    register(Path::new(AGENT), "gpu.sock", DEVICE, "v1beta1").await.unwrap();
    let shows = async |wanted: &str| {
        let found = kubectl(&["get", "node", NODE, "-o", "jsonpath={.status.allocatable.example\\.com/gpu}"]).await?;
        if found == wanted { Ok(()) } else { Err(found) }
    };
    cluster.until("two devices of the Node", async || shows("2").await).await;
    let script = "echo $GPUS; [ -c /dev/gpu0 ] && echo lost > /dev/gpu0 && cat /dev/gpu0; ls /opt/gpu/passwd; touch /opt/gpu/x 2>/dev/null || echo fixed; sleep 1000";
    let with = |count: &str| json!({"containers": [{"name": "c", "command": ["sh", "-c", script], "resources": {"limits": {DEVICE: count}}}]});
    cluster.pod("gpu", with("1")).await;
    let status = cluster.until_ready("gpu").await;
    let health = json!([{"name": DEVICE, "resources": [{"resourceID": "g2", "health": "Healthy"}]}]);
    assert_eq!(container(&status, "c")["allocatedResourcesStatus"], health);
    cluster
        .until("what the container has", async || {
            let said = kubectl(&["logs", "gpu"]).await?;
            if said == "g2\n/opt/gpu/passwd\nfixed\n" { Ok(()) } else { Err(said) }
        })
        .await;
    assert_eq!(plugin.calls(), ["prefer 1 of g1 g2, with []", "allocate g2", "start g2"]);
    cluster.pod("gpus", with("2")).await;
    let refused = cluster.until_phase("gpus", "Failed").await;
    assert_eq!(refused["reason"], "UnexpectedAdmissionError", "{refused}");
    cluster.delete("gpu").await;
    cluster.until_gone("gpu").await;
    cluster.pod("gpus-later", with("2")).await;
    cluster.until_ready("gpus-later").await;
    drop(plugin);
    cluster.until("no devices of the Node", async || shows("0").await).await;
    assert_eq!(cluster.status("gpus-later").await["phase"], "Running");
}
