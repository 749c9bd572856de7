use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use cluster::Key;
use linux_sys::netlink::{BridgePort, Route, Rtnl};
use linux_sys::ns::{NetNs, in_lab};
use linux_sys::sysctl;
use nft::Batch;
use test_lab::{LIMIT, net};

use super::elements::Role;
use super::*;
use crate::flows::{Flows, echo};
use crate::table::{BackendAddress, IpFamily, Kind, Protocol, Unserved, Vip, VipAddress};

/// The current namespace is the node: pods at 10.1.0.2… on a routed bridge, and a world beyond `up0`.
struct Lab {
    pods: Vec<NetNs>,
    world: NetNs,
    proxy: Nftables,
    table: Table,
}

const NODE: &str = "10.240.0.11";
const NODE6: &str = "fd00:240::11";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

impl Lab {
    /// As stock Debian runs: without bridge netfilter, so ports are isolated and the node forwards between them.
    fn new(pods: u8) -> Self {
        // A kernel that does not know the switch does not have bridge netfilter either.
        for name in ["iptables", "ip6tables"] {
            let _ = sysctl::set(&format!("net.bridge.bridge-nf-call-{name}"), "0");
        }
        Self::with_ports(pods, true)
    }

    fn with_ports(pods: u8, isolated: bool) -> Self {
        let node = Rtnl::open().unwrap();
        for (name, value) in [("ipv4.ip_forward", "1"), ("ipv6.conf.all.forwarding", "1"), ("ipv6.conf.default.accept_dad", "0")] {
            sysctl::set(&format!("net.{name}"), value).unwrap();
        }
        node.add_bridge("pods0").unwrap();
        let bridge = net::set_up(&node, "pods0", &["10.1.0.1/24", "fd00:1::1/64"]);
        for (name, value) in [
            ("conf/pods0/proxy_arp_pvlan", if isolated { "1" } else { "0" }),
            ("neigh/pods0/proxy_delay", "0"),
            ("conf/all/send_redirects", "0"),
            ("conf/pods0/send_redirects", "0"),
        ] {
            sysctl::set(&format!("net.ipv4.{}", name.replace('/', ".")), value).unwrap();
        }
        let port = BridgePort { isolated: Some(isolated), hairpin: Some(!isolated), ..BridgePort::default() };
        let pods = (0..pods).map(|n| net::pod(&node, bridge, usize::from(n), port)).collect();
        let world = NetNs::new_anonymous().unwrap();
        sysctl::set_in(&world, "net.ipv6.conf.default.accept_dad", "0").unwrap();
        node.add_veth("up0", "world0", Some(&world)).unwrap();
        net::set_up(&node, "up0", &[&format!("{NODE}/24"), &format!("{NODE6}/64")]);
        let outside = Rtnl::open_in(&world).unwrap();
        net::set_up(&outside, "world0", &["10.240.0.1/24", "fd00:240::1/64"]);
        // The world reaches Services through the node, but knows no way to pods.
        net::settle(&world);
        for (net, via) in [("10.96.0.0/16", NODE), ("192.0.2.0/24", NODE), ("fd00:96::/64", NODE6)] {
            net::route(&outside, net, via);
        }
        net::route(&node, "0.0.0.0/0", "10.240.0.1");
        net::route(&node, "::/0", "fd00:240::1");
        net::settle(&NetNs::current().unwrap());
        Self { pods, world, proxy: proxy(), table: Table::default() }
    }

    fn set(&mut self, service: &str, vips: Vec<(VipKey, Vip)>) -> usize {
        let changes = self.table.set_service(&Key::new("default", service), vips);
        let dirty = changes.into_iter().map(|change| change.key).collect();
        self.proxy.sync(&self.table, &dirty, false).unwrap().writes
    }

    /// Every pod answers on TCP 8080 with its name and the client's address.
    fn serve(&self) {
        for (n, pod) in self.pods.iter().enumerate() {
            serve(pod, n);
        }
    }
}

fn serve(ns: &NetNs, n: usize) {
    net::greet(ns, "[::]:8080", move |peer| format!("pod{n} sees {peer}"));
}

fn settings() -> Settings {
    let pods = Pods::Nets(vec!["10.1.0.0/16".parse().unwrap(), "fd00:1::/64".parse().unwrap()]);
    Settings { masquerade_leaving: true, ..Settings::new(vec![ip(NODE), ip(NODE6)], pods) }
}

fn proxy() -> Nftables {
    Nftables::new(settings())
}

fn key(address: &str, port: u16) -> VipKey {
    let address = if address == "node" { VipAddress::Node(IpFamily::V4) } else { VipAddress::Ip(ip(address)) };
    VipKey { address, protocol: Protocol::Tcp, port }
}

