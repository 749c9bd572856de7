//! The webhook back-end: events are sent as lists (apiserver/plugin/pkg/audit/{webhook,buffered}).
//!
//! | mode | a request | when the receiver is slow or away |
//! | --- | --- | --- |
//! | `batch` | waits for nothing | lists are tried again; what has no room meanwhile is dropped, and the number of dropped events is reported |
//! | `blocking` | waits until its event is sent or given up | a failure is reported, and the request goes on |
//! | `blocking-strict` | the same | the same; without its first event the request is refused |
//!
//! One task makes lists, and one task for each list sends it. All end at [`Webhook::close`].

#[cfg(test)]
mod tests;

use crate::event::list;
use crate::log::{Mode, NotWritten};
use crate::tally::Tally;
use bytes::Bytes;
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// Bytes of events that wait or are being sent. A larger event waits alone.
const ROOM: u32 = 16 << 20;
/// Times that a list is sent, with pauses between them that grow by half (apiserver/pkg/util/webhook
/// `DefaultRetryBackoffWithInitialDelay`).
const TRIES: u32 = 5;
const GROWTH: f64 = 1.5;
/// How long the end of the process waits for what is not sent yet.
const LAST: Duration = Duration::from_secs(5);

/// Sends a list to the receiver.
pub trait Post: Debug + Send + Sync + 'static {
    /// Posts an EventList of `audit.k8s.io/v1` as JSON, once. The error is for people.
    fn post(&self, list: Bytes) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + '_>>;
}

/// When and how events are sent.
#[derive(Clone, Debug, PartialEq)]
pub struct WebhookConfig {
    pub mode: Mode,
    /// The pause after the first failure.
    pub initial_backoff: Duration,
    /// Used in mode `batch`.
    pub batch: Batch,
    /// Largest list in bytes; a larger event is a list of its own.
    pub max_list: usize,
}

/// How events become lists.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Events that wait to be put into a list.
    pub buffer_size: usize,
    /// Events of a list.
    pub max_size: usize,
    /// How long the first event of a list waits for others.
    pub max_wait: Duration,
    pub throttle: Option<Throttle>,
}

/// How many lists are begun.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throttle {
    /// In a second, on average.
    pub qps: f32,
    /// At once, after a pause.
    pub burst: u32,
}

impl Default for WebhookConfig {
    fn default() -> Self {
        Self { mode: Mode::Batch, initial_backoff: Duration::from_secs(10), batch: Batch::default(), max_list: 10 << 20 }
    }
}

impl Default for Batch {
    fn default() -> Self {
        let throttle = Some(Throttle { qps: 10.0, burst: 15 });
        Self { buffer_size: 10_000, max_size: 400, max_wait: Duration::from_secs(30), throttle }
    }
}

struct Queued {
    line: Vec<u8>,
    _room: OwnedSemaphorePermit,
}

/// What sends, for the tasks.
#[derive(Debug)]
struct Courier {
    post: Arc<dyn Post>,
    initial_backoff: Duration,
    lost: Tally,
}

/// The running back-end.
pub struct Webhook {
    mode: Mode,
    courier: Arc<Courier>,
    room: Arc<Semaphore>,
    /// None once closed.
    queue: Mutex<Option<Sender<Queued>>>,
    worker: Mutex<Option<JoinHandle<()>>>,
    runtime: Handle,
}

impl Webhook {
    /// Starts the tasks, in this runtime.
    pub fn start(config: &WebhookConfig, post: Arc<dyn Post>) -> Self {
        let courier = Arc::new(Courier { post, initial_backoff: config.initial_backoff, lost: Tally::default() });
        let (sender, receiver) = channel(config.batch.buffer_size.max(1));
        let lists = Lists { queue: receiver, batch: config.batch.clone(), max_list: config.max_list, carried: None };
        let worker = tokio::spawn(send_all(lists, Bucket::full(config.batch.throttle), Arc::clone(&courier)));
        Self {
            mode: config.mode,
            courier,
            room: Arc::new(Semaphore::new(ROOM as usize)),
            queue: Mutex::new(Some(sender)),
            worker: Mutex::new(Some(worker)),
            runtime: Handle::current(),
        }
    }

    /// Whether a request without its first event is refused.
    pub fn is_strict(&self) -> bool {
        self.mode == Mode::BlockingStrict
    }

    /// Sends an event, given as a line of the log, as the mode says.
    pub async fn write(&self, line: Vec<u8>) -> Result<(), NotWritten> {
        if self.mode == Mode::Batch {
            return self.enqueue(line);
        }
        let room = Arc::clone(&self.room).acquire_many_owned(size_of(&line)).await.map_err(|_| NotWritten)?;
        self.courier.deliver(vec![Queued { line, _room: room }]).await
    }

