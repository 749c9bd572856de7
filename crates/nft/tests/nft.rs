//! nf_tables against a real kernel; what is written is read back by nft(8) too.
#![cfg(target_os = "linux")]

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, TcpStream, UdpSocket};
use std::process::Command;
use std::time::Duration;

use ipnet::IpNet;
use linux_sys::conntrack::{self, Conntrack};
use linux_sys::netlink::Rtnl;
use linux_sys::ns::{NetNs, in_lab};
use linux_sys::sysctl;
use nft::*;
use test_lab::net::{greeting, neighbour, route, serve_tcp};
use test_lab::{LIMIT, until};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// The rule set as nft(8) prints it.
fn listing() -> String {
    let out = Command::new("nft").args(["list", "ruleset"]).output().expect("nft(8) is installed for tests");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn json() -> String {
    String::from_utf8(Command::new("nft").args(["-j", "list", "ruleset"]).output().unwrap().stdout).unwrap()
}

const ADDR_PROTO_PORT: [DataType; 3] = [DataType::Ipv4Addr, DataType::InetProto, DataType::InetService];

#[test]
#[expect(clippy::too_many_lines, reason = "one ruleset with every kind of rule, read back as a whole")]
fn nft_reads_what_we_write() {
    in_lab("nft_reads_what_we_write", || {
        let nft = Nft::open().unwrap();
        let t = Table::new(Family::Inet, "all");
        let mut b = Batch::new();
        b.destroy_table(&t).add_table(&t);
        b.add_chain(&t, &Chain::base("pre", ChainType::Nat, Hook::Prerouting, -100));
        b.add_chain(&t, &Chain::base("post", ChainType::Nat, Hook::Postrouting, 100));
        b.add_chain(&t, &Chain::base("out", ChainType::Nat, Hook::Output, -100));
        b.add_chain(&t, &Chain::base("fwd", ChainType::Filter, Hook::Forward, 0).policy_drop());
        b.add_chain(&t, &Chain::regular("aux"));
        b.add_set(&t, &SetSpec::set("nets", [DataType::Ipv4Addr]).interval());
        b.add_set(&t, &SetSpec::set("areas", [DataType::Ipv4Addr, DataType::InetService]).interval());
        b.add_set(&t, &SetSpec::set("links", [DataType::IfName]));
        b.add_set(&t, &SetSpec::map("services", ADDR_PROTO_PORT, [DataType::Ipv4Addr, DataType::InetService]));
        b.add_set(&t, &SetSpec::map("counts", ADDR_PROTO_PORT, [DataType::Mark, DataType::Mark]));
        b.add_set(&t, &SetSpec::vmap("ports", [DataType::InetService]));
        b.add_set(&t, &SetSpec::map("clients", [DataType::Ipv4Addr], [DataType::Mark]).dynamic(1000, Some(Duration::from_secs(60))));
        b.add_elements(
            &t,
            "nets",
            &[Element::net(net("10.0.0.0/8")), Element::range(Key::new().ip(ip("192.0.2.1")), Key::new().ip(ip("192.0.2.9")))],
        );
        let corner = |address: &str, port| Key::new().ip(ip(address)).port(port);
        b.add_elements(&t, "areas", &[Element::area(corner("10.0.0.0", 80), corner("10.0.0.255", 90))]);
        b.add_elements(&t, "links", &[Element::new(Key::new().ifname("eth0"))]);
        let key = |port| Key::new().ip(ip("10.96.0.1")).proto(6).port(port);
        b.add_elements(&t, "services", &[Element::new(key(443)).data(Key::new().ip(ip("10.240.0.2")).port(6443))]);
        b.add_elements(&t, "counts", &[Element::new(key(443)).data(Key::new().mark(3).mark(0x4000))]);
        b.add_elements(
            &t,
            "ports",
            &[Element::new(Key::new().port(22)).data(Verdict::Drop), Element::new(Key::new().port(80)).data(Verdict::Goto("aux".into()))],
        );
        b.add_rule(
            &t,
            "pre",
            rule()
                .nfproto(Family::Ip)
                .load_ip_daddr(0)
                .load_l4proto(1)
                .load_dport(2)
                .lookup_data("services", 0, 4)
                .dnat(Family::Ip, 4, Some(5))
                .comment("services"),
        );
        b.add_rule(&t, "out", rule().nfproto(Family::Ip).l4proto(6).dport(8080).dnat_to("10.0.0.7:80".parse().unwrap()));
        b.add_rule(&t, "post", rule().mark(0x4000, 0x4000).masquerade());
        b.add_rule(&t, "post", rule().nfproto(Family::Ip).ip_saddr(net("10.1.0.0/16")).ip_daddr_not(net("10.1.0.0/16")).snat_to(ip("10.240.0.11")));
        b.add_rule(&t, "fwd", rule().ct_state(ct_state::ESTABLISHED | ct_state::RELATED).counter().accept());
        b.add_rule(&t, "fwd", rule().iifname("eth0").oifname_not("eth1").set_mark(0x10, 0xf0).set_ct_mark(0x1, 0xf).jump("aux"));
        b.add_rule(&t, "fwd", rule().nfproto(Family::Ip).load_ip_saddr(0).lookup("nets", 0).l4proto(6).load_dport(0).vmap("ports", 0));
        b.add_rule(&t, "fwd", rule().l4proto(6).reject(RejectKind::TcpReset));
        b.add_rule(&t, "fwd", rule().nfproto(Family::Ip).daddr_is_local().reject(RejectKind::Port));
        b.add_rule(&t, "aux", rule().ct_status(ct_status::DNAT).ct_mark(1, 0xf).return_());
        let remember = Expr::Dynset { set: "clients".into(), op: DynsetOp::Update, key: 0, data: Some(1), timeout: Some(Duration::from_secs(30)) };
        b.add_rule(&t, "aux", rule().nfproto(Family::Ip).load_ip_saddr(0).load_random(4, 1).expr(remember));
        b.add_rule(
            &t,
            "aux",
            rule().nfproto(Family::Ip).load_ip_saddr(0).expr(Expr::Hash { from: 0, len: 4, modulus: 8, seed: 7, offset: 0, reg: 1 }).set_mark_from(1),
        );
        nft.commit(&b).unwrap();
        let text = listing();
        for expected in [
            "type nat hook prerouting priority dstnat; policy accept;",
            "type filter hook forward priority filter; policy drop;",
            "elements = { 10.0.0.0/8, 192.0.2.1-192.0.2.9 }",
            "elements = { 10.0.0.0/24 . 80-90 }",
            "elements = { \"eth0\" }",
            "elements = { 10.96.0.1 . tcp . 443 : 10.240.0.2 . 6443 }",
            "elements = { 10.96.0.1 . tcp . 443 : 0x00000003 . 0x00004000 }",
            "elements = { 22 : drop, 80 : goto aux }",
            "dnat ip to ip daddr . meta l4proto . th dport map @services comment \"services\"",
            "tcp dport 8080 dnat ip to 10.0.0.7:80",
            "meta mark & 0x00004000 == 0x00004000 masquerade",
            "ip saddr 10.1.0.0/16 ip daddr != 10.1.0.0/16 snat ip to 10.240.0.11",
            "ct state established,related counter packets 0 bytes 0 accept",
            "iifname \"eth0\" oifname != \"eth1\" meta mark set meta mark & 0xffffff1f | 0x00000010",
            "ip saddr @nets tcp dport vmap @ports",
            "reject with tcp reset",
            "fib daddr type local reject",
            "ct status dnat ct mark & 0x0000000f == 0x00000001 return",
            "update @clients { ip saddr timeout 30s : numgen random mod 4 }",
            "jhash ip saddr mod 8 seed 0x7",
        ] {
            assert!(text.contains(expected), "missing: {expected}\n{text}");
        }
        assert!(json().starts_with("{\"nftables\""));

        assert!(nft.tables().unwrap().contains(&t));
        assert_eq!(nft.chains(&t).unwrap().iter().filter(|c| c.base).count(), 4);
        assert!(nft.sets(&t).unwrap().contains(&SetInfo { name: "ports".into(), map: true }));
        assert_eq!(nft.elements(&t, "nets").unwrap()[0], Element::net(net("10.0.0.0/8")));
        assert_eq!(nft.elements(&t, "areas").unwrap(), [Element::area(corner("10.0.0.0", 80), corner("10.0.0.255", 90))]);
        assert_eq!(nft.elements(&t, "ports").unwrap()[1].data, Some(Data::Verdict(Verdict::Goto("aux".into()))));
        let rules = nft.rules(&t, "pre").unwrap();
        assert_eq!((rules.len(), rules[0].comment.as_deref()), (1, Some("services")));
        assert_eq!(nft.rules(&t, "fwd").unwrap()[0].counter, Some((0, 0)));

        let mut change = Batch::new();
        change.del_rule(&t, "pre", rules[0].handle).flush_chain(&t, "fwd").flush_set(&t, "nets");
        change.del_elements(&t, "areas", &[Element::area(corner("10.0.0.0", 80), corner("10.0.0.255", 90))]);
        change.flush_chain(&t, "aux").del_elements(&t, "ports", &[Element::new(Key::new().port(80))]).del_chain(&t, "aux").del_set(&t, "links");
        nft.commit(&change).unwrap();
        assert!(nft.rules(&t, "pre").unwrap().is_empty() && nft.elements(&t, "nets").unwrap().is_empty());
        assert!(nft.elements(&t, "gone").unwrap_err().is_not_found());
        let mut end = Batch::new();
        end.destroy_table(&t).destroy_table(&t);
        nft.commit(&end).unwrap();
        assert_eq!(listing(), "");
        nft.commit(&Batch::new()).expect("an empty batch is nothing");
    });
}

#[test]
fn a_refused_transaction_names_its_operation_and_leaves_nothing() {
    in_lab("a_refused_transaction_names_its_operation_and_leaves_nothing", || {
        let nft = Nft::open().unwrap();
        let t = Table::new(Family::Ip, "t");
        let mut b = Batch::new();
        b.add_table(&t).add_chain(&t, &Chain::regular("c")).add_rule(&t, "none", rule().accept()).add_rule(&t, "c", rule().accept());
        let e = nft.commit(&b).unwrap_err();
        assert!(matches!(&e, NftError::Refused { index: Some(2), .. }), "{e:?}");
        assert!(e.to_string().contains("add rule to chain ip t none") && e.is_not_found(), "{e}");
        assert_eq!(nft.tables().unwrap(), [], "nothing of it took effect");

        let mut b = Batch::new();
        let element = |to: u16| Element::new(Key::new().port(1)).data(Key::new().port(to));
        b.add_table(&t).add_set(&t, &SetSpec::map("m", [DataType::InetService], [DataType::InetService])).add_elements(&t, "m", &[element(7)]);
        nft.commit(&b).unwrap();
        let mut again = Batch::new();
        again.add_elements(&t, "m", &[element(7)]);
        nft.commit(&again).expect("an equal element is fine");
        let mut other = Batch::new();
        other.add_elements(&t, "m", &[element(8)]);
        assert!(nft.commit(&other).unwrap_err().is_exists());
        let mut replaced = Batch::new();
        replaced.del_elements(&t, "m", &[element(7)]).add_elements(&t, "m", &[element(8)]);
        nft.commit(&replaced).unwrap();
        assert_eq!(nft.elements(&t, "m").unwrap(), [element(8)]);
        // After a failure the socket is in step again.
        assert_eq!(nft.tables().unwrap(), [t]);
    });
}

/// `addr . proto . port` of service `i`.
fn service(i: u32) -> Key {
    Key::new().ip(IpAddr::V4(Ipv4Addr::from(0x0a60_0000 + i / 4))).proto(6).port((i % 4) as u16 + 80)
}

/// What this thread has used of a processor: what others do on the machine does not count.
fn processor_time() -> Duration {
    use nix::sys::resource::{UsageWho, getrusage};
    let used = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
    let micros = |time: nix::sys::time::TimeVal| Duration::new(time.tv_sec() as u64, time.tv_usec() as u32 * 1000);
    micros(used.user_time()) + micros(used.system_time())
}

#[test]
fn ten_thousand_elements_and_a_change() {
    in_lab("ten_thousand_elements_and_a_change", || {
        let nft = Nft::open().unwrap();
        let t = Table::new(Family::Ip, "big");
        let mut b = Batch::new();
        b.add_table(&t).add_set(&t, &SetSpec::map("m", ADDR_PROTO_PORT, [DataType::Ipv4Addr, DataType::InetService]));
        let all: Vec<_> = (0..10_000).map(|i| Element::new(service(i)).data(Key::new().ip(ip("10.0.0.1")).port(i as u16))).collect();
        b.add_elements(&t, "m", &all);
        let start = processor_time();
        nft.commit_in_parts(&b).unwrap();
        let full = processor_time() - start;
        let mut sorted = all.clone();
        sorted.sort();
        // While the kernel grows a hash table, a dump of it may leave elements out.
        until("a complete dump", || nft.elements(&t, "m").unwrap() == sorted);
        let start = processor_time();
        const CHANGES: u32 = 100;
        for i in 0..CHANGES {
            let mut change = Batch::new();
            let element = Element::new(service(i)).data(Key::new().ip(ip("10.0.0.2")).port(1));
            change.del_elements(&t, "m", std::slice::from_ref(&element)).add_elements(&t, "m", &[element]);
            nft.commit(&change).unwrap();
        }
        let each = (processor_time() - start) / CHANGES;
        println!("10,000 elements: {full:?} in full, {each:?} a change");
        // A commit waits for the kernel's grace period at worst, and never works through the map.
        assert!(each < full / 20, "{full:?} in full, {each:?} a change");
    });
}

/// In a user namespace the send buffer is bounded by `net.core.wmem_max`.
#[test]
fn large_batches_are_committed_in_parts() {
    in_lab("large_batches_are_committed_in_parts", || {
        let limit: u32 = sysctl::get("net.core.wmem_max").map_or(212_992, |text| text.parse().unwrap());
        let count = limit * 2 / 36;
        let (nft, t) = (Nft::open().unwrap(), Table::new(Family::Ip, "big"));
        let mut b = Batch::new();
        b.add_table(&t).add_set(&t, &SetSpec::map("m", ADDR_PROTO_PORT, [DataType::Ipv4Addr, DataType::InetService]));
        let all: Vec<_> = (0..count).map(|i| Element::new(service(i)).data(Key::new().ip(ip("10.0.0.1")).port(1))).collect();
        b.add_elements(&t, "m", &all);
        let e = nft.commit(&b).unwrap_err();
        assert!(matches!(e, NftError::TooLarge { bytes, limit } if bytes > limit), "{e}");
        nft.commit_in_parts(&b).unwrap();
        // Deleting fails unless all are there. (Listing so many takes the kernel seconds.)
        let mut ends = Batch::new();
        ends.del_elements(&t, "m", &[&all[..100], &all[all.len() - 100..]].concat());
        nft.commit(&ends).unwrap();
    });
}

/// Load balancing by data maps: address·protocol·port → how many; with a random slot → address·port.
#[test]
fn data_maps_spread_connections() {
    in_lab("data_maps_spread_connections", || {
        let router = NetNs::current().unwrap();
        let far = neighbour(("near", &["10.1.0.1/24"]), ("far", &["10.1.0.2/24", "10.1.0.3/24", "10.1.0.4/24"]));
        route(&Rtnl::open().unwrap(), "10.96.0.0/16", "10.1.0.2");
        sysctl::set("net.ipv4.ip_forward", "1").unwrap();
        let t = Table::new(Family::Ip, "lb");
        let slots = [ADDR_PROTO_PORT.to_vec(), vec![DataType::Mark]].concat();
        let mut b = Batch::new();
        b.add_table(&t).add_chain(&t, &Chain::base("out", ChainType::Nat, Hook::Output, -100));
        b.add_set(&t, &SetSpec::vmap("spread", [DataType::Mark]));
        b.add_set(&t, &SetSpec::map("counts", ADDR_PROTO_PORT, [DataType::Mark]));
        b.add_set(&t, &SetSpec::map("slots", slots, [DataType::Ipv4Addr, DataType::InetService]));
        for n in 1..=3 {
            // One chain a number of backends, shared by all services with that number.
            let chain = format!("of-{n}");
            b.add_chain(&t, &Chain::regular(&*chain));
            let load = rule().load_ip_daddr(0).load_l4proto(1).load_dport(2).load_random(n, 3);
            b.add_rule(&t, &chain, load.lookup_data("slots", 0, 4).dnat(Family::Ip, 4, Some(5)));
            b.add_elements(&t, "spread", &[Element::new(Key::new().mark(n)).data(Verdict::Goto(chain))]);
        }
        let service = Key::new().ip(ip("10.96.0.1")).proto(6).port(80);
        b.add_elements(&t, "counts", &[Element::new(service.clone()).data(Key::new().mark(3))]);
        for (slot, backend) in (0..).zip(["10.1.0.2", "10.1.0.3", "10.1.0.4"]) {
            b.add_elements(&t, "slots", &[Element::new(service.clone().mark(slot)).data(Key::new().ip(ip(backend)).port(8080))]);
        }
        b.add_rule(&t, "out", rule().load_ip_daddr(0).load_l4proto(1).load_dport(2).lookup_data("counts", 0, 4).vmap("spread", 4));
        Nft::open_in(&router).unwrap().commit(&b).unwrap();
        serve_tcp(&far, "0.0.0.0:8080", |mut stream, _| {
            let address = stream.local_addr()?.ip();
            write!(stream, "{address}")
        });
        let mut hits = std::collections::BTreeMap::<String, u32>::new();
        for _ in 0..60 {
            *hits.entry(greeting(&router, "10.96.0.1:80", LIMIT).unwrap()).or_default() += 1;
        }
        assert_eq!(hits.keys().collect::<Vec<_>>(), ["10.1.0.2", "10.1.0.3", "10.1.0.4"], "all three of them: {hits:?}");
    });
}

/// A datagram to `port` of the loopback, and the error that comes back.
fn datagram_error(port: u16) -> Option<i32> {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    // Without it only final errors are reported.
    nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::Ipv4RecvErr, &true).unwrap();
    socket.connect(("127.0.0.1", port)).unwrap();
    socket.send(b"x").unwrap();
    socket.recv(&mut [0; 8]).unwrap_err().raw_os_error()
}

