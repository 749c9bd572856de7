//! Faults, latencies and restarts, as clients see them. No kernel.

use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use hcn::blocking::Client;
use hcn::document::*;
use hcn::{Args, Event, Function, Guid, HResult, HcnError, HnsVersion, Kind};
use hns_sim::faults::{KINDS, RestartMode};
use hns_sim::kernel::NoKernel;
use hns_sim::switches::Switches;
use hns_sim::{Options, Simulator};
use test_lab::{LIMIT, until};

#[path = "faults/effects.rs"]
mod effects;

const WS2025: HnsVersion = HnsVersion::new(15, 5);

fn id(number: u8) -> Guid {
    format!("00000000-0000-0000-0000-0000000000{number:02x}").parse().unwrap()
}

/// A service with a network (1), endpoints (2, 3), a namespace (4) that holds endpoint 2, and a load balancer (5) with DSR.
fn service() -> (Simulator, Client) {
    service_with("patched=true")
}

fn service_with(switch: &str) -> (Simulator, Client) {
    let kernel = NoKernel { management: Some([10, 240, 0, 11].into()), survived: false };
    let mut switches = Switches::of(WS2025);
    switches.set(switch).unwrap();
    let simulator = Simulator::with_options(Box::new(kernel), switches, None, Options { seed: 7, ..Options::default() }).unwrap();
    let client = Client::new(simulator.session());
    fill(&client);
    assert_eq!(left(&simulator), [1, 2, 1, 1]);
    (simulator, client)
}

/// Makes what is missing of it.
fn fill(client: &Client) {
    let subnet = Subnet::new("192.168.1.0/24".parse().unwrap(), [192, 168, 1, 1].into());
    let _ = client.create(id(1), &HostComputeNetwork::new("mullion", NetworkType::L2Bridge, subnet));
    let nat = EndpointPolicy::outbound_nat(["10.0.0.0/8".parse().unwrap()]);
    let pod = |number: u8| HostComputeEndpoint::local(format!("pod{number}"), format!("192.168.1.{number}/24").parse().unwrap(), None);
    let _ = client.create_endpoint(&id(1), id(2), &pod(2).with_policy(nat));
    let _ = client.create_endpoint(&id(1), id(3), &pod(3));
    let _ = client.create(id(4), &HostComputeNamespace::default());
    let _ = client.add_endpoint_to_namespace(&id(4), &id(2));
    let mut balancer = HostComputeLoadBalancer::new(Some([10, 96, 0, 1].into()), Protocol::TCP, 80, 8080, vec![id(2), id(3)]);
    balancer.flags = LoadBalancerFlags::DSR;
    let _ = client.create(id(5), &balancer);
}

fn add(simulator: &Simulator, fault: &str) -> u32 {
    simulator.add_fault(fault.parse().unwrap()).unwrap()
}

fn code<T: std::fmt::Debug>(outcome: Result<T, HcnError>) -> HResult {
    outcome.map_or_else(|error| error.hresult().unwrap(), |_| HResult::OK)
}

#[test]
fn calls_fail_after_their_effect_or_succeed_without_one() {
    let (simulator, client) = service();
    add(&simulator, "error-after-effect,call=HcnDeleteLoadBalancer,count=1");
    assert_eq!(code(client.delete::<HostComputeLoadBalancer>(&id(5))), HResult::RPC_CALL_FAILED);
    assert_eq!(client.ids::<HostComputeLoadBalancer>(&Query::default()).unwrap(), [], "it is gone all the same");
    add(&simulator, "stale-endpoint,count=1");
    client.delete::<HostComputeEndpoint>(&id(3)).unwrap();
    assert!(client.get::<HostComputeEndpoint>(&id(3)).unwrap().is_some(), "it stays all the same");
    add(&simulator, "success-without-effect,call=HcnCreateNamespace,count=1");
    let made = client.create(id(9), &HostComputeNamespace::default());
    assert_eq!(code(made), HResult::ELEMENT_NOT_FOUND, "the handle leads nowhere");
    add(&simulator, "duplicate-effect,call=HcnCreateNamespace,count=1");
    client.create(id(9), &HostComputeNamespace::default()).unwrap();
    assert_eq!(client.ids::<HostComputeNamespace>(&Query::default()).unwrap().len(), 3, "two were made");
}

