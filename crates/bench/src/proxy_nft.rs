//! `bench proxy-nft`: the service proxy on Linux, nftables and user space, in namespaces of its own.
//!
//! The program starts itself again in new namespaces (so that an ordinary user may run it) and there, for what is measured by
//! itself, once more.

pub mod api;
mod carry;

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::net::IpAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Subcommand;
use cluster::Key;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use linux_sys::netlink::Rtnl;
use serde_json::{Value, json};
use service_proxy::nftables::{Nftables, Pods, Settings, cleanup};
use service_proxy::{FrontKey, ServiceRow, SliceRow, Table, Terms, wanted};

use crate::namespaced::{self, Figures};
use crate::process::share;
use crate::up::median;

/// What the program does when it has started itself again.
#[derive(Debug, Subcommand)]
pub enum Part {
    /// Everything, within the namespaces
    Lab,
    /// A proxy of nftables, or over the Host Networking Service at an address, that says when it is done
    Proxy { api: String, fronts: usize, hcn: Option<String> },
    /// The user-space proxy, from one address to another
    Carry { from: String, to: String },
    /// A relay of splice and nothing else, from one address to another
    Bare { from: String, to: String },
}

/// Measures and prints. A figure over its limit is an error, after the tables.
pub fn main() -> Result<()> {
    namespaced::again(["proxy-nft-part", "lab"])
}

/// Does a part.
pub fn part(part: &Part) -> Result<()> {
    match part {
        Part::Lab => lab(),
        Part::Proxy { api, fronts, hcn } => api::proxy(api, *fronts, hcn.as_deref()),
        Part::Carry { from, to } => carry::user_space(from.parse()?, to.parse()?),
        Part::Bare { from, to } => carry::bare(from.parse()?, to.parse()?),
    }
}

fn lab() -> Result<()> {
    carry::raise_limits()?;
    Rtnl::open()?.set_up(1)?;
    let mut figures = Figures::default();
    for (services, full, memory) in [(2_000, 100, 15.0), (20_000, 1_000, 60.0)] {
        programming(&mut figures, services, Duration::from_millis(full))?;
        resident(&mut figures, services, memory)?;
    }
    let over = figures.print("nftables, Services x 3 back ends");
    let mut carried = Figures::default();
    carry::measure(&mut carried)?;
    namespaced::judge(&[over, carried.print("user space, over the loopback")].concat())
}

/// How many back ends each Service has.
const BACKENDS: usize = 3;

