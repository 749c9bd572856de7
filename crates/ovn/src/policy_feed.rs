//! What policies are about: the cluster's objects, with the addresses that OVN gave its ports → one [`World`], which is kept from pass to pass.
//!
//! OVN, not a pod's status, says which addresses a pod with a port of ours has: a status follows when the pod runs, and then its policies have to
//! hold already.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use cluster::{ApiServer, Informer, Key, Selection};
use k8s_openapi::api::core::v1::{Namespace, Node};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::Api;
use network_policy::rows::{self as policy_rows, Labels};
use network_policy::world::Kind;
use network_policy::{Policy, PolicyId, World};
use ovsdb::Replica;

use crate::cluster_rows::PodRow;
use crate::pods;
use crate::policies;
use crate::rows::{OWNER, Want};

/// The informers, and what follows from their rows.
pub(crate) struct Policies {
    namespaces: Informer<Labels>,
    nodes: Informer<Box<[IpAddr]>>,
    policies: Informer<Policy>,
    world: World,
}

impl Policies {
    pub fn watch(client: &cluster::Client, api: &ApiServer) -> Self {
        let all = || Selection::all().of(api);
        let addresses = |node: &Node| policy_rows::NodeRow::of(node).map(|row| row.ips);
        Self {
            namespaces: Informer::start(Api::<Namespace>::all(client.clone()), all(), policy_rows::namespace_row),
            nodes: Informer::start(Api::<Node>::all(client.clone()), all(), addresses),
            policies: Informer::start(Api::<NetworkPolicy>::all(client.clone()), all(), |policy| Some(Policy::namespaced(policy))),
            world: World::new(None),
        }
    }

    pub async fn synced(&self) {
        self.namespaces.synced().await;
        self.nodes.synced().await;
        self.policies.synced().await;
    }

    pub fn trouble(&self) -> [Option<String>; 3] {
        [self.namespaces.trouble(), self.nodes.trouble(), self.policies.trouble()]
    }

    pub fn changed(&self) -> [tokio::sync::watch::Receiver<u64>; 3] {
        [self.namespaces.changed(), self.nodes.changed(), self.policies.changed()]
    }

    /// What follows from the policies for pods that have a port of ours, or get one; and what of the policies cannot be used.
    pub fn wants(&mut self, replica: &Replica, scope: &str, pods: &[(Key, Arc<PodRow>)]) -> (Vec<Want>, Vec<String>) {
        let policies = self.policies.snapshot();
        if policies.is_empty() {
            self.world = World::new(None);
            return (Vec::new(), Vec::new());
        }
        let with_port = with_port(replica, scope, pods);
        feed(&mut self.world, &self.namespaces.snapshot(), &policies, pods, &with_port, &pods::addresses(replica, scope));
        let nodes: HashMap<String, Box<[IpAddr]>> = self.nodes.snapshot().into_iter().map(|(key, ips)| (key.name, (*ips).clone())).collect();
        let problems = policies.iter().flat_map(|(key, policy)| policy.problems.iter().map(move |problem| format!("NetworkPolicy {key}: {problem}")));
        let problems = problems.collect();
        (policies::wants(replica, &self.world, &nodes, |key| with_port.contains(key)), problems)
    }
}

/// The pods that have a port of ours, or get one: on a switch of a node, under a name that nobody else has.
fn with_port<'a>(replica: &Replica, scope: &str, pods: &'a [(Key, Arc<PodRow>)]) -> HashSet<&'a Key> {
    let others = pods::foreign_switches(replica);
    let switches = replica.table("Logical_Switch").rows().map(|(_, row)| row.text("name"));
    let switches: HashSet<&str> = switches.filter(|name| !others.contains(name)).collect();
    let is_foreign = |row: &ovsdb::Row| row.entry("external_ids", OWNER) != Some(scope);
    let ports = replica.table("Logical_Switch_Port").rows();
    let foreign: HashSet<&str> = ports.filter(|(_, row)| is_foreign(row)).map(|(_, row)| row.text("name")).collect();
    let with_port = pods.iter().filter(|(key, row)| switches.contains(&*row.node) && !foreign.contains(&*pods::port_name(key)));
    with_port.map(|(key, _)| key).collect()
}

