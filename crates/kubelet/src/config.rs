//! Configuration of the agent.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::{IpAddr, TcpListener};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use host::{HostFacts, HostRoot, NodeOs};
use k8s_openapi::api::core::v1::Taint;
use kube_rules::Amounts;
use tokio::sync::watch;

use crate::certificates::Counts;
use crate::certificates::serving::{ServingCertificate, TlsSettings};
use crate::eviction::Eviction;
use crate::images::records::decide::Verification;
use crate::node_logs::SystemLogs;
use crate::shutdown::Shutdown;

/// Declared size of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Thousandths of a CPU.
    pub cpu_millis: i64,
    pub memory_bytes: u64,
    pub pods: u32,
    /// Bytes of the agent's file system; 0 asks the file system.
    pub ephemeral_storage_bytes: u64,
}

/// Resolver settings of the host, for pods with `dnsPolicy: Default`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolver {
    pub servers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// Options such as `ndots:5`.
    pub options: Vec<String>,
    /// The node was told to have no resolver: such pods ask themselves.
    pub is_off: bool,
    /// The file that all this is from; empty where it is from none.
    pub file: String,
}

impl Resolver {
    /// That of a node whose `resolvConf` is empty: such pods find a server at most beside them, in each family that the node has.
    pub fn off(node_ips: &[IpAddr]) -> Self {
        let mut servers: Vec<String> = node_ips.iter().map(|ip| if ip.is_ipv6() { "::1" } else { "127.0.0.1" }.to_owned()).collect();
        if servers.is_empty() {
            servers.push("127.0.0.1".to_owned());
        }
        Resolver { servers, is_off: true, ..Self::default() }
    }

    /// Of a file of the form of resolv.conf: of several `search` lines the last counts, of several options with one name as well, as upstream
    /// reads them.
    pub fn parse(text: &str) -> Self {
        let mut resolver = Self::default();
        for line in text.lines().filter(|line| !line.trim_start().starts_with(['#', ';'])) {
            let mut words = line.split_whitespace();
            let (keyword, rest) = (words.next(), words.map(str::to_owned));
            match keyword {
                Some("nameserver") => resolver.servers.extend(rest.take(1)),
                Some("search") => {
                    let domain = |name: String| name.strip_suffix('.').map(str::to_owned).unwrap_or(name);
                    resolver.searches = rest.filter(|name| name != ".").map(domain).collect();
                }
                Some("options") => {
                    for option in rest {
                        let name = |option: &str| option.split(':').next().map(str::to_owned);
                        resolver.options.retain(|other| name(other) != name(&option));
                        resolver.options.push(option);
                    }
                }
                _ => {}
            }
        }
        resolver
    }
}

/// When container logs are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRotation {
    /// Bytes from which on a log is rotated (upstream's `containerLogMaxSize`).
    pub max_size: u64,
    /// Files a container keeps, the current one included (`containerLogMaxFiles`).
    pub max_files: u32,
    /// How often they are looked at (`containerLogMonitorInterval`).
    pub interval: Duration,
}

impl Default for LogRotation {
    fn default() -> Self {
        LogRotation { max_size: 10 << 20, max_files: 5, interval: Duration::from_secs(10) }
    }
}

/// When unused images are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageCollection {
    /// Percent of the images' file system from which on images are removed (`imageGCHighThresholdPercent`); 100 for never.
    pub high_percent: u8,
    /// Percent down to which they are (`imageGCLowThresholdPercent`).
    pub low_percent: u8,
    /// How long an image stays at least (`imageMinimumGCAge`).
    pub min_age: Duration,
    /// After how long without use an image is removed though there is room (`imageMaximumGCAge`); zero for never.
    pub max_age: Duration,
    /// How often they are looked at.
    pub interval: Duration,
}

impl Default for ImageCollection {
    fn default() -> Self {
        ImageCollection {
            high_percent: 85,
            low_percent: 80,
            min_age: Duration::from_secs(120),
            max_age: Duration::ZERO,
            interval: Duration::from_secs(300),
        }
    }
}

/// How many images are pulled at once, and how many in a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImagePulls {
    /// So many at once (`serializeImagePulls`, `maxParallelImagePulls`); None for all.
    pub at_once: Option<NonZeroUsize>,
    /// Pulls that begin in a second on average (`registryPullQPS`); 0 for no such bound.
    pub per_second: u32,
    /// How many may begin at once after a pause (`registryBurst`).
    pub burst: u32,
}

impl Default for ImagePulls {
    fn default() -> Self {
        ImagePulls { at_once: Some(NonZeroUsize::MIN), per_second: 5, burst: 10 }
    }
}

