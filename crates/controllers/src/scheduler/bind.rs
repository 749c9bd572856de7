//! Writes the scheduler's decisions: volumes first, then the pod's node, or the reason why no node fits.

use std::time::Duration;

use anyhow::Context as _;
use cluster::{EventRecorder, EventType, Key, is_conflict, is_not_found};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::{Binding, ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod},
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::{Value, json};

use super::{
    Budget, Progress, Room, Sacrifice, Scheduler, VOLUMES_TIMEOUT, Waiting, World, locked, make_room,
    rows::PodRow,
    volumes::{self, Step},
};
use crate::{runner::Next, storage};
use kube_rules::Selector;

fn reference(key: &Key, pod: &PodRow) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(key.ns.clone()),
        name: Some(key.name.clone()),
        uid: Some(pod.uid.clone()),
        ..Default::default()
    }
}

fn budget(budget: &PodDisruptionBudget) -> Budget {
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    Budget {
        ns: budget.metadata.namespace.clone().unwrap_or_default(),
        selector: Selector::optional(selector),
        allowed: budget.status.as_ref().and_then(|status| status.disruptions_allowed).unwrap_or_default().into(),
        disrupted: budget.status.iter().flat_map(|status| status.disrupted_pods.iter().flatten()).map(|(name, _)| name.clone()).collect(),
    }
}

impl Scheduler {
    /// Reports in the name of a profile.
    fn events(&self, scheduler: &str) -> &EventRecorder {
        self.recorders.get(scheduler).unwrap_or(&self.events)
    }

    /// Writes what the pod's claims need on its node; the pod is bound when they are.
    pub(super) async fn provide(&self, key: &Key, pod: &PodRow, node: &str, steps: &[Step]) -> anyhow::Result<Next> {
        // Volumes can take long: others, such as autoscalers of nodes, see meanwhile where the pod is going (upstream: `bindingCycle`).
        if let Err(error) = self.nominate(key, pod, Some(node)).await {
            tracing::debug!(pod = %key, error = format!("{error:#}"), "the pod does not say where it is going");
        }
        for step in steps {
            tracing::debug!(pod = %key, node, "{step}");
            if let Err(error) = self.write(step, node).await {
                self.give_up(key, pod);
                return Err(error).with_context(|| format!("{step} for {key}"));
            }
        }
        Ok(Next::Within(VOLUMES_TIMEOUT))
    }

