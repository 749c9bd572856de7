//! Plan for the pods of one StatefulSet: pure (upstream: `updateStatefulSet`).

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::StatefulSetStatus;

use super::{
    claims::{self, OfPod},
    rows::{ClaimRow, SetPod, SetView, Strategy},
};

/// All that the plan is made from.
pub(super) struct Input<'a> {
    pub view: &'a SetView,
    /// The StatefulSet's own pods.
    pub pods: &'a [Arc<SetPod>],
    /// Claims of the namespace, by name.
    pub claims: &'a BTreeMap<String, Arc<ClaimRow>>,
    /// Name of the revision that updates come from, and of the one that they lead to.
    pub current: &'a str,
    pub update: &'a str,
    pub collisions: Option<i32>,
    /// Whether all pods that were created are shown.
    pub settled: bool,
    pub now: Timestamp,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// The claims that are missing, and the pod.
    Create {
        ordinal: i32,
        revision: String,
    },
    /// The claims of a pending pod that are missing, or belong to the wrong owner.
    Claims {
        ordinal: i32,
    },
    /// The name, the volumes or the claims' owners of a pod are wrong.
    Repair {
        ordinal: i32,
    },
    /// The owners of the claims of a pod that goes are wrong.
    Owners {
        ordinal: i32,
    },
    Delete {
        ordinal: i32,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create { ordinal, revision } => write!(f, "create {ordinal} of {revision}"),
            Self::Claims { ordinal } => write!(f, "claims of {ordinal}"),
            Self::Repair { ordinal } => write!(f, "repair {ordinal}"),
            Self::Owners { ordinal } => write!(f, "owners of {ordinal}"),
            Self::Delete { ordinal } => write!(f, "delete {ordinal}"),
        }
    }
}

/// Everything to do now, in this order; after a failure nothing more.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Plan {
    pub steps: Vec<Step>,
    pub status: StatefulSetStatus,
    /// When the next ready pod becomes available by time alone.
    pub recheck: Option<Duration>,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps: Vec<String> = self.steps.iter().map(ToString::to_string).collect();
        write!(f, "{}", if steps.is_empty() { "nothing".to_owned() } else { steps.join(", ") })
    }
}

/// A place that a pod has or gets.
struct Place<'a> {
    ordinal: i32,
    pod: Option<&'a SetPod>,
    revision: String,
}

/// Whether work goes on behind this pod.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    On,
    Stop,
}

/// Compares the pods with what the StatefulSet asks for.
pub(super) fn plan(input: &Input<'_>) -> Plan {
    let mut plan = Plan { status: status(input), recheck: recheck(input), ..Plan::default() };
    if !input.view.deleting && input.settled {
        let places = places(input);
        let mut surplus: Vec<(i32, &SetPod)> = Vec::new();
        surplus.extend(input.pods.iter().filter_map(|pod| Some((pod.ordinal()?, pod.as_ref()))).filter(|(ordinal, _)| !input.view.wants(*ordinal)));
        surplus.sort_by_key(|(ordinal, _)| std::cmp::Reverse(*ordinal));
        if input.keep(&mut plan, &places) == Flow::On && input.scale_down(&mut plan, &places, &surplus) == Flow::On {
            input.roll(&mut plan, &places);
        }
    }
    complete(input.view, &mut plan.status);
    plan
}

fn places<'a>(input: &Input<'a>) -> Vec<Place<'a>> {
    let view = input.view;
    let pods: BTreeMap<i32, &SetPod> = input.pods.iter().filter_map(|pod| Some((pod.ordinal()?, pod.as_ref()))).collect();
    let ordinals = view.start..view.start.saturating_add(view.replicas.max(0));
    ordinals
        .map(|ordinal| {
            let pod = pods.get(&ordinal).copied();
            let revision = pod.map_or_else(|| input.new_revision(ordinal).to_owned(), |pod| pod.revision().to_owned());
            Place { ordinal, pod, revision }
        })
        .collect()
}

