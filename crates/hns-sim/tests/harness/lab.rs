//! A LAN of namespaces with nodes under test, and small servers and clients in them.
#![allow(dead_code, reason = "each suite uses its part")]

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use hcn::blocking::Client;
use hcn::document::*;
use hcn::{Guid, HnsVersion};
use hns_sim::Simulator;
use hns_sim::linux::LinuxKernel;
use hns_sim::state::State;
use hns_sim::store::Store;
use hns_sim::switches::Switches;
use ipnet::IpNet;
use linux_sys::netlink::{Route, Rtnl};
use linux_sys::ns::NetNs;
use test_lab::net::{Lan, set_up};
use test_lab::{LIMIT, until};

/// How long nothing must come where nothing may.
pub const SILENCE: Duration = Duration::from_millis(300);

pub fn id(number: u8) -> Guid {
    format!("00000000-0000-0000-0000-0000000000{number:02x}").parse().unwrap()
}

pub fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

pub struct Lab {
    directory: tempfile::TempDir,
    lan: Lan,
}

pub struct Host {
    pub ns: NetNs,
}

impl Lab {
    pub fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), lan: Lan::new() }
    }

    /// A host of the LAN, with routes (prefix, gateway) beside the default one.
    pub fn host(&self, address: &str, routes: &[(&str, &str)]) -> Host {
        let host = Host { ns: self.lan.host(address) };
        routes.iter().for_each(|(prefix, gateway)| host.route(prefix, gateway));
        host
    }

    /// The node under test with its network.
    pub fn node(&self, version: HnsVersion) -> Node {
        self.node_with(Switches::of(version))
    }

    /// A node without a network.
    pub fn bare(&self, address: &str, routes: &[(&str, &str)], switches: Switches) -> Node {
        let host = self.host(address, routes);
        let directory = self.directory.path().join(address);
        let simulator = start(&host.ns, directory.clone(), &switches);
        let client = Client::new(simulator.session());
        Node { host, directory, switches, largest: usize::MAX, simulator: Some(simulator), client }
    }

    /// A node whose service was left with so many load balancers, as `make` has them; its kernel has nothing of it yet, and takes no larger
    /// transactions.
    pub fn crowded(&self, largest: usize, count: u16, make: impl Fn(u16) -> HostComputeLoadBalancer) -> Node {
        let address = "10.240.0.11";
        let (host, directory) = (self.host(address, &[]), self.directory.path().join(address));
        let kernel = hns_sim::kernel::NoKernel { management: Some(address.parse().unwrap()), survived: true };
        let switches = Switches::of(HnsVersion::new(15, 5));
        let past = Simulator::new(Box::new(kernel), switches.clone(), Some(Store::open(&directory.join("hns")).unwrap())).unwrap();
        let client = Client::new(past.session());
        let subnet = Subnet::new(net("192.168.1.0/24"), "192.168.1.1".parse().unwrap());
        client.create(id(1), &HostComputeNetwork::new("mullion", NetworkType::L2Bridge, subnet)).unwrap();
        client.create_endpoint(&id(1), id(9), &HostComputeEndpoint::remote("192.168.2.7".parse().unwrap())).unwrap();
        (0..count).for_each(|number| drop(client.create(Guid::random(), &make(number)).unwrap()));
        drop((client, past));
        let mut batch = nft::Batch::new();
        batch.add_table(&nft::Table::new(nft::Family::Ip, "hns"));
        nft::Nft::open_in(&host.ns).unwrap().commit(&batch).unwrap();
        let simulator = start_within(&host.ns, directory.clone(), &switches, largest);
        let client = Client::new(simulator.session());
        Node { host, directory, switches, largest, simulator: Some(simulator), client }
    }

    /// The namespace of the LAN's router, whose bridge every frame crosses.
    pub fn router(&self) -> &NetNs {
        &self.lan.router
    }

    pub fn node_with(&self, switches: Switches) -> Node {
        let node = self.bare("10.240.0.11", &[], switches);
        let subnet = Subnet::new(net("192.168.1.0/24"), "192.168.1.1".parse().unwrap());
        let made = node.client.create(id(1), &HostComputeNetwork::new("mullion", NetworkType::L2Bridge, subnet)).unwrap();
        assert_eq!(made.management_ip(), Some("10.240.0.11".parse().unwrap()));
        node
    }
}

