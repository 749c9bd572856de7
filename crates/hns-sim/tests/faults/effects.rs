//! What a client sees of each fault: before it is set, when it hits, while it is set, and after it is cleared.

use std::time::{Duration, Instant};

use hns_sim::admin::Restart;
use hns_sim::faults::Hits;

use super::*;

/// What a client sees; it leaves the service as it found it, as far as the fault lets it.
type Probe = fn(&Simulator, &Client) -> String;

struct Effect {
    /// The fault as it is written; its kind is what stands before `=` and `,`.
    fault: &'static str,
    probe: Probe,
    /// What is seen without the fault.
    healthy: &'static str,
    /// What is seen when it hits.
    hit: &'static str,
    /// What is seen afterwards: of a fault that hits once at the next call, of a lasting one when it is cleared.
    then: &'static str,
}

const fn effect(fault: &'static str, probe: Probe, healthy: &'static str, hit: &'static str) -> Effect {
    Effect { fault, probe, healthy, hit, then: healthy }
}

const fn lasting_harm(fault: &'static str, probe: Probe, healthy: &'static str, hit: &'static str, then: &'static str) -> Effect {
    Effect { fault, probe, healthy, hit, then }
}

/// Kinds whose effect only packets show, and the test of fault_packets.rs that looks at them.
const WITH_PACKETS: &[(&str, &str)] = &[
    ("acl-broken", "acl_broken_keeps_rules_without_effect"),
    ("ep-port-blocked", "blocked_port_drops_packets_until_reattached"),
    ("net-blip", "net_blip_takes_uplink_addresses_for_a_while"),
    ("net-blip-loses-routes", "net_blip_takes_uplink_addresses_for_a_while"),
    ("net-blip-loses-ip", "net_blip_takes_uplink_addresses_for_a_while"),
    ("net-switch-blip", "networks_of_one_adapter_share_its_switch"),
];

