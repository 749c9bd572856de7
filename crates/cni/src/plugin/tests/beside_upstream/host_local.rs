//! `host-local` as upstream's: the same addresses, files and refusals, also from one directory.

use proptest::prelude::*;

use super::bridge::VERSIONS;
use super::*;

/// What lies in a store: names and contents.
fn files(dir: &Path) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(dir.join("pods")).into_iter().flatten().flatten();
    entries.map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read_to_string(entry.path()).unwrap())).collect()
}

struct Stores {
    world: World,
    dirs: [PathBuf; 2],
}

impl Stores {
    fn new() -> Self {
        let world = World::new();
        let dirs = [world.dir.path().join("ours"), world.dir.path().join("theirs")];
        Self { world, dirs }
    }

    fn conf(&self, at: usize, ipam: &Value, more: &Value) -> Value {
        let mut conf = self.world.conf("bridge", json!({"ipam": ipam}));
        conf["ipam"]["type"] = json!("host-local");
        conf["ipam"]["dataDir"] = json!(self.dirs[at]);
        conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        conf
    }

    /// Both are asked the same; returns whether it was granted, and what they said.
    #[track_caller]
    fn same(&self, env: &[(&str, &str)], ipam: &Value, more: &Value) -> (bool, Value) {
        let [ours, theirs] =
            [(Ours, 0), (Theirs, 1)].map(|(side, at)| self.world.call_with(side, "host-local", env, &self.conf(at, ipam, more).to_string()));
        if ours.0 {
            assert_eq!(ours, theirs, "{env:?} {ipam} {more}");
        } else {
            assert!(!theirs.0, "{env:?} {ipam} {more}: ours said {}, theirs {}", ours.1, theirs.1);
            let text = |answer: &Value| answer["msg"].as_str().unwrap_or_default().to_owned();
            // An empty range is, to upstream, one whose start is not in its network.
            let other_words = text(&ours.1).contains("ends before it starts");
            assert!(other_words || text(&ours.1).contains(&text(&theirs.1)), "{env:?} {ipam} {more}: ours said {}, theirs {}", ours.1, theirs.1);
        }
        assert_eq!(files(&self.dirs[0]), files(&self.dirs[1]), "{env:?} {ipam} {more}");
        ours
    }

    fn add(&self, id: &str, ipam: &Value, more: &Value) -> (bool, Value) {
        self.same(&[("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", id)], ipam, more)
    }

    fn del(&self, id: &str, ipam: &Value) {
        assert!(self.same(&[("CNI_COMMAND", "DEL"), ("CNI_CONTAINERID", id), ("CNI_NETNS", "")], ipam, &json!({})).0);
    }
}

