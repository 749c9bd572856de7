//! The rows and the watcher against OVN's own databases and `ovn-northd`.
#![cfg(target_os = "linux")]

mod api;
mod lab;

use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use api::Api;
use lab::{LIMIT, client, counted, net, watching, watching_at};
use ovn::apply;
use ovn::rows::{KEY, Ref, Want, plan};
use ovn::topology::{self, Gateway};
use ovsdb::{Client, Datum, Replica, Uuid};
use serde_json::json;
use test_lab::ovn::Central;
use test_lab::{same, until_async};

fn gateway() -> Gateway {
    Gateway {
        node: "gw".into(),
        cluster_subnet: net("192.168.0.0/16"),
        physical_ip: net("10.240.0.1/24"),
        interface: "eth1".into(),
        mac: "02:00:00:00:00:01".into(),
        next_hop: "10.240.0.254".parse().unwrap(),
        rampout: vec![net("192.168.2.0/24")],
        chassis: "chassis-gw".into(),
    }
}

/// A master, two nodes and a gateway.
async fn build(client: &Client) {
    lab::apply(client, "master/cp", |replica| topology::master(replica, "cp")).await;
    for (node, subnet, mac) in [("lin01", "192.168.1.0/24", "0a:00:00:00:00:01"), ("win01", "192.168.2.0/24", "0a:00:00:00:00:02")] {
        lab::apply(client, &topology::node_scope(node), |replica| topology::node(replica, node, net(subnet), mac, Some(&format!("chassis-{node}"))))
            .await;
    }
    lab::apply(client, "gateway/gw", |replica| topology::gateway(replica, &gateway()).unwrap()).await;
}

/// All rows without UUIDs: rows by what they are called, each with what it holds.
fn dump(replica: &Replica) -> String {
    dump_of(replica, &TABLES[..7])
}

const TABLES: [&str; 10] = [
    "Logical_Router",
    "Logical_Router_Port",
    "Logical_Router_Static_Route",
    "NAT",
    "Logical_Switch",
    "Logical_Switch_Port",
    "Load_Balancer",
    "Port_Group",
    "Address_Set",
    "ACL",
];

fn dump_of(replica: &Replica, tables: &[&str]) -> String {
    // Written by northd: they come when they come.
    const OTHERS: [&str; 2] = ["up", "dynamic_addresses"];
    let label = |uuid: Uuid| {
        let row = TABLES.iter().find_map(|table| replica.table(table).get(uuid)).unwrap();
        match (row.text("name"), row.entry("external_ids", "mullion.io/key")) {
            ("", Some(key)) => key.to_owned(),
            ("", None) => row.get("external_ids").unwrap().pairs().find(|(key, _)| !key.contains("owner")).unwrap().0.to_owned(),
            (name, _) => name.to_owned(),
        }
    };
    let mut text = String::new();
    for table in tables {
        let mut rows: Vec<String> = Vec::new();
        for (uuid, row) in replica.table(table).rows() {
            let mut line = format!("{table} {}\n", label(uuid));
            for (name, value) in row.columns().filter(|(name, value)| *name != "name" && !value.is_empty() && !OTHERS.contains(name)) {
                let mut held: Vec<String> = value.uuids().map(label).collect();
                held.sort();
                let value = if held.is_empty() { value.to_string() } else { held.join(", ") };
                writeln!(line, "    {name}: {value}").unwrap();
            }
            rows.push(line);
        }
        rows.sort();
        text.extend(rows);
    }
    text
}

#[tokio::test]
async fn masters_nodes_and_gateways_write_the_rows_of_upstream() {
    let central = Central::new();
    let client = client(&central).await;
    build(&client).await;
    let built = client.state().replica;
    insta::assert_snapshot!(dump(&built));
    // What drifts is repaired, and nothing else is touched.
    central.nbctl(&["lsp-del", "stor-lin01"]);
    central.nbctl(&["lr-route-del", "GR_gw", "0.0.0.0/0"]);
    central.nbctl(&["ls-add", "foreign"]);
    central.nbctl(&["lsp-add", "lin01", "foreign-port"]);
    central.nbctl(&["set", "Logical_Router", "GR_gw", "external_ids:physical_ip=1.2.3.4", "external_ids:theirs=kept"]);
    client.when(LIMIT, |state| Ref::named("Logical_Switch_Port", "foreign-port").find(&state.replica).is_some()).await.unwrap();
    client
        .when(LIMIT, |state| Ref::named("Logical_Router", "GR_gw").find(&state.replica).unwrap().1.entry("external_ids", "theirs").is_some())
        .await
        .unwrap();
    build(&client).await;
    let repaired = client.state().replica;
    assert!(Ref::named("Logical_Switch", "foreign").find(&repaired).is_some());
    let (_, router) = Ref::named("Logical_Router", "GR_gw").find(&repaired).unwrap();
    assert_eq!((router.entry("external_ids", "physical_ip"), router.entry("external_ids", "theirs")), (Some("10.240.0.1"), Some("kept")));
    // A node that goes takes what is its own with it.
    for scope in ["node/lin01", "gateway/gw"] {
        lab::apply(&client, scope, |_| Vec::new()).await;
    }
    let left = dump(&client.state().replica);
    assert!(!left.contains("lin01") && !left.contains("GR_gw") && left.contains("win01") && left.contains("Logical_Switch foreign"), "{left}");
}

