//! A machine of its own for one cluster, without Wine: what runs there all the same, and that nothing of the cluster stays behind.
//!
//! `machine.sh` makes the machine: mounts, network and processes of its own, over the files of the real one. In its network are links,
//! addresses, routes, rules and nf_tables of somebody else's, which must stay as they are.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use crate::cluster::{Place, kubectl, mullion, run};
use crate::manifests;

/// A pod of Windows' own shell, which stand-ins do not have.
const NEEDS_WINE: &str = "---
apiVersion: v1
kind: Pod
metadata: {name: needs-wine}
spec:
  nodeSelector: {kubernetes.io/os: windows}
  containers:
  - {name: main, image: 'mcr.microsoft.com/windows/nanoserver:ltsc2022'}
";

/// What a cluster may touch nowhere, not even while it runs.
const NETWORK: [&str; 6] = ["links", "addresses", "routes", "nft", "sysctls", "mounts"];

/// What `machine.sh` saw.
struct Seen(PathBuf);

impl Seen {
    /// Has a cluster brought up and down, by the machine's root or by a user without rights.
    #[track_caller]
    fn of(place: &Place, by: &str) -> Self {
        fs::write(place.path().join("pods.yaml"), format!("{}\n{NEEDS_WINE}", manifests::IIS)).expect("a manifest");
        let script = place.path().join("machine.sh");
        fs::write(&script, include_str!("machine.sh")).expect("a script");
        let is_root = fs::metadata(place.path()).expect("a directory").uid() == 0;
        // A user without rights may make a user namespace, and has them there.
        let own: &[&str] = if is_root { &[] } else { &["--user", "--map-root-user"] };
        let mut command = place.command("unshare");
        command.args(own).args(["--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child", "sh"]);
        command.arg(script).arg(place.path()).arg(mullion()).arg(kubectl()).arg(by);
        let output = run(&mut command, "");
        let seen = Self(place.path().join("seen"));
        assert_eq!(output.code, Some(0), "machine.sh {by}: {output:?}\n{}{}", seen.read("up"), seen.read("rollout"));
        seen
    }

    /// What is in one of its files.
    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap_or_default()
    }

    /// The lines about a subject at one time.
    fn lines(&self, time: &str, subject: &str) -> BTreeSet<String> {
        self.read(&format!("{time}/{subject}")).lines().map(str::to_owned).collect()
    }

    /// What came and went between the time before the cluster and another.
    fn changes(&self, time: &str, subject: &str) -> Vec<String> {
        let (before, now) = (self.lines("before", subject), self.lines(time, subject));
        let gone = before.difference(&now).map(|line| format!("- {line}"));
        gone.chain(now.difference(&before).map(|line| format!("+ {line}"))).collect()
    }
}

/// The line of a pod's event, and the commands that say why no Windows program runs.
fn reports_missing_wine(seen: &Seen) {
    let missing = "this machine has no Wine; install it (Debian: apt-get install wine64), then run `mullion template`";
    let up = seen.read("up");
    assert!(up.contains(&format!("only stand-ins will run on Windows nodes: {missing}")) && up.contains("is ready after"), "{up}");
    let ready = up.lines().filter(|line| line.starts_with("node ") && line.contains(" is Ready ")).count();
    assert_eq!(ready, 3, "{up}");
    assert!(seen.read("status").contains(&format!("Only stand-ins run on Windows nodes: {missing}")), "{}", seen.read("status"));
    assert!(seen.read("page").contains("IIS Windows Server (Mullion stand-in)"), "{}", seen.read("page"));
    let (pod, exec, template) = (seen.read("describe"), seen.read("exec"), seen.read("template"));
    let event = pod.lines().find(|line| line.contains("Warning") && line.contains("Failed"));
    assert!(event.is_some_and(|line| line.ends_with(&format!("Error: cannot run Windows programs: {missing}"))), "{pod}");
    assert!(pod.contains("Reason:       CreateContainerError"), "{pod}");
    assert!(exec.contains("install Wine on this machine (Debian: apt"), "{exec}");
    assert_eq!(seen.read("enter"), "0\n", "the lab is entered as its root: {}", seen.read("status"));
    assert!(template.contains(missing) && template.ends_with("code 71\n"), "{template}");
}

/// Up, a pod, down and `down --delete`, each followed by a look at the whole machine.
fn leaves_no_trace(by: &str) {
    let place = Place::alone_without_windows();
    let seen = Seen::of(&place, by);
    reports_missing_wine(&seen);
    for subject in NETWORK {
        assert!(!seen.lines("before", subject).is_empty(), "{by}: nothing was seen of {subject}");
    }
    assert!(seen.lines("before", "sysctls").len() > 300 && seen.read("before/nft").contains("tcp dport 1 drop"));
    for time in ["during", "after", "deleted"] {
        for subject in NETWORK.iter().chain(&["iptables"]) {
            assert_eq!(seen.changes(time, subject), Vec::<String>::new(), "{by}: {subject} {time}");
        }
    }
    assert!(seen.changes("during", "processes").len() >= 10, "the cluster was there: {:?}", seen.changes("during", "processes"));
    for time in ["after", "deleted"] {
        for subject in ["processes", "cgroups", "files"] {
            assert_eq!(seen.changes(time, subject), Vec::<String>::new(), "{by}: {subject} {time}");
        }
    }
    assert_eq!(seen.read("after/groups"), "", "{by}: control groups stay");
    // While it runs there are sockets outside of DIR, and nothing else.
    let sockets = |line: &String| line.starts_with("+ /tmp/mullion-");
    assert!(seen.changes("during", "files").iter().all(sockets), "{by}: {:?}", seen.changes("during", "files"));
    // In the home of whoever started it: DIR and the cache.
    let home = place.path().join("home");
    let kept = [".local", ".local/state", ".cache", ".cache/mullion"].map(|dir| home.join(dir).to_string_lossy().into_owned());
    let below = |line: &String, dir: &str| line.starts_with(&*home.join(dir).to_string_lossy());
    let of_cluster = |line: &String| below(line, ".local/state/mullion") || below(line, ".cache/mullion/images") || kept.contains(line);
    for time in ["during", "after", "deleted"] {
        let others: Vec<_> = seen.lines(time, "home").into_iter().filter(|line| !of_cluster(line)).collect();
        assert_eq!(others, Vec::<String>::new(), "{by}: files {time}");
    }
    assert!(seen.lines("after", "home").iter().any(|line| line.ends_with("/mullion/cluster.json")), "DIR keeps the cluster");
    assert!(seen.read("delete").contains("is deleted"), "{}", seen.read("delete"));
    let left: Vec<_> = seen.lines("deleted", "home").into_iter().filter(|line| below(line, ".local/state/mullion")).collect();
    assert_eq!(left, Vec::<String>::new(), "{by}: `down --delete` leaves nothing of DIR");
}

/// By a user without rights, and by root: of a namespace, where the tests run as an ordinary user, else of the machine.
#[test]
fn a_cluster_without_wine_runs_stand_ins_and_leaves_no_trace_on_the_machine() {
    let is_root = fs::metadata("/proc/self").expect("/proc").uid() == 0;
    for by in if is_root { &["root"][..] } else { &["user", "root"] } {
        leaves_no_trace(by);
    }
}
