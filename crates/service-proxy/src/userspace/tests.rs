use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket as StdUdp};
use std::time::Instant;

use cluster::Key;
use host::LinuxAddresses;
use linux_sys::netlink::Rtnl;
use linux_sys::ns::{NetNs, in_lab};
use test_lab::{LIMIT, same, until};

use super::*;
use crate::flows::{self, Flows};
use crate::table::BackendAddress;

/// The host has an interface for Services, and backends at addresses of the loopback.
struct Lab {
    table: Table,
    proxy: Option<Userspace>,
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn proxy() -> Userspace {
    Userspace::new(settings())
}

fn settings() -> Settings {
    Settings {
        interface: Some(Arc::new(LinuxAddresses::open("svc0").unwrap())),
        node_ips: vec![ip("10.240.0.11")],
        node_ports: NodePorts::Nets(vec!["127.0.0.0/8".parse().unwrap(), "10.240.0.0/16".parse().unwrap()]),
        pods: vec!["10.1.0.0/16".parse().unwrap()],
        udp_idle: Duration::from_secs(3600),
    }
}

fn there() -> Vec<String> {
    let rtnl = Rtnl::open().unwrap();
    let index = rtnl.link("svc0").unwrap().unwrap().index;
    let all = rtnl.addrs(index).unwrap();
    all.iter().map(|net| net.addr()).filter(|ip| !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())).map(|ip| ip.to_string()).collect()
}

impl Lab {
    fn new() -> Self {
        let rtnl = Rtnl::open().unwrap();
        rtnl.add_bridge("svc0").unwrap();
        let index = rtnl.link("svc0").unwrap().unwrap().index;
        rtnl.add_addr(index, "10.240.0.11/24".parse().unwrap()).unwrap();
        rtnl.set_up(index).unwrap();
        let mut lab = Self { table: Table::default(), proxy: Some(proxy()) };
        lab.sync(true);
        lab
    }

    fn sync(&mut self, full: bool) -> Outcome {
        self.proxy.as_mut().unwrap().sync(&self.table, &BTreeSet::new(), full).unwrap()
    }

    fn set(&mut self, service: &str, vips: Vec<(VipKey, Vip)>) -> Outcome {
        let changes = self.table.set_service(&Key::new("default", service), vips);
        let dirty = changes.into_iter().map(|change| change.key).collect();
        self.proxy.as_mut().unwrap().sync(&self.table, &dirty, false).unwrap()
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn key(address: &str, port: u16) -> VipKey {
    let address = if address == "node" { VipAddress::Node(IpFamily::V4) } else { VipAddress::Ip(ip(address)) };
    VipKey { address, protocol: Protocol::Tcp, port }
}

fn vip(backends: &[SocketAddr]) -> Vip {
    let backends = backends.iter().map(|at| BackendAddress { address: at.ip(), port: at.port(), local: true }).collect();
    Vip { backends, ..Vip::new("default/web:80", Kind::ClusterIp) }
}

/// Says its name, then what it hears, until the other side is done; then that it heard so.
fn server(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut buffer = [0; 65_536];
                let mut talk = || -> io::Result<()> {
                    stream.write_all(name.as_bytes())?;
                    loop {
                        match stream.read(&mut buffer)? {
                            0 => return stream.write_all(b"."),
                            n => stream.write_all(&buffer[..n])?,
                        }
                    }
                };
                let _ = talk();
            });
        }
    });
    at
}

fn ask(to: &str) -> String {
    let talk = || -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&to.parse().unwrap(), LIMIT)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.write_all(b"-hello")?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    talk().unwrap_or_else(|error| error.kind().to_string())
}

/// Waits until nothing listens here any more: listeners end a moment after they are asked to.
fn settle(all: &[&str]) {
    for at in all {
        until(format_args!("nothing listens at {at}"), || {
            let heard = ask(at);
            if heard.contains("refused") || heard.contains("unreachable") { Ok(()) } else { Err(heard) }
        });
    }
}

