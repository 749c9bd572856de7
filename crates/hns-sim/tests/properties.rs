//! Properties that hold after any calls: references are valid, what must be unique is, a refused call changes nothing, and the kernel gets exactly
//! what the state means, also when it refuses now and then.
//!
//! Runs follow from a seed, which a failure names.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use hcn::document::*;
use hcn::{Args, Function, Guid, HResult, Handle, HnsVersion, HostNetwork, Kind};
use hns_sim::Simulator;
use hns_sim::fact::{Fact, Plan, Rule};
use hns_sim::kernel::{Kernel, KernelError};
use hns_sim::latency::mix;
use hns_sim::state::{Change, State};
use hns_sim::switches::Switches;
use serde_json::{Value, json};

const SEEDS: u64 = 25;
const CALLS: usize = 150;

/// Numbers that follow from a seed.
struct Draws(u64);

impl Draws {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = mix(self.0);
        (self.0 % limit as u64) as usize
    }

    fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    fn now_and_then(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }
}

/// Holds the facts it was given, and may refuse now and then.
struct Strict {
    facts: Arc<Mutex<BTreeSet<Fact>>>,
    draws: Draws,
    refuses: bool,
}

impl Kernel for Strict {
    fn management(&self) -> Option<std::net::Ipv4Addr> {
        Some([10, 240, 0, 11].into())
    }

    fn survived(&self) -> Result<bool, KernelError> {
        Ok(true)
    }

    fn reconcile(&mut self, facts: &BTreeSet<Fact>) -> Result<(), KernelError> {
        *self.facts.lock().unwrap() = facts.clone();
        Ok(())
    }

    fn apply(&mut self, plan: &Plan) -> Result<(), KernelError> {
        if self.refuses && self.draws.now_and_then(8) {
            return Err(KernelError { action: plan.to_string(), hresult: HResult::FAIL, source: std::io::ErrorKind::StorageFull.into() });
        }
        let mut facts = self.facts.lock().unwrap();
        for fact in &plan.remove {
            assert!(facts.remove(fact), "the kernel shall remove what it has not: {fact}");
        }
        for fact in &plan.add {
            assert!(facts.insert(fact.clone()), "the kernel shall add what it has: {fact}");
        }
        Ok(())
    }
}

fn id(number: usize) -> Guid {
    format!("{number:02x}000000-0000-4000-8000-0000000000{number:02x}").parse().unwrap()
}

const TYPES: [&str; 9] = ["NAT", "ICS", "Transparent", "L2Bridge", "L2Tunnel", "Overlay", "Private", "Internal", "Mirrored"];

fn network(draws: &mut Draws) -> Value {
    let third = draws.below(2);
    let vsid = *draws.one(&[4096, 4096, 4096, 4097, 7]);
    json!({
        "Name": draws.one(&["a", "A", "", "", "", ""]),
        "Type": draws.one(&TYPES),
        "Flags": draws.one(&[0, 0, 0, 8, 1024]),
        "Ipams": [{"Type": "Static", "Subnets": [{
            "IpAddressPrefix": format!("10.0.{third}.0/24"),
            "Policies": [{"Type": "VSID", "Settings": {"IsolationId": vsid}}],
            "Routes": [{"NextHop": format!("10.0.{third}.1"), "DestinationPrefix": "0.0.0.0/0"}],
        }]}],
        "Policies": network_policies(draws),
        "SchemaVersion": {"Major": 2, "Minor": 0},
    })
}

fn network_policies(draws: &mut Draws) -> Value {
    let all = [
        json!({"Type": "SetPolicy", "Settings": {"Id": "s1", "Name": "s1", "PolicyType": "IPSET", "Values": "10.0.0.7"}}),
        json!({"Type": "SetPolicy", "Settings": {"Id": "s2", "Name": "s2", "PolicyType": "NESTEDIPSET", "Values": "s1"}}),
        json!({"Type": "RemoteSubnetRoute", "Settings": {"DestinationPrefix": "10.1.0.0/24", "IsolationId": 4096, "ProviderAddress": "10.240.0.12", "DistributedRouterMacAddress": "00-15-5D-00-00-01"}}),
        json!({"Type": "HostRoute", "Settings": {}}),
        json!({"Type": "Warp"}),
    ];
    (0..[0, 0, 1, 1, 2][draws.below(5)]).map(|_| draws.one(&all).clone()).collect()
}

