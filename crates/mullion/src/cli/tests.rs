//! Tests of the command line: help, and the flags of `mullion node`.

use std::collections::BTreeMap;

use clap::{CommandFactory as _, Parser as _};
use node_config::document::to_document;
use serde_json::Value;

use super::*;

fn parse(args: &[&str]) -> Result<NodeArgs, clap::Error> {
    match Cli::try_parse_from(["mullion", "node"].iter().chain(args))?.command {
        Command::Node(args) => Ok(*args),
        _ => panic!("another command"),
    }
}

#[test]
fn help_lists_every_command_in_a_group() {
    let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, members)| *members).copied().collect();
    let command = command();
    let mut visible: Vec<&str> = command.get_subcommands().filter(|command| !command.is_hide_set()).map(clap::Command::get_name).collect();
    grouped.sort_unstable();
    visible.sort_unstable();
    assert_eq!(grouped, visible);
    let help = command.clone().render_help().to_string();
    assert!(help.contains("\nClusters:\n  up              Start a cluster") && help.contains("\nNodes:\n  node "), "{help}");
    assert!(help.contains("\nExamples:\n") && help.contains("docs/README.md") && help.contains("\nOptions:\n  -h, --help"), "{help}");
    let examples: Vec<&str> = AFTER_HELP.lines().filter_map(|line| line.strip_prefix("  ")).collect();
    assert_eq!(examples.len(), 3);
    for example in examples {
        let words = example.split("  ").next().unwrap().split(' ');
        assert!(Cli::try_parse_from(words).is_ok(), "{example}");
    }
}

