//! Requests to the API server: how many there were and how long they took, under client-go's names
//! (component-base/metrics/prometheus/restclient), and whether the server's clock and the own are apart.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use http::header::DATE;
use http::{HeaderMap, Method};
use jiff::{SignedDuration, Timestamp};
use kube::client::Body;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

/// Bounds of durations, in seconds.
const BOUNDS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
/// The code of a request without an answer, as in client-go.
const FAILED: &str = "<error>";
/// Methods of requests to an API server; others have one name.
const METHODS: [&str; 6] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"];

/// Clocks are apart when they differ by more than this, whatever a request took, and agree again when they differ by less than half.
const APART: SignedDuration = SignedDuration::from_secs(5);
/// How many answers in a row have to say so: one of several servers, or one that was stopped, may be wrong for a moment.
const IN_A_ROW: u32 = 3;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    code: String,
    method: &'static str,
    host: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DurationLabels {
    verb: &'static str,
    host: String,
}

fn durations() -> Histogram {
    Histogram::new(BOUNDS)
}

/// Counts of the requests that one program makes to one API server. Clones are the same counts.
#[derive(Clone, Debug)]
pub struct Requests(Arc<State>);

#[derive(Debug)]
struct State {
    /// Name and port of the server.
    host: String,
    results: Family<ResultLabels, Counter>,
    durations: Family<DurationLabels, Histogram, fn() -> Histogram>,
    offset: Gauge<f64, std::sync::atomic::AtomicU64>,
    skew: Mutex<Skew>,
    apart: watch::Sender<Option<SignedDuration>>,
}

/// A request under way. One that is dropped before it has ended was given up, and is counted as failed.
pub(crate) struct Request {
    counts: Requests,
    has_ended: bool,
    method: &'static str,
    is_watch: bool,
    sent: Timestamp,
    began: Instant,
}

impl Requests {
    /// No requests yet to the server that is reached under this name and port.
    pub fn new(host: impl Into<String>) -> Self {
        Self(Arc::new(State {
            host: host.into(),
            results: Family::default(),
            durations: Family::new_with_constructor(durations as fn() -> Histogram),
            offset: Gauge::default(),
            skew: Mutex::default(),
            apart: watch::Sender::default(),
        }))
    }

    /// Registers the counts as metrics.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Number of HTTP requests, partitioned by status code, method, and host";
        registry.register("rest_client_requests", help, self.0.results.clone());
        let help = "Request latency in seconds. Broken down by verb, and host";
        registry.register("rest_client_request_duration_seconds", help, self.0.durations.clone());
        let help = "Least difference between the API server's clock and this machine's in seconds, by the newest answer. Positive: the server is \
                    ahead. 0: the clocks may agree";
        registry.register("mullion_api_server_clock_offset_seconds", help, self.0.offset.clone());
    }

    /// By how much the server's clock is ahead of the own, where they are apart.
    pub fn clock(&self) -> watch::Receiver<Option<SignedDuration>> {
        self.0.apart.subscribe()
    }

    pub(crate) fn begin(&self, request: &http::Request<Body>) -> Request {
        let is_watch = request.uri().query().is_some_and(|query| query.split('&').any(|part| matches!(part, "watch=true" | "watch=1")));
        Request { counts: self.clone(), has_ended: false, method: name(request.method()), is_watch, sent: Timestamp::now(), began: Instant::now() }
    }

    fn count(&self, request: &Request, code: String) {
        let host = || self.0.host.clone();
        self.0.results.get_or_create(&ResultLabels { code, method: request.method, host: host() }).inc();
        // As in client-go: the answer to a watch has no end.
        if !request.is_watch {
            self.0.durations.get_or_create(&DurationLabels { verb: request.method, host: host() }).observe(request.began.elapsed().as_secs_f64());
        }
    }

    fn compare(&self, date: Timestamp, sent: Timestamp, received: Timestamp) {
        let Some(offset) = offset(date, sent, received) else { return };
        self.0.offset.set(offset.as_secs_f64());
        let news = self.0.skew.lock().unwrap_or_else(PoisonError::into_inner).note(offset);
        if let Some(apart) = news {
            self.0.apart.send_replace(apart);
        }
    }
}

impl Request {
    /// Counts a request that was answered, or failed.
    pub(crate) fn end<B>(mut self, answer: Result<&http::Response<B>, &kube::Error>) {
        self.has_ended = true;
        self.counts.count(&self, answer.map_or_else(|_| FAILED.to_owned(), |answer| answer.status().as_u16().to_string()));
        if let Some(date) = answer.ok().and_then(|answer| date(answer.headers())) {
            self.counts.compare(date, self.sent, Timestamp::now());
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.has_ended {
            self.counts.count(self, FAILED.to_owned());
        }
    }
}

fn name(method: &Method) -> &'static str {
    METHODS.into_iter().find(|known| *known == method.as_str()).unwrap_or("other")
}

