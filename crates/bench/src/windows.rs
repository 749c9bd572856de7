//! `bench up`'s second table: pods of the simulated Windows nodes, programs under Wine among them.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use crate::process;
use crate::up::{PATIENCE, median, run};

const WINE: &str = "mcr.microsoft.com/windows/nanoserver:ltsc2022";
const STAND_IN: &str = "mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc2022";
/// Pods whose memory is shared out, pods at once on one host, and repetitions of a time.
const TOGETHER: usize = 3;
const MANY: usize = 60;
const TIMES: usize = 5;
/// What pods print when the watch sees them change.
const STATE: &str = r#"jsonpath={.metadata.name} {.status.conditions[?(@.type=="Ready")].status}{"\n"}"#;

/// kubectl, speaking to the cluster that is measured.
pub struct Cluster<'a> {
    /// The program.
    pub kubectl: &'a Path,
    /// What it reads.
    pub kubeconfig: &'a Path,
    /// Where its caches go.
    pub home: &'a Path,
    /// Where the cluster's state is.
    pub dir: &'a Path,
}

impl Cluster<'_> {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.kubectl);
        command.env("KUBECONFIG", self.kubeconfig).env("HOME", self.home).args(args);
        command
    }

    fn kubectl(&self, args: &[&str], stdin: &str) -> Result<String> {
        run(&mut self.command(args), stdin)
    }

    /// From the first pod seen to the last Ready, both as a watch tells.
    fn ready(&self, pods: &[Value]) -> Result<Duration> {
        let watch = Watch::open(self)?;
        self.kubectl(&["create", "-f", "-"], &json!({"apiVersion": "v1", "kind": "List", "items": pods}).to_string())?;
        watch.until_ready(pods.len())
    }

    fn delete(&self) -> Result<()> {
        self.kubectl(&["delete", "pods", "--all", "--grace-period=1", "--timeout=120s"], "").map(drop)
    }

    /// The median of how long kubectl takes, with its own start.
    fn time(&self, args: &[&str]) -> Result<Duration> {
        let once = || {
            let begin = Instant::now();
            self.kubectl(args, "").map(|_| begin.elapsed())
        };
        Ok(median((0..TIMES * 2 + 1).map(|_| once()).collect::<Result<_>>()?))
    }
}

/// `kubectl get pods --watch-only`, ended with this.
struct Watch {
    child: Child,
    lines: Receiver<(Instant, String)>,
}

impl Watch {
    fn open(cluster: &Cluster<'_>) -> Result<Self> {
        let mut child =
            cluster.command(&["get", "pods", "--watch-only", "-o", STATE]).stdout(Stdio::piped()).spawn().context("starting kubectl failed")?;
        let output = child.stdout.take().context("kubectl has no output")?;
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send((Instant::now(), line)).is_err() {
                    return;
                }
            }
        });
        // kubectl does not tell when its watch is open.
        thread::sleep(Duration::from_millis(500));
        Ok(Self { child, lines })
    }

    fn until_ready(&self, count: usize) -> Result<Duration> {
        let (mut first, mut ready) = (None, std::collections::BTreeSet::new());
        while ready.len() < count {
            let (at, line) = self.lines.recv_timeout(PATIENCE).with_context(|| format!("{} of {count} pods are Ready", ready.len()))?;
            let begin = *first.get_or_insert(at);
            if let Some(name) = line.strip_suffix(" True") {
                ready.insert(name.to_owned());
                if ready.len() == count {
                    return Ok(at - begin);
                }
            }
        }
        bail!("no pods to wait for")
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A figure and the most that it may be.
pub struct Figure {
    name: String,
    measured: f64,
    limit: f64,
    unit: &'static str,
}

/// Measures on a running cluster.
pub fn measure(cluster: &Cluster<'_>) -> Result<(Vec<Figure>, Duration)> {
    let singles = |image: &str, argv: &[&str]| -> Result<Duration> {
        let mut times = Vec::new();
        // The first fills caches and does not count.
        for at in 0..=TIMES {
            let time = cluster.ready(&[pod(&format!("one-{at}"), image, argv)])?;
            cluster.delete()?;
            times.extend((at > 0).then_some(time));
        }
        Ok(median(times))
    };
    let wine = singles(WINE, &["cmd"])?;
    let stand_in = singles(STAND_IN, &[])?;
    let many: Vec<Value> = (0..MANY).map(|at| pod(&format!("many-{at}"), STAND_IN, &[])).collect();
    let many = cluster.ready(&many)?;
    cluster.delete()?;
    let together: Vec<Value> = (0..TOGETHER).map(|at| pod(&format!("wine-{at}"), WINE, &["cmd"])).collect();
    cluster.ready(&together)?;
    let kib = process::of_pods(cluster.dir, "cmd.exe")? / TOGETHER as u64;
    let exec = cluster.time(&["exec", "wine-0", "--", "cmd", "/c", "ver"])?;
    let own = cluster.time(&["version", "--client"])?;
    cluster.delete()?;
    let figure = |name: &str, measured: f64, limit: f64, unit| Figure { name: name.to_owned(), measured, limit, unit };
    let figures = vec![
        figure("Wine pod, created to Ready", wine.as_secs_f64(), 0.7, "s"),
        figure("PSS of a Wine pod beyond its program", kib as f64 / 1000.0 * 1.024, 25.0, "MB"),
        figure("stand-in pod (IIS), created to Ready", stand_in.as_secs_f64(), 0.35, "s"),
        figure("60 stand-in pods on one host, created to Ready", many.as_secs_f64(), 6.0, "s"),
        figure("`kubectl exec` of `cmd /c ver` in a Wine session", exec.as_secs_f64(), 0.12, "s"),
    ];
    Ok((figures, own))
}

/// The table, and the names of the figures over their limits.
pub fn report(figures: &[Figure], own: Duration) -> (String, Vec<String>) {
    let mut text = "| figure on a simulated Windows node | measured | limit | |\n| --- | ---: | ---: | --- |\n".to_owned();
    let mut exceeded = Vec::new();
    for Figure { name, measured, limit, unit } in figures {
        let within = measured <= limit;
        let _ = writeln!(text, "| {name} | {measured:.2} {unit} | {limit:.2} {unit} | {} |", if within { "ok" } else { "over" });
        exceeded.extend((!within).then(|| name.clone()));
    }
    let _ = writeln!(text, "| of which kubectl's own start (`kubectl version --client`) | {:.2} s | | |", own.as_secs_f64());
    (text, exceeded)
}

fn pod(name: &str, image: &str, argv: &[&str]) -> Value {
    let mut container = json!({"name": "main", "image": image, "stdin": true});
    if !argv.is_empty() {
        container["command"] = json!(argv);
    }
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"nodeSelector": {"kubernetes.io/hostname": "win01"}, "containers": [container]}
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_held_against_limits() {
        let figure = |measured| Figure { name: "pod".to_owned(), measured, limit: 0.7, unit: "s" };
        let (table, exceeded) = report(&[figure(0.5)], Duration::from_millis(50));
        assert!(table.contains("| pod | 0.50 s | 0.70 s | ok |") && exceeded.is_empty(), "{table}");
        assert_eq!(report(&[figure(0.9)], Duration::ZERO).1, ["pod"]);
    }
}
