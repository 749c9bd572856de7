//! Packets steered by a next hop: load balancers with PreserveDip, next hops of pods.
#![cfg(target_os = "linux")]

#[path = "harness/lab.rs"]
mod harness;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use harness::{Lab, Node, Pod, ask_soon, ask_tcp, ask_udp, connect, hear, id, is_silent, net, own, serve_tcp, serve_tcp_at, serve_udp_at};
use hcn::document::*;
use hcn::{EndpointPolicy, HnsVersion};
use hns_sim::switches::Switches;
use linux_sys::netlink::{Route, Rtnl};
use linux_sys::ns::in_lab;

const WS2025: HnsVersion = HnsVersion::new(15, 5);
const N1: &str = "10.240.0.11";
const N2: &str = "10.240.0.12";
const OUTSIDE: &str = "10.240.0.50";
const VIP: &str = "203.0.113.7";
const VIP6: &str = "2001:db8::7";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Node `number` with pods of both families, and the fabric's routes to the other's.
fn bridged(lab: &Lab, number: u8) -> Node {
    let other = 3 - number;
    let route = (format!("192.168.{other}.0/24"), format!("10.240.0.1{other}"));
    let switches = Switches::of(WS2025);
    let node = lab.bare(&format!("10.240.0.1{number}"), &[(&route.0, &route.1)], switches);
    let subnet = |prefix: &str, gateway: &str| Subnet::new(net(prefix), ip(gateway));
    let mut network =
        HostComputeNetwork::new("mullion", NetworkType::L2Bridge, subnet(&format!("192.168.{number}.0/24"), &format!("192.168.{number}.1")));
    network.ipams[0].subnets.push(subnet(&format!("fd00:{number}::/64"), &format!("fd00:{number}::1")));
    node.client.create(id(1), &network).unwrap();
    node
}

fn pod(node: &Node, subnet: u8, number: u8, policies: Vec<EndpointPolicy>) -> Pod {
    let gateway = ip(&format!("192.168.{subnet}.1"));
    let mut endpoint = HostComputeEndpoint::local(format!("pod{number}"), net(&format!("192.168.{subnet}.{number}/24")), Some(gateway));
    let ip_address = format!("fd00:{subnet}::{number}");
    endpoint.ip_configurations.push(IpConfiguration { ip_address, prefix_length: 64, ..IpConfiguration::default() });
    endpoint.routes.push(hcn::document::Route {
        next_hop: format!("fd00:{subnet}::1"),
        destination_prefix: "::/0".into(),
        ..hcn::document::Route::default()
    });
    endpoint.policies = policies;
    node.pod_of(number, endpoint)
}

/// A backend: it has the load balancer's address, and serves there alone.
fn backend(node: &Node, subnet: u8, number: u8, name: &'static str) -> Pod {
    let pod = pod(node, subnet, number, vec![]);
    for vip in [VIP, VIP6].map(ip) {
        own(&pod.ns, vip);
        serve_tcp_at(&pod.ns, &SocketAddr::new(vip, 8080).to_string(), name);
        serve_udp_at(&pod.ns, &SocketAddr::new(vip, 8080).to_string(), name);
    }
    pod
}

const KEPT: PortMappingFlags = PortMappingFlags(8 | 16);

fn keeping(protocol: Protocol, flags: LoadBalancerFlags, backends: &[u8]) -> HostComputeLoadBalancer {
    let vip = if flags.contains(LoadBalancerFlags::IPV6) { VIP6 } else { VIP };
    let backends = backends.iter().map(|number| id(*number)).collect();
    let mut balancer = HostComputeLoadBalancer::new(Some(ip(vip)), protocol, 8080, 80, backends);
    (balancer.flags, balancer.port_mappings[0].flags) = (flags, KEPT);
    balancer
}

fn services() -> Vec<EndpointPolicy> {
    ["203.0.113.0/24", "2001:db8::/64"].map(|prefix| EndpointPolicy::sdn_route(net(prefix))).into()
}

