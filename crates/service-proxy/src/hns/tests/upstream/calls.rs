//! The cases of hns_test.go: single operations, and what is known of endpoints. Eleven of the twelve are skipped upstream, for want of an HNS.

use super::*;
use crate::hns::calls::{Answer, Call, Calls};
use crate::hns::document::{NetworkContext, Remote, Shape};
use crate::hns::plan::Put;

fn calls(host: &Host) -> Calls {
    Calls::new(host.client.clone())
}

fn balancer(id: Guid, endpoint: Guid) -> Box<HostComputeLoadBalancer> {
    let document = HostComputeLoadBalancer::new(VIP.parse().ok(), hcn::Protocol::TCP, 80, 80, vec![endpoint]);
    Box::new(HostComputeLoadBalancer { id, ..document })
}

fn create(document: Box<HostComputeLoadBalancer>) -> Call {
    Call::Put { how: Put::Create, document, check: false }
}

/// TestGetNetworkByName
#[tokio::test]
async fn the_network_is_found_by_its_name() {
    let host = Host::new(OLD).await;
    let Answer::Network(Some(network), features) = calls(&host).make(&Call::Find("pods".into())).unwrap() else { panic!("no network") };
    assert_eq!((network.id, features.dsr), (host.network, true));
    assert!(matches!(calls(&host).make(&Call::Find("other".into())), Ok(Answer::Network(None, _))));
    parity::proved(parity::Hns, &["TestGetNetworkByName"]);
}

/// TestGetAllEndpointsByNetwork, TestGetEndpointByID, TestGetEndpointByIpAddressAndName
#[tokio::test]
async fn endpoint_is_found_by_id_by_each_address_and_by_name() {
    let mut case = Case::dual(OLD).await;
    let pod = case.host.dual_endpoint("pod", "192.168.4.4", "fd00:4::4").await;
    case.proxy.rest().await;
    let known = case.proxy.hns.engine().mirror();
    assert_eq!(["192.168.4.4", "fd00:4::4"].map(|ip| known.local(ip.parse().unwrap())), [Some(pod); 2]);
    let root = known.local("192.168.4.3".parse().unwrap());
    assert!(root.is_some() && known.root() == root, "the host's own is known by its name");
    let Answer::Endpoint(Some(read)) = calls(&case.host).make(&Call::ReadEndpoint(pod)).unwrap() else { panic!("no endpoint") };
    assert_eq!((read.id, read.name.as_str(), read.ip_configurations.len()), (pod, "pod", 2));
    parity::proved(parity::Hns, &["TestGetAllEndpointsByNetwork", "TestGetEndpointByID", "TestGetEndpointByIpAddressAndName"]);
}

/// TestGetAllEndpointsByNetworkWithDupEP
#[tokio::test]
async fn local_endpoint_replaces_our_duplicate_at_both_addresses() {
    let mut case = Case::dual(OLD).await;
    let both = json!({"type": "ClusterIP", "clusterIPs": [VIP, "fd00:96::41"], "ports": [{"name": "p80", "port": 80}]});
    let elsewhere = |ip: &str| slice_of(80, vec![json!({"addresses": [ip], "nodeName": "there"})]);
    case.proxy.say("svc1", service(both), &[elsewhere("192.168.4.4"), elsewhere("fd00:4::4")]).await;
    assert_eq!(case.host.remotes().await, ["192.168.4.4", "fd00:4::4"]);
    let pod = case.host.dual_endpoint("pod", "192.168.4.4", "fd00:4::4").await;
    let known = |engine: &Engine| engine.is_idle() && engine.mirror().local("fd00:4::4".parse().unwrap()).is_some();
    case.proxy.until("the pod to be found", known).await;
    assert_eq!(case.host.remotes().await.len(), 0);
    assert!(case.host.balancers().await.values().all(|balancer| balancer.host_compute_endpoints == [pod]));
    parity::proved(parity::Hns, &["TestGetAllEndpointsByNetworkWithDupEP"]);
}

