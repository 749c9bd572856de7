use std::collections::BTreeMap;
use std::path::Path;

use hcn::document::EndpointPolicyType;
use hcn::{HnsVersion, HostComputeNamespace, Subnet};
use hns_sim::Simulator;
use hns_sim::kernel::NoKernel;
use hns_sim::switches::Switches;
use serde_json::{Value, json};

use super::*;
use crate::spec::PluginConfig;

/// A host with network `pods` (10.10.187.64/26, as the 2017 scripts) in the simulated service.
struct Host {
    simulator: Simulator,
    client: Client,
    ipam_dir: tempfile::TempDir,
}

impl Host {
    fn new() -> Self {
        Self::of(HnsVersion::new(13, 3))
    }

    fn of(version: HnsVersion) -> Self {
        let kernel = NoKernel { management: Some("10.127.132.5".parse().unwrap()), survived: true };
        let simulator = Simulator::new(Box::new(kernel), Switches::of(version), None).unwrap();
        let client = Client::new(simulator.session());
        let host = Self { simulator, client, ipam_dir: tempfile::tempdir().unwrap() };
        host.make_network("pods", NetworkType::L2Bridge);
        host
    }

    fn make_network(&self, name: &str, kind: NetworkType) -> Guid {
        let subnet = Subnet::new("10.10.187.64/26".parse().unwrap(), "10.10.187.65".parse().unwrap());
        self.client.create(Guid::random(), &HostComputeNetwork::new(name, kind, subnet)).unwrap().id
    }

    fn make_namespace(&self) -> Guid {
        self.client.create(Guid::random(), &HostComputeNamespace::default()).unwrap().id
    }

    fn call(&self, command: Command, id: &str, namespace: &str, conf: Value) -> Result<Option<AddResult>, CniError> {
        let kind = match conf["type"].as_str() {
            Some("win-overlay") => Kind::Overlay,
            Some("wincni.exe") => Kind::Wincni,
            Some("azure-vnet") => Kind::AzureVnet,
            _ => Kind::Bridge,
        };
        handle_over(&self.client, &request(command, id, namespace, conf), kind)
    }

    fn endpoints(&self) -> Vec<HostComputeEndpoint> {
        self.client.list(&hcn::Query::default()).unwrap()
    }

    fn conf(&self) -> Value {
        conf(self.ipam_dir.path())
    }

    fn reserved(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.ipam_dir.path().join("pods"))
            .map(|d| d.map(|e| e.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>());
        let mut ips: Vec<String> = names.unwrap_or_default().into_iter().filter(|n| n.parse::<IpAddr>().is_ok()).collect();
        ips.sort();
        ips
    }
}

fn request(command: Command, id: &str, namespace: &str, conf: Value) -> Request {
    Request {
        command,
        container_id: id.into(),
        netns: namespace.into(),
        ifname: "eth0".into(),
        args: BTreeMap::new(),
        path: String::new(),
        stdin: conf.to_string().into_bytes(),
        config: PluginConfig::from_value(conf).unwrap(),
    }
}

fn conf(ipam_dir: &Path) -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "pods", "type": "win-bridge",
        "ipam": {"type": "host-local", "dataDir": ipam_dir, "ranges": [[{"subnet": "10.10.187.64/26", "rangeStart": "10.10.187.70"}]]},
        "dns": {"nameservers": ["11.0.0.10"], "search": ["svc.cluster.local"]},
        "policies": [
            {"name": "EndpointPolicy", "value": {"Type": "OutBoundNAT", "Settings": {"Exceptions": ["192.168.0.0/16", "11.0.0.0/8"]}}},
            {"name": "EndpointPolicy", "value": {"Type": "SDNRoute", "Settings": {"DestinationPrefix": "11.0.0.0/8", "NeedEncap": true}}},
        ],
    })
}

