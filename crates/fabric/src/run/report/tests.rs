mod bad_input;

use std::sync::{Arc, Mutex};

use apiserver::Identity;
use hcn::{HcnClient, HnsVersion, HostComputeNetwork, NetworkType, Subnet};
use hns_sim::Simulator;
use hns_sim::kernel::NoKernel;
use hns_sim::switches::Switches;
use host::HostRoute;
use k8s_openapi::api::core::v1::{Event, Node};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use test_lab::server::Keys;
use test_lab::until_async;

use super::*;
use crate::examples;
use crate::mode;
use crate::run::tests::{MemoryRoutes, config};
use crate::run::{Config, run};

fn row(cidr: &str, address: &str, condition: Option<(bool, &str)>) -> NodeRow {
    let condition = condition.map(|(unavailable, reason)| Condition { unavailable, reason: reason.into(), message: String::new() });
    NodeRow { pod_cidrs: vec![cidr.parse().unwrap()], addresses: vec![address.parse().unwrap()], condition, ..NodeRow::default() }
}

fn settings(mode: Mode, node: &str, role: Role) -> Settings {
    let cluster_cidrs = vec!["192.168.0.0/16".parse().unwrap()];
    Settings { mode, vxlan: mode::Vxlan::default(), bgp: mode::bgp::Bgp::default(), node_name: node.into(), cluster_cidrs, role }
}

fn node_role() -> Role {
    Role::Node(Box::new(examples::pods(examples::bridge())))
}

/// Each condition as one line.
fn shown(settings: &Settings, nodes: &BTreeMap<String, NodeRow>, outcome: &Outcome) -> Vec<String> {
    let lasting: Vec<&Problem> = outcome.problems.iter().filter(|problem| !problem.kind.may_pass()).collect();
    let all = conditions(settings, nodes, outcome, &lasting);
    all.into_iter().map(|(node, Condition { unavailable, reason, message })| format!("{node} {unavailable} {reason}: {message}")).collect()
}

#[test]
fn node_owns_its_condition_and_is_not_blamed_for_others() {
    let nodes =
        BTreeMap::from([("a".to_owned(), row("192.168.0.0/24", "10.0.0.1", None)), ("b".to_owned(), row("192.168.1.0/24", "10.0.0.2", None))]);
    let settings = settings(Mode::HostGateway, "a", node_role());
    let outcome = |ready, problems: &[Problem]| Outcome { ready, problems: problems.to_vec(), ..Outcome::default() };
    let up = ["a false PodNetworkUp: the pod network of this node, host-gateway, is up"];
    assert_eq!(shown(&settings, &nodes, &outcome(true, &[])), up);
    assert_eq!(shown(&settings, &nodes, &outcome(true, &[Problem::of_node(Kind::BackendDiffers, "b", "node b: x")])), up);
    assert_eq!(shown(&settings, &nodes, &outcome(false, &[])), [""; 0], "not yet known");
    assert_eq!(shown(&settings, &nodes, &outcome(true, &[Problem::failed("HNS is away")])), [""; 0], "it may pass");
    let one_family = Problem::of_node(Kind::FamilyMissing, "a", "node a: IPv4 alone");
    assert_eq!(shown(&settings, &nodes, &outcome(true, &[one_family])), up, "pods have a network");
    let taken = Problem::here(Kind::NetworkOfOthers, "HNS network is not ours");
    assert_eq!(shown(&settings, &nodes, &outcome(false, &[taken])), ["a true PodNetworkDown: HNS network is not ours"]);
    let overlaps = Problem::of_node(Kind::CidrOverlaps, "a", "node a: overlaps");
    assert_eq!(shown(&settings, &nodes, &outcome(true, &[overlaps])), ["a true PodNetworkDown: node a: overlaps"]);
    assert_eq!(shown(&Settings { mode: Mode::L3, ..settings }, &nodes, &outcome(true, &[])), [""; 0], "the router knows");
}