    async fn write(&self, step: &Step, node: &str) -> anyhow::Result<()> {
        match step {
            Step::Give { claim, volume } => {
                let row = self.sources.storage.claims.get(claim).context("the claim is gone")?;
                let found = self.sources.storage.volumes.get(Key::cluster(volume)).context("the volume is gone")?;
                let patch = storage::reservation(claim, &row, &found.version, found.claim.is_none());
                let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
                storage::patch_volume(&volumes, volume, &patch).await?;
            }
            Step::Make { claim } => {
                let row = self.sources.storage.claims.get(claim).context("the claim is gone")?;
                if row.selected_node.as_deref() == Some(node) {
                    return Ok(());
                }
                let annotations = json!({storage::rows::SELECTED_NODE: node});
                let patch = json!({"metadata": {"uid": row.uid, "resourceVersion": row.version, "annotations": annotations}});
                let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &claim.ns);
                claims.patch(&claim.name, &PatchParams::default(), &Patch::Merge(patch)).await?;
            }
        }
        Ok(())
    }

    /// Checks the volumes of a pod whose node is chosen.
    pub(super) async fn follow_up(&self, key: &Key, pod: &PodRow, waiting: &Waiting) -> anyhow::Result<Next> {
        let progress = {
            let state = locked(&self.state);
            let profile = self.profiles.get(&pod.scheduler).cloned().unwrap_or_default();
            let world = World::of(pod, &profile, &self.sources, &state.given);
            volumes::progress(pod, &world, &waiting.node, state.cache.node(&waiting.node))
        };
        let left = VOLUMES_TIMEOUT.saturating_sub(waiting.since.elapsed());
        match progress {
            Progress::Done => {
                locked(&self.state).waiting.remove(key);
                self.bind(key, pod, &waiting.node).await
            }
            Progress::Waiting if !left.is_zero() => Ok(Next::Within(left)),
            Progress::Waiting | Progress::Lost => {
                self.give_up(key, pod);
                let why = if left.is_zero() { "context deadline exceeded" } else { "provisioning failed" };
                self.withdraw(key, pod).await;
                let message = format!("running PreBind plugin \"VolumeBinding\": binding volumes: {why}");
                self.events(&pod.scheduler).event(&reference(key, pod), EventType::Warning, "FailedScheduling", Some("Scheduling"), message);
                anyhow::bail!("the volumes of {key} did not come about on {}: {why}", waiting.node)
            }
        }
    }

    /// Asks less important pods to make room. They go with their grace; the pod holds its place until they are gone.
    pub(super) async fn preempt(&self, key: &Key, pod: &PodRow) -> anyhow::Result<Next> {
        let budgets = Api::<PodDisruptionBudget>::all(self.client.clone()).list(&ListParams::default()).await;
        let budgets: Vec<Budget> = budgets.context("looking for disruption budgets")?.items.iter().map(budget).collect();
        let profile = self.profiles.get(&pod.scheduler).cloned().unwrap_or_default();
        let room = make_room(&mut locked(&self.state), &self.sources, &profile, key, pod, &budgets);
        match room {
            // The pod's turn comes again at once.
            Room::Found => Ok(Next::Within(Duration::ZERO)),
            Room::None { why } => {
                // The place that others were to make is void.
                self.nominate(key, pod, None).await?;
                self.refuse(key, pod, &why).await
            }
            Room::Make { sacrifice, why } => {
                tracing::debug!(pod = %key, node = sacrifice.node, victims = ?sacrifice.victims, "others make room");
                if let Err(error) = self.clear(key, pod, &sacrifice).await {
                    self.give_up(key, pod);
                    return Err(error);
                }
                self.refuse(key, pod, &why).await
            }
        }
    }

    async fn clear(&self, key: &Key, pod: &PodRow, sacrifice: &Sacrifice) -> anyhow::Result<()> {
        self.nominate(key, pod, Some(&sacrifice.node)).await?;
        for victim in &sacrifice.victims {
            self.sacrifice(victim, pod, &sacrifice.node).await?;
        }
        Ok(())
    }

    /// Notes the node that a pod is to go to; none when that is void.
    async fn nominate(&self, key: &Key, pod: &PodRow, node: Option<&str>) -> anyhow::Result<()> {
        if pod.nominated.as_deref() == node {
            return Ok(());
        }
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &key.ns);
        let patch = json!({"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": node}});
        match pods.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Err(error) if !is_not_found(&error) && !is_conflict(&error) => Err(error).with_context(|| format!("noting the nominated node of {key}")),
            _ => Ok(()),
        }
    }

    /// The choice of a node came to nothing: what the API says of it is withdrawn, if that can be done.
    async fn withdraw(&self, key: &Key, pod: &PodRow) {
        if let Err(error) = self.nominate(key, pod, None).await {
            tracing::debug!(pod = %key, error = format!("{error:#}"), "the pod still names a node that it does not go to");
        }
    }

    async fn sacrifice(&self, victim: &Key, pod: &PodRow, node: &str) -> anyhow::Result<()> {
        let Some(row) = self.pods.get(victim).filter(|row| !row.deleting) else { return Ok(()) };
        if row.node.is_empty() {
            // It only held a place, which it has lost already.
            return self.nominate(victim, &row, None).await;
        }
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &victim.ns);
        let now = Timestamp::from_second(Timestamp::now().as_second()).context("reading the clock")?;
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
            "message": format!("{}: preempting to accommodate a higher priority pod", pod.scheduler), "lastTransitionTime": Time(now),
        });
        let patch = json!({"metadata": {"uid": row.uid}, "status": {"conditions": [condition]}});
        let gone = |error: &kube::Error| is_not_found(error) || is_conflict(error);
        match pods.patch_status(&victim.name, &PatchParams::default(), &Patch::Strategic(patch)).await {
            Err(error) if gone(&error) => return Ok(()),
            other => other.with_context(|| format!("noting why {victim} goes"))?,
        };
        let preconditions = Some(Preconditions { uid: Some(row.uid.clone()), resource_version: None });
        match pods.delete(&victim.name, &DeleteParams { preconditions, ..DeleteParams::default() }).await {
            Err(error) if gone(&error) => return Ok(()),
            other => other.map(|_| ()).with_context(|| format!("deleting {victim}"))?,
        }
        let message = format!("Preempted by pod {} on node {node}", pod.uid);
        self.events(&pod.scheduler).event(&reference(victim, &row), EventType::Normal, "Preempted", Some("Preempting"), message);
        Ok(())
    }

    /// The choice is void: the next attempt starts afresh.
    fn give_up(&self, key: &Key, pod: &PodRow) {
        let mut state = locked(&self.state);
        state.cache.forget(key);
        state.waiting.remove(key);
        state.preempting.remove(key);
        let own = |claim: &Key| claim.ns == key.ns && pod.claims.iter().any(|one| one.name == claim.name);
        state.given.retain(|_, claim| !own(claim));
    }

    pub(super) async fn bind(&self, key: &Key, pod: &PodRow, node: &str) -> anyhow::Result<Next> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &key.ns);
        let binding = Binding {
            metadata: ObjectMeta { name: Some(key.name.clone()), namespace: Some(key.ns.clone()), uid: Some(pod.uid.clone()), ..Default::default() },
            target: ObjectReference { kind: Some("Node".to_owned()), name: Some(node.to_owned()), ..Default::default() },
        };
        match pods.create_subresource::<_, Value>("binding", &key.name, &PostParams::default(), &binding).await {
            Ok(_) => {
                let message = format!("Successfully assigned {key} to {node}");
                self.events(&pod.scheduler).event(&reference(key, pod), EventType::Normal, "Scheduled", Some("Binding"), message);
                Ok(Next::Change)
            }
            Err(error) => {
                self.give_up(key, pod);
                // Someone bound, replaced or deleted it: the informer reports it.
                if is_not_found(&error) || is_conflict(&error) {
                    Ok(Next::Change)
                } else {
                    self.withdraw(key, pod).await;
                    Err(error).with_context(|| format!("binding {key} to {node}"))
                }
            }
        }
    }

    pub(super) async fn refuse(&self, key: &Key, pod: &PodRow, why: &str) -> anyhow::Result<Next> {
        self.events(&pod.scheduler).event(&reference(key, pod), EventType::Warning, "FailedScheduling", Some("Scheduling"), why);
        if pod.unschedulable.as_deref() == Some(why) {
            return Ok(Next::Change);
        }
        let now = Timestamp::from_second(Timestamp::now().as_second()).context("reading the clock")?;
        let condition = json!({
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why,
            "lastProbeTime": Value::Null, "lastTransitionTime": pod.unscheduled_since.map_or(Time(now), Time),
        });
        let patch = json!({"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}});
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &key.ns);
        match pods.patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(patch)).await {
            Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(Next::Change),
            other => other.map(|_| Next::Change).with_context(|| format!("noting that {key} fits nowhere")),
        }
    }
}
