//! `bench hns`: the simulated Host Networking Service over a real kernel, in namespaces of its own.
//!
//! The program starts itself again in new namespaces, so that an ordinary user may run it.

mod flow;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use hcn::blocking::Client;
use hcn::document::{DistributionType, RemoteSubnetRoute};
use hcn::{
    EndpointPolicy, Guid, HnsVersion, HostComputeEndpoint, HostComputeLoadBalancer, HostComputeNamespace, HostComputeNetwork, LoadBalancerFlags,
    NetworkPolicy, NetworkType, PortMappingFlags, Protocol, Subnet, owned_id,
};
use hns_sim::Simulator;
use hns_sim::linux::LinuxKernel;
use hns_sim::store::Store;
use hns_sim::switches::Switches;
use ipnet::IpNet;
use linux_sys::netlink::{BridgePort, Rtnl};
use linux_sys::ns::NetNs;

use crate::figures::{Amount, Figures, Report};
use crate::namespaced;
use crate::process::share;
use crate::up::median;

const BALANCERS: usize = 10_000;
const REMOTES: usize = 30_000;
const BACKENDS: usize = 3;
const PODS: usize = 40;
/// How many load balancers each figure is of.
const SAMPLE: usize = 200;

/// Measures and prints. The exit code says whether a figure is over its limit.
pub fn main() -> Result<()> {
    namespaced::again(["hns-part".to_owned()])
}

/// Everything, within the namespaces.
pub fn part() -> Result<ExitCode> {
    linux_sys::ns::reset_switches()?;
    Rtnl::open()?.set_up(1)?;
    let mut report = Report::resume();
    report.table("simulator, on this kernel", many);
    report.table("simulator, pod to pod on this kernel", flow::measure);
    Ok(report.end())
}

/// A simulated host.
struct Host {
    ns: NetNs,
    client: Client,
    compartments: PathBuf,
    /// The other end of the uplink.
    _lan: NetNs,
}

struct Pod {
    id: Guid,
    ns: NetNs,
    address: Ipv4Addr,
}

fn id(kind: &str, number: usize) -> Guid {
    owned_id("bench", kind, &number.to_string())
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap_or_default()
}

impl Host {
    /// A host with an uplink at 10.240.0.11, and its service over the kernel, with a journal in `directory`.
    fn new(directory: &Path) -> Result<Self> {
        let ns = NetNs::new_anonymous()?;
        let inside = Rtnl::open_in(&ns)?;
        let lan = NetNs::new_anonymous()?;
        Rtnl::open_in(&lan)?.add_veth("uplink", "eth0", Some(&ns))?;
        let eth0 = inside.link("eth0")?.context("the uplink is gone")?.index;
        inside.add_addr(eth0, net("10.240.0.11/24"))?;
        inside.set_up(eth0)?;
        let compartments = directory.join("ns");
        let kernel = LinuxKernel::open_in(ns.clone(), &compartments, "eth0")?;
        let switches = Switches { direct_server_return: true, ..Switches::of(HnsVersion::new(15, 5)) };
        let simulator = Simulator::new(Box::new(kernel), switches, Some(Store::open(&directory.join("hns"))?))?;
        Ok(Self { ns, client: Client::new(simulator.session()), compartments, _lan: lan })
    }

