//! What pods of a node that leaves have left of network and mounts: what has our mark, or is below the agent's directory, and nothing else.

use anyhow::Result;
use join::places::Places;

/// What is removed, in words.
#[cfg(target_os = "linux")]
pub const TEXT: &str = "remove mullion's nftables tables and routes, and unmount what is mounted below the directory of pods";
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

/// Unmounts volumes of pods: nobody would later, and secrets are among them.
#[cfg(target_os = "linux")]
fn unmount(places: &Places) -> std::io::Result<()> {
    let pods = match places.kubelet_dir().join("pods").canonicalize() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    linux_sys::mount::mounts_below(&pods)?.iter().rev().try_for_each(|mount| linux_sys::mount::umount(mount))
}

/// Removes tables of nftables and routes, and what CNI reads; what fails does not keep the rest.
#[cfg(target_os = "linux")]
pub fn clean(places: &Places) -> Result<()> {
    use host::{LinuxRoutes, Routes as _};
    use thiserror_ext::AsReport as _;

    let mut problems = Vec::new();
    let mut note = |result: Result<(), String>| problems.extend(result.err());
    note(remove_cni_conf());
    note(unmount(places).map_err(|error| format!("volumes of pods stay mounted: {error}")));
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
pub fn clean(_places: &Places) -> Result<()> {
    remove_cni_conf().map_err(|reason| anyhow::anyhow!("the files are removed, but not all of the network: {reason}"))
}
