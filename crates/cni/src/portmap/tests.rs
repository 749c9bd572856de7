use std::collections::BTreeMap;
use std::io::Read;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use linux_sys::netlink::Rtnl;
use linux_sys::ns::{NetNs, in_lab};
use serde_json::{Value, json};
use test_lab::LIMIT;
use test_lab::net::{greet, neighbour, route, settle};

use super::*;
use crate::spec::PluginConfig;

fn call(command: Command, id: &str, conf: Value) -> Result<Option<AddResult>, CniError> {
    handle(&Request {
        command,
        container_id: id.into(),
        netns: "/somewhere".into(),
        ifname: "eth0".into(),
        args: BTreeMap::new(),
        path: String::new(),
        stdin: conf.to_string().into_bytes(),
        config: PluginConfig::from_value(conf).unwrap(),
    })
}

/// The configuration behind `bridge`, for a pod at `ip`.
fn conf(ip: &str, mappings: Value) -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "pods", "type": "portmap", "runtimeConfig": {"portMappings": mappings},
        "prevResult": {"cniVersion": "1.1.0", "interfaces": [{"name": "near"}], "ips": [{"address": format!("{ip}/24")}]},
    })
}

/// A node at 10.9.0.1 and 10.1.0.1 whose pods at 10.1.0.2 and .3 are one namespace, and a client at 10.9.0.2.
struct Net {
    pods: NetNs,
    client: NetNs,
}

impl Net {
    fn new() -> Self {
        let far = |link: &str, own: &str, others: &[&str], gateway: &str| {
            let ns = neighbour((link, &[own]), ("eth0", others));
            [&NetNs::current().unwrap(), &ns].into_iter().for_each(settle);
            route(&Rtnl::open_in(&ns).unwrap(), "0.0.0.0/0", gateway);
            ns
        };
        let pods = far("near", "10.1.0.1/24", &["10.1.0.2/24", "10.1.0.3/24"], "10.1.0.1");
        let client = far("lan", "10.9.0.1/24", &["10.9.0.2/24"], "10.9.0.1");
        sysctl::set("net.ipv4.ip_forward", "1").unwrap();
        Self { pods, client }
    }

    /// Answers each connection to `address` with the client's address.
    fn serve(&self, address: &str) {
        greet(&self.pods, address, |peer| peer.to_string());
    }
}

fn ask(address: &str) -> Option<String> {
    ask_for(address, LIMIT)
}

/// The same where nothing should answer.
fn ask_in_vain(address: &str) -> Option<String> {
    ask_for(address, Duration::from_millis(500))
}

fn ask_for(address: &str, patience: Duration) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address.parse().unwrap(), patience).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

#[test]
fn a_host_port_leads_to_its_pod() {
    in_lab("portmap::tests::a_host_port_leads_to_its_pod", || {
        let net = Net::new();
        net.serve("10.1.0.2:80");
        let conf = conf("10.1.0.2", json!([{"hostPort": 8080, "containerPort": 80, "protocol": "TCP"}]));
        let result = call(Command::Add, "a", conf.clone()).unwrap().unwrap();
        assert_eq!(result.primary_ip(), "10.1.0.2".parse().ok(), "the result of bridge is passed on");
        call(Command::Add, "a", conf.clone()).expect("again is fine");
        let outside = |address: &str| net.client.run(|| ask(address)).unwrap();
        let in_vain = |address: &str| net.client.run(|| ask_in_vain(address)).unwrap();
        assert_eq!(outside("10.9.0.1:8080").as_deref(), Some("10.9.0.2"), "the client's address is kept");
        assert_eq!(in_vain("10.9.0.1:80"), None);
        assert_eq!(ask("10.9.0.1:8080").as_deref(), Some("10.9.0.1"), "from the node itself");
        assert_eq!(ask("127.0.0.1:8080").as_deref(), Some("10.1.0.1"), "from the node's loopback");
        let itself = net.pods.run(|| ask("10.9.0.1:8080")).unwrap();
        assert_eq!(itself.as_deref(), Some("10.1.0.1"), "from the pod to itself, through the node");
        call(Command::Check, "a", conf.clone()).unwrap();
        call(Command::Del, "b", conf.clone()).unwrap();
        assert!(outside("10.9.0.1:8080").is_some(), "another container's DEL");
        call(Command::Del, "a", conf.clone()).unwrap();
        call(Command::Del, "a", conf.clone()).unwrap();
        assert_eq!(in_vain("10.9.0.1:8080"), None);
        assert_eq!(call(Command::Check, "a", conf).unwrap_err().code, code::DRIFT);
    });
}

