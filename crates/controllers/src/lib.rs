//! The embedded scheduler and controllers.
//!
//! Each controller is one loop of the same shape ([`runner`]): informers name keys, a key's work observes, plans (pure, table-tested,
//! printable), applies and reports. Tasks: one watch per kind (of the given [`cluster::ApiServer`], shared with other parts of the process),
//! one loop per controller. Inputs: an API client and the watches, nothing else. Guarantees: any of them may be stopped at any point and started again; nothing is kept but in the
//! API. [`run`] runs the controllers, [`run_scheduler`] the scheduler; both until they are stopped.

mod autoscaler;
mod bootstrap;
mod certificates;
mod cronjob;
mod daemonset;
mod deployment;
mod discovery;
mod disruption;
mod endpoints;
mod garbage;
mod job;
mod load_balancers;
mod namespaces;
mod node_ipam;
mod node_lifecycle;
mod ownership;
mod pod_gc;
mod pods;
mod quota;
mod replicaset;
mod revisions;
mod runner;
mod scheduler;
mod service_accounts;
mod service_cidrs;
mod statefulset;
mod storage;
#[cfg(test)]
mod testing;
mod ttl_after_finished;
mod view;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use cluster::{ApiServer, Client};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use autoscaler::PERIOD as AUTOSCALER_PERIOD;
pub use node_ipam::{NodeMasks, NodeRanges, NodeRangesError};
pub use scheduler::{SchedulerConfig, SchedulerConfigError};
pub use storage::local::LocalVolumes;

/// Settings of the controllers.
#[derive(Debug, Clone)]
pub struct Config {
    /// The watches, shared with the other parts of this process.
    pub api: ApiServer,
    /// Addresses of all pods, and each node's share of them.
    pub node_ranges: NodeRanges,
    /// The same of hollow nodes (label `mullion.io/hollow`), where there are some.
    pub hollow_ranges: Option<NodeRanges>,
    /// The API server's certificate authority, for pods.
    pub root_ca_pem: String,
    /// Addresses for Services of type LoadBalancer; without them somebody else sees to such Services.
    pub load_balancer_cidr: Option<ipnet::Ipv4Net>,
}

/// How patient the controllers are.
#[derive(Clone)]
pub struct Timing {
    /// How long a node may be silent before it counts as lost (upstream: `--node-monitor-grace-period`).
    pub node_grace: Duration,
    /// The clock that silence is measured by.
    pub clock: Clock,
}

/// What time it is, on a clock that never goes back.
pub type Clock = Arc<dyn Fn() -> Instant + Send + Sync>;

impl Default for Timing {
    fn default() -> Self {
        Self { node_grace: Duration::from_secs(50), clock: Arc::new(Instant::now) }
    }
}

/// Runs all controllers until `shutdown`.
pub async fn run(client: Client, config: Config, shutdown: CancellationToken) {
    run_with(client, config, Timing::default(), shutdown).await;
}

/// Like [`run`], with other timing than upstream's.
pub async fn run_with(client: Client, config: Config, timing: Timing, shutdown: CancellationToken) {
    let views = view::Views::start(&client, &config.api);
    tokio::select! {
        () = views.synced() => {}
        () = shutdown.cancelled() => return,
    }
    // A task each, so that no controller waits for another; dropping the set ends them.
    let mut tasks = JoinSet::new();
    tasks.spawn(deployment::run(client.clone(), views.clone(), shutdown.clone()));
    tasks.spawn(daemonset::run(client.clone(), views.clone(), shutdown.clone()));
    tasks.spawn(replicaset::run(client.clone(), views.clone(), shutdown.clone()));
    tasks.spawn(replicaset::run_replication_controllers(client.clone(), views.clone(), shutdown.clone()));
    tasks.spawn(statefulset::run(client.clone(), views.clone(), shutdown.clone()));
    tasks.spawn(job::run(client.clone(), views.clone(), shutdown.clone()));
    tasks.spawn(cronjob::run(client.clone(), views.clone(), shutdown.clone()));
    tasks.spawn(ttl_after_finished::run(client.clone(), views.clone(), shutdown.clone()));
    tasks.spawn(endpoints::run(client.clone(), views.clone(), shutdown.clone()));
    tasks.spawn(endpoints::mirror::run(client.clone(), views.clone(), shutdown.clone()));
    tasks.spawn(disruption::run(client.clone(), views.clone(), shutdown.clone()));
    tasks.spawn(storage::run(client.clone(), views.clone(), shutdown.clone()));
    tasks.spawn(service_accounts::run(client.clone(), views.clone(), config.root_ca_pem, shutdown.clone()));
    tasks.spawn(node_ipam::run(client.clone(), views.clone(), (config.node_ranges, config.hollow_ranges), shutdown.clone()));
    tasks.spawn(node_lifecycle::run(client.clone(), views.clone(), timing, shutdown.clone()));
    tasks.spawn(namespaces::run(client.clone(), views.clone(), shutdown.clone()));
    tasks.spawn(quota::run(client.clone(), views.clone(), shutdown.clone()));
    tasks.spawn(service_cidrs::run(client.clone(), config.api.clone(), service_cidrs::GRACE, shutdown.clone()));
    tasks.spawn(bootstrap::run(client.clone(), config.api.clone(), shutdown.clone()));
    if let Some(range) = config.load_balancer_cidr {
        tasks.spawn(load_balancers::run(client.clone(), config.api.clone(), range, shutdown.clone()));
    }
    tasks.spawn(pod_gc::run(client.clone(), views, shutdown.clone()));
    tasks.spawn(garbage::run(client, config.api, shutdown));
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            tracing::error!(%error, "a controller ended");
        }
    }
}

/// Runs the scheduler with these profiles until `shutdown`, on the watches of `api`.
pub async fn run_scheduler(client: Client, api: ApiServer, config: SchedulerConfig, shutdown: CancellationToken) {
    scheduler::run(client, &api, config, shutdown).await;
}

/// Scales workloads by metrics until `shutdown`; each autoscaler is looked at once a `period`.
pub async fn run_autoscaler(client: Client, api: ApiServer, period: Duration, shutdown: CancellationToken) {
    autoscaler::run(client, api, period, shutdown).await;
}

/// Approves nodes' certificate signing requests, signs those that are approved, and deletes old ones until `shutdown`.
pub async fn run_certificates(client: Client, api: ApiServer, authority: Arc<pki::Ca>, shutdown: CancellationToken) {
    certificates::run(client, api, authority, shutdown).await;
}

/// Publishes the storage class `mullion-local` and makes its volumes on `disks` until `shutdown`.
pub async fn run_local_volumes(client: Client, api: ApiServer, disks: Arc<dyn LocalVolumes>, shutdown: CancellationToken) {
    storage::local::run(client, &api, disks, shutdown).await;
}

/// The server's own words for a refusal, else what the client says.
fn refusal(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// Whether an object was refused because its namespace is going away.
fn is_namespace_terminating(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let causes = status.details.as_ref().map(|details| details.causes.as_slice()).unwrap_or_default();
    causes.iter().any(|cause| cause.reason == "NamespaceTerminating")
}
