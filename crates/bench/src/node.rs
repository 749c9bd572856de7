//! `bench node`: the node agent on containerd, beside calls of CRI without an agent, and upstream's kubelet where there is one.
//!
//! Everything runs in namespaces of the benchmark's own (network, mounts, processes), as root: containerd makes control groups and mounts.
//! Each agent has the same containerd, with the same image, and a control plane that is a copy of the program, so that the agent shares no
//! page with it. Pods are of one container, which waits for a signal and ends.

mod agents;
mod containerd;
mod direct;
mod exercise;
mod pods;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::control_plane::site::{self, Server, Site};
use crate::figures::{Amount, Figures, Limit, Report};
use crate::namespaced;
use crate::up::median;
use agents::{Agent, Kind};
use containerd::Containerd;
pub use exercise::exercise;
use pods::Pods;

/// What is measured.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The mullion to measure; figures of a release build are the ones that count
    #[arg(long)]
    mullion: PathBuf,
    /// The program of the CNI plug-ins
    #[arg(long)]
    cni: PathBuf,
    /// Where containerd and the stores keep their files
    #[arg(long, default_value = ".")]
    directory: PathBuf,
    /// Upstream's kubelet, measured in the same run
    #[arg(long)]
    upstream: Option<PathBuf>,
    /// The most pods at once
    #[arg(long, default_value_t = MANY)]
    pods: usize,
}

impl Args {
    fn arguments(&self) -> Result<Vec<String>> {
        let mut arguments = vec!["node-part".to_owned(), format!("--pods={}", self.pods)];
        let paths =
            [("mullion", Some(&self.mullion)), ("cni", Some(&self.cni)), ("directory", Some(&self.directory)), ("upstream", self.upstream.as_ref())];
        for (name, path) in paths.into_iter().filter_map(|(name, path)| path.map(|path| (name, path))) {
            let path = path.canonicalize().with_context(|| format!("finding {} failed", path.display()))?;
            arguments.push(format!("--{name}={}", path.display()));
        }
        Ok(arguments)
    }
}

/// The most that the figures may be.
const IDLE_MB: f64 = 12.0;
const SOME_MB: f64 = 20.0;
const MANY_MB: f64 = 40.0;
const IDLE_CPU_PERCENT: f64 = 0.3;
const ONE: Duration = Duration::from_millis(180);
const BESIDE_CRI: f64 = 1.10;
const EXIT: Duration = Duration::from_millis(100);
const ADOPTED: Duration = Duration::from_secs(1);

/// Pods of the middle size, and of the largest.
const SOME: usize = 50;
const MANY: usize = 250;
/// How often one pod is made and removed.
const ONES: usize = 9;
/// How many containers end on their own.
const EXITS: usize = 15;
/// How long an agent is left alone before its memory is read, and while its processor time is.
const REST: Duration = Duration::from_secs(10);
const STILL: Duration = Duration::from_secs(60);

/// Measures in namespaces and prints.
pub fn main(args: &Args) -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "bench node needs root: containerd makes control groups and mounts");
    namespaced::again_as_root(args.arguments()?)
}

/// The same, within the namespaces.
pub fn part(args: &Args) -> Result<ExitCode> {
    cluster::install_crypto_provider();
    linux_sys::ns::reset_switches()?;
    site::add_addresses()?;
    agents::add_address()?;
    let mut report = Report::resume();
    report.table("`mullion node` on containerd", |figures| run(ours(args, figures)));
    if let Some(kubelet) = &args.upstream {
        report.table("upstream's kubelet on the same containerd", |figures| run(upstreams(args, kubelet, figures)));
    }
    Ok(report.end())
}

fn run<T>(measure: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(measure)
}

/// Where an agent is measured.
struct World {
    site: Site,
    server: Server,
    containerd: Containerd,
}

impl World {
    async fn new(args: &Args) -> Result<Self> {
        let site = Site::new(&args.directory)?;
        let containerd = Containerd::start(&site.path("containerd"), &args.cni).await?;
        let server = site.start(&args.mullion).await?;
        Ok(Self { site, server, containerd })
    }

    async fn pods(&self, node: &str) -> Result<Pods> {
        Pods::new(self.site.admin(&self.server)?.connect().await?, node)
    }
}

async fn ours(args: &Args, figures: &mut Figures) -> Result<()> {
    let world = World::new(args).await?;
    let agent = Agent::start(Kind::Ours(&args.mullion), &world.site, &world.server, &(&world.containerd).into())?;
    let mut pods = world.pods(agent.name()).await?;
    pods.node_ready().await.with_context(|| world.site.log("node"))?;
    let limits =
        Limits { idle: mb(IDLE_MB), some: mb(SOME_MB), cpu: Limit::AtMost(Amount::percent(IDLE_CPU_PERCENT)), one: time(ONE), exit: time(EXIT) };
    let (up, down) = small(&world, &mut pods, &agent, figures, &limits).await.with_context(|| world.site.log("node"))?;
    one_directly(&world, figures).await?;
    let cri = direct::crowd(&world.containerd, SOME).await?;
    for (name, ours, direct) in [("created", up, cri.up), ("deleted", down, cri.down)] {
        figures.background_time(format!("{SOME} pods {name} by calls of CRI alone"), direct);
        let ratio = Amount::times(ours.as_secs_f64() / direct.as_secs_f64());
        figures.add(format!("{SOME} pods {name}, by those calls alone = 1"), ratio, Limit::AtMost(Amount::times(BESIDE_CRI)));
    }
    many(args.pods, &mut pods, agent, &world, figures).await.with_context(|| world.site.log("node"))?;
    world.containerd.end()
}

