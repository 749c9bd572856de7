//! Settings of the proxy and its backends, from KubeProxyConfiguration.

mod gaps;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;

use hcn::HcnClient;
use node_config::NetworkName;
use node_config::kube_proxy::{KubeProxyConfiguration, ProxyMode};

use crate::node_ports::NodePorts;
use crate::rows::NodeRow;
use crate::run::BackendConfig;
use crate::vips::NodePolicy;

pub use gaps::warn_of_gaps;

/// Why a configuration cannot be followed. Each message is one line with the way out.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    /// nftables elsewhere.
    #[error("--proxy-mode=nftables needs Linux: use kernelspace or userspace")]
    NeedsLinux,
    /// HNS where there is none.
    #[error("--proxy-mode=kernelspace needs a Windows node: use nftables or userspace")]
    NeedsWindows,
    /// HNS without a network.
    #[error("the HNS network of the pods is not named: give --network-name, or set KUBE_NETWORK")]
    NoNetwork,
    /// A node without addresses.
    #[error("the Node has no address: give --bind-address")]
    NoAddress,
    /// The interface of the user space backend.
    #[error(transparent)]
    Interface(#[from] host::AddressesError),
}

/// Which backend serves Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Load balancers of the Host Networking Service (`--proxy-mode=kernelspace`).
    Hns,
    Nftables,
    /// Relays in this process.
    Userspace,
}

impl Mode {
    /// The mode of a configuration. `has_hns` says whether this is Windows, or a Host Networking Service is named: then HNS is the default.
    ///
    /// # Errors
    /// [`OptionsError::NeedsLinux`].
    pub fn of(config: &KubeProxyConfiguration, has_hns: bool) -> Result<Self, OptionsError> {
        let mode = match config.mode {
            ProxyMode::Unset if has_hns => Self::Hns,
            ProxyMode::Kernelspace => Self::Hns,
            ProxyMode::Userspace => Self::Userspace,
            ProxyMode::Unset | ProxyMode::Nftables => Self::Nftables,
            other @ (ProxyMode::Iptables | ProxyMode::Ipvs) => {
                tracing::warn!("there is no {other} backend: nftables serves the same Services");
                Self::Nftables
            }
        };
        if mode == Self::Nftables && !cfg!(target_os = "linux") {
            return Err(OptionsError::NeedsLinux);
        }
        Ok(mode)
    }

    /// Its name in `--proxy-mode`.
    pub fn as_str(self) -> &'static str {
        ProxyMode::from(self).as_str()
    }
}

impl From<Mode> for ProxyMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Hns => Self::Kernelspace,
            Mode::Nftables => Self::Nftables,
            Mode::Userspace => Self::Userspace,
        }
    }
}

/// The configuration as it is in effect: with the mode that was chosen, the network that the environment names, and one switch for direct
/// server return. `/configz` serves this.
pub fn in_effect(mut config: KubeProxyConfiguration, mode: Mode, kube_network: Option<String>) -> KubeProxyConfiguration {
    config.mode = mode.into();
    if config.winkernel.network_name.is_empty() {
        config.winkernel.network_name = kube_network.unwrap_or_default();
    }
    config.winkernel.enable_dsr &= config.feature_gates.get("WinDSR") != Some(&false);
    config
}

/// The node's addresses, that of the configuration first.
///
/// # Errors
/// [`OptionsError::NoAddress`].
pub fn node_ips(config: &KubeProxyConfiguration, node: &NodeRow) -> Result<Vec<IpAddr>, OptionsError> {
    let given = Some(config.bind_address).filter(|ip| !ip.is_unspecified());
    let mut ips: Vec<IpAddr> = given.into_iter().collect();
    ips.extend(node.addresses.iter().filter(|ip| Some(**ip) != given));
    if ips.is_empty() { Err(OptionsError::NoAddress) } else { Ok(ips) }
}

/// What decides about every Service of the node alike.
pub fn policy(config: &KubeProxyConfiguration, node_ips: Vec<IpAddr>) -> NodePolicy {
    NodePolicy { node_ips, forwarded_health_port: forwarded_health_port(config), ..NodePolicy::default() }
}

/// The port that health checks forwarded by load balancers ask, where that is on.
fn forwarded_health_port(config: &KubeProxyConfiguration) -> Option<u16> {
    let at = config.healthz_bind_address.socket(node_config::kube_proxy::HEALTHZ_PORT).filter(|_| config.winkernel.forward_health_check_vip);
    at.map(|at| at.port())
}