fn vip(kind: Kind, pods: &[u8]) -> Vip {
    let backends = pods.iter().map(|n| BackendAddress { address: ip(&format!("10.1.0.{}", n + 2)), port: 8080, local: true }).collect();
    Vip { backends, ..Vip::new("default/web:80", kind) }
}

fn ask(to: &str) -> String {
    asks(&NetNs::current().unwrap(), to)
}

fn asks(ns: &NetNs, to: &str) -> String {
    asks_for(ns, to, LIMIT)
}

/// The same where silence is right.
fn asks_in_vain(ns: &NetNs, to: &str) -> String {
    asks_for(ns, to, Duration::from_millis(800))
}

fn asks_for(ns: &NetNs, to: &str, patience: Duration) -> String {
    net::greeting(ns, to, patience).unwrap_or_else(|error| error.kind().to_string())
}

mod features;
mod modes;

const WEB: &str = "10.96.0.1:80";

#[test]
fn cluster_ips_reach_pods_from_everywhere() {
    in_lab("nftables::tests::cluster_ips_reach_pods_from_everywhere", || {
        let mut lab = Lab::new(3);
        lab.serve();
        lab.set("web", vec![(key("10.96.0.1", 80), vip(Kind::ClusterIp, &[1]))]);
        assert_eq!(asks(&lab.pods[0], WEB), "pod1 sees 10.1.0.2", "between pods of one node the client is seen");
        assert_eq!(asks(&lab.pods[1], WEB), "pod1 sees 10.1.0.1", "a pod that meets itself is translated");
        assert_eq!(ask(WEB), "pod1 sees 10.1.0.1", "from the node itself");
        assert_eq!(asks(&lab.world, WEB), "pod1 sees 10.1.0.1", "an outsider's reply must come back this way");
        lab.set("web", vec![(key("10.96.0.1", 80), vip(Kind::ClusterIp, &[0, 1, 2]))]);
        let mut seen = BTreeSet::new();
        for _ in 0..60 {
            seen.insert(asks(&lab.pods[0], WEB).split(' ').next().unwrap().to_owned());
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["pod0", "pod1", "pod2"]);
        // A port that the Service does not have, then a Service without backends, then none.
        assert_eq!(asks(&lab.pods[0], "10.96.0.1:81"), "connection refused");
        lab.set("web", vec![(key("10.96.0.1", 80), vip(Kind::ClusterIp, &[]))]);
        assert_eq!((asks(&lab.pods[0], WEB), ask(WEB)), ("connection refused".into(), "connection refused".into()));
        lab.set("web", vec![]);
        assert_ne!(asks_in_vain(&lab.pods[0], WEB), "connection refused");
    });
}

#[test]
fn a_plain_bridge_works_where_bridge_netfilter_is_on() {
    in_lab("nftables::tests::a_plain_bridge_works_where_bridge_netfilter_is_on", || {
        if sysctl::set("net.bridge.bridge-nf-call-iptables", "1").is_err() {
            // There is no such node on a kernel without the module.
            return;
        }
        let mut lab = Lab::with_ports(2, false);
        lab.serve();
        lab.set("web", vec![(key("10.96.0.1", 80), vip(Kind::ClusterIp, &[1]))]);
        assert_eq!(asks(&lab.pods[0], WEB), "pod1 sees 10.1.0.2");
        assert_eq!(asks(&lab.pods[1], WEB), "pod1 sees 10.1.0.1");
    });
}

#[test]
fn node_ports_follow_the_traffic_policy() {
    in_lab("nftables::tests::node_ports_follow_the_traffic_policy", || {
        let mut lab = Lab::new(2);
        lab.serve();
        let node = &format!("{NODE}:30080");
        lab.set("web", vec![(key("node", 30080), vip(Kind::NodePort, &[1]))]);
        assert_eq!(asks(&lab.world, node), "pod1 sees 10.1.0.1", "policy Cluster: as if from the node");
        assert_eq!(ask(node), "pod1 sees 10.1.0.1");
        let local = |pods: &[u8]| Vip {
            keep_client: true,
            inside: Some(vip(Kind::NodePort, &[0]).backends),
            unserved: Unserved::Drop,
            ..vip(Kind::NodePort, pods)
        };
        lab.set("web", vec![(key("node", 30080), local(&[1]))]);
        assert_eq!(asks(&lab.world, node), "pod1 sees 10.240.0.1", "policy Local: the client is seen");
        assert_eq!(asks(&lab.pods[1], node), "pod0 sees 10.1.0.3", "inside the cluster every backend may answer");
        lab.set("web", vec![(key("node", 30080), local(&[]))]);
        assert_eq!(asks_in_vain(&lab.world, node), "timed out", "no backend here: silence, so that a balancer looks elsewhere");
        assert_eq!(ask(node), "pod0 sees 10.1.0.1", "the node itself is inside too, but no pod");
    });
    parity::proved(parity::Nftables, &["externalTrafficPolicy Local: backends see the client's address"]);
}

