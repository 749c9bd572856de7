//! When an address may be given out again: once HNS shows no endpoint that has it. HNS has been seen to delete an endpoint with success and keep
//! it (WC#631, antrea#2301), and to keep those of sandboxes that are gone.

use std::time::Instant;

use hcn::blocking::Client;
use hcn::{Guid, HResult, HcnError, HostComputeEndpoint, HostComputeNamespace, HostComputeNetwork, Query};

use super::verify::{LOOK, PATIENCE};
use super::{OWNER, hns};
use crate::spec::{CniError, code};

/// Deletes an endpoint and looks whether it is gone; once more while it is not.
pub(super) fn delete(client: &Client, id: &Guid, name: &str) -> Result<(), CniError> {
    let failed = |what: &str, error: HcnError| hns(format_args!("{what} endpoint {name}"), &error);
    let until = Instant::now() + PATIENCE;
    loop {
        client.delete::<HostComputeEndpoint>(id).map_err(|e| failed("delete", e))?;
        if client.get::<HostComputeEndpoint>(id).map_err(|e| failed("read", e))?.is_none() {
            return Ok(());
        }
        if Instant::now() >= until {
            let text = format!(
                "cannot delete endpoint {name}: HNS says that it did, and still shows it; its address stays reserved, and the next DEL or GC tries again"
            );
            return Err(CniError::new(code::TRY_AGAIN, text));
        }
        std::thread::sleep(LOOK);
    }
}

/// Whether HNS says that another endpoint has the address.
pub(super) fn is_taken(error: &HcnError) -> bool {
    matches!(error.hresult(), Some(HResult::OBJECT_ALREADY_EXISTS | HResult::ADDR_INVALID_OR_RESERVED))
}

/// Removes the endpoint that has the address of `desired`, if it is one of ours whose sandbox is gone. Whether there was one.
pub(super) fn evict(client: &Client, network: &HostComputeNetwork, desired: &HostComputeEndpoint) -> Result<bool, CniError> {
    let failed = |error: HcnError| hns(format_args!("look for the endpoint that has the address of {}", desired.name), &error);
    let all: Vec<HostComputeEndpoint> = client.list(&Query::by_network(&network.id)).map_err(failed)?;
    let holder = all.into_iter().find(|endpoint| endpoint.owner == OWNER && !endpoint.is_remote() && endpoint.ip() == desired.ip());
    let Some(holder) = holder.filter(|holder| holder.ip().is_some()) else { return Ok(false) };
    let namespace = holder.host_compute_namespace;
    if !namespace.is_nil() && client.get::<HostComputeNamespace>(&namespace).map_err(failed)?.is_some() {
        return Ok(false);
    }
    tracing::debug!(endpoint = holder.name, "removing an endpoint whose sandbox is gone: a new one gets its address");
    delete(client, &holder.id, &holder.name).map(|()| true)
}
