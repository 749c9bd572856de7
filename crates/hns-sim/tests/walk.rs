//! Packet walks, row by row: the source that each receiver sees, on each type of network, with real TCP, UDP and ICMP.
//!
//! The LAN is 10.240.0.0/24 with a router at .1; N1 is .11, N2 is .12, a host outside the cluster is .50. Pods of an L2Bridge are in
//! 192.168.N.0/24, of an overlay in 10.244.N.0/24. docs/fidelity.md says what each row rests on: all are to be checked on Windows.
#![cfg(target_os = "linux")]

#[path = "harness/lab.rs"]
mod harness;
#[path = "harness/networks.rs"]
mod networks;
#[path = "harness/raw.rs"]
mod raw;

use harness::{Lab, Node, ask_tcp, ask_udp, id, is_silent, net, serve_tcp, serve_udp};
use hcn::document::*;
use hcn::{EndpointPolicy, HnsVersion, NetworkPolicy};
use hns_sim::switches::Switches;
use linux_sys::netlink::Rtnl;
use linux_sys::ns::{NetNs, in_lab};
use networks::*;
use raw::{Frame, Wire, answers_ping};
use test_lab::{LIMIT, until};

const WS2025: HnsVersion = HnsVersion::new(15, 5);
/// Rows are walked on the defaults, those about load balancers also without direct server return.
fn defaults() -> Switches {
    Switches::of(WS2025)
}

/// The defaults, and the same without direct server return: each with whether a DSR load balancer keeps its clients' addresses.
fn both() -> [(Switches, bool); 2] {
    [(defaults(), true), (Switches { direct_server_return: false, ..defaults() }, false)]
}

fn mac_of(ns: &NetNs, link: &str) -> [u8; 6] {
    Rtnl::open_in(ns).unwrap().link(link).unwrap().unwrap().mac
}

fn bytes(mac: &str) -> [u8; 6] {
    mac.parse::<hns_sim::Mac>().unwrap().0
}

fn balance(node: &Node, vip: Option<&str>, port: u16, backend: u8, flags: LoadBalancerFlags, source: &str) {
    let mut balancer = HostComputeLoadBalancer::new(vip.map(ip), Protocol::TCP, port, 80, vec![id(backend)]);
    balancer.flags = flags;
    balancer.source_vip = source.into();
    node.client.create(id(0x20), &balancer).unwrap();
}

#[test]
fn l2bridge_pods_reach_pods_of_another_node() {
    in_lab("l2bridge_pods_reach_pods_of_another_node", || {
        let lab = Lab::new();
        let (one, two) = (bridged(&lab, 1, defaults()), bridged(&lab, 2, defaults()));
        let (p1, p2) = (pod(&one, "192.168.1", 5, vec![]), pod(&two, "192.168.2", 6, vec![]));
        serve_tcp(&p2.ns, 80, "p2");
        let wire = Wire::tap(lab.router());
        assert_eq!(ask_tcp(&p1.ns, "192.168.2.6:80").unwrap(), "p2 saw 192.168.1.5");
        until("an answer to a ping", || answers_ping(&p1.ns, "192.168.2.6"));
        let frames = wire.frames();
        let there: Vec<&Frame> = frames.iter().filter(|frame| frame.destination == ip("192.168.2.6")).collect();
        assert!(!there.is_empty(), "nothing was seen: {frames:?}");
        for frame in there {
            assert_eq!((frame.from, frame.to), (mac_of(&one.ns, "eth0"), mac_of(&two.ns, "eth0")), "N1's MAC towards N2, no encapsulation");
        }
    });
}

#[test]
fn l2bridge_outbound_traffic_is_translated() {
    in_lab("l2bridge_outbound_traffic_is_translated", || {
        let lab = Lab::new();
        let node = bridged(&lab, 1, defaults());
        let outside = outside(&lab);
        let (translated, plain) = (pod(&node, "192.168.1", 5, vec![outbound()]), pod(&node, "192.168.1", 6, vec![]));
        assert_eq!(ask_tcp(&translated.ns, "10.240.0.50:80").unwrap(), format!("outside saw {N1}"));
        assert_eq!(ask_udp(&translated.ns, "10.240.0.50:53").unwrap(), format!("outside saw {N1}"));
        assert!(!answers_ping(&translated.ns, OUTSIDE), "ICMP is not translated");
        let wire = Wire::tap(&outside.ns);
        assert!(is_silent(&plain.ns, "10.240.0.50:80"), "no reply finds the way");
        assert!(wire.frames().iter().any(|frame| frame.source == ip("192.168.1.6")), "it left with the pod's address");
    });
}