#[test]
fn connections_are_relayed_both_ways_and_addresses_follow_services() {
    in_lab("userspace::tests::connections_are_relayed_both_ways_and_addresses_follow_services", || {
        let runtime = runtime();
        let _inside = runtime.enter();
        let (a, b) = (server("a"), server("b"));
        let mut lab = Lab::new();
        let served = lab.set("web", vec![(key("10.96.0.1", 80), vip(&[a, b])), (key("fd00:96::1", 80), vip(&[a])), (key("node", 30080), vip(&[b]))]);
        assert_eq!((served.writes, served.failures), (4, vec![]), "two node ports: of the node and of localhost");
        assert_eq!(there(), ["10.240.0.11", "10.96.0.1", "fd00:96::1"]);
        let mut answers = [ask("10.96.0.1:80"), ask("10.96.0.1:80")];
        answers.sort();
        assert_eq!(answers, ["a-hello.", "b-hello."], "the end of a client's data is passed on, the answer comes back");
        // The kernel routes to a new address of IPv6 a moment after it took it.
        until("a route of IPv6", || same(ask("[fd00:96::1]:80"), &"a-hello."));
        assert_eq!([ask("[fd00:96::1]:80"), ask("10.240.0.11:30080"), ask("127.0.0.1:30080")], ["a-hello.", "b-hello.", "b-hello."]);
        assert_eq!(ask("10.96.0.1:81"), "connection refused");
        // Much more than any buffer on the way.
        let mut stream = TcpStream::connect("[fd00:96::1]:80").unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut writer = stream.try_clone().unwrap();
        let sent: Vec<u8> = (0..8_000_000u32).flat_map(u32::to_le_bytes).collect();
        let copy = sent.clone();
        let writing = std::thread::spawn(move || writer.write_all(&copy).and_then(|()| writer.shutdown(std::net::Shutdown::Write)));
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).unwrap();
        writing.join().unwrap().unwrap();
        assert!(heard[0] == b'a' && heard[1..heard.len() - 1] == sent, "{} bytes of {}", heard.len(), sent.len() + 2);
        // Nobody serves; then the Service goes.
        lab.set("web", vec![(key("10.96.0.1", 80), vip(&[])), (key("fd00:96::1", 80), vip(&[a]))]);
        settle(&["10.96.0.1:80", "127.0.0.1:30080"]);
        lab.set("web", vec![]);
        runtime.block_on(lab.proxy.take().unwrap().drain(Duration::ZERO));
        assert_eq!(there(), ["10.240.0.11"]);
    });
    parity::proved(parity::Userspace, &["NodePorts at localhost"]);
}

