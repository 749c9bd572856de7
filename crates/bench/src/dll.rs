//! `bench dll`: `mullion.exe kube-proxy` under Wine on a Host Networking Service that does one call at a time, behind the DLL's own
//! interface. The service is a model within the DLL (feature `one-lock` of crate `hcn-dll`), so that no socket is between the calls.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};

use crate::api;
use crate::figures::{Amount, Figures, Limit};
use crate::up::run;

/// What a write and any other call take, in text for the DLL and in milliseconds.
const COSTS: (&str, f64, f64) = ("write=2ms,read=100us", 2.0, 0.1);
/// The longest that the last write may come after the start, as a multiple of what the calls themselves take.
const LIMIT: f64 = 1.1;
/// How long nothing may be written before all counts as done.
const QUIET: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(300);

/// What is measured.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The release binary, for the Wine prefix
    #[arg(long)]
    mullion: PathBuf,
    /// Its Windows build
    #[arg(long)]
    exe: PathBuf,
    /// computenetwork.dll with the model in it
    #[arg(long)]
    dll: PathBuf,
    /// What runs Windows programs
    #[arg(long, default_value = "tools/wine/run")]
    wine: PathBuf,
    /// Services, each with three backends on other nodes
    #[arg(long, default_value_t = 2000)]
    services: usize,
}

/// The model's report: writes, other calls, and when the last write was done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Stats {
    writes: u64,
    reads: u64,
    last: Duration,
}

impl Stats {
    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.strip_suffix('\n')?.split(' ').map(|word| word.parse::<u64>().ok());
        Some(Self { writes: numbers.next()??, reads: numbers.next()??, last: Duration::from_millis(numbers.next()??) })
    }

    /// What the calls take where no time is lost between them.
    fn ideal(&self) -> f64 {
        (self.writes as f64 * COSTS.1 + self.reads as f64 * COSTS.2) / 1e3
    }
}

/// Measures one programming of everything.
pub fn measure(args: &Args, figures: &mut Figures) -> Result<()> {
    let home = tempfile::tempdir()?;
    let [prefix, stats, kubeconfig] = ["prefix", "stats", "kubeconfig"].map(|name| home.path().join(name));
    run(Command::new(&args.mullion).args(["hns", "wine-prefix"]).arg(&prefix).arg("--dll").arg(&args.dll), "")?;
    let server = api::Server::start(args.services)?;
    let config = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "bench",
        "clusters": [{"name": "bench", "cluster": {"server": server.url()}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        "users": [{"name": "bench", "user": {}}],
    });
    std::fs::write(&kubeconfig, config.to_string())?;
    let mut proxy = Command::new(&args.wine);
    proxy.env("MULLION_WINE_PREFIX", &prefix).env("KUBE_NETWORK", "bench");
    proxy.env("MULLION_HCN", format!("dll:model:bench,{},stats={}", COSTS.0, windows_path(&stats)));
    proxy.arg(&args.exe).args(["kube-proxy", "--proxy-mode=kernelspace", "--hostname-override=another", "--cluster-cidr=10.0.0.0/8"]);
    proxy.args(["--healthz-bind-address=", "--metrics-bind-address="]).arg(format!("--kubeconfig={}", windows_path(&kubeconfig)));
    let log = home.path().join("log");
    let output = std::fs::File::create(&log)?;
    proxy.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    let begin = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let mut running = Running(proxy.spawn().with_context(|| format!("starting {} failed", args.wine.display()))?);
    // Three endpoints and a load balancer for each Service.
    let expected = args.services as u64 * 4;
    let found = settled(&mut running, &stats, expected).with_context(|| std::fs::read_to_string(&log).unwrap_or_default())?;
    drop(running);
    let took = found.last.saturating_sub(begin);
    report(figures, args.services, &found, took);
    Ok(())
}

fn windows_path(path: &Path) -> String {
    format!("Z:{}", path.display().to_string().replace('/', "\\"))
}

/// The proxy, asked to end with this, since it ends what it has started.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

fn settled(running: &mut Running, stats: &Path, expected: u64) -> Result<Stats> {
    let begin = Instant::now();
    let mut last = (Stats::default(), Instant::now());
    loop {
        sleep(Duration::from_millis(100));
        let now = std::fs::read_to_string(stats).ok().and_then(|text| Stats::parse(&text)).unwrap_or(last.0);
        if now.writes != last.0.writes {
            last = (now, Instant::now());
        } else if now.writes >= expected && last.1.elapsed() >= QUIET {
            // What was read after the last write is not part of it.
            return Ok(last.0);
        }
        if let Some(status) = running.0.try_wait()? {
            bail!("the proxy ended with {status} after {} writes", now.writes);
        }
        ensure!(begin.elapsed() < PATIENCE, "{} of {expected} writes after {PATIENCE:?}", now.writes);
    }
}

fn report(figures: &mut Figures, services: usize, stats: &Stats, took: Duration) {
    let count = |count: u64| Amount::count(usize::try_from(count).unwrap_or(usize::MAX));
    figures.background(format!("writes for {services} Services x 3, at 2 ms"), count(stats.writes));
    figures.background("other calls, closes included, at 0.1 ms", count(stats.reads));
    figures.background_time("what these calls take", Duration::from_secs_f64(stats.ideal()));
    let ratio = took.as_secs_f64() / stats.ideal();
    let (name, detail) = ("from the start of `mullion.exe kube-proxy` to the last write, against that", Amount::time(took).to_string());
    figures.add_detailed(name, Amount::times(ratio), detail, Limit::AtMost(Amount::times(LIMIT)));
}

#[cfg(test)]
mod tests {
    use std::process::ExitCode;

    use super::*;
    use crate::figures::Report;

    #[test]
    fn a_line_of_the_model_is_read_whole_or_not_at_all() {
        let stats = Stats { writes: 8004, reads: 8100, last: Duration::from_millis(1_700_000_000_123) };
        assert_eq!(Stats::parse("8004 8100 1700000000123\n"), Some(stats));
        assert!((stats.ideal() - 16.818).abs() < 1e-9);
        for half in ["", "8004", "8004 8100 17000", "8004 \n"] {
            assert_eq!(Stats::parse(half), None, "{half:?}");
        }
    }

    #[test]
    fn late_last_write_exceeds_the_limit() {
        let stats = Stats { writes: 8004, reads: 8100, last: Duration::ZERO };
        let code = |seconds| {
            let mut report = Report::resume();
            report.table("dll", |figures| {
                super::report(figures, 2000, &stats, Duration::from_secs(seconds));
                Ok(())
            });
            report.end()
        };
        assert_eq!((code(18), code(19)), (ExitCode::SUCCESS, ExitCode::FAILURE));
    }
}
