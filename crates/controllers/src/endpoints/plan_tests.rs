use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::Service, apimachinery::pkg::util::intstr::IntOrString};

use super::*;
use crate::{
    endpoints::rows,
    testing::pod,
    view::{ContainerPort, PodRow, ServicePortRow, ServiceRow},
};
use kube_rules::Labels;

fn service(change: impl FnOnce(&mut ServiceRow)) -> ServiceRow {
    let mut row = ServiceRow::new(&Service::default());
    row.uid = "svc-uid".to_owned();
    row.ports = vec![ServicePortRow {
        name: None,
        protocol: "TCP".to_owned(),
        app_protocol: None,
        port: 80,
        target: Some(IntOrString::String("http".to_owned())),
    }];
    change(&mut row);
    row
}

fn web(name: &str, last: u32, change: impl FnOnce(&mut PodRow)) -> (Key, Arc<PodRow>) {
    let (name, row) = pod(name, |row| {
        row.ips = vec![format!("192.168.{}.{}", 1 + last / 200, last % 200)];
        row.node = "win01".to_owned();
        row.ready = Some(jiff::Timestamp::UNIX_EPOCH);
        row.ports = vec![ContainerPort { name: "http".to_owned(), protocol: "TCP".to_owned(), port: 8080 }];
        change(row);
    });
    (Key::new("shop", name), row)
}

/// Plans, applies to a table of slices, and returns the actions.
fn round(service: &ServiceRow, pods: &[(Key, Arc<PodRow>)], slices: &mut BTreeMap<Key, Arc<SliceRow>>) -> Vec<String> {
    let key = Key::new("shop", "web");
    let desired = rows::desired(&key, service, pods, |_| Some(None)).groups;
    let present: Vec<_> = slices.iter().map(|(key, row)| (key.clone(), row.clone())).collect();
    let source = Source::service(&key, service);
    let actions = plan(&key, &source, &desired, &present);
    for action in &actions {
        let (name, slice) = match action {
            Action::Create { name, slice } | Action::Update { name, slice, .. } => (name, slice),
            Action::Delete { name, .. } => {
                slices.remove(&Key::new("shop", name));
                continue;
            }
        };
        let row = SliceRow::ours(&rows::object(&key, &source, name, slice, None)).unwrap();
        slices.insert(Key::new("shop", name), Arc::new(row));
    }
    actions.iter().map(ToString::to_string).collect()
}

#[test]
fn from_no_pod_to_some_and_back() {
    let (service, mut slices) = (service(|_| {}), BTreeMap::new());
    let none = round(&service, &[], &mut slices);
    assert_eq!(none.len(), 1, "a placeholder: {none:?}");
    assert!(none[0].ends_with("-0:"), "{none:?}");
    let pods = [web("a", 1, |_| {}), web("b", 2, |row| row.ready = None), web("c", 3, |row| row.deleting = true), web("d", 4, |row| row.ips.clear())];
    let some = round(&service, &pods, &mut slices);
    assert!(some[0].ends_with(": 192.168.1.1 192.168.1.2(not ready) 192.168.1.3(draining)"), "{some:?}");
    assert!(some[1].starts_with("delete web-"), "the placeholder goes: {some:?}");
    assert_eq!(round(&service, &pods, &mut slices), Vec::<String>::new(), "nothing is left to do");
    let row = slices.values().next().unwrap();
    assert_eq!(row.slice.ports[0].port, 8080, "the named port of the pod");
    let back = round(&service, &[], &mut slices);
    assert_eq!(back.len(), 2, "{back:?}");
    assert_eq!(slices.len(), 1);
}

#[test]
fn endpoints_have_upstreams_conditions() {
    let headless = service(|row| {
        row.publish_not_ready = true;
        row.headless = true;
        row.ports.clear();
    });
    let mut slices = BTreeMap::new();
    let named = web("a", 1, |row| {
        row.ready = None;
        row.hostname = "a".to_owned();
        row.subdomain = "web".to_owned();
    });
    round(&headless, &[named, web("done", 2, |row| row.phase = "Succeeded".to_owned())], &mut slices);
    let row = slices.values().next().unwrap();
    assert_eq!(row.slice.members.len(), 1, "ended pods are out");
    let member = &row.slice.members[0];
    assert_eq!((member.ready, member.serving, member.hostname.as_deref()), (true, false, Some("a")));
    let labels: Labels = Source::service(&Key::new("shop", "web"), &headless).labels;
    assert_eq!(row.labels, labels);
    assert_eq!(labels.get(rows::HEADLESS).map(String::as_str), Some(""));
}

#[test]
fn many_pods_fill_slices_and_stay_where_they_are() {
    let (service, mut slices) = (service(|_| {}), BTreeMap::new());
    let mut pods: Vec<_> = (0..250).map(|index| web(&format!("p{index:03}"), index, |_| {})).collect();
    round(&service, &pods, &mut slices);
    let sizes = |slices: &BTreeMap<Key, Arc<SliceRow>>| slices.values().map(|row| row.slice.members.len()).collect::<Vec<_>>();
    assert_eq!(sizes(&slices), [100, 100, 50]);
    pods.remove(10);
    let one = round(&service, &pods, &mut slices);
    assert_eq!(one.len(), 1, "one slice changes");
    assert_eq!(sizes(&slices), [99, 100, 50]);
    pods.push(web("q", 300, |_| {}));
    round(&service, &pods, &mut slices);
    assert_eq!(sizes(&slices), [100, 100, 50], "the gap is filled first");
}

