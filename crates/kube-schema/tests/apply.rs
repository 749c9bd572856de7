//! Server-side apply on the built-in kinds: owners, conflicts, removal, upgrade from client-side apply, messages.

mod common;

use common::builtin;
use kube_schema::managed::keep_times;
use kube_schema::manager::{ApplyError, FieldManager, ResetFields, manager_name, one_version};
use kube_schema::openapi;
use kube_schema::scale;
use kube_schema::schema::{Schema, Type};
use kube_schema::set::FieldSet;
use serde_json::{Value, json};

/// One object whose writes are tracked.
struct Tracked {
    object: Option<Value>,
    name: &'static str,
    api_version: &'static str,
    kind: &'static str,
    subresource: &'static str,
    /// Seconds since 1970.
    now: i64,
}

impl Tracked {
    fn deployment() -> Tracked {
        Tracked { object: None, name: "io.k8s.api.apps.v1.Deployment", api_version: "apps/v1", kind: "Deployment", subresource: "", now: 1_000 }
    }

    fn with<T>(&self, run: impl FnOnce(&FieldManager<'_, '_>) -> T) -> T {
        let reset = |_: &str| {
            ResetFields::These(match self.subresource {
                "status" => FieldSet::of_names(&[&["spec"], &["metadata", "labels"]]),
                _ => FieldSet::of_names(&[&["status"]]),
            })
        };
        run(&FieldManager {
            of: builtin().find(self.name).unwrap(),
            api_version: self.api_version,
            kind: self.kind,
            subresource: self.subresource,
            reset: &reset,
            convert: &one_version,
            now: jiff::Timestamp::from_second(self.now).unwrap(),
        })
    }

    /// Applies `members` besides version, kind and name.
    fn apply(&mut self, manager: &str, members: Value, force: bool) -> Result<Value, ApplyError> {
        let config = self.named(members);
        let mut applied = self.with(|fields| fields.apply(self.object.as_ref(), &config, manager, force))?;
        // What storage gives each object.
        applied["metadata"]["uid"] = "1".into();
        self.object = Some(applied.clone());
        Ok(applied)
    }

    /// Replaces the object, keeping what managedFields it has.
    fn update(&mut self, manager: &str, members: Value) -> Value {
        let mut new = self.named(members);
        if let Some(live) = &self.object {
            new["metadata"]["managedFields"] = live["metadata"]["managedFields"].clone();
            new["metadata"]["uid"] = "1".into();
        }
        self.with(|fields| fields.update(self.object.as_ref(), &mut new, manager));
        new["metadata"]["uid"] = "1".into();
        self.object = Some(new.clone());
        new
    }

    fn named(&self, members: Value) -> Value {
        let mut object = json!({"apiVersion": self.api_version, "kind": self.kind, "metadata": {"name": "web", "namespace": "default"}});
        for (name, value) in members.as_object().unwrap() {
            match (name.as_str(), value) {
                ("metadata", Value::Object(meta)) => {
                    meta.iter().for_each(|(name, value)| object["metadata"][name] = value.clone());
                }
                _ => object[name] = value.clone(),
            }
        }
        object
    }

