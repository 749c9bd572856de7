//! Makes the HNS network of a Windows node and the host's own endpoint on it.

use hcn::document::{ModifyRequest, RemoteSubnetRoute, RequestType};
use hcn::{EndpointState, Guid, HcnClient, HcnError, HostComputeEndpoint, HostComputeNetwork, NetworkPolicy, Subnet};
use ipnet::IpNet;

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
        "HNS network {name:?} exists and is not ours (id {id}, owner {owner:?}): remove it (Get-HnsNetwork | ? Name -eq {name} | Remove-HnsNetwork) or choose another name for the pod network"
    )]
    Foreign {
        name: String,
        id: Guid,
        /// The owner that it names.
        owner: String,
    },
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
            Self::Call { .. } => Kind::Failed,
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
        return Err(HnsError::Foreign { name: existing.name.clone(), id: existing.id, owner: existing.owner.clone() });
    }
    let prefix = |network: &HostComputeNetwork| network.subnets().next().and_then(Subnet::prefix);
    let show = |prefix: Option<IpNet>| prefix.map_or_else(|| "none".to_owned(), |p| p.to_string());
    if existing.network_type != desired.network.network_type {
        return Ok(NetworkStep::Recreate { why: format!("its type is {}", existing.network_type) });
    }
    if prefix(existing) != prefix(&desired.network) {
        return Ok(NetworkStep::Recreate { why: format!("its subnet is {}, not {}", show(prefix(existing)), show(prefix(&desired.network))) });
    }
    Ok(NetworkStep::Keep)
}

