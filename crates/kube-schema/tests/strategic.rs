//! Strategic merge patches against upstream's documented behaviour, and against what must hold for any object.

mod common;

use common::builtin;
use kube_schema::strategic::{self, Malformed};
use proptest::prelude::*;
use serde_json::{Value, json};

fn patch(name: &str, object: &Value, patch: &Value) -> Result<Value, Malformed> {
    strategic::apply(builtin().find(name).unwrap(), object, patch)
}

const POD: &str = "io.k8s.api.core.v1.Pod";

fn pod(spec: Value, change: Value) -> Result<Value, String> {
    patch(POD, &json!({"spec": spec}), &json!({"spec": change})).map(|mut patched| patched["spec"].take()).map_err(|error| error.to_string())
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
    for (name, change, expected) in cases {
        assert_eq!(pod(containers.clone(), change).unwrap(), expected, "{name}");
    }
}

#[test]
fn lists_without_strategy_are_replaced() {
    let spec = json!({"tolerations": [{"key": "a"}], "containers": [{"name": "a", "command": ["x", "y"]}]});
    let change = json!({"tolerations": [{"key": "b"}], "containers": [{"name": "a", "command": ["z"]}]});
    assert_eq!(pod(spec, change.clone()).unwrap(), change);
}

#[test]
fn lists_of_scalars_are_sets() {
    let info = POD;
    let object = json!({"metadata": {"finalizers": ["a", "b", "c"]}});
    let patched = |change: Value| patch(info, &object, &json!({"metadata": change})).unwrap()["metadata"]["finalizers"].clone();
    assert_eq!(patched(json!({"finalizers": ["d", "a"]})), json!(["d", "a", "b", "c"]));
    assert_eq!(patched(json!({"$deleteFromPrimitiveList/finalizers": ["b", "x"]})), json!(["a", "c"]));
    let both = json!({"$setElementOrder/finalizers": ["c", "d", "a"], "finalizers": ["d"], "$deleteFromPrimitiveList/finalizers": ["b"]});
    assert_eq!(patched(both), json!(["c", "d", "a"]));
}

