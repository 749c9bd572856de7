//! `bench api` and `bench settle`: the control plane alone, as clients see it over TLS.
//!
//! The servers run in a network namespace of the benchmark's own. The clients are one thread of the benchmark, which shares the processors
//! with the server; its share of them is printed.

mod exercise;
mod hollow;
pub mod load;
mod objects;
pub mod settle;
pub mod site;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http::Method;

use crate::figures::{Amount, Figures, Limit, Report};
use crate::namespaced;
use crate::process;
use crate::up::median;
pub use exercise::{Exercise, exercise};
use load::{Connection, Done};
use objects::NAMESPACE;
use site::{Server, Site, Start};

/// What is measured.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The mullion to measure; figures of a release build are the ones that count
    #[arg(long)]
    mullion: PathBuf,
    /// Where the stores are; what counts as durable is decided by the disk below it
    #[arg(long, default_value = ".")]
    directory: PathBuf,
    /// Upstream's kube-apiserver, measured in the same run
    #[arg(long, requires = "etcd")]
    upstream: Option<PathBuf>,
    /// The etcd of upstream's
    #[arg(long)]
    etcd: Option<PathBuf>,
}

impl Args {
    /// The arguments that say the same, wherever the program stands.
    fn arguments(&self) -> Result<Vec<String>> {
        let mut arguments = Vec::new();
        for (name, path) in [
            ("mullion", Some(&self.mullion)),
            ("directory", Some(&self.directory)),
            ("upstream", self.upstream.as_ref()),
            ("etcd", self.etcd.as_ref()),
        ] {
            if let Some(path) = path {
                let path = path.canonicalize().with_context(|| format!("finding {} failed", path.display()))?;
                arguments.push(format!("--{name}={}", path.display()));
            }
        }
        Ok(arguments)
    }
}

/// The most that the figures may be, or the least.
const READY: Duration = Duration::from_millis(100);
const REST_MB: f64 = 30.0;
const DEFINITIONS_MB: f64 = 60.0;
const CREATES: f64 = 5_000.0;
const GETS: f64 = 15_000.0;
const LIST: Duration = Duration::from_millis(100);

const STARTS: usize = 5;
const NODES: usize = 3;
const DEFINITIONS: usize = 100;
const CLIENTS: usize = 256;
const CONNECTIONS: usize = 8;
const MAPS: usize = 30_000;
const PODS: usize = 10_000;
const READS: usize = 60_000;
const LISTS: usize = 7;
/// How long a definition may take until it is served.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the server is left alone before its memory is read.
const REST: Duration = Duration::from_secs(10);

/// Measures in namespaces and prints.
pub fn main(command: &str, args: &Args) -> Result<()> {
    namespaced::again(std::iter::once(format!("{command}-part")).chain(args.arguments()?))
}

/// The same, within the namespaces.
pub fn part(settle: bool, args: &Args) -> Result<ExitCode> {
    cluster::install_crypto_provider();
    linux_sys::ns::reset_switches()?;
    site::add_addresses()?;
    let mut report = Report::resume();
    if settle {
        report.table("a Deployment on hollow nodes", |figures| run(settle::measure(args, figures)));
        return Ok(report.end());
    }
    report.table("`mullion control-plane`", |figures| run(own(args, figures)));
    if let (Some(server), Some(etcd)) = (&args.upstream, &args.etcd) {
        report.table("upstream's kube-apiserver and etcd", |figures| run(upstreams(&args.directory, server, etcd, figures)));
    }
    Ok(report.end())
}

/// One thread does all that the benchmark does.
fn run<T>(measure: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(measure)
}

async fn own(args: &Args, figures: &mut Figures) -> Result<()> {
    add_disk(figures, &args.directory)?;
    let mut starts = Vec::new();
    for _ in 0..STARTS {
        let site = Site::new(&args.directory)?;
        let first = site.start(&args.mullion).await?.start;
        starts.push((first, site.start(&args.mullion).await?.start));
    }
    add_starts(figures, "on an empty directory", starts.iter().map(|(first, _)| *first).collect());
    add_starts(figures, "on what the first start left", starts.iter().map(|(_, again)| *again).collect());
    memory(args, figures).await?;
    let site = Site::new(&args.directory)?;
    let server = site.start(&args.mullion).await?;
    requests(&site, &server, figures, true).await
}

