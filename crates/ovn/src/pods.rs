//! Pods → logical ports, and the annotation from which a CNI plug-in takes a pod's addresses.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use cluster::Key;
use ipnet::Ipv4Net;
use ovsdb::{Replica, Row};
use serde_json::json;
use tokio::time::Instant;

use crate::cluster_rows::PodRow;
use crate::rows::{Ref, Want, owner};
use crate::topology::{CHASSIS, node_scope, nth};

pub use ovsdb::names::{ANNOTATION, NETWORKS};

/// The name of a pod's logical port, which is the `iface-id` of its interface too.
#[must_use]
pub fn port_name(key: &Key) -> String {
    ovsdb::names::port_name(&key.ns, &key.name)
}

/// The pods' logical ports, each on the switch of its node. A port that has addresses lets its pod use no others; one that has none yet is closed,
/// because a pod whose author wrote its annotation is connected before OVN gives it any. Whoever may create pods chooses their node's name: it
/// must not lead to a switch of others.
#[must_use]
pub fn ports(replica: &Replica, pods: &[(Key, Arc<PodRow>)]) -> Vec<Want> {
    let foreign = foreign_switches(replica);
    let given: HashMap<&str, &str> =
        replica.table("Logical_Switch_Port").rows().map(|(_, row)| (row.text("name"), row.text("dynamic_addresses"))).collect();
    let switches = replica.table("Logical_Switch").rows().map(|(_, row)| row);
    let chassis: HashMap<&str, &str> = switches.filter_map(|row| Some((row.text("name"), row.entry("external_ids", CHASSIS)?))).collect();
    let of_nodes = pods.iter().filter(|(_, row)| !foreign.contains(&*row.node));
    let want = |(key, row): &(Key, Arc<PodRow>)| {
        let given = given.get(&*port_name(key)).copied().unwrap_or_default();
        port(key, row, given, chassis.get(&*row.node).copied())
    };
    of_nodes.map(want).collect()
}

fn port(key: &Key, row: &PodRow, given: &str, chassis: Option<&str>) -> Want {
    let mut want = Want::named("Logical_Switch_Port", port_name(key))
        .held_by(Ref::named("Logical_Switch", row.node.as_str()), "ports")
        .at_first("addresses", "dynamic")
        .entry("external_ids", "namespace", key.ns.as_str())
        .entry("external_ids", "pod", "true")
        .with("enabled", !given.is_empty());
    // An interface of an earlier pod of that name, or on another host, does not get the port.
    if !row.version.is_empty() {
        want = want.entry("options", "iface-id-ver", row.version.as_str());
    }
    if let Some(chassis) = chassis {
        want = want.entry("options", "requested-chassis", chassis);
    }
    if given.is_empty() { want } else { want.with("port_security", given) }
}

/// The addresses that OVN gave to ports of an owner, by the ports' names.
#[must_use]
pub fn addresses<'a>(replica: &'a Replica, scope: &str) -> HashMap<&'a str, Vec<IpAddr>> {
    let ports = replica.table("Logical_Switch_Port").rows().map(|(_, row)| row).filter(|row| owner(row) == Some(scope));
    let given = |row: &'a Row| row.text("dynamic_addresses").split_whitespace().skip(1).filter_map(|text| text.parse().ok()).collect::<Vec<_>>();
    ports.map(|row| (row.text("name"), given(row))).filter(|(_, given)| !given.is_empty()).collect()
}

/// What a pod's interface gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodNetwork {
    /// Its address, with the length of its node's subnet.
    pub address: Ipv4Net,
    /// Its MAC address.
    pub mac: String,
    /// Its node's router.
    pub gateway: Ipv4Addr,
}

