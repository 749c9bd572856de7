//! `bench up`: how long a cluster takes, and how much memory it holds.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::process::{self, Process};
use crate::windows;

/// One Windows web server and its NodePort.
const IIS: &str = include_str!("../../../examples/iis.yaml");
/// The most that the figures may be.
const UP: Duration = Duration::from_millis(1500);
const PSS_KIB: u64 = 120 * 1024;
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
    up: Duration,
    /// What was measured while it ran.
    pub measured: T,
    down: Duration,
}

/// Measures and prints. A figure over its limit is an error, after the table.
pub fn main(args: &Args) -> Result<()> {
    let mullion = args.mullion.canonicalize().with_context(|| format!("finding {} failed", args.mullion.display()))?;
    let mut exceeded = Vec::new();
    if args.only != Some(Table::Windows) {
        exceeded.extend(cluster(&mullion, args)?);
    }
    if args.only != Some(Table::Cluster) {
        let (figures, own) = round(&mullion, &[], |kubeconfig, home| {
            windows::measure(&windows::Cluster { kubectl: &args.kubectl, kubeconfig, home, dir: &home.join("dir") })
        })?
        .measured;
        let (table, over) = windows::report(&figures, own);
        print!("\n{table}");
        exceeded.extend(over);
    }
    if !exceeded.is_empty() {
        bail!("over the limit: {}", exceeded.join(", "));
    }
    Ok(())
}

/// The first table; what is over its limit.
fn cluster(mullion: &Path, args: &Args) -> Result<Vec<String>> {
    let once = || {
        let Took { up, measured: (answer, processes), down } =
            round(mullion, &[], |kubeconfig, home| Ok((answer(&args.kubectl, kubeconfig, home)?, process::list(mullion)?)))?;
        Ok::<_, anyhow::Error>(Round { up, answer, down, processes })
    };
    // The first fills caches (unpacked layers, the program's own pages) and does not count.
    once()?;
    let rounds = (0..args.rounds).map(|_| once()).collect::<Result<Vec<_>>>()?;
    let (table, exceeded) = report(rounds);
    print!("{table}");
    Ok(exceeded.into_iter().map(str::to_owned).collect())
}

fn report(rounds: Vec<Round>) -> (String, Vec<&'static str>) {
    let count = rounds.len();
    let sum = |processes: &[Process]| processes.iter().map(|process| process.pss_kib).sum::<u64>();
    let up = median(rounds.iter().map(|round| round.up).collect());
    let answer = median(rounds.iter().map(|round| round.answer).collect());
    let down = median(rounds.iter().map(|round| round.down).collect());
    let pss = median(rounds.iter().map(|round| sum(&round.processes)).collect());
    let seconds = |time: Duration| format!("{:.2} s", time.as_secs_f64());
    let mebibytes = |kib: u64| format!("{:.1} MiB", kib as f64 / 1024.0);
    let rows = [
        ("`up` to three nodes Ready", seconds(up), seconds(UP), up <= UP),
        ("PSS of all processes, pods apart", mebibytes(pss), mebibytes(PSS_KIB), pss <= PSS_KIB),
        ("`kubectl apply` to answered NodePort", seconds(answer), seconds(ANSWER), answer <= ANSWER),
        ("`down`", seconds(down), seconds(DOWN), down <= DOWN),
    ];
    let mut text = format!("| figure (median of {count}) | measured | limit | |\n| --- | ---: | ---: | --- |\n");
    for (name, measured, limit, within) in &rows {
        let _ = writeln!(text, "| {name} | {measured} | {limit} | {} |", if *within { "ok" } else { "over" });
    }
    if let Some(last) = rounds.last() {
        text += "\n| process | PSS |\n| --- | ---: |\n";
        for process in &last.processes {
            let _ = writeln!(text, "| {} | {} |", process.role, mebibytes(process.pss_kib));
        }
    }
    (text, rows.iter().filter(|row| !row.3).map(|row| row.0).collect())
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
    use super::*;

    fn of(millis: u64, kib: u64) -> Round {
        let time = Duration::from_millis(millis);
        Round { up: time, answer: time, down: time, processes: vec![Process { role: "node win01".to_owned(), pss_kib: kib }] }
    }

    #[test]
    fn medians_are_held_against_limits() {
        let (table, exceeded) = report(vec![of(900, 1024), of(100, 1024), of(5000, 1024)]);
        assert!(table.contains("| `up` to three nodes Ready | 0.90 s | 1.50 s | ok |"), "{table}");
        assert!(table.contains("| node win01 | 1.0 MiB |"), "{table}");
        assert_eq!(exceeded, ["`kubectl apply` to answered NodePort"]);
    }

    #[test]
    fn memory_has_a_limit_too() {
        let (table, exceeded) = report(vec![of(1, 200 * 1024)]);
        assert!(table.contains("| 200.0 MiB | 120.0 MiB | over |"), "{table}");
        assert_eq!(exceeded, ["PSS of all processes, pods apart"]);
    }
}