#[test]
fn preserve_dip_backend_gets_the_original_destination() {
    in_lab("preserve_dip_backend_gets_the_original_destination", || {
        let lab = Lab::new();
        let node = bridged(&lab, 1);
        // The client's translation does not touch what goes to a service.
        let policies = services().into_iter().chain([EndpointPolicy::outbound_nat([])]).collect();
        let (_one, client) = (backend(&node, 1, 5, "one"), pod(&node, 1, 7, policies));
        let outside = lab.host(OUTSIDE, &[("203.0.113.0/24", N1)]);
        let direct = LoadBalancerFlags::DSR;
        node.client.create(id(0x20), &keeping(Protocol::TCP, direct, &[5])).unwrap();
        node.client.create(id(0x21), &keeping(Protocol::UDP, direct, &[5])).unwrap();
        assert_eq!(ask_tcp(&client.ns, "203.0.113.7:8080").unwrap(), "one saw 192.168.1.7");
        assert_eq!(ask_udp(&client.ns, "203.0.113.7:8080").unwrap(), "one saw 192.168.1.7");
        assert_eq!(ask_tcp(&outside.ns, "203.0.113.7:8080").unwrap(), format!("one saw {OUTSIDE}"));
        assert_eq!(ask_udp(&outside.ns, "203.0.113.7:8080").unwrap(), format!("one saw {OUTSIDE}"));
        assert_eq!(ask_tcp(&node.ns, "203.0.113.7:8080").unwrap(), format!("one saw {N1}"), "the host's own");
        assert_eq!(ask_udp(&node.ns, "203.0.113.7:8080").unwrap(), format!("one saw {N1}"));

        // Its rules hold, though the packets do not name it.
        let rule = Acl { action: Action::Block, direction: Direction::In, remote_addresses: OUTSIDE.into(), priority: 100, ..Acl::default() };
        let rules = |request| ModifyRequest::endpoint_policies(request, &[EndpointPolicy::acl(&rule)]);
        node.client.modify::<HostComputeEndpoint>(&id(5), &rules(RequestType::Add)).unwrap();
        assert!(is_silent(&outside.ns, "203.0.113.7:8080"), "blocked");
        assert!(ask_tcp(&client.ns, "203.0.113.7:8080").is_ok(), "another source");
        node.client.modify::<HostComputeEndpoint>(&id(5), &rules(RequestType::Remove)).unwrap();

        // Without direct return the source is the host's; the multiplexer's clients are seen as they are.
        node.client.modify_load_balancer(&id(0x20), &keeping(Protocol::TCP, LoadBalancerFlags(0), &[5])).unwrap();
        assert_eq!(ask_tcp(&client.ns, "203.0.113.7:8080").unwrap(), format!("one saw {N1}"));
        assert_eq!(ask_tcp(&outside.ns, "203.0.113.7:8080").unwrap(), format!("one saw {N1}"));
        node.client.create(id(0x22), &keeping(Protocol::TCP, LoadBalancerFlags(3), &[5])).unwrap();
        assert_eq!(ask_soon(&client.ns, "[2001:db8::7]:8080"), "one saw fd00:1::7", "in IPv6");
        for number in [0x20, 0x21, 0x22] {
            node.client.delete::<HostComputeLoadBalancer>(&id(number)).unwrap();
        }
        let rtnl = Rtnl::open_in(&node.ns).unwrap();
        assert_eq!((rtnl.rules_of(false).unwrap().len(), rtnl.rules_of(true).unwrap().len()), (3, 2), "nothing stays");
        assert!(rtnl.routes().unwrap().iter().all(|route| [254, 255].contains(&route.table)));
    });
}

