//! Endpoints of a Service as values, converted from pods and from and to EndpointSlices.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use cluster::Key;
use k8s_openapi::{
    api::{
        core::v1::ObjectReference,
        discovery::v1::{Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, ForNode, ForZone},
    },
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString},
};

use super::hints::Hints;
use crate::view::{PodRow, ServicePortRow, ServiceRow, controller_of, controller_reference};
use kube_rules::Labels;

pub(super) const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
pub(super) const MANAGER: &str = "endpointslice-controller.k8s.io";
pub(super) const MIRROR_MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
pub(super) const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The most endpoints in one slice (upstream: `--max-endpoints-per-slice`).
const MOST: usize = 100;
/// The most addresses of one subset of Endpoints that are mirrored, all in one slice (upstream: `--mirroring-max-endpoints-per-subset`).
pub(super) const MOST_MIRRORED: usize = 1000;

pub(super) const HEADLESS: &str = "service.kubernetes.io/headless";

/// A port of a slice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Port {
    pub name: String,
    pub protocol: String,
    pub app_protocol: Option<String>,
    pub port: i32,
}

/// One pod behind a Service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Member {
    pub address: String,
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
    pub hostname: Option<String>,
    pub node: Option<String>,
    pub zone: Option<String>,
    pub pod: String,
    pub uid: String,
    pub hints: Hints,
}

/// Content of a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slice {
    pub family: String,
    pub ports: Vec<Port>,
    pub members: Vec<Member>,
}

/// All members of a Service with the same address family and ports.
pub(super) type Group = Slice;

/// What a Service should have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Desired {
    pub groups: Vec<Group>,
    /// Why pods are left out for now, in upstream's words.
    pub skipped: Vec<String>,
}

/// Whose slices are made: a Service, or Endpoints that someone wrote by hand.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Source {
    kind: &'static str,
    pub uid: String,
    /// The labels of its slices.
    pub labels: Labels,
    /// The annotations of its slices; absent: they are somebody else's.
    pub annotations: Option<Labels>,
    /// Address families that have a slice even if there is no endpoint.
    pub families: Vec<String>,
    /// The most endpoints in one slice.
    pub most: usize,
}

impl Source {
    /// A Service: its slices carry its labels, and those that say whose they are.
    pub fn service(key: &Key, service: &ServiceRow) -> Self {
        let mut labels = service.labels.clone();
        labels.remove(HEADLESS);
        if service.headless {
            labels.insert(HEADLESS.to_owned(), String::new());
        }
        Self {
            kind: "Service",
            uid: service.uid.clone(),
            labels: managed(labels, MANAGER, key),
            annotations: None,
            families: service.families.clone(),
            most: MOST,
        }
    }

    /// Endpoints that are mirrored; none at all have no slice.
    pub fn endpoints(key: &Key, uid: &str, labels: &Labels, annotations: &Labels) -> Self {
        Self {
            kind: "Endpoints",
            uid: uid.to_owned(),
            labels: managed(labels.clone(), MIRROR_MANAGER, key),
            annotations: Some(annotations.clone()),
            families: Vec::new(),
            most: MOST_MIRRORED,
        }
    }

    /// Whether a slice says whose it is.
    pub fn describes(&self, row: &SliceRow) -> bool {
        let annotated = self.annotations.as_ref().is_none_or(|annotations| *annotations == row.annotations);
        row.labels == self.labels && row.owner == self.uid && annotated
    }
}

fn managed(mut labels: Labels, manager: &str, key: &Key) -> Labels {
    labels.insert(MANAGED_BY.to_owned(), manager.to_owned());
    labels.insert(SERVICE_NAME.to_owned(), key.name.clone());
    labels
}

/// Row of an EndpointSlice of their own.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SliceRow {
    pub service: String,
    /// It mirrors Endpoints.
    pub mirrors: bool,
    /// It is being deleted.
    pub(super) leaving: bool,
    pub version: String,
    pub(super) labels: Labels,
    /// Of a mirror; others' annotations are not kept.
    pub(super) annotations: Labels,
    pub(super) owner: String,
    pub(super) slice: Slice,
}

