//! Benchmarks of the program as users run it. Each sub-command says which machine and commit it measures and prints markdown tables, with
//! limits beside figures; it ends with another code than 0 when a limit is passed.

#[cfg(target_os = "linux")]
mod api;
#[cfg(target_os = "linux")]
mod cni;
#[cfg(target_os = "linux")]
mod command;
#[cfg(target_os = "linux")]
mod control_plane;
#[cfg(target_os = "linux")]
mod dll;
#[cfg(target_os = "linux")]
mod fabric;
mod figures;
#[cfg(target_os = "linux")]
mod functions;
#[cfg(target_os = "linux")]
mod hns;
#[cfg(target_os = "linux")]
mod hollow;
#[cfg(target_os = "linux")]
mod losses;
mod machine;
#[cfg(target_os = "linux")]
mod namespaced;
#[cfg(target_os = "linux")]
mod node;
#[cfg(target_os = "linux")]
mod policy;
mod process;
mod proxy_hns;
#[cfg(target_os = "linux")]
mod proxy_nft;
mod up;
mod upstream;
mod windows;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use figures::Report;

/// Measure Mullion and print the figures as a markdown table.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// A cluster from `up` to `down`: times and memory
    Up(up::Args),
    /// The control plane alone, over TLS: start, memory, creates, gets, lists
    #[cfg(target_os = "linux")]
    Api(control_plane::Args),
    /// What `api` starts
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    ApiPart(control_plane::Args),
    /// A Deployment of 1,000 replicas on hollow nodes
    #[cfg(target_os = "linux")]
    Settle(control_plane::Args),
    /// What `settle` starts
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    SettlePart(control_plane::Args),
    /// The simulated Host Networking Service: times, memory, throughput
    #[cfg(target_os = "linux")]
    Hns,
    /// What `hns` starts
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    HnsPart,
    /// The Windows build of our service proxy on a service behind one lock, through the DLL's own interface, under Wine
    #[cfg(target_os = "linux")]
    Dll(dll::Args),
    /// CNI plug-ins, process start included, beside upstream's
    #[cfg(target_os = "linux")]
    Cni(cni::Args),
    /// What `cni` starts
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    CniPart(cni::Args),
    /// The pod network between nodes: plans, memory, throughput of its tunnel
    #[cfg(target_os = "linux")]
    Fabric(fabric::Args),
    /// What `fabric` starts
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    FabricPart(fabric::Args),
    /// The node agent on containerd: memory, times, beside CRI alone and upstream's kubelet
    #[cfg(target_os = "linux")]
    Node(node::Args),
    /// A cluster of a thousand hollow nodes with 30,000 pods: time and memory
    #[cfg(target_os = "linux")]
    Hollow(hollow::Args),
    /// What `node` starts
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    NodePart(node::Args),
    /// How long pods do without a network after HNS lost something
    #[cfg(target_os = "linux")]
    Losses(losses::Args),
    /// What `losses` starts
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    LossesPart,
    /// Our service proxy beside upstream's, on a simulated Windows node
    KubeProxy(upstream::Args),
    /// The service proxy over a simulated Host Networking Service: calls, times and memory
    ProxyHns {
        #[cfg(target_os = "linux")]
        #[command(flatten)]
        programs: command::Programs,
    },
    /// What `proxy-hns` starts
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    ProxyHnsPart {
        /// Which size
        size: usize,
        #[command(flatten)]
        programs: command::Programs,
    },
    /// The service proxy by nftables and in user space: times, memory, throughput
    #[cfg(target_os = "linux")]
    ProxyNft(command::Programs),
    /// What `proxy-nft` starts
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    ProxyNftPart {
        #[command(subcommand)]
        part: proxy_nft::Part,
    },
    /// Network policies over 1,000 pods: times and calls
    #[cfg(target_os = "linux")]
    Policy,
    /// What `policy` starts
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    PolicyPart,
    /// Lists the functions that the node agent, the service proxy and the control plane run, for the linker
    #[cfg(target_os = "linux")]
    Functions(functions::Args),
    /// What `functions` starts
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    FunctionsPart(functions::Args),
    /// Runs a program and lists the functions that it called
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    Called(functions::trace::Args),
    /// What `called` starts
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    Tracer(functions::trace::TracerArgs),
    /// The API server of a proxy that is measured
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    ProxyApi {
        /// How many Services it has
        services: usize,
        /// Where its kubeconfig goes
        directory: std::path::PathBuf,
    },
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    match part(&command) {
        Some(Ok(code)) => return code,
        Some(Err(error)) => {
            eprintln!("bench: {error:#}");
            return ExitCode::FAILURE;
        }
        None => {}
    }
    let mut report = Report::begin();
    let outcome = program(&command, &mut report);
    report.part("all", outcome);
    report.end()
}

