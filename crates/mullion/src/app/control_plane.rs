//! Wiring of `mullion control-plane`: API server, controllers, scheduler, DNS and the node-port relay in one process on LAN host `cp`.

mod hollow_nodes;
mod join;
mod rights;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use apiserver::{Identity, Server};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use pki::CertKey;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::app::node::VERSION;
use crate::exit::Failure;
use crate::linux::cli::ControlPlaneArgs;
use crate::linux::disks::Disks;
use crate::linux::node_ports;

/// Runs the control plane until the process is asked to end.
pub fn main(args: ControlPlaneArgs) -> Result<(), Failure> {
    crate::init_logs();
    audit_panics();
    // Two workers: a write waits for the disk on one while the other answers reads and watches.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run(args)).map_err(Failure::from)
}

/// Panics end the process in builds for users: the audit log has the request that panicked all the same.
fn audit_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        usual(panic);
        apiserver::write_panic(panic);
    }));
}

async fn run(args: ControlPlaneArgs) -> Result<()> {
    cluster::install_crypto_provider();
    let (server, listeners) = start_server(&args).await?;
    let shutdown = CancellationToken::new();
    // Programs are named as upstream's, because owners of fields are named after them.
    let client = |user: &str, groups: &[&str], program: &'static str| {
        let groups = groups.iter().map(|&group| group.to_owned()).collect();
        Client::new(server.in_process(Identity { user: user.to_owned(), groups }).named(program), "default")
    };
    let ca_pem = read(&args.pki_dir, "ca.crt")?;
    let own = client("system:mullion:control-plane", &["system:masters"], "kubeadm");
    open(&server, listeners, &own, &args, &ca_pem).await?;
    let authority = pki::Ca::from_pem(&ca_pem, &read(&args.pki_dir, "ca.key")?).context("reading the cluster's authority failed")?;

    // One watch per kind for all parts below.
    let api = cluster::ApiServer::default();
    let dns = dns_config(&args, &api).await?;
    lab::notify::ready("").context("cannot report readiness to the supervisor")?;
    let manager = || client("system:kube-controller-manager", &[], "kube-controller-manager");
    let controllers = controllers::Config {
        api: api.clone(),
        node_ranges: controllers::NodeRanges::parse(&args.cluster_cidr.to_string(), node_masks(&args))?,
        hollow_ranges: (args.hollow > 0).then(hollow_ranges).transpose()?,
        root_ca_pem: ca_pem,
        load_balancer_cidr: args.load_balancer_cidr,
    };
    let scheduler = scheduler_config(args.scheduler_config.as_deref())?;
    tokio::select! {
        () = controllers::run(manager(), controllers, shutdown.clone()) => {}
        () = controllers::run_autoscaler(manager(), api.clone(), controllers::AUTOSCALER_PERIOD, shutdown.clone()) => {}
        () = controllers::run_certificates(manager(), api.clone(), Arc::new(authority), shutdown.clone()) => {}
        () = controllers::run_local_volumes(manager(), api.clone(), Arc::new(Disks::new(args.hosts_dir.clone(), args.hollow)), shutdown.clone()) => {}
        () = controllers::run_scheduler(client("system:kube-scheduler", &[], "kube-scheduler"), api.clone(), scheduler, shutdown.clone()) => {}
        end = dns::run(client("system:kube-dns", &[], "coredns"), dns) => end.context("the cluster's DNS ended")?,
        end = pod_routes(manager(), &api, &args) => end.context("keeping routes to pods ended")?,
        end = node_ports::run(manager(), &api, args.ports_socket.clone()) => end.context("the node-port relay ended")?,
        () = super::rest::run() => {}
        () = crate::end_requested() => {}
    }
    shutdown.cancel();
    server.shutdown().await;
    Ok(())
}

/// kube-controller-manager refuses the size of a family that the cluster does not have.
fn node_masks(args: &ControlPlaneArgs) -> controllers::NodeMasks {
    let of = |ipv6: bool, mask: u8| args.cluster_cidr.of(ipv6).map(|_| mask);
    controllers::NodeMasks { only: None, ipv4: of(false, args.node_mask), ipv6: of(true, args.node_mask_ipv6) }
}

/// The pods' network of hollow nodes.
fn hollow_ranges() -> Result<controllers::NodeRanges, controllers::NodeRangesError> {
    controllers::NodeRanges::parse(&hollow::PODS.to_string(), controllers::NodeMasks::default())
}

/// Publishes what clients must find complete, and answers the first client after that.
async fn open(server: &Server, listeners: Vec<TcpListener>, own: &Client, args: &ControlPlaneArgs, ca_pem: &str) -> Result<()> {
    tokio::try_join!(
        publish_dns(own, args),
        join::publish(own, args, ca_pem),
        rights::network_policy(own, args.network_policy),
        rights::bgp(own, args.network == fabric::Mode::Bgp),
        hollow_nodes::prepare(own, args.hollow),
    )?;
    server.listen(listeners).context("starting the API server failed")
}

fn read(dir: &Path, name: &str) -> Result<String> {
    let path = dir.join(name);
    std::fs::read_to_string(&path).with_context(|| format!("reading {} failed", path.display()))
}

