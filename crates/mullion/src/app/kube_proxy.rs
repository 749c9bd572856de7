//! Wiring of `mullion kube-proxy`, also called `kube-proxy` and `proxy`: the service proxy alone, in the place of upstream's.

use std::future::Future;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use backoff::Backoff;
use hcn::HcnClient;
use k8s_openapi::api::core::v1::{Namespace, Node, Service};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use node_config::KubeProxyConfiguration;
use node_config::document;
use node_config::kube_proxy::flags::{self, Options};
use service_proxy::options::{self, Mode};
use service_proxy::{Config, NodeRow, StartupTaint, Status, StatusServer};
use thiserror_ext::AsReport as _;
use tokio::sync::watch;

use crate::exit::Failure;
use crate::log_file::LogFile;

/// Whether a program of that name is this one.
pub fn is_own_name(name: &str) -> bool {
    let name = name.strip_suffix(".exe").unwrap_or(name);
    matches!(name, "kube-proxy" | "proxy")
}

/// Runs the proxy until the process is asked to end; what was programmed stays.
pub fn main(args: impl IntoIterator<Item = String>) -> Result<(), Failure> {
    let options = Options::parse(args)?;
    if options.flags.help {
        print!("{}", flags::help());
        return Ok(());
    }
    if options.flags.version {
        println!("Kubernetes {}", crate::app::node::VERSION);
        return Ok(());
    }
    init_logs("service_proxy", options.config.logging.verbosity, given(&options.flags.log_file))?;
    options.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    if let Some(path) = given(&options.flags.write_config_to) {
        std::fs::write(path, document::to_yaml(&options.config)).with_context(|| format!("the configuration cannot be written to {path}"))?;
        return Ok(());
    }
    if options.flags.init_only {
        tracing::info!("nothing needs privileges beforehand");
        return Ok(());
    }
    if options.config.windows_run_as_service {
        #[cfg(windows)]
        return super::service::run("kube-proxy", move |stop| crate::run_agent(run(&options, stop))).map_err(Failure::from);
        #[cfg(not(windows))]
        tracing::warn!("--windows-service has no effect: this is no Windows");
    }
    crate::run_agent(run(&options, crate::end_requested())).map_err(Failure::from)
}

/// Logs by the flags that upstream's programs have: `part` names the crate that says more from verbosity 4 on.
pub fn init_logs(part: &str, verbosity: u32, file: Option<&str>) -> Result<()> {
    let default = match verbosity {
        6.. => format!("info,{part}=trace"),
        4.. => format!("info,{part}=debug"),
        _ => "info".to_owned(),
    };
    let open = |path: &str| LogFile::open(path.into()).with_context(|| format!("--log-file: {path} cannot be opened"));
    crate::init_logs_with(&default, file.map(open).transpose()?);
    Ok(())
}