/// Brings the world up to date; what is as it was costs a comparison.
fn feed(
    world: &mut World,
    namespaces: &[(Key, Arc<Labels>)],
    policies: &[(Key, Arc<Policy>)],
    pods: &[(Key, Arc<PodRow>)],
    with_port: &HashSet<&Key>,
    addresses: &HashMap<&str, Vec<IpAddr>>,
) {
    world.begin(Kind::Namespaces);
    for (key, labels) in namespaces {
        world.set_namespace(&key.name, Some((**labels).clone()));
    }
    world.end(Kind::Namespaces);
    world.begin(Kind::NamespacedPolicies);
    for (key, policy) in policies {
        world.set_policy(&PolicyId::Namespaced(key.clone()), Some((**policy).clone()));
    }
    world.end(Kind::NamespacedPolicies);
    world.begin(Kind::Pods);
    for (key, row) in pods {
        let mut rules = row.rules.clone();
        let is_ours = with_port.contains(key);
        if is_ours {
            rules.ips = addresses.get(&*pods::port_name(key)).map(|ips| ips.clone().into()).unwrap_or_default();
        }
        let has_none = rules.ips.is_empty();
        world.set_pod(key, Some(rules));
        if is_ours && has_none && world.endpoint(key).is_none() {
            // Its port comes into its groups with the transaction that makes it.
            world.set_early(key, &[]);
        }
    }
    world.end(Kind::Pods);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const SWITCH: &str = "00000000-0000-0000-0000-000000000001";
    const PORT: &str = "00000000-0000-0000-0000-000000000002";

    fn replica(ports: &Value) -> Replica {
        let switch = json!({"name": "node1", "ports": ["set", []], "external_ids": ["map", [[OWNER, "node/node1"]]]});
        crate::rows::tests::replica(&json!({"Logical_Switch": {SWITCH: switch}, "Logical_Switch_Port": ports}))
    }

    /// The members of groups, and of address sets, by what a pod's status and OVN say.
    fn wanted(world: &mut World, replica: &Replica, status: &[&str]) -> Vec<String> {
        let rules = policy_rows::PodRow { ips: status.iter().map(|ip| ip.parse().unwrap()).collect(), node: "node1".into(), ..Default::default() };
        let pods = [(Key::new("shop", "web"), Arc::new(PodRow { node: "node1".into(), rules, ..PodRow::default() }))];
        let spec = json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]});
        let policy = serde_json::from_value::<NetworkPolicy>(json!({"metadata": {"name": "p", "namespace": "shop"}, "spec": spec})).unwrap();
        let with_port = with_port(replica, "watcher", &pods);
        let (namespaces, policies) = ([(Key::cluster("shop"), Arc::default())], [(Key::new("shop", "p"), Arc::new(Policy::namespaced(&policy)))]);
        feed(world, &namespaces, &policies, &pods, &with_port, &pods::addresses(replica, "watcher"));
        let wants = policies::wants(replica, world, &HashMap::new(), |key| with_port.contains(key));
        let line = |want: &Want| match want.at.table {
            "Port_Group" => Some(format!("group: {}", want.members["ports"].iter().map(|row| row.id.to_string()).collect::<Vec<_>>().join(" "))),
            "Address_Set" => Some(format!("set: {}", want.columns["addresses"])),
            _ => None,
        };
        wants.iter().filter_map(line).collect()
    }

    #[test]
    fn a_pod_has_its_policies_from_its_ports_first_transaction_and_ovns_addresses() {
        let mut world = World::new(None);
        // There is no port yet.
        assert_eq!(wanted(&mut world, &replica(&json!({})), &[]), ["set: []", "group: shop_web"]);
        // A status that says what OVN does not is no address of a port.
        assert_eq!(wanted(&mut world, &replica(&json!({})), &["10.9.9.9"]), ["set: []", "group: shop_web"]);
        let port = |owner: &str| {
            let given = "0a:00:00:00:00:01 10.1.1.3";
            replica(&json!({PORT: {"name": "shop_web", "dynamic_addresses": given, "external_ids": ["map", [[OWNER, owner]]]}}))
        };
        // The pod's node has not reported it.
        assert_eq!(wanted(&mut world, &port("watcher"), &[]), ["set: 10.1.1.3", "group: shop_web"]);
        assert_eq!(wanted(&mut world, &port("watcher"), &["10.9.9.9"]), ["set: 10.1.1.3", "group: shop_web"]);
        // A port of others: what they gave the pod says its status.
        assert_eq!(wanted(&mut world, &port("others"), &["10.9.9.9"]), [""; 0]);
        // Again without an address.
        assert_eq!(wanted(&mut world, &replica(&json!({})), &[]), ["set: []", "group: shop_web"]);
    }
}
