//! Windows nodes: finds sandboxes whose network HNS lost, and has CNI repair it.
//!
//! HNS says what happened ([`hcn::watch`]): which sandboxes that may concern are compared with the namespaces that HNS has. A sandbox
//! whose namespace is there without its endpoint is [`NetworkProblem::Repairing`]: CNI CHECK is called until it succeeds. Where it cannot succeed
//! (the namespace with its compartment is gone, or CHECK says that the attachment drifted) the sandbox is [`NetworkProblem::Lost`]: not ready in
//! CRI, so that the node agent replaces it.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use cni::spec::code;
use futures::StreamExt as _;
use hcn::watch::{Change, Listener};
use hcn::{Event, Guid};
use k8s_cri::v1::ContainerEventType;
use thiserror_ext::AsReport as _;

use super::Runtime;
use super::network::Netns;
use super::record::SandboxRecord;

/// What is wrong with a sandbox's network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NetworkProblem {
    /// CNI is asked again until it works.
    Repairing(String),
    /// Only another sandbox has a network again.
    Lost(String),
}

impl NetworkProblem {
    pub(crate) fn reason(&self) -> &str {
        match self {
            Self::Repairing(reason) | Self::Lost(reason) => reason,
        }
    }
}

/// How many sandboxes are repaired at once.
const AT_ONCE: usize = 8;
/// A repair that failed is tried again after this.
const AGAIN: Duration = Duration::from_millis(200);
/// So often CNI may refuse a repair for another reason than "try again" before the sandbox is lost.
const REFUSALS: u32 = 5;

/// What became of one check of a sandbox.
enum CheckOutcome {
    /// Its network is as it was made, or the sandbox needs none any more.
    Done,
    /// Check again soon.
    Again,
    /// CNI refused: check again, a limited number of times.
    Refused(String),
}

impl Runtime {
    /// Starts the task that repairs networks on a Windows node.
    pub(super) fn start_network_repair(self: &Arc<Self>) {
        if let Some(watch) = self.network.watch() {
            let work = follow(Arc::downgrade(self), watch.listen());
            self.tasks.lock().unwrap_or_else(PoisonError::into_inner).spawn(work);
        }
    }

    /// Sandboxes that have a compartment, by id.
    fn compartments(&self) -> BTreeMap<String, (Guid, bool)> {
        let state = self.state();
        let ready = state.sandboxes.iter().filter(|(_, sandbox)| sandbox.is_ready());
        let compartment = |netns: &Netns| if let Netns::Hcn(guid) = netns { Some(*guid) } else { None };
        ready.filter_map(|(id, sandbox)| Some((id.clone(), (compartment(&sandbox.record.netns)?, sandbox.problem.is_some())))).collect()
    }

    /// The sandboxes that have to be checked after this change; `None` where HNS does not say.
    async fn suspects(&self, change: &Change) -> Option<Vec<String>> {
        // Before HNS is read: a sandbox that is made meanwhile is not missed there.
        let known = self.compartments();
        let of = |guid: Guid| known.iter().filter(|(_, (own, _))| *own == guid).map(|(id, _)| id.clone()).collect();
        if let Change::Event(event) = change {
            match namespace_of(event) {
                AffectedNamespaces::None => return Some(Vec::new()),
                AffectedNamespaces::One(guid) => return Some(of(guid)),
                AffectedNamespaces::All => {}
            }
        }
        match self.network.namespaces().await {
            Ok(there) => {
                let suspicious = |(guid, troubled): (Guid, bool)| troubled || there.get(&guid).copied().unwrap_or(0) == 0;
                Some(known.into_iter().filter(|(_, sandbox)| suspicious(*sandbox)).map(|(id, _)| id).collect())
            }
            Err(error) => {
                tracing::debug!(error = %error.as_report(), "cannot list the namespaces of HNS");
                None
            }
        }
    }

    /// Checks one sandbox, and repairs its network.
    async fn check(&self, id: &str) -> CheckOutcome {
        let Some((_, turn)) = self.sandbox_turn(id) else { return CheckOutcome::Done };
        let Ok(_turn) = turn.try_lock() else { return CheckOutcome::Again };
        let Some((record, guid)) = self.connected(id) else { return CheckOutcome::Done };
        match self.network.endpoints(&guid).await {
            Ok(Some(0)) => self.set_problem(&record, Some(NetworkProblem::Repairing(format!("HNS has lost the endpoint in namespace {guid}")))),
            Ok(Some(_)) => {}
            Ok(None) => {
                self.set_problem(&record, Some(NetworkProblem::Lost(format!("HNS has lost namespace {guid} and with it the pod's compartment"))));
                return CheckOutcome::Done;
            }
            Err(error) if error.is_service_down() => return CheckOutcome::Again,
            Err(error) => return CheckOutcome::Refused(error.to_string()),
        }
        let checked = self.network.check(&record).await;
        let Err(error) = checked else {
            // Plug-ins of others may find nothing wrong and repair nothing.
            return match self.network.endpoints(&guid).await {
                Ok(Some(1..)) => {
                    self.set_problem(&record, None);
                    CheckOutcome::Done
                }
                Ok(_) => CheckOutcome::Refused(format!("CNI finds nothing wrong, but HNS has no endpoint in namespace {guid}")),
                Err(_) => CheckOutcome::Again,
            };
        };
        let code = error.code();
        let reason = format!("{:#}", anyhow::Error::new(error));
        match code {
            Some(code::DRIFT) => {
                self.set_problem(&record, Some(NetworkProblem::Lost(reason)));
                CheckOutcome::Done
            }
            Some(code::TRY_AGAIN) => {
                self.set_problem(&record, Some(NetworkProblem::Repairing(reason)));
                CheckOutcome::Again
            }
            _ => {
                self.set_problem(&record, Some(NetworkProblem::Repairing(reason.clone())));
                CheckOutcome::Refused(reason)
            }
        }
    }