impl PodNetwork {
    /// What OVN gave a pod's port. None: nothing yet, or its node's switch has no subnet.
    #[must_use]
    pub fn of(port: &Row, switch: &Row) -> Option<Self> {
        let mut parts = port.text("dynamic_addresses").split_whitespace();
        let (mac, address) = (parts.next()?.to_owned(), parts.next()?.parse::<Ipv4Addr>().ok()?);
        let subnet: Ipv4Net = switch.entry("other_config", "subnet")?.parse().ok()?;
        let gateway = switch.entry("external_ids", "gateway_ip").and_then(|text| text.split('/').next()?.parse().ok());
        let address = Ipv4Net::new(address, subnet.prefix_len()).ok()?;
        Some(Self { address, mac, gateway: gateway.unwrap_or_else(|| nth(subnet, 1)) })
    }

    /// The annotations that say it, in the form of 2018 and in today's.
    #[must_use]
    pub fn annotations(&self) -> [(&'static str, String); 2] {
        let Self { address, mac, gateway } = self;
        let old = json!({"ip_address": address, "mac_address": mac, "gateway_ip": gateway});
        let new = json!({"default": {
            "ip_addresses": [address], "mac_address": mac, "gateway_ips": [gateway], "ip_address": address, "gateway_ip": gateway,
        }});
        [(ANNOTATION, old.to_string()), (NETWORKS, new.to_string())]
    }
}

/// A pod without the annotations of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unannotated {
    /// The pod.
    pub key: Key,
    /// Its UID.
    pub uid: String,
    /// The annotations that it should have.
    pub annotations: [(&'static str, String); 2],
}

/// Names of switches that are no node's, or not only a node's.
#[must_use]
pub fn foreign_switches(replica: &Replica) -> BTreeSet<&str> {
    let switches = replica.table("Logical_Switch").rows().map(|(_, row)| row);
    switches.filter(|row| owner(row) != Some(&*node_scope(row.text("name")))).map(|row| row.text("name")).collect()
}

/// The pods that lack annotations: their ports are of this owner and on the switches of their nodes, and have addresses that are secured.
#[must_use]
pub fn missing_annotations<'a>(replica: &Replica, scope: &str, pods: impl IntoIterator<Item = (&'a Key, &'a PodRow)>) -> Vec<Unannotated> {
    let foreign = foreign_switches(replica);
    let ports: BTreeMap<_, _> = replica
        .table("Logical_Switch_Port")
        .rows()
        .filter(|(_, row)| owner(row) == Some(scope))
        .map(|(uuid, row)| (row.text("name"), (uuid, row)))
        .collect();
    let switches: BTreeMap<_, _> = replica.table("Logical_Switch").rows().map(|(_, row)| (row.text("name"), row)).collect();
    let on: BTreeMap<_, BTreeSet<_>> =
        switches.iter().map(|(name, row)| (*name, row.get("ports").into_iter().flat_map(ovsdb::Datum::uuids).collect())).collect();
    let missing = |(key, row): (&Key, &PodRow)| {
        let ((uuid, port), switch) = (ports.get(&*port_name(key))?, switches.get(&*row.node).filter(|_| !foreign.contains(&*row.node))?);
        // The port of a pod of that name on another node may still be there.
        on.get(&*row.node).filter(|ports| ports.contains(uuid))?;
        // A pod is connected by its annotation: no sooner than its port watches over its addresses.
        let is_open = port.get("enabled").and_then(ovsdb::Datum::as_bool) != Some(false);
        (is_open && port.text("port_security") == port.text("dynamic_addresses")).then_some(())?;
        let annotations = PodNetwork::of(port, switch)?.annotations();
        let has = row.annotation.as_ref() == Some(&annotations[0].1) && row.networks.as_ref() == Some(&annotations[1].1);
        (!has).then(|| Unannotated { key: key.clone(), uid: row.uid.clone(), annotations })
    };
    pods.into_iter().filter_map(missing).collect()
}

/// Pods whose ports OVN has given no address, and since when.
#[derive(Debug, Default)]
pub struct Unaddressed(HashMap<Key, Instant>);

impl Unaddressed {
    /// How long is waited before a port without an address is told of.
    const PATIENCE: Duration = Duration::from_secs(10);

