//! Real packets through the simulated service, in namespaces of an ordinary user.
//!
//! The LAN is 10.240.0.0/24 with a router at .1; the node under test is .11 with pods in 192.168.1.0/24; other hosts have a route to its pods,
//! as the fabric gives them.
#![cfg(target_os = "linux")]

#[path = "harness/lab.rs"]
mod harness;

use harness::{Lab, Pod, ask_tcp, ask_udp, id, net, serve_tcp, serve_udp};
use hcn::document::*;
use hcn::{EndpointPolicy, HnsVersion};
use test_lab::until;

const WS2022: HnsVersion = HnsVersion::new(13, 3);
const WS2025: HnsVersion = HnsVersion::new(15, 5);

const NODE: &str = "10.240.0.11";
const VIP: &str = "10.96.0.1";

/// What sends a pod's packets for services and for its own node by the host.
fn to_services() -> Vec<EndpointPolicy> {
    vec![EndpointPolicy::sdn_route(net("10.96.0.0/12")), EndpointPolicy::sdn_route(net("10.240.0.11/32"))]
}

#[test]
fn pods_reach_each_other_and_services() {
    linux_sys::ns::in_lab("pods_reach_each_other_and_services", || {
        let lab = Lab::new();
        let node = lab.node(WS2022);
        let (one, two) = (node.pod(2, "192.168.1.5", to_services()), node.pod(3, "192.168.1.6", to_services()));
        serve_tcp(&one.ns, 80, "one");
        serve_tcp(&two.ns, 80, "two");
        serve_udp(&two.ns, 53, "two");
        assert_eq!(ask_tcp(&one.ns, "192.168.1.6:80").unwrap(), "two saw 192.168.1.5", "pods keep their addresses between them");
        assert_eq!(ask_udp(&one.ns, "192.168.1.6:53").unwrap(), "two saw 192.168.1.5");
        assert_eq!(ask_tcp(&node.ns, "192.168.1.5:80").unwrap(), "one saw 192.168.1.1", "the host reaches its pods");
        let mac = node.client.get::<HostComputeEndpoint>(&id(2)).unwrap().unwrap().mac_address;
        assert_eq!(one.mac().to_ascii_uppercase().replace(':', "-"), mac);

        node.balance(0x20, Some(VIP), 8080, 80, &[&two]);
        assert_eq!(ask_tcp(&one.ns, "10.96.0.1:8080").unwrap(), format!("two saw {NODE}"), "the source is the node's");
        assert_eq!(ask_tcp(&two.ns, "10.96.0.1:8080").unwrap(), format!("two saw {NODE}"), "a pod reaches itself by its service");
        assert_eq!(ask_tcp(&node.ns, "10.96.0.1:8080").unwrap(), format!("two saw {NODE}"), "the host reaches services");
        let mut dns = HostComputeLoadBalancer::new(Some("10.96.0.10".parse().unwrap()), Protocol::UDP, 53, 53, vec![id(3)]);
        dns.port_mappings[0].flags = PortMappingFlags::LOCAL_ROUTED_VIP;
        node.client.create(id(0x21), &dns).unwrap();
        assert_eq!(ask_udp(&one.ns, "10.96.0.10:53").unwrap(), format!("two saw {NODE}"));
        assert!(harness::is_unanswered(&one.ns, "10.96.0.10:53"), "another protocol is another VIP");
    });
}

#[test]
fn node_ports_answer_from_everywhere() {
    linux_sys::ns::in_lab("node_ports_answer_from_everywhere", || {
        let lab = Lab::new();
        let node = lab.node(WS2022);
        let (one, two) = (node.pod(2, "192.168.1.5", to_services()), node.pod(3, "192.168.1.6", to_services()));
        serve_tcp(&two.ns, 80, "two");
        let other = lab.host("10.240.0.12", &[]);
        let far = other.add_address("192.168.2.7/32");
        node.route("192.168.2.0/24", "10.240.0.12");
        serve_tcp(&other.ns, 80, "far");
        node.client.create_endpoint(&id(1), id(9), &HostComputeEndpoint::remote(far)).unwrap();

        node.balance(0x20, None, 30080, 80, &[&two]);
        let outside = lab.host("10.240.0.50", &[]);
        assert_eq!(ask_tcp(&outside.ns, "10.240.0.11:30080").unwrap(), format!("two saw {NODE}"), "from another host");
        assert_eq!(ask_tcp(&node.ns, "10.240.0.11:30080").unwrap(), format!("two saw {NODE}"), "from the host itself");
        assert_eq!(ask_tcp(&one.ns, "10.240.0.11:30080").unwrap(), format!("two saw {NODE}"), "from a pod");
        assert_eq!(ask_tcp(&two.ns, "10.240.0.11:30080").unwrap(), format!("two saw {NODE}"), "from the backend");
        assert!(harness::is_unanswered(&outside.ns, "10.240.0.11:30081"));

        let remote = HostComputeLoadBalancer::new(None, Protocol::TCP, 30081, 80, vec![id(9)]);
        node.client.create(id(0x21), &remote).unwrap();
        assert_eq!(ask_tcp(&outside.ns, "10.240.0.11:30081").unwrap(), format!("far saw {NODE}"), "a backend on another node");
    });
}