/// Each kind of refusal reaches the sender as its own error, in tables of one family and of both.
#[test]
fn refusals_reach_the_sender() {
    in_lab("refusals_reach_the_sender", || {
        let nft = Nft::open().unwrap();
        for family in [Family::Ip, Family::Inet] {
            let t = Table::new(family, "refuse");
            let mut b = Batch::new();
            b.destroy_table(&t).add_table(&t).add_chain(&t, &Chain::base("in", ChainType::Filter, Hook::Input, 0));
            let kinds = [(1001, RejectKind::Port), (1002, RejectKind::Host), (1003, RejectKind::Net), (1004, RejectKind::Prohibited)];
            for (port, kind) in kinds {
                b.add_rule(&t, "in", rule().l4proto(17).dport(port).reject(kind));
            }
            b.add_rule(&t, "in", rule().l4proto(6).dport(1005).reject(RejectKind::TcpReset));
            nft.commit(&b).unwrap();
            let errors: Vec<_> = kinds.iter().map(|(port, _)| datagram_error(*port)).collect();
            assert_eq!(errors, [libc::ECONNREFUSED, libc::EHOSTUNREACH, libc::ENETUNREACH, libc::EHOSTUNREACH].map(Some), "{family}");
            let error = TcpStream::connect_timeout(&"127.0.0.1:1005".parse().unwrap(), LIMIT).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ECONNREFUSED), "{family}");
            let mut b = Batch::new();
            b.del_table(&t);
            nft.commit(&b).unwrap();
        }
    });
}

