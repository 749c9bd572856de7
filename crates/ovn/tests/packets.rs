//! Packets between pods of two hosts over geneve: central, two chassis with Open vSwitch's userspace datapath, and rows that are all ours.
//!
//! Needs `/dev/net/tun`, Debian's packages ovn-central, ovn-host and openvswitch-switch, ethtool and ping.
#![cfg(target_os = "linux")]

mod api;
mod central;

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use api::Api;
use central::{Central, LIMIT, run, start};
use ipnet::Ipv4Net;
use linux_sys::netlink::{Route, Rtnl};
use linux_sys::ns::{NetNs, in_lab};
use ovn::helper;
use ovn::init::{self, Databases, GatewaySettings, Node};
use ovn::watcher;
use ovsdb::Config;
use test_lab::net::{Lan, greet, greeting, set_up};
use test_lab::until;

const PATIENCE: Duration = Duration::from_secs(2);

/// A host: its namespace, and the programs of its chassis, which end with the test.
struct Host {
    name: &'static str,
    ns: NetNs,
    dir: PathBuf,
    children: Vec<Child>,
}

fn no_offload(ns: &NetNs, link: &str) {
    // In the userspace datapath nobody completes a checksum that the kernel left to the card.
    ns.run(|| run("ethtool", &["-K", link, "tx", "off"])).unwrap();
}

impl Host {
    fn new(central: &Central, lan: &Lan, name: &'static str, address: &str) -> Self {
        let dir = central.path(name);
        std::fs::create_dir(&dir).unwrap();
        let mut host = Self { name, ns: lan.host(address), dir, children: Vec::new() };
        run("ovsdb-tool", &["create", &host.text("conf.db"), "/usr/share/openvswitch/vswitch.ovsschema"]);
        let args = [format!("--remote=punix:{}", host.text("db.sock")), format!("--unixctl={}", host.text("db.ctl")), host.text("conf.db")];
        host.start("ovsdb-server", &[&args[..], &["-vconsole:off".to_owned()]].concat());
        until("the socket of the switch's database", || host.dir.join("db.sock").exists());
        host.vsctl(&["--no-wait", "init"]);
        let ids = [
            ("system-id", name.to_owned()),
            ("hostname", name.to_owned()),
            ("ovn-remote", central.socket("sb")),
            ("ovn-nb", central.socket("nb")),
            ("ovn-encap-type", "geneve".to_owned()),
            ("ovn-encap-ip", address.to_owned()),
            ("ovn-bridge-datapath-type", "netdev".to_owned()),
        ];
        for (key, value) in ids {
            host.vsctl(&["--no-wait", "set", "Open_vSwitch", ".", &format!("external_ids:{key}=\"{value}\"")]);
        }
        host.start("ovs-vswitchd", &[host.local(), format!("--unixctl={}", host.text("vswitchd.ctl")), "-vconsole:off".into()]);
        // The tunnel's address has to be on a bridge of the userspace datapath.
        host.vsctl(&["add-br", "br-phys", "--", "set", "Bridge", "br-phys", "datapath_type=netdev", "--", "add-port", "br-phys", "eth0"]);
        let rtnl = Rtnl::open_in(&host.ns).unwrap();
        let eth0 = rtnl.link("eth0").unwrap().unwrap().index;
        rtnl.del_addr(eth0, format!("{address}/24").parse().unwrap()).unwrap();
        set_up(&rtnl, "br-phys", &[&format!("{address}/24")]);
        ["eth0", "br-phys"].iter().for_each(|link| no_offload(&host.ns, link));
        host.start("ovn-controller", &[host.local(), "-vconsole:off".into()]);
        host
    }

