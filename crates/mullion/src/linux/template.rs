//! `mullion template`: the Windows that containers of simulated nodes start from; `up` makes it too when it is missing.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use clap::Args;
use lab::dir::Env;
use lab::supervisor;
use linux_sys::signal::Signals;
use serde_json::json;
use thiserror_ext::AsReport as _;
use wine::template::{self, Interrupted, Made, Missing, NAME, Programs, Work};

use super::cli::Output;
use super::cluster_file::Cluster;
use super::progress::Progress;
use crate::exit::{Code, Failure};

include!(concat!(env!("OUT_DIR"), "/programs.rs"));

/// `mullion template`.
#[derive(Clone, Debug, Args)]
pub struct TemplateArgs {
    /// Only report whether a current template exists: exit code 0, else 71 (no Wine), 72 (no template) or 73 (another version)
    #[arg(long, conflicts_with = "rebuild")]
    status: bool,
    /// Create it again, even when it is current
    #[arg(long)]
    rebuild: bool,
    /// Directory with the guest programs [default: those in this binary, else `guest` beside it]
    #[arg(long)]
    programs: Option<PathBuf>,
    /// Output format
    #[arg(short, long)]
    output: Option<Output>,
}

/// Makes the template, or says how it is.
pub fn main(args: &TemplateArgs) -> Result<(), Failure> {
    // Before any thread exists, so that none is ended by them.
    let signals = supervisor::end_signals().context("cannot catch signals")?;
    let cache = cache();
    if args.status {
        return status(args, &cache);
    }
    if let Err(Missing::Wine) = template::find(&cache, None) {
        return Err(failure(Missing::Wine));
    }
    let programs = programs(args.programs.as_deref()).map_err(|error| Failure::new(Code::NoWine, error))?;
    let begin = Instant::now();
    let mut step = |what: &str, took: Duration| eprintln!("{}", line(what, took));
    let Made { dir, fresh } = make(&programs, args.rebuild, &signals, &mut step)?;
    let seconds = begin.elapsed().as_secs_f64();
    let text = if args.output == Some(Output::Json) {
        json!({"path": dir, "state": "current", "made": fresh, "seconds": seconds, "version": programs.version()}).to_string()
    } else if fresh {
        format!("made the Windows template {} in {seconds:.1} s", dir.display())
    } else {
        format!("the Windows template {} is current; `mullion template --rebuild` makes it anew", dir.display())
    };
    Ok(writeln!(std::io::stdout(), "{text}")?)
}

fn line(what: &str, took: Duration) -> String {
    format!("{what:44} {:>5.1} s", took.as_secs_f64())
}

fn status(args: &TemplateArgs, cache: &Path) -> Result<(), Failure> {
    let version = programs(args.programs.as_deref()).ok().map(|programs| programs.version());
    let found = template::find(cache, version.as_deref());
    if args.output == Some(Output::Json) {
        let state = match &found {
            Ok(_) => "current",
            Err(Missing::Wine) => "no-wine",
            Err(Missing::Template(_)) => "missing",
            Err(Missing::Version { .. }) => "other-version",
        };
        println!("{}", json!({"path": cache.join(NAME), "state": state, "version": version}));
    }
    let dir = found.map_err(failure)?;
    if args.output.is_none() {
        println!("the Windows template {} is current", dir.display());
    }
    Ok(())
}

/// With the exit code of its own.
fn failure(missing: Missing) -> Failure {
    let code = match missing {
        Missing::Wine => Code::NoWine,
        Missing::Template(_) => Code::NoTemplate,
        Missing::Version { .. } => Code::OtherTemplate,
    };
    Failure::new(code, missing)
}

/// Where the template lies, for all clusters of this user.
pub fn cache() -> PathBuf {
    Env::of_process().cache_dir()
}

/// The version of the template that this binary makes; none where it has no guest programs, and so accepts any template.
pub fn version() -> Option<String> {
    programs(None).ok().map(|programs| programs.version())
}

/// The guest programs: of a directory that is named, of this binary, or of a directory beside it.
fn programs(dir: Option<&Path>) -> anyhow::Result<Programs> {
    if let Some(dir) = dir {
        return Programs::read(dir).with_context(|| format!("cannot read the guest programs ({}) in {}", Programs::NAMES.join(", "), dir.display()));
    }
    if let Some(contents) = EMBEDDED {
        return Ok(Programs::embedded(contents));
    }
    let program = std::env::current_exe().context("this program cannot find itself: name the guest programs' directory with --programs")?;
    let beside = program.parent().unwrap_or(Path::new("/"));
    // Beside an installed binary, or above a build profile's directory.
    let places = [beside.join("guest"), beside.parent().unwrap_or(beside).join("guest")];
    let found = places.iter().find_map(|place| Programs::read(place).ok());
    found.ok_or_else(|| {
        let looked = places.each_ref().map(|place| place.display().to_string()).join(" and ");
        anyhow!("this mullion was built without the guest programs, and they are not in {looked}: `tools/guest` of the source tree makes them there")
    })
}

fn make(programs: &Programs, anew: bool, signals: &Signals, step: &mut dyn FnMut(&str, Duration)) -> anyhow::Result<Made> {
    let interrupted = || matches!(signals.next(), Ok(Some(_)));
    let interrupted: &dyn Fn() -> bool = &sticky(interrupted);
    let made = template::make(Work { cache: &cache(), programs, anew, interrupted, step })?;
    // Root's clusters run as users without rights.
    lab::owner::give(&made.dir)?;
    Ok(made)
}

/// Remembers that it was true once.
fn sticky(ask: impl Fn() -> bool) -> impl Fn() -> bool {
    let known = std::cell::Cell::new(false);
    move || {
        known.set(known.get() || ask());
        known.get()
    }
}

/// For `up`: makes the template where a cluster with Windows nodes has none. Without one the cluster starts all the same; then a line says
/// why only stand-ins run.
///
/// # Errors
/// Only when somebody interrupted it.
pub fn prepare(cluster: &Cluster, signals: &Signals, progress: &mut Progress) -> Result<(), Failure> {
    if cluster.nodes.iter().all(|node| !node.os.is_windows() || node.runtime.is_some()) {
        return Ok(());
    }
    let programs = programs(None);
    let version = programs.as_ref().ok().map(Programs::version);
    let missing = match template::find(&cache(), version.as_deref()) {
        Ok(_) => return Ok(()),
        Err(missing) => missing,
    };
    let result = match (missing, programs) {
        (Missing::Wine, _) => Err(Missing::Wine.into()),
        (missing, Err(error)) => Err(error.context(missing)),
        (_, Ok(programs)) => {
            progress.note("making the Windows template, once for all clusters (about 10 s)");
            make(&programs, false, signals, &mut |what, _| progress.step(what))
        }
    };
    match result {
        Err(error) if error.is::<Interrupted>() => return Err(error.into()),
        Err(error) => progress.note(&format!("only stand-ins will run on Windows nodes: {}", error.as_report())),
        Ok(_) => {}
    }
    Ok(())
}
