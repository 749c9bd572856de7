//! The loop: observes signals and usage, and has images removed or a pod ended.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use cluster::EventType;
use cri::labels::{CONTAINER_NAME, POD_UID};
use cri::v1;
use host::{Available, HostError, Load, Space};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use thiserror_ext::AsReport as _;
use tokio::sync::watch;

use super::plan::{self, Observations, State};
use super::rank::{self, Candidate, ContainerUse, PodUse};
use super::{Eviction, Pressure, Signal, Threshold};
use crate::agent::Agent;
use crate::config::DeadContainers;
use crate::image_gc::Collector;
use crate::pod::{Event, Evicted};
use crate::volumes::PodDirs;
use crate::worker::Note;

/// The eviction manager of a node.
pub(crate) struct Manager {
    pub agent: Arc<Agent>,
    pub config: Eviction,
    /// Which dead containers stay.
    pub dead: DeadContainers,
    pub collector: Arc<Collector>,
    /// The node is the machine that we run on, whose load counts; else pods alone use the memory that the node declares.
    pub is_machine: bool,
    /// Bytes of memory that pods do not get.
    pub reserved_memory: u64,
    /// What the Node's conditions say.
    pub pressures: watch::Sender<BTreeSet<Pressure>>,
}

/// Usage of the runtime's containers by pod UID.
type Uses = BTreeMap<String, PodUse>;

impl Manager {
    /// Looks again and again, for ever.
    pub(crate) async fn keep(self) {
        let mut state = State::default();
        let mut evicting = BTreeSet::new();
        loop {
            Box::pin(self.pass(&mut state, &mut evicting)).await;
            tokio::time::sleep(self.config.interval).await;
        }
    }

    async fn pass(&self, state: &mut State, evicting: &mut BTreeSet<String>) {
        let pods: Vec<(String, Arc<Pod>)> = self.agent.admitted().iter().map(|(uid, pod)| (uid.clone(), pod.clone())).collect();
        // One that has ended holds nothing any more.
        evicting.retain(|uid| pods.iter().any(|(known, _)| known == uid));
        if self.config.thresholds.is_empty() && !pods.iter().any(|(_, pod)| rank::has_limits(pod)) {
            return;
        }
        let uses = self.uses_or_warning().await;
        let (seen, dedicated) = self.observe(uses.as_ref()).await;
        let due = plan::observe(&self.config, state, &seen, Timestamp::now());
        self.pressures.send_if_modified(|old| {
            let changed = *old != state.pressures;
            old.clone_from(&state.pressures);
            changed
        });
        let active: Vec<(String, Arc<Pod>)> = pods.into_iter().filter(|(uid, _)| !evicting.contains(uid)).collect();
        let over = self.candidates(&active, uses.as_ref(), rank::has_limits).await;
        let over: Vec<_> = over.iter().filter_map(|c| Some((c.uid.clone(), rank::over_limit(c, dedicated)?))).collect();
        if !over.is_empty() {
            for (uid, (limit, evicted)) in over {
                self.evict(evicting, uid, evicted, limit);
            }
            return;
        }
        let Some(threshold) = due.first() else { return };
        // What ends already may be enough.
        if !evicting.is_empty() {
            return;
        }
        self.event("EvictionThresholdMet", format!("Attempting to reclaim {}", threshold.signal.resource()));
        if self.reclaim(threshold, dedicated).await {
            let uses = self.uses_or_warning().await;
            if !plan::is_short(&self.config, &self.observe(uses.as_ref()).await.0) {
                return;
            }
        }
        let mut candidates = self.candidates(&active, uses.as_ref(), |_| threshold.signal.pressure() == Pressure::Disk).await;
        if threshold.signal == Signal::Pids {
            self.add_pids(&mut candidates).await;
        }
        rank::rank(&mut candidates, threshold.signal, dedicated);
        match rank::choose(&candidates, threshold, &seen, &self.config) {
            Some((uid, evicted)) => self.evict(evicting, uid, evicted, threshold.signal.name()),
            None => tracing::warn!(signal = threshold.signal.name(), "the node is short of a resource, and no pod can be evicted: all are critical"),
        }
    }