/// A service on a host, over its kernel, with what `directory` kept.
pub fn start(ns: &NetNs, directory: PathBuf, switches: &Switches) -> Simulator {
    start_within(ns, directory, switches, usize::MAX)
}

/// The same over a kernel that takes no larger transactions.
pub fn start_within(ns: &NetNs, directory: PathBuf, switches: &Switches, largest: usize) -> Simulator {
    let kernel = LinuxKernel::open_in(ns.clone(), &directory.join("ns"), "eth0").unwrap().with_largest_transaction(largest);
    let store = Store::open(&directory.join("hns")).unwrap();
    Simulator::new(Box::new(kernel), switches.clone(), Some(store)).unwrap()
}

impl Host {
    pub fn route(&self, prefix: &str, gateway: &str) {
        let rtnl = Rtnl::open_in(&self.ns).unwrap();
        let oif = rtnl.link("eth0").unwrap().unwrap().index;
        rtnl.add_route(&Route::new(net(prefix)).via(gateway.parse().unwrap()).oif(oif)).unwrap();
    }

    pub fn links(&self) -> Vec<String> {
        Rtnl::open_in(&self.ns).unwrap().links().unwrap().into_iter().map(|link| link.name).collect()
    }

    pub fn add_address(&self, address: &str) -> IpAddr {
        let rtnl = Rtnl::open_in(&self.ns).unwrap();
        rtnl.add_addr(rtnl.link("eth0").unwrap().unwrap().index, net(address)).unwrap();
        net(address).addr()
    }
}

pub struct Node {
    host: Host,
    directory: PathBuf,
    switches: Switches,
    largest: usize,
    simulator: Option<Simulator>,
    pub client: Client,
}

impl std::ops::Deref for Node {
    type Target = Host;
    fn deref(&self) -> &Host {
        &self.host
    }
}

pub struct Pod {
    pub ns: NetNs,
    endpoint: Guid,
}

impl Pod {
    pub fn mac(&self) -> String {
        let rtnl = Rtnl::open_in(&self.ns).unwrap();
        rtnl.link("eth0").unwrap().unwrap().mac.map(|byte| format!("{byte:02x}")).join(":")
    }
}

impl Node {
    /// A pod with endpoint `number`; its namespace is `number + 0x40`.
    pub fn pod(&self, number: u8, address: &str, policies: Vec<EndpointPolicy>) -> Pod {
        let mut endpoint = HostComputeEndpoint::local(format!("pod{number}"), net(&format!("{address}/24")), Some("192.168.1.1".parse().unwrap()));
        endpoint.policies = policies;
        self.pod_of(number, endpoint)
    }

    pub fn pod_of(&self, number: u8, endpoint: HostComputeEndpoint) -> Pod {
        self.pod_on(id(1), number, endpoint)
    }

    pub fn pod_on(&self, network: Guid, number: u8, endpoint: HostComputeEndpoint) -> Pod {
        let namespace = id(number + 0x40);
        self.client.create_endpoint(&network, id(number), &endpoint).unwrap();
        self.client.create(namespace, &HostComputeNamespace::default()).unwrap();
        self.client.add_endpoint_to_namespace(&namespace, &id(number)).unwrap();
        let ns = NetNs::open(&self.directory.join("ns").join(namespace.to_string())).unwrap();
        Pod { ns, endpoint: id(number) }
    }

    pub fn balance(&self, number: u8, vip: Option<&str>, port: u16, target: u16, pods: &[&Pod]) {
        let backends = pods.iter().map(|pod| pod.endpoint).collect();
        let mut balancer = HostComputeLoadBalancer::new(vip.map(|vip| vip.parse().unwrap()), Protocol::TCP, port, target, backends);
        balancer.port_mappings[0].flags = PortMappingFlags::LOCAL_ROUTED_VIP;
        self.client.create(id(number), &balancer).unwrap();
    }

    pub fn fault(&self, fault: &str) {
        self.simulator.as_ref().unwrap().add_fault(fault.parse().unwrap()).unwrap();
    }

    pub fn switch(&self, text: &str) {
        self.simulator.as_ref().unwrap().set_switch(text).unwrap();
    }

