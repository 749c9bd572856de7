//! Command-line definitions.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use fabric::Mode;
use host::NodeOs;
use ipnet::IpNet;
use node_config::kubelet::{EvictionHard, FeatureGates};
use node_config::{ConfigError, Families, GoDuration, NetworkList, NetworkName, NodeConfig, Parsed, node};

pub mod fabric_cli;
pub mod policy_cli;

/// Windows nodes for Kubernetes, in one binary.
#[derive(Debug, Parser)]
#[command(name = "mullion", version, about)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// Groups of subcommands in `mullion --help`: clap has no headings for them.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Clusters", &["up", "down", "status", "logs", "support-bundle"]),
    ("Images", &["image", "template"]),
    ("Host Networking Service", &["hns"]),
    ("Nodes", &["node", "kube-proxy", "fabric", "policy"]),
];

/// What stands below the options.
const AFTER_HELP: &str = "Examples:
  mullion up --detach                            Start a cluster of one Linux and two Windows nodes
  mullion status                                 Show its processes, nodes and faults
  mullion hns fault add svc-down --node win01    Make the simulated HNS of a node fail

`mullion help COMMAND` prints the options of a command. Documentation: docs/README.md in the repository; first steps: docs/try-it.md.";

/// The command line's definition, with the help of [`GROUPS`].
fn command() -> clap::Command {
    let command = Cli::command();
    let mut groups = String::new();
    for (name, members) in GROUPS {
        let present = members.iter().filter_map(|member| command.find_subcommand(member));
        let lines = present.map(|member| format!("  {:<16}{}\n", member.get_name(), member.get_about().cloned().unwrap_or_default()));
        let lines: String = lines.collect();
        if !lines.is_empty() {
            groups += &format!("\n{name}:\n{lines}");
        }
    }
    let template = format!("{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{groups}\nOptions:\n{{options}}{{after-help}}");
    command.help_template(template).after_help(AFTER_HELP)
}

/// Reads this process's command line.
///
/// # Errors
/// What clap found; help and version too.
pub fn parse() -> Result<Cli, clap::Error> {
    let matches = command().try_get_matches()?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command()))
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the node: node agent, service proxy and pod network in one process
    Node(Box<NodeArgs>),
    /// Run the service proxy alone, with the flags of upstream's kube-proxy
    KubeProxy(KubeProxyArgs),
    /// Print the routes of the pod network, or keep them on a router
    Fabric(fabric_cli::FabricArgs),
    /// Say which network policy decides about a connection, or put the policies of one node into effect
    Policy(policy_cli::PolicyArgs),
    /// Inspect and check a Host Networking Service; inject faults into a simulated one
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

impl From<Part> for node::Part {
    fn from(part: Part) -> Self {
        match part {
            Part::Kubelet => Self::Kubelet,
            Part::Proxy => Self::Proxy,
            Part::Fabric => Self::Fabric,
        }
    }
}

/// What is asked of a node that runs.
#[derive(Clone, Debug, Subcommand)]
pub enum NodeCommand {
    /// Say why a pod is not Ready, step by step, as its node agent sees it
    Explain(ExplainArgs),
}

/// `mullion node explain`.
#[derive(Clone, Debug, Args)]
pub struct ExplainArgs {
    /// Name of the pod
    pub pod: String,
    /// Its namespace [default: that of the kubeconfig's context]
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Kubeconfig of somebody who may read the pod and its node's agent (nodes/proxy) [default: as kubectl]
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// Print the document that the node agent sends
    #[arg(short, long, value_parser = ["json"])]
    pub output: Option<String>,
}

