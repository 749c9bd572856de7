//! `bench up`: how long a cluster takes, and how much memory it holds.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::figures::{Amount, Figures, Report};
use crate::process::{self, Process};
use crate::windows;

/// One Windows web server and its NodePort.
const IIS: &str = include_str!("../../../examples/iis.yaml");
/// The most that the figures may be.
const UP: Duration = Duration::from_millis(1500);
const PSS_MIB: f64 = 120.0;
const ANSWER: Duration = Duration::from_millis(800);
const DOWN: Duration = Duration::from_secs(1);
/// How long anything may take before it counts as failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What is measured.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The mullion to measure; figures of a release build are the ones that count
    #[arg(long)]
    mullion: PathBuf,
    /// kubectl
    #[arg(long, default_value = "kubectl")]
    kubectl: PathBuf,
    /// How many clusters are brought up, one after the other; medians are printed
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Print only this table
    #[arg(long)]
    only: Option<Table>,
}

/// A table that can be printed alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Table {
    /// A cluster's times and memory
    Cluster,
    /// Pods of the simulated Windows nodes
    Windows,
}

/// What one cluster took.
struct Round {
    up: Duration,
    answer: Duration,
    down: Duration,
    processes: Vec<Process>,
}

/// A cluster's times, and what was measured while it ran.
pub struct Took<T> {
    /// From `up` to ready nodes.
    pub up: Duration,
    /// What was measured while it ran.
    pub measured: T,
    down: Duration,
}

/// Measures and prints.
pub fn main(args: &Args, report: &mut Report) -> Result<()> {
    let mullion = args.mullion.canonicalize().with_context(|| format!("finding {} failed", args.mullion.display()))?;
    if args.only != Some(Table::Windows) {
        let mut last = Vec::new();
        report.table(&format!("figure (median of {})", args.rounds), |figures| {
            let rounds = cluster(&mullion, args)?;
            add(figures, &rounds);
            last = rounds.into_iter().last().map(|round| round.processes).unwrap_or_default();
            Ok(())
        });
        report.table("PSS of each process of the last cluster", |figures| {
            last.iter().for_each(|process| figures.background(&process.role, Amount::mebibytes(process.pss_kib)));
            Ok(())
        });
    }
    if args.only != Some(Table::Cluster) {
        report.table("figure on a simulated Windows node", |figures| {
            let measure = |kubeconfig: &Path, home: &Path| {
                windows::measure(&windows::Cluster { kubectl: &args.kubectl, kubeconfig, home, dir: &home.join("dir") }, figures)
            };
            round(&mullion, &[], measure).map(drop)
        });
    }
    Ok(())
}

/// Clusters, one after the other.
fn cluster(mullion: &Path, args: &Args) -> Result<Vec<Round>> {
    let once = || {
        let Took { up, measured: (answer, processes), down } =
            round(mullion, &[], |kubeconfig, home| Ok((answer(&args.kubectl, kubeconfig, home)?, process::list(mullion)?)))?;
        Ok::<_, anyhow::Error>(Round { up, answer, down, processes })
    };
    // The first fills caches (unpacked layers, the program's own pages) and does not count.
    once()?;
    (0..args.rounds).map(|_| once()).collect()
}

fn add(figures: &mut Figures, rounds: &[Round]) {
    let sum = |round: &Round| round.processes.iter().map(|process| process.pss_kib).sum::<u64>();
    let time = |of: fn(&Round) -> Duration| median(rounds.iter().map(of).collect());
    figures.time("`up` to three nodes Ready", time(|round| round.up), UP);
    figures.at_most("PSS of all processes, pods apart", Amount::mebibytes(median(rounds.iter().map(sum).collect())), PSS_MIB);
    figures.time("`kubectl apply` to answered NodePort", time(|round| round.answer), ANSWER);
    figures.time("`down`", time(|round| round.down), DOWN);
}

/// The one in the middle.
pub fn median<T: Ord + Copy>(mut values: Vec<T>) -> T {
    values.sort_unstable();
    values[values.len() / 2]
}