const EFFECTS: &[Effect] = &[
    effect("slow-call=2s", pace_of_a_call, "prompt", "slow"),
    effect("fail-call=0x80004005", a_call, "OK", "0x80004005"),
    effect("hang", whether_a_call_returns, "returns", "hangs"),
    effect("error-after-effect", make_a_namespace, "OK there", "0x800706be there"),
    effect("success-without-effect", make_a_namespace, "OK there", "0x80070490 gone"),
    effect("duplicate-effect", count_namespaces_made, "1", "2"),
    lasting_harm("vanish", open_the_balancer, "there", "gone", "gone"),
    effect("svc-down", a_call, "OK", "0x800706d9"),
    effect("svc-down=0x800706be", a_call, "OK", "0x800706be"),
    effect("svc-stopping", a_call, "OK", "0x803b0020"),
    effect("svc-deadlock", whether_a_call_returns, "returns", "hangs"),
    lasting_harm("hns-restart", a_call_and_restarts, "OK 0", "0x800706be 1", "OK 1"),
    lasting_harm("hns-restart=crash", a_call_and_what_is_left, "OK [1, 2, 1, 1]", "0x800706be [1, 2, 1, 0]", "OK [1, 2, 1, 0]"),
    lasting_harm("wipe", a_call_and_what_is_left, "OK [1, 2, 1, 1]", "0x800706be [0, 0, 0, 0]", "OK [0, 0, 0, 0]"),
    lasting_harm("hns-data-corrupt", a_call, "OK", "0x800706be", "0x800706d9"),
    effect("svc-stop-fails", restart, "OK", "refused: fault svc-stop-fails"),
    effect("callback-drop", hear_of_a_namespace, "2 events", "0 events"),
    effect("network-lost-on-reboot", left_by_a_restart, "[1, 2, 1, 1] dsr", "[0, 0, 1, 0]"),
    effect("restart-loses-endpoints", left_by_a_restart, "[1, 2, 1, 1] dsr", "[1, 0, 1, 1] dsr"),
    effect("restart-loses-lbs", left_by_a_restart, "[1, 2, 1, 1] dsr", "[1, 2, 1, 0]"),
    effect("restart-loses-some-lbs", balancers_left_by_a_restart, "all", "some"),
    effect("restart-drops-dsr", left_by_a_restart, "[1, 2, 1, 1] dsr", "[1, 2, 1, 1] no dsr"),
    effect("restart-leaks-ports", left_by_a_restart, "[1, 2, 1, 1] dsr", "[1, 2, 1, 0]"),
    effect("restart-loses-namespaces", left_by_a_restart, "[1, 2, 1, 1] dsr", "[1, 2, 0, 1] dsr"),
    effect("stale-endpoints", left_by_a_reboot, "[1, 0, 0, 0]", "[1, 2, 0, 0]"),
    effect("net-ghost-name", make_a_network, "OK", "0x803b0010"),
    effect("net-create-after-reboot", make_a_network, "OK", "0x80070057"),
    effect("net-create-slow=2s", pace_of_a_network, "prompt", "slow"),
    effect("net-apipa", management_address, "10.240.0.11", "169.254.17.1"),
    effect("net-late-management-ip", management_address, "10.240.0.11", "none"),
    lasting_harm("net-new-id", the_network, "the same", "another, 0 endpoints", "another, 0 endpoints"),
    effect("ipv6-off", make_a_network, "OK", "0x80070490"),
    effect("ns-late-compartment=60m", number_of_a_namespace, "has a compartment", "has none"),
    effect("ep-delete-hang", whether_an_endpoint_s_delete_returns, "returns", "hangs"),
    effect("stale-endpoint", delete_an_endpoint, "OK gone", "OK there"),
    effect("ep-stuck", attach, "OK state 3 in namespace", "OK state 1 in namespace"),
    effect("ep-attach-loop", attach, "OK state 3 in namespace", "0x803b0014 state 1 detached"),
    effect("ep-host-attach-fails,delay=1ms", attach_to_the_host, "OK", "0x80070022"),
    effect("ep-dup-ip", make_an_endpoint, "OK", "0x80071392"),
    effect("ep-dup-ip=0x803b002f", make_an_endpoint, "OK", "0x803b002f"),
    effect("ep-address-reserved", make_an_endpoint, "OK", "0x803b002f"),
    effect("ep-notfound-on-namespace", attach, "OK state 3 in namespace", "0x80070490 state 1 detached"),
    effect("ns-delete-refused", delete_a_namespace, "OK gone", "0x803b0015 there"),
    lasting_harm("lost-object", open_the_balancer, "there", "gone", "gone"),
    effect("port-exists", make_a_balancer, "OK", "0x803b0013"),
    effect("lb-exists", make_a_balancer, "OK", "0x800700b7"),
    effect("lb-port-not-found", make_a_balancer, "OK", "0x803b0007"),
    effect("lb-empty", make_a_balancer, "OK", "0x803b001c"),
    effect("lb-sourcevip-missing", make_a_balancer, "OK", "0x803b002f"),
    effect("lb-out-of-ports", make_a_balancer, "OK", "0x8007000e"),
    effect("lb-delete-fails", delete_a_balancer, "OK gone", "0x80004005 there"),
    // The client takes it as gone; it is not.
    effect("lb-del-after-net", delete_a_balancer, "OK gone", "OK there"),
    effect("lb-modify-noop", modify_the_balancer, "OK changed", "OK unchanged"),
    effect("lb-create-hang", whether_a_balancer_s_create_returns, "returns", "hangs"),
    lasting_harm("lost-policy", policies, "2", "0", "0"),
    effect("acl-refused", set_policies, "OK changed", "0x803b000d unchanged"),
    effect("acl-remove-noop", set_policies, "OK changed", "OK unchanged"),
];

fn named(effect: &Effect) -> &'static str {
    effect.fault.split(['=', ',']).next().unwrap()
}

#[test]
fn every_fault_has_a_test_of_its_effect() {
    let packets = include_str!("../fault_packets.rs");
    for kind in KINDS {
        let here = EFFECTS.iter().any(|effect| named(effect) == kind.name);
        let there = WITH_PACKETS.iter().find(|(name, _)| *name == kind.name);
        let fault = format!("\"{}", kind.name);
        let looked_at = there.is_some_and(|(_, test)| packets.contains(&format!("fn {test}(")) && packets.contains(&fault));
        assert!(here || looked_at, "{} has no test of its effect: add a row to EFFECTS, or a test with packets to WITH_PACKETS", kind.name);
    }
    let known = |name: &str| KINDS.iter().any(|kind| kind.name == name);
    assert!(EFFECTS.iter().map(named).chain(WITH_PACKETS.iter().map(|(name, _)| *name)).all(known));
}

