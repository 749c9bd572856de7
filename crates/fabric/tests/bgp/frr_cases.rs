//! Our nodes beside FRRouting, of another AS and of the same.

use bgp::Secret;
use fabric::mode::bgp::Bgp;
use linux_sys::ns::in_lab;
use serde_json::json;
use test_lab::until;

use crate::cases::{keeps_routes, peered};
use crate::frr::Frr;
use crate::world::{Host, World};

const ROUTER: &str = "10.240.0.3";

/// A router of an AS with one session of both families to each of these nodes of AS 64512; `extra` for each begins with `neighbor ADDRESS`.
fn config(asn: u32, nodes: &[u8], extra: &[&str]) -> String {
    let mut text = format!(
        "router bgp {asn}\n bgp router-id {ROUTER}\n no bgp ebgp-requires-policy\n no bgp network import-check\n bgp graceful-restart\n bgp graceful-restart preserve-fw-state\n"
    );
    let all = |line: &str| nodes.iter().map(|node| format!(" neighbor 10.240.0.{node} {line}\n")).collect::<String>();
    text += &(all("remote-as 64512") + &all("timers connect 2"));
    extra.iter().for_each(|line| text += &all(line));
    text += " address-family ipv4 unicast\n  network 192.168.3.0/24\n exit-address-family\n address-family ipv6 unicast\n  network fd00:3::/64\n";
    // One session has both families: FRR knows its own address of IPv4 alone there.
    text + &all("activate")
        + &all("route-map OWN out")
        + " exit-address-family\n!\nroute-map OWN permit 10\n match ipv6 address prefix-list OWN\n set ipv6 next-hop global fd00:240::3\n\
         route-map OWN permit 20\nipv6 prefix-list OWN permit fd00:3::/64\n"
}

/// FRR has the node's pods of both families, from the node itself.
fn has_pods_of(frr: &Frr, node: &Host) -> Result<String, String> {
    let number = node.number;
    frr.routes(&format!("fd00:{number}::/64"), &format!("fd00:240::{number}"))?;
    frr.routes(&format!("192.168.{number}.0/24"), &format!("10.240.0.{number}"))
}

#[test]
fn nodes_and_frr_of_another_as_exchange_routes_and_packets() {
    in_lab("frr_cases::nodes_and_frr_of_another_as_exchange_routes_and_packets", || {
        let world = World::new();
        let (one, two, router) = (world.node(11), world.node(12), world.host(3));
        let frr = Frr::start(&world, &router, &config(64600, &[11, 12], &["password s3cret"]));
        let with = Bgp { passwords: [(ROUTER.parse().unwrap(), Secret::new("s3cret"))].into(), ..peered() };
        let (first, second) = (world.start(&one, with.clone()), world.start(&two, with));
        until("FRR's sessions", || frr.established("10.240.0.11").and(frr.established("10.240.0.12")));
        until("routes everywhere", || one.has_routes_to(3).and(two.has_routes_to(3)).and(one.has_routes_to(12)).and(two.has_routes_to(11)));
        until("the nodes' pods at FRR", || has_pods_of(&frr, &one).and(has_pods_of(&frr, &two)));
        for (from, to) in [(&one, &router), (&router, &one), (&router, &two), (&one, &two)] {
            until(format!("packets from {} to {}", from.name(), to.name()), || from.reaches_pods_of(to));
        }
        until("no problem is left", || test_lab::same((first.problems(), second.problems()), &(vec![], vec![])));

        let before = frr.messages("10.240.0.11", "Updates");
        frr.ask("clear bgp ipv4 unicast 10.240.0.11 in");
        until("the routes that FRR asked for again", || {
            let (asked, now) = (frr.messages("10.240.0.11", "Route Refresh"), frr.messages("10.240.0.11", "Updates"));
            if asked.0 > 0 && now.1 > before.1 { Ok(()) } else { Err(format!("{asked:?} {before:?} {now:?}")) }
        });
        has_pods_of(&frr, &one).unwrap();

        // Withdrawn, and announced again.
        let change =
            |how: &str| frr.ask(&format!("configure terminal\nrouter bgp 64600\naddress-family ipv4 unicast\n{how}network 192.168.3.0/24\nend"));
        let said = change("no ");
        until(format!("the withdrawn route goes, the other stays: {said}"), || {
            let ours = one.ours();
            let (gone, stays) =
                (!ours.iter().any(|line| line.starts_with("192.168.3.0/24")), ours.contains(&"fd00:3::/64 via fd00:240::3".to_owned()));
            if gone && stays { Ok(()) } else { Err(format!("{ours:?}")) }
        });
        let said = change("");
        until(format!("the route comes again: {said}"), || one.has_routes_to(3));
    });
}

