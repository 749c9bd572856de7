//! Packets between pods of two hosts over geneve: central, two chassis with Open vSwitch's userspace datapath, and rows that are all ours.
//!
//! Needs `/dev/net/tun`, Debian's packages ovn-central, ovn-host and openvswitch-switch, ethtool and ping.
#![cfg(target_os = "linux")]

mod api;
mod lab;

use std::net::UdpSocket;
use std::time::Duration;

use api::Api;
use lab::{PATIENCE, address, init, net, node, ping, ping_as, pod, unreported_pod, watch};
use linux_sys::netlink::Rtnl;
use linux_sys::ns::{NetNs, in_lab};
use ovn::helper;
use ovn::init::{self as commands, Databases, GatewaySettings, Node};
use test_lab::net::{Lan, connect, greet, greeting, set_up};
use test_lab::ovn::{Central, Chassis, no_offload, run};
use test_lab::until;

#[test]
fn pods_of_two_hosts_reach_each_other_and_a_service() {
    in_lab("pods_of_two_hosts_reach_each_other_and_a_service", || {
        let (mut central, lan) = (Central::new(), Lan::new());
        let mut hosts = [Chassis::new(&central, &lan, "cp", "10.240.0.11"), Chassis::new(&central, &lan, "lin01", "10.240.0.12")];
        let master = node("cp", "192.168.1.0/24");
        let report = init(&hosts[0], async |databases| commands::master(databases, &master).await).unwrap().to_string();
        assert!(
            report.contains("+ Logical_Router cp") && report.contains("+ Interface k8s-cp") && report.contains("+ Logical_Switch cp"),
            "{report}"
        );
        let taken = node("lin01", "192.168.1.128/25");
        let refused = init(&hosts[1], async |databases| commands::minion(databases, &taken).await).unwrap_err().to_string();
        assert!(refused.contains("192.168.1.128/25 of node lin01 overlaps 192.168.1.0/24 of router port rtos-cp"), "{refused}");
        assert!(!central.nbctl(&["ls-list"]).contains("lin01"), "nothing is written");
        let worker = node("lin01", "192.168.2.0/24");
        tunnels_are_checked(&hosts[1], &worker);
        init(&hosts[1], async |databases| commands::minion(databases, &worker).await).unwrap();
        // Again: there is nothing to do.
        let again = init(&hosts[1], async |databases| commands::minion(databases, &worker).await).unwrap().to_string();
        assert_eq!(again, "Open_vSwitch: nothing to do\nOVN_Northbound: nothing to do\n");
        let api = Api::default();
        api.pod("one", "cp");
        api.pod("two", "lin01");
        watch(&central, &api);
        let (one, two) = (pod(&hosts[0], &api, "one"), pod(&hosts[1], &api, "two"));
        let (first, second) = (address(&api, "one"), address(&api, "two"));
        assert!(first.starts_with("192.168.1.") && second.starts_with("192.168.2."), "{first} {second}");
        // Only the pod's own interface, on its own host, gets its port.
        let options = central.nbctl(&["get", "Logical_Switch_Port", "default_two", "options"]);
        assert!(options.contains("iface-id-ver=uid-of-two") && options.contains("requested-chassis=lin01"), "{options}");
        // The largest packet of the pods' MTU, both ways; and from the other node itself.
        until("a ping between the pods", || ping(&one, &second, 1372));
        until("a ping back", || ping(&two, &first, 1372));
        until("a ping from the other node", || ping(&hosts[0].ns, &second, 1372));
        assert!(ping(&one, &second, 1373).is_err(), "larger than the MTU");
        // A pod has no address but its own.
        set_up(&Rtnl::open_in(&one).unwrap(), "eth0", &["192.168.1.77/24"]);
        assert!(ping_as(&one, "192.168.1.77", &second).is_err(), "with the address of another");
        assert!(ping_as(&one, &first, &second).is_ok());
        // TCP, by the pod's address and by the Service's.
        greet(&two, &format!("{second}:8080"), |peer| format!("hello {peer}"));
        let expected = format!("hello {first}");
        assert_eq!(greeting(&one, &format!("{second}:8080"), PATIENCE).unwrap(), expected);
        api.service("web", "10.96.0.10", 80, 30080);
        api.slice("web", &[&second], 8080);
        until("the Service", || match greeting(&one, "10.96.0.10:80", PATIENCE) {
            Ok(text) if text == expected => Ok(()),
            other => Err(format!("{other:?}")),
        });
        // Connections go on while northd is away.
        central.programs.end("northd");
        assert_eq!(greeting(&one, "10.96.0.10:80", PATIENCE).unwrap(), expected);
        for host in &hosts {
            assert!(host.vsctl(&["list-ports", "br-int"]).contains(&format!("k8s-{}", host.name)));
        }
        // A host that goes takes its chassis along.
        hosts[1].programs.end("controller");
        let of = |database: &str| Some(ovsdb::remotes(&central.socket(database)).unwrap());
        let report = init(&hosts[0], async |databases| {
            let databases = Databases { northbound: of("nb"), southbound: of("sb"), ..databases.clone() };
            commands::remove(&databases, "lin01").await
        });
        let report = report.unwrap().to_string();
        // The chassis first: the northbound rows lead to it, should the removal be cut off.
        let place = |line: &str| report.find(line).unwrap_or_else(|| panic!("no {line:?} in {report}"));
        assert!(place("- Chassis lin01") < place("- Logical_Switch lin01"), "{report}");
        let left =
            |table: &str| central.sbctl(&["--bare", "--columns=name", "list", table]).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!((left("Chassis"), left("Chassis_Private")), (vec!["cp".to_owned()], vec!["cp".to_owned()]));
    });
}