#[test]
fn new_endpoints_go_where_few_slices_are_written() {
    // Endpoints by slice, those that go and how many come; then the slices, and how many of them were written.
    for (before, gone, come, after, written) in [
        (&[99, 99, 60][..], &[][..], 3, &[99, 99, 63][..], 1),
        (&[99, 99, 60], &[0], 3, &[100, 100, 60], 2),
        (&[99, 98, 60], &[0, 99], 4, &[100, 99, 60], 2),
        (&[60, 80], &[], 20, &[60, 100], 1),
        (&[60, 80], &[], 40, &[100, 80], 1),
        (&[60, 80], &[], 41, &[60, 80, 41], 1),
        (&[1, 50], &[0], 10, &[60], 2),
    ] {
        let (service, mut slices) = (service(|_| {}), BTreeMap::new());
        let key = Key::new("shop", "web");
        let mut pods: Vec<_> = (0..before.iter().sum::<u32>()).map(|index| web(&format!("p{index:03}"), index, |_| {})).collect();
        let mut members = rows::desired(&key, &service, &pods, |_| Some(None)).groups.remove(0);
        for (number, count) in before.iter().enumerate() {
            let slice = Slice { members: members.members.drain(..*count as usize).collect(), ..members.clone_empty() };
            let source = Source::service(&key, &service);
            let name = name(&key, &source, &members, number);
            let row = SliceRow::ours(&rows::object(&key, &source, &name, &slice, None)).unwrap();
            slices.insert(Key::new("shop", name), Arc::new(row));
        }
        for index in gone.iter().rev() {
            pods.remove(*index);
        }
        pods.extend((0..come).map(|index| web(&format!("q{index:03}"), 900 + index, |_| {})));
        let actions = round(&service, &pods, &mut slices);
        let sizes: Vec<u32> = slices.values().map(|row| row.slice.members.len() as u32).collect();
        assert_eq!((sizes.as_slice(), actions.len()), (after, written), "{before:?} {gone:?} {come}");
    }
}

#[test]
fn a_slice_that_is_being_deleted_is_left_alone() {
    let (service, mut slices) = (service(|_| {}), BTreeMap::new());
    let pods = [web("a", 1, |_| {})];
    round(&service, &pods, &mut slices);
    let (key, row) = slices.pop_first().unwrap();
    slices.insert(key.clone(), Arc::new(SliceRow { leaving: true, ..(*row).clone() }));
    let done = round(&service, &pods, &mut slices);
    assert!(done.len() == 1 && done[0].starts_with("create web-") && done[0].ends_with("-1: 192.168.1.1"), "{done:?}");
    assert!(slices[&key].leaving, "its name is taken as long as it is there");
}

#[test]
fn pods_on_nodes_that_are_not_there_are_left_out() {
    let key = Key::new("shop", "web");
    let pods = [web("a", 1, |_| {}), web("b", 2, |row| row.node = "gone".to_owned()), web("c", 3, |row| row.ips.clear())];
    let zone = |node: &str| (node == "win01").then(|| Some("west".to_owned()));
    let found = rows::desired(&key, &service(|_| {}), &pods, zone);
    let members: Vec<_> = found.groups[0].members.iter().map(|member| (member.pod.as_str(), member.zone.as_deref())).collect();
    assert_eq!(members, [("a", Some("west"))]);
    assert_eq!(found.skipped, ["skipping Pod b for Service shop/web: Node gone Not Found"]);
    let found = rows::desired(&key, &service(|row| row.publish_not_ready = true), &pods, zone);
    assert_eq!((found.groups[0].members.len(), found.skipped.len()), (2, 0), "whoever publishes everything gets it");
}

#[test]
fn pods_with_other_named_ports_get_a_slice_of_their_own() {
    let (service, mut slices) = (service(|_| {}), BTreeMap::new());
    let other = web("b", 2, |row| row.ports[0].port = 9090);
    let nameless = web("c", 3, |row| row.ports.clear());
    let done = round(&service, &[web("a", 1, |_| {}), other, nameless], &mut slices);
    assert_eq!(done.len(), 3);
    let mut ports: Vec<_> = slices.values().map(|row| row.slice.ports.iter().map(|port| port.port).collect::<Vec<_>>()).collect();
    ports.sort();
    assert_eq!(ports, [vec![], vec![8080], vec![9090]]);
}

#[test]
fn a_changed_label_is_written_once() {
    let (mut service, mut slices) = (service(|_| {}), BTreeMap::new());
    let pods = [web("a", 1, |_| {})];
    round(&service, &pods, &mut slices);
    service.labels.insert("team".to_owned(), "shop".to_owned());
    assert_eq!(round(&service, &pods, &mut slices).len(), 1);
    assert_eq!(round(&service, &pods, &mut slices), Vec::<String>::new());
}
