//! Calls that are killed, at every step, and many calls at once.

use std::collections::BTreeSet;

use super::*;
use crate::ipam::host_local::tests::soak::{Random, cycles};
use crate::steps::dying_after;

impl Node {
    fn whole(&self) -> Value {
        let mut conf = self.conf();
        conf["cniVersion"] = json!("1.1.0");
        conf["ipMasq"] = json!(true);
        conf["macspoofchk"] = json!(true);
        conf
    }

    /// What is left of pods: their pairs, their addresses, their rules.
    fn left(&self) -> Vec<String> {
        let links = Rtnl::open().unwrap().links().unwrap().into_iter().filter(|link| link.kind == "veth").map(|link| link.name);
        let files = std::fs::read_dir(self.dir.path().join("ipam/pods")).into_iter().flatten().flatten();
        let addresses = files.map(|file| file.file_name().into_string().unwrap()).filter(|name| name.parse::<std::net::IpAddr>().is_ok());
        let rules = nft::Nft::open().unwrap().observe(&nft::Table::new(nft::Family::Bridge, "mullion-cni")).unwrap();
        links.chain(addresses).chain(rules.comments("macspoofchk").map(str::to_owned)).collect()
    }

    fn gc(&self, valid: Value) {
        let mut conf = self.whole();
        conf["cni.dev/valid-attachments"] = valid;
        self.call(Command::Gc, "", conf).unwrap();
    }

    fn checked(&self, id: &str, result: &AddResult) {
        let mut conf = self.whole();
        conf["prevResult"] = result.to_json(crate::spec::SpecVersion::V1_1_0);
        self.call(Command::Check, id, conf).unwrap();
    }
}

#[test]
fn what_a_killed_add_left_goes_with_gc_or_del() {
    in_lab("bridge::tests::killed::what_a_killed_add_left_goes_with_gc_or_del", || {
        let node = Node::new();
        NetNs::create_at(&node.netns_path("a")).unwrap();
        let mut left = BTreeSet::new();
        for after in 0.. {
            let died = dying_after(after, || node.call(Command::Add, "a", node.whole()));
            left.insert(node.left().len());
            node.gc(json!([]));
            assert_eq!(node.left(), [""; 0], "GC after {after} steps");
            if let Some(whole) = died {
                whole.unwrap();
                assert!(after > 9, "only {after} steps");
                break;
            }
            assert!(dying_after(after, || node.call(Command::Add, "a", node.whole())).is_none());
            node.call(Command::Del, "a", node.whole()).unwrap();
            assert_eq!(node.left(), [""; 0], "DEL after {after} steps");
            let result = node.call(Command::Add, "a", node.whole()).unwrap().unwrap();
            node.checked("a", &result);
            node.call(Command::Del, "a", node.whole()).unwrap();
        }
        assert_eq!(left, (0..=3).collect(), "the kills were at different states");
    });
}

/// The sandbox went with the node, or the runtime made it again: the same container in another namespace.
#[test]
fn a_second_add_replaces_what_a_killed_one_left() {
    in_lab("bridge::tests::killed::a_second_add_replaces_what_a_killed_one_left", || {
        let node = Node::new();
        let path = node.netns_path("a");
        for after in 0.. {
            let former = NetNs::create_at(&path).unwrap();
            let died = dying_after(after, || node.call(Command::Add, "a", node.whole()));
            NetNs::remove_at(&path).unwrap();
            NetNs::create_at(&path).unwrap();
            // Somebody still has the former sandbox open, so its link is there.
            let result = node.call(Command::Add, "a", node.whole()).unwrap().unwrap();
            drop(former);
            node.checked("a", &result);
            assert_eq!(node.left().len(), 3, "after {after} steps: one pair, one address, one rule: {:?}", node.left());
            node.call(Command::Del, "a", node.whole()).unwrap();
            assert_eq!(node.left(), [""; 0]);
            NetNs::remove_at(&path).unwrap();
            if died.is_some() {
                break;
            }
        }
    });
}

#[test]
fn a_killed_del_is_repeated() {
    in_lab("bridge::tests::killed::a_killed_del_is_repeated", || {
        let node = Node::new();
        NetNs::create_at(&node.netns_path("a")).unwrap();
        for after in 0.. {
            node.call(Command::Add, "a", node.whole()).unwrap();
            let died = dying_after(after, || node.call(Command::Del, "a", node.whole()));
            node.call(Command::Del, "a", node.whole()).unwrap();
            assert_eq!(node.left(), [""; 0], "after {after} steps");
            if died.is_some() {
                assert!(after >= 2);
                break;
            }
        }
    });
}

