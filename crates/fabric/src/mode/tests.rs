use super::*;
use crate::examples;
use crate::flannel::Announcement;

fn nodes(list: &[(&str, &[&str], &[&str])]) -> BTreeMap<String, NodeRow> {
    let row = |cidrs: &[&str], addresses: &[&str]| NodeRow {
        pod_cidrs: cidrs.iter().map(|text| text.parse().unwrap()).collect(),
        addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        ..NodeRow::default()
    };
    list.iter().map(|(name, cidrs, addresses)| ((*name).to_owned(), row(cidrs, addresses))).collect()
}

fn three() -> BTreeMap<String, NodeRow> {
    nodes(&[
        ("a", &["192.168.0.0/24", "fd00:10::/64"], &["10.240.0.11", "fd00::11"]),
        ("b", &["192.168.1.0/24", "fd00:11::/64"], &["10.240.0.12", "fd00::12"]),
        ("c", &["192.168.2.0/24", "fd00:12::/64"], &["10.240.0.13"]),
        ("waits-for-cidr", &[], &["10.240.0.15"]),
        ("waits-for-address", &["192.168.9.0/24"], &[]),
    ])
}

fn settings(mode: Mode, role: Role) -> Settings {
    let cluster_cidrs = vec!["192.168.0.0/16".parse().unwrap(), "fd00::/16".parse().unwrap()];
    Settings { mode, vxlan: Vxlan::default(), bgp: bgp::Bgp::default(), node_name: "a".into(), cluster_cidrs, role }
}

fn pods(attachment: Attachment) -> Role {
    Role::Node(Box::new(PodSettings {
        service_cidrs: vec!["10.96.0.0/12".parse().unwrap(), "fd01::/112".parse().unwrap()],
        lans: vec!["10.240.0.0/24".parse().unwrap(), "fd00::/64".parse().unwrap()],
        subnet_env: Some("/run/flannel/subnet.env".into()),
        ..examples::pods(attachment)
    }))
}

fn route(dst: &str, via: &str) -> HostRoute {
    HostRoute { dst: dst.parse().unwrap(), via: via.parse().ok(), oif: 2, on_link: false, metric: 0, ours: false }
}

fn host_routes() -> [HostRoute; 3] {
    [route("0.0.0.0/0", "10.240.0.1"), route("10.240.0.0/24", ""), route("fd00::/64", "")]
}

const HOST: Role = Role::Host { address: IpAddr::V4(std::net::Ipv4Addr::new(10, 240, 0, 2)) };
const STATE: HostState = HostState {
    uplink: Some(Uplink { index: 2, mtu: 1500 }),
    sets_mtu: true,
    dr_mac: Some(Mac([0, 0x15, 0x5d, 0, 0, 1])),
    bgp: None,
    hns_ipv6: true,
    hns_dsr: true,
};

fn decided(mode: Mode, role: Role, nodes: &BTreeMap<String, NodeRow>) -> String {
    let settings = settings(mode, role);
    desired(&Inputs { settings: &settings, nodes, routes: &host_routes(), state: &STATE }).to_string()
}

fn windows() -> Role {
    pods(Attachment::Windows { adapter: "Ethernet".into(), loopback_dsr: true })
}

fn linux() -> Role {
    pods(Attachment::Linux { bridge: "cni0".into() })
}

#[test]
fn table_names_every_mode() {
    for mode in [Mode::HostGateway, Mode::L3, Mode::Vxlan, Mode::Transparent, Mode::Bgp] {
        assert_eq!(mode.name().parse(), Ok(mode));
    }
    assert_eq!(MODES.len(), 5, "name the new mode above");
    assert_eq!("l4".parse::<Mode>().unwrap_err().to_string(), "\"l4\" is no pod network: use host-gateway, l3, vxlan, transparent, bgp");
}

