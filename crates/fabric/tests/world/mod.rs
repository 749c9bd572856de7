//! Nodes of both systems on one LAN, each with a fabric of its own, an API server, and pods that exchange packets.
#![allow(dead_code, reason = "each suite uses its part")]

pub mod checks;

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use apiserver::{Identity, NodeNetworks, Server};
use fabric::{Attachment, Mode, PodSettings, Role, Settings, Vxlan};
use hcn::blocking::Client as Hcn;
use hcn::document::EndpointPolicyType;
use hcn::{EndpointPolicy, Guid, HcnClient, HnsVersion, HostComputeEndpoint, HostComputeNamespace, HostComputeNetwork};
use hns_sim::Simulator;
use hns_sim::linux::LinuxKernel;
use hns_sim::store::Store;
use hns_sim::switches::Switches;
use host::{LinuxRoutes, Routes};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use linux_sys::netlink::{Route, Rtnl};
use linux_sys::ns::NetNs;
use linux_sys::sysctl;
use serde_json::{Value, json};
use test_lab::net::{Lan, greeting, route, serve_tcp, set_up, settle};
use test_lab::server::Keys;
use test_lab::until;
use tokio::sync::oneshot;

/// Largest packet of the nodes' network: not the usual one.
pub const MTU: u32 = 1400;
/// How long nothing must come where nothing may.
const SILENCE: Duration = Duration::from_millis(300);
/// A host that is no node, behind the router.
pub const OUTSIDE: [&str; 2] = ["172.30.0.2", "fd00:30::2"];
const CLUSTERS: [&str; 2] = ["192.168.0.0/16", "fd00:10:244::/48"];
const SERVICES: [&str; 2] = ["10.96.0.0/12", "fd00:10:96::/112"];
const LANS: [&str; 2] = ["10.240.0.0/24", "fd00:10:240::/64"];

/// The address families of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Families {
    Ipv4,
    Both,
    /// Both, and the primary one is IPv6.
    Ipv6First,
}

impl Families {
    /// The primary one first; 0 is IPv4, 1 IPv6, as in the lists above.
    fn order(self) -> &'static [usize] {
        match self {
            Self::Ipv4 => &[0],
            Self::Both => &[0, 1],
            Self::Ipv6First => &[1, 0],
        }
    }

    /// What these families have of a list.
    pub fn of<T: std::str::FromStr<Err: std::fmt::Debug>>(self, both: &[impl AsRef<str>; 2]) -> Vec<T> {
        self.order().iter().map(|family| both[*family].as_ref().parse().unwrap()).collect()
    }
}

pub struct World {
    pub mode: Mode,
    pub families: Families,
    pub hosts: BTreeMap<&'static str, Host>,
    pub pods: BTreeMap<String, Pod>,
    lan: Lan,
    /// The second adapters' LAN.
    lan2: Lan,
    directory: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
    server: Server,
    router: Option<Fabric>,
    _outside: NetNs,
}

pub struct Host {
    pub ns: NetNs,
    /// One of each family, as all lists of addresses here.
    pub addresses: Vec<IpAddr>,
    directory: PathBuf,
    /// Of a Windows node.
    pub simulator: Option<Simulator>,
    fabric: Option<Fabric>,
}

pub struct Pod {
    pub node: &'static str,
    pub ips: Vec<IpAddr>,
    pub ns: NetNs,
}

/// A fabric on a thread in its host's namespace.
struct Fabric {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Fabric {
    fn start(ns: &NetNs, config: impl FnOnce() -> fabric::Config + Send + 'static) -> Self {
        let (stop, stopped) = oneshot::channel();
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { fabric::run(config(), async { drop(stopped.await) }).await });
        };
        // A thread is in the namespace of the one that starts it; `run`'s own has a small stack.
        let thread = ns.run(|| std::thread::Builder::new().stack_size(16 << 20).spawn(work)).unwrap().unwrap();
        Self { stop, thread }
    }

    fn end(self) {
        self.stop.send(()).unwrap();
        self.thread.join().unwrap();
    }
}

