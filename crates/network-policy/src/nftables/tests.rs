use std::time::Duration;

use linux_sys::netlink::{BridgePort, Rtnl};
use linux_sys::ns::{NetNs, in_lab};
use linux_sys::sysctl;
use serde_json::json;
use test_lab::{LIMIT, net};

use super::*;
use crate::examples::{apply, apply_cluster, delete, key, labels, pod, world};
use crate::rows::PodRow;

/// Where silence is right.
const SILENCE: Duration = Duration::from_millis(300);

/// The current namespace is the node: pods at 10.1.0.2… on a routed bridge, and a world beyond `up0`.
struct Lab {
    pods: Vec<NetNs>,
    outside: NetNs,
    world: World,
    backend: Nftables,
}

fn pod_on(node: &Rtnl, bridge: u32, n: usize) -> NetNs {
    let ns = net::pod(node, bridge, n, BridgePort { isolated: Some(true), ..BridgePort::default() });
    for port in [80, 81] {
        net::greet(&ns, &format!("[::]:{port}"), move |_| format!("pod{n}"));
    }
    net::serve_udp(&ns, "[::]:53", move |_, _| format!("pod{n}"));
    ns
}

impl Lab {
    /// Pods `x/p0`, `x/p1`, … labelled `pod=pN`; the last one is in namespace `y`.
    fn new(pods: usize) -> Self {
        for name in ["iptables", "ip6tables"] {
            let _ = sysctl::set(&format!("net.bridge.bridge-nf-call-{name}"), "0");
        }
        let node = Rtnl::open().unwrap();
        for (name, value) in [("ipv4.ip_forward", "1"), ("ipv6.conf.all.forwarding", "1"), ("ipv6.conf.default.accept_dad", "0")] {
            sysctl::set(&format!("net.{name}"), value).unwrap();
        }
        node.add_bridge("pods0").unwrap();
        let bridge = net::set_up(&node, "pods0", &["10.1.0.1/24", "fd00:1::1/64"]);
        for (name, value) in [
            ("conf/pods0/proxy_arp_pvlan", "1"),
            ("neigh/pods0/proxy_delay", "0"),
            ("conf/all/send_redirects", "0"),
            ("conf/pods0/send_redirects", "0"),
        ] {
            sysctl::set(&format!("net.ipv4.{}", name.replace('/', ".")), value).unwrap();
        }
        let spaces: Vec<NetNs> = (0..pods).map(|n| pod_on(&node, bridge, n)).collect();
        let outside = net::neighbour(("up0", &["10.240.0.11/24"]), ("eth0", &["10.240.0.1/24", "10.240.0.2/24"]));
        net::route(&Rtnl::open_in(&outside).unwrap(), "10.1.0.0/24", "10.240.0.11");
        net::greet(&outside, "0.0.0.0:80", |_| "outside".to_owned());
        net::settle(&outside);
        net::settle(&NetNs::current().unwrap());
        let mut world = world();
        for n in 0..pods {
            world.set_pod(&Self::key(n, pods), Some(row(n)));
        }
        let mut lab = Self { pods: spaces, outside, world, backend: Nftables::new() };
        lab.sync();
        lab
    }

    fn key(n: usize, pods: usize) -> Key {
        let namespace = if n + 1 == pods { "y" } else { "x" };
        key(&format!("{namespace}/p{n}"))
    }

    fn sync(&mut self) -> usize {
        let changes = self.world.take_changes();
        let writes = self.backend.sync(&self.world, &changes, false).unwrap();
        self.check();
        writes
    }

    /// The kernel has exactly what the world says: a second backend finds nothing to do.
    fn check(&self) {
        let plan = Engine::new(Nft::open().unwrap()).plan(vec![Programmed::default().whole(&self.world)]).unwrap();
        assert!(plan.is_empty(), "{plan}");
    }

    fn apply(&mut self, name: &str, spec: serde_json::Value) {
        apply(&mut self.world, name, spec);
        self.sync();
    }

    fn delete(&mut self, name: &str) {
        delete(&mut self.world, name);
        self.sync();
    }

