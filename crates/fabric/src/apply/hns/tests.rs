use hcn::owned_id;

use super::*;

fn desired() -> Desired {
    Desired::new("uid", "mullion", "Ethernet", "192.168.1.0/24".parse().unwrap())
}

fn existing(change: impl FnOnce(&mut HostComputeNetwork)) -> HostComputeNetwork {
    let mut network = desired().network;
    network.id = desired().network_id;
    change(&mut network);
    network
}

#[test]
fn step_follows_the_observed_network() {
    assert_eq!(plan(None, &desired()).unwrap(), NetworkStep::Create);
    assert_eq!(plan(Some(&existing(|_| {})), &desired()).unwrap(), NetworkStep::Keep);
    let moved = existing(|n| n.ipams[0].subnets[0].ip_address_prefix = "192.168.7.0/24".into());
    assert_eq!(plan(Some(&moved), &desired()).unwrap(), NetworkStep::Recreate { why: "its subnet is 192.168.7.0/24, not 192.168.1.0/24".into() });
    let both = desired().with_subnet("fd00:1::/64".parse().unwrap());
    let why = "its subnet is 192.168.1.0/24, not 192.168.1.0/24 and fd00:1::/64".to_owned();
    assert_eq!(plan(Some(&existing(|_| {})), &both).unwrap(), NetworkStep::Recreate { why });
    let turned = existing(|n| {
        n.ipams = both.network.ipams.clone();
        n.ipams[0].subnets.reverse();
    });
    assert_eq!(plan(Some(&turned), &both).unwrap(), NetworkStep::Keep, "in any order");
    let endpoint = HostComputeEndpoint { host_compute_network: both.network_id, state: EndpointState::ATTACHED, ..both.endpoint.clone().unwrap() };
    assert_eq!(plan_endpoint(Some(&endpoint), both.network_id, both.endpoint.as_ref().unwrap()), EndpointStep::Keep);
    assert_eq!(plan_endpoint(Some(&endpoint), both.network_id, &desired().endpoint.unwrap()), EndpointStep::Recreate);
    let overlay = existing(|n| n.network_type = NetworkType::Overlay);
    assert!(matches!(plan(Some(&overlay), &desired()).unwrap(), NetworkStep::Recreate { .. }));
}

#[test]
fn own_network_under_an_id_of_the_service_is_kept_or_replaced() {
    let renamed = existing(|n| n.id = Guid::random());
    assert_eq!(plan(Some(&renamed), &desired()).unwrap(), NetworkStep::Keep);
    let moved = existing(|n| {
        n.id = Guid::random();
        n.ipams[0].subnets[0].ip_address_prefix = "192.168.7.0/24".into();
    });
    assert!(matches!(plan(Some(&moved), &desired()).unwrap(), NetworkStep::Recreate { .. }));
    let other_cluster = existing(|n| n.id = owned_id("other", "network", "mullion"));
    assert!(matches!(plan(Some(&other_cluster), &desired()), Err(HnsError::Foreign { .. })));
}

#[test]
fn foreign_network_is_refused_with_a_way_out() {
    let foreign = existing(|n| {
        n.id = Guid::random();
        n.owner = "docker".into();
    });
    let text = plan(Some(&foreign), &desired()).unwrap_err().to_string();
    assert!(text.contains("not ours") && text.contains("docker") && text.contains("choose another name"), "{text}");
    let of_type = existing(|n| (n.id, n.network_type) = (Guid::random(), NetworkType::Transparent));
    let of_type = HostComputeNetwork { owner: String::new(), ..of_type };
    let text = plan(Some(&of_type), &desired()).unwrap_err().to_string();
    assert!(text.contains("\"mullion\" of type Transparent exists and is not ours"), "{text}");
}

fn simulator() -> hns_sim::Simulator {
    use hns_sim::{Simulator, kernel::NoKernel, switches::Switches};
    let kernel = NoKernel { management: Some("10.240.0.12".parse().unwrap()), survived: true };
    Simulator::new(Box::new(kernel), Switches::of(hcn::HnsVersion::new(13, 3)), None).unwrap()
}

fn simulated() -> HcnClient {
    HcnClient::new(simulator().session())
}

fn placed() -> Desired {
    desired().with_placeholder("uid", "Ethernet", &["192.168.0.0/16".parse().unwrap()])
}

/// Names of networks, sorted.
async fn names(client: &HcnClient) -> Vec<String> {
    let mut names: Vec<_> = client.networks().await.unwrap().into_iter().map(|network| network.name).collect();
    names.sort();
    names
}

