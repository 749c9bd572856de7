//! Volumes of CSI drivers: the agent and a driver, with the test in the place of controllers and attacher.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cluster::{Informer, Selection};
use host::NodeOs;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, VolumeAttachment};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use test_lab::csi::{Driver, Options, block_device};
use tonic::Code;

use crate::common::World;

const NAME: &str = "disk.example.com";

impl World {
    fn start_driver(&self, options: Options) -> Driver {
        Driver::start(&self.drive(), options, Default::default())
    }

    async fn csi_node(&self) -> Value {
        let found = Api::<CSINode>::all(self.admin()).get_opt("win01").await.unwrap();
        found.map(|node| json!(node)).unwrap_or_default()
    }

    async fn registered(&self, name: &str) {
        let listed = async || self.csi_node().await["spec"]["drivers"].as_array().is_some_and(|all| all.iter().any(|driver| driver["name"] == name));
        self.eventually("the driver in the CSINode", listed).await;
    }

    async fn csi_driver(&self, spec: Value) {
        let object = serde_json::from_value(json!({"metadata": {"name": NAME}, "spec": spec})).unwrap();
        Api::<CSIDriver>::all(self.admin()).create(&PostParams::default(), &object).await.unwrap();
    }

    /// A volume of the driver, and a claim that is bound to it, both called `name`.
    async fn claim(&self, name: &str, csi: Value) {
        let mut source = json!({"driver": NAME, "volumeHandle": format!("handle-{name}"), "fsType": "ext4"});
        csi.as_object().unwrap().iter().for_each(|(key, value)| source[key] = value.clone());
        self.claim_of(name, json!({"csi": source, "mountOptions": ["noatime"]})).await;
    }

