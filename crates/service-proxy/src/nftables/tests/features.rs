//! Packet tests of each feature beyond plain ClusterIPs and node ports.

use linux_sys::conntrack::{self, Conntrack};
use nft::{Chain, ChainType, Family, Hook, Table as NftTable, rule};
use test_lab::{same, until};

use super::*;

fn key6(address: &str, port: u16) -> VipKey {
    let address = if address == "node" { VipAddress::Node(IpFamily::V6) } else { VipAddress::Ip(ip(address)) };
    VipKey { address, protocol: Protocol::Tcp, port }
}

fn vip6(kind: Kind, pods: &[u8]) -> Vip {
    let backends = pods.iter().map(|n| BackendAddress { address: ip(&format!("fd00:1::{}", n + 2)), port: 8080, local: true }).collect();
    Vip { backends, ..Vip::new("default/web:80", kind) }
}

const WEB6: &str = "[fd00:96::1]:80";

#[test]
fn ipv6_services_are_served_like_ipv4_ones() {
    in_lab("nftables::tests::features::ipv6_services_are_served_like_ipv4_ones", || {
        let mut lab = Lab::new(4);
        lab.serve();
        let web = |vip: Vip| vec![(key6("fd00:96::1", 80), vip)];
        lab.set("web", web(vip6(Kind::ClusterIp, &[1])));
        assert_eq!(asks(&lab.pods[0], WEB6), "pod1 sees fd00:1::2", "between pods the client is seen");
        assert_eq!(asks(&lab.pods[1], WEB6), "pod1 sees fd00:1::1", "a pod that meets itself is translated");
        assert_eq!(ask(WEB6), "pod1 sees fd00:1::1", "from the node itself");
        assert_eq!(asks(&lab.world, WEB6), "pod1 sees fd00:1::1", "an outsider's reply must come back this way");
        assert_eq!(asks(&lab.pods[0], "[fd00:96::1]:81"), "connection refused", "a port that the Service does not have");
        lab.set("web", web(vip6(Kind::ClusterIp, &[])));
        assert_eq!((asks(&lab.pods[0], WEB6), ask(WEB6)), ("connection refused".into(), "connection refused".into()));
        lab.set("web", web(Vip { affinity: Some(60), ..vip6(Kind::ClusterIp, &[1, 2, 3]) }));
        let first = asks(&lab.pods[0], WEB6);
        assert!((0..20).all(|_| asks(&lab.pods[0], WEB6) == first), "sticks to {first}");
        let node = &format!("[{NODE6}]:30080");
        let local = |pods: &[u8]| Vip {
            keep_client: true,
            inside: Some(vip6(Kind::NodePort, &[0]).backends),
            unserved: Unserved::Drop,
            ..vip6(Kind::NodePort, pods)
        };
        lab.set("web", vec![(key6("node", 30080), local(&[1]))]);
        assert_eq!(asks(&lab.world, node), "pod1 sees fd00:240::1", "policy Local: the client is seen");
        assert_eq!(asks(&lab.pods[1], node), "pod0 sees fd00:1::3", "inside the cluster every backend may answer");
        lab.set("web", vec![(key6("node", 30080), local(&[]))]);
        assert_eq!(asks_in_vain(&lab.world, node), "timed out");
    });
    parity::proved(parity::Nftables, &["IPv6 and dual stack"]);
}