/// A host whose tunnels would not work is not set up; what is not set is found, and set.
fn tunnels_are_checked(host: &Chassis, worker: &Node) {
    let refused = || init(host, async |databases| commands::minion(databases, worker).await).unwrap_err().to_string();
    let set = |key: &str, value: &str| drop(host.vsctl(&["set", "Open_vSwitch", ".", &format!("external_ids:{key}={value}")]));
    set("ovn-encap-type", "stt");
    assert!(refused().contains("STT"), "{}", refused());
    set("ovn-encap-ip", "10.240.0.99");
    set("ovn-encap-type", "geneve");
    assert!(refused().contains("no interface of this host has address 10.240.0.99"), "{}", refused());
    set("ovn-encap-ip", "10.240.0.12");
    let rtnl = Rtnl::open_in(&host.ns).unwrap();
    let bridge = rtnl.link("br-phys").unwrap().unwrap().index;
    rtnl.set_mtu(bridge, 1400).unwrap();
    assert!(refused().contains("br-phys with address 10.240.0.12 has an MTU of 1400; tunnels of pods need 1458"), "{}", refused());
    rtnl.set_mtu(bridge, 1500).unwrap();
    let remote = host.vsctl(&["get", "Open_vSwitch", ".", "external_ids:ovn-remote"]);
    set("ovn-remote", "tcp:10.240.0.11:6642");
    for key in ["ovn-encap-type", "ovn-encap-ip"] {
        host.vsctl(&["remove", "Open_vSwitch", ".", "external_ids", key]);
    }
    let dry = init(host, async |databases| commands::minion(&Databases { dry_run: true, ..databases.clone() }, worker).await).unwrap().to_string();
    assert!(dry.contains("+ovn-encap-ip=10.240.0.12 +ovn-encap-type=geneve"), "{dry}");
    set("ovn-remote", remote.trim());
    set("ovn-encap-type", "geneve");
    set("ovn-encap-ip", "10.240.0.12");
}

