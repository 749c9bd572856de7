//! Real packets through the simulated service over this kernel.

use std::net::{IpAddr, TcpListener};

use hcn::{EndpointPolicy, HostComputeNamespace};
use hns_sim::admin::Restart;
use hns_sim::linux::LinuxKernel;
use linux_sys::netlink::Rtnl;
use linux_sys::ns::{NetNs, in_lab};
use test_lab::net;

use super::*;
use crate::flows::{Flows, echo};

pub struct Lab {
    dir: tempfile::TempDir,
    simulator: Simulator,
    pub client: HcnClient,
    network: Guid,
    pub peer: NetNs,
}

impl Lab {
    /// This namespace is a Windows node; beyond `eth0` is a peer with pods of its own.
    pub async fn new() -> Self {
        Self::of(OLD).await
    }

    /// The same with this version of HNS.
    pub async fn of(version: HnsVersion) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let peer = net::neighbour(("eth0", &["10.240.0.12/24"]), ("eth0", &["10.240.0.11/24", "192.168.2.3/32"]));
        let (node, there) = (Rtnl::open().unwrap(), Rtnl::open_in(&peer).unwrap());
        net::route(&node, "192.168.2.0/24", "10.240.0.11");
        net::route(&node, "0.0.0.0/0", "10.240.0.11");
        net::route(&there, "192.168.1.0/24", "10.240.0.12");
        let kernel = LinuxKernel::open(dir.path(), "eth0").unwrap();
        let simulator = Simulator::new(Box::new(kernel), Switches::of(version), None).unwrap();
        let client = HcnClient::new(simulator.session());
        let subnet = Subnet::new("192.168.1.0/24".parse().unwrap(), "192.168.1.1".parse().unwrap());
        let network = client.create_network(Guid::random(), &HostComputeNetwork::new("pods", NetworkType::L2Bridge, subnet)).await.unwrap().id;
        let host = HostComputeEndpoint::local("pods_ep", "192.168.1.2/24".parse().unwrap(), None);
        let host = client.create_endpoint(&network, Guid::random(), &host).await.unwrap().id;
        client.attach_endpoint_to_host(&host).await.unwrap();
        Self { dir, simulator, client, network, peer }
    }

    /// A proxy for all of `table`, with direct server return as by default.
    pub fn proxy(&self, table: Table) -> Proxy {
        let settings = Settings { node_ips: vec!["10.240.0.12".parse().unwrap()], ..Settings::new("pods") };
        let mut hns = Hns::new(&self.client, UID, settings);
        hns.touch(table.iter().map(|(key, _)| *key).collect::<Vec<_>>(), &table);
        Proxy { hns, table }
    }

    /// A pod as fabric has it made: with `loopbackDSR`.
    pub async fn pod(&self, ip: &str) -> NetNs {
        self.pod_with(ip, vec![EndpointPolicy::outbound_nat_to([ip.parse::<IpAddr>().unwrap().into()])]).await
    }

    async fn pod_with(&self, ip: &str, more: Vec<EndpointPolicy>) -> NetNs {
        let desired = HostComputeNamespace { create_with_compartment: true, ..HostComputeNamespace::default() };
        let namespace = self.client.create_namespace(Guid::random(), &desired).await.unwrap().id;
        let cidrs = ["192.168.0.0/16", "10.96.0.0/12", "10.240.0.0/24"].map(|cidr| cidr.parse().unwrap());
        let mut endpoint = HostComputeEndpoint::local(ip, format!("{ip}/24").parse().unwrap(), "192.168.1.2".parse().ok())
            .with_policy(EndpointPolicy::outbound_nat(cidrs))
            .with_policy(EndpointPolicy::sdn_route(cidrs[1]))
            .with_policy(EndpointPolicy::sdn_route("10.240.0.12/32".parse().unwrap()));
        endpoint.policies.extend(more);
        let endpoint = self.client.create_endpoint(&self.network, Guid::random(), &endpoint).await.unwrap().id;
        self.client.add_endpoint_to_namespace(&namespace, &endpoint).await.unwrap();
        NetNs::open(&self.dir.path().join(namespace.to_string())).unwrap()
    }
}