#[test]
fn faults_target_objects_texts_and_functions() {
    let (simulator, client) = service();
    add(&simulator, &format!("fail-call=0x80004005,call=HcnOpen*,id={}", id(3)));
    assert_eq!(code(client.get::<HostComputeEndpoint>(&id(3))), HResult::FAIL);
    assert!(client.get::<HostComputeEndpoint>(&id(2)).unwrap().is_some());
    simulator.clear_faults();
    add(&simulator, "port-exists,text=10.96.0.9");
    let balancer = |vip: [u8; 4]| HostComputeLoadBalancer::new(Some(vip.into()), Protocol::TCP, 80, 80, vec![id(3)]);
    assert_eq!(code(client.create(id(6), &balancer([10, 96, 0, 9]))), HResult::PORT_ALREADY_EXISTS);
    client.create(id(6), &balancer([10, 96, 0, 8])).unwrap();
    assert_eq!(simulator.controls().faults.list()[0].hits, 1);
}

#[test]
fn hanging_call_ends_when_its_fault_is_removed() {
    let (simulator, client) = service();
    let number = add(&simulator, "ep-delete-hang,count=1");
    let (sender, receiver) = mpsc::channel();
    let hung = client.clone();
    std::thread::spawn(move || sender.send(code(hung.delete::<HostComputeEndpoint>(&id(3)))).unwrap());
    assert!(receiver.recv_timeout(Duration::from_millis(100)).is_err(), "it hangs");
    assert!(client.get::<HostComputeEndpoint>(&id(3)).unwrap().is_some(), "others are answered");
    assert!(simulator.remove_fault(number));
    assert_eq!(receiver.recv_timeout(LIMIT).unwrap(), HResult::RPC_CALL_FAILED);
    client.delete::<HostComputeEndpoint>(&id(3)).unwrap();
}

#[test]
fn faults_remove_objects_and_policies() {
    let (simulator, client) = service();
    add(&simulator, &format!("lost-policy,count=1,id={}", id(2)));
    assert!(simulator.controls().faults.list().is_empty(), "it waited for no call");
    add(&simulator, &format!("lost-policy,id={},probability=0,count=1", id(3)));
    assert_ne!(client.get::<HostComputeEndpoint>(&id(3)).unwrap().unwrap().policies, []);
    simulator.clear_faults();
    assert_eq!(client.get::<HostComputeEndpoint>(&id(2)).unwrap().unwrap().policies, []);
    add(&simulator, &format!("lost-policy,count=1,id={}", id(5)));
    assert!(client.get::<HostComputeLoadBalancer>(&id(5)).unwrap().is_none(), "a load balancer is its policy");
    add(&simulator, "vanish,call=HcnOpenEndpoint,count=1");
    let left = client.list::<HostComputeEndpoint>(&Query::default()).unwrap();
    assert_eq!(left.len(), 1, "one vanished between enumerating and opening");
    add(&simulator, "net-new-id,count=1");
    let networks = client.list::<HostComputeNetwork>(&Query::default()).unwrap();
    assert!(networks.len() == 1 && networks[0].id != id(1) && networks[0].name == "mullion", "{networks:?}");
    assert_eq!(client.ids::<HostComputeEndpoint>(&Query::default()).unwrap(), []);
}

#[test]
fn stuck_endpoint_and_late_address_are_visible() {
    let (simulator, client) = service();
    add(&simulator, "ep-stuck,count=1");
    client.add_endpoint_to_namespace(&id(4), &id(3)).unwrap();
    let stuck = client.get::<HostComputeEndpoint>(&id(3)).unwrap().unwrap();
    assert_eq!((stuck.state, stuck.host_compute_namespace), (EndpointState::CREATED, id(4)));
    client.remove_endpoint_from_namespace(&id(4), &id(3)).unwrap();
    add(&simulator, "net-late-management-ip,count=2");
    let address = || client.get::<HostComputeNetwork>(&id(1)).unwrap().unwrap().management_ip();
    assert_eq!([address(), address()], [None, None]);
    assert_eq!(address(), Some([10, 240, 0, 11].into()));
    add(&simulator, "net-apipa,count=1");
    assert_eq!(address(), Some([169, 254, 17, 1].into()));
    add(&simulator, "net-apipa,count=1");
    let older = client.hns_call("GET", "/networks/", "").unwrap();
    assert_eq!(older[0]["ManagementIP"], "169.254.17.1", "{older}");
}