fn endpoint(draws: &mut Draws) -> Value {
    let address = format!("10.0.{}.{}", draws.below(2), draws.below(20));
    let ips = if draws.now_and_then(2) { json!([]) } else { json!([{"IpAddress": address}]) };
    json!({
        "Name": draws.one(&["", "pod", "pod"]),
        "IpConfigurations": ips,
        "MacAddress": draws.one(&["", "", "", "", "00-15-5d-00-00-07"]),
        "Flags": draws.one(&[0, 0, 1]),
        "Policies": endpoint_policies(draws),
        "SchemaVersion": {"Major": 2, "Minor": 0},
    })
}

fn endpoint_policies(draws: &mut Draws) -> Value {
    let port = draws.below(3) + 8000;
    let hop = format!("10.0.{}.{}", draws.below(2), 1 + draws.below(2));
    let all = [
        json!({"Type": "PortMapping", "Settings": {"Protocol": 6, "InternalPort": 80, "ExternalPort": port}}),
        json!({"Type": "ACL", "Settings": {"Action": "Block", "Direction": "In", "RemoteAddresses": "s1"}}),
        json!({"Type": "ACL", "Settings": {"Action": "Allow", "Direction": "Out", "Protocols": "6", "RemotePorts": "80-90"}}),
        json!({"Type": "OutBoundNAT", "Settings": {"Exceptions": ["10.0.0.0/8"]}}),
        json!({"Type": "InterfaceParameters", "Settings": {"Mtu": 1400}}),
        json!({"Type": "SDNRoute", "Settings": {"DestinationPrefix": "10.96.0.0/12", "NextHop": hop, "NeedEncap": draws.now_and_then(2)}}),
    ];
    (0..[0, 0, 1, 1, 2][draws.below(5)]).map(|_| draws.one(&all).clone()).collect()
}

fn balancer(draws: &mut Draws, state: &State) -> Value {
    let backends: Vec<Guid> = (0..1 + draws.below(2)).map(|_| some(draws, state, Kind::Endpoint)).collect();
    let vips: &[&str] = if draws.now_and_then(2) { &[] } else { &["10.96.0.1"] };
    let (port, flags) = (80 + draws.below(3), draws.below(2));
    json!({
        "HostComputeEndpoints": backends, "FrontendVIPs": vips, "Flags": flags,
        "PortMappings": [{"Protocol": 6, "InternalPort": 8080, "ExternalPort": port}],
        "SchemaVersion": {"Major": 2, "Minor": 0},
    })
}

/// Mostly an object that exists.
fn some(draws: &mut Draws, state: &State, kind: Kind) -> Guid {
    let ids = state.ids_of(kind);
    if ids.is_empty() || draws.now_and_then(6) { new(draws, kind) } else { *draws.one(&ids) }
}

/// An id that an object of the kind may get.
fn new(draws: &mut Draws, kind: Kind) -> Guid {
    let base = match kind {
        Kind::Network => 0x10,
        Kind::Endpoint => 0x20,
        Kind::Namespace => 0x50,
        Kind::LoadBalancer => 0x60,
        _ => 0x70,
    };
    id(base + draws.below(if kind == Kind::Network { 4 } else { 14 }))
}

fn request(draws: &mut Draws, kind: Kind, state: &State) -> Value {
    let request = *draws.one(&["Add", "Add", "Remove", "Update", "Refresh", "Reset"]);
    match kind {
        Kind::Network => {
            let subnet = json!({"Subnets": [{"IpAddressPrefix": format!("10.0.{}.0/24", draws.below(3))}]});
            let policies = json!({"Policies": network_policies(draws)});
            let choices = [("Policy", policies), ("Subnet", subnet), ("DNS", json!({"Domain": "x"}))];
            let (what, settings) = draws.one(&choices);
            json!({"ResourceType": what, "RequestType": request, "Settings": settings})
        }
        Kind::Endpoint => json!({"ResourceType": "Policy", "RequestType": request, "Settings": {"Policies": endpoint_policies(draws)}}),
        Kind::Namespace => {
            let choices = [("Endpoint", json!({"EndpointId": some(draws, state, Kind::Endpoint)})), ("Container", json!({"ContainerId": "c"}))];
            let (what, settings) = draws.one(&choices);
            json!({"ResourceType": what, "RequestType": request, "Settings": settings})
        }
        _ => balancer(draws, state),
    }
}

