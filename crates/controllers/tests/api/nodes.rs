//! Nodes that fall silent and come back.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};
use std::time::{Duration, Instant};

use controllers::Timing;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, Pod, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;
use test_lab::until_async;

use crate::common::{Cluster, create, deployment, object};

fn taints(node: &Node) -> Vec<String> {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let mut taints: Vec<String> = taints.map(|taint| format!("{}:{}", taint.key, taint.effect)).collect();
    taints.sort();
    taints
}

async fn ready_endpoints(slices: &Api<EndpointSlice>) -> usize {
    let slices = slices.list(&ListParams::default().labels("kubernetes.io/service-name=web")).await.unwrap().items;
    let endpoints = slices.iter().flat_map(|slice| slice.endpoints.iter().flatten());
    endpoints.filter(|one| one.conditions.as_ref().and_then(|state| state.ready) == Some(true)).count()
}

/// A clock that goes on when the test says so, and counts who asks for the time.
#[derive(Clone, Default)]
struct TestClock {
    minutes: Arc<AtomicU64>,
    asked: Arc<AtomicU64>,
}

impl TestClock {
    /// Nodes may be silent for an hour of this clock.
    fn timing(&self) -> Timing {
        let (clock, began) = (self.clone(), Instant::now());
        let now = move || {
            clock.asked.fetch_add(1, SeqCst);
            began + Duration::from_secs(60 * clock.minutes.load(SeqCst))
        };
        Timing { node_grace: Duration::from_secs(3600), clock: Arc::new(now) }
    }

    fn advance(&self, minutes: u64) {
        self.minutes.fetch_add(minutes, SeqCst);
    }

    /// The time that a node's heartbeat bears.
    fn timestamp(&self) -> jiff::Timestamp {
        jiff::Timestamp::now() + Duration::from_secs(60 * self.minutes.load(SeqCst))
    }

    fn asked(&self) -> u64 {
        self.asked.load(SeqCst)
    }
}

/// Changes a node, so that the controller looks at it; it is not heard of by that.
async fn look_at(nodes: &Api<Node>, name: &str, look: &str) {
    let label = Patch::Merge(json!({"metadata": {"labels": {"look": look}}}));
    nodes.patch(name, &PatchParams::default(), &label).await.unwrap();
}

#[tokio::test]
async fn a_silent_node_is_unknown_tainted_and_without_endpoints_until_it_speaks() {
    let clock = TestClock::default();
    let mut cluster = Cluster::start_with(clock.timing()).await;
    cluster.add_node("win01", "windows").await;
    cluster.add_node("win02", "windows").await;
    create(&cluster.api::<Service>(), &object(json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}})))
        .await;
    create(&cluster.api(), &deployment("web", 2, "microsoft/iis")).await;
    let slices = cluster.api::<EndpointSlice>();
    until_async("both pods are endpoints", async || ready_endpoints(&slices).await == 2).await;
    let nodes: Api<Node> = Api::all(cluster.admin());
    clock.advance(40);
    cluster.heartbeat_at("win02", clock.timestamp()).await;
    clock.advance(30);
    // One watch tells of both nodes: the controller heard win02 before it looks at win01.
    look_at(&nodes, "win01", "after-its-grace").await;
    let lost = ["node.kubernetes.io/unreachable:NoExecute", "node.kubernetes.io/unreachable:NoSchedule"];
    let node = until_async("the silent node is tainted", async || {
        let node = nodes.get("win01").await.unwrap();
        (taints(&node) == lost).then_some(node)
    })
    .await;
    let conditions = node.status.unwrap().conditions.unwrap();
    let ready = conditions.iter().find(|one| one.type_ == "Ready").unwrap();
    assert_eq!((ready.status.as_str(), ready.reason.as_deref()), ("Unknown", Some("NodeStatusUnknown")));
    until_async("its pod is no endpoint any more", async || ready_endpoints(&slices).await == 1).await;
    assert_eq!(taints(&nodes.get("win02").await.unwrap()), Vec::<String>::new(), "the other one spoke within its grace");
    cluster.heartbeat_at("win01", clock.timestamp()).await;
    until_async("it speaks again", async || taints(&nodes.get("win01").await.unwrap()).is_empty()).await;
    let message = "NodeNotReady: Node win01 status is now: NodeNotReady".to_owned();
    until_async("the event", async || cluster.events("default", "win01").await.contains(&message)).await;
    cluster.stop().await;
}

