//! BIRD and FRRouting as the router of the mode l3: routes pushed, read back, repaired, and packets by way of them.
#![cfg(target_os = "linux")]

mod daemons;
mod world;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use daemons::{Daemons, path, prepare_frr, start_frr};
use fabric::Mode;
use fabric::apply::routes::{keep, plan};
use fabric::mode::{Hop, Through};
use fabric::router::bird::BirdRoutes;
use fabric::router::frr::FrrRoutes;
use host::{HostRoute, LinuxRoutes, Routes};
use ipnet::IpNet;
use linux_sys::netlink::Route;
use linux_sys::ns::{NetNs, in_lab};
use test_lab::net::Lan;
use test_lab::until;
use world::checks::{Expected, follows_nodes, joins_all};
use world::{Families, MTU, World};

/// A BIRD that includes `mullion.conf` of `dir`.
fn bird(ns: &NetNs, dir: &Path, include: bool) -> (Daemons, BirdRoutes) {
    let (conf, socket, file) = (dir.join("bird.conf"), dir.join("bird.ctl"), dir.join("mullion.conf"));
    let mut text = "router id 10.240.0.1;\nprotocol device { scan time 1; }\nprotocol direct { ipv4; ipv6; }\n\
        protocol kernel { scan time 1; ipv4 { export all; }; }\nprotocol kernel { scan time 1; ipv6 { export all; }; }\n"
        .to_owned();
    if include {
        text.push_str(&format!("include \"{}\";\n", file.display().to_string().replace("mullion.conf", "mullion*.conf")));
    }
    std::fs::write(&conf, text).unwrap();
    let daemons = Daemons::default();
    daemons.start(ns, "/usr/sbin/bird", &["-f", "-c", path(&conf), "-s", path(&socket), "-P", path(&dir.join("bird.pid"))], &socket);
    let routes = until("BIRD", || BirdRoutes::open(&socket, &file).map_err(|error| error.to_string()));
    (daemons, routes)
}

/// Zebra and staticd without any configuration.
fn start_both(daemons: &Daemons, ns: &NetNs, dir: &Path) -> PathBuf {
    let sockets = prepare_frr(dir);
    ["zebra", "staticd"].iter().for_each(|name| start_frr(daemons, ns, &sockets, name, ""));
    sockets
}

fn frr(ns: &NetNs, dir: &Path) -> (Daemons, FrrRoutes) {
    let daemons = Daemons::default();
    let sockets = start_both(&daemons, ns, dir);
    let routes = until("FRR", || FrrRoutes::open(&sockets).map_err(|error| error.to_string()));
    (daemons, routes)
}

fn l3_with(table: impl FnOnce(&NetNs, &Path) -> (Daemons, Arc<dyn Routes>)) -> (World, Daemons) {
    let mut kept = None;
    let world = World::with_router(Mode::L3, Families::Ipv4, |ns, dir| {
        let (daemons, table) = table(ns, dir);
        kept = Some(daemons);
        table
    });
    (world, kept.unwrap())
}

const EXPECTED: Expected = Expected { largest: MTU, windows_node_reaches_others: true, windows_pods_reach_outside: true };

#[test]
fn bird_joins_the_pods_of_all_nodes() {
    in_lab("bird_joins_the_pods_of_all_nodes", || {
        let (world, _daemons) = l3_with(|ns, dir| {
            let (daemons, bird) = bird(ns, dir, true);
            (daemons, Arc::new(bird))
        });
        joins_all(&world, &EXPECTED);
        follows_nodes(world, MTU);
    });
}

#[test]
fn frr_joins_the_pods_of_all_nodes() {
    in_lab("frr_joins_the_pods_of_all_nodes", || {
        let (world, _daemons) = l3_with(|ns, dir| {
            let (daemons, frr) = frr(ns, dir);
            (daemons, Arc::new(frr))
        });
        joins_all(&world, &EXPECTED);
        follows_nodes(world, MTU);
    });
}

fn hops(list: &[(&str, &str, &str)]) -> BTreeMap<IpNet, Hop> {
    let hop = |(dst, via, node): &(&str, &str, &str)| {
        (dst.parse().unwrap(), Hop { via: via.parse().unwrap(), through: Through::Network, node: (*node).to_owned() })
    };
    list.iter().map(hop).collect()
}

/// Our routes of the router's kernel, whose protocols are the daemons'.
fn kernel(ns: &NetNs) -> Vec<String> {
    let all = LinuxRoutes::open_in(ns).unwrap().list().unwrap();
    let mut lines: Vec<String> = all
        .iter()
        .filter(|route| route.dst.to_string().starts_with("192.168."))
        .map(|route| format!("{} {}", route.dst, route.via.unwrap()))
        .collect();
    lines.sort();
    lines
}

/// What a pass does: the plan as a dry run prints it, and what went wrong.
fn pass(table: &dyn Routes, desired: &[(&str, &str, &str)]) -> (String, Vec<String>) {
    let (observed, desired) = (table.list().unwrap(), hops(desired));
    let planned = plan(&desired, &observed, None).to_string();
    let (problems, done) = keep(table, &desired, &observed, None);
    assert_eq!(done, problems.iter().all(|problem| problem.text.contains("is not ours")));
    (planned, problems.into_iter().map(|problem| problem.text).collect())
}