#[test]
fn source_ranges_keep_others_out() {
    in_lab("nftables::tests::features::source_ranges_keep_others_out", || {
        let mut lab = Lab::new(2);
        lab.serve();
        let balancer =
            |ranges: &[&str]| Vip { sources: Some(ranges.iter().map(|net| net.parse().unwrap()).collect()), ..vip(Kind::LoadBalancer, &[1]) };
        let web = |vip: Vip| vec![(key("192.0.2.7", 80), vip), (key("10.96.0.1", 80), self::vip(Kind::ClusterIp, &[1]))];
        let at = "192.0.2.7:80";
        lab.set("web", web(balancer(&["10.240.0.0/28", "203.0.113.0/24"])));
        assert_eq!(asks(&lab.world, at), "pod1 sees 10.1.0.1");
        assert_eq!(asks_in_vain(&lab.pods[0], at), "timed out", "a pod is not in the ranges");
        assert_eq!(asks(&lab.pods[0], WEB), "pod1 sees 10.1.0.2", "the ClusterIP has no ranges");
        // From a range of another length to one of a single address, then to nobody, then to everybody.
        lab.set("web", web(balancer(&["10.1.0.2/32"])));
        assert_eq!(asks_in_vain(&lab.world, at), "timed out");
        assert!(asks(&lab.pods[0], at).starts_with("pod1 sees"));
        lab.set("web", web(balancer(&[])));
        assert_eq!((asks_in_vain(&lab.world, at), asks_in_vain(&lab.pods[0], at)), ("timed out".into(), "timed out".into()));
        let mut restarted = proxy();
        assert_eq!(restarted.sync(&lab.table, &BTreeSet::new(), true).unwrap().writes, 0);
        lab.proxy = restarted;
        lab.set("web", web(vip(Kind::LoadBalancer, &[1])));
        assert!(asks(&lab.world, at).starts_with("pod1 sees"));
        let deserted = Vip { backends: [].into(), ..balancer(&["203.0.113.0/24"]) };
        lab.set("web", web(deserted));
        assert_eq!(asks(&lab.pods[0], at), "connection refused", "where nobody serves there is nothing to guard");
    });
}

/// Answers every datagram with what it is called, and with the datagram.
fn echo(ns: &NetNs, port: u16, name: &'static str) {
    let socket = ns.run(|| UdpSocket::bind(("::", port)).unwrap()).unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((length, peer)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&[name.as_bytes(), &buffer[..length]].concat(), peer);
        }
    });
}

/// Who answers datagram `number`; late answers to others are passed over.
fn says(socket: &UdpSocket, number: usize) -> String {
    let mut buffer = [0; 64];
    let question = format!("?{number}");
    let mut ask = || -> std::io::Result<String> {
        socket.send(question.as_bytes())?;
        loop {
            let length = socket.recv(&mut buffer)?;
            if let Some(name) = String::from_utf8_lossy(&buffer[..length]).strip_suffix(&question) {
                return Ok(name.to_owned());
            }
        }
    };
    ask().unwrap_or_else(|error| error.kind().to_string())
}

#[test]
fn busy_udp_clients_follow_their_service() {
    in_lab("nftables::tests::features::busy_udp_clients_follow_their_service", || {
        let mut lab = Lab::new(3);
        echo(&lab.pods[1], 8080, "pod1");
        echo(&lab.pods[2], 8080, "pod2");
        for (address, local, any) in [("10.96.0.10", vip as fn(Kind, &[u8]) -> Vip, "0.0.0.0:0"), ("fd00:96::a", vip6, "[::]:0")] {
            let dns = VipKey { address: VipAddress::Ip(ip(address)), protocol: Protocol::Udp, port: 53 };
            let client = lab.pods[0].run(|| UdpSocket::bind(any).unwrap()).unwrap();
            client.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
            client.connect(SocketAddr::new(ip(address), 53)).unwrap();
            // Before anybody serves: the kernel remembers this flow as one that leads nowhere.
            assert_ne!(says(&client, 0), "pod1");
            lab.set("dns", vec![(dns, local(Kind::ClusterIp, &[1]))]);
            let mut number = 0;
            until("an answer of the first backend", || {
                number += 1;
                same(says(&client, number), &"pod1")
            });
            client.set_read_timeout(Some(LIMIT)).unwrap();
            lab.set("dns", vec![(dns, local(Kind::ClusterIp, &[2]))]);
            assert_eq!(says(&client, number + 1), "pod2", "{address}");
            // The backend changes while no proxy runs.
            let key = Key::new("default", "dns");
            lab.table.set_service(&key, vec![(dns, local(Kind::ClusterIp, &[1]))]);
            lab.proxy = proxy();
            lab.proxy.sync(&lab.table, &BTreeSet::new(), true).unwrap();
            assert_eq!(says(&client, number + 2), "pod1", "{address}");
            let others = Conntrack::open().unwrap().flows(conntrack::UDP).unwrap();
            assert!(others.iter().any(|flow| flow.destination == SocketAddr::new(ip(address), 53)));
        }
    });
    parity::proved(parity::Nftables, &["UDP clients that never pause follow the Service"]);
}

