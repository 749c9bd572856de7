use ovsdb::{AtomType, Schema, Support};
use serde_json::{Value, json};

use super::*;
use crate::schema::NORTHBOUND_USES;

/// A schema with what is used: columns of texts and rows are sets without a bound, others are single.
fn support() -> Support {
    let kind = |column: &ovsdb::ColumnUse| match (column.value, column.key) {
        (Some(_), _) => json!({"key": "string", "value": "string", "min": 0, "max": "unlimited"}),
        (None, AtomType::Uuid) => json!({"key": "uuid", "min": 0, "max": "unlimited"}),
        (None, AtomType::String) if matches!(column.name, "addresses" | "port_security") => json!({"key": "string", "min": 0, "max": "unlimited"}),
        (None, AtomType::Boolean) => json!({"key": "boolean", "min": 0, "max": 1}),
        (None, key) => json!(key.to_string()),
    };
    let columns = |table: &ovsdb::TableUse| table.columns.iter().map(|column| (column.name.to_owned(), json!({"type": kind(column)}))).collect();
    let tables: serde_json::Map<String, Value> =
        NORTHBOUND_USES.iter().map(|table| (table.name.to_owned(), json!({"columns": Value::Object(columns(table))}))).collect();
    Schema::parse(&json!({"name": "NB", "tables": tables})).unwrap().supports(NORTHBOUND_USES).unwrap()
}

pub(crate) fn replica(rows: &Value) -> Replica {
    Replica::from_json(rows, &support()).unwrap()
}

fn id(number: u32) -> String {
    Uuid::from_u128(number.into()).to_string()
}

fn refs(numbers: &[u32]) -> Value {
    json!(["set", numbers.iter().map(|number| json!(["uuid", id(*number)])).collect::<Vec<_>>()])
}

fn owned(owner: &str) -> Value {
    json!(["map", [[OWNER, owner], ["foreign", "kept"]]])
}

fn port(name: &str, switch: &str) -> Want {
    Want::named("Logical_Switch_Port", name).held_by(Ref::named("Logical_Switch", switch), "ports").at_first("addresses", "dynamic")
}

/// Two switches; on the first one a port of ours and one of somebody else's.
fn world() -> Replica {
    replica(&json!({
        "Logical_Switch": {id(1): {"name": "node1", "ports": refs(&[11, 12])}, id(2): {"name": "node2"}},
        "Logical_Switch_Port": {
            id(11): {"name": "ours", "external_ids": owned("me"), "addresses": "static"},
            id(12): {"name": "theirs"},
        },
    }))
}

fn planned(replica: &Replica, wants: &[Want]) -> Vec<String> {
    plan(replica, "me", wants).to_string().lines().map(str::to_owned).collect()
}

#[test]
fn what_is_missing_is_made_and_what_is_there_stays() {
    let wants = [port("ours", "node1"), port("new", "node2").entry("external_ids", "pod", "true")];
    let expected =
        ["+ Logical_Switch_Port new in Logical_Switch node2 ports", "    addresses: dynamic", "    external_ids: {mullion.io/owner=me, pod=true}"];
    // A column that is written once is not changed later.
    assert_eq!(planned(&world(), &wants), expected);
}

#[test]
fn rows_of_others_are_reported_and_left_alone() {
    let wants = [port("ours", "node1"), port("theirs", "node1").with("addresses", "x")];
    let expected =
        "! cannot write Logical_Switch_Port theirs: a row of that name belongs to another program; remove or rename it, or choose another name";
    assert_eq!(planned(&world(), &wants), [expected]);
    let other = plan(&world(), "somebody", &[port("ours", "node1")]);
    assert!(other.steps.is_empty() && other.problems[0].to_string().contains("belongs to me"), "{other}");
}

#[test]
fn what_is_ours_and_not_wanted_is_swept_from_its_holder() {
    assert_eq!(planned(&world(), &[]), ["- Logical_Switch_Port ours of Logical_Switch node1"]);
    // With its holder it goes by itself.
    let both = replica(&json!({
        "Logical_Switch": {id(1): {"name": "node1", "ports": refs(&[11]), "external_ids": owned("me")}},
        "Logical_Switch_Port": {id(11): {"name": "ours", "external_ids": owned("me")}},
    }));
    assert_eq!(planned(&both, &[]), ["- Logical_Switch node1"]);
}

#[test]
fn a_row_that_moves_is_made_anew() {
    let plan = plan(&world(), "me", &[port("ours", "node2")]);
    let lines: Vec<String> = plan.to_string().lines().map(str::to_owned).collect();
    assert_eq!(lines.first().unwrap(), "+ Logical_Switch_Port ours in Logical_Switch node2 ports");
    assert_eq!(lines.last().unwrap(), "- Logical_Switch_Port ours of Logical_Switch node1");
    let text = format!("{:?}", plan.transaction(None));
    assert!(text.find("Delete").unwrap() < text.find("Insert").unwrap(), "the name is free before it is taken: {text}");
}

#[test]
fn a_holder_that_is_not_there_is_named_and_nothing_is_made_of_what_it_would_hold() {
    let wants = [
        Want::named("Logical_Router", "r").member("load_balancer", Ref::external("Load_Balancer", "k", "v")),
        Want::named("Logical_Router_Port", "p").held_by(Ref::named("Logical_Router", "r"), "ports"),
        port("ours", "node1"),
    ];
    let expected =
        ["! cannot write Logical_Router r: there is no Load_Balancer k=v", "! cannot write Logical_Router_Port p: there is no Logical_Router r"];
    assert_eq!(planned(&world(), &wants), expected);
}

