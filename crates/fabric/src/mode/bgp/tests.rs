//! Tests of what follows from nodes and Calico's configuration: sessions, announcements, routes.

use bgp::session::State;
use host::HostRoute;
use serde_json::json;

use super::*;
use crate::calico::{Configuration, Pool, ResourcePeer};
use crate::examples;
use crate::mode::{HostState, Mode, Settings, Vxlan, desired};

/// Nodes `a` to `d`, of which `c` has an AS of its own and `d` two addresses.
fn nodes() -> BTreeMap<String, NodeRow> {
    let row = |name: &str, cidrs: &[&str], addresses: &[&str]| NodeRow {
        pod_cidrs: cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect(),
        addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        labels: [("name".to_owned(), name.to_owned())].into(),
        ..NodeRow::default()
    };
    let all = [
        ("a", row("a", &["192.168.1.0/24", "fd01:1::/64"], &["10.240.0.11", "fd00::11"])),
        ("b", row("b", &["192.168.2.0/24", "fd01:2::/64"], &["10.240.0.12", "fd00::12"])),
        ("c", row("c", &["192.168.3.0/24"], &["10.240.0.13"])),
        ("d", row("d", &["192.168.4.0/24"], &["10.0.9.14"])),
    ];
    let mut nodes: BTreeMap<String, NodeRow> = all.into_iter().map(|(name, row)| (name.to_owned(), row)).collect();
    nodes.get_mut("c").unwrap().calico.asn = Some(64513);
    nodes.get_mut("d").unwrap().calico.ipv4 = "10.240.0.14/24".parse().ok();
    nodes
}

fn settings() -> Settings {
    let pods = examples::pods(examples::bridge());
    let cluster_cidrs = vec!["192.168.0.0/16".parse().unwrap(), "fd01::/16".parse().unwrap()];
    Settings { mode: Mode::Bgp, vxlan: Vxlan::default(), bgp: Bgp::default(), node_name: "a".into(), cluster_cidrs, role: Role::Node(Box::new(pods)) }
}

fn route(dst: &str, via: Option<&str>, ours: bool) -> HostRoute {
    HostRoute { dst: dst.parse().unwrap(), via: via.map(|via| via.parse().unwrap()), oif: 2, on_link: false, metric: 0, ours }
}

fn host_routes() -> Vec<HostRoute> {
    vec![
        route("0.0.0.0/0", Some("10.240.0.1"), false),
        route("10.240.0.0/24", None, false),
        route("fd00::/64", None, false),
        route("192.168.9.0/24", Some("10.240.0.19"), true),
    ]
}

fn whole() -> Known {
    Known { sessions: Sessions { whole: true, ..Sessions::default() }, passwords: true, ..Known::default() }
}

/// The lines of what is desired that begin with one of these words.
fn lines(nodes: &BTreeMap<String, NodeRow>, settings: &Settings, known: Known, words: &[&str]) -> String {
    let state = HostState { bgp: Some(Arc::new(known)), ..HostState::default() };
    let text = desired(&Inputs { settings, nodes, routes: &host_routes(), state: &state }).to_string();
    text.lines().filter(|line| words.iter().any(|word| line.starts_with(word))).map(|line| format!("{line}\n")).collect()
}

