//! Command-line definitions of the Linux-only commands.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use clap::{Args, Subcommand, ValueEnum};
use fabric::Mode;
use hcn::HnsVersion;
use host::NodeOs;
use images::registry::Mirror;
use ipnet::{IpNet, Ipv4Net};

use uuid::Uuid;

use super::audit::AuditArgs;
use super::image::{ImageArgs, RegistryArgs};
use super::template::TemplateArgs;
use crate::cli::fabric_cli;
use node_config::kubelet::FeatureGates;
use node_config::node::Part;
use node_config::{Families, GoDuration, PortRange, ValueError};

/// Commands for users first, then the processes of a one-machine cluster.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a cluster on this machine: control plane, Linux nodes, simulated Windows nodes
    Up(UpArgs),
    /// Stop a cluster, or delete it
    Down(DownArgs),
    /// Show the state of a cluster
    Status(StatusArgs),
    /// Print the logs of a host's processes
    Logs(LogsArgs),
    /// Collect logs and state of a cluster in one archive, without secrets
    SupportBundle(SupportBundleArgs),
    /// Load, pull, list, tag and remove images of a cluster's nodes
    Image(ImageArgs),
    /// Create the Wine template for Windows containers, once for all clusters
    Template(TemplateArgs),
    #[command(hide = true)]
    ControlPlane(Box<ControlPlaneArgs>),
    #[command(hide = true)]
    HollowNodes(HollowNodesArgs),
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
    /// Nodes, as NAME:OS[:BUILD][:key=value,…]; keys are cpu, mem, drive, hns, loopback-dsr, runtime
    /// [default: what DIR holds, else lin01:linux,win01:windows:20348,win02:windows:20348]
    #[arg(long)]
    pub nodes: Option<String>,
    /// So many more Windows nodes without a kernel under them, for runs at scale: their agents are real, what their containers would run is
    /// not [default: what DIR holds, else 0]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(..=i64::from(hollow::MOST)))]
    pub hollow: Option<u32>,
    /// How pods of different nodes reach each other [default: host-gateway]
    #[arg(long, value_parser = fabric_cli::mode())]
    pub network: Option<Mode>,
    /// Put NetworkPolicies and ClusterNetworkPolicies into effect; =false ends it [default: what DIR holds]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub network_policy: Option<bool>,
    /// Name of the cluster: of context, cluster and user in its kubeconfigs [default: what DIR holds, else DIR's own name]
    #[arg(long, value_parser = name)]
    pub name: Option<String>,
    /// Port of the API server on 127.0.0.1; 0 takes a free one [default: what DIR holds, else 6443]
    #[arg(long)]
    pub port: Option<u16>,
    /// Write the administrator's access to this kubeconfig too, beside what is in it; '' for none [default: what DIR holds]
    #[arg(long, value_parser = OsStringValueParser::new().map(PathBuf::from))]
    pub kubeconfig: Option<PathBuf>,
    /// Return when all nodes are Ready, and leave the cluster running
    #[arg(long)]
    pub detach: bool,
    /// End the cluster if not all nodes are Ready after this time, as 90s, 5m or 1m30s [default: 60s for the nodes]
    #[arg(long, value_parser = duration)]
    pub timeout: Option<Duration>,
    /// Print one document on standard output when all nodes are Ready
    #[arg(short, long)]
    pub output: Option<Output>,
    /// Every pod's address lies here; with two address families IPV4,IPV6 or IPV6,IPV4, the primary one first [default: 192.168.0.0/16]
    #[arg(long, value_parser = networks)]
    pub cluster_cidr: Option<Families<IpNet>>,
    /// Prefix length of each node's share of the IPv4 network [default: 24]
    #[arg(long, visible_alias = "node-cidr-mask-size-ipv4")]
    pub node_mask: Option<u8>,
    /// Prefix length of each node's share of the IPv6 network [default: 64]
    #[arg(long, visible_alias = "node-cidr-mask-size-ipv6")]
    pub node_mask_ipv6: Option<u8>,
    /// Every ClusterIP lies here; the families of --cluster-cidr in their order [default: 10.96.0.0/12]
    #[arg(long, value_parser = networks)]
    pub service_cidr: Option<Families<IpNet>>,
    /// ClusterIP of the cluster's DNS, of the primary family [default: 10.96.0.10]
    #[arg(long)]
    pub dns_ip: Option<IpAddr>,
    /// NodePorts of Services, as 30000-32767; clusters that run at the same time need ranges of their own [default: 30000-32767]
    #[arg(long, value_name = "FIRST-LAST")]
    pub service_node_port_range: Option<PortRange>,
    /// Give Services of type LoadBalancer addresses of this network, which nodes and pods reach; none for no such addresses
    /// [default: what DIR holds, else none]
    #[arg(long, value_name = "CIDR")]
    pub load_balancer_cidr: Option<LoadBalancerCidr>,
    /// Switches of the node agents, as HyperVContainer=true; '' for none [default: what DIR holds]
    #[arg(long)]
    pub feature_gates: Option<FeatureGates>,
    /// Let pods end before their hosts do at `mullion down`, within this time of which critical pods have the last third, as 30s;
    /// 0 ends both at once [default: what DIR holds, else 0]
    #[arg(long, value_name = "TIME", value_parser = grace)]
    pub shutdown_grace_period: Option<GoDuration>,
    /// Leave a part of every node agent out, so that another program can do its work [default: what DIR holds]
    #[arg(long)]
    pub without: Vec<LeftOut>,
    /// Let pods reach what this machine reaches, through pasta (package passt); =false ends it [default: what DIR holds]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub outside: Option<bool>,
    /// Where the detached child reports its progress
    #[arg(long, hide = true)]
    pub report_fd: Option<i32>,
    /// Refuse images that only a stand-in could answer for; =false allows them again [default: what DIR holds]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub no_stand_ins: Option<bool>,
    /// Ask here before the registry itself, as docker.io=http://10.0.0.1:5000; none for no mirror [default: what DIR holds]
    #[arg(long, value_parser = mirror)]
    pub registry_mirror: Vec<String>,
    /// HOST[:PORT] of a registry without TLS; none for no such registry [default: what DIR holds]
    #[arg(long)]
    pub insecure_registry: Vec<String>,
    #[command(flatten)]
    pub audit: AuditArgs,
}

