use super::*;

const HEAD: &str = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";

fn read(rest: &str) -> Result<SchedulerConfig> {
    SchedulerConfig::from_yaml(&format!("{HEAD}{rest}"))
}

#[test]
fn an_empty_configuration_is_the_default() {
    assert_eq!(read("").unwrap(), SchedulerConfig::default());
    assert_eq!(read("parallelism: 16\npercentageOfNodesToScore: 50\nleaderElection: {leaderElect: false}\n").unwrap(), SchedulerConfig::default());
}

#[test]
fn profiles_switch_plug_ins_and_weights() {
    let config = read(
        "profiles:
- schedulerName: default-scheduler
- schedulerName: packing
  percentageOfNodesToScore: 70
  plugins:
    multiPoint:
      disabled: [{name: InterPodAffinity}]
    filter:
      disabled: [{name: TaintToleration}]
    score:
      disabled: [{name: '*'}]
      enabled: [{name: NodeResourcesFit, weight: 5}, {name: ImageLocality}]
    postFilter:
      disabled: [{name: DefaultPreemption}]
  pluginConfig:
  - name: NodeResourcesFit
    args:
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: NodeResourcesFitArgs
      ignoredResourceGroups: [example.com]
      scoringStrategy:
        type: MostAllocated
        resources: [{name: cpu, weight: 3}, {name: example.com/gpu, weight: 1}]
",
    )
    .unwrap();
    assert_eq!(*config.profiles["default-scheduler"], Profile::default());
    let packing = &config.profiles["packing"];
    assert!(!packing.has(Plugin::InterPodAffinity) && !packing.has(Plugin::TaintToleration) && packing.has(Plugin::NodeAffinity));
    assert_eq!(packing.weights, BTreeMap::from([(Plugin::NodeResourcesFit, 5), (Plugin::ImageLocality, 1)]));
    assert!(!packing.preempts);
    assert_eq!(packing.strategy, Strategy::MostAllocated);
    assert_eq!(packing.fit_resources, [("cpu".to_owned(), 3), ("example.com/gpu".to_owned(), 1)]);
    assert!(packing.ignored_groups.contains("example.com"));
}

#[test]
fn arguments_are_read() {
    let config = read(
        "profiles:
- plugins: {multiPoint: {enabled: [{name: NodeAffinity, weight: 9}]}}
  pluginConfig:
  - {name: InterPodAffinity, args: {hardPodAffinityWeight: 7, ignorePreferredTermsOfExistingPods: true}}
  - name: NodeAffinity
    args:
      addedAffinity:
        requiredDuringSchedulingIgnoredDuringExecution:
          nodeSelectorTerms: [{matchExpressions: [{key: tenant, operator: In, values: [blue]}]}]
  - name: PodTopologySpread
    args:
      defaultingType: List
      defaultConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}]
  - name: NodeResourcesFit
    args:
      scoringStrategy:
        type: RequestedToCapacityRatio
        requestedToCapacityRatio: {shape: [{utilization: 0, score: 0}, {utilization: 100, score: 10}]}
",
    )
    .unwrap();
    let profile = &config.profiles[DEFAULT_SCHEDULER];
    assert_eq!((profile.hard_affinity_weight, profile.ignores_others_preferences), (7, true));
    assert_eq!(profile.weight(Plugin::NodeAffinity), 9);
    assert_eq!(profile.weight(Plugin::TaintToleration), 3, "the other defaults stay");
    let blue = Labels::from([("tenant".into(), "blue".into())]);
    assert!(profile.added_affinity.as_ref().is_some_and(|added| added.matches("n", &blue) && !added.matches("n", &Labels::new())));
    assert_eq!(profile.spread_defaults.as_ref().map(Vec::len), Some(1));
    assert_eq!(profile.strategy, Strategy::RequestedToCapacityRatio(vec![(0, 0), (100, 100)]));
}

#[test]
fn what_would_not_be_done_is_refused() {
    for (rest, expected) in [
        ("nonsense: 1\n", "unknown field `nonsense`"),
        ("extenders: [{urlPrefix: http://x}]\n", "extenders are not supported"),
        ("percentageOfNodesToScore: 101\n", "write 0 to 100"),
        ("podInitialBackoffSeconds: 20\n", "podInitialBackoffSeconds"),
        ("profiles: [{schedulerName: a}, {schedulerName: a}]\n", "two profiles have the schedulerName \"a\""),
        ("profiles: [{schedulerName: a}, {}]\n", "no schedulerName"),
        ("profiles: [{plugins: {filter: {enabled: [{name: Coscheduling}]}}}]\n", "there is no plug-in \"Coscheduling\""),
        ("profiles: [{plugins: {score: {enabled: [{name: NodePorts}]}}}]\n", "does not work at the point score"),
        ("profiles: [{plugins: {preFilter: {disabled: [{name: NodePorts}]}}}]\n", "cannot be chosen at preFilter"),
        ("profiles: [{plugins: {other: {}}}]\n", "no extension point"),
        ("profiles: [{plugins: {multiPoint: {disabled: [{name: '*'}]}}}]\n", "needs one queue sort plugin"),
        ("profiles: [{plugins: {score: {enabled: [{name: ImageLocality, weight: -1}]}}}]\n", "out of range"),
        ("profiles: [{pluginConfig: [{name: NodePorts, args: {}}]}]\n", "takes no arguments"),
        ("profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {kind: NodeAffinityArgs}}]}]\n", "write NodeResourcesFitArgs"),
        ("profiles: [{pluginConfig: [{name: InterPodAffinity, args: {hardPodAffinityWeight: 101}}]}]\n", "write 0 to 100"),
        (
            "profiles: [{pluginConfig: [{name: PodTopologySpread, args: {defaultConstraints: [{maxSkew: 1, topologyKey: z, whenUnsatisfiable: x}]}}]}]\n",
            "defaultingType List",
        ),
    ] {
        let error = read(rest).unwrap_err().to_string();
        assert!(error.contains(expected), "{rest}: {error}");
    }
    let error = SchedulerConfig::from_yaml("apiVersion: v1\nkind: Pod\n").unwrap_err().to_string();
    assert!(error.contains("it is a Pod of v1"), "{error}");
}