#[test]
fn add_makes_upstreams_endpoint_and_a_whole_result() {
    let host = Host::new();
    let namespace = host.make_namespace();
    let mut conf = host.conf();
    conf["runtimeConfig"] = json!({"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}, {"hostPort": 1, "containerPort": 1, "protocol": "icmp6"}],
        "dns": {"servers": ["11.0.0.11"]}});
    let result = host.call(Command::Add, "def", &namespace.to_string(), conf).unwrap().unwrap();
    let endpoint = &host.endpoints()[0];
    assert_eq!((endpoint.name.as_str(), endpoint.host_compute_namespace, endpoint.owner.as_str()), ("def_pods", namespace, OWNER));
    assert_eq!(endpoint.ip(), Some("10.10.187.70".parse().unwrap()));
    assert_eq!(
        (endpoint.routes[0].destination_prefix.as_str(), endpoint.routes[0].next_hop.as_str()),
        ("0.0.0.0/0", "10.10.187.66"),
        "not .65, which HNS keeps"
    );
    assert_eq!((&endpoint.dns.server_list[..], &endpoint.dns.search[..]), (&["11.0.0.11".to_owned()][..], &["svc.cluster.local".to_owned()][..]));
    let kinds: Vec<_> = endpoint.policies.iter().map(|p| p.policy_type.to_string()).collect();
    assert_eq!(kinds[..3], ["OutBoundNAT", "SDNRoute", "PortMapping"]);
    assert_eq!(kinds.iter().filter(|k| **k == "PortMapping").count(), 1, "an unknown protocol is skipped");
    assert_eq!(result.ips[0].address.to_string(), "10.10.187.70/26");
    assert_eq!(result.ips[0].gateway, Some("10.10.187.66".parse().unwrap()));
    assert_eq!((result.interfaces[0].name.as_str(), result.ips[0].interface), ("def_pods", Some(0)));
    assert_eq!(result.routes[0].dst.to_string(), "0.0.0.0/0");
    assert_eq!(result.dns.nameservers, ["11.0.0.11"]);
}

/// A host whose network `pods` has a subnet of each family, and the configuration for it.
fn of_both_families(version: HnsVersion) -> (Host, Value) {
    let host = Host::of(version);
    let old = host.client.get_by_name::<HostComputeNetwork>("pods").unwrap().unwrap();
    host.client.delete::<HostComputeNetwork>(&old.id).unwrap();
    let subnet = Subnet::new("10.10.187.64/26".parse().unwrap(), "10.10.187.65".parse().unwrap());
    let mut network = HostComputeNetwork::new("pods", NetworkType::L2Bridge, subnet);
    if host.client.features().unwrap().ipv6_dual_stack {
        network.ipams[0].subnets.push(Subnet::new("fd00:1:0:1::/64".parse().unwrap(), "fd00:1:0:1::1".parse().unwrap()));
    }
    host.client.create(Guid::random(), &network).unwrap();
    let mut conf = host.conf();
    conf["ipam"]["ranges"].as_array_mut().unwrap().push(json!([{"subnet": "fd00:1:0:1::/64", "rangeStart": "fd00:1:0:1::3"}]));
    (host, conf)
}

