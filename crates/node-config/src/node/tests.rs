//! Tests of a node's configuration file.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::kube_proxy::{ClientConnection, DetectLocal, DetectLocalMode, Logging, MasqueradeBit, Nftables, Winkernel};
use crate::kubelet::{Anonymous, Authentication, AuthenticationWebhook, Authorization, AuthorizationMode, AuthorizationWebhook, EvictionHard, X509};
use crate::{GoDuration, NetworkList};

/// A configuration without one default. No `..`: a new member has to be given here, and the tests below then see it carried.
fn no_defaults() -> NodeConfig {
    let texts = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
    NodeConfig {
        node: NodeConfiguration {
            kubeconfig: "/k".into(),
            bootstrap_kubeconfig: "/b".into(),
            node_name: "win01".into(),
            node_labels: texts("rack", "7"),
            cloud_provider: "external".into(),
            root_dir: "/k".into(),
            cert_dir: "/certs".into(),
            node_ip_is_found: false,
            node_ip: "10.240.0.12,fd00::12".parse().unwrap(),
            os: NodeOs::Windows { build: 17763 },
            roots: vec!["C=/c".into(), "D=/d".into()],
            hcn: "unix:/h".into(),
            adapter: "Ethernet 2".into(),
            loopback_dsr: false,
            service_cidr: "10.97.0.0/16,fd00:97::/112".parse().unwrap(),
            lan: "10.240.0.0/24".parse().unwrap(),
            network: "l3".to_owned(),
            network_policy: true,
            flannel_net_conf: "/net-conf.json".into(),
            flannel_subnet_env: "/run/flannel/subnet.env".into(),
            minimum_container_ttl_duration: "9s".parse().unwrap(),
            maximum_dead_containers: 11,
            maximum_dead_containers_per_container: 12,
            image_credential_provider_config: "/creds.yaml".into(),
            image_credential_provider_bin_dir: "/creds".into(),
            bgp: BgpConfiguration {
                as_number: 64513,
                peers: [("10.240.0.1".parse().unwrap(), 64600)].into(),
                password_files: [("fd00::1".parse().unwrap(), "/password".to_owned())].into(),
                mesh_password_file: "/mesh".into(),
            },
            service_interface: "svc0".into(),
            cni_conf_dir: "/conf".into(),
            ipam_dir: "/ipam".into(),
            cpu: "500m".into(),
            memory: "1Gi".into(),
            machine_id: "m".into(),
            boot_id: "b".into(),
            without: vec![Part::Kubelet, Part::Proxy],
        },
        kubelet: kubelet_without_defaults(),
        kube_proxy: proxy_without_defaults(),
    }
}