#[test]
fn an_address_of_the_node_alone_and_collection() {
    in_lab("portmap::tests::an_address_of_the_node_alone_and_collection", || {
        let net = Net::new();
        net.serve("10.1.0.2:80");
        let mapping = |ip: &str| json!([{"hostPort": 8080, "containerPort": 80, "hostIP": ip}]);
        call(Command::Add, "a", conf("10.1.0.2", mapping("10.1.0.1"))).unwrap();
        let outside = |address: &str| net.client.run(|| ask(address)).unwrap();
        let in_vain = |address: &str| net.client.run(|| ask_in_vain(address)).unwrap();
        assert_eq!(in_vain("10.9.0.1:8080"), None);
        assert!(outside("10.1.0.1:8080").is_some());
        let valid = |id: &str| json!({"cniVersion": "1.1.0", "name": "pods", "type": "portmap", "cni.dev/valid-attachments": [{"containerID": id, "ifname": "eth0"}]});
        call(Command::Gc, "", valid("a")).unwrap();
        assert!(outside("10.1.0.1:8080").is_some());
        call(Command::Gc, "", valid("b")).unwrap();
        assert_eq!(in_vain("10.1.0.1:8080"), None);
    });
}

/// CVE-2020-8558: a pod that may send any packet writes to 127.0.0.1 of its node, or from it.
#[test]
fn pods_reach_no_loopback_service_of_the_node() {
    in_lab("portmap::tests::pods_reach_no_loopback_service_of_the_node", || {
        let net = Net::new();
        net.serve("10.1.0.2:80");
        let lo = Rtnl::open().unwrap().link("lo").unwrap().unwrap().index;
        Rtnl::open().unwrap().set_up(lo).unwrap();
        call(Command::Add, "a", conf("10.1.0.2", json!([{"hostPort": 8080, "containerPort": 80}]))).unwrap();
        assert_eq!(ask("127.0.0.1:8080").as_deref(), Some("10.1.0.1"), "the node itself uses the host port on localhost");
        let tcp = TcpListener::bind("127.0.0.1:7777").unwrap();
        tcp.set_nonblocking(true).unwrap();
        let udp = ["127.0.0.1:7777", "10.9.0.1:7778"].map(|address| UdpSocket::bind(address).unwrap());
        let pods = Rtnl::open_in(&net.pods).unwrap();
        let own = pods.link("lo").unwrap().unwrap().index;
        let _ = pods.del_addr(own, "127.0.0.1/8".parse().unwrap());
        route(&pods, "127.0.0.1/32", "10.1.0.1");
        let eth0 = pods.link("eth0").unwrap().unwrap().index;
        pods.add_addr(eth0, "127.0.0.9/32".parse().unwrap()).unwrap();
        for name in ["all", "eth0"] {
            sysctl::set_in(&net.pods, &format!("net.ipv4.conf.{name}.route_localnet"), "1").unwrap();
        }
        let from = net.pods.run(|| ["10.1.0.2:0", "127.0.0.9:0"].map(|address| UdpSocket::bind(address).unwrap())).unwrap();
        let connect = || TcpStream::connect_timeout(&"127.0.0.1:7777".parse().unwrap(), Duration::from_millis(500)).map(drop);
        assert!(net.pods.run(connect).unwrap().is_err(), "TCP to 127.0.0.1 of the node");
        from[0].send_to(b"x", "127.0.0.1:7777").unwrap();
        from[1].send_to(b"x", "10.9.0.1:7778").unwrap();
        // Both datagrams are ahead of this one, which must arrive.
        from[0].send_to(b"last", "10.9.0.1:7778").unwrap();
        udp.iter().for_each(|socket| socket.set_read_timeout(Some(LIMIT)).unwrap());
        let mut read = [0; 8];
        let (len, peer) = udp[1].recv_from(&mut read).unwrap();
        assert_eq!((&read[..len], peer.ip().to_string()), (&b"last"[..], "10.1.0.2".to_owned()), "a sender that claims to be the node itself");
        udp[0].set_nonblocking(true).unwrap();
        assert!(udp[0].recv(&mut read).is_err(), "a datagram to 127.0.0.1 of the node");
        assert!(tcp.accept().is_err());
    });
}