#[test]
fn node_ports_listen_on_chosen_addresses_and_on_localhost() {
    in_lab("nftables::tests::features::node_ports_listen_on_chosen_addresses_and_on_localhost", || {
        let mut lab = Lab::new(2);
        lab.serve();
        let rtnl = Rtnl::open().unwrap();
        let lo = rtnl.link("lo").unwrap().unwrap().index;
        rtnl.set_up(lo).unwrap();
        let node_ports = NodePorts::Nets(["127.0.0.0/8", "10.250.0.0/16"].map(|net| net.parse().unwrap()).to_vec());
        lab.proxy = Nftables::new(Settings { node_ports, ..settings() });
        let node = &format!("{NODE}:30080");
        let local =
            Vip { keep_client: true, inside: Some(vip(Kind::NodePort, &[0]).backends), unserved: Unserved::Drop, ..vip(Kind::NodePort, &[1]) };
        lab.set("web", vec![(key("node", 30080), vip(Kind::NodePort, &[1])), (key("node", 30081), local)]);
        assert_eq!(ask("127.0.0.1:30080"), "pod1 sees 10.1.0.1");
        assert_eq!(ask("127.0.0.1:30081"), "pod0 sees 10.1.0.1", "policy Local: the node is inside");
        assert_ne!(asks_in_vain(&lab.world, node), "pod1 sees 10.1.0.1", "not on an address that was not chosen");
        // The world may not use that 127.0.0.0/8 is routed now.
        let outside = Rtnl::open_in(&lab.world).unwrap();
        let lo_there = outside.link("lo").unwrap().unwrap().index;
        let _ = outside.del_addr(lo_there, "127.0.0.1/8".parse().unwrap());
        outside.add_route(&Route::new("127.0.0.1/32".parse().unwrap()).via(ip(NODE))).unwrap();
        sysctl::set_in(&lab.world, "net.ipv4.conf.all.route_localnet", "1").unwrap();
        let _own = TcpListener::bind("127.0.0.1:7777").unwrap();
        for port in [30080, 7777] {
            assert_eq!(asks_in_vain(&lab.world, &format!("127.0.0.1:{port}")), "timed out");
        }
        // An address that comes later is found by the next full pass, one that goes too.
        let up = rtnl.link("up0").unwrap().unwrap().index;
        rtnl.add_addr(up, "10.250.0.11/24".parse().unwrap()).unwrap();
        let outside_link = outside.link("world0").unwrap().unwrap().index;
        outside.add_addr(outside_link, "10.250.0.1/24".parse().unwrap()).unwrap();
        assert!(lab.proxy.sync(&lab.table, &BTreeSet::new(), true).unwrap().writes > 0);
        assert_eq!(asks(&lab.world, "10.250.0.11:30080"), "pod1 sees 10.1.0.1");
        rtnl.del_addr(up, "10.250.0.11/24".parse().unwrap()).unwrap();
        assert!(lab.proxy.sync(&lab.table, &BTreeSet::new(), true).unwrap().writes > 0);
        assert_eq!(lab.proxy.sync(&lab.table, &BTreeSet::new(), true).unwrap().writes, 0);
    });
    parity::proved(parity::Nftables, &["nodePortAddresses", "NodePorts at localhost"]);
}

