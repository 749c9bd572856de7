//! Faults that act on packets while the documents look right.
#![cfg(target_os = "linux")]

use std::time::Duration;

use hcn::document::*;
use hcn::{HResult, HnsVersion};
use hns_sim::switches::Switches;
use linux_sys::netlink::Rtnl;
use linux_sys::ns::{NetNs, in_lab};
use test_lab::{same, until};

#[path = "harness/lab.rs"]
mod harness;

use harness::*;

const WS2025: HnsVersion = HnsVersion::new(15, 5);

/// Blocks what comes to a port.
fn blocks(port: u16) -> EndpointPolicy {
    let rule = Acl {
        action: Action::Block,
        direction: Direction::In,
        protocols: "6".into(),
        local_ports: port.to_string().as_str().into(),
        ..Acl::default()
    };
    EndpointPolicy::acl(&rule)
}

#[test]
fn acl_broken_keeps_rules_without_effect() {
    in_lab("acl_broken_keeps_rules_without_effect", || {
        let lab = Lab::new();
        let mut node = lab.node(WS2025);
        let client = node.pod(2, "192.168.1.2", vec![]);
        node.fault("acl-broken,count=2");
        let server = node.pod(3, "192.168.1.3", vec![blocks(80)]);
        serve_tcp(&server.ns, 80, "server");
        assert_eq!(ask_tcp(&client.ns, "192.168.1.3:80").unwrap(), "server saw 192.168.1.2");
        let shown = node.client.get::<HostComputeEndpoint>(&id(3)).unwrap().unwrap();
        assert_eq!(shown.policies.iter().filter_map(EndpointPolicy::as_acl).count(), 1, "the document has the rule");
        let set_anew = |node: &Node| {
            let update = ModifyRequest::endpoint_policies(RequestType::Update, &[blocks(80)]);
            node.client.modify::<HostComputeEndpoint>(&id(3), &update).unwrap();
        };
        set_anew(&node);
        assert!(ask_tcp(&client.ns, "192.168.1.3:80").is_ok(), "the second modify is hit, too");
        set_anew(&node);
        assert!(is_silent(&client.ns, "192.168.1.3:80"), "set anew, it holds");
        // Of an endpoint that is there, without a call.
        node.fault(&format!("acl-broken,id={},count=1", id(3)));
        assert!(ask_tcp(&client.ns, "192.168.1.3:80").is_ok());
        node.stop();
        node.start();
        assert!(ask_tcp(&client.ns, "192.168.1.3:80").is_ok(), "a restart does not repair it");
    });
}

#[test]
fn unpatched_service_drops_access_rules_on_restart() {
    in_lab("unpatched_service_drops_access_rules_on_restart", || {
        let lab = Lab::new();
        let mut switches = Switches::of(WS2025);
        switches.set("patched=false").unwrap();
        switches.set("enable-compartment-namespace=true").unwrap();
        let mut node = lab.node_with(switches);
        let client = node.pod(2, "192.168.1.2", vec![]);
        let server = node.pod(3, "192.168.1.3", vec![blocks(80)]);
        serve_tcp(&server.ns, 80, "server");
        assert!(is_silent(&client.ns, "192.168.1.3:80"));
        node.stop();
        node.start();
        assert!(ask_tcp(&client.ns, "192.168.1.3:80").is_ok());
    });
}

#[test]
fn blocked_port_drops_packets_until_reattached() {
    in_lab("blocked_port_drops_packets_until_reattached", || {
        let lab = Lab::new();
        let mut node = lab.node(WS2025);
        let client = node.pod(2, "192.168.1.2", vec![]);
        serve_tcp(&client.ns, 80, "client");
        node.fault("ep-port-blocked,count=1");
        let server = node.pod(3, "192.168.1.3", vec![]);
        serve_tcp(&server.ns, 80, "server");
        assert_eq!(node.client.get::<HostComputeEndpoint>(&id(3)).unwrap().unwrap().state, EndpointState::ATTACHED_SHARING, "it looks well");
        assert!(is_silent(&client.ns, "192.168.1.3:80") && is_silent(&server.ns, "192.168.1.2:80"), "neither in nor out");
        node.stop();
        node.start();
        assert!(is_silent(&client.ns, "192.168.1.3:80"), "a restart does not repair it");
        node.client.remove_endpoint_from_namespace(&id(0x43), &id(3)).unwrap();
        node.client.add_endpoint_to_namespace(&id(0x43), &id(3)).unwrap();
        assert_eq!(ask_tcp(&client.ns, "192.168.1.3:80").unwrap(), "server saw 192.168.1.2");
        // Of an endpoint that is there, at once; open connections stop, too.
        let open = connect(&client.ns, "192.168.1.3:80").unwrap();
        open.set_read_timeout(Some(SILENCE)).unwrap();
        node.fault(&format!("ep-port-blocked,id={},count=1", id(2)));
        assert!(hear(open).is_err() && is_silent(&client.ns, "192.168.1.3:80"));
    });
}

