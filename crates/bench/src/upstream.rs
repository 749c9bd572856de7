//! `bench kube-proxy`: what our service proxy and upstream's ask of the same simulated Host Networking Service, in one run.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use crate::figures::{Amount, Figures, Limit};
use crate::up::{round, run};

const NODE: &str = "win01";
/// How long upstream may take: it lists everything again for each address.
const PATIENCE: Duration = Duration::from_secs(900);
/// How long nothing may change before all counts as done.
const QUIET: Duration = Duration::from_secs(2);

/// What is measured.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The release binary
    #[arg(long)]
    mullion: PathBuf,
    /// An unmodified kubectl
    #[arg(long)]
    kubectl: PathBuf,
    /// Upstream's kube-proxy.exe (`tools/peers/kube-proxy` builds one)
    #[arg(long)]
    upstream: PathBuf,
    /// What runs Windows programs
    #[arg(long, default_value = "tools/wine/run")]
    wine: PathBuf,
    /// computenetwork.dll for Wine
    #[arg(long)]
    dll: PathBuf,
    /// Services before the one that is counted alone, each with three backends on other nodes
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=2000))]
    services: u32,
}

/// Calls of one proxy, and how long it took.
struct Took {
    all: (u64, Duration),
    one: (u64, Duration),
}

/// The most calls for one more Service with three backends: its own eight, and those of a look that falls between.
const ONE: usize = 15;

/// Measures both.
pub fn measure(args: &Args, figures: &mut Figures) -> Result<()> {
    let mullion = args.mullion.canonicalize().with_context(|| format!("finding {} failed", args.mullion.display()))?;
    let ours =
        round(&mullion, &["--nodes", "win01:windows:20348"], |kubeconfig, home| Bench { args, mullion: &mullion, kubeconfig, home }.measure(None))?;
    let upstream = round(&mullion, &["--nodes", "win01:windows:20348", "--without", "proxy"], |kubeconfig, home| {
        Bench { args, mullion: &mullion, kubeconfig, home }.measure(Some(Bench::start_upstream))
    })?;
    add(figures, args.services as usize, &ours.measured, &upstream.measured);
    Ok(())
}

fn add(figures: &mut Figures, services: usize, ours: &Took, upstream: &Took) {
    let rows = [
        (format!("HCN calls for the first programming of {services} Services with 3 backends"), ours.all, upstream.all, services * 10),
        ("HCN calls for one more".to_owned(), ours.one, upstream.one, ONE),
    ];
    for (name, ours, upstream, most) in rows {
        let count = |calls: u64| Amount::count(usize::try_from(calls).unwrap_or(usize::MAX));
        let ratio = upstream.0 as f64 / ours.0.max(1) as f64;
        let detail = format!("upstream's 1.20.2: {}, 1 : {ratio:.0}", upstream.0);
        figures.add_detailed(&name, count(ours.0), detail, Limit::AtMost(Amount::count(most)));
        let detail = format!("upstream's, under Wine: {}", Amount::time(upstream.1));
        figures.add_detailed(format!("{name}: time, with kubectl's creating"), Amount::time(ours.1), detail, Limit::Background);
    }
}

/// How often the service was asked.
#[derive(Clone, Copy, Default)]
struct Calls {
    all: u64,
    changes: u64,
}

struct Bench<'a> {
    args: &'a Args,
    mullion: &'a Path,
    kubeconfig: &'a Path,
    home: &'a Path,
}

/// A helper's process, ended with this.
struct Helper(Child);

