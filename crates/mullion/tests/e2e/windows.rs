//! What users do to containers that run Windows programs: copy files, look at the network, watch what they use.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::cluster::{Cluster, PATIENCE, until};

const NANOSERVER: &str = "mcr.microsoft.com/windows/nanoserver:ltsc2022";

/// A Windows pod of containers that run one line of `cmd` each, on the first Windows node.
fn pod(cluster: &Cluster, name: &str, lines: &[(&str, &str)]) {
    let container = |(name, line): &(&str, &str)| json!({"name": name, "image": NANOSERVER, "command": ["cmd", "/c", line]});
    let manifest = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": "win01"},
            "terminationGracePeriodSeconds": 1,
            "containers": lines.iter().map(container).collect::<Vec<_>>(),
        },
    });
    cluster.try_kubectl(&["apply", "-f", "-"], &manifest.to_string()).ok("kubectl apply");
    cluster.ready(&format!("pod/{name}"));
}

/// The pod of the steps that copy and look: it waits.
fn desk(cluster: &Cluster) {
    pod(cluster, "desk", &[("main", "ping -t localhost > nul")]);
}

/// What `cmd` prints in the waiting pod.
#[track_caller]
fn cmd(cluster: &Cluster, line: &str) -> String {
    cluster.kubectl(&["exec", "desk", "--", "cmd", "/c", line]).replace('\r', "")
}

/// Files of a directory and those below it by their names there, with their contents; directories end with `/`.
fn tree(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(&next).unwrap_or_else(|error| panic!("{}: {error}", next.display())).flatten() {
            let path = entry.path();
            let name = path.strip_prefix(dir).expect("a path below it").to_string_lossy().into_owned();
            if path.is_dir() {
                found.push((name + "/", Vec::new()));
                left.push(path);
            } else {
                found.push((name, fs::read(&path).expect("a file")));
            }
        }
    }
    found.sort();
    found
}

