//! Patches against upstream's documented behaviour, and against what must hold for any object.

use super::*;
use proptest::prelude::*;
use serde_json::json;

#[test]
fn json_patches_apply_or_say_why_not() {
    let object = json!({"metadata": {"labels": {"a": "1"}}, "list": [1, 2]});
    let good = json!([
        {"op": "test", "path": "/metadata/labels/a", "value": "1"},
        {"op": "add", "path": "/metadata/labels/b~1c", "value": "2"},
        {"op": "remove", "path": "/list/0"},
        {"op": "add", "path": "/list/-", "value": 3},
    ]);
    assert_eq!(json(&object, &good).unwrap(), json!({"metadata": {"labels": {"a": "1", "b/c": "2"}}, "list": [2, 3]}));
    let cases = [
        (json!({}), "json: cannot unmarshal object into Go value of type jsonpatch.Patch"),
        (json!([{"op": "test", "path": "/list", "value": []}]), "testing path /list failed: test failed"),
        (json!([{"op": "remove", "path": "/x"}]), "remove operation does not apply: doc is missing path: \"/x\": missing value"),
        (json!([{"op": "replace", "path": "/x", "value": 1}]), "replace operation does not apply: doc is missing key: /x: missing value"),
        (json!([{"op": "add", "path": "/x/y", "value": 1}]), "add operation does not apply: doc is missing path: \"/x/y\": missing value"),
        (json!([{"op": "jump", "path": "/x"}]), "Unexpected kind: jump"),
    ];
    for (patch, expected) in cases {
        assert_eq!(json(&object, &patch).unwrap_err().to_string(), expected);
    }
}

/// As evanphx/json-patch has it: a member that is not there is null, a parent or an item is not.
#[test]
fn a_test_for_null_finds_absent_members() {
    let object = json!({"metadata": {"a/b": 1, "null": null}, "list": [1]});
    let test = |path: &str, value: Value| json(&object, &json!([{"op": "test", "path": path, "value": value}])).is_ok();
    for (path, expected) in [
        ("/metadata/finalizers", true),
        ("/metadata/null", true),
        ("/none", true),
        ("/metadata/a~1b", false),
        ("/none/finalizers", false),
        ("/list/1", false),
        ("/list/0", false),
    ] {
        assert_eq!(test(path, Value::Null), expected, "{path}");
    }
    assert!(!test("/metadata/finalizers", json!([])));
    let first = json!([{"op": "test", "path": "/metadata/finalizers", "value": null}, {"op": "add", "path": "/metadata/finalizers", "value": ["f"]}]);
    assert_eq!(json(&object, &first).unwrap()["metadata"]["finalizers"], json!(["f"]));
}

#[test]
fn merge_patches_replace_lists_and_delete_by_null() {
    let object = json!({"a": {"b": 1, "c": [1, 2]}, "d": 1});
    assert_eq!(merge(&object, &json!({"a": {"c": [3], "b": null}, "e": {"f": null}})), json!({"a": {"c": [3]}, "d": 1, "e": {}}));
}

#[test]
fn copies_are_bounded() {
    let object = json!({"a": "x".repeat(1 << 20)});
    let copies: Vec<Value> = (0..8).map(|index| json!({"op": "copy", "from": "", "path": format!("/c{index}")})).collect();
    let error = json(&object, &copies.into()).unwrap_err();
    assert!(error.to_string().starts_with("Unable to complete the copy, the accumulated size increase of copy is"), "{error}");
    let operations = json!([{"op": "test", "path": "/a", "value": 1}]);
    let many: Vec<Value> = vec![operations[0].clone(); 10_001];
    assert!(matches!(json(&object, &many.into()), Err(PatchError::TooLarge(_))));
    assert!(matches!(json(&object, &json!([1])), Err(PatchError::Malformed(_))));
}

#[test]
fn nesting_is_bounded_after_each_operation() {
    let deep = |count: usize| -> Value { (0..count).map(|_| json!({"op": "move", "from": "/a", "path": "/b"})).collect() };
    assert!(json(&json!({"a": 1}), &deep(1)).is_ok());
    // Each pair wraps everything once more.
    let wrap = |copies: usize| -> Value {
        (0..copies)
            .flat_map(|_| {
                [
                    json!({"op": "copy", "from": "/a", "path": "/b"}),
                    json!({"op": "add", "path": "/a", "value": {}}),
                    json!({"op": "move", "from": "/b", "path": "/a/a"}),
                ]
            })
            .collect()
    };
    assert!(json(&json!({"a": {}}), &wrap(50)).is_ok());
    let error = json(&json!({"a": {}}), &wrap(3_000)).unwrap_err();
    assert_eq!(error.to_string(), "move operation does not apply: exceeded max depth");
    let into_itself: Vec<Value> = (0..1_000).map(|level| json!({"op": "add", "path": "/a".repeat(level + 1), "value": {}})).collect();
    assert!(json(&json!({}), &into_itself.into()).unwrap_err().to_string().ends_with("exceeded max depth"));
    let doubled: Vec<Value> = (0..1_000).map(|level| json!({"op": "copy", "from": "", "path": format!("/c{level}")})).collect();
    assert!(json(&json!({}), &doubled.into()).is_err());
}

/// RFC 7396, section 2, as it stands there.
fn rfc_7396(target: Option<Value>, patch: &Value) -> Value {
    let Value::Object(changes) = patch else { return patch.clone() };
    let mut target = match target {
        Some(Value::Object(members)) => members,
        _ => serde_json::Map::new(),
    };
    for (name, change) in changes {
        if change.is_null() {
            target.remove(name);
        } else {
            let merged = rfc_7396(target.get(name).cloned(), change);
            target.insert(name.clone(), merged);
        }
    }
    target.into()
}

fn documents() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![Just(Value::Null), any::<bool>().prop_map(Value::from), (-1..3_i64).prop_map(Value::from), "[a-b]?".prop_map(Value::from)];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            3 => prop::collection::btree_map("[a-d]", inner.clone(), 0..4).prop_map(|members| Value::Object(members.into_iter().collect())),
            1 => prop::collection::vec(inner, 0..3).prop_map(Value::Array),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn merge_patches_merge_as_the_rfc_says(object in documents(), patch in documents()) {
        prop_assert_eq!(merge(&object, &patch), rfc_7396(Some(object), &patch));
    }
}
