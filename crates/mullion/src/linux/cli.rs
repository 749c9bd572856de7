//! What can be typed on Linux.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use hcn::HnsVersion;
use host::NodeOs;
use ipnet::Ipv4Net;

use super::image::{ImageArgs, RegistryArgs};
use super::template::TemplateArgs;
use crate::feature_gates::FeatureGates;

/// Commands for users first, then the processes of a one-machine cluster.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a cluster on this machine: control plane, Linux nodes, simulated Windows nodes
    Up(UpArgs),
    /// End the cluster of a directory
    Down(DirArgs),
    /// Say how the cluster of a directory is
    Status(StatusArgs),
    /// Print what a host's processes logged
    Logs(LogsArgs),
    /// Pack all that helps to understand a cluster, without secrets, into one archive
    SupportBundle(SupportBundleArgs),
    /// Load, pull, list, tag and remove images of a cluster's nodes
    Image(ImageArgs),
    /// Make the Windows that containers of Windows nodes start from, once for all clusters
    Template(TemplateArgs),
    #[command(hide = true)]
    ControlPlane(Box<ControlPlaneArgs>),
    #[command(hide = true)]
    ContainerSim(Box<ContainerSimArgs>),
    #[command(hide = true)]
    HnsSim(HnsSimArgs),
}

/// Which cluster.
#[derive(Clone, Debug, Args)]
pub struct DirArgs {
    /// Directory of the cluster [default: mullion below XDG_STATE_HOME or ~/.local/state]
    #[arg(long)]
    pub dir: Option<PathBuf>,
}

/// `mullion up`.
#[derive(Clone, Debug, Args)]
pub struct UpArgs {
    #[command(flatten)]
    pub dir: DirArgs,
    /// Nodes, as NAME:OS[:BUILD][:key=value,…]; keys are cpu, mem, drive, hns, runtime
    /// [default: what DIR holds, else lin01:linux,win01:windows:20348,win02:windows:20348]
    #[arg(long)]
    pub nodes: Option<String>,
    /// How pods of different nodes reach each other [default: host-gateway]
    #[arg(long, value_enum)]
    pub network: Option<Network>,
    /// Port of the API server on 127.0.0.1
    #[arg(long, default_value_t = 6443)]
    pub port: u16,
    /// Write the administrator's kubeconfig to this file too
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// Return when all nodes are Ready, and leave the cluster running
    #[arg(long)]
    pub detach: bool,
    /// Every pod's address lies here [default: 192.168.0.0/16]
    #[arg(long)]
    pub cluster_cidr: Option<Ipv4Net>,
    /// Prefix length of each node's share of it [default: 24]
    #[arg(long)]
    pub node_mask: Option<u8>,
    /// Every ClusterIP lies here [default: 10.96.0.0/12]
    #[arg(long)]
    pub service_cidr: Option<Ipv4Net>,
    /// ClusterIP of the cluster's DNS [default: 10.96.0.10]
    #[arg(long)]
    pub dns_ip: Option<Ipv4Addr>,
    /// Switches of the node agents, as HyperVContainer=true [default: what DIR holds]
    #[arg(long)]
    pub feature_gates: Option<FeatureGates>,
    /// Leave a part of every node agent out, so that another program can do its work [default: what DIR holds]
    #[arg(long)]
    pub without: Vec<LeftOut>,
    /// Let pods reach what this machine reaches, through pasta (package passt)
    #[arg(long)]
    pub outside: bool,
    /// Where the detached child tells how far it is
    #[arg(long, hide = true)]
    pub report_fd: Option<i32>,
    /// Refuse images that only a stand-in could answer for
    #[arg(long)]
    pub no_stand_ins: bool,
    #[command(flatten)]
    pub registries: RegistryArgs,
}

/// A part of the node agents without which nodes are still Ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LeftOut {
    /// The service proxy (kube-proxy)
    Proxy,
}

impl std::fmt::Display for LeftOut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("proxy")
    }
}

/// A pod network between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Network {
    /// Every node routes the others' pods to their addresses
    HostGateway,
}

/// How answers are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For programs
    Json,
}

/// `mullion logs`.
#[derive(Clone, Debug, Args)]
pub struct LogsArgs {
    /// A node, cp (control plane), gw (the way to the outside) or lab (what keeps them running)
    pub host: String,
    /// Only this process of it: node, container-sim, hns-sim
    pub component: Option<String>,
    /// Go on as lines are written, until Ctrl-C
    #[arg(short, long)]
    pub follow: bool,
    /// Only what is newer, as 30s, 5m or 2h
    #[arg(long, value_parser = age)]
    pub since: Option<Duration>,
    /// Only so many lines, the last ones
    #[arg(long)]
    pub tail: Option<usize>,
    #[command(flatten)]
    pub dir: DirArgs,
}

