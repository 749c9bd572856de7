//! Metrics of the proxy, under upstream's names where upstream has them (pkg/proxy/metrics).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cluster::ApiServer;
use exposition::{Format, register};
use hcn::Function;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::hns::Tally;
use crate::run::Status;

/// Counts the calls of the Host Networking Service so far.
pub type CallCounter = Box<dyn Fn() -> BTreeMap<Function, Tally> + Send + Sync>;

/// The metrics. Clones share their values.
#[derive(Clone, Default)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Mutex<Registry>,
    syncs: Histogram,
    programming: Histogram,
    service_changes: Counter,
    endpoint_changes: Counter,
    last_synced: Time,
    last_queued: Time,
    healthz: Answers,
    livez: Answers,
}

/// Seconds since 1970; 0 is never.
type Time = Gauge<f64, AtomicU64>;

/// Answers to questions for health, by status.
type Answers = Family<Answer, Counter>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answer {
    code: u16,
}

/// Upper bounds of upstream's buckets, in seconds: 1 ms doubled fourteen times.
fn sync_bounds() -> impl Iterator<Item = f64> {
    (0..15).map(|n| 0.001 * f64::from(1 << n))
}

/// Upper bounds of upstream's buckets of network programming, in seconds.
fn programming_bounds() -> impl Iterator<Item = f64> {
    let fine = [0.25, 0.5].into_iter();
    fine.chain((1..60).map(f64::from)).chain((0..12).map(|n| f64::from(60 + 5 * n))).chain((0..7).map(|n| f64::from(120 + 30 * n)))
}

fn since_1970(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

impl Default for Inner {
    fn default() -> Self {
        let inner = Self {
            registry: Mutex::default(),
            syncs: Histogram::new(sync_bounds()),
            programming: Histogram::new(programming_bounds()),
            service_changes: Counter::default(),
            endpoint_changes: Counter::default(),
            last_synced: Time::default(),
            last_queued: Time::default(),
            healthz: Answers::default(),
            livez: Answers::default(),
        };
        for code in [200, 503] {
            drop(inner.healthz.get_or_create(&Answer { code }));
            drop(inner.livez.get_or_create(&Answer { code }));
        }
        inner.register();
        inner
    }
}

impl Inner {
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn register(&self) {
        let registry = &mut *self.registry();
        let help = "From a change to nothing left to do, in seconds";
        register(registry, "kubeproxy_sync_proxy_rules_duration_seconds", help, self.syncs.clone());
        let help = "From a change of a pod or Service to its rules on this node, in seconds";
        register(registry, "kubeproxy_network_programming_duration_seconds", help, self.programming.clone());
        let help = "When nothing was left to do last";
        register(registry, "kubeproxy_sync_proxy_rules_last_timestamp_seconds", help, self.last_synced.clone());
        let help = "When a change came last";
        register(registry, "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", help, self.last_queued.clone());
        register(registry, "kubeproxy_sync_proxy_rules_service_changes", "Changes of Services", self.service_changes.clone());
        register(registry, "kubeproxy_sync_proxy_rules_endpoint_changes", "Changes of EndpointSlices", self.endpoint_changes.clone());
        register(registry, "kubeproxy_proxy_healthz", "Questions for health, by answer", self.healthz.clone());
        register(registry, "kubeproxy_proxy_livez", "Questions for health, by answer", self.livez.clone());
    }
}

impl Metrics {
    /// Adds what the proxy reports of its progress.
    pub(crate) fn report(&self, status: watch::Receiver<Status>) {
        self.0.registry().register_collector(Box::new(Progress(status)));
    }

    pub(crate) fn count_calls_by(&self, tallies: CallCounter) {
        self.0.registry().register_collector(Box::new(Calls(tallies)));
    }

    pub(crate) fn count_watches_of(&self, api: &ApiServer) {
        api.register(&mut self.0.registry());
    }

    pub(crate) fn service_changed(&self) {
        self.0.service_changes.inc();
    }

    pub(crate) fn endpoints_changed(&self) {
        self.0.endpoint_changes.inc();
    }

    /// Changes wait for the backend.
    pub(crate) fn queued(&self) {
        self.0.last_queued.set(since_1970(SystemTime::now()));
    }

    /// Nothing waits any more, after so long.
    pub(crate) fn synced(&self, took: Duration) {
        self.0.syncs.observe(took.as_secs_f64());
        self.0.last_synced.set(since_1970(SystemTime::now()));
    }

    /// What happened to a pod at `trigger` (milliseconds since 1970) reached the host now.
    pub(crate) fn programmed(&self, trigger: i64) {
        self.0.programming.observe((since_1970(SystemTime::now()) - trigger as f64 / 1000.0).max(0.0));
    }

    /// `/healthz` was answered with a status.
    pub(crate) fn answered_healthz(&self, code: u16) {
        self.0.healthz.get_or_create(&Answer { code }).inc();
    }

    /// `/livez` was answered with a status.
    pub(crate) fn answered_livez(&self, code: u16) {
        self.0.livez.get_or_create(&Answer { code }).inc();
    }

    /// When everything was last what it should be.
    pub fn last_synced(&self) -> Option<SystemTime> {
        let seconds = self.0.last_synced.get();
        (seconds > 0.0).then(|| UNIX_EPOCH + Duration::from_secs_f64(seconds))
    }

    /// Everything, in a format of Prometheus.
    pub fn encode(&self, format: Format) -> String {
        exposition::encode(&self.0.registry(), format)
    }
}

/// How far the proxy is.
#[derive(Debug)]
struct Progress(watch::Receiver<Status>);

impl Collector for Progress {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let status = self.0.borrow();
        let (pending, missing) = (status.progress.pending, status.missing());
        let counts = [
            ("kubeproxy_sync_proxy_rules_service_changes_pending", "VIPs of Services that wait", pending),
            ("kubeproxy_sync_proxy_rules_endpoint_changes_pending", "VIPs whose backends changed and that wait", pending),
            ("mullion_service_proxy_desired", "VIPs that should exist", status.vips),
            ("mullion_service_proxy_programmed", "VIPs that are what they should be", status.vips.saturating_sub(missing)),
            ("mullion_service_proxy_missing", "VIPs that are not what they should be", missing),
            ("mullion_service_proxy_failing", "VIPs that failed and are tried again", status.progress.failing.len()),
            ("mullion_service_proxy_ready", "Whether every VIP was tried once", usize::from(status.ready)),
            ("mullion_service_proxy_available", "Whether the host's service answers", usize::from(status.progress.unavailable.is_none())),
        ];
        for (name, help, value) in counts {
            encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)?;
        }
        let (name, help) = ("mullion_service_proxy_eta_seconds", "How long what waits will take, as it goes now");
        let eta = status.eta.map_or(0.0, |eta| eta.as_secs_f64());
        encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&eta)?;
        let mut writes = encoder.encode_descriptor("mullion_service_proxy_writes", "Writes that reached the host", None, MetricType::Counter)?;
        writes.encode_counter::<NoLabelSet, _, f64>(&status.progress.writes, None)?;
        refusals(&mut encoder, &status)
    }
}

