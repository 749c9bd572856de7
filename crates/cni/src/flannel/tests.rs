use std::collections::BTreeMap;

use super::*;

const ENV: &str = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";

fn request(command: Command, conf: Value) -> Request {
    Request {
        command,
        container_id: "abc".into(),
        netns: "/run/netns/none".into(),
        ifname: "eth0".into(),
        args: BTreeMap::new(),
        path: String::new(),
        stdin: conf.to_string().into_bytes(),
        config: PluginConfig::from_value(conf).unwrap(),
    }
}

fn delegated(conf: Value, env: &str, windows: bool) -> Value {
    let request = request(Command::Add, conf);
    let config = Config { windows, ..Config::read(&request).unwrap() };
    config.delegated(&request, &SubnetEnv::parse(env).unwrap()).unwrap().into()
}

#[test]
fn delegates_configuration_is_upstreams() {
    let conf = json!({"cniVersion": "1.0.0", "name": "cbr0", "type": "flannel"});
    assert_eq!(
        delegated(conf.clone(), ENV, false),
        json!({"name": "cbr0", "cniVersion": "1.0.0", "type": "bridge", "ipMasq": false, "mtu": 1450, "isGateway": true,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.1.0/24"}]], "routes": [{"dst": "10.244.0.0/16"}]}})
    );
    assert_eq!(
        delegated(conf.clone(), ENV, true),
        json!({"name": "cbr0", "cniVersion": "1.0.0", "type": "win-bridge", "ipMasq": true, "ipMasqNetwork": "10.244.0.0/16",
            "ipam": {"type": "host-local", "subnet": "10.244.1.0/24"}})
    );
    // As kube-flannel's own file has it, and with what a user adds.
    let mut given = conf;
    given["delegate"] = json!({"hairpinMode": true, "isDefaultGateway": true, "mtu": 1400});
    given["ipam"] = json!({"dataDir": "/ipam", "routes": [{"dst": "0.0.0.0/0"}]});
    given["runtimeConfig"] = json!({"mac": "02:00:00:00:00:01"});
    let made = delegated(given, &ENV.replace("true", "false"), false);
    assert_eq!((&made["hairpinMode"], &made["mtu"], &made["ipMasq"]), (&json!(true), &json!(1400), &json!(true)));
    assert_eq!(made["ipam"]["routes"], json!([{"dst": "10.244.0.0/16"}, {"dst": "0.0.0.0/0"}]));
    assert_eq!((&made["ipam"]["dataDir"], &made["runtimeConfig"]["mac"]), (&json!("/ipam"), &json!("02:00:00:00:00:01")));
}

#[test]
fn bad_files_and_delegates_are_refused_with_the_reason() {
    for (text, words) in [
        ("", "has no FLANNEL_NETWORK"),
        ("FLANNEL_NETWORK=10.244.0.0/16\n", "has no FLANNEL_SUBNET"),
        (&ENV.replace("FLANNEL_MTU", "FLANNEL_M"), "has no FLANNEL_MTU"),
        (&ENV.replace("1450", "-1"), "FLANNEL_MTU is \"-1\""),
        (&ENV.replace("10.244.1.1/24", "10.244.1.1"), "no network"),
        (&ENV.replace("true", "yes"), "FLANNEL_IPMASQ is \"yes\", not true or false"),
    ] {
        let error = SubnetEnv::parse(text).unwrap_err();
        assert!(error.contains(words), "{text:?}: {error}");
    }
    for (delegate, words) in
        [(json!({"name": "x"}), "must not have 'name'"), (json!({"ipam": {}}), "'ipam'"), (json!(7), "object"), (json!({"type": 7}), "'type'")]
    {
        let conf = json!({"cniVersion": "1.0.0", "name": "cbr0", "type": "flannel", "delegate": delegate});
        let error = handle(&request(Command::Add, conf)).unwrap_err();
        assert!(error.msg.contains(words), "{delegate}: {}", error.msg);
    }
    let dir = tempfile::tempdir().unwrap();
    let mut conf =
        json!({"cniVersion": "1.1.0", "name": "cbr0", "type": "flannel", "subnetFile": dir.path().join("subnet.env"), "dataDir": dir.path()});
    let error = handle(&request(Command::Add, conf.clone())).unwrap_err();
    assert!(error.code == crate::spec::code::TRY_AGAIN && error.msg.contains("flannel writes it"), "{error:?}");
    assert_eq!(handle(&request(Command::Status, conf.clone())).unwrap_err().code, crate::spec::code::NOT_AVAILABLE);
    handle(&request(Command::Del, conf.clone())).unwrap();
    conf["delegate"] = json!({"type": "../evil"});
    fs::write(dir.path().join("subnet.env"), ENV).unwrap();
    let error = handle(&request(Command::Add, conf)).unwrap_err();
    assert!(error.msg.contains("not a program in CNI_PATH"), "{error:?}");
}

#[test]
fn half_written_subnet_env_is_refused() {
    let whole = SubnetEnv::parse(ENV).unwrap();
    let utf16: Vec<u8> = [0xff, 0xfe].into_iter().chain(ENV.encode_utf16().flat_map(u16::to_le_bytes)).collect();
    assert_eq!(SubnetEnv::parse(&host::decode_text(&utf16)).unwrap(), whole, "as Windows PowerShell writes it");
    for cut in 0..ENV.len() - 1 {
        SubnetEnv::parse(&ENV[..cut]).unwrap_err();
    }
    assert_eq!(SubnetEnv::parse(ENV.trim_end()).unwrap(), whole, "the end of the last line does not count");
}

/// The file by which DEL knows what ADD gave the delegate.
#[test]
fn container_whose_file_is_half_written_is_detached_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let env = dir.path().join("subnet.env");
    let conf = json!({"cniVersion": "1.1.0", "name": "cbr0", "type": "flannel", "subnetFile": env, "dataDir": dir.path().join("kept"),
        "delegate": {"type": "host-local"}, "ipam": {"dataDir": dir.path().join("ipam")}});
    let (kept, reserved) = (dir.path().join("kept/abc"), || fs::read_dir(dir.path().join("ipam/cbr0")).unwrap().count() - 2);
    fs::write(&env, ENV).unwrap();
    handle(&request(Command::Add, conf.clone())).unwrap();
    let whole = fs::read(&kept).unwrap();
    for cut in 0..whole.len() {
        handle(&request(Command::Add, conf.clone())).unwrap();
        fs::write(&kept, &whole[..cut]).unwrap();
        assert_eq!(reserved(), 1);
        let error = handle(&request(Command::Check, conf.clone())).unwrap_err();
        assert!(error.code == crate::spec::code::DRIFT && error.msg.contains("kept/abc"), "{cut}: {error:?}");
        handle(&request(Command::Del, conf.clone())).unwrap();
        assert!(reserved() == 0 && !kept.exists(), "{cut}");
    }
    fs::write(&kept, &whole[..7]).unwrap();
    handle(&request(Command::Gc, conf)).unwrap();
    assert!(!kept.exists(), "GC forgets what nobody can read");
}

#[cfg(target_os = "linux")]
mod with_links {
    use linux_sys::netlink::Rtnl;
    use linux_sys::ns::{NetNs, in_lab};

    use super::*;

    #[test]
    fn pod_is_attached_checked_and_detached_with_what_add_saw() {
        in_lab("flannel::tests::with_links::pod_is_attached_checked_and_detached_with_what_add_saw", || {
            let dir = tempfile::tempdir().unwrap();
            let env = dir.path().join("subnet.env");
            fs::write(&env, ENV).unwrap();
            let sandbox = dir.path().join("netns");
            let pod = NetNs::create_at(&sandbox).unwrap();
            let conf = json!({"cniVersion": "1.1.0", "name": "cbr0", "type": "flannel", "subnetFile": env, "dataDir": dir.path().join("kept"),
                "delegate": {"isDefaultGateway": true}, "ipam": {"dataDir": dir.path().join("ipam")}});
            let call = |command, conf: &Value| handle(&Request { netns: sandbox.to_str().unwrap().into(), ..request(command, conf.clone()) });
            call(Command::Status, &conf).unwrap();
            let result = call(Command::Add, &conf).unwrap().unwrap();
            assert_eq!((result.ips[0].address.to_string(), result.ips[0].gateway), ("10.244.1.2/24".into(), "10.244.1.1".parse().ok()));
            let inside = Rtnl::open_in(&pod).unwrap();
            assert_eq!(inside.link("eth0").unwrap().unwrap().mtu, 1450);
            assert!(inside.routes().unwrap().iter().any(|route| route.dst.to_string() == "10.244.0.0/16"));
            let mut check = conf.clone();
            check["prevResult"] = result.to_json(crate::spec::SpecVersion::V1_1_0);
            call(Command::Check, &check).unwrap();
            // The node's subnet changes, and the container still goes with the address that it had.
            fs::write(&env, ENV.replace("10.244.1.", "10.244.9.")).unwrap();
            for _ in 0..2 {
                call(Command::Del, &check).unwrap();
            }
            assert!(inside.link("eth0").unwrap().is_none() && !dir.path().join("ipam/cbr0/10.244.1.2").exists());
            assert_eq!(fs::read_dir(dir.path().join("kept")).unwrap().count(), 0);
        });
    }
}
