//! KubeProxyConfiguration, `kubeproxy.config.k8s.io/v1alpha1`: the members that the service proxy acts on.

pub mod flags;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::document::Document;
use crate::duration::GoDuration;
use crate::values::{ListenAddress, NetworkList, NetworkName, as_text, empty_is_none};

/// Port of the metrics where an address alone is given.
pub const METRICS_PORT: u16 = 10249;
/// Port of the health checks where an address alone is given.
pub const HEALTHZ_PORT: u16 = 10256;

/// The configuration of the service proxy. Defaults are upstream's but for `winkernel.enableDSR`, which is on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KubeProxyConfiguration {
    pub client_connection: ClientConnection,
    /// Name of the Node; empty for the host's name.
    pub hostname_override: String,
    /// Address of the node; unspecified for those of the Node object.
    pub bind_address: IpAddr,
    /// Whether the proxy ends when a port cannot be listened on.
    pub bind_address_hard_fail: bool,
    /// Which backend serves Services.
    pub mode: ProxyMode,
    /// Where metrics are served.
    pub metrics_bind_address: ListenAddress,
    /// Where health is served.
    pub healthz_bind_address: ListenAddress,
    /// Networks of the addresses on which node ports listen; empty means `primary`.
    pub node_port_addresses: Vec<NetworkName>,
    /// Networks of the pods.
    #[serde(rename = "clusterCIDR")]
    pub cluster_cidr: NetworkList,
    /// How pods of this node are recognised.
    pub detect_local_mode: DetectLocalMode,
    /// Details of that.
    pub detect_local: DetectLocal,
    /// The nftables backend.
    pub nftables: Nftables,
    /// How often everything is compared with the host.
    pub sync_period: GoDuration,
    /// How long a client's datagrams stay with a backend while they pause (user space).
    pub udp_idle_timeout: GoDuration,
    /// `WinDSR=false` is the same as `winkernel.enableDSR: false`.
    pub feature_gates: BTreeMap<String, bool>,
    /// The HNS backend.
    pub winkernel: Winkernel,
    /// Whether the service control manager of Windows starts and stops the process.
    pub windows_run_as_service: bool,
    /// Logs.
    pub logging: Logging,
}

/// `clientConnection`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientConnection {
    /// Path of the kubeconfig; empty for the pod's own credentials.
    pub kubeconfig: String,
}

/// `detectLocal`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DetectLocal {
    /// The bridge of `BridgeInterface`.
    pub bridge_interface: String,
    /// The prefix of `InterfaceNamePrefix`.
    pub interface_name_prefix: String,
}

/// `nftables`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Nftables {
    /// Every client of a Service gets this node's address.
    pub masquerade_all: bool,
    /// The bit of the packet mark that asks for that.
    pub masquerade_bit: MasqueradeBit,
}

/// `winkernel`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Winkernel {
    /// HNS network of the pods; empty for the variable `KUBE_NETWORK`.
    pub network_name: String,
    /// Overlays: the source address that backends see where direct server return is off.
    #[serde(with = "empty_is_none")]
    pub source_vip: Option<IpAddr>,
    /// Direct server return for ClusterIPs where HNS has it.
    #[serde(rename = "enableDSR")]
    pub enable_dsr: bool,
    /// The host's own endpoint, which answers forwarded health checks.
    pub root_hns_endpoint_name: String,
    /// Load balancers ask for this node's health at their own address.
    pub forward_health_check_vip: bool,
}

/// `logging`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Logging {
    /// From 4 on every change is logged, from 6 on every plan.
    pub verbosity: u32,
}

impl Default for KubeProxyConfiguration {
    fn default() -> Self {
        Self {
            client_connection: ClientConnection::default(),
            hostname_override: String::new(),
            bind_address: Ipv4Addr::UNSPECIFIED.into(),
            bind_address_hard_fail: false,
            mode: ProxyMode::Unset,
            metrics_bind_address: ListenAddress::Socket((Ipv4Addr::LOCALHOST, METRICS_PORT).into()),
            healthz_bind_address: ListenAddress::Socket((Ipv4Addr::UNSPECIFIED, HEALTHZ_PORT).into()),
            node_port_addresses: Vec::new(),
            cluster_cidr: NetworkList::default(),
            detect_local_mode: DetectLocalMode::Unset,
            detect_local: DetectLocal::default(),
            nftables: Nftables::default(),
            sync_period: GoDuration(Duration::from_secs(30)),
            udp_idle_timeout: GoDuration(Duration::from_millis(250)),
            feature_gates: BTreeMap::new(),
            winkernel: Winkernel::default(),
            windows_run_as_service: false,
            logging: Logging::default(),
        }
    }
}

impl Default for Winkernel {
    fn default() -> Self {
        Self {
            network_name: String::new(),
            source_vip: None,
            enable_dsr: true,
            root_hns_endpoint_name: "cbr0".to_owned(),
            forward_health_check_vip: false,
        }
    }
}

