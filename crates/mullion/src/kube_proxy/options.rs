//! Upstream's flags and its KubeProxyConfiguration v1alpha1 as one table of options (pure).
//!
//! A flag and the path in the configuration file are two names of one option. What means nothing here is known too, with the reason,
//! so that scripts written for upstream's proxy keep working and hear once what has no effect.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use ipnet::IpNet;
use serde_json::Value;

/// What a value looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// `--name`, `--name=true` or `--name=false`.
    Switch,
    /// `--name=value` or `--name value`.
    Text,
    /// The same; several values are joined by commas, in the file they are a list.
    List,
    /// `KEY=BOOL,…`; in the file an object.
    Map,
}

/// One option.
struct Known {
    flag: &'static str,
    /// Where it stands in the configuration file; empty when it is a flag alone.
    path: &'static str,
    kind: Kind,
    /// Upstream's default, as text.
    default: &'static str,
    /// What it does; of one without effect: why.
    what: &'static str,
    used: bool,
}

const fn used(flag: &'static str, path: &'static str, kind: Kind, default: &'static str, what: &'static str) -> Known {
    Known { flag, path, kind, default, what, used: true }
}

const fn idle(flag: &'static str, path: &'static str, kind: Kind, why: &'static str) -> Known {
    Known { flag, path, kind, default: "", what: why, used: false }
}

use Kind::{List, Map, Switch, Text};

const NO_CONNTRACK: &str = "connection tracking is the kernel's own business here";
const NO_IPVS: &str = "there is no IPVS backend";
const NO_LOG: &str = "logs go to standard error; MULLION_LOG chooses how much";
const NO_CLIENT: &str = "the API client paces itself by the server's word";