#[test]
fn outbound_traffic_is_translated_but_not_to_exceptions() {
    linux_sys::ns::in_lab("outbound_traffic_is_translated_but_not_to_exceptions", || {
        let lab = Lab::new();
        let node = lab.node(WS2022);
        let nat = EndpointPolicy::outbound_nat([net("192.168.0.0/16"), net("10.240.0.60/32")]);
        let to = EndpointPolicy::outbound_nat_to([net("10.240.0.60/32")]);
        let (one, two, three) =
            (node.pod(2, "192.168.1.5", vec![nat.clone()]), node.pod(3, "192.168.1.6", vec![nat]), node.pod(4, "192.168.1.7", vec![to]));
        let plain = node.pod(5, "192.168.1.8", vec![]);
        let pods = [("192.168.1.0/24", NODE)];
        let (public, listed) = (lab.host("10.240.0.50", &pods), lab.host("10.240.0.60", &pods));
        serve_tcp(&public.ns, 80, "public");
        serve_udp(&public.ns, 53, "public");
        serve_tcp(&listed.ns, 80, "listed");
        serve_tcp(&two.ns, 80, "two");
        assert_eq!(ask_tcp(&one.ns, "10.240.0.50:80").unwrap(), format!("public saw {NODE}"));
        assert_eq!(ask_udp(&one.ns, "10.240.0.50:53").unwrap(), format!("public saw {NODE}"));
        assert_eq!(ask_tcp(&one.ns, "10.240.0.60:80").unwrap(), "listed saw 192.168.1.5", "an exception");
        assert_eq!(ask_tcp(&one.ns, "192.168.1.6:80").unwrap(), "two saw 192.168.1.5", "an exception on the node");
        assert_eq!(ask_tcp(&three.ns, "10.240.0.50:80").unwrap(), "public saw 192.168.1.7", "not among the destinations");
        assert_eq!(ask_tcp(&three.ns, "10.240.0.60:80").unwrap(), format!("listed saw {NODE}"), "among the destinations");
        assert_eq!(ask_tcp(&plain.ns, "10.240.0.50:80").unwrap(), "public saw 192.168.1.8", "without a policy nothing is translated");
        // The class is shared: it goes with its last endpoint, not its first.
        node.client.delete::<HostComputeEndpoint>(&id(2)).unwrap();
        assert_eq!(ask_tcp(&two.ns, "10.240.0.50:80").unwrap(), format!("public saw {NODE}"));
        assert_eq!(ask_tcp(&two.ns, "10.240.0.60:80").unwrap(), "listed saw 192.168.1.6");
    });
}

#[test]
fn load_balancers_spread_change_and_go() {
    linux_sys::ns::in_lab("load_balancers_spread_change_and_go", || {
        let lab = Lab::new();
        let node = lab.node(WS2025);
        let (one, two, client) = (node.pod(2, "192.168.1.5", vec![]), node.pod(3, "192.168.1.6", vec![]), node.pod(4, "192.168.1.7", to_services()));
        serve_tcp(&one.ns, 80, "one");
        serve_tcp(&two.ns, 80, "two");
        node.balance(0x20, Some(VIP), 80, 80, &[&one, &two]);
        let answers: std::collections::BTreeSet<_> = (0..40).map(|_| ask_tcp(&client.ns, "10.96.0.1:80").unwrap()).collect();
        assert_eq!(answers.len(), 2, "forty connections meet both backends: {answers:?}");

        let mut sticky = HostComputeLoadBalancer::new(Some("10.96.0.2".parse().unwrap()), Protocol::TCP, 80, 80, vec![id(2), id(3)]);
        sticky.port_mappings[0].distribution_type = DistributionType::SOURCE_IP;
        node.client.create(id(0x21), &sticky).unwrap();
        let answers: std::collections::BTreeSet<_> = (0..40).map(|_| ask_tcp(&client.ns, "10.96.0.2:80").unwrap()).collect();
        assert_eq!(answers.len(), 1, "one client meets one backend: {answers:?}");

        // An established connection outlives the change of the backends.
        let open = harness::connect(&client.ns, "10.96.0.2:80").unwrap();
        let modified = HostComputeLoadBalancer::new(Some(VIP.parse().unwrap()), Protocol::TCP, 80, 80, vec![id(3)]);
        node.client.modify_load_balancer(&id(0x20), &modified).unwrap();
        for _ in 0..10 {
            assert_eq!(ask_tcp(&client.ns, "10.96.0.1:80").unwrap(), format!("two saw {NODE}"));
        }
        node.client.delete::<HostComputeLoadBalancer>(&id(0x21)).unwrap();
        assert!(harness::hear(open).unwrap().ends_with(NODE));
        assert!(harness::is_unanswered(&client.ns, "10.96.0.2:80"), "a deleted load balancer answers no more");
        assert_eq!(ask_tcp(&client.ns, "10.96.0.1:80").unwrap(), format!("two saw {NODE}"));
        node.client.delete::<HostComputeLoadBalancer>(&id(0x20)).unwrap();
        assert!(harness::is_unanswered(&client.ns, "10.96.0.1:80"));
    });
}