    /// A claim, and a volume that is bound to it, both called `name`.
    async fn claim_of(&self, name: &str, spec: Value) {
        let mode = spec.get("volumeMode").cloned().unwrap_or_else(|| "Filesystem".into());
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.admin(), "default");
        let claim = json!({"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": name,
            "volumeMode": mode, "resources": {"requests": {"storage": "1Gi"}}}});
        let made = claims.create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
        let mut volume = json!({"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "claimRef": {"namespace": "default", "name": name, "uid": made.metadata.uid}}});
        spec.as_object().unwrap().iter().for_each(|(key, value)| volume["spec"][key] = value.clone());
        Api::<PersistentVolume>::all(self.admin()).create(&PostParams::default(), &serde_json::from_value(volume).unwrap()).await.unwrap();
        let bound = json!({"status": {"phase": "Bound"}});
        claims.patch_status(name, &PatchParams::default(), &Patch::Merge(bound)).await.unwrap();
    }

    async fn pod_with_claim(&self, name: &str, claim: &str) {
        self.pod(
            name,
            json!({"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
                "containers": [{"name": "c", "image": "serve:1", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]}),
        )
        .await;
    }

    async fn pod_with_device(&self, name: &str, claim: &str) {
        let containers = json!([{"name": "c", "image": "serve:1", "volumeDevices": [{"name": "data", "devicePath": "/dev/xvda"}]}]);
        self.pod(name, json!({"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}], "containers": containers})).await;
    }

    async fn in_use(&self) -> Vec<String> {
        self.node().await.and_then(|node| node.status).and_then(|status| status.volumes_in_use).unwrap_or_default()
    }

    /// What the controllers and the driver's attacher do.
    async fn attach(&self, claim: &str) {
        let handle = format!("handle-{claim}");
        let unique = kube_rules::csi::unique_name(NAME, &handle);
        self.eventually("the volume in use", async || self.in_use().await.contains(&unique)).await;
        let name = kube_rules::csi::attachment_name(NAME, &handle, "win01");
        let object = json!({"metadata": {"name": name}, "spec": {"attacher": NAME, "nodeName": "win01", "source": {"persistentVolumeName": claim}}});
        let attachments: Api<VolumeAttachment> = Api::all(self.admin());
        attachments.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
        let status = json!({"status": {"attached": true, "attachmentMetadata": {"lun": "4"}}});
        attachments.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
        let attached = json!({"status": {"volumesAttached": [{"name": unique, "devicePath": ""}]}});
        Api::<Node>::all(self.admin()).patch_status("win01", &PatchParams::default(), &Patch::Merge(attached)).await.unwrap();
    }

    async fn delete(&self, pod: &str) {
        self.pods().delete(pod, &DeleteParams::default()).await.unwrap();
        self.eventually("pod gone", async || self.pods().get_opt(pod).await.unwrap().is_none()).await;
    }

    async fn uid(&self, pod: &str) -> String {
        self.pods().get(pod).await.unwrap().metadata.uid.unwrap()
    }
}

#[tokio::test]
async fn a_driver_comes_and_goes() {
    let world = World::linux().await;
    let driver = world.start_driver(Options::new(NAME));
    world.registered(NAME).await;
    world.eventually("the driver told", async || driver.state().registrations == [(true, String::new())]).await;
    let node = world.csi_node().await;
    assert_eq!(node["metadata"]["ownerReferences"][0]["uid"], json!(world.node().await.unwrap().metadata.uid));
    let wanted = json!([{"name": NAME, "nodeID": "node-1", "topologyKeys": ["topology.example.com/rack"], "allocatable": {"count": 7}}]);
    assert_eq!(node["spec"]["drivers"], wanted);
    let meta = world.node().await.unwrap().metadata;
    assert_eq!(meta.labels.unwrap()["topology.example.com/rack"], "r1");
    assert_eq!(meta.annotations.unwrap()["csi.volume.kubernetes.io/nodeid"], format!("{{\"{NAME}\":\"node-1\"}}"));

    drop(driver);
    world.eventually("the CSINode empty", async || world.csi_node().await["spec"]["drivers"] == json!([])).await;
    let unknown = async || !world.node().await.unwrap().metadata.annotations.unwrap().contains_key("csi.volume.kubernetes.io/nodeid");
    world.eventually("the annotation gone", unknown).await;

    // What is no driver is told so.
    let other = world.start_driver(Options { kind: "DRAPlugin".into(), ..Options::new("gpu.example.com") });
    let told =
        async || other.state().registrations.iter().any(|(done, why)| !done && why.starts_with("no handler registered for plugin type: DRAPlugin"));
    world.eventually("the refusal", told).await;
    let old = world.start_driver(Options { versions: vec!["0.3.0".into()], ..Options::new("old.example.com") });
    world.eventually("the refusal", async || old.state().registrations.iter().any(|(_, why)| why.contains("speaks 1.x"))).await;
    assert_eq!(world.csi_node().await["spec"]["drivers"], json!([]));
}

#[tokio::test]
async fn a_node_is_ready_once_its_csi_node_is_written_and_stays_so_over_a_restart() {
    let mut world = World::new().await;
    world.link.forbid(&["csinodes"]);
    world.start_agent();
    let refused = async || {
        let ready = world.ready_condition().await;
        ready.is_some_and(|ready| ready.status == "False" && ready.message.is_some_and(|text| text.starts_with("failed to initialize CSINode: ")))
    };
    world.eventually("the reason", refused).await;
    assert!(world.ready_condition().await.unwrap().message.unwrap().contains("csinodes is forbidden"));
    world.link.forbid(&[]);
    world.eventually("node Ready", async || world.node_is_ready().await).await;
    assert!(!world.csi_node().await.is_null());

    // An agent that starts again is slow to write the CSINode. That the Node has its new boot id shows that it wrote the status.
    world.stop_agent().await;
    let seen: Arc<Mutex<Vec<(String, String)>>> = Arc::default();
    let nodes =
        Informer::start(Api::<Node>::all(world.admin()), Selection::all().of(&cluster::ApiServer::default()), |node: &Node| Some(node.clone()));
    let notes = seen.clone();
    nodes.subscribe(move |change| {
        let status = change.new.and_then(|node| node.status.clone()).unwrap_or_default();
        let ready = status.conditions.iter().flatten().find(|c| c.type_ == "Ready").map(|c| c.status.clone()).unwrap_or_default();
        notes.lock().unwrap().push((ready, status.node_info.unwrap_or_default().boot_id));
    });
    nodes.synced().await;
    world.link.forbid(&["csinodes"]);
    world.boot += 1;
    world.start_agent();
    tokio::time::sleep(Duration::from_millis(400)).await;
    world.link.forbid(&[]);
    let written = || seen.lock().unwrap().iter().any(|(_, boot)| boot == "boot-1");
    world.eventually("the status", async || written()).await;
    let seen = seen.lock().unwrap();
    assert!(seen.iter().all(|(ready, _)| ready == "True"), "{seen:?}");
}

#[tokio::test]
async fn a_volume_is_attached_staged_once_and_published_to_each_pod() {
    let world = World::linux().await;
    world.secret("stage", json!({"user": "u"})).await;
    world.secret("publish", json!({"password": "p"})).await;
    world.csi_driver(json!({"podInfoOnMount": true, "tokenRequests": [{"audience": "vault"}]})).await;
    let secret = |name: &str| json!({"name": name, "namespace": "default"});
    let source = json!({"volumeAttributes": {"size": "big"}, "nodeStageSecretRef": secret("stage"), "nodePublishSecretRef": secret("publish")});
    world.claim("v", source).await;
    world.pod_with_claim("one", "v").await;
    world.attach("v").await;
    let missing = format!(
        "FailedMount: MountVolume.SetUp failed for volume \"v\" : kubernetes.io/csi: driver name {NAME} not found in the list of registered CSI drivers"
    );
    world.until_event(&missing).await;
    // A pod that waits for a driver starts when it comes.
    let driver = world.start_driver(Options::new(NAME));
    world.until_running("one").await;

    let uid = world.uid("one").await;
    let staging = format!("/var/lib/kubelet/plugins/kubernetes.io/csi/{NAME}/{}/globalmount", kube_rules::csi::digest("handle-v"));
    let stage = driver.calls("NodeStageVolume").remove(0);
    assert_eq!(stage["staging"], staging);
    assert_eq!((&stage["secrets"], &stage["published"]), (&json!({"user": "u"}), &json!({"lun": "4"})));
    assert_eq!(stage["capability"], json!({"mode": "SINGLE_NODE_WRITER", "fsType": "ext4", "options": ["noatime"], "group": ""}));
    assert_eq!(stage["context"], json!({"size": "big"}));
    let publish = driver.calls("NodePublishVolume").remove(0);
    let target = format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~csi/v/mount");
    assert_eq!((&publish["target"], &publish["staging"]), (&json!(target), &json!(staging)));
    assert_eq!((&publish["secrets"], &publish["readonly"]), (&json!({"password": "p"}), &json!(false)));
    let context = &publish["context"];
    assert_eq!((&context["csi.storage.k8s.io/pod.name"], &context["csi.storage.k8s.io/ephemeral"]), (&json!("one"), &json!("false")));
    let tokens: Value = serde_json::from_str(context["csi.storage.k8s.io/serviceAccount.tokens"].as_str().unwrap()).unwrap();
    assert!(tokens["vault"]["token"].as_str().unwrap().split('.').count() == 3 && tokens["vault"]["expirationTimestamp"].is_string(), "{tokens}");
    let data: BTreeMap<String, String> =
        serde_json::from_slice(&std::fs::read(world.drive().join(&target[1..]).with_file_name("vol_data.json")).unwrap()).unwrap();
    assert_eq!(data["specVolID"], "v");
    assert_eq!(data["attachmentID"], kube_rules::csi::attachment_name(NAME, "handle-v", "win01"));
    assert_eq!((data["volumeLifecycleMode"].as_str(), data["nodeName"].as_str()), ("Persistent", "win01"));
    let mounts = world.runtime.state.lock().unwrap().named("c").remove(0).config.mounts;
    assert!(mounts.iter().any(|mount| mount.container_path == "/data" && mount.host_path == target), "{mounts:?}");

    // The second pod shares the staging; the first's end leaves it.
    world.pod_with_claim("two", "v").await;
    world.until_running("two").await;
    world.delete("one").await;
    assert!(!world.drive().join("var/lib/kubelet/pods").join(uid).exists());
    assert_eq!((driver.calls("NodeStageVolume").len(), driver.calls("NodeUnstageVolume").len()), (1, 0));
    assert_eq!(world.in_use().await.len(), 1);
    world.delete("two").await;
    assert_eq!(driver.calls("NodeUnstageVolume").len(), 1);
    assert!(driver.state().published.is_empty() && driver.state().staged.is_empty());
    assert!(!world.drive().join(&staging[1..]).parent().unwrap().exists());
    world.eventually("nothing in use", async || world.in_use().await.is_empty()).await;
}

#[tokio::test]
async fn an_inline_volume_lives_with_its_pod() {
    let world = World::linux().await;
    world.csi_driver(json!({"attachRequired": false, "volumeLifecycleModes": ["Persistent"]})).await;
    let driver = world.start_driver(Options::new(NAME));
    world.registered(NAME).await;
    let spec = json!({"volumes": [{"name": "data", "csi": {"driver": NAME, "readOnly": true, "volumeAttributes": {"a": "b"}}}],
        "containers": [{"name": "c", "image": "serve:1", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]});
    world.pod("web", spec.clone()).await;
    let refused = "FailedMount: MountVolume.SetUp failed for volume \"data\" : kubernetes.io/csi: volume mode \"Ephemeral\" not supported by \
                   driver disk.example.com (only supports [\"Persistent\"])";
    world.until_event(refused).await;
    world.delete("web").await;
    let drivers: Api<CSIDriver> = Api::all(world.admin());
    drivers.delete(NAME, &DeleteParams::default()).await.unwrap();
    world.csi_driver(json!({"attachRequired": false, "volumeLifecycleModes": ["Ephemeral"]})).await;
    world.pod("web", spec).await;
    world.until_running("web").await;
    let publish = driver.calls("NodePublishVolume").remove(0);
    assert_eq!(publish["volume"], kube_rules::csi::inline_handle(&world.uid("web").await, "data"));
    assert_eq!((&publish["readonly"], &publish["staging"]), (&json!(true), &json!("")));
    assert!(driver.calls("NodeStageVolume").is_empty() && world.in_use().await.is_empty());
    world.delete("web").await;
    assert!(driver.state().published.is_empty());
}

#[tokio::test]
async fn what_a_driver_refuses_is_told_and_tried_again() {
    let world = World::linux().await;
    world.csi_driver(json!({"attachRequired": false})).await;
    let driver = world.start_driver(Options::new(NAME));
    world.registered(NAME).await;
    driver.fail("NodeStageVolume", 1, Code::Internal, "no medium");
    driver.fail("NodePublishVolume", 1, Code::InvalidArgument, "bad option");
    world.claim("v", json!({})).await;
    world.pod_with_claim("web", "v").await;
    world.until_running("web").await;
    world.until_event("FailedMount: MountVolume.MountDevice failed for volume \"v\" : rpc error: code = Internal desc = no medium").await;
    world.until_event("FailedMount: MountVolume.SetUp failed for volume \"v\" : rpc error: code = InvalidArgument desc = bad option").await;
    // The pod stays until its volume is down.
    driver.fail("NodeUnpublishVolume", 2, Code::Internal, "busy");
    world.delete("web").await;
    assert_eq!(driver.calls("NodeUnpublishVolume").len(), 3);
    assert!(driver.state().staged.is_empty());
}

#[tokio::test]
async fn the_next_agent_takes_down_what_the_last_one_left() {
    let mut world = World::linux().await;
    world.csi_driver(json!({})).await;
    let driver = world.start_driver(Options::new(NAME));
    world.registered(NAME).await;
    world.claim("v", json!({})).await;
    world.claim("w", json!({})).await;
    world.pod_with_claim("stays", "v").await;
    world.attach("v").await;
    world.until_running("stays").await;
    world.stop_agent().await;
    let state = driver.shared();
    drop(driver);
    // A volume that was staged for a pod of which nothing is left.
    let orphan = world.drive().join(format!("var/lib/kubelet/plugins/kubernetes.io/csi/{NAME}/{}", kube_rules::csi::digest("handle-w")));
    std::fs::create_dir_all(orphan.join("globalmount")).unwrap();
    std::fs::write(orphan.join("vol_data.json"), format!("{{\"driverName\":\"{NAME}\",\"volumeHandle\":\"handle-w\"}}\n")).unwrap();
    world.start_agent();
    let names = [kube_rules::csi::unique_name(NAME, "handle-v"), kube_rules::csi::unique_name(NAME, "handle-w")];
    world.eventually("both in use", async || world.in_use().await == names).await;
    let driver = Driver::start(&world.drive(), Options::new(NAME), state);
    world.eventually("the orphan gone", async || !orphan.exists()).await;
    assert_eq!(driver.calls("NodeUnstageVolume").iter().map(|call| call["volume"].clone()).collect::<Vec<_>>(), ["handle-w"]);
    world.eventually("one in use", async || world.in_use().await == names[..1]).await;
    // The pod that stays is published again, which drivers take for what it is, and its container runs on.
    world.eventually("published again", async || driver.calls("NodePublishVolume").len() == 2).await;
    assert_eq!(world.runtime.state.lock().unwrap().named("c").len(), 1);

    // A pod that the API server forgets while no agent runs.
    world.stop_agent().await;
    let force = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    world.pods().delete("stays", &force).await.unwrap();
    world.start_agent();
    world.eventually("all down", async || driver.state().published.is_empty() && driver.state().staged.is_empty()).await;
    world.eventually("nothing in use", async || world.in_use().await.is_empty()).await;
}

#[tokio::test]
async fn a_volume_that_has_grown_grows_its_file_system_and_is_measured() {
    let world = World::linux().await;
    world.csi_driver(json!({"attachRequired": false})).await;
    let driver = world.start_driver(Options::new(NAME));
    world.registered(NAME).await;
    world.secret("grow", json!({"key": "k"})).await;
    world.claim("v", json!({"nodeExpandSecretRef": {"name": "grow", "namespace": "default"}})).await;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(world.admin(), "default");
    let half = json!({"status": {"capacity": {"storage": "512Mi"}, "conditions": [{"type": "FileSystemResizePending", "status": "True"}]}});
    claims.patch_status("v", &PatchParams::default(), &Patch::Merge(half)).await.unwrap();
    driver.fail("NodeExpandVolume", 1, Code::OutOfRange, "no room");
    world.pod_with_claim("web", "v").await;
    world.until_running("web").await;
    world.until_event("FailedMount: MountVolume.NodeExpandVolume failed for volume \"v\" : rpc error: code = OutOfRange desc = no room").await;
    let call = driver.calls("NodeExpandVolume").remove(1);
    assert_eq!((&call["bytes"], &call["secrets"]), (&json!(1 << 30), &json!({"key": "k"})));
    assert!(call["path"].as_str().unwrap().ends_with("/kubernetes.io~csi/v/mount") && call["staging"].as_str().unwrap().ends_with("/globalmount"));
    let status = claims.get("v").await.unwrap().status.unwrap();
    assert_eq!(status.capacity.unwrap()["storage"].0, "1Gi");
    assert!(status.conditions.unwrap_or_default().is_empty());

    let (code, body) = world.get("/stats/summary", Some(("admin", "system:masters")), None).await;
    let summary: Value = serde_json::from_str(&body).unwrap();
    let volumes = summary["pods"][0]["volume"].as_array().unwrap();
    let volume = volumes.iter().find(|volume| volume["name"] == "data").unwrap_or_else(|| panic!("{body}"));
    assert_eq!((code, &volume["pvcRef"]), (200, &json!({"name": "v", "namespace": "default"})), "{body}");
    assert_eq!((&volume["capacityBytes"], &volume["usedBytes"], &volume["inodes"]), (&json!(1000), &json!(1), &json!(100)));
}

#[tokio::test]
async fn a_disk_of_a_cloud_is_mounted_by_its_driver() {
    const DISK: &str = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/d";
    let world = World::linux().await;
    let listed = async || {
        let annotations = world.csi_node().await["metadata"]["annotations"].clone();
        annotations["storage.alpha.kubernetes.io/migrated-plugins"].as_str().is_some_and(|all| all.contains("kubernetes.io/azure-disk,"))
    };
    world.eventually("the migrated plug-ins", listed).await;
    let object = json!({"metadata": {"name": "disk.csi.azure.com"}, "spec": {"attachRequired": false}});
    Api::<CSIDriver>::all(world.admin()).create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    let driver = world.start_driver(Options::new("disk.csi.azure.com"));
    world.registered("disk.csi.azure.com").await;
    let volume = json!({"name": "data", "azureDisk": {"diskName": "d", "diskURI": DISK, "kind": "Managed", "fsType": "ext4"}});
    world
        .pod(
            "web",
            json!({"volumes": [volume],
            "containers": [{"name": "c", "image": "serve:1", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]}),
        )
        .await;
    world.until_running("web").await;
    let publish = driver.calls("NodePublishVolume").remove(0);
    assert_eq!((&publish["volume"], &publish["capability"]["fsType"]), (&json!(DISK), &json!("ext4")));
    assert_eq!(publish["context"], json!({"kind": "Managed", "fstype": "ext4"}));
    let uid = world.uid("web").await;
    assert_eq!(publish["target"], format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~csi/{}/mount", DISK.replace('/', "~")));
    world.delete("web").await;
    assert!(driver.state().published.is_empty() && driver.state().staged.is_empty());
}

/// Runs a test as one that may mount and, where its user may, open devices.
fn with_devices(test: &str, run: impl AsyncFnOnce(World)) {
    linux_sys::ns::in_lab(test, || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async { run(World::linux().await).await });
    });
}

#[test]
fn a_block_volume_is_staged_published_and_mapped() {
    with_devices("csi::a_block_volume_is_staged_published_and_mapped", async |world| {
        world.csi_driver(json!({"attachRequired": false, "podInfoOnMount": true})).await;
        let driver = world.start_driver(Options::new(NAME));
        world.registered(NAME).await;
        let csi = json!({"driver": NAME, "volumeHandle": "handle-b", "fsType": "ext4"});
        world.claim_of("b", json!({"csi": csi, "volumeMode": "Block"})).await;
        world.pod_with_device("one", "b").await;
        if std::fs::File::open(block_device()).is_err() {
            // An agent that may not open the device says so.
            let refused = async || {
                world.events().await.iter().any(|e| {
                    e.starts_with("FailedMapVolume: MapVolume.MapBlockVolume failed for volume \"b\" : cannot map the device") && e.contains("denied")
                })
            };
            world.eventually("the refusal", refused).await;
            return;
        }
        world.until_running("one").await;
        let uid = world.uid("one").await;
        let devices = "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices";
        let (stage, publish) = (driver.calls("NodeStageVolume").remove(0), driver.calls("NodePublishVolume").remove(0));
        assert_eq!(stage["staging"], format!("{devices}/staging/b"));
        assert_eq!((&stage["capability"], &publish["capability"]), (&json!({"mode": "SINGLE_NODE_WRITER", "block": true}), &stage["capability"]));
        assert_eq!((&publish["staging"], &publish["target"]), (&stage["staging"], &json!(format!("{devices}/publish/b/{uid}"))));
        assert_eq!(publish["context"]["csi.storage.k8s.io/pod.name"], "one");
        let on_disk = |path: &str| world.drive().join(&path[1..]);
        let data: Value = serde_json::from_slice(&std::fs::read(on_disk(&format!("{devices}/b/data/vol_data.json"))).unwrap()).unwrap();
        assert_eq!((&data["specVolID"], &data["volumeHandle"], &data["nodeName"]), (&json!("b"), &json!("handle-b"), &json!("win01")));
        let link = std::fs::read_link(on_disk(&format!("/var/lib/kubelet/pods/{uid}/volumeDevices/kubernetes.io~csi/b"))).unwrap();
        assert_eq!(link.to_str().unwrap(), format!("{devices}/publish/b/{uid}"));
        let config = world.runtime.state.lock().unwrap().named("c").remove(0).config;
        let given = &config.devices[0];
        assert_eq!((given.container_path.as_str(), given.permissions.as_str()), ("/dev/xvda", "mrw"));
        assert_eq!(given.host_path, format!("{devices}/b/dev/{uid}"));
        assert!(!config.mounts.iter().any(|mount| mount.host_path.contains("volumeDevices")));

        world.pod_with_device("two", "b").await;
        world.until_running("two").await;
        world.delete("one").await;
        assert_eq!((driver.calls("NodeStageVolume").len(), driver.calls("NodeUnstageVolume").len()), (1, 0));
        world.delete("two").await;
        assert!(driver.state().published.is_empty() && driver.state().staged.is_empty());
        assert!(!on_disk(&format!("{devices}/b")).exists() && !on_disk(&format!("{devices}/publish/b")).exists());
        assert!(linux_sys::mount::mounts_below(&world.drive()).unwrap().iter().all(|mount| !mount.to_string_lossy().contains("volumeDevices")));
    });
}

#[test]
fn the_next_agent_unmaps_what_the_last_one_mapped() {
    with_devices("csi::the_next_agent_unmaps_what_the_last_one_mapped", async |mut world| {
        world.csi_driver(json!({"attachRequired": false})).await;
        let driver = world.start_driver(Options::new(NAME));
        world.registered(NAME).await;
        world.claim_of("b", json!({"csi": {"driver": NAME, "volumeHandle": "handle-b"}, "volumeMode": "Block"})).await;
        if std::fs::File::open(block_device()).is_err() {
            return;
        }
        world.pod_with_device("one", "b").await;
        world.until_running("one").await;
        world.stop_agent().await;
        let force = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        world.pods().delete("one", &force).await.unwrap();
        world.start_agent();
        world.eventually("all down", async || driver.state().published.is_empty() && driver.state().staged.is_empty()).await;
        let left = world.drive().join("var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/b");
        world.eventually("nothing left", async || !left.exists()).await;
    });
}

#[test]
fn a_local_device_is_given_to_its_pod() {
    with_devices("csi::a_local_device_is_given_to_its_pod", async |world| {
        let node =
            json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}]}]}});
        let of = |path: &str| json!({"local": {"path": path}, "nodeAffinity": node, "volumeMode": "Block"});
        world.claim_of("file", of("/etc")).await;
        world.pod_with_device("wrong", "file").await;
        let refused = "FailedMapVolume: MapVolume.MapBlockVolume failed for volume \"file\" : cannot map the device /etc: it is no block device";
        world.until_event(refused).await;
        if std::fs::File::open(block_device()).is_err() {
            return;
        }
        std::fs::create_dir_all(world.drive().join("dev")).unwrap();
        std::fs::write(world.drive().join("dev/disk0"), "").unwrap();
        linux_sys::mount::bind(&block_device(), &world.drive().join("dev/disk0")).unwrap();
        std::os::unix::fs::symlink("dev/disk0", world.drive().join("by-id")).unwrap();
        world.claim_of("disk", of("/by-id")).await;
        world.pod_with_device("right", "disk").await;
        world.until_running("right").await;
        let uid = world.uid("right").await;
        let place = format!("/var/lib/kubelet/plugins/kubernetes.io~local-volume/volumeDevices/disk/{uid}");
        let given = world.runtime.state.lock().unwrap().named("c").remove(0).config.devices.remove(0);
        assert_eq!((given.host_path, given.container_path.as_str()), (place.clone(), "/dev/xvda"));
        world.delete("right").await;
        assert!(!world.drive().join(&place[1..]).parent().unwrap().exists());
        assert!(world.drive().join("dev/disk0").exists());
    });
}