/// Files and directories into a Windows container and back, by kubectl as it is: its `cp` runs `tar` there.
pub fn copies(cluster: &Cluster) {
    desk(cluster);
    let place = cluster.place.path().join("copies");
    let (there, back) = (place.join("there"), place.join("back"));
    fs::create_dir_all(there.join("deep").join("er and er")).and_then(|()| fs::create_dir(there.join("nothing"))).expect("directories");
    let binary: Vec<u8> = (0..3_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let lines = "first\r\nsecond\n\u{1a}behind Windows' end of text\n";
    for (name, content) in
        [("binary", &binary[..]), ("empty", b""), ("deep/a name with blanks.txt", lines.as_bytes()), ("deep/x", b"x"), ("deep/er and er/x", b"y")]
    {
        fs::write(there.join(name), content).expect("a written file");
    }
    let text = |path: &Path| path.to_string_lossy().into_owned();
    // A directory, to a path without a drive and to one as Windows writes it.
    for (to, seen) in [("desk:/data", "C:\\data"), ("desk:C:\\inetpub\\data", "C:\\inetpub\\data")] {
        cmd(cluster, "if not exist C:\\inetpub md C:\\inetpub");
        cluster.kubectl(&["cp", &text(&there), to]);
        assert_eq!(cmd(cluster, &format!("type {seen}\\deep\\x")), "x", "{to}");
        let listed = cmd(cluster, &format!("for %f in ({seen}\\*) do @echo %~nxf %~zf"));
        assert_eq!(listed.split('\n').filter(|line| !line.is_empty()).collect::<Vec<_>>(), ["binary 3000000", "empty 0"], "{to}");
    }
    cmd(cluster, "echo of the container> C:\\data\\deep\\own.txt");
    cluster.kubectl(&["cp", "desk:/data", &text(&back)]);
    let mut expected = tree(&there);
    expected.push(("deep/own.txt".into(), b"of the container\r\n".to_vec()));
    expected.sort();
    let copied = tree(&back);
    let names = |tree: &[(String, Vec<u8>)]| tree.iter().map(|(name, content)| format!("{name} ({})", content.len())).collect::<Vec<_>>();
    assert_eq!(names(&copied), names(&expected));
    assert!(copied == expected, "the names are the same, the contents are not");
    // One file, there and back under other names.
    cluster.kubectl(&["cp", &text(&there.join("binary")), "desk:C:\\file.bin"]);
    cluster.kubectl(&["cp", "desk:/file.bin", &text(&place.join("file"))]);
    assert!(fs::read(place.join("file")).expect("the copy") == binary);
    // kubectl ends with the empty archive, often before it has shown what `tar` says: that is asked for by itself.
    let output = cluster.try_kubectl(&["cp", "desk:/no-such-file", &text(&place.join("none"))], "");
    assert!(!place.join("none").exists(), "{output:?}");
    let output = cluster.try_kubectl(&["exec", "desk", "--", "tar", "cf", "-", "/no-such-file"], "");
    assert!(output.code == Some(1) && output.err.contains("tar: /no-such-file: The system cannot find the file specified."), "{output:?}");
}

/// `ipconfig /all` shows the pod's adapter: its address, the way out, and the cluster's DNS server.
pub fn adapter(cluster: &Cluster) {
    desk(cluster);
    let address = cluster.json(&["pod", "desk"])["status"]["podIP"].as_str().expect("an address").to_owned();
    let output = cmd(cluster, "ipconfig /all");
    let value = |label: &str| {
        let mut found =
            output.lines().filter_map(|line| line.split_once(" : ")).filter(|(name, _)| name.trim().trim_end_matches(['.', ' ']) == label);
        found.next().map(|(_, value)| value.trim().to_owned()).unwrap_or_else(|| panic!("no {label}: {output}"))
    };
    assert!(output.contains("\nEthernet adapter vEthernet"), "{output}");
    assert_eq!(value("Host Name"), "desk");
    assert_eq!(value("IPv4 Address"), format!("{address}(Preferred)"));
    assert_eq!(value("Subnet Mask"), "255.255.255.0");
    assert_eq!(value("DNS Servers"), "10.96.0.10");
    assert_eq!(value("DNS Suffix Search List"), "default.svc.cluster.local");
    let (network, _) = address.rsplit_once('.').expect("four parts");
    assert!(value("Default Gateway").starts_with(&format!("{network}.")), "{output}");
    let mac = value("Physical Address");
    assert!(mac.len() == 17 && mac.split('-').all(|byte| u8::from_str_radix(byte, 16).is_ok()), "{mac}");
    cluster.kubectl(&["delete", "pod", "desk"]);
}

/// The figures of one container in the summary of a node's agent.
fn figures<'a>(summary: &'a Value, pod: &str, container: &str) -> &'a Value {
    let pod = summary["pods"].as_array().into_iter().flatten().find(|own| own["podRef"]["name"] == pod);
    let own = pod.and_then(|pod| pod["containers"].as_array()?.iter().find(|own| own["name"] == container));
    own.unwrap_or(&Value::Null)
}

/// The samples of a metric of one container in `/metrics/resource`.
fn sample(text: &str, name: &str, pod: &str, container: &str) -> Option<f64> {
    let labels = [format!("pod=\"{pod}\""), format!("container=\"{container}\"")];
    let line = text.lines().find(|line| line.starts_with(&format!("{name}{{")) && labels.iter().all(|label| line.contains(label)))?;
    line.rsplit('}').next()?.split_whitespace().next()?.parse().ok()
}

/// `1234m` or `2`, in thousandths of a processor; `12Mi`, in mebibytes.
fn amount(text: &str) -> u64 {
    let number = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("{text:?} is no amount"));
    text.strip_suffix('m').or_else(|| text.strip_suffix("Mi")).map_or_else(|| number(text) * 1000, number)
}

