//! Our nodes beside BIRD.

use std::time::Duration;

use bgp::Secret;
use fabric::mode::bgp::Bgp;
use linux_sys::ns::in_lab;
use serde_json::json;
use test_lab::until;

use crate::bird::Bird;
use crate::world::{Host, World};

/// A router of AS 64600 with a session of both families to a node.
fn tor(node: u8, extra: &str) -> String {
    let channels = "import all; export where source ~ [ RTS_STATIC, RTS_BGP ];";
    format!(
        "protocol bgp v4_{node} {{ local 10.240.0.3 as 64600; neighbor 10.240.0.{node} as 64512; graceful restart yes; {extra}\n\
           ipv4 {{ {channels} }}; ipv6 {{ {channels} next hop address fd00:240::3; }}; }}\n"
    )
}

/// The router as a peer.
pub fn peered() -> Bgp {
    Bgp { peers: [("10.240.0.3".parse().unwrap(), 64600)].into(), ..Bgp::default() }
}

/// `host` has its routes to another's pods all the time until `done`.
pub fn keeps_routes(host: &Host, number: u8, what: &str, mut done: impl FnMut() -> Result<(), String>) {
    until(what, || {
        host.has_routes_to(number).unwrap_or_else(|gap| panic!("{what}: {gap}"));
        done()
    });
    host.has_routes_to(number).unwrap_or_else(|gap| panic!("{what}: {gap}"));
}

#[test]
fn nodes_and_bird_exchange_routes_and_packets_of_both_families() {
    in_lab("cases::nodes_and_bird_exchange_routes_and_packets_of_both_families", || {
        let world = World::new();
        let (one, two, router) = (world.node(11), world.node(12), world.host(3));
        let bird = Bird::start(&world, &router, &format!("{}{}", tor(11, ""), tor(12, "")));
        let (first, second) = (world.start(&one, peered()), world.start(&two, peered()));
        for protocol in ["v4_11", "v4_12"] {
            until("BIRD's session", || bird.established(protocol));
        }
        until("routes between the nodes", || one.has_routes_to(12).and(two.has_routes_to(11)));
        until("routes to the router's pods", || one.has_routes_to(3).and(two.has_routes_to(3)));
        for (from, to) in [(&one, &two), (&two, &one), (&one, &router), (&router, &one), (&router, &two)] {
            until(format!("packets from {} to {}", from.name(), to.name()), || from.reaches_pods_of(to));
        }
        assert_eq!(world.api.annotation("n11", "projectcalico.org/IPv4Address").as_deref(), Some("10.240.0.11/24"));
        assert_eq!(world.api.annotation("n11", "projectcalico.org/IPv6Address").as_deref(), Some("fd00:240::11/64"));
        until("no problem is left", || test_lab::same((first.problems(), second.problems()), &(vec![], vec![])));
        let path = bird.ask("show route for 192.168.12.5 all");
        assert!(path.contains("via 10.240.0.12") && path.contains("BGP.med: 0"), "the router prefers a node's own announcement: {path}");

        let before = bird.updates("v4_11");
        let asked = bird.tell("reload in v4_11");
        until(format!("the routes that BIRD asked for again: {asked}"), || bird.updates("v4_11") > before);
        let withdrawn = bird.tell("disable pods4") + &bird.tell("disable pods6");
        until(format!("withdrawn routes go: {withdrawn}"), || one.has_no_routes_to(3).and(two.has_no_routes_to(3)));
        world.api.remove_node("n12");
        until("the routes of a node that is gone go", || {
            let other_way = "192.168.12.0/24 via 10.240.0.3".to_owned();
            if one.ours().contains(&other_way) { Ok(()) } else { one.has_no_routes_to(12) }
        });
    });
}

#[test]
fn restarts_of_either_side_leave_the_routes() {
    in_lab("cases::restarts_of_either_side_leave_the_routes", || {
        let world = World::new();
        let (one, two, router) = (world.node(11), world.node(12), world.host(3));
        let config = tor(11, "");
        let bird = Bird::start(&world, &router, &config);
        let (first, _second) = (world.start(&one, peered()), world.start(&two, Bgp::default()));
        until("routes everywhere", || one.has_routes_to(12).and(one.has_routes_to(3)).and(two.has_routes_to(11)));
        let of_node = || bird.ask("show route for 192.168.11.5").contains("via 10.240.0.11");
        until("the router knows the node's pods", of_node);

        drop(first);
        until("BIRD knows that the session ended", || bird.established("v4_11").is_err());
        assert!(of_node(), "the router keeps the routes of a node that restarts");
        two.has_routes_to(11).and(one.has_routes_to(3)).and(one.has_routes_to(12)).unwrap();
        let first = world.start(&one, peered());
        keeps_routes(&two, 11, "our node's session with another of ours", || {
            one.has_routes_to(3).unwrap();
            bird.established("v4_11")
        });
        assert!(of_node());
        until("no problem is left", || test_lab::same(first.problems(), &Vec::<String>::new()));

        drop(bird);
        until("our node misses its peer", || first.problems().iter().any(|problem| problem.contains("its routes stay for a while")));
        one.has_routes_to(3).unwrap();
        let bird = Bird::restart(&world, &router, &config);
        keeps_routes(&one, 3, "BIRD's session after its restart", || bird.established("v4_11"));
        until("no problem is left", || test_lab::same(first.problems(), &Vec::<String>::new()));
        one.has_routes_to(3).unwrap();
    });
}

