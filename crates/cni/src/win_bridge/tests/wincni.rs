//! `wincni` with the configuration of the beta document of Kubernetes 1.9.

use super::*;

/// As printed there ("Windows CNI Config Example").
const DOCUMENT: &str = r#"{
	"cniVersion": "0.2.0",
	"name": "l2bridge",
	"type": "wincni.exe",
	"master": "Ethernet",
	"ipam": {
		"environment": "azure",
		"subnet": "10.10.187.64/26",
		"routes": [{
			"GW": "10.10.187.66"
		}]
	},
	"dns": {
		"Nameservers": [
			"11.0.0.10"
		]
	},
	"AdditionalArgs": [{
			"Name": "EndpointPolicy",
			"Value": {
				"Type": "OutBoundNAT",
				"ExceptionList": [
					"11.0.0.0/8",
					"10.10.0.0/16",
					"10.127.132.128/25"
				]
			}
		},
		{
			"Name": "EndpointPolicy",
			"Value": {
				"Type": "ROUTE",
				"DestinationPrefix": "11.0.0.0/8",
				"NeedEncap": true
			}
		},
		{
			"Name": "EndpointPolicy",
			"Value": {
				"Type": "ROUTE",
				"DestinationPrefix": "10.127.132.213/32",
				"NeedEncap": true
			}
		}
	]
}"#;

fn document() -> Value {
    serde_json::from_str(DOCUMENT).unwrap()
}

fn network(host: &Host, name: &str) -> HostComputeNetwork {
    host.client.get_by_name::<HostComputeNetwork>(name).unwrap().unwrap()
}

#[test]
fn network_and_endpoint_follow_from_the_documents_configuration() {
    let host = Host::new();
    let namespace = host.make_namespace().to_string();
    let result = host.call(Command::Add, "def", &namespace, document()).unwrap().unwrap();
    let made = network(&host, "l2bridge");
    let subnet = made.subnets().next().unwrap();
    assert_eq!((&made.network_type, made.owner.as_str(), made.dns.server_list.join(" ").as_str()), (&NetworkType::L2Bridge, OWNER, "11.0.0.10"));
    assert_eq!((subnet.ip_address_prefix.as_str(), subnet.gateway()), ("10.10.187.64/26", "10.10.187.66".parse().ok()));
    let endpoint = &host.endpoints()[0];
    assert_eq!((endpoint.name.as_str(), endpoint.host_compute_network), ("def_l2bridge", made.id));
    assert_eq!(endpoint.policies[0].as_outbound_nat().unwrap().exceptions, ["11.0.0.0/8", "10.10.0.0/16", "10.127.132.128/25"]);
    let routes: Vec<_> = endpoint.policies[1..].iter().filter_map(hcn::EndpointPolicy::as_sdn_route).collect();
    assert!(routes.iter().all(|route| route.need_encap));
    assert_eq!(routes.iter().map(|route| route.destination_prefix.as_str()).collect::<Vec<_>>(), ["11.0.0.0/8", "10.127.132.213/32"]);
    assert_eq!(endpoint.dns.server_list, ["11.0.0.10"]);
    // HNS chose the address; the answer has the shape of 0.2.0.
    let answer = result.to_json(crate::spec::SpecVersion::V0_2_0);
    assert_eq!(answer["ip4"]["ip"], json!(format!("{}/26", endpoint.ip().unwrap())));
    assert_eq!(answer["ip4"]["gateway"], "10.10.187.66");
    assert_eq!(host.call(Command::Add, "def", &namespace, document()).unwrap().unwrap(), result, "a second ADD changes nothing");
    host.call(Command::Add, "ghi", &host.make_namespace().to_string(), document()).unwrap();
    assert_eq!(host.endpoints().len(), 2);
    for _ in 0..2 {
        host.call(Command::Del, "def", &namespace, document()).unwrap();
    }
    assert_eq!((host.endpoints().len(), network(&host, "l2bridge").id), (1, made.id), "the network stays");
}

