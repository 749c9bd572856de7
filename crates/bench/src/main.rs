//! Benchmarks of the program as users run it. Each sub-command prints one markdown table, with limits beside figures.

mod process;
#[cfg(target_os = "linux")]
mod proxy_nft;
mod up;
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
        Command::ProxyNft => proxy_nft::main(),
        #[cfg(target_os = "linux")]
        Command::ProxyNftPart { part } => proxy_nft::part(&part),
    }
}