#[test]
fn backends_outside_the_pod_network_see_the_nodes_address() {
    in_lab("nftables::tests::backends_outside_the_pod_network_see_the_nodes_address", || {
        let mut lab = Lab::new(1);
        serve(&lab.world, 9);
        let mut api = vip(Kind::ClusterIp, &[]);
        api.backends = [BackendAddress { address: ip("10.240.0.1"), port: 8080, local: false }].into();
        lab.set("kubernetes", vec![(key("10.96.0.1", 443), api)]);
        assert_eq!(asks(&lab.pods[0], "10.96.0.1:443"), "pod9 sees 10.240.0.11");
    });
}

#[test]
fn udp_is_answered_from_the_service_address() {
    in_lab("nftables::tests::udp_is_answered_from_the_service_address", || {
        let mut lab = Lab::new(2);
        let server = lab.pods[1].run(|| UdpSocket::bind("0.0.0.0:8080").unwrap()).unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((_, peer)) = server.recv_from(&mut buffer) {
                let _ = server.send_to(peer.ip().to_string().as_bytes(), peer);
            }
        });
        let dns = VipKey { protocol: Protocol::Udp, ..key("10.96.0.10", 53) };
        lab.set("dns", vec![(dns, vip(Kind::ClusterIp, &[1]))]);
        let answer = lab.pods[0].run(|| {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.set_read_timeout(Some(LIMIT)).unwrap();
            socket.connect("10.96.0.10:53").unwrap();
            socket.send(b"?").unwrap();
            let mut buffer = [0; 64];
            // A connected socket hears nobody but the Service.
            let n = socket.recv(&mut buffer).unwrap();
            String::from_utf8_lossy(&buffer[..n]).into_owned()
        });
        assert_eq!(answer.unwrap(), "10.1.0.2");
    });
}

#[test]
fn sticky_clients_stay_and_move_when_their_backend_goes() {
    in_lab("nftables::tests::sticky_clients_stay_and_move_when_their_backend_goes", || {
        let mut lab = Lab::new(4);
        lab.serve();
        let sticky = |pods: &[u8]| vec![(key("10.96.0.1", 80), Vip { affinity: Some(60), ..vip(Kind::ClusterIp, pods) })];
        lab.set("web", sticky(&[1, 2, 3]));
        let first = asks(&lab.pods[0], WEB);
        for _ in 0..20 {
            assert_eq!(asks(&lab.pods[0], WEB), first);
        }
        let gone: u8 = first[3..4].parse().unwrap();
        let left: Vec<u8> = [1, 2, 3].into_iter().filter(|n| *n != gone).collect();
        lab.set("web", sticky(&left));
        let second = asks(&lab.pods[0], WEB);
        assert!(left.iter().any(|n| second.starts_with(&format!("pod{n} "))), "{second} after {first}");
        assert_eq!(asks(&lab.pods[0], WEB), second);
    });
}