#[test]
fn routes_of_a_peer_that_does_not_return_go_after_its_time() {
    in_lab("cases::routes_of_a_peer_that_does_not_return_go_after_its_time", || {
        let world = World::new();
        let (one, router) = (world.node(11), world.host(3));
        let bird = Bird::start(&world, &router, &tor(11, "graceful restart time 3;"));
        let _fabric = world.start(&one, peered());
        until("routes to the router's pods", || one.has_routes_to(3));
        drop(bird);
        std::thread::sleep(Duration::from_secs(1));
        one.has_routes_to(3).expect("they stay for its restart time");
        until("the routes go", || one.has_no_routes_to(3));
        let bird = Bird::start(&world, &router, &tor(11, "graceful restart off;"));
        until("routes to the router's pods", || one.has_routes_to(3));
        drop(bird);
        until("the routes of a peer without graceful restart go", || one.has_no_routes_to(3));
    });
}

#[test]
fn sessions_with_passwords_begin_only_with_the_same() {
    in_lab("cases::sessions_with_passwords_begin_only_with_the_same", || {
        let world = World::new();
        let (one, two, router) = (world.node(11), world.node(12), world.host(3));
        let with = |node: u8| tor(node, "password \"s3cret\";");
        let bird = Bird::start(&world, &router, &format!("{}{}", with(11), with(12)));
        let secret = |text: &str| Bgp {
            passwords: [("10.240.0.3".parse().unwrap(), Secret::new(text))].into(),
            mesh_password: Some(Secret::new("mesh")),
            ..peered()
        };
        let (_first, second) = (world.start(&one, secret("s3cret")), world.start(&two, secret("other")));
        until("BIRD's session", || bird.established("v4_11"));
        until("routes to the router's pods, and of the mesh", || one.has_routes_to(3).and(one.has_routes_to(12)));
        until("the other node says that it has no session", || {
            second.problems().iter().any(|problem| problem.contains("peer 10.240.0.3 (router): no BGP session"))
        });
        bird.established("v4_12").expect_err("the passwords differ");
    });
}

#[test]
fn calicos_resources_take_effect_when_they_appear_and_change() {
    in_lab("cases::calicos_resources_take_effect_when_they_appear_and_change", || {
        let world = World::new();
        let (one, two, reflector, router) = (world.node(11), world.node(12), world.node(13), world.host(3));
        world.api.annotate("n13", [("projectcalico.org/RouteReflectorClusterID", "244.0.0.1")].into_iter());
        let fabrics = [&one, &two, &reflector].map(|node| world.start(node, Bgp::default()));
        until("a mesh of those that are no reflectors", || one.has_routes_to(12).and(two.has_routes_to(11)));
        one.has_no_routes_to(13).unwrap();

        world.api.calico("bgpconfigurations", "default", json!({"nodeToNodeMeshEnabled": false}));
        world.api.calico("bgppeers", "reflectors", json!({"nodeSelector": "name != 'n13'", "peerSelector": "name == 'n13'"}));
        world.api.calico("ippools", "tunnels", json!({"cidr": "192.168.0.0/16", "ipipMode": "Always"}));
        world.api.install_calico();
        let all_routes = || {
            one.has_routes_to(12).and(one.has_routes_to(13))?;
            two.has_routes_to(11).and(two.has_routes_to(13))?;
            reflector.has_routes_to(11).and(reflector.has_routes_to(12))
        };
        until("routes by way of the reflector", all_routes);
        until("packets between its clients", || one.reaches_pods_of(&two));
        until("the pool's tunnels are explained", || {
            fabrics[0].problems().iter().any(|problem| problem.starts_with("IPPool tunnels: its ipipMode is Always, but Windows has no IP-in-IP"))
        });

        let bird = Bird::start(&world, &router, &tor(11, ""));
        world.api.calico("bgppeers", "tor", json!({"node": "n11", "peerIP": "10.240.0.3", "asNumber": 64600}));
        until("the router's session", || bird.established("v4_11"));
        until("the router learns all pods by that node, and the nodes the router's", || {
            let all = [11, 12, 13].iter().all(|node| bird.ask(&format!("show route for 192.168.{node}.5")).contains("10.240.0.11"));
            if all { one.has_routes_to(3) } else { Err(bird.ask("show route")) }
        });
        until("the other nodes reach the router's pods by that node", || two.ours().contains(&"192.168.3.0/24 via 10.240.0.11".to_owned()));
        world.api.calico("bgppeers", "tor", json!({"node": "n12", "peerIP": "10.240.0.3", "asNumber": 64600}));
        until("the session of a peer of another node ends", || bird.established("v4_11").err());
        until("its routes go", || one.has_no_routes_to(3).and(two.has_no_routes_to(3)));
    });
}