fn serve(ns: &NetNs, name: &'static str) {
    serve_at(ns, "0.0.0.0", name);
}

/// Sends `name` to every client of port 8080 of an address.
pub fn serve_at(ns: &NetNs, ip: &str, name: &'static str) {
    net::greet(ns, &format!("{ip}:8080"), move |_| name.to_owned());
}

fn ask(ns: &NetNs, to: &str) -> String {
    ask_for(ns, to, LIMIT)
}

fn ask_for(ns: &NetNs, to: &str, patience: Duration) -> String {
    net::greeting(ns, to, patience).unwrap_or_else(|error| error.to_string())
}

async fn services_answer() {
    let lab = Lab::new().await;
    let (a, b) = (lab.pod("192.168.1.5").await, lab.pod("192.168.1.6").await);
    let alone = lab.pod_with("192.168.1.7", Vec::new()).await;
    for ns in [&a, &b, &alone, &lab.peer, &NetNs::current().unwrap()] {
        net::settle(ns);
    }
    serve(&b, "local");
    serve(&alone, "alone");
    serve(&lab.peer, "remote");
    let mut table = Table::default();
    let local = vip(Kind::ClusterIp, &[("192.168.1.6", 8080, true)]);
    let remote = vip(Kind::ClusterIp, &[("192.168.2.3", 8080, false)]);
    let node_port = vip(Kind::NodePort, &[("192.168.1.6", 8080, true)]);
    let vips = vec![(key(Some("10.96.0.1"), 80), local), (key(Some("10.96.0.2"), 80), remote), (key(None, 30080), node_port)];
    let api = (key(Some("10.96.0.3"), 443), vip(Kind::ClusterIp, &[("10.240.0.11", 8080, false)]));
    table.set_service(&Key::new("default", "kubernetes"), vec![api]);
    let alone_vip = vip(Kind::ClusterIp, &[("192.168.1.7", 8080, true)]);
    table.set_service(&Key::new("default", "alone"), vec![(key(Some("10.96.0.4"), 80), alone_vip)]);
    table.set_service(&Key::new("default", "web"), vips);
    let mut proxy = lab.proxy(table);
    proxy.rest().await;
    assert_eq!(proxy.failing(), Vec::<String>::new());
    assert_eq!(ask(&a, "10.96.0.1:80"), "local");
    assert_eq!(ask(&b, "10.96.0.1:80"), "local", "a pod reaches itself through its Service");
    assert_eq!(ask(&a, "10.96.0.4:80"), "alone");
    assert_eq!(ask_for(&alone, "10.96.0.4:80", Duration::from_millis(800)), "connection timed out", "without the loopback policy it does not");
    assert!(proxy.hns.engine().without_loopback().is_some(), "it is reported once");
    assert_eq!(ask(&a, "10.96.0.2:80"), "remote");
    assert_eq!(ask(&a, "10.96.0.3:443"), "remote", "a backend off the pod network, as the API server is");
    assert_eq!(ask(&lab.peer, "10.240.0.12:30080"), "local", "by node port from another node");
    let node = NetNs::current().unwrap();
    assert_eq!(ask(&node, "10.96.0.1:80"), "local", "from the node itself");
    assert_eq!(ask(&node, "10.240.0.12:30080"), "local");
}

#[test]
fn pods_nodes_and_neighbours_reach_services() {
    in_lab("hns::tests::packets::pods_nodes_and_neighbours_reach_services", || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(services_answer());
    });
    parity::proved(parity::Hns, &["A pod that is its own backend"]);
}

/// Asks without end, each time by a new connection, and counts connections without an answer. It asks some times at least.
struct Asking {
    ended: Arc<std::sync::atomic::AtomicBool>,
    thread: std::thread::JoinHandle<(usize, Vec<String>)>,
}

