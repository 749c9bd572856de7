//! Probes of running containers: startup, then liveness and readiness (upstream pkg/kubelet/prober).
//!
//! One task per container that has probes; it ends with the container. Verdicts go to the pod's
//! worker only when they change.

pub(crate) mod counts;
mod get;
mod grpc;
mod run;

use std::io;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Probe};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::error::RuntimeError;
use crate::go_time::go_duration;
use crate::pod::Health;
pub(crate) use grpc::GrpcError;
pub(crate) use run::{Target, run_hook};

/// The outcome of one try.
#[derive(Debug)]
pub(crate) enum Verdict {
    Success,
    /// It succeeded, with something to say.
    Warning(String),
    Failure(ProbeError),
    /// The try itself failed; it counts for nothing.
    Unknown(ProbeError),
}

/// Why a probe or a hook did not succeed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbeError {
    /// A command ended with another code than 0; its output is the message.
    #[error("{output}")]
    Command { output: String },
    /// As upstream's client of the runtime words it (k8s.io/cri-client).
    #[error("command timed out: {command:?} timed out after {}", go_duration(*limit))]
    CommandTimeout { command: String, limit: Duration },
    #[error(transparent)]
    Runtime(RuntimeError),
    #[error("no answer within {} s (context deadline exceeded)", .0.as_secs())]
    NoAnswer(Duration),
    #[error("dial tcp {host}:{port}")]
    Dial { host: String, port: u16, source: io::Error },
    #[error("Get {url:?}")]
    Get { url: String, source: GetError },
    #[error("HTTP probe failed with statuscode: {0}")]
    HttpStatus(u16),
    #[error("service unhealthy (responded with {0:?})")]
    Unhealthy(&'static str),
    #[error("this server does not implement the grpc health protocol (grpc.health.v1.Health)")]
    NoHealthService,
    #[error("error: health rpc failed: grpc status {0}")]
    GrpcStatus(u32),
    #[error("error: health rpc failed")]
    Grpc(#[from] GrpcError),
    #[error("the probe names no port of the container")]
    NoPort,
    #[error("the probe's port {0} is none")]
    BadPort(i32),
    #[error("this kind of probe is not supported by this node agent")]
    UnsupportedProbe,
    #[error("this kind of hook is not supported by this node agent")]
    UnsupportedHook,
    #[error("the probe's host and path make no URL")]
    BadUrl(#[source] url::ParseError),
    /// The request has a header or a path that HTTP does not allow.
    #[error(transparent)]
    BadRequest(http::Error),
}

/// Why an HTTP request got no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GetError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Http(#[from] hyper::Error),
    #[error("failed to parse Location header {location:?}")]
    Location { location: String, source: url::ParseError },
    /// As Go's net/http words it.
    #[error("http: server gave HTTP response to HTTPS client")]
    SpeaksHttp,
    #[error("stopped after {0} redirects")]
    Redirects(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Startup,
    Liveness,
    Readiness,
}

impl Which {
    /// As events write it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Which::Startup => "Startup",
            Which::Liveness => "Liveness",
            Which::Readiness => "Readiness",
        }
    }
}

/// News from a prober.
#[derive(Debug)]
pub(crate) enum News {
    Health(Health),
    /// A try that succeeded with something to say, for the ProbeWarning event.
    Warned(Which, String),
    /// A failed try, for the Unhealthy event.
    Failed(Which, ProbeError),
    /// A try that could not be made, which counts for nothing: for the same event.
    Errored(Which, ProbeError),
}

/// A running prober; it stops when dropped.
#[derive(Debug)]
pub(crate) struct Prober {
    task: AbortHandle,
    ending: watch::Sender<bool>,
}