#[test]
fn change_writes_few_elements_keeps_connections_and_restart_adopts() {
    in_lab("nftables::tests::change_writes_few_elements_keeps_connections_and_restart_adopts", || {
        let mut lab = Lab::new(2);
        lab.serve();
        let many: Vec<(VipKey, Vip)> = (0..1000u16).map(|n| (key("10.96.9.9", 1000 + n), vip(Kind::ClusterIp, &[0, 1]))).collect();
        lab.set("many", many);
        let listener = lab.pods[1].run(|| TcpListener::bind("0.0.0.0:9000").unwrap()).unwrap();
        let mut long = vip(Kind::ClusterIp, &[1]);
        long.backends = long.backends.iter().map(|b| BackendAddress { port: 9000, ..*b }).collect();
        lab.set("long", vec![(key("10.96.0.2", 80), long)]);
        let mut client = lab.pods[0].run(|| TcpStream::connect("10.96.0.2:80").unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        assert_eq!(lab.set("web", vec![(key("10.96.0.1", 80), vip(Kind::ClusterIp, &[1]))]), 3, "VIP, slot, address; the hairpin is shared");
        let mut restarted = proxy();
        assert_eq!(restarted.sync(&lab.table, &BTreeSet::new(), true).unwrap().writes, 0, "nothing that is right is touched");
        lab.proxy = restarted;
        assert_eq!(lab.set("many", vec![]), 3002, "1000 VIPs with two slots, one address, and pod0's hairpin");
        client.write_all(b"still here").unwrap();
        let mut buffer = [0; 10];
        server.read_exact(&mut buffer).unwrap();
        assert_eq!(&buffer, b"still here");
        assert_eq!(asks(&lab.pods[0], WEB), "pod1 sees 10.1.0.2");
    });
    parity::proved(parity::Nftables, &["A change costs its own Service only", "A restart changes nothing that is right", "#109162"]);
}

#[test]
fn a_thousand_connections_outlive_what_happens_to_others() {
    in_lab("nftables::tests::a_thousand_connections_outlive_what_happens_to_others", || {
        let mut lab = Lab::new(2);
        echo(lab.pods[1].run(|| TcpListener::bind("0.0.0.0:8080").unwrap()).unwrap());
        lab.set("kept", vec![(key("10.96.0.2", 80), vip(Kind::ClusterIp, &[1])), (key("node", 30080), vip(Kind::NodePort, &[1]))]);
        let mut flows = Flows::open(&lab.pods[0], &["10.96.0.2:80", &format!("{NODE}:30080")], 500);
        let others = |pods: &[u8]| (0..200u16).map(|n| (key("10.96.9.9", 1000 + n), vip(Kind::ClusterIp, pods))).collect::<Vec<_>>();
        assert!(lab.set("others", others(&[0])) > 0);
        assert_eq!(flows.alive(), 1000, "Services come");
        assert!(lab.set("others", others(&[0, 1])) > 0);
        assert_eq!(flows.alive(), 1000, "their backends change");
        let mut batch = Batch::new();
        batch.flush_chain(&table(), "prerouting");
        Nft::open().unwrap().commit(&batch).unwrap();
        lab.proxy.sync(&lab.table, &BTreeSet::new(), true).unwrap();
        assert_eq!(flows.alive(), 1000, "damage is repaired");
        lab.proxy = proxy();
        lab.proxy.sync(&lab.table, &BTreeSet::new(), true).unwrap();
        assert_eq!(flows.alive(), 1000, "the proxy restarts");
        assert!(lab.set("others", vec![]) > 0);
        assert_eq!(flows.alive(), 1000, "Services go");
    });
}

#[test]
fn damage_is_repaired() {
    in_lab("nftables::tests::damage_is_repaired", || {
        let mut lab = Lab::new(2);
        lab.serve();
        let web = |pods: &[u8]| vec![(key("10.96.0.1", 80), vip(Kind::ClusterIp, pods))];
        lab.set("web", web(&[1]));
        let nft = Nft::open().unwrap();
        let damage = |f: &dyn Fn(&mut Batch)| {
            let mut batch = Batch::new();
            f(&mut batch);
            nft.commit(&batch).unwrap();
        };
        let repair = |lab: &mut Lab| lab.proxy.sync(&lab.table, &BTreeSet::new(), true).unwrap().writes;
        damage(&|batch| _ = batch.flush_set(&table(), &Role::Vips.of(IpFamily::V4).name()));
        assert_ne!(asks_in_vain(&lab.pods[0], WEB), "pod1 sees 10.1.0.2");
        assert_eq!(repair(&mut lab), 1);
        assert_eq!(asks(&lab.pods[0], WEB), "pod1 sees 10.1.0.2");
        damage(&|batch| _ = batch.flush_chain(&table(), "prerouting"));
        repair(&mut lab);
        assert_eq!(asks(&lab.pods[0], WEB), "pod1 sees 10.1.0.2");
        damage(&|batch| _ = batch.del_table(&table()));
        // An ordinary change notices that the table is gone and makes it whole.
        lab.set("web", web(&[0]));
        assert_eq!(asks(&lab.pods[0], WEB), "pod0 sees 10.1.0.1");
    });
    parity::proved(parity::Nftables, &["Damage by others is repaired", "#110674", "#135802"]);
}

#[test]
fn nft_shows_the_table() {
    in_lab("nftables::tests::nft_shows_the_table", || {
        let mut lab = Lab::new(1);
        let sticky = Vip { affinity: Some(60), ..vip(Kind::ClusterIp, &[0]) };
        lab.set(
            "web",
            vec![(key("10.96.0.1", 80), vip(Kind::ClusterIp, &[0])), (key("10.96.0.2", 80), sticky), (key("node", 30080), vip(Kind::NodePort, &[0]))],
        );
        let output = std::process::Command::new("nft").args(["list", "ruleset"]).output().expect("nft(8), which people look at rules with");
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        println!("{text}");
        for part in [
            "map slots",
            "10.96.0.1 . tcp . 80",
            "chain select-1-masq-outsiders-sticky-60",
            "elements = { 10.96.0.1, 10.96.0.2 }",
            "masquerade",
            "reject",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
    });
}
