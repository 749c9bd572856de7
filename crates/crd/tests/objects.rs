//! Custom objects: pruning, defaults, validation, rules, ratcheting, columns, conversion.

use crd::columns::Column;
use crd::resource::{Compiled, Version};
use crd::schema::Schema;
use crd::{conversion, default, list_type, path, prune, values};
use proptest::prelude::*;
use serde_json::{Value, json};

fn schema(json: Value) -> Schema {
    Schema::parse(&json).unwrap()
}

fn version(schema: Value) -> Compiled {
    let definition = json!({"spec": {"versions": [
        {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}
    ]}});
    Version::all(&definition).remove(0).compile()
}

fn texts(errors: &[crd::field::FieldError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn unknown_fields_are_pruned() {
    let rows = [
        (json!({"type": "object", "properties": {"a": {"type": "string"}}}), json!({"a": "x", "b": 1}), json!({"a": "x"}), vec!["b"]),
        (
            json!({"type": "object", "properties": {"l": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}}}}),
            json!({"l": [{"a": "x", "b": 1}]}),
            json!({"l": [{"a": "x"}]}),
            vec!["l[0].b"],
        ),
        (
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"a": {"type": "object"}}}),
            json!({"a": {"b": 1}, "c": {"d": 1}}),
            json!({"a": {}, "c": {"d": 1}}),
            vec!["a.b"],
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "object", "properties": {"a": {"type": "string"}}}}),
            json!({"k": {"a": "x", "b": 1}}),
            json!({"k": {"a": "x"}}),
            vec!["k.b"],
        ),
        (
            json!({"type": "object", "properties": {"e": {"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object"}}}}}),
            json!({"e": {"apiVersion": "v1", "kind": "X", "metadata": {"name": "n"}, "spec": {"z": 1}, "z": 1}}),
            json!({"e": {"apiVersion": "v1", "kind": "X", "metadata": {"name": "n"}, "spec": {}}}),
            vec!["e.spec.z", "e.z"],
        ),
    ];
    for (given, mut object, expected, removed) in rows {
        assert_eq!(prune::prune(&mut object, &schema(given.clone()), false), removed, "{given}");
        assert_eq!(object, expected, "{given}");
    }
    let mut root = json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n"}, "x": 1});
    assert_eq!(prune::prune(&mut root, &schema(json!({"type": "object"})), true), ["x"]);
}

#[test]
fn defaults_are_set_and_nulls_go() {
    let given = schema(json!({"type": "object", "properties": {
        "a": {"type": "string", "default": "A"},
        "o": {"type": "object", "default": {}, "properties": {"b": {"type": "integer", "default": 5}}},
        "n": {"type": "string", "nullable": true, "default": "N"},
        "plain": {"type": "string"},
        "l": {"type": "array", "items": {"type": "object", "properties": {"c": {"type": "boolean", "default": true}}}},
    }}));
    let mut object = json!({"a": null, "n": null, "plain": null, "l": [{}]});
    default::prune_nulls(&mut object, &given);
    default::set(&mut object, &given);
    assert_eq!(object, json!({"a": "A", "n": null, "l": [{"c": true}], "o": {"b": 5}}));
}

