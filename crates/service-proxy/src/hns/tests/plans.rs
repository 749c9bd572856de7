//! Plans from a table and a mirror, as text.

use hcn::document::DistributionType;
use hcn::{LoadBalancerFlags, PortMappingFlags};

use super::*;
use crate::hns::document::{Capabilities, NetworkContext, Remote, Shape};
use crate::hns::mirror::{BalancerState, Endpoint, Mirror};
use crate::hns::plan::{Context, Plan, Step, plan};

fn network() -> NetworkContext {
    NetworkContext { node_ips: vec!["10.0.0.1".parse().unwrap()], ..NetworkContext::default() }
}

fn overlay() -> NetworkContext {
    let subnets = vec![("192.168.2.0/24".parse().unwrap(), "10.0.0.3".parse().unwrap())];
    NetworkContext { overlay: true, source_vip: Some("192.168.4.2".parse().unwrap()), host_mac: "00-15-5D-0A-0B-0C".into(), subnets, ..network() }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn with_pod(address: &str) -> Mirror {
    let mut mirror = Mirror::default();
    mirror.put_endpoint(Guid::random(), Endpoint::Local([ip(address)].into()), 1);
    mirror
}

fn made(mirror: &Mirror, network: &NetworkContext, key: &VipKey, vip: Option<&Vip>, capabilities: Capabilities) -> Plan {
    plan(&Context { cluster_uid: UID, mirror, network, capabilities }, key, vip)
}

fn text(mirror: &Mirror, vip: Option<&Vip>, capabilities: Capabilities) -> String {
    made(mirror, &network(), &web(), vip, capabilities).display(&web()).to_string()
}

/// Carries a plan out on the mirror alone, as a service that refuses nothing would.
fn carry_out(mirror: &mut Mirror, plan: &Plan) {
    let id = load_balancer_id(UID, &web());
    for step in plan.steps.clone() {
        match step {
            Step::CreateEndpoint { id, remote } => mirror.put_endpoint(id, Endpoint::Ours(remote), 1),
            Step::Put { shape, .. } => mirror.put(id, web(), BalancerState::Known(shape), 1),
            Step::Delete => drop(mirror.remove(&id, &web())),
            Step::Read | Step::ReadEndpoint { .. } => {}
        }
    }
}

#[test]
fn plan_follows_a_vip_through_its_life() {
    let modify = Capabilities { modify: true, ..Capabilities::default() };
    let mut mirror = with_pod("192.168.4.5");
    let first = vip(Kind::ClusterIp, &[("192.168.2.3", 8080, false), ("192.168.2.4", 8080, false), ("192.168.4.5", 8080, true)]);
    insta::assert_snapshot!(text(&mirror, Some(&first), modify), @r"
    create remote endpoint 192.168.2.3
    create remote endpoint 192.168.2.4
    create load balancer 10.96.0.1:80/tcp -> 3 endpoints at 8080
    ");
    let plan = made(&mirror, &network(), &web(), Some(&first), modify);
    carry_out(&mut mirror, &plan);
    assert_eq!(text(&mirror, Some(&first), modify), "", "a second look finds nothing to do");
    let second = vip(Kind::ClusterIp, &[("192.168.2.4", 8080, false), ("192.168.2.7", 8080, false)]);
    insta::assert_snapshot!(text(&mirror, Some(&second), modify), @r"
    create remote endpoint 192.168.2.7
    modify load balancer 10.96.0.1:80/tcp -> 2 endpoints at 8080
    ");
    insta::assert_snapshot!(text(&mirror, Some(&second), Capabilities::default()), @r"
    create remote endpoint 192.168.2.7
    replace load balancer 10.96.0.1:80/tcp -> 2 endpoints at 8080
    ");
    let port = vip(Kind::ClusterIp, &[("192.168.2.4", 9090, false)]);
    insta::assert_snapshot!(text(&mirror, Some(&port), modify), @"replace load balancer 10.96.0.1:80/tcp -> 1 endpoints at 9090");
    insta::assert_snapshot!(text(&mirror, Some(&vip(Kind::ClusterIp, &[])), modify), @"delete load balancer 10.96.0.1:80/tcp");
    insta::assert_snapshot!(text(&mirror, None, modify), @"delete load balancer 10.96.0.1:80/tcp");
    mirror.doubt(load_balancer_id(UID, &web()), web(), &[], 2);
    insta::assert_snapshot!(text(&mirror, Some(&first), modify), @"read load balancer 10.96.0.1:80/tcp");
}

#[test]
fn dead_endpoints_leave_load_balancers_without_a_replacement() {
    let mut mirror = with_pod("192.168.4.5");
    let both = vip(Kind::ClusterIp, &[("192.168.2.3", 80, false), ("192.168.4.5", 80, true)]);
    let plan = made(&mirror, &network(), &web(), Some(&both), Capabilities::default());
    carry_out(&mut mirror, &plan);
    let pod = mirror.local(ip("192.168.4.5")).unwrap();
    mirror.remove_endpoint(&pod);
    assert_eq!(mirror.invalidate(&pod), [web()]);
    insta::assert_snapshot!(text(&mirror, Some(&both), Capabilities { modify: true, ..Capabilities::default() }), @r"
    modify load balancer 10.96.0.1:80/tcp -> 1 endpoints at 80
    wait 10.96.0.1:80/tcp: the pod at 192.168.4.5 has no endpoint in HNS yet
    ");
}

#[test]
fn local_endpoint_wins_over_the_slice_and_foreign_remote_endpoint_is_reused() {
    let mut mirror = with_pod("192.168.4.5");
    mirror.put_endpoint(Guid::random(), Endpoint::Foreign([ip("192.168.2.3")].into()), 1);
    let vip = vip(Kind::ClusterIp, &[("192.168.4.5", 80, false), ("192.168.2.3", 80, false)]);
    assert_eq!(text(&mirror, Some(&vip), Capabilities::default()), "create load balancer 10.96.0.1:80/tcp -> 2 endpoints at 80\n");
}

#[test]
fn plan_reports_missing_features_of_hns() {
    let mut asking = vip(Kind::LoadBalancer, &[("192.168.2.3", 80, false), ("192.168.2.4", 8080, false), ("192.168.2.5", 8080, false)]);
    asking.affinity = Some(60);
    asking.sources = Some(["203.0.113.0/24".parse().unwrap()].into());
    asking.keep_client = true;
    asking.inside = Some(backends(&[("192.168.2.9", 80, false)]));
    let gaps =
        |capabilities| made(&Mirror::default(), &network(), &web(), Some(&asking), capabilities).gaps.iter().map(Gap::name).collect::<Vec<_>>();
    assert_eq!(gaps(Capabilities::default()), ["NoSessionAffinity", "NoSourceRanges", "NoClientAddress", "LocalBackendsOnly", "SeveralTargetPorts"]);
    let text = text(&Mirror::default(), Some(&asking), Capabilities::default());
    assert!(text.contains("create load balancer 10.96.0.1:80/tcp -> 2 endpoints at 8080"), "the port that most have: {text}");
    let all = Capabilities { affinity: true, dsr: true, ..Capabilities::default() };
    assert_eq!(gaps(all), ["NoAffinityTimeout", "NoSourceRanges", "LocalBackendsOnly", "SeveralTargetPorts"]);
    let kept = Vip { preserve_destination: true, ..vip(Kind::LoadBalancer, &[("192.168.2.3", 80, false)]) };
    let gaps = |capabilities| made(&Mirror::default(), &network(), &web(), Some(&kept), capabilities).gaps;
    assert_eq!((gaps(Capabilities::default())[0].name(), gaps(all).len()), ("NoPreservedDestination", 0));
    let host = vip(Kind::ClusterIp, &[("10.0.0.1", 80, true), ("192.168.2.3", 80, false)]);
    let plan = made(&Mirror::default(), &network(), &web(), Some(&host), all);
    assert_eq!((plan.gaps[0].name(), plan.missing_endpoints.len(), plan.steps.len()), ("HostNetworkBackend", 0, 2));
    parity::proved(
        parity::Mode::Hns,
        &[
            "#106636",
            "Session affinity's timeout",
            "externalTrafficPolicy Local: clients inside the cluster reach every backend",
            "loadBalancerSourceRanges",
            "Several target ports behind one port",
        ],
    );
}

/// As upstream, which runs no IPv6 proxy there: nothing is asked of HNS, and what is there from before goes.
#[test]
fn ipv6_is_left_out_where_hns_has_none() {
    let six = VipKey { address: VipAddress::Ip(ip("fd00:96::1")), protocol: Protocol::Tcp, port: 80 };
    let vip = vip(Kind::ClusterIp, &[("fd00:1::3", 80, false)]);
    let has = Capabilities { ipv6: true, ..Capabilities::default() };
    let (bridge, overlay) = (network(), overlay());
    for (network, capabilities, served) in [(&bridge, has, true), (&bridge, Capabilities::default(), false), (&overlay, has, false)] {
        let plan = made(&Mirror::default(), network, &six, Some(&vip), capabilities);
        let gaps: Vec<_> = plan.gaps.iter().map(Gap::name).collect();
        assert_eq!((plan.steps.is_empty(), gaps), if served { (false, vec![]) } else { (true, vec!["NoIPv6"]) });
    }
    let four =
        made(&Mirror::default(), &network(), &web(), Some(&self::vip(Kind::ClusterIp, &[("192.168.2.3", 80, false)])), Capabilities::default());
    assert!(four.gaps.is_empty() && !four.steps.is_empty());
}

/// winkernel.md §1.3, one row after the other: flags of the load balancer and of its port mapping.
#[test]
fn documents_carry_upstream_flags() {
    let capabilities = Capabilities { cluster_ip_dsr: true, dsr: true, affinity: true, modify: true, ipv6: true };
    let shape =
        |address: Option<&str>, vip: &Vip, capabilities| Shape::desired(&key(address, 80), vip, 8080, vec![Guid::NIL], &[], capabilities, &network());
    let flags = |shape: Shape| (shape.flags.0, shape.port_flags.0);
    let local = |kind| Vip { keep_client: true, ..vip(kind, &[]) };
    let keeping = |kind| Vip { preserve_destination: true, ..vip(kind, &[]) };
    for (vip, address, expected) in [
        (vip(Kind::ClusterIp, &[]), Some("10.96.0.1"), (1, 0)),
        (vip(Kind::NodePort, &[]), None, (0, 18)),
        (local(Kind::NodePort), None, (1, 18)),
        (vip(Kind::ExternalIp, &[]), Some("192.0.2.9"), (0, 16)),
        (local(Kind::ExternalIp), Some("192.0.2.9"), (1, 16)),
        (vip(Kind::LoadBalancer, &[]), Some("192.0.2.9"), (0, 16)),
        (local(Kind::LoadBalancer), Some("192.0.2.9"), (1, 16)),
        (keeping(Kind::LoadBalancer), Some("192.0.2.9"), (1, 28)),
        (vip(Kind::HealthCheck, &[]), Some("192.0.2.9"), (0, 0)),
        (keeping(Kind::HealthCheck), Some("192.0.2.9"), (0, 12)),
        (vip(Kind::ClusterIp, &[]), Some("fd00::1"), (3, 0)),
        (local(Kind::LoadBalancer), Some("fd00::9"), (3, 16)),
    ] {
        assert_eq!(flags(shape(address, &vip, capabilities)), expected, "{vip} at {address:?}");
        assert_eq!(shape(address, &vip, Capabilities::default()).flags.0 & 1, 0, "no direct server return where the service has none");
    }
    let sticky = Vip { affinity: Some(60), ..vip(Kind::ClusterIp, &[]) };
    assert_eq!(shape(Some("10.96.0.1"), &sticky, capabilities).distribution, DistributionType::SOURCE_IP);
    assert_eq!(shape(Some("10.96.0.1"), &sticky, Capabilities::default()).distribution, DistributionType::PER_CONNECTION);
    let document = shape(None, &local(Kind::NodePort), capabilities).document(Guid::NIL, &key(None, 30080));
    assert!(document.frontend_vips.is_empty() && document.source_vip.is_empty());
    assert_eq!((document.flags, document.port_mappings[0].flags), (LoadBalancerFlags::DSR, PortMappingFlags(18)));
    assert_eq!(vip_key(&document), Some(key(None, 30080)));
    assert_eq!(Shape::of(&document), shape(None, &local(Kind::NodePort), capabilities));
}

#[test]
fn incomplete_documents_match_nothing() {
    let half = HostComputeLoadBalancer { host_compute_endpoints: vec![Guid::NIL], ..HostComputeLoadBalancer::default() };
    let desired = Shape::desired(&web(), &vip(Kind::ClusterIp, &[]), 80, vec![Guid::NIL], &[], Capabilities::default(), &network());
    assert_eq!(vip_key(&half), None);
    assert!(!desired.is_met_by(&Shape::of(&half)) && !desired.differs_in_endpoints_at_most(&Shape::of(&half)));
    let mut mirror = Mirror::default();
    mirror.read_endpoint(UID, "cbr0", &HostComputeEndpoint::default(), 1);
    assert!(mirror.root().is_none());
    parity::proved(parity::Hns, &["#141488"]);
}

#[test]
fn overlay_plan_creates_an_endpoint_for_every_address() {
    let backend = vip(Kind::ClusterIp, &[("192.168.2.3", 80, false)]);
    let plan = made(&Mirror::default(), &overlay(), &web(), Some(&backend), Capabilities::default());
    insta::assert_snapshot!(plan.display(&web()), @r"
    create remote endpoint 192.168.2.3
    create endpoint of source VIP 192.168.4.2
    create endpoint of service address 10.96.0.1
    create load balancer 10.96.0.1:80/tcp -> 1 endpoints at 80
    ");
    let empty = made(&Mirror::default(), &overlay(), &web(), Some(&vip(Kind::ClusterIp, &[])), Capabilities::default());
    assert_eq!(empty.display(&web()).to_string(), "create endpoint of service address 10.96.0.1\n", "even without backends");
    let outer = made(&Mirror::default(), &overlay(), &web(), Some(&vip(Kind::ExternalIp, &[])), Capabilities::default());
    assert_eq!(outer, Plan::default(), "for ClusterIPs only");
}

#[test]
fn overlay_endpoints_carry_their_provider_address() {
    let network = overlay();
    for (address, provider) in [("192.168.2.3", "10.0.0.3"), ("10.0.0.3", "10.0.0.3"), ("203.0.113.7", "10.0.0.1")] {
        let document = Remote::Backend(ip(address)).document(&network);
        assert_eq!(document.policies[0].as_provider_address(), Some(ip(provider)), "{address}");
        assert!(document.is_remote() && document.mac_address.starts_with("02-11-"));
    }
    assert_eq!(network.provider(ip("203.0.113.7")), None);
    let address = Remote::ServiceVip(ip("10.96.0.1")).document(&network);
    assert_eq!((address.mac_address.as_str(), address.is_remote()), ("00-15-5D-0A-0B-0C", true));
    let source = Remote::SourceVip(ip("192.168.4.2")).document(&network);
    assert_eq!((source.is_remote(), source.policies.len()), (false, 0));
    let source_of =
        |remotes: &[IpAddr]| Shape::desired(&web(), &vip(Kind::ClusterIp, &[]), 80, vec![], remotes, Capabilities::default(), &network).source_vip;
    assert_eq!(source_of(&[ip("192.168.2.3")]), Some(ip("192.168.4.2")));
    assert_eq!(source_of(&[ip("192.168.2.3"), ip("10.0.0.3")]), Some(ip("10.0.0.1")), "a node can only answer the node's own address");
    assert_eq!(source_of(&[ip("203.0.113.7")]), Some(ip("10.0.0.1")));
    // An address that moves behind another host is another endpoint, so that both can exist for a moment.
    let moved = NetworkContext { subnets: vec![("192.168.2.0/24".parse().unwrap(), ip("10.0.0.4"))], ..overlay() };
    let remote = Remote::Backend(ip("192.168.2.3"));
    assert_ne!(remote.id(UID, &network), remote.id(UID, &moved));
    let mut document = remote.document(&network);
    (document.id, document.host_compute_network) = (remote.id(UID, &network), network.id);
    assert_eq!(Remote::of(UID, &document), Some(remote), "and it is known again after a restart");
    assert_eq!(Remote::of("another cluster", &document), None);
    let v6 = Remote::Backend(ip("fd00::1:203")).document(&NetworkContext::default());
    assert_eq!(v6.mac_address, "02-11-03-02-01-00", "upstream's made-up MAC");
    parity::proved(parity::Hns, &["TestFindRemoteSubnetProviderAddress"]);
}
