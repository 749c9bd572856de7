//! fieldsV1: what upstream writes is read and written back the same, and hostile input is refused.

use kube_schema::path::{PathElement, path_text};
use kube_schema::set::{FieldSet, FieldsError};
use proptest::prelude::*;
use serde_json::{Value, json};

#[test]
fn sets_of_upstream_round_trip() {
    for text in [
        r#"{}"#,
        r#"{"f:aaa":{},"f:aab":{}}"#,
        r#"{"f:metadata":{"f:labels":{".":{},"f:app":{}}},"f:spec":{"f:replicas":{}}}"#,
        r#"{"k:{\"name\":\"first\"}":{},"k:{\"name\":\"second\"}":{".":{},"v:\"b\"":{},"v:3.1":{},"v:false":{},"v:null":{}}}"#,
        r#"{"f:ports":{"k:{\"containerPort\":80,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{}}}}"#,
        r#"{"i:-1":{},"i:0":{"f:a":{}}}"#,
        r#"{"v:\"\\u003ca\\u003e\"":{}}"#,
    ] {
        let value: Value = serde_json::from_str(text).unwrap();
        let set = FieldSet::from_json(&value).unwrap();
        assert_eq!(FieldSet::from_json(&set.to_json()).unwrap(), set, "{text}");
        let sorted = |text: &str| text.len();
        assert_eq!(sorted(&set.to_json().to_string()), sorted(text), "{text}");
    }
}

#[test]
fn elements_are_written_in_upstreams_order() {
    let fields = json!({"v:1": {}, "i:3": {}, "f:b": {}, "k:{\"b\":1,\"a\":2}": {}, "f:a": {"f:x": {}, ".": {}}});
    let set = FieldSet::from_json(&fields).unwrap();
    assert_eq!(set.to_json().to_string(), r#"{"f:a":{".":{},"f:x":{}},"f:b":{},"k:{\"a\":2,\"b\":1}":{},"v:1":{},"i:3":{}}"#);
}

#[test]
fn unknown_elements_are_left_out_and_broken_ones_refused() {
    assert_eq!(FieldSet::from_json(&json!({"z:1": {"f:a": {}}, "f:b": {}})).unwrap(), FieldSet::of_names(&[&["b"]]));
    for (fields, message) in [
        (json!({"f": {}}), "parsing key as path element: key must be 2 characters long:"),
        (json!({"fa:": {}}), "parsing key as path element: missing colon: fa:"),
        (json!({"k:[]": {}}), "parsing key as path element: cannot read path element \"k:[]\": its value is no JSON"),
        (json!({"i:x": {}}), "parsing key as path element: cannot read path element \"i:x\": its value is no JSON"),
        (json!({"f:a": 5}), "cannot read fieldsV1: expected an object, found int64"),
        (json!([]), "cannot read fieldsV1: expected an object, found []interface {}"),
    ] {
        assert_eq!(FieldSet::from_json(&fields).unwrap_err().to_string(), message);
    }
}

#[test]
fn deep_fields_are_refused() {
    let mut fields = json!({});
    for _ in 0..1_000 {
        fields = json!({"f:a": fields});
    }
    assert_eq!(FieldSet::from_json(&fields), Err(FieldsError::Depth));
}

#[test]
fn paths_print_as_in_conflicts() {
    let path = [
        PathElement::field("spec"),
        PathElement::field("ports"),
        PathElement::key(vec![("protocol".into(), json!("TCP")), ("containerPort".into(), json!(80))]),
        PathElement::Value(Box::new(json!("a"))),
        PathElement::Index(3),
    ];
    assert_eq!(path_text(&path), r#".spec.ports[containerPort=80,protocol="TCP"][="a"][3]"#);
}

#[test]
fn difference_keeps_what_is_below_and_recursive_difference_does_not() {
    let set = FieldSet::of_names(&[&["a"], &["a", "b"], &["c"]]);
    let gone = FieldSet::of_names(&[&["a"]]);
    assert_eq!(set.difference(&gone), FieldSet::of_names(&[&["a", "b"], &["c"]]));
    assert_eq!(set.recursive_difference(&gone), FieldSet::of_names(&[&["c"]]));
}

fn element() -> impl Strategy<Value = PathElement> {
    prop_oneof![
        "[a-c]".prop_map(|name| PathElement::field(&name)),
        (0..3_i64).prop_map(PathElement::Index),
        "[a-b]".prop_map(|text| PathElement::Value(Box::new(text.into()))),
        (0..2_i64).prop_map(|number| PathElement::Value(Box::new(number.into()))),
        ("[x-y]", 0..2_i64).prop_map(|(name, value)| PathElement::key(vec![(name.into(), value.into())])),
    ]
}

fn paths() -> impl Strategy<Value = Vec<Vec<PathElement>>> {
    prop::collection::vec(prop::collection::vec(element(), 1..4), 0..8)
}

fn set_of(paths: &[Vec<PathElement>]) -> FieldSet {
    let mut set = FieldSet::default();
    paths.iter().for_each(|path| set.insert(path));
    set
}

fn sorted(mut paths: Vec<Vec<PathElement>>) -> Vec<Vec<PathElement>> {
    paths.sort();
    paths.dedup();
    paths
}

proptest! {
    #[test]
    fn sets_do_what_lists_of_paths_do(left in paths(), right in paths()) {
        let (left_set, right_set) = (set_of(&left), set_of(&right));
        prop_assert_eq!(FieldSet::from_json(&left_set.to_json()).unwrap(), left_set.clone());
        prop_assert_eq!(sorted(left_set.paths()), sorted(left.clone()));
        prop_assert!(left.iter().all(|path| left_set.has(path)));
        let both: Vec<_> = left.iter().chain(&right).cloned().collect();
        prop_assert_eq!(sorted(left_set.union(&right_set).paths()), sorted(both));
        let common: Vec<_> = left.iter().filter(|path| right.contains(path)).cloned().collect();
        prop_assert_eq!(sorted(left_set.intersection(&right_set).paths()), sorted(common));
        let only: Vec<_> = left.iter().filter(|path| !right.contains(path)).cloned().collect();
        prop_assert_eq!(sorted(left_set.difference(&right_set).paths()), sorted(only));
        let clear: Vec<_> = left.iter().filter(|path| !right.iter().any(|gone| path.starts_with(gone))).cloned().collect();
        prop_assert_eq!(sorted(left_set.recursive_difference(&right_set).paths()), sorted(clear));
        prop_assert_eq!(set_of(&sorted(left)), left_set);
    }

    #[test]
    fn any_json_is_read_or_refused(text in "\\{(\"[fkvi]:?.{0,6}\":(\\{\\}|[0-9]|null),?){0,3}\\}") {
        if let Ok(value) = serde_json::from_str::<Value>(&text)
            && let Ok(set) = FieldSet::from_json(&value)
        {
            prop_assert_eq!(FieldSet::from_json(&set.to_json()).unwrap(), set);
        }
    }
}
