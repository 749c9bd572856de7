//! `portmap` behind `bridge`, as upstream's: who reaches the pod by which address and port, and what is left.

use std::io::Read as _;
use std::net::TcpStream;
use std::time::Duration;

use test_lab::LIMIT;
use test_lab::net::{greet, route, settle};

use super::*;

/// A client of the node at 10.9.0.1.
fn neighbour(world: &World) -> NetNs {
    let client = NetNs::new_anonymous().unwrap();
    let node = Rtnl::open_in(&world.host).unwrap();
    node.add_veth("lan", "eth0", Some(&client)).unwrap();
    let far = Rtnl::open_in(&client).unwrap();
    for (rtnl, name, address) in [(&node, "lan", "10.9.0.1/24"), (&far, "eth0", "10.9.0.2/24")] {
        let index = rtnl.link(name).unwrap().unwrap().index;
        rtnl.add_addr(index, address.parse().unwrap()).unwrap();
        rtnl.set_up(index).unwrap();
    }
    node.set_up(node.link("lo").unwrap().unwrap().index).unwrap();
    route(&far, "0.0.0.0/0", "10.9.0.1");
    [&world.host, &client].into_iter().for_each(settle);
    client
}

fn ask(from: &NetNs, to: &str, patience: Duration) -> Option<String> {
    from.run(|| {
        let mut stream = TcpStream::connect_timeout(&to.parse().unwrap(), patience).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text)
    })
    .unwrap()
}

struct Site {
    side: Side,
    world: World,
    client: NetNs,
    result: Value,
}

impl Site {
    fn new(side: Side) -> Self {
        let world = World::new();
        let client = neighbour(&world);
        let conf = world.conf("bridge", json!({"bridge": "pods0", "isGateway": true, "ipam": world.ipam()}));
        let result = world.done(side, "bridge", "ADD", &conf);
        settle(&world.pod);
        greet(&world.pod, "10.1.0.2:80", |peer| peer.to_string());
        Self { side, world, client, result }
    }

    fn conf(&self, mappings: &Value, more: &Value) -> Value {
        let mut conf = self.world.conf("portmap", json!({"runtimeConfig": {"portMappings": mappings}, "prevResult": self.result}));
        conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        conf
    }

    /// Who is seen by the pod, from outside, node, the node's loopback and the pod; `mapped` says which of these get there.
    fn answers(&self, port: u16, mapped: [bool; 4]) -> [Option<String>; 4] {
        let patience = |mapped| if mapped { LIMIT } else { Duration::from_millis(300) };
        let from = [(&self.client, "10.9.0.1"), (&self.world.host, "10.9.0.1"), (&self.world.host, "127.0.0.1"), (&self.world.pod, "10.9.0.1")];
        let mut at = 0;
        from.map(|(ns, address)| {
            at += 1;
            ask(ns, &format!("{address}:{port}"), patience(mapped[at - 1]))
        })
    }
}

fn side_other(side: Side) -> Side {
    if side == Ours { Theirs } else { Ours }
}

#[test]
fn host_ports_lead_where_upstreams_lead() {
    in_lab("plugin::tests::beside_upstream::portmap::host_ports_lead_where_upstreams_lead", || {
        let all = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
        let one = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "10.9.0.1"}]);
        let other = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "10.1.0.1"}]);
        for (mappings, more, mapped) in [
            (&all, json!({}), [true; 4]),
            (&all, json!({"snat": false}), [true, true, false, false]),
            (&one, json!({}), [true, true, false, true]),
            (&other, json!({}), [false; 4]),
            (&json!([]), json!({}), [false; 4]),
        ] {
            let sites = [Ours, Theirs].map(Site::new);
            let answers = sites.each_ref().map(|site| {
                let conf = site.conf(mappings, &more);
                assert_eq!(site.world.done(site.side, "portmap", "ADD", &conf), site.result, "the result of the plug-in before");
                // Debian's CHECK always fails where ip6tables works: it looks for the IPv4 rules there too.
                let checked = site.world.call(site.side, "portmap", "CHECK", &conf);
                assert!(checked.0 || site.side == Theirs, "{}", checked.1);
                site.world.done(site.side, "portmap", "ADD", &conf);
                let answers = site.answers(8080, mapped);
                assert_eq!(answers.each_ref().map(Option::is_some), mapped, "{:?} {mappings} {more}: {answers:?}", site.side);
                answers
            });
            assert_eq!(answers[0], answers[1], "{mappings} {more}: whom the pod sees");
            for site in &sites {
                for _ in 0..2 {
                    site.world.done(site.side, "portmap", "DEL", &site.conf(mappings, &more));
                }
                assert_eq!(site.answers(8080, [false; 4]), [const { None }; 4]);
                if mappings != &json!([]) {
                    assert!(!site.world.call(site.side, "portmap", "CHECK", &site.conf(mappings, &more)).0, "{:?}: it is not mapped", site.side);
                }
            }
        }
    });
}

/// Upstream's DEL knows its own chains alone; ours removes these too.
#[test]
fn what_upstream_mapped_ours_unmaps() {
    in_lab("plugin::tests::beside_upstream::portmap::what_upstream_mapped_ours_unmaps", || {
        let site = Site::new(Theirs);
        let conf = site.conf(
            &json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}, {"hostPort": 8081, "containerPort": 80, "protocol": "udp"}]),
            &json!({}),
        );
        site.world.done(Theirs, "portmap", "ADD", &conf);
        assert!(ask(&site.client, "10.9.0.1:8080", LIMIT).is_some());
        for _ in 0..2 {
            site.world.done(side_other(site.side), "portmap", "DEL", &conf);
        }
        assert_eq!(site.answers(8080, [false; 4]), [const { None }; 4]);
        let rules = site.world.host.run(|| Process::new("iptables").args(["-t", "nat", "-S"]).output()).unwrap().unwrap();
        let rules = String::from_utf8(rules.stdout).unwrap();
        assert!(rules.contains("CNI-HOSTPORT-DNAT") && !rules.contains("CNI-DN-"), "{rules}");
        // And maps again, for whom it likes.
        site.world.done(Theirs, "portmap", "ADD", &conf);
        assert!(ask(&site.client, "10.9.0.1:8080", LIMIT).is_some());
        site.world.done(Theirs, "portmap", "DEL", &conf);
    });
}
