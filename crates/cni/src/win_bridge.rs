//! `win-bridge`, `win-overlay`, `wincni` and `azure-vnet`: endpoints of pods on a network of the Host Networking Service.
//! Source: containernetworking/plugins `plugins/main/windows/{win-bridge,win-overlay}` and `pkg/hns`, HCN (V2) path; of wincni,
//! microsoft/SDN `Kubernetes/wincni`; of azure-vnet, Azure/azure-container-networking `cni/network` and `network`.
//!
//! The network exists already (the pod network between nodes makes it), but wincni and azure-vnet make one that is missing ([`network`]).
//! `CNI_NETNS` is an HCN namespace's GUID.
//! Differences from upstream: a repeated ADD never calls IPAM, so a failure in it cannot free a live address; DEL
//! cleans HNS and IPAM both before it reports; ADD succeeds only when the endpoint has its adapter ([`verify`]);
//! CHECK repairs what HNS lost ([`repair`]); an address is not given out again while HNS shows an endpoint that has it
//! ([`rest`]); GC and STATUS do their work; one merged OutBoundNAT policy.

mod config;
mod network;
mod repair;
mod rest;
mod verify;

use std::net::IpAddr;
use std::time::Duration;

use hcn::blocking::{Client, Opened};
use hcn::{Guid, HcnClient, HcnError, HostComputeEndpoint, HostComputeNetwork, NetworkType};
use ipnet::IpNet;

use crate::ipam;
use crate::plugin::{Command, Request};
use crate::spec::{AddResult, CniError, Dns, Interface, IpConfig, Route, code};
use config::Config;
use network::{Network, find_network};

/// The owner mark of endpoints made here.
pub const OWNER: &str = "mullion";
/// How many addresses an ADD tries where others' endpoints have them. The next ADD goes on behind them.
const MOST_TRIES: usize = 16;
/// How long a request may take. Kubelets give a runtime two minutes for a sandbox.
const DEADLINE: Duration = Duration::from_secs(110);

/// Which plug-in it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    #[default]
    Bridge,
    Overlay,
    Wincni,
    AzureVnet,
}

impl Kind {
    /// Its name, and the types of network that it serves.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Bridge => ("win-bridge", "L2Bridge or L2Tunnel"),
            Self::Overlay => ("win-overlay", "Overlay"),
            Self::Wincni => ("wincni", "L2Bridge, L2Tunnel, Transparent, Overlay or NAT"),
            Self::AzureVnet => ("azure-vnet", "L2Bridge or L2Tunnel"),
        }
    }

    fn serves(self, network_type: &NetworkType) -> bool {
        match self {
            Self::Bridge | Self::AzureVnet => matches!(network_type, NetworkType::L2Bridge | NetworkType::L2Tunnel),
            Self::Overlay => *network_type == NetworkType::Overlay,
            Self::Wincni => network::MADE.iter().any(|(_, made)| made == network_type),
        }
    }
}

/// Whether a plug-in of that name is served here.
pub(crate) fn is_name(name: &str) -> bool {
    matches!(name, "win-bridge" | "win-l2bridge" | "win-overlay" | "wincni" | "azure-vnet")
}

/// Serves one request over the service that the environment names.
pub fn handle(request: &Request, kind: Kind) -> Result<Option<AddResult>, CniError> {
    let failed = |error: HcnError| hns("reach the Host Networking Service", &error);
    let client = HcnClient::from_env().map_err(failed)?.with_deadline(DEADLINE);
    let (operation, request) = (format!("{} of {}", request.command.as_str(), kind.names().0), request.clone());
    client.run_blocking(&operation, move |client| Ok::<_, HcnError>(handle_over(client, &request, kind))).map_err(failed)?
}

/// Serves one request over `client`.
pub fn handle_over(client: &Client, request: &Request, kind: Kind) -> Result<Option<AddResult>, CniError> {
    let config = Config::read(request, kind)?;
    match request.command {
        Command::Add => add(client, request, &config).map(Some),
        Command::Del => del(client, request, kind).map(|()| None),
        Command::Check => repair::check(client, request, &config).map(|()| None),
        Command::Gc => gc(client, request, kind).map(|()| None),
        Command::Status => status(client, request, &config).map(|()| None),
    }
}

/// Reads the configuration.
///
/// # Errors
/// When it is wrong.
pub fn check_config(request: &Request, kind: Kind) -> Result<(), CniError> {
    Config::read(request, kind).map(drop)
}

fn hns(what: impl std::fmt::Display, error: &HcnError) -> CniError {
    let code = if error.is_service_down() { code::TRY_AGAIN } else { code::HOST_NETWORK };
    CniError::new(code, format!("cannot {what}: {error}"))
}