/// Makes the network and the host's endpoint what is desired. `before_change` runs before the first write that takes the
/// network from pods: until all of it is done, no pod should be attached. True when something was written.
pub async fn ensure(client: &HcnClient, desired: &Desired, before_change: impl FnOnce()) -> Result<bool, HnsError> {
    let name = &desired.network.name;
    let existing = client.network_by_name(name).await.map_err(failed(format!("look up HNS network {name:?}")))?;
    let step = plan(existing.as_ref(), desired)?;
    let network_id = existing.as_ref().map_or(desired.network_id, |network| network.id);
    let endpoint_step = match &desired.endpoint {
        None => EndpointStep::Keep,
        Some(wanted) => {
            let present = client.endpoint(&desired.endpoint_id).await.map_err(failed(format!("read endpoint {}", wanted.name)))?;
            plan_endpoint(present.as_ref(), network_id, wanted)
        }
    };
    if let (NetworkStep::Keep, EndpointStep::Keep, Some(existing)) = (&step, endpoint_step, &existing) {
        return keep_remote_subnets(client, existing, desired).await;
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
        make_endpoint(client, network_id, desired.endpoint_id, endpoint, if gone { EndpointStep::Create } else { endpoint_step }).await?;
    }
    Ok(true)
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
    if existing.host_compute_network != network || existing.ip() != desired.ip() {
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
mod tests {
    use hcn::{NetworkType, owned_id};

    use super::*;

    fn desired() -> Desired {
        Desired::new("uid", "mullion", "Ethernet", "192.168.1.0/24".parse().unwrap())
    }

    fn existing(change: impl FnOnce(&mut HostComputeNetwork)) -> HostComputeNetwork {
        let mut network = desired().network;
        network.id = desired().network_id;
        change(&mut network);
        network
    }

    #[test]
    fn step_follows_the_observed_network() {
        assert_eq!(plan(None, &desired()).unwrap(), NetworkStep::Create);
        assert_eq!(plan(Some(&existing(|_| {})), &desired()).unwrap(), NetworkStep::Keep);
        let moved = existing(|n| n.ipams[0].subnets[0].ip_address_prefix = "192.168.7.0/24".into());
        assert_eq!(plan(Some(&moved), &desired()).unwrap(), NetworkStep::Recreate { why: "its subnet is 192.168.7.0/24, not 192.168.1.0/24".into() });
        let overlay = existing(|n| n.network_type = NetworkType::Overlay);
        assert!(matches!(plan(Some(&overlay), &desired()).unwrap(), NetworkStep::Recreate { .. }));
    }

    #[test]
    fn own_network_under_an_id_of_the_service_is_kept_or_replaced() {
        let renamed = existing(|n| n.id = Guid::random());
        assert_eq!(plan(Some(&renamed), &desired()).unwrap(), NetworkStep::Keep);
        let moved = existing(|n| {
            n.id = Guid::random();
            n.ipams[0].subnets[0].ip_address_prefix = "192.168.7.0/24".into();
        });
        assert!(matches!(plan(Some(&moved), &desired()).unwrap(), NetworkStep::Recreate { .. }));
        let other_cluster = existing(|n| n.id = owned_id("other", "network", "mullion"));
        assert!(matches!(plan(Some(&other_cluster), &desired()), Err(HnsError::Foreign { .. })));
    }

    #[test]
    fn foreign_network_is_refused_with_a_way_out() {
        let foreign = existing(|n| {
            n.id = Guid::random();
            n.owner = "docker".into();
        });
        let text = plan(Some(&foreign), &desired()).unwrap_err().to_string();
        assert!(text.contains("not ours") && text.contains("docker") && text.contains("choose another name"), "{text}");
    }

    fn simulated() -> HcnClient {
        use hns_sim::{Simulator, kernel::NoKernel, switches::Switches};
        let kernel = NoKernel { management: Some("10.240.0.12".parse().unwrap()), survived: true };
        let simulator = Simulator::new(Box::new(kernel), Switches::of(hcn::HnsVersion::new(13, 3)), None).unwrap();
        HcnClient::new(simulator.session())
    }

    #[tokio::test]
    async fn network_is_made_once_and_the_host_endpoint_is_repaired() {
        let client = simulated();
        let mut hidden = 0;
        assert!(ensure(&client, &desired(), || hidden += 1).await.unwrap());
        assert!(!ensure(&client, &desired(), || hidden += 1).await.unwrap(), "a second pass writes nothing");
        assert_eq!(hidden, 1);
        let endpoint = client.endpoint(&desired().endpoint_id).await.unwrap().unwrap();
        assert_eq!((endpoint.ip(), endpoint.state), (Some("192.168.1.2".parse().unwrap()), EndpointState::ATTACHED));
        client.delete_endpoint(&desired().endpoint_id).await.unwrap();
        assert!(ensure(&client, &desired(), || hidden += 1).await.unwrap());
        assert!(client.endpoint(&desired().endpoint_id).await.unwrap().is_some());
        assert_eq!(hidden, 2, "without the host's endpoint pods have no gateway");
        let moved = Desired::new("uid", "mullion", "Ethernet", "192.168.9.0/24".parse().unwrap());
        assert!(ensure(&client, &moved, || hidden += 1).await.unwrap());
        assert_eq!(client.endpoint(&moved.endpoint_id).await.unwrap().unwrap().ip(), Some("192.168.9.2".parse().unwrap()));
        let other_cluster = Desired::new("other", "mullion", "Ethernet", "192.168.9.0/24".parse().unwrap());
        assert!(matches!(ensure(&client, &other_cluster, || hidden += 1).await, Err(HnsError::Foreign { .. })));
        assert_eq!(hidden, 3, "what is refused changes nothing");
    }

    fn overlay(peers: &[(&str, &str, &str)]) -> Desired {
        let route = |(prefix, host, mac): &(&str, &str, &str)| RemoteSubnetRoute {
            destination_prefix: (*prefix).into(),
            isolation_id: 4096,
            provider_address: (*host).into(),
            distributed_router_mac_address: (*mac).into(),
            ..RemoteSubnetRoute::default()
        };
        Desired::overlay("uid", "mullion", "Ethernet", "192.168.1.0/24".parse().unwrap(), 4096).with_remote_subnets(peers.iter().map(route))
    }

    fn never() {
        panic!("pods keep their network");
    }

    #[tokio::test]
    async fn remote_subnets_of_an_overlay_follow_without_touching_its_pods() {
        let client = simulated();
        let known = async || {
            let network = client.network_by_name("mullion").await.unwrap().unwrap();
            assert!(network.policies.iter().any(|policy| policy.as_dr_mac_address().is_some()), "HNS chose a MAC");
            let routes = network.policies.iter().filter_map(NetworkPolicy::as_remote_subnet_route);
            routes.map(|route| format!("{} {}", route.destination_prefix, route.provider_address)).collect::<Vec<_>>()
        };
        let two = [("192.168.2.0/24", "10.240.0.2", "00-15-5D-00-00-02"), ("192.168.3.0/24", "10.240.0.3", "00-15-5D-00-00-03")];
        assert!(ensure(&client, &overlay(&two[..1]), || {}).await.unwrap());
        assert!(!ensure(&client, &overlay(&two[..1]), never).await.unwrap(), "a second pass writes nothing");
        assert!(ensure(&client, &overlay(&two), never).await.unwrap());
        assert_eq!(known().await, ["192.168.2.0/24 10.240.0.2", "192.168.3.0/24 10.240.0.3"]);
        let moved = [("192.168.2.0/24", "10.240.0.9", "00-15-5D-00-00-02"), two[1]];
        assert!(ensure(&client, &overlay(&moved), never).await.unwrap());
        assert_eq!(known().await, ["192.168.3.0/24 10.240.0.3", "192.168.2.0/24 10.240.0.9"]);
        assert!(ensure(&client, &overlay(&[]), never).await.unwrap());
        assert!(known().await.is_empty());
    }
}
