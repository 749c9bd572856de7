//! NetworkPolicies → port groups, address sets and ACLs.
//!
//! Pods with the same rules share a port group, and rules that name the same peers an address set; what the rules are says crate
//! `network-policy`, whose profiles have nothing but what is allowed, and then a denial. Priorities are those of ovn-kubernetes. Traffic
//! between a pod and its own node passes always, by the address of the node's port and by those of its Node object.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use cluster::Key;
use network_policy::profile::{GroupKey, Ports, ProfileRule};
use network_policy::{Action, Direction, Profile, Protocol, World};
use ovsdb::{Datum, Replica};

use crate::pods::port_name;
use crate::rows::{KEY, OWNER, Ref, Want};

/// Of what always passes.
const NODE: i64 = 1002;
/// Of what a rule allows.
const ALLOWED: i64 = 1001;
/// Of what is isolated.
const DENIED: i64 = 1000;

fn set_name(group: &GroupKey) -> String {
    format!("mullion_as_{}", group.name())
}

fn group_name(profile: &Profile) -> String {
    format!("mullion_pg_{}", profile.name())
}

/// How an ACL of a direction calls the pod's port and its peer, and in which pipeline it is.
struct Side {
    port: &'static str,
    peer: &'static str,
    pipeline: &'static str,
}

fn side(direction: Direction) -> Side {
    match direction {
        Direction::Ingress => Side { port: "outport", peer: "ip4.src", pipeline: "to-lport" },
        Direction::Egress => Side { port: "inport", peer: "ip4.dst", pipeline: "from-lport" },
    }
}

/// Every port group, address set and ACL that the policies of a cluster need. `nodes`: the addresses of Node objects, by name. `has_port`: whether
/// a pod has a logical port of ours.
#[must_use]
pub fn wants(replica: &Replica, world: &World, nodes: &HashMap<String, Box<[IpAddr]>>, has_port: impl Fn(&Key) -> bool) -> Vec<Want> {
    let mut members: BTreeMap<&Arc<Profile>, Vec<&Key>> = BTreeMap::new();
    for (key, endpoint) in world.endpoints().filter(|(key, _)| has_port(key)) {
        for profile in endpoint.all() {
            members.entry(profile).or_default().push(key);
        }
    }
    let groups: BTreeSet<&Arc<GroupKey>> = members.keys().flat_map(|profile| profile.rules()).flat_map(named_by).collect();
    let mut wants: Vec<Want> = groups.iter().flat_map(|group| address_sets(world, group)).collect();
    for (profile, pods) in &members {
        let name = group_name(profile);
        let group = Want::named("Port_Group", name.as_str());
        wants.push(pods.iter().fold(group.exactly("ports"), |group, key| group.member("ports", Ref::named("Logical_Switch_Port", port_name(key)))));
        wants.extend(acls(world, &name, profile));
    }
    if !members.is_empty() {
        wants.extend(own_nodes(replica, nodes));
    }
    wants
}

/// The groups that a rule's ACLs name: without ports but named ones, its peers stand in none.
fn named_by(rule: &ProfileRule) -> impl Iterator<Item = &Arc<GroupKey>> {
    let has_ports = rule.ports.as_ref().is_none_or(|ports| !ports.is_empty());
    rule.peers.iter().flatten().filter(move |_| has_ports).chain(&rule.named)
}

/// The addresses of a group of pods, of named ports a set for each port; ranges of addresses stand in the ACLs.
fn address_sets(world: &World, group: &GroupKey) -> Vec<Want> {
    let set = |name: String, addresses: Vec<IpAddr>| {
        let addresses = addresses.iter().filter(|ip| ip.is_ipv4()).map(ToString::to_string);
        Want::named("Address_Set", name).with_elements("addresses", Datum::set(addresses))
    };
    match group {
        GroupKey::Nets(_) => Vec::new(),
        GroupKey::Named(..) => named_ports(world, group).into_iter().map(|(port, ips)| set(named_set(group, port), ips)).collect(),
        GroupKey::Pods(_) | GroupKey::Nodes(_) => vec![set(set_name(group), world.members(group).map(|(ip, _)| ip).collect())],
    }
}

/// Which pods have which port under a group's name.
fn named_ports(world: &World, group: &GroupKey) -> BTreeMap<(Protocol, u16), Vec<IpAddr>> {
    let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (ip, of) in world.members(group) {
        if let (true, Some(port)) = (ip.is_ipv4(), of) {
            found.entry(port).or_default().push(ip);
        }
    }
    found
}

fn named_set(group: &GroupKey, (protocol, number): (Protocol, u16)) -> String {
    format!("{}_{}_{number}", set_name(group), protocol.to_string().to_lowercase())
}

