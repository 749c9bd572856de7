//! A kernel that refuses a plan, also half-way: the call fails with an HNS code, and nothing has changed.
#![cfg(target_os = "linux")]

#[path = "harness/lab.rs"]
mod harness;

use harness::{Lab, Node, ask_tcp, id, net, serve_tcp};
use hcn::document::*;
use hcn::{EndpointPolicy, HResult, HcnError, HnsVersion};
use hns_sim::switches::Switches;
use linux_sys::netlink::{Rtnl, Vxlan};
use linux_sys::ns::{NetNs, in_lab};
use linux_sys::sysctl;
use nft::{Batch, Element, Family, Key, Nft, Table, Verdict, rule};

const WS2025: HnsVersion = HnsVersion::new(15, 5);

/// What the kernel holds of the node's.
fn kernel(node: &Node) -> (Vec<String>, Vec<std::ffi::OsString>) {
    let mut compartments: Vec<_> = std::fs::read_dir(node.compartments()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    compartments.sort();
    (node.links(), compartments)
}

/// Whether a refused call has that code, names the step and the kernel's own reason, and left everything as it was.
#[track_caller]
fn check<T: std::fmt::Debug>(node: &Node, code: HResult, words: &[&str], call: impl FnOnce() -> Result<T, HcnError>) {
    let before = (kernel(node), node.state());
    let error = call().unwrap_err();
    assert_eq!(error.hresult(), Some(code), "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
    assert_eq!((kernel(node), node.state()), before);
}

fn overlay() -> HostComputeNetwork {
    let mut subnet = Subnet::new(net("10.244.1.0/24"), "10.244.1.1".parse().unwrap());
    subnet.policies.push(serde_json::from_str(r#"{"Type": "VSID", "Settings": {"IsolationId": 4096}}"#).unwrap());
    HostComputeNetwork::new("vxlan0", NetworkType::Overlay, subnet)
}

#[test]
fn existing_kernel_object_fails_the_call() {
    in_lab("existing_kernel_object_fails_the_call", || {
        let lab = Lab::new();
        let node = lab.bare("10.240.0.11", &[], Switches::of(WS2025));
        let rtnl = Rtnl::open_in(&node.ns).unwrap();
        // Somebody else's tunnel has the segment.
        rtnl.add_vxlan("foreign", &Vxlan { vni: 4096, local: None, device: None, port: 4789, learning: false }).unwrap();
        check(&node, HResult::ALREADY_EXISTS, &["tunnel hvx", "exists"], || node.client.create(id(1), &overlay()));
        rtnl.del_link(rtnl.link("foreign").unwrap().unwrap().index).unwrap();
        node.client.create(id(1), &overlay()).unwrap();
    });
}

#[test]
fn kernel_object_in_use_fails_the_call() {
    in_lab("kernel_object_in_use_fails_the_call", || {
        let lab = Lab::new();
        let node = lab.node(WS2025);
        let (one, two) = (node.pod(5, "192.168.1.5", vec![EndpointPolicy::sdn_route(net("10.96.0.0/12"))]), node.pod(6, "192.168.1.6", vec![]));
        serve_tcp(&two.ns, 80, "two");
        node.balance(0x20, Some("10.96.0.1"), 80, 80, &[&two]);
        let nft = Nft::open_in(&node.ns).unwrap();
        let table = Table::new(Family::Ip, "hns");
        let chain = nft.chains(&table).unwrap().into_iter().find(|chain| chain.name.starts_with("select-")).unwrap().name;
        // Somebody else leads packets to the load balancer's chain: it cannot go.
        let mut batch = Batch::new();
        batch.add_rule(&table, "vips", rule().comment("foreign").jump(&chain));
        nft.commit(&batch).unwrap();
        check(&node, HResult::FAIL, &["delete chain", "busy"], || node.client.delete::<HostComputeLoadBalancer>(&id(0x20)));
        assert_eq!(ask_tcp(&one.ns, "10.96.0.1:80").unwrap(), "two saw 10.240.0.11", "it is still there");
        let foreign = nft.rules(&table, "vips").unwrap().into_iter().find(|rule| rule.comment.as_deref() == Some("foreign")).unwrap();
        let mut batch = Batch::new();
        batch.del_rule(&table, "vips", foreign.handle);
        nft.commit(&batch).unwrap();
        node.client.delete::<HostComputeLoadBalancer>(&id(0x20)).unwrap();
        assert!(harness::is_unanswered(&one.ns, "10.96.0.1:80"));
    });
}

#[test]
fn full_kernel_fails_the_call() {
    in_lab("full_kernel_fails_the_call", || {
        let lab = Lab::new();
        let node = lab.node(WS2025);
        sysctl::set("user.max_net_namespaces", "1").unwrap();
        check(&node, HResult::OUT_OF_MEMORY, &["compartment"], || node.client.create(id(3), &HostComputeNamespace::default()));
        sysctl::set("user.max_net_namespaces", "1000").unwrap();
        node.client.create(id(3), &HostComputeNamespace::default()).unwrap();
    });
}

#[test]
fn failed_attach_is_rolled_back() {
    in_lab("failed_attach_is_rolled_back", || {
        let lab = Lab::new();
        let node = lab.node(WS2025);
        node.client.create(id(3), &HostComputeNamespace::default()).unwrap();
        let compartment = NetNs::open(&node.compartments().join(id(3).to_string())).unwrap();
        let blocked =
            EndpointPolicy::acl(&Acl { action: Action::Block, direction: Direction::In, remote_addresses: "10.0.0.1".into(), ..Acl::default() });
        let endpoint = HostComputeEndpoint::local("pod", net("192.168.1.5/24"), None).with_policy(blocked);
        node.client.create_endpoint(&id(1), id(2), &endpoint).unwrap();
        // The links are made by then; the map has the address already.
        let nft = Nft::open_in(&node.ns).unwrap();
        let table = Table::new(Family::Ip, "hns");
        let foreign = [Element::new(Key::new().ip("192.168.1.5".parse().unwrap())).data(Verdict::Accept)];
        let mut batch = Batch::new();
        batch.add_elements(&table, "access-in", &foreign);
        nft.commit(&batch).unwrap();
        check(&node, HResult::ALREADY_EXISTS, &["access-in", "exists"], || node.client.add_endpoint_to_namespace(&id(3), &id(2)));
        let mut batch = Batch::new();
        batch.del_elements(&table, "access-in", &foreign);
        nft.commit(&batch).unwrap();
        // Somebody else's interface has the name.
        Rtnl::open_in(&compartment).unwrap().add_bridge("eth0").unwrap();
        check(&node, HResult::ALREADY_EXISTS, &["port ep000000000002", "exists"], || node.client.add_endpoint_to_namespace(&id(3), &id(2)));
        let inside = Rtnl::open_in(&compartment).unwrap();
        inside.del_link(inside.link("eth0").unwrap().unwrap().index).unwrap();
        node.client.add_endpoint_to_namespace(&id(3), &id(2)).unwrap();
        serve_tcp(&compartment, 80, "pod");
        assert_eq!(ask_tcp(&node.ns, "192.168.1.5:80").unwrap(), "pod saw 192.168.1.1");
    });
}

#[test]
fn a_restart_loses_no_packet() {
    in_lab("a_restart_loses_no_packet", || {
        let lab = Lab::new();
        let mut node = lab.node(WS2025);
        let (one, two) = (node.pod(5, "192.168.1.5", vec![EndpointPolicy::sdn_route(net("10.96.0.0/12"))]), node.pod(6, "192.168.1.6", vec![]));
        harness::serve_udp(&two.ns, 53, "two");
        let dns = HostComputeLoadBalancer::new(Some("10.96.0.10".parse().unwrap()), Protocol::UDP, 53, 53, vec![id(6)]);
        node.client.create(id(0x20), &dns).unwrap();
        let done = std::sync::atomic::AtomicBool::new(false);
        let lost = std::thread::scope(|scope| {
            let asking = scope.spawn(|| {
                let (mut asked, mut lost) = (0, 0);
                while asked <= 20 || !done.load(std::sync::atomic::Ordering::Relaxed) {
                    asked += 1;
                    // Each from a port of its own: each is a new connection.
                    lost += u32::from(harness::ask_udp(&one.ns, "10.96.0.10:53").is_err());
                }
                (asked, lost)
            });
            for _ in 0..5 {
                node.stop();
                node.ns.run(|| Rtnl::open().unwrap().add_bridge("hnsdeadbeef").unwrap()).unwrap();
                node.start();
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            asking.join().unwrap()
        });
        assert!(lost.1 == 0, "of {} new connections over five restarts, {} were lost", lost.0, lost.1);
        assert!(!node.links().contains(&"hnsdeadbeef".to_owned()), "what is nobody's went");
    });
}
