//! The configuration of `mullion node`: NodeConfiguration (`mullion.io/v1alpha1`) for what upstream has as flags or not at all, beside
//! upstream's KubeletConfiguration and KubeProxyConfiguration, in one file of up to three YAML documents.

pub mod flags;
mod labels;
mod pod_logs;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use kube_rules::NodeOs;
use serde::{Deserialize, Serialize};

use crate::GoDuration;
use crate::document::{self, ConfigError, Document, Parsed};
use crate::kube_proxy::{KubeProxyConfiguration, ProxyMode};
use crate::kubelet::{EvictionHard, KubeletConfiguration};
use crate::values::{Families, NetworkName, as_text};

/// A part of a node that can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The node agent.
    Kubelet,
    /// The service proxy.
    Proxy,
    /// The pod network between nodes.
    Fabric,
}

impl Part {
    pub const ALL: [Self; 3] = [Self::Kubelet, Self::Proxy, Self::Fabric];
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kubelet => "kubelet",
            Self::Proxy => "proxy",
            Self::Fabric => "fabric",
        })
    }
}

/// A part that a node does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no part: use kubelet, proxy or fabric")]
pub struct UnknownPart(String);

impl FromStr for Part {
    type Err = UnknownPart;

    fn from_str(text: &str) -> Result<Self, UnknownPart> {
        Self::ALL.into_iter().find(|part| part.to_string() == text).ok_or_else(|| UnknownPart(text.to_owned()))
    }
}
as_text!(Part);

/// The operating system of the machine that this program was built for.
pub fn default_os() -> NodeOs {
    if cfg!(windows) { NodeOs::Windows { build: 20348 } } else { NodeOs::Linux }
}

mod os_as_text {
    use super::*;

    pub fn serialize<S: serde::Serializer>(os: &NodeOs, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(os)
    }

    pub fn deserialize<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<NodeOs, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// BGP of a node, beside what Calico's resources say. Texts are empty when nothing is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BgpConfiguration {
    /// The AS of this node; 0 for that of the cluster.
    pub as_number: u32,
    /// Routers, with their ASes.
    pub peers: BTreeMap<IpAddr, u32>,
    /// Files with the passwords of peers, by address.
    pub password_files: BTreeMap<IpAddr, String>,
    /// The file with the password of sessions between nodes.
    pub mesh_password_file: String,
}