#[test]
fn dead_backends_are_skipped_and_unserved_vips_report_why() {
    in_lab("userspace::tests::dead_backends_are_skipped_and_unserved_vips_report_why", || {
        let runtime = runtime();
        let _inside = runtime.enter();
        let mut lab = Lab::new();
        let dead: SocketAddr = "127.0.0.1:9".parse().unwrap();
        lab.set("web", vec![(key("10.96.0.1", 80), vip(&[dead, server("a"), "127.0.0.1:10".parse().unwrap()]))]);
        assert!((0..6).all(|_| ask("10.96.0.1:80") == "a-hello."));
        lab.set("web", vec![(key("10.96.0.1", 80), vip(&[dead]))]);
        assert_eq!(ask("10.96.0.1:80"), "connection reset");
        let guarded = Vip { sources: Some(["192.0.2.0/24".parse().unwrap()].into()), ..vip(&[server("a")]) };
        lab.set("web", vec![(key("10.96.0.1", 80), guarded)]);
        assert_eq!(ask("10.96.0.1:80"), "connection reset", "a foreign client");
        let _taken = TcpListener::bind("10.240.0.11:30080").unwrap();
        let sctp = VipKey { protocol: Protocol::Sctp, ..key("10.96.0.1", 80) };
        let reasons = lab.set("odd", vec![(sctp, vip(&[dead])), (key("node", 30080), vip(&[dead]))]).failures;
        let reasons: Vec<String> = reasons.iter().map(|failure| format!("{}: {}", failure.key, failure.reason)).collect();
        assert!(reasons[0].contains("10.96.0.1:80/sctp: SCTP is not carried"), "{reasons:?}");
        assert!(reasons[1].contains("10.240.0.11:30080 is taken by another program"), "{reasons:?}");
        let nowhere =
            Userspace::new(Settings { interface: None, node_ips: vec![], node_ports: NodePorts::Primary, pods: vec![], udp_idle: Duration::ZERO })
                .sync(&lab.table, &[key("10.96.0.9", 80)].into(), false);
        assert_eq!(nowhere.unwrap(), Outcome::default(), "not in the table");
        lab.set("web", vec![]);
        lab.table.set_service(&Key::new("default", "web"), vec![(key("10.96.0.9", 80), vip(&[dead]))]);
        let mut bare =
            Userspace::new(Settings { interface: None, node_ips: vec![], node_ports: NodePorts::Primary, pods: vec![], udp_idle: Duration::ZERO });
        let failures = bare.sync(&lab.table, &[key("10.96.0.9", 80)].into(), false).unwrap().failures;
        assert!(failures[0].reason.contains("--service-interface"), "{failures:?}");
    });
    parity::proved(parity::Userspace, &["SCTP", "loadBalancerSourceRanges"]);
}

fn echo(name: &'static str) -> SocketAddr {
    let socket = StdUdp::bind("127.0.0.1:0").unwrap();
    let at = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((n, peer)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&[name.as_bytes(), &buffer[..n]].concat(), peer);
        }
    });
    at
}

#[test]
fn datagrams_are_answered_and_follow_their_service() {
    in_lab("userspace::tests::datagrams_are_answered_and_follow_their_service", || {
        let runtime = runtime();
        let _inside = runtime.enter();
        let mut lab = Lab::new();
        let dns = VipKey { protocol: Protocol::Udp, ..key("10.96.0.10", 53) };
        let (a, b) = (echo("a"), echo("b"));
        assert_eq!(lab.set("dns", vec![(dns, vip(&[a]))]).failures, vec![]);
        let client = || {
            let socket = StdUdp::bind("10.240.0.11:0").unwrap();
            socket.set_read_timeout(Some(LIMIT)).unwrap();
            // A connected socket hears nobody but the Service.
            socket.connect("10.96.0.10:53").unwrap();
            socket
        };
        let says = |socket: &StdUdp, text: &str| {
            let mut buffer = [0; 64];
            socket.send(text.as_bytes()).unwrap();
            socket.recv(&mut buffer).map_or_else(|error| error.kind().to_string(), |n| String::from_utf8_lossy(&buffer[..n]).into_owned())
        };
        let clients: Vec<StdUdp> = (0..50).map(|_| client()).collect();
        for (n, client) in clients.iter().enumerate() {
            assert_eq!(says(client, &n.to_string()), format!("a{n}"));
        }
        let with_sessions = std::fs::read_dir("/proc/self/fd").unwrap().count();
        lab.set("dns", vec![(dns, vip(&[b]))]);
        assert_eq!(says(&clients[7], "again"), "bagain", "its backend went");
        // An idle session ends, and its socket with it.
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        runtime.block_on(lab.proxy.take().unwrap().drain(Duration::ZERO));
        lab.proxy = Some(Userspace::new(Settings { udp_idle: Duration::from_millis(300), ..settings() }));
        // The old socket holds its address for a moment more.
        until("the address is free", || same(lab.sync(true).failures, &vec![]));
        let before = until("sockets of the old sessions are closed", || Some(open()).filter(|open| *open < with_sessions - 45));
        for (n, client) in clients.iter().enumerate() {
            assert_eq!(says(client, &n.to_string()), format!("b{n}"));
        }
        until("idle sessions end with their sockets", || open() <= before);
        assert_eq!(says(&clients[7], "awake"), "bawake");
        lab.set("dns", vec![(dns, Vip { unserved: Unserved::Drop, ..vip(&[]) })]);
        clients[7].set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        assert!(clients[7].send(b"x").and_then(|_| clients[7].recv(&mut [0; 8])).is_err());
    });
    parity::proved(parity::Userspace, &["UDP clients that never pause follow the Service"]);
}

