//! Rows of StatefulSets, their pods and their claims.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        apps::v1::{StatefulSet, StatefulSetSpec, StatefulSetStatus},
        core::v1::{PersistentVolumeClaim, Pod},
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};

use crate::{
    deployment::scaled,
    revisions::HASH_LABEL,
    view::{Controller, controller_of},
};
use kube_rules::{Labels, Selector, readiness};

/// The pod's own name.
pub(super) const NAME_LABEL: &str = "statefulset.kubernetes.io/pod-name";
/// The pod's ordinal.
pub(super) const INDEX_LABEL: &str = "apps.kubernetes.io/pod-index";

/// Row of a StatefulSet; the work itself reads the newest object.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SetRow {
    pub version: String,
    pub selector: Selector,
}

impl SetRow {
    pub fn new(set: &StatefulSet) -> Self {
        Self {
            version: set.metadata.resource_version.clone().unwrap_or_default(),
            selector: set.spec.as_ref().map(|spec| Selector::new(&spec.selector)).unwrap_or_default(),
        }
    }
}

/// The StatefulSet that a pod's name speaks of, and its ordinal (upstream: `getParentNameAndOrdinal`).
pub(super) fn parent_and_ordinal(name: &str) -> Option<(&str, i32)> {
    let (parent, digits) = name.rsplit_once('-')?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    Some((parent, is_number.then(|| digits.parse().ok())??))
}

/// Row of a pod that is or could be a StatefulSet's.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SetPod {
    pub name: String,
    pub uid: String,
    pub labels: Labels,
    pub controller: Option<Controller>,
    pub deleting: bool,
    pub phase: String,
    /// Since when it is ready, if it is.
    pub ready: Option<Timestamp>,
    /// The claims that its volumes name.
    pub volumes: BTreeMap<String, String>,
}

impl SetPod {
    /// None: a pod that another kind of controller keeps.
    pub fn new(pod: &Pod) -> Option<Self> {
        let meta = &pod.metadata;
        let controller = controller_of(meta);
        if controller.as_ref().is_some_and(|owner| owner.kind != "StatefulSet") {
            return None;
        }
        let status = pod.status.clone().unwrap_or_default();
        let ready = readiness::ready(status.conditions.iter().flatten());
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let claims = volumes.filter_map(|volume| Some((volume.name.clone(), volume.persistent_volume_claim.as_ref()?.claim_name.clone())));
        Some(Self {
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            labels: meta.labels.clone().unwrap_or_default(),
            controller,
            deleting: meta.deletion_timestamp.is_some(),
            ready: ready.map(|one| one.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0)),
            volumes: claims.collect(),
            phase: status.phase.unwrap_or_default(),
        })
    }

    pub fn ordinal(&self) -> Option<i32> {
        parent_and_ordinal(&self.name).map(|(_, ordinal)| ordinal)
    }

    /// The name of the revision that it is of.
    pub fn revision(&self) -> &str {
        self.labels.get(HASH_LABEL).map(String::as_str).unwrap_or_default()
    }

    pub fn is_finished(&self) -> bool {
        matches!(self.phase.as_str(), "Succeeded" | "Failed")
    }

    pub fn is_ready(&self) -> bool {
        self.phase == "Running" && self.ready.is_some()
    }

    /// When it is available, if it stays ready.
    pub fn available_at(&self, min_ready_seconds: i32) -> Option<Timestamp> {
        self.ready?.checked_add(SignedDuration::from_secs(min_ready_seconds.into())).ok()
    }

    pub fn is_available(&self, min_ready_seconds: i32, now: Timestamp) -> bool {
        self.ready.is_some() && (min_ready_seconds == 0 || self.available_at(min_ready_seconds).is_some_and(|at| at <= now))
    }
}

/// Row of a claim.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ClaimRow {
    pub owners: Vec<OwnerReference>,
    pub deleting: bool,
}

impl ClaimRow {
    pub fn new(claim: &PersistentVolumeClaim) -> Self {
        Self { owners: claim.metadata.owner_references.clone().unwrap_or_default(), deleting: claim.metadata.deletion_timestamp.is_some() }
    }
}

