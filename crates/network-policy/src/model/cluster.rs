//! Random clusters: the objects as the API has them, and packets between their pods and others.

use std::fmt;
use std::net::IpAddr;

use cluster::Key;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::policy::{Policy, PolicyId, Protocol};
use crate::rows::{NodeRow, PodRow, namespace_row};
use crate::{Packet, World};

/// The objects, by `namespace/name`, or by name.
#[derive(Debug, Default)]
pub struct Cluster {
    pub namespaces: Vec<Value>,
    pub nodes: Vec<Value>,
    pub pods: Vec<Value>,
    pub policies: Vec<Value>,
    pub cluster_policies: Vec<Value>,
}

const NAMES: [&str; 3] = ["x", "y", "z"];
const PORTS: [u16; 4] = [53, 80, 81, 8080];
pub const OUTSIDE: [&str; 3] = ["10.9.0.1", "10.9.0.130", "172.16.0.1"];

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [&self.namespaces, &self.nodes, &self.pods, &self.policies, &self.cluster_policies];
        all.into_iter().flatten().try_for_each(|object| writeln!(f, "{object}"))
    }
}

fn read<T: DeserializeOwned>(object: &Value) -> T {
    serde_json::from_value(object.clone()).expect("an object")
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().expect("a name")
}

fn key(object: &Value) -> Key {
    Key::new(object["metadata"]["namespace"].as_str().unwrap_or_default(), name(object))
}

impl Cluster {
    pub fn random(seed: u64) -> Self {
        let random = &mut StdRng::seed_from_u64(seed);
        let mut cluster = Self::default();
        for name in NAMES {
            let labels = json!({"kubernetes.io/metadata.name": name, "team": pick(random, &["red", "blue"])});
            cluster.namespaces.push(json!({"metadata": {"name": name, "labels": labels}}));
        }
        for n in 0..2 {
            let addresses = json!([{"type": "InternalIP", "address": format!("10.8.0.{}", n + 1)}]);
            let labels = json!({"zone": pick(random, &["a", "b"])});
            cluster.nodes.push(json!({"metadata": {"name": format!("node{n}"), "labels": labels}, "status": {"addresses": addresses}}));
        }
        for (n, (ns, name)) in NAMES.iter().flat_map(|ns| ["a", "b", "c"].map(|name| (ns, name))).enumerate() {
            cluster.pods.push(pod(random, ns, name, n));
        }
        for n in 0..random.random_range(0..6) {
            let ns = pick(random, &NAMES);
            cluster.policies.push(json!({"metadata": {"name": format!("np{n}"), "namespace": ns}, "spec": policy(random)}));
        }
        for n in 0..random.random_range(0..4) {
            let spec = cluster_policy(random);
            cluster.cluster_policies.push(json!({"metadata": {"name": format!("cnp{n}")}, "spec": spec}));
        }
        cluster
    }

    /// A world that read these objects.
    pub fn world(&self, node: Option<&str>) -> World {
        let mut world = World::new(node);
        Self::default().change(self, &mut world);
        world
    }

    /// Makes a world that read `before` one that read this.
    pub fn replace(&self, before: &Self, world: &mut World) {
        before.change(self, world);
    }

    fn change(&self, to: &Self, world: &mut World) {
        let gone = |old: &[Value], new: &[Value]| -> Vec<Key> { old.iter().map(key).filter(|old| new.iter().all(|new| key(new) != *old)).collect() };
        for key in gone(&self.policies, &to.policies) {
            world.set_policy(&PolicyId::Namespaced(key), None);
        }
        for key in gone(&self.cluster_policies, &to.cluster_policies) {
            world.set_policy(&PolicyId::Cluster(key.name.as_str().into()), None);
        }
        for policy in &to.policies {
            world.set_policy(&PolicyId::Namespaced(key(policy)), Some(Policy::namespaced(&read(policy))));
        }
        for pod in &to.pods {
            world.set_pod(&key(pod), PodRow::of(&read::<Pod>(pod)));
        }
        for namespace in &to.namespaces {
            world.set_namespace(name(namespace), namespace_row(&read::<Namespace>(namespace)));
        }
        for policy in &to.cluster_policies {
            world.set_policy(&PolicyId::Cluster(name(policy).into()), Some(Policy::cluster(&policy["spec"]).expect("a policy")));
        }
        for node in &to.nodes {
            world.set_node(name(node), NodeRow::of(&read::<Node>(node)));
        }
    }

