//! OpenAPI v3 schemas of custom resources, read from `openAPIV3Schema`.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// How deep a schema may nest.
pub const MAX_DEPTH: usize = 60;

/// A node of a schema. Members that upstream refuses are kept by name in `refused`, so that the refusal names them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Schema {
    /// Empty when it is not given.
    pub ty: String,
    pub title: String,
    pub description: String,
    pub nullable: bool,
    pub default: Option<Value>,
    pub properties: BTreeMap<String, Schema>,
    pub items: Option<Box<Schema>>,
    pub additional: Option<Additional>,

    pub preserve_unknown: Option<bool>,
    pub embedded: bool,
    pub int_or_string: bool,
    pub list_type: Option<String>,
    pub list_map_keys: Vec<String>,
    pub map_type: Option<String>,
    pub rules: Vec<Rule>,

    pub format: String,
    pub maximum: Option<f64>,
    pub exclusive_maximum: bool,
    pub minimum: Option<f64>,
    pub exclusive_minimum: bool,
    pub multiple_of: Option<f64>,
    pub max_length: Option<i64>,
    pub min_length: Option<i64>,
    pub pattern: String,
    pub max_items: Option<i64>,
    pub min_items: Option<i64>,
    pub unique_items: bool,
    pub max_properties: Option<i64>,
    pub min_properties: Option<i64>,
    pub required: Vec<String>,
    pub enums: Vec<Value>,
    pub all_of: Vec<Schema>,
    pub any_of: Vec<Schema>,
    pub one_of: Vec<Schema>,
    pub not: Option<Box<Schema>>,

    pub refused: Vec<Refused>,
    /// `externalDocs` and `example` are allowed where `refused` members are not.
    pub documented: Vec<&'static str>,
}

/// `additionalProperties`.
#[derive(Clone, Debug, PartialEq)]
pub enum Additional {
    Allowed(bool),
    Schema(Box<Schema>),
}

/// Members that no custom resource definition may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refused {
    Id,
    AdditionalItems,
    PatternProperties,
    Definitions,
    Dependencies,
    Reference,
    /// `items` as a list of schemas.
    ItemsArray,
}

/// One of `x-kubernetes-validations`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rule {
    pub rule: String,
    pub message: String,
    pub message_expression: String,
    pub reason: Option<String>,
    pub field_path: String,
    pub optional_old_self: Option<bool>,
}

impl Rule {
    /// The rule as upstream prints its internal type.
    pub fn printed(&self) -> Value {
        serde_json::json!({
            "Rule": self.rule,
            "Message": self.message,
            "MessageExpression": self.message_expression,
            "Reason": self.reason,
            "FieldPath": self.field_path,
            "OptionalOldSelf": self.optional_old_self,
        })
    }

    /// The message, or the rule itself.
    pub fn shown(&self) -> &str {
        if self.message.is_empty() { self.rule.trim() } else { self.message.trim() }
    }
}