    /// `MANAGER OPERATION FIELDS` of each entry.
    fn owners(&self) -> Vec<String> {
        let entries = self.object.as_ref().unwrap()["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
        entries.iter().map(|entry| format!("{} {} {}", text(&entry["manager"]), text(&entry["operation"]), entry["fieldsV1"])).collect()
    }
}

fn spec(replicas: Option<i64>, containers: Value) -> Value {
    let mut spec = json!({"selector": {"matchLabels": {"app": "web"}}, "template": {"spec": {"containers": containers}}});
    if let Some(replicas) = replicas {
        spec["replicas"] = replicas.into();
    }
    json!({"spec": spec})
}

fn web(image: &str) -> Value {
    json!({"name": "web", "image": image})
}

fn message(error: ApplyError) -> String {
    match error {
        ApplyError::Conflicts(conflicts) => conflicts.message(),
        ApplyError::BadRequest(text) | ApplyError::Internal(text) => text,
    }
}

#[test]
fn creation_by_apply_owns_what_it_applies() {
    let mut web_app = Tracked::deployment();
    web_app.apply("tool", spec(Some(1), json!([web("a")])), false).unwrap();
    assert_eq!(
        web_app.owners(),
        [
            r#"tool Apply {"f:spec":{"f:replicas":{},"f:selector":{},"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"web\"}":{".":{},"f:image":{},"f:name":{}}}}}}}"#
        ]
    );
    let entry = &web_app.object.unwrap()["metadata"]["managedFields"][0];
    assert_eq!(
        entry.as_object().unwrap().keys().collect::<Vec<_>>(),
        ["manager", "operation", "apiVersion", "time", "fieldsType", "fieldsV1"],
        "members are in upstream's order"
    );
    assert_eq!(entry["time"], "1970-01-01T00:16:40Z");
}

#[test]
fn creation_by_update_owns_what_go_would_show() {
    let mut web_app = Tracked::deployment();
    let object = spec(Some(1), json!([{"name": "web", "image": "a", "ports": [{"containerPort": 80}], "resources": {}}]));
    web_app.update("kubectl-create", json!({"metadata": {"labels": {"app": "web"}}, "spec": object["spec"]}));
    assert_eq!(
        web_app.owners(),
        [
            r#"kubectl-create Update {"f:metadata":{"f:labels":{".":{},"f:app":{}}},"f:spec":{"f:replicas":{},"f:selector":{},"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"web\"}":{".":{},"f:image":{},"f:name":{},"f:ports":{".":{},"k:{\"containerPort\":80,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{}}},"f:resources":{}}}}}}}"#
        ]
    );
}

#[test]
fn same_values_are_owned_together_and_others_conflict() {
    let mut web_app = Tracked::deployment();
    web_app.apply("one", spec(Some(1), json!([web("a")])), false).unwrap();
    web_app.apply("two", json!({"spec": {"replicas": 1}}), false).unwrap();
    let error = web_app.apply("two", json!({"spec": {"replicas": 2}}), false).unwrap_err();
    assert_eq!(message(error.clone()), "Apply failed with 1 conflict: conflict with \"one\": .spec.replicas");
    let ApplyError::Conflicts(conflicts) = error else { panic!() };
    assert_eq!((conflicts.0[0].message(), conflicts.0[0].field()), ("conflict with \"one\"".to_string(), ".spec.replicas".to_string()));
    web_app.apply("two", json!({"spec": {"replicas": 2}}), true).unwrap();
    assert!(!web_app.owners()[0].contains("f:replicas"), "force takes the field from its owner");
    assert!(web_app.owners()[1].contains("f:replicas"));
}

#[test]
fn several_conflicts_are_grouped_by_manager() {
    let mut web_app = Tracked::deployment();
    web_app.apply("b", spec(Some(1), json!([web("a")])), false).unwrap();
    web_app.now += 1;
    let mut changed = web_app.object.clone().unwrap();
    changed["metadata"]["labels"] = json!({"app": "web"});
    web_app.update("a", changed);
    let config = spec(Some(3), json!([web("b")]));
    let error = web_app.apply("c", json!({"metadata": {"labels": {"app": "x"}}, "spec": config["spec"]}), false).unwrap_err();
    assert_eq!(
        message(error),
        "Apply failed with 3 conflicts: conflicts with \"a\" using apps/v1:\n- .metadata.labels.app\nconflicts with \"b\":\n- .spec.replicas\n- .spec.template.spec.containers[name=\"web\"].image"
    );
}

#[test]
fn what_is_no_longer_applied_goes_unless_others_own_it() {
    let mut web_app = Tracked::deployment();
    let both = json!([web("a"), {"name": "side", "image": "b"}]);
    let config = spec(Some(1), both);
    web_app.apply("one", json!({"metadata": {"labels": {"a": "1", "b": "2"}}, "spec": config["spec"]}), false).unwrap();
    web_app.apply("two", json!({"metadata": {"labels": {"b": "2"}}}), false).unwrap();
    let left = web_app.apply("one", spec(None, json!([web("a")])), false).unwrap();
    assert_eq!(left["metadata"]["labels"], json!({"b": "2"}));
    assert_eq!(left["spec"].get("replicas"), None);
    assert_eq!(left["spec"]["template"]["spec"]["containers"], json!([web("a")]));
}

#[test]
fn items_of_others_stay_and_the_order_is_the_applied_one() {
    let mut web_app = Tracked::deployment();
    let container = |name: &str| json!({"name": name, "image": "i"});
    web_app.apply("one", spec(None, json!([container("a"), container("b")])), false).unwrap();
    web_app.apply("two", spec(None, json!([container("c")])), false).unwrap();
    let left = web_app.apply("one", spec(None, json!([container("b"), container("a")])), false).unwrap();
    let names: Vec<&str> =
        left["spec"]["template"]["spec"]["containers"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["b", "c", "a"]);
}

#[test]
fn default_keys_identify_items() {
    let mut web_app = Tracked::deployment();
    let ports = |port: Value| spec(None, json!([{"name": "web", "image": "a", "ports": [port]}]));
    web_app.apply("one", ports(json!({"containerPort": 80, "protocol": "TCP", "name": "http"})), false).unwrap();
    let left = web_app.apply("two", ports(json!({"containerPort": 80, "name": "http"})), false).unwrap();
    let ports = &left["spec"]["template"]["spec"]["containers"][0]["ports"];
    assert_eq!(*ports, json!([{"containerPort": 80, "protocol": "TCP", "name": "http"}]));
}

#[test]
fn atomic_lists_and_maps_have_one_owner() {
    let mut web_app = Tracked::deployment();
    let args = |args: Value| spec(None, json!([{"name": "web", "image": "a", "args": args}]));
    web_app.apply("one", args(json!(["x"])), false).unwrap();
    let error = web_app.apply("two", args(json!(["x", "y"])), false).unwrap_err();
    assert_eq!(message(error), "Apply failed with 1 conflict: conflict with \"one\": .spec.template.spec.containers[name=\"web\"].args");
    let other = json!({"spec": {"selector": {"matchLabels": {"app": "web", "b": "c"}}}});
    let error = web_app.apply("two", other, false).unwrap_err();
    assert_eq!(message(error), "Apply failed with 1 conflict: conflict with \"one\": .spec.selector");
}

#[test]
fn configurations_that_do_not_fit_are_refused_in_upstreams_words() {
    let mut web_app = Tracked::deployment();
    let prefix = "failed to create typed patch object (default/web; apps/v1, Kind=Deployment): ";
    let cases = [
        (json!({"spec": {"nope": 1}}), ".spec.nope: field not declared in schema"),
        (json!({"spec": {"replicas": "1"}}), ".spec.replicas: expected numeric (int or float), got string"),
        (json!({"metadata": {"labels": {"a": 1}}}), ".metadata.labels.a: expected string, got &value.valueUnstructured{Value:1}"),
        (json!({"spec": {"paused": "x"}}), ".spec.paused: expected boolean, got &{x}"),
        (json!({"spec": {"template": []}}), ".spec.template: expected map, got &{[]}"),
        (spec(None, json!([web("a"), web("b")])), ".spec.template.spec.containers: duplicate entries for key [name=\"web\"]"),
        (json!({"spec": {"template": {"spec": {"containers": {"a": 1}}}}}), ".spec.template.spec.containers: expected list, got &{map[a:1]}"),
        (
            json!({"metadata": {"finalizers": [{}]}}),
            ".metadata.finalizers: element 0: associative list without keys has an element that's a map type",
        ),
    ];
    for (config, text) in cases {
        assert_eq!(message(web_app.apply("one", config, false).unwrap_err()), format!("{prefix}{text}"));
    }
    let owned = json!({"metadata": {"managedFields": []}});
    assert_eq!(web_app.apply("one", owned, false), Err(ApplyError::BadRequest("metadata.managedFields must be nil".into())));
    let other = web_app.with(|fields| fields.apply(None, &json!({"apiVersion": "v1", "kind": "Pod"}), "one", false));
    assert_eq!(other, Err(ApplyError::BadRequest("invalid object type: /v1, Kind=Pod".into())));
}

#[test]
fn owners_from_before_the_first_apply_are_one_entry() {
    let mut web_app = Tracked::deployment();
    web_app.object = Some(web_app.named(spec(Some(1), json!([web("a")]))));
    web_app.object.as_mut().unwrap()["metadata"]["uid"] = "1".into();
    web_app.update("late", spec(Some(2), json!([web("a")])));
    assert_eq!(web_app.owners(), Vec::<String>::new(), "an object without owners is not tracked");
    let error = web_app.apply("tool", json!({"spec": {"replicas": 3}}), false).unwrap_err();
    assert_eq!(message(error), "Apply failed with 1 conflict: conflict with \"before-first-apply\" using apps/v1: .spec.replicas");
}

#[test]
fn kubectl_takes_over_what_client_side_apply_owned() {
    let annotation = "kubectl.kubernetes.io/last-applied-configuration";
    let config = spec(Some(1), json!([web("a")]));
    let tracked = Tracked::deployment();
    let last = tracked.named(config.clone()).to_string();
    let live = json!({"metadata": {"annotations": {annotation: last}}, "spec": config["spec"]});
    let mut web_app = Tracked::deployment();
    web_app.update("kubectl-client-side-apply", live.clone());
    let next = spec(Some(2), json!([web("a")]));
    let error = web_app.apply("other", next.clone(), false).unwrap_err();
    assert!(message(error).contains("kubectl-client-side-apply"), "only kubectl upgrades");
    let applied = web_app.apply("kubectl", next.clone(), false).unwrap();
    assert_eq!(applied["spec"]["replicas"], 2);
    let text = applied["metadata"]["annotations"][annotation].as_str().unwrap();
    assert!(text.ends_with("}\n"), "as Go's encoder writes it");
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), web_app.named(next), "the annotation is up to date");

    let mut changed = Tracked::deployment();
    changed.update("kubectl-client-side-apply", live.clone());
    let mut scaled = live;
    scaled["spec"]["replicas"] = 7.into();
    changed.update("scaler", scaled);
    let error = changed.apply("kubectl", spec(Some(2), json!([web("b")])), false).unwrap_err();
    assert_eq!(message(error), "Apply failed with 1 conflict: conflict with \"scaler\" using apps/v1: .spec.replicas");
}

