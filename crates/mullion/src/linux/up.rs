//! `mullion up`, `down` and `status`: the supervisor of a one-machine cluster.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use host::NodeOs;
use lab::dir::{Cluster, Dirs, Env, Wanted};
use lab::error::LabError;
use lab::outside::Settings;
use lab::plan::{AddressOptions, Plan};
use lab::preflight;
use lab::protocol::Event;
use lab::spec::{self, Os};
use lab::supervisor::{self, Lab, LabConfig};
use linux_sys::lock::FileLock;
use linux_sys::signal::Signals;
use uuid::Uuid;

use super::cli::{DirArgs, Network, UpArgs};
use super::progress::Progress;
use super::{detach, image, keys, nodes, processes, template};
use crate::exit::Failure;

/// The nodes of a new cluster.
const DEFAULT_NODES: &str = "lin01:linux,win01:windows:20348,win02:windows:20348";
/// How long all nodes have to become Ready.
const PATIENCE: Duration = Duration::from_secs(60);

/// The paths of the cluster that `args` names.
pub fn dirs(args: &DirArgs) -> Result<Dirs, LabError> {
    let env = Env::of_process();
    Dirs::resolve(&args.dir.clone().unwrap_or_else(|| env.default_dir()), &env)
}

/// The operating system of a node as the agents know it.
pub fn node_os(os: Os) -> NodeOs {
    match os {
        Os::Linux => NodeOs::Linux,
        Os::Windows { build } => NodeOs::Windows { build },
    }
}

/// `mullion lab-init`.
pub fn init(config: &Path) -> ExitCode {
    lab::init::main(config)
}

/// `mullion lab-outside`.
pub fn keep_outside(args: impl IntoIterator<Item = String>) -> ExitCode {
    lab::outside::keeper(args)
}

/// `mullion up`.
pub fn up(args: &UpArgs) -> Result<(), Failure> {
    if args.detach {
        return detach::start();
    }
    // Before any thread exists, so that none is ended by them.
    let signals = supervisor::end_signals().context("catching signals failed")?;
    let mut progress = Progress::new(args.report_fd)?;
    match start(args, signals, &mut progress) {
        Ok(running) => serve(running, progress),
        Err(failure) => {
            progress.failed(&failure);
            Err(failure)
        }
    }
}

/// A cluster whose nodes are Ready.
struct Running {
    lab: Lab,
    /// What goes when everything in the lab has ended.
    _groups: ControlGroups,
    /// Ends with this process: nobody else may run on DIR.
    _lock: FileLock,
}

/// The control groups of the nodes' containers (by the state directories of their runtimes), removed in the end.
struct ControlGroups(Vec<PathBuf>);

impl Drop for ControlGroups {
    fn drop(&mut self) {
        self.0.iter().for_each(|state_dir| container_sim::remove_control_groups(state_dir));
    }
}

