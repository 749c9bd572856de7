//! Flags of kube-proxy: upstream's and a few of ours, as one table.
//!
//! A flag and a member of KubeProxyConfiguration are two names of one option. Flags that have no effect here are accepted with the reason,
//! so that scripts written for upstream's proxy keep working.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::KubeProxyConfiguration;
use crate::document::{self, ConfigError};
use crate::flags::{self, Kind, asks_for_nothing, check_switch};

struct Flag {
    name: &'static str,
    /// Its member of the configuration file; empty when it is a flag alone, a field of [`CommandFlags`].
    path: &'static str,
    kind: Kind,
    /// What it does; of one without effect: why.
    what: &'static str,
    used: bool,
}

impl flags::Flag for Flag {
    fn name(&self) -> &'static str {
        self.name
    }

    fn kind(&self) -> Kind {
        self.kind
    }
}

const fn used(name: &'static str, path: &'static str, kind: Kind, what: &'static str) -> Flag {
    Flag { name, path, kind, what, used: true }
}

const fn idle(name: &'static str, path: &'static str, kind: Kind, why: &'static str) -> Flag {
    Flag { name, path, kind, what: why, used: false }
}

use Kind::{List, Map, Switch, Text};

const NO_CONNTRACK: &str = "connection tracking is the kernel's own business here";
const NO_IPVS: &str = "there is no IPVS backend";
const NO_LOG: &str = "logs go to standard error; MULLION_LOG chooses how much";
const NO_CLIENT: &str = "the API client paces itself by the server's answers";