#[test]
fn nodes_and_frr_of_the_same_as_exchange_routes_and_packets() {
    in_lab("frr_cases::nodes_and_frr_of_the_same_as_exchange_routes_and_packets", || {
        let world = World::new();
        let (one, two, router) = (world.node(11), world.node(12), world.host(3));
        // A reflector in place of the mesh.
        world.api.calico("bgpconfigurations", "default", json!({"nodeToNodeMeshEnabled": false}));
        world.api.install_calico();
        let frr = Frr::start(
            &world,
            &router,
            &config(64512, &[11, 12], &[])
                .replace("  network", "  neighbor 10.240.0.11 route-reflector-client\n  neighbor 10.240.0.12 route-reflector-client\n  network"),
        );
        let with = Bgp { peers: [(ROUTER.parse().unwrap(), 64512)].into(), ..Bgp::default() };
        let (first, second) = (world.start(&one, with.clone()), world.start(&two, with));
        until("FRR's sessions", || frr.established("10.240.0.11").and(frr.established("10.240.0.12")));
        until("routes to the router's pods", || one.has_routes_to(3).and(two.has_routes_to(3)));
        until("the nodes' routes to each other by way of the reflector", || one.has_routes_to(12).and(two.has_routes_to(11)));
        let known = until("the nodes' pods at FRR", || has_pods_of(&frr, &one));
        assert!(known.contains("localpref 2147482623") && known.contains("Local"), "as Calico's nodes announce theirs: {known}");
        for (from, to) in [(&one, &router), (&router, &one), (&one, &two), (&two, &one)] {
            until(format!("packets from {} to {}", from.name(), to.name()), || from.reaches_pods_of(to));
        }
        until("no problem is left", || test_lab::same((first.problems(), second.problems()), &(vec![], vec![])));
        drop(second);
        world.api.remove_node("n12");
        until("FRR knows that the session ended", || frr.established("10.240.0.12").err());
    });
}

#[test]
fn restarts_of_a_node_or_of_frr_leave_routes_and_packets() {
    in_lab("frr_cases::restarts_of_a_node_or_of_frr_leave_routes_and_packets", || {
        let world = World::new();
        let (one, router) = (world.node(11), world.host(3));
        let frr = Frr::start(&world, &router, &config(64600, &[11], &[]));
        let first = world.start(&one, peered());
        until("routes to the router's pods", || one.has_routes_to(3));
        until("the node's pods at FRR", || has_pods_of(&frr, &one));
        // A datagram may be late on a busy machine: that the routes stay is what is looked at all the time.
        let packets = |when: &str| until(format!("packets both ways {when}"), || one.reaches_pods_of(&router).and(router.reaches_pods_of(&one)));
        packets("at first");

        frr.kill_bgpd();
        until("our node misses its peer", || {
            let problems = first.problems();
            if problems.iter().any(|problem| problem.contains("its routes stay for a while")) { Ok(()) } else { Err(format!("{problems:?}")) }
        });
        one.has_routes_to(3).unwrap();
        packets("without bgpd");
        frr.start_bgpd();
        keeps_routes(&one, 3, "FRR's session after its restart", || frr.established("10.240.0.11"));
        until("no problem is left", || test_lab::same(first.problems(), &Vec::<String>::new()));
        until("the node's pods at FRR", || has_pods_of(&frr, &one));
        one.has_routes_to(3).unwrap();
        packets("after FRR's restart");

        // FRR says for two minutes that it restarted: now both do.
        drop(first);
        until("FRR knows that the session ended", || frr.established("10.240.0.11").err());
        let kept = frr.ask("show bgp ipv4 unicast 192.168.11.0/24");
        assert!(kept.contains("stale"), "FRR keeps the routes of a node that restarts: {kept}");
        packets("without the node's fabric");
        let first = world.start(&one, peered());
        keeps_routes(&one, 3, "FRR's session after the node's restart", || frr.established("10.240.0.11"));
        until("FRR has the routes anew", || {
            let now = frr.ask("show bgp ipv4 unicast 192.168.11.0/24");
            if now.contains("stale") { Err(now) } else { has_pods_of(&frr, &one) }
        });
        until("no problem is left", || test_lab::same(first.problems(), &Vec::<String>::new()));
        one.has_routes_to(3).unwrap();
        packets("after the node's restart");
    });
}