#[test]
fn l2bridge_pods_reach_services_and_their_node() {
    in_lab("l2bridge_pods_reach_services_and_their_node", || {
        let lab = Lab::new();
        let (one, two) = (bridged(&lab, 1, defaults()), bridged(&lab, 2, defaults()));
        let backend = pod(&two, "192.168.2", 6, vec![]);
        serve_tcp(&backend.ns, 80, "p2");
        serve_tcp(&one.ns, 81, "n1");
        remote(&one, 9, "192.168.2.6", "", N2);
        balance(&one, Some(VIP), 80, 9, LoadBalancerFlags(0), "");
        let without = pod(&one, "192.168.1", 5, vec![]);
        let with = pod(&one, "192.168.1", 6, vec![route("10.96.0.0/12"), route("10.240.0.11/32")]);
        assert_eq!(ask_tcp(&with.ns, "10.96.0.1:80").unwrap(), format!("p2 saw {N1}"), "by the host's load balancer, as the host");
        assert_eq!(ask_tcp(&with.ns, "10.240.0.11:81").unwrap(), "n1 saw 192.168.1.6");
        until("an answer to a ping", || answers_ping(&with.ns, N1));
        assert!(is_silent(&without.ns, "10.96.0.1:80"), "without a host path no load balancer is met");
        assert!(is_silent(&without.ns, "10.240.0.11:81") && !answers_ping(&without.ns, N1));
        // A gateway endpoint of the host leads there too.
        let gateway = HostComputeEndpoint::local("cbr0_ep", net("192.168.1.2/24"), None);
        one.client.create_endpoint(&id(1), id(7), &gateway).unwrap();
        one.client.attach_endpoint_to_host(&id(7)).unwrap();
        let by_host = one.pod_of(8, HostComputeEndpoint::local("pod8", net("192.168.1.8/24"), Some(ip("192.168.1.2"))));
        assert_eq!(ask_tcp(&by_host.ns, "10.240.0.11:81").unwrap(), "n1 saw 192.168.1.8");
        // A routing rule does what the policy does.
        let rule = HostComputeRoute {
            host_compute_endpoints: vec![id(5)],
            routes: vec![SdnRoute { destination_prefix: "10.240.0.11/32".into(), need_encap: true, ..SdnRoute::default() }],
            ..HostComputeRoute::default()
        };
        one.client.create(id(0x30), &rule).unwrap();
        assert_eq!(ask_tcp(&without.ns, "10.240.0.11:81").unwrap(), "n1 saw 192.168.1.5");
        one.client.delete::<HostComputeRoute>(&id(0x30)).unwrap();
        assert!(is_silent(&without.ns, "10.240.0.11:81"));
    });
}

#[test]
fn l2tunnel_pods_of_one_node_pass_the_fabric() {
    in_lab("l2tunnel_pods_of_one_node_pass_the_fabric", || {
        let lab = Lab::new();
        make_fabric(&lab);
        let node = lab.bare(N1, &[], defaults());
        let subnet = Subnet::new(net("192.168.1.0/24"), ip("192.168.1.1"));
        node.client.create(id(1), &HostComputeNetwork::new("azure", NetworkType::L2Tunnel, subnet)).unwrap();
        let (p1, p2) = (pod(&node, "192.168.1", 5, vec![]), pod(&node, "192.168.1", 6, vec![]));
        serve_tcp(&p2.ns, 80, "p2");
        let wire = Wire::tap(lab.router());
        assert_eq!(ask_tcp(&p1.ns, "192.168.1.6:80").unwrap(), "p2 saw 192.168.1.5");
        let (node_mac, router_mac) = (mac_of(&node.ns, "eth0"), mac_of(lab.router(), "lan0"));
        let seen = wire.frames();
        let crossed = |from, to| seen.iter().any(|frame| frame.destination == ip("192.168.1.6") && (frame.from, frame.to) == (from, to));
        assert!(crossed(node_mac, router_mac) && crossed(router_mac, node_mac), "out by the uplink, and back");
        node.client.delete::<HostComputeNetwork>(&id(1)).unwrap();
        assert!(Rtnl::open_in(&node.ns).unwrap().rules().unwrap().len() <= 3, "the way to the fabric is gone");
    });
}

