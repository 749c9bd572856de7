//! Tests of the flags of `kubelet` and `mullion node`, and of the files that they name.

use std::path::Path;

use serde_json::json;

use super::table::FLAGS as TABLE;
use super::*;
use crate::document::to_document;
use crate::kubelet::{Taint, TaintEffect};

/// Flag, its member, a value, and the member's value then. Every flag that sets a member has a row.
const FLAGS: &[(&str, &str, &str, &str)] = &[
    ("kubeconfig", "node.kubeconfig", "/k", r#""/k""#),
    ("bootstrap-kubeconfig", "node.bootstrapKubeconfig", "/b", r#""/b""#),
    ("rotate-certificates", "kubelet.rotateCertificates", "true", "true"),
    ("rotate-server-certificates", "kubelet.serverTLSBootstrap", "true", "true"),
    ("tls-min-version", "kubelet.tlsMinVersion", "VersionTLS13", r#""VersionTLS13""#),
    ("tls-cipher-suites", "kubelet.tlsCipherSuites", "A,B", r#"["A", "B"]"#),
    ("hostname-override", "node.nodeName", "win01", r#""win01""#),
    ("node-ip", "node.nodeIP", "10.0.0.5,fd00::5", r#""10.0.0.5,fd00::5""#),
    ("os", "node.os", "windows:17763", r#""windows:17763""#),
    ("root", "node.roots", "C=/c", r#"["C=/c"]"#),
    ("container-runtime-endpoint", "kubelet.containerRuntimeEndpoint", "unix:///r", r#""unix:///r""#),
    ("image-service-endpoint", "kubelet.imageServiceEndpoint", "unix:///i", r#""unix:///i""#),
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
    ("minimum-container-ttl-duration", "node.minimumContainerTTLDuration", "1m0s", r#""1m0s""#),
    ("maximum-dead-containers", "node.maximumDeadContainers", "240", "240"),
    ("maximum-dead-containers-per-container", "node.maximumDeadContainersPerContainer", "-1", "-1"),
    ("image-credential-provider-config", "node.imageCredentialProviderConfig", "/creds.yaml", r#""/creds.yaml""#),
    ("image-credential-provider-bin-dir", "node.imageCredentialProviderBinDir", "/creds", r#""/creds""#),
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
    ("node-labels", "node.nodeLabels", "a=true,example.com/b=", r#"{"a": "true", "example.com/b": ""}"#),
    ("cloud-provider", "node.cloudProvider", "external", r#""external""#),
    ("root-dir", "node.rootDir", "/k", r#""/k""#),
    ("cert-dir", "node.certDir", "/certs", r#""/certs""#),
    (
        "register-with-taints",
        "kubelet.registerWithTaints",
        "a=b:NoExecute,c:NoSchedule",
        r#"[{"key": "a", "value": "b", "effect": "NoExecute"}, {"key": "c", "value": "", "effect": "NoSchedule"}]"#,
    ),
    ("resolv-conf", "kubelet.resolvConf", "", r#""""#),
    ("address", "kubelet.address", "10.0.0.5", r#""10.0.0.5""#),
    ("enable-server", "kubelet.enableServer", "false", "false"),
    ("healthz-bind-address", "kubelet.healthzBindAddress", "127.0.0.2", r#""127.0.0.2""#),
    ("healthz-port", "kubelet.healthzPort", "0", "0"),
    ("pods-per-core", "kubelet.podsPerCore", "5", "5"),
    ("system-reserved", "kubelet.systemReserved", "cpu=200m,memory=1Gi", r#"{"cpu": "200m", "memory": "1Gi"}"#),
    ("kube-reserved", "kubelet.kubeReserved", "pid=1000", r#"{"pid": "1000"}"#),
    ("eviction-soft", "kubelet.evictionSoft", "memory.available<1Gi", r#"{"memory.available": "1Gi"}"#),
    ("eviction-soft-grace-period", "kubelet.evictionSoftGracePeriod", "memory.available=1m30s", r#"{"memory.available": "1m30s"}"#),
    ("eviction-minimum-reclaim", "kubelet.evictionMinimumReclaim", "nodefs.available=2Gi", r#"{"nodefs.available": "2Gi"}"#),
    ("eviction-pressure-transition-period", "kubelet.evictionPressureTransitionPeriod", "6m", r#""6m0s""#),
    ("eviction-max-pod-grace-period", "kubelet.evictionMaxPodGracePeriod", "60", "60"),
    ("node-status-update-frequency", "kubelet.nodeStatusUpdateFrequency", "4s", r#""4s""#),
    ("allowed-unsafe-sysctls", "kubelet.allowedUnsafeSysctls", "net.core.somaxconn,kernel.msg*", r#"["net.core.somaxconn", "kernel.msg*"]"#),
    ("cgroup-driver", "kubelet.cgroupDriver", "systemd", r#""systemd""#),
    ("serialize-image-pulls", "kubelet.serializeImagePulls", "false", "false"),
    ("registry-qps", "kubelet.registryPullQPS", "0", "0"),
    ("registry-burst", "kubelet.registryBurst", "4", "4"),
    ("cgroup-root", "kubelet.cgroupRoot", "/nodes", r#""/nodes""#),
    ("cgroups-per-qos", "kubelet.cgroupsPerQOS", "false", "false"),
    ("enforce-node-allocatable", "kubelet.enforceNodeAllocatable", "pods,kube-reserved", r#"["pods", "kube-reserved"]"#),
    ("fail-cgroupv1", "kubelet.failCgroupV1", "true", "true"),
    ("kube-reserved-cgroup", "kubelet.kubeReservedCgroup", "/kube", r#""/kube""#),
    ("pod-max-pids", "kubelet.podPidsLimit", "1024", "1024"),
    ("qos-reserved", "kubelet.qosReserved", "memory=50%", r#"{"memory": "50%"}"#),
    ("system-reserved-cgroup", "kubelet.systemReservedCgroup", "/system", r#""/system""#),
    ("cpu-cfs-quota", "kubelet.cpuCFSQuota", "false", "false"),
    ("cpu-cfs-quota-period", "kubelet.cpuCFSQuotaPeriod", "20ms", "\"20ms\""),
    ("enable-debugging-handlers", "kubelet.enableDebuggingHandlers", "false", "false"),
    ("node-status-max-images", "kubelet.nodeStatusMaxImages", "-1", "-1"),
    ("provider-id", "kubelet.providerID", "cloud://7", r#""cloud://7""#),
    ("register-node", "kubelet.registerNode", "false", "false"),
    ("seccomp-default", "kubelet.seccompDefault", "true", "true"),
    ("sync-frequency", "kubelet.syncFrequency", "9s", r#""9s""#),
    ("anonymous-auth", "kubelet.authentication.anonymous.enabled", "true", "true"),
    ("authentication-token-webhook", "kubelet.authentication.webhook.enabled", "false", "false"),
    ("authentication-token-webhook-cache-ttl", "kubelet.authentication.webhook.cacheTTL", "1s", r#""1s""#),
    ("authorization-mode", "kubelet.authorization.mode", "AlwaysAllow", r#""AlwaysAllow""#),
    ("authorization-webhook-cache-authorized-ttl", "kubelet.authorization.webhook.cacheAuthorizedTTL", "2s", r#""2s""#),
    ("authorization-webhook-cache-unauthorized-ttl", "kubelet.authorization.webhook.cacheUnauthorizedTTL", "3s", r#""3s""#),
    ("v", "kubelet.logging.verbosity", "5", "5"),
];

/// The flags of upstream's kubelet 1.36, of Linux and Windows.
const UPSTREAM: &str = include_str!("upstream.txt");

fn parse(args: &[&str]) -> Result<Options, ConfigError> {
    Options::parse(Program::Node, args.iter().map(|arg| (*arg).to_owned()))
}

fn refusal(args: &[&str]) -> String {
    chain(&parse(args).unwrap_err())
}

/// An error with its sources, as programs print it.
fn chain(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {}", chain(source)))
}

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
    let all = parse(&args.iter().map(String::as_str).collect::<Vec<_>>()).unwrap().config;
    std::fs::write(&full, all.to_yaml()).unwrap();
    let with = |file: &Path, flags: &[&str]| {
        let config = format!("--config={}", file.display());
        let parsed = parse(&[&[config.as_str()], flags].concat()).unwrap();
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
fn every_flag_that_sets_a_member_has_a_row() {
    let mut flags: Vec<_> = all().filter(|(_, path, effect)| !path.is_empty() && matches!(effect, Effect::Used(_))).map(|(name, ..)| name).collect();
    let mut rows: Vec<_> = FLAGS.iter().map(|(flag, ..)| *flag).collect();
    flags.sort_unstable();
    rows.sort_unstable();
    assert_eq!(flags, rows);
}

#[test]
fn upstreams_flags_are_known_and_each_is_followed_ignored_or_refused() {
    for name in UPSTREAM.split_whitespace() {
        let found: Vec<_> = all().filter(|(flag, ..)| *flag == name).collect();
        let [(_, path, effect)] = found.as_slice() else { panic!("--{name} is there {} times", found.len()) };
        let (Effect::Used(text) | Effect::Ignored(text) | Effect::Refused(text)) = effect;
        assert!(!text.is_empty(), "--{name} says nothing");
        if let Effect::Ignored(_) = effect {
            let value = format!("--{name}=7");
            let is_switch = TABLE.iter().any(|flag| flag.name == name && flag.kind == flags::Kind::Switch);
            let given = if is_switch { format!("--{name}") } else { value };
            let reported = parse(&[&given]).map(|options| options.warnings);
            match (reported, KubeletConfiguration::refused(path, "true").is_some()) {
                (Ok(warnings), _) => {
                    assert!(warnings.len() <= 1 && warnings.iter().all(|w| w.starts_with(&format!("--{name} has no effect: "))), "{warnings:?}")
                }
                (Err(error), true) => assert!(error.to_string().starts_with(&format!("cannot use --{name}=true: ")), "{error}"),
                (Err(error), false) => panic!("--{name}: {error}"),
            }
        }
    }
    let known: std::collections::BTreeSet<_> = all().map(|(name, ..)| name).collect();
    assert_eq!(known.len(), all().count(), "each once");
}

#[test]
fn flags_are_read_as_upstream_reads_them() {
    let options = parse(&["--node_ip", "10.0.0.5", "--eviction-hard=", "--v", "4", "--pod-infra-container-image=pause:3", "--resolv-conf="]).unwrap();
    assert_eq!((options.config.node.node_ip, options.config.kubelet.logging.verbosity), ("10.0.0.5".parse().unwrap(), 4));
    assert_eq!(options.config.kubelet.eviction_hard.to_string(), "memory.available<0", "no threshold");
    assert_eq!(options.warnings, ["--pod-infra-container-image has no effect: the container runtime chooses the sandbox's image"]);
    let taint = Taint { key: "a".into(), value: "b".into(), effect: TaintEffect::PreferNoSchedule };
    let asked = parse(&[
        "--register-with-taints=a=b:PreferNoSchedule",
        "--feature-gates=NodeSwap=true,PLEGOnDemandRelist=false",
        "--rotate-certificates=false",
    ])
    .unwrap();
    assert_eq!(asked.config.kubelet.register_with_taints, [taint]);
    assert_eq!(asked.warnings.len(), 1, "{:?}", asked.warnings);
    for (args, part) in [
        (&["--fly"][..], "unknown flag: --fly"),
        (&["run"], "unknown argument \"run\""),
        (&["--kubeconfig"], "flag needs an argument: --kubeconfig"),
        (&["--enable-server=maybe"], "invalid value \"maybe\" of --enable-server: write true or false"),
        (&["--max-pods=many"], "invalid value \"many\" of --max-pods: write a whole number"),
        (&["--eviction-hard=memory.available"], "of --eviction-hard: invalid eviction threshold \"memory.available\": write SIGNAL<AMOUNT"),
        (&["--register-with-taints=a"], "of --register-with-taints: invalid taint \"a\": write KEY=VALUE:EFFECT"),
        (&["--manifest-url-header=a"], "invalid header \"a\": write NAME:VALUE"),
        (&["--node-labels=a"], "missing value for a: write NAME=VALUE"),
        (&["--runonce"], "cannot use --runonce=true: upstream removed the mode"),
        (&["--topology-manager-policy=restricted"], "cannot use --topology-manager-policy=restricted: pods get processors"),
        (&["--enable-controller-attach-detach=false"], "cannot use --enable-controller-attach-detach=false"),
        (&["--cgroups-per-qos=maybe"], "write true or false"),
    ] {
        assert!(refusal(args).contains(part), "{args:?}: {}", refusal(args));
    }
}

/// The line of Kubernetes' Windows alpha document of 2016.
#[test]
fn the_alphas_command_line_gets_todays_form() {
    let line = ["--hostname-override=win01", "--pod-infra-container-image=apprenda/pause", "--resolv-conf=", "--api_servers=10.0.0.2:8080"];
    let answer = refusal(&line);
    let (from, to) = (answer.find("{apiVersion").unwrap(), answer.rfind('}').unwrap());
    let kubeconfig: Value = serde_yaml_ng::from_str(&answer[from..=to]).unwrap();
    assert_eq!(kubeconfig["clusters"][0]["cluster"]["server"], "http://10.0.0.2:8080");
    assert_eq!((&kubeconfig["kind"], &kubeconfig["current-context"]), (&json!("Config"), &json!("c")));
    assert!(answer.contains("--kubeconfig=FILE"), "{answer}");
    parse(&line[..3]).unwrap();
}

#[test]
fn the_kubelet_is_the_agent_alone() {
    let options = Options::parse(Program::Kubelet, ["--network-policy".to_owned(), "--max-pods=7".to_owned()]).unwrap();
    assert_eq!((options.config.node.without.as_slice(), options.config.kubelet.max_pods), (&[Part::Proxy, Part::Fabric][..], 7));
    assert!(!options.config.node.network_policy);
    for program in [Program::Kubelet, Program::Node] {
        let help = help(program);
        for (name, _, effect) in all() {
            assert_eq!(help.contains(&format!("      --{name} ")), !matches!(effect, Effect::Refused(_)), "{name}");
        }
    }
}

#[test]
fn wrong_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("node.yaml");
    let message = || refusal(&[&format!("--config={}", file.display())]);
    assert!(message().contains("node.yaml cannot be read: No such file"), "{}", message());
    std::fs::write(&file, "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nport: many").unwrap();
    assert!(message().contains("node.yaml: invalid value \"many\" of port: write a whole number"), "{}", message());
    std::fs::write(&file, "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nrunOnce: true").unwrap();
    assert!(message().contains("node.yaml: cannot use runOnce: true: upstream removed"), "{}", message());
}

/// A directory with a configuration and drop-ins below `conf.d`.
struct Files(tempfile::TempDir);

impl Files {
    fn new(config: Option<&str>, drop_ins: &[(&str, &str)]) -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        let drop_ins = drop_ins.iter().map(|(name, text)| (format!("conf.d/{name}"), *text));
        std::fs::create_dir(files.0.path().join("conf.d")).unwrap();
        for (name, text) in config.map(|text| ("config.yaml".to_owned(), text)).into_iter().chain(drop_ins) {
            let path = files.0.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let text = text.replace("KUBELET", "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1");
            std::fs::write(path, text).unwrap();
        }
        files
    }

    fn parse(&self, more: &[&str]) -> Result<Options, ConfigError> {
        let dir = self.0.path();
        let config = dir.join("config.yaml");
        let mut args = vec![format!("--config-dir={}", dir.join("conf.d").display())];
        args.extend(config.exists().then(|| format!("--config={}", config.display())));
        args.extend(more.iter().map(|arg| (*arg).to_owned()));
        Options::parse(Program::Kubelet, args)
    }
}

#[test]
fn drop_ins_are_merged_in_order_between_file_and_flags() {
    let files = Files::new(
        Some("KUBELET\nmaxPods: 10\nport: 1\nclusterDNS: [10.96.0.10]\nstaticPodPath: manifests\nauthentication: {x509: {clientCAFile: ca.crt}}"),
        &[
            ("20-b.conf", "KUBELET\nmaxPods: 30\nsystemReserved: {cpu: 200m, memory: null}\nstaticPodPath: null"),
            (
                "10-a.conf",
                "KUBELET\nmaxPods: 20\nsystemReserved: {cpu: 100m, memory: 1Gi, pid: '5'}\nclusterDNS: [10.96.0.11, fd00::a]\nsurprise: {a: 1}",
            ),
            ("15-sub/01.conf", "KUBELET\npodsPerCore: 3\nmaxPods: 25"),
            ("30-c.yaml", "not a drop-in: ["),
        ],
    );
    let options = files.parse(&["--port=9"]).unwrap();
    let agent = &options.config.kubelet;
    assert_eq!((agent.max_pods, agent.pods_per_core, agent.port), (30, 3, 9));
    let reserved = [("cpu", "200m"), ("pid", "5")].map(|(name, amount)| (name.to_owned(), amount.to_owned()));
    assert_eq!(agent.system_reserved, reserved.into(), "objects are merged, and null takes a member away");
    assert_eq!(agent.cluster_dns.len(), 2, "lists are replaced");
    assert_eq!(agent.static_pod_path, "", "back to the default");
    assert_eq!(Path::new(&agent.authentication.x509.client_ca_file), files.0.path().join("ca.crt"), "relative to the file");
    assert_eq!(options.warnings, ["KubeletConfiguration: strict decoding error: unknown field \"surprise\"; it has no effect"]);
}

#[test]
fn drop_ins_keep_the_thresholds_that_they_do_not_name_where_there_is_a_file() {
    let drop_in = [("1.conf", "KUBELET\nevictionHard: {memory.available: 1Gi}")];
    let hard = |files: &Files, more: &[&str]| files.parse(more).unwrap().config.kubelet.eviction_hard.to_string();
    let with_file = Files::new(Some("KUBELET\nmaxPods: 3"), &drop_in);
    assert_eq!(
        hard(&with_file, &["--os=linux"]),
        "imagefs.available<15%,imagefs.inodesFree<5%,memory.available<1Gi,nodefs.available<10%,nodefs.inodesFree<5%"
    );
    assert_eq!(hard(&with_file, &["--os=windows"]), "imagefs.available<15%,memory.available<1Gi,nodefs.available<10%");
    assert_eq!(hard(&Files::new(Some("KUBELET\nevictionHard: {pid.available: 5%}"), &drop_in), &[]), "memory.available<1Gi,pid.available<5%");
    assert_eq!(hard(&Files::new(None, &drop_in), &[]), "memory.available<1Gi");
}

#[test]
fn bad_drop_ins_are_named_and_end_the_program() {
    for (text, part) in [
        ("", "1.conf: is empty: write a KubeletConfiguration"),
        ("maxPods: 3", "1.conf: is a \"\" of \"\", not a KubeletConfiguration"),
        ("kind: Pod\napiVersion: v1", "1.conf: is a \"Pod\" of \"v1\""),
        ("KUBELET\nmaxPods: many", "1.conf: invalid value \"many\" of maxPods"),
        ("KUBELET\n---\nKUBELET", "1.conf: has two documents"),
        ("a: [", "1.conf: is no YAML"),
        ("KUBELET\ntopologyManagerPolicy: restricted", "1.conf: cannot use topologyManagerPolicy: restricted"),
    ] {
        let error = chain(&Files::new(None, &[("1.conf", text)]).parse(&[]).unwrap_err());
        assert!(error.contains(part), "{text:?}: {error}");
    }
    let large = " ".repeat((1 << 20) + 1);
    let error = chain(&Files::new(None, &[("1.conf", large.as_str())]).parse(&[]).unwrap_err());
    assert!(error.contains("1.conf: is larger than 1 MiB"), "{error}");
    assert!(refusal(&["--config-dir=/nowhere"]).contains("/nowhere cannot be read"), "{}", refusal(&["--config-dir=/nowhere"]));
    assert_eq!(Files::new(None, &[]).parse(&[]).unwrap().config.kubelet, KubeletConfiguration::default(), "an empty directory changes nothing");
}

/// The rows of the documentation's table.
fn rows() -> Vec<String> {
    let cell = |text: &str| text.replace('|', "\\|");
    let row = |(name, path, effect): (&str, &str, Effect)| {
        let member = if path.is_empty() { String::new() } else { format!("`{path}`") };
        let effect = match effect {
            Effect::Used(what) => cell(what),
            Effect::Ignored(why) => format!("no effect: {}", cell(why)),
            Effect::Refused(why) => format!("refused: {}", cell(why)),
        };
        format!("| `--{name}` | {member} | {effect} |")
    };
    let mut rows: Vec<_> = all().map(row).collect();
    rows.sort();
    rows
}

/// `MULLION_WRITE_DOCS=1 cargo test -p node-config` writes the tables.
#[test]
fn the_documentation_says_what_each_flag_and_member_does() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/node-configuration.md");
    let mut page = std::fs::read_to_string(path).unwrap();
    for (heading, head, rows) in [
        ("## Flags of the node agent\n", "| flag | member | what it does |\n| --- | --- | --- |\n", rows()),
        ("### Members without effect\n", "| member | what it does |\n| --- | --- |\n", crate::kubelet::documentation()),
    ] {
        let table = format!("{head}{}\n", rows.join("\n"));
        let from = page.find(heading).map(|at| at + page[at..].find(head).unwrap()).unwrap();
        let to = page[from..].find("\n\n").map_or(page.len(), |end| from + end + 1);
        if std::env::var_os("MULLION_WRITE_DOCS").is_some() {
            page.replace_range(from..to, &table);
            std::fs::write(path, &page).unwrap();
        } else {
            assert_eq!(&page[from..to], table, "{heading}");
        }
    }
}
