//! Tests of KubeProxyConfiguration and its flags.

use serde_json::Value;

use super::flags::{Options, all, help};
use super::*;
use crate::document::{ConfigError, to_yaml};

fn parse(line: &str) -> Result<Options, ConfigError> {
    Options::parse(line.split_whitespace().map(str::to_owned))
}

#[test]
fn command_line_of_the_alpha_document_is_read_as_printed() {
    let line = "--v=3 --proxy-mode=userspace --hostname-override=win01 --master=http://10.0.0.2:8080 --bind-address=10.0.0.5";
    let options = parse(line).unwrap();
    let values = ["v", "proxy-mode", "hostname-override", "master", "bind-address"].map(|flag| options.get(flag));
    assert_eq!(values, ["3", "userspace", "win01", "http://10.0.0.2:8080", "10.0.0.5"]);
    assert_eq!(options.warnings, Vec::<String>::new());
}

#[test]
fn flags_are_read_as_upstream_reads_them() {
    let options = parse("--enable_dsr=false -v 4 --nodeport-addresses=10.0.0.0/8 --nodeport-addresses 127.0.0.0/8 --masquerade-all").unwrap();
    assert!(!options.config.winkernel.enable_dsr && options.config.nftables.masquerade_all);
    assert_eq!(parse("--nodeport-addresses=localhost,10.0.0.0/8").unwrap().get("nodeport-addresses"), "localhost,10.0.0.0/8");
    assert_eq!((options.config.logging.verbosity, options.get("nodeport-addresses").as_str()), (4, "10.0.0.0/8,127.0.0.0/8"));
    assert_eq!(options.get("root-hnsendpoint-name"), "cbr0");
    let warnings = parse("--ipvs-scheduler=rr --conntrack-min=0 --profiling --oom-score-adj -998").unwrap().warnings;
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    assert!(warnings[0].contains("--ipvs-scheduler has no effect: there is no IPVS backend"), "{warnings:?}");
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
fn deprecated_ports_change_the_address() {
    let at = |line: &str| parse(line).unwrap().config.healthz_bind_address.socket(HEALTHZ_PORT).map(|at| at.to_string());
    assert_eq!(at(""), Some("0.0.0.0:10256".into()));
    assert_eq!(at("--healthz-bind-address=10.0.0.5"), Some("10.0.0.5:10256".into()));
    assert_eq!(at("--healthz-bind-address="), None);
    assert_eq!(at("--healthz-port=0"), None);
    assert_eq!(at("--healthz-port=9001"), Some("0.0.0.0:9001".into()));
    assert_eq!(at("--healthz-port=9001 --healthz-bind-address=10.0.0.5:1"), Some("10.0.0.5:9001".into()));
    assert!(parse("--healthz-port=none").unwrap_err().to_string().contains("is no port"));
}

#[test]
fn wrong_values_name_the_flag_and_what_to_write() {
    for (line, part) in [
        ("--metrics-bind-address=nowhere", "of --metrics-bind-address: \"nowhere\" is no address and port"),
        ("--proxy-mode=fast", "unknown --proxy-mode \"fast\": use kernelspace, nftables or userspace"),
        ("--detect-local-mode=mac", "unknown --detect-local-mode \"mac\": use ClusterCIDR"),
        ("--iptables-sync-period=30", "\"30\" is no duration, write it as 30s or 1m30s"),
        ("--cluster-cidr=10.0.0.5", "\"10.0.0.5\" is no network, write it as 192.168.0.0/16"),
        ("--iptables-masquerade-bit=32", "--iptables-masquerade-bit is from 0 to 31"),
        ("--bind-address=here", "invalid value \"here\" of --bind-address: invalid IP address syntax"),
        ("--v=much", "write a whole number"),
        ("--feature-gates=WinDSR", "missing value for WinDSR: write NAME=VALUE"),
    ] {
        let error = parse(line).unwrap_err().to_string();
        assert!(error.contains(part) && error.starts_with("invalid value"), "{line}: {error}");
    }
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
fn configuration_file_counts_more_than_flags() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.yaml");
    std::fs::write(&path, FILE).unwrap();
    assert_eq!(Options::of_file(FILE).unwrap().get("hostname-override"), "from-file");
    let options = parse(&format!("--config={} --proxy-mode=nftables --hostname-override=mine --v=4", path.display())).unwrap();
    let values = ["proxy-mode", "hostname-override", "network-name", "source-vip", "kubeconfig", "feature-gates"].map(|flag| options.get(flag));
    assert_eq!(values, ["kernelspace", "mine", "flannel.4096", "10.244.1.2", r"C:\k\config", "WinDSR=true,WinOverlay=true"]);
    assert_eq!((options.get("iptables-sync-period"), options.get("nodeport-addresses")), ("10s".into(), "10.0.0.0/8".into()));
    let warnings = options.warnings.join("\n");
    for part in [
        "--proxy-mode has no effect: the configuration file counts",
        "strict decoding error: unknown field \"surprise\"",
        "clientConnection.qps has no effect",
    ] {
        assert!(warnings.contains(part), "{warnings}");
    }
    assert_eq!(options.warnings.len(), 3, "{warnings}");
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
    assert_eq!(
        options.config,
        KubeProxyConfiguration {
            // Ours is on, and the file says what it wants.
            winkernel: Winkernel { enable_dsr: false, ..Winkernel::default() },
            bind_address: "fd00::5".parse().unwrap(),
            metrics_bind_address: "[::1]:10249".parse().unwrap(),
            healthz_bind_address: "[::]:10256".parse().unwrap(),
            client_connection: ClientConnection { kubeconfig: "/var/lib/kube-proxy/kubeconfig.conf".into() },
            cluster_cidr: "10.244.0.0/16".parse().unwrap(),
            ..KubeProxyConfiguration::default()
        }
    );
    let values = ["metrics-bind-address", "healthz-bind-address", "root-hnsendpoint-name", "iptables-masquerade-bit", "udp-timeout", "proxy-mode"];
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
    let is_used = |name: &str| all().find(|(flag, ..)| *flag == name).map(|(_, _, used)| used);
    for (flag, default) in UPSTREAM {
        assert_eq!(is_used(flag), Some(true), "{flag}");
        assert_eq!(Options::default().get(flag), *default, "{flag}");
    }
    assert_eq!(Options::default().get("enable-dsr"), "true", "upstream's is false, unless WinDSR says otherwise");
    for flag in UPSTREAM_WITHOUT_EFFECT.split_whitespace() {
        assert_eq!(is_used(flag), Some(false), "{flag}");
        assert_eq!(parse(&format!("--{flag}=true")).unwrap().warnings.len(), 1, "{flag} is reported once");
    }
}

#[test]
fn configuration_of_flags_can_be_written_as_a_file() {
    let options = parse("--network-name=pods --enable-dsr=false --nodeport-addresses=10.0.0.0/8 --cluster-cidr=10.244.0.0/16").unwrap();
    let again = Options::of_file(&to_yaml(&options.config)).unwrap();
    for flag in ["network-name", "enable-dsr", "nodeport-addresses", "cluster-cidr", "iptables-sync-period", "bind-address"] {
        assert_eq!(again.get(flag), options.get(flag), "{flag}");
    }
    assert_eq!(again.warnings, Vec::<String>::new());
}

#[test]
fn flags_have_one_name_each_and_help_has_them_all() {
    let (help, flags) = (help(), all().collect::<Vec<_>>());
    for (i, (name, path, _)) in flags.iter().enumerate() {
        assert!(help.contains(&format!("--{name} ")), "{name}");
        assert!(flags[i + 1..].iter().all(|(other, place, _)| other != name && (path.is_empty() || place != path)), "{name}");
    }
}

/// The paths of all members, as a file has them.
fn members(value: &Value, prefix: &str, paths: &mut Vec<String>) {
    for (name, value) in value.as_object().unwrap() {
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match value {
            Value::Object(_) if !KubeProxyConfiguration::MAPS.contains(&path.as_str()) => members(value, &path, paths),
            _ => paths.push(path),
        }
    }
}

/// A flag whose member is misspelt would set nothing, and a member without a flag could not be set from a command line.
#[test]
fn flags_and_members_correspond() {
    let mut paths = Vec::new();
    members(&serde_json::to_value(KubeProxyConfiguration::default()).unwrap(), "", &mut paths);
    let alone = serde_json::to_value(flags::CommandFlags::default()).unwrap();
    paths.sort();
    let mut named: Vec<_> = all().filter(|(_, path, used)| *used && !path.is_empty()).map(|(_, path, _)| path.to_owned()).collect();
    named.sort();
    assert_eq!(paths, named);
    let mut flags: Vec<_> = all().filter(|(_, path, used)| *used && path.is_empty()).map(|(name, ..)| name).collect();
    let mut fields: Vec<_> = alone.as_object().unwrap().keys().map(String::as_str).collect();
    flags.sort_unstable();
    fields.sort_unstable();
    assert_eq!(flags, fields);
}