impl Prober {
    /// The pod ends: only readiness is probed on, since the endpoints of an ending pod may still serve (upstream: `StopLivenessAndStartup` of
    /// `pkg/kubelet/prober/prober_manager.go`).
    pub(crate) fn end(&self) {
        self.ending.send_if_modified(|ending| !std::mem::replace(ending, true));
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Whether a container has any probe.
pub(crate) fn has_probes(c: &Container) -> bool {
    c.startup_probe.is_some() || c.liveness_probe.is_some() || c.readiness_probe.is_some()
}

/// Health of a container before its first probe: what the last status has of this very
/// container, so that an agent's restart changes nothing; else not started and not ready.
pub(crate) fn first_health(c: &Container, id: &str, old: Option<&ContainerStatus>) -> Health {
    let same = old.filter(|o| o.container_id.as_deref().and_then(|i| i.split_once("://")).is_some_and(|(_, i)| i == id));
    Health {
        started: c.startup_probe.is_none() || same.is_some_and(|o| o.started == Some(true)),
        ready: c.readiness_probe.is_none() || same.is_some_and(|o| o.ready),
        alive: true,
    }
}

/// How long a container has run when its probes begin.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Since {
    pub start: Duration,
    /// How long the agent has run, where the container was there before it.
    pub adoption: Option<Duration>,
}

impl Since {
    /// The same so much later.
    fn after(self, passed: Duration) -> Self {
        let add = |time: Duration| time.saturating_add(passed);
        Self { start: add(self.start), adoption: self.adoption.map(add) }
    }
}

/// Starts probing a container whose state is `health`.
pub(crate) fn start(c: Container, target: Target, health: Health, since: Since, tell: impl Fn(News) + Send + Sync + 'static) -> Prober {
    let (ending, ends) = watch::channel(false);
    Prober { task: tokio::spawn(follow(c, target, health, since, ends, tell)).abort_handle(), ending }
}

async fn ended(mut ends: watch::Receiver<bool>) {
    // Without its Prober the task is aborted.
    let _ = ends.wait_for(|ending| *ending).await;
}

/// Probes until it is settled whether the container has started.
async fn startup(probe: &Probe, target: &Target, since: Since, tell: &impl Fn(News)) -> bool {
    let mut count = Counter::new(probe, false);
    tokio::time::sleep(delay(probe, Which::Startup, &target.id, since)).await;
    loop {
        let verdict = try_once(Which::Startup, probe, target).await;
        let settled = count.note(&verdict);
        tell_failure(Which::Startup, verdict, tell);
        if let Some(started) = settled {
            return started;
        }
        tokio::time::sleep(period(probe)).await;
    }
}

async fn follow(c: Container, target: Target, mut health: Health, mut since: Since, ends: watch::Receiver<bool>, tell: impl Fn(News) + Send + Sync) {
    let began = tokio::time::Instant::now();
    if let Some(probe) = c.startup_probe.as_ref().filter(|_| !health.started) {
        let started = tokio::select! {
            biased;
            () = ended(ends.clone()) => return,
            started = startup(probe, &target, since, &tell) => started,
        };
        if !started {
            tell(News::Health(Health { alive: false, ..health }));
            return;
        }
        health.started = true;
        tell(News::Health(health));
        since = since.after(began.elapsed());
    }
    let shared = std::sync::Mutex::new(health);
    let change = |f: &dyn Fn(&mut Health)| {
        let mut h = shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let before = *h;
        f(&mut h);
        if before != *h {
            tell(News::Health(*h));
        }
    };
    let live = async {
        let Some(probe) = &c.liveness_probe else {
            return;
        };
        tokio::select! {
            biased;
            () = ended(ends.clone()) => {}
            () = each(probe, Which::Liveness, true, &target, since, &tell, |ok| change(&|h| h.alive = ok)) => {}
        }
    };
    let ready = async {
        let Some(probe) = &c.readiness_probe else {
            return;
        };
        each(probe, Which::Readiness, false, &target, since, &tell, |ok| change(&|h| h.ready = ok)).await;
    };
    tokio::join!(live, ready);
}

/// How often a try is made that says nothing of the container (upstream's `maxProbeRetries`, `pkg/kubelet/prober/prober.go`).
const TRIES: usize = 3;

/// The first verdict that says something of the container, of at most [`TRIES`].
async fn settle<F: Future<Output = Verdict>>(mut attempt: impl FnMut() -> F) -> Verdict {
    let mut verdict = attempt().await;
    for _ in 1..TRIES {
        if !matches!(verdict, Verdict::Unknown(_)) {
            break;
        }
        verdict = attempt().await;
    }
    verdict
}

/// One try, which counts in `/metrics/probes`.
async fn try_once(which: Which, probe: &Probe, target: &Target) -> Verdict {
    let began = std::time::Instant::now();
    let verdict = settle(|| run::attempt(probe, target)).await;
    target.counts.note(&target.of, which, &verdict, began.elapsed());
    verdict
}

/// Says why a try did not succeed, or not plainly.
fn tell_failure(which: Which, verdict: Verdict, tell: &impl Fn(News)) {
    match verdict {
        Verdict::Success => {}
        Verdict::Warning(message) => tell(News::Warned(which, message)),
        Verdict::Failure(error) => tell(News::Failed(which, error)),
        Verdict::Unknown(error) => tell(News::Errored(which, error)),
    }
}

/// Runs one probe for ever; `tell_ok` is called with each settled verdict.
async fn each(
    probe: &Probe,
    which: Which,
    initially: bool,
    target: &Target,
    since: Since,
    tell: &(impl Fn(News) + Send + Sync),
    tell_ok: impl Fn(bool),
) {
    tokio::time::sleep(delay(probe, which, &target.id, since)).await;
    let mut count = Counter::new(probe, initially);
    loop {
        let verdict = try_once(which, probe, target).await;
        let settled = count.note(&verdict);
        tell_failure(which, verdict, tell);
        if let Some(ok) = settled {
            tell_ok(ok);
            if which == Which::Liveness && !ok {
                // Hold until a new container is there.
                return;
            }
        }
        tokio::time::sleep(period(probe)).await;
    }
}

/// How long the first try waits. After a restart of the agent all containers are found at once: their first tries are spread over a period
/// (upstream: `run` of prober/worker.go, which takes a random part of it, for new containers too). The part is the container's own.
fn delay(probe: &Probe, which: Which, id: &str, since: Since) -> Duration {
    let initial = Duration::from_secs(probe.initial_delay_seconds.unwrap_or(0).max(0) as u64).saturating_sub(since.start);
    if since.adoption.is_none_or(|agent| agent >= period(probe)) {
        return initial;
    }
    // FNV-1a; the upper half is the better one.
    let hash = id.bytes().chain(which.name().bytes()).fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    let part = (hash >> 32) as f64 / f64::from(u32::MAX);
    initial.max(period(probe).mul_f64(part))
}

fn period(probe: &Probe) -> Duration {
    Duration::from_secs(probe.period_seconds.unwrap_or(10).max(1) as u64)
}

/// Counts verdicts against the thresholds.
struct Counter {
    settled: bool,
    run: u32,
    last: Option<bool>,
    success: u32,
    failure: u32,
}

impl Counter {
    fn new(probe: &Probe, initially: bool) -> Self {
        Counter {
            settled: initially,
            run: 0,
            last: None,
            success: probe.success_threshold.unwrap_or(1).max(1) as u32,
            failure: probe.failure_threshold.unwrap_or(3).max(1) as u32,
        }
    }