fn text(map: &Map<String, Value>, name: &str) -> String {
    map.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn flag(map: &Map<String, Value>, name: &str) -> bool {
    map.get(name).and_then(Value::as_bool).unwrap_or(false)
}

fn whole(map: &Map<String, Value>, name: &str) -> Option<i64> {
    map.get(name).and_then(Value::as_i64)
}

fn texts(map: &Map<String, Value>, name: &str) -> Vec<String> {
    let list = map.get(name).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(|item| Some(item.as_str()?.to_owned())).collect()
}

impl Schema {
    /// Reads a schema. The error says that it is too deep or no object.
    pub fn parse(json: &Value) -> Result<Schema, String> {
        Schema::parse_at(json, 0)
    }

    pub fn is_empty(&self) -> bool {
        *self == Schema::default()
    }

    pub fn preserves(&self) -> bool {
        self.preserve_unknown == Some(true)
    }

    /// The schema of additional properties, when they have one.
    pub fn additional_schema(&self) -> Option<&Schema> {
        match &self.additional {
            Some(Additional::Schema(schema)) => Some(schema),
            _ => None,
        }
    }

    fn parse_at(json: &Value, depth: usize) -> Result<Schema, String> {
        let Some(map) = json.as_object() else { return Err("a schema must be an object".into()) };
        if depth > MAX_DEPTH {
            return Err(format!("a schema must not be deeper than {MAX_DEPTH} levels"));
        }
        let inner = |value: &Value| Schema::parse_at(value, depth + 1);
        let list = |name: &str| -> Result<Vec<Schema>, String> { map.get(name).and_then(Value::as_array).into_iter().flatten().map(inner).collect() };
        let mut schema = Schema {
            ty: text(map, "type"),
            title: text(map, "title"),
            description: text(map, "description"),
            nullable: flag(map, "nullable"),
            default: map.get("default").filter(|value| !value.is_null()).cloned(),
            preserve_unknown: map.get("x-kubernetes-preserve-unknown-fields").and_then(Value::as_bool),
            embedded: flag(map, "x-kubernetes-embedded-resource"),
            int_or_string: flag(map, "x-kubernetes-int-or-string"),
            list_type: map.get("x-kubernetes-list-type").and_then(Value::as_str).map(str::to_owned),
            list_map_keys: texts(map, "x-kubernetes-list-map-keys"),
            map_type: map.get("x-kubernetes-map-type").and_then(Value::as_str).map(str::to_owned),
            rules: rules(map),
            format: text(map, "format"),
            maximum: map.get("maximum").and_then(Value::as_f64),
            exclusive_maximum: flag(map, "exclusiveMaximum"),
            minimum: map.get("minimum").and_then(Value::as_f64),
            exclusive_minimum: flag(map, "exclusiveMinimum"),
            multiple_of: map.get("multipleOf").and_then(Value::as_f64),
            max_length: whole(map, "maxLength"),
            min_length: whole(map, "minLength"),
            pattern: text(map, "pattern"),
            max_items: whole(map, "maxItems"),
            min_items: whole(map, "minItems"),
            unique_items: flag(map, "uniqueItems"),
            max_properties: whole(map, "maxProperties"),
            min_properties: whole(map, "minProperties"),
            required: texts(map, "required"),
            enums: map.get("enum").and_then(Value::as_array).cloned().unwrap_or_default(),
            all_of: list("allOf")?,
            any_of: list("anyOf")?,
            one_of: list("oneOf")?,
            refused: refused(map),
            ..Schema::default()
        };
        schema.documented = ["externalDocs", "example"].into_iter().filter(|name| map.get(*name).is_some_and(|v| !v.is_null())).collect();
        for (name, value) in map.get("properties").and_then(Value::as_object).into_iter().flatten() {
            schema.properties.insert(name.clone(), inner(value)?);
        }
        if let Some(value) = map.get("items").filter(|value| value.is_object()) {
            schema.items = Some(Box::new(inner(value)?));
        }
        if let Some(value) = map.get("not").filter(|value| value.is_object()) {
            schema.not = Some(Box::new(inner(value)?));
        }
        schema.additional = match map.get("additionalProperties") {
            Some(Value::Bool(allowed)) => Some(Additional::Allowed(*allowed)),
            Some(value) if value.is_object() => Some(Additional::Schema(Box::new(inner(value)?))),
            _ => None,
        };
        Ok(schema)
    }

    /// The schema with what every object at a root has: `apiVersion`, `kind`, and the names in `metadata`.
    pub fn with_object_meta(&self) -> Schema {
        let string = || Schema { ty: "string".into(), ..Schema::default() };
        let mut schema = self.clone();
        schema.ty = "object".into();
        schema.properties.insert("kind".into(), string());
        schema.properties.insert("apiVersion".into(), string());
        let names = ["name", "generateName"].into_iter().map(|name| (name.to_owned(), string()));
        let metadata = Schema { ty: "object".into(), properties: names.collect(), ..Schema::default() };
        let known = schema
            .properties
            .get("metadata")
            .is_some_and(|known| known.properties.contains_key("name") && known.properties.contains_key("generateName"));
        if !known {
            schema.properties.insert("metadata".into(), metadata);
        }
        schema
    }

    /// Whether any node of the schema, junctors included, is such that the predicate holds.
    pub fn any(&self, holds: &dyn Fn(&Schema) -> bool) -> bool {
        holds(self) || self.children().any(|child| child.any(holds))
    }

    /// The nodes directly below, junctors included.
    pub fn children(&self) -> impl Iterator<Item = &Schema> {
        let children = self.properties.values().chain(self.items.as_deref()).chain(self.additional_schema());
        children.chain(&self.all_of).chain(&self.any_of).chain(&self.one_of).chain(self.not.as_deref())
    }
}

fn rules(map: &Map<String, Value>) -> Vec<Rule> {
    let list = map.get("x-kubernetes-validations").and_then(Value::as_array);
    let objects = list.into_iter().flatten().filter_map(Value::as_object);
    objects
        .map(|map| Rule {
            rule: text(map, "rule"),
            message: text(map, "message"),
            message_expression: text(map, "messageExpression"),
            reason: map.get("reason").and_then(Value::as_str).map(str::to_owned),
            field_path: text(map, "fieldPath"),
            optional_old_self: map.get("optionalOldSelf").and_then(Value::as_bool),
        })
        .collect()
}

fn refused(map: &Map<String, Value>) -> Vec<Refused> {
    let given = |name: &str| match map.get(name) {
        None | Some(Value::Null) => false,
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Object(map)) => !map.is_empty() || name == "additionalItems" || name == "dependencies",
        Some(_) => true,
    };
    let members = [
        ("id", Refused::Id),
        ("additionalItems", Refused::AdditionalItems),
        ("patternProperties", Refused::PatternProperties),
        ("definitions", Refused::Definitions),
        ("dependencies", Refused::Dependencies),
        ("$ref", Refused::Reference),
    ];
    let mut refused: Vec<Refused> = members.into_iter().filter(|(name, _)| given(name)).map(|(_, kind)| kind).collect();
    if map.get("items").is_some_and(Value::is_array) {
        refused.push(Refused::ItemsArray);
    }
    refused
}