/// With which credentials images are pulled, and who may use those that are there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageCredentials {
    /// A file of kind CredentialProviderConfig or a directory of them, in the node's form; empty for none
    /// (`--image-credential-provider-config`).
    pub provider_config: String,
    /// Where the programs of providers are (`--image-credential-provider-bin-dir`).
    pub provider_dir: String,
    /// Which images a pod must show that it may pull (`imagePullCredentialsVerificationPolicy`).
    pub verification: Verification,
    /// Working directory and home of the agent, where docker's configuration may be; empty on a simulated node.
    pub working_dir: String,
    pub home_dir: String,
}

/// How long dead containers stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadContainers {
    /// How long after its creation at least (`--minimum-container-ttl-duration`).
    pub min_age: Duration,
    /// So many of each container of a pod (`--maximum-dead-containers-per-container`); None for all.
    pub per_container: Option<usize>,
    /// So many in all (`--maximum-dead-containers`); None for all.
    pub total: Option<usize>,
}

impl Default for DeadContainers {
    fn default() -> Self {
        DeadContainers { min_age: Duration::ZERO, per_container: Some(1), total: None }
    }
}

impl DeadContainers {
    /// How many of each container go without a look at others; None where a container's age counts, or all stay.
    pub(crate) fn at_once(&self) -> Option<usize> {
        // The agent knows by the newest one that the container ran.
        self.per_container.filter(|_| self.min_age.is_zero()).map(|most| most.max(1))
    }
}

/// Where the node's static pods come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticPods {
    /// A manifest or a directory of them, in the node's form; empty for none (`staticPodPath`).
    pub path: String,
    /// How often manifests are read though they look unchanged (`fileCheckFrequency`).
    pub file_check: Duration,
    /// A web server that sends a Pod or a list of them; empty for none (`staticPodURL`).
    pub url: String,
    /// What is sent to it (`staticPodURLHeader`).
    pub headers: Vec<(String, String)>,
    /// How often it is asked (`httpCheckFrequency`).
    pub http_check: Duration,
}

impl Default for StaticPods {
    fn default() -> Self {
        let often = Duration::from_secs(20);
        StaticPods { path: String::new(), file_check: often, url: String::new(), headers: Vec::new(), http_check: often }
    }
}

/// How often the agent looks again, though nothing says that something changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Polls {
    /// At the health of a runtime that is well.
    pub runtime: Duration,
    /// How long a runtime may take to say how it is before it hangs (upstream's kubelet allows 30 s between two answers).
    pub patience: Duration,
    /// At the objects of a runtime that sends no events (upstream's relist).
    pub objects: Duration,
    /// At the Node.
    pub node: Duration,
    /// At each pod.
    pub pod: Duration,
    /// At a container that could not be created or started.
    pub failed_start: Duration,
    /// How long a container that ended waits before it starts again: at first, and at most (`crashLoopBackOff`).
    pub restart: (Duration, Duration),
}

impl Default for Polls {
    fn default() -> Self {
        Polls {
            runtime: Duration::from_secs(5),
            patience: Duration::from_secs(30),
            objects: Duration::from_secs(1),
            node: Duration::from_secs(10),
            pod: Duration::from_secs(60),
            failed_start: Duration::from_secs(10),
            restart: (Duration::from_secs(10), Duration::from_secs(300)),
        }
    }
}

/// Completes when the network of a pod with these addresses is as it has to be before a program of the pod runs.
pub type NetworkGate = Arc<dyn Fn(cluster::Key, Vec<IpAddr>) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// Finds the machine's address; None where it has none just now. It may block for a second.
pub type FindAddress = Arc<dyn Fn() -> Option<IpAddr> + Send + Sync>;

/// Who may use the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Clients may show tokens, which the API server knows (`authentication.webhook.enabled`).
    pub tokens: bool,
    /// Clients that show nothing are `system:anonymous`, instead of refused (`authentication.anonymous.enabled`).
    pub anonymous: bool,
    /// Whoever is known may do everything; else the API server decides (`authorization.mode: AlwaysAllow`).
    pub everything: bool,
    /// How long the API server's answer about a token counts, and its yes and no about a right.
    pub token: Duration,
    pub allowed: Duration,
    pub denied: Duration,
}

impl Default for Access {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Access { tokens: true, anonymous: false, everything: false, token: seconds(120), allowed: seconds(300), denied: seconds(30) }
    }
}

/// The server on :10250.
pub struct ServerConfig {
    /// Where it listens, bound already.
    pub listener: TcpListener,
    pub certificate: ServingCertificate,
    /// The file of the CA of client certificates, PEM, which may change; None where clients need tokens.
    pub client_ca: Option<PathBuf>,
    /// Versions and ciphers.
    pub tls: TlsSettings,
    pub access: Access,
}

