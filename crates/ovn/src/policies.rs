//! NetworkPolicies → port groups, address sets and ACLs.
//!
//! Pods with the same rules share a port group, and rules that name the same peers an address set; what the rules are says crate
//! `network-policy`, whose profiles have nothing but what is allowed, and then a denial. Priorities are those of ovn-kubernetes. Traffic
//! between a pod and its own node passes always.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use cluster::Key;
use network_policy::profile::{GroupKey, Ports, ProfileRule};
use network_policy::{Action, Direction, Profile, World};
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

/// Every port group, address set and ACL that the policies of a cluster need. `has_port`: whether a pod has a logical port of ours.
#[must_use]
pub fn wants(replica: &Replica, world: &World, has_port: impl Fn(&Key) -> bool) -> Vec<Want> {
    let mut members: BTreeMap<&Arc<Profile>, Vec<&Key>> = BTreeMap::new();
    for (key, endpoint) in world.endpoints().filter(|(key, _)| has_port(key)) {
        for profile in endpoint.all() {
            members.entry(profile).or_default().push(key);
        }
    }
    let groups: BTreeSet<&Arc<GroupKey>> = members.keys().flat_map(|profile| profile.rules()).flat_map(|rule| rule.peers.iter().flatten()).collect();
    let mut wants: Vec<Want> = groups.iter().filter_map(|group| address_set(world, group)).collect();
    for (profile, pods) in &members {
        let name = group_name(profile);
        let group = Want::named("Port_Group", name.as_str());
        wants.push(pods.iter().fold(group.exactly("ports"), |group, key| group.member("ports", Ref::named("Logical_Switch_Port", port_name(key)))));
        wants.extend(acls(world, &name, profile));
    }
    if !members.is_empty() {
        wants.extend(own_nodes(replica));
    }
    wants
}

/// The addresses of a group of pods; ranges of addresses stand in the ACLs.
fn address_set(world: &World, group: &GroupKey) -> Option<Want> {
    if matches!(group, GroupKey::Nets(_) | GroupKey::Named(..)) {
        return None;
    }
    let addresses = world.members(group).map(|(ip, _)| ip).filter(IpAddr::is_ipv4).map(|ip| ip.to_string());
    Some(Want::named("Address_Set", set_name(group)).with("addresses", Datum::set(addresses)))
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
    for rule in profile.rules().filter(|rule| rule.action == Action::Allow) {
        for case in cases(world, profile.direction, rule) {
            let key = format!("{group} {}", found.len());
            let matches = [format!("{port} == @{group}"), "ip4".to_owned()].into_iter().chain(case).collect::<Vec<_>>().join(" && ");
            found.push(acl(key, holder(), pipeline, ALLOWED, matches, "allow-related"));
        }
    }
    if profile.end.0 == Action::Deny {
        found.push(acl(format!("{group} else"), holder(), pipeline, DENIED, format!("{port} == @{group} && ip"), "drop"));
    }
    found
}

/// The conditions of each case in which a rule matches.
fn cases(world: &World, direction: Direction, rule: &ProfileRule) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let peers = rule.peers.as_ref().map(|groups| either(groups.iter().filter_map(|group| peer(side(direction).peer, group)).collect()));
    let ports = rule.ports.as_ref().map(|ports| either(ports.iter().map(|ports| port(*ports)).collect()));
    // None of either is everything; an empty list is nothing.
    if peers != Some(None) && ports != Some(None) {
        found.push([peers, ports].into_iter().flatten().flatten().collect());
    }
    for group in &rule.named {
        for (ip, of) in world.members(group) {
            if let (true, Some((protocol, number))) = (ip.is_ipv4(), of) {
                found.push(vec![format!("ip4.dst == {ip}"), port(Ports { protocol, first: number, last: number })]);
            }
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

/// On each node's switch: what passes between the node's own port and the pods.
fn own_nodes(replica: &Replica) -> Vec<Want> {
    let ports: BTreeMap<&str, &ovsdb::Row> = replica.table("Logical_Switch_Port").rows().map(|(_, row)| (row.text("name"), row)).collect();
    let mut wants = Vec::new();
    for (_, switch) in replica.table("Logical_Switch").rows() {
        let name = switch.text("name");
        let is_node = switch.entry("external_ids", OWNER) == Some(&crate::topology::node_scope(name));
        let address = ports.get(&*format!("k8s-{name}")).and_then(|port| port.text("addresses").split_whitespace().nth(1));
        let Some(address) = address.filter(|_| is_node) else { continue };
        for direction in [Direction::Ingress, Direction::Egress] {
            let Side { peer, pipeline, .. } = side(direction);
            let holder = Ref::named("Logical_Switch", name);
            wants.push(acl(format!("{name} {direction}"), holder, pipeline, NODE, format!("{peer} == {address}"), "allow-related"));
        }
    }
    wants
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::networking::v1::NetworkPolicy;
    use network_policy::rows::{Labels, NamedPort, PodRow};
    use network_policy::{Policy, PolicyId, Protocol};
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
        let wants = wants(&Replica::default(), &world(&[policy(spec)]), |_| true);
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
                "from-lport allow-related: inport == @mullion_pg && ip4 && ip4.dst == 10.1.2.3 && tcp.dst == 5432",
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
    fn pods_with_the_same_rules_share_a_group_and_rules_a_set() {
        let other_namespace = json!([{"namespaceSelector": {"matchLabels": {"team": "b"}}}]);
        let world = world(&[policy(json!({"podSelector": {}, "ingress": [{"from": other_namespace}]}))]);
        let wants = wants(&Replica::default(), &world, |_| true);
        let of = |table: &str| wants.iter().filter(|want| want.at.table == table).collect::<Vec<_>>();
        assert_eq!(of("Address_Set")[0].columns["addresses"], Datum::from("10.1.1.4"));
        let groups = of("Port_Group");
        let ports: Vec<String> = groups[0].members["ports"].iter().map(|port| port.id.to_string()).collect();
        assert_eq!((groups.len(), ports), (1, vec!["shop_db".to_owned(), "shop_web".to_owned()]));
        // A pod without a port of ours is in no group.
        let none = super::wants(&Replica::default(), &world, |key| key.name == "web");
        assert_eq!(none.iter().find(|want| want.at.table == "Port_Group").unwrap().members["ports"].len(), 1);
        assert!(super::wants(&Replica::default(), &self::world(&[]), |_| true).is_empty());
    }

    #[test]
    fn nodes_reach_their_own_pods_whatever_the_policies() {
        let there = crate::rows::tests::replica(&json!({
            "Logical_Switch": {"00000000-0000-0000-0000-000000000001": {"name": "lin01", "external_ids": ["map", [[OWNER, "node/lin01"]]]}},
            "Logical_Switch_Port": {"00000000-0000-0000-0000-000000000002": {"name": "k8s-lin01", "addresses": "0a:00:00:00:00:01 10.1.1.2"}},
        }));
        let world = world(&[policy(json!({"podSelector": {}, "policyTypes": ["Ingress"]}))]);
        let nodes: Vec<Want> = wants(&there, &world, |_| true).into_iter().filter(|want| format!("{want:?}").contains("1002")).collect();
        let text = plan(&there, "watcher", &nodes).to_string();
        assert!(text.contains("match: \"ip4.src == 10.1.1.2\"") && text.contains("match: \"ip4.dst == 10.1.1.2\""), "{text}");
    }
}
