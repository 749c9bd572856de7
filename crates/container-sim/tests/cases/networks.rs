//! Sandboxes on Windows nodes whose network HNS lost.

use std::path::PathBuf;

use cri::annotations::NETWORK_PROBLEM;
use cri::v1;
use hcn::blocking::Client;
use hcn::{Guid, HostComputeEndpoint, HostComputeNamespace, HostComputeNetwork, NetworkType, Query};
use test_lab::{same, until_async};

use crate::support::{self, Node, container, http_at, windows_sandbox};

const IIS: &str = "microsoft/iis";

/// A pod that serves on port 80.
struct Pod {
    id: String,
    name: &'static str,
    ip: String,
}

impl Pod {
    async fn start(node: &Node, name: &'static str) -> Self {
        let id = node.run(v1::PodSandboxConfig { windows: None, ..windows_sandbox(name) }).await;
        node.start(&id, container("iis", IIS, &[])).await;
        let ip = node.sandbox(&id).await.network.unwrap().ip;
        let pod = Self { id, name, ip };
        pod.serves("at first").await;
        pod
    }

    fn answers(&self) -> bool {
        http_at(&format!("{}:80", self.ip), "GET", "/hostname", "").is_some_and(|answer| answer.ends_with(&format!("{}\n", self.name)))
    }

    async fn serves(&self, when: &str) {
        until_async(&format!("{} serves {when}", self.name), async || self.answers()).await;
    }
}

/// The sandbox's state in CRI, and what is wrong with its network.
async fn state(node: &Node, pod: &Pod) -> (v1::PodSandboxState, Option<String>) {
    let mut status = node.sandbox(&pod.id).await;
    (status.state(), status.annotations.remove(NETWORK_PROBLEM))
}

/// Waits until a sandbox is not ready for want of a network, and says why.
async fn lost(node: &Node, pod: &Pod) -> String {
    let lost = async || match state(node, pod).await {
        (v1::PodSandboxState::SandboxNotready, Some(reason)) => Ok(reason),
        other => Err(format!("{other:?}")),
    };
    until_async(format_args!("{} to lose its network", pod.name), lost).await
}

/// Waits until a sandbox is ready without a problem of its network.
async fn well(node: &Node, pod: &Pod, when: &str) {
    let ready = async || same(state(node, pod).await, &(v1::PodSandboxState::SandboxReady, None));
    until_async(format_args!("{} to be ready {when}", pod.name), ready).await;
}

fn local(hns: &Client, pod: &Pod) -> HostComputeEndpoint {
    let all: Vec<HostComputeEndpoint> = hns.list(&Query::default()).unwrap();
    all.into_iter().find(|endpoint| endpoint.ip().is_some_and(|ip| ip.to_string() == pod.ip)).expect("the pod's endpoint")
}

fn network(hns: &Client, id: Guid, prefix: &str) {
    let prefix: ipnet::IpNet = prefix.parse().unwrap();
    let gateway = prefix.hosts().next().unwrap();
    hns.create(id, &HostComputeNetwork::new("mullion", NetworkType::L2Bridge, hcn::Subnet::new(prefix, gateway))).unwrap();
}

/// Restarts the service and waits until it answers.
async fn restart(simulator: &hns_sim::Simulator, hns: &Client, wipe: bool) {
    simulator.restart(hns_sim::admin::Restart { away_ms: 300, wipe, ..Default::default() }).unwrap();
    until_async("the service answers", async || hns.ids::<HostComputeNetwork>(&Query::default()).is_ok()).await;
}