    /// `cause` is a signal or a limit.
    fn evict(&self, evicting: &mut BTreeSet<String>, uid: String, evicted: Evicted, cause: &str) {
        tracing::warn!(pod = uid, "evicting a pod: {}", evicted.message.trim_end());
        self.agent.workers.tell(&uid, Note::Done(Event::Evicted(evicted)));
        self.agent.counts.eviction(cause);
        evicting.insert(uid);
    }

    fn event(&self, reason: &str, message: String) {
        self.agent.node_event(EventType::Warning, reason, message);
    }

    /// What containers take; None while the runtime does not say. Disks and process ids are judged without it.
    async fn uses_or_warning(&self) -> Option<Uses> {
        let failed = |error: &cri::Error| {
            tracing::warn!(error = %error.as_report(), "cannot see what containers use; judging the node without it, and trying again");
        };
        self.uses().await.inspect_err(failed).ok()
    }

    /// What containers take, as the runtime measures it.
    async fn uses(&self) -> Result<Uses, cri::Error> {
        let value = |v: &Option<v1::UInt64Value>| v.as_ref().map_or(0, |v| v.value);
        let mut uses = Uses::new();
        for stats in self.agent.cri.list_container_stats(v1::ListContainerStatsRequest { filter: None }).await? {
            let labels: HashMap<String, String> = stats.attributes.map(|a| a.labels).unwrap_or_default();
            let Some(uid) = labels.get(POD_UID) else { continue };
            let layer = stats.writable_layer.unwrap_or_default();
            let container = ContainerUse {
                name: labels.get(CONTAINER_NAME).cloned().unwrap_or_default(),
                memory: stats.memory.map_or(0, |m| value(&m.working_set_bytes)),
                rootfs: value(&layer.used_bytes),
                rootfs_inodes: value(&layer.inodes_used),
                logs: 0,
            };
            uses.entry(uid.clone()).or_default().containers.push(container);
        }
        Ok(uses)
    }

    /// The signals, and whether images have a file system of their own.
    async fn observe(&self, uses: Option<&Uses>) -> (Observations, bool) {
        let load = self.is_machine.then(|| Load::read().inspect_err(|error| tracing::warn!(%error, "the machine's load cannot be read")).ok());
        let nodefs = self.agent.root.space(&self.agent.dir).ok();
        let imagefs = self.collector.space().await.ok();
        let sum = |uses: &Uses| uses.values().flat_map(|u| &u.containers).map(|c| c.memory).fold(0, u64::saturating_add);
        let measured =
            Measured { memory: self.agent.side.capacity.memory_bytes, reserved: self.reserved_memory, used: uses.map(sum), load, nodefs, imagefs };
        let size = |space: Option<Space>| space.map(|s| (s.capacity, s.inodes));
        (measured.signals(), imagefs.is_some() && size(imagefs) != size(nodefs))
    }

    /// Gives back what no pod has to end for. Returns whether there was anything to try.
    async fn reclaim(&self, threshold: &Threshold, dedicated_imagefs: bool) -> bool {
        let on_images = match threshold.signal {
            Signal::Imagefs | Signal::ImagefsInodes => true,
            Signal::Nodefs | Signal::NodefsInodes => !dedicated_imagefs,
            Signal::Memory | Signal::AllocatableMemory | Signal::Pids => false,
        };
        if on_images && let Err(error) = self.agent.collect_dead(&self.dead, true).await {
            tracing::warn!(error = %error.as_report(), "cannot remove dead containers");
        }
        if on_images && let Err(error) = self.collector.remove_unused().await {
            tracing::warn!(error = %error.as_report(), "cannot remove unused images");
        }
        on_images
    }

    /// Pods with what they take; their files are measured for those of which `measured` says so.
    async fn candidates(&self, pods: &[(String, Arc<Pod>)], uses: Option<&Uses>, measured: impl Fn(&Pod) -> bool) -> Vec<Candidate> {
        let mut out = Vec::new();
        for (uid, pod) in pods {
            let mut usage = match uses {
                Some(uses) => uses.get(uid).cloned(),
                None => Some(unmeasured(pod)),
            };
            if let Some(known) = usage.take_if(|_| measured(pod)) {
                let (agent, of) = (self.agent.clone(), pod.clone());
                let filled = tokio::task::spawn_blocking(move || {
                    with_files(&agent, &of, known.clone()).unwrap_or_else(|error| {
                        tracing::warn!(pod = %crate::agent::key(&of), error = %error.as_report(), "a pod's files cannot be measured");
                        known
                    })
                });
                usage = filled.await.ok();
            }
            let is_static = self.agent.statics.holds(uid);
            out.push(Candidate { uid: uid.clone(), pod: pod.clone(), is_static, usage });
        }
        out
    }

