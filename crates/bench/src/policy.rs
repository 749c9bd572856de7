//! `bench policy`: network policies over 1,000 pods, by nftables in namespaces of its own and over a simulated Host Networking Service.

use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cluster::Key;
use hcn::{Guid, HcnClient, HnsVersion, HostComputeEndpoint, HostComputeNetwork, NetworkType, Subnet};
use hns_sim::Simulator;
use hns_sim::kernel::NoKernel;
use hns_sim::switches::Switches;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use linux_sys::netlink::Rtnl;
use network_policy::hns::Hns;
use network_policy::nftables::{Nftables, cleanup};
use network_policy::rows::{Labels, PodRow};
use network_policy::{Policy, PolicyId, World};
use serde_json::{Value, json};

use crate::figures::{Figures, Report};
use crate::namespaced;
use crate::up::median;

const NODE: &str = "node-0";
/// Sizes whose changes are compared.
const SIZES: [usize; 2] = [1_000, 10_000];
const CHANGES: usize = 101;
/// Pods of one Windows node.
const ENDPOINTS: usize = 110;

/// Measures and prints. The exit code says whether a figure is over its limit.
pub fn main() -> Result<()> {
    namespaced::again(["policy-part".to_owned()])
}

/// What the program does in its namespaces.
pub fn part() -> Result<ExitCode> {
    Rtnl::open()?.set_up(1)?;
    let mut report = Report::resume();
    for pods in SIZES {
        report.table(&format!("network policies, nftables, {pods} pods on the node"), |figures| nftables(figures, pods));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let title = format!("network policies, *simulated* HNS, {} pods, {ENDPOINTS} of them on the node", SIZES[0]);
    report.table(&title, |figures| runtime.block_on(hns(figures)));
    Ok(report.end())
}

fn pod(n: usize, node: &str) -> PodRow {
    let ip = std::net::Ipv4Addr::from(u32::from(std::net::Ipv4Addr::new(10, 1, 0, 10)) + n as u32);
    PodRow { labels: Labels::new(&[("app", "web"), ("n", &n.to_string())]), ips: [ip.into()].into(), ports: [].into(), node: node.into() }
}

fn key(n: usize) -> Key {
    Key::new("default", format!("pod-{n}"))
}

fn world(pods: usize, local: usize) -> World {
    let mut world = World::new(Some(NODE));
    world.set_namespace("default", Some(Labels::new(&[("kubernetes.io/metadata.name", "default")])));
    for n in 0..pods {
        world.set_pod(&key(n), Some(pod(n, if n < local { NODE } else { "node-1" })));
    }
    world
}

/// Every pod gets in what comes from pods with the label, at one port.
fn policy(world: &mut World, port: u16) -> Result<()> {
    let rules = json!([{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}], "ports": [{"port": port}]}]);
    set(world, Some(json!({"metadata": {"name": "web", "namespace": "default"}, "spec": {"podSelector": {}, "ingress": rules}})))
}

fn set(world: &mut World, policy: Option<Value>) -> Result<()> {
    let policy = policy.map(serde_json::from_value::<NetworkPolicy>).transpose().context("no NetworkPolicy")?;
    world.set_policy(&PolicyId::Namespaced(Key::new("default", "web")), policy.map(|policy| Policy::namespaced(&policy)));
    Ok(())
}

fn sync(backend: &mut Nftables, world: &mut World) -> Result<usize> {
    let changes = world.take_changes();
    Ok(backend.sync(world, &changes, false)?)
}

