//! Benchmarks of the program as users run it. Each sub-command prints one markdown table, with limits beside figures.

#[cfg(target_os = "linux")]
mod dll;
#[cfg(target_os = "linux")]
mod hns;
#[cfg(target_os = "linux")]
mod losses;
#[cfg(target_os = "linux")]
mod namespaced;
mod process;
mod proxy_hns;
#[cfg(target_os = "linux")]
mod proxy_nft;
mod up;
mod upstream;
mod windows;

use clap::{Parser, Subcommand};

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
    /// How long pods do without a network after HNS lost something
    #[cfg(target_os = "linux")]
    Losses(losses::Args),
    /// What `losses` starts
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    LossesPart,
    /// Our service proxy beside upstream's, on a simulated Windows node
    KubeProxy(upstream::Args),
    /// The service proxy over a simulated Host Networking Service: calls and times
    ProxyHns,
    /// The service proxy by nftables and in user space: times, memory, throughput
    #[cfg(target_os = "linux")]
    ProxyNft,
    /// What `proxy-nft` starts
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    ProxyNftPart {
        #[command(subcommand)]
        part: proxy_nft::Part,
    },
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Up(args) => up::main(&args),
        #[cfg(target_os = "linux")]
        Command::Dll(args) => dll::main(&args),
        #[cfg(target_os = "linux")]
        Command::Hns => hns::main(),
        #[cfg(target_os = "linux")]
        Command::HnsPart => hns::part(),
        #[cfg(target_os = "linux")]
        Command::Losses(args) => losses::main(&args),
        #[cfg(target_os = "linux")]
        Command::LossesPart => losses::part(),
        Command::KubeProxy(args) => upstream::main(&args),
        Command::ProxyHns => proxy_hns::main(),
        #[cfg(target_os = "linux")]
        Command::ProxyNft => proxy_nft::main(),
        #[cfg(target_os = "linux")]
        Command::ProxyNftPart { part } => proxy_nft::part(&part),
    }
}