#[test]
fn an_apply_that_changes_nothing_keeps_its_time() {
    let mut web_app = Tracked::deployment();
    let first = web_app.apply("one", spec(Some(1), json!([web("a")])), false).unwrap();
    web_app.now += 60;
    let second = web_app.apply("one", spec(Some(1), json!([web("a")])), false).unwrap();
    assert_eq!(first, second);
    let mut later = second.clone();
    later["metadata"]["managedFields"][0]["time"] = "2020-01-01T00:00:00Z".into();
    keep_times(&second, &mut later);
    assert_eq!(later, second);
    later["metadata"]["managedFields"][0]["time"] = "2020-01-01T00:00:00Z".into();
    later["spec"]["replicas"] = 9.into();
    keep_times(&second, &mut later);
    assert_eq!(later["metadata"]["managedFields"][0]["time"], "2020-01-01T00:00:00Z");
}

#[test]
fn an_apply_that_changes_nothing_keeps_its_time_among_other_managers() {
    let mut web_app = Tracked::deployment();
    let only = |label: &str| json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "labels": {label: "yes"}}});
    web_app.apply("one", spec(Some(1), json!([web("a")])), false).unwrap();
    web_app.now += 60;
    let both = web_app.apply("two", only("two"), false).unwrap();
    let mut later = both.clone();
    later["metadata"]["managedFields"][0]["time"] = "2099-01-01T00:00:00Z".into();
    later["metadata"]["managedFields"].as_array_mut().unwrap().reverse();
    keep_times(&both, &mut later);
    assert_eq!(later, both, "entries are sorted by time: a later one stands behind the others");
}

