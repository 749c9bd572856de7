//! Reconcile loop: Nodes in; routes, network and configuration out; a periodic pass repairs drift.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use backoff::Backoff;
use cluster::{Informer, Selection};
use hcn::watch::{Change, Listener};
use hcn::{Event, HcnClient, SupportedFeatures};
use host::{HostRoute, Routes};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use thiserror_ext::AsReport as _;
use tokio::sync::{OnceCell, watch};
use tokio::time::Instant;

use crate::conf;
use crate::flannel::Mac;
use crate::mode::{self, Attachment, Desired, HostState, Inputs, Mode, NetworkFacts, PodSettings, Role, Settings};
use crate::problem::{Kind, Problem};
use crate::rows::NodeRow;
use crate::{apply, hns};

mod bgp;
mod report;

use bgp::Bgp;
use report::Reporter;

/// What the fabric of one host needs.
pub struct Config {
    /// The API.
    pub client: Client,
    /// What is known of that API server; shared by all parts of a node.
    pub api: cluster::ApiServer,
    pub settings: Settings,
    /// The host's routing table.
    pub routes: Arc<dyn Routes>,
    /// The Host Networking Service of a Windows node.
    pub hcn: Option<HcnClient>,
    /// How often everything is compared with the host.
    pub full_pass: Duration,
    /// What happens in the Host Networking Service; without it only the periodic pass finds what is gone.
    pub changes: Option<Listener>,
    /// Where progress is reported.
    pub status: Option<watch::Sender<Status>>,
    /// Where facts of the network are published, once it exists, for the other parts of the node.
    pub facts: Option<watch::Sender<Option<NetworkFacts>>>,
}

/// How far the fabric is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Pods can be attached: the network exists and the CNI configuration is written. Always true without pods.
    pub ready: bool,
    /// This node's pod CIDR, once it has one.
    pub pod_cidr: Option<IpNet>,
    /// What is wrong, one sentence each with its way out.
    pub problems: Vec<Problem>,
}

/// What one pass reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Outcome {
    /// See [`Status`].
    ready: bool,
    problems: Vec<Problem>,
    /// The nodes to whose pods this host has routes.
    reached: BTreeSet<String>,
    /// Nothing is left to do.
    done: bool,
    /// The routes of others before the adapter got its switch.
    before_switch: Option<Vec<HostRoute>>,
}

impl Outcome {
    /// The same, with the name of the node in what is wrong with the host itself: logs of many nodes are read together.
    fn named(mut self, settings: &Settings) -> Self {
        if matches!(settings.role, Role::Node(_)) {
            for problem in self.problems.iter_mut().filter(|problem| problem.node.is_none()) {
                problem.text = format!("node {}: {}", settings.node_name, problem.text);
            }
        }
        self
    }
}

/// How long routes of others are looked after once the adapter has got its switch. HNS answers first and moves addresses for seconds.
const UNSETTLED: Duration = Duration::from_secs(60);

/// Routes of others that the adapter must not lose over getting its switch.
struct Unsettled {
    routes: Vec<HostRoute>,
    until: Instant,
}

/// From this version on, HNS takes the MTU of an endpoint's interface (schema 2.4, Windows Server 1903).
const HNS_SETS_MTU: hcn::HnsVersion = hcn::HnsVersion::new(10, 0);

/// Keeps the pod network of this node until `shutdown` completes. Routes, network and configuration stay: pods outlive
/// a restart.
pub async fn run(mut config: Config, shutdown: impl Future<Output = ()>) {
    let nodes = Informer::start(Api::<Node>::all(config.client.clone()), Selection::all().of(&config.api), NodeRow::of);
    let status = config.status.clone().unwrap_or_else(|| watch::Sender::new(Status::default()));
    let changes = config.changes.take();
    let reporter = Reporter::new(config.client.clone(), &config.settings.node_name, config.full_pass);
    let fabric = Fabric { config, nodes, status, reporter, unsettled: None, features: OnceCell::new() };
    tokio::pin!(shutdown);
    tokio::select! {
        () = fabric.drive(changes) => {}
        () = &mut shutdown => {}
    }
}

/// What was made for this node's pods.
#[derive(Clone, Copy, Debug, Default)]
struct Network {
    /// Pods can be attached.
    attachable: bool,
    /// The adapter may have got its switch.
    made_switch: bool,
}

struct Fabric {
    config: Config,
    nodes: Informer<NodeRow>,
    status: watch::Sender<Status>,
    reporter: Reporter,
    unsettled: Option<Unsettled>,
    /// Of the Host Networking Service.
    features: OnceCell<SupportedFeatures>,
}

impl Fabric {
    async fn drive(mut self, mut changes: Option<Listener>) {
        let mut changed = self.nodes.changed();
        // With half the nodes known, the routes of the others would be taken down.
        self.nodes.synced().await;
        let mut bgp = Bgp::of(&self.config.settings);
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
        loop {
            let wait = if self.pass(&mut bgp).await {
                backoff.reset();
                self.config.full_pass
            } else {
                backoff.next_delay().min(self.config.full_pass)
            };
            let next = Instant::now() + wait;
            tokio::select! {
                _ = changed.changed() => {}
                () = self.lost(&mut changes) => backoff.reset(),
                () = Bgp::changed(&mut bgp) => {}
                () = tokio::time::sleep_until(next) => {}
            }
        }
    }