async fn upstreams(directory: &Path, program: &Path, etcd: &Path, figures: &mut Figures) -> Result<()> {
    let site = Site::new(directory)?;
    let server = site.start_upstream(program, etcd).await?;
    figures.background_time("from exec to `/readyz`, an etcd already running not counted", server.start.ready());
    tokio::time::sleep(REST).await;
    add_memory(figures, "PSS at rest, etcd included", &server, None)?;
    requests(&site, &server, figures, false).await
}

/// What the disk below the stores takes: it is part of every durable figure.
fn add_disk(figures: &mut Figures, directory: &Path) -> Result<()> {
    let (middle, slow) = site::fsync(directory, 500)?;
    figures.add_detailed("fdatasync of 4 KiB below the store", Amount::time(middle), format!("99 %: {}", Amount::time(slow)), Limit::Background);
    Ok(())
}

fn add_starts(figures: &mut Figures, which: &str, starts: Vec<Start>) {
    let answered = median(starts.iter().map(|start| start.answered).collect());
    let detail = format!("median of {}; `/readyz` over TLS {}", starts.len(), Amount::time(answered));
    let ready = median(starts.iter().map(|start| start.ready()).collect());
    figures.add_detailed(format!("ready {which}, from exec"), Amount::time(ready), detail, Limit::AtMost(Amount::time(READY)));
}

fn add_memory(figures: &mut Figures, name: &str, server: &Server, most: Option<f64>) -> Result<()> {
    let (all, program) = server.memory()?;
    let limit = most.map_or(Limit::Background, |most| Limit::AtMost(Amount::megabytes((most * 1e6) as u64)));
    let detail = format!("of which pages of the program file {}", Amount::megabytes(program));
    figures.add_detailed(name, Amount::megabytes(all), detail, limit);
    Ok(())
}

async fn memory(args: &Args, figures: &mut Figures) -> Result<()> {
    let site = Site::new(&args.directory)?;
    let server = site.start(&args.mullion).await?;
    let mut nodes = hollow::Nodes::start(&site, &server, NODES, true).await?;
    let before = server.cpu()?;
    tokio::time::sleep(REST).await;
    add_memory(figures, &format!("PSS at rest with {NODES} nodes"), &server, Some(REST_MB))?;
    let share = (server.cpu()? - before).as_secs_f64() / REST.as_secs_f64() * 100.0;
    figures.background("its share of a processor meanwhile", Amount::percent(share));
    let mut connection = site.admin(&server)?.connect().await?;
    let begun = Instant::now();
    define(&mut connection, DEFINITIONS, PATIENCE).await?;
    figures.background_time(format!("{DEFINITIONS} custom resources defined and served, one after the other"), begun.elapsed());
    tokio::time::sleep(REST).await;
    add_memory(figures, &format!("PSS at rest with {DEFINITIONS} definitions, each with an object"), &server, Some(DEFINITIONS_MB))?;
    for path in ["/openapi/v2", "/openapi/v3/apis/group0.bench.example/v1", "/openapi/v3/api/v1"] {
        connection.get(path).await?;
    }
    tokio::time::sleep(REST).await;
    add_memory(figures, "… after a client read the OpenAPI documents", &server, None)?;
    nodes.check()
}