#[test]
fn an_empty_entry_forgets_all_owners() {
    let mut web_app = Tracked::deployment();
    web_app.apply("one", spec(Some(1), json!([web("a")])), false).unwrap();
    let mut new = web_app.object.clone().unwrap();
    new["metadata"]["managedFields"] = json!([{}]);
    web_app.with(|fields| fields.update(web_app.object.as_ref(), &mut new, "two"));
    assert_eq!(new["metadata"].get("managedFields"), None);
}

#[test]
fn parts_are_owned_apart() {
    let mut web_app = Tracked::deployment();
    let config = spec(Some(1), json!([web("a")]));
    web_app.apply("one", config.clone(), false).unwrap();
    web_app.subresource = "status";
    let mut with_status = config;
    with_status["status"] = json!({"replicas": 1});
    with_status["spec"]["replicas"] = 5.into();
    let object = web_app.update("controller", with_status);
    let entry = &object["metadata"]["managedFields"][1];
    assert_eq!((&entry["subresource"], &entry["fieldsV1"]), (&json!("status"), &json!({"f:status": {"f:replicas": {}}})));
    assert_eq!(entry.as_object().unwrap().keys().next_back().unwrap(), "subresource");
}

#[test]
fn the_oldest_of_many_updaters_are_put_together() {
    let mut web_app = Tracked::deployment();
    let mut labels = serde_json::Map::new();
    for number in 0..15 {
        web_app.now += 1;
        labels.insert(format!("l{number:02}"), "x".into());
        web_app.update(&format!("m{number:02}"), json!({"metadata": {"labels": labels.clone()}}));
    }
    let owners = web_app.owners();
    assert_eq!(owners.len(), 10);
    assert!(owners[0].starts_with("ancient-changes Update {\"f:metadata\":{\"f:labels\":{\".\":{},\"f:l00\":{}"), "{owners:?}");
    assert!(owners[0].contains("f:l05") && !owners[0].contains("f:l06"), "{owners:?}");
}