/// Puts something else in the place of a random part.
fn spoil(draws: &mut Draws, value: &mut Value) {
    let others = [
        json!(null),
        json!(-1),
        json!(7),
        json!(1e300),
        json!("x"),
        json!(""),
        json!([]),
        json!({}),
        json!([[{"Type": {}}]]),
        json!({"Type": "ACL", "Settings": 7}),
        json!("ffffffff-ffff-ffff-ffff-ffffffffffff"),
        json!("10.0.0.0/99"),
        json!(u64::MAX),
    ];
    let parts: Vec<String> = match value {
        Value::Object(members) => members.keys().cloned().collect(),
        Value::Array(values) => (0..values.len()).map(|index| index.to_string()).collect(),
        _ => Vec::new(),
    };
    if parts.is_empty() || draws.now_and_then(3) {
        *value = draws.one(&others).clone();
        return;
    }
    let part = draws.one(&parts).clone();
    let inner = match value {
        Value::Object(members) => members.get_mut(&part),
        Value::Array(values) => values.get_mut(part.parse::<usize>().unwrap()),
        _ => None,
    };
    spoil(draws, inner.unwrap());
}

/// A random call; handles are opened for it and closed after it.
fn call(draws: &mut Draws, session: &Arc<dyn HostNetwork>, state: &State) -> (String, Result<(), hcn::RawError>) {
    let kinds =
        [Kind::Network, Kind::Endpoint, Kind::Endpoint, Kind::Endpoint, Kind::Namespace, Kind::LoadBalancer, Kind::LoadBalancer, Kind::SdnRoute];
    let kind = *draws.one(&kinds);
    let open = |kind, id| session.call(Function::Open(kind), Args { id: Some(id), ..Args::default() }).ok().and_then(|reply| reply.handle);
    let verb = draws.below(12);
    let own = if verb < 6 { new(draws, kind) } else { some(draws, state, kind) };
    let mut document = match (verb, kind) {
        (0..6, Kind::Network) => network(draws),
        (0..6, Kind::Endpoint) => endpoint(draws),
        (0..6, Kind::LoadBalancer) => balancer(draws, state),
        (0..6, Kind::SdnRoute) => {
            json!({"HostComputeEndpoints": [some(draws, state, Kind::Endpoint)], "Setting": [{"DestinationPrefix": "10.9.0.0/16"}]})
        }
        (0..6, _) => json!({"Type": draws.one(&["Host", "Host", "HostDefault", "Guest"])}),
        _ => request(draws, kind, state),
    };
    if draws.now_and_then(8) {
        spoil(draws, &mut document);
    }
    let settings = document.to_string();
    let mut handles: Vec<(Kind, Handle)> = Vec::new();
    let mut args = Args { id: Some(own), settings: Some(&settings), ..Args::default() };
    let path = format!("/endpoints/{}/{}", some(draws, state, Kind::Endpoint), draws.one(&["attach", "detach"]));
    let function = match verb {
        0..6 => {
            args.network = open(Kind::Network, some(draws, state, Kind::Network));
            handles.extend(args.network.map(|handle| (Kind::Network, handle)));
            Function::Create(kind)
        }
        6..9 | 10 => {
            args.handle = open(kind, own);
            handles.extend(args.handle.map(|handle| (kind, handle)));
            if verb == 10 { Function::Query(kind) } else { Function::Modify(kind) }
        }
        9 => Function::Delete(kind),
        _ => {
            args = Args { method: Some("POST"), path: Some(&path), settings: Some(r#"{"SystemType":"Host"}"#), ..Args::default() };
            Function::HnsCall
        }
    };
    let outcome = session.call(function, args);
    let text = format!("{function} {own} {settings} -> {outcome:?}");
    let outcome = outcome.map(|reply| {
        if let (Function::Create(kind), Some(handle)) = (function, reply.handle) {
            handles.push((kind, handle));
        }
    });
    for (kind, handle) in handles {
        session.call(Function::Close(kind), Args { handle: Some(handle), ..Args::default() }).unwrap();
    }
    (text, outcome)
}

/// A state made anew of the objects of another.
fn rebuilt(state: &State) -> State {
    let mut fresh = State::default();
    for (kind, id) in state.ids() {
        fresh.apply(Change { kind, id, after: state.get(kind, &id) });
    }
    fresh
}

fn check(state: &State) {
    assert!(rebuilt(state) == *state, "the indexes are not what the objects say");
    let mut addresses = BTreeMap::new();
    for (id, row) in &state.endpoints {
        let endpoint = row.read();
        assert!(state.networks.contains_key(&row.network), "endpoint {id} has no network");
        let namespace = endpoint.document.host_compute_namespace;
        if !namespace.is_nil() {
            assert!(state.namespaces[&namespace].endpoints().any(|held| held == *id), "endpoint {id} is not in its namespace");
        }
        if !row.is_remote() {
            for address in endpoint.all_addresses() {
                assert_eq!(addresses.insert((row.network, address.addr()), *id), None, "two endpoints have {address}");
            }
            assert_eq!(state.index().local_endpoint_with(row.network, endpoint.mac().unwrap()), Some(*id), "two endpoints have one MAC");
        }
        for listener in endpoint.listeners() {
            assert_eq!(state.index().listener(&listener), Some(*id), "{listener:?} is taken twice");
        }
    }
    for (id, namespace) in &state.namespaces {
        for endpoint in namespace.endpoints() {
            assert_eq!(state.endpoint(&endpoint).unwrap().document.host_compute_namespace, *id);
        }
    }
    for (id, row) in &state.balancers {
        assert!(row.network.is_nil() || state.networks.contains_key(&row.network));
        assert!(row.read().listeners().all(|listener| state.index().listener(&listener) == Some(*id)), "a VIP is taken twice");
    }
    let names: BTreeSet<String> = state.networks.values().filter(|it| !it.name.is_empty()).map(|it| it.name.to_ascii_lowercase()).collect();
    assert_eq!(names.len(), state.networks.values().filter(|it| !it.name.is_empty()).count(), "two networks have one name");
    for network in state.networks.values() {
        let sets: BTreeSet<String> = network.policies.iter().filter_map(NetworkPolicy::as_set).map(|set| set.id).collect();
        let nested = network.policies.iter().filter_map(NetworkPolicy::as_set).filter(|set| set.policy_type == SetPolicyType::NestedIpSet);
        assert!(nested.flat_map(|set| set.members().map(str::to_owned).collect::<Vec<_>>()).all(|member| sets.contains(&member)));
    }
}

/// One run; answers how many of its calls did something.
fn run(seed: u64) -> usize {
    let mut draws = Draws(mix(seed));
    let version = *draws.one(&[HnsVersion::new(9, 5), HnsVersion::new(13, 3), HnsVersion::new(15, 4), HnsVersion::new(16, 0)]);
    let facts = Arc::new(Mutex::new(BTreeSet::new()));
    let kernel = Strict { facts: facts.clone(), draws: Draws(seed), refuses: true };
    let simulator = Simulator::new(Box::new(kernel), Switches::of(version), None).unwrap();
    let session = simulator.session();
    let (mut last, mut done) = (String::new(), 0);
    for number in 0..CALLS {
        let before = simulator.state();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let (text, outcome) = call(&mut draws, &session, &before);
            last = text;
            let after = simulator.state();
            done += usize::from(after != before);
            if let Err(error) = outcome {
                assert!(after == before, "a refused call changed the state");
                if error.hresult != HResult::INVALID_HANDLE {
                    let record: ErrorRecord = serde_json::from_str(error.record.as_deref().unwrap_or("no record")).unwrap();
                    assert_eq!(record.hresult(), Some(error.hresult));
                }
            }
            check(&after);
            assert!(*facts.lock().unwrap() == simulator.facts(), "the kernel has not what the state means");
        }));
        assert!(outcome.is_ok(), "seed {seed}, call {number}: {last}");
    }
    done
}