/// What happens to claims that are no longer needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Retention {
    /// They go with the StatefulSet.
    pub delete_with_set: bool,
    /// They go with a pod that is scaled away.
    pub delete_with_pod: bool,
}

/// How old pods are replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Strategy {
    OnDelete,
    /// From the highest ordinal down to `partition`.
    Rolling {
        partition: i32,
        /// How many may be unavailable; none: one after the other.
        unavailable: Option<i32>,
    },
}

/// A StatefulSet as the plan sees it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SetView {
    pub name: String,
    pub uid: String,
    pub generation: i64,
    pub deleting: bool,
    pub replicas: i32,
    /// The first ordinal.
    pub start: i32,
    /// Pods come and go without waiting for each other.
    pub parallel: bool,
    pub strategy: Strategy,
    pub min_ready_seconds: i32,
    /// Names of the templates of claims.
    pub claims: Vec<String>,
    pub retention: Retention,
    pub status: StatefulSetStatus,
}

impl SetView {
    pub fn new(set: &StatefulSet, spec: &StatefulSetSpec) -> Self {
        let replicas = spec.replicas.unwrap_or(1);
        let retention = spec.persistent_volume_claim_retention_policy.clone().unwrap_or_default();
        let templates = spec.volume_claim_templates.iter().flatten();
        Self {
            name: set.metadata.name.clone().unwrap_or_default(),
            uid: set.metadata.uid.clone().unwrap_or_default(),
            generation: set.metadata.generation.unwrap_or_default(),
            deleting: set.metadata.deletion_timestamp.is_some(),
            replicas,
            start: spec.ordinals.as_ref().and_then(|ordinals| ordinals.start).unwrap_or_default(),
            parallel: spec.pod_management_policy.as_deref() == Some("Parallel"),
            strategy: strategy(spec, replicas),
            min_ready_seconds: spec.min_ready_seconds.unwrap_or_default(),
            claims: templates.filter_map(|claim| claim.metadata.name.clone()).collect(),
            retention: Retention {
                delete_with_set: retention.when_deleted.as_deref() == Some("Delete"),
                delete_with_pod: retention.when_scaled.as_deref() == Some("Delete"),
            },
            status: set.status.clone().unwrap_or_default(),
        }
    }

    pub fn pod_name(&self, ordinal: i32) -> String {
        format!("{}-{ordinal}", self.name)
    }

    pub fn claim_name(&self, template: &str, ordinal: i32) -> String {
        format!("{template}-{}-{ordinal}", self.name)
    }

    /// Whether the ordinal is one of those that the StatefulSet wants.
    pub fn wants(&self, ordinal: i32) -> bool {
        ordinal >= self.start && i64::from(ordinal) < i64::from(self.start) + i64::from(self.replicas)
    }

    /// Whether the pod has its name, in its label too, and the volumes of its claims.
    pub fn is_in_shape(&self, pod: &SetPod, ordinal: i32) -> bool {
        let volume = |template: &String| pod.volumes.get(template) == Some(&self.claim_name(template, ordinal));
        pod.name == self.pod_name(ordinal) && pod.labels.get(NAME_LABEL) == Some(&pod.name) && self.claims.iter().all(volume)
    }
}

fn strategy(spec: &StatefulSetSpec, replicas: i32) -> Strategy {
    let strategy = spec.update_strategy.clone().unwrap_or_default();
    if strategy.type_.as_deref() == Some("OnDelete") {
        return Strategy::OnDelete;
    }
    let rolling = strategy.rolling_update.unwrap_or_default();
    let unavailable = rolling.max_unavailable.map(|most| scaled(&most, replicas, false).max(1));
    Strategy::Rolling { partition: rolling.partition.unwrap_or_default(), unavailable }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_hold_ordinals() {
        for (name, expected) in [
            ("web-0", Some(("web", 0))),
            ("my-web-12", Some(("my-web", 12))),
            ("web", None),
            ("web-", None),
            ("web-x", None),
            ("web-+1", None),
            ("web-99999999999", None),
        ] {
            assert_eq!(parent_and_ordinal(name), expected, "{name}");
        }
    }
}