    /// The record and namespace of a sandbox that is ready.
    fn connected(&self, id: &str) -> Option<(SandboxRecord, Guid)> {
        let state = self.state();
        let sandbox = state.sandboxes.get(id).filter(|sandbox| sandbox.is_ready())?;
        let Netns::Hcn(guid) = sandbox.record.netns else { return None };
        Some((sandbox.record.clone(), guid))
    }

    /// Records what is wrong with a sandbox's network, and sends an event.
    fn set_problem(&self, record: &SandboxRecord, problem: Option<NetworkProblem>) {
        let kind = {
            let mut state = self.state();
            let Some(sandbox) = state.sandboxes.get_mut(&record.id) else { return };
            // A new reason while the same repair goes on changes nothing.
            let same = match (&sandbox.problem, &problem) {
                (Some(NetworkProblem::Repairing(_)), Some(NetworkProblem::Repairing(_))) => true,
                (old, new) => old == new,
            };
            sandbox.problem.clone_from(&problem);
            if same {
                return;
            }
            if problem.is_none() { ContainerEventType::ContainerStartedEvent } else { ContainerEventType::ContainerStoppedEvent }
        };
        let metadata = record.config.metadata.clone().unwrap_or_default();
        let pod = format!("{}/{}", metadata.namespace, metadata.name);
        match &problem {
            None => tracing::info!(pod, sandbox = record.id, "the sandbox's network works again"),
            Some(NetworkProblem::Repairing(reason)) => tracing::warn!(pod, sandbox = record.id, reason, "the sandbox has no network; repairing it"),
            Some(NetworkProblem::Lost(reason)) => {
                tracing::warn!(pod, sandbox = record.id, reason, "the sandbox has lost its network and is not ready")
            }
        }
        self.changed(&record.id, &record.id, kind);
    }

    /// Gives a repair up.
    fn give_up(&self, id: &str, reason: String) {
        if let Some((record, _)) = self.connected(id) {
            self.set_problem(&record, Some(NetworkProblem::Lost(format!("the sandbox's network cannot be repaired: {reason}"))));
        }
    }
}

/// The namespaces that an event affects.
enum AffectedNamespaces {
    None,
    One(Guid),
    All,
}

fn namespace_of(event: &Event) -> AffectedNamespaces {
    let data: serde_json::Value = event.data.as_deref().and_then(|data| serde_json::from_str(data).ok()).unwrap_or_default();
    let guid = |value: &serde_json::Value| value.as_str().and_then(|text| text.parse::<Guid>().ok());
    let namespace = match event.event_type {
        Event::NAMESPACE_DELETE => guid(&data["ID"]),
        Event::ENDPOINT_DETACHED => guid(&data["Data"]["Namespace"]),
        Event::NETWORK_DELETE => None,
        _ => return AffectedNamespaces::None,
    };
    namespace.map_or(AffectedNamespaces::All, AffectedNamespaces::One)
}

/// Looks at sandboxes when HNS reports a change, and again at those that are under repair.
async fn follow(runtime: Weak<Runtime>, mut listener: Listener) {
    let mut pending: BTreeMap<String, u32> = BTreeMap::new();
    // HNS did not say which sandboxes have a network.
    let mut unread = false;
    loop {
        let change = if pending.is_empty() && !unread {
            Some(listener.next().await)
        } else {
            tokio::time::timeout(AGAIN, listener.next()).await.ok().or(unread.then_some(Change::All))
        };
        let Some(runtime) = runtime.upgrade() else { return };
        if let Some(change) = change {
            let suspects = runtime.suspects(&if unread { Change::All } else { change }).await;
            unread = suspects.is_none();
            for id in suspects.into_iter().flatten() {
                pending.entry(id).or_default();
            }
        }
        let looks = futures::stream::iter(std::mem::take(&mut pending)).map(async |(id, refusals)| {
            let outcome = runtime.check(&id).await;
            (id, refusals, outcome)
        });
        let outcomes: Vec<_> = looks.buffer_unordered(AT_ONCE).collect().await;
        for (id, refusals, outcome) in outcomes {
            match outcome {
                CheckOutcome::Done => {}
                CheckOutcome::Again => drop(pending.insert(id, refusals)),
                CheckOutcome::Refused(_) if refusals + 1 < REFUSALS => drop(pending.insert(id, refusals + 1)),
                CheckOutcome::Refused(reason) => runtime.give_up(&id, reason),
            }
        }
    }
}
