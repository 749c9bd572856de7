//! Cost of the model at the size of a large cluster: it stays small and does not grow with the number of objects.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hcn::document::*;
use hcn::{Args, Function, Guid, Handle, HnsVersion, HostNetwork, Kind, owned_id};
use hns_sim::Simulator;
use hns_sim::kernel::NoKernel;
use hns_sim::switches::Switches;

const BALANCERS: usize = 10_000;
const REMOTES: usize = 30_000;

/// What the service may keep of memory for all of them.
const MOST_MEMORY: usize = 60 << 20;

fn address(number: usize) -> std::net::Ipv4Addr {
    (u32::from_be_bytes([10, 64, 0, 0]) + number as u32).into()
}

fn create(session: &Arc<dyn HostNetwork>, kind: Kind, id: Guid, network: Option<Handle>, text: &str) -> Handle {
    let args = Args { id: Some(id), network, settings: Some(text), ..Args::default() };
    session.call(Function::Create(kind), args).unwrap().handle.unwrap()
}

fn close(session: &Arc<dyn HostNetwork>, kind: Kind, handle: Handle) {
    session.call(Function::Close(kind), Args { handle: Some(handle), ..Args::default() }).unwrap();
}

/// Bytes of memory that the process holds, where the system says it.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    status.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}

#[test]
fn ten_thousand_services_are_small_and_each_costs_the_same() {
    let before = resident();
    let kernel = NoKernel { management: Some([10, 240, 0, 11].into()), survived: false };
    let simulator = Simulator::new(Box::new(kernel), Switches::of(HnsVersion::new(15, 5)), None).unwrap();
    let session = simulator.session();
    let subnet = r#"{"IpAddressPrefix":"192.168.1.0/24","Policies":[{"Type":"VSID","Settings":{"IsolationId":4096}}],"Routes":[{"NextHop":"192.168.1.1","DestinationPrefix":"0.0.0.0/0"}]}"#;
    let text = format!(r#"{{"Name":"o","Type":"Overlay","Ipams":[{{"Subnets":[{subnet}]}}],"SchemaVersion":{{"Major":2}}}}"#);
    let network = create(&session, Kind::Network, owned_id("scale", "network", "o"), None, &text);
    let ids: Vec<Guid> = (0..REMOTES).map(|number| owned_id("scale", "endpoint", &number.to_string())).collect();
    let began = Instant::now();
    for (number, id) in ids.iter().enumerate() {
        let host = EndpointPolicy::provider_address([10, 240, 1, (number % 250) as u8].into());
        let document = to_text(&HostComputeEndpoint::remote(address(number).into()).with_policy(host));
        let handle = create(&session, Kind::Endpoint, *id, Some(network), &document);
        close(&session, Kind::Endpoint, handle);
    }
    println!("remote endpoint: {:?}", began.elapsed() / REMOTES as u32);
    let mut tenths = Vec::new();
    for tenth in 0..10 {
        let began = Instant::now();
        for number in tenth * BALANCERS / 10..(tenth + 1) * BALANCERS / 10 {
            let backends = (0..3).map(|backend| ids[(number * 3 + backend) % REMOTES]).collect();
            let vip = address(1 << 20 | number).into();
            let mut balancer = HostComputeLoadBalancer::new(Some(vip), Protocol::TCP, 80, 8080, backends);
            balancer.flags = LoadBalancerFlags::DSR;
            let handle = create(&session, Kind::LoadBalancer, owned_id("scale", "lb", &number.to_string()), None, &to_text(&balancer));
            close(&session, Kind::LoadBalancer, handle);
        }
        tenths.push(began.elapsed() / (BALANCERS / 10) as u32);
    }
    let held = resident().saturating_sub(before);
    println!("load balancer: {tenths:?}; memory {} MB", held >> 20);
    assert!(held <= MOST_MEMORY, "{held} bytes for {BALANCERS} load balancers and {REMOTES} remote endpoints");
    let (first, last) = (tenths[0], tenths[9]);
    assert!(last <= first * 3 + Duration::from_millis(1), "a load balancer costs {first:?} at the start and {last:?} at the end");
    let began = Instant::now();
    let list = session.call(Function::Enumerate(Kind::LoadBalancer), Args::default()).unwrap().result.unwrap();
    let took = began.elapsed();
    println!("enumerate: {took:?}");
    assert_eq!(serde_json::from_str::<Vec<Guid>>(&list).unwrap().len(), BALANCERS);
    let began = Instant::now();
    let query = r#"{"Filter":"{\"Name\":\"nobody\"}","SchemaVersion":{"Major":2}}"#;
    for _ in 0..100 {
        session.call(Function::Enumerate(Kind::Endpoint), Args { query: Some(query), ..Args::default() }).unwrap();
    }
    println!("a name that nobody has: {:?}", began.elapsed() / 100);
}
