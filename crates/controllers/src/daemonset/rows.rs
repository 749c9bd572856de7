//! Rows of DaemonSets.

use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetStatus},
        core::v1::{PodTemplateSpec, Taint, Toleration},
    },
    apimachinery::pkg::util::intstr::IntOrString,
};

use crate::{deployment::scaled, revisions::HASH_LABEL, view::NodeRow};
use kube_rules::{Labels, RequiredNodeAffinity, Selector, taints};

/// The template's generation, from the days of `extensions/v1beta1`; pods carry it where the DaemonSet does.
const GENERATION_ANNOTATION: &str = "deprecated.daemonset.template.generation";
const GENERATION_LABEL: &str = "pod-template-generation";

/// Row of a DaemonSet; the work itself reads the newest object.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DaemonRow {
    pub version: String,
    pub selector: Selector,
}

impl DaemonRow {
    pub fn new(set: &DaemonSet) -> Self {
        Self {
            version: set.metadata.resource_version.clone().unwrap_or_default(),
            selector: set.spec.as_ref().map(|spec| Selector::new(&spec.selector)).unwrap_or_default(),
        }
    }
}

/// How old pods are replaced.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Strategy {
    OnDelete,
    Rolling { unavailable: IntOrString, surge: IntOrString },
}

impl Strategy {
    /// Whether a new pod may run beside the old one.
    pub fn allows_surge(&self) -> bool {
        match self {
            Self::OnDelete => false,
            Self::Rolling { surge, .. } => scaled(surge, 100, true) > 0,
        }
    }

    /// How many nodes may be without an available pod, and how many may have two (upstream: `updatedDesiredNodeCounts`).
    pub fn limits(&self, desired: usize) -> (usize, usize) {
        let Self::Rolling { unavailable, surge } = self else { return (0, 0) };
        let desired = i32::try_from(desired).unwrap_or(i32::MAX);
        let of = |value: &IntOrString| usize::try_from(scaled(value, desired, true)).unwrap_or_default();
        match (of(unavailable), of(surge)) {
            // Both zero would never get anywhere.
            (0, 0) => (1, 0),
            limits => limits,
        }
    }
}

/// A DaemonSet as the plan sees it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DaemonView {
    pub ns: String,
    pub generation: i64,
    pub deleting: bool,
    pub node_name: Option<String>,
    pub node_affinity: RequiredNodeAffinity,
    pub tolerations: Vec<Toleration>,
    pub strategy: Strategy,
    pub min_ready_seconds: i32,
    pub template_generation: Option<String>,
    pub status: DaemonSetStatus,
}

impl DaemonView {
    pub fn new(set: &DaemonSet, spec: &DaemonSetSpec) -> Self {
        let pod = spec.template.spec.clone().unwrap_or_default();
        let node_affinity = RequiredNodeAffinity::new(&pod);
        let mut tolerations = pod.tolerations.unwrap_or_default();
        tolerations.extend(default_tolerations(pod.host_network.unwrap_or_default()));
        Self {
            ns: set.metadata.namespace.clone().unwrap_or_default(),
            generation: set.metadata.generation.unwrap_or_default(),
            deleting: set.metadata.deletion_timestamp.is_some(),
            node_name: pod.node_name.filter(|name| !name.is_empty()),
            node_affinity,
            tolerations,
            strategy: strategy(spec),
            min_ready_seconds: spec.min_ready_seconds.unwrap_or_default(),
            template_generation: template_generation(set),
            status: set.status.clone().unwrap_or_default(),
        }
    }

    /// Whether a pod should be made for this node, and whether one that is there may stay (upstream: `NodeShouldRunDaemonPod`).
    pub fn fate(&self, name: &str, node: &NodeRow) -> Fate {
        let named = self.node_name.as_ref().is_none_or(|wanted| wanted == name);
        if !named || !self.node_affinity.matches(name, &node.labels) {
            return Fate { run: false, stay: false };
        }
        let tolerated = |counts: fn(&Taint) -> bool| taints::find_untolerated(&node.taints, &self.tolerations, counts).is_none();
        // The taint of a cordon may be missing while the field is set; DaemonSets tolerate it either way.
        Fate { run: tolerated(taints::prevents_scheduling), stay: tolerated(taints::evicts) }
    }