const OPTIONS: &[Known] = &[
    used("config", "", Text, "", "configuration file; most flags beside it are ignored, as upstream does"),
    used("kubeconfig", "clientConnection.kubeconfig", Text, "", "credentials for the API server (default: those of the pod)"),
    used("master", "", Text, "", "address of the API server; overrides the kubeconfig's"),
    used("hostname-override", "hostnameOverride", Text, "", "name of the Node (default: the host's name)"),
    used("bind-address", "bindAddress", Text, "0.0.0.0", "address of the node (default: the Node object's)"),
    used("bind-address-hard-fail", "bindAddressHardFail", Switch, "false", "end when a port cannot be listened on"),
    used("proxy-mode", "mode", Text, "", "kernelspace (HNS), nftables or userspace; iptables and ipvs mean nftables"),
    used("metrics-bind-address", "metricsBindAddress", Text, "127.0.0.1:10249", "where metrics are served; empty is nowhere"),
    used("metrics-port", "", Text, "", "port of the metrics (deprecated: --metrics-bind-address)"),
    used("healthz-bind-address", "healthzBindAddress", Text, "0.0.0.0:10256", "where health is told; empty is nowhere"),
    used("healthz-port", "", Text, "", "port of the health (deprecated: --healthz-bind-address)"),
    used("nodeport-addresses", "nodePortAddresses", List, "", "networks of the addresses on which node ports listen, or primary; HNS: all"),
    used("cluster-cidr", "clusterCIDR", List, "", "networks of the pods"),
    used(
        "detect-local-mode",
        "detectLocalMode",
        Text,
        "",
        "how pods of this node are told: ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix",
    ),
    used("pod-bridge-interface", "detectLocal.bridgeInterface", Text, "", "the bridge of --detect-local-mode=BridgeInterface"),
    used("pod-interface-name-prefix", "detectLocal.interfaceNamePrefix", Text, "", "the prefix of --detect-local-mode=InterfaceNamePrefix"),
    used("masquerade-all", "nftables.masqueradeAll", Switch, "false", "nftables: every client of a Service gets this node's address"),
    used("iptables-masquerade-bit", "nftables.masqueradeBit", Text, "14", "nftables: the bit of the mark that asks for that"),
    used("iptables-sync-period", "syncPeriod", Text, "30s", "how often everything is compared with the host"),
    used("feature-gates", "featureGates", Map, "", "WinDSR=false is the same as --enable-dsr=false; the others are upstream's own"),
    used("network-name", "winkernel.networkName", Text, "", "HNS network of the pods (default: KUBE_NETWORK)"),
    used("source-vip", "winkernel.sourceVip", Text, "", "overlays: the address that backends see where direct server return is off"),
    used("enable-dsr", "winkernel.enableDSR", Switch, "true", "direct server return for ClusterIPs where HNS has it"),
    used("root-hnsendpoint-name", "winkernel.rootHnsEndpointName", Text, "cbr0", "the host's own endpoint, which answers forwarded health checks"),
    used(
        "forward-healthcheck-vip",
        "winkernel.forwardHealthCheckVip",
        Switch,
        "false",
        "load balancers ask for this node's health at their own address",
    ),
    used("cleanup", "", Switch, "false", "remove what this proxy made, and end"),
    used("init-only", "", Switch, "false", "end at once: nothing needs privileges beforehand"),
    used("write-config-to", "", Text, "", "write the configuration that these flags mean to a file, and end"),
    used("version", "", Switch, "false", "print the version, and end"),
    used("help", "", Switch, "false", "print this, and end"),
    used("v", "logging.verbosity", Text, "0", "from 4 on logs tell every change, from 6 on every plan"),
    used("service-interface", "", Text, "", "userspace: the interface that gets Services' addresses (default: INTERFACE_TO_ADD_SERVICE_IP)"),
    used("udp-timeout", "udpIdleTimeout", Text, "250ms", "userspace: a client's datagrams stay with a backend while they pause for less"),
    used("hcn", "", Text, "", "the Host Networking Service at unix:PATH or tcp:HOST:PORT (default: MULLION_HCN, else this host's own)"),
    used("host-mac", "", Text, "", "overlays: MAC of this node's adapter (default on Linux: that of the node's address)"),
    used(
        "startup-taint",
        "",
        Text,
        "",
        "taint that this proxy puts on its Node, and takes off once every Service is served: KEY[=VALUE][:NoSchedule]",
    ),
    used("windows-service", "windowsRunAsService", Switch, "false", "Windows: the service control manager starts and stops this process"),
    used("log-file", "", Text, "", "append the log to a file; a Windows service has no standard error"),
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

/// Other places in the file that mean the same as one of [`OPTIONS`]. Windows has no section of its own for periods upstream.
const ALIASES: &[(&str, &str)] = &[
    ("iptables.syncPeriod", "iptables-sync-period"),
    ("nftables.syncPeriod", "iptables-sync-period"),
    ("iptables.masqueradeAll", "masquerade-all"),
    ("iptables.masqueradeBit", "iptables-masquerade-bit"),
    ("nftables.minSyncPeriod", "min-sync-period"),
];

/// What was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    values: BTreeMap<&'static str, String>,
    /// What has no effect, and why; each is told once.
    pub warnings: Vec<String>,
}

fn known(flag: &str) -> Option<&'static Known> {
    OPTIONS.iter().find(|known| known.flag == flag)
}

impl Options {
    /// Reads a command line. Flags beside a configuration file are ignored but for the few that upstream lets count.
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Self> {
        let mut flags = Self::flags(args)?;
        let Some(path) = flags.values.get("config").filter(|path| !path.is_empty()).cloned() else { return Ok(flags) };
        let text = std::fs::read_to_string(&path).with_context(|| format!("the configuration file {path} cannot be read"))?;
        let mut options = Self::of_file(&text).with_context(|| format!("the configuration file {path}"))?;
        for (flag, value) in std::mem::take(&mut flags.values) {
            let alone = known(flag).is_some_and(|known| known.path.is_empty());
            if alone || flag == "hostname-override" || flag == "v" {
                options.values.insert(flag, value);
            } else {
                options.warnings.push(format!("--{flag} has no effect: the configuration file counts"));
            }
        }
        options.warnings.extend(flags.warnings);
        Ok(options)
    }