#[test]
fn net_blip_takes_uplink_addresses_for_a_while() {
    in_lab("net_blip_takes_uplink_addresses_for_a_while", || {
        let lab = Lab::new();
        let outside = lab.host("10.240.0.12", &[]);
        serve_tcp(&outside.ns, 80, "outside");
        let node = lab.bare("10.240.0.11", &[("10.9.0.0/16", "10.240.0.12"), ("169.254.169.254/32", "10.240.0.1")], Switches::of(WS2025));
        let rtnl = Rtnl::open_in(&node.ns).unwrap();
        let prefixes = || -> Vec<String> {
            let mut all: Vec<_> = rtnl.routes().unwrap().into_iter().filter(|route| route.protocol != 2).map(|route| route.dst.to_string()).collect();
            all.sort();
            all
        };
        let before = prefixes();
        let make = |number: u8, network_type| {
            let subnet = Subnet::new(net(&format!("192.168.{number}.0/24")), format!("192.168.{number}.1").parse().unwrap());
            node.client.create(id(number), &HostComputeNetwork::new(format!("net{number}"), network_type, subnet))
        };
        node.fault("net-blip=5s,count=1");
        make(1, NetworkType::L2Bridge).unwrap();
        assert!(is_unanswered(&node.ns, "10.240.0.12:80") && prefixes().is_empty());
        until("the route", || same(prefixes(), &before));
        assert!(ask_tcp(&node.ns, "10.240.0.12:80").is_ok());

        node.fault("net-blip-loses-routes=1ms,count=1,call=HcnDeleteNetwork");
        node.client.delete::<HostComputeNetwork>(&id(1)).unwrap();
        until("the lost route", || same(prefixes(), &["0.0.0.0/0"]));
        node.fault("net-blip-loses-ip,count=1");
        // A network of the LAN takes over what is there: nothing. What comes back comes back to its bridge.
        make(2, NetworkType::Transparent).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert!(prefixes().is_empty() && is_unanswered(&node.ns, "10.240.0.12:80"));
        assert!(make(3, NetworkType::L2Bridge).is_err_and(|error| error.hresult() != Some(HResult::OK)));
        node.clear_faults();
        assert_eq!(prefixes(), before, "the lost routes come back with all the rest");
        assert!(ask_tcp(&node.ns, "10.240.0.12:80").is_ok());
    });
}

#[test]
fn networks_of_one_adapter_share_its_switch() {
    in_lab("networks_of_one_adapter_share_its_switch", || {
        let lab = Lab::new();
        let outside = lab.host("10.240.0.12", &[]);
        serve_tcp(&outside.ns, 80, "outside");
        let node = lab.bare("10.240.0.11", &[], Switches::of(WS2025));
        let make = |number: u8| {
            let subnet = Subnet::new(net(&format!("192.168.{number}.0/24")), format!("192.168.{number}.1").parse().unwrap());
            node.client.create(id(number), &HostComputeNetwork::new(format!("net{number}"), NetworkType::L2Bridge, subnet)).unwrap();
        };
        let delete = |number: u8| node.client.delete::<HostComputeNetwork>(&id(number)).unwrap();
        let is_cut = || is_unanswered(&node.ns, "10.240.0.12:80");
        let whole = || until("the adapter", || ask_tcp(&node.ns, "10.240.0.12:80").map(drop).map_err(|error| error.to_string()));
        node.fault("net-switch-blip=1s");
        make(1);
        assert!(is_cut(), "the first network makes the switch");
        whole();
        make(2);
        assert!(!is_cut(), "the second one has it");
        delete(1);
        assert!(!is_cut(), "and keeps it");
        make(1);
        delete(2);
        assert!(!is_cut());
        delete(1);
        assert!(is_cut(), "the last one takes it along");
        whole();
    });
}

#[test]
fn compartment_appears_late_or_with_the_first_container() {
    in_lab("compartment_appears_late_or_with_the_first_container", || {
        let lab = Lab::new();
        let node = lab.node(WS2025);
        let path = |number: u8| node.compartments().join(id(number).to_string());
        let make = |number: u8| {
            let endpoint = HostComputeEndpoint::local("pod", net(&format!("192.168.1.{number}/24")), Some([192, 168, 1, 1].into()));
            node.client.create_endpoint(&id(1), id(number), &endpoint).unwrap();
            node.client
                .create(id(number + 0x40), &HostComputeNamespace { create_with_compartment: true, ..HostComputeNamespace::default() })
                .unwrap();
            node.client.add_endpoint_to_namespace(&id(number + 0x40), &id(number)).unwrap();
            node.client.get::<HostComputeNamespace>(&id(number + 0x40)).unwrap().unwrap().namespace_id
        };
        let compartment = |number: u8| node.client.get::<HostComputeNamespace>(&id(number)).unwrap().unwrap().namespace_id;
        let has_adapter = |number: u8| Rtnl::open_in(&NetNs::open(&path(number)).unwrap()).unwrap().link("eth0").unwrap().is_some();
        node.fault("ns-late-compartment=300ms,count=1");
        assert_eq!(make(2), 0);
        assert!(!path(0x42).exists());
        assert_eq!(node.client.get::<HostComputeEndpoint>(&id(2)).unwrap().unwrap().state, EndpointState::ATTACHED_SHARING);
        until("the other compartment", || same(compartment(0x42), &2));
        assert!(has_adapter(0x42));

        node.fault("ns-late-compartment=60m");
        assert_eq!([make(3), make(4)], [0, 0]);
        node.client.modify::<HostComputeNamespace>(&id(0x43), &ModifyRequest::namespace_container(RequestType::Add, "c")).unwrap();
        assert!(compartment(0x43) == 3 && has_adapter(0x43) && !path(0x44).exists());
        node.clear_faults();
        assert!(compartment(0x44) == 4 && has_adapter(0x44));
    });
}
