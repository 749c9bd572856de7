//! `azure-vnet` with `azure-vnet-ipam` and a file of interfaces.

use super::*;

/// A machine of Azure Stack with one address of its own and two for pods.
const INTERFACES: &str = r#"{"Interfaces": [{"MacAddress": "000D3A6E1825", "IsPrimary": true, "IPSubnets": [{"Prefix": "10.10.187.64/26",
    "IPAddresses": [{"Address": "10.10.187.68", "IsPrimary": true}, {"Address": "10.10.187.69"}, {"Address": "10.10.187.70"}]}]}]}"#;

/// As acs-engine writes it for Windows nodes.
fn conf(host: &Host) -> Value {
    let file = host.ipam_dir.path().join("interfaces.json");
    std::fs::write(&file, INTERFACES).unwrap();
    json!({
        "cniVersion": "0.3.0", "name": "azure", "type": "azure-vnet", "mode": "bridge", "bridge": "azure0", "master": "Ethernet",
        "capabilities": {"portMappings": true},
        "ipam": {"type": "azure-vnet-ipam", "environment": "mas", "interfacesFile": file, "dataDir": host.ipam_dir.path()},
        "dns": {"Nameservers": ["10.0.0.10", "168.63.129.16"], "Search": ["svc.cluster.local"]},
        "windowsSettings": {"enableLoopbackDSR": true},
        "AdditionalArgs": [
            {"Name": "EndpointPolicy", "Value": {"Type": "OutBoundNAT", "ExceptionList": ["10.10.0.0/16", "10.0.0.0/16"]}},
            {"Name": "EndpointPolicy", "Value": {"Type": "ROUTE", "DestinationPrefix": "10.0.0.0/16", "NeedEncap": true}}],
    })
}

#[test]
fn network_endpoint_and_addresses_follow_from_configuration_and_file() {
    let host = Host::new();
    let namespace = host.make_namespace().to_string();
    let result = host.call(Command::Add, "0123456789ab", &namespace, conf(&host)).unwrap().unwrap();
    let network: HostComputeNetwork = host.client.get_by_name("azure").unwrap().unwrap();
    let subnet = network.subnets().next().unwrap();
    assert_eq!(
        (&network.network_type, subnet.ip_address_prefix.as_str(), subnet.gateway()),
        (&NetworkType::L2Bridge, "10.10.187.64/26", "10.10.187.65".parse().ok())
    );
    assert!(network.policies.iter().any(|policy| policy.as_net_adapter_name().as_deref() == Some("Ethernet")));
    let endpoint = host.endpoints().remove(0);
    assert_eq!(
        (endpoint.name.as_str(), endpoint.ip(), endpoint.ip_configurations[0].prefix_length),
        ("01234567-eth0", "10.10.187.69".parse().ok(), 26)
    );
    assert_eq!(endpoint.routes[0].next_hop, "10.10.187.65");
    assert_eq!(endpoint.policies[0].as_outbound_nat().unwrap().exceptions, ["10.10.0.0/16", "10.0.0.0/16"]);
    assert!(endpoint.policies[1].as_sdn_route().unwrap().need_encap);
    assert_eq!(endpoint.policies[2].as_outbound_nat().unwrap().destinations, ["10.10.187.69"], "enableLoopbackDSR");
    assert_eq!((result.ips[0].address.to_string(), result.ips[0].gateway), ("10.10.187.69/26".into(), "10.10.187.65".parse().ok()));
    assert_eq!(host.call(Command::Add, "0123456789ab", &namespace, conf(&host)).unwrap().unwrap(), result, "a second ADD changes nothing");
    host.call(Command::Add, "cccccccc", &host.make_namespace().to_string(), conf(&host)).unwrap();
    let error = host.call(Command::Add, "dddddddd", &host.make_namespace().to_string(), conf(&host)).unwrap_err();
    assert!(error.code == code::EXHAUSTED && error.msg.contains("all 2 addresses"), "{error:?}");
    for _ in 0..2 {
        host.call(Command::Del, "0123456789ab", &namespace, conf(&host)).unwrap();
    }
    assert_eq!(host.endpoints().len(), 1);
    let again = host.call(Command::Add, "dddddddd", &host.make_namespace().to_string(), conf(&host)).unwrap().unwrap();
    assert_eq!(again.primary_ip(), "10.10.187.69".parse().ok(), "the address is free again");
    let mut gc = conf(&host);
    gc["cniVersion"] = json!("1.1.0");
    gc["cni.dev/valid-attachments"] = json!([{"containerID": "dddddddd", "ifname": "eth0"}]);
    host.call(Command::Gc, "", "", gc).unwrap();
    assert_eq!(host.endpoints().iter().map(|endpoint| endpoint.name.as_str()).collect::<Vec<_>>(), ["dddddddd-eth0"]);
}

#[test]
fn what_cannot_be_made_is_refused_and_changes_nothing() {
    let host = Host::new();
    let namespace = host.make_namespace().to_string();
    for (pointer, value, words) in [
        ("/mode", json!("transparent"), "use bridge or tunnel"),
        ("/ipam", json!({}), "write ipam with the type azure-vnet-ipam"),
        ("/ipam/interfacesFile", json!("/nowhere/interfaces.json"), "wire server is not asked"),
        ("/ipam/environment", json!("cloud"), "use mas"),
        ("/ipam/ipAddress", json!("x"), "is no address"),
    ] {
        let mut conf = conf(&host);
        match conf.pointer_mut(pointer) {
            Some(place) => *place = value,
            None => conf["ipam"]["ipAddress"] = value,
        }
        let error = host.call(Command::Add, "0123456789ab", &namespace, conf).unwrap_err();
        assert!(error.msg.contains(words), "{pointer}: {}", error.msg);
    }
    assert!(host.endpoints().is_empty() && host.client.get_by_name::<HostComputeNetwork>("azure").unwrap().is_none());
}

#[cfg(target_os = "linux")]
mod with_packets {
    use linux_sys::ns::in_lab;

    use super::super::machine::{Machine, ask};
    use super::*;

    #[test]
    fn pods_reach_pods_services_and_the_world() {
        in_lab("win_bridge::tests::azure::with_packets::pods_reach_pods_services_and_the_world", || {
            let machine = Machine::new();
            let pod = |id: &str| machine.pod(id, conf(&machine.host));
            let ((a, a_ip), (b, b_ip)) = (pod("aaaaaaaaaaaa"), pod("bbbbbbbbbbbb"));
            machine.balance("10.0.0.7", "bbbbbbbb-eth0");
            machine.serve([&a, &b]);
            assert_eq!((ask(&a, &b_ip), a_ip.as_str()), ("10.10.187.69".to_owned(), "10.10.187.69"), "pod to pod");
            assert_eq!(ask(&machine.world, &b_ip), "10.127.132.129", "from other machines");
            assert_eq!(ask(&a, "203.0.113.1"), "10.127.132.213", "the world sees the machine");
            assert!(!ask(&a, "10.0.0.7").is_empty(), "ROUTE: Services");
        });
    }
}