#[test]
fn host_gateway_routes_both_families_on_every_host_but_the_router() {
    insta::assert_snapshot!(decided(Mode::HostGateway, windows(), &three()), @r"
    route 192.168.1.0/24 via 10.240.0.12 (b)
    route 192.168.2.0/24 via 10.240.0.13 (c)
    route fd00:11::/64 via fd00::12 (b)
    hns-network mullion L2Bridge 192.168.0.0/24 fd00:10::/64
    hns-placeholder mullion_uplink L2Bridge 172.31.255.252/30
    hns-endpoint mullion_ep 192.168.0.2 fd00:10::2 on the host
    subnet.env FLANNEL_NETWORK=192.168.0.0/16 FLANNEL_SUBNET=192.168.0.1/24 FLANNEL_IPV6_NETWORK=fd00::/16 FLANNEL_IPV6_SUBNET=fd00:10::1/64 FLANNEL_MTU=1500 FLANNEL_IPMASQ=true
    cni 10-mullion.conflist win-bridge mtu 1500
    annotation flannel.alpha.coreos.com/backend-data=null
    annotation flannel.alpha.coreos.com/backend-type=host-gw
    annotation flannel.alpha.coreos.com/backend-v6-data=null
    annotation flannel.alpha.coreos.com/kube-subnet-manager=true
    annotation flannel.alpha.coreos.com/public-ip=10.240.0.11
    annotation flannel.alpha.coreos.com/public-ipv6=fd00::11
    ! node c: it has the pod CIDR fd00:12::/64 and no IPv6 address, so these pods are not reached; give it an address of each family (--node-ip, InternalIP of the Node)
    ");
    insta::assert_snapshot!(decided(Mode::HostGateway, linux(), &three()), @r"
    route 192.168.1.0/24 via 10.240.0.12 (b)
    route 192.168.2.0/24 via 10.240.0.13 (c)
    route fd00:11::/64 via fd00::12 (b)
    masquerade 192.168.0.0/24 outside 192.168.0.0/16
    masquerade fd00:10::/64 outside fd00::/16
    subnet.env FLANNEL_NETWORK=192.168.0.0/16 FLANNEL_SUBNET=192.168.0.1/24 FLANNEL_IPV6_NETWORK=fd00::/16 FLANNEL_IPV6_SUBNET=fd00:10::1/64 FLANNEL_MTU=1500 FLANNEL_IPMASQ=true
    cni 10-mullion.conflist bridge portmap mtu 1500
    annotation flannel.alpha.coreos.com/backend-data=null
    annotation flannel.alpha.coreos.com/backend-type=host-gw
    annotation flannel.alpha.coreos.com/backend-v6-data=null
    annotation flannel.alpha.coreos.com/kube-subnet-manager=true
    annotation flannel.alpha.coreos.com/public-ip=10.240.0.11
    annotation flannel.alpha.coreos.com/public-ipv6=fd00::11
    ! node c: it has the pod CIDR fd00:12::/64 and no IPv6 address, so these pods are not reached; give it an address of each family (--node-ip, InternalIP of the Node)
    ");
    assert_eq!(decided(Mode::HostGateway, Role::Router, &three()), "");
    let host = decided(Mode::HostGateway, HOST, &three());
    assert!(host.lines().count() == 4 && host.lines().take(3).all(|line| line.starts_with("route")), "{host}");
}

#[test]
fn l3_routes_on_the_router_alone() {
    insta::assert_snapshot!(decided(Mode::L3, windows(), &three()), @r"
    hns-network mullion L2Bridge 192.168.0.0/24 fd00:10::/64
    hns-placeholder mullion_uplink L2Bridge 172.31.255.252/30
    hns-endpoint mullion_ep 192.168.0.2 fd00:10::2 on the host
    cni 10-mullion.conflist win-bridge mtu 1500
    ! node c: it has the pod CIDR fd00:12::/64 and no IPv6 address, so these pods are not reached; give it an address of each family (--node-ip, InternalIP of the Node)
    ");
    let settings = Settings { node_name: "gw".into(), ..settings(Mode::L3, Role::Router) };
    let nodes = three();
    let router = desired(&Inputs { settings: &settings, nodes: &nodes, routes: &[], state: &STATE });
    insta::assert_snapshot!(router.to_string(), @r"
    route 192.168.0.0/24 via 10.240.0.11 (a)
    route 192.168.1.0/24 via 10.240.0.12 (b)
    route 192.168.2.0/24 via 10.240.0.13 (c)
    route fd00:10::/64 via fd00::11 (a)
    route fd00:11::/64 via fd00::12 (b)
    ! node c: it has the pod CIDR fd00:12::/64 and no IPv6 address, so these pods are not reached; give it an address of each family (--node-ip, InternalIP of the Node)
    ");
    assert_eq!(decided(Mode::L3, HOST, &nodes).lines().filter(|line| !line.starts_with("! node c:")).count(), 0);
}

#[test]
fn contradictions_are_reported_and_the_rest_goes_on() {
    let nodes = nodes(&[
        ("a", &["192.168.0.0/24"], &["10.240.0.11"]),
        ("b", &["192.168.1.0/24"], &["10.240.0.12"]),
        ("c", &["192.168.1.128/25"], &["10.240.0.13"]),
        ("d", &["192.168.0.0/23"], &["10.240.0.14"]),
        ("e", &["172.16.0.0/24"], &["10.240.0.15"]),
        ("far", &["192.168.5.0/24"], &["10.9.0.5"]),
        ("v6", &["fd00:7::/64"], &["2001:db8::7"]),
    ]);
    insta::assert_snapshot!(decided(Mode::HostGateway, HOST, &nodes), @r"
    route 192.168.1.0/24 via 10.240.0.12 (b)
    ! node c: pod CIDR 192.168.1.128/25 overlaps 192.168.1.0/24 of node b; it gets no route until one of the two nodes is registered anew
    ! node d: pod CIDR 192.168.0.0/23 overlaps 192.168.0.0/24 of node a; it gets no route until one of the two nodes is registered anew
    ! node e: pod CIDR 172.16.0.0/24 is outside the cluster's 192.168.0.0/16, fd00::/16, so it gets no route; register the node anew with a pod CIDR of these (--cluster-cidr of kube-controller-manager)
    ! node far: its address 10.9.0.5 is behind router 10.240.0.1, so host-gateway cannot reach its pods 192.168.5.0/24; put the nodes on one network, or use the mode l3
    ! node v6: no route leads to its address 2001:db8::7, so its pods fd00:7::/64 are not reached; give this host an address on the nodes' network
    ");
}

#[test]
fn older_node_keeps_a_pod_cidr_that_two_have() {
    let mut nodes = nodes(&[
        ("a", &["192.168.1.0/24"], &["10.240.0.11"]),
        ("b", &["192.168.1.0/25"], &["10.240.0.12"]),
        ("c", &["192.168.2.0/24"], &["10.240.0.13"]),
        ("none", &[], &["10.240.0.14"]),
    ]);
    for (name, created) in [("a", 30), ("b", 10), ("c", 20)] {
        nodes.get_mut(name).unwrap().created = created;
    }
    let told = |own: &str| -> Vec<String> {
        let one_family = vec!["192.168.0.0/16".parse().unwrap()];
        let settings = Settings { node_name: own.into(), cluster_cidrs: one_family, ..settings(Mode::HostGateway, linux()) };
        let desired = desired(&Inputs { settings: &settings, nodes: &nodes, routes: &host_routes(), state: &STATE });
        desired.routes.keys().map(ToString::to_string).chain(desired.problems.into_iter().map(|problem| problem.text)).collect()
    };
    let newer = "node a: pod CIDR 192.168.1.0/24 overlaps 192.168.1.0/25 of node b; it gets no route until one of the two nodes is registered anew";
    assert_eq!(told("a"), ["192.168.2.0/24", newer], "the newer blames itself, and keeps its own pods");
    assert_eq!(told("b"), ["192.168.2.0/24", newer]);
    assert_eq!(told("c"), ["192.168.1.0/25", newer]);
    let missing = told("none").pop().unwrap();
    assert!(missing.contains("node none: it has no pod CIDR") && missing.contains("--allocate-node-cidrs"), "{missing}");
}

/// Node `a` as it is at first, and others in every state.
fn tunnelled() -> BTreeMap<String, NodeRow> {
    let mut nodes = nodes(&[
        ("a", &["192.168.0.0/24"], &["10.240.0.11"]),
        ("b", &["192.168.1.0/24"], &["10.240.0.12"]),
        ("c", &["192.168.2.0/24"], &["10.240.0.13"]),
        ("cloned", &["192.168.3.0/24"], &["10.240.0.14"]),
        ("hostgw", &["192.168.4.0/24"], &["10.240.0.15"]),
        ("low", &["192.168.5.0/24"], &["10.240.0.16"]),
        ("silent", &["192.168.6.0/24"], &["10.240.0.17"]),
        ("starts", &["192.168.7.0/24"], &["10.240.0.18"]),
        ("wrong", &["192.168.8.0/24"], &["10.240.0.19"]),
        ("v6", &["fd00:7::/64"], &["fd00::7"]),
    ]);
    let mac = |last| Some(Mac([0x02, 0, 0, 0, 0, last]));
    let vxlan = |vni, mac, public_ip: &str| Announcement::Vxlan { vni, mac, public_ip: public_ip.parse().ok() };
    for (name, announcement) in [
        ("b", vxlan(4096, mac(0x0b), "")),
        ("c", vxlan(4096, mac(0x0c), "192.0.2.13")),
        ("cloned", vxlan(4096, mac(0x0b), "")),
        ("hostgw", Announcement::HostGateway { public_ip: None, public_ipv6: None }),
        ("low", vxlan(1, mac(0x01), "")),
        ("starts", vxlan(4096, None, "")),
        ("wrong", Announcement::Bad("annotation x is no y".into())),
    ] {
        nodes.get_mut(name).unwrap().announcement = announcement;
    }
    nodes
}

#[test]
fn vxlan_reaches_nodes_that_announce_the_same_segment() {
    insta::assert_snapshot!("vxlan_linux", decided(Mode::Vxlan, linux(), &tunnelled()));
    insta::assert_snapshot!("vxlan_windows", decided(Mode::Vxlan, windows(), &tunnelled()));
    let host = decided(Mode::Vxlan, HOST, &tunnelled());
    assert!(host.contains("tunnel flannel.4096 vni 4096 port 4789 local 10.240.0.2 mtu 1450") && !host.contains("annotation flannel"), "{host}");
    assert_eq!(host.matches("through the tunnel").count(), 2, "{host}");
    assert_eq!(decided(Mode::Vxlan, Role::Router, &tunnelled()), "");
}

#[test]
fn host_gateway_takes_nodes_of_flannels_host_gw_for_peers() {
    let mut nodes = three();
    for (name, announcement) in [
        ("b", Announcement::HostGateway { public_ip: "10.240.0.99".parse().ok(), public_ipv6: None }),
        ("c", Announcement::Vxlan { vni: 4096, mac: None, public_ip: None }),
        ("waits-for-address", Announcement::Bad("annotation x is no y".into())),
    ] {
        nodes.get_mut(name).unwrap().announcement = announcement;
    }
    nodes.get_mut("waits-for-address").unwrap().addresses = vec!["10.240.0.16".parse().unwrap()];
    insta::assert_snapshot!(decided(Mode::HostGateway, HOST, &nodes), @r"
    route 192.168.1.0/24 via 10.240.0.99 (b)
    route fd00:11::/64 via fd00::12 (b)
    ! node c: it has the pod CIDR fd00:12::/64 and no IPv6 address, so these pods are not reached; give it an address of each family (--node-ip, InternalIP of the Node)
    ! node c: its flannel backend is vxlan, not host-gw, so its pods 192.168.2.0/24 are not reached; give all nodes one backend
    ! node waits-for-address: annotation x is no y, so its pods 192.168.9.0/24 are not reached; restart its pod network to write it anew
    ");
}

#[test]
fn transparent_has_a_network_of_its_own_and_routes_as_host_gateway() {
    insta::assert_snapshot!(decided(Mode::Transparent, windows(), &three()), @r"
    route 192.168.1.0/24 via 10.240.0.12 (b)
    route 192.168.2.0/24 via 10.240.0.13 (c)
    route fd00:11::/64 via fd00::12 (b)
    hns-network mullion Transparent 192.168.0.0/24
    hns-endpoint mullion_ep 192.168.0.1 on the host
    cni 10-mullion.conflist wincni
    ! node c: it has the pod CIDR fd00:12::/64 and no IPv6 address, so these pods are not reached; give it an address of each family (--node-ip, InternalIP of the Node)
    ! node a: its pods get no addresses of fd00:10::/64: the mode transparent carries IPv4 alone (on Windows, pods have IPv6 on L2Bridge networks alone); use host-gateway, l3 or bgp for IPv6
    ");
    insta::assert_snapshot!(decided(Mode::Transparent, linux(), &three()), @r"
    route 192.168.1.0/24 via 10.240.0.12 (b)
    route 192.168.2.0/24 via 10.240.0.13 (c)
    route fd00:11::/64 via fd00::12 (b)
    masquerade 192.168.0.0/24 outside 192.168.0.0/16
    cni 10-mullion.conflist bridge portmap mtu 1500
    ! node c: it has the pod CIDR fd00:12::/64 and no IPv6 address, so these pods are not reached; give it an address of each family (--node-ip, InternalIP of the Node)
    ! node a: its pods get no addresses of fd00:10::/64: the mode transparent carries IPv4 alone (on Windows, pods have IPv6 on L2Bridge networks alone); use host-gateway, l3 or bgp for IPv6
    ");
    assert_eq!(decided(Mode::Transparent, Role::Router, &three()), "");
}

#[test]
fn segment_and_packet_size_follow_the_settings() {
    let settings = Settings { vxlan: Vxlan { vni: 4100, mtu: Some(1400), ..Vxlan::default() }, ..settings(Mode::Vxlan, linux()) };
    let mut nodes = tunnelled();
    nodes.retain(|name, _| ["a", "b", "low"].contains(&name.as_str()));
    nodes.get_mut("low").unwrap().announcement = Announcement::Vxlan { vni: 4100, mac: Some(Mac([2, 0, 0, 0, 0, 1])), public_ip: None };
    let text = desired(&Inputs { settings: &settings, nodes: &nodes, routes: &host_routes(), state: &STATE }).to_string();
    assert!(text.contains("tunnel flannel.4100 vni 4100 port 4789 local 10.240.0.11 mtu 1400"), "{text}");
    assert!(text.contains("FLANNEL_MTU=1400") && text.contains("at 10.240.0.16 (low)") && text.contains("VNI 4096, not 4100"), "{text}");
}

#[test]
fn pods_have_the_families_that_mode_and_host_carry() {
    let own = |mode, role, state: HostState, cidrs: &[&str], addresses: &[&str]| {
        let nodes = nodes(&[("a", cidrs, addresses)]);
        let settings = settings(mode, role);
        let desired = desired(&Inputs { settings: &settings, nodes: &nodes, routes: &host_routes(), state: &state });
        let ranges = desired.cni.as_ref().map(|cni| cni["plugins"][0]["ipam"]["ranges"].as_array().unwrap().clone()).unwrap_or_default();
        let subnets = ranges.iter().map(|range| range[0]["subnet"].as_str().unwrap()).collect::<Vec<_>>().join(" ");
        (subnets, desired.problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("|"))
    };
    let (cidrs, addresses) = (["192.168.0.0/24", "fd00:10::/64"], ["10.240.0.11", "fd00::11"]);
    let both = |role| own(Mode::HostGateway, role, STATE, &cidrs, &addresses);
    for role in [windows(), linux()] {
        assert_eq!(both(role), ("192.168.0.0/24 fd00:10::/64".to_owned(), String::new()));
    }
    let turned = own(Mode::L3, linux(), STATE, &["fd00:10::/64", "192.168.0.0/24"], &addresses);
    assert_eq!(turned, ("fd00:10::/64 192.168.0.0/24".to_owned(), String::new()), "the primary family first");
    let old = own(Mode::HostGateway, windows(), HostState { hns_ipv6: false, ..STATE }, &cidrs, &addresses);
    let why = "node a: its pods get no addresses of fd00:10::/64: its Host Networking Service has no IPv6 for pods; Windows Server 2022 (build 20348) and later have it";
    assert_eq!(old, ("192.168.0.0/24".to_owned(), why.to_owned()));
    assert_eq!(own(Mode::HostGateway, linux(), HostState { hns_ipv6: false, ..STATE }, &cidrs, &addresses).1, "", "Linux needs no HNS");
    for (mode, role) in [(Mode::Vxlan, linux()), (Mode::Vxlan, windows()), (Mode::Transparent, windows())] {
        let (subnets, problems) = own(mode, role, STATE, &cidrs, &addresses);
        assert!(subnets == "192.168.0.0/24" && problems.contains(&format!("the mode {mode} carries IPv4 alone")), "{mode}: {problems}");
    }
    let (subnets, problems) = own(Mode::HostGateway, linux(), STATE, &cidrs, &addresses[..1]);
    assert!(subnets == "192.168.0.0/24" && problems.contains("no IPv6 address, so its pods get none of these addresses"), "{problems}");
    let (subnets, problems) = own(Mode::HostGateway, linux(), STATE, &cidrs[..1], &addresses);
    assert!(subnets == "192.168.0.0/24" && problems.contains("no pod CIDR out of the cluster's fd00::/16"), "{problems}");
    assert_eq!(own(Mode::HostGateway, linux(), STATE, &cidrs, &[]), (String::new(), String::new()), "it will have them");
}
