//! What all workers share, and the task that starts and informs them.

mod allocation;
pub(crate) mod ends;
mod looks;
mod seen;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cluster::{Change, EventRecorder, EventType, Informer, Key, Selection};
use cri::labels::POD_UID;
use cri::v1;
use host::{FileKind, HostError, HostRoot, PodPath};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod};
use kube::Api;
use thiserror_ext::AsReport;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::bundles::Bundles;
use crate::cgroups::{Groups, Name};
use crate::config::{Config, NetworkGate, Polls};
use crate::counts::Counts as NodeCounts;
use crate::cri_config::NodeSide;
use crate::devices::Devices;
use crate::eviction::Pressure;
use crate::health::RuntimeHealth;
use crate::images::Images;
use crate::images::node_keyring::NodeKeyring;
use crate::images::providers::Providers;
use crate::images::records::Records;
use crate::node::NodeFacts;
use crate::pod::explain::Explanation;
use crate::probes::counts::Counts;
use crate::services;
use crate::sources::Sources;
use crate::statics::Statics;
use crate::stats::Started;
use crate::statuses::Statuses;
use crate::tokens::TokenCache;
use crate::users::Users;
use crate::volumes::csi::Csi;
use crate::volumes::{PodDirs, Volumes};
use crate::worker::{self, Note, Work};
pub(crate) use allocation::Deferred;
use ends::Ends;
use kube_rules::Amounts;
use kube_rules::static_pod::mirrored;
use looks::{Looks, Seen, changed, list};

/// Shared by all workers.
pub(crate) struct Agent {
    pub side: NodeSide,
    /// Control groups of pods, where the agent makes them.
    pub groups: Option<Arc<Groups>>,
    pub client: kube::Client,
    pub api: cluster::ApiServer,
    pub cri: cri::Client,
    /// The client of the Host Networking Service; None where there is none.
    pub hcn: Option<hcn::HcnClient>,
    pub root: Arc<HostRoot>,
    /// The agent's directory on the node.
    pub dir: PodPath,
    /// Where runtimes write the logs of pods.
    pub logs: PodPath,
    pub facts: Arc<NodeFacts>,
    /// The node is the machine that we run on.
    pub is_machine: bool,
    /// Processor time when it was last asked for.
    pub rates: Mutex<crate::stats::Rates>,
    pub allocatable: Amounts,
    pub images: Arc<Images>,
    /// With which credentials images came.
    pub records: Arc<Records>,
    pub node_keyring: NodeKeyring,
    pub providers: Providers,
    pub recorder: EventRecorder,
    pub pods: Informer<Pod>,
    pub node: Informer<Node>,
    pub services: Informer<services::Row>,
    pub sources: Sources,
    pub bundles: Bundles,
    pub statics: Arc<Statics>,
    pub tokens: Arc<TokenCache>,
    pub volumes: Volumes,
    pub csi: Arc<Csi>,
    pub devices: Arc<Devices>,
    pub users: Users,
    /// What a pod's network waits for before a program of it runs.
    pub network_gate: Option<NetworkGate>,
    /// How often probes succeeded and failed.
    pub probes: Arc<Counts>,
    /// How often containers were started.
    pub starts: Started,
    /// How long the agent's work took.
    pub timings: Arc<crate::stats::Timings>,
    /// The requests to the API server.
    pub requests: cluster::Requests,
    pub statuses: Arc<Statuses>,
    pub health: watch::Receiver<RuntimeHealth>,
    pub workers: Arc<Workers>,
    pub polls: Polls,
    /// See [`crate::pod::NodeInfo::dead_kept`].
    pub dead_kept: Option<usize>,
    /// When the agent started, in whole seconds.
    pub started: Timestamp,
    /// Pods that hold resources of the node, with the resources that they hold.
    pub admitted: Mutex<BTreeMap<String, Arc<Pod>>>,
    /// Pods whose resize waits for resources.
    pub deferred: Mutex<BTreeMap<String, Deferred>>,
    /// What the node is short of.
    pub pressures: watch::Receiver<BTreeSet<Pressure>>,
    /// Whether the machine is about to go down.
    pub goes_down: watch::Receiver<bool>,
    /// How far the ends of pods have come that the node ends.
    pub ends: Ends,
    /// How often it did.
    pub counts: NodeCounts,
    /// When the loop that starts and informs workers last came round.
    pub turned: Mutex<Instant>,
}

/// The workers by pod UID.
#[derive(Default)]
pub(crate) struct Workers {
    hands: Mutex<HashMap<String, Hand>>,
}