#[test]
fn an_endpoint_has_an_address_and_a_route_of_each_family() {
    let (host, mut conf) = of_both_families(HnsVersion::new(13, 3));
    let namespace = host.make_namespace().to_string();
    let on = |ip: &str| json!({"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": ip});
    conf["runtimeConfig"] = json!({"portMappings": [on(""), on("fd00:10::12")]});
    conf["loopbackDSR"] = json!(true);
    let result = host.call(Command::Add, "def", &namespace, conf.clone()).unwrap().unwrap();
    let ips: Vec<String> = result.ips.iter().map(|ip| format!("{} by {}", ip.address, ip.gateway.unwrap())).collect();
    assert_eq!(ips, ["10.10.187.70/26 by 10.10.187.66", "fd00:1:0:1::3/64 by fd00:1:0:1::2"]);
    let routes: Vec<String> = result.routes.iter().map(|route| format!("{} by {}", route.dst, route.gw.unwrap())).collect();
    assert_eq!(routes, ["0.0.0.0/0 by 10.10.187.66", "::/0 by fd00:1:0:1::2"]);
    let made = host.endpoints().remove(0);
    let mapped = made
        .policies
        .iter()
        .filter_map(hcn::EndpointPolicy::as_port_mapping)
        .map(|mapping| format!("{} {} {}", mapping.external_port, mapping.vip, mapping.flags.contains(hcn::document::NatFlags::IPV6)));
    assert_eq!(mapped.collect::<Vec<_>>(), ["8080  false", "8080  true", "8080 fd00:10::12 true"]);
    let destinations = made.policies.iter().filter_map(hcn::EndpointPolicy::as_outbound_nat).flat_map(|nat| nat.destinations);
    assert_eq!(destinations.collect::<Vec<_>>(), ["10.10.187.70", "fd00:1:0:1::3"], "a pod reaches itself through Services of each family");
    conf["prevResult"] = result.to_json(crate::spec::SpecVersion::V1_1_0);
    host.call(Command::Check, "def", &namespace, conf.clone()).unwrap();
    host.client.delete::<HostComputeEndpoint>(&made.id).unwrap();
    host.call(Command::Check, "def", &namespace, conf.clone()).unwrap();
    let again = host.endpoints().remove(0);
    assert_eq!((again.ip_configurations, again.routes), (made.ip_configurations, made.routes), "repaired with both");
    conf["prevResult"]["ips"][1]["address"] = json!("fd00:1:0:1::9/64");
    assert!(host.call(Command::Check, "def", &namespace, conf.clone()).unwrap_err().msg.contains("does not have address fd00:1:0:1::9"));
    host.call(Command::Del, "def", &namespace, conf).unwrap();
    assert_eq!((host.endpoints().len(), host.reserved().len()), (0, 0));
}

#[test]
fn ipv6_is_refused_where_hns_has_none() {
    let (host, conf) = of_both_families(HnsVersion::new(9, 3));
    let error = host.call(Command::Add, "def", &host.make_namespace().to_string(), conf).unwrap_err();
    for part in ["cannot give a pod the address fd00:1:0:1::3/64", "build 20348", "leave the IPv6 range out of ipam.ranges"] {
        assert!(error.msg.contains(part), "{}", error.msg);
    }
    assert_eq!((host.endpoints().len(), host.reserved().len()), (0, 0), "no address stays taken");
}

#[test]
fn repeated_add_changes_nothing_and_calls_no_ipam() {
    let host = Host::new();
    let namespace = host.make_namespace().to_string();
    let first = host.call(Command::Add, "def", &namespace, host.conf()).unwrap();
    let mut broken_ipam = host.conf();
    broken_ipam["ipam"] = json!({"type": "host-local"});
    assert_eq!(host.call(Command::Add, "def", &namespace, broken_ipam).unwrap(), first);
    assert_eq!((host.endpoints().len(), host.reserved()), (1, vec!["10.10.187.70".to_owned()]));
    host.call(Command::Check, "def", &namespace, host.conf()).unwrap();
}

/// An endpoint of the sandbox on a network that is not the pods' any more is no reason to take another address, and DEL removes both.
#[test]
fn endpoints_of_other_networks_go_with_the_sandbox() {
    let host = Host::new();
    let namespace = host.make_namespace().to_string();
    let other = host.make_network("other", NetworkType::L2Bridge);
    let stale = HostComputeEndpoint { name: "def_pods".into(), ..HostComputeEndpoint::default() };
    host.client.create_endpoint(&other, Guid::random(), &stale).unwrap();
    let result = host.call(Command::Add, "def", &namespace, host.conf()).unwrap().unwrap();
    assert_eq!((result.primary_ip().unwrap().to_string(), host.reserved()), ("10.10.187.70".to_owned(), vec!["10.10.187.70".to_owned()]));
    host.call(Command::Del, "def", &namespace, host.conf()).unwrap();
    assert_eq!((host.endpoints().len(), host.reserved().len()), (0, 0));
}