#[tokio::test]
async fn a_driver_that_wants_it_is_asked_again() {
    let mut world = World::new().await;
    world.os = NodeOs::Linux;
    std::fs::create_dir_all(world.drive().join("etc")).unwrap();
    world.polls.pod = Duration::from_millis(300);
    world.start_agent();
    world.eventually("node Ready", async || world.node_is_ready().await).await;
    world.csi_driver(json!({"attachRequired": false, "requiresRepublish": true, "tokenRequests": [{"audience": "vault"}]})).await;
    let driver = world.start_driver(Options::new(NAME));
    world.registered(NAME).await;
    world.claim("v", json!({})).await;
    world.pod_with_claim("web", "v").await;
    world.until_running("web").await;
    world.eventually("asked again", async || driver.calls("NodePublishVolume").len() >= 3).await;
    let calls = driver.calls("NodePublishVolume");
    assert!(calls.iter().all(|call| call["target"] == calls[0]["target"] && call["context"].to_string().contains("vault")), "{calls:?}");
    assert_eq!(driver.calls("NodeStageVolume").len(), 1, "it stays staged");
    // What fails then is told, and the pod keeps its volume and its container.
    driver.fail("NodePublishVolume", 1, Code::Internal, "vault is sealed");
    world.until_event("FailedMount: MountVolume.SetUp failed for volume \"v\" : rpc error: code = Internal desc = vault is sealed").await;
    world.eventually("asked once more", async || driver.calls("NodePublishVolume").len() > calls.len() + 1).await;
    assert_eq!(world.runtime.state.lock().unwrap().named("c").len(), 1);
    assert!(driver.calls("NodeUnpublishVolume").is_empty());
    world.delete("web").await;
    assert!(driver.state().published.is_empty() && driver.state().staged.is_empty());

    // Without that wish it is asked once, however often the pod is looked at.
    let drivers: Api<CSIDriver> = Api::all(world.admin());
    drivers.delete(NAME, &DeleteParams::default()).await.unwrap();
    world.csi_driver(json!({"attachRequired": false})).await;
    let before = driver.calls("NodePublishVolume").len();
    world.claim("w", json!({})).await;
    world.pod_with_claim("plain", "w").await;
    world.until_running("plain").await;
    world.config_map("other", json!({})).await;
    tokio::time::sleep(3 * world.polls.pod).await;
    assert_eq!(driver.calls("NodePublishVolume").len(), before + 1);
}

