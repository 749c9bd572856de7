//! Watch of a Host Networking Service: its health and its changes.
//!
//! One task registers for notifications, registers again after each disconnect, and probes the service with two small calls. Users get
//! [`Change`] over a bounded channel and [`Health`] over a watch channel. A user that falls behind, a new registration, and an object that
//! vanished without a notification all read as [`Change::All`]: compare everything. A change says what to look at, never what is there.
//!
//! The watch shares the process's client: a call that hangs delays no other.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::Instant;

use crate::client::HcnClient;
use crate::error::HcnError;
use crate::guid::Guid;
use crate::port::{Event, Subscription};

/// Events kept for a user that is slow; one that falls behind further compares everything.
const EVENTS: usize = 256;

/// How the watch counts time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How often a service that answers is probed.
    pub probe: Duration,
    /// How often one that does not answer is asked again.
    pub retry: Duration,
    /// For how long every call must fail before the service counts as down: a restart is shorter.
    pub grace: Duration,
    /// A probe without an answer for that long makes the service slow.
    pub slow: Duration,
    /// A probe without an answer for that long makes the service down.
    pub hung: Duration,
    /// How often users compare everything, with or without notifications.
    pub full_pass: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            probe: Duration::from_secs(5),
            retry: Duration::from_millis(100),
            grace: Duration::from_secs(3),
            slow: Duration::from_secs(5),
            hung: Duration::from_secs(30),
            full_pass: Duration::from_secs(60),
        }
    }
}

/// Whether the service answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// It was not asked yet.
    #[default]
    Unknown,
    /// It answers.
    Answering,
    /// Calls fail, for less than the grace that a restart gets.
    Failing { reason: String },
    /// A call is under way for longer than it should be; it may still be answered.
    Slow {
        /// The call and its limit.
        reason: String,
    },
    /// Calls fail, or one has hung for long.
    Down {
        /// The last error, or the call that hangs.
        reason: String,
    },
}

impl Health {
    /// Whether a call made now can be expected to succeed.
    pub fn is_answering(&self) -> bool {
        matches!(self, Self::Answering)
    }
}

/// A change for a user of the watch.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A notification of the service.
    Event(Event),
    /// Anything may have changed: compare everything.
    All,
}

/// A watch; clones share it. It ends when the last clone and the last [`Listener`] are dropped.
#[derive(Clone, Debug)]
pub struct Watch {
    changes: broadcast::Sender<Change>,
    health: watch::Receiver<Health>,
    _alive: Arc<AbortOnDrop>,
}

#[derive(Debug)]
struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Receives changes for one user of the watch.
#[derive(Debug)]
pub struct Listener {
    changes: broadcast::Receiver<Change>,
    watch: Watch,
    /// Whether no change was read yet.
    fresh: bool,
}

impl Listener {
    /// Waits for a change; the first is [`Change::All`]. May be dropped and called again at any time.
    pub async fn next(&mut self) -> Change {
        if std::mem::take(&mut self.fresh) {
            return Change::All;
        }
        match self.changes.recv().await {
            Ok(change) => change,
            Err(broadcast::error::RecvError::Lagged(_)) => Change::All,
            // The sender is in our own clone of the watch.
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }

    /// The service's health as it is known now.
    pub fn health(&self) -> Health {
        self.watch.health.borrow().clone()
    }
}

impl Watch {
    /// Watches the service behind `client`. Needs a tokio runtime.
    pub fn start(client: HcnClient, timing: Timing) -> Self {
        let (changes, (reported, health)) = (broadcast::Sender::new(EVENTS), watch::channel(Health::Unknown));
        let task = Task { client, timing, changes: changes.clone(), health: reported, seen: BTreeSet::new(), failing_since: None };
        let alive = Arc::new(AbortOnDrop(tokio::spawn(task.run()).abort_handle()));
        Self { changes, health, _alive: alive }
    }

    pub fn health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }

    /// Listens for changes from now on.
    pub fn listen(&self) -> Listener {
        Listener { changes: self.changes.subscribe(), watch: self.clone(), fresh: true }
    }
}

struct Task {
    client: HcnClient,
    timing: Timing,
    changes: broadcast::Sender<Change>,
    health: watch::Sender<Health>,
    /// Networks and namespaces that the last probe found.
    seen: BTreeSet<Guid>,
    failing_since: Option<Instant>,
}

impl Task {
    async fn run(mut self) {
        loop {
            let (sender, mut events) = mpsc::unbounded_channel();
            match self.register(sender).await {
                Ok(registration) => {
                    self.follow(&mut events).await;
                    drop(registration);
                    self.fails("its notifications ended: it stopped or restarted");
                }
                Err(error) => {
                    self.fails(&error.to_string());
                    tokio::time::sleep(self.timing.retry).await;
                }
            }
        }
    }

