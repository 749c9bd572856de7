//! Reconcile loop: Nodes in; routes, network and configuration out; a periodic pass repairs drift.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use backoff::Backoff;
use cluster::{Informer, Selection};
use hcn::watch::{Change, Listener};
use hcn::{Event, HcnClient};
use host::{HostRoute, Routes};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use thiserror_ext::AsReport as _;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::routes::{self, Step};
use crate::rows::NodeRow;
use crate::{conf, hns};

/// How pods of this node are attached.
pub enum PodNetwork {
    /// By an HNS L2Bridge network.
    Windows {
        /// The service.
        hcn: HcnClient,
        /// The physical adapter's alias, for example `Ethernet`.
        adapter: String,
        /// Pods reach themselves through their Services, where HNS has direct server return.
        loopback_dsr: bool,
    },
    /// By a Linux bridge of this name, in this process's network namespace.
    #[cfg(target_os = "linux")]
    Linux { bridge: String },
    /// Not at all: only routes are kept. For a host without pods that must reach them, such as the control plane's.
    None,
}

/// What the fabric of one node needs.
pub struct Config {
    /// The API.
    pub client: Client,
    /// What is known of that API server; shared by all parts of a node.
    pub api: cluster::ApiServer,
    /// This node's name.
    pub node_name: String,
    /// The cluster's identity (UID of namespace `kube-system`), which marks what is ours.
    pub cluster_uid: String,
    /// The host's routing table.
    pub routes: Arc<dyn Routes>,
    /// How pods are attached.
    pub pod_network: PodNetwork,
    /// Name of the network, in CNI and HNS.
    pub network_name: String,
    /// Every pod's address lies here.
    pub cluster_cidr: IpNet,
    /// Every ClusterIP lies here.
    pub service_cidr: IpNet,
    /// The network of the nodes.
    pub lan: IpNet,
    /// Cluster DNS.
    pub dns_ip: IpAddr,
    /// For example `cluster.local`.
    pub cluster_domain: String,
    /// Where the CNI configuration goes.
    pub cni_conf_dir: PathBuf,
    /// Where host-local keeps reservations; absent means its default.
    pub ipam_dir: Option<PathBuf>,
    /// How often everything is compared with the host.
    pub full_pass: Duration,
    /// What happens in the Host Networking Service; without it only the periodic pass finds what is gone.
    pub changes: Option<Listener>,
    /// Where progress is reported.
    pub status: Option<watch::Sender<Status>>,
}

/// How far the fabric is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Pods can be attached: the network exists and the CNI configuration is written. Always true without pods.
    pub ready: bool,
    /// This node's pod CIDR, once it has one.
    pub pod_cidr: Option<IpNet>,
    /// What is wrong, one sentence each with its way out.
    pub problems: Vec<String>,
}

/// Keeps the pod network of this node until `shutdown` completes. Routes, network and configuration stay: pods outlive
/// a restart.
pub async fn run(mut config: Config, shutdown: impl Future<Output = ()>) {
    let nodes = Informer::start(Api::<Node>::all(config.client.clone()), Selection::all().of(&config.api), NodeRow::of);
    let status = config.status.clone().unwrap_or_else(|| watch::Sender::new(Status::default()));
    let changes = config.changes.take();
    let fabric = Fabric { config, nodes, status };
    tokio::pin!(shutdown);
    tokio::select! {
        () = fabric.drive(changes) => {}
        () = &mut shutdown => {}
    }
}

struct Fabric {
    config: Config,
    nodes: Informer<NodeRow>,
    status: watch::Sender<Status>,
}

impl Fabric {
    async fn drive(mut self, mut changes: Option<Listener>) {
        let mut changed = self.nodes.changed();
        // With half the nodes known, the routes of the others would be taken down.
        self.nodes.synced().await;
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
        loop {
            let wait = if self.pass().await {
                backoff.reset();
                self.config.full_pass
            } else {
                backoff.next_delay().min(self.config.full_pass)
            };
            let next = Instant::now() + wait;
            tokio::select! {
                _ = changed.changed() => {}
                () = self.lost(&mut changes) => backoff.reset(),
                () = tokio::time::sleep_until(next) => {}
            }
        }
    }

    /// Waits until the network or the host's endpoint may be gone.
    async fn lost(&self, changes: &mut Option<Listener>) {
        let Some(changes) = changes else { return std::future::pending().await };
        let host = hns::Desired::endpoint_id(&self.config.cluster_uid, &self.config.network_name).to_string();
        loop {
            match changes.next().await {
                Change::All => return,
                // Pods' endpoints come and go.
                Change::Event(Event { event_type: Event::ENDPOINT_DETACHED, data, .. }) if data.as_ref().is_some_and(|data| !names(data, &host)) => {}
                Change::Event(Event { event_type: Event::NETWORK_CREATE | Event::NETWORK_DELETE | Event::ENDPOINT_DETACHED, .. }) => return,
                Change::Event(_) => {}
            }
        }
    }

