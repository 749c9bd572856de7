//! Real packets on each type of network that kube-proxy serves: which backend answers, which client it sees, and that restarts change nothing.
//!
//! A LAN of two Windows nodes (.11 and .12) and a host outside of the cluster (.50). The proxy serves node .11. Pods are as fabric has them
//! made, with `loopbackDSR`.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use hcn::{EndpointPolicy, HostComputeNamespace};
use hns_sim::admin::Restart;
use hns_sim::linux::LinuxKernel;
use linux_sys::netlink::Rtnl;
use linux_sys::ns::{NetNs, in_lab};
use test_lab::net::{self, Lan};

use super::*;

const N1: &str = "10.240.0.11";
const OUTSIDE: &str = "10.240.0.50";

/// How long nothing must come where nothing may.
const SILENCE: Duration = Duration::from_millis(300);

fn host(lan: &Lan, address: &str) -> NetNs {
    let ns = lan.host(address);
    net::set_up(&Rtnl::open_in(&ns).unwrap(), "lo", &[]);
    ns
}

/// The LAN with a router, which forwards to the pods of both nodes as a fabric does.
fn lan() -> Lan {
    let lan = Lan::new();
    lan.router.run(|| linux_sys::sysctl::set("net.ipv4.ip_forward", "1")).unwrap().unwrap();
    for number in [1, 2] {
        net::route(&Rtnl::open_in(&lan.router).unwrap(), &format!("192.168.{number}.0/24"), &format!("10.240.0.1{number}"));
    }
    lan
}

/// A Windows node with a network.
struct Node {
    number: u8,
    network_type: NetworkType,
    ns: NetNs,
    dir: tempfile::TempDir,
    simulator: Simulator,
    client: HcnClient,
    network: Guid,
}

impl Node {
    async fn new(lan: &Lan, number: u8, network_type: NetworkType, version: HnsVersion) -> Self {
        let ns = host(lan, &format!("10.240.0.1{number}"));
        let dir = tempfile::tempdir().unwrap();
        let kernel = LinuxKernel::open_in(ns.clone(), dir.path(), "eth0").unwrap();
        let simulator = Simulator::new(Box::new(kernel), Switches::of(version), None).unwrap();
        let client = HcnClient::new(simulator.session());
        let mut node = Self { number, network_type, ns, dir, simulator, client, network: Guid::random() };
        node.network = node.client.create_network(Guid::random(), &node.network()).await.unwrap().id;
        if !node.is_overlay() {
            let host = HostComputeEndpoint::local("pods_ep", format!("{}.2/24", node.prefix()).parse().unwrap(), None);
            let host = node.client.create_endpoint(&node.network, Guid::random(), &host).await.unwrap().id;
            node.client.attach_endpoint_to_host(&host).await.unwrap();
            let other = 3 - number;
            net::route(&Rtnl::open_in(&node.ns).unwrap(), &format!("192.168.{other}.0/24"), &format!("10.240.0.1{other}"));
        }
        node
    }

    fn is_overlay(&self) -> bool {
        self.network_type == NetworkType::Overlay
    }

    fn prefix(&self) -> String {
        format!("{}.{}", if self.is_overlay() { "10.244" } else { "192.168" }, self.number)
    }

    fn ip(&self, last: u8) -> String {
        format!("{}.{last}", self.prefix())
    }

    fn network(&self) -> HostComputeNetwork {
        let mut subnet = Subnet::new(format!("{}.0/24", self.prefix()).parse().unwrap(), self.ip(1).parse().unwrap());
        if !self.is_overlay() {
            return HostComputeNetwork::new("pods", self.network_type.clone(), subnet);
        }
        subnet.policies.push(serde_json::from_value(serde_json::json!({"Type": "VSID", "Settings": {"IsolationId": 4096}})).unwrap());
        let other = 3 - self.number;
        let to_other = RemoteSubnetRoute {
            destination_prefix: format!("10.244.{other}.0/24"),
            isolation_id: 4096,
            provider_address: format!("10.240.0.1{other}"),
            distributed_router_mac_address: format!("00-15-5D-00-0{other}-01"),
            ..RemoteSubnetRoute::default()
        };
        // As flannel makes it.
        HostComputeNetwork::new("pods", NetworkType::Overlay, subnet)
            .with_policy(NetworkPolicy::dr_mac_address(format!("00-15-5D-00-0{}-01", self.number)))
            .with_policy(serde_json::from_value(serde_json::json!({"Type": "HostRoute", "Settings": {}})).unwrap())
            .with_policy(NetworkPolicy::remote_subnet_route(&to_other))
    }

