//! The loop: watches feed the table, the table feeds the backend, and the backend's progress becomes status, metrics and events.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use cluster::{ApiServer, EventRecorder, EventType, Feed, Informer, Key, Selection};
use hcn::HcnClient;
use k8s_openapi::api::core::v1::{Node, ObjectReference, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::backend::{Backend, Backlog, Passes, Progress, Refusal};
use crate::failures::LastingFailures;
use crate::health_check_node_port::{HealthServers, Healthy};
use crate::hns::Hns;
use crate::inputs::SharedInputs;
use crate::metrics::Metrics;
use crate::rows::{NodeRow, ServiceRow, SliceRow};
use crate::table::{Table, VipKey};
use crate::vips::{NodePolicy, desired_vips};

/// What keeps the host equal to the table.
pub enum BackendConfig {
    /// Load balancers of the Host Networking Service.
    Hns {
        /// The service.
        client: HcnClient,
        settings: crate::hns::Settings,
    },
    /// nftables in this process's network namespace.
    #[cfg(target_os = "linux")]
    Nftables(crate::nftables::Settings),
    /// This process carries bytes itself.
    Userspace(crate::userspace::Settings),
}

/// What the proxy of one node needs.
pub struct Config {
    /// The API.
    pub client: Client,
    /// What is known of that API server; shared by all parts of a node.
    pub api: ApiServer,
    /// This node's name: endpoints on it are local.
    pub node_name: String,
    /// The cluster's identity (UID of namespace `kube-system`), which marks what is ours.
    pub cluster_uid: String,
    /// Where to program.
    pub backend: BackendConfig,
    /// How often the whole table is compared with the host; a change that waits for twice as long is a sign of ill health.
    pub full_pass: Duration,
    /// The node policy; the Node object fills in missing values.
    pub policy: NodePolicy,
    /// Answer at `healthCheckNodePort`.
    pub health_checks: bool,
    /// Where the status goes.
    pub status: Option<watch::Sender<Status>>,
    pub metrics: Metrics,
}

impl Config {
    /// The required values; everything else as upstream has it.
    pub fn new(client: Client, node_name: impl Into<String>, cluster_uid: impl Into<String>, backend: BackendConfig) -> Self {
        Self {
            client,
            api: ApiServer::default(),
            node_name: node_name.into(),
            cluster_uid: cluster_uid.into(),
            backend,
            full_pass: Duration::from_secs(30),
            policy: NodePolicy::default(),
            health_checks: true,
            status: None,
            metrics: Metrics::default(),
        }
    }
}

/// Status of the proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Services and slices were read and every VIP was tried once.
    pub ready: bool,
    /// VIPs that should exist.
    pub vips: usize,
    /// How far the backend is with them.
    pub progress: Progress,
    /// Estimated time until converged.
    pub eta: Option<Duration>,
    /// Since when something waits and nothing gets done.
    pub stuck_since: Option<Instant>,
    /// The Node is being deleted, or an autoscaler is about to.
    pub node_leaving: bool,
}

impl Status {
    /// VIPs that are not what they should be: desired − programmed.
    pub fn missing(&self) -> usize {
        self.progress.pending.max(self.progress.failing.len())
    }

    /// Whether everything is what it should be.
    pub fn is_converged(&self) -> bool {
        self.ready && self.missing() == 0 && self.progress.unavailable.is_none()
    }

    /// Whether every VIP was tried and the host's service answers. What the host refuses is tried again and reported, and holds
    /// up nothing else.
    pub fn is_ready(&self) -> bool {
        self.ready && self.progress.unavailable.is_none()
    }

    /// Whether nothing has waited for longer than twice `full_pass` without anything getting done.
    pub fn is_healthy(&self, full_pass: Duration) -> bool {
        self.stuck_since.is_none_or(|since| since.elapsed() <= 2 * full_pass)
    }
}

/// The number of pending VIPs is reported this often.
const REPORT: Duration = Duration::from_millis(200);
/// A port of a health check that was taken is tried again after this.
const HEALTH_AGAIN: Duration = Duration::from_secs(5);
/// Programming so many VIPs leaves free memory behind that is worth giving back.
const MUCH: usize = 500;
/// Connections of the user-space backend have this long to end.
const DRAIN: Duration = Duration::from_secs(10);