#[test]
fn a_pod_that_annotates_itself_sends_nothing_before_ovn_gives_it_an_address() {
    in_lab("a_pod_that_annotates_itself_sends_nothing_before_ovn_gives_it_an_address", || {
        let (central, lan) = (Central::new(), Lan::new());
        let host = Chassis::new(&central, &lan, "cp", "10.240.0.11");
        let master = node("cp", "192.168.1.0/24");
        init(&host, async |databases| commands::master(databases, &master).await).unwrap();
        let api = Api::default();
        api.pod("web", "cp");
        watch(&central, &api);
        let web = pod(&host, &api, "web");
        let to = format!("{}:9999", address(&api, "web"));
        let server = web.run(|| UdpSocket::bind(&to)).unwrap().unwrap();
        server.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let arrives = |from: &NetNs| {
            from.run(|| UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"x", &to)).unwrap().unwrap();
            server.recv_from(&mut [0; 8]).map(|(_, peer)| peer.ip().to_string()).map_err(|error| error.to_string())
        };
        // The subnet is used up: the node has .2, and this pod .3.
        assert!(to.starts_with("192.168.1.3:"), "{to}");
        central.nbctl(&["set", "Logical_Switch", "cp", "other_config:exclude_ips=192.168.1.4..192.168.1.254"]);
        let claim = r#"{"ip_address": "192.168.1.77/24", "mac_address": "0a:00:00:00:00:77", "gateway_ip": "192.168.1.1"}"#;
        api.pod_with("thief", "cp", serde_json::json!({"ovn": claim}));
        let thief = unreported_pod(&host, &api, "thief");
        for _ in 0..5 {
            assert!(arrives(&thief).is_err());
        }
        // OVN gives it an address, and it may use that one.
        central.nbctl(&["remove", "Logical_Switch", "cp", "other_config", "exclude_ips"]);
        until("an annotation of the watcher's", || api.annotation("thief", "ovn").is_some_and(|text| text != claim));
        assert!(arrives(&thief).is_err(), "with the address that it chose");
        let given: serde_json::Value = serde_json::from_str(&api.annotation("thief", "ovn").unwrap()).unwrap();
        let inside = Rtnl::open_in(&thief).unwrap();
        let eth0 = inside.link("eth0").unwrap().unwrap().index;
        let mac: Vec<u8> = given["mac_address"].as_str().unwrap().split(':').map(|part| u8::from_str_radix(part, 16).unwrap()).collect();
        inside.set_mac(eth0, mac.try_into().unwrap()).unwrap();
        inside.del_addr(eth0, "192.168.1.77/24".parse().unwrap()).unwrap();
        set_up(&inside, "eth0", &[given["ip_address"].as_str().unwrap()]);
        let expected = address(&api, "thief");
        until("a packet with OVN's address", || test_lab::same(arrives(&thief), &Ok(expected.clone())));
    });
}

/// The outside: a host behind the gateway's second network card, which knows no pod.
fn outside(gateway: &Chassis) -> NetNs {
    let ns = NetNs::new_anonymous().unwrap();
    let near = Rtnl::open_in(&gateway.ns).unwrap();
    near.add_veth("eth1", "eth0", Some(&ns)).unwrap();
    set_up(&near, "eth1", &["203.0.113.1/24"]);
    set_up(&Rtnl::open_in(&ns).unwrap(), "eth0", &["203.0.113.254/24"]);
    no_offload(&ns, "eth0");
    no_offload(&gateway.ns, "eth1");
    ns
}

#[test]
fn a_gateway_leads_out_and_node_ports_lead_in() {
    in_lab("a_gateway_leads_out_and_node_ports_lead_in", || gateway(false));
}

#[test]
fn a_gateway_shares_its_network_card_with_its_host() {
    in_lab("a_gateway_shares_its_network_card_with_its_host", || gateway(true));
}

/// The bridge of a shared network card, with the host's address.
fn shared_bridge(host: &Chassis) {
    host.bridge("breth1", "eth1", "203.0.113.1/24");
}

/// Runs the gateway helper until the test ends.
fn help(host: &Chassis, api: &Api) {
    let (api, local, run_dir) = (api.clone(), ovsdb::remotes(&host.local()).unwrap(), host.programs.path(""));
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (bridge, interface) = ("breth1".to_owned(), "eth1".to_owned());
            let config = helper::Config { client: api.client(), local, run_dir, bridge, interface, full_pass: Duration::from_secs(600) };
            helper::run(config, std::future::pending()).await;
        });
    });
}

