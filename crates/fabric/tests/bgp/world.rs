//! Hosts on a LAN: our nodes, each with the whole fabric on a thread in its namespace, and routers.

use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use fabric::mode::bgp::Bgp;
use fabric::{Attachment, Config, Mode, PodSettings, Role, Settings, Status, Vxlan};
use host::{HostRoute, LinuxRoutes, Routes as _};
use linux_sys::netlink::Rtnl;
use linux_sys::ns::NetNs;
use test_lab::net::{self, Lan};
use test_lab::until;
use tokio::sync::{oneshot, watch};

use crate::api::Api;

/// Only a datagram that is not answered takes so long.
const PATIENCE: Duration = Duration::from_millis(500);

/// A LAN, and the API.
pub struct World {
    pub lan: Lan,
    pub api: Api,
    dir: tempfile::TempDir,
}

/// A host; its number is the last part of its addresses.
pub struct Host {
    pub ns: NetNs,
    pub number: u8,
}

/// The fabric of one of our nodes. Dropped, it ends like a program that is killed.
pub struct Fabric {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
    status: watch::Receiver<Status>,
}

impl Drop for Fabric {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the fabric's thread panicked");
        }
    }
}

impl Fabric {
    pub fn problems(&self) -> Vec<String> {
        self.status.borrow().problems.iter().map(ToString::to_string).collect()
    }
}

impl World {
    pub fn new() -> Self {
        Self { lan: Lan::new(), api: Api::default(), dir: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    /// A host with addresses of both families, and a "pod" of its network on its loopback that answers.
    pub fn host(&self, number: u8) -> Host {
        let ns = self.lan.host(&format!("10.240.0.{number}"));
        let rtnl = Rtnl::open_in(&ns).unwrap();
        ns.run(|| linux_sys::sysctl::set("net.ipv6.conf.eth0.accept_dad", "0")).unwrap().unwrap();
        net::set_up(&rtnl, "eth0", &[&format!("fd00:240::{number}/64")]);
        net::set_up(&rtnl, "lo", &[&format!("192.168.{number}.5/32"), &format!("fd00:{number}::5/128")]);
        for at in [format!("192.168.{number}.5:80"), format!("[fd00:{number}::5]:80")] {
            until("an address to serve at", || ns.run(|| UdpSocket::bind(&at).map(drop)).unwrap());
            net::serve_udp(&ns, &at, |from, _| from.to_string());
        }
        net::settle(&ns);
        Host { ns, number }
    }

    /// A host whose Node is known.
    pub fn node(&self, number: u8) -> Host {
        let host = self.host(number);
        let cidrs = [format!("192.168.{number}.0/24"), format!("fd00:{number}::/64")];
        let addresses = [format!("10.240.0.{number}"), format!("fd00:240::{number}")];
        self.api.node(&host.name(), &cidrs.each_ref().map(String::as_str), &addresses.each_ref().map(String::as_str));
        host
    }

    /// Runs our fabric on a node.
    pub fn start(&self, host: &Host, bgp: Bgp) -> Fabric {
        let (status, seen) = watch::channel(Status::default());
        let (stop, stopped) = oneshot::channel::<()>();
        let (api, name, conf) = (self.api.clone(), host.name(), self.path(&format!("cni-{}", host.number)));
        std::fs::create_dir_all(&conf).unwrap();
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let config = config(&api, &name, conf, bgp, status);
                fabric::run(config, async { drop(stopped.await) }).await;
            });
        };
        // A thread's namespace is that of the thread that starts it; this one has room for a whole runtime.
        let thread = host.ns.run(move || std::thread::Builder::new().stack_size(8 << 20).spawn(work)).unwrap().unwrap();
        Fabric { stop: Some(stop), thread: Some(thread), status: seen }
    }
}

fn config(api: &Api, name: &str, cni_conf_dir: std::path::PathBuf, bgp: Bgp, status: watch::Sender<Status>) -> Config {
    let pods = PodSettings {
        attachment: Attachment::Linux { bridge: "cni0".into() },
        cluster_uid: "uid".into(),
        network_name: "mullion".into(),
        service_cidrs: vec!["10.96.0.0/12".parse().unwrap()],
        lans: vec!["10.240.0.0/24".parse().unwrap()],
        dns_ip: "10.96.0.10".parse().unwrap(),
        cluster_domain: "cluster.local".into(),
        cni_conf_dir,
        ipam_dir: None,
        subnet_env: None,
    };
    Config {
        client: api.client(),
        api: cluster::ApiServer::default(),
        settings: Settings {
            mode: Mode::Bgp,
            vxlan: Vxlan::default(),
            bgp,
            node_name: name.to_owned(),
            cluster_cidrs: vec!["192.168.0.0/16".parse().unwrap(), "fd00::/16".parse().unwrap()],
            role: Role::Node(Box::new(pods)),
        },
        routes: Arc::new(LinuxRoutes::open().unwrap()),
        hcn: None,
        full_pass: Duration::from_secs(1),
        changes: None,
        status: Some(status),
        facts: None,
    }
}

impl Host {
    pub fn name(&self) -> String {
        format!("n{}", self.number)
    }

    pub fn routes(&self) -> Vec<HostRoute> {
        LinuxRoutes::open_in(&self.ns).unwrap().list().unwrap()
    }

    /// The routes with our mark, as text.
    pub fn ours(&self) -> Vec<String> {
        let line = |route: HostRoute| format!("{} via {}", route.dst, route.via.map(|via| via.to_string()).unwrap_or_default());
        let mut lines: Vec<String> = self.routes().into_iter().filter(|route| route.ours).map(line).collect();
        lines.sort();
        lines
    }

    /// The routes with our mark that lead to another host's pods: one per family.
    pub fn has_routes_to(&self, number: u8) -> Result<(), String> {
        let ours = self.ours();
        let wanted = [format!("192.168.{number}.0/24 via 10.240.0.{number}"), format!("fd00:{number}::/64 via fd00:240::{number}")];
        if wanted.iter().all(|line| ours.contains(line)) { Ok(()) } else { Err(format!("{} has {ours:?}", self.name())) }
    }

    pub fn has_no_routes_to(&self, number: u8) -> Result<(), String> {
        let ours = self.ours();
        let one =
            [format!("192.168.{number}.0/24 "), format!("fd00:{number}::/64 ")].iter().any(|prefix| ours.iter().any(|line| line.starts_with(prefix)));
        if one { Err(format!("{} has {ours:?}", self.name())) } else { Ok(()) }
    }

    /// A datagram from this host's pod to another's, in both families, is answered to that pod's address.
    pub fn reaches_pods_of(&self, other: &Host) -> Result<(), String> {
        for (from, to) in [
            (format!("192.168.{}.5", self.number), format!("192.168.{}.5:80", other.number)),
            (format!("fd00:{}::5", self.number), format!("[fd00:{}::5]:80", other.number)),
        ] {
            let seen = self.ask(&from, &to).map_err(|error| format!("{from} to {to}: {error}"))?;
            if seen != from {
                return Err(format!("{to} saw {seen}, not {from}"));
            }
        }
        Ok(())
    }

    fn ask(&self, from: &str, to: &str) -> std::io::Result<String> {
        let from: IpAddr = from.parse().unwrap();
        let socket = self.ns.run(|| UdpSocket::bind((from, 0))).unwrap()?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.connect(to)?;
        socket.send(b"?")?;
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer)?;
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }
}