#[test]
fn overlay_pods_reach_pods_of_another_node() {
    in_lab("overlay_pods_reach_pods_of_another_node", || {
        let lab = Lab::new();
        let (one, two) = (overlaid(&lab, 1, false, defaults()), overlaid(&lab, 2, false, defaults()));
        let (p1, p2) = (pod(&one, "10.244.1", 5, vec![outbound()]), pod(&two, "10.244.2", 6, vec![outbound()]));
        serve_tcp(&p2.ns, 80, "p2");
        serve_udp(&p2.ns, 53, "p2");
        let wire = Wire::tap(lab.router());
        assert_eq!(ask_tcp(&p1.ns, "10.244.2.6:80").unwrap(), "p2 saw 10.244.1.5");
        assert_eq!(ask_udp(&p1.ns, "10.244.2.6:53").unwrap(), "p2 saw 10.244.1.5");
        until("an answer to a ping", || answers_ping(&p1.ns, "10.244.2.6"));
        let check = |frames: Vec<Frame>, mac: [u8; 6]| {
            let there = |frame: &&Frame| (frame.source, frame.destination) == ("10.240.0.11".parse().unwrap(), "10.240.0.12".parse().unwrap());
            let inner: Vec<(u32, Frame)> = frames.iter().filter(there).filter_map(Frame::inner).collect();
            assert!(!inner.is_empty(), "nothing was seen: {frames:?}");
            for (segment, frame) in inner {
                assert_eq!((segment, frame.destination), (4096, "10.244.2.6".parse().unwrap()));
                assert_eq!((frame.from, frame.to), (bytes("00-15-5D-00-01-01"), mac), "router to router");
            }
        };
        check(wire.frames(), bytes("00-15-5D-00-02-01"));
        let gateway = Rtnl::open_in(&p1.ns).unwrap();
        let known = gateway.neighbours(gateway.link("eth0").unwrap().unwrap().index).unwrap();
        let of_gateway = known.iter().find(|neighbour| neighbour.ip == ip("10.244.1.1")).and_then(|neighbour| neighbour.mac);
        assert_eq!(of_gateway, Some(bytes("00-15-5D-00-01-01")), "the gateway is the distributed router");
        let link = gateway.link("eth0").unwrap().unwrap();
        assert_eq!(link.mtu, 1450);
        // A remote endpoint behind the host of its subnet's route: the router's MAC is kept, whatever MAC its creator gave it.
        remote(&one, 9, "10.244.2.6", "02-11-0A-F4-02-06", N2);
        wire.frames();
        assert_eq!(ask_tcp(&p1.ns, "10.244.2.6:80").unwrap(), "p2 saw 10.244.1.5");
        check(wire.frames(), bytes("00-15-5D-00-02-01"));
        // Elsewhere its own MAC leads to it, which every host takes for its endpoint's.
        let change = |request_type, policies: &[NetworkPolicy]| {
            let request = ModifyRequest::network_policies(request_type, policies);
            one.client.modify::<HostComputeNetwork>(&id(1), &request)
        };
        let mut network = one.client.get::<HostComputeNetwork>(&id(1)).unwrap().unwrap();
        network.policies.retain(|policy| policy.as_remote_subnet_route().is_some());
        change(RequestType::Remove, &network.policies).unwrap();
        wire.frames();
        assert_eq!(ask_tcp(&p1.ns, "10.244.2.6:80").unwrap(), "p2 saw 10.244.1.5");
        check(wire.frames(), bytes("02-11-0A-F4-02-06"));
        change(RequestType::Add, &network.policies).unwrap();
        assert_eq!(ask_tcp(&p1.ns, "10.244.2.6:80").unwrap(), "p2 saw 10.244.1.5");
        check(wire.frames(), bytes("00-15-5D-00-02-01"));
        one.client.delete::<HostComputeEndpoint>(&id(9)).unwrap();
        assert_eq!(ask_tcp(&p1.ns, "10.244.2.6:80").unwrap(), "p2 saw 10.244.1.5");
        // The peer drops what is not for its router.
        let mut wrong = network.policies[0].clone();
        let right = wrong.as_remote_subnet_route().unwrap();
        wrong = NetworkPolicy::remote_subnet_route(&RemoteSubnetRoute { distributed_router_mac_address: "00-15-5D-00-09-09".into(), ..right });
        change(RequestType::Remove, &network.policies).unwrap();
        assert!(is_silent(&p1.ns, "10.244.2.6:80"), "the route is gone");
        change(RequestType::Add, &[wrong.clone()]).unwrap();
        assert!(is_silent(&p1.ns, "10.244.2.6:80"), "another router's MAC");
        change(RequestType::Remove, &[wrong]).unwrap();
        change(RequestType::Add, &network.policies).unwrap();
        assert_eq!(ask_tcp(&p1.ns, "10.244.2.6:80").unwrap(), "p2 saw 10.244.1.5");
    });
}

