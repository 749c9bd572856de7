//! Start-up order and wiring.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use backoff::Backoff;
use cluster::{EventRecorder, EventType, Informer, Key, Selection};
use futures::FutureExt as _;
use k8s_openapi::api::core::v1::{Node, Service};
use kube::Api;
use kube_rules::Quantity;
use serde_json::json;
use thiserror_ext::AsReport;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::agent::{Agent, Orphan, PodChange, Workers, watch_pods};
use crate::bundles::Bundles;
use crate::certificates::manager::{self, Manager as CertificateManager, ManagerError, Purpose};
use crate::certificates::plan;
use crate::certificates::serving::{Follower, ServingCertificate};
use crate::cgroups::{self, Groups};
use crate::clock_skew;
use crate::config::{Config, ServerConfig};
use crate::cri_config::{self, Modules, NodeSide};
use crate::devices::{self, Devices};
use crate::eviction::Pressure;
use crate::eviction::manager::Manager;
use crate::go_time::go_duration;
use crate::health::{self, RuntimeHealth};
use crate::image_gc::Collector;
use crate::images::Images;
use crate::images::node_keyring::NodeKeyring;
use crate::images::providers::{Providers, ProvidersError};
use crate::images::records::Records;
use crate::node::{FirstLists, NodeFacts, NodeKeeper, pod_cidr};
use crate::pod::is_terminal;
use crate::pod::resources::Kernel;
use crate::rotation;
use crate::server::{self, Auth, Server};
use crate::services;
use crate::shutdown;
use crate::sources::{Sources, Waker};
use crate::statics::{self, Statics};
use crate::statuses::Statuses;
use crate::tls::TlsError;
use crate::tokens::TokenCache;
use crate::users::Users;
use crate::volumes::Volumes;
use crate::volumes::csi::{self, Csi};
use crate::volumes::flexvolume::Flex;
use crate::worker::Note;

