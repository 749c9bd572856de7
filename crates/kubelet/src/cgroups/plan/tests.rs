use std::collections::BTreeMap;

use super::*;
use crate::cgroups::tree::Hierarchy;

fn site(tree: Tree, driver: Cgroups) -> Site {
    Site { tree, driver, page_sizes: vec![2 << 20] }
}

fn split() -> Tree {
    let all = [("cpu,cpuacct", vec!["cpu", "cpuacct"]), ("cpuset", vec!["cpuset"]), ("memory", vec!["memory"]), ("pids", vec!["pids"])];
    let rest = [("hugetlb", vec!["hugetlb"]), ("systemd", vec!["name=systemd"])];
    let hierarchy = |(mount, controllers): (&str, Vec<&str>)| Hierarchy {
        mount: format!("/c/{mount}"),
        controllers: controllers.into_iter().map(str::to_owned).collect(),
    };
    Tree::Split(all.into_iter().chain(rest).map(hierarchy).collect())
}

fn unified() -> Tree {
    Tree::Unified(["cpu", "memory", "pids", "hugetlb"].map(str::to_owned).to_vec())
}

fn limits() -> Limits {
    Limits {
        shares: Some(1024),
        quota: Some(12_345),
        period: Some(100_000),
        memory: Some(4096),
        pids: Some(10),
        cpus: None,
        huge_pages: Some(BTreeMap::new()),
    }
}

fn shown(steps: Vec<Step>) -> Vec<String> {
    steps.iter().map(ToString::to_string).collect()
}

#[test]
fn a_pods_group_is_made_in_each_hierarchy_of_version_1() {
    let site = site(split(), Cgroups::Files);
    let pod = Name::parse("/kubepods/burstable/poda-b");
    assert_eq!(
        shown(site.make(&pod)),
        [
            "make /c/cpu,cpuacct/kubepods/burstable/poda-b",
            "make /c/cpuset/kubepods/burstable/poda-b",
            "copy cpuset.cpus into /c/cpuset/kubepods/burstable/poda-b from the group above it",
            "copy cpuset.mems into /c/cpuset/kubepods/burstable/poda-b from the group above it",
            "make /c/memory/kubepods/burstable/poda-b",
            "make /c/pids/kubepods/burstable/poda-b",
            "make /c/hugetlb/kubepods/burstable/poda-b",
            "make /c/systemd/kubepods/burstable/poda-b",
        ]
    );
    assert_eq!(
        shown(site.set(&pod, &limits())),
        [
            "write 1024 into /c/cpu,cpuacct/kubepods/burstable/poda-b/cpu.shares",
            "write 100000 into /c/cpu,cpuacct/kubepods/burstable/poda-b/cpu.cfs_period_us",
            "write 12345 into /c/cpu,cpuacct/kubepods/burstable/poda-b/cpu.cfs_quota_us",
            "write 100000 into /c/cpu,cpuacct/kubepods/burstable/poda-b/cpu.cfs_period_us",
            "write 4096 into /c/memory/kubepods/burstable/poda-b/memory.limit_in_bytes",
            "write 10 into /c/pids/kubepods/burstable/poda-b/pids.max",
            "write 0 into /c/hugetlb/kubepods/burstable/poda-b/hugetlb.2MB.limit_in_bytes",
            "write 0 into /c/hugetlb/kubepods/burstable/poda-b/hugetlb.2MB.rsvd.limit_in_bytes",
        ]
    );
}