/// What eight more programs take at least.
const TAKEN: u64 = 8 << 20;

/// A container that computes and one that takes memory show in the agent's counters and in `kubectl top`; a third does neither.
pub fn usage(cluster: &Cluster) {
    let programs = "for /l %i in (1,1,8) do @start /b ping -t localhost > nul";
    let lines = [
        ("idle", "ping -t localhost > nul"),
        ("computes", "for /l %i in (1,0,2) do @rem"),
        ("takes", &*format!("{programs} & ping -t localhost > nul")),
    ];
    pod(cluster, "uses", &lines);
    let summary = || -> Value {
        let text = cluster.kubectl(&["get", "--raw", "/api/v1/nodes/win01/proxy/stats/summary"]);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("no JSON ({error}): {text}"))
    };
    let cpu = |summary: &Value, container: &str| figures(summary, "uses", container)["cpu"]["usageCoreNanoSeconds"].as_u64().unwrap_or(0);
    let memory = |summary: &Value, container: &str| figures(summary, "uses", container)["memory"]["workingSetBytes"].as_u64().unwrap_or(0);
    let first = summary();
    let later = until("half a second of computing, and the memory of nine programs", PATIENCE, || {
        let later = summary();
        let enough = cpu(&later, "computes") >= cpu(&first, "computes") + 500_000_000 && memory(&later, "takes") >= memory(&later, "idle") + TAKEN;
        if enough && memory(&later, "idle") > 0 { Ok(later) } else { Err(later["pods"].to_string()) }
    });
    assert!(cpu(&later, "idle") - cpu(&first, "idle") < 250_000_000, "{first} {later}");
    let node = |what: &str, unit: &str| later["node"][what][unit].as_u64().unwrap_or(0);
    let all = ["idle", "computes", "takes"];
    assert!(node("memory", "workingSetBytes") >= all.iter().map(|name| memory(&later, name)).sum(), "the node's own is the sum: {later}");
    assert!(node("cpu", "usageCoreNanoSeconds") >= all.iter().map(|name| cpu(&later, name)).sum(), "{later}");

    let metrics = cluster.kubectl(&["get", "--raw", "/api/v1/nodes/win01/proxy/metrics/resource"]);
    let seconds = sample(&metrics, "container_cpu_usage_seconds_total", "uses", "computes");
    assert!(seconds.is_some_and(|seconds| seconds * 1e9 >= cpu(&later, "computes") as f64 * 0.99), "{seconds:?} of {metrics}");
    let [idle, takes] = ["idle", "takes"].map(|name| sample(&metrics, "container_memory_working_set_bytes", "uses", name).unwrap_or_default());
    assert!(idle > 0.0 && takes >= idle + TAKEN as f64, "{metrics}");

    // The same, as kubectl asks for it; figures are renewed every 15 s.
    let row = |container: &str| -> Option<(u64, u64)> {
        let output = cluster.try_kubectl(&["top", "pod", "uses", "--containers", "--no-headers"], "");
        let line: Vec<&str> =
            output.out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).find(|words| words.get(1) == Some(&container))?;
        Some((amount(line.get(2)?), amount(line.get(3)?)))
    };
    until("the figures of `kubectl top`", PATIENCE * 2, || {
        let [idle, computes, takes] = all.map(|name| row(name).unwrap_or_default());
        let distinct = idle.1 > 0 && computes.0 >= 100 && computes.0 > 4 * idle.0 && takes.1 >= idle.1 + (TAKEN >> 20);
        if distinct { Ok(()) } else { Err(format!("idle {idle:?}, computes {computes:?}, takes {takes:?}")) }
    });
    let output = cluster.kubectl(&["top", "node", "win01", "--no-headers"]);
    let words: Vec<&str> = output.split_whitespace().collect();
    assert!(words.len() == 5 && amount(words[1]) >= 100, "{output}");
    cluster.kubectl(&["delete", "pod", "uses"]);
}
