//! Pods → logical ports, and the annotation from which a CNI plug-in takes a pod's addresses.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use cluster::Key;
use ipnet::Ipv4Net;
use ovsdb::{Replica, Row};
use serde_json::json;

use crate::cluster_rows::PodRow;
use crate::rows::{Ref, Want};
use crate::topology::nth;

/// The annotation of 2017 and 2018.
pub const ANNOTATION: &str = "ovn";
/// Today's annotation.
pub const NETWORKS: &str = "k8s.ovn.org/pod-networks";

/// The name of a pod's logical port, which is the `iface-id` of its interface too.
#[must_use]
pub fn port_name(key: &Key) -> String {
    format!("{}_{}", key.ns, key.name)
}

/// A pod's logical port, on the switch of its node.
#[must_use]
pub fn port(key: &Key, row: &PodRow) -> Want {
    Want::named("Logical_Switch_Port", port_name(key))
        .held_by(Ref::named("Logical_Switch", row.node.as_str()), "ports")
        .at_first("addresses", "dynamic")
        .entry("external_ids", "namespace", key.ns.as_str())
        .entry("external_ids", "pod", "true")
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

/// The annotations that pods do not have yet, by pod.
#[must_use]
pub fn missing_annotations<'a>(replica: &Replica, pods: impl IntoIterator<Item = (&'a Key, &'a PodRow)>) -> Vec<(Key, [(&'static str, String); 2])> {
    let by_name = |table: &str| replica.table(table).rows().map(|(_, row)| (row.text("name"), row)).collect::<BTreeMap<_, _>>();
    let (ports, switches) = (by_name("Logical_Switch_Port"), by_name("Logical_Switch"));
    let missing = |(key, row): (&Key, &PodRow)| {
        let network = PodNetwork::of(ports.get(&*port_name(key))?, switches.get(&*row.node)?)?;
        let annotations = network.annotations();
        let has = row.annotation.as_ref() == Some(&annotations[0].1) && row.networks.as_ref() == Some(&annotations[1].1);
        (!has).then(|| (key.clone(), annotations))
    };
    pods.into_iter().filter_map(missing).collect()
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
}
