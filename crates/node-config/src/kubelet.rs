//! KubeletConfiguration, `kubelet.config.k8s.io/v1beta1`: the members that the node agent acts on.

mod access;
pub mod drop_ins;
mod gates;
mod ignored;
mod image_pulls;
mod node;
mod restarts;
mod shutdown;
mod swap;
mod taint;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;
use std::time::Duration;

use kube_rules::NodeOs;
use serde::{Deserialize, Serialize};

use crate::document::Document;
use crate::duration::GoDuration;
use crate::kube_proxy::Logging;
use crate::values::empty_is_none;
pub use access::{Anonymous, Authentication, AuthenticationWebhook, Authorization, AuthorizationMode, AuthorizationWebhook, UnknownMode, X509};
pub use gates::{FEATURE_GATES, FeatureGates};
pub use image_pulls::{ImagePulls, UnknownPolicy, VerificationPolicy};
pub use node::{CgroupDriver, LeaseSeconds, UnsafeSysctl};
pub use restarts::CrashLoopBackOff;
pub use shutdown::{ShutdownError, ShutdownGracePeriodByPodPriority};
pub use swap::{MemorySwap, SwapBehavior, UnknownSwapBehavior};
pub use taint::{Taint, TaintEffect};

/// The configuration of the node agent. Defaults are upstream's but for `clusterDomain`, which is `cluster.local`, and
/// `containerRuntimeEndpoint`, which has none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KubeletConfiguration {
    /// Serving certificate, a path to PEM.
    pub tls_cert_file: String,
    /// Its key, a path to PEM.
    pub tls_private_key_file: String,
    /// The oldest version of TLS that the server speaks, by upstream's names; empty for TLS 1.2.
    #[serde(rename = "tlsMinVersion")]
    pub tls_min_version: String,
    /// Suites of TLS 1.2 that the server has, by upstream's names; empty for all.
    #[serde(rename = "tlsCipherSuites")]
    pub tls_cipher_suites: Vec<String>,
    /// Key exchanges that the server has, as numbers of TLS; empty for all.
    #[serde(rename = "tlsCurvePreferences")]
    pub tls_curve_preferences: Vec<u16>,
    /// Whether the client certificate is replaced before its end.
    pub rotate_certificates: bool,
    /// Whether the serving certificate is asked for at the API server.
    #[serde(rename = "serverTLSBootstrap")]
    pub server_tls_bootstrap: bool,
    /// Which requests the server accepts.
    pub authentication: Authentication,
    /// What their senders may do.
    pub authorization: Authorization,
    /// Where the server listens; none is at the node's address.
    #[serde(with = "empty_is_none")]
    pub address: Option<IpAddr>,
    /// Port of the server.
    pub port: u16,
    /// Whether there is a server.
    pub enable_server: bool,
    /// Port of plain health checks; 0 for none.
    pub healthz_port: u16,
    /// Address of plain health checks.
    pub healthz_bind_address: IpAddr,
    pub cluster_domain: String,
    /// Cluster DNS servers.
    #[serde(rename = "clusterDNS")]
    pub cluster_dns: Vec<IpAddr>,
    /// Most pods on the node.
    pub max_pods: u32,
    /// Container runtime: `unix:///PATH`, `npipe:////./pipe/NAME` or `tcp://HOST:PORT`.
    pub container_runtime_endpoint: String,
    /// Where images are cared for; empty: by the container runtime.
    pub image_service_endpoint: String,
    /// Features by upstream's names.
    #[serde(deserialize_with = "gates::deserialize")]
    pub feature_gates: BTreeMap<String, bool>,
    /// Most pods for each processor; 0 for no such bound.
    pub pods_per_core: u32,
    /// Quantities that pods do not get, because the system needs them: `cpu`, `memory`, `ephemeral-storage`.
    pub system_reserved: BTreeMap<String, String>,
    /// The same for the node's own agents.
    pub kube_reserved: BTreeMap<String, String>,
    /// What has to stay free; a signal that is not named has no threshold.
    pub eviction_hard: EvictionHard,
    /// Whether `evictionHard` gets the defaults of the signals that it does not name.
    pub merge_default_eviction_settings: bool,
    /// What may be missing for a while only, as amounts by signal.
    pub eviction_soft: BTreeMap<String, String>,
    /// For how long, by signal.
    pub eviction_soft_grace_period: BTreeMap<String, GoDuration>,
    /// How much more has to be free before it is enough again, by signal.
    pub eviction_minimum_reclaim: BTreeMap<String, String>,
    /// How long a condition of the Node stays after its cause.
    pub eviction_pressure_transition_period: GoDuration,
    /// The longest that a pod gets to end at a soft threshold, in seconds.
    pub eviction_max_pod_grace_period: u32,
    /// How long a shutdown of the machine waits for pods; 0 for not at all.
    pub shutdown_grace_period: GoDuration,
    /// The part of it that only critical pods have, which end last.
    pub shutdown_grace_period_critical_pods: GoDuration,
    /// Periods by priority, in the place of these two.
    pub shutdown_grace_period_by_pod_priority: Vec<ShutdownGracePeriodByPodPriority>,
    /// A manifest of a static pod or a directory of them; empty for none.
    pub static_pod_path: String,
    /// A web server that sends static pods; empty for none.
    #[serde(rename = "staticPodURL")]
    pub static_pod_url: String,
    /// Headers of requests to it: values by name.
    #[serde(rename = "staticPodURLHeader")]
    pub static_pod_url_header: BTreeMap<String, Vec<String>>,
    /// Where container runtimes write the logs of pods.
    pub pod_logs_dir: String,
    /// Where flexvolume drivers are.
    pub volume_plugin_dir: String,
    /// How often manifests are read though they look unchanged.
    pub file_check_frequency: GoDuration,
    /// How often the web server is asked.
    pub http_check_frequency: GoDuration,
    /// Size from which on a container's log is rotated, a quantity.
    pub container_log_max_size: String,
    /// Log files a container keeps, the current one included.
    pub container_log_max_files: u32,
    /// How often logs are looked at.
    pub container_log_monitor_interval: GoDuration,
    /// Percent of the images' file system from which on unused images are removed; 100 for never.
    #[serde(rename = "imageGCHighThresholdPercent")]
    pub image_gc_high_threshold_percent: u8,
    /// Percent down to which they are.
    #[serde(rename = "imageGCLowThresholdPercent")]
    pub image_gc_low_threshold_percent: u8,
    /// How long an image stays at least.
    #[serde(rename = "imageMinimumGCAge")]
    pub image_minimum_gc_age: GoDuration,
    /// How images are pulled.
    #[serde(flatten)]
    pub image_pulls: ImagePulls,
    /// After how long without use an image is removed though there is room; 0 for never.
    #[serde(rename = "imageMaximumGCAge")]
    pub image_maximum_gc_age: GoDuration,
    /// How often the Node's status is computed.
    pub node_status_update_frequency: GoDuration,
    /// How often it is sent at least, though nothing changed.
    pub node_status_report_frequency: GoDuration,
    /// How long the node's lease holds, in seconds; it is renewed four times as often.
    pub node_lease_duration_seconds: LeaseSeconds,
    /// Most images that the Node's status names; -1 for no such bound.
    pub node_status_max_images: i32,
    /// How often each pod is looked at, though nothing says that it changed.
    pub sync_frequency: GoDuration,
    /// Whether the agent makes its Node.
    pub register_node: bool,
    /// Which machine of a cloud the Node is, written into a Node that is registered.
    #[serde(rename = "providerID")]
    pub provider_id: String,
    /// Taints of a Node that is registered.
    pub register_with_taints: Vec<Taint>,
    /// The resolver of pods with `dnsPolicy: Default`: a file of the form of resolv.conf, empty for none. Without a value it is the machine's.
    pub resolv_conf: Option<String>,
    /// Whether the server runs programs in containers, connects to pods and shows logs.
    pub enable_debugging_handlers: bool,
    /// How the container runtime makes control groups, where it does not say so itself.
    pub cgroup_driver: CgroupDriver,
    /// The control group below which those of pods are.
    pub cgroup_root: String,
    /// Whether pods have control groups of their own, by their class.
    #[serde(rename = "cgroupsPerQOS")]
    pub cgroups_per_qos: bool,
    /// For whom limits hold: `pods`, `system-reserved`, `kube-reserved`, either with `-compressible`, or `none`.
    pub enforce_node_allocatable: Vec<String>,
    /// The control group that gets what is reserved for the system.
    pub system_reserved_cgroup: String,
    /// The same for the node's own agents.
    pub kube_reserved_cgroup: String,
    /// Most processes of a pod; -1 for no such bound.
    pub pod_pids_limit: i64,
    /// How much of what better classes of pods request worse ones do not get, in percent by resource.
    pub qos_reserved: BTreeMap<String, String>,
    /// Whether the agent refuses machines with control groups of version 1.
    #[serde(rename = "failCgroupV1")]
    pub fail_cgroup_v1: bool,
    /// Whether limits of `cpu` hold.
    #[serde(rename = "cpuCFSQuota")]
    pub cpu_cfs_quota: bool,
    /// For how long such a limit counts.
    #[serde(rename = "cpuCFSQuotaPeriod")]
    pub cpu_cfs_quota_period: GoDuration,
    /// Swap of containers.
    pub memory_swap: MemorySwap,
    /// How long containers that end wait before they start again.
    pub crash_loop_back_off: CrashLoopBackOff,
    /// Whether one process of a container ends when memory runs out, and not all of them, which needs control groups of version 2.
    #[serde(rename = "singleProcessOOMKill")]
    pub single_process_oom_kill: bool,
    /// Whether containers without a seccomp profile have the runtime's.
    pub seccomp_default: bool,
    /// Kernel settings that pods may have beside the safe ones; a `*` at the end stands for any rest.
    pub allowed_unsafe_sysctls: Vec<UnsafeSysctl>,
    /// Whether the server shows the node's files of logs.
    pub enable_system_log_handler: bool,
    /// Whether it answers queries for the logs of services, too.
    pub enable_system_log_query: bool,
    /// Pods with users of their own.
    pub user_namespaces: UserNamespaces,
    pub logging: Logging,
}

