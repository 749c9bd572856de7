//! Command-line definitions.

use std::path::PathBuf;

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

pub mod config_cli;
pub mod fabric_cli;
pub mod install_cli;
pub mod join_cli;
pub mod ovn_cli;
pub mod policy_cli;

/// Windows nodes for Kubernetes, in one binary.
#[derive(Debug, Parser)]
#[command(name = "mullion", version, about)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// Groups of subcommands in `mullion --help`: clap has no headings for them.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Clusters", &["up", "down", "status", "logs", "support-bundle"]),
    ("Images", &["image", "template"]),
    ("Host Networking Service", &["hns"]),
    ("Nodes", &["node", "kubelet", "kube-proxy", "fabric", "ovn", "policy", "config"]),
    ("Joining clusters", &["join", "leave", "reset", "token", "install", "uninstall"]),
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
    Node(NodeArgs),
    /// Run the node agent alone, with the flags of upstream's kubelet
    Kubelet(UpstreamArgs),
    /// Run the service proxy alone, with the flags of upstream's kube-proxy
    KubeProxy(UpstreamArgs),
    /// Print the routes of the pod network, or keep them on a router
    Fabric(fabric_cli::FabricArgs),
    /// Set up a pod network on OVN, and keep its ports and load balancers
    Ovn(ovn_cli::OvnArgs),
    /// Say which network policy decides about a connection, or put the policies of one node into effect
    Policy(policy_cli::PolicyArgs),
    /// Print, check or make the configuration of a node
    Config(config_cli::ConfigArgs),
    /// Inspect and check a Host Networking Service; inject faults into a simulated one
    Hns(crate::hns::HnsArgs),
    /// Make this machine a node of a cluster, as kubeadm join does
    Join(Box<join_cli::JoinArgs>),
    /// Make this machine leave its cluster: Node, certificates, files
    Leave(join_cli::LeaveArgs),
    /// Remove what a join has written on this machine, without asking the cluster
    Reset(join_cli::ResetArgs),
    /// Make, list and delete the tokens with which machines join
    Token(join_cli::TokenArgs),
    /// Make a service of systemd or of Windows that runs the node, its agent or its proxy
    Install(install_cli::InstallArgs),
    /// Remove such a service, and all that belongs to it
    Uninstall(install_cli::UninstallArgs),
    #[cfg(target_os = "linux")]
    #[command(flatten)]
    Linux(crate::linux::cli::Command),
}

/// Upstream's flags, which are not of this program's form.
#[derive(Clone, Debug, Args)]
#[command(disable_help_flag = true)]
pub struct UpstreamArgs {
    /// See kubelet --help, kube-proxy --help
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub flags: Vec<String>,
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
    // The flags of `mullion node` have a help of their own, and clap takes that of its subcommands away with it.
    /// Print help
    #[arg(short, long, action = clap::ArgAction::Help)]
    pub help: Option<bool>,
}

/// `mullion node`, with upstream's flags of the kubelet and ours.
#[derive(Clone, Debug, Default, Args)]
#[command(disable_help_flag = true, args_conflicts_with_subcommands = true)]
pub struct NodeArgs {
    #[command(subcommand)]
    pub command: Option<NodeCommand>,
    /// See mullion node --help
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub flags: Vec<String>,
}

#[cfg(test)]
mod tests;
