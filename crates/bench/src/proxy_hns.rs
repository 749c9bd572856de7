//! `bench proxy-hns`: what the service proxy asks of the Host Networking Service, and how long it takes, on the simulator.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use cluster::Key;
use hcn::document::{NetworkPolicyType, RemoteSubnetRoute};
use hcn::{Guid, HcnClient, HnsVersion, HostComputeNetwork, NetworkPolicy, NetworkType, Subnet};
use hns_sim::Simulator;
use hns_sim::admin::{Restart, RestartMode};
use hns_sim::kernel::NoKernel;
use hns_sim::one_lock::OneLock;
use hns_sim::switches::Switches;
use service_proxy::backend::Backend as _;
use service_proxy::hns::{Engine, Hns, Periods, Settings};
use service_proxy::{BackendAddress, IpFamily, Kind, Protocol, Table, Vip, VipAddress, VipKey};

use crate::figures::{Amount, Figures, Limit, Report};

const UID: &str = "5c8d0000-0000-0000-0000-000000000001";
/// Windows Server 2025, which can modify load balancers, and 2022, which cannot.
const NEW: HnsVersion = HnsVersion::new(15, 5);
const OLD: HnsVersion = HnsVersion::new(13, 3);
/// What a call costs where time is measured: one call at a time.
const WRITE: Duration = Duration::from_millis(2);
const READ: Duration = Duration::from_micros(100);
/// How long rest is watched.
const REST: Duration = Duration::from_secs(30);

struct Host {
    simulator: Simulator,
    lock: Arc<OneLock>,
    client: HcnClient,
}

impl Host {
    async fn new(version: HnsVersion, network_type: NetworkType) -> Result<Self> {
        let kernel = NoKernel { management: "10.0.0.1".parse().ok(), survived: true };
        let simulator = Simulator::new(Box::new(kernel), Switches::of(version), None)?;
        let lock = Arc::new(OneLock::new(simulator.session(), Duration::ZERO, Duration::ZERO));
        let client = HcnClient::new(lock.clone());
        let mut subnet = Subnet::new("192.168.4.0/24".parse()?, "192.168.4.1".parse()?);
        if network_type == NetworkType::Overlay {
            let settings = serde_json::json!({"IsolationId": 4096});
            subnet.policies.push(NetworkPolicy { policy_type: NetworkPolicyType::Vsid, settings, ..NetworkPolicy::default() });
        }
        let mut network = HostComputeNetwork::new("pods", network_type.clone(), subnet);
        if network_type == NetworkType::Overlay {
            network = network.with_policy(NetworkPolicy::remote_subnet_route(&RemoteSubnetRoute {
                destination_prefix: "10.0.0.0/8".into(),
                isolation_id: 4096,
                provider_address: "172.16.0.3".into(),
                distributed_router_mac_address: "00-15-5D-00-00-03".into(),
                ..RemoteSubnetRoute::default()
            }));
        }
        client.create_network(Guid::random(), &network).await?;
        Ok(Self { simulator, lock, client })
    }

    fn proxy(&self, table: Table) -> Proxy {
        let settings = Settings {
            node_ips: "10.0.0.1".parse().into_iter().collect(),
            source_vip: "192.168.4.2".parse().ok(),
            host_mac: Some("00-15-5D-0A-0B-0C".into()),
            ..Settings::new("pods")
        };
        let mut hns = Hns::new(&self.client, UID, settings);
        hns.touch(table.iter().map(|(key, _)| *key).collect::<Vec<_>>(), &table);
        Proxy { hns, table }
    }

    fn takes(&self, write: Duration, read: Duration) {
        self.lock.set_costs(write, read);
    }

    fn writes(&self) -> u64 {
        self.lock.tally().writes
    }

    /// Calls so far, without the enumerations that go on at any time.
    fn calls(&self) -> u64 {
        let counters = self.simulator.controls().calls.counters();
        counters.iter().filter(|(name, _)| !name.starts_with("HcnEnumerate")).map(|(_, counter)| counter.calls).sum()
    }

    fn all_calls(&self) -> u64 {
        self.simulator.controls().calls.counters().values().map(|counter| counter.calls).sum()
    }

    fn balancers(&self) -> usize {
        self.simulator.with_state(|state| state.balancers.len())
    }
}

struct Proxy {
    hns: Hns,
    table: Table,
}

impl Proxy {
    async fn until(&mut self, done: impl Fn(&Engine) -> bool) -> Duration {
        let start = Instant::now();
        loop {
            self.hns.begin(&self.table);
            if done(self.hns.engine()) {
                return start.elapsed();
            }
            let event = self.hns.next_event().await;
            self.hns.process(event, &self.table);
        }
    }

    async fn rest(&mut self) -> Duration {
        self.until(Engine::is_idle).await
    }

    fn set(&mut self, vips: Vec<(VipKey, Vip)>) {
        let changes = self.table.set_service(&Key::new("default", "web"), vips);
        self.hns.touch(changes.into_iter().map(|change| change.key), &self.table);
    }
}