/// `userNamespaces`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UserNamespaces {
    /// Ids that each such pod has.
    pub ids_per_pod: IdsPerPod,
}

/// `userNamespaces.idsPerPod`: a multiple of 65536.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub struct IdsPerPod(pub u32);

/// A number of ids that no pod can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdsPerPodError {
    #[error("it must not be less than {}", IdsPerPod::UNIT)]
    Few,
    #[error("it must be a multiple of {}", IdsPerPod::UNIT)]
    Multiple,
    #[error("it must not be more than {}", u32::MAX)]
    Many,
}

impl IdsPerPod {
    const UNIT: u32 = 65536;
}

impl Default for IdsPerPod {
    fn default() -> Self {
        Self(Self::UNIT)
    }
}

impl From<IdsPerPod> for i64 {
    fn from(ids: IdsPerPod) -> Self {
        ids.0.into()
    }
}

impl TryFrom<i64> for IdsPerPod {
    type Error = IdsPerPodError;

    fn try_from(ids: i64) -> Result<Self, IdsPerPodError> {
        match ids {
            few if few < Self::UNIT.into() => Err(IdsPerPodError::Few),
            odd if odd % i64::from(Self::UNIT) != 0 => Err(IdsPerPodError::Multiple),
            _ => u32::try_from(ids).map(Self).map_err(|_| IdsPerPodError::Many),
        }
    }
}