fn number(name: &str) -> u8 {
    match name {
        "lin01" => 11,
        "lin02" => 12,
        "win01" => 13,
        "win02" => 14,
        "lin03" => 15,
        other => panic!("no host {other}"),
    }
}

/// Of both families.
fn host_addresses(number: u8) -> [String; 2] {
    [format!("10.240.0.{number}"), format!("fd00:10:240::{number}")]
}

fn is_windows(name: &str) -> bool {
    name.starts_with("win")
}

fn limit_packets(ns: &NetNs, link: &str) {
    let rtnl = Rtnl::open_in(ns).unwrap();
    rtnl.set_mtu(rtnl.link(link).unwrap().unwrap().index, MTU).unwrap();
}

impl World {
    /// Two nodes of each system, with their fabrics, and two pods on the first of each. In the mode l3 the router's kernel has the routes.
    pub fn new(mode: Mode) -> Self {
        Self::of(mode, Families::Ipv4)
    }

    /// The same with these address families.
    pub fn of(mode: Mode, families: Families) -> Self {
        Self::with_router(mode, families, |ns, _| Arc::new(LinuxRoutes::open_in(ns).unwrap()))
    }

    /// The same with another table of the router, made from its namespace and a directory.
    pub fn with_router(mode: Mode, families: Families, table: impl FnOnce(&NetNs, &Path) -> Arc<dyn Routes>) -> Self {
        let (lan, lan2) = (Lan::new(), Lan::new());
        let outside = outside(&lan);
        let directory = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let within = families.of(&LANS);
        let store = Keys::new().config(directory.path().join("store"));
        let config = apiserver::Config { node_networks: NodeNetworks { within, except: Vec::new() }, ..store };
        let server = runtime.block_on(apiserver::start(config)).unwrap();
        let (hosts, pods) = (BTreeMap::new(), BTreeMap::new());
        OUTSIDE.iter().for_each(|address| serve(&outside, address.parse().unwrap()));
        let mut world = Self { mode, families, hosts, pods, lan, lan2, directory, runtime, server, router: None, _outside: outside };
        for (name, pods) in [("lin01", 1), ("lin02", 2), ("win01", 3), ("win02", 4)] {
            world.add_host(name);
            world.register(name, pods);
        }
        limit_packets(&world.lan.router, "lan0");
        if mode == Mode::L3 {
            let (config, table) = (world.config("gw", Role::Router, None), table(&world.lan.router, world.directory.path()));
            world.router = Some(Fabric::start(&world.lan.router, move || fabric::Config { routes: table, ..config() }));
        }
        world.hosts.keys().copied().collect::<Vec<_>>().into_iter().for_each(|name| world.start_fabric(name));
        for (node, name) in [("lin01", "la"), ("lin01", "lb"), ("lin02", "lc"), ("win01", "wa"), ("win01", "wb"), ("win02", "wc")] {
            world.add_pod(node, name);
        }
        world
    }

    fn add_host(&mut self, name: &'static str) {
        let both = host_addresses(number(name));
        let ns = self.lan.host(&both[0]);
        let addresses = self.families.of(&both);
        if addresses.len() > 1 {
            let inside = Rtnl::open_in(&ns).unwrap();
            without_dad(&ns, "eth0");
            set_up(&inside, "eth0", &[&format!("{}/64", both[1])]);
            route(&inside, "::/0", "fd00:10:240::1");
            settle(&ns);
        }
        let port = format!("h{}", number(name));
        limit_packets(&ns, "eth0");
        limit_packets(&self.lan.router, &port);
        let directory = self.directory.path().join(name);
        let host = Host { ns, addresses, directory, simulator: None, fabric: None };
        host.addresses.iter().for_each(|address| serve(&host.ns, *address));
        self.hosts.insert(name, host);
        if is_windows(name) {
            if self.mode == Mode::Transparent {
                self.second_adapter(name);
            }
            self.start_hns(name);
        }
    }