    async fn pod(&self, last: u8, loopback: bool) -> NetNs {
        let desired = HostComputeNamespace { create_with_compartment: true, ..HostComputeNamespace::default() };
        let namespace = self.client.create_namespace(Guid::random(), &desired).await.unwrap().id;
        let (ip, gateway) = (self.ip(last), self.ip(if self.is_overlay() { 1 } else { 2 }));
        let cidrs = ["192.168.0.0/16", "10.244.0.0/16", "10.96.0.0/12", "10.240.0.0/24"].map(|cidr| cidr.parse().unwrap());
        let node = format!("10.240.0.1{}/32", self.number).parse().unwrap();
        let mut endpoint = HostComputeEndpoint::local(ip.as_str(), format!("{ip}/24").parse().unwrap(), gateway.parse().ok())
            .with_policy(EndpointPolicy::outbound_nat(cidrs))
            .with_policy(EndpointPolicy::sdn_route(cidrs[2]))
            .with_policy(EndpointPolicy::sdn_route(node));
        if loopback {
            endpoint = endpoint.with_policy(EndpointPolicy::outbound_nat_to([IpAddr::V4(ip.parse().unwrap()).into()]));
        }
        let endpoint = self.client.create_endpoint(&self.network, Guid::random(), &endpoint).await.unwrap().id;
        self.client.add_endpoint_to_namespace(&namespace, &endpoint).await.unwrap();
        open(self.dir.path(), &namespace)
    }

    fn proxy(&self, table: Table) -> Proxy {
        let mac = Rtnl::open_in(&self.ns).unwrap().link("eth0").unwrap().unwrap().mac.map(|byte| format!("{byte:02X}")).join("-");
        let settings = Settings { node_ips: vec![N1.parse().unwrap()], host_mac: Some(mac), ..Settings::new("pods") };
        let settings = Settings { source_vip: self.is_overlay().then(|| self.ip(2).parse().unwrap()), ..settings };
        let mut hns = Hns::new(&self.client, UID, settings);
        hns.touch(table.iter().map(|(key, _)| *key).collect::<Vec<_>>(), &table);
        Proxy { hns, table }
    }
}

fn open(dir: &Path, namespace: &Guid) -> NetNs {
    NetNs::open(&dir.join(namespace.to_string())).unwrap()
}

/// Answers each connection to port 8080 with its own name and the client's address.
fn serve(ns: &NetNs, name: &'static str) {
    net::greet(ns, "0.0.0.0:8080", move |peer| format!("{name} saw {peer}"));
}

/// Two nodes and pods on them.
struct World {
    _lan: Lan,
    one: Node,
    _two: Node,
    outside: NetNs,
    a: NetNs,
    b: NetNs,
    alone: NetNs,
    _far: NetNs,
}

impl World {
    async fn new(network_type: NetworkType, version: HnsVersion) -> (Self, Table) {
        let lan = lan();
        let (one, two) = (Node::new(&lan, 1, network_type.clone(), version).await, Node::new(&lan, 2, network_type, version).await);
        let outside = host(&lan, OUTSIDE);
        let (a, b, alone, far) = (one.pod(5, true).await, one.pod(6, true).await, one.pod(8, false).await, two.pod(7, true).await);
        for ns in [&a, &b, &alone, &far, &one.ns, &two.ns, &outside, &lan.router] {
            net::settle(ns);
        }
        serve(&b, "b");
        serve(&alone, "alone");
        serve(&far, "far");
        let [near, lone, there] = [one.ip(6), one.ip(8), two.ip(7)];
        let [near, lone, there] = [(near.as_str(), 8080, true), (lone.as_str(), 8080, true), (there.as_str(), 8080, false)];
        let sticky = Vip { affinity: Some(10_800), ..vip(Kind::ClusterIp, &[near, there]) };
        let kept = Vip { keep_client: true, ..vip(Kind::NodePort, &[near]) };
        let mut table = Table::default();
        let vips = vec![
            (key(Some("10.96.0.1"), 80), vip(Kind::ClusterIp, &[near])),
            (key(Some("10.96.0.2"), 80), vip(Kind::ClusterIp, &[there])),
            (key(Some("10.96.0.3"), 80), vip(Kind::ClusterIp, &[near, there])),
            (key(Some("10.96.0.4"), 80), sticky),
            (key(Some("10.96.0.5"), 80), vip(Kind::ClusterIp, &[lone])),
            (key(None, 30080), vip(Kind::NodePort, &[there])),
            (key(None, 30081), kept),
        ];
        table.set_service(&Key::new("default", "web"), vips);
        (Self { _lan: lan, one, _two: two, outside, a, b, alone, _far: far }, table)
    }