#[test]
fn clients_see_the_effect_of_each_fault() {
    for effect in EFFECTS {
        let (simulator, client) = service();
        let probe = || (effect.probe)(&simulator, &client);
        // Of what changes the service itself, the healthy one is another service.
        let (other, its_client) = service();
        assert_eq!((effect.probe)(&other, &its_client), effect.healthy, "{}: without the fault", effect.fault);
        let number = add(&simulator, effect.fault);
        assert_eq!(probe(), effect.hit, "{}: hit", effect.fault);
        let kind = KINDS.iter().find(|kind| kind.name == named(effect)).unwrap();
        match kind.hits {
            Hits::Once => assert!(simulator.controls().faults.list().is_empty(), "{} is not used up", effect.fault),
            Hits::UntilCleared => {
                assert_eq!(probe(), effect.hit, "{}: it lasts", effect.fault);
                assert!(simulator.remove_fault(number));
            }
        }
        assert_eq!(probe(), effect.then, "{}: afterwards", effect.fault);
        assert_ne!(effect.healthy, effect.hit);
    }
}

/// A code, or OK.
fn outcome_of<T: std::fmt::Debug>(outcome: Result<T, HcnError>) -> String {
    let code = code(outcome);
    if code == HResult::OK { "OK".to_owned() } else { format!("{:#010x}", code.0) }
}

fn there(simulator: &Simulator, kind: Kind, number: u8) -> &'static str {
    // Not by a call: it would be hit.
    if simulator.with_state(|state| state.has(kind, &id(number))) { "there" } else { "gone" }
}

fn pace(began: Instant) -> String {
    if began.elapsed() >= Duration::from_secs(2) { "slow" } else { "prompt" }.to_owned()
}

fn a_call(_: &Simulator, client: &Client) -> String {
    outcome_of(client.features())
}

fn a_call_and_restarts(simulator: &Simulator, client: &Client) -> String {
    format!("{} {}", outcome_of(client.features()), simulator.status().restarts)
}

fn a_call_and_what_is_left(simulator: &Simulator, client: &Client) -> String {
    format!("{} {:?}", outcome_of(client.features()), left(simulator))
}

fn pace_of_a_call(_: &Simulator, client: &Client) -> String {
    let began = Instant::now();
    client.features().unwrap();
    pace(began)
}

