use super::*;
use crate::config::AddressSource;
use crate::config::{Capacity, Resolver};
use host::NodeOs;

fn facts() -> NodeFacts {
    let capacity = Capacity { cpu_millis: 8000, memory_bytes: 16 << 30, pods: 110, ephemeral_storage_bytes: 0 };
    let os = NodeOs::Windows { build: 20348 };
    NodeFacts {
        side: NodeSide {
            os,
            node_name: "win01".into(),
            capacity,
            hyper_v_container: false,
            cluster_dns: vec![],
            cluster_domain: String::new(),
            resolver: Resolver::default(),
            kernel: Default::default(),
            pod_groups: None,
            cgroups: Default::default(),
            runtime_cgroups: Default::default(),
            seccomp_default: false,
            seccomp_dir: String::new(),
            modules: Default::default(),
            unsafe_sysctls: vec![],
        },
        facts: HostFacts::simulated(os, "m", "b"),
        version: "v1.36.2+mullion.0.1.0".into(),
        addresses: Addresses::new(vec!["10.240.0.12".parse().unwrap()], None),
        labels: BTreeMap::new(),
        taints: vec![],
        port: 10250,
        capacity: super::capacity(&Capacity { ephemeral_storage_bytes: 1, ..capacity }, &BTreeMap::new(), 100 << 30),
        allocatable: Amounts::new(),
        registration: Registration::default(),
    }
}

fn health(network: bool) -> RuntimeHealth {
    RuntimeHealth {
        name: "sim".into(),
        version: "0.1.0".into(),
        runtime_ready: true,
        network_ready: network,
        connects: network,
        host_network: None,
        messages: if network { vec![] } else { vec!["container runtime network not ready: x".into()] },
        handlers: vec![],
        groups_policy: Some(true),
    }
}