#[test]
fn restart_ends_handles_and_registrations_and_keeps_objects() {
    let (simulator, client) = service();
    let before = simulator.state();
    let session = simulator.session();
    let handle = session.call(Function::Open(Kind::Network), Args { id: Some(id(1)), ..Args::default() }).unwrap().handle;
    let heard = Arc::new(Mutex::new(Vec::new()));
    let ears = heard.clone();
    let _subscription = client.subscribe(Arc::new(move |event: Event| ears.lock().unwrap().push(event.event_type))).unwrap();
    add(&simulator, "hns-restart,delay=80ms,count=1");
    assert_eq!(code(client.delete::<HostComputeLoadBalancer>(&id(5))), HResult::RPC_CALL_FAILED);
    assert_eq!(code(client.delete::<HostComputeLoadBalancer>(&id(5))), HResult::RPC_NOT_REGISTERED, "it is away");
    until("an answer of the restarted service", || client.features());
    assert!(simulator.state() == before, "a clean restart keeps everything");
    assert_eq!(*heard.lock().unwrap(), [Event::SERVICE_DISCONNECT]);
    let error = session.call(Function::Query(Kind::Network), Args { handle, ..Args::default() }).unwrap_err();
    assert_eq!(error.hresult, HResult::INVALID_HANDLE);
    client.delete::<HostComputeNamespace>(&id(4)).unwrap();
    assert_eq!(heard.lock().unwrap().len(), 1, "the registration is dead");
}

/// What is left: networks, endpoints, namespaces, load balancers.
fn left(simulator: &Simulator) -> [usize; 4] {
    let state = simulator.state();
    [state.networks.len(), state.endpoints.len(), state.namespaces.len(), state.balancers.len()]
}

#[test]
fn restart_modes_keep_their_objects() {
    for (faults, ending, kept) in [
        ("", "hns-restart", [1, 2, 1, 1]),
        ("", "hns-restart=reboot", [1, 0, 0, 0]),
        ("", "wipe", [0, 0, 0, 0]),
        ("network-lost-on-reboot", "hns-restart=reboot", [0, 0, 0, 0]),
        ("stale-endpoints", "hns-restart=reboot", [1, 2, 0, 0]),
        ("restart-loses-endpoints", "hns-restart", [1, 0, 1, 1]),
        ("restart-loses-namespaces", "hns-restart", [1, 2, 0, 1]),
        ("restart-loses-lbs", "hns-restart", [1, 2, 1, 0]),
        ("restart-leaks-ports", "hns-restart", [1, 2, 1, 0]),
        ("restart-drops-dsr", "hns-restart", [1, 2, 1, 1]),
    ] {
        let (simulator, client) = service();
        if !faults.is_empty() {
            add(&simulator, faults);
        }
        add(&simulator, &format!("{ending},count=1"));
        client.features().unwrap_err();
        client.features().unwrap();
        assert_eq!(left(&simulator), kept, "{faults} {ending}");
        let namespace = client.get::<HostComputeNamespace>(&id(4)).unwrap();
        assert!(namespace.is_none_or(|namespace| namespace.endpoints().count() == usize::from(kept[1] > 0)), "{faults} {ending}");
        let flags = client.get::<HostComputeLoadBalancer>(&id(5)).unwrap().map(|balancer| balancer.flags.0);
        assert_eq!(flags, (kept[3] > 0).then_some(u32::from(faults != "restart-drops-dsr")), "{faults} {ending}");
        if faults == "restart-leaks-ports" {
            let again = HostComputeLoadBalancer::new(Some([10, 96, 0, 1].into()), Protocol::TCP, 80, 8080, vec![id(3)]);
            assert_eq!(code(client.create(id(5), &again)), HResult::ALREADY_EXISTS);
        }
    }
    // Of many load balancers some are lost, the same ones each time.
    let some = || {
        let (simulator, client) = service();
        for number in 10..30 {
            client.create(id(number), &HostComputeLoadBalancer::new(Some([10, 96, 1, number].into()), Protocol::TCP, 80, 80, vec![id(3)])).unwrap();
        }
        add(&simulator, "restart-loses-some-lbs,count=1");
        simulator.restart(hns_sim::admin::Restart::default()).unwrap();
        simulator.state().balancers.into_keys().collect::<Vec<_>>()
    };
    assert!((3..18).contains(&some().len()) && some() == some(), "{}", some().len());
    // Ports of load balancers that a crash lost are free, where the service cleans up behind itself.
    for (switch, outcome) in [("patched=true", HResult::OK), ("cleanup-reserved-ports=false", HResult::ALREADY_EXISTS)] {
        let (simulator, client) = service_with(switch);
        simulator.restart(hns_sim::admin::Restart { mode: RestartMode::Crash, ..Default::default() }).unwrap();
        let pod = HostComputeEndpoint::local("again", "192.168.1.9/24".parse().unwrap(), None);
        client.create_endpoint(&id(1), id(9), &pod).unwrap();
        let again = HostComputeLoadBalancer::new(Some([10, 96, 0, 1].into()), Protocol::TCP, 80, 8080, vec![id(9)]);
        assert_eq!(code(client.create(id(5), &again)), outcome, "{switch}");
    }
    // Of a crash, what is left of endpoints follows from the seed.
    let crashed = || {
        let (simulator, client) = service();
        add(&simulator, "hns-restart=crash,count=1");
        client.features().unwrap_err();
        client.features().unwrap();
        (left(&simulator), simulator.state().endpoints.into_keys().collect::<Vec<_>>())
    };
    assert_eq!((crashed().0[0], crashed().0[2], crashed().0[3]), (1, 1, 0));
    assert_eq!(crashed(), crashed());
}