#[test]
fn a_broken_entry_fails_an_apply_and_is_dropped_by_an_update() {
    let mut web_app = Tracked::deployment();
    let mut object = web_app.named(spec(Some(1), json!([web("a")])));
    object["metadata"]["managedFields"] = json!([{"manager": "x", "operation": "Update", "apiVersion": "apps/v1", "fieldsV1": {}}]);
    web_app.object = Some(object);
    let error = web_app.apply("one", spec(Some(1), json!([])), false).unwrap_err();
    assert_eq!(message(error), "failed to decode managed fields: missing fieldsType in managed fields entry 0");
    let mut new = web_app.object.clone().unwrap();
    web_app.with(|fields| fields.update(web_app.object.as_ref(), &mut new, "two"));
    assert_eq!(new["metadata"].get("managedFields"), None);
}

#[test]
fn manager_names_come_from_the_request_or_the_user_agent() {
    assert_eq!(manager_name("me", "kubectl/v1.36"), "me");
    assert_eq!(manager_name("", "kubectl/v1.36 (linux/amd64)"), "kubectl");
    assert_eq!(manager_name("", "a\u{1}b"), "ab");
    assert_eq!(manager_name("", &"ü".repeat(100)), "ü".repeat(64));
}

#[test]
fn scale_shows_and_moves_the_owners_of_replicas() {
    let path: &[&str] = &["spec", "replicas"];
    let mappings: scale::Mappings<'_> = &[("apps/v1", Some(path))];
    let entry = |manager: &str, operation: &str, version: &str, fields: Value| json!({"manager": manager, "operation": operation, "apiVersion": version, "fieldsType": "FieldsV1", "fieldsV1": fields});
    let parent = json!([entry("one", "Apply", "apps/v1", json!({"f:spec": {"f:replicas": {}, "f:selector": {}}}))]);
    let shown = scale::to_scale(&parent, mappings).unwrap().unwrap();
    assert_eq!(shown, json!([entry("one", "Apply", "autoscaling/v1", json!({"f:spec": {"f:replicas": {}}}))]));
    let mut taken = entry("hpa", "Update", "autoscaling/v1", json!({"f:spec": {"f:replicas": {}}}));
    taken["subresource"] = "scale".into();
    let after = scale::to_parent(&parent, &json!([taken]), "apps/v1", mappings).unwrap().unwrap();
    assert_eq!(after[0], entry("one", "Apply", "apps/v1", json!({"f:spec": {"f:selector": {}}})));
    assert_eq!((&after[1]["manager"], &after[1]["apiVersion"]), (&json!("hpa"), &json!("apps/v1")));
}

