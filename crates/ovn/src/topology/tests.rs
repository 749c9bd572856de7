use serde_json::json;

use super::*;
use crate::rows::plan;

fn net(text: &str) -> Ipv4Net {
    text.parse().unwrap()
}

fn example() -> Gateway {
    Gateway {
        node: "gw".into(),
        cluster_subnet: net("192.168.0.0/16"),
        physical_ip: net("10.240.0.1/24"),
        interface: "eth1".into(),
        mac: "02:00:00:00:00:01".into(),
        next_hop: "10.240.0.254".parse().unwrap(),
        rampout: vec![net("192.168.2.0/24")],
        chassis: "chassis-gw".into(),
    }
}

#[test]
fn a_master_makes_what_the_cluster_has_once() {
    insta::assert_snapshot!(plan(&Replica::default(), "master/cp", &master(&Replica::default(), "cp")));
}

/// What a master has made.
fn with_master() -> Replica {
    let balancer = |key: &str| json!({"external_ids": ["map", [[key, "yes"], ["mullion.io/owner", "master/cp"]]]});
    crate::rows::tests::replica(&json!({
        "Logical_Router": {"00000000-0000-0000-0000-000000000001": {
            "name": "cp", "external_ids": ["map", [["k8s-cluster-router", "yes"], ["mullion.io/owner", "master/cp"]]]}},
        "Logical_Switch": {"00000000-0000-0000-0000-000000000002": {"name": "join", "external_ids": ["map", [["mullion.io/owner", "master/cp"]]]}},
        "Load_Balancer": {
            "00000000-0000-0000-0000-000000000003": balancer("k8s-cluster-lb-tcp"),
            "00000000-0000-0000-0000-000000000004": balancer("k8s-cluster-lb-udp"),
        },
    }))
}

#[test]
fn a_node_gets_a_switch_a_router_port_and_its_own_port() {
    let there = with_master();
    let wants = node(&there, "lin01", net("192.168.1.0/24"), "0a:00:00:00:00:01", Some("chassis-lin01"));
    insta::assert_snapshot!(plan(&there, "node/lin01", &wants));
    let alone = plan(&Replica::default(), "node/lin01", &wants);
    assert!(alone.steps.is_empty(), "{alone}");
    assert!(
        alone.to_string().contains("! cannot write Logical_Router_Port rtos-lin01: there is no Logical_Router k8s-cluster-router=yes"),
        "{alone}"
    );
}

#[test]
fn a_gateway_gets_a_router_with_its_switch_routes_and_load_balancers() {
    let there = with_master();
    insta::assert_snapshot!(plan(&there, "gateway/gw", &gateway(&there, &example()).unwrap()));
}