/// Flag, its member, a value, and the member's value then. Every flag of `mullion node` has a row.
const FLAGS: &[(&str, &str, &str, &str)] = &[
    ("kubeconfig", "node.kubeconfig", "/k", r#""/k""#),
    ("hostname-override", "node.nodeName", "win01", r#""win01""#),
    ("node-ip", "node.nodeIP", "10.0.0.5,fd00::5", r#""10.0.0.5,fd00::5""#),
    ("os", "node.os", "windows:17763", r#""windows:17763""#),
    ("root", "node.roots", "C=/c", r#"["C=/c"]"#),
    ("container-runtime-endpoint", "kubelet.containerRuntimeEndpoint", "unix:///r", r#""unix:///r""#),
    ("hcn", "node.hcn", "unix:/h", r#""unix:/h""#),
    ("adapter", "node.adapter", "LAN", r#""LAN""#),
    ("loopback-dsr", "node.loopbackDSR", "false", "false"),
    ("cluster-cidr", "proxy.clusterCIDR", "10.1.0.0/16", r#""10.1.0.0/16""#),
    ("service-cidr", "node.serviceCIDR", "10.2.0.0/16", r#""10.2.0.0/16""#),
    ("lan", "node.lan", "10.3.0.0/16,fd00:3::/64", r#""10.3.0.0/16,fd00:3::/64""#),
    ("cluster-dns", "kubelet.clusterDNS", "10.2.0.10", r#"["10.2.0.10"]"#),
    ("cluster-domain", "kubelet.clusterDomain", "c.example", r#""c.example""#),
    ("network", "node.network", "l3", r#""l3""#),
    ("network-policy", "node.networkPolicy", "true", "true"),
    ("cni-conf-dir", "node.cniConfDir", "/conf", r#""/conf""#),
    ("ipam-dir", "node.ipamDir", "/ipam", r#""/ipam""#),
    ("tls-cert-file", "kubelet.tlsCertFile", "/crt", r#""/crt""#),
    ("tls-private-key-file", "kubelet.tlsPrivateKeyFile", "/key", r#""/key""#),
    ("client-ca-file", "kubelet.authentication.x509.clientCAFile", "/ca", r#""/ca""#),
    ("port", "kubelet.port", "1", "1"),
    ("flannel-net-conf", "node.flannelNetConf", "/net-conf.json", r#""/net-conf.json""#),
    ("flannel-subnet-env", "node.flannelSubnetEnv", "/subnet.env", r#""/subnet.env""#),
    ("service-interface", "node.serviceInterface", "svc0", r#""svc0""#),
    ("cpu", "node.cpu", "2", r#""2""#),
    ("memory", "node.memory", "1Gi", r#""1Gi""#),
    ("max-pods", "kubelet.maxPods", "3", "3"),
    ("machine-id", "node.machineID", "m", r#""m""#),
    ("boot-id", "node.bootID", "b", r#""b""#),
    ("feature-gates", "kubelet.featureGates", "HyperVContainer=true", r#"{"HyperVContainer": true}"#),
    ("eviction-hard", "kubelet.evictionHard", "nodefs.available<1%", r#"{"nodefs.available": "1%"}"#),
    ("pod-manifest-path", "kubelet.staticPodPath", "/m", r#""/m""#),
    ("volume-plugin-dir", "kubelet.volumePluginDir", "/flex", r#""/flex""#),
    ("manifest-url", "kubelet.staticPodURL", "http://boot/pods", r#""http://boot/pods""#),
    ("manifest-url-header", "kubelet.staticPodURLHeader", "X-Rack:7", r#"{"X-Rack": ["7"]}"#),
    ("file-check-frequency", "kubelet.fileCheckFrequency", "5s", r#""5s""#),
    ("http-check-frequency", "kubelet.httpCheckFrequency", "6s", r#""6s""#),
    ("container-log-max-size", "kubelet.containerLogMaxSize", "1Ki", r#""1Ki""#),
    ("container-log-max-files", "kubelet.containerLogMaxFiles", "4", "4"),
    ("image-gc-high-threshold", "kubelet.imageGCHighThresholdPercent", "90", "90"),
    ("image-gc-low-threshold", "kubelet.imageGCLowThresholdPercent", "70", "70"),
    ("minimum-image-ttl-duration", "kubelet.imageMinimumGCAge", "3m", r#""3m0s""#),
    ("without", "node.without", "proxy", r#"["proxy"]"#),
];

fn member(config: &NodeConfig, path: &str) -> Value {
    let (document, path) = path.split_once('.').unwrap();
    let document = match document {
        "node" => to_document(&config.node),
        "kubelet" => to_document(&config.kubelet),
        _ => to_document(&config.kube_proxy),
    };
    path.split('.').fold(document, |place, part| place[part].clone())
}

#[test]
fn flags_count_more_than_the_file_and_the_file_more_than_defaults() {
    let dir = tempfile::tempdir().unwrap();
    let (empty, full) = (dir.path().join("empty"), dir.path().join("full"));
    std::fs::write(&empty, "").unwrap();
    let args: Vec<String> = FLAGS.iter().map(|(flag, _, value, _)| format!("--{flag}={value}")).collect();
    let all = parse(&args.iter().map(String::as_str).collect::<Vec<_>>()).unwrap().into_config().unwrap().config;
    std::fs::write(&full, all.to_yaml()).unwrap();
    let with = |file: &Path, flags: &[&str]| {
        let config = format!("--config={}", file.display());
        let parsed = parse(&[&[config.as_str()], flags].concat()).unwrap().into_config().unwrap();
        assert_eq!(parsed.warnings, Vec::<String>::new());
        parsed.config
    };
    let default = NodeConfig::default();
    assert_eq!(with(&empty, &[]), default);
    assert_eq!(with(&full, &[]), all, "file over default");
    for (flag, path, value, expected) in FLAGS {
        let expected: Value = serde_json::from_str(expected).unwrap();
        assert_eq!(member(&all, path), expected, "{flag}");
        assert_ne!(member(&default, path), expected, "{flag}: the default proves nothing");
        assert_eq!(member(&with(&empty, &[&format!("--{flag}={value}")]), path), expected, "{flag} over default");
    }
    let over = with(&full, &["--port=9", "--root=D=/d", "--node-ip=10.0.0.6", "--loopback-dsr=true", "--feature-gates=HyperVContainer=false"]);
    assert_eq!((over.kubelet.port, over.node.roots, over.node.node_ip), (9, vec!["D=/d".to_owned()], "10.0.0.6".parse().unwrap()));
    assert!(over.node.loopback_dsr && over.kubelet.feature_gates == BTreeMap::from([("HyperVContainer".to_owned(), false)]));
}

#[test]
fn every_flag_of_a_node_has_a_row() {
    let command = Cli::command();
    let node = command.find_subcommand("node").unwrap();
    let mut flags: Vec<_> = node.get_arguments().filter_map(|argument| argument.get_long()).filter(|flag| *flag != "config").collect();
    let mut rows: Vec<_> = FLAGS.iter().map(|(flag, ..)| *flag).collect();
    flags.sort_unstable();
    rows.sort_unstable();
    assert_eq!(flags, rows);
}

#[test]
fn without_a_file_required_flags_are_required() {
    let error = parse(&["--port=1"]).unwrap_err().to_string();
    for flag in ["--kubeconfig", "--hostname-override", "--node-ip", "--root", "--container-runtime-endpoint", "--cluster-cidr", "--cluster-dns"] {
        assert!(error.contains(flag), "{flag} is not asked for in {error}");
    }
}

#[test]
fn wrong_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("node.yaml");
    let message = || {
        let args = parse(&[&format!("--config={}", file.display())]).unwrap();
        format!("{:#}", anyhow::Error::from(args.into_config().unwrap_err()))
    };
    assert!(message().contains("node.yaml cannot be read: No such file"), "{}", message());
    std::fs::write(&file, "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nport: many").unwrap();
    let message = message();
    assert!(message.contains("node.yaml: invalid value \"many\" of port: write a whole number"), "{message}");
}
