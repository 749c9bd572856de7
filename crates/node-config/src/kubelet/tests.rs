//! Tests of KubeletConfiguration.

use super::*;
use crate::document::{Parsed, read_text, to_document, to_yaml};

fn read(text: &str) -> Parsed<KubeletConfiguration> {
    read_text(&format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{text}")).unwrap()
}

/// As kubeadm writes it for a node: Go's zero values, and a few of its own choices.
const KUBEADM: &str = r"
authentication: {anonymous: {enabled: false}, webhook: {cacheTTL: 0s, enabled: true}, x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}}
authorization: {mode: Webhook, webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}}
cgroupDriver: systemd
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: ''
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {}
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
httpCheckFrequency: 0s
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
logging: {flushFrequency: 0, options: {json: {infoBufferSize: '0'}, text: {infoBufferSize: '0'}}, verbosity: 0}
memorySwap: {}
nodeStatusReportFrequency: 0s
nodeStatusUpdateFrequency: 0s
rotateCertificates: true
runtimeRequestTimeout: 0s
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
staticPodPath: /etc/kubernetes/manifests
streamingConnectionIdleTimeout: 0s
syncFrequency: 0s
volumeStatsAggPeriod: 0s
";

#[test]
fn kubeadms_configuration_means_upstreams_defaults() {
    let Parsed { config, warnings } = read(KUBEADM);
    let expected = KubeletConfiguration {
        static_pod_path: "/etc/kubernetes/manifests".to_owned(),
        authentication: Authentication { x509: X509 { client_ca_file: "/etc/kubernetes/pki/ca.crt".into() }, ..Authentication::default() },
        cluster_dns: vec!["10.96.0.10".parse().unwrap()],
        rotate_certificates: true,
        cgroup_driver: CgroupDriver::Systemd,
        ..KubeletConfiguration::default()
    };
    assert_eq!(config, expected);
    let named: Vec<_> = warnings.iter().map(|warning| warning.split(' ').next().unwrap()).collect();
    assert_eq!(named, [""; 0], "what is done anyway is not named");
}

#[test]
fn members_without_effect_and_unknown_members_are_reported() {
    let warnings = read(
        "surprise: {a: 1, b: {}}\nauthentication: {token: 1}\nreadOnlyPort: 10255\nport: 0\nmaxPods: 0\nfeatureGates: {KubeletSeparateDiskGC: false}\nevictionHard: {containerfs.available: 15%}",
    )
    .warnings;
    for part in [
        "strict decoding error: unknown field \"surprise\"",
        "strict decoding error: unknown field \"authentication.token\"",
        "readOnlyPort has no effect: there is no read-only port",
        "featureGates.KubeletSeparateDiskGC has no effect",
        "evictionHard: containerfs.available has no",
    ] {
        assert!(warnings.iter().any(|warning| warning.starts_with(part)), "no {part:?} in {warnings:?}");
    }
    assert_eq!(warnings.len(), 5, "{warnings:?}");
}

#[test]
fn eviction_thresholds_of_a_file_replace_the_defaults() {
    assert_eq!(read("evictionHard: {nodefs.available: 5%}").config.eviction_hard.to_string(), "nodefs.available<5%");
    assert_eq!(
        read("").config.eviction_hard.to_string(),
        "imagefs.available<15%,imagefs.inodesFree<5%,memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%"
    );
    assert!("memory.available".parse::<EvictionHard>().unwrap_err().to_string().contains("write SIGNAL<AMOUNT"));
}

#[test]
fn documents_of_other_kinds_are_refused() {
    for text in ["kind: KubeProxyConfiguration", "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1alpha1", "", "- a"] {
        assert!(
            read_text::<KubeletConfiguration>(text).unwrap_err().to_string().contains("not a KubeletConfiguration of kubelet.config.k8s.io/v1beta1")
        );
    }
    assert!(read_text::<KubeletConfiguration>("a: [").unwrap_err().to_string().contains("is no YAML"));
}

const WRITTEN: &str = r"
clusterDNS: [10.96.0.10, 'fd00::a']
port: 1
healthzPort: 0
maxPods: 3
containerLogMaxSize: 1Gi
evictionHard: {memory.available: 1%}
featureGates: {HyperVContainer: true}
";

#[test]
fn a_written_configuration_reads_as_itself() {
    let config = read(WRITTEN).config;
    assert_eq!(read_text(&to_yaml(&config)).unwrap(), Parsed { config: config.clone(), warnings: Vec::new() });
    assert_eq!(to_document(&config)["clusterDNS"][1], "fd00::a");
    assert_eq!(config.healthz_port, 0, "off, as upstream");
}

/// The paths of all members of upstream's 1.36.
const UPSTREAM: &str = include_str!("upstream-members.txt");

#[test]
fn upstreams_members_are_known_and_ignored_ones_are_no_members() {
    let template = serde_json::to_value(KubeletConfiguration::default()).unwrap();
    let is_member = |path: &str| path.split('.').try_fold(&template, |place, part| place.get(part)).is_some();
    let all: Vec<_> = ignored::all().map(|(path, _)| path).collect();
    for (i, path) in all.iter().enumerate() {
        assert!(!is_member(path) && !all[i + 1..].contains(path), "{path}");
    }
    for path in UPSTREAM.split_whitespace() {
        assert!(is_member(path) || all.contains(&path), "{path} of upstream is unknown here");
    }
    for (path, ..) in ignored::all_refused() {
        assert!(all.contains(&path), "{path} has no reason for its other values");
    }
}

