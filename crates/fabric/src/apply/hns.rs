//! Makes the HNS network of a Windows node and the host's own endpoint on it.

use hcn::{EndpointState, Guid, HcnClient, HcnError, HostComputeEndpoint, HostComputeNetwork, Subnet};
use ipnet::IpNet;

use crate::hns::{Desired, OWNER};

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

/// Makes the network and the host's endpoint what is desired. `before_change` runs before the first write: until all of
/// it is done, no pod should be attached. True when something was written.
pub async fn ensure(client: &HcnClient, desired: &Desired, before_change: impl FnOnce()) -> Result<bool, HnsError> {
    let name = &desired.network.name;
    let existing = client.network_by_name(name).await.map_err(failed(format!("look up HNS network {name:?}")))?;
    let step = plan(existing.as_ref(), desired)?;
    let network_id = existing.as_ref().map_or(desired.network_id, |network| network.id);
    let host_endpoint = client.endpoint(&desired.endpoint_id).await.map_err(failed(format!("read endpoint {}", desired.endpoint.name)))?;
    let endpoint_step = plan_endpoint(host_endpoint.as_ref(), network_id, desired);
    if step == NetworkStep::Keep && endpoint_step == EndpointStep::Keep {
        return Ok(false);
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
    make_endpoint(client, network_id, desired, if gone { EndpointStep::Create } else { endpoint_step }).await?;
    Ok(true)
}

/// What must happen to the host's endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndpointStep {
    Keep,
    Attach,
    Create,
    Recreate,
}

fn plan_endpoint(existing: Option<&HostComputeEndpoint>, network: Guid, desired: &Desired) -> EndpointStep {
    let Some(existing) = existing else { return EndpointStep::Create };
    if existing.host_compute_network != network || existing.ip() != desired.endpoint.ip() {
        return EndpointStep::Recreate;
    }
    let attached = matches!(existing.state, EndpointState::ATTACHED | EndpointState::ATTACHED_SHARING);
    if attached { EndpointStep::Keep } else { EndpointStep::Attach }
}

async fn make_endpoint(client: &HcnClient, network: Guid, desired: &Desired, step: EndpointStep) -> Result<(), HnsError> {
    let name = &desired.endpoint.name;
    if step == EndpointStep::Keep {
        return Ok(());
    }
    if step == EndpointStep::Recreate {
        client.delete_endpoint(&desired.endpoint_id).await.map_err(failed(format!("delete endpoint {name}")))?;
    }
    if step != EndpointStep::Attach {
        let created = client.create_endpoint(&network, desired.endpoint_id, &desired.endpoint).await;
        created.map_err(failed(format!("create the host's endpoint {name}")))?;
    }
    client.attach_endpoint_to_host(&desired.endpoint_id).await.map_err(failed(format!("attach endpoint {name} to the host")))
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
}