/// A text that is not empty.
fn given(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// A variable of the environment that is not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

/// The proxy, in the order of its start: mode, API client, endpoints, identity of cluster and node, backend, loop.
async fn run(options: &Options, ended: impl Future<Output = ()>) -> Result<()> {
    cluster::install_crypto_provider();
    let has_hns = cfg!(windows) || !options.flags.hcn.is_empty() || std::env::var_os("MULLION_HCN").is_some();
    let mode = Mode::of(&options.config, has_hns)?;
    let config = options::in_effect(options.config.clone(), mode, variable("KUBE_NETWORK"));
    options::warn_of_gaps(&config, mode, options.localhost_node_ports);
    if options.flags.cleanup && mode != Mode::Hns {
        return cleanup(mode);
    }
    let startup_taint = given(&options.flags.startup_taint).map(str::parse::<StartupTaint>).transpose()?;
    let client = client(options).await?;
    let name = node_name(&config)?;
    let (status, reported) = watch::channel(Status::default());
    let server = StatusServer::new(config.clone(), mode, reported);
    server.serve().await?;
    // It waits for the cluster in its own time, and repairs what is there meanwhile.
    let supervisor = super::notify::Supervisor::from_env();
    tokio::spawn(supervisor.clone().keep(None));
    tokio::pin!(ended);
    let identity = async { tokio::join!(cluster_uid(&client), node_row(&client, &name, &config)) };
    let (uid, node) = tokio::select! {
        both = identity => both,
        () = &mut ended => return Ok(()),
    };
    tracing::info!(node = name, cluster = uid, mode = mode.as_str(), "the API server answers");
    let node_ips = options::node_ips(&config, &node)?;
    let host_mac = given(&options.flags.host_mac).map(str::to_owned).or_else(|| mac_of(node_ips[0]));
    if options.flags.cleanup {
        let settings = options::hns(&config, &node_ips, host_mac)?;
        let removed = service_proxy::hns::cleanup(&hcn(options)?, uid, settings).await?;
        tracing::info!(removed, "what this proxy made is gone");
        return Ok(());
    }
    let service_interface = given(&options.flags.service_interface).map(str::to_owned).or_else(|| variable("INTERFACE_TO_ADD_SERVICE_IP"));
    let host = options::Host {
        ips: &node_ips,
        row: node,
        hcn: (mode == Mode::Hns).then(|| hcn(options)).transpose()?,
        mac: host_mac,
        service_interface: service_interface.as_deref(),
        masquerade_leaving: false,
    };
    let backend = options::backend(&config, mode, host)?;
    if let Some(taint) = startup_taint {
        tokio::spawn(taint.hold(client.clone(), name.clone(), server.status.clone()));
    }
    let config = Config {
        full_pass: config.sync_period.0.max(Duration::from_secs(1)),
        policy: options::policy(&config, node_ips),
        status: Some(status),
        metrics: server.metrics.clone(),
        ..Config::new(client, &name, uid, backend)
    };
    let mut changed = Ok(());
    service_proxy::run(config, async {
        tokio::select! {
            () = ended => {}
            path = changed_config(options) => changed = Err(anyhow!("{path} was changed: ending, to be started again with what it says now")),
        }
    })
    .await;
    tracing::info!("ending; what was programmed stays");
    supervisor.stopping();
    changed
}

/// How often the configuration file is compared.
const COMPARE_CONFIG_EVERY: Duration = Duration::from_secs(5);

/// Ends when the configuration file says something else than at the start, as upstream does.
async fn changed_config(options: &Options) -> &str {
    let Some(path) = given(&options.flags.config) else { return std::future::pending().await };
    let began = std::fs::read(path).ok();
    loop {
        tokio::time::sleep(COMPARE_CONFIG_EVERY).await;
        // A file that is away is about to come back, or nobody wants another start.
        if let Ok(now) = std::fs::read(path)
            && began.as_ref() != Some(&now)
        {
            return path;
        }
    }
}

/// Removes what a backend made that needs no cluster to know its own.
fn cleanup(mode: Mode) -> Result<()> {
    #[cfg(target_os = "linux")]
    if mode == Mode::Nftables {
        let there = service_proxy::nftables::cleanup()?;
        tracing::info!(there, "the table of nftables is gone");
        return Ok(());
    }
    tracing::info!(mode = mode.as_str(), "nothing outlives the proxy in this mode");
    Ok(())
}

/// A client by kubeconfig, by address alone (the alpha's way), or by the pod's own identity.
async fn client(options: &Options) -> Result<Client> {
    let master = given(&options.flags.master).map(master_url);
    let config = match (given(&options.config.client_connection.kubeconfig), &master) {
        (None, Some(url)) => kube::Config::new(url.parse().with_context(|| format!("--master: {url:?} is no address"))?),
        (None, None) => kube::Config::incluster().context("this is no pod: give --kubeconfig, or --master")?,
        (Some(path), master) => {
            let mut file = Kubeconfig::read_from(path).with_context(|| format!("the kubeconfig {path} cannot be read"))?;
            for cluster in file.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
                cluster.server = master.clone().or(cluster.server.take());
            }
            let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
            config.with_context(|| format!("the kubeconfig {path} cannot be used"))?
        }
    };
    Client::try_from(config).context("the API client cannot be made")
}