pub async fn lost_networks(dir: PathBuf) {
    let (address, simulator) = support::hns(&dir);
    let hns = Client::new(simulator.session());
    let mut node = Node::windows_over(&dir, 20348, &address).await;
    node.pull(IIS).await.unwrap();
    let pods = [Pod::start(&node, "web-0").await, Pod::start(&node, "web-1").await];
    let all_serve = async |node: &Node, when: &str| {
        for pod in &pods {
            pod.serves(when).await;
            well(node, pod, when).await;
        }
    };
    let before = local(&hns, &pods[0]);

    // Somebody deletes one endpoint by hand.
    hns.delete::<HostComputeEndpoint>(&before.id).unwrap();
    all_serve(&node, "after its endpoint was deleted").await;
    let again = local(&hns, &pods[0]);
    assert_eq!((again.id, &again.mac_address, again.policies), (before.id, &before.mac_address, before.policies), "as it was");

    // The service starts again without endpoints.
    simulator.add_fault("restart-loses-endpoints,count=1".parse().unwrap()).unwrap();
    restart(&simulator, &hns, false).await;
    all_serve(&node, "after a restart lost the endpoints").await;

    // Without a network the pods have the reason in CRI; its owner makes it again under another id.
    let subject = hns.get_by_name::<HostComputeNetwork>("mullion").unwrap().unwrap().id;
    hns.delete::<HostComputeNetwork>(&subject).unwrap();
    let reasons = ["HNS network \"mullion\" does not exist", "HNS has lost the endpoint"];
    let reported = async || {
        let (ready, problem) = state(&node, &pods[1]).await;
        assert_eq!(ready, v1::PodSandboxState::SandboxReady, "it can be repaired");
        let problem = problem.unwrap_or_default();
        if reasons.iter().any(|reason| problem.contains(reason)) { Ok(()) } else { Err(problem) }
    };
    until_async("a report of the missing network", reported).await;
    network(&hns, Guid::random(), "192.168.1.0/24");
    all_serve(&node, "after the network was made again").await;
    assert_eq!(local(&hns, &pods[0]).mac_address, before.mac_address);

    // What is lost while no runtime looks is repaired when it starts.
    node.stop().await;
    hns.delete::<HostComputeEndpoint>(&local(&hns, &pods[1]).id).unwrap();
    node.restart().await;
    all_serve(&node, "after the runtime started again").await;

    irreparable(&node, &hns, &simulator, pods).await;
}

/// What needs another sandbox is not ready, and another one works.
async fn irreparable(node: &Node, hns: &Client, simulator: &hns_sim::Simulator, [first, second]: [Pod; 2]) {
    let namespace = local(hns, &first).host_compute_namespace;
    hns.delete::<HostComputeNamespace>(&namespace).unwrap();
    let reason = lost(node, &first).await;
    assert!(reason.contains(&format!("namespace {namespace}")), "{reason}");
    well(node, &second, "beside it").await;
    assert!(second.answers());
    node.remove(&first.id).await;
    let first = Pod::start(node, "web-2").await;

    // The network comes back with another subnet: the address of the pod is of no use.
    let subject = hns.get_by_name::<HostComputeNetwork>("mullion").unwrap().unwrap().id;
    hns.delete::<HostComputeNetwork>(&subject).unwrap();
    network(hns, subject, "192.168.9.0/24");
    let reason = lost(node, &first).await;
    assert!(reason.contains("outside the subnet 192.168.9.0/24"), "{reason}");
    node.remove(&first.id).await;
    node.remove(&second.id).await;
    hns.delete::<HostComputeNetwork>(&subject).unwrap();
    network(hns, subject, "192.168.1.0/24");

    // Everything is forgotten.
    let pod = Pod::start(node, "web-3").await;
    restart(simulator, hns, true).await;
    let reason = lost(node, &pod).await;
    assert!(reason.contains("HNS has lost namespace"), "{reason}");
    node.remove(&pod.id).await;
    network(hns, subject, "192.168.1.0/24");
    let pod = Pod::start(node, "web-4").await;
    node.remove(&pod.id).await;
    let left: Vec<HostComputeEndpoint> = hns.list(&Query::default()).unwrap();
    assert!(left.is_empty(), "{left:?}");
}
