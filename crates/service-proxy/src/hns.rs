//! The backend for Windows: load balancers and remote endpoints of the Host Networking Service.
//!
//! Flow: the table's changes and the service's drift put VIPs into a queue ([`scheduler`], pure), most important first;
//! each is planned against a mirror ([`plan`], pure), its steps are made calls ([`apply`]), which run on a few blocking threads
//! ([`calls`]). [`discovery`] enumerates what the service has; the [`engine`] composes all of them.
//! Guarantees: a change costs its own calls and lists nothing; ids are UUIDv5 of the cluster and the VIP, so nothing is
//! looked up before it is deleted, and after a restart our objects are recognised; foreign ones are never touched; an error
//! proves nothing; what failed is tried again and is never counted as done; load balancers are written before endpoints go.
//! Drift: the service's notifications, ids compared every few seconds, and one load balancer after the other read again.
//! Not seen: rules that the switch lost behind an intact object. Source of values: kube-proxy's `pkg/proxy/winkernel`.

mod apply;
mod calls;
mod discovery;
mod document;
mod engine;
mod gap;
mod mirror;
mod plan;
mod queue;
mod scheduler;
mod view;
mod vip_states;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hcn::{Event, HcnClient, HcnError, Subscription};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::backend::{Backend, Backlog, Progress};
use crate::metrics::CallCounter;
use crate::table::{Table, VipKey};
pub use calls::{Answer, Call, CallError, Tally};
pub use discovery::Periods;
pub use document::{load_balancer_id, vip_key};
pub use engine::{Engine, Token};
pub use gap::Gap;

/// Settings of this backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Name of the HNS network whose endpoints are backends.
    pub network: String,
    /// Direct server return for ClusterIPs where the service has it.
    pub dsr: bool,
    /// Change load balancers in place where the service can.
    pub modify: bool,
    /// The address that backends see where direct server return is off; overlays need one.
    pub source_vip: Option<IpAddr>,
    /// Addresses of this node; without any, the network's management address.
    pub node_ips: Vec<IpAddr>,
    /// The MAC of this node's adapter; overlays need it.
    pub host_mac: Option<String>,
    /// Name of the host's own endpoint on the network, which answers forwarded health checks.
    pub root_endpoint: String,
    /// How often the service is asked what it has.
    pub periods: Periods,
}

impl Settings {
    /// The settings for the network of that name, with the defaults of the rest.
    pub fn new(network: impl Into<String>) -> Self {
        Self {
            network: network.into(),
            dsr: true,
            modify: true,
            source_vip: None,
            node_ips: Vec::new(),
            host_mac: None,
            root_endpoint: "cbr0".to_owned(),
            periods: Periods::default(),
        }
    }
}

/// What a job came back with.
enum Done {
    Call(Token, Result<Answer, CallError>),
    Subscribed(Result<Subscription, HcnError>),
}

/// What wakes the backend.
pub struct Wakeup(Cause);

enum Cause {
    Done(Done),
    Event(Event),
    Time,
}

/// Registering for notifications is tried again after this.
const SUBSCRIBE_AGAIN: Duration = Duration::from_secs(5);

/// Keeps the service equal to the table.
pub struct Hns {
    engine: Engine,
    calls: Arc<calls::Calls>,
    jobs: JoinSet<Done>,
    events: mpsc::UnboundedReceiver<Event>,
    events_to: mpsc::UnboundedSender<Event>,
    subscription: Option<Subscription>,
    subscribing: bool,
    subscribe_at: Instant,
}

impl Hns {
    /// A backend that has not called the service yet. `cluster_uid` marks what is ours.
    pub fn new(client: &HcnClient, cluster_uid: impl Into<String>, settings: Settings) -> Self {
        let (events_to, events) = mpsc::unbounded_channel();
        let now = Instant::now();
        Self {
            calls: Arc::new(calls::Calls::new(client.clone())),
            engine: Engine::new(cluster_uid, settings, now),
            jobs: JoinSet::new(),
            events,
            events_to,
            subscription: None,
            subscribing: false,
            subscribe_at: now,
        }
    }

    /// Last known objects, waiting work and failures.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    fn subscribe(&mut self) {
        self.subscribing = true;
        let (client, events_to) = (self.calls.client().clone(), self.events_to.clone());
        self.jobs.spawn(async move {
            let sink = Arc::new(move |event| drop(events_to.send(event)));
            Done::Subscribed(client.subscribe(sink).await)
        });
    }
}

