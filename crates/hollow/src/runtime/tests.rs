//! The runtime over its own client, as the agent uses it.

use std::sync::Arc;
use std::time::Duration;

use cri::{Client, Kind, Notice};

use super::*;

fn texts(pairs: &[(&str, &str)]) -> Texts {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn pod(uid: &str) -> v1::RunPodSandboxRequest {
    let config = v1::PodSandboxConfig { labels: texts(&[("uid", uid)]), ..Default::default() };
    v1::RunPodSandboxRequest { config: Some(config), runtime_handler: String::new() }
}

fn web(sandbox: &str) -> v1::CreateContainerRequest {
    let image = Some(v1::ImageSpec { image: "web:1".to_owned(), ..Default::default() });
    let config = v1::ContainerConfig { image, labels: texts(&[("uid", sandbox)]), ..Default::default() };
    v1::CreateContainerRequest { pod_sandbox_id: sandbox.to_owned(), config: Some(config), sandbox_config: None }
}

fn start(id: &str) -> v1::StartContainerRequest {
    v1::StartContainerRequest { container_id: id.to_owned() }
}

async fn pull(client: &Client) {
    let image = Some(v1::ImageSpec { image: "web:1".to_owned(), ..Default::default() });
    client.pull_image(v1::PullImageRequest { image, ..Default::default() }).await.unwrap();
}

fn runtime(network: &str) -> (Arc<Runtime>, Client) {
    let runtime = Arc::new(Runtime::default());
    runtime.set_network(Some(network.parse().unwrap()));
    (runtime.clone(), Client::in_process("hollow", runtime))
}

async fn status(client: &Client, id: &str) -> v1::ContainerStatus {
    let request = v1::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
    client.container_status(request).await.unwrap().status.unwrap()
}

#[tokio::test]
async fn a_container_runs_until_it_is_stopped_and_events_say_so() {
    let (_runtime, client) = runtime("100.96.0.0/24");
    let mut events = client.events();
    assert!(matches!(events.next().await, Some(Notice::Relist)));
    let sandbox = client.run_pod_sandbox(pod("a")).await.unwrap();
    let early = client.create_container(web(&sandbox)).await.unwrap_err();
    assert_eq!(early.kind(), Kind::NotFound, "its image was not pulled");
    pull(&client).await;
    let id = client.create_container(web(&sandbox)).await.unwrap();
    client.start_container(start(&id)).await.unwrap();
    assert!(client.start_container(start(&id)).await.is_err(), "it runs already");
    assert_eq!(status(&client, &id).await.state, v1::ContainerState::ContainerRunning as i32);
    client.stop_container(&id, Duration::ZERO).await.unwrap();
    let ended = status(&client, &id).await;
    assert_eq!((ended.state, ended.exit_code, ended.finished_at > 0), (v1::ContainerState::ContainerExited as i32, 0, true));
    for expected in [v1::ContainerEventType::ContainerStartedEvent, v1::ContainerEventType::ContainerStoppedEvent] {
        let Some(Notice::Event(event)) = events.next().await else { panic!("an event is missing") };
        assert_eq!((event.container_event_type, event.container_id == id), (expected as i32, true));
        assert_eq!(event.pod_sandbox_status.unwrap().labels["uid"], "a");
    }
}

#[tokio::test]
async fn sandboxes_have_addresses_of_the_pod_cidr_and_give_them_back() {
    let (runtime, client) = runtime("100.96.7.0/29");
    let address = async |id: &str| {
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: false };
        client.pod_sandbox_status(request).await.unwrap().status.unwrap().network.unwrap().ip
    };
    let mut all = Vec::new();
    for uid in ["a", "b", "c", "d"] {
        all.push(client.run_pod_sandbox(pod(uid)).await.unwrap());
    }
    assert_eq!([address(&all[0]).await, address(&all[3]).await], ["100.96.7.3", "100.96.7.6"]);
    let full = client.run_pod_sandbox(pod("e")).await.unwrap_err();
    assert!(full.to_string().contains("every address of 100.96.7.0/29 is in use"), "{full}");
    client.remove_pod_sandbox(v1::RemovePodSandboxRequest { pod_sandbox_id: all[1].clone() }).await.unwrap();
    let again = client.run_pod_sandbox(pod("e")).await.unwrap();
    assert_eq!(address(&again).await, "100.96.7.4");
    runtime.set_network(None);
    assert!(client.run_pod_sandbox(pod("f")).await.unwrap_err().to_string().contains("no pod CIDR"));
}

#[tokio::test]
async fn a_sandbox_takes_its_containers_with_it() {
    let (_runtime, client) = runtime("100.96.0.0/24");
    pull(&client).await;
    let sandbox = client.run_pod_sandbox(pod("a")).await.unwrap();
    let other = client.run_pod_sandbox(pod("b")).await.unwrap();
    let id = client.create_container(web(&sandbox)).await.unwrap();
    let kept = client.create_container(web(&other)).await.unwrap();
    client.start_container(start(&id)).await.unwrap();
    client.stop_pod_sandbox(v1::StopPodSandboxRequest { pod_sandbox_id: sandbox.clone() }).await.unwrap();
    assert_eq!(status(&client, &id).await.state, v1::ContainerState::ContainerExited as i32);
    assert!(client.create_container(web(&sandbox)).await.is_err(), "it is not ready any more");
    client.remove_pod_sandbox(v1::RemovePodSandboxRequest { pod_sandbox_id: sandbox }).await.unwrap();
    let left = client.list_containers(v1::ListContainersRequest::default()).await.unwrap();
    assert_eq!(left.iter().map(|container| &container.id).collect::<Vec<_>>(), [&kept]);
}
