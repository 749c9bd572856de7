//! Clusters in the hands of scripts: options that stay, documents, exit codes, commands to paste, and an end that is one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::cluster::{Cluster, Output, PATIENCE, Place, free_port, kubectl, mullion, run, until};
use crate::footprint::Footprint;

/// Small, to be quick.
const NODES: &str = "lin01:linux";

#[track_caller]
fn json(output: &Output) -> Value {
    serde_json::from_str(&output.out).unwrap_or_else(|error| panic!("standard output is not one document ({error}): {output:?}"))
}

/// `mullion ARGS --dir DIR`, of any DIR.
fn mullion_in(place: &Place, dir: &Path, args: &[&str]) -> Output {
    run(place.command(mullion()).args(args).arg("--dir").arg(dir), "")
}

/// The command that stands between backticks in what was output.
#[track_caller]
fn advice(text: &str, command: &str) -> String {
    let found = text.split('`').find(|part| part.starts_with(&format!("mullion {command}")));
    found.unwrap_or_else(|| panic!("no command `mullion {command} …` is advised: {text}")).to_owned()
}

/// Runs a line as a shell runs it.
fn paste(place: &Place, line: &str) -> Output {
    let bin = place.path().join("bin");
    if !bin.is_dir() {
        fs::create_dir(&bin).and_then(|()| std::os::unix::fs::symlink(mullion(), bin.join("mullion"))).expect("a link");
    }
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    run(place.command("sh").env("PATH", path).args(["-c", line]), "")
}

fn nothing_left(place: &Place) {
    let run: Vec<_> = fs::read_dir(place.path().join("run")).expect("the runtime directory").flatten().collect();
    assert!(run.is_empty(), "left in the runtime directory: {run:?}");
}

/// Wrong lines end with 64, help and version with 0; with `-o json` the error is a document.
#[test]
fn wrong_command_lines_end_with_64() {
    let place = Place::new();
    let output = |args: &[&str]| run(place.command(mullion()).args(args), "");
    let wrong: [&[&str]; 10] = [
        &[],
        &["upp"],
        &["up", "--no-such-option"],
        &["up", "--port", "many"],
        &["up", "--timeout", "5"],
        &["up", "--name", "a b"],
        &["up", "--service-node-port-range", "65000-70000"],
        &["status", "-o", "yaml"],
        &["image", "load"],
        &["hns", "list", "nothing"],
    ];
    for args in wrong {
        let output = output(args);
        assert_eq!((output.code, output.out.as_str()), (Some(64), ""), "{args:?}: {output:?}");
        assert!(!output.err.is_empty(), "{args:?}");
    }
    for args in [&["--help"] as &[&str], &["--version"], &["up", "--help"], &["image", "--help"]] {
        let output = output(args);
        assert_eq!((output.code, output.err.as_str()), (Some(0), ""), "{args:?}: {output:?}");
    }
    for args in [&["up", "--port", "many", "-o", "json"] as &[&str], &["statuss", "-o", "json"], &["up", "--nodes", "x", "--output=json"]] {
        let output = output(args);
        let error = json(&output)["error"].clone();
        assert_eq!((output.code, &error["exitCode"], &error["reason"]), (Some(64), &64.into(), &"Usage".into()), "{args:?}: {output:?}");
        assert!(error["message"].as_str().is_some_and(|message| message.len() > 10 && !message.contains('\n')), "{error}");
    }
}

