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
use service_proxy::hns::{Engine, Hns, LOOK, Settings, verify_pause};
use service_proxy::{Backend, Front, FrontKey, IpFamily, Kind, Protocol, Table, Vip};

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
        let counters = self.simulator.desk().calls.counters();
        counters.iter().filter(|(name, _)| !name.starts_with("HcnEnumerate")).map(|(_, counter)| counter.calls).sum()
    }

    fn all_calls(&self) -> u64 {
        self.simulator.desk().calls.counters().values().map(|counter| counter.calls).sum()
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
            let happening = self.hns.happening().await;
            self.hns.take(happening, &self.table);
        }
    }

    async fn rest(&mut self) -> Duration {
        self.until(Engine::is_idle).await
    }

    fn set(&mut self, fronts: Vec<(FrontKey, Front)>) {
        let changes = self.table.set_service(&Key::new("default", "web"), fronts);
        self.hns.touch(changes.into_iter().map(|change| change.key), &self.table);
    }
}

fn at(ip: u32, port: u16) -> FrontKey {
    FrontKey { vip: Vip::Address(IpAddr::from(ip.to_be_bytes())), protocol: Protocol::Tcp, port }
}

fn front(kind: Kind, pods: &[u32]) -> Front {
    let backend = |ip: &u32| Backend { address: IpAddr::from(ip.to_be_bytes()), port: 80, local: false };
    Front { backends: pods.iter().map(backend).collect(), ..Front::new("default/web:80", kind) }
}

/// `count` Services with three back ends each on other hosts, and cluster DNS.
fn table(count: u32) -> Table {
    let mut table = Table::default();
    for i in 0..count {
        let pods: Vec<u32> = (0..3).map(|n| 0x0ac8_0000 + i * 3 + n).collect();
        table.set_service(&Key::new("default", format!("s{i}")), vec![(at(0x0a61_0000 + i, 80), front(Kind::ClusterIp, &pods))]);
    }
    let dns = Front { urgent: true, ..front(Kind::ClusterIp, &[0x0ac7_0001, 0x0ac7_0002]) };
    table.set_service(&Key::new("kube-system", "kube-dns"), vec![(dns_key(), dns)]);
    table
}

fn dns_key() -> FrontKey {
    at(0x0a60_000a, 53)
}

struct Row {
    what: String,
    measured: String,
    limit: String,
}

fn row(what: impl Into<String>, measured: impl Into<String>, limit: impl Into<String>) -> Row {
    Row { what: what.into(), measured: measured.into(), limit: limit.into() }
}

const POD: u32 = 0x0ac6_0000;

async fn changes(rows: &mut Vec<Row>, count: u32, version: HnsVersion, network_type: NetworkType) -> Result<()> {
    let overlay = network_type == NetworkType::Overlay;
    let host = Host::new(version, network_type).await?;
    let mut proxy = host.proxy(table(count));
    proxy.rest().await;
    let key = at(0x0a60_0100, 80);
    let mut spend = async |fronts: Vec<(FrontKey, Front)>| {
        let before = host.calls();
        proxy.set(fronts);
        proxy.rest().await;
        host.calls() - before
    };
    let name =
        format!("{} on {}, {count} Services", if version == NEW { "HNS 15.5" } else { "HNS 13.3" }, if overlay { "an overlay" } else { "l2bridge" });
    let cluster_ip = |pods: &[u32]| (key, front(Kind::ClusterIp, pods));
    let added = spend(vec![cluster_ip(&[POD, POD + 1, POD + 2])]).await;
    rows.push(row(format!("calls for an added Service with 3 new remote back ends; {name}"), added.to_string(), if overlay { "10" } else { "8" }));
    let node_port = FrontKey { vip: Vip::Node(IpFamily::V4), protocol: Protocol::Tcp, port: 30080 };
    let more = spend(vec![cluster_ip(&[POD, POD + 1, POD + 2]), (node_port, front(Kind::NodePort, &[POD, POD + 1, POD + 2]))]).await;
    rows.push(row(format!("… for a further front end of it; {name}"), more.to_string(), "2"));
    spend(vec![cluster_ip(&[POD, POD + 1, POD + 2])]).await;
    let replaced = spend(vec![cluster_ip(&[POD, POD + 1, POD + 3])]).await;
    rows.push(row(format!("… for one pod replaced; {name}"), replaced.to_string(), "8"));
    Ok(())
}