/// The scheduler's profiles from this file, if there is one.
fn scheduler_config(path: Option<&Path>) -> Result<controllers::SchedulerConfig> {
    let Some(path) = path else { return Ok(controllers::SchedulerConfig::default()) };
    match std::fs::read_to_string(path) {
        Ok(text) => controllers::SchedulerConfig::from_yaml(&text).with_context(|| format!("{} cannot be used", path.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(controllers::SchedulerConfig::default()),
        Err(error) => Err(error).with_context(|| format!("reading {} failed", path.display())),
    }
}

fn pair(dir: &Path, name: &str) -> Result<CertKey> {
    Ok(CertKey { cert_pem: read(dir, &format!("{name}.crt"))?, key_pem: read(dir, &format!("{name}.key"))? })
}

/// The API server, and the listeners that it is to serve when everything is published.
async fn start_server(args: &ControlPlaneArgs) -> Result<(Server, Vec<TcpListener>)> {
    let dir = &args.pki_dir;
    let loopback = TcpListener::from(linux_sys::fdpass::inherited(args.listen_fd).context("the API server's listener is missing")?);
    let mut listeners = vec![loopback];
    for at in args.address.iter().map(|address| SocketAddr::new(address, args.port)) {
        listeners.push(TcpListener::bind(at).with_context(|| format!("the API server cannot listen on {at}"))?);
    }
    let config = apiserver::Config {
        store_dir: args.store_dir.clone(),
        listeners: Vec::new(),
        serving: pair(dir, "apiserver")?,
        ca_pem: read(dir, "ca.crt")?,
        sa_key_pem: read(dir, "sa.key")?,
        kubelet_client: pair(dir, "apiserver-kubelet-client")?,
        // Nodes are hosts of the LAN; its gateway and this host are none.
        node_networks: apiserver::NodeNetworks {
            within: vec![IpNet::V4(lab::lan::LAN), IpNet::V6(lab::lan::LAN_IPV6)],
            except: args.address.iter().chain([lab::lan::GATEWAY.into(), lab::lan::ipv6(lab::lan::GATEWAY).into()]).collect(),
        },
        service_cidrs: args.service_cidr.to_string().parse()?,
        node_port_range: args.service_node_port_range.ports(),
        limits: apiserver::Limits::default(),
        advertise: (args.primary(), args.port),
        version: VERSION.to_owned(),
        watch_history: apiserver::WATCH_HISTORY,
        audit: args.audit.config().await?,
    };
    Ok((apiserver::start(config).await.context("starting the API server failed")?, listeners))
}

async fn dns_config(args: &ControlPlaneArgs, api: &cluster::ApiServer) -> Result<dns::Config> {
    let (mut udp, mut tcp) = (Vec::new(), Vec::new());
    for at in args.address.iter().map(|address| SocketAddr::new(address, 53)) {
        let failed = || format!("the cluster's DNS cannot listen on {at}");
        udp.push(tokio::net::UdpSocket::bind(at).await.with_context(failed)?);
        tcp.push(tokio::net::TcpListener::bind(at).await.with_context(failed)?);
    }
    Ok(dns::Config { api: api.clone(), udp, tcp, domain: args.cluster_domain.clone(), upstream: args.dns_upstream })
}

/// Keeps routes to the pods of all nodes: Windows pods reach this host by their own addresses.
async fn pod_routes(client: Client, api: &cluster::ApiServer, args: &ControlPlaneArgs) -> Result<()> {
    let config = fabric::Config {
        client,
        api: api.clone(),
        settings: fabric::Settings {
            mode: args.network,
            vxlan: fabric::Vxlan::default(),
            bgp: fabric::Bgp::default(),
            node_name: "cp".to_owned(),
            cluster_cidrs: args.cluster_cidr.iter().collect(),
            role: fabric::Role::Host { address: args.primary() },
        },
        routes: Arc::new(host::LinuxRoutes::open().context("opening the routing table failed")?),
        hcn: None,
        full_pass: crate::app::node::FULL_PASS,
        changes: None,
        status: None,
        facts: None,
    };
    fabric::run(config, std::future::pending()).await;
    Ok(())
}

/// The Service of the cluster's DNS. Its only endpoint is this host, so a slice of each family, without a selector, names it.
async fn publish_dns(client: &Client, args: &ControlPlaneArgs) -> Result<()> {
    let slices = futures::future::try_join_all(args.address.iter().enumerate().map(|(at, address)| {
        let name = match (at, address) {
            (0, _) => "kube-dns",
            (_, IpAddr::V4(_)) => "kube-dns-ipv4",
            (_, IpAddr::V6(_)) => "kube-dns-ipv6",
        };
        publish_dns_slice(client, name, address)
    }));
    tokio::try_join!(publish_dns_service(client, args), slices).context("publishing the cluster's DNS failed")?;
    Ok(())
}

async fn publish_dns_service(client: &Client, args: &ControlPlaneArgs) -> Result<()> {
    let services = Api::<Service>::namespaced(client.clone(), "kube-system");
    if services.get_opt("kube-dns").await?.is_some() {
        return Ok(());
    }
    let ports = json!([
        {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 53},
        {"name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": 53},
    ]);
    let policy = if args.service_cidr.both() { "PreferDualStack" } else { "SingleStack" };
    let labels = json!({"k8s-app": "kube-dns", "kubernetes.io/name": "CoreDNS"});
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": labels},
        "spec": {"clusterIP": args.dns_ip, "ipFamilyPolicy": policy, "ports": ports},
    });
    services.create(&PostParams::default(), &serde_json::from_value(service)?).await?;
    Ok(())
}

async fn publish_dns_slice(client: &Client, name: &str, address: IpAddr) -> Result<()> {
    let slices = Api::<EndpointSlice>::namespaced(client.clone(), "kube-system");
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "kube-system", "labels": {
            "kubernetes.io/service-name": "kube-dns", "endpointslice.kubernetes.io/managed-by": "mullion",
        }},
        "addressType": if address.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": [{"addresses": [address], "conditions": {"ready": true, "serving": true, "terminating": false}}],
        "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}],
    });
    match slices.get_opt(name).await? {
        None => slices.create(&PostParams::default(), &serde_json::from_value(slice)?).await?,
        Some(_) => slices.patch(name, &PatchParams::default(), &Patch::Merge(slice)).await?,
    };
    Ok(())
}
