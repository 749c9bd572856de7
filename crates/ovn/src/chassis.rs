//! A host's chassis in the southbound database, which goes with the host.

use ovsdb::{Datum, Replica, Uuid};

use crate::rows::{OWNER, Plan, Ref, Step};
use crate::topology::{gateway_scope, node_scope};

/// What takes a host's chassis away: those on which its management port and its gateway router are. Only rows with our mark in the northbound
/// database lead to a chassis: one that merely has the host's name may be another program's.
#[must_use]
pub fn removal(northbound: &Replica, southbound: &Replica, node: &str) -> Plan {
    let is_ours = |table: &str, name: &str, owner: &str| {
        northbound
            .table(table)
            .rows()
            .find(|(_, row)| row.text("name") == name && row.entry("external_ids", OWNER) == Some(owner))
            .map(|(_, row)| row)
    };
    let port = format!("k8s-{node}");
    let bound = |(_, row): (Uuid, &ovsdb::Row)| {
        (row.text("logical_port") == port).then(|| row.get("chassis").into_iter().flat_map(Datum::uuids).collect::<Vec<_>>())
    };
    let bound: Vec<Uuid> = match is_ours("Logical_Switch_Port", &port, &node_scope(node)) {
        Some(_) => southbound.table("Port_Binding").rows().filter_map(bound).flatten().collect(),
        None => Vec::new(),
    };
    let of_router = is_ours("Logical_Router", &format!("GR_{node}"), &gateway_scope(node)).and_then(|router| router.entry("options", "chassis"));
    let all = || southbound.table("Chassis").rows();
    let names: Vec<&str> =
        all().filter(|(uuid, row)| bound.contains(uuid) || Some(row.text("name")) == of_router).map(|(_, row)| row.text("name")).collect();
    let rows = ["Chassis", "Chassis_Private"].into_iter().flat_map(|table| southbound.table(table).rows().map(move |(uuid, row)| (table, uuid, row)));
    let going = rows.filter(|(.., row)| names.contains(&row.text("name")));
    let remove = |(table, uuid, row): (&'static str, Uuid, &ovsdb::Row)| Step::Remove { at: Ref::named(table, row.text("name")), uuid, holder: None };
    Plan { steps: going.map(remove).collect(), problems: Vec::new() }
}

#[cfg(test)]
mod tests {
    use ovsdb::Schema;
    use serde_json::{Value, json};

    use super::*;
    use crate::rows::tests::replica;
    use crate::schema::SOUTHBOUND_USES;

    fn id(number: u32) -> String {
        Uuid::from_u128(number.into()).to_string()
    }

    /// Chassis `a` of host lin01, with its management port, and `b` of host gw.
    fn southbound() -> Replica {
        let text = json!({"type": "string"});
        let columns = |columns: Value| json!({"columns": columns});
        let tables = json!({
            "Chassis": columns(json!({"name": text, "hostname": text})),
            "Chassis_Private": columns(json!({"name": text})),
            "Port_Binding": columns(json!({"logical_port": text, "chassis": {"type": {"key": "uuid", "min": 0, "max": 1}}})),
        });
        let support = Schema::parse(&json!({"name": "SB", "tables": tables})).unwrap().supports(SOUTHBOUND_USES).unwrap();
        let rows = json!({
            "Chassis": {id(1): {"name": "a", "hostname": "lin01"}, id(2): {"name": "b", "hostname": "gw"}},
            "Chassis_Private": {id(3): {"name": "a"}, id(4): {"name": "b"}},
            "Port_Binding": {id(5): {"logical_port": "k8s-lin01", "chassis": ["uuid", id(1)]}},
        });
        Replica::from_json(&rows, &support).unwrap()
    }

    #[test]
    fn a_host_leads_to_its_chassis_and_to_no_other() {
        let owned = |owner: &str| json!(["map", [[OWNER, owner]]]);
        let port = |owner: &str| json!({"Logical_Switch_Port": {id(1): {"name": "k8s-lin01", "external_ids": owned(owner)}}});
        let router =
            json!({"Logical_Router": {id(1): {"name": "GR_east", "options": ["map", [["chassis", "b"]]], "external_ids": owned("gateway/east")}}});
        let going = |northbound: &Value, node: &str| removal(&replica(northbound), &southbound(), node).to_string();
        assert_eq!(going(&port("node/lin01"), "lin01"), "- Chassis a\n- Chassis_Private a\n");
        assert_eq!(going(&port("another"), "lin01"), "", "the port is not ours");
        assert_eq!(going(&router, "east"), "- Chassis b\n- Chassis_Private b\n");
        for stranger in ["lin01", "gw"] {
            assert_eq!(going(&json!({}), stranger), "", "a host name is no mark");
        }
    }
}
