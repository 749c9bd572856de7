//! Rule dump: each rule is where Microsoft's networkhealth.ps1 looks for it.

use hcn::blocking::Client;
use hcn::document::*;
use hcn::{Guid, HnsVersion};
use hns_sim::Simulator;
use hns_sim::kernel::NoKernel;
use hns_sim::switches::Switches;
use hns_sim::vfp::{Port, dump};

fn id(number: u8) -> Guid {
    hcn::guid::from_u128(u128::from(number))
}

/// A host with two pods and a remote endpoint on an L2Bridge network, and the load balancers that a case asks for.
fn host(balancers: &[(u8, HostComputeLoadBalancer)]) -> Simulator {
    let kernel = NoKernel { management: Some([10, 240, 0, 11].into()), survived: false };
    let simulator = Simulator::new(Box::new(kernel), Switches::of(HnsVersion::new(15, 5)), None).unwrap();
    let client = Client::new(simulator.session());
    let subnet = Subnet::new("192.168.1.0/24".parse().unwrap(), [192, 168, 1, 1].into());
    client.create(id(1), &HostComputeNetwork::new("mullion", NetworkType::L2Bridge, subnet)).unwrap();
    for number in [2, 3] {
        let address = format!("192.168.1.{number}5/24").parse().unwrap();
        client.create_endpoint(&id(1), id(number), &HostComputeEndpoint::local(format!("pod{number}"), address, None)).unwrap();
    }
    client.create_endpoint(&id(1), id(4), &HostComputeEndpoint::remote([192, 168, 2, 7].into())).unwrap();
    for (number, balancer) in balancers {
        client.create(id(*number), balancer).unwrap();
    }
    simulator
}

fn balancer(vip: Option<[u8; 4]>, direct: bool, backends: &[u8]) -> HostComputeLoadBalancer {
    let mut balancer =
        HostComputeLoadBalancer::new(vip.map(Into::into), Protocol::TCP, 80, 8080, backends.iter().map(|number| id(*number)).collect());
    balancer.flags = if direct { LoadBalancerFlags::DSR } else { LoadBalancerFlags::default() };
    balancer
}

fn ports(simulator: &Simulator) -> [Port; 3] {
    dump(&simulator.state(), None).unwrap().ports.try_into().unwrap()
}

#[test]
fn dsr_load_balancer_rules_are_where_scripts_look() {
    let vip = Some([10, 96, 0, 1]);
    let lb = id(9);
    // Backends; whether the pods' own rules are there; the host port's rule.
    let cases = [
        (&[2][..], [true, false], ("SLB_LB_LAYER", "SLB_GROUP_LB_IPv4_OUT", format!("NAT_{lb}_10.96.0.1_80_80_6"))),
        (&[2, 3], [true, true], ("SLB_LB_LAYER", "SLB_GROUP_LB_IPv4_OUT", format!("LB_{lb}_10.96.0.1_80_80_6"))),
        (&[2, 4], [true, false], ("LB", "LB_OUT", format!("LB_HOST_{lb}_10.96.0.1_80_8080_6"))),
        (&[4], [false, false], ("LB", "LB_OUT", format!("LB_HOST_{lb}_10.96.0.1_80_8080_6"))),
    ];
    for (backends, translated, (layer, group, rule)) in cases {
        let ports = ports(&host(&[(9, balancer(vip, true, backends))]));
        let [host_port, pods @ ..] = &ports;
        assert!(host_port.rule(layer, group, &rule).is_some(), "{backends:?}: no {rule} in {layer}/{group} of {host_port:#?}");
        let hairpin = host_port.rule("SLB_HAIRPIN_LAYER", "SLB_GROUP_HAIRPIN_IPv4_IN", &format!("HairPin_{lb}_10.96.0.1_80_80_6"));
        assert_eq!(hairpin.is_some(), translated.contains(&true), "{backends:?}: hairpin only where a backend is local");
        for (pod, translated) in pods.iter().zip(translated) {
            let name = format!("LB_DSR_{lb}_10.240.0.11_10.96.0.1_80_8080_6");
            assert!(pod.rule("LB_DSR", "LB_DSR_IPv4_OUT", &name).is_some(), "{backends:?}: every pod's port has {name}: {pod:#?}");
            for (group, kind) in [("SLB_GROUP_NAT_IPv4_IN", "NAT"), ("SLB_GROUP_NAT_IPv4_OUT", "ALLOW_NAT")] {
                let found = pod.rule("SLB_NAT_LAYER", group, &format!("{kind}_{lb}_10.96.0.1_80_6")).is_some();
                assert_eq!(found, translated, "{backends:?}: {kind} in {group} of {}", pod.name);
            }
        }
    }
}