/// What a node needs to know beside the two kinds of upstream. Texts are empty when nothing is given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeConfiguration {
    /// Path of the kubeconfig with the node's identity.
    pub kubeconfig: String,
    /// Path of a kubeconfig with which the node asks for its identity; empty for none. `kubeconfig` is written then.
    pub bootstrap_kubeconfig: String,
    pub node_name: String,
    /// Labels of a Node that is registered.
    pub node_labels: BTreeMap<String, String>,
    /// `external` where a cloud's controllers complete the Node; empty for none.
    pub cloud_provider: String,
    /// The agent's own directory, in the node's form.
    pub root_dir: String,
    /// Where certificates go, a path of this machine; empty for `pki` below `root_dir`.
    pub cert_dir: String,
    /// Address of the node that others reach it at, or one of each family, as upstream's `--node-ip`.
    #[serde(rename = "nodeIP")]
    pub node_ip: Families<IpAddr>,
    /// Whether the address was read from the machine: nobody gave one. No member of the document.
    #[serde(skip)]
    pub node_ip_is_found: bool,
    /// What the node runs.
    #[serde(with = "os_as_text")]
    pub os: NodeOs,
    /// Directory that is the root of the node's files; on Windows one per drive, as `C=DIR`.
    pub roots: Vec<String>,
    /// The Host Networking Service of a Windows node; empty for the variable `MULLION_HCN`, else the system's DLL.
    pub hcn: String,
    /// Name of the adapter that carries the pod network of a Windows node.
    pub adapter: String,
    /// Whether pods of a Windows node reach themselves through their Services.
    #[serde(rename = "loopbackDSR")]
    pub loopback_dsr: bool,
    /// Every ClusterIP lies here: one network, or one of each family.
    #[serde(rename = "serviceCIDR")]
    pub service_cidr: Families<IpNet>,
    /// The network of the nodes, or one of each family.
    pub lan: Families<IpNet>,
    /// How pods of different nodes reach each other: a mode of the pod network; empty for the default.
    pub network: String,
    /// flannel's `net-conf.json`, which says mode and tunnel in the place of `network`; empty for none.
    pub flannel_net_conf: String,
    /// Where flannel's `subnet.env` goes; empty for nowhere.
    pub flannel_subnet_env: String,
    /// How long a container stays at least after its creation, dead or not.
    #[serde(rename = "minimumContainerTTLDuration")]
    pub minimum_container_ttl_duration: GoDuration,
    /// Dead containers that stay, of all pods; negative for no such bound.
    pub maximum_dead_containers: i32,
    /// Dead attempts of each container that stay, alike.
    pub maximum_dead_containers_per_container: i32,
    /// A file of kind CredentialProviderConfig or a directory of them, in the node's form; empty for none.
    pub image_credential_provider_config: String,
    /// Where the programs of credential providers are, in the node's form.
    pub image_credential_provider_bin_dir: String,
    /// With `network: bgp`.
    pub bgp: BgpConfiguration,
    /// Whether NetworkPolicies and ClusterNetworkPolicies are put into effect.
    pub network_policy: bool,
    /// The interface that gets the Services' addresses where they are served in user space; empty for none.
    pub service_interface: String,
    /// Where the CNI configuration goes.
    pub cni_conf_dir: String,
    /// Where host-local address management keeps its reservations; empty for the plug-in's default.
    pub ipam_dir: String,
    /// CPUs that the node declares, a quantity; empty for those of the machine, and 8 on a simulated host.
    pub cpu: String,
    /// Memory that the node declares, a quantity; empty for that of the machine, and 16Gi on a simulated host.
    pub memory: String,
    /// Identity of the machine, for a simulated host; empty for the real one's.
    #[serde(rename = "machineID")]
    pub machine_id: String,
    /// Identity of this boot, for a simulated host.
    #[serde(rename = "bootID")]
    pub boot_id: String,
    /// Parts that are left out.
    pub without: Vec<Part>,
}

impl Default for NodeConfiguration {
    fn default() -> Self {
        Self {
            kubeconfig: String::new(),
            bootstrap_kubeconfig: String::new(),
            node_name: String::new(),
            node_labels: BTreeMap::new(),
            cloud_provider: String::new(),
            root_dir: "/var/lib/kubelet".to_owned(),
            cert_dir: String::new(),
            node_ip: Families::default(),
            node_ip_is_found: false,
            os: default_os(),
            roots: Vec::new(),
            hcn: String::new(),
            adapter: "Ethernet".to_owned(),
            loopback_dsr: true,
            service_cidr: Families::default(),
            lan: Families::default(),
            network: String::new(),
            flannel_net_conf: String::new(),
            flannel_subnet_env: String::new(),
            minimum_container_ttl_duration: GoDuration::default(),
            maximum_dead_containers: -1,
            maximum_dead_containers_per_container: 1,
            image_credential_provider_config: String::new(),
            image_credential_provider_bin_dir: String::new(),
            bgp: BgpConfiguration::default(),
            network_policy: false,
            service_interface: String::new(),
            cni_conf_dir: String::new(),
            ipam_dir: String::new(),
            cpu: String::new(),
            memory: String::new(),
            machine_id: String::new(),
            boot_id: String::new(),
            without: Vec::new(),
        }
    }
}

impl Document for NodeConfiguration {
    const API_VERSION: &'static str = "mullion.io/v1alpha1";
    const KIND: &'static str = "NodeConfiguration";
    const MAPS: &'static [&'static str] = &["nodeLabels", "bgp.peers", "bgp.passwordFiles"];

    fn ignored(_: &str) -> Option<&'static str> {
        None
    }
}

