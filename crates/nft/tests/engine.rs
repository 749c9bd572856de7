//! The table engine against a real kernel: adoption, repair, parts, shared tables.
#![cfg(target_os = "linux")]

use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use linux_sys::netlink::Rtnl;
use linux_sys::ns::{NetNs, in_lab};
use nft::*;
use test_lab::until;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn engine() -> Engine {
    Engine::new(Nft::open().unwrap())
}

fn table() -> Table {
    Table::new(Family::Inet, "t")
}

/// Sets of every kind, and chains at hooks and without.
fn desired(elements: u16) -> Desired {
    let mut all = Desired::new(table());
    let service = |n: u16| Key::new().ip(ip("10.96.0.1")).proto(6).port(n);
    let key = [DataType::Ipv4Addr, DataType::InetProto, DataType::InetService];
    all.set(SetSpec::map("services", key, [DataType::Ipv4Addr, DataType::InetService]))
        .rank(0)
        .extend((0..elements).map(|n| Element::new(service(n)).data(Key::new().ip(ip("10.0.0.1")).port(n))));
    all.set(SetSpec::map("marks", key, [DataType::Mark])).rank(2).push(Element::new(service(1)).data(Key::new().mark(7)));
    let net = |text: &str| Element::net(text.parse().unwrap());
    all.set(SetSpec::set("nets", [DataType::Ipv4Addr]).interval()).extend([net("10.0.0.0/8"), net("192.0.2.1/32")]);
    let corner = |address: &str, port| Key::new().ip(ip(address)).port(port);
    all.set(SetSpec::set("areas", [DataType::Ipv4Addr, DataType::InetService]).interval())
        .push(Element::area(corner("10.0.0.0", 80), corner("10.0.0.255", 90)));
    all.set(SetSpec::set("links", [DataType::IfName])).push(Element::new(Key::new().ifname("eth0")));
    all.set(SetSpec::vmap("verdicts", [DataType::ClassId])).push(Element::new(Key::new().mark(3)).data(Verdict::Goto("aux".into())));
    all.set(SetSpec::map("clients", [DataType::Ipv4Addr], [DataType::Mark]).dynamic(1000, Some(Duration::from_secs(60)))).unmanaged();
    let v4 = || rule().nfproto(Family::Ip);
    all.chain(Chain::regular("aux"), [rule().counter().accept(), rule().l4proto(6).reject(RejectKind::TcpReset).comment("refuse")]);
    all.chain(
        Chain::base("nat", ChainType::Nat, Hook::Prerouting, -100),
        [v4().load_ip_daddr(0).load_l4proto(1).load_dport(2).lookup_data("services", 0, 4).dnat(Family::Ip, 4, Some(5))],
    );
    all.chain(Chain::base("in", ChainType::Filter, Hook::Input, 5).policy_drop(), [v4().load_ip_saddr(0).lookup("nets", 0).jump("aux")]);
    all.chain(Chain::base("out", ChainType::Route, Hook::Output, 0), []);
    all
}

