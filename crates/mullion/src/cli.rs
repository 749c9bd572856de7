//! What can be typed.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use host::NodeOs;
use ipnet::IpNet;

use crate::feature_gates::FeatureGates;

/// Windows nodes for Kubernetes, in one binary.
#[derive(Debug, Parser)]
#[command(name = "mullion", version, about, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// What to be.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the node: node agent, service proxy and pod network in one process
    Node(Box<NodeArgs>),
    /// Run the service proxy alone, in the place of upstream's kube-proxy and with its flags
    KubeProxy(KubeProxyArgs),
    /// Look into a Host Networking Service, judge it, and make a simulated one fail
    Hns(crate::hns::HnsArgs),
    #[cfg(target_os = "linux")]
    #[command(flatten)]
    Linux(crate::linux::cli::Command),
}

/// Upstream's flags, which are not of this program's form.
#[derive(Clone, Debug, Args)]
#[command(disable_help_flag = true)]
pub struct KubeProxyArgs {
    /// See kube-proxy --help
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub flags: Vec<String>,
}

/// A part of a node that can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// The node agent.
    Kubelet,
    /// The service proxy.
    Proxy,
    /// The pod network between nodes.
    Fabric,
}

/// What a node is told.
#[derive(Clone, Debug, Args)]
pub struct NodeArgs {
    /// Kubeconfig with the node's identity
    #[arg(long)]
    pub kubeconfig: PathBuf,
    /// Name of the Node (default: the host's name in lower case)
    #[arg(long)]
    pub hostname_override: String,
    /// Address of the node that others reach it at
    #[arg(long)]
    pub node_ip: IpAddr,
    /// What the node runs: linux, windows or windows:BUILD
    #[arg(long, default_value_t = default_os())]
    pub os: NodeOs,
    /// Directory that is the root of the node's files; on Windows one per drive, as C=DIR
    #[arg(long = "root", required = true)]
    pub roots: Vec<String>,
    /// Container runtime: unix:///PATH, npipe:////./pipe/NAME or tcp://HOST:PORT
    #[arg(long)]
    pub container_runtime_endpoint: String,
    /// Host Compute Network service of a Windows node, unix:PATH or tcp:HOST:PORT (default: the system's DLL)
    #[arg(long, env = "MULLION_HCN")]
    pub hcn: Option<String>,
    /// Name of the adapter that carries the pod network of a Windows node
    #[arg(long, default_value = "Ethernet")]
    pub adapter: String,
    /// Whether pods of a Windows node reach themselves through their Services (loopbackDSR of win-bridge)
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, value_name = "BOOL")]
    pub loopback_dsr: bool,
    /// Every pod's address lies here
    #[arg(long)]
    pub cluster_cidr: IpNet,
    /// Every ClusterIP lies here
    #[arg(long)]
    pub service_cidr: IpNet,
    /// The network of the nodes
    #[arg(long)]
    pub lan: IpNet,
    /// Cluster DNS server
    #[arg(long)]
    pub cluster_dns: IpAddr,
    /// Cluster domain
    #[arg(long, default_value = "cluster.local")]
    pub cluster_domain: String,
    /// Where the CNI configuration goes
    #[arg(long)]
    pub cni_conf_dir: PathBuf,
    /// Where host-local address management keeps its reservations
    #[arg(long)]
    pub ipam_dir: Option<PathBuf>,
    /// Serving certificate of the node agent, PEM
    #[arg(long)]
    pub tls_cert_file: PathBuf,
    /// Its key, PEM
    #[arg(long)]
    pub tls_private_key_file: PathBuf,
    /// Client certificates of this authority are believed, PEM
    #[arg(long)]
    pub client_ca_file: PathBuf,
    /// Port of the node agent's server
    #[arg(long, default_value_t = 10250)]
    pub port: u16,
    /// CPUs that the node declares
    #[arg(long, default_value = "8")]
    pub cpu: String,
    /// Memory that the node declares
    #[arg(long, default_value = "16Gi")]
    pub memory: String,
    /// Most pods on the node
    #[arg(long, default_value_t = 110)]
    pub max_pods: u32,
    /// Identity of the machine, for a simulated host (default: the real one's)
    #[arg(long, requires = "boot_id")]
    pub machine_id: Option<String>,
    /// Identity of this boot, for a simulated host
    #[arg(long)]
    pub boot_id: Option<String>,
    /// Switches by upstream's names, as HyperVContainer=true
    #[arg(long, default_value_t)]
    pub feature_gates: FeatureGates,
    /// What has to stay free, as memory.available<100Mi,nodefs.available<10%; below the latter the node says DiskPressure
    #[arg(long, default_value_t)]
    pub eviction_hard: kubelet::EvictionHard,
    /// Size from which on a container's log is rotated
    #[arg(long, default_value = "10Mi")]
    pub container_log_max_size: String,
    /// Log files a container keeps, the current one included
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..))]
    pub container_log_max_files: u32,
    /// Leave a part out
    #[arg(long)]
    pub without: Vec<Part>,
}

fn default_os() -> NodeOs {
    if cfg!(windows) { NodeOs::Windows { build: 20348 } } else { NodeOs::Linux }
}