/// Why the agent cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The agent's directory cannot be made.
    #[error("preparing the agent's directory failed")]
    Directory(#[from] host::HostError),
    /// Programs or configuration of credential providers are wrong.
    #[error("preparing credential providers failed")]
    Providers(#[from] ProvidersError),
    /// The serving certificate is unusable.
    #[error("preparing the server on :10250 failed")]
    Tls(#[from] TlsError),
    /// The certificates in the node's directory are unusable.
    #[error("preparing the server's certificate failed")]
    Certificate(#[from] Box<ManagerError>),
    /// `failCgroupV1` is set.
    #[error(
        "kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is unsupported and will be removed in a future release; set \
         failCgroupV1 (--fail-cgroupv1) to false, or start the machine with systemd.unified_cgroup_hierarchy=1"
    )]
    CgroupV1,
    /// A listener failed.
    #[error("serving failed")]
    Serve(#[from] std::io::Error),
}

/// Runs the agent until `shutdown`. Pods keep running after it returns.
///
/// # Errors
/// When the configuration cannot be used; lost connections are never an error.
pub async fn run(config: Config, shutdown: CancellationToken) -> Result<(), RunError> {
    let mut tasks = JoinSet::new();
    {
        // On the heap, and only until it is done: the start holds many times what is left of it.
        let work = Box::pin(start(config, &mut tasks));
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            started = work => started?,
        }
    }
    // The tasks run for ever; one that ends has failed.
    tokio::select! {
        () = shutdown.cancelled() => Ok(()),
        Some(ended) = tasks.join_next() => match ended {
            Ok(Err(error)) => Err(error.into()),
            Ok(Ok(())) => Ok(()),
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        },
    }
}

/// How long registration waits for a runtime that is still starting.
const FIRST_LOOK: Duration = Duration::from_millis(500);

type Tasks = JoinSet<std::io::Result<()>>;

/// What everything else is built from.
struct Ground {
    requests: cluster::Requests,
    timings: Arc<crate::stats::Timings>,
    cri: cri::Client,
    images: Arc<Images>,
    dir: host::PodPath,
    logs: host::PodPath,
    side: NodeSide,
    facts: Arc<NodeFacts>,
    recorder: EventRecorder,
    health: watch::Receiver<RuntimeHealth>,
    node: Informer<Node>,
    lists: FirstLists,
    statics: Arc<Statics>,
    pressures: watch::Sender<BTreeSet<Pressure>>,
    goes_down: watch::Sender<bool>,
    tokens: Arc<TokenCache>,
    csi: Arc<Csi>,
    devices: Arc<Devices>,
    /// Pods with a device whose health changed.
    affected: mpsc::UnboundedReceiver<BTreeSet<String>>,
    users: Users,
    flex: Arc<Flex>,
    records: Arc<Records>,
    node_keyring: NodeKeyring,
    providers: Providers,
    /// The volumes that the Node's status says are in use.
    in_use: watch::Receiver<BTreeSet<String>>,
    /// Why volumes of CSI drivers cannot be had yet.
    storage_trouble: watch::Receiver<Option<String>>,
    /// Static pods that begin and end.
    steps: mpsc::UnboundedReceiver<PodChange>,
    /// Pods of the API that change.
    changes: mpsc::UnboundedReceiver<PodChange>,
}

async fn start(mut config: Config, tasks: &mut Tasks) -> Result<(), RunError> {
    let requests = cluster::Requests::new(config.api_host.clone());
    config.client = cluster::with_user_agent(config.client, &requests, "kubelet", &config.version, config.os.name(), &config.facts.architecture);
    if let Some(listener) = config.healthz.take() {
        tasks.spawn(server::serve_healthz(listener));
    }
    let ground = ground(&config, requests, tasks)?;
    register(&config, &ground, tasks);
    let server = config.server.take();
    let agent = pods(&mut config, ground, tasks);
    // Once, as upstream: what the file said at the start is what pods get.
    if let Some(message) = cri_config::resolver_beyond_limits(&config.resolver, &config.cluster_domain) {
        agent.node_event(EventType::Warning, "CheckLimitsForResolvConf", message);
    }
    if let Some(server) = server {
        serve(&mut config, server, agent, tasks)?;
    }
    Ok(())
}

/// The server, with a certificate that may change.
fn serve(config: &mut Config, server: ServerConfig, agent: Arc<Agent>, tasks: &mut Tasks) -> Result<(), RunError> {
    let (follower, tls) = Follower::start(server.tls, &server.certificate, server.client_ca)?;
    let requested = match server.certificate {
        ServingCertificate::Files { .. } => None,
        ServingCertificate::Requested(store) => {
            let (client, wanted) = (config.client.clone(), serving_subject(&agent.node, &config.node_name));
            let requester = Box::new(move |_| client.clone());
            let parts = manager::Parts { purpose: Purpose::Serving, store, first: None, bootstrap: None, wanted, requester };
            let manager = CertificateManager::new(parts).map_err(Box::new)?;
            let (current, counts) = (manager.current(), manager.counts());
            tasks.spawn(async move { manager.run().await.map(drop).map_err(std::io::Error::other) });
            Some((current, counts))
        }
    };
    let (current, counts) = requested.unzip();
    tasks.spawn(forever(follower.run(current)));
    let auth = Auth::new(config.client.clone(), server.access);
    let certificates = config.client_certificate.take().into_iter().chain(counts);
    let shows = server::Shows { debugging: config.debugging, system_logs: config.system_logs };
    let state = Arc::new(Server::new(agent, auth, configz(config), shows, certificates));
    tasks.spawn(server::serve(state, server.listener, tls));
    Ok(())
}

/// What the node's serving certificate has to say; it changes with the addresses of the Node.
fn serving_subject(node: &Informer<Node>, name: &str) -> watch::Receiver<Option<pki::Subject>> {
    let (sender, subject) = watch::channel(None);
    let name = name.to_owned();
    node.subscribe(move |change| {
        let status = change.new.and_then(|node| node.status.as_ref());
        let new = plan::serving_subject(&name, status.and_then(|status| status.addresses.as_deref()).unwrap_or_default());
        sender.send_if_modified(|subject| std::mem::replace(subject, new.clone()) != new);
    });
    subject
}

/// Directories, the runtime and its health, the view of the API: the own Node, its pods, services.
fn ground(config: &Config, requests: cluster::Requests, tasks: &mut Tasks) -> Result<Ground, RunError> {
    if config.groups.fail_version_1 && config.is_machine && !config.os.is_windows() && cgroups::is_version_1(&config.root) {
        return Err(RunError::CgroupV1);
    }
    let cri = config.cri.clone();
    let dir = config.root.parse(&config.root_dir)?;
    let pods_dir = dir.join("pods").map_err(host::HostError::from)?;
    let logs = config.root.parse(&config.pod_logs_dir)?;
    if config.root.os().is_windows() {
        for own in [&dir, &pods_dir, &logs] {
            config.root.make_private(own)?;
        }
    } else {
        config.root.create_dir_all(&pods_dir, 0o750)?;
        config.root.create_dir_all(&logs, 0o755)?;
    }
    let storage = match config.capacity.ephemeral_storage_bytes {
        0 => config.root.space(&dir)?.capacity,
        declared => declared,
    };
    let side = node_side(config);
    let (sender, health) = watch::channel(RuntimeHealth::default());
    tasks.spawn(forever(health::follow(cri.clone(), config.polls, config.host_network.clone(), side.runtime_cgroups.clone(), sender)));
    let this_node = Selection::fields(format!("metadata.name={}", config.node_name)).of(&config.api);
    let (sender, changes) = mpsc::unbounded_channel();
    let (begin, steps) = mpsc::unbounded_channel();
    let read = [&config.static_pods.path, &config.static_pods.url].into_iter().filter(|place| !place.is_empty()).count();
    let statics = Arc::new(Statics::new(read, begin));
    let pods = watch_pods(config, statics.clone(), sender);
    let services = Api::<Service>::all(config.client.clone());
    let services = Informer::start(services, Selection::all().of(&config.api), services::row);
    let node = Informer::start(Api::all(config.client.clone()), this_node, |node: &Node| Some(node.clone()));
    let tokens = Arc::new(TokenCache::new(config.client.clone()));
    let (sender, in_use) = watch::channel(BTreeSet::new());
    let (trouble, storage_trouble) = watch::channel(Some(csi::UNINITIALIZED.to_owned()));
    let (devices, affected) = Devices::load(config.root.clone(), &dir).map_err(host::HostError::from)?;
    let devices = Arc::new(devices);
    let csi = Arc::new(Csi::new(csi::Parts {
        device_plugins: devices.clone(),
        root: config.root.clone(),
        dir: dir.clone(),
        client: config.client.clone(),
        api: config.api.clone(),
        node: node.clone(),
        node_name: config.node_name.clone(),
        tokens: tokens.clone(),
        in_use: sender,
        trouble,
    }));
    let records = Records::load(config.root.clone(), &dir, config.image_credentials.verification.clone())?;
    Ok(Ground {
        requests,
        timings: Arc::default(),
        records: Arc::new(records),
        node_keyring: node_keyring(config, &dir),
        providers: providers(config, tokens.clone())?,
        facts: Arc::new(NodeFacts::new(config, side.clone(), storage)),
        recorder: EventRecorder::new(config.client.clone(), "kubelet", &config.node_name),
        node,
        tokens,
        csi,
        devices,
        affected,
        users: Users::load(config.root.clone(), pods_dir, config.ids_per_pod, config.capacity.pods),
        flex: Arc::new(Flex::new(config.root.clone(), config.client.clone(), config.root.parse(&config.volume_plugin_dir)?)),
        in_use,
        storage_trouble,
        lists: FirstLists { pods, services },
        statics,
        pressures: watch::Sender::default(),
        goes_down: watch::Sender::default(),
        steps,
        changes,
        images: Arc::new(Images::new(cri.clone(), config.image_pulls)),
        cri,
        dir,
        logs,
        side,
        health,
    })
}

/// What pods' plans need to know of the node.
fn node_side(config: &Config) -> NodeSide {
    NodeSide {
        os: config.os,
        node_name: config.node_name.clone(),
        capacity: config.capacity,
        hyper_v_container: config.hyper_v_container,
        cluster_dns: config.cluster_dns.iter().map(ToString::to_string).collect(),
        cluster_domain: config.cluster_domain.clone(),
        resolver: config.resolver.clone(),
        kernel: kernel(config),
        pod_groups: cgroups::root_of_pods(&config.groups),
        cgroups: config.containers.cgroups,
        runtime_cgroups: Arc::default(),
        seccomp_default: config.containers.seccomp_default,
        seccomp_dir: format!("{}/seccomp", config.root_dir.trim_end_matches('/')),
        modules: if config.is_machine && !config.os.is_windows() { Modules::read(&config.root) } else { Modules::default() },
        unsafe_sysctls: config.containers.unsafe_sysctls.clone(),
    }
}

/// The node's own credentials for images.
fn node_keyring(config: &Config, dir: &host::PodPath) -> NodeKeyring {
    let of = &config.image_credentials;
    let given = |dir| Some(dir).filter(|dir: &&str| !dir.is_empty());
    NodeKeyring::new(config.root.clone(), dir, given(&of.working_dir), given(&of.home_dir))
}

/// The credential providers that are configured.
fn providers(config: &Config, tokens: Arc<TokenCache>) -> Result<Providers, ProvidersError> {
    let (of, none) = (&config.image_credentials, Providers::none(config.root.clone(), config.client.clone(), tokens));
    if of.provider_config.is_empty() {
        return Ok(none);
    }
    none.load(&config.root.parse(&of.provider_config)?, &config.root.parse(&of.provider_dir)?)
}

/// What the kernel of the machine has for control groups; nothing on hosts that are simulated, whose containers have none.
fn kernel(config: &Config) -> Kernel {
    let has = |path: &str| config.root.parse(path).is_ok_and(|path| config.root.kind(&path).is_ok_and(|kind| kind.is_some()));
    let period = config.containers.cpu_quota_period.map_or(0, |period| period.as_micros());
    let quota_period = i64::try_from(period).unwrap_or_default();
    if config.os.is_windows() || !config.is_machine {
        return Kernel { no_quota: config.containers.no_cpu_quota, quota_period, ..Kernel::default() };
    }
    let unified = has("/sys/fs/cgroup/cgroup.controllers");
    let swap = match unified {
        // The root of the control groups has no limit.
        true => cgroup_of_self(&config.root).is_some_and(|own| has(&format!("/sys/fs/cgroup{own}/memory.swap.max"))),
        false => has("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes"),
    };
    Kernel {
        unified,
        swap,
        ends_whole: !config.containers.single_process_oom_kill,
        no_quota: config.containers.no_cpu_quota,
        quota_period,
        shared_swap: if config.containers.limited_swap && unified && swap { swap_of_machine(&config.root) } else { 0 },
        huge_pages: config.huge_pages.keys().copied().collect(),
    }
}

/// Bytes of swap that the machine has.
fn swap_of_machine(root: &host::HostRoot) -> u64 {
    let read = || root.read(&root.parse("/proc/meminfo").ok()?, 64 << 10).ok()?;
    let text = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().find_map(|line| line.strip_prefix("SwapTotal:")?.trim().strip_suffix("kB"));
    line.and_then(|kib| kib.trim().parse::<u64>().ok()).map_or(0, |kib| kib.saturating_mul(1024))
}

/// The control group of this process, of version 2.
fn cgroup_of_self(root: &host::HostRoot) -> Option<String> {
    let text = root.read(&root.parse(&format!("/proc/{}/cgroup", std::process::id())).ok()?, 64 << 10).ok()??;
    String::from_utf8_lossy(&text).lines().find_map(|line| line.strip_prefix("0::")).map(|own| own.trim_end_matches('/').to_owned())
}

/// The Node: registered, then kept true with its lease. Static pods do not wait for the API server.
fn register(config: &Config, ground: &Ground, tasks: &mut Tasks) {
    let mut first = ground.health.clone();
    let keeper = NodeKeeper {
        client: config.client.clone(),
        facts: ground.facts.clone(),
        health: ground.health.clone(),
        node: ground.node.clone(),
        lists: ground.lists.clone(),
        images: ground.images.clone(),
        recorder: ground.recorder.clone(),
        poll: config.polls.node,
        report: config.registration.report,
        pressures: ground.pressures.subscribe(),
        goes_down: ground.goes_down.subscribe(),
        in_use: ground.in_use.clone(),
        storage_trouble: ground.storage_trouble.clone(),
        devices: ground.devices.clone(),
        device_changes: ground.devices.changes(),
        timings: ground.timings.clone(),
    };
    let cri = ground.cri.clone();
    tasks.spawn(forever(pod_cidr::follow(cri, ground.node.clone(), config.node_name.clone())));
    let node = ground.node.clone();
    let (client, name, lease) = (config.client.clone(), config.node_name.clone(), config.registration.lease_seconds);
    tasks.spawn(forever(async move {
        // The first look at the runtime and at the API, so that the Node is complete (and perhaps Ready) from birth.
        let runtime = async { drop(first.wait_for(|h| !h.name.is_empty()).await) };
        let _ = tokio::time::timeout(FIRST_LOOK, async { tokio::join!(runtime, keeper.lists.complete()) }).await;
        let registered = Box::pin(keeper.register()).await;
        let first = registered.metadata.uid.clone().unwrap_or_default();
        let key = Key::cluster(&name);
        let uid = || node.get(key.clone()).and_then(|node| node.metadata.uid.clone()).unwrap_or_else(|| first.clone());
        tokio::join!(keeper.keep(registered), cluster::keep_node_lease(client, &name, uid, lease));
    }));
}

/// The pods: workers, statuses, runtime events.
fn pods(config: &mut Config, ground: Ground, tasks: &mut Tasks) -> Arc<Agent> {
    let FirstLists { pods, services } = ground.lists;
    let workers = Arc::new(Workers::default());
    let notified = workers.clone();
    let waker: Waker = Arc::new(move |uid: &str| notified.tell(uid, Note::Sources));
    let statuses = Statuses::new(config.client.clone(), pods.clone(), ground.timings.status_sync());
    let groups = Groups::new(config, &ground.side);
    let agent = Arc::new(Agent {
        groups: groups.clone(),
        side: ground.side,
        client: config.client.clone(),
        api: config.api.clone(),
        cri: ground.cri.clone(),
        hcn: config.hcn.take(),
        root: config.root.clone(),
        dir: ground.dir,
        logs: ground.logs,
        facts: ground.facts.clone(),
        is_machine: config.is_machine,
        rates: Mutex::default(),
        allocatable: ground.facts.allocatable.clone(),
        images: ground.images,
        records: ground.records,
        node_keyring: ground.node_keyring,
        providers: ground.providers,
        recorder: ground.recorder,
        pods,
        node: ground.node,
        services,
        bundles: Bundles::new(config.client.clone(), config.api.clone(), waker.clone()),
        sources: Sources::new(config.client.clone(), config.api.clone(), waker),
        statics: ground.statics,
        tokens: ground.tokens,
        volumes: Volumes::new(config.root.clone(), vec![ground.csi.clone(), ground.flex]),
        csi: ground.csi,
        devices: ground.devices,
        users: ground.users,
        network_gate: config.network_gate.clone(),
        probes: Arc::default(),
        starts: crate::stats::Started::default(),
        timings: ground.timings,
        requests: ground.requests,
        statuses: statuses.clone(),
        health: ground.health.clone(),
        workers: workers.clone(),
        polls: config.polls,
        dead_kept: config.dead_containers.at_once(),
        started: jiff::Timestamp::from_second(jiff::Timestamp::now().as_second()).unwrap_or_default(),
        admitted: Mutex::default(),
        deferred: Mutex::default(),
        pressures: ground.pressures.subscribe(),
        goes_down: ground.goes_down.subscribe(),
        ends: watch::Sender::default(),
        counts: crate::counts::Counts::default(),
        turned: Mutex::new(std::time::Instant::now()),
    });
    tasks.spawn(forever(rotation::keep(agent.cri.clone(), agent.root.clone(), agent.logs.clone(), config.logs)));
    make_room(config, &agent, ground.pressures, tasks);
    if let Some(shutdown) = config.shutdown.take() {
        let manager = shutdown::manager::Manager { agent: agent.clone(), shutdown, goes_down: ground.goes_down };
        tasks.spawn(forever(manager.keep()));
    }
    if let Some(groups) = groups {
        tasks.spawn(forever(groups.keep(agent.clone())));
    }
    tasks.spawn(forever(agent.clone().keep_dead_containers(config.dead_containers)));
    tasks.spawn(forever(async move { statuses.run().await }));
    tasks.spawn(forever(wake_on(ground.health, workers.clone())));
    tasks.spawn(forever(wake_on(agent.facts.addresses.changes(), workers)));
    let clock = (agent.clone(), agent.requests.clock());
    tasks.spawn(forever(async move { clock_skew::follow(&clock.0, clock.1).await }));
    tasks.spawn(forever(agent.clone().follow_runtime()));
    follow_devices(config, &agent, ground.affected, tasks);
    let waiting = agent.workers.clone();
    tasks.spawn(forever(csi::keep(agent.csi.clone(), move || waiting.tell_sources())));
    follow_statics(config, &agent, tasks);
    tasks.spawn(forever(take_pods(agent.clone(), ground.changes, ground.steps)));
    agent
}

/// Collects images, and evicts pods of a node that is short of something.
fn make_room(config: &Config, agent: &Arc<Agent>, pressures: watch::Sender<BTreeSet<Pressure>>, tasks: &mut Tasks) {
    let collector = Arc::new(Collector {
        known: Mutex::default(),
        volumes: image_volumes(agent.clone()),
        client: agent.cri.clone(),
        root: agent.root.clone(),
        policy: config.images,
        records: agent.records.clone(),
        recorder: agent.recorder.clone(),
        node: config.node_name.clone(),
    });
    let images = collector.clone();
    tasks.spawn(forever(async move { images.keep().await }));
    let evictions = Manager {
        agent: agent.clone(),
        config: config.eviction.clone(),
        dead: config.dead_containers,
        collector,
        is_machine: config.is_machine,
        reserved_memory: config.reserved.get("memory").and_then(|amount| u64::try_from(amount.value()).ok()).unwrap_or(0),
        pressures,
    };
    tasks.spawn(forever(evictions.keep()));
}

/// Device plug-ins and what is told of devices: `affected` are the pods of those that changed.
fn follow_devices(config: &Config, agent: &Arc<Agent>, mut affected: mpsc::UnboundedReceiver<BTreeSet<String>>, tasks: &mut Tasks) {
    if config.device_plugins {
        tasks.spawn(devices::serve(agent.devices.clone()));
        tasks.spawn(devices::pod_resources::serve(agent.clone()));
    }
    let told = agent.workers.clone();
    tasks.spawn(forever(async move {
        while let Some(pods) = affected.recv().await {
            told.tell_devices(&pods);
        }
        // The devices live as long as the agent.
        std::future::pending().await
    }));
}

/// Lists the images that pods of the node have as volumes, those that an earlier agent started among them.
fn image_volumes(agent: Arc<Agent>) -> Box<dyn Fn() -> Option<BTreeSet<String>> + Send + Sync> {
    Box::new(move || {
        if !agent.pods.is_synced() || !agent.statics.is_read() {
            return None;
        }
        let mut pods: Vec<_> = agent.admitted().values().cloned().collect();
        pods.extend(agent.all_pods().into_iter().filter(|pod| !is_terminal(pod)));
        let volumes = pods.iter().flat_map(|pod| pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()));
        Some(volumes.filter_map(|v| v.image.as_ref()?.reference.clone()).collect())
    })
}