/// `CONTAINER_NETWORK`; a docker-style namespace `container:ID` names the sandbox by its second part. azure-vnet: the container's first
/// eight characters, and the interface.
fn endpoint_name(request: &Request, kind: Kind) -> String {
    let sandbox = request.netns.split_once(':').map_or(request.container_id.as_str(), |(_, id)| id);
    if kind == Kind::AzureVnet { azure_name(sandbox, &request.ifname) } else { format!("{sandbox}_{}", request.config.name) }
}

fn azure_name(sandbox: &str, ifname: &str) -> String {
    format!("{}-{ifname}", sandbox.get(..8).unwrap_or(sandbox))
}

fn namespace_id(request: &Request) -> Result<Guid, CniError> {
    request.netns.parse().map_err(|_| {
        let text = format!("CNI_NETNS {:?} is not an HCN namespace GUID; this plug-in serves runtimes that use HCN (containerd)", request.netns);
        CniError::new(code::INVALID_ENVIRONMENT, text)
    })
}

fn find_endpoint(client: &Client, name: &str) -> Result<Option<HostComputeEndpoint>, CniError> {
    client.get_by_name(name).map_err(|e| hns(format_args!("look up endpoint {name}"), &e))
}

fn delete_endpoint(client: &Client, endpoint: &HostComputeEndpoint) -> Result<(), CniError> {
    client.delete::<HostComputeEndpoint>(&endpoint.id).map_err(|e| hns(format_args!("delete endpoint {}", endpoint.name), &e))
}

/// The id of a pod's endpoint. One id for one name: a create that was cut off and is repeated meets itself.
fn endpoint_id(network: &Guid, name: &str) -> Guid {
    hcn::owned_id(&network.to_string(), "endpoint", name)
}

fn add(client: &Client, request: &Request, config: &Config) -> Result<AddResult, CniError> {
    let namespace = namespace_id(request)?;
    let known = network::present(client, &request.config.name, config)?;
    let name = endpoint_name(request, config.kind);
    if let Some(network) = &known
        && let Some(existing) = opened_endpoint(client, &endpoint_id(&network.document.id, &name), &name)?
        && let Some(before) = existing.read().map_err(|e| hns(format_args!("read endpoint {name}"), &e))?
    {
        let attached = attach(client, namespace, &existing, &before, config)?;
        return Ok(result(request, config, &network.document, &attached));
    }
    let mut config = config.clone();
    // Asked only where the answer matters.
    let features = || client.features().map_err(|e| hns("read the version of the Host Networking Service", &e));
    config.loopback_dsr = config.loopback_dsr && (config.hns_network.is_some() || features()?.dsr);
    let config = &config;
    let mut tried = Vec::new();
    loop {
        let addresses = ipam::delegate(request, Command::Add)?;
        let has_ipv6 = addresses.iter().flat_map(|result| &result.ips).any(|ip| ip.address.addr().is_ipv6());
        let carried = || check_families(config.kind, has_ipv6 && features()?.ipv6_dual_stack, addresses.as_ref());
        let made;
        let network = match (carried(), &known) {
            (Err(error), _) => Err(error),
            (Ok(()), Some(known)) => Ok(known),
            (Ok(()), None) => {
                made = network::make(client, &request.config.name, config, addresses.as_ref());
                made.as_ref().map_err(Clone::clone)
            }
        };
        let made = network.map_err(Failure::before).and_then(|network| {
            let desired = config.endpoint(&name, &network.document, addresses.as_ref());
            match create(client, namespace, network, &desired, config) {
                Ok(endpoint) => Ok(result(request, config, &network.document, &endpoint)),
                Err(failure) if failure.is_taken => match namesake(client, &network.document, &name).map_err(Failure::before)? {
                    Some((existing, before)) => {
                        let attached = attach(client, namespace, &existing, &before, config).map_err(Failure::held)?;
                        Ok(result(request, config, &network.document, &attached))
                    }
                    None => Err(failure),
                },
                Err(failure) => Err(failure),
            }
        });
        let Failure { error, is_taken, holds } = match made {
            Ok(result) => return Ok(result),
            Err(failure) => failure,
        };
        if !holds {
            // Best effort: the first error is the one to report.
            let _ = ipam::delegate(request, Command::Del);
        }
        // Somebody else's endpoint has the address: another one is tried, as long as address management has others.
        let address = addresses.as_ref().and_then(AddResult::primary_ip);
        let Some(address) = address.filter(|address| is_taken && tried.len() < MOST_TRIES && !tried.contains(address)) else {
            return Err(error);
        };
        tried.push(address);
    }
}