#[test]
fn preserve_dip_connections_keep_their_backend() {
    in_lab("preserve_dip_connections_keep_their_backend", || {
        let lab = Lab::new();
        let mut node = bridged(&lab, 1);
        let (_one, _two, client) = (backend(&node, 1, 5, "one"), backend(&node, 1, 6, "two"), pod(&node, 1, 7, services()));
        node.client.create(id(0x20), &keeping(Protocol::TCP, LoadBalancerFlags::DSR, &[5, 6])).unwrap();
        let open: Vec<_> = (0..40).map(|_| connect(&client.ns, "203.0.113.7:8080").unwrap()).collect();
        node.client.modify_load_balancer(&id(0x20), &keeping(Protocol::TCP, LoadBalancerFlags::DSR, &[6])).unwrap();
        assert_eq!(ask_tcp(&client.ns, "203.0.113.7:8080").unwrap(), "two saw 192.168.1.7");
        let mut answers: BTreeSet<_> = open.into_iter().map(|stream| hear(stream).unwrap()).collect();
        assert_eq!(answers.pop_first().as_deref(), Some("one saw 192.168.1.7"), "established connections outlive the change");
        assert_eq!(answers.pop_first().as_deref(), Some("two saw 192.168.1.7"));
        let open = connect(&client.ns, "203.0.113.7:8080").unwrap();
        node.stop();
        node.start();
        assert_eq!(hear(open).unwrap(), "two saw 192.168.1.7", "and a restart of the service");
        assert_eq!(ask_tcp(&client.ns, "203.0.113.7:8080").unwrap(), "two saw 192.168.1.7");
    });
}

#[test]
fn preserve_dip_reaches_a_backend_on_another_host() {
    in_lab("preserve_dip_reaches_a_backend_on_another_host", || {
        let lab = Lab::new();
        let (one, two) = (bridged(&lab, 1), bridged(&lab, 2));
        let (_far, client) = (backend(&two, 2, 6, "far"), pod(&one, 1, 7, services()));
        one.client.create_endpoint(&id(1), id(9), &HostComputeEndpoint::remote(ip("192.168.2.6"))).unwrap();
        for (node, backend) in [(&one, 9), (&two, 6)] {
            node.client.create(id(0x20), &keeping(Protocol::TCP, LoadBalancerFlags::DSR, &[backend])).unwrap();
            node.client.create(id(0x21), &keeping(Protocol::UDP, LoadBalancerFlags(0), &[backend])).unwrap();
        }
        assert_eq!(ask_tcp(&client.ns, "203.0.113.7:8080").unwrap(), "far saw 192.168.1.7");
        assert_eq!(ask_udp(&client.ns, "203.0.113.7:8080").unwrap(), format!("far saw {N2}"));
    });
}

#[test]
fn use_mux_keeps_clients_outside_the_host() {
    in_lab("use_mux_keeps_clients_outside_the_host", || {
        let lab = Lab::new();
        let node = bridged(&lab, 1);
        let (one, client) = (pod(&node, 1, 5, vec![]), pod(&node, 1, 7, services()));
        serve_tcp(&one.ns, 80, "one");
        let outside = lab.host(OUTSIDE, &[("203.0.113.0/24", N1)]);
        for (flags, seen) in [(PortMappingFlags::VIP_EXTERNAL_IP, N1), (PortMappingFlags::VIP_EXTERNAL_IP | PortMappingFlags::USE_MUX, OUTSIDE)] {
            let mut balancer = HostComputeLoadBalancer::new(Some(ip(VIP)), Protocol::TCP, 8080, 80, vec![id(5)]);
            balancer.port_mappings[0].flags = flags;
            node.client.create(id(0x20), &balancer).unwrap();
            assert_eq!(ask_tcp(&outside.ns, "203.0.113.7:8080").unwrap(), format!("one saw {seen}"));
            assert_eq!(ask_tcp(&client.ns, "203.0.113.7:8080").unwrap(), format!("one saw {N1}"), "a pod is not outside");
            assert_eq!(ask_tcp(&node.ns, "203.0.113.7:8080").unwrap(), format!("one saw {N1}"), "nor is the host");
            node.client.delete::<HostComputeLoadBalancer>(&id(0x20)).unwrap();
        }
    });
}