#[test]
fn labels_and_info() {
    let f = facts();
    let labels = f.asserted_labels();
    assert_eq!(labels["node.kubernetes.io/windows-build"], "10.0.20348");
    assert_eq!(labels["beta.kubernetes.io/os"], "windows");
    let now = Timestamp::from_second(1_700_000_000).unwrap();
    let s = f.status(&health(true), &[], &BTreeSet::new(), &NodeStatus::default(), now);
    assert_eq!(s["nodeInfo"]["osImage"], "Windows Server 2022 Datacenter");
    assert_eq!(s["nodeInfo"]["containerRuntimeVersion"], "sim://0.1.0");
    assert_eq!(s["capacity"]["cpu"], "8");
    let types: Vec<&str> = s["conditions"].as_array().unwrap().iter().map(|c| c["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]);
    serde_json::from_value::<Node>(f.object(&s)).unwrap();
}

#[test]
fn a_node_says_what_it_and_its_runtime_can() {
    let mut f = facts();
    let offers = |name: &str, user_namespaces, recursive_read_only| Handler { name: name.into(), user_namespaces, recursive_read_only };
    let health = |handlers, groups_policy| RuntimeHealth { handlers, groups_policy, ..health(true) };
    let now = Timestamp::from_second(1_700_000_000).unwrap();
    let status = |f: &NodeFacts, health| f.status(&health, &[], &BTreeSet::new(), &NodeStatus::default(), now);
    let s = status(&f, health(vec![offers("", true, false), offers("kata", false, true)], Some(false)));
    let of = |users: bool, recursive: bool| json!({"recursiveReadOnlyMounts": recursive, "userNamespaces": users});
    assert_eq!(s["runtimeHandlers"], json!([{"name": "", "features": of(true, false)}, {"name": "kata", "features": of(false, true)}]));
    assert_eq!(s["features"], json!({"supplementalGroupsPolicy": false}));
    assert_eq!(s["declaredFeatures"], json!(["RestartAllContainersOnContainerExits"]), "nothing is resized on Windows");
    f.side.os = NodeOs::Linux;
    let s = status(&f, health(vec![], None));
    assert_eq!((s["runtimeHandlers"].clone(), s["features"].clone()), (json!([]), Value::Null), "an old runtime says nothing");
    assert_eq!(s["declaredFeatures"], json!(["InPlacePodVerticalScalingInitContainers", "RestartAllContainersOnContainerExits"]));
    serde_json::from_value::<NodeStatus>(s).unwrap();
}

#[test]
fn pods_get_what_is_not_reserved_and_not_kept_free() {
    let declared = Capacity { cpu_millis: 4000, memory_bytes: 8 << 30, pods: 110, ephemeral_storage_bytes: 0 };
    let huge = BTreeMap::from([(2 << 20, 512), (1 << 30, 0)]);
    let whole = capacity(&declared, &huge, 100 << 30);
    let text = |amounts: &Amounts| amounts.iter().map(|(name, q)| format!("{name}={q}")).collect::<Vec<_>>();
    assert_eq!(text(&whole), ["cpu=4", "ephemeral-storage=100Gi", "hugepages-1Gi=0", "hugepages-2Mi=1Gi", "memory=8Gi", "pods=110"]);
    let list = |list: &[(&str, &str)]| list.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<BTreeMap<_, _>>();
    let hard = list(&[("memory.available", "512Mi"), ("nodefs.available", "10%"), ("pid.available", "5%")]);
    let soft = list(&[("memory.available", "2Gi")]);
    let graces = BTreeMap::from([("memory.available".to_owned(), Duration::from_secs(90))]);
    let thresholds = Eviction::thresholds(&hard, &soft, &graces, &BTreeMap::new()).unwrap();
    let eviction = Eviction { thresholds, ..Eviction::default() };
    let quantity = |text: &str| Quantity::parse(text).unwrap();
    let reserved = |list: &[(&str, &str)]| list.iter().map(|(k, v)| ((*k).to_owned(), quantity(v))).collect::<Amounts>();
    let left = allocatable(&whole, &reserved(&[("cpu", "250m"), ("memory", "1Gi"), ("ephemeral-storage", "10Gi"), ("pid", "100")]), &eviction);
    assert_eq!(text(&left), ["cpu=3750m", "ephemeral-storage=85899345920", "hugepages-1Gi=0", "hugepages-2Mi=1Gi", "memory=5632Mi", "pods=110"]);
    let left = allocatable(&whole, &reserved(&[("cpu", "5"), ("memory", "9Gi"), ("ephemeral-storage", "1Ti")]), &eviction);
    assert_eq!(text(&left), ["cpu=0", "ephemeral-storage=0", "hugepages-1Gi=0", "hugepages-2Mi=1Gi", "memory=0", "pods=110"], "never below zero");
}

#[test]
fn a_node_without_an_amount_of_something_is_not_ready() {
    let now = Timestamp::from_second(1_700_000_000).unwrap();
    let with = |missing: &[&str], none: &[&str]| {
        let mut f = facts();
        f.capacity.retain(|name, _| !missing.contains(&name.as_str()));
        f.capacity.extend(none.iter().map(|name| ((*name).to_owned(), Quantity::from_units(0))));
        f
    };
    let prefix = "missing node capacity for resources: ";
    let waits = "container runtime network not ready: x";
    for (missing, none, network, message) in [
        (&[][..], &[][..], true, "kubelet is posting ready status".to_owned()),
        (&[], &["pods"], true, "kubelet is posting ready status".to_owned()),
        (&["ephemeral-storage"], &[], true, format!("{prefix}ephemeral-storage")),
        (&["pods"], &["memory"], true, format!("{prefix}memory, pods")),
        (&[], &["cpu"], false, format!("{waits}, {prefix}cpu")),
        (&[], &[], false, waits.to_owned()),
    ] {
        let s = with(missing, none).status(&health(network), &[], &BTreeSet::new(), &NodeStatus::default(), now);
        let ready = s["conditions"].as_array().unwrap().last().unwrap().clone();
        let is = message.starts_with("kubelet");
        let reason = if is { "KubeletReady" } else { "KubeletNotReady" };
        let wanted = (json!("Ready"), json!(if is { "True" } else { "False" }), json!(reason), json!(message));
        assert_eq!((ready["type"].clone(), ready["status"].clone(), ready["reason"].clone(), ready["message"].clone()), wanted);
    }
}

#[test]
fn pressures_are_conditions() {
    let (f, now) = (facts(), Timestamp::from_second(1_700_000_000).unwrap());
    let shown = |pressures: &[Pressure]| {
        let status = f.status(&health(true), &[], &pressures.iter().copied().collect(), &NodeStatus::default(), now);
        let of = |c: &Value| format!("{}={} {}", c["type"].as_str().unwrap(), c["status"].as_str().unwrap(), c["reason"].as_str().unwrap());
        status["conditions"].as_array().unwrap()[..3].iter().map(of).collect::<Vec<_>>()
    };
    let none = [
        "MemoryPressure=False KubeletHasSufficientMemory",
        "DiskPressure=False KubeletHasNoDiskPressure",
        "PIDPressure=False KubeletHasSufficientPID",
    ];
    assert_eq!(shown(&[]), none);
    let all = [
        "MemoryPressure=True KubeletHasInsufficientMemory",
        "DiskPressure=True KubeletHasDiskPressure",
        "PIDPressure=True KubeletHasInsufficientPID",
    ];
    assert_eq!(shown(&[Pressure::Memory, Pressure::Disk, Pressure::Pid]), all);
    let why = |os: NodeOs| {
        let mut f = facts();
        f.side.os = os;
        let status = f.status(&health(true), &[], &BTreeSet::from([Pressure::Memory]), &NodeStatus::default(), now);
        status["conditions"][0]["message"].as_str().unwrap().to_owned()
    };
    assert_eq!(why(NodeOs::Linux), "kubelet has insufficient memory available");
    let windows = why(NodeOs::Windows { build: 20348 });
    assert!(windows.starts_with("kubelet has insufficient memory available: ") && windows.contains("page files"), "{windows}");
}

#[test]
fn readiness_keeps_its_times_and_leaves_foreign_conditions_alone() {
    let f = facts();
    let at = |s: i64| Timestamp::from_second(1_700_000_000 + s).unwrap();
    let first = f.status(&health(false), &[], &BTreeSet::new(), &NodeStatus::default(), at(0));
    assert!(!is_status_ready(&first));
    let mut old: NodeStatus = serde_json::from_value(first.clone()).unwrap();
    old.conditions.as_mut().unwrap().push(NodeCondition { type_: "NetworkUnavailable".into(), status: "False".into(), ..Default::default() });
    let again = f.status(&health(false), &[], &BTreeSet::new(), &old, at(5));
    let ready_of = |s: &Value| s["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "Ready").unwrap().clone();
    assert_eq!(ready_of(&again)["lastTransitionTime"], ready_of(&first)["lastTransitionTime"]);
    assert_eq!(ready_of(&again)["message"], "container runtime network not ready: x");
    let sent = patch(&again)["status"].clone();
    assert!(sent["conditions"].as_array().unwrap().iter().all(|c| c["type"] != "NetworkUnavailable"), "it belongs to others");
    assert_eq!(sent["addresses"].as_array().unwrap().last(), Some(&json!({"$patch": "replace"})));
    assert_eq!(patch(&json!({"phase": "x"})), json!({"status": {"phase": "x"}}), "addresses of others stay");
    let later = f.status(&health(true), &[], &BTreeSet::new(), &old, at(9));
    assert!(is_status_ready(&later) && differs(&later, &again));
    assert_eq!(ready_of(&later)["lastTransitionTime"], "2023-11-14T22:13:29Z");
    let beat = f.status(&health(true), &[], &BTreeSet::new(), &serde_json::from_value(later.clone()).unwrap(), at(19));
    assert!(!differs(&beat, &later), "a heartbeat alone is no change");
}

#[test]
fn a_node_says_which_machine_of_a_cloud_it_is() {
    let mut facts = facts();
    assert_eq!(facts.object(&json!({}))["spec"], json!({"taints": []}));
    facts.registration.provider_id = "cloud://zone/7".into();
    assert_eq!(facts.object(&json!({}))["spec"]["providerID"], "cloud://zone/7");
}

#[test]
fn labels_and_annotations_are_put_back() {
    let mut facts = facts();
    let made: Node = serde_json::from_value(facts.object(&json!({}))).unwrap();
    assert_eq!(facts.reassertion(&made.metadata), None);
    let mut changed = made.metadata.clone();
    changed.labels.as_mut().unwrap().insert("kubernetes.io/os".into(), "plan9".into());
    changed.annotations = Some(BTreeMap::from([("mine".into(), "1".into())]));
    let wanted = json!({"labels": {"kubernetes.io/os": "windows"}, "annotations": {MANAGED: "true"}});
    assert_eq!(facts.reassertion(&changed), Some(json!({"metadata": wanted})), "and nothing of others");
    facts.registration.addresses = AddressSource::Cloud { given: true };
    let tells = facts.reassertion(&made.metadata).unwrap();
    assert_eq!(tells["metadata"], json!({"labels": {}, "annotations": {"alpha.kubernetes.io/provided-node-ip": "10.240.0.12"}}));
    let told: Node = serde_json::from_value(facts.object(&json!({}))).unwrap();
    assert_eq!(facts.reassertion(&told.metadata), None);
    facts.registration.addresses = AddressSource::Cloud { given: false };
    let stale = facts.reassertion(&told.metadata).unwrap();
    assert_eq!(stale["metadata"]["annotations"], json!({"alpha.kubernetes.io/provided-node-ip": null}));
}

#[test]
fn images_are_bounded() {
    let image = |n: u64| v1::Image { id: format!("i{n}"), repo_tags: vec![format!("t{n}"); 9], size: n, ..Default::default() };
    let images: Vec<_> = (0..70).map(image).collect();
    for (most, length) in [(Some(50), 50), (Some(0), 0), (Some(80), 70), (None, 70)] {
        assert_eq!(image_list(&images, most).len(), length);
    }
    let list = image_list(&images, Some(50));
    assert_eq!(list[0]["sizeBytes"], 69);
    assert_eq!(list[0]["names"].as_array().unwrap().len(), 5);
}