fn custom() -> Schema {
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {
            "hosts": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"],
                "items": {"type": "object", "properties": {"port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"}, "name": {"type": "string"}}}},
            "plain": {"type": "array", "items": {"type": "integer"}},
            "one": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {"type": "string"}},
            "any": {"x-kubernetes-preserve-unknown-fields": true, "type": "object"},
            "size": {"x-kubernetes-int-or-string": true},
            "pod": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true},
        }},
    }});
    openapi::schema(&schema, builtin().find("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").unwrap(), false).unwrap()
}

#[test]
fn custom_kinds_merge_as_their_schema_says() {
    let schema = custom();
    let of = schema.find(openapi::ROOT).unwrap();
    let set = of.field_set(&json!({"apiVersion": "x/v1", "kind": "Y", "metadata": {"labels": {"a": "b"}}, "spec": {
        "hosts": ["a"], "ports": [{"port": 1}], "plain": [1], "one": {"a": "b"}, "any": {"x": {"y": [1]}}, "size": "1",
        "pod": {"metadata": {"labels": {"c": "d"}}, "spec": {"z": 1}},
    }}));
    let spec = json!({
        "f:any": {"f:x": {".": {}, "f:y": {}}}, "f:hosts": {"v:\"a\"": {}}, "f:one": {}, "f:plain": {},
        "f:pod": {"f:metadata": {"f:labels": {"f:c": {}}}, "f:spec": {".": {}, "f:z": {}}},
        "f:ports": {"k:{\"port\":1,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}}}, "f:size": {},
    });
    assert_eq!(set.to_json()["f:spec"], spec);
    assert_eq!(set.to_json()["f:metadata"], json!({"f:labels": {"f:a": {}}}));
}

#[test]
fn broken_custom_schemas_are_refused_with_their_place() {
    let meta = builtin().find("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").unwrap();
    let build = |schema: Value| openapi::schema(&json!({"type": "object", "properties": {"a": schema}}), meta, false).unwrap_err().to_string();
    assert_eq!(build(json!({"type": "list"})), "cannot build the schema: .a: unrecognized type: 'list'");
    assert_eq!(build(json!({"type": "array"})), "cannot build the schema: .a: `items` must be specified on arrays");
    let keys = json!({"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "map"});
    assert_eq!(build(keys), "cannot build the schema: .a: missing map keys");
    let mut deep = json!({"type": "string"});
    for _ in 0..500 {
        deep = json!({"type": "object", "additionalProperties": deep});
    }
    assert!(build(deep).ends_with("the schema has too many levels"));
}

/// Two versions of a kind: `v1` calls `v2`'s `spec.count` `spec.number`.
fn convert<'a>(v1: Type<'a>, v2: Type<'a>) -> impl Fn(&Value, &str) -> Result<Option<(Type<'a>, Value)>, String> {
    move |object, version| {
        let (of, from, to) = match version {
            "x/v1" => (v1, "count", "number"),
            "x/v2" => (v2, "number", "count"),
            _ => return Ok(None),
        };
        let mut object = object.clone();
        object["apiVersion"] = version.into();
        if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut)
            && let Some(value) = spec.shift_remove(from)
        {
            spec.insert(to.into(), value);
        }
        Ok(Some((of, object)))
    }
}

#[test]
fn owners_of_several_versions_meet_by_conversion() {
    let version = |field: &str| {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {field: {"type": "integer"}, "b": {"type": "string"}}}}});
        openapi::schema(&schema, builtin().find("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").unwrap(), false).unwrap()
    };
    let (first, second) = (version("number"), version("count"));
    let (v1, v2) = (first.find(openapi::ROOT).unwrap(), second.find(openapi::ROOT).unwrap());
    let reset = |_: &str| ResetFields::These(FieldSet::default());
    let convert = convert(v1, v2);
    let manager = |version: &'static str| FieldManager {
        of: if version == "x/v1" { v1 } else { v2 },
        api_version: version,
        kind: "Y",
        subresource: "",
        reset: &reset,
        convert: &convert,
        now: jiff::Timestamp::UNIX_EPOCH,
    };
    let config = |version: &str, spec: Value| json!({"apiVersion": version, "kind": "Y", "metadata": {"name": "a"}, "spec": spec});
    let live = manager("x/v1").apply(None, &config("x/v1", json!({"number": 1, "b": "c"})), "one", false).unwrap();
    let (_, at_v2) = convert(&live, "x/v2").unwrap().unwrap();
    let error = manager("x/v2").apply(Some(&at_v2), &config("x/v2", json!({"count": 2})), "two", false).unwrap_err();
    assert_eq!(message(error), "Apply failed with 1 conflict: conflict with \"one\": .spec.number");
    let left = manager("x/v2").apply(Some(&at_v2), &config("x/v2", json!({"b": "c"})), "one", false).unwrap();
    assert_eq!(left["spec"], json!({"b": "c"}), "what was applied in another version is removed");
    let mut old = at_v2.clone();
    old["metadata"]["managedFields"][0]["apiVersion"] = "x/v0".into();
    let left = manager("x/v2").apply(Some(&old), &config("x/v2", json!({"count": 2})), "two", false).unwrap();
    assert_eq!(left["metadata"]["managedFields"].as_array().unwrap().len(), 1, "owners in versions that are gone are dropped");
}