/// Proxies Services on this node until `shutdown` completes. What was programmed stays: connections outlive a restart.
pub async fn run(config: Config, shutdown: impl Future<Output = ()>) {
    let Config { client, api, node_name, cluster_uid, backend, full_pass, policy, health_checks, status, metrics } = config;
    let status = status.unwrap_or_else(|| watch::Sender::new(Status::default()));
    let config = LoopConfig { client, api, node_name, full_pass, policy, health_checks, status, metrics };
    match backend {
        BackendConfig::Hns { client, settings } => Loop::new(Hns::new(&client, cluster_uid, settings), config).run(shutdown).await,
        #[cfg(target_os = "linux")]
        BackendConfig::Nftables(settings) => {
            Loop::new(Passes::new(crate::nftables::Nftables::new(settings), full_pass), config).run(shutdown).await;
        }
        BackendConfig::Userspace(settings) => {
            Loop::new(Passes::new(crate::userspace::Userspace::new(settings), full_pass), config).run(shutdown).await;
        }
    }
}

/// The configuration that no backend needs.
struct LoopConfig {
    client: Client,
    api: ApiServer,
    node_name: String,
    full_pass: Duration,
    policy: NodePolicy,
    health_checks: bool,
    status: watch::Sender<Status>,
    metrics: Metrics,
}

/// What is watched.
struct Rows {
    inputs: SharedInputs,
    services: Feed,
    slices: Feed,
    node: Informer<NodeRow>,
    node_key: Key,
}

impl Rows {
    fn watch(client: &Client, api: &ApiServer, node: &str) -> Self {
        let inputs = SharedInputs::default();
        let services = Feed::start(
            Api::<Service>::all(client.clone()),
            Selection::labels("!service.kubernetes.io/service-proxy-name").of(api),
            ServiceRow::of,
            inputs.clone(),
        );
        let name = node.to_owned();
        let slices = Feed::start(
            Api::<EndpointSlice>::all(client.clone()),
            Selection::labels("!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name").of(api),
            move |slice| SliceRow::of(slice, &name),
            inputs.clone(),
        );
        let node_key = Key::cluster(node);
        let selection = Selection::fields(format!("metadata.name={node}")).of(api);
        let node = Informer::start(Api::<Node>::all(client.clone()), selection, |node: &Node| Some(NodeRow::of(node)));
        Self { inputs, services, slices, node, node_key }
    }
}

/// Speed of the work, and whether it makes progress.
struct Pace {
    /// Since when something waits.
    busy_since: Option<Instant>,
    /// When something last got done, and how much was done and waited by then.
    moved: Instant,
    finished: u64,
    at_start: u64,
    reported: Instant,
}

impl Pace {
    fn new() -> Self {
        let now = Instant::now();
        Self { busy_since: None, moved: now, finished: 0, at_start: 0, reported: now }
    }

    /// Takes in how much waits and how much was done; returns how long it was busy when it ends.
    fn note(&mut self, pending: usize, finished: u64) -> Option<Duration> {
        let now = Instant::now();
        if finished != self.finished || self.busy_since.is_none() {
            (self.finished, self.moved) = (finished, now);
        }
        match (pending, self.busy_since) {
            (0, Some(since)) => {
                self.busy_since = None;
                Some(since.elapsed())
            }
            (1.., None) => {
                (self.busy_since, self.at_start) = (Some(now), finished);
                None
            }
            _ => None,
        }
    }

    fn eta(&self, pending: usize) -> Option<Duration> {
        let done = self.finished - self.at_start;
        let since = self.busy_since.filter(|_| done > 0)?;
        Some(since.elapsed().mul_f64(pending as f64 / done as f64))
    }
}