#[test]
fn damaged_data_keep_the_service_away_until_wiped() {
    let (simulator, client) = service();
    add(&simulator, "hns-data-corrupt,count=1");
    client.features().unwrap_err();
    assert_eq!(code(client.features()), HResult::RPC_NOT_REGISTERED);
    assert!(!simulator.status().running);
    simulator.restart(hns_sim::admin::Restart { wipe: true, ..Default::default() }).unwrap();
    assert_eq!(left(&simulator), [0; 4]);
    client.features().unwrap();
}

#[test]
fn stop_failure_keeps_the_service_running() {
    let (simulator, client) = service();
    add(&simulator, "svc-stop-fails,count=1");
    add(&simulator, "hns-restart,count=1");
    assert_eq!(code(client.features()), HResult::FAIL, "the restart was refused");
    client.features().unwrap();
    assert_eq!(simulator.status().restarts, 0);
    simulator.restart(hns_sim::admin::Restart::default()).unwrap();
    assert_eq!(simulator.status().restarts, 1);
}

#[test]
fn callback_drop_suppresses_events() {
    let (simulator, client) = service();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let ears = heard.clone();
    let _subscription = client.subscribe(Arc::new(move |event: Event| ears.lock().unwrap().push(event.event_type))).unwrap();
    add(&simulator, "callback-drop,count=1");
    client.create(id(8), &HostComputeNamespace::default()).unwrap();
    client.create(id(9), &HostComputeNamespace::default()).unwrap();
    assert_eq!(*heard.lock().unwrap(), [Event::NAMESPACE_CREATE]);
}

#[test]
fn latencies_count_for_reads_writes_and_existing_load_balancers() {
    let (simulator, client) = service();
    simulator.controls().latency = "read=20ms,write=60ms,balancer=100ms".parse().unwrap();
    let time = |call: &dyn Fn()| {
        let began = Instant::now();
        call();
        began.elapsed()
    };
    assert!(time(&|| assert!(client.features().is_ok())) >= Duration::from_millis(20));
    assert!(time(&|| client.delete::<HostComputeEndpoint>(&id(3)).unwrap()) >= Duration::from_millis(60));
    let another = HostComputeLoadBalancer::new(Some([10, 96, 0, 2].into()), Protocol::TCP, 80, 80, vec![id(2)]);
    assert!(time(&|| assert!(client.create(id(6), &another).is_ok())) >= Duration::from_millis(160));
    let counters = simulator.controls().calls.counters();
    assert!(counters["HcnCreateLoadBalancer"].slowest_micros >= 160_000);
}