#[test]
fn retained_keys_clear_the_others() {
    let info = "io.k8s.api.apps.v1.Deployment";
    let object = json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}});
    let change = json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}});
    assert_eq!(patch(info, &object, &change).unwrap(), json!({"spec": {"strategy": {"type": "Recreate"}}}));
    let wrong = json!({"spec": {"strategy": {"$retainKeys": ["type"], "rollingUpdate": {}}}});
    assert_eq!(patch(info, &object, &wrong).unwrap_err().to_string(), "invalid patch format of retainKeys");
    let volumes = json!({"volumes": [{"name": "v", "emptyDir": {}}]});
    let changed = json!({"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]});
    assert_eq!(pod(volumes, changed).unwrap(), json!({"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}));
}

#[test]
fn service_ports_merge_by_port() {
    let info = "io.k8s.api.core.v1.Service";
    let object = json!({"spec": {"ports": [{"port": 80, "nodePort": 30080}]}});
    let change = json!({"spec": {"$setElementOrder/ports": [{"port": 80}, {"port": 443}], "ports": [{"port": 443}, {"port": 80, "name": "web"}]}});
    // The patch's own order contradicts the directive.
    assert!(patch(info, &object, &change).unwrap_err().to_string().starts_with("The order in patch list:\n[map[port:443]"));
    let change = json!({"spec": {"$setElementOrder/ports": [{"port": 443}, {"port": 80}], "ports": [{"port": 443}, {"port": 80, "name": "web"}]}});
    let patched = patch(info, &object, &change).unwrap();
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
    for (change, expected) in cases {
        assert_eq!(pod(spec.clone(), change).unwrap_err(), expected);
    }
    let info = POD;
    assert_eq!(
        patch(info, &json!({"spec": {"foo": {}}}), &json!({"spec": {"foo": {}}})).unwrap_err().to_string(),
        "unable to find api field in struct PodSpec for the json field \"foo\""
    );
    assert_eq!(patch(info, &json!({}), &json!([])).unwrap_err(), Malformed("invalid JSON document".into()));
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
        prop_assert_eq!(pod(spec.clone(), spec.clone()).unwrap(), spec);
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

/// Pods whose lists merge by `name`, inside of each other too.
fn nested_specs() -> impl Strategy<Value = Value> {
    let names = || proptest::sample::subsequence(vec!["a", "b", "c"], 0..=3).prop_shuffle();
    let env = (names(), "[xy]").prop_map(|(names, value)| names.iter().map(|name| json!({"name": name, "value": value})).collect::<Vec<_>>());
    let container = |name: &'static str, (image, env, command): (Option<String>, Vec<Value>, Option<Vec<String>>)| {
        let mut container = json!({"name": name, "env": env});
        image.into_iter().for_each(|image| container["image"] = image.into());
        command.into_iter().for_each(|command| container["command"] = json!(command));
        container
    };
    let parts = (prop::option::of("[xy]"), env, prop::option::of(prop::collection::vec("[xy]", 0..3)));
    let containers = (names(), prop::collection::vec(parts, 3))
        .prop_map(move |(names, parts)| -> Value { names.into_iter().zip(parts).map(|(name, parts)| container(name, parts)).collect() });
    (containers, prop::option::of("[xy]"), names()).prop_map(|(containers, node, keys)| {
        let mut spec = json!({"containers": containers, "tolerations": keys.iter().map(|key| json!({"key": key})).collect::<Vec<_>>()});
        node.into_iter().for_each(|node| spec["nodeName"] = node.into());
        spec
    })
}

/// Patches of such pods, with what takes away: nulls, `$patch: delete` of items, `$patch: replace` of lists.
fn nested_patches() -> impl Strategy<Value = Value> {
    (nested_specs(), prop::collection::vec(0..6_u8, 12)).prop_map(|(mut patch, choices)| {
        let mut choices = choices.into_iter();
        let mut choose = move || choices.next().unwrap_or_default();
        if choose() == 0 {
            patch["nodeName"] = Value::Null;
        }
        match choose() {
            0 => drop(patch.as_object_mut().unwrap().remove("tolerations")),
            1 => {
                // What replaces a list is taken as it stands, so it has no directives of its own.
                patch["containers"].as_array_mut().unwrap().push(json!({"$patch": "replace"}));
                return patch;
            }
            _ => {}
        }
        for container in patch["containers"].as_array_mut().unwrap() {
            match choose() {
                0 => *container = json!({"name": container["name"], "$patch": "delete"}),
                1 => container["image"] = Value::Null,
                2 => container["env"] = Value::Null,
                3 => container["env"].as_array_mut().unwrap().push(json!({"$patch": "replace"})),
                _ => {}
            }
        }
        patch
    })
}

/// What a patch makes of an object, where lists of objects with a name are maps by it: written for these pods alone.
fn oracle(object: Option<&Value>, patch: &Value) -> Value {
    match (object, patch) {
        (_, Value::Object(changes)) => {
            let mut merged = object.and_then(Value::as_object).cloned().unwrap_or_default();
            for (name, change) in changes {
                match change {
                    Value::Null => drop(merged.remove(name)),
                    _ => drop(merged.insert(name.clone(), oracle(merged.get(name), change))),
                }
            }
            merged.into()
        }
        (_, Value::Array(items)) if items.iter().any(|item| item.get("name").is_some() || item.get("$patch").is_some()) => {
            let replaces = items.iter().any(|item| *item == json!({"$patch": "replace"}));
            let mut merged = if replaces { Vec::new() } else { object.and_then(Value::as_array).cloned().unwrap_or_default() };
            for item in items.iter().filter(|item| item.get("name").is_some()) {
                let present = merged.iter().position(|own| own["name"] == item["name"]);
                let old = present.map(|index| merged.remove(index));
                if item.get("$patch").is_none() {
                    merged.push(oracle(old.as_ref(), item));
                }
            }
            merged.into()
        }
        // An empty list adds nothing to a list by name.
        (Some(Value::Array(old)), Value::Array(items)) if items.is_empty() && old.iter().all(|item| item.get("name").is_some()) => old.clone().into(),
        _ => patch.clone(),
    }
}

/// The same with lists of named objects in the order of their names, and without nulls: decoding drops those that a new item brings.
fn in_order(mut value: Value) -> Value {
    match &mut value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(|member| *member = in_order(member.take()));
        }
        Value::Array(items) => {
            items.iter_mut().for_each(|item| *item = in_order(item.take()));
            items.sort_by_key(|item| item["name"].as_str().unwrap_or_default().to_string());
        }
        _ => {}
    }
    value
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn patches_merge_as_the_oracle_says(spec in nested_specs(), mut change in nested_patches()) {
        // A new item is taken as it stands, so it has no directives of its own.
        let names: Vec<Value> = spec["containers"].as_array().unwrap().iter().map(|container| container["name"].clone()).collect();
        for container in change["containers"].as_array_mut().unwrap().iter_mut().filter(|container| !names.contains(&container["name"])) {
            container.get_mut("env").and_then(Value::as_array_mut).into_iter().for_each(|env| env.retain(|item| item.get("$patch").is_none()));
        }
        let expected = in_order(oracle(Some(&spec), &change));
        prop_assert_eq!(pod(spec.clone(), change.clone()).map(in_order), Ok(expected), "{} with {}", spec, change);
    }
}

#[test]
fn hostile_patches_are_refused() {
    let mut deep = json!({});
    for _ in 0..300 {
        deep = json!({"a": deep});
    }
    assert_eq!(pod(json!({}), deep).unwrap_err(), "exceeded max depth");
}