/// Every flag of upstream's, and ours.
const FLAGS: &[Flag] = &[
    used("config", "", Text, "configuration file; most flags beside it are ignored, as upstream does"),
    used("kubeconfig", "clientConnection.kubeconfig", Text, "credentials for the API server (default: those of the pod)"),
    used("master", "", Text, "address of the API server; overrides the kubeconfig's"),
    used("hostname-override", "hostnameOverride", Text, "name of the Node (default: the host's name)"),
    used("bind-address", "bindAddress", Text, "address of the node (default: the Node object's)"),
    used("bind-address-hard-fail", "bindAddressHardFail", Switch, "end when a port cannot be listened on"),
    used("proxy-mode", "mode", Text, "kernelspace (HNS), nftables or userspace; iptables and ipvs mean nftables"),
    used("metrics-bind-address", "metricsBindAddress", Text, "where metrics are served; empty is nowhere"),
    used("metrics-port", "", Text, "port of the metrics (deprecated: --metrics-bind-address)"),
    used("healthz-bind-address", "healthzBindAddress", Text, "where health is served; empty is nowhere"),
    used("healthz-port", "", Text, "port of the health (deprecated: --healthz-bind-address)"),
    used("nodeport-addresses", "nodePortAddresses", List, "networks of the addresses on which node ports listen, or primary; HNS: all"),
    used("cluster-cidr", "clusterCIDR", List, "networks of the pods"),
    used(
        "detect-local-mode",
        "detectLocalMode",
        Text,
        "how pods of this node are recognised: ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix",
    ),
    used("pod-bridge-interface", "detectLocal.bridgeInterface", Text, "the bridge of --detect-local-mode=BridgeInterface"),
    used("pod-interface-name-prefix", "detectLocal.interfaceNamePrefix", Text, "the prefix of --detect-local-mode=InterfaceNamePrefix"),
    used("masquerade-all", "nftables.masqueradeAll", Switch, "nftables: every client of a Service gets this node's address"),
    used("iptables-masquerade-bit", "nftables.masqueradeBit", Text, "nftables: the bit of the mark that asks for that"),
    used("iptables-sync-period", "syncPeriod", Text, "how often everything is compared with the host"),
    used("feature-gates", "featureGates", Map, "WinDSR=false is the same as --enable-dsr=false; the others are upstream's own"),
    used("network-name", "winkernel.networkName", Text, "HNS network of the pods (default: KUBE_NETWORK)"),
    used("source-vip", "winkernel.sourceVip", Text, "overlays: the address that backends see where direct server return is off"),
    used("enable-dsr", "winkernel.enableDSR", Switch, "direct server return for ClusterIPs where HNS has it"),
    used("root-hnsendpoint-name", "winkernel.rootHnsEndpointName", Text, "the host's own endpoint, which answers forwarded health checks"),
    used("forward-healthcheck-vip", "winkernel.forwardHealthCheckVip", Switch, "load balancers ask for this node's health at their own address"),
    used("cleanup", "", Switch, "remove what this proxy made, and end"),
    used("init-only", "", Switch, "end at once: nothing needs privileges beforehand"),
    used("write-config-to", "", Text, "write the configuration that these flags mean to a file, and end"),
    used("version", "", Switch, "print the version, and end"),
    used("help", "", Switch, "print this, and end"),
    used("v", "logging.verbosity", Text, "from 4 on logs show every change, from 6 on every plan"),
    used("service-interface", "", Text, "userspace: the interface that gets Services' addresses (default: INTERFACE_TO_ADD_SERVICE_IP)"),
    used("udp-timeout", "udpIdleTimeout", Text, "userspace: a client's datagrams stay with a backend while they pause for less"),
    used("hcn", "", Text, "the Host Networking Service at unix:PATH or tcp:HOST:PORT (default: MULLION_HCN, else this host's own)"),
    used("host-mac", "", Text, "overlays: MAC of this node's adapter (default on Linux: that of the node's address)"),
    used("startup-taint", "", Text, "taint that this proxy puts on its Node, and takes off once every Service is served: KEY[=VALUE][:NoSchedule]"),
    used("windows-service", "windowsRunAsService", Switch, "Windows: the service control manager starts and stops this process"),
    used("log-file", "", Text, "append the log to a file; a Windows service has no standard error"),
    idle("min-sync-period", "minSyncPeriod", Text, "changes are acted on at once, each for itself"),
    idle("iptables-min-sync-period", "iptables.minSyncPeriod", Text, "changes are acted on at once, each for itself"),
    idle("config-sync-period", "configSyncPeriod", Text, "watches that break are resumed, so nothing is listed by time"),
    idle("iptables-localhost-nodeports", "iptables.localhostNodePorts", Switch, "nftables and userspace: name 127.0.0.0/8 in --nodeport-addresses"),
    idle("proxy-port-range", "portRange", Text, "node ports are listened on themselves"),
    idle("oom-score-adj", "oomScoreAdj", Text, "whoever starts the proxy can set it"),
    idle("profiling", "enableProfiling", Switch, "there is no profiler to serve"),
    idle("show-hidden-metrics-for-version", "showHiddenMetricsForVersion", Text, "no metric is hidden"),
    idle("cleanup-ipvs", "", Switch, NO_IPVS),
    idle("cleanup-iptables", "", Switch, "no rule of iptables is ever made"),
    idle("conntrack-max", "", Text, NO_CONNTRACK),
    idle("conntrack-max-per-core", "conntrack.maxPerCore", Text, NO_CONNTRACK),
    idle("conntrack-min", "conntrack.min", Text, NO_CONNTRACK),
    idle("conntrack-tcp-be-liberal", "conntrack.tcpBeLiberal", Switch, NO_CONNTRACK),
    idle("conntrack-tcp-timeout-close-wait", "conntrack.tcpCloseWaitTimeout", Text, NO_CONNTRACK),
    idle("conntrack-tcp-timeout-established", "conntrack.tcpEstablishedTimeout", Text, NO_CONNTRACK),
    idle("conntrack-udp-timeout", "conntrack.udpTimeout", Text, NO_CONNTRACK),
    idle("conntrack-udp-timeout-stream", "conntrack.udpStreamTimeout", Text, NO_CONNTRACK),
    idle("ipvs-exclude-cidrs", "ipvs.excludeCIDRs", List, NO_IPVS),
    idle("ipvs-min-sync-period", "ipvs.minSyncPeriod", Text, NO_IPVS),
    idle("ipvs-scheduler", "ipvs.scheduler", Text, NO_IPVS),
    idle("ipvs-strict-arp", "ipvs.strictARP", Switch, NO_IPVS),
    idle("ipvs-sync-period", "ipvs.syncPeriod", Text, NO_IPVS),
    idle("ipvs-tcp-timeout", "ipvs.tcpTimeout", Text, NO_IPVS),
    idle("ipvs-tcpfin-timeout", "ipvs.tcpFinTimeout", Text, NO_IPVS),
    idle("ipvs-udp-timeout", "ipvs.udpTimeout", Text, NO_IPVS),
    idle("kube-api-burst", "clientConnection.burst", Text, NO_CLIENT),
    idle("kube-api-content-type", "clientConnection.contentType", Text, NO_CLIENT),
    idle("kube-api-accept-content-types", "clientConnection.acceptContentTypes", Text, NO_CLIENT),
    idle("kube-api-qps", "clientConnection.qps", Text, NO_CLIENT),
    idle("log-flush-frequency", "logging.flushFrequency", Text, NO_LOG),
    idle("logging-format", "logging.format", Text, NO_LOG),
    idle("vmodule", "logging.vmodule", Text, NO_LOG),
    idle("log-dir", "", Text, NO_LOG),
    idle("logtostderr", "", Switch, NO_LOG),
    idle("alsologtostderr", "", Switch, NO_LOG),
    idle("stderrthreshold", "", Text, NO_LOG),
    idle("log-text-info-buffer-size", "logging.options.text.infoBufferSize", Text, NO_LOG),
    idle("log-text-split-stream", "logging.options.text.splitStream", Switch, NO_LOG),
    idle("log-json-info-buffer-size", "logging.options.json.infoBufferSize", Text, NO_LOG),
    idle("log-json-split-stream", "logging.options.json.splitStream", Switch, NO_LOG),
    idle("log-backtrace-at", "", Text, NO_LOG),
    idle("log-file-max-size", "", Text, NO_LOG),
    idle("add-dir-header", "", Switch, NO_LOG),
    idle("one-output", "", Switch, NO_LOG),
    idle("skip-headers", "", Switch, NO_LOG),
    idle("skip-log-headers", "", Switch, NO_LOG),
    idle("resource-container", "", Text, "whoever starts the proxy can set it"),
    idle("google-json-key", "", Text, "credentials come from the kubeconfig"),
    idle("azure-container-registry-config", "", Text, "the proxy pulls no image"),
];