/// When an answer was made, by the clock of who made it.
fn date(headers: &HeaderMap) -> Option<Timestamp> {
    jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(headers.get(DATE)?.to_str().ok()?).ok()
}

/// The least difference of the server's clock, which showed `date` (cut to whole seconds) between `sent` and `received`. None if the own clock
/// was set back meanwhile.
fn offset(date: Timestamp, sent: Timestamp, received: Timestamp) -> Option<SignedDuration> {
    if received < sent {
        return None;
    }
    let least = date.duration_since(received);
    let most = date.duration_since(sent).saturating_add(SignedDuration::from_secs(1));
    Some(if least.is_positive() { least } else { most.min(SignedDuration::ZERO) })
}

/// Whether two clocks are apart.
#[derive(Debug, Default)]
struct Skew {
    is_apart: bool,
    /// Answers in a row that say otherwise.
    against: u32,
}

impl Skew {
    /// Takes in what one answer says. Returns what is new: how far the clocks are apart, or that they agree.
    fn note(&mut self, offset: SignedDuration) -> Option<Option<SignedDuration>> {
        let size = offset.abs();
        let says = if self.is_apart { size >= APART / 2 } else { size > APART };
        self.against = if says == self.is_apart { 0 } else { self.against + 1 };
        if self.against < IN_A_ROW {
            return None;
        }
        (self.is_apart, self.against) = (says, 0);
        Some(says.then_some(offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(millis).unwrap()
    }

    #[test]
    fn an_offset_is_what_neither_the_second_nor_the_way_explains() {
        for (date, sent, received, wanted) in [
            (10_000, 10_200, 10_300, Some(0)),
            (10_000, 10_999, 11_000, Some(0)),
            (10_000, 12_000, 12_100, Some(-1000)),
            (10_000, 9_000, 12_100, Some(0)),
            (70_000, 10_000, 10_500, Some(59_500)),
            (10_000, 12_000, 11_000, None),
        ] {
            let found = offset(at(date), at(sent), at(received)).map(|offset| offset.as_millis());
            assert_eq!(found, wanted.map(i128::from), "{date} between {sent} and {received}");
        }
    }

    #[test]
    fn clocks_are_apart_when_several_answers_say_so() {
        let mut skew = Skew::default();
        let mut note = |seconds: i64| skew.note(SignedDuration::from_secs(seconds)).map(|apart| apart.map(|by| by.as_secs()));
        let told: Vec<_> = [9, 9, 0, 9, 9, -9, 9, 4, 4, 2, 2, 3, 2, 0, 1, 5, 5, 5].into_iter().filter_map(&mut note).collect();
        assert_eq!(told, [Some(-9), None], "one that agrees begins the row anew; 5 s are not too many");
    }

    #[test]
    fn dates_are_those_of_http() {
        let headers = HeaderMap::from_iter([(DATE, "Sun, 06 Nov 1994 08:49:37 GMT".parse().unwrap())]);
        assert_eq!(date(&headers), Some("1994-11-06T08:49:37Z".parse().unwrap()));
        assert_eq!(date(&HeaderMap::from_iter([(DATE, "today".parse().unwrap())])), None);
        assert_eq!(date(&HeaderMap::new()), None);
    }

    #[test]
    fn requests_are_counted_by_code_and_method() {
        let requests = Requests::new("api:6443");
        let end = |method: &str, uri: &str, code: u16| {
            let request = http::Request::builder().method(method).uri(uri).body(Body::empty()).unwrap();
            let answer = http::Response::builder().status(code).body(()).unwrap();
            requests.begin(&request).end(Ok(&answer));
        };
        drop(requests.begin(&http::Request::put("/given/up").body(Body::empty()).unwrap()));
        end("GET", "/api/v1/pods?watch=true&a=b", 200);
        end("GET", "/api/v1/pods", 200);
        end("BREW", "/", 418);
        let mut registry = Registry::default();
        requests.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "rest_client_requests_total{code=\"200\",method=\"GET\",host=\"api:6443\"} 2",
            "rest_client_requests_total{code=\"418\",method=\"other\",host=\"api:6443\"} 1",
            "rest_client_requests_total{code=\"<error>\",method=\"PUT\",host=\"api:6443\"} 1",
            "rest_client_request_duration_seconds_count{verb=\"GET\",host=\"api:6443\"} 1",
            "mullion_api_server_clock_offset_seconds 0.0",
        ] {
            assert!(text.lines().any(|known| known == line), "{line} is missing in\n{text}");
        }
    }
}