    fn text(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    fn local(&self) -> String {
        format!("unix:{}", self.text("db.sock"))
    }

    fn start(&mut self, program: &str, args: &[String]) {
        let dir: &Path = &self.dir;
        let child = self.ns.run(|| start(dir, program, args)).unwrap();
        self.children.push(child);
    }

    fn vsctl(&self, args: &[&str]) -> String {
        let db = format!("--db={}", self.local());
        run("ovs-vsctl", &[&["--timeout=20", &db], args].concat())
    }

    fn databases(&self) -> Databases {
        Databases { northbound: None, local: ovsdb::remotes(&self.local()).unwrap(), tls: None, limit: LIMIT, dry_run: false }
    }

    /// Runs one of the commands in the host's namespace.
    fn init<T: Send>(&self, command: impl AsyncFnOnce(&Databases) -> T + Send) -> T {
        let databases = self.databases();
        let run = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(command(&databases));
        self.ns.run(run).unwrap()
    }

    /// Connects a pod as a CNI plug-in does, with what the annotation says.
    fn pod(&self, api: &Api, name: &str) -> NetNs {
        let text = until(format!("the annotation of {name}"), || api.annotation(name, "ovn"));
        let network: serde_json::Value = serde_json::from_str(&text).unwrap();
        let (ns, near) = (NetNs::new_anonymous().unwrap(), Rtnl::open_in(&self.ns).unwrap());
        near.add_veth(name, "eth0", Some(&ns)).unwrap();
        set_up(&near, name, &[]);
        let inside = Rtnl::open_in(&ns).unwrap();
        let eth0 = inside.link("eth0").unwrap().unwrap().index;
        let mac: Vec<u8> = network["mac_address"].as_str().unwrap().split(':').map(|part| u8::from_str_radix(part, 16).unwrap()).collect();
        inside.set_mac(eth0, mac.try_into().unwrap()).unwrap();
        inside.set_mtu(eth0, 1400).unwrap();
        set_up(&inside, "eth0", &[network["ip_address"].as_str().unwrap()]);
        let gateway = network["gateway_ip"].as_str().unwrap().parse().unwrap();
        inside.add_route(&Route::new("0.0.0.0/0".parse().unwrap()).via(gateway)).unwrap();
        no_offload(&ns, "eth0");
        no_offload(&self.ns, name);
        let id = format!("external_ids:iface-id=default_{name}");
        self.vsctl(&["add-port", "br-int", name, "--", "set", "Interface", name, &id]);
        let installed = || self.vsctl(&["--if-exists", "get", "Interface", name, "external_ids:ovn-installed"]).contains("true");
        until(format!("ovn-installed of {name}"), installed);
        ns
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        for child in self.children.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn ping(ns: &NetNs, to: &str, size: u32) -> Result<(), String> {
    let size = size.to_string();
    let output = ns.run(|| Command::new("ping").args(["-c", "1", "-W", "1", "-M", "do", "-s", &size, to]).output()).unwrap().unwrap();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stdout).into_owned()) }
}

fn address(api: &Api, pod: &str) -> String {
    let network: serde_json::Value = serde_json::from_str(&api.annotation(pod, "ovn").unwrap()).unwrap();
    network["ip_address"].as_str().unwrap().split('/').next().unwrap().to_owned()
}

/// Runs the watcher until the test ends.
fn watch(central: &Central, api: &Api) {
    let (api, northbound) = (api.clone(), Config { wants: watcher::wants(), ..central.config() });
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let config = watcher::Config { client: api.client(), northbound, full_pass: Duration::from_secs(600) };
            watcher::run(config, std::future::pending()).await;
        });
    });
}

fn node(name: &str, subnet: &str) -> Node {
    Node { name: name.into(), cluster_subnet: net("192.168.0.0/16"), subnet: net(subnet) }
}

fn net(text: &str) -> Ipv4Net {
    text.parse().unwrap()
}