/// Failures of commands that understood their line.
#[test]
fn failures_are_documents_with_json_output() {
    let place = Place::new();
    for args in [&["status"] as &[&str], &["down"], &["image", "list"]] {
        let output = place.mullion(&[args, &["-o", "json"]].concat());
        let error = json(&output)["error"].clone();
        assert_eq!((output.code, &error["exitCode"], &error["reason"]), (Some(74), &74.into(), &"NotRunning".into()), "{args:?}: {output:?}");
        assert!(error["message"].as_str().is_some_and(|message| message.contains("mullion up")), "{error}");
    }
    let socket = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = socket.local_addr().expect("an address").port().to_string();
    for detach in [&["--detach"] as &[&str], &[]] {
        let output = place.mullion(&[&["up", "-o", "json", "--port", &port], detach].concat());
        let error = json(&output)["error"].clone();
        assert_eq!((output.code, &error["exitCode"], &error["reason"]), (Some(66), &66.into(), &"PortTaken".into()), "{output:?}");
    }
    // Nothing runs, as intended.
    assert_eq!(place.mullion(&["down", "--if-running"]).code, Some(0));
    let output = place.mullion(&["down", "--if-running", "--delete", "-o", "json"]);
    assert_eq!((output.code, json(&output)["ended"].clone()), (Some(0), false.into()), "{output:?}");
    assert_eq!(place.mullion(&["down", "--delete"]).code, Some(74), "there is nothing to delete");
    nothing_left(&place);
}

/// A cluster that cannot be ready in time is ended, and says so with a code of its own.
#[test]
fn a_cluster_that_is_not_ready_in_time_is_ended() {
    let place = Place::new();
    let output = place.mullion(&["up", "--detach", "--port", "0", "--nodes", NODES, "--timeout", "1ms", "-o", "json"]);
    let error = json(&output)["error"].clone();
    assert_eq!((output.code, &error["exitCode"], &error["reason"]), (Some(77), &77.into(), &"Timeout".into()), "{output:?}");
    assert!(error["message"].as_str().is_some_and(|message| message.contains("--timeout") && message.contains("1ms")), "{error}");
    let left: Vec<String> = crate::footprint::naming(&place.dir());
    assert!(left.is_empty(), "it was ended before the command returned: {left:?}");
    nothing_left(&place);
}

/// The options of the first `up` hold for the next ones; those that cannot change are refused; messages can be pasted.
#[test]
fn a_cluster_keeps_the_options_that_it_was_made_with() {
    let place = Place::new();
    // A name that a shell would take apart.
    let dir = place.path().join("it's a cluster; $HOME");
    let shared = place.path().join("shared.conf");
    let shared_text = shared.to_string_lossy().into_owned();
    let options = [
        ["--nodes", NODES],
        ["--port", "0"],
        ["--name", "ci"],
        ["--kubeconfig", &shared_text],
        ["--without", "proxy"],
        ["--feature-gates", "HyperVContainer=true"],
        ["--registry-mirror", "docker.io=http://127.0.0.1:1"],
        ["--insecure-registry", "example.org"],
        ["--cluster-cidr", "172.20.0.0/16"],
        ["--service-cidr", "172.21.0.0/16"],
        ["--dns-ip", "172.21.0.10"],
        ["--service-node-port-range", "30100-30199"],
    ];
    let up = ["up", "--detach", "-o", "json", "--no-stand-ins"];
    let first = mullion_in(&place, &dir, &[&up[..], options.as_flattened()].concat());
    let ended = Ends(&place, &dir);
    assert_eq!(first.code, Some(0), "{first:?}");
    let first = json(&first);
    assert_eq!((&first["name"], &first["context"], &first["ready"]), (&"ci".into(), &"ci".into(), &true.into()));
    assert_eq!((first["dir"].as_str(), first["nodes"][0]["name"].as_str()), (dir.to_str(), Some("lin01")), "{first}");
    assert!(first["supervisor"].is_u64() && first["processes"].as_array().is_some_and(|all| all.len() == 3), "{first}");
    assert_ne!(first["apiServer"], "https://127.0.0.1:6443");
    let described = || fs::read_to_string(dir.join("cluster.json")).expect("a description");
    let description = described();
    let settings = settings(&dir);
    for part in [
        "\nwithout:\n- proxy\n",
        "\nfeatureGates:\n  HyperVContainer: true\n",
        "--no-stand-ins",
        "docker.io=http://127.0.0.1:1",
        "--insecure-registry example.org",
    ] {
        assert!(settings.contains(part), "{part:?} is missing: {settings}");
    }
    let nodes = |context: &str| {
        let mut command = place.command(kubectl());
        run(command.args(["--context", context, "get", "nodes", "-o", "name", "--kubeconfig"]).arg(&shared), "").out
    };
    assert_eq!(nodes("ci"), "node/lin01\n");

    let output = mullion_in(&place, &dir, &["down"]);
    assert_eq!(output.code, Some(0), "{output:?}");
    let resume = advice(&output.err, "up");
    images_of_a_stopped_cluster(&place, &dir);

    what_cannot_change(&place, &dir);

    let output = paste(&place, &format!("{resume} --detach -o json"));
    assert_eq!(output.code, Some(0), "{resume}: {output:?}");
    let second = json(&output);
    for key in ["name", "apiServer", "kubeconfig", "context", "dir", "outside"] {
        assert_eq!(second[key], first[key], "{key}");
    }
    assert_eq!((described(), self::settings(&dir)), (description, settings), "as it was made");
    assert_eq!(nodes("ci"), "node/lin01\n");

    // The second `up` is refused with a line that ends the first.
    let output = mullion_in(&place, &dir, &["up"]);
    assert_eq!(output.code, Some(75), "{output:?}");
    assert_eq!(paste(&place, &advice(&output.err, "down")).code, Some(0));
    let output = mullion_in(&place, &dir, &["status"]);
    assert_eq!(output.code, Some(74));

    what_can_change(&place, &dir, &advice(&output.err, "up"), &nodes);
    deleted(&place, &dir, &shared);
    drop(ended);
}