fn opened_endpoint<'a>(client: &'a Client, id: &Guid, name: &str) -> Result<Option<Opened<'a, HostComputeEndpoint>>, CniError> {
    client.open(id).map_err(|e| hns(format_args!("open endpoint {name}"), &e))
}

/// The endpoint of that name on the network, whatever its id: another plug-in made it for the same sandbox, as before a change of plug-ins.
fn namesake<'a>(
    client: &'a Client,
    network: &HostComputeNetwork,
    name: &str,
) -> Result<Option<(Opened<'a, HostComputeEndpoint>, HostComputeEndpoint)>, CniError> {
    let Some(existing) = find_endpoint(client, name)?.filter(|existing| existing.host_compute_network == network.id) else {
        return Ok(None);
    };
    Ok(opened_endpoint(client, &existing.id, name)?.map(|opened| (opened, existing)))
}

/// Why there is no endpoint.
struct Failure {
    error: CniError,
    /// Another endpoint has the address.
    is_taken: bool,
    /// The endpoint may be there all the same, with its address.
    holds: bool,
}

impl Failure {
    fn before(error: CniError) -> Self {
        Self { error, is_taken: false, holds: false }
    }

    /// The endpoint stays, with its address.
    fn held(error: CniError) -> Self {
        Self { error, is_taken: false, holds: true }
    }
}

/// Whether the network carries IPv6, where the pod has such an address.
fn check_families(kind: Kind, ipv6: bool, addresses: Option<&AddResult>) -> Result<(), CniError> {
    let Some(address) = addresses.iter().flat_map(|result| &result.ips).map(|ip| ip.address).find(|address| address.addr().is_ipv6()) else {
        return Ok(());
    };
    let reason = match kind {
        Kind::Overlay => "overlays have no IPv6",
        _ if !ipv6 => "this version of the Host Networking Service has no IPv6 for pods (Windows Server 2022, build 20348, and later have it)",
        _ => return Ok(()),
    };
    Err(CniError::config(format!("cannot give a pod the address {address}: {reason}; leave the IPv6 range out of ipam.ranges")))
}

fn create(
    client: &Client,
    namespace: Guid,
    network: &Network<'_>,
    endpoint: &HostComputeEndpoint,
    config: &Config,
) -> Result<HostComputeEndpoint, Failure> {
    let id = endpoint_id(&network.document.id, &endpoint.name);
    let failed = |e: HcnError| hns(format_args!("create endpoint {} on network {:?}", endpoint.name, network.document.name), &e);
    let made = match network.opened.create_endpoint(id, endpoint) {
        Err(error) if rest::is_taken(&error) && rest::evict(client, &network.document, endpoint).map_err(Failure::before)? => {
            network.opened.create_endpoint(id, endpoint)
        }
        made => made,
    };
    // Nothing is known of a create that got no answer.
    let made = made.map_err(|error| Failure { is_taken: rest::is_taken(&error), holds: error.is_service_down(), error: failed(error) })?;
    attach(client, namespace, &made, &HostComputeEndpoint { id, ..endpoint.clone() }, config).map_err(|error| Failure {
        error,
        is_taken: false,
        holds: rest::delete(client, &id, &endpoint.name).is_err(),
    })
}

/// Puts the endpoint into the namespace and returns it as it is there. It has at least the addresses of `expected`.
fn attach(
    client: &Client,
    namespace: Guid,
    endpoint: &Opened<'_, HostComputeEndpoint>,
    expected: &HostComputeEndpoint,
    config: &Config,
) -> Result<HostComputeEndpoint, CniError> {
    client
        .add_endpoint_to_namespace(&namespace, &expected.id)
        .map_err(|e| hns(format_args!("add endpoint {} to namespace {namespace}", expected.name), &e))?;
    verify::attached(client, namespace, endpoint, expected, config.skip_attach_check)
}

/// The addresses of an endpoint, with the prefix lengths of the network's subnets.
fn addresses(network: &HostComputeNetwork, endpoint: &HostComputeEndpoint) -> Vec<IpNet> {
    let subnets: Vec<IpNet> = network.subnets().filter_map(hcn::Subnet::prefix).collect();
    let with_prefix = |ip: &hcn::document::IpConfiguration| {
        let address: IpAddr = ip.ip_address.parse().ok()?;
        let same_family = |subnet: &&IpNet| subnet.addr().is_ipv6() == address.is_ipv6();
        let of_network = subnets.iter().find(|subnet| subnet.contains(&address)).or_else(|| subnets.iter().find(same_family));
        let length = of_network.map(IpNet::prefix_len).or(Some(ip.prefix_length).filter(|length| *length != 0))?;
        IpNet::new(address, length).ok()
    };
    endpoint.ip_configurations.iter().filter_map(with_prefix).collect()
}