#[test]
fn version_2_has_one_group_that_controllers_are_passed_on_to() {
    let site = site(unified(), Cgroups::Files);
    assert_eq!(
        shown(site.make_whole(&Name::parse("/kubepods/burstable"))),
        [
            "pass cpu memory pids hugetlb on from /sys/fs/cgroup",
            "make /sys/fs/cgroup/kubepods",
            "pass cpu memory pids hugetlb on from /sys/fs/cgroup/kubepods",
            "make /sys/fs/cgroup/kubepods/burstable",
            "pass cpu memory pids hugetlb on from /sys/fs/cgroup/kubepods/burstable",
        ]
    );
    let pod = Name::parse("/kubepods/poda");
    assert_eq!(shown(site.make(&pod)), ["make /sys/fs/cgroup/kubepods/poda"]);
    assert_eq!(
        shown(site.set(&pod, &limits())),
        [
            "write 39 into /sys/fs/cgroup/kubepods/poda/cpu.weight",
            "write 12345 100000 into /sys/fs/cgroup/kubepods/poda/cpu.max",
            "write 4096 into /sys/fs/cgroup/kubepods/poda/memory.max",
            "write 10 into /sys/fs/cgroup/kubepods/poda/pids.max",
            "write 0 into /sys/fs/cgroup/kubepods/poda/hugetlb.2MB.max",
            "write 0 into /sys/fs/cgroup/kubepods/poda/hugetlb.2MB.rsvd.max",
        ]
    );
    let none = Limits { quota: Some(-1), period: Some(100_000), ..Limits::default() };
    assert_eq!(shown(site.set(&pod, &none)), ["write max 100000 into /sys/fs/cgroup/kubepods/poda/cpu.max"]);
}

#[test]
fn slices_are_systemds_and_have_the_same_directories() {
    let slice = "/kubepods.slice/kubepods-poda_b.slice";
    let pod = Name::parse("/kubepods/poda-b");
    let site_1 = site(split(), Cgroups::Systemd);
    let made = shown(site_1.make(&pod));
    assert!(made[0].starts_with("start kubepods-poda_b.slice with Description="), "{made:?}");
    let directories = made[1..].iter().filter(|step| step.starts_with("make"));
    let wanted: Vec<String> = ["cpu,cpuacct", "cpuset", "memory", "pids", "hugetlb"].map(|mount| format!("make /c/{mount}{slice}")).to_vec();
    assert_eq!(directories.cloned().collect::<Vec<_>>(), wanted);
    let set = shown(site_1.set(&pod, &limits()));
    assert_eq!(
        set[0],
        "set MemoryLimit=4096 CPUShares=1024 CPUQuotaPeriodUSec=100000 CPUQuotaPerSecUSec=130000 TasksMax=10 of kubepods-poda_b.slice"
    );
    assert!(set.contains(&format!("write 13000 into /c/cpu,cpuacct{slice}/cpu.cfs_quota_us")), "{set:?}");
    let set = shown(site(unified(), Cgroups::Systemd).set(&pod, &limits()));
    assert_eq!(set[0], "set MemoryMax=4096 CPUWeight=39 CPUQuotaPeriodUSec=100000 CPUQuotaPerSecUSec=130000 TasksMax=10 of kubepods-poda_b.slice");
    assert_eq!(set[1], format!("write 39 into /sys/fs/cgroup{slice}/cpu.weight"));
}

#[test]
fn what_a_machine_lacks_is_left_out() {
    let only_cpu = Tree::Split(vec![Hierarchy { mount: "/c/cpu".into(), controllers: vec!["cpu".into()] }]);
    let site = Site { tree: only_cpu, driver: Cgroups::Files, page_sizes: vec![] };
    assert_eq!(shown(site.set(&Name::parse("/a"), &Limits { quota: None, period: None, ..limits() })), ["write 1024 into /c/cpu/a/cpu.shares"]);
    assert!(site.set(&Name::parse("/a"), &Limits::default()).is_empty());
    assert_eq!(site.groups(&Name::parse("/")), ["/c/cpu"]);
}

#[test]
fn numbers_of_processes_and_weights_are_those_that_the_kernel_takes() {
    assert_eq!([-1, 0, 1, 4096].map(pids), ["max", "1", "1", "4096"]);
    assert_eq!([0, 2, 102, 1024, 262_143, 262_144, 500_000].map(weight), [1, 1, 4, 39, 9999, 10_000, 10_000]);
}
