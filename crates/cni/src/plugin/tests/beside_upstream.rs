//! Our plug-ins beside upstream's, as Debian has them (package containernetworking-plugins): the same input gives the same result and the
//! same state of the kernel, and what one attached the other detaches.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};

use linux_sys::netlink::Rtnl;
use linux_sys::ns::{NetNs, in_lab};

use super::*;

mod bridge;
mod errors;
mod host_local;
mod portmap;

const THEIRS: &str = "/usr/lib/cni";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Ours,
    Theirs,
}
use Side::{Ours, Theirs};

/// A node and a pod.
struct World {
    dir: tempfile::TempDir,
    host: NetNs,
    pod: NetNs,
}

impl World {
    fn new() -> Self {
        assert!(Path::new(THEIRS).join("loopback").exists(), "upstream's plug-ins are missing: tools/setup installs containernetworking-plugins");
        let dir = tempfile::tempdir().unwrap();
        let pod = NetNs::create_at(&dir.path().join("pod")).unwrap();
        Self { host: NetNs::new_anonymous().unwrap(), pod, dir }
    }

    fn sandbox(&self) -> PathBuf {
        self.dir.path().join("pod")
    }

    /// Calls a plug-in; whether it succeeded, and what it printed.
    fn call(&self, side: Side, name: &str, command: &str, conf: &Value) -> (bool, Value) {
        self.call_with(side, name, &[("CNI_COMMAND", command)], &conf.to_string())
    }

    /// The same with these variables, of which empty ones are not set, in the place of the usual ones, and any input.
    fn call_with(&self, side: Side, name: &str, changed: &[(&str, &str)], stdin: &str) -> (bool, Value) {
        let sandbox = self.sandbox().display().to_string();
        let usual = [("CNI_CONTAINERID", "c1"), ("CNI_NETNS", &sandbox), ("CNI_IFNAME", "eth0"), ("CNI_PATH", THEIRS)];
        let mut env: BTreeMap<String, String> = usual.into_iter().chain(changed.iter().copied()).map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        env.retain(|_, value| !value.is_empty());
        let (success, stdout) = self
            .host
            .run(|| match side {
                Ours => {
                    let outcome = run(name, &|key| env.get(key).cloned(), stdin.as_bytes());
                    (outcome.success, outcome.stdout)
                }
                Theirs => {
                    let mut child = Process::new(Path::new(THEIRS).join(name))
                        .env_clear()
                        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
                        .envs(env)
                        .stdin(Stdio::piped())
                        .stdout(Stdio::piped())
                        .stderr(Stdio::null())
                        .spawn()
                        .unwrap();
                    // It may answer without reading.
                    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
                    let output = child.wait_with_output().unwrap();
                    (output.status.success(), String::from_utf8(output.stdout).unwrap())
                }
            })
            .unwrap();
        (success, serde_json::from_str(&stdout).unwrap_or(Value::Null))
    }

    /// As [`World::call`], which has to succeed.
    #[track_caller]
    fn done(&self, side: Side, name: &str, command: &str, conf: &Value) -> Value {
        let (success, answer) = self.call(side, name, command, conf);
        assert!(success, "{side:?} {name} {command}: {answer}");
        answer
    }

    /// A document without MACs, without the numbers in links' names, and with this world's paths replaced.
    fn plain(&self, answer: &Value) -> Value {
        let text = answer.to_string().replace(&self.sandbox().display().to_string(), "POD");
        let mut answer: Value = serde_json::from_str(&text).unwrap();
        for interface in answer["interfaces"].as_array_mut().into_iter().flatten() {
            interface["name"] = json!(stem_of(interface["name"].as_str().unwrap()));
            if interface["mac"] != "00:00:00:00:00:00" && interface["mac"] != MAC {
                interface["mac"] = json!("any");
            }
        }
        answer
    }