#[test]
fn foreign_packet_marks_stay_and_the_masquerade_mark_is_cleared() {
    in_lab("nftables::tests::features::foreign_packet_marks_stay_and_the_masquerade_mark_is_cleared", || {
        let mut lab = Lab::new(2);
        lab.serve();
        let nft = Nft::open().unwrap();
        let other = NftTable::new(Family::Inet, "other");
        let mut batch = Batch::new();
        batch.add_table(&other);
        batch.add_chain(&other, &Chain::base("mark", ChainType::Filter, Hook::Prerouting, -150)).add_rule(&other, "mark", rule().set_mark(0x7, 0xff));
        batch.add_chain(&other, &Chain::base("seen", ChainType::Filter, Hook::Postrouting, 300));
        for (mark, mask) in [(0x7, 0xffff), (0x7, 0xff), (0, 0)] {
            // TCP's packets alone: the node's own multicast reports come "from" that link, too.
            batch.add_rule(&other, "seen", rule().iifname("up0").l4proto(6).mark(mark, mask).counter());
        }
        nft.commit(&batch).unwrap();
        lab.set("web", vec![(key("10.96.0.1", 80), vip(Kind::ClusterIp, &[1]))]);
        assert_eq!(asks(&lab.world, WEB), "pod1 sees 10.1.0.1", "masqueraded by our bit");
        let read = || nft.rules(&other, "seen").unwrap().iter().map(|rule| rule.counter.unwrap().0).collect::<Vec<u64>>();
        let even = |counts: &[u64]| counts.iter().all(|count| *count == counts[2]);
        let mut counts = read();
        // The kernel reads rule by rule: a connection's last packets may come between two of them.
        for _ in 0..100 {
            if even(&counts) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
            counts = read();
        }
        assert!(counts[2] > 0 && even(&counts), "each packet leaves with their mark and without our bit: {counts:?}");
    });
    parity::proved(parity::Nftables, &["The start wipes what others made"]);
}

#[test]
fn sticky_clients_leave_backends_removed_while_the_proxy_was_down() {
    in_lab("nftables::tests::features::sticky_clients_leave_backends_removed_while_the_proxy_was_down", || {
        let mut lab = Lab::new(3);
        lab.serve();
        let sticky = |pods: &[u8]| vec![(key("10.96.0.1", 80), Vip { affinity: Some(60), ..vip(Kind::ClusterIp, pods) })];
        lab.set("web", sticky(&[1]));
        assert_eq!(asks(&lab.pods[0], WEB), "pod1 sees 10.1.0.2");
        lab.table.set_service(&Key::new("default", "web"), sticky(&[2]));
        lab.proxy = proxy();
        lab.proxy.sync(&lab.table, &BTreeSet::new(), true).unwrap();
        assert_eq!(asks(&lab.pods[0], WEB), "pod2 sees 10.1.0.2");
    });
}

#[test]
fn cleanup_leaves_nothing() {
    in_lab("nftables::tests::features::cleanup_leaves_nothing", || {
        let mut lab = Lab::new(2);
        let nft = Nft::open().unwrap();
        let other = NftTable::new(Family::Ip, "other");
        let mut batch = Batch::new();
        batch.add_table(&other);
        nft.commit(&batch).unwrap();
        lab.set("web", vec![(key("10.96.0.1", 80), Vip { affinity: Some(60), ..vip(Kind::ClusterIp, &[1]) })]);
        assert_eq!((cleanup().unwrap(), cleanup().unwrap()), (true, false));
        assert_eq!(nft.tables().unwrap(), [other], "what is not ours stays");
    });
    parity::proved(parity::Nftables, &["Clean-up on request"]);
}