/// What one pod takes without an agent, and its calls.
async fn one_directly(world: &World, figures: &mut Figures) -> Result<()> {
    let (mut ups, mut calls) = (Vec::new(), [const { Vec::new() }; 3]);
    for _ in 0..ONES {
        let took = direct::crowd(&world.containerd, 1).await?;
        ups.push(took.up);
        for one in took.calls {
            calls.iter_mut().zip(one).for_each(|(all, one)| all.push(one));
        }
    }
    figures.background_time(format!("one pod created by calls of CRI alone (median of {ONES})"), median(ups));
    for (call, all) in ["RunPodSandbox", "CreateContainer", "StartContainer"].into_iter().zip(calls) {
        figures.background_time(format!("of it, {call}"), median(all));
    }
    Ok(())
}

async fn upstreams(args: &Args, kubelet: &Path, figures: &mut Figures) -> Result<()> {
    let world = World::new(args).await?;
    // It brings no pod network: ours makes it, without an agent.
    let network = Agent::start(Kind::Network(&args.mullion), &world.site, &world.server, &(&world.containerd).into())?;
    let agent = Agent::start(Kind::Upstream(kubelet), &world.site, &world.server, &(&world.containerd).into())?;
    let mut pods = world.pods(agent.name()).await?;
    pods.node_ready().await.with_context(|| world.site.log("kubelet"))?;
    let none = Limits { idle: Limit::Background, some: Limit::Background, cpu: Limit::Background, one: Limit::Background, exit: Limit::Background };
    small(&world, &mut pods, &agent, figures, &none).await.with_context(|| world.site.log("kubelet"))?;
    drop((agent, network));
    world.containerd.end()
}

/// What the figures of a small node may be.
struct Limits {
    idle: Limit,
    some: Limit,
    cpu: Limit,
    one: Limit,
    exit: Limit,
}

fn mb(most: f64) -> Limit {
    Limit::AtMost(Amount::megabytes((most * 1e6) as u64))
}

fn time(most: Duration) -> Limit {
    Limit::AtMost(Amount::time(most))
}

/// Memory, one pod, 50 pods, and exits. Returns how long 50 pods took to come and to go.
async fn small(world: &World, pods: &mut Pods, agent: &Agent, figures: &mut Figures, limits: &Limits) -> Result<(Duration, Duration)> {
    tokio::time::sleep(REST).await;
    figures.add("PSS without pods", Amount::megabytes(agent.memory()?), limits.idle);
    let mut ones = Vec::new();
    // The first one brings what is read once.
    for number in 0..=ONES {
        let took = pods.create(1).await?;
        pods.delete_all().await?;
        ones.extend((number > 0).then_some(took));
    }
    figures.add(format!("one pod from its creation to Ready (median of {ONES})"), Amount::time(median(ones)), limits.one);
    let begun = agent.cpu()?;
    let up = pods.create(SOME).await?;
    figures.background_time(format!("{SOME} pods from their creation to Ready"), up);
    figures.background_time("processor time of the agent for them", agent.cpu()? - begun);
    tokio::time::sleep(REST).await;
    figures.add(format!("PSS with {SOME} pods"), Amount::megabytes(agent.memory()?), limits.some);
    let (begun, at) = (agent.cpu()?, Instant::now());
    tokio::time::sleep(STILL).await;
    let percent = (agent.cpu()? - begun).as_secs_f64() / at.elapsed().as_secs_f64() * 100.0;
    figures.add(format!("of a processor with {SOME} pods at rest"), Amount::percent(percent), limits.cpu);
    let exits = pods.exits(&world.containerd.client, EXITS).await?;
    figures.add(format!("end of a container to the API (median of {EXITS})"), Amount::time(median(exits.api)), limits.exit);
    figures.background_time(format!("end of a container to the event of containerd (median of {EXITS})"), median(exits.runtime));
    pods.delete_all().await?;
    pods.create(SOME).await?;
    let down = pods.delete_all().await?;
    figures.background_time(format!("{SOME} pods from their deletion to their end"), down);
    Ok((up, down))
}

/// The largest node, and an agent that starts again on it.
async fn many(count: usize, pods: &mut Pods, agent: Agent, world: &World, figures: &mut Figures) -> Result<()> {
    let took = pods.create(count).await?;
    figures.background_time(format!("{count} pods from their creation to Ready"), took);
    tokio::time::sleep(REST).await;
    figures.add(format!("PSS with {count} pods"), Amount::megabytes(agent.memory()?), mb(MANY_MB));
    let again = agent.restart(&world.site)?;
    let adopted = pods.adopted(count).await?;
    figures.add(format!("start of the agent to {count} adopted pods"), Amount::time(adopted.duration_since(again.started())), time(ADOPTED));
    tokio::time::sleep(REST).await;
    let unwell = pods.unwell().await?;
    figures.add(format!("of {count} pods not Ready or restarted after that"), Amount::count(unwell), Limit::AtMost(Amount::count(0)));
    pods.delete_all().await?;
    Ok(())
}