    /// Links, addresses and routes of node and pod.
    fn state(&self) -> String {
        let mut lines = Vec::new();
        for (place, ns) in [("node", &self.host), ("pod", &self.pod)] {
            let rtnl = Rtnl::open_in(ns).unwrap();
            let links = rtnl.links().unwrap();
            for link in &links {
                let name = stem_of(&link.name);
                let fixed = if link.mac == bytes(MAC) { " mac" } else { "" };
                let modes = (link.up, link.promiscuous, link.all_multicast, link.master.is_some());
                lines.push(format!("{place} link {name} {} {} {modes:?}{fixed}", link.kind, link.mtu));
                let addresses = rtnl.addrs(link.index).unwrap();
                lines.extend(addresses.iter().filter(|a| !is_link_local(a)).map(|address| format!("{place} {name} has {address}")));
            }
            for route in rtnl.routes().unwrap().iter().filter(|route| route.dst.addr().is_ipv4()) {
                let by = route.oif.and_then(|oif| links.iter().find(|link| link.index == oif)).map(|link| stem_of(&link.name));
                lines.push(format!("{place} route {} via {:?} dev {by:?} source {:?}", route.dst, route.via, route.source));
            }
        }
        lines.extend(self.ports());
        for (place, ns, names) in [("node", &self.host, ["net.ipv4.ip_forward"]), ("pod", &self.pod, ["net.ipv4.conf.eth0.arp_notify"])] {
            let read = |name: &str| ns.run(|| linux_sys::sysctl::get(name)).unwrap().unwrap_or_default();
            lines.extend(names.map(|name| format!("{place} {name} {}", read(name))));
        }
        lines.sort();
        lines.join("\n")
    }

    /// The ports of the node's bridges, with their switches.
    fn ports(&self) -> Vec<String> {
        let output = self.host.run(|| Process::new("bridge").args(["-d", "link", "show"]).output()).unwrap().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let switches = text.lines().filter(|line| line.trim_start().starts_with("hairpin")).map(|line| format!("node port {}", line.trim()));
        switches.collect()
    }