    async fn register(&mut self, sender: mpsc::UnboundedSender<Event>) -> Result<Subscription, HcnError> {
        let client = self.client.clone();
        let sink: crate::port::EventSink = Arc::new(move |event| {
            // The task has moved on to another registration.
            let _ = sender.send(event);
        });
        self.timed("HcnRegisterServiceCallback", async move { client.subscribe(sink).await }).await
    }

    /// Passes events on and probes the service, until the registration ends.
    async fn follow(&mut self, events: &mut mpsc::UnboundedReceiver<Event>) {
        // What the first probe finds is compared with nothing, and everybody looks at everything.
        self.seen.clear();
        let mut announce = true;
        let mut full_pass = Instant::now() + self.timing.full_pass;
        loop {
            // Read once the registration is made: what happened before is found by looking at everything.
            match self.probe(events).await {
                Probed::Disconnected => return,
                Probed::Found(found) => {
                    let vanished = !self.seen.is_subset(&found);
                    let recovered = self.failing_since.take().is_some();
                    self.seen = found;
                    self.set(Health::Answering);
                    if announce || vanished || recovered || full_pass <= Instant::now() {
                        announce = false;
                        full_pass = Instant::now() + self.timing.full_pass;
                        let _ = self.changes.send(Change::All);
                    }
                }
                Probed::Failed(error) => self.fails(&error.to_string()),
            }
            let pause = if self.failing_since.is_some() { self.timing.retry } else { self.timing.probe };
            let until = Instant::now() + pause;
            while let Some(event) = tokio::select! {
                event = events.recv() => event,
                () = tokio::time::sleep_until(until) => None,
            } {
                if event.event_type == Event::SERVICE_DISCONNECT {
                    return;
                }
                let _ = self.changes.send(Change::Event(event));
            }
        }
    }

    /// Asks for the ids of networks and namespaces; events go on meanwhile.
    async fn probe(&mut self, events: &mut mpsc::UnboundedReceiver<Event>) -> Probed {
        let client = self.client.clone();
        // A refusal is an answer: a service without the call (before 1803) is up.
        let refused = |error: HcnError| if error.is_service_down() { Err(error) } else { Ok(Vec::new()) };
        let call = async move {
            let mut found: BTreeSet<Guid> = client.network_ids().await.or_else(refused)?.into_iter().collect();
            found.extend(client.namespace_ids().await.or_else(refused)?);
            Ok(found)
        };
        let changes = self.changes.clone();
        let probed = self.timed("HcnEnumerateNetworks", call);
        tokio::pin!(probed);
        loop {
            tokio::select! {
                biased;
                answer = &mut probed => return answer.map_or_else(Probed::Failed, Probed::Found),
                event = events.recv() => match event {
                    Some(event) if event.event_type != Event::SERVICE_DISCONNECT => drop(changes.send(Change::Event(event))),
                    _ => return Probed::Disconnected,
                },
            }
        }
    }

    /// Waits for a call and says meanwhile that the service is slow or down.
    async fn timed<T>(&mut self, name: &str, call: impl Future<Output = Result<T, HcnError>>) -> Result<T, HcnError> {
        let Timing { slow, hung, .. } = self.timing;
        tokio::pin!(call);
        if let Ok(answer) = tokio::time::timeout(slow, &mut call).await {
            return answer;
        }
        if !matches!(*self.health.borrow(), Health::Down { .. }) {
            self.set(Health::Slow { reason: format!("{name} has not been answered for {} s", slow.as_secs_f32()) });
        }
        if let Ok(answer) = tokio::time::timeout(hung.saturating_sub(slow), &mut call).await {
            return answer;
        }
        self.failing_since.get_or_insert_with(Instant::now);
        self.set(Health::Down { reason: format!("{name} has not been answered for {} s", hung.as_secs_f32()) });
        call.await
    }

    fn fails(&mut self, reason: &str) {
        let since = *self.failing_since.get_or_insert_with(Instant::now);
        let reason = reason.to_owned();
        let down = matches!(*self.health.borrow(), Health::Down { .. });
        self.set(if down || since.elapsed() >= self.timing.grace { Health::Down { reason } } else { Health::Failing { reason } });
    }

    fn set(&self, health: Health) {
        let changed = |old: &Health| match (old, &health) {
            // Which call failed changes nothing.
            (Health::Down { .. }, Health::Down { .. }) | (Health::Failing { .. }, Health::Failing { .. }) => false,
            (old, new) => old != new,
        };
        self.health.send_if_modified(|old| {
            if !changed(old) {
                return false;
            }
            match &health {
                Health::Slow { reason } => tracing::warn!("the Host Networking Service is slow: {reason}"),
                Health::Down { reason } => tracing::warn!("the Host Networking Service does not answer: {reason}"),
                Health::Answering if !matches!(old, Health::Unknown) => tracing::info!("the Host Networking Service answers again"),
                _ => {}
            }
            *old = health.clone();
            true
        });
    }
}

enum Probed {
    Found(BTreeSet<Guid>),
    Failed(HcnError),
    Disconnected,
}

#[cfg(test)]
mod tests;
