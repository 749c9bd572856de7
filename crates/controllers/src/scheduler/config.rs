//! The scheduler's configuration file: `KubeSchedulerConfiguration` of `kubescheduler.config.k8s.io/v1`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::{NodeAffinity, TopologySpreadConstraint};
use serde::Deserialize;
use serde_json::Value;

use super::{
    neighbours::Spread,
    profile::{PLUGINS, Plugin, Profile, Strategy},
    rows::DEFAULT_SCHEDULER,
};
use kube_rules::{Labels, NodeSelector, NodeTerm};

/// The longest delay between attempts for one pod (upstream: `podMaxBackoffSeconds`).
const LAST_DELAY: u64 = 10;
/// The heaviest weight of a plug-in (upstream bounds the sum of all scores by an int64).
const MOST: i64 = 1 << 31;

/// Why a configuration file of the scheduler cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchedulerConfigError(String);

impl std::fmt::Display for SchedulerConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot read the scheduler's configuration: {}", self.0)
    }
}

impl std::error::Error for SchedulerConfigError {}

/// The profiles of the scheduler. The default is upstream's: `default-scheduler` with the default plug-ins.
#[derive(Debug, Clone, PartialEq)]
pub struct SchedulerConfig {
    pub(super) profiles: BTreeMap<String, Arc<Profile>>,
    pub(super) last_delay: Duration,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self { profiles: BTreeMap::from([(DEFAULT_SCHEDULER.to_owned(), Arc::new(Profile::default()))]), last_delay: Duration::from_secs(LAST_DELAY) }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    api_version: String,
    kind: String,
    #[serde(default)]
    profiles: Option<Vec<ProfileDocument>>,
    percentage_of_nodes_to_score: Option<i32>,
    pod_initial_backoff_seconds: Option<u64>,
    pod_max_backoff_seconds: Option<u64>,
    #[serde(default)]
    extenders: Option<Vec<Value>>,
    // How upstream's process is run; nothing here decides where pods go.
    #[serde(rename = "parallelism")]
    _parallelism: Option<i32>,
    #[serde(rename = "leaderElection")]
    _leader_election: Option<Value>,
    #[serde(rename = "clientConnection")]
    _client_connection: Option<Value>,
    #[serde(rename = "enableProfiling")]
    _enable_profiling: Option<bool>,
    #[serde(rename = "enableContentionProfiling")]
    _enable_contention_profiling: Option<bool>,
    #[serde(rename = "delayCacheUntilActive")]
    _delay_cache_until_active: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ProfileDocument {
    scheduler_name: Option<String>,
    percentage_of_nodes_to_score: Option<i32>,
    #[serde(default)]
    plugins: BTreeMap<String, PluginSet>,
    #[serde(default)]
    plugin_config: Vec<PluginConfig>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct PluginSet {
    #[serde(default)]
    enabled: Vec<PluginReference>,
    #[serde(default)]
    disabled: Vec<PluginReference>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PluginReference {
    name: String,
    weight: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PluginConfig {
    name: String,
    args: Value,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Resource {
    name: String,
    weight: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ShapePoint {
    utilization: i64,
    score: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ratio {
    #[serde(default)]
    shape: Vec<ShapePoint>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ScoringStrategy {
    r#type: String,
    resources: Option<Vec<Resource>>,
    requested_to_capacity_ratio: Option<Ratio>,
}

/// The arguments of all plug-ins that take some; each takes its own.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Arguments {
    #[serde(rename = "apiVersion")]
    _api_version: Option<String>,
    kind: Option<String>,
    // NodeResourcesFitArgs
    #[serde(default)]
    ignored_resources: Vec<String>,
    #[serde(default)]
    ignored_resource_groups: Vec<String>,
    scoring_strategy: Option<ScoringStrategy>,
    // NodeResourcesBalancedAllocationArgs
    resources: Option<Vec<Resource>>,
    // InterPodAffinityArgs
    hard_pod_affinity_weight: Option<i64>,
    #[serde(default)]
    ignore_preferred_terms_of_existing_pods: bool,
    // NodeAffinityArgs
    added_affinity: Option<NodeAffinity>,
    // PodTopologySpreadArgs
    defaulting_type: Option<String>,
    #[serde(default)]
    default_constraints: Vec<TopologySpreadConstraint>,
    // DefaultPreemptionArgs and VolumeBindingArgs: bounds that decide nothing here.
    #[serde(rename = "minCandidateNodesPercentage")]
    _min_candidate_nodes_percentage: Option<i32>,
    #[serde(rename = "minCandidateNodesAbsolute")]
    _min_candidate_nodes_absolute: Option<i32>,
    #[serde(rename = "bindTimeoutSeconds")]
    _bind_timeout_seconds: Option<i64>,
}

type Result<T> = std::result::Result<T, SchedulerConfigError>;

fn refuse<T>(why: impl Into<String>) -> Result<T> {
    Err(SchedulerConfigError(why.into()))
}

impl SchedulerConfig {
    /// Reads a configuration file. Anything that this scheduler would not do is an error.
    pub fn from_yaml(text: &str) -> Result<Self> {
        let document: Document = serde_yaml_ng::from_str(text).map_err(|error| SchedulerConfigError(error.to_string()))?;
        if (document.api_version.as_str(), document.kind.as_str()) != ("kubescheduler.config.k8s.io/v1", "KubeSchedulerConfiguration") {
            return refuse(format!(
                "it is a {} of {}; write a KubeSchedulerConfiguration of kubescheduler.config.k8s.io/v1",
                document.kind, document.api_version
            ));
        }
        if document.extenders.is_some_and(|all| !all.is_empty()) {
            return refuse("extenders are not supported; remove extenders");
        }
        percentage(document.percentage_of_nodes_to_score)?;
        let last = document.pod_max_backoff_seconds.unwrap_or(LAST_DELAY);
        if last == 0 || last > 3600 || document.pod_initial_backoff_seconds.is_some_and(|first| first == 0 || first > last) {
            return refuse("podInitialBackoffSeconds must be at least 1 and podMaxBackoffSeconds not less than it, up to 3600");
        }
        let given = document.profiles.filter(|all| !all.is_empty()).unwrap_or_else(|| vec![ProfileDocument::default()]);
        let (single, mut profiles) = (given.len() == 1, BTreeMap::new());
        for profile in given {
            let profile = Profile::of(profile, single)?;
            let name = profile.name.clone();
            if profiles.insert(name.clone(), Arc::new(profile)).is_some() {
                return refuse(format!("two profiles have the schedulerName {name:?}; give each its own"));
            }
        }
        Ok(Self { profiles, last_delay: Duration::from_secs(last) })
    }
}

fn percentage(value: Option<i32>) -> Result<()> {
    match value {
        Some(value) if !(0..=100).contains(&value) => refuse(format!("percentageOfNodesToScore is {value}; write 0 to 100")),
        _ => Ok(()),
    }
}

fn plugin(name: &str) -> Result<Plugin> {
    match PLUGINS.iter().find(|(_, known, _)| *known == name) {
        Some((plugin, ..)) => Ok(*plugin),
        None => refuse(format!("there is no plug-in {name:?}; known are the default plug-ins of Kubernetes but DynamicResources")),
    }
}

/// Takes a set of plug-ins at one point: first those that are switched off, then those that are switched on.
fn apply(set: &PluginSet, on: &mut BTreeMap<Plugin, Option<i64>>, belongs: impl Fn(Plugin) -> bool, point: &str) -> Result<()> {
    for one in &set.disabled {
        if one.name == "*" {
            on.clear();
        } else {
            on.remove(&plugin(&one.name)?);
        }
    }
    for one in &set.enabled {
        let plugin = plugin(&one.name)?;
        if !belongs(plugin) {
            return refuse(format!("plug-in {} does not work at the point {point}; enable it at multiPoint", one.name));
        }
        if one.weight.is_some_and(|weight| !(0..MOST).contains(&weight)) {
            return refuse(format!("the weight of plug-in {} is out of range; write 1 to {}", one.name, MOST - 1));
        }
        on.insert(plugin, one.weight.filter(|weight| *weight > 0));
    }
    Ok(())
}

fn weights(resources: &[Resource]) -> Result<Vec<(String, i64)>> {
    let weight = |one: &Resource| match one.weight.unwrap_or(1) {
        weight @ 1..=100 => Ok((one.name.clone(), weight)),
        weight => refuse(format!("the weight of resource {} is {weight}; write 1 to 100", one.name)),
    };
    resources.iter().map(weight).collect()
}

impl Profile {
    fn of(document: ProfileDocument, single: bool) -> Result<Self> {
        percentage(document.percentage_of_nodes_to_score)?;
        let name = match document.scheduler_name.filter(|name| !name.is_empty()) {
            Some(name) => name,
            None if single => DEFAULT_SCHEDULER.to_owned(),
            None => return refuse("a profile has no schedulerName; with several profiles each needs one"),
        };
        let mut profile = Self { name, ..Self::default() };
        profile.choose(&document.plugins)?;
        let mut configured = BTreeSet::new();
        for config in document.plugin_config {
            if !configured.insert(config.name.clone()) {
                return refuse(format!("pluginConfig names {} twice", config.name));
            }
            profile.configure(config)?;
        }
        Ok(profile)
    }

    fn choose(&mut self, sets: &BTreeMap<String, PluginSet>) -> Result<()> {
        let default = |one: &(Plugin, &str, i64)| (one.0, Some(one.2).filter(|weight| *weight > 0));
        let mut everywhere: BTreeMap<Plugin, Option<i64>> = PLUGINS.iter().map(default).collect();
        if let Some(set) = sets.get("multiPoint") {
            apply(set, &mut everywhere, |_| true, "multiPoint")?;
        }
        let preempts = |plugin| plugin == Plugin::DefaultPreemption;
        let at = |belongs: fn(Plugin) -> bool| everywhere.iter().filter(|(one, _)| belongs(**one)).map(|(one, weight)| (*one, *weight)).collect();
        let (mut filters, mut scores, mut post): (BTreeMap<_, _>, BTreeMap<_, _>, BTreeMap<_, _>) =
            (at(Plugin::filters), at(Plugin::scores), at(preempts));
        for (point, set) in sets {
            match point.as_str() {
                "multiPoint" => {}
                "filter" => apply(set, &mut filters, Plugin::filters, point)?,
                "score" => apply(set, &mut scores, Plugin::scores, point)?,
                "postFilter" => apply(set, &mut post, preempts, point)?,
                // Our plug-ins prepare what they filter and score themselves.
                "preFilter" | "preScore" | "reserve" | "permit" | "preBind" | "postBind" | "preEnqueue" | "queueSort" | "bind"
                    if set.enabled.is_empty() && set.disabled.is_empty() => {}
                "preFilter" | "preScore" | "reserve" | "permit" | "preBind" | "postBind" | "preEnqueue" | "queueSort" | "bind" => {
                    return refuse(format!(
                        "profile {}: plug-ins cannot be chosen at {point}; use multiPoint, filter, postFilter or score",
                        self.name
                    ));
                }
                _ => return refuse(format!("profile {}: there is no extension point {point:?}", self.name)),
            }
        }
        for (needed, what) in [(Plugin::PrioritySort, "one queue sort plugin"), (Plugin::DefaultBinder, "at least one bind plugin")] {
            if !everywhere.contains_key(&needed) {
                return refuse(format!("profile {} needs {what}; do not disable {needed:?}", self.name));
            }
        }
        self.filters = filters.into_keys().collect();
        self.weights = scores.into_iter().map(|(one, weight)| (one, weight.unwrap_or(1))).collect();
        self.preempts = post.contains_key(&Plugin::DefaultPreemption);
        Ok(())
    }

    fn configure(&mut self, config: PluginConfig) -> Result<()> {
        let name = config.name;
        let args: Arguments =
            serde_json::from_value(config.args).map_err(|error| SchedulerConfigError(format!("pluginConfig of {name}: {error}")))?;
        if args.kind.as_ref().is_some_and(|kind| *kind != format!("{name}Args")) {
            return refuse(format!("pluginConfig of {name} has the kind {:?}; write {name}Args", args.kind.unwrap_or_default()));
        }
        match plugin(&name)? {
            Plugin::NodeResourcesFit => self.configure_fit(args)?,
            Plugin::NodeResourcesBalancedAllocation => {
                if let Some(resources) = args.resources {
                    self.balanced_resources = weights(&resources)?.into_iter().map(|(name, _)| name).collect();
                }
            }
            Plugin::InterPodAffinity => {
                self.hard_affinity_weight = match args.hard_pod_affinity_weight.unwrap_or(1) {
                    weight @ 0..=100 => weight,
                    weight => return refuse(format!("hardPodAffinityWeight is {weight}; write 0 to 100")),
                };
                self.ignores_others_preferences = args.ignore_preferred_terms_of_existing_pods;
            }
            Plugin::NodeAffinity => {
                let added = args.added_affinity.unwrap_or_default();
                self.added_affinity = added.required_during_scheduling_ignored_during_execution.as_ref().map(NodeSelector::new);
                let preferred = added.preferred_during_scheduling_ignored_during_execution.unwrap_or_default();
                self.added_preferences = preferred.iter().map(|one| (one.weight, NodeTerm::new(&one.preference))).collect();
            }
            Plugin::PodTopologySpread => self.configure_spread(&args)?,
            Plugin::DefaultPreemption | Plugin::VolumeBinding => {}
            _ => return refuse(format!("plug-in {name} takes no arguments")),
        }
        Ok(())
    }

    fn configure_fit(&mut self, args: Arguments) -> Result<()> {
        self.ignored_resources = args.ignored_resources.into_iter().collect();
        self.ignored_groups = args.ignored_resource_groups.into_iter().collect();
        let Some(strategy) = args.scoring_strategy else { return Ok(()) };
        if let Some(resources) = &strategy.resources {
            self.fit_resources = weights(resources)?;
        }
        self.strategy = match strategy.r#type.as_str() {
            "" | "LeastAllocated" => Strategy::LeastAllocated,
            "MostAllocated" => Strategy::MostAllocated,
            "RequestedToCapacityRatio" => {
                let shape = strategy.requested_to_capacity_ratio.unwrap_or_default().shape;
                let rising = shape.windows(2).all(|pair| pair[0].utilization < pair[1].utilization);
                let valid = |one: &ShapePoint| (0..=100).contains(&one.utilization) && (0..=10).contains(&one.score);
                if shape.is_empty() || !rising || !shape.iter().all(valid) {
                    return refuse("the shape of RequestedToCapacityRatio needs points of rising utilization, 0 to 100, with scores of 0 to 10");
                }
                Strategy::RequestedToCapacityRatio(shape.into_iter().map(|one| (one.utilization, one.score * 10)).collect())
            }
            other => return refuse(format!("there is no scoring strategy {other:?}")),
        };
        Ok(())
    }

    fn configure_spread(&mut self, args: &Arguments) -> Result<()> {
        let constraints = &args.default_constraints;
        match args.defaulting_type.as_deref().unwrap_or("System") {
            "System" if constraints.is_empty() => self.spread_defaults = None,
            "System" => return refuse("defaultConstraints need defaultingType List"),
            "List" => {
                if constraints.iter().any(|one| one.label_selector.is_some() || one.max_skew < 1 || one.topology_key.is_empty()) {
                    return refuse("defaultConstraints need a topologyKey, a maxSkew of at least 1 and no labelSelector");
                }
                self.spread_defaults = Some(constraints.iter().map(|one| Spread::new(one, &Labels::new())).collect());
            }
            other => return refuse(format!("there is no defaultingType {other:?}; write System or List")),
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
