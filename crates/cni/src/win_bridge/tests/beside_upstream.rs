//! The endpoints that upstream's win-bridge and win-overlay (containernetworking/plugins, commit 3d27709) made under Wine for the same
//! configurations; docs/fidelity.md tells of the runs.

use super::*;

/// Policies in the order in which the service shows them, without those that it adds.
fn policies(endpoint: &HostComputeEndpoint) -> Vec<Value> {
    let shown = endpoint.policies.iter().map(|policy| json!(policy)).filter(|policy| policy["Type"] != "L2Driver");
    let mut shown: Vec<Value> = shown.collect();
    shown.sort_by_key(Value::to_string);
    shown
}

/// OutBoundNAT policies without destinations as one, which is what ours makes of them, and no empty texts.
fn merged(theirs: &Value) -> Vec<Value> {
    let mut exceptions = Vec::new();
    let mut rest = Vec::new();
    for policy in theirs.as_array().unwrap() {
        match (policy["Type"].as_str(), policy["Settings"]["Exceptions"].as_array()) {
            (Some("OutBoundNAT"), Some(list)) => exceptions.extend(list.iter().cloned()),
            _ => rest.push(policy.clone()),
        }
    }
    if !exceptions.is_empty() {
        rest.push(json!({"Type": "OutBoundNAT", "Settings": {"Exceptions": exceptions}}));
    }
    rest.sort_by_key(Value::to_string);
    rest
}

#[test]
fn endpoints_are_upstreams() {
    let nat = |exceptions: &[&str]| json!({"Type": "OutBoundNAT", "Settings": {"Exceptions": exceptions}});
    let route = || json!({"Type": "SDNRoute", "Settings": {"DestinationPrefix": "11.0.0.0/8", "NeedEncap": true}});
    let given = || json!([{"name": "EndpointPolicy", "value": nat(&["192.168.0.0/16"])}, {"name": "EndpointPolicy", "value": route()}]);
    let provider = || json!({"Type": "ProviderAddress", "Settings": {"ProviderAddress": "10.127.132.5"}});
    let loopback = |ip: &str| json!({"Type": "OutBoundNAT", "Settings": {"Destinations": [ip]}});
    let port = json!({"Type": "PortMapping", "Settings": {"Protocol": 6, "InternalPort": 80, "ExternalPort": 8080}});
    let mapped =
        json!({"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}], "dns": {"servers": ["11.0.0.11"], "searches": ["x.y"]}});
    for (kind, more, theirs) in [
        ("win-bridge", json!({"policies": given()}), json!([nat(&["192.168.0.0/16"]), route()])),
        ("win-bridge", json!({"policies": given(), "ipMasqNetwork": "10.0.0.0/8"}), json!([nat(&["192.168.0.0/16"]), route(), nat(&["10.0.0.0/8"])])),
        ("win-bridge", json!({"runtimeConfig": mapped}), json!([port])),
        ("win-bridge", json!({"loopbackDSR": true}), json!([loopback("10.10.187.70")])),
        ("win-overlay", json!({"ipMasq": true}), json!([provider(), nat(&["10.244.1.0/24"])])),
        ("win-overlay", json!({"endpointMacPrefix": "0E-2B", "loopbackDSR": true}), json!([loopback("10.244.1.5"), provider()])),
    ] {
        let host = Host::new();
        let mut subnet = Subnet::new("10.244.1.0/24".parse().unwrap(), "10.244.1.1".parse().unwrap());
        subnet.policies.push(serde_json::from_value(json!({"Type": "VSID", "Settings": {"IsolationId": 4096}})).unwrap());
        host.client.create(Guid::random(), &HostComputeNetwork::new("vxlan0", NetworkType::Overlay, subnet)).unwrap();
        let overlay = kind == "win-overlay";
        let (network, range) = if overlay {
            ("vxlan0", json!({"subnet": "10.244.1.0/24", "rangeStart": "10.244.1.5"}))
        } else {
            ("pods", json!({"subnet": "10.10.187.64/26", "rangeStart": "10.10.187.70"}))
        };
        let mut conf = json!({"cniVersion": "1.0.0", "name": network, "type": kind, "apiVersion": 2,
            "ipam": {"type": "host-local", "dataDir": host.ipam_dir.path(), "ranges": [[range]]},
            "dns": {"nameservers": ["11.0.0.10"], "search": ["svc.cluster.local"]}});
        conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let namespace = host.make_namespace();
        let result = host.call(Command::Add, "c1", &namespace.to_string(), conf).unwrap().unwrap();
        let endpoint = host.endpoints().pop().unwrap();
        assert_eq!(policies(&endpoint), merged(&theirs), "{kind} {more}");
        let (address, gateway) = if overlay { ("10.244.1.5/24", "10.244.1.1") } else { ("10.10.187.70/26", "10.10.187.66") };
        assert_eq!((result.ips[0].address.to_string(), result.ips[0].gateway), (address.to_owned(), gateway.parse().ok()), "{kind} {more}");
        assert_eq!((endpoint.routes.len(), endpoint.routes[0].next_hop.as_str()), (1, gateway));
        let runtime = more.get("runtimeConfig").is_some();
        let (server, search) = if runtime { ("11.0.0.11", "x.y") } else { ("11.0.0.10", "svc.cluster.local") };
        assert_eq!((endpoint.dns.server_list, endpoint.dns.search), (vec![server.to_owned()], vec![search.to_owned()]));
        let prefix = more["endpointMacPrefix"].as_str().unwrap_or("0E-2A");
        assert!(!overlay || endpoint.mac_address == format!("{prefix}-0A-F4-01-05"), "{}", endpoint.mac_address);
        assert_eq!((endpoint.name, endpoint.host_compute_namespace), (format!("c1_{network}"), namespace));
    }
}