/// Defines so many custom resources, and creates an object of each.
async fn define(connection: &mut Connection, definitions: usize, patience: Duration) -> Result<()> {
    for (path, object) in objects::namespace() {
        connection.create(path, &object).await?;
    }
    for n in 0..definitions {
        connection.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &objects::definition(n)).await?;
    }
    for n in 0..definitions {
        let (path, object) = objects::custom(n);
        let begun = Instant::now();
        // A definition is served a moment after it was written.
        while let Err(error) = connection.create(&path, &object).await {
            ensure!(begun.elapsed() < patience, "{path} is not served: {error:#}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    Ok(())
}

/// Rates: of the requests, and of whose processor time they took.
struct Cost {
    own: Duration,
    server: Duration,
    at: Instant,
}

impl Cost {
    fn begin(server: &Server) -> Result<Self> {
        Ok(Self { own: process::cpu(std::process::id())?, server: server.cpu()?, at: Instant::now() })
    }

    /// What an amount of work cost since the beginning.
    fn describe(&self, server: &Server, done: &Done) -> Result<String> {
        let wall = self.at.elapsed().as_secs_f64();
        let share = |time: Duration| time.as_secs_f64() / wall * 100.0;
        let (own, theirs) = (process::cpu(std::process::id())? - self.own, server.cpu()? - self.server);
        Ok(format!(
            "median {}, 99 % {}; of a processor: server {:.0} %, clients {:.0} %; {:.0} µs of the server's a request",
            Amount::time(done.median),
            Amount::time(done.slow),
            share(theirs),
            share(own),
            theirs.as_secs_f64() * 1e6 / done.requests as f64,
        ))
    }
}

async fn requests(site: &Site, server: &Server, figures: &mut Figures, limited: bool) -> Result<()> {
    let at_least = |least: f64| if limited { Limit::AtLeast(Amount::count(least as usize)) } else { Limit::Background };
    let connections = site.admin(server)?.connections(CONNECTIONS).await?;
    let mut first = connections[0].clone();
    for (path, object) in objects::namespace() {
        first.create(path, &object).await?;
    }
    let collection = |plural: &str| format!("/api/v1/namespaces/{NAMESPACE}/{plural}");
    type Make = fn(usize) -> String;
    for (name, plural, count, make) in [("ConfigMaps", "configmaps", MAPS, objects::config_map as Make), ("pods", "pods", PODS, objects::pod as Make)]
    {
        let path = collection(plural);
        let cost = Cost::begin(server)?;
        let done = load::run(&connections, CLIENTS, count, 201, move |n| (Method::POST, path.clone(), Some(Bytes::from(make(n))))).await?;
        let limit = if plural == "configmaps" { at_least(CREATES) } else { Limit::Background };
        let name = format!("durable creates a second, {name}, {CLIENTS} clients over {CONNECTIONS} connections");
        figures.add_detailed(name, Amount::count(done.a_second() as usize), cost.describe(server, &done)?, limit);
    }
    let path = collection("pods");
    let cost = Cost::begin(server)?;
    let read = move |n: usize| (Method::GET, format!("{path}/web-6d4cf56db6-{:05}", n * 7919 % PODS), None);
    let done = load::run(&connections, CLIENTS, READS, 200, read).await?;
    let name = format!("gets a second of one of {PODS} pods over TLS");
    figures.add_detailed(name, Amount::count(done.a_second() as usize), cost.describe(server, &done)?, at_least(GETS));
    lists(&mut first, &collection("pods"), figures, limited).await?;
    add_memory(figures, &format!("PSS with {MAPS} ConfigMaps and {PODS} pods"), server, None)
}

async fn lists(connection: &mut Connection, path: &str, figures: &mut Figures, limited: bool) -> Result<()> {
    let (mut plain, mut compressed, mut length) = (Vec::new(), Vec::new(), (0, 0));
    for _ in 0..LISTS {
        let begun = Instant::now();
        let (code, bytes) = connection.discard(Method::GET, path, None).await?;
        plain.push(begun.elapsed());
        ensure!(code == 200 && bytes > PODS * 500, "a list answered {code} with {bytes} bytes");
        let begun = Instant::now();
        let (code, packed) = connection.get_compressed(path).await?;
        compressed.push(begun.elapsed());
        ensure!(code == 200 && packed < bytes, "a compressed list answered {code} with {packed} bytes");
        length = (bytes, packed);
    }
    let limit = if limited { Limit::AtMost(Amount::time(LIST)) } else { Limit::Background };
    let detail = |bytes: usize| format!("median of {LISTS}, {}", Amount::megabytes(bytes as u64));
    figures.add_detailed(format!("list of {PODS} pods, to its last byte"), Amount::time(median(plain)), detail(length.0), limit);
    let name = format!("list of {PODS} pods, compressed as Go's clients ask for it");
    figures.add_detailed(name, Amount::time(median(compressed)), detail(length.1), Limit::Background);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pod_is_read() {
        let read: std::collections::BTreeSet<usize> = (0..READS).map(|n| n * 7919 % PODS).collect();
        assert_eq!(read.len(), PODS);
    }
}
