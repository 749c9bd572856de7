//! Definitions: what is refused, with upstream's messages, and what becomes of their names.

use crd::definition::{set_defaults, validate};
use crd::names::{self, Taken};
use serde_json::{Value, json};

/// An accepted definition with this schema below `spec.versions[0]`.
fn definition(schema: Value) -> Value {
    let mut definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "crontabs.stable.example.com"},
        "spec": {
            "group": "stable.example.com",
            "scope": "Namespaced",
            "names": {"plural": "crontabs", "kind": "CronTab", "shortNames": ["ct"]},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    });
    set_defaults(&mut definition);
    definition
}

fn errors(definition: &Value) -> Vec<String> {
    validate(definition, None).iter().map(ToString::to_string).collect()
}

/// The errors of a schema whose `spec` is this one.
fn spec_errors(spec: Value) -> Vec<String> {
    let at = "spec.validation.openAPIV3Schema.properties[spec]";
    let found = errors(&definition(json!({"type": "object", "properties": {"spec": spec}})));
    found.into_iter().map(|error| error.replace(at, "S")).collect()
}

#[test]
fn a_plain_definition_is_accepted_with_defaults() {
    let definition = definition(json!({"type": "object", "properties": {"spec": {"type": "object"}}}));
    assert_eq!(errors(&definition), Vec::<String>::new());
    assert_eq!(definition["spec"]["names"]["singular"], "crontab");
    assert_eq!(definition["spec"]["names"]["listKind"], "CronTabList");
    assert_eq!(definition["spec"]["conversion"], json!({"strategy": "None"}));
    assert_eq!(definition["status"]["storedVersions"], json!(["v1"]));
}

#[test]
fn names_and_versions_are_judged() {
    let change = |path: &str, value: Value| {
        let mut definition = definition(json!({"type": "object"}));
        *definition.pointer_mut(path).unwrap() = value;
        errors(&definition)
    };
    assert_eq!(change("/metadata/name", json!("x")), [r#"metadata.name: Invalid value: "x": must be spec.names.plural+"."+spec.group"#]);
    assert_eq!(change("/spec/scope", json!("")), ["spec.scope: Required value"]);
    assert_eq!(change("/spec/scope", json!("Galaxy")), [r#"spec.scope: Unsupported value: "Galaxy": supported values: "Cluster", "Namespaced""#]);
    assert_eq!(
        change("/spec/names/listKind", json!("CronTab")),
        [r#"spec.names.listKind: Invalid value: "CronTab": kind and listKind may not be the same"#]
    );
    let storage = change("/spec/versions/0/storage", json!(false));
    assert!(storage[0].ends_with("must have exactly one version marked as storage version"), "{storage:?}");
    assert_eq!(
        change("/status/storedVersions", json!(["v0", "v1"])),
        [
            r#"status.storedVersions[0]: Invalid value: "v0": missing from spec.versions; v0 was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in v0 and removes v0 from status.storedVersions"#
        ]
    );
    let mut protected = definition(json!({"type": "object"}));
    protected["spec"]["group"] = json!("example.k8s.io");
    protected["metadata"]["name"] = json!("crontabs.example.k8s.io");
    assert_eq!(
        errors(&protected),
        [
            r#"metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval annotation "api-approved.kubernetes.io", see https://github.com/kubernetes/enhancements/pull/1111"#
        ]
    );
    protected["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": "unapproved, a test"});
    assert_eq!(errors(&protected), Vec::<String>::new());
}

#[test]
fn established_definitions_keep_scope_and_kind() {
    let mut old = definition(json!({"type": "object"}));
    old["status"]["conditions"] = json!([{"type": "Established", "status": "True"}]);
    let mut new = old.clone();
    new["spec"]["scope"] = json!("Cluster");
    new["spec"]["names"]["kind"] = json!("Other");
    let found: Vec<String> = validate(&new, Some(&old)).iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [r#"spec.scope: Invalid value: "Cluster": field is immutable"#, r#"spec.names.kind: Invalid value: "Other": field is immutable"#]
    );
}

#[test]
fn schemas_must_be_structural() {
    let rows: Vec<(Value, Vec<&str>)> = vec![
        (json!({}), vec!["S.type: Required value: must not be empty for specified object fields"]),
        (json!({"type": "array"}), vec!["S.items: Required value: must be specified"]),
        (json!({"type": "array", "items": {}}), vec!["S.items.type: Required value: must not be empty for specified array items"]),
        (json!({"type": "object", "not": {"type": "object"}}), vec!["S.not.type: Forbidden: must be empty to be structural"]),
        (
            json!({"type": "string", "pattern": "("}),
            vec![r#"S.pattern: Invalid value: "(": must be a valid regular expression, but isn't: error parsing regexp: unclosed group: `(`"#],
        ),
        (json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}), vec![]),
        (
            json!({"type": "object", "x-kubernetes-embedded-resource": true}),
            vec![
                "S.properties: Required value: must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
            ],
        ),
        (
            json!({"type": "nothing"}),
            vec![r#"S.type: Unsupported value: "nothing": supported values: "array", "boolean", "integer", "number", "object", "string""#],
        ),
        (
            json!({"type": "array", "uniqueItems": true, "items": {"type": "string"}}),
            vec!["S.uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic"],
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}}),
            vec!["S.additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive"],
        ),
        (json!({"type": "object", "$ref": "#/x"}), vec!["S.$ref: Forbidden: $ref is not supported"]),
        (
            json!({"type": "array", "x-kubernetes-list-type": "map", "items": {"type": "object"}}),
            vec!["S.x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map"],
        ),
        (
            json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"],
                "items": {"type": "object", "properties": {"a": {"type": "string"}}}}),
            vec![
                "S.items.properties[a].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
            ],
        ),
        (
            json!({"type": "object", "default": {"b": 1}, "properties": {"a": {"type": "string"}}}),
            vec![r#"S.default: Invalid value: {"b":1}: must not have unknown fields"#],
        ),
        (json!({"type": "string", "default": 5}), vec![r#"S.default: Invalid value: "integer":  in body must be of type string: "integer""#]),
    ];
    for (schema, expected) in rows {
        assert_eq!(spec_errors(schema.clone()), expected, "{schema}");
    }
    let root = |schema: Value| errors(&definition(schema));
    assert_eq!(
        root(json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}})),
        [
            "spec.validation.openAPIV3Schema.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified"
        ]
    );
    assert_eq!(
        root(json!({"type": "object", "anyOf": [{"properties": {"a": {"minimum": 1}}}]})),
        [
            "spec.validation.openAPIV3Schema.properties[a]: Required value: because it is defined in spec.validation.openAPIV3Schema.anyOf[0].properties[a]"
        ]
    );
    assert_eq!(
        root(json!({"type": "object", "additionalProperties": true})),
        ["spec.validation.openAPIV3Schema.additionalProperties: Forbidden: must not be used at the root"]
    );
}