#[test]
fn direct_server_return_keeps_the_client() {
    linux_sys::ns::in_lab("direct_server_return_keeps_the_client", || {
        let lab = Lab::new();
        let node = lab.node(WS2022);
        let (one, two) =
            (node.pod(2, "192.168.1.5", vec![]), node.pod(3, "192.168.1.6", vec![EndpointPolicy::outbound_nat_to([net("192.168.1.6/32")])]));
        serve_tcp(&one.ns, 80, "one");
        serve_tcp(&two.ns, 80, "two");
        let direct = |vip: Option<&str>, port, backend| {
            let balancer = HostComputeLoadBalancer::new(vip.map(|vip| vip.parse().unwrap()), Protocol::TCP, port, 80, vec![backend]);
            HostComputeLoadBalancer { flags: LoadBalancerFlags::DSR, ..balancer }
        };
        node.client.create(id(0x20), &direct(Some(VIP), 80, id(2))).unwrap();
        node.client.create(id(0x21), &direct(Some("10.96.0.2"), 80, id(3))).unwrap();
        node.client.create(id(0x22), &direct(None, 30080, id(3))).unwrap();
        assert_eq!(ask_tcp(&two.ns, "10.96.0.1:80").unwrap(), "one saw 192.168.1.6");
        assert!(harness::is_unanswered(&one.ns, "10.96.0.1:80"), "a pod does not reach itself …");
        assert_eq!(ask_tcp(&two.ns, "10.96.0.2:80").unwrap(), format!("two saw {NODE}"), "… without the loopback policy");
        let outside = lab.host("10.240.0.50", &[]);
        assert_eq!(ask_tcp(&outside.ns, "10.240.0.11:30080").unwrap(), "two saw 10.240.0.50");
    });
}

#[test]
fn port_mappings_keep_the_client() {
    linux_sys::ns::in_lab("port_mappings_keep_the_client", || {
        let lab = Lab::new();
        let node = lab.node(WS2022);
        let mapping = PortMapping { protocol: Protocol::TCP, internal_port: 80, external_port: 8088, ..PortMapping::default() };
        let one = node.pod(2, "192.168.1.5", vec![EndpointPolicy::port_mapping(&mapping)]);
        serve_tcp(&one.ns, 80, "one");
        let outside = lab.host("10.240.0.50", &[]);
        assert_eq!(ask_tcp(&outside.ns, "10.240.0.11:8088").unwrap(), "one saw 10.240.0.50");
        assert!(harness::is_unanswered(&node.ns, "10.240.0.11:8088"), "the host itself does not reach it");
    });
}

#[test]
fn the_gateway_endpoint_answers_on_the_host() {
    linux_sys::ns::in_lab("the_gateway_endpoint_answers_on_the_host", || {
        let lab = Lab::new();
        let node = lab.node(WS2022);
        let gateway = HostComputeEndpoint::local("cbr0_ep", net("192.168.1.2/24"), None);
        node.client.create_endpoint(&id(1), id(7), &gateway).unwrap();
        node.client.attach_endpoint_to_host(&id(7)).unwrap();
        // A pod whose gateway is .2, as win-bridge has it.
        let endpoint = HostComputeEndpoint::local("pod", net("192.168.1.5/24"), Some("192.168.1.2".parse().unwrap()));
        let pod = node.pod_of(2, endpoint);
        let outside = lab.host("10.240.0.50", &[("192.168.1.0/24", NODE)]);
        serve_tcp(&outside.ns, 80, "outside");
        serve_tcp(&node.ns, 81, "node");
        assert_eq!(ask_tcp(&pod.ns, "10.240.0.50:80").unwrap(), "outside saw 192.168.1.5");
        assert_eq!(ask_tcp(&pod.ns, "192.168.1.2:81").unwrap(), "node saw 192.168.1.5");
        assert_eq!(ask_tcp(&pod.ns, "10.240.0.11:81").unwrap(), "node saw 192.168.1.5");
    });
}

