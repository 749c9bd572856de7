//! Tests of the way from options of `up` to processes and configuration files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::linux::cluster_file::Requested;

/// A cluster of one Windows and one Linux node, as `cluster.json` has it.
fn cluster(dirs: &Dirs) -> Cluster {
    let nodes = node_config::node_spec::parse_list("win01:windows:20348:drive=D,lin01:linux").unwrap();
    let requested = Requested { without: Some(vec![Part::Fabric]), ..Requested::default() };
    let (mut cluster, _) = Cluster::merge(None, requested, &nodes, dirs).unwrap();
    (cluster.port, cluster.kubeconfig) = (Some(6443), Some("/k".into()));
    (cluster.registry_mirrors, cluster.insecure_registries) = (vec!["docker.io=http://a".into()], vec!["b:5000".into()]);
    (cluster.audit.audited, cluster.audit.webhook.sent) = (true, true);
    cluster
}

/// What a cluster becomes: command lines by process, and each node's file.
fn results(cluster: &Cluster, dirs: &Dirs) -> BTreeMap<String, String> {
    let layout = Layout::new(&cluster.nodes, &cluster.addresses, &cluster.node_addresses).unwrap();
    let inputs = Inputs { dirs, cluster, layout: &layout, image_cache: Path::new("/cache"), boot: Uuid::nil(), identity: Uuid::nil() };
    let mut all: BTreeMap<String, String> = list(&inputs).into_iter().map(|process| (process.name, process.argv.join(" "))).collect();
    for node in &cluster.nodes {
        all.insert(format!("{}/node.yaml", node.name), node_config(&inputs, node).unwrap().to_yaml());
    }
    all
}

/// Where a member of `cluster.json` goes.
enum Goes {
    /// A change of it changes this file or command line.
    Into(&'static [&'static str]),
    /// Nothing of the nodes depends on it.
    Elsewhere(&'static str),
}
use Goes::{Elsewhere, Into};

/// Every member of `cluster.json`, another value for it, and where it goes.
fn rows() -> Vec<(&'static str, Value, Goes)> {
    vec![
        ("format", json!(1), Elsewhere("the version of the file")),
        ("name", json!("other"), Elsewhere("a name in kubeconfigs")),
        ("hollow", json!(10), Into(&["control-plane", "hollow-nodes"])),
        ("network", json!("l3"), Into(&["win01/node.yaml", "lin01/node.yaml", "control-plane", "router"])),
        ("nodes.name", json!("win09"), Into(&["win09/node", "win09/node.yaml", "win09/container-sim", "win09/hns-sim"])),
        ("nodes.os", json!({"windows": {"build": 17763}}), Into(&["win01/node.yaml", "win01/container-sim", "win01/hns-sim"])),
        ("nodes.cpu", json!(3), Into(&["win01/node.yaml", "win01/container-sim"])),
        ("nodes.mem", json!(1 << 30), Into(&["win01/node.yaml"])),
        ("nodes.drive", json!("E"), Into(&["win01/node.yaml", "win01/container-sim"])),
        ("nodes.hns", json!("9.5+a=b"), Into(&["win01/hns-sim"])),
        ("nodes.loopback_dsr", json!(false), Into(&["win01/node.yaml"])),
        ("nodes.runtime", json!("unix:///other"), Into(&["win01/node.yaml"])),
        ("addresses.clusterCidr", json!("172.16.0.0/16"), Into(&["win01/node.yaml", "lin01/node.yaml", "control-plane"])),
        ("addresses.nodeMask", json!(25), Into(&["control-plane"])),
        ("addresses.nodeMaskIpv6", json!(72), Into(&["control-plane"])),
        ("addresses.serviceCidr", json!("10.96.0.0/16"), Into(&["win01/node.yaml", "lin01/node.yaml", "control-plane"])),
        ("addresses.dnsIp", json!("10.96.0.11"), Into(&["win01/node.yaml", "lin01/node.yaml", "control-plane"])),
        ("addresses.serviceNodePortRange", json!("31000-31999"), Into(&["control-plane"])),
        ("featureGates", json!("HyperVContainer=true"), Into(&["win01/node.yaml", "lin01/node.yaml"])),
        ("shutdownGracePeriod", json!("30s"), Into(&["win01/node.yaml", "lin01/node.yaml"])),
        ("registryMirrors", json!([]), Into(&["win01/container-sim", "lin01/container-sim"])),
        ("insecureRegistries", json!([]), Into(&["win01/container-sim", "lin01/container-sim"])),
        ("without", json!(["proxy"]), Into(&["win01/node.yaml", "lin01/node.yaml"])),
        ("port", json!(1), Elsewhere("the API server's port on the real host")),
        ("kubeconfig", json!("/other"), Elsewhere("the user's kubeconfig")),
        ("outside", json!(true), Into(&["control-plane"])),
        ("networkPolicy", json!(true), Into(&["win01/node.yaml", "lin01/node.yaml", "control-plane"])),
        ("noStandIns", json!(true), Into(&["win01/container-sim", "lin01/container-sim"])),
        ("audit.audited", json!(false), Into(&["control-plane"])),
        ("audit.auditLogPath", json!("/log"), Into(&["control-plane"])),
        ("audit.auditLogMaxsize", json!(1), Into(&["control-plane"])),
        ("audit.auditLogMaxage", json!(2), Into(&["control-plane"])),
        ("audit.auditLogMaxbackup", json!(3), Into(&["control-plane"])),
        ("audit.auditLogMode", json!("batch"), Into(&["control-plane"])),
        ("audit.auditLogTruncateEnabled", json!(true), Into(&["control-plane"])),
        ("audit.auditLogTruncateMaxEventSize", json!(1), Into(&["control-plane"])),
        ("audit.sent", json!(false), Into(&["control-plane"])),
        ("audit.auditWebhookMode", json!("blocking"), Into(&["control-plane"])),
        ("audit.auditWebhookInitialBackoff", json!("1s"), Into(&["control-plane"])),
        ("audit.auditWebhookBatchBufferSize", json!(1), Into(&["control-plane"])),
        ("audit.auditWebhookBatchMaxSize", json!(2), Into(&["control-plane"])),
        ("audit.auditWebhookBatchMaxWait", json!("2s"), Into(&["control-plane"])),
        ("audit.auditWebhookBatchThrottleEnable", json!(false), Into(&["control-plane"])),
        ("audit.auditWebhookBatchThrottleQps", json!(1.5), Into(&["control-plane"])),
        ("audit.auditWebhookBatchThrottleBurst", json!(3), Into(&["control-plane"])),
        ("audit.auditWebhookTruncateEnabled", json!(true), Into(&["control-plane"])),
        ("audit.auditWebhookTruncateMaxBatchSize", json!(4), Into(&["control-plane"])),
        ("audit.auditWebhookTruncateMaxEventSize", json!(5), Into(&["control-plane"])),
        ("nodeAddresses", json!({"win01": "10.240.0.99", "lin01": "10.240.0.12"}), Into(&["win01/node.yaml"])),
    ]
}