/// A router takes routes, moves and loses them, keeps those of others, and says when a next hop is no neighbour.
fn follows(table: &dyn Routes, router: &NetNs, restart: impl FnOnce()) {
    let two = [("192.168.1.0/24", "10.240.0.11", "a"), ("192.168.2.0/24", "10.240.0.12", "b")];
    assert_eq!(pass(table, &two), ("+ 192.168.1.0/24 via 10.240.0.11 (a)\n+ 192.168.2.0/24 via 10.240.0.12 (b)\n".into(), vec![]));
    until("the kernel's routes", || test_lab::same(kernel(router), &["192.168.1.0/24 10.240.0.11", "192.168.2.0/24 10.240.0.12"]));
    assert_eq!(pass(table, &two), (String::new(), vec![]), "a second pass changes nothing");

    let moved = [("192.168.1.0/24", "10.240.0.12", "b")];
    let planned = "- 192.168.2.0/24 via 10.240.0.12\n~ 192.168.1.0/24 via 10.240.0.12 instead of 10.240.0.11 (b)\n";
    assert_eq!(pass(table, &moved), (planned.into(), vec![]));
    until("the kernel's routes", || test_lab::same(kernel(router), &["192.168.1.0/24 10.240.0.12"]));

    // A next hop that is no neighbour: said, and the others stay.
    let far = [moved[0], ("192.168.3.0/24", "172.31.0.9", "far")];
    let (_, problems) = pass(table, &far);
    assert!(problems.len() == 1 && problems[0].contains("192.168.3.0/24 via 172.31.0.9") && problems[0].contains("neighbours"), "{problems:?}");
    assert_eq!(kernel(router), ["192.168.1.0/24 10.240.0.12"]);

    restart();
    until("the routes after a restart", || {
        let problems = pass(table, &moved).1;
        if problems.is_empty() { test_lab::same(kernel(router), &["192.168.1.0/24 10.240.0.12"]) } else { Err(format!("{problems:?}")) }
    });
    assert_eq!(pass(table, &[]).0, "- 192.168.1.0/24 via 10.240.0.12\n");
    until("no route", || test_lab::same(kernel(router), &[""; 0]));
}

#[test]
fn bird_takes_routes_and_reports_those_that_it_does_not_have() {
    in_lab("bird_takes_routes_and_reports_those_that_it_does_not_have", || {
        let (lan, dir) = (Lan::new(), tempfile::tempdir().unwrap());
        let (daemons, table) = bird(&lan.router, dir.path(), true);
        follows(&table, &lan.router, || {
            daemons.end();
            let (again, _) = bird(&lan.router, dir.path(), true);
            daemons.0.lock().unwrap().append(&mut again.0.lock().unwrap());
        });
        // What an administrator gave by another protocol contradicts.
        let conf = dir.path().join("bird.conf");
        let mut text = std::fs::read_to_string(&conf).unwrap();
        text.push_str("protocol static theirs { ipv4; route 192.168.7.0/24 via 10.240.0.99; }\n");
        std::fs::write(&conf, &text).unwrap();
        pass(&table, &[("192.168.1.0/24", "10.240.0.11", "a")]);
        let (planned, problems) = pass(&table, &[("192.168.1.0/24", "10.240.0.11", "a"), ("192.168.7.0/24", "10.240.0.17", "g")]);
        assert!(planned.starts_with("! node g: a route to 192.168.7.0/24 by 10.240.0.99 exists and is not ours"), "{planned}");
        assert_eq!(problems.len(), 1);
        // A configuration with a mistake stays out of effect, and BIRD's words are told.
        std::fs::write(&conf, text + "protocol nonsense {}\n").unwrap();
        let (_, problems) = pass(&table, &[("192.168.2.0/24", "10.240.0.12", "b")]);
        assert!(problems[0].contains("make BIRD configure") && problems[0].contains("syntax error"), "{problems:?}");
        daemons.end();
        let error = table.list().unwrap_err();
        assert!(error.to_string().contains("start it, or give --bird-socket"), "{error}");
    });
}

#[test]
fn bird_without_the_include_is_told_what_to_write() {
    in_lab("bird_without_the_include_is_told_what_to_write", || {
        let (lan, dir) = (Lan::new(), tempfile::tempdir().unwrap());
        let (_daemons, table) = bird(&lan.router, dir.path(), false);
        let (_, problems) = pass(&table, &[("192.168.1.0/24", "10.240.0.11", "a")]);
        assert!(problems[0].contains("write `include \"") && problems[0].contains("mullion.conf\";` into bird.conf"), "{problems:?}");
    });
}

#[test]
fn frr_takes_routes_and_reports_those_that_it_does_not_have() {
    in_lab("frr_takes_routes_and_reports_those_that_it_does_not_have", || {
        let (lan, dir) = (Lan::new(), tempfile::tempdir().unwrap());
        let (daemons, table) = frr(&lan.router, dir.path());
        follows(&table, &lan.router, || {
            // Its configuration is lost: nobody wrote it to a file.
            daemons.end();
            start_both(&daemons, &lan.router, dir.path());
            until("FRR", || table.list().map_err(|error| error.to_string()));
        });
        // A route of the kernel that is not FRR's contradicts.
        let rtnl = linux_sys::netlink::Rtnl::open_in(&lan.router).unwrap();
        rtnl.add_route(&Route::new("192.168.7.0/24".parse().unwrap()).via("10.240.0.99".parse().unwrap())).unwrap();
        until("zebra's view", || table.list().unwrap().iter().any(|route: &HostRoute| route.dst.to_string() == "192.168.7.0/24"));
        let (planned, _) = pass(&table, &[("192.168.7.0/24", "10.240.0.17", "g")]);
        assert!(planned.contains("exists and is not ours"), "{planned}");
        daemons.end();
        let error = table.list().unwrap_err();
        assert!(error.to_string().contains("start it, or give --frr-sockets"), "{error}");
    });
}
