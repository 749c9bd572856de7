//! The old Endpoints object of a Service, for clients that still read it: pure.

use std::collections::BTreeMap;

use cluster::Key;
use k8s_openapi::{
    api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::rows::{Group, HEADLESS, Member, target};
use crate::view::ServiceRow;

/// An Endpoints object holds no more addresses than this (upstream: `maxCapacity`).
const MOST: usize = 1000;

/// The label of Endpoints that a controller writes.
pub(super) const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const MANAGER: &str = "endpoint-controller";
/// The annotation of Endpoints that do not hold all addresses.
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
const TRUNCATED: &str = "truncated";

/// Whether this controller wrote an object.
pub(super) fn is_ours(found: &Endpoints) -> bool {
    found.metadata.labels.as_ref().and_then(|labels| labels.get(MANAGED_BY)).is_some_and(|manager| manager == MANAGER)
}

/// The Endpoints of a Service, from its first address family's groups: ready addresses and those that are not, by ports. Beyond the most,
/// ready ones stay first, and each subset gives its part.
pub(super) fn endpoints(key: &Key, service: &ServiceRow, groups: &[Group]) -> Endpoints {
    let mut labels = service.labels.clone();
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    if service.headless {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    // A pod without any of the ports is no endpoint, unless the Service has no ports itself.
    let is_portless = service.headless && service.ports.is_empty();
    let of_family = groups.iter().filter(|group| Some(&group.family) == service.families.first());
    let mut parts: Vec<Part<'_>> = of_family.filter(|group| is_portless || !group.ports.is_empty()).map(Part::new).collect();
    let count = |of: fn(&Part<'_>) -> usize| parts.iter().map(of).sum::<usize>();
    let (ready, waiting) = (count(|part| part.ready.len()), count(|part| part.waiting.len()));
    let is_truncated = ready + waiting > MOST;
    if ready > MOST {
        cut(parts.iter_mut().map(|part| &mut part.ready), ready, MOST);
    }
    if is_truncated {
        cut(parts.iter_mut().map(|part| &mut part.waiting), waiting, MOST.saturating_sub(ready));
    }
    let subsets: Vec<EndpointSubset> = parts.iter().filter_map(|part| part.subset(key)).collect();
    let annotations = is_truncated.then(|| BTreeMap::from([(OVER_CAPACITY.to_owned(), TRUNCATED.to_owned())]));
    Endpoints {
        metadata: ObjectMeta {
            name: Some(key.name.clone()),
            namespace: Some(key.ns.clone()),
            labels: Some(labels),
            annotations,
            ..Default::default()
        },
        subsets: (!subsets.is_empty()).then_some(subsets),
    }
}

/// The members of one group that go into a subset, by address.
struct Part<'a> {
    group: &'a Group,
    ready: Vec<&'a Member>,
    waiting: Vec<&'a Member>,
}

impl<'a> Part<'a> {
    fn new(group: &'a Group) -> Self {
        let mut alive: Vec<&Member> = group.members.iter().filter(|member| !member.terminating || member.ready).collect();
        alive.sort_by(|a, b| (&a.address, &a.uid).cmp(&(&b.address, &b.uid)));
        let (ready, waiting) = alive.into_iter().partition(|member| member.ready);
        Self { group, ready, waiting }
    }

    fn subset(&self, key: &Key) -> Option<EndpointSubset> {
        let addresses = |members: &[&Member]| {
            let all: Vec<EndpointAddress> = members.iter().map(|member| address(key, member)).collect();
            (!all.is_empty()).then_some(all)
        };
        let (addresses, not_ready_addresses) = (addresses(&self.ready), addresses(&self.waiting));
        if addresses.is_none() && not_ready_addresses.is_none() {
            return None;
        }
        let ports = self.group.ports.iter().map(|port| EndpointPort {
            name: (!port.name.is_empty()).then(|| port.name.clone()),
            port: port.port,
            protocol: Some(port.protocol.clone()),
            app_protocol: port.app_protocol.clone(),
        });
        let ports: Vec<_> = ports.collect();
        Some(EndpointSubset { addresses, not_ready_addresses, ports: (!ports.is_empty()).then_some(ports) })
    }
}

/// Leaves `most` of all `total` members, each list its part (upstream: `truncateEndpoints`).
fn cut<'a, 'b: 'a>(lists: impl Iterator<Item = &'a mut Vec<&'b Member>>, total: usize, most: usize) {
    let mut room = most;
    for list in lists {
        list.truncate((list.len() * most).div_ceil(total.max(1)).min(room));
        room -= list.len();
    }
}

fn address(key: &Key, member: &Member) -> EndpointAddress {
    EndpointAddress {
        ip: member.address.clone(),
        hostname: member.hostname.clone(),
        node_name: member.node.clone(),
        target_ref: Some(target(key, member)),
    }
}

/// Brings an object to what `wanted` says; answers whether it said something else. Other annotations stay.
pub(super) fn update(found: &mut Endpoints, wanted: Endpoints) -> bool {
    let before = found.clone();
    found.metadata.labels = wanted.metadata.labels;
    if found.subsets.as_deref().unwrap_or_default() != wanted.subsets.as_deref().unwrap_or_default() {
        found.subsets = wanted.subsets;
    }
    match wanted.metadata.annotations {
        Some(annotations) => found.metadata.annotations.get_or_insert_default().extend(annotations),
        None => found.metadata.annotations.iter_mut().for_each(|annotations| {
            annotations.remove(OVER_CAPACITY);
        }),
    }
    *found != before
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Service;
    use serde_json::json;

    use super::*;
    use crate::endpoints::{hints::Hints, rows::Port};

    fn service(ports: &serde_json::Value, cluster_ip: &str) -> ServiceRow {
        let spec = json!({"ports": ports, "clusterIP": cluster_ip, "ipFamilies": ["IPv4"]});
        ServiceRow::new(&serde_json::from_value::<Service>(json!({"metadata": {"name": "web", "labels": {"app": "web"}}, "spec": spec})).unwrap())
    }

    fn group(ports: &[i32], ready: usize, waiting: usize) -> Group {
        let port = |port: &i32| Port { name: String::new(), protocol: "TCP".to_owned(), app_protocol: None, port: *port };
        let member = |index: usize| Member {
            address: format!("10.{}.{}.{}", ports.first().unwrap_or(&0) % 200, index / 200, index % 200),
            ready: index < ready,
            serving: index < ready,
            terminating: false,
            hostname: None,
            node: None,
            zone: None,
            pod: format!("p{index}"),
            uid: String::new(),
            hints: Hints::default(),
        };
        Group { family: "IPv4".to_owned(), ports: ports.iter().map(port).collect(), members: (0..ready + waiting).map(member).collect() }
    }

    #[test]
    fn endpoints_beyond_a_thousand_are_left_out_by_subsets() {
        let web = service(&json!([{"port": 80}]), "10.96.0.1");
        for (groups, expected, is_truncated) in [
            (vec![group(&[80], 600, 300), group(&[81], 100, 0)], vec![(600, 300), (100, 0)], false),
            (vec![group(&[80], 600, 300), group(&[81], 100, 100)], vec![(600, 225), (100, 75)], true),
            (vec![group(&[80], 900, 10), group(&[81], 300, 10)], vec![(750, 0), (250, 0)], true),
        ] {
            let found = endpoints(&Key::new("shop", "web"), &web, &groups);
            let count = |all: &Option<Vec<EndpointAddress>>| all.as_ref().map_or(0, Vec::len);
            let sizes: Vec<_> = found.subsets.iter().flatten().map(|subset| (count(&subset.addresses), count(&subset.not_ready_addresses))).collect();
            assert_eq!((sizes, found.metadata.annotations.is_some()), (expected, is_truncated));
        }
    }

    #[test]
    fn pods_without_the_port_are_no_endpoints() {
        let of = |service: &ServiceRow, groups: &[Group]| endpoints(&Key::new("shop", "web"), service, groups).subsets.map_or(0, |all| all.len());
        let bare = [group(&[], 1, 0)];
        assert_eq!(of(&service(&json!([{"port": 80}]), "10.96.0.1"), &bare), 0);
        assert_eq!(of(&service(&json!([{"port": 80}]), "None"), &bare), 0);
        assert_eq!(of(&service(&json!([]), "None"), &bare), 1);
    }

    #[test]
    fn an_object_is_written_only_when_it_says_something_else() {
        let (key, web) = (Key::new("shop", "web"), service(&json!([{"port": 80}]), "10.96.0.1"));
        let (few, many) = (endpoints(&key, &web, &[group(&[80], 1, 0)]), endpoints(&key, &web, &[group(&[80], 1001, 0)]));
        let mut found = few.clone();
        found.metadata.annotations = Some([("team".to_owned(), "shop".to_owned())].into());
        assert!(!update(&mut found, few.clone()));
        assert!(update(&mut found, many) && found.metadata.annotations.as_ref().unwrap().len() == 2);
        assert!(update(&mut found, few) && found.metadata.annotations.unwrap().contains_key("team"));
    }
}
