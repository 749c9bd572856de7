//! Benchmarks of the program as users run it. Each sub-command prints one markdown table, with limits beside figures.

mod process;
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
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Up(args) => up::main(&args),
    }
}