    /// Whether TCP port 80 of a pod answers a pod, by IPv4 and by IPv6 alike.
    fn reaches(&self, from: usize, to: usize) -> bool {
        self.reaches_at(from, to, 80)
    }

    fn reaches_at(&self, from: usize, to: usize, port: u16) -> bool {
        let addresses = [format!("10.1.0.{}:{port}", to + 2), format!("[fd00:1::{}]:{port}", to + 2)];
        let answers = addresses.map(|at| tries(&self.pods[from], &at));
        assert_eq!(answers[0], answers[1], "IPv4 and IPv6 from {from} to {to}");
        answers[0]
    }

    fn table(&self) -> Vec<String> {
        let pairs = (0..self.pods.len()).map(|from| {
            let line: String = (0..self.pods.len()).map(|to| if self.reaches(from, to) { '.' } else { 'X' }).collect();
            format!("{from} {line}")
        });
        pairs.collect()
    }
}

use cluster::Key;

fn row(n: usize) -> PodRow {
    pod(&[&format!("10.1.0.{}", n + 2), &format!("fd00:1::{}", n + 2)], &format!("pod=p{n}"))
}

/// One attempt: it ends when the other side answers, or after a time that is silence here.
fn tries(ns: &NetNs, at: &str) -> bool {
    net::greeting(ns, at, SILENCE).is_ok()
}

/// Waits for an answer that must come.
fn answers(ns: &NetNs, at: &str) -> String {
    net::greeting(ns, at, LIMIT).unwrap()
}

fn only_pod(name: &str) -> serde_json::Value {
    json!({"podSelector": {"matchLabels": {"pod": name}}})
}

