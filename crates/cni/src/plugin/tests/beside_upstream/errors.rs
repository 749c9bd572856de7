//! What is wrong with a request, as upstream's plug-ins say it.

use super::*;

/// The codes of the specification's own checks, before a plug-in looks at its configuration, are the same; so are their messages' subjects.
#[test]
fn requests_are_refused_with_upstreams_codes() {
    in_lab("plugin::tests::beside_upstream::errors::requests_are_refused_with_upstreams_codes", || {
        let world = World::new();
        let fine = json!({"cniVersion": "1.0.0", "name": "pods", "type": "x", "bridge": "b0", "ipam": {"type": "host-local", "subnet": "10.1.0.0/24", "dataDir": world.dir.path()}});
        let of = |key: &str, value: Value| {
            let mut conf = fine.clone();
            conf[key] = value;
            conf.to_string()
        };
        let fine = fine.to_string();
        let long = "a".repeat(16);
        let cases: Vec<(&[(&str, &str)], String)> = vec![
            (&[("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", ""), ("CNI_NETNS", ""), ("CNI_IFNAME", "")], fine.clone()),
            (&[("CNI_COMMAND", "ADD"), ("CNI_NETNS", "")], fine.clone()),
            (&[("CNI_COMMAND", "CHECK"), ("CNI_IFNAME", "")], fine.clone()),
            (&[("CNI_COMMAND", "DEL"), ("CNI_CONTAINERID", "")], fine.clone()),
            (&[("CNI_COMMAND", "DEL"), ("CNI_IFNAME", "")], fine.clone()),
            (&[("CNI_COMMAND", "EXPLODE")], fine.clone()),
            (&[("CNI_COMMAND", "add")], fine.clone()),
            (&[("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", "../x")], fine.clone()),
            (&[("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", "-x")], fine.clone()),
            (&[("CNI_COMMAND", "ADD"), ("CNI_IFNAME", "a b")], fine.clone()),
            (&[("CNI_COMMAND", "ADD"), ("CNI_IFNAME", "a/b")], fine.clone()),
            (&[("CNI_COMMAND", "ADD"), ("CNI_IFNAME", "a:b")], fine.clone()),
            (&[("CNI_COMMAND", "ADD"), ("CNI_IFNAME", "..")], fine.clone()),
            (&[("CNI_COMMAND", "ADD"), ("CNI_IFNAME", ".")], fine.clone()),
            (&[("CNI_COMMAND", "ADD")], "{".to_owned()),
            (&[("CNI_COMMAND", "ADD")], String::new()),
            (&[("CNI_COMMAND", "ADD")], "[]".to_owned()),
            (&[("CNI_COMMAND", "ADD")], of("name", json!(""))),
            (&[("CNI_COMMAND", "ADD")], of("name", json!("../pods"))),
            (&[("CNI_COMMAND", "ADD")], of("cniVersion", json!("7.0.0"))),
            (&[("CNI_COMMAND", "ADD")], of("cniVersion", json!("nonsense"))),
            (&[("CNI_COMMAND", "CHECK")], of("cniVersion", json!("0.3.1"))),
            (&[("CNI_COMMAND", "CHECK")], of("cniVersion", json!(""))),
        ];
        let mut wrong = Vec::new();
        let mut compare = |plugin: &str, env: &[(&str, &str)], conf: &str| {
            let (ours, theirs) = (world.call_with(Ours, plugin, env, conf), world.call_with(Theirs, plugin, env, conf));
            if ours.0 || theirs.0 || ours.1["code"] != theirs.1["code"] {
                wrong.push(format!("{plugin} {env:?} {conf}: ours said {}, theirs {}", ours.1, theirs.1));
            }
        };
        for (env, conf) in &cases {
            for plugin in ["bridge", "host-local", "portmap"] {
                compare(plugin, env, conf);
            }
        }
        compare("bridge", &[("CNI_COMMAND", "ADD"), ("CNI_IFNAME", &long)], &fine);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert_eq!(std::fs::read_dir(world.dir.path()).unwrap().count(), 1, "nothing was made");
    });
}

