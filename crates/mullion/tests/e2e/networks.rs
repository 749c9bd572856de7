//! Modes of the pod network: the ways between nodes that are not the default.

use serde_json::Value;

use crate::cluster::{Cluster, PATIENCE, until};
use crate::commands::hns;
use crate::from_node::internal_ips;

/// The pod CIDRs of a Node, each with its address of that family.
fn ways(cluster: &Cluster, node: &Value) -> Vec<(String, String)> {
    let addresses = internal_ips(cluster, node["metadata"]["name"].as_str().expect("a name"));
    let cidrs = node["spec"]["podCIDRs"].as_array().expect("pod CIDRs").iter().map(|cidr| cidr.as_str().expect("a pod CIDR"));
    let like = |cidr: &str| addresses.iter().find(|address| address.contains(':') == cidr.contains(':')).expect("an address of each family").clone();
    cidrs.map(|cidr| (cidr.to_owned(), like(cidr))).collect()
}

/// The router has a route for each node's pods, and no other host has one.
pub fn router_has_the_routes(cluster: &Cluster) {
    let nodes = cluster.json(&["nodes"]);
    let nodes = nodes["items"].as_array().expect("nodes");
    for node in nodes {
        let name = node["metadata"]["name"].as_str().expect("a name");
        for (cidr, address) in ways(cluster, node) {
            let line = format!("route + {cidr} via {address} ({name})");
            until("the router's route", PATIENCE, || {
                let log = cluster.place.mullion(&["logs", "gw"]).ok("mullion logs gw");
                if log.contains(&line) { Ok(()) } else { Err(format!("no {line:?} in {log}")) }
            });
        }
        let log = cluster.place.mullion(&["logs", name]).ok("mullion logs");
        assert!(!log.contains("route + "), "{name} sends all to the router: {log}");
    }
}

/// Every node has flannel's annotations, each with a MAC of its own, and no route to others' pods by their addresses.
pub fn nodes_announce_their_tunnels(cluster: &Cluster) {
    let nodes = cluster.json(&["nodes"]);
    let mut seen = Vec::new();
    for node in nodes["items"].as_array().expect("nodes") {
        let name = node["metadata"]["name"].as_str().expect("a name");
        let data = until("the node's announcement", PATIENCE, || {
            let node = cluster.json(&["node", name]);
            let annotation = |key: &str| node["metadata"]["annotations"][format!("flannel.alpha.coreos.com/{key}")].as_str().map(str::to_owned);
            match (annotation("backend-type").as_deref(), annotation("backend-data")) {
                (Some("vxlan"), Some(data)) => Ok(data),
                other => Err(format!("{other:?}")),
            }
        });
        assert!(data.starts_with("{\"VNI\":4096,\"VtepMAC\":\"") && !seen.contains(&data), "{name}: {data}");
        seen.push(data);
    }
}

/// Every node's log says that it added a route to each other node's pods, by BGP's sessions and by the node's own address.
pub fn nodes_learn_routes_by_bgp(cluster: &Cluster) {
    let nodes = cluster.json(&["nodes"]);
    let nodes = nodes["items"].as_array().expect("nodes");
    let name = |node: &Value| node["metadata"]["name"].as_str().expect("a name").to_owned();
    for own in nodes {
        for other in nodes.iter().filter(|other| name(other) != name(own)) {
            for (cidr, address) in ways(cluster, other) {
                let (session, route) = (format!("{} ({address}): session established", name(other)), format!("route + {cidr} via "));
                until("the session and the route", PATIENCE, || {
                    let log = cluster.place.mullion(&["logs", &name(own)]).ok("mullion logs");
                    if log.contains(&session) && log.contains(&route) { Ok(()) } else { Err(format!("no {session:?} or {route:?} in {log}")) }
                });
            }
        }
        until("the node's annotation", PATIENCE, || {
            let node = cluster.json(&["node", &name(own)]);
            let address = node["metadata"]["annotations"]["projectcalico.org/IPv4Address"].as_str().map(str::to_owned);
            if address.as_deref().is_some_and(|address| address.ends_with("/24")) { Ok(()) } else { Err(format!("{address:?}")) }
        });
    }
}

/// Installed while the cluster runs, Calico's kinds are watched, and what has no effect becomes an Event of the nodes.
pub fn bgp_peers_of_calico_take_effect(cluster: &Cluster) {
    let definition = |plural: &str, kind: &str| {
        let singular = kind.to_lowercase();
        format!(
            "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {{name: {plural}.crd.projectcalico.org}}\n\
             spec:\n  group: crd.projectcalico.org\n  scope: Cluster\n  names: {{plural: {plural}, singular: {singular}, kind: {kind}, listKind: {kind}List}}\n  \
             versions:\n  - name: v1\n    served: true\n    storage: true\n    schema:\n      openAPIV3Schema:\n        type: object\n        \
             x-kubernetes-preserve-unknown-fields: true\n"
        )
    };
    let all = [("bgppeers", "BGPPeer"), ("bgpconfigurations", "BGPConfiguration"), ("ippools", "IPPool")];
    cluster.apply(&all.map(|(plural, kind)| definition(plural, kind)).join("---\n"));
    let pool = "apiVersion: crd.projectcalico.org/v1\nkind: IPPool\nmetadata: {name: tunnels}\nspec: {cidr: 192.168.0.0/16, ipipMode: Always}\n";
    until("the kinds are served", PATIENCE, || {
        let output = cluster.try_kubectl(&["apply", "-f", "-"], pool);
        if output.code == Some(0) { Ok(()) } else { Err(output.err) }
    });
    for node in ["lin01", "win01"] {
        cluster.event("Node", node, "BGPConfigurationNotUsed", "Windows has no IP-in-IP");
    }
}

/// The pods' network of a Windows node is transparent, the host is its gateway, and the node has routes to the pods of the two others.
pub fn windows_nodes_route_between_their_adapters(cluster: &Cluster) {
    for name in ["win01", "win02"] {
        until("the node's network", PATIENCE, || {
            let (networks, endpoints) = (hns(cluster, "networks", name), hns(cluster, "endpoints", name));
            let host = endpoints.iter().find(|endpoint| endpoint["Name"] == "mullion_ep");
            let address = host.and_then(|endpoint| endpoint["IpConfigurations"][0]["IpAddress"].as_str()).unwrap_or_default();
            let transparent = networks.iter().any(|network| network["Type"] == "Transparent");
            if transparent && address.ends_with(".1") { Ok(()) } else { Err(format!("{networks:?} {endpoints:?}")) }
        });
        until("the node's routes", PATIENCE, || {
            let log = cluster.place.mullion(&["logs", name]).ok("mullion logs");
            if log.matches("route + ").count() == 2 { Ok(()) } else { Err(log) }
        });
    }
}