#[tokio::test]
async fn placeholder_is_made_first_and_once_and_outlives_the_pods_network() {
    let simulator = simulator();
    let client = HcnClient::new(simulator.session());
    // Without it, these calls would cut the host off.
    assert_eq!(ensure(&client, &placed(), || {}).await.unwrap(), Ensured { written: true, made_switch: true });
    assert_eq!(names(&client).await, ["mullion", "mullion_uplink"]);
    assert_eq!(ensure(&client, &placed(), never).await.unwrap(), Ensured::default());
    let moved = Desired::new("uid", "mullion", "Ethernet", "192.168.9.0/24".parse().unwrap()).with_placeholder("uid", "Ethernet", &[]);
    assert_eq!(ensure(&client, &moved, || {}).await.unwrap(), Ensured { written: true, made_switch: false });
    // Someone else's network keeps the switch as well.
    for network in client.network_ids().await.unwrap() {
        client.delete_network(&network).await.unwrap();
    }
    let subnet = Subnet::new("10.77.0.0/24".parse().unwrap(), "10.77.0.1".parse().unwrap());
    client.create_network(Guid::random(), &HostComputeNetwork::new("External", NetworkType::L2Bridge, subnet)).await.unwrap();
    assert_eq!(ensure(&client, &placed(), || {}).await.unwrap(), Ensured { written: true, made_switch: false });
    assert_eq!(names(&client).await, ["External", "mullion"]);
    // The pods' network goes with a boot, for HNS may keep half of it; what keeps the switch stays.
    let network = client.network_by_name("External").await.unwrap().unwrap().id;
    client.delete_network(&network).await.unwrap();
    ensure(&client, &placed(), || {}).await.unwrap();
    simulator.restart(hns_sim::admin::Restart { mode: "reboot".parse().unwrap(), ..Default::default() }).unwrap();
    assert_eq!(names(&client).await, ["mullion_uplink"]);
    assert_eq!(ensure(&client, &placed(), || {}).await.unwrap(), Ensured { written: true, made_switch: false });
}

#[test]
fn placeholder_has_a_subnet_of_its_own() {
    let of = |taken: &[&str]| {
        let taken: Vec<IpNet> = taken.iter().map(|net| net.parse().unwrap()).collect();
        let (_, network) = desired().with_placeholder("uid", "Ethernet", &taken).placeholder.unwrap();
        network.subnets().next().unwrap().ip_address_prefix.clone()
    };
    assert_eq!(of(&["10.244.0.0/16", "10.96.0.0/12"]), "192.168.255.0/30");
    assert_eq!(of(&["192.168.0.0/16", "10.96.0.0/12"]), "172.31.255.252/30");
    assert_eq!(of(&["192.168.0.0/16", "172.16.0.0/12"]), "10.255.255.252/30");
    assert_eq!(of(&["192.168.0.0/16", "172.16.0.0/12", "10.0.0.0/8"]), "198.18.255.252/30");
    let overlay = Desired::overlay("uid", "mullion", "Ethernet", "192.168.1.0/24".parse().unwrap(), 4096).with_placeholder("uid", "Ethernet", &[]);
    let (_, network) = overlay.placeholder.unwrap();
    assert_eq!(network.network_type, NetworkType::Overlay);
    assert!(format!("{:?}", network.subnets().next().unwrap().policies).contains("9999"), "overlays need a segment");
}

#[tokio::test]
async fn network_without_an_address_of_the_host_is_not_ready() {
    let simulator = simulator();
    let client = HcnClient::new(simulator.session());
    for (fault, found) in [("net-late-management-ip", "none"), ("net-apipa", "169.254.17.1")] {
        simulator.add_fault(fault.parse().unwrap()).unwrap();
        for pass in ["made", "found"] {
            let error = ensure(&client, &placed(), || {}).await.unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, HnsError::NoAddress { .. }) && text.contains(found) && text.contains("adapter Ethernet"), "{pass}: {text}");
        }
        simulator.clear_faults();
        ensure(&client, &placed(), never).await.unwrap();
    }
}

#[tokio::test]
async fn network_that_a_boot_left_half_there_is_made_anew_unless_pods_are_on_it() {
    let simulator = simulator();
    let client = HcnClient::new(simulator.session());
    ensure(&client, &placed(), || {}).await.unwrap();
    client.delete_endpoint(&placed().endpoint_id).await.unwrap();
    simulator.add_fault("fail-call=0x80070490,call=HcnCreateEndpoint,count=1".parse().unwrap()).unwrap();
    ensure(&client, &placed(), || {}).await.unwrap_err();
    assert_eq!(names(&client).await, ["mullion_uplink"]);
    ensure(&client, &placed(), || {}).await.unwrap();
    let pod = HostComputeEndpoint::local("pod", "192.168.1.9/24".parse().unwrap(), None);
    client.create_endpoint(&placed().network_id, Guid::random(), &pod).await.unwrap();
    client.delete_endpoint(&placed().endpoint_id).await.unwrap();
    simulator.add_fault("fail-call=0x80070490,call=HcnCreateEndpoint,count=1".parse().unwrap()).unwrap();
    ensure(&client, &placed(), || {}).await.unwrap_err();
    assert_eq!(names(&client).await, ["mullion", "mullion_uplink"], "its pods keep it");
    // The network cannot be created for a while after a boot.
    simulator.restart(hns_sim::admin::Restart { mode: "reboot".parse().unwrap(), ..Default::default() }).unwrap();
    simulator.add_fault("net-create-after-reboot,count=2".parse().unwrap()).unwrap();
    ensure(&client, &placed(), || {}).await.unwrap_err();
    ensure(&client, &placed(), || {}).await.unwrap_err();
    ensure(&client, &placed(), || {}).await.unwrap();
    assert_eq!(client.endpoint(&placed().endpoint_id).await.unwrap().unwrap().state, EndpointState::ATTACHED);
}

