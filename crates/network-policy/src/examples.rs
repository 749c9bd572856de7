//! Rows for tests, in few words.

use cluster::Key;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use serde_json::{Value, json};

use crate::policy::{Policy, PolicyId, Protocol};
use crate::rows::{Labels, NamedPort, NodeRow, PodRow};
use crate::world::World;

/// The node whose pods are local.
pub const NODE: &str = "lin01";

/// `a=b,c=d`
pub fn labels(text: &str) -> Labels {
    Labels::new(&text.split(',').filter_map(|pair| pair.split_once('=')).collect::<Vec<_>>())
}

/// A pod on [`NODE`] with ports `serve-80` (TCP 80) and `dns` (UDP 53).
pub fn pod(ips: &[&str], text: &str) -> PodRow {
    let ports = [("serve-80", Protocol::Tcp, 80), ("dns", Protocol::Udp, 53)];
    let ports = ports.map(|(name, protocol, port)| NamedPort { name: name.into(), protocol, port });
    let ips = ips.iter().map(|ip| ip.parse().expect("an address")).collect();
    PodRow { labels: labels(text), ips, ports: ports.into(), node: NODE.into() }
}

/// A world with namespaces `x` and `y`, each labelled `ns=NAME`.
pub fn world() -> World {
    let mut world = World::new(Some(NODE));
    for name in ["x", "y"] {
        world.set_namespace(name, Some(labels(&format!("kubernetes.io/metadata.name={name},ns={name}"))));
    }
    world.set_node(NODE, Some(NodeRow { labels: labels("os=linux"), ips: ["10.240.0.11".parse().expect("an address")].into() }));
    world
}

/// A key from `NAMESPACE/NAME`.
pub fn key(text: &str) -> Key {
    let (ns, name) = text.split_once('/').expect("namespace/name");
    Key::new(ns, name)
}

/// A NetworkPolicy with that `spec`.
pub fn policy(name: &str, spec: Value) -> (PolicyId, Policy) {
    let key = key(name);
    let object = json!({"metadata": {"name": key.name, "namespace": key.ns}, "spec": spec});
    let object: NetworkPolicy = serde_json::from_value(object).expect("a policy");
    (PolicyId::Namespaced(key), Policy::namespaced(&object))
}

/// Puts a NetworkPolicy into the world.
pub fn apply(world: &mut World, name: &str, spec: Value) {
    let (id, policy) = policy(name, spec);
    assert_eq!(policy.problems, Vec::<String>::new());
    world.set_policy(&id, Some(policy));
}

/// Takes it out again.
pub fn delete(world: &mut World, name: &str) {
    world.set_policy(&PolicyId::Namespaced(key(name)), None);
}

/// Puts a ClusterNetworkPolicy into the world.
pub fn apply_cluster(world: &mut World, name: &str, spec: &Value) {
    let policy = Policy::cluster(spec).expect("a policy");
    world.set_policy(&PolicyId::Cluster(name.into()), Some(policy));
}
