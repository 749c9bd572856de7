//! `ovn_cni` between two hosts, against Debian's OVN and Open vSwitch with the userspace datapath.
//!
//! Needs `/dev/net/tun`, Debian's packages ovn-central, ovn-host and openvswitch-switch, ethtool and ping.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use linux_sys::netlink::Rtnl;
use linux_sys::ns::{NetNs, in_lab};
use serde_json::{Value, json};
use test_lab::net::{Lan, greet, greeting, serve_tcp, set_up};
use test_lab::ovn::{Central, Chassis};
use test_lab::until;

const API: &str = "127.0.0.1:8001";
/// As it stands in the documentation of Kubernetes 1.9.
const SEED: &str = r#"{"name": "net", "type": "ovn_cni.exe", "bridge": "br-int", "isGateway": "true", "ipMasq": "false",
    "ipam": {"type": "host-local", "subnet": "10.1.1.0/24"}}"#;

/// An API server that knows annotations of pods of namespace `default`.
#[derive(Clone, Default)]
struct Api(Arc<Mutex<BTreeMap<String, Value>>>);

impl Api {
    fn serve(&self, ns: &NetNs) {
        let api = self.clone();
        set_up(&Rtnl::open_in(ns).unwrap(), "lo", &[]);
        serve_tcp(ns, API, move |mut stream, _| {
            let mut lines = BufReader::new(stream.try_clone()?).lines();
            let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
            for line in lines {
                if line?.is_empty() {
                    break;
                }
            }
            let path = first.split(' ').nth(1).unwrap_or_default();
            let pod = path.strip_prefix("/api/v1/namespaces/default/pods/").unwrap_or_default().to_owned();
            let found = api.0.lock().unwrap().get(&pod).cloned();
            let (code, body) = match found {
                Some(annotations) => {
                    let metadata = json!({"name": pod, "namespace": "default", "uid": format!("uid-of-{pod}"), "annotations": annotations});
                    ("200 OK", json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}))
                }
                None => ("404 Not Found", json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404})),
            };
            let body = body.to_string();
            write!(stream, "HTTP/1.1 {code}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
        });
    }

    fn annotate(&self, pod: &str, annotations: Value) {
        self.0.lock().unwrap().insert(pod.to_owned(), annotations);
    }
}

struct World {
    central: Central,
    hosts: [Chassis; 2],
    api: Api,
    dir: tempfile::TempDir,
    _lan: Lan,
}

fn mac(last: u8) -> String {
    format!("0a:00:00:00:00:{last:02x}")
}

impl World {
    fn new() -> Self {
        let (central, lan, api) = (Central::new(), Lan::new(), Api::default());
        let hosts = [Chassis::new(&central, &lan, "one", "10.240.0.11"), Chassis::new(&central, &lan, "two", "10.240.0.12")];
        central.nbctl(&["ls-add", "switch"]);
        for host in &hosts {
            api.serve(&host.ns);
            host.vsctl(&["set", "Open_vSwitch", ".", &format!("external_ids:k8s-api-server=\"{API}\"")]);
            until("br-int", || host.vsctl(&["list-br"]).contains("br-int"));
        }
        Self { central, hosts, api, dir: tempfile::tempdir().unwrap(), _lan: lan }
    }

    /// A pod with a logical port, whose addresses end so.
    fn port(&self, pod: &str, last: u8) {
        let port = format!("default_{pod}");
        let addresses = format!("{} 10.1.1.{last}", mac(last));
        self.central.nbctl(&["lsp-add", "switch", &port, "--", "lsp-set-addresses", &port, &addresses]);
    }

    fn netns(&self, sandbox: &str) -> PathBuf {
        self.dir.path().join(sandbox)
    }

    /// The configuration with what this machine has elsewhere.
    fn conf(&self, host: usize, text: &str, more: &Value) -> Value {
        let mut conf: Value = serde_json::from_str(text).unwrap();
        conf["ovs"] = json!(self.hosts[host].local());
        for (key, value) in more.as_object().unwrap() {
            conf[key] = value.clone();
        }
        conf
    }

