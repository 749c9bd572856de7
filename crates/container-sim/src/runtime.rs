//! The runtime: its sandboxes and containers, and the operations on them.
//!
//! State is in three places that never contradict each other for long: the records on disk (requests), the
//! shims (processes), and [`State`] (in memory, rebuilt from the other two at start). Operations on one sandbox run
//! one after the other; reading never waits for them.
//!
//! Tasks: one per shim connection (in `shim::client`), [`Runtime::listen`], which processes their notices, and on Windows nodes one that
//! has CNI repair what HNS lost (in `repair`).
//! Channels: `notices` (shims → listen), `events` (runtime → every `GetContainerEvents`).

mod cgroup;
mod container;
mod environment;
mod filter;
mod image_service;
mod isolation;
mod kind;
mod limits;
mod network;
mod node_paths;
mod record;
mod repair;
mod sandbox;
mod service;
mod sessions;
mod start_spec;
mod stats;
mod status;
mod usage;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use anyhow::Result;
use k8s_cri::v1;
use thiserror_ext::AsReport as _;
use tokio::sync::{broadcast, mpsc, watch};
use tonic::Status;

use cgroup::Cgroups;
use filter::by_prefix;
use kind::System;
use network::Network;
use record::{ContainerRecord, Loaded, Records, SandboxRecord};
use repair::NetworkProblem;

use crate::Config;
use crate::shim::client::{Notice, Shim};
use crate::shim::{Exit, now};
use images::Store;
use wine::template::Template;

pub use cgroup::remove_control_groups;
pub use limits::UNENFORCED;
pub(crate) use service::Service;

/// Events kept for a subscriber that is slow; one that falls behind further is cut off and has to list again.
const EVENTS: usize = 256;

pub(crate) struct Runtime {
    config: Config,
    /// What the node's containers have in common.
    system: &'static dyn System,
    store: Store,
    records: Records,
    network: Network,
    cgroups: Cgroups,
    template: Template,
    state: Mutex<State>,
    events: broadcast::Sender<v1::ContainerEventResponse>,
    notices: mpsc::UnboundedSender<Notice>,
    /// Counts changes, so that operations can wait for a container's end.
    changes: watch::Sender<u64>,
    counters: Mutex<stats::Counters>,
    /// Images that are being pulled, by the names that they were asked for.
    pulls: Mutex<image_service::Pulls>,
    /// Tasks that end with the runtime.
    tasks: Mutex<tokio::task::JoinSet<()>>,
}

#[derive(Default)]
struct State {
    sandboxes: BTreeMap<String, Sandbox>,
    containers: BTreeMap<String, ContainerRecord>,
}

struct Sandbox {
    record: SandboxRecord,
    /// None when the shim is gone: the sandbox is not ready.
    shim: Option<Shim>,
    /// Held by the operation that is under way.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// What is wrong with its network.
    problem: Option<NetworkProblem>,
}

impl Sandbox {
    fn is_ready(&self) -> bool {
        self.shim.is_some() && !self.record.stopped && !matches!(self.problem, Some(NetworkProblem::Lost(_)))
    }
}

fn not_found(what: &str, id: &str) -> Status {
    Status::not_found(format!("an error occurred when try to find {what} {id:?}: not found"))
}

/// A failed operation. containerd answers Unknown, and clients read the message.
fn failed(error: &anyhow::Error) -> Status {
    Status::unknown(node_paths::replace(error.to_report_string()))
}