fn nftables(figures: &mut Figures, pods: usize) -> Result<()> {
    let limited = pods == SIZES[0];
    let time = |figures: &mut Figures, name: &str, measured: Duration, most: u64| {
        if limited { figures.time(name, measured, Duration::from_millis(most)) } else { figures.background_time(name, measured) }
    };
    let mut world = world(pods, pods);
    let (mut effect, mut changed, mut last) = (Vec::new(), Vec::new(), Vec::new());
    cleanup()?;
    let mut backend = Nftables::new();
    sync(&mut backend, &mut world)?;
    for port in 80..85 {
        let begin = Instant::now();
        policy(&mut world, port)?;
        let writes = sync(&mut backend, &mut world)?;
        effect.push(begin.elapsed());
        ensure!(writes >= 2 * pods, "{writes} elements for {pods} pods: each is a member and has a profile");
        let begin = Instant::now();
        policy(&mut world, port + 1000)?;
        sync(&mut backend, &mut world)?;
        changed.push(begin.elapsed());
        let begin = Instant::now();
        set(&mut world, None)?;
        sync(&mut backend, &mut world)?;
        last.push(begin.elapsed());
    }
    time(figures, "a policy that selects all of them, from the object to the kernel", median(effect), 50);
    figures.background_time("the same with another port", median(changed));
    figures.background_time("without it again", median(last));
    policy(&mut world, 80)?;
    sync(&mut backend, &mut world)?;
    let one = |n: usize, world: &mut World, backend: &mut Nftables| -> Result<Duration> {
        let begin = Instant::now();
        world.set_pod(&key(pods + n), Some(pod(pods + n, NODE)));
        let writes = sync(backend, world)?;
        ensure!(writes == 3, "{writes} elements for one pod: member, profile, and the pod with itself");
        Ok(begin.elapsed())
    };
    let times = (0..CHANGES).map(|n| one(n, &mut world, &mut backend)).collect::<Result<Vec<_>>>()?;
    time(figures, "one pod more, from the object to the kernel", median(times), 2);
    cleanup()?;
    Ok(())
}

async fn hns(figures: &mut Figures) -> Result<()> {
    let kernel = NoKernel { management: Some("10.240.0.11".parse()?), survived: true };
    let simulator = Simulator::new(Box::new(kernel), Switches::of(HnsVersion::new(13, 3)), None)?;
    let client = HcnClient::new(simulator.session());
    let network = HostComputeNetwork::new("pods", NetworkType::L2Bridge, Subnet::new("10.1.0.0/16".parse()?, "10.1.0.1".parse()?));
    let network = client.create_network(Guid::random(), &network).await?.id;
    for n in 0..ENDPOINTS {
        let address = ipnet::IpNet::new(pod(n, NODE).ips[0], 16)?;
        client.create_endpoint(&network, Guid::random(), &HostComputeEndpoint::local(format!("pod-{n}"), address, None)).await?;
    }
    let (world, mut backend) = (Mutex::new(world(SIZES[0], ENDPOINTS)), Hns::new(client.clone()));
    let locked = || world.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let pass = async |backend: &mut Hns| -> Result<()> {
        let changes = locked().take_changes();
        backend.sync(&|see: &mut dyn FnMut(&World)| see(&locked()), &changes, false).await?;
        Ok(())
    };
    pass(&mut backend).await?;
    let calls = || client.snapshot().total().calls;
    let (before, begin) = (calls(), Instant::now());
    policy(&mut locked(), 80)?;
    pass(&mut backend).await?;
    figures.time("a policy that selects all of the node's, from the object to the last endpoint", begin.elapsed(), Duration::from_millis(50));
    figures.background("its calls of HNS, six an endpoint", crate::figures::Amount::count((calls() - before) as usize));
    let mut times = Vec::new();
    let before = calls();
    for n in 0..CHANGES {
        let begin = Instant::now();
        locked().set_pod(&key(SIZES[0] + n), Some(pod(SIZES[0] + n, "node-1")));
        pass(&mut backend).await?;
        times.push(begin.elapsed());
    }
    figures.time("one pod more on another node", median(times), Duration::from_millis(5));
    let each = (calls() - before) as usize / CHANGES;
    ensure!(each == 3, "{each} calls for a member of a set: open, modify, close");
    figures.background("its calls of HNS", crate::figures::Amount::count(each));
    Ok(())
}
