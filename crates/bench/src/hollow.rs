//! `bench hollow`: a cluster of a thousand hollow nodes, from `up` to the last Ready pod.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::control_plane::settle;
use crate::figures::{Amount, Figures, Report};
use crate::process;
use crate::up::{Took, round, run};

/// What is measured.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The mullion to measure; figures of a release build are the ones that count
    #[arg(long)]
    mullion: PathBuf,
    /// kubectl
    #[arg(long, default_value = "kubectl")]
    kubectl: PathBuf,
    /// How many hollow nodes
    #[arg(long, default_value_t = NODES)]
    nodes: u32,
    /// How many pods
    #[arg(long, default_value_t = PODS)]
    pods: u64,
}

const NODES: u32 = 1_000;
const PODS: u64 = 30_000;
/// The most that the figures may be.
const READY: Duration = Duration::from_secs(60);
const MEMORY_MB: f64 = 2_000.0;
/// How long pods may take before they count as failed.
const PATIENCE: Duration = Duration::from_secs(1_800);
/// The Deployment is asked for so often: seldom enough to cost nothing.
const POLL: Duration = Duration::from_millis(500);

/// What pods took, and what the cluster holds with them.
struct Pods {
    ready: Duration,
    processes: Vec<process::Process>,
    /// Processor time of the control plane and of the hollow nodes.
    cpu: [Duration; 2],
}

/// Measures and prints.
pub fn main(args: &Args, report: &mut Report) {
    report.table(&format!("{} hollow nodes and {} pods", args.nodes, args.pods), |figures| measure(args, figures));
}

fn measure(args: &Args, figures: &mut Figures) -> Result<()> {
    let mullion = args.mullion.canonicalize().with_context(|| format!("finding {} failed", args.mullion.display()))?;
    let nodes = args.nodes.to_string();
    let options = ["--nodes", "lin01:linux", "--hollow", &nodes, "--timeout", "30m"];
    let Took { up, measured: pods, .. } = round(&mullion, &options, |kubeconfig, home| pods(args, &mullion, kubeconfig, home))?;
    figures.background_time("`up` to all nodes Ready", up);
    figures.background_time("pods from their Deployment to Ready", pods.ready);
    figures.time("both", up + pods.ready, READY);
    let all: u64 = pods.processes.iter().map(|process| process.pss_kib * 1024).sum();
    figures.at_most("PSS of all processes with them", Amount::megabytes(all), MEMORY_MB);
    for process in &pods.processes {
        figures.background(format!("PSS of {}", process.role), Amount::megabytes(process.pss_kib * 1024));
    }
    for (name, cpu) in ["control plane", "hollow nodes"].into_iter().zip(pods.cpu) {
        figures.background_time(format!("processor time of the {name} so far"), cpu);
    }
    Ok(())
}

/// Pods on the hollow nodes of a cluster that is ready.
fn pods(args: &Args, mullion: &Path, kubeconfig: &Path, home: &Path) -> Result<Pods> {
    let kubectl = |words: &[&str], stdin: &str| run(Command::new(&args.kubectl).env("KUBECONFIG", kubeconfig).env("HOME", home).args(words), stdin);
    let mut deployment = settle::deployment(args.pods);
    deployment["spec"]["template"]["spec"]["nodeSelector"] = json!({"mullion.io/hollow": "true"});
    let begun = Instant::now();
    kubectl(&["create", "-f", "-"], &deployment.to_string())?;
    loop {
        let seen: Value = serde_json::from_str(&kubectl(&["get", "deployment", "web", "-o", "json"], "")?)?;
        if settle::is_settled(&seen, args.pods) {
            break;
        }
        let ready = seen["status"]["readyReplicas"].as_u64().unwrap_or_default();
        ensure!(begun.elapsed() < PATIENCE, "{ready} of {} pods were Ready after {PATIENCE:?}", args.pods);
        sleep(POLL);
    }
    let ready = begun.elapsed();
    let dir = home.join("dir");
    let cpu = |command: &str| process::find(&dir, command).map_or(Ok(Duration::ZERO), process::cpu);
    Ok(Pods { ready, processes: process::list(mullion)?, cpu: [cpu("control-plane")?, cpu("hollow-nodes")?] })
}