#[test]
fn overlay_outbound_traffic_is_translated() {
    in_lab("overlay_outbound_traffic_is_translated", || {
        let lab = Lab::new();
        let node = overlaid(&lab, 1, false, defaults());
        let outside = outside(&lab);
        let (p1, plain) = (pod(&node, "10.244.1", 5, vec![outbound()]), pod(&node, "10.244.1", 6, vec![]));
        let wire = Wire::tap(lab.router());
        assert!(is_silent(&p1.ns, "10.244.77.7:80"), "an unknown prefix of pods");
        assert!(is_silent(&plain.ns, "10.240.0.50:80"), "what is not translated has no way out");
        let leaked: Vec<Frame> =
            wire.frames().into_iter().filter(|frame| frame.destination == ip("10.244.77.7") || frame.inner().is_some()).collect();
        assert!(leaked.is_empty(), "no flood: {leaked:?}");
        assert_eq!(ask_tcp(&p1.ns, "10.240.0.50:80").unwrap(), format!("outside saw {N1}"), "natively, as the node");
        drop(outside);
    });
}

#[test]
fn overlay_host_reaches_its_own_pods() {
    in_lab("overlay_host_reaches_its_own_pods", || {
        let lab = Lab::new();
        for (number, host_route) in [(1, false), (2, true)] {
            let node = overlaid(&lab, number, host_route, defaults());
            let prefix = format!("10.244.{number}");
            let p1 = pod(&node, &prefix, 5, vec![]);
            serve_tcp(&p1.ns, 80, "p1");
            serve_tcp(&node.ns, 81, "node");
            assert_eq!(harness::answer(&node.ns, &format!("{prefix}.5:80"), host_route).is_some(), host_route, "the host to its pod");
            assert_eq!(is_silent(&p1.ns, &format!("10.240.0.1{number}:81")), !host_route, "a pod to its host");
        }
    });
}

#[test]
fn overlay_pods_reach_services() {
    in_lab("overlay_pods_reach_services", || {
        for (switches, direct) in both() {
            walk_overlay_services(&switches, direct);
        }
    });
}

fn walk_overlay_services(switches: &Switches, direct: bool) {
    let lab = Lab::new();
    let (one, two) = (overlaid(&lab, 1, false, switches.clone()), overlaid(&lab, 2, false, switches.clone()));
    let (p1, p2) = (pod(&one, "10.244.1", 5, vec![outbound()]), pod(&two, "10.244.2", 6, vec![outbound()]));
    serve_tcp(&p2.ns, 80, "p2");
    remote(&one, 9, "10.244.2.6", "02-11-0A-F4-02-06", N2);
    // As kube-proxy does it: a source, then the address of the service at the own host.
    one.client.create_endpoint(&id(1), id(8), &HostComputeEndpoint::local("source", net("10.244.1.2/24"), None)).unwrap();
    remote(&one, 10, VIP, "02-11-0A-60-00-01", N1);
    balance(&one, Some(VIP), 80, 9, LoadBalancerFlags(0), "10.244.1.2");
    let wire = Wire::tap(lab.router());
    assert_eq!(ask_tcp(&p1.ns, "10.96.0.1:80").unwrap(), "p2 saw 10.244.1.2", "without DSR, the source");
    let tunnelled: Vec<Frame> = wire.frames().into_iter().filter(|frame| frame.inner().is_some()).collect();
    assert!(!tunnelled.is_empty() && tunnelled.iter().all(|frame| [ip(N1), ip(N2)].contains(&frame.source.into())), "from host to host");
    one.client.delete::<HostComputeLoadBalancer>(&id(0x20)).unwrap();
    balance(&one, Some(VIP), 80, 9, LoadBalancerFlags::DSR, "10.244.1.2");
    let seen = if direct { "10.244.1.5" } else { "10.244.1.2" };
    assert_eq!(ask_tcp(&p1.ns, "10.96.0.1:80").unwrap(), format!("p2 saw {seen}"), "with DSR, the client");
    if !direct {
        return;
    }
    // Where the destination is kept, the back end's own host finds it by its own load balancer.
    harness::own(&p2.ns, ip(VIP));
    serve_tcp(&p2.ns, 81, "p2");
    for (node, backend) in [(&one, 9), (&two, 6)] {
        let mut kept = HostComputeLoadBalancer::new(Some(ip(VIP)), Protocol::TCP, 81, 82, vec![id(backend)]);
        (kept.flags, kept.port_mappings[0].flags) = (LoadBalancerFlags::DSR, PortMappingFlags::PRESERVE_DIP);
        node.client.create(id(0x21), &kept).unwrap();
    }
    assert_eq!(ask_tcp(&p1.ns, "10.96.0.1:81").unwrap(), "p2 saw 10.244.1.5", "the address and port that the client dialled");
}