fn gateway(shared: bool) {
    let (central, lan) = (Central::new(), Lan::new());
    let hosts = [Chassis::new(&central, &lan, "cp", "10.240.0.11"), Chassis::new(&central, &lan, "gw", "10.240.0.12")];
    let outside = outside(&hosts[1]);
    if shared {
        shared_bridge(&hosts[1]);
    }
    let settings = GatewaySettings {
        node: "gw".into(),
        cluster_subnet: net("192.168.0.0/16"),
        physical_ip: net("203.0.113.1/24"),
        interface: if shared { ("breth1".into(), true) } else { ("eth1".into(), false) },
        next_hop: "203.0.113.254".parse().unwrap(),
        rampout: Vec::new(),
    };
    // Before its cluster there is nothing that could hold a gateway.
    let early = init(&hosts[1], async |databases| commands::gateway(databases, &settings).await).unwrap_err().to_string();
    assert!(early.contains("there is no Logical_Switch join"), "{early}");
    let master = node("cp", "192.168.1.0/24");
    init(&hosts[0], async |databases| commands::master(databases, &master).await).unwrap();
    init(&hosts[1], async |databases| commands::gateway(databases, &settings).await).unwrap();
    let again = init(&hosts[1], async |databases| commands::gateway(databases, &settings).await).unwrap().to_string();
    assert_eq!(again, "Open_vSwitch: nothing to do\nOVN_Northbound: nothing to do\n");
    let api = Api::default();
    api.pod("web", "cp");
    watch(&central, &api);
    if shared {
        help(&hosts[1], &api);
    }
    let web = pod(&hosts[0], &api, "web");
    let address = address(&api, "web");
    // Out: the outside sees the gateway's address alone.
    until("a ping to the outside", || ping(&web, "203.0.113.254", 56));
    greet(&outside, "203.0.113.254:7", |peer| format!("hello {peer}"));
    assert_eq!(greeting(&web, "203.0.113.254:7", PATIENCE).unwrap(), "hello 203.0.113.1");
    // In: by a NodePort, whose backends answer by way of the gateway.
    greet(&web, &format!("{address}:8080"), |_| "web".to_owned());
    api.service("web", "10.96.0.10", 80, 30080);
    api.slice("web", &[&address], 8080);
    until("the NodePort", || match greeting(&outside, "203.0.113.1:30080", PATIENCE) {
        Ok(text) if text == "web" => Ok(()),
        other => Err(format!("{other:?}")),
    });
    if shared {
        // The host goes on using the card, in both directions, and its ports are its own.
        assert_eq!(greeting(&hosts[1].ns, "203.0.113.254:7", PATIENCE).unwrap(), "hello 203.0.113.1");
        greet(&hosts[1].ns, "203.0.113.1:22", |_| "host".to_owned());
        assert_eq!(greeting(&outside, "203.0.113.1:22", PATIENCE).unwrap(), "host");
        assert_eq!(greeting(&web, "203.0.113.254:7", PATIENCE).unwrap(), "hello 203.0.113.1");
        flows_are_kept(&hosts[1]);
    }
    api.remove("services", "web");
    until("the end of the NodePort", || connect(&outside, "203.0.113.1:30080", PATIENCE).is_err());
}

/// The flows are what the helper takes for wanted, so that at rest it changes none.
fn flows_are_kept(host: &Chassis) {
    let bridge = format!("unix:{}", host.programs.text("breth1.mgmt"));
    let text = run("ovs-ofctl", &["--no-stats", "--no-names", "dump-flows", &bridge]);
    let ours: std::collections::BTreeSet<String> =
        text.lines().filter_map(|line| line.trim().strip_prefix("cookie=0x6d756c6c696f6e31, ")).map(str::to_owned).collect();
    let number = |name: &str| host.vsctl(&["get", "Interface", name, "ofport"]).trim().parse().unwrap();
    let mac = host.vsctl(&["get", "Interface", "breth1", "mac_in_use"]).trim().trim_matches('"').to_owned();
    let ports = helper::Ports { card: number("eth1"), patch: number("k8s-patch-breth1-br-int"), mac };
    assert_eq!(ours, helper::flows(&ports, &[(ovn::Protocol::Tcp, 30080)].into()));
}
