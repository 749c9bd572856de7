//! NetworkPolicies and ClusterNetworkPolicies of any content: read, compiled, rendered for both backends, and asked about packets.

#![no_main]

use cluster::Key;
use libfuzzer_sys::fuzz_target;
use network_policy::hns::boxes::by_port;
use network_policy::hns::rules::{self, Abilities, Context};
use network_policy::nftables::Programmed;
use network_policy::rows::{Labels, NamedPort, PodRow};
use network_policy::{Packet, Policy, PolicyId, Protocol, World};

fn pod(ip: &str, label: &str) -> PodRow {
    let ports = [NamedPort { name: "web".into(), protocol: Protocol::Tcp, port: 80 }];
    PodRow { labels: Labels::new(&[("pod", label)]), ips: [ip.parse().unwrap()].into(), ports: ports.into(), node: "n".into() }
}

fuzz_target!(|data: &[u8]| {
    let Ok(document) = serde_json::from_slice::<serde_json::Value>(data) else { return };
    let mut world = World::new(None);
    world.set_namespace("default", Some(Labels::new(&[("kubernetes.io/metadata.name", "default")])));
    let (a, b) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
    world.set_pod(&Key::new("default", "a"), Some(pod("10.0.0.1", "a")));
    world.set_pod(&Key::new("default", "b"), Some(pod("10.0.0.2", "b")));
    if let Ok(policy) = Policy::cluster(document.get("spec").unwrap_or(&document)) {
        world.set_policy(&PolicyId::Cluster("p".into()), Some(policy));
    }
    if let Ok(policy) = serde_json::from_value::<k8s_openapi::api::networking::v1::NetworkPolicy>(document) {
        world.set_policy(&PolicyId::Namespaced(Key::new("default", "p")), Some(Policy::namespaced(&policy)));
    }
    let members = |group: &_| std::rc::Rc::new(by_port(world.members(group)));
    for (_, endpoint) in world.endpoints() {
        for (sets, tiers) in [(false, false), (true, true)] {
            let context = Context { abilities: Abilities { sets, tiers }, own: &endpoint.ips, host: &[], members: &members };
            let _ = rules::policies(&endpoint.profiles, &context);
        }
        endpoint.all().for_each(|profile| drop(profile.to_string()));
    }
    let _ = Programmed::default().whole(&world);
    let own = Packet { source: a, destination: a, port: Some((Protocol::Tcp, 80)) };
    assert!(world.decide(&own).is_allowed(), "a pod always reaches itself");
    let _ = world.decide(&Packet { source: a, destination: b, port: Some((Protocol::Tcp, 80)) });
});
