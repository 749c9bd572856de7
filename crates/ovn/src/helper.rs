//! The gateway helper: flows of a bridge whose network card the host shares with the pods.
//!
//! Host and gateway router have the same addresses outside. Connections of pods are committed to a conntrack zone of their own on the way
//! out; what comes in goes to the pods if it belongs to one of those or is for a NodePort, and to the host otherwise.
//! Keeps true: the flows with our cookie, after each change and once a pass; others' flows stay.
//! Upstream: ovn-kubernetes' `ovn-k8s-gateway-helper` of 2017. Beyond it: answers to ARP reach both, and what is for the host goes to the
//! host by its MAC address instead of by what the bridge has learned, since both have the same one.

mod ofctl;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use backoff::Backoff;
use cluster::{ApiServer, Informer, Key, Selection};
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use ovsdb::session::Wants;
use ovsdb::{Client, Remote, Replica};
use thiserror_ext::AsReport as _;

pub use ofctl::FlowsError;

use crate::cluster_rows::{Protocol, ServiceRow};
use crate::rows::Ref;
use crate::schema::{LOCAL, LOCAL_USES};
use crate::topology::INTEGRATION;

/// The conntrack zone of the pods' connections.
const ZONE: u16 = 64000;
/// The cookie of our flows.
const COOKIE: u64 = 0x6d75_6c6c_696f_6e31;
/// Delays after a failure.
const DELAYS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(15));

/// The helper's settings.
pub struct Config {
    /// The cluster.
    pub client: cluster::Client,
    /// The local switch's database.
    pub local: Vec<Remote>,
    /// Where the switch has its sockets.
    pub run_dir: PathBuf,
    /// The bridge that the host shares.
    pub bridge: String,
    /// The network card in it.
    pub interface: String,
    /// A pass at least this often.
    pub full_pass: Duration,
}

/// What flows are made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports {
    /// The number of the network card's port.
    pub card: i64,
    /// The number of the port to OVN.
    pub patch: i64,
    /// The MAC address of host and gateway router.
    pub mac: String,
}

/// NodePorts of all Services.
#[must_use]
pub fn node_ports(services: &[(Key, Arc<ServiceRow>)]) -> BTreeSet<(Protocol, u16)> {
    services.iter().flat_map(|(_, service)| &service.ports).filter_map(|port| Some((port.protocol, port.node_port?))).collect()
}

/// The flows that should be there, in the form in which Open vSwitch prints them.
#[must_use]
pub fn flows(ports: &Ports, node_ports: &BTreeSet<(Protocol, u16)>) -> BTreeSet<String> {
    let Ports { card, patch, mac } = ports;
    let mut flows = BTreeSet::from([
        format!("priority=100,ip,in_port={patch} actions=ct(commit,zone={ZONE}),output:{card}"),
        format!("priority=50,ip,in_port={card} actions=ct(table=1,zone={ZONE})"),
        format!("priority=50,arp,in_port={card},arp_op=2 actions=output:{patch},LOCAL"),
        format!("table=1, priority=100,ct_state=+est+trk actions=output:{patch}"),
        format!("table=1, priority=100,ct_state=+rel+trk actions=output:{patch}"),
        format!("table=1, priority=50,dl_dst={mac} actions=LOCAL"),
        "table=1, priority=0 actions=NORMAL".to_owned(),
    ]);
    flows.extend(node_ports.iter().map(|(protocol, port)| format!("priority=100,{protocol},in_port={card},tp_dst={port} actions=output:{patch}")));
    flows
}

/// The lines of a bundle that makes `wanted` of `present`: what goes first, then what comes.
#[must_use]
pub fn changes(present: &BTreeSet<String>, wanted: &BTreeSet<String>) -> Vec<String> {
    let line = |flow: &String| flow.replacen("table=1, ", "table=1,", 1);
    let gone = present.difference(wanted).map(|flow| {
        let flow = line(flow);
        let of = flow.split(" actions=").next().unwrap_or_default();
        format!("delete_strict cookie={COOKIE:#x}/-1,{of}")
    });
    let new = wanted.difference(present).map(|flow| format!("add cookie={COOKIE:#x},{}", line(flow)));
    gone.chain(new).collect()
}

