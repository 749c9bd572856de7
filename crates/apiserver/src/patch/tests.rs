//! Patches against upstream's documented behaviour, and against what must hold for any object.

use super::*;
use crate::kinds::by_resource;
use proptest::prelude::*;
use serde_json::json;

fn pod(spec: Value, patch: Value) -> Result<Value, String> {
    let info = by_resource("", "v1", "pods").unwrap();
    strategic(info, &json!({"spec": spec}), &json!({"spec": patch})).map(|mut patched| patched["spec"].take()).map_err(|error| error.to_string())
}

#[test]
fn strategic_patches_follow_the_merge_keys() {
    let containers = json!({"containers": [{"name": "a", "image": "x", "env": [{"name": "E", "value": "1"}]}, {"name": "b", "image": "y"}]});
    let cases = [
        (
            "objects merge by key, recursively",
            json!({"containers": [{"name": "a", "env": [{"name": "F", "value": "2"}]}]}),
            json!({"containers": [{"name": "a", "image": "x", "env": [{"name": "F", "value": "2"}, {"name": "E", "value": "1"}]}, {"name": "b", "image": "y"}]}),
        ),
        (
            "an unknown key is added before what the patch does not name",
            json!({"containers": [{"name": "c", "image": "z"}]}),
            json!({"containers": [{"name": "c", "image": "z"}, containers["containers"][0], containers["containers"][1]]}),
        ),
        (
            "delete takes an item out",
            json!({"containers": [{"name": "a", "$patch": "delete"}]}),
            json!({"containers": [{"name": "b", "image": "y"}]}),
        ),
        ("replace takes the whole list", json!({"containers": [{"name": "c"}, {"$patch": "replace"}]}), json!({"containers": [{"name": "c"}]})),
        (
            "the order directive sorts",
            json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}], "containers": [{"name": "a", "image": "n"}]}),
            json!({"containers": [
                {"name": "b", "image": "y"},
                {"name": "a", "image": "n", "env": [{"name": "E", "value": "1"}]},
            ]}),
        ),
        (
            "null deletes a member",
            json!({"containers": [{"name": "a", "env": null}]}),
            json!({"containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "y"}]}),
        ),
        ("an object can be replaced", json!({"$patch": "replace", "nodeName": "n"}), json!({"nodeName": "n"})),
        ("an object can be emptied", json!({"$patch": "delete"}), json!({})),
    ];
    for (name, patch, expected) in cases {
        assert_eq!(pod(containers.clone(), patch).unwrap(), expected, "{name}");
    }
}

#[test]
fn lists_without_strategy_are_replaced() {
    let spec = json!({"tolerations": [{"key": "a"}], "containers": [{"name": "a", "command": ["x", "y"]}]});
    let patch = json!({"tolerations": [{"key": "b"}], "containers": [{"name": "a", "command": ["z"]}]});
    assert_eq!(pod(spec, patch.clone()).unwrap(), patch);
}

#[test]
fn lists_of_scalars_are_sets() {
    let info = by_resource("", "v1", "pods").unwrap();
    let object = json!({"metadata": {"finalizers": ["a", "b", "c"]}});
    let patched = |patch: Value| strategic(info, &object, &json!({"metadata": patch})).unwrap()["metadata"]["finalizers"].clone();
    assert_eq!(patched(json!({"finalizers": ["d", "a"]})), json!(["d", "a", "b", "c"]));
    assert_eq!(patched(json!({"$deleteFromPrimitiveList/finalizers": ["b", "x"]})), json!(["a", "c"]));
    let both = json!({"$setElementOrder/finalizers": ["c", "d", "a"], "finalizers": ["d"], "$deleteFromPrimitiveList/finalizers": ["b"]});
    assert_eq!(patched(both), json!(["c", "d", "a"]));
}