    /// The pod of an address.
    pub fn pod(&self, ip: IpAddr) -> Option<&Value> {
        self.pods.iter().find(|pod| pod["status"]["podIP"] == ip.to_string())
    }
}

fn pick<T: Copy>(random: &mut StdRng, list: &[T]) -> T {
    *list.choose(random).expect("a choice")
}

fn pod(random: &mut StdRng, ns: &str, name: &str, n: usize) -> Value {
    let web = pick(random, &[80, 8080]);
    let ports = json!([{"name": "web", "containerPort": web}, {"name": "dns", "containerPort": 53, "protocol": "UDP"}]);
    json!({
        "metadata": {"name": name, "namespace": ns, "labels": {"pod": name, "tier": pick(random, &["front", "back"])}},
        "spec": {"nodeName": pick(random, &["node0", "node1"]), "containers": [{"name": "c", "ports": ports}]},
        "status": {"podIP": format!("10.1.0.{}", n + 2)},
    })
}

/// Label selectors of each form.
fn selector(random: &mut StdRng, key: &str, values: &[&str]) -> Value {
    let value = pick(random, values);
    match random.random_range(0..6) {
        0 | 1 => json!({}),
        2 => json!({"matchLabels": {key: value}}),
        3 => json!({"matchExpressions": [{"key": key, "operator": "NotIn", "values": [value]}]}),
        4 => json!({"matchExpressions": [{"key": key, "operator": "In", "values": [value, pick(random, values)]}]}),
        _ => json!({"matchExpressions": [{"key": pick(random, &[key, "none"]), "operator": pick(random, &["Exists", "DoesNotExist"])}]}),
    }
}

fn pods(random: &mut StdRng) -> Value {
    if random.random() { selector(random, "pod", &["a", "b", "c"]) } else { selector(random, "tier", &["front", "back"]) }
}

fn namespaces(random: &mut StdRng) -> Value {
    if random.random() { selector(random, "team", &["red", "blue"]) } else { selector(random, "kubernetes.io/metadata.name", &NAMES) }
}

fn block(random: &mut StdRng) -> Value {
    let (cidr, except) = pick(
        random,
        &[
            ("10.9.0.0/24", &["10.9.0.128/25"][..]),
            ("0.0.0.0/0", &["10.0.0.0/8", "172.16.0.1/32"]),
            ("10.1.0.0/29", &[]),
            ("10.0.0.0/8", &["10.1.0.4/30", "10.1.0.6/32"]),
            ("10.8.0.1/32", &[]),
        ],
    );
    json!({"ipBlock": {"cidr": cidr, "except": except}})
}

fn peer(random: &mut StdRng) -> Value {
    match random.random_range(0..4) {
        0 => json!({"podSelector": pods(random)}),
        1 => json!({"namespaceSelector": namespaces(random)}),
        2 => json!({"namespaceSelector": namespaces(random), "podSelector": pods(random)}),
        _ => block(random),
    }
}

fn port(random: &mut StdRng) -> Value {
    let protocol = pick(random, &["TCP", "TCP", "UDP", "SCTP"]);
    match random.random_range(0..5) {
        0 => json!({"protocol": protocol}),
        1 => json!({"port": pick(random, &["web", "dns", "none"]), "protocol": protocol}),
        2 => json!({"port": 53, "endPort": 80, "protocol": protocol}),
        _ => json!({"port": pick(random, &PORTS), "protocol": protocol}),
    }
}