/// The endpoint that another plug-in made for the same sandbox is the sandbox's.
#[test]
fn an_endpoint_of_another_plugin_is_adopted() {
    let host = Host::new();
    let namespace = host.make_namespace();
    let first = host.call(Command::Add, "def", &namespace.to_string(), host.conf()).unwrap().unwrap();
    let ours = host.endpoints().remove(0);
    host.client.delete::<HostComputeEndpoint>(&ours.id).unwrap();
    let theirs = HostComputeEndpoint { owner: String::new(), host_compute_namespace: Guid::default(), ..ours.clone() };
    let id = Guid::random();
    host.client.create_endpoint(&ours.host_compute_network, id, &theirs).unwrap();
    let again = host.call(Command::Add, "def", &namespace.to_string(), host.conf()).unwrap().unwrap();
    assert_eq!((again.primary_ip(), host.endpoints()[0].id, host.endpoints().len()), (first.primary_ip(), id, 1));
    assert_eq!((host.endpoints()[0].host_compute_namespace, host.reserved().len()), (namespace, 1));
}

#[test]
fn failed_add_leaves_nothing() {
    let host = Host::new();
    let error = host.call(Command::Add, "def", &Guid::random().to_string(), host.conf()).unwrap_err();
    assert_eq!(error.code, code::HOST_NETWORK);
    assert!(error.msg.contains("add endpoint def_pods to namespace"), "{}", error.msg);
    assert_eq!((host.endpoints().len(), host.reserved().len()), (0, 0));
}

#[test]
fn del_is_idempotent_and_tolerates_a_vanished_namespace() {
    let host = Host::new();
    let namespace = host.make_namespace();
    host.call(Command::Add, "def", &namespace.to_string(), host.conf()).unwrap();
    host.client.delete::<HostComputeNamespace>(&namespace).unwrap();
    for _ in 0..2 {
        host.call(Command::Del, "def", "", host.conf()).unwrap();
        assert_eq!((host.endpoints().len(), host.reserved().len()), (0, 0));
    }
}

#[test]
fn address_is_freed_only_when_its_endpoint_is_gone() {
    let host = Host::new();
    let namespace = host.make_namespace().to_string();
    host.call(Command::Add, "def", &namespace, host.conf()).unwrap();
    let fault = hns_sim::admin::Fault {
        name: "fail-call".into(),
        call: Some("HcnDeleteEndpoint".into()),
        hresult: Some(hcn::HResult::FAIL),
        ..hns_sim::admin::Fault::default()
    };
    host.simulator.controls().add_fault(fault).unwrap();
    host.call(Command::Del, "def", &namespace, host.conf()).unwrap_err();
    assert_eq!(host.reserved(), ["10.10.187.70"]);
}

/// HNS says that it attached the endpoint, and did not: ADD must not say so too.
#[test]
fn add_fails_for_an_endpoint_without_adapter_or_namespace() {
    for (fault, words) in [("ep-stuck", "in state 1 (created), without a network adapter"), ("ep-attach-loop,count=1", "in no namespace")] {
        let host = Host::new();
        let namespace = host.make_namespace().to_string();
        host.simulator.add_fault(fault.parse().unwrap()).unwrap();
        let error = host.call(Command::Add, "def", &namespace, host.conf()).unwrap_err();
        assert_eq!(error.code, code::HOST_NETWORK);
        for word in ["def_pods", &namespace, words, "restart the Host Networking Service"] {
            assert!(error.msg.contains(word), "{fault}: {word:?} is not in {:?}", error.msg);
        }
        assert_eq!((host.endpoints().len(), host.reserved().len()), (0, 0), "{fault}: nothing is left");
        host.call(Command::Add, "def", &namespace, host.conf()).unwrap();
        assert_eq!(host.endpoints()[0].state, hcn::EndpointState::ATTACHED_SHARING, "{fault}: the next ADD works");
    }
}

/// A compartment that is not there yet is no defect: the runtime waits for it.
#[test]
fn add_succeeds_with_a_late_compartment_or_a_waived_check() {
    let host = Host::new();
    host.simulator.add_fault("ns-late-compartment=60m".parse().unwrap()).unwrap();
    let late = host.make_namespace().to_string();
    host.simulator.add_fault("ep-stuck".parse().unwrap()).unwrap();
    host.call(Command::Add, "late", &late, host.conf()).unwrap();
    host.simulator.clear_faults();
    host.simulator.add_fault("ep-stuck".parse().unwrap()).unwrap();
    let mut waived = host.conf();
    waived["skipAttachCheck"] = json!(true);
    host.call(Command::Add, "waived", &host.make_namespace().to_string(), waived).unwrap();
}