/// TestCreateEndpointLocal, TestCreateEndpointRemote, TestDeleteEndpoint
#[tokio::test]
async fn endpoints_read_back_as_created_and_disappear_when_deleted() {
    let host = Host::overlay(OLD).await;
    let network = host.client.network(&host.network).await.unwrap().unwrap();
    let network = NetworkContext::of(&network, &host.overlay_settings()).unwrap();
    let calls = calls(&host);
    let remote = Remote::Backend("192.168.2.3".parse().unwrap());
    let local = Remote::SourceVip("192.168.4.2".parse().unwrap());
    for (remote, mac, behind) in [(&remote, "02-11-C0-A8-02-03", "10.0.0.3".parse().ok()), (&local, "00-15-5D-0A-0B-0C", None)] {
        let id = remote.id(UID, &network);
        let document = HostComputeEndpoint { id, ..remote.document(&network) };
        assert_eq!(calls.make(&Call::CreateEndpoint(host.network, Box::new(document))), Ok(Answer::Done));
        let Answer::Endpoint(Some(read)) = calls.make(&Call::ReadEndpoint(id)).unwrap() else { panic!("no endpoint") };
        assert_eq!((read.ip(), read.mac_address.as_str()), (Some(remote.address()), mac));
        assert_eq!(read.policies.iter().find_map(hcn::EndpointPolicy::as_provider_address), behind);
        assert_eq!(read.is_remote(), behind.is_some());
        assert_eq!(calls.make(&Call::DeleteEndpoint(id)), Ok(Answer::Done));
        assert_eq!(calls.make(&Call::ReadEndpoint(id)), Ok(Answer::Endpoint(None)));
        assert_eq!(calls.make(&Call::DeleteEndpoint(id)), Ok(Answer::Done), "what is gone needs no second try");
    }
    parity::proved(parity::Hns, &["TestCreateEndpointLocal", "TestCreateEndpointRemote", "TestDeleteEndpoint"]);
}

/// TestGetLoadBalancerNew, TestDeleteLoadBalancer
#[tokio::test]
async fn load_balancers_read_back_as_created_and_disappear_when_deleted() {
    let host = Host::new(OLD).await;
    let pod = host.pod("192.168.4.4").await;
    let (calls, id) = (calls(&host), Guid::random());
    assert_eq!(calls.make(&create(balancer(id, pod))), Ok(Answer::Done));
    let Answer::Balancer(Some(read)) = calls.make(&Call::ReadBalancer(id)).unwrap() else { panic!("no load balancer") };
    assert_eq!((read.id, Shape::of(&read)), (id, Shape::of(&balancer(id, pod))));
    assert_eq!(calls.make(&Call::DeleteBalancer(id)), Ok(Answer::Done));
    assert_eq!(calls.make(&Call::ReadBalancer(id)), Ok(Answer::Balancer(None)));
    assert_eq!(calls.make(&Call::DeleteBalancer(id)), Ok(Answer::Done));
    parity::proved(parity::Hns, &["TestGetLoadBalancerNew", "TestDeleteLoadBalancer"]);
}

/// TestGetLoadBalancerExisting
#[tokio::test]
async fn existing_load_balancer_is_adopted_unchanged() {
    let mut case = Case::bridge(OLD).await;
    case.proxy.say("svc1", service(json!({})), &[slice(80, &["192.168.2.3"])]).await;
    let before = case.host.balancers().await;
    case.host.forget_calls();
    case.proxy = case.host.proxy();
    case.proxy.say("svc1", service(json!({})), &[slice(80, &["192.168.2.3"])]).await;
    assert_eq!(case.host.balancers().await, before);
    let calls = case.host.calls();
    assert!(calls.iter().all(|call| !call.call.starts_with("HcnCreate") && !call.call.starts_with("HcnDelete")), "{calls:#?}");
    parity::proved(parity::Hns, &["TestGetLoadBalancerExisting"]);
}

/// TestHashEndpoints, and §3.2.10: two backends of one address cancelled each other out of upstream's hash.
#[tokio::test]
async fn backend_order_is_irrelevant_and_no_backend_cancels_another() {
    let ids: Vec<Guid> = (0..3).map(|_| Guid::random()).collect();
    let shape = |ids: &[Guid]| Shape::of(&HostComputeLoadBalancer::new(VIP.parse().ok(), hcn::Protocol::TCP, 80, 80, ids.to_vec()));
    let [a, b, c] = ids[..] else { panic!("three") };
    assert!(shape(&[a, b, c]).is_met_by(&shape(&[c, a, b])));
    for other in [&[a, b][..], &[b, c], &[c]] {
        assert!(!shape(&[a, b, c]).is_met_by(&shape(other)));
    }
    let mut case = Case::bridge(OLD).await;
    let two_ports = json!({"ports": [{"name": "p80", "port": 80, "protocol": "TCP"}, {"name": "p80", "port": 8080, "protocol": "TCP"}]});
    case.proxy.say("svc1", service(json!({})), &[slice(80, &["192.168.2.3", "192.168.2.4"]).merged(two_ports)]).await;
    assert_eq!(case.host.seen().await[0], "10.20.30.41:80/tcp -> 192.168.2.3 192.168.2.4");
    case.proxy.say("svc1", service(json!({})), &[slice(80, &["192.168.2.4"])]).await;
    assert_eq!(case.host.seen().await[0], "10.20.30.41:80/tcp -> 192.168.2.4");
    assert_eq!(case.host.remotes().await, ["192.168.2.4"]);
    parity::proved(parity::Hns, &["TestHashEndpoints", "Two ports of one pod cancel each other out"]);
}