fn place<'a>(document: &'a mut Value, path: &str) -> &'a mut Value {
    path.split('.').fold(document, |place, part| match (part, place) {
        ("nodes", place) if path.contains('.') => &mut place["nodes"][0],
        (part, place) => &mut place[part],
    })
}

fn dirs() -> Dirs {
    Dirs { dir: "/state/dir".into(), run: "/run/0011aabb".into() }
}

#[test]
fn every_option_of_up_reaches_its_process() {
    let dirs = dirs();
    let before = cluster(&dirs);
    let unchanged = results(&before, &dirs);
    for (path, value, goes) in rows() {
        let mut document = serde_json::to_value(&before).unwrap();
        assert_ne!(*place(&mut document, path), value, "{path}: the same value proves nothing");
        *place(&mut document, path) = value;
        let changed = results(&serde_json::from_value(document).unwrap(), &dirs);
        let (expected, why): (BTreeSet<&str>, &str) = match &goes {
            Into(places) => (places.iter().copied().collect(), "it goes there"),
            Elsewhere(why) => (BTreeSet::new(), why),
        };
        let differs: BTreeSet<&str> =
            changed.iter().filter(|(name, text)| unchanged.get(*name) != Some(*text)).map(|(name, _)| name.as_str()).collect();
        assert_eq!(differs, expected, "{path}: {why}");
    }
}

#[test]
fn every_member_of_the_cluster_has_a_row() {
    let document = serde_json::to_value(cluster(&dirs())).unwrap();
    let mut members = BTreeSet::new();
    for (name, value) in document.as_object().unwrap() {
        match (name.as_str(), value) {
            ("nodes", nodes) => members.extend(nodes[0].as_object().unwrap().keys().map(|key| format!("nodes.{key}"))),
            ("addresses" | "audit", Value::Object(inner)) => members.extend(inner.keys().map(|key| format!("{name}.{key}"))),
            _ => drop(members.insert(name.clone())),
        }
    }
    assert_eq!(members, rows().iter().map(|(path, ..)| (*path).to_owned()).collect());
}

#[test]
fn files_of_nodes_are_whole() {
    let dirs = dirs();
    let cluster = cluster(&dirs);
    for (name, text) in results(&cluster, &dirs).iter().filter(|(name, _)| name.ends_with(".yaml")) {
        let parsed = NodeConfig::read(text).unwrap();
        assert_eq!(parsed.warnings, Vec::<String>::new(), "{name}");
        let config = parsed.config.complete("mullion").unwrap();
        assert_eq!(config.config.node.without, [Part::Fabric]);
        assert_eq!(config.config.node.os.is_windows(), name.starts_with("win"));
        assert_eq!(config.config.node.hcn.is_empty(), name.starts_with("lin"));
    }
}

#[test]
fn options_of_a_newer_build_are_refused_by_name() {
    let dirs = dirs();
    let layout = |cluster: &Cluster| Layout::new(&cluster.nodes, &cluster.addresses, &cluster.node_addresses).unwrap();
    let refused = |change: fn(&mut Cluster)| {
        let mut cluster = cluster(&dirs);
        change(&mut cluster);
        let (layout, cache) = (layout(&cluster), Path::new("/cache"));
        let inputs = Inputs { dirs: &dirs, cluster: &cluster, layout: &layout, image_cache: cache, boot: Uuid::nil(), identity: Uuid::nil() };
        node_config(&inputs, &cluster.nodes[0]).unwrap_err().to_string()
    };
    assert!(refused(|cluster| cluster.feature_gates = "Other=true".into()).contains("unrecognized feature gate: Other"));
}