fn vips(replica: &Replica, key: &str, value: &str) -> Datum {
    Ref::external("Load_Balancer", key, value).find(replica).unwrap().1.get("vips").unwrap().clone()
}

async fn annotated(api: &Api, pod: &str) -> serde_json::Value {
    let text = until_async(format!("the annotation of {pod}"), || std::future::ready(api.annotation(pod, "ovn"))).await;
    serde_json::from_str(&text).unwrap()
}

#[tokio::test]
async fn the_watcher_gives_pods_ports_and_services_addresses() {
    let mut central = Central::new();
    let client = client(&central).await;
    build(&client).await;
    // What an earlier run left, and what is not ours.
    central.nbctl(&[
        "--",
        "lsp-add",
        "lin01",
        "default_gone",
        "--",
        "set",
        "Logical_Switch_Port",
        "default_gone",
        "external_ids:pod=true",
        "external_ids:\"mullion.io/owner\"=watcher",
    ]);
    central.nbctl(&["lsp-add", "lin01", "default_theirs"]);
    let api = Api::default();
    api.pod("web", "lin01");
    api.pod("theirs", "lin01");
    let watcher = watching(&central, &api);
    let web = annotated(&api, "web").await;
    assert_eq!((&web["gateway_ip"], web["ip_address"].as_str().unwrap().starts_with("192.168.1.")), (&json!("192.168.1.1"), true), "{web}");
    assert!(web["ip_address"].as_str().unwrap().ends_with("/24"));
    let today: serde_json::Value = serde_json::from_str(&api.annotation("web", "k8s.ovn.org/pod-networks").unwrap()).unwrap();
    assert_eq!(today["default"]["mac_address"], web["mac_address"]);
    let replica = client.when(LIMIT, |state| Ref::named("Logical_Switch_Port", "default_gone").find(&state.replica).is_none()).await.unwrap().replica;
    let (_, port) = Ref::named("Logical_Switch_Port", "default_web").find(&replica).unwrap();
    assert_eq!((port.entry("external_ids", "namespace"), port.entry("external_ids", "pod")), (Some("default"), Some("true")));
    let (_, theirs) = Ref::named("Logical_Switch_Port", "default_theirs").find(&replica).unwrap();
    assert!(theirs.get("external_ids").unwrap().is_empty(), "a port of somebody else stays as it is");
    // Services.
    api.service("web", "10.96.0.10", 80, 30080);
    api.slice("web", &["192.168.1.3", "192.168.1.4"], 8080);
    let backends = "192.168.1.3:8080,192.168.1.4:8080";
    client.when(LIMIT, |state| vips(&state.replica, "k8s-cluster-lb-tcp", "yes") == Datum::map([("10.96.0.10:80", backends)])).await.unwrap();
    client.when(LIMIT, |state| vips(&state.replica, "TCP_lb_gateway_router", "GR_gw") == Datum::map([("10.240.0.1:30080", backends)])).await.unwrap();
    api.slice("web", &["192.168.1.3"], 8081);
    client
        .when(LIMIT, |state| vips(&state.replica, "k8s-cluster-lb-tcp", "yes") == Datum::map([("10.96.0.10:80", "192.168.1.3:8081")]))
        .await
        .unwrap();
    // A pod on another node under the same name has another port; one that is gone has none.
    api.remove("pods", "web");
    client.when(LIMIT, |state| Ref::named("Logical_Switch_Port", "default_web").find(&state.replica).is_none()).await.unwrap();
    api.pod("web", "win01");
    assert!(annotated(&api, "web").await["ip_address"].as_str().unwrap().starts_with("192.168.2."));
    // The database ends and comes back: what changed meanwhile is written then, and nothing is doubled.
    central.programs.end("nb");
    api.pod("late", "win01");
    api.remove("services", "web");
    central.programs.start_database("nb", &[]);
    annotated(&api, "late").await;
    client.when(LIMIT, |state| state.connected && vips(&state.replica, "k8s-cluster-lb-tcp", "yes").is_empty()).await.unwrap();
    let ports = client.state().replica.table("Logical_Switch_Port").rows().filter(|(_, row)| row.text("name") == "default_web").count();
    assert_eq!(ports, 1);
    watcher.abort();
}

