//! Work queue of every controller: keys, each processed by at most one task at a time.
//!
//! Guarantees: a key added while it is worked on runs once more afterwards; a key that fails comes back with growing delays of its own;
//! adding a key never waits. A key carries no data: the work reads the newest state when it starts. A key whose work is long (a workload of
//! thousands of pods, each of which changes) rests after it, so that it never takes a processor for itself; changes meanwhile are one run.

use std::{
    cell::Cell,
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet, VecDeque},
    fmt,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use backoff::Backoff;
use futures::{StreamExt, stream::FuturesUnordered};
use thiserror_ext::AsReport as _;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

/// Delays of a key that keeps failing (client-go's default rate limiter: 5 ms doubling; ours stops at 10 s).
const FIRST_DELAY: Duration = Duration::from_millis(5);
const LAST_DELAY: Duration = Duration::from_secs(10);

/// Work that took the processor for less needs no rest.
const SHORT: Duration = Duration::from_millis(2);
/// How long a key rests after longer work, in multiples of the processor time that it took: it has a tenth of a processor at most.
const REST: u32 = 9;
const LONGEST_REST: Duration = Duration::from_secs(1);

/// Bounds of a key.
pub(crate) trait QueueKey: Clone + Eq + Hash + Ord + fmt::Debug + Send + 'static {}
impl<K: Clone + Eq + Hash + Ord + fmt::Debug + Send + 'static> QueueKey for K {}

/// When the work on a key has to happen again without anything having changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Next {
    /// Only after a change.
    #[default]
    Change,
    /// After this time at the latest.
    Within(Duration),
}

struct State<K> {
    ready: VecDeque<K>,
    /// Keys in `ready`, or to be put there when their work ends.
    dirty: HashSet<K>,
    working: HashSet<K>,
    delayed: BinaryHeap<Reverse<(Instant, K)>>,
    /// Keys whose work has ended, which count as worked on until these times.
    resting: BinaryHeap<Reverse<(Instant, K)>>,
    failures: HashMap<K, Backoff>,
}

/// A queue of keys; clones are the same queue.
pub(crate) struct Queue<K> {
    inner: Arc<(Mutex<State<K>>, Notify)>,
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<K: QueueKey> Default for Queue<K> {
    fn default() -> Self {
        let state = State {
            ready: VecDeque::new(),
            dirty: HashSet::new(),
            working: HashSet::new(),
            delayed: BinaryHeap::new(),
            resting: BinaryHeap::new(),
            failures: HashMap::new(),
        };
        Self { inner: Arc::new((Mutex::new(state), Notify::new())) }
    }
}

impl<K: QueueKey> Queue<K> {
    fn state(&self) -> MutexGuard<'_, State<K>> {
        self.inner.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for work on `key`, as soon as possible.
    pub fn add(&self, key: K) {
        self.state().add(key);
        self.inner.1.notify_one();
    }

    /// Asks for work on each of these keys.
    pub fn extend(&self, keys: impl IntoIterator<Item = K>) {
        for key in keys {
            self.add(key);
        }
    }

    /// Asks for work on `key` after `delay`.
    pub fn add_after(&self, key: K, delay: Duration) {
        self.state().delayed.push(Reverse((Instant::now() + delay, key)));
        self.inner.1.notify_one();
    }