/// Service number `n`.
fn service(n: usize) -> Value {
    let ip = format!("10.96.{}.{}", n / 250, n % 250 + 1);
    json!({"metadata": {"name": format!("service-{n}"), "namespace": format!("ns-{}", n % 50), "resourceVersion": "1", "uid": format!("00000000-0000-4000-8000-{n:012x}")},
        "spec": {"clusterIP": ip, "clusterIPs": [ip], "type": "ClusterIP", "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}]}})
}

/// Its slice: each version has another first back end, which is the one on this node.
fn slice(n: usize, version: usize) -> Value {
    let address = |at: usize| {
        let pod = n * BACKENDS + at + if at == 0 { version % 8 * 100_000 } else { 0 };
        format!("10.{}.{}.{}", 1 + pod / 62_500, pod / 250 % 250, pod % 250 + 1)
    };
    let endpoints: Vec<Value> = (0..BACKENDS)
        .map(|at| json!({"addresses": [address(at)], "nodeName": format!("node-{at}"), "conditions": {"ready": true, "serving": true, "terminating": false}}))
        .collect();
    json!({"metadata": {"name": format!("service-{n}-x7k2p"), "namespace": format!("ns-{}", n % 50), "resourceVersion": (version + 1).to_string(),
            "labels": {"kubernetes.io/service-name": format!("service-{n}")}},
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}], "endpoints": endpoints})
}

struct World {
    table: Table,
    terms: Terms,
}

impl World {
    fn new(services: usize) -> Result<Self> {
        let mut world = Self { table: Table::default(), terms: Terms::default() };
        for n in 0..services {
            world.set(n, &world_rows(n, 0)?);
        }
        Ok(world)
    }

    fn set(&mut self, n: usize, (row, slice): &(ServiceRow, Arc<SliceRow>)) -> BTreeSet<FrontKey> {
        let key = Key::new(format!("ns-{}", n % 50), format!("service-{n}"));
        let wanted = wanted(&key, row, std::slice::from_ref(slice), &self.terms);
        self.table.set_service(&key, wanted).into_iter().map(|change| change.key).collect()
    }
}

fn world_rows(n: usize, version: usize) -> Result<(ServiceRow, Arc<SliceRow>)> {
    let row = ServiceRow::of(&serde_json::from_value::<Service>(service(n))?).context("a Service needs no proxy")?;
    let slice = SliceRow::of(&serde_json::from_value::<EndpointSlice>(slice(n, version))?, "node-0").context("a slice is left out")?;
    Ok((row, Arc::new(slice)))
}

fn backend() -> Nftables {
    let node: IpAddr = [10, 240, 0, 11].into();
    Nftables::new(Settings::new(vec![node], Pods::Nets(vec![([10, 0, 0, 0], 12).into_net()])))
}

trait IntoNet {
    fn into_net(self) -> ipnet::IpNet;
}

impl IntoNet for ([u8; 4], u8) {
    fn into_net(self) -> ipnet::IpNet {
        ipnet::Ipv4Net::new_assert(self.0.into(), self.1).into()
    }
}

const CHANGES: usize = 201;

fn programming(figures: &mut Figures, services: usize, limit: Duration) -> Result<()> {
    let sync =
        |proxy: &mut Nftables, table: &Table, dirty: &BTreeSet<FrontKey>, full: bool| proxy.sync(table, dirty, full).map_err(anyhow::Error::msg);
    let mut world = World::new(services)?;
    let none = BTreeSet::new();
    let mut times = Vec::new();
    for _ in 0..3 {
        cleanup().map_err(anyhow::Error::msg)?;
        let mut proxy = backend();
        let begin = Instant::now();
        let writes = sync(&mut proxy, &world.table, &none, true)?.writes;
        times.push(begin.elapsed());
        ensure!(
            writes == services * (BACKENDS + 3),
            "{writes} elements for {services} Services: each has a front end, an address, slots and a pod here"
        );
    }
    figures.time(&format!("{services}: all, into an empty kernel"), median(times), Some(limit));
    let mut proxy = backend();
    let begin = Instant::now();
    let writes = sync(&mut proxy, &world.table, &none, true)?.writes;
    ensure!(writes == 0, "a restart wrote {writes} elements");
    figures.time(&format!("{services}: taking over after a restart (nothing written)"), begin.elapsed(), None);
    let changes = (1..=CHANGES)
        .map(|version| {
            let rows = world_rows(services / 2, version)?;
            let begin = Instant::now();
            let dirty = world.set(services / 2, &rows);
            let writes = sync(&mut proxy, &world.table, &dirty, false)?.writes;
            let time = begin.elapsed();
            ensure!(writes > 0, "nothing was written for a replaced pod");
            Ok(time)
        })
        .collect::<Result<Vec<_>>>()?;
    figures.time(&format!("{services}: one pod of one Service replaced (median of {CHANGES})"), median(changes), Some(Duration::from_millis(1)));
    let key = Key::new(format!("ns-{}", services % 50), format!("service-{services}"));
    let adds = (0..CHANGES)
        .map(|_| {
            let rows = world_rows(services, 0)?;
            let begin = Instant::now();
            let dirty = world.set(services, &rows);
            sync(&mut proxy, &world.table, &dirty, false)?;
            let time = begin.elapsed();
            let gone = world.table.set_service(&key, Vec::new()).into_iter().map(|change| change.key).collect();
            sync(&mut proxy, &world.table, &gone, false)?;
            Ok(time)
        })
        .collect::<Result<Vec<_>>>()?;
    figures.time(&format!("{services}: one Service added (median of {CHANGES})"), median(adds), Some(Duration::from_millis(1)));
    let begin = Instant::now();
    ensure!(sync(&mut proxy, &world.table, &none, true)?.writes == 0, "a full pass wrote without need");
    figures.time(&format!("{services}: a full pass when nobody touched the rules"), begin.elapsed(), Some(Duration::from_millis(1)));
    cleanup().map_err(anyhow::Error::msg)?;
    Ok(())
}

/// A process of this program with a part to do, which ends with this value.
pub struct Helper {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Helper {
    /// Starts it.
    pub fn start(args: &[&str]) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?).arg("proxy-nft-part").args(args).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().context("a child has no output")?;
        Ok(Self { child, lines: BufReader::new(output).lines() })
    }

    /// The next line that it says.
    pub fn line(&mut self) -> Result<String> {
        self.lines.next().context("the child ended")?.context("reading from the child failed")
    }

    /// Its share of memory.
    pub fn pss_mb(&self) -> Result<f64> {
        Ok(share(self.child.id())? as f64 * 1024.0 / 1e6)
    }

    /// How many pipes it has open, but for its output.
    fn pipes(&self) -> Result<usize> {
        let mut names = BTreeSet::new();
        for file in std::fs::read_dir(format!("/proc/{}/fd", self.child.id()))? {
            let file = file?;
            if file.file_name().to_str().is_some_and(|fd| fd.parse::<u32>().is_ok_and(|fd| fd > 2)) {
                names.extend(std::fs::read_link(file.path()).ok().filter(|to| to.to_string_lossy().starts_with("pipe:")));
            }
        }
        Ok(names.len())
    }

    /// Time on processors so far.
    fn cpu(&self) -> Result<Duration> {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let fields: Vec<&str> = text.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).context("reading a child's time failed");
        // Hundredths of a second, on every machine.
        Ok(Duration::from_millis((ticks(11)? + ticks(12)?) * 10))
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How long a proxy is watched at rest.
const REST: Duration = Duration::from_secs(20);

/// The whole proxy in a process: from the API's first object to the last element in the kernel, then at rest.
fn resident(figures: &mut Figures, services: usize, limit_mb: f64) -> Result<()> {
    let server = api::Server::start(services)?;
    let begin = Instant::now();
    let mut proxy = Helper::start(&["proxy", &server.url(), &services.to_string()])?;
    ensure!(proxy.line()? == "converged", "the proxy did not say that it is done");
    figures.time(&format!("{services}: a process, from its start to the last element (lists from an API over HTTP)"), begin.elapsed(), None);
    let before = proxy.cpu()?;
    std::thread::sleep(REST);
    let share = (proxy.cpu()? - before).as_secs_f64() / REST.as_secs_f64() * 100.0;
    let memory = proxy.pss_mb()?;
    figures.add(&format!("{services}: PSS of that process"), &format!("{memory:.1} MB"), &format!("{limit_mb:.0} MB"), memory <= limit_mb);
    figures.add(&format!("{services}: its share of a processor at rest, {} s", REST.as_secs()), &format!("{share:.2} %"), "0.10 %", share <= 0.1);
    drop(proxy);
    cleanup().map_err(anyhow::Error::msg)?;
    Ok(())
}