/// The value of a list that is to be empty from now on.
pub const NONE: &str = "none";

/// The addresses of load balancers, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadBalancerCidr(pub Option<Ipv4Net>);

impl std::str::FromStr for LoadBalancerCidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == NONE {
            return Ok(Self(None));
        }
        text.parse().map(Some).map(Self).map_err(|_| "write an IPv4 network, as 10.241.0.0/24, or none".to_owned())
    }
}

fn mirror(text: &str) -> Result<String, String> {
    if text == NONE {
        return Ok(text.to_owned());
    }
    text.parse::<Mirror>().map(|mirror| mirror.to_string()).map_err(|error| error.to_string())
}

/// A name as kubectl and shells take it without quoting.
fn name(text: &str) -> Result<String, String> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let fits = text.len() <= 63 && text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(is_good);
    if fits {
        Ok(text.to_owned())
    } else {
        Err("write at most 63 letters, digits, dots, underscores and hyphens, a letter or digit first".to_owned())
    }
}

/// Networks of pods or Services, as kube-apiserver and kube-controller-manager take them.
fn networks(text: &str) -> Result<Families<IpNet>, String> {
    let networks: Families<IpNet> = text.parse().map_err(|error: ValueError| error.to_string())?;
    networks
        .first()
        .map(|_| networks)
        .ok_or_else(|| "write a network, as 10.96.0.0/12, or one of each address family with a comma between".to_owned())
}

