//! Metrics of the proxy as text for Prometheus, under upstream's names where upstream has them (pkg/proxy/metrics).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cluster::ApiServer;
use hcn::Function;

use crate::hns::Tally;
use crate::run::Status;

/// Counts the calls of the Host Networking Service so far.
pub type CallCounter = Box<dyn Fn() -> BTreeMap<Function, Tally> + Send + Sync>;

/// The metrics. Clones share their values.
#[derive(Clone, Default)]
pub struct Metrics(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    syncs: Histogram,
    programming: Histogram,
    service_changes: u64,
    endpoint_changes: u64,
    last_synced: Option<SystemTime>,
    last_queued: Option<SystemTime>,
    tallies: Option<CallCounter>,
    api: Option<ApiServer>,
}

/// Upper bounds of upstream's buckets, in seconds: 1 ms doubled fourteen times.
fn sync_bounds() -> Vec<f64> {
    (0..15).map(|n| 0.001 * f64::from(1 << n)).collect()
}

/// Upper bounds of upstream's buckets of network programming, in seconds.
fn programming_bounds() -> Vec<f64> {
    let fine = [0.25, 0.5].into_iter();
    fine.chain((1..60).map(f64::from)).chain((0..12).map(|n| f64::from(60 + 5 * n))).chain((0..7).map(|n| f64::from(120 + 30 * n))).collect()
}

#[derive(Default)]
struct Histogram {
    counts: Vec<u64>,
    sum: f64,
    count: u64,
}

impl Histogram {
    fn observe(&mut self, seconds: f64, bounds: &[f64]) {
        self.counts.resize(bounds.len(), 0);
        for (count, bound) in self.counts.iter_mut().zip(bounds) {
            *count += u64::from(seconds <= *bound);
        }
        self.sum += seconds;
        self.count += 1;
    }

    fn render(&self, text: &mut String, name: &str, help: &str, bounds: &[f64]) {
        head(text, name, "histogram", help);
        for (i, bound) in bounds.iter().enumerate() {
            let _ = writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {}", self.counts.get(i).unwrap_or(&0));
        }
        let _ = writeln!(text, "{name}_bucket{{le=\"+Inf\"}} {0}\n{name}_sum {1}\n{name}_count {0}", self.count, self.sum);
    }
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn single(text: &mut String, name: &str, kind: &str, help: &str, value: f64) {
    head(text, name, kind, help);
    let _ = writeln!(text, "{name} {value}");
}

fn since_1970(time: Option<SystemTime>) -> f64 {
    time.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map_or(0.0, |since| since.as_secs_f64())
}

impl Metrics {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count_calls_by(&self, tallies: CallCounter) {
        self.inner().tallies = Some(tallies);
    }

    pub(crate) fn count_watches_of(&self, api: &ApiServer) {
        self.inner().api = Some(api.clone());
    }

    pub(crate) fn service_changed(&self) {
        self.inner().service_changes += 1;
    }

    pub(crate) fn endpoints_changed(&self) {
        self.inner().endpoint_changes += 1;
    }

    /// Changes wait for the backend.
    pub(crate) fn queued(&self) {
        self.inner().last_queued = Some(SystemTime::now());
    }

    /// Nothing waits any more, after so long.
    pub(crate) fn synced(&self, took: Duration) {
        let mut inner = self.inner();
        inner.syncs.observe(took.as_secs_f64(), &sync_bounds());
        inner.last_synced = Some(SystemTime::now());
    }

    /// What happened to a pod at `trigger` (milliseconds since 1970) reached the host now.
    pub(crate) fn programmed(&self, trigger: i64) {
        let now = since_1970(Some(SystemTime::now()));
        self.inner().programming.observe((now - trigger as f64 / 1000.0).max(0.0), &programming_bounds());
    }

    /// When everything was last what it should be.
    pub fn last_synced(&self) -> Option<SystemTime> {
        self.inner().last_synced
    }