#[test]
fn pod_reaches_its_own_service_by_loopback_dsr() {
    in_lab("pod_reaches_its_own_service_by_loopback_dsr", || {
        for (switches, direct) in both() {
            let lab = Lab::new();
            let node = bridged(&lab, 1, switches);
            let by_host = || route("10.96.0.0/12");
            let plain = pod(&node, "192.168.1", 5, vec![by_host()]);
            let looped = pod(&node, "192.168.1", 6, vec![by_host(), EndpointPolicy::outbound_nat_to([net("192.168.1.6/32")])]);
            serve_tcp(&plain.ns, 80, "pod");
            serve_tcp(&looped.ns, 80, "pod");
            let alone = if direct { None } else { Some(N1) };
            for (pod, number, flags, expected) in [
                (&plain, 5, LoadBalancerFlags::DSR, alone),
                (&looped, 6, LoadBalancerFlags::DSR, Some(N1)),
                (&plain, 5, LoadBalancerFlags(0), Some(N1)),
            ] {
                balance(&node, Some(VIP), 80, number, flags, "");
                let answer = harness::answer(&pod.ns, "10.96.0.1:80", expected.is_some());
                assert_eq!(answer, expected.map(|seen| format!("pod saw {seen}")), "pod {number}, {flags:?}, DSR {direct}");
                node.client.delete::<HostComputeLoadBalancer>(&id(0x20)).unwrap();
            }
        }
    });
}

#[test]
fn node_ports_show_the_documented_source() {
    in_lab("node_ports_show_the_documented_source", || {
        for (switches, direct) in both() {
            let lab = Lab::new();
            let (one, two) = (bridged(&lab, 1, switches.clone()), bridged(&lab, 2, switches));
            let (p1, p2) = (pod(&one, "192.168.1", 5, vec![]), pod(&two, "192.168.2", 6, vec![]));
            serve_tcp(&p1.ns, 80, "p1");
            serve_tcp(&p2.ns, 80, "p2");
            remote(&one, 9, "192.168.2.6", "", N2);
            let outside = outside(&lab);
            balance(&one, None, 30080, 9, LoadBalancerFlags(0), "");
            assert_eq!(ask_tcp(&outside.ns, "10.240.0.11:30080").unwrap(), format!("p2 saw {N1}"), "policy Cluster: by N1, and back by it");
            assert!(harness::is_unanswered(&one.ns, "10.240.0.11:30080"), "the host itself does not, without LocalRoutedVip");
            one.client.delete::<HostComputeLoadBalancer>(&id(0x20)).unwrap();
            let mut routed = HostComputeLoadBalancer::new(None, Protocol::TCP, 30080, 80, vec![id(5)]);
            routed.flags = LoadBalancerFlags::DSR;
            routed.port_mappings[0].flags = PortMappingFlags::LOCAL_ROUTED_VIP;
            one.client.create(id(0x20), &routed).unwrap();
            let seen = if direct { OUTSIDE } else { N1 };
            assert_eq!(ask_tcp(&outside.ns, "10.240.0.11:30080").unwrap(), format!("p1 saw {seen}"), "policy Local: the client is kept");
            assert!(ask_tcp(&one.ns, "10.240.0.11:30080").is_ok(), "the host itself, with LocalRoutedVip");
        }
    });
}

