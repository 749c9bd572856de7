//! `mullion hns`: inspect and test a Host Networking Service, and control a simulated one.

mod conformance;
#[cfg(target_os = "linux")]
pub(crate) mod faults;
#[cfg(target_os = "linux")]
mod relay;
#[cfg(target_os = "linux")]
mod simulated;
#[cfg(target_os = "linux")]
mod wine;

use std::io::Write as _;

use anyhow::Context as _;
use clap::{Args, Subcommand, ValueEnum};
use hcn::blocking::Client;

use crate::exit::{Code, Failure};

/// `mullion hns`.
#[derive(Clone, Debug, Args)]
pub struct HnsArgs {
    #[command(subcommand)]
    command: HnsCommand,
}

/// How answers are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For programs
    Json,
}

/// Which service.
#[derive(Clone, Debug, Args)]
pub struct Target {
    /// The service at unix:PATH or tcp:HOST:PORT [default: what MULLION_HCN says on Linux, this host's own on Windows]
    #[arg(long)]
    hcn: Option<String>,
    #[cfg(target_os = "linux")]
    #[command(flatten)]
    node: Node,
}

/// The way out where no service was named and the system has none.
const WHICH: &str = "name a Windows node of a cluster with --node, or a service with --hcn";

/// A Windows node of a one-machine cluster.
#[cfg(target_os = "linux")]
#[derive(Clone, Debug, Args)]
pub struct Node {
    /// The Windows node of the cluster
    #[arg(long, conflicts_with = "hcn")]
    node: Option<String>,
    #[command(flatten)]
    dir: crate::linux::cli::DirArgs,
}

/// What to do.
#[derive(Clone, Debug, Subcommand)]
enum HnsCommand {
    /// List networks, endpoints, loadbalancers or namespaces
    List {
        /// Which objects
        listing: hcn::table::Listing,
        #[command(flatten)]
        target: Target,
        /// Output format
        #[arg(short, long)]
        output: Option<Output>,
    },
    /// Check a service with the conformance suite
    Conformance(conformance::ConformanceArgs),
    #[cfg(target_os = "linux")]
    #[command(flatten)]
    Simulated(simulated::SimulatedCommand),
    /// Offer a node's service over TCP, for programs that cannot use unix sockets (Wine)
    #[cfg(target_os = "linux")]
    Relay(relay::RelayArgs),
    /// Create a Wine prefix whose Windows programs use a simulated service
    #[cfg(target_os = "linux")]
    WinePrefix(wine::WinePrefixArgs),
}

/// Runs the subcommand.
pub fn main(args: &HnsArgs) -> Result<(), Failure> {
    match &args.command {
        HnsCommand::List { listing, target, output } => {
            let text = hcn::table::render(&target.client()?, *listing, *output == Some(Output::Json));
            print(&text.with_context(|| format!("listing {} failed", listing.as_str()))?)
        }
        HnsCommand::Conformance(args) => conformance::main(args),
        #[cfg(target_os = "linux")]
        HnsCommand::Simulated(command) => simulated::main(command),
        #[cfg(target_os = "linux")]
        HnsCommand::Relay(args) => relay::main(args),
        #[cfg(target_os = "linux")]
        HnsCommand::WinePrefix(args) => wine::main(args),
    }
}

/// Writes an answer. A broken pipe (`| head`) ends the program quietly.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        written => Ok(written.context("writing the answer failed")?),
    }
}

impl Target {
    /// The address that was given, or that of the node that was.
    fn address(&self) -> Result<Option<String>, Failure> {
        #[cfg(target_os = "linux")]
        if let Some(node) = &self.node.node {
            return Ok(Some(format!("unix:{}", socket(node, "hcn", &self.node.dir)?.display())));
        }
        Ok(self.hcn.clone())
    }

    /// A client of the service.
    fn client(&self) -> Result<Client, Failure> {
        let usage = |error: anyhow::Error| Failure::new(Code::Usage, error);
        // An address that can be read is connected to by the first call.
        if let Some(address) = self.address()? {
            return Client::connect(&address).map_err(|error| usage(error.into()));
        }
        if cfg!(windows) { Ok(Client::of_this_host()?) } else { Client::from_env().context(WHICH).map_err(usage) }
    }
}

/// Refuses switches of simulated services that there are not, before anything starts.
#[cfg(target_os = "linux")]
pub fn check_switches(nodes: &[node_config::node_spec::NodeSpec]) -> Result<(), Failure> {
    for node in nodes {
        let Some((version, switches)) = node.hns.as_deref().and_then(|hns| hns.split_once('+')) else { continue };
        let wrong = |error: String| Failure::new(Code::Usage, anyhow::anyhow!("node {}: {error}", node.name));
        let mut known = hns_sim::switches::Switches::of(version.parse::<hcn::HnsVersion>().map_err(|error| wrong(error.to_string()))?);
        for switch in switches.split('+') {
            known.set(switch).map_err(wrong)?;
        }
    }
    Ok(())
}

/// The Windows nodes that run.
#[cfg(target_os = "linux")]
fn running(dir: &crate::linux::cli::DirArgs) -> Result<Vec<String>, Failure> {
    let dirs = crate::linux::cluster_file::dirs(dir)?;
    let nodes = dirs.socket("", "hcn").parent().map(nodes_in).unwrap_or_default();
    if nodes.is_empty() { Err(none_runs(&dirs)) } else { Ok(nodes) }
}

#[cfg(target_os = "linux")]
fn none_runs(dirs: &lab::dir::Dirs) -> Failure {
    let error = anyhow::anyhow!("no Windows node of {} runs: `{}` starts its cluster", dirs.dir.display(), dirs.command("up"));
    Failure::new(Code::NotRunning, error)
}

/// A socket of a node's service.
#[cfg(target_os = "linux")]
fn socket(node: &str, suffix: &str, dir: &crate::linux::cli::DirArgs) -> Result<std::path::PathBuf, Failure> {
    let dirs = crate::linux::cluster_file::dirs(dir)?;
    let socket = dirs.socket(node, suffix);
    if !socket.exists() {
        let nodes = socket.parent().map(nodes_in).unwrap_or_default();
        if nodes.is_empty() {
            return Err(none_runs(&dirs));
        }
        let error = anyhow::anyhow!("no Windows node {node} of {} runs: use one of {}", dirs.dir.display(), nodes.join(", "));
        return Err(Failure::new(Code::Usage, error));
    }
    Ok(socket)
}

/// The nodes whose services have their sockets there.
#[cfg(target_os = "linux")]
fn nodes_in(sockets: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(sockets).into_iter().flatten().flatten();
    let mut nodes: Vec<String> = entries.filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".hcn")?.to_owned())).collect();
    nodes.sort();
    nodes
}
