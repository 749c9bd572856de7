//! The table of flags.

use crate::flags::{self, Kind};

/// Where the value of a flag goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A member of KubeletConfiguration; whether it has an effect, the member says.
    Agent(&'static str),
    /// A member of NodeConfiguration.
    Node(&'static str),
    /// A member of KubeProxyConfiguration.
    Proxy(&'static str),
    /// A field of `CommandFlags`.
    Alone,
    /// Nowhere.
    Ignored,
    /// Nowhere, and the program ends.
    Refused,
}

pub(super) struct Flag {
    pub(super) name: &'static str,
    pub(super) place: Place,
    pub(super) kind: Kind,
    /// What it does; of one without effect: why. Empty where the member says why.
    pub(super) what: &'static str,
}

impl flags::Flag for Flag {
    fn name(&self) -> &'static str {
        self.name
    }

    fn kind(&self) -> Kind {
        self.kind
    }
}

const fn agent(name: &'static str, path: &'static str, kind: Kind, what: &'static str) -> Flag {
    Flag { name, place: Place::Agent(path), kind, what }
}

/// A flag whose member has no effect.
const fn idle(name: &'static str, path: &'static str, kind: Kind) -> Flag {
    Flag { name, place: Place::Agent(path), kind, what: "" }
}

const fn node(name: &'static str, path: &'static str, kind: Kind, what: &'static str) -> Flag {
    Flag { name, place: Place::Node(path), kind, what }
}

const fn alone(name: &'static str, kind: Kind, what: &'static str) -> Flag {
    Flag { name, place: Place::Alone, kind, what }
}

const fn ignored(name: &'static str, kind: Kind, why: &'static str) -> Flag {
    Flag { name, place: Place::Ignored, kind, what: why }
}

const fn refused(name: &'static str, why: &'static str) -> Flag {
    Flag { name, place: Place::Refused, kind: Text, what: why }
}

use Kind::{List, Map, Switch, Text};

const CADVISOR: &str = "there is no cAdvisor: statistics come from the container runtime and the operating system";
const CGROUPS: &str = "whoever starts a program chooses its control group";
const FORMER: &str = "upstream removed it";
const LOG: &str = "logs go to standard error or --log-file; MULLION_LOG chooses how much";
const NETWORK: &str = "the pod network and the service proxy care for it";
const API_SERVERS: &str = "the API server is named in a kubeconfig today; write {apiVersion: v1, kind: Config, clusters: [{name: c, \
    cluster: {server: \"http://HOST:PORT\"}}], contexts: [{name: c, context: {cluster: c}}], current-context: c} into a file, and give it with \
    --kubeconfig=FILE";

/// Every flag of upstream's, former ones, and ours.
pub(super) const FLAGS: &[Flag] = &[
    alone("config", Text, "configuration file: KubeletConfiguration, NodeConfiguration and KubeProxyConfiguration, each at most once"),
    alone("config-dir", Text, "directory of drop-in files *.conf, each a KubeletConfiguration that is merged into that of --config"),
    alone("kubeadm-flags", Text, "kubeadm's file of flags for this machine, kubeadm-flags.env: they count in the place of this flag"),
    node("kubeconfig", "kubeconfig", Text, "kubeconfig with the node's identity"),
    node(
        "bootstrap-kubeconfig",
        "bootstrapKubeconfig",
        Text,
        "kubeconfig that may ask for a client certificate: used when that of --kubeconfig is missing or has none that is good, which is written then",
    ),
    node("hostname-override", "nodeName", Text, "name of the Node (default: the host's name in lower case)"),
    node(
        "node-ip",
        "nodeIP",
        Text,
        "address of the node that others reach it at; with two address families ADDRESS,ADDRESS, the primary one first (default: what name servers give for the node's name, else that of the default route)",
    ),
    node("node-labels", "nodeLabels", Map, "labels of a Node that is registered, as NAME=VALUE"),
    agent("register-with-taints", "registerWithTaints", List, "taints of a Node that is registered, as KEY=VALUE:EFFECT"),
    node(
        "cloud-provider",
        "cloudProvider",
        Text,
        "external: a cloud's controllers say the Node's addresses, and take away the taint node.cloudprovider.kubernetes.io/uninitialized",
    ),
    node("root-dir", "rootDir", Text, "the agent's own directory on the node"),
    node("cert-dir", "certDir", Text, "where certificates go (default: pki below --root-dir)"),
    agent(
        "container-runtime-endpoint",
        "containerRuntimeEndpoint",
        Text,
        "container runtime: unix:///PATH, npipe:////./pipe/NAME or tcp://HOST:PORT (default: containerd's)",
    ),
    agent("image-service-endpoint", "imageServiceEndpoint", Text, "where images are cared for, in the same forms (default: the container runtime)"),
    agent("cluster-dns", "clusterDNS", List, "cluster DNS servers"),
    agent("cluster-domain", "clusterDomain", Text, "cluster domain"),
    agent("resolv-conf", "resolvConf", Text, "file of the resolver that pods with dnsPolicy Default have; empty for none (default: the machine's)"),
    agent("address", "address", Text, "where the server listens (default: the node's address)"),
    agent("port", "port", Text, "port of the server"),
    agent("enable-server", "enableServer", Switch, "whether there is a server"),
    agent("tls-cert-file", "tlsCertFile", Text, "serving certificate, PEM (default: a self-signed one in --cert-dir)"),
    agent("tls-private-key-file", "tlsPrivateKeyFile", Text, "its key, PEM"),
    agent(
        "tls-min-version",
        "tlsMinVersion",
        Text,
        "oldest version of TLS that the server speaks: VersionTLS12 or VersionTLS13 (default: VersionTLS12)",
    ),
    agent("tls-cipher-suites", "tlsCipherSuites", List, "suites of TLS 1.2 that the server has, by Go's names (default: all that it knows)"),
    agent("rotate-certificates", "rotateCertificates", Switch, "ask for a new client certificate before the old one ends"),
    agent(
        "rotate-server-certificates",
        "serverTLSBootstrap",
        Switch,
        "ask the API server for the serving certificate, and for a new one before it ends; an administrator approves the requests",
    ),
    agent("client-ca-file", "authentication.x509.clientCAFile", Text, "CA that signs client certificates, PEM (default: clients need tokens)"),
    agent("healthz-bind-address", "healthzBindAddress", Text, "address of plain health checks"),
    agent("healthz-port", "healthzPort", Text, "port of plain health checks; 0 for none"),
    agent("max-pods", "maxPods", Text, "most pods on the node"),
    agent("pods-per-core", "podsPerCore", Text, "most pods for each processor; 0 for no such bound"),
    agent("system-reserved", "systemReserved", Map, "what pods do not get because the system needs it, as cpu=200m,memory=500Mi"),
    agent("kube-reserved", "kubeReserved", Map, "the same for the node's own agents"),
    agent("eviction-hard", "evictionHard", Map, "what has to stay free, as memory.available<100Mi,nodefs.available<10%: pods are evicted for it"),
    agent("eviction-soft", "evictionSoft", Map, "what may be missing for a while only"),
    agent("eviction-soft-grace-period", "evictionSoftGracePeriod", Map, "for how long, as memory.available=1m30s"),
    agent("eviction-minimum-reclaim", "evictionMinimumReclaim", Map, "how much more has to be free before it is enough again"),
    agent("eviction-pressure-transition-period", "evictionPressureTransitionPeriod", Text, "how long a condition of the Node stays after its cause"),
    agent("eviction-max-pod-grace-period", "evictionMaxPodGracePeriod", Text, "the longest that a pod gets to end at a soft threshold, in seconds"),
    agent("pod-manifest-path", "staticPodPath", Text, "manifest of a static pod, or directory of them, on the node"),
    agent("file-check-frequency", "fileCheckFrequency", Text, "how often manifests are read though they look unchanged"),
    agent("manifest-url", "staticPodURL", Text, "web server that sends static pods"),
    agent("manifest-url-header", "staticPodURLHeader", Map, "headers of requests to it, as NAME:VALUE"),
    agent("http-check-frequency", "httpCheckFrequency", Text, "how often the web server is asked"),
    agent("container-log-max-size", "containerLogMaxSize", Text, "size from which on a container's log is rotated"),
    agent("container-log-max-files", "containerLogMaxFiles", Text, "log files a container keeps, the current one included"),
    agent(
        "image-gc-high-threshold",
        "imageGCHighThresholdPercent",
        Text,
        "percent of the images' file system from which on unused images are removed; 100 for never",
    ),
    agent("image-gc-low-threshold", "imageGCLowThresholdPercent", Text, "percent down to which they are"),
    agent("serialize-image-pulls", "serializeImagePulls", Switch, "whether images are pulled one by one"),
    agent("registry-qps", "registryPullQPS", Text, "pulls of images that begin in a second on average; 0 for no such bound"),
    agent("registry-burst", "registryBurst", Text, "how many pulls may begin at once after a pause"),
    agent("minimum-image-ttl-duration", "imageMinimumGCAge", Text, "how long an image stays at least"),
    agent(
        "allowed-unsafe-sysctls",
        "allowedUnsafeSysctls",
        List,
        "kernel settings that pods may have beside the safe ones, as net.core.somaxconn,kernel.msg*",
    ),
    agent("cgroup-driver", "cgroupDriver", Text, "how a container runtime that does not say so makes control groups: cgroupfs or systemd"),
    agent("cpu-cfs-quota", "cpuCFSQuota", Switch, "whether limits of cpu hold"),
    agent("cpu-cfs-quota-period", "cpuCFSQuotaPeriod", Text, "for how long a limit of cpu counts, from 1ms to 1s"),
    agent(
        "enable-debugging-handlers",
        "enableDebuggingHandlers",
        Switch,
        "whether the server runs programs in containers, connects to pods and shows logs",
    ),
    agent("node-status-max-images", "nodeStatusMaxImages", Text, "most images that the Node's status names; -1 for no such bound"),
    agent("provider-id", "providerID", Text, "which machine of a cloud a Node is that is registered"),
    agent("register-node", "registerNode", Switch, "whether the agent makes its Node"),
    agent("seccomp-default", "seccompDefault", Switch, "whether containers without a seccomp profile have the runtime's"),
    agent("sync-frequency", "syncFrequency", Text, "how often each pod is looked at, though nothing says that it changed"),
    agent("node-status-update-frequency", "nodeStatusUpdateFrequency", Text, "how often the Node's status is computed"),
    agent("feature-gates", "featureGates", Map, "switches by upstream's names, as HyperVContainer=true"),
    agent("v", "logging.verbosity", Text, "from 4 on logs show more"),
    alone("log-file", Text, "append the log to a file; a Windows service has no standard error"),
    alone("windows-priorityclass", Text, "Windows: priority of this process and those that it starts, as ABOVE_NORMAL_PRIORITY_CLASS"),
    alone("windows-service", Switch, "Windows: the service control manager starts and stops this process"),
    alone("version", Switch, "print the version, and end"),
    alone("help", Switch, "print this, and end"),
    node("os", "os", Text, "what the node runs: linux, windows or windows:BUILD"),
    node("root", "roots", List, "directory that is the root of the node's files; on Windows one per drive, as C=DIR (default: the machine's)"),
    node("hcn", "hcn", Text, "Host Networking Service of a Windows node, unix:PATH or tcp:HOST:PORT (default: MULLION_HCN, else the system's DLL)"),
    node("cpu", "cpu", Text, "CPUs that the node declares (default: the machine's; 8 on a simulated host)"),
    node("memory", "memory", Text, "memory that the node declares (default: the machine's; 16Gi on a simulated host)"),
    node("machine-id", "machineID", Text, "identity of the machine, for a simulated host (default: the real one's)"),
    node("boot-id", "bootID", Text, "identity of this boot, for a simulated host"),
    node("without", "without", List, "parts that are left out: kubelet, proxy, fabric"),
    Flag {
        name: "cluster-cidr",
        place: Place::Proxy("clusterCIDR"),
        kind: List,
        what: "every pod's address lies here; with two address families NETWORK,NETWORK",
    },
    node("service-cidr", "serviceCIDR", Text, "every ClusterIP lies here, alike"),
    node("lan", "lan", Text, "the network of the nodes, alike"),
    node("network", "network", Text, "how pods of different nodes reach each other (default: host-gateway)"),
    node("adapter", "adapter", Text, "adapter that carries the pod network of a Windows node"),
    node("loopback-dsr", "loopbackDSR", Switch, "whether pods of a Windows node reach themselves through their Services"),
    node("flannel-net-conf", "flannelNetConf", Text, "flannel's net-conf.json, which says mode and tunnel in the place of --network"),
    node("flannel-subnet-env", "flannelSubnetEnv", Text, "where flannel's subnet.env goes, for plug-ins that read it (default: nowhere)"),
    node("network-policy", "networkPolicy", Switch, "put NetworkPolicies and ClusterNetworkPolicies into effect on this node's pods"),
    node(
        "service-interface",
        "serviceInterface",
        Text,
        "interface that gets the Services' addresses where they are served in user space (default: none)",
    ),
    node(
        "cni-conf-dir",
        "cniConfDir",
        Text,
        "where the pod network writes the CNI configuration (default: /etc/cni/net.d, on Windows that of containerd)",
    ),
    node("ipam-dir", "ipamDir", Text, "where host-local address management keeps its reservations"),
    agent("anonymous-auth", "authentication.anonymous.enabled", Switch, "whether clients that show nothing are system:anonymous, instead of refused"),
    agent(
        "authentication-token-webhook",
        "authentication.webhook.enabled",
        Switch,
        "whether clients may show tokens, which the API server knows (default: true)",
    ),
    agent("authentication-token-webhook-cache-ttl", "authentication.webhook.cacheTTL", Text, "how long its answer counts (default: 2m0s)"),
    agent(
        "authorization-mode",
        "authorization.mode",
        Text,
        "who decides what known clients may do: Webhook (the API server, the default) or AlwaysAllow",
    ),
    agent("authorization-webhook-cache-authorized-ttl", "authorization.webhook.cacheAuthorizedTTL", Text, "how long its yes counts (default: 5m0s)"),
    agent(
        "authorization-webhook-cache-unauthorized-ttl",
        "authorization.webhook.cacheUnauthorizedTTL",
        Text,
        "how long its no counts (default: 30s)",
    ),
    agent("cgroup-root", "cgroupRoot", Text, "control group below which those of pods are (default: /)"),
    agent("cgroups-per-qos", "cgroupsPerQOS", Switch, "whether pods have control groups of their own, by their class"),
    idle("contention-profiling", "enableContentionProfiling", Switch),
    idle("cpu-manager-policy", "cpuManagerPolicy", Text),
    idle("cpu-manager-policy-options", "cpuManagerPolicyOptions", Map),
    idle("cpu-manager-reconcile-period", "cpuManagerReconcilePeriod", Text),
    idle("enable-controller-attach-detach", "enableControllerAttachDetach", Switch),
    agent(
        "enforce-node-allocatable",
        "enforceNodeAllocatable",
        List,
        "for whom limits hold: pods, system-reserved, kube-reserved, either with -compressible, or none",
    ),
    idle("event-burst", "eventBurst", Text),
    idle("event-qps", "eventRecordQPS", Text),
    agent("fail-cgroupv1", "failCgroupV1", Switch, "refuse machines with control groups of version 1"),
    idle("fail-swap-on", "failSwapOn", Switch),
    idle("hairpin-mode", "hairpinMode", Text),
    idle("kernel-memcg-notification", "kernelMemcgNotification", Switch),
    idle("kube-api-burst", "kubeAPIBurst", Text),
    idle("kube-api-content-type", "contentType", Text),
    idle("kube-api-qps", "kubeAPIQPS", Text),
    agent("kube-reserved-cgroup", "kubeReservedCgroup", Text, "control group that gets what is reserved for the node's own agents"),
    idle("kubelet-cgroups", "kubeletCgroups", Text),
    idle("local-storage-capacity-isolation", "localStorageCapacityIsolation", Switch),
    idle("log-flush-frequency", "logging.flushFrequency", Text),
    idle("log-json-info-buffer-size", "logging.options.json.infoBufferSize", Text),
    idle("log-json-split-stream", "logging.options.json.splitStream", Switch),
    idle("log-text-info-buffer-size", "logging.options.text.infoBufferSize", Text),
    idle("log-text-split-stream", "logging.options.text.splitStream", Switch),
    idle("logging-format", "logging.format", Text),
    idle("vmodule", "logging.vmodule", Text),
    idle("make-iptables-util-chains", "makeIPTablesUtilChains", Switch),
    idle("max-open-files", "maxOpenFiles", Text),
    idle("memory-manager-policy", "memoryManagerPolicy", Text),
    idle("oom-score-adj", "oomScoreAdj", Text),
    idle("pod-cidr", "podCIDR", Text),
    agent("pod-max-pids", "podPidsLimit", Text, "most processes of a pod; -1 for no such bound"),
    idle("protect-kernel-defaults", "protectKernelDefaults", Switch),
    agent("qos-reserved", "qosReserved", Map, "how much of what better pods request worse ones do not get, as memory=50%"),
    idle("read-only-port", "readOnlyPort", Text),
    idle("reserved-cpus", "reservedSystemCPUs", Text),
    idle("reserved-memory", "reservedMemory", List),
    idle("runonce", "runOnce", Switch),
    idle("runtime-request-timeout", "runtimeRequestTimeout", Text),
    idle("streaming-connection-idle-timeout", "streamingConnectionIdleTimeout", Text),
    idle("system-cgroups", "systemCgroups", Text),
    agent("system-reserved-cgroup", "systemReservedCgroup", Text, "control group that gets what is reserved for the system"),
    idle("topology-manager-policy", "topologyManagerPolicy", Text),
    idle("topology-manager-policy-options", "topologyManagerPolicyOptions", Map),
    idle("topology-manager-scope", "topologyManagerScope", Text),
    agent("volume-plugin-dir", "volumePluginDir", Text, "directory of flexvolume drivers on the node"),
    idle("volume-stats-agg-period", "volumeStatsAggPeriod", Text),
    ignored("runtime-cgroups", Text, CGROUPS),
    ignored("lock-file", Text, "two agents cannot listen on one port"),
    ignored("exit-on-lock-contention", Switch, "two agents cannot listen on one port"),
    ignored("experimental-mounter-path", Text, "no program mounts volumes"),
    ignored("experimental-allocatable-ignore-eviction", Switch, "what is kept free for evictionHard is no part of allocatable"),
    node(
        "minimum-container-ttl-duration",
        "minimumContainerTTLDuration",
        Text,
        "how long a container stays at least after its creation, dead or not",
    ),
    node("maximum-dead-containers", "maximumDeadContainers", Text, "dead containers that stay, of all pods; -1 for no such bound"),
    node(
        "maximum-dead-containers-per-container",
        "maximumDeadContainersPerContainer",
        Text,
        "dead attempts of each container that stay; -1 for no such bound",
    ),
    node(
        "image-credential-provider-config",
        "imageCredentialProviderConfig",
        Text,
        "file of kind CredentialProviderConfig on the node, or a directory of such files",
    ),
    node("image-credential-provider-bin-dir", "imageCredentialProviderBinDir", Text, "directory of credential providers' programs on the node"),
    ignored("housekeeping-interval", Text, CADVISOR),
    ignored("max-housekeeping-interval", Text, CADVISOR),
    ignored("application-metrics-count-limit", Text, CADVISOR),
    ignored("boot-id-file", Text, CADVISOR),
    ignored("container-hints", Text, CADVISOR),
    ignored("containerd", Text, CADVISOR),
    ignored("containerd-namespace", Text, CADVISOR),
    ignored("enable-load-reader", Switch, CADVISOR),
    ignored("event-storage-age-limit", Text, CADVISOR),
    ignored("event-storage-event-limit", Text, CADVISOR),
    ignored("global-housekeeping-interval", Text, CADVISOR),
    ignored("log-cadvisor-usage", Switch, CADVISOR),
    ignored("machine-id-file", Text, CADVISOR),
    ignored("storage-driver-user", Text, CADVISOR),
    ignored("storage-driver-password", Text, CADVISOR),
    ignored("storage-driver-host", Text, CADVISOR),
    ignored("storage-driver-db", Text, CADVISOR),
    ignored("storage-driver-table", Text, CADVISOR),
    ignored("storage-driver-secure", Switch, CADVISOR),
    ignored("storage-driver-buffer-duration", Text, CADVISOR),
    refused("api-servers", API_SERVERS),
    refused("master", API_SERVERS),
    ignored("pod-infra-container-image", Text, "the container runtime chooses the sandbox's image"),
    ignored("container-runtime", Text, "every container runtime is reached through CRI"),
    ignored("network-plugin", Text, "the container runtime calls CNI"),
    ignored("cni-bin-dir", Text, "the container runtime calls CNI"),
    ignored("cni-cache-dir", Text, "the container runtime calls CNI"),
    ignored("network-plugin-mtu", Text, "the container runtime calls CNI"),
    ignored("non-masquerade-cidr", Text, NETWORK),
    ignored("require-kubeconfig", Switch, FORMER),
    ignored("allow-privileged", Switch, FORMER),
    ignored("register-schedulable", Switch, "taints keep pods away: --register-with-taints"),
    ignored("master-service-namespace", Text, FORMER),
    ignored("cadvisor-port", Text, CADVISOR),
    ignored("image-pull-progress-deadline", Text, FORMER),
    ignored("keep-terminated-pod-volumes", Switch, FORMER),
    ignored("dynamic-config-dir", Text, "upstream removed dynamic configuration; use --config-dir"),
    ignored("docker-endpoint", Text, "every container runtime is reached through CRI"),
    ignored("enable-cadvisor-json-endpoints", Switch, CADVISOR),
    ignored("azure-container-registry-config", Text, FORMER),
    ignored("log-dir", Text, LOG),
    ignored("logtostderr", Switch, LOG),
    ignored("alsologtostderr", Switch, LOG),
    ignored("stderrthreshold", Text, LOG),
    ignored("log-backtrace-at", Text, LOG),
    ignored("log-file-max-size", Text, LOG),
    ignored("add-dir-header", Switch, LOG),
    ignored("one-output", Switch, LOG),
    ignored("skip-headers", Switch, LOG),
    ignored("skip-log-headers", Switch, LOG),
];