/// Who says which addresses a Node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressSource {
    /// The agent.
    Agent,
    /// A cloud's controllers (`--cloud-provider=external`).
    Cloud {
        /// Somebody chose the agent's own addresses (`--node-ip`): they are shown until the controllers come, who are told of them.
        given: bool,
    },
}

/// How the agent registers its Node and keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Whether it makes the Node; else it waits for it (`registerNode`).
    pub make: bool,
    /// Who says which addresses it has.
    pub addresses: AddressSource,
    /// Which machine of a cloud it is; empty for none (`providerID`).
    pub provider_id: String,
    /// Most images that the status names; None for all (`nodeStatusMaxImages`).
    pub max_images: Option<usize>,
    /// How often the status is sent at least (`nodeStatusReportFrequency`).
    pub report: Duration,
    /// How long the lease holds, in seconds (`nodeLeaseDurationSeconds`).
    pub lease_seconds: u32,
}

impl Default for Registration {
    fn default() -> Self {
        Registration {
            make: true,
            addresses: AddressSource::Agent,
            provider_id: String::new(),
            max_images: Some(50),
            report: Duration::from_secs(300),
            lease_seconds: 40,
        }
    }
}

/// How a container runtime makes control groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cgroups {
    /// As directories.
    #[default]
    Files,
    /// As units of systemd.
    Systemd,
}

/// Control groups of pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSettings {
    /// Pods have control groups of their own, by their class (`cgroupsPerQOS`).
    pub per_qos: bool,
    /// The group below which they are (`cgroupRoot`).
    pub root: String,
    /// Pods together do not get what is reserved (`enforceNodeAllocatable: pods`).
    pub keeps_reserved: bool,
    /// Groups that get what is reserved for them.
    pub reserved: Vec<ReservedGroup>,
    /// Most processes of a pod; None for no such bound (`podPidsLimit`).
    pub pids: Option<i64>,
    /// Percent of the memory that better classes of pods request, which worse ones do not get (`qosReserved`).
    pub reserved_memory: Option<u8>,
    /// The agent does not start where control groups are those of version 1 (`failCgroupV1`).
    pub fail_version_1: bool,
}

impl Default for GroupSettings {
    fn default() -> Self {
        GroupSettings {
            per_qos: true,
            root: "/".to_owned(),
            keeps_reserved: true,
            reserved: Vec::new(),
            pids: None,
            reserved_memory: None,
            fail_version_1: false,
        }
    }
}

/// A group of programs beside pods that gets what is reserved for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedGroup {
    pub kind: ReservedKind,
    /// Its name as its driver writes it.
    pub group: String,
    pub amounts: Amounts,
    /// Only shares of processors are set.
    pub compressible: bool,
}

/// Whose programs they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservedKind {
    System,
    Kube,
}

impl ReservedKind {
    pub(crate) fn word(self) -> &'static str {
        match self {
            ReservedKind::System => "system",
            ReservedKind::Kube => "kube",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            ReservedKind::System => "System",
            ReservedKind::Kube => "Kube",
        }
    }
}

/// What holds for all containers of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerSettings {
    /// How the runtime makes control groups, where it does not say so itself (`cgroupDriver`).
    pub cgroups: Cgroups,
    /// Limits of `cpu` do not hold (`cpuCFSQuota: false`).
    pub no_cpu_quota: bool,
    /// For how long a limit of `cpu` counts; None for the kernel's 100 ms (`cpuCFSQuotaPeriod`).
    pub cpu_quota_period: Option<Duration>,
    /// Containers of Burstable pods may swap as much as they request of the memory (`memorySwap.swapBehavior: LimitedSwap`).
    pub limited_swap: bool,
    /// One process of a container ends when its memory runs out, and not all (`singleProcessOOMKill`).
    pub single_process_oom_kill: bool,
    /// Containers without a seccomp profile have the runtime's (`seccompDefault`).
    pub seccomp_default: bool,
    /// Kernel settings that pods may have beside the safe ones, by name or beginning and `*` (`allowedUnsafeSysctls`).
    pub unsafe_sysctls: Vec<String>,
}

