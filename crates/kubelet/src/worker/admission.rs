//! Whether the node takes the pod, and what ends for it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cluster::EventType;
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube_rules::Refusal;

use super::{Note, Worker};
use crate::agent::ends::End;
use crate::cri_config::admit_app_armor;
use crate::eviction;
use crate::pod::admit::{NodeView, admit, admit_but_resources, shortages};
use crate::pod::{Event, Evicted, Reason, grace};
use crate::preemption::{self, Candidate};

/// The least that an end of a pod is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the node says to a pod.
enum Verdict {
    Taken,
    Refused(Refusal),
    /// It takes the pod once these have ended, for want of this resource.
    Preempts(Vec<Candidate>, String),
}

impl Worker {
    /// Decides whether the node takes the pod. A pod that has run here is not asked again.
    pub(super) async fn admit(&mut self) -> Result<(), Refusal> {
        let pod = self.state.pod.clone();
        // A class that cannot be read is reported when the sandbox is made.
        let handler = self.handler().await.unwrap_or_default();
        let side = &self.agent.side;
        let isolated = side.isolates(&pod) || (side.os.is_windows() && handler.contains("hypervisor"));
        // Before the lock: plug-ins take their time.
        if self.is_new()
            && self.refused_under_pressure(&pod).is_none()
            && let Err(refusal) = self.agent.devices.admit(&pod).await
        {
            return Err(self.refuse(refusal));
        }
        let mut preempted = BTreeSet::new();
        // Each round ends pods that were there at the last one.
        loop {
            match self.decide(&pod, isolated, &preempted) {
                Verdict::Taken => return Ok(()),
                Verdict::Refused(refusal) => return Err(self.refuse(refusal)),
                Verdict::Preempts(victims, resource) => {
                    self.preempt(&victims, &resource).await;
                    preempted.extend(victims.into_iter().map(|victim| victim.uid));
                }
            }
        }
    }

    fn has_ended(&self) -> bool {
        let phase = self.state.pod.status.as_ref().and_then(|s| s.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    }

    /// Whether nothing of the pod has run on the node, and something is to.
    fn is_new(&self) -> bool {
        let status = self.state.pod.status.as_ref();
        let ran = status.and_then(|s| s.container_statuses.as_ref()).is_some_and(|l| !l.is_empty());
        !ran && !self.has_ended() && !self.state.is_ending()
    }

    fn refused_under_pressure(&self, pod: &Pod) -> Option<Refusal> {
        eviction::admit(pod, self.is_static, &self.agent.pressures.borrow()).filter(|_| self.is_new())
    }

    /// What was set aside for the pod is free again.
    fn refuse(&self, refusal: Refusal) -> Refusal {
        self.agent.devices.release(&self.uid);
        self.agent.timings.rejection(&refusal.reason);
        self.event(None, EventType::Warning, &refusal.reason, refusal.message.clone());
        refusal
    }

    /// `preempted` are pods that end for this one.
    fn decide(&self, pod: &Arc<Pod>, isolated: bool, preempted: &BTreeSet<String>) -> Verdict {
        let agent = &self.agent;
        if self.has_ended() {
            return Verdict::Taken;
        }
        if let Some(refusal) = self.refused_under_pressure(pod) {
            return Verdict::Refused(refusal);
        }
        let mut admitted = agent.admitted();
        if self.is_new() {
            let node = agent.node.get(cluster::Key::cluster(&agent.side.node_name));
            let mut allocatable = agent.allocatable.clone();
            agent.devices.add_allocatable(&mut allocatable);
            let side = &agent.side;
            if !side.os.is_windows()
                && let Err(refusal) = admit_app_armor(pod, side.modules)
            {
                return Verdict::Refused(refusal);
            }
            let view = NodeView {
                os: agent.side.os,
                node: node.as_deref(),
                allocatable: &allocatable,
                isolated,
                unsafe_sysctls: &side.unsafe_sysctls,
                groups_policy: agent.health.borrow().groups_policy,
                is_static: self.is_static,
            };
            let others = admitted.iter().filter(|(uid, _)| !preempted.contains(*uid));
            let pods = others.clone().map(|(_, other)| &**other);
            if !eviction::is_critical(pod, self.is_static) {
                if let Err(refusal) = admit(pod, &view, pods) {
                    return Verdict::Refused(refusal);
                }
            } else if let Err(refusal) = admit_but_resources(pod, &view, pods.clone()) {
                return Verdict::Refused(refusal);
            } else if let Some(first) = shortages(pod, view.allocatable, pods.clone()).first() {
                let candidate =
                    |(uid, pod): (&String, &Arc<Pod>)| Candidate { uid: uid.clone(), pod: pod.clone(), is_static: agent.statics.holds(uid) };
                let candidates: Vec<_> = others.map(candidate).collect();
                let short = shortages(pod, view.allocatable, pods);
                return match preemption::choose(pod, self.is_static, &short, &candidates) {
                    Ok(victims) => Verdict::Preempts(victims, first.name.clone()),
                    Err(refusal) => Verdict::Refused(refusal),
                };
            }
            if *agent.goes_down.borrow() {
                let message = "Pod was rejected as the node is shutting down.".to_owned();
                return Verdict::Refused(Refusal { reason: "NodeShutdown".into(), message });
            }
        }
        admitted.insert(self.uid.clone(), pod.clone());
        Verdict::Taken
    }

    /// Ends pods in favour of this one, and waits for that as long as they may take and half as long again. As upstream, one that takes longer
    /// does not keep a critical pod from its place.
    async fn preempt(&self, victims: &[Candidate], resource: &str) {
        let ends = victims.iter().map(|victim| async move {
            tracing::warn!(pod = %crate::agent::key(&victim.pod), "ending a pod so that a critical one has room");
            let own = grace(&victim.pod);
            let evicted = Evicted {
                reason: Reason::Preempting,
                message: preemption::MESSAGE.to_owned(),
                grace: own,
                disruption: Some(preemption::DISRUPTION.to_owned()),
            };
            self.agent.workers.tell(&victim.uid, Note::Done(Event::Evicted(evicted)));
            let own = Duration::from_secs(own.unsigned_abs());
            let limit = PATIENCE.max(own.saturating_add(own / 2));
            match tokio::time::timeout(limit, self.agent.reached(&victim.uid, End::Stopped)).await {
                Ok(()) => self.agent.counts.preemption(resource),
                Err(_) => tracing::warn!(pod = %crate::agent::key(&victim.pod), "a pod did not end in time for a critical one"),
            }
        });
        join_all(ends).await;
    }
}
