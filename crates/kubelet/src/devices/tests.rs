//! Who gets which device, as tables.

use std::time::Duration;

use device_plugin::v1beta1::{ContainerAllocateResponse, DeviceSpec, Mount, NumaNode, TopologyInfo};
use serde_json::json;

use super::*;

const GPU: &str = "example.com/gpu";

fn device(id: &str, health: &str, nodes: &[i64]) -> v1beta1::Device {
    let topology = (!nodes.is_empty()).then(|| TopologyInfo { nodes: nodes.iter().map(|id| NumaNode { id: *id }).collect() });
    v1beta1::Device { id: id.into(), health: health.into(), topology }
}

fn set(ids: &str) -> BTreeSet<String> {
    ids.split_whitespace().map(str::to_owned).collect()
}

fn allocation(ids: &str) -> Allocation {
    Allocation { devices: BTreeMap::from([(book::NO_NODE, set(ids).into_iter().collect())]), response: ContainerAllocateResponse::default() }
}

/// A node with five devices, of which `e` is ill and `a` is given away.
fn book() -> Book {
    let mut book = Book::default();
    let list = ["a", "b", "c", "d"].map(|id| device(id, "Healthy", &[])).into_iter().chain([device("e", "Unhealthy", &[])]);
    book.update(GPU, list.collect());
    book.insert("other", "c", GPU, allocation("a"));
    book
}

fn want(count: usize) -> Want<'static> {
    Want { pod: "p", container: "c", resource: GPU, count }
}

/// The devices of a container whose plug-in prefers `preferred`.
fn chosen(book: &Book, want: &Want<'_>, reusable: &str, preferred: &[&str]) -> Result<String, String> {
    let step = book.choose(want, &set(reusable)).map_err(|error| error.to_string())?;
    let preferred: Vec<String> = preferred.iter().map(|id| (*id).to_owned()).collect();
    let ids = match step {
        Step::Nothing => BTreeSet::new(),
        Step::Take(ids) => ids,
        Step::Prefer { taken, available, needed } => book::settle(taken, &available, needed, &preferred),
    };
    Ok(ids.into_iter().collect::<Vec<_>>().join(" "))
}

#[test]
fn containers_get_free_healthy_devices_those_of_init_containers_first_and_then_those_that_the_plug_in_prefers() {
    for (count, reusable, preferred, wanted) in [
        (0, "", vec![], ""),
        (1, "", vec![], "b"),
        (2, "", vec!["d"], "b d"),
        (2, "", vec!["d", "c", "b"], "c d"),
        // What is given away or ill is not given, whatever the plug-in prefers.
        (2, "", vec!["a", "e", "x", "d"], "b d"),
        (3, "", vec!["d", "d"], "b c d"),
        (1, "z", vec!["d"], "z"),
        (2, "z", vec!["d"], "d z"),
        (1, "y z", vec![], "y"),
    ] {
        assert_eq!(chosen(&book(), &want(count), reusable, &preferred), Ok(wanted.to_owned()), "{count} {reusable:?} {preferred:?}");
    }
}

