//! Makes the HNS network of a Windows node and the host's own endpoint on it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use hcn::document::{ModifyRequest, RemoteSubnetRoute, RequestType};
use hcn::{EndpointState, Guid, HcnClient, HcnError, HostComputeEndpoint, HostComputeNetwork, NetworkPolicy, NetworkType, Subnet};
use ipnet::IpNet;
use thiserror_ext::AsReport as _;

use crate::hns::{Desired, OWNER};
use crate::problem::Kind;

/// Whether the network is ours under an id that HNS gave it: our mark and an id that no cluster derives. A service that ignores the ids
/// that clients choose makes such networks, and so does one that makes its networks again.
fn renamed(network: &HostComputeNetwork) -> bool {
    network.owner == OWNER && !network.id.is_derived()
}

/// What must happen to the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkStep {
    /// It is right.
    Keep,
    /// It does not exist.
    Create,
    /// It is ours and wrong, for example of another pod CIDR; its pods lose their network.
    Recreate {
        /// What is wrong with it.
        why: String,
    },
}

/// Why the network cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum HnsError {
    /// A network of that name belongs to someone else.
    #[error(
        "HNS network {name:?} of type {network_type} exists and is not ours (id {id}, owner {owner:?}): remove it (Get-HnsNetwork | ? Name -eq {name} | Remove-HnsNetwork) or choose another name for the pod network"
    )]
    Foreign {
        name: String,
        id: Guid,
        /// The owner that it names.
        owner: String,
        network_type: NetworkType,
    },
    /// The network has no address of the host: endpoints' policies would name none, or one that nobody reaches.
    #[error(
        "HNS network {name:?} has no address of the host yet (ManagementIP {found}): give the adapter {adapter} an address (DHCP or static), or set the member adapter of NodeConfiguration to one that has"
    )]
    NoAddress { name: String, found: String, adapter: String },
    /// The service refused or did not answer.
    #[error("cannot {what}")]
    Call {
        /// What was tried.
        what: String,
        /// The service's answer.
        #[source]
        source: HcnError,
    },
}

impl HnsError {
    /// What kind of trouble it is.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Foreign { .. } => Kind::NetworkOfOthers,
            Self::NoAddress { .. } | Self::Call { .. } => Kind::Failed,
        }
    }
}

fn failed(what: impl Into<String>) -> impl FnOnce(HcnError) -> HnsError {
    let what = what.into();
    move |source| HnsError::Call { what, source }
}

/// Decides from the network of the desired name (pure).
pub fn plan(existing: Option<&HostComputeNetwork>, desired: &Desired) -> Result<NetworkStep, HnsError> {
    let Some(existing) = existing else { return Ok(NetworkStep::Create) };
    if existing.id != desired.network_id && !renamed(existing) {
        let network_type = existing.network_type.clone();
        return Err(HnsError::Foreign { name: existing.name.clone(), id: existing.id, owner: existing.owner.clone(), network_type });
    }
    let prefixes = |network: &HostComputeNetwork| network.subnets().filter_map(Subnet::prefix).collect::<BTreeSet<IpNet>>();
    let show = |prefixes: &BTreeSet<IpNet>| match prefixes.iter().map(IpNet::to_string).collect::<Vec<_>>().join(" and ") {
        none if none.is_empty() => "none".to_owned(),
        some => some,
    };
    let (present, wanted) = (prefixes(existing), prefixes(&desired.network));
    if existing.network_type != desired.network.network_type {
        return Ok(NetworkStep::Recreate { why: format!("its type is {}", existing.network_type) });
    }
    if present != wanted {
        return Ok(NetworkStep::Recreate { why: format!("its subnet is {}, not {}", show(&present), show(&wanted)) });
    }
    let segment = |network: &HostComputeNetwork| network.subnets().find_map(Subnet::vsid);
    if let (Some(present), Some(wanted)) = (segment(existing), segment(&desired.network))
        && present != wanted
    {
        return Ok(NetworkStep::Recreate { why: format!("its VNI is {present}, not {wanted}") });
    }
    Ok(NetworkStep::Keep)
}

/// The placeholder is needed unless it, or a network of someone else, keeps the switch of the adapter. True when it was made.
async fn keep_placeholder(client: &HcnClient, desired: &Desired) -> Result<bool, HnsError> {
    let Some((id, placeholder)) = &desired.placeholder else { return Ok(false) };
    let name = &placeholder.name;
    let present = client.network_by_name(name).await.map_err(failed(format!("look up HNS network {name:?}")))?;
    if present.is_some() {
        return Ok(false);
    }
    let others = client.networks().await.map_err(failed("list HNS networks"))?;
    if others.iter().any(|other| other.name != desired.network.name && keeps_switch(other, placeholder)) {
        return Ok(false);
    }
    client.create_network(*id, placeholder).await.map_err(failed(format!("create HNS network {name:?}")))?;
    tracing::info!(network = name, "created the HNS network that keeps the adapter's switch");
    Ok(true)
}