/// Static pods and their mirrors.
fn follow_statics(config: &Config, agent: &Arc<Agent>, tasks: &mut Tasks) {
    let settings = &config.static_pods;
    if !settings.path.is_empty() {
        tasks.spawn(forever(statics::source::follow_files(agent.clone(), settings.clone())));
    }
    if !settings.url.is_empty() {
        tasks.spawn(forever(statics::source::follow_url(agent.clone(), settings.clone())));
    }
    // An agent whose manifests are gone removes the mirrors that an earlier one left.
    tasks.spawn(forever(statics::mirror::keep(agent.clone())));
}

/// No async function: its future would hold the work twice.
fn forever(work: impl Future<Output = ()>) -> impl Future<Output = std::io::Result<()>> {
    work.map(Ok)
}

/// Pods wait for the network, and show the node's addresses: workers are woken when one of them changes.
async fn wake_on<T>(mut node: watch::Receiver<T>, workers: Arc<Workers>) {
    while node.changed().await.is_ok() {
        workers.tell_node();
    }
}

/// Workers of static pods start once the runtime answers, those of the API's pods once the node is known too, and orphans end once all pods
/// are.
async fn take_pods(agent: Arc<Agent>, mut of_api: mpsc::UnboundedReceiver<PodChange>, mut steps: mpsc::UnboundedReceiver<PodChange>) {
    let (all, changes) = mpsc::unbounded_channel();
    let (node, mut health) = (agent.node.clone(), agent.health.clone());
    tokio::spawn(async move {
        // The runtime's name is part of each container's id, which an adopted pod's status has already.
        let _ = health.wait_for(|h| !h.name.is_empty()).await;
        let mut known = false;
        loop {
            tokio::select! {
                Some(step) = steps.recv() => { let _ = all.send(step); }
                () = node.synced(), if !known => known = true,
                Some(change) = of_api.recv(), if known => { let _ = all.send(change); }
                else => return,
            }
        }
    });
    let orphans = agent.clone();
    tokio::spawn(async move {
        orphans.node.synced().await;
        orphans.pods.synced().await;
        orphans.statics.read().await;
        let held = loop {
            match Box::pin(orphans.remove_orphans()).await {
                Ok(held) => break held,
                Err(error) => tracing::warn!(error = %error.as_report(), "looking for pods without an owner failed; trying again"),
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
        };
        Box::pin(remove_left(&orphans, held)).await;
    });
    agent.dispatch(changes).await;
}

/// Takes down what an earlier agent left, until nothing is. What a pod uses that is still `held` by the runtime waits for its end.
async fn remove_left(agent: &Agent, mut held: Vec<Orphan>) {
    let mut left = agent.left_pods();
    let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
    loop {
        let (waiting, free) = left.into_iter().partition(|pod| held.iter().any(|orphan| orphan.pod == *pod));
        left = agent.remove_left(free).await;
        left.extend::<Vec<String>>(waiting);
        let swept = agent.csi.sweep().await.unwrap_or_else(|error| {
            tracing::warn!(error = %error.as_report(), "taking down a volume that no pod has failed; trying again");
            false
        });
        if held.is_empty() && left.is_empty() && swept {
            return;
        }
        tokio::time::sleep(backoff.next_delay()).await;
        held = agent.end_orphans(held).await;
    }
}

/// The configuration that the agent was given, with the values in effect.
fn configz(config: &Config) -> serde_json::Value {
    let mut document = config.configuration.clone();
    document["kind"] = "KubeletConfiguration".into();
    document["apiVersion"] = "kubelet.config.k8s.io/v1beta1".into();
    let in_effect = json!({
        "clusterDNS": config.cluster_dns,
        "clusterDomain": config.cluster_domain,
        "maxPods": config.capacity.pods,
        "failCgroupV1": config.groups.fail_version_1,
        "podPidsLimit": config.groups.pids.unwrap_or(-1),
        "containerRuntimeEndpoint": config.cri.endpoint(),
        "containerLogMaxSize": Quantity::from_bytes(config.logs.max_size as i64).to_string(),
        "containerLogMaxFiles": config.logs.max_files,
        "imageGCHighThresholdPercent": config.images.high_percent,
        "imageGCLowThresholdPercent": config.images.low_percent,
        "imageMinimumGCAge": go_duration(config.images.min_age),
        "imageMaximumGCAge": go_duration(config.images.max_age),
        "serializeImagePulls": config.image_pulls.at_once == Some(NonZeroUsize::MIN),
        "maxParallelImagePulls": config.image_pulls.at_once.filter(|most| most.get() > 1),
        "registryPullQPS": config.image_pulls.per_second,
        "registryBurst": config.image_pulls.burst,
        "nodeStatusUpdateFrequency": go_duration(config.polls.node),
        "nodeStatusReportFrequency": go_duration(config.registration.report),
        "nodeLeaseDurationSeconds": config.registration.lease_seconds,
        "syncFrequency": go_duration(config.polls.pod),
    });
    if let serde_json::Value::Object(members) = in_effect {
        members.into_iter().for_each(|(name, value)| document[name] = value);
    }
    json!({"kubeletconfig": document})
}