impl Default for KubeletConfiguration {
    fn default() -> Self {
        Self {
            tls_cert_file: String::new(),
            tls_private_key_file: String::new(),
            tls_min_version: String::new(),
            tls_cipher_suites: Vec::new(),
            tls_curve_preferences: Vec::new(),
            rotate_certificates: false,
            server_tls_bootstrap: false,
            authentication: Authentication::default(),
            authorization: Authorization::default(),
            address: None,
            port: 10250,
            enable_server: true,
            healthz_port: 10248,
            healthz_bind_address: Ipv4Addr::LOCALHOST.into(),
            cluster_domain: "cluster.local".to_owned(),
            cluster_dns: Vec::new(),
            max_pods: 110,
            container_runtime_endpoint: String::new(),
            image_service_endpoint: String::new(),
            feature_gates: BTreeMap::new(),
            pods_per_core: 0,
            system_reserved: BTreeMap::new(),
            kube_reserved: BTreeMap::new(),
            eviction_hard: EvictionHard::default(),
            merge_default_eviction_settings: false,
            eviction_soft: BTreeMap::new(),
            eviction_soft_grace_period: BTreeMap::new(),
            eviction_minimum_reclaim: BTreeMap::new(),
            eviction_pressure_transition_period: GoDuration(Duration::from_secs(300)),
            eviction_max_pod_grace_period: 0,
            shutdown_grace_period: GoDuration::default(),
            shutdown_grace_period_critical_pods: GoDuration::default(),
            shutdown_grace_period_by_pod_priority: Vec::new(),
            static_pod_path: String::new(),
            static_pod_url: String::new(),
            static_pod_url_header: BTreeMap::new(),
            pod_logs_dir: "/var/log/pods".to_owned(),
            volume_plugin_dir: "/usr/libexec/kubernetes/kubelet-plugins/volume/exec".to_owned(),
            file_check_frequency: GoDuration(Duration::from_secs(20)),
            http_check_frequency: GoDuration(Duration::from_secs(20)),
            container_log_max_size: "10Mi".to_owned(),
            container_log_max_files: 5,
            container_log_monitor_interval: GoDuration(Duration::from_secs(10)),
            image_gc_high_threshold_percent: 85,
            image_gc_low_threshold_percent: 80,
            image_minimum_gc_age: GoDuration(Duration::from_secs(120)),
            image_pulls: ImagePulls::default(),
            image_maximum_gc_age: GoDuration(Duration::ZERO),
            node_status_update_frequency: GoDuration(Duration::from_secs(10)),
            node_status_report_frequency: GoDuration(Duration::from_secs(300)),
            node_lease_duration_seconds: LeaseSeconds::default(),
            node_status_max_images: 50,
            sync_frequency: GoDuration(Duration::from_secs(60)),
            register_node: true,
            provider_id: String::new(),
            enable_debugging_handlers: true,
            cgroup_driver: CgroupDriver::default(),
            cgroup_root: "/".to_owned(),
            cgroups_per_qos: true,
            enforce_node_allocatable: vec!["pods".to_owned()],
            system_reserved_cgroup: String::new(),
            kube_reserved_cgroup: String::new(),
            pod_pids_limit: -1,
            qos_reserved: BTreeMap::new(),
            fail_cgroup_v1: false,
            cpu_cfs_quota: true,
            cpu_cfs_quota_period: GoDuration(Duration::from_millis(100)),
            memory_swap: MemorySwap::default(),
            crash_loop_back_off: CrashLoopBackOff::default(),
            single_process_oom_kill: false,
            seccomp_default: false,
            allowed_unsafe_sysctls: Vec::new(),
            register_with_taints: Vec::new(),
            resolv_conf: None,
            enable_system_log_handler: true,
            enable_system_log_query: false,
            user_namespaces: UserNamespaces::default(),
            logging: Logging::default(),
        }
    }
}