/// Whether a network holds the switch that `placeholder` would (pure): one of the filtering platform on that adapter, as the same or unnamed.
fn keeps_switch(other: &HostComputeNetwork, placeholder: &HostComputeNetwork) -> bool {
    let adapter = |network: &HostComputeNetwork| network.policies.iter().find_map(NetworkPolicy::as_net_adapter_name).unwrap_or_default();
    let switched = matches!(other.network_type, NetworkType::L2Bridge | NetworkType::L2Tunnel | NetworkType::Overlay);
    switched && (adapter(other).is_empty() || adapter(other).eq_ignore_ascii_case(&adapter(placeholder)))
}

/// The network has an address of the host, which HNS finds a while after the network was made.
fn has_address(network: &HostComputeNetwork) -> Result<(), HnsError> {
    let found = network.management_ip();
    let usable = |ip: &IpAddr| !matches!(ip, IpAddr::V4(ip) if ip.is_link_local() || ip.is_unspecified());
    if network.network_type == NetworkType::Transparent || found.as_ref().is_some_and(usable) {
        return Ok(());
    }
    let adapter = network.policies.iter().find_map(NetworkPolicy::as_net_adapter_name).unwrap_or_default();
    let found = found.map_or_else(|| "none".to_owned(), |ip| ip.to_string());
    Err(HnsError::NoAddress { name: network.name.clone(), found, adapter })
}

/// What [`ensure`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ensured {
    /// Something was written.
    pub written: bool,
    /// The adapter may have got its switch: then it is without addresses for a while, and can lose routes.
    pub made_switch: bool,
}

/// Makes the networks and the host's endpoint what is desired. `before_change` runs before the first write that takes the
/// network from pods: until all of it is done, no pod should be attached.
pub async fn ensure(client: &HcnClient, desired: &Desired, before_change: impl FnOnce()) -> Result<Ensured, HnsError> {
    let name = &desired.network.name;
    let look_up = async || client.network_by_name(name).await.map_err(failed(format!("look up HNS network {name:?}")));
    let existing = look_up().await?;
    let step = plan(existing.as_ref(), desired)?;
    // First, so that neither making nor removing the pods' network touches the switch.
    let placed = keep_placeholder(client, desired).await?;
    let network_id = existing.as_ref().map_or(desired.network_id, |network| network.id);
    let endpoint_step = match &desired.endpoint {
        None => EndpointStep::Keep,
        Some(wanted) => {
            let present = client.endpoint(&desired.endpoint_id).await.map_err(failed(format!("read endpoint {}", wanted.name)))?;
            plan_endpoint(present.as_ref(), network_id, wanted)
        }
    };
    if let (NetworkStep::Keep, EndpointStep::Keep, Some(existing)) = (&step, endpoint_step, &existing) {
        has_address(existing)?;
        let changed = keep_remote_subnets(client, existing, desired).await?;
        return Ok(Ensured { written: changed || placed, made_switch: placed });
    }
    before_change();
    if let NetworkStep::Recreate { why } = &step {
        tracing::warn!(network = name, "making the HNS network anew: {why}; pods on it must be recreated");
        client.delete_network(&network_id).await.map_err(failed(format!("delete HNS network {name:?}")))?;
    }
    if step != NetworkStep::Keep {
        client.create_network(desired.network_id, &desired.network).await.map_err(failed(format!("create HNS network {name:?}")))?;
        tracing::info!(network = name, "created the HNS network");
    }
    // A network takes its endpoints along.
    let gone = matches!(step, NetworkStep::Recreate { .. });
    let network_id = if step == NetworkStep::Keep { network_id } else { desired.network_id };
    if let Some(endpoint) = &desired.endpoint {
        let endpoint_step = if gone { EndpointStep::Create } else { endpoint_step };
        let made = make_endpoint(client, network_id, desired.endpoint_id, endpoint, endpoint_step).await;
        if let (Err(error), NetworkStep::Keep) = (&made, &step) {
            remove_half_network(client, network_id, desired, error).await?;
        }
        made?;
    }
    look_up().await?.as_ref().map_or(Ok(()), has_address)?;
    Ok(Ensured { written: true, made_switch: placed || step != NetworkStep::Keep && desired.placeholder.is_none() })
}

