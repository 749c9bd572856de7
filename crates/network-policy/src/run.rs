//! The loop: watches feed the world, the world's changes feed the backend, and what is in effect becomes status, metrics and events.

mod gate;
mod inputs;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use backoff::Backoff;
use cluster::{ApiServer, EventRecorder, EventType, Feed, Key, Selection};
use hcn::Event;
use hcn::watch::{Change, Listener};
use k8s_openapi::api::core::v1::{Namespace, Node, ObjectReference, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use thiserror_ext::AsReport as _;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::policy::{Policy, PolicyId, cluster as kcnp};
use crate::rows::{NodeRow, PodRow, namespace_row};
use crate::world::{Kind, World};
use gate::Waiting;
pub use gate::{Gate, Gates, gate};
use inputs::{Inputs, Rows};

/// What puts rules into effect.
pub enum Backend {
    /// nftables in the network namespace of this process.
    #[cfg(target_os = "linux")]
    Nftables(crate::nftables::Nftables),
    /// Access rules of the Host Networking Service.
    Hns {
        hns: crate::hns::Hns,
        /// What happens in the service; without it only the periodic pass finds endpoints that were made again.
        changes: Option<Listener>,
    },
}

/// What the policies of one node need.
pub struct Config {
    pub client: Client,
    /// What is known of that API server; shared by all parts of a node.
    pub api: ApiServer,
    /// The pods of this node count.
    pub node_name: String,
    pub backend: Backend,
    /// How often everything is compared with the host.
    pub full_pass: Duration,
    /// Where the status goes.
    pub status: Option<watch::Sender<Status>>,
    pub metrics: Metrics,
    /// Pods that wait for their rules before they run.
    pub gate: Option<Gates>,
}

/// How far the node is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// Everything was read, and its rules were in effect once.
    pub ready: bool,
    /// Local pods that have an address.
    pub endpoints: usize,
    /// Those of them that have rules.
    pub isolated: usize,
    pub policies: BTreeMap<PolicyId, PolicyStatus>,
    /// What cannot be put into effect, one sentence each.
    pub problems: Vec<String>,
}

/// A policy as it is in effect on this node.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyStatus {
    /// Since when.
    pub effective: SystemTime,
    /// How long after the node heard of it.
    pub took: Duration,
    /// Local pods that it selects.
    pub endpoints: usize,
}

/// Keeps the rules of this node until `shutdown` completes. They stay: a restart opens nothing.
pub async fn run(config: Config, shutdown: impl Future<Output = ()>) {
    let policies = Policies::new(config);
    tokio::pin!(shutdown);
    tokio::select! {
        () = policies.drive() => {}
        () = &mut shutdown => {}
    }
}

struct Policies {
    config: Config,
    status: watch::Sender<Status>,
    inputs: Arc<Inputs>,
    feeds: Vec<Feed>,
    /// The watch of ClusterNetworkPolicies, once their kind is installed.
    cluster: Option<Feed>,
    events: EventRecorder,
    /// Pods whose rules are not in effect yet.
    waiting: Vec<Waiting>,
    /// Problems of policies that were reported.
    reported: BTreeMap<PolicyId, Vec<String>>,
}

impl Policies {
    fn new(config: Config) -> Self {
        let status = config.status.clone().unwrap_or_else(|| watch::Sender::new(Status::default()));
        config.metrics.report(status.subscribe());
        let inputs = Arc::new(Inputs::new(World::new(Some(&config.node_name))));
        let events = EventRecorder::new(config.client.clone(), "network-policy", &config.node_name);
        let (client, all) = (&config.client, || Selection::all().of(&config.api));
        let feeds = vec![
            Feed::start(
                Api::<Namespace>::all(client.clone()),
                all(),
                namespace_row,
                Rows::new(&inputs, Kind::Namespaces, |world, key, row| world.set_namespace(&key.name, row)),
            ),
            Feed::start(
                Api::<Node>::all(client.clone()),
                all(),
                NodeRow::of,
                Rows::new(&inputs, Kind::Nodes, |world, key, row| world.set_node(&key.name, row)),
            ),
            Feed::start(Api::<Pod>::all(client.clone()), all(), PodRow::of, Rows::new(&inputs, Kind::Pods, World::set_pod)),
            Feed::start(
                Api::<NetworkPolicy>::all(client.clone()),
                all(),
                |policy| Some(Policy::namespaced(policy)),
                Rows::new(&inputs, Kind::NamespacedPolicies, |world, key, row| world.set_policy(&PolicyId::Namespaced(key.clone()), row)),
            ),
        ];
        Self { config, status, inputs, feeds, cluster: None, events, waiting: Vec::new(), reported: BTreeMap::new() }
    }

