use node_config::NodeConfig;
use node_config::node::NodeConfiguration;

use super::*;

fn config(node: NodeConfiguration) -> Complete {
    Complete {
        config: NodeConfig { node, ..NodeConfig::default() },
        node_ip: "10.240.0.11".parse().unwrap(),
        cluster_cidr: "10.244.0.0/16".parse().unwrap(),
        cluster_dns: "10.96.0.10".parse().unwrap(),
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

fn network_of(node: NodeConfiguration) -> Result<(fabric::Mode, fabric::Vxlan), String> {
    network(&config(node)).map_err(|error| format!("{error:#}"))
}