fn listing() -> String {
    let out = Command::new("nft").args(["-a", "list", "ruleset"]).output().expect("nft(8) is installed for tests");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn engine_adopts_a_table_and_repairs_what_differs() {
    in_lab("engine_adopts_a_table_and_repairs_what_differs", || {
        let first = engine();
        let report = first.reconcile(vec![desired(100)]).unwrap();
        assert_eq!(report, Report { elements: 105, transactions: 1 });
        assert!(first.is_undisturbed().unwrap());
        let before = listing();
        let second = engine();
        assert!(!second.is_undisturbed().unwrap(), "it has not read anything");
        let plan = second.plan(vec![desired(100)]).unwrap();
        assert!(plan.is_empty(), "{plan}");
        assert_eq!(second.reconcile(vec![desired(100)]).unwrap(), Report::default());
        assert!(first.is_undisturbed().unwrap() && second.is_undisturbed().unwrap());
        assert_eq!(listing(), before, "handles are what they were, too");

        // Somebody else changes a little of everything.
        let (nft, t) = (Nft::open().unwrap(), table());
        let key = Key::new().ip(ip("10.96.0.1")).proto(6);
        let mut foreign = Batch::new();
        foreign.add_rule(&t, "aux", rule().drop()).add_chain(&t, &Chain::regular("foreign")).add_set(&t, &SetSpec::vmap("own", [DataType::Mark]));
        foreign.add_elements(&t, "own", &[Element::new(Key::new().mark(1)).data(Verdict::Goto("foreign".into()))]);
        foreign.flush_chain(&t, "in").del_chain(&t, "out").del_elements(&t, "services", &[Element::new(key.clone().port(7))]);
        foreign.del_elements(&t, "marks", &[Element::new(key.clone().port(1))]);
        foreign.add_elements(&t, "marks", &[Element::new(key.clone().port(1)).data(Key::new().mark(8))]);
        foreign.add_elements(&t, "nets", &[Element::net("11.0.0.0/8".parse().unwrap())]);
        foreign.add_elements(&t, "clients", &[Element::new(Key::new().ip(ip("10.9.9.9"))).data(Key::new().mark(1))]);
        nft.commit(&foreign).unwrap();
        assert!(!first.is_undisturbed().unwrap());
        let plan = first.plan(vec![desired(100)]).unwrap();
        let expected = "+ inet t chain out: 0 rules\n~ inet t chain aux: 2 rules\n~ inet t chain in: 1 rules\n\
            ~ inet t set marks: 1 elements go, 1 come\n~ inet t set nets: 1 elements go, 0 come\n~ inet t set services: 0 elements go, 1 come\n\
            - inet t chain foreign\n- inet t set own\n";
        assert_eq!(plan.to_string(), expected);
        assert_eq!(first.reconcile(vec![desired(100)]).unwrap(), Report { elements: 4, transactions: 1 });
        assert!(first.plan(vec![desired(100)]).unwrap().is_empty());
        assert_eq!(nft.elements(&t, "clients").unwrap().len(), 1, "elements of others stay");

        // A chain at another hook, and a set of another kind.
        let mut moved = desired(100);
        moved.chain(Chain::base("out", ChainType::Filter, Hook::Output, 7), [rule().accept()]);
        assert_eq!(first.reconcile(vec![moved]).unwrap(), Report { elements: 0, transactions: 1 });
        let mut other = Batch::new();
        other.destroy_table(&t).add_table(&t).add_set(&t, &SetSpec::set("nets", [DataType::Ipv4Addr]));
        nft.commit(&other).unwrap();
        assert_eq!(first.reconcile(vec![desired(100)]).unwrap(), Report { elements: 105, transactions: 1 });
        assert!(first.plan(vec![desired(100)]).unwrap().is_empty());
    });
}

#[test]
fn engine_deletes_tables_whether_they_exist_or_not() {
    in_lab("engine_deletes_tables_whether_they_exist_or_not", || {
        let (engine, other) = (engine(), Table::new(Family::Ip, "other"));
        engine.reconcile(vec![desired(10), Desired::new(other.clone())]).unwrap();
        engine.delete([table(), Table::new(Family::Ip6, "never")]).unwrap();
        assert_eq!(engine.nft().tables().unwrap(), [other], "other tables stay");
        assert!(!engine.is_undisturbed().unwrap(), "what it left is gone");
        engine.reconcile(vec![desired(10)]).unwrap();
        assert!(engine.plan(vec![desired(10)]).unwrap().is_empty());
    });
}

#[test]
fn engine_commits_in_parts_and_a_change_in_one_transaction() {
    in_lab("engine_commits_in_parts_and_a_change_in_one_transaction", || {
        let mut nft = Nft::open().unwrap();
        nft.take_most(32 << 10);
        let small = Engine::new(nft);
        let report = small.reconcile(vec![desired(2000)]).unwrap();
        assert!(report.transactions > 2 && small.is_undisturbed().unwrap(), "{report:?}");
        // While the kernel grows a hash table, a dump of it may leave elements out.
        until("a complete dump", || engine().plan(vec![desired(2000)]).unwrap().is_empty());
        let report = small.apply(Plan::between(vec![desired(2000)], vec![desired(1900)])).unwrap();
        assert_eq!(report, Report { elements: 100, transactions: 1 });
        assert!(small.is_undisturbed().unwrap());
        assert!(engine().plan(vec![desired(1900)]).unwrap().is_empty());
        // What a refused change leaves is known to be what was there.
        assert!(small.apply(Plan::between(vec![desired(2000)], vec![desired(1900)])).unwrap_err().is_not_found());
        assert!(small.apply(Plan::between(vec![desired(1900)], vec![desired(1900)])).unwrap() == Report::default());
        let bounded = engine().in_parts_of(32 << 10);
        assert!(bounded.reconcile(vec![desired(3000)]).unwrap().transactions > 1, "bounded by its user");
    });
}

#[test]
fn engine_keeps_what_others_have_in_a_shared_table() {
    in_lab("engine_keeps_what_others_have_in_a_shared_table", || {
        let part = |owner: &str, ports: &[u16]| {
            let mut part: Desired = Desired::new(Table::new(Family::Ip, "ports")).shared();
            let rules = ports.iter().map(|port| rule().l4proto(6).dport(*port).dnat_to("10.0.0.1:80".parse().unwrap()).comment(owner));
            part.owned_rules(Chain::regular("ports"), [owner.to_owned()], rules.collect::<Vec<_>>());
            part.chain(Chain::base("pre", ChainType::Nat, Hook::Prerouting, -99), [rule().jump("ports")]);
            vec![part]
        };
        // Many at once, as plug-ins of many containers.
        std::thread::scope(|scope| {
            for n in 0..4 {
                let ns = NetNs::current().unwrap();
                scope.spawn(move || {
                    for port in 0..5 {
                        Engine::new(Nft::open_in(&ns).unwrap()).reconcile(part(&format!("owner-{n}-{port}"), &[port])).unwrap();
                    }
                });
            }
        });
        let (nft, t) = (Nft::open().unwrap(), Table::new(Family::Ip, "ports"));
        assert_eq!((nft.rules(&t, "ports").unwrap().len(), nft.rules(&t, "pre").unwrap().len()), (20, 1));
        engine().reconcile(part("owner-1-1", &[1, 2])).unwrap();
        engine().reconcile(part("owner-2-2", &[])).unwrap();
        let observed = nft.observe(&t).unwrap();
        let of = |owner: &str| observed.comments("ports").filter(|comment| *comment == owner).count();
        assert_eq!((of("owner-1-1"), of("owner-2-2"), of("owner-3-3"), observed.comments("ports").count()), (2, 0, 1, 20));
        assert!(engine().plan(part("owner-1-1", &[1, 2])).unwrap().is_empty());
    });
}

#[test]
fn engine_makes_chains_of_links() {
    in_lab("engine_makes_chains_of_links", || {
        let rtnl = Rtnl::open().unwrap();
        rtnl.add_veth("near", "far", None).unwrap();
        let desired = || {
            let mut all: Desired = Desired::new(Table::new(Family::Netdev, "links"));
            all.chain(Chain::ingress("near", "near"), [rule().counter()]);
            vec![all]
        };
        assert_eq!(engine().reconcile(desired()).unwrap().transactions, 1);
        let plan = engine().plan(desired()).unwrap();
        assert!(plan.is_empty(), "{plan}");
    });
}
