//! Checks a JSON object against upstream's Go types and brings it into the form that Go's round trip gives it.
//!
//! Wording follows Go's `encoding/json` (its Kubernetes fork) and apimachinery's strict decoder.

use super::types::{self, Field, GoType, Level, Shape};
use crate::kind::Kind;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use jiff::tz::Offset;
use kube_rules::Quantity;
use serde_json::{Map, Value};

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
/// The type of schemas in definitions of custom resources.
const SCHEMA: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";

/// A decoded object, and what was dropped on the way.
#[derive(Debug)]
pub struct Checked {
    /// The object with known fields only, in canonical form.
    pub value: Value,
    /// One text for each unknown field, as upstream sends them in Warning headers and strict errors.
    pub unknown: Vec<String>,
}

/// Why an object cannot be decoded.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A value of a wrong type inside a struct.
    #[error("json: cannot unmarshal {value} into Go struct field {holder}.{field} of type {go}")]
    Field {
        /// What JSON had.
        value: String,
        /// The innermost struct.
        holder: &'static str,
        /// The path from the root, without indexes.
        field: String,
        /// Go's name of the wanted type.
        go: String,
    },
    /// A value of a wrong type at the root or inside a type with its own decoder.
    #[error("json: cannot unmarshal {value} into Go value of type {go}")]
    Value {
        /// What JSON had.
        value: String,
        /// Go's name of the wanted type.
        go: String,
    },
    /// A text that its type's own decoder refuses.
    #[error("{0}")]
    Text(String),
}

/// Decodes `value` as upstream would decode it into the kind's type. Nulls, unknown and empty fields disappear, quantities and times become
/// canonical.
pub fn decode_check(info: &Kind, value: Value) -> Result<Checked, DecodeError> {
    if let Some(custom) = &info.custom {
        let (mut value, mut unknown) = (value, Vec::new());
        if let Some(other) = value.get("metadata").filter(|metadata| !metadata.is_object() && !metadata.is_null()) {
            return Err(DecodeError::Value { value: describe(other).into(), go: "v1.ObjectMeta".into() });
        }
        let compiled = custom.schema.compiled();
        object_meta(&mut value, "", &mut unknown)?;
        unknown.extend(compiled.decode(&mut value).iter().map(|path| format!("unknown field {path:?}")));
        embedded_meta(&compiled.schema, &mut value, "", &mut unknown)?;
        return Ok(Checked { value, unknown });
    }
    match info.schema_type() {
        Some(name) => decode_as(name, &format!("{}.{}", info.version, info.kind), value),
        None => Ok(Checked { value, unknown: Vec::new() }),
    }
}

/// The same for a type by its name in `types.txt`, which Go calls `go`; of a type that is not there, objects stay as they are.
pub fn decode_as(name: &str, go: &str, value: Value) -> Result<Checked, DecodeError> {
    let Some(go_type) = types::find(name) else { return Ok(Checked { value, unknown: Vec::new() }) };
    let mut walk = Walk::default();
    let value = match value {
        Value::Object(members) => Value::Object(walk.object(go_type, members)?),
        other => return Err(DecodeError::Value { value: describe(&other).into(), go: go.to_string() }),
    };
    Ok(Checked { value, unknown: walk.unknown })
}

/// Decodes the metadata of a custom resource, or of an object inside of one at `path`.
fn object_meta(object: &mut Value, path: &str, unknown: &mut Vec<String>) -> Result<(), DecodeError> {
    let (Some(go_type), Some(metadata @ Value::Object(_))) = (types::find(OBJECT_META), object.get_mut("metadata")) else { return Ok(()) };
    if let Value::Object(members) = metadata.take() {
        let dot = if path.is_empty() { "" } else { "." };
        let mut walk = Walk { path: format!("{path}{dot}metadata"), ..Walk::default() };
        *metadata = Value::Object(walk.object(go_type, members)?);
        unknown.append(&mut walk.unknown);
    }
    Ok(())
}

