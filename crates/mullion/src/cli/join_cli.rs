//! Command-line definitions of `mullion join`, `leave`, `reset` and `token`.

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand};
use node_config::GoDuration;

/// A secret; its Debug output does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl FromStr for Secret {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// `mullion join`, with kubeadm's flags.
#[derive(Clone, Debug, Args)]
pub struct JoinArgs {
    /// API server of the cluster, HOST:PORT
    pub endpoint: Option<String>,
    /// Bootstrap token, for discovery and for the first certificate
    #[arg(long)]
    pub token: Option<Secret>,
    /// Bootstrap token for discovery, where it is another one
    #[arg(long)]
    pub discovery_token: Option<Secret>,
    /// Hash of the cluster's certificate authority, sha256:HEX; any of several may fit
    #[arg(long, value_delimiter = ',')]
    pub discovery_token_ca_cert_hash: Vec<String>,
    /// Join without such a hash: whoever has the token may pretend to be the cluster
    #[arg(long)]
    pub discovery_token_unsafe_skip_ca_verification: bool,
    /// Kubeconfig that describes the cluster: a file, or an https URL
    #[arg(long)]
    pub discovery_file: Option<String>,
    /// Bootstrap token for the first certificate, where it is another one
    #[arg(long)]
    pub tls_bootstrap_token: Option<Secret>,
    /// Name of the node [default: the machine's name]
    #[arg(long)]
    pub node_name: Option<String>,
    /// Endpoint of the container runtime [default: containerd's, or CRI-O's where only that is there]
    #[arg(long)]
    pub cri_socket: Option<String>,
    /// File with a JoinConfiguration of kubeadm.k8s.io/v1beta4 or v1beta3; flags count more
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// Checks whose errors count as warnings, such as Swap,CRI; all for every one
    #[arg(long, value_delimiter = ',')]
    pub ignore_preflight_errors: Vec<String>,
    /// Phases to leave out: preflight, kubelet-wait-bootstrap
    #[arg(long, value_delimiter = ',')]
    pub skip_phases: Vec<String>,
    /// Print what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub host: HostArgs,
    /// How much is logged: 0 what is wrong, 2 what is tried, 5 everything
    #[arg(short, long, default_value_t = 0)]
    pub v: u32,
    /// Print a document for programs
    #[arg(short, long, value_parser = ["json"])]
    pub output: Option<String>,
}

/// The machine.
#[derive(Clone, Debug, Args)]
pub struct HostArgs {
    /// Leave starting and stopping of the node agent to the caller
    #[arg(long)]
    pub no_service: bool,
    /// Prepare the file system of another machine in this directory: its files alone, without services and network
    #[arg(long, value_name = "DIR")]
    pub rootfs: Option<PathBuf>,
}

/// What goes with the machine.
#[derive(Clone, Debug, Args)]
pub struct PodArgs {
    /// Endpoint of the container runtime whose pods are removed [default: the one that the join wrote down]
    #[arg(long)]
    pub cri_socket: Option<String>,
    /// Leave pods and the configuration of their network as they are
    #[arg(long, conflicts_with = "cri_socket")]
    pub keep_pods: bool,
}

/// `mullion reset`.
#[derive(Clone, Debug, Args)]
pub struct ResetArgs {
    /// Remove the files of a join by kubeadm too
    #[arg(short, long)]
    pub force: bool,
    /// Print what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub pods: PodArgs,
    #[command(flatten)]
    pub host: HostArgs,
}

/// `mullion leave`.
#[derive(Clone, Debug, Args)]
pub struct LeaveArgs {
    /// Kubeconfig of somebody who may delete the Node [default: the node's own]
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// Evict the node's pods first, and wait until they are gone
    #[arg(long)]
    pub drain: bool,
    /// With --drain: evict pods too that no controller makes again
    #[arg(long, requires = "drain")]
    pub force: bool,
    /// With --drain: evict pods with data in emptyDir volumes too
    #[arg(long, requires = "drain")]
    pub delete_emptydir_data: bool,
    /// How long pods may take to go
    #[arg(long, value_name = "TIME", default_value = "5m", requires = "drain")]
    pub drain_timeout: GoDuration,
    /// Print what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub pods: PodArgs,
    #[command(flatten)]
    pub host: HostArgs,
}

/// `mullion token`.
#[derive(Clone, Debug, Args)]
pub struct TokenArgs {
    #[command(subcommand)]
    pub command: TokenCommand,
}

/// Subcommands of `mullion token`.
#[derive(Clone, Debug, Subcommand)]
pub enum TokenCommand {
    /// Make a bootstrap token and print it
    Create(CreateArgs),
    /// List the bootstrap tokens of a cluster
    List(ListArgs),
    /// Delete bootstrap tokens
    Delete(DeleteArgs),
    /// Print a new token, without making it known to a cluster
    Generate,
}

/// Which cluster.
#[derive(Clone, Debug, Args)]
pub struct AdminArgs {
    /// Kubeconfig of an administrator [default: as kubectl]
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
}

/// `mullion token create`.
#[derive(Clone, Debug, Args)]
pub struct CreateArgs {
    /// The token [default: a new one]
    pub token: Option<Secret>,
    /// How long it is good; 0 for ever
    #[arg(long, default_value = "24h")]
    pub ttl: GoDuration,
    /// What it is for, in words
    #[arg(long, default_value = "")]
    pub description: String,
    /// What it may be used for
    #[arg(long, value_delimiter = ',', default_value = "signing,authentication")]
    pub usages: Vec<String>,
    /// Groups of its bearers
    #[arg(long, value_delimiter = ',', default_value = join::tokens::GROUP)]
    pub groups: Vec<String>,
    /// Print the whole command line that joins a machine
    #[arg(long)]
    pub print_join_command: bool,
    #[command(flatten)]
    pub admin: AdminArgs,
}

/// `mullion token list`.
#[derive(Clone, Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    pub admin: AdminArgs,
    /// Print a document for programs
    #[arg(short, long, value_parser = ["json"])]
    pub output: Option<String>,
}

/// `mullion token delete`.
#[derive(Clone, Debug, Args)]
pub struct DeleteArgs {
    /// Tokens, or their ids
    #[arg(required = true)]
    pub tokens: Vec<Secret>,
    #[command(flatten)]
    pub admin: AdminArgs,
}