/// Why a member of KubeProxyConfiguration has no effect here.
pub(super) fn ignored(path: &str) -> Option<&'static str> {
    FLAGS.iter().find(|flag| !flag.used && flag.path == path).map(|flag| flag.what)
}

/// The members that flags have.
pub(super) fn members() -> impl Iterator<Item = &'static str> {
    FLAGS.iter().map(|flag| flag.path)
}

/// Flags that the configuration file has no place for. Texts are empty when not given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct CommandFlags {
    /// The configuration file.
    pub config: String,
    /// Address of the API server.
    pub master: String,
    /// Port of the metrics, deprecated.
    pub metrics_port: String,
    /// Port of the health checks, deprecated.
    pub healthz_port: String,
    /// Remove what this proxy made, and end.
    pub cleanup: bool,
    /// End at once.
    pub init_only: bool,
    /// Write the configuration to this file, and end.
    pub write_config_to: String,
    /// Print the version, and end.
    pub version: bool,
    /// Print the help, and end.
    pub help: bool,
    /// User space: the interface that gets Services' addresses.
    pub service_interface: String,
    /// The Host Networking Service.
    pub hcn: String,
    /// Overlays: MAC of this node's adapter.
    pub host_mac: String,
    /// Taint on the Node until every Service is served.
    pub startup_taint: String,
    /// Append the log to this file.
    pub log_file: String,
}

/// A command line of kube-proxy, with its configuration file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// The configuration in effect.
    pub config: KubeProxyConfiguration,
    /// Flags that have no place in it.
    pub flags: CommandFlags,
    /// Whether node ports are asked for at localhost (`--iptables-localhost-nodeports`, `iptables.localhostNodePorts`).
    pub localhost_node_ports: bool,
    /// Options without effect, with the reason, each once.
    pub warnings: Vec<String>,
}

impl Options {
    /// Reads a command line. Flags beside a configuration file are ignored but for the few that upstream lets count.
    ///
    /// # Errors
    /// Unknown flags, values that a flag does not take, and what is wrong with the file.
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Self, ConfigError> {
        let given = flags::split(FLAGS, args)?;
        let mut options = Self::default();
        let path = given.iter().find(|(flag, _)| flag.name == "config").map(|(_, path)| path.as_str()).filter(|path| !path.is_empty());
        if let Some(path) = path {
            let text = document::read_file(path.as_ref())?;
            options.localhost_node_ports = asks_for_localhost(&text);
            let parsed = document::read_text(&text).map_err(|error| ConfigError::File { path: path.to_owned(), source: Box::new(error) })?;
            (options.config, options.warnings) = (parsed.config, parsed.warnings);
        }
        let mut idle = Vec::new();
        for (flag, value) in &given {
            if path.is_some() && !flag.path.is_empty() && !matches!(flag.name, "hostname-override" | "v") {
                options.warnings.push(format!("--{} has no effect: the configuration file counts", flag.name));
            } else {
                options.set(flag, value)?;
            }
            if !flag.used && !asks_for_nothing(flag.kind, value) {
                idle.push(format!("--{} has no effect: {}", flag.name, flag.what));
            }
        }
        options.warnings.extend(idle);
        options.move_to_deprecated_ports()?;
        Ok(options)
    }