/// Everything the agent needs.
pub struct Config {
    /// API client with the node's identity (`system:node:NAME` in `system:nodes`).
    pub client: kube::Client,
    /// What is known of that API server; shared by all parts of a node.
    pub api: cluster::ApiServer,
    /// Name of the Node, lower case.
    pub node_name: String,
    /// What the node runs.
    pub os: NodeOs,
    /// InternalIP addresses; the first is primary.
    pub node_ips: Vec<IpAddr>,
    /// Finds the machine's address again, where [`Config::node_ips`] was found and not given.
    pub find_address: Option<FindAddress>,
    /// Name and port of the API server, for metrics.
    pub api_host: String,
    /// The container runtime.
    pub cri: cri::Client,
    /// The node's file tree.
    pub root: Arc<HostRoot>,
    /// The agent's own directory in the node's form; `/var/lib/kubelet` on both systems by
    /// default (drive C on Windows).
    pub root_dir: String,
    /// Facts for `nodeInfo`.
    pub facts: HostFacts,
    pub capacity: Capacity,
    /// Huge pages of the node: number by size in bytes.
    pub huge_pages: BTreeMap<u64, u64>,
    /// The node is the machine that we run on: what the whole machine uses counts, not that of pods alone.
    pub is_machine: bool,
    /// What pods do not get: `cpu`, `memory`, `ephemeral-storage`.
    pub reserved: Amounts,
    pub registration: Registration,
    pub containers: ContainerSettings,
    pub groups: GroupSettings,
    /// More labels for a new Node, within what NodeRestriction allows.
    pub labels: BTreeMap<String, String>,
    /// Taints for a new Node.
    pub taints: Vec<Taint>,
    /// Feature switch `HyperVContainer`: a pod may ask for Hyper-V isolation by annotation (upstream 1.10 to 1.20).
    pub hyper_v_container: bool,
    /// When pods are evicted.
    pub eviction: Eviction,
    /// What happens to pods when the machine goes down; without it they end with the machine.
    pub shutdown: Option<Shutdown>,
    /// When container logs are rotated.
    pub logs: LogRotation,
    /// When dead containers are removed.
    pub dead_containers: DeadContainers,
    /// When unused images are removed.
    pub images: ImageCollection,
    pub image_pulls: ImagePulls,
    pub image_credentials: ImageCredentials,
    pub polls: Polls,
    pub static_pods: StaticPods,
    /// Where runtimes write the logs of pods, in the node's form (`podLogsDir`).
    pub pod_logs_dir: String,
    /// Where flexvolume drivers are, in the node's form (`volumePluginDir`).
    pub volume_plugin_dir: String,
    /// Whether the server runs programs in containers, connects to pods and shows logs (`enableDebuggingHandlers`).
    pub debugging: bool,
    /// Which logs of the node the server shows.
    pub system_logs: SystemLogs,
    /// Ids that a pod with users of its own has (`userNamespaces.idsPerPod`).
    pub ids_per_pod: u32,
    /// Device plug-ins register at a socket of the agent's, and programs of the node ask at another which pod has which device.
    pub device_plugins: bool,
    /// Cluster DNS servers.
    pub cluster_dns: Vec<IpAddr>,
    /// `cluster.local`.
    pub cluster_domain: String,
    /// Resolver of the host.
    pub resolver: Resolver,
    /// `v1.36.2+mullion.0.1.0`.
    pub version: String,
    /// KubeletConfiguration as a document, for `/configz`.
    pub configuration: serde_json::Value,
    /// The health of the Host Networking Service, which the Node reports; None where there is none.
    pub host_network: Option<watch::Receiver<hcn::watch::Health>>,
    /// The client of the Host Networking Service, whose counts the server shows; None where there is none.
    pub hcn: Option<hcn::HcnClient>,
    /// What a pod's network waits for before a program of it runs: its network policies. None where there is nothing to wait for.
    pub network_gate: Option<NetworkGate>,
    /// The metrics of the client certificate, where it is replaced by the agent; None where others care for it.
    pub client_certificate: Option<Arc<Counts>>,
    /// The server on :10250; None leaves it out.
    pub server: Option<ServerConfig>,
    /// Plain HTTP health on 127.0.0.1:10248, bound already; None leaves it out.
    pub healthz: Option<TcpListener>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolvers_are_read_as_upstream_reads_them() {
        let text = "# made by hand\nnameserver 10.0.0.1 ignored\n; another\nnameserver fd00::1\nsearch old.example\nsearch corp.example. lan\n\
                    options ndots:3 timeout:1\nnameserver\ndomain x\noptions ndots:2\nsearch corp.example. lan .\n";
        let expected = Resolver {
            servers: vec!["10.0.0.1".into(), "fd00::1".into()],
            searches: vec!["corp.example".into(), "lan".into()],
            options: vec!["timeout:1".into(), "ndots:2".into()],
            is_off: false,
            file: String::new(),
        };
        assert_eq!(Resolver::parse(text), expected);
        assert_eq!(Resolver::parse(""), Resolver::default());
    }
}