    pub fn clear_faults(&self) {
        self.simulator.as_ref().unwrap().clear_faults();
    }

    /// Where compartments are pinned.
    pub fn compartments(&self) -> PathBuf {
        self.directory.join("ns")
    }

    pub fn state(&self) -> State {
        self.simulator.as_ref().unwrap().state()
    }

    pub fn stop(&mut self) {
        let nowhere: Box<dyn hns_sim::kernel::Kernel> = Box::new(hns_sim::kernel::NoKernel::default());
        self.client = Client::new(Simulator::new(nowhere, self.switches.clone(), None).unwrap().session());
        self.simulator = None;
    }

    pub fn start(&mut self) {
        let simulator = start_within(&self.host.ns, self.directory.clone(), &self.switches, self.largest);
        self.client = Client::new(simulator.session());
        self.simulator = Some(simulator);
    }
}

/// Gives a namespace an address beside those of its links.
pub fn own(ns: &NetNs, address: IpAddr) {
    set_up(&Rtnl::open_in(ns).unwrap(), "lo", &[&IpNet::from(address).to_string()]);
}

/// Answers every connection, after the client sent a byte, with `NAME saw CLIENT`.
pub fn serve_tcp(ns: &NetNs, port: u16, name: &'static str) {
    serve_tcp_at(ns, &format!("[::]:{port}"), name);
}

pub fn serve_tcp_at(ns: &NetNs, at: &str, name: &'static str) {
    test_lab::net::serve_tcp(ns, at, move |mut stream, peer| {
        stream.read_exact(&mut [0])?;
        write!(stream, "{name} saw {peer}")
    });
}

pub fn serve_udp(ns: &NetNs, port: u16, name: &'static str) {
    serve_udp_at(ns, &format!("[::]:{port}"), name);
}

pub fn serve_udp_at(ns: &NetNs, at: &str, name: &'static str) {
    test_lab::net::serve_udp(ns, at, move |peer, _| format!("{name} saw {peer}"));
}

pub fn connect(ns: &NetNs, address: &str) -> io::Result<TcpStream> {
    connect_within(ns, address, LIMIT)
}

pub fn connect_within(ns: &NetNs, address: &str, patience: Duration) -> io::Result<TcpStream> {
    let address: SocketAddr = address.parse().unwrap();
    let stream = ns.run(move || TcpStream::connect_timeout(&address, patience)).unwrap()?;
    stream.set_read_timeout(Some(patience))?;
    Ok(stream)
}

pub fn hear(mut stream: TcpStream) -> io::Result<String> {
    let mut answer = String::new();
    stream.write_all(b"?")?;
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

pub fn ask_tcp(ns: &NetNs, address: &str) -> io::Result<String> {
    hear(connect(ns, address)?)
}

/// In IPv6 a fresh pod searches for its neighbours only when its own link's address is sure to be no one else's, seconds later.
pub fn ask_soon(ns: &NetNs, address: &str) -> String {
    until(address, || ask_tcp(ns, address))
}

pub fn ask_udp(ns: &NetNs, address: &str) -> io::Result<String> {
    test_lab::net::ask_udp(ns, address, LIMIT)
}

/// What is answered; where nothing should be, nobody waits long for it.
pub fn answer(ns: &NetNs, address: &str, expected: bool) -> Option<String> {
    connect_within(ns, address, if expected { LIMIT } else { SILENCE }).and_then(hear).ok()
}

/// Whether nobody answers: nothing comes, or a refusal.
pub fn is_unanswered(ns: &NetNs, address: &str) -> bool {
    answer(ns, address, false).is_none()
}

/// The same of a datagram.
pub fn is_unanswered_udp(ns: &NetNs, address: &str) -> bool {
    test_lab::net::ask_udp(ns, address, SILENCE).is_err()
}

/// Whether no connection comes about, and nobody says why: packets are lost.
pub fn is_silent(ns: &NetNs, address: &str) -> bool {
    let address: SocketAddr = address.parse().unwrap();
    let tried = ns.run(move || TcpStream::connect_timeout(&address, SILENCE)).unwrap();
    matches!(tried, Err(error) if error.kind() == io::ErrorKind::TimedOut)
}