    /// An adapter without an address, on a network of its own.
    fn second_adapter(&self, name: &str) {
        let (lan, inside) = (Rtnl::open_in(&self.lan2.router).unwrap(), Rtnl::open_in(&self.hosts[name].ns).unwrap());
        let port = format!("s{}", number(name));
        lan.add_veth(&port, "eth1", Some(&self.hosts[name].ns)).unwrap();
        lan.set_master(lan.link(&port).unwrap().unwrap().index, Some(lan.link("lan0").unwrap().unwrap().index)).unwrap();
        set_up(&lan, &port, &[]);
        set_up(&inside, "eth1", &[]);
        limit_packets(&self.hosts[name].ns, "eth1");
    }

    fn start_hns(&mut self, name: &str) {
        let uplink = if self.mode == Mode::Transparent { "eth1" } else { "eth0" };
        let host = self.hosts.get_mut(name).unwrap();
        let kernel = LinuxKernel::open_in(host.ns.clone(), &host.directory.join("ns"), uplink).unwrap();
        let store = Store::open(&host.directory.join("hns")).unwrap();
        host.simulator = Some(Simulator::new(Box::new(kernel), Switches::of(HnsVersion::new(15, 5)), Some(store)).unwrap());
    }

    /// The pod CIDRs with that number.
    pub fn cidrs(&self, pods: u8) -> Vec<IpNet> {
        self.families.of(&[format!("192.168.{pods}.0/24"), format!("fd00:10:244:{pods}::/64")])
    }

    /// Registers a Node as its agent does, with the pod CIDRs of that number as the controller gives them.
    pub fn register(&self, name: &str, pods: u8) {
        let cidrs = self.cidrs(pods);
        let os = if is_windows(name) { "windows" } else { "linux" };
        self.block_on(async |nodes| {
            let node = json!({"metadata": {"name": name, "labels": {"kubernetes.io/os": os}}, "spec": {"podCIDR": cidrs[0], "podCIDRs": cidrs}});
            nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
        });
        self.report_addresses(name);
    }

    /// Writes the host's addresses into its Node, as its agent does.
    fn report_addresses(&self, name: &str) {
        let addresses: Vec<Value> = self.hosts[name].addresses.iter().map(|address| json!({"type": "InternalIP", "address": address})).collect();
        // All of them: a strategic patch would merge those of before.
        let status = json!({"status": {"addresses": addresses}});
        self.block_on(async |nodes| drop(nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap()));
    }

    /// A Linux host gets other addresses of the LAN in place of those that it had, and its Node too, as when an agent starts again.
    pub fn renumber(&mut self, name: &'static str, last: u8) {
        let both = host_addresses(last);
        let host = self.hosts.get_mut(name).unwrap();
        let inside = Rtnl::open_in(&host.ns).unwrap();
        let eth0 = inside.link("eth0").unwrap().unwrap().index;
        let with_prefix = |address: IpAddr| IpNet::new(address, if address.is_ipv4() { 24 } else { 64 }).unwrap();
        for address in std::mem::replace(&mut host.addresses, self.families.of(&both)) {
            inside.del_addr(eth0, with_prefix(address)).unwrap();
        }
        for address in &host.addresses {
            inside.add_addr(eth0, with_prefix(*address)).unwrap();
            // The kernel took it away with the address, or it is there still.
            let (all, router) = if address.is_ipv4() { ("0.0.0.0/0", "10.240.0.1") } else { ("::/0", "fd00:10:240::1") };
            inside.replace_route(&Route::new(all.parse().unwrap()).via(router.parse().unwrap())).unwrap();
            serve(&host.ns, *address);
        }
        self.report_addresses(name);
    }

    pub fn unregister(&self, name: &str) {
        self.block_on(async |nodes| drop(nodes.delete(name, &DeleteParams::default()).await.unwrap()));
    }