impl SliceRow {
    /// The row of a slice that these controllers manage.
    pub fn ours(slice: &EndpointSlice) -> Option<Self> {
        let labels = slice.metadata.labels.clone().unwrap_or_default();
        let mirrors = match labels.get(MANAGED_BY).map(String::as_str) {
            Some(MANAGER) => false,
            Some(MIRROR_MANAGER) => true,
            _ => return None,
        };
        Some(Self {
            mirrors,
            leaving: slice.metadata.deletion_timestamp.is_some(),
            service: labels.get(SERVICE_NAME)?.clone(),
            version: slice.metadata.resource_version.clone().unwrap_or_default(),
            owner: controller_of(&slice.metadata).map(|owner| owner.uid).unwrap_or_default(),
            annotations: slice.metadata.annotations.clone().filter(|_| mirrors).unwrap_or_default(),
            labels,
            slice: Slice {
                family: slice.address_type.clone(),
                ports: slice.ports.iter().flatten().map(port).collect(),
                members: slice.endpoints.iter().flatten().map(member).collect(),
            },
        })
    }
}

fn port(port: &EndpointPort) -> Port {
    Port {
        name: port.name.clone().unwrap_or_default(),
        protocol: port.protocol.clone().unwrap_or_default(),
        app_protocol: port.app_protocol.clone(),
        port: port.port.unwrap_or_default(),
    }
}

fn member(endpoint: &Endpoint) -> Member {
    let conditions = endpoint.conditions.clone().unwrap_or_default();
    let pod = endpoint.target_ref.clone().unwrap_or_default();
    Member {
        address: endpoint.addresses.first().cloned().unwrap_or_default(),
        ready: conditions.ready.unwrap_or_default(),
        serving: conditions.serving.unwrap_or_default(),
        terminating: conditions.terminating.unwrap_or_default(),
        hostname: endpoint.hostname.clone(),
        node: endpoint.node_name.clone(),
        zone: endpoint.zone.clone(),
        pod: pod.name.unwrap_or_default(),
        uid: pod.uid.unwrap_or_default(),
        hints: Hints {
            zones: endpoint.hints.iter().flat_map(|hints| hints.for_zones.iter().flatten()).map(|zone| zone.name.clone()).collect(),
            nodes: endpoint.hints.iter().flat_map(|hints| hints.for_nodes.iter().flatten()).map(|node| node.name.clone()).collect(),
        },
    }
}

/// The hints of a member as the API has them.
fn hints_object(hints: &Hints) -> Option<EndpointHints> {
    let zones: Vec<ForZone> = hints.zones.iter().map(|name| ForZone { name: name.clone() }).collect();
    let nodes: Vec<ForNode> = hints.nodes.iter().map(|name| ForNode { name: name.clone() }).collect();
    let some = !zones.is_empty() || !nodes.is_empty();
    some.then(|| EndpointHints { for_zones: (!zones.is_empty()).then_some(zones), for_nodes: (!nodes.is_empty()).then_some(nodes) })
}

