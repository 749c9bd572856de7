//! Repair of rules that do not fit into one transaction: the service starts with other rules than it left and repairs them, and no packet
//! meets half of them.
#![cfg(target_os = "linux")]

#[path = "harness/lab.rs"]
mod harness;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use harness::{Lab, ask_tcp, id, serve_tcp};
use hcn::document::*;
use linux_sys::ns::{NetNs, in_lab};
use nft::{Batch, DataType, Element, Family, Nft, SetSpec, Table};

/// Each is two elements; an ordinary user's transaction takes some 8,000 of them, and here less than a thousand.
const BALANCERS: u16 = 3000;
const LARGEST: usize = 64 << 10;

/// Longer than any connection takes whose first packet is not lost: that is sent again after a second.
const LOST: Duration = Duration::from_millis(800);

/// What the tables say: sets with their elements, chains with their rules' expressions.
fn programmed(ns: &NetNs) -> Vec<(String, Vec<Element>, Vec<String>)> {
    let nft = Nft::open_in(ns).unwrap();
    let mut all = Vec::new();
    for table in [Family::Ip, Family::Ip6, Family::Netdev].map(|family| Table::new(family, "hns")) {
        for set in nft.sets(&table).unwrap() {
            all.push((format!("{table} {}", set.name), nft.elements(&table, &set.name).unwrap(), Vec::new()));
        }
        for chain in nft.chains(&table).unwrap() {
            let rules = nft.rules(&table, &chain.name).unwrap().into_iter().map(|rule| rule.expressions.join(" ")).collect();
            all.push((format!("{table} {} {}", chain.name, chain.base), Vec::new(), rules));
        }
    }
    all.sort();
    all
}

#[test]
fn services_answer_while_thousands_of_rules_are_repaired() {
    in_lab("services_answer_while_thousands_of_rules_are_repaired", || {
        let lab = Lab::new();
        let outside = lab.host("10.240.0.12", &[("10.96.0.0/12", "10.240.0.11")]);
        let mut node = lab.crowded(LARGEST, BALANCERS, |number| {
            let [high, low] = number.to_be_bytes();
            HostComputeLoadBalancer::new(Some([10, 97, high, low].into()), Protocol::TCP, 80, 8080, vec![id(9)])
        });
        let rule = Acl { action: Action::Block, direction: Direction::In, remote_addresses: "10.9.0.0/16,10.11.0.0/16".into(), ..Acl::default() };
        let server = node.pod(2, "192.168.1.2", vec![EndpointPolicy::acl(&rule), EndpointPolicy::outbound_nat(["10.0.0.0/8".parse().unwrap()])]);
        serve_tcp(&server.ns, 80, "server");
        node.balance(0x20, Some("10.96.0.1"), 80, 80, &[&server]);
        let node_port = HostComputeLoadBalancer::new(None, Protocol::TCP, 30080, 80, vec![id(2)]);
        node.client.create(id(0x21), &node_port).unwrap();

        let asked = {
            let (asking, outside) = (Arc::new(AtomicBool::new(true)), outside.ns.clone());
            let still = asking.clone();
            let client = std::thread::spawn(move || {
                let (mut answers, mut slowest) = (0, Duration::ZERO);
                while still.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    assert_eq!(ask_tcp(&outside, "10.96.0.1:80").unwrap(), "server saw 10.240.0.11");
                    (answers, slowest) = (answers + 1, slowest.max(began.elapsed()));
                }
                (answers, slowest)
            });
            // Every VIP of the host itself gets another backend selector, then its first one again.
            let before = programmed(&node.ns);
            for value in ["false", "true", "false", "true", "false"] {
                node.switch(&format!("node-port-needs-local-routed-vip={value}"));
                assert_eq!(programmed(&node.ns) == before, value == "true", "{value}");
            }
            // What somebody took out is put in again, though the service remembers nothing.
            node.stop();
            let nft = Nft::open_in(&node.ns).unwrap();
            let table = Table::new(Family::Ip, "hns");
            let vips = nft.elements(&table, "vips").unwrap();
            let mut batch = Batch::new();
            batch.del_elements(&table, "vips", &vips[vips.len() - 100..]);
            nft.commit(&batch).unwrap();
            node.start();
            assert_eq!(programmed(&node.ns), before, "the rules are what they were");
            asking.store(false, Ordering::Relaxed);
            client.join().unwrap()
        };
        assert!(asked.0 > 100 && asked.1 < LOST, "{} answers, the slowest after {:?}", asked.0, asked.1);
        // Written anew in parts, where another version left sets of another kind, they say the same.
        let before = programmed(&node.ns);
        let nft = Nft::open_in(&node.ns).unwrap();
        let table = Table::new(Family::Ip, "hns");
        let mut batch = Batch::new();
        batch.destroy_table(&table).add_table(&table).add_set(&table, &SetSpec::set("backends", [DataType::Mark]));
        node.stop();
        nft.commit(&batch).unwrap();
        node.start();
        assert_eq!(programmed(&node.ns), before);
    });
}
