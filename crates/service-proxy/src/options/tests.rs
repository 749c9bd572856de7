//! Tests of settings from configurations.

use node_config::kube_proxy::flags::Options;

use super::*;

fn config(line: &str) -> KubeProxyConfiguration {
    let config = Options::parse(line.split_whitespace().map(str::to_owned)).unwrap().config;
    in_effect(config, Mode::Hns, None)
}

#[test]
fn hns_settings_follow_the_flags() {
    let ips = ["10.0.0.5".parse().unwrap()];
    let of = |line: &str| hns(&config(line), &ips, None).unwrap();
    let settings = of("--network-name=pods --source-vip=10.244.1.2");
    assert!(settings.dsr, "direct server return is on unless somebody says no");
    assert_eq!((settings.network.as_str(), settings.root_endpoint.as_str()), ("pods", "cbr0"));
    assert_eq!(settings.source_vip, "10.244.1.2".parse().ok());
    assert!(!of("--network-name=pods --enable-dsr=false").dsr);
    assert!(!of("--network-name=pods --feature-gates=WinOverlay=true,WinDSR=false").dsr);
    assert!(matches!(hns(&config(""), &ips, None), Err(OptionsError::NoNetwork)));
    let named = in_effect(KubeProxyConfiguration::default(), Mode::Hns, Some("pods".into()));
    assert_eq!(hns(&named, &ips, None).unwrap().network, "pods");
}

#[test]
fn bind_address_comes_before_the_nodes_own() {
    let row = NodeRow { addresses: vec!["10.0.0.9".parse().unwrap()], ..NodeRow::default() };
    let first = |line: &str| node_ips(&config(line), &row).unwrap()[0].to_string();
    assert_eq!([first("--bind-address=10.0.0.5"), first("--bind-address=0.0.0.0"), first("")], ["10.0.0.5", "10.0.0.9", "10.0.0.9"]);
    assert!(matches!(node_ips(&config(""), &NodeRow::default()), Err(OptionsError::NoAddress)));
}

#[test]
fn mode_is_that_of_the_host_unless_it_is_given() {
    let mode = |line: &str, has_hns| {
        let config = Options::parse(line.split_whitespace().map(str::to_owned)).unwrap().config;
        Mode::of(&config, has_hns).map(Mode::as_str).ok()
    };
    assert_eq!(
        [mode("", true), mode("--proxy-mode=userspace", true), mode("--proxy-mode=Kernelspace", false)],
        [Some("kernelspace"), Some("userspace"), Some("kernelspace")]
    );
    #[cfg(target_os = "linux")]
    assert_eq!([mode("", false), mode("--proxy-mode=ipvs", true), mode("--proxy-mode=iptables", true)], [Some("nftables"); 3]);
}

#[cfg(target_os = "linux")]
#[test]
fn nftables_settings_follow_the_flags() {
    use crate::nftables::Pods;
    let ips = ["10.0.0.5".parse().unwrap()];
    let row = NodeRow { pod_cidrs: vec!["10.1.2.0/24".parse().unwrap()], ..NodeRow::default() };
    let of = |line: &str| nftables(&config(line), &row, &ips);
    assert_eq!((of("").pods, of("").masquerade_mark, of("").node_ports), (Pods::Unknown, 1 << 14, NodePorts::Primary));
    assert_eq!(of("--cluster-cidr=10.1.0.0/16").pods, Pods::Nets(vec!["10.1.0.0/16".parse().unwrap()]));
    assert_eq!(of("--cluster-cidr=10.1.0.0/16 --detect-local-mode=NodeCIDR").pods, Pods::Nets(row.pod_cidrs.clone()));
    assert_eq!(of("--detect-local-mode=BridgeInterface --pod-bridge-interface=br").pods, Pods::Interface("br".into()));
    assert_eq!(of("--detect-local-mode=InterfaceNamePrefix --pod-interface-name-prefix=v").pods, Pods::InterfacePrefix("v".into()));
    let all = of("--masquerade-all --iptables-masquerade-bit=3 --nodeport-addresses=10.0.0.0/8,localhost");
    assert_eq!((all.masquerade_all, all.masquerade_mark), (true, 8));
    assert!(matches!(all.node_ports, NodePorts::Nets(nets) if nets.len() == 3));
    assert_eq!(of("--nodeport-addresses=primary").node_ports, NodePorts::Primary);
}

#[test]
fn health_port_is_forwarded_where_that_is_on() {
    let port = |line: &str| forwarded_health_port(&config(line));
    assert_eq!([port(""), port("--forward-healthcheck-vip"), port("--forward-healthcheck-vip --healthz-port=9")], [None, Some(10256), Some(9)]);
}