/// The agent's part of it.
fn kubelet_without_defaults() -> KubeletConfiguration {
    let texts = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
    KubeletConfiguration {
        tls_cert_file: "/crt".into(),
        tls_private_key_file: "/key".into(),
        tls_min_version: "VersionTLS13".into(),
        tls_cipher_suites: vec!["TLS_AES_128_GCM_SHA256".into()],
        tls_curve_preferences: vec![29],
        rotate_certificates: true,
        server_tls_bootstrap: true,
        authentication: Authentication {
            x509: X509 { client_ca_file: "/ca".into() },
            webhook: AuthenticationWebhook { enabled: false, cache_ttl: "1s".parse().unwrap() },
            anonymous: Anonymous { enabled: true },
        },
        authorization: Authorization {
            mode: AuthorizationMode::AlwaysAllow,
            webhook: AuthorizationWebhook { cache_authorized_ttl: "2s".parse().unwrap(), cache_unauthorized_ttl: "3s".parse().unwrap() },
        },
        address: "10.240.0.12".parse().ok(),
        port: 1,
        enable_server: false,
        healthz_port: 2,
        healthz_bind_address: "127.0.0.2".parse().unwrap(),
        cluster_domain: "c.example".into(),
        cluster_dns: vec!["10.97.0.10".parse().unwrap()],
        max_pods: 3,
        container_runtime_endpoint: "unix:///cri".into(),
        image_service_endpoint: "unix:///images".into(),
        feature_gates: BTreeMap::from([("HyperVContainer".to_owned(), true)]),
        pods_per_core: 5,
        system_reserved: texts("cpu", "1"),
        kube_reserved: texts("memory", "1Gi"),
        eviction_hard: EvictionHard(texts("nodefs.available", "1%")),
        merge_default_eviction_settings: true,
        eviction_soft: texts("memory.available", "2Gi"),
        eviction_soft_grace_period: BTreeMap::from([("memory.available".into(), "1m30s".parse().unwrap())]),
        eviction_minimum_reclaim: texts("nodefs.available", "5%"),
        eviction_pressure_transition_period: "6m".parse().unwrap(),
        eviction_max_pod_grace_period: 60,
        shutdown_grace_period: "30s".parse().unwrap(),
        shutdown_grace_period_critical_pods: "10s".parse().unwrap(),
        shutdown_grace_period_by_pod_priority: vec![of_priority(7, 8)],
        static_pod_path: "/manifests".into(),
        pod_logs_dir: "/logs".into(),
        volume_plugin_dir: "/flex".into(),
        static_pod_url: "http://10.0.0.9/pods".into(),
        static_pod_url_header: BTreeMap::from([("X-Node".into(), vec!["win01".into()])]),
        file_check_frequency: "5s".parse().unwrap(),
        http_check_frequency: "6s".parse().unwrap(),
        container_log_max_size: "1Ki".into(),
        container_log_max_files: 4,
        container_log_monitor_interval: "7s".parse().unwrap(),
        image_gc_high_threshold_percent: 90,
        image_gc_low_threshold_percent: 70,
        image_minimum_gc_age: "3m".parse().unwrap(),
        image_maximum_gc_age: "240h".parse().unwrap(),
        image_pulls: crate::kubelet::ImagePulls {
            serialize_image_pulls: false,
            max_parallel_image_pulls: 3,
            registry_pull_qps: 2,
            registry_burst: 4,
            image_pull_credentials_verification_policy: crate::kubelet::VerificationPolicy::NeverVerifyAllowlistedImages,
            preloaded_images_verification_allowlist: vec!["reg.io/*".into()],
        },
        node_status_update_frequency: "4s".parse().unwrap(),
        node_status_report_frequency: "8m".parse().unwrap(),
        node_lease_duration_seconds: crate::kubelet::LeaseSeconds(80),
        node_status_max_images: -1,
        sync_frequency: "9s".parse().unwrap(),
        register_node: false,
        provider_id: "cloud://7".into(),
        enable_debugging_handlers: false,
        cgroup_driver: crate::kubelet::CgroupDriver::Systemd,
        cgroup_root: "/nodes".into(),
        cgroups_per_qos: false,
        enforce_node_allocatable: vec!["none".into()],
        system_reserved_cgroup: "/system".into(),
        kube_reserved_cgroup: "/kube".into(),
        pod_pids_limit: 1024,
        qos_reserved: texts("memory", "50%"),
        fail_cgroup_v1: true,
        cpu_cfs_quota: false,
        cpu_cfs_quota_period: "20ms".parse().unwrap(),
        memory_swap: crate::kubelet::MemorySwap { swap_behavior: crate::kubelet::SwapBehavior::LimitedSwap },
        crash_loop_back_off: crate::kubelet::CrashLoopBackOff { max_container_restart_period: "30s".parse().unwrap() },
        single_process_oom_kill: true,
        seccomp_default: true,
        allowed_unsafe_sysctls: vec!["net.core.*".to_owned().try_into().unwrap()],
        register_with_taints: vec!["a=b:NoExecute".parse().unwrap()],
        resolv_conf: Some("/resolv.conf".into()),
        enable_system_log_handler: false,
        enable_system_log_query: true,
        user_namespaces: crate::kubelet::UserNamespaces { ids_per_pod: crate::kubelet::IdsPerPod(131_072) },
        logging: Logging { verbosity: 4 },
    }
}

fn of_priority(priority: i32, shutdown_grace_period_seconds: u64) -> crate::kubelet::ShutdownGracePeriodByPodPriority {
    crate::kubelet::ShutdownGracePeriodByPodPriority { priority, shutdown_grace_period_seconds }
}

