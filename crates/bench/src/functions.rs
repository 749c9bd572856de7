//! `bench functions`: which functions the node agent, the service proxy and the control plane run, for the linker.
//!
//! A program's pages are mapped 64 KiB at a time, around each that is used. A process runs some thousands of the program's functions; where
//! they lie among all others, most of what is mapped is code that nobody runs. `tools/release` has the linker place them side by side.

pub mod trace;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use linux_sys::netlink::Rtnl;

use crate::command::{self, Mode};
use crate::control_plane::{Exercise, exercise};
use crate::namespaced;
use crate::node;

/// How many Services the proxy serves meanwhile: what it runs does not depend on it.
const SERVICES: usize = 100;
/// How long it is watched when it serves them: longer than all that it does again and again, but for what takes minutes.
const REST: Duration = Duration::from_secs(20);
/// A list is wrong when it is shorter.
const FEWEST: usize = 1_000;

/// What is run.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// A mullion with names of functions (`-C strip=none`)
    #[arg(long)]
    mullion: PathBuf,
    /// Where the names go, one a line
    #[arg(long)]
    output: PathBuf,
}

/// Writes the list.
pub fn main(args: &Args) -> Result<()> {
    let mullion = args.mullion.canonicalize().with_context(|| format!("finding {} failed", args.mullion.display()))?;
    let output = std::path::absolute(&args.output)?;
    let words = ["functions-part", "--mullion", &mullion.display().to_string(), "--output", &output.display().to_string()].map(str::to_owned);
    namespaced::again(words)
}

/// The same, within the namespaces.
pub fn part(args: &Args) -> Result<ExitCode> {
    linux_sys::ns::reset_switches()?;
    Rtnl::open()?.set_up(1)?;
    cluster::install_crypto_provider();
    let mut runs = Vec::new();
    for run in RUNS {
        runs.extend(run.functions(&args.mullion)?);
    }
    let names = in_order(&runs);
    ensure!(names.len() >= FEWEST, "{} ran {} functions with names: was it linked with -C strip=none?", args.mullion.display(), names.len());
    let text: String = names.iter().flat_map(|name| [name, "\n"]).collect();
    std::fs::write(&args.output, text).with_context(|| format!("writing {} failed", args.output.display()))?;
    println!("{} functions of node agent, service proxy and control plane are listed in {}", names.len(), args.output.display());
    Ok(ExitCode::SUCCESS)
}

/// A process that is run from its start to its end.
#[derive(Clone, Copy, Debug)]
enum Run {
    Proxy(Mode),
    ControlPlane(Exercise),
    Node,
}

/// Those that have most in common are neighbours.
const RUNS: [Run; 5] =
    [Run::ControlPlane(Exercise::Work), Run::ControlPlane(Exercise::Rest), Run::Node, Run::Proxy(Mode::Nftables), Run::Proxy(Mode::Hns)];

impl Run {
    /// The names of all functions that it runs; then, of a node agent, of those that it runs at rest.
    fn functions(self, mullion: &Path) -> Result<Vec<BTreeSet<String>>> {
        let directory = tempfile::tempdir()?;
        let called = directory.path().join("called");
        let below = trace::arguments(&called);
        match self {
            Run::Proxy(mode) => proxy(mullion, mode, &below)?,
            Run::ControlPlane(how) => exercise(mullion, how, &below)?,
            Run::Node => node::exercise(mullion, &below)?,
        }
        let mut lists = vec![called.clone()];
        lists.extend(matches!(self, Run::Node).then(|| trace::later(&called)));
        let read = |list: PathBuf| {
            let text = std::fs::read_to_string(&list).with_context(|| format!("reading {} failed: the program was not traced", list.display()))?;
            Ok(text.lines().map(str::to_owned).collect())
        };
        lists.into_iter().map(read).collect()
    }
}

fn proxy(mullion: &Path, mode: Mode, below: &[String]) -> Result<()> {
    let watched = command::Watched::start(mullion, mode, SERVICES, below)?;
    let until = Instant::now() + REST;
    while Instant::now() < until {
        watched.scrape()?;
        std::thread::sleep(Duration::from_secs(2));
    }
    watched.end()
}

/// All functions. Those that the same runs have are side by side: first those of the first run alone, then those that it shares with the next
/// one, and so on, so that the functions of each run have few others between them.
fn in_order(runs: &[BTreeSet<String>]) -> Vec<&str> {
    let mut groups: BTreeMap<Vec<bool>, Vec<&str>> = BTreeMap::new();
    for name in runs.iter().flatten().collect::<BTreeSet<_>>() {
        groups.entry(runs.iter().map(|run| run.contains(name)).collect()).or_default().push(name);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    // In the middle of the runs that have it; of those with the same middle, the functions that all have come between the others.
    let middle = |has: &[bool]| {
        let places: Vec<usize> = (0..has.len()).filter(|place| has[*place]).collect();
        places.iter().sum::<usize>() * 60 / places.len()
    };
    groups.sort_by_key(|(has, _)| middle(has));
    groups.into_iter().flat_map(|(_, names)| names).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_runs_functions_are_side_by_side() {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(in_order(&[set(&["a", "b", "x"]), set(&["b", "c", "x"])]), ["a", "b", "x", "c"]);
        let four = [set(&["w", "r", "x"]), set(&["r", "x"]), set(&["n", "m", "x"]), set(&["h", "m", "x"])];
        assert_eq!(in_order(&four), ["w", "r", "x", "n", "m", "h"]);
    }
}
