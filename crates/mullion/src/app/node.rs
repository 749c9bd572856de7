//! `mullion node`: node agent, service proxy and pod network of one node in one process, over one API client.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use cluster::ApiServer;
use hcn::HcnClient;
use hcn::watch::{Timing, Watch};
use host::{HostFacts, HostRoot, NodeOs};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{ListParams, ObjectList};
use kube::core::PartialObjectMeta;
use tokio_util::sync::CancellationToken;

use crate::cli::{NodeArgs, Part};
use crate::exit::Failure;

/// The version that nodes and the API server report: upstream's whose behaviour is followed, and ours after the plus.
pub const VERSION: &str = concat!("v1.36.2+mullion.", env!("CARGO_PKG_VERSION"));

/// Name of the pod network, in CNI and HNS.
pub const NETWORK: &str = "mullion";

/// How often proxy and fabric compare everything with the host.
pub const FULL_PASS: Duration = Duration::from_secs(30);

/// Runs a node until it is told to end; pods stay.
pub fn main(args: Box<NodeArgs>) -> Result<(), Failure> {
    crate::init_logs();
    crate::agent_runtime()?.block_on(run(*args)).map_err(Failure::from)
}

async fn run(args: NodeArgs) -> Result<()> {
    cluster::install_crypto_provider();
    let client = cluster::client_from_kubeconfig(&args.kubeconfig).await?;
    let api = ApiServer::default();
    let shutdown = CancellationToken::new();
    // One client and one watch for all parts: they share the bound on calls, and agree on whether HNS answers.
    let hcn = match args.os {
        NodeOs::Windows { .. } => Some(hcn_client(&args)?),
        NodeOs::Linux => None,
    };
    let watched = [Part::Kubelet, Part::Fabric].iter().any(|part| !args.without.contains(part));
    let watch = hcn.clone().filter(|_| watched).map(|client| Watch::start(client, Timing::default()));
    let agent = async {
        if args.without.contains(&Part::Kubelet) {
            shutdown.cancelled().await;
            return Ok(());
        }
        let config = kubelet::Config { host_network: watch.as_ref().map(Watch::health), ..kubelet_config(&args, client.clone(), &api)? };
        kubelet::run(config, shutdown.clone()).await.context("the node agent ended")
    };
    let network = network(&args, client.clone(), &api, hcn, watch.as_ref(), &shutdown);
    let end = async {
        crate::told_to_end().await;
        tracing::info!(node = args.hostname_override, "ending; pods stay");
        shutdown.cancel();
    };
    let work = async { tokio::try_join!(agent, network).map(|_| ()) };
    tokio::pin!(work);
    tokio::select! {
        done = &mut work => done,
        () = end => work.await,
    }
}

/// Proxy and fabric: both mark what is theirs with the cluster's identity.
async fn network(
    args: &NodeArgs,
    client: kube::Client,
    api: &ApiServer,
    hcn: Option<HcnClient>,
    watch: Option<&Watch>,
    shutdown: &CancellationToken,
) -> Result<()> {
    let cluster_uid = tokio::select! {
        uid = cluster_uid(&client) => uid,
        () = shutdown.cancelled() => return Ok(()),
    };
    tracing::info!(node = args.hostname_override, cluster = cluster_uid, "the API server answers");
    let fabric = async {
        if !args.without.contains(&Part::Fabric) {
            let config = fabric_config(args, client.clone(), &cluster_uid, hcn.clone())?;
            let config = fabric::Config { api: api.clone(), news: watch.map(Watch::listen), ..config };
            fabric::run(config, shutdown.clone().cancelled_owned()).await;
        }
        Ok(())
    };
    let proxy = async {
        if !args.without.contains(&Part::Proxy) {
            let (status, metrics) = crate::kube_proxy::tell_for_node(args).await?;
            let config = proxy_config(args, client.clone(), &cluster_uid, hcn.clone())?;
            let config = service_proxy::Config { api: api.clone(), status: Some(status), metrics, ..config };
            service_proxy::run(config, shutdown.clone().cancelled_owned()).await;
        }
        Ok(())
    };
    tokio::try_join!(fabric, proxy).map(|_: ((), ())| ())
}