    /// Asks everywhere. Returns the backend of the sticky client; versions without direct server return have no affinity either.
    fn check(&self, when: &str, direct: bool) -> String {
        let source = if self.one.is_overlay() { self.one.ip(2) } else { N1.to_owned() };
        let (own, plain) = (self.one.ip(5), self.one.ip(8));
        let seen = |client: &str| if direct { client.to_owned() } else { source.clone() };
        let rows = [
            ("a pod, of a pod of its node", &self.a, "10.96.0.1:80", Some(format!("b saw {}", seen(&own)))),
            ("a pod, of a pod of another node", &self.a, "10.96.0.2:80", Some(format!("far saw {}", seen(&own)))),
            ("a pod without loopback, of another node", &self.alone, "10.96.0.2:80", Some(format!("far saw {}", seen(&plain)))),
            ("a pod, of itself", &self.b, "10.96.0.1:80", Some(format!("b saw {}", seen(N1)))),
            ("a pod without loopback, of itself", &self.alone, "10.96.0.5:80", (!direct).then(|| format!("alone saw {source}"))),
            ("outside, policy Cluster", &self.outside, "10.240.0.11:30080", Some(format!("far saw {source}"))),
            ("outside, policy Local", &self.outside, "10.240.0.11:30081", Some(format!("b saw {}", seen(OUTSIDE)))),
        ];
        let wrong: Vec<String> = rows
            .iter()
            .map(|(who, ns, to, expected)| (who, net::greeting(ns, to, if expected.is_some() { LIMIT } else { SILENCE }).ok(), expected))
            .filter(|(_, found, expected)| found != *expected)
            .map(|(who, found, expected)| format!("{who}: {found:?}, not {expected:?}"))
            .collect();
        assert!(wrong.is_empty(), "{}, {when}: {wrong:#?}", self.one.network_type);
        let many = |to: &str| (0..24).map(|_| net::greeting(&self.a, to, LIMIT).unwrap_or_default()).collect::<BTreeSet<String>>();
        assert_eq!(many("10.96.0.3:80").len(), 2, "{}, {when}: connections meet both backends", self.one.network_type);
        let sticky = many("10.96.0.4:80");
        assert_eq!(sticky.len(), if direct { 1 } else { 2 }, "{}, {when}: a sticky client meets {sticky:?}", self.one.network_type);
        sticky.into_iter().next().unwrap_or_default()
    }
}

async fn served(network_type: NetworkType) {
    let (world, table) = World::new(network_type, OLD).await;
    let mut proxy = world.one.proxy(table);
    proxy.rest().await;
    assert_eq!(proxy.failing(), Vec::<String>::new());
    let sticky = world.check("at first", true);
    let mut proxy = world.one.proxy(proxy.table);
    proxy.rest().await;
    assert_eq!(proxy.hns.engine().writes(), 0, "a restarted proxy adopts all of it");
    assert_eq!(world.check("after the proxy's restart", true), sticky, "the client stays where it was");
    world.one.simulator.restart(Restart { away_ms: 100, ..Restart::default() }).unwrap();
    proxy.until("the service to be away", |engine| !engine.is_up()).await;
    proxy.until("the service", |engine| engine.is_up() && engine.is_idle()).await;
    assert_eq!(world.check("after the service's restart", true), sticky, "the client stays where it was");
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

#[test]
fn overlays_are_served_and_restarts_change_nothing() {
    in_lab("hns::tests::networks::overlays_are_served_and_restarts_change_nothing", || run(served(NetworkType::Overlay)));
}

#[test]
fn tunnels_are_served_and_restarts_change_nothing() {
    in_lab("hns::tests::networks::tunnels_are_served_and_restarts_change_nothing", || run(served(NetworkType::L2Tunnel)));
}

#[test]
fn bridges_are_served_and_restarts_change_nothing() {
    in_lab("hns::tests::networks::bridges_are_served_and_restarts_change_nothing", || run(served(NetworkType::L2Bridge)));
}

/// Policy Local asks for the client's address; a version that cannot keep it is named, and the Service is served all the same.
async fn translated(network_type: NetworkType, version: HnsVersion) {
    let (world, table) = World::new(network_type, version).await;
    let mut proxy = world.one.proxy(table);
    proxy.rest().await;
    let direct = version == OLD;
    world.check("with direct server return where HNS has it", direct);
    let reported = |key: &VipKey| proxy.hns.engine().gaps().get(key).map(|gaps| gaps.iter().map(Gap::name).collect::<Vec<_>>());
    assert_eq!(reported(&key(None, 30081)), (!direct).then(|| vec!["NoClientAddress"]));
    assert_eq!(reported(&key(None, 30080)), None, "policy Cluster does not ask for it");
}

#[test]
fn without_dsr_the_client_address_is_lost_and_reported() {
    in_lab("hns::tests::networks::without_dsr_the_client_address_is_lost_and_reported", || {
        for network_type in [NetworkType::L2Bridge, NetworkType::L2Tunnel, NetworkType::Overlay] {
            run(translated(network_type, HnsVersion::new(10, 0)));
        }
        run(translated(NetworkType::L2Bridge, OLD));
    });
    parity::proved(parity::Hns, &["externalTrafficPolicy Local: backends see the client's address"]);
}