    /// Whether a pod is of the present template.
    pub fn is_updated(&self, labels: &Labels, hash: &str) -> bool {
        let by_generation = self.template_generation.is_some() && labels.get(GENERATION_LABEL) == self.template_generation.as_ref();
        by_generation || labels.get(HASH_LABEL).is_some_and(|label| label == hash)
    }
}

/// Whether a DaemonSet runs and keeps a pod on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fate {
    pub run: bool,
    pub stay: bool,
}

fn template_generation(set: &DaemonSet) -> Option<String> {
    set.metadata.annotations.as_ref()?.get(GENERATION_ANNOTATION).filter(|text| text.parse::<i64>().is_ok()).cloned()
}

fn strategy(spec: &DaemonSetSpec) -> Strategy {
    let strategy = spec.update_strategy.clone().unwrap_or_default();
    if strategy.type_.as_deref() == Some("OnDelete") {
        return Strategy::OnDelete;
    }
    let rolling = strategy.rolling_update.unwrap_or_default();
    Strategy::Rolling { unavailable: rolling.max_unavailable.unwrap_or(IntOrString::Int(1)), surge: rolling.max_surge.unwrap_or(IntOrString::Int(0)) }
}

/// Tolerations of every pod of a DaemonSet (upstream: `daemon/util.AddOrUpdateDaemonPodTolerations`).
fn default_tolerations(host_network: bool) -> Vec<Toleration> {
    let exists = |key: &str, effect: &str| Toleration {
        key: Some(format!("node.kubernetes.io/{key}")),
        operator: Some("Exists".to_owned()),
        effect: Some(effect.to_owned()),
        ..Default::default()
    };
    let mut all = vec![exists("not-ready", "NoExecute"), exists("unreachable", "NoExecute")];
    all.extend(["disk-pressure", "memory-pressure", "pid-pressure", "unschedulable"].map(|key| exists(key, "NoSchedule")));
    if host_network {
        all.push(exists("network-unavailable", "NoSchedule"));
    }
    all
}

/// The template of this revision's pods: labelled, tolerant (upstream: `daemon/util.CreatePodTemplate`).
pub(super) fn pod_template(set: &DaemonSet, template: &PodTemplateSpec, hash: &str) -> PodTemplateSpec {
    let mut template = template.clone();
    let labels = template.metadata.get_or_insert_default().labels.get_or_insert_default();
    labels.insert(HASH_LABEL.to_owned(), hash.to_owned());
    if let Some(generation) = template_generation(set) {
        labels.insert(GENERATION_LABEL.to_owned(), generation);
    }
    let spec = template.spec.get_or_insert_default();
    let defaults = default_tolerations(spec.host_network.unwrap_or_default());
    let tolerations = spec.tolerations.get_or_insert_default();
    for toleration in defaults {
        // The same toleration, however long its owner bears it, gives way.
        let same = |one: &Toleration| (&one.key, &one.effect, &one.operator) == (&toleration.key, &toleration.effect, &toleration.operator);
        match tolerations.iter_mut().find(|one| same(one)) {
            Some(present) => *present = toleration,
            None => tolerations.push(toleration),
        }
    }
    template
}

/// Ties a pod to one node by affinity, so that the scheduler brings it there and nowhere else; other conditions on nodes have been looked
/// at already and go (upstream: `ReplaceDaemonSetPodNodeNameNodeAffinity`).
pub(super) fn tie_to_node(template: &PodTemplateSpec, node: &str) -> PodTemplateSpec {
    use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
    let mut template = template.clone();
    let field = NodeSelectorRequirement { key: "metadata.name".to_owned(), operator: "In".to_owned(), values: Some(vec![node.to_owned()]) };
    let affinity = template.spec.get_or_insert_default().affinity.get_or_insert_default().node_affinity.get_or_insert_default();
    affinity.required_during_scheduling_ignored_during_execution =
        Some(NodeSelector { node_selector_terms: vec![NodeSelectorTerm { match_fields: Some(vec![field]), match_expressions: None }] });
    template
}