/// `mullion down`.
#[derive(Clone, Debug, Args)]
pub struct DownArgs {
    #[command(flatten)]
    pub dir: DirArgs,
    /// Succeed when no cluster runs there
    #[arg(long)]
    pub if_running: bool,
    /// Delete the cluster too: its nodes' disks, objects and keys. Other files in DIR stay
    #[arg(long)]
    pub delete: bool,
    /// Output format
    #[arg(short, long)]
    pub output: Option<Output>,
}

/// A part of the node agents without which nodes are still Ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LeftOut {
    /// The service proxy (kube-proxy)
    Proxy,
    /// Nothing, whatever DIR holds
    None,
}

impl LeftOut {
    pub fn part(self) -> Option<Part> {
        match self {
            Self::Proxy => Some(Part::Proxy),
            Self::None => None,
        }
    }
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
    /// A node, cp (control plane), gw (gateway of --outside) or lab (supervisor's own processes)
    pub host: String,
    /// Only this process of it: node, container-sim, hns-sim
    pub component: Option<String>,
    /// Follow the logs until Ctrl-C
    #[arg(short, long)]
    pub follow: bool,
    /// Only lines newer than this, as 30s, 5m or 2h
    #[arg(long, value_parser = duration)]
    pub since: Option<Duration>,
    /// Only this many lines, the last ones
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

/// A length of time as Go writes it, which is how kubectl takes it: `30s`, `5m`, `1h30m`, `0.5s`.
/// A period of a shutdown: whole seconds, or none.
fn grace(text: &str) -> Result<GoDuration, String> {
    let time: GoDuration = text.parse::<GoDuration>().map_err(|error| error.to_string())?;
    let seconds = time.0.as_secs();
    if time.0.subsec_nanos() == 0 && seconds <= MOST_GRACE { Ok(time) } else { Err(format!("{text} is not in whole seconds up to {MOST_GRACE}s")) }
}

/// An hour: who waits longer has forgotten it.
const MOST_GRACE: u64 = 3600;

fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no length of time: write numbers with units, as 30s, 5m or 1h30m");
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() || text.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?);
        let (unit, after) = after.split_at(after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len()));
        let seconds = match unit {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(wrong()),
        };
        let part = number.parse::<f64>().ok().and_then(|number| Duration::try_from_secs_f64(number * seconds).ok());
        total = part.and_then(|part| total.checked_add(part)).ok_or_else(wrong)?;
        rest = after;
    }
    Ok(total)
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
    /// KubeSchedulerConfiguration of the scheduler; without the file, upstream's default
    #[arg(long)]
    pub scheduler_config: Option<PathBuf>,
    /// The supervisor's socket for ports of the real host
    #[arg(long)]
    pub ports_socket: PathBuf,
    /// Addresses on the LAN, the primary family's first
    #[arg(long)]
    pub address: Families<IpAddr>,
    /// Port of the API server on the LAN
    #[arg(long, default_value_t = 6443)]
    pub port: u16,
    #[arg(long)]
    pub cluster_cidr: Families<IpNet>,
    #[arg(long)]
    pub node_mask: u8,
    #[arg(long, default_value_t = 64)]
    pub node_mask_ipv6: u8,
    #[arg(long)]
    pub service_cidr: Families<IpNet>,
    #[arg(long)]
    pub dns_ip: IpAddr,
    #[arg(long)]
    pub service_node_port_range: PortRange,
    #[arg(long)]
    pub load_balancer_cidr: Option<Ipv4Net>,
    /// The mode of the pod network
    #[arg(long, value_parser = fabric_cli::mode(), default_value = "host-gateway")]
    pub network: Mode,
    /// The number of hollow nodes
    #[arg(long, default_value_t = 0)]
    pub hollow: u32,
    /// Let nodes read what policies ask for
    #[arg(long)]
    pub network_policy: bool,
    #[arg(long, default_value = "cluster.local")]
    pub cluster_domain: String,
    /// DNS server for names outside the cluster
    #[arg(long)]
    pub dns_upstream: Option<SocketAddr>,
    #[command(flatten)]
    pub audit: AuditArgs,
}