struct Loop<B> {
    backend: B,
    rows: Rows,
    table: Table,
    base: NodePolicy,
    policy: NodePolicy,
    health: Option<HealthServers>,
    health_again: Option<Instant>,
    recorder: EventRecorder,
    metrics: Metrics,
    /// Refusals that their Service has an event of.
    notified: BTreeSet<(Arc<str>, Refusal)>,
    failures: LastingFailures,
    /// Changes of pods that are not on the host yet: when they happened, and the VIPs that they are about.
    triggers: Vec<(i64, Vec<VipKey>)>,
    started: i64,
    pace: Pace,
    progress: Progress,
    status: watch::Sender<Status>,
    /// How many VIPs there were when memory was last given back.
    given_back: usize,
}

impl<B: Backend> Loop<B> {
    fn new(backend: B, config: LoopConfig) -> Self {
        let LoopConfig { client, api, node_name, full_pass, policy, health_checks, status, metrics } = config;
        if let Some(counter) = backend.call_counter() {
            metrics.count_calls_by(counter);
        }
        metrics.count_watches_of(&api);
        let seen = status.subscribe();
        let healthy: Healthy = Arc::new(move || seen.borrow().is_healthy(full_pass));
        Self {
            backend,
            rows: Rows::watch(&client, &api, &node_name),
            table: Table::default(),
            base: policy.clone(),
            policy,
            health: health_checks.then(|| HealthServers::new(healthy)),
            health_again: None,
            recorder: EventRecorder::new(client, "kube-proxy", &node_name),
            metrics,
            notified: BTreeSet::new(),
            failures: LastingFailures::default(),
            triggers: Vec::new(),
            started: jiff::Timestamp::now().as_millisecond(),
            pace: Pace::new(),
            progress: Progress::default(),
            status,
            given_back: 0,
        }
    }

    async fn run(mut self, shutdown: impl Future<Output = ()>) {
        tokio::pin!(shutdown);
        tokio::select! {
            () = self.drive() => {}
            () = &mut shutdown => {}
        }
        self.backend.stop(DRAIN).await;
    }