#[test]
fn columns_pairs_and_members_are_compared_each_in_its_way() {
    let balancer = |vips: Value| {
        replica(&json!({
            "Load_Balancer": {id(1): {"protocol": "tcp", "vips": vips, "external_ids": ["map", [["k", "v"], [OWNER, "me"]]]}},
            "Logical_Switch": {id(2): {"name": "s", "external_ids": owned("me")}},
        }))
    };
    let wants = [
        Want::external("Load_Balancer", "k", "v").with("vips", Datum::map([("a", "1"), ("b", "2")])).with("protocol", "udp"),
        Want::named("Logical_Switch", "s").entry("other_config", "subnet", "x").member("load_balancer", Ref::external("Load_Balancer", "k", "v")),
    ];
    let there = balancer(json!(["map", [["a", "1"], ["b", "3"], ["c", "4"]]]));
    let expected = [
        "~ Load_Balancer k=v protocol: tcp -> udp",
        "~ Load_Balancer k=v vips: -b=3 -c=4 +b=2",
        "~ Logical_Switch s other_config: +subnet=x",
        "~ Logical_Switch s load_balancer: +k=v",
    ];
    assert_eq!(planned(&there, &wants), expected);
    // One backend more is one pair of one row.
    let one = balancer(json!(["map", [["a", "1"], ["b", "1"]]]));
    let plan = plan(&one, "me", &wants[..1]);
    assert!(plan.to_string().contains("vips: -b=1 +b=2\n"), "{plan}");
}

#[test]
fn others_rows_are_changed_only_where_asked_and_never_made_or_swept() {
    let lb = |owner: &str| replica(&json!({"Load_Balancer": {id(1): {"external_ids": ["map", [["k", "v"], [OWNER, owner]]]}}}));
    let want = [Want::external("Load_Balancer", "k", "v").owned(Ownership::Others).with("vips", Datum::map([("a", "1")]))];
    assert_eq!(planned(&lb("master/m"), &want), ["~ Load_Balancer k=v vips: +a=1"]);
    assert_eq!(planned(&lb("master/m"), &[]), [""; 0]);
    assert_eq!(planned(&Replica::default(), &want), ["! cannot write Load_Balancer k=v: there is no Load_Balancer k=v"]);
    let foreign = replica(&json!({"Load_Balancer": {id(1): {"external_ids": ["map", [["k", "v"]]]}}}));
    assert!(planned(&foreign, &want)[0].contains("belongs to another program"));
}

#[test]
fn two_rows_of_one_name_are_a_problem() {
    let twice = replica(&json!({"Logical_Switch": {id(1): {"name": "s", "external_ids": owned("me")}, id(2): {"name": "s"}}}));
    assert_eq!(
        planned(&twice, &[Want::named("Logical_Switch", "s")]),
        ["! cannot write Logical_Switch s: there are 2 rows of that name; remove all but one"]
    );
}

#[test]
fn transactions_are_guarded_by_what_was_seen_and_by_the_lock() {
    let plan = plan(&world(), "me", &[port("ours", "node1").with("addresses", "x"), port("new", "node1")]);
    let transaction = plan.transaction(Some("lock"));
    let text = transaction.to_json("NB", &support()).to_string();
    let position = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part} in {text}"));
    assert!(text.starts_with(r#"["NB",{"op":"assert","lock":"lock"}"#), "{text}");
    // The value that was seen, the free name, the holder: all before the first change.
    let guards = [position(r#""rows":[{"addresses":"static"}]"#), position(r#"["name","==","new"]"#), position(r#""columns":["_uuid"]"#)];
    let first_change = position(r#""op":"update""#).min(position(r#""op":"insert""#));
    assert!(guards.iter().all(|guard| *guard < first_change), "{text}");
}

#[test]
fn a_group_has_the_members_that_are_there() {
    let port = |name: &str| Ref::named("Logical_Switch_Port", name);
    let wants =
        [self::port("ours", "node1"), Want::named("Port_Group", "g").exactly("ports").member("ports", port("ours")).member("ports", port("none"))];
    let expected = [
        "+ Port_Group g",
        "    external_ids: {mullion.io/owner=me}",
        "    ports: ours",
        "! cannot write Port_Group g: there is no Logical_Switch_Port none",
    ];
    assert_eq!(planned(&world(), &wants), expected);
}

#[test]
fn of_a_set_only_what_differs_is_written() {
    let there = replica(&json!({"Address_Set": {id(1): {"name": "s", "addresses": ["set", ["10.1.1.3", "10.1.1.4"]], "external_ids": owned("me")}}}));
    let want = |addresses: &[&str]| [Want::named("Address_Set", "s").with_elements("addresses", Datum::set(addresses.iter().copied()))];
    assert_eq!(planned(&there, &want(&["10.1.1.4", "10.1.1.5"])), ["~ Address_Set s addresses: -10.1.1.3 +10.1.1.5"]);
    assert_eq!(planned(&there, &want(&["10.1.1.4", "10.1.1.3"])), [""; 0]);
    let text = plan(&there, "me", &want(&["10.1.1.4"])).transaction(None).to_json("NB", &support()).to_string();
    assert!(text.contains(r#""mutations":[["addresses","delete","10.1.1.3"]]"#) && !text.contains("10.1.1.4"), "{text}");
    let made = plan(&Replica::default(), "me", &want(&["10.1.1.3"])).to_string();
    assert!(made.contains("addresses: 10.1.1.3"), "{made}");
}