#[test]
fn sets_follow_a_schema_that_became_atomic() {
    let version = |list: Value| {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"hosts": list}}}});
        openapi::schema(&schema, builtin().find("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").unwrap(), false).unwrap()
    };
    let set = version(json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}));
    let atomic = version(json!({"type": "array", "x-kubernetes-list-type": "atomic", "items": {"type": "string"}}));
    let reset = |_: &str| ResetFields::These(FieldSet::default());
    let apply = |schema: &Schema, live: Option<&Value>, manager: &str, hosts: Value| {
        let of = schema.find(openapi::ROOT).unwrap();
        let fields = FieldManager {
            of,
            api_version: "x/v1",
            kind: "Y",
            subresource: "",
            reset: &reset,
            convert: &one_version,
            now: jiff::Timestamp::UNIX_EPOCH,
        };
        fields.apply(live, &json!({"apiVersion": "x/v1", "kind": "Y", "metadata": {"name": "a"}, "spec": {"hosts": hosts}}), manager, false)
    };
    let live = apply(&set, None, "one", json!(["a"])).unwrap();
    let error = apply(&atomic, Some(&live), "two", json!(["b"])).unwrap_err();
    assert_eq!(message(error), "Apply failed with 1 conflict: conflict with \"one\": .spec.hosts");
}

#[test]
fn kinds_without_a_schema_are_deduced() {
    let schema = Schema::deduced();
    let of = schema.type_at(Schema::DEDUCED);
    let set = of.field_set(&json!({"a": {"b": 1}, "c": [{"d": 1}], "e": null}));
    assert_eq!(set.to_json(), json!({"f:a": {".": {}, "f:b": {}}, "f:c": {}, "f:e": {}}));
}

#[test]
fn hostile_documents_are_refused() {
    let mut web_app = Tracked::deployment();
    let mut deep = json!({});
    for _ in 0..300 {
        deep = json!({"a": deep});
    }
    let error = message(web_app.apply("one", json!({"metadata": deep.clone()}), false).unwrap_err());
    assert!(error.ends_with("field not declared in schema"), "{error}");
    let schema = Schema::deduced();
    let of = schema.type_at(Schema::DEDUCED);
    assert!(of.validate(&deep, kube_schema::typed::Duplicates::Allowed).unwrap_err().to_string().ends_with("exceeded max depth"));
}