    /// Checks the names of flags, without the file that they name.
    ///
    /// # Errors
    /// Unknown flags, and values that a flag does not take.
    pub fn check(args: impl IntoIterator<Item = String>) -> Result<(), ConfigError> {
        let mut options = Self::default();
        flags::split(FLAGS, args)?.iter().filter(|(flag, _)| !flag.path.is_empty()).try_for_each(|(flag, value)| options.set(flag, value))
    }

    fn set(&mut self, flag: &Flag, value: &str) -> Result<(), ConfigError> {
        let name = format!("--{}", flag.name);
        // An empty value stands for the default, but for addresses to listen on: there it is nowhere.
        if value.is_empty() && !matches!(flag.name, "metrics-bind-address" | "healthz-bind-address") {
            return Ok(());
        }
        match (flag.used, flag.path) {
            (true, "") => document::set_text(&mut self.flags, flag.name, value, &name),
            (true, path) => document::set_text(&mut self.config, path, value, &name),
            (false, _) if flag.name == "iptables-localhost-nodeports" => {
                self.localhost_node_ports = value == "true";
                Ok(())
            }
            // Nobody reads it; a switch is checked all the same.
            (false, _) => check_switch(flag.kind, &name, value),
        }
    }

    /// `--metrics-port` and `--healthz-port` change the port of the address beside them.
    fn move_to_deprecated_ports(&mut self) -> Result<(), ConfigError> {
        let port = |name: &str, value: &str| {
            let wrong = |_| ConfigError::Value { name: name.to_owned(), value: value.to_owned(), reason: format!("{value:?} is no port") };
            if value.is_empty() { Ok(None) } else { value.parse::<u16>().map(Some).map_err(wrong) }
        };
        if let Some(port) = port("--metrics-port", &self.flags.metrics_port)? {
            self.config.metrics_bind_address = self.config.metrics_bind_address.with_port(port);
        }
        if let Some(port) = port("--healthz-port", &self.flags.healthz_port)? {
            self.config.healthz_bind_address = self.config.healthz_bind_address.with_port(port);
        }
        Ok(())
    }
}

/// Whether a file asks for node ports at localhost: the reader of its members only warns of that.
fn asks_for_localhost(text: &str) -> bool {
    let documents = document::split(text).unwrap_or_default();
    documents.first().is_some_and(|document| document["iptables"]["localhostNodePorts"] == true)
}

/// What `--help` prints.
pub fn help() -> String {
    let mut text =
        "Serves Services on this node, as upstream's kube-proxy does and with its flags.\n\nUsage: kube-proxy [flags]\n\nFlags:\n".to_owned();
    for flag in FLAGS.iter().filter(|flag| flag.used) {
        let default = default_of(flag);
        let default = if default.is_empty() { String::new() } else { format!(" [default: {default}]") };
        let _ = writeln!(text, "      --{:<28} {}{default}", flag.name, flag.what);
    }
    text.push_str("\nTaken for compatibility, without effect:\n");
    for flag in FLAGS.iter().filter(|flag| !flag.used) {
        let _ = writeln!(text, "      --{:<36} {}", flag.name, flag.what);
    }
    text
}

/// The default of a flag that is used, as text: that of its member.
fn default_of(flag: &Flag) -> String {
    match flag.path {
        "" => document::text_of(&CommandFlags::default(), flag.name),
        path => document::text_of(&KubeProxyConfiguration::default(), path),
    }
}

#[cfg(test)]
impl Options {
    /// The value of a flag, as text.
    pub(super) fn get(&self, name: &str) -> String {
        match FLAGS.iter().find(|flag| flag.name == name) {
            Some(Flag { used: true, path: "", .. }) => document::text_of(&self.flags, name),
            Some(Flag { used: true, path, .. }) => document::text_of(&self.config, path),
            _ => String::new(),
        }
    }

    /// The options that a file alone means.
    pub(super) fn of_file(text: &str) -> Result<Self, ConfigError> {
        document::read_text(text).map(|parsed| Self { config: parsed.config, warnings: parsed.warnings, ..Self::default() })
    }
}

/// Names, members and effect of all flags, for tests.
#[cfg(test)]
pub(super) fn all() -> impl Iterator<Item = (&'static str, &'static str, bool)> {
    FLAGS.iter().map(|flag| (flag.name, flag.path, flag.used))
}
