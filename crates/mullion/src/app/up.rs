//! Wiring of `mullion up`: the supervisor of a one-machine cluster.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use lab::dir::{Dirs, Env, LOCK};
use lab::error::LabError;
use lab::outside::Settings;
use lab::preflight;
use lab::protocol::Event;
use lab::supervisor::{self, Lab, LabConfig, SharedDir};
use linux_sys::lock::FileLock;
use linux_sys::signal::Signals;
use node_config::addresses::AddressOptions;
use node_config::node_spec;
use serde_json::json;
use uuid::Uuid;

use crate::exit::Failure;
use crate::linux::cli::{NONE, Output, UpArgs};
use crate::linux::cluster_file::{self, Cluster, ClusterError, Layout, Requested};
use crate::linux::progress::Progress;
use crate::linux::ready::{Limit, wait_ready};
use crate::linux::{detach, image, keys, processes, status, template};

/// The nodes of a new cluster.
const DEFAULT_NODES: &str = "lin01:linux,win01:windows:20348,win02:windows:20348";

/// `mullion up`.
pub fn up(args: &UpArgs) -> Result<(), Failure> {
    let as_json = args.output == Some(Output::Json);
    if args.detach {
        return detach::start(as_json);
    }
    // Before any thread exists, so that none is ended by them.
    let signals = supervisor::end_signals().context("catching signals failed")?;
    let mut progress = Progress::new(args.report_fd, as_json)?;
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
    dirs: Dirs,
    lab: Lab,
    /// What goes when everything in the lab has ended.
    groups: ControlGroups,
    /// Ends with this process: nobody else may run on DIR.
    lock: FileLock,
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
    let dirs = cluster_file::dirs(&args.dir)?;
    let fresh = !dirs.dir.exists();
    let (mut cluster, layout, before) = plan(args, &dirs)?;
    crate::hns::check_switches(&cluster.nodes)?;
    let audit = args.audit.given()?;
    dirs.check_foreign()?;
    // A cluster that runs here already also holds the port: the better reason first.
    let lock = if fresh { None } else { Some(dirs.lock()?) };
    let listener = bind(args.port, cluster.port)?;
    let port = listener.local_addr().context("looking at the API server's port failed")?.port();
    cluster.port = Some(port);
    preflight::disk(&dirs.dir)?;
    preflight::namespaces()?;
    let outside = cluster.outside.then(outside).transpose()?;
    let mut lock = match lock {
        Some(lock) => lock,
        None => dirs.lock()?,
    };
    cluster.save(&dirs)?;
    cluster_file::make_dirs(&dirs, &cluster.nodes)?;
    args.audit.keep(&audit, &dirs)?;
    dirs.make_run(cluster.nodes.iter().map(|node| node.name.as_str()))?;
    progress.step("checked this machine");
    template::prepare(&cluster, &signals, progress).inspect_err(|_| drop(dirs.remove_run()))?;

    let server = keys::server(port);
    let kubeconfig = dirs.dir.join("pki").join("admin.conf");
    keys::publish_all(&dirs, &cluster, &layout, before.as_ref()).inspect_err(|_| drop(dirs.remove_run()))?;
    progress.step("made keys");

    let kept = lock.file().try_clone().context("keeping the lock failed")?;
    let fds = vec![(processes::API_LISTENER.to_owned(), listener.into()), (LOCK.to_owned(), kept.into())];
    let (lab, boots) = start_lab(&dirs, (&cluster, &layout), fds, outside).inspect_err(|failure| {
        // On a machine that cannot run it, a cluster that never was leaves nothing. Otherwise its logs may show why.
        if fresh && matches!(failure.error.downcast_ref(), Some(LabError::Nftables(_) | LabError::Namespaces(_))) {
            drop(std::fs::remove_dir_all(&dirs.dir));
        }
    })?;
    lab.end_on(signals).context("starting a thread failed")?;
    progress.step(&format!("made {} hosts", layout.hosts.len() + 1));
    let limit = Limit::new(begin, args.timeout);
    if let Err(failure) = wait_ready(&lab, (boots, cluster.hollow), &kubeconfig, &limit, progress) {
        lab.stop()?;
        return Err(failure);
    }
    lab.set_extra("name", cluster.name.clone().into());
    lab.set_extra("apiServer", server.clone().into());
    lab.set_extra("kubeconfig", kubeconfig.display().to_string().into());
    lab.set_extra("context", cluster.name.clone().into());
    lab.set_extra("outside", cluster.outside.into());
    lab.set_extra("hollow", cluster.hollow.into());
    let mut document = status::document(&lab.status())?;
    document["nodes"] = layout.hosts.iter().skip(1).map(|host| json!({"name": host.name, "ready": true, "address": host.address})).collect();
    progress.ready(begin.elapsed(), &dirs, &server, &document);
    let groups = cluster.nodes.iter().map(|node| dirs.host(&node.name)).collect();
    Ok(Running { dirs, lab, groups: ControlGroups(groups), lock })
}

/// The API server's socket: at the port asked for, else at the one that the cluster had. 0 asks for any, and so for that one first.
fn bind(asked: Option<u16>, known: Option<u16>) -> Result<TcpListener, LabError> {
    match (asked, known) {
        (Some(0), Some(known)) => preflight::bind_api(known).or_else(|_| preflight::bind_api(0)),
        (Some(asked), _) => preflight::bind_api(asked),
        (None, known) => preflight::bind_api(known.unwrap_or(keys::DEFAULT_PORT)),
    }
}

