use std::collections::BTreeMap;

use super::*;
use crate::mode::peers;
use crate::rows::NodeRow;

#[cfg(target_os = "linux")]
mod alpha;

fn nodes(list: &[(&str, bool, &[&str], &[&str])]) -> BTreeMap<String, NodeRow> {
    let row = |windows, cidrs: &[&str], addresses: &[&str]| NodeRow {
        pod_cidrs: cidrs.iter().map(|text| text.parse().unwrap()).collect(),
        addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        windows,
        ..NodeRow::default()
    };
    list.iter().map(|(name, windows, cidrs, addresses)| ((*name).to_owned(), row(*windows, cidrs, addresses))).collect()
}

/// The node table of the alpha document, with addresses in the place of "IP of the host".
fn alpha() -> BTreeMap<String, NodeRow> {
    nodes(&[
        ("Lin01", false, &["192.168.0.0/24"], &["10.0.0.1"]),
        ("Win01", true, &["192.168.1.0/24"], &["10.0.0.2"]),
        ("Win02", true, &["192.168.2.0/24"], &["10.0.0.3"]),
    ])
}

/// The lists of the alpha document, word for word but for the addresses of Win01 and Win02.
const ALPHA: [(&str, &str); 3] = [
    ("Lin01", "ip route add 192.168.1.0/24 via 10.0.0.2\nip route add 192.168.2.0/24 via 10.0.0.3\n"),
    (
        "Win01",
        "route add 192.168.0.0 mask 255.255.255.0 192.168.0.1 if <Interface Id of the Routable Ethernet Adapter> -p\n\
         route add 192.168.2.0 mask 255.255.255.0 192.168.2.1 if <Interface Id of the Routable Ethernet Adapter> -p\n",
    ),
    (
        "Win02",
        "route add 192.168.0.0 mask 255.255.255.0 192.168.0.1 if <Interface Id of the Routable Ethernet Adapter> -p\n\
         route add 192.168.1.0 mask 255.255.255.0 192.168.1.1 if <Interface Id of the Routable Ethernet Adapter> -p\n",
    ),
];

#[test]
fn alpha_documents_route_lists_follow_from_its_node_table() {
    let nodes = alpha();
    for (name, list) in ALPHA {
        assert_eq!(list_of(name, &nodes, "<Interface Id of the Routable Ethernet Adapter>"), list, "{name}");
    }
}

/// The list of a node, as `fabric routes --for NAME --next-hop pod-gateway` prints it.
fn list_of(name: &str, nodes: &BTreeMap<String, NodeRow>, interface: &str) -> String {
    let (peers, problems) = peers(name, nodes, &["192.168.0.0/16".parse().unwrap()]);
    assert!(problems.is_empty(), "{problems:?}");
    if nodes[name].windows {
        let lines: Vec<Line> = peers.iter().map(Line::to_pod_gateway).collect();
        render(Format::Windows, &lines, Some(interface))
    } else {
        let lines: Vec<Line> = peers.iter().map(Line::to_node).collect();
        render(Format::Iproute, &lines, None)
    }
}

#[test]
fn every_format_renders_both_families() {
    let nodes = nodes(&[("a", false, &["192.168.1.0/24", "fd00:1::/64"], &["10.0.0.2", "fd00::2"])]);
    let clusters = ["192.168.0.0/16".parse().unwrap(), "fd00::/16".parse().unwrap()];
    let lines: Vec<Line> = peers("", &nodes, &clusters).0.iter().map(Line::to_node).collect();
    let all: String = FORMATS.iter().map(|(name, format)| format!("{name}:\n{}", render(*format, &lines, Some("7")))).collect();
    insta::assert_snapshot!(all, @r#"
    ios:
    ip route 192.168.1.0 255.255.255.0 10.0.0.2 name a
    ipv6 route fd00:1::/64 fd00::2 name a
    junos:
    set routing-options static route 192.168.1.0/24 next-hop 10.0.0.2
    set routing-options rib inet6.0 static route fd00:1::/64 next-hop fd00::2
    frr:
    ip route 192.168.1.0/24 10.0.0.2 tag 77
    ipv6 route fd00:1::/64 fd00::2 tag 77
    bird:
    protocol static mullion4 {
    	ipv4;
    	route 192.168.1.0/24 via 10.0.0.2; # a
    }
    protocol static mullion6 {
    	ipv6;
    	route fd00:1::/64 via fd00::2; # a
    }
    iproute:
    ip route add 192.168.1.0/24 via 10.0.0.2
    ip -6 route add fd00:1::/64 via fd00::2
    windows:
    route add 192.168.1.0 mask 255.255.255.0 10.0.0.2 if 7 -p
    netsh interface ipv6 add route fd00:1::/64 7 fd00::2 store=persistent
    json:
    [
      {
        "node": "a",
        "destination": "192.168.1.0/24",
        "nextHop": "10.0.0.2"
      },
      {
        "node": "a",
        "destination": "fd00:1::/64",
        "nextHop": "fd00::2"
      }
    ]
    "#);
}

#[test]
fn hostile_names_stay_words() {
    let line = Line { dst: "192.168.1.0/24".parse().unwrap(), via: "10.0.0.2".parse().unwrap(), node: "a\nno ip route x".into() };
    let lines = [line];
    assert_eq!(render(Format::Ios, &lines, None), "ip route 192.168.1.0 255.255.255.0 10.0.0.2 name a_no_ip_route_x\n");
    assert!(render(Format::Bird, &lines, None).contains("via 10.0.0.2; # a_no_ip_route_x\n"));
}
