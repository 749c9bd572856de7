//! A straightforward reader: it goes through the objects for each packet, and knows nothing of rows, groups and profiles.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use super::cluster::Cluster;
use crate::Packet;

/// Whether both ends let a packet pass that no end's own node sends or gets.
pub fn passes(cluster: &Cluster, packet: &Packet) -> bool {
    let Packet { source, destination, .. } = *packet;
    source == destination || (side(cluster, packet, source, destination, false) && side(cluster, packet, destination, source, true))
}

/// The same where a pod's own node is known by its address.
pub fn passes_with_nodes(cluster: &Cluster, packet: &Packet) -> bool {
    let Packet { source, destination, .. } = *packet;
    let own = |local: IpAddr, peer: IpAddr| {
        let node = cluster.nodes.iter().find(|node| node["status"]["addresses"][0]["address"] == peer.to_string());
        node.zip(cluster.pod(local)).is_some_and(|(node, pod)| pod["spec"]["nodeName"] == node["metadata"]["name"])
    };
    let side = |local, peer, ingress| own(local, peer) || side(cluster, packet, local, peer, ingress);
    source == destination || (side(source, destination, false) && side(destination, source, true))
}

fn list<'a>(value: &'a Value, member: &str) -> &'a [Value] {
    value[member].as_array().map_or(&[], Vec::as_slice)
}

/// What the policies of the pod at `local` say.
fn side(cluster: &Cluster, packet: &Packet, local: IpAddr, peer: IpAddr, ingress: bool) -> bool {
    let Some(pod) = cluster.pod(local) else { return true };
    let (rules, peers) = if ingress { ("ingress", "from") } else { ("egress", "to") };
    if let Some(allowed) = tier(cluster, packet, pod, peer, rules, peers, "Admin") {
        return allowed;
    }
    let kind = if ingress { "Ingress" } else { "Egress" };
    let own = |policy: &&Value| {
        let namespace = &policy["metadata"]["namespace"];
        *namespace == pod["metadata"]["namespace"]
            && labelled(&policy["spec"]["podSelector"], pod)
            && list(&policy["spec"], "policyTypes").contains(&kind.into())
    };
    let isolating: Vec<&Value> = cluster.policies.iter().filter(own).collect();
    if !isolating.is_empty() {
        return isolating.iter().any(|policy| {
            list(&policy["spec"], rules).iter().any(|rule| {
                let (wanted, ports) = (list(rule, peers), list(rule, "ports"));
                let named = |port: &Value| named_port(cluster, packet, port["port"].as_str(), Some(port["protocol"].as_str().unwrap_or("TCP")));
                (wanted.is_empty() || wanted.iter().any(|one| is_peer(cluster, one, peer, &policy["metadata"]["namespace"])))
                    && (ports.is_empty() || ports.iter().any(|port| plain_port(packet, port) || named(port)))
            })
        });
    }
    tier(cluster, packet, pod, peer, rules, peers, "Baseline").unwrap_or(true)
}

/// What ClusterNetworkPolicies of a tier decide; none when they pass it on, or say nothing.
fn tier(cluster: &Cluster, packet: &Packet, pod: &Value, peer: IpAddr, rules: &str, peers: &str, tier: &str) -> Option<bool> {
    let mut policies: Vec<&Value> = cluster.cluster_policies.iter().filter(|policy| policy["spec"]["tier"] == tier).collect();
    policies.sort_by_key(|policy| (policy["spec"]["priority"].as_i64(), policy["metadata"]["name"].as_str()));
    for policy in policies {
        if !is_selected(cluster, &policy["spec"]["subject"], pod) {
            continue;
        }
        for rule in list(&policy["spec"], rules) {
            let from = list(rule, peers).iter().any(|one| is_cluster_peer(cluster, one, peer));
            let protocols = list(rule, "protocols");
            let at = protocols.is_empty() || protocols.iter().any(|protocol| is_protocol(cluster, packet, protocol));
            if from && at {
                return match rule["action"].as_str() {
                    Some("Accept") => Some(true),
                    Some("Deny") => Some(false),
                    _ => None,
                };
            }
        }
    }
    None
}