/// The client of this node's HNS.
fn hcn_client(args: &NodeArgs) -> Result<HcnClient> {
    Ok(match &args.hcn {
        Some(address) => HcnClient::connect(address)?,
        None => HcnClient::from_env()?,
    })
}

/// The identity of the cluster: the UID of namespace `kube-system`. Waits for an API server that is still starting.
async fn cluster_uid(client: &kube::Client) -> String {
    let namespaces = Api::<Namespace>::all(client.clone());
    let mut backoff = cluster::Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
    loop {
        // Listed, not read by name: the proxy's and fabric's role lets nodes list namespaces.
        let only = ListParams::default().fields("metadata.name=kube-system");
        let uid = |list: ObjectList<PartialObjectMeta<Namespace>>| list.items.into_iter().find_map(|namespace| namespace.metadata.uid);
        match namespaces.list_metadata(&only).await.map(uid) {
            Ok(Some(uid)) => return uid,
            Ok(None) => tracing::warn!("the cluster has no namespace kube-system yet"),
            Err(error) => tracing::warn!(%error, "the cluster's identity cannot be read yet"),
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

fn fabric_config(args: &NodeArgs, client: kube::Client, cluster_uid: &str, hcn: Option<HcnClient>) -> Result<fabric::Config> {
    let pod_network = match hcn {
        Some(hcn) => fabric::PodNetwork::Windows { hcn, adapter: args.adapter.clone(), loopback_dsr: args.loopback_dsr },
        None => linux_pod_network()?,
    };
    Ok(fabric::Config {
        client,
        api: ApiServer::default(),
        node_name: args.hostname_override.clone(),
        cluster_uid: cluster_uid.to_owned(),
        routes: routes()?,
        pod_network,
        network_name: NETWORK.to_owned(),
        cluster_cidr: args.cluster_cidr,
        service_cidr: args.service_cidr,
        lan: args.lan,
        dns_ip: args.cluster_dns,
        cluster_domain: args.cluster_domain.clone(),
        cni_conf_dir: args.cni_conf_dir.clone(),
        ipam_dir: args.ipam_dir.clone(),
        full_pass: FULL_PASS,
        set_condition: false,
        news: None,
        status: None,
    })
}

fn proxy_config(args: &NodeArgs, client: kube::Client, cluster_uid: &str, hcn: Option<HcnClient>) -> Result<service_proxy::Config> {
    let backend = match hcn {
        Some(client) => {
            let settings = service_proxy::hns::Settings { node_ips: vec![args.node_ip], ..service_proxy::hns::Settings::new(NETWORK) };
            service_proxy::BackendConfig::Hcn { client, settings }
        }
        None => linux_proxy(args)?,
    };
    Ok(service_proxy::Config { full_pass: FULL_PASS, ..service_proxy::Config::new(client, &args.hostname_override, cluster_uid, backend) })
}

#[cfg(target_os = "linux")]
fn routes() -> Result<Arc<dyn host::Routes>> {
    Ok(Arc::new(host::LinuxRoutes::open()?))
}

#[cfg(windows)]
fn routes() -> Result<Arc<dyn host::Routes>> {
    Ok(Arc::new(host::WindowsRoutes))
}

#[cfg(target_os = "linux")]
fn linux_pod_network() -> Result<fabric::PodNetwork> {
    Ok(fabric::PodNetwork::Linux { bridge: "cni0".to_owned() })
}

#[cfg(not(target_os = "linux"))]
fn linux_pod_network() -> Result<fabric::PodNetwork> {
    bail!("--os linux needs a Linux machine")
}

#[cfg(target_os = "linux")]
fn linux_proxy(args: &NodeArgs) -> Result<service_proxy::BackendConfig> {
    use service_proxy::nftables::{Pods, Settings};
    let settings = Settings { masquerade_leaving: true, ..Settings::new(vec![args.node_ip], Pods::Nets(vec![args.cluster_cidr])) };
    Ok(service_proxy::BackendConfig::Nftables(settings))
}

#[cfg(not(target_os = "linux"))]
fn linux_proxy(_: &NodeArgs) -> Result<service_proxy::BackendConfig> {
    bail!("--os linux needs a Linux machine")
}

fn kubelet_config(args: &NodeArgs, client: kube::Client, api: &ApiServer) -> Result<kubelet::Config> {
    let listener = TcpListener::bind((args.node_ip, args.port)).with_context(|| {
        format!("the node agent cannot listen on {}:{}: end what uses the port or choose another --port", args.node_ip, args.port)
    })?;
    let healthz = TcpListener::bind((Ipv4Addr::LOCALHOST, 10248))
        .context("the node agent cannot listen on 127.0.0.1:10248: end the other node agent of this machine")?;
    let read = |path: &PathBuf| std::fs::read_to_string(path).with_context(|| format!("reading {} failed", path.display()));
    let facts = match (&args.machine_id, &args.boot_id) {
        (Some(machine), Some(boot)) => HostFacts::simulated(args.os, machine, boot),
        _ => HostFacts::read(),
    };
    Ok(kubelet::Config {
        client,
        api: api.clone(),
        node_name: args.hostname_override.clone(),
        os: args.os,
        node_ips: vec![args.node_ip],
        cri_endpoint: args.container_runtime_endpoint.clone(),
        root: Arc::new(host_root(args.os, &args.roots)?),
        root_dir: "/var/lib/kubelet".to_owned(),
        facts,
        capacity: capacity(args)?,
        labels: BTreeMap::new(),
        taints: Vec::new(),
        hyper_v_container: args.feature_gates.hyper_v_container(),
        eviction_hard: args.eviction_hard,
        logs: log_rotation(args)?,
        cluster_dns: vec![args.cluster_dns],
        cluster_domain: args.cluster_domain.clone(),
        resolver: kubelet::Resolver { servers: vec![host_dns(args.cluster_dns)], ..kubelet::Resolver::default() },
        version: VERSION.to_owned(),
        server: Some(kubelet::ServerConfig {
            listener,
            cert_pem: read(&args.tls_cert_file)?,
            key_pem: read(&args.tls_private_key_file)?,
            client_ca_pem: read(&args.client_ca_file)?,
        }),
        healthz: Some(healthz),
        host_network: None,
    })
}

/// Pods with `dnsPolicy: Default` ask the cluster's server too: a host of ours has no other.
fn host_dns(cluster_dns: IpAddr) -> String {
    cluster_dns.to_string()
}

fn quantity(what: &str, text: &str) -> Result<kube_rules::Quantity> {
    kube_rules::Quantity::parse(text).with_context(|| format!("{what} {text:?} is no quantity: write it as 8, 500m or 16Gi"))
}

fn log_rotation(args: &NodeArgs) -> Result<kubelet::LogRotation> {
    let size = quantity("--container-log-max-size", &args.container_log_max_size)?.value();
    let max_size = u64::try_from(size).context("--container-log-max-size must not be negative")?;
    Ok(kubelet::LogRotation { max_size, max_files: args.container_log_max_files, ..kubelet::LogRotation::default() })
}

fn capacity(args: &NodeArgs) -> Result<kubelet::Capacity> {
    let memory = quantity("--memory", &args.memory)?.value();
    Ok(kubelet::Capacity {
        cpu_millis: quantity("--cpu", &args.cpu)?.milli_value(),
        memory_bytes: u64::try_from(memory).context("--memory must not be negative")?,
        pods: args.max_pods,
        ephemeral_storage_bytes: 0,
    })
}

fn host_root(os: NodeOs, roots: &[String]) -> Result<HostRoot> {
    if !os.is_windows() {
        let [root] = roots else { bail!("a Linux node has one --root, not {}", roots.len()) };
        return Ok(HostRoot::linux(root)?);
    }
    let drives = roots.iter().map(|root| drive(root)).collect::<Result<Vec<_>>>()?;
    Ok(HostRoot::windows(os, drives)?)
}

/// `C=DIR`.
pub fn drive(text: &str) -> Result<(char, PathBuf)> {
    let (letter, dir) = text.split_once('=').with_context(|| format!("drive {text:?} has no directory: write it as C=DIR"))?;
    match letter.chars().collect::<Vec<_>>().as_slice() {
        [letter] if letter.is_ascii_alphabetic() => Ok((letter.to_ascii_uppercase(), dir.into())),
        _ => bail!("{letter:?} is no drive letter: write it as C=DIR"),
    }
}