#[test]
fn gateway_search_domain_and_network_policies_are_upstreams() {
    let host = Host::new();
    let namespace = host.make_namespace().to_string();
    let mut conf = document();
    conf["ipam"] = json!({"subnet": "10.10.187.70/26", "routes": [{"gateway": "10.10.187.66"}]});
    conf["dns"]["Search"] = json!(["svc.cluster.local", "cluster.local"]);
    conf["AdditionalArgs"] =
        json!([{"Name": "NetworkPolicy", "Value": {"Type": "VLAN", "VLAN": 7}}, {"Name": "Other", "Value": {"Type": "VLAN", "VLAN": 8}}]);
    let mut request = request(Command::Add, "def", &namespace, conf);
    request.args.insert("K8S_POD_NAMESPACE".into(), "web".into());
    handle_over(&host.client, &request, Kind::Wincni).unwrap();
    let made = network(&host, "l2bridge");
    let subnet = made.subnets().next().unwrap();
    assert_eq!((subnet.ip_address_prefix.as_str(), subnet.gateway()), ("10.10.187.64/26", "10.10.187.71".parse().ok()), "host bits and one");
    assert_eq!(subnet.vlan(), Some(7));
    assert_eq!(host.endpoints()[0].dns.search, ["web.svc.cluster.local", "cluster.local"]);
}

#[test]
fn addresses_come_from_ipam_where_it_has_a_type() {
    let host = Host::new();
    let namespace = host.make_namespace().to_string();
    let mut conf = document();
    let dir = host.ipam_dir.path();
    conf["ipam"] =
        json!({"type": "host-local", "dataDir": dir, "subnet": "10.10.187.64/26", "rangeStart": "10.10.187.80", "gateway": "10.10.187.66"});
    let result = host.call(Command::Add, "def", &namespace, conf.clone()).unwrap().unwrap();
    assert_eq!((result.ips[0].address.to_string(), result.ips[0].gateway), ("10.10.187.80/26".into(), "10.10.187.66".parse().ok()));
    host.call(Command::Del, "def", &namespace, conf).unwrap();
    assert!(!dir.join("l2bridge/10.10.187.80").exists(), "the address is free");
}

#[test]
fn what_cannot_be_made_is_refused_and_changes_nothing() {
    let host = Host::new();
    let namespace = host.make_namespace().to_string();
    for (pointer, value, words) in [
        ("/name", json!("blue"), "name one of l2bridge"),
        ("/ipam/subnet", json!("10.10.187.64"), "is not a CIDR"),
        ("/ipam/subnet", json!(""), "does not exist"),
        ("/ipam/routes/0/GW", json!("here"), "not an IP address"),
        ("/ipam/routes/0/GW", json!("10.10.187.1"), "outside ipam.subnet"),
    ] {
        let mut conf = document();
        *conf.pointer_mut(pointer).unwrap() = value;
        let error = host.call(Command::Add, "def", &namespace, conf).unwrap_err();
        assert!(error.msg.contains(words), "{pointer}: {}", error.msg);
    }
    assert!(host.endpoints().is_empty() && host.client.get_by_name::<HostComputeNetwork>("l2bridge").unwrap().is_none());
    let mut status = document();
    status["cniVersion"] = json!("1.1.0");
    host.call(Command::Status, "", "", status.clone()).unwrap();
    status["ipam"] = json!({});
    assert_eq!(host.call(Command::Status, "", "", status).unwrap_err().code, code::NOT_AVAILABLE, "nothing says what the network is");
}

#[cfg(target_os = "linux")]
mod with_packets {
    use linux_sys::ns::in_lab;

    use super::super::machine::{Machine, ask};
    use super::*;

    #[test]
    fn pods_reach_pods_services_nodes_and_the_world() {
        in_lab("win_bridge::tests::wincni::with_packets::pods_reach_pods_services_nodes_and_the_world", || {
            let machine = Machine::new();
            let ((a, a_ip), (b, b_ip)) = (machine.pod("a", document()), machine.pod("b", document()));
            machine.balance("11.0.0.7", "b_l2bridge");
            machine.serve([&a, &b]);
            assert_eq!(ask(&a, &b_ip), a_ip, "pod to pod");
            assert_eq!(ask(&a, "10.127.132.129"), a_ip, "the nodes' network is an exception of OutBoundNAT");
            assert_eq!(ask(&machine.world, &a_ip), "10.127.132.129", "and reaches pods by the node");
            assert_eq!(ask(&a, "203.0.113.1"), "10.127.132.213", "everything else sees the node");
            assert_eq!(ask(&a, "10.127.132.213"), a_ip, "ROUTE: the pod's own node");
            assert!(!ask(&a, "11.0.0.7").is_empty(), "ROUTE: Services");
        });
    }
}