/// Refused, with the reason and the way out.
fn what_cannot_change(place: &Place, dir: &Path) {
    for (option, value, part) in [
        ("--nodes", "win01:windows", "disks"),
        ("--cluster-cidr", "10.50.0.0/16", "pod networks"),
        ("--service-cidr", "10.60.0.0/16", "ClusterIPs"),
        ("--node-mask", "25", "pod networks"),
        ("--dns-ip", "172.21.0.11", "kube-dns"),
        ("--service-node-port-range", "30000-32767", "NodePorts"),
    ] {
        let output = mullion_in(place, dir, &["up", "--detach", option, value]);
        assert_eq!((output.code, output.err.lines().count()), (Some(65), 1), "{output:?}");
        assert!(output.err.contains(part) && output.err.contains(&format!("leave {option} out")), "{output:?}");
    }
}

/// Everything else, back to the defaults. `nodes` asks the API by a context of the shared kubeconfig.
fn what_can_change(place: &Place, dir: &Path, up: &str, nodes: &dyn Fn(&str) -> String) {
    let port = free_port().to_string();
    let changes =
        ["--no-stand-ins=false", "--without=none", "--registry-mirror=none", "--insecure-registry=none", "--feature-gates=", "--name=other"];
    let output = paste(place, &format!("{up} --detach --port {port} {}", changes.join(" ")));
    assert_eq!(output.code, Some(0), "{output:?}");
    let settings = settings(dir);
    for part in ["- proxy", "HyperVContainer", "--no-stand-ins", "--registry-mirror", "--insecure-registry"] {
        assert!(!settings.contains(part), "{part} is still there: {settings}");
    }
    let status = json(&mullion_in(place, dir, &["status", "-o", "json"]));
    assert_eq!((status["name"].as_str(), status["apiServer"].as_str()), (Some("other"), Some(&*format!("https://127.0.0.1:{port}"))));
    assert_eq!((nodes("other").as_str(), nodes("ci").as_str()), ("node/lin01\n", ""), "the old context is gone");
    let output = mullion_in(place, dir, &["status"]);
    assert!(paste(place, &advice(&output.out, "up").replace("--outside", "--help")).code == Some(0), "{output:?}");
}

/// Ends a cluster also when a test fails.
struct Ends<'a>(&'a Place, &'a Path);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        mullion_in(self.0, self.1, &["down", "--if-running"]);
    }
}