/// What a backend needs of the node, beside the configuration.
#[derive(Default)]
pub struct Host<'a> {
    /// The node's addresses, the main one first.
    pub ips: &'a [IpAddr],
    /// Its Node object, where that was read.
    pub row: NodeRow,
    pub hcn: Option<HcnClient>,
    /// MAC of its adapter, in the form of HNS.
    pub mac: Option<String>,
    /// The interface that gets Services' addresses in mode userspace.
    pub service_interface: Option<&'a str>,
    /// Whether pods' traffic to other networks gets the node's address (nftables).
    pub masquerade_leaving: bool,
}

/// The backend of a mode.
///
/// # Errors
/// When the host does not have what the mode needs.
pub fn backend(config: &KubeProxyConfiguration, mode: Mode, host: Host<'_>) -> Result<BackendConfig, OptionsError> {
    match mode {
        Mode::Hns => {
            let settings = hns(config, host.ips, host.mac)?;
            Ok(BackendConfig::Hns { client: host.hcn.ok_or(OptionsError::NeedsWindows)?, settings })
        }
        #[cfg(target_os = "linux")]
        Mode::Nftables => {
            let settings = nftables(config, &host.row, host.ips);
            Ok(BackendConfig::Nftables(crate::nftables::Settings { masquerade_leaving: host.masquerade_leaving, ..settings }))
        }
        #[cfg(not(target_os = "linux"))]
        Mode::Nftables => Err(OptionsError::NeedsLinux),
        Mode::Userspace => Ok(BackendConfig::Userspace(userspace(config, host.ips, host.service_interface)?)),
    }
}

/// Settings of the HNS backend. `host_mac` is the MAC of the node's adapter, where it is known.
///
/// # Errors
/// [`OptionsError::NoNetwork`].
pub fn hns(config: &KubeProxyConfiguration, node_ips: &[IpAddr], host_mac: Option<String>) -> Result<crate::hns::Settings, OptionsError> {
    let kernel = &config.winkernel;
    if kernel.network_name.is_empty() {
        return Err(OptionsError::NoNetwork);
    }
    Ok(crate::hns::Settings {
        dsr: kernel.enable_dsr,
        source_vip: kernel.source_vip,
        node_ips: node_ips.to_vec(),
        host_mac,
        root_endpoint: kernel.root_hns_endpoint_name.clone(),
        ..crate::hns::Settings::new(kernel.network_name.clone())
    })
}

fn node_ports(config: &KubeProxyConfiguration) -> NodePorts {
    match config.node_port_addresses.as_slice() {
        [] | [NetworkName::Primary] => NodePorts::Primary,
        names => NodePorts::Nets(names.iter().flat_map(|name| name.networks()).collect()),
    }
}

/// Settings of the nftables backend.
#[cfg(target_os = "linux")]
fn nftables(config: &KubeProxyConfiguration, node: &NodeRow, node_ips: &[IpAddr]) -> crate::nftables::Settings {
    use node_config::kube_proxy::DetectLocalMode;

    use crate::nftables::{Pods, Settings};
    let cidrs = config.cluster_cidr.networks();
    let pods = match config.detect_local_mode {
        DetectLocalMode::NodeCidr => Pods::Nets(node.pod_cidrs.clone()),
        DetectLocalMode::BridgeInterface => Pods::Interface(config.detect_local.bridge_interface.clone()),
        DetectLocalMode::InterfaceNamePrefix => Pods::InterfacePrefix(config.detect_local.interface_name_prefix.clone()),
        DetectLocalMode::Unset | DetectLocalMode::ClusterCidr if cidrs.is_empty() => Pods::Unknown,
        DetectLocalMode::Unset | DetectLocalMode::ClusterCidr => Pods::Nets(cidrs),
    };
    Settings {
        node_ports: node_ports(config),
        masquerade_all: config.nftables.masquerade_all,
        masquerade_mark: config.nftables.masquerade_bit.mark(),
        ..Settings::new(node_ips.to_vec(), pods)
    }
}

/// Settings of the user space backend. `interface` names the interface that gets Services' addresses.
///
/// # Errors
/// When that interface is not there.
fn userspace(config: &KubeProxyConfiguration, node_ips: &[IpAddr], interface: Option<&str>) -> Result<crate::userspace::Settings, OptionsError> {
    let interface: Option<Arc<dyn host::Addresses>> = match interface.filter(|name| !name.is_empty()) {
        #[cfg(target_os = "linux")]
        Some(name) => Some(Arc::new(host::LinuxAddresses::open(name)?)),
        #[cfg(windows)]
        Some(name) => Some(Arc::new(host::WindowsAddresses::open(name)?)),
        None => {
            tracing::warn!("no interface gets Services' addresses, so only node ports are served: give --service-interface");
            None
        }
    };
    Ok(crate::userspace::Settings {
        interface,
        node_ips: node_ips.to_vec(),
        node_ports: node_ports(config),
        pods: config.cluster_cidr.networks(),
        udp_idle: config.udp_idle_timeout.0,
    })
}
