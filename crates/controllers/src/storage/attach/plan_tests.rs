use super::*;

fn csi(handle: &str) -> CsiSource {
    CsiSource { driver: "csi.example".into(), handle: handle.into() }
}

fn unique(handle: &str) -> String {
    unique_name(&csi(handle))
}

fn node(change: impl FnOnce(&mut NodeRow)) -> NodeRow {
    let mut row = NodeRow { managed: true, ready: true, ..NodeRow::default() };
    change(&mut row);
    row
}

/// A volume called `pv-HANDLE` on a node.
fn on(node: &str, handle: &str, change: impl FnOnce(&mut AttachmentRow)) -> Attached {
    let volume = format!("pv-{handle}");
    let mut row = AttachmentRow {
        attacher: "csi.example".into(),
        node: node.into(),
        volume: Some(volume.clone()),
        attached: true,
        deleting: false,
        attach_error: None,
        detach_error: None,
    };
    change(&mut row);
    Attached { name: format!("va-{handle}"), csi: csi(handle), volume, row: Arc::new(row) }
}

fn wants(handle: &str, exclusive: bool) -> Wanted {
    Wanted { volume: format!("pv-{handle}"), csi: csi(handle), exclusive, pods: vec![Key::new("shop", "web")] }
}

#[test]
fn names_are_upstreams() {
    assert_eq!(unique("vol-1"), "kubernetes.io/csi/csi.example^vol-1");
    // sha256 of "vol-1csi.examplen1".
    let name = attachment_name(&csi("vol-1"), "n1");
    assert_eq!(name, "csi-c59aa9fdb6e704451dbd837db8aa988fe5ba4a80aaa589eb502c5a10c5b2b9c8");
    assert_ne!(name, attachment_name(&csi("vol-1"), "n2"));
}

/// The plan for node `n1`, whose volume `a` nobody has wanted for so long.
fn planned(host: Option<&NodeRow>, wanted: &[Wanted], present: &[Attached], idle: Option<u64>) -> (String, Option<u64>) {
    let idle = idle.map(|seconds| (unique("a"), Duration::from_secs(seconds))).into_iter().collect();
    let plan = plan(&Input { name: "n1", node: host, wanted, attachments: present, elsewhere: &BTreeMap::new(), idle: &idle });
    (plan.to_string(), plan.recheck.map(|time| time.as_secs()))
}

#[test]
fn volumes_are_attached_for_pods() {
    let reports = |names: &[&str]| node(|row| row.reported = names.iter().map(|name| (*name).to_owned()).collect());
    let here = "kubernetes.io/csi/csi.example^a";
    for (what, host, exclusive, present, expected) in [
        ("a pod needs it", node(|_| {}), true, vec![], "attach pv-a of csi.example"),
        ("its agent attaches itself", node(|row| row.managed = false), true, vec![], "nothing"),
        ("the driver is at it", node(|_| {}), true, vec![on("n1", "a", |row| row.attached = false)], "nothing"),
        ("it is attached", node(|_| {}), true, vec![on("n1", "a", |_| {})], "report [kubernetes.io/csi/csi.example^a]"),
        ("all is said and done", reports(&[here]), true, vec![on("n1", "a", |_| {})], "nothing"),
        ("it is needed again while it goes", node(|_| {}), true, vec![on("n1", "a", |row| row.deleting = true)], "nothing"),
        ("a shared volume is on two nodes", node(|_| {}), false, vec![on("n2", "a", |_| {})], "attach pv-a of csi.example"),
        (
            "volumes of others stay in the status",
            reports(&["kubernetes.io/iscsi/x"]),
            true,
            vec![on("n1", "a", |_| {})],
            "report [kubernetes.io/iscsi/x kubernetes.io/csi/csi.example^a]",
        ),
    ] {
        assert_eq!(planned(Some(&host), &[wants("a", exclusive)], &present, None), (expected.to_owned(), None), "{what}");
    }
}

#[test]
fn volumes_that_nobody_needs_are_detached_when_they_may_go() {
    let reports = || node(|row| row.reported = vec![unique("a")]);
    let mounts = |ready: bool, out_of_service: bool| {
        let in_use = [unique("a")].into();
        NodeRow { ready, out_of_service, in_use, ..reports() }
    };
    let detach = "report []; detach kubernetes.io/csi/csi.example^a";
    let forced = "report []; detach kubernetes.io/csi/csi.example^a by force";
    for (what, host, idle, expected, recheck) in [
        ("nobody needs it", Some(reports()), None, detach, None),
        ("it is still mounted", Some(mounts(true, false)), Some(361), "nothing", None),
        ("the node is unhealthy", Some(mounts(false, false)), Some(60), "nothing", Some(300)),
        ("for longer than six minutes", Some(mounts(false, false)), Some(361), forced, None),
        ("the node is out of service", Some(mounts(false, true)), None, forced, None),
        ("the node is gone", None, Some(60), "nothing", Some(300)),
        ("the node has been gone for long", None, Some(361), "detach kubernetes.io/csi/csi.example^a by force", None),
    ] {
        assert_eq!(planned(host.as_ref(), &[], &[on("n1", "a", |_| {})], idle), (expected.to_owned(), recheck), "{what}");
    }
    let going = on("n1", "a", |row| row.deleting = true);
    assert_eq!(planned(Some(&reports()), &[], &[going], None).0, "report []", "it is going");
}

#[test]
fn an_exclusive_volume_is_on_one_node() {
    let pods = |all: &[(&str, &str)]| BTreeMap::from([("pv-a".to_owned(), all.iter().map(|(ns, name)| Key::new(*ns, *name)).collect::<Vec<_>>())]);
    for (holders, expected) in [
        (pods(&[]), "Volume is already exclusively attached to one node and can't be attached to another"),
        (pods(&[("shop", "db")]), "Volume is already used by pod(s) db"),
        (pods(&[("other", "db")]), "Volume is already used by 1 pod(s) in different namespaces"),
        (pods(&[("shop", "db"), ("other", "db")]), "Volume is already used by pod(s) db and 1 pod(s) in different namespaces"),
    ] {
        let (host, wanted, present) = (node(|_| {}), [wants("a", true)], [on("n2", "a", |_| {})]);
        let idle = BTreeMap::new();
        let input = Input { name: "n1", node: Some(&host), wanted: &wanted, attachments: &present, elsewhere: &holders, idle: &idle };
        assert_eq!(plan(&input).to_string(), format!("tell shop/web: Multi-Attach error for volume \"pv-a\" {expected}"));
    }
}
