//! Policies, with packets: access rules, sets, tiers, proxies, IPv6, counters.
#![cfg(target_os = "linux")]

#[path = "harness/lab.rs"]
mod harness;
#[path = "harness/raw.rs"]
mod raw;

use std::io::{self, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use harness::{Lab, Node, Pod, ask_soon, ask_tcp, id, is_silent, net, serve_tcp, serve_udp};
use hcn::document::*;
use hcn::{EndpointPolicy, HnsVersion, NetworkPolicy};
use hns_sim::switches::Switches;
use linux_sys::netlink::Rtnl;
use linux_sys::ns::{NetNs, in_lab};
use linux_sys::sysctl;

const WS2025: HnsVersion = HnsVersion::new(15, 5);

/// A rule of the switch, by its description.
fn rule(action: Action, direction: Direction, priority: u16, protocols: &str, remote: &str, ports: &str) -> EndpointPolicy {
    let (local_ports, remote_ports) = if direction == Direction::In { (ports, "") } else { ("", ports) };
    EndpointPolicy::acl(&Acl {
        action,
        direction,
        priority,
        protocols: protocols.into(),
        remote_addresses: remote.into(),
        local_ports: local_ports.into(),
        remote_ports: remote_ports.into(),
        ..Acl::default()
    })
}

fn set_rules(node: &Node, number: u8, policies: &[EndpointPolicy]) {
    node.client.modify::<HostComputeEndpoint>(&id(number), &ModifyRequest::endpoint_policies(RequestType::Update, policies)).unwrap();
}

/// Whether `client` reaches `address`.
#[track_caller]
fn check(client: &Pod, address: &str, expected: bool, what: &str) {
    let reached = !is_silent(&client.ns, address);
    assert_eq!(reached, expected, "{what}: {address}");
}

#[test]
fn access_rules_allow_and_block_by_priority() {
    use Action::{Allow, Block};
    use Direction::{In, Out};
    in_lab("access_rules_allow_and_block_by_priority", || {
        let lab = Lab::new();
        let node = lab.node(WS2025);
        let (client, server) = (node.pod(5, "192.168.1.5", vec![]), node.pod(6, "192.168.1.6", vec![]));
        for port in [80, 81, 82] {
            serve_tcp(&server.ns, port, "server");
        }
        serve_tcp(&client.ns, 80, "client");
        serve_udp(&server.ns, 53, "server");
        let open = harness::connect(&client.ns, "192.168.1.6:80").unwrap();

        set_rules(&node, 6, &[rule(Allow, In, 100, "6", "192.168.1.5/32", "80-81"), rule(Block, In, 200, "256", "", "")]);
        check(&client, "192.168.1.6:80", true, "allowed before the block");
        check(&client, "192.168.1.6:82", false, "not in the range");
        assert!(harness::is_unanswered_udp(&client.ns, "192.168.1.6:53"), "another protocol");
        assert!(harness::is_unanswered(&node.ns, "192.168.1.6:80"), "another source, the host");
        assert_eq!(ask_tcp(&server.ns, "192.168.1.5:80").unwrap(), "client saw 192.168.1.6", "replies of what goes out come in");
        assert!(harness::hear(open).is_ok(), "an established connection lives on");

        set_rules(&node, 6, &[rule(Allow, In, 300, "6", "", "80"), rule(Block, In, 200, "6", "192.168.1.0/24, 10.0.0.0/8", "80,82")]);
        check(&client, "192.168.1.6:80", false, "the lower number wins");
        check(&client, "192.168.1.6:81", true, "what no rule matches passes");
        check(&client, "192.168.1.6:82", false, "the list's second port");

        set_rules(&node, 6, &[]);
        check(&client, "192.168.1.6:82", true, "an update without rules takes them all");

        set_rules(&node, 5, &[rule(Block, Out, 100, "6", "192.168.1.6", "81"), rule(Block, Out, 100, "17", "", "53")]);
        check(&client, "192.168.1.6:80", true, "another port");
        check(&client, "192.168.1.6:81", false, "outgoing");
        assert!(harness::is_unanswered_udp(&client.ns, "192.168.1.6:53"));
        // Rules of the compartment's own firewall.
        let host_rule =
            Acl { action: Block, direction: In, rule_type: RuleType::Host, protocols: "6".into(), local_ports: "82".into(), ..Acl::default() };
        set_rules(&node, 5, &[]);
        set_rules(&node, 6, &[EndpointPolicy::acl(&host_rule)]);
        check(&client, "192.168.1.6:82", false, "a rule of the host");
        check(&client, "192.168.1.6:81", true, "a rule of the host");
        node.client.delete::<HostComputeEndpoint>(&id(6)).unwrap();
        assert!(is_silent(&client.ns, "192.168.1.6:81"));
    });
}

#[test]
fn unusual_protocols_reach_pods_only_by_a_rule() {
    const UNUSUAL: u8 = 253;
    in_lab("unusual_protocols_reach_pods_only_by_a_rule", || {
        let lab = Lab::new();
        let outside = lab.host("10.240.0.50", &[("192.168.1.0/24", "10.240.0.11")]);
        for (address, block_other_protocols) in [("10.240.0.11", true), ("10.240.0.12", false)] {
            let node = lab.bare(address, &[], Switches { block_other_protocols, ..Switches::of(WS2025) });
            let subnet = Subnet::new(net("192.168.1.0/24"), "192.168.1.1".parse().unwrap());
            node.client.create(id(1), &HostComputeNetwork::new("mullion", NetworkType::L2Bridge, subnet)).unwrap();
            let (one, two) = (node.pod(5, "192.168.1.5", vec![]), node.pod(6, "192.168.1.6", vec![]));
            let arrives = |from: &NetNs, at: &NetNs, to: &str, protocol| {
                let wire = raw::Wire::tap(at);
                raw::send(from, to, protocol);
                wire.frames().iter().any(|frame| frame.protocol == protocol && frame.destination.to_string() == to)
            };
            let closed = block_other_protocols;
            assert_eq!(arrives(&one.ns, &two.ns, "192.168.1.6", UNUSUAL), !closed, "pod to pod");
            assert_eq!(arrives(&node.ns, &two.ns, "192.168.1.6", UNUSUAL), !closed, "host to pod");
            for usual in [1, 2, 6, 17] {
                assert!(arrives(&one.ns, &two.ns, "192.168.1.6", usual), "protocol {usual}");
            }
            if closed {
                assert!(!arrives(&outside.ns, &two.ns, "192.168.1.6", UNUSUAL), "from outside");
                assert!(arrives(&two.ns, &outside.ns, "10.240.0.50", UNUSUAL), "they may send all");
                assert!(arrives(&outside.ns, &two.ns, "192.168.1.6", UNUSUAL), "and be answered");
            }
            set_rules(&node, 6, &[rule(Action::Allow, Direction::In, 100, "253", "192.168.1.5", "")]);
            assert!(arrives(&one.ns, &two.ns, "192.168.1.6", UNUSUAL), "a rule opens the way");
        }
    });
}

#[test]
fn access_rules_follow_sets_and_tiers() {
    use Action::{Allow, Block, Pass};
    in_lab("access_rules_follow_sets_and_tiers", || {
        let lab = Lab::new();
        let node = lab.node(WS2025);
        let (one, two, server) = (node.pod(5, "192.168.1.5", vec![]), node.pod(6, "192.168.1.6", vec![]), node.pod(7, "192.168.1.7", vec![]));
        serve_tcp(&server.ns, 80, "server");
        let set = |id: &str, policy_type, values: &str| {
            NetworkPolicy::set(&SetPolicy { id: id.into(), name: id.into(), policy_type, values: values.into(), ..SetPolicy::default() })
        };
        let sets = [set("friends", SetPolicyType::IpSet, "192.168.1.5"), set("all", SetPolicyType::NestedIpSet, "friends")];
        node.client.modify::<HostComputeNetwork>(&id(1), &ModifyRequest::network_policies(RequestType::Add, &sets)).unwrap();
        // As Azure's NPM writes it: sets of sources are local addresses.
        let friends = Acl { action: Allow, direction: Direction::In, priority: 100, local_addresses: "all".into(), ..Acl::default() };
        set_rules(&node, 7, &[EndpointPolicy::acl(&friends), rule(Block, Direction::In, 200, "", "", "")]);
        check(&one, "192.168.1.7:80", true, "a member");
        check(&two, "192.168.1.7:80", false, "no member");
        let more = [set("friends", SetPolicyType::IpSet, "192.168.1.6,192.168.1.5/32")];
        node.client.modify::<HostComputeNetwork>(&id(1), &ModifyRequest::network_policies(RequestType::Update, &more)).unwrap();
        check(&two, "192.168.1.7:80", true, "a member now");

        let tier = |order, action: Action, from: &str| {
            let rule = TierAclRule { action, remote_addresses: from.into(), priority: 100, ..TierAclRule::default() };
            let tier = TierAcl { name: format!("tier{order}"), direction: Direction::In, order, rules: vec![rule], ..TierAcl::default() };
            EndpointPolicy::new(EndpointPolicyType::TierAcl, &tier)
        };
        set_rules(&node, 7, &[tier(2, Block, "192.168.1.0/24"), tier(1, Allow, "192.168.1.5"), tier(0, Pass, "192.168.1.5")]);
        check(&one, "192.168.1.7:80", true, "passed by the first tier, allowed by the second");
        check(&two, "192.168.1.7:80", false, "blocked by the last");
    });
}

#[test]
fn network_acl_applies_to_every_endpoint() {
    use Action::{Allow, Block};
    use Direction::{In, Out};
    in_lab("network_acl_applies_to_every_endpoint", || {
        let lab = Lab::new();
        let node = lab.node_with(Switches { rules_deny_the_rest: true, ..Switches::of(WS2025) });
        let (one, two) = (node.pod(5, "192.168.1.5", vec![]), node.pod(6, "192.168.1.6", vec![]));
        for port in [80, 81] {
            serve_tcp(&two.ns, port, "two");
        }
        let shared = |rules: &[EndpointPolicy], request: RequestType| {
            let shared = |rule: &EndpointPolicy| NetworkPolicy::new(NetworkPolicyType::NetworkAcl, &rule.as_acl().unwrap());
            let policies: Vec<NetworkPolicy> = rules.iter().map(shared).collect();
            node.client.modify::<HostComputeNetwork>(&id(1), &ModifyRequest::network_policies(request, &policies)).unwrap();
        };
        let given = [rule(Block, In, 200, "6", "", "81"), rule(Allow, In, 300, "6", "", "")];
        shared(&given, RequestType::Add);
        check(&one, "192.168.1.6:80", true, "allowed for all");
        check(&one, "192.168.1.6:81", false, "blocked for all");
        set_rules(&node, 6, &[rule(Allow, In, 100, "6", "192.168.1.5", "81")]);
        check(&one, "192.168.1.6:81", true, "the endpoint's own rule comes first by its number");
        shared(&given, RequestType::Remove);
        check(&one, "192.168.1.6:81", true, "its own is left");
        check(&one, "192.168.1.6:80", false, "what no rule allows is denied");
        set_rules(&node, 5, &[rule(Block, Out, 100, "6", "192.168.1.6", "80")]);
        check(&one, "192.168.1.6:81", false, "in each direction that has a rule");
        set_rules(&node, 5, &[]);
        check(&one, "192.168.1.6:81", true, "and in no other");
    });
}

#[test]
fn access_rules_hold_on_switched_networks() {
    in_lab("access_rules_hold_on_switched_networks", || {
        let lab = Lab::new();
        let node = lab.node(WS2025);
        let subnet = Subnet::new(net("172.20.3.0/24"), "172.20.3.1".parse().unwrap());
        node.client.create(id(0x70), &HostComputeNetwork::new("private", NetworkType::Private, subnet)).unwrap();
        let pod = |number: u8, policies| {
            let endpoint = HostComputeEndpoint { policies, ..HostComputeEndpoint::local("pod", net(&format!("172.20.3.{number}/24")), None) };
            node.pod_on(id(0x70), number, endpoint)
        };
        let (client, server) = (pod(5, vec![]), pod(6, vec![rule(Action::Block, Direction::In, 100, "6", "172.20.3.5", "81")]));
        serve_tcp(&server.ns, 80, "server");
        serve_tcp(&server.ns, 81, "server");
        check(&client, "172.20.3.6:80", true, "another port");
        check(&client, "172.20.3.6:81", false, "blocked");
    });
}

#[test]
fn ipv6_flows_beside_ipv4() {
    in_lab("ipv6_flows_beside_ipv4", || {
        let lab = Lab::new();
        let mut node = lab.bare("10.240.0.11", &[], Switches::of(WS2025));
        let mut network = HostComputeNetwork::new("dual", NetworkType::L2Bridge, Subnet::new(net("192.168.1.0/24"), "192.168.1.1".parse().unwrap()));
        network.ipams[0].subnets.push(Subnet::new(net("fd00:1::/64"), "fd00:1::1".parse().unwrap()));
        node.client.create(id(1), &network).unwrap();
        let pod = |number: u8, policies| {
            let mut endpoint = HostComputeEndpoint::local("pod", net(&format!("192.168.1.{number}/24")), Some("192.168.1.1".parse().unwrap()));
            endpoint.ip_configurations.push(IpConfiguration {
                ip_address: format!("fd00:1::{number}"),
                prefix_length: 64,
                ..IpConfiguration::default()
            });
            endpoint.routes.push(Route { next_hop: "fd00:1::1".into(), destination_prefix: "::/0".into(), ..Route::default() });
            node.pod_of(number, HostComputeEndpoint { policies, ..endpoint })
        };
        let paths = || vec![EndpointPolicy::sdn_route(net("fd00:96::/112"))];
        let (one, two) = (pod(5, paths()), pod(6, paths()));
        serve_tcp(&two.ns, 80, "two");
        assert_eq!(ask_tcp(&one.ns, "[fd00:1::6]:80").unwrap(), "two saw fd00:1::5");
        let link = Rtnl::open_in(&one.ns).unwrap().links().unwrap().into_iter().find(|link| link.kind == "veth").unwrap().name;
        for switch in ["accept_ra", "accept_redirects"] {
            let value = one.ns.run(|| sysctl::get(&format!("net.ipv6.conf.{}.{switch}", link.replace('.', "/")))).unwrap().unwrap();
            assert_eq!(value, "0", "{switch}: routers of the LAN do not configure endpoints");
        }
        assert_eq!(ask_tcp(&one.ns, "192.168.1.6:80").unwrap(), "two saw 192.168.1.5");
        assert_eq!(ask_tcp(&node.ns, "[fd00:1::6]:80").unwrap(), "two saw fd00:1::1");
        for (number, flags, seen) in [(0x20, LoadBalancerFlags::IPV6, "fd00:1::1"), (0x21, LoadBalancerFlags(3), "fd00:1::5")] {
            let vip = format!("fd00:96::{number}");
            let mut balancer = HostComputeLoadBalancer::new(Some(vip.parse().unwrap()), Protocol::TCP, 8080, 80, vec![id(6)]);
            balancer.flags = flags;
            node.client.create(id(number), &balancer).unwrap();
            assert_eq!(ask_tcp(&one.ns, &format!("[{vip}]:8080")).unwrap(), format!("two saw {seen}"));
        }
        // The host's own address, once it has one, stands for what leaves by it.
        node.add_address("fd00:240::11/64");
        let outside = lab.host("10.240.0.50", &[]);
        outside.add_address("fd00:240::50/64");
        serve_tcp(&outside.ns, 80, "outside");
        node.stop();
        node.start();
        assert_eq!(ask_tcp(&one.ns, "[fd00:96::32]:8080").unwrap(), "two saw fd00:240::11");
        assert_eq!(ask_tcp(&one.ns, "[fd00:96::33]:8080").unwrap(), "two saw fd00:1::5");
        set_rules(&node, 5, &[EndpointPolicy::outbound_nat([]), EndpointPolicy::sdn_route(net("fd00:96::/112"))]);
        assert_eq!(ask_soon(&one.ns, "[fd00:240::50]:80"), "outside saw fd00:240::11");
        set_rules(&node, 6, &[rule(Action::Block, Direction::In, 100, "6", "fd00:1::5", "80")]);
        check(&one, "[fd00:1::6]:80", false, "blocked in IPv6");
        check(&one, "192.168.1.6:80", true, "not in IPv4");
    });
}

#[test]
fn qos_bounds_what_an_endpoint_sends() {
    const RATE: u64 = 500_000;
    const BYTES: usize = 400_000;
    in_lab("qos_bounds_what_an_endpoint_sends", || {
        let lab = Lab::new();
        let node = lab.node(WS2025);
        let qos = EndpointPolicy::new(EndpointPolicyType::Qos, &Qos { maximum_outgoing_bandwidth_in_bytes: RATE, ..Qos::default() });
        let (bounded, free) = (node.pod(5, "192.168.1.5", vec![qos.clone()]), node.pod(6, "192.168.1.6", vec![]));
        let sent = |from: &NetNs, to: &NetNs, address: &str| {
            let listener = to.run(|| TcpListener::bind("0.0.0.0:9")).unwrap().unwrap();
            let mut stream = harness::connect(from, address).unwrap();
            let sink = std::thread::spawn(move || io::copy(&mut listener.accept().unwrap().0, &mut io::sink()).unwrap());
            let start = Instant::now();
            stream.write_all(&vec![0; BYTES]).unwrap();
            drop(stream);
            assert_eq!(sink.join().unwrap(), BYTES as u64);
            start.elapsed()
        };
        // What goes at once after a rest is 16 KiB: the rest cannot come sooner than its share of a second.
        let slowly = Duration::from_secs_f64((BYTES - 16 * 1024) as f64 / RATE as f64);
        let out = sent(&bounded.ns, &free.ns, "192.168.1.6:9");
        assert!(out >= slowly, "{out:?} for {BYTES} bytes at {RATE} a second");
        // A busy machine may take long without a bound, but not every time.
        let fast = |from: &NetNs, to: &NetNs, address: &str| (0..10).any(|_| sent(from, to, address) < slowly);
        assert!(fast(&free.ns, &bounded.ns, "192.168.1.5:9"), "what comes in is not bounded");
        set_rules(&node, 5, &[]);
        assert!(fast(&bounded.ns, &free.ns, "192.168.1.6:9"), "no bound is left");
        set_rules(&node, 6, &[qos]);
        let out = sent(&free.ns, &bounded.ns, "192.168.1.5:9");
        assert!(out >= slowly, "bounded while it is attached: {out:?}");
    });
}

#[test]
fn proxy_policies_redirect_and_counters_count() {
    in_lab("proxy_policies_redirect_and_counters_count", || {
        let lab = Lab::new();
        let node = lab.node(WS2025);
        let proxy = L4Proxy {
            ip: "10.240.0.60".into(),
            port: "8443".into(),
            protocol: Protocol::TCP,
            exception_list: vec!["10.240.0.50/32".into()],
            ..L4Proxy::default()
        };
        let policies = vec![EndpointPolicy::new(EndpointPolicyType::L4Proxy, &proxy), EndpointPolicy::outbound_nat([])];
        let pod = node.pod(5, "192.168.1.5", policies);
        let (plain, ears, other) = (lab.host("10.240.0.50", &[]), lab.host("10.240.0.60", &[]), lab.host("10.240.0.70", &[]));
        serve_tcp(&plain.ns, 80, "plain");
        serve_tcp(&ears.ns, 8443, "proxy");
        serve_tcp(&other.ns, 80, "other");
        assert_eq!(ask_tcp(&pod.ns, "10.240.0.70:80").unwrap(), "proxy saw 10.240.0.11");
        assert_eq!(ask_tcp(&pod.ns, "10.240.0.50:80").unwrap(), "plain saw 10.240.0.11", "an exception");
        assert!(node.client.v1_endpoints().unwrap().iter().any(|endpoint| endpoint.id == id(5)));
        let stats = node.client.endpoint_stats(&id(5)).unwrap().unwrap();
        assert!(stats.packets_sent >= 8 && stats.packets_received >= 8 && stats.bytes_sent > 400 && stats.bytes_received > 400, "{stats:?}");
    });
}