    async fn drive(mut self) {
        // With half the pods known, what policies allow would be refused.
        self.find_cluster_policies().await;
        for feed in self.feeds.iter().chain(&self.cluster) {
            feed.synced().await;
        }
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
        let mut full = true;
        let mut next_full = Instant::now() + self.config.full_pass;
        loop {
            let done = self.pass(full).await;
            let wait = if done {
                backoff.reset();
                next_full.saturating_duration_since(Instant::now())
            } else {
                backoff.next_delay().min(self.config.full_pass)
            };
            full = !done;
            if done {
                let world = self.inputs.world();
                // A pod that the API has not shown here yet has rules that are not known.
                let (open, waiting) = std::mem::take(&mut self.waiting).into_iter().partition::<Vec<_>, _>(|one| world.pod(&one.pod).is_some());
                drop(world);
                self.waiting = waiting.into_iter().filter(Waiting::is_wanted).collect();
                open.into_iter().for_each(Waiting::open);
            }
            let inputs = self.inputs.clone();
            tokio::select! {
                Some(waiting) = gate::next(&mut self.config.gate) => {
                    self.inputs.world().set_early(&waiting.pod, &waiting.ips);
                    self.waiting.push(waiting);
                }
                () = inputs.changed(), if done => {}
                () = endpoints_changed(&mut self.config.backend) => {}
                () = tokio::time::sleep(wait) => full = true,
            }
            if Instant::now() >= next_full {
                next_full = Instant::now() + self.config.full_pass;
                self.find_cluster_policies().await;
            }
        }
    }

    /// Watches ClusterNetworkPolicies from when their kind is installed.
    async fn find_cluster_policies(&mut self) {
        if self.cluster.is_some() {
            return;
        }
        let resource = match find_cluster_policies(&self.config.client).await {
            Ok(Some(resource)) => resource,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(error = %error.as_report(), "cannot ask whether the cluster has ClusterNetworkPolicies; asking again");
                return;
            }
        };
        let (kind, _) = kcnp::KIND;
        tracing::info!("the cluster has {kind}s of {}", resource.api_version);
        let api = Api::<DynamicObject>::all_with(self.config.client.clone(), &resource);
        let row = |object: &DynamicObject| {
            let policy = Policy::cluster(object.data.get("spec").unwrap_or(&serde_json::Value::Null));
            Some(policy.unwrap_or_else(|error| Policy::without_effect(&error)))
        };
        let rows =
            Rows::new(&self.inputs, Kind::ClusterPolicies, |world, key, row| world.set_policy(&PolicyId::Cluster(key.name.as_str().into()), row));
        self.cluster = Some(Feed::start(api, Selection::all().of(&self.config.api), row, rows));
    }

    /// One pass; true when nothing is left to do.
    async fn pass(&mut self, full: bool) -> bool {
        let heard = self.inputs.take_heard();
        let result = match &mut self.config.backend {
            #[cfg(target_os = "linux")]
            Backend::Nftables(nftables) => {
                let mut world = self.inputs.world();
                let changes = world.take_changes();
                if changes.is_empty() && !full { Ok(0) } else { nftables.sync(&world, &changes, full).map_err(|error| error.to_report_string()) }
            }
            Backend::Hns { hns, .. } => {
                let changes = self.inputs.world().take_changes();
                let look = |see: &mut dyn FnMut(&World)| see(&self.inputs.world());
                hns.sync(&look, &changes, full).await.map_err(|error| error.to_report_string())
            }
        };
        let failure = match result {
            Ok(writes) => {
                self.config.metrics.wrote(writes);
                None
            }
            Err(reason) => {
                self.config.metrics.failed();
                self.inputs.put_back(&heard);
                Some(format!("cannot put the policies of this node into effect: {reason}; trying again"))
            }
        };
        self.report(&heard, failure.as_deref());
        failure.is_none()
    }

    fn report(&mut self, heard: &BTreeMap<PolicyId, Instant>, failure: Option<&str>) {
        let world = self.inputs.world();
        let mut next = self.status.borrow().clone();
        next.endpoints = world.endpoints().count();
        next.isolated = world.endpoints().filter(|(_, endpoint)| endpoint.all().next().is_some()).count();
        next.ready |= failure.is_none();
        let mut problems: Vec<String> = failure.into_iter().map(str::to_owned).collect();
        for (id, since) in heard {
            let Some(policy) = world.policy(id) else { continue };
            if failure.is_none() && policy.has_effect() {
                let took = since.elapsed();
                self.config.metrics.in_effect(took);
                let endpoints = world.selected_by(policy);
                tracing::info!(policy = %id, ms = took.as_millis() as u64, endpoints, "a policy is in effect");
                next.policies.insert(id.clone(), PolicyStatus { effective: SystemTime::now(), took, endpoints });
            }
            note_problems(&self.events, &mut self.reported, id, &policy.problems);
        }
        next.policies.retain(|id, _| world.policy(id).is_some_and(Policy::has_effect));
        self.reported.retain(|id, _| world.policy(id).is_some());
        drop(world);
        problems.extend(self.reported.iter().flat_map(|(id, problems)| problems.iter().map(move |problem| format!("{id}: {problem}"))));
        next.problems = problems;
        if let Some(failure) = failure.filter(|failure| self.status.borrow().problems.first().is_none_or(|before| before != failure)) {
            tracing::warn!("{failure}");
        }
        self.status.send_if_modified(|status| {
            let differs = *status != next;
            *status = next;
            differs
        });
    }
}

