//! Durations and counts of the agent's own work, under upstream's names, labels and buckets (pkg/kubelet/metrics/metrics.go).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use exposition::register;
use jiff::Timestamp;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::requests::Requests;
use super::startup::Startup;

/// Bounds of durations that have none of their own: those of Prometheus' library for Go.
pub(super) const USUAL: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Bounds of the start of pods.
const STARTS: [f64; 25] = [
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0,
    2700.0, 3600.0,
];
/// Bounds of pulls of images.
const PULLS: [f64; 18] = [1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0];
/// Bounds of the way of a status to the API server.
const STATUSES: [f64; 11] = [0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];
/// Bounds of numbers of containers.
const CONTAINERS: [f64; 5] = [1.0, 2.0, 4.0, 8.0, 16.0];

/// Images larger than so many bytes have this label.
const IMAGE_SIZES: [(u64, &str); 12] = [
    (0, "0-10MB"),
    (10 << 20, "10MB-100MB"),
    (100 << 20, "100MB-500MB"),
    (500 << 20, "500MB-1GB"),
    (1 << 30, "1GB-5GB"),
    (5 << 30, "5GB-10GB"),
    (10 << 30, "10GB-20GB"),
    (20 << 30, "20GB-30GB"),
    (30 << 30, "30GB-40GB"),
    (40 << 30, "40GB-60GB"),
    (60 << 30, "60GB-100GB"),
    (100 << 30, "GT100GB"),
];

/// Reasons of rejections that have a series of their own, as upstream; others are `Other`.
const REJECTIONS: [&str; 21] = [
    "AppArmor",
    "PodOSSelectorNodeLabelDoesNotMatch",
    "PodOSNotSupported",
    "InvalidNodeInfo",
    "InitContainerRestartPolicyForbidden",
    "SupplementalGroupsPolicyNotSupported",
    "UnexpectedAdmissionError",
    "UnknownReason",
    "UnexpectedPredicateFailureType",
    "OutOfcpu",
    "OutOfmemory",
    "OutOfephemeral-storage",
    "OutOfpods",
    "PodLevelResourcesNotSupported",
    "PodFeatureUnsupported",
    "node(s) had taints that the pod didn't tolerate",
    "Evicted",
    "SysctlForbidden",
    "TopologyAffinityError",
    "NodeShutdown",
    "VolumeAttachmentLimitExceeded",
];

/// Most series of ends of containers: exit codes are numbers of 32 bits on Windows, and reasons are what the runtime says.
const MOST_ENDS: usize = 128;

