//! What must hold for any sequence of writes: owners equal those of a slow oracle over flat paths, applies are idempotent and undone.

mod common;

use common::builtin;
use kube_schema::manager::{ApplyError, FieldManager, ResetFields, one_version};
use kube_schema::openapi;
use kube_schema::path::path_text;
use kube_schema::schema::Schema;
use kube_schema::set::FieldSet;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

fn schema() -> &'static Schema {
    static SCHEMA: OnceLock<Schema> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let text = json!({"type": "string"});
        let item = json!({"type": "object", "properties": {"k": text, "v": text, "w": text}});
        let root = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "s": text,
            "m": {"type": "object", "additionalProperties": text},
            "l": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": item},
            "t": {"type": "array", "x-kubernetes-list-type": "set", "items": text},
            "a": {"type": "array", "items": text},
            "o": {"type": "object", "properties": {"p": text, "q": text}},
        }}}});
        openapi::schema(&root, builtin().find("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").unwrap(), false).unwrap()
    })
}

fn manager<T>(run: impl FnOnce(&FieldManager<'_, '_>) -> T) -> T {
    let reset = |_: &str| ResetFields::These(FieldSet::default());
    run(&FieldManager {
        of: schema().find(openapi::ROOT).unwrap(),
        api_version: "x/v1",
        kind: "Y",
        subresource: "",
        reset: &reset,
        convert: &one_version,
        now: jiff::Timestamp::UNIX_EPOCH,
    })
}

fn object(spec: &Value) -> Value {
    json!({"apiVersion": "x/v1", "kind": "Y", "metadata": {"name": "a", "uid": "1"}, "spec": spec})
}

fn text() -> impl Strategy<Value = String> {
    "[xy]"
}

fn specs() -> impl Strategy<Value = Value> {
    let names = || proptest::sample::subsequence(vec!["a", "b", "c"], 0..=3).prop_shuffle();
    let maps = prop::collection::btree_map("[ab]", text(), 0..3);
    let items = (names(), prop::collection::vec(prop::option::of(text()), 3), prop::option::of(text()));
    let list = items.prop_map(|(names, values, w)| -> Value {
        let item = |(name, value): (&str, Option<String>)| {
            let mut item = json!({"k": name});
            value.into_iter().for_each(|value| item["v"] = value.into());
            w.iter().for_each(|w| item["w"] = w.as_str().into());
            item
        };
        names.into_iter().zip(values).map(item).collect()
    });
    let atomic = prop::collection::vec(text(), 0..3).prop_map(|items| json!(items));
    let inner = (prop::option::of(text()), prop::option::of(text())).prop_map(|(p, q)| -> Value {
        let both = [("p", p), ("q", q)];
        Value::Object(both.into_iter().filter_map(|(name, value)| Some((name.to_string(), value?.into()))).collect())
    });
    let some = prop::option::of::<BoxedStrategy<Value>>;
    let parts = (
        some(text().prop_map(Value::from).boxed()),
        some(maps.prop_map(|map| json!(map)).boxed()),
        some(list.boxed()),
        some(names().prop_map(|names| json!(names)).boxed()),
        some(atomic.boxed()),
        some(inner.boxed()),
    );
    parts.prop_map(|(s, m, l, t, a, o)| {
        let parts = [("s", s), ("m", m), ("l", l), ("t", t), ("a", a), ("o", o)];
        Value::Object(parts.into_iter().filter_map(|(name, value)| Some((name.to_string(), value?))).collect())
    })
}