/// What others have of a worker: its queue, and what it does.
struct Hand {
    notes: mpsc::UnboundedSender<Note>,
    work: Arc<Work>,
}

/// How long a worker may take to explain its pod; one that waits for the runtime answers later.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often the loop of workers comes round at least, and how long it may stay away before the agent is not healthy: two rounds of looks at
/// pods, and five minutes at least (upstream `SyncLoopHealthCheck`).
const TURN: Duration = Duration::from_secs(30);
const AWAY: Duration = Duration::from_secs(300);

/// What a worker says of its pod.
pub(crate) enum Explained {
    Whole(Explanation),
    /// It is held up by this action, for so long.
    Busy(String, Duration),
    /// No worker has the pod, or it ends just now.
    Unknown,
}

impl Workers {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Hand>> {
        self.hands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a note to a worker; nothing happens when there is none.
    pub(crate) fn tell(&self, uid: &str, note: Note) {
        if let Some(worker) = self.lock().get(uid) {
            let _ = worker.notes.send(note);
        }
    }

    /// The UIDs of pods that have one.
    pub(crate) fn all(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    /// The UIDs of these pods, and of those whose workers have not ended: a worker may still stop a pod that was deleted by force.
    fn with(&self, pods: &[Arc<Pod>]) -> BTreeSet<String> {
        pods.iter().map(|pod| uid(pod)).chain(self.all()).collect()
    }

    /// Whether a pod has a worker.
    pub(crate) fn has(&self, uid: &str) -> bool {
        self.lock().contains_key(uid)
    }

    /// Asks a worker why its pod is not Ready.
    pub(crate) async fn explain(&self, uid: &str) -> Explained {
        let (asker, answer) = oneshot::channel();
        let Some(work) = self.lock().get(uid).filter(|worker| worker.notes.send(Note::Explain(asker)).is_ok()).map(|worker| worker.work.clone())
        else {
            return Explained::Unknown;
        };
        match tokio::time::timeout(PATIENCE, answer).await {
            Ok(Ok(explanation)) => Explained::Whole(explanation),
            Ok(Err(_)) => Explained::Unknown,
            Err(_) => {
                let (action, age) = work.now().unwrap_or_else(|| ("look at the runtime".into(), PATIENCE));
                Explained::Busy(action, age)
            }
        }
    }

    pub(crate) fn wake_all(&self) {
        for worker in self.lock().values() {
            let _ = worker.notes.send(Note::Wake);
        }
    }

    /// Says that what volumes come from changed.
    pub(crate) fn tell_sources(&self) {
        for worker in self.lock().values() {
            let _ = worker.notes.send(Note::Sources);
        }
    }

    /// Says that the health of devices of some pods changed.
    pub(crate) fn tell_devices(&self, pods: &BTreeSet<String>) {
        for uid in pods {
            self.tell(uid, Note::Devices);
        }
    }

    /// Says that the node's runtime or its network changed.
    pub(crate) fn tell_node(&self) {
        for worker in self.lock().values() {
            let _ = worker.notes.send(Note::Node);
        }
    }
}

/// The pods of this node; a pod changes hands by UID, so changes carry both sides.
pub(crate) type PodChange = (Option<Arc<Pod>>, Option<Arc<Pod>>);

/// Watches the node's pods; changes go to `changes`, but those of mirror pods, which only show a static pod, to `statics`.
pub(crate) fn watch_pods(config: &Config, statics: Arc<Statics>, changes: mpsc::UnboundedSender<PodChange>) -> Informer<Pod> {
    let api: Api<Pod> = Api::all(config.client.clone());
    let seen = Arc::new(seen::FirstSeen::default());
    let times = seen.clone();
    let slim = move |pod: &Pod| {
        let mut pod = pod.clone();
        times.annotate(&mut pod, Timestamp::now());
        Some(pod)
    };
    let tell = move |change: Change<'_, Pod>| {
        let of_api = |pod: Option<&Arc<Pod>>| pod.filter(|pod| mirrored(pod).is_none()).cloned();
        let (old, new) = (of_api(change.old), of_api(change.new));
        if let Some(old) = old.as_ref().filter(|old| new.as_ref().is_none_or(|new| uid(new) != uid(old))) {
            seen.forget(&uid(old));
        }
        if old.is_none() || new.is_none() {
            statics.changed.notify_one();
        }
        let _ = changes.send((old, new));
    };
    let mine = Selection::fields(format!("spec.nodeName={}", config.node_name)).of(&config.api);
    Informer::start_with_handler(api, mine, slim, tell)
}

pub(crate) fn uid(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap_or_default()
}

pub(crate) fn key(pod: &Pod) -> Key {
    Key::of(pod)
}

impl Agent {
    /// Whether the loop that starts and informs workers still comes round.
    pub(crate) fn turns(&self) -> bool {
        let turned = *self.turned.lock().unwrap_or_else(PoisonError::into_inner);
        turned.elapsed() <= AWAY.max(self.polls.pod.saturating_mul(2))
    }

