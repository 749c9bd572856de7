//! Command-line definitions of `mullion fabric`.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use fabric::Mode;
use fabric::mode::MODES;
use fabric::render::{FORMATS, Format};
use ipnet::IpNet;

/// Reads the name of a mode.
pub fn mode() -> impl TypedValueParser<Value = Mode> {
    let values = MODES.iter().map(|(_, name, summary, _)| clap::builder::PossibleValue::new(*name).help(*summary));
    PossibleValuesParser::new(values).try_map(|name| name.parse::<Mode>())
}

fn format() -> impl TypedValueParser<Value = Format> {
    PossibleValuesParser::new(FORMATS.iter().map(|(name, _)| *name)).try_map(|name| name.parse::<Format>())
}

/// `mullion fabric`.
#[derive(Clone, Debug, Args)]
pub struct FabricArgs {
    #[command(subcommand)]
    pub command: FabricCommand,
}

#[derive(Clone, Debug, Subcommand)]
pub enum FabricCommand {
    /// Print the routes to every node's pods, for a router or for one node
    Routes(RoutesArgs),
    /// Keep the routes to every node's pods on this machine, the router between the nodes
    Router(RouterArgs),
}

/// The address by which another node's pods are reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum NextHop {
    /// The node's address
    #[default]
    Node,
    /// Windows hosts use the first address of the other node's pod CIDR, as in the alpha document of 2016; others the node's
    PodGateway,
}

/// `mullion fabric routes`.
#[derive(Clone, Debug, Args)]
pub struct RoutesArgs {
    /// Kubeconfig of the cluster whose nodes are read
    #[arg(long, required_unless_present = "file")]
    pub kubeconfig: Option<String>,
    /// Read the nodes from this file instead, as `kubectl get nodes -o json` prints them; - is standard input
    #[arg(long, conflicts_with = "kubeconfig")]
    pub file: Option<PathBuf>,
    /// The node that gets the routes: its own pods are left out [default: a router, which gets all]
    #[arg(long = "for", value_name = "NODE")]
    pub node: Option<String>,
    /// What reads the routes [default: windows for a Windows node, else iproute]
    #[arg(short, long, value_parser = format())]
    pub output: Option<Format>,
    #[arg(long, value_enum, default_value_t)]
    pub next_hop: NextHop,
    /// Interface of the routes, as `route` of Windows takes it
    #[arg(long)]
    pub interface: Option<String>,
    /// Every pod's address lies here; once per address family [default: anywhere]
    #[arg(long)]
    pub cluster_cidr: Vec<IpNet>,
}

/// What routes packets between the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Target {
    /// The kernel of this machine
    #[default]
    Kernel,
    /// BIRD 2, by its control socket and a file that it includes
    Bird,
    /// FRRouting, by the sockets of staticd and zebra
    Frr,
}

/// `mullion fabric router`.
#[derive(Clone, Debug, Args)]
pub struct RouterArgs {
    /// Kubeconfig that may list and watch Nodes
    #[arg(long)]
    pub kubeconfig: String,
    #[arg(long, value_parser = mode(), default_value = "l3", hide = true)]
    pub network: Mode,
    /// Every pod's address lies here; once per address family
    #[arg(long, required = true)]
    pub cluster_cidr: Vec<IpNet>,
    /// What has the routes
    #[arg(long, value_enum, default_value_t)]
    pub target: Target,
    /// BIRD's control socket
    #[arg(long, value_name = "PATH", default_value = "/run/bird/bird.ctl")]
    pub bird_socket: PathBuf,
    /// The file that bird.conf includes, which has our routes and nothing else
    #[arg(long, value_name = "PATH", default_value = "/etc/bird/mullion.conf")]
    pub bird_file: PathBuf,
    /// Directory of the sockets of FRR's daemons
    #[arg(long, value_name = "DIR", default_value = "/run/frr")]
    pub frr_sockets: PathBuf,
    /// Print what would change, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}