/// What DIR holds and what is asked for, as one; and what DIR holds.
fn plan(args: &UpArgs, dirs: &Dirs) -> Result<(Cluster, Layout, Option<Cluster>), ClusterError> {
    let mut known = Cluster::load(dirs)?;
    if let Some(known) = known.as_mut().filter(|known| known.port.is_none()) {
        // Of a directory of format 1 the kubeconfig alone has the port.
        known.port = keys::port_of(&dirs.dir.join("pki").join("admin.conf"));
    }
    let base = known.as_ref().map(|known| known.addresses.clone()).unwrap_or_default();
    let addresses = AddressOptions {
        cluster_cidr: args.cluster_cidr.unwrap_or(base.cluster_cidr),
        node_mask: args.node_mask.unwrap_or(base.node_mask),
        node_mask_ipv6: args.node_mask_ipv6.unwrap_or(base.node_mask_ipv6),
        service_cidr: args.service_cidr.unwrap_or(base.service_cidr),
        dns_ip: args.dns_ip.unwrap_or(base.dns_ip),
        service_node_port_range: args.service_node_port_range.unwrap_or(base.service_node_port_range),
        load_balancer_cidr: args.load_balancer_cidr.map_or(base.load_balancer_cidr, |cidr| cidr.0),
    };
    let requested = Requested {
        nodes: args.nodes.as_deref().map(node_spec::parse_list).transpose()?,
        hollow: args.hollow,
        network: args.network,
        addresses: Some(addresses),
        feature_gates: args.feature_gates.as_ref().map(ToString::to_string),
        shutdown_grace_period: args.shutdown_grace_period,
        registry_mirrors: some(args.registry_mirror.clone()),
        insecure_registries: some(args.insecure_registry.clone()),
        without: (!args.without.is_empty()).then(|| args.without.iter().filter_map(|part| part.part()).collect()),
        name: args.name.clone(),
        kubeconfig: args.kubeconfig.as_deref().map(absolute),
        outside: args.outside,
        network_policy: args.network_policy,
        no_stand_ins: args.no_stand_ins,
        audit: args.audit.clone(),
    };
    let (cluster, layout) = Cluster::merge(known.clone(), requested, &node_spec::parse_list(DEFAULT_NODES)?, dirs)?;
    Ok((cluster, layout, known))
}

/// It is remembered, and the next `up` may be called from elsewhere. An empty one stays empty.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// None given means: those that are remembered. `none` leaves nothing.
fn some(list: Vec<String>) -> Option<Vec<String>> {
    (!list.is_empty()).then(|| list.into_iter().filter(|value| value != NONE).collect())
}

/// pasta, kept by a copy of this program.
fn outside() -> Result<Settings, LabError> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    Ok(Settings { pasta: lab::outside::find(&path)?, keeper: vec!["/proc/self/exe".to_owned(), "lab-outside".to_owned()] })
}

/// Writes each node's configuration file.
fn write_node_configs(inputs: &processes::Inputs<'_>) -> Result<(), Failure> {
    for node in &inputs.cluster.nodes {
        let damaged = |error: anyhow::Error| LabError::Damaged { path: inputs.dirs.dir.join("cluster.json"), reason: error.to_string() };
        let config = processes::node_config(inputs, node).map_err(damaged)?;
        pki::write_private(&processes::node_config_file(inputs.dirs, &node.name), &config.to_yaml())?;
    }
    Ok(())
}

/// The lab, and the boot id of each node.
type Started = (Lab, BTreeMap<String, String>);

fn start_lab(
    dirs: &Dirs,
    (cluster, layout): (&Cluster, &Layout),
    fds: Vec<(String, OwnedFd)>,
    outside: Option<Settings>,
) -> Result<Started, Failure> {
    let ca = std::fs::read(dirs.dir.join("pki").join("ca.crt")).context("reading the cluster's authority failed")?;
    let image_cache = image::cache_dir();
    let inputs = processes::Inputs {
        dirs,
        cluster,
        layout,
        image_cache: &image_cache,
        boot: Uuid::new_v4(),
        identity: Uuid::new_v5(&Uuid::NAMESPACE_OID, &ca),
    };
    write_node_configs(&inputs).inspect_err(|_| drop(dirs.remove_run()))?;
    let config = LabConfig {
        dirs: dirs.clone(),
        hosts: layout.hosts.clone(),
        two_adapters: processes::two_adapters(cluster),
        processes: processes::list(&inputs),
        fds,
        // What comes back for pods: the control plane's host knows the way to each.
        routes: layout.addresses.cluster_cidr.iter().map(|net| (net, layout.control_plane(net.addr().is_ipv6()))).collect(),
        ipv6: layout.addresses.dual_stack(),
        outside,
        shared: vec![SharedDir { path: Env::of_process().cache_dir(), entries: vec![image::CACHE, wine::template::NAME, wine::template::LOCK] }],
        init: vec!["/proc/self/exe".to_owned(), "lab-init".to_owned()],
    };
    let names = cluster.nodes.iter().map(|node| node.name.clone()).chain(hollow::names(cluster.hollow));
    let boots = names.map(|name| (name.clone(), inputs.boot_id(&name))).collect();
    Ok((supervisor::start(config)?, boots))
}

/// Keeps the cluster until somebody ends it.
fn serve(running: Running, mut progress: Progress) -> Result<(), Failure> {
    let Running { dirs, lab, groups, lock } = running;
    progress.running(&dirs);
    let result = loop {
        match lab.wait_event(Duration::from_secs(3600)) {
            Some(Event::DownRequested) => break Ok(()),
            Some(Event::Ended { status }) => break Err(anyhow!("the cluster ended: {status}").into()),
            Some(Event::Exited { name, status, restart_ms }) => {
                tracing::warn!("{name} {status}; it starts again in {restart_ms} ms");
            }
            _ => {}
        }
    };
    // When the lock is free, nothing is left.
    let stopped = lab.stop();
    drop(groups);
    drop(lock);
    result.and(stopped.map_err(Failure::from))
}