    /// Takes note of the ports without addresses; what to tell of those that have none for long.
    pub fn look(&mut self, replica: &Replica, scope: &str, pods: &[(Key, Arc<PodRow>)], now: Instant) -> Vec<String> {
        let ports = replica.table("Logical_Switch_Port").rows().map(|(_, row)| row);
        let empty = ports.filter(|row| owner(row) == Some(scope) && row.text("dynamic_addresses").is_empty() && row.text("addresses") == "dynamic");
        let empty: BTreeSet<&str> = empty.map(|row| row.text("name")).collect();
        let waiting: Vec<(&Key, &PodRow)> = pods.iter().filter(|(key, _)| empty.contains(&*port_name(key))).map(|(key, row)| (key, &**row)).collect();
        self.0 = waiting.iter().map(|(key, _)| ((*key).clone(), self.0.get(key).copied().unwrap_or(now))).collect();
        let late = |(key, row): (&Key, &PodRow)| {
            let text = format!(
                "OVN gives port {} no address; look whether ovn-northd runs, and whether the subnet of {} is used up",
                port_name(key),
                row.node
            );
            self.0.get(key).filter(|since| now.duration_since(**since) >= Self::PATIENCE).map(|_| text)
        };
        waiting.into_iter().filter_map(late).collect()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::*;

    fn pod(spec: &serde_json::Value, status: &serde_json::Value) -> Option<PodRow> {
        let annotations = json!({"ovn": "x", "other": "y"});
        let pod = json!({"metadata": {"name": "web", "annotations": annotations}, "spec": spec, "status": status});
        PodRow::of(&serde_json::from_value::<Pod>(pod).unwrap())
    }

    #[test]
    fn pods_with_a_network_of_their_own_on_a_node_get_a_port() {
        let spec = |more: serde_json::Value| {
            let mut spec = json!({"containers": [], "nodeName": "node1"});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            spec
        };
        let running = json!({"phase": "Running"});
        let row = pod(&spec(json!({})), &running).unwrap();
        assert_eq!((&*row.node, row.annotation.as_deref(), row.networks), ("node1", Some("x"), None));
        assert_eq!(pod(&spec(json!({"hostNetwork": true})), &running), None);
        assert_eq!(pod(&spec(json!({"nodeName": ""})), &json!({})), None);
        for ended in ["Succeeded", "Failed"] {
            assert_eq!(pod(&spec(json!({})), &json!({"phase": ended})), None);
        }
    }

    #[test]
    fn annotations_have_the_forms_that_plug_ins_read() {
        let network = PodNetwork { address: "10.1.1.3/24".parse().unwrap(), mac: "0a:00:00:00:00:01".into(), gateway: "10.1.1.1".parse().unwrap() };
        let [(old, value), (new, today)] = network.annotations();
        assert_eq!((old, &*value), ("ovn", r#"{"ip_address":"10.1.1.3/24","mac_address":"0a:00:00:00:00:01","gateway_ip":"10.1.1.1"}"#));
        let today: serde_json::Value = serde_json::from_str(&today).unwrap();
        assert_eq!((new, &today["default"]["ip_addresses"][0]), ("k8s.ovn.org/pod-networks", &json!("10.1.1.3/24")));
        assert_eq!(today["default"]["gateway_ips"], json!(["10.1.1.1"]));
    }

    #[test]
    fn a_port_that_stays_without_an_address_is_told_of_until_it_has_one() {
        let port = "00000000-0000-0000-0000-000000000001";
        let with = |given: &str| {
            let ids = json!(["map", [["mullion.io/owner", "watcher"]]]);
            let row = json!({"name": "default_web", "addresses": "dynamic", "dynamic_addresses": given, "external_ids": ids});
            crate::rows::tests::replica(&json!({"Logical_Switch_Port": {port: row}}))
        };
        let pods = [(Key::new("default", "web"), Arc::new(PodRow { node: "node1".into(), ..PodRow::default() }))];
        let (mut unaddressed, start) = (Unaddressed::default(), Instant::now());
        let mut after = |seconds: u64, given: &str| unaddressed.look(&with(given), "watcher", &pods, start + Duration::from_secs(seconds));
        assert_eq!(after(0, ""), [""; 0]);
        assert_eq!(after(9, ""), [""; 0]);
        assert!(after(10, "")[0].contains("port default_web no address") && after(60, "")[0].contains("the subnet of node1"));
        assert_eq!(after(61, "0a:00:00:00:00:01 10.1.1.3"), [""; 0]);
        assert_eq!(after(62, ""), [""; 0], "it begins anew");
    }

    #[test]
    fn ports_and_switches_of_others_give_pods_nothing() {
        let (port, switch) = ("00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002");
        let mark = |owner: &str| json!(["map", [["mullion.io/owner", owner]]]);
        let given = "0a:00:00:00:00:01 10.1.1.3";
        let secured = |port_owner: &str, switch_owner: &str, ports: serde_json::Value, security: &str| {
            crate::rows::tests::replica(&json!({
                "Logical_Switch_Port": {port: {"name": "default_web", "dynamic_addresses": given, "port_security": security,
                    "external_ids": mark(port_owner)}},
                "Logical_Switch": {switch: {"name": "node1", "ports": ports, "other_config": ["map", [["subnet", "10.1.1.0/24"]]],
                    "external_ids": mark(switch_owner)}},
            }))
        };
        let world = |port_owner: &str, switch_owner: &str, ports: serde_json::Value| secured(port_owner, switch_owner, ports, given);
        let on = || json!(["set", [["uuid", port]]]);
        let (key, row) = (Key::new("default", "web"), PodRow { node: "node1".into(), uid: "u1".into(), version: "u1".into(), ..PodRow::default() });
        let found = |replica: &Replica| missing_annotations(replica, "watcher", [(&key, &row)]);
        let good = found(&world("watcher", "node/node1", on()));
        assert_eq!((good.len(), good[0].uid.as_str()), (1, "u1"));
        for (what, replica) in [
            ("a port of others", world("others", "node/node1", on())),
            ("a switch of others", world("watcher", "others", on())),
            ("a port on another switch", world("watcher", "node/node1", json!(["set", []]))),
            ("a port that does not watch over its addresses yet", secured("watcher", "node/node1", on(), "")),
        ] {
            assert_eq!(found(&replica), [], "{what}");
        }
        assert_eq!(foreign_switches(&world("watcher", "others", on())), ["node1"].into());
        assert!(foreign_switches(&world("watcher", "node/node1", on())).is_empty());
        let pods = [(key.clone(), Arc::new(row.clone()))];
        let secures = |replica: &Replica| ports(replica, &pods)[0].columns.get("port_security").cloned();
        assert_eq!(secures(&secured("watcher", "node/node1", on(), "")), Some(given.into()));
        assert_eq!(secures(&Replica::default()), None);
        // It is closed until it watches over its addresses, and only the pod's own interface on its own host gets it.
        let opens = |replica: &Replica| ports(replica, &pods)[0].columns["enabled"].as_bool();
        assert_eq!((opens(&Replica::default()), opens(&secured("watcher", "node/node1", on(), ""))), (Some(false), Some(true)));
        let owned = json!(["map", [["mullion.io/owner", "node/node1"], ["mullion.io/chassis", "chassis1"]]]);
        let on_chassis = crate::rows::tests::replica(&json!({"Logical_Switch": {switch: {"name": "node1", "external_ids": owned}}}));
        let options = ports(&on_chassis, &pods)[0].entries["options"].clone();
        assert_eq!(options, [("iface-id-ver".to_owned(), "u1".to_owned()), ("requested-chassis".to_owned(), "chassis1".to_owned())].into());
        assert!(ports(&world("watcher", "others", on()), &pods).is_empty());
    }
}
