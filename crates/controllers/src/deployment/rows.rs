//! Rows of Deployments and ReplicaSets.

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec, DeploymentStatus, ReplicaSet, ReplicaSetCondition},
        core::v1::PodTemplateSpec,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use sha2::{Digest as _, Sha256};

use crate::view::{Controller, controller_of};
use kube_rules::{Labels, Selector};

/// The label that distinguishes the ReplicaSets of one Deployment.
pub(crate) const HASH_LABEL: &str = "pod-template-hash";
/// The rollout in which a ReplicaSet was last the newest.
pub(crate) const REVISION: &str = "deployment.kubernetes.io/revision";
/// Earlier rollouts in which it was the newest.
pub(crate) const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
/// The Deployment's replicas when the ReplicaSet was last scaled.
pub(crate) const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
/// The most pods the Deployment could have had then.
pub(crate) const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";

/// Row of a ReplicaSet.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RsRow {
    pub name: String,
    pub uid: String,
    pub version: String,
    pub labels: Labels,
    pub annotations: Labels,
    pub controller: Option<Controller>,
    pub created: Option<Timestamp>,
    pub deleting: bool,
    pub generation: i64,
    pub selector: Selector,
    pub replicas: i32,
    pub min_ready_seconds: i32,
    /// The hash of its template without the hash label.
    pub template: String,
    /// The labels that its template gives to pods.
    pub template_labels: Labels,
    pub observed_generation: i64,
    pub actual: i32,
    pub labelled: i32,
    pub ready: i32,
    pub available: i32,
    pub terminating: i32,
    pub conditions: Vec<ReplicaSetCondition>,
}

impl RsRow {
    pub fn new(set: &ReplicaSet) -> Self {
        let (meta, spec) = (&set.metadata, set.spec.clone().unwrap_or_default());
        let status = set.status.clone().unwrap_or_default();
        Self {
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            version: meta.resource_version.clone().unwrap_or_default(),
            labels: meta.labels.clone().unwrap_or_default(),
            annotations: meta.annotations.clone().unwrap_or_default(),
            controller: controller_of(meta),
            created: meta.creation_timestamp.as_ref().map(|time| time.0),
            deleting: meta.deletion_timestamp.is_some(),
            generation: meta.generation.unwrap_or_default(),
            selector: Selector::new(&spec.selector),
            replicas: spec.replicas.unwrap_or(1),
            min_ready_seconds: spec.min_ready_seconds.unwrap_or_default(),
            template: template_hash(spec.template.as_ref()),
            template_labels: spec.template.and_then(|template| template.metadata?.labels).unwrap_or_default(),
            observed_generation: status.observed_generation.unwrap_or_default(),
            actual: status.replicas,
            labelled: status.fully_labeled_replicas.unwrap_or_default(),
            ready: status.ready_replicas.unwrap_or_default(),
            available: status.available_replicas.unwrap_or_default(),
            terminating: status.terminating_replicas.unwrap_or_default(),
            conditions: status.conditions.unwrap_or_default(),
        }
    }

    /// A number kept in an annotation.
    pub fn number(&self, annotation: &str) -> Option<i64> {
        self.annotations.get(annotation)?.parse().ok()
    }
}

/// A stable hash of a pod template without its hash label: ten characters that cannot form words (upstream: `rand.SafeEncodeString`).
pub(crate) fn template_hash(template: Option<&PodTemplateSpec>) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut template = template.cloned().unwrap_or_default();
    if let Some(labels) = template.metadata.as_mut().and_then(|meta| meta.labels.as_mut()) {
        labels.remove(HASH_LABEL);
    }
    // A template came from JSON, so it goes back into JSON.
    let text = serde_json::to_vec(&template).unwrap_or_default();
    let digest = Sha256::digest(text);
    digest.iter().take(10).map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()])).collect()
}

/// How a Deployment replaces pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Strategy {
    /// All old pods go before new ones come.
    Recreate,
    /// At most `surge` pods too many and `unavailable` too few.
    Rolling { surge: i32, unavailable: i32 },
}

/// A Deployment as the plan sees it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DeploymentView {
    pub name: String,
    pub uid: String,
    pub generation: i64,
    pub annotations: Labels,
    pub deleting: bool,
    pub replicas: i32,
    pub strategy: Strategy,
    pub paused: bool,
    pub min_ready_seconds: i32,
    pub history_limit: Option<usize>,
    pub deadline_seconds: Option<i32>,
    pub template: String,
    pub status: DeploymentStatus,
}