/// Everything that is logged in this thread, with every field.
#[derive(Clone, Default)]
struct Logged(Arc<Mutex<String>>);

impl tracing::field::Visit for Logged {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        use std::fmt::Write as _;
        let _ = write!(self.0.lock().unwrap(), "{field}={value:?} ");
    }
}

impl tracing::Subscriber for Logged {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        span.record(&mut self.clone());
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, values: &tracing::span::Record<'_>) {
        values.record(&mut self.clone());
    }

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// Drivers, and agents at high levels of logging, wrote down what was for a driver alone: also CVE-2019-11250, CVE-2020-8563 to -8566.
#[tokio::test]
async fn cve_2024_3744_2023_2878_no_log_and_no_event_shows_tokens_or_secrets() {
    let logged = Logged::default();
    let _guard = tracing::subscriber::set_default(logged.clone());
    tracing::debug!("logging is seen");
    let world = World::linux().await;
    world.csi_driver(json!({"attachRequired": false, "tokenRequests": [{"audience": "vault"}]})).await;
    let driver = world.start_driver(Options::new(NAME));
    world.registered(NAME).await;
    world.secret("s", json!({"password": "do-not-tell"})).await;
    let secret = json!({"name": "s", "namespace": "default"});
    world.claim("v", json!({"nodeStageSecretRef": secret, "nodePublishSecretRef": secret})).await;
    driver.fail("NodeStageVolume", 1, Code::Internal, "no medium");
    driver.fail("NodePublishVolume", 1, Code::Internal, "no way");
    world.pod_with_claim("web", "v").await;
    world.until_running("web").await;
    let publish = driver.calls("NodePublishVolume").remove(0);
    assert_eq!(publish["secrets"]["password"], "do-not-tell");
    let tokens: Value = serde_json::from_str(publish["context"]["csi.storage.k8s.io/serviceAccount.tokens"].as_str().unwrap()).unwrap();
    let signature = tokens["vault"]["token"].as_str().unwrap().rsplit('.').next().unwrap().to_owned();
    driver.fail("NodeUnpublishVolume", 1, Code::Internal, "busy");
    world.delete("web").await;
    let log = logged.0.lock().unwrap().clone();
    let events = world.events().await.join("\n");
    assert!(log.contains("logging is seen") && events.contains("no medium"), "nothing was seen");
    for hidden in ["do-not-tell", &signature] {
        assert!(!log.contains(hidden), "the log shows {hidden}");
        assert!(!events.contains(hidden), "an event shows {hidden}");
    }
}