fn result(request: &Request, config: &Config, network: &HostComputeNetwork, endpoint: &HostComputeEndpoint) -> AddResult {
    let routes: Vec<Route> = endpoint
        .routes
        .iter()
        .filter_map(|r| Some(Route { dst: r.destination_prefix.parse().ok()?, gw: r.next_hop.parse().ok(), mtu: None, priority: None }))
        .collect();
    let is_default = |route: &&Route, address: IpNet| route.dst.prefix_len() == 0 && route.dst.addr().is_ipv6() == address.addr().is_ipv6();
    let gateway = |address: IpNet| routes.iter().find(|route| is_default(route, address)).and_then(|route| route.gw);
    let ips = addresses(network, endpoint).into_iter().map(|address| IpConfig { address, gateway: gateway(address), interface: Some(0) }).collect();
    AddResult {
        interfaces: vec![Interface { name: endpoint.name.clone(), mac: endpoint.mac_address.clone(), mtu: None, sandbox: request.netns.clone() }],
        ips,
        routes,
        dns: Dns {
            nameservers: endpoint.dns.server_list.clone(),
            domain: endpoint.dns.domain.clone(),
            search: endpoint.dns.search.clone(),
            options: if endpoint.dns.options.is_empty() { config.dns.options.clone() } else { endpoint.dns.options.clone() },
        },
    }
}

fn del(client: &Client, request: &Request, kind: Kind) -> Result<(), CniError> {
    let name = endpoint_name(request, kind);
    // One, but for an endpoint that another plug-in made, or that was on a network that is gone.
    let found: Result<Vec<HostComputeEndpoint>, CniError> =
        client.list(&hcn::Query::by_name(&name)).map_err(|e| hns(format_args!("look up endpoint {name}"), &e));
    let detached = found.and_then(|found| found.iter().try_for_each(|endpoint| remove(client, endpoint)));
    // An address may only be given out again once no endpoint has it.
    if detached.is_ok() {
        ipam::delegate(request, Command::Del)?;
    }
    detached
}

fn remove(client: &Client, endpoint: &HostComputeEndpoint) -> Result<(), CniError> {
    let namespace = endpoint.host_compute_namespace;
    if !namespace.is_nil()
        && let Err(error) = client.remove_endpoint_from_namespace(&namespace, &endpoint.id)
    {
        // Deleting detaches as well; a namespace that refuses must not keep the endpoint.
        tracing::debug!(endpoint = endpoint.name, "cannot take the endpoint out of its namespace: {error}");
    }
    rest::delete(client, &endpoint.id, &endpoint.name)
}

fn gc(client: &Client, request: &Request, kind: Kind) -> Result<(), CniError> {
    let network = find_network(client, &request.config.name, kind, None)?.document;
    let suffix = format!("_{}", network.name);
    let valid = request.valid_attachments();
    let endpoints: Vec<HostComputeEndpoint> =
        client.list(&hcn::Query::by_network(&network.id)).map_err(|e| hns(format_args!("list endpoints of {:?}", network.name), &e))?;
    let mut first = Ok(());
    let mut stuck = Vec::new();
    for endpoint in endpoints.iter().filter(|e| e.owner == OWNER && !e.is_remote()) {
        let container = if kind == Kind::AzureVnet {
            let is_live = valid.iter().any(|(id, ifname)| azure_name(id, ifname) == endpoint.name);
            (!is_live).then_some("")
        } else {
            let Some(container) = endpoint.name.strip_suffix(&suffix) else { continue };
            (!valid.iter().any(|(id, _)| id == container)).then_some(container)
        };
        let Some(container) = container else { continue };
        if let Err(error) = remove(client, endpoint) {
            stuck.push(container);
            first = first.and(Err(error));
        }
    }
    // An address rests while an endpoint has it. Only host-local can be told so.
    if stuck.is_empty() || (request.config.ipam_type().trim_end_matches(".exe") == "host-local" && !stuck.contains(&"")) {
        let freed = ipam::delegate(&ipam::sparing(request, &stuck), Command::Gc);
        first = first.and(freed.map(drop));
    }
    first
}

fn status(client: &Client, request: &Request, config: &Config) -> Result<(), CniError> {
    match find_network(client, &request.config.name, config.kind, config.hns_network.as_ref()) {
        // ADD makes it.
        Err(error) if error.code == code::TRY_AGAIN && config.makes_network() => {}
        found => drop(found.map_err(|error| CniError { code: code::NOT_AVAILABLE, ..error })?),
    }
    ipam::delegate(request, Command::Status).map(drop)
}

#[cfg(test)]
mod tests;