fn start(args: &UpArgs, signals: Signals, progress: &mut Progress) -> Result<Running, Failure> {
    let begin = Instant::now();
    let dirs = dirs(&args.dir)?;
    let (cluster, plan) = plan(args, &dirs)?;
    crate::hns::check_switches(&cluster.nodes)?;
    let fresh = !dirs.dir.exists();
    // Whoever runs here already also holds the port: the better reason first.
    let lock = if dirs.dir.exists() { Some(dirs.lock()?) } else { None };
    let listener = preflight::bind_api(args.port)?;
    preflight::disk(&dirs.dir)?;
    preflight::namespaces()?;
    let outside = args.outside.then(outside).transpose()?;
    let lock = match lock {
        Some(lock) => lock,
        None => dirs.lock()?,
    };
    cluster.save(&dirs)?;
    dirs.make_layout(&cluster.nodes)?;
    dirs.make_run(&cluster.nodes)?;
    progress.step("checked this machine");
    template::prepare(&cluster, &signals, progress).inspect_err(|_| drop(dirs.remove_run()))?;

    let admin = keys::prepare(&dirs.dir.join("pki"), &plan, args.port).inspect_err(|_| drop(dirs.remove_run()))?;
    let kubeconfig = dirs.dir.join("pki").join("admin.conf");
    if let Some(file) = &args.kubeconfig {
        pki::write_private(file, &admin).with_context(|| format!("writing --kubeconfig {} failed", file.display()))?;
    }
    progress.step("made keys");

    let (lab, boots) = start_lab(args, &dirs, (&cluster, &plan), listener, outside).inspect_err(|failure| {
        // On a machine that cannot run it, a cluster that never was leaves nothing. Otherwise its logs may tell why.
        if fresh && matches!(failure.error.downcast_ref(), Some(LabError::Nftables(_) | LabError::Namespaces(_))) {
            drop(std::fs::remove_dir_all(&dirs.dir));
        }
    })?;
    lab.end_on(signals).context("starting a thread failed")?;
    progress.step(&format!("made {} hosts", plan.hosts.len() + 1));
    let result = wait_ready(&lab, boots, &kubeconfig, progress);
    if let Err(failure) = result {
        lab.stop()?;
        return Err(failure);
    }
    progress.ready(begin.elapsed(), &dirs, args.port, &kubeconfig);
    lab.set_extra("apiServer", format!("https://127.0.0.1:{}", args.port).into());
    lab.set_extra("outside", args.outside.into());
    lab.set_extra("kubeconfig", kubeconfig.display().to_string().into());
    let groups = cluster.nodes.iter().map(|node| dirs.host(&node.name)).collect();
    Ok(Running { lab, _groups: ControlGroups(groups), _lock: lock })
}

/// What DIR holds and what is asked for, as one.
fn plan(args: &UpArgs, dirs: &Dirs) -> Result<(Cluster, Plan), LabError> {
    let known = Cluster::load(dirs)?;
    let base = known.as_ref().map(|known| known.addresses.clone()).unwrap_or_default();
    let asked = args.cluster_cidr.is_some() || args.node_mask.is_some() || args.service_cidr.is_some() || args.dns_ip.is_some();
    let addresses = AddressOptions {
        cluster_cidr: args.cluster_cidr.unwrap_or(base.cluster_cidr),
        node_mask: args.node_mask.unwrap_or(base.node_mask),
        service_cidr: args.service_cidr.unwrap_or(base.service_cidr),
        dns_ip: args.dns_ip.unwrap_or(base.dns_ip),
    };
    let wanted = Wanted {
        nodes: args.nodes.as_deref().map(spec::parse_list).transpose()?,
        network: args.network.map(|Network::HostGateway| "host-gateway".to_owned()),
        addresses: asked.then_some(addresses),
        feature_gates: args.feature_gates.as_ref().map(ToString::to_string),
        registry_mirrors: some(args.registries.registry_mirror.iter().map(ToString::to_string).collect()),
        insecure_registries: some(args.registries.insecure_registry.clone()),
        without: some(args.without.iter().map(ToString::to_string).collect()),
    };
    Cluster::reconcile(known, wanted, &spec::parse_list(DEFAULT_NODES)?, dirs)
}

/// None given means: those that are remembered.
fn some(list: Vec<String>) -> Option<Vec<String>> {
    (!list.is_empty()).then_some(list)
}

/// pasta, kept by a copy of this program.
fn outside() -> Result<Settings, LabError> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    Ok(Settings { pasta: lab::outside::find(&path)?, keeper: vec!["/proc/self/exe".to_owned(), "lab-outside".to_owned()] })
}

/// The lab, and the boot id of each node.
type Started = (Lab, BTreeMap<String, String>);