fn acl(key: String, holder: Ref, pipeline: &str, priority: i64, matches: String, action: &str) -> Want {
    // What a pod sends to a Service is judged by where the load balancer leads it.
    let options = Datum::map((pipeline == "from-lport").then_some(("apply-after-lb", "true")));
    Want::external("ACL", KEY, key)
        .held_by(holder, "acls")
        .with("direction", pipeline)
        .with("priority", priority)
        .with("match", matches)
        .with("action", action)
        .with("options", options)
}

fn acls(world: &World, group: &str, profile: &Profile) -> Vec<Want> {
    let Side { port, pipeline, .. } = side(profile.direction);
    let holder = || Ref::named("Port_Group", group);
    let mut found = Vec::new();
    for (index, rule) in profile.rules().filter(|rule| rule.action == Action::Allow).enumerate() {
        for (what, case) in cases(world, profile.direction, rule) {
            // The key says what the ACL is about: one that comes or goes changes no other.
            let key = format!("{group} {index}{what}");
            let matches = [format!("{port} == @{group}"), "ip4".to_owned()].into_iter().chain(case).collect::<Vec<_>>().join(" && ");
            found.push(acl(key, holder(), pipeline, ALLOWED, matches, "allow-related"));
        }
    }
    if profile.end.0 == Action::Deny {
        found.push(acl(format!("{group} else"), holder(), pipeline, DENIED, format!("{port} == @{group} && ip"), "drop"));
    }
    found
}

/// The conditions of each case in which a rule matches, and what tells it from the rule's others.
fn cases(world: &World, direction: Direction, rule: &ProfileRule) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    let field = side(direction).peer;
    let peers = rule.peers.as_ref().map(|groups| either(groups.iter().filter_map(|group| peer(field, group)).collect()));
    let ports = rule.ports.as_ref().map(|ports| either(ports.iter().map(|ports| port(*ports)).collect()));
    // None of either is everything; an empty list is nothing.
    if peers != Some(None) && ports != Some(None) {
        found.push((String::new(), [peers, ports].into_iter().flatten().flatten().collect()));
    }
    for group in &rule.named {
        for (protocol, number) in named_ports(world, group).into_keys() {
            let set = named_set(group, (protocol, number));
            let conditions = vec![format!("{field} == ${set}"), port(Ports { protocol, first: number, last: number })];
            found.push((format!(" {set}"), conditions));
        }
    }
    found
}

fn either(mut parts: Vec<String>) -> Option<String> {
    match parts.len() {
        0 => None,
        1 => parts.pop(),
        _ => Some(format!("({})", parts.join(" || "))),
    }
}

fn peer(field: &str, group: &GroupKey) -> Option<String> {
    let GroupKey::Nets(ranges) = group else { return Some(format!("{field} == ${}", set_name(group))) };
    let nets: Vec<String> = ranges.iter().flat_map(|range| range.nets()).filter(|net| net.addr().is_ipv4()).map(|net| net.to_string()).collect();
    (!nets.is_empty()).then(|| format!("{field} == {{{}}}", nets.join(", ")))
}

fn port(ports: Ports) -> String {
    let protocol = ports.protocol.to_string().to_lowercase();
    match ports {
        ports if ports.is_all() => protocol,
        Ports { first, last, .. } if first == last => format!("{protocol}.dst == {first}"),
        Ports { first, last, .. } => format!("({protocol}.dst >= {first} && {protocol}.dst <= {last})"),
    }
}