    /// Waits until the network or the host's endpoint may be gone.
    async fn lost(&self, changes: &mut Option<Listener>) {
        let Some(changes) = changes else { return std::future::pending().await };
        let Role::Node(pods) = &self.config.settings.role else { return std::future::pending().await };
        let host = hns::Desired::endpoint_id(&pods.cluster_uid, &pods.network_name).to_string();
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
    async fn pass(&mut self, bgp: &mut Option<Bgp>) -> bool {
        let nodes: BTreeMap<String, NodeRow> = self.nodes.snapshot().into_iter().map(|(key, row)| (key.name, (*row).clone())).collect();
        let pod_cidr = nodes.get(&self.config.settings.node_name).and_then(NodeRow::pod_cidr);
        let outcome = self.carry_out(&nodes, pod_cidr, bgp).await.named(&self.config.settings);
        self.reporter.tell(&self.config.settings, &nodes, &outcome).await;
        let Outcome { ready, problems, done, before_switch, .. } = outcome;
        if let Some(routes) = before_switch {
            self.unsettled = Some(Unsettled { routes, until: Instant::now() + UNSETTLED });
        }
        self.unsettled.take_if(|unsettled| unsettled.until <= Instant::now());
        self.report(Status { ready, pod_cidr, problems });
        done && self.unsettled.is_none()
    }

    /// Observes, decides and applies.
    async fn carry_out(&self, nodes: &BTreeMap<String, NodeRow>, pod_cidr: Option<IpNet>, bgp: &mut Option<Bgp>) -> Outcome {
        let settings = &self.config.settings;
        let not_seen = |problem: String| {
            let problems = vec![Problem::failed(problem)];
            Outcome { ready: self.status.borrow().ready, problems, ..Outcome::default() }
        };
        let observed = match self.config.routes.list() {
            Ok(observed) => observed,
            Err(error) => return not_seen(error.to_report_string()),
        };
        let known = match bgp {
            Some(bgp) => bgp.known(&self.config.client, &self.config.api, self.config.full_pass).await,
            None => None,
        };
        let state = match self.host_state(nodes, &observed).await {
            Ok(state) => HostState { bgp: known, ..state },
            Err(problem) => return not_seen(problem),
        };
        let desired = mode::desired(&Inputs { settings, nodes, routes: &observed, state: &state });
        let mut problems = desired.problems.clone();
        let mut done = self.keep_ways(&desired, &observed, &mut problems);
        if let Some(bgp) = bgp {
            bgp.carry_out(desired.speaker.as_ref(), &observed);
            done &= desired.speaker.is_some();
        }
        if let Some(unsettled) = &self.unsettled {
            problems.extend(apply::routes::restore(&*self.config.routes, &unsettled.routes, &observed));
        }
        let mut before_switch = None;
        let mut ready = matches!(settings.role, Role::Host { .. } | Role::Router);
        match self.keep_network(&desired).await {
            Ok(Network { attachable, made_switch }) => {
                let others = || observed.iter().filter(|route| !route.ours && route.via.is_some()).cloned().collect();
                before_switch = made_switch.then(others);
                ready |= attachable;
                // The MAC of a new network is read by the next pass.
                done &= settings.mode != Mode::Vxlan || desired.hns.is_none() || state.dr_mac.is_some();
                if attachable {
                    self.publish_facts(pod_cidr, &state, &desired);
                }
            }
            Err(problem) => {
                problems.push(problem);
                done = false;
            }
        }
        // Announced last: peers send as soon as they know.
        if let Some(present) = nodes.get(&settings.node_name).filter(|_| ready && done) {
            match apply::publish::announce(&self.config.client, &settings.node_name, &desired.annotations, present).await {
                Ok(true) => tracing::info!("announced this node in its annotations"),
                Ok(false) => {}
                Err(error) => {
                    problems.push(Problem::failed(format!(
                        "cannot annotate node {}: {}; let the node patch its own Node",
                        settings.node_name,
                        error.to_report_string()
                    )));
                    done = false;
                }
            }
        }
        // A neighbour may come back with the adapter's address.
        done &= problems.iter().all(|problem| problem.kind != Kind::NextHopUnreachable);
        let reached = desired.routes.into_values().map(|hop| hop.node).collect();
        Outcome { ready, problems, reached, done, before_switch }
    }

    /// What the mode needs to know of the host beside its routes.
    async fn host_state(&self, nodes: &BTreeMap<String, NodeRow>, observed: &[HostRoute]) -> Result<HostState, String> {
        let mut state = HostState::default();
        let address = match &self.config.settings.role {
            Role::Node(_) => nodes.get(&self.config.settings.node_name).and_then(|row| row.address(row.pod_cidr()?)),
            Role::Host { address } => Some(*address),
            Role::Router => None,
        };
        state.uplink = match address {
            Some(address) => apply::routes::uplink(&*self.config.routes, observed, address).map_err(|error| error.to_report_string())?,
            None => None,
        };
        if let (Role::Node(pods), Some(hcn)) = (&self.config.settings.role, &self.config.hcn)
            && let Attachment::Windows { .. } = pods.attachment
        {
            state.dr_mac = if self.config.settings.mode == Mode::Vxlan { dr_mac(hcn, pods).await? } else { None };
            // Asked once: a service that does not answer must not take IPv6 from pods.
            let features = self.features.get_or_try_init(|| hcn.features()).await.map_err(|error| error.to_report_string())?;
            (state.sets_mtu, state.hns_ipv6, state.hns_dsr) = (features.version >= HNS_SETS_MTU, features.ipv6_dual_stack, features.dsr);
        }
        Ok(state)
    }

    /// The tunnel and the routes. A peer is known to the tunnel before it is routed to, and forgotten after.
    fn keep_ways(&self, desired: &Desired, observed: &[HostRoute], problems: &mut Vec<Problem>) -> bool {
        let mut done = true;
        let tunnel = match apply::open_tunnel(desired) {
            Ok(tunnel) => tunnel,
            Err(problem) => {
                problems.push(Problem::failed(problem));
                done = false;
                None
            }
        };
        let (wrong, all) = apply::routes::keep(&*self.config.routes, &desired.routes, observed, tunnel);
        problems.extend(wrong);
        if let Err(problem) = apply::trim_tunnel(desired, tunnel) {
            problems.push(Problem::failed(problem));
            done = false;
        }
        done && all
    }

    fn publish_facts(&self, pod_cidr: Option<IpNet>, state: &HostState, desired: &Desired) {
        let (Some(facts), Role::Node(pods)) = (&self.config.facts, &self.config.settings.role) else { return };
        let overlay = self.config.settings.mode == Mode::Vxlan && matches!(pods.attachment, Attachment::Windows { .. });
        let next = NetworkFacts {
            hns_network: pods.network_name.clone(),
            source_vip: pod_cidr.filter(|_| overlay).map(conf::source_vip),
            dr_mac: state.dr_mac,
            mtu: desired.mtu,
        };
        facts.send_if_modified(|held| {
            let differs = held.as_ref() != Some(&next);
            *held = Some(next);
            differs
        });
    }

    /// Makes the network of this node's pods, then its CNI configuration.
    async fn keep_network(&self, desired: &Desired) -> Result<Network, Problem> {
        let mut kept = Network::default();
        let Role::Node(pods) = &self.config.settings.role else { return Ok(kept) };
        if let Some(network) = &desired.hns {
            let none = || Problem::failed("the pod network needs the Host Networking Service, which this host does not have");
            let hcn = self.config.hcn.as_ref().ok_or_else(none)?;
            let hide = || {
                if let Err(error) = apply::cni::remove(&pods.cni_conf_dir) {
                    tracing::warn!(error = %error.as_report(), "cannot remove the CNI configuration");
                }
            };
            let ensured = apply::hns::ensure(hcn, network, hide).await.map_err(|error| Problem::here(error.kind(), error.to_report_string()));
            kept.made_switch = ensured?.made_switch;
        }
        #[cfg(target_os = "linux")]
        if !desired.masquerade.is_empty() {
            apply::forwarding::ensure(&desired.masquerade).map_err(|error| Problem::failed(error.to_report_string()))?;
        }
        let Some(document) = &desired.cni else { return Ok(kept) };
        if let (Some(path), Some(text)) = (&pods.subnet_env, &desired.subnet_env) {
            apply::cni::write_subnet_env(path, text).map_err(|error| Problem::failed(error.to_report_string()))?;
        }
        if apply::cni::write(&pods.cni_conf_dir, document).map_err(|error| Problem::failed(error.to_report_string()))? {
            tracing::info!(network = pods.network_name, "wrote the CNI configuration");
        }
        Ok(Network { attachable: true, ..kept })
    }

    fn report(&self, next: Status) {
        self.status.send_if_modified(|status| {
            // Every node is without a pod CIDR for a moment: the reporter says when it lasts.
            let new = |problem: &&Problem| problem.kind != Kind::CidrMissing && !status.problems.contains(problem);
            for problem in next.problems.iter().filter(new) {
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

/// The MAC of the distributed router of this node's network, where that exists.
async fn dr_mac(hcn: &HcnClient, pods: &PodSettings) -> Result<Option<Mac>, String> {
    let network = hcn.network_by_name(&pods.network_name).await.map_err(|error| error.to_report_string())?;
    Ok(network.iter().flat_map(|network| &network.policies).find_map(hcn::NetworkPolicy::as_dr_mac_address).and_then(|mac| mac.parse().ok()))
}

/// Whether an event's data carry that GUID, which HNS prints in either case.
fn names(data: &str, guid: &str) -> bool {
    data.to_ascii_lowercase().contains(guid)
}

#[cfg(test)]
mod tests;
