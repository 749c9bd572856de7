//! Source addresses that backends see, and addresses that the node itself reaches: on each type of network and in each version, with packets.
//!
//! Pods and nodes are as in `walk.rs`. P1 (.5) and P3 (.6) run on N1, P2 (.6) on N2. Load balancers are as kube-proxy makes them.
#![cfg(target_os = "linux")]

#[path = "harness/lab.rs"]
mod harness;
#[path = "harness/networks.rs"]
mod networks;

use harness::{Host, Lab, Node, Pod, ask_tcp, id, net, serve_tcp};
use hcn::document::*;
use hcn::{EndpointPolicy, HnsVersion};
use hns_sim::switches::Switches;
use linux_sys::ns::{NetNs, in_lab};
use networks::*;

/// Windows Server 2019 as it was released and with the updates of 2020, Windows 10 2004, Windows Server 2022 and 2025.
const VERSIONS: [HnsVersion; 5] =
    [HnsVersion::new(9, 2), HnsVersion::new(9, 5), HnsVersion::new(11, 11), HnsVersion::new(13, 3), HnsVersion::new(15, 5)];

/// Of Windows 10 1903: it has no direct server return.
const WITHOUT_DSR: HnsVersion = HnsVersion::new(10, 0);

const DIRECT: LoadBalancerFlags = LoadBalancerFlags::DSR;
const TRANSLATED: LoadBalancerFlags = LoadBalancerFlags(0);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Network {
    L2Bridge,
    L2Tunnel,
    Overlay { host_route: bool },
}

impl Network {
    /// What pods' addresses on a node begin with.
    fn prefix(self, node: u8) -> String {
        if matches!(self, Self::Overlay { .. }) { format!("10.244.{node}") } else { format!("192.168.{node}") }
    }

    /// The source of connections that a load balancer translates.
    fn source(self) -> &'static str {
        if matches!(self, Self::Overlay { .. }) { "10.244.1.2" } else { N1 }
    }
}

/// Two nodes with pods that answer, and a host outside of the cluster.
struct World {
    _lab: Lab,
    network: Network,
    one: Node,
    _two: Node,
    p1: Pod,
    p3: Pod,
    _p2: Pod,
    outside: Host,
}

impl World {
    fn new(network: Network, switches: &Switches) -> Self {
        let lab = Lab::new();
        make_fabric(&lab);
        let node = |number| match network {
            Network::L2Bridge => bridged_as(&lab, number, NetworkType::L2Bridge, switches.clone()),
            Network::L2Tunnel => bridged_as(&lab, number, NetworkType::L2Tunnel, switches.clone()),
            Network::Overlay { host_route } => overlaid(&lab, number, host_route, switches.clone()),
        };
        let (one, two) = (node(1), node(2));
        let [here, there] = [1, 2].map(|number| network.prefix(number));
        let usual = || vec![outbound(), route("10.96.0.0/12"), route("10.240.0.11/32")];
        // As win-bridge and win-overlay with `loopbackDSR`.
        let looped = usual().into_iter().chain([EndpointPolicy::outbound_nat_to([net(&format!("{here}.6/32"))])]).collect();
        let (p1, p3, p2) = (pod(&one, &here, 5, usual()), pod(&one, &here, 6, looped), pod(&two, &there, 6, usual()));
        for (pod, name) in [(&p1, "p1"), (&p3, "p3"), (&p2, "p2")] {
            serve_tcp(&pod.ns, 80, name);
        }
        let overlay = matches!(network, Network::Overlay { .. });
        remote(&one, 9, &format!("{there}.6"), if overlay { "02-11-0A-F4-02-06" } else { "" }, N2);
        if overlay {
            one.client.create_endpoint(&id(1), id(8), &HostComputeEndpoint::local("source", net("10.244.1.2/24"), None)).unwrap();
        }
        let outside = outside(&lab);
        Self { _lab: lab, network, one, _two: two, p1, p3, _p2: p2, outside }
    }

    /// A load balancer in the place of the one before: of a ClusterIP, or of a node port.
    fn balance(&self, vip: Option<&str>, backend: u8, flags: LoadBalancerFlags) {
        let _ = self.one.client.delete::<HostComputeLoadBalancer>(&id(0x20));
        let mut balancer = HostComputeLoadBalancer::new(vip.map(ip), Protocol::TCP, if vip.is_some() { 80 } else { 30080 }, 80, vec![id(backend)]);
        balancer.flags = flags;
        if vip.is_none() {
            balancer.port_mappings[0].flags = PortMappingFlags(PortMappingFlags::LOCAL_ROUTED_VIP.0 | PortMappingFlags::VIP_EXTERNAL_IP.0);
        }
        if matches!(self.network, Network::Overlay { .. }) {
            balancer.source_vip = self.network.source().into();
        }
        self.one.client.create(id(0x20), &balancer).unwrap();
    }
}

/// The client and its request, the load balancer's backend and flags, and the expected answer.
type Asked<'a> = (&'a str, &'a NetNs, Option<&'a str>, u8, LoadBalancerFlags, Option<String>);