fn at(ip: u32, port: u16) -> VipKey {
    VipKey { address: VipAddress::Ip(IpAddr::from(ip.to_be_bytes())), protocol: Protocol::Tcp, port }
}

fn vip(kind: Kind, pods: &[u32]) -> Vip {
    let backend = |ip: &u32| BackendAddress { address: IpAddr::from(ip.to_be_bytes()), port: 80, local: false };
    Vip { backends: pods.iter().map(backend).collect(), ..Vip::new("default/web:80", kind) }
}

/// `count` Services with three backends each on other hosts, and cluster DNS.
fn table(count: u32) -> Table {
    let mut table = Table::default();
    for i in 0..count {
        let pods: Vec<u32> = (0..3).map(|n| 0x0ac8_0000 + i * 3 + n).collect();
        table.set_service(&Key::new("default", format!("s{i}")), vec![(at(0x0a61_0000 + i, 80), vip(Kind::ClusterIp, &pods))]);
    }
    let dns = Vip { urgent: true, ..vip(Kind::ClusterIp, &[0x0ac7_0001, 0x0ac7_0002]) };
    table.set_service(&Key::new("kube-system", "kube-dns"), vec![(dns_key(), dns)]);
    table
}

fn dns_key() -> VipKey {
    at(0x0a60_000a, 53)
}

const POD: u32 = 0x0ac6_0000;

async fn changes(figures: &mut Figures, count: u32, version: HnsVersion, network_type: NetworkType) -> Result<()> {
    let overlay = network_type == NetworkType::Overlay;
    let host = Host::new(version, network_type).await?;
    let mut proxy = host.proxy(table(count));
    proxy.rest().await;
    let key = at(0x0a60_0100, 80);
    let mut spend = async |vips: Vec<(VipKey, Vip)>| {
        let before = host.calls();
        proxy.set(vips);
        proxy.rest().await;
        host.calls() - before
    };
    let name =
        format!("{} on {}, {count} Services", if version == NEW { "HNS 15.5" } else { "HNS 13.3" }, if overlay { "an overlay" } else { "l2bridge" });
    let cluster_ip = |pods: &[u32]| (key, vip(Kind::ClusterIp, pods));
    let added = spend(vec![cluster_ip(&[POD, POD + 1, POD + 2])]).await;
    let mut row = |what: &str, calls: u64, most| figures.at_most(format!("{what}; {name}"), Amount::count(calls as usize), most);
    row("calls for an added Service with 3 new remote backends", added, if overlay { 10.0 } else { 8.0 });
    let node_port = VipKey { address: VipAddress::Node(IpFamily::V4), protocol: Protocol::Tcp, port: 30080 };
    let more = spend(vec![cluster_ip(&[POD, POD + 1, POD + 2]), (node_port, vip(Kind::NodePort, &[POD, POD + 1, POD + 2]))]).await;
    row("… for a further VIP of it", more, 2.0);
    spend(vec![cluster_ip(&[POD, POD + 1, POD + 2])]).await;
    let replaced = spend(vec![cluster_ip(&[POD, POD + 1, POD + 3])]).await;
    row("… for one pod replaced", replaced, 8.0);
    Ok(())
}

/// Times where calls cost time: the first programming, and the repair of everything.
async fn programming(figures: &mut Figures) -> Result<()> {
    let host = Host::new(NEW, NetworkType::L2Bridge).await?;
    host.takes(WRITE, READ);
    let before = host.writes();
    let mut proxy = host.proxy(table(2_000));
    let dns = proxy.until(|engine| engine.is_up() && engine.is_settled(&dns_key())).await;
    let took = dns + proxy.rest().await;
    let ideal = WRITE * u32::try_from(host.writes() - before)?;
    let against = |figures: &mut Figures, name: &str, took: Duration, ideal: Duration, most: f64| {
        let (ratio, detail) = (took.as_secs_f64() / ideal.as_secs_f64(), format!("{} / {}", Amount::time(took), Amount::time(ideal)));
        figures.add_detailed(name, Amount::times(ratio), detail, Limit::AtMost(Amount::times(most)));
    };
    let name = "first programming of 2,000 Services x 3 at 2 ms a write, 0.1 ms a read, against writes x 2 ms";
    against(figures, name, took, ideal, 1.1);
    figures.time("… until cluster DNS is served", dns, Duration::from_secs(1));
    host.simulator.add_fault("restart-loses-lbs".parse().map_err(anyhow::Error::msg)?).map_err(anyhow::Error::msg)?;
    host.simulator.restart(Restart { mode: RestartMode::Clean, away_ms: 500, wipe: false }).map_err(anyhow::Error::msg)?;
    host.simulator.clear_faults();
    proxy.until(|engine| !engine.is_up()).await;
    let answers = Instant::now() + Duration::from_millis(500);
    let before = host.writes();
    let first = host.writes();
    proxy.until(|_| host.writes() > first).await;
    let found = Instant::now().saturating_duration_since(answers);
    let begun = Instant::now();
    let dns = proxy.until(|engine| engine.is_up() && engine.is_settled(&dns_key())).await;
    proxy.until(|engine| engine.is_idle() && host.balancers() == 2_001).await;
    let ideal = WRITE * u32::try_from(host.writes() - before)?;
    let took = begun.elapsed();
    let name = "2,001 load balancers lost by a restart: from the service's first answer to the first write";
    figures.time(name, found, Duration::from_secs(3));
    against(figures, "… to all of them back, against writes x 2 ms", took, ideal, 1.05);
    // First of all: before a tenth of the others.
    figures.time("… to cluster DNS back, from the first write", dns, took / 10);
    Ok(())
}