impl Input<'_> {
    /// The revision of a new pod: below the partition nothing is updated.
    fn new_revision(&self, ordinal: i32) -> &str {
        match self.view.strategy {
            Strategy::Rolling { partition, .. } if ordinal < self.view.start.saturating_add(partition) => self.current,
            _ => self.update,
        }
    }

    fn is_available(&self, pod: &SetPod) -> bool {
        pod.is_available(self.view.min_ready_seconds, self.now)
    }

    /// Missing, being deleted or not available.
    fn is_unavailable(&self, pod: Option<&SetPod>) -> bool {
        pod.is_none_or(|pod| pod.deleting || !self.is_available(pod))
    }

    fn of_pod<'a>(&self, pod: &'a SetPod, ordinal: i32) -> OfPod<'a> {
        OfPod { name: &pod.name, uid: &pod.uid, surplus: !self.view.wants(ordinal) }
    }

    /// The claims of an ordinal, where they exist.
    fn claims_of(&self, ordinal: i32) -> impl Iterator<Item = Option<&ClaimRow>> {
        self.view.claims.iter().map(move |template| self.claims.get(&self.view.claim_name(template, ordinal)).map(Arc::as_ref))
    }

    fn owners_are_wrong(&self, pod: &SetPod, ordinal: i32) -> bool {
        let of_pod = self.of_pod(pod, ordinal);
        self.claims_of(ordinal).flatten().any(|claim| claims::new_owners(&claim.owners, self.view, of_pod).is_some())
    }

    /// A claim goes with an earlier pod of this name, and has to be gone first.
    fn claim_is_stale(&self, ordinal: i32) -> bool {
        let name = self.view.pod_name(ordinal);
        let pod = OfPod { name: &name, uid: "", surplus: false };
        self.view.retention.delete_with_pod && self.claims_of(ordinal).flatten().any(|claim| claims::is_stale(&claim.owners, pod))
    }

    /// Creates and mends the pods that should be there.
    fn keep(&self, plan: &mut Plan, places: &[Place<'_>]) -> Flow {
        for place in places {
            if self.keep_one(plan, place) == Flow::Stop && !self.view.parallel {
                return Flow::Stop;
            }
        }
        Flow::On
    }

    fn keep_one(&self, plan: &mut Plan, place: &Place<'_>) -> Flow {
        let ordinal = place.ordinal;
        let Some(pod) = place.pod else {
            if !self.claim_is_stale(ordinal) {
                plan.steps.push(Step::Create { ordinal, revision: place.revision.clone() });
            }
            return Flow::Stop;
        };
        if pod.is_finished() {
            if !pod.deleting {
                plan.steps.push(Step::Delete { ordinal });
            }
            return Flow::Stop;
        }
        if pod.phase == "Pending"
            && (self.claims_of(ordinal).any(|claim| claim.is_none_or(|claim| claim.deleting)) || self.owners_are_wrong(pod, ordinal))
        {
            plan.steps.push(Step::Claims { ordinal });
        }
        if !self.view.parallel && (pod.deleting || !pod.is_ready() || !self.is_available(pod)) {
            return Flow::Stop;
        }
        if !self.view.is_in_shape(pod, ordinal) || self.owners_are_wrong(pod, ordinal) {
            plan.steps.push(Step::Repair { ordinal });
        }
        Flow::On
    }

    /// Deletes the pods beyond the wanted ordinals, the highest first.
    fn scale_down(&self, plan: &mut Plan, places: &[Place<'_>], surplus: &[(i32, &SetPod)]) -> Flow {
        let wrong = surplus.iter().filter(|(ordinal, pod)| self.owners_are_wrong(pod, *ordinal));
        plan.steps.extend(wrong.map(|(ordinal, _)| Step::Owners { ordinal: *ordinal }));
        let missing = places.iter().find(|place| self.is_unavailable(place.pod)).map(|place| place.ordinal);
        let first_bad = missing.or_else(|| surplus.iter().rev().find(|(_, pod)| self.is_unavailable(Some(pod))).map(|(ordinal, _)| *ordinal));
        for (ordinal, pod) in surplus {
            if pod.deleting {
                if self.view.parallel {
                    continue;
                }
                return Flow::Stop;
            }
            let healthy = pod.is_ready() && self.is_available(pod);
            if !self.view.parallel && !healthy && first_bad != Some(*ordinal) {
                return Flow::Stop;
            }
            plan.steps.push(Step::Delete { ordinal: *ordinal });
            if !self.view.parallel {
                return Flow::Stop;
            }
        }
        Flow::On
    }

    /// Deletes pods of other revisions, so that they come back updated.
    fn roll(&self, plan: &mut Plan, places: &[Place<'_>]) {
        let Strategy::Rolling { partition, unavailable } = self.view.strategy else { return };
        let lowest = usize::try_from(partition).unwrap_or_default();
        let candidates = places.iter().skip(lowest).rev();
        let old = |place: &Place<'_>| place.revision != self.update && place.pod.is_some_and(|pod| !pod.deleting && !pod.is_finished());
        let mut delete = |ordinal| {
            plan.steps.push(Step::Delete { ordinal });
            plan.status.current_replicas = plan.status.current_replicas.map(|count| count - 1);
        };
        match unavailable {
            Some(most) => {
                let missing = places.iter().filter(|place| self.is_unavailable(place.pod)).count();
                let room = usize::try_from(most).unwrap_or_default().saturating_sub(missing);
                candidates.filter(|place| old(place)).take(room).for_each(|place| delete(place.ordinal));
            }
            None => {
                let first = candidates.into_iter().find(|place| old(place) || self.is_unavailable(place.pod));
                if let Some(place) = first.filter(|place| old(place)) {
                    delete(place.ordinal);
                }
            }
        }
    }
}

fn status(input: &Input<'_>) -> StatefulSetStatus {
    let counted = || input.pods.iter().filter(|pod| pod.ordinal().is_some() && !pod.phase.is_empty());
    let count = |which: &dyn Fn(&SetPod) -> bool| i32::try_from(counted().filter(|pod| which(pod)).count()).unwrap_or(i32::MAX);
    let of = |revision: &str| count(&|pod: &SetPod| !pod.deleting && pod.revision() == revision);
    StatefulSetStatus {
        replicas: count(&|_| true),
        ready_replicas: Some(count(&SetPod::is_ready)),
        available_replicas: Some(count(&|pod| pod.is_ready() && input.is_available(pod))),
        current_replicas: Some(of(input.current)),
        updated_replicas: Some(of(input.update)),
        current_revision: Some(input.current.to_owned()),
        update_revision: Some(input.update.to_owned()),
        observed_generation: Some(input.view.generation),
        collision_count: Some(input.collisions.unwrap_or_default()),
        conditions: None,
    }
}

/// An update of all pods is over: its revision is the current one.
fn complete(view: &SetView, status: &mut StatefulSetStatus) {
    let all = Some(view.replicas);
    let whole = status.updated_replicas == all && status.ready_replicas == all && status.replicas == view.replicas;
    if matches!(view.strategy, Strategy::Rolling { .. }) && whole {
        status.current_replicas = status.updated_replicas;
        status.current_revision = status.update_revision.clone();
    }
    // Zero is left out, but for the number of pods and of available ones.
    for number in [&mut status.ready_replicas, &mut status.current_replicas, &mut status.updated_replicas] {
        *number = number.filter(|number| *number != 0);
    }
}

fn recheck(input: &Input<'_>) -> Option<Duration> {
    let waiting = input.pods.iter().filter(|pod| pod.is_ready() && !pod.deleting && !input.is_available(pod));
    let times = waiting.filter_map(|pod| pod.available_at(input.view.min_ready_seconds));
    times.map(|at| Duration::try_from(at.duration_since(input.now)).unwrap_or_default()).min()
}

/// Whether the StatefulSet says all that already (upstream: `inconsistentStatus`).
pub(super) fn same_status(before: &StatefulSetStatus, after: &StatefulSetStatus) -> bool {
    let number = |number: Option<i32>| number.unwrap_or_default();
    let numbers = |status: &StatefulSetStatus| {
        [
            status.replicas,
            number(status.ready_replicas),
            number(status.available_replicas),
            number(status.current_replicas),
            number(status.updated_replicas),
            number(status.collision_count),
        ]
    };
    before.observed_generation >= after.observed_generation
        && numbers(before) == numbers(after)
        && before.current_revision == after.current_revision
        && before.update_revision == after.update_revision
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
