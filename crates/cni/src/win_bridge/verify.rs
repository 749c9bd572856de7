//! Whether an endpoint that HNS says it attached is what a pod needs. HNS has been seen to say yes and leave the endpoint without an adapter, or in
//! no namespace (calico#12795, calico#4280).

use std::net::IpAddr;
use std::time::{Duration, Instant};

use hcn::blocking::{Client, Opened};
use hcn::{EndpointState, Guid, HostComputeEndpoint, HostComputeNamespace};

use super::hns;
use crate::spec::{CniError, code};

/// How long HNS may take to show what it did.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);
/// How often is looked meanwhile.
pub(super) const LOOK: Duration = Duration::from_millis(100);

/// The endpoint as HNS shows it, once it is attached to the namespace with an adapter and at least the addresses of `expected`; with `unchecked`
/// at once.
pub(super) fn attached(
    client: &Client,
    namespace: Guid,
    endpoint: &Opened<'_, HostComputeEndpoint>,
    expected: &HostComputeEndpoint,
    unchecked: bool,
) -> Result<HostComputeEndpoint, CniError> {
    let until = Instant::now() + PATIENCE;
    loop {
        let shown = endpoint.read().map_err(|e| hns(format_args!("read endpoint {}", expected.name), &e))?;
        match look(client, namespace, shown, expected, unchecked)? {
            Ok(shown) => return Ok(shown),
            Err(_) if Instant::now() < until => std::thread::sleep(LOOK),
            Err(defect) => {
                let text = format!(
                    "cannot connect endpoint {} to namespace {namespace}: HNS accepted it, and {defect}; if that does not pass, restart the Host \
                     Networking Service",
                    expected.name
                );
                return Err(CniError::new(code::HOST_NETWORK, text));
            }
        }
    }
}

/// The endpoint as HNS shows it, or what is missing in it.
fn look(
    client: &Client,
    namespace: Guid,
    shown: Option<HostComputeEndpoint>,
    expected: &HostComputeEndpoint,
    unchecked: bool,
) -> Result<Result<HostComputeEndpoint, String>, CniError> {
    let Some(shown) = shown else { return Ok(Err("the endpoint is gone".to_owned())) };
    if unchecked {
        return Ok(Ok(shown));
    }
    if shown.host_compute_namespace != namespace {
        let other = shown.host_compute_namespace;
        return Ok(Err(if other.is_nil() { "the endpoint is in no namespace".to_owned() } else { format!("the endpoint is in namespace {other}") }));
    }
    if shown.ip().is_none() {
        return Ok(Err("the endpoint has no address".to_owned()));
    }
    let has = |address: &str| shown.ip_configurations.iter().any(|ip| ip.ip_address.parse::<IpAddr>().ok() == address.parse().ok());
    if let Some(missing) = expected.ip_configurations.iter().find(|ip| !has(&ip.ip_address)) {
        return Ok(Err(format!("the endpoint has no address {}", missing.ip_address)));
    }
    if matches!(shown.state, EndpointState::ATTACHED | EndpointState::ATTACHED_SHARING) || !has_compartment(client, namespace)? {
        return Ok(Ok(shown));
    }
    Ok(Err(format!("the endpoint is in state {} ({}), without a network adapter", shown.state, state_name(shown.state))))
}

/// Whether the namespace has its compartment. Before it has, no adapter can be in it.
fn has_compartment(client: &Client, namespace: Guid) -> Result<bool, CniError> {
    let known: Option<HostComputeNamespace> = client.get(&namespace).map_err(|e| hns(format_args!("read namespace {namespace}"), &e))?;
    Ok(known.is_some_and(|namespace| namespace.namespace_id != 0))
}

fn state_name(state: u32) -> &'static str {
    match state {
        EndpointState::UNINITIALISED => "uninitialised",
        EndpointState::CREATED => "created",
        EndpointState::DETACHED => "detached",
        EndpointState::DEGRADED => "degraded",
        EndpointState::DESTROYED => "destroyed",
        _ => "unknown",
    }
}