#[test]
fn nodes_are_a_mesh_of_sessions_of_each_family() {
    insta::assert_snapshot!(lines(&nodes(), &settings(), whole(), &["speaker", "peer", "annotation", "masquerade", "cni", "!"]), @"
    speaker AS 64512 id 10.240.0.11 at 10.240.0.11 port 179, fd00::11 port 179 announces 192.168.1.0/24 fd01:1::/64
    peer 10.240.0.12 port 179 AS 64512 IPv4 (b)
    peer 10.240.0.13 port 179 AS 64513 IPv4 (c)
    peer 10.240.0.14 port 179 AS 64512 IPv4 (d)
    peer fd00::12 port 179 AS 64512 IPv6 (b)
    masquerade 192.168.1.0/24 outside 192.168.0.0/16
    masquerade fd01:1::/64 outside fd01::/16
    cni 10-mullion.conflist bridge portmap
    annotation projectcalico.org/IPv4Address=10.240.0.11/24
    annotation projectcalico.org/IPv6Address=fd00::11/64
    ");
    let own = Settings { bgp: Bgp { asn: Some(65001), ..Bgp::default() }, ..settings() };
    insta::assert_snapshot!(lines(&nodes(), &own, whole(), &["speaker", "annotation projectcalico.org/AS"]), @"
    speaker AS 65001 id 10.240.0.11 at 10.240.0.11 port 179, fd00::11 port 179 announces 192.168.1.0/24 fd01:1::/64
    annotation projectcalico.org/ASNumber=65001
    ");
}

#[test]
fn reflectors_take_the_place_of_the_mesh() {
    let reflectors = ResourcePeer::read(&json!({"nodeSelector": "!(name == 'b')", "peerSelector": "name == 'b'"}));
    let mut nodes = nodes();
    nodes.get_mut("b").unwrap().calico.cluster = "244.0.0.1".parse().ok();
    let known = || {
        let mut known = whole();
        known.resources.configuration = Configuration { mesh: false, asn: Some(64999), ..Configuration::default() };
        known.resources.peers = [("reflectors".to_owned(), reflectors.clone())].into();
        known
    };
    insta::assert_snapshot!(lines(&nodes, &settings(), known(), &["speaker", "peer", "!"]), @"
    speaker AS 64999 id 10.240.0.11 at 10.240.0.11 port 179, fd00::11 port 179 announces 192.168.1.0/24 fd01:1::/64
    peer 10.240.0.12 port 179 AS 64999 IPv4 (b)
    peer fd00::12 port 179 AS 64999 IPv6 (b)
    ");
    let reflector = Settings { node_name: "b".into(), ..settings() };
    insta::assert_snapshot!(lines(&nodes, &reflector, known(), &["speaker", "peer", "!"]), @"
    speaker AS 64999 id 10.240.0.12 reflector of 244.0.0.1 at 10.240.0.12 port 179, fd00::12 port 179 announces 192.168.2.0/24 fd01:2::/64
    peer 10.240.0.11 port 179 AS 64999 IPv4 client (a)
    peer 10.240.0.13 port 179 AS 64513 IPv4 (c)
    peer 10.240.0.14 port 179 AS 64999 IPv4 client (d)
    peer fd00::11 port 179 AS 64999 IPv6 client (a)
    ");
}

#[test]
fn routers_are_peers_of_the_nodes_that_they_are_for() {
    let mut known = whole();
    let peer = |spec| ResourcePeer::read(&spec);
    known.resources.configuration.mesh = false;
    known.resources.peers = [
        ("global", peer(json!({"peerIP": "10.240.0.1", "asNumber": 64600}))),
        ("mine", peer(json!({"peerIP": "[fd00::1]:1179", "asNumber": 64600, "node": "a", "ttlSecurity": 1}))),
        ("others", peer(json!({"peerIP": "10.240.0.2", "asNumber": 64600, "node": "b"}))),
        ("rack", peer(json!({"peerIP": "10.240.0.3", "asNumber": 64600, "nodeSelector": "name in {'a', 'c'}"}))),
        ("secret", peer(json!({"peerIP": "10.240.0.4", "asNumber": 64600, "password": {"secretKeyRef": {"name": "bgp", "key": "tor"}}}))),
        ("wrong", peer(json!({"peerIP": "10.240.0.5"}))),
    ]
    .map(|(name, peer)| (name.to_owned(), peer))
    .into();
    insta::assert_snapshot!(lines(&nodes(), &settings(), known.clone(), &["peer", "!"]), @"
    peer 10.240.0.1 port 179 AS 64600 IPv4 IPv6 (global)
    peer 10.240.0.3 port 179 AS 64600 IPv4 IPv6 (rack)
    peer fd00::1 port 1179 AS 64600 IPv4 IPv6 (mine)
    ! BGPPeer mine: ttlSecurity has no effect on Mullion's nodes
    ! BGPPeer secret: its password is in a Secret, and Mullion's nodes read no Secrets for BGP; write it into a file on each node, and name the file in bgp.passwordFiles of the node's configuration, under 10.240.0.4
    ! BGPPeer wrong: asNumber is missing, or no AS number; it has no effect
    ");
    let bgp = Bgp {
        passwords: [("10.240.0.4".parse().unwrap(), Secret::new("x"))].into(),
        peers: [("10.240.0.6".parse().unwrap(), 64601)].into(),
        ..Bgp::default()
    };
    let with = Settings { bgp, ..settings() };
    insta::assert_snapshot!(lines(&nodes(), &with, known.clone(), &["peer 10.240.0.4", "peer 10.240.0.6"]), @"
    peer 10.240.0.4 port 179 AS 64600 IPv4 IPv6 password (secret)
    peer 10.240.0.6 port 179 AS 64601 IPv4 IPv6 (router)
    ");
    known.passwords = false;
    insta::assert_snapshot!(lines(&nodes(), &with, known, &["peer 10.240.0.4", "! peer"]), @"
    ! peer 10.240.0.4 (secret): its session has a password, but Windows has no TCP MD5; take the password away on both sides, or peer by a Linux node
    ");
}

#[test]
fn pools_of_tunnels_are_explained_and_silent_ones_are_not_announced() {
    let mut known = whole();
    let pool = |spec| Pool::read(&spec);
    known.resources.pools = [
        ("ipip", pool(json!({"cidr": "192.168.0.0/16", "ipipMode": "Always"}))),
        ("off", pool(json!({"cidr": "192.168.0.0/16", "vxlanMode": "Always", "disabled": true}))),
        ("other", pool(json!({"cidr": "172.16.0.0/16", "vxlanMode": "Always"}))),
        ("silent", pool(json!({"cidr": "192.168.0.0/20", "disableBGPExport": true}))),
        ("vxlan", pool(json!({"cidr": "fd01::/16", "vxlanMode": "CrossSubnet"}))),
    ]
    .map(|(name, pool)| (name.to_owned(), pool))
    .into();
    known.resources.configuration = Configuration::read(&json!({"nodeMeshPassword": {"secretKeyRef": {"name": "x"}}, "serviceClusterIPs": [{}]}));
    insta::assert_snapshot!(lines(&nodes(), &settings(), known, &["speaker", "!"]), @"
    speaker AS 64512 id 10.240.0.11 at 10.240.0.11 port 179, fd00::11 port 179 announces fd01:1::/64
    ! IPPool ipip: its ipipMode is Always, but Windows has no IP-in-IP, and Mullion's nodes send packets as they are; set ipipMode: Never
    ! IPPool vxlan: its vxlanMode is CrossSubnet, but with bgp Mullion's nodes send packets as they are; set vxlanMode: Never, or use the mode vxlan
    ! BGPConfiguration default: its nodeMeshPassword is in a Secret, and Mullion's nodes read no Secrets for BGP, so sessions with Calico's nodes do not begin; write the password into a file on each node, and name it in bgp.meshPasswordFile of the node's configuration
    ! BGPConfiguration default: serviceClusterIPs has no effect on Mullion's nodes
    ");
}

/// Sessions with `b` and a router, which told these routes.
fn told(routes: &[(&str, &str)]) -> Known {
    let (b, router): (IpAddr, IpAddr) = ("10.240.0.12".parse().unwrap(), "10.240.0.1".parse().unwrap());
    let status = |name: &str, state, trouble: Option<&str>| PeerStatus {
        name: name.to_owned(),
        state,
        trouble: trouble.map(str::to_owned),
        received: 0,
        sent: 0,
        stale: false,
    };
    let learned = |(prefix, next_hop): &(&str, &str)| {
        let next_hop: IpAddr = next_hop.parse().unwrap();
        (prefix.parse().unwrap(), Learned { next_hop, peer: if next_hop == b { b } else { router } })
    };
    let peers = [(b, status("b", State::Established, None)), (router, status("tor", State::Active, Some("no connection to the peer")))];
    let sessions = Sessions { routes: Arc::new(routes.iter().map(learned).collect()), whole: true, peers: peers.into(), problems: Vec::new() };
    Known { sessions, passwords: true, ..Known::default() }
}

#[test]
fn routes_follow_from_what_was_told_and_impossible_ones_are_refused() {
    let known = told(&[
        ("192.168.2.0/24", "10.240.0.12"),
        ("172.16.0.0/16", "10.240.0.1"),
        ("192.168.1.128/25", "10.240.0.12"),
        ("10.96.1.0/24", "10.240.0.1"),
        ("10.240.0.2/32", "10.240.0.1"),
        ("169.254.169.254/32", "10.240.0.1"),
        ("224.0.0.0/4", "10.240.0.1"),
        ("0.0.0.0/0", "10.0.0.99"),
        ("172.17.0.0/16", "10.0.0.99"),
        ("172.18.0.0/16", "10.0.0.99"),
    ]);
    insta::assert_snapshot!(lines(&nodes(), &settings(), known, &["route", "!"]), @"
    route 172.16.0.0/16 via 10.240.0.1 (tor)
    route 192.168.2.0/24 via 10.240.0.12 (b)
    ! peer 10.240.0.1 (tor): its route 10.96.1.0/24 is not used: it leads to Services, which this node serves itself; do not announce them to nodes
    ! peer 10.240.0.1 (tor): its route 10.240.0.2/32 is not used: it leads to hosts of the nodes' network; do not announce them to nodes
    ! peer 10.240.0.1 (tor): 2 of its routes, 169.254.169.254/32 among them, are not used: no other host has loopback, link-local or multicast addresses; do not announce them
    ! peer 10.240.0.1 (tor): 3 of its routes, 0.0.0.0/0 among them, are not used: its next hop 10.0.0.99 is no neighbour of this host; let the peer put itself in its place (next hop self), or put both on one network
    ! peer 10.240.0.12 (b): its route 192.168.1.128/25 is not used: it leads to pods of this node; let one node alone announce them
    ! peer 10.240.0.1 (tor): no BGP session: no connection to the peer; see that it has this node as its peer, and that port 179 is open
    ");
}

#[test]
fn routes_of_before_stay_until_the_peers_have_told_theirs() {
    let mut known = told(&[("192.168.2.0/24", "10.240.0.12")]);
    known.sessions.whole = false;
    insta::assert_snapshot!(lines(&nodes(), &settings(), known, &["route"]), @"
    route 192.168.2.0/24 via 10.240.0.12 (b)
    route 192.168.9.0/24 via 10.240.0.19 (a peer of before the restart)
    ");
    let text = |nodes: &BTreeMap<String, NodeRow>, bgp| {
        let state = HostState { bgp, ..HostState::default() };
        desired(&Inputs { settings: &settings(), nodes, routes: &host_routes(), state: &state }).routes.len()
    };
    assert_eq!(text(&nodes(), None), 1, "the cluster's configuration is not known yet");
    assert_eq!(text(&BTreeMap::new(), Some(Arc::new(whole()))), 1, "the own Node is not known yet");
}

#[test]
fn host_without_pods_routes_by_the_nodes() {
    let settings = Settings { node_name: "cp".into(), role: Role::Host { address: "10.240.0.2".parse().unwrap() }, ..settings() };
    let text = desired(&Inputs { settings: &settings, nodes: &nodes(), routes: &host_routes(), state: &HostState::default() }).to_string();
    insta::assert_snapshot!(text, @"
    route 192.168.1.0/24 via 10.240.0.11 (a)
    route 192.168.2.0/24 via 10.240.0.12 (b)
    route 192.168.3.0/24 via 10.240.0.13 (c)
    route 192.168.4.0/24 via 10.240.0.14 (d)
    route fd01:1::/64 via fd00::11 (a)
    route fd01:2::/64 via fd00::12 (b)
    ");
}