/// The proxy's part of it.
fn proxy_without_defaults() -> KubeProxyConfiguration {
    KubeProxyConfiguration {
        client_connection: ClientConnection { kubeconfig: "/p".into() },
        hostname_override: "h".into(),
        bind_address: "10.0.0.5".parse().unwrap(),
        bind_address_hard_fail: true,
        mode: ProxyMode::Userspace,
        metrics_bind_address: "127.0.0.1:1".parse().unwrap(),
        healthz_bind_address: "10.0.0.5".parse().unwrap(),
        node_port_addresses: vec!["localhost".parse().unwrap()],
        cluster_cidr: "10.1.0.0/16".parse().unwrap(),
        detect_local_mode: DetectLocalMode::NodeCidr,
        detect_local: DetectLocal { bridge_interface: "br".into(), interface_name_prefix: "v".into() },
        nftables: Nftables { masquerade_all: true, masquerade_bit: serde_json::from_str::<MasqueradeBit>("7").unwrap() },
        sync_period: GoDuration(Duration::from_secs(7)),
        udp_idle_timeout: GoDuration(Duration::from_secs(8)),
        feature_gates: BTreeMap::from([("WinDSR".to_owned(), false)]),
        winkernel: Winkernel {
            network_name: "n".into(),
            source_vip: "10.1.0.2".parse().ok(),
            enable_dsr: false,
            root_hns_endpoint_name: "r".into(),
            forward_health_check_vip: true,
        },
        windows_run_as_service: true,
        logging: Logging { verbosity: 4 },
    }
}

fn leaves(value: &serde_json::Value, prefix: &str, all: &mut BTreeMap<String, serde_json::Value>) {
    match value {
        serde_json::Value::Object(members) if !prefix.ends_with("Gates") && !prefix.ends_with("Hard") => {
            members.iter().for_each(|(name, value)| leaves(value, &format!("{prefix}.{name}"), all));
        }
        _ => drop(all.insert(prefix.to_owned(), value.clone())),
    }
}

fn members(config: &NodeConfig) -> BTreeMap<String, serde_json::Value> {
    let mut all = BTreeMap::new();
    leaves(&document::to_document(&config.node), "node", &mut all);
    leaves(&document::to_document(&config.kubelet), "kubelet", &mut all);
    leaves(&document::to_document(&config.kube_proxy), "proxy", &mut all);
    all.retain(|path, _| !path.ends_with(".kind") && !path.ends_with(".apiVersion"));
    all
}

#[test]
fn a_file_keeps_every_member() {
    let config = no_defaults();
    let (ours, defaults) = (members(&config), members(&NodeConfig::default()));
    for (path, value) in &ours {
        assert_ne!(Some(value), defaults.get(path), "{path} has its default here, and proves nothing");
    }
    assert_eq!(NodeConfig::read(&config.to_yaml()).unwrap(), Parsed { config, warnings: Vec::new() });
}

#[test]
fn upstreams_documents_may_stand_alone() {
    let text =
        "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\nmaxPods: 7\nrotateCertificates: true\nmaxOpenFiles: 7\n---\n---\n";
    let Parsed { config, warnings } = NodeConfig::read(text).unwrap();
    assert_eq!((config.kubelet.max_pods, config.kubelet.rotate_certificates, config.node), (7, true, NodeConfiguration::default()));
    assert!(warnings.len() == 1 && warnings[0].starts_with("KubeletConfiguration: maxOpenFiles has no effect"), "{warnings:?}");
    assert!(NodeConfig::read(&format!("{text}{text}")).unwrap_err().to_string().contains("two documents of kind KubeletConfiguration"));
    assert!(NodeConfig::read("kind: Pod\napiVersion: v1").unwrap_err().to_string().contains("\"Pod\""));
    let wrong = NodeConfig::read("kind: NodeConfiguration\napiVersion: mullion.io/v1alpha1\nnodeIP: here").unwrap_err().to_string();
    assert!(wrong.contains("invalid value \"here\" of nodeIP"), "{wrong}");
}