#[test]
fn router_owns_the_conditions_of_the_mode_l3() {
    let mut nodes = BTreeMap::from([
        ("a".to_owned(), row("192.168.0.0/24", "10.0.0.1", None)),
        ("b".to_owned(), row("192.168.1.0/24", "10.0.0.2", None)),
        ("waits".to_owned(), NodeRow::default()),
    ]);
    nodes.insert("c".to_owned(), row("192.168.1.0/25", "10.0.0.3", None));
    let router = settings(Mode::L3, "", Role::Router);
    let reached = ["a", "b"].map(str::to_owned).into();
    let problems = vec![Problem::of_node(Kind::CidrOverlaps, "c", "node c: overlaps")];
    let outcome = Outcome { ready: true, problems, reached, done: true, before_switch: None };
    assert_eq!(
        shown(&router, &nodes, &outcome),
        [
            "a false RouteCreated: the router leads to 192.168.0.0/24",
            "b false RouteCreated: the router leads to 192.168.1.0/24",
            "c true NoRouteCreated: node c: overlaps"
        ]
    );
    let blind = Outcome { problems: vec![Problem::failed("no table")], ..outcome };
    assert_eq!(shown(&router, &nodes, &blind), [""; 0], "it does not know");
    assert_eq!(shown(&Settings { mode: Mode::HostGateway, ..router }, &nodes, &blind), [""; 0]);
}

#[test]
fn condition_of_another_owner_that_agrees_is_enough() {
    let of = |unavailable, reason: &str, message: &str| Condition { unavailable, reason: reason.into(), message: message.into() };
    let (up, down) = (of(false, UP, "x"), of(true, DOWN, "y"));
    assert!(differs(None, &up) && differs(None, &down));
    assert!(!differs(Some(&up), &up) && !differs(Some(&of(false, "FlannelIsUp", "")), &up));
    assert!(differs(Some(&of(true, "NoRouteCreated", "")), &up), "as node agents of clouds register nodes");
    assert!(differs(Some(&up), &down) && !differs(Some(&down), &down) && differs(Some(&of(true, DOWN, "z")), &down));
}

#[test]
fn a_few_nodes_speak_for_all_and_always_the_same() {
    let mut nodes: BTreeMap<String, NodeRow> =
        (0..40).map(|n| (format!("win{n:02}"), row(&format!("192.168.{n}.0/24"), &format!("10.0.0.{n}"), Some((false, UP))))).collect();
    nodes.extend((40..80).map(|n| (format!("lin{n:02}"), row(&format!("192.168.{n}.0/24"), &format!("10.0.0.{n}"), Some((false, "FlannelIsUp"))))));
    let differs = Problem::of_node(Kind::BackendDiffers, "lin44", "node lin44: x");
    let speak = |problem: &Problem| -> Vec<String> {
        let ours = nodes.keys().filter(|name| name.starts_with("win"));
        ours.filter(|own| object(&settings(Mode::HostGateway, own, node_role()), &nodes, problem).as_deref() == Some("lin44")).cloned().collect()
    };
    assert_eq!(speak(&differs).len(), WITNESSES);
    assert_ne!(speak(&differs), speak(&Problem::of_node(Kind::BackendDiffers, "lin45", "x")));
    let own = |problem: &Problem| object(&settings(Mode::HostGateway, "win07", node_role()), &nodes, problem);
    assert_eq!(own(&Problem::of_node(Kind::NextHopUnreachable, "lin44", "x")).as_deref(), Some("win07"), "it is between two nodes");
    assert_eq!(own(&Problem::of_node(Kind::CidrOverlaps, "win07", "x")).as_deref(), Some("win07"));
    assert_eq!(object(&settings(Mode::L3, "", Role::Router), &nodes, &differs).as_deref(), Some("lin44"));
    let host = Role::Host { address: "10.0.0.2".parse().unwrap() };
    assert_eq!(object(&settings(Mode::HostGateway, "cp", host), &nodes, &differs), None);
}

/// A node of the API server: `InternalIP` and conditions are the agent's.
async fn register(nodes: &Api<Node>, name: &str, cidr: &str, address: &str, annotations: serde_json::Value) {
    let node = json!({"metadata": {"name": name, "annotations": annotations}, "spec": {"podCIDR": cidr, "podCIDRs": [cidr]}});
    nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": address}],
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "False"}]}});
    nodes.patch_status(name, &PatchParams::default(), &Patch::Strategic(status)).await.unwrap();
}