/// Makes a call aside and says whether it returns or a fault holds it.
fn returns(simulator: &Simulator, call: impl FnOnce() + Send + 'static) -> String {
    let hits = || simulator.controls().faults.list().iter().map(|active| active.hits).sum::<u64>();
    let (before, worker) = (hits(), std::thread::spawn(call));
    loop {
        if worker.is_finished() {
            return "returns".to_owned();
        }
        if hits() > before {
            std::thread::sleep(Duration::from_millis(50));
            return if worker.is_finished() { "returns" } else { "hangs" }.to_owned();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn whether_a_call_returns(simulator: &Simulator, client: &Client) -> String {
    let client = client.clone();
    returns(simulator, move || drop(client.features()))
}

fn whether_an_endpoint_s_delete_returns(simulator: &Simulator, client: &Client) -> String {
    let client = client.clone();
    returns(simulator, move || drop(client.delete::<HostComputeEndpoint>(&id(0x77))))
}

fn whether_a_balancer_s_create_returns(simulator: &Simulator, client: &Client) -> String {
    let client = client.clone();
    returns(simulator, move || drop(make_a_balancer(&service().0, &client)))
}

fn make_a_namespace(simulator: &Simulator, client: &Client) -> String {
    let made = outcome_of(client.create(id(0x20), &HostComputeNamespace::default()));
    let is = there(simulator, Kind::Namespace, 0x20);
    let _ = client.delete::<HostComputeNamespace>(&id(0x20));
    format!("{made} {is}")
}

fn delete_a_namespace(simulator: &Simulator, client: &Client) -> String {
    let _ = client.create(id(0x20), &HostComputeNamespace::default());
    let deleted = outcome_of(client.delete::<HostComputeNamespace>(&id(0x20)));
    format!("{deleted} {}", there(simulator, Kind::Namespace, 0x20))
}

fn count_namespaces_made(_: &Simulator, client: &Client) -> String {
    client.create(id(0x20), &HostComputeNamespace::default()).unwrap();
    let made: Vec<Guid> = client.ids::<HostComputeNamespace>(&Query::default()).unwrap().into_iter().filter(|made| *made != id(4)).collect();
    made.iter().for_each(|made| client.delete::<HostComputeNamespace>(made).unwrap());
    made.len().to_string()
}

fn number_of_a_namespace(_: &Simulator, client: &Client) -> String {
    let made = client.create(id(0x20), &HostComputeNamespace::default()).unwrap();
    client.delete::<HostComputeNamespace>(&id(0x20)).unwrap();
    if made.namespace_id == 0 { "has none" } else { "has a compartment" }.to_owned()
}

fn hear_of_a_namespace(simulator: &Simulator, client: &Client) -> String {
    let heard = Arc::new(Mutex::new(0));
    let ears = heard.clone();
    let subscription = client.subscribe(Arc::new(move |_| *ears.lock().unwrap() += 1)).unwrap();
    make_a_namespace(simulator, client);
    drop(subscription);
    format!("{} events", heard.lock().unwrap())
}

fn open_the_balancer(_: &Simulator, client: &Client) -> String {
    if client.get::<HostComputeLoadBalancer>(&id(5)).unwrap().is_some() { "there" } else { "gone" }.to_owned()
}

fn restart(simulator: &Simulator, _: &Client) -> String {
    match simulator.restart(Restart::default()) {
        Ok(()) => "OK".to_owned(),
        Err(error) if error.contains("svc-stop-fails") => "refused: fault svc-stop-fails".to_owned(),
        Err(error) => error,
    }
}

/// What is left when the service, whole again first, has restarted.
fn left_by(simulator: &Simulator, client: &Client, mode: RestartMode) -> String {
    fill(client);
    simulator.restart(Restart { mode, ..Restart::default() }).unwrap();
    let dsr = client.get::<HostComputeLoadBalancer>(&id(5)).unwrap();
    let dsr = dsr.map_or("", |balancer| if balancer.flags.contains(LoadBalancerFlags::DSR) { " dsr" } else { " no dsr" });
    let text = format!("{:?}{dsr}", left(simulator));
    let _ = client.delete::<HostComputeLoadBalancer>(&id(5));
    text
}

fn left_by_a_restart(simulator: &Simulator, client: &Client) -> String {
    left_by(simulator, client, RestartMode::Clean)
}

fn left_by_a_reboot(simulator: &Simulator, client: &Client) -> String {
    left_by(simulator, client, RestartMode::Reboot)
}

fn balancers_left_by_a_restart(simulator: &Simulator, client: &Client) -> String {
    for number in 0x30..0x50 {
        let _ = client.create(id(number), &HostComputeLoadBalancer::new(Some([10, 96, 1, number].into()), Protocol::TCP, 80, 80, vec![id(3)]));
    }
    let before = left(simulator)[3];
    simulator.restart(Restart::default()).unwrap();
    match left(simulator)[3] {
        after if after == before => "all",
        0 => "none",
        _ => "some",
    }
    .to_owned()
}

fn make_a_network(_: &Simulator, client: &Client) -> String {
    let nat = Subnet::new("10.9.0.0/24".parse().unwrap(), [10, 9, 0, 1].into());
    let made = outcome_of(client.create(id(7), &HostComputeNetwork::new("other", NetworkType::Nat, nat)));
    client.delete::<HostComputeNetwork>(&id(7)).unwrap();
    made
}

fn pace_of_a_network(simulator: &Simulator, client: &Client) -> String {
    let began = Instant::now();
    assert_eq!(make_a_network(simulator, client), "OK");
    pace(began)
}

fn management_address(_: &Simulator, client: &Client) -> String {
    client.get::<HostComputeNetwork>(&id(1)).unwrap().unwrap().management_ip().map_or("none".to_owned(), |address| address.to_string())
}

fn the_network(_: &Simulator, client: &Client) -> String {
    if client.ids::<HostComputeNetwork>(&Query::default()).unwrap() == [id(1)] {
        return "the same".to_owned();
    }
    format!("another, {} endpoints", client.ids::<HostComputeEndpoint>(&Query::default()).unwrap().len())
}

fn make_an_endpoint(_: &Simulator, client: &Client) -> String {
    let endpoint = HostComputeEndpoint::local("pod8", "192.168.1.8/24".parse().unwrap(), None);
    let made = outcome_of(client.create_endpoint(&id(1), id(8), &endpoint));
    client.delete::<HostComputeEndpoint>(&id(8)).unwrap();
    made
}

fn delete_an_endpoint(simulator: &Simulator, client: &Client) -> String {
    let endpoint = HostComputeEndpoint::local("pod8", "192.168.1.8/24".parse().unwrap(), None);
    let _ = client.create_endpoint(&id(1), id(8), &endpoint);
    let deleted = outcome_of(client.delete::<HostComputeEndpoint>(&id(8)));
    format!("{deleted} {}", there(simulator, Kind::Endpoint, 8))
}

fn attach(_: &Simulator, client: &Client) -> String {
    // A new one each time: what was attached once is in another state.
    let endpoint = HostComputeEndpoint::local("pod8", "192.168.1.8/24".parse().unwrap(), None);
    client.create_endpoint(&id(1), id(8), &endpoint).unwrap();
    let attached = outcome_of(client.modify::<HostComputeNamespace>(&id(4), &ModifyRequest::namespace_endpoint(RequestType::Add, id(8))));
    let shown = client.get::<HostComputeEndpoint>(&id(8)).unwrap().unwrap();
    client.delete::<HostComputeEndpoint>(&id(8)).unwrap();
    let place = if shown.host_compute_namespace == id(4) { "in namespace" } else { "detached" };
    format!("{attached} state {} {place}", shown.state)
}

fn attach_to_the_host(_: &Simulator, client: &Client) -> String {
    let attached = outcome_of(client.attach_endpoint_to_host(&id(3)));
    let _ = client.detach_endpoint_from_host(&id(3));
    attached
}

fn make_a_balancer(_: &Simulator, client: &Client) -> String {
    let made = outcome_of(client.create(id(6), &HostComputeLoadBalancer::new(Some([10, 96, 0, 6].into()), Protocol::TCP, 80, 80, vec![id(3)])));
    let _ = client.delete::<HostComputeLoadBalancer>(&id(6));
    made
}

fn delete_a_balancer(simulator: &Simulator, client: &Client) -> String {
    let _ = client.create(id(6), &HostComputeLoadBalancer::new(Some([10, 96, 0, 6].into()), Protocol::TCP, 80, 80, vec![id(3)]));
    let deleted = outcome_of(client.delete::<HostComputeLoadBalancer>(&id(6)));
    format!("{deleted} {}", there(simulator, Kind::LoadBalancer, 6))
}

fn modify_the_balancer(_: &Simulator, client: &Client) -> String {
    let read = || client.get::<HostComputeLoadBalancer>(&id(5)).unwrap().unwrap();
    let (before, mut desired) = (read(), read());
    desired.port_mappings[0].internal_port ^= 1;
    let modified = outcome_of(client.modify_load_balancer(&id(5), &desired));
    let changed = read().port_mappings[0].internal_port != before.port_mappings[0].internal_port;
    format!("{modified} {}", if changed { "changed" } else { "unchanged" })
}

fn policies(_: &Simulator, client: &Client) -> String {
    client.get::<HostComputeEndpoint>(&id(2)).unwrap().unwrap().policies.len().to_string()
}

fn set_policies(_: &Simulator, client: &Client) -> String {
    let read = || client.get::<HostComputeEndpoint>(&id(2)).unwrap().unwrap().policies;
    let before = read();
    let exception = if format!("{before:?}").contains("10.0.0.0/8") { "172.16.0.0/12" } else { "10.0.0.0/8" };
    let desired = [EndpointPolicy::outbound_nat([exception.parse().unwrap()])];
    let set = outcome_of(client.modify::<HostComputeEndpoint>(&id(2), &ModifyRequest::endpoint_policies(RequestType::Update, &desired)));
    format!("{set} {}", if read() == before { "unchanged" } else { "changed" })
}
