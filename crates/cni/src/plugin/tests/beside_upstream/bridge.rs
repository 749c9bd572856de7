//! `bridge` with `host-local`, as upstream's.

use super::*;

/// The versions that both know.
pub const VERSIONS: [&str; 6] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0"];

/// The configuration, with what its test adds; null removes a key.
fn conf(world: &World, more: &Value) -> Value {
    let mut conf = world.conf("bridge", json!({"bridge": "pods0", "ipam": world.ipam(), "dns": {"nameservers": ["10.96.0.10"], "search": ["a"]}}));
    for (key, value) in more.as_object().unwrap() {
        conf[key] = value.clone();
    }
    if conf["ipam"] == "no routes" {
        conf["ipam"] = world.ipam();
        conf["ipam"].as_object_mut().unwrap().remove("routes");
    }
    conf.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    conf
}

fn with(mut conf: Value, before: &Value) -> Value {
    conf["prevResult"] = before.clone();
    conf
}

/// ADD, CHECK by both, and DEL by the other, twice.
fn life(more: &Value) {
    let worlds = worlds();
    let before = worlds[0].1.state();
    let results = same("bridge", "ADD", |world, _| conf(world, more), &worlds);
    let of = |world: &World, side: Side, own: bool| with(conf(world, more), &results[usize::from((side == Theirs) == own)]);
    let without_addresses = more.get("ipam").is_some_and(|ipam| ipam != "no routes");
    if without_addresses {
        // Upstream's CHECK fails without address management.
        for (at, (_, world)) in worlds.iter().enumerate() {
            world.done(Ours, "bridge", "CHECK", &with(conf(world, more), &results[at]));
        }
    }
    let has_check = !without_addresses && more.get("cniVersion").is_none_or(|version| VERSIONS[4..].iter().any(|known| version == known));
    if has_check {
        same("bridge", "CHECK", |world, side| of(world, side, true), &worlds);
    }
    let crossed = crossed(worlds);
    if has_check {
        same("bridge", "CHECK", |world, side| of(world, side, false), &crossed);
    }
    if more["ipMasq"] == true {
        // Upstream's first DEL of our pod ends with an error: it removes link and address, and then takes iptables-nft's word for a chain
        // that is not there as a failure.
        let (fine, answer) = crossed[0].1.call(Theirs, "bridge", "DEL", &of(&crossed[0].1, Theirs, false));
        assert!(fine || answer["msg"].as_str().unwrap().contains("does not exist"), "{answer}");
    }
    for _ in 0..2 {
        same("bridge", "DEL", |world, side| of(world, side, false), &crossed);
    }
    for (_, world) in &crossed {
        assert!(!world.dir.path().join("ipam/pods/10.1.0.2").exists(), "{more}: the address is free");
        let state = world.state();
        assert!(!state.contains("veth"), "{more}: {state}");
        let left: Vec<&str> = without_forwarding(&state).into_iter().filter(|line| !line.contains("pods0") && !line.contains("other0")).collect();
        assert_eq!(left, without_forwarding(&before), "{more}");
        let rules = world.host.run(|| Process::new("iptables").args(["-t", "nat", "-S"]).output()).unwrap().unwrap();
        let rules = String::from_utf8(rules.stdout).unwrap();
        assert!(!rules.contains("CNI-"), "{more}: what upstream masquerades a pod by: {rules}");
    }
}

#[test]
fn every_version_is_upstreams() {
    in_lab("plugin::tests::beside_upstream::bridge::every_version_is_upstreams", || {
        for version in VERSIONS {
            life(&json!({"cniVersion": version, "isGateway": true}));
        }
    });
}

#[test]
fn every_option_is_upstreams() {
    in_lab("plugin::tests::beside_upstream::bridge::every_option_is_upstreams", || {
        for more in [
            json!({}),
            json!({"isDefaultGateway": true, "hairpinMode": true, "ipam": "no routes"}),
            json!({"isGateway": true, "promiscMode": true}),
            json!({"isGateway": true, "ipMasq": true}),
            json!({"mtu": 1400}),
            json!({"ipam": {}}),
            json!({"ipam": null, "bridge": "other0"}),
            json!({"isGateway": true, "runtimeConfig": {"mac": MAC}}),
            json!({"args": {"cni": {"mac": MAC}}}),
            json!({"isGateway": true, "forceAddress": true}),
        ] {
            life(&more);
        }
    });
}

/// What is wrong with a pod, both find.
#[test]
fn check_finds_what_upstreams_finds() {
    in_lab("plugin::tests::beside_upstream::bridge::check_finds_what_upstreams_finds", || {
        type Fault = (&'static str, fn(&World, &Value));
        let faults: [Fault; 7] = [
            ("address", |world, _| {
                let rtnl = Rtnl::open_in(&world.pod).unwrap();
                rtnl.del_addr(rtnl.link("eth0").unwrap().unwrap().index, "10.1.0.2/24".parse().unwrap()).unwrap();
            }),
            ("route", |world, _| {
                let rtnl = Rtnl::open_in(&world.pod).unwrap();
                rtnl.del_route_to("0.0.0.0/0".parse().unwrap(), 254).unwrap();
            }),
            ("port", |world, _| {
                let rtnl = Rtnl::open_in(&world.host).unwrap();
                let port = rtnl.links().unwrap().into_iter().find(|link| link.kind == "veth").unwrap();
                rtnl.set_master(port.index, None).unwrap();
            }),
            ("MAC of the pod", |world, _| {
                let rtnl = Rtnl::open_in(&world.pod).unwrap();
                rtnl.set_mac(rtnl.link("eth0").unwrap().unwrap().index, bytes(MAC)).unwrap();
            }),
            ("MAC of the bridge", |world, _| {
                let rtnl = Rtnl::open_in(&world.host).unwrap();
                rtnl.set_mac(rtnl.link("pods0").unwrap().unwrap().index, bytes(MAC)).unwrap();
            }),
            ("promiscuous mode", |world, _| {
                let rtnl = Rtnl::open_in(&world.host).unwrap();
                rtnl.set_promiscuous(rtnl.link("pods0").unwrap().unwrap().index, true).unwrap();
            }),
            ("reservation", |world, _| std::fs::remove_file(world.dir.path().join("ipam/pods/10.1.0.2")).unwrap()),
        ];
        for (fault, make) in faults {
            for (side, world) in worlds() {
                let conf = conf(&world, &json!({"isGateway": true}));
                let result = world.done(side, "bridge", "ADD", &conf);
                let conf = with(conf, &result);
                world.done(side, "bridge", "CHECK", &conf);
                make(&world, &conf);
                for checks in [Ours, Theirs] {
                    let (fine, answer) = world.call(checks, "bridge", "CHECK", &conf);
                    assert!(!fine, "{checks:?} finds no fault with {side:?} pod: {fault}");
                    assert!(answer["msg"].as_str().is_some_and(|text| !text.is_empty()), "{answer}");
                }
            }
        }
    });
}
