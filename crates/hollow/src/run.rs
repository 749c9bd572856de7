//! The hollow nodes of a process: an agent each.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use cluster::{ApiServer, Informer, Key, Selection};
use host::{HostFacts, HostRoot, Space};
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube_rules::{NodeOs, node_labels};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::plan::{NodePlan, user};
use crate::pool::Pool;
use crate::runtime::Runtime;

/// What all hollow nodes have.
pub struct Config {
    /// The connections to the API server.
    pub pool: Arc<Pool>,
    pub nodes: Vec<NodePlan>,
    pub os: NodeOs,
    pub capacity: kubelet::Capacity,
    pub eviction: kubelet::Eviction,
    /// The cluster's DNS server.
    pub cluster_dns: IpAddr,
    pub cluster_domain: String,
    pub version: String,
}

/// The drive of a node.
const DRIVE: Space = Space { capacity: 100 << 30, available: 100 << 30, inodes: 0, inodes_free: 0 };

/// Why the hollow nodes cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum HollowError {
    #[error("the agent of the hollow node {node} ended")]
    Agent { node: String, source: kubelet::RunError },
    #[error("the agent of a hollow node failed")]
    Failed(#[from] tokio::task::JoinError),
}

/// Runs the nodes until `shutdown`; their pods end with the process.
///
/// # Errors
/// When one of them cannot start or ends.
pub async fn run(config: Config, shutdown: CancellationToken) -> Result<(), HollowError> {
    let mut tasks = JoinSet::new();
    for (number, node) in config.nodes.iter().enumerate() {
        let client = config.pool.client(number, &user(&node.name));
        let api = ApiServer::default();
        let runtime = Arc::new(Runtime::default());
        let agent = agent(&config, node, client.clone(), &api, &runtime);
        let (name, end) = (node.name.clone(), shutdown.clone());
        tasks.spawn(async move {
            tokio::select! {
                ended = Box::pin(kubelet::run(agent, end)) => ended.map_err(|source| HollowError::Agent { node: name, source }),
                never = keep_network(client, api, name.clone(), runtime) => match never {},
            }
        });
    }
    tracing::info!(nodes = config.nodes.len(), "hollow nodes start");
    drop(config);
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

/// The configuration of a node's agent.
fn agent(config: &Config, node: &NodePlan, client: kube::Client, api: &ApiServer, runtime: &Arc<Runtime>) -> kubelet::Config {
    kubelet::Config {
        client,
        api: api.clone(),
        node_name: node.name.clone(),
        os: config.os,
        node_ips: vec![node.address.into()],
        find_address: None,
        api_host: String::new(),
        cri: cri::Client::in_process("hollow", runtime.clone()),
        root: Arc::new(HostRoot::memory(config.os, DRIVE)),
        root_dir: "/var/lib/kubelet".to_owned(),
        facts: HostFacts::simulated(config.os, &node.machine_id.to_string(), &node.boot_id.to_string()),
        capacity: config.capacity,
        huge_pages: BTreeMap::new(),
        is_machine: false,
        reserved: BTreeMap::new(),
        groups: kubelet::GroupSettings::default(),
        labels: BTreeMap::from([(node_labels::HOLLOW.to_owned(), "true".to_owned())]),
        taints: Vec::new(),
        hyper_v_container: false,
        eviction: config.eviction.clone(),
        shutdown: None,
        logs: kubelet::LogRotation::default(),
        dead_containers: kubelet::DeadContainers::default(),
        images: kubelet::ImageCollection { high_percent: 100, ..kubelet::ImageCollection::default() },
        image_pulls: kubelet::ImagePulls::default(),
        image_credentials: kubelet::ImageCredentials::default(),
        polls: kubelet::Polls::default(),
        static_pods: kubelet::StaticPods::default(),
        pod_logs_dir: "/var/log/pods".to_owned(),
        volume_plugin_dir: "/usr/libexec/kubernetes/kubelet-plugins/volume/exec".to_owned(),
        device_plugins: false,
        ids_per_pod: 65536,
        registration: kubelet::Registration::default(),
        containers: kubelet::ContainerSettings::default(),
        debugging: true,
        system_logs: kubelet::SystemLogs { files: true, queries: false },
        cluster_dns: vec![config.cluster_dns],
        cluster_domain: config.cluster_domain.clone(),
        resolver: kubelet::Resolver { servers: vec![config.cluster_dns.to_string()], ..kubelet::Resolver::default() },
        version: config.version.clone(),
        configuration: serde_json::Value::Null,
        host_network: None,
        hcn: None,
        network_gate: None,
        client_certificate: None,
        server: None,
        healthz: None,
    }
}

/// Hands the node's pod CIDR to the runtime: the part that the pod network has on other nodes. The watch is that of the agent.
async fn keep_network(client: kube::Client, api: ApiServer, node: String, runtime: Arc<Runtime>) -> std::convert::Infallible {
    let this = Selection::fields(format!("metadata.name={node}")).of(&api);
    let cidrs = Informer::start(Api::<Node>::all(client), this, pod_cidr);
    let mut changed = cidrs.changed();
    loop {
        runtime.set_network(cidrs.get(Key::cluster(&node)).map(|cidr| *cidr));
        if changed.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

/// The node's share of the pods' IPv4 network.
fn pod_cidr(node: &Node) -> Option<Ipv4Net> {
    let spec = node.spec.as_ref()?;
    let all = spec.pod_cidrs.iter().flatten().chain(&spec.pod_cidr);
    all.filter_map(|cidr| cidr.parse().ok()).next()
}
