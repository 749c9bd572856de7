//! Profiles: which plug-ins a scheduler name means, with their weights and arguments (upstream: `pkg/scheduler/profile`,
//! `apis/config/v1/default_plugins.go`).

use std::collections::{BTreeMap, BTreeSet};

use super::{neighbours::Spread, rows::DEFAULT_SCHEDULER};
use kube_rules::{NodeSelector, NodeTerm};

/// Upstream's plug-ins, in the order in which they filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Plugin {
    SchedulingGates,
    PrioritySort,
    NodeUnschedulable,
    NodeName,
    TaintToleration,
    NodeAffinity,
    NodePorts,
    NodeResourcesFit,
    VolumeRestrictions,
    NodeVolumeLimits,
    VolumeBinding,
    VolumeZone,
    PodTopologySpread,
    InterPodAffinity,
    DefaultPreemption,
    NodeResourcesBalancedAllocation,
    ImageLocality,
    DefaultBinder,
}

/// The plug-ins, their names, and their weights where they score.
pub(super) const PLUGINS: [(Plugin, &str, i64); 18] = [
    (Plugin::SchedulingGates, "SchedulingGates", 0),
    (Plugin::PrioritySort, "PrioritySort", 0),
    (Plugin::NodeUnschedulable, "NodeUnschedulable", 0),
    (Plugin::NodeName, "NodeName", 0),
    (Plugin::TaintToleration, "TaintToleration", 3),
    (Plugin::NodeAffinity, "NodeAffinity", 2),
    (Plugin::NodePorts, "NodePorts", 0),
    (Plugin::NodeResourcesFit, "NodeResourcesFit", 1),
    (Plugin::VolumeRestrictions, "VolumeRestrictions", 0),
    (Plugin::NodeVolumeLimits, "NodeVolumeLimits", 0),
    (Plugin::VolumeBinding, "VolumeBinding", 0),
    (Plugin::VolumeZone, "VolumeZone", 0),
    (Plugin::PodTopologySpread, "PodTopologySpread", 2),
    (Plugin::InterPodAffinity, "InterPodAffinity", 2),
    (Plugin::DefaultPreemption, "DefaultPreemption", 0),
    (Plugin::NodeResourcesBalancedAllocation, "NodeResourcesBalancedAllocation", 1),
    (Plugin::ImageLocality, "ImageLocality", 1),
    (Plugin::DefaultBinder, "DefaultBinder", 0),
];

impl Plugin {
    /// Whether it filters nodes.
    pub fn filters(self) -> bool {
        use Plugin as P;
        !matches!(
            self,
            P::SchedulingGates | P::PrioritySort | P::DefaultPreemption | P::NodeResourcesBalancedAllocation | P::ImageLocality | P::DefaultBinder
        )
    }

    /// Whether it scores nodes.
    pub fn scores(self) -> bool {
        PLUGINS.iter().any(|(plugin, _, weight)| *plugin == self && *weight > 0)
    }
}

/// How NodeResourcesFit compares nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Strategy {
    LeastAllocated,
    MostAllocated,
    /// Points of use in per cent and score, 0 to 100, by rising use.
    RequestedToCapacityRatio(Vec<(i64, i64)>),
}

/// A name's plug-ins.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Profile {
    pub name: String,
    pub filters: BTreeSet<Plugin>,
    /// Weights of the plug-ins that score.
    pub weights: BTreeMap<Plugin, i64>,
    /// Whether pods may make others go.
    pub preempts: bool,
    pub strategy: Strategy,
    /// Resources that NodeResourcesFit compares, with weights.
    pub fit_resources: Vec<(String, i64)>,
    /// Extended resources that NodeResourcesFit does not look at: names, and groups before the slash.
    pub ignored_resources: BTreeSet<String>,
    pub ignored_groups: BTreeSet<String>,
    pub balanced_resources: Vec<String>,
    /// How much the required affinity of placed pods counts for a pod that matches it.
    pub hard_affinity_weight: i64,
    /// Whether the preferences of placed pods count only for pods with preferences.
    pub ignores_others_preferences: bool,
    /// Constraints of pods without any; none means upstream's own.
    pub spread_defaults: Option<Vec<Spread>>,
    /// Node affinity that every pod has in addition.
    pub added_affinity: Option<NodeSelector>,
    pub added_preferences: Vec<(i32, NodeTerm)>,
}

impl Default for Profile {
    fn default() -> Self {
        let all = PLUGINS.iter();
        Self {
            name: DEFAULT_SCHEDULER.to_owned(),
            filters: all.clone().map(|(plugin, ..)| *plugin).filter(|plugin| plugin.filters()).collect(),
            weights: all.filter(|(.., weight)| *weight > 0).map(|(plugin, _, weight)| (*plugin, *weight)).collect(),
            preempts: true,
            strategy: Strategy::LeastAllocated,
            fit_resources: vec![("cpu".into(), 1), ("memory".into(), 1)],
            ignored_resources: BTreeSet::new(),
            ignored_groups: BTreeSet::new(),
            balanced_resources: vec!["cpu".into(), "memory".into()],
            hard_affinity_weight: 1,
            ignores_others_preferences: false,
            spread_defaults: None,
            added_affinity: None,
            added_preferences: Vec::new(),
        }
    }
}

impl Profile {
    /// Whether a plug-in filters nodes here.
    pub fn has(&self, plugin: Plugin) -> bool {
        self.filters.contains(&plugin)
    }

    /// The weight of a plug-in's score; 0 if it does not score.
    pub fn weight(&self, plugin: Plugin) -> i64 {
        self.weights.get(&plugin).copied().unwrap_or_default()
    }
}
