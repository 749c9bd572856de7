//! The campaign of `tools/containerd --soak`: the agent is killed at random points while pods come and go, the runtime restarts, the API
//! server is away, the clock jumps, the disk fills. No pod may be lost, doubled or restarted without cause, and nothing may be left.
//!
//! Parameters are words `NAME=NUMBER`: `kills`, `runtime` (restarts of containerd), `away` (seconds without the API server), `seed`; the seed
//! is printed, and the same one repeats the same pods and delays. `only=PART` runs one part, given twice two; `logs=DIRECTORY` gets the logs of a failure.

mod clock;
mod disk;
pub mod leaks;
mod pods;
mod relay;
mod watch;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::cluster::Cluster;
use pods::Pods;
use relay::Relay;
use watch::Watch;

/// What the campaign runs, and how much of it.
pub struct Options {
    kills: u32,
    runtime: u32,
    away: Duration,
    seed: u64,
    only: Vec<String>,
    logs: Option<String>,
}

impl Options {
    /// Reads the words that tools/containerd hands on, with commas between.
    fn read() -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let mut options = Self { kills: 1000, runtime: 20, away: Duration::from_secs(600), seed: now.as_secs(), only: Vec::new(), logs: None };
        let words = std::env::var("MULLION_TEST_CASES").unwrap_or_default();
        for word in words.split(',').filter(|word| !word.is_empty()) {
            let (name, value) = word.split_once('=').unwrap_or_else(|| panic!("{word}: not NAME=VALUE"));
            let number = || value.parse::<u64>().unwrap_or_else(|error| panic!("{word}: {error}"));
            match name {
                "kills" => options.kills = number() as u32,
                "runtime" => options.runtime = number() as u32,
                "away" => options.away = Duration::from_secs(number()),
                "seed" => options.seed = number(),
                "only" => options.only.push(value.to_owned()),
                "logs" => options.logs = Some(value.to_owned()),
                _ => panic!("{word}: kills, runtime, away, seed, only and logs are known"),
            }
        }
        options
    }

    fn runs(&self, part: &str) -> bool {
        let runs = self.only.is_empty() || self.only.iter().any(|only| only == part);
        if runs {
            println!("soak: {part}");
        }
        runs
    }
}

/// Random numbers that a seed repeats (SplitMix64).
pub struct Random(u64);

impl Random {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    /// A delay between these milliseconds.
    fn ms(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }
}

/// Everything the parts share.
pub struct Soak {
    cluster: Arc<Cluster>,
    pods: Pods,
    watch: Watch,
    random: Random,
}

/// A short one for the suite: with a cluster that others use, too.
pub async fn ten_kills_lose_and_double_nothing(cluster: Arc<Cluster>) {
    let mut soak = Soak::start(cluster, 1).await;
    soak.kill_the_agent(10).await;
    soak.watch.end();
    pods::remove_manifest("manifest");
}

/// The campaign, unless a part fails before its end.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "tools/containerd --soak runs it"]
async fn campaign() {
    let options = Options::read();
    println!("soak: kills={} runtime={} away={} seed={}", options.kills, options.runtime, options.away.as_secs(), options.seed);
    let cluster = Cluster::start().await;
    let kept = Logs(options.logs.clone());
    run(cluster.clone(), &options).await;
    cluster.end();
    drop(kept);
}

/// Copies the logs of agent and runtime when the test panics.
struct Logs(Option<String>);

impl Drop for Logs {
    fn drop(&mut self) {
        let Some(directory) = self.0.as_deref().filter(|_| std::thread::panicking()) else { return };
        for name in ["node.log", "containerd.log"] {
            let _ = std::fs::copy(Path::new("/run").join(name), Path::new(directory).join(name));
        }
    }
}

async fn run(cluster: Arc<Cluster>, options: &Options) {
    cluster.node.kill();
    disk::mount();
    clock::preload();
    let relay = Relay::start().await;
    cluster.node.start();
    cluster.until_node_is("True").await;
    let before = leaks::Left::now();
    let mut soak = Soak::start(cluster, options.seed).await;
    if options.runs("kills") {
        soak.kill_the_agent(options.kills).await;
    }
    if options.runs("runtime") {
        soak.kill_the_runtime(options.runtime).await;
    }
    if options.runs("api") {
        soak.take_the_api_away(&relay, options.away).await;
    }
    if options.runs("clock") {
        soak.move_the_clock().await;
    }
    if options.runs("disk") {
        soak.fill_the_disk().await;
    }
    if options.runs("descriptors") {
        soak.count_descriptors().await;
    }
    soak.end(before).await;
}

impl Soak {
    async fn start(cluster: Arc<Cluster>, seed: u64) -> Self {
        let pods = Pods::start(&cluster).await;
        let watch = Watch::start(&cluster, &pods).await;
        let mut soak = Self { cluster, pods, watch, random: Random(seed) };
        soak.check("the start").await;
        soak
    }