    /// What the plug-in prints; an error has its code.
    fn call(&self, command: &str, host: usize, (sandbox, pod): (&str, &str), conf: &Value) -> Result<Value, (u64, String)> {
        let netns = self.netns(sandbox).display().to_string();
        let args =
            format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod};K8S_POD_INFRA_CONTAINER_ID={sandbox};K8S_POD_UID=uid-of-{pod}");
        let env = |key: &str| match key {
            "CNI_COMMAND" => Some(command.to_owned()),
            "CNI_CONTAINERID" => Some(sandbox.to_owned()),
            "CNI_NETNS" => Some(netns.clone()),
            "CNI_IFNAME" => Some("eth0".to_owned()),
            "CNI_ARGS" => Some(args.clone()),
            _ => None,
        };
        let name = conf["type"].as_str().unwrap().trim_end_matches(".exe");
        let text = conf.to_string();
        let outcome = self.hosts[host].ns.run(|| cni::plugin::run(name, &env, text.as_bytes())).unwrap();
        let document: Value = serde_json::from_str(&outcome.stdout).unwrap_or_default();
        if outcome.success { Ok(document) } else { Err((document["code"].as_u64().unwrap(), document["msg"].as_str().unwrap().to_owned())) }
    }

    /// Links and ports of pods that a host has.
    fn left(&self, host: usize) -> (Vec<String>, Vec<String>) {
        let links = Rtnl::open_in(&self.hosts[host].ns).unwrap().links().unwrap();
        let links = links.into_iter().map(|link| link.name).filter(|name| name.starts_with("veth")).collect();
        let ports = self.hosts[host].vsctl(&["list-ports", "br-int"]);
        (links, ports.lines().filter(|name| name.starts_with("veth")).map(str::to_owned).collect())
    }
}

const TODAY: &str = r#"{"cniVersion": "1.1.0", "name": "ovn-kubernetes", "type": "ovn-k8s-cni-overlay", "timeout": 20}"#;

fn ping(ns: &NetNs, to: &str) -> Result<(), String> {
    let output = ns.run(|| Command::new("ping").args(["-c", "1", "-W", "1", "-M", "do", "-s", "1372", to]).output()).unwrap().unwrap();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stdout).into_owned()) }
}

#[test]
fn pods_are_connected_checked_and_disconnected() {
    in_lab("pods_are_connected_checked_and_disconnected", || {
        let world = World::new();
        let (first, second) = (NetNs::create_at(&world.netns("c1")).unwrap(), NetNs::create_at(&world.netns("c2")).unwrap());
        world.port("first", 11);
        world.port("second", 12);
        // Text of Python, as in 2017; the configuration is that of the documentation.
        world
            .api
            .annotate("first", json!({"ovn": format!("{{'ip_address': '10.1.1.11/24', 'mac_address': '{}', 'gateway_ip': '10.1.1.1'}}", mac(11))}));
        let seed = world.conf(0, SEED, &json!({}));
        let result = world.call("ADD", 0, ("c1", "first"), &seed).unwrap();
        assert_eq!(result["ip4"]["ip"], "10.1.1.11/24", "{result}");
        // The annotation comes later than the request.
        let api = world.api.clone();
        api.annotate("second", json!({}));
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(400));
            let network = json!({"default": {"ip_addresses": ["10.1.1.12/24"], "mac_address": mac(12), "gateway_ips": ["10.1.1.1"]}});
            api.annotate("second", json!({"k8s.ovn.org/pod-networks": network.to_string()}));
        });
        let today = world.conf(1, TODAY, &json!({}));
        let result = world.call("ADD", 1, ("c2", "second"), &today).unwrap();
        assert_eq!(
            (&result["interfaces"][1]["mac"], &result["ips"][0]["address"], &result["ips"][0]["interface"]),
            (&json!(mac(12)), &json!("10.1.1.12/24"), &json!(1))
        );
        // Packets, as soon as the answers are there.
        until("a ping", || ping(&first, "10.1.1.12"));
        greet(&second, "10.1.1.12:80", |peer| format!("hello {peer}"));
        assert_eq!(greeting(&first, "10.1.1.12:80", Duration::from_secs(2)).unwrap(), "hello 10.1.1.11");
        // CHECK sees what ADD left, and what has changed since.
        let with_result = world.conf(1, TODAY, &json!({"prevResult": result}));
        world.call("CHECK", 1, ("c2", "second"), &with_result).unwrap();
        world.call("CHECK", 1, ("c2", "second"), &with_result).unwrap();
        let link = world.left(1).1.pop().unwrap();
        world.hosts[1].vsctl(&["remove", "Interface", &link, "external_ids", "sandbox"]);
        let (code, text) = world.call("CHECK", 1, ("c2", "second"), &with_result).unwrap_err();
        assert!(code == 102 && text.contains("default_second in sandbox"), "{code} {text}");
        world.hosts[1].vsctl(&["del-port", &link]);
        assert_eq!(world.call("CHECK", 1, ("c2", "second"), &with_result).unwrap_err().0, 102);
        // DEL may come any number of times, and after the port, the link or the sandbox.
        for _ in 0..2 {
            world.call("DEL", 0, ("c1", "first"), &seed).unwrap();
            world.call("DEL", 1, ("c2", "second"), &today).unwrap();
            assert_eq!((world.left(0), world.left(1)), Default::default());
        }
        drop(first);
        NetNs::remove_at(&world.netns("c1")).unwrap();
        world.call("DEL", 0, ("c1", "first"), &seed).unwrap();
    });
}