    fn flags(args: impl IntoIterator<Item = String>) -> Result<Self> {
        let mut options = Self::default();
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let Some(body) = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')).filter(|body| !body.is_empty()) else {
                bail!("unknown argument {arg:?}: kube-proxy takes flags only, see --help");
            };
            let (name, given) = body.split_once('=').map_or((body, None), |(name, value)| (name, Some(value.to_owned())));
            let name = match name {
                "h" => "help".to_owned(),
                name => name.replace('_', "-"),
            };
            let Some(known) = known(&name) else { bail!("unknown flag: --{name}; see --help") };
            let value = match (given, known.kind) {
                (Some(value), _) => value,
                (None, Switch) => "true".to_owned(),
                (None, _) => args.next().with_context(|| format!("flag needs an argument: --{name}"))?,
            };
            options.set(known, value, &format!("--{name}"))?;
        }
        Ok(options)
    }

    /// Reads a KubeProxyConfiguration. What it does not have is told; what upstream does not have either is an error.
    pub fn of_file(text: &str) -> Result<Self> {
        let file: Value = serde_yaml_ng::from_str(text).context("is no YAML")?;
        let member = |name: &str| file.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (kind, version) = (member("kind"), member("apiVersion"));
        if kind != "KubeProxyConfiguration" || version != "kubeproxy.config.k8s.io/v1alpha1" {
            bail!("is a {kind:?} of {version:?}, not a KubeProxyConfiguration of kubeproxy.config.k8s.io/v1alpha1");
        }
        let mut options = Self::default();
        options.section(&file, "")?;
        if options.address("bind-address")?.is_some_and(|ip| ip.is_ipv6()) {
            for (flag, at) in [("metrics-bind-address", "[::1]:10249"), ("healthz-bind-address", "[::]:10256")] {
                options.values.entry(flag).or_insert_with(|| at.to_owned());
            }
        }
        Ok(options)
    }

    fn section(&mut self, section: &Value, prefix: &str) -> Result<()> {
        for (name, value) in section.as_object().into_iter().flatten() {
            let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            if matches!(path.as_str(), "kind" | "apiVersion") || value.is_null() {
                continue;
            }
            let alias = ALIASES.iter().find(|(other, _)| *other == path).and_then(|(_, flag)| known(flag));
            let known = OPTIONS.iter().find(|known| known.path == path).or(alias);
            match (known, value) {
                (Some(known), value) => {
                    // Go's zero value stands for the default, and tools like kubeadm write every member out.
                    if let Some(text) = text(value, known.kind).filter(|text| !text.is_empty() && text != "0s") {
                        self.set(known, text, &path)?;
                    }
                }
                (None, Value::Object(_)) => self.section(value, &path)?,
                (None, _) => self.warnings.push(format!("{path} is unknown, and has no effect")),
            }
        }
        Ok(())
    }

    fn set(&mut self, known: &'static Known, value: String, name: &str) -> Result<()> {
        if known.kind == Switch && value.parse::<bool>().is_err() {
            bail!("invalid value {value:?} of {name}: write true or false");
        }
        if !known.used && value != known.default && value != "false" && !(known.kind == Text && matches!(value.as_str(), "0" | "0s")) {
            self.warnings.push(format!("{name} has no effect: {}", known.what));
        }
        match self.values.get_mut(known.flag) {
            Some(list) if known.kind == List => write!(list, ",{value}")?,
            _ => drop(self.values.insert(known.flag, value)),
        }
        Ok(())
    }

    /// The value of an option, upstream's default when nobody gave one.
    pub fn get(&self, flag: &str) -> &str {
        self.values.get(flag).map_or_else(|| known(flag).map_or("", |known| known.default), String::as_str)
    }

    /// A value that somebody gave, and that is not empty.
    pub fn given(&self, flag: &str) -> Option<&str> {
        self.values.get(flag).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Whether a switch is on.
    pub fn is_on(&self, flag: &str) -> bool {
        self.get(flag) == "true"
    }

    /// The parts of a list.
    pub fn list(&self, flag: &str) -> Vec<&str> {
        self.get(flag).split(',').map(str::trim).filter(|part| !part.is_empty()).collect()
    }

    /// The networks of a list, where `all` and `localhost` are names of some.
    pub fn networks(&self, flag: &str) -> Result<Vec<IpNet>> {
        let read = |text: &str| text.parse::<IpNet>().with_context(|| format!("--{flag}: {text:?} is no network, write it as 192.168.0.0/16"));
        let named = |text| match text {
            "all" => vec!["0.0.0.0/0", "::/0"],
            "localhost" => vec!["127.0.0.0/8", "::1/128"],
            text => vec![text],
        };
        self.list(flag).into_iter().flat_map(named).map(read).collect()
    }

    /// An address, when somebody gave one.
    pub fn address(&self, flag: &str) -> Result<Option<IpAddr>> {
        let read = |text: &str| text.parse::<IpAddr>().with_context(|| format!("--{flag}: {text:?} is no IP address"));
        self.given(flag).map(read).transpose()
    }

    /// A time in Go's form.
    pub fn duration(&self, flag: &str) -> Result<Duration> {
        go_duration(self.get(flag)).with_context(|| format!("--{flag}: {:?} is no duration, write it as 30s or 1m30s", self.get(flag)))
    }

    /// Where to listen: an address and port, or an address alone with that port. Empty is nowhere.
    pub fn listen(&self, flag: &str, port_flag: &str, default_port: u16) -> Result<Option<SocketAddr>> {
        let text = self.get(flag);
        let port = match self.given(port_flag) {
            None => default_port,
            Some("0") => return Ok(None),
            Some(port) => port.parse().with_context(|| format!("--{port_flag}: {port:?} is no port"))?,
        };
        if text.is_empty() {
            return Ok(None);
        }
        let alone = || text.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, port));
        let both = text.parse::<SocketAddr>().ok().map(|at| if self.given(port_flag).is_some() { SocketAddr::new(at.ip(), port) } else { at });
        both.or_else(alone).with_context(|| format!("--{flag}: {text:?} is no address and port")).map(Some)
    }

    /// The configuration file that means the same.
    pub fn to_file(&self) -> Result<String> {
        let mut root = serde_json::json!({"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration"});
        for known in OPTIONS.iter().filter(|known| known.used && !known.path.is_empty()) {
            let text = self.get(known.flag);
            let value = match known.kind {
                Switch => Value::Bool(text == "true"),
                List if known.flag != "cluster-cidr" => self.list(known.flag).into(),
                Map => self
                    .list(known.flag)
                    .iter()
                    .filter_map(|pair| pair.split_once('='))
                    .map(|(k, v)| (k.to_owned(), Value::Bool(v == "true")))
                    .collect(),
                _ => text.parse::<i64>().map_or_else(|_| text.into(), Value::from),
            };
            let mut place = &mut root;
            for part in known.path.split('.') {
                place = &mut place[part];
            }
            *place = value;
        }
        serde_yaml_ng::to_string(&root).context("the configuration cannot be written")
    }
}

