use std::collections::HashMap;

use super::*;

#[cfg(target_os = "linux")]
mod beside_upstream;

fn call(name: &str, env: &[(&str, &str)], stdin: &str) -> (bool, Value) {
    let env: HashMap<String, String> = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let outcome = run(name, &|key| env.get(key).cloned(), stdin.as_bytes());
    (outcome.success, serde_json::from_str(&outcome.stdout).unwrap_or(Value::Null))
}

#[test]
fn version_command_needs_no_input() {
    let (success, doc) = call("host-local", &[("CNI_COMMAND", "VERSION")], "garbage");
    assert!(success);
    assert_eq!(doc["supportedVersions"].as_array().unwrap().len(), 7);
}

#[test]
fn plugin_without_a_command_prints_its_name() {
    let outcome = run("bridge", &|_| None, &b""[..]);
    assert!(outcome.success && outcome.stdout.is_empty());
    assert!(outcome.stderr.contains("1.1.0"));
}

#[test]
fn bad_requests_get_the_specifications_codes() {
    let ids = [("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", "c1"), ("CNI_NETNS", "/ns"), ("CNI_IFNAME", "eth0")];
    let with = |key: &'static str, value: &'static str| {
        let mut env = ids.to_vec();
        env.retain(|(k, _)| *k != key);
        env.push((key, value));
        env
    };
    let conf = r#"{"cniVersion":"1.0.0","name":"n","type":"host-local"}"#;
    let cases = [
        (vec![("CNI_COMMAND", "ADD")], conf, code::INVALID_ENVIRONMENT, "[CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME] missing"),
        (with("CNI_COMMAND", "EXPLODE"), conf, code::INVALID_ENVIRONMENT, "unknown CNI_COMMAND: EXPLODE"),
        (with("CNI_CONTAINERID", "../x"), conf, code::INVALID_ENVIRONMENT, "invalid characters"),
        (with("CNI_IFNAME", "a b"), conf, code::INVALID_ENVIRONMENT, "not an interface name"),
        (with("CNI_ARGS", "novalue"), conf, code::INVALID_ENVIRONMENT, "invalid pair"),
        (ids.to_vec(), "{", code::DECODE, "standard input"),
        (ids.to_vec(), r#"{"cniVersion":"1.0.0","type":"host-local"}"#, code::INVALID_CONFIG, "network name"),
        (ids.to_vec(), r#"{"cniVersion":"3.0.0","name":"n"}"#, code::INCOMPATIBLE_VERSION, "incompatible"),
        (with("CNI_COMMAND", "CHECK"), r#"{"cniVersion":"0.3.1","name":"n"}"#, code::INCOMPATIBLE_VERSION, "does not allow CHECK"),
        (with("CNI_COMMAND", "GC"), conf, code::INCOMPATIBLE_VERSION, "does not allow GC"),
    ];
    for (env, stdin, code, text) in cases {
        let (success, doc) = call("host-local", &env, stdin);
        assert!(!success);
        assert_eq!(doc["code"], code, "{env:?} {stdin}: {doc}");
        assert!(doc["msg"].as_str().unwrap().contains(text), "{doc}");
        assert_eq!(doc["cniVersion"], "1.1.0");
    }
}

/// Before a plug-in looks at anything of its own.
#[test]
fn every_plugin_has_the_commands_of_its_configurations_version() {
    let whole = [("CNI_CONTAINERID", "c1"), ("CNI_NETNS", "/ns"), ("CNI_IFNAME", "eth0"), ("CNI_PATH", "/none")];
    for name in PLUGINS {
        for version in SpecVersion::ALL {
            let conf = json!({"cniVersion": version.as_str(), "name": "n", "type": name}).to_string();
            let refused = [("CHECK", version.has_check()), ("GC", version.has_gc()), ("STATUS", version.has_gc())];
            for (command, _) in refused.into_iter().filter(|(_, allowed)| !allowed) {
                let env: Vec<_> = whole.into_iter().chain([("CNI_COMMAND", command)]).collect();
                let (success, doc) = call(name, &env, &conf);
                let text = format!("config version {version} does not allow {command}");
                assert_eq!((success, &doc["code"], &doc["msg"]), (false, &json!(1), &json!(text)), "{name}");
            }
            for (command, missing) in [
                ("ADD", "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME"),
                ("CHECK", "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME"),
                ("DEL", "CNI_CONTAINERID,CNI_IFNAME"),
            ] {
                let (success, doc) = call(name, &[("CNI_COMMAND", command)], &conf);
                let text = format!("required env variables [{missing}] missing");
                assert_eq!((success, &doc["code"], &doc["msg"]), (false, &json!(4), &json!(text)), "{name} {version}");
            }
        }
        let unknown = json!({"cniVersion": "9.0.0", "name": "n", "type": name}).to_string();
        let env: Vec<_> = whole.into_iter().chain([("CNI_COMMAND", "ADD")]).collect();
        let (_, doc) = call(name, &env, &unknown);
        assert_eq!(doc["code"], code::INCOMPATIBLE_VERSION, "{name}");
        assert_eq!(doc["details"], "config is \"9.0.0\", plugin supports [0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0]");
    }
}

/// Arguments that a plug-in does not know are refused unless `IgnoreUnknown` is true; DEL takes any.
#[test]
fn unknown_arguments_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let conf = json!({"cniVersion": "1.0.0", "name": "n", "type": "host-local", "ipam": {"type": "host-local", "subnet": "10.1.0.0/24", "dataDir": dir.path()}});
    let ask = |command, args| {
        let env = [("CNI_COMMAND", command), ("CNI_CONTAINERID", "c1"), ("CNI_NETNS", "/ns"), ("CNI_IFNAME", "eth0"), ("CNI_ARGS", args)];
        call("host-local", &env, &conf.to_string())
    };
    for (args, text) in [
        ("K8S_POD_NAME=p", "unknown args [\"K8S_POD_NAME=p\"]"),
        ("K8S_POD_NAME=p;IgnoreUnknown=false", "unknown args"),
        ("IgnoreUnknown=0;MAC=x", "unknown args [\"MAC=x\"]"),
        ("IgnoreUnknown=maybe", "no truth value"),
        ("IP", "invalid pair"),
    ] {
        let (success, doc) = ask("ADD", args);
        assert!(!success && doc["code"] == code::INVALID_ENVIRONMENT && doc["msg"].as_str().unwrap().contains(text), "{args}: {doc}");
    }
    for args in
        ["IgnoreUnknown=1;K8S_POD_NAMESPACE=n;K8S_POD_NAME=p;K8S_POD_INFRA_CONTAINER_ID=c;K8S_POD_UID=u", "IgnoreUnknown=TRUE;A=b", "IP=10.1.0.9", ""]
    {
        let (success, doc) = ask("ADD", args);
        assert!(success, "{args}: {doc}");
        assert!(ask("DEL", "A=b").0);
    }
}

#[test]
fn input_is_bounded() {
    let ids = [("CNI_COMMAND", "DEL"), ("CNI_CONTAINERID", "c1"), ("CNI_IFNAME", "eth0")];
    let long = " ".repeat(INPUT_LIMIT as usize + 1);
    let (success, doc) = call("host-local", &ids, &long);
    assert!(!success && doc["msg"].as_str().unwrap().contains("longer than 4 MiB"), "{doc}");
}
