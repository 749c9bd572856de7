//! Carrying out what a mode decided, part by part. Each part compares with the host first and changes what differs.

pub mod cni;
#[cfg(target_os = "linux")]
pub mod forwarding;
pub mod hns;
pub mod publish;
pub mod routes;
pub mod sessions;
#[cfg(target_os = "linux")]
pub mod tunnels;

use crate::mode::Desired;

/// Makes the tunnel of this host, and makes peers known to it. Its number, where there is one.
#[cfg(target_os = "linux")]
pub(crate) fn open_tunnel(desired: &Desired) -> Result<Option<u32>, String> {
    use thiserror_ext::AsReport as _;
    let Some(tunnel) = &desired.tunnel else { return Ok(None) };
    let opened = tunnels::ensure(tunnel).and_then(|index| tunnels::add(&tunnel.name, index, &desired.vteps).map(|_| index));
    opened.map(Some).map_err(|error| error.to_report_string())
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn open_tunnel(_: &Desired) -> Result<Option<u32>, String> {
    Ok(None)
}

/// Forgets peers that are gone.
#[cfg(target_os = "linux")]
pub(crate) fn trim_tunnel(desired: &Desired, index: Option<u32>) -> Result<(), String> {
    use thiserror_ext::AsReport as _;
    let (Some(tunnel), Some(index)) = (&desired.tunnel, index) else { return Ok(()) };
    tunnels::remove_stale(&tunnel.name, index, &desired.vteps).map(drop).map_err(|error| error.to_report_string())
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn trim_tunnel(_: &Desired, _: Option<u32>) -> Result<(), String> {
    Ok(())
}
