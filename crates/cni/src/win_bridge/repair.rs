//! CHECK: compares an attachment with what ADD made, and repairs in place what HNS lost.
//!
//! Repaired are endpoints of our own that are gone, or that are in no namespace: made again with the id, address and MAC that ADD
//! reported, in the namespace where the sandbox's processes are. Refused with code 102 is what needs another sandbox: the namespace is gone (its
//! compartment, with the processes in it, has no interface and gets none), the network has another subnet, or something else than ADD made
//! has the name. Until the network is there (its owner makes it again) and while HNS does not answer, CHECK says "try again" (code 11).

use std::net::IpAddr;

use hcn::blocking::Client;
use hcn::{Guid, HostComputeEndpoint, HostComputeNamespace, HostComputeNetwork};

use ipnet::IpNet;

use super::config::Config;
use super::network::find_network;
use super::{OWNER, attach, create, delete_endpoint, endpoint_id, endpoint_name, find_endpoint, hns, namespace_id, opened_endpoint};
use crate::ipam;
use crate::plugin::{Command, Request};
use crate::spec::{AddResult, CniError, code};

/// What has to happen to an attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// It is what ADD made.
    Keep,
    /// The endpoint is in no namespace.
    Attach,
    /// The endpoint is gone.
    Create,
    /// The endpoint is ours, and on a network that was replaced.
    Recreate,
}

fn drift(text: String) -> CniError {
    CniError::new(code::DRIFT, text)
}

/// Whether we made the endpoint: it has our mark, and the id that follows from its network and name.
fn is_ours(endpoint: &HostComputeEndpoint) -> bool {
    endpoint.owner == OWNER && endpoint.id == endpoint_id(&endpoint.host_compute_network, &endpoint.name)
}

/// Decides for an endpoint of that name, which should be on `network` in `namespace` (pure). `desired` is what ADD reported, where the runtime
/// remembers it.
fn plan(
    network: &HostComputeNetwork,
    namespace: Guid,
    name: &str,
    endpoint: Option<&HostComputeEndpoint>,
    desired: Option<&AddResult>,
) -> Result<Step, CniError> {
    let wanted: Vec<IpAddr> = desired.iter().flat_map(|result| &result.ips).map(|ip| ip.address.addr()).collect();
    let prefixes: Vec<IpNet> = network.subnets().filter_map(hcn::Subnet::prefix).collect();
    let outside = |address: &&IpAddr| !prefixes.is_empty() && !prefixes.iter().any(|prefix| prefix.contains(*address));
    if let Some(address) = wanted.iter().find(outside) {
        let prefixes = prefixes.iter().map(IpNet::to_string).collect::<Vec<_>>().join(" and ");
        return Err(drift(format!("address {address} is outside the subnet {prefixes} that network {:?} has now", network.name)));
    }
    let Some(endpoint) = endpoint else {
        return if !wanted.is_empty() { Ok(Step::Create) } else { Err(drift(format!("endpoint {name} is gone, and its address is not known"))) };
    };
    let here = endpoint.host_compute_network == network.id;
    let present: Vec<IpAddr> = endpoint.ip_configurations.iter().filter_map(|ip| ip.ip_address.parse().ok()).collect();
    if let Some(address) = wanted.iter().find(|address| here && !present.contains(address)) {
        return Err(drift(format!("endpoint {name} does not have address {address}")));
    }
    match endpoint.host_compute_namespace {
        current if current == namespace && here => Ok(Step::Keep),
        _ if !is_ours(endpoint) => {
            Err(drift(format!("endpoint {name} ({}) is not in namespace {namespace}, and is not ours to repair", endpoint.id)))
        }
        current if here && current.is_nil() => Ok(Step::Attach),
        current if here => Err(drift(format!("endpoint {name} is not in namespace {namespace} but in {current}"))),
        _ if !wanted.is_empty() => Ok(Step::Recreate),
        _ => Err(drift(format!("endpoint {name} is on another network than {:?}, and its address is not known", network.name))),
    }
}

/// Compares and repairs.
pub(super) fn check(client: &Client, request: &Request, config: &Config) -> Result<(), CniError> {
    let namespace = namespace_id(request)?;
    let name = endpoint_name(request, config.kind);
    let desired = request.config.prev_result()?;
    // The namespace first: without it nothing can be repaired, whether or not there is a network.
    let known: Option<HostComputeNamespace> = client.get(&namespace).map_err(|e| hns(format_args!("read namespace {namespace}"), &e))?;
    if known.is_none() {
        return Err(drift(format!("namespace {namespace} is gone: the sandbox's processes have no network and need a new sandbox")));
    }
    let network = find_network(client, &request.config.name, config.kind, config.hns_network.as_ref())?;
    let endpoint = find_endpoint(client, &name)?;
    // The endpoint must not use an address that IPAM has given to another pod since.
    ipam::delegate(request, Command::Check)?;
    let step = plan(&network.document, namespace, &name, endpoint.as_ref(), desired.as_ref())?;
    if step == Step::Keep {
        return Ok(());
    }
    tracing::debug!(endpoint = name, %namespace, ?step, "repairing an attachment");
    match (step, endpoint) {
        (Step::Attach, Some(endpoint)) => match opened_endpoint(client, &endpoint.id, &name)? {
            Some(opened) => attach(client, namespace, &opened, &endpoint, config).map(drop),
            None => Err(drift(format!("endpoint {name} went while it was looked at"))),
        },
        (step, endpoint) => {
            if let (Step::Recreate, Some(old)) = (step, endpoint) {
                delete_endpoint(client, &old)?;
            }
            let mut again = config.endpoint(&name, &network.document, desired.as_ref());
            again.mac_address =
                desired.iter().flat_map(|result| &result.interfaces).find(|i| i.name == name).map(|i| i.mac.clone()).unwrap_or_default();
            create(client, namespace, &network, &again, config).map(drop).map_err(|failure| failure.error)
        }
    }
}