/// What the switch's database says of the bridge. None: it is not there, or the switch has not given numbers yet.
fn ports(replica: &Replica, bridge: &str, interface: &str) -> Option<Ports> {
    let row = |name: &str| Ref::named("Interface", name).find(replica).map(|(_, row)| row);
    let number = |name: &str| row(name)?.get("ofport")?.as_integer().filter(|number| *number > 0);
    let patch = number(&format!("k8s-patch-{bridge}-{INTEGRATION}"))?;
    let mac = row(bridge)?.text("mac_in_use").to_owned();
    Some(Ports { card: number(interface)?, patch, mac }).filter(|ports| !ports.mac.is_empty())
}

/// Keeps the flows until `shutdown` completes. They stay.
pub async fn run(config: Config, shutdown: impl Future<Output = ()>) {
    let selection = Selection::all().of(&ApiServer::default());
    let services = Informer::start(Api::<Service>::all(config.client.clone()), selection, ServiceRow::of);
    let wants = Wants { database: LOCAL.to_owned(), uses: LOCAL_USES, lock: None, leader_only: false };
    let local = Client::start(ovsdb::Config::new(config.local.clone(), wants));
    tokio::select! {
        () = forever(&config, &services, local) => {}
        () = shutdown => {}
    }
}

async fn forever(config: &Config, services: &Informer<ServiceRow>, mut local: Client) {
    services.synced().await;
    let mut changed = services.changed();
    let mut backoff = Backoff::new(DELAYS.0, DELAYS.1);
    loop {
        changed.mark_unchanged();
        let wait = match pass(config, services, &local).await {
            Ok(()) => {
                backoff.reset();
                config.full_pass
            }
            Err(error) => {
                tracing::warn!(error = %error.as_report(), bridge = config.bridge, "the flows of the gateway's bridge are not as they should be");
                backoff.next_delay()
            }
        };
        tokio::select! {
            _ = changed.changed() => {}
            () = local.changed() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

async fn pass(config: &Config, services: &Informer<ServiceRow>, local: &Client) -> Result<(), FlowsError> {
    let Some(ports) = ports(&local.state().replica, &config.bridge, &config.interface) else {
        let (bridge, interface) = (config.bridge.clone(), config.interface.clone());
        return Err(FlowsError::NoPorts { bridge, interface });
    };
    let bridge = format!("unix:{}", config.run_dir.join(format!("{}.mgmt", config.bridge)).display());
    let wanted = flows(&ports, &node_ports(&services.snapshot()));
    let changes = changes(&ofctl::dump(&bridge, COOKIE).await?, &wanted);
    if changes.is_empty() {
        return Ok(());
    }
    tracing::debug!("changing the flows of {}:\n{}", config.bridge, changes.join("\n"));
    ofctl::apply(&bridge, &changes).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Ports {
        Ports { card: 1, patch: 2, mac: "02:00:00:00:00:01".into() }
    }

    #[test]
    fn pods_connections_and_node_ports_go_to_ovn_and_the_rest_to_the_host() {
        let found: Vec<String> = flows(&example(), &[(Protocol::Tcp, 30080), (Protocol::Udp, 30053)].into()).into_iter().collect();
        insta::assert_snapshot!(found.join("\n"));
    }

    #[test]
    fn only_what_differs_is_changed() {
        let with = |ports: &[(Protocol, u16)]| flows(&example(), &ports.iter().copied().collect());
        assert_eq!(changes(&with(&[(Protocol::Tcp, 1)]), &with(&[(Protocol::Tcp, 1)])), [""; 0]);
        let expected = [
            "delete_strict cookie=0x6d756c6c696f6e31/-1,priority=100,tcp,in_port=1,tp_dst=1",
            "add cookie=0x6d756c6c696f6e31,priority=100,tcp,in_port=1,tp_dst=2 actions=output:2",
        ];
        assert_eq!(changes(&with(&[(Protocol::Tcp, 1)]), &with(&[(Protocol::Tcp, 2)])), expected);
        // Tables are written as they are read, without the blank.
        assert!(changes(&BTreeSet::new(), &with(&[])).contains(&"add cookie=0x6d756c6c696f6e31,table=1,priority=0 actions=NORMAL".to_owned()));
    }
}