fn cpu() -> Result<Duration> {
    let text = std::fs::read_to_string("/proc/self/stat").context("reading /proc/self/stat failed")?;
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
    Ok(Duration::from_millis(ticks * 10))
}

/// How many Services there are at rest, the most calls a minute, and the most of a processor in percent.
const REST_SIZES: [(u32, f64, f64); 2] = [(2_000, 100.0, 0.1), (20_000, 700.0, 1.0)];

/// Calls and time of processors while nothing changes.
async fn rest(figures: &mut Figures) -> Result<()> {
    for (count, most_calls, most_percent) in REST_SIZES {
        let host = Host::new(NEW, NetworkType::L2Bridge).await?;
        let mut proxy = host.proxy(table(count));
        proxy.rest().await;
        let (calls, used, start) = (host.all_calls(), cpu()?, Instant::now());
        let _ = tokio::time::timeout(REST, proxy.until(|_| false)).await;
        let minutes = start.elapsed().as_secs_f64() / 60.0;
        let spent = (cpu()? - used).as_secs_f64() / start.elapsed().as_secs_f64() * 100.0;
        let periods = Periods::default();
        let round = periods.between_reads(count as usize + 1) * (count + 1);
        let calls = ((host.all_calls() - calls) as f64 / minutes).round() as usize;
        let detail = format!(
            "ids compared every {} s, every load balancer read again within {:.0} min",
            periods.enumerate.as_secs(),
            round.as_secs_f64() / 60.0
        );
        let limit = |most| Limit::AtMost(Amount::count(most as usize));
        figures.add_detailed(format!("calls a minute at rest, {count} Services"), Amount::count(calls), detail, limit(most_calls));
        figures.at_most(format!("… processor time, {count} Services, the simulator's own included"), Amount::percent(spent), most_percent);
    }
    Ok(())
}

/// The cases in which calls are counted.
const CASES: [(u32, HnsVersion, NetworkType); 4] = [
    (2_000, NEW, NetworkType::L2Bridge),
    (20_000, NEW, NetworkType::L2Bridge),
    (2_000, OLD, NetworkType::L2Bridge),
    (2_000, NEW, NetworkType::Overlay),
];

/// Measures and prints.
pub fn main(#[cfg(target_os = "linux")] programs: &crate::command::Programs, report: &mut Report) -> Result<()> {
    #[cfg(target_os = "linux")]
    if programs.only_memory {
        return memory(programs, report);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    report.table("on the simulator, calls", |figures| {
        runtime.block_on(async {
            for (count, version, network_type) in CASES {
                changes(figures, count, version, network_type).await?;
            }
            Ok(())
        })
    });
    report.table("on the simulator, with latency", |figures| runtime.block_on(programming(figures)));
    report.table("on the simulator, at rest", |figures| runtime.block_on(rest(figures)));
    #[cfg(target_os = "linux")]
    memory(programs, report)?;
    Ok(())
}

/// Each size in namespaces of its own.
#[cfg(target_os = "linux")]
fn memory(programs: &crate::command::Programs, report: &mut Report) -> Result<()> {
    for at in 0..crate::command::HNS.len() {
        let part = ["proxy-hns-part".to_owned(), at.to_string()];
        report.part("memory over HNS", crate::namespaced::again(part.into_iter().chain(programs.arguments()?)));
    }
    Ok(())
}

/// The memory of one size, within namespaces.
#[cfg(target_os = "linux")]
pub fn part(at: usize, programs: &crate::command::Programs) -> Result<std::process::ExitCode> {
    let size = *crate::command::HNS.get(at).context("there is no such size")?;
    linux_sys::ns::reset_switches()?;
    linux_sys::netlink::Rtnl::open()?.set_up(1)?;
    let mut report = Report::resume();
    let title = format!("`mullion kube-proxy` over `mullion hns-sim`, {} Services x 3", size.services);
    report.table(&title, |figures| crate::command::hns(figures, programs, size));
    Ok(report.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_a_limit() {
        assert_eq!(REST_SIZES.map(|(count, ..)| count), [2_000, 20_000]);
        assert!(REST_SIZES.iter().all(|(_, calls, percent)| *calls > 0.0 && *percent > 0.0));
    }

    #[tokio::test]
    async fn every_count_of_calls_has_a_limit() {
        let mut figures = Figures::default();
        changes(&mut figures, 10, NEW, NetworkType::L2Bridge).await.unwrap();
        assert_eq!(figures.limited().len(), 3, "{figures:?}");
    }
}