impl Drop for Helper {
    fn drop(&mut self) {
        // Asked to, since it ends what it has started.
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

/// A proxy, and the relay that it talks through.
type Started = (Helper, Helper);

impl Bench<'_> {
    /// The first programming and one more. A proxy that runs already is timed with kubectl's creating, one that `start` starts from then on.
    fn measure(&self, start: Option<fn(&Self) -> Result<Started>>) -> Result<Took> {
        let before = self.balancers()?;
        let started = self.calls()?.all;
        let begin = Instant::now();
        self.create(0..self.args.services)?;
        let (begin, _running) = match start {
            None => (begin, None),
            Some(start) => (Instant::now(), Some(start(self)?)),
        };
        let (calls, end) = self.settled(before + u64::from(self.args.services))?;
        let all = (calls - started, end - begin);
        let (had, counted, begin) = (self.balancers()?, self.calls()?.all, Instant::now());
        self.create(self.args.services..self.args.services + 1)?;
        let (calls, end) = self.settled(had + 1)?;
        Ok(Took { all, one: (calls - counted, end - begin) })
    }

    /// Until there are so many load balancers and nobody has changed anything for a while: the calls till the last change, and when it was seen.
    fn settled(&self, balancers: u64) -> Result<(u64, Instant)> {
        let begin = Instant::now();
        let mut last = (self.calls()?, Instant::now());
        loop {
            sleep(Duration::from_millis(50));
            let calls = self.calls()?;
            if calls.changes != last.0.changes {
                last = (calls, Instant::now());
            } else if last.1.elapsed() >= QUIET && self.balancers()? >= balancers {
                return Ok((last.0.all, last.1));
            }
            if begin.elapsed() > PATIENCE {
                bail!("{} of {balancers} load balancers after {PATIENCE:?}", self.balancers()?);
            }
        }
    }

    fn hns(&self, arguments: &[&str]) -> Result<Value> {
        let mut command = Command::new(self.mullion);
        command.arg("hns").args(arguments).args(["--node", NODE, "-o", "json", "--dir"]).arg(self.home.join("dir"));
        Ok(serde_json::from_str(&run(&mut command, "")?)?)
    }

    fn balancers(&self) -> Result<u64> {
        Ok(self.hns(&["list", "loadbalancers"])?.as_array().context("no list of load balancers")?.len() as u64)
    }

    /// Calls of Host Compute Network's functions since the node's start. Asking is none: it has a socket of its own.
    fn calls(&self) -> Result<Calls> {
        let counters = self.hns(&["counters"])?;
        let functions = counters.as_object().context("no counters")?;
        let mut calls = Calls::default();
        for (function, counter) in functions {
            let count = counter["calls"].as_u64().unwrap_or(0);
            calls.all += count;
            if ["HcnCreate", "HcnModify", "HcnDelete"].iter().any(|change| function.starts_with(change)) {
                calls.changes += count;
            }
        }
        Ok(calls)
    }

    fn create(&self, numbers: std::ops::Range<u32>) -> Result<()> {
        let items: Vec<Value> = numbers.flat_map(objects).collect();
        let mut kubectl = Command::new(&self.args.kubectl);
        kubectl.env("KUBECONFIG", self.kubeconfig).env("HOME", self.home).args(["create", "-f", "-"]);
        run(&mut kubectl, &json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()).map(drop)
    }

    /// A way in for Windows programs, and upstream's proxy on it.
    fn start_upstream(&self) -> Result<Started> {
        let mut relay = Command::new(self.mullion);
        relay.args(["hns", "relay", "--node", NODE, "--dir"]).arg(self.home.join("dir")).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut relay = relay.spawn().context("starting the relay failed")?;
        let lines = BufReader::new(relay.stdout.take().context("the relay has no output")?).lines().take(2);
        let lines = lines.collect::<std::io::Result<Vec<_>>>()?;
        let relay = Helper(relay);
        let prefix = self.home.join("prefix");
        run(Command::new(self.mullion).args(["hns", "wine-prefix"]).arg(&prefix).arg("--dll").arg(&self.args.dll), "")?;
        let mut proxy = Command::new(&self.args.wine);
        proxy.envs(lines.iter().filter_map(|line| line.split_once('=')));
        proxy.env("MULLION_WINE_PREFIX", prefix).env("KUBE_NETWORK", "mullion").arg(&self.args.upstream);
        proxy.args(["--proxy-mode=kernelspace", "--hostname-override=win01", "--cluster-cidr=192.168.0.0/16", "--healthz-bind-address="]);
        proxy.arg(format!("--kubeconfig=Z:{}", self.kubeconfig.display().to_string().replace('/', "\\")));
        let proxy = proxy.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("starting upstream's proxy failed")?;
        Ok((Helper(proxy), relay))
    }
}

/// A Service without a selector, and its backends.
fn objects(number: u32) -> [Value; 2] {
    let (metadata, ports) = (json!({"name": format!("s{number}")}), json!([{"name": "http", "port": 80, "protocol": "TCP"}]));
    let at = |back_end: u32| json!({"ip": format!("192.168.{}.{}", 100 + back_end / 250, back_end % 250 + 1)});
    let addresses: Vec<Value> = (3 * number..3 * number + 3).map(at).collect();
    [
        json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata, "subsets": [{"addresses": addresses, "ports": ports}]}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": ports}}),
    ]
}

#[cfg(test)]
mod tests {
    use std::process::ExitCode;

    use super::*;
    use crate::figures::Report;

    #[test]
    fn comparison_lists_both_and_limits_ours() {
        let took = |all, one| Took { all: (all, Duration::from_secs(2)), one: (one, Duration::from_millis(250)) };
        let verdict = |ours| {
            let mut report = Report::resume();
            report.table("calls", |figures| {
                add(figures, 100, &ours, &took(160_000, 3200));
                assert_eq!(figures.limited().len(), 2);
                Ok(())
            });
            report.end()
        };
        assert_eq!(verdict(took(800, 8)), ExitCode::SUCCESS);
        assert_eq!(verdict(took(1001, 8)), ExitCode::FAILURE);
        assert_eq!(verdict(took(800, 16)), ExitCode::FAILURE);
    }

    #[test]
    fn no_two_services_share_an_address() {
        let all: std::collections::BTreeSet<String> = (0..2000)
            .flat_map(|number| objects(number)[0]["subsets"][0]["addresses"].as_array().unwrap().clone())
            .map(|at| at["ip"].to_string())
            .collect();
        assert_eq!(all.len(), 6000);
        assert!(all.iter().all(|ip| ip.trim_matches('"').parse::<std::net::Ipv4Addr>().is_ok()));
    }
}
