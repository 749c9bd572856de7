//! Commands as a user types them, without a cluster: refusals with their exit codes, help, and closed pipes.

#![cfg(target_os = "linux")]

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A home below /tmp, where sockets' paths are short.
fn home() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("mullion-commands").tempdir_in("/tmp").unwrap()
}

fn command(home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mullion"));
    command.args(args).env("HOME", home).env("XDG_CACHE_HOME", home.join("cache")).env("XDG_RUNTIME_DIR", home.join("run"));
    command.env_remove("XDG_STATE_HOME").env_remove("MULLION_HCN").stdin(Stdio::null());
    command
}

fn run(home: &Path, args: &[&str]) -> Output {
    command(home, args).output().unwrap()
}

/// The exit code and standard error of a command that prints nothing else.
fn refusal(home: &Path, args: &[&str]) -> (i32, String) {
    let output = run(home, args);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{args:?}");
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn up_refuses_directories_with_foreign_files_and_leaves_them_alone() {
    let home = home();
    let dir = home.path().join("documents");
    fs::create_dir_all(dir.join("letters")).unwrap();
    fs::write(dir.join("letters/a.txt"), "mine").unwrap();
    // A taken port ends the command, whatever it thinks of the directory.
    let holder = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = holder.local_addr().unwrap().port().to_string();
    let (code, message) = refusal(home.path(), &["up", "--port", &port, "--dir", dir.to_str().unwrap()]);
    let expected = format!("cannot make a cluster in {}: it holds other files; choose an empty or new directory with --dir", dir.display());
    assert_eq!((code, message.trim_end()), (65, format!("mullion: {expected}").as_str()));
    let names: Vec<_> = fs::read_dir(&dir).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(names, ["letters"], "nothing is made in it");
    let own = fs::metadata(home.path()).unwrap().uid();
    for path in [&dir, &dir.join("letters"), &dir.join("letters/a.txt")] {
        assert_eq!(fs::metadata(path).unwrap().uid(), own, "{}", path.display());
    }
    // What a first `up` leaves that broke off is no hindrance.
    let dir = home.path().join("cluster");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("lock"), "4242\n").unwrap();
    fs::write(dir.join(".cluster.json.0123456789abcdef.tmp"), "{").unwrap();
    let (code, message) = refusal(home.path(), &["up", "--port", &port, "--dir", dir.to_str().unwrap()]);
    assert_eq!(code, 66, "{message}");
    assert!(message.contains(&format!("port {port} of 127.0.0.1 is in use: stop the program that uses it")), "{message}");
}

/// Standard output or standard error is a pipe that nobody reads.
#[test]
fn commands_end_quietly_when_their_reader_is_gone() {
    let home = home();
    let closed = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        writer
    };
    let dir = home.path().join("none");
    let dir = dir.to_str().unwrap();
    let cases: [(&[&str], i32); 7] = [
        (&["kube-proxy", "--help"], 0),
        (&["kube-proxy", "--version"], 0),
        (&["--help"], 0),
        (&["hns", "fault", "kinds"], 0),
        (&["status", "-o", "json", "--dir", dir], 74),
        (&["down", "-o", "json", "--if-running", "--dir", dir], 0),
        (&["up", "-o", "json", "--nodes", "a:solaris", "--dir", dir], 64),
    ];
    for (args, code) in cases {
        let output = command(home.path(), args).stdout(closed()).output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {err}");
        assert!(!err.contains("panicked") && !err.contains("pipe"), "{args:?}: {err}");
        let output = command(home.path(), args).stderr(closed()).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?} without standard error");
    }
}