impl Document for KubeProxyConfiguration {
    const API_VERSION: &'static str = "kubeproxy.config.k8s.io/v1alpha1";
    const KIND: &'static str = "KubeProxyConfiguration";
    // Windows has no section of its own for periods upstream.
    const ALIASES: &'static [(&'static str, &'static str)] = &[
        ("iptables.syncPeriod", "syncPeriod"),
        ("nftables.syncPeriod", "syncPeriod"),
        ("iptables.masqueradeAll", "nftables.masqueradeAll"),
        ("iptables.masqueradeBit", "nftables.masqueradeBit"),
        ("nftables.minSyncPeriod", "minSyncPeriod"),
    ];
    const MAPS: &'static [&'static str] = &["featureGates"];

    fn ignored(path: &str) -> Option<&'static str> {
        flags::ignored(path)
    }

    fn is_section(path: &str) -> bool {
        let within = |member: &str| member.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'));
        flags::members().any(within) || Self::ALIASES.iter().any(|(alias, _)| within(alias))
    }

    /// The servers listen at addresses of the family that the node's address has.
    fn complete(&mut self, is_given: &dyn Fn(&str) -> bool, _: &mut Vec<String>) {
        if self.bind_address.is_ipv6() && is_given("bindAddress") {
            if !is_given("metricsBindAddress") {
                self.metrics_bind_address = ListenAddress::Socket((Ipv6Addr::LOCALHOST, METRICS_PORT).into());
            }
            if !is_given("healthzBindAddress") {
                self.healthz_bind_address = ListenAddress::Socket((Ipv6Addr::UNSPECIFIED, HEALTHZ_PORT).into());
            }
        }
    }
}

/// `mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProxyMode {
    /// The default of the system.
    #[default]
    Unset,
    /// HNS.
    Kernelspace,
    Nftables,
    /// Relays in the proxy's own process.
    Userspace,
    /// Not there; nftables serves the same Services.
    Iptables,
    /// Not there; nftables serves the same Services.
    Ipvs,
}

impl ProxyMode {
    /// As upstream writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unset => "",
            Self::Kernelspace => "kernelspace",
            Self::Nftables => "nftables",
            Self::Userspace => "userspace",
            Self::Iptables => "iptables",
            Self::Ipvs => "ipvs",
        }
    }
}

impl fmt::Display for ProxyMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A mode that kube-proxy does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownMode {
    /// `mode`
    #[error("unknown --proxy-mode {0:?}: use kernelspace, nftables or userspace")]
    Proxy(String),
    /// `detectLocalMode`
    #[error("unknown --detect-local-mode {0:?}: use ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix")]
    DetectLocal(String),
}

impl FromStr for ProxyMode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        let all = [Self::Unset, Self::Kernelspace, Self::Nftables, Self::Userspace, Self::Iptables, Self::Ipvs];
        all.into_iter().find(|mode| mode.as_str().eq_ignore_ascii_case(text)).ok_or_else(|| UnknownMode::Proxy(text.to_owned()))
    }
}
as_text!(ProxyMode);

/// `detectLocalMode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DetectLocalMode {
    /// As `ClusterCIDR`.
    #[default]
    Unset,
    /// By `clusterCIDR`.
    ClusterCidr,
    /// By the Node's pod CIDRs.
    NodeCidr,
    /// By `detectLocal.bridgeInterface`.
    BridgeInterface,
    /// By `detectLocal.interfaceNamePrefix`.
    InterfaceNamePrefix,
}

impl fmt::Display for DetectLocalMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unset => "",
            Self::ClusterCidr => "ClusterCIDR",
            Self::NodeCidr => "NodeCIDR",
            Self::BridgeInterface => "BridgeInterface",
            Self::InterfaceNamePrefix => "InterfaceNamePrefix",
        })
    }
}

impl FromStr for DetectLocalMode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        let all = [Self::Unset, Self::ClusterCidr, Self::NodeCidr, Self::BridgeInterface, Self::InterfaceNamePrefix];
        all.into_iter().find(|mode| mode.to_string() == text).ok_or_else(|| UnknownMode::DetectLocal(text.to_owned()))
    }
}
as_text!(DetectLocalMode);

/// A bit of a packet mark, 0 to 31.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MasqueradeBit(u8);

impl MasqueradeBit {
    /// The mark with that bit alone.
    pub fn mark(self) -> u32 {
        1 << self.0
    }
}

impl Default for MasqueradeBit {
    fn default() -> Self {
        Self(14)
    }
}

impl Serialize for MasqueradeBit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(self.0)
    }
}

impl<'de> Deserialize<'de> for MasqueradeBit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bit = i64::deserialize(deserializer)?;
        u8::try_from(bit).ok().filter(|bit| *bit < 32).map(Self).ok_or_else(|| de::Error::custom("--iptables-masquerade-bit is from 0 to 31"))
    }
}