/// The members that a Service should have, by address family and ports, each group sorted by pod. `zone` is a node's, none of a node that is
/// not there: pods on such a node are left out, unless the Service publishes whatever there is.
pub(super) fn desired(key: &Key, service: &ServiceRow, pods: &[(Key, Arc<PodRow>)], zone: impl Fn(&str) -> Option<Option<String>>) -> Desired {
    let mut groups: BTreeMap<(String, Vec<Port>), Vec<Member>> = BTreeMap::new();
    let mut skipped = Vec::new();
    for (pod_key, pod) in pods.iter().filter(|(_, pod)| !pod.is_finished() && !pod.ips.is_empty()) {
        let zone = zone(&pod.node);
        if zone.is_none() && !service.publish_not_ready {
            skipped.push(format!("skipping Pod {} for Service {key}: Node {} Not Found", pod_key.name, pod.node));
            continue;
        }
        let zone = zone.flatten().filter(|zone| !zone.is_empty());
        for family in &service.families {
            let Some(address) = pod.ips.iter().find(|ip| is_of_family(ip, family)).and_then(|ip| canonical(ip)) else { continue };
            let ports = service.ports.iter().filter_map(|port| resolve(port, pod)).collect();
            let ready = pod.ready.is_some();
            groups.entry((family.clone(), ports)).or_default().push(Member {
                address,
                ready: service.publish_not_ready || (ready && !pod.deleting),
                serving: ready,
                terminating: pod.deleting,
                hostname: (!pod.hostname.is_empty() && pod.subdomain == key.name).then(|| pod.hostname.clone()),
                node: (!pod.node.is_empty()).then(|| pod.node.clone()),
                zone: zone.clone(),
                pod: pod_key.name.clone(),
                uid: pod.uid.clone(),
                hints: Hints::default(),
            });
        }
    }
    let group = |((family, ports), members)| Group { family, ports, members };
    Desired { groups: groups.into_iter().map(group).collect(), skipped }
}

/// An address in the form that slices have it in.
pub(super) fn canonical(ip: &str) -> Option<String> {
    ip.parse::<IpAddr>().ok().map(|ip| ip.to_string())
}

pub(super) fn is_of_family(ip: &str, family: &str) -> bool {
    match ip.parse() {
        Ok(IpAddr::V4(_)) => family == "IPv4",
        Ok(IpAddr::V6(_)) => family == "IPv6",
        Err(_) => false,
    }
}

/// The number of a Service's port on this pod; none when the pod declares no port of that name.
fn resolve(port: &ServicePortRow, pod: &PodRow) -> Option<Port> {
    let number = match &port.target {
        None => port.port,
        Some(IntOrString::Int(0)) => port.port,
        Some(IntOrString::Int(number)) => *number,
        Some(IntOrString::String(name)) => pod.ports.iter().find(|one| one.name == *name && one.protocol == port.protocol)?.port,
    };
    Some(Port { name: port.name.clone().unwrap_or_default(), protocol: port.protocol.clone(), app_protocol: port.app_protocol.clone(), port: number })
}

/// The EndpointSlice as an API object.
pub(super) fn object(key: &Key, source: &Source, name: &str, slice: &Slice, version: Option<String>) -> EndpointSlice {
    let ports = slice.ports.iter().map(|port| EndpointPort {
        name: Some(port.name.clone()),
        protocol: Some(port.protocol.clone()),
        port: Some(port.port),
        app_protocol: port.app_protocol.clone(),
    });
    // Endpoints do not say more than whether an address is ready.
    let known = |value: bool| (source.kind == "Service").then_some(value);
    let endpoints = slice.members.iter().map(|member| Endpoint {
        addresses: vec![member.address.clone()],
        conditions: Some(EndpointConditions { ready: Some(member.ready), serving: known(member.serving), terminating: known(member.terminating) }),
        hostname: member.hostname.clone(),
        node_name: member.node.clone(),
        zone: member.zone.clone(),
        target_ref: (!member.pod.is_empty()).then(|| target(key, member)),
        hints: hints_object(&member.hints),
        ..Default::default()
    });
    EndpointSlice {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(key.ns.clone()),
            resource_version: version,
            labels: Some(source.labels.clone()),
            annotations: source.annotations.clone().filter(|all| !all.is_empty()),
            owner_references: Some(vec![controller_reference("v1", source.kind, &key.name, &source.uid)]),
            ..Default::default()
        },
        address_type: slice.family.clone(),
        ports: Some(ports.collect()),
        endpoints: Some(endpoints.collect()),
    }
}

/// A reference to a member's pod.
pub(super) fn target(key: &Key, member: &Member) -> ObjectReference {
    ObjectReference {
        kind: Some("Pod".to_owned()),
        namespace: Some(key.ns.clone()),
        name: Some(member.pod.clone()),
        uid: Some(member.uid.clone()),
        ..Default::default()
    }
}