/// The same of all objects that the schema says are embedded.
fn embedded_meta(schema: &crd::schema::Schema, value: &mut Value, path: &str, unknown: &mut Vec<String>) -> Result<(), DecodeError> {
    if schema.embedded {
        object_meta(value, path, unknown)?;
    }
    let dot = if path.is_empty() { "" } else { "." };
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                if let Some(below) = schema.properties.get(name).or_else(|| schema.additional_schema()) {
                    embedded_meta(below, member, &format!("{path}{dot}{name}"), unknown)?;
                }
            }
        }
        Value::Array(items) => {
            let Some(below) = schema.items.as_deref() else { return Ok(()) };
            for (index, item) in items.iter_mut().enumerate() {
                embedded_meta(below, item, &format!("{path}[{index}]"), unknown)?;
            }
        }
        _ => {}
    }
    Ok(())
}

#[derive(Default)]
struct Walk {
    /// Path with indexes, for unknown fields.
    path: String,
    /// Path without indexes, for type errors.
    fields: Vec<&'static str>,
    unknown: Vec<String>,
}

impl Walk {
    fn object(&mut self, go_type: &'static GoType, members: Map<String, Value>) -> Result<Map<String, Value>, DecodeError> {
        let mut result = Map::new();
        let length = self.path.len();
        for (name, value) in members {
            let Some(field) = go_type.field(&name) else {
                let dot = if self.path.is_empty() { "" } else { "." };
                self.unknown.push(format!("unknown field \"{}{dot}{name}\"", self.path));
                continue;
            };
            if value.is_null() {
                continue;
            }
            if !self.path.is_empty() {
                self.path.push('.');
            }
            self.path.push_str(&name);
            self.fields.push(field.name);
            let value = self.value(Place { holder: go_type, go: field.go, shape: field.shape }, value)?;
            self.fields.pop();
            self.path.truncate(length);
            if !is_left_out(field, &value) {
                result.insert(name, value);
            }
        }
        add_values(go_type, &mut result);
        Ok(result)
    }

    fn value(&mut self, place: Place, value: Value) -> Result<Value, DecodeError> {
        match (place.shape.level(), value) {
            (Level::Object(name), Value::Object(members)) => match types::find(name) {
                Some(go_type) => Ok(Value::Object(self.object(go_type, members)?)),
                None => Ok(Value::Object(members)),
            },
            (Level::List(shape), Value::Array(items)) => self.list(place.inside(shape), items),
            (Level::Map(shape), Value::Object(members)) => self.map(place.inside(shape), members),
            (Level::Leaf(leaf @ ("schemaorbool" | "schemaorarray" | "schemaorstrings")), value) => either(leaf, value),
            (Level::Leaf(leaf), value) => self.leaf(place, leaf, value),
            (_, value) => Err(self.mismatch(place, describe(&value))),
        }
    }

    fn list(&mut self, place: Place, items: Vec<Value>) -> Result<Value, DecodeError> {
        let length = self.path.len();
        let mut result = Vec::with_capacity(items.len());
        for (index, item) in items.into_iter().enumerate() {
            self.path.push_str(&format!("[{index}]"));
            result.push(match item {
                Value::Null => zero(place.shape),
                item => self.value(place, item)?,
            });
            self.path.truncate(length);
        }
        Ok(Value::Array(result))
    }

    fn map(&mut self, place: Place, members: Map<String, Value>) -> Result<Value, DecodeError> {
        let length = self.path.len();
        let mut result = Map::new();
        for (key, value) in members {
            self.path.push('.');
            self.path.push_str(&key);
            let value = match value {
                Value::Null => zero(place.shape),
                value => self.value(place, value)?,
            };
            self.path.truncate(length);
            result.insert(key, value);
        }
        Ok(Value::Object(result))
    }

    fn leaf(&self, place: Place, leaf: &str, value: Value) -> Result<Value, DecodeError> {
        match (leaf, &value) {
            ("string", Value::String(_)) | ("bool", Value::Bool(_)) | ("float64", Value::Number(_)) | ("raw" | "extension" | "json", _) => Ok(value),
            ("int32" | "int64" | "int", Value::Number(number)) => match number.as_i64() {
                Some(whole) if leaf != "int32" || i32::try_from(whole).is_ok() => Ok(value),
                _ => Err(self.mismatch(place, &format!("number {number}"))),
            },
            ("bytes", Value::String(text)) => match STANDARD.decode(text.replace(['\r', '\n'], "")) {
                Ok(bytes) => Ok(STANDARD.encode(bytes).into()),
                Err(error) => Err(DecodeError::Text(base64_error(text, &error))),
            },
            ("quantity", Value::String(text)) => quantity(text.trim()),
            ("quantity", other) => quantity(&other.to_string()),
            ("time", Value::String(text)) => time(text, false).map_err(DecodeError::Text),
            ("microtime", Value::String(text)) => time(text, true).map_err(DecodeError::Text),
            ("time" | "microtime", other) => Err(DecodeError::Value { value: describe(other).into(), go: "string".into() }),
            ("intorstring", Value::String(_)) => Ok(value),
            ("intorstring", Value::Number(number)) => match number.as_i64() {
                Some(whole) if i32::try_from(whole).is_ok() => Ok(value),
                _ => Err(DecodeError::Value { value: format!("number {number}"), go: "int32".into() }),
            },
            ("intorstring", other) => Err(DecodeError::Value { value: describe(other).into(), go: "int32".into() }),
            _ => Err(self.mismatch(place, describe(&value))),
        }
    }