    /// What bounds the node's links, as tc(8) shows it, without what chance decides; and where what the pod sends is redirected to.
    fn bounds(&self) -> (String, String) {
        let show = |what: &[&str]| {
            let output = self.host.run(|| Process::new("tc").args(what).output()).unwrap().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let plain = |line: &str| {
            let words = line.split_whitespace().filter(|word| !word.ends_with(':') || *word == "ffff:");
            words.map(|word| stem_of(word.trim_end_matches(')'))).collect::<Vec<_>>().join(" ")
        };
        let mut disciplines: Vec<String> = show(&["qdisc", "show"]).lines().filter(|line| !line.contains("noqueue")).map(plain).collect();
        disciplines.sort();
        let links = Rtnl::open_in(&self.host).unwrap().links().unwrap();
        let end = links.into_iter().find(|link| link.kind == "veth").map(|link| link.name).unwrap_or_default();
        let filters = show(&["filter", "show", "dev", &end, "parent", "ffff:"]);
        let redirected = filters.lines().find(|line| line.contains("mirred")).map(plain).unwrap_or_default();
        (disciplines.join("\n"), redirected)
    }

    fn ipam(&self) -> Value {
        json!({"type": "host-local", "dataDir": self.dir.path().join("ipam"), "ranges": [[{"subnet": "10.1.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]})
    }

    fn conf(&self, kind: &str, more: Value) -> Value {
        let mut conf = json!({"cniVersion": "1.0.0", "name": "pods", "type": kind});
        conf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        conf
    }
}

const MAC: &str = "02:00:00:00:00:07";

fn bytes(mac: &str) -> [u8; 6] {
    crate::links::parse_mac(mac).unwrap()
}

fn is_link_local(address: &ipnet::IpNet) -> bool {
    matches!(address, ipnet::IpNet::V6(v6) if v6.addr().is_unicast_link_local())
}

/// A link's name without the number that tells it from others.
fn stem_of(name: &str) -> &str {
    ["veth", "bwp"].into_iter().find(|stem| name.starts_with(stem) && name.len() > stem.len()).unwrap_or(name)
}

/// Both sides do the same; their answers and states are compared. Returns the two worlds and the answers as they came.
#[track_caller]
fn same(name: &str, command: &str, conf: impl Fn(&World, Side) -> Value, worlds: &[(Side, World); 2]) -> [Value; 2] {
    let answers = worlds.each_ref().map(|(side, world)| world.done(*side, name, command, &conf(world, *side)));
    let [ours, theirs] = [0, 1].map(|at| worlds[at].1.plain(&answers[at]));
    assert_eq!(ours, theirs, "{name} {command}: results");
    assert_eq!(worlds[0].1.state(), worlds[1].1.state(), "{name} {command}: the kernel's state");
    answers
}

/// A state without the switch that plug-ins turn on and leave on.
fn without_forwarding(state: &str) -> Vec<&str> {
    state.lines().filter(|line| !line.contains("ip_forward")).collect()
}

/// The worlds with the sides exchanged: each works on what the other made.
fn crossed(worlds: [(Side, World); 2]) -> [(Side, World); 2] {
    worlds.map(|(side, world)| (if side == Ours { Theirs } else { Ours }, world))
}

fn worlds() -> [(Side, World); 2] {
    [(Ours, World::new()), (Theirs, World::new())]
}

#[test]
fn loopback_is_upstreams() {
    in_lab("plugin::tests::beside_upstream::loopback_is_upstreams", || {
        let worlds = worlds();
        let conf = |world: &World, _| world.conf("loopback", json!({}));
        let results = same("loopback", "ADD", conf, &worlds);
        let with = |world: &World, side| world.conf("loopback", json!({"prevResult": results[usize::from(side == Theirs)]}));
        same("loopback", "CHECK", with, &worlds);
        same("loopback", "ADD", with, &worlds);
        same("loopback", "DEL", conf, &worlds);
        for (side, world) in &worlds {
            assert!(!world.call(*side, "loopback", "CHECK", &with(world, *side)).0, "{side:?}: it is down");
            NetNs::remove_at(&world.sandbox()).unwrap();
            world.done(*side, "loopback", "DEL", &conf(world, *side));
        }
    });
}

#[test]
fn ptp_is_upstreams() {
    in_lab("plugin::tests::beside_upstream::ptp_is_upstreams", || {
        let worlds = worlds();
        let before = worlds[0].1.state();
        let conf = |world: &World, _| world.conf("ptp", json!({"mtu": 1400, "ipam": world.ipam(), "dns": {"nameservers": ["10.96.0.10"]}}));
        let results = same("ptp", "ADD", conf, &worlds);
        let with = |world: &World, side| {
            let mut conf = conf(world, side);
            conf["prevResult"] = results[usize::from(side == Theirs)].clone();
            conf
        };
        same("ptp", "CHECK", with, &worlds);
        // Each detaches what the other attached.
        let crossed = crossed(worlds);
        let with = |world: &World, side| {
            let mut conf = conf(world, side);
            conf["prevResult"] = results[usize::from(side == Ours)].clone();
            conf
        };
        for _ in 0..2 {
            same("ptp", "DEL", with, &crossed);
        }
        assert_eq!(without_forwarding(&crossed[0].1.state()), without_forwarding(&before));
        for (_, world) in &crossed {
            assert!(!world.dir.path().join("ipam/pods/10.1.0.2").exists(), "the address is free");
        }
    });
}

#[test]
fn tuning_is_upstreams() {
    in_lab("plugin::tests::beside_upstream::tuning_is_upstreams", || {
        let worlds = worlds();
        let pairs = same("ptp", "ADD", |world, _| world.conf("ptp", json!({"ipam": world.ipam()})), &worlds);
        let before = worlds[0].1.state();
        let settings = json!({"net.ipv4.conf.eth0.arp_filter": "1", "net/core/somaxconn": "500"});
        let conf = |world: &World, side| {
            let more = json!({"sysctl": settings, "mac": MAC, "mtu": 1300, "promisc": true, "allmulti": true, "dataDir": world.dir.path().join("kept"),
                "prevResult": pairs[usize::from(side == Theirs)]});
            world.conf("tuning", more)
        };
        let results = same("tuning", "ADD", conf, &worlds);
        for (_, world) in &worlds {
            let read = |name: &str| world.pod.run(|| linux_sys::sysctl::get(name)).unwrap().unwrap();
            assert_eq!((read("net.core.somaxconn").trim(), read("net.ipv4.conf.eth0.arp_filter").trim()), ("500", "1"));
        }
        let with = |world: &World, side| {
            let mut conf = conf(world, side);
            conf["prevResult"] = results[usize::from(side == Theirs)].clone();
            conf
        };
        same("tuning", "CHECK", with, &worlds);
        same("tuning", "DEL", with, &worlds);
        assert_eq!(worlds[0].1.state(), before, "what the link had is set back");
        let (ours, theirs) = (&worlds[0].1, &worlds[1].1);
        for bad in
            [json!({"sysctl": {"kernel.shmmax": "1"}}), json!({"sysctl": {"net.core.somaxconn": "1"}, "prevResult": null}), json!({"mac": "x"})]
        {
            let more = |world: &World, side| {
                let mut conf =
                    world.conf("tuning", json!({"prevResult": pairs[usize::from(side == Theirs)], "dataDir": world.dir.path().join("kept")}));
                conf.as_object_mut().unwrap().extend(bad.as_object().unwrap().clone());
                conf
            };
            assert_eq!(
                (ours.call(Ours, "tuning", "ADD", &more(ours, Ours)).0, theirs.call(Theirs, "tuning", "ADD", &more(theirs, Theirs)).0),
                (false, false),
                "{bad}"
            );
        }
    });
}

#[test]
fn bandwidth_is_upstreams() {
    in_lab("plugin::tests::beside_upstream::bandwidth_is_upstreams", || {
        let rates = json!({"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 16_000_000, "egressBurst": 1_600_000});
        for in_runtime in [false, true] {
            let worlds = worlds();
            let pair = |world: &World, _| world.conf("ptp", json!({"ipam": world.ipam()}));
            let pairs = same("ptp", "ADD", pair, &worlds);
            let with = |world: &World, before: &Value| {
                let mut conf = world.conf("bandwidth", if in_runtime { json!({"runtimeConfig": {"bandwidth": rates}}) } else { rates.clone() });
                conf["prevResult"] = before.clone();
                conf
            };
            let results = same("bandwidth", "ADD", |world, side| with(world, &pairs[usize::from(side == Theirs)]), &worlds);
            let (ours, theirs) = (worlds[0].1.bounds(), worlds[1].1.bounds());
            assert!(ours.0.matches("qdisc tbf").count() == 2 && ours.1.contains("Egress Redirect to device bwp stolen"), "{ours:?}");
            assert_eq!(ours, theirs, "tc");
            same("bandwidth", "CHECK", |world, side| with(world, &results[usize::from(side == Theirs)]), &worlds);
            // Each removes what the other made.
            let worlds = crossed(worlds);
            same("bandwidth", "CHECK", |world, side| with(world, &results[usize::from(side == Ours)]), &worlds);
            same("bandwidth", "DEL", |world, side| with(world, &results[usize::from(side == Ours)]), &worlds);
            assert!(!worlds[0].1.state().contains("bwp"));
            // What bounds the pair goes with it.
            same("ptp", "DEL", pair, &worlds);
        }
        let world = World::new();
        let pair = world.done(Ours, "ptp", "ADD", &world.conf("ptp", json!({"ipam": world.ipam()})));
        let mut conf = world.conf("bandwidth", json!({"cniVersion": "1.1.0", "egressRate": 8_000, "egressBurst": 8_000, "prevResult": pair}));
        world.done(Ours, "bandwidth", "ADD", &conf);
        for (valid, left) in [("c1", true), ("c2", false), ("c2", false)] {
            conf["cni.dev/valid-attachments"] = json!([{"containerID": valid, "ifname": "eth0"}]);
            world.done(Ours, "bandwidth", "GC", &conf);
            assert_eq!(world.state().contains("bwp"), left, "GC with {valid}");
        }
        let lame = |world: &World| world.conf("bandwidth", json!({"ingressRate": 8_000, "prevResult": {"cniVersion": "1.0.0"}}));
        for (side, world) in worlds() {
            assert!(!world.call(side, "bandwidth", "ADD", &lame(&world)).0, "{side:?}: a rate needs a burst");
        }
    });
}