#[test]
fn pods_of_two_hosts_reach_each_other_and_a_service() {
    in_lab("pods_of_two_hosts_reach_each_other_and_a_service", || {
        let (mut central, lan) = (Central::new(&[]), Lan::new());
        let hosts = [Host::new(&central, &lan, "cp", "10.240.0.11"), Host::new(&central, &lan, "lin01", "10.240.0.12")];
        let master = node("cp", "192.168.1.0/24");
        let report = hosts[0].init(async |databases| init::master(databases, &master).await).unwrap().to_string();
        assert!(
            report.contains("+ Logical_Router cp") && report.contains("+ Interface k8s-cp") && report.contains("+ Logical_Switch cp"),
            "{report}"
        );
        let worker = node("lin01", "192.168.2.0/24");
        hosts[1].init(async |databases| init::minion(databases, &worker).await).unwrap();
        // Again: there is nothing to do.
        let again = hosts[1].init(async |databases| init::minion(databases, &worker).await).unwrap().to_string();
        assert_eq!(again, "Open_vSwitch: nothing to do\nOVN_Northbound: nothing to do\n");
        let api = Api::default();
        api.pod("one", "cp");
        api.pod("two", "lin01");
        watch(&central, &api);
        let (one, two) = (hosts[0].pod(&api, "one"), hosts[1].pod(&api, "two"));
        let (first, second) = (address(&api, "one"), address(&api, "two"));
        assert!(first.starts_with("192.168.1.") && second.starts_with("192.168.2."), "{first} {second}");
        // The largest packet of the pods' MTU, both ways; and from the other node itself.
        until("a ping between the pods", || ping(&one, &second, 1372));
        until("a ping back", || ping(&two, &first, 1372));
        until("a ping from the other node", || ping(&hosts[0].ns, &second, 1372));
        assert!(ping(&one, &second, 1373).is_err(), "larger than the MTU");
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
        central.end("northd");
        assert_eq!(greeting(&one, "10.96.0.10:80", PATIENCE).unwrap(), expected);
        for host in &hosts {
            assert!(host.vsctl(&["list-ports", "br-int"]).contains(&format!("k8s-{}", host.name)));
        }
    });
}

/// The outside: a host behind the gateway's second network card, which knows no pod.
fn outside(gateway: &Host) -> NetNs {
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
fn shared_bridge(host: &Host) {
    host.vsctl(&["add-br", "breth1", "--", "set", "Bridge", "breth1", "datapath_type=netdev", "--", "add-port", "breth1", "eth1"]);
    let rtnl = Rtnl::open_in(&host.ns).unwrap();
    let eth1 = rtnl.link("eth1").unwrap().unwrap().index;
    rtnl.del_addr(eth1, "203.0.113.1/24".parse().unwrap()).unwrap();
    set_up(&rtnl, "breth1", &["203.0.113.1/24"]);
    no_offload(&host.ns, "breth1");
}

/// Runs the gateway helper until the test ends.
fn help(host: &Host, api: &Api) {
    let (api, local, run_dir) = (api.clone(), ovsdb::remotes(&host.local()).unwrap(), host.dir.clone());
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
    let (central, lan) = (Central::new(&[]), Lan::new());
    let hosts = [Host::new(&central, &lan, "cp", "10.240.0.11"), Host::new(&central, &lan, "gw", "10.240.0.12")];
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
    let early = hosts[1].init(async |databases| init::gateway(databases, &settings).await).unwrap_err().to_string();
    assert!(early.contains("there is no Logical_Switch join"), "{early}");
    let master = node("cp", "192.168.1.0/24");
    hosts[0].init(async |databases| init::master(databases, &master).await).unwrap();
    hosts[1].init(async |databases| init::gateway(databases, &settings).await).unwrap();
    let again = hosts[1].init(async |databases| init::gateway(databases, &settings).await).unwrap().to_string();
    assert_eq!(again, "Open_vSwitch: nothing to do\nOVN_Northbound: nothing to do\n");
    let api = Api::default();
    api.pod("web", "cp");
    watch(&central, &api);
    if shared {
        help(&hosts[1], &api);
    }
    let web = hosts[0].pod(&api, "web");
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
    until("the end of the NodePort", || greeting(&outside, "203.0.113.1:30080", Duration::from_millis(300)).is_err());
}

/// The flows are what the helper takes for wanted, so that at rest it changes none.
fn flows_are_kept(host: &Host) {
    let bridge = format!("unix:{}", host.text("breth1.mgmt"));
    let text = run("ovs-ofctl", &["--no-stats", "--no-names", "dump-flows", &bridge]);
    let ours: std::collections::BTreeSet<String> =
        text.lines().filter_map(|line| line.trim().strip_prefix("cookie=0x6d756c6c696f6e31, ")).map(str::to_owned).collect();
    let number = |name: &str| host.vsctl(&["get", "Interface", name, "ofport"]).trim().parse().unwrap();
    let mac = host.vsctl(&["get", "Interface", "breth1", "mac_in_use"]).trim().trim_matches('"').to_owned();
    let ports = helper::Ports { card: number("eth1"), patch: number("k8s-patch-breth1-br-int"), mac };
    assert_eq!(ours, helper::flows(&ports, &[(ovn::Protocol::Tcp, 30080)].into()));
}