    fn mismatch(&self, place: Place, value: &str) -> DecodeError {
        DecodeError::Field { value: value.to_string(), holder: place.holder.short(), field: self.fields.join("."), go: place.go.to_string() }
    }
}

/// A schema or something else: such types have decoders of their own, which do not tell of unknown fields below them.
fn either(leaf: &str, value: Value) -> Result<Value, DecodeError> {
    let schema = |value: Value| match (types::find(SCHEMA), value) {
        (Some(go_type), Value::Object(members)) => Walk::default().object(go_type, members).map(Value::Object),
        (None, value) | (_, value @ Value::Null) => Ok(value),
        (_, value) => Err(DecodeError::Value { value: describe(&value).into(), go: "v1.JSONSchemaProps".into() }),
    };
    let text = |value: Value| match value {
        Value::String(_) => Ok(value),
        other => Err(DecodeError::Value { value: describe(&other).into(), go: "string".into() }),
    };
    match (leaf, value) {
        (_, value @ Value::Object(_)) => schema(value),
        ("schemaorbool", value @ Value::Bool(_)) => Ok(value),
        ("schemaorbool", _) => Err(DecodeError::Text("boolean or JSON schema expected".into())),
        (_, Value::Array(items)) if items.is_empty() => Ok(Value::Null),
        ("schemaorarray", Value::Array(items)) => items.into_iter().map(schema).collect(),
        (_, Value::Array(items)) => items.into_iter().map(text).collect(),
        _ => Ok(Value::Null),
    }
}

/// Where a value stands: the innermost struct, and the type wanted.
#[derive(Clone, Copy)]
struct Place {
    holder: &'static GoType,
    go: &'static str,
    shape: Shape,
}

impl Place {
    /// The place of an item of this list or map.
    fn inside(self, shape: Shape) -> Place {
        let go = self.go.strip_prefix("[]").or_else(|| self.go.split_once(']').map(|(_, item)| item)).unwrap_or(self.go);
        // A named list or map (v1.ResourceList) does not show its item's type; only types with their own decoders stand in those.
        Place { go: go.trim_start_matches('*'), shape, ..self }
    }
}

/// What Go holds for a JSON null in a list or map.
fn zero(shape: Shape) -> Value {
    match shape.level() {
        Level::Leaf("string" | "bytes") => "".into(),
        Level::Leaf("bool") => false.into(),
        Level::Leaf("int32" | "int64" | "int" | "intorstring") => 0.into(),
        Level::Leaf("quantity") => "0".into(),
        Level::Object(_) => Value::Object(Map::new()),
        _ => Value::Null,
    }
}

/// Whether Go's encoder leaves the field out.
fn is_left_out(field: &Field, value: &Value) -> bool {
    if !field.omit_empty() {
        return false;
    }
    match (field.shape.level(), value) {
        (Level::List(_), Value::Array(items)) => items.is_empty(),
        (Level::Map(_), Value::Object(members)) => members.is_empty(),
        (Level::Leaf("string" | "bytes"), Value::String(text)) => !field.pointer() && text.is_empty(),
        (Level::Leaf("bool"), Value::Bool(flag)) => !field.pointer() && !flag,
        (Level::Leaf("int32" | "int64" | "int"), Value::Number(number)) => !field.pointer() && number.as_i64() == Some(0),
        _ => false,
    }
}

