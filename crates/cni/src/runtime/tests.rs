use std::fs;
use std::path::PathBuf;

use super::*;

/// The plug-ins as a program, which `cargo test` builds as an example.
pub(crate) fn own_program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().and_then(Path::parent).unwrap().join("examples/cni-plugin");
    assert!(built.exists(), "{} is missing: run the tests with `cargo test -p cni`, which builds examples", built.display());
    built
}

struct Host {
    dir: tempfile::TempDir,
    runtime: Runtime,
}

impl Host {
    fn new(conf: &Value) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let sub = |name: &str| {
            let path = dir.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let mut runtime = Runtime::new(sub("net.d"), sub("bin"), sub("cache"));
        runtime.self_exe = own_program();
        let host = Self { dir, runtime };
        host.configure(conf);
        host
    }

    fn configure(&self, conf: &Value) {
        fs::write(self.dir.path().join("net.d/10-test.conflist"), conf.to_string()).unwrap();
    }

    /// A plug-in of someone else: notes how it was called and answers with `answer`.
    #[cfg(unix)]
    fn install(&self, name: &str, answer: &str, exit: u8) {
        use std::os::unix::fs::PermissionsExt;
        let path = self.dir.path().join("bin").join(name);
        let log = self.dir.path().join("calls");
        let script = format!(
            "#!/bin/sh\n{{ echo \"{name} $CNI_COMMAND $CNI_CONTAINERID $CNI_NETNS $CNI_IFNAME $CNI_ARGS\"; cat; echo; }} >> {}\necho '{answer}'\nexit {exit}\n",
            log.display()
        );
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn calls(&self) -> Vec<(String, Value)> {
        let text = fs::read_to_string(self.dir.path().join("calls")).unwrap_or_default();
        let _ = fs::remove_file(self.dir.path().join("calls"));
        let lines: Vec<&str> = text.lines().collect();
        lines.chunks(2).map(|pair| (pair[0].trim().to_owned(), serde_json::from_str(pair[1]).unwrap())).collect()
    }
}

fn attachment(id: &str) -> Attachment {
    Attachment {
        container_id: id.into(),
        netns: "/ns/one".into(),
        ifname: "eth0".into(),
        args: vec![("IgnoreUnknown".into(), "1".into()), ("K8S_POD_NAME".into(), "web".into())],
        port_mappings: vec![PortMapping { host_port: 8080, container_port: 80, protocol: "tcp".into(), host_ip: String::new() }],
        dns: Some(RuntimeDns { servers: vec!["10.96.0.10".into()], ..RuntimeDns::default() }),
    }
}

fn host_local(dir: &Path) -> Value {
    json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [
        {"type": "host-local", "ipam": {"type": "host-local", "dataDir": dir, "ranges": [[{"subnet": "10.1.0.0/29"}]]}}]})
}

#[tokio::test]
async fn own_plugin_is_run_by_name() {
    let ipam = tempfile::tempdir().unwrap();
    let host = Host::new(&host_local(ipam.path()));
    let result = host.runtime.add(&attachment("a")).await.unwrap();
    assert_eq!(result.primary_ip(), Some("10.1.0.2".parse().unwrap()));
    assert!(host.dir.path().join("cache/results/pods-a-eth0").exists());
    host.runtime.check(&attachment("a")).await.unwrap();
    host.runtime.del(&attachment("a")).await.unwrap();
    host.runtime.del(&attachment("a")).await.unwrap();
    assert!(!ipam.path().join("pods/10.1.0.2").exists() && !host.dir.path().join("cache/results/pods-a-eth0").exists());
    assert_eq!(host.runtime.versions("host-local").await.unwrap().len(), 7);
}

#[tokio::test]
async fn errors_of_plugins_carry_their_code_and_leave_nothing() {
    let ipam = tempfile::tempdir().unwrap();
    let host = Host::new(&host_local(ipam.path()));
    for id in ["a", "b", "c", "d", "e"] {
        host.runtime.add(&attachment(id)).await.unwrap();
    }
    let error = host.runtime.add(&attachment("f")).await.unwrap_err();
    assert_eq!(error.code(), Some(code::EXHAUSTED));
    let RuntimeError::Plugin { error, .. } = error else { panic!("{error}") };
    assert!(error.msg.contains("no IP addresses available in range set: 10.1.0.1-10.1.0.6"), "{error}");
    assert!(!host.dir.path().join("cache/results/pods-f-eth0").exists());
}