#[test]
fn addresses_and_files_are_upstreams() {
    in_lab("plugin::tests::beside_upstream::host_local::addresses_and_files_are_upstreams", || {
        for (version, ranges) in
            VERSIONS.map(|version| (version, json!([[{"subnet": "10.1.0.0/29"}], [{"subnet": "fd00::/125", "gateway": "fd00::5"}]])))
        {
            let stores = Stores::new();
            let ipam = json!({"ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "fd01::/64", "gw": "fd00::9"}]});
            let more = json!({"cniVersion": version});
            for id in ["a", "b", "c"] {
                assert!(stores.add(id, &ipam, &more).0);
            }
            stores.del("b", &ipam);
            stores.del("b", &ipam);
            for id in ["d", "e", "f"] {
                stores.add(id, &ipam, &more);
            }
            assert!(!stores.add("full", &ipam, &more).0, "{version}: five addresses in all");
            stores.del("nobody", &ipam);
        }
    });
}

#[test]
fn requests_are_granted_and_refused_as_upstreams() {
    in_lab("plugin::tests::beside_upstream::host_local::requests_are_granted_and_refused_as_upstreams", || {
        let stores = Stores::new();
        std::fs::write(stores.world.dir.path().join("resolv.conf"), "# c\nnameserver 10.0.0.1\nsearch a b\ndomain d\noptions ndots:5\n").unwrap();
        let ipam = json!({"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.20", "rangeEnd": "10.1.0.90", "gateway": "10.1.0.50",
            "resolvConf": stores.world.dir.path().join("resolv.conf"), "ranges": [[{"subnet": "fd00::/64"}]]});
        let asked =
            |id: &str, args: &str, more: Value| stores.same(&[("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", id), ("CNI_ARGS", args)], &ipam, &more);
        assert!(asked("env", "IP=10.1.0.33", json!({})).0);
        assert!(asked("args", "", json!({"args": {"cni": {"ips": ["10.1.0.44/24"]}}})).0);
        assert!(asked("runtime", "", json!({"runtimeConfig": {"ips": ["10.1.0.55", "fd00::77"]}})).0);
        assert!(asked("kubernetes", "IgnoreUnknown=1;K8S_POD_NAME=p;K8S_POD_NAMESPACE=n", json!({})).0);
        assert!(asked("ranges", "", json!({"runtimeConfig": {"ipRanges": [[{"subnet": "10.7.0.0/24"}]]}})).0);
        for (id, args, more) in [
            ("taken", "IP=10.1.0.33", json!({})),
            ("gateway", "IP=10.1.0.50", json!({})),
            ("outside", "IP=10.9.0.1", json!({})),
            ("below", "IP=10.1.0.5", json!({})),
            ("many", "", json!({"runtimeConfig": {"ips": ["10.1.0.60", "10.9.9.9"]}})),
            ("unknown", "A=b", json!({})),
            ("pair", "IgnoreUnknown", json!({})),
        ] {
            assert!(!asked(id, args, more).0, "{id}");
        }
    });
}

#[test]
fn defects_are_refused_as_upstreams() {
    in_lab("plugin::tests::beside_upstream::host_local::defects_are_refused_as_upstreams", || {
        let stores = Stores::new();
        for ipam in [
            json!({}),
            json!({"ranges": []}),
            json!({"ranges": [[{"subnet": "10.1.0.5/24"}]]}),
            json!({"ranges": [[{"subnet": "10.1.0.0/31"}]]}),
            json!({"ranges": [[{"subnet": "10.1.0.0/32"}]]}),
            json!({"ranges": [[{"subnet": "10.1.0.0/24", "rangeStart": "10.2.0.1"}]]}),
            json!({"ranges": [[{"subnet": "10.1.0.0/24", "rangeEnd": "10.2.0.1"}]]}),
            json!({"ranges": [[{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.9", "rangeEnd": "10.1.0.5"}]]}),
            json!({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.1.0.0/25"}]]}),
            json!({"ranges": [[{"subnet": "10.1.0.0/24"}, {"subnet": "10.1.0.0/25"}]]}),
        ] {
            assert!(!stores.add("a", &ipam, &json!({})).0, "{ipam}");
        }
        let two = json!({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.2.0.0/24"}]]});
        assert!(!stores.add("a", &two, &json!({"cniVersion": "0.2.0"})).0, "one address of a family before 0.3.0");
    });
}

#[test]
fn any_order_of_calls_gives_upstreams_addresses() {
    in_lab("plugin::tests::beside_upstream::host_local::any_order_of_calls_gives_upstreams_addresses", || {
        let ipam = json!({"ranges": [[{"subnet": "10.1.0.0/29"}, {"subnet": "10.2.0.0/30", "gateway": "10.2.0.2"}]]});
        // Each call starts a program.
        proptest!(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() }, |(ops in prop::collection::vec((any::<bool>(), 0u8..9), 1..40))| {
            let stores = Stores::new();
            let mut held = std::collections::BTreeSet::new();
            for (adds, id) in ops {
                let name = format!("c{id}");
                if adds && !held.contains(&id) {
                    if stores.add(&name, &ipam, &json!({})).0 {
                        held.insert(id);
                    }
                } else if !adds {
                    stores.del(&name, &ipam);
                    held.remove(&id);
                }
            }
        });
    });
}

/// One directory, two programs by turns: no address is given out twice, and each frees what the other reserved.
#[test]
fn both_share_a_directory() {
    in_lab("plugin::tests::beside_upstream::host_local::both_share_a_directory", || {
        let stores = Stores::new();
        let ipam = json!({"ranges": [[{"subnet": "10.1.0.0/26"}]]});
        let conf = stores.conf(0, &ipam, &json!({})).to_string();
        let call = |side: Side, command: &str, id: &str| {
            stores.world.call_with(side, "host-local", &[("CNI_COMMAND", command), ("CNI_CONTAINERID", id)], &conf)
        };
        let mut given = std::collections::BTreeSet::new();
        for (at, side) in [Ours, Theirs, Theirs, Ours, Theirs, Ours].into_iter().enumerate() {
            let (fine, answer) = call(side, "ADD", &format!("c{at}"));
            assert!(fine, "{answer}");
            assert!(given.insert(answer["ips"][0]["address"].as_str().unwrap().to_owned()), "{answer} twice");
            assert!(call(Ours, "CHECK", &format!("c{at}")).0 && call(Theirs, "CHECK", &format!("c{at}")).0);
        }
        for (at, side) in [Theirs, Ours, Theirs, Ours, Ours, Theirs].into_iter().enumerate() {
            assert!(call(side, "DEL", &format!("c{at}")).0);
        }
        let left: Vec<String> = files(&stores.dirs[0]).into_keys().collect();
        assert_eq!(left, ["last_reserved_ip.0", "lock"]);
        // Both at once: the lock is one.
        let both = std::thread::scope(|scope| {
            let threads: Vec<_> = [Ours, Theirs]
                .map(|side| scope.spawn(move || (0..12).map(|at| call(side, "ADD", &format!("{side:?}{at}")).1).collect::<Vec<_>>()))
                .into_iter()
                .collect();
            threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap())
                .map(|answer| answer["ips"][0]["address"].to_string())
                .collect::<std::collections::BTreeSet<_>>()
        });
        assert_eq!(both.len(), 24, "{both:?}");
    });
}