fn start_lab(
    args: &UpArgs,
    dirs: &Dirs,
    (cluster, plan): (&Cluster, &Plan),
    listener: std::net::TcpListener,
    outside: Option<Settings>,
) -> Result<Started, Failure> {
    let ca = std::fs::read(dirs.dir.join("pki").join("ca.crt")).context("reading the cluster's authority failed")?;
    let image_cache = image::cache_dir();
    let inputs = processes::Inputs {
        dirs,
        cluster,
        plan,
        image_cache: &image_cache,
        boot: Uuid::new_v4(),
        identity: Uuid::new_v5(&Uuid::NAMESPACE_OID, &ca),
        stand_ins: !args.no_stand_ins,
        outside: args.outside,
    };
    let config = LabConfig {
        dirs: dirs.clone(),
        hosts: plan.hosts.clone(),
        processes: processes::list(&inputs),
        fds: vec![(processes::API_LISTENER.to_owned(), listener.into())],
        // What comes back for pods: the control plane's host knows the way to each.
        routes: vec![(plan.addresses.cluster_cidr, lab::plan::CONTROL_PLANE)],
        outside,
        init: vec!["/proc/self/exe".to_owned(), "lab-init".to_owned()],
    };
    let boots = cluster.nodes.iter().map(|node| (node.name.clone(), inputs.boot_id(&node.name))).collect();
    Ok((supervisor::start(config)?, boots))
}

/// Waits until the control plane answers and all nodes are Ready, and shows what becomes ready.
fn wait_ready(lab: &Lab, boots: BTreeMap<String, String>, kubeconfig: &Path, progress: &mut Progress) -> Result<(), Failure> {
    let deadline = Instant::now() + PATIENCE;
    let mut trouble = Vec::new();
    let note = |event: &Event, trouble: &mut Vec<String>| {
        if let Event::Exited { name, status, .. } = event {
            trouble.push(format!("{name} {status}"));
        }
    };
    lab.wait_ready(&[processes::CONTROL_PLANE_PROCESS], PATIENCE, |event| note(event, &mut trouble))
        .with_context(|| format!("the control plane did not start{}", log_hint(lab, processes::CONTROL_PLANE_PROCESS)))?;
    progress.step("control plane answers");
    let watch = nodes::Watch::start(kubeconfig.to_owned(), boots);
    loop {
        for node in watch.newly_ready() {
            progress.step(&format!("node {node} is Ready"));
        }
        if watch.all_ready() {
            return Ok(());
        }
        if Instant::now() > deadline {
            let failed = if trouble.is_empty() { String::new() } else { format!(" ({})", trouble.join("; ")) };
            return Err(anyhow!(
                "not all nodes became Ready within {PATIENCE:?}: {}{failed}; the logs are in {}",
                watch.missing(),
                lab.status().dir.join("hosts").display()
            )
            .into());
        }
        // Bounded: only while starting.
        match lab.wait_event(Duration::from_millis(5)) {
            Some(Event::Ended { status }) => {
                return Err(anyhow!("the cluster ended while it started: {status}{}", log_hint(lab, processes::CONTROL_PLANE_PROCESS)).into());
            }
            Some(Event::DownRequested) => return Err(anyhow!("ended before it was ready").into()),
            Some(event) => note(&event, &mut trouble),
            None => {}
        }
    }
}

fn log_hint(lab: &Lab, process: &str) -> String {
    let log = lab.status().processes.into_iter().find(|p| p.name == process).map(|p| p.log);
    log.map(|log| format!(" (see {})", log.display())).unwrap_or_default()
}

/// Keeps the cluster until somebody ends it.
fn serve(running: Running, mut progress: Progress) -> Result<(), Failure> {
    let Running { lab, _groups, _lock } = running;
    progress.running();
    loop {
        match lab.wait_event(Duration::from_secs(3600)) {
            Some(Event::DownRequested) => {
                lab.stop()?;
                return Ok(());
            }
            Some(Event::Ended { status }) => {
                lab.stop()?;
                return Err(anyhow!("the cluster ended: {status}").into());
            }
            Some(Event::Exited { name, status, restart_ms }) => {
                tracing::warn!("{name} {status}; it starts again in {restart_ms} ms");
            }
            _ => {}
        }
    }
}

/// `mullion down`.
pub fn down(args: &DirArgs) -> Result<(), Failure> {
    let dirs = dirs(args)?;
    let begin = Instant::now();
    supervisor::down(&dirs)?;
    eprintln!("the cluster of {} ended in {:.2} s; `mullion up` resumes it", dirs.dir.display(), begin.elapsed().as_secs_f64());
    Ok(())
}