#[test]
fn missing_required_members_are_named_with_their_flags() {
    let whole = no_defaults();
    whole.clone().complete("net").unwrap();
    type Change = fn(&mut NodeConfig);
    let cases: [(&str, Change); 17] = [
        ("--kubeconfig: give it, or kubeconfig in --config", |c| c.node.kubeconfig.clear()),
        ("--hostname-override: give it, or nodeName", |c| c.node.node_name.clear()),
        ("--node-ip", |c| c.node.node_ip = Families::default()),
        ("--root", |c| c.node.roots.clear()),
        ("--container-runtime-endpoint", |c| c.kubelet.container_runtime_endpoint.clear()),
        ("--cluster-cidr: give it, or clusterCIDR in --config; or leave the pod network to others with --without fabric", |c| {
            c.kube_proxy.cluster_cidr = NetworkList::default()
        }),
        ("--service-cidr", |c| c.node.service_cidr = Families::default()),
        ("--lan", |c| c.node.lan = Families::default()),
        ("--cluster-dns", |c| c.kubelet.cluster_dns.clear()),
        ("--cni-conf-dir", |c| c.node.cni_conf_dir.clear()),
        ("--tls-cert-file: give it, or tlsCertFile", |c| c.kubelet.tls_cert_file.clear()),
        ("--tls-private-key-file", |c| c.kubelet.tls_private_key_file.clear()),
        ("--cloud-provider=azure: the agent has no cloud providers of its own; give external", |c| c.node.cloud_provider = "azure".into()),
        ("--node-labels=node-role.kubernetes.io/master=", |c| {
            drop(c.node.node_labels.insert("node-role.kubernetes.io/master".into(), String::new()))
        }),
        ("--boot-id", |c| c.node.boot_id.clear()),
        ("--image-credential-provider-config: give it, or", |c| c.node.image_credential_provider_config.clear()),
        ("--image-credential-provider-bin-dir: give it, or", |c| c.node.image_credential_provider_bin_dir.clear()),
    ];
    for (part, change) in cases {
        let mut config = whole.clone();
        change(&mut config);
        let error = config.complete("net").unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    for (networks, both) in [("10.1.0.0/16,fd00:1::/48", Some(true)), ("fd00:1::/48", Some(false)), ("10.1.0.0/16,10.2.0.0/16", None), ("all", None)]
    {
        let mut config = whole.clone();
        config.kube_proxy.cluster_cidr = networks.parse().unwrap();
        assert_eq!(config.complete("net").ok().map(|complete| complete.cluster_cidr.both()), both, "{networks}");
    }
}

#[test]
fn a_node_without_pod_network_needs_none_of_its_addresses() {
    let mut config = no_defaults();
    config.node.without = vec![Part::Fabric];
    config.kube_proxy.cluster_cidr = NetworkList::default();
    (config.node.service_cidr, config.node.lan, config.node.cni_conf_dir) = (Families::default(), Families::default(), String::new());
    config.kubelet.cluster_dns.clear();
    config.kubelet.authentication = Authentication::default();
    (config.kubelet.tls_cert_file, config.kubelet.tls_private_key_file, config.kubelet.address) = (String::new(), String::new(), None);
    let complete = config.complete("net").unwrap();
    assert_eq!((complete.cluster_dns, complete.cluster_cidr), (None, Families::default()));
    assert_eq!(complete.config.kubelet.address, Some(complete.node_ip));
    let thresholds = complete.config.kubelet.eviction_hard.to_string();
    assert_eq!(thresholds, "imagefs.available<15%,memory.available<500Mi,nodefs.available<1%", "with those of Windows that were not named");
}

#[test]
fn nodes_label_themselves_within_upstreams_bounds() {
    for (label, is_allowed) in [
        ("rack=7", true),
        ("example.com/rack=", true),
        ("kubernetes.io/os=windows", true),
        ("node.kubernetes.io/anything=1", true),
        ("my.node.kubernetes.io/a=1", true),
        ("kubernetes.io/anything=1", false),
        ("node-role.kubernetes.io/control-plane=", false),
        ("node-restriction.kubernetes.io/a=1", false),
        ("k8s.io/a=1", false),
        ("-rack=7", false),
        ("rack=a b", false),
        ("UPPER.example/a=1", false),
        ("/a=1", false),
    ] {
        let (name, value) = label.split_once('=').unwrap();
        let checked = labels::check(&[(name.to_owned(), value.to_owned())].into());
        assert_eq!(checked.is_ok(), is_allowed, "{label}: {checked:?}");
    }
}

#[test]
fn the_proxy_learns_what_the_node_knows() {
    let mut config = no_defaults();
    config.kube_proxy.mode = ProxyMode::Unset;
    let proxy = config.clone().complete("net").unwrap().config.kube_proxy;
    assert_eq!((proxy.hostname_override.as_str(), proxy.bind_address.to_string().as_str()), ("win01", "10.240.0.12"));
    assert_eq!((proxy.mode, proxy.winkernel.network_name.as_str()), (ProxyMode::Kernelspace, "net"));
    config.node.os = NodeOs::Linux;
    assert_eq!(config.complete("net").unwrap().config.kube_proxy.mode, ProxyMode::Nftables);
}

#[test]
fn the_documentation_lists_every_member() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/node-configuration.md")).unwrap();
    for path in members(&NodeConfig::default()).keys().filter(|path| !path.starts_with("proxy.")) {
        let member = path.split_once('.').unwrap().1;
        assert!(page.contains(&format!("`{member}`")), "docs/node-configuration.md does not list {member}");
    }
}
