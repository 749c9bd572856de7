//! What is refused: one clear line with the way out, the documented exit code, and nothing left behind.

use std::fs;
use std::net::TcpListener;

use crate::cluster::{Cluster, Output, Place, free_port, mullion, run};
use crate::manifests;

/// Exit codes, as documented.
mod code {
    pub const USAGE: i32 = 64;
    pub const DIRECTORY: i32 = 65;
    pub const PORT: i32 = 66;
    pub const NAMESPACES: i32 = 67;
    pub const NFTABLES: i32 = 68;
    pub const DISK: i32 = 69;
    pub const NOT_RUNNING: i32 = 74;
    pub const RUNNING: i32 = 75;
}

/// One line on standard error with all of `parts`, nothing on standard output, the code.
#[track_caller]
fn refused(output: &Output, code: i32, parts: &[&str]) {
    assert_eq!(output.code, Some(code), "{output:?}");
    assert_eq!((output.err.lines().count(), output.out.as_str()), (1, ""), "one line on standard error: {output:?}");
    for part in parts {
        assert!(output.err.contains(part), "{part} is missing: {}", output.err);
    }
}

fn up(place: &Place, more: &[&str]) -> Output {
    let port = free_port().to_string();
    place.mullion(&[&["up", "--detach", "--port", &port], more].concat())
}

#[track_caller]
fn nothing_left(place: &Place) {
    let run: Vec<_> = fs::read_dir(place.path().join("run")).expect("the runtime directory").flatten().collect();
    assert!(run.is_empty(), "left in the runtime directory: {run:?}");
}

#[test]
fn a_taken_port_is_refused() {
    let place = Place::new();
    let socket = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = socket.local_addr().expect("an address").port().to_string();
    let output = place.mullion(&["up", "--detach", "--port", &port]);
    refused(&output, code::PORT, &[&port, "in use", "--port"]);
    nothing_left(&place);
    assert!(!place.dir().exists(), "no DIR for a cluster that never was");
}

#[test]
fn unknown_node_specifications_are_refused() {
    let cases = [
        ("win01", "win01:windows:20348"),
        ("a:solaris", "solaris"),
        ("a:windows:12345", "20348 (Windows Server 2022)"),
        ("a:linux,a:linux", "twice"),
        ("a:linux:cpu=many", "cpu"),
        ("Upper:linux", "lower-case"),
    ];
    let place = Place::new();
    for (nodes, part) in cases {
        refused(&up(&place, &["--nodes", nodes]), code::USAGE, &[part]);
    }
    nothing_left(&place);
    assert!(!place.dir().exists());
}

#[test]
fn a_directory_of_a_newer_format_is_refused() {
    let place = Place::new();
    fs::create_dir(place.dir()).expect("a directory");
    let description = r#"{"format":999,"somethingNew":[]}"#;
    fs::write(place.dir().join("cluster.json"), description).expect("a file");
    refused(&up(&place, &[]), code::DIRECTORY, &["format 999", "newer mullion", "--dir"]);
    nothing_left(&place);
    assert_eq!(fs::read_to_string(place.dir().join("cluster.json")).expect("a file"), description, "it stays as it was");
}

/// A file system of 8 MiB, in namespaces of its own: no rights are needed.
#[test]
fn a_full_disk_is_refused() {
    let place = Place::new();
    fs::create_dir(place.dir()).expect("a directory");
    let script = "mount -t tmpfs -o size=8m none \"$2\" && exec \"$1\" up --detach --port \"$3\" --dir \"$2\"";
    let mut command = place.command("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]).arg(mullion()).arg(place.dir()).arg(free_port().to_string());
    refused(&run(&mut command, ""), code::DISK, &["MiB", "make room", "--dir"]);
    nothing_left(&place);
}

/// A user namespace that may not have children.
#[test]
fn missing_user_namespaces_are_refused() {
    let place = Place::new();
    let script = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$1\" up --detach --port \"$3\" --dir \"$2\"";
    let mut command = place.command("unshare");
    command.args(["--user", "--map-root-user", "sh", "-c", script, "sh"]).arg(mullion()).arg(place.dir()).arg(free_port().to_string());
    refused(&run(&mut command, ""), code::NAMESPACES, &["user namespaces", "max_user_namespaces"]);
    nothing_left(&place);
}

/// `up` under a rule of `forbid.py`.
fn up_without(place: &Place, rule: &str) -> Output {
    let script = include_str!("forbid.py");
    let mut command = place.command("python3");
    command.args(["-c", script, rule]).arg(mullion()).args(["up", "--detach", "--port", &free_port().to_string(), "--dir"]).arg(place.dir());
    run(&mut command, "")
}

#[test]
fn a_kernel_without_nftables_is_refused() {
    let place = Place::new();
    let mut output = up_without(&place, "no-nftables");
    // Found out in the new namespaces, after the first steps were reported.
    output.err = output.err.lines().last().unwrap_or_default().to_owned();
    refused(&output, code::NFTABLES, &["nf_tables is not usable", "modprobe nf_tables"]);
    nothing_left(&place);
    assert!(!place.dir().exists());
}

/// User namespaces that can be made but give no rights, as AppArmor leaves them.
#[test]
fn powerless_user_namespaces_are_refused() {
    let place = Place::new();
    refused(&up_without(&place, "bare-userns"), code::NAMESPACES, &["user namespaces are not usable here"]);
    nothing_left(&place);
    assert!(!place.dir().exists());
}

#[test]
fn down_and_status_without_a_cluster_are_refused() {
    let place = Place::new();
    for command in ["down", "status"] {
        refused(&place.mullion(&[command]), code::NOT_RUNNING, &["no cluster runs", "mullion up"]);
    }
    nothing_left(&place);
}

/// A second supervisor on a running DIR; the first goes on.
pub fn second_up(cluster: &Cluster) {
    refused(&up(&cluster.place, &[]), code::RUNNING, &["already", "mullion down"]);
    assert!(cluster.kubectl(&["get", "nodes"]).contains("win02"));
}

/// The handbook's own API group is long gone; kubectl prints its own message.
pub fn old_api_group(cluster: &Cluster) {
    let manifest = manifests::web("old", "win01", "", "").replacen("apps/v1", "extensions/v1beta1", 1);
    let manifest = manifest.split("---").next().unwrap_or_default();
    let output = cluster.try_kubectl(&["apply", "-f", "-"], manifest);
    assert_eq!(output.code, Some(1), "{output:?}");
    let expected = "error: resource mapping not found for name: \"old\" namespace: \"\" from \"STDIN\": no matches for kind \"Deployment\" in version \"extensions/v1beta1\"\nensure CRDs are installed first";
    assert_eq!(output.err.trim(), expected);
}

/// kubectl asks for strict validation.
pub fn unknown_fields(cluster: &Cluster) {
    let manifest = manifests::web("typo", "win01", "", "        imagePolicy: Never");
    let manifest = manifest.split("---").next().unwrap_or_default();
    let output = cluster.try_kubectl(&["apply", "-f", "-"], manifest);
    assert_eq!(output.code, Some(1), "{output:?}");
    let expected = "strict decoding error: unknown field \"spec.template.spec.containers[0].imagePolicy\"";
    assert!(output.err.contains(expected) && output.err.contains("BadRequest"), "{output:?}");
    let left = cluster.try_kubectl(&["get", "deployment", "typo"], "");
    assert!(left.err.contains("deployments.apps \"typo\" not found"), "{left:?}");
}