    /// One pass over everything; true when nothing is left to do.
    async fn pass(&mut self) -> bool {
        let rows: BTreeMap<String, NodeRow> = self.nodes.snapshot().into_iter().map(|(key, row)| (key.name, (*row).clone())).collect();
        let (mut problems, mut done) = self.keep_routes(&rows);
        let own = rows.get(&self.config.node_name);
        let pod_cidr = own.and_then(NodeRow::pod_cidr);
        let mut ready = matches!(self.config.pod_network, PodNetwork::None);
        if let (false, Some(pod_cidr), Some(node_ip)) = (ready, pod_cidr, own.and_then(|row| row.address)) {
            match self.keep_network(pod_cidr, node_ip).await {
                Ok(()) => ready = true,
                Err(problem) => {
                    problems.push(problem);
                    done = false;
                }
            }
        }
        self.report(Status { ready, pod_cidr, problems });
        done
    }

    fn keep_routes(&self, rows: &BTreeMap<String, NodeRow>) -> (Vec<String>, bool) {
        let table = &self.config.routes;
        let observed = match table.list() {
            Ok(observed) => observed,
            Err(error) => return (vec![error.to_report_string()], false),
        };
        let plan = routes::plan(&self.config.node_name, rows, self.config.cluster_cidr, &observed);
        let mut problems = plan.problems;
        let mut done = true;
        for step in plan.steps {
            let applied = match &step {
                Step::Add { route, .. } => table.add(&self.on_link(route, &observed)),
                // Never without a route: Linux replaces in one step, and then the old one is gone already.
                Step::Replace { old, route, .. } => table.add(&self.on_link(route, &observed)).and_then(|()| table.delete(old)),
                Step::Delete { route } => table.delete(route),
            };
            match applied {
                Ok(()) => tracing::info!("route {step}"),
                Err(error) => {
                    problems.push(error.to_report_string());
                    done = false;
                }
            }
        }
        (problems, done)
    }

    /// The route with the interface of the nodes' network, which Windows requires.
    fn on_link(&self, route: &HostRoute, observed: &[HostRoute]) -> HostRoute {
        let link = route.via.and_then(|via| observed.iter().filter(|o| o.via.is_none() && o.dst.contains(&via)).max_by_key(|o| o.dst.prefix_len()));
        HostRoute { oif: link.map_or(0, |link| link.oif), ..route.clone() }
    }

    async fn keep_network(&self, pod_cidr: IpNet, node_ip: IpAddr) -> Result<(), String> {
        let config = &self.config;
        let inputs = conf::Inputs {
            name: config.network_name.clone(),
            pod_cidr,
            node_ip,
            cluster_cidr: config.cluster_cidr,
            service_cidr: config.service_cidr,
            lan: config.lan,
            dns_ip: config.dns_ip,
            domain: config.cluster_domain.clone(),
            ipam_dir: config.ipam_dir.clone(),
            loopback_dsr: matches!(config.pod_network, PodNetwork::Windows { loopback_dsr: true, .. }),
        };
        let document = match &config.pod_network {
            PodNetwork::Windows { hcn, adapter, .. } => {
                let desired = hns::Desired::new(&config.cluster_uid, &config.network_name, adapter, pod_cidr);
                let hide = || {
                    if let Err(error) = conf::remove(&config.cni_conf_dir) {
                        tracing::warn!(error = %error.as_report(), "cannot remove the CNI configuration");
                    }
                };
                hns::ensure(hcn, &desired, hide).await.map_err(|e| e.to_report_string())?;
                conf::windows(&inputs)
            }
            #[cfg(target_os = "linux")]
            PodNetwork::Linux { bridge } => {
                crate::linux::ensure(pod_cidr, config.cluster_cidr).map_err(|e| e.to_report_string())?;
                conf::linux(&inputs, bridge)
            }
            PodNetwork::None => return Ok(()),
        };
        if conf::write(&config.cni_conf_dir, &document).map_err(|e| e.to_report_string())? {
            tracing::info!(network = config.network_name, %pod_cidr, "wrote the CNI configuration");
        }
        Ok(())
    }

    fn report(&self, next: Status) {
        self.status.send_if_modified(|status| {
            for problem in next.problems.iter().filter(|problem| !status.problems.contains(problem)) {
                tracing::warn!("{problem}");
            }
            if next.ready && !status.ready {
                tracing::info!("the pod network is ready");
            }
            let differs = *status != next;
            *status = next;
            differs
        });
    }
}

/// Whether an event's data carry that GUID, which HNS prints in either case.
fn names(data: &str, guid: &str) -> bool {
    data.to_ascii_lowercase().contains(guid)
}

#[cfg(test)]
mod tests;