#[test]
fn a_second_gateway_takes_the_next_address_and_no_default_route() {
    let there = crate::rows::tests::replica(&json!({
        "Logical_Router": {"00000000-0000-0000-0000-000000000001": {
            "name": "GR_gw", "external_ids": ["map", [["physical_ip", "10.240.0.1"], ["first_gateway", "yes"]]]}},
        "Logical_Router_Port": {
            "00000000-0000-0000-0000-000000000002": {"name": "rtoj-GR_gw", "mac": "00:00:00:00:00:02", "networks": "100.64.1.2/24"},
            "00000000-0000-0000-0000-000000000003": {"name": "rtoj-cp", "mac": "00:00:00:00:00:01", "networks": "100.64.1.1/24"},
        },
    }));
    let second = gateway(&there, &Gateway { node: "gw2".into(), ..example() }).unwrap();
    let text = format!("{second:?}");
    assert!(text.contains("100.64.1.3") && !text.contains("GR_gw2 default") && text.contains(r#""first_gateway": "no""#), "{text}");
    // Asked again, the first one keeps what it has.
    let first = format!("{:?}", gateway(&there, &example()).unwrap());
    assert!(first.contains("GR_gw default") && first.contains("100.64.1.2") && first.contains("00:00:00:00:00:02"), "{first}");
}

#[test]
fn mac_addresses_of_routers_are_the_same_each_time_and_never_twice() {
    let empty = Replica::default();
    let mac = router_mac(&empty, "rtos-lin01");
    assert!(mac.starts_with("00:00:00:") && mac.len() == 17 && mac == router_mac(&empty, "rtos-lin01"), "{mac}");
    let taken = crate::rows::tests::replica(&json!({"Logical_Router_Port": {
        "00000000-0000-0000-0000-000000000001": {"name": "other", "mac": mac.to_lowercase(), "networks": ""}}}));
    assert_ne!(router_mac(&taken, "rtos-lin01"), mac);
    assert_eq!(router_mac(&taken, "other"), mac.to_lowercase());
}

#[test]
fn the_local_switch_has_the_bridge_and_the_ports() {
    let printed = |wants: &[Want]| {
        let want = |want: &Want| format!("{} {:?} {:?} {:?} {:?}", want.at, want.columns, want.entries, want.members, want.held);
        wants.iter().map(want).collect::<Vec<_>>().join("\n")
    };
    let node = printed(&local_node("a-very-long-node-name", "netdev"));
    assert!(node.contains("Interface k8s-a-very-long") && node.contains(r#""iface-id": "k8s-a-very-long-node-name""#), "{node}");
    assert_eq!(management_interface("a-very-long-node-name").len(), 15);
    let bridge = Outside::Bridge { name: "brens4".into(), mac: "02:00:00:00:00:09".into() };
    let gateway = printed(&local_gateway("gw", &bridge, ""));
    for part in ["k8s-patch-br-int-brens4", "k8s-patch-brens4-br-int", r#""iface-id": "brens4_gw""#, r#""hwaddr": "02:00:00:00:00:09""#] {
        assert!(gateway.contains(part), "{part}: {gateway}");
    }
    let interface = printed(&local_gateway("gw", &Outside::Interface("eth1".into()), ""));
    assert!(interface.contains(r#""iface-id": "eth1_gw""#), "{interface}");
}

#[test]
fn subnets_of_nodes_do_not_overlap_and_a_chassis_has_one_gateway() {
    let (router, gateway, join, node) = (
        "00000000-0000-0000-0000-000000000001",
        "00000000-0000-0000-0000-000000000002",
        "00000000-0000-0000-0000-000000000003",
        "00000000-0000-0000-0000-000000000004",
    );
    let there = crate::rows::tests::replica(&serde_json::json!({
        "Logical_Router": {
            router: {"name": "cp", "ports": ["set", [["uuid", join], ["uuid", node]]], "external_ids": ["map", [["k8s-cluster-router", "yes"]]]},
            gateway: {"name": "GR_gw", "options": ["map", [["chassis", "a"]]]},
        },
        "Logical_Router_Port": {join: {"name": "rtoj-cp", "networks": "100.64.1.1/24"}, node: {"name": "rtos-lin01", "networks": "192.168.1.1/24"}},
    }));
    let with = |node: &str, subnet: &str| overlap(&there, node, subnet.parse().unwrap()).map(|(port, network)| format!("{port} {network}"));
    assert_eq!(with("lin01", "192.168.1.0/24"), None, "its own");
    assert_eq!(with("lin02", "192.168.2.0/24"), None);
    for subnet in ["192.168.1.0/24", "192.168.1.128/25", "192.168.0.0/16"] {
        assert_eq!(with("lin02", subnet).unwrap(), "rtos-lin01 192.168.1.0/24", "{subnet}");
    }
    assert_eq!(with("lin02", "100.64.0.0/10").unwrap(), "rtoj-cp 100.64.1.0/24");
    assert_eq!((router_on(&there, "gw", "a"), router_on(&there, "other", "a"), router_on(&there, "other", "b")), (None, Some("GR_gw"), None));
    assert_eq!(node_guards(&there).len(), 1);
}