#[test]
fn nat_network_hides_pod_addresses() {
    in_lab("nat_network_hides_pod_addresses", || {
        let lab = Lab::new();
        let node = lab.bare(N1, &[], defaults());
        let subnet = Subnet::new(net("172.20.1.0/24"), ip("172.20.1.1"));
        node.client.create(id(1), &HostComputeNetwork::new("nat", NetworkType::Nat, subnet)).unwrap();
        let mapping = PortMapping { protocol: Protocol::TCP, internal_port: 80, external_port: 8088, ..PortMapping::default() };
        let (mapped, plain) = (pod(&node, "172.20.1", 5, vec![EndpointPolicy::port_mapping(&mapping)]), pod(&node, "172.20.1", 6, vec![]));
        serve_tcp(&mapped.ns, 80, "container");
        let outside = outside(&lab);
        assert_eq!(ask_tcp(&plain.ns, "10.240.0.50:80").unwrap(), format!("outside saw {N1}"));
        until("an answer to a ping", || answers_ping(&plain.ns, OUTSIDE));
        assert_eq!(ask_tcp(&outside.ns, "10.240.0.11:8088").unwrap(), format!("container saw {OUTSIDE}"), "a port mapping keeps the client");
        assert!(harness::is_unanswered(&outside.ns, "10.240.0.11:80"), "nothing else is mapped");
        assert!(is_silent(&outside.ns, "172.20.1.5:80"), "from outside, only mapped ports");
    });
}

#[test]
fn ics_network_forwards_dns() {
    in_lab("ics_network_forwards_dns", || {
        let lab = Lab::new();
        let node = lab.bare(N1, &[], defaults());
        let _outside = outside(&lab);
        let mut network = HostComputeNetwork::new("Default Switch", NetworkType::Ics, Subnet::new(net("172.20.1.0/24"), ip("172.20.1.1")));
        network.flags = NetworkFlags::ENABLE_DNS_PROXY;
        network.dns.server_list = vec![OUTSIDE.into()];
        node.client.create(id(1), &network).unwrap();
        let container = pod(&node, "172.20.1", 5, vec![]);
        assert_eq!(ask_udp(&container.ns, "172.20.1.1:53").unwrap(), format!("outside saw {N1}"));
    });
}

#[test]
fn transparent_endpoints_are_hosts_of_the_lan() {
    in_lab("transparent_endpoints_are_hosts_of_the_lan", || {
        let lab = Lab::new();
        let node = lab.bare(N1, &[("192.168.77.0/24", "10.240.0.50")], defaults());
        let outside = outside(&lab);
        let subnet = Subnet::new(net("10.240.0.0/24"), ip("10.240.0.1"));
        node.client.create(id(1), &HostComputeNetwork::new("lan", NetworkType::Transparent, subnet)).unwrap();
        let p1 = pod(&node, "10.240.0", 77, vec![]);
        serve_tcp(&p1.ns, 80, "p1");
        let wire = Wire::tap(&outside.ns);
        assert_eq!(ask_tcp(&outside.ns, "10.240.0.77:80").unwrap(), format!("p1 saw {OUTSIDE}"));
        assert!(
            wire.frames().iter().any(|frame| frame.source == ip("10.240.0.77") && frame.from == mac_of(&p1.ns, "eth0")),
            "its own MAC is on the wire"
        );
        assert_eq!(ask_tcp(&p1.ns, "10.240.0.50:80").unwrap(), "outside saw 10.240.0.77");
        assert_eq!(ask_tcp(&node.ns, "10.240.0.77:80").unwrap(), format!("p1 saw {N1}"), "the host kept its address");
        assert_eq!(ask_tcp(&node.ns, "10.240.0.50:80").unwrap(), format!("outside saw {N1}"));
        let heard = p1.ns.run(|| std::net::UdpSocket::bind("0.0.0.0:68")).unwrap().unwrap();
        heard.set_read_timeout(Some(LIMIT)).unwrap();
        let shout = outside.ns.run(|| std::net::UdpSocket::bind("10.240.0.50:67")).unwrap().unwrap();
        shout.set_broadcast(true).unwrap();
        shout.send_to(b"offer", "10.240.0.255:68").unwrap();
        assert_eq!(heard.recv(&mut [0; 16]).unwrap(), 5, "broadcasts arrive");
        node.client.delete::<HostComputeNetwork>(&id(1)).unwrap();
        assert_eq!(ask_tcp(&node.ns, "10.240.0.50:80").unwrap(), format!("outside saw {N1}"), "the adapter has its address back");
        let rtnl = Rtnl::open_in(&node.ns).unwrap();
        let eth0 = rtnl.link("eth0").unwrap().unwrap();
        assert!(
            eth0.master.is_none() && rtnl.routes().unwrap().iter().any(|route| route.dst == net("192.168.77.0/24") && route.oif == Some(eth0.index))
        );
    });
}