    /// The condition `NetworkUnavailable` of a node, as status and reason.
    pub fn condition(&self, name: &str) -> Option<String> {
        let node = self.block_on(async |nodes| nodes.get(name).await.unwrap());
        let condition = node.status?.conditions?.into_iter().find(|condition| condition.type_ == "NetworkUnavailable")?;
        Some(format!("{} {}", condition.status, condition.reason.unwrap_or_default()))
    }

    fn block_on<T>(&self, work: impl AsyncFnOnce(Api<Node>) -> T) -> T {
        let identity = Identity { user: "admin".into(), groups: vec!["system:masters".into()] };
        self.runtime.block_on(async { work(Api::all(Client::new(self.server.in_process(identity), "default"))).await })
    }

    /// Makes the configuration of a host's fabric, in the runtime that runs it.
    fn config(&self, name: &str, role: Role, hns: Option<&Simulator>) -> impl FnOnce() -> fabric::Config + Send + 'static {
        let identity = match role {
            Role::Router => {
                Identity { user: "system:serviceaccount:kube-system:route-controller".into(), groups: vec!["system:authenticated".into()] }
            }
            _ => Identity { user: format!("system:node:{name}"), groups: vec!["system:nodes".into(), "system:authenticated".into()] },
        };
        let (api, ns) = (self.server.in_process(identity), self.hosts.get(name).map_or(&self.lan.router, |host| &host.ns).clone());
        let (mode, families, node_name, session) = (self.mode, self.families, name.to_owned(), hns.map(Simulator::session));
        move || fabric::Config {
            client: Client::new(api, "default"),
            api: cluster::ApiServer::default(),
            settings: Settings { mode, vxlan: Vxlan::default(), bgp: fabric::Bgp::default(), node_name, cluster_cidrs: families.of(&CLUSTERS), role },
            routes: Arc::new(LinuxRoutes::open_in(&ns).unwrap()),
            changes: session.clone().map(|session| hcn::watch::Watch::start(HcnClient::new(session), hcn::watch::Timing::default()).listen()),
            hcn: session.map(HcnClient::new),
            full_pass: Duration::from_secs(3),
            status: None,
            facts: None,
        }
    }

    pub fn start_fabric(&mut self, name: &'static str) {
        let host = &self.hosts[name];
        let attachment = match is_windows(name) {
            true => Attachment::Windows { adapter: "Ethernet".into(), loopback_dsr: true },
            false => Attachment::Linux { bridge: "cni0".into() },
        };
        let pods = PodSettings {
            attachment,
            cluster_uid: "uid".into(),
            network_name: "mullion".into(),
            service_cidrs: self.families.of(&SERVICES),
            lans: self.families.of(&LANS),
            dns_ip: "10.96.0.10".parse().unwrap(),
            cluster_domain: "cluster.local".into(),
            cni_conf_dir: host.directory.join("net.d"),
            ipam_dir: Some(host.directory.join("ipam")),
            subnet_env: None,
        };
        let config = self.config(name, Role::Node(Box::new(pods)), host.simulator.as_ref());
        let fabric = Fabric::start(&host.ns, config);
        self.hosts.get_mut(name).unwrap().fabric = Some(fabric);
    }

    pub fn stop_fabric(&mut self, name: &str) {
        self.hosts.get_mut(name).unwrap().fabric.take().unwrap().end();
    }

    /// One more node, with its fabric.
    pub fn add_node(&mut self, name: &'static str, pods: u8) {
        self.add_host(name);
        self.register(name, pods);
        self.start_fabric(name);
    }

    /// A Windows host starts again: what the service keeps over a boot is there, routes are not.
    pub fn reboot(&mut self, name: &'static str) {
        let host = self.hosts.get_mut(name).unwrap();
        let restart = hns_sim::admin::Restart { mode: "reboot".parse().unwrap(), ..Default::default() };
        host.simulator.as_ref().unwrap().restart(restart).unwrap();
        let table = LinuxRoutes::open_in(&host.ns).unwrap();
        table.list().unwrap().iter().filter(|route| route.ours).for_each(|route| table.delete(route).unwrap());
    }

    /// The first plug-in of the configuration that the fabric wrote for these pod CIDRs.
    fn plugin(&self, node: &str, cidrs: &[IpNet]) -> Value {
        let path = self.hosts[node].directory.join("net.d").join(fabric::conf::FILE);
        let whole = until(format!("the configuration of {node}"), || -> Result<Value, String> {
            let text = std::fs::read_to_string(&path).map_err(|error| error.to_string())?;
            if cidrs.iter().all(|cidr| text.contains(&cidr.to_string())) { Ok(serde_json::from_str(&text).unwrap()) } else { Err(text) }
        });
        let mut plugin = whole["plugins"][0].clone();
        plugin["cniVersion"] = json!("1.0.0");
        plugin["name"] = whole["name"].clone();
        plugin
    }

    /// The pod CIDRs of a node.
    fn cidrs_of(&self, node: &str) -> Vec<IpNet> {
        let cidrs = self.block_on(async |nodes| nodes.get(node).await.unwrap()).spec.unwrap().pod_cidrs.unwrap();
        cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect()
    }

    /// Attaches a pod as the configuration says, and starts its servers.
    pub fn add_pod(&mut self, node: &'static str, name: &str) {
        let plugin = self.plugin(node, &self.cidrs_of(node));
        let (ns, ips) = if is_windows(node) { self.windows_pod(node, name, &plugin) } else { self.linux_pod(node, name, &plugin) };
        assert_eq!(ips.len(), self.families.order().len(), "{name} has {ips:?}");
        ips.iter().for_each(|ip| serve(&ns, *ip));
        self.pods.insert(name.to_owned(), Pod { node, ips, ns });
    }

    fn linux_pod(&self, node: &str, name: &str, plugin: &Value) -> (NetNs, Vec<IpAddr>) {
        let path = self.hosts[node].directory.join(format!("pod-{name}"));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let ns = NetNs::create_at(&path).unwrap();
        let env =
            [("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", name), ("CNI_NETNS", path.to_str().unwrap()), ("CNI_IFNAME", "eth0"), ("CNI_PATH", "/")];
        let env = |key: &str| env.iter().find(|(other, _)| *other == key).map(|(_, value)| (*value).to_owned());
        let type_ = plugin["type"].as_str().unwrap();
        let outcome = self.hosts[node].ns.run(|| cni::plugin::run(type_, &env, plugin.to_string().as_bytes())).unwrap();
        assert!(outcome.success, "{} {}", outcome.stdout, outcome.stderr);
        let result: Value = serde_json::from_str(&outcome.stdout).unwrap();
        let ips = result["ips"].as_array().unwrap().iter().map(|ip| ip["address"].as_str().unwrap().parse::<IpNet>().unwrap().addr());
        (ns, ips.collect())
    }

    /// As the plug-ins of Windows do it: next hop `.2` for win-bridge, the network's gateway for others.
    fn windows_pod(&self, node: &str, name: &str, plugin: &Value) -> (NetNs, Vec<IpAddr>) {
        let host = &self.hosts[node];
        let client = Hcn::new(host.simulator.as_ref().unwrap().session());
        let network = until("the network", || {
            client.list::<HostComputeNetwork>(&hcn::Query::default()).unwrap().into_iter().find(|network| network.name == "mullion")
        });
        let own = 10 + u128::from(name.as_bytes()[1] - b'a');
        let gateway = if plugin["type"] == "win-bridge" { 2 } else { 1 };
        let mut endpoint = HostComputeEndpoint { name: name.to_owned(), ..HostComputeEndpoint::default() };
        let mut ips = Vec::new();
        for cidr in self.cidrs_of(node) {
            let ip = nth(cidr, own);
            let one = HostComputeEndpoint::local(name, IpNet::new(ip, cidr.prefix_len()).unwrap(), Some(nth(cidr, gateway)));
            endpoint.ip_configurations.extend(one.ip_configurations);
            endpoint.routes.extend(one.routes);
            ips.push(ip);
        }
        for policy in plugin["policies"].as_array().into_iter().flatten() {
            let (policy_type, settings) = (policy["value"]["Type"].as_str().unwrap(), &policy["value"]["Settings"]);
            endpoint.policies.push(EndpointPolicy::new(EndpointPolicyType::parse(policy_type), settings));
        }
        if plugin["type"] == "win-overlay" {
            let provider = json!({"ProviderAddress": host.addresses[0]});
            endpoint.policies.push(EndpointPolicy::new(EndpointPolicyType::ProviderAddress, &provider));
        }
        let (id, namespace) = (Guid::random(), Guid::random());
        client.create_endpoint(&network.id, id, &endpoint).unwrap();
        client.create(namespace, &HostComputeNamespace::default()).unwrap();
        client.add_endpoint_to_namespace(&namespace, &id).unwrap();
        (NetNs::open(&host.directory.join("ns").join(namespace.to_string())).unwrap(), ips)
    }

    /// Whose address the server at `to` sees; fails where no answer comes.
    pub fn ask(&self, from: &NetNs, to: IpAddr) -> io::Result<String> {
        greeting(from, &SocketAddr::new(to, 80).to_string(), Duration::from_secs(2))
    }

    pub fn is_silent(&self, from: &NetNs, to: IpAddr) -> bool {
        greeting(from, &SocketAddr::new(to, 80).to_string(), SILENCE).is_err()
    }

    /// Every pod reaches every other, which sees its address; with packets of the largest size, and with none larger.
    pub fn every_pair_exchanges_packets(&self, largest: u32) {
        for (from_name, from) in &self.pods {
            for (to_name, to) in self.pods.iter().filter(|(name, _)| *name != from_name) {
                for (own, ip) in from.ips.iter().zip(&to.ips) {
                    until(format!("{from_name} reaches {to_name} at {ip}"), || match self.ask(&from.ns, *ip) {
                        Ok(seen) if seen == own.to_string() => Ok(()),
                        other => Err(format!("{other:?}")),
                    });
                    // Again when one is lost: a datagram may be, on a busy machine. One that is too large never arrives.
                    until(format!("{from_name} to {to_name} at {ip}, {largest} bytes"), || {
                        echo(&from.ns, *ip, largest).map_err(|error| error.to_string())
                    });
                    let more = echo(&from.ns, *ip, largest + 1).unwrap_err();
                    assert_eq!(more.raw_os_error(), Some(90), "EMSGSIZE of {from_name} to {to_name} at {ip} for a byte more: {more}");
                }
            }
        }
    }

    /// The link of a host's port on the LAN goes down or up.
    pub fn partition(&self, name: &str, away: bool) {
        let rtnl = Rtnl::open_in(&self.lan.router).unwrap();
        let index = rtnl.link(&format!("h{}", number(name))).unwrap().unwrap().index;
        if away { rtnl.set_down(index).unwrap() } else { rtnl.set_up(index).unwrap() }
    }

    /// Routes of ours on a host, or all on the router, whose daemons mark them as theirs.
    pub fn routes(&self, name: &str) -> Vec<String> {
        let ns = self.hosts.get(name).map_or(&self.lan.router, |host| &host.ns);
        let table = LinuxRoutes::open_in(ns).unwrap();
        let mut all: Vec<String> =
            table.list().unwrap().into_iter().filter(|route| route.ours || name == "gw").map(|route| route.dst.to_string()).collect();
        all.sort();
        all
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let fabrics = self.hosts.values_mut().filter_map(|host| host.fabric.take()).chain(self.router.take());
        // A thread that panicked has said so.
        fabrics.for_each(|fabric| drop((fabric.stop.send(()), fabric.thread.join())));
    }
}