#[test]
fn denied_pods_get_nothing_and_selected_peers_get_in() {
    in_lab("nftables::tests::denied_pods_get_nothing_and_selected_peers_get_in", || {
        let mut lab = Lab::new(3);
        assert_eq!(lab.table(), ["0 ...", "1 ...", "2 ..."]);
        lab.apply("x/deny", json!({"podSelector": {}, "policyTypes": ["Ingress"]}));
        assert_eq!(lab.table(), ["0 .X.", "1 X..", "2 XX."], "a pod reaches itself");
        // The node itself always reaches its pods.
        assert_eq!(answers(&NetNs::current().unwrap(), "10.1.0.2:80"), "pod0");
        assert!(!tries(&lab.outside, "10.1.0.2:80"));
        lab.apply(
            "x/allow",
            json!({"podSelector": {"matchLabels": {"pod": "p0"}}, "policyTypes": ["Ingress"],
            "ingress": [{"from": [only_pod("p1"), {"namespaceSelector": {"matchLabels": {"ns": "y"}}}]}]}),
        );
        assert_eq!(lab.table(), ["0 .X.", "1 ...", "2 .X."]);
        lab.apply(
            "x/allow",
            json!({"podSelector": {"matchLabels": {"pod": "p0"}}, "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"ipBlock": {"cidr": "10.240.0.0/24", "except": ["10.240.0.1/32"]}}]}]}),
        );
        assert!(!tries(&lab.outside, "10.1.0.2:80"), "10.240.0.1 is an exception");
        lab.delete("x/deny");
        lab.delete("x/allow");
        assert_eq!(lab.table(), ["0 ...", "1 ...", "2 ..."]);
        assert_eq!(answers(&lab.outside, "10.1.0.2:80"), "pod0");
    });
}

#[test]
fn egress_ports_and_names_of_ports_hold() {
    in_lab("nftables::tests::egress_ports_and_names_of_ports_hold", || {
        let mut lab = Lab::new(3);
        lab.apply(
            "x/out",
            json!({"podSelector": {"matchLabels": {"pod": "p0"}}, "policyTypes": ["Egress"],
            "egress": [{"to": [only_pod("p1")], "ports": [{"port": "serve-80"}, {"port": "dns", "protocol": "UDP"}]}]}),
        );
        assert!(lab.reaches(0, 1) && !lab.reaches_at(0, 1, 81) && !lab.reaches(0, 2) && lab.reaches(1, 0));
        assert_eq!(net::ask_udp(&lab.pods[0], "10.1.0.3:53", LIMIT).unwrap(), "pod1");
        assert!(net::ask_udp(&lab.pods[0], "10.1.0.4:53", SILENCE).is_err());
        assert!(!tries(&lab.pods[0], "10.240.0.1:80"));
        lab.apply(
            "x/out",
            json!({"podSelector": {"matchLabels": {"pod": "p0"}}, "policyTypes": ["Egress"],
            "egress": [{"to": [{"ipBlock": {"cidr": "10.240.0.0/24"}}]}, {"ports": [{"port": 81, "endPort": 90}]}]}),
        );
        assert_eq!(answers(&lab.pods[0], "10.240.0.1:80"), "outside");
        assert!(!lab.reaches(0, 1) && lab.reaches_at(0, 1, 81) && lab.reaches_at(0, 2, 81));
        lab.apply("x/in", json!({"podSelector": {"matchLabels": {"pod": "p1"}}, "ingress": [{"ports": [{"port": "serve-80"}]}]}));
        assert!(lab.reaches(2, 1) && !lab.reaches_at(2, 1, 81) && !lab.reaches_at(0, 1, 81), "both sides have to allow it");
    });
}

#[test]
fn connections_go_on_and_labels_count_at_once() {
    in_lab("nftables::tests::connections_go_on_and_labels_count_at_once", || {
        let mut lab = Lab::new(3);
        net::serve_tcp(&lab.pods[0], "0.0.0.0:7", |mut stream, _| std::io::copy(&mut stream.try_clone()?, &mut stream).map(drop));
        let mut open = net::connect(&lab.pods[1], "10.1.0.2:7", LIMIT).unwrap();
        lab.apply("x/deny", json!({"podSelector": {}, "ingress": [{"from": [only_pod("friend")]}]}));
        use std::io::{Read as _, Write as _};
        open.write_all(b"x").unwrap();
        open.read_exact(&mut [0]).unwrap();
        assert!(!lab.reaches(1, 0));
        let mut friend = row(1);
        friend.labels = labels("pod=friend");
        lab.world.set_pod(&key("x/p1"), Some(friend));
        // One element: the member of the group in each IP version.
        assert_eq!(lab.sync(), 2);
        assert!(lab.reaches(1, 0) && !lab.reaches(0, 1));
        lab.world.set_pod(&key("x/p1"), None);
        lab.sync();
        assert!(!lab.reaches(1, 0) && lab.reaches(0, 1), "what is no pod any more has no policy");
        assert!(cleanup().unwrap() && !cleanup().unwrap());
        assert!(lab.reaches(1, 0));
        let changes = lab.world.take_changes();
        lab.backend.sync(&lab.world, &changes, true).unwrap();
        lab.check();
        assert!(!lab.reaches(1, 0), "a full pass repairs the table");
    });
}

#[test]
fn tiers_count_before_and_after_network_policies() {
    in_lab("nftables::tests::tiers_count_before_and_after_network_policies", || {
        let mut lab = Lab::new(3);
        let all = json!({"namespaces": {}});
        let rule = |action: &str, from: serde_json::Value| json!({"action": action, "from": [from]});
        let of = |name: &str| json!({"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"pod": name}}}});
        apply_cluster(&mut lab.world, "base", &json!({"tier": "Baseline", "priority": 1, "subject": all, "ingress": [rule("Deny", all.clone())]}));
        lab.sync();
        assert_eq!(lab.table(), ["0 .XX", "1 X.X", "2 XX."]);
        lab.apply("x/open", json!({"podSelector": {"matchLabels": {"pod": "p0"}}, "ingress": [{}]}));
        assert_eq!(lab.table(), ["0 .XX", "1 ..X", "2 .X."], "a NetworkPolicy counts before the Baseline tier");
        let rules = [rule("Pass", of("p1")), rule("Deny", of("p2")), rule("Accept", json!({"namespaces": {}}))];
        apply_cluster(&mut lab.world, "admin", &json!({"tier": "Admin", "priority": 5, "subject": {"namespaces": {}}, "ingress": rules}));
        lab.sync();
        assert_eq!(lab.table(), ["0 ...", "1 ..X", "2 XX."], "the Admin tier counts first, and passes what it passes");
    });
}