#[test]
fn a_hundred_pods_at_once_have_addresses_of_their_own() {
    in_lab("bridge::tests::killed::a_hundred_pods_at_once_have_addresses_of_their_own", || {
        let node = Node::new();
        let ids: Vec<String> = (0..100).map(|n| format!("pod{n}")).collect();
        let pods: Vec<NetNs> = ids.iter().map(|id| NetNs::create_at(&node.netns_path(id)).unwrap()).collect();
        let all = |command| {
            std::thread::scope(|scope| {
                let node = &node;
                let calls: Vec<_> = ids.iter().map(|id| scope.spawn(move || node.call(command, id, node.conf()).unwrap())).collect();
                calls.into_iter().map(|call| call.join().unwrap()).collect::<Vec<_>>()
            })
        };
        let results: Vec<AddResult> = all(Command::Add).into_iter().map(Option::unwrap).collect();
        let addresses: BTreeSet<_> = results.iter().map(|result| result.ips[0].address).collect();
        assert_eq!(addresses.len(), 100);
        for (pod, result) in pods.iter().zip(&results) {
            let inside = Rtnl::open_in(pod).unwrap();
            let eth0 = inside.link("eth0").unwrap().unwrap().index;
            assert!(inside.addrs(eth0).unwrap().contains(&result.ips[0].address));
        }
        all(Command::Del);
        assert_eq!(node.left(), [""; 0]);
    });
}

/// `make soak` makes more of them: random pods come and go, calls are killed, sandboxes vanish, GC passes.
#[test]
fn random_pods_kills_and_collections_end_clean() {
    in_lab("bridge::tests::killed::random_pods_kills_and_collections_end_clean", || {
        const PODS: usize = 6;
        let node = Node::new();
        let seed = Random::seed();
        let mut random = Random::new(seed);
        // Each pod's sandbox, and what its ADD answered; none where it is in between.
        let mut pods: Vec<(Option<NetNs>, Option<AddResult>)> = (0..PODS).map(|_| (None, None)).collect();
        for cycle in 0..cycles("MULLION_SOAK_LINKS", 40) {
            let at = random.below(PODS);
            let (id, path) = (format!("pod{at}"), node.netns_path(&format!("pod{at}")));
            let death = if random.below(3) == 0 { random.below(14) } else { usize::MAX };
            match random.below(10) {
                0..=4 if pods[at].1.is_none() => {
                    if pods[at].0.is_none() {
                        pods[at].0 = Some(NetNs::create_at(&path).unwrap());
                    }
                    // What was killed before is detached first, as runtimes do.
                    node.call(Command::Del, &id, node.whole()).unwrap();
                    pods[at].1 = dying_after(death, || node.call(Command::Add, &id, node.whole())).map(|made| made.unwrap().unwrap());
                }
                5..=7 => {
                    if random.below(4) == 0 && pods[at].0.take().is_some() {
                        NetNs::remove_at(&path).unwrap();
                    }
                    pods[at].1 = None;
                    drop(dying_after(death, || node.call(Command::Del, &id, node.whole()).unwrap()));
                }
                8 => {
                    let live = pods.iter().enumerate().filter(|(_, (_, result))| result.is_some());
                    node.gc(live.map(|(at, _)| json!({"containerID": format!("pod{at}"), "ifname": "eth0"})).collect());
                    let live: Vec<&AddResult> = pods.iter().filter_map(|(_, result)| result.as_ref()).collect();
                    assert_eq!(node.left().len(), 3 * live.len(), "seed {seed}, cycle {cycle}: {:?}", node.left());
                }
                _ => {}
            }
            let live: Vec<&AddResult> = pods.iter().filter_map(|(_, result)| result.as_ref()).collect();
            let addresses: BTreeSet<_> = live.iter().map(|result| result.ips[0].address).collect();
            assert_eq!(addresses.len(), live.len(), "seed {seed}, cycle {cycle}: an address twice");
            if let Some((at, result)) = pods.iter().enumerate().filter_map(|(at, (_, result))| Some((at, result.as_ref()?))).nth(random.below(PODS)) {
                node.checked(&format!("pod{at}"), result);
            }
        }
        node.gc(json!([]));
        assert_eq!(node.left(), [""; 0], "seed {seed}");
    });
}