    /// Works on keys until `shutdown`, at most `parallel` at a time. `work` gets the key; its error is logged and the key comes back.
    pub async fn run<F, Fut>(self, name: &'static str, parallel: usize, shutdown: CancellationToken, work: F)
    where
        F: Fn(K) -> Fut,
        Fut: Future<Output = anyhow::Result<Next>>,
    {
        let mut running = FuturesUnordered::new();
        loop {
            while running.len() < parallel {
                let next = self.state().take(Instant::now());
                let Some(key) = next else { break };
                let work = work(key.clone());
                running.push(async move {
                    let (busy, result) = timed(work).await;
                    (key, busy, result)
                });
            }
            let timer = self.state().next_timer();
            tokio::select! {
                () = shutdown.cancelled() => return,
                Some((key, busy, result)) = running.next() => self.finish(name, key, busy, result),
                () = self.inner.1.notified() => {}
                () = sleep_until(timer), if running.len() < parallel => {}
            }
        }
    }

    fn finish(&self, name: &'static str, key: K, busy: Duration, result: anyhow::Result<Next>) {
        let mut state = self.state();
        let delay = match result {
            Ok(next) => {
                state.failures.remove(&key);
                match next {
                    Next::Change => None,
                    Next::Within(delay) => Some(delay),
                }
            }
            Err(error) => {
                let backoff = state.failures.entry(key.clone()).or_insert_with(|| Backoff::new(FIRST_DELAY, LAST_DELAY));
                let delay = backoff.next_delay();
                if backoff.attempts() > 5 {
                    tracing::warn!(controller = name, ?key, ?delay, error = %error.as_report(), "reconciling failed; trying again");
                } else {
                    tracing::debug!(controller = name, ?key, ?delay, error = %error.as_report(), "reconciling failed; trying again");
                }
                Some(delay)
            }
        };
        if let Some(delay) = delay {
            state.delayed.push(Reverse((Instant::now() + delay, key.clone())));
        }
        match busy {
            short if short < SHORT => state.done(key),
            long => state.resting.push(Reverse((Instant::now() + (long * REST).min(LONGEST_REST), key))),
        }
    }
}

thread_local! {
    /// What the poll that is under way has spent on requests.
    static REQUESTS: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Awaits `work`, and says how long it held the processor: the time within its polls, but for [`requests`].
async fn timed<T>(work: impl Future<Output = T>) -> (Duration, T) {
    let (mut work, mut busy) = (std::pin::pin!(work), Duration::ZERO);
    let result = std::future::poll_fn(|context| {
        let begun = std::time::Instant::now();
        REQUESTS.set(Duration::ZERO);
        let polled = work.as_mut().poll(context);
        busy += begun.elapsed().saturating_sub(REQUESTS.take());
        polled
    })
    .await;
    (busy, result)
}

/// Awaits requests that the work of a key consists of. An API server in this process answers them within their polls: however many a key
/// needs, they are no reason to rest.
pub(crate) async fn requests<T>(work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|context| {
        let begun = std::time::Instant::now();
        let polled = work.as_mut().poll(context);
        REQUESTS.set(REQUESTS.get() + begun.elapsed());
        polled
    })
    .await
}

async fn sleep_until(timer: Option<Instant>) {
    match timer {
        Some(timer) => tokio::time::sleep_until(timer).await,
        None => std::future::pending().await,
    }
}

impl<K: QueueKey> State<K> {
    fn add(&mut self, key: K) {
        if self.dirty.insert(key.clone()) && !self.working.contains(&key) {
            self.ready.push_back(key);
        }
    }

    /// The next key to work on; it counts as worked on from now.
    fn take(&mut self, now: Instant) -> Option<K> {
        while let Some(Reverse((until, _))) = self.resting.peek()
            && *until <= now
        {
            if let Some(Reverse((_, key))) = self.resting.pop() {
                self.done(key);
            }
        }
        while let Some(Reverse((at, _))) = self.delayed.peek()
            && *at <= now
        {
            if let Some(Reverse((_, key))) = self.delayed.pop() {
                self.add(key);
            }
        }
        let key = self.ready.pop_front()?;
        self.dirty.remove(&key);
        self.working.insert(key.clone());
        Some(key)
    }

    fn done(&mut self, key: K) {
        self.working.remove(&key);
        if self.dirty.contains(&key) {
            self.ready.push_back(key);
        }
    }

