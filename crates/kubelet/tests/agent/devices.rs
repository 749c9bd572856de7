//! Devices of plug-ins: the agent and a plug-in.

use device_plugin::pod_resources::pod_resources_lister_client::PodResourcesListerClient;
use device_plugin::pod_resources::{AllocatableResourcesRequest, ContainerDevices, GetPodResourcesRequest, ListPodResourcesRequest};
use kube::api::DeleteParams;
use serde_json::{Value, json};
use test_lab::csi::{Driver, Options};
use test_lab::device_plugin::{Plugin, device, register};
use tokio::net::UnixStream;
use tonic::transport::Channel;

use crate::common::World;

const GPU: &str = "example.com/gpu";

fn container(name: &str, count: u32) -> Value {
    json!({"name": name, "image": "serve:1", "resources": {"limits": {GPU: count.to_string()}, "requests": {GPU: count.to_string()}}})
}

impl World {
    fn agent_dir(&self) -> std::path::PathBuf {
        self.drive().join("var/lib/kubelet")
    }

    /// A plug-in that has registered with the agent.
    async fn plugin(&self, devices: &[&str]) -> Plugin {
        let plugin = Plugin::serve(&self.agent_dir().join("device-plugins"), "gpu.sock", devices);
        register(&self.agent_dir(), "gpu.sock", GPU, "v1beta1").await.unwrap();
        plugin
    }

    async fn device_counts(&self) -> (Value, Value) {
        let status = json!(self.node().await.unwrap().status);
        (status["capacity"][GPU].clone(), status["allocatable"][GPU].clone())
    }

    async fn shows(&self, capacity: &str, allocatable: &str) {
        self.eventually("devices of the Node", async || self.device_counts().await == (json!(capacity), json!(allocatable))).await;
    }

    fn pod_resources(&self) -> PodResourcesListerClient<Channel> {
        let socket = self.agent_dir().join("pod-resources/kubelet.sock");
        PodResourcesListerClient::new(csi::grpc::channel(move || UnixStream::connect(socket.clone())))
    }
}

#[tokio::test]
async fn a_pod_gets_its_devices_and_gives_them_back() {
    let world = World::linux().await;
    let plugin = world.plugin(&["g1", "g2", "g3"]).await;
    world.shows("3", "3").await;
    world.pod("one", json!({"containers": [container("c", 2)]})).await;
    world.until_running("one").await;
    assert_eq!(plugin.calls(), ["prefer 2 of g1 g2 g3, with []", "allocate g2 g3", "start g2 g3"]);
    let config = world.runtime.state.lock().unwrap().named("c")[0].config.clone();
    assert_eq!((config.envs[0].key.as_str(), config.envs[0].value.as_str()), ("GPUS", "g2 g3"));
    assert_eq!((config.mounts[0].container_path.as_str(), config.mounts[0].readonly), ("/opt/gpu", true));
    assert_eq!((config.devices[0].host_path.as_str(), config.devices[0].permissions.as_str()), ("/dev/null", "rw"));
    assert_eq!((config.annotations["example.com/gpus"].as_str(), config.cdi_devices[0].name.as_str()), ("g2 g3", "example.com/gpu=g2 g3"));

    // Its health is in its status, and follows the plug-in.
    let health = |id: &str, health: &str| json!({"resourceID": id, "health": health});
    let of = |resources: Value| json!([{"name": GPU, "resources": resources}]);
    let has = |wanted: Value| move |status: &Value| status["containerStatuses"][0]["allocatedResourcesStatus"] == wanted;
    world.until("one", "health", has(of(json!([health("g2", "Healthy"), health("g3", "Healthy")])))).await;
    plugin.lists.send_replace(vec![device("g1", "Healthy"), device("g2", "Healthy"), device("g3", "Unhealthy")]);
    world.shows("3", "2").await;
    world.until("one", "health", has(of(json!([health("g2", "Healthy"), health("g3", "Unhealthy")])))).await;

    // Programs of the node are told.
    let mut client = world.pod_resources();
    let listed = client.list(ListPodResourcesRequest {}).await.unwrap().into_inner().pod_resources;
    let held = |id: &str| ContainerDevices { resource_name: GPU.into(), device_ids: vec![id.into()], topology: None };
    assert_eq!((listed.len(), listed[0].name.as_str(), listed[0].containers[0].devices.clone()), (1, "one", vec![held("g2"), held("g3")]));
    let request = |name: &str| GetPodResourcesRequest { pod_name: name.into(), pod_namespace: "default".into() };
    assert_eq!(client.get(request("one")).await.unwrap().into_inner().pod_resources, Some(listed[0].clone()));
    assert_eq!(client.get(request("two")).await.unwrap_err().message(), "pod two in namespace default not found");
    let usable = client.get_allocatable_resources(AllocatableResourcesRequest {}).await.unwrap().into_inner().devices;
    assert_eq!(usable, [held("g1"), held("g2")]);

    // The others have to do with what is left.
    world.pod("two", json!({"containers": [container("c", 2)]})).await;
    let status = world.until("two", "refused", |status| status["phase"] == "Failed").await;
    assert_eq!(status["reason"], "UnexpectedAdmissionError");
    let why = "Allocate failed due to requested number of devices unavailable for example.com/gpu. Requested: 2, Available: 1, which is unexpected";
    assert!(status["message"].as_str().unwrap().contains(why), "{status}");
    world.pods().delete("one", &DeleteParams::default()).await.unwrap();
    world.eventually("pod gone", async || world.pods().get_opt("one").await.unwrap().is_none()).await;
    world.pod("three", json!({"containers": [container("d", 2)]})).await;
    world.until_running("three").await;
    assert_eq!(world.runtime.state.lock().unwrap().named("d")[0].config.envs[0].value, "g1 g2");
}