/// The whole configuration of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeConfig {
    pub node: NodeConfiguration,
    /// The node agent.
    pub kubelet: KubeletConfiguration,
    /// The service proxy; its `clusterCIDR` is that of the pod network too.
    pub kube_proxy: KubeProxyConfiguration,
}

impl NodeConfig {
    /// Reads a file's text: at most one document of each of the three kinds.
    ///
    /// # Errors
    /// Other kinds, kinds that are there twice, and wrong values.
    pub fn read(text: &str) -> Result<Parsed<Self>, ConfigError> {
        Self::of_documents(document::split(text)?)
    }

    /// The same of documents.
    fn of_documents(documents: Vec<serde_json::Value>) -> Result<Parsed<Self>, ConfigError> {
        let (mut node, mut kubelet, mut kube_proxy) = (None, None, None);
        let mut warnings = Vec::new();
        for document in documents {
            if document::is_a::<KubeletConfiguration>(&document) {
                take(&mut kubelet, &document, &mut warnings)?;
            } else if document::is_a::<KubeProxyConfiguration>(&document) {
                take(&mut kube_proxy, &document, &mut warnings)?;
            } else if document::is_a::<NodeConfiguration>(&document) {
                take(&mut node, &document, &mut warnings)?;
            } else {
                let (kind, version) = document::kind_of(&document);
                let expected = "NodeConfiguration, KubeletConfiguration or KubeProxyConfiguration".to_owned();
                return Err(ConfigError::OtherKind { kind: kind.to_owned(), version: version.to_owned(), expected });
            }
        }
        let config = Self { node: node.unwrap_or_default(), kubelet: kubelet.unwrap_or_default(), kube_proxy: kube_proxy.unwrap_or_default() };
        Ok(Parsed { config, warnings })
    }

    /// The text of a file that means this configuration.
    pub fn to_yaml(&self) -> String {
        [document::to_yaml(&self.node), document::to_yaml(&self.kubelet), document::to_yaml(&self.kube_proxy)].join("---\n")
    }

    /// Checks that what has no default is there, and fills what one document knows of another. `network` names the pods' network in HNS.
    ///
    /// # Errors
    /// [`ConfigError::Conflict`], which names flag and member.
    pub fn complete(mut self, network: &str) -> Result<Complete, ConfigError> {
        let node = &self.node;
        let missing = |flag: &str, member: &str| ConfigError::Conflict(format!("the node has no --{flag}: give it, or {member} in --config"));
        let texts = [
            (&node.kubeconfig, "kubeconfig", "kubeconfig"),
            (&node.node_name, "hostname-override", "nodeName"),
            (&self.kubelet.container_runtime_endpoint, "container-runtime-endpoint", "containerRuntimeEndpoint"),
        ];
        if let Some((_, flag, member)) = texts.iter().find(|(text, ..)| text.is_empty()) {
            return Err(missing(flag, member));
        }
        if node.roots.is_empty() {
            return Err(missing("root", "roots"));
        }
        if !node.machine_id.is_empty() && node.boot_id.is_empty() {
            return Err(missing("boot-id", "bootID"));
        }
        match (self.kubelet.tls_cert_file.is_empty(), self.kubelet.tls_private_key_file.is_empty()) {
            (true, false) => return Err(missing("tls-cert-file", "tlsCertFile")),
            (false, true) => return Err(missing("tls-private-key-file", "tlsPrivateKeyFile")),
            _ => {}
        }
        match (node.image_credential_provider_config.is_empty(), node.image_credential_provider_bin_dir.is_empty()) {
            (true, false) => return Err(missing("image-credential-provider-config", "imageCredentialProviderConfig")),
            (false, true) => return Err(missing("image-credential-provider-bin-dir", "imageCredentialProviderBinDir")),
            _ => {}
        }
        pod_logs::check(&self.kubelet.pod_logs_dir)?;
        labels::check(&node.node_labels)?;
        if !matches!(node.cloud_provider.as_str(), "" | "external") {
            let reason = "the agent has no cloud providers of its own; give external, and run the cloud's controller manager";
            return Err(ConfigError::Refused { name: format!("--cloud-provider={}", node.cloud_provider), reason: reason.to_owned() });
        }
        let node_ip = node.node_ip.first().ok_or_else(|| missing("node-ip", "nodeIP"))?;
        let cluster_cidr = self.pod_network()?;
        let kubelet = &mut self.kubelet;
        if node.os.is_windows() && kubelet.eviction_hard == EvictionHard::default() {
            kubelet.eviction_hard = EvictionHard::of_windows();
        }
        if kubelet.merge_default_eviction_settings {
            for (signal, amount) in EvictionHard::of_system(node.os).0 {
                kubelet.eviction_hard.0.entry(signal).or_insert(amount);
            }
        }
        kubelet.address.get_or_insert(node_ip);
        let cluster_dns = kubelet.cluster_dns.first().copied();
        let proxy = &mut self.kube_proxy;
        proxy.hostname_override.clone_from(&node.node_name);
        proxy.bind_address = node_ip;
        proxy.client_connection.kubeconfig.clone_from(&node.kubeconfig);
        if proxy.mode == ProxyMode::Unset {
            proxy.mode = if node.os.is_windows() { ProxyMode::Kernelspace } else { ProxyMode::Nftables };
        }
        if node.os.is_windows() {
            proxy.winkernel.network_name = network.to_owned();
        }
        Ok(Complete { config: self, node_ip, cluster_cidr, cluster_dns })
    }

