use node_config::NodeConfig;
use node_config::node::NodeConfiguration;

use super::*;

fn config(node: NodeConfiguration) -> Complete {
    Complete {
        config: NodeConfig { node, ..NodeConfig::default() },
        node_ip: "10.240.0.11".parse().unwrap(),
        cluster_cidr: "10.244.0.0/16".parse().unwrap(),
        cluster_dns: "10.96.0.10".parse().ok(),
    }
}

#[test]
fn network_comes_from_flannels_file_or_the_modes_name() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("net-conf.json");
    let asked = |network: &str, flannel: bool| {
        let flannel_net_conf = if flannel { file.display().to_string() } else { String::new() };
        network_of(NodeConfiguration { network: network.to_owned(), flannel_net_conf, ..NodeConfiguration::default() })
    };
    assert_eq!(asked("", false).unwrap(), (fabric::Mode::HostGateway, fabric::Vxlan::default()));
    assert_eq!(asked("l3", false).unwrap().0, fabric::Mode::L3);
    assert!(asked("l4", false).unwrap_err().contains("is no pod network"));
    assert!(asked("", true).unwrap_err().contains("cannot read flannel's configuration"));
    std::fs::write(&file, r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", "VNI": 4100, "Port": 4789}}"#).unwrap();
    let (mode, vxlan) = asked("", true).unwrap();
    assert_eq!((mode, vxlan.vni), (fabric::Mode::Vxlan, 4100));
    assert_eq!(asked("vxlan", true).unwrap().0, fabric::Mode::Vxlan);
    assert!(asked("l3", true).unwrap_err().contains("--network is l3, but the backend"));
    std::fs::write(&file, r#"{"Network": "10.1.0.0/16", "Backend": {"Type": "host-gw"}}"#).unwrap();
    assert!(asked("", true).unwrap_err().contains("give both the same"));
    std::fs::write(&file, r#"{"Network": "10.244.0.0/16", "Backend": {"Type": "ipip"}}"#).unwrap();
    assert!(asked("", true).unwrap_err().contains("backend ipip is not for Windows nodes"));
}

#[test]
fn passwords_of_bgp_come_from_files_and_bad_ones_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let router = "10.0.0.1".parse().unwrap();
    let config = |password: String| node_config::node::BgpConfiguration {
        as_number: 64513,
        password_files: [(router, password.clone())].into(),
        mesh_password_file: password,
        ..Default::default()
    };
    let settings = bgp(&config(file("good", "s3cret\r\n"))).unwrap();
    assert_eq!((settings.asn, settings.passwords.get(&router)), (Some(64513), settings.mesh_password.as_ref()));
    assert_eq!(settings.mesh_password.unwrap().bytes(), b"s3cret");
    let error = |password| format!("{:#}", bgp(&config(password)).unwrap_err());
    assert!(error(file("empty", "\n")).ends_with("empty: it has 0 bytes; write one line of 1 to 80 bytes"));
    assert!(error(file("long", &"a".repeat(81))).ends_with("long: it has 81 bytes; write one line of 1 to 80 bytes"));
    assert!(error("/none".to_owned()).starts_with("cannot read the password of BGP in /none"));
    assert_eq!(bgp(&Default::default()).unwrap(), fabric::Bgp::default());
}

fn network_of(node: NodeConfiguration) -> Result<(fabric::Mode, fabric::Vxlan), String> {
    network(&config(node)).map_err(|error| format!("{error:#}"))
}

fn agent(text: &str) -> KubeletConfiguration {
    let document = format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{text}");
    document::read_text::<KubeletConfiguration>(&document).unwrap().config
}

/// Upstream's `newCrashLoopBackOff`, and what its validation says.
#[test]
fn containers_wait_before_a_restart_as_upstream_has_it() {
    let waits = |text: &str| restarts(&agent(text)).map(|(first, longest)| (first.as_secs(), longest.as_secs())).map_err(|error| error.to_string());
    assert_eq!(waits(""), Ok((10, 300)));
    assert_eq!(waits("crashLoopBackOff: {maxContainerRestartPeriod: 30s}"), Ok((10, 30)));
    assert_eq!(waits("crashLoopBackOff: {maxContainerRestartPeriod: 2s}"), Ok((2, 2)));
    assert_eq!(waits("featureGates: {ReduceDefaultCrashLoopBackOffDecay: true}"), Ok((1, 300)), "the member has a default");
    assert_eq!(waits("featureGates: {ReduceDefaultCrashLoopBackOffDecay: true, KubeletCrashLoopBackOffMax: false}"), Ok((1, 60)));
    assert!(waits("crashLoopBackOff: {maxContainerRestartPeriod: 301s}").unwrap_err().contains("(got: 301 seconds) must be set between 1s and 300s"));
    let off = "featureGates: {KubeletCrashLoopBackOffMax: false}\ncrashLoopBackOff: {maxContainerRestartPeriod: 30s}";
    assert!(waits(off).unwrap_err().contains("KubeletCrashLoopBackOffMax not enabled, CrashLoopBackOff.MaxContainerRestartPeriod must not be set"));
}

/// Upstream's defaults (apis/config/v1beta1/defaults.go), and what its validation says.
#[test]
fn images_are_pulled_as_upstream_pulls_them() {
    let pulls = |text: &str| images::pulls(&agent(text)).map_err(|error| error.to_string());
    let of = |at_once, per_second, burst| Ok(kubelet::ImagePulls { at_once: std::num::NonZeroUsize::new(at_once), per_second, burst });
    assert_eq!(pulls(""), of(1, 5, 10));
    assert_eq!(pulls("serializeImagePulls: false"), of(0, 5, 10));
    assert_eq!(pulls("serializeImagePulls: false\nmaxParallelImagePulls: 3\nregistryPullQPS: 0\nregistryBurst: 0"), of(3, 0, 10));
    assert_eq!(pulls("maxParallelImagePulls: 3"), of(3, 5, 10), "images are not pulled one by one then");
    assert_eq!(pulls("maxParallelImagePulls: 1\nregistryBurst: 1"), of(1, 5, 1));
    for (text, refusal) in [
        ("registryBurst: -1", "registryBurst (--registry-burst) -1 must not be a negative number"),
        ("registryPullQPS: -2", "registryPullQPS (--registry-qps) -2 must not be a negative number"),
        ("maxParallelImagePulls: -1", "maxParallelImagePulls -1 must be a positive number"),
        (
            "serializeImagePulls: true\nmaxParallelImagePulls: 2",
            "maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls (--serialize-image-pulls) is set to false",
        ),
    ] {
        assert_eq!(pulls(text), Err(format!("invalid configuration: {refusal}")));
    }
}

#[test]
fn the_period_of_quotas_is_checked_as_upstream_checks_it() {
    let period = |text: &str| quota_period(&agent(text)).map_err(|error| error.to_string());
    assert_eq!(period(""), Ok(None));
    assert_eq!(period("cpuCFSQuotaPeriod: 20ms"), Ok(Some(Duration::from_millis(20))));
    assert!(period("cpuCFSQuotaPeriod: 500us").unwrap_err().contains("must be between 1ms and 1sec, inclusive"));
    let off = period("cpuCFSQuotaPeriod: 20ms\nfeatureGates: {CustomCPUCFSQuotaPeriod: false}").unwrap_err();
    assert!(off.contains("cpuCFSQuotaPeriod (--cpu-cfs-quota-period) 20ms requires feature gate CustomCPUCFSQuotaPeriod"), "{off}");
}