/// A selector of labels.
fn labelled(selector: &Value, object: &Value) -> bool {
    let labels = &object["metadata"]["labels"];
    let exact = selector["matchLabels"].as_object().into_iter().flatten().all(|(key, value)| labels[key] == *value);
    exact
        && list(selector, "matchExpressions").iter().all(|one| {
            let have = &labels[one["key"].as_str().unwrap_or_default()];
            match one["operator"].as_str() {
                Some("In") => list(one, "values").contains(have),
                Some("NotIn") => !list(one, "values").contains(have),
                Some("Exists") => !have.is_null(),
                _ => have.is_null(),
            }
        })
}

fn namespace_of<'a>(cluster: &'a Cluster, pod: &Value) -> &'a Value {
    let name = &pod["metadata"]["namespace"];
    cluster.namespaces.iter().find(|one| one["metadata"]["name"] == *name).expect("a namespace")
}

fn is_peer(cluster: &Cluster, peer: &Value, ip: IpAddr, own: &Value) -> bool {
    if let Some(block) = peer.get("ipBlock") {
        let holds = |net: &Value| net.as_str().and_then(|net| net.parse::<IpNet>().ok()).is_some_and(|net| net.contains(&ip));
        return holds(&block["cidr"]) && !list(block, "except").iter().any(holds);
    }
    let Some(pod) = cluster.pod(ip) else { return false };
    let namespace = match peer.get("namespaceSelector") {
        Some(selector) => labelled(selector, namespace_of(cluster, pod)),
        None => pod["metadata"]["namespace"] == *own,
    };
    namespace && peer.get("podSelector").is_none_or(|selector| labelled(selector, pod))
}

/// Pods by `namespaces` or `pods`.
fn is_selected(cluster: &Cluster, selector: &Value, pod: &Value) -> bool {
    let namespace = namespace_of(cluster, pod);
    match selector.get("namespaces") {
        Some(namespaces) => labelled(namespaces, namespace),
        None => labelled(&selector["pods"]["namespaceSelector"], namespace) && labelled(&selector["pods"]["podSelector"], pod),
    }
}

fn is_cluster_peer(cluster: &Cluster, peer: &Value, ip: IpAddr) -> bool {
    if let Some(nodes) = peer.get("nodes") {
        let node = cluster.nodes.iter().find(|node| node["status"]["addresses"][0]["address"] == ip.to_string());
        return node.is_some_and(|node| labelled(nodes, node));
    }
    if peer.get("networks").is_some() {
        return list(peer, "networks").iter().any(|net| net.as_str().is_some_and(|net| net.parse::<IpNet>().expect("a network").contains(&ip)));
    }
    cluster.pod(ip).is_some_and(|pod| is_selected(cluster, peer, pod))
}

fn plain_port(packet: &Packet, port: &Value) -> bool {
    let Some((protocol, number)) = packet.port else { return false };
    if protocol.to_string() != port["protocol"].as_str().unwrap_or("TCP") {
        return false;
    }
    match port.get("port") {
        None => true,
        Some(Value::Number(first)) => {
            let first = first.as_u64().unwrap_or_default();
            (first..=port["endPort"].as_u64().unwrap_or(first)).contains(&u64::from(number))
        }
        Some(_) => false,
    }
}

/// Whether a container of the destination calls the packet's port so.
fn named_port(cluster: &Cluster, packet: &Packet, name: Option<&str>, protocol: Option<&str>) -> bool {
    let (Some((of_packet, number)), Some(name), Some(pod)) = (packet.port, name, cluster.pod(packet.destination)) else { return false };
    list(&pod["spec"]["containers"][0], "ports").iter().any(|port| {
        let own = port["protocol"].as_str().unwrap_or("TCP");
        port["name"] == name && port["containerPort"] == number && own == of_packet.to_string() && protocol.is_none_or(|protocol| protocol == own)
    })
}

fn is_protocol(cluster: &Cluster, packet: &Packet, protocol: &Value) -> bool {
    if let Some(name) = protocol["destinationNamedPort"].as_str() {
        return named_port(cluster, packet, Some(name), None);
    }
    let Some((of_packet, number)) = packet.port else { return false };
    let Some(given) = protocol.get(of_packet.to_string().to_lowercase()) else { return false };
    let Some(port) = given.get("destinationPort") else { return true };
    let (first, last) = match port.get("range") {
        Some(range) => (range["start"].as_u64(), range["end"].as_u64()),
        None => (port["number"].as_u64(), port["number"].as_u64()),
    };
    first.zip(last).is_some_and(|(first, last)| (first..=last).contains(&u64::from(number)))
}