#[test]
fn connections_outlive_changes_and_draining_waits_for_them() {
    in_lab("userspace::tests::connections_outlive_changes_and_draining_waits_for_them", || {
        let runtime = runtime();
        let _inside = runtime.enter();
        let mut lab = Lab::new();
        let (a, b) = (server("a"), server("b"));
        lab.set("web", vec![(key("10.96.0.1", 80), vip(&[a]))]);
        let open = || {
            let mut stream = TcpStream::connect("10.96.0.1:80").unwrap();
            stream.read_exact(&mut [0; 1]).unwrap();
            stream
        };
        let (mut first, second) = (open(), open());
        let lives = |stream: &mut TcpStream| stream.write_all(b"x").is_ok() && stream.read_exact(&mut [0; 1]).is_ok();
        lab.set("web", vec![(key("10.96.0.1", 80), vip(&[b]))]);
        assert!(lives(&mut first), "its backend is no longer listed");
        lab.set("web", vec![]);
        assert!(lives(&mut first) && there().contains(&"10.96.0.1".to_owned()), "the address stays for it");
        settle(&["10.96.0.1:80"]);
        let start = Instant::now();
        let ending = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            drop(first);
        });
        let patience = Duration::from_secs(10);
        let cut = runtime.block_on(lab.proxy.take().unwrap().drain(patience));
        ending.join().unwrap();
        assert_eq!(cut, 1, "one ended by itself, one was cut");
        assert!(start.elapsed() >= patience, "{:?}", start.elapsed());
        assert_eq!(there(), ["10.240.0.11"]);
        drop(second);
    });
    parity::proved(parity::Userspace, &["A restart changes nothing that is right", "Clean-up on request"]);
}

#[test]
fn a_change_costs_its_own_service_only() {
    in_lab("userspace::tests::a_change_costs_its_own_service_only", || {
        let runtime = runtime();
        let _inside = runtime.enter();
        let (a, b) = (server("a"), server("b"));
        let mut lab = Lab::new();
        let many = (0..200u16).map(|n| (key("10.96.9.9", 1000 + n), vip(&[a]))).collect();
        assert_eq!(lab.set("many", many).writes, 200);
        assert_eq!(lab.set("web", vec![(key("10.96.0.1", 80), vip(&[a]))]).writes, 1, "it listens at one more place");
        assert_eq!(ask("10.96.0.1:80"), "a-hello.");
        assert_eq!(lab.set("web", vec![(key("10.96.0.1", 80), vip(&[b]))]).writes, 0, "it listens there already");
        assert_eq!((ask("10.96.0.1:80"), ask("10.96.9.9:1007")), ("b-hello.".into(), "a-hello.".into()));
        assert_eq!(lab.set("web", vec![]).writes, 1);
        assert_eq!(ask("10.96.9.9:1199"), "a-hello.");
    });
    parity::proved(parity::Userspace, &["A change costs its own Service only", "#109162"]);
}