/// `mullion node`. A flag counts more than the file of `--config`, the file more than the default.
#[derive(Clone, Debug, Default, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct NodeArgs {
    #[command(subcommand)]
    pub command: Option<NodeCommand>,
    /// Configuration file: NodeConfiguration, KubeletConfiguration and KubeProxyConfiguration, each at most once; flags count more
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// Kubeconfig with the node's identity
    #[arg(long, required_unless_present = "config")]
    pub kubeconfig: Option<String>,
    /// Name of the Node (default: the host's name in lower case)
    #[arg(long, required_unless_present = "config")]
    pub hostname_override: Option<String>,
    /// Address of the node that others reach it at; with two address families ADDRESS,ADDRESS, the primary one first
    #[arg(long, required_unless_present = "config")]
    pub node_ip: Option<Families<IpAddr>>,
    /// What the node runs: linux, windows or windows:BUILD [default: that of this machine]
    #[arg(long)]
    pub os: Option<NodeOs>,
    /// Directory that is the root of the node's files; on Windows one per drive, as C=DIR
    #[arg(long = "root", required_unless_present = "config")]
    pub roots: Vec<String>,
    /// Container runtime: unix:///PATH, npipe:////./pipe/NAME or tcp://HOST:PORT
    #[arg(long, required_unless_present = "config")]
    pub container_runtime_endpoint: Option<String>,
    /// Host Compute Network service of a Windows node, unix:PATH or tcp:HOST:PORT (default: the variable MULLION_HCN, else the system's DLL)
    #[arg(long)]
    pub hcn: Option<String>,
    /// Name of the adapter that carries the pod network of a Windows node [default: Ethernet]
    #[arg(long)]
    pub adapter: Option<String>,
    /// Whether pods of a Windows node reach themselves through their Services (loopbackDSR of win-bridge) [default: true]
    #[arg(long, action = clap::ArgAction::Set, value_name = "BOOL")]
    pub loopback_dsr: Option<bool>,
    /// Every pod's address lies here; with two address families NETWORK,NETWORK
    #[arg(long, required_unless_present = "config")]
    pub cluster_cidr: Option<Families<IpNet>>,
    /// Every ClusterIP lies here, alike
    #[arg(long, required_unless_present = "config")]
    pub service_cidr: Option<Families<IpNet>>,
    /// The network of the nodes, alike
    #[arg(long, required_unless_present = "config")]
    pub lan: Option<Families<IpNet>>,
    /// Cluster DNS server
    #[arg(long, required_unless_present = "config")]
    pub cluster_dns: Option<IpAddr>,
    /// Cluster domain [default: cluster.local]
    #[arg(long)]
    pub cluster_domain: Option<String>,
    /// How pods of different nodes reach each other [default: host-gateway]
    #[arg(long, value_parser = fabric_cli::mode())]
    pub network: Option<Mode>,
    /// flannel's net-conf.json, which says mode and tunnel in the place of --network
    #[arg(long)]
    pub flannel_net_conf: Option<String>,
    /// Where flannel's subnet.env goes, for plug-ins that read it (default: nowhere)
    #[arg(long)]
    pub flannel_subnet_env: Option<String>,
    /// Put NetworkPolicies and ClusterNetworkPolicies into effect on this node's pods [default: false]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub network_policy: Option<bool>,
    /// Interface that gets the Services' addresses where they are served in user space (default: none)
    #[arg(long)]
    pub service_interface: Option<String>,
    /// Where the CNI configuration goes
    #[arg(long, required_unless_present = "config")]
    pub cni_conf_dir: Option<String>,
    /// Where host-local address management keeps its reservations
    #[arg(long)]
    pub ipam_dir: Option<String>,
    /// Serving certificate of the node agent, PEM
    #[arg(long, required_unless_present = "config")]
    pub tls_cert_file: Option<String>,
    /// Its key, PEM
    #[arg(long, required_unless_present = "config")]
    pub tls_private_key_file: Option<String>,
    /// File of the CA that signs client certificates, PEM
    #[arg(long, required_unless_present = "config")]
    pub client_ca_file: Option<String>,
    /// Port of the node agent's server [default: 10250]
    #[arg(long)]
    pub port: Option<u16>,
    /// CPUs that the node declares (default: the machine's; 8 on a simulated host)
    #[arg(long)]
    pub cpu: Option<String>,
    /// Memory that the node declares (default: the machine's; 16Gi on a simulated host)
    #[arg(long)]
    pub memory: Option<String>,
    /// Most pods on the node [default: 110]
    #[arg(long)]
    pub max_pods: Option<u32>,
    /// Identity of the machine, for a simulated host (default: the real one's)
    #[arg(long)]
    pub machine_id: Option<String>,
    /// Identity of this boot, for a simulated host
    #[arg(long)]
    pub boot_id: Option<String>,
    /// Switches by upstream's names, as HyperVContainer=true
    #[arg(long)]
    pub feature_gates: Option<FeatureGates>,
    /// What has to stay free, as memory.available<100Mi,nodefs.available<10%: pods are evicted for it [default: as upstream]
    #[arg(long, value_parser = eviction_hard)]
    pub eviction_hard: Option<EvictionHard>,
    /// Manifest of a static pod, or directory of them, on the node
    #[arg(long)]
    pub pod_manifest_path: Option<String>,
    /// Directory of flexvolume drivers on the node
    #[arg(long)]
    pub volume_plugin_dir: Option<String>,
    /// Web server that sends static pods
    #[arg(long)]
    pub manifest_url: Option<String>,
    /// Headers of requests to it, as NAME:VALUE
    #[arg(long, value_delimiter = ',')]
    pub manifest_url_header: Vec<String>,
    /// How often manifests are read though they look unchanged [default: 20s]
    #[arg(long)]
    pub file_check_frequency: Option<GoDuration>,
    /// How often the web server is asked [default: 20s]
    #[arg(long)]
    pub http_check_frequency: Option<GoDuration>,
    /// Size from which on a container's log is rotated [default: 10Mi]
    #[arg(long)]
    pub container_log_max_size: Option<String>,
    /// Log files a container keeps, the current one included [default: 5]
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..))]
    pub container_log_max_files: Option<u32>,
    /// Percent of the images' file system from which on unused images are removed; 100 for never [default: 85]
    #[arg(long, value_parser = clap::value_parser!(u8).range(..=100))]
    pub image_gc_high_threshold: Option<u8>,
    /// Percent down to which they are [default: 80]
    #[arg(long, value_parser = clap::value_parser!(u8).range(..=100))]
    pub image_gc_low_threshold: Option<u8>,
    /// How long an image stays at least [default: 2m0s]
    #[arg(long)]
    pub minimum_image_ttl_duration: Option<GoDuration>,
    /// Leave a part out
    #[arg(long)]
    pub without: Vec<Part>,
}

