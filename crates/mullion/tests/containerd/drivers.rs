//! What other programs of the node give to pods: volumes of a CSI driver, devices of a plug-in. Both are doubles that run in this process and
//! have the node's own root.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use test_lab::csi::{Driver, Options, block_device};
use test_lab::device_plugin::{Plugin, register};

use crate::cluster::{Cluster, NODE, container, kubectl};

const DRIVER: &str = "disk.example.com";
const DEVICE: &str = "example.com/gpu";
const AGENT: &str = "/var/lib/kubelet";

/// A driver, a volume of it, and a claim that controllers bind to that.
async fn create_claim(cluster: &Cluster, name: &str, driver: &str, attach: bool, mode: &str) {
    let of =
        |kind: &str, version: &str, name: &str, spec: Value| json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec});
    let with = |more: Value| {
        let mut spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeMode": mode});
        more.as_object().unwrap().iter().for_each(|(key, value)| spec[key] = value.clone());
        spec
    };
    let source = json!({"driver": driver, "volumeHandle": format!("handle-{name}"), "fsType": "ext4", "volumeAttributes": {"tier": "fast"}});
    let claimed = json!({"namespace": "default", "name": name});
    let volume = with(json!({"capacity": {"storage": "1Gi"}, "csi": source, "claimRef": claimed}));
    let claim = with(json!({"volumeName": name, "resources": {"requests": {"storage": "1Gi"}}}));
    cluster.create_whole(of("CSIDriver", "storage.k8s.io/v1", driver, json!({"attachRequired": attach, "podInfoOnMount": true}))).await;
    cluster.create_whole(of("PersistentVolume", "v1", name, volume)).await;
    cluster.create_whole(of("PersistentVolumeClaim", "v1", name, claim)).await;
}

/// Starts a driver, and waits until the CSINode has it.
async fn start_driver(cluster: &Cluster, name: &str) -> Driver {
    let driver = Driver::start(Path::new("/"), Options { node_id: "id-of-node".into(), ..Options::new(name) }, Arc::default());
    cluster.until("the driver in the CSINode", async || has_driver(name, "id-of-node").await).await;
    driver
}

/// Whether the CSINode has a driver with this ID of the node; empty: no such driver.
async fn has_driver(name: &str, id: &str) -> Result<(), String> {
    let path = format!("jsonpath={{.spec.drivers[?(@.name==\"{name}\")].nodeID}}");
    let found = kubectl(&["get", "csinode", NODE, "-o", &path]).await?;
    if found == id { Ok(()) } else { Err(found) }
}

/// Waits until the driver has nothing more of this node.
async fn until_taken_back(cluster: &Cluster, driver: &Driver) {
    cluster
        .until("the end of the volume on the node", async || {
            let state = driver.state();
            if state.staged.is_empty() && state.published.is_empty() { Ok(()) } else { Err(format!("{state:?}")) }
        })
        .await;
}

pub async fn a_csi_volume_is_staged_published_and_taken_back(cluster: Arc<Cluster>) {
    let driver = start_driver(&cluster, DRIVER).await;
    create_claim(&cluster, "disk", DRIVER, false, "Filesystem").await;
    let spec = json!({
        "securityContext": {"fsGroup": 4321},
        "containers": [{"name": "c", "command": ["sleep", "1000"], "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "disk"}}],
    });
    cluster.pod("disk-user", spec).await;
    cluster.until_ready("disk-user").await;
    let seen = cluster.exec("disk-user", "c", "cat /data/volume; echo; stat -c %g /data/volume; echo pod > /data/by-pod").await;
    assert_eq!(seen, "handle-disk\n4321\n");
    let published = driver.calls("NodePublishVolume")[0].clone();
    let target = published["target"].as_str().unwrap().to_owned();
    assert_eq!(std::fs::read_to_string(format!("{target}/by-pod")).unwrap(), "pod\n");
    let context = &published["context"];
    assert_eq!((context["tier"].as_str(), context["csi.storage.k8s.io/pod.name"].as_str()), (Some("fast"), Some("disk-user")));
    assert_eq!(published["capability"]["mode"], "SINGLE_NODE_WRITER");
    let staging = driver.calls("NodeStageVolume")[0]["staging"].clone();
    cluster.delete("disk-user").await;
    cluster.until_gone("disk-user").await;
    until_taken_back(&cluster, &driver).await;
    let steps = ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"];
    let calls: Vec<_> = driver.state().calls.iter().map(|(call, _)| *call).filter(|call| steps.contains(call)).collect();
    assert_eq!(calls, steps);
    assert_eq!(driver.calls("NodeUnstageVolume")[0]["staging"], staging);
    assert!(!Path::new(&target).exists());
    drop(driver);
    cluster.until("no driver in the CSINode", async || has_driver(DRIVER, "").await).await;
}

/// The test stands in the place of the driver's attacher.
pub async fn a_csi_device_is_attached_and_in_its_container(cluster: Arc<Cluster>) {
    const NAME: &str = "raw.example.com";
    let driver = start_driver(&cluster, NAME).await;
    create_claim(&cluster, "raw", NAME, true, "Block").await;
    let spec = json!({
        "containers": [{"name": "c", "command": ["sleep", "1000"], "volumeDevices": [{"name": "data", "devicePath": "/dev/xvda"}]}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "raw"}}],
    });
    cluster.pod("raw-user", spec).await;
    let path = format!("jsonpath={{.items[?(@.spec.attacher==\"{NAME}\")].metadata.name}}");
    let listed = async || kubectl(&["get", "volumeattachments", "-o", &path]).await;
    let asked = async || listed().await.and_then(|name| if name.is_empty() { Err("there is none".to_owned()) } else { Ok(name) });
    let attachment = cluster.until("the request to attach the volume", asked).await;
    assert!(driver.calls("NodeStageVolume").is_empty(), "it waits");
    let attached = json!({"status": {"attached": true, "attachmentMetadata": {"lun": "3"}}}).to_string();
    kubectl(&["patch", "volumeattachment", &attachment, "--subresource", "status", "--type", "merge", "--patch", &attached]).await.unwrap();
    let device = block_device();
    if std::fs::File::open(&device).is_err() {
        // In a container that may not open it the agent says so.
        cluster.until_event("raw-user", "MapVolume.MapBlockVolume failed for volume \"raw\"").await;
    } else {
        cluster.until_ready("raw-user").await;
        let number = std::fs::metadata(&device).unwrap().rdev();
        let seen = cluster.exec("raw-user", "c", "[ -b /dev/xvda ] && stat -c '%t:%T' /dev/xvda").await;
        assert_eq!(seen, format!("{:x}:{:x}\n", nix::sys::stat::major(number), nix::sys::stat::minor(number)));
    }
    let staged = driver.calls("NodeStageVolume")[0].clone();
    assert_eq!((staged["published"]["lun"].as_str(), staged["capability"]["block"].as_bool()), (Some("3"), Some(true)), "{staged}");
    cluster.delete("raw-user").await;
    cluster.until_gone("raw-user").await;
    until_taken_back(&cluster, &driver).await;
    let gone = async || listed().await.and_then(|name| if name.is_empty() { Ok(()) } else { Err(name) });
    cluster.until("the end of the attachment", gone).await;
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