/// One cluster in a directory of its own; the caches stay the user's.
pub fn round<T>(mullion: &Path, options: &[&str], measure: impl FnOnce(&Path, &Path) -> Result<T>) -> Result<Took<T>> {
    let home = tempfile::Builder::new().prefix("mln").tempdir()?;
    let (dir, kubeconfig) = (home.path().join("dir"), home.path().join("kubeconfig"));
    let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port().to_string();
    let mullion_with = |command: &str| {
        let mut program = Command::new(mullion);
        program.arg(command).arg("--dir").arg(&dir);
        program
    };
    let begin = Instant::now();
    run(mullion_with("up").args(["--detach", "--port", &port, "--kubeconfig"]).arg(&kubeconfig).args(options), "")?;
    let up = begin.elapsed();
    // From here on a failure must not leave the cluster running.
    let measured = measure(&kubeconfig, home.path());
    let begin = Instant::now();
    let ended = run(&mut mullion_with("down"), "");
    let down = begin.elapsed();
    let measured = measured?;
    ended?;
    Ok(Took { up, measured, down })
}

/// From `kubectl apply` to the page.
fn answer(kubectl: &Path, kubeconfig: &Path, home: &Path) -> Result<Duration> {
    let kubectl = |args: &[&str], stdin: &str| run(Command::new(kubectl).env("KUBECONFIG", kubeconfig).env("HOME", home).args(args), stdin);
    // kubectl's own cache of the API's description: a user has it after the first command.
    kubectl(&["get", "nodes,deployments,services"], "")?;
    let begin = Instant::now();
    kubectl(&["apply", "-f", "-"], IIS)?;
    let service: Value = serde_json::from_str(&kubectl(&["get", "service", "iis", "-o", "json"], "")?)?;
    let port = service["spec"]["ports"][0]["nodePort"].as_u64().and_then(|port| u16::try_from(port).ok()).context("the Service has no NodePort")?;
    loop {
        match page(port) {
            Ok(text) if text.starts_with("HTTP/1.1 200") => return Ok(begin.elapsed()),
            other if begin.elapsed() > PATIENCE => bail!("no page within {PATIENCE:?}: {other:?}"),
            _ => sleep(Duration::from_millis(5)),
        }
    }
}

fn page(port: u16) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: iis\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Runs a command to its end; its output goes to a file, since what it leaves running would keep a pipe open.
pub fn run(command: &mut Command, stdin: &str) -> Result<String> {
    let (mut input, mut out, mut err) = (tempfile::tempfile()?, tempfile::tempfile()?, tempfile::tempfile()?);
    input.write_all(stdin.as_bytes())?;
    input.seek(SeekFrom::Start(0))?;
    let status = command
        .stdin(Stdio::from(input))
        .stdout(out.try_clone()?)
        .stderr(err.try_clone()?)
        .status()
        .with_context(|| format!("starting {command:?} failed"))?;
    let read = |file: &mut File| {
        let mut text = String::new();
        file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_string(&mut text)).map(|_| text)
    };
    if !status.success() {
        bail!("{command:?} failed ({status}): {}", read(&mut err)?.trim());
    }
    Ok(read(&mut out)?)
}

#[cfg(test)]
mod tests {
    use std::process::ExitCode;

    use super::*;

    fn of(millis: u64, kib: u64) -> Round {
        let time = Duration::from_millis(millis);
        Round { up: time, answer: time, down: time, processes: vec![Process { role: "node win01".to_owned(), pss_kib: kib }] }
    }

    fn verdict(rounds: &[Round]) -> ExitCode {
        let mut report = Report::resume();
        report.table("up", |figures| {
            add(figures, rounds);
            Ok(())
        });
        report.end()
    }

    #[test]
    fn medians_are_held_against_limits() {
        assert_eq!(verdict(&[of(700, 1024), of(100, 1024), of(5000, 1024)]), ExitCode::SUCCESS);
        assert_eq!(verdict(&[of(900, 1024), of(100, 1024), of(5000, 1024)]), ExitCode::FAILURE, "900 ms to an answer");
    }

    #[test]
    fn memory_has_a_limit_too() {
        assert_eq!(verdict(&[of(1, 200 * 1024)]), ExitCode::FAILURE);
    }
}