#[test]
fn feature_gates_are_read_as_upstream_reads_them() {
    let gates: FeatureGates = "HyperVContainer=true".parse().unwrap();
    assert_eq!((gates.0.get("HyperVContainer"), gates.to_string().as_str()), (Some(&true), "HyperVContainer=true"));
    for (text, part) in [
        ("HyperVContainer", "missing bool value for HyperVContainer"),
        ("HyperVContainer=maybe", "write true or false"),
        ("Windows=true", "unrecognized feature gate: Windows"),
    ] {
        let error = text.parse::<FeatureGates>().unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn ids_of_user_namespaces_are_checked_as_upstream_checks_them() {
    let read = |ids: &str| {
        let text = format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nuserNamespaces: {{idsPerPod: {ids}}}\n");
        read_text::<KubeletConfiguration>(&text).map(|parsed| parsed.config.user_namespaces.ids_per_pod.0).map_err(|error| format!("{error:?}"))
    };
    assert_eq!(read("131072"), Ok(131_072));
    assert_eq!(KubeletConfiguration::default().user_namespaces.ids_per_pod.0, 65536);
    for (ids, why) in
        [("1", "must not be less than 65536"), ("65537", "must be a multiple of 65536"), ("4294967296", "must not be more than 4294967295")]
    {
        assert!(read(ids).unwrap_err().contains(why), "{ids}: {:?}", read(ids));
    }
}

#[test]
fn members_of_the_node_are_checked_as_upstream_checks_them() {
    let config = |text: &str| {
        let text = format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{text}\n");
        read_text::<KubeletConfiguration>(&text).map_err(|error| format!("{error:?}"))
    };
    let report = |text: &str| config(text).unwrap().config.node_status_report_frequency.to_string();
    assert_eq!(report("nodeStatusUpdateFrequency: 7s"), "7s", "as often as it is computed, where somebody says how often that is");
    assert_eq!(report("nodeStatusUpdateFrequency: 7s\nnodeStatusReportFrequency: 1m"), "1m0s");
    assert_eq!((report("nodeStatusUpdateFrequency: 0s"), report("maxPods: 7")), ("5m0s".to_owned(), "5m0s".to_owned()));
    assert_eq!(config("nodeLeaseDurationSeconds: 0").unwrap().config.node_lease_duration_seconds, LeaseSeconds(40));
    let sysctls = config("allowedUnsafeSysctls: ['net/core/somaxconn', 'kernel.msg*']").unwrap().config.allowed_unsafe_sysctls;
    assert_eq!(sysctls.iter().map(UnsafeSysctl::as_str).collect::<Vec<_>>(), ["net.core.somaxconn", "kernel.msg*"]);
    for (text, why) in [
        ("nodeLeaseDurationSeconds: -1", "must be greater than 0"),
        ("cgroupDriver: cgroup", "unknown variant `cgroup`, expected `cgroupfs` or `systemd`"),
        ("allowedUnsafeSysctls: [kernel.panic]", "belongs to no namespace of a pod"),
        ("allowedUnsafeSysctls: ['*.x']", "is neither the name of a kernel setting"),
        ("topologyManagerPolicy: restricted", "set none, or leave it out"),
        ("topologyManagerPolicy: best-effort", "set none, or leave it out"),
    ] {
        let error = config(text).unwrap_err();
        assert!(error.contains(why), "{text}: {error}");
    }
    assert!(config("topologyManagerPolicy: none").unwrap().warnings.is_empty());
}

#[test]
fn soft_thresholds_of_the_file_system_of_containers_are_ignored_as_upstream_ignores_them() {
    let Parsed { config, warnings } =
        read("evictionSoft: {containerfs.available: 15%, memory.available: 1Gi}\nevictionMinimumReclaim: {containerfs.inodesFree: 5%}");
    assert_eq!(config.eviction_soft.keys().collect::<Vec<_>>(), ["memory.available"]);
    assert!(config.eviction_minimum_reclaim.is_empty());
    assert_eq!(warnings, ["evictionSoft: containerfs.available has no effect: the thresholds of nodefs and imagefs hold for containers, too"]);
}

#[test]
fn verification_policies_are_upstreams() {
    let policy = |text: &str| {
        let text = format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nimagePullCredentialsVerificationPolicy: {text}");
        read_text::<KubeletConfiguration>(&text).map(|parsed| parsed.config.image_pulls.image_pull_credentials_verification_policy)
    };
    assert_eq!(policy("AlwaysVerify").unwrap(), VerificationPolicy::AlwaysVerify);
    assert_eq!(policy("''").unwrap(), VerificationPolicy::NeverVerifyPreloadedImages);
    let refused = format!("{:?}", policy("invalid").unwrap_err());
    assert!(refused.contains("specified for imagePullCredentialsVerificationPolicy. Valid options are"), "{refused}");
}

#[test]
fn who_may_use_the_server_is_read() {
    let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nauthentication: {webhook: {enabled: false, cacheTTL: 5s}}\n\
                authorization: {mode: AlwaysAllow, webhook: {cacheUnauthorizedTTL: 0s}}\n";
    let config = read_text::<KubeletConfiguration>(text).unwrap().config;
    assert!(!config.authentication.webhook.enabled && !config.authentication.anonymous.enabled);
    assert_eq!(config.authentication.webhook.cache_ttl.0, Duration::from_secs(5));
    assert_eq!(config.authorization.mode, AuthorizationMode::AlwaysAllow);
    assert_eq!(config.authorization.webhook, AuthorizationWebhook::default(), "zero stands for the default");
    let error = read_text::<KubeletConfiguration>(&text.replace("AlwaysAllow", "Node")).unwrap_err();
    assert!(format!("{error:?}").contains("unknown authorization mode Node"), "{error:?}");
}