impl Document for KubeletConfiguration {
    const API_VERSION: &'static str = "kubelet.config.k8s.io/v1beta1";
    const KIND: &'static str = "KubeletConfiguration";
    // `healthzPort: 0` switches the health checks off, as upstream.
    const ZERO_IS_DEFAULT: &'static [&'static str] = &["port", "maxPods", "nodeLeaseDurationSeconds", "registryBurst"];
    const MAPS: &'static [&'static str] = &[
        "featureGates",
        "evictionHard",
        "evictionSoft",
        "evictionSoftGracePeriod",
        "evictionMinimumReclaim",
        "systemReserved",
        "kubeReserved",
        "qosReserved",
        "staticPodURLHeader",
    ];

    const EMPTY_COUNTS: &'static [&'static str] = &["resolvConf"];

    fn ignored(path: &str) -> Option<&'static str> {
        ignored::reason(path)
    }

    fn holds(path: &str, value: &str) -> bool {
        ignored::holds(path, value)
    }

    fn refused(path: &str, value: &str) -> Option<&'static str> {
        ignored::refused(path, value)
    }

    fn is_section(path: &str) -> bool {
        ignored::is_section(path)
    }

    fn complete(&mut self, is_given: &dyn Fn(&str) -> bool, warnings: &mut Vec<String>) {
        for signal in self.eviction_hard.0.keys().filter(|signal| !EvictionHard::SIGNALS.contains(&signal.as_str())) {
            warnings.push(format!("evictionHard: {signal} has no effect: there are {}", EvictionHard::SIGNALS.join(", ")));
        }
        self.eviction_hard.0.retain(|signal, _| EvictionHard::SIGNALS.contains(&signal.as_str()));
        // Upstream ignores these too: where containers have their files, the thresholds of nodefs or imagefs hold.
        let of_containers = |signal: &str| signal.starts_with("containerfs.");
        for signal in self.eviction_soft.keys().filter(|signal| of_containers(signal)) {
            warnings.push(format!("evictionSoft: {signal} has no effect: the thresholds of nodefs and imagefs hold for containers, too"));
        }
        self.eviction_soft.retain(|signal, _| !of_containers(signal));
        self.eviction_minimum_reclaim.retain(|signal, _| !of_containers(signal));
        if is_given("evictionHard") {
            self.eviction_hard.keep_empty();
        }
        if is_given("nodeStatusUpdateFrequency") && !is_given("nodeStatusReportFrequency") {
            self.node_status_report_frequency = self.node_status_update_frequency;
        }
        if !is_given("serializeImagePulls") && self.image_pulls.max_parallel_image_pulls > 1 {
            self.image_pulls.serialize_image_pulls = false;
        }
        self.drop_idle_gates(warnings);
    }
}