    /// Counts one verdict; returns the news when a threshold is reached.
    fn note(&mut self, verdict: &Verdict) -> Option<bool> {
        let ok = match verdict {
            Verdict::Success | Verdict::Warning(_) => true,
            Verdict::Failure(_) => false,
            Verdict::Unknown(_) => return None,
        };
        self.run = if self.last == Some(ok) { self.run + 1 } else { 1 };
        self.last = Some(ok);
        let needed = if ok { self.success } else { self.failure };
        if self.run < needed {
            return None;
        }
        self.settled = ok;
        Some(ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_container_keeps_its_health_over_a_restart_of_the_agent() {
        let probed = Container { readiness_probe: Some(Probe::default()), startup_probe: Some(Probe::default()), ..Default::default() };
        let old = ContainerStatus { container_id: Some("containerd://a".into()), ready: true, started: Some(true), ..Default::default() };
        let of = |c: &Container, id: &str, old| {
            let h = first_health(c, id, old);
            (h.started, h.ready)
        };
        assert_eq!(of(&probed, "a", Some(&old)), (true, true));
        assert_eq!(of(&probed, "b", Some(&old)), (false, false), "another container begins anew");
        assert_eq!(of(&probed, "a", None), (false, false));
        assert_eq!(of(&Container::default(), "a", None), (true, true), "nothing to ask");
    }

    #[tokio::test]
    async fn a_try_that_says_nothing_is_made_again() {
        let unknown = || Verdict::Unknown(ProbeError::NoPort);
        let cases = [
            (vec![Verdict::Success], 1, "success"),
            (vec![Verdict::Failure(ProbeError::NoPort)], 1, "failure"),
            (vec![unknown(), Verdict::Failure(ProbeError::NoPort)], 2, "failure"),
            (vec![unknown(), unknown(), Verdict::Success], 3, "success"),
            (vec![unknown(), unknown(), unknown()], 3, "unknown"),
        ];
        for (verdicts, tries, want) in cases {
            let mut made = 0;
            let mut verdicts = verdicts.into_iter();
            let verdict = settle(|| {
                made += 1;
                std::future::ready(verdicts.next().expect("no more tries"))
            })
            .await;
            let is = match verdict {
                Verdict::Success | Verdict::Warning(_) => "success",
                Verdict::Failure(_) => "failure",
                Verdict::Unknown(_) => "unknown",
            };
            assert_eq!((made, is), (tries, want));
        }
    }

    #[test]
    fn first_tries_after_a_restart_of_the_agent_are_spread_over_a_period() {
        let probe = |initial| Probe { initial_delay_seconds: Some(initial), period_seconds: Some(10), ..Default::default() };
        let seconds = Duration::from_secs;
        let first = |initial, start, adoption: Option<u64>| {
            delay(&probe(initial), Which::Readiness, "c0", Since { start: seconds(start), adoption: adoption.map(seconds) })
        };
        for (initial, start, adoption, want) in [(0, 0, None, 0), (5, 2, None, 3), (5, 7, None, 0), (5, 2, Some(10), 3), (30, 1, Some(0), 29)] {
            assert_eq!(first(initial, start, adoption), seconds(want), "{initial} {start} {adoption:?}");
        }
        // Of a thousand containers, each tenth of the period gets its share.
        let mut tenths = [0; 10];
        for n in 0..1000 {
            let since = Since { start: seconds(60), adoption: Some(seconds(1)) };
            let wait = delay(&probe(0), Which::Liveness, &format!("{n:064x}"), since);
            tenths[(wait.as_millis() as usize / 1000).min(9)] += 1;
        }
        assert!(tenths.iter().all(|share| (50..200).contains(share)), "{tenths:?}");
    }

    #[test]
    fn thresholds() {
        let probe = Probe { success_threshold: Some(2), failure_threshold: Some(3), ..Default::default() };
        let mut count = Counter::new(&probe, false);
        let bad = || Verdict::Failure(ProbeError::NoPort);
        let tries = [
            (Verdict::Success, None),
            (bad(), None),
            (Verdict::Success, None),
            (Verdict::Unknown(ProbeError::NoPort), None),
            (Verdict::Success, Some(true)),
            (bad(), None),
            (bad(), None),
            (bad(), Some(false)),
            (bad(), Some(false)),
        ];
        for (i, (verdict, want)) in tries.into_iter().enumerate() {
            assert_eq!(count.note(&verdict), want, "try {i}");
        }
    }
}