    /// The pods' network; checks that the part that makes it has what it needs, where it runs.
    fn pod_network(&self) -> Result<Families<IpNet>, ConfigError> {
        let node = &self.node;
        let missing = |flag: &str, member: &str| {
            ConfigError::Conflict(format!(
                "the pod network has no --{flag}: give it, or {member} in --config; or leave the pod network to others with --without fabric"
            ))
        };
        if !node.without.contains(&Part::Fabric) {
            let needed = [
                (node.cni_conf_dir.is_empty(), "cni-conf-dir", "cniConfDir"),
                (node.service_cidr.first().is_none(), "service-cidr", "serviceCIDR"),
                (node.lan.first().is_none(), "lan", "lan"),
                (self.kubelet.cluster_dns.is_empty(), "cluster-dns", "clusterDNS"),
                (self.kube_proxy.cluster_cidr.0.is_empty(), "cluster-cidr", "clusterCIDR"),
            ];
            if let Some((_, flag, member)) = needed.iter().find(|(is_missing, ..)| *is_missing) {
                return Err(missing(flag, member));
            }
        }
        if self.kube_proxy.cluster_cidr.0.is_empty() {
            return Ok(Families::default());
        }
        let networks = self.kube_proxy.cluster_cidr.0.iter().map(|name| if let NetworkName::Net(net) = name { Some(*net) } else { None });
        let networks = networks.collect::<Option<Vec<_>>>().and_then(|networks| Families::new(networks).ok());
        networks.ok_or_else(|| ConfigError::Conflict("clusterCIDR of a node is one network, or one of each address family".to_owned()))
    }
}

/// A configuration that was checked by [`NodeConfig::complete`].
#[derive(Clone, Debug, PartialEq)]
pub struct Complete {
    /// The configuration in effect.
    pub config: NodeConfig,
    /// The node's address of its primary family.
    pub node_ip: IpAddr,
    /// Every pod's address lies here; none where another makes the pod network.
    pub cluster_cidr: Families<IpNet>,
    /// The first cluster DNS server.
    pub cluster_dns: Option<IpAddr>,
}

fn take<T: Document>(place: &mut Option<T>, document: &serde_json::Value, warnings: &mut Vec<String>) -> Result<(), ConfigError> {
    let parsed = document::read::<T>(document)?;
    warnings.extend(parsed.warnings.into_iter().map(|warning| format!("{}: {warning}", T::KIND)));
    if place.replace(parsed.config).is_some() {
        return Err(ConfigError::Twice(T::KIND));
    }
    Ok(())
}