#[tokio::test]
async fn the_lease_alone_keeps_a_node_alive() {
    let clock = TestClock::default();
    let mut cluster = Cluster::start_with(clock.timing()).await;
    cluster.add_node("win01", "windows").await;
    let nodes: Api<Node> = Api::all(cluster.admin());
    let leases: Api<Lease> = Api::namespaced(cluster.admin(), "kube-node-lease");
    create(&leases, &object(json!({"metadata": {"name": "win01"}, "spec": {"holderIdentity": "win01", "leaseDurationSeconds": 40}}))).await;
    for _ in 0..20 {
        let asked = clock.asked();
        clock.advance(10);
        let renewed = json!({"spec": {"renewTime": jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()}});
        leases.patch("win01", &PatchParams::default(), &Patch::Merge(renewed)).await.unwrap();
        // After the first rounds nothing but the lease makes the controller ask for the time.
        until_async("the controller hears of the lease", async || clock.asked() > asked).await;
    }
    let asked = clock.asked();
    look_at(&nodes, "win01", "with-a-lease").await;
    until_async("the controller looks at the node", async || clock.asked() > asked).await;
    // Had the node been lost, it would be lost twice from here on.
    cluster.heartbeat_at("win01", clock.timestamp()).await;
    until_async("it is heard", async || taints(&nodes.get("win01").await.unwrap()).is_empty()).await;
    clock.advance(70);
    look_at(&nodes, "win01", "without").await;
    until_async("without it the node is lost", async || !taints(&nodes.get("win01").await.unwrap()).is_empty()).await;
    let alone = taints(&nodes.get("win01").await.unwrap());
    assert_eq!(alone, ["node.kubernetes.io/unreachable:NoSchedule"], "the last node drives nobody out");
    let losses = async || cluster.event_counts("default", "win01", "NodeNotReady").await;
    until_async("the event", async || losses().await > 0).await;
    assert_eq!(losses().await, 1, "the lease kept it alive before");
    cluster.stop().await;
}

#[tokio::test]
async fn an_eviction_that_is_due_later_is_cancelled_when_its_taint_goes() {
    let mut cluster = Cluster::start().await;
    cluster.add_node("win01", "windows").await;
    let registered = "RegisteredNode: Registered Node win01 in Controller".to_owned();
    until_async("the node is welcomed", async || cluster.events("default", "win01").await.contains(&registered)).await;
    let pods = cluster.api::<Pod>();
    let pod = |name: &str, tolerations: serde_json::Value| -> Pod {
        object(json!({"metadata": {"name": name}, "spec": {"tolerations": tolerations, "containers": [{"name": "c", "image": "nanoserver"}]}}))
    };
    create(&pods, &pod("patient", json!([{"key": "broken", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3600}]))).await;
    create(&pods, &pod("touchy", json!([]))).await;
    let runs = async |name: &str| pods.get(name).await.unwrap().status.is_some_and(|status| status.pod_ip.is_some());
    until_async("both run", async || runs("patient").await && runs("touchy").await).await;
    let nodes: Api<Node> = Api::all(cluster.admin());
    let taint = json!({"spec": {"taints": [{"key": "broken", "effect": "NoExecute"}]}});
    nodes.patch("win01", &PatchParams::default(), &Patch::Strategic(taint)).await.unwrap();
    until_async("the pod without a toleration is evicted", async || pods.get_opt("touchy").await.unwrap().is_none()).await;
    let told = async |name: &str, what: &str| cluster.events("default", name).await.contains(&format!("TaintManagerEviction: {what} default/{name}"));
    until_async("an event says so", async || told("touchy", "Marking for deletion Pod").await).await;
    nodes.patch("win01", &PatchParams::default(), &Patch::Merge(json!({"spec": {"taints": null}}))).await.unwrap();
    until_async("the other one may stay", async || told("patient", "Cancelling deletion of Pod").await).await;
    assert!(runs("patient").await);
    cluster.stop().await;
}