/// Times where calls cost time: the first programming, and the repair of everything.
async fn programming(rows: &mut Vec<Row>) -> Result<()> {
    let host = Host::new(NEW, NetworkType::L2Bridge).await?;
    host.takes(WRITE, READ);
    let before = host.writes();
    let mut proxy = host.proxy(table(2_000));
    let dns = proxy.until(|engine| engine.is_up() && engine.is_settled(&dns_key())).await;
    let took = dns + proxy.rest().await;
    let ideal = WRITE * u32::try_from(host.writes() - before)?;
    let ratio = took.as_secs_f64() / ideal.as_secs_f64();
    rows.push(row(
        "first programming of 2,000 Services x 3 at 2 ms a write, 0.1 ms a read, against writes x 2 ms",
        format!("{:.2} s / {:.2} s = {ratio:.3}", took.as_secs_f64(), ideal.as_secs_f64()),
        "1.1",
    ));
    rows.push(row("… until cluster DNS is served", format!("{:.0} ms", dns.as_secs_f64() * 1e3), "1000 ms"));
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
    let ratio = took.as_secs_f64() / ideal.as_secs_f64();
    rows.push(row(
        "2,001 load balancers lost by a restart: from the service's first answer to the first write",
        format!("{:.2} s", found.as_secs_f64()),
        "3 s",
    ));
    rows.push(row(
        "… to all of them back, against writes x 2 ms",
        format!("{:.2} s / {:.2} s = {ratio:.3}", took.as_secs_f64(), ideal.as_secs_f64()),
        "1.05",
    ));
    rows.push(row("… to cluster DNS back, from the first write", format!("{:.0} ms", dns.as_secs_f64() * 1e3), "first"));
    Ok(())
}

fn cpu() -> Result<Duration> {
    let text = std::fs::read_to_string("/proc/self/stat").context("reading /proc/self/stat failed")?;
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
    Ok(Duration::from_millis(ticks * 10))
}

/// Calls and time of processors while nothing changes.
async fn rest(rows: &mut Vec<Row>) -> Result<()> {
    for count in [2_000_u32, 20_000] {
        let host = Host::new(NEW, NetworkType::L2Bridge).await?;
        let mut proxy = host.proxy(table(count));
        proxy.rest().await;
        let (calls, used, start) = (host.all_calls(), cpu()?, Instant::now());
        let _ = tokio::time::timeout(REST, proxy.until(|_| false)).await;
        let minutes = start.elapsed().as_secs_f64() / 60.0;
        let spent = (cpu()? - used).as_secs_f64() / start.elapsed().as_secs_f64() * 100.0;
        let round = verify_pause(count as usize + 1) * (count + 1);
        let (calls, limit) = ((host.all_calls() - calls) as f64 / minutes, if count == 2_000 { "100" } else { "" });
        rows.push(row(format!("calls a minute at rest, {count} Services"), format!("{calls:.0}"), limit));
        rows.push(row(
            "… ids compared, and every load balancer read again, within",
            format!("{} s, {:.0} min", LOOK.as_secs(), round.as_secs_f64() / 60.0),
            "",
        ));
        rows.push(row("… processor time, the simulator's own included", format!("{spent:.2} %"), if count == 2_000 { "0.1 %" } else { "" }));
    }
    Ok(())
}

/// The whole proxy in a process of its own: its share of memory once it serves everything.
#[cfg(target_os = "linux")]
async fn resident(rows: &mut Vec<Row>, services: usize, limit: &str) -> Result<()> {
    use crate::proxy_nft::{Helper, api};

    let host = Host::new(NEW, NetworkType::L2Bridge).await?;
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("hcn");
    let listener = hcn::remote::Address::Unix(socket.clone()).listen()?;
    let simulator = host.simulator.clone();
    std::thread::spawn(move || {
        while let Ok(stream) = listener.accept() {
            let session = simulator.session();
            std::thread::spawn(move || hcn::remote::serve_connection(stream, &session, None));
        }
    });
    let server = api::Server::start(services)?;
    let begin = Instant::now();
    let mut proxy = Helper::start(&["proxy", &server.url(), &services.to_string(), &format!("unix:{}", socket.display())])?;
    anyhow::ensure!(proxy.line()? == "converged", "the proxy did not say that it is done");
    let took = begin.elapsed();
    std::thread::sleep(Duration::from_secs(10));
    let measured = format!("{:.1} MB", proxy.pss_mb()?);
    rows.push(row(
        format!("PSS of a process with {services} Services x 3, {:.1} s after its start and at rest", took.as_secs_f64() + 10.0),
        measured,
        limit,
    ));
    Ok(())
}

/// Measures and prints.
pub fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut rows = Vec::new();
    runtime.block_on(async {
        for (count, version, network_type) in [
            (2_000, NEW, NetworkType::L2Bridge),
            (20_000, NEW, NetworkType::L2Bridge),
            (2_000, OLD, NetworkType::L2Bridge),
            (2_000, NEW, NetworkType::Overlay),
        ] {
            changes(&mut rows, count, version, network_type).await?;
        }
        programming(&mut rows).await?;
        rest(&mut rows).await
    })?;
    #[cfg(target_os = "linux")]
    for (services, limit) in [(2_000, "15 MB"), (20_000, "60 MB")] {
        runtime.block_on(resident(&mut rows, services, limit))?;
    }
    println!("| on the simulator | measured | limit |\n| --- | ---: | ---: |");
    rows.iter().for_each(|row| println!("| {} | {} | {} |", row.what, row.measured, row.limit));
    Ok(())
}