    /// The same from outside of tasks, and without waiting.
    pub fn write_later(&self, line: Vec<u8>) {
        if self.mode == Mode::Batch {
            // What has no room is counted.
            let _ = self.enqueue(line);
        } else if let Ok(room) = Arc::clone(&self.room).try_acquire_many_owned(size_of(&line)) {
            let courier = Arc::clone(&self.courier);
            self.runtime.spawn(async move { courier.deliver(vec![Queued { line, _room: room }]).await });
        } else {
            self.courier.lose(1, "there is no room for them");
        }
    }

    fn enqueue(&self, line: Vec<u8>) -> Result<(), NotWritten> {
        let room = Arc::clone(&self.room).try_acquire_many_owned(size_of(&line));
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let queued = room.ok().map(|room| Queued { line, _room: room });
        if let (Some(queue), Some(queued)) = (queue.as_ref(), queued)
            && queue.try_send(queued).is_ok()
        {
            return Ok(());
        }
        drop(queue);
        self.courier.lose(1, "there is no room for them");
        Err(NotWritten)
    }

    /// Events that were given up so far.
    pub fn lost(&self) -> u64 {
        self.courier.lost.count()
    }

    /// Takes no more events, and sends those that wait, for a while.
    pub async fn close(&self) {
        drop(self.queue.lock().unwrap_or_else(PoisonError::into_inner).take());
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut worker) = worker else { return };
        if tokio::time::timeout(LAST, &mut worker).await.is_err() {
            worker.abort();
            tracing::warn!("the audit webhook did not take the last events in time: they are lost");
        }
    }
}

fn size_of(line: &[u8]) -> u32 {
    u32::try_from(line.len()).unwrap_or(ROOM).min(ROOM)
}

impl Courier {
    fn lose(&self, events: usize, why: &str) {
        if let Some(lost) = self.lost.add(events) {
            tracing::warn!(lost, why, "the audit webhook did not take events: they are lost");
        }
    }

    /// Sends events as one list, until the receiver has taken it or the tries are used up. Whatever the error is, it may go away.
    async fn deliver(&self, events: Vec<Queued>) -> Result<(), NotWritten> {
        let body = Bytes::from(list(events.iter().map(|event| event.line.as_slice())));
        let mut pause = self.initial_backoff;
        for attempt in 1..=TRIES {
            match self.post.post(body.clone()).await {
                Ok(()) => return Ok(()),
                Err(why) if attempt == TRIES => self.lose(events.len(), &why),
                Err(why) => {
                    tracing::debug!(attempt, why, "the audit webhook did not take a list");
                    tokio::time::sleep(backoff::jittered(pause)).await;
                    pause = pause.mul_f64(GROWTH);
                }
            }
        }
        Err(NotWritten)
    }
}

/// Sends what comes, until the queue is closed and empty and every list is sent or given up.
async fn send_all(mut lists: Lists, mut bucket: Bucket, courier: Arc<Courier>) {
    let mut sending = JoinSet::new();
    while let Some(events) = lists.next().await {
        bucket.take().await;
        let courier = Arc::clone(&courier);
        sending.spawn(async move { courier.deliver(events).await });
        while sending.try_join_next().is_some() {}
    }
    sending.join_all().await;
}

/// Makes lists of events.
struct Lists {
    queue: Receiver<Queued>,
    batch: Batch,
    max_list: usize,
    /// What did not go into the last list.
    carried: Option<Queued>,
}

impl Lists {
    async fn next(&mut self) -> Option<Vec<Queued>> {
        let first = match self.carried.take() {
            Some(carried) => carried,
            None => self.queue.recv().await?,
        };
        let until = Instant::now() + self.batch.max_wait;
        let mut bytes = first.line.len();
        let mut events = vec![first];
        while events.len() < self.batch.max_size {
            let Ok(Some(event)) = tokio::time::timeout_at(until, self.queue.recv()).await else { break };
            bytes = bytes.saturating_add(event.line.len());
            if bytes > self.max_list {
                self.carried = Some(event);
                break;
            }
            events.push(event);
        }
        Some(events)
    }
}

/// A token bucket.
struct Bucket {
    throttle: Option<Throttle>,
    tokens: f64,
    filled: Instant,
}

impl Bucket {
    fn full(throttle: Option<Throttle>) -> Self {
        Self { throttle, tokens: throttle.map_or(0.0, |throttle| throttle.burst.into()), filled: Instant::now() }
    }

    /// Returns when there is a token.
    async fn take(&mut self) {
        let Some(Throttle { qps, burst }) = self.throttle else { return };
        let fill = |bucket: &mut Self| {
            let now = Instant::now();
            let more = now.duration_since(bucket.filled).as_secs_f64() * f64::from(qps);
            (bucket.tokens, bucket.filled) = ((bucket.tokens + more).min(burst.into()), now);
        };
        fill(self);
        if self.tokens < 1.0 {
            let wait = Duration::try_from_secs_f64((1.0 - self.tokens) / f64::from(qps)).unwrap_or(Duration::MAX);
            tokio::time::sleep(wait).await;
            fill(self);
        }
        self.tokens -= 1.0;
    }
}