#[cfg(unix)]
#[tokio::test]
async fn chain_runs_forward_and_back_with_what_each_may_see() {
    let list = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [
        {"type": "first", "capabilities": {"portMappings": true}, "extra": 7}, {"type": "second", "capabilities": {"dns": true}}]});
    let host = Host::new(&list);
    let answer = |ip: &str| json!({"cniVersion": "1.0.0", "ips": [{"address": ip}]}).to_string();
    host.install("first", &answer("10.1.0.2/24"), 0);
    host.install("second", &answer("10.1.0.3/24"), 0);
    let result = host.runtime.add(&attachment("a")).await.unwrap();
    assert_eq!(result.ips[0].address.to_string(), "10.1.0.3/24");
    let calls = host.calls();
    assert_eq!(calls[0].0, "first ADD a /ns/one eth0 IgnoreUnknown=1;K8S_POD_NAME=web");
    let first = &calls[0].1;
    assert_eq!(
        (&first["name"], &first["extra"], &first["capabilities"], &first["prevResult"]),
        (&json!("pods"), &json!(7), &Value::Null, &Value::Null)
    );
    assert_eq!(first["runtimeConfig"], json!({"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}));
    assert_eq!(calls[1].1["prevResult"]["ips"][0]["address"], "10.1.0.2/24");
    assert_eq!(calls[1].1["runtimeConfig"], json!({"dns": {"servers": ["10.96.0.10"]}}));
    // DEL works from what was remembered, whatever the configuration is by now, and gives plug-ins the old arguments.
    host.configure(&json!({"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "third"}]}));
    host.runtime.del(&Attachment { container_id: "a".into(), ifname: "eth0".into(), ..Attachment::default() }).await.unwrap();
    let calls = host.calls();
    assert_eq!(
        calls.iter().map(|c| c.0.as_str()).collect::<Vec<_>>(),
        ["second DEL a  eth0 IgnoreUnknown=1;K8S_POD_NAME=web", "first DEL a  eth0 IgnoreUnknown=1;K8S_POD_NAME=web"]
    );
    assert!(calls.iter().all(|c| c.1["prevResult"]["ips"][0]["address"] == "10.1.0.3/24"));
    assert!(calls[1].1["runtimeConfig"]["portMappings"].is_array());
}

#[cfg(unix)]
#[tokio::test]
async fn failed_chain_is_undone_and_names_the_plugin() {
    let list = json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "first"}, {"type": "second"}]});
    let host = Host::new(&list);
    host.install("first", r#"{"cniVersion":"1.0.0"}"#, 0);
    host.install("second", r#"{"code": 11, "msg": "later"}"#, 1);
    let error = host.runtime.add(&attachment("a")).await.unwrap_err();
    assert_eq!((error.to_string(), error.code()), ("plug-in second failed (ADD)".to_owned(), Some(11)));
    let calls: Vec<String> = host.calls().into_iter().map(|c| c.0.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(calls, ["first ADD", "second ADD", "second DEL"]);
}

#[cfg(unix)]
#[tokio::test]
async fn plugin_that_hangs_is_stopped() {
    use std::os::unix::fs::PermissionsExt;
    let mut host = Host::new(&json!({"cniVersion": "1.0.0", "name": "pods", "type": "slow"}));
    let path = host.dir.path().join("bin/slow");
    fs::write(&path, "#!/bin/sh\nexec sleep 60\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    host.runtime.deadline = Duration::from_millis(200);
    let error = host.runtime.add(&attachment("a")).await.unwrap_err();
    assert!(error.to_string().contains("it was stopped"), "{error}");
}

#[tokio::test]
async fn add_fails_and_del_succeeds_without_configuration() {
    let host = Host::new(&json!({}));
    for broken in ["", "{", r#"{"name": "n"}"#] {
        fs::write(host.dir.path().join("net.d/10-test.conflist"), broken).unwrap();
        let error = host.runtime.add(&attachment("a")).await.unwrap_err();
        assert!(matches!(error, RuntimeError::NotConfigured { .. }) && error.to_string().contains("10-test.conflist"), "{error}");
        host.runtime.del(&attachment("a")).await.unwrap();
        host.runtime.status().await.unwrap_err();
    }
    fs::remove_file(host.dir.path().join("net.d/10-test.conflist")).unwrap();
    assert!(host.runtime.network().unwrap_err().to_string().contains("holds none"));
}

#[tokio::test]
async fn first_usable_configuration_by_name_is_used() {
    let ipam = tempfile::tempdir().unwrap();
    let host = Host::new(&host_local(ipam.path()));
    fs::write(host.dir.path().join("net.d/00-broken.conf"), "{").unwrap();
    fs::write(host.dir.path().join("net.d/05-notes.txt"), r#"{"name":"notes","type":"x"}"#).unwrap();
    fs::write(host.dir.path().join("net.d/99-late.conf"), r#"{"name":"late","type":"x"}"#).unwrap();
    assert_eq!(host.runtime.network().unwrap().name, "pods");
}

#[tokio::test]
async fn gc_detaches_invalid_attachments() {
    let ipam = tempfile::tempdir().unwrap();
    let mut conf = host_local(ipam.path());
    conf["cniVersion"] = json!("1.1.0");
    let host = Host::new(&conf);
    for id in ["a", "b"] {
        host.runtime.add(&attachment(id)).await.unwrap();
    }
    fs::write(ipam.path().join("pods/10.1.0.6"), "leaked\r\neth0").unwrap();
    host.runtime.status().await.unwrap();
    host.runtime.gc(&[("b".into(), "eth0".into())]).await.unwrap();
    let mut left: Vec<String> = fs::read_dir(ipam.path().join("pods"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|n| n.starts_with("10."))
        .collect();
    left.sort();
    assert_eq!(left, ["10.1.0.3"]);
}

#[tokio::test]
async fn half_written_memory_stops_neither_del_nor_gc_and_is_forgotten() {
    let ipam = tempfile::tempdir().unwrap();
    let mut conf = host_local(ipam.path());
    conf["cniVersion"] = json!("1.1.0");
    let host = Host::new(&conf);
    let files = |dir: &Path| fs::read_dir(dir).unwrap().flatten().filter(|file| file.file_name() != "lock").count();
    let (cache, held) = (host.dir.path().join("cache/results"), ipam.path().join("pods"));
    host.runtime.add(&attachment("a")).await.unwrap();
    let file = cache.join("pods-a-eth0");
    let whole = fs::read(&file).unwrap();
    for cut in 0..whole.len() {
        fs::write(&file, &whole[..cut]).unwrap();
        assert!(cache::find(&host.dir.path().join("cache"), &attachment("a")).unwrap().is_empty(), "{cut}");
    }
    for cut in [0, 1, whole.len() / 2, whole.len() - 1] {
        host.runtime.add(&attachment("a")).await.unwrap();
        fs::write(&file, &whole[..cut]).unwrap();
        host.runtime.del(&attachment("a")).await.unwrap();
        assert_eq!((files(&cache), files(&held)), (0, 1), "{cut}: the last address is left");
        for id in ["a", "b"] {
            host.runtime.add(&attachment(id)).await.unwrap();
            fs::write(cache.join(format!("pods-{id}-eth0")), &whole[..cut]).unwrap();
        }
        host.runtime.gc(&[("b".into(), "eth0".into())]).await.unwrap();
        assert_eq!((files(&cache), files(&held)), (1, 2), "{cut}: b's are left");
        host.runtime.gc(&[]).await.unwrap();
        assert_eq!((files(&cache), files(&held)), (0, 1), "{cut}");
    }
}

#[tokio::test]
async fn odd_names_never_reach_a_plugin() {
    let ipam = tempfile::tempdir().unwrap();
    let host = Host::new(&host_local(ipam.path()));
    for (id, ifname) in [("", "eth0"), ("../a", "eth0"), ("a", ""), ("a", "../x"), ("a", "a/b")] {
        let odd = Attachment { container_id: id.into(), ifname: ifname.into(), ..Attachment::default() };
        assert!(matches!(host.runtime.add(&odd).await, Err(RuntimeError::Invalid(_))), "{id:?} {ifname:?}");
        assert!(matches!(host.runtime.del(&odd).await, Err(RuntimeError::Invalid(_))), "{id:?} {ifname:?}");
    }
}
