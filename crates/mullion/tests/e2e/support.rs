//! Logs of a cluster's processes, and the archive for others to look at.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::process::Stdio;

use serde_json::Value;

use crate::cluster::{Cluster, PATIENCE, mullion, until};
use crate::manifests;

/// Of one process, of a host, of the control plane; and what there is not.
pub fn logs(cluster: &Cluster) {
    let logs = |args: &[&str]| cluster.place.mullion(&[&["logs"], args].concat());
    let one = logs(&["win01", "node"]).ok("mullion logs win01 node");
    assert!(one.lines().count() > 1 && !one.contains(" | "), "{one}");
    let all = logs(&["win01"]).ok("mullion logs win01");
    assert!(all.contains("node          | ") || all.contains("container-sim | "), "{all}");
    let times: Vec<&str> = one.lines().filter_map(|line| line.split_whitespace().next()).filter(|word| word.ends_with('Z')).collect();
    assert!(times.is_sorted(), "{times:?}");
    assert!(!logs(&["cp"]).ok("mullion logs cp").is_empty());
    assert_eq!(logs(&["win01", "--tail", "3"]).ok("mullion logs --tail").lines().count(), 3);
    assert_eq!(logs(&["win01", "--since", "0s"]).ok("mullion logs --since"), "");
    for (args, part) in [(["nowhere"].as_slice(), "use one of"), (&["win01", "sshd"], "node")] {
        let output = logs(args);
        assert_eq!((output.code, output.err.lines().count()), (Some(64), 1), "{output:?}");
        assert!(output.err.contains(part), "{output:?}");
    }
}

/// A line that is written later arrives.
pub fn logs_follow(cluster: &Cluster) {
    let mut command = cluster.place.command(mullion());
    command.args(["logs", "win02", "-f", "--since", "0s", "--dir"]).arg(cluster.place.dir());
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("mullion logs -f");
    let mut out = child.stdout.take().expect("its output");
    let reader = std::thread::spawn(move || {
        let mut text = [0; 4096];
        let length = out.read(&mut text).expect("a line");
        String::from_utf8_lossy(&text[..length]).into_owned()
    });
    let log = cluster.place.dir().join("hosts").join("win02").join("log").join("node.log");
    let mut log = std::fs::File::options().append(true).open(log).expect("the agent's log");
    until("a line of win02", PATIENCE, || {
        log.write_all(b"one more line\n").expect("a written line");
        if reader.is_finished() { Ok(()) } else { Err("nothing".to_owned()) }
    });
    child.kill().and_then(|()| child.wait()).expect("an ended child");
    let line = reader.join().expect("a line");
    assert!(line.starts_with("node          | one more line\n"), "{line}");
}

/// Files of an archive by their name below its directory.
fn unpack(path: &std::path::Path) -> BTreeMap<String, String> {
    let file = std::fs::File::open(path).expect("the archive");
    let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(file));
    let mut files = BTreeMap::new();
    for entry in tar.entries().expect("entries") {
        let mut entry = entry.expect("an entry");
        let name = entry.path().expect("a path").to_string_lossy().into_owned();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).expect("a whole file");
        let (_, name) = name.split_once('/').expect("a directory");
        files.insert(name.to_owned(), String::from_utf8(bytes).expect("text"));
    }
    files
}

/// Everything is in it, and nothing secret is, wherever a pod may have put it.
pub fn bundle(cluster: &Cluster) {
    let password = "correct-horse-battery";
    cluster.kubectl(&["create", "secret", "generic", "vault", &format!("--from-literal=password={password}")]);
    let env = "        env: [{name: PASSWORD, valueFrom: {secretKeyRef: {name: vault, key: password}}}, {name: API_TOKEN, value: written-down}]";
    cluster.apply(&manifests::web("keeper", "win01", "", env));
    cluster.rolled_out("keeper");
    let pod = cluster.pods("keeper")[0]["metadata"]["name"].as_str().expect("a name").to_owned();
    // A container prints all of it.
    let printer = "apiVersion: v1\nkind: Pod\nmetadata: {name: printer}\nspec:\n  nodeSelector: {kubernetes.io/os: windows}\n  containers:\n  - name: main\n    image: mcr.microsoft.com/windows/nanoserver:ltsc2022\n    command: [cmd, /c, 'echo begin %PASSWORD% and %API_TOKEN% end & ping -n 100000 127.0.0.1 > nul']\n    env: [{name: PASSWORD, valueFrom: {secretKeyRef: {name: vault, key: password}}}, {name: API_TOKEN, value: written-down}]\n";
    cluster.apply(printer);
    until("the printed secret", PATIENCE, || match cluster.try_kubectl(&["logs", "printer"], "") {
        output if output.out.contains(&format!("begin {password} and written-down end")) => Ok(()),
        output => Err(format!("{output:?}")),
    });
    // Somebody repeats it where anybody can read.
    cluster.kubectl(&["annotate", "pod", &pod, &format!("note=the password is {password}")]);
    let path = cluster.place.path().join("bundle.tar.gz");
    let output = cluster.place.mullion(&["support-bundle", "-o", &path.to_string_lossy()]);
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.err.contains("asked the API") && output.err.contains("have a look before you pass it on"), "{output:?}");
    let files = unpack(&path);
    for name in [
        "versions.json",
        "cluster.json",
        "status.json",
        "logs/win01/node.log",
        "logs/cp/control-plane.log",
        "hosts/win01/hns/endpoints.json",
        "hosts/win01/cni/conf/10-mullion.conflist",
        "hosts/lin01/network.txt",
        "hosts/gw/network.txt",
        "objects/nodes.json",
        "objects/events.json",
        "objects/pods.json",
    ] {
        assert!(files.get(name).is_some_and(|text| !text.is_empty()), "{name} is missing: {:?}", files.keys());
    }
    assert!(
        files["hosts/lin01/network.txt"].contains("10.240.0.11") && files["hosts/lin01/network.txt"].contains("table ip"),
        "{}",
        files["hosts/lin01/network.txt"]
    );
    let output = files.iter().find(|(name, _)| name.contains("/pods/default_printer_") && name.ends_with("/main/0.log"));
    assert!(output.is_some_and(|(_, text)| text.contains("begin REDACTED and REDACTED end")), "{output:?} of {:?}", files.keys());
    let pods: Value = serde_json::from_str(&files["objects/pods.json"]).expect("JSON");
    assert!(pods["items"].as_array().is_some_and(|list| list.iter().any(|item| item["metadata"]["name"] == *pod)), "{pods}");

    let mut secrets = vec![
        password.to_owned(),
        "Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5".to_owned(),
        "written-down".to_owned(),
        "PRIVATE KEY".to_owned(),
        "eyJhbGciOi".to_owned(),
    ];
    for entry in std::fs::read_dir(cluster.place.dir().join("pki")).expect("keys").flatten() {
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        let name = entry.file_name().to_string_lossy().into_owned();
        let private = name.ends_with(".key") || text.contains("client-key-data");
        secrets.extend(text.lines().filter(|line| private && line.len() > 40 && !line.contains("certificate")).map(|line| line.trim().to_owned()));
    }
    assert!(secrets.len() > 8, "the keys of the cluster are among them");
    for (name, text) in &files {
        let leaked: Vec<&String> = secrets.iter().filter(|secret| text.contains(secret.as_str())).collect();
        assert!(leaked.is_empty(), "{name} leaks {leaked:?}");
    }
    cluster.kubectl(&["delete", "deployment/keeper", "service/keeper", "secret/vault"]);
    cluster.kubectl(&["delete", "pod/printer", "--grace-period=0", "--force"]);
}
