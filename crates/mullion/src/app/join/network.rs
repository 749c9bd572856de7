//! Network objects of a node that leaves: those with our mark, and no others.

use anyhow::Result;

/// What is removed, in words.
#[cfg(target_os = "linux")]
pub const TEXT: &str = "remove mullion's nftables tables and routes";
#[cfg(not(target_os = "linux"))]
pub const TEXT: &str = "keep the networks of HNS: `mullion kube-proxy --cleanup` removes those of the service proxy";

/// The pod network's configuration, where the container runtime reads it: without agents of ours it would give pods addresses all the same.
#[cfg(target_os = "linux")]
const CNI_CONF: &str = "/etc/cni/net.d/10-mullion.conflist";
#[cfg(target_os = "linux")]
pub const CNI_TEXT: &str = "remove /etc/cni/net.d/10-mullion.conflist";
#[cfg(not(target_os = "linux"))]
const CNI_CONF: &str = r"C:\etc\cni\net.d\10-mullion.conflist";
#[cfg(not(target_os = "linux"))]
pub const CNI_TEXT: &str = r"remove C:\etc\cni\net.d\10-mullion.conflist";

/// Removes the configuration of our pod network; one that there is not is fine.
fn remove_cni_conf() -> Result<(), String> {
    match std::fs::remove_file(CNI_CONF) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(format!("{CNI_CONF}: {error}")),
        _ => Ok(()),
    }
}

/// Removes tables of nftables and routes, and what CNI reads where that is asked for; what fails does not keep the rest.
#[cfg(target_os = "linux")]
pub fn clean(cni: bool) -> Result<()> {
    use host::{LinuxRoutes, Routes as _};
    use thiserror_ext::AsReport as _;

    let mut problems = Vec::new();
    let mut note = |result: Result<(), String>| problems.extend(result.err());
    if cni {
        note(remove_cni_conf());
    }
    note(service_proxy::nftables::cleanup().map(drop).map_err(|error| error.to_report_string()));
    note(network_policy::nftables::cleanup().map(drop).map_err(|error| error.to_report_string()));
    note(fabric::apply::forwarding::cleanup().map_err(|error| error.to_report_string()));
    match LinuxRoutes::open().and_then(|routes| routes.list().map(|all| (routes, all))) {
        Ok((routes, all)) => {
            for route in all.iter().filter(|route| route.ours) {
                note(routes.delete(route).map_err(|error| error.to_report_string()));
            }
        }
        Err(error) => note(Err(error.to_report_string())),
    }
    if problems.is_empty() { Ok(()) } else { Err(anyhow::anyhow!("the files are removed, but not all of the network: {}", problems.join("; "))) }
}

/// HNS networks carry the identity of their cluster, which a machine that has left does not know.
#[cfg(not(target_os = "linux"))]
pub fn clean(cni: bool) -> Result<()> {
    let removed = if cni { remove_cni_conf() } else { Ok(()) };
    removed.map_err(|reason| anyhow::anyhow!("the files are removed, but not all of the network: {reason}"))
}
