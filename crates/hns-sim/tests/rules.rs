//! Rules of the service on the model alone: answers, errors, cascades, restarts; and plans, as golden text.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use hcn::blocking::Client;
use hcn::document::*;
use hcn::{Args, Event, Function, Guid, HResult, HcnError, HnsVersion, Kind};
use hns_sim::Simulator;
use hns_sim::fact::{Fact, Plan};
use hns_sim::kernel::{Kernel, KernelError, NoKernel};
use hns_sim::store::Store;
use hns_sim::switches::Switches;

const WS2022: HnsVersion = HnsVersion::new(13, 3);
const WS2025: HnsVersion = HnsVersion::new(15, 5);

fn id(number: u8) -> Guid {
    format!("00000000-0000-0000-0000-0000000000{number:02x}").parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn net(text: &str) -> ipnet::IpNet {
    text.parse().unwrap()
}

/// A kernel that notes its plans and can refuse.
#[derive(Default)]
struct Recorder {
    plans: Arc<Mutex<Vec<String>>>,
    refuse: Arc<Mutex<bool>>,
}

impl Kernel for Recorder {
    fn management(&self) -> Option<std::net::Ipv4Addr> {
        Some([10, 240, 0, 11].into())
    }

    fn survived(&self) -> Result<bool, KernelError> {
        Ok(false)
    }

    fn reconcile(&mut self, _facts: &std::collections::BTreeSet<Fact>) -> Result<(), KernelError> {
        Ok(())
    }

    fn apply(&mut self, plan: &Plan) -> Result<(), KernelError> {
        if *self.refuse.lock().unwrap() {
            return Err(KernelError { action: plan.to_string(), hresult: HResult::FAIL, source: std::io::ErrorKind::OutOfMemory.into() });
        }
        self.plans.lock().unwrap().push(plan.to_string());
        Ok(())
    }
}

struct Bench {
    client: Client,
    simulator: Simulator,
    plans: Arc<Mutex<Vec<String>>>,
    refuse: Arc<Mutex<bool>>,
}

impl Bench {
    fn new(version: HnsVersion) -> Self {
        Self::with(Switches::of(version))
    }

    fn with(switches: Switches) -> Self {
        let kernel = Recorder::default();
        let (plans, refuse) = (kernel.plans.clone(), kernel.refuse.clone());
        let simulator = Simulator::new(Box::new(kernel), switches, None).unwrap();
        Self { client: Client::new(simulator.session()), simulator, plans, refuse }
    }

    /// A service with the network every test needs.
    fn with_network(version: HnsVersion) -> Self {
        let bench = Self::new(version);
        bench.client.create(id(1), &network("mullion")).unwrap();
        bench
    }

    fn plan(&self) -> String {
        self.plans.lock().unwrap().drain(..).collect::<Vec<_>>().join("---\n")
    }

    fn endpoint(&self, number: u8, address: &str) -> Result<HostComputeEndpoint, HcnError> {
        self.client.create_endpoint(&id(1), id(number), &HostComputeEndpoint::local(format!("pod{number}"), net(address), Some(ip("192.168.1.1"))))
    }

    fn remote(&self, number: u8, address: &str) -> Result<HostComputeEndpoint, HcnError> {
        self.client.create_endpoint(&id(1), id(number), &HostComputeEndpoint::remote(ip(address)))
    }
}

fn network(name: &str) -> HostComputeNetwork {
    HostComputeNetwork::new(name, NetworkType::L2Bridge, Subnet::new(net("192.168.1.0/24"), ip("192.168.1.1")))
        .with_policy(NetworkPolicy::net_adapter_name("Ethernet"))
}

fn balancer(vip: Option<&str>, port: u16, backends: &[u8]) -> HostComputeLoadBalancer {
    HostComputeLoadBalancer::new(vip.map(ip), Protocol::TCP, port, 80, backends.iter().map(|number| id(*number)).collect())
}

#[track_caller]
fn fails<T: std::fmt::Debug>(outcome: Result<T, HcnError>, hresult: HResult) {
    let error = outcome.expect_err("the service must refuse this");
    assert_eq!(error.hresult(), Some(hresult), "{error}");
    let HcnError::Call { record: Some(record), .. } = &error else { panic!("no record: {error}") };
    let record: serde_json::Value = serde_json::from_str(record).unwrap();
    assert_eq!((record["Success"].as_bool(), record["ErrorCode"].as_u64()), (Some(false), Some(hresult.0.into())));
}

#[test]
fn a_network_gets_its_management_address_and_a_unique_name() {
    let bench = Bench::with_network(WS2022);
    let made = bench.client.get_by_name::<HostComputeNetwork>("mullion").unwrap().unwrap();
    assert_eq!((made.id, made.management_ip(), made.version), (id(1), Some(ip("10.240.0.11")), WS2022.packed()));
    fails(bench.client.create(id(2), &network("Mullion")), HResult::NETWORK_ALREADY_EXISTS);
    fails(bench.client.create(id(1), &network("other")), HResult::NETWORK_ALREADY_EXISTS);
    for kind in [NetworkType::Mirrored, NetworkType::Infiniband, NetworkType::Other("Warp".into())] {
        fails(bench.client.create(id(2), &HostComputeNetwork { network_type: kind, ..network("x") }), HResult::INVALID_NETWORK_TYPE);
    }
    let adapter = HostComputeNetwork { policies: vec![NetworkPolicy::net_adapter_name("vEthernet (Ethernet)")], ..network("x") };
    fails(bench.client.create(id(2), &adapter), HResult::ADAPTER_NOT_FOUND);
    let mut prefix = network("x");
    prefix.ipams[0].subnets[0].ip_address_prefix = "192.168.1.0/33".into();
    fails(bench.client.create(id(2), &prefix), HResult::INVALID_PREFIX);
    fails(bench.client.create(id(2), &HostComputeNetwork { ipams: vec![], ..network("x") }), HResult::INVALID_NETWORK);
    let gateway = HostComputeNetwork::new("x", NetworkType::L2Bridge, Subnet::new(net("192.168.1.0/24"), ip("192.168.2.1")));
    fails(bench.client.create(id(2), &gateway), HResult::INVALID_SUBNET);
    let warp = HostComputeNetwork { policies: vec![NetworkPolicy::new(NetworkPolicyType::Other("Warp".into()), &())], ..network("x") };
    fails(bench.client.create(id(2), &warp), HResult::INVALID_POLICY_TYPE);
    assert_eq!(bench.client.list::<HostComputeNetwork>(&Query::default()).unwrap().len(), 1, "a refused create leaves nothing");
}

#[test]
fn endpoints_follow_the_address_rules() {
    let bench = Bench::with_network(WS2022);
    let made = bench.endpoint(2, "192.168.1.5/24").unwrap();
    assert_eq!((made.state, made.host_compute_network, made.ip()), (EndpointState::CREATED, id(1), Some(ip("192.168.1.5"))));
    assert!(made.mac_address.starts_with("00-15-5D-"), "{}", made.mac_address);
    assert_eq!(made.policies[0].policy_type, EndpointPolicyType::L2Driver);
    fails(bench.endpoint(3, "192.168.1.5/24"), HResult::OBJECT_ALREADY_EXISTS);
    fails(bench.endpoint(2, "192.168.1.6/24"), HResult::OBJECT_ALREADY_EXISTS);
    fails(bench.endpoint(3, "192.168.2.5/24"), HResult::INVALID_IP);
    for reserved in ["192.168.1.0/24", "192.168.1.1/24", "192.168.1.255/24"] {
        fails(bench.endpoint(3, reserved), HResult::ADDR_INVALID_OR_RESERVED);
    }
    // A remote endpoint may have any address, a local one's too.
    bench.remote(4, "192.168.1.5").unwrap();
    assert_eq!(bench.remote(5, "8.8.8.8").unwrap().mac_address, "02-11-08-08-08-08");
    // Without an address, a MAC and routes, the service chooses.
    let chosen = bench.client.create_endpoint(&id(1), id(6), &HostComputeEndpoint::default()).unwrap();
    assert!(net("192.168.1.0/24").contains(&chosen.ip().unwrap()), "{chosen:?}");
    assert_eq!(chosen.routes, [Route::default_via("192.168.1.1")]);
    assert_eq!(chosen.ip_configurations[0].prefix_length, 24);
    fails(bench.client.create_endpoint(&id(9), id(7), &HostComputeEndpoint::default()), HResult::NETWORK_NOT_FOUND);
    let warp = HostComputeEndpoint::default().with_policy(EndpointPolicy::new(EndpointPolicyType::Other("Warp".into()), &()));
    fails(bench.client.create_endpoint(&id(1), id(7), &warp), HResult::INVALID_POLICY_TYPE);
    let mapping = PortMapping { protocol: Protocol::TCP, external_port: 80, ..PortMapping::default() };
    fails(
        bench.client.create_endpoint(&id(1), id(7), &HostComputeEndpoint::default().with_policy(EndpointPolicy::port_mapping(&mapping))),
        HResult::INVALID_INTERNAL_PORT,
    );
    // What no packet meets is stored as the service does it, or refused where promises shall hold.
    let encrypted = HostComputeEndpoint::default().with_policy(EndpointPolicy::new(EndpointPolicyType::Encryption, &Encryption::default()));
    bench.client.create_endpoint(&id(1), id(7), &encrypted).unwrap();
    let mut switches = Switches::of(WS2022);
    switches.set("store-unenforced=false").unwrap();
    let strict = Client::new(Simulator::new(Box::new(Recorder::default()), switches, None).unwrap().session());
    strict.create(id(1), &network("mullion")).unwrap();
    fails(strict.create_endpoint(&id(1), id(7), &encrypted), HResult::REQUEST_UNSUPPORTED);
}

#[test]
fn namespaces_hold_endpoints_and_let_them_go() {
    let bench = Bench::with_network(WS2022);
    let client = &bench.client;
    bench.endpoint(2, "192.168.1.5/24").unwrap();
    let first = client.create(id(3), &HostComputeNamespace::default()).unwrap();
    let second = client.create(id(4), &HostComputeNamespace::default()).unwrap();
    assert_eq!((first.namespace_id, second.namespace_id), (2, 3));
    let add = |namespace, endpoint| {
        client.modify::<HostComputeNamespace>(&id(namespace), &ModifyRequest::namespace_endpoint(RequestType::Add, id(endpoint)))
    };
    let remove = |namespace, endpoint| {
        client.modify::<HostComputeNamespace>(&id(namespace), &ModifyRequest::namespace_endpoint(RequestType::Remove, id(endpoint)))
    };
    add(3, 2).unwrap();
    let attached: HostComputeEndpoint = client.get(&id(2)).unwrap().unwrap();
    assert_eq!((attached.host_compute_namespace, attached.state), (id(3), EndpointState::ATTACHED_SHARING));
    fails(add(3, 2), HResult::ENDPOINT_ALREADY_ATTACHED);
    fails(add(4, 2), HResult::ENDPOINT_NAMESPACE_ALREADY_EXISTS);
    fails(add(9, 2), HResult::ELEMENT_NOT_FOUND);
    fails(add(3, 9), HResult::ENDPOINT_NOT_FOUND);
    bench.remote(5, "192.168.2.7").unwrap();
    fails(add(3, 5), HResult::INVALID_REMOTE_ENDPOINT_OPERATION);
    fails(remove(4, 2), HResult::ENDPOINT_NOT_ATTACHED);
    remove(3, 2).unwrap();
    fails(remove(3, 2), HResult::ELEMENT_NOT_FOUND);

    // A container holds the namespace; endpoints do not.
    add(3, 2).unwrap();
    client.modify::<HostComputeNamespace>(&id(3), &ModifyRequest::namespace_container(RequestType::Add, "c")).unwrap();
    fails(client.delete::<HostComputeNamespace>(&id(3)), HResult::REQUEST_UNSUPPORTED);
    client.modify::<HostComputeNamespace>(&id(3), &ModifyRequest::namespace_container(RequestType::Remove, "c")).unwrap();
    client.delete::<HostComputeNamespace>(&id(3)).unwrap();
    let free: HostComputeEndpoint = client.get(&id(2)).unwrap().unwrap();
    assert_eq!((free.host_compute_namespace, free.state), (Guid::NIL, EndpointState::DETACHED));
    // Deleting an attached endpoint takes it out.
    add(4, 2).unwrap();
    client.delete::<HostComputeEndpoint>(&id(2)).unwrap();
    assert_eq!(client.get::<HostComputeNamespace>(&id(4)).unwrap().unwrap().endpoints().count(), 0);
}

#[test]
fn the_host_gets_the_gateway_endpoint() {
    let bench = Bench::with_network(WS2022);
    bench.endpoint(2, "192.168.1.2/24").unwrap();
    let attach = |number| bench.client.hns_call("POST", &format!("/endpoints/{}/attach", id(number)), r#"{"SystemType":"Host","CompartmentId":1}"#);
    attach(2).unwrap();
    assert_eq!(bench.client.get::<HostComputeEndpoint>(&id(2)).unwrap().unwrap().state, EndpointState::ATTACHED);
    fails(attach(2), HResult::ENDPOINT_ALREADY_ATTACHED);
    bench.client.attach_endpoint_to_host(&id(2)).unwrap();
    fails(attach(7), HResult::ENDPOINT_NOT_FOUND);
    assert!(bench.simulator.facts().iter().any(|fact| fact.to_string() == "address 192.168.1.2/24 on hns00000001"));
    bench.client.hns_call("POST", &format!("/endpoints/{}/detach", id(2)), "").unwrap();
    assert!(!bench.simulator.facts().iter().any(|fact| fact.to_string().contains("192.168.1.2")));
}

#[test]
fn load_balancers_follow_their_rules() {
    let bench = Bench::with_network(WS2022);
    let client = &bench.client;
    bench.endpoint(2, "192.168.1.5/24").unwrap();
    bench.remote(3, "192.168.2.7").unwrap();
    let made = client.create(id(10), &balancer(Some("10.96.0.1"), 80, &[2, 3])).unwrap();
    assert_eq!((made.id, made.state), (id(10), 2));
    fails(client.create(id(11), &balancer(Some("10.96.0.1"), 80, &[2])), HResult::PORT_ALREADY_EXISTS);
    fails(client.create(id(11), &balancer(Some("10.96.0.1"), 81, &[])), HResult::INVALID_JSON_REFERENCE);
    fails(client.create(id(11), &balancer(Some("10.96.0.1"), 81, &[2, 77])), HResult::INVALID_JSON_REFERENCE);
    let mut bad = balancer(Some("10.96.0.1"), 81, &[2]);
    bad.frontend_vips = vec!["ten".into()];
    fails(client.create(id(11), &bad), HResult::INVALID_IP);
    bad = balancer(Some("10.96.0.1"), 81, &[2]);
    bad.port_mappings[0].internal_port = 0;
    fails(client.create(id(11), &bad), HResult::INVALID_INTERNAL_PORT);
    client.create(id(12), &balancer(None, 30080, &[2])).unwrap();
    fails(client.create(id(13), &balancer(None, 30080, &[3])), HResult::PORT_ALREADY_EXISTS);
    fails(client.modify_load_balancer(&id(10), &balancer(Some("10.96.0.1"), 80, &[3])), HResult::NOT_IMPLEMENTED);
    // The endpoint goes, the load balancer keeps naming it.
    client.delete::<HostComputeEndpoint>(&id(2)).unwrap();
    assert_eq!(client.get::<HostComputeLoadBalancer>(&id(10)).unwrap().unwrap().host_compute_endpoints, [id(2), id(3)]);
    client.delete::<HostComputeLoadBalancer>(&id(10)).unwrap();
    client.create(id(11), &balancer(Some("10.96.0.1"), 80, &[3])).unwrap();

    // Where every backend must be on a switch, those of other hosts are, and those of this one once they are attached.
    let mut switches = Switches::of(WS2022);
    switches.set("backends-must-be-attached=true").unwrap();
    let strict = Client::new(Simulator::new(Box::new(Recorder::default()), switches, None).unwrap().session());
    strict.create(id(1), &network("mullion")).unwrap();
    strict.create_endpoint(&id(1), id(2), &HostComputeEndpoint::local("pod", net("192.168.1.5/24"), None)).unwrap();
    strict.create_endpoint(&id(1), id(3), &HostComputeEndpoint::remote(ip("192.168.2.7"))).unwrap();
    strict.create(id(10), &balancer(Some("10.96.0.1"), 80, &[3])).unwrap();
    fails(strict.create(id(11), &balancer(Some("10.96.0.2"), 80, &[2, 3])), HResult::PORT_NOT_FOUND);
    strict.create(id(4), &HostComputeNamespace::default()).unwrap();
    strict.add_endpoint_to_namespace(&id(4), &id(2)).unwrap();
    strict.create(id(11), &balancer(Some("10.96.0.2"), 80, &[2, 3])).unwrap();

    let newer = Bench::with_network(WS2025);
    newer.remote(3, "192.168.2.7").unwrap();
    newer.remote(4, "192.168.2.8").unwrap();
    newer.client.create(id(10), &balancer(Some("10.96.0.1"), 80, &[3])).unwrap();
    fails(newer.client.create(id(11), &balancer(Some("10.96.0.1"), 80, &[3])), HResult::ALREADY_EXISTS);
    newer.client.modify_load_balancer(&id(10), &balancer(Some("10.96.0.1"), 80, &[4])).unwrap();
    assert_eq!(newer.client.get::<HostComputeLoadBalancer>(&id(10)).unwrap().unwrap().host_compute_endpoints, [id(4)]);
}

#[test]
fn versions_gate_calls() {
    let old = Bench::new(HnsVersion::new(7, 2));
    assert!(!old.client.features().unwrap().api_v2);
    let error = old.client.list::<HostComputeNetwork>(&Query::default()).unwrap_err();
    assert_eq!(error.hresult(), Some(HResult::PROC_NOT_FOUND));
    assert!(Bench::new(WS2025).client.features().unwrap().modify_load_balancer);
}

#[test]
fn a_network_takes_its_endpoints_with_it() {
    let bench = Bench::with_network(WS2022);
    let client = &bench.client;
    bench.endpoint(2, "192.168.1.5/24").unwrap();
    bench.remote(3, "192.168.2.7").unwrap();
    client.create(id(4), &HostComputeNamespace::default()).unwrap();
    client.add_endpoint_to_namespace(&id(4), &id(2)).unwrap();
    client.create(id(10), &balancer(Some("10.96.0.1"), 80, &[2])).unwrap();
    client.delete::<HostComputeNetwork>(&id(1)).unwrap();
    assert!(client.ids::<HostComputeEndpoint>(&Query::default()).unwrap().is_empty());
    assert_eq!(client.ids::<HostComputeLoadBalancer>(&Query::default()).unwrap(), [id(10)]);
    client.delete::<HostComputeLoadBalancer>(&id(10)).unwrap();
    client.delete::<HostComputeNamespace>(&id(4)).unwrap();
    assert_eq!(bench.simulator.facts().len(), 0, "nothing is left");
}

#[test]
fn filters_select_and_handles_belong_to_their_session() {
    let bench = Bench::with_network(WS2022);
    bench.endpoint(2, "192.168.1.5/24").unwrap();
    bench.remote(3, "192.168.2.7").unwrap();
    let ids = |query: Query| bench.client.ids::<HostComputeEndpoint>(&query).unwrap();
    assert_eq!(ids(Query::by_name("POD2")), [id(2)]);
    assert_eq!(ids(Query::by("Flags", 1)), [id(3)]);
    assert_eq!(ids(Query::by_network(&id(1))), [id(2), id(3)]);
    assert_eq!(ids(Query::by("VirtualNetworkName", "mullion")), [id(2), id(3)]);
    assert_eq!(ids(Query::by("ID", id(9))), []);
    assert!(bench.client.ids::<HostComputeEndpoint>(&Query { filter: "{".into(), ..Query::default() }).is_err());

    let (one, two) = (bench.simulator.session(), bench.simulator.session());
    let handle = one.call(Function::Open(Kind::Network), Args { id: Some(id(1)), ..Args::default() }).unwrap().handle;
    let query = Args { handle, ..Args::default() };
    assert!(one.call(Function::Query(Kind::Network), query).is_ok());
    assert_eq!(one.call(Function::Query(Kind::Endpoint), query).unwrap_err().hresult, HResult::INVALID_HANDLE);
    assert_eq!(two.call(Function::Query(Kind::Network), query).unwrap_err().hresult, HResult::INVALID_HANDLE);
    bench.client.delete::<HostComputeNetwork>(&id(1)).unwrap();
    assert_eq!(one.call(Function::Query(Kind::Network), query).unwrap_err().hresult, HResult::NETWORK_NOT_FOUND);
    one.call(Function::Close(Kind::Network), query).unwrap();
    assert_eq!(one.call(Function::Close(Kind::Network), query).unwrap_err().hresult, HResult::INVALID_HANDLE);
}

#[test]
fn bad_text_neither_panics_nor_changes_the_state() {
    let bench = Bench::with_network(WS2022);
    let session = bench.simulator.session();
    let handle = session.call(Function::Open(Kind::Network), Args { id: Some(id(1)), ..Args::default() }).unwrap().handle;
    let before = bench.simulator.state();
    for text in ["", "[", "[]", "null", "7", r#"{"Type":{}}"#, r#"{"Ipams":7}"#, r#"{"Flags":-1}"#, "{\"ID\":\"x\"}", "\u{0}"] {
        for kind in Kind::ALL {
            let args = Args { handle, network: handle, settings: Some(text), query: Some(text), ..Args::default() };
            for function in [Function::Modify(kind), Function::Query(kind), Function::Enumerate(kind)] {
                let _ = session.call(function, args);
            }
            // What one kind cannot read is an unknown member to another.
            let made = session.call(Function::Create(kind), Args { id: Some(id(9)), ..args });
            assert!(made.is_err() || text.is_empty() || text.contains("Type") || text.contains("Ipams") || text.contains("Flags"), "{kind:?} {text}");
            if made.is_ok() {
                session.call(Function::Delete(kind), Args { id: Some(id(9)), ..Args::default() }).unwrap();
            }
        }
    }
    assert_eq!(bench.simulator.state(), before);
}

#[test]
fn kernel_refusal_leaves_the_state_unchanged() {
    let bench = Bench::with_network(WS2022);
    let before = bench.simulator.state();
    *bench.refuse.lock().unwrap() = true;
    fails(bench.client.create(id(4), &HostComputeNamespace::default()), HResult::FAIL);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let sink = heard.clone();
    let _subscription = bench.client.subscribe(Arc::new(move |event: Event| sink.lock().unwrap().push(event.event_type))).unwrap();
    fails(bench.client.delete::<HostComputeNetwork>(&id(1)), HResult::FAIL);
    assert_eq!(*heard.lock().unwrap(), [Event::NETWORK_PRE_DELETE], "it is announced also when it then fails");
    assert_eq!(bench.simulator.state(), before);
}

#[test]
fn events_report_networks_namespaces_and_attachments() {
    let bench = Bench::new(WS2022);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let sink = heard.clone();
    let subscription = bench.client.subscribe(Arc::new(move |event: Event| sink.lock().unwrap().push(event.event_type))).unwrap();
    bench.client.create(id(1), &network("mullion")).unwrap();
    bench.endpoint(2, "192.168.1.5/24").unwrap();
    bench.client.create(id(3), &HostComputeNamespace::default()).unwrap();
    bench.client.add_endpoint_to_namespace(&id(3), &id(2)).unwrap();
    assert_eq!(*heard.lock().unwrap(), [Event::NETWORK_PRE_CREATE, Event::NETWORK_CREATE, Event::NAMESPACE_CREATE, Event::ENDPOINT_ATTACHED]);
    drop(subscription);
    bench.client.delete::<HostComputeNamespace>(&id(3)).unwrap();
    assert_eq!(heard.lock().unwrap().len(), 4);
}

#[test]
fn a_restart_keeps_everything_and_a_reboot_keeps_networks() {
    let directory = tempfile::tempdir().unwrap();
    let start = |survived| {
        let kernel = NoKernel { management: Some([10, 240, 0, 11].into()), survived };
        Simulator::new(Box::new(kernel), Switches::of(WS2022), Some(Store::open(directory.path()).unwrap())).unwrap()
    };
    let first = start(false);
    let client = Client::new(first.session());
    client.create(id(1), &network("mullion")).unwrap();
    client.create(id(2), &HostComputeNetwork { flags: NetworkFlags::ENABLE_NON_PERSISTENT, ..network("passing") }).unwrap();
    client.create_endpoint(&id(1), id(3), &HostComputeEndpoint::local("pod", net("192.168.1.5/24"), None)).unwrap();
    client.create(id(4), &HostComputeNamespace::default()).unwrap();
    client.add_endpoint_to_namespace(&id(4), &id(3)).unwrap();
    client.create(id(5), &balancer(Some("10.96.0.1"), 80, &[3])).unwrap();
    let kept = first.state();
    drop((client, first));
    // The last line of a crash is cut short.
    let journal = directory.path().join("hns.journal");
    let text = std::fs::read_to_string(&journal).unwrap();
    std::fs::write(&journal, text + r#"{"kind":"Net"#).unwrap();
    assert_eq!(start(true).state(), kept);
    let rebooted = start(false).state();
    assert_eq!(rebooted.networks.keys().collect::<Vec<_>>(), [&id(1)]);
    assert!(rebooted.endpoints.is_empty() && rebooted.namespaces.is_empty() && rebooted.balancers.is_empty());
    std::fs::write(&journal, "{\"format\":99}\n").unwrap();
    assert!(Store::open(directory.path()).is_err());
}

#[test]
fn plans_follow_the_change() {
    let bench = Bench::with_network(WS2025);
    let client = &bench.client;
    let mut text = format!("# network\n{}", bench.plan());
    let nat = EndpointPolicy::outbound_nat([net("192.168.0.0/16"), net("10.96.0.0/12")]);
    for (number, address) in [(2, "192.168.1.5/24"), (3, "192.168.1.6/24")] {
        let endpoint = HostComputeEndpoint {
            mac_address: format!("00-15-5D-00-00-0{number}"),
            ..HostComputeEndpoint::local("pod", net(address), Some(ip("192.168.1.1")))
        };
        client.create_endpoint(&id(1), id(number), &endpoint.with_policy(nat.clone())).unwrap();
        client.create(id(number + 0x10), &HostComputeNamespace::default()).unwrap();
        client.add_endpoint_to_namespace(&id(number + 0x10), &id(number)).unwrap();
        text += &format!("# pod {number}\n{}", bench.plan());
    }
    bench.remote(4, "192.168.2.7").unwrap();
    assert_eq!(bench.plan(), "", "a remote endpoint costs the kernel nothing");
    client.create(id(0x20), &balancer(Some("10.96.0.1"), 80, &[2, 4])).unwrap();
    text += &format!("# load balancer\n{}", bench.plan());
    client.modify_load_balancer(&id(0x20), &balancer(Some("10.96.0.1"), 80, &[2, 3, 4])).unwrap();
    text += &format!("# a backend more\n{}", bench.plan());
    client.create(id(0x21), &balancer(None, 30080, &[2])).unwrap();
    text += &format!("# node port\n{}", bench.plan());
    client.delete::<HostComputeLoadBalancer>(&id(0x20)).unwrap();
    text += &format!("# load balancer gone\n{}", bench.plan());
    client.delete::<HostComputeEndpoint>(&id(2)).unwrap();
    text += &format!("# pod 2's endpoint gone\n{}", bench.plan());
    client.delete::<HostComputeNetwork>(&id(1)).unwrap();
    text += &format!("# network gone\n{}", bench.plan());
    insta::assert_snapshot!("plans", text);
}

#[test]
fn remote_endpoint_has_a_way_of_its_own_only_where_no_route_leads_to_its_host() {
    for own_mac in [false, true] {
        let bench = Bench::with(Switches { remote_endpoint_has_own_mac: own_mac, ..Switches::of(WS2022) });
        let route = |prefix: &str, host: &str| {
            NetworkPolicy::remote_subnet_route(&RemoteSubnetRoute {
                destination_prefix: prefix.into(),
                isolation_id: 4096,
                provider_address: host.into(),
                distributed_router_mac_address: "00-15-5D-00-02-01".into(),
                ..RemoteSubnetRoute::default()
            })
        };
        let mut subnet = Subnet::new(net("10.244.1.0/24"), ip("10.244.1.1"));
        subnet.policies = vec![NetworkPolicy::new(NetworkPolicyType::Vsid, &Isolation { isolation_id: 4096, ..Isolation::default() })];
        let network = HostComputeNetwork::new("vxlan0", NetworkType::Overlay, subnet);
        bench
            .client
            .create(id(1), &network.with_policy(route("10.244.0.0/16", "10.240.0.13")).with_policy(route("10.244.2.0/24", "10.240.0.12")))
            .unwrap();
        bench.plan();
        let remote = |number: u8, address: &str, host: &str| {
            let endpoint = HostComputeEndpoint::remote(ip(address)).with_policy(EndpointPolicy::provider_address(ip(host)));
            bench.client.create_endpoint(&id(1), id(number), &endpoint).unwrap();
            bench.plan().contains(&format!("route {address}/32"))
        };
        assert_eq!(remote(2, "10.244.2.6", "10.240.0.12"), own_mac, "the route leads there");
        assert!(remote(3, "10.244.2.7", "10.240.0.13"), "the longest prefix leads elsewhere");
        assert!(remote(4, "10.245.0.1", "10.240.0.12"), "no prefix has it");
        let change = |request_type, policy| {
            bench.client.modify::<HostComputeNetwork>(&id(1), &ModifyRequest::network_policies(request_type, &[policy])).unwrap();
            bench.plan()
        };
        let gone = change(RequestType::Remove, route("10.244.2.0/24", "10.240.0.12"));
        assert_eq!(gone.contains("route 10.244.2.6/32"), !own_mac, "it gets its own way: {gone}");
        assert_eq!(gone.contains("route 10.244.2.7/32"), !own_mac, "the other prefix leads there now: {gone}");
        assert!(!gone.contains("10.245.0.1"), "what the prefix does not have stays: {gone}");
    }
}