/// The host outside, behind the LAN's router, which forwards both families.
fn outside(lan: &Lan) -> NetNs {
    let outside = NetNs::new_anonymous().unwrap();
    let (router, far) = (Rtnl::open_in(&lan.router).unwrap(), Rtnl::open_in(&outside).unwrap());
    router.add_veth("out", "eth0", Some(&outside)).unwrap();
    let forward = || {
        for name in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
            sysctl::set(name, "1").unwrap();
        }
        ["all", "lan0"].iter().for_each(|link| sysctl::set(&format!("net.ipv4.conf.{link}.send_redirects"), "0").unwrap());
    };
    lan.router.run(forward).unwrap();
    for (ns, link) in [(&lan.router, "lan0"), (&lan.router, "out"), (&outside, "eth0")] {
        without_dad(ns, link);
    }
    set_up(&router, "lan0", &["fd00:10:240::1/64"]);
    set_up(&router, "out", &["172.30.0.1/24", "fd00:30::1/64"]);
    set_up(&far, "eth0", &["172.30.0.2/24", "fd00:30::2/64"]);
    route(&far, LANS[0], "172.30.0.1");
    route(&far, LANS[1], "fd00:30::1");
    settle(&outside);
    outside
}

/// Addresses of IPv6 that the link gets later can be used at once.
fn without_dad(ns: &NetNs, link: &str) {
    sysctl::set_in(ns, &format!("net.ipv6.conf.{link}.accept_dad"), "0").unwrap();
}