#[test]
fn check_finds_drift() {
    let host = Host::new();
    let namespace = host.make_namespace().to_string();
    assert_eq!(host.call(Command::Check, "def", &namespace, host.conf()).unwrap_err().code, code::DRIFT);
    let result = host.call(Command::Add, "def", &namespace, host.conf()).unwrap().unwrap();
    let mut conf = host.conf();
    conf["prevResult"] = result.to_json(crate::spec::SpecVersion::V1_1_0);
    host.call(Command::Check, "def", &namespace, conf.clone()).unwrap();
    conf["prevResult"]["ips"][0]["address"] = json!("10.10.187.99/26");
    assert!(host.call(Command::Check, "def", &namespace, conf).unwrap_err().msg.contains("does not have address"));
    assert!(host.call(Command::Check, "def", &host.make_namespace().to_string(), host.conf()).unwrap_err().msg.contains("not in namespace"));
}

/// A sandbox as ADD left it: its namespace, and the configuration with which its runtime calls CHECK.
fn attached(host: &Host, id: &str) -> (Guid, Value, HostComputeEndpoint) {
    let namespace = host.make_namespace();
    let result = host.call(Command::Add, id, &namespace.to_string(), host.conf()).unwrap().unwrap();
    let mut conf = host.conf();
    conf["prevResult"] = result.to_json(crate::spec::SpecVersion::V1_1_0);
    let name = format!("{id}_pods");
    let made = host.endpoints().into_iter().find(|endpoint| endpoint.name == name).unwrap();
    (namespace, conf, made)
}

#[test]
fn check_recreates_a_lost_endpoint_with_its_id_address_and_mac() {
    let host = Host::new();
    let (namespace, conf, made) = attached(&host, "def");
    host.client.delete::<HostComputeEndpoint>(&made.id).unwrap();
    host.call(Command::Check, "def", &namespace.to_string(), conf.clone()).unwrap();
    let again = host.endpoints().pop().unwrap();
    assert_eq!((again.id, again.ip(), &again.mac_address), (made.id, made.ip(), &made.mac_address));
    assert_eq!((again.host_compute_namespace, again.policies), (namespace, made.policies));
    // A detached one is only attached.
    host.client.remove_endpoint_from_namespace(&namespace, &made.id).unwrap();
    host.call(Command::Check, "def", &namespace.to_string(), conf).unwrap();
    assert_eq!(host.endpoints().pop().unwrap().host_compute_namespace, namespace);
    assert_eq!(host.reserved(), ["10.10.187.70"]);
}

#[test]
fn check_repairs_on_a_network_that_was_made_again() {
    let host = Host::new();
    let (namespace, conf, made) = attached(&host, "def");
    host.client.delete::<HostComputeNetwork>(&made.host_compute_network).unwrap();
    let error = host.call(Command::Check, "def", &namespace.to_string(), conf.clone()).unwrap_err();
    assert_eq!(error.code, code::TRY_AGAIN, "its owner makes it again: {}", error.msg);
    let network = host.make_network("pods", NetworkType::L2Bridge);
    host.call(Command::Check, "def", &namespace.to_string(), conf).unwrap();
    let again = host.endpoints().pop().unwrap();
    assert_eq!((again.host_compute_network, again.ip(), &again.mac_address), (network, made.ip(), &made.mac_address));
}

#[test]
fn check_refuses_what_needs_another_sandbox() {
    let host = Host::new();
    let (namespace, conf, made) = attached(&host, "def");
    let refused = |what: &str| {
        let error = host.call(Command::Check, "def", &namespace.to_string(), conf.clone()).unwrap_err();
        assert!(error.code == code::DRIFT && error.msg.contains(what), "{what}: {} {}", error.code, error.msg);
    };
    // Somebody else's endpoint has the name.
    host.client.delete::<HostComputeEndpoint>(&made.id).unwrap();
    let foreign = HostComputeEndpoint { owner: "somebody".into(), ..made.clone() };
    let foreign = host.client.create_endpoint(&made.host_compute_network, Guid::random(), &foreign).unwrap();
    refused("not ours");
    assert!(host.endpoints().iter().any(|endpoint| endpoint.id == foreign.id), "it is left alone");
    host.client.delete::<HostComputeEndpoint>(&foreign.id).unwrap();
    // The network is of another subnet.
    host.client.delete::<HostComputeNetwork>(&made.host_compute_network).unwrap();
    let subnet = Subnet::new("10.10.7.0/24".parse().unwrap(), "10.10.7.1".parse().unwrap());
    host.client.create(Guid::random(), &HostComputeNetwork::new("pods", NetworkType::L2Bridge, subnet)).unwrap();
    refused("outside the subnet 10.10.7.0/24");
    host.client.delete::<HostComputeNamespace>(&namespace).unwrap();
    refused(&format!("namespace {namespace} is gone"));
}