impl ControlPlaneArgs {
    /// The address of the primary family.
    pub fn primary(&self) -> IpAddr {
        self.address.first().unwrap_or(lab::lan::CONTROL_PLANE.into())
    }
}

/// The hollow nodes of a one-machine cluster.
#[derive(Clone, Debug, Args)]
pub struct HollowNodesArgs {
    #[arg(long)]
    pub kubeconfig: PathBuf,
    #[arg(long)]
    pub nodes: u32,
    /// Names the cluster
    #[arg(long)]
    pub identity: Uuid,
    /// Names this start of the nodes
    #[arg(long)]
    pub boot: Uuid,
    #[arg(long)]
    pub dns_ip: IpAddr,
    #[arg(long, default_value = "cluster.local")]
    pub cluster_domain: String,
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
    /// The power switch of the machine.
    #[arg(long)]
    pub power_dir: Option<PathBuf>,
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
    /// Fault from the start, as for `mullion hns fault add`; repeat the option for several
    #[arg(long = "fault", value_name = "NAME[=VALUE][,KEY=VALUE...]")]
    pub faults: Vec<hns_sim::faults::Fault>,
    /// How long calls take: windows, none, or read=2ms,write=20ms,jitter=5ms,balancer=50us
    #[arg(long, default_value = "none")]
    pub latency: hns_sim::latency::Latency,
    /// Seed of the random numbers for faults and latencies
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Behaviour of Windows where the evidence is uncertain (docs/fidelity.md); repeat the option for several
    #[arg(long = "switch", value_name = "NAME=VALUE")]
    pub switches: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_written_as_for_kubectl() {
        for (text, millis) in [("30s", 30_000), ("5m", 300_000), ("1h30m", 5_400_000), ("0s", 0), ("500ms", 500), ("1.5s", 1500)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "5", "s", "5x", "-5s", "1.2.3s", "5 m", "1e9s", "99999999999999999999h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn networks_are_one_or_one_of_each_family() {
        for text in ["10.96.0.0/12", "fd00::/108", "10.96.0.0/12,fd00::/108", "fd00::/108,10.96.0.0/12"] {
            assert_eq!(networks(text).unwrap().to_string(), text);
        }
        for (text, expected) in [
            ("", "write a network, as 10.96.0.0/12, or one of each"),
            ("10.96.0.0", "\"10.96.0.0\" is no network, write it as"),
            ("10.96.0.0/12,10.0.0.0/12", "10.96.0.0/12 and 10.0.0.0/12 are of one address family"),
        ] {
            let error = networks(text).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn help_and_docs_list_every_setting_of_a_node() {
        use clap::CommandFactory as _;
        use node_config::node_spec::KEYS;

        let command = crate::cli::Cli::command();
        let nodes = command.find_subcommand("up").unwrap().get_arguments().find(|argument| argument.get_id() == "nodes").unwrap();
        let help = nodes.get_help().unwrap().to_string();
        assert!(help.contains(&format!("; keys are {} [default", KEYS.join(", "))), "{help}");
        let (_, section) = include_str!("../../../../docs/try-it.md").split_once("### Settings of a node").unwrap();
        let table = section.lines().skip_while(|line| !line.starts_with("| ---")).skip(1);
        let rows: Vec<&str> = table.map_while(|line| line.strip_prefix("| `")?.split('`').next()).collect();
        assert_eq!(rows, KEYS);
    }

    #[test]
    fn names_need_no_quotes() {
        for text in ["ci", "a.b_c-d", "1"] {
            assert_eq!(name(text), Ok(text.to_owned()));
        }
        for text in ["", "-a", "a b", "a/b", "ä", &"x".repeat(64)] {
            assert!(name(text).is_err(), "{text}");
        }
    }
}