    /// Pods that hold resources, but for one.
    pub(crate) fn admitted(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Pod>>> {
        self.admitted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pod of a name as the node has it: a static pod, or that of the API.
    pub(crate) fn pod(&self, key: &Key) -> Option<Arc<Pod>> {
        self.statics.get(key).or_else(|| self.pods.get(key).filter(|pod| mirrored(pod).is_none()))
    }

    /// The node's addresses.
    pub(crate) fn host_ips(&self) -> Vec<String> {
        self.facts.addresses.all()
    }

    /// Writes an event about the Node, which upstream names by its name.
    pub(crate) fn node_event(&self, type_: EventType, reason: &str, message: String) {
        let node = Some(self.side.node_name.clone());
        let about = ObjectReference { kind: Some("Node".into()), name: node.clone(), uid: node, ..ObjectReference::default() };
        self.recorder.event(&about, type_, reason, None, message);
    }

    /// All pods that the node has: those of the API, and static ones in place of their mirrors.
    pub(crate) fn all_pods(&self) -> Vec<Arc<Pod>> {
        let of_api = self.pods.snapshot().into_iter().map(|(_, pod)| pod).filter(|pod| mirrored(pod).is_none());
        of_api.chain(self.statics.all()).collect()
    }

    /// The UIDs of the pods that the node has, and of those that a worker still ends: nobody else cleans up after these.
    pub(crate) fn known_pods(&self) -> BTreeSet<String> {
        self.workers.with(&self.all_pods())
    }

    fn inform(self: &Arc<Self>, tasks: &mut JoinSet<String>, (old, new): PodChange) {
        let same = |a: &Option<Arc<Pod>>, b: &Pod| a.as_ref().is_some_and(|a| uid(a) == uid(b));
        if let Some(old) = &old
            && !same(&new, old)
        {
            self.workers.tell(&uid(old), Note::Gone);
        }
        let Some(pod) = new else { return };
        let uid = uid(&pod);
        let mut workers = self.workers.lock();
        // A closed queue belongs to a worker that has just ended or failed: a new one looks.
        if let Some(worker) = workers.get(&uid)
            && worker.notes.send(Note::Pod(pod.clone())).is_ok()
        {
            return;
        }
        let (sender, receiver) = mpsc::unbounded_channel();
        let work = Arc::new(Work::default());
        workers.insert(uid.clone(), Hand { notes: sender.clone(), work: work.clone() });
        drop(workers);
        let agent = self.clone();
        tasks.spawn(async move {
            worker::run(agent, pod, sender, receiver, work).await;
            uid
        });
    }

    fn forget(&self, uid: &str) {
        // A newer worker of the same pod keeps its place.
        let mut workers = self.workers.lock();
        if workers.get(uid).is_some_and(|worker| worker.notes.is_closed()) {
            workers.remove(uid);
            drop(workers);
            self.forget_deferred(uid);
            self.release(uid);
            self.users.release(uid);
            self.statuses.forget(uid);
            self.statics.ended(uid);
            self.forget_end(uid);
        }
    }

    /// Starts and informs workers until the channel closes.
    pub(crate) async fn dispatch(self: Arc<Self>, mut changes: mpsc::UnboundedReceiver<PodChange>) {
        let mut tasks = JoinSet::new();
        let mut turns = tokio::time::interval(TURN);
        loop {
            *self.turned.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            tokio::select! {
                _ = turns.tick() => {}
                change = changes.recv() => match change {
                    Some(change) => self.inform(&mut tasks, change),
                    None => return,
                },
                Some(done) = tasks.join_next() => {
                    match done {
                        Ok(uid) => self.forget(&uid),
                        Err(error) => tracing::error!(error = %error.as_report(), "a pod's worker failed"),
                    }
                }
            }
        }
    }

    /// Wakes workers when the runtime's objects change: by its events, else by listing.
    pub(crate) async fn follow_runtime(self: Arc<Self>) {
        let mut events = self.cri.events();
        let mut looks = Looks::default();
        let mut seen = Seen::default();
        loop {
            let due = looks.due(self.polls.objects).map(tokio::time::Instant::from_std);
            let waited = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            let notice = tokio::select! {
                notice = events.next(), if !looks.are_all_there_is => notice,
                () = waited => {
                    let shown = Box::pin(self.look(&mut seen)).await;
                    looks.looked(shown.then_some(&seen), Instant::now());
                    continue;
                }
            };
            match notice {
                Some(cri::Notice::Event(event)) => {
                    let labels = event.pod_sandbox_status.as_ref().map(|s| &s.labels);
                    match labels.and_then(|l| l.get(POD_UID)) {
                        Some(uid) => self.workers.tell(uid, Note::Wake),
                        None => self.workers.wake_all(),
                    }
                    continue;
                }
                Some(cri::Notice::Task { container, change }) => {
                    looks.announce(container, change, Instant::now());
                    continue;
                }
                Some(cri::Notice::Relist) => looks.without_events = false,
                Some(cri::Notice::Lost { reason } | cri::Notice::Unsupported { reason }) => {
                    tracing::info!(reason, "no container events; listing once a second");
                    looks.without_events = true;
                }
                None => (looks.without_events, looks.are_all_there_is) = (true, true),
            }
            let shown = Box::pin(self.look(&mut seen)).await;
            looks.looked(shown.then_some(&seen), Instant::now());
        }
    }

    /// Lists the runtime's objects, and wakes the workers of pods that have changed since the last look. False when the runtime did not answer.
    async fn look(&self, seen: &mut Seen) -> bool {
        let began = Instant::now();
        match list(&self.cri).await {
            Ok(now) => {
                self.timings.listed(began);
                for uid in changed(seen, &now) {
                    self.workers.tell(uid, Note::Wake);
                }
                *seen = now;
                true
            }
            Err(error) => {
                tracing::warn!(error = %error.as_report(), "listing the runtime's pods failed; trying again");
                false
            }
        }
    }

    /// Ends pods that the runtime still runs but neither the API nor a manifest knows, and no worker ends: once, after the first
    /// list of pods, and removes logs of pods that are gone. Returns those that could not be ended.
    pub(crate) async fn remove_orphans(&self) -> Result<Vec<Orphan>, cri::Error> {
        // Before the pods, so that none that comes meanwhile loses its devices, its control groups or its sandbox.
        let (logs, groups) = (self.log_directories(), self.pod_groups().await);
        let with_devices = self.devices.pods();
        let sandboxes = self.cri.list_pod_sandbox(v1::ListPodSandboxRequest::default()).await?;
        let known = self.known_pods();
        with_devices.difference(&known).for_each(|gone| self.devices.release(gone));
        let mut orphans = Vec::new();
        for sandbox in sandboxes {
            let Some(owner) = sandbox.labels.get(POD_UID) else {
                continue;
            };
            if known.contains(owner) {
                continue;
            }
            tracing::info!(pod = owner, sandbox = sandbox.id, "ending a pod that the API does not know");
            orphans.push(Orphan { pod: owner.clone(), sandbox: sandbox.id.clone() });
        }
        self.timings.orphans(orphans.iter().map(|orphan| &orphan.pod).collect::<BTreeSet<_>>().len());
        // One that cannot be stopped keeps its own, but nothing else, from being cleaned up.
        let held = self.end_orphans(orphans).await;
        let kept = |pod: &str| known.contains(pod) || held.iter().any(|orphan| orphan.pod == pod);
        self.remove_orphaned_logs(logs, kept);
        self.remove_groups(groups, kept).await;
        Ok(held)
    }

    /// Ends pods without an owner. Returns those that are still there.
    pub(crate) async fn end_orphans(&self, orphans: Vec<Orphan>) -> Vec<Orphan> {
        let mut held = Vec::new();
        for orphan in orphans {
            if let Err(error) = self.end_orphan(&orphan.sandbox).await {
                let Orphan { pod, sandbox } = &orphan;
                tracing::warn!(pod, sandbox, error = %error.as_report(), "ending a pod that the API does not know failed; trying again");
                held.push(orphan);
            }
        }
        held
    }

    /// The pods that have a directory, but are known neither to the API nor by a manifest, and have no worker.
    pub(crate) fn left_pods(&self) -> Vec<String> {
        let known = self.known_pods();
        let listed = self.dir.join("pods").map(|dir| self.root.read_dir(&dir));
        let names = listed.ok().and_then(Result::ok).unwrap_or_default();
        names.into_iter().map(|(name, _)| name).filter(|name| !known.contains(name)).collect()
    }

    /// Takes down what pods left that ended while no agent ran, and volumes that are staged for no pod. Returns the pods that are still
    /// there: a driver may register later.
    pub(crate) async fn remove_left(&self, left: Vec<String>) -> Vec<String> {
        let mut again = Vec::new();
        for name in left {
            let dirs = self.dir.join("pods").and_then(|dir| dir.join(&name));
            let Ok(dirs) = dirs.map(|pod| PodDirs { logs: pod.clone(), pod }) else { continue };
            if let Err(error) = self.volumes.remove_all(&dirs).await {
                tracing::warn!(pod = name, error = %error.as_report(), "removing the directory of a gone pod failed; trying again");
                again.push(name);
            } else {
                self.users.release(&name);
            }
        }
        again
    }

    /// The directories of pods' logs.
    pub(crate) fn log_directories(&self) -> Vec<String> {
        self.root.read_dir(&self.logs).into_iter().flatten().filter(|(_, kind)| *kind == FileKind::Directory).map(|(name, _)| name).collect()
    }

    /// Removes the logs of pods that are gone (upstream kuberuntime_gc.go `evictPodLogsDirectories`). `names` were listed before it was known
    /// which pods are `kept`.
    pub(crate) fn remove_orphaned_logs(&self, names: Vec<String>, kept: impl Fn(&str) -> bool) {
        for name in names.into_iter().filter(|name| log_owner(name).is_some_and(|uid| !kept(uid))) {
            let path = self.logs.join(&name).map_err(HostError::from);
            if let Err(error) = path.and_then(|path| self.root.remove_tree(&path)) {
                tracing::warn!(logs = name, error = %error.as_report(), "removing the logs of a gone pod failed");
            }
        }
    }

    /// The control groups of pods.
    pub(crate) async fn pod_groups(&self) -> Vec<(String, Name)> {
        match &self.groups {
            Some(groups) => groups.all().await,
            None => Vec::new(),
        }
    }

    /// Removes those of pods that are not `kept`. They were listed before it was known which pods that are.
    pub(crate) async fn remove_groups(&self, listed: Vec<(String, Name)>, kept: impl Fn(&str) -> bool) {
        let Some(groups) = &self.groups else { return };
        let volumes = |pod: &str| self.dir.join("pods").and_then(|dir| dir.join(pod)?.join("volumes"));
        let has_volumes = |pod: &str| volumes(pod).is_ok_and(|dir| self.root.read_dir(&dir).is_ok_and(|all| !all.is_empty()));
        groups.remove_orphans(listed.into_iter().filter(|(uid, _)| !kept(uid)).collect(), has_volumes).await;
    }

    async fn end_orphan(&self, sandbox: &str) -> Result<(), cri::Error> {
        let filter = v1::ContainerFilter { pod_sandbox_id: sandbox.to_owned(), ..Default::default() };
        let containers = self.cri.list_containers(v1::ListContainersRequest { filter: Some(filter) }).await?;
        for c in containers.iter().filter(|c| c.state == v1::ContainerState::ContainerRunning as i32) {
            self.cri.stop_container(&c.id, Duration::from_secs(1)).await?;
        }
        let id = sandbox.to_owned();
        self.cri.stop_pod_sandbox(v1::StopPodSandboxRequest { pod_sandbox_id: id.clone() }).await?;
        self.cri.remove_pod_sandbox(v1::RemovePodSandboxRequest { pod_sandbox_id: id }).await
    }
}

/// A sandbox whose pod has no owner.
pub(crate) struct Orphan {
    /// The pod's UID.
    pub pod: String,
    pub sandbox: String,
}

/// The UID in the name of a pod's log directory, `NAMESPACE_NAME_UID`; None for directories of others.
fn log_owner(name: &str) -> Option<&str> {
    match name.split('_').collect::<Vec<_>>().as_slice() {
        [namespace, pod, uid] if ![namespace, pod, uid].iter().any(|part| part.is_empty()) => Some(uid),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;

    #[test]
    fn a_pod_is_known_as_long_as_its_worker_ends_it() {
        let pod = |uid: &str| Arc::new(Pod { metadata: ObjectMeta { uid: Some(uid.to_owned()), ..Default::default() }, ..Default::default() });
        let workers = Workers::default();
        for uid in ["here", "deleted-by-force"] {
            let hand = Hand { notes: mpsc::unbounded_channel().0, work: Arc::default() };
            workers.lock().insert(uid.to_owned(), hand);
        }
        assert_eq!(workers.with(&[pod("here"), pod("new")]), ["deleted-by-force", "here", "new"].map(str::to_owned).into());
    }

    #[test]
    fn logs_name_their_owner() {
        for (name, want) in [("ns_web_1-2", Some("1-2")), ("kube-system_etcd-n_0af", Some("0af")), ("a_b", None), ("a_b_c_d", None), ("a__c", None)] {
            assert_eq!(log_owner(name), want, "{name}");
        }
    }
}
