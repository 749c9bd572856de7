//! Requests to the agent's server, under upstream's names (pkg/kubelet/server/metrics).

use std::time::Instant;

use exposition::register;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::timings::usual;

/// What a request is counted by.
type Labels = [(&'static str, &'static str); 4];

/// Counts and durations of requests.
#[derive(Debug)]
pub(crate) struct Requests {
    all: Family<Labels, Counter>,
    inflight: Family<Labels, Gauge>,
    durations: Family<Labels, Histogram, fn() -> Histogram>,
    websockets: Family<[(&'static str, &'static str); 1], Counter>,
}

impl Default for Requests {
    fn default() -> Self {
        let durations = Family::new_with_constructor(usual as fn() -> Histogram);
        Requests { all: Family::default(), inflight: Family::default(), durations, websockets: Family::default() }
    }
}

/// A request that is being answered; it ends when this is dropped: when the answer begins.
pub(crate) struct Request {
    inflight: Gauge,
    duration: Histogram,
    began: Instant,
}

impl Drop for Request {
    fn drop(&mut self) {
        self.inflight.dec();
        self.duration.observe(self.began.elapsed().as_secs_f64());
    }
}

impl Requests {
    pub(super) fn register(&self, registry: &mut Registry) {
        register(registry, "kubelet_http_requests", "Number of the http requests received since the server started", self.all.clone());
        register(registry, "kubelet_http_inflight_requests", "Number of the inflight http requests", self.inflight.clone());
        register(registry, "kubelet_http_requests_duration_seconds", "Duration in seconds to serve http requests", self.durations.clone());
        let help = "Total number of WebSocket streaming requests (exec/attach/portforward) received by the kubelet.";
        register(registry, "kubelet_websocket_streaming_requests", help, self.websockets.clone());
    }

    /// A request begins.
    pub(crate) fn begin(&self, method: &str, path: &str) -> Request {
        let labels = labels(method, path);
        self.all.get_or_create(&labels).inc();
        self.inflight.get_or_create(&labels).inc();
        let inflight = self.inflight.get_or_create(&labels).clone();
        Request { inflight, duration: self.durations.get_or_create(&labels).clone(), began: Instant::now() }
    }

    /// A program's streams go over a WebSocket.
    pub(crate) fn websocket(&self, path: &str) {
        let [.., (_, path), _] = labels("GET", path);
        let subresource = if path == "portForward" { "portforward" } else { path };
        self.websockets.get_or_create(&[("subresource", subresource)]).inc();
    }
}

/// Names of paths; whatever else is asked for is `other`, so that strangers make no series.
const PATHS: [&str; 19] = [
    "attach",
    "checkpoint",
    "configz",
    "containerLogs",
    "debug",
    "exec",
    "explain",
    "healthz",
    "logs",
    "metrics",
    "metrics/cadvisor",
    "metrics/probes",
    "metrics/resource",
    "pods",
    "portForward",
    "run",
    "runningpods",
    "stats",
    "other",
];
const METHODS: [&str; 9] = ["OPTIONS", "GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "CONNECT", "other"];

fn labels(method: &str, path: &str) -> Labels {
    let mut parts = path.trim_start_matches('/').splitn(3, '/');
    let (first, second) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let is_path = |known: &&str| match known.split_once('/') {
        Some((own, below)) => own == first && below == second,
        None => *known == first && (first != "metrics" || second.is_empty()),
    };
    let path = PATHS.into_iter().find(is_path).unwrap_or("other");
    let method = METHODS.into_iter().find(|known| *known == method).unwrap_or("other");
    // Upstream's list has `portforward`, which no path is.
    let long = if matches!(path, "exec" | "attach" | "debug") { "true" } else { "false" };
    [("long_running", long), ("method", method), ("path", path), ("server_type", "readwrite")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_under_known_names() {
        for (method, path, wanted) in [
            ("GET", "/metrics", ["false", "GET", "metrics"]),
            ("GET", "/metrics/cadvisor", ["false", "GET", "metrics/cadvisor"]),
            ("GET", "/metrics/unknown", ["false", "GET", "other"]),
            ("POST", "/exec/ns/pod/c", ["true", "POST", "exec"]),
            ("POST", "/portForward/ns/pod", ["false", "POST", "portForward"]),
            ("PATCH", "/a/b", ["false", "other", "other"]),
            ("GET", "/", ["false", "GET", "other"]),
        ] {
            assert_eq!(labels(method, path).map(|(_, value)| value)[..3], wanted, "{method} {path}");
        }
    }

    #[test]
    fn a_request_is_in_flight_until_it_is_answered() {
        let requests = Requests::default();
        let request = requests.begin("GET", "/pods");
        requests.websocket("/portForward/ns/pod");
        let mut registry = Registry::default();
        requests.register(&mut registry);
        let labels = "long_running=\"false\",method=\"GET\",path=\"pods\",server_type=\"readwrite\"";
        let text = || exposition::encode(&registry, exposition::Format::Text);
        let before = text();
        for line in [
            format!("kubelet_http_requests_total{{{labels}}} 1"),
            format!("kubelet_http_inflight_requests{{{labels}}} 1"),
            "kubelet_websocket_streaming_requests_total{subresource=\"portforward\"} 1".into(),
        ] {
            assert!(before.lines().any(|known| known == line), "{line} is missing in\n{before}");
        }
        drop(request);
        let after = text();
        assert!(after.contains(&format!("kubelet_http_inflight_requests{{{labels}}} 0")), "{after}");
        assert!(after.contains(&format!("kubelet_http_requests_duration_seconds_count{{{labels}}} 1")), "{after}");
    }
}