    fn next_timer(&self) -> Option<Instant> {
        [&self.delayed, &self.resting].into_iter().filter_map(|times| times.peek().map(|Reverse((at, _))| *at)).min()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn one_key_never_runs_twice_at_once_and_reruns_when_added_meanwhile() {
        let queue = Queue::<&str>::default();
        let (running, most, runs) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let stop = CancellationToken::new();
        queue.add("a");
        let again = queue.clone();
        let end = stop.clone();
        queue
            .clone()
            .run("test", 4, stop, |key| {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let run = runs.fetch_add(1, Ordering::SeqCst);
                if run < 2 {
                    again.add(key);
                    again.add(key);
                } else {
                    end.cancel();
                }
                let running = &running;
                async move {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    running.fetch_sub(1, Ordering::SeqCst);
                    Ok(Next::Change)
                }
            })
            .await;
        assert_eq!(most.load(Ordering::SeqCst), 1);
        assert_eq!(runs.load(Ordering::SeqCst), 3, "two additions while working are one more run");
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_rests_after_long_work_and_others_go_on() {
        let queue = Queue::<&str>::default();
        let (stop, log, again) = (CancellationToken::new(), Mutex::new(Vec::new()), queue.clone());
        queue.extend(["heavy", "light", "asking"]);
        let (begun, end) = (Instant::now(), stop.clone());
        queue
            .run("test", 1, stop, |key| {
                let mut log = log.lock().unwrap();
                let runs = log.iter().filter(|(known, _)| *known == key).count();
                log.push((key, begun.elapsed()));
                // Changes that come during the work and its rest are one further run.
                again.add(key);
                if key == "heavy" && runs == 2 {
                    end.cancel();
                }
                async move {
                    match key {
                        "heavy" => std::thread::sleep(Duration::from_millis(5)),
                        "asking" => {
                            let answered = async {
                                std::thread::sleep(Duration::from_millis(5));
                                tokio::time::sleep(Duration::from_millis(5)).await;
                            };
                            requests(answered).await;
                        }
                        _ => tokio::time::sleep(Duration::from_millis(5)).await,
                    }
                    Ok(Next::Change)
                }
            })
            .await;
        let log = log.into_inner().unwrap();
        let of = |key: &str| log.iter().filter(|(known, _)| *known == key).map(|(_, at)| *at).collect::<Vec<_>>();
        assert!(of("light").len() >= 4 && of("asking").len() >= 4, "neither work that waits nor requests rest: {log:?}");
        assert!(of("heavy").windows(2).all(|pair| pair[1] - pair[0] >= Duration::from_millis(45)), "{log:?}");
    }

    #[tokio::test]
    async fn a_failing_key_comes_back_and_does_not_hold_up_others() {
        let queue = Queue::<u32>::default();
        queue.add(1);
        queue.add(2);
        let stop = CancellationToken::new();
        let log = Mutex::new(Vec::new());
        let end = stop.clone();
        queue
            .run("test", 1, stop, |key| {
                let mut log = log.lock().unwrap();
                log.push(key);
                let failures = log.iter().filter(|seen| **seen == 1).count();
                let result = if key == 1 && failures < 3 { Err(anyhow::anyhow!("not yet")) } else { Ok(Next::Change) };
                if failures == 3 {
                    end.cancel();
                }
                async move { result }
            })
            .await;
        assert_eq!(*log.lock().unwrap(), [1, 2, 1, 1]);
    }

    #[tokio::test]
    async fn work_is_repeated_on_request() {
        let queue = Queue::<u32>::default();
        queue.add_after(7, Duration::from_millis(1));
        let stop = CancellationToken::new();
        let (runs, end) = (AtomicUsize::new(0), stop.clone());
        queue
            .run("test", 1, stop, |_| {
                let last = runs.fetch_add(1, Ordering::SeqCst) == 1;
                if last {
                    end.cancel();
                }
                async { Ok(Next::Within(Duration::from_millis(1))) }
            })
            .await;
        assert_eq!(runs.load(Ordering::SeqCst), 2);
    }
}