#[tokio::test]
async fn one_of_two_watchers_writes_and_the_other_takes_over() {
    let central = Central::new();
    let client = client(&central).await;
    build(&client).await;
    let api = Api::default();
    api.pod("first", "lin01");
    let (way, transactions) = counted(&central);
    let one = watching_at(&way, &api);
    annotated(&api, "first").await;
    // The other one has the same view of the cluster, and waits.
    let other = watching_at(&way, &api);
    api.pod("second", "lin01");
    annotated(&api, "second").await;
    one.abort();
    api.pod("third", "win01");
    annotated(&api, "third").await;
    // Each pod was written twice, with its port and then with its addresses, and annotated once. At rest nothing is written.
    let counts = || (transactions.load(Ordering::Relaxed), api.patches());
    assert_eq!(counts(), (6, 3));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(counts(), (6, 3));
    other.abort();
}

#[tokio::test]
async fn pods_that_are_there_at_the_start_are_written_together() {
    const PODS: usize = 400;
    let central = Central::new();
    let client = client(&central).await;
    build(&client).await;
    let api = Api::default();
    for number in 0..PODS {
        api.pod(&format!("pod{number}"), if number % 2 == 0 { "lin01" } else { "win01" });
    }
    let (way, transactions) = counted(&central);
    let watcher = watching_at(&way, &api);
    until_async("all annotations", || std::future::ready(same(api.patches(), &PODS))).await;
    // Ports, and then addresses as northd gives them out.
    let count = transactions.load(Ordering::Relaxed);
    assert!(count <= 12, "{count} transactions");
    watcher.abort();
}

#[tokio::test]
async fn a_row_that_the_server_refuses_keeps_no_other_from_its_transaction() {
    let central = Central::new();
    let client = client(&central).await;
    let group = || Ref::named("Port_Group", "group");
    // An ACL's priority is at most 32767.
    let acl = |priority: i64| {
        let want = Want::external("ACL", KEY, priority.to_string()).held_by(group(), "acls").with("priority", priority);
        want.with("direction", "to-lport").with("match", "ip4").with("action", "drop")
    };
    let plan = plan(&client.state().replica, "me", &[Want::named("Port_Group", "group"), acl(40_000), acl(1000)]);
    let problems = apply::write(&client, &plan, None).await.unwrap();
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    let text = problem.to_string();
    assert!(text.starts_with("cannot write ACL 40000: ") && text.contains("constraint violation"), "{text}");
    let replica = client.state().replica;
    let (_, row) = group().find(&replica).unwrap();
    let acls: Vec<_> =
        row.get("acls").unwrap().uuids().map(|uuid| replica.table("ACL").get(uuid).unwrap().get("priority").unwrap().as_integer()).collect();
    assert_eq!(acls, [Some(1000)]);
}