/// The kind ClusterNetworkPolicy, where the cluster has it.
///
/// # Errors
/// When the API does not answer.
pub async fn find_cluster_policies(client: &Client) -> kube::Result<Option<ApiResource>> {
    let (kind, plural) = kcnp::KIND;
    let list = client.list_api_group_resources(&format!("{}/{}", kcnp::GROUP, kcnp::VERSION)).await;
    let resource = || ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(kcnp::GROUP, kcnp::VERSION, kind), plural);
    match list {
        Ok(list) => Ok(list.resources.iter().any(|resource| resource.name == plural).then(resource)),
        Err(error) if cluster::is_not_found(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Waits until endpoints of the host may have been made again, and forgets their rules.
async fn endpoints_changed(backend: &mut Backend) {
    let Backend::Hns { hns, changes: Some(changes) } = backend else { return std::future::pending().await };
    loop {
        match changes.next().await {
            Change::All => return hns.forget(),
            Change::Event(Event { event_type: Event::ENDPOINT_ATTACHED | Event::ENDPOINT_DETACHED, data, .. }) => {
                match data {
                    Some(data) => hns.forget_named(&data),
                    None => hns.forget(),
                }
                return;
            }
            Change::Event(Event { event_type: Event::NETWORK_CREATE | Event::NETWORK_DELETE, .. }) => return hns.forget(),
            Change::Event(_) => {}
        }
    }
}

/// Reports what of a policy cannot be used, once: in the log, and as an event of the policy.
fn note_problems(events: &EventRecorder, reported: &mut BTreeMap<PolicyId, Vec<String>>, id: &PolicyId, problems: &[String]) {
    for problem in problems {
        if reported.get(id).is_some_and(|before| before.contains(problem)) {
            continue;
        }
        tracing::warn!("{id}: {problem}");
        events.event(&reference(id), EventType::Warning, "PolicyNotUnderstood", None, problem.clone());
    }
    if problems.is_empty() {
        reported.remove(id);
    } else {
        reported.insert(id.clone(), problems.to_vec());
    }
}

fn reference(id: &PolicyId) -> ObjectReference {
    let (version, kind, key) = match id {
        PolicyId::Namespaced(key) => ("networking.k8s.io/v1".to_owned(), "NetworkPolicy", key.clone()),
        PolicyId::Cluster(name) => (format!("{}/{}", kcnp::GROUP, kcnp::VERSION), kcnp::KIND.0, Key::cluster(&**name)),
    };
    let namespace = Some(key.ns).filter(|namespace| !namespace.is_empty());
    ObjectReference { api_version: Some(version), kind: Some(kind.to_owned()), namespace, name: Some(key.name), ..ObjectReference::default() }
}

#[cfg(test)]
mod tests;