/// `mullion support-bundle`.
#[derive(Clone, Debug, Args)]
pub struct SupportBundleArgs {
    /// The archive [default: mullion-support-ID-TIME.tar.gz here]
    #[arg(short, long)]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub dir: DirArgs,
}

/// A length of time as `kubectl logs --since` takes it.
fn age(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit = match &text[split..] {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err("write a number and a unit, as 30s, 5m or 2h".to_owned()),
    };
    let count: u64 = text[..split].parse().map_err(|_| "write a number and a unit, as 30s, 5m or 2h".to_owned())?;
    Ok(Duration::from_secs(count.saturating_mul(unit)))
}

/// `mullion status`.
#[derive(Clone, Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    pub dir: DirArgs,
    /// Output format
    #[arg(short, long)]
    pub output: Option<Output>,
}

/// The control plane of a one-machine cluster.
#[derive(Clone, Debug, Args)]
pub struct ControlPlaneArgs {
    /// Directory with the keys
    #[arg(long)]
    pub pki_dir: PathBuf,
    /// Directory of the store
    #[arg(long)]
    pub store_dir: PathBuf,
    /// Inherited descriptor that listens on the host's loopback
    #[arg(long)]
    pub listen_fd: i32,
    /// Directory of the hosts' disks
    #[arg(long)]
    pub hosts_dir: PathBuf,
    /// The supervisor's socket for ports of the real host
    #[arg(long)]
    pub ports_socket: PathBuf,
    /// Address on the LAN
    #[arg(long)]
    pub address: Ipv4Addr,
    /// Port of the API server on the LAN
    #[arg(long, default_value_t = 6443)]
    pub port: u16,
    #[arg(long)]
    pub cluster_cidr: Ipv4Net,
    #[arg(long)]
    pub node_mask: u8,
    #[arg(long)]
    pub service_cidr: Ipv4Net,
    #[arg(long)]
    pub dns_ip: IpAddr,
    #[arg(long, default_value = "cluster.local")]
    pub cluster_domain: String,
    /// Who is asked for names outside the cluster
    #[arg(long)]
    pub dns_upstream: Option<SocketAddr>,
}

/// The container runtime of a simulated host.
#[derive(Clone, Debug, Args)]
pub struct ContainerSimArgs {
    #[arg(long)]
    pub node: String,
    #[arg(long)]
    pub os: NodeOs,
    #[arg(long)]
    pub socket: PathBuf,
    #[arg(long)]
    pub state_dir: PathBuf,
    #[arg(long)]
    pub cache_dir: PathBuf,
    /// As for `mullion node`
    #[arg(long = "root", required = true)]
    pub roots: Vec<String>,
    #[arg(long)]
    pub netns_dir: PathBuf,
    #[arg(long)]
    pub hcn: Option<String>,
    #[arg(long)]
    pub cni_conf_dir: PathBuf,
    #[arg(long)]
    pub cni_bin_dir: PathBuf,
    /// Logical processors that the machine has.
    #[arg(long, default_value_t = 8)]
    pub processors: u32,
    #[arg(long)]
    pub no_stand_ins: bool,
    #[command(flatten)]
    pub registries: RegistryArgs,
}

/// The Host Networking Service of a simulated host.
#[derive(Clone, Debug, Args)]
pub struct HnsSimArgs {
    #[arg(long)]
    pub node: String,
    #[arg(long)]
    pub netns_dir: PathBuf,
    #[arg(long)]
    pub state_dir: PathBuf,
    #[arg(long)]
    pub socket: PathBuf,
    #[arg(long)]
    pub admin_socket: PathBuf,
    #[arg(long)]
    pub hns_version: HnsVersion,
    #[arg(long, default_value = "eth0")]
    pub uplink: String,
    /// A fault from the start, as `mullion hns fault` takes it; may be repeated
    #[arg(long = "fault", value_name = "NAME[=VALUE][,KEY=VALUE...]")]
    pub faults: Vec<hns_sim::faults::Fault>,
    /// How long calls take: windows, none, or read=2ms,write=20ms,jitter=5ms,balancer=50us
    #[arg(long, default_value = "none")]
    pub latency: hns_sim::latency::Latency,
    /// What every draw of faults and latencies follows from
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// How Windows behaves where that is not sure (docs/fidelity.md); may be repeated
    #[arg(long = "switch", value_name = "NAME=VALUE")]
    pub switches: Vec<String>,
}