#[test]
fn rules_are_compiled_and_their_costs_estimated() {
    let rule = |ty: Value, rule: Value| {
        let mut schema = ty;
        schema["x-kubernetes-validations"] = json!([rule]);
        spec_errors(schema)
    };
    let object = || json!({"type": "object", "properties": {"x": {"type": "integer"}}});
    let found = rule(object(), json!({"rule": "self.z == 100"}));
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with(r#"S.x-kubernetes-validations[0].rule: Invalid value: {"Rule":"self.z == 100","Message":"""#));
    assert!(found[0].ends_with("compilation failed: ERROR: <input>:1:5: undefined field 'z'\n | self.z == 100\n | ....^"));
    assert!(rule(object(), json!({"rule": "self = 42"}))[0].contains("Syntax error"));
    assert!(rule(object(), json!({"rule": "self.x"}))[0].ends_with("cel expression must evaluate to a bool"));
    assert_eq!(rule(object(), json!({"rule": "self.x > 1", "message": "x", "fieldPath": ".x"})), Vec::<String>::new());
    assert_eq!(
        rule(object(), json!({"rule": "self.x > 1", "fieldPath": ".y"})),
        [r#"S.x-kubernetes-validations[0].fieldPath: Invalid value: ".y": must be a valid path"#]
    );
    assert_eq!(
        rule(object(), json!({"rule": "self.x > 1", "reason": "Bad"})),
        [
            r#"S.x-kubernetes-validations[0].reason: Unsupported value: "Bad": supported values: "FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired""#
        ]
    );
    let in_list = json!({"type": "array", "items": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > oldSelf"}]}});
    assert_eq!(
        spec_errors(in_list),
        [
            r#"S.items.x-kubernetes-validations[0].rule: Invalid value: "self > oldSelf": oldSelf cannot be used on the uncorrelatable portion of the schema within S"#
        ]
    );
    // The schema of upstream's conformance test.
    let expensive = json!({"type": "object", "properties": {"x": {"type": "array", "items": {"type": "array",
        "items": {"type": "string"}, "x-kubernetes-validations": [{"rule": "self.all(s, s == 'string constant')"}]}}}});
    let found = spec_errors(expensive);
    assert!(
        found.iter().any(|error| error.starts_with(
            "S.properties[x].items.x-kubernetes-validations[0].rule: Forbidden: estimated rule cost exceeds budget by factor of more than 100x"
        )),
        "{found:?}"
    );
}

#[test]
fn the_rules_of_upstreams_conformance_test_are_accepted() {
    let list = |most: i64| json!({"type": "array", "maxItems": most, "items": {"type": "integer"}});
    let spec = json!({
        "type": "object",
        "x-kubernetes-validations": [
            {"rule": "self.x + self.y > 0"},
            {"rule": "self.firstArray.isSorted() && self.secondArray.isSorted() && ((self.firstArray.sum() + self.secondArray.sum()) % 2 == 0)"},
            {"rule": "self.largeArray.all(x, self.largeArray.all(y, y == x))"},
        ],
        "properties": {
            "x": {"type": "integer"}, "y": {"type": "integer"},
            "firstArray": list(1000), "secondArray": list(1000), "largeArray": list(725),
        },
    });
    assert_eq!(spec_errors(spec), Vec::<String>::new());
}

#[test]
fn columns_scale_and_selectable_fields_are_judged() {
    let with = |member: &str, value: Value| {
        let schema =
            json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "string"}, "o": {"type": "object"}}}}});
        let mut definition = definition(schema);
        definition["spec"]["versions"][0][member] = value;
        errors(&definition)
    };
    assert_eq!(
        with("additionalPrinterColumns", json!([{"name": "A", "type": "text", "jsonPath": "spec.a"}])),
        [
            r#"spec.additionalPrinterColumns[0].type: Invalid value: "text": must be one of boolean,date,integer,number,string"#,
            r#"spec.additionalPrinterColumns[0].JSONPath: Invalid value: "spec.a": must be a simple json path starting with ."#
        ]
    );
    assert_eq!(
        with("subresources", json!({"scale": {"specReplicasPath": ".status.replicas", "statusReplicasPath": ""}})),
        [
            r#"spec.subresources.scale.specReplicasPath: Invalid value: ".status.replicas": should be a json path under .spec"#,
            "spec.subresources.scale.statusReplicasPath: Required value"
        ]
    );
    assert_eq!(with("selectableFields", json!([{"jsonPath": ".spec.a"}])), Vec::<String>::new());
    let found = with("selectableFields", json!([{"jsonPath": ".spec.a"}, {"jsonPath": ".spec.a"}, {"jsonPath": ".spec.o"}, {"jsonPath": ".spec.b"}]));
    assert_eq!(found[0], r#"spec.selectableFields[1].jsonPath: Duplicate value: ".spec.a""#);
    assert!(found[1].contains("must point to a field of type string, boolean or integer"));
    assert_eq!(found[2], r#"spec.selectableFields[3].jsonPath: Invalid value: ".spec.b": is an invalid path: does not refer to a valid field"#);
}

#[test]
fn webhooks_of_conversion_are_judged() {
    let with = |conversion: Value| {
        let mut definition = definition(json!({"type": "object"}));
        definition["spec"]["conversion"] = conversion;
        errors(&definition)
    };
    assert_eq!(
        with(json!({"strategy": "Webhook"})),
        [
            "spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook",
            "spec.conversion.conversionReviewVersions: Required value"
        ]
    );
    let hook = |config: Value| json!({"strategy": "Webhook", "webhook": {"clientConfig": config, "conversionReviewVersions": ["v1"]}});
    assert_eq!(with(hook(json!({"url": "https://hooks.example.com/convert"}))), Vec::<String>::new());
    assert_eq!(
        with(hook(json!({"url": "http://u@hooks.example.com/?q"}))),
        [
            r#"spec.conversion.webhookClientConfig.url: Invalid value: "http": 'https' is the only allowed URL scheme; desired format: https://host[/path]"#,
            r#"spec.conversion.webhookClientConfig.url: Invalid value: "u": user information is not permitted in the URL"#,
            r#"spec.conversion.webhookClientConfig.url: Invalid value: "q": query parameters are not permitted in the URL"#
        ]
    );
}

#[test]
fn names_are_accepted_or_conflict() {
    let definition = definition(json!({"type": "object"}));
    let plan = names::plan(&definition, &Taken::default());
    assert_eq!(plan.accepted_names["plural"], "crontabs");
    assert!(plan.conditions.iter().all(|condition| condition.status));
    assert_eq!(plan.conditions[1].reason, "InitialNamesAccepted");
    let mut taken = Taken::default();
    taken.add(&json!({"status": {"acceptedNames": {"plural": "others", "singular": "other", "shortNames": ["ct"], "kind": "Other", "listKind": "OtherList"}}}));
    let plan = names::plan(&definition, &taken);
    assert_eq!((plan.conditions[0].status, plan.conditions[0].reason.as_str()), (false, "ShortNamesConflict"));
    assert_eq!(plan.conditions[0].message, r#""ct" is already in use"#);
    assert_eq!(plan.conditions[1].reason, "NotAccepted");
    assert!(plan.accepted_names["shortNames"].is_null());
    let mut established = definition.clone();
    established["status"]["conditions"] = json!([{"type": "Established", "status": "True"}]);
    assert!(names::plan(&established, &taken).conditions[1].status, "what is established stays so");
}