/// Thresholds that the node agent understands.
fn eviction_hard(text: &str) -> anyhow::Result<EvictionHard> {
    let hard: EvictionHard = text.parse()?;
    kubelet::eviction_amounts(&hard.0)?;
    Ok(hard)
}

impl NodeArgs {
    /// The configuration that flags, file and defaults make, with remarks on the file.
    ///
    /// # Errors
    /// When the file cannot be read or is wrong.
    pub fn into_config(self) -> Result<Parsed<NodeConfig>, ConfigError> {
        let mut parsed =
            self.config.as_deref().map(read).transpose()?.unwrap_or_else(|| Parsed { config: NodeConfig::default(), warnings: Vec::new() });
        self.apply(&mut parsed.config);
        Ok(parsed)
    }

    /// Puts the flags that were given into a configuration. Each field is named, so that a new one cannot be forgotten.
    fn apply(self, to: &mut NodeConfig) {
        fn set<T>(place: &mut T, given: Option<T>) {
            if let Some(given) = given {
                *place = given;
            }
        }
        fn list<T>(place: &mut Vec<T>, given: Vec<T>) {
            if !given.is_empty() {
                *place = given;
            }
        }
        let NodeConfig { node, kubelet: agent, kube_proxy: proxy } = to;
        let Self {
            config: _,
            command: _,
            kubeconfig,
            hostname_override,
            node_ip,
            os,
            roots,
            container_runtime_endpoint,
            hcn,
            adapter,
            loopback_dsr,
            ..
        } = self;
        set(&mut node.kubeconfig, kubeconfig);
        set(&mut node.node_name, hostname_override);
        set(&mut node.node_ip, node_ip);
        set(&mut node.os, os);
        list(&mut node.roots, roots);
        set(&mut agent.container_runtime_endpoint, container_runtime_endpoint);
        set(&mut node.hcn, hcn);
        set(&mut node.adapter, adapter);
        set(&mut node.loopback_dsr, loopback_dsr);
        set(&mut proxy.cluster_cidr, self.cluster_cidr.map(|nets| NetworkList(nets.iter().map(NetworkName::Net).collect())));
        set(&mut node.service_cidr, self.service_cidr);
        set(&mut node.lan, self.lan);
        set(&mut agent.cluster_dns, self.cluster_dns.map(|ip| vec![ip]));
        set(&mut agent.cluster_domain, self.cluster_domain);
        set(&mut node.network, self.network.map(|mode| mode.to_string()));
        set(&mut node.flannel_net_conf, self.flannel_net_conf);
        set(&mut node.flannel_subnet_env, self.flannel_subnet_env);
        set(&mut node.network_policy, self.network_policy);
        set(&mut node.service_interface, self.service_interface);
        set(&mut node.cni_conf_dir, self.cni_conf_dir);
        set(&mut node.ipam_dir, self.ipam_dir);
        set(&mut agent.tls_cert_file, self.tls_cert_file);
        set(&mut agent.tls_private_key_file, self.tls_private_key_file);
        set(&mut agent.authentication.x509.client_ca_file, self.client_ca_file);
        set(&mut agent.port, self.port);
        set(&mut node.cpu, self.cpu);
        set(&mut node.memory, self.memory);
        set(&mut agent.max_pods, self.max_pods);
        set(&mut node.machine_id, self.machine_id);
        set(&mut node.boot_id, self.boot_id);
        agent.feature_gates.extend(self.feature_gates.unwrap_or_default().0);
        set(&mut agent.eviction_hard, self.eviction_hard);
        set(&mut agent.static_pod_path, self.pod_manifest_path);
        set(&mut agent.volume_plugin_dir, self.volume_plugin_dir);
        set(&mut agent.static_pod_url, self.manifest_url);
        for header in self.manifest_url_header {
            let (name, value) = header.split_once(':').unwrap_or((&header, ""));
            agent.static_pod_url_header.entry(name.trim().to_owned()).or_default().push(value.trim().to_owned());
        }
        set(&mut agent.file_check_frequency, self.file_check_frequency);
        set(&mut agent.http_check_frequency, self.http_check_frequency);
        set(&mut agent.container_log_max_size, self.container_log_max_size);
        set(&mut agent.image_gc_high_threshold_percent, self.image_gc_high_threshold);
        set(&mut agent.image_gc_low_threshold_percent, self.image_gc_low_threshold);
        set(&mut agent.image_minimum_gc_age, self.minimum_image_ttl_duration);
        set(&mut agent.container_log_max_files, self.container_log_max_files);
        list(&mut node.without, self.without.into_iter().map(Part::into).collect());
    }
}

fn read(path: &Path) -> Result<Parsed<NodeConfig>, ConfigError> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|source| ConfigError::Read { path: name.clone(), source })?;
    NodeConfig::read(&host::decode_text(&bytes)).map_err(|error| ConfigError::File { path: name, source: Box::new(error) })
}

#[cfg(test)]
mod tests;