    async fn drive(&mut self) {
        let mut services = self.rows.services.changed();
        let mut slices = self.rows.slices.changed();
        let mut node = self.rows.node.changed();
        // Before both are known we would take down what a predecessor programmed.
        self.rows.services.synced().await;
        self.rows.slices.synced().await;
        self.node_changed();
        self.take_changes();
        loop {
            self.backend.begin(&self.table);
            // After what was begun, which is where work that was answered comes to its end.
            self.report();
            let health_again = self.health_again;
            let health_due = async {
                match health_again {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = services.changed() => {
                    self.metrics.service_changed();
                    self.take_changes();
                }
                _ = slices.changed() => {
                    self.metrics.endpoints_changed();
                    self.take_changes();
                }
                _ = node.changed() => {
                    self.node_changed();
                    self.take_changes();
                }
                () = health_due => self.answer_health(),
                event = self.backend.next_event() => self.backend.process(event, &self.table),
            }
        }
    }

    fn node_changed(&mut self) {
        let Some(row) = self.rows.node.get(&self.rows.node_key) else { return };
        let mut policy = NodePolicy { zone: row.zone.clone(), ..self.base.clone() };
        if policy.node_ips.is_empty() {
            policy.node_ips.clone_from(&row.addresses);
        }
        if policy != self.policy {
            self.policy = policy;
            self.rows.inputs.lock().touch_all();
        }
        self.status.send_if_modified(|status| std::mem::replace(&mut status.node_leaving, row.leaving) != row.leaving);
    }

    fn take_changes(&mut self) {
        let dirty = self.rows.inputs.lock().take_dirty();
        if dirty.is_empty() {
            return;
        }
        self.metrics.queued();
        for service in dirty {
            let rows = self.rows.inputs.lock().rows(&service);
            let triggered = rows.iter().flat_map(|(_, slices)| slices).filter_map(|slice| slice.triggered).filter(|at| *at >= self.started).max();
            let desired = rows.map(|(row, slices)| desired_vips(&service, &row, &slices, &self.policy)).unwrap_or_default();
            let changes = self.table.set_service(&service, desired);
            changes.iter().for_each(|change| tracing::debug!("{change}"));
            let keys: Vec<VipKey> = changes.into_iter().map(|change| change.key).collect();
            if let Some(at) = triggered.filter(|_| !keys.is_empty()) {
                self.triggers.push((at, keys.clone()));
            }
            self.backend.touch(keys, &self.table);
        }
        self.answer_health();
    }

    /// Starts and stops health check servers as the table has them.
    fn answer_health(&mut self) {
        let Some(servers) = &mut self.health else { return };
        let failures = servers.sync(self.table.health_checks());
        if self.health_again.is_none() {
            failures.iter().for_each(|(_, reason)| tracing::warn!("{reason}; trying again"));
        }
        self.health_again = (!failures.is_empty()).then(|| Instant::now() + HEALTH_AGAIN);
    }

    fn report(&mut self) {
        let Backlog { pending, finished } = self.backend.backlog();
        if let Some(took) = self.pace.note(pending, finished) {
            self.metrics.synced(took);
        }
        self.give_back();
        self.triggers.retain(|(at, keys)| {
            let settled = keys.iter().all(|key| self.backend.is_settled(key));
            if settled {
                self.metrics.programmed(*at);
            }
            !settled
        });
        for key in self.failures.overdue(&self.progress.failing, Instant::now()) {
            let (Some(vip), Some(reason)) = (self.table.get(&key), self.progress.failing.get(&key)) else { continue };
            self.recorder.event(&reference(&vip.service), EventType::Warning, "ServiceNotServed", None, format!("{key}: {reason}"));
        }
        let changed = self.backend.take_progress();
        let moved = (pending == 0) != (self.progress.pending == 0) || self.pace.reported.elapsed() >= REPORT && pending != self.progress.pending;
        if changed.is_none() && !moved && self.status.borrow().vips == self.table.len() {
            return;
        }
        self.pace.reported = Instant::now();
        if let Some(progress) = changed {
            self.report_refusals(&progress);
            self.progress = progress;
        }
        self.progress.pending = pending;
        let behind = self.progress.failing.len();
        // Some that fail are those VIPs' own failure; when all do, it is ours.
        let waits = pending > behind || (behind > 0 && behind >= self.table.len()) || self.progress.unavailable.is_some();
        let (progress, vips, eta, moved) = (&self.progress, self.table.len(), self.pace.eta(pending), self.pace.moved);
        self.status.send_if_modified(|status| {
            let ready = status.ready || progress.ready;
            let stuck_since = waits.then(|| status.stuck_since.map_or(moved, |since| since.max(moved)));
            let next = Status { ready, vips, progress: progress.clone(), eta, stuck_since, node_leaving: status.node_leaving };
            let differs = *status != next;
            *status = next;
            differs
        });
    }

    /// Once everything was programmed, again when there is much more of it.
    fn give_back(&mut self) {
        let vips = self.table.len();
        if self.progress.ready && self.progress.pending == 0 && vips > self.given_back + MUCH {
            self.given_back = vips;
            #[cfg(target_os = "linux")]
            linux_sys::memory::give_back();
        }
    }

    /// Writes an event of each Service that asks for something that this node cannot do, once.
    fn report_refusals(&mut self, progress: &Progress) {
        if progress.refusals == self.progress.refusals {
            return;
        }
        let mut known = BTreeSet::new();
        for (key, refusals) in &progress.refusals {
            let Some(vip) = self.table.get(key) else { continue };
            for refusal in refusals.iter().filter(|refusal| refusal.is_event) {
                let entry = (vip.service.clone(), refusal.clone());
                if !self.notified.contains(&entry) && !known.contains(&entry) {
                    self.recorder.event(&reference(&vip.service), EventType::Warning, refusal.reason, None, refusal.message.to_string());
                }
                known.insert(entry);
            }
        }
        self.notified = known;
    }
}

/// The Service of a VIP's name, `NAMESPACE/SERVICE:PORT`.
fn reference(name: &str) -> ObjectReference {
    let (namespace, rest) = name.split_once('/').unwrap_or(("", name));
    let service = rest.split(':').next().unwrap_or(rest);
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Service".into()),
        namespace: Some(namespace.into()),
        name: Some(service.into()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests;