/// Removes a network that was there and takes no endpoint of the host, so that the next pass makes it anew: after a boot, HNS may have half of it.
/// Not while pods are on it: then the refusal may pass.
async fn remove_half_network(client: &HcnClient, id: Guid, desired: &Desired, error: &HnsError) -> Result<(), HnsError> {
    let name = &desired.network.name;
    if !matches!(error, HnsError::Call { source, .. } if source.hresult().is_some() && !source.is_service_down()) {
        return Ok(());
    }
    let endpoints = client.endpoints_of(&id).await.map_err(failed(format!("list endpoints of HNS network {name:?}")))?;
    if endpoints.iter().any(|endpoint| endpoint.id != desired.endpoint_id) {
        return Ok(());
    }
    tracing::warn!(network = name, error = %error.as_report(), "removing the HNS network, to make it anew: it has no pods and takes no endpoint of the host");
    client.delete_network(&id).await.map_err(failed(format!("delete HNS network {name:?}")))
}

/// The prefixes of other nodes that must be taken from the network, and those that must be put to it (pure). HNS honours a
/// prefix only once, so a changed one is taken away first.
fn plan_remote_subnets(existing: &HostComputeNetwork, desired: &Desired) -> (Vec<NetworkPolicy>, Vec<NetworkPolicy>) {
    let remote = |network: &HostComputeNetwork| -> Vec<(RemoteSubnetRoute, NetworkPolicy)> {
        network.policies.iter().filter_map(|policy| Some((policy.as_remote_subnet_route()?, policy.clone()))).collect()
    };
    let key = |route: &RemoteSubnetRoute| {
        let mac = route.distributed_router_mac_address.to_ascii_uppercase().replace(':', "-");
        (route.destination_prefix.clone(), route.provider_address.clone(), route.isolation_id, mac)
    };
    let (present, wanted) = (remote(existing), remote(&desired.network));
    let lacks = |list: &[(RemoteSubnetRoute, NetworkPolicy)], route: &RemoteSubnetRoute| !list.iter().any(|(other, _)| key(other) == key(route));
    let of = |list: &[(RemoteSubnetRoute, NetworkPolicy)], other: &[(RemoteSubnetRoute, NetworkPolicy)]| {
        list.iter().filter(|(route, _)| lacks(other, route)).map(|(_, policy)| policy.clone()).collect()
    };
    (of(&present, &wanted), of(&wanted, &present))
}

/// Makes the network know the prefixes of other nodes. True when something was written.
async fn keep_remote_subnets(client: &HcnClient, existing: &HostComputeNetwork, desired: &Desired) -> Result<bool, HnsError> {
    let (stale, missing) = plan_remote_subnets(existing, desired);
    let name = &existing.name;
    for (request_type, policies, what) in [(RequestType::Remove, &stale, "take from"), (RequestType::Add, &missing, "put to")] {
        if policies.is_empty() {
            continue;
        }
        let prefixes: Vec<String> = policies
            .iter()
            .filter_map(NetworkPolicy::as_remote_subnet_route)
            .map(|route| format!("{} at {}", route.destination_prefix, route.provider_address))
            .collect();
        let request = ModifyRequest::network_policies(request_type, policies);
        let changed = client.modify_network(&existing.id, request).await;
        changed.map_err(failed(format!("{what} HNS network {name:?} the remote subnets {}", prefixes.join(", "))))?;
        tracing::info!(network = name, "{what} the HNS network: remote subnets {}", prefixes.join(", "));
    }
    Ok(!stale.is_empty() || !missing.is_empty())
}

/// What must happen to the host's endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndpointStep {
    Keep,
    Attach,
    Create,
    Recreate,
}

fn plan_endpoint(existing: Option<&HostComputeEndpoint>, network: Guid, desired: &HostComputeEndpoint) -> EndpointStep {
    let Some(existing) = existing else { return EndpointStep::Create };
    let addresses = |endpoint: &HostComputeEndpoint| endpoint.ip_configurations.iter().filter_map(|ip| ip.ip_address.parse().ok()).collect();
    let (present, wanted): (BTreeSet<IpAddr>, BTreeSet<IpAddr>) = (addresses(existing), addresses(desired));
    if existing.host_compute_network != network || present != wanted {
        return EndpointStep::Recreate;
    }
    let attached = matches!(existing.state, EndpointState::ATTACHED | EndpointState::ATTACHED_SHARING);
    if attached { EndpointStep::Keep } else { EndpointStep::Attach }
}

async fn make_endpoint(client: &HcnClient, network: Guid, id: Guid, desired: &HostComputeEndpoint, step: EndpointStep) -> Result<(), HnsError> {
    let name = &desired.name;
    if step == EndpointStep::Keep {
        return Ok(());
    }
    if step == EndpointStep::Recreate {
        client.delete_endpoint(&id).await.map_err(failed(format!("delete endpoint {name}")))?;
    }
    if step != EndpointStep::Attach {
        let created = client.create_endpoint(&network, id, desired).await;
        created.map_err(failed(format!("create the host's endpoint {name}")))?;
    }
    client.attach_endpoint_to_host(&id).await.map_err(failed(format!("attach endpoint {name} to the host")))
}

#[cfg(test)]
mod tests;