impl Backend for Hns {
    type Event = Wakeup;

    fn touch(&mut self, keys: impl IntoIterator<Item = VipKey>, table: &Table) {
        self.engine.touch(keys, table);
    }

    fn begin(&mut self, table: &Table) {
        let now = Instant::now();
        if self.subscription.is_none() && !self.subscribing && self.subscribe_at <= now && self.engine.is_found() {
            self.subscribe();
        }
        while self.jobs.len() < calls::AT_ONCE {
            let Some((token, call)) = self.engine.next(now, table) else { break };
            let calls = self.calls.clone();
            self.jobs.spawn(async move { Done::Call(token, calls.run(call).await) });
        }
    }

    async fn next_event(&mut self) -> Wakeup {
        let wake = if self.jobs.len() < calls::AT_ONCE { self.engine.wake() } else { None };
        let time = async {
            match wake {
                Some(wake) => tokio::time::sleep_until(wake).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(event) = self.events.recv() => Wakeup(Cause::Event(event)),
            Some(done) = self.jobs.join_next() => match done {
                Ok(done) => Wakeup(Cause::Done(done)),
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            },
            () = time => Wakeup(Cause::Time),
        }
    }

    fn process(&mut self, event: Wakeup, table: &Table) {
        let now = Instant::now();
        match event.0 {
            Cause::Time => {}
            Cause::Done(Done::Call(token, result)) => self.engine.done(token, result, now, table),
            Cause::Done(Done::Subscribed(result)) => {
                self.subscribing = false;
                match result {
                    Ok(subscription) => self.subscription = Some(subscription),
                    Err(error) => {
                        tracing::debug!(%error, "there are no notifications of the service yet; changes are found by enumerating");
                        self.subscribe_at = now + SUBSCRIBE_AGAIN;
                    }
                }
            }
            Cause::Event(event) => {
                if event.event_type == Event::SERVICE_DISCONNECT {
                    self.subscription = None;
                }
                self.engine.event(&event, now);
            }
        }
    }

    fn take_progress(&mut self) -> Option<Progress> {
        let engine = &mut self.engine;
        engine.take_changed().then(|| Progress {
            ready: engine.was_up_to_date(),
            pending: engine.pending(),
            failing: engine.failing().clone(),
            refusals: engine.gaps().iter().map(|(key, gaps)| (*key, gaps.iter().map(Gap::refusal).collect())).collect(),
            unavailable: engine.unavailable().map(str::to_owned),
            writes: engine.writes(),
        })
    }

    fn backlog(&self) -> Backlog {
        Backlog { pending: self.engine.pending(), finished: self.engine.finished() }
    }

    fn is_settled(&self, key: &VipKey) -> bool {
        self.engine.is_settled(key)
    }

    fn call_counter(&self) -> Option<CallCounter> {
        let calls = self.calls.clone();
        Some(Box::new(move || calls.tallies()))
    }
}

/// Why a cleanup ended early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CleanupError {
    /// An object is left.
    #[error("{key}: {reason}")]
    Left {
        key: VipKey,
        /// Why it is left.
        reason: String,
    },
    /// The service cannot be asked.
    #[error("{0}")]
    Unavailable(String),
}

/// Removes everything that a proxy of this cluster made, and nothing else. Returns how many objects went.
///
/// # Errors
/// Why something is left, or why the service cannot be asked.
pub async fn cleanup(client: &HcnClient, cluster_uid: impl Into<String>, settings: Settings) -> Result<u64, CleanupError> {
    let nothing = Table::default();
    let mut hns = Hns::new(client, cluster_uid, settings);
    loop {
        hns.begin(&nothing);
        let engine = hns.engine();
        if let Some((key, reason)) = engine.failing().iter().next() {
            return Err(CleanupError::Left { key: *key, reason: reason.clone() });
        }
        if let Some(reason) = engine.unavailable() {
            return Err(CleanupError::Unavailable(reason.to_owned()));
        }
        if engine.is_idle() {
            return Ok(engine.writes());
        }
        let event = hns.next_event().await;
        hns.process(event, &nothing);
    }
}

#[cfg(test)]
mod tests;
