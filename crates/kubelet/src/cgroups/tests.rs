//! Groups over a directory that stands for the kernel's: what is written where, and what goes.

use std::path::{Path, PathBuf};
use std::process::Command;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::keep::{Sums, Turns, of_classes};
use super::*;

struct Machine {
    dir: tempfile::TempDir,
    groups: Groups,
}

const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

impl Machine {
    /// Hierarchies of version 1, with the root group of each.
    fn new(settings: GroupSettings) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut table = String::new();
        for controller in CONTROLLERS {
            std::fs::create_dir_all(dir.path().join("sys/fs/cgroup").join(controller)).unwrap();
            table += &format!("1 2 0:3 / /sys/fs/cgroup/{controller} rw - cgroup cgroup rw,{controller}\n");
        }
        Self::over(dir, settings, &table)
    }

    /// Version 2.
    fn unified() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("sys/fs/cgroup")).unwrap();
        std::fs::write(dir.path().join("sys/fs/cgroup/cgroup.controllers"), "cpu memory pids\n").unwrap();
        Self::over(dir, GroupSettings::default(), "1 2 0:3 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    }

    fn over(dir: tempfile::TempDir, settings: GroupSettings, table: &str) -> Self {
        let proc = dir.path().join(format!("proc/{}", std::process::id()));
        std::fs::create_dir_all(&proc).unwrap();
        std::fs::write(proc.join("mountinfo"), table).unwrap();
        let groups = Groups {
            root: Arc::new(HostRoot::linux(dir.path()).unwrap()),
            pods: root_of_pods(&settings).unwrap(),
            settings,
            kernel: Kernel::default(),
            driver: Cgroups::Files,
            told: Arc::default(),
            amounts: Amounts::new(),
            site: OnceCell::new(),
            changed: Notify::new(),
            late: Mutex::default(),
        };
        Machine { dir, groups }
    }

    fn at(&self, controller: &str, group: &str) -> PathBuf {
        self.dir.path().join("sys/fs/cgroup").join(controller).join(group)
    }

    /// The files that the kernel has in a new group.
    fn files(&self, group: &str) {
        for (controller, files) in
            [("cpu", &["cpu.shares", "cpu.cfs_period_us", "cpu.cfs_quota_us"][..]), ("memory", &["memory.limit_in_bytes"]), ("pids", &["pids.max"])]
        {
            for file in files {
                let path = self.at(controller, group).join(file);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, "").unwrap();
            }
        }
    }

    fn read(&self, controller: &str, path: &str) -> String {
        std::fs::read_to_string(self.at(controller, path)).unwrap()
    }
}

fn pod(uid: &str, resources: Value) -> Pod {
    let containers = json!([{"name": "c", "resources": resources}]);
    serde_json::from_value(json!({"metadata": {"name": "p", "uid": uid}, "spec": {"containers": containers}})).unwrap()
}

fn full(cpu: &str, memory: &str) -> Value {
    json!({"limits": {"cpu": cpu, "memory": memory}, "requests": {"cpu": cpu, "memory": memory}})
}

#[tokio::test]
async fn groups_of_classes_are_made_once_and_a_pods_group_has_its_limits() {
    let machine = Machine::new(GroupSettings { pids: Some(50), ..GroupSettings::default() });
    machine.files("kubepods/poda-1");
    let pod = pod("a-1", full("500m", "64Mi"));
    machine.groups.ensure(&pod).await.unwrap();
    for controller in CONTROLLERS {
        for group in ["kubepods/burstable", "kubepods/besteffort"] {
            assert!(machine.at(controller, group).is_dir(), "{controller} {group}");
        }
    }
    let values = ["cpu.shares", "cpu.cfs_period_us", "cpu.cfs_quota_us"].map(|file| machine.read("cpu", &format!("kubepods/poda-1/{file}")));
    // The period is written before and after the quota; a real file has it once.
    assert_eq!(values, ["512", "100000", "50000"]);
    assert_eq!(machine.read("memory", "kubepods/poda-1/memory.limit_in_bytes"), (64 << 20).to_string());
    assert_eq!(machine.read("pids", "kubepods/poda-1/pids.max"), "50");
}