/// Sockets of simulated services whose nodes do not run: enough to tell known nodes from unknown ones.
#[test]
fn unknown_values_are_usage_errors_that_name_the_way_out() {
    let home = home();
    let path = home.path();
    fs::create_dir(path.join("run")).unwrap();
    let dir = path.join("dir");
    let dir = dir.to_str().unwrap();
    let (code, message) = refusal(path, &["hns", "latency", "fast", "--node", "win01", "--dir", dir]);
    assert_eq!(code, 64, "{message}");
    assert!(message.contains(r#""fast" is no latency: write read=2ms,write=20ms, or windows, or none"#), "{message}");
    let (code, message) = refusal(path, &["hns", "fault", "add", "svc-down", "--dir", dir]);
    assert_eq!(code, 64, "{message}");
    assert!(message.contains("<--node <NODE>|--all-nodes>"), "{message}");
    let (code, message) = refusal(path, &["hns", "conformance", "--type", "Token"]);
    assert_eq!(code, 64, "{message}");

    let env = lab::dir::Env { runtime_dir: Some(path.join("run")), ..lab::dir::Env::default() };
    let socket = lab::dir::Dirs::resolve(Path::new(dir), &env).unwrap().socket("win01", "hcn");
    fs::create_dir_all(socket.parent().unwrap()).unwrap();
    fs::write(socket, "").unwrap();
    let (code, message) = refusal(path, &["hns", "fault", "add", "svc-down", "--node", "win09", "--dir", dir]);
    assert_eq!(code, 64, "{message}");
    assert!(message.contains("no Windows node win09 of") && message.contains("use one of win01"), "{message}");
}

#[test]
fn hns_commands_without_a_service_are_usage_errors() {
    let home = home();
    let which = "name a Windows node of a cluster with --node, or a service with --hcn";
    let cases: [(&[&str], &str); 5] = [
        (&["list", "networks"], which),
        (&["conformance"], which),
        (&["conformance", "--restart"], "give --node"),
        (&["relay"], "no service is named: give --node NODE"),
        (&["list", "networks", "--hcn", "win01"], "\"win01\""),
    ];
    for (args, reason) in cases {
        let (code, message) = refusal(home.path(), &[&["hns"] as &[&str], args].concat());
        assert_eq!(code, 64, "{args:?}: {message}");
        assert!(message.contains(reason), "{args:?}: {message}");
    }
}

#[test]
fn hns_commands_end_with_74_where_no_windows_node_runs() {
    let home = home();
    let path = home.path();
    fs::create_dir(path.join("run")).unwrap();
    let dir = path.join("dir");
    let dir = dir.to_str().unwrap();
    let cases: [&[&str]; 7] = [
        &["list", "networks", "--node", "win01"],
        &["status"],
        &["calls", "--node", "win01"],
        &["fault", "list"],
        &["fault", "add", "svc-down", "--all-nodes"],
        &["fault", "add", "svc-down", "--node", "win01"],
        &["fault", "clear"],
    ];
    for args in cases {
        let (code, message) = refusal(path, &[&["hns"] as &[&str], args, &["--dir", dir]].concat());
        let expected = format!("mullion: no Windows node of {dir} runs: `mullion up --dir {dir}` starts its cluster\n");
        assert_eq!((code, message), (74, expected), "{args:?}");
    }
    let output = run(path, &["hns", "fault", "list", "-o", "json", "--dir", dir]);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &document["error"]["reason"]), (Some(74), &"NotRunning".into()), "{document}");
}

#[test]
fn logs_say_why_there_are_no_lines() {
    let home = home();
    let dir = home.path().join("dir");
    fs::create_dir_all(dir.join("log")).unwrap();
    let description = r#"{"format": 2, "name": "dir", "nodes": [], "network": "host-gateway", "addresses": {"clusterCidr": "192.168.0.0/16",
        "nodeMask": 24, "serviceCidr": "10.96.0.0/12", "dnsIp": "10.96.0.10"}, "nodeAddresses": {}}"#;
    fs::write(dir.join("cluster.json"), description).unwrap();
    fs::write(dir.join("log/lab.log"), "").unwrap();
    let dir = dir.to_str().unwrap();
    let (code, message) = refusal(home.path(), &["logs", "gw", "--dir", dir]);
    assert_eq!(code, 64, "{message}");
    assert!(message.contains("gw has no processes unless the cluster runs with --outside"), "{message}");
    let (code, message) = refusal(home.path(), &["logs", "lab", "--tail", "5", "--dir", dir]);
    assert_eq!((code, message.as_str()), (0, "lab logged nothing\n"));
}

#[test]
fn a_join_that_cannot_work_changes_nothing() {
    let home = home();
    let root = home.path().join("root");
    fs::create_dir(&root).unwrap();
    let rootfs = root.to_str().unwrap();
    let (code, message) = refusal(home.path(), &["join", "--no-service", "--rootfs", rootfs]);
    assert_eq!(code, 64, "{message}");
    assert!(message.contains("no cluster is named: give HOST:PORT with --token"), "{message}");
    let token = "abcdef.0123456789abcdef";
    let (code, message) = refusal(home.path(), &["join", "10.0.0.2:6443", "--token", token, "--cri-socket=unix:///none", "--rootfs", rootfs]);
    assert_eq!(code, 64, "{message}");
    assert!(message.contains("no --discovery-token-ca-cert-hash") && !message.contains(token), "{message}");
    // A runtime that does not answer is a finding; nobody is asked for the cluster then.
    let join =
        ["join", "127.0.0.1:1", "--token", token, "--discovery-token-unsafe-skip-ca-verification", "--cri-socket=unix:///none", "--no-service"];
    let (code, message) = refusal(home.path(), &[&join[..], &["--node-name=n", "--rootfs", rootfs]].concat());
    assert_eq!(code, 84, "{message}");
    assert!(message.contains("[ERROR CRI]: ") && message.contains("--ignore-preflight-errors="), "{message}");
    let (code, message) = refusal(home.path(), &["reset", "--no-service", "--rootfs", rootfs]);
    assert_eq!(code, 1, "{message}");
    assert!(message.contains("no join of mullion has written anything here"), "{message}");
    assert!(fs::read_dir(&root).unwrap().next().is_none());
    let output = run(home.path(), &["token", "generate"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.trim().len() == 23 && text.as_bytes()[6] == b'.', "{text}");
}