#[test]
fn restart_keeps_traffic_and_removes_stray_objects() {
    linux_sys::ns::in_lab("restart_keeps_traffic_and_removes_stray_objects", || {
        let lab = Lab::new();
        let mut node = lab.node(WS2025);
        let (one, two) = (
            node.pod(2, "192.168.1.5", vec![EndpointPolicy::outbound_nat([net("192.168.0.0/16")]), EndpointPolicy::sdn_route(net("10.96.0.0/12"))]),
            node.pod(3, "192.168.1.6", to_services()),
        );
        serve_tcp(&one.ns, 80, "one");
        serve_tcp(&two.ns, 80, "two");
        node.balance(0x20, Some(VIP), 80, 80, &[&two]);
        node.balance(0x21, None, 30080, 80, &[&two]);
        let outside = lab.host("10.240.0.50", &[]);
        serve_tcp(&outside.ns, 80, "outside");
        let open = harness::connect(&one.ns, "10.96.0.1:80").unwrap();
        let before = (node.state(), node.links());

        node.stop();
        assert_eq!(ask_tcp(&one.ns, "10.96.0.1:80").unwrap(), format!("two saw {NODE}"), "traffic flows while the service is away");
        node.ns.run(|| linux_sys::netlink::Rtnl::open().unwrap().add_bridge("hnsdeadbeef").unwrap()).unwrap();
        node.start();
        assert_eq!((node.state(), node.links()), before, "everything came back, and what was nobody's went");
        assert!(harness::hear(open).unwrap().ends_with(NODE), "an established connection lives on");
        assert_eq!(ask_tcp(&one.ns, "10.96.0.1:80").unwrap(), format!("two saw {NODE}"));
        assert_eq!(ask_tcp(&outside.ns, "10.240.0.11:30080").unwrap(), format!("two saw {NODE}"));
        assert_eq!(ask_tcp(&one.ns, "10.240.0.50:80").unwrap(), format!("outside saw {NODE}"));
        // The service knows what is there: changes after the restart work.
        node.client
            .modify_load_balancer(&id(0x20), &HostComputeLoadBalancer::new(Some(VIP.parse().unwrap()), Protocol::TCP, 80, 80, vec![id(2)]))
            .unwrap();
        assert_eq!(ask_tcp(&two.ns, "10.96.0.1:80").unwrap(), format!("one saw {NODE}"));
        node.client.delete::<HostComputeNetwork>(&id(1)).unwrap();
        assert!(node.links().iter().all(|name| name == "eth0" || name == "lo"), "{:?}", node.links());
    });
}

#[test]
fn other_network_types_forward_as_documented() {
    linux_sys::ns::in_lab("other_network_types_forward_as_documented", || {
        let lab = Lab::new();
        let node = lab.node(WS2022);
        let outside = lab.host("10.240.0.50", &[("172.20.0.0/16", NODE)]);
        serve_tcp(&outside.ns, 80, "outside");
        let kinds = [(NetworkType::Nat, "172.20.1"), (NetworkType::Internal, "172.20.2"), (NetworkType::Private, "172.20.3")];
        for (number, (kind, prefix)) in (0u8..).zip(kinds) {
            let gateway = format!("{prefix}.1").parse().unwrap();
            let network = HostComputeNetwork::new(kind.as_str(), kind.clone(), Subnet::new(net(&format!("{prefix}.0/24")), gateway));
            node.client.create(id(0x70 + number), &network).unwrap();
            let pod = |index: u8| {
                let endpoint = HostComputeEndpoint::local("pod", net(&format!("{prefix}.{index}/24")), Some(gateway));
                node.pod_on(id(0x70 + number), 0x10 * (number + 1) + index, endpoint)
            };
            let (one, two) = (pod(5), pod(6));
            serve_tcp(&two.ns, 80, "two");
            assert_eq!(ask_tcp(&one.ns, &format!("{prefix}.6:80")).unwrap(), format!("two saw {prefix}.5"), "{kind}");
            let from_host = harness::answer(&node.ns, &format!("{prefix}.6:80"), kind != NetworkType::Private);
            assert_eq!(from_host.is_some(), kind != NetworkType::Private, "{kind}: the host and its pods: {from_host:?}");
            let out = harness::answer(&one.ns, "10.240.0.50:80", kind == NetworkType::Nat);
            assert_eq!(out, (kind == NetworkType::Nat).then(|| format!("outside saw {NODE}")), "{kind}");
        }
    });
}