#[tokio::test]
async fn a_group_that_is_missing_is_named() {
    let machine = Machine::new(GroupSettings { root: "/nodes".into(), ..GroupSettings::default() });
    let error = machine.groups.ensure(&pod("a", json!({}))).await.unwrap_err().to_report_string();
    let paths = "/sys/fs/cgroup/cpu/nodes, /sys/fs/cgroup/memory/nodes, /sys/fs/cgroup/pids/nodes";
    assert_eq!(error, format!("invalid configuration: cgroup [nodes] has some missing paths: {paths}; make it, or leave cgroupRoot out"));
    for controller in CONTROLLERS {
        std::fs::create_dir(machine.at(controller, "nodes")).unwrap();
    }
    machine.files("nodes/kubepods/besteffort/poda");
    machine.groups.ensure(&pod("a", json!({}))).await.unwrap();
    assert_eq!(machine.read("cpu", "nodes/kubepods/besteffort/poda/cpu.shares"), "2");
    // A UID that leads elsewhere makes no group.
    let error = machine.groups.ensure(&pod("../../x", json!({}))).await.unwrap_err();
    assert!(matches!(error, GroupError::Uid(_)), "{error}");
}

#[tokio::test]
async fn a_machine_without_control_groups_runs_pods_without_them() {
    let machine = Machine::new(GroupSettings::default());
    std::fs::write(machine.dir.path().join(format!("proc/{}/mountinfo", std::process::id())), "").unwrap();
    machine.groups.ensure(&pod("a", json!({}))).await.unwrap();
    assert!(!machine.at("cpu", "kubepods").exists());
    machine.groups.remove(&pod("a", json!({}))).await.unwrap();
}