#[test]
fn retained_keys_clear_the_others() {
    let info = by_resource("apps", "v1", "deployments").unwrap();
    let object = json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}});
    let patch = json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}});
    assert_eq!(strategic(info, &object, &patch).unwrap(), json!({"spec": {"strategy": {"type": "Recreate"}}}));
    let wrong = json!({"spec": {"strategy": {"$retainKeys": ["type"], "rollingUpdate": {}}}});
    assert_eq!(strategic(info, &object, &wrong).unwrap_err().to_string(), "invalid patch format of retainKeys");
    let volumes = json!({"volumes": [{"name": "v", "emptyDir": {}}]});
    let changed = json!({"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]});
    assert_eq!(pod(volumes, changed).unwrap(), json!({"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}));
}

#[test]
fn service_ports_merge_by_port() {
    let info = by_resource("", "v1", "services").unwrap();
    let object = json!({"spec": {"ports": [{"port": 80, "nodePort": 30080}]}});
    let patch = json!({"spec": {"$setElementOrder/ports": [{"port": 80}, {"port": 443}], "ports": [{"port": 443}, {"port": 80, "name": "web"}]}});
    // The patch's own order contradicts the directive.
    assert!(strategic(info, &object, &patch).unwrap_err().to_string().starts_with("The order in patch list:\n[map[port:443]"));
    let patch = json!({"spec": {"$setElementOrder/ports": [{"port": 443}, {"port": 80}], "ports": [{"port": 443}, {"port": 80, "name": "web"}]}});
    let patched = strategic(info, &object, &patch).unwrap();
    assert_eq!(patched["spec"]["ports"], json!([{"port": 443}, {"port": 80, "nodePort": 30080, "name": "web"}]));
}

#[test]
fn wrong_strategic_patches_are_named() {
    let spec = json!({"containers": [{"name": "a"}]});
    let cases = [
        (json!({"containers": [{"image": "x"}]}), "map: map[image:x] does not contain declared merge key: name"),
        (json!({"$patch": "merge"}), "unknown patch type: merge in map: map[$patch:merge]"),
        (json!({"$setElementOrder/containers": 1}), "expected a []interface {}, but received a int64"),
        (json!({"containers": [{"$patch": "delete"}]}), "map: map[$patch:delete] does not contain declared merge key: name"),
    ];
    for (patch, expected) in cases {
        assert_eq!(pod(spec.clone(), patch).unwrap_err(), expected);
    }
    let info = by_resource("", "v1", "pods").unwrap();
    assert_eq!(
        strategic(info, &json!({"spec": {"foo": {}}}), &json!({"spec": {"foo": {}}})).unwrap_err().to_string(),
        "unable to find api field in struct PodSpec for the json field \"foo\""
    );
    assert_eq!(strategic(info, &json!({}), &json!([])).unwrap_err(), PatchError::Malformed("invalid JSON document".into()));
}

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

#[test]
fn merge_patches_replace_lists_and_delete_by_null() {
    let object = json!({"a": {"b": 1, "c": [1, 2]}, "d": 1});
    assert_eq!(merge(&object, &json!({"a": {"c": [3], "b": null}, "e": {"f": null}})), json!({"a": {"c": [3]}, "d": 1, "e": {}}));
}

/// Pod specs with lists of each strategy.
fn specs() -> impl Strategy<Value = Value> {
    let names = || proptest::sample::subsequence(vec!["a", "b", "c", "d", "e"], 0..=5).prop_shuffle();
    (names(), names(), names(), "[a-z]{0,3}").prop_map(|(containers, volumes, tolerations, node)| {
        let containers: Vec<Value> = containers.iter().map(|name| json!({"name": name, "image": format!("{node}{name}")})).collect();
        let volumes: Vec<Value> = volumes.iter().map(|name| json!({"name": name, "emptyDir": {}})).collect();
        let tolerations: Vec<Value> = tolerations.iter().map(|key| json!({"key": key})).collect();
        json!({"containers": containers, "volumes": volumes, "tolerations": tolerations, "nodeName": node})
    })
}

/// The patch that kubectl would send to turn a list into another: items, deletions and the order.
fn full_patch(from: &Value, to: &Value) -> Value {
    let mut patch = to.clone();
    for list in ["containers", "volumes"] {
        let wanted = to[list].as_array().unwrap();
        let gone = from[list].as_array().unwrap().iter().filter(|item| !wanted.iter().any(|other| other["name"] == item["name"]));
        let mut items = wanted.clone();
        items.extend(gone.map(|item| json!({"name": item["name"], "$patch": "delete"})));
        patch[list] = items.into();
        patch[format!("$setElementOrder/{list}")] = wanted.iter().map(|item| json!({"name": item["name"]})).collect::<Vec<_>>().into();
    }
    patch
}

proptest! {
    #[test]
    fn a_patch_of_the_identical_object_changes_nothing(spec in specs()) {
        prop_assert_eq!(pod(spec.clone(), spec.clone()).unwrap(), spec.clone());
        prop_assert_eq!(merge(&spec, &spec), spec);
    }

    #[test]
    fn a_full_patch_leads_to_the_wanted_object(from in specs(), to in specs()) {
        prop_assert_eq!(pod(from.clone(), full_patch(&from, &to)).unwrap(), to);
    }

    #[test]
    fn what_a_patch_does_not_name_keeps_its_order(from in specs(), to in specs()) {
        let patched = pod(from.clone(), json!({"containers": to["containers"]})).unwrap();
        let names = |list: &Value| -> Vec<String> {
            list["containers"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap().to_string()).collect()
        };
        let (before, patch, after) = (names(&from), names(&to), names(&patched));
        let rest = |list: &[String]| -> Vec<String> { list.iter().filter(|name| !patch.contains(name)).cloned().collect() };
        prop_assert_eq!(rest(&before), rest(&after));
        let named: Vec<String> = after.into_iter().filter(|name| patch.contains(name)).collect();
        prop_assert_eq!(named, patch);
    }
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