/// Asks for each; all differences are reported together.
fn check(world: &World, what: &str, rows: &[Asked<'_>]) {
    let mut wrong = Vec::new();
    for (who, ns, vip, backend, flags, expected) in rows {
        world.balance(*vip, *backend, *flags);
        let to = if vip.is_some() { "10.96.0.1:80" } else { "10.240.0.11:30080" };
        let found = harness::answer(ns, to, expected.is_some());
        if found != *expected {
            wrong.push(format!("{who}: {found:?}, not {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{what}: {wrong:#?}");
}

/// The client's address with direct server return, in the versions that have it; the load balancer's or the host's without.
#[test]
fn direct_server_return_shows_backends_the_client() {
    in_lab("direct_server_return_shows_backends_the_client", || {
        let newest = Switches::of(VERSIONS[4]);
        let off = Switches { direct_server_return: false, ..newest.clone() };
        for network in [Network::L2Bridge, Network::L2Tunnel, Network::Overlay { host_route: false }] {
            for (switches, direct) in [(&newest, true), (&Switches::of(WITHOUT_DSR), false), (&off, false)] {
                let world = World::new(network, switches);
                let World { p1, p3, outside, .. } = &world;
                let [a1, a3] = [5, 6].map(|last| format!("{}.{last}", network.prefix(1)));
                let by = network.source();
                let seen = |name: &str, client: &str| Some(format!("{name} saw {}", if direct { client } else { by }));
                let translated = |name: &str| Some(format!("{name} saw {by}"));
                let rows: [Asked<'_>; 10] = [
                    ("a pod, of a pod of another node", &p1.ns, Some(VIP), 9, DIRECT, seen("p2", &a1)),
                    ("a pod, of a pod of its node", &p1.ns, Some(VIP), 6, DIRECT, seen("p3", &a1)),
                    ("a looped pod, of a pod of its node", &p3.ns, Some(VIP), 5, DIRECT, seen("p1", &a3)),
                    ("a pod, of a load balancer without the flag", &p1.ns, Some(VIP), 9, TRANSLATED, translated("p2")),
                    ("a pod, of itself", &p1.ns, Some(VIP), 5, DIRECT, if direct { None } else { translated("p1") }),
                    ("a looped pod, of itself", &p3.ns, Some(VIP), 6, DIRECT, seen("p3", N1)),
                    ("a pod, of itself, without the flag", &p1.ns, Some(VIP), 5, TRANSLATED, translated("p1")),
                    ("outside, policy Local", &outside.ns, None, 5, DIRECT, seen("p1", OUTSIDE)),
                    ("outside, policy Cluster, on the node", &outside.ns, None, 5, TRANSLATED, translated("p1")),
                    ("outside, policy Cluster, elsewhere", &outside.ns, None, 9, TRANSLATED, translated("p2")),
                ];
                check(&world, &format!("{network:?}, HNS {}, direct {direct}", switches.version), &rows);
                assert_eq!(ask_tcp(&p3.ns, "10.240.0.50:80").unwrap(), format!("outside saw {N1}"), "the other OutBoundNAT goes on");
            }
        }
    });
}

/// ClusterIPs from Windows Server 2022 on, on overlays only with HostRoute and of the node's own pods; node ports from the updates of 2020 on.
#[test]
fn node_reaches_the_documented_addresses() {
    in_lab("node_reaches_the_documented_addresses", || {
        for network in [Network::L2Bridge, Network::L2Tunnel, Network::Overlay { host_route: true }, Network::Overlay { host_route: false }] {
            for version in VERSIONS {
                let world = World::new(network, &Switches::of(version));
                let node = &world.one.ns;
                let to_pods = network != Network::Overlay { host_route: false };
                let elsewhere = !matches!(network, Network::Overlay { .. });
                let seen = |reached: bool, who: &str, by: &str| reached.then(|| format!("{who} saw {by}"));
                let (ips, ports) = (version.major >= 13, version >= HnsVersion::new(9, 3));
                let rows: [Asked<'_>; 5] = [
                    ("ClusterIP of an own pod", node, Some(VIP), 5, DIRECT, seen(ips && to_pods, "p1", N1)),
                    ("ClusterIP of another node's pod", node, Some(VIP), 9, DIRECT, seen(ips && elsewhere, "p2", N1)),
                    ("node port of an own pod, policy Cluster", node, None, 5, TRANSLATED, seen(ports && to_pods, "p1", network.source())),
                    ("node port of an own pod, policy Local", node, None, 5, DIRECT, seen(ports && to_pods, "p1", N1)),
                    ("node port of another node's pod", node, None, 9, TRANSLATED, seen(ports, "p2", network.source())),
                ];
                check(&world, &format!("{network:?}, HNS {version}"), &rows);
                world.balance(None, 5, TRANSLATED);
                assert!(harness::is_unanswered(node, "127.0.0.1:30080"), "never at localhost");
            }
        }
    });
}