#[test]
fn pod_packets_leave_by_their_next_hop() {
    in_lab("pod_packets_leave_by_their_next_hop", || {
        let lab = Lab::new();
        let node = bridged(&lab, 1);
        let by = |prefix: &str, next_hop: &str| {
            let route = SdnRoute { destination_prefix: prefix.into(), next_hop: next_hop.into(), ..SdnRoute::default() };
            EndpointPolicy::new(EndpointPolicyType::SdnRoute, &route)
        };
        // Two hosts of the LAN and a pod say that they are 198.51.100.1.
        let (near, far) = (lab.host("10.240.0.60", &[("192.168.1.0/24", N1)]), lab.host("10.240.0.70", &[("192.168.1.0/24", N1)]));
        let appliance = pod(&node, 1, 6, vec![]);
        for (ns, name) in [(&near.ns, "near"), (&far.ns, "far"), (&appliance.ns, "appliance")] {
            for address in ["198.51.100.1", "198.51.100.130", "2001:db8:9::1"] {
                own(ns, ip(address));
            }
            serve_tcp(ns, 80, name);
        }
        let first = pod(&node, 1, 5, vec![by("198.51.100.0/24", "10.240.0.60"), by("198.51.100.128/25", "10.240.0.70")]);
        let second = pod(&node, 1, 8, vec![by("198.51.100.0/24", "192.168.1.6"), by("2001:db8:9::/64", "fd00:1::6")]);
        let lost = pod(&node, 1, 9, vec![by("198.51.100.0/24", "172.31.0.1")]);
        let plain = pod(&node, 1, 10, vec![]);
        assert_eq!(ask_tcp(&first.ns, "198.51.100.1:80").unwrap(), "near saw 192.168.1.5");
        assert_eq!(ask_tcp(&first.ns, "198.51.100.130:80").unwrap(), "far saw 192.168.1.5", "the longest prefix wins");
        assert_eq!(ask_tcp(&second.ns, "198.51.100.1:80").unwrap(), "appliance saw 192.168.1.8", "a pod is a hop, too");
        assert_eq!(ask_soon(&second.ns, "[2001:db8:9::1]:80"), "appliance saw fd00:1::8");
        assert!(is_silent(&lost.ns, "198.51.100.1:80"), "a hop that is nobody's neighbour");
        let lan = Rtnl::open_in(lab.router()).unwrap();
        let index = lan.link("lan0").unwrap().unwrap().index;
        lab.router().run(|| linux_sys::sysctl::set("net.ipv4.ip_forward", "1")).unwrap().unwrap();
        lan.add_route(&Route::new(net("198.51.100.0/24")).via(ip("10.240.0.70")).oif(index)).unwrap();
        assert_eq!(ask_tcp(&plain.ns, "198.51.100.1:80").unwrap(), "far saw 192.168.1.10", "without a policy, the fabric's way");
        let none = ModifyRequest::endpoint_policies(RequestType::Update, &[]);
        node.client.modify::<HostComputeEndpoint>(&id(5), &none).unwrap();
        assert_eq!(ask_tcp(&first.ns, "198.51.100.1:80").unwrap(), "far saw 192.168.1.5", "nor any longer with it gone");
        // A routing rule does what the policy does.
        let rule = HostComputeRoute {
            host_compute_endpoints: vec![id(5)],
            routes: vec![SdnRoute { destination_prefix: "198.51.100.0/24".into(), next_hop: "10.240.0.60".into(), ..SdnRoute::default() }],
            ..HostComputeRoute::default()
        };
        node.client.create(id(0x30), &rule).unwrap();
        assert_eq!(ask_tcp(&first.ns, "198.51.100.1:80").unwrap(), "near saw 192.168.1.5");
    });
}