impl Runtime {
    /// A runtime over what `config` names, which knows everything that ran before.
    pub(crate) async fn start(config: Config) -> Result<Arc<Self>> {
        node_paths::register(&config);
        let store = Store::open(&config.state_dir.join("images"), &config.cache_dir, config.os)?;
        let records = Records::open(&config.state_dir)?;
        let network = Network::new(&config)?;
        let loaded = records.load()?;
        let alive: Vec<String> = loaded.containers.iter().filter(|record| record.exit.is_none()).map(|record| record.id.clone()).collect();
        let cgroups = Cgroups::find(&config.state_dir, &alive);
        let template = Template::new(&config.cache_dir, config.template.clone());
        let (notices, receiver) = mpsc::unbounded_channel();
        let runtime = Arc::new(Self {
            system: kind::system(config.os),
            config,
            store,
            records,
            network,
            cgroups,
            template,
            state: Mutex::default(),
            events: broadcast::Sender::new(EVENTS),
            notices,
            changes: watch::Sender::new(0),
            counters: Mutex::default(),
            pulls: Mutex::default(),
            tasks: Mutex::default(),
        });
        let mut valid = loaded.ignored.clone();
        runtime.recover(loaded).await?;
        // Before anybody can ask for a sandbox that the plug-ins would not know to be valid.
        valid.extend(runtime.state().sandboxes.keys().cloned());
        runtime.network.collect(valid).await;
        tokio::spawn(Self::listen(Arc::downgrade(&runtime), receiver));
        runtime.start_network_repair();
        Ok(runtime)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds sandboxes and containers again.
    async fn recover(&self, Loaded { sandboxes, containers, .. }: Loaded) -> Result<()> {
        for record in sandboxes {
            let dir = self.records.sandbox_dir(&record.id);
            let mut shim = if record.stopped { None } else { self.find_shim(&dir, &record.id).await };
            if record.shim_pid == 0
                && let Some(unfinished) = shim.take()
            {
                // The runtime ended while it made this sandbox, whose addresses are lost: the kubelet makes another.
                unfinished.shutdown().await;
            }
            tracing::info!(sandbox = record.id, alive = shim.is_some(), "found a sandbox");
            let sandbox = Sandbox { record, shim, turn: Arc::default(), problem: None };
            self.state().sandboxes.insert(sandbox.record.id.clone(), sandbox);
        }
        for mut record in containers {
            // Read once more: it may have ended between the first reading and the connection to its shim.
            self.records.refresh(&mut record);
            let alive = self.state().sandboxes.get(&record.sandbox).is_some_and(|sandbox| sandbox.shim.is_some());
            if record.is_running() && !alive {
                let exit = lost();
                self.records.write_exit(&record, &exit)?;
                record.exit = Some(exit);
            }
            self.state().containers.insert(record.id.clone(), record);
        }
        Ok(())
    }

    /// The shim of a sandbox, if it runs and answers.
    async fn find_shim(&self, dir: &Path, sandbox: &str) -> Option<Shim> {
        let shim = Shim::connect(dir, sandbox, self.notices.clone()).await.ok()?;
        shim.ping().await.is_ok().then_some(shim)
    }

    /// Processes the notices of shims while there is a runtime.
    async fn listen(runtime: Weak<Self>, mut notices: mpsc::UnboundedReceiver<Notice>) {
        while let Some(notice) = notices.recv().await {
            let Some(runtime) = runtime.upgrade() else { return };
            match notice {
                Notice::Exited { sandbox, id, exit } => runtime.exited(&sandbox, &id, exit),
                Notice::Gone { sandbox } => runtime.gone(&sandbox),
            }
        }
    }

    fn exited(&self, sandbox: &str, id: &str, exit: Exit) {
        {
            let mut state = self.state();
            let Some(container) = state.containers.get_mut(id).filter(|container| container.exit.is_none()) else { return };
            tracing::info!(container = id, sandbox, code = exit.code, "container ended");
            container.exit = Some(exit);
        }
        self.cgroups.remove(id);
        self.changed(id, sandbox, v1::ContainerEventType::ContainerStoppedEvent);
    }

    /// A shim is gone, and the kernel has ended all its containers.
    fn gone(&self, sandbox: &str) {
        let ended: Vec<(String, Exit)> = {
            let mut state = self.state();
            let Some(known) = state.sandboxes.get_mut(sandbox) else { return };
            known.shim = None;
            // The operation that holds the sandbox's turn is about to stop it.
            if !known.record.stopped && known.turn.try_lock().is_ok() {
                tracing::warn!(sandbox, "the sandbox's shim is gone");
            }
            let running = state.containers.values_mut().filter(|container| container.sandbox == sandbox && container.is_running());
            running
                .map(|container| {
                    self.records.refresh(container);
                    let exit = container.exit.clone().unwrap_or_else(lost);
                    if let Err(error) = self.records.write_exit(container, &exit) {
                        tracing::warn!(container = container.id, error = %error.as_report(), "cannot write down a container's end");
                    }
                    container.exit = None;
                    (container.id.clone(), exit)
                })
                .collect()
        };
        for (id, exit) in ended {
            self.exited(sandbox, &id, exit);
        }
        self.changed(sandbox, sandbox, v1::ContainerEventType::ContainerStoppedEvent);
    }

    /// Wakes waiting operations and sends an event to subscribers.
    fn changed(&self, id: &str, sandbox: &str, kind: v1::ContainerEventType) {
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
        if self.events.receiver_count() > 0 {
            let event = self.event(id, sandbox, kind);
            let _ = self.events.send(event);
        }
    }

    fn event(&self, id: &str, sandbox: &str, kind: v1::ContainerEventType) -> v1::ContainerEventResponse {
        let state = self.state();
        let containers = state.containers.values().filter(|container| container.sandbox == sandbox);
        v1::ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: kind as i32,
            created_at: now(),
            pod_sandbox_status: state.sandboxes.get(sandbox).map(|sandbox| self.sandbox_status(sandbox)),
            containers_statuses: containers.map(|container| self.container_status(container)).collect(),
        }
    }

    /// Waits until a container has ended; false when that takes longer than `limit`.
    async fn ended(&self, id: &str, limit: Duration) -> bool {
        let mut changes = self.changes.subscribe();
        let wait = async {
            while self.state().containers.get(id).is_some_and(ContainerRecord::is_running) {
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::time::timeout(limit, wait).await.is_ok()
    }

    /// The full id, and the lock that operations on the sandbox take in turn.
    fn sandbox_turn(&self, id: &str) -> Option<(String, Arc<tokio::sync::Mutex<()>>)> {
        let state = self.state();
        by_prefix(&state.sandboxes, id).map(|sandbox| (sandbox.record.id.clone(), sandbox.turn.clone()))
    }

    fn container(&self, id: &str) -> Option<ContainerRecord> {
        by_prefix(&self.state().containers, id).cloned()
    }

    fn shim(&self, sandbox: &str) -> Option<Shim> {
        self.state().sandboxes.get(sandbox).and_then(|sandbox| sandbox.shim.clone())
    }
}

/// The end of a container whose exit code is lost: containerd's code for that.
fn lost() -> Exit {
    Exit {
        code: 255,
        signal: None,
        at: now(),
        oom: false,
        message: Some("the sandbox's shim is gone, and with it the container's exit code".to_owned()),
    }
}

/// A new id, as long as containerd's.
fn new_id() -> String {
    format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple())
}
