//! `mullion hns`: a look into a simulated host's HNS, over the socket that its own agents use.

use anyhow::{Context as _, anyhow};

use super::cli::{HnsArgs, HnsCommand, Output};
use super::up::dirs;
use crate::exit::Failure;

/// Prints a listing.
pub fn main(args: &HnsArgs) -> Result<(), Failure> {
    let HnsCommand::List { listing, node, output, dir } = &args.command;
    let dirs = dirs(dir)?;
    let socket = dirs.socket(node, "hcn");
    if !socket.exists() {
        return Err(anyhow!(
            "node {node} of {} has no Host Networking Service: `mullion status` lists the Windows nodes that run",
            dirs.dir.display()
        )
        .into());
    }
    let client = hcn::HcnClient::connect(&format!("unix:{}", socket.display()))?;
    let text = hcn::table::render(client.blocking(), *listing, *output == Some(Output::Json))
        .with_context(|| format!("listing {} of node {node} failed", listing.as_str()))?;
    print!("{text}");
    Ok(())
}