/// One label.
type Label = [(&'static str, String); 1];
type Durations<L> = Family<L, Histogram, fn() -> Histogram>;

pub(super) fn usual() -> Histogram {
    Histogram::new(USUAL)
}

fn pulls() -> Histogram {
    Histogram::new(PULLS)
}

/// Kind, exit code and reason of ends of containers, and how many there were.
type Ends = BTreeMap<(&'static str, String, String), u64>;

/// Durations and counts since the agent began.
#[derive(Debug)]
pub(crate) struct Timings {
    pub requests: Requests,
    pub startup: Startup,
    started_pods: Counter,
    failed_pods: Counter,
    with_users: Counter,
    failed_with_users: Counter,
    sandboxes: Durations<Label>,
    failed_sandboxes: Family<Label, Counter>,
    pod_start: Histogram,
    whole_start: Histogram,
    own_start: Histogram,
    /// 0 for none yet.
    first_network: Gauge<f64, std::sync::atomic::AtomicU64>,
    worker_start: Histogram,
    worker: Durations<[(&'static str, &'static str); 1]>,
    containers_per_pod: Histogram,
    status_sync: Histogram,
    pulls: Durations<[(&'static str, &'static str); 1]>,
    relist: Histogram,
    relist_interval: Histogram,
    relisted: Gauge,
    last_relist: Mutex<Option<Instant>>,
    rejections: Family<[(&'static str, &'static str); 1], Counter>,
    orphans: Counter,
    ends: Mutex<Ends>,
}

impl Default for Timings {
    fn default() -> Self {
        Timings {
            requests: Requests::default(),
            startup: Startup::new(Instant::now()),
            started_pods: Counter::default(),
            failed_pods: Counter::default(),
            with_users: Counter::default(),
            failed_with_users: Counter::default(),
            sandboxes: Family::new_with_constructor(usual as fn() -> Histogram),
            failed_sandboxes: Family::default(),
            pod_start: Histogram::new(STARTS),
            whole_start: Histogram::new(STARTS),
            own_start: Histogram::new(STARTS),
            first_network: Gauge::default(),
            worker_start: usual(),
            worker: Family::new_with_constructor(usual as fn() -> Histogram),
            containers_per_pod: Histogram::new(CONTAINERS),
            status_sync: Histogram::new(STATUSES),
            pulls: Family::new_with_constructor(pulls as fn() -> Histogram),
            relist: usual(),
            relist_interval: usual(),
            relisted: Gauge::default(),
            last_relist: Mutex::default(),
            rejections: Family::default(),
            orphans: Counter::default(),
            ends: Mutex::default(),
        }
    }
}

/// The start of a pod as the API server shows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Start {
    /// Seconds since the pod was made.
    pub whole: f64,
    /// Without pulls and init containers; none for pods with volumes that outlive them.
    pub own: Option<f64>,
    /// The pod has a network of its own.
    pub has_network: bool,
}

impl Timings {
    pub(super) fn register(&self, registry: &mut Registry) {
        self.requests.register(registry);
        self.register_pods(registry);
        register(registry, "kubelet_pleg_relist_duration_seconds", "Duration in seconds for relisting pods in PLEG.", self.relist.clone());
        register(registry, "kubelet_pleg_relist_interval_seconds", "Interval in seconds between relisting in PLEG.", self.relist_interval.clone());
        register(registry, "kubelet_pleg_last_seen_seconds", "Timestamp in seconds when PLEG was last seen active.", self.relisted.clone());
        let help = "Cumulative number pod admission rejections by the Kubelet.";
        register(registry, "kubelet_admission_rejections", help, self.rejections.clone());
        register(registry, "kubelet_image_pull_duration_seconds", "Duration in seconds to pull an image.", self.pulls.clone());
        let help = "Duration in seconds of the run_podsandbox operations. Broken down by RuntimeClass.Handler.";
        register(registry, "kubelet_run_podsandbox_duration_seconds", help, self.sandboxes.clone());
        let help = "Cumulative number of the run_podsandbox operation errors by RuntimeClass.Handler.";
        register(registry, "kubelet_run_podsandbox_errors", help, self.failed_sandboxes.clone());
        let help = "Number of pods that have been detected in the container runtime without being already known to the pod worker. This typically \
                    indicates the kubelet was restarted while a pod was force deleted in the API or in the local configuration, which is unusual.";
        register(registry, "kubelet_orphaned_runtime_pods", help, self.orphans.clone());
    }

    fn register_pods(&self, registry: &mut Registry) {
        register(registry, "kubelet_started_pods", "Cumulative number of pods started", self.started_pods.clone());
        register(registry, "kubelet_started_pods_errors", "Cumulative number of errors when starting pods", self.failed_pods.clone());
        let help = "Cumulative number of pods with user namespaces started. This metric will only be collected on Linux.";
        register(registry, "kubelet_started_user_namespaced_pods", help, self.with_users.clone());
        let help = "Cumulative number of errors when starting pods with user namespaces. This metric will only be collected on Linux.";
        register(registry, "kubelet_started_user_namespaced_pods_errors", help, self.failed_with_users.clone());
        let help = "Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run";
        register(registry, "kubelet_pod_start_duration_seconds", help, self.pod_start.clone());
        let help = "Duration in seconds to start a pod since creation, including time to pull images and run init containers, measured from pod \
                    creation timestamp to when all its containers are reported as started and observed via watch";
        register(registry, "kubelet_pod_start_total_duration_seconds", help, self.whole_start.clone());
        let help = "Duration in seconds to start a pod, excluding time to pull images and run init containers, measured from pod creation timestamp \
                    to when all its containers are reported as started and observed via watch";
        register(registry, "kubelet_pod_start_sli_duration_seconds", help, self.own_start.clone());
        let help = "Duration in seconds to start the first network pod, excluding time to pull images and run init containers, measured from pod \
                    creation timestamp to when all its containers are reported as started and observed via watch";
        register(registry, "kubelet_first_network_pod_start_sli_duration_seconds", help, self.first_network.clone());
        let help = "Duration in seconds from kubelet seeing a pod to starting a worker.";
        register(registry, "kubelet_pod_worker_start_duration_seconds", help, self.worker_start.clone());
        let help = "Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync";
        register(registry, "kubelet_pod_worker_duration_seconds", help, self.worker.clone());
        register(registry, "kubelet_containers_per_pod_count", "The number of containers per pod.", self.containers_per_pod.clone());
        let help = "Duration in seconds to sync a pod status update. Measures time from detection of a change to pod status until the API is \
                    successfully updated for that pod, even if multiple intevening changes to pod status occur.";
        register(registry, "kubelet_pod_status_sync_duration_seconds", help, self.status_sync.clone());
    }

    /// A sandbox was asked for with this handler, and made or not.
    pub(crate) fn sandbox(&self, handler: &str, took: Duration, failed: bool) {
        let label = [("runtime_handler", handler.to_owned())];
        self.sandboxes.get_or_create(&label).observe(took.as_secs_f64());
        if failed {
            self.failed_sandboxes.get_or_create(&label).inc();
        }
    }

    /// A pod was to be started, with users of its own or not, and was or not.
    pub(crate) fn started_pod(&self, has_users: bool, failed: bool) {
        self.started_pods.inc();
        self.failed_pods.inc_by(u64::from(failed));
        self.with_users.inc_by(u64::from(has_users));
        self.failed_with_users.inc_by(u64::from(has_users && failed));
    }

    /// A pod runs so long after it was first seen.
    pub(crate) fn pod_runs(&self, seconds: f64) {
        self.pod_start.observe(seconds);
    }

    /// The API server shows that all containers of a pod have started.
    pub(crate) fn pod_started(&self, start: Start) {
        self.whole_start.observe(start.whole);
        let Some(own) = start.own else { return };
        self.own_start.observe(own);
        if start.has_network && self.first_network.get() == 0.0 {
            self.first_network.set(own);
        }
    }

    /// A worker begins with a pod of so many containers that was first seen then.
    pub(crate) fn worker_begins(&self, seen: Option<Timestamp>, now: Timestamp, containers: usize) {
        if let Some(seen) = seen {
            self.worker_start.observe(now.duration_since(seen).as_secs_f64().max(0.0));
        }
        self.containers_per_pod.observe(containers as f64);
    }

    /// A worker has dealt with an event of this type.
    pub(crate) fn worked(&self, operation: &'static str, took: Duration) {
        self.worker.get_or_create(&[("operation_type", operation)]).observe(took.as_secs_f64());
    }

    /// How long statuses take to the API server.
    pub(crate) fn status_sync(&self) -> Histogram {
        self.status_sync.clone()
    }

    /// An image of so many bytes was pulled; 0: nobody knows how many.
    pub(crate) fn pulled(&self, size: u64, took: Duration) {
        self.pulls.get_or_create(&[("image_size_in_bytes", image_size(size))]).observe(took.as_secs_f64());
    }

    /// The runtime's objects were listed.
    pub(crate) fn listed(&self, began: Instant) {
        self.relist.observe(began.elapsed().as_secs_f64());
        self.relisted.set(Timestamp::now().as_second());
        let last = self.last_relist.lock().unwrap_or_else(PoisonError::into_inner).replace(began);
        if let Some(last) = last {
            self.relist_interval.observe(began.saturating_duration_since(last).as_secs_f64());
        }
    }

    pub(crate) fn rejection(&self, reason: &str) {
        let known = REJECTIONS.into_iter().find(|known| *known == reason);
        let label = known.unwrap_or(if reason.starts_with("OutOf") { "OutOfExtendedResources" } else { "Other" });
        self.rejections.get_or_create(&[("reason", label)]).inc();
    }

    /// The runtime has pods that nobody knows.
    pub(crate) fn orphans(&self, number: usize) {
        self.orphans.inc_by(number as u64);
    }

    /// A container of this kind ended.
    pub(crate) fn container_ended(&self, kind: &'static str, exit_code: i32, reason: &str) {
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        let label = (kind, exit_code.to_string(), reason.to_owned());
        let label = if ends.len() < MOST_ENDS || ends.contains_key(&label) { label } else { (kind, "other".into(), "other".into()) };
        *ends.entry(label).or_default() += 1;
    }

    /// Writes what is in no registry.
    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        self.startup.encode(encoder)?;
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        if ends.is_empty() {
            return Ok(());
        }
        let samples = ends
            .iter()
            .map(|((kind, code, reason), number)| ([("container_type", *kind), ("exit_code", code.as_str()), ("reason", reason.as_str())], *number));
        exposition::counters(encoder, "kubelet_terminated_containers", "Cumulative number of container terminations.", samples)
    }
}

fn image_size(bytes: u64) -> &'static str {
    IMAGE_SIZES.iter().rev().find(|(above, _)| bytes > *above).map_or("N/A", |(_, label)| label)
}

