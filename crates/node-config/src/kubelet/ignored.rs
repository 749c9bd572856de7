//! Members of upstream's KubeletConfiguration that have no effect here or are refused, with the reason.

const CGROUPS: &str = "whoever starts a program chooses its control group";
const MEMORY_QOS: &str = "memory of pods is limited, but not protected: MemoryQoS is not here";
const RESOURCES: &str = "no resources are assigned or reserved here";
const CLIENT: &str = "the API client paces itself by the server's answers";
const PERIODS: &str = "changes are acted on as they come, and periods are fixed";
const LOGS: &str = "logs go to standard error; MULLION_LOG chooses how much";
const EVICTION: &str = "thresholds that are not given have no default, and limits of local storage hold always";
const NETWORK: &str = "the pod network and the service proxy care for it";
const PROFILES: &str = "the server has no profiles";
const KERNEL: &str = "the kernel's settings stay as they are";

const TOPOLOGY: &str = "pods get processors, memory and devices of whichever NUMA node has them; set none, or leave it out";

/// Paths of members and sections.
const IGNORED: &[(&str, &str)] = &[
    ("readOnlyPort", "there is no read-only port"),
    ("eventRecordQPS", CLIENT),
    ("eventBurst", CLIENT),
    ("enableContentionProfiling", PROFILES),
    ("enableProfilingHandler", PROFILES),
    ("enableDebugFlagsHandler", "the level of the log is set where the agent is started"),
    ("oomScoreAdj", "whoever starts the agent can set it"),
    ("streamingConnectionIdleTimeout", "the container runtime ends silent streams; upstream's kubelet reads it no more either"),
    ("volumeStatsAggPeriod", PERIODS),
    ("kubeletCgroups", CGROUPS),
    ("systemCgroups", CGROUPS),
    ("memoryThrottlingFactor", MEMORY_QOS),
    ("memoryReservationPolicy", MEMORY_QOS),
    ("cpuManagerPolicy", RESOURCES),
    ("cpuManagerPolicyOptions", RESOURCES),
    ("cpuManagerReconcilePeriod", RESOURCES),
    ("memoryManagerPolicy", RESOURCES),
    ("topologyManagerPolicy", RESOURCES),
    ("topologyManagerPolicyOptions", RESOURCES),
    ("topologyManagerScope", RESOURCES),
    ("reservedSystemCPUs", RESOURCES),
    ("reservedMemory", RESOURCES),
    ("runtimeRequestTimeout", PERIODS),
    ("hairpinMode", NETWORK),
    ("podCIDR", NETWORK),
    ("makeIPTablesUtilChains", NETWORK),
    ("iptablesMasqueradeBit", NETWORK),
    ("iptablesDropBit", NETWORK),
    ("runOnce", "the agent runs until it is ended"),
    ("maxOpenFiles", "whoever starts the agent can set it"),
    ("contentType", CLIENT),
    ("kubeAPIQPS", CLIENT),
    ("kubeAPIBurst", CLIENT),
    ("enableControllerAttachDetach", "the attach controller of the control plane attaches volumes"),
    ("protectKernelDefaults", KERNEL),
    ("kernelMemcgNotification", KERNEL),
    ("failSwapOn", KERNEL),
    ("containerLogMaxWorkers", PERIODS),
    ("configMapAndSecretChangeDetectionStrategy", PERIODS),
    ("showHiddenMetricsForVersion", "no metric is hidden"),
    ("logging.format", LOGS),
    ("logging.flushFrequency", LOGS),
    ("logging.vmodule", LOGS),
    ("logging.options.text.splitStream", LOGS),
    ("logging.options.text.infoBufferSize", LOGS),
    ("logging.options.json.splitStream", LOGS),
    ("logging.options.json.infoBufferSize", LOGS),
    ("tracing.endpoint", "there is no tracing"),
    ("tracing.samplingRatePerMillion", "there is no tracing"),
    ("localStorageCapacityIsolation", EVICTION),
];

/// Values of these members that say what is done anyway.
const HOLDS: &[(&str, &str)] = &[
    ("configMapAndSecretChangeDetectionStrategy", "Watch"),
    ("cpuManagerPolicy", "none"),
    ("enableControllerAttachDetach", "true"),
    ("localStorageCapacityIsolation", "true"),
    ("memoryManagerPolicy", "None"),
    ("memoryReservationPolicy", "None"),
    ("topologyManagerPolicy", "none"),
];

/// Values that must not be passed over: member, value, why and the way out. Other values of
/// these members are passed over.
const REFUSED: &[(&str, &str, &str)] = &[
    ("runOnce", "true", "upstream removed the mode that ends after the first pods, and it is not here either; leave it out"),
    (
        "enableControllerAttachDetach",
        "false",
        "the agent attaches no volumes itself; leave it out, so that the control plane's attach controller does",
    ),
    ("memoryReservationPolicy", "TieredReservation", "the agent protects no memory of pods; leave it out, or set None"),
    ("topologyManagerPolicy", "best-effort", TOPOLOGY),
    ("topologyManagerPolicy", "restricted", TOPOLOGY),
    ("topologyManagerPolicy", "single-numa-node", TOPOLOGY),
];

/// Why a member has no effect.
pub(super) fn reason(path: &str) -> Option<&'static str> {
    IGNORED.iter().find(|(known, _)| *known == path).map(|(_, why)| *why)
}

/// Whether a value says what is done anyway.
pub(super) fn holds(path: &str, value: &str) -> bool {
    HOLDS.contains(&(path, value))
}

/// Why a value cannot be used.
pub(super) fn refused(path: &str, value: &str) -> Option<&'static str> {
    REFUSED.iter().find(|(known, refused, _)| *known == path && *refused == value).map(|(.., why)| *why)
}

/// Whether there are members below a path.
pub(super) fn is_section(path: &str) -> bool {
    IGNORED.iter().any(|(member, _)| member.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')))
}

/// All members without effect, and those of which values are refused, for tests.
#[cfg(test)]
pub(super) fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    IGNORED.iter().copied()
}

#[cfg(test)]
pub(super) fn all_refused() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    REFUSED.iter().copied()
}