#[test]
fn pods_are_identified_by_their_interface() {
    in_lab("nftables::tests::features::pods_are_identified_by_their_interface", || {
        let mut lab = Lab::new(2);
        lab.serve();
        for pods in [Pods::Interface("pods0".into()), Pods::InterfacePrefix("pod".into())] {
            lab.proxy = Nftables::new(Settings::new(vec![ip(NODE)], pods));
            let local =
                Vip { keep_client: true, inside: Some(vip(Kind::NodePort, &[0]).backends), unserved: Unserved::Drop, ..vip(Kind::NodePort, &[]) };
            lab.set("web", vec![(key("10.96.0.1", 80), vip(Kind::ClusterIp, &[1])), (key("node", 30080), local)]);
            lab.proxy.sync(&lab.table, &BTreeSet::new(), true).unwrap();
            assert_eq!(asks(&lab.pods[0], WEB), "pod1 sees 10.1.0.2");
            assert_eq!(asks(&lab.world, WEB), "pod1 sees 10.1.0.1");
            assert_eq!(asks(&lab.pods[1], &format!("{NODE}:30080")), "pod0 sees 10.1.0.3");
            assert_eq!(ask(&format!("{NODE}:30080")), "pod0 sees 10.1.0.1");
        }
    });
}

/// A packet of SCTP that begins an association, as far as a NAT looks at it: ports, no tag, checksum, INIT.
fn sctp_init(from: u16, to: u16) -> Vec<u8> {
    let chunk = [&[1, 0, 0, 20][..], &7u32.to_be_bytes(), &65_536u32.to_be_bytes(), &[0, 1, 0, 1], &1u32.to_be_bytes()].concat();
    let mut packet = [&from.to_be_bytes()[..], &to.to_be_bytes(), &[0; 8], &chunk].concat();
    let crc = !packet
        .iter()
        .fold(!0u32, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 }));
    packet[8..12].copy_from_slice(&crc.to_le_bytes());
    packet
}

#[test]
fn sctp_reaches_its_backend_and_is_refused_without_one() {
    in_lab("nftables::tests::features::sctp_reaches_its_backend_and_is_refused_without_one", || {
        use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrV4, SocketType, bind, ipproto, recv, sendto, socket, sockopt};
        // This kernel may have no SCTP sockets: raw ones see what arrives.
        let raw = |ns: &NetNs| {
            let fd = ns.run(|| socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::SCTP)).unwrap()).unwrap();
            sockopt::set_socket_timeout(&fd, sockopt::Timeout::Recv, Some(Duration::from_millis(400))).unwrap();
            fd
        };
        let mut lab = Lab::new(2);
        let sctp = VipKey { protocol: Protocol::Sctp, ..key("10.96.0.1", 9000) };
        lab.set("web", vec![(sctp, vip(Kind::ClusterIp, &[1]))]);
        let (client, server) = (raw(&lab.pods[0]), raw(&lab.pods[1]));
        bind(&client, &SocketAddrV4::new([10, 1, 0, 2].into(), 0)).unwrap();
        let service = SocketAddrV4::new([10, 96, 0, 1].into(), 0);
        let send = |from: u16| sendto(&client, &sctp_init(from, 9000), SendFlags::empty(), &service).unwrap();
        send(4001);
        let mut packet = [0; 256];
        let (n, _) = recv(&server, &mut packet, RecvFlags::empty()).expect("the packet at the backend");
        let header = usize::from(packet[0] & 15) * 4;
        assert_eq!(
            (&packet[12..16], &packet[header..n]),
            (&[10, 1, 0, 2][..], &sctp_init(4001, 8080)[..]),
            "client kept, port and checksum translated"
        );
        lab.set("web", vec![(sctp, vip(Kind::ClusterIp, &[]))]);
        send(4002);
        assert!(recv(&server, &mut packet, RecvFlags::empty()).is_err(), "nobody gets it");
        let refused = lab.pods[0].run(|| std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap()).unwrap();
        let icmp: Vec<&str> = refused.lines().filter(|line| line.starts_with("Icmp:")).collect();
        let at = icmp[0].split(' ').position(|name| name == "InDestUnreachs").unwrap();
        assert_eq!(icmp[1].split(' ').nth(at), Some("1"), "the client is refused");
    });
    parity::proved(parity::Nftables, &["SCTP"]);
}