#[cfg(test)]
mod tests {
    use prometheus_client::collector::Collector;

    use super::*;

    #[derive(Debug)]
    struct Shown(std::sync::Arc<Timings>);

    impl Collector for Shown {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            self.0.encode(&mut encoder)
        }
    }

    fn text(timings: &std::sync::Arc<Timings>) -> String {
        let mut registry = Registry::default();
        timings.register(&mut registry);
        registry.register_collector(Box::new(Shown(timings.clone())));
        exposition::encode(&registry, exposition::Format::Text)
    }

    #[test]
    fn the_names_are_upstreams() {
        let timings = std::sync::Arc::new(Timings::default());
        timings.started_pod(false, false);
        timings.started_pod(true, true);
        let at = |second| Timestamp::from_second(second).unwrap();
        timings.pod_runs(3.0);
        timings.pod_started(Start { whole: 4.0, own: Some(2.5), has_network: true });
        timings.pod_started(Start { whole: 70.0, own: None, has_network: true });
        timings.worker_begins(Some(at(10)), at(11), 3);
        timings.worked("create", Duration::from_millis(20));
        timings.status_sync().observe(0.02);
        timings.listed(Instant::now());
        for reason in ["OutOfcpu", "OutOfexample.com/gpu", "MadeUp"] {
            timings.rejection(reason);
        }
        timings.sandbox("", Duration::from_secs(2), true);
        timings.pulled(11 << 20, Duration::from_secs(7));
        timings.container_ended("init_container", 0, "Completed");
        let shown = text(&timings);
        for line in [
            "kubelet_started_pods_total 2",
            "kubelet_started_pods_errors_total 1",
            "kubelet_started_user_namespaced_pods_total 1",
            "kubelet_started_user_namespaced_pods_errors_total 1",
            "kubelet_pod_start_duration_seconds_bucket{le=\"2\"} 0",
            "kubelet_pod_start_duration_seconds_bucket{le=\"3\"} 1",
            "kubelet_pod_start_total_duration_seconds_sum 74.0",
            "kubelet_pod_start_sli_duration_seconds_count 1",
            "kubelet_first_network_pod_start_sli_duration_seconds 2.5",
            "kubelet_pod_worker_start_duration_seconds_sum 1.0",
            "kubelet_pod_worker_duration_seconds_count{operation_type=\"create\"} 1",
            "kubelet_containers_per_pod_count_bucket{le=\"2\"} 0",
            "kubelet_containers_per_pod_count_bucket{le=\"4\"} 1",
            "kubelet_pod_status_sync_duration_seconds_count 1",
            "kubelet_pleg_relist_duration_seconds_count 1",
            "kubelet_admission_rejections_total{reason=\"OutOfcpu\"} 1",
            "kubelet_admission_rejections_total{reason=\"OutOfExtendedResources\"} 1",
            "kubelet_admission_rejections_total{reason=\"Other\"} 1",
            "kubelet_run_podsandbox_duration_seconds_sum{runtime_handler=\"\"} 2.0",
            "kubelet_run_podsandbox_errors_total{runtime_handler=\"\"} 1",
            "kubelet_image_pull_duration_seconds_bucket{le=\"10\",image_size_in_bytes=\"10MB-100MB\"} 1",
            "kubelet_orphaned_runtime_pods_total 0",
            "kubelet_terminated_containers_total{container_type=\"init_container\",exit_code=\"0\",reason=\"Completed\"} 1",
        ] {
            assert!(shown.lines().any(|known| known == line), "{line} is missing in\n{shown}");
        }
    }

    #[test]
    fn ends_of_containers_have_a_bounded_number_of_series() {
        let timings = std::sync::Arc::new(Timings::default());
        for code in 0..1000 {
            timings.container_ended("container", code, "Error");
        }
        timings.container_ended("container", 5, "Error");
        let shown = text(&timings);
        let of =
            |label: &str| shown.lines().find(|line| line.contains(label)).and_then(|line| line.rsplit_once(' ')).map(|(_, value)| value.to_owned());
        assert_eq!(shown.matches("kubelet_terminated_containers_total{").count(), MOST_ENDS + 1);
        assert_eq!(of("exit_code=\"5\"").as_deref(), Some("2"));
        assert_eq!(of("exit_code=\"other\",reason=\"other\"").as_deref(), Some("872"));
    }

    #[test]
    fn sizes_of_images_are_sorted_into_upstreams_ranges() {
        for (bytes, label) in [(0, "N/A"), (1, "0-10MB"), (10 << 20, "0-10MB"), ((10 << 20) + 1, "10MB-100MB"), (u64::MAX, "GT100GB")] {
            assert_eq!(image_size(bytes), label, "{bytes}");
        }
    }
}