    /// Adds the numbers of processes, which the runtime counts by sandbox.
    async fn add_pids(&self, candidates: &mut [Candidate]) {
        let Ok(all) = self.agent.cri.list_pod_sandbox_stats(v1::ListPodSandboxStatsRequest { filter: None }).await else { return };
        for stats in all {
            let uid = stats.attributes.as_ref().and_then(|a| a.labels.get(POD_UID)).cloned().unwrap_or_default();
            let count = stats.linux.and_then(|l| l.process?.process_count).map_or(0, |v| v.value);
            if let Some(usage) = candidates.iter_mut().find(|c| c.uid == uid).and_then(|c| c.usage.as_mut()) {
                usage.pids = count;
            }
        }
    }
}

/// What was measured of a node; what could not be is None.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Measured {
    /// Bytes that the node declares.
    pub memory: u64,
    /// Bytes that pods do not get.
    pub reserved: u64,
    /// Bytes that containers take.
    pub used: Option<u64>,
    /// None of a node that is not the machine that we run on.
    pub load: Option<Option<Load>>,
    pub nodefs: Option<Space>,
    pub imagefs: Option<Space>,
}

impl Measured {
    /// The signals that can be judged.
    pub(super) fn signals(self) -> Observations {
        let mut seen = Observations::new();
        let of = |capacity: u64| self.used.map(|used| Available { capacity, available: capacity.saturating_sub(used) });
        seen.extend(of(self.memory.saturating_sub(self.reserved)).map(|left| (Signal::AllocatableMemory, left)));
        match self.load {
            Some(load) => {
                seen.extend(load.iter().map(|load| (Signal::Memory, load.memory)));
                seen.extend(load.and_then(|load| load.pids).map(|pids| (Signal::Pids, pids)));
            }
            None => seen.extend(of(self.memory).map(|left| (Signal::Memory, left))),
        }
        add(&mut seen, self.nodefs, Signal::Nodefs, Signal::NodefsInodes);
        add(&mut seen, self.imagefs, Signal::Imagefs, Signal::ImagefsInodes);
        seen
    }
}

/// The usage of a pod while the runtime does not say: its containers, whose files the agent can measure itself.
pub(super) fn unmeasured(pod: &Pod) -> PodUse {
    let spec = pod.spec.as_ref();
    let names = spec.into_iter().flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers)).map(|c| c.name.clone());
    PodUse { containers: names.map(|name| ContainerUse { name, ..ContainerUse::default() }).collect(), ..PodUse::default() }
}

fn add(seen: &mut Observations, space: Option<Space>, bytes: Signal, inodes: Signal) {
    let Some(space) = space.filter(|space| space.capacity > 0) else { return };
    seen.insert(bytes, Available { capacity: space.capacity, available: space.available });
    if space.inodes > 0 {
        seen.insert(inodes, Available { capacity: space.inodes, available: space.inodes_free });
    }
}

/// Adds what the pod's volumes, logs and other files take.
fn with_files(agent: &Agent, pod: &Pod, mut used: PodUse) -> Result<PodUse, HostError> {
    let (root, dirs) = (&*agent.root, PodDirs::new(&agent.dir, &agent.logs, pod)?);
    for volume in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
        let Some((path, is_local)) = dirs.measured(volume)?.filter(|(_, is_local)| *is_local || volume.empty_dir.is_some()) else { continue };
        let usage = root.usage(&path)?;
        if volume.empty_dir.is_some() {
            used.empty_dirs.insert(volume.name.clone(), usage.bytes);
        }
        if is_local {
            used.local = used.local.saturating_add(usage.bytes);
            used.local_inodes = used.local_inodes.saturating_add(usage.inodes);
        }
    }
    for container in &mut used.containers {
        let usage = root.usage(&dirs.logs.join(&container.name)?)?;
        container.logs = usage.bytes;
        used.local_inodes = used.local_inodes.saturating_add(usage.inodes);
    }
    let own = dirs.own_usage(root)?;
    used.local = used.local.saturating_add(own.bytes);
    used.local_inodes = used.local_inodes.saturating_add(own.inodes);
    Ok(used)
}
