//! The [`Backend`] trait: keeps a host equal to the table and reports its progress. [`Passes`] makes a backend of whatever programs all
//! changes in one call.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::future::Future;
use std::time::Duration;

use backoff::Backoff;
use thiserror_ext::AsReport as _;
use tokio::time::Instant;

use crate::metrics::CallCounter;
use crate::table::{Table, VipKey};

/// A VIP that could not be programmed; it is retried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub key: VipKey,
    /// Why, with the way out.
    pub reason: String,
}

/// What a pass did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// How many writes reached the host.
    pub writes: usize,
    /// What is left to do.
    pub failures: Vec<Failure>,
}

/// Something that a Service asks for and that this host cannot do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Refusal {
    /// Its name, for metrics and events.
    pub reason: &'static str,
    /// What is missing, with the way out.
    pub message: Cow<'static, str>,
    /// Whether the Service's author gets an event. What follows from where a pod runs is for metrics.
    pub is_event: bool,
}

/// The progress of a backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The host was read, and every VIP was tried once.
    pub ready: bool,
    /// VIPs that wait or are under way.
    pub pending: usize,
    /// Those that are not what they should be, with the reason.
    pub failing: BTreeMap<VipKey, String>,
    /// What the host refuses to do for a VIP that is served otherwise.
    pub refusals: BTreeMap<VipKey, Vec<Refusal>>,
    /// Why the host cannot be read or written at all.
    pub unavailable: Option<String>,
    /// How many writes reached the host.
    pub writes: u64,
}

/// Work of a backend that is not done yet, and work that is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// VIPs that wait or are under way.
    pub pending: usize,
    /// How many were processed since the start, whatever the result.
    pub finished: u64,
}

/// Keeps one host equal to the table. The loop calls [`begin`](Backend::begin), waits for [`next_event`](Backend::next_event) and hands
/// the event to [`process`](Backend::process); nothing else makes a backend work.
pub trait Backend {
    /// What wakes the backend; it carries nothing that the loop reads.
    type Event;

    /// These VIPs changed in the table.
    fn touch(&mut self, keys: impl IntoIterator<Item = VipKey>, table: &Table);

    /// Starts what can be started without waiting.
    fn begin(&mut self, _table: &Table) {}

    /// Waits for the next event. May be dropped and called again at any time.
    fn next_event(&mut self) -> impl Future<Output = Self::Event> + Send;

    fn process(&mut self, event: Self::Event, table: &Table);

    /// The progress, when anything in it but `pending` changed since this was last called.
    fn take_progress(&mut self) -> Option<Progress>;

    /// How much is left to do.
    fn backlog(&self) -> Backlog;

    /// Whether the host has what the table says of this VIP.
    fn is_settled(&self, key: &VipKey) -> bool;

    /// Counts the calls of the host's service, where the backend calls one.
    fn call_counter(&self) -> Option<CallCounter> {
        None
    }

    /// Ends the backend. What outlives the process stays; what only this process serves ends within `limit`.
    fn stop(self, _limit: Duration) -> impl Future<Output = ()> + Send
    where
        Self: Sized,
    {
        std::future::ready(())
    }
}

/// Programs every change in one call: what [`Passes`] turns into a [`Backend`].
pub(crate) trait Pass: Send {
    /// Why the host cannot be read or written at all.
    type Error: Error;

    /// Makes the VIPs of `dirty` what the table says, or with `full` every one after reading the host.
    fn pass(&mut self, table: &Table, dirty: &BTreeSet<VipKey>, full: bool) -> Result<Outcome, Self::Error>;

    /// Ends it, as [`Backend::stop`] does.
    fn stop(self, _limit: Duration) -> impl Future<Output = ()> + Send
    where
        Self: Sized,
    {
        std::future::ready(())
    }
}

/// Retries begin after this and double up to [`SLOWEST`].
const QUICKEST: Duration = Duration::from_millis(200);
const SLOWEST: Duration = Duration::from_secs(10);

/// A backend that programs what changed in one pass, and compares everything with the host once in a while.
pub(crate) struct Passes<P> {
    inner: P,
    dirty: BTreeSet<VipKey>,
    /// A pass failed and is tried again then.
    retry: Option<Instant>,
    full_due: bool,
    next_full: Instant,
    full_pass: Duration,
    backoff: Backoff,
    progress: Progress,
    finished: u64,
    changed: bool,
}

impl<P: Pass> Passes<P> {
    /// Passes of `inner`, the first over everything.
    pub fn new(inner: P, full_pass: Duration) -> Self {
        Self {
            inner,
            dirty: BTreeSet::new(),
            retry: None,
            full_due: true,
            next_full: Instant::now() + full_pass,
            full_pass,
            backoff: Backoff::new(QUICKEST, SLOWEST),
            progress: Progress::default(),
            finished: 0,
            changed: false,
        }
    }

    fn pending(&self) -> usize {
        self.dirty.len().max(usize::from(self.full_due))
    }