#[tokio::test]
async fn init_containers_leave_their_devices_to_later_ones() {
    let world = World::linux().await;
    let plugin = world.plugin(&["g1", "g2"]).await;
    world.shows("2", "2").await;
    world.runtime.state.lock().unwrap().images.insert("exit-0:1".into());
    let mut init = container("init", 2);
    init["image"] = "exit-0:1".into();
    world.pod("pod", json!({"initContainers": [init], "containers": [container("a", 1), container("b", 1)]})).await;
    world.until_running("pod").await;
    let allocated: Vec<String> = plugin.calls().into_iter().filter(|call| call.starts_with("allocate")).collect();
    assert_eq!(allocated, ["allocate g1 g2", "allocate g1", "allocate g2"]);
}

#[tokio::test]
async fn pods_keep_their_devices_when_the_agent_starts_again() {
    let mut world = World::linux().await;
    let plugin = world.plugin(&["g1", "g2"]).await;
    world.shows("2", "2").await;
    world.pod("one", json!({"containers": [container("c", 1)]})).await;
    world.until_running("one").await;
    world.stop_agent().await;
    world.start_agent();
    // Until the plug-in is back the node has none to give.
    world.shows("0", "0").await;
    assert!(!plugin.socket.exists(), "the socket's end tells the plug-in that the agent is another one");
    assert_eq!(world.status("one").await["phase"], "Running");
    drop(plugin);
    let plugin = world.plugin(&["g1", "g2"]).await;
    world.shows("2", "2").await;
    world.pod("two", json!({"containers": [container("d", 1)]})).await;
    world.until_running("two").await;
    assert_eq!(plugin.calls(), ["prefer 1 of g1, with []", "allocate g1", "start g1"]);
    let started = world.runtime.state.lock().unwrap().named("c").len();
    assert_eq!(started, 1, "the first pod was left alone");

    // What ended while no agent ran is free again.
    world.stop_agent().await;
    world.pods().delete("one", &DeleteParams { grace_period_seconds: Some(0), ..Default::default() }).await.unwrap();
    drop(plugin);
    world.start_agent();
    let file = world.agent_dir().join("device-plugins/kubelet_internal_checkpoint");
    let uid = world.pods().get("two").await.unwrap().metadata.uid.unwrap();
    let pods = || {
        let kept: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        kept["Data"]["PodDeviceEntries"].as_array().into_iter().flatten().map(|entry| entry["PodUID"].clone()).collect::<Vec<_>>()
    };
    world.eventually("the checkpoint", async || pods() == [json!(uid)]).await;
}

#[tokio::test]
async fn a_plug_in_that_refuses_fails_the_pod_and_one_that_is_gone_offers_nothing() {
    let world = World::linux().await;
    let plugin = world.plugin(&["g1"]).await;
    world.shows("1", "1").await;
    *plugin.refuses.lock().unwrap() = true;
    world.pod("one", json!({"containers": [container("c", 1)]})).await;
    let status = world.until("one", "refused", |status| status["phase"] == "Failed").await;
    let why = "Allocate failed due to rpc error: code = Internal desc = the device is on fire, which is unexpected";
    assert!(status["message"].as_str().unwrap().contains(why), "{status}");
    drop(plugin);
    world.shows("1", "0").await;
}

#[tokio::test]
async fn registrations_are_checked() {
    let world = World::linux().await;
    let _plugin = Plugin::serve(&world.agent_dir().join("device-plugins"), "gpu.sock", &["g1"]);
    for (endpoint, resource, version, why) in [
        ("gpu.sock", GPU, "v1alpha", r#"requested API version "v1alpha" is not supported by kubelet. Supported version is ["v1beta1"]"#),
        ("gpu.sock", "gpu", "v1beta1", r#"the ResourceName "gpu" is invalid"#),
        ("gpu.sock", "kubernetes.io/gpu", "v1beta1", r#"the ResourceName "kubernetes.io/gpu" is invalid"#),
        ("../gpu.sock", GPU, "v1beta1", "the endpoint \"../gpu.sock\" is no name of a socket"),
        ("none.sock", GPU, "v1beta1", "failed to get device plugin options"),
    ] {
        let refused = register(&world.agent_dir(), endpoint, resource, version).await.unwrap_err();
        assert!(refused.message().starts_with(why), "{refused}");
    }
    assert_eq!(world.device_counts().await, (Value::Null, Value::Null));
}

#[tokio::test]
async fn a_plug_in_may_register_in_the_directory_of_plug_ins() {
    let world = World::linux().await;
    let options = Options { kind: "DevicePlugin".into(), versions: vec!["v1beta1".into()], ..Options::new(GPU) };
    let registrar = Driver::start(&world.drive(), options, Default::default());
    // In the place of the driver that the registration names.
    let plugin = Plugin::serve(&world.agent_dir().join("plugins").join(GPU), "csi.sock", &["g1"]);
    world.shows("1", "1").await;
    world.eventually("the plug-in told", async || registrar.state().registrations.last() == Some(&(true, String::new()))).await;
    drop(registrar);
    world.shows("1", "0").await;
    drop(plugin);
}