/// A client that goes on sending keeps its translation until it is forgotten.
#[test]
fn forgotten_datagrams_are_translated_anew() {
    in_lab("forgotten_datagrams_are_translated_anew", || {
        let nft = Nft::open().unwrap();
        let t = Table::new(Family::Ip, "to");
        let servers = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let send_to = |server: &UdpSocket| {
            let mut b = Batch::new();
            b.destroy_table(&t).add_table(&t).add_chain(&t, &Chain::base("out", ChainType::Nat, Hook::Output, -100));
            b.add_rule(&t, "out", rule().ip_daddr(net("127.0.0.5/32")).l4proto(17).dport(53).dnat_to(server.local_addr().unwrap()));
            nft.commit(&b).unwrap();
        };
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect("127.0.0.5:53").unwrap();
        let arrives = |server: &UdpSocket, patience: Duration| {
            client.send(b"x").unwrap();
            server.set_read_timeout(Some(patience)).unwrap();
            server.recv(&mut [0; 8]).is_ok()
        };
        send_to(&servers[0]);
        assert!(arrives(&servers[0], LIMIT));
        send_to(&servers[1]);
        assert!(!arrives(&servers[1], Duration::from_millis(300)), "the translation stays");
        let conntrack = Conntrack::open().unwrap();
        let count = conntrack.forget_where(conntrack::UDP, |flow| flow.destination == "127.0.0.5:53".parse().unwrap()).unwrap();
        assert_eq!(count, 1);
        assert!(arrives(&servers[1], LIMIT));
    });
}

/// Whoever changes rules is noticed; packets that make rules add elements are not.
#[test]
fn generation_changes_when_others_change_rules() {
    in_lab("generation_changes_when_others_change_rules", || {
        let (nft, other) = (Nft::open().unwrap(), Nft::open().unwrap());
        let t = Table::new(Family::Ip, "other");
        let before = nft.generation().unwrap();
        assert_eq!(nft.generation().unwrap(), before);
        let mut b = Batch::new();
        b.add_table(&t).add_set(&t, &SetSpec::set("seen", [DataType::InetService]).dynamic(16, None));
        b.add_chain(&t, &Chain::base("out", ChainType::Filter, Hook::Output, 0));
        b.add_rule(
            &t,
            "out",
            rule().l4proto(17).load_dport(0).expr(Expr::Dynset { set: "seen".into(), op: DynsetOp::Update, key: 0, data: None, timeout: None }),
        );
        other.commit(&b).unwrap();
        let after = nft.generation().unwrap();
        assert_ne!(after, before);
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"x", "127.0.0.1:9").unwrap();
        assert_eq!(nft.elements(&t, "seen").unwrap().len(), 1);
        assert_eq!(nft.generation().unwrap(), after);
    });
}