#[derive(Clone, Debug)]
enum Write {
    Update(&'static str, Value),
    Apply(&'static str, Value, bool),
}

fn writes() -> impl Strategy<Value = Vec<Write>> {
    let names = || prop::sample::select(vec!["one", "two", "three"]);
    let write = prop_oneof![
        (names(), specs()).prop_map(|(name, spec)| Write::Update(name, spec)),
        (names(), specs(), any::<bool>()).prop_map(|(name, spec, force)| Write::Apply(name, spec, force)),
    ];
    prop::collection::vec(write, 1..7)
}

/// Every path of a spec with its value where it is a leaf; written for this schema alone.
fn flat(spec: &Value) -> BTreeMap<String, Option<Value>> {
    if spec.is_null() {
        return BTreeMap::new();
    }
    let mut paths = BTreeMap::from([(".spec".to_string(), None)]);
    if spec.as_object().is_some_and(Map::is_empty) {
        paths.insert(".spec".into(), Some(spec.clone()));
    }
    for (name, value) in spec.as_object().unwrap() {
        let path = format!(".spec.{name}");
        let empty = value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty);
        let leaf = empty || name == "s" || name == "a";
        paths.insert(path.clone(), leaf.then(|| value.clone()));
        match name.as_str() {
            "m" | "o" => {
                value.as_object().unwrap().iter().for_each(|(name, value)| drop(paths.insert(format!("{path}.{name}"), Some(value.clone()))))
            }
            "t" => value.as_array().unwrap().iter().for_each(|item| drop(paths.insert(format!("{path}[={item}]"), Some(item.clone())))),
            "l" => {
                for item in value.as_array().unwrap() {
                    let at = format!("{path}[k={}]", item["k"]);
                    item.as_object().unwrap().iter().for_each(|(name, value)| drop(paths.insert(format!("{at}.{name}"), Some(value.clone()))));
                    paths.insert(at, None);
                }
            }
            _ => {}
        }
    }
    paths
}

/// What an applied spec owns: leaves, items, members of maps; not the structs and lists around them.
fn applied(spec: &Value) -> BTreeSet<String> {
    let containers = [".spec", ".spec.m", ".spec.l", ".spec.t", ".spec.o"];
    let empty_map = |value: &Option<Value>| value.as_ref().is_some_and(|value| value.as_object().is_some_and(Map::is_empty));
    flat(spec).into_iter().filter(|(path, value)| !containers.contains(&path.as_str()) || empty_map(value)).map(|(path, _)| path).collect()
}

type Owners = BTreeMap<(String, String), BTreeSet<String>>;

fn owners(object: &Value) -> Owners {
    let mut owners = Owners::new();
    for entry in object["metadata"]["managedFields"].as_array().into_iter().flatten() {
        let set = FieldSet::from_json(&entry["fieldsV1"]).unwrap();
        let paths = set.paths().iter().map(|path| path_text(path)).collect();
        owners.insert((entry["manager"].as_str().unwrap().into(), entry["operation"].as_str().unwrap().into()), paths);
    }
    owners
}

/// Who owns what after a write that turned `old` into `new`; none when it is a conflict.
fn expected(before: &Owners, old: &Value, new: &Value, write: &Write) -> Option<Owners> {
    let (old, new) = (flat(old), flat(new));
    let differs = |(path, value): &(&String, &Option<Value>)| match old.get(*path) {
        None => true,
        Some(other) => value.is_some() && other.is_some() && other != *value,
    };
    let changed: BTreeSet<String> = new.iter().filter(differs).map(|(path, _)| path.clone()).collect();
    let removed: BTreeSet<String> = old.keys().filter(|path| !new.contains_key(*path)).cloned().collect();
    let (writer, force) = match write {
        Write::Update(name, _) => ((name.to_string(), "Update".to_string()), true),
        Write::Apply(name, _, force) => ((name.to_string(), "Apply".to_string()), *force),
    };
    let mut after = before.clone();
    for (owner, paths) in &mut after {
        // An update is compared with its own earlier entry too: what it removed is gone there.
        if *owner == writer && matches!(write, Write::Apply(..)) {
            continue;
        }
        if !force && paths.intersection(&changed).next().is_some() {
            return None;
        }
        paths.retain(|path| !changed.contains(path) && !removed.contains(path));
    }
    match write {
        Write::Update(..) => after.entry(writer).or_default().extend(changed),
        Write::Apply(_, config, _) => drop(after.insert(writer, applied(config))),
    }
    after.retain(|_, paths| !paths.is_empty());
    Some(after)
}

/// What the result of an apply must have and must not have, from flat paths alone.
fn check_applied(before: &Owners, old: &Value, new: &Value, name: &str, config: &Value) -> Result<(), TestCaseError> {
    let (old, new, wanted) = (flat(old), flat(new), flat(config));
    let owned = applied(config);
    for (path, value) in wanted.iter().filter(|(path, value)| owned.contains(*path) && value.as_ref().is_some_and(Value::is_string)) {
        prop_assert_eq!(new.get(path), Some(value), "applied {} is there", path);
    }
    let last = before.get(&(name.to_string(), "Apply".to_string())).cloned().unwrap_or_default();
    let others: BTreeSet<&String> = before.iter().filter(|(owner, _)| owner.1 != "Apply" || owner.0 != name).flat_map(|(_, paths)| paths).collect();
    for path in old.keys() {
        let gone_with_item = last.iter().any(|item| path.starts_with(item.as_str()) && !owned.contains(item) && !others.contains(item));
        let value = old[path].as_ref().filter(|value| value.is_string());
        if value.is_some() && others.contains(path) && !gone_with_item {
            prop_assert!(new.contains_key(path), "{} of others stays", path);
        }
        if last.contains(path) && !owned.contains(path) && !others.contains(path) && !others.iter().any(|other| other.starts_with(path.as_str())) {
            let below = owned.iter().any(|own| own.starts_with(path.as_str()));
            prop_assert!(below || !new.contains_key(path), "{} is no longer applied", path);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn owners_equal_those_of_the_oracle(first in specs(), writes in writes()) {
        let mut live = object(&first);
        manager(|fields| fields.update(None, &mut live, "creator"));
        for write in writes {
            let before = owners(&live);
            let next = match &write {
                Write::Update(name, spec) => {
                    let mut new = object(spec);
                    new["metadata"]["managedFields"] = live["metadata"]["managedFields"].clone();
                    manager(|fields| fields.update(Some(&live), &mut new, name));
                    Ok(new)
                }
                Write::Apply(name, spec, force) => {
                    let mut config = object(spec);
                    config["metadata"].as_object_mut().unwrap().shift_remove("uid");
                    manager(|fields| fields.apply(Some(&live), &config, name, *force))
                }
            };
            match next {
                Ok(next) => {
                    if let Write::Apply(name, config, _) = &write {
                        check_applied(&before, &live["spec"], &next["spec"], name, config)?;
                    }
                    if !before.is_empty() || matches!(write, Write::Apply(..)) {
                        prop_assert_eq!(Some(owners(&next)), expected(&before, &live["spec"], &next["spec"], &write), "{:?}", write);
                    }
                    live = next;
                }
                Err(ApplyError::Conflicts(conflicts)) => {
                    let Write::Apply(name, config, _) = &write else { unreachable!() };
                    for conflict in conflicts.0 {
                        let path = conflict.field();
                        prop_assert!(flat(config).contains_key(&path) && flat(&live["spec"]).get(&path) != flat(config).get(&path), "{}", path);
                        prop_assert!(conflict.manager.manager != *name || conflict.message().contains(" using "));
                    }
                }
                Err(error) => prop_assert!(false, "{error:?}"),
            }
        }
    }

    #[test]
    fn applying_twice_is_applying_once(first in specs(), spec in specs()) {
        let mut live = object(&first);
        manager(|fields| fields.update(None, &mut live, "creator"));
        let once = manager(|fields| fields.apply(Some(&live), &object(&spec), "one", true)).unwrap();
        let twice = manager(|fields| fields.apply(Some(&once), &object(&spec), "one", true)).unwrap();
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn applying_and_applying_nothing_leaves_what_was_there(first in specs(), spec in specs()) {
        let mut live = object(&first);
        manager(|fields| fields.update(None, &mut live, "creator"));
        let Ok(applied) = manager(|fields| fields.apply(Some(&live), &object(&spec), "one", false)) else { return Ok(()) };
        let left = manager(|fields| fields.apply(Some(&applied), &object(&json!({})), "one", false)).unwrap();
        for (path, value) in flat(&live["spec"]).into_iter().filter(|(_, value)| value.as_ref().is_some_and(Value::is_string)) {
            prop_assert_eq!(flat(&left["spec"]).get(&path).cloned(), Some(value), "{} stays", path);
        }
        let one = owners(&left).remove(&("one".into(), "Apply".into())).unwrap_or_default();
        prop_assert!(one.iter().all(|path| path == ".spec"), "{one:?}");
    }
}

const TYPES: &str = "Meta
 labels map[string]string {}string omitempty
 finalizers []string []string omitempty list:set patch:merge
 managedFields []Entry []extension omitempty list:atomic
Item
 name string string
 port int32 int32
 ports []Item []@Item omitempty list:map,name,port patch:merge key:name
 any RawExtension extension omitempty
Root
 kind string string omitempty
 apiVersion string string omitempty
 metadata Meta @Meta omitempty
 items []Item []@Item list:map,name patch:merge key:name
 one Item @Item ptr omitempty map:atomic
";

/// JSON with members that mean something, in places where they do and where they do not.
fn documents() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![Just(Value::Null), any::<bool>().prop_map(Value::from), (-1..3_i64).prop_map(Value::from), "[a-b]?".prop_map(Value::from)];
    leaf.prop_recursive(5, 40, 5, |inner| {
        let names = "name|port|ports|any|items|one|metadata|labels|finalizers|a|\\$patch|f:a|\\$setElementOrder/items|\\$retainKeys";
        prop_oneof![
            3 => prop::collection::btree_map(names, inner.clone(), 0..5).prop_map(|members| Value::Object(members.into_iter().collect())),
            1 => prop::collection::vec(inner, 0..4).prop_map(Value::Array),
        ]
    })
}

fn owned_documents() -> impl Strategy<Value = Value> {
    (documents(), documents(), any::<bool>()).prop_map(|(mut object, fields, apply)| {
        let operation = if apply { "Apply" } else { "Update" };
        let entry = json!({"manager": "kubectl", "operation": operation, "apiVersion": "x/v1", "fieldsType": "FieldsV1", "fieldsV1": fields});
        if let Some(meta) = object.pointer_mut("/metadata").and_then(Value::as_object_mut) {
            meta.insert("managedFields".into(), json!([entry]));
        }
        object
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn any_documents_are_applied_or_refused(live in owned_documents(), mut config in documents()) {
        let schema = kube_schema::facts::schema(TYPES, &[]).unwrap();
        if let Some(members) = config.as_object_mut() {
            members.insert("apiVersion".into(), "x/v1".into());
            members.insert("kind".into(), "Y".into());
        }
        let reset = |_: &str| ResetFields::These(FieldSet::default());
        for of in [schema.find("Root").unwrap(), schema.type_at(Schema::DEDUCED)] {
            let now = jiff::Timestamp::UNIX_EPOCH;
            let fields = FieldManager { of, api_version: "x/v1", kind: "Y", subresource: "", reset: &reset, convert: &one_version, now };
            let mut updated = config.clone();
            fields.update(Some(&live), &mut updated, "one");
            let _ = kube_schema::strategic::apply(of, &live, &config);
            if let Ok(once) = fields.apply(Some(&live), &config, "kubectl", true) {
                prop_assert!(fields.apply(Some(&once), &config, "kubectl", true).is_ok());
            }
        }
    }
}