#[test]
fn gc_removes_our_endpoints_of_dead_sandboxes() {
    let host = Host::new();
    for id in ["live", "dead"] {
        host.call(Command::Add, id, &host.make_namespace().to_string(), host.conf()).unwrap();
    }
    let network = host.client.get_by_name::<HostComputeNetwork>("pods").unwrap().unwrap().id;
    host.client
        .create_endpoint(&network, Guid::random(), &HostComputeEndpoint { name: "foreign_pods".into(), ..HostComputeEndpoint::default() })
        .unwrap();
    let mut conf = host.conf();
    conf["cni.dev/valid-attachments"] = json!([{"containerID": "live", "ifname": "eth0"}]);
    host.call(Command::Gc, "", "", conf).unwrap();
    let mut names: Vec<String> = host.endpoints().into_iter().map(|e| e.name).collect();
    names.sort();
    assert_eq!(names, ["foreign_pods", "live_pods"]);
    assert_eq!(host.reserved(), ["10.10.187.70"]);
}

#[test]
fn network_must_exist_and_have_the_right_type() {
    let host = Host::new();
    let namespace = host.make_namespace().to_string();
    let mut missing = host.conf();
    missing["name"] = json!("nothing");
    let error = host.call(Command::Add, "def", &namespace, missing.clone()).unwrap_err();
    assert!(error.code == code::TRY_AGAIN && error.msg.contains("does not exist"), "{error:?}");
    assert_eq!(host.call(Command::Status, "", "", missing).unwrap_err().code, code::NOT_AVAILABLE);
    host.call(Command::Status, "", "", host.conf()).unwrap();
    host.make_network("nat", NetworkType::Nat);
    let mut nat = host.conf();
    nat["name"] = json!("nat");
    assert!(host.call(Command::Add, "def", &namespace, nat).unwrap_err().msg.contains("needs L2Bridge or L2Tunnel"));
    assert!(host.call(Command::Add, "def", "none", host.conf()).unwrap_err().msg.contains("not an HCN namespace GUID"));
}

#[test]
fn masquerading_merges_into_one_policy() {
    let host = Host::new();
    let nats = |extra: Value, id: &str| {
        let mut conf = host.conf();
        conf.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        host.call(Command::Add, id, &host.make_namespace().to_string(), conf).unwrap();
        let endpoint = host.endpoints().into_iter().find(|e| e.name == format!("{id}_pods")).unwrap();
        let nats = endpoint.policies.iter().filter(|p| p.policy_type == EndpointPolicyType::OutBoundNat);
        nats.map(|p| p.as_outbound_nat().unwrap().exceptions).collect::<Vec<_>>()
    };
    assert_eq!(nats(json!({"ipMasqNetwork": "192.168.0.0/16"}), "a"), [["192.168.0.0/16", "11.0.0.0/8"]]);
    assert_eq!(nats(json!({"ipMasqNetwork": "172.16.0.0/12"}), "b"), [["192.168.0.0/16", "11.0.0.0/8", "172.16.0.0/12"]]);
    assert_eq!(nats(json!({"ipMasq": true, "policies": []}), "c"), [["10.10.187.64/26"]]);
}