/// The node's conditions, but for times.
async fn of_node(nodes: &Api<Node>, name: &str) -> Vec<String> {
    let conditions = nodes.get(name).await.unwrap().status.unwrap().conditions.unwrap();
    let mut all: Vec<String> =
        conditions.into_iter().map(|c| format!("{}={} {}", c.type_, c.status, c.reason.unwrap_or_default()).trim_end().to_owned()).collect();
    all.sort();
    all
}

#[tokio::test]
async fn api_server_gets_conditions_and_events_from_the_node_itself() {
    let kernel = NoKernel { management: Some("127.0.0.12".parse().unwrap()), survived: true };
    let simulator = Simulator::new(Box::new(kernel), Switches::of(HnsVersion::new(13, 3)), None).unwrap();
    let hcn = HcnClient::new(simulator.session());
    let subnet = Subnet::new("172.20.0.0/24".parse().unwrap(), "172.20.0.1".parse().unwrap());
    let foreign = hcn::Guid::random();
    hcn.create_network(foreign, &HostComputeNetwork::new("mullion", NetworkType::Transparent, subnet)).await.unwrap();

    let dir = tempfile::tempdir().unwrap();
    let server = apiserver::start(Keys::new().config(dir.path().join("store"))).await.unwrap();
    let client = |user: &str, group: &str| {
        let identity = Identity { user: user.into(), groups: vec![group.into(), "system:authenticated".into()] };
        Client::new(server.in_process(identity), "default")
    };
    let admin = client("admin", "system:masters");
    let (nodes, events) = (Api::<Node>::all(admin.clone()), Api::<Event>::default_namespaced(admin));
    register(&nodes, "win01", "192.168.1.0/24", "127.0.0.12", json!({})).await;
    register(&nodes, "lin01", "192.168.0.0/24", "127.0.0.11", json!({"flannel.alpha.coreos.com/backend-type": "ipip"})).await;

    let lan = HostRoute { dst: "127.0.0.0/24".parse().unwrap(), via: None, oif: 7, on_link: false, metric: 0, ours: false };
    let routes = Arc::new(MemoryRoutes(Mutex::new(vec![lan])));
    let node = client("system:node:win01", "system:nodes");
    let fabric = Config { full_pass: Duration::from_millis(200), ..config(&node, &routes, &hcn, &dir.path().join("cni")) };
    let fabric = tokio::spawn(run(fabric, std::future::pending()));

    let down = ["DiskPressure=False", "NetworkUnavailable=True PodNetworkDown", "Ready=True"];
    until_async("the condition of a node without network", async || of_node(&nodes, "win01").await == down).await;
    let told = async |node: &str, reason: &str| -> Option<String> {
        let list = events.list(&kube::api::ListParams::default()).await.unwrap();
        list.items.into_iter().find(|e| e.involved_object.name.as_deref() == Some(node) && e.reason.as_deref() == Some(reason))?.message
    };
    until_async("events", async || told("win01", "HNSNetworkOfOthers").await.is_some() && told("lin01", "NetworkBackendDiffers").await.is_some())
        .await;
    let message = told("win01", "HNSNetworkOfOthers").await.unwrap();
    let wrong = "node win01: HNS network \"mullion\" of type Transparent exists and is not ours";
    assert!(message.starts_with(wrong) && message.contains("Remove-HnsNetwork"), "{message}");
    assert!(told("lin01", "NetworkBackendDiffers").await.unwrap().contains("node lin01: its flannel backend is ipip, not host-gw"));

    hcn.delete_network(&foreign).await.unwrap();
    let up = ["DiskPressure=False", "NetworkUnavailable=False PodNetworkUp", "Ready=True"];
    until_async("the condition of a whole node", async || of_node(&nodes, "win01").await == up).await;
    assert_eq!(of_node(&nodes, "lin01").await, ["DiskPressure=False", "Ready=True"], "another node's condition is its own");

    // Another owner says the contrary: it is written once in a while, not without end.
    let contrary = json!({"status": {"conditions": [{"type": "NetworkUnavailable", "status": "True", "reason": "NoRouteCreated"}]}});
    nodes.patch_status("win01", &PatchParams::default(), &Patch::Strategic(contrary)).await.unwrap();
    until_async("the condition again", async || of_node(&nodes, "win01").await == up).await;
    fabric.abort();
    server.shutdown().await;
}