    fn succeeded(&mut self, outcome: Outcome, vips: usize) {
        if outcome.writes > 0 {
            tracing::info!(writes = outcome.writes, vips, failing = outcome.failures.len(), "programmed services");
        }
        self.finished += 1;
        for failure in outcome.failures.iter().filter(|failure| self.progress.failing.get(&failure.key) != Some(&failure.reason)) {
            tracing::warn!(vip = %failure.key, "{}; trying again", failure.reason);
        }
        self.dirty = outcome.failures.iter().map(|failure| failure.key).collect();
        self.progress.failing = outcome.failures.into_iter().map(|failure| (failure.key, failure.reason)).collect();
        self.progress.writes += outcome.writes as u64;
        (self.progress.ready, self.progress.unavailable) = (true, None);
    }
}

impl<P: Pass> Backend for Passes<P> {
    type Event = ();

    fn touch(&mut self, keys: impl IntoIterator<Item = VipKey>, _: &Table) {
        self.dirty.extend(keys);
    }

    async fn next_event(&mut self) {
        match self.retry {
            Some(retry) => tokio::time::sleep_until(retry).await,
            None if self.full_due || !self.dirty.is_empty() => {}
            None => tokio::time::sleep_until(self.next_full).await,
        }
    }

    fn process(&mut self, (): (), table: &Table) {
        let now = Instant::now();
        let full = self.full_due || now >= self.next_full;
        let dirty = std::mem::take(&mut self.dirty);
        self.retry = None;
        match self.inner.pass(table, &dirty, full) {
            Ok(outcome) => {
                if full {
                    (self.full_due, self.next_full) = (false, now + self.full_pass);
                }
                self.succeeded(outcome, table.len());
            }
            Err(error) => {
                (self.dirty, self.full_due) = (dirty, full);
                let reason = error.to_report_string();
                if self.progress.unavailable.as_ref() != Some(&reason) {
                    tracing::warn!("services cannot be programmed: {reason}; trying again");
                }
                self.progress.unavailable = Some(reason);
            }
        }
        if self.dirty.is_empty() && self.progress.unavailable.is_none() {
            self.backoff.reset();
        } else {
            self.retry = Some(now + self.backoff.next_delay());
        }
        self.progress.pending = self.dirty.len();
        self.changed = true;
    }

    fn take_progress(&mut self) -> Option<Progress> {
        std::mem::take(&mut self.changed).then(|| self.progress.clone())
    }

    fn backlog(&self) -> Backlog {
        Backlog { pending: self.pending(), finished: self.finished }
    }

    fn is_settled(&self, _: &VipKey) -> bool {
        self.pending() == 0
    }

    async fn stop(self, limit: Duration) {
        self.inner.stop(limit).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Protocol, VipAddress};

    #[derive(Debug, thiserror::Error)]
    #[error("cannot write")]
    struct Refused(#[source] std::io::Error);

    /// What each pass is asked for, and its answers.
    struct Scripted(Vec<(BTreeSet<VipKey>, bool)>, Vec<Result<Outcome, Refused>>);

    impl Pass for Scripted {
        type Error = Refused;

        fn pass(&mut self, _: &Table, dirty: &BTreeSet<VipKey>, full: bool) -> Result<Outcome, Refused> {
            self.0.push((dirty.clone(), full));
            self.1.remove(0)
        }
    }

    fn key(port: u16) -> VipKey {
        VipKey { address: VipAddress::Ip([10, 96, 0, 1].into()), protocol: Protocol::Tcp, port }
    }

    #[tokio::test(start_paused = true)]
    async fn failed_pass_is_repeated_and_failing_vips_are_retried_alone() {
        let away = Err(Refused(std::io::Error::other("no rights")));
        let failure = Failure { key: key(81), reason: "taken".into() };
        let partly = Ok(Outcome { writes: 1, failures: vec![failure] });
        let (table, mut passes) =
            (Table::default(), Passes::new(Scripted(Vec::new(), vec![away, partly, Ok(Outcome::default())]), Duration::from_secs(30)));
        passes.touch([key(80), key(81)], &table);
        let mut seen = Vec::new();
        for _ in 0..3 {
            passes.next_event().await;
            passes.process((), &table);
            let progress = passes.take_progress().unwrap();
            assert_eq!(passes.take_progress(), None, "progress is reported once");
            seen.push((progress.ready, progress.unavailable, progress.failing.len(), passes.backlog()));
        }
        let all = BTreeSet::from([key(80), key(81)]);
        assert_eq!(passes.inner.0, [(all.clone(), true), (all, true), (BTreeSet::from([key(81)]), false)]);
        let backlog = |pending, finished| Backlog { pending, finished };
        let expected =
            [(false, Some("cannot write: no rights".to_owned()), 0, backlog(2, 0)), (true, None, 1, backlog(1, 1)), (true, None, 0, backlog(0, 2))];
        assert_eq!(seen, expected);
    }
}