#[test]
fn node_ports_listen_on_chosen_addresses_of_the_node() {
    in_lab("userspace::tests::node_ports_listen_on_chosen_addresses_of_the_node", || {
        let runtime = runtime();
        let _inside = runtime.enter();
        let mut lab = Lab::new();
        for (chosen, answers) in [("127.0.0.0/8", [false, true]), ("10.240.0.0/16", [true, false]), ("0.0.0.0/0", [true, true])] {
            drop(lab.proxy.take());
            settle(&["10.240.0.11:30080", "127.0.0.1:30080"]);
            let node_ports = NodePorts::Nets(vec![chosen.parse().unwrap()]);
            lab.proxy = Some(Userspace::new(Settings { interface: None, node_ips: vec![ip("10.240.0.11")], node_ports, ..settings() }));
            lab.table = Table::default();
            lab.set("web", vec![(key("node", 30080), vip(&[server("a")]))]);
            let heard = ["10.240.0.11:30080", "127.0.0.1:30080"].map(|to| ask(to) == "a-hello.");
            assert_eq!(heard, answers, "{chosen}");
        }
    });
    parity::proved(parity::Userspace, &["nodePortAddresses"]);
}

#[test]
fn a_thousand_connections_outlive_what_happens_to_others() {
    in_lab("userspace::tests::a_thousand_connections_outlive_what_happens_to_others", || {
        let runtime = runtime();
        let _inside = runtime.enter();
        let mut lab = Lab::new();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let kept = listener.local_addr().unwrap();
        flows::echo(listener);
        lab.set("kept", vec![(key("10.96.0.2", 80), vip(&[kept])), (key("node", 30080), vip(&[kept]))]);
        let mut flows = Flows::open(&NetNs::current().unwrap(), &["10.96.0.2:80", "127.0.0.1:30080"], 500);
        assert_eq!((flows.alive(), lab.proxy.as_ref().unwrap().connections()), (1000, 1000));
        let others = |backends: &[SocketAddr]| (1..=50).map(|n| (key(&format!("10.96.9.{n}"), 80), vip(backends))).collect::<Vec<_>>();
        assert_eq!(lab.set("others", others(&[server("a")])).writes, 50);
        assert_eq!((flows.alive(), ask("10.96.9.7:80")), (1000, "a-hello.".into()), "Services come");
        lab.set("others", others(&[server("b")]));
        assert_eq!((flows.alive(), ask("10.96.9.7:80")), (1000, "b-hello.".into()), "their backends change");
        LinuxAddresses::open("svc0").unwrap().delete(ip("10.96.9.7")).unwrap();
        assert_eq!(lab.sync(true).writes, 1);
        assert_eq!(flows.alive(), 1000, "the address of one is lost and comes back");
        lab.set("others", vec![]);
        settle(&["10.96.9.7:80"]);
        assert_eq!(flows.alive(), 1000, "Services go");
        assert_eq!(runtime.block_on(lab.proxy.take().unwrap().drain(Duration::ZERO)), 1000);
        assert_eq!(flows.alive(), 0, "at its end they are cut");
    });
}

#[test]
fn leftovers_of_a_killed_proxy_are_adopted_or_removed() {
    in_lab("userspace::tests::leftovers_of_a_killed_proxy_are_adopted_or_removed", || {
        let runtime = runtime();
        let _inside = runtime.enter();
        let left = LinuxAddresses::open("lo").unwrap();
        drop(left);
        let mut lab = Lab::new();
        let interface = LinuxAddresses::open("svc0").unwrap();
        for address in ["10.96.0.1", "10.96.0.2"] {
            interface.add(ip(address)).unwrap();
        }
        lab.set("web", vec![(key("10.96.0.1", 80), vip(&[server("a")]))]);
        lab.sync(true);
        assert_eq!(there(), ["10.240.0.11", "10.96.0.1"]);
        assert_eq!(ask("10.96.0.1:80"), "a-hello.");
        interface.delete(ip("10.96.0.1")).unwrap();
        assert_eq!(lab.sync(true).writes, 1, "taken away behind our back");
        assert_eq!(ask("10.96.0.1:80"), "a-hello.");
        assert_eq!(lab.sync(true).writes, 0);
        drop(lab.proxy.take());
        assert_eq!(there(), ["10.240.0.11"], "also without draining");
    });
    parity::proved(parity::Userspace, &["Damage by others is repaired", "#135802", "The start wipes what others made"]);
}
