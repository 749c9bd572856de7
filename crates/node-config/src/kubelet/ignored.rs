//! Members of upstream's KubeletConfiguration that have no effect here, with the reason.

const RUNTIME: &str = "the container runtime decides";
const CGROUPS: &str = "the agent makes no control groups; the container runtime does";
const RESOURCES: &str = "no resources are assigned or reserved here";
const CLIENT: &str = "the API client paces itself by the server's answers";
const PERIODS: &str = "changes are acted on as they come, and periods are fixed";
const SERVER: &str = "the server has one set of paths and one way to authenticate and authorize: client certificates and the API server";
const TLS: &str = "certificates come from tlsCertFile; the TLS library chooses versions and ciphers";
const LOGS: &str = "logs go to standard error; MULLION_LOG chooses how much";
const IMAGES: &str = "the age of an image alone is no reason to remove it";
const EVICTION: &str = "thresholds that are not given have no default, and limits of local storage hold always";
const NETWORK: &str = "the pod network and the service proxy care for it";
const NODE: &str = "the agent registers its Node by fixed rules";
const KERNEL: &str = "the kernel's settings stay as they are";
const SHUTDOWN: &str = "a shutdown of the host ends pods without a phase of its own";

/// Paths of members and sections.
const IGNORED: &[(&str, &str)] = &[
    ("enableServer", SERVER),
    ("podLogsDir", "logs of pods are in /var/log/pods"),
    ("syncFrequency", PERIODS),
    ("address", "the server listens at the node's address"),
    ("readOnlyPort", SERVER),
    ("tlsCipherSuites", TLS),
    ("tlsCurvePreferences", TLS),
    ("tlsMinVersion", TLS),
    ("rotateCertificates", TLS),
    ("serverTLSBootstrap", TLS),
    ("authentication.webhook", SERVER),
    ("authentication.anonymous", SERVER),
    ("authorization", SERVER),
    ("registryPullQPS", RUNTIME),
    ("registryBurst", RUNTIME),
    ("imagePullCredentialsVerificationPolicy", RUNTIME),
    ("preloadedImagesVerificationAllowlist", RUNTIME),
    ("eventRecordQPS", CLIENT),
    ("eventBurst", CLIENT),
    ("enableDebuggingHandlers", SERVER),
    ("enableContentionProfiling", SERVER),
    ("enableProfilingHandler", SERVER),
    ("enableDebugFlagsHandler", SERVER),
    ("enableSystemLogHandler", SERVER),
    ("enableSystemLogQuery", SERVER),
    ("oomScoreAdj", "whoever starts the agent can set it"),
    ("streamingConnectionIdleTimeout", PERIODS),
    ("nodeStatusUpdateFrequency", PERIODS),
    ("nodeStatusReportFrequency", PERIODS),
    ("nodeLeaseDurationSeconds", PERIODS),
    ("imageMaximumGCAge", IMAGES),
    ("volumeStatsAggPeriod", PERIODS),
    ("kubeletCgroups", CGROUPS),
    ("systemCgroups", CGROUPS),
    ("cgroupRoot", CGROUPS),
    ("cgroupsPerQOS", CGROUPS),
    ("cgroupDriver", CGROUPS),
    ("failCgroupV1", CGROUPS),
    ("singleProcessOOMKill", CGROUPS),
    ("systemReservedCgroup", CGROUPS),
    ("kubeReservedCgroup", CGROUPS),
    ("enforceNodeAllocatable", CGROUPS),
    ("memoryThrottlingFactor", CGROUPS),
    ("podPidsLimit", CGROUPS),
    ("cpuCFSQuota", CGROUPS),
    ("cpuCFSQuotaPeriod", CGROUPS),
    ("cpuManagerPolicy", RESOURCES),
    ("cpuManagerPolicyOptions", RESOURCES),
    ("cpuManagerReconcilePeriod", RESOURCES),
    ("memoryManagerPolicy", RESOURCES),
    ("topologyManagerPolicy", RESOURCES),
    ("topologyManagerPolicyOptions", RESOURCES),
    ("topologyManagerScope", RESOURCES),
    ("qosReserved", RESOURCES),
    ("reservedSystemCPUs", RESOURCES),
    ("reservedMemory", RESOURCES),
    ("runtimeRequestTimeout", PERIODS),
    ("hairpinMode", NETWORK),
    ("podCIDR", NETWORK),
    ("makeIPTablesUtilChains", NETWORK),
    ("iptablesMasqueradeBit", NETWORK),
    ("iptablesDropBit", NETWORK),
    ("resolvConf", "pods with dnsPolicy Default ask the cluster's server"),
    ("runOnce", "the agent runs until it is ended"),
    ("nodeStatusMaxImages", NODE),
    ("maxOpenFiles", "whoever starts the agent can set it"),
    ("contentType", CLIENT),
    ("kubeAPIQPS", CLIENT),
    ("kubeAPIBurst", CLIENT),
    ("serializeImagePulls", RUNTIME),
    ("maxParallelImagePulls", RUNTIME),
    ("mergeDefaultEvictionSettings", EVICTION),
    ("enableControllerAttachDetach", "volumes are attached by nobody"),
    ("protectKernelDefaults", KERNEL),
    ("kernelMemcgNotification", KERNEL),
    ("allowedUnsafeSysctls", KERNEL),
    ("failSwapOn", KERNEL),
    ("memorySwap", KERNEL),
    ("containerLogMaxWorkers", PERIODS),
    ("containerLogMonitorInterval", PERIODS),
    ("configMapAndSecretChangeDetectionStrategy", PERIODS),
    ("showHiddenMetricsForVersion", "no metric is hidden"),
    ("providerID", NODE),
    ("registerWithTaints", NODE),
    ("registerNode", NODE),
    ("logging", LOGS),
    ("shutdownGracePeriod", SHUTDOWN),
    ("shutdownGracePeriodCriticalPods", SHUTDOWN),
    ("shutdownGracePeriodByPodPriority", SHUTDOWN),
    ("crashLoopBackOff", PERIODS),
    ("seccompDefault", RUNTIME),
    ("tracing", "there is no tracing"),
    ("localStorageCapacityIsolation", EVICTION),
    ("imageServiceEndpoint", "images are pulled through containerRuntimeEndpoint"),
    ("userNamespaces", RUNTIME),
];

/// Why a member has no effect.
pub(super) fn reason(path: &str) -> Option<&'static str> {
    IGNORED.iter().find(|(known, _)| *known == path).map(|(_, why)| *why)
}

/// All members, for tests.
#[cfg(test)]
pub(super) fn all() -> impl Iterator<Item = &'static str> {
    IGNORED.iter().map(|(path, _)| *path)
}