    fn network(&self, network_type: NetworkType, prefix: &str, gateway: &str) -> Result<Guid> {
        let mut subnet = Subnet::new(net(prefix), gateway.parse()?);
        subnet.policies.push(serde_json::from_str(r#"{"Type": "VSID", "Settings": {"IsolationId": 4096}}"#)?);
        let route = RemoteSubnetRoute {
            destination_prefix: "10.64.0.0/10".into(),
            isolation_id: 4096,
            provider_address: "10.240.0.12".into(),
            distributed_router_mac_address: "00-15-5D-00-02-01".into(),
            ..RemoteSubnetRoute::default()
        };
        let mut network = HostComputeNetwork::new("bench", network_type, subnet);
        if network.network_type == NetworkType::Overlay {
            network.policies.push(NetworkPolicy::remote_subnet_route(&route));
        }
        self.client.create(id("network", 1), &network)?;
        Ok(id("network", 1))
    }

    /// Makes a pod, and says how long endpoint and attach took.
    fn pod(&self, network: Guid, number: usize, address: Ipv4Addr, gateway: Ipv4Addr) -> Result<(Pod, Duration)> {
        let (endpoint, namespace) = (id("pod", number), id("namespace", number));
        self.client.create(namespace, &HostComputeNamespace::default())?;
        let document = HostComputeEndpoint::local(format!("pod{number}"), net(&format!("{address}/24")), Some(gateway.into()))
            .with_policy(EndpointPolicy::outbound_nat([net("10.0.0.0/8")]))
            .with_policy(EndpointPolicy::sdn_route(net("10.96.0.0/12")));
        let began = Instant::now();
        self.client.create_endpoint(&network, endpoint, &document)?;
        self.client.add_endpoint_to_namespace(&namespace, &endpoint)?;
        let took = began.elapsed();
        let ns = NetNs::open(&self.compartments.join(namespace.to_string()))?;
        Ok((Pod { id: endpoint, ns, address }, took))
    }
}

/// What the kernel alone takes for a pair of links between the host and a compartment, as every endpoint needs one.
fn bare_veth(host: &Host, number: usize) -> Result<Duration> {
    let ns = NetNs::new_anonymous()?;
    let (outside, inside) = (Rtnl::open_in(&host.ns)?, Rtnl::open_in(&ns)?);
    if outside.link("bare")?.is_none() {
        outside.add_bridge("bare")?;
    }
    let bridge = outside.link("bare")?.context("the bridge is gone")?.index;
    let name = format!("v{number}");
    let began = Instant::now();
    outside.add_veth(&name, "eth0", Some(&ns))?;
    let (outer, inner) = (outside.link(&name)?.context("gone")?.index, inside.link("eth0")?.context("gone")?.index);
    outside.set_master(outer, Some(bridge))?;
    outside.set_bridge_port(outer, BridgePort { isolated: Some(true), ..BridgePort::default() })?;
    outside.set_up(outer)?;
    inside.add_addr(inner, net("10.9.9.9/24"))?;
    inside.set_up(inner)?;
    Ok(began.elapsed())
}

fn address(base: [u8; 4], number: usize) -> Ipv4Addr {
    (u32::from_be_bytes(base) + u32::try_from(number).unwrap_or_default()).into()
}

fn balancer(number: usize, backends: Vec<Guid>) -> HostComputeLoadBalancer {
    let vip = address([10, 96, 0, 1], number);
    let mut balancer = HostComputeLoadBalancer::new(Some(vip.into()), Protocol::TCP, 80, 80, backends);
    balancer.flags = LoadBalancerFlags::DSR;
    balancer.port_mappings[0].distribution_type = DistributionType::PER_CONNECTION;
    balancer.port_mappings[0].flags = PortMappingFlags::default();
    balancer
}

/// Pods, remote endpoints and load balancers of an overlay, by number.
fn many(figures: &mut Figures) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let host = Host::new(directory.path())?;
    let network = host.network(NetworkType::Overlay, "10.244.1.0/24", "10.244.1.1")?;
    let mut pods = Vec::new();
    let (mut times, mut bare) = (Vec::new(), Vec::new());
    for number in 0..PODS {
        bare.push(bare_veth(&host, number)?);
        let (pod, took) = host.pod(network, number, address([10, 244, 1, 10], number), [10, 244, 1, 1].into())?;
        pods.push(pod);
        times.push(took);
    }
    figures.time(format!("endpoint: create and attach (median of {PODS})"), median(times), Duration::from_millis(5));
    figures.background_time("of which a veth pair with bridge port and address takes the kernel alone", median(bare));

    let began = Instant::now();
    for number in 0..REMOTES {
        let host_of = address([10, 240, 1, 0], number % 250);
        let mut remote =
            HostComputeEndpoint::remote(address([10, 64, 0, 1], number).into()).with_policy(EndpointPolicy::provider_address(host_of.into()));
        let [a, b, c, d] = address([10, 64, 0, 1], number).octets();
        remote.mac_address = format!("02-11-{a:02X}-{b:02X}-{c:02X}-{d:02X}");
        host.client.create_endpoint(&network, id("remote", number), &remote)?;
    }
    let each = began.elapsed() / u32::try_from(REMOTES)?;
    figures.time(format!("remote endpoint: create (mean of {REMOTES}, each with route, neighbour and peer)"), each, Duration::from_micros(100));

    balancers(figures, &host, &pods)?;
    let mut listed = Vec::new();
    for _ in 0..5 {
        let began = Instant::now();
        let ids = host.client.ids::<HostComputeLoadBalancer>(&hcn::Query::default())?;
        ensure!(ids.len() >= BALANCERS, "only {} load balancers are there", ids.len());
        listed.push(began.elapsed());
    }
    figures.time(format!("load balancers: enumerate {BALANCERS}"), median(listed), Duration::from_millis(20));
    let memory = Amount::mebibytes(share(std::process::id())?);
    let name = format!("memory at {BALANCERS} load balancers x {BACKENDS} and {REMOTES} remote endpoints (PSS, the benchmark's own in it)");
    figures.at_most(name, memory, 60.0);
    Ok(())
}

/// Load balancers when there is none, and when there are all.
fn balancers(figures: &mut Figures, host: &Host, pods: &[Pod]) -> Result<()> {
    let [client, server, ..] = pods else { bail!("there are too few pods") };
    flow::serve(&server.ns, 80)?;
    let create = |numbers: std::ops::Range<usize>, near: bool| -> Result<Duration> {
        let began = Instant::now();
        for number in numbers.clone() {
            let remote = |backend| id("remote", (number * BACKENDS + backend) % REMOTES);
            let backends = if near { vec![server.id] } else { (0..BACKENDS).map(remote).collect() };
            host.client.create(id("balancer", number), &balancer(number, backends))?;
        }
        Ok(began.elapsed() / u32::try_from(numbers.len())?)
    };
    let limit = Duration::from_micros(300);
    let first = create(0..SAMPLE, false)?;
    figures.time(format!("load balancer x {BACKENDS}: create at 0 (mean of {SAMPLE})"), first, limit);
    create(SAMPLE..BALANCERS, false)?;
    let last = create(BALANCERS..BALANCERS + SAMPLE, false)?;
    figures.time(format!("load balancer x {BACKENDS}: create at {BALANCERS} (mean of {SAMPLE})"), last, limit);
    // Packets flow after the last of them.
    let number = BALANCERS + SAMPLE;
    create(number..number + 1, true)?;
    let began = Instant::now();
    flow::ask(&client.ns, (address([10, 96, 0, 1], number), 80).into())?;
    figures.background_time("first answer through the load balancer made last", began.elapsed());
    Ok(())
}