#[test]
fn values_are_validated_with_upstreams_messages() {
    let rows = vec![
        (json!({"type": "integer"}), json!("x"), vec![r#"spec.v: Invalid value: "string": spec.v in body must be of type integer: "string""#]),
        (json!({"type": "integer"}), json!(1.0), vec![]),
        (json!({"type": "string"}), json!(null), vec![r#"spec.v: Invalid value: "null": spec.v in body must be of type string: "null""#]),
        (json!({"type": "string", "nullable": true}), json!(null), vec![]),
        (json!({"type": "object", "required": ["a"]}), json!({}), vec!["spec.v.a: Required value"]),
        (json!({"type": "string", "enum": ["a", "b"]}), json!("c"), vec![r#"spec.v: Unsupported value: "c": supported values: "a", "b""#]),
        (json!({"type": "string", "maxLength": 1}), json!("ab"), vec!["spec.v: Too long: may not be more than 1 byte"]),
        (
            json!({"type": "string", "minLength": 3}),
            json!("ab"),
            vec![r#"spec.v: Invalid value: "ab": spec.v in body should be at least 3 chars long"#],
        ),
        (json!({"type": "string", "pattern": "^a$"}), json!("b"), vec![r#"spec.v: Invalid value: "b": spec.v in body should match '^a$'"#]),
        (
            json!({"type": "string", "format": "date-time"}),
            json!("b"),
            vec![r#"spec.v: Invalid value: "b": spec.v in body must be of type date-time: "b""#],
        ),
        (json!({"type": "integer", "maximum": 5}), json!(6), vec!["spec.v: Invalid value: 6: spec.v in body should be less than or equal to 5"]),
        (
            json!({"type": "integer", "minimum": 5, "exclusiveMinimum": true}),
            json!(5),
            vec!["spec.v: Invalid value: 5: spec.v in body should be greater than 5"],
        ),
        (json!({"type": "integer", "multipleOf": 3}), json!(4), vec!["spec.v: Invalid value: 4: spec.v in body should be a multiple of 3"]),
        (
            json!({"type": "array", "maxItems": 1, "items": {"type": "string"}}),
            json!(["a", "b"]),
            vec!["spec.v: Too many: 2: must have at most 1 item"],
        ),
        (
            json!({"type": "array", "minItems": 1, "items": {"type": "string"}}),
            json!([]),
            vec!["spec.v: Invalid value: 0: spec.v in body should have at least 1 items"],
        ),
        (
            json!({"type": "array", "items": {"type": "string"}}),
            json!([1]),
            vec![r#"spec.v[0]: Invalid value: "integer": spec.v[0] in body must be of type string: "integer""#],
        ),
        (
            json!({"type": "object", "maxProperties": 1, "additionalProperties": {"type": "string"}}),
            json!({"a": "x", "b": "y"}),
            vec!["spec.v: Too many: 2: must have at most 1 item"],
        ),
        (json!({"x-kubernetes-int-or-string": true}), json!(1), vec![]),
        (json!({"x-kubernetes-int-or-string": true}), json!("1"), vec![]),
        (
            json!({"x-kubernetes-int-or-string": true}),
            json!(true),
            vec![r#"spec.v: Invalid value: "boolean": spec.v in body must be of type integer,string: "boolean""#],
        ),
    ];
    judge_values(rows);
}

#[test]
fn junctors_are_judged_as_a_whole() {
    judge_values(vec![
        (
            json!({"type": "integer", "anyOf": [{"minimum": 5}, {"maximum": 1}]}),
            json!(3),
            vec![
                r#"<nil>: Invalid value: "": "spec.v" must validate at least one schema (anyOf)"#,
                "spec.v: Invalid value: 3: spec.v in body should be greater than or equal to 5",
            ],
        ),
        (
            json!({"type": "integer", "oneOf": [{"minimum": 1}, {"minimum": 2}]}),
            json!(3),
            vec![r#"<nil>: Invalid value: "": "spec.v" must validate one and only one schema (oneOf). Found 2 valid alternatives"#],
        ),
        (
            json!({"type": "integer", "not": {"minimum": 1}}),
            json!(3),
            vec![r#"<nil>: Invalid value: "": "spec.v" must not validate the schema (not)"#],
        ),
        (
            json!({"type": "integer", "allOf": [{"minimum": 5}]}),
            json!(3),
            vec![
                "spec.v: Invalid value: 3: spec.v in body should be greater than or equal to 5",
                r#"<nil>: Invalid value: "": "spec.v" must validate all the schemas (allOf). None validated"#,
            ],
        ),
    ]);
}

fn judge_values(rows: Vec<(Value, Value, Vec<&str>)>) {
    for (given, value, expected) in rows {
        let root = schema(json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"v": given.clone()}}}}));
        assert_eq!(texts(&values::validate("", &json!({"spec": {"v": value}}), &root)), expected, "{given} {value}");
    }
}

#[test]
fn lists_are_sets_or_have_keys() {
    let given = schema(json!({"type": "object", "properties": {
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "map": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object", "properties": {"k": {"type": "string"}}}},
    }}));
    let object = json!({"set": ["a", "b", "a", "a"], "map": [{"k": "x"}, {"k": "y"}, {"k": "x"}]});
    assert_eq!(texts(&list_type::validate(&object, &given)), [r#"set[2]: Duplicate value: "a""#, r#"map[2]: Duplicate value: {"k":"x"}"#]);
}

#[test]
fn rules_judge_objects_and_changes() {
    let version = version(json!({"type": "object", "properties": {"spec": {
        "type": "object",
        "x-kubernetes-validations": [
            {"rule": "self.min <= self.max", "message": "min must not exceed max", "fieldPath": ".min", "reason": "FieldValueForbidden"},
            {"rule": "self.name.startsWith('a')", "messageExpression": "'name is ' + self.name"},
        ],
        "properties": {
            "min": {"type": "integer"}, "max": {"type": "integer"},
            "name": {"type": "string"},
            "num": {"type": "integer", "x-kubernetes-validations": [{"rule": "self >= oldSelf"}]},
            "once": {"type": "string", "x-kubernetes-validations": [{"rule": "!oldSelf.hasValue() || self == oldSelf.value()", "optionalOldSelf": true, "message": "immutable"}]},
        },
    }}}));
    let object = |min: i64, name: &str, num: i64| json!({"spec": {"min": min, "max": 5, "name": name, "num": num, "once": "x"}});
    assert_eq!(texts(&version.validate(&object(1, "ab", 1))), Vec::<String>::new());
    assert_eq!(texts(&version.validate(&object(9, "b", 1))), ["spec.min: Forbidden: min must not exceed max", "spec: Invalid value: name is b"]);
    let changed = version.validate_update(&object(1, "ab", 1), &object(1, "ab", 2));
    assert_eq!(texts(&changed.errors), ["spec.num: Invalid value: 1: failed rule: self >= oldSelf"]);
    let mut other = object(1, "ab", 1);
    other["spec"]["once"] = json!("y");
    assert_eq!(texts(&version.validate_update(&other, &object(1, "ab", 1)).errors), [r#"spec.once: Invalid value: "y": immutable"#]);
    let wrong = version.validate(&json!({"spec": {"min": "x"}}));
    assert!(texts(&wrong)[1].starts_with("<nil>: Invalid value: null: some validation rules were not checked"), "{wrong:?}");
}

#[test]
fn costly_rules_are_stopped() {
    let version = version(json!({"type": "object", "properties": {"spec": {"type": "object",
        "x-kubernetes-validations": [{"rule": "self.large.all(x, self.large.all(y, y == x))"}],
        "properties": {"large": {"type": "array", "maxItems": 725, "items": {"type": "integer"}}}}}}));
    let found = texts(&version.validate(&json!({"spec": {"large": vec![20; 725]}})));
    assert_eq!(
        found,
        [
            r#"spec: Invalid value: "object": 'operation cancelled: actual cost limit exceeded': no further validation rules will be run due to call cost exceeds limit for rule: self.large.all(x, self.large.all(y, y == x))"#
        ]
    );
}

#[test]
fn unchanged_errors_are_tolerated() {
    let version = version(json!({"type": "object", "properties": {
        "a": {"type": "string", "maxLength": 1},
        "b": {"type": "string", "x-kubernetes-validations": [{"rule": "self != 'bad'"}]},
        "l": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": {
            "type": "object", "required": ["k"], "properties": {"k": {"type": "string"}, "v": {"type": "integer", "maximum": 3}}}},
        "c": {"type": "string"},
    }}));
    let old = json!({"a": "long", "b": "bad", "c": "x", "l": [{"k": "1", "v": 9}]});
    let mut new = old.clone();
    new["c"] = json!("y");
    new["l"] = json!([{"k": "0", "v": 1}, {"k": "1", "v": 9}]);
    let judged = version.validate_update(&new, &old);
    assert_eq!(texts(&judged.errors), Vec::<String>::new());
    assert_eq!(texts(&judged.warnings), [r#"b: Invalid value: "bad": failed rule: self != 'bad'"#]);
    new["a"] = json!("longer");
    new["l"][0]["v"] = json!(8);
    assert_eq!(
        texts(&version.validate_update(&new, &old).errors)[..2],
        ["a: Too long: may not be more than 1 byte", "l[0].v: Invalid value: 8: l[0].v in body should be less than or equal to 3"]
    );
}

#[test]
fn columns_find_their_cells() {
    let object = json!({"spec": {"n": 5, "list": [{"type": "A", "s": "x"}, {"type": "B", "s": "y"}], "a.b": "dotted", "t": "2020-01-01T00:00:00Z"}});
    let cell = |ty: &str, path: &str| {
        let column = Column::parse(&json!({"name": "C", "type": ty, "jsonPath": path}));
        column.cell(&object, &|text| format!("age of {text}"))
    };
    assert_eq!(cell("integer", ".spec.n"), json!(5));
    assert_eq!(cell("string", ".spec.n"), json!("5"));
    assert_eq!(cell("string", ".spec.list[*].s"), json!("x,y"));
    assert_eq!(cell("string", ".spec.list[?(@.type==\"B\")].s"), json!("y"));
    assert_eq!(cell("string", ".spec.list[-1].s"), json!("y"));
    assert_eq!(cell("string", ".spec['a.b']"), json!("dotted"));
    assert_eq!(cell("string", r".spec.a\.b"), json!("dotted"));
    assert_eq!(cell("date", ".spec.t"), json!("age of 2020-01-01T00:00:00Z"));
    assert_eq!(cell("string", ".spec.missing"), Value::Null);
    let mut scaled = json!({});
    assert!(path::set(&mut scaled, ".spec.replicas", json!(3)));
    assert_eq!(path::get(&scaled, ".spec.replicas"), Some(&json!(3)));
}

#[test]
fn webhooks_convert_within_their_limits() {
    let sent = [json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n", "uid": "u", "labels": {"a": "b"}}})];
    let request = conversion::request("v1", "id", "g/v2", &sent);
    assert_eq!(request["request"]["desiredAPIVersion"], "g/v2");
    let answer = |object: Value| {
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
        "response": {"uid": "id", "result": {"status": "Success"}, "convertedObjects": [object]}})
    };
    let judge = |answer: &Value| conversion::response(answer, "v1", "id", "g/v2", &sent);
    let good =
        json!({"apiVersion": "g/v2", "kind": "K", "metadata": {"name": "n", "uid": "u", "labels": {"c": "d"}, "resourceVersion": "9"}, "new": 1});
    let converted = judge(&answer(good.clone())).unwrap().remove(0);
    assert_eq!(converted, json!({"apiVersion": "g/v2", "kind": "K", "metadata": {"name": "n", "uid": "u", "labels": {"c": "d"}}, "new": 1}));
    let refused = |change: &dyn Fn(&mut Value)| {
        let mut object = good.clone();
        change(&mut object);
        judge(&answer(object)).unwrap_err()
    };
    assert_eq!(
        refused(&|object| object["apiVersion"] = json!("g/v3")),
        "returned invalid object at index 0: invalid groupVersion (expected g/v2, received g/v3)"
    );
    assert_eq!(refused(&|object| object["kind"] = json!("L")), "returned invalid object at index 0: invalid kind (expected K, received L)");
    assert_eq!(refused(&|object| object["metadata"]["name"] = json!("o")), "returned invalid object: must have the same name: n != o");
    assert_eq!(refused(&|object| object["metadata"]["uid"] = json!("")), "returned invalid object: must have the same UID: u != ");
    assert_eq!(
        refused(&|object| object["metadata"]["labels"] = json!({"a": 1})),
        "returned invalid metadata: metadata.labels[a] must be a string, but is int64 in converted object"
    );
    assert_eq!(
        refused(&|object| object["metadata"]["annotations"] = json!([])),
        "returned invalid metadata: invalid metadata.annotations of type []interface {} in converted object"
    );
    let labels = refused(&|object| object["metadata"]["labels"] = json!({"a": "-"}));
    assert!(labels.starts_with(r#"returned invalid metadata: metadata.labels: Invalid value: "-": a valid label must be"#), "{labels}");
    let mut failed = answer(json!({}));
    failed["response"]["result"] = json!({"status": "Failure", "message": "no"});
    assert_eq!(judge(&failed).unwrap_err(), "failed: no");
    failed["response"]["result"] = json!({});
    assert_eq!(judge(&failed).unwrap_err(), "failed: response.result.status was '', not 'Success'");
    failed["response"]["uid"] = json!("other");
    assert_eq!(judge(&failed).unwrap_err(), r#"failed: expected response.uid="id", got "other""#);
    assert_eq!(judge(&json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview"})).unwrap_err(), "failed: no response provided");
    assert_eq!(
        judge(&json!({"apiVersion": "v1", "kind": "Pod"})).unwrap_err(),
        "failed: expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got v1, Kind=Pod"
    );
    let mut none = answer(json!({}));
    none["response"]["convertedObjects"] = json!([]);
    assert_eq!(judge(&none).unwrap_err(), "returned 0 objects, expected 1");
}

#[test]
fn reviews_have_a_bounded_number_of_objects() {
    assert_eq!(conversion::batch(&[]), 0);
    assert_eq!(conversion::batch(&vec![json!({}); 1000]), 256);
    let large = json!({"data": "x".repeat(600 << 10)});
    assert_eq!(conversion::batch(&[large.clone(), large.clone(), large]), 1);
    assert_eq!(conversion::batch(&[json!({"data": "x".repeat(2 << 20)}), json!({})]), 1, "a large object goes alone");
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf =
        prop_oneof![Just(Value::Null), any::<bool>().prop_map(Value::from), (-5..5_i64).prop_map(Value::from), "[ab]{0,2}".prop_map(Value::from)];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-d]", inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

fn any_schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!({"type": "string"})),
        Just(json!({"type": "integer", "default": 3})),
        Just(json!({"type": "string", "nullable": true, "default": "x"})),
        Just(json!({"x-kubernetes-int-or-string": true})),
        Just(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::btree_map("[a-d]", inner.clone(), 0..4).prop_map(|map| json!({"type": "object", "properties": map})),
            prop::collection::btree_map("[a-d]", inner.clone(), 0..4)
                .prop_map(|map| json!({"type": "object", "default": {}, "properties": map, "x-kubernetes-preserve-unknown-fields": true})),
            inner.clone().prop_map(|inner| json!({"type": "array", "items": inner})),
            inner.prop_map(|inner| json!({"type": "object", "additionalProperties": inner})),
        ]
    })
}

proptest! {
    #[test]
    fn pruning_and_defaulting_are_idempotent(given in any_schema(), object in any_json()) {
        let version = version(given);
        let mut once = object;
        version.decode(&mut once);
        let mut twice = once.clone();
        prop_assert_eq!(version.decode(&mut twice), Vec::<String>::new());
        prop_assert_eq!(&once, &twice);
        let _ = version.validate(&once);
    }

    #[test]
    fn an_unchanged_object_is_always_accepted(given in any_schema(), object in any_json()) {
        let version = version(given);
        prop_assert_eq!(texts(&version.validate_update(&object, &object).errors), Vec::<String>::new());
    }

    #[test]
    fn no_path_panics(path in "[.a\\[\\]'*?@(=)0-9:-]{0,16}", object in any_json()) {
        let _ = path::find(&object, &path);
        let _ = path::get(&object, &path);
        let _ = path::in_schema(&path, &schema(json!({"type": "object", "properties": {"a": {"type": "string"}}})), true);
    }
}