    /// Everything, in Prometheus' text format.
    pub fn render(&self, status: &Status) -> String {
        let inner = self.inner();
        let mut text = String::with_capacity(8192);
        let t = &mut text;
        let name = |rest: &str| format!("kubeproxy_{rest}");
        inner.syncs.render(t, &name("sync_proxy_rules_duration_seconds"), "From a change to nothing left to do, in seconds", &sync_bounds());
        let help = "From a change of a pod or Service to its rules on this node, in seconds";
        inner.programming.render(t, &name("network_programming_duration_seconds"), help, &programming_bounds());
        let gauges = [
            ("sync_proxy_rules_last_timestamp_seconds", "When nothing was left to do last", since_1970(inner.last_synced)),
            ("sync_proxy_rules_last_queued_timestamp_seconds", "When a change came last", since_1970(inner.last_queued)),
            ("sync_proxy_rules_service_changes_pending", "VIPs of Services that wait", status.progress.pending as f64),
            ("sync_proxy_rules_endpoint_changes_pending", "VIPs whose backends changed and that wait", status.progress.pending as f64),
        ];
        gauges.iter().for_each(|(rest, help, value)| single(t, &name(rest), "gauge", help, *value));
        single(t, &name("sync_proxy_rules_service_changes_total"), "counter", "Changes of Services", inner.service_changes as f64);
        single(t, &name("sync_proxy_rules_endpoint_changes_total"), "counter", "Changes of EndpointSlices", inner.endpoint_changes as f64);
        let missing = status.missing();
        let ours = [
            ("desired", "VIPs that should exist", status.vips as f64),
            ("programmed", "VIPs that are what they should be", status.vips.saturating_sub(missing) as f64),
            ("missing", "VIPs that are not what they should be", missing as f64),
            ("failing", "VIPs that failed and are tried again", status.progress.failing.len() as f64),
            ("ready", "Whether every VIP was tried once", f64::from(u8::from(status.ready))),
            ("available", "Whether the host's service answers", f64::from(u8::from(status.progress.unavailable.is_none()))),
            ("eta_seconds", "How long what waits will take, as it goes now", status.eta.map_or(0.0, |eta| eta.as_secs_f64())),
        ];
        ours.iter().for_each(|(rest, help, value)| single(t, &format!("mullion_service_proxy_{rest}"), "gauge", help, *value));
        single(t, "mullion_service_proxy_writes_total", "counter", "Writes that reached the host", status.progress.writes as f64);
        refusals(t, status);
        if let Some(tallies) = &inner.tallies {
            calls(t, &tallies());
        }
        if let Some(api) = &inner.api {
            t.push_str(&api.metrics());
        }
        text
    }
}

fn refusals(text: &mut String, status: &Status) {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    status.progress.refusals.values().flatten().for_each(|refusal| *counts.entry(refusal.reason).or_default() += 1);
    let name = "mullion_service_proxy_unsupported";
    head(text, name, "gauge", "VIPs that ask for something that the host cannot do");
    for (reason, count) in counts {
        let _ = writeln!(text, "{name}{{reason=\"{reason}\"}} {count}");
    }
}

/// What is shown of a function's calls.
type Column = (&'static str, &'static str, fn(&Tally) -> f64);

fn calls(text: &mut String, tallies: &BTreeMap<Function, Tally>) {
    let columns: [Column; 3] = [
        ("mullion_hns_calls_total", "Calls of the Host Networking Service", |tally| tally.calls as f64),
        ("mullion_hns_calls_failed_total", "Calls that failed", |tally| tally.failed as f64),
        ("mullion_hns_call_seconds_total", "How long calls took together", |tally| tally.time.as_secs_f64()),
    ];
    for (name, help, value) in columns {
        head(text, name, "counter", help);
        for (function, tally) in tallies {
            let _ = writeln!(text, "{name}{{function=\"{function}\"}} {}", value(tally));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rendered_metrics_use_upstream_names_and_complete_histograms() {
        let metrics = Metrics::default();
        metrics.synced(Duration::from_millis(3));
        metrics.programmed(0);
        metrics.service_changed();
        let tally = Tally { calls: 3, failed: 1, time: Duration::from_millis(6) };
        metrics.count_calls_by(Box::new(move || BTreeMap::from([(Function::Create(hcn::Kind::LoadBalancer), tally)])));
        let mut status = Status { ready: true, vips: 5, ..Status::default() };
        status.progress.pending = 2;
        let text = metrics.render(&status);
        for line in [
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{le=\"0.002\"} 0",
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{le=\"0.004\"} 1",
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{le=\"+Inf\"} 1",
            "kubeproxy_network_programming_duration_seconds_bucket{le=\"300\"} 0",
            "kubeproxy_network_programming_duration_seconds_count 1",
            "kubeproxy_sync_proxy_rules_service_changes_total 1",
            "mullion_service_proxy_desired 5",
            "mullion_service_proxy_missing 2",
            "mullion_hns_calls_total{function=\"HcnCreateLoadBalancer\"} 3",
            "mullion_hns_call_seconds_total{function=\"HcnCreateLoadBalancer\"} 0.006",
        ] {
            assert!(text.lines().any(|known| known == line), "{line} is not in\n{text}");
        }
        let bounds = programming_bounds();
        assert_eq!((bounds.len(), bounds[2], bounds[60], bounds[61], bounds[72]), (80, 1.0, 59.0, 60.0, 115.0));
    }
}
