use std::collections::BTreeMap;
use std::io::Read;
use std::net::TcpStream;
use std::path::PathBuf;

use linux_sys::ns::in_lab;
use serde_json::{Value, json};
use test_lab::net::{greet, neighbour};

use super::*;
use crate::spec::PluginConfig;

mod killed;

/// Pods of the current namespace, which is the node.
struct Node {
    dir: tempfile::TempDir,
}

impl Node {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn conf(&self) -> Value {
        json!({"cniVersion": "1.0.0", "name": "pods", "type": "bridge", "bridge": "pods0", "isGateway": true, "routed": true,
            "ipam": {"type": "host-local", "dataDir": self.dir.path().join("ipam"), "ranges": [[{"subnet": "10.1.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}})
    }

    fn netns_path(&self, id: &str) -> PathBuf {
        self.dir.path().join(id)
    }

    fn call(&self, command: Command, id: &str, conf: Value) -> Result<Option<AddResult>, CniError> {
        handle(&Request {
            command,
            container_id: id.into(),
            netns: self.netns_path(id).to_str().unwrap().into(),
            ifname: "eth0".into(),
            args: BTreeMap::new(),
            path: String::new(),
            stdin: conf.to_string().into_bytes(),
            config: PluginConfig::from_value(conf).unwrap(),
        })
    }

    fn add(&self, id: &str, conf: Value) -> Pod {
        let netns = NetNs::create_at(&self.netns_path(id)).unwrap();
        let result = self.call(Command::Add, id, conf).unwrap().unwrap();
        Pod { netns, result }
    }
}

struct Pod {
    netns: NetNs,
    result: AddResult,
}

impl Pod {
    fn ip(&self) -> std::net::IpAddr {
        self.result.primary_ip().unwrap()
    }

    /// Sends each client of port 80 its own address.
    fn serve(&self) {
        greet(&self.netns, "0.0.0.0:80", |peer| peer.to_string());
    }
}

/// What the server at `ip` says.
fn ask(ip: std::net::IpAddr) -> String {
    let mut stream = TcpStream::connect_timeout(&(ip, 80).into(), test_lab::LIMIT).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn pods_reach_each_other_through_the_node() {
    in_lab("bridge::tests::pods_reach_each_other_through_the_node", || {
        for netfilter in ["0", "1"] {
            // A kernel that does not know the switch does not have bridge netfilter either.
            let _ = sysctl::set("net.bridge.bridge-nf-call-iptables", netfilter);
            reach_each_other(&Node::new());
            let bridge = Rtnl::open().unwrap().link("pods0").unwrap().unwrap().index;
            Rtnl::open().unwrap().del_link(bridge).unwrap();
        }
    });
}

fn reach_each_other(node: &Node) {
    let (a, b) = (node.add("a", node.conf()), node.add("b", node.conf()));
    assert_eq!((a.ip().to_string(), b.ip().to_string()), ("10.1.0.2".into(), "10.1.0.3".into()));
    b.serve();
    assert_eq!(a.netns.run(|| ask(b.ip())).unwrap(), "10.1.0.2", "the client's address is kept");
    // With bridge netfilter pods ask each other, not the node.
    if !sysctl::get("net.bridge.bridge-nf-call-iptables").is_ok_and(|value| value == "1") {
        assert_eq!(sysctl::get("net.ipv4.neigh.pods0.proxy_delay").unwrap(), "0", "the node answers ARP at once, not within 0.8 s");
    }
    a.serve();
    assert_eq!(ask(a.ip()), "10.1.0.1", "the node reaches its pods from the gateway's address");
}

#[test]
fn pods_have_an_address_of_each_family() {
    in_lab("bridge::tests::pods_have_an_address_of_each_family", || {
        // The node would advertise and redirect: pods do not listen.
        for switch in ["accept_ra", "accept_redirects"] {
            sysctl::set(&format!("net.ipv6.conf.default.{switch}"), "1").unwrap();
        }
        for routed in [true, false] {
            both_families(&Node::new(), routed);
            let bridge = Rtnl::open().unwrap().link("pods0").unwrap().unwrap().index;
            Rtnl::open().unwrap().del_link(bridge).unwrap();
        }
    });
}

fn both_families(node: &Node, routed: bool) {
    let mut conf = node.conf();
    conf["routed"] = json!(routed);
    conf["ipMasq"] = json!(true);
    conf["ipam"]["ranges"].as_array_mut().unwrap().push(json!([{"subnet": "fd00:1:0:1::/64"}]));
    conf["ipam"]["routes"].as_array_mut().unwrap().push(json!({"dst": "::/0"}));
    let (a, b) = (node.add("a", conf.clone()), node.add("b", conf.clone()));
    let addresses = |pod: &Pod| pod.result.ips.iter().map(|ip| format!("{} by {}", ip.address, ip.gateway.unwrap())).collect::<Vec<_>>();
    assert_eq!(addresses(&a), ["10.1.0.2/24 by 10.1.0.1", "fd00:1:0:1::2/64 by fd00:1:0:1::1"]);
    assert_eq!(addresses(&b), ["10.1.0.3/24 by 10.1.0.1", "fd00:1:0:1::3/64 by fd00:1:0:1::1"]);
    for pod in [&a, &b] {
        greet(&pod.netns, "[::]:80", |peer| peer.to_string());
    }
    let asked = |from: &Pod, to: &str| from.netns.run(|| ask(to.parse().unwrap())).unwrap();
    assert_eq!(asked(&a, "fd00:1:0:1::3"), "fd00:1:0:1::2", "pods of a node, routed {routed}");
    assert_eq!(asked(&b, "fd00:1:0:1::2"), "fd00:1:0:1::3", "routed {routed}");
    assert_eq!(asked(&a, "10.1.0.3"), "10.1.0.2");
    assert_eq!(ask("fd00:1:0:1::2".parse().unwrap()), "fd00:1:0:1::1", "the node reaches its pods from the gateway's address");
    if routed {
        let routes = |from: &Pod| from.netns.run(|| Rtnl::open().unwrap().routes().unwrap()).unwrap();
        assert!(!routes(&a).iter().any(|route| route.dst == "fd00:1:0:1::/64".parse().unwrap()), "neighbours are reached by the node");
    }
    for switch in ["accept_ra", "accept_redirects"] {
        assert_eq!(a.netns.run(|| sysctl::get(&format!("net.ipv6.conf.eth0.{switch}"))).unwrap().unwrap(), "0", "{switch}");
    }
    conf["prevResult"] = a.result.to_json(crate::spec::SpecVersion::V1_0_0);
    node.call(Command::Check, "a", conf.clone()).unwrap();
    // A neighbour of the node that knows nothing of pods.
    let world = neighbour(("up0", &["10.240.0.11/24", "fd00:10::11/64"]), ("world0", &["10.240.0.1/24", "fd00:10::1/64"]));
    greet(&world, "[::]:80", |peer| peer.to_string());
    assert_eq!(asked(&a, "fd00:10::1"), "fd00:10::11", "masqueraded");
    let inside = Rtnl::open_in(&a.netns).unwrap();
    inside.del_addr(inside.link("eth0").unwrap().unwrap().index, "fd00:1:0:1::2/64".parse().unwrap()).unwrap();
    assert!(node.call(Command::Check, "a", conf.clone()).unwrap_err().msg.contains("lost its address fd00:1:0:1::2/64"));
    for id in ["a", "b"] {
        node.call(Command::Del, id, conf.clone()).unwrap();
        NetNs::remove_at(&node.netns_path(id)).unwrap();
    }
    let names = std::fs::read_dir(node.dir.path().join("ipam/pods")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(names.filter(|name| name.contains("fd00")).collect::<Vec<_>>(), [""; 0], "both addresses are free again");
    let up = Rtnl::open().unwrap().link("up0").unwrap().unwrap().index;
    Rtnl::open().unwrap().del_link(up).unwrap();
}

#[test]
fn result_describes_interfaces_and_addresses() {
    in_lab("bridge::tests::result_describes_interfaces_and_addresses", || {
        let node = Node::new();
        let mut conf = node.conf();
        conf["mtu"] = json!(1400);
        conf["runtimeConfig"] = json!({"mac": "02:00:00:00:00:07"});
        let pod = node.add("a", conf.clone());
        let names: Vec<&str> = pod.result.interfaces.iter().map(|i| i.name.as_str()).collect();
        assert_eq!((names[0], &names[1][..4], names[2]), ("pods0", "veth", "eth0"));
        assert_eq!(pod.result.interfaces[2].mac, "02:00:00:00:00:07");
        assert!(pod.result.interfaces.iter().all(|i| i.mtu == Some(1400)));
        assert_eq!((pod.result.ips[0].interface, pod.result.ips[0].gateway), (Some(2), "10.1.0.1".parse().ok()));
        let routes = Rtnl::open_in(&pod.netns).unwrap().routes().unwrap();
        assert!(routes.iter().any(|r| r.dst.prefix_len() == 0 && r.via == "10.1.0.1".parse().ok()), "{routes:?}");
        conf["prevResult"] = pod.result.to_json(crate::spec::SpecVersion::V1_0_0);
        node.call(Command::Check, "a", conf.clone()).unwrap();
        let inside = Rtnl::open_in(&pod.netns).unwrap();
        let index = inside.link("eth0").unwrap().unwrap().index;
        inside.del_addr(index, "10.1.0.2/24".parse().unwrap()).unwrap();
        assert!(node.call(Command::Check, "a", conf).unwrap_err().msg.contains("lost its address"));
    });
}

#[test]
fn del_removes_everything_and_may_be_repeated() {
    in_lab("bridge::tests::del_removes_everything_and_may_be_repeated", || {
        let node = Node::new();
        let reserved = || {
            std::fs::read_dir(node.dir.path().join("ipam/pods"))
                .unwrap()
                .filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().starts_with("10."))
                .count()
        };
        let ports = || Rtnl::open().unwrap().links().unwrap().iter().filter(|l| l.master.is_some()).count();
        node.add("a", node.conf());
        node.add("b", node.conf());
        assert_eq!((ports(), reserved()), (2, 2));
        for _ in 0..2 {
            node.call(Command::Del, "a", node.conf()).unwrap();
            assert_eq!((ports(), reserved()), (1, 1));
        }
        NetNs::remove_at(&node.netns_path("b")).unwrap();
        node.call(Command::Del, "b", node.conf()).unwrap();
        assert_eq!(reserved(), 0, "a sandbox that is gone frees its address too");
        node.call(Command::Del, "never", node.conf()).unwrap();
    });
}

#[test]
fn failed_add_leaves_nothing() {
    in_lab("bridge::tests::failed_add_leaves_nothing", || {
        let node = Node::new();
        NetNs::create_at(&node.netns_path("a")).unwrap();
        let mut conf = node.conf();
        conf["ipam"]["ranges"][0][0]["rangeStart"] = json!("10.9.0.1");
        let error = node.call(Command::Add, "a", conf).unwrap_err();
        assert!(error.msg.contains("RangeStart"), "{error:?}");
        assert!(Rtnl::open().unwrap().links().unwrap().iter().all(|l| l.kind != "veth"));
        let pod = node.add("b", node.conf());
        let error = node.call(Command::Add, "b", node.conf()).unwrap_err();
        assert_eq!(error.code, code::INTERNAL);
        assert!(error.msg.contains("already exists"), "{error:?}");
        assert!(Rtnl::open_in(&pod.netns).unwrap().link("eth0").unwrap().is_some(), "a second ADD does not harm the first");
        let error = node.call(Command::Add, "no-such-netns", node.conf()).unwrap_err();
        assert!(error.msg.contains("open netns"), "{error:?}");
    });
}

#[test]
fn unsupported_options_are_refused_by_name() {
    in_lab("bridge::tests::unsupported_options_are_refused_by_name", || {
        let node = Node::new();
        for (key, value, text) in [("vlan", json!(7), "does not support vlan"), ("bridge", json!("lo"), "already exists but is not a bridge")] {
            NetNs::create_at(&node.netns_path("a")).unwrap();
            let mut conf = node.conf();
            conf[key] = value;
            let error = node.call(Command::Add, "a", conf).unwrap_err();
            assert!(error.msg.contains(text), "{key}: {error:?}");
        }
        node.add("b", node.conf());
        let mut other_subnet = node.conf();
        other_subnet["ipam"]["ranges"] = json!([[{"subnet": "10.2.0.0/24"}]]);
        assert!(node.call(Command::Add, "a", other_subnet).unwrap_err().msg.contains("already has an IP address different from 10.2.0.1/24"));
    });
}

#[test]
fn masquerading_hides_pods_from_other_networks() {
    in_lab("bridge::tests::masquerading_hides_pods_from_other_networks", || {
        let node = Node::new();
        let mut conf = node.conf();
        conf["ipMasq"] = json!(true);
        let (a, b) = (node.add("a", conf.clone()), node.add("b", conf));
        // A neighbour of the node that knows nothing of pods.
        let world = neighbour(("up0", &["10.240.0.11/24"]), ("world0", &["10.240.0.1/24"]));
        greet(&world, "0.0.0.0:80", |peer| peer.to_string());
        assert_eq!(a.netns.run(|| ask("10.240.0.1".parse().unwrap())).unwrap(), "10.240.0.11");
        b.serve();
        assert_eq!(a.netns.run(|| ask(b.ip())).unwrap(), "10.1.0.2", "but not from each other");
    });
}

/// A frame of the pod with another MAC does not reach its neighbour; with its own, it does.
#[test]
fn a_pod_cannot_claim_anothers_mac() {
    in_lab("bridge::tests::a_pod_cannot_claim_anothers_mac", || {
        let node = Node::new();
        let mut conf = node.conf();
        conf["routed"] = json!(false);
        conf["macspoofchk"] = json!(true);
        let (a, b) = (node.add("a", conf.clone()), node.add("b", conf.clone()));
        b.serve();
        let reaches = |patience| a.netns.run(|| TcpStream::connect_timeout(&(b.ip(), 80).into(), patience).is_ok()).unwrap();
        assert!(reaches(test_lab::LIMIT));
        let inside = Rtnl::open_in(&a.netns).unwrap();
        let eth0 = inside.link("eth0").unwrap().unwrap();
        inside.set_mac(eth0.index, [2, 0, 0, 0, 0, 9]).unwrap();
        assert!(!reaches(std::time::Duration::from_millis(500)), "with the MAC that it claims");
        inside.set_mac(eth0.index, eth0.mac).unwrap();
        assert!(reaches(test_lab::LIMIT));
        let rules = || {
            let observed = nft::Nft::open().unwrap().observe(&nft::Table::new(nft::Family::Bridge, "mullion-cni")).unwrap();
            observed.comments("macspoofchk").map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(rules(), ["a-eth0", "b-eth0"]);
        node.call(Command::Del, "a", conf.clone()).unwrap();
        assert_eq!(rules(), ["b-eth0"]);
        conf["cniVersion"] = json!("1.1.0");
        conf["cni.dev/valid-attachments"] = json!([]);
        node.call(Command::Gc, "", conf).unwrap();
        assert_eq!(rules(), [""; 0]);
    });
}

/// GC removes the pairs of this network's dead pods and frees their addresses, also what a killed ADD left; others stay.
#[test]
fn gc_removes_dead_pods_of_its_network_alone() {
    in_lab("bridge::tests::gc_removes_dead_pods_of_its_network_alone", || {
        let node = Node::new();
        let mut gc = node.conf();
        gc["cniVersion"] = json!("1.1.0");
        let mut other = node.conf();
        other["name"] = json!("others");
        other["ipam"]["ranges"] = json!([[{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.100"}]]);
        let (live, dead) = (node.add("live", node.conf()), node.add("dead", node.conf()));
        let foreign = node.add("foreign", other);
        gc["cni.dev/valid-attachments"] = json!([{"containerID": "live", "ifname": "eth0"}]);
        for _ in 0..2 {
            node.call(Command::Gc, "", gc.clone()).unwrap();
            let has_eth0 = |pod: &Pod| Rtnl::open_in(&pod.netns).unwrap().link("eth0").unwrap().is_some();
            assert_eq!([&live, &dead, &foreign].map(has_eth0), [true, false, true]);
            let reserved = |network: &str, ip: &str| node.dir.path().join("ipam").join(network).join(ip).exists();
            assert!(reserved("pods", "10.1.0.2") && !reserved("pods", "10.1.0.3") && reserved("others", "10.1.0.100"));
        }
    });
}