/// Which way a pod's packets go follows from where its gateway is: the kernel hears when that changes.
#[test]
fn pods_follow_the_gateway_endpoint() {
    let facts = Arc::new(Mutex::new(BTreeSet::new()));
    let kernel = Strict { facts: facts.clone(), draws: Draws(0), refuses: false };
    let simulator = Simulator::new(Box::new(kernel), Switches::of(HnsVersion::new(13, 3)), None).unwrap();
    let session = simulator.session();
    let [network, space, pod, gateway] = [0x10, 0x50, 0x20, 0x21].map(id);
    let open = |kind, id| session.call(Function::Open(kind), Args { id: Some(id), ..Args::default() }).unwrap().handle;
    let create = |kind, id, document: Value| {
        let within = (kind == Kind::Endpoint).then(|| open(Kind::Network, network)).flatten();
        let args = Args { id: Some(id), network: within, settings: Some(&document.to_string()), ..Args::default() };
        session.call(Function::Create(kind), args).unwrap();
    };
    let call = |path: &str, body: &str| {
        let args = Args { method: Some("POST"), path: Some(path), settings: Some(body), ..Args::default() };
        session.call(Function::HnsCall, args).unwrap();
    };
    let version = json!({"Major": 2, "Minor": 0});
    let endpoint = |address: &str| {
        json!({
            "IpConfigurations": [{"IpAddress": address}], "Routes": [{"NextHop": "10.0.0.2", "DestinationPrefix": "0.0.0.0/0"}],
            "SchemaVersion": version,
        })
    };
    let subnet = json!({"IpAddressPrefix": "10.0.0.0/24", "Routes": [{"NextHop": "10.0.0.1", "DestinationPrefix": "0.0.0.0/0"}]});
    create(Kind::Network, network, json!({"Type": "L2Bridge", "Ipams": [{"Subnets": [subnet]}], "SchemaVersion": version}));
    create(Kind::Namespace, space, json!({"Type": "Host"}));
    create(Kind::Endpoint, pod, endpoint("10.0.0.5"));
    let added = json!({"ResourceType": "Endpoint", "RequestType": "Add", "Settings": {"EndpointId": pod}}).to_string();
    session
        .call(Function::Modify(Kind::Namespace), Args { handle: open(Kind::Namespace, space), settings: Some(&added), ..Args::default() })
        .unwrap();
    let by_host = || facts.lock().unwrap().iter().any(|fact| matches!(fact, Fact::Rule(Rule::HostPath { .. })));
    let same = || *facts.lock().unwrap() == simulator.facts();
    create(Kind::Endpoint, gateway, endpoint("10.0.0.2"));
    assert!(same() && !by_host());
    call(&format!("/endpoints/{gateway}/attach"), r#"{"SystemType":"Host"}"#);
    assert!(same() && by_host(), "the gateway is on the host");
    call(&format!("/endpoints/{gateway}/detach"), "");
    assert!(same() && !by_host(), "the gateway has left the host");
    call(&format!("/endpoints/{gateway}/attach"), r#"{"SystemType":"Host"}"#);
    session.call(Function::Delete(Kind::Endpoint), Args { id: Some(gateway), ..Args::default() }).unwrap();
    assert!(same() && !by_host(), "the gateway is deleted");
    session.call(Function::Delete(Kind::Endpoint), Args { id: Some(pod), ..Args::default() }).unwrap();
    assert!(same());
}

#[test]
fn any_calls_keep_the_state_consistent() {
    let done: usize = (0..SEEDS).map(run).sum();
    assert!(done > SEEDS as usize * CALLS / 5, "only {done} calls changed something");
}

#[test]
fn any_text_at_any_call_is_answered() {
    let kernel = hns_sim::kernel::NoKernel { management: Some([10, 240, 0, 11].into()), survived: false };
    let simulator = Simulator::new(Box::new(kernel), Switches::of(HnsVersion::new(15, 5)), None).unwrap();
    let session = simulator.session();
    let mut draws = Draws(7);
    let paths = ["/networks/", "/endpoints/", "/policylists/", "/namespaces/", "/endpointstats/", "/globals/version", "/warp"];
    for round in 0..1500 {
        let mut document = match draws.below(5) {
            0 => network(&mut draws),
            1 => endpoint(&mut draws),
            2 => balancer(&mut draws, &simulator.state()),
            3 => {
                json!({"ID": id(draws.below(9)), "References": ["/endpoints/x"], "Policies": [{"Type": "ELB", "VIPs": ["10.0.0.1"], "Protocol": 6}]})
            }
            _ => json!({"Filter": "{\"Name\":7}", "SchemaVersion": {"Major": draws.below(3)}, "Flags": 1}),
        };
        for _ in 0..draws.below(4) {
            spoil(&mut draws, &mut document);
        }
        let mut text = document.to_string();
        if draws.now_and_then(6) {
            text.truncate(draws.below(text.len() + 1));
        }
        let all: Vec<Function> = Function::all().collect();
        let function = *draws.one(&all);
        let handle = draws.below(4) as u64;
        let path = format!("{}{}", draws.one(&paths), *draws.one(&["", "x", "10000000-0000-4000-8000-000000000010", "a/b/c"]));
        let args = Args {
            id: Some(id(draws.below(9))),
            handle: Some(Handle(handle)),
            network: Some(Handle(handle)),
            settings: Some(&text),
            query: Some(&text),
            method: Some(*draws.one(&["GET", "POST", "DELETE", "PATCH"])),
            path: Some(&path),
        };
        let before = simulator.state();
        let outcome = session.call(function, args);
        if outcome.is_err() {
            assert!(simulator.state() == before, "round {round}: {function} {text}");
        }
        check(&simulator.state());
    }
}