fn refusals(encoder: &mut DescriptorEncoder<'_>, status: &Status) -> fmt::Result {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    status.progress.refusals.values().flatten().for_each(|refusal| *counts.entry(refusal.reason).or_default() += 1);
    let (name, help) = ("mullion_service_proxy_unsupported", "VIPs that ask for something that the host cannot do");
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (reason, count) in counts {
        family.encode_family(&[("reason", reason)])?.encode_gauge(&count)?;
    }
    Ok(())
}

/// Calls of the Host Networking Service.
struct Calls(CallCounter);

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Calls")
    }
}

/// Name, help and value of a counter of calls.
type Column = (&'static str, &'static str, fn(&Tally) -> u64);

impl Collector for Calls {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let tallies: Vec<([(&str, String); 1], Tally)> =
            (self.0)().into_iter().map(|(function, tally)| ([("function", function.to_string())], tally)).collect();
        let columns: [Column; 2] = [
            ("mullion_hns_calls", "Calls of the Host Networking Service", |tally| tally.calls),
            ("mullion_hns_calls_failed", "Calls that failed", |tally| tally.failed),
        ];
        for (name, help, count) in columns {
            exposition::counters(&mut encoder, name, help, tallies.iter().map(|(labels, tally)| (labels.clone(), count(tally))))?;
        }
        let seconds = tallies.iter().map(|(labels, tally)| (labels.clone(), tally.time.as_secs_f64()));
        exposition::counters(&mut encoder, "mullion_hns_call_seconds", "How long calls took together", seconds)
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
        metrics.report(watch::Sender::new(status).subscribe());
        let text = metrics.encode(Format::Text);
        for line in [
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{le=\"0.002\"} 0",
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{le=\"0.004\"} 1",
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{le=\"+Inf\"} 1",
            "kubeproxy_network_programming_duration_seconds_bucket{le=\"300\"} 0",
            "kubeproxy_network_programming_duration_seconds_count 1",
            "kubeproxy_sync_proxy_rules_service_changes_total 1",
            "# HELP kubeproxy_sync_proxy_rules_service_changes_total Changes of Services",
            "# TYPE kubeproxy_sync_proxy_rules_service_changes_total counter",
            "# TYPE kubeproxy_network_programming_duration_seconds histogram",
            "kubeproxy_network_programming_duration_seconds_bucket{le=\"0.25\"} 0",
            "mullion_service_proxy_desired 5",
            "mullion_service_proxy_missing 2",
            "mullion_hns_calls_total{function=\"HcnCreateLoadBalancer\"} 3",
            "mullion_hns_call_seconds_total{function=\"HcnCreateLoadBalancer\"} 0.006",
        ] {
            assert!(text.lines().any(|known| known == line), "{line} is not in\n{text}");
        }
        let bounds: Vec<f64> = programming_bounds().collect();
        assert_eq!((bounds.len(), bounds[2], bounds[60], bounds[61], bounds[72]), (80, 1.0, 59.0, 60.0, 115.0));
    }
}