impl KubeletConfiguration {
    /// Takes out feature gates without an effect, with a warning for each that upstream would act on.
    pub(crate) fn drop_idle_gates(&mut self, warnings: &mut Vec<String>) {
        gates::drop_idle(&mut self.feature_gates, warnings);
    }

    /// Whether a gate of [`FEATURE_GATES`] is on.
    pub fn has_feature(&self, gate: &str) -> bool {
        gates::is_on(&self.feature_gates, gate)
    }
}

/// Hard eviction thresholds by signal, as `memory.available<100Mi,nodefs.available<10%` on command lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EvictionHard(pub BTreeMap<String, String>);

impl EvictionHard {
    /// The signals that are acted on.
    pub const SIGNALS: [&'static str; 7] = [
        "memory.available",
        "allocatableMemory.available",
        "nodefs.available",
        "nodefs.inodesFree",
        "imagefs.available",
        "imagefs.inodesFree",
        "pid.available",
    ];

    fn of<const N: usize>(amounts: [(&str, &str); N]) -> Self {
        Self(amounts.map(|(signal, amount)| (signal.to_owned(), amount.to_owned())).into())
    }

    /// Upstream's default for an operating system.
    pub fn of_system(os: NodeOs) -> Self {
        if os.is_windows() { Self::of_windows() } else { Self::default() }
    }

    /// Keeps thresholds that were taken away taken away: an empty object would stand for the defaults.
    pub(crate) fn keep_empty(&mut self) {
        if self.0.is_empty() {
            self.0.insert(Self::SIGNALS[0].to_owned(), "0".to_owned());
        }
    }

    /// Upstream's default for Windows: there are no inodes, and the commit limit needs more room.
    pub fn of_windows() -> Self {
        Self::of([("memory.available", "500Mi"), ("nodefs.available", "10%"), ("imagefs.available", "15%")])
    }
}

impl Default for EvictionHard {
    fn default() -> Self {
        Self::of([
            ("memory.available", "100Mi"),
            ("nodefs.available", "10%"),
            ("nodefs.inodesFree", "5%"),
            ("imagefs.available", "15%"),
            ("imagefs.inodesFree", "5%"),
        ])
    }
}

impl fmt::Display for EvictionHard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().map(|(signal, amount)| format!("{signal}<{amount}")).collect::<Vec<_>>().join(","))
    }
}

/// A flag of the node agent whose value cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// `--eviction-hard` has a part without `<`.
    #[error("invalid eviction threshold {0:?}: write SIGNAL<AMOUNT")]
    Threshold(String),
    /// `--register-with-taints` has something else.
    #[error("invalid taint {0:?}: write KEY=VALUE:EFFECT, with the effect NoSchedule, PreferNoSchedule or NoExecute")]
    Taint(String),
    /// `--manifest-url-header` has a part without a colon.
    #[error("invalid header {0:?}: write NAME:VALUE")]
    Header(String),
    /// `--node-labels` has a name alone.
    #[error("missing value for {0}: write NAME=VALUE")]
    NoValue(String),
    /// `--feature-gates` has a name alone.
    #[error("missing bool value for {0}: write NAME=true or NAME=false")]
    NoGateValue(String),
    /// `--feature-gates` has a name that there is not.
    #[error("unrecognized feature gate: {0}; those of Kubernetes 1.36 are known, and of them these have an effect: {known}", known = gates::known())]
    UnknownGate(String),
    /// A feature gate that has one value alone.
    #[error("cannot set feature gate {name} to {value}, feature is locked to {locked}; leave it out")]
    LockedGate {
        name: String,
        /// The value that was given.
        value: bool,
        /// The value that it has.
        locked: bool,
    },
    /// `--feature-gates` has another value than true or false.
    #[error("invalid value of {0}: write true or false")]
    GateValue(String),
}

impl FromStr for EvictionHard {
    type Err = FlagError;

    fn from_str(text: &str) -> Result<Self, FlagError> {
        let pair = |part: &str| {
            let (signal, amount) = part.split_once('<').ok_or_else(|| FlagError::Threshold(part.to_owned()))?;
            Ok((signal.to_owned(), amount.to_owned()))
        };
        text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(pair).collect::<Result<_, _>>().map(Self)
    }
}

/// The rows of the documentation's table of members without effect.
#[cfg(test)]
pub(crate) fn documentation() -> Vec<String> {
    let ignored = ignored::all().map(|(path, why)| format!("| `{path}` | no effect: {why} |"));
    let refused = ignored::all_refused().map(|(path, value, why)| format!("| `{path}: {value}` | refused: {why} |"));
    let mut rows: Vec<_> = ignored.chain(refused).collect();
    rows.sort();
    rows
}