/// The URL of an API server; upstream's client takes an address without a scheme as plain HTTP.
fn master_url(text: &str) -> String {
    if text.contains("://") { text.to_owned() } else { format!("http://{text}") }
}

fn node_name(config: &KubeProxyConfiguration) -> Result<String> {
    let given = given(&config.hostname_override).map(str::to_owned);
    given
        .or_else(super::machine::host_name)
        .map(|name| name.trim().to_lowercase())
        .filter(|name| !name.is_empty())
        .context("this host has no name: give --hostname-override")
}

/// The identity of the cluster: the UID of namespace `kube-system`, or, where that may not be read, of Service `kubernetes`.
async fn cluster_uid(client: &Client) -> String {
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
    loop {
        let namespace = Api::<Namespace>::all(client.clone()).get_metadata("kube-system").await;
        match namespace {
            Ok(object) if object.metadata.uid.is_some() => return object.metadata.uid.unwrap_or_default(),
            Err(kube::Error::Api(status)) if status.code == 403 => {
                let service = Api::<Service>::namespaced(client.clone(), "default").list_metadata(&kube::api::ListParams::default()).await;
                let uid = |list: kube::core::ObjectList<kube::core::PartialObjectMeta<Service>>| {
                    list.items.into_iter().find(|item| item.metadata.name.as_deref() == Some("kubernetes")).and_then(|item| item.metadata.uid)
                };
                match service.map(uid) {
                    Ok(Some(uid)) => return uid,
                    Ok(None) => tracing::warn!("the cluster has no Service kubernetes yet"),
                    Err(error) => tracing::warn!(error = %error.as_report(), "the cluster's identity cannot be read yet"),
                }
            }
            Ok(_) => tracing::warn!("namespace kube-system has no UID yet"),
            Err(error) => tracing::warn!(error = %error.as_report(), "the cluster's identity cannot be read yet"),
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

/// What the Node object says. With an address given nobody waits for it.
async fn node_row(client: &Client, name: &str, config: &KubeProxyConfiguration) -> NodeRow {
    let given = !config.bind_address.is_unspecified();
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
    loop {
        match Api::<Node>::all(client.clone()).get_opt(name).await {
            Ok(Some(node)) => return NodeRow::of(&node),
            Ok(None) if given => return NodeRow::default(),
            Err(error) if given => {
                tracing::warn!(error = %error.as_report(), "the Node cannot be read; --bind-address is its address");
                return NodeRow::default();
            }
            Ok(None) => tracing::warn!(node = name, "the Node does not exist yet; --hostname-override names another"),
            Err(error) => tracing::warn!(error = %error.as_report(), "the Node cannot be read yet"),
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

fn hcn(options: &Options) -> Result<HcnClient> {
    match given(&options.flags.hcn) {
        Some(address) => Ok(HcnClient::connect(address)?),
        None => Ok(HcnClient::from_env()?),
    }
}

/// The MAC of the adapter that has an address, in the form of HNS.
#[cfg(target_os = "linux")]
pub fn mac_of(ip: IpAddr) -> Option<String> {
    let netlink = linux_sys::netlink::Rtnl::open().ok()?;
    let has = |index| netlink.addrs(index).is_ok_and(|nets| nets.iter().any(|net| net.addr() == ip));
    let link = netlink.links().ok()?.into_iter().find(|link| has(link.index))?;
    let text = std::fs::read_to_string(format!("/sys/class/net/{}/address", link.name)).ok()?;
    Some(text.trim().replace(':', "-").to_uppercase())
}

#[cfg(not(target_os = "linux"))]
pub fn mac_of(_: IpAddr) -> Option<String> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstreams_program_names_are_ours() {
        for name in ["kube-proxy", "kube-proxy.exe", "proxy.exe", "proxy"] {
            assert!(is_own_name(name), "{name}");
        }
        assert!(!is_own_name("mullion") && !is_own_name("proxyd"));
    }

    #[test]
    fn addresses_without_scheme_are_plain_http() {
        assert_eq!(master_url("10.0.0.2:8080"), "http://10.0.0.2:8080");
        assert_eq!(master_url("https://10.0.0.2"), "https://10.0.0.2");
    }
}
