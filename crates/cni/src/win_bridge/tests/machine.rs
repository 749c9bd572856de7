//! A Windows machine with real packets: 10.127.132.213, and the world behind its adapter, which routes to its pods.

use hcn::{HostComputeLoadBalancer, Protocol};
use hns_sim::linux::LinuxKernel;
use linux_sys::netlink::{Route, Rtnl};
use linux_sys::ns::NetNs;
use test_lab::net::{greet, greeting, neighbour, settle};

use super::*;

pub struct Machine {
    dir: tempfile::TempDir,
    pub host: Host,
    pub node: NetNs,
    pub world: NetNs,
}

impl Machine {
    /// In the calling thread's namespace.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let world = neighbour(("eth0", &["10.127.132.213/25"]), ("world0", &["10.127.132.129/25", "203.0.113.1/24"]));
        let route = |ns: &NetNs, dst: &str, via: &str| {
            Rtnl::open_in(ns).unwrap().add_route(&Route::new(dst.parse().unwrap()).via(via.parse().unwrap())).unwrap();
        };
        let node = NetNs::current().unwrap();
        route(&node, "0.0.0.0/0", "10.127.132.129");
        route(&world, "10.10.187.64/26", "10.127.132.213");
        let kernel = LinuxKernel::open(dir.path(), "eth0").unwrap();
        let simulator = Simulator::new(Box::new(kernel), Switches::of(HnsVersion::new(13, 3)), None).unwrap();
        let host = Host { client: Client::new(simulator.session()), simulator, ipam_dir: tempfile::tempdir().unwrap() };
        Self { dir, host, node, world }
    }

    /// Attaches a pod; its compartment and its address.
    pub fn pod(&self, id: &str, conf: Value) -> (NetNs, String) {
        let namespace = HostComputeNamespace { create_with_compartment: true, ..HostComputeNamespace::default() };
        let namespace = self.host.client.create(Guid::random(), &namespace).unwrap().id;
        let result = self.host.call(Command::Add, id, &namespace.to_string(), conf).unwrap().unwrap();
        (NetNs::open(&self.dir.path().join(namespace.to_string())).unwrap(), result.primary_ip().unwrap().to_string())
    }

    /// Serves an address by the endpoint of that name.
    pub fn balance(&self, vip: &str, endpoint: &str) {
        let backend = self.host.endpoints().into_iter().find(|known| known.name == endpoint).unwrap().id;
        let service = HostComputeLoadBalancer::new(vip.parse().ok(), Protocol::TCP, 80, 80, vec![backend]);
        self.host.client.create(Guid::random(), &service).unwrap();
    }

    /// Has pods, machine and world tell clients their addresses.
    pub fn serve(&self, pods: [&NetNs; 2]) {
        let all = [pods[0], pods[1], &self.world, &self.node];
        all.into_iter().for_each(settle);
        all.into_iter().for_each(|ns| greet(ns, "0.0.0.0:80", |peer| peer.to_string()));
    }
}

/// The address that the server at `to` sees.
pub fn ask(from: &NetNs, to: &str) -> String {
    greeting(from, &format!("{to}:80"), test_lab::LIMIT).unwrap()
}