#[tokio::test]
async fn network_is_made_once_and_the_host_endpoint_is_repaired() {
    let client = simulated();
    let mut hidden = 0;
    assert!(ensure(&client, &desired(), || hidden += 1).await.unwrap().written);
    assert!(!ensure(&client, &desired(), || hidden += 1).await.unwrap().written, "a second pass writes nothing");
    assert_eq!(hidden, 1);
    let endpoint = client.endpoint(&desired().endpoint_id).await.unwrap().unwrap();
    assert_eq!((endpoint.ip(), endpoint.state), (Some("192.168.1.2".parse().unwrap()), EndpointState::ATTACHED));
    client.delete_endpoint(&desired().endpoint_id).await.unwrap();
    assert!(ensure(&client, &desired(), || hidden += 1).await.unwrap().written);
    assert!(client.endpoint(&desired().endpoint_id).await.unwrap().is_some());
    assert_eq!(hidden, 2, "without the host's endpoint pods have no gateway");
    let moved = Desired::new("uid", "mullion", "Ethernet", "192.168.9.0/24".parse().unwrap());
    assert!(ensure(&client, &moved, || hidden += 1).await.unwrap().written);
    assert_eq!(client.endpoint(&moved.endpoint_id).await.unwrap().unwrap().ip(), Some("192.168.9.2".parse().unwrap()));
    let other_cluster = Desired::new("other", "mullion", "Ethernet", "192.168.9.0/24".parse().unwrap());
    assert!(matches!(ensure(&client, &other_cluster, || hidden += 1).await, Err(HnsError::Foreign { .. })));
    assert_eq!(hidden, 3, "what is refused changes nothing");
}

fn overlay(peers: &[(&str, &str, &str)]) -> Desired {
    let route = |(prefix, host, mac): &(&str, &str, &str)| RemoteSubnetRoute {
        destination_prefix: (*prefix).into(),
        isolation_id: 4096,
        provider_address: (*host).into(),
        distributed_router_mac_address: (*mac).into(),
        ..RemoteSubnetRoute::default()
    };
    Desired::overlay("uid", "mullion", "Ethernet", "192.168.1.0/24".parse().unwrap(), 4096).with_remote_subnets(peers.iter().map(route))
}

fn never() {
    panic!("pods keep their network");
}

#[tokio::test]
async fn overlay_of_another_segment_is_made_anew() {
    let client = simulated();
    ensure(&client, &overlay(&[]), || {}).await.unwrap();
    let other = Desired::overlay("uid", "mullion", "Ethernet", "192.168.1.0/24".parse().unwrap(), 4100);
    let network = client.network_by_name("mullion").await.unwrap().unwrap();
    assert_eq!(plan(Some(&network), &other).unwrap(), NetworkStep::Recreate { why: "its VNI is 4096, not 4100".into() });
    assert!(ensure(&client, &other, || {}).await.unwrap().written);
    assert!(!ensure(&client, &other, never).await.unwrap().written, "once");
}

#[tokio::test]
async fn remote_subnets_of_an_overlay_follow_without_touching_its_pods() {
    let client = simulated();
    let known = async || {
        let network = client.network_by_name("mullion").await.unwrap().unwrap();
        assert!(network.policies.iter().any(|policy| policy.as_dr_mac_address().is_some()), "HNS chose a MAC");
        let routes = network.policies.iter().filter_map(NetworkPolicy::as_remote_subnet_route);
        routes.map(|route| format!("{} {}", route.destination_prefix, route.provider_address)).collect::<Vec<_>>()
    };
    let two = [("192.168.2.0/24", "10.240.0.2", "00-15-5D-00-00-02"), ("192.168.3.0/24", "10.240.0.3", "00-15-5D-00-00-03")];
    assert!(ensure(&client, &overlay(&two[..1]), || {}).await.unwrap().written);
    assert!(!ensure(&client, &overlay(&two[..1]), never).await.unwrap().written, "a second pass writes nothing");
    assert!(ensure(&client, &overlay(&two), never).await.unwrap().written);
    assert_eq!(known().await, ["192.168.2.0/24 10.240.0.2", "192.168.3.0/24 10.240.0.3"]);
    let moved = [("192.168.2.0/24", "10.240.0.9", "00-15-5D-00-00-02"), two[1]];
    assert!(ensure(&client, &overlay(&moved), never).await.unwrap().written);
    assert_eq!(known().await, ["192.168.3.0/24 10.240.0.3", "192.168.2.0/24 10.240.0.9"]);
    assert!(ensure(&client, &overlay(&[]), never).await.unwrap().written);
    assert!(known().await.is_empty());
}