#[tokio::test]
async fn policies_become_groups_sets_and_acls_and_go_with_them() {
    let central = Central::new();
    let client = client(&central).await;
    build(&client).await;
    let api = Api::default();
    api.pod("web", "lin01");
    api.pod("db", "win01");
    api.namespace("default", json!({"team": "a"}));
    api.namespace("other", json!({"team": "b"}));
    api.pod("other/job", "win01");
    let watcher = watching(&central, &api);
    let mut addresses = Vec::new();
    for pod in ["web", "db", "other/job"] {
        let network = annotated(&api, pod).await;
        addresses.push(network["ip_address"].as_str().unwrap().split('/').next().unwrap().to_owned());
        api.reported(pod, addresses.last().unwrap());
    }
    let select = |pod: &str| json!({"matchLabels": {"name": pod}});
    let from = json!([{"podSelector": select("web")}, {"namespaceSelector": {"matchLabels": {"team": "b"}}}]);
    let ingress = json!([{"from": from, "ports": [{"port": "web"}, {"protocol": "UDP", "port": 53, "endPort": 54}]}]);
    let to = json!([{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.96.0.0/12"]}}]);
    api.policy("db", json!({"podSelector": select("db"), "policyTypes": ["Ingress", "Egress"], "ingress": ingress, "egress": [{"to": to}]}));
    let peers = Datum::set([addresses[0].as_str(), addresses[2].as_str()]);
    let has_set = |replica: &Replica| replica.table("Address_Set").rows().any(|(_, row)| row.get("addresses").unwrap() == &peers);
    let replica = client.when(LIMIT, |state| has_set(&state.replica)).await.unwrap_or_else(|error| panic!("{error}")).replica;
    let of_policies = dump_of(&replica, &TABLES[7..]);
    insta::assert_snapshot!(of_policies.replace(&addresses[0], "WEB").replace(&addresses[1], "DB").replace(&addresses[2], "JOB"));
    // Each node's own port is let through on its switch.
    let (_, switch) = Ref::named("Logical_Switch", "win01").find(&replica).unwrap();
    assert_eq!(switch.get("acls").unwrap().uuids().count(), 2);
    // The group's ports follow the pods, and all of it goes with the policy.
    api.policy("web", json!({"podSelector": select("web"), "policyTypes": ["Ingress"]}));
    api.policy("db", json!({"podSelector": select("db"), "policyTypes": ["Ingress"]}));
    let denials = |replica: &Replica| {
        let groups: Vec<usize> = replica.table("Port_Group").rows().map(|(_, row)| row.get("ports").unwrap().uuids().count()).collect();
        groups == [1, 1] && replica.table("Address_Set").is_empty()
    };
    client.when(LIMIT, |state| denials(&state.replica)).await.unwrap();
    for policy in ["db", "web"] {
        api.remove("networkpolicies", policy);
    }
    let is_gone = |replica: &Replica| ["Port_Group", "Address_Set", "ACL"].iter().all(|table| replica.table(table).is_empty());
    client.when(LIMIT, |state| is_gone(&state.replica)).await.unwrap();
    watcher.abort();
}

#[tokio::test]
async fn a_policy_holds_before_the_pod_is_annotated() {
    let central = Central::new();
    let client = client(&central).await;
    build(&client).await;
    let api = Api::default();
    api.namespace("default", json!({}));
    api.policy("deny", json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": {}}]}]}));
    let watcher = watching(&central, &api);
    api.pod("web", "lin01");
    // Its node reports no address.
    let network = annotated(&api, "web").await;
    let address = network["ip_address"].as_str().unwrap().split('/').next().unwrap();
    let column = |table: &str, column: &str| central.nbctl(&["--bare", &format!("--columns={column}"), "list", table]);
    let port = central.nbctl(&["get", "Logical_Switch_Port", "default_web", "_uuid"]);
    assert_eq!((column("Port_Group", "ports").trim(), column("Address_Set", "addresses").trim()), (port.trim(), address));
    assert_eq!(column("ACL", "action").split_whitespace().filter(|action| *action == "drop").count(), 1);
    watcher.abort();
}

#[tokio::test]
async fn a_port_is_closed_until_ovn_gives_it_addresses_whatever_the_pod_says() {
    let mut central = Central::new();
    let client = client(&central).await;
    build(&client).await;
    central.programs.end("northd");
    let api = Api::default();
    let claim = json!({"ip_address": "192.168.1.77/24", "mac_address": "0a:00:00:00:00:77", "gateway_ip": "192.168.1.1"});
    api.pod_with("eager", "lin01", json!({"ovn": claim.to_string()}));
    let watcher = watching(&central, &api);
    let port = |replica: &Replica| {
        let (_, row) = Ref::named("Logical_Switch_Port", "default_eager").find(replica)?;
        Some((row.get("enabled")?.as_bool(), row.text("port_security").to_owned()))
    };
    let made = client.when(LIMIT, |state| port(&state.replica).is_some()).await.unwrap().replica;
    assert_eq!(port(&made), Some((Some(false), String::new())));
    // It stays so as long as OVN gives it nothing.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(port(&client.state().replica), Some((Some(false), String::new())));
    central.start_northd();
    let open = client.when(LIMIT, |state| port(&state.replica).is_some_and(|(enabled, _)| enabled == Some(true))).await.unwrap().replica;
    let (_, row) = Ref::named("Logical_Switch_Port", "default_eager").find(&open).unwrap();
    assert_eq!((row.text("port_security"), row.text("port_security").contains("192.168.1.")), (row.text("dynamic_addresses"), true));
    let options = [row.entry("options", "iface-id-ver"), row.entry("options", "requested-chassis")];
    assert_eq!(options, [Some("uid-of-eager"), Some("chassis-lin01")]);
    watcher.abort();
}