fn some(random: &mut StdRng, make: fn(&mut StdRng) -> Value, most: usize) -> Vec<Value> {
    (0..random.random_range(0..=most)).map(|_| make(random)).collect()
}

fn policy(random: &mut StdRng) -> Value {
    let rules = |random: &mut StdRng, peers: &str| -> Vec<Value> {
        let count = random.random_range(0..3);
        (0..count).map(|_| json!({peers: some(random, peer, 2), "ports": some(random, port, 2)})).collect()
    };
    let types = pick(random, &[&["Ingress"][..], &["Egress"], &["Ingress", "Egress"]]);
    let (ingress, egress) = (rules(random, "from"), rules(random, "to"));
    json!({"podSelector": pods(random), "policyTypes": types, "ingress": ingress, "egress": egress})
}

fn cluster_peer(random: &mut StdRng, egress: bool) -> Value {
    match random.random_range(0..if egress { 4 } else { 2 }) {
        0 => json!({"namespaces": namespaces(random)}),
        1 => json!({"pods": {"namespaceSelector": namespaces(random), "podSelector": pods(random)}}),
        2 => json!({"nodes": selector(random, "zone", &["a", "b"])}),
        _ => json!({"networks": [pick(random, &["10.9.0.0/24", "10.1.0.0/29", "172.16.0.0/12"])]}),
    }
}

fn cluster_protocol(random: &mut StdRng) -> Value {
    let key = pick(random, &["tcp", "udp", "sctp"]);
    match random.random_range(0..4) {
        0 => json!({"destinationNamedPort": pick(random, &["web", "dns"])}),
        1 => json!({key: {"destinationPort": {"range": {"start": 53, "end": 80}}}}),
        2 => json!({key: {}}),
        _ => json!({key: {"destinationPort": {"number": pick(random, &PORTS)}}}),
    }
}

fn cluster_policy(random: &mut StdRng) -> Value {
    let rules = |random: &mut StdRng, peers: &str, egress: bool| -> Vec<Value> {
        let count = random.random_range(0..4);
        let rule = |_| {
            let list: Vec<Value> = (0..random.random_range(1..3)).map(|_| cluster_peer(random, egress)).collect();
            let action = pick(random, &["Accept", "Deny", "Pass"]);
            json!({"action": action, peers: list, "protocols": some(random, cluster_protocol, 2)})
        };
        (0..count).map(rule).collect()
    };
    let subject = if random.random() {
        json!({"namespaces": namespaces(random)})
    } else {
        json!({"pods": {"namespaceSelector": namespaces(random), "podSelector": pods(random)}})
    };
    let (tier, priority) = (pick(random, &["Admin", "Baseline"]), random.random_range(0..3));
    let (ingress, egress) = (rules(random, "from", false), rules(random, "to", true));
    json!({"tier": tier, "priority": priority, "subject": subject, "ingress": ingress, "egress": egress})
}

/// Packets among pods and addresses outside.
pub fn packets(cluster: &Cluster, seed: u64, count: usize) -> Vec<Packet> {
    let random = &mut StdRng::seed_from_u64(!seed);
    let pods = cluster.pods.iter().map(|pod| pod["status"]["podIP"].as_str().expect("an address"));
    let nodes = cluster.nodes.iter().map(|node| node["status"]["addresses"][0]["address"].as_str().expect("an address"));
    let all: Vec<IpAddr> = pods.chain(nodes).chain(OUTSIDE).map(|ip| ip.parse().expect("an address")).collect();
    let packet = |_| {
        let port = (!random.random_bool(0.1)).then(|| (pick(random, &Protocol::ALL), pick(random, &[53, 80, 81, 8080, 9])));
        Packet { source: pick(random, &all), destination: pick(random, &all), port }
    };
    (0..count).map(packet).collect()
}