#[test]
fn what_fails_leaves_nothing_and_what_is_stale_goes() {
    in_lab("what_fails_leaves_nothing_and_what_is_stale_goes", || {
        let world = World::new();
        let annotation = |last: u8| json!({"ovn": json!({"ip_address": format!("10.1.1.{last}/24"), "mac_address": mac(last), "gateway_ip": "10.1.1.1"}).to_string()});
        let conf = world.conf(0, TODAY, &json!({"timeout": 1}));
        for sandbox in ["c1", "c2", "c3"] {
            NetNs::create_at(&world.netns(sandbox)).unwrap();
        }
        let fails = |sandbox: &str, pod: &str| {
            let error = world.call("ADD", 0, (sandbox, pod), &conf).unwrap_err();
            assert_eq!(world.left(0), Default::default(), "{error:?}");
            error
        };
        let (code, text) = fails("c1", "web");
        assert!(code == 11 && text.contains("there is no pod default/web"), "{code} {text}");
        world.api.annotate("web", json!({}));
        let (code, text) = fails("c1", "web");
        assert!(code == 11 && text.contains("no annotation of pod default/web within 1 s") && text.contains("watcher"), "{code} {text}");
        world.api.annotate("web", json!({"ovn": "nonsense"}));
        assert_eq!(fails("c1", "web").0, 6);
        // No logical port.
        world.api.annotate("web", annotation(11));
        let (code, text) = fails("c1", "web");
        assert!(code == 11 && text.contains("OVN made no flows for default_web within 1 s"), "{code} {text}");
        // A sandbox that was never deleted gives its port to the pod's next one.
        let conf = world.conf(0, TODAY, &json!({}));
        world.port("web", 11);
        world.call("ADD", 0, ("c1", "web"), &conf).unwrap();
        let before = world.left(0).1;
        let result = world.call("ADD", 0, ("c2", "web"), &conf).unwrap();
        let after = world.left(0).1;
        assert!(before.len() == 1 && after.len() == 1 && before != after, "{before:?} {after:?}");
        // The late DEL of the first one takes nothing of the second.
        world.call("DEL", 0, ("c1", "web"), &conf).unwrap();
        world.call("CHECK", 0, ("c2", "web"), &world.conf(0, TODAY, &json!({"prevResult": result}))).unwrap();
        // GC takes what no runtime knows; ports of others stay, and nobody takes their names.
        world.hosts[0].vsctl(&[
            "add-port",
            "br-int",
            "foreign",
            "--",
            "set",
            "Interface",
            "foreign",
            "type=internal",
            "external_ids:iface-id=default_db",
        ]);
        world
            .call("GC", 0, ("", ""), &world.conf(0, TODAY, &json!({"cni.dev/valid-attachments": [{"containerID": "c2", "ifname": "eth0"}]})))
            .unwrap();
        assert_eq!(world.left(0).1, after);
        world.call("GC", 0, ("", ""), &world.conf(0, TODAY, &json!({"cni.dev/valid-attachments": []}))).unwrap();
        assert_eq!(world.left(0), Default::default());
        world.port("db", 12);
        world.api.annotate("db", annotation(12));
        let (_, text) = world.call("ADD", 0, ("c3", "db"), &conf).unwrap_err();
        assert!(text.contains("port foreign of the local switch") && text.contains("belongs to another program"), "{text}");
        assert!(world.hosts[0].vsctl(&["list-ports", "br-int"]).contains("foreign"));
        assert_eq!(world.left(0), Default::default());
        // STATUS says whether there is a switch with the bridge.
        world.call("STATUS", 0, ("", ""), &conf).unwrap();
        let (_, text) = world.call("STATUS", 0, ("", ""), &world.conf(0, TODAY, &json!({"bridge": "none"}))).unwrap_err();
        assert!(text.contains("no bridge none"), "{text}");
    });
}