/// Directories below a group's are as removable as groups without processes.
fn make(machine: &Machine, group: &str) {
    for controller in CONTROLLERS {
        std::fs::create_dir_all(machine.at(controller, group)).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn groups_go_with_those_below_them_and_others_stay() {
    let machine = Machine::new(GroupSettings::default());
    machine.groups.site().await.unwrap();
    for group in ["kubepods/poda/c1/d", "kubepods/burstable/podb", "kubepods/besteffort/podc", "kubepods/besteffort/other", "system/podx"] {
        make(&machine, group);
    }
    // A link is no group, and nothing behind it goes.
    let outside = machine.dir.path().join("outside");
    std::fs::create_dir_all(outside.join("podl/in")).unwrap();
    std::os::unix::fs::symlink(&outside, machine.at("cpu", "kubepods/burstable/podl")).unwrap();
    let uids: Vec<String> = machine.groups.all().await.into_iter().map(|(uid, _)| uid).collect();
    assert_eq!(uids, ["c", "b", "a"]);
    machine.groups.remove(&pod("a", full("1", "1Mi"))).await.unwrap();
    let orphans = machine.groups.all().await;
    machine.files("kubepods/besteffort/podc");
    machine.groups.remove_orphans(orphans, |pod| pod == "c").await;
    for controller in CONTROLLERS {
        let left = ["kubepods/poda", "kubepods/burstable/podb", "kubepods/besteffort/podc", "kubepods/besteffort/other", "system/podx"];
        assert_eq!(left.map(|group| machine.at(controller, group).exists()), [false, false, true, true, true], "{controller}");
    }
    assert_eq!(machine.read("cpu", "kubepods/besteffort/podc/cpu.shares"), "2", "its volumes are still there");
    assert!(outside.join("podl/in").exists());
}

#[tokio::test]
async fn processes_that_are_left_are_killed() {
    let machine = Machine::new(GroupSettings::default());
    machine.groups.site().await.unwrap();
    make(&machine, "kubepods/besteffort/poda/c");
    let mut process = Command::new("sleep").arg("1000").spawn().unwrap();
    // Neither the agent itself, nor a process of another namespace, nor the first one.
    let listed = format!("0\n1\n{}\n{}\n", std::process::id(), process.id());
    let file = machine.at("memory", "kubepods/besteffort/poda/c/cgroup.procs");
    std::fs::write(&file, listed).unwrap();
    let error = machine.groups.remove(&pod("a", json!({}))).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed to delete cgroup paths for [kubepods besteffort poda]: /sys/fs/cgroup/memory/kubepods/besteffort/poda is in use"
    );
    let status = process.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    std::fs::remove_file(&file).unwrap();
    machine.groups.remove(&pod("a", json!({}))).await.unwrap();
    assert!(!Path::new(&machine.at("memory", "kubepods/besteffort/poda")).exists());
}

#[tokio::test]
async fn a_resized_pods_group_grows_first_and_shrinks_last() {
    let machine = Machine::new(GroupSettings::default());
    let has = |memory: &str, quota: &str, shares: &str| {
        machine.files("kubepods/burstable/poda");
        let put =
            |controller: &str, file: &str, value: &str| std::fs::write(machine.at(controller, "kubepods/burstable/poda").join(file), value).unwrap();
        put("memory", "memory.limit_in_bytes", memory);
        put("cpu", "cpu.cfs_quota_us", quota);
        put("cpu", "cpu.shares", shares);
    };
    let read = || {
        let of = |controller: &str, file: &str| machine.read(controller, &format!("kubepods/burstable/poda/{file}"));
        (of("memory", "memory.limit_in_bytes"), of("cpu", "cpu.cfs_quota_us"), of("cpu", "cpu.shares"))
    };
    let resources = json!({"limits": {"cpu": "200m", "memory": "2000"}, "requests": {"cpu": "100m", "memory": "1000"}});
    let pod = pod("a", resources);
    for (what, before, grown) in [
        ("all grow", ("1000", "10000", "100"), ("2000", "20000", "102")),
        ("memory shrinks", ("4000", "10000", "100"), ("4000", "20000", "102")),
        ("without a bound", ("9223372036854771712", "-1", "999"), ("9223372036854771712", "-1", "999")),
    ] {
        has(before.0, before.1, before.2);
        machine.groups.grow(&pod).await.unwrap();
        assert_eq!(read(), (grown.0.to_owned(), grown.1.to_owned(), grown.2.to_owned()), "{what}");
    }
    has("4000", "40000", "512");
    machine.groups.settle(&pod).await;
    assert_eq!(read(), ("2000".into(), "20000".into(), "102".into()));
    // One that cannot shrink is tried again.
    std::fs::remove_file(machine.at("memory", "kubepods/burstable/poda/memory.limit_in_bytes")).unwrap();
    machine.groups.settle(&pod).await;
    assert_eq!(machine.groups.late.lock().await.len(), 1);
    machine.groups.remove(&pod).await.unwrap_err();
    assert!(machine.groups.late.lock().await.is_empty(), "what goes need not shrink");
}

/// A Burstable pod with this memory limit.
fn limited(memory: &str) -> Pod {
    pod("a", json!({"limits": {"cpu": "200m", "memory": memory}, "requests": {"cpu": "100m", "memory": "1000"}}))
}

#[tokio::test]
async fn a_group_does_not_shrink_below_what_it_uses_and_does_later() {
    let at = "kubepods/burstable/poda";
    for (machine, limit, usage) in [
        (Machine::new(GroupSettings::default()), "memory/kubepods/burstable/poda/memory.limit_in_bytes", "memory.usage_in_bytes"),
        (Machine::unified(), "kubepods/burstable/poda/memory.max", "memory.current"),
    ] {
        machine.files(at);
        for file in ["cpu.weight", "cpu.max", "memory.max"] {
            std::fs::create_dir_all(machine.at("", at)).unwrap();
            std::fs::write(machine.at("", at).join(file), "").unwrap();
        }
        let limit = machine.at("", limit);
        let uses = |bytes: &str| std::fs::write(limit.with_file_name(usage), bytes).unwrap();
        let has = || std::fs::read_to_string(&limit).unwrap().trim().to_owned();
        std::fs::write(&limit, "4000\n").unwrap();
        assert_eq!(machine.groups.refuses(&limited("2000")).await.as_deref(), Some("missing pod memory usage"));
        uses("3000\n");
        let refused = machine.groups.refuses(&limited("2000")).await;
        assert_eq!(refused.as_deref(), Some("attempting to set pod memory limit (2000) below current usage (3000)"), "{usage}");
        assert_eq!(machine.groups.refuses(&limited("3001")).await, None, "{usage}");
        assert_eq!(machine.groups.refuses(&limited("5000")).await, None, "{usage}: no decrease");
        machine.groups.settle(&limited("2000")).await;
        assert_eq!(has(), "4000", "{usage}");
        machine.groups.shrink_late().await;
        assert_eq!(has(), "4000", "{usage}");
        // A pod's next sandbox starts all the same.
        machine.groups.ensure(&limited("2000")).await.unwrap();
        assert_eq!(has(), "4000", "{usage}");
        uses("1999\n");
        machine.groups.shrink_late().await;
        assert_eq!(has(), "2000", "{usage}");
        assert!(machine.groups.late.lock().await.is_empty());
    }
}

#[tokio::test]
async fn a_late_decrease_does_not_undo_a_later_increase() {
    let machine = Machine::new(GroupSettings::default());
    machine.files("kubepods/burstable/poda");
    let limit = machine.at("memory", "kubepods/burstable/poda/memory.limit_in_bytes");
    let usage = limit.with_file_name("memory.usage_in_bytes");
    std::fs::write(&limit, "4000").unwrap();
    std::fs::write(&usage, "3000").unwrap();
    machine.groups.settle(&limited("2000")).await;
    machine.groups.grow(&limited("6000")).await.unwrap();
    std::fs::write(&usage, "1000").unwrap();
    machine.groups.shrink_late().await;
    assert_eq!(std::fs::read_to_string(&limit).unwrap(), "6000");
    // A decrease that works leaves no earlier one either.
    std::fs::write(&usage, "5000").unwrap();
    machine.groups.settle(&limited("2000")).await;
    machine.groups.settle(&limited("5500")).await;
    std::fs::write(&usage, "1000").unwrap();
    machine.groups.shrink_late().await;
    assert_eq!(std::fs::read_to_string(&limit).unwrap(), "5500");
}

#[tokio::test(start_paused = true)]
async fn changes_of_pods_do_not_put_the_periodic_look_off() {
    let changed = Arc::new(Notify::new());
    let often = changed.clone();
    tokio::spawn(async move {
        loop {
            often.notify_one();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let begin = tokio::time::Instant::now();
    let mut turns = Turns::new();
    let (mut due, mut others) = (Vec::new(), 0);
    while begin.elapsed() < Duration::from_secs(150) {
        match turns.next(&changed).await {
            true => due.push(begin.elapsed().as_secs()),
            false => others += 1,
        }
    }
    assert_eq!(due, [0, 60, 120]);
    assert!((1000..=1500).contains(&others), "{others} looks at changes: one each {PAUSE:?}");
}

#[test]
fn classes_have_the_shares_of_their_pods_and_leave_memory_to_better_ones() {
    let burstable = |cpu: &str, memory: &str| pod("b", json!({"requests": {"cpu": cpu, "memory": memory}}));
    let pods = [burstable("500m", "1000"), burstable("250m", "500"), pod("g", full("1", "2000")), pod("e", json!({}))];
    let sums = Sums::of(pods.iter());
    assert_eq!(sums, Sums { burstable_cpu: 750, burstable_memory: 1500, guaranteed_memory: 2000 });
    let name = Name::parse("/kubepods");
    let shown = |sums, allocatable, percent| {
        of_classes(&name, sums, allocatable, percent, &[])
            .into_iter()
            .map(|(name, limits)| (name.to_string(), limits.shares.unwrap(), limits.memory))
            .collect::<Vec<_>>()
    };
    let (burstable, best_effort) = ("[kubepods burstable]".to_owned(), "[kubepods besteffort]".to_owned());
    assert_eq!(shown(sums, 10_000, None), [(burstable.clone(), 768, None), (best_effort.clone(), 2, None)]);
    assert_eq!(shown(sums, 10_000, Some(50)), [(burstable.clone(), 768, Some(9000)), (best_effort.clone(), 2, Some(8250))]);
    assert_eq!(shown(sums, 1_000, Some(100)), [(burstable.clone(), 768, Some(1)), (best_effort.clone(), 2, Some(1))], "never none at all");
    assert_eq!(shown(sums, 0, Some(100)), [(burstable.clone(), 768, None), (best_effort.clone(), 2, None)], "nothing is known of the node");
    assert_eq!(shown(Sums::default(), 1, None), [(burstable, 2, None), (best_effort, 2, None)]);
}