/// What `--help` prints.
pub fn help() -> String {
    let mut text =
        "Serves Services on this node, as upstream's kube-proxy does and with its flags.\n\nUsage: kube-proxy [flags]\n\nFlags:\n".to_owned();
    for known in OPTIONS.iter().filter(|known| known.used) {
        let default = if known.default.is_empty() { String::new() } else { format!(" [default: {}]", known.default) };
        let _ = writeln!(text, "      --{:<28} {}{default}", known.flag, known.what);
    }
    text.push_str("\nTaken for compatibility, without effect:\n");
    for known in OPTIONS.iter().filter(|known| !known.used) {
        let _ = writeln!(text, "      --{:<36} {}", known.flag, known.what);
    }
    text
}

/// The text of a value in the file.
fn text(value: &Value, kind: Kind) -> Option<String> {
    match (value, kind) {
        (Value::String(text), _) => Some(text.clone()),
        (Value::Bool(_) | Value::Number(_), _) => Some(value.to_string()),
        (Value::Array(list), _) => Some(list.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(",")),
        (Value::Object(map), Map) => Some(map.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")),
        _ => None,
    }
}

/// Reads `1h2m3.5s`, `250ms`, `0`.
pub fn go_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let units = [("ms", 1e-3), ("us", 1e-6), ("µs", 1e-6), ("ns", 1e-9), ("h", 3600.0), ("m", 60.0), ("s", 1.0)];
    let (mut rest, mut seconds) = (text, 0.0);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        let (unit, factor) = units.iter().find(|(unit, _)| rest[digits..].starts_with(unit))?;
        seconds += number * factor;
        rest = &rest[digits + unit.len()..];
    }
    (!text.is_empty()).then(|| Duration::try_from_secs_f64(seconds).ok()).flatten()
}