/// The address of a network with that number.
fn nth(net: IpNet, n: u128) -> IpAddr {
    match net.network() {
        IpAddr::V4(base) => IpAddr::V4((u32::from(base) + n as u32).into()),
        IpAddr::V6(base) => IpAddr::V6((u128::from(base) + n).into()),
    }
}

/// Serves TCP on port 80, which answers with the client's address, and UDP on port 7, which answers with the same datagram.
fn serve(ns: &NetNs, at: IpAddr) {
    let at = |port| SocketAddr::new(at, port).to_string();
    until("an address to serve at", || ns.run(|| UdpSocket::bind(at(0)).map(drop)).unwrap().map_err(|error| error.to_string()));
    serve_tcp(ns, &at(80), |mut stream, peer| stream.write_all(peer.to_string().as_bytes()));
    let socket = ns.run(|| UdpSocket::bind(at(7))).unwrap().unwrap();
    whole(&socket);
    std::thread::spawn(move || {
        let mut buffer = [0; 65_535];
        while let Ok((length, peer)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], peer);
        }
    });
}

/// Sets DF on what the socket sends, and forgets what the kernel learned of paths.
fn whole(socket: &UdpSocket) {
    use rustix::net::sockopt::{Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover};
    let ipv6 = socket.local_addr().unwrap().is_ipv6();
    if ipv6 { set_ipv6_mtu_discover(socket, Ipv6PathMtuDiscovery::DO) } else { set_ip_mtu_discover(socket, Ipv4PathMtuDiscovery::DO) }.unwrap();
}

/// Sends a packet of that size, in bytes with its headers, and gets it back.
fn echo(from: &NetNs, to: IpAddr, size: u32) -> io::Result<()> {
    let (any, headers) = if to.is_ipv4() { ("0.0.0.0:0", 28) } else { ("[::]:0", 48) };
    let socket = from.run(|| UdpSocket::bind(any)).unwrap()?;
    whole(&socket);
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    socket.connect(SocketAddr::new(to, 7))?;
    let sent = vec![b'x'; (size - headers) as usize];
    let mut buffer = [0; 65_535];
    socket.send(&sent)?;
    let length = socket.recv(&mut buffer)?;
    if buffer[..length] == sent { Ok(()) } else { Err(io::Error::other(format!("{length} bytes came back"))) }
}