/// What a benchmark starts of itself.
#[cfg(target_os = "linux")]
fn part(command: &Command) -> Option<anyhow::Result<ExitCode>> {
    Some(match command {
        Command::HnsPart => hns::part(),
        Command::CniPart(args) => cni::part(args),
        Command::FabricPart(args) => fabric::part(args),
        Command::NodePart(args) => node::part(args),
        Command::LossesPart => losses::part().map(|()| ExitCode::SUCCESS),
        Command::ProxyHnsPart { size, programs } => proxy_hns::part(*size, programs),
        Command::ProxyNftPart { part } => proxy_nft::part(part),
        Command::PolicyPart => policy::part(),
        // It measures nothing, so that there is no report.
        Command::Functions(args) => functions::main(args).map(|()| ExitCode::SUCCESS),
        Command::FunctionsPart(args) => functions::part(args),
        Command::Called(args) => functions::trace::main(args),
        Command::Tracer(args) => functions::trace::trace(args),
        Command::ApiPart(args) => control_plane::part(false, args),
        Command::SettlePart(args) => control_plane::part(true, args),
        Command::ProxyApi { services, directory } => api::part(*services, directory).map(|()| ExitCode::SUCCESS),
        _ => return None,
    })
}

#[cfg(not(target_os = "linux"))]
fn part(_: &Command) -> Option<anyhow::Result<ExitCode>> {
    None
}

fn program(command: &Command, report: &mut Report) -> anyhow::Result<()> {
    match command {
        Command::Up(args) => up::main(args, report)?,
        #[cfg(target_os = "linux")]
        Command::Api(args) => control_plane::main("api", args)?,
        #[cfg(target_os = "linux")]
        Command::Settle(args) => control_plane::main("settle", args)?,
        #[cfg(target_os = "linux")]
        Command::Dll(args) => report.table("under Wine, on a model behind one lock", |figures| dll::measure(args, figures)),
        #[cfg(target_os = "linux")]
        Command::Hns => hns::main()?,
        #[cfg(target_os = "linux")]
        Command::Cni(args) => cni::main(args)?,
        #[cfg(target_os = "linux")]
        Command::Fabric(args) => fabric::main(args)?,
        #[cfg(target_os = "linux")]
        Command::Node(args) => node::main(args)?,
        #[cfg(target_os = "linux")]
        Command::Hollow(args) => hollow::main(args, report),
        #[cfg(target_os = "linux")]
        Command::Losses(args) => report.table(&losses::title(), |figures| losses::measure(args, figures)),
        Command::KubeProxy(args) => report.table("on the simulator, through one service", |figures| upstream::measure(args, figures)),
        #[cfg(target_os = "linux")]
        Command::ProxyHns { programs } => proxy_hns::main(programs, report)?,
        #[cfg(not(target_os = "linux"))]
        Command::ProxyHns {} => proxy_hns::main(report)?,
        #[cfg(target_os = "linux")]
        Command::ProxyNft(programs) => proxy_nft::main(programs)?,
        #[cfg(target_os = "linux")]
        Command::Policy => policy::main()?,
        #[cfg(target_os = "linux")]
        Command::HnsPart
        | Command::CniPart(_)
        | Command::FabricPart(_)
        | Command::LossesPart
        | Command::NodePart(_)
        | Command::ProxyHnsPart { .. }
        | Command::ProxyNftPart { .. }
        | Command::PolicyPart
        | Command::Functions(_)
        | Command::FunctionsPart(_)
        | Command::Called(_)
        | Command::Tracer(_)
        | Command::ApiPart(_)
        | Command::SettlePart(_)
        | Command::ProxyApi { .. } => {}
    }
    Ok(())
}