/// Whether API server addresses come with a scheme; upstream's client takes one without as plain HTTP.
pub fn master_url(text: &str) -> String {
    if text.contains("://") { text.to_owned() } else { format!("http://{text}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options> {
        Options::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn the_alpha_documents_command_line_is_read_as_printed() {
        let line = "--v=3 --proxy-mode=userspace --hostname-override=win01 --master=http://10.0.0.2:8080 --bind-address=10.0.0.5";
        let options = parse(line).unwrap();
        let values = ["v", "proxy-mode", "hostname-override", "master", "bind-address"].map(|flag| options.get(flag));
        assert_eq!(values, ["3", "userspace", "win01", "http://10.0.0.2:8080", "10.0.0.5"]);
        assert_eq!(options.warnings, Vec::<String>::new());
        assert_eq!(master_url("10.0.0.2:8080"), "http://10.0.0.2:8080");
    }

    #[test]
    fn flags_are_read_as_upstream_reads_them() {
        let options = parse("--enable_dsr=false -v 4 --nodeport-addresses=10.0.0.0/8 --nodeport-addresses 127.0.0.0/8 --masquerade-all").unwrap();
        assert!(!options.is_on("enable-dsr") && options.is_on("masquerade-all"));
        assert_eq!(parse("--nodeport-addresses=localhost,10.0.0.0/8").unwrap().networks("nodeport-addresses").unwrap().len(), 3);
        assert_eq!((options.get("v"), options.list("nodeport-addresses")), ("4", vec!["10.0.0.0/8", "127.0.0.0/8"]));
        assert_eq!(options.get("root-hnsendpoint-name"), "cbr0");
        let told = parse("--ipvs-scheduler=rr --conntrack-min=0 --profiling --oom-score-adj -998").unwrap().warnings;
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(told[0].contains("--ipvs-scheduler has no effect: there is no IPVS backend"), "{told:?}");
        for (line, part) in [
            ("--fly", "unknown flag: --fly"),
            ("run", "unknown argument \"run\""),
            ("--kubeconfig", "flag needs an argument: --kubeconfig"),
            ("--enable-dsr=maybe", "write true or false"),
        ] {
            assert!(parse(line).unwrap_err().to_string().contains(part), "{line}");
        }
    }

    #[test]
    fn addresses_to_listen_on() {
        let at = |line: &str| parse(line).unwrap().listen("healthz-bind-address", "healthz-port", 10256).unwrap().map(|at| at.to_string());
        assert_eq!(at(""), Some("0.0.0.0:10256".into()));
        assert_eq!(at("--healthz-bind-address=10.0.0.5"), Some("10.0.0.5:10256".into()));
        assert_eq!(at("--healthz-bind-address=[::]:9000"), Some("[::]:9000".into()));
        assert_eq!(at("--healthz-bind-address="), None);
        assert_eq!(at("--healthz-port=0"), None);
        assert_eq!(at("--healthz-port=9001"), Some("0.0.0.0:9001".into()));
        let options = parse("--metrics-bind-address=nowhere").unwrap();
        assert!(options.listen("metrics-bind-address", "metrics-port", 10249).is_err());
    }

    #[test]
    fn durations_are_gos() {
        let read = |text| go_duration(text).map(|time| time.as_millis());
        assert_eq!(
            [read("30s"), read("1m30s"), read("250ms"), read("0"), read("1.5h")],
            [Some(30_000), Some(90_000), Some(250), Some(0), Some(5_400_000)]
        );
        assert_eq!([read("30"), read(""), read("s"), read("5 s")], [None; 4]);
    }

    const FILE: &str = r"
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: 10.0.0.5
clientConnection: {kubeconfig: 'C:\k\config', qps: 5}
clusterCIDR: 10.244.0.0/16
mode: kernelspace
hostnameOverride: from-file
winkernel: {networkName: flannel.4096, sourceVip: 10.244.1.2, enableDSR: true}
iptables: {syncPeriod: 10s, masqueradeAll: null}
featureGates: {WinOverlay: true, WinDSR: true}
conntrack: {maxPerCore: 0}
nodePortAddresses: [10.0.0.0/8]
surprise: 1
";

    #[test]
    fn a_configuration_file_counts_more_than_flags() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.yaml");
        std::fs::write(&path, FILE).unwrap();
        assert_eq!(Options::of_file(FILE).unwrap().get("hostname-override"), "from-file");
        let options = parse(&format!("--config={} --proxy-mode=nftables --hostname-override=mine --v=4", path.display())).unwrap();
        let values = ["proxy-mode", "hostname-override", "network-name", "source-vip", "kubeconfig", "feature-gates"].map(|flag| options.get(flag));
        assert_eq!(values, ["kernelspace", "mine", "flannel.4096", "10.244.1.2", r"C:\k\config", "WinOverlay=true,WinDSR=true"]);
        assert_eq!(options.duration("iptables-sync-period").unwrap(), Duration::from_secs(10));
        assert_eq!(options.networks("nodeport-addresses").unwrap().len(), 1);
        let told = options.warnings.join("\n");
        for part in ["--proxy-mode has no effect: the configuration file counts", "surprise is unknown", "clientConnection.qps has no effect"] {
            assert!(told.contains(part), "{told}");
        }
        assert_eq!(options.warnings.len(), 3, "{told}");
        assert!(Options::of_file("kind: KubeletConfiguration").unwrap_err().to_string().contains("not a KubeProxyConfiguration"));
    }

    /// As kubeadm writes it: every member, most with Go's zero value.
    const KUBEADM: &str = r"
apiVersion: kubeproxy.config.k8s.io/v1alpha1
bindAddress: 'fd00::5'
bindAddressHardFail: false
clientConnection: {acceptContentTypes: '', burst: 0, contentType: '', kubeconfig: /var/lib/kube-proxy/kubeconfig.conf, qps: 0}
clusterCIDR: 10.244.0.0/16
configSyncPeriod: 0s
conntrack: {maxPerCore: null, min: null, tcpBeLiberal: false, tcpCloseWaitTimeout: null, tcpEstablishedTimeout: null, udpStreamTimeout: 0s, udpTimeout: 0s}
detectLocal: {bridgeInterface: '', interfaceNamePrefix: ''}
detectLocalMode: ''
enableProfiling: false
healthzBindAddress: ''
hostnameOverride: ''
iptables: {localhostNodePorts: null, masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
ipvs: {excludeCIDRs: null, minSyncPeriod: 0s, scheduler: '', strictARP: false, syncPeriod: 0s, tcpFinTimeout: 0s, tcpTimeout: 0s, udpTimeout: 0s}
kind: KubeProxyConfiguration
logging: {flushFrequency: 0, options: {json: {infoBufferSize: '0'}, text: {infoBufferSize: '0'}}, verbosity: 0}
metricsBindAddress: ''
mode: ''
nftables: {masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
nodePortAddresses: null
oomScoreAdj: null
portRange: ''
showHiddenMetricsForVersion: ''
winkernel: {enableDSR: false, forwardHealthCheckVip: false, networkName: '', rootHnsEndpointName: '', sourceVip: ''}
";

    #[test]
    fn kubeadms_configuration_means_upstreams_defaults() {
        let options = Options::of_file(KUBEADM).unwrap();
        assert_eq!(options.warnings, Vec::<String>::new());
        assert_eq!(options.duration("iptables-sync-period").unwrap(), Duration::from_secs(30));
        let values =
            ["metrics-bind-address", "healthz-bind-address", "root-hnsendpoint-name", "iptables-masquerade-bit", "udp-timeout", "proxy-mode"];
        assert_eq!(values.map(|flag| options.get(flag)), ["[::1]:10249", "[::]:10256", "cbr0", "14", "250ms", ""]);
        let four = Options::of_file(&KUBEADM.replace("fd00::5", "0.0.0.0")).unwrap();
        assert_eq!(values.map(|flag| four.get(flag))[..2], ["127.0.0.1:10249", "0.0.0.0:10256"]);
    }

    /// The flags of upstream's kube-proxy (cmd/kube-proxy/app/options.go and init_windows.go, component-base/logs), with its defaults.
    const UPSTREAM: &[(&str, &str)] = &[
        ("config", ""),
        ("write-config-to", ""),
        ("cleanup", "false"),
        ("feature-gates", ""),
        ("kubeconfig", ""),
        ("master", ""),
        ("hostname-override", ""),
        ("bind-address", "0.0.0.0"),
        ("healthz-bind-address", "0.0.0.0:10256"),
        ("metrics-bind-address", "127.0.0.1:10249"),
        ("bind-address-hard-fail", "false"),
        ("init-only", "false"),
        ("proxy-mode", ""),
        ("iptables-masquerade-bit", "14"),
        ("masquerade-all", "false"),
        ("iptables-sync-period", "30s"),
        ("detect-local-mode", ""),
        ("pod-bridge-interface", ""),
        ("pod-interface-name-prefix", ""),
        ("cluster-cidr", ""),
        ("nodeport-addresses", ""),
        ("v", "0"),
        ("version", "false"),
        ("windows-service", "false"),
        ("source-vip", ""),
        ("network-name", ""),
        ("root-hnsendpoint-name", "cbr0"),
        ("forward-healthcheck-vip", "false"),
    ];
    const UPSTREAM_WITHOUT_EFFECT: &str = "kube-api-content-type kube-api-burst kube-api-qps profiling show-hidden-metrics-for-version \
        iptables-localhost-nodeports iptables-min-sync-period ipvs-sync-period ipvs-min-sync-period ipvs-scheduler ipvs-exclude-cidrs \
        ipvs-strict-arp ipvs-tcp-timeout ipvs-tcpfin-timeout ipvs-udp-timeout oom-score-adj conntrack-max-per-core conntrack-min \
        conntrack-tcp-timeout-established conntrack-tcp-timeout-close-wait conntrack-tcp-be-liberal conntrack-udp-timeout \
        conntrack-udp-timeout-stream config-sync-period logging-format log-flush-frequency vmodule log-text-split-stream \
        log-text-info-buffer-size log-json-split-stream log-json-info-buffer-size";

    #[test]
    fn upstreams_flags_have_upstreams_defaults_or_a_reason_for_no_effect() {
        for (flag, default) in UPSTREAM {
            assert!(known(flag).is_some_and(|known| known.used), "{flag}");
            assert_eq!(Options::default().get(flag), *default, "{flag}");
        }
        assert_eq!(Options::default().get("enable-dsr"), "true", "upstream's is false, unless WinDSR says otherwise");
        for flag in UPSTREAM_WITHOUT_EFFECT.split_whitespace() {
            assert!(known(flag).is_some_and(|known| !known.used && !known.what.is_empty()), "{flag}");
            assert_eq!(parse(&format!("--{flag}=true")).unwrap().warnings.len(), 1, "{flag} is said once");
        }
    }

    #[test]
    fn what_flags_mean_can_be_written_down() {
        let options = parse("--network-name=pods --enable-dsr=false --nodeport-addresses=10.0.0.0/8 --cluster-cidr=10.244.0.0/16").unwrap();
        let again = Options::of_file(&options.to_file().unwrap()).unwrap();
        for flag in ["network-name", "enable-dsr", "nodeport-addresses", "cluster-cidr", "iptables-sync-period", "bind-address"] {
            assert_eq!(again.get(flag), options.get(flag), "{flag}");
        }
        assert_eq!(again.warnings, Vec::<String>::new());
    }

    #[test]
    fn options_have_one_name_each_and_help_has_them_all() {
        let help = help();
        for (i, known) in OPTIONS.iter().enumerate() {
            assert!(help.contains(&format!("--{} ", known.flag)), "{}", known.flag);
            assert!(
                OPTIONS[i + 1..].iter().all(|other| other.flag != known.flag && (known.path.is_empty() || other.path != known.path)),
                "{}",
                known.flag
            );
        }
        assert!(ALIASES.iter().all(|(_, flag)| known(flag).is_some()));
    }
}
