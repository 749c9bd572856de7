//! Command-line definitions of `mullion policy`.

use std::net::SocketAddr;

use clap::{Args, Subcommand};
use host::NodeOs;

#[cfg(target_os = "linux")]
use crate::linux::cli::Output;

/// How answers are printed.
#[cfg(not(target_os = "linux"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// For programs
    Json,
}

/// `mullion policy`.
#[derive(Clone, Debug, Args)]
pub struct PolicyArgs {
    #[command(subcommand)]
    pub command: PolicyCommand,
}

#[derive(Clone, Debug, Subcommand)]
pub enum PolicyCommand {
    /// Say whether a connection comes about, and which rule decides
    Explain(ExplainArgs),
    /// Print the rules of every pod of a node
    Rules(RulesArgs),
    /// Put the policies of one node into effect, without the other parts of a node
    Run(RunArgs),
}

/// `mullion policy explain`.
#[derive(Clone, Debug, Args)]
pub struct ExplainArgs {
    /// Kubeconfig that may list pods, namespaces, nodes and policies
    #[arg(long, env = "KUBECONFIG")]
    pub kubeconfig: String,
    /// Who connects: NAMESPACE/POD, or an address
    #[arg(long)]
    pub from: String,
    /// To whom: NAMESPACE/POD, or an address; of a Service take a pod behind it
    #[arg(long)]
    pub to: String,
    /// Port of the destination, by number or by the name that the pod's container gives it [default: a protocol without ports]
    #[arg(long)]
    pub port: Option<String>,
    /// Protocol of the port: TCP, UDP or SCTP
    #[arg(long, default_value = "TCP", ignore_case = true)]
    pub protocol: String,
    #[arg(short, long)]
    pub output: Option<Output>,
}

/// `mullion policy rules`.
#[derive(Clone, Debug, Args)]
pub struct RulesArgs {
    /// Kubeconfig that may list pods, namespaces, nodes and policies
    #[arg(long, env = "KUBECONFIG")]
    pub kubeconfig: String,
    /// The node
    #[arg(long)]
    pub node: String,
}

/// `mullion policy run`.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// Kubeconfig that may list and watch pods, namespaces, nodes and policies
    #[arg(long, env = "KUBECONFIG")]
    pub kubeconfig: String,
    /// Name of the Node
    #[arg(long)]
    pub hostname_override: String,
    /// What the node runs: linux, windows or windows:BUILD [default: that of this machine]
    #[arg(long)]
    pub os: Option<NodeOs>,
    /// Host Compute Network service of a Windows node, unix:PATH or tcp:HOST:PORT (default: the variable MULLION_HCN, else the system's DLL)
    #[arg(long)]
    pub hcn: Option<String>,
    /// Where /metrics, /readyz and /status are served
    #[arg(long, default_value_t = network_policy::status_server::BIND_ADDRESS)]
    pub metrics_bind_address: SocketAddr,
}
