use serde_json::{Value, json};

use super::*;

fn pod(annotations: Value, spec: Value) -> Pod {
    let mut full = json!({"containers": [{"name": "c"}]});
    for (key, value) in spec.as_object().unwrap() {
        full[key] = value.clone();
    }
    serde_json::from_value(json!({"metadata": {"name": "p", "annotations": annotations}, "spec": full})).unwrap()
}

fn note(value: &str) -> Value {
    json!({"container.apparmor.security.beta.kubernetes.io/c": value})
}

fn context(type_: &str, name: Option<&str>) -> Value {
    json!({"securityContext": {"appArmorProfile": {"type": type_, "localhostProfile": name}}})
}

fn with_container(context: Value) -> Value {
    let mut container = context;
    container["name"] = json!("c");
    json!({"containers": [container]})
}

#[test]
fn a_container_has_its_own_profile_then_the_annotated_one_then_its_pods() {
    let both = |pod: Value, container: Value| {
        let mut spec = with_container(container);
        spec["securityContext"] = pod["securityContext"].clone();
        spec
    };
    use ProfileType::{Localhost, RuntimeDefault, Unconfined};
    for (what, annotations, spec, wanted) in [
        ("none", json!({}), json!({}), None),
        ("of the pod", json!({}), context("RuntimeDefault", None), Some((RuntimeDefault, "", "runtime/default"))),
        ("annotated", note("localhost/a"), json!({}), Some((Localhost, "a", "localhost/a"))),
        ("of no form", note("a"), context("Unconfined", None), Some((Unconfined, "", "unconfined"))),
        ("annotated, not the pod's", note("runtime/default"), context("Unconfined", None), Some((RuntimeDefault, "", "runtime/default"))),
        (
            "its own",
            note("runtime/default"),
            both(context("Unconfined", None), context("Localhost", Some("b"))),
            Some((Localhost, "b", "localhost/b")),
        ),
    ] {
        let pod = pod(annotations, spec);
        let got = app_armor(&pod, &pod.spec.as_ref().unwrap().containers[0], String::new).unwrap();
        let wanted = wanted.map(|(kind, name, old)| (v1::SecurityProfile { profile_type: kind as i32, localhost_ref: name.to_owned() }, old));
        let (profile, old) = wanted.unzip();
        assert_eq!(got, (profile, old.unwrap_or_default().to_owned()), "{what}");
    }
    for (type_, message) in [("Localhost", "missing localhost apparmor profile name "), ("Other", "unknown apparmor profile type: \"Other\" ")] {
        let pod = pod(json!({}), context(type_, None));
        let error = app_armor(&pod, &pod.spec.as_ref().unwrap().containers[0], String::new).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn pods_that_ask_for_a_profile_need_a_node_with_the_module() {
    let off = Some("Cannot enforce AppArmor: AppArmor is not enabled on the host");
    let empty = Some("Cannot enforce AppArmor: invalid empty AppArmor profile name: \"\"");
    let ephemeral = json!({"ephemeralContainers": [{"name": "e", "securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}}]});
    for (what, annotations, spec, without, with) in [
        ("none", json!({}), json!({}), None, None),
        ("unconfined", json!({}), context("Unconfined", None), None, None),
        ("annotated as unconfined", note("unconfined"), json!({}), None, None),
        ("of the pod", json!({}), context("RuntimeDefault", None), off, None),
        ("of a container", json!({}), with_container(context("Localhost", Some("a"))), off, None),
        ("of an ephemeral container", json!({}), ephemeral, off, None),
        ("annotated", note("runtime/default"), json!({}), off, None),
        ("without a name", json!({}), context("Localhost", Some(" ")), off, empty),
        ("annotated without a name", note("localhost/"), json!({}), off, empty),
    ] {
        let pod = pod(annotations, spec);
        for (app_armor, wanted) in [(false, without), (true, with)] {
            let got = admit(&pod, Modules { app_armor, selinux: false }).err();
            assert_eq!(got.as_ref().map(|refusal| refusal.message.as_str()), wanted, "{what} {app_armor}");
            assert!(got.is_none_or(|refusal| refusal.reason == "AppArmor"));
        }
    }
}

#[test]
fn selinux_options_are_those_of_the_container_as_a_whole_or_of_the_pod() {
    let level = json!({"seLinuxOptions": {"level": "s0:c1"}});
    let of = |spec: Value| {
        let pod = pod(json!({}), spec);
        let spec = pod.spec.unwrap();
        let context = spec.security_context.unwrap_or_default();
        (selinux_of_pod(&context), selinux(&context, &spec.containers[0]))
    };
    let option = |type_: &str, level: &str| Some(v1::SeLinuxOption { r#type: type_.into(), level: level.into(), ..Default::default() });
    assert_eq!(of(json!({})), (None, None));
    assert_eq!(of(json!({"securityContext": level})), (option("", "s0:c1"), option("", "s0:c1")));
    let own = json!([{"name": "c", "securityContext": {"seLinuxOptions": {"type": "t"}}}]);
    assert_eq!(of(json!({"securityContext": level, "containers": own})), (option("", "s0:c1"), option("t", "")));
}

#[test]
fn volumes_of_the_pod_alone_get_its_label() {
    let claimed = |relabels| Claimed {
        volume: "pv".into(),
        claim: "c".into(),
        block: false,
        relabels,
        source: crate::claims::Source::Device { path: String::new() },
    };
    for (volume, claim, wanted) in [
        (json!({"emptyDir": {}}), None, true),
        (json!({"secret": {"secretName": "s"}}), None, true),
        (json!({"configMap": {"name": "s"}}), None, true),
        (json!({"downwardAPI": {}}), None, true),
        (json!({"projected": {}}), None, true),
        (json!({"hostPath": {"path": "/x"}}), None, false),
        (json!({"image": {"reference": "i"}}), None, false),
        (json!({"csi": {"driver": "d"}}), None, true),
        (json!({"csi": {"driver": "d", "readOnly": true}}), None, false),
        (json!({"flexVolume": {"driver": "d"}}), None, true),
        (json!({"flexVolume": {"driver": "d", "readOnly": true}}), None, false),
        (json!({"persistentVolumeClaim": {"claimName": "c"}}), Some(true), true),
        (json!({"persistentVolumeClaim": {"claimName": "c"}}), Some(false), false),
        (json!({"persistentVolumeClaim": {"claimName": "c", "readOnly": true}}), Some(true), false),
    ] {
        let mut full = volume.clone();
        full["name"] = json!("v");
        let claimed = claim.map(claimed);
        assert_eq!(relabels(&serde_json::from_value(full).unwrap(), claimed.as_ref()), wanted, "{volume}");
    }
}

#[test]
fn the_machine_says_which_modules_are_on() {
    let mounts = |options: &str| format!("sysfs /sys sysfs rw 0 0\nselinuxfs /sys/fs/selinux selinuxfs {options} 0 0\n");
    for (enabled, securityfs, table, label, wanted) in [
        ("Y\n", true, mounts("rw,relatime"), "system_u:system_r:x:s0\0", (true, true)),
        ("Y\n", false, mounts("ro,relatime"), "system_u:system_r:x:s0\0", (false, false)),
        ("N\n", true, mounts("rw"), "kernel\0", (false, false)),
        ("", true, "sysfs /sys sysfs rw 0 0\n".to_owned(), "a", (false, false)),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: String, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("sys/module/apparmor/parameters/enabled".into(), enabled);
        put("sys/fs/selinux/enforce".into(), "1");
        put(format!("proc/{}/mounts", std::process::id()), &table);
        put(format!("proc/{}/attr/current", std::process::id()), label);
        if securityfs {
            std::fs::create_dir_all(dir.path().join("sys/kernel/security/apparmor")).unwrap();
        }
        let modules = Modules::read(&HostRoot::linux(dir.path()).unwrap());
        assert_eq!((modules.app_armor, modules.selinux), wanted, "{enabled:?} {securityfs} {table:?} {label:?}");
    }
}