#[test]
fn what_cannot_be_given_is_refused_in_upstreams_words() {
    let refused = |book: &Book, want: Want<'_>| chosen(book, &want, "", &[]).unwrap_err();
    assert_eq!(refused(&book(), want(4)), "requested number of devices unavailable for example.com/gpu. Requested: 4, Available: 3");
    let other = Want { resource: "example.com/nic", ..want(1) };
    assert_eq!(refused(&book(), other), "cannot allocate unregistered device example.com/nic");
    let mut gone = book();
    gone.disconnected(GPU, Instant::now());
    assert_eq!(refused(&gone, want(1)), "no healthy devices present; cannot allocate unhealthy devices example.com/gpu");
    let mut has = book();
    has.insert("p", "c", GPU, allocation("b"));
    assert_eq!(chosen(&has, &want(1), "", &[]), Ok(String::new()), "it has it already");
    assert_eq!(refused(&has, want(2)), r#"pod "p" container "c" changed request for resource "example.com/gpu" from 1 to 2"#);
    has.update(GPU, vec![device("b", "Unhealthy", &[]), device("c", "Healthy", &[])]);
    assert_eq!(refused(&has, want(1)), "previously allocated devices are no longer healthy; cannot allocate unhealthy devices example.com/gpu");
}

#[test]
fn a_node_shows_devices_until_their_plug_in_is_gone_for_five_minutes() {
    let begin = Instant::now();
    let at = |seconds| begin + Duration::from_secs(seconds);
    let shown = |book: &Book| book.counts().into_values().map(|count| (count.capacity, count.allocatable)).collect::<Vec<_>>();
    let mut book = book();
    assert_eq!(shown(&book), [(5, 4)]);
    book.disconnected(GPU, begin);
    assert_eq!(shown(&book), [(5, 0)], "all of them are ill");
    book.disconnected(GPU, at(200));
    assert!(!book.expire(at(300)));
    assert_eq!(shown(&book), [(5, 0)]);
    assert!(book.expire(at(301)) && !book.expire(at(302)));
    assert_eq!(shown(&book), [(0, 0)], "the Node says that there are none");
    assert!(book.manages(GPU), "a pod has one");
    assert!(book.release("other") && !book.manages(GPU));
    book.update(GPU, vec![device("b", "Healthy", &[])]);
    assert_eq!(shown(&book), [(1, 1)]);

    let mut restored = Book::restored([], vec![GPU.into()], begin);
    assert_eq!(shown(&restored), [(0, 0)], "none until the plug-in is back");
    restored.connected(GPU);
    restored.update(GPU, vec![device("b", "Healthy", &[])]);
    assert_eq!(shown(&restored), [(1, 1)]);
    assert!(!restored.expire(at(1000)));
}

#[test]
fn pods_are_told_when_the_health_of_a_device_of_theirs_changes() {
    let mut book = book();
    let list = |health: &str| vec![device("a", health, &[]), device("b", "Healthy", &[])];
    assert!(book.update(GPU, list("Healthy")).is_empty());
    assert_eq!(book.update(GPU, list("Unhealthy")), set("other"));
    assert!(book.update(GPU, vec![]).is_empty());
    assert_eq!(book.update(GPU, list("Unhealthy")), set("other"), "it is back");
}

#[test]
fn devices_are_noted_by_their_numa_nodes() {
    let mut book = Book::default();
    book.update(GPU, vec![device("a", "Healthy", &[1, 0]), device("b", "Healthy", &[]), device("c", "Healthy", &[1])]);
    let by_node = book.by_node(GPU, &set("a b c gone"));
    let wanted = [(-1, vec!["b", "gone"]), (0, vec!["a"]), (1, vec!["a", "c"])];
    assert_eq!(by_node, wanted.map(|(node, ids)| (node, ids.into_iter().map(str::to_owned).collect())).into());
}

#[test]
fn requests_carry_what_all_plug_ins_of_a_container_say_once() {
    let answer = |mount: &str, env: &str| ContainerAllocateResponse {
        envs: [("V".to_owned(), env.to_owned())].into(),
        mounts: vec![Mount { container_path: "/lib/gpu".into(), host_path: mount.into(), read_only: true }],
        devices: vec![
            DeviceSpec { container_path: "/dev/x".into(), host_path: format!("/dev/{env}"), permissions: "rw".into() },
            // Windows' devices have no path in the container.
            DeviceSpec { host_path: format!("class/{env}"), ..Default::default() },
        ],
        annotations: [("note".to_owned(), env.to_owned())].into(),
        cdi_devices: vec![v1beta1::CdiDevice { name: "example.com/gpu=all".into() }],
    };
    let of = |mount: &str, env: &str| Allocation { response: answer(mount, env), ..Allocation::default() };
    let options = options::of(&BTreeMap::from([("a/a".to_owned(), of("/opt/a", "0")), ("b/b".to_owned(), of("/opt/b", "1"))]));
    assert_eq!(options.envs, [("V".to_owned(), "0".to_owned())]);
    assert_eq!(options.mounts.iter().map(|m| (m.host_path.as_str(), m.readonly)).collect::<Vec<_>>(), [("/opt/a", true)]);
    assert_eq!(options.devices.iter().map(|d| d.host_path.as_str()).collect::<Vec<_>>(), ["/dev/0", "class/0", "class/1"]);
    assert_eq!(options.annotations, BTreeMap::from([("note".to_owned(), "0".to_owned())]));
    assert_eq!(options.cdi_devices.len(), 1);
}

#[test]
fn what_pods_have_stays_allocatable_for_them() {
    let dir = tempfile::tempdir().unwrap();
    let root = Arc::new(HostRoot::linux(dir.path()).unwrap());
    let (devices, _) = Devices::load(root, &PodPath::parse(host::NodeOs::Linux, "/agent").unwrap()).unwrap();
    assert!(devices.is_first());
    *devices.book() = book();
    devices.book().insert("p", "c", "example.com/gone", allocation("1 2"));
    devices.book().disconnected(GPU, Instant::now());
    let mut amounts = Amounts::new();
    devices.add_allocatable(&mut amounts);
    let shown: Vec<String> = amounts.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
    assert_eq!(shown, ["example.com/gone=2", "example.com/gpu=1"]);
    let mut status: PodStatus =
        serde_json::from_value(json!({"containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0}]})).unwrap();
    devices.add_health("p", &mut status);
    let health = json!(status)["containerStatuses"][0]["allocatedResourcesStatus"].clone();
    let one = |id: &str| json!({"resourceID": id, "health": "Healthy"});
    assert_eq!(health, json!([{"name": "example.com/gone", "resources": [one("1"), one("2")]}]));
}