#[test]
fn node_port_rules_name_the_host_address() {
    let [host_port, pod, _] = ports(&host(&[(9, balancer(None, true, &[2])), (8, balancer(Some([10, 96, 0, 2]), false, &[2]))]));
    assert!(pod.rule("LB_DSR", "LB_DSR_IPv4_OUT", &format!("LB_DSR_{}_10.240.0.11_10.240.0.11_80_8080_6", id(9))).is_some(), "{pod:#?}");
    assert!(host_port.rule("LB", "LB_OUT", &format!("LB_HOST_{}_10.96.0.2_80_8080_6", id(8))).is_some(), "{host_port:#?}");
    assert!(!format!("{pod:?}").contains(&id(8).to_string()), "clients of a load balancer that hides them meet no rule of it: {pod:#?}");
}

#[test]
fn pod_policies_are_dumped_in_order() {
    let simulator = host(&[]);
    let client = Client::new(simulator.session());
    let rule = |priority, action| EndpointPolicy::acl(&Acl { action, local_ports: "80".into(), protocols: "6".into(), priority, ..Acl::default() });
    let policies = [rule(300, Action::Block), rule(200, Action::Allow), EndpointPolicy::outbound_nat(["10.96.0.0/12".parse().unwrap()])];
    client.modify::<HostComputeEndpoint>(&id(2), &ModifyRequest::endpoint_policies(RequestType::Add, &policies)).unwrap();
    let dump = dump(&simulator.state(), Some(id(2))).unwrap();
    let expected = "\
PORT 00000000-0000-0000-0000-000000000002 (pod2 192.168.1.25, network mullion)
  LAYER ACL_ENDPOINT_LAYER
    GROUP ACL_GROUP_IN
      RULE Allow_200: Allow protocol 6, local any port 80, remote any port any (200)
      RULE Block_300: Block protocol 6, local any port 80, remote any port any (300)
      RULE Allow_65500: Allow any (65500)
    GROUP ACL_GROUP_OUT
      RULE Allow_65500: Allow any (65500)
  LAYER SLB_NAT_LAYER
    GROUP SLB_GROUP_NAT_IPv4_OUT
      RULE OUTNAT_00000000-0000-0000-0000-000000000002: tcp, udp to any but 10.96.0.0/12: source 10.240.0.11
";
    assert_eq!(dump.to_string(), expected);
    assert!(hns_sim::vfp::dump(&simulator.state(), Some(id(4))).is_none(), "a remote endpoint has no port");
    assert!(hns_sim::vfp::dump(&simulator.state(), Some(id(77))).is_none());
}

#[test]
fn overlay_dump_has_routes_to_other_hosts() {
    let kernel = NoKernel { management: Some([10, 240, 0, 11].into()), survived: false };
    let simulator = Simulator::new(Box::new(kernel), Switches::of(HnsVersion::new(15, 5)), None).unwrap();
    let client = Client::new(simulator.session());
    let mut subnet = Subnet::new("10.244.1.0/24".parse().unwrap(), [10, 244, 1, 1].into());
    subnet.policies = vec![NetworkPolicy::new(NetworkPolicyType::Vsid, &Isolation { isolation_id: 4096, ..Isolation::default() })];
    let route = RemoteSubnetRoute {
        destination_prefix: "10.244.2.0/24".into(),
        isolation_id: 4096,
        provider_address: "10.240.0.12".into(),
        distributed_router_mac_address: "00-15-5D-01-02-03".into(),
        ..RemoteSubnetRoute::default()
    };
    let network = HostComputeNetwork::new("vxlan0", NetworkType::Overlay, subnet).with_policy(NetworkPolicy::remote_subnet_route(&route));
    client.create(id(1), &network).unwrap();
    client.create_endpoint(&id(1), id(2), &HostComputeEndpoint::local("pod", "10.244.1.5/24".parse().unwrap(), None)).unwrap();
    let remote = HostComputeEndpoint::remote([10, 244, 3, 9].into()).with_policy(EndpointPolicy::provider_address([10, 240, 0, 13].into()));
    client.create_endpoint(&id(1), id(3), &remote).unwrap();
    let port = dump(&simulator.state(), Some(id(2))).unwrap().ports.remove(0);
    let rule = |name: &str| port.rule("VNET_PA_ROUTE_LAYER", "VNET_GROUP_PA_ROUTE_IPv4_OUT", name).map(|rule| rule.what.clone());
    assert_eq!(rule("PA_ROUTE_10.244.3.9/32").unwrap(), "10.244.3.9/32: encapsulated to 10.240.0.13, number 4096");
    assert_eq!(rule("PA_ROUTE_10.244.2.0/24").unwrap(), "10.244.2.0/24: encapsulated to 10.240.0.12, number 4096");
}