/// A pod with both families, and a client of IPv6.
#[test]
fn a_host_port_leads_to_the_address_of_its_family() {
    in_lab("portmap::tests::a_host_port_leads_to_the_address_of_its_family", || {
        let net = Net::new();
        for (ns, link, address) in [
            (None, "near", "fd01::1/64"),
            (Some(&net.pods), "eth0", "fd01::2/64"),
            (None, "lan", "fd09::1/64"),
            (Some(&net.client), "eth0", "fd09::2/64"),
        ] {
            let rtnl = ns.map_or_else(Rtnl::open, Rtnl::open_in).unwrap();
            rtnl.add_addr(rtnl.link(link).unwrap().unwrap().index, address.parse().unwrap()).unwrap();
        }
        route(&Rtnl::open_in(&net.pods).unwrap(), "::/0", "fd01::1");
        route(&Rtnl::open_in(&net.client).unwrap(), "::/0", "fd09::1");
        sysctl::set("net.ipv6.conf.all.forwarding", "1").unwrap();
        net.serve("10.1.0.2:80");
        net.serve("[fd01::2]:80");
        let both = |mappings: Value| {
            let mut conf = conf("10.1.0.2", mappings);
            conf["prevResult"]["ips"].as_array_mut().unwrap().push(json!({"address": "fd01::2/64"}));
            conf
        };
        let outside = |address: &str| net.client.run(|| ask(address)).unwrap();
        let in_vain = |address: &str| net.client.run(|| ask_in_vain(address)).unwrap();
        let any = both(json!([{"hostPort": 8080, "containerPort": 80}]));
        call(Command::Add, "a", any.clone()).unwrap();
        assert_eq!(outside("[fd09::1]:8080").as_deref(), Some("fd09::2"), "the client's address is kept");
        assert_eq!(outside("10.9.0.1:8080").as_deref(), Some("10.9.0.2"));
        assert_eq!(in_vain("[fd09::1]:80"), None);
        assert_eq!(ask("[fd09::1]:8080").as_deref(), Some("fd09::1"), "from the node itself");
        assert_eq!(net.pods.run(|| ask("[fd09::1]:8080")).unwrap().as_deref(), Some("fd01::1"), "from the pod to itself, through the node");
        call(Command::Check, "a", any.clone()).unwrap();
        call(Command::Del, "a", any.clone()).unwrap();
        assert_eq!((in_vain("[fd09::1]:8080"), in_vain("10.9.0.1:8080")), (None, None));
        assert_eq!(call(Command::Check, "a", any).unwrap_err().code, code::DRIFT);
        for (at, six, four) in [("::", true, false), ("0.0.0.0", false, true), ("fd09::1", true, false), ("fd01::1", false, false)] {
            let one = both(json!([{"hostPort": 8081, "containerPort": 80, "hostIP": at}]));
            call(Command::Add, "b", one.clone()).unwrap();
            let ask = |address: &str, answers: bool| if answers { outside(address) } else { in_vain(address) }.is_some();
            assert_eq!((ask("[fd09::1]:8081", six), ask("10.9.0.1:8081", four)), (six, four), "{at}");
            call(Command::Del, "b", one).unwrap();
        }
    });
}

/// The client goes on sending from one port while the pod behind it changes.
#[test]
fn datagrams_follow_the_port() {
    in_lab("portmap::tests::datagrams_follow_the_port", || {
        let net = Net::new();
        let servers = ["10.1.0.2:53", "10.1.0.3:53"].map(|address| net.pods.run(|| UdpSocket::bind(address).unwrap()).unwrap());
        let client = net.client.run(|| UdpSocket::bind("10.9.0.2:4000").unwrap()).unwrap();
        client.connect("10.9.0.1:5353").unwrap();
        let mapping = || json!([{"hostPort": 5353, "containerPort": 53, "protocol": "udp"}]);
        for (id, ip, server) in [("a", "10.1.0.2", &servers[0]), ("b", "10.1.0.3", &servers[1])] {
            call(Command::Add, id, conf(ip, mapping())).unwrap();
            client.send(b"x").unwrap();
            server.set_read_timeout(Some(LIMIT)).unwrap();
            server.recv(&mut [0; 8]).unwrap_or_else(|error| panic!("pod {id}: {error}"));
            call(Command::Del, id, conf(ip, mapping())).unwrap();
        }
    });
}

#[test]
fn unmappable_ports_are_refused() {
    let cases = [
        (json!([{"hostPort": 1, "containerPort": 2, "protocol": "sctp"}]), "use TCP or UDP"),
        (json!([{"hostPort": 1, "containerPort": 0}]), "Invalid container port number: 0"),
        (json!([{"hostPort": 1, "containerPort": 2, "hostIP": "fd00::1"}]), "no address of the family of hostIP \"fd00::1\""),
        (json!([{"hostPort": 1, "containerPort": 2, "hostIP": "here"}]), "is no address of this node"),
    ];
    for (mappings, part) in cases {
        let error = call(Command::Add, "a", conf("10.1.0.2", mappings)).unwrap_err();
        assert!(error.msg.contains(part), "{}", error.msg);
    }
    let alone = json!({"cniVersion": "1.0.0", "name": "pods", "type": "portmap"});
    assert!(call(Command::Add, "a", alone).unwrap_err().msg.contains("chained plugin"));
}