/// What a cluster's processes were started with: their command lines and the configuration files of its nodes.
fn settings(dir: &Path) -> String {
    let mut lines = crate::footprint::naming(dir);
    lines.retain(|line| line.starts_with("/proc/self/exe"));
    lines.sort();
    for host in fs::read_dir(dir.join("hosts")).expect("the hosts' directories").flatten() {
        let text = fs::read_to_string(host.path().join("node.yaml")).expect("the node's configuration file");
        // Every start has an identity of its own.
        lines.extend(text.lines().filter(|line| !line.starts_with("bootID:")).map(str::to_owned));
    }
    lines.join("\n") + "\n"
}

/// They work, and say that nothing runs and how to change that.
fn images_of_a_stopped_cluster(place: &Place, dir: &Path) {
    let archive = place.path().join("image.tar");
    crate::busybox::write_archive(&archive);
    let output = mullion_in(place, dir, &["image", "load", &archive.to_string_lossy()]);
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.err.contains("is stopped") && output.out.contains("lin01: loaded"), "{output:?}");
    assert!(advice(&output.err, "up").contains("--dir"), "{output:?}");
    for args in [&["list"] as &[&str], &["tag", crate::busybox::IMAGE, "example.org/b:1"], &["rm", "example.org/b:1"]] {
        let output = mullion_in(place, dir, &[&["image"], args].concat());
        assert!(output.code == Some(0) && output.err.contains("is stopped"), "{args:?}: {output:?}");
    }
    damaged_archives(place, dir, &fs::read(&archive).expect("the archive"));
}

/// The file is named, once; no node, and no bytes of it.
fn damaged_archives(place: &Place, dir: &Path, good: &[u8]) {
    use std::io::Write as _;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(good).expect("compressed bytes");
    let gzip = gzip.finish().expect("compressed bytes");
    let mut noise = vec![0u8; 4096];
    let mut state = 1u32;
    noise.fill_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    });
    let mut other = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(2);
    header.set_mode(0o644);
    other.append_data(&mut header, "readme", &b"hi"[..]).expect("a member");
    let other = other.into_inner().expect("an archive");
    let mut broken = good.to_vec();
    broken[512 + 1024..512 + 4096].copy_from_slice(&noise[..3072]);
    let cases: [(&str, &[u8]); 6] = [
        ("truncated.tgz", &gzip[..gzip.len() / 2]),
        ("noise", &noise),
        ("other.tar", &other),
        ("cut.tar", &good[..good.len() / 2]),
        ("broken.tar", &broken),
        ("empty", b""),
    ];
    for (name, bytes) in cases {
        let file = place.path().join(name);
        fs::write(&file, bytes).expect("a file");
        let output = mullion_in(place, dir, &["image", "load", &file.to_string_lossy()]);
        let line = output.err.lines().last().unwrap_or_default();
        assert_eq!(output.code, Some(80), "{name}: {output:?}");
        assert_eq!(line.matches(&*file.to_string_lossy()).count(), 1, "{name} is named once: {line}");
        assert!(!line.contains("lin01") && line.is_ascii() && !line.contains(char::is_control), "{name}: {line:?}");
    }
}

/// `down --delete` of a running cluster.
fn deleted(place: &Place, dir: &Path, shared: &Path) {
    let stray = dir.join("notes.txt");
    fs::write(&stray, "mine").expect("a file");
    let output = mullion_in(place, dir, &["down", "--delete", "-o", "json"]);
    assert_eq!(output.code, Some(0), "{output:?}");
    assert_eq!((json(&output)["deleted"].clone(), json(&output)["kept"].clone()), (true.into(), serde_json::json!(["notes.txt"])));
    let left: Vec<PathBuf> = fs::read_dir(dir).expect("DIR").flatten().map(|entry| entry.path()).collect();
    assert_eq!(left, [stray], "only what is not the cluster's");
    assert!(!shared.exists(), "the kubeconfig held nothing else");
    let output = mullion_in(place, dir, &["down", "--delete"]);
    assert_eq!(output.code, Some(65), "no cluster's directory: {output:?}");
    nothing_left(place);
}