/// VERSION needs nothing else, and lists upstream's versions and newer ones.
#[test]
fn version_is_upstreams() {
    in_lab("plugin::tests::beside_upstream::errors::version_is_upstreams", || {
        let world = World::new();
        for plugin in ["bridge", "host-local", "portmap", "ptp", "loopback", "tuning", "bandwidth"] {
            for stdin in ["", "garbage", "{\"cniVersion\": \"0.2.0\"}"] {
                let nothing = [("CNI_COMMAND", "VERSION"), ("CNI_CONTAINERID", ""), ("CNI_NETNS", ""), ("CNI_IFNAME", ""), ("CNI_PATH", "")];
                let [ours, theirs] = [Ours, Theirs].map(|side| world.call_with(side, plugin, &nothing, stdin));
                assert!(ours.0 && theirs.0, "{plugin}");
                let list = |answer: &Value| answer["supportedVersions"].as_array().unwrap().clone();
                assert!(list(&theirs.1).iter().all(|version| list(&ours.1).contains(version)), "{plugin}: {} {}", ours.1, theirs.1);
                assert_eq!(list(&ours.1).last(), Some(&ours.1["cniVersion"]));
            }
        }
    });
}

/// What a plug-in itself refuses is refused by both, and upstream's reason is in ours.
#[test]
fn configurations_are_refused_as_upstreams() {
    in_lab("plugin::tests::beside_upstream::errors::configurations_are_refused_as_upstreams", || {
        for (plugin, more, reason) in [
            ("bridge", json!({"hairpinMode": true, "promiscMode": true}), "cannot set hairpin mode and promiscuous mode at the same time"),
            ("bridge", json!({"bridge": "lo"}), "\"lo\" already exists but is not a bridge"),
            ("bridge", json!({"bridge": 7}), "bridge"),
            ("bridge", json!({"bridge": "pods0", "ipam": {"type": "none-such"}}), "none-such"),
            ("ptp", json!({"ipam": {"type": "none-such"}}), "none-such"),
            ("portmap", json!({"runtimeConfig": {"portMappings": [{"hostPort": 1, "containerPort": 1}]}}), "must be called as chained plugin"),
            (
                "portmap",
                json!({"prevResult": {"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.2/24"}]}, "runtimeConfig": {"portMappings": [{"hostPort": 0, "containerPort": 1}]}}),
                "Invalid host port number: 0",
            ),
            (
                "portmap",
                json!({"prevResult": {"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.2/24"}]}, "runtimeConfig": {"portMappings": [{"hostPort": 1, "containerPort": 0}]}}),
                "Invalid container port number: 0",
            ),
        ] {
            let world = World::new();
            let conf = world.conf(plugin, more);
            for side in [Ours, Theirs] {
                let before = world.state();
                let (fine, answer) = world.call(side, plugin, "ADD", &conf);
                let text = answer["msg"].as_str().unwrap_or_default();
                assert!(!fine && text.contains(reason), "{side:?} {plugin} {conf}: {answer}");
                if side == Ours {
                    let bridge_apart = |state: String| state.lines().filter(|line| !line.contains("pods0")).map(str::to_owned).collect::<Vec<_>>();
                    assert_eq!(bridge_apart(world.state()), bridge_apart(before), "{plugin} {conf}");
                }
            }
        }
        for (side, world) in worlds() {
            let conf = world.conf("bridge", json!({"bridge": "pods0", "isGateway": true, "ipam": world.ipam()}));
            world.done(side, "bridge", "ADD", &conf);
            for again in [Ours, Theirs] {
                let (fine, answer) = world.call(again, "bridge", "ADD", &conf);
                assert!(!fine && answer["msg"].as_str().unwrap().contains("already exists") && answer["code"] == 999, "{side:?} {again:?}: {answer}");
            }
            let mut other = conf.clone();
            other["ipam"]["ranges"] = json!([[{"subnet": "10.2.0.0/24"}]]);
            world.done(side, "bridge", "DEL", &conf);
            for again in [Ours, Theirs] {
                let (fine, answer) = world.call(again, "bridge", "ADD", &other);
                assert!(
                    !fine && answer["msg"].as_str().unwrap().contains("\"pods0\" already has an IP address different from 10.2.0.1/24"),
                    "{answer}"
                );
            }
        }
    });
}
