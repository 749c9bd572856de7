//! Node ports on the real host's loopback: which ports, and which node takes a connection.
//!
//! Services name the ports; a connection goes to the Ready nodes whose operating system is that of the Service's pods,
//! in the order of their names. A port that the real host cannot give is an Event on its Service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use cluster::{ApiServer, EventRecorder, EventType, Informer, Key, Selection};
use k8s_openapi::api::core::v1::{Node, ObjectReference, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client};
use lab::protocol::{HostPort, PortStatus, Transport};
use lab::relay;
use tokio::sync::watch;

use super::nodes::is_ready;

/// A node that may take connections.
#[derive(Debug, PartialEq, Eq)]
struct NodeRow {
    address: IpAddr,
    os: String,
    ready: bool,
}

impl NodeRow {
    fn of(node: &Node) -> Option<Self> {
        let status = node.status.as_ref()?;
        let address = status.addresses.iter().flatten().find(|address| address.type_ == "InternalIP")?;
        let os = status.node_info.as_ref().map(|info| info.operating_system.clone()).unwrap_or_default();
        Some(Self { address: address.address.parse().ok()?, os, ready: is_ready(node) })
    }
}

fn ports(service: &Service) -> Option<BTreeSet<HostPort>> {
    let ports = service.spec.as_ref()?.ports.iter().flatten();
    let ports: BTreeSet<HostPort> = ports
        .filter_map(|port| {
            let protocol = match port.protocol.as_deref() {
                None | Some("TCP") => Transport::Tcp,
                Some("UDP") => Transport::Udp,
                Some(_) => return None,
            };
            Some(HostPort { protocol, port: u16::try_from(port.node_port?).ok()? })
        })
        .collect();
    (!ports.is_empty()).then_some(ports)
}

/// On which nodes a Service's pods are.
#[derive(PartialEq, Eq)]
struct SliceRow {
    service: String,
    nodes: BTreeSet<String>,
}

impl SliceRow {
    fn of(slice: &EndpointSlice) -> Option<Self> {
        let service = slice.metadata.labels.as_ref()?.get("kubernetes.io/service-name")?.clone();
        let nodes = slice.endpoints.iter().flatten().filter_map(|endpoint| endpoint.node_name.clone()).collect();
        Some(Self { service, nodes })
    }
}

struct Views {
    services: Informer<BTreeSet<HostPort>>,
    slices: Informer<SliceRow>,
    nodes: Informer<NodeRow>,
}

impl Views {
    fn owner(&self, port: HostPort) -> Option<Key> {
        self.services.snapshot().into_iter().find(|(_, ports)| ports.contains(&port)).map(|(key, _)| key)
    }

    fn targets(&self, port: HostPort) -> Vec<SocketAddr> {
        let Some(owner) = self.owner(port) else { return Vec::new() };
        let nodes: BTreeMap<String, Arc<NodeRow>> = self.nodes.snapshot().into_iter().map(|(key, row)| (key.name.to_string(), row)).collect();
        let slices = self.slices.in_namespace(&owner.ns).into_iter().filter(|(_, slice)| slice.service == *owner.name);
        let hosts: BTreeSet<String> = slices.flat_map(|(_, slice)| slice.nodes.clone()).collect();
        choose(&nodes, &hosts).into_iter().map(|address| SocketAddr::new(address, port.port)).collect()
    }
}

/// The Ready nodes of the operating systems that the pods' hosts have; all Ready nodes where there is no pod.
fn choose(nodes: &BTreeMap<String, Arc<NodeRow>>, hosts: &BTreeSet<String>) -> Vec<IpAddr> {
    let systems: BTreeSet<&str> = hosts.iter().filter_map(|host| nodes.get(host)).map(|node| node.os.as_str()).collect();
    let fits = |node: &&Arc<NodeRow>| node.ready && (systems.is_empty() || systems.contains(node.os.as_str()));
    nodes.values().filter(fits).map(|node| node.address).collect()
}

/// Relays node ports until the relay ends.
pub async fn run(client: Client, api: &ApiServer, socket: PathBuf) -> Result<()> {
    let views = Arc::new(Views {
        services: Informer::start(Api::<Service>::all(client.clone()), Selection::all().of(api), ports),
        slices: Informer::start(Api::<EndpointSlice>::all(client.clone()), Selection::all().of(api), SliceRow::of),
        nodes: Informer::start(Api::<Node>::all(client.clone()), Selection::all().of(api), NodeRow::of),
    });
    let recorder = EventRecorder::new(client, "mullion", "cp");
    let (desired, ports) = watch::channel(BTreeSet::new());
    let (status, reports) = watch::channel(Vec::new());
    let chooser = views.clone();
    let targets = Arc::new(move |port: HostPort| chooser.targets(port));
    tokio::select! {
        () = relay::run(&socket, ports, targets, status) => {}
        () = follow(&views, desired) => {}
        () = report(&views, reports, &recorder) => {}
    }
    Ok(())
}

/// Keeps the list of ports what the Services say.
async fn follow(views: &Views, desired: watch::Sender<BTreeSet<HostPort>>) {
    let mut changed = views.services.changed();
    views.services.synced().await;
    loop {
        let all: BTreeSet<HostPort> = views.services.snapshot().into_iter().flat_map(|(_, ports)| (*ports).clone()).collect();
        desired.send_if_modified(|old| {
            let differs = *old != all;
            *old = all;
            differs
        });
        if changed.changed().await.is_err() {
            return;
        }
    }
}

/// An Event for each port that newly cannot be had.
async fn report(views: &Views, mut reports: watch::Receiver<Vec<PortStatus>>, recorder: &EventRecorder) {
    let mut known = BTreeSet::new();
    while reports.changed().await.is_ok() {
        let refused: Vec<PortStatus> = reports.borrow_and_update().iter().filter(|status| status.error.is_some()).cloned().collect();
        for status in refused.iter().filter(|status| !known.contains(&status.port)) {
            let Some(owner) = views.owner(status.port) else { continue };
            let reason = status.error.as_deref().unwrap_or_default();
            let message = format!("node port {} is not served at 127.0.0.1 of this machine: {reason}", status.port);
            let object = ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Service".to_owned()),
                namespace: Some(owner.ns.to_string()),
                name: Some(owner.name.to_string()),
                ..ObjectReference::default()
            };
            recorder.event(&object, EventType::Warning, "NodePortUnavailable", None, message);
        }
        known = refused.into_iter().map(|status| status.port).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_goes_to_ready_nodes_of_the_pods_system() {
        let node = |last: u8, os: &str, ready| Arc::new(NodeRow { address: IpAddr::from([10, 240, 0, last]), os: os.to_owned(), ready });
        let nodes = BTreeMap::from([
            ("lin01".to_owned(), node(11, "linux", true)),
            ("win01".to_owned(), node(12, "windows", false)),
            ("win02".to_owned(), node(13, "windows", true)),
        ]);
        let on = |hosts: &[&str]| choose(&nodes, &hosts.iter().map(|&host| host.to_owned()).collect());
        assert_eq!(on(&["win01"]), [IpAddr::from([10, 240, 0, 13])]);
        assert_eq!(on(&["lin01"]), [IpAddr::from([10, 240, 0, 11])]);
        assert_eq!(on(&[]), [IpAddr::from([10, 240, 0, 11]), IpAddr::from([10, 240, 0, 13])]);
    }
}