/// Upstream's `ApplyLoopbackDSRPolicy`: another OutBoundNAT policy, for the pod's own address, once, where the service has DSR.
#[test]
fn loopback_dsr_is_a_policy_of_its_own() {
    let destinations = |host: &Host, id: &str, conf: Value| {
        host.call(Command::Add, id, &host.make_namespace().to_string(), conf).unwrap();
        let endpoint = host.endpoints().into_iter().find(|endpoint| endpoint.name.starts_with(&format!("{id}_"))).unwrap();
        let of = |policy: &hcn::EndpointPolicy| policy.as_outbound_nat().map(|nat| (nat.exceptions.len(), nat.destinations));
        endpoint.policies.iter().filter_map(of).collect::<Vec<_>>()
    };
    let host = Host::new();
    let mut conf = host.conf();
    assert_eq!(destinations(&host, "without", conf.clone()), [(2, vec![])]);
    conf["loopbackDSR"] = json!(true);
    assert_eq!(destinations(&host, "with", conf.clone()), [(2, vec![]), (0, vec!["10.10.187.71".to_owned()])]);
    let own = json!({"name": "EndpointPolicy", "value": {"Type": "OutBoundNAT", "Settings": {"Destinations": ["10.10.187.72"]}}});
    conf["policies"].as_array_mut().unwrap().push(own);
    assert_eq!(destinations(&host, "given", conf.clone()), [(2, vec![]), (0, vec!["10.10.187.72".to_owned()])]);
    let old = Host::of(HnsVersion::new(10, 0));
    let mut conf = old.conf();
    conf["loopbackDSR"] = json!(true);
    assert_eq!(destinations(&old, "old", conf), [(2, vec![])], "the version has no direct server return");
}

mod azure;
mod beside_upstream;
mod killed;
#[cfg(target_os = "linux")]
mod machine;
mod wincni;

/// With real packets: the simulated service over this kernel.
#[cfg(target_os = "linux")]
mod with_packets {
    use std::time::Duration;

    use hns_sim::linux::LinuxKernel;
    use linux_sys::ns::{NetNs, in_lab};
    use test_lab::net::{connect, greet, greeting, neighbour, settle};

    use super::*;

    #[test]
    fn pods_of_a_windows_node_reach_each_other_and_the_lan() {
        in_lab("win_bridge::tests::with_packets::pods_of_a_windows_node_reach_each_other_and_the_lan", || {
            let dir = tempfile::tempdir().unwrap();
            let world = neighbour(("eth0", &["10.240.0.12/24"]), ("world0", &["10.240.0.1/24"]));
            let kernel = LinuxKernel::open(dir.path(), "eth0").unwrap();
            let simulator = Simulator::new(Box::new(kernel), Switches::of(HnsVersion::new(13, 3)), None).unwrap();
            let client = Client::new(simulator.session());
            let host = Host { simulator, client, ipam_dir: tempfile::tempdir().unwrap() };
            let network = host.make_network("pods", NetworkType::L2Bridge);
            let gateway = HostComputeEndpoint::local("pods_ep", "10.10.187.66/26".parse().unwrap(), None);
            let gateway = host.client.create_endpoint(&network, Guid::random(), &gateway).unwrap();
            host.client.attach_endpoint_to_host(&gateway.id).unwrap();
            let pod = |id: &str| {
                let namespace = HostComputeNamespace { create_with_compartment: true, ..HostComputeNamespace::default() };
                let namespace = host.client.create(Guid::random(), &namespace).unwrap().id;
                let mut conf = host.conf();
                conf["ipMasqNetwork"] = json!("10.10.0.0/16");
                let result = host.call(Command::Add, id, &namespace.to_string(), conf).unwrap().unwrap();
                (NetNs::open(&dir.path().join(namespace.to_string())).unwrap(), result.primary_ip().unwrap())
            };
            let ((a, _), (b, b_ip)) = (pod("a"), pod("b"));
            [&a, &b, &world, &NetNs::current().unwrap()].into_iter().for_each(settle);
            [&b, &world].into_iter().for_each(|ns| greet(ns, "0.0.0.0:80", |peer| peer.to_string()));
            let ask = |to: &str| greeting(&a, to, test_lab::LIMIT).unwrap();
            assert_eq!(ask(&format!("{b_ip}:80")), "10.10.187.70", "pods see each other's addresses");
            assert_eq!(ask("10.240.0.1:80"), "10.240.0.12", "OutBoundNAT: the LAN is no exception here");
            host.call(Command::Del, "b", "", host.conf()).unwrap();
            assert!(connect(&b, "10.10.187.70:80", Duration::from_millis(300)).is_err());
        });
    }
}