/// However the supervisor ended: when `down` returns, no process is left. Here init is held up, as on a busy machine.
#[test]
fn down_returns_when_no_process_is_left() {
    let mut cluster = Cluster::up(NODES);
    let footprint = Footprint::of(&cluster);
    // With its supervisor, and without.
    for killed in [false, true] {
        let footprint = if killed {
            cluster.start("");
            Footprint::of(&cluster)
        } else {
            footprint.clone()
        };
        crate::recovery::kill("-STOP", if killed { footprint.init } else { footprint.supervisor });
        if killed {
            crate::recovery::kill("-9", footprint.supervisor);
        }
        let mut down = start_down(&cluster);
        // Long enough for a `down` that does not wait; one that waits needs none of it.
        std::thread::sleep(Duration::from_secs(1));
        let early = down.try_wait().expect("a child");
        crate::recovery::kill("-CONT", if killed { footprint.init } else { footprint.supervisor });
        assert_eq!(early, None, "`down` returned while processes of the cluster ran (killed: {killed})");
        let status = until("the end of `down`", PATIENCE, || down.try_wait().expect("a child").ok_or_else(|| "it runs".to_owned()));
        let left = footprint.left(&cluster);
        assert_eq!((status.code(), left.as_slice()), (Some(0), [].as_slice()), "killed: {killed}");
    }
    assert_eq!(cluster.down().code, Some(74));
    // Nor does a next `up` meet what is left of a cluster that was killed.
    cluster.start("");
    crate::recovery::kill_supervisor(&cluster);
    cluster.start("");
    cluster.down().ok("mullion down");
}

/// A directory of an earlier version is read, and keeps its port too.
#[test]
fn a_directory_of_an_earlier_version_keeps_its_port() {
    let mut cluster = Cluster::up(NODES);
    cluster.down().ok("mullion down");
    let path = cluster.place.dir().join("cluster.json");
    let mut description: Value = serde_json::from_str(&fs::read_to_string(&path).expect("a description")).expect("JSON");
    description["format"] = 1.into();
    for key in ["name", "port", "kubeconfig", "outside", "noStandIns"] {
        assert!(description.as_object_mut().is_some_and(|members| members.remove(key).is_some()), "{key}: {description}");
    }
    fs::write(&path, description.to_string()).expect("a file");
    let output = cluster.place.mullion(&["up", "--detach", "-o", "json"]);
    assert_eq!(output.code, Some(0), "{output:?}");
    let document = json(&output);
    let ended = cluster.down();
    assert_eq!((document["apiServer"].as_str(), document["name"].as_str()), (Some(&*format!("https://127.0.0.1:{}", cluster.port)), Some("dir")));
    ended.ok("mullion down");
}

fn start_down(cluster: &Cluster) -> Child {
    let mut command = cluster.place.command(mullion());
    command.arg("down").arg("--dir").arg(cluster.place.dir());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("mullion down")
}

/// `examples/ci/run.sh`, as it is.
#[test]
fn the_pipeline_of_the_examples_works() {
    let place = Place::new();
    let examples = place.path().join("examples");
    fs::create_dir_all(examples.join("ci")).expect("a directory");
    let script = examples.join("ci").join("run.sh");
    fs::write(&script, include_str!("../../../../examples/ci/run.sh")).expect("a script");
    fs::write(examples.join("iis.yaml"), include_str!("../../../../examples/iis.yaml")).expect("a manifest");
    let scratch = place.path().join("scratch");
    fs::create_dir(&scratch).expect("a directory");
    let mut command = place.command("bash");
    command.arg(&script).env("MULLION", mullion()).env("KUBECTL", kubectl()).env("TMPDIR", &scratch);
    let output = run(&mut command, "");
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.out.contains("the page is there"), "{output:?}");
    assert_eq!(fs::read_dir(&scratch).expect("a directory").count(), 0, "nothing of the cluster stays");
    nothing_left(&place);
}