impl Asking {
    fn begin(ns: &Arc<NetNs>, to: &'static str, answer: &'static str) -> Self {
        let ended = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (stop, ns) = (ended.clone(), ns.clone());
        let thread = std::thread::spawn(move || {
            let (mut asked, mut failed) = (0, Vec::new());
            while asked <= 50 || !stop.load(std::sync::atomic::Ordering::Relaxed) {
                asked += 1;
                // A lost packet is sent again after a second.
                let heard = ask_for(&ns, to, Duration::from_millis(800));
                if heard != answer {
                    failed.push(heard);
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            (asked, failed)
        });
        Self { ended, thread }
    }

    fn end(self) -> (usize, Vec<String>) {
        self.ended.store(true, std::sync::atomic::Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// What does not concern a Service neither cuts its connections nor loses a new one.
async fn others_change() {
    let lab = Lab::new().await;
    let (a, b) = (Arc::new(lab.pod("192.168.1.5").await), lab.pod("192.168.1.6").await);
    for ns in [&*a, &b, &lab.peer, &NetNs::current().unwrap()] {
        net::settle(ns);
    }
    serve(&b, "local");
    for ns in [&b, &lab.peer] {
        echo(ns.run(|| TcpListener::bind("0.0.0.0:8081").unwrap()).unwrap());
    }
    let mut table = Table::default();
    let kept = vec![
        (key(Some("10.96.0.1"), 80), vip(Kind::ClusterIp, &[("192.168.1.6", 8080, true)])),
        (key(Some("10.96.0.1"), 81), vip(Kind::ClusterIp, &[("192.168.1.6", 8081, true)])),
        (key(Some("10.96.0.2"), 81), vip(Kind::ClusterIp, &[("192.168.2.3", 8081, false)])),
    ];
    table.set_service(&Key::new("default", "kept"), kept);
    let mut proxy = lab.proxy(table);
    proxy.rest().await;
    assert_eq!(proxy.hns.engine().without_loopback(), None, "every pod has the loopback policy");
    let mut flows = Flows::open(&a, &["10.96.0.1:81", "10.96.0.2:81"], 500);
    assert_eq!(flows.alive(), 1000);
    let asking = Asking::begin(&a, "10.96.0.1:80", "local");
    let other = |proxy: &mut Proxy, pods: &[(&str, u16, bool)]| {
        let list = (0..20).map(|i| (key(Some(&format!("10.96.1.{i}")), 80), vip(Kind::ClusterIp, pods))).collect();
        proxy.set("others", list);
    };
    other(&mut proxy, &[("192.168.1.6", 8080, true), ("192.168.2.3", 8080, false)]);
    proxy.rest().await;
    assert_eq!(flows.alive(), 1000, "Services come");
    other(&mut proxy, &[("192.168.2.9", 8080, false)]);
    proxy.rest().await;
    assert_eq!(flows.alive(), 1000, "their backends change");
    let id = load_balancer_id(UID, &key(Some("10.96.1.3"), 80));
    lab.client.delete_load_balancer(&id).await.unwrap();
    let back = || lab.simulator.with_state(|state| state.balancers.contains_key(&id));
    proxy.until("the repair", |engine| engine.is_idle() && back()).await;
    assert_eq!(flows.alive(), 1000, "one is lost and comes back");
    let mut proxy = lab.proxy(proxy.table);
    proxy.rest().await;
    assert_eq!(flows.alive(), 1000, "the proxy restarts");
    lab.simulator.restart(Restart { away_ms: 300, ..Restart::default() }).unwrap();
    proxy.until("the service to be away", |engine| !engine.is_up()).await;
    proxy.until("the service", |engine| engine.is_up() && engine.is_idle()).await;
    assert_eq!(flows.alive(), 1000, "the service restarts");
    other(&mut proxy, &[]);
    proxy.rest().await;
    assert_eq!(flows.alive(), 1000, "Services go");
    let (asked, failed) = asking.end();
    assert!(failed.is_empty(), "{} of {asked} got no answer: {failed:?}", failed.len());
}

#[test]
fn unchanged_services_lose_no_connection() {
    in_lab("hns::tests::packets::unchanged_services_lose_no_connection", || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(others_change());
    });
}