#[test]
fn overlay_endpoints_have_the_mac_and_provider_that_other_nodes_know() {
    let host = Host::new();
    let mut subnet = Subnet::new("10.244.1.0/24".parse().unwrap(), "10.244.1.1".parse().unwrap());
    subnet.policies.push(serde_json::from_value(json!({"Type": "VSID", "Settings": {"IsolationId": 4096}})).unwrap());
    host.client.create(Guid::random(), &HostComputeNetwork::new("vxlan0", NetworkType::Overlay, subnet)).unwrap();
    let namespace = host.make_namespace().to_string();
    let conf = |prefix: &str| {
        json!({
            "cniVersion": "1.0.0", "name": "vxlan0", "type": "win-overlay", "ipMasq": true, "endpointMacPrefix": prefix,
            "ipam": {"type": "host-local", "dataDir": host.ipam_dir.path(), "ranges": [[{"subnet": "10.244.1.0/24", "rangeStart": "10.244.1.5"}]]},
        })
    };
    let refused = host.call(Command::Add, "a", &namespace, conf("01-00")).unwrap_err();
    assert!(refused.msg.contains("endpointMacPrefix"), "{refused:?}");
    let result = host.call(Command::Add, "a", &namespace, conf("")).unwrap().unwrap();
    assert_eq!((result.ips[0].address.to_string(), result.ips[0].gateway), ("10.244.1.5/24".into(), "10.244.1.1".parse().ok()));
    let endpoint = host.endpoints().remove(0);
    assert_eq!(endpoint.mac_address.to_ascii_uppercase(), "0E-2A-0A-F4-01-05");
    let provider = endpoint.policies.iter().find_map(hcn::EndpointPolicy::as_provider_address);
    assert_eq!(provider, "10.127.132.5".parse().ok(), "the network's ManagementIP");
    let exceptions = endpoint.policies.iter().find_map(hcn::EndpointPolicy::as_outbound_nat).unwrap().exceptions;
    assert_eq!(exceptions, ["10.244.1.0/24"]);
    host.call(Command::Del, "a", &namespace, conf("")).unwrap();
    assert!(host.endpoints().is_empty());
    let wrong = host.call(Command::Add, "b", &namespace, json!({"cniVersion": "1.0.0", "name": "pods", "type": "win-overlay"})).unwrap_err();
    assert!(wrong.msg.contains("win-overlay needs Overlay"), "{wrong:?}");
}

/// What a crash of upstream's host-local leaves of a reservation: its pod's endpoint holds the address all the same.
#[test]
fn half_written_reservation_of_a_running_pod_gives_its_address_to_nobody() {
    let whole = "live\r\neth0";
    for cut in 0..whole.len() {
        let host = Host::new();
        let namespace = host.make_namespace().to_string();
        let live = host.call(Command::Add, "live", &namespace, host.conf()).unwrap().unwrap().primary_ip().unwrap();
        let file = host.ipam_dir.path().join("pods").join(live.to_string());
        std::fs::write(&file, &whole[..cut]).unwrap();
        let next = host.call(Command::Add, "next", &host.make_namespace().to_string(), host.conf()).unwrap().unwrap();
        assert_ne!(next.primary_ip(), Some(live), "{cut}");
        let mut gc = host.conf();
        gc["cni.dev/valid-attachments"] = json!([{"containerID": "live", "ifname": "eth0"}, {"containerID": "next", "ifname": "eth0"}]);
        host.call(Command::Gc, "", "", gc.clone()).unwrap();
        assert!(file.exists() && host.endpoints().len() == 2, "{cut}");
        host.call(Command::Del, "live", &namespace, host.conf()).unwrap();
        gc["cni.dev/valid-attachments"] = json!([{"containerID": "next", "ifname": "eth0"}]);
        host.call(Command::Gc, "", "", gc).unwrap();
        assert_eq!((host.endpoints().len(), host.reserved()), (1, vec![next.primary_ip().unwrap().to_string()]), "{cut}");
    }
}
