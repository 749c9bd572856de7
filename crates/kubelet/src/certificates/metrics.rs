//! Metrics of the node's certificates, under upstream's names (pkg/kubelet/certificate/kubelet.go, cmd/kubelet/app/server.go).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::histogram::Histogram;

use super::Current;
use super::plan::Purpose;

/// 1 minute, 1 hour, 4 hours, 1 day, 1 week, 1, 3, 6 and 12 months, 4 years.
const AGES: [f64; 10] = [60.0, 3600.0, 14400.0, 86400.0, 604_800.0, 2_592_000.0, 7_776_000.0, 15_552_000.0, 31_104_000.0, 124_416_000.0];

/// Failures and ages of the certificates of one purpose.
#[derive(Debug)]
pub struct Counts {
    purpose: Purpose,
    current: Current,
    failures: AtomicU64,
    ages: Histogram,
}

impl Counts {
    pub(crate) fn new(purpose: Purpose, current: Current) -> Arc<Self> {
        Arc::new(Self { purpose, current, failures: AtomicU64::new(0), ages: Histogram::new(AGES) })
    }

    pub(crate) fn failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// A certificate of this age was replaced.
    pub(crate) fn replaced(&self, age: Duration) {
        self.ages.observe(age.as_secs_f64());
    }

    /// Whole seconds until the certificate ends; infinite where there is none that is good.
    fn left(&self, now: SystemTime) -> f64 {
        let current = self.current.borrow();
        let end = current.as_ref().map(|pair| pair.leaf().not_after).filter(|end| now <= *end);
        end.and_then(|end| end.duration_since(now).ok()).map_or(f64::INFINITY, |left| left.as_secs_f64().trunc())
    }

    /// Writes the metrics. Upstream's counters have no `_total`, with which a counter would be written: they are written as gauges.
    fn encode_to(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (failures, ttl, help) = match self.purpose {
            Purpose::Client => (
                "kubelet_certificate_manager_client_expiration_renew_errors",
                "kubelet_certificate_manager_client_ttl_seconds",
                "Gauge of the TTL (time-to-live) of the Kubelet's client certificate. The value is in seconds until certificate expiry (negative if \
                 already expired). If client certificate is invalid or unused, the value will be +INF.",
            ),
            Purpose::Serving => (
                "kubelet_server_expiration_renew_errors",
                "kubelet_certificate_manager_server_ttl_seconds",
                "Gauge of the shortest TTL (time-to-live) of the Kubelet's serving certificate. The value is in seconds until certificate expiry \
                 (negative if already expired). If serving certificate is invalid or unused, the value will be +INF.",
            ),
        };
        let number = self.failures.load(Ordering::Relaxed);
        encoder.encode_descriptor(failures, "Counter of certificate renewal errors.", None, MetricType::Gauge)?.encode_gauge(&number)?;
        encoder.encode_descriptor(ttl, help, None, MetricType::Gauge)?.encode_gauge(&self.left(SystemTime::now()))?;
        if self.purpose == Purpose::Serving {
            let (name, help) = (
                "kubelet_certificate_manager_server_rotation_seconds",
                "Histogram of the number of seconds the previous certificate lived before being rotated.",
            );
            self.ages.encode(encoder.encode_descriptor(name, help, None, MetricType::Histogram)?)?;
        }
        Ok(())
    }
}

/// Counts in a registry.
#[derive(Debug)]
pub(crate) struct Shown(pub(crate) Arc<Counts>);

impl Collector for Shown {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.encode_to(&mut encoder)
    }
}

#[cfg(test)]
mod tests {
    use pki::{Ca, CertRequest, Pair};
    use prometheus_client::registry::Registry;
    use tokio::sync::watch;

    use super::*;

    fn text(counts: &Arc<Counts>) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Shown(counts.clone())));
        exposition::encode(&registry, exposition::Format::Text)
    }

    #[test]
    fn the_names_are_upstreams() {
        let (sender, current) = watch::channel(None);
        let counts = Counts::new(Purpose::Serving, current);
        counts.failure();
        counts.replaced(Duration::from_secs(7200));
        let shown = text(&counts);
        for line in [
            "kubelet_server_expiration_renew_errors 1",
            "kubelet_certificate_manager_server_ttl_seconds inf",
            "kubelet_certificate_manager_server_rotation_seconds_bucket{le=\"3600\"} 0",
            "kubelet_certificate_manager_server_rotation_seconds_bucket{le=\"14400\"} 1",
            "kubelet_certificate_manager_server_rotation_seconds_sum 7200.0",
        ] {
            assert!(shown.lines().any(|known| known == line), "{line} is missing in\n{shown}");
        }
        let ca = Ca::generate("kubernetes", Duration::from_secs(86_400)).unwrap();
        let made = ca.issue(&CertRequest { cn: "a".into(), days: 1, ..CertRequest::default() }).unwrap();
        let pair = Arc::new(Pair::parse(&made.cert_pem, &made.key_pem).unwrap());
        let end = pair.leaf().not_after;
        sender.send_replace(Some(pair));
        assert!((counts.left(end - Duration::from_millis(90_500)) - 90.0).abs() < f64::EPSILON);
        assert!(counts.left(end + Duration::from_secs(1)).is_infinite());
    }

    #[test]
    fn the_client_certificate_has_metrics_of_its_own() {
        let counts = Counts::new(Purpose::Client, watch::channel(None).1);
        let shown = text(&counts);
        assert!(shown.contains("\nkubelet_certificate_manager_client_expiration_renew_errors 0\n"), "{shown}");
        assert!(shown.contains("\nkubelet_certificate_manager_client_ttl_seconds inf\n"), "{shown}");
        assert!(!shown.contains("rotation_seconds"), "{shown}");
    }
}