/// On each node's switch: what passes between the node itself and the pods.
fn own_nodes(replica: &Replica, nodes: &HashMap<String, Box<[IpAddr]>>) -> Vec<Want> {
    let ports: BTreeMap<&str, &ovsdb::Row> = replica.table("Logical_Switch_Port").rows().map(|(_, row)| (row.text("name"), row)).collect();
    let mut wants = Vec::new();
    for (_, switch) in replica.table("Logical_Switch").rows() {
        let name = switch.text("name");
        let is_node = switch.entry("external_ids", OWNER) == Some(&crate::topology::node_scope(name));
        let address = ports.get(&*format!("k8s-{name}")).and_then(|port| port.text("addresses").split_whitespace().nth(1));
        let Some(address) = address.filter(|_| is_node) else { continue };
        let others = nodes.get(name).into_iter().flatten().filter(|ip| ip.is_ipv4()).map(ToString::to_string);
        let all: BTreeSet<String> = others.chain([address.to_owned()]).collect();
        let all = Vec::from_iter(all);
        let addresses = if let [one] = &all[..] { one.clone() } else { format!("{{{}}}", all.join(", ")) };
        for direction in [Direction::Ingress, Direction::Egress] {
            let Side { peer, pipeline, .. } = side(direction);
            let holder = Ref::named("Logical_Switch", name);
            wants.push(acl(format!("{name} {direction}"), holder, pipeline, NODE, format!("{peer} == {addresses}"), "allow-related"));
        }
    }
    wants
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::networking::v1::NetworkPolicy;
    use network_policy::rows::{Labels, NamedPort, PodRow};
    use network_policy::{Policy, PolicyId};
    use serde_json::{Value, json};

    use super::*;
    use crate::rows::plan;

    fn world(policies: &[Value]) -> World {
        let mut world = World::new(None);
        world.set_namespace("shop", Some(Labels::new(&[("team", "a")])));
        world.set_namespace("other", Some(Labels::new(&[("team", "b")])));
        for (ns, name, app, ip) in [("shop", "web", "web", "10.1.1.3"), ("shop", "db", "db", "10.1.2.3"), ("other", "job", "job", "10.1.1.4")] {
            let ports = [NamedPort { name: "sql".into(), protocol: Protocol::Tcp, port: 5432 }];
            let row = PodRow { labels: Labels::new(&[("app", app)]), ips: [ip.parse().unwrap()].into(), ports: ports.into(), node: "lin01".into() };
            world.set_pod(&Key::new(ns, name), Some(row));
        }
        for policy in policies {
            let policy: NetworkPolicy = serde_json::from_value(policy.clone()).unwrap();
            world.set_policy(&PolicyId::Namespaced(Key::of(&policy)), Some(Policy::namespaced(&policy)));
        }
        world
    }

    fn policy(spec: Value) -> Value {
        json!({"metadata": {"name": "p", "namespace": "shop"}, "spec": spec})
    }

    /// Conditions of ACLs with their actions, names of groups and sets cut short.
    fn matches(spec: Value) -> Vec<String> {
        let text = |want: &Want, column: &str| want.columns[column].as_str().unwrap().to_owned();
        let wants = wants(&Replica::default(), &world(&[policy(spec)]), &HashMap::new(), |_| true);
        let line = |want: &Want| {
            let words = text(want, "match");
            let words = words.split(' ').map(|word| match word.find("mullion_") {
                Some(at) => word[..at + 10].to_owned() + word[at + 10..].trim_start_matches(|c: char| c == '_' || c.is_ascii_hexdigit()),
                None => word.to_owned(),
            });
            format!("{} {}: {}", text(want, "direction"), text(want, "action"), words.collect::<Vec<_>>().join(" "))
        };
        wants.iter().filter(|want| want.at.table == "ACL").map(line).collect()
    }

    #[test]
    fn rules_become_acls() {
        let from = json!([{"podSelector": {"matchLabels": {"app": "web"}}}, {"ipBlock": {"cidr": "10.9.0.0/16", "except": ["10.9.0.0/17"]}}]);
        let ingress = json!({"podSelector": {"matchLabels": {"app": "db"}}, "policyTypes": ["Ingress"],
            "ingress": [{"from": from, "ports": [{"port": "sql"}, {"protocol": "UDP", "port": 1, "endPort": 9}]}, {"ports": [{"protocol": "SCTP"}]}]});
        assert_eq!(
            matches(ingress),
            [
                "to-lport allow-related: outport == @mullion_pg && ip4 && (ip4.src == $mullion_as || ip4.src == {10.9.128.0/17}) && (tcp.dst == 5432 || (udp.dst >= 1 && udp.dst <= 9))",
                "to-lport allow-related: outport == @mullion_pg && ip4 && sctp",
                "to-lport drop: outport == @mullion_pg && ip",
            ]
        );
        let egress = json!({"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Egress"],
            "egress": [{"to": [{"podSelector": {"matchLabels": {"app": "db"}}}], "ports": [{"port": "sql"}]}]});
        assert_eq!(
            matches(egress),
            [
                "from-lport allow-related: inport == @mullion_pg && ip4 && ip4.dst == $mullion_astcp_5432 && tcp.dst == 5432",
                "from-lport drop: inport == @mullion_pg && ip",
            ]
        );
        // A rule without anything allows everything; no rule allows nothing; a peer that cannot be allows nothing.
        assert_eq!(matches(json!({"podSelector": {}, "ingress": [{}]})).first().unwrap(), "to-lport allow-related: outport == @mullion_pg && ip4");
        assert_eq!(matches(json!({"podSelector": {}, "policyTypes": ["Ingress"]})), ["to-lport drop: outport == @mullion_pg && ip"]);
        let v6 = json!({"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "fd00::/8"}}]}]});
        assert_eq!(matches(v6), ["to-lport drop: outport == @mullion_pg && ip"]);
    }

    #[test]
    fn egress_by_a_named_port_is_one_acl_however_many_pods_have_it() {
        let spec = json!({"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Egress"], "egress": [{"to": [{"podSelector": {}}], "ports": [{"port": "sql"}]}]});
        let mut world = world(&[policy(spec)]);
        let lines = |world: &World| {
            let line = |want: &Want| match want.at.table {
                "Address_Set" => Some(want.columns["addresses"].to_string()),
                "ACL" => Some(want.at.id.to_string()),
                _ => None,
            };
            wants(&Replica::default(), world, &HashMap::new(), |_| true).iter().filter_map(line).collect::<Vec<_>>()
        };
        let before = lines(&world);
        assert_eq!((before.len(), &*before[0]), (3, "[10.1.1.3, 10.1.2.3]"), "{before:?}");
        assert!(before[1].ends_with("_tcp_5432") && before[2].ends_with(" else"), "{before:?}");
        // A port of another number has an ACL of its own, and the one that was there stays.
        let ports = [NamedPort { name: "sql".into(), protocol: Protocol::Tcp, port: 1433 }];
        let row = PodRow { ips: ["10.1.2.4".parse().unwrap()].into(), ports: ports.into(), ..PodRow::default() };
        world.set_pod(&Key::new("shop", "mssql"), Some(row));
        let after = lines(&world);
        assert_eq!(after[..2], ["10.1.2.4".to_owned(), before[0].clone()], "{after:?}");
        assert!(after.len() == 5 && after.contains(&before[1]) && after[2].ends_with("_tcp_1433"), "{after:?}");
    }

    #[test]
    fn pods_with_the_same_rules_share_a_group_and_rules_a_set() {
        let other_namespace = json!([{"namespaceSelector": {"matchLabels": {"team": "b"}}}]);
        let world = world(&[policy(json!({"podSelector": {}, "ingress": [{"from": other_namespace}]}))]);
        let wants = wants(&Replica::default(), &world, &HashMap::new(), |_| true);
        let of = |table: &str| wants.iter().filter(|want| want.at.table == table).collect::<Vec<_>>();
        assert_eq!(of("Address_Set")[0].columns["addresses"], Datum::from("10.1.1.4"));
        let groups = of("Port_Group");
        let ports: Vec<String> = groups[0].members["ports"].iter().map(|port| port.id.to_string()).collect();
        assert_eq!((groups.len(), ports), (1, vec!["shop_db".to_owned(), "shop_web".to_owned()]));
        // A pod without a port of ours is in no group.
        let none = super::wants(&Replica::default(), &world, &HashMap::new(), |key| key.name == "web");
        assert_eq!(none.iter().find(|want| want.at.table == "Port_Group").unwrap().members["ports"].len(), 1);
        assert!(super::wants(&Replica::default(), &self::world(&[]), &HashMap::new(), |_| true).is_empty());
    }

    #[test]
    fn nodes_reach_their_own_pods_whatever_the_policies() {
        let there = crate::rows::tests::replica(&json!({
            "Logical_Switch": {"00000000-0000-0000-0000-000000000001": {"name": "lin01", "external_ids": ["map", [[OWNER, "node/lin01"]]]}},
            "Logical_Switch_Port": {"00000000-0000-0000-0000-000000000002": {"name": "k8s-lin01", "addresses": "0a:00:00:00:00:01 10.1.1.2"}},
        }));
        let world = world(&[policy(json!({"podSelector": {}, "policyTypes": ["Ingress"]}))]);
        let text = |nodes: &HashMap<String, Box<[IpAddr]>>| {
            let nodes: Vec<Want> = wants(&there, &world, nodes, |_| true).into_iter().filter(|want| format!("{want:?}").contains("1002")).collect();
            plan(&there, "watcher", &nodes).to_string()
        };
        let alone = text(&HashMap::new());
        assert!(alone.contains("match: \"ip4.src == 10.1.1.2\"") && alone.contains("match: \"ip4.dst == 10.1.1.2\""), "{alone}");
        // By the addresses of its Node object too, and by those of no other node.
        let ips = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let both = text(&[("lin01".to_owned(), ips(&["10.240.0.12", "fd00::12"])), ("lin02".to_owned(), ips(&["10.240.0.13"]))].into());
        assert!(both.contains("match: \"ip4.src == {10.1.1.2, 10.240.0.12}\"") && both.contains("ip4.dst == {10.1.1.2, 10.240.0.12}"), "{both}");
        assert!(!both.contains("10.240.0.13"), "{both}");
    }
}