    /// Kills the agent at random points of its start and of its work, with pods that come and go meanwhile.
    async fn kill_the_agent(&mut self, kills: u32) {
        for round in 1..=kills {
            self.pods.churn(&self.cluster, &mut self.random).await;
            // A third of the kills hits the start, the others the work on pods.
            let delay = if self.random.below(3) == 0 { self.random.ms(0, 250) } else { self.random.ms(250, 1800) };
            tokio::time::sleep(delay).await;
            self.cluster.node.kill();
            if self.random.below(10) == 0 {
                self.pods.churn(&self.cluster, &mut self.random).await;
                tokio::time::sleep(self.random.ms(0, 500)).await;
            }
            if self.random.below(25) == 0 {
                self.pods.kill_the_mortal();
            }
            self.cluster.node.start();
            self.watch.verdict(&format!("kill {round}"));
            if round % 50 == 0 || round == kills {
                self.check(&format!("{round} kills")).await;
                println!("soak: {round} kills of the agent; {} pods came and went", self.pods.made());
            }
        }
    }

    /// Kills containerd, whose shims live on; sometimes the agent with it.
    async fn kill_the_runtime(&mut self, times: u32) {
        self.watch.ready.set(false);
        for round in 1..=times {
            if round % 2 == 0 {
                self.pods.churn(&self.cluster, &mut self.random).await;
                tokio::time::sleep(self.random.ms(0, 1500)).await;
            }
            let both = self.random.below(3) == 0;
            self.cluster.containerd.kill();
            if both {
                self.cluster.node.kill();
            }
            tokio::time::sleep(self.random.ms(0, 3000)).await;
            self.cluster.containerd.start();
            if both {
                self.cluster.node.start();
            }
            self.check(&format!("{round} restarts of containerd")).await;
        }
        self.watch.ready.set(true);
        println!("soak: {times} restarts of containerd");
    }

    /// No API server for a while: containers restart, static pods come and go, the agent is killed, and nothing else happens.
    async fn take_the_api_away(&mut self, relay: &Relay, away: Duration) {
        let began = std::time::Instant::now();
        relay.close();
        self.watch.ready.set(false);
        for _ in 0..3 {
            self.pods.mortal_restarts_by_itself(&self.watch).await;
        }
        self.pods.static_pod_comes_and_goes(&self.watch).await;
        tokio::time::sleep((away / 2).saturating_sub(began.elapsed())).await;
        self.watch.verdict("half of the time without the API server");
        for _ in 0..3 {
            self.cluster.node.kill();
            self.cluster.node.start();
            tokio::time::sleep(self.random.ms(500, 3000)).await;
        }
        self.pods.static_pod_comes_and_goes(&self.watch).await;
        tokio::time::sleep(away.saturating_sub(began.elapsed())).await;
        self.watch.verdict("the time without the API server");
        relay.open();
        self.cluster.until_node_is("True").await;
        self.check("the API server's return").await;
        self.watch.ready.set(true);
        println!("soak: {} s without the API server", began.elapsed().as_secs());
    }

    /// The agent's wall clock jumps forward and back while pods come and go; that of the runtime stays.
    async fn move_the_clock(&mut self) {
        let hour = 3600;
        for offset in [hour, 0, 6 * hour, hour, 0, -200, 0] {
            self.pods.churn(&self.cluster, &mut self.random).await;
            self.pods.failing_starts(&self.cluster).await;
            tokio::time::sleep(self.random.ms(0, 1500)).await;
            clock::set(offset);
            self.pods.churn(&self.cluster, &mut self.random).await;
            self.pods.starts_succeed(&self.cluster).await;
            self.check(&format!("the clock at {offset:+} s")).await;
        }
        println!("soak: the clock jumped by 5 hours at most");
    }

    /// One agent makes and ends many pods: it must not hold more in the end.
    async fn count_descriptors(&mut self) {
        let mut counts = Vec::new();
        for _ in 0..6 {
            for _ in 0..8 {
                self.pods.churn(&self.cluster, &mut self.random).await;
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            self.check("more pods of one agent").await;
            counts.push(leaks::descriptors(&self.cluster));
        }
        println!("soak: descriptors of the agent: {counts:?}");
        assert!(counts[5] <= counts[1] + 10, "the agent's descriptors grow: {counts:?}");
    }

    /// Waits until all pods are as they should be, and says what was seen meanwhile.
    async fn check(&mut self, after: &str) {
        self.watch.verdict(after);
        self.pods.converge(&self.cluster, &self.watch, after).await;
        self.watch.verdict(after);
    }

    async fn end(self, before: leaks::Left) {
        self.watch.end();
        self.pods.delete_all(&self.cluster).await;
        before.is_all_there_is(&self.cluster).await;
        println!("soak: nothing is left");
    }
}