#[test]
fn kernel_refusal_is_rolled_back() {
    linux_sys::ns::in_lab("kernel_refusal_is_rolled_back", || {
        let lab = Lab::new();
        let node = lab.node(WS2022);
        let endpoint = HostComputeEndpoint::local("pod", net("192.168.1.5/24"), None);
        node.client.create_endpoint(&id(1), id(2), &endpoint).unwrap();
        node.client.create(id(3), &HostComputeNamespace::default()).unwrap();
        let (links, state) = (node.links(), node.state());
        // The compartment is gone under the service: the attach fails half-way.
        linux_sys::ns::NetNs::remove_at(&node.compartments().join(id(3).to_string())).unwrap();
        let error = node.client.add_endpoint_to_namespace(&id(3), &id(2)).unwrap_err();
        assert!(error.to_string().contains("port ep000000000002"), "the error names the step: {error}");
        assert_eq!((node.links(), node.state()), (links, state));
        node.client.delete::<HostComputeNamespace>(&id(3)).unwrap();
        let pod = node.pod(4, "192.168.1.6", vec![]);
        serve_tcp(&pod.ns, 80, "pod");
        assert_eq!(ask_tcp(&node.ns, "192.168.1.6:80").unwrap(), "pod saw 192.168.1.1");
    });
}

#[test]
fn one_change_costs_the_same_among_many_objects() {
    linux_sys::ns::in_lab("one_change_costs_the_same_among_many_objects", || {
        let lab = Lab::new();
        let node = lab.node(WS2022);
        let begin = std::time::Instant::now();
        let client: Pod = node.pod(2, "192.168.1.5", to_services());
        println!("a pod's namespace, endpoint and attach in {:?}", begin.elapsed());
        serve_tcp(&client.ns, 80, "one");
        let started = std::time::Instant::now();
        for number in 0..500u16 {
            let vip = std::net::Ipv4Addr::new(10, 97, (number >> 8) as u8, number as u8);
            let balancer = HostComputeLoadBalancer::new(Some(vip.into()), Protocol::TCP, 80, 80, vec![id(2)]);
            node.client.create(hcn::Guid::random(), &balancer).unwrap();
        }
        let last = std::time::Instant::now();
        node.balance(0x20, Some(VIP), 80, 80, &[&client]);
        let one = last.elapsed();
        println!("500 load balancers in {:?}; one more in {one:?}", started.elapsed());
        assert_eq!(ask_tcp(&client.ns, "10.97.1.100:80").unwrap(), format!("one saw {NODE}"));
    });
}

#[test]
fn the_process_answers_on_its_sockets() {
    linux_sys::ns::in_lab("the_process_answers_on_its_sockets", || {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let config = hns_sim::Config {
            node: "win01".into(),
            netns_dir: path("ns"),
            state_dir: path("hns"),
            socket: path("win01.hcn"),
            admin_socket: path("win01.hcn-admin"),
            hns_version: WS2022,
            uplink: "eth0".into(),
            switches: Vec::new(),
            options: hns_sim::Options::default(),
        };
        let address = format!("unix:{}", config.socket.display());
        let admin = config.admin_socket.clone();
        let service = std::thread::spawn(move || hns_sim::run(&config));
        let client = hcn::blocking::Client::new(std::sync::Arc::new(hcn::remote::RemoteHcn::connect(&address).unwrap()));
        until("an answer of the service", || {
            assert!(!service.is_finished(), "the service has ended");
            client.features()
        });
        let subnet = Subnet::new(net("192.168.1.0/24"), "192.168.1.1".parse().unwrap());
        client.create(id(1), &HostComputeNetwork::new("mullion", NetworkType::L2Bridge, subnet)).unwrap();
        client.create(id(2), &HostComputeNamespace::default()).unwrap();
        assert!(linux_sys::ns::NetNs::open(&path("ns").join(id(2).to_string())).is_ok());
        let counters = hns_sim::admin::request(&admin, "counters", serde_json::Value::Null).unwrap();
        assert_eq!(counters["HcnCreateNamespace"]["calls"], 1, "{counters}");
    });
}