impl DeploymentView {
    pub fn new(deployment: &Deployment, spec: &DeploymentSpec) -> Self {
        let (meta, replicas) = (&deployment.metadata, spec.replicas.unwrap_or(1));
        Self {
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            generation: meta.generation.unwrap_or_default(),
            annotations: meta.annotations.clone().unwrap_or_default(),
            deleting: meta.deletion_timestamp.is_some(),
            replicas,
            strategy: strategy(spec, replicas),
            paused: spec.paused.unwrap_or_default(),
            min_ready_seconds: spec.min_ready_seconds.unwrap_or_default(),
            history_limit: spec.revision_history_limit.and_then(|limit| limit.try_into().ok()),
            // Upstream reads the largest number as "no deadline".
            deadline_seconds: spec.progress_deadline_seconds.filter(|seconds| *seconds != i32::MAX),
            template: template_hash(Some(&spec.template)),
            status: deployment.status.clone().unwrap_or_default(),
        }
    }

    /// How many pods there may be beyond the replicas.
    pub fn max_surge(&self) -> i32 {
        match self.strategy {
            Strategy::Rolling { surge, .. } => surge,
            Strategy::Recreate => 0,
        }
    }

    /// How many of the replicas may be missing.
    pub fn max_unavailable(&self) -> i32 {
        match self.strategy {
            Strategy::Rolling { unavailable, .. } if self.replicas > 0 => unavailable.min(self.replicas),
            _ => 0,
        }
    }
}

/// The strategy with its numbers resolved (upstream: `ResolveFenceposts`): surge rounds up, unavailable down, and both cannot be zero.
fn strategy(spec: &DeploymentSpec, replicas: i32) -> Strategy {
    let strategy = spec.strategy.clone().unwrap_or_default();
    if strategy.type_.as_deref() == Some("Recreate") {
        return Strategy::Recreate;
    }
    let rolling = strategy.rolling_update.unwrap_or_default();
    let quarter = || IntOrString::String("25%".to_owned());
    let surge = scaled(&rolling.max_surge.unwrap_or_else(quarter), replicas, true);
    let unavailable = scaled(&rolling.max_unavailable.unwrap_or_else(quarter), replicas, false);
    Strategy::Rolling { surge, unavailable: if surge == 0 && unavailable == 0 { 1 } else { unavailable } }
}

/// A number, or a share of `total`.
pub(crate) fn scaled(value: &IntOrString, total: i32, up: bool) -> i32 {
    match value {
        IntOrString::Int(number) => *number,
        IntOrString::String(text) => {
            let share = text.strip_suffix('%').and_then(|digits| digits.parse::<i64>().ok()).unwrap_or_default();
            let hundredths = share * i64::from(total);
            i32::try_from(if up { (hundredths + 99) / 100 } else { hundredths / 100 }).unwrap_or(i32::MAX)
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::{
            apps::v1::{DeploymentStrategy, RollingUpdateDeployment},
            core::v1::{Container, PodSpec},
        },
        apimachinery::pkg::apis::meta::v1::ObjectMeta,
    };

    use super::*;

    #[test]
    fn surge_rounds_up_and_unavailable_down() {
        let percent = |text: &str| Some(IntOrString::String(text.to_owned()));
        for (surge, unavailable, replicas, expected) in [
            (percent("25%"), percent("25%"), 10, (3, 2)),
            (percent("25%"), percent("25%"), 1, (1, 0)),
            (None, None, 4, (1, 1)),
            (Some(IntOrString::Int(0)), percent("10%"), 5, (0, 1)),
            (Some(IntOrString::Int(2)), Some(IntOrString::Int(0)), 5, (2, 0)),
        ] {
            let spec = DeploymentSpec {
                strategy: Some(DeploymentStrategy {
                    type_: None,
                    rolling_update: Some(RollingUpdateDeployment { max_surge: surge.clone(), max_unavailable: unavailable.clone() }),
                }),
                ..Default::default()
            };
            let expected = Strategy::Rolling { surge: expected.0, unavailable: expected.1 };
            assert_eq!(strategy(&spec, replicas), expected, "{surge:?} {unavailable:?} of {replicas}");
        }
    }

    #[test]
    fn the_hash_ignores_its_own_label_and_nothing_else() {
        let mut template = PodTemplateSpec {
            metadata: Some(ObjectMeta { labels: Some(Labels::from([("app".into(), "web".into())])), ..Default::default() }),
            spec: Some(PodSpec { containers: vec![Container { name: "web".into(), ..Default::default() }], ..Default::default() }),
        };
        let hash = template_hash(Some(&template));
        assert_eq!(hash.len(), 10);
        template.metadata.as_mut().unwrap().labels.as_mut().unwrap().insert(HASH_LABEL.to_owned(), "x".to_owned());
        assert_eq!(hash, template_hash(Some(&template)));
        template.spec.as_mut().unwrap().containers[0].image = Some("iis".into());
        assert_ne!(hash, template_hash(Some(&template)));
    }
}