/// Go always writes a struct that is held by value, however empty, and scalars that are not marked `omitempty`.
fn add_values(go_type: &GoType, members: &mut Map<String, Value>) {
    for field in &go_type.fields {
        if field.pointer() || field.omit_zero() || members.contains_key(field.name) {
            continue;
        }
        let value = match field.shape.level() {
            Level::Object(name) => {
                let mut inner = Map::new();
                if let Some(inner_type) = types::find(name) {
                    add_values(inner_type, &mut inner);
                }
                Value::Object(inner)
            }
            Level::Leaf("string" | "bool" | "int32" | "int64" | "int") if !field.omit_empty() => zero(field.shape),
            _ => continue,
        };
        members.insert(field.name.to_string(), value);
    }
}

fn describe(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn quantity(text: &str) -> Result<Value, DecodeError> {
    let parsed = Quantity::parse(text).map_err(|error| DecodeError::Text(error.to_string()))?;
    Ok(parsed.to_string().into())
}

fn time(text: &str, micros: bool) -> Result<Value, String> {
    let layout = if micros { "2006-01-02T15:04:05.000000Z07:00" } else { "2006-01-02T15:04:05Z07:00" };
    let parsed: Timestamp = match text.contains('T').then(|| text.parse()) {
        Some(Ok(parsed)) => parsed,
        _ => return Err(format!("parsing time {text:?} as {layout:?}: cannot parse {text:?} as \"2006\"")),
    };
    let form = if micros { "%Y-%m-%dT%H:%M:%S%.6fZ" } else { "%Y-%m-%dT%H:%M:%SZ" };
    Ok(Offset::UTC.to_datetime(parsed).strftime(form).to_string().into())
}

/// Go's `base64.CorruptInputError`: the offset of the first byte that cannot be.
fn base64_error(text: &str, error: &base64::DecodeError) -> String {
    let at = match error {
        base64::DecodeError::InvalidByte(at, _) => *at,
        base64::DecodeError::InvalidLastSymbol(at, _) => *at,
        base64::DecodeError::InvalidLength(_) | base64::DecodeError::InvalidPadding => text.len() - text.len() % 4,
    };
    format!("illegal base64 data at input byte {at}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::by_resource;
    use serde_json::json;

    fn check(group: &str, plural: &str, value: Value) -> Result<Checked, String> {
        decode_check(by_resource(group, "v1", plural).unwrap(), value).map_err(|error| error.to_string())
    }

    fn pod(spec: Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec})
    }

    #[test]
    fn unknown_fields_are_named_with_their_path() {
        let value = json!({"spec": {"template": {"spec": {"foo": 1, "containers": [{"name": "a"}, {"bar": {}}]}}}, "x": 1});
        let checked = check("apps", "deployments", value).unwrap();
        assert_eq!(
            checked.unknown.join(", "),
            "unknown field \"spec.template.spec.foo\", unknown field \"spec.template.spec.containers[1].bar\", unknown field \"x\""
        );
        assert!(checked.value.get("x").is_none());
        assert!(checked.value["spec"]["template"]["spec"].get("foo").is_none());
    }

    #[test]
    fn wrong_types_are_worded_as_go_words_them() {
        let field = |rest: &str| format!("json: cannot unmarshal {rest}");
        let cases = [
            (json!({"containers": "x"}), field("string into Go struct field PodSpec.spec.containers of type []v1.Container")),
            (json!({"containers": [1]}), field("number into Go struct field PodSpec.spec.containers of type v1.Container")),
            (json!({"containers": [{"name": 5}]}), field("number into Go struct field Container.spec.containers.name of type string")),
            (json!({"containers": [{"command": [true]}]}), field("bool into Go struct field Container.spec.containers.command of type string")),
            (json!({"restartPolicy": {}}), field("object into Go struct field PodSpec.spec.restartPolicy of type v1.RestartPolicy")),
            (json!({"nodeSelector": {"a": 1}}), field("number into Go struct field PodSpec.spec.nodeSelector of type string")),
            (
                json!({"terminationGracePeriodSeconds": 1.5}),
                field("number 1.5 into Go struct field PodSpec.spec.terminationGracePeriodSeconds of type int64"),
            ),
            (json!({"hostNetwork": "yes"}), field("string into Go struct field PodSpec.spec.hostNetwork of type bool")),
            (json!({"containers": [{"livenessProbe": {"httpGet": {"port": true}}}]}), field("bool into Go value of type int32")),
            (json!({"containers": [{"resources": {"limits": {"cpu": "1x"}}}]}), "unable to parse quantity's suffix".to_string()),
            (json!({"priority": 3_000_000_000_i64}), field("number 3000000000 into Go struct field PodSpec.spec.priority of type int32")),
        ];
        for (spec, expected) in cases {
            assert_eq!(check("", "pods", pod(spec.clone())).unwrap_err(), expected, "{spec}");
        }
        assert_eq!(check("", "pods", json!([])).unwrap_err(), field("array into Go value of type v1.Pod"));
        assert_eq!(
            check("", "pods", json!({"metadata": {"labels": {"a": 1}}})).unwrap_err(),
            field("number into Go struct field ObjectMeta.metadata.labels of type string")
        );
        assert_eq!(check("", "secrets", json!({"data": {"a": "!"}})).unwrap_err(), "illegal base64 data at input byte 0");
        assert!(check("", "pods", json!({"metadata": {"creationTimestamp": "yesterday"}})).unwrap_err().starts_with("parsing time \"y"));
    }

    #[test]
    fn what_go_would_not_write_disappears() {
        let spec = json!({
            "containers": [{"name": "a", "env": [], "tty": false, "resources": {"limits": {"cpu": 0.5, "memory": "1024Mi"}}}],
            "nodeSelector": {}, "securityContext": {}, "hostname": "", "enableServiceLinks": false, "priority": null,
            "volumes": [{"name": "v", "emptyDir": {}}],
        });
        let value = check("", "pods", pod(spec)).unwrap().value;
        assert_eq!(
            value["spec"],
            json!({
                "containers": [{"name": "a", "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}}}],
                "securityContext": {}, "enableServiceLinks": false, "volumes": [{"name": "v", "emptyDir": {}}],
            })
        );
    }

    #[test]
    fn structs_held_by_value_are_always_there() {
        let value = check("apps", "deployments", json!({"spec": {"template": {"spec": {"containers": [{"name": "a"}]}}}})).unwrap().value;
        assert_eq!(value["spec"]["template"]["spec"]["containers"][0]["resources"], json!({}));
        assert_eq!((&value["status"], &value["spec"]["strategy"]), (&json!({}), &json!({})));
        let service = check("", "services", json!({"spec": {}})).unwrap().value;
        assert_eq!(service["status"], json!({"loadBalancer": {}}));
    }

    #[test]
    fn scalars_without_omitempty_are_always_there() {
        let node = check("", "nodes", json!({})).unwrap().value;
        assert_eq!(node["status"]["daemonEndpoints"], json!({"kubeletEndpoint": {"Port": 0}}));
        let event = check("", "events", json!({})).unwrap().value;
        assert_eq!(event["reportingComponent"], "");
        let typed: k8s_openapi::api::core::v1::Node = serde_json::from_value(node).unwrap();
        assert!(typed.status.unwrap().daemon_endpoints.is_some());
    }

    #[test]
    fn nulls_in_lists_and_maps_are_zero_values() {
        let value = check("", "configmaps", json!({"data": {"a": null, "b": "x"}})).unwrap().value;
        assert_eq!(value["data"], json!({"a": "", "b": "x"}));
    }

    #[test]
    fn what_was_decoded_decodes_to_itself() {
        let spec = json!({
            "containers": [{"name": "a", "resources": {"limits": {"cpu": 0.5, "memory": "1e3"}}, "ports": [{"containerPort": 80}],
                "livenessProbe": {"httpGet": {"port": "web"}}, "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "b"}}}]}],
            "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1500M"}}], "tolerations": [{"key": "a", "tolerationSeconds": 0}],
        });
        let once = check("", "pods", pod(spec)).unwrap().value;
        assert_eq!(once["spec"]["containers"][0]["resources"]["limits"], json!({"cpu": "500m", "memory": "1e3"}));
        assert_eq!(check("", "pods", once.clone()).unwrap().value, once);
    }

    #[test]
    fn times_become_utc_seconds() {
        let value = check("", "pods", json!({"metadata": {"deletionTimestamp": "2026-01-02T03:04:05.9+01:00"}})).unwrap().value;
        assert_eq!(value["metadata"]["deletionTimestamp"], "2026-01-02T02:04:05Z");
        let lease = check("coordination.k8s.io", "leases", json!({"spec": {"renewTime": "2026-01-02T03:04:05Z"}})).unwrap().value;
        assert_eq!(lease["spec"]["renewTime"], "2026-01-02T03:04:05.000000Z");
    }
}
